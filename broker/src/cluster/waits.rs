//! What a node that has registered waits for.

use std::time::Duration;

use odradek_protocol::ids::{NodeId, Offset};
use tokio::time::Instant;

use crate::metadata::controller::register_broker::fence;
use crate::metadata::service::{MetadataError, MetadataService};

/// How long one may wait before the log says so.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// How often a fenced broker looks whether it leads the metadata itself.
const FENCED_LOOK_PERIOD: Duration = Duration::from_millis(250);

/// Waits until the metadata of this node is known up to `known`.
pub(super) async fn wait_for_metadata(
    metadata: &MetadataService,
    known: Offset,
) -> Result<(), MetadataError> {
    let image = metadata.wait_for(known);
    tokio::pin!(image);
    loop {
        match tokio::time::timeout(TOLD_EVERY, &mut image).await {
            Ok(image) => {
                image?;
                return Ok(());
            }
            Err(_) => tracing::info!("waiting for the metadata of the cluster"),
        }
    }
}

/// Waits until the metadata leader has heard this broker. If that is this node itself, it need not.
pub(super) async fn wait_until_unfenced(metadata: &MetadataService, node: NodeId) {
    let mut images = metadata.subscribe();
    let mut told = Instant::now();
    loop {
        let is_fenced = {
            let image = images.borrow_and_update();
            image.broker(node).is_some_and(|broker| broker.fenced)
        };
        if !is_fenced {
            return;
        }
        if metadata.is_leading() {
            let unfenced = metadata.run(move |image| (fence(image, node, false), ()));
            if let Err(error) = unfenced.await {
                tracing::debug!(%error, "not unfenced yet");
            }
        }
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            tracing::info!("waiting to be heard by the metadata leader");
        }
        // What was refused is tried again.
        let changed = tokio::time::timeout(FENCED_LOOK_PERIOD, images.changed());
        if let Ok(Err(_)) = changed.await {
            // Nothing follows the metadata any more: this node stops.
            return;
        }
    }
}
