//! The records against bytes that Kafka wrote, and against damage.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, Offset, PartitionIndex};
use odradek_raft::{Incarnation, RaftIndex, Succession};

use super::*;
use crate::metadata::test_support;

fn bytes(hex: &str) -> Bytes {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}

fn topic_id() -> TopicId {
    TopicId::parse("O9R23SzpRxq0ZjfK9jxQdQ").expect("22 characters")
}

fn partition() -> PartitionRecord {
    PartitionRecord {
        directories: vec![Uuid::from_bytes([
            0xaa, 0x88, 0x44, 0x14, 0x7f, 0x3c, 0x93, 0x97, 0xde, 0xc5, 0x77, 0x0a, 0x69, 0xb1,
            0x22, 0x0d,
        ])],
        ..test_support::partition(topic_id(), 1, &[1])
    }
}

/// Values taken from the metadata log of a Kafka 4.4.0 node.
fn written_by_kafka() -> Vec<(MetadataRecord, &'static str)> {
    let feature = |name: &str, max_level| SupportedFeature {
        name: name.to_owned(),
        min_level: 0,
        max_level,
    };
    vec![
        (
            MetadataRecord::Topic(TopicRecord {
                name: "t1".to_owned(),
                topic_id: topic_id(),
            }),
            "0102000374313bd476dd2ce9471ab46637caf63c507500",
        ),
        (
            MetadataRecord::Config(ConfigRecord {
                resource_type: 2,
                resource_name: "t1".to_owned(),
                name: "retention.ms".to_owned(),
                value: Some("1000000".to_owned()),
            }),
            "010400020374310d726574656e74696f6e2e6d73083130303030303000",
        ),
        (
            MetadataRecord::Config(ConfigRecord {
                resource_type: 4,
                resource_name: String::new(),
                name: "min.insync.replicas".to_owned(),
                value: Some("1".to_owned()),
            }),
            "0104000401146d696e2e696e73796e632e7265706c69636173023100",
        ),
        (
            MetadataRecord::Partition(partition()),
            "010302000000013bd476dd2ce9471ab46637caf63c50750200000001020000000101010000000100\
             0000000000000002aa8844147f3c9397dec5770a69b1220d00",
        ),
        (
            MetadataRecord::FeatureLevel(FeatureLevelRecord {
                name: "metadata.version".to_owned(),
                level: 33,
            }),
            "010c00116d657461646174612e76657273696f6e002100",
        ),
        (MetadataRecord::NoOp, "01140000"),
        (
            MetadataRecord::RegisterBroker(RegisterBrokerRecord {
                broker_id: NodeId::new(1),
                incarnation_id: Uuid::from_bytes([
                    0x9e, 0x86, 0xb0, 0xa0, 0x9e, 0x50, 0x4f, 0x9d, 0x98, 0xb1, 0x93, 0x20, 0xe2,
                    0x8b, 0x5b, 0x0b,
                ]),
                broker_epoch: 11,
                endpoints: vec![BrokerEndpoint {
                    name: "PLAINTEXT".to_owned(),
                    host: "127.0.0.1".to_owned(),
                    port: 29092,
                    security_protocol: 0,
                }],
                features: vec![
                    feature("share.version", 2),
                    SupportedFeature {
                        name: "metadata.version".to_owned(),
                        min_level: 7,
                        max_level: 33,
                    },
                    feature("eligible.leader.replicas.version", 1),
                    feature("transaction.version", 2),
                    feature("streams.version", 1),
                    feature("group.version", 1),
                    feature("kraft.version", 1),
                ],
                rack: None,
                fenced: true,
                log_dirs: partition().directories,
            }),
            "01000400000001009e86b0a09e504f9d98b19320e28b5b0b000000000000000b020a504c41494e54\
             4558540a3132372e302e302e3171a4000000080e73686172652e76657273696f6e0000000200116d\
             657461646174612e76657273696f6e000700210021656c696769626c652e6c65616465722e726570\
             6c696361732e76657273696f6e0000000100147472616e73616374696f6e2e76657273696f6e0000\
             0002001073747265616d732e76657273696f6e00000001000e67726f75702e76657273696f6e0000\
             0001000e6b726166742e76657273696f6e000000010000010001001102aa8844147f3c9397dec577\
             0a69b1220d",
        ),
        (
            MetadataRecord::RegisterController(RegisterControllerRecord {
                controller_id: NodeId::new(1),
                incarnation_id: Uuid::from_bytes([
                    0x27, 0x07, 0xe3, 0x6e, 0x4b, 0x45, 0x4c, 0xc1, 0xb7, 0xdd, 0x6b, 0x57, 0xe4,
                    0xf2, 0xb5, 0x2d,
                ]),
                endpoints: vec![BrokerEndpoint {
                    name: "CONTROLLER".to_owned(),
                    host: "127.0.0.1".to_owned(),
                    port: 29193,
                    security_protocol: 0,
                }],
                features: vec![
                    feature("group.version", 1),
                    feature("kraft.version", 1),
                    SupportedFeature {
                        name: "metadata.version".to_owned(),
                        min_level: 7,
                        max_level: 33,
                    },
                    feature("share.version", 2),
                    feature("streams.version", 1),
                    feature("transaction.version", 2),
                    feature("eligible.leader.replicas.version", 1),
                ],
                directory: Uuid::ZERO,
            }),
            "011b00000000012707e36e4b454cc1b7dd6b57e4f2b52d00020b434f4e54524f4c4c45520a313237\
             2e302e302e317209000000080e67726f75702e76657273696f6e00000001000e6b726166742e7665\
             7273696f6e0000000100116d657461646174612e76657273696f6e00070021000e73686172652e76\
             657273696f6e00000002001073747265616d732e76657273696f6e0000000100147472616e736163\
             74696f6e2e76657273696f6e000000020021656c696769626c652e6c65616465722e7265706c6963\
             61732e76657273696f6e000000010000",
        ),
    ]
}

#[test]
fn records_are_byte_for_byte_those_of_kafka() {
    for (record, hex) in written_by_kafka() {
        let hex: String = hex.split_whitespace().collect();
        let expected = bytes(&hex);
        assert_eq!(record.encode().expect("encodable"), expected, "{record:?}");
        assert_eq!(MetadataRecord::decode(expected), Ok(record));
    }
}

fn broker_change(fenced: Option<bool>, stopping: bool) -> MetadataRecord {
    MetadataRecord::BrokerChange(BrokerChangeRecord {
        broker_id: NodeId::new(1),
        broker_epoch: 7,
        fenced,
        stopping,
    })
}

#[test]
fn every_record_reads_back_as_it_was_written() {
    let change = PartitionChangeRecord {
        topic_id: topic_id(),
        partition: PartitionIndex::new(2),
        isr: Some(vec![NodeId::new(1), NodeId::new(2)]),
        leader: Some(None),
        leader_epoch: Some(LeaderEpoch::new(9)),
        replicas: None,
        removing_replicas: Some(vec![]),
        adding_replicas: Some(vec![NodeId::new(3)]),
        directories: Some(vec![Uuid::from_bytes([4; 16])]),
        begun: None,
    };
    let begun = Begun {
        incarnation: Incarnation::new(1_005),
        succession: Succession {
            predecessor: Incarnation::FIRST,
            founder: NodeId::new(3),
            kept_end: RaftIndex::new(1 << 40),
            log_start: Offset::new(77),
        },
    };
    for record in [
        MetadataRecord::PartitionChange(PartitionChangeRecord {
            leader: None,
            leader_epoch: None,
            ..change.clone()
        }),
        MetadataRecord::PartitionChange(PartitionChangeRecord {
            begun: Some(begun),
            ..change.clone()
        }),
        MetadataRecord::PartitionChange(change),
        MetadataRecord::Partition(PartitionRecord {
            begun: Some(begun),
            ..partition()
        }),
        MetadataRecord::RemoveTopic(topic_id()),
        MetadataRecord::UnregisterBroker(UnregisterBrokerRecord {
            broker_id: NodeId::new(1),
            broker_epoch: 7,
        }),
        broker_change(Some(true), false),
        broker_change(Some(false), false),
        broker_change(None, true),
        MetadataRecord::NoOp,
        MetadataRecord::Cluster(ClusterRecord {
            cluster_id: "4L6g3nShT-eMCtK--X86sw".to_owned(),
            voters: vec![NodeId::new(1), NodeId::new(2)],
        }),
        MetadataRecord::RegisterController(RegisterControllerRecord {
            controller_id: NodeId::new(3),
            incarnation_id: Uuid::from_bytes([5; 16]),
            endpoints: vec![],
            features: vec![],
            directory: Uuid::from_bytes([6; 16]),
        }),
        MetadataRecord::UnregisterController(NodeId::new(3)),
        MetadataRecord::Voters(vec![VoterRecord {
            id: NodeId::new(3),
            directory: Uuid::from_bytes([6; 16]),
            endpoints: vec![VoterEndpoint {
                name: "CONTROLLER".to_owned(),
                host: "h".to_owned(),
                port: 9093,
            }],
        }]),
        MetadataRecord::Voters(vec![]),
        MetadataRecord::ProducerIds(ProducerIdsRecord {
            broker_id: NodeId::new(1),
            broker_epoch: 7,
            next_producer_id: ProducerId::new(2_000),
        }),
        MetadataRecord::Config(ConfigRecord {
            resource_type: 4,
            resource_name: "1".to_owned(),
            name: "log.retention.ms".to_owned(),
            value: None,
        }),
        MetadataRecord::Partition(PartitionRecord {
            leader: None,
            isr: vec![],
            ..partition()
        }),
    ] {
        let value = record.encode().expect("encodable");
        assert_eq!(MetadataRecord::decode(value), Ok(record));
    }
}

#[test]
fn older_versions_of_a_partition_read_without_directories() {
    let hex = "010300000000013bd476dd2ce9471ab46637caf63c50750200000001020000000101010000000100\
               0000000000000000";
    let hex: String = hex.split_whitespace().collect();
    assert_eq!(
        MetadataRecord::decode(bytes(&hex)),
        Ok(MetadataRecord::Partition(PartitionRecord {
            directories: vec![],
            ..partition()
        }))
    );
}

#[test]
fn unknown_kinds_and_damaged_bytes_are_errors_not_panics() {
    assert_eq!(
        MetadataRecord::decode(bytes("017f0000")),
        Err(RecordError::Unknown {
            api_key: 127,
            version: 0
        })
    );
    assert_eq!(
        MetadataRecord::decode(bytes("02140000")),
        Err(RecordError::FrameVersion(2))
    );
    for (_, hex) in written_by_kafka() {
        let hex: String = hex.split_whitespace().collect();
        let whole = bytes(&hex);
        for end in 0..whole.len() {
            assert!(MetadataRecord::decode(whole.slice(..end)).is_err());
        }
    }
}
