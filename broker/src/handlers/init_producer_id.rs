//! InitProducerId (KIP-98, KIP-360): an id and an epoch for a producer. One that is idempotent only
//! gets an id that nobody has had; one with a transactional id becomes the only one under that id.

use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::Reply;
use crate::context::RequestContext;
use crate::coordinator::effects::ProducerIdentity;
use crate::txn::messages::InitRequest;
use crate::txn::names::TransactionalId;

/// First version that knows PRODUCER_FENCED.
const FIRST_WITH_FENCING: i16 = 4;
/// How long a client waits for a new block of ids.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers InitProducerId.
pub async fn handle(
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Reply<InitProducerIdResponse> {
    let expected = match expected(&request) {
        Ok(expected) => expected,
        Err(code) => return Reply::Now(refused(code)),
    };
    if let Some(id) = &request.transactional_id {
        let broker = &context.broker;
        let initialized = broker.transactions.init(
            InitRequest {
                id: TransactionalId::new(id),
                timeout_ms: request.transaction_timeout_ms,
                expected,
                fresh: None,
            },
            &broker.producer_ids,
        );
        return Reply::Now(match initialized.await {
            Ok(producer) => message!(InitProducerIdResponse {
                producer_id: producer.id.get(),
                producer_epoch: producer.epoch.get(),
            }),
            Err(error) if context.api_version < FIRST_WITH_FENCING => {
                refused(error.code_before_fencing())
            }
            Err(error) => refused(error.code()),
        });
    }
    let given = tokio::time::timeout(PATIENCE, context.broker.producer_ids.next()).await;
    Reply::Now(match given {
        // Without a majority of the metadata there is no new block of ids. Kafka says the same of a
        // block that is on its way, and does not wait for it either.
        Err(_elapsed) => refused(ErrorCode::CoordinatorLoadInProgress),
        Ok(Ok(id)) => message!(InitProducerIdResponse {
            producer_id: id.get(),
            producer_epoch: 0,
        }),
        Ok(Err(error)) => {
            tracing::warn!(%error, "no producer id can be given out");
            // The client waits a little and asks again, whatever the cause.
            refused(ErrorCode::CoordinatorNotAvailable)
        }
    })
}

/// What the producer was before. One that has an id gives its epoch with it (KIP-360).
fn expected(request: &InitProducerIdRequest) -> Result<Option<ProducerIdentity>, ErrorCode> {
    let has_id = request.producer_id != ProducerId::NONE.get();
    let has_epoch = request.producer_epoch != ProducerEpoch::NONE.get();
    if has_id != has_epoch {
        return Err(ErrorCode::InvalidRequest);
    }
    Ok(has_id.then(|| ProducerIdentity {
        id: ProducerId::new(request.producer_id),
        epoch: ProducerEpoch::new(request.producer_epoch),
    }))
}

fn refused(code: ErrorCode) -> InitProducerIdResponse {
    message!(InitProducerIdResponse {
        error_code: code.code(),
        producer_id: ProducerId::NONE.get(),
        producer_epoch: ProducerEpoch::NONE.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(id: i64, epoch: i16) -> Result<Option<ProducerIdentity>, ErrorCode> {
        expected(&message!(InitProducerIdRequest {
            producer_id: id,
            producer_epoch: epoch,
        }))
    }

    #[test]
    fn an_id_and_an_epoch_go_together() {
        assert_eq!(given(-1, -1), Ok(None));
        assert!(given(0, 0).is_ok_and(|given| given.is_some()));
        assert_eq!(given(5, -1), Err(ErrorCode::InvalidRequest));
        assert_eq!(given(-1, 0), Err(ErrorCode::InvalidRequest));
    }
}
