//! Why a group request failed, by cause, and the one map from causes to Kafka's error codes.

use odradek_protocol::error_code::ErrorCode;
use thiserror::Error;

/// Cause of a failed group request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum GroupError {
    /// The group id is empty where one is needed.
    #[error("the group id is invalid")]
    InvalidGroupId,
    /// The request contradicts itself or its version.
    #[error("the request is malformed")]
    InvalidRequest,
    /// `session.timeout.ms` is outside the broker's bounds.
    #[error("the session timeout is not within the range allowed by the broker")]
    InvalidSessionTimeout,
    /// The member is not in the group.
    #[error("the coordinator does not know this member")]
    UnknownMember,
    /// Another member holds the same `group.instance.id`.
    #[error("another consumer holds the same group.instance.id")]
    FencedInstance,
    /// The member must join again with the id it was just given.
    #[error("the member must join with the id it was given")]
    MemberIdRequired,
    /// The request belongs to another generation.
    #[error("the generation is not the current one")]
    IllegalGeneration,
    /// The group is being rebalanced, so the member must join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// The member's protocols have nothing in common with the group's.
    #[error("the protocols are inconsistent with those of the members")]
    InconsistentProtocol,
    /// `group.max.size` members are there already.
    #[error("the group has reached its maximum size")]
    GroupFull,
    /// There is no such group.
    #[error("the group does not exist")]
    GroupNotFound,
    /// The group has members, so it cannot be deleted.
    #[error("the group is not empty")]
    NonEmptyGroup,
    /// A live member is subscribed to the topic whose offsets should go.
    #[error("the group is subscribed to the topic")]
    SubscribedToTopic,
    /// The metadata of a commit is longer than `offset.metadata.max.bytes`.
    #[error("the metadata field of the offset is too large")]
    OffsetMetadataTooLarge,
    /// The member's epoch is not the one that the coordinator has it at (KIP-848).
    #[error("the member is at another epoch and has to join again")]
    FencedMemberEpoch,
    /// A commit, or a question for offsets, of a member at another epoch (KIP-848).
    #[error("the member's epoch is not the current one")]
    StaleMemberEpoch,
    /// The static member whose place is asked for is still there (KIP-848).
    #[error("the instance id belongs to a member that is there")]
    UnreleasedInstance,
    /// A regular expression cannot be read (KIP-848).
    #[error("the regular expression is invalid")]
    InvalidRegex,
    /// The coordinator does not have the assignor asked for (KIP-848).
    #[error("the assignor is not supported")]
    UnsupportedAssignor,
    /// The group's kind needs a newer version of the request.
    #[error("the version is too old for this kind of group")]
    UnsupportedVersion,
    /// A record would be larger than the log takes.
    #[error("the group metadata is too large to be stored")]
    RecordTooLarge,
    /// The log of this group's partition is still being read.
    #[error("the coordinator is loading")]
    Loading,
    /// Another broker coordinates this group, or this one has just stopped to.
    #[error("this is not the coordinator of the group")]
    NotCoordinator,
    /// There is no coordinator at present: no `__consumer_offsets` yet, or too many requests.
    #[error("the coordinator is not available")]
    NotAvailable,
}

impl GroupError {
    /// The error code that tells a client of this cause.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::InvalidGroupId => ErrorCode::InvalidGroupId,
            Self::InvalidRequest => ErrorCode::InvalidRequest,
            Self::InvalidSessionTimeout => ErrorCode::InvalidSessionTimeout,
            Self::UnknownMember => ErrorCode::UnknownMemberId,
            Self::FencedInstance => ErrorCode::FencedInstanceId,
            Self::MemberIdRequired => ErrorCode::MemberIdRequired,
            Self::IllegalGeneration => ErrorCode::IllegalGeneration,
            Self::RebalanceInProgress => ErrorCode::RebalanceInProgress,
            Self::InconsistentProtocol => ErrorCode::InconsistentGroupProtocol,
            Self::GroupFull => ErrorCode::GroupMaxSizeReached,
            Self::GroupNotFound => ErrorCode::GroupIdNotFound,
            Self::NonEmptyGroup => ErrorCode::NonEmptyGroup,
            Self::SubscribedToTopic => ErrorCode::GroupSubscribedToTopic,
            Self::OffsetMetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
            Self::FencedMemberEpoch => ErrorCode::FencedMemberEpoch,
            Self::StaleMemberEpoch => ErrorCode::StaleMemberEpoch,
            Self::UnreleasedInstance => ErrorCode::UnreleasedInstanceId,
            Self::InvalidRegex => ErrorCode::InvalidRegularExpression,
            Self::UnsupportedAssignor => ErrorCode::UnsupportedAssignor,
            Self::UnsupportedVersion => ErrorCode::UnsupportedVersion,
            Self::RecordTooLarge => ErrorCode::UnknownServerError,
            Self::Loading => ErrorCode::CoordinatorLoadInProgress,
            Self::NotCoordinator => ErrorCode::NotCoordinator,
            Self::NotAvailable => ErrorCode::CoordinatorNotAvailable,
        }
    }
}
