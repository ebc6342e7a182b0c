//! One member of a classic group.

use std::collections::HashMap;

use bytes::Bytes;

use crate::groups::effects::RequestToken;
use crate::groups::messages::{JoinRequest, MemberDescription, MemberProtocol};
use crate::groups::names::{InstanceId, MemberId};
use crate::groups::records::MemberMetadata;

/// A member, and what it waits for.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub id: MemberId,
    pub instance: Option<InstanceId>,
    pub client_id: String,
    pub client_host: String,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    /// The preferred protocol first.
    pub protocols: Vec<MemberProtocol>,
    pub assignment: Bytes,
    /// Has not been part of a generation yet: it does not send heartbeats, so its session also
    /// runs out while it waits for a rebalance.
    pub is_new: bool,
    /// Its JoinGroup, not yet answered.
    pub awaiting_join: Option<RequestToken>,
    /// Its SyncGroup, not yet answered.
    pub awaiting_sync: Option<RequestToken>,
}

impl Member {
    pub fn joining(id: MemberId, request: JoinRequest, token: RequestToken) -> Self {
        Self {
            id,
            instance: request.instance,
            client_id: request.client_id,
            client_host: request.client_host,
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: request.protocols,
            assignment: Bytes::new(),
            is_new: true,
            awaiting_join: Some(token),
            awaiting_sync: None,
        }
    }

    pub fn from_record(record: &MemberMetadata, protocol: Option<&str>) -> Self {
        Self {
            id: record.member_id.clone(),
            instance: record.instance_id.clone(),
            client_id: record.client_id.clone(),
            client_host: record.client_host.clone(),
            rebalance_timeout_ms: record.rebalance_timeout_ms,
            session_timeout_ms: record.session_timeout_ms,
            protocols: vec![MemberProtocol {
                name: protocol.unwrap_or_default().to_owned(),
                metadata: record.subscription.clone(),
            }],
            assignment: record.assignment.clone(),
            is_new: false,
            awaiting_join: None,
            awaiting_sync: None,
        }
    }

    pub fn to_record(&self, protocol: Option<&str>) -> MemberMetadata {
        MemberMetadata {
            member_id: self.id.clone(),
            instance_id: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            session_timeout_ms: self.session_timeout_ms,
            subscription: self.metadata_for(protocol),
            assignment: self.assignment.clone(),
        }
    }

    /// What the member says for `protocol`; nothing if it does not support it.
    pub fn metadata_for(&self, protocol: Option<&str>) -> Bytes {
        self.protocols
            .iter()
            .find(|supported| Some(supported.name.as_str()) == protocol)
            .map(|supported| supported.metadata.clone())
            .unwrap_or_default()
    }

    /// The protocol this member likes best among those that `supporters` counts for all `members`.
    pub fn vote(&self, supporters: &HashMap<String, usize>, members: usize) -> Option<&str> {
        self.protocols
            .iter()
            .map(|protocol| protocol.name.as_str())
            .find(|name| supporters.get(*name) == Some(&members))
    }

    /// Whether silence is excused: the member waits for the coordinator, not the other way round.
    pub fn is_excused(&self) -> bool {
        !self.is_new && (self.awaiting_join.is_some() || self.awaiting_sync.is_some())
    }

    pub fn describe(&self, metadata: Bytes) -> MemberDescription {
        MemberDescription {
            member: self.id.clone(),
            instance: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            metadata,
            assignment: self.assignment.clone(),
        }
    }
}
