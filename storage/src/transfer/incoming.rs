//! The files of another replica's log while they are being received.
//!
//! Invariants: pieces come in order and without gaps; every batch is whole, its CRC is right, and
//! offsets and epochs do not go back. Memory: the batch that is being received and a piece, the
//! aborted transactions of a segment, and the producers' state.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::{BatchHeader, verify_crc};
use odradek_protocol::ids::{LeaderEpoch, Offset};

use super::adopt;
use super::{INCOMING_SUFFIX, Piece, TransferError, TransferFile, TransferKind};
use crate::compaction::clean_end;
use crate::compaction::output::Output;
use crate::compaction::swap::sync_dir;
use crate::disk::{Disk, OpenMode, with_suffix};
use crate::epoch_cache::EpochCache;
use crate::error::StorageError;
use crate::file_names::{
    COMPACTED_MARKER, LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT, SNAPSHOT_SUFFIX, offset_file,
};
use crate::health::LogDirHealth;
use crate::log::Log;
use crate::producer_snapshot;
use crate::recovery_point::RecoveryPoint;
use crate::segment::MAX_SEGMENT;
use crate::txn_index::AbortedTxn;

/// Most bytes of a file that is kept in memory.
const SMALL_FILE_MAX_BYTES: u64 = producer_snapshot::MAX_BYTES as u64;

/// A log that is being received.
pub struct Incoming {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    health: Arc<LogDirHealth>,
    index_interval_bytes: u32,
    log_start: Offset,
    end: Offset,
    files: Vec<TransferFile>,
    /// Which file is being received, and how much of it is there.
    at: usize,
    position: u64,
    /// The segment that is being received.
    segment: Option<Output>,
    /// What has come of a batch, or of a file that is small.
    pending: Vec<u8>,
    /// Those of the segment that comes next.
    aborted: Vec<AbortedTxn>,
    /// No batch begins before.
    next_offset: Offset,
    epoch: LeaderEpoch,
    has_epochs: bool,
}

/// A log that has been received and is durable, and waits to be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// First readable offset.
    pub log_start: Offset,
    /// Where the log continues behind it.
    pub end: Offset,
}

impl Log {
    /// Begins to receive another log from its first to its last readable offset. What is there of an
    /// earlier transfer goes.
    pub fn begin_incoming(
        &self,
        bounds: (Offset, Offset),
        files: Vec<TransferFile>,
    ) -> Result<Incoming, TransferError> {
        self.check_usable()?;
        Incoming::begin(self, bounds, files)
    }

    /// Removes what has been received and was not adopted.
    pub fn discard_incoming(&self) -> Result<(), StorageError> {
        adopt::discard_incoming(self.disk.as_ref(), &self.dir)
    }
}

impl Incoming {
    fn begin(
        log: &Log,
        (log_start, end): (Offset, Offset),
        files: Vec<TransferFile>,
    ) -> Result<Self, TransferError> {
        check_files(&files, log_start, end)?;
        adopt::discard_incoming(log.disk.as_ref(), &log.dir)?;
        let bytes = files.iter().map(|file| file.len).sum();
        require_room(&log.health, bytes)?;
        Ok(Self {
            disk: log.disk.clone(),
            dir: log.dir.clone(),
            health: log.health.clone(),
            index_interval_bytes: log.config.index_interval_bytes,
            log_start,
            end,
            files,
            at: 0,
            position: 0,
            segment: None,
            pending: Vec::new(),
            aborted: Vec::new(),
            next_offset: Offset::ZERO,
            epoch: LeaderEpoch::new(-1),
            has_epochs: false,
        })
    }

    /// What comes next, at most `max_len` bytes of it; `None` once everything is there.
    pub fn wanted(&mut self, max_len: u32) -> Result<Option<Piece>, TransferError> {
        loop {
            let Some(file) = self.files.get(self.at).copied() else {
                return Ok(None);
            };
            if self.position == 0 {
                self.begin_file(file)?;
            }
            let left = file.len - self.position;
            if left > 0 {
                return Ok(Some(Piece {
                    file: u32::try_from(self.at).unwrap_or(u32::MAX),
                    position: self.position,
                    len: u32::try_from(left).unwrap_or(u32::MAX).min(max_len),
                }));
            }
            self.end_file(file)?;
            self.at += 1;
            self.position = 0;
        }
    }

    /// Takes bytes of what was last wanted, from its beginning.
    pub fn take(&mut self, bytes: &Bytes) -> Result<(), TransferError> {
        let file = self.files.get(self.at).copied();
        let file = file.ok_or_else(|| TransferError::malformed("more than was announced"))?;
        let position = self.position + bytes.len() as u64;
        if bytes.is_empty() || position > file.len {
            return Err(TransferError::malformed(format!(
                "{} bytes at {} of {}",
                bytes.len(),
                self.position,
                file.len
            )));
        }
        require_room(&self.health, bytes.len() as u64)?;
        self.position = position;
        self.pending.extend_from_slice(bytes);
        match file.kind {
            TransferKind::Segment {
                base_offset,
                next_offset,
            } => self.take_batches(base_offset, next_offset, file.len - position),
            TransferKind::Aborted | TransferKind::Producers | TransferKind::Epochs => Ok(()),
        }
    }

    fn begin_file(&mut self, file: TransferFile) -> Result<(), TransferError> {
        self.pending.clear();
        if let TransferKind::Segment { base_offset, .. } = file.kind
            && self.segment.is_none()
        {
            let mut output = self.output(base_offset)?;
            for txn in self.aborted.drain(..) {
                output.push_aborted(txn);
            }
            self.segment = Some(output);
        }
        Ok(())
    }

    fn output(&self, base: Offset) -> Result<Output, StorageError> {
        let interval = self.index_interval_bytes;
        Output::create(&self.disk, &self.dir, base, INCOMING_SUFFIX, interval)
    }

    /// Writes the batches that are whole by now; `to_come` bytes of the segment follow.
    fn take_batches(
        &mut self,
        base_offset: Offset,
        next_offset: Offset,
        to_come: u64,
    ) -> Result<(), TransferError> {
        let malformed = |what: String| TransferError::malformed(what);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while rest.len() >= BatchHeader::SIZE {
            let header = BatchHeader::parse(rest).map_err(|error| malformed(error.to_string()))?;
            let size = header.size_in_bytes();
            if size as u64 > rest.len() as u64 + to_come {
                return Err(malformed(format!("a batch of {size} bytes breaks off")));
            }
            let Some((batch, after)) = rest.split_at_checked(size) else {
                break;
            };
            verify_crc(&header, batch).map_err(|error| malformed(error.to_string()))?;
            let (first, last) = (header.base_offset, header.last_offset());
            let follows = header.last_offset_delta >= 0
                && first >= self.next_offset.max(base_offset)
                && last < next_offset
                && header.partition_leader_epoch >= self.epoch;
            if !follows {
                return Err(malformed(format!(
                    "a batch of offsets {first} to {last} and epoch {} behind {} and epoch {}",
                    header.partition_leader_epoch, self.next_offset, self.epoch
                )));
            }
            self.next_offset = header.next_offset();
            self.epoch = header.partition_leader_epoch;
            if let Some(output) = &mut self.segment {
                output.push(&header, batch)?;
            }
            rest = after;
        }
        self.pending = rest.to_vec();
        Ok(())
    }

    fn end_file(&mut self, file: TransferFile) -> Result<(), TransferError> {
        let pending = std::mem::take(&mut self.pending);
        match file.kind {
            TransferKind::Segment { .. } => {
                if !pending.is_empty() {
                    return Err(TransferError::malformed("a segment breaks off"));
                }
                if let Some(output) = self.segment.take() {
                    output.finish()?;
                }
            }
            TransferKind::Aborted => {
                let (entries, _) = pending.as_chunks::<{ AbortedTxn::SIZE }>();
                self.aborted = entries
                    .iter()
                    .map(AbortedTxn::from_bytes)
                    .collect::<Option<_>>()
                    .ok_or_else(|| TransferError::malformed("aborted transactions"))?;
            }
            TransferKind::Producers => {
                producer_snapshot::decode(&pending).map_err(TransferError::malformed)?;
                let path = offset_file(Path::new(""), self.end, SNAPSHOT_SUFFIX);
                self.write(&path, &pending)?;
            }
            TransferKind::Epochs => {
                let text = std::str::from_utf8(&pending).ok();
                let epochs = text.and_then(EpochCache::parse);
                if epochs.is_none() {
                    return Err(TransferError::malformed("leader epochs"));
                }
                self.write(Path::new(LEADER_EPOCH_CHECKPOINT), &pending)?;
                self.has_epochs = true;
            }
        }
        Ok(())
    }

    fn write(&self, name: &Path, content: &[u8]) -> Result<(), StorageError> {
        write_incoming(self.disk.as_ref(), &self.dir, name, content)
    }

    /// Ends a transfer of which everything is there. Durable on return, and without meaning until
    /// it is adopted.
    pub fn finish(mut self) -> Result<Received, TransferError> {
        if self.wanted(1)?.is_some() || !self.has_epochs {
            return Err(TransferError::malformed("it is not whole"));
        }
        // The segment that the log goes on with, and what says that all before it is safe.
        self.output(self.end)?.finish()?;
        self.write(Path::new(RECOVERY_POINT), &RecoveryPoint::content(self.end))?;
        let unclean = clean_end::content(Offset::ZERO);
        self.write(Path::new(COMPACTED_MARKER), unclean.as_bytes())?;
        sync_dir(self.disk.as_ref(), &self.dir)?;
        Ok(Received {
            log_start: self.log_start,
            end: self.end,
        })
    }
}

fn require_room(health: &LogDirHealth, bytes: u64) -> Result<(), TransferError> {
    let spare = health.spare_bytes();
    match u64::try_from(spare).is_ok_and(|spare| bytes <= spare) {
        true => Ok(()),
        false => Err(TransferError::NoRoom { bytes, spare }),
    }
}

/// Writes a file of the new log; its content is durable on return, its name is not.
pub(super) fn write_incoming(
    disk: &dyn Disk,
    dir: &Path,
    name: &Path,
    content: &[u8],
) -> Result<(), StorageError> {
    let path = with_suffix(&dir.join(name), INCOMING_SUFFIX);
    disk.open(&path, OpenMode::Create)
        .and_then(|file| {
            file.set_len(0)?;
            file.write_at(content, 0)?;
            file.sync_data()
        })
        .map_err(|error| StorageError::io("write", &path, error))
}

/// Whether these can be the files of a log from `log_start` to `end`.
fn check_files(
    files: &[TransferFile],
    log_start: Offset,
    end: Offset,
) -> Result<(), TransferError> {
    let require = |holds: bool, what: &str| match holds {
        true => Ok(()),
        false => Err(TransferError::malformed(what)),
    };
    require(log_start >= Offset::ZERO && log_start <= end, "its bounds")?;
    let mut next: Option<Offset> = None;
    let mut before = None;
    for file in files {
        match file.kind {
            TransferKind::Segment {
                base_offset,
                next_offset,
            } => {
                let begins = next.map_or(log_start, |next| next.max(log_start));
                require(
                    base_offset >= next.unwrap_or(Offset::ZERO)
                        && (next.is_some() || base_offset <= begins),
                    "a segment where none can begin",
                )?;
                require(
                    next_offset >= base_offset && next_offset <= end,
                    "a segment that ends where none can",
                )?;
                let distance = next_offset.get() - base_offset.get();
                require(
                    file.len <= u64::from(MAX_SEGMENT) && distance <= i64::from(MAX_SEGMENT),
                    "a segment that is too large",
                )?;
                next = Some(next_offset);
            }
            TransferKind::Aborted => require(
                file.len <= SMALL_FILE_MAX_BYTES
                    && file.len % AbortedTxn::SIZE as u64 == 0
                    && before != Some(TransferKind::Aborted),
                "aborted transactions",
            )?,
            TransferKind::Producers | TransferKind::Epochs => {
                require(file.len <= SMALL_FILE_MAX_BYTES, "a file that is too large")?;
            }
        }
        before = Some(file.kind);
    }
    require(next.is_some() || log_start == end, "no segment")
}
