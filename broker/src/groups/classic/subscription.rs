//! The one thing the coordinator reads from a consumer's subscription: its topics.
//!
//! Every version of the consumer protocol begins alike (version, array of topic names), so the
//! rest is not looked at and newer versions are read too.

use crate::groups::names::TopicName;

/// The topics in `metadata`, or `None` if it is not a subscription of the consumer protocol.
pub(super) fn topics(metadata: &[u8]) -> Option<Vec<TopicName>> {
    let (version, rest) = metadata.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    // Not reserved by the count, which is only as good as the bytes that follow.
    let mut topics = Vec::new();
    for _ in 0..count {
        let (len, tail) = rest.split_first_chunk::<2>()?;
        let len = usize::try_from(i16::from_be_bytes(*len)).ok()?;
        let (name, tail) = tail.split_at_checked(len)?;
        topics.push(TopicName::new(std::str::from_utf8(name).ok()?));
        rest = tail;
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_of_any_version_are_read_and_the_rest_is_ignored() {
        let metadata = b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x02bc\xff\xff\xff\xffmore";
        assert_eq!(
            topics(metadata),
            Some(vec![TopicName::new("a"), TopicName::new("bc")])
        );
    }

    #[test]
    fn anything_else_is_no_subscription() {
        for bytes in [
            &b""[..],
            b"\x00",
            b"\xff\xff\x00\x00\x00\x00",
            b"\x00\x00\x7f\xff\xff\xff",
            b"\x00\x00\x00\x00\x00\x01\x00\x05ab",
            b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
        ] {
            assert_eq!(topics(bytes), None, "{bytes:?}");
        }
    }
}
