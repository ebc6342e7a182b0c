//! Features (KIP-584): what this version could be finalized at, and what a fresh cluster is.
//!
//! Clients choose their behaviour by finalized features: `transaction.version` 2 makes a producer
//! use KIP-890, `group.version` 1 promises the groups of KIP-848. A feature is listed here once
//! what it promises works. `metadata.version` says in which version of Kafka's schemas the
//! metadata log is written, and tools print it. `kraft.version` 1 says that the metadata itself
//! names its voters (KIP-853), so that they can be changed.

use super::image::MetadataImage;
use super::records::SupportedFeature;

/// Name of the version of the metadata log's records.
pub const METADATA_VERSION: &str = "metadata.version";
/// Name of the feature of voters that can be changed.
pub const KRAFT_VERSION: &str = "kraft.version";
/// Level of [`KRAFT_VERSION`] at which the metadata names its voters.
pub const VOTERS_IN_METADATA: i16 = 1;

/// Level of [`METADATA_VERSION`] whose schemas are written: Kafka's 4.4-IV2.
const METADATA_VERSION_LEVEL: i16 = 33;

/// Name of the version of the group protocols.
pub const GROUP_VERSION: &str = "group.version";

/// Level of [`GROUP_VERSION`] from which on there are consumer groups (KIP-848).
const WITH_CONSUMER_GROUPS: i16 = 1;

/// Name of how transactions work: from 2 on as KIP-890 says.
pub const TRANSACTION_VERSION: &str = "transaction.version";
/// Highest level of [`TRANSACTION_VERSION`].
const TRANSACTION_VERSION_LEVEL: i16 = 2;

/// Name under which a registration tells which versions of the protocol between nodes the node speaks.
/// Not a feature that can be finalized: nobody but the metadata leader looks at it.
const PEER_PROTOCOL: &str = "odradek.peer.protocol";
/// Lowest version of it, spoken by every node.
const PEER_PROTOCOL_FIRST: u16 = 1;

/// Finalized levels of a fresh cluster. The first record of a metadata log is the first of them.
pub const INITIAL: &[(&str, i16)] = &[
    (METADATA_VERSION, METADATA_VERSION_LEVEL),
    (GROUP_VERSION, WITH_CONSUMER_GROUPS),
    (TRANSACTION_VERSION, TRANSACTION_VERSION_LEVEL),
];

/// Whether the cluster has consumer groups.
pub fn serves_consumer_groups(image: &MetadataImage) -> bool {
    let level = image.features().get(GROUP_VERSION);
    level.is_some_and(|level| *level >= WITH_CONSUMER_GROUPS)
}

/// A feature's name with its lowest and highest level.
const SUPPORTED: &[(&str, i16, i16)] = &[
    (GROUP_VERSION, WITH_CONSUMER_GROUPS, WITH_CONSUMER_GROUPS),
    (KRAFT_VERSION, 0, VOTERS_IN_METADATA),
    (
        METADATA_VERSION,
        METADATA_VERSION_LEVEL,
        METADATA_VERSION_LEVEL,
    ),
    (TRANSACTION_VERSION, 0, TRANSACTION_VERSION_LEVEL),
];

/// Features of this broker with their lowest and highest levels.
pub fn supported() -> Vec<SupportedFeature> {
    SUPPORTED
        .iter()
        .map(|(name, min_level, max_level)| SupportedFeature {
            name: (*name).to_owned(),
            min_level: *min_level,
            max_level: *max_level,
        })
        .collect()
}

/// The same of a node that speaks versions of the protocol between nodes up to `peer_protocol`.
pub fn supported_by(peer_protocol: u16) -> Vec<SupportedFeature> {
    let mut features = supported();
    features.push(SupportedFeature {
        name: PEER_PROTOCOL.to_owned(),
        min_level: i16::try_from(PEER_PROTOCOL_FIRST).unwrap_or(i16::MAX),
        max_level: i16::try_from(peer_protocol).unwrap_or(i16::MAX),
    });
    features
}

/// Highest version of the protocol between nodes that a node with these features is known to speak.
pub fn peer_protocol(features: &[SupportedFeature]) -> u16 {
    let told = features.iter().find(|it| it.name == PEER_PROTOCOL);
    told.and_then(|it| u16::try_from(it.max_level).ok())
        .unwrap_or(PEER_PROTOCOL_FIRST)
}
