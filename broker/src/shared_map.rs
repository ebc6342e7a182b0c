//! An ordered map whose copies share what they have in common.
//!
//! A copy costs a pointer; a change after it copies the path to what changes, logarithmic in the size.
//! Two maps of which one came from the other are compared in proportion to what differs, not to their
//! size: [`SharedMap::changes_since`] passes over what both share. That is what lets every reader of the
//! metadata hold an image of its own and find out what is new in the next.
//!
//! It is a treap: a search tree by key in which every node outranks its children, the rank being a hash of
//! the key. Its shape follows from its keys alone, however they came, so that equal parts of two maps are
//! mostly the same parts. The hash is keyed afresh by every process: nobody can choose keys that make a
//! deep tree. Nothing that is observable depends on it.
//!
//! The crates that offer such a map with a comparison that passes over shared parts come under licences
//! that this workspace does not take.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock};

static RANKS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    rank: u64,
    /// Entries of this node and everything below it.
    len: usize,
    left: Link<K, V>,
    right: Link<K, V>,
}

/// See the module.
pub struct SharedMap<K, V> {
    root: Link<K, V>,
}

/// How one entry differs between two maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<K, V> {
    /// The key.
    pub key: K,
    /// Its value in the earlier map; `None` if it was not there.
    pub before: Option<V>,
    /// Its value in the later map; `None` if it is there no more.
    pub after: Option<V>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        same(&self.root, &other.root) || (self.len() == other.len() && self.iter().eq(other.iter()))
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

impl<K, V> SharedMap<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        len(&self.root)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Entries in the order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut walk = Walk { path: Vec::new() };
        walk.descend(&self.root);
        Iter {
            walk,
            left: self.len(),
        }
    }

    /// Keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Values in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some(&node.value),
                Ordering::Greater => &node.right,
            };
        }
        None
    }

    /// Whether there is a value of this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Entries whose keys are not below `from`, in order. Finding the first costs the depth of the tree.
    pub fn iter_from<'a, Q: Ord + ?Sized>(
        &'a self,
        from: &Q,
    ) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let mut path = Vec::new();
        let mut link = &self.root;
        while let Some(node) = link {
            link = if node.key.borrow() < from {
                &node.right
            } else {
                path.push(&**node);
                &node.left
            };
        }
        Walk { path }
    }
}

impl<K: Ord + Hash + Clone, V: Clone> SharedMap<K, V> {
    /// Gives a key a value, and returns the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let rank = RANKS.hash_one(&key);
        insert(&mut self.root, key, value, rank)
    }

    /// Takes a key out, and returns its value. A key that is not there changes nothing.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Looked up first, so that nothing is copied in vain.
        self.get(key)?;
        remove(&mut self.root, key)
    }

    /// The value of a key, to be changed in this map alone.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.get(key)?;
        let mut link = &mut self.root;
        while let Some(node) = link {
            let node = Arc::make_mut(node);
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &mut node.left,
                Ordering::Equal => return Some(&mut node.value),
                Ordering::Greater => &mut node.right,
            };
        }
        None
    }

    /// How this map differs from `before`, in the order of the keys. Costs what differs, where one of the
    /// two came from the other; values that are equal count as the same.
    pub fn changes_since(&self, before: &Self) -> Vec<Change<K, V>>
    where
        V: PartialEq,
    {
        let mut changes = Vec::new();
        compare(&before.root, &self.root, &mut changes);
        changes
    }
}

impl<K: Ord + Hash + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

/// Entries of a [`SharedMap`] in the order of their keys.
pub struct Iter<'a, K, V> {
    walk: Walk<'a, K, V>,
    left: usize,
}

/// The same from some entry on.
struct Walk<'a, K, V> {
    /// Nodes that come next, each before what is to its right, the next one last.
    path: Vec<&'a Node<K, V>>,
}

impl<'a, K, V> Walk<'a, K, V> {
    fn descend(&mut self, mut link: &'a Link<K, V>) {
        while let Some(node) = link {
            self.path.push(node);
            link = &node.left;
        }
    }
}

impl<'a, K, V> Iterator for Walk<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.path.pop()?;
        self.descend(&node.right);
        Some((&node.key, &node.value))
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.walk.next()?;
        self.left -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

fn same<K, V>(one: &Link<K, V>, other: &Link<K, V>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

fn len<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(0, |node| node.len)
}

impl<K: Ord, V> Node<K, V> {
    fn count(&mut self) {
        self.len = 1 + len(&self.left) + len(&self.right);
    }

    /// Whether this one stands above the other where both are in a tree. Ranks may be equal, keys are not.
    fn outranks(&self, rank: u64, key: &K) -> bool {
        (self.rank, &self.key) > (rank, key)
    }
}

fn insert<K: Ord + Clone, V: Clone>(
    link: &mut Link<K, V>,
    key: K,
    value: V,
    rank: u64,
) -> Option<V> {
    let order = match link {
        Some(node) if node.key == key => Ordering::Equal,
        Some(node) if node.outranks(rank, &key) => key.cmp(&node.key),
        // The new one stands here; it is nowhere below, where everything is outranked by what was here.
        _ => {
            let (left, right) = split(link.take(), &key);
            let len = 1 + len(&left) + len(&right);
            *link = Some(Arc::new(Node {
                key,
                value,
                rank,
                len,
                left,
                right,
            }));
            return None;
        }
    };
    let node = Arc::make_mut(link.as_mut()?);
    let replaced = match order {
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
        Ordering::Less => insert(&mut node.left, key, value, rank),
        Ordering::Greater => insert(&mut node.right, key, value, rank),
    };
    node.count();
    replaced
}

/// What is below `key`, and what is above it. The key itself is not in the tree.
fn split<K: Ord + Clone, V: Clone>(link: Link<K, V>, key: &K) -> (Link<K, V>, Link<K, V>) {
    let Some(node) = link else {
        return (None, None);
    };
    let mut node = Arc::unwrap_or_clone(node);
    if node.key < *key {
        let (below, above) = split(node.right.take(), key);
        node.right = below;
        node.count();
        (Some(Arc::new(node)), above)
    } else {
        let (below, above) = split(node.left.take(), key);
        node.left = above;
        node.count();
        (below, Some(Arc::new(node)))
    }
}

/// One tree of two, where every key of the first is below every key of the second.
fn merge<K: Ord + Clone, V: Clone>(first: Link<K, V>, second: Link<K, V>) -> Link<K, V> {
    let (first, second) = match (first, second) {
        (first, None) => return first,
        (None, second) => return second,
        (Some(first), Some(second)) => (first, second),
    };
    let node = if first.outranks(second.rank, &second.key) {
        let mut node = Arc::unwrap_or_clone(first);
        node.right = merge(node.right.take(), Some(second));
        node.count();
        node
    } else {
        let mut node = Arc::unwrap_or_clone(second);
        node.left = merge(Some(first), node.left.take());
        node.count();
        node
    };
    Some(Arc::new(node))
}

fn remove<K, V, Q>(link: &mut Link<K, V>, key: &Q) -> Option<V>
where
    K: Ord + Clone + Borrow<Q>,
    V: Clone,
    Q: Ord + ?Sized,
{
    let node = Arc::make_mut(link.as_mut()?);
    let removed = match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut node.left, key),
        Ordering::Greater => remove(&mut node.right, key),
        Ordering::Equal => {
            let merged = merge(node.left.take(), node.right.take());
            let removed = std::mem::replace(link, merged);
            return removed.map(|node| Arc::unwrap_or_clone(node).value);
        }
    };
    node.count();
    removed
}

fn compare<K: Ord + Clone, V: Clone + PartialEq>(
    before: &Link<K, V>,
    after: &Link<K, V>,
    changes: &mut Vec<Change<K, V>>,
) {
    if same(before, after) {
        return;
    }
    let (old, new) = match (before, after) {
        (None, None) => return,
        (Some(old), None) => return all(old, changes, |key, value| removed(key, value)),
        (None, Some(new)) => return all(new, changes, |key, value| added(key, value)),
        (Some(old), Some(new)) => (old, new),
    };
    if old.key == new.key {
        compare(&old.left, &new.left, changes);
        if old.value != new.value {
            changes.push(Change {
                key: new.key.clone(),
                before: Some(old.value.clone()),
                after: Some(new.value.clone()),
            });
        }
        compare(&old.right, &new.right, changes);
    } else if old.outranks(new.rank, &new.key) {
        // It would stand above everything that is there now.
        let (below, above) = split(after.clone(), &old.key);
        compare(&old.left, &below, changes);
        changes.push(removed(&old.key, &old.value));
        compare(&old.right, &above, changes);
    } else {
        let (below, above) = split(before.clone(), &new.key);
        compare(&below, &new.left, changes);
        changes.push(added(&new.key, &new.value));
        compare(&above, &new.right, changes);
    }
}

fn all<K, V>(
    node: &Node<K, V>,
    changes: &mut Vec<Change<K, V>>,
    change: impl Fn(&K, &V) -> Change<K, V> + Copy,
) {
    if let Some(left) = &node.left {
        all(left, changes, change);
    }
    changes.push(change(&node.key, &node.value));
    if let Some(right) = &node.right {
        all(right, changes, change);
    }
}

fn removed<K: Clone, V: Clone>(key: &K, value: &V) -> Change<K, V> {
    Change {
        key: key.clone(),
        before: Some(value.clone()),
        after: None,
    }
}

fn added<K: Clone, V: Clone>(key: &K, value: &V) -> Change<K, V> {
    Change {
        key: key.clone(),
        before: None,
        after: Some(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use rand::Rng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::test_random::seeded;

    fn random_changes(
        rng: &mut StdRng,
        map: &mut SharedMap<u32, u32>,
        model: &mut BTreeMap<u32, u32>,
    ) {
        for _ in 0..rng.random_range(0..40) {
            let key = rng.random_range(0..200);
            match rng.random_range(0..4) {
                0 => assert_eq!(map.remove(&key), model.remove(&key)),
                1 => {
                    let (value, known) = (map.get_mut(&key), model.get_mut(&key));
                    assert_eq!(value.is_some(), known.is_some());
                    if let (Some(value), Some(known)) = (value, known) {
                        *value += 1;
                        *known += 1;
                    }
                }
                _ => {
                    let value = rng.random();
                    assert_eq!(map.insert(key, value), model.insert(key, value));
                }
            }
        }
    }

    fn is_sound(map: &SharedMap<u32, u32>, model: &BTreeMap<u32, u32>) {
        assert_eq!(map.len(), model.len());
        assert_eq!(map.iter().len(), model.len());
        assert!(map.iter().eq(model.iter()));
        for key in [0, 1, 77, 150, 199, 200] {
            assert_eq!(map.get(&key), model.get(&key));
            let from: Vec<_> = map.iter_from(&key).collect();
            assert!(from.into_iter().eq(model.range(key..)));
        }
        fn heap(link: &Link<u32, u32>) -> usize {
            let Some(node) = link else { return 0 };
            for child in [&node.left, &node.right].into_iter().flatten() {
                assert!(node.outranks(child.rank, &child.key));
            }
            let count = 1 + heap(&node.left) + heap(&node.right);
            assert_eq!(node.len, count);
            count
        }
        heap(&map.root);
    }

    /// The difference by looking at every entry of both.
    fn counted(before: &BTreeMap<u32, u32>, after: &BTreeMap<u32, u32>) -> Vec<Change<u32, u32>> {
        let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
        keys.into_iter()
            .map(|key| Change {
                key: *key,
                before: before.get(key).copied(),
                after: after.get(key).copied(),
            })
            .filter(|change| change.before != change.after)
            .collect()
    }

    #[test]
    fn it_holds_and_differs_as_an_ordinary_map_would_and_copies_keep_what_they_had() {
        let mut rng = seeded();
        for _ in 0..50 {
            let (mut map, mut model) = (SharedMap::default(), BTreeMap::new());
            let mut kept = vec![(map.clone(), model.clone())];
            for _ in 0..20 {
                random_changes(&mut rng, &mut map, &mut model);
                is_sound(&map, &model);
                kept.push((map.clone(), model.clone()));
            }
            for (old, old_model) in &kept {
                is_sound(old, old_model);
                assert_eq!(map.changes_since(old), counted(old_model, &model));
                assert_eq!(old.changes_since(&map), counted(&model, old_model));
            }
            let again: SharedMap<u32, u32> =
                model.iter().map(|(key, value)| (*key, *value)).collect();
            assert_eq!(again, map);
        }
    }

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Clone, Debug)]
    struct Counting(u32);

    impl PartialEq for Counting {
        fn eq(&self, other: &Self) -> bool {
            COMPARED.set(COMPARED.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn a_comparison_looks_at_what_changed_and_little_else() {
        let before: SharedMap<u32, Counting> =
            (0..20_000).map(|key| (key, Counting(key))).collect();
        let mut after = before.clone();
        after.remove(&7);
        after.insert(20_001, Counting(1));
        after.insert(9_000, Counting(2));
        COMPARED.set(0);
        assert_eq!(after.changes_since(&before).len(), 3);
        assert!(COMPARED.get() < 400, "{} of 20,000", COMPARED.get());
        assert!(before.clone().changes_since(&before).is_empty());
    }
}
