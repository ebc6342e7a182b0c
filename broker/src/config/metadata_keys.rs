//! Keys of the metadata log.

use super::broker_config::millis;
use super::key::ConfigKind::Long;
use super::key::Importance::High;
use super::key::{InvalidValue, KeySpec};
use super::values::Layers;
use crate::metadata::checkpoint::keeper::CheckpointRules;

pub(super) static METADATA: &[KeySpec] = &[
    KeySpec::new("metadata.log.max.record.bytes.between.snapshots", Long)
        .default("20971520")
        .at_least(1)
        .importance(High)
        .doc(
            "Bytes of the metadata log after which the metadata is written down as a checkpoint. The log \
             goes below the older of the two checkpoints that are kept.",
        ),
    KeySpec::new("metadata.log.max.snapshot.interval.ms", Long)
        .default("3600000")
        .at_least(0)
        .importance(High)
        .doc(
            "Time after which the metadata is written down if it has changed since the last time; 0 \
             waits for the bytes alone.",
        ),
];

pub(super) fn checkpoint_rules(layers: &Layers) -> Result<CheckpointRules, InvalidValue> {
    let interval = millis(layers, "metadata.log.max.snapshot.interval.ms")?;
    Ok(CheckpointRules {
        bytes_between: layers.required("metadata.log.max.record.bytes.between.snapshots")?,
        interval: (!interval.is_zero()).then_some(interval),
    })
}
