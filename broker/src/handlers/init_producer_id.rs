//! InitProducerId (KIP-98): an id for a new idempotent producer.
//!
//! There are no transactions yet: a transactional id is refused with an error that a client does
//! not try again after, rather than letting it wait for a coordinator that does not exist.

use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::Reply;
use crate::context::RequestContext;

/// How long a client waits for a new block of ids.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers InitProducerId.
pub async fn handle(
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Reply<InitProducerIdResponse> {
    if let Err(code) = check(&request) {
        return Reply::Now(refused(code));
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

fn check(request: &InitProducerIdRequest) -> Result<(), ErrorCode> {
    match &request.transactional_id {
        Some(id) if id.is_empty() => Err(ErrorCode::InvalidRequest),
        Some(_) => Err(ErrorCode::UnsupportedVersion),
        None => {
            // A producer that has an id gives its epoch with it (KIP-360).
            let has_id = request.producer_id != ProducerId::NONE.get();
            let has_epoch = request.producer_epoch != ProducerEpoch::NONE.get();
            if has_id == has_epoch {
                Ok(())
            } else {
                Err(ErrorCode::InvalidRequest)
            }
        }
    }
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
    use odradek_protocol::messages::StrBytes;

    fn checked(transactional_id: Option<&str>, id: i64, epoch: i16) -> Result<(), ErrorCode> {
        check(&message!(InitProducerIdRequest {
            transactional_id: transactional_id.map(StrBytes::from),
            producer_id: id,
            producer_epoch: epoch,
        }))
    }

    #[test]
    fn an_id_and_an_epoch_go_together_and_transactions_are_refused_for_good() {
        assert_eq!(checked(None, -1, -1), Ok(()));
        assert_eq!(checked(None, 0, 0), Ok(()));
        assert_eq!(checked(None, 5, -1), Err(ErrorCode::InvalidRequest));
        assert_eq!(checked(None, -1, 0), Err(ErrorCode::InvalidRequest));
        assert_eq!(checked(Some(""), -1, -1), Err(ErrorCode::InvalidRequest));
        let refused = checked(Some("tx"), -1, -1).expect_err("refused");
        assert!(!refused.retriable());
    }
}
