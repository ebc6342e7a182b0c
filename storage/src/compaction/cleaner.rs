//! The two walks of a compaction.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_protocol::records::{
    NewHorizon, RecordView, RecordWalker, Rewritten, emptied, expand, rewrite,
};

use super::key_map::KeyMap;
use super::output::Output;
use super::swap::{ALL_BUT_LOG, CLEANED_SUFFIX, staged};
use super::transactions::{MarkerFate, Transactions};
use super::{Compacted, Compaction, CompactionStats, NewSegment};
use crate::deletion::remove_if_present;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::file_names::LOG_SUFFIX;
use crate::producer_state::EndTxnMarker;
use crate::segment::Segment;
use crate::txn_index::AbortedTxn;

/// Asked after every batch, with the bytes read and written since: it may wait, or end the run.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// Why a walk ended early.
enum Stop {
    Cancelled,
    Failed(StorageError),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        Self::Failed(error)
    }
}

/// What a batch is, beside its bytes.
enum Role {
    /// Records of an aborted transaction.
    Aborted,
    /// Other records.
    Data,
    /// A control batch.
    Marker(MarkerFate),
}

impl Compaction {
    /// Reads, and writes the new segments. The map of keys takes at most `map_bytes`; what does
    /// not fit is left for the next compaction. Returns `None` if `pace` ended it. Nothing that it
    /// wrote counts before [`Log::finish_compaction`](crate::Log::finish_compaction), so a failure
    /// here, of the disk too, loses nothing.
    pub fn run(&self, map_bytes: usize, pace: Pace<'_>) -> Result<Option<Compacted>, StorageError> {
        let mut run = Run {
            compaction: self,
            stats: CompactionStats::default(),
            pace,
        };
        let outcome = run.learn(map_bytes).and_then(|(map, clean_end)| {
            let segments = run.write(&map, clean_end)?;
            Ok((segments, clean_end))
        });
        match outcome {
            Ok((segments, clean_end)) => Ok(Some(Compacted {
                segments,
                cuts: self.cuts,
                clean_end,
                stats: run.stats,
            })),
            Err(stop) => {
                for segment in &self.segments {
                    discard(self.disk.as_ref(), &self.dir, segment.base_offset)?;
                }
                match stop {
                    Stop::Cancelled => Ok(None),
                    Stop::Failed(error) => Err(error),
                }
            }
        }
    }
}

/// Removes what was written of a new segment.
pub(super) fn discard(disk: &dyn Disk, dir: &Path, base: Offset) -> Result<(), StorageError> {
    ALL_BUT_LOG
        .iter()
        .chain([&LOG_SUFFIX])
        .try_for_each(|suffix| remove_if_present(disk, &staged(dir, base, suffix, CLEANED_SUFFIX)))
}

struct Run<'a> {
    compaction: &'a Compaction,
    stats: CompactionStats,
    pace: Pace<'a>,
}

impl Run<'_> {
    fn pace(&mut self, bytes: u64) -> Result<(), Stop> {
        match (self.pace)(bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Cancelled),
        }
    }

    /// Shows every batch of a segment that ends above `from`, whole and with its CRC checked, until
    /// `visit` says that it has seen enough. Returns whether it has.
    fn walk(
        &mut self,
        segment: &Segment,
        from: Offset,
        mut visit: impl FnMut(&mut Self, &BatchHeader, &[u8]) -> Result<bool, Stop>,
    ) -> Result<bool, Stop> {
        let end = segment.end();
        let start = segment.end_below(from, end)?.size;
        let mut scanner = segment.scan_batches(start, end.size)?;
        while let Some((header, position)) = segment.checked(scanner.next_batch())? {
            let batch = scanner
                .read_batch(&header, position)
                .map_err(|error| StorageError::io("read", segment.log.path(), error))?;
            self.stats.bytes_read += batch.len() as u64;
            if visit(self, &header, &batch)? {
                return Ok(true);
            }
            self.pace(batch.len() as u64)?;
        }
        Ok(false)
    }

    /// Learns the newest offsets of keys in the dirty part. Returns the map, and the offset up to
    /// which it knows all keys.
    fn learn(&mut self, map_bytes: usize) -> Result<(KeyMap, Offset), Stop> {
        let compaction = self.compaction;
        let plan = &compaction.plan;
        let first = compaction
            .segments
            .first()
            .map_or(plan.end, |segment| segment.base_offset);
        let dirty = plan.end.get() - plan.clean_end.max(first).get();
        let mut map = KeyMap::new(map_bytes, u64::try_from(dirty).unwrap_or(0));
        // A transaction that ended before the walk begins has no say in it.
        let open = |txn: &&AbortedTxn| txn.last_offset >= plan.clean_end;
        let mut txns = Transactions::new(compaction.aborted.iter().filter(open).copied().collect());
        let mut known = plan.clean_end.max(first);
        for segment in &compaction.segments {
            if segment.end().next_offset <= plan.clean_end {
                continue;
            }
            let enough = self.walk(segment, plan.clean_end, |run, header, batch| {
                if let Role::Data = role(&mut txns, header, batch) {
                    let full = run.learn_batch(&mut map, segment, header, batch)?;
                    if full {
                        // A batch that alone is too much for the map has to be passed some day.
                        if known <= plan.clean_end {
                            known = header.next_offset();
                        }
                        return Ok(true);
                    }
                }
                known = header.next_offset();
                Ok(false)
            })?;
            if enough {
                return Ok((map, known));
            }
            known = segment.end().next_offset;
        }
        Ok((map, plan.end))
    }

    /// Returns whether the map is full.
    fn learn_batch(
        &self,
        map: &mut KeyMap,
        segment: &Segment,
        header: &BatchHeader,
        batch: &[u8],
    ) -> Result<bool, Stop> {
        let max_bytes = self.compaction.log_config.max_decompressed_bytes;
        let malformed = |error: odradek_protocol::batch::BatchError| {
            StorageError::corrupt(
                segment.log.path(),
                0,
                format!("{error} at {}", header.base_offset),
            )
        };
        let records = expand(header, batch, max_bytes).map_err(malformed)?;
        for record in RecordWalker::new(&records, header.record_count) {
            let record = record.map_err(malformed)?;
            let Some(key) = record.key else { continue };
            let offset = header.base_offset.plus(i64::from(record.offset_delta));
            if map.put(key, offset).is_err() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the new segments: of everything that begins below `clean_end`.
    fn write(&mut self, map: &KeyMap, clean_end: Offset) -> Result<Vec<NewSegment>, Stop> {
        let compaction = self.compaction;
        let mut txns = Transactions::new(compaction.aborted.clone());
        let mut made = Vec::new();
        for group in compaction.groups(clean_end) {
            let replaces: Vec<Arc<Segment>> = compaction
                .segments
                .get(group)
                .map(<[_]>::to_vec)
                .unwrap_or_default();
            let (Some(first), Some(last)) = (replaces.first(), replaces.last()) else {
                continue;
            };
            let (base, next_offset) = (first.base_offset, last.end().next_offset);
            let mut output = Output::create(
                &compaction.disk,
                &compaction.dir,
                base,
                CLEANED_SUFFIX,
                compaction.log_config.index_interval_bytes,
            )?;
            for segment in &replaces {
                self.stats.bytes_before += u64::from(segment.end().size);
                self.walk(segment, segment.base_offset, |run, header, batch| {
                    let role = role(&mut txns, header, batch);
                    let before = output.size();
                    run.copy(map, &mut output, segment, header, batch, role)?;
                    let written = output.size() - before;
                    run.stats.bytes_written += written;
                    run.pace(written)?;
                    Ok(false)
                })?;
            }
            made.push(NewSegment {
                base,
                next_offset,
                files: output.finish()?,
                replaces,
            });
        }
        Ok(made)
    }

    /// Copies what stays of a batch.
    fn copy(
        &mut self,
        map: &KeyMap,
        output: &mut Output,
        segment: &Segment,
        header: &BatchHeader,
        batch: &[u8],
        role: Role,
    ) -> Result<(), Stop> {
        let compaction = self.compaction;
        let now = compaction.now;
        let horizon_passed = header.attributes.has_delete_horizon() && header.base_timestamp <= now;
        let (is_marker, decides_nothing) = match &role {
            Role::Marker(fate) => {
                if let Some(txn) = fate.aborted {
                    output.push_aborted(txn);
                }
                (true, fate.decides_nothing)
            }
            Role::Aborted | Role::Data => (false, false),
        };
        let discard_all = match role {
            Role::Aborted => true,
            Role::Data => false,
            Role::Marker(_) => decides_nothing && horizon_passed,
        };
        let stays = |record: &RecordView<'_>| {
            if discard_all || is_marker {
                return !discard_all;
            }
            let Some(key) = record.key else { return false };
            let offset = header.base_offset.plus(i64::from(record.offset_delta));
            let overtaken = map.get(key).is_some_and(|newest| newest > offset);
            !overtaken && (record.value.is_some() || !horizon_passed)
        };
        let malformed = |error: odradek_protocol::batch::BatchError| {
            StorageError::corrupt(
                segment.log.path(),
                0,
                format!("{error} at {}", header.base_offset),
            )
        };
        let max_bytes = compaction.log_config.max_decompressed_bytes;
        let retention = i64::try_from(compaction.config.delete_retention_ms).unwrap_or(i64::MAX);
        let horizon = TimestampMs::new(now.get().saturating_add(retention));
        let horizon = match (is_marker, decides_nothing) {
            (true, true) => NewHorizon::Set(horizon),
            (true, false) => NewHorizon::Never,
            (false, _) => NewHorizon::IfTombstone(horizon),
        };
        let rewritten = rewrite(header, batch, max_bytes, horizon, stays).map_err(malformed)?;
        let records = u64::try_from(header.record_count).unwrap_or(0);
        let kept = match rewritten {
            Rewritten::Unchanged => {
                output.push(header, batch)?;
                records
            }
            Rewritten::Changed(bytes) => push(output, segment, &bytes)?,
            Rewritten::Emptied if self.is_last_of_producer(header) => {
                push(output, segment, &emptied(header).map_err(malformed)?)?
            }
            Rewritten::Emptied => 0,
        };
        self.stats.records_kept += kept;
        self.stats.records_dropped += records - kept;
        Ok(())
    }

    /// Whether a live producer would be forgotten if this batch were gone at a restart.
    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        header.has_producer_id()
            && self
                .compaction
                .last_batches
                .get(&header.producer_id)
                .is_some_and(|last| match last.last_offset {
                    Some(offset) => offset == header.last_offset(),
                    None => header.is_control() && header.producer_epoch == last.epoch,
                })
    }
}

/// Returns how many records the batch has.
fn push(output: &mut Output, segment: &Segment, batch: &[u8]) -> Result<u64, StorageError> {
    let header = BatchHeader::parse(batch)
        .map_err(|error| StorageError::corrupt(segment.log.path(), 0, error.to_string()))?;
    output.push(&header, batch)?;
    Ok(u64::try_from(header.record_count).unwrap_or(0))
}

fn role(txns: &mut Transactions, header: &BatchHeader, batch: &[u8]) -> Role {
    if header.is_control() {
        return match EndTxnMarker::parse(header, batch) {
            Some(marker) => Role::Marker(txns.on_marker(header, marker)),
            // Of a kind that is not known: it stays.
            None => Role::Marker(MarkerFate {
                decides_nothing: false,
                aborted: None,
            }),
        };
    }
    if txns.on_batch(header) {
        Role::Aborted
    } else {
        Role::Data
    }
}
