//! Readers that follow a partition, and askers for latest offsets.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{BACKOFF, Router, Shared, seen_in};
use crate::cluster::NodeNumber;
use crate::cluster::history::{Latest, OutOfRange, Partition, Read};
use crate::requests::{LATEST, fetch_request, first_partition, list_offsets_request};
use crate::wire::Wire;

const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// An asker gives up a question soon and asks again, so that a node which was stopped finds a fresh question when it
/// goes on.
const ASK_PATIENCE: Duration = Duration::from_millis(300);
const FETCH_VERSION: i16 = 12;
const OFFSET_OUT_OF_RANGE: i16 = 1;

/// Follows one partition from its start. After each error it goes to the leader or, now and then, to any node, which
/// may answer if it is a replica.
pub struct Reader {
    shared: Shared,
    partition: Partition,
    rng: StdRng,
    router: Router,
    wire: Option<Wire>,
    at_leader: bool,
    next_offset: i64,
    high_watermark: i64,
}

impl Reader {
    /// A reader that writes down everything it sees.
    pub fn new(shared: Shared, partition: Partition, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            router: Router::new(&shared.addresses, &shared.topic, rng.random_range(0..100)),
            shared,
            partition,
            rng,
            wire: None,
            at_leader: false,
            next_offset: 0,
            high_watermark: -1,
        }
    }

    /// Reads until told to stop.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if self.round().is_err() {
                self.wire = None;
                std::thread::sleep(BACKOFF);
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        if self.wire.is_none() {
            self.at_leader = self.rng.random_bool(0.7);
            self.wire = Some(if self.at_leader {
                self.router.connect(self.partition, ANSWER_PATIENCE)?
            } else {
                let nodes = &self.shared.addresses;
                let address = nodes[self.rng.random_range(0..nodes.len())];
                Wire::connect_within(address, ANSWER_PATIENCE)?
            });
        }
        let wire = self.wire.as_mut().context("no connection")?;
        let asked = [(self.partition, self.next_offset, 1 << 20)];
        let request = fetch_request(FETCH_VERSION, &self.shared.topic, &asked)
            .with_max_wait_ms(100)
            .with_min_bytes(1);
        let recorder = &self.shared.recorder;
        let invoked = recorder.now();
        let data = first_partition(wire.call(FETCH_VERSION, &request)?)?;
        let completed = recorder.now();
        match data.error_code {
            0 => {}
            // A replica that is behind has not heard of the offset.
            OFFSET_OUT_OF_RANGE if self.at_leader => {
                let refusal = OutOfRange {
                    partition: self.partition,
                    offset: self.next_offset,
                    completed,
                };
                recorder.note(|history| history.out_of_range.push(refusal));
                bail!("out of range");
            }
            code => bail!("fetch: error {code}"),
        }
        let records = seen_in(data.records, self.next_offset)?;
        if records.is_empty() && data.high_watermark == self.high_watermark {
            return Ok(());
        }
        self.high_watermark = data.high_watermark;
        let from = self.next_offset;
        if let Some(last) = records.last() {
            self.next_offset = last.offset + 1;
        }
        let read = Read {
            partition: self.partition,
            invoked,
            completed,
            from,
            records,
            high_watermark: Some(data.high_watermark),
        };
        recorder.note(|history| history.reads.push(read));
        Ok(())
    }
}

/// Asks one node for the latest offset of every partition, whether it leads them or not: a node that believes to lead
/// and does not must not answer.
pub struct Asker {
    shared: Shared,
    node: NodeNumber,
    address: SocketAddr,
    wire: Option<Wire>,
}

impl Asker {
    /// An asker of the node with this index.
    pub fn new(shared: Shared, index: usize, address: SocketAddr) -> Self {
        Self {
            shared,
            node: NodeNumber::try_from(index).unwrap_or(0) + 1,
            address,
            wire: None,
        }
    }

    /// Asks until told to stop.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if self.round().is_err() {
                self.wire = None;
            }
            std::thread::sleep(BACKOFF);
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        let wire = match &mut self.wire {
            Some(wire) => wire,
            none => none.insert(Wire::connect_within(self.address, ASK_PATIENCE)?),
        };
        let mut request = list_offsets_request(9, &self.shared.topic, 0, LATEST);
        for row in &mut request.topics {
            row.partitions = (0..self.shared.partitions)
                .map(|index| {
                    ListOffsetsPartition::default()
                        .with_partition_index(index)
                        .with_timestamp(LATEST)
                })
                .collect();
        }
        let invoked = self.shared.recorder.now();
        let answer = wire.call(9, &request)?;
        let completed = self.shared.recorder.now();
        let answers: Vec<Latest> = answer
            .topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .filter(|row| row.error_code == 0)
            .map(|row| Latest {
                partition: row.partition_index,
                invoked,
                completed,
                offset: row.offset,
                node: self.node,
            })
            .collect();
        self.shared
            .recorder
            .note(|history| history.latest.extend(answers));
        Ok(())
    }
}
