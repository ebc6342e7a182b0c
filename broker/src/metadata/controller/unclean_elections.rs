//! Elections that may lose records: a partition that has lost most of its voters goes on with the
//! replica that has the longest log.
//!
//! A group without most of its voters can decide nothing, and whoever is left cannot know what it lacks.
//! So the partition is given another group ([`Begun`]), which no voter of the old one can ever take for
//! its own. This module decides, by what the replicas say of themselves, whether that has to be, and who
//! begins the new group; it is a comparison, no I/O.
//!
//! Invariants:
//! - there is no such election while most voters may be there: they elect a leader that lacks nothing;
//! - the new group's first epoch is beyond every epoch that anybody has told of;
//! - every node understands messages of another group than the partition's first: to one that does not,
//!   the new group's would be the old one's.
//!
//! What is lost is what voters that are away have acknowledged and the chosen replica does not have. If
//! they are only cut off, they may go on acknowledging to clients that still reach them until they hear
//! of the new group; all of that is lost too. The two histories are never merged.

use std::collections::{BTreeMap, BTreeSet};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::{Incarnation, Standing, Succession};

use super::super::features;
use super::super::image::{MetadataImage, PartitionState};
use super::super::placement;
use super::super::records::{Begun, MetadataRecord, PartitionChangeRecord};

/// Why there is no such election.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotElected {
    /// As Kafka's code says.
    #[error("{}", .0.message())]
    Code(ErrorCode),
    /// Some nodes would take the new group for the old one.
    #[error(
        "an unclean election needs every node to speak version {needed} of the protocol between nodes, \
         and of {} that is not known: start them in this version, or unregister them \
         (kafka-cluster.sh unregister) if they are gone for good",
        list(nodes)
    )]
    Outdated {
        /// The version.
        needed: u16,
        /// Those that may not speak it.
        nodes: Vec<NodeId>,
    },
}

fn list(nodes: &[NodeId]) -> String {
    let numbers: Vec<String> = nodes.iter().map(|node| node.get().to_string()).collect();
    match numbers.as_slice() {
        [one] => format!("node {one}"),
        _ => format!("nodes {}", numbers.join(", ")),
    }
}

impl NotElected {
    /// Kafka's code for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Code(code) => *code,
            Self::Outdated { .. } => ErrorCode::UnsupportedVersion,
        }
    }
}

impl From<ErrorCode> for NotElected {
    fn from(code: ErrorCode) -> Self {
        Self::Code(code)
    }
}

/// An error unless every node that is registered is known to speak version `needed` of the protocol between
/// nodes: it has registered so, or is `spoken` with in that version now.
pub fn check_versions(
    image: &MetadataImage,
    needed: u16,
    spoken: impl Fn(NodeId) -> Option<u16>,
) -> Result<(), NotElected> {
    let brokers = image.brokers().map(|(id, broker)| (id, &broker.features));
    let controllers = image
        .controllers()
        .map(|(id, controller)| (id, &controller.features));
    let nodes: BTreeSet<NodeId> = brokers
        .chain(controllers)
        .filter(|(_, told)| features::peer_protocol(told) < needed)
        .map(|(id, _)| id)
        .filter(|id| spoken(*id).is_none_or(|version| version < needed))
        .collect();
    match nodes.is_empty() {
        true => Ok(()),
        false => Err(NotElected::Outdated {
            needed,
            nodes: nodes.into_iter().collect(),
        }),
    }
}

/// Between the latest known epoch and the first of the new group. Voters that are cut off may elect
/// leaders of their own meanwhile; clients should not see their epochs again with other records.
const EPOCH_GAP: u64 = 1_000;

/// What was heard of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Testimony {
    /// It does not answer.
    Silent,
    /// Its broker answers, and cannot open it.
    Nothing,
    /// What it says of itself.
    Stands(Standing),
}

/// What is to be done, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncleanElection {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: PartitionIndex,
    /// The group that it is given.
    pub begun: Begun,
    /// Where the log of the chosen replica ends: what is beyond is given up.
    pub kept_until: Offset,
    /// The highest offset that a replica that answers knows to have been committed. Others may have
    /// committed more.
    pub known_committed: Offset,
    /// Replicas that were not heard.
    pub unheard: Vec<NodeId>,
    /// How often the partition had been changed when this was decided.
    partition_epoch: i32,
}

impl UncleanElection {
    /// The records, unless the partition has been changed since it was decided.
    pub fn records(&self, image: &MetadataImage) -> Option<Vec<MetadataRecord>> {
        let state = state(image, self.topic_id, self.partition)?;
        if state.partition_epoch != self.partition_epoch {
            return None;
        }
        let founder = self.begun.succession.founder;
        let epoch = i32::try_from(self.begun.incarnation.get()).ok()?;
        Some(vec![MetadataRecord::PartitionChange(
            PartitionChangeRecord {
                leader: Some(Some(founder)),
                leader_epoch: Some(LeaderEpoch::new(epoch)),
                isr: Some(vec![founder]),
                begun: Some(self.begun),
                ..PartitionChangeRecord::of(self.topic_id, self.partition)
            },
        )])
    }
}

fn state(
    image: &MetadataImage,
    topic_id: TopicId,
    partition: PartitionIndex,
) -> Option<&PartitionState> {
    image.topic_by_id(topic_id)?.partition(partition)
}

/// Whom to ask before such an election.
///
/// # Errors
/// Kafka's code for why there is nothing to ask.
pub fn witnesses(
    image: &MetadataImage,
    topic_id: TopicId,
    partition: PartitionIndex,
) -> Result<Vec<NodeId>, ErrorCode> {
    let state = state(image, topic_id, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    Ok(state.replicas.clone())
}

/// Whether a partition looks as if it could decide nothing: it has no leader, or most of its replicas
/// are on brokers that are away or out of sync, as those are that have lost their logs. Whether that is so,
/// its replicas have to say.
pub fn looks_stuck(image: &MetadataImage, state: &PartitionState) -> bool {
    let is_there = |id: &&NodeId| state.isr.contains(id) && is_there(image, **id);
    let there = state.replicas.iter().filter(is_there).count();
    state.leader.is_none() || there * 2 <= state.replicas.len()
}

fn is_there(image: &MetadataImage, node: NodeId) -> bool {
    image.broker(node).is_some_and(|broker| !broker.fenced)
}

/// Decides by what was heard of all [`witnesses`].
///
/// # Errors
/// Kafka's code for why nobody is elected.
pub fn elect_unclean(
    image: &MetadataImage,
    topic_id: TopicId,
    partition: PartitionIndex,
    heard: &BTreeMap<NodeId, Testimony>,
) -> Result<UncleanElection, ErrorCode> {
    let state = state(image, topic_id, partition).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    let incarnation = state.incarnation();
    let of_this = |node: NodeId| match heard.get(&node) {
        Some(Testimony::Stands(standing)) if standing.incarnation == incarnation => Some(standing),
        _ => None,
    };
    let standings: Vec<(NodeId, &Standing)> = state
        .replicas
        .iter()
        .filter_map(|node| Some((*node, of_this(*node)?)))
        .collect();
    if standings.iter().any(|(_, standing)| standing.leads) || is_being_founded(image, state, heard)
    {
        return Err(ErrorCode::ElectionNotNeeded);
    }
    let may_vote = |node: NodeId| match heard.get(&node) {
        Some(Testimony::Stands(_)) => of_this(node).is_some_and(|standing| standing.is_whole),
        Some(Testimony::Nothing) => false,
        // It may only be slow. A broker that is really away is fenced before long.
        Some(Testimony::Silent) | None => is_there(image, node),
    };
    let newest = standings.iter().max_by_key(|(_, standing)| standing.last);
    if newest.is_some_and(|(_, newest)| newest.is_quorum(may_vote)) {
        return Err(ErrorCode::ElectionNotNeeded);
    }
    let (founder, chosen) = standings
        .iter()
        .filter(|(node, it)| it.last.is_some() && placement::is_active(image, *node))
        // Of equals the first: the last one that `max_by_key` sees.
        .rev()
        .max_by_key(|(_, standing)| standing.last)
        .ok_or(ErrorCode::EligibleLeadersNotAvailable)?;
    let begins = first_epoch(state, heard).ok_or(ErrorCode::EligibleLeadersNotAvailable)?;
    let committed = standings.iter().map(|(_, it)| it.high_watermark).max();
    Ok(UncleanElection {
        topic_id,
        partition,
        begun: Begun {
            incarnation: begins,
            succession: Succession {
                predecessor: incarnation,
                founder: *founder,
                kept_end: chosen.committed_end,
                log_start: chosen.log_start,
            },
        },
        kept_until: chosen.log_end,
        known_committed: committed.unwrap_or(chosen.high_watermark),
        unheard: state
            .replicas
            .iter()
            .copied()
            .filter(|node| of_this(*node).is_none())
            .collect(),
        partition_epoch: state.partition_epoch,
    })
}

/// Whether the partition's group has only just been decided on, and its founder has not been heard of
/// as such: it is about to lead.
fn is_being_founded(
    image: &MetadataImage,
    state: &PartitionState,
    heard: &BTreeMap<NodeId, Testimony>,
) -> bool {
    let Some(begun) = state.begun else {
        return false;
    };
    let founder = begun.succession.founder;
    let is_underway = match heard.get(&founder) {
        Some(Testimony::Stands(standing)) => standing.incarnation < begun.incarnation,
        Some(Testimony::Silent) => true,
        Some(Testimony::Nothing) | None => false,
    };
    let has_led = state.leader_epoch.get() > i32::try_from(begun.incarnation.get()).unwrap_or(0);
    is_underway && !has_led && is_there(image, founder)
}

/// The epoch with which the new group begins; `None` if there are none left.
fn first_epoch(state: &PartitionState, heard: &BTreeMap<NodeId, Testimony>) -> Option<Incarnation> {
    let told = heard.values().filter_map(|testimony| match testimony {
        Testimony::Stands(standing) => {
            let last = standing.last.map_or(0, |(term, _)| term);
            Some(standing.term.max(last))
        }
        Testimony::Silent | Testimony::Nothing => None,
    });
    let in_metadata = u64::try_from(state.leader_epoch.get()).unwrap_or(0);
    let known = told
        .fold(in_metadata, u64::max)
        .max(u64::from(state.incarnation().get()));
    let begins = i32::try_from(known.checked_add(EPOCH_GAP)?).ok()?;
    u32::try_from(begins).ok().map(Incarnation::new)
}

#[cfg(test)]
mod tests {
    use odradek_raft::RaftIndex;

    use odradek_protocol::codec::Uuid;

    use super::super::super::records::RegisterBrokerRecord;
    use super::super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::super::register_broker;
    use super::*;

    const TOPIC: TopicId = TopicId::from_bytes([7; 16]);
    const FIRST: PartitionIndex = PartitionIndex::new(0);

    /// Three replicas; these of their brokers are away.
    fn image(away: &[i32]) -> MetadataImage {
        let mut image = image_with_brokers(&[1, 2, 3]);
        apply(&mut image, &topic("t", 7, &[&[1, 2, 3]]));
        for id in away {
            let records = register_broker::fence(&image, NodeId::new(*id), true);
            apply(&mut image, &records);
        }
        image
    }

    fn standing(term: u64, index: u64, is_whole: bool) -> Standing {
        let end = i64::try_from(index).expect("small");
        Standing {
            incarnation: Incarnation::FIRST,
            is_whole,
            leads: false,
            term: term + 1,
            last: (index > 0).then_some((term, RaftIndex::new(index))),
            committed_end: RaftIndex::new(index / 2),
            log_start: Offset::ZERO,
            high_watermark: Offset::new(end / 2),
            log_end: Offset::new(end),
            voters: vec![nodes(&[1, 2, 3]).into_iter().collect::<BTreeSet<_>>()],
        }
    }

    fn heard(of: &[(i32, Testimony)]) -> BTreeMap<NodeId, Testimony> {
        let all = of.iter().cloned();
        all.map(|(id, testimony)| (NodeId::new(id), testimony))
            .collect()
    }

    fn stands(term: u64, index: u64) -> Testimony {
        Testimony::Stands(standing(term, index, true))
    }

    fn elect(image: &MetadataImage, of: &[(i32, Testimony)]) -> Result<UncleanElection, ErrorCode> {
        elect_unclean(image, TOPIC, FIRST, &heard(of))
    }

    #[test]
    fn the_longest_log_that_is_left_begins_a_new_group_in_an_epoch_of_its_own() {
        let image = image(&[1]);
        // Node 2 has lost its disk, so that most voters are gone though two brokers are there.
        let emptied = Testimony::Stands(standing(0, 0, false));
        let election = elect(
            &image,
            &[(1, Testimony::Silent), (2, emptied), (3, stands(4, 20))],
        )
        .expect("elected");
        assert_eq!(election.begun.succession.founder, NodeId::new(3));
        assert_eq!(election.begun.succession.kept_end, RaftIndex::new(10));
        assert_eq!(election.begun.incarnation, Incarnation::new(1_005));
        assert_eq!(election.kept_until, Offset::new(20));
        assert_eq!(election.unheard, nodes(&[1]));
        let mut after = image.clone();
        apply(&mut after, &election.records(&image).expect("as it was"));
        let state = after.topic("t").expect("exists").partitions[0].clone();
        assert_eq!(state.leader, Some(NodeId::new(3)));
        assert_eq!(state.leader_epoch, LeaderEpoch::new(1_005));
        assert_eq!(state.isr, nodes(&[3]));
        assert_eq!(state.incarnation(), Incarnation::new(1_005));
        assert_eq!(election.records(&after), None, "decided on an older state");
    }

    #[test]
    fn a_later_term_counts_more_than_a_longer_log_and_of_equals_the_first_replica() {
        let image = image(&[1]);
        let whom = |two: Testimony, three: Testimony| {
            let lost = |it: Testimony| match it {
                Testimony::Stands(standing) => Testimony::Stands(Standing {
                    voters: vec![nodes(&[1, 2, 3, 4, 5]).into_iter().collect()],
                    ..standing
                }),
                other => other,
            };
            let heard = [(1, Testimony::Silent), (2, lost(two)), (3, lost(three))];
            elect(&image, &heard)
                .expect("elected")
                .begun
                .succession
                .founder
        };
        assert_eq!(whom(stands(5, 10), stands(4, 99)), NodeId::new(2));
        assert_eq!(whom(stands(5, 10), stands(5, 11)), NodeId::new(3));
        assert_eq!(whom(stands(5, 11), stands(5, 11)), NodeId::new(2));
    }

    #[test]
    fn nobody_is_elected_where_most_voters_are_or_may_be_there() {
        let not_needed = Err(ErrorCode::ElectionNotNeeded);
        let there = [
            (1, Testimony::Silent),
            (2, stands(4, 19)),
            (3, stands(4, 20)),
        ];
        assert_eq!(elect(&image(&[1]), &there), not_needed);
        // Silent, and not known to be away.
        let slow = [
            (1, Testimony::Silent),
            (2, Testimony::Silent),
            (3, stands(4, 20)),
        ];
        assert_eq!(elect(&image(&[1]), &slow), not_needed);
        assert!(elect(&image(&[1, 2]), &slow).is_ok());
        // Fenced, and answering all the same.
        assert_eq!(elect(&image(&[1, 2]), &there), not_needed);
        let led = Testimony::Stands(Standing {
            leads: true,
            ..standing(4, 20, true)
        });
        let led = [(1, Testimony::Silent), (2, Testimony::Silent), (3, led)];
        assert_eq!(elect(&image(&[1, 2]), &led), not_needed);
    }

    #[test]
    fn nobody_is_elected_who_has_nothing_or_may_not_lead() {
        let not_available = Err(ErrorCode::EligibleLeadersNotAvailable);
        let nothing = [
            (1, Testimony::Silent),
            (2, Testimony::Nothing),
            (3, Testimony::Stands(standing(0, 0, false))),
        ];
        assert_eq!(elect(&image(&[1]), &nothing), not_available);
        let all_silent = [1, 2, 3].map(|id| (id, Testimony::Silent));
        assert_eq!(elect(&image(&[1, 2, 3]), &all_silent), not_available);
        let fenced = [
            (1, Testimony::Silent),
            (2, Testimony::Silent),
            (3, stands(4, 20)),
        ];
        assert_eq!(elect(&image(&[1, 2, 3]), &fenced), not_available);
        assert_eq!(
            elect_unclean(&image(&[]), TOPIC, PartitionIndex::new(9), &heard(&[])),
            Err(ErrorCode::UnknownTopicOrPartition)
        );
    }

    #[test]
    fn a_founder_that_was_just_chosen_is_given_the_time_to_lead() {
        let mut image = image(&[1, 2]);
        let before = [
            (1, Testimony::Silent),
            (2, Testimony::Silent),
            (3, stands(4, 20)),
        ];
        let election = elect(&image, &before).expect("elected");
        let records = election.records(&image).expect("as it was");
        apply(&mut image, &records);
        assert_eq!(elect(&image, &before), Err(ErrorCode::ElectionNotNeeded));
        // It is gone as well, and another has joined its group with what was shared.
        for (id, fenced) in [(3, true), (2, false)] {
            let records = register_broker::fence(&image, NodeId::new(id), fenced);
            apply(&mut image, &records);
        }
        let joined = Testimony::Stands(Standing {
            incarnation: election.begun.incarnation,
            ..standing(4, 10, false)
        });
        let after = [(1, Testimony::Silent), (2, joined), (3, Testimony::Silent)];
        let next = elect(&image, &after).expect("elected");
        assert_eq!(next.begun.succession.founder, NodeId::new(2));
        assert_eq!(
            next.begun.succession.predecessor,
            election.begun.incarnation
        );
        assert_eq!(next.begun.incarnation, Incarnation::new(2_005));
    }

    #[test]
    fn what_looks_stuck_has_no_leader_or_too_few_brokers() {
        let state = |image: &MetadataImage| image.topic("t").expect("exists").partitions[0].clone();
        let looks = |image: MetadataImage| looks_stuck(&image, &state(&image));
        assert!(!looks(image(&[])));
        assert!(!looks(image(&[3])));
        assert!(looks(image(&[2, 3])), "led, and alone");
        assert!(looks(image(&[1])), "not led");
        let mut alone = image(&[]);
        let out = PartitionChangeRecord {
            isr: Some(nodes(&[1])),
            ..PartitionChangeRecord::of(TOPIC, FIRST)
        };
        apply(&mut alone, &[MetadataRecord::PartitionChange(out)]);
        assert!(looks(alone), "the others may have lost their logs");
    }

    #[test]
    fn nodes_that_may_not_understand_the_new_group_are_named() {
        let mut image = image(&[3]);
        let outdated = |image: &MetadataImage, spoken: &[(i32, u16)]| {
            let spoken: BTreeMap<NodeId, u16> = spoken
                .iter()
                .map(|(id, version)| (NodeId::new(*id), *version))
                .collect();
            check_versions(image, 2, |node| spoken.get(&node).copied())
        };
        // Registered by a leader that took nothing down about it.
        assert_eq!(outdated(&image, &[(1, 2), (2, 2), (3, 2)]), Ok(()));
        let refused = outdated(&image, &[(1, 1), (2, 2)]).expect_err("of 1 and 3");
        assert_eq!(refused.code(), ErrorCode::UnsupportedVersion);
        assert!(
            refused
                .to_string()
                .contains("of nodes 1, 3 that is not known")
        );
        let records: Vec<_> = (1..=3)
            .map(|id| {
                MetadataRecord::RegisterBroker(RegisterBrokerRecord {
                    broker_id: NodeId::new(id),
                    incarnation_id: Uuid::ZERO,
                    broker_epoch: 2,
                    endpoints: vec![],
                    features: features::supported_by(2),
                    rack: None,
                    fenced: id == 3,
                    log_dirs: vec![],
                })
            })
            .collect();
        apply(&mut image, &records);
        assert_eq!(outdated(&image, &[]), Ok(()), "though nobody is connected");
    }
}
