//! InitProducerId (KIP-98): an id for a new idempotent producer.
//!
//! There are no transactions yet: a transactional id is refused with an error that a client does
//! not try again after, rather than letting it wait for a coordinator that does not exist.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::Reply;
use crate::context::RequestContext;

/// Answers InitProducerId.
pub async fn handle(
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Reply<InitProducerIdResponse> {
    if let Err(code) = check(&request) {
        return Reply::Now(refused(code));
    }
    Reply::Now(match context.broker.producer_ids.next().await {
        Ok(id) => message!(InitProducerIdResponse {
            producer_id: id.get(),
            producer_epoch: 0,
        }),
        Err(error) => {
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
