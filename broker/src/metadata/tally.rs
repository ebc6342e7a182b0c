//! What is counted over all partitions while records are applied, so that nobody has to look through
//! them: how much each broker has, which partitions another replica leads than the first, and which are on
//! their way to other replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};

use super::image::PartitionState;
use crate::shared_map::SharedMap;

/// Some of all partitions.
type Partitions = SharedMap<(TopicId, PartitionIndex), ()>;

/// What a broker has of all partitions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Partitions of which it is the first replica.
    pub first: usize,
    /// Partitions of which it is a replica.
    pub replicas: usize,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    loads: Arc<BTreeMap<NodeId, Load>>,
    misled: Partitions,
    reassigning: Partitions,
}

impl Tally {
    /// What a broker has.
    pub fn load(&self, broker: NodeId) -> Load {
        self.loads.get(&broker).copied().unwrap_or_default()
    }

    /// Partitions that are led, and not by the replica that should lead.
    pub fn misled(&self) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
        self.misled.keys().copied()
    }

    /// Partitions some of whose replicas are on their way in or out.
    pub fn reassigning(&self) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
        self.reassigning.keys().copied()
    }

    pub(super) fn add(&mut self, topic: TopicId, index: PartitionIndex, state: &PartitionState) {
        self.add_replicas(&state.replicas);
        self.judge(topic, index, state);
    }

    pub(super) fn remove(&mut self, topic: TopicId, index: PartitionIndex, state: &PartitionState) {
        self.remove_replicas(&state.replicas);
        self.misled.remove(&(topic, index));
        self.reassigning.remove(&(topic, index));
    }

    pub(super) fn replace(&mut self, before: &[NodeId], after: &[NodeId]) {
        self.remove_replicas(before);
        self.add_replicas(after);
    }

    /// Looks at who leads, and whether other replicas are wanted.
    pub(super) fn judge(&mut self, topic: TopicId, index: PartitionIndex, state: &PartitionState) {
        let is_misled = state.leader.is_some() && state.leader != state.preferred_leader();
        mark(&mut self.misled, (topic, index), is_misled);
        mark(
            &mut self.reassigning,
            (topic, index),
            state.is_reassigning(),
        );
    }

    fn add_replicas(&mut self, replicas: &[NodeId]) {
        let loads = Arc::make_mut(&mut self.loads);
        for (at, id) in replicas.iter().enumerate() {
            let load = loads.entry(*id).or_default();
            load.first += usize::from(at == 0);
            load.replicas += 1;
        }
    }

    fn remove_replicas(&mut self, replicas: &[NodeId]) {
        let loads = Arc::make_mut(&mut self.loads);
        for (at, id) in replicas.iter().enumerate() {
            if let Some(load) = loads.get_mut(id) {
                load.first = load.first.saturating_sub(usize::from(at == 0));
                load.replicas = load.replicas.saturating_sub(1);
                if *load == Load::default() {
                    loads.remove(id);
                }
            }
        }
    }
}

fn mark(partitions: &mut Partitions, partition: (TopicId, PartitionIndex), is_one: bool) {
    match is_one {
        true if partitions.contains_key(&partition) => {}
        true => {
            partitions.insert(partition, ());
        }
        false => {
            partitions.remove(&partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::LeaderEpoch;
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::super::image::MetadataImage;
    use super::super::records::{MetadataRecord, PartitionChangeRecord};
    use super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::*;

    /// The same by looking through everything.
    fn counted(image: &MetadataImage) -> Tally {
        let mut tally = Tally::default();
        for topic in image.topics() {
            for (index, state) in topic.indexed() {
                tally.add(topic.id, index, state);
            }
        }
        tally
    }

    fn change(rng: &mut StdRng, topic_id: TopicId, partitions: i32) -> MetadataRecord {
        let mut change = PartitionChangeRecord::of(
            topic_id,
            PartitionIndex::new(rng.random_range(0..partitions)),
        );
        let mut replicas = nodes(&[1, 2, 3, 4]);
        replicas.rotate_left(rng.random_range(0..4));
        replicas.truncate(rng.random_range(1..4));
        match rng.random_range(0..3) {
            0 => change.leader = Some(replicas.choose(rng).copied()),
            1 => change.leader = Some(None),
            _ => {
                change.removing_replicas = Some(vec![replicas[0]]);
                change.replicas = Some(replicas);
            }
        }
        change.leader_epoch = Some(LeaderEpoch::new(1));
        MetadataRecord::PartitionChange(change)
    }

    #[test]
    fn what_is_counted_along_is_what_looking_through_everything_counts() {
        let seed: u64 = std::env::var("ODRADEK_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(rand::random);
        println!("ODRADEK_SEED={seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut image = image_with_brokers(&[1, 2, 3, 4]);
        for number in 1..20 {
            let replicas: &[&[i32]] = &[&[1, 2, 3], &[2, 3], &[4]];
            apply(&mut image, &topic(&format!("t{number}"), number, replicas));
            let topics: Vec<TopicId> = image.topics().map(|topic| topic.id).collect();
            for _ in 0..10 {
                if let Some(id) = topics.choose(&mut rng) {
                    let record = change(&mut rng, *id, 3);
                    apply(&mut image, &[record]);
                }
            }
            if number % 4 == 0
                && let Some(id) = topics.choose(&mut rng)
            {
                apply(&mut image, &[MetadataRecord::RemoveTopic(*id)]);
            }
            assert_eq!(*image.tally(), counted(&image));
        }
    }
}
