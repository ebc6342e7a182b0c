//! What was written is read.

use bytes::{Bytes, BytesMut};
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::wire::Reader;
use odradek_raft::{GroupKey, Incarnation, RaftIndex, Standing};

use super::requests::FORWARD;
use super::*;
use crate::metadata::records::BrokerEndpoint;

fn checkpoint_id() -> CheckpointId {
    CheckpointId {
        end: Offset::new(77),
        epoch: LeaderEpoch::new(3),
    }
}

fn requests() -> Vec<PeerRequest> {
    let report = LeaderReport {
        topic_id: TopicId::from_bytes([4; 16]),
        partition: PartitionIndex::new(3),
        incarnation: Incarnation::FIRST,
        leader: NodeId::new(1),
        epoch: LeaderEpoch::new(12),
        isr: vec![NodeId::new(1), NodeId::new(2)],
        reassigned: None,
    };
    let done = LeaderReport {
        incarnation: Incarnation::new(1005),
        reassigned: Some(vec![NodeId::new(1), NodeId::new(2), NodeId::new(3)]),
        ..report.clone()
    };
    vec![
        PeerRequest::Forward(Forward {
            api_key: 19,
            api_version: 7,
            client_id: Some("admin".to_owned()),
            principal: "User:ANONYMOUS".to_owned(),
            body: Bytes::from_static(b"body"),
        }),
        PeerRequest::Broker(Forward {
            api_key: 27,
            api_version: 2,
            client_id: None,
            principal: "User:BROKER".to_owned(),
            body: Bytes::from_static(b"markers"),
        }),
        PeerRequest::Report(LeaderReports {
            node: NodeId::new(1),
            broker_epoch: 99,
            reports: vec![report, done],
        }),
        PeerRequest::Join(Join {
            directory: Uuid::from_bytes([3; 16]),
            voters: vec![NodeId::new(1), NodeId::new(2)],
        }),
        PeerRequest::Stop(Stop {
            node: NodeId::new(1),
            broker_epoch: 99,
            now: true,
        }),
        PeerRequest::TransferLeader {
            group: GroupKey::new(TopicId::from_bytes([9; 16]), PartitionIndex::new(0)),
            to: NodeId::new(2),
        },
        PeerRequest::Standing(
            GroupKey::new(TopicId::from_bytes([9; 16]), PartitionIndex::new(2))
                .in_incarnation(Incarnation::new(7)),
        ),
        PeerRequest::Quorum,
        PeerRequest::Checkpoint {
            wanted: Some(checkpoint_id()),
            position: 1 << 40,
        },
        PeerRequest::RegisterController(ControllerRegistration {
            controller_id: NodeId::new(3),
            incarnation_id: Uuid::from_bytes([1; 16]),
            endpoints: vec![],
            directory: Uuid::from_bytes([2; 16]),
            voters: vec![NodeId::new(1)],
        }),
        PeerRequest::Register(Registration {
            broker_id: NodeId::new(4),
            incarnation_id: Uuid::from_bytes([1; 16]),
            endpoints: vec![BrokerEndpoint {
                name: "PLAINTEXT".to_owned(),
                host: "h".to_owned(),
                port: 9092,
                security_protocol: 0,
            }],
            rack: Some("r1".to_owned()),
            log_dirs: vec![Uuid::from_bytes([2; 16])],
            voters: vec![NodeId::new(1)],
        }),
    ]
}

fn replies() -> Vec<PeerReply> {
    vec![
        PeerReply::Forwarded(Forwarded {
            body: Bytes::from_static(b"answer"),
            metadata_offset: Offset::new(77),
        }),
        PeerReply::Done,
        PeerReply::Committed {
            metadata_offset: Offset::new(8),
        },
        PeerReply::Fresh,
        PeerReply::Disagrees {
            reason: "because".to_owned(),
        },
        PeerReply::Welcome {
            cluster_id: "c".to_owned(),
        },
        PeerReply::Registered(Registered {
            broker_epoch: 5,
            cluster_id: "c".to_owned(),
            metadata_offset: Offset::new(6),
        }),
        PeerReply::Quorum(vec![(
            NodeId::new(1),
            PeerAddress {
                host: "h".to_owned(),
                port: 9093,
            },
        )]),
        PeerReply::Standing(None),
        PeerReply::Standing(Some(Standing {
            incarnation: Incarnation::new(1005),
            is_whole: true,
            leads: false,
            term: 1009,
            last: Some((1009, RaftIndex::new(77))),
            committed_end: RaftIndex::new(70),
            log_start: Offset::new(3),
            high_watermark: Offset::new(400),
            log_end: Offset::new(412),
            voters: vec![[1, 2].into_iter().map(NodeId::new).collect()],
        })),
        PeerReply::Checkpoint(Piece {
            id: checkpoint_id(),
            size: 1 << 40,
            bytes: Bytes::from_static(b"piece"),
        }),
        PeerReply::NotController { leader: None },
        PeerReply::NotLeader {
            leader: Some(NodeId::new(3)),
        },
        PeerReply::Refused {
            reason: "because".to_owned(),
        },
        PeerReply::Busy,
        PeerReply::Unsupported,
    ]
}

#[test]
fn messages_read_back_as_written_and_break_off_as_errors() {
    for request in requests() {
        let mut out = BytesMut::new();
        request.put(&mut out);
        let bytes = out.freeze();
        for cut in 0..bytes.len() {
            assert!(PeerRequest::get(&mut Reader::new(bytes.slice(..cut))).is_err());
        }
        let mut reader = Reader::new(bytes);
        assert_eq!(PeerRequest::get(&mut reader), Ok(Some(request)));
        assert_eq!(reader.end(), Ok(()));
    }
    for reply in replies() {
        let mut out = BytesMut::new();
        reply.put(&mut out);
        let bytes = out.freeze();
        for cut in 0..bytes.len() {
            assert!(PeerReply::get(&mut Reader::new(bytes.slice(..cut))).is_err());
        }
        let mut reader = Reader::new(bytes);
        assert_eq!(PeerReply::get(&mut reader), Ok(reply));
        assert_eq!(reader.end(), Ok(()));
    }
}

#[test]
fn a_request_of_the_future_is_unknown_rather_than_malformed() {
    for bytes in [[VERSION, 250], [VERSION + 1, FORWARD]] {
        let mut reader = Reader::new(Bytes::copy_from_slice(&bytes));
        assert_eq!(PeerRequest::get(&mut reader), Ok(None));
    }
}
