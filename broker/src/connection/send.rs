//! Puts the chunks of replies on a socket with as few copies and system calls as it takes.
//!
//! Bytes leave by one gathering `sendmsg`, file regions by `sendfile`, so that a consumer's records
//! go from the page cache to the socket without entering user space. `sendfile` blocks the thread
//! while it waits for a disk; a region whose pages are not in memory is therefore read on the
//! blocking pool, piece by piece, and never stalls the runtime.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use bytes::{Buf, Bytes, BytesMut};
use odradek_protocol::response::{Chunk, FileRegion};
use rustix::io::ReadWriteFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Most slices that one `sendmsg` takes.
const GATHER_SLICES: usize = 64;
/// A region up to this size is asked about once.
const PAGE_BYTES: usize = 4 * 1024;
/// Piece in which a region that is not in memory is read.
const COLD_PIECE_BYTES: usize = 256 * 1024;
/// Distance of the pages that are asked whether a region is in memory.
const PROBE_STEP_BYTES: usize = 128 * 1024;

/// Chunks on their way to one socket, in order.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

impl Outgoing {
    pub(super) fn push(&mut self, chunk: Chunk) {
        let len = chunk_len(&chunk);
        if len > 0 {
            self.bytes += len;
            self.chunks.push_back(chunk);
        }
    }

    /// Bytes not yet handed to the kernel.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Sends everything; `progress` hears of the bytes each call has sent.
    pub(super) async fn send(
        &mut self,
        stream: &TcpStream,
        mut progress: impl FnMut(usize),
    ) -> io::Result<()> {
        while let Some(front) = self.chunks.front() {
            let sent = match front {
                Chunk::Bytes(_) => {
                    stream
                        .async_io(Interest::WRITABLE, || self.send_bytes(stream))
                        .await?
                }
                Chunk::Region(region) => match region.source.std_file() {
                    Some(file) if is_resident(file, region) => {
                        stream
                            .async_io(Interest::WRITABLE, || send_region(stream, file, region))
                            .await?
                    }
                    _ => {
                        let piece = read_piece(region.clone()).await?;
                        self.replace_front(piece);
                        continue;
                    }
                },
            };
            if sent == 0 {
                // Only a file that ends before its region does this: the reply cannot be completed.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            progress(sent);
            self.advance(sent);
        }
        Ok(())
    }

    fn send_bytes(&self, stream: &TcpStream) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); GATHER_SLICES];
        let mut used = 0;
        let mut flags = SendFlags::NOSIGNAL;
        for chunk in &self.chunks {
            match (chunk, slices.get_mut(used)) {
                (Chunk::Bytes(bytes), Some(slot)) => {
                    *slot = IoSlice::new(bytes);
                    used += 1;
                }
                (Chunk::Bytes(_), None) => break,
                (Chunk::Region(_), _) => {
                    // The region follows in the same packet.
                    flags |= SendFlags::MORE;
                    break;
                }
            }
        }
        let filled = slices.get(..used).unwrap_or(&[]);
        let sent =
            rustix::net::sendmsg(stream, filled, &mut SendAncillaryBuffer::default(), flags)?;
        Ok(sent)
    }

    /// Puts bytes that were read from the front region before what is left of it.
    fn replace_front(&mut self, piece: Bytes) {
        if let Some(Chunk::Region(region)) = self.chunks.front_mut() {
            skip(region, piece.len());
            if region.len == 0 {
                self.chunks.pop_front();
            }
        }
        self.chunks.push_front(Chunk::Bytes(piece));
    }

    fn advance(&mut self, mut sent: usize) {
        self.bytes = self.bytes.saturating_sub(sent);
        while sent > 0 {
            let Some(front) = self.chunks.front_mut() else {
                return;
            };
            let len = chunk_len(front);
            if sent >= len {
                self.chunks.pop_front();
                sent -= len;
            } else {
                match front {
                    Chunk::Bytes(bytes) => bytes.advance(sent),
                    Chunk::Region(region) => skip(region, sent),
                }
                return;
            }
        }
    }
}

fn chunk_len(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Bytes(bytes) => bytes.len(),
        Chunk::Region(region) => region.len,
    }
}

fn skip(region: &mut FileRegion, bytes: usize) {
    region.position += bytes as u64;
    region.len -= bytes;
}

fn send_region(stream: &TcpStream, file: &File, region: &FileRegion) -> io::Result<usize> {
    let mut position = region.position;
    let sent = rustix::fs::sendfile(stream, file, Some(&mut position), region.len)?;
    Ok(sent)
}

/// Whether every probed page of the region is in the page cache. A wrong yes costs one blocking
/// read on a runtime thread, a wrong no one copy.
fn is_resident(file: &File, region: &FileRegion) -> bool {
    let probe = |position: u64| {
        let mut byte = [0u8; 1];
        rustix::io::preadv2(
            file,
            &mut [IoSliceMut::new(&mut byte)],
            position,
            ReadWriteFlags::NOWAIT,
        )
        .is_ok_and(|read| read == 1)
    };
    let last = region.position + region.len.saturating_sub(1) as u64;
    let inner = (0..region.len)
        .step_by(PROBE_STEP_BYTES)
        .all(|step| probe(region.position + step as u64));
    inner && (region.len <= PAGE_BYTES || probe(last))
}

async fn read_piece(region: FileRegion) -> io::Result<Bytes> {
    let read = move || {
        let mut piece = BytesMut::zeroed(region.len.min(COLD_PIECE_BYTES));
        region.source.read_exact_at(&mut piece, region.position)?;
        Ok(piece.freeze())
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::other("the read did not run to its end")),
    }
}
