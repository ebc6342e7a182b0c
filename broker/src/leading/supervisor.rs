//! The task that does a leader's duties: it looks at the partitions that this broker leads when
//! something changes and every now and then, tells the metadata leader what is new, and moves
//! replicas.
//!
//! It is level-triggered: every look compares what is with what the metadata says, so that whatever
//! was lost on the way, or changed while a message was under way, is seen by the next. When the metadata
//! changes, it looks at the partitions that changed at once, and at all others with the next round. In a
//! cluster of one broker there is nobody to tell, and no look is taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_raft::seldom::Seldom;
use odradek_raft::{GroupKey, Leadership};
use tokio::sync::watch;

use super::changes::LeadershipChanges;
use super::isr::{Follower, InSync};
use super::metadata_leader::{MetadataLeader, ReportError};
use super::mover::Move;
use super::reassignment::{Step, next_step};
use super::reports::Reports;
use super::truth;
use crate::config::ConfigStore;
use crate::data_metrics;
use crate::metadata::image::{MetadataImage, PartitionState, touched_partitions};
use crate::metadata::leader_report::LeaderReport;
use crate::partition::{Partition, ReplicationView};
use crate::partitions::PartitionManager;

/// Time between two looks at every partition that this broker leads.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Time between two looks at high watermarks that have risen: at the second at which one is the same,
/// nothing has followed that would have told the followers.
const COMMIT_LOOK: Duration = Duration::from_millis(20);
/// How long changes are gathered before they are told: leaders change many at a time.
const GATHER: Duration = Duration::from_millis(5);
/// A new replica that had everything this short a while ago may vote.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(2);
/// Steps of reassignments that are carried out at a time.
const MOVES_AT_ONCE: usize = 64;
/// First pause after a report that did not get through.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest such pause.
const SLOWEST_RETRY: Duration = Duration::from_secs(1);

/// What the supervisor works with.
pub struct SupervisorOptions {
    /// The partitions of this broker.
    pub partitions: Arc<PartitionManager>,
    /// Settings.
    pub config: Arc<ConfigStore>,
    /// Who is told.
    pub metadata: Arc<dyn MetadataLeader>,
}

/// See the module.
pub struct Supervisor {
    options: SupervisorOptions,
    images: watch::Receiver<Arc<MetadataImage>>,
    /// The metadata whose changes have been looked at.
    seen: Arc<MetadataImage>,
    changes: Arc<LeadershipChanges>,
    led: HashMap<GroupKey, Led>,
    reports: Reports,
    /// Bounds what the log says of partitions that nothing can be done for.
    troubles: Arc<Seldom<GroupKey>>,
    moving: HashSet<GroupKey>,
    moves: FuturesUnordered<BoxFuture<'static, GroupKey>>,
}

/// What is remembered of a partition that this broker leads.
struct Led {
    epoch: LeaderEpoch,
    in_sync: InSync,
    health: Health,
    /// High watermark at the last look.
    seen: Offset,
    /// High watermark that followers have been told of for its own sake.
    announced: Offset,
}

/// What the gauges count.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Health {
    under_replicated: bool,
    under_min_isr: bool,
    at_min_isr: bool,
    reassigning: bool,
    /// Replicas that have lost their log.
    lost: usize,
}

/// A report on its way.
struct Sending {
    batch: Vec<LeaderReport>,
    outcome: BoxFuture<'static, Result<Offset, ReportError>>,
}

impl Supervisor {
    /// A supervisor that follows `images`.
    pub fn new(options: SupervisorOptions, images: watch::Receiver<Arc<MetadataImage>>) -> Self {
        let seen = Arc::clone(&images.borrow());
        Self {
            changes: Arc::clone(options.partitions.leadership_changes()),
            options,
            seen,
            images,
            led: HashMap::new(),
            reports: Reports::default(),
            troubles: Arc::default(),
            moving: HashSet::new(),
            moves: FuturesUnordered::new(),
        }
    }

    /// Supervises until there are no more images.
    pub async fn run(mut self) {
        let mut looks = tokio::time::interval(LOOK_PERIOD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let changes = Arc::clone(&self.changes);
        let mut sending: Option<Sending> = None;
        let mut retry = FIRST_RETRY;
        let mut not_before = Instant::now();
        let mut send_at = None;
        let mut announce_at = None;
        let rack_aware_reads = self.options.config.load().replication.rack_aware_reads;
        changes.commits.want(rack_aware_reads);
        loop {
            if sending.is_none() && send_at.is_none() && self.reports.is_waiting() {
                send_at = Some(not_before.max(Instant::now() + GATHER));
            }
            tokio::select! {
                keys = changes.take() => {
                    let image = self.image();
                    for key in keys {
                        self.look_at(key, &image);
                    }
                }
                changed = self.images.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.look_at_changed();
                }
                _ = looks.tick() => self.look_at_all(),
                () = changes.commits.noted(), if announce_at.is_none() => {
                    announce_at = Some(Instant::now() + COMMIT_LOOK);
                }
                () = sleep_until(announce_at), if announce_at.is_some() => {
                    announce_at = None;
                    self.announce_commits();
                }
                Some(key) = self.moves.next(), if !self.moves.is_empty() => {
                    self.moving.remove(&key);
                    let image = self.image();
                    self.look_at(key, &image);
                }
                () = sleep_until(send_at), if send_at.is_some() => {
                    send_at = None;
                    sending = self.send();
                }
                outcome = outcome_of(&mut sending) => {
                    let batch = sending.take().map(|sent| sent.batch).unwrap_or_default();
                    match outcome {
                        Ok(end) => {
                            self.reports.taken(&batch, end);
                            self.reports.metadata_reached(self.image().next_offset());
                            retry = FIRST_RETRY;
                        }
                        Err(error) => {
                            tracing::debug!(%error, reports = batch.len(), "leaders will be reported again");
                            self.reports.failed(&batch);
                            not_before = Instant::now() + retry;
                            retry = (retry * 2).min(SLOWEST_RETRY);
                        }
                    }
                }
            }
        }
    }

    fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.images.borrow())
    }

    fn send(&mut self) -> Option<Sending> {
        let most = self.options.config.load().replication.report_partitions;
        let batch = self.reports.next_batch(most);
        if batch.is_empty() {
            return None;
        }
        let metadata = Arc::clone(&self.options.metadata);
        let reports = batch.clone();
        let outcome = async move { metadata.report(reports).await }.boxed();
        Some(Sending { batch, outcome })
    }

    /// Looks at what the metadata has changed since the last image: all that this broker leads if that is
    /// the brokers.
    fn look_at_changed(&mut self) {
        let image = Arc::clone(&self.images.borrow_and_update());
        let seen = std::mem::replace(&mut self.seen, Arc::clone(&image));
        if !image.has_brokers_of(&seen) {
            return self.look_at_all();
        }
        self.reports.metadata_reached(image.next_offset());
        for change in image.topic_changes(&seen) {
            for key in touched_partitions(&change) {
                self.look_at(key, &image);
            }
        }
    }

    fn look_at_all(&mut self) {
        let image = self.image();
        self.reports.metadata_reached(image.next_offset());
        if image.brokers().len() <= 1 {
            return;
        }
        let keys: HashSet<GroupKey> = self
            .options
            .partitions
            .all()
            .iter()
            .filter(|partition| matches!(partition.leadership(), Leadership::Leader { .. }))
            .map(|partition| partition.group().key())
            .chain(self.led.keys().copied())
            .collect();
        for key in keys {
            self.look_at(key, &image);
        }
        self.count();
    }

    /// Compares what one partition is with what the metadata says of it.
    fn look_at(&mut self, key: GroupKey, image: &Arc<MetadataImage>) {
        if image.brokers().len() <= 1 {
            return;
        }
        let partition = self.options.partitions.get(key.topic_id, key.partition);
        // Of another incarnation than the metadata's, it has had its day.
        let partition = partition.filter(|partition| partition.group().key() == key);
        let leadership = partition.as_ref().map(|partition| partition.leadership());
        let topic = image.topic_by_id(key.topic_id);
        let state = topic
            .and_then(|topic| topic.partition(key.partition))
            .filter(|state| state.incarnation() == key.incarnation);
        match (partition, leadership, state) {
            (Some(partition), Some(Leadership::Leader { epoch, ready }), Some(state)) => {
                self.look_at_led(&partition, epoch, ready, state, image);
            }
            (partition, ..) => {
                if let Some(partition) = partition {
                    partition.set_replication(None);
                }
                self.led.remove(&key);
                self.reports.forget(key);
            }
        }
    }

    fn look_at_led(
        &mut self,
        partition: &Arc<Partition>,
        epoch: LeaderEpoch,
        ready: bool,
        state: &PartitionState,
        image: &MetadataImage,
    ) {
        let key = partition.group().key();
        let now = Instant::now();
        let node = self.options.partitions.node_id();
        let max_lag = self.options.config.load().replication.max_lag;
        let led = self
            .led
            .entry(key)
            .or_insert_with(|| Led::new(epoch, now, state));
        if led.epoch != epoch {
            *led = Led::new(epoch, now, state);
        }
        let membership = partition.group().membership();
        let is_usable = |id: NodeId| image.broker(id).is_some_and(|broker| !broker.fenced);
        let voters = membership.voters.clone();
        let alone = voters.len() <= 1 && membership.learners.is_empty();
        if !alone {
            match followers(partition, node) {
                // A group that has only just begun to lead knows of nobody yet.
                Ok(followers) if followers.is_empty() => {}
                Ok(followers) => led.in_sync.look(now, &followers),
                Err(error) => {
                    if let Some(left_out) = self.troubles.may_say(key) {
                        tracing::warn!(
                            ?partition, %error, left_out, "it is not known how far the replicas are"
                        );
                    }
                }
            }
        }
        let high_watermark = partition.offsets().high_watermark.offset();
        if !alone && ready && led.is_to_announce(high_watermark) {
            let group = Arc::clone(partition.group());
            tokio::spawn(async move { group.announce_commit().await });
        }
        let replicas = state.replicas.iter().copied();
        let in_sync = led.in_sync.replicas(
            node,
            replicas.filter(|id| voters.contains(id)),
            max_lag,
            is_usable,
        );
        let wish = truth::assignment(state);
        let lost = partition.group().lost_replicas();
        let step = next_step(node, &wish, &truth::members(&membership), |id| {
            led.in_sync.is_caught_up(id, CAUGHT_UP_WITHIN)
        });
        let step = match step {
            // The group takes them out by itself; then they learn the log like any other.
            Step::ChangeVoters(voters) if !voters.is_disjoint(&lost) => {
                Step::WaitFor(lost.iter().copied().collect())
            }
            step => step,
        };
        let min_isr = partition
            .settings()
            .min_insync_replicas
            .min(state.replicas.len());
        led.health = Health {
            under_replicated: in_sync.len() < wish.target().count(),
            under_min_isr: in_sync.len() < min_isr,
            at_min_isr: in_sync.len() == min_isr,
            reassigning: state.is_reassigning(),
            lost: lost.len(),
        };
        match truth::report(key, node, epoch, &in_sync, &step, state) {
            Some(report) => self.reports.tell(report),
            None => self.reports.forget(key),
        }
        let view = (!alone).then_some(ReplicationView {
            epoch,
            in_sync,
            replicas: state.replicas.len(),
            voters: voters.len(),
        });
        if partition.replication().as_deref() != view.as_ref() {
            partition.set_replication(view);
        }
        if ready {
            self.take_step(partition, step, wish);
        }
    }

    fn take_step(
        &mut self,
        partition: &Arc<Partition>,
        step: Step,
        wish: super::reassignment::Assignment,
    ) {
        let key = partition.group().key();
        let waits = matches!(step, Step::Settled | Step::WaitFor(_));
        if waits || self.moves.len() >= MOVES_AT_ONCE || !self.moving.insert(key) {
            return;
        }
        let next = Move {
            partition: Arc::clone(partition),
            step,
            wish,
            metadata: Arc::clone(&self.options.metadata),
            images: self.images.clone(),
            troubles: Arc::clone(&self.troubles),
        };
        // A task, so that a step goes on whatever this one waits for.
        let task = tokio::spawn(next.carry_out());
        self.moves.push(task.map(move |_| key).boxed());
    }

    /// Has the followers told of high watermarks behind which nothing came. The others are looked at
    /// again soon.
    fn announce_commits(&mut self) {
        let mut quiet = Vec::new();
        for key in self.changes.commits.take() {
            let Some(led) = self.led.get_mut(&key) else {
                continue;
            };
            let Some(partition) = self.options.partitions.get(key.topic_id, key.partition) else {
                continue;
            };
            // Those who hold it alone have nobody to tell.
            if partition.replication().is_none() {
                continue;
            }
            let high_watermark = partition.offsets().high_watermark.offset();
            if led.is_to_announce(high_watermark) {
                quiet.push(Arc::clone(partition.group()));
            } else if led.announced < high_watermark {
                self.changes.commits.note(key);
            }
        }
        if !quiet.is_empty() {
            tokio::spawn(async move {
                for group in quiet {
                    group.announce_commit().await;
                }
            });
        }
    }

    fn count(&self) {
        let count = |wanted: fn(&Health) -> bool| {
            let led = self.led.values();
            led.filter(|led| wanted(&led.health)).count()
        };
        data_metrics::observe_replication(
            count(|health| health.under_replicated),
            count(|health| health.under_min_isr),
            count(|health| health.at_min_isr),
            count(|health| health.reassigning),
        );
        let all = self.options.partitions.all();
        data_metrics::observe_lost(
            self.led.values().map(|led| led.health.lost).sum(),
            all.iter().filter(|it| !it.group().is_whole()).count(),
        );
    }
}

impl Led {
    fn new(epoch: LeaderEpoch, now: Instant, state: &PartitionState) -> Self {
        Self {
            epoch,
            in_sync: InSync::new(now, &state.isr),
            health: Health::default(),
            seen: Offset::NONE,
            announced: Offset::NONE,
        }
    }

    /// Whether followers have to be told of the high watermark: it has risen, and then nothing came
    /// that would have told them. Who reads from a follower would otherwise wait for the last records
    /// until the next.
    fn is_to_announce(&mut self, high_watermark: Offset) -> bool {
        let is_quiet = self.seen == high_watermark;
        self.seen = high_watermark;
        let is_due = is_quiet && self.announced < high_watermark;
        if is_due {
            self.announced = high_watermark;
        }
        is_due
    }
}

/// What the group knows of the replicas other than `leader`.
fn followers(
    partition: &Partition,
    leader: NodeId,
) -> Result<Vec<Follower>, odradek_raft::RaftError> {
    let progress = partition.group().replication()?;
    Ok(progress
        .into_iter()
        .filter(|replica| replica.node != leader)
        .map(|replica| Follower {
            node: replica.node,
            last_caught_up: replica.last_caught_up.into_std(),
            whole: replica.whole,
        })
        .collect())
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn outcome_of(sending: &mut Option<Sending>) -> Result<Offset, ReportError> {
    match sending {
        Some(sending) => (&mut sending.outcome).await,
        None => std::future::pending().await,
    }
}
