//! Brokers come, stop, and go: registrations, fencing, and what a fresh cluster begins with.
//!
//! A registration tells a restarted process from another node by the log directory, which only one
//! process at a time can have locked: the same directory takes over at once, another one is refused.
//! A broker with an empty disk must not pass for the one whose replicas were on the old disk.
//!
//! A registration begins fenced: until the metadata leader has heard the broker at the address that it
//! has registered, no client is sent there and no replica placed there.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{NodeId, TopicId};

use super::super::features;
use super::super::image::{BrokerRegistration, MetadataImage};
use super::super::records::{
    BrokerChangeRecord, BrokerEndpoint, ClusterRecord, FeatureLevelRecord, MetadataRecord,
    PartitionChangeRecord, RegisterBrokerRecord, UnregisterBrokerRecord,
};
use super::super::refusal::Refusal;
use super::registration_rules::{self, Said};
use super::voters::check_directory;

/// What a broker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// `node.id`.
    pub broker_id: NodeId,
    /// Identity of the process, new at every start.
    pub incarnation_id: Uuid,
    /// Advertised listeners, the one for other brokers first.
    pub endpoints: Vec<BrokerEndpoint>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Ids of its log directories.
    pub log_dirs: Vec<Uuid>,
    /// The voters that its configuration names, if it is one of them.
    pub voters: Vec<NodeId>,
}

/// What the metadata leader knows of who registers, besides what it says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registrant {
    /// Highest version of the protocol between nodes that it speaks.
    pub peer_protocol: u16,
    /// It is this process, which need not be heard.
    pub is_here: bool,
}

/// Records that a metadata log begins with; none for a log that has them. `named` are those by which
/// the metadata names its voters, if it does.
pub fn found_cluster(
    image: &MetadataImage,
    cluster_id: &str,
    voters: &[NodeId],
    named: &[MetadataRecord],
) -> Vec<MetadataRecord> {
    let is_new = image.cluster().is_none();
    let cluster = is_new.then(|| {
        MetadataRecord::Cluster(ClusterRecord {
            cluster_id: cluster_id.to_owned(),
            voters: voters.to_vec(),
        })
    });
    let named = named.iter().filter(|_| is_new).cloned();
    let features = features::INITIAL
        .iter()
        .filter(|_| image.features().is_empty())
        .map(|(name, level)| {
            MetadataRecord::FeatureLevel(FeatureLevelRecord {
                name: (*name).to_owned(),
                level: *level,
            })
        });
    features.chain(cluster).chain(named).collect()
}

/// Records that register the broker, `before` records later than the end of the image. Kafka's
/// broker epochs are offsets of the log, and so are ours.
pub fn register_broker(
    image: &MetadataImage,
    registration: &Registration,
    registrant: Registrant,
    before: usize,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let node = registration.broker_id;
    registration_rules::check(Said {
        node,
        endpoints: &registration.endpoints,
        rack: registration.rack.as_deref(),
        directories: &registration.log_dirs,
        voters: &registration.voters,
    })?;
    if registration.endpoints.is_empty() {
        let what = "it names no listener".to_owned();
        return Err(Refusal::BadRegistration { node, what });
    }
    let known = image.broker(node);
    if let Some(known) = known {
        check_directories(registration, registrant, known)?;
    }
    check_voters(image, node, &registration.voters)?;
    let before = i64::try_from(before).unwrap_or(0);
    let mut records = vec![MetadataRecord::RegisterBroker(RegisterBrokerRecord {
        broker_id: node,
        incarnation_id: registration.incarnation_id,
        broker_epoch: image.next_offset().plus(before).get(),
        endpoints: registration.endpoints.clone(),
        features: features::supported_by(registrant.peer_protocol),
        rack: registration.rack.clone(),
        fenced: !registrant.is_here,
        log_dirs: registration.log_dirs.clone(),
    })];
    if !registrant.is_here && known.is_some_and(|known| !known.fenced) {
        records.extend(leaderless(image, node));
    }
    Ok(records)
}

/// Whether a node that was never in the cluster may take part in it under this id.
pub fn check_newcomer(
    image: &MetadataImage,
    node: NodeId,
    directory: Uuid,
    voters: &[NodeId],
) -> Result<(), Refusal> {
    if let Some(known) = image.broker(node)
        && !known.log_dirs.contains(&directory)
    {
        return Err(other_directory(node, directory));
    }
    check_directory(image, node, directory)?;
    check_voters(image, node, voters)
}

fn check_directories(
    registration: &Registration,
    registrant: Registrant,
    known: &BrokerRegistration,
) -> Result<(), Refusal> {
    let is_known = |id: &Uuid| known.log_dirs.contains(id);
    if registration.log_dirs.iter().any(is_known) {
        return Ok(());
    }
    // By directories the two cannot be told apart. Then the first has the id while it is heard.
    let is_gone =
        known.fenced || registrant.is_here || known.incarnation_id == registration.incarnation_id;
    if known.log_dirs.is_empty() && is_gone {
        return Ok(());
    }
    let first = registration.log_dirs.first().copied();
    let node = registration.broker_id;
    Err(other_directory(node, first.unwrap_or(Uuid::ZERO)))
}

fn other_directory(node: NodeId, directory: Uuid) -> Refusal {
    Refusal::OtherDirectory {
        node,
        directory: TopicId::from(directory).to_string(),
    }
}

/// Nodes that disagree about the first voters would not be one cluster.
pub(super) fn check_voters(
    image: &MetadataImage,
    node: NodeId,
    named: &[NodeId],
) -> Result<(), Refusal> {
    let Some(cluster) = image.cluster() else {
        return Ok(());
    };
    // What the metadata says of its voters counts before what a configuration says.
    if image.has_voter_records() {
        return Ok(());
    }
    if named.is_empty() || super::leader_reports::same_nodes(named, &cluster.voters) {
        return Ok(());
    }
    Err(Refusal::OtherVoters {
        node,
        named: named.to_vec(),
        voters: cluster.voters.clone(),
    })
}

/// Fences a broker, or unfences it. A fenced broker gets no new replicas, and partitions that name
/// it as their leader have none until somebody leads them: `image` knows of nobody else.
pub fn fence(image: &MetadataImage, node: NodeId, fenced: bool) -> Vec<MetadataRecord> {
    let Some(broker) = image.broker(node).filter(|broker| broker.fenced != fenced) else {
        return Vec::new();
    };
    let mut records = vec![MetadataRecord::BrokerChange(BrokerChangeRecord {
        broker_id: node,
        broker_epoch: broker.broker_epoch,
        fenced: Some(fenced),
        stopping: false,
    })];
    if fenced {
        records.extend(leaderless(image, node));
    }
    records
}

/// Takes the broker out as the leader of its partitions. Its epochs stay, so that it is taken back if
/// it turns out to lead still.
fn leaderless(image: &MetadataImage, node: NodeId) -> impl Iterator<Item = MetadataRecord> {
    image.topics().flat_map(move |topic| {
        topic
            .indexed()
            .filter(move |(_, state)| state.leader == Some(node))
            .map(|(partition, state)| {
                MetadataRecord::PartitionChange(PartitionChangeRecord {
                    leader: Some(None),
                    leader_epoch: Some(state.leader_epoch),
                    ..PartitionChangeRecord::of(topic.id, partition)
                })
            })
    })
}

/// Takes down that a broker wants to stop; with `now`, that it goes. A registration that has been
/// replaced changes nothing.
pub fn stop_broker(
    image: &MetadataImage,
    node: NodeId,
    broker_epoch: i64,
    now: bool,
) -> Vec<MetadataRecord> {
    let is_current = |broker: &&BrokerRegistration| broker.broker_epoch == broker_epoch;
    match image.broker(node).filter(is_current) {
        Some(_) if now => fence(image, node, true),
        Some(broker) if !broker.stopping => {
            vec![MetadataRecord::BrokerChange(BrokerChangeRecord {
                broker_id: node,
                broker_epoch,
                fenced: None,
                stopping: true,
            })]
        }
        _ => Vec::new(),
    }
}

/// Forgets a broker. What it held stays assigned to it until it is reassigned. A node that is a
/// controller too, or only that, is forgotten as one: otherwise its id could never be used with
/// another disk. Whether it votes is another matter.
pub fn unregister_broker(
    image: &MetadataImage,
    node: NodeId,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let mut records = Vec::new();
    if let Some(broker) = image.broker(node) {
        records.extend(leaderless(image, node));
        records.push(MetadataRecord::UnregisterBroker(UnregisterBrokerRecord {
            broker_id: node,
            broker_epoch: broker.broker_epoch,
        }));
    }
    if image.controller(node).is_some() {
        records.push(MetadataRecord::UnregisterController(node));
    }
    if records.is_empty() {
        return Err(Refusal::BrokerNotRegistered(node));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::{apply, image_with_brokers, nodes, topic};
    use super::*;

    fn registration(node: i32, directory: u8) -> Registration {
        Registration {
            broker_id: NodeId::new(node),
            incarnation_id: Uuid::from_bytes([1; 16]),
            endpoints: vec![BrokerEndpoint {
                name: "PLAINTEXT".to_owned(),
                host: "h".to_owned(),
                port: 9092,
                security_protocol: 0,
            }],
            rack: None,
            log_dirs: vec![Uuid::from_bytes([directory; 16])],
            voters: vec![],
        }
    }

    const ELSEWHERE: Registrant = Registrant {
        peer_protocol: 2,
        is_here: false,
    };

    fn register(image: &mut MetadataImage, registration: &Registration) -> Result<(), Refusal> {
        let mut records = found_cluster(image, "cluster", &nodes(&[1, 2, 3]), &[]);
        let registered = register_broker(image, registration, ELSEWHERE, records.len())?;
        records.extend(registered);
        apply(image, &records);
        Ok(())
    }

    #[test]
    fn a_fresh_cluster_starts_with_its_features_and_an_older_one_keeps_them() {
        let mut image = MetadataImage::default();
        register(&mut image, &registration(1, 7)).expect("the first");
        let epoch = |image: &MetadataImage| image.broker(NodeId::new(1)).map(|it| it.broker_epoch);
        // Behind the features and the name of the cluster.
        let first = features::INITIAL.len() as i64 + 1;
        assert_eq!(epoch(&image), Some(first));
        assert!(!image.features().is_empty());
        register(&mut image, &registration(1, 7)).expect("a restart");
        assert_eq!(epoch(&image), Some(first + 1));
        let cluster = image.cluster().expect("named");
        assert_eq!(
            (cluster.cluster_id.as_str(), cluster.voters.len()),
            ("cluster", 3)
        );
        assert_eq!(found_cluster(&image, "other", &[], &[]), []);
    }

    #[test]
    fn another_disk_under_a_known_id_is_refused_until_the_old_one_is_unregistered() {
        let mut image = MetadataImage::default();
        register(&mut image, &registration(1, 7)).expect("the first");
        let refusal = register(&mut image, &registration(1, 8)).expect_err("another disk");
        let text = refusal.to_string();
        assert!(text.contains("kafka-cluster.sh unregister"), "{text}");
        let joining = check_newcomer(&image, NodeId::new(1), Uuid::from_bytes([8; 16]), &[]);
        assert_eq!(joining, Err(refusal));
        let records = unregister_broker(&image, NodeId::new(1)).expect("registered");
        apply(&mut image, &records);
        register(&mut image, &registration(1, 8)).expect("nobody has the id");
    }

    #[test]
    fn voters_that_disagree_are_refused() {
        let mut image = MetadataImage::default();
        register(&mut image, &registration(1, 7)).expect("the first");
        let with = |voters: &[i32]| Registration {
            voters: nodes(voters),
            ..registration(2, 9)
        };
        assert!(register(&mut image, &with(&[3, 1, 2])).is_ok());
        let refusal = register(&mut image, &with(&[1, 2])).expect_err("others");
        assert!(matches!(refusal, Refusal::OtherVoters { .. }));
    }

    #[test]
    fn a_registration_begins_fenced_until_the_broker_is_heard() {
        let mut image = image_with_brokers(&[2]);
        register(&mut image, &registration(1, 7)).expect("the first");
        let node = NodeId::new(1);
        let is_fenced = |image: &MetadataImage| image.broker(node).is_some_and(|it| it.fenced);
        assert!(is_fenced(&image));
        let records = fence(&image, node, false);
        apply(&mut image, &records);
        apply(&mut image, &topic("t", 3, &[&[1, 2]]));
        assert!(!is_fenced(&image));
        register(&mut image, &registration(1, 7)).expect("a restart");
        assert!(is_fenced(&image));
        let state = &image.topic("t").expect("exists").partitions[0];
        assert_eq!(
            state.leader, None,
            "a process that has just started leads nothing"
        );
        let here = Registrant {
            is_here: true,
            ..ELSEWHERE
        };
        let records = register_broker(&image, &registration(1, 7), here, 0).expect("the leader");
        apply(&mut image, &records);
        assert!(!is_fenced(&image), "it hears itself");
        let known = image.broker(node).expect("registered");
        assert_eq!(features::peer_protocol(&known.features), 2);
        assert_eq!(features::peer_protocol(&[]), 1);
    }

    #[test]
    fn nobody_registers_without_an_address_or_in_the_place_of_who_is_there() {
        let mut image = MetadataImage::default();
        let nowhere = Registration {
            endpoints: vec![],
            ..registration(1, 7)
        };
        let refusal = register(&mut image, &nowhere).expect_err("no listener");
        assert!(refusal.to_string().ends_with("it names no listener"));
        let negative = register(&mut image, &registration(-1, 7));
        assert!(matches!(negative, Err(Refusal::BadRegistration { .. })));
        register(&mut image, &registration(1, 7)).expect("the first");
        let without_disk = Registration {
            log_dirs: vec![],
            ..registration(1, 7)
        };
        let refusal = register(&mut image, &without_disk).expect_err("another disk");
        assert!(matches!(refusal, Refusal::OtherDirectory { .. }));
        let known = TopicId::from(Uuid::from_bytes([7; 16])).to_string();
        assert!(!refusal.to_string().contains(&known), "{refusal}");

        // Registered without a directory, and heard.
        let mut image = image_with_brokers(&[1]);
        let other = register(&mut image, &registration(1, 7));
        assert!(matches!(other, Err(Refusal::OtherDirectory { .. })));
        let records = fence(&image, NodeId::new(1), true);
        apply(&mut image, &records);
        register(&mut image, &registration(1, 7)).expect("the other one is gone");
    }

    #[test]
    fn a_fenced_broker_leads_nothing_and_keeps_its_epochs() {
        let mut image = image_with_brokers(&[1, 2]);
        apply(&mut image, &topic("t", 3, &[&[1, 2], &[2, 1]]));
        let records = fence(&image, NodeId::new(1), true);
        assert_eq!(records.len(), 2);
        apply(&mut image, &records);
        let partitions = &image.topic("t").expect("exists").partitions;
        assert_eq!(partitions[0].leader, None);
        assert_eq!(partitions[0].leader_epoch.get(), 0);
        assert_eq!(partitions[1].leader, Some(NodeId::new(2)));
        assert_eq!(fence(&image, NodeId::new(1), true), []);
        let records = fence(&image, NodeId::new(1), false);
        apply(&mut image, &records);
        assert!(image.broker(NodeId::new(1)).is_some_and(|it| !it.fenced));
        assert_eq!(fence(&image, NodeId::new(9), true), []);
    }

    #[test]
    fn a_broker_stops_in_two_steps_and_an_older_process_of_it_in_none() {
        let mut image = image_with_brokers(&[1, 2]);
        let node = NodeId::new(1);
        assert_eq!(stop_broker(&image, node, 7, true), []);
        let records = stop_broker(&image, node, 1, false);
        apply(&mut image, &records);
        assert!(
            image
                .broker(node)
                .is_some_and(|it| it.stopping && !it.fenced)
        );
        assert_eq!(stop_broker(&image, node, 1, false), []);
        let records = stop_broker(&image, node, 1, true);
        apply(&mut image, &records);
        assert!(image.broker(node).is_some_and(|it| it.fenced));
    }
}
