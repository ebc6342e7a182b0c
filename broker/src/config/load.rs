//! Reading the configuration at the start: the file, the command line, and what is wrong with them.
//!
//! One message says all: the key, where it stands, what it takes, and the nearest key that exists.

use std::fmt;
use std::path::{Path, PathBuf};

use super::broker_config::BrokerConfig;
use super::key::{ConfigKind, InvalidValue, KeySpec};
use super::values::{Layers, Settings};
use super::{broker_keys, foreign_keys, properties, spelling};

/// Where a setting stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line, counted from 1, of the file.
    File(PathBuf, usize),
    /// `--override` on the command line.
    CommandLine,
    /// Nowhere: a default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::CommandLine => f.write_str("--override"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Why a configuration cannot be started with.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{path}: {cause}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The file is not in properties syntax.
    #[error("{path}: {cause}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        cause: properties::SyntaxError,
    },
    /// An override is not `key=value`.
    #[error("--override {0}: expected key=value")]
    Override(String),
    /// Nobody knows the key.
    #[error("{origin}: unknown configuration key {key}{}", spelling::suggestion(*.nearest))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The key that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The value is not one that the key takes.
    #[error("{origin}: {cause}")]
    Invalid {
        /// Where it stands.
        origin: Origin,
        /// What is wrong.
        cause: Box<InvalidValue>,
    },
    /// Kafka has the key, and a broker that ignored it would be dangerous.
    #[error("{origin}: {key} cannot be used: {reason}")]
    Refused {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// Why.
        reason: &'static str,
    },
}

/// What a start was given.
#[derive(Debug)]
pub struct Loaded {
    /// Settings of the file and the command line, checked.
    pub statics: Settings,
    /// What counts.
    pub config: BrokerConfig,
    /// Keys of Kafka's that were set and have no effect here, in order.
    pub without_effect: Vec<String>,
}

/// Reads the file, if there is one, and the overrides, which count before it.
pub fn load(file: Option<&Path>, overrides: &[String]) -> Result<Loaded, LoadError> {
    let mut given: Vec<(String, String, Origin)> = Vec::new();
    if let Some(path) = file {
        let bytes = std::fs::read(path).map_err(|cause| LoadError::Unreadable {
            path: path.to_owned(),
            cause,
        })?;
        let text = text_of(bytes);
        let properties = properties::parse(&text).map_err(|cause| LoadError::Syntax {
            path: path.to_owned(),
            cause,
        })?;
        given.extend(properties.into_iter().map(|property| {
            let origin = Origin::File(path.to_owned(), property.line);
            (property.key, property.value, origin)
        }));
    }
    for text in overrides {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| LoadError::Override(text.clone()))?;
        given.push((
            key.trim().to_owned(),
            value.trim().to_owned(),
            Origin::CommandLine,
        ));
    }
    check(given)
}

/// Property files of old are in ISO-8859-1, each of whose bytes is the character of that number.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| error.as_bytes().iter().copied().map(char::from).collect())
}

fn check(given: Vec<(String, String, Origin)>) -> Result<Loaded, LoadError> {
    let mut statics = Settings::new();
    let mut origins = std::collections::HashMap::new();
    let mut without_effect = std::collections::BTreeSet::new();
    for (key, value, origin) in given {
        if let Some(spec) = broker_keys::find(&key) {
            let value = spec.normalize(&value).map_err(|cause| LoadError::Invalid {
                origin: origin.clone(),
                cause: Box::new(cause),
            })?;
            statics.insert(key.clone(), value);
            origins.insert(key, origin);
        } else if let Some(kind) = foreign_kind(&key) {
            check_foreign(&key, kind, &value, &origin)?;
            without_effect.insert(key);
        } else {
            return Err(LoadError::UnknownKey {
                nearest: spelling::nearest_broker_key(&key),
                key,
                origin,
            });
        }
    }
    let layers = Layers {
        statics,
        ..Layers::default()
    };
    let config = BrokerConfig::from_layers(&layers).map_err(|cause| LoadError::Invalid {
        origin: origins.remove(&cause.key).unwrap_or(Origin::Default),
        cause: Box::new(cause),
    })?;
    Ok(Loaded {
        statics: layers.statics,
        config,
        without_effect: without_effect.into_iter().collect(),
    })
}

/// The type of a key that only Kafka gives a meaning to, or of a key for one listener alone.
fn foreign_kind(key: &str) -> Option<ConfigKind> {
    if let Some(kind) = foreign_keys::find(key) {
        return Some(kind);
    }
    if let Some(rest) = key.strip_prefix("listener.name.") {
        // listener.name.<listener>.<key>, or with a SASL mechanism in between.
        let mut rest = rest;
        while let Some((_, after)) = rest.split_once('.') {
            let known = foreign_keys::find(after)
                .or_else(|| broker_keys::find(after).map(|spec| spec.kind));
            if known.is_some() {
                return known;
            }
            rest = after;
        }
        return None;
    }
    foreign_keys::PLUGIN_PREFIXES
        .iter()
        .any(|prefix| key.starts_with(prefix))
        .then_some(ConfigKind::String)
}

fn check_foreign(
    key: &str,
    kind: ConfigKind,
    value: &str,
    origin: &Origin,
) -> Result<(), LoadError> {
    // The name goes into the message only; the table of foreign keys has no bounds to check.
    let spec = KeySpec::new("", kind);
    spec.normalize(value).map_err(|cause| LoadError::Invalid {
        origin: origin.clone(),
        cause: Box::new(InvalidValue {
            key: key.to_owned(),
            ..cause
        }),
    })?;
    let harmless = value.trim().is_empty() || value.trim().eq_ignore_ascii_case("false");
    match foreign_keys::REFUSED.iter().find(|(name, _)| *name == key) {
        Some((_, reason)) if !harmless => Err(LoadError::Refused {
            key: key.to_owned(),
            origin: origin.clone(),
            reason,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_text(text: &str, overrides: &[&str]) -> Result<Loaded, LoadError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("written");
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        load(Some(file.path()), &overrides)
    }

    fn message(text: &str, overrides: &[&str]) -> String {
        let full = from_text(text, overrides)
            .expect_err("it is wrong")
            .to_string();
        // Without the name of the temporary file.
        full.rsplit_once("/").map_or(full.clone(), |(_, rest)| {
            rest.split_once(':')
                .map_or(full.clone(), |(_, rest)| rest.to_owned())
        })
    }

    #[test]
    fn a_file_in_latin_1_is_read_as_such() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), b"# f\xfcr den Test\nnode.id=7\n").expect("written");
        let loaded = load(Some(file.path()), &[]).expect("loaded");
        assert_eq!(loaded.config.node_id.get(), 7);
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line_and_the_nearest_key() {
        assert_eq!(
            message("node.id=1\n\n# more\nnum.partition=3\n", &[]),
            "4: unknown configuration key num.partition; did you mean num.partitions?"
        );
        assert_eq!(
            message("", &["log.retention.hour=3"]),
            "--override: unknown configuration key log.retention.hour; did you mean \
             log.retention.hours?"
        );
        assert_eq!(
            message("retention.mz=3", &[]),
            "1: unknown configuration key retention.mz; did you mean log.retention.ms?"
        );
        assert_eq!(
            message("xyzzy=1", &[]),
            "1: unknown configuration key xyzzy"
        );
    }

    #[test]
    fn a_wrong_type_and_a_value_out_of_range_name_what_is_expected() {
        assert_eq!(
            message("num.partitions=many", &[]),
            "1: invalid value \"many\" for num.partitions: expected a 32-bit integer of at least 1"
        );
        assert_eq!(
            message("\nnum.partitions=0", &[]),
            "2: invalid value \"0\" for num.partitions: expected a 32-bit integer of at least 1"
        );
        assert_eq!(
            message("", &["auto.create.topics.enable=maybe"]),
            "--override: invalid value \"maybe\" for auto.create.topics.enable: expected true or \
             false"
        );
    }

    #[test]
    fn a_setting_that_contradicts_another_is_found_at_its_line() {
        let text = "a.b=1\n".replace("a.b", "node.id") + "controller.quorum.voters=2@h:1\n";
        let message = message(&text, &[]);
        assert!(message.starts_with("2: "), "{message}");
    }

    #[test]
    fn a_node_meant_to_be_one_of_several_is_never_a_cluster_of_its_own() {
        let servers = "controller.quorum.bootstrap.servers=a:1,b:1,c:1";
        let message = message(servers, &[]);
        assert!(message.contains("controller.listener.names"), "{message}");
    }

    #[test]
    fn overrides_count_before_the_file() {
        let loaded =
            from_text("num.partitions=3\nnode.id=4", &["num.partitions=5"]).expect("all is right");
        assert_eq!(loaded.config.num_partitions, 5);
        assert_eq!(loaded.config.node_id.get(), 4);
        assert!(matches!(
            from_text("", &["num.partitions"]),
            Err(LoadError::Override(_))
        ));
    }

    #[test]
    fn keys_of_kafka_that_do_nothing_here_are_listed_and_not_refused() {
        let loaded = from_text(
            "num.network.threads=3\nsocket.send.buffer.bytes=102400\nnum.io.threads=8\n\
             listener.name.plaintext.max.connections=5\n\
             listener.name.a.scram-sha-256.sasl.jaas.config=x\n\
             config.providers.file.class=x\nauthorizer.class.name=\n",
            &[],
        )
        .expect("all of them are Kafka's");
        assert_eq!(
            loaded.without_effect,
            [
                "authorizer.class.name",
                "config.providers.file.class",
                "listener.name.a.scram-sha-256.sasl.jaas.config",
                "listener.name.plaintext.max.connections",
                "num.io.threads",
                "num.network.threads",
            ]
        );
        assert!(from_text("num.io.threads=x", &[]).is_err());
        assert!(from_text("listener.name.plaintext.nothing=5", &[]).is_err());
    }

    #[test]
    fn a_key_whose_being_ignored_would_open_a_door_stops_the_start() {
        let message = message(
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            &[],
        );
        assert_eq!(
            message,
            "1: authorizer.class.name cannot be used: access control lists are not checked by this \
             version"
        );
    }
}
