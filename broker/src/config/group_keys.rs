//! What single groups may set for themselves (KIP-848): `kafka-configs --entity-type groups`.
//!
//! Each key has a broker's key that counts for groups without their own, and bounds among the broker's
//! keys. A group may be configured before it exists, and what it sets outlives it.

use super::describe::{self, ConfigEntry};
use super::key::ConfigKind::Int;
use super::key::KeySpec;
use super::values::{Layers, Settings};

/// A setting of a group.
#[derive(Debug)]
pub struct GroupKey {
    /// The key.
    pub spec: KeySpec,
    /// The broker's key that counts for groups without their own.
    pub synonym: &'static str,
    /// The broker's keys that are its bounds.
    bounds: [&'static str; 2],
}

const SESSION_TIMEOUT: &str = "consumer.session.timeout.ms";
const HEARTBEAT_INTERVAL: &str = "consumer.heartbeat.interval.ms";

/// In alphabetical order.
pub static GROUP_KEYS: &[GroupKey] = &[
    GroupKey {
        spec: KeySpec::new("consumer.assignment.interval.ms", Int)
            .at_least(0)
            .doc("How long after the group was assigned its partitions it is assigned them anew."),
        synonym: "group.consumer.assignment.interval.ms",
        bounds: [
            "group.consumer.min.assignment.interval.ms",
            "group.consumer.max.assignment.interval.ms",
        ],
    },
    GroupKey {
        spec: KeySpec::new(HEARTBEAT_INTERVAL, Int)
            .at_least(1)
            .doc("How often a member of the group is to be heard of."),
        synonym: "group.consumer.heartbeat.interval.ms",
        bounds: [
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
        ],
    },
    GroupKey {
        spec: KeySpec::new(SESSION_TIMEOUT, Int)
            .at_least(1)
            .doc("How long a member of the group may be silent."),
        synonym: "group.consumer.session.timeout.ms",
        bounds: [
            "group.consumer.min.session.timeout.ms",
            "group.consumer.max.session.timeout.ms",
        ],
    },
];

/// The key of that name.
pub fn find(name: &str) -> Option<&'static GroupKey> {
    GROUP_KEYS.iter().find(|key| key.spec.name == name)
}

/// Checks the settings of a group as they would stand, and gives them in the form in which they are
/// kept.
///
/// # Errors
/// What is wrong with them, in words.
pub fn check(layers: &Layers, settings: &Settings) -> Result<Settings, String> {
    let mut checked = Settings::new();
    for (name, value) in settings {
        let key = find(name).ok_or_else(|| format!("Unknown group config name: {name}"))?;
        let value = key
            .spec
            .normalize(value)
            .map_err(|error| error.to_string())?;
        let bound = |at: usize| number(layers.get(key.bounds.get(at)?));
        let (min, max) = (bound(0).unwrap_or(i64::MIN), bound(1).unwrap_or(i64::MAX));
        if !number(Some(&value)).is_some_and(|value| (min..=max).contains(&value)) {
            return Err(format!(
                "{name} must be in the range {min} to {max} inclusive."
            ));
        }
        checked.insert(name.clone(), value);
    }
    let of = |name: &str| {
        let synonym = find(name).map(|key| key.synonym)?;
        let own = checked.get(name).map(String::as_str);
        number(own.or_else(|| layers.get(synonym)))
    };
    match of(SESSION_TIMEOUT) > of(HEARTBEAT_INTERVAL) {
        true => Ok(checked),
        false => Err(format!(
            "{SESSION_TIMEOUT} must be above {HEARTBEAT_INTERVAL}."
        )),
    }
}

fn number(text: Option<&str>) -> Option<i64> {
    text?.parse().ok()
}

/// Every setting of a group whose own settings are `own`, in alphabetical order.
pub fn entries(layers: &Layers, own: &Settings) -> Vec<ConfigEntry> {
    let entries = GROUP_KEYS.iter();
    entries
        .map(|key| describe::group_entry(&key.spec, key.synonym, layers, own))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_group_may_set_what_is_within_the_brokers_bounds() {
        let layers = Layers::default();
        let good = settings(&[(SESSION_TIMEOUT, "50000"), (HEARTBEAT_INTERVAL, "6000")]);
        assert_eq!(check(&layers, &good), Ok(good.clone()));
        for (pairs, says) in [
            (&[("no.such.key", "1")][..], "Unknown group config name"),
            (
                &[(SESSION_TIMEOUT, "44999")],
                "in the range 45000 to 60000 inclusive",
            ),
            (
                &[(HEARTBEAT_INTERVAL, "15001")],
                "in the range 5000 to 15000 inclusive",
            ),
            (&[(HEARTBEAT_INTERVAL, "often")], "often"),
        ] {
            let error = check(&layers, &settings(pairs)).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_group_without_its_own_has_the_brokers() {
        let own = settings(&[(SESSION_TIMEOUT, "50000")]);
        let shown = entries(&Layers::default(), &own);
        let values: Vec<_> = shown.iter().map(|entry| entry.value.as_deref()).collect();
        assert_eq!(values, [Some("1000"), Some("5000"), Some("50000")]);
        let codes: Vec<_> = shown.iter().map(|entry| entry.source.code()).collect();
        assert_eq!(codes, [5, 5, 8]);
    }
}
