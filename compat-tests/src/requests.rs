//! Requests that many tests send, made at any version: fields that a version lacks are left at their defaults.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, FetchResponse,
    InitProducerIdRequest, ListOffsetsRequest, MetadataRequest, ProduceRequest, TopicName,
};
use kafka_protocol::records::{Record, RecordBatchDecoder};
use uuid::Uuid;

use crate::wire::{PATIENCE, Wire, text};

/// A topic as both generations of requests name it.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: Uuid,
}

impl Topic {
    /// The name as a field.
    pub fn name(&self) -> TopicName {
        topic_name(&self.name)
    }

    /// A topic that nobody has.
    pub fn missing(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            id: Uuid::from_u128(0x0dad_dead_beef_4000_8000_0000_0000_0001),
        }
    }
}

/// A topic that is there.
pub fn find_topic(wire: &mut Wire, name: &str) -> Result<Topic> {
    let request = metadata_of(name);
    let answer = until_not_retriable(
        || Ok(wire.call(12, &request)?),
        |answer| answer.topics.first().map_or(0, |topic| topic.error_code),
    )?;
    let found = answer.topics.first().context("no topic in the answer")?;
    ensure!(
        found.error_code == 0,
        "Metadata: error {}",
        found.error_code
    );
    Ok(Topic {
        name: name.to_owned(),
        id: found.topic_id,
    })
}

/// A topic name as a field.
pub fn topic_name(name: &str) -> TopicName {
    TopicName(text(name))
}

/// One topic of a CreateTopics request.
pub fn creatable(name: &str, partitions: i32, configs: &[(&str, &str)]) -> CreatableTopic {
    let configs = configs
        .iter()
        .map(|(key, value)| {
            CreatableTopicConfig::default()
                .with_name(text(key))
                .with_value(Some(text(value)))
        })
        .collect();
    CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs)
}

/// Creates a topic and waits until each of its partitions has a leader.
pub fn create_topic(
    wire: &mut Wire,
    name: &str,
    partitions: i32,
    configs: &[(&str, &str)],
) -> Result<Topic> {
    let request = CreateTopicsRequest::default()
        .with_timeout_ms(10_000)
        .with_topics(vec![creatable(name, partitions, configs)]);
    let answer = wire.call(7, &request)?;
    let created = answer.topics.first().context("no topic in the answer")?;
    ensure!(
        created.error_code == 0,
        "creating {name}: error {} {:?}",
        created.error_code,
        created.error_message
    );
    let topic = Topic {
        name: name.to_owned(),
        id: created.topic_id,
    };
    wait_for_leaders(wire, &topic, partitions)?;
    Ok(topic)
}

/// Waits until all partitions of a topic have a leader that answers.
pub fn wait_for_leaders(wire: &mut Wire, topic: &Topic, partitions: i32) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = wire.call(12, &metadata_of(&topic.name))?;
        let rows = answer
            .topics
            .iter()
            .filter(|row| row.topic_id == topic.id)
            .flat_map(|row| &row.partitions);
        let led = rows
            .filter(|row| row.error_code == 0 && row.leader_id.0 >= 0)
            .count();
        if led == usize::try_from(partitions)? && all_answer(wire, topic, partitions)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{} is not led: {answer:?}", topic.name);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no partition of a topic says any more that it is still being made. A leader in Metadata is not enough:
/// Kafka names it before it has its log.
pub fn wait_until_all_answer(wire: &mut Wire, name: &str, partitions: i32) -> Result<()> {
    let topic = Topic::missing(name);
    let deadline = Instant::now() + PATIENCE;
    while !all_answer(wire, &topic, partitions)? {
        ensure!(Instant::now() < deadline, "{name} is not led");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn all_answer(wire: &mut Wire, topic: &Topic, partitions: i32) -> Result<bool> {
    let mut request = list_offsets_request(9, topic, 0, EARLIEST);
    for row in &mut request.topics {
        row.partitions = (0..partitions)
            .map(|index| {
                ListOffsetsPartition::default()
                    .with_partition_index(index)
                    .with_timestamp(EARLIEST)
            })
            .collect();
    }
    let answer = wire.call(9, &request)?;
    Ok(answer
        .topics
        .iter()
        .flat_map(|row| &row.partitions)
        .all(|row| !PASSING_ERRORS.contains(&row.error_code)))
}

/// Metadata of one topic, which it does not create; from version 4 on.
pub fn metadata_of(name: &str) -> MetadataRequest {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
    MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false)
}

/// The current leader epoch of a partition.
pub fn leader_epoch(wire: &mut Wire, topic: &Topic, partition: i32) -> Result<i32> {
    let answer = wire.call(12, &metadata_of(&topic.name))?;
    let mut rows = answer.topics.iter().flat_map(|row| &row.partitions);
    Ok(rows
        .find(|row| row.partition_index == partition)
        .context("no such partition")?
        .leader_epoch)
}

/// Deletes a topic by name.
pub fn delete_topic(wire: &mut Wire, name: &str) -> Result<()> {
    let request = DeleteTopicsRequest::default()
        .with_timeout_ms(10_000)
        .with_topics(vec![
            DeleteTopicState::default().with_name(Some(topic_name(name))),
        ]);
    let answer = wire.call(6, &request)?;
    let deleted = answer.responses.first().context("no topic in the answer")?;
    ensure!(
        deleted.error_code == 0,
        "deleting {name}: error {} {:?}",
        deleted.error_code,
        deleted.error_message
    );
    Ok(())
}

/// A Produce request for one partition.
pub fn produce_request(
    version: i16,
    topic: &Topic,
    partition: i32,
    acks: i16,
    records: Option<Bytes>,
) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(records);
    let mut topic_data = TopicProduceData::default().with_partition_data(vec![data]);
    if version >= 13 {
        topic_data.topic_id = topic.id;
    } else {
        topic_data.name = topic.name();
    }
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic_data])
}

/// Produces to one partition with acks=all at version 11; the partition's answer, whatever its error code.
pub fn produce(
    wire: &mut Wire,
    topic: &Topic,
    partition: i32,
    records: Bytes,
) -> Result<PartitionProduceResponse> {
    let answer = wire.call(
        11,
        &produce_request(11, topic, partition, -1, Some(records)),
    )?;
    let topic = answer
        .responses
        .into_iter()
        .next()
        .context("no topic in the answer")?;
    topic
        .partition_responses
        .into_iter()
        .next()
        .context("no partition in the answer")
}

/// Produces to one partition and wants success, after retries while the partition is new; the base offset.
pub fn produce_ok(wire: &mut Wire, topic: &Topic, partition: i32, records: Bytes) -> Result<i64> {
    let answer = until_not_retriable(
        || produce(wire, topic, partition, records.clone()),
        |answer| answer.error_code,
    )?;
    ensure!(
        answer.error_code == 0,
        "produce: error {} {:?}",
        answer.error_code,
        answer.error_message
    );
    Ok(answer.base_offset)
}

/// Asks again while the answer's error is one of those that pass by themselves, for as long as an answer may take.
pub fn until_not_retriable<T>(
    mut ask: impl FnMut() -> Result<T>,
    error_code: impl Fn(&T) -> i16,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask()?;
        if !PASSING_ERRORS.contains(&error_code(&answer)) || Instant::now() >= deadline {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, COORDINATOR_LOAD_IN_PROGRESS,
/// COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, OFFSET_NOT_AVAILABLE: what a broker says of what it is still making.
const PASSING_ERRORS: [i16; 7] = [3, 5, 6, 14, 15, 16, 78];

/// A Fetch request outside any session for some offsets of one topic: `(partition, offset, partition_max_bytes)`.
pub fn fetch_request(version: i16, topic: &Topic, partitions: &[(i32, i64, i32)]) -> FetchRequest {
    let partitions = partitions
        .iter()
        .map(|&(partition, offset, max_bytes)| {
            FetchPartition::default()
                .with_partition(partition)
                .with_fetch_offset(offset)
                .with_partition_max_bytes(max_bytes)
        })
        .collect();
    let mut fetch_topic = FetchTopic::default().with_partitions(partitions);
    if version >= 13 {
        fetch_topic.topic_id = topic.id;
    } else {
        fetch_topic.topic = topic.name();
    }
    let mut request = FetchRequest::default()
        .with_max_wait_ms(0)
        .with_min_bytes(0)
        .with_max_bytes(50 * 1024 * 1024)
        .with_topics(vec![fetch_topic]);
    if version < 15 {
        request.replica_id = BrokerId(-1);
    }
    if version >= 7 {
        request.session_epoch = -1;
    }
    request
}

/// The first partition of a Fetch answer.
pub fn first_partition(answer: FetchResponse) -> Result<PartitionData> {
    let topic = answer
        .responses
        .into_iter()
        .next()
        .context("no topic in the answer")?;
    topic
        .partitions
        .into_iter()
        .next()
        .context("no partition in the answer")
}

/// Fetches one partition once from an offset at version 12, up to 1 MiB.
pub fn fetch(wire: &mut Wire, topic: &Topic, partition: i32, offset: i64) -> Result<PartitionData> {
    first_partition(wire.call(
        12,
        &fetch_request(12, topic, &[(partition, offset, 1024 * 1024)]),
    )?)
}

/// All records of a partition from an offset to the high watermark, batch by batch as a consumer reads them: records
/// below the offset asked for are dropped.
pub fn read_to_end(
    wire: &mut Wire,
    topic: &Topic,
    partition: i32,
    from: i64,
) -> Result<Vec<Record>> {
    let mut next = from;
    let mut all = Vec::new();
    loop {
        let data = fetch(wire, topic, partition, next)?;
        ensure!(
            data.error_code == 0,
            "fetch at {next}: error {}",
            data.error_code
        );
        let records = records_of(data.records)?;
        let before = next;
        for record in records {
            if record.offset >= next {
                next = record.offset + 1;
                all.push(record);
            }
        }
        if next >= data.high_watermark {
            return Ok(all);
        }
        ensure!(
            next > before,
            "nothing at {next} below the high watermark {}",
            data.high_watermark
        );
    }
}

/// The records of a fetched partition; a batch that was cut off at the end is dropped.
pub fn records_of(bytes: Option<Bytes>) -> Result<Vec<Record>> {
    let Some(bytes) = bytes else {
        return Ok(Vec::new());
    };
    let whole: usize = batches_of(&bytes).iter().map(|batch| batch.len()).sum();
    let mut bytes = BytesMut::from(&bytes[..whole]).freeze();
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let sets = RecordBatchDecoder::decode_all(&mut bytes)?;
    Ok(sets.into_iter().flat_map(|set| set.records).collect())
}

/// The whole batches in a buffer, cut at their length fields.
pub fn batches_of(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut batches = Vec::new();
    while let Some(length) = bytes
        .get(8..12)
        .and_then(|b| b.try_into().ok())
        .map(i32::from_be_bytes)
    {
        let Some(batch) = usize::try_from(length)
            .ok()
            .and_then(|length| bytes.get(..length + 12))
        else {
            break;
        };
        batches.push(batch);
        bytes = &bytes[batch.len()..];
    }
    batches
}

/// A ListOffsets request for one partition.
pub fn list_offsets_request(
    version: i16,
    topic: &Topic,
    partition: i32,
    timestamp: i64,
) -> ListOffsetsRequest {
    let asked = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_timestamp(timestamp);
    let mut request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![
            ListOffsetsTopic::default()
                .with_name(topic.name())
                .with_partitions(vec![asked]),
        ]);
    if version >= 10 {
        request.timeout_ms = 5_000;
    }
    request
}

/// ListOffsets for one partition at version 9.
pub fn list_offset(
    wire: &mut Wire,
    topic: &Topic,
    partition: i32,
    timestamp: i64,
) -> Result<ListOffsetsPartitionResponse> {
    let answer = wire.call(9, &list_offsets_request(9, topic, partition, timestamp))?;
    let topic = answer
        .topics
        .into_iter()
        .next()
        .context("no topic in the answer")?;
    topic
        .partitions
        .into_iter()
        .next()
        .context("no partition in the answer")
}

/// ListOffsets' timestamp for the end of the log.
pub const LATEST: i64 = -1;
/// ListOffsets' timestamp for its beginning.
pub const EARLIEST: i64 = -2;
/// ListOffsets' timestamp for the record with the highest timestamp.
pub const MAX_TIMESTAMP: i64 = -3;
/// ListOffsets' timestamp for the beginning of what is on the local disk.
pub const EARLIEST_LOCAL: i64 = -4;
/// ListOffsets' timestamp for the end of what is in remote storage.
pub const LATEST_TIERED: i64 = -5;

/// Asks for the id of an idempotent producer.
pub fn init_producer_id(wire: &mut Wire) -> Result<(i64, i16)> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000);
    let answer = wire.call(4, &request)?;
    ensure!(
        answer.error_code == 0,
        "InitProducerId: error {}",
        answer.error_code
    );
    Ok((answer.producer_id.0, answer.producer_epoch))
}
