//! Where each leader epoch begins (KIP-101), and the checkpoint file that keeps it.
//!
//! Invariants: epochs and start offsets both strictly increase along the entries. An epoch that
//! appended nothing has no entry. The cache is derived from the batch headers; the file only
//! spares reading all of them at the start.

use odradek_protocol::ids::{LeaderEpoch, Offset};

/// The first offset that was appended in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEntry {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Offset of its first record.
    pub start_offset: Offset,
}

/// The epochs of a log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochCache {
    entries: Vec<EpochEntry>,
}

impl EpochCache {
    /// The entries, oldest first.
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    /// The newest epoch.
    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|entry| entry.epoch)
    }

    /// Notes that a batch of `epoch` starts at `start_offset`. Entries that contradict it go, as
    /// the log is what counts. Returns whether anything changed.
    pub fn assign(&mut self, epoch: LeaderEpoch, start_offset: Offset) -> bool {
        if epoch < LeaderEpoch::new(0) {
            return false;
        }
        if let Some(last) = self.entries.last()
            && last.epoch == epoch
            && last.start_offset <= start_offset
        {
            return false;
        }
        while self
            .entries
            .last()
            .is_some_and(|last| last.epoch >= epoch || last.start_offset >= start_offset)
        {
            self.entries.pop();
        }
        self.entries.push(EpochEntry {
            epoch,
            start_offset,
        });
        true
    }

    /// Forgets epochs that begin at `log_end` or after. Returns whether anything changed.
    pub fn truncate_from_end(&mut self, log_end: Offset) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.start_offset < log_end);
        self.entries.len() != before
    }

    /// Forgets epochs that end at `log_start` or before, and lets the one that spans it begin
    /// there. Returns whether anything changed.
    pub fn truncate_from_start(&mut self, log_start: Offset) -> bool {
        let Some(spanning) = self
            .entries
            .iter()
            .rposition(|entry| entry.start_offset <= log_start)
        else {
            return false;
        };
        let moved = self
            .entries
            .get_mut(spanning)
            .is_some_and(|entry| std::mem::replace(&mut entry.start_offset, log_start) < log_start);
        self.entries.drain(..spanning);
        moved || spanning > 0
    }

    /// The largest epoch that is not above `epoch`, and the offset after its last record: what
    /// OffsetForLeaderEpoch answers. `None` for an epoch above the newest, or in an empty log.
    pub fn end_offset_for(
        &self,
        epoch: LeaderEpoch,
        log_end: Offset,
    ) -> Option<(LeaderEpoch, Offset)> {
        let latest = self.latest()?;
        if epoch < LeaderEpoch::new(0) || epoch > latest {
            return None;
        }
        if epoch == latest {
            return Some((epoch, log_end));
        }
        let above = self.entries.partition_point(|entry| entry.epoch <= epoch);
        let end = self.entries.get(above)?.start_offset;
        let found = match above.checked_sub(1).and_then(|i| self.entries.get(i)) {
            Some(entry) => entry.epoch,
            // Older than all that is known: nothing of it is left, it ends where the log begins.
            None => epoch,
        };
        Some((found, end))
    }

    /// The epoch of the record at `offset`, if the log reaches that far back.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let above = self
            .entries
            .partition_point(|entry| entry.start_offset <= offset);
        Some(self.entries.get(above.checked_sub(1)?)?.epoch)
    }

    /// The checkpoint file's content: version 0, count, then `epoch start` a line.
    pub fn to_text(&self) -> String {
        let mut text = format!("0\n{}\n", self.entries.len());
        for entry in &self.entries {
            text.push_str(&format!("{} {}\n", entry.epoch, entry.start_offset));
        }
        text
    }

    /// Reads what [`EpochCache::to_text`] writes; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != "0" {
            return None;
        }
        let count: usize = lines.next()?.parse().ok()?;
        let mut cache = Self::default();
        for line in lines {
            let (epoch, start) = line.split_once(' ')?;
            let entry = EpochEntry {
                epoch: LeaderEpoch::new(epoch.parse().ok()?),
                start_offset: Offset::new(start.parse().ok()?),
            };
            if let Some(last) = cache.entries.last()
                && (last.epoch >= entry.epoch || last.start_offset >= entry.start_offset)
            {
                return None;
            }
            cache.entries.push(entry);
        }
        (cache.entries.len() == count).then_some(cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(i32, i64)]) -> EpochCache {
        let mut cache = EpochCache::default();
        for &(epoch, start) in entries {
            assert!(cache.assign(LeaderEpoch::new(epoch), Offset::new(start)));
        }
        cache
    }

    fn end_of(cache: &EpochCache, epoch: i32) -> Option<(i32, i64)> {
        cache
            .end_offset_for(LeaderEpoch::new(epoch), Offset::new(100))
            .map(|(epoch, end)| (epoch.get(), end.get()))
    }

    #[test]
    fn an_epoch_ends_where_the_next_begins_and_the_latest_at_the_log_end() {
        let cache = cache(&[(2, 0), (4, 30), (7, 50)]);
        assert_eq!(end_of(&cache, 2), Some((2, 30)));
        assert_eq!(end_of(&cache, 4), Some((4, 50)));
        assert_eq!(end_of(&cache, 7), Some((7, 100)));
    }

    #[test]
    fn an_epoch_that_appended_nothing_is_answered_with_the_one_before() {
        let cache = cache(&[(2, 0), (4, 30), (7, 50)]);
        assert_eq!(end_of(&cache, 3), Some((2, 30)));
        assert_eq!(end_of(&cache, 6), Some((4, 50)));
    }

    #[test]
    fn epochs_above_the_latest_are_unknown_and_older_ones_end_at_the_first_known() {
        let cache = cache(&[(2, 10), (4, 30)]);
        assert_eq!(end_of(&cache, 5), None);
        assert_eq!(end_of(&cache, -1), None);
        assert_eq!(end_of(&cache, 1), Some((1, 10)));
        assert_eq!(end_of(&EpochCache::default(), 0), None);
    }

    #[test]
    fn truncation_from_either_end_keeps_what_is_between() {
        let mut cache = cache(&[(2, 0), (4, 30), (7, 50)]);
        assert!(cache.truncate_from_end(Offset::new(50)));
        assert!(!cache.truncate_from_end(Offset::new(31)));
        assert_eq!(cache.latest(), Some(LeaderEpoch::new(4)));
        assert!(cache.truncate_from_start(Offset::new(40)));
        assert_eq!(cache.to_text(), "0\n1\n4 40\n");
        assert!(!cache.truncate_from_start(Offset::new(40)));
    }

    #[test]
    fn the_epoch_of_a_record_is_found_by_its_offset() {
        let cache = cache(&[(2, 10), (4, 30)]);
        let at = |offset| cache.epoch_at(Offset::new(offset)).map(LeaderEpoch::get);
        assert_eq!(
            [at(9), at(10), at(29), at(30)],
            [None, Some(2), Some(2), Some(4)]
        );
    }

    #[test]
    fn a_batch_that_contradicts_the_cache_wins() {
        let mut cache = cache(&[(2, 0), (4, 30), (7, 50)]);
        assert!(cache.assign(LeaderEpoch::new(5), Offset::new(40)));
        assert_eq!(cache.to_text(), "0\n3\n2 0\n4 30\n5 40\n");
    }

    #[test]
    fn only_a_whole_and_ordered_checkpoint_is_read() {
        let cache = cache(&[(2, 0), (4, 30)]);
        assert_eq!(EpochCache::parse(&cache.to_text()), Some(cache));
        for bad in [
            "",
            "0\n",
            "1\n0\n",
            "0\n2\n1 0\n",
            "0\n2\n1 0\n1 5\n",
            "0\n1\nx 0\n",
        ] {
            assert_eq!(EpochCache::parse(bad), None, "{bad:?}");
        }
    }
}
