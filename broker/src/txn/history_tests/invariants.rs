//! What must hold at the end of a history.

use std::collections::{BTreeMap, HashMap, HashSet};

use odradek_protocol::ids::ProducerId;

use super::partition::Entry;
use super::{PARTITIONS, World};

impl World {
    pub(super) fn check(&self) {
        let mut outcomes: BTreeMap<u64, HashSet<bool>> = BTreeMap::new();
        let mut committed: Vec<Vec<u64>> = vec![Vec::new(); PARTITIONS];
        for (index, partition) in self.partitions.iter().enumerate() {
            assert_eq!(
                partition.states.first_undecided_offset(),
                None,
                "nothing hangs in partition {index}: {:?}",
                partition.log
            );
            let mut open: HashMap<ProducerId, Vec<u64>> = HashMap::new();
            let mut decided: HashMap<u64, bool> = HashMap::new();
            for entry in &partition.log {
                match *entry {
                    Entry::Record { producer, value } => {
                        open.entry(producer).or_default().push(value);
                    }
                    Entry::Marker {
                        producer,
                        committed,
                    } => {
                        for value in open.remove(&producer).unwrap_or_default() {
                            decided.insert(value, committed);
                            let txn = self.txn_of[&value];
                            outcomes.entry(txn).or_default().insert(committed);
                        }
                    }
                }
            }
            for entry in &partition.log {
                if let Entry::Record { value, .. } = entry
                    && decided[value]
                {
                    committed[index].push(*value);
                }
            }
        }
        for (txn, outcomes) in &outcomes {
            assert_eq!(outcomes.len(), 1, "never half: transaction {txn}");
        }
        for (txn, answer) in &self.answered {
            if let Some(outcomes) = outcomes.get(txn) {
                assert!(
                    outcomes.contains(answer),
                    "an answered end is never undone: transaction {txn}"
                );
            }
            if *answer {
                self.check_committed(*txn, &committed);
            }
        }
        for values in &committed {
            let distinct: HashSet<_> = values.iter().collect();
            assert_eq!(distinct.len(), values.len(), "every record once");
        }
    }

    pub(super) fn check_committed(&self, txn: u64, committed: &[Vec<u64>]) {
        for (index, values) in committed.iter().enumerate() {
            let acknowledged: Vec<u64> = self
                .acknowledged
                .get(&txn)
                .into_iter()
                .flatten()
                .filter(|write| write.partition == index)
                .map(|write| write.value)
                .collect();
            let seen: Vec<u64> = values
                .iter()
                .copied()
                .filter(|value| acknowledged.contains(value))
                .collect();
            assert_eq!(
                seen, acknowledged,
                "every committed record, in order: {txn}"
            );
        }
    }
}
