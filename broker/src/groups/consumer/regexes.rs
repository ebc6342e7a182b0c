//! Subscriptions by regular expression, which the coordinator looks up (KIP-848).
//!
//! Expressions are RE2's, matched in linear time by the `regex` crate: a client cannot make the
//! broker spin. What RE2 reads otherwise is rewritten first: `\Q…\E`, and in sets a `[` that opens
//! none and the operators `&&`, `--` and `~~`, which RE2 does not have. `\C` (one byte) is refused. A
//! topic matches if the whole of its name does. Reading an expression takes hundreds of bytes for each of its
//! own, before the size of its automaton is known, so long ones are refused unread.
//!
//! A lookup goes over every topic of the cluster and so runs outside the state machine; what it has
//! found comes back as a request and is written down. One lookup of a group runs at a time, none
//! within `MIN_INTERVAL_MS` of the last, and one that has not come back after that is given up.

use odradek_protocol::ids::TimestampMs;
use regex::{Regex, RegexBuilder};

use super::context::{Context, Refusal};
use super::group::ConsumerGroup;
use crate::groups::error::GroupError;
use crate::groups::names::TopicName;
use crate::groups::records::consumer::{ConsumerRecord, RegexValue};
use crate::metadata::image::MetadataImage;

/// How long after a lookup the next may begin.
const MIN_INTERVAL_MS: i64 = 10_000;
/// Largest automaton that an expression may become, in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Longest expression, in bytes; a name of 249 characters 60 times over.
pub const MAX_TEXT_BYTES: usize = 16 << 10;
/// Of an expression that is refused, what the answer repeats, in characters.
const SHOWN: usize = 200;

/// Expressions that are to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Every expression of the group.
    pub regexes: Vec<String>,
}

/// What a lookup has found: each expression with its topics.
pub type Found = Vec<(String, RegexValue)>;

/// Compiles an expression so that it matches whole names.
///
/// # Errors
/// It is none, or too long, or one whose automaton would be too large.
pub fn compile(text: &str) -> Result<Regex, Refusal> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "A regular expression may have {MAX_TEXT_BYTES} bytes; this one has {}.",
            text.len()
        );
        return Err(Refusal::new(GroupError::InvalidRegex, message));
    }
    let compiled = RegexBuilder::new(&format!("^(?:{})$", rewritten(text)))
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .build();
    // On its own as well: a bracket that closes what was opened around it is no expression.
    let alone = RegexBuilder::new(&rewritten(text))
        .size_limit(MAX_COMPILED_BYTES)
        .build();
    match (compiled, alone) {
        (Ok(regex), Ok(_)) => Ok(regex),
        (Err(error), _) | (_, Err(error)) => {
            let shown: String = text.chars().take(SHOWN).collect();
            let reason: String = error.to_string().chars().take(2 * SHOWN).collect();
            let message = format!("{shown:?} is not a valid regular expression: {reason}");
            Err(Refusal::new(GroupError::InvalidRegex, message))
        }
    }
}

/// The expression with RE2's reading, in the words of the `regex` crate.
fn rewritten(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_set = false;
    while let Some(next) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix("\\Q") {
            let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            out.push_str(&regex::escape(literal));
            rest = after;
            continue;
        }
        let mut taken = next.len_utf8();
        match next {
            '\\' => {
                taken += rest
                    .get(1..)
                    .and_then(|tail| tail.chars().next())
                    .map_or(0, char::len_utf8);
                out.push_str(rest.get(..taken).unwrap_or_default());
            }
            '[' if !in_set => {
                in_set = true;
                // What follows at once does not close the set.
                let tail = rest.get(1..).unwrap_or_default();
                let negated = usize::from(tail.starts_with('^'));
                let closing = usize::from(tail.get(negated..).is_some_and(|t| t.starts_with(']')));
                out.push('[');
                out.push_str(tail.get(..negated).unwrap_or_default());
                if closing == 1 {
                    out.push_str("\\]");
                }
                taken += negated + closing;
            }
            '[' if rest.starts_with("[:") => {
                // A class by name, such as `[:alpha:]`.
                let end = rest.find(":]").map_or(taken, |at| at + 2);
                out.push_str(rest.get(..end).unwrap_or_default());
                taken = end;
            }
            '[' => out.push_str("\\["),
            ']' if in_set => {
                in_set = false;
                out.push(']');
            }
            '&' | '~' if in_set => {
                out.push('\\');
                out.push(next);
            }
            '-' if in_set && rest.starts_with("--") => out.push_str("\\-"),
            other => out.push(other),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    out
}

/// Looks up expressions among all topics; those that cannot be read match none. May take long.
pub fn look_up(lookup: &Lookup, image: &MetadataImage, now: TimestampMs) -> Found {
    let found = lookup.regexes.iter().map(|text| {
        let topics = match compile(text) {
            Ok(regex) => image
                .topics()
                .filter(|topic| regex.is_match(&topic.name))
                .map(|topic| TopicName::new(&topic.name))
                .collect(),
            Err(refusal) => {
                tracing::error!(regex = text, message = refusal.message, "matches nothing");
                Vec::new()
            }
        };
        let value = RegexValue {
            topics,
            metadata_version: version_of(image),
            resolved_at: now,
        };
        (text.clone(), value)
    });
    found.collect()
}

impl ConsumerGroup {
    /// The lookup that is due, which counts as begun.
    pub(super) fn due_lookup(&mut self, cx: &Context<'_>) -> Option<Lookup> {
        let now = cx.now.get();
        let regexes: Vec<String> = self.subscribed_regexes().cloned().collect();
        if regexes.is_empty() {
            return None;
        }
        let begun = self.resolving_since.map_or(i64::MIN, TimestampMs::get);
        if self.resolving_since.is_some() && now <= begun.saturating_add(MIN_INTERVAL_MS) {
            return None;
        }
        let (version, at) = self.last_lookup();
        if now <= at.saturating_add(MIN_INTERVAL_MS) {
            return None;
        }
        let is_known = |regex: &String| self.resolved().contains_key(regex);
        let refresh_ms = cx.config.consumer.regex_refresh_interval_ms;
        let is_due = !regexes.iter().all(is_known)
            || version < version_of(cx.image)
            || now > at.saturating_add(refresh_ms);
        if !is_due {
            return None;
        }
        self.resolving_since = Some(cx.now);
        Some(Lookup { regexes })
    }

    /// The metadata that was looked through last, and when. What the log says is a lower bound: a
    /// lookup that found nothing new is not written down.
    fn last_lookup(&self) -> (i64, i64) {
        let written = self.resolved().values().next();
        let written = written.map(|value| (value.metadata_version, value.resolved_at));
        let (version, at) = self
            .looked_up
            .or(written)
            .unwrap_or((i64::MIN, TimestampMs::new(i64::MIN)));
        (version, at.get())
    }

    /// Takes account of what a lookup has found.
    pub(in crate::groups) fn looked_up(&mut self, found: Found, cx: &mut Context<'_>) {
        self.resolving_since = None;
        let first = found.first();
        self.looked_up = first.map(|(_, value)| (value.metadata_version, value.resolved_at));
        let mut changed = false;
        for (regex, value) in found {
            if self.members_of_regex(&regex) == 0 {
                continue;
            }
            let size: usize = value
                .topics
                .iter()
                .map(|topic| topic.as_str().len() + 2)
                .sum();
            if size > cx.config.max_record_bytes {
                tracing::error!(group = %self.id, regex, "matches more topics than can be stored");
                continue;
            }
            let before = self.resolved().get(&regex);
            if before.is_some_and(|before| before.topics == value.topics) {
                continue;
            }
            let matched_none = before.is_none_or(|before| before.topics.is_empty());
            changed |= !matched_none || !value.topics.is_empty();
            cx.write(self, ConsumerRecord::Regex(regex, Some(value)));
        }
        self.refresh_metadata(changed, cx);
    }
}

/// Kafka numbers an image by its last record.
fn version_of(image: &MetadataImage) -> i64 {
    image.next_offset().get() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::bench::image_of;

    fn matches(regex: &str, names: &[&str]) -> Vec<bool> {
        let regex = compile(regex).unwrap_or_else(|refusal| panic!("{}", refusal.message));
        names.iter().map(|name| regex.is_match(name)).collect()
    }

    #[test]
    fn the_whole_name_has_to_match() {
        assert_eq!(
            matches("a|ab", &["a", "ab", "abc", "xa"]),
            [true, true, false, false]
        );
        assert_eq!(
            matches("foo.*", &["foo", "foobar", "afoo"]),
            [true, true, false]
        );
    }

    #[test]
    fn expressions_are_read_as_re2_reads_them() {
        assert_eq!(matches(r"\Qa.b\E.*", &["a.bc", "axbc"]), [true, false]);
        assert_eq!(matches("[[a]x", &["[x", "ax"]), [true, true]);
        assert_eq!(matches("[a&&b]", &["&", "a", "b"]), [true, true, true]);
        assert_eq!(matches("[[:digit:]]+", &["12", "a"]), [true, false]);
        assert_eq!(matches("[]a]", &["]", "a"]), [true, true]);
        assert_eq!(matches("[^]a]", &["]", "b"]), [false, true]);
        assert_eq!(matches(r"[\]-]", &["]", "-"]), [true, true]);
    }

    #[test]
    fn what_is_no_expression_or_too_large_a_one_is_refused() {
        for regex in [
            "(",
            "*",
            "a)(b",
            "[",
            "(?=a)b",
            r"(a)\1",
            "(((a{100}){100}){100})",
        ] {
            let refusal = compile(regex).expect_err(regex);
            assert_eq!(refusal.error, GroupError::InvalidRegex, "{regex}");
        }
    }

    #[test]
    fn an_expression_that_is_too_long_is_refused_unread_and_not_repeated() {
        for regex in [".".repeat(8 << 20), "(".repeat(MAX_TEXT_BYTES)] {
            let begun = std::time::Instant::now();
            let refusal = compile(&regex).expect_err("too long, or none");
            assert_eq!(refusal.error, GroupError::InvalidRegex);
            assert!(refusal.message.len() < 2_000, "{}", refusal.message.len());
            assert!(begun.elapsed() < std::time::Duration::from_secs(1));
        }
    }

    #[test]
    fn a_lookup_finds_topics_in_order_and_says_in_which_metadata() {
        let image = image_of(&[("b1", 1, 1), ("a1", 2, 1), ("c", 3, 1)]);
        let regexes = vec![".1".to_owned(), "(".to_owned()];
        let found = look_up(&Lookup { regexes }, &image, TimestampMs::new(5));
        assert_eq!(
            found[0].1.topics,
            [TopicName::new("a1"), TopicName::new("b1")]
        );
        assert_eq!(found[0].1.metadata_version, 0);
        assert!(found[1].1.topics.is_empty());
    }
}
