//! The APIs of Kafka's protocol, and the one list of those that are served.
//!
//! What a broker advertises is [`served`] and nothing else: never a codec's own table. Dispatch
//! takes its versions from here too, and a test sends every advertised version.

macro_rules! api_keys {
    ($($key:literal $name:ident)*) => {
        /// An API of Kafka's protocol, by its key. Complete, whether served or not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("Key ", $key, ".")]
                $name = $key,
            )*
        }

        impl ApiKey {
            /// Every API, in ascending order of keys.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The API of a key on the wire, or `None` if there is none.
            pub const fn from_key(key: i16) -> Option<Self> {
                match key {
                    $($key => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Kafka's name for it, such as `OffsetForLeaderEpoch`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

api_keys! {
    0 Produce
    1 Fetch
    2 ListOffsets
    3 Metadata
    4 LeaderAndIsr
    5 StopReplica
    6 UpdateMetadata
    7 ControlledShutdown
    8 OffsetCommit
    9 OffsetFetch
    10 FindCoordinator
    11 JoinGroup
    12 Heartbeat
    13 LeaveGroup
    14 SyncGroup
    15 DescribeGroups
    16 ListGroups
    17 SaslHandshake
    18 ApiVersions
    19 CreateTopics
    20 DeleteTopics
    21 DeleteRecords
    22 InitProducerId
    23 OffsetForLeaderEpoch
    24 AddPartitionsToTxn
    25 AddOffsetsToTxn
    26 EndTxn
    27 WriteTxnMarkers
    28 TxnOffsetCommit
    29 DescribeAcls
    30 CreateAcls
    31 DeleteAcls
    32 DescribeConfigs
    33 AlterConfigs
    34 AlterReplicaLogDirs
    35 DescribeLogDirs
    36 SaslAuthenticate
    37 CreatePartitions
    38 CreateDelegationToken
    39 RenewDelegationToken
    40 ExpireDelegationToken
    41 DescribeDelegationToken
    42 DeleteGroups
    43 ElectLeaders
    44 IncrementalAlterConfigs
    45 AlterPartitionReassignments
    46 ListPartitionReassignments
    47 OffsetDelete
    48 DescribeClientQuotas
    49 AlterClientQuotas
    50 DescribeUserScramCredentials
    51 AlterUserScramCredentials
    52 Vote
    53 BeginQuorumEpoch
    54 EndQuorumEpoch
    55 DescribeQuorum
    56 AlterPartition
    57 UpdateFeatures
    58 Envelope
    59 FetchSnapshot
    60 DescribeCluster
    61 DescribeProducers
    62 BrokerRegistration
    63 BrokerHeartbeat
    64 UnregisterBroker
    65 DescribeTransactions
    66 ListTransactions
    67 AllocateProducerIds
    68 ConsumerGroupHeartbeat
    69 ConsumerGroupDescribe
    70 ControllerRegistration
    71 GetTelemetrySubscriptions
    72 PushTelemetry
    73 AssignReplicasToDirs
    74 ListConfigResources
    75 DescribeTopicPartitions
    76 ShareGroupHeartbeat
    77 ShareGroupDescribe
    78 ShareFetch
    79 ShareAcknowledge
    80 AddRaftVoter
    81 RemoveRaftVoter
    82 UpdateRaftVoter
    83 InitializeShareGroupState
    84 ReadShareGroupState
    85 WriteShareGroupState
    86 DeleteShareGroupState
    87 ReadShareGroupStateSummary
    88 StreamsGroupHeartbeat
    89 StreamsGroupDescribe
    90 DescribeShareGroupOffsets
    91 AlterShareGroupOffsets
    92 DeleteShareGroupOffsets
    93 StreamsGroupTopologyDescriptionUpdate
    94 UnregisterController
}

impl ApiKey {
    /// The key on the wire.
    pub const fn key(self) -> i16 {
        self as i16
    }
}

/// An API that is served, with the versions ApiVersions advertises for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedApi {
    /// The API.
    pub key: ApiKey,
    /// Lowest advertised version.
    pub min: i16,
    /// Highest advertised and answered version.
    pub max: i16,
    /// Lowest version that is answered. Above `min` only for Produce, whose versions 0–2 are
    /// listed for the sake of old clients' negotiation and refused when they come.
    pub min_answered: i16,
}

impl ServedApi {
    const fn new(key: ApiKey, min: i16, max: i16) -> Self {
        Self {
            key,
            min,
            max,
            min_answered: min,
        }
    }

    /// Whether a request at `version` is answered.
    pub const fn answers(self, version: i16) -> bool {
        self.min_answered <= version && version <= self.max
    }

    /// Whether a listener for controllers answers it to clients too, as Kafka's do: what is about the
    /// cluster, and nothing that is about records.
    pub const fn is_for_controllers(self) -> bool {
        matches!(
            self.key,
            ApiKey::ApiVersions
                | ApiKey::CreateTopics
                | ApiKey::DeleteTopics
                | ApiKey::DescribeConfigs
                | ApiKey::AlterConfigs
                | ApiKey::CreatePartitions
                | ApiKey::ElectLeaders
                | ApiKey::IncrementalAlterConfigs
                | ApiKey::AlterPartitionReassignments
                | ApiKey::ListPartitionReassignments
                | ApiKey::DescribeQuorum
                | ApiKey::UpdateFeatures
                | ApiKey::DescribeCluster
                | ApiKey::UnregisterBroker
                | ApiKey::AddRaftVoter
                | ApiKey::RemoveRaftVoter
        )
    }
}

/// Ascending by key; the versions are those of Apache Kafka 4.4.
static SERVED: &[ServedApi] = &[
    ServedApi {
        min_answered: 3,
        ..ServedApi::new(ApiKey::Produce, 0, 13)
    },
    ServedApi::new(ApiKey::Fetch, 4, 18),
    ServedApi::new(ApiKey::ListOffsets, 1, 11),
    ServedApi::new(ApiKey::Metadata, 0, 13),
    ServedApi::new(ApiKey::OffsetCommit, 2, 10),
    ServedApi::new(ApiKey::OffsetFetch, 1, 10),
    ServedApi::new(ApiKey::FindCoordinator, 0, 6),
    ServedApi::new(ApiKey::JoinGroup, 0, 9),
    ServedApi::new(ApiKey::Heartbeat, 0, 4),
    ServedApi::new(ApiKey::LeaveGroup, 0, 5),
    ServedApi::new(ApiKey::SyncGroup, 0, 5),
    ServedApi::new(ApiKey::DescribeGroups, 0, 6),
    ServedApi::new(ApiKey::ListGroups, 0, 5),
    ServedApi::new(ApiKey::ApiVersions, 0, 5),
    ServedApi::new(ApiKey::CreateTopics, 2, 7),
    ServedApi::new(ApiKey::DeleteTopics, 1, 6),
    ServedApi::new(ApiKey::DeleteRecords, 0, 2),
    ServedApi::new(ApiKey::InitProducerId, 0, 5),
    ServedApi::new(ApiKey::OffsetForLeaderEpoch, 2, 4),
    ServedApi::new(ApiKey::AddPartitionsToTxn, 0, 5),
    ServedApi::new(ApiKey::AddOffsetsToTxn, 0, 4),
    ServedApi::new(ApiKey::EndTxn, 0, 5),
    ServedApi::new(ApiKey::WriteTxnMarkers, 1, 2),
    ServedApi::new(ApiKey::TxnOffsetCommit, 0, 6),
    ServedApi::new(ApiKey::DescribeConfigs, 1, 4),
    ServedApi::new(ApiKey::AlterConfigs, 0, 2),
    ServedApi::new(ApiKey::AlterReplicaLogDirs, 1, 2),
    ServedApi::new(ApiKey::DescribeLogDirs, 1, 5),
    ServedApi::new(ApiKey::CreatePartitions, 0, 3),
    ServedApi::new(ApiKey::DeleteGroups, 0, 3),
    ServedApi::new(ApiKey::ElectLeaders, 0, 2),
    ServedApi::new(ApiKey::IncrementalAlterConfigs, 0, 1),
    ServedApi::new(ApiKey::AlterPartitionReassignments, 0, 1),
    ServedApi::new(ApiKey::ListPartitionReassignments, 0, 0),
    ServedApi::new(ApiKey::OffsetDelete, 0, 0),
    ServedApi::new(ApiKey::DescribeQuorum, 0, 2),
    ServedApi::new(ApiKey::UpdateFeatures, 0, 2),
    ServedApi::new(ApiKey::DescribeCluster, 0, 2),
    ServedApi::new(ApiKey::DescribeProducers, 0, 0),
    ServedApi::new(ApiKey::UnregisterBroker, 0, 0),
    ServedApi::new(ApiKey::DescribeTransactions, 0, 0),
    ServedApi::new(ApiKey::ListTransactions, 0, 2),
    ServedApi::new(ApiKey::ConsumerGroupHeartbeat, 0, 1),
    ServedApi::new(ApiKey::ConsumerGroupDescribe, 0, 1),
    ServedApi::new(ApiKey::GetTelemetrySubscriptions, 0, 0),
    ServedApi::new(ApiKey::PushTelemetry, 0, 0),
    ServedApi::new(ApiKey::ListConfigResources, 0, 1),
    ServedApi::new(ApiKey::DescribeTopicPartitions, 0, 0),
    ServedApi::new(ApiKey::AddRaftVoter, 0, 1),
    ServedApi::new(ApiKey::RemoveRaftVoter, 0, 0),
];

/// Every API that is served, ascending by key.
pub fn served() -> &'static [ServedApi] {
    SERVED
}

/// The served versions of the API with this key on the wire, or `None` if it is not served.
pub fn served_range(key: i16) -> Option<ServedApi> {
    SERVED
        .binary_search_by_key(&key, |api| api.key.key())
        .ok()
        .and_then(|at| SERVED.get(at).copied())
}

/// Whether a request of this API and version is "flexible" (KIP-482), by the codec's schemas.
/// Goes by the lowest flexible version only, so that versions of the future are told apart too.
pub fn request_is_flexible(key: ApiKey, version: i16) -> bool {
    let descriptors = kafka_wire::API_DESCRIPTORS;
    descriptors
        .binary_search_by_key(&key.key(), |descriptor| descriptor.api_key.value())
        .ok()
        .and_then(|at| descriptors.get(at))
        .and_then(|descriptor| descriptor.request.flexible_versions)
        .is_some_and(|flexible| version >= flexible.min().value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_contiguous_and_served_apis_ascend() {
        for (expected, &api) in (0..).zip(ApiKey::ALL) {
            assert_eq!(api.key(), expected);
            assert_eq!(ApiKey::from_key(expected), Some(api));
        }
        assert_eq!(ApiKey::from_key(95), None);
        assert_eq!(ApiKey::from_key(-1), None);
        assert!(SERVED.is_sorted_by_key(|api| api.key));
        for api in served() {
            assert_eq!(served_range(api.key.key()), Some(*api));
        }
        assert_eq!(served_range(ApiKey::Vote.key()), None);
    }

    #[test]
    fn the_document_lists_what_is_served() {
        let listed: Vec<&str> = include_str!("../../docs/PROTOCOL.md")
            .lines()
            .filter(|line| line.starts_with("| ") && line.split('|').count() == 5)
            .skip(1)
            .collect();
        let served: Vec<String> = served()
            .iter()
            .map(|api| {
                let versions = if api.min == api.max {
                    api.min.to_string()
                } else {
                    format!("{}–{}", api.min, api.max)
                };
                format!("| {} | {} | {versions} |", api.key.name(), api.key.key())
            })
            .collect();
        assert_eq!(listed, served);
    }

    #[test]
    fn codec_descriptors_ascend_by_key_and_cover_what_is_served() {
        assert!(kafka_wire::API_DESCRIPTORS.is_sorted_by_key(|d| d.api_key));
        for api in served() {
            let descriptor = kafka_wire::API_DESCRIPTORS
                .iter()
                .find(|descriptor| descriptor.api_key.value() == api.key.key())
                .unwrap_or_else(|| panic!("{:?} is missing from the codec", api.key));
            let supported = descriptor.supported_versions;
            assert_eq!(supported.min().value(), api.min_answered, "{api:?}");
            // The codec may know versions that Kafka has not released.
            assert!(supported.max().value() >= api.max, "{api:?}");
        }
    }

    #[test]
    fn flexibility_follows_the_schemas_even_beyond_the_newest_version() {
        assert!(!request_is_flexible(ApiKey::ApiVersions, 2));
        assert!(request_is_flexible(ApiKey::ApiVersions, 3));
        assert!(request_is_flexible(ApiKey::ApiVersions, 99));
        assert!(!request_is_flexible(ApiKey::Produce, 8));
        assert!(request_is_flexible(ApiKey::Produce, 9));
        assert!(!request_is_flexible(ApiKey::SaslHandshake, 1));
        assert!(!request_is_flexible(ApiKey::ControlledShutdown, 0));
    }
}
