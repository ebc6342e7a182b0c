//! One shard: a task that owns a state machine, its log, its timers, and the replies it owes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use odradek_protocol::ids::{Sequence, TimestampMs};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::effects::{BatchKind, Effects, RequestToken, TimerChange};
use super::log::{AppendCommit, CoordinatorLog, LogFailure};
use super::timers::Timers;
use super::{EffectsOf, LogRecord, ShardError, StateMachine, end_marker, metrics, replay};
use crate::clock::Clock;
use crate::partitions::log_dir::Room;

/// How long a shard whose writes fail waits before it loads again.
const RELOAD_DELAY: Duration = Duration::from_millis(200);

/// How long timers that are due wait when nothing can be written.
const ROOM_CHECK: Duration = Duration::from_millis(500);

/// How a shard runs.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// What the shard is called in the log of the process: topic and partition.
    pub label: String,
    /// Requests that may wait to be handled.
    pub mailbox_len: usize,
    /// Batches that may wait to be committed.
    pub max_in_flight: usize,
    /// Bytes to read at a time while loading.
    pub load_buffer_bytes: usize,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            mailbox_len: 4_096,
            max_in_flight: 256,
            load_buffer_bytes: 1 << 20,
        }
    }
}

const LOADING: u8 = 0;
const ACTIVE: u8 = 1;
const ENDED: u8 = 2;

type Answer<S> = Result<<S as StateMachine>::Reply, ShardError>;

struct Message<S: StateMachine> {
    request: S::Request,
    answer: oneshot::Sender<Answer<S>>,
}

/// A handle on a shard. The shard ends when the last handle is dropped, or when it is told to.
#[derive(Debug)]
pub struct Shard<S: StateMachine> {
    mailbox: mpsc::Sender<Message<S>>,
    phase: Arc<AtomicU8>,
    resigned: Arc<watch::Sender<bool>>,
    log: Arc<dyn CoordinatorLog>,
}

impl<S: StateMachine> Clone for Shard<S> {
    fn clone(&self) -> Self {
        Self {
            mailbox: self.mailbox.clone(),
            phase: Arc::clone(&self.phase),
            resigned: Arc::clone(&self.resigned),
            log: Arc::clone(&self.log),
        }
    }
}

impl<S: StateMachine> Shard<S> {
    /// Starts a shard on `log`. `make_state` makes the state of an empty log; it is called again
    /// whenever the shard has to load anew.
    pub fn start(
        make_state: impl Fn() -> S + Send + Sync + 'static,
        log: Arc<dyn CoordinatorLog>,
        clock: Arc<dyn Clock>,
        options: ShardOptions,
    ) -> Self {
        let (sender, mailbox) = mpsc::channel(options.mailbox_len);
        let phase = Arc::new(AtomicU8::new(LOADING));
        let (resigned, resignation) = watch::channel(false);
        let task = Task {
            make_state: Box::new(make_state),
            log: Arc::clone(&log),
            clock,
            options,
            mailbox,
            phase: Arc::clone(&phase),
            next_token: 0,
        };
        tokio::spawn(task.run(resignation));
        Self {
            mailbox: sender,
            phase,
            resigned: Arc::new(resigned),
            log,
        }
    }

    /// Whether the shard has read its log and answers.
    pub fn is_active(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ACTIVE
    }

    /// Whether the shard is still reading its log.
    pub fn is_loading(&self) -> bool {
        self.phase.load(Ordering::Acquire) == LOADING
    }

    /// Whether nobody else can coordinate yet.
    pub fn holds_lease(&self) -> bool {
        self.log.holds_lease()
    }

    /// Ends the shard, because another broker coordinates from now on. Requests that wait fail at once:
    /// what they wait for, like the other members of a rebalance, comes to pass elsewhere.
    pub fn resign(&self) {
        self.resigned.send_replace(true);
    }

    /// Asks the state machine, and waits for its reply and for what it depends on to be committed.
    ///
    /// A reply that is not certain to be the newest, because another broker may coordinate by now, is
    /// withheld.
    ///
    /// # Errors
    /// Why there is no reply. After [`ShardError::Unavailable`] the request may have taken effect.
    pub async fn call(&self, request: S::Request) -> Answer<S> {
        match self.phase.load(Ordering::Acquire) {
            LOADING => return Err(ShardError::Loading),
            ACTIVE => {}
            _ => return Err(ShardError::NotCoordinator),
        }
        let (answer, reply) = oneshot::channel();
        match self.mailbox.try_send(Message { request, answer }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(ShardError::Unavailable),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(ShardError::NotCoordinator),
        }
        let answer = reply.await.unwrap_or(Err(ShardError::NotCoordinator))?;
        match self.log.holds_lease() {
            true => Ok(answer),
            false => Err(ShardError::NotCoordinator),
        }
    }
}

struct Task<S: StateMachine> {
    make_state: Box<dyn Fn() -> S + Send + Sync>,
    log: Arc<dyn CoordinatorLog>,
    clock: Arc<dyn Clock>,
    options: ShardOptions,
    mailbox: mpsc::Receiver<Message<S>>,
    phase: Arc<AtomicU8>,
    next_token: u64,
}

/// Marks the shard as ended however its task ends.
struct EndGuard(Arc<AtomicU8>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.store(ENDED, Ordering::Release);
    }
}

impl<S: StateMachine> Task<S> {
    /// Works until it resigns or nobody is left who could ask. What waits is dropped with the work, and
    /// so hears that this is not the coordinator.
    async fn run(self, mut resignation: watch::Receiver<bool>) {
        let _guard = EndGuard(Arc::clone(&self.phase));
        tokio::select! {
            biased;
            _ = resignation.wait_for(|resigned| *resigned) => {}
            () = self.work() => {}
        }
    }

    async fn work(mut self) {
        loop {
            let failure = match self.load().await {
                Ok(state) => match self.serve(state).await {
                    Ok(()) => return,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if failure.ends_shard() {
                tracing::warn!(label = self.options.label, %failure, "coordinator ends");
                return;
            }
            tracing::warn!(label = self.options.label, %failure, "coordinator loads anew");
            self.phase.store(LOADING, Ordering::Release);
            tokio::time::sleep(RELOAD_DELAY).await;
            if self.mailbox.is_closed() {
                return;
            }
        }
    }

    async fn load(&self) -> Result<S, LogFailure> {
        let mut state = (self.make_state)();
        let now = self.clock.wall();
        let is_abandoned = || self.mailbox.is_closed();
        let log = self.log.as_ref();
        replay::replay(&mut state, log, &self.options, now, is_abandoned).await?;
        Ok(state)
    }

    /// Serves until every handle is gone (`Ok`) or a write fails.
    async fn serve(&mut self, state: S) -> Result<(), LogFailure> {
        let mut serving = Serving {
            state,
            log: Arc::clone(&self.log),
            clock: Arc::clone(&self.clock),
            timers: Timers::new(),
            waiting: BTreeMap::new(),
            in_flight: VecDeque::new(),
        };
        serving.step(|state, now, effects| state.loaded(now, effects));
        self.phase.store(ACTIVE, Ordering::Release);
        let served = self.serve_requests(&mut serving).await;
        if let Err(failure) = served {
            metrics::write_failed();
            serving.fail(failure);
        }
        served
    }

    async fn serve_requests(&mut self, serving: &mut Serving<S>) -> Result<(), LogFailure> {
        loop {
            let wakeup = serving.next_wakeup();
            let has_room = serving.in_flight.len() < self.options.max_in_flight;
            tokio::select! {
                biased;
                outcome = next_commit(&mut serving.in_flight), if !serving.in_flight.is_empty() => {
                    outcome?;
                    serving.committed();
                }
                () = sleep_until(wakeup), if wakeup.is_some() && has_room => {
                    serving.fire_timers(self.options.max_in_flight);
                }
                message = self.mailbox.recv(), if has_room => {
                    let Some(Message { request, answer }) = message else {
                        return Ok(());
                    };
                    if serving.is_full() && !serving.state.only_reads(&request) {
                        let _ = answer.send(Err(ShardError::Unavailable));
                        continue;
                    }
                    let token = RequestToken::new(self.next_token);
                    self.next_token += 1;
                    serving.waiting.insert(token, answer);
                    serving.step(|state, now, effects| {
                        state.handle(token, request, now, effects);
                    });
                }
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Waits for the oldest batch. Dropping the future between polls loses nothing.
async fn next_commit<P>(in_flight: &mut VecDeque<InFlight<P>>) -> Result<(), LogFailure> {
    match in_flight.front_mut() {
        Some(oldest) => oldest.commit.as_mut().await,
        None => std::future::pending().await,
    }
}

/// A batch that is not yet known to be committed, and the replies that wait for it.
struct InFlight<P> {
    commit: AppendCommit,
    replies: Vec<(RequestToken, P)>,
}

/// A loaded shard.
struct Serving<S: StateMachine> {
    state: S,
    log: Arc<dyn CoordinatorLog>,
    clock: Arc<dyn Clock>,
    timers: Timers<S::Timer>,
    /// In the order of their requests, in which they hear that there will be no reply.
    waiting: BTreeMap<RequestToken, oneshot::Sender<Answer<S>>>,
    /// In the order of their offsets.
    in_flight: VecDeque<InFlight<S::Reply>>,
}

impl<S: StateMachine> Serving<S> {
    /// Lets one event happen, and sees to its effects.
    fn step(&mut self, event: impl FnOnce(&mut S, TimestampMs, &mut EffectsOf<S>)) {
        let now = self.clock.wall();
        let mut effects = Effects {
            is_scarce: self.log.room() != Room::Enough,
            ..Effects::default()
        };
        event(&mut self.state, now, &mut effects);
        for change in std::mem::take(&mut effects.timers) {
            match change {
                TimerChange::Set { timer, after_ms } => {
                    let due = Instant::now() + Duration::from_millis(after_ms);
                    self.timers.set(timer, due);
                }
                TimerChange::Cancel(timer) => self.timers.cancel(&timer),
            }
        }
        for batch in batches(&effects, now, self.log.max_batch_bytes()) {
            self.in_flight.push_back(InFlight {
                commit: self.log.append(batch),
                replies: Vec::new(),
            });
        }
        match self.in_flight.back_mut() {
            Some(last) => last.replies.extend(effects.replies),
            None => self.answer(effects.replies),
        }
    }

    /// Whether the disk has no room for anything.
    fn is_full(&self) -> bool {
        self.log.room() == Room::Exhausted
    }

    /// When timers are to be looked at. They may write, and wait until there is room.
    fn next_wakeup(&self) -> Option<Instant> {
        let wakeup = self.timers.next_wakeup()?;
        Some(match self.is_full() {
            true => wakeup.max(Instant::now() + ROOM_CHECK),
            false => wakeup,
        })
    }

    fn fire_timers(&mut self, max_in_flight: usize) {
        let now = Instant::now();
        while self.in_flight.len() < max_in_flight && !self.is_full() {
            let Some(timer) = self.timers.pop_due(now) else {
                break;
            };
            self.step(|state, now, effects| state.timer_fired(timer, now, effects));
        }
    }

    /// The oldest batch in flight has committed.
    fn committed(&mut self) {
        if let Some(oldest) = self.in_flight.pop_front() {
            self.answer(oldest.replies);
        }
    }

    fn answer(&mut self, replies: Vec<(RequestToken, S::Reply)>) {
        for (token, reply) in replies {
            if let Some(answer) = self.waiting.remove(&token) {
                // A client that has gone away needs no answer.
                let _ = answer.send(Ok(reply));
            }
        }
    }

    /// Tells everybody who waits that there will be no reply.
    fn fail(self, failure: LogFailure) {
        let error = match failure {
            LogFailure::NotLeader | LogFailure::Storage => ShardError::NotCoordinator,
            LogFailure::Unavailable => ShardError::Unavailable,
        };
        for answer in self.waiting.into_values() {
            let _ = answer.send(Err(error));
        }
    }
}

/// Packs the records of an event into as few batches as the log allows.
fn batches<R: LogRecord, P, T>(
    effects: &Effects<R, P, T>,
    now: TimestampMs,
    max_batch_bytes: usize,
) -> Vec<Bytes> {
    if let BatchKind::EndMarker(producer, marker) = effects.batch {
        return vec![end_marker::build(producer, marker, now)];
    }
    let empty = || match effects.batch {
        BatchKind::Transactional(producer) => BatchBuilder::new()
            .producer(producer.id, producer.epoch, Sequence::NONE)
            .transactional(),
        BatchKind::Plain | BatchKind::EndMarker(..) => BatchBuilder::new(),
    };
    let mut batches = Vec::new();
    let mut batch = empty();
    for record in &effects.records {
        let key = record.encode_key();
        let value = record.encode_value();
        let size = key.len() + value.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD_BYTES;
        if !batch.is_empty() && batch.size_in_bytes() + size > max_batch_bytes {
            batches.push(std::mem::replace(&mut batch, empty()).build());
        }
        batch.push(NewRecord {
            timestamp: now,
            key: Some(&key),
            value: value.as_deref(),
            headers: &[],
        });
    }
    if !batch.is_empty() {
        batches.push(batch.build());
    }
    batches
}

/// More than the lengths and deltas of one record can take.
const RECORD_OVERHEAD_BYTES: usize = 40;
