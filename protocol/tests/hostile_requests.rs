//! Lengths and counts that lie, in every request type at every served version: refused, in memory
//! that stays bounded. In a binary of its own, whose memory nobody else uses.

#[macro_use]
mod common;

use bytes::{Bytes, BytesMut};
use odradek_protocol::ProtocolError;
use odradek_protocol::api::{self, ApiKey};
use odradek_protocol::codec::{DecodeLimits, Decoder};
use odradek_protocol::frame::{FrameDecoder, FrameEvent, FrameLimits};
use odradek_protocol::messages::{self as ours, ApiVersion, KafkaRequest};
use odradek_protocol::request;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// What a test may cost in KiB of memory, and of address space, of which every thread of the
/// test runner takes a good deal. Any one of the announced counts stands for more.
const ALLOWED_RESIDENT_KIB: u64 = 256 << 10;
const ALLOWED_ADDRESSES_KIB: u64 = 3 << 19;

/// Peaks of this process so far, in KiB: resident, and address space.
fn peaks_kib() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let peak = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok())
            .expect("a peak")
    };
    (peak("VmHWM:"), peak("VmPeak:"))
}

fn assert_bounded(before: (u64, u64)) {
    let after = peaks_kib();
    let resident = after.0 - before.0;
    let addresses = after.1 - before.1;
    assert!(resident < ALLOWED_RESIDENT_KIB, "{resident} KiB resident");
    assert!(
        addresses < ALLOWED_ADDRESSES_KIB,
        "{addresses} KiB of address space"
    );
}

/// Some well-formed bodies of this request.
fn bodies<M: KafkaRequest>(version: i16) -> Vec<Bytes> {
    let version = ApiVersion::new(version);
    let mut rng = StdRng::seed_from_u64(common::seed());
    let mut found = Vec::new();
    for _ in 0..20_000 {
        let bytes = Bytes::from(common::plausible_bytes(&mut rng, 200));
        let mut decoder = Decoder::new(bytes, DecodeLimits::default()).expect("fits");
        if let Ok(message) = M::decode(&mut decoder, version)
            && let Ok(body) = message.encode_to_bytes(version)
        {
            found.push(body);
        }
        if found.len() == 20 {
            break;
        }
    }
    assert!(!found.is_empty(), "{} {version}", M::NAME);
    found
}

/// Counts of 2³¹−1 as the two encodings write them, 2³² as only a malformed varint can, and −1.
const LIES: &[&[u8]] = &[
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80, 0x80, 0x80, 0x80, 0x08],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0x80, 0x80, 0x80, 0x80, 0x10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xff, 0xff, 0xff, 0xff],
    &[0x7f, 0xff],
];

fn lie_everywhere<M: KafkaRequest>(api: ApiKey) -> usize {
    let served = api::served_range(api.key()).expect("is served");
    let mut refused = 0;
    for version in served.min_answered..=served.max {
        for body in bodies::<M>(version) {
            for at in 0..=body.len() {
                for lie in LIES {
                    let replaced = [&body[..at], lie, body.get(at + lie.len()..).unwrap_or(&[])];
                    let inserted = [&body[..at], lie, &body[at..]];
                    for hostile in [replaced.concat(), inserted.concat()] {
                        refused +=
                            usize::from(request::decode::<M>(hostile.into(), version).is_err());
                    }
                }
            }
        }
    }
    assert!(refused > 0, "{api:?}: no lie was refused");
    refused
}

#[test]
fn counts_of_billions_in_any_request_are_refused_in_bounded_memory() {
    let before = peaks_kib();
    let mut refused = 0;
    macro_rules! lie_to {
        ($name:ident, $request:ident, $response:ident) => {
            refused += lie_everywhere::<ours::$request>(ApiKey::$name);
        };
    }
    for_every_served_api!(lie_to);
    assert!(refused > 10_000);
    assert_bounded(before);
}

#[test]
fn an_array_has_no_more_elements_than_its_frame_has_bytes() {
    // Metadata v0: a million topic names in 64 bytes.
    let body = [&0x000f_4240_u32.to_be_bytes()[..], &[0; 64]].concat();
    assert!(matches!(
        request::decode::<ours::MetadataRequest>(body.into(), 0),
        Err(ProtocolError::Malformed(_))
    ));
}

#[test]
fn what_is_reserved_for_a_frame_covers_the_worst_that_it_decodes_to() {
    // Resources whose keys are empty strings of one byte each: nothing takes more a byte.
    let keys = 1_000_000_usize;
    let mut body = vec![2, 2, 1, 0xc1, 0x84, 0x3d];
    body.resize(body.len() + keys, 1);
    body.extend_from_slice(&[0, 0, 0, 0]);
    let head = odradek_protocol::frame::FrameHead {
        length: body.len(),
        api_key: ApiKey::DescribeConfigs.key(),
        api_version: 4,
        correlation_id: odradek_protocol::ids::CorrelationId::new(0),
    };
    let read: ours::DescribeConfigsRequest =
        request::decode(body.into(), 4).expect("is well-formed");
    let names = read.resources[0].configuration_keys.as_ref().expect("keys");
    assert_eq!(names.len(), keys);
    let taken = names.capacity() * size_of::<ours::StrBytes>();
    assert!(taken <= head.memory_bytes() + (64 << 10) * 32, "{taken}");
}

#[test]
fn bytes_behind_a_request_are_ignored_as_kafka_ignores_them() {
    let body = Bytes::from_static(&[0, 0, 0, 0, 1, 2, 3]);
    let read: ours::MetadataRequest = request::decode(body, 0).expect("decodes");
    assert_eq!(read.topics, Some(Vec::new()));
}

#[test]
fn record_bytes_of_a_produce_request_are_a_slice_of_its_frame() {
    let topic = ours::message!(ours::produce_request::TopicProduceData {
        name: "topic".into(),
        partition_data: vec![ours::message!(
            ours::produce_request::PartitionProduceData {
                index: 0,
                records: Some(Bytes::from(vec![7; 10_000])),
            }
        )],
    });
    let produce = ours::message!(ours::ProduceRequest {
        acks: -1,
        timeout_ms: 1000,
        topic_data: vec![topic],
    });
    use ours::KafkaEncode as _;
    let body = produce
        .encode_to_bytes(ApiVersion::new(9))
        .expect("encodes");
    let inside = body.as_ptr_range();
    let read: ours::ProduceRequest = request::decode(body, 9).expect("decodes");
    let records = read.topic_data[0].partition_data[0]
        .records
        .as_ref()
        .expect("records");
    assert!(inside.contains(&records.as_ptr()));
    assert!(inside.contains(&read.topic_data[0].name.as_bytes().as_ptr()));
}

#[test]
fn a_frame_of_two_gibibytes_before_authentication_is_refused_by_its_first_four_bytes() {
    let before = peaks_kib();
    for length in [i32::MAX, 1 << 30, (64 << 10) + 1] {
        let mut decoder = FrameDecoder::new(FrameLimits::default());
        let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
        assert_eq!(
            decoder.decode(&mut buffer),
            Err(ProtocolError::FrameTooLarge {
                length: length as usize,
                limit: 64 << 10
            })
        );
    }
    assert_bounded(before);
}

#[test]
fn negative_and_tiny_frames_are_refused_and_whole_ones_follow_each_other() {
    let decode =
        |bytes: &[u8]| FrameDecoder::new(FrameLimits::default()).decode(&mut BytesMut::from(bytes));
    assert_eq!(
        decode(&(-1_i32).to_be_bytes()),
        Err(ProtocolError::NegativeFrameLength { length: -1 })
    );
    for length in 0..8_u8 {
        assert_eq!(
            decode(&[0, 0, 0, length, 0, 0, 0]),
            Err(ProtocolError::FrameTooShort {
                length: usize::from(length)
            })
        );
    }

    // Two pipelined frames, byte by byte.
    let frame = [0, 0, 0, 9, 0, 18, 0, 0, 0, 0, 0, 42, 99];
    let stream = [frame, frame].concat();
    let mut decoder = FrameDecoder::new(FrameLimits::default());
    let mut buffer = BytesMut::new();
    let (mut announced, mut frames) = (0, 0);
    for byte in stream {
        buffer.extend_from_slice(&[byte]);
        loop {
            match decoder.decode(&mut buffer).expect("is well-formed") {
                FrameEvent::Incomplete { missing } => {
                    assert!(missing > 0);
                    break;
                }
                FrameEvent::Announced(head) => {
                    assert_eq!((head.length, head.api_key), (9, 18));
                    assert_eq!(head.correlation_id.get(), 42);
                    announced += 1;
                }
                FrameEvent::Frame { head, bytes } => {
                    assert_eq!(bytes.len(), head.length);
                    assert_eq!(bytes, frame[4..]);
                    frames += 1;
                }
            }
        }
    }
    assert_eq!((announced, frames), (2, 2));
    assert!(buffer.is_empty());
}

#[test]
fn after_authentication_the_limit_is_that_of_the_api() {
    let limits = FrameLimits::with_request_max_bytes(100 << 20);
    let head = |length: i32, key: i16| {
        let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
        buffer.extend_from_slice(&key.to_be_bytes());
        buffer.extend_from_slice(&[0, 3, 0, 0, 0, 1]);
        let mut decoder = FrameDecoder::new(limits);
        decoder.set_authenticated();
        decoder.decode(&mut buffer)
    };
    let produce = ApiKey::Produce.key();
    assert!(matches!(
        head(100 << 20, produce),
        Ok(FrameEvent::Announced(_))
    ));
    assert!(head((100 << 20) + 1, produce).is_err());
    let metadata = ApiKey::Metadata.key();
    assert!(matches!(
        head(8 << 20, metadata),
        Ok(FrameEvent::Announced(_))
    ));
    assert!(head((8 << 20) + 1, metadata).is_err());
    let memory = |event| match event {
        Ok(FrameEvent::Announced(head)) => head.memory_bytes(),
        other => panic!("{other:?}"),
    };
    assert_eq!(memory(head(100 << 20, produce)), 100 << 20);
    assert_eq!(memory(head(64 << 10, metadata)), 64 << 10);
    assert_eq!(memory(head(8 << 20, metadata)), 256 << 20);
    let small = FrameLimits::with_request_max_bytes(1000);
    assert_eq!(small.unauthenticated_max_bytes, 1000);
    assert_eq!(small.other_max_bytes, 1000);
}
