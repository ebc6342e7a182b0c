//! Topics as clients see them: what the metadata says of a partition, and what this broker knows
//! better because it holds it.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex};
use odradek_protocol::messages::StrBytes;
use odradek_raft::Leadership;

use crate::context::{BrokerContext, RequestContext};
use crate::fetch_sessions::TopicRef;
use crate::metadata::image::{BrokerRegistration, MetadataImage, PartitionState, Topic};
use crate::partitions::LookupError;

/// "No leader" on the wire.
const NO_LEADER: i32 = -1;

/// One partition as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionView {
    /// LEADER_NOT_AVAILABLE without a leader.
    pub error: ErrorCode,
    /// Index in the topic.
    pub index: i32,
    /// The leader, or −1.
    pub leader: i32,
    /// Its epoch.
    pub leader_epoch: i32,
    /// Replicas, the preferred leader first.
    pub replicas: Vec<i32>,
    /// Replicas in sync.
    pub isr: Vec<i32>,
    /// Replicas whose data cannot be used.
    pub offline: Vec<i32>,
}

/// Partitions of a topic from index `first` on, at most `count`.
pub fn partitions(
    broker: &BrokerContext,
    image: &MetadataImage,
    topic: &Topic,
    first: usize,
    count: usize,
) -> Vec<PartitionView> {
    let reference = TopicRef::Id(topic.id);
    topic
        .indexed()
        .skip(first)
        .take(count)
        .map(|(index, state)| {
            let known = if state.replicas.contains(&broker.identity.node_id) {
                match broker.partitions.lookup(&reference, index) {
                    Ok(partition) => Known::Open(partition.leadership()),
                    Err(LookupError::Unopenable) => Known::Unopenable,
                    Err(
                        LookupError::NotHere
                        | LookupError::UnknownTopicId
                        | LookupError::UnknownTopicOrPartition,
                    ) => Known::NotYet,
                }
            } else {
                Known::Elsewhere
            };
            let mut view = view(broker.identity.node_id, index, state, known);
            let is_away = |node: NodeId| image.broker(node).is_none_or(|broker| broker.fenced);
            // A leader that a client cannot reach is none, whatever this broker last heard of it.
            let leader = NodeId::new(view.leader);
            if leader != broker.identity.node_id && view.leader >= 0 && is_away(leader) {
                view.leader = NO_LEADER;
                view.error = ErrorCode::LeaderNotAvailable;
            }
            view.offline.extend(
                state
                    .replicas
                    .iter()
                    .filter(|node| is_away(**node))
                    .map(|node| node.get()),
            );
            view.offline.sort_unstable();
            view.offline.dedup();
            view
        })
        .collect()
}

/// What this broker knows of a partition.
enum Known {
    /// It holds it.
    Open(Leadership),
    /// It is to hold it and cannot.
    Unopenable,
    /// It is to hold it and does not yet.
    NotYet,
    /// Others hold it.
    Elsewhere,
}

fn view(
    node: NodeId,
    index: PartitionIndex,
    state: &PartitionState,
    known: Known,
) -> PartitionView {
    let mut offline = Vec::new();
    // Others may lead what is not open here; that this node does, the metadata only remembers.
    let others_lead = state.leader.filter(|leader| *leader != node);
    let (leader, epoch) = match known {
        Known::Open(leadership) => {
            let (leader, epoch) = match leadership {
                Leadership::Leader { epoch, .. } => (Some(node), epoch),
                Leadership::Follower { leader, epoch } => (leader, epoch),
                Leadership::Unknown => (None, LeaderEpoch::NONE),
            };
            if epoch > state.leader_epoch {
                (leader, epoch)
            } else if epoch == state.leader_epoch {
                (leader.or(others_lead), epoch)
            } else {
                (others_lead, state.leader_epoch)
            }
        }
        Known::Elsewhere => (state.leader, state.leader_epoch),
        Known::NotYet => (others_lead, state.leader_epoch),
        Known::Unopenable => {
            offline.push(node.get());
            (others_lead, state.leader_epoch)
        }
    };
    PartitionView {
        error: match leader {
            Some(_) => ErrorCode::None,
            None => ErrorCode::LeaderNotAvailable,
        },
        index: index.get(),
        leader: leader.map_or(NO_LEADER, NodeId::get),
        leader_epoch: epoch.max(LeaderEpoch::new(0)).get(),
        replicas: ids(&state.replicas),
        isr: ids(&state.isr),
        offline,
    }
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().copied().map(NodeId::get).collect()
}

/// A broker as a client reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerView {
    /// Its id.
    pub id: i32,
    /// Host to connect to.
    pub host: StrBytes,
    /// Port to connect to.
    pub port: i32,
    /// Its rack.
    pub rack: Option<StrBytes>,
    /// Whether it may not lead.
    pub is_fenced: bool,
}

/// The broker that clients are told to take for the controller: the one that leads the metadata, or
/// this one, which passes requests on.
pub fn controller(broker: &BrokerContext, image: &MetadataImage) -> NodeId {
    broker
        .metadata
        .controller()
        .filter(|node| image.broker(*node).is_some())
        .unwrap_or(broker.identity.node_id)
}

/// Brokers that have a listener of the name that the client came through. Of this broker the
/// address is the one that the connection's own listener advertises.
pub fn brokers(context: &RequestContext, image: &MetadataImage) -> Vec<BrokerView> {
    image
        .brokers()
        .filter_map(|(id, registration)| view_of(context, id, registration))
        .collect()
}

/// One broker as [`brokers`] shows it.
pub fn broker(context: &RequestContext, image: &MetadataImage, id: NodeId) -> Option<BrokerView> {
    view_of(context, id, image.broker(id)?)
}

fn view_of(
    context: &RequestContext,
    id: NodeId,
    registration: &BrokerRegistration,
) -> Option<BrokerView> {
    let (host, port) = if id == context.broker.identity.node_id {
        let connection = &context.connection;
        (
            connection.advertised_host.as_str(),
            connection.advertised_port,
        )
    } else {
        let endpoint = registration
            .endpoints
            .iter()
            .find(|endpoint| endpoint.name == context.connection.listener_name)?;
        (endpoint.host.as_str(), endpoint.port)
    };
    Some(BrokerView {
        id: id.get(),
        host: StrBytes::from(host),
        port: i32::from(port),
        rack: registration.rack.as_deref().map(StrBytes::from),
        is_fenced: registration.fenced,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> PartitionState {
        PartitionState {
            replicas: vec![NodeId::new(1), NodeId::new(2)],
            isr: vec![NodeId::new(1)],
            removing_replicas: vec![],
            adding_replicas: vec![],
            leader: Some(NodeId::new(2)),
            leader_epoch: LeaderEpoch::new(4),
            partition_epoch: 0,
            directories: vec![],
            begun: None,
        }
    }

    fn seen(known: Known) -> PartitionView {
        view(NodeId::new(1), PartitionIndex::new(3), &state(), known)
    }

    #[test]
    fn the_group_knows_the_leader_better_than_the_metadata() {
        let epoch = LeaderEpoch::new(7);
        let led = seen(Known::Open(Leadership::Leader { epoch, ready: true }));
        assert_eq!((led.leader, led.leader_epoch), (1, 7));
        assert_eq!(led.error, ErrorCode::None);
        assert_eq!((led.replicas, led.isr, led.index), (vec![1, 2], vec![1], 3));
        let elsewhere = seen(Known::Elsewhere);
        assert_eq!((elsewhere.leader, elsewhere.leader_epoch), (2, 4));
    }

    #[test]
    fn the_metadata_counts_where_it_knows_of_a_later_term_than_the_group_here() {
        let epoch = LeaderEpoch::new(3);
        let behind = seen(Known::Open(Leadership::Follower {
            leader: Some(NodeId::new(1)),
            epoch,
        }));
        assert_eq!((behind.leader, behind.leader_epoch), (2, 4));
        let epoch = LeaderEpoch::new(4);
        let quiet = seen(Known::Open(Leadership::Follower {
            leader: None,
            epoch,
        }));
        assert_eq!((quiet.leader, quiet.leader_epoch), (2, 4));
    }

    #[test]
    fn a_partition_that_is_not_open_here_is_led_by_others_or_nobody() {
        assert_eq!(seen(Known::NotYet).leader, 2);
        assert_eq!(seen(Known::Unopenable).offline, [1]);
        let mut remembered = state();
        remembered.leader = Some(NodeId::new(1));
        let at = PartitionIndex::new(3);
        let not_yet = view(NodeId::new(1), at, &remembered, Known::NotYet);
        assert_eq!(
            (not_yet.leader, not_yet.error),
            (NO_LEADER, ErrorCode::LeaderNotAvailable)
        );
        assert!(not_yet.offline.is_empty());
    }
}
