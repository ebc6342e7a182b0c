//! Settings of consumer groups, and what a group may set for itself (`kafka-configs --entity-type
//! groups`).

use std::str::FromStr;

use super::assignors::Assignor;
use crate::groups::names::GroupId;
use crate::metadata::image::{ConfigMap, ConfigResource, MetadataImage, ResourceKind};

/// A group's own session timeout.
pub const SESSION_TIMEOUT_KEY: &str = "consumer.session.timeout.ms";
/// A group's own heartbeat interval.
pub const HEARTBEAT_INTERVAL_KEY: &str = "consumer.heartbeat.interval.ms";
/// A group's own assignment interval.
pub const ASSIGNMENT_INTERVAL_KEY: &str = "consumer.assignment.interval.ms";

/// Which way a group with members may go between the two protocols while they stay
/// (`group.consumer.migration.policy`). A group without members may always go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// Both ways.
    Bidirectional,
    /// From the classic to the consumer protocol.
    Upgrade,
    /// From the consumer to the classic protocol.
    Downgrade,
    /// Not at all.
    Disabled,
}

impl MigrationPolicy {
    /// The names in the configuration.
    pub const NAMES: [&'static str; 4] = ["bidirectional", "upgrade", "downgrade", "disabled"];

    /// The policy of that name; names are not case-sensitive, as in Kafka.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "bidirectional" => Some(Self::Bidirectional),
            "upgrade" => Some(Self::Upgrade),
            "downgrade" => Some(Self::Downgrade),
            "disabled" => Some(Self::Disabled),
            _ => None,
        }
    }

    /// Whether a classic group with members may become a consumer group.
    pub const fn allows_upgrade(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Upgrade)
    }

    /// Whether a consumer group may become a classic one.
    pub const fn allows_downgrade(self) -> bool {
        matches!(self, Self::Bidirectional | Self::Downgrade)
    }
}

/// A duration in milliseconds, and what a group may set in its stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundedMs {
    /// Unless the group has its own.
    pub default: i32,
    /// The least that a group gets.
    pub min: i32,
    /// The most that a group gets.
    pub max: i32,
}

impl BoundedMs {
    fn of(self, config: &ConfigMap, key: &str) -> i64 {
        let own = config.get(key).and_then(|value| i32::from_str(value).ok());
        // The bounds may have changed since the group was given its own.
        i64::from(own.map_or(self.default, |own| {
            own.clamp(self.min, self.max.max(self.min))
        }))
    }
}

/// Settings of all consumer groups (`group.consumer.*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// How long a member may be silent.
    pub session_timeout_ms: BoundedMs,
    /// How often a member is to tell that it is there.
    pub heartbeat_interval_ms: BoundedMs,
    /// How long after a target assignment the next may be computed at the earliest.
    pub assignment_interval_ms: BoundedMs,
    /// Most members.
    pub max_size: usize,
    /// The assignors that members may choose from; the first is the default.
    pub assignors: Vec<Assignor>,
    /// Which way groups may go.
    pub migration_policy: MigrationPolicy,
    /// How long the topics that a regular expression matched are good for.
    pub regex_refresh_interval_ms: i64,
}

impl GroupSettings {
    /// The assignor of a group whose members prefer none.
    pub fn default_assignor(&self) -> Assignor {
        self.assignors.first().copied().unwrap_or(Assignor::Uniform)
    }

    /// Session timeout of a group.
    pub fn session_timeout_ms(&self, group: &GroupId, image: &MetadataImage) -> i64 {
        let config = own(group, image);
        self.session_timeout_ms.of(config, SESSION_TIMEOUT_KEY)
    }

    /// Heartbeat interval of a group.
    pub fn heartbeat_interval_ms(&self, group: &GroupId, image: &MetadataImage) -> i64 {
        let config = own(group, image);
        self.heartbeat_interval_ms
            .of(config, HEARTBEAT_INTERVAL_KEY)
    }

    /// Assignment interval of a group.
    pub fn assignment_interval_ms(&self, group: &GroupId, image: &MetadataImage) -> i64 {
        let config = own(group, image);
        self.assignment_interval_ms
            .of(config, ASSIGNMENT_INTERVAL_KEY)
    }
}

fn own<'a>(group: &GroupId, image: &'a MetadataImage) -> &'a ConfigMap {
    image.config(&ConfigResource {
        kind: ResourceKind::Group,
        name: group.as_str().to_owned(),
    })
}

impl Default for GroupSettings {
    /// Kafka's defaults.
    fn default() -> Self {
        let bounded = |default, min, max| BoundedMs { default, min, max };
        Self {
            session_timeout_ms: bounded(45_000, 45_000, 60_000),
            heartbeat_interval_ms: bounded(5_000, 5_000, 15_000),
            assignment_interval_ms: bounded(1_000, 0, 15_000),
            max_size: i32::MAX as usize,
            assignors: Assignor::ALL.to_vec(),
            migration_policy: MigrationPolicy::Bidirectional,
            regex_refresh_interval_ms: 600_000,
        }
    }
}
