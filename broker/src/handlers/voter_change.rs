//! What AddRaftVoter and RemoveRaftVoter have in common.

use std::time::Duration;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::messages::StrBytes;
use tokio::time::Instant;

use super::admin_answers::Verdict;
use crate::context::BrokerContext;
use crate::metadata::controller::voters::VoterRefusal;
use crate::metadata::refusal::Refusal;
use crate::metadata::service::{Done, MetadataError};

/// Longest that a request waits for the group's members.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Time between two looks at them.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Name of the controllers' listener where this node has none of its own.
const CONTROLLER: &str = "CONTROLLER";

/// Whether the request is for this cluster, and for the metadata leader.
pub(super) fn check(broker: &BrokerContext, cluster_id: Option<&StrBytes>) -> Result<(), Verdict> {
    let ours = broker.identity.cluster_id.as_str();
    if let Some(given) = cluster_id.filter(|given| given.as_str() != ours) {
        let refusal = VoterRefusal::OtherCluster {
            ours: ours.to_owned(),
            given: given.as_str().to_owned(),
        };
        return Err(Verdict::from(&Refusal::from(refusal)));
    }
    match broker.metadata.is_leading() {
        true => Ok(()),
        false => Err(Verdict::of(ErrorCode::NotLeaderOrFollower)),
    }
}

/// The listener by which the controllers of this cluster reach one another.
pub(super) fn listener(broker: &BrokerContext) -> String {
    let listener = broker.controller_endpoints.first();
    listener.map_or_else(
        || CONTROLLER.to_owned(),
        |endpoint| endpoint.listener_name.clone(),
    )
}

/// Whether those vote whom the metadata names.
pub(super) fn is_settled(broker: &BrokerContext) -> bool {
    let wanted = broker.metadata.image().voter_ids();
    broker.metadata.group().membership().is_settled_on(&wanted)
}

/// What comes of a change that the metadata has, or has not, been given.
pub(super) async fn outcome(
    broker: &BrokerContext,
    named: Result<Done<Result<(), VoterRefusal>>, MetadataError>,
    waits: bool,
    deadline: Instant,
) -> Verdict {
    match named {
        Ok(Done { value: Ok(()), .. }) => {}
        Ok(Done {
            value: Err(refusal),
            ..
        }) => return Verdict::from(&Refusal::from(refusal)),
        Err(error) => return Verdict::from(&error),
    }
    while waits && !is_settled(broker) {
        if Instant::now() >= deadline {
            return Verdict::of(ErrorCode::RequestTimedOut);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Verdict::OK
}
