//! Controllers come, and the voters of the metadata quorum change.
//!
//! Two kinds of clusters, told apart by `kraft.version` as in Kafka:
//! - at 0 the voters are those that every configuration names (`controller.quorum.voters`), by their
//!   ids, and never change;
//! - at 1 the metadata names them (KIP-853), by id and data directory. What it names is a wish: the
//!   members of the metadata's Raft group follow it, one joint change at a time.
//!
//! A node is a voter by its directory. Another directory under a voter's id is a disk that has
//! forgotten its votes, and is refused until the voter has been removed.

use std::fmt;

use odradek_protocol::codec::Uuid;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{NodeId, TopicId};

use super::super::features;
use super::super::image::MetadataImage;
use super::super::records::{
    BrokerEndpoint, FeatureLevelRecord, MetadataRecord, RegisterControllerRecord, VoterEndpoint,
    VoterRecord,
};
use super::super::refusal::Refusal;
use super::register_broker::check_voters;
use super::registration_rules::{self, Said};

/// What a controller says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRegistration {
    /// `node.id`.
    pub controller_id: NodeId,
    /// Identity of the process, new at every start.
    pub incarnation_id: Uuid,
    /// Its listeners for other controllers, the first of `controller.listener.names` first.
    pub endpoints: Vec<BrokerEndpoint>,
    /// Id of its data directory.
    pub directory: Uuid,
    /// The voters that its configuration names, if it names any.
    pub voters: Vec<NodeId>,
}

/// A replica of the metadata log, as Kafka tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaKey {
    /// `node.id`.
    pub id: NodeId,
    /// Id of its data directory.
    pub directory: Uuid,
}

impl ReplicaKey {
    fn of(voter: &VoterRecord) -> Self {
        Self {
            id: voter.id,
            directory: voter.directory,
        }
    }
}

impl fmt::Display for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, directory) = (self.id, TopicId::from(self.directory));
        write!(f, "ReplicaKey(id={id}, directoryId={directory})")
    }
}

fn keys(voters: &[VoterRecord]) -> String {
    let keys: Vec<String> = voters
        .iter()
        .map(|voter| ReplicaKey::of(voter).to_string())
        .collect();
    format!("[{}]", keys.join(", "))
}

/// What a change of the voters is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoterChange {
    /// One more.
    Add,
    /// One less.
    Remove,
}

impl VoterChange {
    const fn verb(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Remove => "Remove",
        }
    }

    const fn gerund(self) -> &'static str {
        match self {
            Self::Add => "adding",
            Self::Remove => "removing",
        }
    }
}

/// Why the voters do not change, in Kafka's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VoterRefusal {
    /// The request is for another cluster.
    #[error("The given id \"{given}\" doesn't match the cluster id \"{ours}\"")]
    OtherCluster {
        /// The cluster that is asked.
        ours: String,
        /// The one that was meant.
        given: String,
    },
    /// No id, or no directory.
    #[error("{} voter request didn't include a valid voter", .0.verb())]
    InvalidVoter(VoterChange),
    /// It could not be reached.
    #[error(
        "Add voter request didn't include the endpoint ({given}) for the default listener \
         ListenerName({wanted})"
    )]
    NoListener {
        /// The listeners that it names.
        given: String,
        /// The listener by which this cluster's controllers reach one another.
        wanted: String,
    },
    /// The configurations say who votes.
    #[error("Cluster doesn't support {} voter because the kraft.version feature is 0", .0.gerund())]
    Fixed(VoterChange),
    /// An earlier change is not complete.
    #[error("Request timed out waiting for leader to handle previous voter change request")]
    Pending,
    /// A node of this id votes.
    #[error("The voter id for {voter} is already part of the set of voters {voters}.")]
    Duplicate {
        /// Who was to be added.
        voter: ReplicaKey,
        /// Who votes.
        voters: String,
    },
    /// It has not what it would vote on.
    #[error("Aborted add voter operation for {0} since it is lagging behind")]
    LagsBehind(ReplicaKey),
    /// It does not vote, or nobody else does.
    #[error("Cannot remove voter {voter} from the set of voters {voters}")]
    NotFound {
        /// Who was to be removed.
        voter: ReplicaKey,
        /// Who votes.
        voters: String,
    },
    /// Another node of this id votes.
    #[error(
        "node {node} votes on the metadata with another data directory than {directory}: a disk that \
         has forgotten its votes could help to elect two leaders. To replace the controller, run \
         kafka-metadata-quorum.sh remove-controller --controller-id {node} --controller-directory-id \
         with the id that kafka-metadata-quorum.sh describe --replication names, and start this one \
         again"
    )]
    OtherDirectory {
        /// The node.
        node: NodeId,
        /// Id of the directory that it comes with.
        directory: TopicId,
    },
    /// A controller of this id is registered with another disk, and the voters are fixed.
    #[error(
        "controller {node} is registered with another data directory than {directory}: a disk that \
         has forgotten its votes must not pass for the one that gave them. To replace the controller for \
         good, stop it, run kafka-cluster.sh unregister --id {node} against a broker, and start this one \
         again; it votes once it has the metadata"
    )]
    OtherFixedDirectory {
        /// The node.
        node: NodeId,
        /// Id of the directory that it comes with.
        directory: TopicId,
    },
}

impl VoterRefusal {
    /// The code that says it on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::OtherCluster { .. } => ErrorCode::InconsistentClusterId,
            Self::InvalidVoter(_) | Self::NoListener { .. } => ErrorCode::InvalidRequest,
            Self::Fixed(_) => ErrorCode::UnsupportedVersion,
            Self::Pending | Self::LagsBehind(_) => ErrorCode::RequestTimedOut,
            Self::Duplicate { .. } => ErrorCode::DuplicateVoter,
            Self::NotFound { .. } => ErrorCode::VoterNotFound,
            Self::OtherDirectory { .. } | Self::OtherFixedDirectory { .. } => {
                ErrorCode::InvalidVoterKey
            }
        }
    }
}

/// Records that register the controller, which speaks versions of the protocol between nodes up to
/// `peer_protocol`. A voter that has moved is found at its new address.
pub fn register_controller(
    image: &MetadataImage,
    registration: &ControllerRegistration,
    peer_protocol: u16,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let (node, directory) = (registration.controller_id, registration.directory);
    registration_rules::check(Said {
        node,
        endpoints: &registration.endpoints,
        rack: None,
        directories: &[],
        voters: &registration.voters,
    })?;
    check_directory(image, node, directory)?;
    check_voters(image, node, &registration.voters)?;
    let mut records = vec![MetadataRecord::RegisterController(
        RegisterControllerRecord {
            controller_id: node,
            incarnation_id: registration.incarnation_id,
            endpoints: registration.endpoints.clone(),
            features: features::supported_by(peer_protocol),
            directory,
        },
    )];
    let endpoints = voter_endpoints(&registration.endpoints);
    let mut voters = image.voters().to_vec();
    if let Some(voter) = voters
        .iter_mut()
        .find(|voter| voter.id == node && voter.endpoints != endpoints)
    {
        voter.endpoints = endpoints;
        records.push(MetadataRecord::Voters(voters));
    }
    Ok(records)
}

fn voter_endpoints(endpoints: &[BrokerEndpoint]) -> Vec<VoterEndpoint> {
    endpoints
        .iter()
        .map(|endpoint| VoterEndpoint {
            name: endpoint.name.clone(),
            host: endpoint.host.clone(),
            port: endpoint.port,
        })
        .collect()
}

/// Whether a controller may come with this directory.
pub fn check_directory(
    image: &MetadataImage,
    node: NodeId,
    directory: Uuid,
) -> Result<(), VoterRefusal> {
    if image.has_voter_records() {
        let voter = image.voters().iter().find(|voter| voter.id == node);
        return match voter.is_some_and(|voter| voter.directory != directory) {
            true => Err(VoterRefusal::OtherDirectory {
                node,
                directory: directory.into(),
            }),
            false => Ok(()),
        };
    }
    let known = image.controller(node).map(|known| known.directory);
    match known.is_some_and(|known| !known.is_zero() && known != directory) {
        true => Err(VoterRefusal::OtherFixedDirectory {
            node,
            directory: directory.into(),
        }),
        false => Ok(()),
    }
}

/// Whether this voter may be added, but for what its log has: `listener` is the one by which the
/// controllers of this cluster reach one another.
pub fn check_addition(
    image: &MetadataImage,
    voter: &VoterRecord,
    listener: &str,
) -> Result<(), VoterRefusal> {
    if voter.id.get() < 0 || voter.directory.is_zero() {
        return Err(VoterRefusal::InvalidVoter(VoterChange::Add));
    }
    let has_listener = voter
        .endpoints
        .iter()
        .any(|endpoint| endpoint.name.eq_ignore_ascii_case(listener));
    if !has_listener {
        return Err(VoterRefusal::NoListener {
            given: described(&voter.endpoints),
            wanted: listener.to_owned(),
        });
    }
    if !image.has_voter_records() {
        return Err(VoterRefusal::Fixed(VoterChange::Add));
    }
    if image.voters().iter().any(|known| known.id == voter.id) {
        return Err(VoterRefusal::Duplicate {
            voter: ReplicaKey::of(voter),
            voters: keys(image.voters()),
        });
    }
    Ok(())
}

fn described(endpoints: &[VoterEndpoint]) -> String {
    let each: Vec<String> = endpoints
        .iter()
        .map(|endpoint| {
            let VoterEndpoint { name, host, port } = endpoint;
            format!("ListenerName({name})={host}/<unresolved>:{port}")
        })
        .collect();
    format!("Endpoints(endpoints={{{}}})", each.join(", "))
}

/// The voters with one more, who `has_caught_up` with the metadata.
pub fn add_voter(
    image: &MetadataImage,
    voter: VoterRecord,
    listener: &str,
    has_caught_up: bool,
) -> Result<Vec<MetadataRecord>, VoterRefusal> {
    check_addition(image, &voter, listener)?;
    let is_registered = image
        .controller(voter.id)
        .is_some_and(|controller| controller.directory == voter.directory);
    if !is_registered || !has_caught_up {
        return Err(VoterRefusal::LagsBehind(ReplicaKey::of(&voter)));
    }
    let mut voters = image.voters().to_vec();
    voters.push(voter);
    voters.sort_by_key(|voter| voter.id);
    Ok(vec![MetadataRecord::Voters(voters)])
}

/// Whether this voter may be removed: there is always one left.
pub fn check_removal(image: &MetadataImage, voter: ReplicaKey) -> Result<(), VoterRefusal> {
    remove_voter(image, voter).map(|_| ())
}

/// The voters with one less.
pub fn remove_voter(
    image: &MetadataImage,
    voter: ReplicaKey,
) -> Result<Vec<MetadataRecord>, VoterRefusal> {
    if voter.id.get() < 0 || voter.directory.is_zero() {
        return Err(VoterRefusal::InvalidVoter(VoterChange::Remove));
    }
    if !image.has_voter_records() {
        return Err(VoterRefusal::Fixed(VoterChange::Remove));
    }
    let left: Vec<VoterRecord> = image
        .voters()
        .iter()
        .filter(|known| ReplicaKey::of(known) != voter)
        .cloned()
        .collect();
    if left.is_empty() || left.len() == image.voters().len() {
        return Err(VoterRefusal::NotFound {
            voter,
            voters: keys(image.voters()),
        });
    }
    Ok(vec![MetadataRecord::Voters(left)])
}

/// Records by which the metadata names its voters from now on: those that the configurations have
/// named, as they have registered. `Err` is a voter that has not.
pub fn name_voters(image: &MetadataImage) -> Result<Vec<MetadataRecord>, NodeId> {
    let mut voters = Vec::new();
    for id in image.voter_ids() {
        let controller = image
            .controller(id)
            .filter(|controller| !controller.directory.is_zero())
            .ok_or(id)?;
        voters.push(VoterRecord {
            id,
            directory: controller.directory,
            endpoints: voter_endpoints(&controller.endpoints),
        });
    }
    Ok(voter_records(voters))
}

/// Records by which the metadata of a new cluster names its only voter.
pub fn name_this_voter(registration: &ControllerRegistration) -> Vec<MetadataRecord> {
    voter_records(vec![VoterRecord {
        id: registration.controller_id,
        directory: registration.directory,
        endpoints: voter_endpoints(&registration.endpoints),
    }])
}

/// Records that switch to voters named by the metadata.
fn voter_records(voters: Vec<VoterRecord>) -> Vec<MetadataRecord> {
    vec![
        MetadataRecord::FeatureLevel(FeatureLevelRecord {
            name: features::KRAFT_VERSION.to_owned(),
            level: features::VOTERS_IN_METADATA,
        }),
        MetadataRecord::Voters(voters),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::{apply, nodes};
    use super::super::register_broker::found_cluster;
    use super::*;

    fn directory(number: u8) -> Uuid {
        Uuid::from_bytes([number; 16])
    }

    fn voter(id: i32, number: u8) -> VoterRecord {
        VoterRecord {
            id: NodeId::new(id),
            directory: directory(number),
            endpoints: vec![VoterEndpoint {
                name: "CONTROLLER".to_owned(),
                host: "h".to_owned(),
                port: 9093,
            }],
        }
    }

    fn registration(id: i32, number: u8, port: u16) -> ControllerRegistration {
        ControllerRegistration {
            controller_id: NodeId::new(id),
            incarnation_id: Uuid::ZERO,
            endpoints: vec![BrokerEndpoint {
                name: "CONTROLLER".to_owned(),
                host: "h".to_owned(),
                port,
                security_protocol: 0,
            }],
            directory: directory(number),
            voters: vec![],
        }
    }

    fn register(image: &mut MetadataImage, id: i32, number: u8, port: u16) -> Result<(), Refusal> {
        let records = register_controller(image, &registration(id, number, port), 2)?;
        apply(image, &records);
        Ok(())
    }

    /// A cluster whose metadata names node 1 as its only voter.
    fn dynamic() -> MetadataImage {
        let mut image = MetadataImage::default();
        let records = found_cluster(
            &image,
            "cluster",
            &nodes(&[1]),
            &name_this_voter(&registration(1, 1, 9093)),
        );
        apply(&mut image, &records);
        register(&mut image, 1, 1, 9093).expect("the voter itself");
        image
    }

    #[test]
    fn a_voter_is_added_once_it_is_registered_with_its_directory_and_removed_by_it() {
        let mut image = dynamic();
        let lagging = add_voter(&image, voter(2, 2), "CONTROLLER", true).expect_err("not there");
        assert_eq!(lagging.code(), ErrorCode::RequestTimedOut);
        register(&mut image, 2, 2, 9094).expect("anybody may");
        for (number, has_caught_up) in [(3, true), (2, false)] {
            let lagging = add_voter(&image, voter(2, number), "CONTROLLER", has_caught_up);
            let lagging = lagging.expect_err("another disk, or behind");
            assert_eq!(lagging.code(), ErrorCode::RequestTimedOut);
        }
        let records = add_voter(&image, voter(2, 2), "controller", true).expect("registered");
        apply(&mut image, &records);
        assert_eq!(image.voter_ids(), nodes(&[1, 2]).into_iter().collect());
        for number in [2, 3] {
            let again = add_voter(&image, voter(2, number), "CONTROLLER", true).expect_err("again");
            assert_eq!(again.code(), ErrorCode::DuplicateVoter);
        }
        let of = |id: i32, number: u8| ReplicaKey {
            id: NodeId::new(id),
            directory: directory(number),
        };
        for (id, number) in [(2, 9), (3, 3)] {
            let unknown = remove_voter(&image, of(id, number)).expect_err("no voter");
            assert_eq!(unknown.code(), ErrorCode::VoterNotFound);
        }
        let records = remove_voter(&image, of(1, 1)).expect("a voter");
        apply(&mut image, &records);
        let last = remove_voter(&image, of(2, 2)).expect_err("the last one");
        assert_eq!(last.code(), ErrorCode::VoterNotFound);
        assert_eq!(image.voter_ids(), nodes(&[2]).into_iter().collect());
    }

    #[test]
    fn requests_that_name_no_voter_or_no_way_to_it_are_refused_before_anything_else() {
        let fixed = MetadataImage::default();
        for image in [&fixed, &dynamic()] {
            let mut nameless = voter(-1, 2);
            assert_eq!(
                check_addition(image, &nameless, "CONTROLLER"),
                Err(VoterRefusal::InvalidVoter(VoterChange::Add))
            );
            nameless = voter(2, 0);
            assert!(check_addition(image, &nameless, "CONTROLLER").is_err());
            let elsewhere = check_addition(image, &voter(2, 2), "OTHER").expect_err("no such");
            assert_eq!(
                elsewhere.to_string(),
                "Add voter request didn't include the endpoint \
                 (Endpoints(endpoints={ListenerName(CONTROLLER)=h/<unresolved>:9093})) for the \
                 default listener ListenerName(OTHER)"
            );
        }
        assert_eq!(
            check_addition(&fixed, &voter(2, 2), "CONTROLLER"),
            Err(VoterRefusal::Fixed(VoterChange::Add))
        );
    }

    #[test]
    fn another_disk_under_a_voters_id_is_refused_until_the_voter_is_removed() {
        let mut image = dynamic();
        register(&mut image, 2, 2, 9094).expect("an observer");
        register(&mut image, 2, 5, 9094).expect("an observer has promised nothing");
        let records = add_voter(&image, voter(2, 5), "CONTROLLER", true).expect("registered");
        apply(&mut image, &records);
        let refusal = register(&mut image, 2, 6, 9094).expect_err("another disk");
        assert!(
            refusal.to_string().contains("remove-controller"),
            "{refusal}"
        );
        let key = ReplicaKey {
            id: NodeId::new(2),
            directory: directory(5),
        };
        let records = remove_voter(&image, key).expect("a voter");
        apply(&mut image, &records);
        register(&mut image, 2, 6, 9094).expect("no voter has the id");
    }

    #[test]
    fn a_voter_that_has_moved_is_found_at_its_new_address() {
        let mut image = dynamic();
        register(&mut image, 1, 1, 7000).expect("the same disk");
        assert_eq!(image.voters()[0].endpoints[0].port, 7000);
    }

    #[test]
    fn voters_of_configurations_are_named_by_the_metadata_once_all_are_registered() {
        let mut image = MetadataImage::default();
        let records = found_cluster(&image, "cluster", &nodes(&[1, 2]), &[]);
        apply(&mut image, &records);
        register(&mut image, 1, 1, 9093).expect("a voter");
        assert_eq!(name_voters(&image), Err(NodeId::new(2)));
        register(&mut image, 2, 2, 9093).expect("a voter");
        let refusal = register(&mut image, 2, 3, 9093).expect_err("another disk");
        assert!(refusal.to_string().contains("kafka-cluster.sh unregister"));
        let records = name_voters(&image).expect("all are there");
        apply(&mut image, &records);
        assert!(image.has_voter_records());
        assert_eq!(image.voters(), [voter(1, 1), voter(2, 2)]);
    }
}
