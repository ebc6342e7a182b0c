//! UnregisterBroker: a broker that will not come back, or comes back with another disk, is forgotten.

use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::{UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::Reply;
use super::admin_answers::Verdict;
use crate::context::RequestContext;
use crate::metadata::controller::register_broker::unregister_broker;

/// Answers UnregisterBroker.
pub async fn handle(
    context: RequestContext,
    request: UnregisterBrokerRequest,
) -> Reply<UnregisterBrokerResponse> {
    let node = NodeId::new(request.broker_id);
    let unregistered =
        context
            .broker
            .metadata
            .run(move |image| match unregister_broker(image, node) {
                Ok(records) => (records, Ok(())),
                Err(refusal) => (Vec::new(), Err(refusal)),
            });
    let verdict = match unregistered.await {
        Ok(done) => {
            if done.value.is_ok() {
                tracing::warn!(
                    %node,
                    "broker unregistered at a client's wish: it takes no part in the cluster any more, and \
                     registers again when it is started again"
                );
            }
            Verdict::of_result(&done.value)
        }
        Err(error) => Verdict::from(&error),
    };
    Reply::Now(message!(UnregisterBrokerResponse {
        error_code: verdict.code,
        error_message: verdict.message,
    }))
}
