//! Where Odradek's answers differ from Apache Kafka 4.4.0's on purpose, each with its reason.
//!
//! This is the one list; `docs/PROTOCOL.md` prints it, and a test compares the two. The list only shrinks: a line
//! that matches nothing any more fails the comparison it belongs to.

/// One known difference.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The comparison that it belongs to.
    pub case: &'static str,
    /// The API, as Kafka spells it.
    pub api: &'static str,
    /// The field, as in `topics[].error_code`; everything below it is included.
    pub path: &'static str,
    /// Why it differs.
    pub reason: &'static str,
}

/// Every known difference.
pub const KNOWN: &[Known] = &[Known {
    case: "offsets_without_a_group_membership",
    api: "OffsetCommit",
    path: "topics",
    reason: "Odradek answers in the order asked; Kafka puts topics and partitions that do not exist in front.",
}];
