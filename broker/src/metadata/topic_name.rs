//! Rules for names of topics, and the names that have a meaning of their own.

use std::borrow::Cow;

/// Longest name of a topic: `<name>-<partition>.<32 digits>-delete` must fit a file name.
pub const MAX_NAME_LENGTH: usize = 249;

/// The topic that holds committed offsets and group state.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// The topic that holds the state of transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// The topic that holds the state of share groups.
pub const SHARE_GROUP_STATE: &str = "__share_group_state";
/// The metadata log, which is not a topic that clients see.
pub const CLUSTER_METADATA: &str = "__cluster_metadata";

/// Whether only the broker itself writes to the topic.
pub fn is_internal(name: &str) -> bool {
    matches!(
        name,
        CONSUMER_OFFSETS | TRANSACTION_STATE | SHARE_GROUP_STATE
    )
}

/// Why a name cannot be that of a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTopicName {
    /// Nothing there.
    #[error("Topic name is invalid: the empty string is not allowed")]
    Empty,
    /// `.` or `..`, which are directories.
    #[error("Topic name is invalid: '{0}' is not allowed")]
    Dots(String),
    /// Longer than [`MAX_NAME_LENGTH`].
    #[error(
        "Topic name is invalid: the length of '{0}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    )]
    TooLong(String),
    /// A character that is not allowed.
    #[error(
        "Topic name is invalid: '{0}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    )]
    IllegalCharacter(String),
}

/// Checks that a topic may have this name.
pub fn validate(name: &str) -> Result<(), InvalidTopicName> {
    if name.is_empty() {
        return Err(InvalidTopicName::Empty);
    }
    if name == "." || name == ".." {
        return Err(InvalidTopicName::Dots(name.to_owned()));
    }
    // Kafka counts UTF-16 units, and names the length before it names the characters.
    if name.encode_utf16().count() > MAX_NAME_LENGTH {
        return Err(InvalidTopicName::TooLong(name.to_owned()));
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
    {
        return Err(InvalidTopicName::IllegalCharacter(name.to_owned()));
    }
    Ok(())
}

/// Whether the name has a character that metric names fold together.
pub fn has_collision_chars(name: &str) -> bool {
    name.contains(['.', '_'])
}

/// The name as metric names would have it: two topics with the same one collide.
pub fn collision_key(name: &str) -> Cow<'_, str> {
    if name.contains('.') {
        Cow::Owned(name.replace('.', "_"))
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_for_the_reasons_that_kafka_gives() {
        let long = "a".repeat(250);
        for (name, reason) in [
            (
                "",
                "Topic name is invalid: the empty string is not allowed".to_owned(),
            ),
            (".", "Topic name is invalid: '.' is not allowed".to_owned()),
            ("..", "Topic name is invalid: '..' is not allowed".to_owned()),
            (
                &long,
                format!(
                    "Topic name is invalid: the length of '{long}' is longer than the max allowed length 249"
                ),
            ),
            (
                "a b",
                "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
                    .to_owned(),
            ),
        ] {
            assert_eq!(
                validate(name).expect_err("refused").to_string(),
                reason
            );
        }
        for name in ["...", "a", "A-b_c.9", &"a".repeat(249)] {
            assert_eq!(validate(name), Ok(()), "{name}");
        }
        assert!(validate("ä").is_err());
    }

    #[test]
    fn names_that_differ_in_dots_and_underscores_only_collide() {
        assert_eq!(collision_key("a.b"), collision_key("a_b"));
        assert_ne!(collision_key("a.b"), collision_key("a-b"));
        assert!(has_collision_chars("a.b") && has_collision_chars("a_b"));
        assert!(!has_collision_chars("a-b"));
    }

    #[test]
    fn the_metadata_log_is_no_internal_topic() {
        assert!(is_internal(CONSUMER_OFFSETS));
        assert!(is_internal(TRANSACTION_STATE));
        assert!(is_internal(SHARE_GROUP_STATE));
        assert!(!is_internal(CLUSTER_METADATA));
    }
}
