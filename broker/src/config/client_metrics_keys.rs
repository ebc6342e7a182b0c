//! What a client metrics subscription says (KIP-714): `kafka-configs --entity-type client-metrics`.
//!
//! A subscription is there as long as one of its keys is set.

use super::describe::{self, ConfigEntry};
use super::key::ConfigKind::{Int, List};
use super::key::KeySpec;
use super::values::Settings;
use crate::metadata::refusal::Refusal;
use crate::telemetry::subscriptions;

/// The key of the prefixes of metrics.
pub const METRICS: &str = "metrics";
/// The key of the push interval.
pub const INTERVAL: &str = "interval.ms";
/// The key of the patterns.
pub const MATCH: &str = "match";
/// How often a client pushes unless a subscription says otherwise.
pub const DEFAULT_INTERVAL_MS: u32 = 300_000;
/// Shortest and longest interval.
const INTERVALS_MS: std::ops::RangeInclusive<i32> = 100..=3_600_000;

/// In alphabetical order.
static KEYS: &[KeySpec] = &[
    KeySpec::new(INTERVAL, Int)
        .default("300000")
        .doc("How often the clients push, from 100 milliseconds to an hour."),
    KeySpec::new(MATCH, List).default("").doc(
        "Which clients are meant: `attribute=expression`, all of them. Attributes are client_id, \
         client_instance_id, client_software_name, client_software_version, client_source_address and \
         client_source_port. Without any, all clients are.",
    ),
    KeySpec::new(METRICS, List)
        .default("")
        .doc("Prefixes of the names of the metrics to push; `*` is all metrics."),
];

fn find(name: &str) -> Option<&'static KeySpec> {
    KEYS.iter().find(|key| key.name == name)
}

/// Checks the settings of the subscription `name` as they would stand, and gives them in the form in which
/// they are kept.
///
/// # Errors
/// What is wrong with them.
pub fn check(name: &str, settings: &Settings) -> Result<Settings, Refusal> {
    if name.is_empty() {
        return Err(Refusal::InvalidRequest(
            "Subscription name can't be empty".to_owned(),
        ));
    }
    let mut checked = Settings::new();
    for (name, value) in settings {
        let key = find(name).ok_or_else(|| {
            Refusal::InvalidRequest(format!("Unknown client metrics configuration: {name}"))
        })?;
        let value = key.normalize(value);
        let value = value.map_err(|error| Refusal::InvalidConfig(error.to_string()))?;
        checked.insert(name.clone(), value);
    }
    if let Some(interval) = checked.get(INTERVAL)
        && !interval.parse().is_ok_and(|ms| INTERVALS_MS.contains(&ms))
    {
        return Err(Refusal::InvalidRequest(format!(
            "Invalid value {interval} for {INTERVAL}, interval must be between 100 and 3600000 (1 hour)"
        )));
    }
    if let Some(list) = checked.get(MATCH) {
        subscriptions::patterns(list).map_err(|error| Refusal::InvalidConfig(error.to_string()))?;
    }
    Ok(checked)
}

/// Every setting of a subscription whose own settings are `own`, in alphabetical order.
pub fn entries(own: &Settings) -> Vec<ConfigEntry> {
    KEYS.iter()
        .map(|key| describe::subscription_entry(key, own))
        .collect()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_subscription_is_checked_as_kafka_checks_it() {
        let good = settings(&[
            (METRICS, " a. , b."),
            (INTERVAL, "100"),
            (MATCH, "client_id=x"),
        ]);
        let kept = settings(&[
            (METRICS, "a.,b."),
            (INTERVAL, "100"),
            (MATCH, "client_id=x"),
        ]);
        assert_eq!(check("s", &good), Ok(kept));
        for (name, pairs, code, says) in [
            (
                "",
                &[][..],
                ErrorCode::InvalidRequest,
                "name can't be empty",
            ),
            (
                "s",
                &[("colour", "red")],
                ErrorCode::InvalidRequest,
                "Unknown client metrics configuration: colour",
            ),
            (
                "s",
                &[(INTERVAL, "99")],
                ErrorCode::InvalidRequest,
                "Invalid value 99 for interval.ms",
            ),
            (
                "s",
                &[(INTERVAL, "3600001")],
                ErrorCode::InvalidRequest,
                "between 100 and 3600000",
            ),
            (
                "s",
                &[(INTERVAL, "often")],
                ErrorCode::InvalidConfig,
                "often",
            ),
            (
                "s",
                &[(MATCH, "colour=red")],
                ErrorCode::InvalidConfig,
                "Illegal client matching pattern: colour=red",
            ),
        ] {
            let refusal = check(name, &settings(pairs)).expect_err(says);
            assert_eq!(refusal.code(), code, "{refusal}");
            assert!(refusal.to_string().contains(says), "{refusal}");
        }
    }

    #[test]
    fn what_is_set_is_told_from_what_is_default() {
        let shown = entries(&settings(&[(INTERVAL, "5000")]));
        let shown: Vec<_> = shown
            .iter()
            .map(|entry| (entry.name, entry.value.as_deref(), entry.source.code()))
            .collect();
        assert_eq!(
            shown,
            [
                (INTERVAL, Some("5000"), 7),
                (MATCH, Some(""), 5),
                (METRICS, Some(""), 5),
            ]
        );
    }
}
