//! A controller that adds itself to the voters (`controller.quorum.auto.join.enable`).

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::api::ApiKey;
use odradek_protocol::codec::Uuid;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::add_raft_voter_request::Listener;
use odradek_protocol::messages::{AddRaftVoterRequest, AddRaftVoterResponse, StrBytes};

use super::Controllers;
use crate::context::BrokerContext;

/// Time between two attempts.
const PERIOD: Duration = Duration::from_secs(2);
/// How long one attempt may take on the metadata leader.
const ATTEMPT_MS: i32 = 5_000;
/// The version that need not wait until the change is complete.
const VERSION: i16 = 1;

/// Asks the metadata leader to add this controller whenever the metadata names its voters and not this
/// one, until it is one. Who is removed later stays out until its next start: somebody wanted it so.
pub(super) async fn auto_join(context: Arc<BrokerContext>, controllers: Arc<Controllers>) {
    let node = context.identity.node_id;
    loop {
        let image = context.metadata.image();
        if image.voters().iter().any(|voter| voter.id == node) {
            return;
        }
        let directory = image.controller(node).map(|known| known.directory);
        if let Some(directory) = directory.filter(|_| image.has_voter_records()) {
            add(&context, &controllers, directory).await;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn add(context: &BrokerContext, controllers: &Controllers, directory: Uuid) {
    let listeners = context.controller_endpoints.iter().map(|endpoint| {
        message!(Listener {
            name: StrBytes::from(endpoint.listener_name.as_str()),
            host: StrBytes::from(endpoint.host.as_str()),
            port: endpoint.port,
        })
    });
    let request = message!(AddRaftVoterRequest {
        cluster_id: Some(StrBytes::from(context.identity.cluster_id.as_str())),
        timeout_ms: ATTEMPT_MS,
        voter_id: context.identity.node_id.get(),
        voter_directory_id: directory,
        listeners: listeners.collect(),
        ack_when_committed: false,
    });
    let answer: Result<AddRaftVoterResponse, _> = controllers
        .forward_message(ApiKey::AddRaftVoter, VERSION, &request)
        .await;
    match answer {
        Ok(answer) if answer.error_code == ErrorCode::None.code() => {
            tracing::info!("this controller is to vote on the metadata");
        }
        Ok(answer) => {
            let reason = answer.error_message.unwrap_or_default();
            tracing::info!(
                reason = reason.as_str(),
                "this controller does not vote yet"
            );
        }
        Err(error) => tracing::info!(%error, "this controller does not vote yet"),
    }
}
