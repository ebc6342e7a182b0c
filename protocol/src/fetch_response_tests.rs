use std::sync::Arc;

use kafka_protocol::protocol::Decodable as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;
use crate::message;
use crate::messages::{self as wire, fetch_response as fr};
use crate::response::RegionSource;
use crate::response::encode_message;

struct Memory(Vec<u8>);

impl RegionSource for Memory {
    fn std_file(&self) -> Option<&std::fs::File> {
        None
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> std::io::Result<()> {
        let at = position as usize;
        buffer.copy_from_slice(&self.0[at..at + buffer.len()]);
        Ok(())
    }
}

fn random_offset(rng: &mut StdRng) -> Offset {
    Offset::new(rng.random_range(-1..i64::MAX))
}

fn random_payload(rng: &mut StdRng) -> RecordsPayload {
    match rng.random_range(0..5) {
        0 => RecordsPayload::Null,
        1 => RecordsPayload::Empty,
        2 => {
            let len = rng.random_range(0..2 * COPY_MAX_BYTES);
            RecordsPayload::Bytes(Bytes::from(vec![rng.random(); len]))
        }
        _ => {
            let source = Arc::new(Memory((0..5000_u32).map(|byte| byte as u8).collect()));
            let region = |rng: &mut StdRng| {
                let position = rng.random_range(0..1000);
                FileRegion {
                    source: source.clone(),
                    position,
                    len: rng.random_range(0..4000),
                }
            };
            let count = rng.random_range(0..4);
            RecordsPayload::Regions((0..count).map(|_| region(rng)).collect())
        }
    }
}

fn random_partition(rng: &mut StdRng, version: i16) -> FetchedPartition {
    FetchedPartition {
        index: PartitionIndex::new(rng.random_range(0..1000)),
        error_code: ErrorCode::ALL[rng.random_range(0..ErrorCode::ALL.len())],
        high_watermark: random_offset(rng),
        last_stable_offset: random_offset(rng),
        log_start_offset: random_offset(rng),
        diverging_epoch: (version >= 12 && rng.random()).then(|| DivergingEpoch {
            epoch: LeaderEpoch::new(rng.random()),
            end_offset: random_offset(rng),
        }),
        current_leader: (version >= 12 && rng.random()).then(|| CurrentLeader {
            leader_id: NodeId::new(rng.random_range(0..9)),
            leader_epoch: LeaderEpoch::new(rng.random()),
        }),
        aborted_transactions: rng.random::<bool>().then(|| {
            (0..rng.random_range(0..4))
                .map(|_| AbortedTransaction {
                    producer_id: ProducerId::new(rng.random()),
                    first_offset: random_offset(rng),
                })
                .collect()
        }),
        preferred_read_replica: NodeId::new(rng.random_range(-1..5)),
        records: random_payload(rng),
    }
}

fn random_reply(rng: &mut StdRng, version: i16) -> FetchReply {
    let topics = rng.random_range(0..4);
    let endpoints = rng.random_range(0..3);
    FetchReply {
        throttle_time_ms: rng.random(),
        error_code: if version >= 7 {
            ErrorCode::UnknownTopicId
        } else {
            ErrorCode::None
        },
        session_id: if version >= 7 { rng.random() } else { 0 },
        topics: (0..topics)
            .map(|_| FetchedTopic {
                topic: StrBytes::from("t".repeat(rng.random_range(1..200))),
                topic_id: TopicId::from_bytes(rng.random()),
                partitions: (0..rng.random_range(0..200))
                    .map(|_| random_partition(rng, version))
                    .collect(),
            })
            .collect(),
        node_endpoints: (0..if version >= 16 { endpoints } else { 0 })
            .map(|at| NodeEndpoint {
                node_id: NodeId::new(at),
                host: StrBytes::from("host.example"),
                port: 9092,
                rack: (at > 0).then(|| StrBytes::from("rack")),
            })
            .collect(),
    }
}

/// The same reply as a message of the generated codec.
fn generated(reply: &FetchReply, version: i16) -> wire::FetchResponse {
    let partition = |from: &FetchedPartition| {
        let records = match &from.records {
            RecordsPayload::Null => None,
            RecordsPayload::Empty => Some(Bytes::new()),
            RecordsPayload::Bytes(bytes) => Some(bytes.clone()),
            RecordsPayload::Regions(regions) => {
                let mut all = Vec::new();
                for region in regions {
                    all.extend_from_slice(&region.read().expect("memory can be read"));
                }
                Some(all.into())
            }
        };
        let mut to = message!(fr::PartitionData {
            partition_index: from.index.get(),
            error_code: from.error_code.code(),
            high_watermark: from.high_watermark.get(),
            last_stable_offset: from.last_stable_offset.get(),
            records: records,
        });
        if version >= 5 {
            to.log_start_offset = from.log_start_offset.get();
        }
        if version >= 11 {
            to.preferred_read_replica = from.preferred_read_replica.get();
        }
        if let Some(diverging) = from.diverging_epoch {
            to.diverging_epoch.epoch = diverging.epoch.get();
            to.diverging_epoch.end_offset = diverging.end_offset.get();
        }
        if let Some(leader) = from.current_leader {
            to.current_leader.leader_id = leader.leader_id.get();
            to.current_leader.leader_epoch = leader.leader_epoch.get();
        }
        to.aborted_transactions = from.aborted_transactions.as_ref().map(|aborted| {
            aborted
                .iter()
                .map(|transaction| {
                    message!(fr::AbortedTransaction {
                        producer_id: transaction.producer_id.get(),
                        first_offset: transaction.first_offset.get(),
                    })
                })
                .collect()
        });
        to
    };
    message!(wire::FetchResponse {
        throttle_time_ms: reply.throttle_time_ms,
        error_code: reply.error_code.code(),
        session_id: reply.session_id,
        responses: reply
            .topics
            .iter()
            .map(|topic| {
                message!(fr::FetchableTopicResponse {
                    topic: topic.topic.clone(),
                    topic_id: topic.topic_id.into(),
                    partitions: topic.partitions.iter().map(partition).collect(),
                })
            })
            .collect(),
        node_endpoints: reply
            .node_endpoints
            .iter()
            .map(|endpoint| {
                message!(fr::NodeEndpoint {
                    node_id: endpoint.node_id.get(),
                    host: endpoint.host.clone(),
                    port: endpoint.port,
                    rack: endpoint.rack.clone(),
                })
            })
            .collect(),
    })
}

#[test]
fn bytes_equal_the_generated_codecs_at_every_version_and_a_client_reads_them() {
    let seed = crate::test_seed();
    for version in 4..=18 {
        let mut rng = StdRng::seed_from_u64(seed ^ version as u64);
        for round in 0..40 {
            let reply = random_reply(&mut rng, version);
            let id = CorrelationId::new(rng.random());
            let expected = encode_message(version, id, &generated(&reply, version))
                .expect("the generated codec encodes")
                .read_to_bytes()
                .expect("memory can be read");
            let topics = reply.topics.len();
            let ours = reply.encode(version, id).expect("a reply encodes");
            let bytes = ours.read_to_bytes().expect("memory can be read");
            assert_eq!(ours.len(), bytes.len());
            assert!(
                bytes == expected,
                "seed {seed}, version {version}, round {round}"
            );

            if version <= kafka_protocol::messages::ApiKey::Fetch.valid_versions().max {
                let mut body = bytes.slice(if version >= 12 { 9 } else { 8 }..);
                let read = kafka_protocol::messages::FetchResponse::decode(&mut body, version)
                    .expect("an independent client reads it");
                assert!(body.is_empty());
                assert_eq!(read.responses.len(), topics);
            }
        }
    }
}

#[test]
fn a_version_that_is_not_served_is_refused() {
    for version in [-1, 0, 3, 19] {
        assert!(matches!(
            FetchReply::default().encode(version, CorrelationId::new(1)),
            Err(ProtocolError::UnsupportedVersion { .. })
        ));
    }
}

#[test]
fn regions_stay_regions_and_small_records_are_copied_in_between() {
    let source = Arc::new(Memory(vec![7; 100]));
    let region = FileRegion {
        source,
        position: 10,
        len: 50,
    };
    let mut partition = FetchedPartition::failed(PartitionIndex::new(0), ErrorCode::None);
    partition.records = RecordsPayload::Regions(vec![region.clone(), region]);
    let mut small = FetchedPartition::failed(PartitionIndex::new(1), ErrorCode::None);
    small.records = RecordsPayload::Bytes(Bytes::from_static(b"small"));
    let reply = FetchReply {
        topics: vec![FetchedTopic {
            partitions: vec![partition, small],
            ..FetchedTopic::default()
        }],
        ..FetchReply::default()
    };
    let response = reply.encode(17, CorrelationId::new(1)).expect("encodes");
    let kinds: Vec<bool> = response
        .chunks()
        .iter()
        .map(|chunk| matches!(chunk, Chunk::Region(_)))
        .collect();
    assert_eq!(kinds, [false, true, true, false]);
    assert_eq!(response.bytes_in_memory(), response.len() - 100);
}
