//! Records that no entry stands for any more, on their way to a replica that lacks them.
//!
//! Once a log has been compacted, a replica that needs entries which were dropped is offered a
//! snapshot whose records it must have. It pulls them from whoever offers: opens what that node gives
//! at the moment (*session*), reads it piece by piece beside its own log, and says meanwhile that it
//! does not take the offer. openraft offers again and again; when all is there, and the offer is the
//! one that was received, the log that was received takes the place of the other together with the
//! journal that says where its entries begin, and only then the offer is taken. Until that moment
//! the replica is what it was: behind, or empty. It acknowledges nothing that it does not hold.
//!
//! - What is given is of one moment ([`odradek_storage::Export`]), so that of a key no old value is
//!   copied without the tombstone that came after it. A transfer that breaks off, or whose giver has
//!   dropped more entries by now, begins again: what has been copied is no part of another moment.
//! - So that this ends, no replica drops entries that one which is within reach has yet to be given
//!   ([`Group::droppable_end`]). That is a courtesy, not a safeguard, and it ends after
//!   [`Transfers::hold`]: a replica that takes longer begins again.
//!
//! Bounds: sessions that are given and transfers that are taken at a time, by node
//! ([`crate::TransferLimits`]); a session that nobody reads ends; the rate is the network's to keep.

mod giving;
mod taking;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::giving::Session;
pub(crate) use self::taking::Records;
use crate::types::GroupKey;

#[cfg(doc)]
use crate::group::Group;

/// Bounds of giving records to other replicas, and taking them from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferLimits {
    /// Replicas that this node gives records to at a time. Each holds the segments of a partition open.
    pub giving: usize,
    /// Partitions that this node takes records of at a time.
    pub taking: usize,
    /// For how long entries are kept for a replica that is within reach and was last in step so long
    /// ago.
    pub hold: Duration,
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            giving: 4,
            taking: 2,
            hold: Duration::from_secs(60 * 60),
        }
    }
}

/// All transfers of a node.
pub(crate) struct Transfers {
    limits: TransferLimits,
    sessions: Mutex<HashMap<(GroupKey, NodeId), Session>>,
    next_session: AtomicU64,
    taking: Arc<Semaphore>,
}

impl Transfers {
    /// `first_session` is the number of no session of an earlier process.
    pub(crate) fn new(limits: TransferLimits, first_session: u64) -> Arc<Self> {
        Arc::new(Self {
            limits,
            sessions: Mutex::default(),
            next_session: AtomicU64::new(first_session),
            taking: Arc::new(Semaphore::new(limits.taking)),
        })
    }

    pub(crate) fn hold(&self) -> Duration {
        self.limits.hold
    }

    /// How many sessions were opened by this process.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> u64 {
        self.next_session.load(Ordering::Relaxed) & ((1 << 20) - 1)
    }

    fn number(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends the sessions that nobody has read for long.
    fn end_idle(&self, now: Instant) {
        self.sessions
            .lock()
            .retain(|_, session| !session.is_idle(now));
    }
}
