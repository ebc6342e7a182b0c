//! Memory of large produce frames, used again.
//!
//! A fresh megabyte costs 256 page faults, each of which the kernel zeroes a page for, and its first
//! bytes come from memory instead of the processor's cache. So the buffer of a produce frame comes
//! back here when the last slice of it is dropped, which is soon: batches are let go of once they
//! are in the log. The buffer that came back last is handed out first.
//!
//! Other frames are left to the allocator: what is kept of them (members' assignments) may live
//! long, and would keep a whole buffer.
//!
//! A frame changes to a larger buffer when it has more memory reserved than its buffer has room for.
//!
//! Bytes of idle buffers ≤ the limit, and those that nobody has needed between two calls of
//! [`FrameBuffers::release_idle`] are freed.

use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

/// Frames below this are left to the allocator, which keeps memory of that size at hand.
const MIN_BYTES: usize = 64 * 1024;

/// Frames above this are: they are rare.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A buffer serves frames of at least its capacity divided by this.
const LARGEST_WASTE: usize = 4;

/// The buffers of a broker that wait for their next frame.
#[derive(Debug)]
pub(crate) struct FrameBuffers {
    limit: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// The one that came back last is at the end.
    buffers: Vec<BytesMut>,
    bytes: usize,
    /// Fewest buffers that were idle at once since the last release.
    fewest: usize,
}

/// A frame on its way in: a buffer with room for what may come of it now.
#[derive(Debug)]
pub(super) struct FrameBuffer {
    /// The bytes that have come.
    pub(super) bytes: BytesMut,
    /// Where the buffer goes in the end; nowhere if it is used once.
    home: Weak<FrameBuffers>,
    /// The connection's leave to hold the frame.
    _room: Option<OwnedSemaphorePermit>,
}

impl FrameBuffers {
    /// Keeps at most `limit` bytes for later.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            idle: Mutex::default(),
        })
    }

    /// Whether buffers of frames of `len` bytes are kept.
    pub(super) fn keeps(len: usize) -> bool {
        (MIN_BYTES..=MAX_BYTES).contains(&len)
    }

    /// A frame of which nothing has come. It holds on to `room` until its last slice is dropped.
    pub(super) fn begin(self: &Arc<Self>, room: Option<OwnedSemaphorePermit>) -> FrameBuffer {
        FrameBuffer {
            bytes: BytesMut::new(),
            home: Arc::downgrade(self),
            _room: room,
        }
    }

    fn empty(&self, len: usize) -> BytesMut {
        self.take_idle(len)
            .unwrap_or_else(|| BytesMut::with_capacity(len.next_power_of_two()))
    }

    fn take_idle(&self, len: usize) -> Option<BytesMut> {
        let mut idle = self.idle.lock();
        let at = idle.buffers.iter().rposition(|buffer| {
            let capacity = buffer.capacity();
            capacity >= len && capacity / LARGEST_WASTE <= len
        })?;
        let buffer = idle.buffers.remove(at);
        idle.bytes -= buffer.capacity();
        idle.fewest = idle.fewest.min(idle.buffers.len());
        Some(buffer)
    }

    fn give_back(&self, mut buffer: BytesMut) {
        if buffer.capacity() < MIN_BYTES {
            return;
        }
        buffer.clear();
        let mut idle = self.idle.lock();
        if idle.bytes + buffer.capacity() <= self.limit {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }

    /// Frees the buffers that nobody has needed since the last call.
    pub(crate) fn release_idle(&self) {
        let mut idle = self.idle.lock();
        let unneeded = idle.fewest.min(idle.buffers.len());
        let freed: Vec<_> = idle.buffers.drain(..unneeded).collect();
        idle.bytes -= freed.iter().map(BytesMut::capacity).sum::<usize>();
        idle.fewest = idle.buffers.len();
        drop(idle);
        drop(freed);
    }
}

impl FrameBuffer {
    /// A frame of which nothing has come, whose buffer is used once.
    pub(super) fn single() -> Self {
        Self {
            bytes: BytesMut::new(),
            home: Weak::new(),
            _room: None,
        }
    }

    /// Makes room for `len` bytes in all. What has come is copied.
    pub(super) fn grow(&mut self, len: usize) {
        if self.bytes.capacity() >= len {
            return;
        }
        let home = self.home.upgrade();
        let mut larger = match &home {
            Some(home) => home.empty(len),
            None => BytesMut::with_capacity(len),
        };
        larger.extend_from_slice(&self.bytes);
        let outgrown = std::mem::replace(&mut self.bytes, larger);
        if let Some(home) = home {
            home.give_back(outgrown);
        }
    }

    /// Keeps no more room than for what has come, which is copied.
    pub(super) fn shrink(&mut self) {
        let kept = BytesMut::from(&self.bytes[..]);
        let left = std::mem::replace(&mut self.bytes, kept);
        if let Some(home) = self.home.upgrade() {
            home.give_back(left);
        }
    }

    /// The whole frame. Its buffer goes home when the last slice of it is dropped.
    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for FrameBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for FrameBuffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    const MB: usize = 1 << 20;

    fn take(
        buffers: &Arc<FrameBuffers>,
        len: usize,
        room: Option<OwnedSemaphorePermit>,
    ) -> FrameBuffer {
        let mut buffer = buffers.begin(room);
        buffer.grow(len);
        buffer
    }

    fn idle(buffers: &FrameBuffers) -> (usize, usize) {
        let idle = buffers.idle.lock();
        (idle.buffers.len(), idle.bytes)
    }

    #[test]
    fn a_buffer_comes_back_with_the_last_slice_of_its_frame_and_is_used_again() {
        let buffers = FrameBuffers::new(8 * MB);
        let mut buffer = take(&buffers, 1_000_000, None);
        buffer.bytes.extend_from_slice(&[7; 1_000_000]);
        let address = buffer.bytes.as_ptr();
        let frame = buffer.freeze();
        let slice = frame.slice(10..20);
        drop(frame);
        assert_eq!(idle(&buffers), (0, 0));
        assert_eq!(&slice[..], [7; 10]);
        drop(slice);
        assert_eq!(idle(&buffers), (1, MB));
        let again = take(&buffers, 900_000, None);
        assert_eq!(again.bytes.as_ptr(), address);
        assert!(again.bytes.is_empty());
    }

    #[test]
    fn a_buffer_that_is_far_too_large_is_left_for_others() {
        let buffers = FrameBuffers::new(64 * MB);
        drop(take(&buffers, 8 * MB, None));
        let small = take(&buffers, MB, None);
        assert_eq!(small.bytes.capacity(), MB);
        assert_eq!(idle(&buffers), (1, 8 * MB));
    }

    #[tokio::test]
    async fn the_room_of_a_frame_is_free_again_with_its_last_slice() {
        let buffers = FrameBuffers::new(8 * MB);
        let room = Arc::new(Semaphore::new(MB));
        let all = MB as u32;
        let permit = Arc::clone(&room).acquire_many_owned(all).await.ok();
        let mut buffer = take(&buffers, MB, permit);
        buffer.bytes.extend_from_slice(b"frame");
        let frame = buffer.freeze();
        let slice = frame.slice(1..3);
        drop(frame);
        assert_eq!(room.available_permits(), 0);
        drop(slice);
        assert_eq!(room.available_permits(), MB);
    }

    #[test]
    fn a_buffer_that_is_outgrown_leaves_its_bytes_to_a_larger_one_and_goes_home() {
        let buffers = FrameBuffers::new(8 * MB);
        let mut buffer = take(&buffers, MIN_BYTES, None);
        buffer.bytes.extend_from_slice(b"start");
        buffer.grow(MIN_BYTES);
        assert_eq!(buffer.bytes.capacity(), MIN_BYTES, "there is room");
        buffer.grow(900_000);
        assert_eq!(&buffer.bytes[..], b"start");
        assert_eq!(buffer.bytes.capacity(), MB);
        assert_eq!(idle(&buffers), (1, MIN_BYTES));
        let mut single = FrameBuffer::single();
        single.bytes.extend_from_slice(b"start");
        single.grow(200);
        assert_eq!(&single.bytes[..], b"start");
        assert!(single.bytes.capacity() >= 200);
    }

    #[test]
    fn a_buffer_that_shrinks_keeps_its_bytes_and_gives_its_room_back() {
        let buffers = FrameBuffers::new(8 * MB);
        let mut buffer = take(&buffers, MB, None);
        buffer.bytes.extend_from_slice(b"start");
        buffer.shrink();
        assert_eq!(&buffer.bytes[..], b"start");
        assert_eq!(idle(&buffers), (1, MB));
        drop(buffer);
        assert_eq!(idle(&buffers), (1, MB), "small ones are not kept");
    }

    #[test]
    fn no_more_is_kept_than_the_limit_and_nothing_that_nobody_needs() {
        let buffers = FrameBuffers::new(2 * MB);
        let taken: Vec<_> = (0..4).map(|_| take(&buffers, MB, None)).collect();
        drop(taken);
        assert_eq!(idle(&buffers), (2, 2 * MB));
        buffers.release_idle();
        assert_eq!(idle(&buffers), (2, 2 * MB), "they were needed a moment ago");
        drop(take(&buffers, MB, None));
        buffers.release_idle();
        assert_eq!(idle(&buffers), (1, MB), "one was enough since");
        buffers.release_idle();
        assert_eq!(idle(&buffers), (0, 0));
    }

    #[test]
    fn a_frame_that_outlives_the_buffers_is_freed_by_itself() {
        let buffers = FrameBuffers::new(8 * MB);
        let mut buffer = take(&buffers, MB, None);
        buffer.bytes.extend_from_slice(b"late");
        let frame = buffer.freeze();
        drop(buffers);
        assert_eq!(&frame[..], b"late");
    }
}
