//! Keeps the transaction coordinators where they belong, and tells them the level of
//! `transaction.version`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::names::TxnVersion;
use super::service::{STATE_TOPIC, Service};
use crate::coordinator::hosting::Hosting;
use crate::metadata::features::TRANSACTION_VERSION;
use crate::metadata::image::MetadataImage;
use crate::partitions::PartitionManager;

/// Follows the metadata until its sender is gone. Records that take longer than `commit_timeout` to
/// commit are given up.
pub async fn attend(
    transactions: Arc<Service>,
    partitions: Arc<PartitionManager>,
    commit_timeout: Duration,
    mut images: watch::Receiver<Arc<MetadataImage>>,
) {
    let coordinators = Arc::clone(&transactions);
    let mut hosting = Hosting::new(STATE_TOPIC, coordinators, partitions, commit_timeout);
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        let level = image.features().get(TRANSACTION_VERSION).copied();
        let version = TxnVersion::of_level(level.unwrap_or_default());
        transactions.set_version(version).await;
        hosting.attend(&image).await;
        if hosting.changed(&mut images).await.is_err() {
            return;
        }
    }
}
