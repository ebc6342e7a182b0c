//! Which key was probably meant by one that does not exist.
//!
//! Only keys that can stand in the same place are offered. A topic's key in the file of a broker is
//! answered with the broker's key for it.

use super::{broker_keys, foreign_keys};
use crate::topic_config::TOPIC_KEYS;

/// Similarity below which a key is no help as a suggestion.
const THRESHOLD: f64 = 0.75;

/// `; did you mean KEY?`, or nothing.
pub(crate) fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean {key}?"))
}

/// The broker's key that is most like `key`, of those that do something here and then of Kafka's.
pub(crate) fn nearest_broker_key(key: &str) -> Option<&'static str> {
    let own = broker_keys::all().map(|spec| (spec.name, spec.name));
    let of_topics = TOPIC_KEYS
        .iter()
        .filter_map(|topic| Some((topic.spec.name, topic.synonym?)));
    let foreign = foreign_keys::FOREIGN.iter().map(|(name, _)| (*name, *name));
    match (
        most_alike(key, own.chain(of_topics)),
        most_alike(key, foreign),
    ) {
        (Some(own), Some(foreign)) if foreign.0 > own.0 => Some(foreign.1),
        (Some(own), _) => Some(own.1),
        (None, foreign) => foreign.map(|(_, name)| name),
    }
}

/// The broker's key that is most like `key`, of those that can be changed while it runs.
pub(crate) fn nearest_dynamic_key(key: &str) -> Option<&'static str> {
    let dynamic = broker_keys::all().map(|spec| (spec.name, spec.name));
    most_alike(key, dynamic).map(|(_, name)| name)
}

/// The topic's key that is most like `key`.
pub(crate) fn nearest_topic_key(key: &str) -> Option<&'static str> {
    let names = TOPIC_KEYS
        .iter()
        .map(|topic| (topic.spec.name, topic.spec.name));
    most_alike(key, names).map(|(_, name)| name)
}

/// Of names that each stand for a key, the key of the one most like `key`, with the likeness.
fn most_alike(
    key: &str,
    names: impl Iterator<Item = (&'static str, &'static str)>,
) -> Option<(f64, &'static str)> {
    names
        .map(|(name, meant)| (strsim::jaro_winkler(key, name), meant))
        .filter(|(likeness, _)| *likeness >= THRESHOLD)
        .max_by(|one, other| one.0.total_cmp(&other.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_leads_to_the_one_that_works_in_its_place() {
        assert_eq!(nearest_topic_key("retention.mz"), Some("retention.ms"));
        assert_eq!(nearest_topic_key("segmentbytes"), Some("segment.bytes"));
        assert_eq!(nearest_topic_key("xyzzy"), None);
        assert_eq!(nearest_broker_key("retention.mz"), Some("log.retention.ms"));
        assert_eq!(nearest_broker_key("num.partition"), Some("num.partitions"));
        assert_eq!(
            nearest_dynamic_key("log.retention.mz"),
            Some("log.retention.ms")
        );
    }
}
