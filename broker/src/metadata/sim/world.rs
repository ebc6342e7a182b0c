//! Five nodes, three of which vote on the metadata, and everything that can be done to them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, Offset, TimestampMs};
use odradek_raft::memory_network::MemoryNetwork;
use odradek_raft::{DataDir, RaftNode, RaftNodeOptions, Timing};
use odradek_storage::flush::Flusher;
use odradek_storage::{LogDirHealth, SimDisk};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use super::checker::{Answered, Checker};
use super::commands::{self, Command};
use crate::clock::ManualClock;
use crate::cluster::duties::{Troubles, follow_nodes, judge_sessions, name_cluster};
use crate::cluster::sessions::Sessions;
use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::checkpoint::fetch::{CheckpointSource, FetchError};
use crate::metadata::checkpoint::keeper::CheckpointRules;
use crate::metadata::checkpoint::store::Piece;
use crate::metadata::controller::register_broker::{Registrant, Registration, register_broker};
use crate::metadata::image::MetadataImage;
use crate::metadata::records::{BrokerEndpoint, MetadataRecord};
use crate::metadata::service::{MetadataError, MetadataOptions, MetadataService};

const DATA_DIR: &str = "/data";
const NODES: i32 = 5;
const VOTERS: i32 = 3;
/// How long a broker may be silent before it is fenced.
const SESSION: Duration = Duration::from_millis(1_500);
/// Between two looks of the metadata leader.
const DUTY_PERIOD: Duration = Duration::from_millis(100);
/// How long whoever asks waits for the answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// Between two looks of the checker.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// How long it may take until everything is as it should be once everything is mended.
const MENDED_WITHIN: Duration = Duration::from_secs(60);
const CHECKPOINTS: CheckpointRules = CheckpointRules {
    bytes_between: 6 << 10,
    interval: Some(Duration::from_secs(20)),
};

pub(super) fn node_id(node: i32) -> NodeId {
    NodeId::new(node)
}

/// Where nodes have checkpoints from: each other, directly.
type Services = Arc<Mutex<HashMap<NodeId, Weak<MetadataService>>>>;

struct Direct(Services);

impl CheckpointSource for Direct {
    fn piece(
        &self,
        from: NodeId,
        wanted: Option<CheckpointId>,
        position: u64,
    ) -> BoxFuture<'static, Result<Piece, FetchError>> {
        let service = self.0.lock().get(&from).and_then(Weak::upgrade);
        Box::pin(async move {
            let gone = || FetchError::Refused("it does not answer".to_owned());
            let service = service.ok_or_else(gone)?;
            // A message there and one back.
            tokio::time::sleep(Duration::from_millis(4)).await;
            let piece = service.checkpoints().piece(wanted, position).await?;
            piece.ok_or_else(gone)
        })
    }
}

/// A process.
struct Process {
    raft: Arc<RaftNode>,
    service: Arc<MetadataService>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Node {
    disk: SimDisk,
    process: Option<Process>,
    /// How often it was started.
    starts: u64,
}

pub(super) struct World {
    pub(super) random: StdRng,
    pub(super) network: MemoryNetwork,
    pub(super) checker: Checker,
    pub(super) trace: Vec<String>,
    nodes: Vec<Node>,
    services: Services,
    /// What was answered since the last look.
    answers: Arc<Mutex<Vec<Answered>>>,
    /// The highest end that was answered.
    known: Arc<Mutex<Offset>>,
    founded: bool,
}

impl World {
    /// All nodes, registered and in step.
    pub(super) async fn start(seed: u64) -> Self {
        let network = MemoryNetwork::new();
        network.break_streams_after(Duration::from_millis(700));
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            network,
            checker: Checker::default(),
            trace: Vec::new(),
            nodes: (0..NODES)
                .map(|_| Node {
                    disk: SimDisk::new(),
                    process: None,
                    starts: 0,
                })
                .collect(),
            services: Services::default(),
            answers: Arc::default(),
            known: Arc::default(),
            founded: false,
        };
        for node in 1..=NODES {
            world.start_node(node).await;
        }
        world.wait_until_in_step().await;
        world.founded = true;
        world
    }

    pub(super) fn any(&mut self) -> i32 {
        self.random.random_range(1..=NODES)
    }

    fn node(&mut self, node: i32) -> &mut Node {
        let at = usize::try_from(node - 1).expect("nodes count from 1");
        &mut self.nodes[at]
    }

    fn running(&self) -> Vec<(i32, u64, Arc<MetadataService>)> {
        (1..)
            .zip(&self.nodes)
            .filter_map(|(number, node)| {
                let process = node.process.as_ref()?;
                Some((number, node.starts, Arc::clone(&process.service)))
            })
            .collect()
    }

    /// Starts a node that does not run.
    pub(super) async fn start_node(&mut self, number: i32) {
        let (network, services) = (self.network.clone(), Arc::clone(&self.services));
        let bootstrap = !self.founded && number <= VOTERS;
        let node = self.node(number);
        if node.process.is_some() {
            return;
        }
        node.starts += 1;
        let raft = RaftNode::open(raft_options(number, &node.disk, &network)).expect("it opens");
        network.add(&raft);
        let voters: Vec<NodeId> = match number <= VOTERS {
            true => (1..=VOTERS).map(node_id).collect(),
            false => Vec::new(),
        };
        let options = MetadataOptions {
            node_id: node_id(number),
            log_dir: PathBuf::from(DATA_DIR),
            voters: voters.clone(),
            bootstrap,
            clock: Arc::new(ManualClock::starting_at(TimestampMs::new(
                1_700_000_000_000,
            ))),
            disk: node.disk.shared(),
            checkpoints: CHECKPOINTS,
            source: Arc::new(Direct(Arc::clone(&services))),
        };
        let service = MetadataService::open(&raft, options)
            .await
            .expect("it opens");
        services
            .lock()
            .insert(node_id(number), Arc::downgrade(&service));
        let mut tasks = vec![tokio::spawn(lead(Arc::clone(&service), Arc::clone(&raft)))];
        if bootstrap {
            let service = Arc::clone(&service);
            tasks.push(tokio::spawn(async move {
                name_cluster(&service, voters, Vec::new(), Some("cluster".to_owned())).await;
            }));
        }
        let starts = node.starts;
        node.process = Some(Process {
            raft,
            service,
            tasks,
        });
        let registering = register(
            registration(number, starts),
            Arc::clone(&self.services),
            Arc::clone(&self.answers),
            Arc::clone(&self.known),
        );
        let task = tokio::spawn(registering);
        if let Some(process) = &mut self.node(number).process {
            process.tasks.push(task);
        }
    }

    /// Kills a node, in the middle of a write if it comes to one soon. With `power`, what its disk had
    /// not synced is lost.
    pub(super) async fn kill(&mut self, number: i32, power: bool) {
        let (in_steps, seed) = (self.random.random_range(1..6), self.random.random());
        let network = self.network.clone();
        let node = self.node(number);
        let Some(process) = node.process.take() else {
            return;
        };
        let disk = node.disk.clone();
        if power {
            disk.stop_at(disk.steps() + in_steps);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        network.remove(node_id(number));
        self.services.lock().remove(&node_id(number));
        if power {
            disk.stop_at(disk.steps() + 1);
        }
        process.raft.abandon().await;
        drop(process);
        // What it had begun and is aborted ends before the disk comes back.
        tokio::time::sleep(Duration::from_millis(1)).await;
        if power {
            disk.power_cut(seed);
        }
    }

    /// Cuts the power of all nodes.
    pub(super) async fn kill_all(&mut self) {
        for node in self.nodes.iter().filter(|node| node.process.is_some()) {
            node.disk.stop_at(node.disk.steps() + 1);
        }
        for number in 1..=NODES {
            self.kill(number, true).await;
        }
    }

    pub(super) fn cut(&mut self, one: i32, other: i32) {
        self.network.cut(node_id(one), node_id(other));
    }

    pub(super) fn cut_one_way(&mut self, one: i32, other: i32) {
        self.network.cut_one_way(node_id(one), node_id(other));
    }

    pub(super) fn heal(&mut self) {
        self.network.heal();
    }

    pub(super) fn slow_down(&mut self, one: i32, other: i32) {
        let delay = Duration::from_millis(self.random.random_range(0..40));
        self.network.delay(node_id(one), node_id(other), delay);
    }

    /// Has whoever leads hand over to a node.
    pub(super) async fn hand_over(&mut self, to: i32) {
        let running = self.running();
        let leading = running.iter().find(|(_, _, service)| service.is_leading());
        if let Some((_, _, service)) = leading {
            // Both outcomes are fine: the one asked for may be cut off, or have no vote.
            let _ = service.group().transfer_leader(node_id(to)).await;
        }
    }

    /// Asks for some change, of a node that leads if one says so.
    pub(super) fn ask_something(&mut self) {
        let running = self.running();
        let leads = |it: &&(i32, u64, Arc<MetadataService>)| it.2.is_leading();
        let leading: Vec<_> = running.iter().filter(leads).collect();
        let asked = match self.random.random_ratio(1, 20) {
            true => running.choose(&mut self.random),
            false => leading.choose(&mut self.random).copied(),
        };
        let Some((_, _, service)) = asked else {
            return;
        };
        let known = running.choose(&mut self.random).map(|it| it.2.image());
        let image: Arc<MetadataImage> = known.unwrap_or_default();
        for _ in 0..self.random.random_range(1..4) {
            let command = commands::random(&mut self.random, &image);
            self.trace.push(command.what.clone());
            let (answers, known) = (Arc::clone(&self.answers), Arc::clone(&self.known));
            let service = Arc::clone(service);
            tokio::spawn(async move {
                let asking = ask(&service, command, &answers, &known);
                // Whoever gives up does not know what became of it.
                let _ = tokio::time::timeout(PATIENCE, asking).await;
            });
        }
    }

    /// Lets time pass, and looks at everything that can be seen.
    pub(super) async fn pass(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        loop {
            self.look();
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_PERIOD)).await;
        }
    }

    fn look(&mut self) {
        for (number, starts, service) in self.running() {
            let image = service.image();
            self.checker.look(number, starts, service.group(), &image);
        }
        for answered in self.answers.lock().drain(..) {
            self.checker.answered(answered);
        }
    }

    /// Mends everything, and looks whether everything is as it should be.
    pub(super) async fn settle(&mut self) {
        self.network.heal();
        for one in 1..=NODES {
            self.network.thaw(node_id(one));
            for other in 1..=NODES {
                self.network
                    .delay(node_id(one), node_id(other), Duration::ZERO);
            }
        }
        for number in 1..=NODES {
            let process = self.node(number).process.as_ref();
            let failed = process.is_some_and(|it| it.service.group().offline_cause().is_some());
            if failed {
                self.kill(number, true).await;
            }
            self.start_node(number).await;
        }
        self.wait_until_in_step().await;
        self.checker.nothing_is_lost();
        for (number, _, service) in self.running() {
            assert_eq!(&*service.image(), self.checker.last(), "node {number}");
        }
    }

    /// Waits until all nodes run as registered brokers, and know the same.
    async fn wait_until_in_step(&mut self) {
        let deadline = tokio::time::Instant::now() + MENDED_WITHIN;
        loop {
            self.pass(Duration::from_millis(100)).await;
            let running = self.running();
            let leader = running.iter().find(|(_, _, service)| service.is_leading());
            let in_step = leader.is_some_and(|(_, _, leader)| {
                let image = leader.image();
                let served = (1..=NODES).all(|number| {
                    let registered = image.broker(node_id(number));
                    let current = incarnation(number, self.nodes[number as usize - 1].starts);
                    registered.is_some_and(|it| it.incarnation_id == current)
                });
                served
                    && image.next_offset() == leader.group().offsets().log_end.offset()
                    && running.iter().all(|(_, _, it)| it.image() == image)
            });
            if in_step {
                return;
            }
            if tokio::time::Instant::now() >= deadline {
                for (number, _, service) in &running {
                    let group = service.group();
                    eprintln!(
                        "{number}: image to {}, {:?}, {:?}, offline {:?}\n    {}",
                        service.image().next_offset(),
                        group.leadership(),
                        group.offsets(),
                        group.offline_cause(),
                        group.describe(),
                    );
                }
                panic!("the nodes are not in step {MENDED_WITHIN:?} after everything was mended");
            }
        }
    }

    /// Checkpoints that there are now, on all nodes.
    pub(super) fn checkpoints_seen(&self) -> usize {
        let dir = Path::new(DATA_DIR).join("__cluster_metadata-0");
        self.nodes
            .iter()
            .filter_map(|node| node.disk.shared().list(&dir).ok())
            .flatten()
            .filter(|entry| entry.name.ends_with(".checkpoint"))
            .count()
    }
}

fn raft_options(number: i32, disk: &SimDisk, network: &MemoryNetwork) -> RaftNodeOptions {
    let shared = disk.shared();
    let dir = Path::new(DATA_DIR);
    shared.create_dir_all(dir).expect("made");
    shared.sync_dir(Path::new("/")).expect("synced");
    let data_dir = DataDir {
        path: dir.to_path_buf(),
        flusher: Arc::new(Flusher::inline(LogDirHealth::new(DATA_DIR))),
    };
    let way = Arc::new(network.clone());
    let mut options = RaftNodeOptions::new(node_id(number), shared, vec![data_dir], way);
    options.probes = Some(Arc::new(network.clone()));
    // The only random number that openraft draws is between the last two.
    options.timing = Timing {
        heartbeat_ms: 10_000,
        election_min_ms: 30_000 + 1_000 * number as u64,
        election_max_ms: 30_001 + 1_000 * number as u64,
    };
    options.clock = Arc::new(|| TimestampMs::new(1_700_000_000_000));
    options
}

fn incarnation(number: i32, starts: u64) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&starts.to_be_bytes());
    Uuid::from_bytes(bytes)
}

fn registration(number: i32, starts: u64) -> Registration {
    Registration {
        broker_id: node_id(number),
        incarnation_id: incarnation(number, starts),
        endpoints: vec![BrokerEndpoint {
            name: "SIM".to_owned(),
            host: "node".to_owned(),
            port: 1,
            security_protocol: 0,
        }],
        rack: (number % 2 == 0).then(|| "even".to_owned()),
        log_dirs: vec![incarnation(number, 0)],
        voters: Vec::new(),
    }
}

/// What the metadata leader does without being asked.
async fn lead(service: Arc<MetadataService>, raft: Arc<RaftNode>) {
    let mut sessions = Sessions::default();
    let troubles = Troubles::default();
    loop {
        if service.is_leading() {
            let image = service.image();
            follow_nodes(&service, &image, &troubles).await;
            judge_sessions(&service, &raft, SESSION, &mut sessions, &image, &troubles).await;
        } else {
            sessions = Sessions::default();
        }
        tokio::time::sleep(DUTY_PERIOD).await;
    }
}

async fn ask(
    service: &MetadataService,
    command: Command,
    answers: &Mutex<Vec<Answered>>,
    known: &Mutex<Offset>,
) -> Result<Vec<MetadataRecord>, MetadataError> {
    let known_before = *known.lock();
    let Command { what, decide } = command;
    let done = service
        .run(move |image| {
            let records = decide(image);
            (records.clone(), records)
        })
        .await?;
    let mut known = known.lock();
    *known = known.max(done.offset);
    answers.lock().push(Answered {
        what,
        records: done.value.clone(),
        end: done.offset,
        known: known_before,
    });
    Ok(done.value)
}

/// A broker registers with whoever leads, until the metadata says so, and again when it was unregistered.
async fn register(
    registration: Registration,
    services: Services,
    answers: Arc<Mutex<Vec<Answered>>>,
    known: Arc<Mutex<Offset>>,
) {
    loop {
        tokio::time::sleep(Duration::from_millis(70)).await;
        let mut all: Vec<_> = services
            .lock()
            .iter()
            .filter_map(|(id, service)| Some((*id, service.upgrade()?)))
            .collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        let Some((led_by, leader)) = all.into_iter().find(|(_, it)| it.is_leading()) else {
            continue;
        };
        let registrant = Registrant {
            peer_protocol: 2,
            is_here: led_by == registration.broker_id,
        };
        let image = leader.image();
        let known_as = image.broker(registration.broker_id);
        if known_as.is_some_and(|it| it.incarnation_id == registration.incarnation_id) {
            continue;
        }
        let registration = registration.clone();
        let command = Command {
            what: format!("register {}", registration.broker_id),
            decide: Box::new(move |image| {
                let incarnation = registration.incarnation_id;
                let known_as = image.broker(registration.broker_id);
                // The cluster has to have its name first.
                if image.cluster().is_none()
                    || known_as.is_some_and(|it| it.incarnation_id == incarnation)
                {
                    return Vec::new();
                }
                register_broker(image, &registration, registrant, 0).unwrap_or_default()
            }),
        };
        // Whoever gives up tries again.
        let asking = ask(&leader, command, &answers, &known);
        let _ = tokio::time::timeout(PATIENCE, asking).await;
    }
}
