//! The memory that the members of all groups of this broker take with what they bring along:
//! names, subscriptions, assignments, and ids that were given out and wait to come back.
//!
//! Every member holds its share and gives it back when it goes, on whatever way. Invariant: used =
//! the sum of all shares. A request is refused when there is no room for what it adds; each shard
//! may let one such request in beside another, so that much the bound may be passed. What is read
//! from the log counts and is never refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Debug)]
pub struct MemberMemory {
    used: AtomicUsize,
    limit: usize,
}

impl MemberMemory {
    /// Room for `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            limit,
        })
    }

    /// Bytes that members hold.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes may come on top. Nothing more always may.
    pub fn has_room(&self, more: usize) -> bool {
        more == 0 || self.used().saturating_add(more) <= self.limit
    }
}

/// One member's share; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<MemberMemory>,
    bytes: usize,
}

impl Share {
    /// A share of `bytes`.
    pub fn new(memory: &Arc<MemberMemory>, bytes: usize) -> Self {
        memory.used.fetch_add(bytes, Ordering::Relaxed);
        Self {
            memory: Arc::clone(memory),
            bytes,
        }
    }

    /// How large it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it as large as `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        self.memory.used.fetch_add(bytes, Ordering::Relaxed);
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Clone for Share {
    fn clone(&self) -> Self {
        Self::new(&self.memory, self.bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back_however_they_end() {
        let memory = MemberMemory::new(100);
        let mut one = Share::new(&memory, 60);
        assert!(memory.has_room(40) && !memory.has_room(41));
        one.resize(10);
        let copy = one.clone();
        assert_eq!(memory.used(), 20);
        drop((one, copy));
        assert_eq!(memory.used(), 0);
        let _replayed = Share::new(&memory, 200);
        assert!(memory.has_room(0) && !memory.has_room(1));
    }
}
