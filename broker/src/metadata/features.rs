//! Features (KIP-584): what this version could be finalized at, and what a fresh cluster is.
//!
//! Clients choose their behaviour by finalized features: `transaction.version` 2 makes a producer
//! use KIP-890, `group.version` 1 promises the groups of KIP-848. A feature is listed here once
//! what it promises works. `metadata.version` says in which version of Kafka's schemas the
//! metadata log is written, and tools print it.

use super::records::SupportedFeature;

/// Name of the version of the metadata log's records.
pub const METADATA_VERSION: &str = "metadata.version";

/// Level of [`METADATA_VERSION`] whose schemas are written: Kafka's 4.4-IV2.
const METADATA_VERSION_LEVEL: i16 = 33;

/// Finalized levels of a fresh cluster. The first record of a metadata log is the first of them.
pub const INITIAL: &[(&str, i16)] = &[(METADATA_VERSION, METADATA_VERSION_LEVEL)];

/// Features of this broker with their lowest and highest levels.
pub fn supported() -> Vec<SupportedFeature> {
    INITIAL
        .iter()
        .map(|(name, level)| SupportedFeature {
            name: (*name).to_owned(),
            min_level: *level,
            max_level: *level,
        })
        .collect()
}
