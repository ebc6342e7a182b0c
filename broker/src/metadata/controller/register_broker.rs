//! A broker's registration at its start, and what a fresh cluster begins with.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;

use super::super::features;
use super::super::image::MetadataImage;
use super::super::records::{
    BrokerEndpoint, FeatureLevelRecord, MetadataRecord, RegisterBrokerRecord,
};

/// What a broker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// `node.id`.
    pub broker_id: NodeId,
    /// Identity of the process, new at every start.
    pub incarnation_id: Uuid,
    /// Advertised listeners.
    pub endpoints: Vec<BrokerEndpoint>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Ids of its log directories.
    pub log_dirs: Vec<Uuid>,
    /// The voters that its configuration names, if it is one of them.
    pub voters: Vec<NodeId>,
}

/// Records that register the broker; on an empty log, after the features that a cluster starts
/// with. Kafka's broker epochs are offsets of the log, and so are ours.
pub fn register_broker(image: &MetadataImage, registration: &Registration) -> Vec<MetadataRecord> {
    let mut records: Vec<_> = features::INITIAL
        .iter()
        .filter(|_| image.features().is_empty())
        .map(|(name, level)| {
            MetadataRecord::FeatureLevel(FeatureLevelRecord {
                name: (*name).to_owned(),
                level: *level,
            })
        })
        .collect();
    let before = i64::try_from(records.len()).unwrap_or(0);
    records.push(MetadataRecord::RegisterBroker(RegisterBrokerRecord {
        broker_id: registration.broker_id,
        incarnation_id: registration.incarnation_id,
        broker_epoch: image.next_offset().plus(before).get(),
        endpoints: registration.endpoints.clone(),
        features: features::supported(),
        rack: registration.rack.clone(),
        fenced: false,
        log_dirs: registration.log_dirs.clone(),
    }));
    records
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::apply;
    use super::*;

    #[test]
    fn a_fresh_cluster_starts_with_its_features_and_an_older_one_keeps_them() {
        let registration = Registration {
            broker_id: NodeId::new(1),
            incarnation_id: Uuid::from_bytes([1; 16]),
            endpoints: vec![],
            rack: None,
            log_dirs: vec![],
            voters: vec![],
        };
        let mut image = MetadataImage::default();
        let records = register_broker(&image, &registration);
        assert!(matches!(records[0], MetadataRecord::FeatureLevel(_)));
        apply(&mut image, &records);
        let epoch = |image: &MetadataImage| image.broker(NodeId::new(1)).map(|it| it.broker_epoch);
        assert_eq!(epoch(&image), Some(1));
        let records = register_broker(&image, &registration);
        assert_eq!(records.len(), 1);
        apply(&mut image, &records);
        assert_eq!(epoch(&image), Some(2));
    }
}
