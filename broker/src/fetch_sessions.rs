//! Incremental fetch sessions (KIP-227): the broker remembers which partitions a consumer fetches
//! and from where, so that a request names only what changed and an answer only what is new.
//!
//! A session's epoch counts its requests: 0 opens one, each further request carries the next
//! number, −1 closes it. Invariants:
//! - sessions ≤ slots; a session's partitions are unique;
//! - an answer is formed for the epoch that its request carried, and only while no other request
//!   has moved the session on;
//! - partitions that gave records go to the end of the session's order, so that a response budget
//!   that is too small for all of them goes round.
//!
//! Eviction when the slots are full, as Kafka does it: a session idle for longer than
//! [`EVICTION_AGE`]; else, among those older than that, the one with the fewest partitions if it
//! has fewer than the newcomer. A newcomer that finds no slot is served without a session.
//!
//! Absent on purpose: privileged sessions of followers. Replicas here follow through Raft.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use parking_lot::Mutex;

/// Age from which a session may give way to another.
pub const EVICTION_AGE: Duration = Duration::from_secs(120);

/// Epoch of a request that opens a session, or asks for a full answer.
const INITIAL_EPOCH: i32 = 0;
/// Epoch of a request that closes its session, or never wanted one.
const FINAL_EPOCH: i32 = -1;
/// Session id of a client without a session.
pub const NO_SESSION: i32 = 0;

/// A topic as a fetch names it: by name up to version 12, by id from then on (KIP-516).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicRef {
    /// By name.
    Name(Arc<str>),
    /// By id.
    Id(TopicId),
}

/// A partition as a fetch names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FetchKey {
    /// Its topic.
    pub topic: TopicRef,
    /// Its index in the topic.
    pub partition: PartitionIndex,
}

/// What a consumer wants from one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchTarget {
    /// The partition.
    pub key: FetchKey,
    /// Epoch of the leader as the consumer knows it, or [`LeaderEpoch::NONE`].
    pub current_leader_epoch: LeaderEpoch,
    /// First offset wanted.
    pub fetch_offset: Offset,
    /// Epoch of the last record the consumer has, or [`LeaderEpoch::NONE`].
    pub last_fetched_epoch: LeaderEpoch,
    /// Upper bound for this partition's records, in bytes.
    pub max_bytes: usize,
}

/// The session part of a fetch request.
#[derive(Clone, Debug)]
pub struct SessionRequest {
    /// Id of the session, or [`NO_SESSION`].
    pub session_id: i32,
    /// Epoch of this request in its session.
    pub epoch: i32,
    /// Whether topics are named by id.
    pub uses_topic_ids: bool,
    /// Partitions that are new or changed.
    pub targets: Vec<FetchTarget>,
    /// Partitions that the session forgets.
    pub forgotten: Vec<FetchKey>,
}

/// Why a session request is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFault {
    /// There is no such session (any more).
    NotFound,
    /// The session stands at another epoch.
    InvalidEpoch,
    /// The session names topics by id and the request by name, or the other way round.
    TopicIdMismatch,
}

/// What became of one target, as far as the session cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// High watermark of the answer; −1 with an error.
    pub high_watermark: i64,
    /// Log start offset of the answer; −1 with an error.
    pub log_start: i64,
    /// Whether records are sent.
    pub has_records: bool,
    /// Whether the answer must be sent whatever the session knows: an error or a diverging epoch.
    pub must_send: bool,
    /// Whether the answer is an error.
    pub is_error: bool,
}

/// A fetch that has been admitted: what to read, and how its answer is to be formed.
#[derive(Debug)]
pub struct FetchContext {
    /// The partitions to read, in order.
    pub targets: Arc<[FetchTarget]>,
    kind: ContextKind,
}

#[derive(Debug)]
enum ContextKind {
    Sessionless,
    Full {
        uses_topic_ids: bool,
    },
    Incremental {
        session: Arc<Mutex<Session>>,
        session_id: i32,
        next_epoch: i32,
    },
}

/// How a fetch is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Session id of the answer.
    pub session_id: i32,
    /// For each target whether it is part of the answer; `None` means all of them.
    pub included: Option<Vec<bool>>,
}

#[derive(Debug)]
struct CachedPartition {
    target: FetchTarget,
    high_watermark: i64,
    log_start: i64,
}

impl CachedPartition {
    fn new(target: FetchTarget) -> Self {
        Self {
            target,
            high_watermark: -1,
            log_start: -1,
        }
    }

    /// Takes note of an answer and says whether the consumer has to see it.
    fn settle(&mut self, outcome: &Outcome) -> bool {
        let changed = outcome.has_records
            || outcome.must_send
            || self.high_watermark != outcome.high_watermark
            || self.log_start != outcome.log_start;
        self.log_start = outcome.log_start;
        // After an error the partition's next answer is sent even if nothing else is new.
        self.high_watermark = if outcome.is_error {
            -1
        } else {
            outcome.high_watermark
        };
        changed
    }
}

/// One session.
#[derive(Debug)]
struct Session {
    uses_topic_ids: bool,
    epoch: i32,
    order: BTreeMap<u64, CachedPartition>,
    places: HashMap<FetchKey, u64>,
    next_place: u64,
}

impl Session {
    fn new(uses_topic_ids: bool) -> Self {
        Self {
            uses_topic_ids,
            epoch: next_epoch(INITIAL_EPOCH),
            order: BTreeMap::new(),
            places: HashMap::new(),
            next_place: 0,
        }
    }

    fn append(&mut self, partition: CachedPartition) {
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(partition.target.key.clone(), place);
        self.order.insert(place, partition);
    }

    fn update(&mut self, targets: Vec<FetchTarget>, forgotten: &[FetchKey]) {
        for target in targets {
            let known = self
                .places
                .get(&target.key)
                .and_then(|place| self.order.get_mut(place));
            match known {
                Some(known) => known.target = target,
                None => self.append(CachedPartition::new(target)),
            }
        }
        for key in forgotten {
            if let Some(place) = self.places.remove(key) {
                self.order.remove(&place);
            }
        }
    }

    fn settle(&mut self, targets: &[FetchTarget], outcomes: &[Outcome]) -> Vec<bool> {
        let mut included = Vec::with_capacity(targets.len());
        for (target, outcome) in targets.iter().zip(outcomes) {
            let place = self.places.get(&target.key).copied();
            let Some((place, known)) =
                place.and_then(|place| Some((place, self.order.get_mut(&place)?)))
            else {
                included.push(true);
                continue;
            };
            included.push(known.settle(outcome));
            if outcome.has_records
                && let Some(served) = self.order.remove(&place)
            {
                self.append(served);
            }
        }
        included
    }
}

/// The epoch after `epoch`: it counts up and wraps to 1, since 0 opens a session.
fn next_epoch(epoch: i32) -> i32 {
    if epoch < 0 {
        FINAL_EPOCH
    } else {
        epoch.checked_add(1).unwrap_or(1)
    }
}

#[derive(Debug)]
struct Slot {
    session: Arc<Mutex<Session>>,
    created: Instant,
    last_used: Instant,
    partitions: usize,
}

/// All sessions of the broker.
#[derive(Debug)]
pub struct SessionCache {
    slots: HashMap<i32, Slot>,
    slot_count: usize,
    evictions: u64,
}

impl SessionCache {
    /// A cache of at most `slot_count` sessions (`max.incremental.fetch.session.cache.slots`).
    pub fn new(slot_count: usize) -> Self {
        Self {
            slots: HashMap::new(),
            slot_count,
            evictions: 0,
        }
    }

    /// Admits a fetch.
    pub fn begin(
        &mut self,
        request: SessionRequest,
        now: Instant,
    ) -> Result<FetchContext, SessionFault> {
        if request.epoch == INITIAL_EPOCH || request.epoch == FINAL_EPOCH {
            if request.session_id != NO_SESSION {
                self.slots.remove(&request.session_id);
            }
            let kind = if request.epoch == FINAL_EPOCH {
                ContextKind::Sessionless
            } else {
                ContextKind::Full {
                    uses_topic_ids: request.uses_topic_ids,
                }
            };
            return Ok(FetchContext {
                targets: request.targets.into(),
                kind,
            });
        }
        let slot = self
            .slots
            .get_mut(&request.session_id)
            .ok_or(SessionFault::NotFound)?;
        let shared = Arc::clone(&slot.session);
        let mut session = shared.lock();
        if session.epoch != request.epoch {
            return Err(SessionFault::InvalidEpoch);
        }
        if session.uses_topic_ids != request.uses_topic_ids {
            return Err(SessionFault::TopicIdMismatch);
        }
        session.update(request.targets, &request.forgotten);
        if session.order.is_empty() {
            self.slots.remove(&request.session_id);
            return Ok(FetchContext {
                targets: Arc::default(),
                kind: ContextKind::Sessionless,
            });
        }
        slot.last_used = now;
        slot.partitions = session.order.len();
        session.epoch = next_epoch(session.epoch);
        let targets = session
            .order
            .values()
            .map(|partition| partition.target.clone())
            .collect();
        let next_epoch = session.epoch;
        drop(session);
        Ok(FetchContext {
            targets,
            kind: ContextKind::Incremental {
                session: shared,
                session_id: request.session_id,
                next_epoch,
            },
        })
    }

    /// Forms the answer of an admitted fetch from what became of its targets, one outcome each.
    /// `random` proposes ids for a new session.
    pub fn finish(
        &mut self,
        context: &FetchContext,
        outcomes: &[Outcome],
        now: Instant,
        random: impl FnMut() -> i32,
    ) -> Result<Selection, SessionFault> {
        match &context.kind {
            ContextKind::Sessionless => Ok(Selection {
                session_id: NO_SESSION,
                included: None,
            }),
            ContextKind::Full { uses_topic_ids } => Ok(Selection {
                session_id: self.open(&context.targets, outcomes, *uses_topic_ids, now, random),
                included: None,
            }),
            ContextKind::Incremental {
                session,
                session_id,
                next_epoch,
            } => {
                let mut session = session.lock();
                if session.epoch != *next_epoch {
                    return Err(SessionFault::InvalidEpoch);
                }
                Ok(Selection {
                    session_id: *session_id,
                    included: Some(session.settle(&context.targets, outcomes)),
                })
            }
        }
    }

    /// Sessions now.
    pub fn session_count(&self) -> usize {
        self.slots.len()
    }

    /// Partitions of all sessions now.
    pub fn partition_count(&self) -> usize {
        self.slots.values().map(|slot| slot.partitions).sum()
    }

    /// Sessions that had to give way, since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    fn open(
        &mut self,
        targets: &[FetchTarget],
        outcomes: &[Outcome],
        uses_topic_ids: bool,
        now: Instant,
        mut random: impl FnMut() -> i32,
    ) -> i32 {
        if self.slots.len() >= self.slot_count && !self.evict(targets.len(), now) {
            return NO_SESSION;
        }
        let mut session = Session::new(uses_topic_ids);
        for (target, outcome) in targets.iter().zip(outcomes) {
            if session.places.contains_key(&target.key) {
                continue;
            }
            let mut partition = CachedPartition::new(target.clone());
            partition.settle(outcome);
            session.append(partition);
        }
        let mut id = random();
        while id <= NO_SESSION || self.slots.contains_key(&id) {
            id = random();
        }
        self.slots.insert(
            id,
            Slot {
                partitions: session.order.len(),
                session: Arc::new(Mutex::new(session)),
                created: now,
                last_used: now,
            },
        );
        id
    }

    /// Makes room for a session of `partitions`; whether there is room now.
    fn evict(&mut self, partitions: usize, now: Instant) -> bool {
        let age = |since: Instant| now.saturating_duration_since(since);
        let idle = self
            .slots
            .iter()
            .min_by_key(|(_, slot)| slot.last_used)
            .filter(|(_, slot)| age(slot.last_used) > EVICTION_AGE);
        let victim = idle.or_else(|| {
            self.slots
                .iter()
                .filter(|(_, slot)| age(slot.created) > EVICTION_AGE)
                .min_by_key(|(id, slot)| (slot.partitions, **id))
                .filter(|(_, slot)| slot.partitions < partitions)
        });
        let Some(victim) = victim.map(|(id, _)| *id) else {
            return false;
        };
        self.slots.remove(&victim);
        self.evictions += 1;
        true
    }
}

#[cfg(test)]
mod tests;
