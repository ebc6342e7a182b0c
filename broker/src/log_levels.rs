//! Log levels of the process, which can be changed while it runs (KIP-412).
//!
//! A logger is a part of the process that logs, `root` all of them. A logger without a level of its own has that
//! of the one whose name is the longest beginning of its own, in the end that of `root`. Levels are of this
//! process alone and are not kept: a start begins with RUST_LOG again.
//!
//! Kafka's level FATAL is ERROR here, which is what it is shown as then: nothing is worse.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use parking_lot::Mutex;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::metadata::controller::alter_configs::{KeyChange, Operation};
use crate::metadata::refusal::Refusal;

/// All of them.
pub const ROOT: &str = "root";

/// The parts of the process that log, besides those that RUST_LOG names. A test holds those of this crate to its
/// modules.
static LOGGERS: &[&str] = &[
    "odradek",
    "odradek::blocking",
    "odradek::broker",
    "odradek::clock",
    "odradek::cluster",
    "odradek::config",
    "odradek::connection",
    "odradek::context",
    "odradek::coordinator",
    "odradek::data_dir",
    "odradek::data_dirs",
    "odradek::data_metrics",
    "odradek::descriptors",
    "odradek::dispatch",
    "odradek::fetch_plan",
    "odradek::fetch_service",
    "odradek::fetch_sessions",
    "odradek::follower",
    "odradek::groups",
    "odradek::handlers",
    "odradek::http",
    "odradek::http_connections",
    "odradek::leading",
    "odradek::log_levels",
    "odradek::memory",
    "odradek::metadata",
    "odradek::metrics",
    "odradek::partition",
    "odradek::partitions",
    "odradek::peer",
    "odradek::raft_stack",
    "odradek::server",
    "odradek::shared_map",
    "odradek::telemetry",
    "odradek::topic_config",
    "odradek::txn",
    "odradek::waiters",
    "odradek_protocol",
    "odradek_raft",
    "odradek_storage",
    "openraft",
];

/// How clients name the logger of a target: with dots, since Kafka's tool takes no colons in a key.
fn name_of(target: &str) -> String {
    target.replace("::", ".")
}

/// The target of a logger that a client names.
fn target_of(name: &str) -> String {
    name.replace('.', "::")
}

/// The levels of all loggers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    root: LevelFilter,
    own: BTreeMap<String, LevelFilter>,
}

impl Levels {
    fn of(targets: &Targets) -> Self {
        Self {
            root: targets.default_level().unwrap_or(LevelFilter::OFF),
            own: targets
                .iter()
                .map(|(name, level)| (name.to_owned(), level))
                .collect(),
        }
    }

    fn targets(&self) -> Targets {
        let own = self.own.iter();
        Targets::new()
            .with_default(self.root)
            .with_targets(own.map(|(name, level)| (name.as_str(), *level)))
    }

    /// The level that counts for a logger.
    fn level(&self, logger: &str) -> LevelFilter {
        let own = self.own.iter();
        own.filter(|(name, _)| logger.starts_with(name.as_str()))
            .max_by_key(|(name, _)| name.len())
            .map_or(self.root, |(_, level)| *level)
    }

    fn exists(&self, logger: &str) -> bool {
        logger == ROOT || LOGGERS.contains(&logger) || self.own.contains_key(logger)
    }

    /// Every logger with Kafka's name of its level, in the order of their names.
    fn all(&self) -> BTreeMap<String, &'static str> {
        let named = LOGGERS.iter().copied();
        named
            .chain(self.own.keys().map(String::as_str))
            .map(|logger| (name_of(logger), level_name(self.level(logger))))
            .chain([(ROOT.to_owned(), level_name(self.root))])
            .collect()
    }

    /// The levels after `changes`, which are made together or not at all.
    fn changed(&self, changes: &[KeyChange]) -> Result<Self, Refusal> {
        let mut levels = self.clone();
        for change in changes {
            let name = change.key.as_str();
            let logger = target_of(name);
            let not_here = |operation: &str| {
                Refusal::InvalidRequest(format!(
                    "{operation} operation is not allowed for the BROKER_LOGGER resource"
                ))
            };
            match Operation::from_code(change.operation) {
                Some(Operation::Set) => {
                    self.require(name, &logger)?;
                    let text = change.value.as_deref().unwrap_or_default();
                    let level = named_level(text).ok_or_else(|| {
                        Refusal::InvalidConfig(format!(
                            "Cannot set the log level of {name} to {text} as it is not a supported log \
                             level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"
                        ))
                    })?;
                    if logger == ROOT {
                        levels.root = level;
                    } else {
                        levels.own.insert(logger, level);
                    }
                }
                Some(Operation::Delete) => {
                    self.require(name, &logger)?;
                    if logger == ROOT {
                        return Err(Refusal::InvalidRequest(format!(
                            "Removing the log level of the {ROOT} logger is not allowed"
                        )));
                    }
                    levels.own.remove(&logger);
                }
                Some(Operation::Append) => return Err(not_here("APPEND")),
                Some(Operation::Subtract) => return Err(not_here("SUBTRACT")),
                None => {
                    return Err(Refusal::InvalidRequest(format!(
                        "Unknown operation type {} is not allowed for the BROKER_LOGGER resource",
                        change.operation
                    )));
                }
            }
        }
        Ok(levels)
    }

    fn require(&self, name: &str, logger: &str) -> Result<(), Refusal> {
        match self.exists(logger) {
            true => Ok(()),
            false => Err(Refusal::InvalidConfig(format!(
                "Logger {name} does not exist!"
            ))),
        }
    }
}

/// Kafka's name of a level.
fn level_name(level: LevelFilter) -> &'static str {
    match level {
        LevelFilter::OFF => "OFF",
        LevelFilter::ERROR => "ERROR",
        LevelFilter::WARN => "WARN",
        LevelFilter::INFO => "INFO",
        LevelFilter::DEBUG => "DEBUG",
        LevelFilter::TRACE => "TRACE",
    }
}

fn named_level(name: &str) -> Option<LevelFilter> {
    Some(match name {
        "FATAL" | "ERROR" => LevelFilter::ERROR,
        "WARN" => LevelFilter::WARN,
        "INFO" => LevelFilter::INFO,
        "DEBUG" => LevelFilter::DEBUG,
        "TRACE" => LevelFilter::TRACE,
        _ => return None,
    })
}

/// Makes levels count.
type Apply = Box<dyn Fn(Targets) + Send + Sync>;

/// The levels of the process. See the module.
pub struct LogLevels {
    levels: Mutex<Levels>,
    apply: OnceLock<Apply>,
}

impl std::fmt::Debug for LogLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogLevels").finish_non_exhaustive()
    }
}

static OF_PROCESS: LazyLock<LogLevels> = LazyLock::new(|| LogLevels {
    levels: Mutex::new(Levels {
        root: LevelFilter::current(),
        own: BTreeMap::new(),
    }),
    apply: OnceLock::new(),
});

/// The levels of this process. A process logs in one way, so there is one of them.
pub fn of_process() -> &'static LogLevels {
    &OF_PROCESS
}

impl LogLevels {
    /// Says what counts from the start on, and how another choice is made to count. The first call does; until
    /// then changes are remembered and do nothing.
    pub fn begin_with(&self, targets: &Targets, apply: impl Fn(Targets) + Send + Sync + 'static) {
        let mut levels = self.levels.lock();
        if self.apply.set(Box::new(apply)).is_ok() {
            *levels = Levels::of(targets);
        }
    }

    /// Every logger with Kafka's name of its level, in the order of their names.
    pub fn all(&self) -> BTreeMap<String, &'static str> {
        self.levels.lock().all()
    }

    /// Changes levels, all of them or none; with `validate_only` says what would come of it.
    ///
    /// # Errors
    /// What is wrong with the first change that cannot be made, as Kafka says it.
    pub fn change(&self, changes: &[KeyChange], validate_only: bool) -> Result<(), Refusal> {
        let mut levels = self.levels.lock();
        let changed = levels.changed(changes)?;
        if validate_only || changed == *levels {
            return Ok(());
        }
        if let Some(apply) = self.apply.get() {
            apply(changed.targets());
        }
        *levels = changed;
        drop(levels);
        let loggers: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
        tracing::warn!(loggers = loggers.join(", "), "log levels have been changed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::*;

    fn change(key: &str, operation: i8, value: Option<&str>) -> KeyChange {
        KeyChange {
            key: key.to_owned(),
            operation,
            value: value.map(str::to_owned),
        }
    }

    fn levels(text: &str) -> Levels {
        Levels::of(&text.parse().expect("directives"))
    }

    #[test]
    fn every_module_of_this_crate_is_a_logger() {
        let modules = include_str!("lib.rs").lines().filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        let modules: Vec<String> = modules
            .filter(|name| !["coordinators_sim", "sim_support", "test_random"].contains(name))
            .map(|name| format!("odradek::{name}"))
            .collect();
        let listed: Vec<&str> = LOGGERS
            .iter()
            .copied()
            .filter(|name| name.starts_with("odradek::"))
            .collect();
        assert_eq!(listed, modules);
    }

    #[test]
    fn a_logger_has_the_level_of_the_longest_name_that_it_begins_with() {
        let levels = levels("info,openraft=error,odradek::groups=debug,elsewhere=trace");
        let all = levels.all();
        for (logger, level) in [
            ("root", "INFO"),
            ("odradek", "INFO"),
            ("odradek.groups", "DEBUG"),
            ("odradek.txn", "INFO"),
            ("openraft", "ERROR"),
            ("elsewhere", "TRACE"),
        ] {
            assert_eq!(all.get(logger), Some(&level), "{logger}");
        }
    }

    #[test]
    fn levels_are_set_and_fall_back_to_what_is_above() {
        let before = levels("info,openraft=error");
        let set = [
            change("root", 0, Some("WARN")),
            change("odradek", 0, Some("DEBUG")),
            change("odradek.txn", 0, Some("FATAL")),
        ];
        let after = before.changed(&set).expect("loggers");
        let all = after.all();
        assert_eq!(all["root"], "WARN");
        assert_eq!(all["odradek.groups"], "DEBUG");
        assert_eq!(all["odradek.txn"], "ERROR");
        let back = [change("odradek", 1, None), change("openraft", 1, None)];
        let all = after.changed(&back).expect("loggers").all();
        assert_eq!((all["odradek"], all["openraft"]), ("WARN", "WARN"));
        assert!(
            after
                .targets()
                .would_enable("odradek::groups::x", &tracing::Level::DEBUG)
        );
        assert!(
            !after
                .targets()
                .would_enable("odradek::txn", &tracing::Level::WARN)
        );
    }

    #[test]
    fn refusals_carry_the_code_and_sentence_of_kafka() {
        let levels = levels("info");
        for (change, code, says) in [
            (
                change("nope", 0, Some("INFO")),
                ErrorCode::InvalidConfig,
                "Logger nope does not exist!",
            ),
            (
                change("nope", 1, None),
                ErrorCode::InvalidConfig,
                "Logger nope does not exist!",
            ),
            (
                change("root", 0, Some("info")),
                ErrorCode::InvalidConfig,
                "Cannot set the log level of root to info",
            ),
            (
                change("root", 0, Some("OFF")),
                ErrorCode::InvalidConfig,
                "Valid log levels are DEBUG, ERROR, FATAL",
            ),
            (
                change("root", 1, None),
                ErrorCode::InvalidRequest,
                "Removing the log level of the root logger",
            ),
            (
                change("root", 2, Some("INFO")),
                ErrorCode::InvalidRequest,
                "APPEND operation is not allowed",
            ),
            (
                change("root", 3, Some("INFO")),
                ErrorCode::InvalidRequest,
                "SUBTRACT operation is not allowed",
            ),
            (
                change("root", 9, Some("INFO")),
                ErrorCode::InvalidRequest,
                "Unknown operation type 9",
            ),
        ] {
            let refusal = levels.changed(&[change]).expect_err(says);
            assert_eq!(refusal.code(), code, "{refusal}");
            assert!(refusal.to_string().contains(says), "{refusal}");
        }
    }
}
