//! Asking the coordinator of a transaction, wherever it is, on behalf of a partition: is this
//! partition part of that transaction, or let it be (KIP-890).

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::api::ApiKey;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::TopicId;
use odradek_protocol::message;
use odradek_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use odradek_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, Bytes, StrBytes, TaggedField,
    TaggedFields,
};

use super::elsewhere::while_it_counts;
use super::messages::{AddRequest, TopicOfTxn, VerifyRequest};
use super::names::{TransactionalId, TxnVersion};
use super::service::{STATE_TOPIC, Service};
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::hosting::Coordinators as _;
use crate::fetch_sessions::TopicRef;
use crate::handlers::leader_hint::LeaderHint;
use crate::partitions::PartitionManager;
use crate::peer::{Peers, ask_broker};

/// Version of AddPartitionsToTxn between brokers.
const VERSION: i16 = 5;
/// How long another broker may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Tag of a topic's id, of our own. The asking broker leads the partition and knows it best.
const TAG_TOPIC_ID: u32 = 10_000;

/// What is asked, by the version of the request that the client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnSupport {
    /// The client knows no error but the old ones, and adds partitions itself.
    OldErrors,
    /// It knows TRANSACTION_ABORTABLE, and adds partitions itself.
    NewErrors,
    /// The partition is to be added on its behalf.
    AddsPartitions,
}

impl TxnSupport {
    /// Of a Produce request.
    pub const fn of_produce(version: i16) -> Self {
        match version {
            i16::MIN..=10 => Self::OldErrors,
            11 => Self::NewErrors,
            12.. => Self::AddsPartitions,
        }
    }

    /// Of a TxnOffsetCommit request.
    pub const fn of_offset_commit(version: i16) -> Self {
        match version {
            i16::MIN..=3 => Self::OldErrors,
            4 => Self::NewErrors,
            5.. => Self::AddsPartitions,
        }
    }
}

/// A question to the coordinator of a transaction.
#[derive(Clone, Debug)]
pub struct Question {
    /// The transactional id.
    pub id: TransactionalId,
    /// Whose transaction it is.
    pub producer: ProducerIdentity,
    /// The partitions.
    pub topics: Vec<TopicOfTxn>,
    /// What is asked.
    pub support: TxnSupport,
}

/// One answer for each partition of each topic of a question, in the order asked.
pub type Answers = Vec<Vec<Result<(), ErrorCode>>>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Asking {
    service: Arc<Service>,
    partitions: Arc<PartitionManager>,
    peers: Option<Arc<Peers>>,
}

impl Asking {
    /// Asks `service` about what is coordinated here, and other brokers through `peers`.
    pub fn new(
        service: Arc<Service>,
        partitions: Arc<PartitionManager>,
        peers: Option<Arc<Peers>>,
    ) -> Self {
        Self {
            service,
            partitions,
            peers,
        }
    }

    /// Asks whoever coordinates the transaction. Errors are those that the client knows.
    pub async fn ask(&self, question: Question) -> Answers {
        let support = question.support;
        let shape: Vec<_> = question
            .topics
            .iter()
            .map(|topic| topic.partitions.len())
            .collect();
        let answers = match self.ask_coordinator(question).await {
            Ok(answers) => answers,
            Err(code) => shape.iter().map(|len| vec![Err(code); *len]).collect(),
        };
        let known = |result: Result<(), ErrorCode>| result.map_err(|code| known_to(support, code));
        let topics = answers.into_iter();
        topics
            .map(|topic| topic.into_iter().map(known).collect())
            .collect()
    }

    async fn ask_coordinator(&self, question: Question) -> Result<Answers, ErrorCode> {
        let index = self
            .service
            .host()
            .partition_of(question.id.as_str())
            .ok_or(ErrorCode::CoordinatorNotAvailable)?;
        let topic = TopicRef::Name(STATE_TOPIC.into());
        let leader_now = || LeaderHint::of(&self.partitions, &topic, index).map(|hint| hint.leader);
        let leader = leader_now().ok_or(ErrorCode::CoordinatorNotAvailable)?;
        if leader == self.partitions.node_id() {
            let verify_only = question.support != TxnSupport::AddsPartitions;
            return answer(&self.service, question, verify_only).await;
        }
        let peers = self.peers.as_ref();
        let peers = peers.ok_or(ErrorCode::CoordinatorNotAvailable)?;
        let request = to_request(&question);
        let asked = ask_broker(
            peers,
            leader,
            (ApiKey::AddPartitionsToTxn, VERSION),
            &request,
            ANSWER_TIMEOUT,
        );
        let leads = || leader_now().is_none_or(|now| now == leader);
        let answered = while_it_counts(asked, leads).await;
        let answered = answered.ok_or(ErrorCode::NotCoordinator)?;
        let response: AddPartitionsToTxnResponse = answered.map_err(|error| {
            tracing::debug!(%error, "the coordinator of a transaction was not reached");
            ErrorCode::CoordinatorNotAvailable
        })?;
        read_response(&question, &response)
    }
}

/// Answers a question about a transaction that is coordinated here.
///
/// # Errors
/// Nothing can be said of any partition.
pub async fn answer(
    service: &Service,
    question: Question,
    verify_only: bool,
) -> Result<Answers, ErrorCode> {
    let Question {
        id,
        producer,
        topics,
        ..
    } = question;
    if verify_only {
        let request = VerifyRequest {
            id,
            producer,
            topics,
        };
        let verified = service.verify(request).await;
        let verified = verified.map_err(|error| error.code())?;
        let part = |is_part| match is_part {
            true => Ok(()),
            false => Err(ErrorCode::TransactionAbortable),
        };
        let topics = verified.into_iter();
        return Ok(topics
            .map(|topic| topic.into_iter().map(part).collect())
            .collect());
    }
    let added: Answers = topics
        .iter()
        .map(|topic| vec![Ok(()); topic.partitions.len()])
        .collect();
    let request = AddRequest {
        id,
        producer,
        topics,
        client_version: TxnVersion::V2,
    };
    let done = service.add(request).await;
    done.map(|()| added).map_err(|error| error.code())
}

/// The error that the client of a version knows.
fn known_to(support: TxnSupport, code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        ErrorCode::TransactionAbortable if support == TxnSupport::OldErrors => {
            ErrorCode::InvalidTxnState
        }
        other => other,
    }
}

fn to_request(question: &Question) -> AddPartitionsToTxnRequest {
    let topics = question.topics.iter().map(|topic| {
        let id = Bytes::copy_from_slice(&topic.id.to_bytes());
        let tagged = (!topic.id.is_zero()).then(|| TaggedField::new(TAG_TOPIC_ID, id));
        // One field is in order.
        let tags = TaggedFields::from_sorted(tagged.into_iter().collect()).unwrap_or_default();
        message!(AddPartitionsToTxnTopic {
            name: StrBytes::from(topic.name.as_str()),
            partitions: topic.partitions.iter().map(|index| index.get()).collect(),
            unknown_tagged_fields: tags,
        })
    });
    message!(AddPartitionsToTxnRequest {
        transactions: vec![message!(AddPartitionsToTxnTransaction {
            transactional_id: StrBytes::from(question.id.as_str()),
            producer_id: question.producer.id.get(),
            producer_epoch: question.producer.epoch.get(),
            verify_only: question.support != TxnSupport::AddsPartitions,
            topics: topics.collect(),
        })],
    })
}

/// The id that the asking broker knows the topic by, if it says.
pub fn topic_id_of(topic: &AddPartitionsToTxnTopic) -> Option<TopicId> {
    let field = topic
        .unknown_tagged_fields
        .iter()
        .find(|field| field.tag() == TAG_TOPIC_ID)?;
    let bytes: &[u8] = field.data();
    Some(TopicId::from_bytes(bytes.try_into().ok()?))
}

fn read_response(
    question: &Question,
    response: &AddPartitionsToTxnResponse,
) -> Result<Answers, ErrorCode> {
    if response.error_code != 0 {
        return Err(to_code(response.error_code));
    }
    let result = response.results_by_transaction.first();
    let results = result.map_or(&[][..], |result| result.topic_results.as_slice());
    let answer_of = |name: &str, index: i32| {
        let topic = results.iter().find(|topic| topic.name.as_str() == name)?;
        let mut partitions = topic.results_by_partition.iter();
        let found = partitions.find(|partition| partition.partition_index == index)?;
        Some(found.partition_error_code)
    };
    let topics = question.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|index| {
            match answer_of(topic.name.as_str(), index.get()) {
                Some(0) => Ok(()),
                Some(code) => Err(to_code(code)),
                None => Err(ErrorCode::CoordinatorNotAvailable),
            }
        });
        partitions.collect()
    });
    Ok(topics.collect())
}

fn to_code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError)
}
