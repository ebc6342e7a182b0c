//! Deletion of topics, by name or by id (KIP-516).

use std::collections::{HashMap, HashSet};

use odradek_protocol::ids::TopicId;

use super::super::image::MetadataImage;
use super::super::records::MetadataRecord;
use super::super::refusal::Refusal;

/// One entry of a request. A sound one has a name or an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoomedTopic {
    /// Name, if the request gives one.
    pub name: Option<String>,
    /// Id; zero if the request gives none.
    pub topic_id: TopicId,
}

/// Answer for one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionOutcome {
    /// Name, where it was given or is known.
    pub name: Option<String>,
    /// Id, where it was given or is known.
    pub topic_id: TopicId,
    /// Why the topic stays.
    pub result: Result<(), Refusal>,
}

/// Deletes topics. Each is answered for itself; a name or id that stands in the request twice is
/// answered once and deletes nothing.
pub fn delete_topics(
    image: &MetadataImage,
    topics: &[DoomedTopic],
) -> (Vec<MetadataRecord>, Vec<DeletionOutcome>) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut ids: HashMap<TopicId, usize> = HashMap::new();
    for topic in topics {
        match (topic.name.as_deref(), topic.topic_id.is_zero()) {
            (Some(name), true) => *names.entry(name).or_default() += 1,
            (None, false) => *ids.entry(topic.topic_id).or_default() += 1,
            (Some(_), false) | (None, true) => {}
        }
    }
    let mut doomed = HashSet::new();
    let mut records = Vec::new();
    let mut outcomes = Vec::new();
    for topic in topics {
        let (count, duplicate) = match (topic.name.as_deref(), topic.topic_id.is_zero()) {
            (Some(name), true) => (names.get_mut(name), Refusal::DuplicateTopicName),
            (None, false) => (ids.get_mut(&topic.topic_id), Refusal::DuplicateTopicId),
            (Some(_), false) => {
                outcomes.push(outcome(topic, Err(Refusal::NameAndId)));
                continue;
            }
            (None, true) => {
                outcomes.push(outcome(topic, Err(Refusal::NoNameOrId)));
                continue;
            }
        };
        match count.map(std::mem::take) {
            Some(1) => {}
            // Answered at the first of them.
            None | Some(0) => continue,
            Some(_) => {
                outcomes.push(outcome(topic, Err(duplicate)));
                continue;
            }
        }
        let outcome = delete_topic(image, topic, &mut doomed);
        if outcome.result.is_ok() {
            records.push(MetadataRecord::RemoveTopic(outcome.topic_id));
        }
        outcomes.push(outcome);
    }
    (records, outcomes)
}

fn outcome(topic: &DoomedTopic, result: Result<(), Refusal>) -> DeletionOutcome {
    DeletionOutcome {
        name: topic.name.clone(),
        topic_id: topic.topic_id,
        result,
    }
}

fn delete_topic(
    image: &MetadataImage,
    topic: &DoomedTopic,
    doomed: &mut HashSet<TopicId>,
) -> DeletionOutcome {
    let found = match &topic.name {
        Some(name) => image.topic(name).ok_or(Refusal::UnknownTopic),
        None => image
            .topic_by_id(topic.topic_id)
            .ok_or(Refusal::UnknownTopicId),
    };
    let found = match found {
        Ok(found) => found,
        Err(refusal) => return outcome(topic, Err(refusal)),
    };
    let result = if doomed.insert(found.id) {
        Ok(())
    } else {
        Err(Refusal::TopicNamedByNameAndId)
    };
    DeletionOutcome {
        name: Some(found.name.to_string()),
        topic_id: found.id,
        result,
    }
}

#[cfg(test)]
mod tests {
    use odradek_protocol::error_code::ErrorCode;

    use super::super::super::records::TopicRecord;
    use super::super::super::test_support::apply;
    use super::*;

    fn id(number: u8) -> TopicId {
        TopicId::from_bytes([number; 16])
    }

    /// Topics `a` and `b`.
    fn image() -> MetadataImage {
        let mut image = MetadataImage::default();
        for (name, number) in [("a", 1), ("b", 2)] {
            let record = MetadataRecord::Topic(TopicRecord {
                name: name.to_owned(),
                topic_id: id(number),
            });
            apply(&mut image, &[record]);
        }
        image
    }

    fn doomed(name: Option<&str>, topic_id: TopicId) -> DoomedTopic {
        DoomedTopic {
            name: name.map(str::to_owned),
            topic_id,
        }
    }

    fn codes(topics: &[DoomedTopic]) -> (usize, Vec<(Option<String>, ErrorCode)>) {
        let (records, outcomes) = delete_topics(&image(), topics);
        let code = |result: &Result<(), Refusal>| match result {
            Ok(()) => ErrorCode::None,
            Err(refusal) => refusal.code(),
        };
        let codes = outcomes
            .iter()
            .map(|outcome| (outcome.name.clone(), code(&outcome.result)))
            .collect();
        (records.len(), codes)
    }

    #[test]
    fn topics_are_deleted_by_name_and_by_id() {
        let (records, outcomes) = delete_topics(
            &image(),
            &[doomed(Some("a"), TopicId::ZERO), doomed(None, id(2))],
        );
        assert_eq!(
            records,
            [
                MetadataRecord::RemoveTopic(id(1)),
                MetadataRecord::RemoveTopic(id(2))
            ]
        );
        assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
        assert_eq!(outcomes[0].topic_id, id(1));
        assert_eq!(outcomes[1].name.as_deref(), Some("b"));
    }

    #[test]
    fn unsound_entries_are_refused_as_kafka_refuses_them() {
        let (records, codes) = codes(&[
            doomed(Some("none"), TopicId::ZERO),
            doomed(None, TopicId::ZERO),
            doomed(None, id(9)),
            doomed(Some("a"), id(1)),
        ]);
        assert_eq!(records, 0);
        assert_eq!(
            codes,
            [
                (Some("none".to_owned()), ErrorCode::UnknownTopicOrPartition),
                (None, ErrorCode::InvalidRequest),
                (None, ErrorCode::UnknownTopicId),
                (Some("a".to_owned()), ErrorCode::InvalidRequest),
            ]
        );
    }

    #[test]
    fn a_topic_named_twice_is_answered_once_and_stays() {
        let (records, answers) = codes(&[
            doomed(Some("a"), TopicId::ZERO),
            doomed(Some("b"), TopicId::ZERO),
            doomed(Some("a"), TopicId::ZERO),
        ]);
        assert_eq!(records, 1);
        assert_eq!(
            answers,
            [
                (Some("a".to_owned()), ErrorCode::InvalidRequest),
                (Some("b".to_owned()), ErrorCode::None),
            ]
        );
        let (records, answers) = codes(&[
            doomed(None, id(1)),
            doomed(None, id(1)),
            doomed(Some("b"), TopicId::ZERO),
            doomed(None, id(2)),
        ]);
        assert_eq!(records, 1);
        let codes: Vec<_> = answers.into_iter().map(|(_, code)| code).collect();
        assert_eq!(
            codes,
            [
                ErrorCode::InvalidRequest,
                ErrorCode::None,
                ErrorCode::InvalidRequest
            ]
        );
    }
}
