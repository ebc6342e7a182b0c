//! Logs that are cut off, or go on behind a snapshot, on a disk that stops at every step of it in turn.
//!
//! Whatever the step: what is found afterwards is the log as it was, or as it was to be, and lacks nothing
//! at its end but what was not durable. In particular no batch that was to go takes the place of an entry
//! of another kind. The log goes on from there, and that holds as well if the power fails again during
//! the opening.

use std::collections::BTreeSet;
use std::sync::Arc;

use odradek_protocol::batch::{BatchHeader, BatchIter};
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_storage::flush::Flusher;
use odradek_storage::{Log, LogDirHealth, SimDisk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc;

use super::{DATA_DIR, batch, data_dir, group_spec, id_of, key, seeds, simulate};
use crate::NoObserver;
use crate::entry_map::{EntryMap, Location, NonData, Purged};
use crate::log_core::{Core, CoreHandle, nth_header};
use crate::open::{self, OpenedLog};
use crate::shared::Shared;
use crate::types::{
    BatchCommand, Command, Entry, LogId, Membership, Payload, RaftIndex, Stamp, StoredMembership,
    epoch_of, log_id, term_of,
};
use crate::votes::VoteFile;

const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Batch(u64),
    Blank,
    Membership,
    LogStart(i64),
}

impl What {
    fn offsets(self) -> i64 {
        match self {
            Self::Batch(id) => (id % 3) as i64 + 1,
            _ => 0,
        }
    }
}

/// What a log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    first: u64,
    start: i64,
    /// Term of the entry before the first.
    term_before: u64,
    entries: Vec<(u64, What)>,
}

impl Content {
    fn end_index(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn offset_at(&self, index: u64) -> i64 {
        let before = &self.entries[..(index - self.first) as usize];
        self.start + before.iter().map(|(_, what)| what.offsets()).sum::<i64>()
    }

    fn end(&self) -> i64 {
        self.offset_at(self.end_index())
    }

    fn id_of(&self, index: u64) -> LogId {
        let term = match index.checked_sub(self.first) {
            Some(at) => self.entries[at as usize].0,
            None => self.term_before,
        };
        log_id(term, index)
    }

    fn is_prefix_of(&self, other: &Self) -> bool {
        self.first == other.first
            && self.start == other.start
            && other.entries.starts_with(&self.entries)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append(Vec<(u64, What)>, bool),
    Truncate(u64),
    Install(Purged),
}

/// What is done to a log, and what it holds after each.
struct Plan {
    ops: Vec<Op>,
    contents: Vec<Content>,
}

fn voters() -> Membership {
    Membership::new_with_defaults(vec![BTreeSet::from([1, 2, 3])], [])
}

fn plan(seed: u64) -> Plan {
    let mut random = StdRng::seed_from_u64(seed);
    let mut next_id = 1;
    let mut term = 0;
    let mut content = Content {
        first: 0,
        start: 0,
        term_before: 0,
        entries: vec![(0, What::Membership)],
    };
    let mut last_purged_term = 0;
    let mut plan = Plan {
        ops: Vec::new(),
        contents: vec![content.clone()],
    };
    for round in 0..random.random_range(3..6) {
        // Some terms, all of which begin with a blank entry.
        let mut entries = Vec::new();
        for _ in 0..random.random_range(1..4) {
            if term == 0 || round > 0 && entries.is_empty() || random.random_ratio(1, 2) {
                term += 1;
                entries.push((term, What::Blank));
            }
            for _ in 0..random.random_range(1..14) {
                let what = match random.random_range(0..10) {
                    0 => What::Blank,
                    1 => What::Membership,
                    2 => What::LogStart(0),
                    _ => What::Batch(next_id),
                };
                next_id += 1;
                entries.push((term, what));
            }
        }
        content.entries.extend(&entries);
        plan.ops
            .push(Op::Append(entries, random.random_ratio(3, 4)));
        plan.contents.push(content.clone());
        if random.random_ratio(3, 4) {
            let lowest = content.first.max(1);
            let cut = random.random_range(lowest..=content.end_index());
            content.entries.truncate((cut - content.first) as usize);
            plan.ops.push(Op::Truncate(cut));
        } else {
            // Beyond the end or in the middle of what is there, with which it has nothing in common.
            let beyond = random.random_range(0..5);
            let (index, of) = match random.random_ratio(1, 2) {
                true => (content.end_index() + beyond, term),
                false => (
                    random.random_range(content.first..content.end_index()),
                    term + 1,
                ),
            };
            term = of.max(last_purged_term);
            last_purged_term = term;
            let start = random.random_range(content.start..=content.end() + 10);
            plan.ops.push(Op::Install(Purged {
                last: Some(log_id(term, index)),
                start_offset: Offset::new(start),
                log_start: Offset::new(start + random.random_range(0..3)),
                membership: StoredMembership::new(Some(log_id(0, 0)), voters()),
            }));
            content = Content {
                first: index + 1,
                start,
                term_before: term,
                entries: Vec::new(),
            };
        }
        plan.contents.push(content.clone());
    }
    plan
}

fn open_log(disk: &SimDisk) -> Result<OpenedLog, crate::RaftError> {
    let shared = disk.shared();
    shared
        .create_dir_all(data_dir())
        .and_then(|()| shared.sync_dir(std::path::Path::new("/")))
        .map_err(|error| crate::RaftError::io("make the data directory", error))?;
    let health = LogDirHealth::new(DATA_DIR);
    open::open(shared, health, &group_spec(&[1, 2, 3]), false, 2, NOW)
}

/// The log as openraft would have it; `None` if the disk stops.
fn core_of(disk: &SimDisk) -> Option<CoreHandle> {
    let opened = open_log(disk).ok()?;
    let flusher = Arc::new(Flusher::inline(LogDirHealth::new(DATA_DIR)));
    let votes = VoteFile::open(disk.shared(), data_dir(), flusher.clone()).ok()?;
    let shared = Shared::new(key(), 2, 64, Arc::new(NoObserver), None);
    let (housekeeper, _) = mpsc::unbounded_channel();
    let clock = Arc::new(|| NOW);
    Some(Core::new(
        shared,
        flusher,
        votes,
        clock,
        housekeeper,
        opened.log,
        opened.journal,
        opened.map,
        opened.applied,
    ))
}

fn entries_from(content: &Content, entries: &[(u64, What)]) -> Vec<Entry> {
    let mut offset = content.end();
    (content.end_index()..)
        .zip(entries)
        .map(|(index, (term, what))| {
            let payload = match what {
                What::Blank => Payload::Blank,
                What::Membership => Payload::Membership(voters()),
                What::LogStart(start) => Payload::Normal(Command::LogStart(Offset::new(*start))),
                What::Batch(id) => {
                    let bytes = batch(*id);
                    let header = BatchHeader::parse(&bytes).unwrap();
                    Payload::Normal(Command::Batch(Box::new(BatchCommand {
                        bytes,
                        header,
                        stamp: Stamp::Foreseen(Offset::new(offset)),
                        waiter: None,
                    })))
                }
            };
            offset += what.offsets();
            Entry {
                log_id: log_id(*term, index),
                payload,
            }
        })
        .collect()
}

/// Up to where the plan has come: how much of it is done, and how many entries are durable for sure.
#[derive(Clone, Copy, Default)]
struct Progress {
    done: usize,
    durable_end: u64,
}

/// Carries the plan out until the disk stops.
async fn carry_out(disk: &SimDisk, plan: &Plan, progress: &mut Progress) {
    let Some(core) = core_of(disk) else {
        return;
    };
    for (op, (before, after)) in plan
        .ops
        .iter()
        .zip(plan.contents.iter().zip(&plan.contents[1..]))
    {
        let (result, is_durable) = match op {
            Op::Append(entries, flushed) => {
                let mut result = core.append(entries_from(before, entries)).await.map(drop);
                if result.is_ok() && *flushed {
                    result = core.flush(core.flush_target()).await;
                }
                (result, *flushed)
            }
            Op::Truncate(index) => {
                let last = before.id_of(index - 1);
                (core.truncate_after(Some(last)).await, true)
            }
            Op::Install(purged) => (core.install(purged.clone()).await, true),
        };
        if result.is_err() {
            return;
        }
        progress.done += 1;
        if is_durable {
            progress.durable_end = after.end_index();
        }
    }
}

fn content_of(log: &Log, map: &EntryMap) -> Content {
    let first = map.first_index().get();
    let mut content = Content {
        first,
        start: map.purged().start_offset.get(),
        term_before: map.purged().last.as_ref().map_or(0, term_of),
        entries: Vec::new(),
    };
    let reader = log.reader();
    for index in first..map.next_index().get() {
        let (term, what) = match map.locate(RaftIndex::new(index)) {
            Location::Absent => panic!("entry {index} is missing"),
            Location::NonData { term, entry, .. } => {
                let what = match entry {
                    NonData::Blank => What::Blank,
                    NonData::Membership(_) => What::Membership,
                    NonData::LogStart(offset) => What::LogStart(offset.get()),
                };
                (term, what)
            }
            Location::Batch {
                term,
                anchor_offset,
                ordinal,
            } => {
                let header = nth_header(&reader, anchor_offset, ordinal).unwrap();
                assert_eq!(header.base_offset.get(), content.end(), "entry {index}");
                assert_eq!(
                    header.partition_leader_epoch,
                    epoch_of(term),
                    "entry {index}"
                );
                let slice = reader.read(header.base_offset, usize::MAX, reader.log_end(), true);
                let bytes = slice.unwrap().read().unwrap();
                let view = BatchIter::new(&bytes).next().unwrap().unwrap();
                assert_eq!(view.header.base_offset, header.base_offset);
                (term, What::Batch(id_of(&view.header, view.bytes)))
            }
        };
        content.entries.push((term, what));
    }
    assert_eq!(map.next_offset().get(), content.end());
    assert_eq!(reader.log_end().get(), content.end());
    content
}

/// Whether `found` is what may be there.
fn is_possible(found: &Content, plan: &Plan, progress: Progress) -> bool {
    let before = &plan.contents[progress.done];
    let candidates = plan.contents.iter().skip(progress.done).take(2);
    candidates.into_iter().any(|candidate| {
        // What was durable and was not to go.
        let shared = match candidate.first == before.first && candidate.start == before.start {
            true => {
                let pairs = candidate.entries.iter().zip(&before.entries);
                before.first + pairs.take_while(|(one, other)| one == other).count() as u64
            }
            false => candidate.first,
        };
        found.is_prefix_of(candidate) && found.end_index() >= progress.durable_end.min(shared)
    })
}

/// One more term, with a batch, behind what was found.
async fn goes_on(disk: &SimDisk, found: &Content, what: &str) {
    let core = core_of(disk).unwrap_or_else(|| panic!("{what}: does not open again"));
    let more = [(90, What::Blank), (90, What::Batch(5_000))];
    core.append(entries_from(found, &more)).await.unwrap();
    core.flush(core.flush_target()).await.unwrap();
    drop(core);
    disk.power_cut(7);
    let opened = open_log(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut expected = found.clone();
    expected.entries.extend(more);
    assert_eq!(content_of(&opened.log, &opened.map), expected, "{what}");
}

#[test]
fn a_power_cut_after_any_step_of_a_cut_leaves_the_log_as_it_was_or_as_it_was_to_be() {
    for seed in seeds(12) {
        let plan = plan(seed);
        let disk = SimDisk::new();
        simulate(seed, async {
            let mut progress = Progress::default();
            carry_out(&disk, &plan, &mut progress).await;
            assert_eq!(progress.done, plan.ops.len(), "seed {seed}: {:?}", plan.ops);
        });
        for step in 1..=disk.steps() {
            let what = format!("ODRADEK_SEED={seed}, step {step}");
            let disk = SimDisk::new();
            simulate(seed, async {
                disk.stop_at(step);
                let mut progress = Progress::default();
                carry_out(&disk, &plan, &mut progress).await;
                disk.power_cut(step);
                // And once more, somewhere in the opening.
                disk.stop_at(disk.steps() + 1 + step % 30);
                drop(open_log(&disk));
                disk.power_cut(step + 1);
                let opened = open_log(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = content_of(&opened.log, &opened.map);
                assert!(
                    is_possible(&found, &plan, progress),
                    "{what}: after {} of {:?}\nfound {found:?}\nbefore {:?}\nto be {:?}",
                    progress.done,
                    plan.ops,
                    plan.contents[progress.done],
                    plan.contents.get(progress.done + 1),
                );
                drop(opened);
                goes_on(&disk, &found, &what).await;
            });
        }
    }
}
