//! Which brokers get the replicas of new partitions.
//!
//! Each partition is led by the broker that leads least, and its other replicas go to racks that have
//! none of it yet, and there to the brokers that hold least; equals take turns. What a broker has of
//! the same request counts first, then what it has at all: the partitions of a topic are spread even
//! when one broker is new and empty, and topics of one partition spread like partitions of one topic.
//!
//! Brokers that are fenced or about to stop get nothing. Those that do not answer at this moment, and are
//! not fenced yet, get something only if there are too few others.

use std::collections::BTreeSet;

use odradek_protocol::ids::{NodeId, PartitionIndex};

use super::image::MetadataImage;
use super::refusal::Refusal;

/// A broker that may get replicas, and what it has.
#[derive(Debug)]
struct Candidate<'a> {
    id: NodeId,
    rack: Option<&'a str>,
    /// Of this request, and of the cluster before it.
    leads: (usize, usize),
    holds: (usize, usize),
}

/// Replicas of `count` partitions from index `first` on, the preferred leader first. Brokers that are
/// `silent` are avoided.
pub fn place(
    image: &MetadataImage,
    silent: &BTreeSet<NodeId>,
    first: usize,
    count: usize,
    replication_factor: usize,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    let mut candidates = candidates(image, silent, replication_factor.max(1));
    if candidates.is_empty() {
        return Err(Refusal::NoActiveBroker);
    }
    if replication_factor > candidates.len() {
        return Err(Refusal::TooFewBrokers {
            replication_factor,
            brokers: candidates.len(),
        });
    }
    let mut placed = Vec::with_capacity(count);
    for index in first..first.saturating_add(count) {
        placed.push(place_one(&mut candidates, index, replication_factor));
    }
    Ok(placed)
}

/// Those that are active and answer; those that do not answer as well if there are too few others, for
/// a silent broker may be back sooner than whoever asks.
fn candidates<'a>(
    image: &'a MetadataImage,
    silent: &BTreeSet<NodeId>,
    at_least: usize,
) -> Vec<Candidate<'a>> {
    let active = || image.brokers().filter(|(id, _)| is_active(image, *id));
    let answering = active().filter(|(id, _)| !silent.contains(id)).count();
    active()
        .filter(|(id, _)| answering < at_least || !silent.contains(id))
        .map(|(id, broker)| {
            let load = image.tally().load(id);
            Candidate {
                id,
                rack: broker.rack.as_deref(),
                leads: (0, load.first),
                holds: (0, load.replicas),
            }
        })
        .collect()
}

/// Replicas of one partition. `turn` says who comes first among equals.
fn place_one(candidates: &mut [Candidate<'_>], turn: usize, count: usize) -> Vec<NodeId> {
    let total = candidates.len();
    let mut chosen: Vec<usize> = Vec::with_capacity(count);
    while chosen.len() < count {
        let after = chosen.last().map_or(turn, |last| last + 1);
        let best = (0..total)
            .map(|step| (after + step) % total)
            .filter(|at| !chosen.contains(at))
            .filter_map(|at| Some((at, candidates.get(at)?)))
            .min_by_key(|(_, candidate)| {
                let of_rack = chosen
                    .iter()
                    .filter_map(|at| candidates.get(*at))
                    .filter(|other| other.rack == candidate.rack)
                    .count();
                // The leader by what it leads, the others by what they hold.
                let load = if chosen.is_empty() {
                    candidate.leads
                } else {
                    candidate.holds
                };
                (of_rack, load)
            });
        let Some((at, _)) = best else { break };
        if let Some(candidate) = candidates.get_mut(at) {
            candidate.leads.0 += usize::from(chosen.is_empty());
            candidate.holds.0 += 1;
        }
        chosen.push(at);
    }
    let id = |at: &usize| candidates.get(*at).map(|candidate| candidate.id);
    chosen.iter().filter_map(id).collect()
}

/// Checks replicas that the request chose. `expected` is the number of replicas of the partitions
/// before this one.
pub fn check_assignment(
    image: &MetadataImage,
    partition: PartitionIndex,
    replicas: &[NodeId],
    expected: Option<usize>,
) -> Result<(), Refusal> {
    if replicas.is_empty() {
        return Err(Refusal::EmptyAssignment);
    }
    let mut sorted = replicas.to_vec();
    sorted.sort_unstable();
    let mut previous = None;
    for id in sorted {
        if image.broker(id).is_none() {
            return Err(Refusal::AssignmentToUnknownBroker(id));
        }
        if previous == Some(id) {
            return Err(Refusal::AssignmentRepeatsBroker(id));
        }
        previous = Some(id);
    }
    if let Some(expected) = expected
        && expected != replicas.len()
    {
        return Err(Refusal::UnevenAssignment {
            found: replicas.len(),
            expected,
        });
    }
    if !replicas.iter().any(|id| is_active(image, *id)) {
        return Err(Refusal::AssignmentToFencedBrokers(partition));
    }
    Ok(())
}

/// Whether the broker may lead.
pub fn is_active(image: &MetadataImage, id: NodeId) -> bool {
    image
        .broker(id)
        .is_some_and(|registration| !registration.fenced && !registration.stopping)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::Rng;

    use super::super::records::{MetadataRecord, RegisterBrokerRecord};
    use super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::*;
    use crate::test_random::seeded;

    fn with_racks(racks: &[Option<&str>]) -> MetadataImage {
        let mut image = image_with_brokers(&[]);
        let records: Vec<_> = (1..)
            .zip(racks)
            .map(|(id, rack)| {
                MetadataRecord::RegisterBroker(RegisterBrokerRecord {
                    broker_id: NodeId::new(id),
                    incarnation_id: odradek_protocol::codec::Uuid::ZERO,
                    broker_epoch: 1,
                    endpoints: vec![],
                    features: vec![],
                    rack: rack.map(str::to_owned),
                    fenced: false,
                    log_dirs: vec![],
                })
            })
            .collect();
        apply(&mut image, &records);
        image
    }

    #[test]
    fn leaders_and_replicas_go_round_the_brokers() {
        let image = image_with_brokers(&[1, 2, 3]);
        assert_eq!(
            place(&image, &BTreeSet::new(), 1, 3, 2),
            Ok(vec![nodes(&[2, 3]), nodes(&[3, 1]), nodes(&[1, 2])])
        );
    }

    #[test]
    fn topics_of_one_partition_are_spread_like_partitions_of_one_topic() {
        let mut image = image_with_brokers(&[1, 2, 3]);
        let mut leaders = Vec::new();
        for number in 1..=6 {
            let placed = place(&image, &BTreeSet::new(), 0, 1, 1).expect("there is room");
            leaders.push(placed[0][0].get());
            apply(
                &mut image,
                &topic(&format!("t{number}"), number, &[&[placed[0][0].get()]]),
            );
        }
        leaders.sort_unstable();
        assert_eq!(leaders, [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_new_broker_does_not_get_all_of_the_next_topic() {
        let mut image = image_with_brokers(&[1, 2]);
        apply(&mut image, &topic("old", 1, &[&[1], &[2], &[1], &[2]]));
        let more = image_with_brokers(&[3]);
        let (id, broker) = more.brokers().next().expect("registered");
        apply(
            &mut image,
            &[MetadataRecord::RegisterBroker(RegisterBrokerRecord {
                broker_id: id,
                incarnation_id: broker.incarnation_id,
                broker_epoch: 1,
                endpoints: vec![],
                features: vec![],
                rack: None,
                fenced: false,
                log_dirs: vec![],
            })],
        );
        let placed = place(&image, &BTreeSet::new(), 0, 4, 1).expect("there is room");
        let leaders: Vec<i32> = placed.iter().map(|replicas| replicas[0].get()).collect();
        let count = |id| leaders.iter().filter(|leader| **leader == id).count();
        assert_eq!((count(1) + count(2), count(3)), (2, 2));
    }

    #[test]
    fn replicas_are_spread_over_racks_and_leaders_over_brokers_whatever_the_cluster() {
        let mut random = seeded();
        for _ in 0..200 {
            let brokers = random.random_range(1..=9);
            let names = [None, Some("a"), Some("b"), Some("c")];
            let kinds = random.random_range(1..=4);
            let racks: Vec<Option<&str>> = (0..brokers)
                .map(|_| names[random.random_range(0..kinds)])
                .collect();
            let image = with_racks(&racks);
            let factor = random.random_range(1..=brokers);
            let count = random.random_range(1..=40);
            let placed = place(
                &image,
                &BTreeSet::new(),
                random.random_range(0..50),
                count,
                factor,
            );
            let placed = placed.expect("enough brokers");
            let distinct_racks = racks.iter().collect::<HashSet<_>>().len();
            let mut leads = vec![0_usize; brokers];
            for replicas in &placed {
                let distinct: HashSet<_> = replicas.iter().collect();
                assert_eq!((replicas.len(), distinct.len()), (factor, factor));
                let at = |id: &NodeId| usize::try_from(id.get() - 1).expect("an id");
                let over: HashSet<_> = replicas.iter().map(|id| racks[at(id)]).collect();
                assert_eq!(over.len(), factor.min(distinct_racks));
                leads[at(&replicas[0])] += 1;
            }
            let (most, least) = (leads.iter().max(), leads.iter().min());
            assert!(
                most.zip(least)
                    .is_some_and(|(most, least)| most - least <= 1)
            );
        }
    }

    #[test]
    fn more_replicas_than_brokers_are_refused() {
        assert_eq!(
            place(&image_with_brokers(&[1]), &BTreeSet::new(), 0, 1, 2),
            Err(Refusal::TooFewBrokers {
                replication_factor: 2,
                brokers: 1
            })
        );
        assert_eq!(
            place(&image_with_brokers(&[]), &BTreeSet::new(), 0, 1, 1),
            Err(Refusal::NoActiveBroker)
        );
    }

    #[test]
    fn a_manual_assignment_names_each_of_its_brokers_once() {
        let image = image_with_brokers(&[1, 2]);
        let check = |replicas: &[i32], expected| {
            check_assignment(&image, PartitionIndex::new(0), &nodes(replicas), expected)
        };
        assert_eq!(check(&[2, 1], Some(2)), Ok(()));
        assert_eq!(check(&[], None), Err(Refusal::EmptyAssignment));
        assert_eq!(
            check(&[9], None),
            Err(Refusal::AssignmentToUnknownBroker(NodeId::new(9)))
        );
        assert_eq!(
            check(&[1, 1], None),
            Err(Refusal::AssignmentRepeatsBroker(NodeId::new(1)))
        );
        assert_eq!(
            check(&[1], Some(2)),
            Err(Refusal::UnevenAssignment {
                found: 1,
                expected: 2
            })
        );
    }

    #[test]
    fn brokers_that_do_not_answer_get_something_only_if_there_are_too_few_others() {
        let image = image_with_brokers(&[1, 2, 3]);
        let silent = BTreeSet::from([NodeId::new(2)]);
        for replicas in place(&image, &silent, 0, 6, 2).expect("two answer") {
            assert!(!replicas.contains(&NodeId::new(2)), "{replicas:?}");
        }
        let placed = place(&image, &silent, 0, 1, 3).expect("three are there");
        assert_eq!(placed[0].len(), 3);
    }
}
