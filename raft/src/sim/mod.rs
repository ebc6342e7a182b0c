//! Groups in virtual time, on simulated disks and an in-memory network, driven by a seed.
//!
//! `ODRADEK_SEED=n` runs the tests of this module with that seed alone; `ODRADEK_SIM_SEEDS=n` with n
//! seeds in place of the usual few, from `ODRADEK_SIM_FIRST` (1) on.

mod chaos;
mod cluster;
mod compacting;
mod crash;
mod cutting;
mod disk_chaos;
mod drawn;
mod failover;
mod invariants;
mod joining;
mod keyed;
mod traps;
mod unclean;
mod unclean_chaos;
mod wiped;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::batch::{BatchHeader, BatchIter};
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TimestampMs, TopicId};
use odradek_protocol::records::{BatchBuilder, NewRecord, RecordWalker};
use odradek_storage::flush::Flusher;
use odradek_storage::{LogConfig, LogDirHealth, SimDisk};
use tokio::sync::oneshot;

use crate::memory_network::MemoryNetwork;
use crate::network::Network;
use crate::types::Runtime;
use crate::{
    AppendOutcome, DataDir, Group, GroupKey, GroupSpec, NoObserver, Proposal, ProposeError,
    RaftError, RaftNode, RaftNodeOptions, Timing,
};

const DATA_DIR: &str = "/data";

fn key() -> GroupKey {
    GroupKey::new(TopicId::from_bytes([7; 16]), PartitionIndex::new(0))
}

fn data_dir() -> &'static Path {
    Path::new(DATA_DIR)
}

fn group_dir() -> PathBuf {
    data_dir().join("topic-0")
}

/// Small segments, so that rolls are frequent.
fn log_config() -> LogConfig {
    LogConfig {
        segment_bytes: 2048,
        index_interval_bytes: 256,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

/// Runs `test` in virtual time with every random number drawn from `seed`.
fn simulate<T>(seed: u64, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(Runtime::scope(seed, test))
}

/// The seeds to run: the one of `ODRADEK_SEED`, or the first `count`.
fn seeds(count: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("ODRADEK_SEED") {
        return vec![seed.parse().unwrap()];
    }
    let number = |name: &str| Some(std::env::var(name).ok()?.parse::<u64>().unwrap());
    let first = number("ODRADEK_SIM_FIRST").unwrap_or(1);
    let count = number("ODRADEK_SIM_SEEDS").unwrap_or(count);
    (first..first + count).collect()
}

/// Runs `test` for every seed and says which one to replay if it fails.
fn for_seeds<F: Future<Output = ()>>(count: u64, test: impl Fn(u64) -> F) {
    for seed in seeds(count) {
        let said = PrintOnPanic(seed, Cell::new(true));
        simulate(seed, test(seed));
        said.1.set(false);
    }
}

struct PrintOnPanic(u64, Cell<bool>);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if self.1.get() {
            eprintln!("replay with ODRADEK_SEED={}", self.0);
        }
    }
}

/// Virtual milliseconds, from a date on.
fn virtual_clock() -> Arc<dyn Fn() -> TimestampMs + Send + Sync> {
    let start = tokio::time::Instant::now();
    Arc::new(move || {
        let elapsed = start.elapsed().as_millis() as i64;
        TimestampMs::new(1_700_000_000_000 + elapsed)
    })
}

/// A node on a simulated disk, with quick clocks and without a failure detector.
fn start_node(
    id: i32,
    disk: &SimDisk,
    network: Arc<dyn Network>,
) -> Result<Arc<RaftNode>, RaftError> {
    let mut options = node_options(id, disk, network)?;
    options.timing = Timing {
        // Three quarters of it are the limit for answers. Timers go off at whole milliseconds, so
        // a limit that is none would depend on when, within one, the run began.
        heartbeat_ms: 80,
        election_min_ms: 240,
        election_max_ms: 480,
    };
    RaftNode::open(options)
}

/// A node on a simulated disk, with a failure detector and the slow clocks that go with it.
fn start_detecting_node(
    id: i32,
    disk: &SimDisk,
    network: &MemoryNetwork,
) -> Result<Arc<RaftNode>, RaftError> {
    let mut options = node_options(id, disk, Arc::new(network.clone()))?;
    options.probes = Some(Arc::new(network.clone()));
    RaftNode::open(options)
}

fn node_options(
    id: i32,
    disk: &SimDisk,
    network: Arc<dyn Network>,
) -> Result<RaftNodeOptions, RaftError> {
    let shared = disk.shared();
    shared
        .create_dir_all(data_dir())
        .and_then(|()| shared.sync_dir(Path::new("/")))
        .map_err(|error| RaftError::io("make the data directory", error))?;
    let health = LogDirHealth::new(DATA_DIR);
    let mut options = RaftNodeOptions::new(
        NodeId::new(id),
        shared,
        vec![DataDir {
            path: data_dir().to_path_buf(),
            flusher: Arc::new(Flusher::inline(health)),
        }],
        network,
    );
    options.clock = virtual_clock();
    // Short, so that replicas are left behind.
    options.transfers.hold = Duration::from_secs(1);
    Ok(options)
}

fn group_spec(voters: &[i32]) -> GroupSpec {
    GroupSpec {
        key: key(),
        dir: group_dir(),
        log_config: Arc::new(log_config()),
        voters: voters.iter().map(|id| NodeId::new(*id)).collect(),
        bootstrap: true,
        succession: None,
    }
}

async fn open_group(node: &RaftNode, voters: &[i32]) -> Result<Arc<Group>, RaftError> {
    open_spec(node, group_spec(voters)).await
}

async fn open_spec(node: &RaftNode, spec: GroupSpec) -> Result<Arc<Group>, RaftError> {
    node.open_group(spec, Arc::new(NoObserver)).await
}

/// A batch that says who it is, of 1 to 3 records, padded to some size.
fn batch(id: u64) -> Bytes {
    let value = [
        &id.to_be_bytes()[..],
        &vec![id as u8; (id % 7 * 40) as usize],
    ]
    .concat();
    let mut builder = BatchBuilder::new();
    for _ in 0..=id % 3 {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(1_700_000_000_000),
            key: None,
            value: Some(&value),
            headers: &[],
        });
    }
    builder.build()
}

/// Who a batch says it is.
fn id_of(header: &BatchHeader, batch: &[u8]) -> u64 {
    let record = RecordWalker::of_batch(header, batch)
        .next()
        .unwrap()
        .unwrap();
    u64::from_be_bytes(record.value.unwrap()[..8].try_into().unwrap())
}

type Committed = oneshot::Receiver<Result<AppendOutcome, ProposeError>>;

fn propose(group: &Group, id: u64) -> Result<(Offset, Committed), ProposeError> {
    let batch = batch(id);
    let header = BatchHeader::parse(&batch).unwrap();
    let (committed_tx, committed) = oneshot::channel();
    let offset = group.propose(Proposal {
        batch,
        header,
        appended: None,
        committed: committed_tx,
    })?;
    Ok((offset, committed))
}

async fn produce(group: &Group, id: u64) -> Result<AppendOutcome, ProposeError> {
    let (_, committed) = propose(group, id)?;
    committed.await.unwrap()
}

/// The batches of a log between two offsets: base offset → (id, bytes).
fn batches(group: &Group, from: Offset, to: Offset) -> BTreeMap<i64, (u64, Bytes)> {
    let reader = group.reader();
    let slice = reader.read(from, usize::MAX, to, true).unwrap();
    let bytes = slice.read().unwrap();
    BatchIter::new(&bytes)
        .map(|view| {
            let view = view.unwrap();
            let start = view.bytes.as_ptr() as usize - bytes.as_ptr() as usize;
            let whole = bytes.slice(start..start + view.bytes.len());
            (
                view.header.base_offset.get(),
                (id_of(&view.header, &whole), whole),
            )
        })
        .filter(|(base, _)| *base < to.get())
        .collect()
}

/// Waits, in virtual time, until something is so.
async fn eventually(what: &str, groups: &[Arc<Group>], mut so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for group in groups {
        eprintln!(
            "{:?} {:?} offline {:?}\n    {}",
            group.leadership(),
            group.offsets(),
            group.offline_cause(),
            group.describe(),
        );
    }
    panic!("not within 20 s: {what}");
}
