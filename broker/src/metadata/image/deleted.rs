//! Topics that are gone. No id is given twice, so what is left of one belongs to nobody.

use odradek_protocol::ids::TopicId;

use crate::shared_map::SharedMap;

/// Topics that are remembered: more than are deleted while a broker is down, and little enough to be
/// carried along.
const MAX_DELETED: usize = 1 << 14;

/// See the module. The last ones, in the order in which they went.
#[derive(Debug, Clone, Default)]
pub(super) struct Deleted {
    in_order: SharedMap<u64, TopicId>,
    turns: SharedMap<TopicId, u64>,
    next: u64,
}

impl PartialEq for Deleted {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Deleted {
    pub(super) fn contains(&self, id: TopicId) -> bool {
        self.turns.contains_key(&id)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = TopicId> {
        self.in_order.values().copied()
    }

    pub(super) fn push(&mut self, id: TopicId) {
        if self.contains(id) {
            return;
        }
        if self.in_order.len() >= MAX_DELETED
            && let Some((turn, oldest)) = self.in_order.iter().next().map(|(turn, id)| (*turn, *id))
        {
            self.in_order.remove(&turn);
            self.turns.remove(&oldest);
        }
        self.in_order.insert(self.next, id);
        self.turns.insert(id, self.next);
        self.next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> TopicId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        TopicId::from_bytes(bytes)
    }

    #[test]
    fn the_last_ones_are_remembered_in_order_and_the_oldest_go() {
        let mut deleted = Deleted::default();
        let most = u32::try_from(MAX_DELETED).expect("small");
        for number in 0..most + 3 {
            deleted.push(id(number));
        }
        assert_eq!(deleted.iter().len(), MAX_DELETED);
        assert_eq!(deleted.iter().next(), Some(id(3)));
        assert!(!deleted.contains(id(2)) && deleted.contains(id(most + 2)));
        let mut again = Deleted::default();
        deleted.iter().for_each(|id| again.push(id));
        assert_eq!(again, deleted);
    }
}
