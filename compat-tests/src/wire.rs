//! A plain blocking client of the Kafka protocol, with `kafka-protocol` as its codec (the broker uses another one).
//!
//! Every read and write has a deadline. A response must be consumed by its decoder to the last byte; bytes left over
//! are an error, so that a field too many is found as surely as one too few.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiKey, MetadataRequest, MetadataResponse, RequestHeader, ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use thiserror::Error;
use tokio::net::TcpSocket;

/// How long one answer may take unless a test says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The largest answer that is read.
const LARGEST_ANSWER: usize = 256 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WireError {
    /// The peer closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// Nothing came in time.
    #[error("no answer in time")]
    TimedOut,
    /// The answer belongs to another request.
    #[error("correlation id {got} where {want} was due")]
    Correlation {
        /// The id of the request that was next.
        want: i32,
        /// The id that came.
        got: i32,
    },
    /// The answer is not what the schema says.
    #[error("undecodable answer: {0}")]
    Undecodable(String),
    /// The codec cannot express the request at this version.
    #[error("the request cannot be encoded: {0}")]
    Unencodable(String),
    /// Another failure of the socket.
    #[error(transparent)]
    Io(std::io::Error),
}

impl From<std::io::Error> for WireError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Self::Closed
            }
            _ => Self::Io(error),
        }
    }
}

/// One connection.
pub struct Wire {
    stream: TcpStream,
    next_correlation_id: i32,
    client_id: StrBytes,
}

impl Wire {
    /// Connects, with [`PATIENCE`] for every answer.
    pub fn connect(address: SocketAddr) -> Result<Self> {
        Self::connect_within(address, PATIENCE)
    }

    /// Connects, with `patience` for that and for every answer.
    pub fn connect_within(address: SocketAddr, patience: Duration) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, patience)?, patience)
    }

    /// Connects from an address of this machine.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((source, 0).into())?;
            socket.connect(address).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        Self::over(stream, PATIENCE)
    }

    fn over(stream: TcpStream, patience: Duration) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            stream,
            next_correlation_id: 1,
            client_id: StrBytes::from_static_str("odradek-tests"),
        })
    }

    /// Changes how long one read may wait.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(patience))?)
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Closes the sending side.
    pub fn finish_sending(&mut self) -> Result<(), WireError> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// Sends a request and reads its answer.
    pub fn call<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> Result<R::Response, WireError> {
        let correlation_id = self.send(version, request)?;
        self.receive::<R>(version, correlation_id)
    }

    /// Sends a request without reading the answer; its correlation id.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<i32, WireError> {
        let mut body = BytesMut::new();
        request
            .encode(&mut body, version)
            .map_err(|e| WireError::Unencodable(format!("{e:#}")))?;
        self.send_body(R::KEY, version, R::header_version(version), &body)
    }

    /// Sends any body under a well-formed header of the given header version (1, or 2 for flexible requests).
    pub fn send_body(
        &mut self,
        api_key: i16,
        api_version: i16,
        header_version: i16,
        body: &[u8],
    ) -> Result<i32, WireError> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = self.frame(api_key, api_version, header_version, correlation_id, body)?;
        self.send_bytes(&frame)?;
        Ok(correlation_id)
    }

    /// The bytes of a request, length prefix included.
    pub fn frame(
        &self,
        api_key: i16,
        api_version: i16,
        header_version: i16,
        correlation_id: i32,
        body: &[u8],
    ) -> Result<Bytes, WireError> {
        let header = RequestHeader::default()
            .with_request_api_key(api_key)
            .with_request_api_version(api_version)
            .with_correlation_id(correlation_id)
            .with_client_id(Some(self.client_id.clone()));
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        header
            .encode(&mut frame, header_version)
            .map_err(|e| WireError::Unencodable(format!("{e:#}")))?;
        frame.put_slice(body);
        let length =
            i32::try_from(frame.len() - 4).map_err(|e| WireError::Unencodable(e.to_string()))?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        Ok(frame.freeze())
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Reads the answer to a request that [`Self::send`] sent.
    pub fn receive<R: Request>(
        &mut self,
        version: i16,
        correlation_id: i32,
    ) -> Result<R::Response, WireError> {
        let frame = self.receive_frame()?;
        decode_answer::<R>(frame, version, correlation_id)
    }

    /// Reads one frame, without its length.
    pub fn receive_frame(&mut self) -> Result<Bytes, WireError> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length))
            .ok()
            .filter(|&length| length <= LARGEST_ANSWER)
            .ok_or_else(|| {
                WireError::Undecodable(format!("frame length {:?}", i32::from_be_bytes(length)))
            })?;
        let mut frame = vec![0; length];
        self.stream.read_exact(&mut frame)?;
        Ok(frame.into())
    }

    /// Whether the peer closes the connection without sending anything more, within the patience.
    pub fn is_closed_by_peer(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => matches!(WireError::from(error), WireError::Closed),
        }
    }

    /// Metadata of all topics at a version that every broker of interest has.
    pub fn metadata_of_everything(&mut self) -> Result<MetadataResponse, WireError> {
        self.call(
            9,
            &MetadataRequest::default()
                .with_topics(None)
                .with_allow_auto_topic_creation(false),
        )
    }
}

/// Decodes a frame as the answer to a request of type `R`, to its last byte.
pub fn decode_answer<R: Request>(
    mut frame: Bytes,
    version: i16,
    correlation_id: i32,
) -> Result<R::Response, WireError> {
    // An answer to ApiVersions must be readable by a client that does not know its version: header version 0 always.
    let header_version = R::Response::header_version(version);
    let undecodable = |e: anyhow::Error| WireError::Undecodable(format!("{e:#}"));
    let header = ResponseHeader::decode(&mut frame, header_version).map_err(undecodable)?;
    if header.correlation_id != correlation_id {
        return Err(WireError::Correlation {
            want: correlation_id,
            got: header.correlation_id,
        });
    }
    let response = R::Response::decode(&mut frame, version).map_err(undecodable)?;
    if frame.has_remaining() {
        return Err(WireError::Undecodable(format!(
            "{} bytes after the end",
            frame.remaining()
        )));
    }
    Ok(response)
}

/// Whether requests of this API and version have flexible headers, as the codec's tables say; 1 for unknown APIs.
pub fn request_header_version(api_key: i16, version: i16) -> i16 {
    ApiKey::try_from(api_key).map_or(1, |key| key.request_header_version(version))
}

/// A string field.
pub fn text(value: impl AsRef<str>) -> StrBytes {
    StrBytes::from_string(value.as_ref().to_owned())
}
