//! RemoveRaftVoter (KIP-853): a voter on the metadata votes no more, whether it is there or not. It may
//! be the metadata leader itself, which answers and then lets another lead.

use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::{RemoveRaftVoterRequest, RemoveRaftVoterResponse};
use tokio::time::Instant;

use super::Reply;
use super::admin_answers::Verdict;
use super::voter_change;
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::controller::voters::{ReplicaKey, VoterRefusal, check_removal, remove_voter};
use crate::metadata::refusal::Refusal;

/// Answers RemoveRaftVoter.
pub async fn handle(
    context: RequestContext,
    request: RemoveRaftVoterRequest,
) -> Reply<RemoveRaftVoterResponse> {
    let verdict = remove(&context.broker, request).await;
    Reply::Now(message!(RemoveRaftVoterResponse {
        error_code: verdict.code,
        error_message: verdict.message,
    }))
}

async fn remove(broker: &BrokerContext, request: RemoveRaftVoterRequest) -> Verdict {
    if let Err(verdict) = voter_change::check(broker, request.cluster_id.as_ref()) {
        return verdict;
    }
    let voter = ReplicaKey {
        id: NodeId::new(request.voter_id),
        directory: request.voter_directory_id,
    };
    let refused = |refusal: VoterRefusal| Verdict::from(&Refusal::from(refusal));
    if let Err(refusal) = check_removal(&broker.metadata.image(), voter) {
        return refused(refusal);
    }
    if !voter_change::is_settled(broker) {
        return refused(VoterRefusal::Pending);
    }
    let named = broker
        .metadata
        .run(move |image| match remove_voter(image, voter) {
            Ok(records) => (records, Ok(())),
            Err(refusal) => (Vec::new(), Err(refusal)),
        });
    let deadline = Instant::now() + voter_change::LONGEST;
    voter_change::outcome(broker, named.await, true, deadline).await
}
