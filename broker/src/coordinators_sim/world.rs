//! The brokers, who leads what, and the network.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering as Atomic};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::{PartitionIndex, ProducerId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::checker::{Checker, Rule};
use super::dice::Dice;
use super::log::{Lead, ReplicatedLog, TermLog};
use super::sabotage::Sabotage;
use super::shell::SimWays;
use crate::coordinator::hosting::Coordinators as _;
use crate::coordinator::partitioner::partition_of;
use crate::groups::config::CoordinatorConfig as GroupsConfig;
use crate::groups::consumer::{BoundedMs, GroupSettings};
use crate::metadata::image::MetadataImage;
use crate::metadata::test_support::{apply, image_with_brokers, topic};
use crate::partition::Ordering;
use crate::txn::config::CoordinatorConfig as TxnsConfig;
use crate::txn::delivery::Delivery;
use crate::txn::error::TxnError;
use crate::txn::names::TxnVersion;
use crate::txn::service::FreshIds;
use crate::{groups, txn};

pub(super) const NODES: usize = 3;
/// Partitions of each topic of coordinators.
pub(super) const COORDINATORS: i32 = 2;
/// Partitions of the topic with records, which groups share out as well.
pub(super) const PARTITIONS: i32 = 4;
/// Its name, and the number that its id is made of.
pub(super) const TOPIC: &str = "work";
pub(super) const TOPIC_NUMBER: u8 = 9;
pub(super) const SESSION_MS: i32 = 3_000;
/// Not below the session timeout: so long a member that hears nothing counts on what it has.
pub(super) const REBALANCE_MS: i32 = 4_000;

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Offsets(i32),
    Transactions(i32),
    Records(i32),
}

/// The answer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// One life of a broker.
pub(super) struct Process {
    pub node: usize,
    pub number: u64,
    pub groups: Arc<groups::Service>,
    pub txns: Arc<txn::Service>,
    pub orderings: BTreeMap<Place, Mutex<Ordering>>,
}

pub(super) struct World {
    pub dice: Dice,
    pub checker: Mutex<Checker>,
    pub sabotage: Option<Sabotage>,
    pub version: TxnVersion,
    pub logs: BTreeMap<Place, Arc<ReplicatedLog>>,
    image: Arc<MetadataImage>,
    nodes: Mutex<Vec<Option<Arc<Process>>>>,
    starts: AtomicU64,
    producer_ids: AtomicI64,
    /// Nothing is lost, nobody fails.
    calm: AtomicBool,
    /// Producers begin no further transaction.
    winding_down: AtomicBool,
    /// Of a hundred messages so many are lost.
    loss: AtomicI64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl FreshIds for World {
    async fn fresh(&self) -> Result<ProducerId, TxnError> {
        let id = self.producer_ids.fetch_add(1, Atomic::Relaxed);
        Ok(ProducerId::new(id))
    }
}

fn group_config() -> GroupsConfig {
    let fixed = |ms| BoundedMs {
        default: ms,
        min: ms,
        max: ms,
    };
    GroupsConfig {
        group_min_session_timeout_ms: 1_000,
        group_initial_rebalance_delay_ms: 300,
        consumer: GroupSettings {
            session_timeout_ms: fixed(SESSION_MS),
            heartbeat_interval_ms: fixed(700),
            assignment_interval_ms: fixed(100),
            ..GroupSettings::default()
        },
        ..GroupsConfig::default()
    }
}

fn txn_config() -> TxnsConfig {
    TxnsConfig {
        timeout_check_interval_ms: 700,
        ..TxnsConfig::default()
    }
}

impl World {
    pub(super) fn new(seed: u64, sabotage: Option<Sabotage>, keeps_trace: bool) -> Arc<Self> {
        let dice = Dice::of(seed);
        let coordinators = 0..COORDINATORS;
        let places = coordinators
            .clone()
            .map(Place::Offsets)
            .chain(coordinators.map(Place::Transactions))
            .chain((0..PARTITIONS).map(Place::Records));
        let logs = places.map(|place| {
            let log = ReplicatedLog::new(format!("{place:?}"), dice.clone(), sabotage);
            (place, Arc::new(log))
        });
        let logs = logs.collect();
        let mut image = image_with_brokers(&[0, 1, 2]);
        let replicas: &[i32] = &[0, 1, 2];
        apply(
            &mut image,
            &topic(TOPIC, TOPIC_NUMBER, &[replicas; PARTITIONS as usize]),
        );
        let version = match dice.chance(2, 3) {
            true => TxnVersion::V2,
            false => TxnVersion::V0,
        };
        Arc::new(Self {
            dice,
            checker: Mutex::new(Checker::tracing(keeps_trace)),
            sabotage,
            version,
            logs,
            image: Arc::new(image),
            nodes: Mutex::new((0..NODES).map(|_| None).collect()),
            starts: AtomicU64::new(0),
            producer_ids: AtomicI64::new(1_000),
            calm: AtomicBool::new(false),
            winding_down: AtomicBool::new(false),
            loss: AtomicI64::new(1),
        })
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.dice.now_ms()
    }

    pub(super) fn note(&self, what: &str) {
        self.checker.lock().note(self.now_ms(), what);
    }

    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Atomic::Relaxed)
    }

    pub(super) fn is_winding_down(&self) -> bool {
        self.winding_down.load(Atomic::Relaxed)
    }

    pub(super) fn be_calm(&self) {
        self.calm.store(true, Atomic::Relaxed);
        self.lose(0);
    }

    pub(super) fn wind_down(&self) {
        self.winding_down.store(true, Atomic::Relaxed);
    }

    /// Of a hundred messages so many are lost from now on.
    pub(super) fn lose(&self, of_hundred: i64) {
        self.loss.store(of_hundred, Atomic::Relaxed);
    }

    // Brokers.

    pub(super) fn process(&self, node: usize) -> Option<Arc<Process>> {
        self.nodes.lock().get(node).cloned().flatten()
    }

    /// Starts a broker that does not run.
    pub(super) async fn start_node(self: &Arc<Self>, node: usize) {
        if self.process(node).is_some() {
            return;
        }
        let number = self.starts.fetch_add(1, Atomic::Relaxed) + 1;
        let clock = Arc::new(self.dice.clock().clone());
        let ways = SimWays {
            world: Arc::downgrade(self),
            node,
            process: number,
        };
        let delivery = Arc::new(Delivery::by(Arc::new(ways)));
        let groups = groups::Service::new(group_config(), Arc::clone(&clock) as _);
        groups.set_metadata(Arc::clone(&self.image));
        groups.host().set_partition_count(Some(COORDINATORS));
        let txns = txn::Service::new(txn_config(), 1 << 16, clock, delivery);
        txns.host().set_partition_count(Some(COORDINATORS));
        txns.set_version(self.version).await;
        let orderings = self.logs.keys().map(|place| (*place, Mutex::default()));
        let process = Process {
            node,
            number,
            groups: Arc::new(groups),
            txns: Arc::new(txns),
            orderings: orderings.collect(),
        };
        self.note(&format!("node {node} starts, {number}"));
        self.nodes.lock()[node] = Some(Arc::new(process));
    }

    /// A broker dies.
    pub(super) fn kill_node(self: &Arc<Self>, node: usize) {
        let Some(process) = self.nodes.lock()[node].take() else {
            return;
        };
        self.note(&format!("node {node} dies"));
        for (place, log) in &self.logs {
            if log.lead().is_some_and(|lead| lead.node == node) {
                log.end_term();
                self.elect_later(*place);
            }
            log.tell(node, i32::MAX);
        }
        for index in (0..COORDINATORS).map(PartitionIndex::new) {
            process.groups.host().remove(index);
            process.txns.host().remove(index);
        }
    }

    /// Whoever leads a partition is replaced, and learns of it later.
    pub(super) fn depose(self: &Arc<Self>, place: Place) {
        let log = &self.logs[&place];
        let Some(ended) = log.end_term() else {
            return;
        };
        self.note(&format!("{place:?}: the term of {ended:?} ends"));
        self.elect_later(place);
        let (world, told_after_ms) = (Arc::clone(self), self.dice.below(900));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(told_after_ms as u64)).await;
            world.tell(place, ended.node, ended.term + 1);
        });
    }

    /// A node learns that its terms before `term` are over.
    fn tell(&self, place: Place, node: usize, term: i32) {
        let log = &self.logs[&place];
        log.tell(node, term);
        let leads_again = log
            .lead()
            .is_some_and(|lead| lead.node == node && lead.term > term - 1)
            && log.state().ready_lead().is_some();
        if leads_again {
            return;
        }
        if let Some(process) = self.process(node) {
            match place {
                Place::Offsets(index) => process.groups.host().remove(PartitionIndex::new(index)),
                Place::Transactions(index) => {
                    process.txns.host().remove(PartitionIndex::new(index))
                }
                Place::Records(_) => {}
            }
        }
    }

    fn elect_later(self: &Arc<Self>, place: Place) {
        let world = Arc::clone(self);
        tokio::spawn(async move {
            world.dice.pause(1, 500).await;
            while !world.elect(place).await {
                world.dice.pause(100, 300).await;
            }
        });
    }

    /// Somebody who runs is elected and becomes ready; false if nobody runs.
    pub(super) async fn elect(self: &Arc<Self>, place: Place) -> bool {
        let log = &self.logs[&place];
        let running: Vec<_> = (0..NODES).filter_map(|node| self.process(node)).collect();
        let Some(process) = running.get(self.dice.index(running.len())) else {
            return false;
        };
        if log.lead().is_some() {
            return true;
        }
        let lead = log.begin_term(process.node, process.number);
        self.dice.pause(1, 120).await;
        if log.lead() != Some(lead) {
            return true;
        }
        self.tell(place, lead.node, lead.term);
        if !log.make_ready(lead) {
            return true;
        }
        self.note(&format!("{place:?}: {lead:?} leads"));
        self.checker.lock().counts.leaders += 1;
        let term_log = || Arc::new(TermLog::new(Arc::clone(log), lead));
        match place {
            Place::Offsets(index) => process.groups.lead(PartitionIndex::new(index), term_log()),
            Place::Transactions(index) => process.txns.lead(PartitionIndex::new(index), term_log()),
            Place::Records(_) => {}
        }
        true
    }

    pub(super) fn ready_lead(&self, place: Place) -> Option<Lead> {
        self.logs[&place].state().ready_lead()
    }

    /// Whom a client takes for the leader; it may be behind.
    pub(super) fn leader_hint(&self, place: Place) -> usize {
        match self.ready_lead(place) {
            Some(lead) if self.is_calm() || self.dice.chance(19, 20) => lead.node,
            _ => self.dice.index(NODES),
        }
    }

    pub(super) fn coordinator_of_group(&self, group: &str) -> Place {
        Place::Offsets(partition_of(group, COORDINATORS).get())
    }

    pub(super) fn coordinator_of_txn(&self, id: &str) -> Place {
        Place::Transactions(partition_of(id, COORDINATORS).get())
    }

    // The network.

    /// How long a message is under way; `None` if it is lost.
    fn delay_ms(&self) -> Option<i64> {
        if self.dice.below(100) < self.loss.load(Atomic::Relaxed) {
            return None;
        }
        let is_slow = !self.is_calm() && self.dice.chance(1, 30);
        Some(1 + self.dice.below(if is_slow { 400 } else { 8 }))
    }

    /// How long a message is under way that is carried out only while its answer is waited for; `None` if it is
    /// lost.
    pub(super) fn message(&self) -> Option<u64> {
        self.delay_ms().map(|ms| ms as u64)
    }

    /// Asks a broker. The request, or its answer, may be late or lost, and the request may come twice; a broker
    /// carries out whatever reaches it, whether or not anybody still waits.
    pub(super) async fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        node: usize,
        patience_ms: i64,
        handle: impl Fn(Arc<Process>) -> BoxFuture<'static, T> + Send + Sync + 'static,
    ) -> Result<T, Lost> {
        let handle = Arc::new(handle);
        if !self.is_calm() && self.dice.chance(1, 60) {
            let (world, handle) = (Arc::clone(self), Arc::clone(&handle));
            tokio::spawn(async move {
                world.dice.pause(1, 1_500).await;
                if let Some(process) = world.process(node) {
                    handle(process).await;
                }
            });
        }
        let handle = move |process: Arc<Process>| handle(process);
        self.ask_once(node, patience_ms, handle).await
    }

    /// [`Self::ask`], but the request comes once. For what is not safe to carry out again, late, with nobody
    /// waiting: whatever members of groups ask, whose answers they need in order to go on, and what the dialect
    /// before KIP-890 says of transactions, of which it cannot be told which one is meant.
    pub(super) async fn ask_once<T: Send + 'static>(
        self: &Arc<Self>,
        node: usize,
        patience_ms: i64,
        handle: impl Fn(Arc<Process>) -> BoxFuture<'static, T> + Send + Sync + 'static,
    ) -> Result<T, Lost> {
        let (answer, answered) = oneshot::channel();
        let world = Arc::clone(self);
        tokio::spawn(async move {
            let Some(out_ms) = world.delay_ms() else {
                return world.keep(answer, patience_ms).await;
            };
            tokio::time::sleep(Duration::from_millis(out_ms as u64)).await;
            let Some(process) = world.process(node) else {
                return;
            };
            let reply = handle(process).await;
            drop(handle);
            let Some(back_ms) = world.delay_ms() else {
                return world.keep(answer, patience_ms).await;
            };
            tokio::time::sleep(Duration::from_millis(back_ms as u64)).await;
            // Whoever asked may have given up.
            let _ = answer.send(reply);
        });
        let patience = Duration::from_millis(patience_ms as u64);
        match tokio::time::timeout(patience, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) | Err(_) => Err(Lost),
        }
    }

    /// Who asked hears nothing until it gives up.
    async fn keep<T>(&self, answer: oneshot::Sender<T>, patience_ms: i64) {
        tokio::time::sleep(Duration::from_millis(patience_ms as u64 + 1)).await;
        drop(answer);
    }

    pub(super) fn violated(&self, rule: Rule, what: String) {
        self.checker.lock().violated(rule, what);
    }
}

/// The world, if it is still there.
pub(super) fn alive(world: &Weak<World>) -> Option<Arc<World>> {
    world.upgrade()
}
