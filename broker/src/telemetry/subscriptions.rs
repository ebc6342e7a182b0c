//! What operators want of whom: the client metrics subscriptions, as the metadata has them.
//!
//! The id of what a client is subscribed to follows from that alone and from who it is, so that a client may
//! push to another broker than it asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use regex::{Regex, RegexBuilder};

use crate::config::client_metrics_keys::{DEFAULT_INTERVAL_MS, INTERVAL, MATCH, METRICS};
use crate::config::key::list_elements;
use crate::metadata::image::{ConfigMap, MetadataImage, ResourceKind};

/// Stands for all metrics.
const ALL_METRICS: &str = "*";
/// Largest automaton of a pattern, in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// What a client can be told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute {
    /// `client_instance_id`.
    InstanceId,
    /// `client_id`.
    ClientId,
    /// `client_software_name`.
    SoftwareName,
    /// `client_software_version`.
    SoftwareVersion,
    /// `client_source_address`.
    SourceAddress,
    /// `client_source_port`.
    SourcePort,
}

impl Attribute {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "client_instance_id" => Self::InstanceId,
            "client_id" => Self::ClientId,
            "client_software_name" => Self::SoftwareName,
            "client_software_version" => Self::SoftwareVersion,
            "client_source_address" => Self::SourceAddress,
            "client_source_port" => Self::SourcePort,
            _ => return None,
        })
    }
}

/// A client instance, as far as subscriptions can tell it from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFacts {
    /// Its instance id: 22 characters of URL-safe base64.
    pub instance_id: String,
    /// Its `client.id`, if it has one.
    pub client_id: Option<String>,
    /// What its software is called.
    pub software_name: String,
    /// The version of that.
    pub software_version: String,
    /// Its IP address.
    pub source_address: String,
    /// Its port.
    pub source_port: String,
}

impl ClientFacts {
    fn get(&self, attribute: Attribute) -> Option<&str> {
        Some(match attribute {
            Attribute::InstanceId => &self.instance_id,
            Attribute::ClientId => self.client_id.as_deref()?,
            Attribute::SoftwareName => &self.software_name,
            Attribute::SoftwareVersion => &self.software_version,
            Attribute::SourceAddress => &self.source_address,
            Attribute::SourcePort => &self.source_port,
        })
    }
}

/// A pattern that does not say which clients are meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Illegal client matching pattern: {0}")]
pub struct IllegalPattern(pub String);

/// What clients have to be like: each attribute with the expression that all of it matches.
type Patterns = BTreeMap<Attribute, Regex>;

/// Reads a value of `match`. Of several patterns for one attribute the last counts, as in Kafka.
///
/// # Errors
/// The first pattern that is none.
pub fn patterns(list: &str) -> Result<BTreeMap<Attribute, Regex>, IllegalPattern> {
    list_elements(list).map(pattern).collect()
}

fn pattern(text: &str) -> Result<(Attribute, Regex), IllegalPattern> {
    let illegal = || IllegalPattern(text.to_owned());
    // As Java splits: what is empty at the end does not count.
    let mut parts: Vec<&str> = text.split('=').collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    let [name, expression] = parts[..] else {
        return Err(illegal());
    };
    let attribute = Attribute::named(name.trim()).ok_or_else(illegal)?;
    let build = |text: &str| {
        RegexBuilder::new(text)
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|_| illegal())
    };
    // Alone first: brackets that do not match could otherwise close the one around it.
    let expression = expression.trim();
    build(expression)?;
    Ok((attribute, build(&format!("^(?:{expression})$"))?))
}

#[derive(Debug)]
struct Subscription {
    metrics: Vec<String>,
    interval_ms: u32,
    patterns: Patterns,
}

impl Subscription {
    fn of(settings: &ConfigMap) -> Result<Self, IllegalPattern> {
        let list = |key: &str| settings.get(key).map_or("", String::as_str);
        let interval_ms = settings.get(INTERVAL).and_then(|text| text.parse().ok());
        Ok(Self {
            metrics: list_elements(list(METRICS)).map(str::to_owned).collect(),
            interval_ms: interval_ms.unwrap_or(DEFAULT_INTERVAL_MS),
            patterns: patterns(list(MATCH))?,
        })
    }

    fn concerns(&self, client: &ClientFacts) -> bool {
        let mut patterns = self.patterns.iter();
        patterns.all(|(attribute, pattern)| {
            let value = client.get(*attribute);
            value.is_some_and(|value| pattern.is_match(value))
        })
    }
}

/// What is wanted of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Prefixes of names of metrics, in order; `*` alone is all metrics.
    pub metrics: Vec<String>,
    /// How often the client is to push them.
    pub interval_ms: u32,
    /// Stands for both, and for the client.
    pub subscription_id: i32,
}

/// The subscriptions that count now.
#[derive(Debug, Default)]
pub struct Subscriptions {
    /// What they were made of.
    settings: Vec<(String, Arc<ConfigMap>)>,
    subscriptions: Vec<Subscription>,
    version: u64,
}

impl Subscriptions {
    /// Takes the subscriptions of `image`.
    pub fn follow(&mut self, image: &MetadataImage) {
        let configured = || image.configured_of(ResourceKind::ClientMetrics);
        let known = self.settings.iter();
        let known = known.map(|(name, settings)| (name.as_str(), settings));
        if configured()
            .map(|(resource, settings)| (resource.name.as_str(), settings))
            .eq(known)
        {
            return;
        }
        self.settings = configured()
            .map(|(resource, settings)| (resource.name.clone(), Arc::clone(settings)))
            .collect();
        self.subscriptions.clear();
        for (name, settings) in &self.settings {
            match Subscription::of(settings) {
                Ok(subscription) => self.subscriptions.push(subscription),
                // It was checked before it was stored, by this version or by another one.
                Err(error) => {
                    tracing::error!(subscription = %name, %error, "a client metrics subscription is ignored");
                }
            }
        }
        self.version += 1;
    }

    /// Rises with every change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What is wanted of `client`, whose instance id is `id`.
    pub fn wanted(&self, id: Uuid, client: &ClientFacts) -> Wanted {
        let mut metrics = BTreeSet::new();
        let mut interval_ms = DEFAULT_INTERVAL_MS;
        let all = self.subscriptions.iter();
        for subscription in all.filter(|subscription| subscription.concerns(client)) {
            metrics.extend(subscription.metrics.iter().map(String::as_str));
            interval_ms = interval_ms.min(subscription.interval_ms);
        }
        if metrics.contains(ALL_METRICS) {
            metrics = BTreeSet::from([ALL_METRICS]);
        }
        let metrics: Vec<String> = metrics.into_iter().map(str::to_owned).collect();
        Wanted {
            subscription_id: subscription_id(&metrics, interval_ms, id),
            metrics,
            interval_ms,
        }
    }
}

/// As Kafka computes it, but for the order of the metrics, which is that of its hash table there.
fn subscription_id(metrics: &[String], interval_ms: u32, id: Uuid) -> i32 {
    let text = format!("[{}]{interval_ms}", metrics.join(", "));
    let sum = crc32c::crc32c(text.as_bytes());
    let words = id.as_bytes().chunks_exact(4);
    let folded = words.fold(0, |folded: u32, word| {
        let word = word.try_into().map_or(0, u32::from_be_bytes);
        folded ^ word
    });
    (sum ^ folded).cast_signed()
}

#[cfg(test)]
mod tests {
    use odradek_protocol::ids::Offset;

    use super::*;
    use crate::metadata::records::{ConfigRecord, MetadataRecord};

    pub(super) fn facts() -> ClientFacts {
        ClientFacts {
            instance_id: "AAAAAAAAAAAAAAAAAAAABA".to_owned(),
            client_id: Some("orders-1".to_owned()),
            software_name: "apache-kafka-java".to_owned(),
            software_version: "4.4.0".to_owned(),
            source_address: "127.0.0.1".to_owned(),
            source_port: "40000".to_owned(),
        }
    }

    fn id() -> Uuid {
        Uuid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4])
    }

    fn set(image: &mut MetadataImage, subscription: &str, key: &str, value: Option<&str>) {
        let record = MetadataRecord::Config(ConfigRecord {
            resource_type: ResourceKind::ClientMetrics.code(),
            resource_name: subscription.to_owned(),
            name: key.to_owned(),
            value: value.map(str::to_owned),
        });
        let next = Offset::new(image.next_offset().get() + 1);
        image.apply(&[record], next).expect("it applies");
    }

    #[test]
    fn a_client_gets_what_all_that_concern_it_want_at_the_shortest_interval() {
        let mut image = MetadataImage::default();
        let mut subscriptions = Subscriptions::default();
        subscriptions.follow(&image);
        let nothing = subscriptions.wanted(id(), &facts());
        assert_eq!((nothing.metrics, nothing.interval_ms), (vec![], 300_000));
        set(&mut image, "a", "metrics", Some("x.,y."));
        set(&mut image, "a", "interval.ms", Some("5000"));
        set(&mut image, "b", "metrics", Some("y.,z."));
        set(&mut image, "b", "interval.ms", Some("4000"));
        set(&mut image, "c", "metrics", Some("*"));
        set(&mut image, "c", "interval.ms", Some("100"));
        set(
            &mut image,
            "c",
            "match",
            Some("client_software_name=librd.*"),
        );
        subscriptions.follow(&image);
        let wanted = subscriptions.wanted(id(), &facts());
        assert_eq!(
            (wanted.metrics, wanted.interval_ms),
            (vec!["x.".into(), "y.".into(), "z.".into()], 4_000)
        );
        let librdkafka = ClientFacts {
            software_name: "librdkafka".to_owned(),
            ..facts()
        };
        let wanted = subscriptions.wanted(id(), &librdkafka);
        assert_eq!(
            (wanted.metrics, wanted.interval_ms),
            (vec!["*".into()], 100)
        );
    }

    #[test]
    fn the_version_rises_with_changes_of_subscriptions_alone() {
        let mut image = MetadataImage::default();
        let mut subscriptions = Subscriptions::default();
        subscriptions.follow(&image);
        assert_eq!(subscriptions.version(), 0);
        set(&mut image, "a", "metrics", Some("x."));
        subscriptions.follow(&image);
        subscriptions.follow(&image.clone());
        assert_eq!(subscriptions.version(), 1);
        set(&mut image, "a", "metrics", None);
        subscriptions.follow(&image);
        assert_eq!(subscriptions.version(), 2);
    }

    #[test]
    fn all_of_a_value_has_to_match_and_every_pattern() {
        let concerns = |list: &str| {
            let mut settings = ConfigMap::new();
            settings.insert(MATCH.to_owned(), list.to_owned());
            let subscription = Subscription::of(&settings);
            subscription.map(|subscription| subscription.concerns(&facts()))
        };
        for (list, expected) in [
            ("", true),
            ("client_id=orders-.*", true),
            ("client_id=orders", false),
            ("client_id=a|orders-1", true),
            (
                "client_software_version=4\\.4\\..*,client_source_port=40000",
                true,
            ),
            (
                "client_software_version=4\\.4\\..*,client_source_port=1",
                false,
            ),
            ("client_source_address = 127.0.0.1 ", true),
        ] {
            assert_eq!(concerns(list), Ok(expected), "{list}");
        }
        for bad in [
            "client_id",
            "client_id=",
            "colour=red",
            "client_id=a=b",
            "client_id=(",
            "client_id=a)(b",
        ] {
            assert_eq!(concerns(bad), Err(IllegalPattern(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn a_client_without_an_id_is_told_by_none() {
        let anonymous = ClientFacts {
            client_id: None,
            ..facts()
        };
        let settings = [(MATCH.to_owned(), "client_id=.*".to_owned())].into();
        let subscription = Subscription::of(&settings).expect("a pattern");
        assert!(!subscription.concerns(&anonymous));
    }

    /// `(int) Crc32C("[]300000") ^ Uuid(0, 4).hashCode()`, as Kafka has it.
    #[test]
    fn the_id_of_a_subscription_is_kafkas() {
        let expected = crc32c::crc32c(b"[]300000").cast_signed() ^ 4;
        assert_eq!(subscription_id(&[], 300_000, id()), expected);
        let star = crc32c::crc32c(b"[*]1000").cast_signed() ^ 4;
        assert_eq!(subscription_id(&["*".to_owned()], 1_000, id()), star);
    }
}
