//! One test for every way in which openraft, used in good faith, has been seen to go wrong.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_storage::flush::Flusher;
use odradek_storage::{LogDirHealth, SimDisk};
use openraft::SnapshotMeta;
use openraft::entry::RaftEntry;
use openraft::network::{NetStreamAppend, RPCOption, RaftNetworkFactory};
use openraft::storage::{RaftLogReader, RaftLogStorage};

use super::{
    DATA_DIR, batch, data_dir, eventually, group_spec, key, open_group, produce, simulate,
    start_node, virtual_clock,
};
use crate::entry_map::Purged;
use crate::log_core::{Core, CoreHandle};
use crate::log_reader::{EntryReader, READ_MAX_BYTES};
use crate::log_store::LogStore;
use crate::memory_network::MemoryNetwork;
use crate::network::{Clients, NoNetwork};
use crate::observer::NoObserver;
use crate::rpc::{Snapshot, SnapshotOffer, SnapshotState};
use crate::shared::Shared;
use crate::types::{
    BatchCommand, Command, Entry, Membership, Payload, RaftIndex, Stamp, StoredMembership, Vote,
    log_id,
};
use crate::votes::VoteFile;
use crate::{Group, Leadership, RaftNode, open};

/// A group's log without openraft on it, of the only voter.
fn bare_core(disk: &SimDisk) -> CoreHandle {
    bare_core_of(disk, &[1])
}

fn bare_core_of(disk: &SimDisk, voters: &[i32]) -> CoreHandle {
    let shared_disk = disk.shared();
    shared_disk.create_dir_all(data_dir()).unwrap();
    shared_disk.sync_dir(std::path::Path::new("/")).unwrap();
    let health = LogDirHealth::new(DATA_DIR);
    let flusher = Arc::new(Flusher::inline(health.clone()));
    let votes = VoteFile::open(shared_disk.clone(), data_dir(), flusher.clone()).unwrap();
    let clock = virtual_clock();
    let opened = open::open(shared_disk, health, &group_spec(voters), false, 1, clock()).unwrap();
    let shared = Shared::new(key(), 1, 100, Arc::new(NoObserver), None);
    let (housekeeper, _) = tokio::sync::mpsc::unbounded_channel();
    Core::new(
        shared,
        flusher,
        votes,
        clock,
        housekeeper,
        opened.log,
        opened.journal,
        opened.map,
        opened.applied,
    )
}

fn blank(term: u64, index: u64) -> Entry {
    Entry::new_blank(log_id(term, index))
}

fn data(term: u64, index: u64, offset: i64, content: bytes::Bytes) -> Entry {
    Entry {
        log_id: log_id(term, index),
        payload: Payload::Normal(Command::Batch(Box::new(BatchCommand {
            header: BatchHeader::parse(&content).unwrap(),
            bytes: content,
            stamp: Stamp::Foreseen(Offset::new(offset)),
            waiter: None,
        }))),
    }
}

/// A batch of one record of about this size.
fn large_batch(bytes: usize) -> bytes::Bytes {
    let mut builder = odradek_protocol::records::BatchBuilder::new();
    builder.push(odradek_protocol::records::NewRecord {
        timestamp: odradek_protocol::ids::TimestampMs::new(1),
        key: None,
        value: Some(&vec![1; bytes]),
        headers: &[],
    });
    builder.build()
}

struct Three {
    network: MemoryNetwork,
    disks: Vec<SimDisk>,
    nodes: Vec<Arc<RaftNode>>,
    groups: Vec<Arc<Group>>,
}

impl Three {
    /// Three voters, the first of which leads.
    async fn start() -> Self {
        let network = MemoryNetwork::new();
        let disks: Vec<_> = (0..3).map(|_| SimDisk::new()).collect();
        let mut three = Self {
            network,
            disks,
            nodes: Vec::new(),
            groups: Vec::new(),
        };
        // The preferred leader comes last and finds the others there.
        for id in [3, 2, 1] {
            let (node, group) = three.start_node(id).await;
            three.nodes.insert(0, node);
            three.groups.insert(0, group);
        }
        let first = three.groups[0].clone();
        eventually("the first node leads", &three.groups, || {
            first.leadership().is_ready_leader()
        })
        .await;
        three
    }

    async fn start_node(&self, id: i32) -> (Arc<RaftNode>, Arc<Group>) {
        let disk = &self.disks[id as usize - 1];
        let node = start_node(id, disk, Arc::new(self.network.clone())).unwrap();
        self.network.add(&node);
        let group = open_group(&node, &[1, 2, 3]).await.unwrap();
        (node, group)
    }
}

#[test]
fn a_restarted_leader_does_not_go_on_in_its_old_term() {
    simulate(1, async {
        let mut three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        let old = three.groups[0].leadership().epoch().unwrap();
        // Nobody can elect another leader meanwhile, and nobody hears of it.
        three.network.cut(NodeId::new(1), NodeId::new(2));
        three.network.cut(NodeId::new(1), NodeId::new(3));
        three.network.cut(NodeId::new(2), NodeId::new(3));
        three.nodes[0].abandon().await;
        let (node, group) = three.start_node(1).await;
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(
                !matches!(group.leadership(), Leadership::Leader { .. }),
                "led again without having been elected"
            );
        }
        three.network.heal();
        three.nodes[0] = node;
        three.groups[0] = group;
        let groups = three.groups.clone();
        eventually("a leader", &groups, || {
            groups
                .iter()
                .any(|group| group.leadership().is_ready_leader())
        })
        .await;
        for group in &groups {
            if group.leadership().is_ready_leader() {
                assert!(group.leadership().epoch().unwrap() > old);
            }
        }
    });
}

#[test]
fn a_saved_vote_vouches_for_the_entries_before_it() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let entries = vec![blank(1, 1), data(1, 2, 0, batch(3))];
        core.append(entries).await.unwrap();
        LogStore::new(core.clone())
            .save_vote(&Vote::new(2, 1))
            .await
            .unwrap();
        drop(core);
        disk.power_cut(1);
        let core = bare_core(&disk);
        assert_eq!(core.last_log_id(), Some(log_id(1, 2)));
        assert_eq!(core.votes.get(key()), Some(Vote::new(2, 1)));
    });
}

#[test]
fn what_openraft_hears_of_at_the_start_is_durable() {
    for seed in 0..20 {
        simulate(1, async {
            let disk = SimDisk::new();
            let core = bare_core(&disk);
            core.append(vec![blank(1, 1), data(1, 2, 0, batch(3))])
                .await
                .unwrap();
            let state = LogStore::new(core.clone()).get_log_state().await.unwrap();
            drop(core);
            disk.power_cut(seed);
            assert_eq!(bare_core(&disk).last_log_id(), state.last_log_id);
        });
    }
}

#[test]
fn a_stream_of_appends_waits_for_work_before_it_fails() {
    simulate(1, async {
        let mut clients = Clients {
            network: Arc::new(NoNetwork),
            from: NodeId::new(1),
            shared: Shared::new(key(), 1, 100, Arc::new(NoObserver), None),
        };
        let mut client = clients.new_client(2, &()).await;
        let idle = futures_util::stream::pending();
        let option = RPCOption::new(Duration::from_secs(1));
        let stream = client.stream_append(idle, option);
        let waited = tokio::time::timeout(Duration::from_secs(3600), stream).await;
        assert!(
            waited.is_err(),
            "failed at once, to be opened again at once"
        );
    });
}

#[test]
fn a_transfer_to_a_dead_node_leaves_the_leader_working() {
    simulate(1, async {
        let three = Three::start().await;
        three.network.remove(NodeId::new(3));
        three.nodes[2].abandon().await;
        let leader = &three.groups[0];
        assert!(leader.transfer_leader(NodeId::new(3)).await.is_err());
        // One that is cut off does not even refuse.
        three.network.cut(NodeId::new(1), NodeId::new(2));
        assert!(leader.transfer_leader(NodeId::new(2)).await.is_err());
        three.network.heal();
        // Without a majority it took nothing; with one, it does again.
        for _ in 0..100 {
            if produce(leader, 1).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the leader takes nothing any more");
    });
}

#[test]
fn a_transfer_hands_leadership_over() {
    simulate(1, async {
        let three = Three::start().await;
        produce(&three.groups[0], 1).await.unwrap();
        three.groups[0]
            .transfer_leader(NodeId::new(2))
            .await
            .unwrap();
        let second = three.groups[1].clone();
        eventually("the second node leads", &three.groups, || {
            second.leadership().is_ready_leader()
        })
        .await;
        produce(&second, 2).await.unwrap();
    });
}

#[test]
fn a_hole_between_entries_is_an_error_and_stops_the_group() {
    simulate(1, async {
        let disk = SimDisk::new();
        for bad in [
            vec![blank(1, 2)],
            vec![blank(1, 0)],
            vec![blank(1, 1), data(1, 3, 0, batch(1))],
            // A batch of a term that no blank entry has opened.
            vec![blank(1, 1), data(2, 2, 0, batch(1))],
            // A term that goes back.
            vec![blank(3, 1), blank(2, 2)],
        ] {
            let core = bare_core(&disk);
            let before = core.last_log_id();
            assert!(core.append(bad).await.is_err());
            assert!(core.shared.offline_cause().is_some());
            assert_eq!(core.last_log_id(), before);
        }
    });
}

#[test]
fn a_leaders_batch_that_does_not_fit_this_log_is_an_error() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let mut entry = data(1, 2, 0, batch(1));
        if let Payload::Normal(Command::Batch(batch)) = &mut entry.payload {
            batch.stamp = Stamp::Final;
            batch.header.base_offset = Offset::new(5);
        }
        assert!(core.append(vec![blank(1, 1), entry]).await.is_err());
    });
}

#[test]
fn a_batch_behind_a_refused_one_is_not_put_in_its_place() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        // The one at offset 0 was refused by openraft; this one was enqueued behind it.
        core.append(vec![blank(1, 1), data(1, 2, 2, batch(1))])
            .await
            .unwrap();
        assert_eq!(core.reader.log_end(), Offset::ZERO);
        assert_eq!(core.last_log_id(), Some(log_id(1, 2)));
        let heads = core.entry_heads(RaftIndex::new(2), RaftIndex::new(3));
        assert!(matches!(heads[0].payload, Payload::Blank));
    });
}

#[test]
fn the_apply_path_gets_entries_without_payloads() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let entries = vec![
            blank(1, 1),
            data(1, 2, 0, batch(1)),
            data(1, 3, 2, batch(3)),
        ];
        core.append(entries).await.unwrap();
        core.flush(core.flush_target()).await.unwrap();
        let mut reader = EntryReader::new(core.clone());
        let before = disk.steps();
        let stream = reader.entries_stream(0..4).await;
        let entries: Vec<_> = stream.map(|entry| entry.unwrap()).collect().await;
        assert_eq!(entries.len(), 4);
        for (entry, end) in entries[2..].iter().zip([1, 2]) {
            let Payload::Normal(Command::Applied(applied)) = &entry.payload else {
                panic!("{entry}");
            };
            assert_eq!(applied.outcome.unwrap().last_offset, Offset::new(end));
        }
        assert_eq!(disk.steps(), before);
        // A second look, as after a restart, still knows where the range ends.
        let stream = reader.entries_stream(0..4).await;
        let last = stream.map(|entry| entry.unwrap()).collect::<Vec<_>>().await;
        let Payload::Normal(Command::Applied(applied)) = &last[3].payload else {
            panic!("{}", last[3]);
        };
        assert_eq!(applied.outcome.unwrap().last_offset, Offset::new(2));
    });
}

#[test]
fn reads_for_replication_are_capped_by_bytes() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let size = READ_MAX_BYTES / 3;
        let mut entries = vec![blank(1, 1)];
        for index in 0..8 {
            entries.push(data(1, index + 2, index as i64, large_batch(size)));
        }
        entries.push(data(1, 10, 8, large_batch(2 * READ_MAX_BYTES)));
        core.append(entries).await.unwrap();
        let mut reader = EntryReader::new(core.clone());
        let mut next = 0;
        let mut reads = Vec::new();
        while next < 11 {
            let some = reader.limited_get_log_entries(next, 11).await.unwrap();
            assert_eq!(some[0].log_id.index(), next);
            let bytes: usize = some
                .iter()
                .map(|entry| match &entry.payload {
                    Payload::Normal(Command::Batch(batch)) => batch.bytes.len(),
                    _ => 0,
                })
                .sum();
            assert!(
                bytes <= READ_MAX_BYTES || some.len() == 1,
                "{bytes} bytes at once"
            );
            next += some.len() as u64;
            reads.push(some.len());
        }
        assert!(reads.len() >= 5, "{reads:?}");
    });
}

#[test]
fn truncation_rewinds_the_offsets() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let entries = vec![
            blank(1, 1),
            data(1, 2, 0, batch(1)),
            data(1, 3, 2, batch(1)),
            blank(2, 4),
        ];
        core.append(entries).await.unwrap();
        core.truncate_after(Some(log_id(1, 2))).await.unwrap();
        assert_eq!(core.reader.log_end(), Offset::new(2));
        core.append(vec![blank(3, 3), data(3, 4, 2, batch(5))])
            .await
            .unwrap();
        assert_eq!(core.reader.log_end(), Offset::new(5));
        core.flush(core.flush_target()).await.unwrap();
        drop(core);
        disk.power_cut(4);
        let core = bare_core(&disk);
        assert_eq!(core.last_log_id(), Some(log_id(3, 4)));
        assert_eq!(core.reader.log_end(), Offset::new(5));
        let ids = core.key_log_ids(log_id(0, 0), log_id(3, 4));
        assert_eq!(ids, [log_id(0, 0), log_id(1, 2), log_id(3, 4)]);
    });
}

#[test]
fn entries_below_the_log_start_that_another_leader_replaces_are_truncated() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core(&disk);
        let entries = vec![
            blank(1, 1),
            data(1, 2, 0, batch(1)),
            data(1, 3, 2, batch(1)),
        ];
        core.append(entries).await.unwrap();
        // The leader's log starts above what this replica has beyond the snapshot.
        core.install(Purged {
            last: Some(log_id(1, 2)),
            start_offset: Offset::new(2),
            log_start: Offset::new(3),
            membership: core.applied_state().1,
        })
        .await
        .unwrap();
        core.truncate_after(Some(log_id(1, 2))).await.unwrap();
        assert_eq!(core.last_log_id(), Some(log_id(1, 2)));
        assert_eq!(core.shared.high_watermark(), Offset::new(3));
    });
}

#[test]
fn a_replica_that_missed_dropped_entries_starts_where_the_log_starts() {
    simulate(1, async {
        let mut three = Three::start().await;
        three.network.remove(NodeId::new(3));
        three.nodes[2].abandon().await;
        for id in 1..60 {
            produce(&three.groups[0], id).await.unwrap();
        }
        let end = three.groups[0].offsets().log_end.offset();
        let start = Offset::new(end.get() - 10);
        three.groups[0].advance_log_start(start).await.unwrap();
        let leader = three.groups[0].clone();
        eventually("the leader has dropped segments", &three.groups, || {
            leader.reader().log_start() > Offset::ZERO
        })
        .await;
        let (node, third) = three.start_node(3).await;
        three.nodes[2] = node;
        three.groups[2] = third.clone();
        eventually("the third node has caught up", &three.groups, || {
            third.offsets() == leader.offsets()
        })
        .await;
        assert!(third.reader().log_start() > Offset::ZERO);
        // And it finds itself there again after a restart.
        three.nodes[2].abandon().await;
        let (node, third) = three.start_node(3).await;
        three.nodes[2] = node;
        three.groups[2] = third.clone();
        eventually("the third node is back", &three.groups, || {
            third.offsets() == leader.offsets()
        })
        .await;
    });
}

fn members(voters: &[u64], learners: &[u64]) -> Membership {
    Membership::new_with_defaults(vec![voters.iter().copied().collect()], learners.to_vec())
}

#[test]
fn a_snapshot_replaces_a_tail_with_two_memberships_after_a_restart() {
    simulate(1, async {
        let disk = SimDisk::new();
        let core = bare_core_of(&disk, &[1, 2, 3]);
        let membership = |index, membership| Entry {
            log_id: log_id(1, index),
            payload: Payload::Membership(membership),
        };
        // The first membership was committed, which this replica has never heard.
        let first = members(&[1, 2, 3], &[4]);
        core.append(vec![
            blank(1, 1),
            membership(2, first.clone()),
            membership(3, members(&[1, 2, 3], &[4, 5])),
            data(1, 4, 0, batch(1)),
            data(1, 5, 2, batch(1)),
        ])
        .await
        .unwrap();
        core.flush(core.flush_target()).await.unwrap();
        core.votes
            .save(key(), Vote::new_committed(1, 2))
            .await
            .unwrap();
        drop(core);
        let node = start_node(1, &disk, Arc::new(NoNetwork)).unwrap();
        let group = open_group(&node, &[1, 2, 3]).await.unwrap();
        let snapshot = Snapshot {
            meta: SnapshotMeta {
                last_log_id: Some(log_id(2, 5)),
                last_membership: StoredMembership::new(Some(log_id(1, 2)), first),
            },
            snapshot: SnapshotState {
                start_offset: Offset::new(7),
                log_start: Offset::new(7),
            },
        };
        let vote = Vote::new_committed(2, 3);
        let reply = node.serve_snapshot(key(), SnapshotOffer { vote, snapshot });
        assert_eq!(reply.await.unwrap().vote, vote);
        assert_eq!(group.offsets().log_end.get(), 7);
        assert!(group.membership().has(NodeId::new(4)));
        assert!(!group.membership().has(NodeId::new(5)));
        assert!(group.raft().with_raft_state(|_| ()).await.is_ok());
    });
}
