//! What the failure detector is for: leaders that are killed, cut off or restarted are followed by
//! others in good time, and none of them serves while another does.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use odradek_storage::SimDisk;
use tokio::time::Instant;

use super::{eventually, open_group, produce, simulate, start_detecting_node};
use crate::memory_network::MemoryNetwork;
use crate::{Group, Leadership, RaftNode};

pub(super) const VOTERS: [i32; 3] = [1, 2, 3];

pub(super) struct Three {
    pub(super) network: MemoryNetwork,
    pub(super) disks: Vec<SimDisk>,
    pub(super) nodes: Vec<Arc<RaftNode>>,
    pub(super) groups: Vec<Arc<Group>>,
}

impl Three {
    /// Three voters, the first of which leads and holds the lease. Messages take a while.
    pub(super) async fn start() -> Self {
        let network = MemoryNetwork::new();
        network.break_streams_after(Duration::from_secs(1));
        for one in VOTERS {
            for other in VOTERS {
                network.delay(
                    NodeId::new(one),
                    NodeId::new(other),
                    Duration::from_millis(2),
                );
            }
        }
        let mut three = Self {
            network,
            disks: VOTERS.iter().map(|_| SimDisk::new()).collect(),
            nodes: Vec::new(),
            groups: Vec::new(),
        };
        for id in [3, 2, 1] {
            let (node, group) = three.start_node(id).await;
            three.nodes.insert(0, node);
            three.groups.insert(0, group);
        }
        let first = three.groups[0].clone();
        eventually("the first node leads", &three.groups, || {
            first.holds_lease()
        })
        .await;
        three
    }

    pub(super) async fn start_node(&self, id: i32) -> (Arc<RaftNode>, Arc<Group>) {
        let disk = &self.disks[id as usize - 1];
        let node = start_detecting_node(id, disk, &self.network).unwrap();
        self.network.add(&node);
        let group = open_group(&node, &VOTERS).await.unwrap();
        (node, group)
    }

    /// Waits until a node other than the one with index `old` holds the lease, and says how long
    /// that took. The old one must not hold it then.
    pub(super) async fn successor_of(&self, old: usize) -> (usize, Duration) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            for (index, group) in self.groups.iter().enumerate() {
                if index != old && group.leadership().is_ready_leader() {
                    assert!(!self.groups[old].holds_lease(), "two at once");
                }
                if index != old && group.holds_lease() {
                    return (index, start.elapsed());
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for group in &self.groups {
            eprintln!("{:?} {}", group.leadership(), group.describe());
        }
        panic!("nobody follows");
    }
}

pub(super) fn node(id: i32) -> NodeId {
    NodeId::new(id)
}

#[test]
fn a_killed_leader_is_followed_soon_after_its_lease() {
    simulate(1, async {
        let mut three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        three.network.remove(node(1));
        three.nodes[0].abandon().await;
        let (successor, took) = three.successor_of(0).await;
        assert_eq!(successor, 1, "the voters stand in the order given");
        assert!(took >= Duration::from_millis(300), "{took:?}");
        assert!(took <= Duration::from_millis(600), "{took:?}");
        produce(&three.groups[1], 2).await.unwrap();
        // It comes back as a follower, and is part of the group at once.
        let (first, group) = three.start_node(1).await;
        three.nodes[0] = first;
        three.groups[0] = group.clone();
        let leader = three.groups[1].clone();
        eventually("the first is back", &three.groups, || {
            group.offsets() == leader.offsets()
        })
        .await;
        assert!(leader.holds_lease());
    });
}

#[test]
fn a_leader_that_is_cut_off_stops_answering_before_another_is_elected() {
    simulate(1, async {
        let three = Three::start().await;
        three.network.cut(node(1), node(2));
        three.network.cut(node(1), node(3));
        let (_, took) = three.successor_of(0).await;
        assert!(took <= Duration::from_millis(700), "{took:?}");
        three.network.heal();
        let old = three.groups[0].clone();
        eventually("the old leader follows", &three.groups, || {
            matches!(
                old.leadership(),
                Leadership::Follower {
                    leader: Some(_),
                    ..
                }
            )
        })
        .await;
    });
}

#[test]
fn a_node_that_is_cut_off_from_a_leader_that_others_follow_changes_nothing() {
    simulate(1, async {
        let three = Three::start().await;
        let epoch = three.groups[0].leadership().epoch();
        three.network.cut(node(1), node(2));
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(three.groups[0].holds_lease());
        }
        three.network.heal();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(three.groups[0].holds_lease());
        assert_eq!(three.groups[0].leadership().epoch(), epoch);
    });
}

#[test]
fn a_leader_heard_by_nobody_loses_its_lease_though_it_hears_everybody() {
    simulate(1, async {
        let three = Three::start().await;
        three.network.cut_one_way(node(1), node(2));
        three.network.cut_one_way(node(1), node(3));
        let (_, took) = three.successor_of(0).await;
        assert!(took <= Duration::from_millis(700), "{took:?}");
    });
}

/// Its probes arrive, so the others keep their promises; it only does not know that they do.
#[test]
fn a_leader_that_hears_again_holds_its_lease_only_once_it_is_confirmed_anew() {
    simulate(1, async {
        let three = Three::start().await;
        let leader = three.groups[0].clone();
        let epoch = leader.leadership().epoch().unwrap();
        produce(&leader, 1).await.unwrap();
        for other in [2, 3] {
            three.network.cut_one_way(node(other), node(1));
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!leader.holds_lease());
        three.network.heal();
        let is_trusted = |group: &Group| {
            let liveness = group.liveness.as_ref().unwrap();
            !liveness.trust(&group.membership().voters).is_empty()
        };
        while !is_trusted(&leader) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!leader.holds_lease(), "what was confirmed was so before");
        let healed = Instant::now();
        eventually("the lease is held again", &three.groups, || {
            leader.holds_lease_in(epoch)
        })
        .await;
        let took = healed.elapsed();
        assert!(took < Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn a_planned_transfer_does_not_wait_for_the_lease() {
    simulate(1, async {
        let three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        let start = Instant::now();
        three.groups[0].transfer_leader(node(3)).await.unwrap();
        let (successor, _) = three.successor_of(0).await;
        assert_eq!(successor, 2);
        let took = start.elapsed();
        assert!(took <= Duration::from_millis(150), "{took:?}");
        assert!(!three.groups[0].holds_lease());
    });
}

#[test]
fn a_leader_that_offered_its_leadership_in_vain_offers_it_to_the_next() {
    simulate(1, async {
        let three = Three::start().await;
        // It is asked, and dies before it answers.
        three.network.remove(node(2));
        three.nodes[1].abandon().await;
        assert!(three.groups[0].transfer_leader(node(2)).await.is_err());
        assert!(!three.groups[0].holds_lease(), "it may have been elected");
        let (successor, _) = three.successor_of(0).await;
        assert_eq!(successor, 2);
    });
}

#[test]
fn a_transfer_whose_caller_goes_away_leaves_no_group_without_a_leader_that_takes_batches() {
    simulate(1, async {
        let three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        // The other hears of it much later, and whoever asked for it does not wait.
        let much_later = Duration::from_secs(60);
        three.network.delay(node(1), node(2), much_later);
        let transfer = three.groups[0].transfer_leader(node(2));
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, transfer).await.is_err());
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let mut taken = false;
            for group in three.groups.iter().filter(|group| group.holds_lease()) {
                taken |= produce(group, 2).await.is_ok();
            }
            if taken {
                break;
            }
            assert!(Instant::now() < deadline, "nobody takes a batch");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_restarted_node_keeps_the_promises_that_it_has_forgotten() {
    simulate(1, async {
        let mut three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        // The third restarts at once, and can be reached by the second only: together they could
        // elect another while the leader still trusts the third.
        three.network.cut(node(1), node(2));
        tokio::time::sleep(Duration::from_millis(600)).await;
        three.nodes[2].abandon().await;
        let (third, group) = three.start_node(3).await;
        three.nodes[2] = third;
        three.groups[2] = group;
        three.network.cut(node(1), node(3));
        let (_, took) = three.successor_of(0).await;
        assert!(took >= Duration::from_millis(360), "{took:?}");
    });
}

#[test]
fn all_restarted_at_once_find_a_leader_soon() {
    simulate(1, async {
        let mut three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        for node in &three.nodes {
            node.abandon().await;
        }
        three.nodes.clear();
        three.groups.clear();
        let start = Instant::now();
        for id in VOTERS {
            let (node, group) = three.start_node(id).await;
            three.nodes.push(node);
            three.groups.push(group);
        }
        let groups = three.groups.clone();
        eventually("a leader", &groups, || {
            groups.iter().any(|group| group.holds_lease())
        })
        .await;
        assert!(
            start.elapsed() <= Duration::from_millis(1200),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn a_leader_restarted_within_the_lease_is_followed_at_once() {
    simulate(1, async {
        let mut three = Three::start().await;
        three.nodes[0].abandon().await;
        let (first, group) = three.start_node(1).await;
        three.nodes[0] = first;
        three.groups[0] = group;
        let start = Instant::now();
        let groups = three.groups.clone();
        eventually("a leader", &groups, || {
            groups.iter().any(|group| group.holds_lease())
        })
        .await;
        assert!(
            start.elapsed() <= Duration::from_millis(900),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn a_leader_whose_disk_fails_hands_over() {
    simulate(1, async {
        let three = Three::start().await;
        three.disks[0].stop_at(three.disks[0].steps() + 1);
        assert!(produce(&three.groups[0], 1).await.is_err());
        let (_, took) = three.successor_of(0).await;
        assert!(took <= Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn a_lease_that_was_lost_and_won_again_vouches_for_nothing_read_before() {
    simulate(1, async {
        let three = Three::start().await;
        let first = three.groups[0].clone();
        let epoch = first.leadership().epoch().unwrap();
        // An answer is begun in this term, and the process is slow to make it.
        assert!(first.holds_lease_in(epoch));
        first.transfer_leader(node(2)).await.unwrap();
        three.successor_of(0).await;
        produce(&three.groups[1], 1).await.unwrap();
        assert!(!first.holds_lease_in(epoch));
        three.groups[1].transfer_leader(node(1)).await.unwrap();
        three.successor_of(1).await;
        assert!(first.holds_lease());
        assert!(!first.holds_lease_in(epoch), "another has led in between");
        assert!(first.holds_lease_in(first.leadership().epoch().unwrap()));
    });
}
