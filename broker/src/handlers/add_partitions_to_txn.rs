//! AddPartitionsToTxn (KIP-98, KIP-890): partitions become part of a transaction.
//!
//! Up to version 3 it comes from clients, for one transaction. Later versions are for brokers: many
//! transactions, of which it may also be asked whether partitions are part of them.
//!
//! Clients may not add partitions of the topics that coordinators keep their state in; brokers add those of
//! `__consumer_offsets`.
//!
//! A partition that is named twice is answered twice, but once where its answer is its own rather than that
//! of the whole transaction: so does Kafka, which collects such answers by partition.

use std::collections::{HashMap, HashSet};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use odradek_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use odradek_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, StrBytes};

use super::Reply;
use crate::context::{BrokerContext, RequestContext};
use crate::coordinator::effects::ProducerIdentity;
use crate::groups::names::TopicName;
use crate::metadata::image::MetadataImage;
use crate::metadata::topic_name::is_internal;
use crate::txn::asking::{self, Question, TxnSupport};
use crate::txn::messages::{AddRequest, TopicOfTxn};
use crate::txn::names::{TransactionalId, TxnVersion};

/// First version with several transactions.
const FIRST_WITH_TRANSACTIONS: i16 = 4;
/// First version that knows PRODUCER_FENCED.
const FIRST_WITH_FENCING: i16 = 2;

/// Answers AddPartitionsToTxn.
pub async fn handle(
    context: RequestContext,
    request: AddPartitionsToTxnRequest,
) -> Reply<AddPartitionsToTxnResponse> {
    let version = context.api_version;
    if version >= FIRST_WITH_TRANSACTIONS {
        let mut results = Vec::with_capacity(request.transactions.len());
        for transaction in request.transactions {
            let topic_results = add(&context.broker, version, &transaction).await;
            results.push(message!(AddPartitionsToTxnResult {
                transactional_id: transaction.transactional_id,
                topic_results,
            }));
        }
        return Reply::Now(message!(AddPartitionsToTxnResponse {
            results_by_transaction: results,
        }));
    }
    let transaction = message!(AddPartitionsToTxnTransaction {
        transactional_id: request.v3_and_below_transactional_id,
        producer_id: request.v3_and_below_producer_id,
        producer_epoch: request.v3_and_below_producer_epoch,
        topics: request.v3_and_below_topics,
    });
    Reply::Now(message!(AddPartitionsToTxnResponse {
        results_by_topic_v3_and_below: add(&context.broker, version, &transaction).await,
    }))
}

async fn add(
    broker: &BrokerContext,
    version: i16,
    transaction: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let image = broker.metadata.image();
    let fault = |topic: &AddPartitionsToTxnTopic, index| {
        if version < FIRST_WITH_TRANSACTIONS && is_internal(&topic.name) {
            return Some(ErrorCode::TopicAuthorizationFailed);
        }
        is_unknown(&image, topic, index).then_some(ErrorCode::UnknownTopicOrPartition)
    };
    let has_fault = |topic: &AddPartitionsToTxnTopic| {
        let mut partitions = topic.partitions.iter();
        partitions.any(|index| fault(topic, *index).is_some())
    };
    if transaction.topics.iter().any(has_fault) {
        // One that cannot be added fails the others too.
        let answered = results(transaction, |topic, index| {
            fault(topic, index).unwrap_or(ErrorCode::OperationNotAttempted)
        });
        return once(answered);
    }
    let producer = ProducerIdentity {
        id: ProducerId::new(transaction.producer_id),
        epoch: ProducerEpoch::new(transaction.producer_epoch),
    };
    let id = TransactionalId::new(&transaction.transactional_id);
    let topics: Vec<_> = transaction
        .topics
        .iter()
        .map(|topic| to_topic(&image, topic))
        .collect();
    if version < FIRST_WITH_TRANSACTIONS {
        let request = AddRequest {
            id,
            producer,
            topics,
            client_version: TxnVersion::V0,
        };
        let code = match broker.transactions.add(request).await {
            Ok(()) => ErrorCode::None,
            Err(error) if version < FIRST_WITH_FENCING => error.code_before_fencing(),
            Err(error) => error.code(),
        };
        return results(transaction, |_, _| code);
    }
    let question = Question {
        id,
        producer,
        topics,
        support: TxnSupport::NewErrors,
    };
    match asking::answer(&broker.transactions, question, transaction.verify_only).await {
        Err(code) => results(transaction, |_, _| code),
        Ok(answers) => {
            let mut answers = answers.into_iter().flatten();
            let answered = results(transaction, |_, _| match answers.next() {
                Some(Ok(())) => ErrorCode::None,
                Some(Err(code)) => code,
                None => ErrorCode::UnknownServerError,
            });
            match transaction.verify_only {
                true => once(answered),
                false => answered,
            }
        }
    }
}

fn is_unknown(image: &MetadataImage, topic: &AddPartitionsToTxnTopic, index: i32) -> bool {
    let known = image.topic(&topic.name);
    known.is_none_or(|known| known.partition(PartitionIndex::new(index)).is_none())
}

fn to_topic(image: &MetadataImage, topic: &AddPartitionsToTxnTopic) -> TopicOfTxn {
    let by_metadata = || image.topic(&topic.name).map(|known| known.id);
    let indexes = topic.partitions.iter().copied();
    TopicOfTxn {
        name: TopicName::new(&topic.name),
        id: asking::topic_id_of(topic)
            .or_else(by_metadata)
            .unwrap_or_default(),
        partitions: indexes.map(PartitionIndex::new).collect(),
    }
}

/// A row for every partition asked for, in the order asked.
fn results(
    transaction: &AddPartitionsToTxnTransaction,
    mut code_of: impl FnMut(&AddPartitionsToTxnTopic, i32) -> ErrorCode,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut results = Vec::with_capacity(transaction.topics.len());
    for topic in &transaction.topics {
        let rows = topic.partitions.iter().map(|index| {
            message!(AddPartitionsToTxnPartitionResult {
                partition_index: *index,
                partition_error_code: code_of(topic, *index).code(),
            })
        });
        results.push(message!(AddPartitionsToTxnTopicResult {
            results_by_partition: rows.collect(),
            name: topic.name.clone(),
        }));
    }
    results
}

/// Each topic and each partition of it once, in the place in which it is named first.
fn once(results: Vec<AddPartitionsToTxnTopicResult>) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut places: HashMap<StrBytes, usize> = HashMap::new();
    let mut seen: HashSet<(usize, i32)> = HashSet::new();
    let mut kept: Vec<AddPartitionsToTxnTopicResult> = Vec::new();
    for topic in results {
        let at = *places.entry(topic.name.clone()).or_insert_with(|| {
            kept.push(message!(AddPartitionsToTxnTopicResult { name: topic.name }));
            kept.len() - 1
        });
        let new = topic.results_by_partition.into_iter();
        let new = new.filter(|row| seen.insert((at, row.partition_index)));
        if let Some(topic) = kept.get_mut(at) {
            topic.results_by_partition.extend(new);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_of_a_partition_name_it_once() {
        let topic = |name: &str, partitions: &[i32]| {
            message!(AddPartitionsToTxnTopic {
                name: StrBytes::from(name),
                partitions: partitions.to_vec(),
            })
        };
        let transaction = message!(AddPartitionsToTxnTransaction {
            topics: vec![
                topic("a", &[0, 1, 0]),
                topic("b", &[2, 2]),
                topic("a", &[1, 3])
            ],
        });
        let rows = |results: Vec<AddPartitionsToTxnTopicResult>| -> Vec<(String, Vec<i32>)> {
            let rows = results.into_iter().map(|topic| {
                let indexes = topic.results_by_partition.iter();
                let indexes = indexes.map(|row| row.partition_index).collect();
                (topic.name.into_string(), indexes)
            });
            rows.collect()
        };
        let all = results(&transaction, |_, _| ErrorCode::None);
        let by_name = |name: &str, indexes: &[i32]| (name.to_owned(), indexes.to_vec());
        let expected = [
            by_name("a", &[0, 1, 0]),
            by_name("b", &[2, 2]),
            by_name("a", &[1, 3]),
        ];
        assert_eq!(rows(all.clone()), expected, "the answer of the transaction");
        let expected = [by_name("a", &[0, 1, 3]), by_name("b", &[2])];
        assert_eq!(rows(once(all)), expected);
    }
}
