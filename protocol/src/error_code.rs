//! Kafka's error codes: the numbers a response carries, their names, and whether a client may
//! try again.
//!
//! The table is complete for Apache Kafka 4.4, including codes of APIs that are not served, so
//! that a code read from elsewhere always has a name. The sentences are ours and are what a
//! response's `error_message` carries when the cause has nothing more precise to say.

use std::fmt;

macro_rules! error_codes {
    ($($code:literal $variant:ident $name:literal $retriable:ident $message:literal)*) => {
        /// An error code of the Kafka protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i16)]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "` (", $code, "): ", $message)]
                $variant = $code,
            )*
        }

        impl ErrorCode {
            /// Every code, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code for a number on the wire, or `None` if Kafka knows no such code.
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Kafka's name for it, such as `NOT_LEADER_OR_FOLLOWER`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// A sentence for a person. Empty for [`ErrorCode::None`].
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$variant => $message,)*
                }
            }

            /// Whether a client that gets this code may send the same request again.
            pub const fn retriable(self) -> bool {
                match self {
                    $(Self::$variant => error_codes!(@ $retriable),)*
                }
            }
        }
    };
    (@ retriable) => { true };
    (@ fatal) => { false };
}

error_codes! {
    -1 UnknownServerError "UNKNOWN_SERVER_ERROR" fatal "The server met an unexpected error while it handled the request."
    0 None "NONE" fatal ""
    1 OffsetOutOfRange "OFFSET_OUT_OF_RANGE" fatal "The offset is outside the range that the server holds."
    2 CorruptMessage "CORRUPT_MESSAGE" retriable "The record batch failed its checksum or has an impossible size or format."
    3 UnknownTopicOrPartition "UNKNOWN_TOPIC_OR_PARTITION" retriable "This server does not host this topic-partition."
    4 InvalidFetchSize "INVALID_FETCH_SIZE" fatal "The fetch size is invalid."
    5 LeaderNotAvailable "LEADER_NOT_AVAILABLE" retriable "The partition has no leader at the moment."
    6 NotLeaderOrFollower "NOT_LEADER_OR_FOLLOWER" retriable "This server does not lead the partition, or holds no replica of it."
    7 RequestTimedOut "REQUEST_TIMED_OUT" retriable "The request timed out."
    8 BrokerNotAvailable "BROKER_NOT_AVAILABLE" fatal "The broker is not available."
    9 ReplicaNotAvailable "REPLICA_NOT_AVAILABLE" retriable "The replica is not available for the topic-partition."
    10 MessageTooLarge "MESSAGE_TOO_LARGE" fatal "The batch is larger than the server accepts."
    11 StaleControllerEpoch "STALE_CONTROLLER_EPOCH" fatal "The controller has moved to another node."
    12 OffsetMetadataTooLarge "OFFSET_METADATA_TOO_LARGE" fatal "The metadata string of the offset commit is too large."
    13 NetworkException "NETWORK_EXCEPTION" retriable "The connection closed before a response arrived."
    14 CoordinatorLoadInProgress "COORDINATOR_LOAD_IN_PROGRESS" retriable "The coordinator is loading and cannot answer yet."
    15 CoordinatorNotAvailable "COORDINATOR_NOT_AVAILABLE" retriable "The coordinator is not available."
    16 NotCoordinator "NOT_COORDINATOR" retriable "This server is not the coordinator."
    17 InvalidTopicException "INVALID_TOPIC_EXCEPTION" fatal "The topic is not one this operation can be applied to."
    18 RecordListTooLarge "RECORD_LIST_TOO_LARGE" fatal "The batch is larger than a segment of the log may be."
    19 NotEnoughReplicas "NOT_ENOUGH_REPLICAS" retriable "Fewer replicas are in sync than required; nothing was written."
    20 NotEnoughReplicasAfterAppend "NOT_ENOUGH_REPLICAS_AFTER_APPEND" retriable "The batch was written, but to fewer replicas than required."
    21 InvalidRequiredAcks "INVALID_REQUIRED_ACKS" fatal "The number of required acks must be -1, 0 or 1."
    22 IllegalGeneration "ILLEGAL_GENERATION" fatal "The group generation is not the current one."
    23 InconsistentGroupProtocol "INCONSISTENT_GROUP_PROTOCOL" fatal "The member's protocols do not fit those of the group, or are missing."
    24 InvalidGroupId "INVALID_GROUP_ID" fatal "The group id is invalid."
    25 UnknownMemberId "UNKNOWN_MEMBER_ID" fatal "The coordinator does not know this member."
    26 InvalidSessionTimeout "INVALID_SESSION_TIMEOUT" fatal "The session timeout is outside group.min.session.timeout.ms and group.max.session.timeout.ms."
    27 RebalanceInProgress "REBALANCE_IN_PROGRESS" fatal "The group is rebalancing; the member must join again."
    28 InvalidCommitOffsetSize "INVALID_COMMIT_OFFSET_SIZE" fatal "The size of the offset commit is not valid."
    29 TopicAuthorizationFailed "TOPIC_AUTHORIZATION_FAILED" fatal "Not authorized for the topic."
    30 GroupAuthorizationFailed "GROUP_AUTHORIZATION_FAILED" fatal "Not authorized for the group."
    31 ClusterAuthorizationFailed "CLUSTER_AUTHORIZATION_FAILED" fatal "Not authorized for the cluster."
    32 InvalidTimestamp "INVALID_TIMESTAMP" fatal "The timestamp of a record is out of the accepted range."
    33 UnsupportedSaslMechanism "UNSUPPORTED_SASL_MECHANISM" fatal "The server does not offer this SASL mechanism."
    34 IllegalSaslState "ILLEGAL_SASL_STATE" fatal "The request does not fit the state of the SASL exchange."
    35 UnsupportedVersion "UNSUPPORTED_VERSION" fatal "The server does not support this version of the API."
    36 TopicAlreadyExists "TOPIC_ALREADY_EXISTS" fatal "A topic of this name already exists."
    37 InvalidPartitions "INVALID_PARTITIONS" fatal "The number of partitions is invalid."
    38 InvalidReplicationFactor "INVALID_REPLICATION_FACTOR" fatal "The replication factor is below 1 or above the number of available brokers."
    39 InvalidReplicaAssignment "INVALID_REPLICA_ASSIGNMENT" fatal "The replica assignment is invalid."
    40 InvalidConfig "INVALID_CONFIG" fatal "The configuration is invalid."
    41 NotController "NOT_CONTROLLER" retriable "This server is not the controller."
    42 InvalidRequest "INVALID_REQUEST" fatal "The request is malformed or contradicts itself."
    43 UnsupportedForMessageFormat "UNSUPPORTED_FOR_MESSAGE_FORMAT" fatal "The message format does not support the request."
    44 PolicyViolation "POLICY_VIOLATION" fatal "The request violates a configured policy."
    45 OutOfOrderSequenceNumber "OUT_OF_ORDER_SEQUENCE_NUMBER" fatal "The sequence number does not follow the last one."
    46 DuplicateSequenceNumber "DUPLICATE_SEQUENCE_NUMBER" fatal "The sequence number was seen before."
    47 InvalidProducerEpoch "INVALID_PRODUCER_EPOCH" fatal "The producer's epoch is older than the current one."
    48 InvalidTxnState "INVALID_TXN_STATE" fatal "The operation does not fit the state of the transaction."
    49 InvalidProducerIdMapping "INVALID_PRODUCER_ID_MAPPING" fatal "The producer id does not belong to the transactional id."
    50 InvalidTransactionTimeout "INVALID_TRANSACTION_TIMEOUT" fatal "The transaction timeout exceeds transaction.max.timeout.ms."
    51 ConcurrentTransactions "CONCURRENT_TRANSACTIONS" retriable "Another operation on the same transaction is under way."
    52 TransactionCoordinatorFenced "TRANSACTION_COORDINATOR_FENCED" fatal "The transaction coordinator is no longer the current one."
    53 TransactionalIdAuthorizationFailed "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" fatal "Not authorized for the transactional id."
    54 SecurityDisabled "SECURITY_DISABLED" fatal "Security features are disabled."
    55 OperationNotAttempted "OPERATION_NOT_ATTEMPTED" fatal "The operation was not tried because another one of the request failed."
    56 KafkaStorageError "KAFKA_STORAGE_ERROR" retriable "The disk that holds the log has failed."
    57 LogDirNotFound "LOG_DIR_NOT_FOUND" fatal "The log directory is not one of the configured ones."
    58 SaslAuthenticationFailed "SASL_AUTHENTICATION_FAILED" fatal "SASL authentication failed."
    59 UnknownProducerId "UNKNOWN_PRODUCER_ID" fatal "Nothing is known of this producer id; its records may have expired."
    60 ReassignmentInProgress "REASSIGNMENT_IN_PROGRESS" fatal "A reassignment of the partition is under way."
    61 DelegationTokenAuthDisabled "DELEGATION_TOKEN_AUTH_DISABLED" fatal "Delegation tokens are not enabled."
    62 DelegationTokenNotFound "DELEGATION_TOKEN_NOT_FOUND" fatal "The delegation token does not exist."
    63 DelegationTokenOwnerMismatch "DELEGATION_TOKEN_OWNER_MISMATCH" fatal "The principal is neither owner nor renewer of the token."
    64 DelegationTokenRequestNotAllowed "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" fatal "Delegation token requests are not allowed on this kind of connection."
    65 DelegationTokenAuthorizationFailed "DELEGATION_TOKEN_AUTHORIZATION_FAILED" fatal "Not authorized for the delegation token."
    66 DelegationTokenExpired "DELEGATION_TOKEN_EXPIRED" fatal "The delegation token has expired."
    67 InvalidPrincipalType "INVALID_PRINCIPAL_TYPE" fatal "The principal type is not supported."
    68 NonEmptyGroup "NON_EMPTY_GROUP" fatal "The group still has members."
    69 GroupIdNotFound "GROUP_ID_NOT_FOUND" fatal "The group does not exist."
    70 FetchSessionIdNotFound "FETCH_SESSION_ID_NOT_FOUND" retriable "The fetch session does not exist."
    71 InvalidFetchSessionEpoch "INVALID_FETCH_SESSION_EPOCH" retriable "The epoch of the fetch session is not the expected one."
    72 ListenerNotFound "LISTENER_NOT_FOUND" retriable "The leader has no listener of the name the request came in on."
    73 TopicDeletionDisabled "TOPIC_DELETION_DISABLED" fatal "Topic deletion is disabled."
    74 FencedLeaderEpoch "FENCED_LEADER_EPOCH" retriable "The leader epoch of the request is older than the server's."
    75 UnknownLeaderEpoch "UNKNOWN_LEADER_EPOCH" retriable "The leader epoch of the request is newer than the server's."
    76 UnsupportedCompressionType "UNSUPPORTED_COMPRESSION_TYPE" fatal "The compression type is not supported at this version of the API."
    77 StaleBrokerEpoch "STALE_BROKER_EPOCH" fatal "The broker's epoch has changed."
    78 OffsetNotAvailable "OFFSET_NOT_AVAILABLE" retriable "The new leader does not know its high watermark yet."
    79 MemberIdRequired "MEMBER_ID_REQUIRED" fatal "The member must join again with the member id it was given."
    80 PreferredLeaderNotAvailable "PREFERRED_LEADER_NOT_AVAILABLE" retriable "The preferred leader is not available."
    81 GroupMaxSizeReached "GROUP_MAX_SIZE_REACHED" fatal "The group has reached its largest size."
    82 FencedInstanceId "FENCED_INSTANCE_ID" fatal "Another member took over this group.instance.id."
    83 EligibleLeadersNotAvailable "ELIGIBLE_LEADERS_NOT_AVAILABLE" retriable "No eligible leader is available."
    84 ElectionNotNeeded "ELECTION_NOT_NEEDED" retriable "The partition needs no leader election."
    85 NoReassignmentInProgress "NO_REASSIGNMENT_IN_PROGRESS" fatal "No reassignment of the partition is under way."
    86 GroupSubscribedToTopic "GROUP_SUBSCRIBED_TO_TOPIC" fatal "The group is subscribed to the topic; its offsets cannot be deleted."
    87 InvalidRecord "INVALID_RECORD" fatal "The server's validation refused a record."
    88 UnstableOffsetCommit "UNSTABLE_OFFSET_COMMIT" retriable "Offsets are staged in a transaction that is still open."
    89 ThrottlingQuotaExceeded "THROTTLING_QUOTA_EXCEEDED" retriable "The quota is exhausted."
    90 ProducerFenced "PRODUCER_FENCED" fatal "A newer producer uses the same transactional id."
    91 ResourceNotFound "RESOURCE_NOT_FOUND" fatal "The request names a resource that does not exist."
    92 DuplicateResource "DUPLICATE_RESOURCE" fatal "The request names the same resource twice."
    93 UnacceptableCredential "UNACCEPTABLE_CREDENTIAL" fatal "The credential does not meet the requirements."
    94 InconsistentVoterSet "INCONSISTENT_VOTER_SET" fatal "Sender or receiver is not one of the expected voters."
    95 InvalidUpdateVersion "INVALID_UPDATE_VERSION" fatal "The update version is invalid."
    96 FeatureUpdateFailed "FEATURE_UPDATE_FAILED" fatal "The finalized features could not be updated."
    97 PrincipalDeserializationFailure "PRINCIPAL_DESERIALIZATION_FAILURE" fatal "The forwarded principal could not be read."
    98 SnapshotNotFound "SNAPSHOT_NOT_FOUND" fatal "The snapshot does not exist."
    99 PositionOutOfRange "POSITION_OUT_OF_RANGE" fatal "The position is outside the snapshot."
    100 UnknownTopicId "UNKNOWN_TOPIC_ID" retriable "This server does not host a topic of this id."
    101 DuplicateBrokerRegistration "DUPLICATE_BROKER_REGISTRATION" fatal "The broker id is already in use."
    102 BrokerIdNotRegistered "BROKER_ID_NOT_REGISTERED" fatal "The broker id is not registered."
    103 InconsistentTopicId "INCONSISTENT_TOPIC_ID" retriable "The topic id of the request is not that of the log."
    104 InconsistentClusterId "INCONSISTENT_CLUSTER_ID" fatal "The cluster id of the request is not the server's."
    105 TransactionalIdNotFound "TRANSACTIONAL_ID_NOT_FOUND" fatal "The transactional id does not exist."
    106 FetchSessionTopicIdError "FETCH_SESSION_TOPIC_ID_ERROR" retriable "The fetch session mixes requests with and without topic ids."
    107 IneligibleReplica "INELIGIBLE_REPLICA" fatal "The new set of in-sync replicas holds an ineligible one."
    108 NewLeaderElected "NEW_LEADER_ELECTED" fatal "The partition was changed and has a new leader."
    109 OffsetMovedToTieredStorage "OFFSET_MOVED_TO_TIERED_STORAGE" fatal "The offset has moved to tiered storage."
    110 FencedMemberEpoch "FENCED_MEMBER_EPOCH" fatal "The member epoch is fenced; give up all partitions and join again."
    111 UnreleasedInstanceId "UNRELEASED_INSTANCE_ID" fatal "Another member still uses this instance id."
    112 UnsupportedAssignor "UNSUPPORTED_ASSIGNOR" fatal "The group does not support the assignor."
    113 StaleMemberEpoch "STALE_MEMBER_EPOCH" fatal "The member epoch is stale; retry after the next heartbeat."
    114 MismatchedEndpointType "MISMATCHED_ENDPOINT_TYPE" fatal "The request went to the wrong kind of endpoint."
    115 UnsupportedEndpointType "UNSUPPORTED_ENDPOINT_TYPE" fatal "This kind of endpoint is not supported."
    116 UnknownControllerId "UNKNOWN_CONTROLLER_ID" fatal "The controller id is not known."
    117 UnknownSubscriptionId "UNKNOWN_SUBSCRIPTION_ID" fatal "The telemetry subscription id is unknown or outdated."
    118 TelemetryTooLarge "TELEMETRY_TOO_LARGE" fatal "The telemetry push is larger than the server accepts."
    119 InvalidRegistration "INVALID_REGISTRATION" fatal "The broker registration is invalid."
    120 TransactionAbortable "TRANSACTION_ABORTABLE" fatal "The transaction failed; it can be aborted to go on."
    121 InvalidRecordState "INVALID_RECORD_STATE" fatal "The record is not in a state that can be acknowledged."
    122 ShareSessionNotFound "SHARE_SESSION_NOT_FOUND" retriable "The share session does not exist."
    123 InvalidShareSessionEpoch "INVALID_SHARE_SESSION_EPOCH" retriable "The epoch of the share session is not the expected one."
    124 FencedStateEpoch "FENCED_STATE_EPOCH" fatal "The state epoch of the share group does not match."
    125 InvalidVoterKey "INVALID_VOTER_KEY" fatal "The voter key is not that of the receiving replica."
    126 DuplicateVoter "DUPLICATE_VOTER" fatal "The voter is already in the set of voters."
    127 VoterNotFound "VOTER_NOT_FOUND" fatal "The voter is not in the set of voters."
    128 InvalidRegularExpression "INVALID_REGULAR_EXPRESSION" fatal "The regular expression is not valid."
    129 RebootstrapRequired "REBOOTSTRAP_REQUIRED" fatal "The client's metadata is stale; it must bootstrap again."
    130 StreamsInvalidTopology "STREAMS_INVALID_TOPOLOGY" fatal "The topology is invalid."
    131 StreamsInvalidTopologyEpoch "STREAMS_INVALID_TOPOLOGY_EPOCH" fatal "The topology epoch is invalid."
    132 StreamsTopologyFenced "STREAMS_TOPOLOGY_FENCED" fatal "The topology epoch is outdated."
    133 ShareSessionLimitReached "SHARE_SESSION_LIMIT_REACHED" retriable "The number of share sessions has reached its limit."
    134 GroupDeletionFailed "GROUP_DELETION_FAILED" fatal "The group could not be deleted."
    135 StreamsTopologyDescriptionUpdateFailed "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED" fatal "The description of the topology could not be updated."
    136 ControllerIdNotRegistered "CONTROLLER_ID_NOT_REGISTERED" fatal "The controller id is not registered."
}

#[expect(
    clippy::derivable_impls,
    reason = "the macro cannot mark one of its variants"
)]
impl Default for ErrorCode {
    fn default() -> Self {
        Self::None
    }
}

impl ErrorCode {
    /// The number on the wire.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Whether it says "no error".
    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }
}

impl From<ErrorCode> for i16 {
    fn from(code: ErrorCode) -> Self {
        code.code()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_number_one_name_and_a_sentence() {
        let mut expected = -1;
        for &code in ErrorCode::ALL {
            assert_eq!(code.code(), expected, "codes are contiguous");
            assert_eq!(ErrorCode::from_code(expected), Some(code));
            assert_eq!(code.message().is_empty(), code.is_none());
            expected += 1;
        }
        assert_eq!(ErrorCode::from_code(expected), None);
        assert_eq!(ErrorCode::from_code(-2), None);
    }

    #[test]
    fn numbers_and_retriability_agree_with_an_independent_client_codec() {
        use kafka_protocol::ResponseError;
        for &code in ErrorCode::ALL {
            let Some(theirs) = ResponseError::try_from_code(code.code()) else {
                assert!(code.is_none());
                continue;
            };
            if matches!(theirs, ResponseError::Unknown(_)) {
                continue;
            }
            let name: String = code.name().replace('_', "").to_lowercase();
            assert_eq!(format!("{theirs:?}").to_lowercase(), name);
            // Its table is that of an older Kafka, in which this one was not retriable yet.
            let retriable = code.retriable() && code != ErrorCode::ConcurrentTransactions;
            assert_eq!(theirs.is_retriable(), retriable, "{code}");
        }
    }
}
