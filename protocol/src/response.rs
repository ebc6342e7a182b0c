//! A response on its way to the socket: encoded bytes and regions of files, in order.
//!
//! Regions let record data go from the log to the socket without passing through user space. A
//! response's length is fixed when it is built, so whoever sends it either sends exactly that many
//! bytes or closes the connection.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_wire::KafkaResponse;
use kafka_wire_core::{ApiVersion, EncodeError};

use crate::api::ApiKey;
use crate::error::ProtocolError;
use crate::ids::CorrelationId;

/// Something that holds bytes at positions: a file of the log, or a simulated one.
pub trait RegionSource: Send + Sync {
    /// The operating system's file behind it, if there is one that `sendfile` can read.
    fn std_file(&self) -> Option<&std::fs::File>;

    /// Fills `buffer` from `position` on. Fails with `UnexpectedEof` if the source ends before.
    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()>;
}

/// A run of bytes in a [`RegionSource`].
#[derive(Clone)]
pub struct FileRegion {
    /// Where the bytes are.
    pub source: Arc<dyn RegionSource>,
    /// Position of the first byte.
    pub position: u64,
    /// Length in bytes.
    pub len: usize,
}

impl FileRegion {
    /// Copies the region into memory.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut buffer = vec![0; self.len];
        self.source.read_exact_at(&mut buffer, self.position)?;
        Ok(buffer.into())
    }
}

impl fmt::Debug for FileRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRegion")
            .field("position", &self.position)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A piece of a response.
#[derive(Clone, Debug)]
pub enum Chunk {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes in a file.
    Region(FileRegion),
}

impl Chunk {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(region) => region.len,
        }
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A whole response frame, its 4-byte length prefix included.
#[derive(Clone, Debug)]
pub struct Response {
    chunks: Vec<Chunk>,
    len: usize,
}

impl Response {
    /// A response that is already encoded, length prefix included.
    pub fn from_bytes(frame: Bytes) -> Self {
        Self {
            len: frame.len(),
            chunks: vec![Chunk::Bytes(frame)],
        }
    }

    pub(crate) fn from_chunks(chunks: Vec<Chunk>) -> Self {
        Self {
            len: chunks.iter().map(Chunk::len).sum(),
            chunks,
        }
    }

    /// Length in bytes of the whole frame, prefix included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: there is always the length prefix. Present because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held in memory, as opposed to those still in files.
    pub fn bytes_in_memory(&self) -> usize {
        self.chunks
            .iter()
            .map(|chunk| match chunk {
                Chunk::Bytes(bytes) => bytes.len(),
                Chunk::Region(_) => 0,
            })
            .sum()
    }

    /// The pieces, in the order they go out.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// The pieces, in the order they go out.
    pub fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }

    /// The frame as one run of bytes, with the regions read in.
    pub fn read_to_bytes(&self) -> io::Result<Bytes> {
        let mut frame = BytesMut::with_capacity(self.len);
        for chunk in &self.chunks {
            match chunk {
                Chunk::Bytes(bytes) => frame.extend_from_slice(bytes),
                Chunk::Region(region) => frame.extend_from_slice(&region.read()?),
            }
        }
        Ok(frame.freeze())
    }
}

/// Encodes `message` as a response frame: length, response header (v0 or v1 as the API's schema
/// says; ApiVersions always v0, KIP-511), body.
pub fn encode_message<M: KafkaResponse>(
    version: i16,
    correlation_id: CorrelationId,
    message: &M,
) -> Result<Response, ProtocolError> {
    let api_version = ApiVersion::new(version);
    let mut frame = BytesMut::new();
    put_header(
        &mut frame,
        correlation_id,
        kafka_wire::response_header_version(M::API_KEY, api_version, M::is_flexible(api_version)),
    );
    message.encode_into(&mut frame, api_version)?;
    set_length(&mut frame, 0)?;
    Ok(Response::from_bytes(frame.freeze()))
}

/// The body of an encoded response frame: what follows its length and its header. `None` if the frame
/// ends before.
pub fn body_of(api: ApiKey, version: i16, mut frame: Bytes) -> Option<Bytes> {
    let header = if header_version_of(api, version) >= 1 {
        9
    } else {
        8
    };
    (frame.len() >= header).then(|| frame.split_off(header))
}

/// A response frame around a body that another node has encoded.
pub fn around_body(
    api: ApiKey,
    version: i16,
    correlation_id: CorrelationId,
    body: &[u8],
) -> Result<Response, ProtocolError> {
    let mut frame = BytesMut::with_capacity(body.len() + 9);
    put_header(&mut frame, correlation_id, header_version_of(api, version));
    frame.put_slice(body);
    set_length(&mut frame, 0)?;
    Ok(Response::from_bytes(frame.freeze()))
}

fn header_version_of(api: ApiKey, version: i16) -> i16 {
    kafka_wire::response_header_version(
        kafka_wire_core::ApiKey::new(api.key()),
        ApiVersion::new(version),
        crate::api::request_is_flexible(api, version),
    )
}

/// Writes a length prefix to be filled in by [`set_length`], the correlation id and, at header
/// version 1, an empty tagged-field section.
pub(crate) fn put_header(frame: &mut BytesMut, correlation_id: CorrelationId, header_version: i16) {
    frame.put_i32(0);
    frame.put_i32(correlation_id.get());
    if header_version >= 1 {
        frame.put_u8(0);
    }
}

/// Fills in the length prefix of a frame that starts in `frame` and goes on for `more` bytes
/// behind it.
pub(crate) fn set_length(frame: &mut BytesMut, more: usize) -> Result<(), ProtocolError> {
    let length = (frame.len() + more).saturating_sub(4);
    let prefix = i32::try_from(length).map_err(|_| ProtocolError::ResponseTooLarge { length })?;
    match frame.get_mut(..4) {
        Some(start) => start.copy_from_slice(&prefix.to_be_bytes()),
        None => return Err(EncodeError::FrameTooLarge { bytes: length }.into()),
    }
    Ok(())
}
