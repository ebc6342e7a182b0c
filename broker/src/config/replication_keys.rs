//! Keys of the replicas of partitions: what a leader holds its followers to, and who may be read from.

use super::key::Allowed::{Between, OneOf};
use super::key::ConfigKind::{Int, Long, String as Text};
use super::key::Importance::High;
use super::key::KeySpec;

/// The selector of `replica.selector.class` that sends consumers to a replica in their own rack.
pub(super) const RACK_AWARE_SELECTOR: &str =
    "org.apache.kafka.common.replica.RackAwareReplicaSelector";
/// The selector that sends everybody to the leader.
const LEADER_SELECTOR: &str = "org.apache.kafka.common.replica.LeaderSelector";

pub(super) static REPLICATION: &[KeySpec] = &[
    KeySpec::new("replica.lag.time.max.ms", Long)
        .default("30000")
        .at_least(0)
        .importance(High)
        .doc(
            "A replica that has not caught up with its leader for this long is out of sync: it \
             leaves the ISR that clients see, and does not count for `min.insync.replicas`.",
        ),
    KeySpec::new("replica.selector.class", Text)
        .allowed(OneOf(&[LEADER_SELECTOR, RACK_AWARE_SELECTOR]))
        .doc(
            "Who serves consumers (KIP-392): not set or the leader selector, the leader; the \
             rack-aware one, a replica in sync in the consumer's own `client.rack`. Classes of one's \
             own cannot be loaded.",
        ),
    KeySpec::new("odradek.controlled.shutdown.timeout.ms", Long)
        .default("10000")
        .at_least(0)
        .doc("How long handing over partitions may take at a stop. What is left then fails over."),
    KeySpec::new("odradek.unclean.leader.election.wait.ms", Long)
        .default("10000")
        .at_least(0)
        .doc(
            "How long a partition has to have been without a leader, or without most of its voters, \
             before the metadata leader elects one that may lack acknowledged records, where \
             `unclean.leader.election.enable` says so. A broker counts as away once it is fenced.",
        ),
    KeySpec::new("odradek.leader.report.max.partitions", Int)
        .default("1000")
        .allowed(Between(1, 10_000))
        .doc(
            "Most partitions in one report of changed leaders and ISRs to the metadata quorum; what \
             is over goes with the next.",
        ),
];
