//! Small batches spread over many partitions at a fixed rate: the workload in which a broker that
//! syncs pays most. An open loop: a request is sent when its time has come, whatever is still
//! unanswered, and its latency counts from that time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ApiKey, ProduceRequest, ProduceResponse, RequestHeader, TopicName};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

use crate::batches::{BatchSpec, RecordSpec};
use crate::requests::wait_until_all_answer;
use crate::wire::Wire;

const PRODUCE_VERSION: i16 = 9;
const RECORD_BYTES: usize = 1024;

/// What is to be sent.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Where the broker listens, `host:port`.
    pub bootstrap: String,
    /// An existing topic.
    pub topic: String,
    /// Its number of partitions.
    pub partitions: i32,
    /// Batches of one 1 KiB record a second, over all partitions together.
    pub batches_per_second: u64,
    /// Sockets that share the load.
    pub connections: u64,
    /// How long to send.
    pub duration: Duration,
}

/// Latencies of acknowledgements.
#[derive(Clone, Copy, Debug)]
pub struct SpreadResult {
    /// Batches acknowledged a second.
    pub acknowledged_per_second: f64,
    /// Median from the due time to the acknowledgement.
    pub p50: Duration,
    /// 99th percentile of the same.
    pub p99: Duration,
}

impl Spread {
    /// Sends the load and waits for every acknowledgement; any error is a failure.
    pub fn run(&self) -> Result<SpreadResult> {
        let mut wire = Wire::connect(self.bootstrap.parse()?)?;
        wait_until_all_answer(&mut wire, &self.topic, self.partitions)?;
        let start = Instant::now() + Duration::from_millis(50);
        let threads: Vec<_> = (0..self.connections)
            .map(|connection| {
                let this = self.clone();
                std::thread::spawn(move || this.run_connection(connection, start))
            })
            .collect();
        let mut latencies = Vec::new();
        for thread in threads {
            latencies.extend(
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a sender panicked"))??,
            );
        }
        let seconds = start.elapsed().as_secs_f64();
        latencies.sort_unstable();
        ensure!(!latencies.is_empty(), "nothing was sent");
        Ok(SpreadResult {
            acknowledged_per_second: latencies.len() as f64 / seconds,
            p50: latencies[latencies.len() / 2],
            p99: latencies[latencies.len() * 99 / 100],
        })
    }

    fn run_connection(&self, connection: u64, start: Instant) -> Result<Vec<Duration>> {
        let frames = (0..self.partitions)
            .filter(|partition| *partition as u64 % self.connections == connection)
            .map(|partition| self.request_frame(partition))
            .collect::<Result<Vec<_>>>()?;
        ensure!(!frames.is_empty(), "fewer partitions than connections");
        let interval =
            Duration::from_secs_f64(self.connections as f64 / self.batches_per_second as f64);
        let total = (self.duration.as_secs_f64() / interval.as_secs_f64()) as u32;

        let mut writer = TcpStream::connect(&self.bootstrap)?;
        writer.set_nodelay(true)?;
        let reader = writer.try_clone()?;
        reader.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (due_sender, due_receiver) = sync_channel::<Instant>(total as usize + 1);
        let answers = std::thread::spawn(move || read_answers(reader, due_receiver));

        for sequence in 0..total {
            let due = start + interval * sequence;
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait);
            }
            let mut frame = frames[sequence as usize % frames.len()].clone();
            frame[8..12].copy_from_slice(&sequence.to_be_bytes());
            // A reader that has ended, or a connection that is closed: the reader knows why.
            if due_sender.send(due).is_err() || writer.write_all(&frame).is_err() {
                break;
            }
        }
        drop(due_sender);
        answers
            .join()
            .map_err(|_| anyhow::anyhow!("a reader panicked"))?
    }

    /// A whole Produce frame with `acks=all` for one record to `partition`; bytes 8 to 12 are the
    /// correlation id.
    fn request_frame(&self, partition: i32) -> Result<Vec<u8>> {
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH)?;
        let record = RecordSpec::value(vec![b'v'; RECORD_BYTES]).at(now.as_millis() as i64);
        let batch = BatchSpec {
            records: vec![record],
            ..BatchSpec::default()
        }
        .build()?;
        let request = ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![
                TopicProduceData::default()
                    .with_name(TopicName(StrBytes::from_string(self.topic.clone())))
                    .with_partition_data(vec![
                        PartitionProduceData::default()
                            .with_index(partition)
                            .with_records(Some(batch)),
                    ]),
            ]);
        let header = RequestHeader::default()
            .with_request_api_key(ApiKey::Produce as i16)
            .with_request_api_version(PRODUCE_VERSION)
            .with_client_id(Some(StrBytes::from_static_str("spread")));
        let mut frame = BytesMut::from(&[0u8; 4][..]);
        header.encode(
            &mut frame,
            ApiKey::Produce.request_header_version(PRODUCE_VERSION),
        )?;
        request.encode(&mut frame, PRODUCE_VERSION)?;
        let length = u32::try_from(frame.len() - 4)?;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        Ok(frame.to_vec())
    }
}

fn read_answers(
    mut reader: TcpStream,
    due: std::sync::mpsc::Receiver<Instant>,
) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    for due in due {
        let mut length = [0; 4];
        reader.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        reader.read_exact(&mut frame)?;
        latencies.push(due.elapsed());
        let mut frame = Bytes::from(frame);
        frame.advance(4 + 1);
        let response = ProduceResponse::decode(&mut frame, PRODUCE_VERSION)?;
        for partition in response
            .responses
            .iter()
            .flat_map(|topic| &topic.partition_responses)
        {
            ensure!(
                partition.error_code == 0,
                "produce failed with error {}",
                partition.error_code
            );
        }
    }
    Ok(latencies)
}
