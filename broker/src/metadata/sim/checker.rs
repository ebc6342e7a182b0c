//! What must hold, whatever happens.
//!
//! - Every replica commits the same batches, byte for byte, and has the same image at the same offset,
//!   whether it has replayed the log or taken over a checkpoint.
//! - A change that was answered is in the log where the answer said, and its records are all there.
//! - An answer rests on every change that had been answered before it was asked for.
//! - No broker's epoch, no partition's leader epoch and no producer id goes back.
//! - A topic has all its partitions or does not exist, after every batch.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use odradek_protocol::batch::BatchIter;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, ProducerId, TopicId};
use odradek_raft::Group;

use crate::metadata::image::MetadataImage;
use crate::metadata::records::MetadataRecord;
use crate::metadata::replay;

/// Batches that are read at a time.
const READ_MAX_BYTES: usize = 1 << 20;

/// A change that was answered.
#[derive(Debug)]
pub(super) struct Answered {
    /// What was asked for.
    pub(super) what: String,
    /// Its records; none if nothing had to change.
    pub(super) records: Vec<MetadataRecord>,
    /// Offset after the last of them.
    pub(super) end: Offset,
    /// The highest end that had been answered before it was asked for.
    pub(super) known: Offset,
}

/// See the module.
#[derive(Default)]
pub(super) struct Checker {
    /// Every batch that any replica has committed, by its first offset.
    history: BTreeMap<i64, Bytes>,
    /// The image after each of them.
    images: BTreeMap<i64, MetadataImage>,
    last: MetadataImage,
    /// Up to where the log of each node has been read, and of which of its processes.
    read: HashMap<i32, (u64, Offset)>,
    /// Where each node's image was when it was last looked at.
    seen: HashMap<i32, Offset>,
    answered: Vec<Answered>,
    broker_epochs: HashMap<NodeId, i64>,
    leader_epochs: HashMap<(TopicId, PartitionIndex), LeaderEpoch>,
    producer_ids: ProducerId,
    jumps: usize,
}

impl Checker {
    pub(super) fn end(&self) -> i64 {
        self.last.next_offset().get()
    }

    pub(super) fn acknowledged(&self) -> usize {
        self.answered.len()
    }

    /// How often a node had an image that it cannot have read from its log.
    pub(super) fn jumps(&self) -> usize {
        self.jumps
    }

    /// A change was answered.
    pub(super) fn answered(&mut self, answered: Answered) {
        assert!(
            answered.end >= answered.known,
            "an answer from the past: {answered:?}"
        );
        self.answered.push(answered);
    }

    /// Reads on in the log of a node, and looks at its image. `process` counts the node's starts.
    pub(super) fn look(&mut self, node: i32, process: u64, group: &Group, image: &MetadataImage) {
        self.read_on(node, process, group);
        self.go_on();
        let at = image.next_offset();
        if self.seen.insert(node, at) == Some(at) {
            return;
        }
        self.jumps += usize::from(self.read[&node].1 < at);
        if let Some(expected) = self.images.get(&at.get()) {
            assert_eq!(image, expected, "node {node} has another image at {at}");
        } else {
            assert!(
                at == Offset::ZERO || at > self.last.next_offset(),
                "node {node} has an image that ends within a batch, at {at}"
            );
        }
    }

    fn read_on(&mut self, node: i32, process: u64, group: &Group) {
        let committed = group.offsets().high_watermark.offset();
        let start = group.reader().log_start();
        let (last_process, mut at) = *self.read.get(&node).unwrap_or(&(process, start));
        if last_process != process || at < start {
            at = start;
        }
        loop {
            // Beyond its end when it has been taken over from a leader and does not reach that far yet.
            let Ok(slice) = group.reader().read(at, READ_MAX_BYTES, committed, true) else {
                break;
            };
            let Ok(bytes) = slice.read() else { break };
            let mut batches = BatchIter::new(&bytes).peekable();
            if batches.peek().is_none() {
                break;
            }
            for batch in batches {
                let batch = batch.expect("a committed batch is sound");
                let base = batch.header.base_offset.get();
                let known = self
                    .history
                    .entry(base)
                    .or_insert_with(|| Bytes::copy_from_slice(batch.bytes));
                assert_eq!(
                    known, batch.bytes,
                    "node {node} has another batch at {base}"
                );
                at = batch.header.next_offset();
            }
        }
        self.read.insert(node, (process, at));
    }

    /// Puts what follows in the history on top of the last image.
    fn go_on(&mut self) {
        while let Some(batch) = self.history.get(&self.last.next_offset().get()) {
            let mut next = self.last.clone();
            replay::apply_batches(&mut next, batch).expect("what is committed can be replayed");
            self.check(&next);
            self.images.insert(next.next_offset().get(), next.clone());
            self.last = next;
        }
    }

    fn check(&mut self, image: &MetadataImage) {
        for (id, broker) in image.brokers() {
            let before = self.broker_epochs.insert(id, broker.broker_epoch);
            assert!(
                before.is_none_or(|before| before <= broker.broker_epoch),
                "the epoch of broker {id} goes back from {before:?} to {}",
                broker.broker_epoch
            );
        }
        for topic in image.topics() {
            assert!(!topic.partitions.is_empty(), "half a topic: {topic:?}");
            for (index, state) in topic.indexed() {
                assert!(!state.replicas.is_empty(), "half a partition: {topic:?}");
                let key = (topic.id, index);
                let before = self.leader_epochs.insert(key, state.leader_epoch);
                assert!(
                    before.is_none_or(|before| before <= state.leader_epoch),
                    "the leader epoch of {key:?} goes back"
                );
            }
        }
        assert!(image.next_producer_id() >= self.producer_ids);
        self.producer_ids = image.next_producer_id();
        let mut again = MetadataImage::default();
        let records: Vec<_> = image.records().collect();
        again.apply(&records, image.next_offset()).expect("applies");
        again.stands_at(image.next_offset(), image.last_epoch());
        assert_eq!(&again, image, "its records make another image");
    }

    /// At the end: everything that was answered is in the log.
    pub(super) fn nothing_is_lost(&self) {
        let ends: BTreeMap<i64, &Bytes> = self
            .history
            .iter()
            .map(|(base, batch)| {
                let header = odradek_protocol::batch::BatchHeader::parse(batch).expect("sound");
                let next = header.next_offset().get();
                assert!(next > *base);
                (next, batch)
            })
            .collect();
        let end = self.last.next_offset();
        for answered in &self.answered {
            assert!(
                answered.end <= end,
                "lost: {answered:?}, the log ends at {end}"
            );
            if answered.records.is_empty() {
                continue;
            }
            let batch = ends.get(&answered.end.get()).unwrap_or_else(|| {
                panic!("lost: {answered:?}");
            });
            let header = odradek_protocol::batch::BatchHeader::parse(batch).expect("sound");
            let records = replay::records(&header, batch).expect("sound");
            assert_eq!(records, answered.records, "{}", answered.what);
        }
    }

    /// What every image has to be in the end.
    pub(super) fn last(&self) -> &MetadataImage {
        &self.last
    }
}
