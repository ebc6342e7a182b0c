//! AddRaftVoter (KIP-853, KIP-1186): a controller that follows the metadata votes on it.
//!
//! The metadata names it as a voter, and the members of the metadata's group follow (`cluster::duties`).
//! Kafka refuses a controller that lags behind; here it is waited for, for a moment.

use std::time::Duration;

use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::{AddRaftVoterRequest, AddRaftVoterResponse};
use tokio::time::Instant;

use super::Reply;
use super::admin_answers::Verdict;
use super::voter_change::{self, PAUSE};
use crate::cluster::duties::caught_up;
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::controller::voters::{VoterRefusal, add_voter, check_addition};
use crate::metadata::records::{VoterEndpoint, VoterRecord};
use crate::metadata::refusal::Refusal;

/// First version that says whether to wait until the change is complete.
const FIRST_ACK_VERSION: i16 = 1;
/// How long the new voter may take to have what it is to vote on.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Answers AddRaftVoter.
pub async fn handle(
    context: RequestContext,
    request: AddRaftVoterRequest,
) -> Reply<AddRaftVoterResponse> {
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let deadline = Instant::now() + timeout.min(voter_change::LONGEST);
    let waits = context.api_version < FIRST_ACK_VERSION || request.ack_when_committed;
    let verdict = add(&context.broker, request, waits, deadline).await;
    Reply::Now(message!(AddRaftVoterResponse {
        error_code: verdict.code,
        error_message: verdict.message,
    }))
}

async fn add(
    broker: &BrokerContext,
    request: AddRaftVoterRequest,
    waits: bool,
    deadline: Instant,
) -> Verdict {
    if let Err(verdict) = voter_change::check(broker, request.cluster_id.as_ref()) {
        return verdict;
    }
    let endpoints = request.listeners.into_iter().map(|listener| VoterEndpoint {
        name: listener.name.into_string(),
        host: listener.host.into_string(),
        port: listener.port,
    });
    let voter = VoterRecord {
        id: NodeId::new(request.voter_id),
        directory: request.voter_directory_id,
        endpoints: endpoints.collect(),
    };
    let listener = voter_change::listener(broker);
    if let Err(refusal) = check_addition(&broker.metadata.image(), &voter, &listener) {
        return refused(refusal);
    }
    if !voter_change::is_settled(broker) {
        return refused(VoterRefusal::Pending);
    }
    // Whether it has caught up is the last thing that is asked, by the command itself.
    let until = deadline.min(Instant::now() + CATCH_UP);
    while !has_caught_up(broker, &voter) && Instant::now() < until {
        tokio::time::sleep(PAUSE).await;
    }
    let has_caught_up = has_caught_up(broker, &voter);
    let named = broker.metadata.run(move |image| {
        let added = add_voter(image, voter, &listener, has_caught_up);
        match added {
            Ok(records) => (records, Ok(())),
            Err(refusal) => (Vec::new(), Err(refusal)),
        }
    });
    voter_change::outcome(broker, named.await, waits, deadline).await
}

fn has_caught_up(broker: &BrokerContext, voter: &VoterRecord) -> bool {
    let image = broker.metadata.image();
    let known = image.controller(voter.id);
    known.is_some_and(|known| known.directory == voter.directory)
        && caught_up(&broker.metadata).contains(&voter.id)
}

fn refused(refusal: VoterRefusal) -> Verdict {
    Verdict::from(&Refusal::from(refusal))
}
