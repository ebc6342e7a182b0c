//! EndTxn (KIP-98, KIP-890): a producer commits or aborts its transaction.
//!
//! Answered once the outcome is decided for good; that partitions are told of it follows. From
//! version 5 on every end raises the producer's epoch, and the answer says with what it goes on.

use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::{EndTxnRequest, EndTxnResponse};

use super::Reply;
use crate::context::RequestContext;
use crate::coordinator::effects::ProducerIdentity;
use crate::txn::messages::EndRequest;
use crate::txn::names::{TransactionalId, TxnVersion};

/// First version that knows PRODUCER_FENCED.
const FIRST_WITH_FENCING: i16 = 2;
/// First version that raises the epoch.
const FIRST_WITH_NEW_EPOCH: i16 = 5;

/// Answers EndTxn.
pub async fn handle(context: RequestContext, request: EndTxnRequest) -> Reply<EndTxnResponse> {
    let (version, broker) = (context.api_version, &context.broker);
    let asked = EndRequest {
        id: TransactionalId::new(&request.transactional_id),
        producer: ProducerIdentity {
            id: ProducerId::new(request.producer_id),
            epoch: ProducerEpoch::new(request.producer_epoch),
        },
        committed: request.committed,
        client_version: match version {
            FIRST_WITH_NEW_EPOCH.. => TxnVersion::V2,
            _ => TxnVersion::V0,
        },
        fresh: None,
    };
    let ended = broker.transactions.end(asked, &broker.producer_ids).await;
    Reply::Now(match ended {
        Ok(producer) => message!(EndTxnResponse {
            producer_id: producer.id.get(),
            producer_epoch: producer.epoch.get(),
        }),
        Err(error) => {
            let code = match version {
                i16::MIN..FIRST_WITH_FENCING => error.code_before_fencing(),
                _ => error.code(),
            };
            message!(EndTxnResponse {
                error_code: code.code(),
                producer_id: ProducerId::NONE.get(),
                producer_epoch: ProducerEpoch::NONE.get(),
            })
        }
    })
}
