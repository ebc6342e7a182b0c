//! What a change of the metadata means to this broker, in the order in which it must happen.
//!
//! For every image: dynamic settings count first, since partitions are opened and changed by them;
//! then the limits of connections and of replication; then partitions are opened, changed and removed. Images that come
//! meanwhile are skipped but for the last. Group coordinators follow by themselves.

use std::sync::Arc;

use odradek_protocol::ids::NodeId;
use tokio::sync::watch;

use crate::config::ConfigStore;
use crate::metadata::image::{ConfigResource, MetadataImage};
use crate::partitions::PartitionManager;
use crate::peer::Throttles;
use crate::server::{ConnectionLimits, Connections};

/// See the module.
#[derive(Debug)]
pub struct Follower {
    /// This node.
    pub node_id: NodeId,
    /// Takes dynamic settings.
    pub config: Arc<ConfigStore>,
    /// Is held to what the metadata says.
    pub partitions: Arc<PartitionManager>,
    /// Takes the limits of connections.
    pub connections: Connections,
    /// Takes the rates of replication and whom they concern, where there are other nodes.
    pub throttles: Option<Arc<Throttles>>,
}

impl Follower {
    /// Follows until there are no more images.
    pub async fn run(self, mut images: watch::Receiver<Arc<MetadataImage>>) {
        let mut before: Option<Arc<MetadataImage>> = None;
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            self.apply_settings(before.as_deref(), &image);
            if let Some(throttles) = &self.throttles {
                throttles.follow(&image);
            }
            self.partitions.reconcile(Arc::clone(&image)).await;
            before = Some(image);
            if images.changed().await.is_err() {
                return;
            }
        }
    }

    fn apply_settings(&self, before: Option<&MetadataImage>, image: &MetadataImage) {
        let for_all = ConfigResource::all_brokers();
        let for_this = ConfigResource::broker(self.node_id);
        let unchanged = before.is_some_and(|before| {
            before.config(&for_all) == image.config(&for_all)
                && before.config(&for_this) == image.config(&for_this)
        });
        if unchanged {
            return;
        }
        let settings = |resource| image.config(resource).as_ref().clone();
        match self
            .config
            .set_dynamic(settings(&for_all), settings(&for_this))
        {
            Ok(config) => {
                self.connections.set_limits(ConnectionLimits::of(&config));
                if let Some(throttles) = &self.throttles {
                    throttles.set_rates(&config.peers);
                }
            }
            // Each was checked before it was stored; together with the settings of this start they
            // may contradict each other all the same.
            Err(error) => tracing::error!(%error, "dynamic settings are not applied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::records::{ConfigRecord, MetadataRecord};
    use crate::partitions::fixture::Fixture;

    /// Kafka's number of the resource type "broker".
    const BROKER: i8 = 4;

    fn set(broker: &str, name: &str, value: Option<&str>) -> MetadataRecord {
        MetadataRecord::Config(ConfigRecord {
            resource_type: BROKER,
            resource_name: broker.to_owned(),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        })
    }

    fn image_after(before: &MetadataImage, record: MetadataRecord) -> Arc<MetadataImage> {
        let mut image = before.clone();
        let next = image.next_offset().plus(1);
        image.apply(&[record], next).expect("it applies");
        Arc::new(image)
    }

    #[tokio::test]
    async fn dynamic_settings_of_all_brokers_and_of_this_one_count_as_they_come_and_go() {
        let fixture = Fixture::new();
        let config = ConfigStore::defaults();
        let follower = Follower {
            node_id: NodeId::new(1),
            config: Arc::clone(&config),
            partitions: Arc::clone(&fixture.manager),
            connections: Connections::new(ConnectionLimits::of(&config.load())),
            throttles: None,
        };
        let (sender, images) = watch::channel(Arc::new(MetadataImage::default()));
        let running = tokio::spawn(follower.run(images));
        for (record, expected) in [
            (set("", "max.connections", Some("7")), 7),
            (set("2", "max.connections", Some("8")), 7),
            (set("1", "max.connections", Some("9")), 9),
            (set("1", "max.connections", None), 7),
        ] {
            let image = image_after(&sender.borrow().clone(), record);
            let next = image.next_offset();
            sender.send_replace(image);
            fixture.manager.wait_until_reconciled(next).await;
            assert_eq!(config.load().max_connections, expected);
        }
        drop(sender);
        running.await.expect("it ends with the images");
    }
}
