//! DescribeTransactions (KIP-664): what transactional ids are doing.

use odradek_protocol::message;
use odradek_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use odradek_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, StrBytes,
};

use super::Reply;
use crate::context::RequestContext;
use crate::txn::error::TxnError;
use crate::txn::messages::Description;
use crate::txn::names::TransactionalId;

/// Answers DescribeTransactions.
pub async fn handle(
    context: RequestContext,
    request: DescribeTransactionsRequest,
) -> Reply<DescribeTransactionsResponse> {
    let mut transaction_states = Vec::with_capacity(request.transactional_ids.len());
    for id in request.transactional_ids {
        let described = context
            .broker
            .transactions
            .describe(TransactionalId::new(&id))
            .await;
        transaction_states.push(to_state(id, described));
    }
    Reply::Now(message!(DescribeTransactionsResponse {
        transaction_states
    }))
}

fn to_state(
    transactional_id: StrBytes,
    described: Result<Description, TxnError>,
) -> TransactionState {
    let description = match described {
        Ok(description) => description,
        Err(error) => {
            return message!(TransactionState {
                transactional_id,
                error_code: error.code().code(),
            });
        }
    };
    let topics = description.partitions.iter().map(|(name, topic)| {
        message!(TopicData {
            topic: StrBytes::from(name.as_str()),
            partitions: topic.partitions.iter().map(|index| index.get()).collect(),
        })
    });
    message!(TransactionState {
        transactional_id,
        transaction_state: StrBytes::from(description.state.name()),
        transaction_timeout_ms: description.timeout_ms,
        transaction_start_time_ms: description.started_at.get(),
        producer_id: description.producer.id.get(),
        producer_epoch: description.producer.epoch.get(),
        topics: topics.collect(),
    })
}
