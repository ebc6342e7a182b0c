//! AddOffsetsToTxn (KIP-98): the partition that holds a group's offsets becomes part of a
//! transaction. Clients that know KIP-890 leave that to TxnOffsetCommit.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

use super::Reply;
use crate::context::RequestContext;
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::partitioner::partition_of;
use crate::groups::names::TopicName;
use crate::groups::service::OFFSETS_TOPIC;
use crate::groups::topic;
use crate::txn::messages::{AddRequest, TopicOfTxn};
use crate::txn::names::{TransactionalId, TxnVersion};

/// First version that knows PRODUCER_FENCED.
const FIRST_WITH_FENCING: i16 = 2;

/// Answers AddOffsetsToTxn.
pub async fn handle(
    context: RequestContext,
    request: AddOffsetsToTxnRequest,
) -> Reply<AddOffsetsToTxnResponse> {
    let code = add(&context, request).await.err();
    Reply::Now(message!(AddOffsetsToTxnResponse {
        error_code: code.map_or(0, |code| code.code()),
    }))
}

async fn add(context: &RequestContext, request: AddOffsetsToTxnRequest) -> Result<(), ErrorCode> {
    let offsets = topic::ensure(&context.broker, &request.group_id).await?;
    let count = i32::try_from(offsets.partitions.len()).unwrap_or(i32::MAX);
    let added = context.broker.transactions.add(AddRequest {
        id: TransactionalId::new(&request.transactional_id),
        producer: ProducerIdentity {
            id: ProducerId::new(request.producer_id),
            epoch: ProducerEpoch::new(request.producer_epoch),
        },
        topics: vec![TopicOfTxn {
            name: TopicName::new(OFFSETS_TOPIC),
            id: offsets.id,
            partitions: vec![partition_of(&request.group_id, count)],
        }],
        client_version: TxnVersion::V0,
    });
    added.await.map_err(|error| match context.api_version {
        i16::MIN..FIRST_WITH_FENCING => error.code_before_fencing(),
        _ => error.code(),
    })
}
