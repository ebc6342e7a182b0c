//! The ids of topics, which the client library keeps to itself.
//!
//! They are asked of a broker with a Metadata request over a plain connection; with TLS or SASL, ask by way of your
//! client library's admin interface instead.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, MetadataRequest, MetadataResponse, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable as _, Encodable as _, HeaderVersion as _, StrBytes};
use uuid::Uuid;

/// The version of Metadata that is spoken; topic ids are in it from 10 on.
const VERSION: i16 = 12;
/// How long a broker may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon it is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// The largest answer that is read, in bytes.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// The id of the topic that each partition's records are of.
#[derive(Debug)]
pub struct TopicIds {
    bootstrap: Vec<String>,
    /// By topic and partition: the id, and the offset of the last record seen.
    known: HashMap<(String, i32), (Uuid, i64)>,
}

impl TopicIds {
    /// Of brokers at `bootstrap`: addresses with commas between them.
    pub fn new(bootstrap: &str) -> Self {
        let bootstrap = bootstrap.split(',');
        Self {
            bootstrap: bootstrap.map(|address| address.trim().to_owned()).collect(),
            known: HashMap::new(),
        }
    }

    /// Forgets all of them.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The id of the topic of a record that has just come. Waits for a broker that tells, if need be.
    ///
    /// Offsets of a partition only rise. If they go back, the topic may have been made again, so it is asked once
    /// more. Records of the old one that were on their way come before that.
    pub fn of_record(&mut self, topic: &str, partition: i32, offset: i64) -> Uuid {
        let key = (topic.to_owned(), partition);
        let known = self.known.get(&key);
        let id = match known.filter(|(_, last)| *last < offset) {
            Some((id, _)) => *id,
            None => self.ask_until_told(topic),
        };
        self.known.insert(key, (id, offset));
        id
    }

    fn ask_until_told(&self, topic: &str) -> Uuid {
        loop {
            for address in &self.bootstrap {
                match ask(address, topic) {
                    Ok(id) => return id,
                    Err(error) => println!("no id of {topic} from {address}: {error:#}"),
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn ask(address: &str, topic: &str) -> Result<Uuid> {
    let topic = TopicName(StrBytes::from_string(topic.to_owned()));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![
            MetadataRequestTopic::default().with_name(Some(topic)),
        ]))
        .with_allow_auto_topic_creation(false);
    let header = RequestHeader::default()
        .with_request_api_key(ApiKey::Metadata as i16)
        .with_request_api_version(VERSION)
        .with_correlation_id(1);
    let mut frame = BytesMut::new();
    header.encode(&mut frame, MetadataRequest::header_version(VERSION))?;
    request.encode(&mut frame, VERSION)?;

    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&u32::try_from(frame.len())?.to_be_bytes())?;
    stream.write_all(&frame)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length))?;
    ensure!(length <= LARGEST_ANSWER, "an answer of {length} bytes");
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer)?;

    let mut answer = Bytes::from(answer);
    ResponseHeader::decode(&mut answer, MetadataResponse::header_version(VERSION))?;
    let answer = MetadataResponse::decode(&mut answer, VERSION)?;
    let topic = answer.topics.first().context("no topic in the answer")?;
    if topic.error_code != 0 {
        bail!("error {}", topic.error_code);
    }
    Ok(topic.topic_id)
}
