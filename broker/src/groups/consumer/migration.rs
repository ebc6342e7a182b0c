//! A group with members goes from one protocol to the other while they stay (KIP-848).
//!
//! A classic group becomes a consumer group when the first member of the consumer protocol joins, and
//! a consumer group becomes a classic one when the last has gone. Nothing is handed out anew by that:
//! generation and epoch are the same number, and members keep what they have.
//!
//! A group may go over while its members are on their way from one assignment to the next. What a member may
//! still have is kept for it until it has joined again without it, so that it has no second owner; Kafka goes by
//! what members were last meant to have. A classic group that was on its way has no leader in its record, and
//! whoever coordinates it next lets it rebalance.

use std::sync::Arc;

use odradek_protocol::ids::TimestampMs;

use super::assignment::{Owned, Partitions};
use super::classic_members::{assignment_of, by_id};
use super::context::{Context, Refusal};
use super::group::ConsumerGroup;
use super::member::{ConsumerMember, MemberState};
use crate::groups::classic::ClassicGroup;
use crate::groups::config::CoordinatorConfig;
use crate::groups::consumer_protocol;
use crate::groups::error::GroupError;
use crate::groups::names::{Epoch, MemberId};
use crate::groups::records::consumer::{
    ClassicMemberValue, ConsumerRecord, CurrentValue, GroupEpochValue, MemberValue,
    TargetEpochValue,
};
use crate::groups::records::{GroupMetadata, MemberMetadata};
use crate::metadata::image::MetadataImage;

/// The consumer group that a classic group with members becomes, and the records that make it.
///
/// # Errors
/// It may not, or cannot; it stays as it is then.
pub(in crate::groups) fn from_classic(
    classic: &ClassicGroup,
    cx: &Context<'_>,
) -> Result<(ConsumerGroup, Vec<ConsumerRecord>), Refusal> {
    let refuse = |reason: &str| {
        let message = format!("The classic group cannot become a consumer group: {reason}.");
        Err(Refusal::new(GroupError::GroupNotFound, message))
    };
    let metadata = classic.metadata();
    if !cx.config.consumer.migration_policy.allows_upgrade() {
        return refuse("the broker's policy does not allow it");
    }
    if metadata.protocol_type != super::CONSUMER_PROTOCOL_TYPE {
        return refuse("its members are no consumers");
    }
    if metadata.members.len() > cx.config.consumer.max_size {
        return refuse("it has too many members");
    }
    let mut members = Vec::new();
    for member in &metadata.members {
        match converted(member, classic, &metadata, cx.image) {
            Some(member) => members.push(member),
            None => return refuse("an assignor of its own is in use, or its data cannot be read"),
        }
    }
    keep_claims(&mut members);
    let epoch = Epoch::new(metadata.generation.get());
    let mut group = ConsumerGroup::new(classic.id().clone());
    for Converted { member, target, .. } in members {
        let id = member.id;
        for record in [
            ConsumerRecord::Member(id.clone(), Some(Box::new(member.says))),
            ConsumerRecord::Target(id.clone(), Some(target)),
            ConsumerRecord::Current(id, Some(member.at)),
        ] {
            group.apply(&record, &cx.config.member_memory);
        }
    }
    let metadata_hash = group.hash_with(cx.image);
    for record in [
        ConsumerRecord::Group(Some(GroupEpochValue {
            epoch,
            metadata_hash,
        })),
        ConsumerRecord::TargetEpoch(Some(TargetEpochValue {
            epoch,
            computed_at: TimestampMs::new(0),
        })),
    ] {
        group.apply(&record, &cx.config.member_memory);
    }
    let records = group.to_records();
    Ok((group, records))
}

/// A member of a classic group as one of a consumer group.
struct Converted {
    member: ConsumerMember,
    /// What it is meant to have: what it was given last.
    target: Partitions,
    /// What it had when it joined last.
    claimed: Partitions,
}

/// What members had when they joined, and nobody was given since, they may still have: a cooperative member
/// lets go of it only when it has been told what it was given.
fn keep_claims(members: &mut [Converted]) {
    let targets = members.iter().flat_map(|member| member.target.iter());
    let mut given: Partitions = targets.collect();
    for Converted {
        member, claimed, ..
    } in members
    {
        for (topic, partition) in claimed.iter() {
            if !given.contains(topic, partition) {
                given.insert(topic, partition);
                let epoch = member.at.epoch;
                member.at.revoking.insert(topic, partition, epoch);
                member.at.state = MemberState::UnrevokedPartitions;
            }
        }
    }
}

fn converted(
    member: &MemberMetadata,
    classic: &ClassicGroup,
    group: &GroupMetadata,
    image: &MetadataImage,
) -> Option<Converted> {
    let epoch = Epoch::new(group.generation.get());
    let protocols = classic.protocols_of(&member.member_id).to_vec();
    // Before a protocol has been chosen, what a member prefers says as much.
    let subscription = match group.protocol {
        Some(_) => &member.subscription,
        None => &protocols.first()?.metadata,
    };
    let subscription = consumer_protocol::subscription(subscription)?;
    let assignment = consumer_protocol::assignment(&member.assignment)?;
    if assignment.has_user_data {
        return None;
    }
    let target = by_id(&assignment.partitions, image);
    let claimed = by_id(&subscription.owned, image);
    let mut topics = subscription.topics;
    topics.sort_unstable();
    topics.dedup();
    let says = MemberValue {
        instance: member.instance_id.clone(),
        rack: subscription.rack.filter(|rack| !rack.is_empty()),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        topics,
        regex: Some(String::new()),
        rebalance_timeout_ms: member.rebalance_timeout_ms,
        assignor: None,
        classic: Some(ClassicMemberValue {
            session_timeout_ms: member.session_timeout_ms,
            protocols,
        }),
    };
    let at = CurrentValue {
        epoch,
        previous_epoch: epoch,
        state: MemberState::Stable,
        assigned: Owned::all_since(&target, epoch),
        revoking: Owned::default(),
    };
    let mut converted = ConsumerMember::new(member.member_id.clone());
    (converted.says, converted.at) = (says, at);
    Some(Converted {
        member: converted,
        target,
        claimed,
    })
}

/// Whether a consumer group becomes a classic one when `leaving` go.
pub(in crate::groups) fn downgrades_without(
    group: &ConsumerGroup,
    leaving: &[MemberId],
    config: &CoordinatorConfig,
) -> bool {
    let is_staying = |member: &&ConsumerMember| !leaving.contains(&member.id);
    let staying = group.members().filter(is_staying).count();
    staying > 0
        && group
            .members()
            .filter(is_staying)
            .all(ConsumerMember::is_classic)
        && config.consumer.migration_policy.allows_downgrade()
        && staying <= config.group_max_size
}

/// The classic group that a consumer group becomes whose members all speak the classic protocol, but
/// for those in `leaving`. One that is about to rebalance has no leader.
pub(in crate::groups) fn to_classic(
    group: &ConsumerGroup,
    leaving: &[MemberId],
    rebalances: bool,
    config: &CoordinatorConfig,
    image: &MetadataImage,
    now: TimestampMs,
) -> ClassicGroup {
    let staying = group
        .members()
        .filter(|member| !leaving.contains(&member.id));
    let members = staying.map(|member| {
        let says = &member.says;
        let classic = says.classic.as_ref();
        let has = member.at.assigned.merged(&member.at.revoking).partitions();
        let metadata = MemberMetadata {
            member_id: member.id.clone(),
            instance_id: says.instance.clone(),
            client_id: says.client_id.clone(),
            client_host: says.client_host.clone(),
            rebalance_timeout_ms: says.rebalance_timeout_ms,
            session_timeout_ms: classic.map_or(0, |classic| classic.session_timeout_ms),
            subscription: bytes::Bytes::new(),
            assignment: assignment_of(member, &has, image),
        };
        let protocols = classic.map(|classic| classic.protocols.clone());
        (metadata, protocols.unwrap_or_default())
    });
    let generation = group.epoch().as_generation();
    let memory = Arc::clone(&config.member_memory);
    let id = group.id().clone();
    let mut classic = ClassicGroup::of_consumers(id, generation, members.collect(), now, &memory);
    if rebalances {
        classic.be_without_leader();
    }
    classic
}
