//! Transactions by hand: a producer whose every request a test decides on, and what readers see of it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeTransactionsRequest, EndTxnRequest,
    FindCoordinatorRequest, GroupId, InitProducerIdRequest, ListOffsetsResponse, ProduceRequest,
    ProducerId, TransactionalId, TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::batches::{BatchSpec, TRANSACTIONAL};
use crate::requests::{
    LATEST, Topic, list_offsets_request, produce_request, topic_name, until_not_retriable,
};
use crate::wire::{Wire, text};

/// How long a transaction may take to be completed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A producer as its coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnProducer {
    /// `transactional.id`.
    pub id: String,
    /// Its producer id.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
}

fn transactional(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

/// InitProducerId, as a new instance asks.
pub fn init_request(id: &str) -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(Some(transactional(id)))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

/// Waits until the coordinator of a transactional id is found.
pub fn find_coordinator(wire: &mut Wire, id: &str) -> Result<()> {
    let request = FindCoordinatorRequest::default()
        .with_key(text(id))
        .with_key_type(1);
    let answer = until_not_retriable(|| Ok(wire.call(3, &request)?), |answer| answer.error_code)?;
    ensure!(
        answer.error_code == 0,
        "FindCoordinator: error {}",
        answer.error_code
    );
    Ok(())
}

impl TxnProducer {
    /// Initializes a producer, whatever its id was doing.
    pub fn init(wire: &mut Wire, id: &str) -> Result<Self> {
        find_coordinator(wire, id)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = wire.call(4, &init_request(id))?;
            match answer.error_code {
                0 => {
                    return Ok(Self {
                        id: id.to_owned(),
                        producer_id: answer.producer_id.0,
                        epoch: answer.producer_epoch,
                    });
                }
                // Loading, not there yet, not here yet, still being completed.
                14 | 15 | 16 | 51 if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                code => bail!("InitProducerId: error {code}"),
            }
        }
    }

    /// The same with another epoch.
    pub fn with_epoch(&self, epoch: i16) -> Self {
        Self {
            epoch,
            ..self.clone()
        }
    }

    /// The same with another producer id.
    pub fn with_producer_id(&self, producer_id: i64) -> Self {
        Self {
            producer_id,
            ..self.clone()
        }
    }

    /// AddPartitionsToTxn in the shape of a version; `verify_only` counts from version 4 on.
    pub fn add_request(
        &self,
        version: i16,
        topics: &[(&str, &[i32])],
        verify_only: bool,
    ) -> AddPartitionsToTxnRequest {
        let topics: Vec<_> = topics
            .iter()
            .map(|(name, partitions)| {
                AddPartitionsToTxnTopic::default()
                    .with_name(topic_name(name))
                    .with_partitions(partitions.to_vec())
            })
            .collect();
        if version >= 4 {
            return AddPartitionsToTxnRequest::default().with_transactions(vec![
                AddPartitionsToTxnTransaction::default()
                    .with_transactional_id(transactional(&self.id))
                    .with_producer_id(ProducerId(self.producer_id))
                    .with_producer_epoch(self.epoch)
                    .with_verify_only(verify_only)
                    .with_topics(topics),
            ]);
        }
        AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(transactional(&self.id))
            .with_v3_and_below_producer_id(ProducerId(self.producer_id))
            .with_v3_and_below_producer_epoch(self.epoch)
            .with_v3_and_below_topics(topics)
    }

    /// Adds partitions and wants success.
    pub fn add(&self, wire: &mut Wire, topic: &str, partitions: &[i32]) -> Result<()> {
        let request = self.add_request(3, &[(topic, partitions)], false);
        let code = |answer: &kafka_protocol::messages::AddPartitionsToTxnResponse| {
            let topics = answer.results_by_topic_v3_and_below.iter();
            topics
                .flat_map(|topic| &topic.results_by_partition)
                .map(|row| row.partition_error_code)
                .find(|code| *code != 0)
                .unwrap_or(0)
        };
        let answer = until_not_concurrent(|| Ok(wire.call(3, &request)?), code)?;
        ensure!(
            code(&answer) == 0,
            "AddPartitionsToTxn: error {}",
            code(&answer)
        );
        Ok(())
    }

    /// AddOffsetsToTxn.
    pub fn add_offsets_request(&self, group: &str) -> AddOffsetsToTxnRequest {
        AddOffsetsToTxnRequest::default()
            .with_transactional_id(transactional(&self.id))
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_group_id(GroupId(text(group)))
    }

    /// TxnOffsetCommit of one offset from outside a group.
    pub fn commit_request(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> TxnOffsetCommitRequest {
        let row = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(partition)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(-1)
            .with_committed_metadata(Some(text("")));
        TxnOffsetCommitRequest::default()
            .with_transactional_id(transactional(&self.id))
            .with_group_id(GroupId(text(group)))
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_generation_id(-1)
            .with_topics(vec![
                TxnOffsetCommitRequestTopic::default()
                    .with_name(topic_name(topic))
                    .with_partitions(vec![row]),
            ])
    }

    /// Commits one offset in the transaction, by a version of the request that adds the group's partition
    /// (from 5 on) or does not, and wants success.
    pub fn commit(
        &self,
        wire: &mut Wire,
        version: i16,
        group: &str,
        (topic, partition): (&str, i32),
        offset: i64,
    ) -> Result<()> {
        let request = self.commit_request(group, topic, partition, offset);
        let code = |answer: &kafka_protocol::messages::TxnOffsetCommitResponse| {
            let rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
            rows.map(|row| row.error_code)
                .find(|code| *code != 0)
                .unwrap_or(0)
        };
        let answer = until_not_concurrent(|| Ok(wire.call(version, &request)?), code)?;
        ensure!(
            code(&answer) == 0,
            "TxnOffsetCommit: error {}",
            code(&answer)
        );
        Ok(())
    }

    /// EndTxn.
    pub fn end_request(&self, committed: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(transactional(&self.id))
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_committed(committed)
    }

    /// Ends the transaction as clients before (4) or since (5) KIP-890 do, and waits until every partition
    /// knows. Returns the producer as it goes on.
    pub fn end(&self, wire: &mut Wire, version: i16, committed: bool) -> Result<Self> {
        let request = self.end_request(committed);
        let answer = until_not_concurrent(
            || Ok(wire.call(version, &request)?),
            |answer| answer.error_code,
        )?;
        ensure!(
            answer.error_code == 0,
            "EndTxn: error {}",
            answer.error_code
        );
        self.until_completed(wire)?;
        Ok(match version {
            5.. => Self {
                id: self.id.clone(),
                producer_id: answer.producer_id.0,
                epoch: answer.producer_epoch,
            },
            _ => self.clone(),
        })
    }

    /// Waits until the last transaction is completed.
    pub fn until_completed(&self, wire: &mut Wire) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = state_of(wire, &self.id)?;
            if !state.starts_with("Prepare") {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{} stays in {state}", self.id);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A batch of `count` records in the transaction.
    pub fn batch(&self, sequence: i32, count: usize, timestamp: i64) -> Result<Bytes> {
        let batch = BatchSpec::small(count, timestamp);
        let mut batch = batch.from_producer(self.producer_id, self.epoch, sequence);
        batch.attributes |= TRANSACTIONAL;
        batch.build()
    }

    /// A Produce request with one batch.
    pub fn produce_request(
        &self,
        version: i16,
        topic: &Topic,
        partition: i32,
        batch: Bytes,
    ) -> ProduceRequest {
        produce_request(version, topic, partition, -1, Some(batch))
            .with_transactional_id(Some(transactional(&self.id)))
    }

    /// Writes a batch and wants success; version 11 needs the partition to have been added. Returns its
    /// offset.
    pub fn produce(
        &self,
        wire: &mut Wire,
        version: i16,
        topic: &Topic,
        partition: i32,
        batch: Bytes,
    ) -> Result<i64> {
        let request = self.produce_request(version, topic, partition, batch);
        let row = |answer: &kafka_protocol::messages::ProduceResponse| {
            let rows = answer.responses.iter();
            rows.flat_map(|topic| &topic.partition_responses)
                .map(|row| (row.error_code, row.base_offset))
                .next()
                .unwrap_or((-1, -1))
        };
        let answer =
            until_not_concurrent(|| Ok(wire.call(version, &request)?), |answer| row(answer).0)?;
        let (code, offset) = row(&answer);
        ensure!(code == 0, "Produce: error {code}");
        Ok(offset)
    }

    /// WriteTxnMarkers for partitions of one topic.
    pub fn markers_request(
        &self,
        committed: bool,
        topic: &str,
        partitions: &[i32],
        coordinator_epoch: i32,
    ) -> WriteTxnMarkersRequest {
        WriteTxnMarkersRequest::default().with_markers(vec![
            WritableTxnMarker::default()
                .with_producer_id(ProducerId(self.producer_id))
                .with_producer_epoch(self.epoch)
                .with_transaction_result(committed)
                .with_coordinator_epoch(coordinator_epoch)
                .with_topics(vec![
                    WritableTxnMarkerTopic::default()
                        .with_name(topic_name(topic))
                        .with_partition_indexes(partitions.to_vec()),
                ]),
        ])
    }
}

/// What a transactional id is doing.
pub fn state_of(wire: &mut Wire, id: &str) -> Result<String> {
    let request =
        DescribeTransactionsRequest::default().with_transactional_ids(vec![transactional(id)]);
    let answer = until_not_retriable(
        || Ok(wire.call(0, &request)?),
        |answer| {
            answer
                .transaction_states
                .first()
                .map_or(-1, |state| state.error_code)
        },
    )?;
    let Some(state) = answer.transaction_states.first() else {
        bail!("nothing is described");
    };
    ensure!(
        state.error_code == 0,
        "DescribeTransactions: error {}",
        state.error_code
    );
    Ok(state.transaction_state.to_string())
}

/// Values that a read_committed consumer of librdkafka sees, by partition.
pub fn read_committed(bootstrap: &str, topic: &str, partitions: i32) -> Result<Vec<Vec<String>>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "unused")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()?;
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&assignment)?;
    let mut seen = vec![Vec::new(); partitions as usize];
    let mut ended = vec![false; partitions as usize];
    let deadline = Instant::now() + Duration::from_secs(60);
    while ended.iter().any(|ended| !ended) {
        ensure!(
            Instant::now() < deadline,
            "the end is not reached: {ended:?}"
        );
        match consumer.poll(Duration::from_millis(200)) {
            None => {}
            Some(Err(KafkaError::PartitionEOF(partition))) => ended[partition as usize] = true,
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(message)) => {
                let value = String::from_utf8_lossy(message.payload().unwrap_or_default());
                seen[message.partition() as usize].push(value.into_owned());
            }
        }
    }
    Ok(seen)
}

/// The last stable offset of the first partition of a topic.
pub fn latest_stable(wire: &mut Wire, topic: &Topic) -> Result<i64> {
    let request = list_offsets_request(7, topic, 0, LATEST).with_isolation_level(1);
    let row = |answer: &ListOffsetsResponse| {
        let rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
        rows.map(|row| (row.error_code, row.offset))
            .next()
            .unwrap_or((-1, -1))
    };
    // After a restart the partition may not be led yet.
    let answer = until_not_retriable(|| Ok(wire.call(7, &request)?), |answer| row(answer).0)?;
    let (code, offset) = row(&answer);
    ensure!(code == 0, "ListOffsets: error {code}");
    Ok(offset)
}

/// Asks again while another transaction of the same id is being completed, too.
fn until_not_concurrent<T>(
    mut ask: impl FnMut() -> Result<T>,
    error_code: impl Fn(&T) -> i16,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = until_not_retriable(&mut ask, &error_code)?;
        if error_code(&answer) != 51 || Instant::now() >= deadline {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
