//! How two images of one log differ, found in proportion to what differs.

use std::sync::Arc;

use odradek_protocol::ids::PartitionIndex;
use odradek_raft::GroupKey;

use super::MetadataImage;
use super::model::{ConfigMap, ConfigResource, Topic};
use crate::shared_map::Change;

/// A name that has another topic than before, or the same one changed.
pub type TopicChange = Change<Arc<str>, Arc<Topic>>;
/// A resource whose own configuration is another than before.
pub type ConfigChange = Change<ConfigResource, Arc<ConfigMap>>;

impl MetadataImage {
    /// Topics that are not as they were in `before`, in the order of their names. A topic that was made
    /// again under its name is one change, from one id to another.
    pub fn topic_changes(&self, before: &Self) -> Vec<TopicChange> {
        self.topics.changes_since(&before.topics)
    }

    /// Topics of `before` that are gone; one that was made again under its name has another id.
    pub fn topics_gone(&self, before: &Self) -> Vec<Arc<Topic>> {
        let changes = self.topic_changes(before).into_iter();
        changes
            .filter_map(|change| change.before)
            .filter(|topic| !self.names.contains_key(&topic.id))
            .collect()
    }

    /// Configurations that are not as they were in `before`, in the order of kind and name.
    pub fn config_changes(&self, before: &Self) -> Vec<ConfigChange> {
        self.configs.changes_since(&before.configs)
    }

    /// Whether the brokers are registered and fenced as they were in `before`.
    pub fn has_brokers_of(&self, before: &Self) -> bool {
        Arc::ptr_eq(&self.brokers, &before.brokers) || self.brokers == before.brokers
    }
}

/// Groups of partitions that are there no more, are new, or are not as they were.
pub fn touched_partitions(change: &TopicChange) -> Vec<GroupKey> {
    let groups = |topic: &Option<Arc<Topic>>| -> Vec<GroupKey> {
        let Some(topic) = topic else {
            return Vec::new();
        };
        let indexed = topic.indexed();
        indexed.map(|(index, _)| topic.group_key(index)).collect()
    };
    match (&change.before, &change.after) {
        (Some(before), Some(after)) if before.id == after.id => {
            let indexed = (0..).map(PartitionIndex::new).zip(&after.partitions);
            let mut touched = Vec::new();
            for (at, (index, state)) in indexed.enumerate() {
                let known = before.partitions.get(at);
                if known == Some(state) {
                    continue;
                }
                touched.push(after.group_key(index));
                // It may have another group by now.
                if known.is_some_and(|known| known.incarnation() != state.incarnation()) {
                    touched.push(before.group_key(index));
                }
            }
            touched
        }
        (before, after) => [groups(before), groups(after)].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;

    use super::*;
    use crate::metadata::image::PartitionState;
    use crate::metadata::test_support::{apply, random_records};
    use crate::test_random::seeded;

    fn topics(image: &MetadataImage) -> BTreeMap<Arc<str>, Arc<Topic>> {
        let topics = image.topics();
        topics
            .map(|topic| (Arc::clone(&topic.name), Arc::clone(topic)))
            .collect()
    }

    fn configs(image: &MetadataImage) -> BTreeMap<ConfigResource, Arc<ConfigMap>> {
        let configs = image.configured();
        configs
            .map(|(resource, map)| (resource.clone(), Arc::clone(map)))
            .collect()
    }

    /// Puts the changes on top of what was before.
    fn carried_out<K: Ord, V>(
        mut before: BTreeMap<K, V>,
        changes: Vec<Change<K, V>>,
    ) -> BTreeMap<K, V> {
        for change in changes {
            match change.after {
                Some(after) => before.insert(change.key, after),
                None => before.remove(&change.key),
            };
        }
        before
    }

    /// Groups that only one of the two has, or not as the other has them.
    fn different_partitions(one: &MetadataImage, other: &MetadataImage) -> BTreeSet<GroupKey> {
        let all = |image: &MetadataImage| -> BTreeMap<GroupKey, PartitionState> {
            let topics = image.topics();
            let all = topics.flat_map(|topic| {
                let states = topic.indexed();
                states.map(|(index, state)| (topic.group_key(index), state.clone()))
            });
            all.collect()
        };
        let (one, other) = (all(one), all(other));
        let keys = one.keys().chain(other.keys()).copied();
        keys.filter(|key| one.get(key) != other.get(key)).collect()
    }

    fn one_history(rng: &mut StdRng) {
        let mut image = MetadataImage::default();
        let mut images = vec![image.clone()];
        for _ in 0..60 {
            let records = random_records(rng, &image);
            apply(&mut image, &records);
            images.push(image.clone());
        }
        // Whoever follows skips as many as it likes.
        let mut followed = images.first().expect("there is one").clone();
        let (mut known, mut set) = (topics(&followed), configs(&followed));
        while followed.next_offset() < image.next_offset() {
            let ahead: Vec<_> = images
                .iter()
                .filter(|image| image.next_offset() > followed.next_offset())
                .collect();
            let Some(next) = ahead.choose(rng).copied() else {
                break;
            };
            let gone: Vec<_> = next.topics_gone(&followed).iter().map(|it| it.id).collect();
            let compared: Vec<_> = followed
                .topics()
                .filter(|topic| next.topic_by_id(topic.id).is_none())
                .map(|topic| topic.id)
                .collect();
            assert_eq!(gone, compared);
            let changes = next.topic_changes(&followed);
            let touched: BTreeSet<_> = changes.iter().flat_map(touched_partitions).collect();
            assert_eq!(touched, different_partitions(&followed, next));
            known = carried_out(known, changes);
            set = carried_out(set, next.config_changes(&followed));
            assert_eq!(known, topics(next));
            assert_eq!(set, configs(next));
            let brokers_are_same = next.brokers().eq(followed.brokers());
            assert_eq!(next.has_brokers_of(&followed), brokers_are_same);
            followed = next.clone();
        }
    }

    #[test]
    fn what_changes_add_up_to_is_what_comparing_everything_says() {
        let mut rng = seeded();
        for _ in 0..40 {
            one_history(&mut rng);
        }
    }
}
