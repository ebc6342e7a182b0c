//! Producer ids, handed to brokers in blocks (KIP-730) so that a new producer costs no write.

use odradek_protocol::ids::{NodeId, ProducerId};

use super::super::image::MetadataImage;
use super::super::records::{MetadataRecord, ProducerIdsRecord};

/// Ids in one block.
pub const BLOCK_SIZE: i64 = 1_000;

/// Ids that belong to one broker, each to be given out once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerIdBlock {
    next: ProducerId,
    end: ProducerId,
}

impl ProducerIdBlock {
    /// A block with nothing in it.
    pub const EMPTY: Self = Self {
        next: ProducerId::new(0),
        end: ProducerId::new(0),
    };

    /// The `count` ids from `first` on, as they come from another node.
    pub fn new(first: i64, count: i32) -> Self {
        Self {
            next: ProducerId::new(first),
            end: ProducerId::new(first.saturating_add(i64::from(count.max(0)))),
        }
    }

    /// The first id and how many there are.
    pub fn range(&self) -> (i64, i32) {
        let count = self.end.get().saturating_sub(self.next.get());
        (self.next.get(), i32::try_from(count).unwrap_or(0))
    }

    /// Whether all its ids have been taken.
    pub fn is_empty(&self) -> bool {
        self.next >= self.end
    }

    /// Takes the next id, if one is left.
    pub fn take(&mut self) -> Option<ProducerId> {
        (!self.is_empty()).then(|| {
            let id = self.next;
            self.next = ProducerId::new(id.get() + 1);
            id
        })
    }
}

/// The next block, for `broker`.
pub fn allocate(image: &MetadataImage, broker: NodeId) -> (Vec<MetadataRecord>, ProducerIdBlock) {
    let first = image.next_producer_id();
    let end = ProducerId::new(first.get() + BLOCK_SIZE);
    let record = MetadataRecord::ProducerIds(ProducerIdsRecord {
        broker_id: broker,
        broker_epoch: image
            .broker(broker)
            .map_or(-1, |registration| registration.broker_epoch),
        next_producer_id: end,
    });
    (vec![record], ProducerIdBlock { next: first, end })
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::{apply, image_with_brokers};
    use super::*;

    #[test]
    fn no_id_is_given_out_twice() {
        let mut image = image_with_brokers(&[1]);
        let (records, mut first) = allocate(&image, NodeId::new(1));
        apply(&mut image, &records);
        let (_, mut second) = allocate(&image, NodeId::new(1));
        let ids: Vec<i64> = std::iter::from_fn(|| first.take())
            .map(ProducerId::get)
            .collect();
        assert_eq!(ids, (0..1_000).collect::<Vec<_>>());
        assert_eq!(second.take(), Some(ProducerId::new(1_000)));
        assert_eq!(ProducerIdBlock::EMPTY.clone().take(), None);
    }
}
