//! What an administrator asks of a cluster: topics on chosen nodes, reassignments, elections, placements.
//!
//! Each question goes once to a node that runs; what it says is handed back, refusals included. Who wants something to
//! happen at last asks again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::create_topics_request::CreatableReplicaAssignment;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, CreateTopicsRequest, ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
};

use super::history::Partition;
use super::{Cluster, NodeNumber};
use crate::requests::{Topic, creatable, metadata_of};
use crate::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(20);
const TIMEOUT_MS: i32 = 5_000;

/// The replicas of each partition, the preferred leader first.
pub type Placement = BTreeMap<Partition, Vec<NodeNumber>>;

/// A connection to a node that runs.
pub fn connect_to_any(cluster: &mut Cluster) -> Result<Wire> {
    let running = cluster.running()?;
    let number = *running.first().context("no node runs")?;
    connect(cluster, number)
}

/// A connection to this node.
pub fn connect(cluster: &mut Cluster, number: NodeNumber) -> Result<Wire> {
    Wire::connect_within(cluster.node(number)?.addresses().broker, PATIENCE)
}

/// Asks for a topic with these replicas, one list a partition, or where there is none with so many copies.
pub fn ask_for_topic(
    wire: &mut Wire,
    name: &str,
    replicas: &[&[NodeNumber]],
    copies: i16,
) -> Result<CreatableTopicResult> {
    let assignments = (0..)
        .zip(replicas)
        .map(|(index, brokers)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(index)
                .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
        })
        .collect();
    let chosen = !replicas.is_empty();
    let topic = creatable(name, if chosen { -1 } else { 1 }, &[])
        .with_replication_factor(if chosen { -1 } else { copies })
        .with_assignments(assignments);
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(TIMEOUT_MS)
        .with_topics(vec![topic]);
    let answer = wire.call(7, &request)?;
    answer
        .topics
        .into_iter()
        .next()
        .context("no topic in the answer")
}

/// The replicas of a topic's partitions, as a node that runs knows them.
pub fn placement(cluster: &mut Cluster, topic: &Topic) -> Result<Placement> {
    let metadata = connect_to_any(cluster)?.call(9, &metadata_of(&topic.name))?;
    Ok(metadata
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|row| {
            let replicas = row.replica_nodes.iter().map(|node| node.0).collect();
            (row.partition_index, replicas)
        })
        .collect())
}

/// Asks for other replicas; the codes and sentences of what of it was refused.
pub fn reassign(
    wire: &mut Wire,
    topic: &Topic,
    placement: &Placement,
) -> Result<Vec<(i16, String)>> {
    let partitions = placement
        .iter()
        .map(|(&partition, replicas)| {
            let replicas = replicas.iter().map(|&number| BrokerId(number)).collect();
            ReassignablePartition::default()
                .with_partition_index(partition)
                .with_replicas(Some(replicas))
        })
        .collect();
    let request = AlterPartitionReassignmentsRequest::default()
        .with_timeout_ms(TIMEOUT_MS)
        .with_topics(vec![
            ReassignableTopic::default()
                .with_name(topic.name())
                .with_partitions(partitions),
        ]);
    let answer = wire.call(0, &request)?;
    let rows = answer.responses.iter().flat_map(|topic| &topic.partitions);
    Ok(rows
        .map(|row| (row.error_code, &row.error_message))
        .chain([(answer.error_code, &answer.error_message)])
        .filter(|(code, _)| *code != 0)
        .map(|(code, message)| {
            let message = message.as_ref().map_or("", |message| message.as_str());
            (code, message.to_owned())
        })
        .collect())
}

/// Partitions whose replicas are being changed.
pub fn reassigning(wire: &mut Wire) -> Result<usize> {
    let request = ListPartitionReassignmentsRequest::default()
        .with_timeout_ms(TIMEOUT_MS)
        .with_topics(None);
    let answer = wire.call(0, &request)?;
    Ok(answer
        .topics
        .iter()
        .map(|topic| topic.partitions.len())
        .sum())
}

/// Asks for the first replicas of all partitions to lead.
pub fn elect_preferred(wire: &mut Wire, topic: &Topic, partitions: i32) -> Result<()> {
    let elect = ElectLeadersRequest::default()
        .with_election_type(0)
        .with_timeout_ms(3_000)
        .with_topic_partitions(Some(vec![
            TopicPartitions::default()
                .with_topic(topic.name())
                .with_partitions((0..partitions).collect()),
        ]));
    wire.call(2, &elect)?;
    Ok(())
}
