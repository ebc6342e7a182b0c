//! Which offset is the newest of a key, in a fixed amount of memory.
//!
//! An open-addressed table of 128-bit hashes, never of keys: its size does not depend on what the
//! keys look like. The hashes are keyed with random numbers of the process, so that nobody can
//! choose keys that collide; two keys of a billion collide by accident with a probability of about
//! 10⁻²¹. Invariant: at least one slot in ten is free, which bounds every search.

use std::hash::{BuildHasher, RandomState};

use odradek_protocol::ids::Offset;

/// Nine of ten slots may be taken.
const LOAD_NUMERATOR: usize = 9;
const LOAD_DENOMINATOR: usize = 10;

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: [u64; 2],
    /// The newest offset, or −1 in a free slot.
    offset: i64,
}

const FREE: Slot = Slot {
    hash: [0; 2],
    offset: -1,
};

/// The map is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// See the module.
pub(super) struct KeyMap {
    slots: Vec<Slot>,
    taken: usize,
    hashers: [RandomState; 2],
}

impl KeyMap {
    /// A map for at most `keys` keys in at most `memory_bytes`, but for at least one key.
    pub fn new(memory_bytes: usize, keys: u64) -> Self {
        let wanted = usize::try_from(keys)
            .unwrap_or(usize::MAX)
            .saturating_mul(LOAD_DENOMINATOR)
            .div_ceil(LOAD_NUMERATOR)
            .saturating_add(1);
        let affordable = memory_bytes / size_of::<Slot>();
        Self {
            slots: vec![FREE; wanted.min(affordable).max(2)],
            taken: 0,
            hashers: [RandomState::new(), RandomState::new()],
        }
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        let [first, second] = &self.hashers;
        [first.hash_one(key), second.hash_one(key)]
    }

    /// Index of the slot that holds `hash`, or of the free one where it belongs.
    fn find(&self, hash: [u64; 2]) -> usize {
        let len = self.slots.len();
        let mut at = (hash[0] % len as u64) as usize;
        loop {
            match self.slots.get(at) {
                Some(slot) if slot.offset >= 0 && slot.hash != hash => at = (at + 1) % len,
                _ => return at,
            }
        }
    }

    /// Notes a key at an offset; offsets come in ascending order.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> Result<(), Full> {
        let hash = self.hash(key);
        let at = self.find(hash);
        let is_full = (self.taken + 1) * LOAD_DENOMINATOR > self.slots.len() * LOAD_NUMERATOR;
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(Full);
        };
        if slot.offset < 0 {
            if is_full && self.taken > 0 {
                return Err(Full);
            }
            self.taken += 1;
        }
        *slot = Slot {
            hash,
            offset: offset.get(),
        };
        Ok(())
    }

    /// The newest offset of a key, if it was noted.
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        let at = self.find(self.hash(key));
        let slot = self.slots.get(at)?;
        (slot.offset >= 0).then(|| Offset::new(slot.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_offset_of_every_key_is_found_and_of_no_other() {
        let mut map = KeyMap::new(1 << 20, 1_000);
        for round in 0..3_i64 {
            for key in 0..1_000_i64 {
                map.put(&key.to_be_bytes(), Offset::new(round * 1_000 + key))
                    .unwrap();
            }
        }
        for key in 0..1_000_i64 {
            let newest = map.get(&key.to_be_bytes());
            assert_eq!(newest, Some(Offset::new(2_000 + key)));
        }
        assert_eq!(map.get(b"another"), None);
        assert_eq!(map.get(b""), None);
    }

    #[test]
    fn a_full_map_refuses_new_keys_and_still_takes_known_ones() {
        let mut map = KeyMap::new(100 * size_of::<Slot>(), u64::MAX);
        let mut taken = 0;
        while map
            .put(format!("key-{taken}").as_bytes(), Offset::new(taken))
            .is_ok()
        {
            taken += 1;
        }
        assert_eq!(taken, 90);
        map.put(b"key-3", Offset::new(1_000)).unwrap();
        assert_eq!(map.get(b"key-3"), Some(Offset::new(1_000)));
    }

    #[test]
    fn the_smallest_map_holds_one_key() {
        let mut map = KeyMap::new(0, 0);
        map.put(b"a", Offset::new(1)).unwrap();
        assert_eq!(map.put(b"b", Offset::new(2)), Err(Full));
        assert_eq!(map.get(b"a"), Some(Offset::new(1)));
        assert_eq!(map.get(b"b"), None);
    }
}
