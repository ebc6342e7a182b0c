//! Which comparison with Apache Kafka sends which API at which versions.
//!
//! Every API and version that is advertised must stand here: a test reads ApiVersions and looks for each. A row cannot
//! claim what is not so: a comparison fails if it did not send what its rows say.

use kafka_protocol::messages::ApiKey;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// The comparison.
    pub case: &'static str,
    /// The API.
    pub api: ApiKey,
    min: i16,
    max: i16,
}

impl Compared {
    /// The versions that are sent.
    pub fn versions(&self) -> std::ops::RangeInclusive<i16> {
        self.min..=self.max
    }
}

macro_rules! compared {
    ($($case:ident $api:ident $min:literal..=$max:literal;)*) => {
        &[$(Compared { case: stringify!($case), api: ApiKey::$api, min: $min, max: $max }),*]
    };
}

/// At least one comparison for each advertised API and version.
pub const COMPARED: &[Compared] = compared! {
    produce_of_versions_that_are_listed_and_refused Produce 0..=2;
    produce_with_every_codec Produce 3..=13;
    fetch_at_every_offset Fetch 4..=18;
    list_offsets ListOffsets 1..=11;
    metadata_by_name Metadata 0..=13;
    offsets_without_a_group_membership OffsetCommit 2..=10;
    offset_fetch_of_what_was_never_committed OffsetFetch 1..=10;
    find_coordinator FindCoordinator 0..=6;
    one_member_from_join_to_leave JoinGroup 0..=9;
    one_member_from_join_to_leave Heartbeat 0..=4;
    one_member_from_join_to_leave SyncGroup 0..=5;
    one_member_from_join_to_leave LeaveGroup 0..=5;
    describe_groups DescribeGroups 0..=6;
    list_groups ListGroups 0..=5;
    api_versions ApiVersions 0..=5;
    create_topics CreateTopics 2..=7;
    delete_topics DeleteTopics 1..=6;
    delete_records DeleteRecords 0..=2;
    init_producer_id_without_a_transaction InitProducerId 0..=5;
    init_producer_id_of_transactions InitProducerId 0..=5;
    offset_for_leader_epoch OffsetForLeaderEpoch 2..=4;
    a_transaction_from_begin_to_end AddPartitionsToTxn 0..=5;
    offsets_in_transactions AddOffsetsToTxn 0..=4;
    a_transaction_from_begin_to_end EndTxn 0..=5;
    write_txn_markers WriteTxnMarkers 1..=2;
    offsets_in_transactions TxnOffsetCommit 0..=6;
    produce_in_a_transaction Produce 3..=13;
    describe_configs_of_a_topic DescribeConfigs 1..=4;
    alter_configs_replaces_everything AlterConfigs 0..=2;
    alter_replica_log_dirs AlterReplicaLogDirs 1..=2;
    describe_log_dirs DescribeLogDirs 1..=5;
    create_partitions CreatePartitions 0..=3;
    delete_groups DeleteGroups 0..=3;
    elect_leaders ElectLeaders 0..=2;
    incremental_alter_configs_of_a_topic IncrementalAlterConfigs 0..=1;
    alter_partition_reassignments AlterPartitionReassignments 0..=1;
    list_partition_reassignments ListPartitionReassignments 0..=0;
    offset_delete OffsetDelete 0..=0;
    describe_quorum DescribeQuorum 0..=2;
    update_features UpdateFeatures 0..=2;
    unregister_broker UnregisterBroker 0..=0;
    describe_transactions DescribeTransactions 0..=0;
    list_transactions ListTransactions 0..=2;
    describe_cluster DescribeCluster 0..=2;
    describe_producers DescribeProducers 0..=0;
    one_consumer_from_join_to_leave ConsumerGroupHeartbeat 0..=1;
    consumer_group_describe ConsumerGroupDescribe 0..=1;
    list_config_resources ListConfigResources 0..=1;
    client_metrics_of_clients GetTelemetrySubscriptions 0..=0;
    client_metrics_of_clients PushTelemetry 0..=0;
    describe_topic_partitions DescribeTopicPartitions 0..=0;
    voters_of_three_nodes AddRaftVoter 0..=1;
    voters_of_three_nodes RemoveRaftVoter 0..=0;
};
