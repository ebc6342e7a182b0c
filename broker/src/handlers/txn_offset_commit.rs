//! TxnOffsetCommit (KIP-98, KIP-447, KIP-890): offsets that count once a transaction is committed.
//!
//! Every partition asked for is answered once, in the order asked. From version 5 on the partition
//! that holds the group's offsets becomes part of the transaction here, from version 6 on topics are
//! named by their ids.

use odradek_protocol::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use odradek_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use odradek_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::Reply;
use super::commit_rows::{CommitRows, Named, commit_partition};
use super::group_answers::instance_of;
use crate::context::{BrokerContext, RequestContext};
use crate::coordinator::effects::ProducerIdentity;
use crate::groups::error::GroupError;
use crate::groups::messages::{CommitPartition, CommitRequest, CommitTopic, TxnCommitRequest};
use crate::groups::names::{GenerationId, GroupId, MemberId, TopicName};
use crate::groups::service::{OFFSETS_TOPIC, PartitionResults};
use crate::txn::asking::{Question, TxnSupport};
use crate::txn::messages::TopicOfTxn;
use crate::txn::names::TransactionalId;

/// First version that names topics by id.
const FIRST_WITH_TOPIC_IDS: i16 = 6;

/// Answers TxnOffsetCommit.
pub async fn handle(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
) -> Reply<TxnOffsetCommitResponse> {
    let version = context.api_version;
    let image = context.broker.metadata.image();
    let mut rows = CommitRows::default();
    for topic in &request.topics {
        let named = match version {
            FIRST_WITH_TOPIC_IDS.. => Named::Id(topic.topic_id.into()),
            _ => Named::Name(&topic.name),
        };
        rows.push(&image, named, topic.partitions.iter().map(to_commit));
    }
    let topics = rows.take_known();
    let results = match topics.is_empty() {
        true => Ok(Vec::new()),
        false => commit(&context.broker, version, &request, topics).await,
    };
    let topics = request.topics.iter().zip(rows.codes(&results));
    Reply::Now(message!(TxnOffsetCommitResponse {
        topics: topics.map(|(topic, codes)| answer(topic, codes)).collect(),
    }))
}

fn to_commit(partition: &TxnOffsetCommitRequestPartition) -> CommitPartition {
    commit_partition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata.as_ref(),
    )
}

fn answer(
    asked: &TxnOffsetCommitRequestTopic,
    codes: Vec<ErrorCode>,
) -> TxnOffsetCommitResponseTopic {
    let rows = asked.partitions.iter().zip(codes).map(|(partition, code)| {
        message!(TxnOffsetCommitResponsePartition {
            partition_index: partition.partition_index,
            error_code: code.code(),
        })
    });
    message!(TxnOffsetCommitResponseTopic {
        name: asked.name.clone(),
        topic_id: asked.topic_id,
        partitions: rows.collect(),
    })
}

impl From<GroupError> for ErrorCode {
    fn from(error: GroupError) -> Self {
        error.code()
    }
}

async fn commit(
    broker: &BrokerContext,
    version: i16,
    request: &TxnOffsetCommitRequest,
    topics: Vec<CommitTopic>,
) -> Result<PartitionResults, ErrorCode> {
    if request.group_id.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let producer = ProducerIdentity {
        id: ProducerId::new(request.producer_id),
        epoch: ProducerEpoch::new(request.producer_epoch),
    };
    let asked = TxnCommitRequest {
        producer,
        verified: None,
        commit: CommitRequest {
            group: GroupId::new(&request.group_id),
            member: MemberId::new(&request.member_id),
            instance: instance_of(request.group_instance_id.as_ref()),
            generation: GenerationId::new(request.generation_id_or_member_epoch),
            retention_ms: None,
            knows_epochs: true,
            no_such_group: match version {
                FIRST_WITH_TOPIC_IDS.. => GroupError::GroupNotFound,
                _ => GroupError::IllegalGeneration,
            },
            topics,
        },
    };
    let id = TransactionalId::new(&request.transactional_id);
    let support = TxnSupport::of_offset_commit(version);
    let verify = |partition| verify(broker, support, id.clone(), producer, partition);
    let committed = broker.groups.commit_in_transaction(asked, verify).await;
    committed.map_err(|code| match code {
        // What a generation was before there were members' epochs.
        ErrorCode::StaleMemberEpoch if version < FIRST_WITH_TOPIC_IDS => {
            ErrorCode::IllegalGeneration
        }
        other => other,
    })
}

/// Asks the coordinator of the transaction whether the group's partition is part of it. As in Kafka a producer
/// of which the partition knows a later epoch is refused before that.
async fn verify(
    broker: &BrokerContext,
    support: TxnSupport,
    id: TransactionalId,
    producer: ProducerIdentity,
    partition: PartitionIndex,
) -> Result<(), ErrorCode> {
    let offsets = broker.metadata.image();
    let offsets = offsets.topic(OFFSETS_TOPIC);
    let here = offsets.and_then(|topic| broker.partitions.get(topic.id, partition));
    if here.is_some_and(|here| here.has_fenced(producer)) {
        return Err(ErrorCode::InvalidProducerEpoch);
    }
    let question = Question {
        id,
        producer,
        topics: vec![TopicOfTxn {
            name: TopicName::new(OFFSETS_TOPIC),
            id: offsets.map(|topic| topic.id).unwrap_or_default(),
            partitions: vec![partition],
        }],
        support,
    };
    let answers = broker.txn_asking.ask(question).await;
    let mut answers = answers.into_iter().flatten();
    answers
        .next()
        .unwrap_or(Err(ErrorCode::CoordinatorNotAvailable))
}
