//! AllocateProducerIds (KIP-730): a block of producer ids for one broker. Brokers alone ask, and never
//! through a client's listener.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse};

use super::Reply;
use crate::context::RequestContext;
use crate::metadata::controller::producer_ids::allocate;
use crate::partitions::log_dir::Room;

/// Answers AllocateProducerIds.
pub async fn handle(
    context: RequestContext,
    request: AllocateProducerIdsRequest,
) -> Reply<AllocateProducerIdsResponse> {
    let broker = NodeId::new(request.broker_id);
    let allocated = context
        .broker
        .metadata
        .run_where(Room::Scarce, move |image| {
            let is_current = image
                .broker(broker)
                .is_some_and(|known| known.broker_epoch == request.broker_epoch);
            if is_current {
                let (records, block) = allocate(image, broker);
                (records, Some(block))
            } else {
                (Vec::new(), None)
            }
        });
    let refused = |code: ErrorCode| {
        message!(AllocateProducerIdsResponse {
            error_code: code.code(),
        })
    };
    Reply::Now(match allocated.await.map(|done| done.value) {
        Ok(Some(block)) => {
            let (producer_id_start, producer_id_len) = block.range();
            message!(AllocateProducerIdsResponse {
                producer_id_start,
                producer_id_len,
            })
        }
        Ok(None) => refused(ErrorCode::StaleBrokerEpoch),
        Err(error) => refused(error.code()),
    })
}
