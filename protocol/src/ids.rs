//! Newtypes for every kind of number that the wire, the log and the coordinators exchange.
//!
//! A bare integer never crosses a public function: two numbers that mean different things have
//! different types, so that an offset cannot be passed where a position or an epoch belongs.
//! Conversions are explicit (`Offset::new`, `.get()`).

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Wraps the raw number as it stands on the wire.
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The raw number as it stands on the wire.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// Position of a record in a partition, counted from 0. The log assigns it; it never changes.
    Offset(i64)
);
number!(
    /// Number of leader terms a partition has seen: the Raft term, clamped to `i32`. −1 on the
    /// wire means "unknown" and is [`LeaderEpoch::NONE`].
    LeaderEpoch(i32)
);
number!(
    /// Identity of an idempotent or transactional producer (KIP-98). −1 means "none".
    ProducerId(i64)
);
number!(
    /// Fencing number of a producer id (KIP-98). −1 means "none".
    ProducerEpoch(i16)
);
number!(
    /// Sequence number of a record within (producer id, partition); wraps from 2³¹−1 to 0.
    Sequence(i32)
);
number!(
    /// Index of a partition within its topic, counted from 0.
    PartitionIndex(i32)
);
number!(
    /// Id of a node, `node.id` in the configuration.
    NodeId(i32)
);
number!(
    /// Milliseconds since the Unix epoch, as record timestamps carry them. −1 means "none".
    TimestampMs(i64)
);
number!(
    /// Correlation id of a request, echoed in its response.
    CorrelationId(i32)
);

impl Offset {
    /// The first offset of every log.
    pub const ZERO: Self = Self(0);
    /// "No offset" on the wire.
    pub const NONE: Self = Self(-1);

    /// The offset `count` records further on.
    pub const fn plus(self, count: i64) -> Self {
        Self(self.0 + count)
    }
}

impl LeaderEpoch {
    /// "Unknown epoch" on the wire.
    pub const NONE: Self = Self(-1);
}

impl ProducerId {
    /// "No producer id" on the wire.
    pub const NONE: Self = Self(-1);
}

impl ProducerEpoch {
    /// "No producer epoch" on the wire.
    pub const NONE: Self = Self(-1);
}

impl Sequence {
    /// "No sequence" on the wire.
    pub const NONE: Self = Self(-1);

    /// The sequence `count` records further on, wrapping after 2³¹−1 to 0 as Kafka's producers do.
    pub const fn plus(self, count: i32) -> Self {
        let sum = self.0 as i64 + count as i64;
        Self((sum % (1 << 31)) as i32)
    }
}

impl TimestampMs {
    /// "No timestamp" on the wire.
    pub const NONE: Self = Self(-1);
}

/// First offset that can still be read. Everything below is gone for good.
pub type LogStartOffset = SignificantOffset<0>;
/// First offset that belongs to no decided transaction; read_committed stops here.
pub type LastStableOffset = SignificantOffset<1>;
/// First offset that is not yet committed by a majority; every reader stops here.
pub type HighWatermark = SignificantOffset<2>;
/// Offset that the next record will get.
pub type LogEndOffset = SignificantOffset<3>;

/// One of the four significant offsets of a partition; `KIND` keeps them apart in the type system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignificantOffset<const KIND: u8>(Offset);

impl<const KIND: u8> SignificantOffset<KIND> {
    /// Marks `offset` as this significant offset.
    pub const fn new(offset: Offset) -> Self {
        Self(offset)
    }

    /// The plain offset.
    pub const fn offset(self) -> Offset {
        self.0
    }

    /// The raw number as it stands on the wire.
    pub const fn get(self) -> i64 {
        self.0.get()
    }
}

impl<const KIND: u8> fmt::Display for SignificantOffset<KIND> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The four significant offsets of a partition at one moment.
///
/// `log_start ≤ last_stable ≤ high_watermark ≤ log_end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOffsets {
    /// First readable offset.
    pub log_start: LogStartOffset,
    /// Bound of read_committed reads.
    pub last_stable: LastStableOffset,
    /// Bound of every read.
    pub high_watermark: HighWatermark,
    /// Offset of the next record.
    pub log_end: LogEndOffset,
}

/// Universally unique id of a topic: 16 bytes, printed as URL-safe base64 without padding, as
/// Kafka prints it (KIP-516). All zero means "none".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId([u8; 16]);

impl TopicId {
    /// "No topic id" on the wire.
    pub const ZERO: Self = Self([0; 16]);

    /// Wraps sixteen big-endian bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The sixteen big-endian bytes.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether this is the "none" of the wire.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Reads the 22 characters that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(text)
            .ok()?;
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use base64::Engine as _;
        f.write_str(&base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<kafka_wire_core::Uuid> for TopicId {
    fn from(id: kafka_wire_core::Uuid) -> Self {
        Self(id.to_bytes())
    }
}

impl From<TopicId> for kafka_wire_core::Uuid {
    fn from(id: TopicId) -> Self {
        Self::from_bytes(id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_wraps_after_the_largest_to_zero() {
        assert_eq!(Sequence::new(i32::MAX).plus(1), Sequence::new(0));
        assert_eq!(Sequence::new(i32::MAX - 1).plus(3), Sequence::new(1));
    }

    #[test]
    fn topic_id_prints_as_kafka_prints_it_and_reads_back() {
        let id = TopicId::from_bytes([0xff; 16]);
        assert_eq!(id.to_string(), "_____________________w");
        assert_eq!(TopicId::parse("_____________________w"), Some(id));
        assert_eq!(TopicId::parse("short"), None);
    }
}
