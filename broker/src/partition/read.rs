//! What consumers and tools read from a partition: records, offsets by time, ends of epochs.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::fetch_response::{
    AbortedTransaction, DivergingEpoch, FetchedPartition, RecordsPayload,
};
use odradek_protocol::ids::{LeaderEpoch, LogOffsets, NodeId, Offset, TimestampMs};

use super::{Partition, PartitionError, Role};
use crate::fetch_plan::{IsolationLevel, ReadLimit, Standing, standing};
use crate::fetch_sessions::FetchTarget;

/// A record found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// Its offset, or [`Offset::NONE`].
    pub offset: Offset,
    /// Its timestamp, or [`TimestampMs::NONE`].
    pub timestamp: TimestampMs,
    /// Epoch of the leader that appended it, or [`LeaderEpoch::NONE`].
    pub leader_epoch: LeaderEpoch,
}

impl FoundOffset {
    /// "There is no such record", which is not an error.
    pub const NOTHING: Self = Self {
        offset: Offset::NONE,
        timestamp: TimestampMs::NONE,
        leader_epoch: LeaderEpoch::NONE,
    };

    fn at(offset: Offset, leader_epoch: LeaderEpoch) -> Self {
        Self {
            offset,
            timestamp: TimestampMs::NONE,
            leader_epoch,
        }
    }
}

/// What ListOffsets looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// First offset that is not readable yet.
    Latest,
    /// First readable offset.
    Earliest,
    /// First readable offset on this broker's disks; without tiered storage the earliest.
    EarliestLocal,
    /// The record with the largest timestamp.
    MaxTimestamp,
    /// The end of what has been moved to tiered storage; there is none.
    LatestTiered,
    /// The start of what has not been moved to tiered storage yet; there is none.
    EarliestPendingUpload,
    /// The first record with this timestamp or a later one.
    Timestamp(TimestampMs),
}

impl OffsetSpec {
    /// Reads the timestamp field of a request of `version`; `None` where that version does not
    /// have this sentinel.
    pub fn from_wire(timestamp: i64, version: i16) -> Option<Self> {
        let (spec, since) = match timestamp {
            -1 => (Self::Latest, 1),
            -2 => (Self::Earliest, 1),
            -3 => (Self::MaxTimestamp, 7),
            -4 => (Self::EarliestLocal, 8),
            -5 => (Self::LatestTiered, 9),
            -6 => (Self::EarliestPendingUpload, 11),
            0.. => (Self::Timestamp(TimestampMs::new(timestamp)), 1),
            _ => return None,
        };
        (version >= since).then_some(spec)
    }

    /// Whether records may have to be read, and decompressed, to answer.
    pub fn reads_records(self) -> bool {
        matches!(self, Self::MaxTimestamp | Self::Timestamp(_))
    }
}

/// "No other replica" in a fetch answer.
const NO_REPLICA: NodeId = NodeId::new(-1);

/// Who reads, and where the cluster would have it read (KIP-392).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reader {
    /// Whether it may be served by a follower: it says where it is, and can be sent elsewhere.
    pub takes_followers: bool,
    /// Other replicas' nodes that are nearer to it than this one.
    pub near: Vec<NodeId>,
}

impl Partition {
    /// What a fetch gets from this partition, reading as much as `limit` allows; without a limit
    /// only offsets and errors are reported.
    pub fn fetch(
        &self,
        target: &FetchTarget,
        isolation: IsolationLevel,
        limit: Option<ReadLimit>,
        reader: &Reader,
    ) -> FetchedPartition {
        self.try_fetch(target, isolation, limit, reader)
            .unwrap_or_else(|error| {
                let error = self.explain(error);
                if let PartitionError::Unreadable(cause) = &error {
                    tracing::error!(
                        topic = &*self.topic,
                        partition = self.index().get(),
                        %cause,
                        "a fetch cannot read the log"
                    );
                }
                FetchedPartition::failed(self.index(), error.error_code())
            })
    }

    fn try_fetch(
        &self,
        target: &FetchTarget,
        isolation: IsolationLevel,
        limit: Option<ReadLimit>,
        reader: &Reader,
    ) -> Result<FetchedPartition, PartitionError> {
        let role = match reader.takes_followers {
            true => self.require_replica(target.current_leader_epoch)?,
            false => self.require_leading(target.current_leader_epoch)?,
        };
        // What this node is stands before its offsets are read: a leader that becomes ready in between
        // would vouch for offsets from before.
        let offsets = self.offsets();
        let mut answer = self.offsets_only(&offsets, isolation);
        if let Some(preferred) = self.preferred_replica(&reader.near, target.fetch_offset) {
            answer.preferred_read_replica = preferred;
            answer.aborted_transactions = None;
            return Ok(answer);
        }
        if let Some(diverging) = self.diverging_epoch(target)? {
            answer.diverging_epoch = Some(diverging);
            answer.aborted_transactions = None;
            return Ok(answer);
        }
        let bound = match standing(target.fetch_offset, &offsets, isolation) {
            Standing::OutOfRange => {
                // The log of a leader that has been replaced may end below what the reader knows.
                if let Role::Leader { epoch, .. } = role
                    && target.fetch_offset > offsets.log_end.offset()
                {
                    self.require_lease_in(epoch)?;
                }
                return Err(PartitionError::OffsetOutOfRange(target.fetch_offset));
            }
            Standing::CaughtUp => {
                // What is committed may always be read; but that there is no more of it, a leader
                // that is cut off cannot know, and the reader had better look for another.
                if let Role::Leader { epoch, ready: true } = role {
                    self.require_lease_in(epoch)?;
                }
                return Ok(answer);
            }
            Standing::Readable { bound } => bound,
        };
        let Some(limit) = limit else {
            return Ok(answer);
        };
        let slice = self.reader().read(
            target.fetch_offset,
            limit.max_bytes,
            bound,
            limit.whole_first_batch,
        )?;
        if slice.regions.is_empty() {
            return Ok(answer);
        }
        if isolation == IsolationLevel::ReadCommitted {
            answer.aborted_transactions = Some(self.aborted(target.fetch_offset, bound)?);
        }
        answer.records = RecordsPayload::Regions(slice.regions);
        Ok(answer)
    }

    fn offsets_only(&self, offsets: &LogOffsets, isolation: IsolationLevel) -> FetchedPartition {
        FetchedPartition {
            index: self.index(),
            error_code: ErrorCode::None,
            high_watermark: offsets.high_watermark.offset(),
            last_stable_offset: offsets.last_stable.offset(),
            log_start_offset: offsets.log_start.offset(),
            diverging_epoch: None,
            current_leader: None,
            aborted_transactions: match isolation {
                IsolationLevel::ReadCommitted => Some(Vec::new()),
                IsolationLevel::ReadUncommitted => None,
            },
            preferred_read_replica: NO_REPLICA,
            records: RecordsPayload::Empty,
        }
    }

    fn aborted(
        &self,
        from: Offset,
        bound: Offset,
    ) -> Result<Vec<AbortedTransaction>, PartitionError> {
        let aborted = self.reader().aborted_transactions(from, bound)?;
        Ok(aborted
            .into_iter()
            .map(|aborted| AbortedTransaction {
                producer_id: aborted.producer_id,
                first_offset: aborted.first_offset,
            })
            .collect())
    }

    /// Where the fetcher's log leaves this one, if it says what it has (KIP-595).
    fn diverging_epoch(
        &self,
        target: &FetchTarget,
    ) -> Result<Option<DivergingEpoch>, PartitionError> {
        if target.last_fetched_epoch == LeaderEpoch::NONE {
            return Ok(None);
        }
        let Some((epoch, end_offset)) = self.epoch_end(target.last_fetched_epoch) else {
            return Err(PartitionError::OffsetOutOfRange(target.fetch_offset));
        };
        let diverges = epoch < target.last_fetched_epoch || end_offset < target.fetch_offset;
        Ok(diverges.then_some(DivergingEpoch { epoch, end_offset }))
    }

    /// The largest epoch up to `epoch` that this partition has seen, and the offset at which it
    /// ends; `None` for an epoch later than the leader's. The leader's own epoch counts from its
    /// election on, whether or not it has written anything.
    pub fn epoch_end(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let current = self.leadership().epoch()?;
        let reader = self.reader();
        if epoch == LeaderEpoch::NONE || epoch > current {
            None
        } else if epoch == current {
            Some((current, reader.log_end()))
        } else {
            let newest = || (reader.latest_epoch().unwrap_or(epoch), reader.log_end());
            Some(reader.end_offset_for_epoch(epoch).unwrap_or_else(newest))
        }
    }

    /// How much the partition has to give to a fetch now, in bytes and up to `max_bytes`; `None`
    /// if it has something else to say.
    pub fn readable_bytes(
        &self,
        target: &FetchTarget,
        isolation: IsolationLevel,
        max_bytes: usize,
        reader: &Reader,
    ) -> Option<usize> {
        let limit = ReadLimit {
            max_bytes,
            whole_first_batch: true,
        };
        let answer = self.fetch(target, isolation, Some(limit), reader);
        (!must_not_wait(&answer)).then(|| answer.records.len())
    }

    /// Answers ListOffsets for a client that sees up to its isolation level's bound. May read and
    /// decompress records: see [`OffsetSpec::reads_records`].
    pub fn list_offset(
        &self,
        spec: OffsetSpec,
        isolation: IsolationLevel,
        known_epoch: LeaderEpoch,
    ) -> Result<FoundOffset, PartitionError> {
        self.find_offset(spec, isolation, known_epoch)
            .map_err(|error| self.explain(error))
    }

    /// What to tell of a failed read. If no file could be opened, some that nobody needs are closed
    /// before the client asks again.
    fn explain(&self, error: PartitionError) -> PartitionError {
        if matches!(error, PartitionError::OutOfDescriptors) {
            self.directory.health().note_shortage();
        }
        self.events.explain(error)
    }

    fn find_offset(
        &self,
        spec: OffsetSpec,
        isolation: IsolationLevel,
        known_epoch: LeaderEpoch,
    ) -> Result<FoundOffset, PartitionError> {
        self.read_as_leader(known_epoch, |current| {
            let offsets = self.offsets();
            let start = offsets.log_start.offset();
            let bound = isolation.bound(&offsets);
            let reader = self.reader();
            let found = match spec {
                OffsetSpec::Latest => return Ok(FoundOffset::at(bound, current)),
                OffsetSpec::Earliest | OffsetSpec::EarliestLocal => {
                    // The first record, if there is none yet, will be of the leader's epoch.
                    let epoch = reader.epoch_at(start).unwrap_or(current);
                    return Ok(FoundOffset::at(start, epoch));
                }
                OffsetSpec::LatestTiered | OffsetSpec::EarliestPendingUpload => None,
                OffsetSpec::MaxTimestamp => reader.max_timestamp(start, bound)?,
                OffsetSpec::Timestamp(timestamp) => {
                    reader.lookup_timestamp(timestamp, start, bound)?
                }
            };
            Ok(found.map_or(FoundOffset::NOTHING, |found| FoundOffset {
                offset: found.offset,
                timestamp: found.timestamp,
                leader_epoch: found.leader_epoch,
            }))
        })
    }

    /// Moves the log start forward to `offset`, or to the high watermark for −1, on all replicas,
    /// and returns the log start then (DeleteRecords). An offset below the log start changes
    /// nothing.
    pub async fn delete_records(&self, offset: Offset) -> Result<Offset, PartitionError> {
        self.directory.require_online()?;
        // "Up to the high watermark" takes along all that was acknowledged before the request, and an
        // offset below it is in range whoever led when it was told.
        let offsets = self.read_as_leader(LeaderEpoch::NONE, |_| Ok(self.offsets()))?;
        let high_watermark = offsets.high_watermark.offset();
        let target = if offset == Offset::NONE {
            high_watermark
        } else {
            offset
        };
        if target < Offset::ZERO || target > high_watermark {
            return Err(PartitionError::OffsetOutOfRange(offset));
        }
        if target > offsets.log_start.offset() {
            self.directory.require_last_room()?;
            let moved = self.group.advance_log_start(target).await;
            moved.map_err(|error| self.events.explain(error))?;
        }
        Ok(self.offsets().log_start.offset())
    }
}

/// Whether an answer has to go out at once, whether or not there is enough data.
pub fn must_not_wait(answer: &FetchedPartition) -> bool {
    answer.error_code != ErrorCode::None
        || answer.diverging_epoch.is_some()
        || answer.preferred_read_replica != NO_REPLICA
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_offsets_sentinels_are_known_from_their_version_on() {
        for (timestamp, since) in [
            (-1, 1),
            (-2, 1),
            (-3, 7),
            (-4, 8),
            (-5, 9),
            (-6, 11),
            (5, 1),
        ] {
            for version in 1..=11 {
                assert_eq!(
                    OffsetSpec::from_wire(timestamp, version).is_some(),
                    version >= since,
                    "timestamp {timestamp} at v{version}"
                );
            }
        }
        assert_eq!(OffsetSpec::from_wire(-7, 11), None);
    }
}
