//! Having checkpoints of the metadata from other nodes.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::NodeId;

use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::checkpoint::fetch::{CheckpointSource, FetchError};
use crate::metadata::checkpoint::store::Piece;
use crate::peer::{PeerReply, PeerRequest, Peers};

/// Asks the other nodes.
#[derive(Debug)]
pub struct PeerCheckpoints(pub Arc<Peers>);

impl CheckpointSource for PeerCheckpoints {
    fn piece(
        &self,
        from: NodeId,
        wanted: Option<CheckpointId>,
        position: u64,
    ) -> BoxFuture<'static, Result<Piece, FetchError>> {
        let peers = Arc::clone(&self.0);
        Box::pin(async move {
            let request = PeerRequest::Checkpoint { wanted, position };
            match peers.call(from, request).await {
                Ok(PeerReply::Checkpoint(piece)) => Ok(piece),
                Ok(PeerReply::Refused { reason }) => Err(FetchError::Refused(reason)),
                Ok(PeerReply::Unsupported) => Err(FetchError::Refused(format!(
                    "node {from} is of a version without checkpoints"
                ))),
                Ok(other) => Err(FetchError::Refused(format!(
                    "node {from} answers {other:?}"
                ))),
                Err(error) => Err(FetchError::Refused(error.to_string())),
            }
        })
    }
}
