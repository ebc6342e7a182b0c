//! One member of a classic group.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::coordinator::effects::RequestToken;
use crate::groups::member_memory::{MemberMemory, Share};
use crate::groups::messages::{JoinRequest, MemberDescription, MemberProtocol};
use crate::groups::names::{InstanceId, MemberId};
use crate::groups::records::MemberMetadata;

/// Roughly what a member takes beside its names, subscriptions and assignment.
const MEMBER_OVERHEAD_BYTES: usize = 512;
/// Roughly what a protocol takes beside its name and subscription.
const PROTOCOL_OVERHEAD_BYTES: usize = 64;

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
    protocols: Vec<MemberProtocol>,
    assignment: Bytes,
    /// Has not been part of a generation yet: it does not send heartbeats, so its session also
    /// runs out while it waits for a rebalance.
    pub is_new: bool,
    /// Its JoinGroup, not yet answered.
    pub awaiting_join: Option<RequestToken>,
    /// Its SyncGroup, not yet answered.
    pub awaiting_sync: Option<RequestToken>,
    /// Of the memory of all members: as large as [`Self::size_in_bytes`] says.
    share: Share,
}

/// What the joining of a member adds to the memory of all members, for one that is not there yet.
pub(super) fn bytes_of_join(request: &JoinRequest) -> usize {
    MEMBER_OVERHEAD_BYTES
        + request.fresh_member.as_str().len()
        + request
            .instance
            .as_ref()
            .map_or(0, |instance| instance.as_str().len())
        + request.client_id.len()
        + request.client_host.len()
        + bytes_of(&request.protocols)
}

/// What an id takes that was given out and has not come back.
pub(super) fn bytes_of_pending(id: &MemberId) -> usize {
    PROTOCOL_OVERHEAD_BYTES + id.as_str().len()
}

fn bytes_of(protocols: &[MemberProtocol]) -> usize {
    protocols
        .iter()
        .map(|protocol| PROTOCOL_OVERHEAD_BYTES + protocol.name.len() + protocol.metadata.len())
        .sum()
}

impl Member {
    pub fn joining(
        id: MemberId,
        request: JoinRequest,
        token: RequestToken,
        memory: &Arc<MemberMemory>,
    ) -> Self {
        Self {
            share: Share::new(memory, &request.client_host, bytes_of_join(&request)),
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

    pub fn from_record(
        record: &MemberMetadata,
        protocol: Option<&str>,
        memory: &Arc<MemberMemory>,
    ) -> Self {
        let mut member = Self {
            share: Share::new(memory, &record.client_host, 0),
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
        };
        member.recount();
        member
    }

    /// What the member supports, the preferred first.
    pub fn protocols(&self) -> &[MemberProtocol] {
        &self.protocols
    }

    /// Gives the member other protocols, and returns the old ones.
    pub fn set_protocols(&mut self, protocols: Vec<MemberProtocol>) -> Vec<MemberProtocol> {
        let old = std::mem::replace(&mut self.protocols, protocols);
        self.recount();
        old
    }

    /// What the member was given last.
    pub fn assignment(&self) -> &Bytes {
        &self.assignment
    }

    /// Gives the member an assignment.
    pub fn set_assignment(&mut self, assignment: Bytes) {
        self.assignment = assignment;
        self.recount();
    }

    /// What the member takes of the memory of all members.
    pub fn size_in_bytes(&self) -> usize {
        MEMBER_OVERHEAD_BYTES
            + self.id.as_str().len()
            + self
                .instance
                .as_ref()
                .map_or(0, |instance| instance.as_str().len())
            + self.client_id.len()
            + self.client_host.len()
            + bytes_of(&self.protocols)
            + self.assignment.len()
    }

    fn recount(&mut self) {
        self.share.resize(self.size_in_bytes());
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
