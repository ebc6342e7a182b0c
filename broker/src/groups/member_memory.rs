//! The memory that the members of all groups of this broker take with what they bring along:
//! names, subscriptions, assignments, and ids that were given out and wait to come back.
//!
//! Every member holds its share and gives it back when it goes, on whatever way. Invariants: used =
//! the sum of all shares; what a host has = the sum of its members' shares. A request is refused when there is no
//! room for what it adds; each shard may let one such request in beside another, so that much the bounds may be
//! passed. What is read from the log counts and is never refused.
//!
//! Nobody is to use it up alone: large members leave a part to small ones, and those of one host a part to those of
//! others. A client chooses its id and its groups, but not its address.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Large members together leave this part of the memory to small ones.
const SMALL_MEMBERS_PART: usize = 4;

/// What members may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberBounds {
    /// All of them, in bytes (`odradek.groups.member.bytes`).
    pub limit: usize,
    /// The largest member that counts as small, in bytes (`odradek.groups.member.small.bytes`).
    pub small: usize,
    /// Those of one host, in bytes (`odradek.groups.member.host.percent`).
    pub limit_of_host: usize,
}

/// See the module.
#[derive(Debug)]
pub struct MemberMemory {
    used: AtomicUsize,
    bounds: MemberBounds,
    /// What the members of each host have; none without a member.
    hosts: Mutex<HashMap<Arc<str>, usize>>,
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Its host.
    pub host: &'a str,
    /// What the largest member takes that is concerned, with what is asked for.
    pub size: usize,
    /// What comes on top of what is held already.
    pub more: usize,
}

impl MemberMemory {
    /// Room within `bounds`.
    pub fn new(bounds: MemberBounds) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            bounds,
            hosts: Mutex::default(),
        })
    }

    /// Room for `limit` bytes, whoever takes them.
    #[cfg(test)]
    pub fn for_anybody(limit: usize) -> Arc<Self> {
        Self::new(MemberBounds {
            limit,
            small: usize::MAX,
            limit_of_host: limit,
        })
    }

    /// Bytes that members hold.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there is room for a claim. For nothing more there always is.
    pub fn has_room(&self, claim: Claim<'_>) -> bool {
        let MemberBounds {
            limit,
            small,
            limit_of_host,
        } = self.bounds;
        let limit = match claim.size > small {
            true => limit - limit / SMALL_MEMBERS_PART,
            false => limit,
        };
        let fits = |held: usize, limit: usize| held.saturating_add(claim.more) <= limit;
        claim.more == 0 || fits(self.used(), limit) && fits(self.used_by(claim.host), limit_of_host)
    }

    fn used_by(&self, host: &str) -> usize {
        self.hosts.lock().get(host).copied().unwrap_or_default()
    }

    /// A member of `host` goes from `before` bytes to `after`. Returns the name under which the host is known.
    fn change(&self, host: &str, before: usize, after: usize) -> Arc<str> {
        // The larger number first, so that it is never less than nothing in between.
        self.used.fetch_add(after, Ordering::Relaxed);
        self.used.fetch_sub(before, Ordering::Relaxed);
        let mut hosts = self.hosts.lock();
        let (name, held) = match hosts.get_key_value(host) {
            Some((name, held)) => (Arc::clone(name), *held),
            None => (Arc::from(host), 0),
        };
        match held.saturating_add(after).saturating_sub(before) {
            0 => {
                hosts.remove(host);
            }
            left => {
                hosts.insert(Arc::clone(&name), left);
            }
        }
        name
    }
}

/// One member's share; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<MemberMemory>,
    host: Arc<str>,
    bytes: usize,
}

impl Share {
    /// A share of `bytes` for a member of `host`.
    pub fn new(memory: &Arc<MemberMemory>, host: &str, bytes: usize) -> Self {
        Self {
            memory: Arc::clone(memory),
            host: memory.change(host, 0, bytes),
            bytes,
        }
    }

    /// How large it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it as large as `bytes`.
    pub fn resize(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.memory.change(&self.host, self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Clone for Share {
    fn clone(&self) -> Self {
        Self::new(&self.memory, &self.host, self.bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.change(&self.host, self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(host: &str, size: usize, more: usize) -> Claim<'_> {
        Claim { host, size, more }
    }

    #[test]
    fn shares_are_given_back_however_they_end() {
        let memory = MemberMemory::for_anybody(100);
        let has_room = |more| memory.has_room(claim("a", more, more));
        let mut one = Share::new(&memory, "a", 60);
        assert!(has_room(40) && !has_room(41));
        one.resize(10);
        let copy = one.clone();
        assert_eq!(memory.used(), 20);
        assert_eq!((memory.used_by("a"), memory.used_by("b")), (20, 0));
        drop((one, copy));
        assert_eq!(memory.used(), 0);
        assert!(
            memory.hosts.lock().is_empty(),
            "a host without members takes nothing"
        );
        let _replayed = Share::new(&memory, "a", 200);
        assert!(has_room(0) && !has_room(1));
    }

    /// Large members that never came back took everything, and nobody could join anew meanwhile.
    #[test]
    fn large_members_leave_a_quarter_to_small_ones() {
        let memory = MemberMemory::new(MemberBounds {
            limit: 1_000,
            small: 10,
            limit_of_host: 1_000,
        });
        let _large = Share::new(&memory, "a", 700);
        assert!(memory.has_room(claim("b", 50, 50)));
        assert!(!memory.has_room(claim("b", 51, 51)));
        assert!(
            !memory.has_room(claim("b", 51, 60)),
            "one that grows is large, too"
        );
        assert!(memory.has_room(claim("b", 10, 10)));
        let _small = Share::new(&memory, "b", 295);
        assert!(memory.has_room(claim("c", 5, 5)));
        assert!(!memory.has_room(claim("c", 10, 10)));
        assert!(memory.has_room(claim("a", 500, 0)), "who is there stays");
    }

    #[test]
    fn one_host_leaves_its_part_to_others() {
        let memory = MemberMemory::new(MemberBounds {
            limit: 1_000,
            small: 10,
            limit_of_host: 500,
        });
        let shares: Vec<_> = (0..50).map(|_| Share::new(&memory, "a", 10)).collect();
        assert!(!memory.has_room(claim("a", 1, 1)));
        assert!(memory.has_room(claim("b", 10, 10)));
        drop(shares);
        assert!(memory.has_room(claim("a", 1, 1)));
    }
}
