//! Fuzz loops over everything that reads foreign bytes, on stable Rust. Each runs for
//! `ODRADEK_FUZZ_SECONDS` (two by default) and names its seed when it fails; `ODRADEK_SEED`
//! replays it. What they found is a test of its own beside the code.

#[macro_use]
mod common;

use std::ops::ControlFlow;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use odradek_protocol::api::{self, ApiKey};
use odradek_protocol::batch::{
    BatchHeader, BatchIter, TimestampType, ValidationLimits, validate_batch, verify_crc,
};
use odradek_protocol::compression::{Compression, decompress_capped};
use odradek_protocol::frame::{FrameDecoder, FrameEvent, FrameLimits};
use odradek_protocol::header::RequestHeader;
use odradek_protocol::ids::{ProducerEpoch, ProducerId, Sequence, TimestampMs};
use odradek_protocol::messages;
use odradek_protocol::records::{
    BatchBuilder, ExpansionLimits, NewRecord, RecordWalker, expand, scan_stamps,
};
use odradek_protocol::request;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// Runs `round` until the time is up; prints how to replay the round that panics.
fn fuzz(name: &str, mut round: impl FnMut(&mut StdRng)) {
    let seed = common::seed();
    let deadline = common::fuzz_deadline();
    let mut rounds = 0_u64;
    while rounds == 0 || Instant::now() < deadline {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(rounds));
        let replay = ReplayHint(name, seed.wrapping_add(rounds));
        round(&mut rng);
        std::mem::forget(replay);
        rounds += 1;
    }
    println!("{name}: {rounds} rounds from seed {seed}");
}

/// Dropped only while a round panics.
struct ReplayHint<'a>(&'a str, u64);

impl Drop for ReplayHint<'_> {
    fn drop(&mut self) {
        eprintln!(
            "replay with ODRADEK_SEED={} cargo test --test fuzz {}",
            self.1, self.0
        );
    }
}

#[test]
fn frames() {
    fuzz("frames", |rng| {
        let mut decoder = FrameDecoder::new(FrameLimits::with_request_max_bytes(4096));
        let mut buffer = BytesMut::new();
        let mut sent = 0;
        let mut received = 0;
        for _ in 0..rng.random_range(1..6) {
            if rng.random_bool(0.2) {
                decoder.set_authenticated();
            }
            if rng.random_bool(0.9) {
                let len = rng.random_range(8..300_usize);
                buffer.extend_from_slice(&(len as u32).to_be_bytes());
                buffer.extend_from_slice(&common::plausible_bytes(rng, len));
                sent += 1;
            } else {
                let len = rng.random_range(0..20);
                buffer.extend_from_slice(&common::plausible_bytes(rng, len));
            }
            // Every frame makes progress, so this ends.
            while let Ok(event) = decoder.decode(&mut buffer) {
                match event {
                    FrameEvent::Incomplete { missing } => {
                        assert!(missing > 0 && missing <= 4096 + 12);
                        break;
                    }
                    FrameEvent::Announced(head) => assert!(head.length <= 4096),
                    FrameEvent::Frame { head, bytes } => {
                        assert_eq!(head.length, bytes.len());
                        received += 1;
                    }
                }
            }
        }
        assert!(received <= sent + 6);
    });
}

/// Decodes a body as dispatch would.
fn decode_body(header: &RequestHeader, body: &Bytes) -> bool {
    macro_rules! try_api {
        ($name:ident, $request:ident, $response:ident) => {
            if header.api_key == ApiKey::$name {
                let read = request::decode::<messages::$request>(body.clone(), header.api_version);
                return read.is_ok();
            }
        };
    }
    for_every_served_api!(try_api);
    false
}

#[test]
fn requests() {
    let mut decoded = 0_u64;
    fuzz("requests", |rng| {
        let len = rng.random_range(0..400);
        let mut bytes = common::plausible_bytes(rng, len);
        if rng.random_bool(0.95)
            && let Some(served) = api::served().choose(rng)
            && let Some([k0, k1, v0, v1, _, _, _, _, c0, c1]) = bytes.first_chunk_mut::<10>()
        {
            let version = rng.random_range(served.min_answered..=served.max);
            [*k0, *k1] = served.key.key().to_be_bytes();
            [*v0, *v1] = version.to_be_bytes();
            if rng.random() {
                // No client id.
                [*c0, *c1] = [0xff; 2];
            }
        }
        let mut frame = Bytes::from(bytes);
        if let Ok(header) = RequestHeader::parse(&mut frame) {
            decoded += u64::from(decode_body(&header, &frame));
        }
    });
    println!("{decoded} requests decoded");
}

const HEADERS: [(&str, Option<&[u8]>); 2] = [("key", Some(b"value")), ("null", None)];

fn random_batch(rng: &mut StdRng) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    if rng.random() {
        builder = builder.producer(
            ProducerId::new(rng.random_range(0..9)),
            ProducerEpoch::new(0),
            Sequence::new(rng.random_range(0..99)),
        );
    }
    for _ in 0..rng.random_range(1..20) {
        let key = common::plausible_bytes(rng, 10);
        let len = rng.random_range(0..100);
        let value = common::plausible_bytes(rng, len);
        builder.push(NewRecord {
            timestamp: TimestampMs::new(rng.random_range(0..1000)),
            key: rng.random::<bool>().then_some(&key),
            value: rng.random::<bool>().then_some(&value),
            headers: &HEADERS[..rng.random_range(0..3)],
        });
    }
    let codec = Compression::ALL[rng.random_range(0..Compression::ALL.len())];
    builder
        .build_compressed(codec)
        .expect("compresses")
        .to_vec()
}

#[test]
fn batches() {
    let mut accepted = 0_u64;
    fuzz("batches", |rng| {
        let mut batch = random_batch(rng);
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..batch.len());
            batch[at] = match rng.random_range(0..4) {
                0 => rng.random(),
                1 => 0xff,
                2 => 0,
                _ => batch[at] ^ (1 << rng.random_range(0..8)),
            };
        }
        if rng.random_bool(0.1) {
            batch.truncate(rng.random_range(0..=batch.len()));
        }
        // Otherwise little would get past the CRC.
        if batch.len() >= BatchHeader::SIZE && rng.random_bool(0.9) {
            let crc = crc32c::crc32c(&batch[21..]);
            batch[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let limits = ValidationLimits {
            compacted: rng.random(),
            timestamp_type: if rng.random() {
                TimestampType::CreateTime
            } else {
                TimestampType::LogAppendTime
            },
            ..ValidationLimits::new(TimestampMs::new(500))
        };
        for view in BatchIter::new(&batch).flatten() {
            let _ = verify_crc(&view.header, view.bytes);
            let limits = ExpansionLimits::default();
            let _ = scan_stamps(&view.header, view.bytes, limits, |_| {
                ControlFlow::Continue(())
            });
            if let Ok(records) = expand(&view.header, view.bytes, 1 << 20) {
                for record in RecordWalker::new(&records, view.header.record_count).flatten() {
                    assert!(record.headers().count() <= records.len());
                }
            }
        }
        if let Ok(summary) = validate_batch(&batch, &limits) {
            accepted += 1;
            let records =
                expand(&summary.header, &batch, 64 << 20).expect("validation expanded it");
            let walker = RecordWalker::new(&records, summary.header.record_count);
            assert!(walker.clone().all(|record| record.is_ok()));
            assert_eq!(walker.count() as i32, summary.header.record_count);
        }
    });
    println!("{accepted} batches accepted");
}

#[test]
fn decompressors() {
    fuzz("decompressors", |rng| {
        let codec = Compression::ALL[rng.random_range(0..Compression::ALL.len())];
        let len = rng.random_range(0..2000);
        let input = common::plausible_bytes(rng, len);
        let mut bytes = odradek_protocol::compression::compress(codec, &input)
            .expect("compresses")
            .to_vec();
        for _ in 0..rng.random_range(0..4) {
            if let Some(at) = (!bytes.is_empty()).then(|| rng.random_range(0..bytes.len())) {
                bytes[at] = rng.random();
            }
        }
        if let Ok(output) = decompress_capped(codec, &bytes, 1 << 16) {
            assert!(output.len() <= 1 << 16);
        }
    });
}
