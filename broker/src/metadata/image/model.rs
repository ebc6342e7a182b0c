//! What the metadata is made of: topics and partitions, brokers, and what can be configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};
use odradek_raft::{GroupKey, Incarnation};

use super::super::records::{Begun, BrokerEndpoint, SupportedFeature};
use super::super::topic_name;

/// Kinds of things that have a configuration, with Kafka's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// A topic.
    Topic,
    /// A broker, or all brokers when the name is empty.
    Broker,
    /// The log levels of a broker; never stored.
    BrokerLogger,
    /// A client metrics subscription (KIP-714).
    ClientMetrics,
    /// A group.
    Group,
}

impl ResourceKind {
    /// Reads Kafka's number.
    pub const fn from_code(code: i8) -> Option<Self> {
        match code {
            2 => Some(Self::Topic),
            4 => Some(Self::Broker),
            8 => Some(Self::BrokerLogger),
            16 => Some(Self::ClientMetrics),
            32 => Some(Self::Group),
            _ => None,
        }
    }

    /// Kafka's number.
    pub const fn code(self) -> i8 {
        match self {
            Self::Topic => 2,
            Self::Broker => 4,
            Self::BrokerLogger => 8,
            Self::ClientMetrics => 16,
            Self::Group => 32,
        }
    }
}

/// Something that has a configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigResource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Its name; empty is the default of all brokers.
    pub name: String,
}

impl ConfigResource {
    /// The configuration of a topic.
    pub fn topic(name: impl Into<String>) -> Self {
        Self {
            kind: ResourceKind::Topic,
            name: name.into(),
        }
    }

    /// The configuration of one broker.
    pub fn broker(id: NodeId) -> Self {
        Self {
            kind: ResourceKind::Broker,
            name: id.to_string(),
        }
    }

    /// The configuration that all brokers fall back to.
    pub fn all_brokers() -> Self {
        Self {
            kind: ResourceKind::Broker,
            name: String::new(),
        }
    }
}

/// Keys and values of one resource, in the order of the keys.
pub type ConfigMap = BTreeMap<String, String>;

/// A topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Name.
    pub name: Arc<str>,
    /// Id; another topic of the same name has another id.
    pub id: TopicId,
    /// Partitions, by index.
    pub partitions: Vec<Arc<PartitionState>>,
}

impl Topic {
    /// The partition of that index.
    pub fn partition(&self, index: PartitionIndex) -> Option<&PartitionState> {
        let at = usize::try_from(index.get()).ok()?;
        self.partitions.get(at).map(|partition| &**partition)
    }

    /// The group of a partition; that which it was made with where there is no such partition.
    pub fn group_key(&self, index: PartitionIndex) -> GroupKey {
        let incarnation = self.partition(index).map(PartitionState::incarnation);
        GroupKey::new(self.id, index).in_incarnation(incarnation.unwrap_or_default())
    }

    /// Indexes and partitions, in order.
    pub fn indexed(&self) -> impl Iterator<Item = (PartitionIndex, &PartitionState)> {
        let partitions = self.partitions.iter().map(|partition| &**partition);
        (0..).map(PartitionIndex::new).zip(partitions)
    }

    /// Number of replicas of a partition: that of the first one, as Kafka counts it.
    pub fn replication_factor(&self) -> usize {
        self.partitions
            .first()
            .map_or(0, |partition| partition.replicas.len())
    }

    /// Whether only the broker itself writes to the topic.
    pub fn is_internal(&self) -> bool {
        topic_name::is_internal(&self.name)
    }
}

/// A partition as the metadata log knows it. Which replica leads at this moment and in which
/// epoch is known to the partition's own Raft group first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionState {
    /// Replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
    /// Replicas in sync.
    pub isr: Vec<NodeId>,
    /// Replicas on their way out.
    pub removing_replicas: Vec<NodeId>,
    /// Replicas on their way in.
    pub adding_replicas: Vec<NodeId>,
    /// Leader, if there is one.
    pub leader: Option<NodeId>,
    /// Epoch of the leader.
    pub leader_epoch: LeaderEpoch,
    /// Number of changes the partition has seen.
    pub partition_epoch: i32,
    /// Log directory of each replica, in the order of `replicas`; zero where none was assigned.
    pub directories: Vec<Uuid>,
    /// Its group, if not the one that it was made with.
    pub begun: Option<Begun>,
}

impl PartitionState {
    /// Which of the partition's groups it has now.
    pub fn incarnation(&self) -> Incarnation {
        self.begun
            .map_or(Incarnation::FIRST, |begun| begun.incarnation)
    }

    /// Whether a leader of its group has been heard of.
    pub fn is_led_in_its_incarnation(&self) -> bool {
        let epoch = u32::try_from(self.leader_epoch.get()).unwrap_or(0);
        self.leader.is_some() && epoch > self.incarnation().get()
    }

    /// The log directory that a replica was given when it was placed; `None` if it was given none,
    /// or is no replica.
    pub fn directory(&self, node: NodeId) -> Option<Uuid> {
        let at = self.replicas.iter().position(|id| *id == node)?;
        self.directories.get(at).copied().filter(|id| !id.is_zero())
    }

    /// Whether replicas are on their way in or out.
    pub fn is_reassigning(&self) -> bool {
        !self.adding_replicas.is_empty() || !self.removing_replicas.is_empty()
    }

    /// The replica that should lead: the first that stays.
    pub fn preferred_leader(&self) -> Option<NodeId> {
        self.replicas
            .iter()
            .copied()
            .find(|id| !self.removing_replicas.contains(id))
    }

    /// The replicas once none is on its way: what the partition's group is to become.
    pub fn target_replicas(&self) -> Vec<NodeId> {
        self.replicas
            .iter()
            .copied()
            .filter(|id| !self.removing_replicas.contains(id))
            .collect()
    }
}

/// A broker as it registered last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerRegistration {
    /// Identity of the process.
    pub incarnation_id: Uuid,
    /// Number of the registration.
    pub broker_epoch: i64,
    /// Advertised listeners.
    pub endpoints: Vec<BrokerEndpoint>,
    /// Features the broker can work with.
    pub features: Vec<SupportedFeature>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Whether the broker may not lead.
    pub fenced: bool,
    /// Whether the broker is about to stop and gives its leaderships away.
    pub stopping: bool,
    /// Ids of its log directories.
    pub log_dirs: Vec<Uuid>,
}
