//! The server's codec against an independent one, over random messages of every served API at
//! every served version: what ours writes the other must read whole and write back the same.

#[macro_use]
mod common;

use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::{Decodable, Encodable, Message};
use odradek_protocol::api::{self, ApiKey};
use odradek_protocol::codec::{DecodeLimits, Decoder};
use odradek_protocol::messages::{self as ours, ApiVersion, KafkaMessage};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

const MESSAGES_PER_VERSION: usize = 150;
const MAX_ATTEMPTS: usize = 100_000;

/// Messages read out of random bytes, in their canonical encoding.
fn random_messages<M: KafkaMessage>(rng: &mut StdRng, version: ApiVersion) -> Vec<Bytes> {
    let mut found = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        if found.len() == MESSAGES_PER_VERSION {
            break;
        }
        let bytes = Bytes::from(common::plausible_bytes(rng, 400));
        let Ok(mut decoder) = Decoder::new(bytes, DecodeLimits::default()) else {
            continue;
        };
        if let Ok(message) = M::decode(&mut decoder, version)
            && let Ok(encoded) = message.encode_to_bytes(version)
        {
            let mut again = Decoder::new(encoded.clone(), DecodeLimits::default())
                .expect("is within the limits");
            let read = M::decode(&mut again, version).expect("reads what it wrote");
            again.finish().expect("reads all of it");
            assert!(read.encode_to_bytes(version).expect("encodes") == encoded);
            found.push(encoded);
        }
    }
    found
}

fn compare<Ours, Theirs>(api: ApiKey)
where
    Ours: KafkaMessage,
    Theirs: Decodable + Encodable + Message + std::fmt::Debug,
{
    let seed = common::seed();
    let served = api::served_range(api.key()).expect("is served");
    for version in served.min_answered..=served.max {
        let mut rng = StdRng::seed_from_u64(seed ^ (api.key() as u64) << 8 ^ version as u64);
        let messages = random_messages::<Ours>(&mut rng, ApiVersion::new(version));
        let place = format!("{} v{version}, seed {seed}", Ours::NAME);
        assert!(
            messages.len() >= MESSAGES_PER_VERSION / 3,
            "{place}: too few messages"
        );
        if version > Theirs::VERSIONS.max {
            continue;
        }
        let mut longest = 0;
        for message in messages {
            let mut rest = message.clone();
            let read = match Theirs::decode(&mut rest, version) {
                Ok(read) => read,
                // A tag of a later version: ours keeps it as unknown, theirs refuses it.
                Err(error) if error.to_string().contains("is not valid for version") => continue,
                Err(error) => panic!("{place}: {error} in {message:x}"),
            };
            assert!(rest.is_empty(), "{place}: left over of {message:x}");
            let mut written = BytesMut::new();
            read.encode(&mut written, version)
                .unwrap_or_else(|error| panic!("{place}: {error} for {read:?}"));
            assert!(
                written == message,
                "{place}: {written:x} from {message:x}: {read:?}"
            );
            longest = longest.max(message.len());
        }
    }
}

#[test]
fn every_served_message_at_every_version_reads_the_same_in_an_independent_codec() {
    let mut apis = 0;
    macro_rules! compare_api {
        ($name:ident, $request:ident, $response:ident) => {
            compare::<ours::$request, kafka_protocol::messages::$request>(ApiKey::$name);
            compare::<ours::$response, kafka_protocol::messages::$response>(ApiKey::$name);
            apis += 1;
        };
    }
    for_every_served_api!(compare_api);
    assert_eq!(apis, api::served().len(), "the list of types is complete");
}
