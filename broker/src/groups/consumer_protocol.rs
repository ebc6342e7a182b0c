//! What members of the classic protocol carry in opaque bytes if they are consumers: subscriptions and
//! assignments, in Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`.
//!
//! Each begins with its version. Later versions only add fields at the end, so a version newer than
//! those known is read as the newest known. Reading never trusts a length.

use bytes::{BufMut as _, Bytes, BytesMut};
use odradek_protocol::ids::PartitionIndex;

use super::names::TopicName;

/// The newest version known.
const NEWEST_VERSION: i16 = 3;
const FIRST_WITH_OWNED: i16 = 1;
const FIRST_WITH_GENERATION: i16 = 2;
const FIRST_WITH_RACK: i16 = 3;

/// Partitions by the names of their topics.
pub type NamedPartitions = Vec<(TopicName, Vec<PartitionIndex>)>;

/// What a consumer is subscribed to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// Version of the bytes.
    pub version: i16,
    /// Topics.
    pub topics: Vec<TopicName>,
    /// What it has, from version 1 on.
    pub owned: NamedPartitions,
    /// Its rack, from version 3 on.
    pub rack: Option<String>,
}

/// What a consumer was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The partitions.
    pub partitions: NamedPartitions,
    /// Whether a custom assignor has put something of its own in.
    pub has_user_data: bool,
}

/// Reads a subscription; `None` if it is none.
pub fn subscription(bytes: &[u8]) -> Option<Subscription> {
    let mut rest = Rest(bytes);
    let version = rest.version()?;
    let mut subscription = Subscription {
        version,
        topics: rest.names()?,
        ..Subscription::default()
    };
    rest.bytes()?;
    if version >= FIRST_WITH_OWNED {
        subscription.owned = rest.partitions()?;
    }
    if version >= FIRST_WITH_GENERATION {
        rest.int()?;
    }
    if version >= FIRST_WITH_RACK {
        subscription.rack = rest.nullable_text()?.map(str::to_owned);
    }
    Some(subscription)
}

/// Reads an assignment; empty bytes are the assignment of nothing. `None` if it is none.
pub fn assignment(bytes: &[u8]) -> Option<Assignment> {
    if bytes.is_empty() {
        return Some(Assignment::default());
    }
    let mut rest = Rest(bytes);
    rest.version()?;
    Some(Assignment {
        partitions: rest.partitions()?,
        has_user_data: rest.bytes()?.is_some_and(|data| !data.is_empty()),
    })
}

/// Writes an assignment for a member whose subscription has `version`.
pub fn encode_assignment(partitions: &NamedPartitions, version: i16) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(version.clamp(0, NEWEST_VERSION));
    out.put_i32(length(partitions.len()));
    for (topic, indexes) in partitions {
        let name = topic.as_str().as_bytes();
        out.put_i16(i16::try_from(name.len()).unwrap_or(i16::MAX));
        out.put_slice(name);
        out.put_i32(length(indexes.len()));
        for index in indexes {
            out.put_i32(index.get());
        }
    }
    // No data of a custom assignor.
    out.put_i32(-1);
    out.freeze()
}

fn length(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn version(&mut self) -> Option<i16> {
        let version = self.short()?;
        (version >= 0).then(|| version.min(NEWEST_VERSION))
    }

    fn short(&mut self) -> Option<i16> {
        let (head, tail) = self.0.split_first_chunk::<2>()?;
        self.0 = tail;
        Some(i16::from_be_bytes(*head))
    }

    fn int(&mut self) -> Option<i32> {
        let (head, tail) = self.0.split_first_chunk::<4>()?;
        self.0 = tail;
        Some(i32::from_be_bytes(*head))
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.int()?).ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.short()?).ok()?;
        std::str::from_utf8(self.take(len)?).ok()
    }

    fn nullable_text(&mut self) -> Option<Option<&'a str>> {
        let len = self.short()?;
        if len == -1 {
            return Some(None);
        }
        let text = self.take(usize::try_from(len).ok()?)?;
        Some(Some(std::str::from_utf8(text).ok()?))
    }

    /// Nullable bytes.
    fn bytes(&mut self) -> Option<Option<&'a [u8]>> {
        let len = self.int()?;
        if len == -1 {
            return Some(None);
        }
        Some(Some(self.take(usize::try_from(len).ok()?)?))
    }

    fn names(&mut self) -> Option<Vec<TopicName>> {
        // Not reserved by the count, which is only as good as the bytes that follow.
        let count = self.count()?;
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(TopicName::new(self.text()?));
        }
        Some(names)
    }

    fn partitions(&mut self) -> Option<NamedPartitions> {
        let count = self.count()?;
        let mut partitions = Vec::new();
        for _ in 0..count {
            let topic = TopicName::new(self.text()?);
            let indexes = self.count()?;
            let mut held = Vec::new();
            for _ in 0..indexes {
                held.push(PartitionIndex::new(self.int()?));
            }
            partitions.push((topic, held));
        }
        Some(partitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(topic: &str, indexes: &[i32]) -> (TopicName, Vec<PartitionIndex>) {
        let indexes = indexes.iter().copied().map(PartitionIndex::new);
        (TopicName::new(topic), indexes.collect())
    }

    #[test]
    fn every_version_of_a_subscription_is_read_and_newer_ones_as_the_newest() {
        let v0 = b"\0\0\0\0\0\x01\0\x01a\xff\xff\xff\xff";
        let read = subscription(v0).expect("version 0");
        assert_eq!(read.topics, [TopicName::new("a")]);
        let mut v3 = b"\0\x03\0\0\0\x01\0\x01a\0\0\0\0".to_vec();
        v3.extend(b"\0\0\0\x01\0\x01a\0\0\0\x02\0\0\0\0\0\0\0\x05");
        v3.extend(b"\0\0\0\x09\0\x02r1");
        let read = subscription(&v3).expect("version 3");
        assert_eq!(read.owned, [named("a", &[0, 5])]);
        assert_eq!(read.rack.as_deref(), Some("r1"));
        v3[1] = 9;
        v3.extend(b"more");
        assert_eq!(subscription(&v3), Some(read));
    }

    #[test]
    fn an_assignment_survives_its_way_and_nothing_is_one_too() {
        let partitions = vec![named("a", &[1, 2]), named("b", &[0])];
        let bytes = encode_assignment(&partitions, 1);
        assert_eq!(&bytes[..2], b"\0\x01");
        let read = assignment(&bytes).expect("an assignment");
        assert_eq!((read.partitions, read.has_user_data), (partitions, false));
        assert_eq!(assignment(b""), Some(Assignment::default()));
    }

    #[test]
    fn damaged_bytes_are_neither() {
        for bytes in [
            &b"\xff\xff\0\0\0\0"[..],
            b"\0\0\x7f\xff\xff\xff",
            b"\0\0\0\0\0\x01\0\x09a",
            b"\0\x01\0\0\0\x01\0\x01a\xff\xff\xff\xff\x7f\xff\xff\xff",
            b"\0",
        ] {
            assert_eq!(subscription(bytes), None, "{bytes:?}");
            assert_eq!(assignment(bytes), None, "{bytes:?}");
        }
    }
}
