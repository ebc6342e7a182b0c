//! A log in memory whose commits a test holds back, lets through or breaks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use odradek_protocol::batch::{BatchHeader, patch_offsets};
use odradek_protocol::ids::{LeaderEpoch, Offset};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::log::{AppendCommit, CommittedBatches, CoordinatorLog, LogFailure};
use crate::partitions::log_dir::Room;

#[derive(Debug, Default)]
struct Inner {
    batches: Vec<(Offset, Bytes)>,
    end: i64,
    high_watermark: i64,
    /// Commits are held back.
    held: bool,
    /// Reads do not return.
    unreadable: bool,
    refuses: Option<LogFailure>,
    /// Others may lead by now.
    lease_is_over: bool,
    /// What is appended is taken, and stays outside of the log.
    stalled: bool,
    queue: VecDeque<Bytes>,
    room: Room,
    waiting: VecDeque<(i64, oneshot::Sender<Result<(), LogFailure>>)>,
    appends: usize,
}

/// A log of one partition in memory.
#[derive(Debug)]
pub(crate) struct MemoryLog {
    inner: Mutex<Inner>,
    max_batch_bytes: usize,
}

impl MemoryLog {
    pub fn new() -> Self {
        Self::with_max_batch_bytes(1 << 20)
    }

    pub fn with_max_batch_bytes(max_batch_bytes: usize) -> Self {
        Self {
            inner: Mutex::new(Inner::default()),
            max_batch_bytes,
        }
    }

    /// Holds commits back from now on.
    pub fn hold(&self) {
        self.inner.lock().held = true;
    }

    /// Lets `count` of the batches that wait commit.
    pub fn commit(&self, count: usize) {
        let mut inner = self.inner.lock();
        for _ in 0..count {
            let Some((end, waiting)) = inner.waiting.pop_front() else {
                return;
            };
            inner.high_watermark = end;
            let _ = waiting.send(Ok(()));
        }
    }

    /// Lets everything commit, now and later.
    pub fn release(&self) {
        self.commit(usize::MAX);
        self.inner.lock().held = false;
    }

    /// Fails every batch that waits. The first `surviving` of them are in the log nevertheless.
    pub fn fail(&self, failure: LogFailure, surviving: usize) {
        let mut inner = self.inner.lock();
        if let Some((end, _)) = surviving
            .checked_sub(1)
            .and_then(|last| inner.waiting.get(last))
        {
            inner.high_watermark = *end;
        }
        let end = inner.high_watermark;
        inner.batches.retain(|(base, _)| base.get() < end);
        inner.end = end;
        for (_, waiting) in inner.waiting.drain(..) {
            let _ = waiting.send(Err(failure));
        }
    }

    /// Fails every batch that waits, all of which commit nevertheless, but later.
    pub fn lose_track(&self) {
        let mut inner = self.inner.lock();
        for (end, waiting) in std::mem::take(&mut inner.waiting) {
            let _ = waiting.send(Err(LogFailure::Unavailable));
            inner.waiting.push_back((end, oneshot::channel().0));
        }
    }

    /// Takes what is appended from now on without writing it; whoever waits for it gives up.
    pub fn stall(&self) {
        self.inner.lock().stalled = true;
    }

    /// Writes what was taken meanwhile.
    pub fn go_on(&self) {
        let taken = {
            let mut inner = self.inner.lock();
            inner.stalled = false;
            std::mem::take(&mut inner.queue)
        };
        for batch in taken {
            drop(self.append(batch));
        }
    }

    /// Fails every append and read from now on; `None` ends that.
    pub fn refuse(&self, failure: Option<LogFailure>) {
        self.inner.lock().refuses = failure;
    }

    /// Makes reads wait for ever.
    pub fn make_unreadable(&self, unreadable: bool) {
        self.inner.lock().unreadable = unreadable;
    }

    /// Others may lead from now on.
    pub fn end_lease(&self) {
        self.inner.lock().lease_is_over = true;
    }

    /// How much room the disk has from now on.
    pub fn set_room(&self, room: Room) {
        self.inner.lock().room = room;
    }

    /// Number of batches appended since the log was made.
    pub fn appends(&self) -> usize {
        self.inner.lock().appends
    }
}

impl CoordinatorLog for MemoryLog {
    fn append(&self, batch: Bytes) -> AppendCommit {
        let mut inner = self.inner.lock();
        if let Some(failure) = inner.refuses {
            return Box::pin(std::future::ready(Err(failure)));
        }
        if inner.stalled {
            inner.queue.push_back(batch);
            return Box::pin(std::future::ready(Err(LogFailure::Unavailable)));
        }
        let base = Offset::new(inner.end);
        let mut stamped = BytesMut::from(&batch[..]);
        patch_offsets(&mut stamped, base, LeaderEpoch::new(1));
        let header = BatchHeader::parse(&stamped).expect("a batch");
        assert!(stamped.len() <= self.max_batch_bytes, "batch too large");
        inner.batches.push((base, stamped.freeze()));
        inner.end = header.next_offset().get();
        inner.appends += 1;
        if !inner.held {
            inner.high_watermark = inner.end;
            return Box::pin(std::future::ready(Ok(())));
        }
        let (sender, committed) = oneshot::channel();
        let end = inner.end;
        inner.waiting.push_back((end, sender));
        Box::pin(async move { committed.await.unwrap_or(Err(LogFailure::Unavailable)) })
    }

    fn epoch(&self) -> LeaderEpoch {
        LeaderEpoch::new(1)
    }

    fn log_start(&self) -> Offset {
        Offset::ZERO
    }

    fn high_watermark(&self) -> Offset {
        Offset::new(self.inner.lock().high_watermark)
    }

    fn log_end(&self) -> Offset {
        Offset::new(self.inner.lock().end)
    }

    fn in_flight(&self) -> usize {
        let inner = self.inner.lock();
        inner.queue.len() + inner.waiting.len()
    }

    fn read(&self, from: Offset, max_bytes: usize) -> CommittedBatches<'_> {
        Box::pin(async move {
            while self.inner.lock().unreadable {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let inner = self.inner.lock();
            if let Some(failure) = inner.refuses {
                return Err(failure);
            }
            let mut bytes = BytesMut::new();
            let first = inner.batches.partition_point(|(base, _)| *base < from);
            for (base, batch) in inner.batches.iter().skip(first) {
                if base.get() >= inner.high_watermark
                    || (!bytes.is_empty() && bytes.len() + batch.len() > max_bytes)
                {
                    break;
                }
                bytes.extend_from_slice(batch);
            }
            Ok(bytes.freeze())
        })
    }

    fn holds_lease(&self) -> bool {
        !self.inner.lock().lease_is_over
    }

    fn room(&self) -> Room {
        self.inner.lock().room
    }

    fn max_batch_bytes(&self) -> usize {
        self.max_batch_bytes
    }
}
