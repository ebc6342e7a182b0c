//! A replicated log, as its leaders see it.
//!
//! One leader a term appends; what it has appended is committed a little later, in order. A term ends at any
//! moment: of what was not committed the next leader has the beginning, of any length, and whoever led goes on
//! believing that it does until it is told. What is committed stays. The state of producers is the broker's,
//! derived from the log as every replica derives it.
//!
//! Absent on purpose: disks, votes and followers, which the simulation of Raft groups is about.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use odradek_protocol::batch::{BatchHeader, patch_offsets};
use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_raft::{AppendOutcome, ProposeError};
use odradek_storage::producer_state::{CompletedTxn, EndTxnMarker, ProducerStates};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::dice::Dice;
use super::sabotage::Sabotage;
use crate::coordinator::{AppendCommit, CommittedBatches, CoordinatorLog, LogFailure};

/// How long a coordinator waits for a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BATCH_BYTES: usize = 1 << 16;

/// The fate of a batch.
pub(super) type Fate = Result<AppendOutcome, ProposeError>;

/// Who leads, and in which term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub node: usize,
    /// Which of the node's processes.
    pub process: u64,
    pub term: i32,
}

pub(super) struct Entry {
    pub header: BatchHeader,
    pub bytes: Bytes,
}

struct Waiter {
    /// Offset after the batch, once it is appended.
    end: i64,
    fate: oneshot::Sender<Fate>,
}

struct Proposed {
    bytes: Bytes,
    fate: oneshot::Sender<Fate>,
}

/// A term that is over, of which its leader has not been told.
struct Past {
    lead: Lead,
    high_watermark: i64,
    end: i64,
    waiting: Vec<oneshot::Sender<Fate>>,
}

#[derive(Default)]
pub(super) struct State {
    pub entries: Vec<Entry>,
    pub high_watermark: i64,
    /// Of the leader, at the end of its log.
    pub producers: ProducerStates,
    pub aborted: Vec<CompletedTxn>,
    queue: VecDeque<Proposed>,
    waiting: VecDeque<Waiter>,
    lead: Option<Lead>,
    ready: bool,
    term: i32,
    past: Vec<Past>,
    stalled_until_ms: i64,
    applied_at_ms: i64,
    committed_at_ms: i64,
}

impl State {
    pub(super) fn end(&self) -> i64 {
        let last = self.entries.last();
        last.map_or(0, |entry| entry.header.next_offset().get())
    }

    /// Who leads and takes writes.
    pub(super) fn ready_lead(&self) -> Option<Lead> {
        self.lead.filter(|_| self.ready)
    }

    /// First offset that read_committed must not pass.
    pub(super) fn last_stable(&self) -> i64 {
        let unstable = self.producers.first_unstable_offset();
        unstable.map_or(self.high_watermark, |first| {
            first.get().min(self.high_watermark)
        })
    }

    fn append(&mut self, bytes: &Bytes, term: i32) -> BatchHeader {
        let mut stamped = BytesMut::from(&bytes[..]);
        let base = Offset::new(self.end());
        patch_offsets(&mut stamped, base, LeaderEpoch::new(term));
        let header = BatchHeader::parse(&stamped).expect("a batch");
        let bytes = stamped.freeze();
        self.update(&header, &bytes);
        self.entries.push(Entry { header, bytes });
        header
    }

    fn update(&mut self, header: &BatchHeader, bytes: &Bytes) {
        let marker = match header.is_control() {
            true => EndTxnMarker::parse(header, bytes),
            false => None,
        };
        let completed = self.producers.update(header, marker);
        self.aborted
            .extend(completed.filter(|completed| completed.aborted));
    }

    /// The state of producers is derived anew, as by a replica that has this log.
    fn rebuild(&mut self) {
        self.producers = ProducerStates::default();
        self.aborted.clear();
        for entry in std::mem::take(&mut self.entries) {
            self.update(&entry.header, &entry.bytes);
            self.entries.push(entry);
        }
        let high_watermark = Offset::new(self.high_watermark);
        self.producers.on_high_watermark(high_watermark);
    }
}

/// See the module.
pub(super) struct ReplicatedLog {
    name: String,
    dice: Dice,
    sabotage: Option<Sabotage>,
    state: Mutex<State>,
}

impl fmt::Debug for ReplicatedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl ReplicatedLog {
    pub(super) fn new(name: String, dice: Dice, sabotage: Option<Sabotage>) -> Self {
        Self {
            name,
            dice,
            sabotage,
            state: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn lead(&self) -> Option<Lead> {
        self.state.lock().lead
    }

    /// Nothing is appended or committed for a while.
    pub(super) fn stall(&self, for_ms: i64) {
        self.state.lock().stalled_until_ms = self.dice.now_ms() + for_ms;
    }

    /// The batch goes behind all that were proposed before. Only while `lead` leads and is ready.
    pub(super) fn propose(
        self: &Arc<Self>,
        state: &mut State,
        bytes: Bytes,
    ) -> oneshot::Receiver<Fate> {
        let lead = state.ready_lead().expect("it leads");
        let (fate, committed) = oneshot::channel();
        state.queue.push_back(Proposed { bytes, fate });
        let log = Arc::clone(self);
        tokio::spawn(async move { log.see_through(lead).await });
        committed
    }

    /// Appends the oldest batch of the queue after a while, and commits it after another.
    async fn see_through(self: Arc<Self>, lead: Lead) {
        let at_ms = {
            let mut state = self.state.lock();
            let at_ms = self.dice.now_ms() + self.dice.below(3);
            state.applied_at_ms = state.applied_at_ms.max(at_ms);
            state.applied_at_ms
        };
        self.wait_until(at_ms).await;
        let (end, at_ms) = {
            let mut state = self.state.lock();
            if state.lead != Some(lead) {
                return;
            }
            let Some(Proposed { bytes, fate }) = state.queue.pop_front() else {
                return;
            };
            let header = state.append(&bytes, lead.term);
            let end = header.next_offset().get();
            state.waiting.push_back(Waiter { end, fate });
            let at_ms = self.dice.now_ms() + 1 + self.dice.below(25);
            state.committed_at_ms = state.committed_at_ms.max(at_ms);
            (end, state.committed_at_ms)
        };
        self.wait_until(at_ms).await;
        let mut state = self.state.lock();
        if state.lead == Some(lead) {
            commit(&mut state, end, lead);
        }
    }

    async fn wait_until(&self, mut at_ms: i64) {
        loop {
            tokio::time::sleep_until(self.dice.clock().at_ms(at_ms)).await;
            let until_ms = self.state.lock().stalled_until_ms;
            if until_ms <= self.dice.now_ms() {
                return;
            }
            at_ms = until_ms;
        }
    }

    /// The term is over. What was not committed survives in part; `None` if nobody led.
    pub(super) fn end_term(&self) -> Option<Lead> {
        let mut state = self.state.lock();
        let lead = state.lead.take()?;
        let end = state.end();
        let mut waiting: Vec<_> = state.waiting.drain(..).map(|waiter| waiter.fate).collect();
        waiting.extend(state.queue.drain(..).map(|proposed| proposed.fate));
        let high_watermark = state.high_watermark;
        state.past.push(Past {
            lead,
            high_watermark,
            end,
            waiting,
        });
        state.ready = false;
        let committed = state
            .entries
            .partition_point(|entry| entry.header.next_offset().get() <= high_watermark);
        let uncommitted = state.entries.len() - committed;
        let mut kept = committed + self.dice.below(uncommitted as i64 + 1) as usize;
        if self.sabotage == Some(Sabotage::LoseCommitted) && self.dice.chance(1, 2) {
            kept = committed.saturating_sub(3);
        }
        state.entries.truncate(kept);
        state.high_watermark = state.high_watermark.min(state.end());
        state.rebuild();
        Some(lead)
    }

    /// Somebody leads from now on, and is ready once [`Self::make_ready`] is called.
    pub(super) fn begin_term(&self, node: usize, process: u64) -> Lead {
        let mut state = self.state.lock();
        state.term += 1;
        let lead = Lead {
            node,
            process,
            term: state.term,
        };
        state.lead = Some(lead);
        state.ready = false;
        lead
    }

    /// Everything in the log is committed, and the leader takes writes. False if it leads no more.
    pub(super) fn make_ready(&self, lead: Lead) -> bool {
        let mut state = self.state.lock();
        if state.lead != Some(lead) {
            return false;
        }
        state.ready = true;
        let end = state.end();
        commit(&mut state, end, lead);
        true
    }

    /// A node hears that its terms before `term` are over.
    pub(super) fn tell(&self, node: usize, term: i32) {
        let told: Vec<Past> = {
            let mut state = self.state.lock();
            let past = std::mem::take(&mut state.past).into_iter();
            let is_told = |past: &Past| past.lead.node == node && past.lead.term < term;
            let (told, kept): (Vec<_>, Vec<_>) = past.partition(is_told);
            state.past = kept;
            told
        };
        for past in told {
            for fate in past.waiting {
                let _ = fate.send(Err(ProposeError::NotLeader { leader: None }));
            }
        }
    }

    fn past(&self, state: &State, lead: Lead) -> Option<(i64, i64)> {
        let past = state.past.iter().find(|past| past.lead == lead);
        past.map(|past| (past.high_watermark, past.end))
    }
}

fn commit(state: &mut State, end: i64, lead: Lead) {
    if end <= state.high_watermark {
        return;
    }
    state.high_watermark = end;
    state.producers.on_high_watermark(Offset::new(end));
    while state.waiting.front().is_some_and(|first| first.end <= end) {
        let Some(waiter) = state.waiting.pop_front() else {
            return;
        };
        let last_offset = Offset::new(waiter.end - 1);
        // Whoever has stopped to wait need not know.
        let _ = waiter.fate.send(Ok(AppendOutcome {
            base_offset: last_offset,
            last_offset,
            leader_epoch: LeaderEpoch::new(lead.term),
            log_start: Offset::ZERO,
        }));
    }
}

/// The log in one term, as its leader sees it.
#[derive(Debug)]
pub(super) struct TermLog {
    log: Arc<ReplicatedLog>,
    lead: Lead,
}

impl TermLog {
    pub(super) fn new(log: Arc<ReplicatedLog>, lead: Lead) -> Self {
        Self { log, lead }
    }

    /// High watermark and end, as far as this leader knows.
    fn bounds(&self) -> (i64, i64) {
        let state = self.log.state();
        match state.lead == Some(self.lead) {
            true => (state.high_watermark, state.end()),
            false => self.log.past(&state, self.lead).unwrap_or((0, 0)),
        }
    }

    /// What it means that the log takes nothing from this leader.
    fn refusal(log: &ReplicatedLog, lead: Lead) -> LogFailure {
        let state = log.state();
        let believes = state.lead == Some(lead) || log.past(&state, lead).is_some();
        match believes {
            true => LogFailure::Unavailable,
            false => LogFailure::NotLeader,
        }
    }
}

impl CoordinatorLog for TermLog {
    fn append(&self, batch: Bytes) -> AppendCommit {
        let committed = {
            let mut state = self.log.state();
            match state.ready_lead() == Some(self.lead) {
                true => Some(self.log.propose(&mut state, batch)),
                false => None,
            }
        };
        let (log, lead) = (Arc::clone(&self.log), self.lead);
        Box::pin(async move {
            let Some(committed) = committed else {
                return Err(Self::refusal(&log, lead));
            };
            match tokio::time::timeout(COMMIT_TIMEOUT, committed).await {
                Ok(Ok(Ok(_))) => Ok(()),
                Ok(Ok(Err(_)) | Err(_)) => Err(Self::refusal(&log, lead)),
                Err(_elapsed) => Err(LogFailure::Unavailable),
            }
        })
    }

    fn epoch(&self) -> LeaderEpoch {
        LeaderEpoch::new(self.lead.term)
    }

    fn log_start(&self) -> Offset {
        Offset::ZERO
    }

    fn high_watermark(&self) -> Offset {
        Offset::new(self.bounds().0)
    }

    fn log_end(&self) -> Offset {
        Offset::new(self.bounds().1)
    }

    fn in_flight(&self) -> usize {
        let state = self.log.state();
        let open = state.queue.len() + state.waiting.len();
        match state.lead == Some(self.lead) {
            true => open,
            false => 0,
        }
    }

    fn read(&self, from: Offset, max_bytes: usize) -> CommittedBatches<'_> {
        Box::pin(async move {
            let upper = self.bounds().0;
            tokio::time::sleep(Duration::from_millis(self.log.dice.below(3) as u64)).await;
            let state = self.log.state();
            let mut bytes = BytesMut::new();
            let is_before = |entry: &Entry| entry.header.next_offset() <= from;
            let first = state.entries.partition_point(is_before);
            for entry in state.entries.iter().skip(first) {
                let is_beyond = entry.header.base_offset.get() >= upper;
                let is_full = !bytes.is_empty() && bytes.len() + entry.bytes.len() > max_bytes;
                if is_beyond || is_full {
                    break;
                }
                bytes.extend_from_slice(&entry.bytes);
            }
            Ok(bytes.freeze())
        })
    }

    fn holds_lease(&self) -> bool {
        self.log.state().lead == Some(self.lead)
    }

    fn max_batch_bytes(&self) -> usize {
        MAX_BATCH_BYTES
    }
}
