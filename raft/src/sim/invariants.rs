//! What must hold whatever is done to a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::Offset;

use super::cluster::Cluster;
use super::{batches, keyed};
use crate::{Group, Leadership};

/// Between two looks at who holds the lease.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Cluster {
    /// Lets time pass and keeps looking.
    pub(super) async fn pass(&mut self, pause: Duration) {
        let mut left = pause;
        while !left.is_zero() {
            let some = left.min(LOOK_EVERY);
            tokio::time::sleep(some).await;
            left -= some;
            self.one_serves();
        }
        self.what_was_shown_stays();
    }

    /// *One serves*: a leader that holds the lease never coexists with another whose later term has
    /// a committed entry.
    pub(super) fn one_serves(&self) {
        let groups: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|replica| Some((replica.id, replica.group.as_ref()?)))
            .filter(|(_, group)| self.is_current(group))
            .collect();
        for (id, holder) in &groups {
            let Leadership::Leader { epoch, .. } = holder.leadership() else {
                continue;
            };
            if !holder.holds_lease() {
                continue;
            }
            for (other_id, other) in &groups {
                if let Leadership::Leader {
                    epoch: later,
                    ready: true,
                } = other.leadership()
                {
                    assert!(
                        later <= epoch,
                        "node {id} holds the lease in epoch {epoch} while node {other_id} has \
                         committed in epoch {later}"
                    );
                }
            }
        }
    }

    /// *What was shown stays*: what a replica shows below its high watermark is the same on every
    /// replica, for ever.
    pub(super) fn what_was_shown_stays(&mut self) {
        let compacts = self.compacts();
        for replica in &self.replicas {
            let Some(group) = &replica.group else {
                continue;
            };
            if group.offline_cause().is_some() || !self.is_current(group) {
                continue;
            }
            let offsets = group.offsets();
            let from = offsets.log_start.offset().max(group.reader().log_start());
            let to = offsets
                .high_watermark
                .offset()
                .min(group.reader().log_end());
            // A replica that was behind the log start has nothing to show yet.
            if from > to {
                continue;
            }
            self.highest_watermark = self.highest_watermark.max(to.get());
            if compacts {
                for (offset, found) in keyed::records(group, from, to) {
                    let before = self.history.entry(offset).or_insert(found);
                    assert_eq!(
                        *before, found,
                        "offset {offset} on node {} changed its record",
                        replica.id
                    );
                }
                continue;
            }
            for (base, found) in batches(group, from, to) {
                let before = self.seen.entry(base).or_insert_with(|| found.clone());
                assert_eq!(
                    before.0, found.0,
                    "offset {base} on node {} changed its batch",
                    replica.id
                );
                assert_eq!(before.1, found.1, "offset {base} changed its bytes");
            }
        }
    }

    /// After everything was mended: *replicas are identical*, *nothing acknowledged is lost*,
    /// *nothing shown is lost* (a high watermark was never ahead of what a majority had on its
    /// disks), *no batch is stored twice*.
    pub(super) fn nothing_is_lost(&self, members: &[Arc<Group>]) {
        if self.compacts() {
            return self.the_newest_of_every_key_is_there(members);
        }
        let from = members
            .iter()
            .map(|group| {
                group
                    .reader()
                    .log_start()
                    .max(group.offsets().log_start.offset())
            })
            .max()
            .unwrap();
        let contents: Vec<_> = members
            .iter()
            .map(|group| batches(group, from, group.reader().log_end()))
            .collect();
        for other in &contents {
            assert_eq!(contents[0], *other, "replicas differ");
        }
        let end = members[0].offsets().log_end.get();
        assert!(
            end >= self.highest_watermark,
            "the log ends at {end}, and {} was shown as committed",
            self.highest_watermark
        );
        let mut ids = BTreeMap::new();
        for (base, (id, _)) in &self.seen {
            assert_eq!(ids.insert(*id, *base), None, "batch {id} was stored twice");
            if Offset::new(*base) >= from {
                let found = contents[0].get(base).map(|(found, _)| found);
                assert_eq!(found, Some(id), "batch {id} was shown at {base}");
            }
        }
        for (id, outcome) in self.acknowledged.lock().iter() {
            if outcome.base_offset < from {
                continue;
            }
            let base = outcome.base_offset.get();
            let found = contents[0].get(&base).map(|(found, _)| found);
            assert_eq!(found, Some(id), "batch {id} was acknowledged at {base}");
        }
    }

    /// After everything was mended, of a group that compacts: *the newest record of every key is
    /// there*, on every replica and at its offset, if it was ever shown or acknowledged; and *nothing
    /// that was deleted comes back to life*.
    fn the_newest_of_every_key_is_there(&self, members: &[Arc<Group>]) {
        let mut all = self.history.clone();
        for (id, outcome) in self.acknowledged.lock().iter() {
            let base = outcome.base_offset.get();
            for (offset, record) in (base..).zip(keyed::records_of(*id)) {
                let seen = *all.entry(offset).or_insert(record);
                assert_eq!(seen, record, "batch {id} was acknowledged at {base}");
            }
        }
        let from = members[0].offsets().log_start.get();
        let end = members[0].offsets().log_end.get();
        assert!(
            end >= self.highest_watermark,
            "the log ends at {end}, and {} was shown as committed",
            self.highest_watermark
        );
        // What stood below the log start is gone, a record or its tombstone.
        let mut expected = keyed::newest(&all);
        expected.retain(|_, (offset, _)| *offset >= from);
        for group in members {
            assert_eq!(keyed::state(group), expected, "{:?}", group.offsets());
        }
    }
}
