//! Schedules of faults, drawn from a seed.
//!
//! A schedule is a function of the seed and of what the cluster is like.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::faults::{Fault, Target};
use super::{NodeNumber, Slowness};

/// Kinds of faults for nodes whose disks always work; the more there are of one, the likelier it is.
const KINDS: u32 = 14;
/// The same for nodes whose disks can fail.
const KINDS_WITH_DISKS: u32 = 18;

/// A fault at its place in the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Quiet before it begins.
    pub before: Duration,
    /// What happens.
    pub fault: Fault,
    /// How long it lasts.
    pub hold: Duration,
}

/// What schedules are drawn for.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Number of nodes.
    pub nodes: NodeNumber,
    /// Partitions of the topic under load.
    pub partitions: i32,
    /// Whether the disks can lose power and fill up.
    pub disks: bool,
    /// Faults and quiet together last about this long.
    pub length: Duration,
}

impl Setting {
    fn kinds(self) -> u32 {
        if self.disks { KINDS_WITH_DISKS } else { KINDS }
    }
}

/// The schedule of a seed.
pub fn schedule(seed: u64, setting: Setting) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut steps = Vec::new();
    let mut length = Duration::ZERO;
    while length < setting.length {
        let before = Duration::from_millis(rng.random_range(300..2_500));
        let kind = rng.random_range(0..setting.kinds());
        let step = step(before, kind, &mut rng, setting);
        length += step.before + step.hold;
        steps.push(step);
    }
    steps
}

/// Every kind of fault once, in an order drawn from the seed and dealt out to so many schedules: together these leave
/// nothing out. Their length follows from that and not from the setting.
pub fn deal(seed: u64, setting: Setting, hands: usize) -> Vec<Vec<Step>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut kinds: Vec<u32> = (0..setting.kinds()).collect();
    kinds.shuffle(&mut rng);
    let mut dealt = vec![Vec::new(); hands.max(1)];
    for (hand, kind) in (0..dealt.len()).cycle().zip(kinds) {
        let before = Duration::from_millis(rng.random_range(300..1_500));
        let step = step(before, kind, &mut rng, setting);
        if let Some(hand) = dealt.get_mut(hand) {
            hand.push(step);
        }
    }
    dealt
}

fn step(before: Duration, kind: u32, rng: &mut StdRng, setting: Setting) -> Step {
    Step {
        before,
        fault: fault(kind, rng, setting),
        hold: Duration::from_millis(rng.random_range(200..4_000)),
    }
}

fn target(rng: &mut StdRng, setting: Setting) -> Target {
    match rng.random_range(0..7) {
        0 => Target::Controller,
        1 => Target::Node(rng.random_range(1..=setting.nodes)),
        2 => Target::GroupCoordinator(rng.random_range(0..2)),
        3 | 4 => Target::TransactionCoordinator(rng.random_range(0..3)),
        _ => Target::Leader(rng.random_range(0..setting.partitions)),
    }
}

/// One to so many different nodes; more than a minority only now and then.
fn targets(rng: &mut StdRng, setting: Setting) -> Vec<Target> {
    let minority = (setting.nodes - 1) / 2;
    let number = if rng.random_bool(0.2) {
        minority + 1
    } else {
        rng.random_range(1..=minority.max(1))
    };
    (0..number).map(|_| target(rng, setting)).collect()
}

fn fault(kind: u32, rng: &mut StdRng, setting: Setting) -> Fault {
    match kind {
        0 | 1 => Fault::Kill(targets(rng, setting)),
        2 => Fault::KillAll,
        3 => Fault::RollingRestart,
        4 | 5 => Fault::Pause(target(rng, setting)),
        6 => Fault::Isolate(target(rng, setting)),
        7 => {
            let number = usize::try_from(setting.nodes / 2).unwrap_or(1).max(1);
            let mut some = BTreeSet::new();
            while some.len() < number {
                some.insert(rng.random_range(1..=setting.nodes));
            }
            Fault::Split(some.into_iter().collect())
        }
        8 => Fault::Bridge(rng.random_range(1..=setting.nodes)),
        9 => Fault::Mute(target(rng, setting)),
        10 => Fault::Deaf(target(rng, setting)),
        11 => {
            let slowness = Slowness {
                delay: Duration::from_millis(rng.random_range(20..300)),
                bytes_per_second: rng.random_range(20_000..200_000),
            };
            Fault::Slow(target(rng, setting), slowness)
        }
        12 => Fault::MoveLeaders,
        13 => Fault::Reassign,
        14 | 15 => Fault::PowerCut(targets(rng, setting)),
        16 => Fault::PowerCutAll,
        _ => Fault::FillDisk(target(rng, setting)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(disks: bool) -> Setting {
        Setting {
            nodes: 3,
            partitions: 4,
            disks,
            length: Duration::from_secs(30),
        }
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another() {
        assert_eq!(schedule(7, setting(true)), schedule(7, setting(true)));
        assert_ne!(schedule(7, setting(true)), schedule(8, setting(true)));
        assert_eq!(deal(7, setting(true), 4), deal(7, setting(true), 4));
        assert_ne!(deal(7, setting(true), 4), deal(8, setting(true), 4));
    }

    #[test]
    fn disks_are_left_alone_where_they_cannot_fail() {
        let on_disks = |step: &Step| {
            matches!(
                step.fault,
                Fault::PowerCut(_) | Fault::PowerCutAll | Fault::FillDisk(_)
            )
        };
        let with = |disks| (0..50).flat_map(move |seed| schedule(seed, setting(disks)));
        assert!(!with(false).any(|step| on_disks(&step)));
        assert!(with(true).any(|step| on_disks(&step)));
    }

    #[test]
    fn dealt_schedules_leave_no_kind_of_fault_out() {
        for seed in 0..20 {
            let hands = deal(seed, setting(true), 4);
            let lengths: Vec<usize> = hands.iter().map(Vec::len).collect();
            assert_eq!(lengths, [5, 5, 4, 4]);
            let kinds: BTreeSet<String> = hands
                .iter()
                .flatten()
                .map(|step| {
                    let name = format!("{:?}", step.fault);
                    name.split('(').next().unwrap_or_default().to_owned()
                })
                .collect();
            assert_eq!(kinds.len(), 15, "{kinds:?}");
        }
    }
}
