//! What the tests of this crate share: seeds, random bytes that look like messages, and the list
//! of served APIs as types.

#![allow(
    dead_code,
    unused_macros,
    reason = "every test binary uses a part of it"
)]

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;

/// Seed of this run: `ODRADEK_SEED` to replay one, otherwise the time of day.
pub fn seed() -> u64 {
    std::env::var("ODRADEK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |elapsed| elapsed.as_nanos() as u64)
        })
}

/// When a fuzz loop has to stop: after `ODRADEK_FUZZ_SECONDS`, two by default.
pub fn fuzz_deadline() -> Instant {
    let seconds = std::env::var("ODRADEK_FUZZ_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(2.0);
    Instant::now() + Duration::from_secs_f64(seconds)
}

/// Bytes in which lengths are often small, so that decoders get far.
pub fn plausible_bytes(rng: &mut StdRng, len: usize) -> Vec<u8> {
    // From one buffer to the next, more or less crowded.
    let zeros = rng.random_range(0.02..0.98);
    let ones = rng.random_range(0.0..0.9);
    (0..len)
        .map(|_| {
            if rng.random_bool(zeros) {
                return 0;
            }
            if rng.random_bool(ones) {
                return 1;
            }
            match rng.random_range(0..10) {
                0..=4 => rng.random_range(1..4),
                5..=7 => rng.random_range(b'a'..=b'z'),
                8 => rng.random_range(4..64),
                _ => rng.random(),
            }
        })
        .collect()
}

/// Calls `$callback!(Name, NameRequest, NameResponse)` for every served API.
macro_rules! for_every_served_api {
    ($callback:ident) => {
        $callback!(Produce, ProduceRequest, ProduceResponse);
        $callback!(Fetch, FetchRequest, FetchResponse);
        $callback!(ListOffsets, ListOffsetsRequest, ListOffsetsResponse);
        $callback!(Metadata, MetadataRequest, MetadataResponse);
        $callback!(OffsetCommit, OffsetCommitRequest, OffsetCommitResponse);
        $callback!(OffsetFetch, OffsetFetchRequest, OffsetFetchResponse);
        $callback!(
            FindCoordinator,
            FindCoordinatorRequest,
            FindCoordinatorResponse
        );
        $callback!(JoinGroup, JoinGroupRequest, JoinGroupResponse);
        $callback!(Heartbeat, HeartbeatRequest, HeartbeatResponse);
        $callback!(LeaveGroup, LeaveGroupRequest, LeaveGroupResponse);
        $callback!(SyncGroup, SyncGroupRequest, SyncGroupResponse);
        $callback!(
            DescribeGroups,
            DescribeGroupsRequest,
            DescribeGroupsResponse
        );
        $callback!(ListGroups, ListGroupsRequest, ListGroupsResponse);
        $callback!(DeleteGroups, DeleteGroupsRequest, DeleteGroupsResponse);
        $callback!(OffsetDelete, OffsetDeleteRequest, OffsetDeleteResponse);
        $callback!(
            ConsumerGroupHeartbeat,
            ConsumerGroupHeartbeatRequest,
            ConsumerGroupHeartbeatResponse
        );
        $callback!(
            ConsumerGroupDescribe,
            ConsumerGroupDescribeRequest,
            ConsumerGroupDescribeResponse
        );
        $callback!(
            AddPartitionsToTxn,
            AddPartitionsToTxnRequest,
            AddPartitionsToTxnResponse
        );
        $callback!(
            AddOffsetsToTxn,
            AddOffsetsToTxnRequest,
            AddOffsetsToTxnResponse
        );
        $callback!(EndTxn, EndTxnRequest, EndTxnResponse);
        $callback!(
            WriteTxnMarkers,
            WriteTxnMarkersRequest,
            WriteTxnMarkersResponse
        );
        $callback!(
            TxnOffsetCommit,
            TxnOffsetCommitRequest,
            TxnOffsetCommitResponse
        );
        $callback!(
            DescribeTransactions,
            DescribeTransactionsRequest,
            DescribeTransactionsResponse
        );
        $callback!(
            ListTransactions,
            ListTransactionsRequest,
            ListTransactionsResponse
        );
        $callback!(ElectLeaders, ElectLeadersRequest, ElectLeadersResponse);
        $callback!(
            AlterPartitionReassignments,
            AlterPartitionReassignmentsRequest,
            AlterPartitionReassignmentsResponse
        );
        $callback!(
            ListPartitionReassignments,
            ListPartitionReassignmentsRequest,
            ListPartitionReassignmentsResponse
        );
        $callback!(
            DescribeQuorum,
            DescribeQuorumRequest,
            DescribeQuorumResponse
        );
        $callback!(
            UpdateFeatures,
            UpdateFeaturesRequest,
            UpdateFeaturesResponse
        );
        $callback!(AddRaftVoter, AddRaftVoterRequest, AddRaftVoterResponse);
        $callback!(
            RemoveRaftVoter,
            RemoveRaftVoterRequest,
            RemoveRaftVoterResponse
        );
        $callback!(
            UnregisterBroker,
            UnregisterBrokerRequest,
            UnregisterBrokerResponse
        );
        $callback!(ApiVersions, ApiVersionsRequest, ApiVersionsResponse);
        $callback!(CreateTopics, CreateTopicsRequest, CreateTopicsResponse);
        $callback!(DeleteTopics, DeleteTopicsRequest, DeleteTopicsResponse);
        $callback!(DeleteRecords, DeleteRecordsRequest, DeleteRecordsResponse);
        $callback!(
            InitProducerId,
            InitProducerIdRequest,
            InitProducerIdResponse
        );
        $callback!(
            OffsetForLeaderEpoch,
            OffsetForLeaderEpochRequest,
            OffsetForLeaderEpochResponse
        );
        $callback!(
            DescribeConfigs,
            DescribeConfigsRequest,
            DescribeConfigsResponse
        );
        $callback!(AlterConfigs, AlterConfigsRequest, AlterConfigsResponse);
        $callback!(
            AlterReplicaLogDirs,
            AlterReplicaLogDirsRequest,
            AlterReplicaLogDirsResponse
        );
        $callback!(
            DescribeLogDirs,
            DescribeLogDirsRequest,
            DescribeLogDirsResponse
        );
        $callback!(
            CreatePartitions,
            CreatePartitionsRequest,
            CreatePartitionsResponse
        );
        $callback!(
            IncrementalAlterConfigs,
            IncrementalAlterConfigsRequest,
            IncrementalAlterConfigsResponse
        );
        $callback!(
            DescribeCluster,
            DescribeClusterRequest,
            DescribeClusterResponse
        );
        $callback!(
            DescribeProducers,
            DescribeProducersRequest,
            DescribeProducersResponse
        );
        $callback!(
            GetTelemetrySubscriptions,
            GetTelemetrySubscriptionsRequest,
            GetTelemetrySubscriptionsResponse
        );
        $callback!(PushTelemetry, PushTelemetryRequest, PushTelemetryResponse);
        $callback!(
            ListConfigResources,
            ListConfigResourcesRequest,
            ListConfigResourcesResponse
        );
        $callback!(
            DescribeTopicPartitions,
            DescribeTopicPartitionsRequest,
            DescribeTopicPartitionsResponse
        );
    };
}
