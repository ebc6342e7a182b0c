//! Whether the replicas of a partition are the same bytes on the nodes' disks.
//!
//! Read after the nodes have ended. Segments may begin elsewhere on each node and recovery may have cut them anywhere;
//! what must agree is the sequence of batches, from the first offset to the last, and the leader epochs that each
//! node's checkpoint ties to them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::NodeNumber;
use super::admin::Placement;
use super::check::{Rule, Violation};
use super::history::Partition;
use crate::requests::batches_of;

/// A partition as one node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// Batches by base offset.
    pub batches: BTreeMap<i64, Vec<u8>>,
    /// First offset of each epoch, as the checkpoint says.
    pub epochs: BTreeMap<i32, i64>,
    /// Bytes at the end of a segment that are no whole batch.
    pub trailing_bytes: usize,
}

impl Replica {
    /// Reads the directory of a partition.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut this = Self::default();
        let mut segments: Vec<PathBuf> = std::fs::read_dir(directory)
            .with_context(|| directory.display().to_string())?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
            .collect();
        segments.sort();
        for segment in segments {
            let bytes = std::fs::read(&segment)?;
            let mut whole = 0;
            for batch in batches_of(&bytes) {
                whole += batch.len();
                this.batches.insert(base_offset(batch), batch.to_vec());
            }
            this.trailing_bytes += bytes.len() - whole;
        }
        if let Ok(text) = std::fs::read_to_string(directory.join("leader-epoch-checkpoint")) {
            for line in text.lines().skip(2) {
                let (epoch, offset) = line.split_once(' ').context("a line of the checkpoint")?;
                this.epochs.insert(epoch.parse()?, offset.parse()?);
            }
        }
        Ok(this)
    }

    /// What of the checkpoint the batches do not bear out: an epoch's first offset must be where the batches change to
    /// it. Epochs at the end without batches are no one's business.
    fn wrong_epochs(&self) -> Vec<String> {
        let mut first_of: BTreeMap<i32, i64> = BTreeMap::new();
        for (&offset, batch) in &self.batches {
            first_of.entry(epoch(batch)).or_insert(offset);
        }
        let start = self.batches.keys().next().copied().unwrap_or(0);
        self.epochs
            .iter()
            .filter_map(|(epoch, offset)| {
                let there = first_of.get(epoch)?;
                (there != offset && *offset >= start)
                    .then(|| format!("epoch {epoch} begins at {there}, not at {offset}"))
            })
            .collect()
    }
}

fn base_offset(batch: &[u8]) -> i64 {
    batch
        .first_chunk()
        .map_or(-1, |bytes| i64::from_be_bytes(*bytes))
}

fn epoch(batch: &[u8]) -> i32 {
    batch
        .get(12..)
        .and_then(<[u8]>::first_chunk)
        .map_or(-1, |bytes| i32::from_be_bytes(*bytes))
}

/// Reads the replicas of a topic from the data directories of the nodes that must have them.
pub fn read(
    directories: &BTreeMap<NodeNumber, PathBuf>,
    topic: &str,
    placement: &Placement,
) -> Result<BTreeMap<(Partition, NodeNumber), Replica>> {
    let mut replicas = BTreeMap::new();
    for (&partition, nodes) in placement {
        for node in nodes {
            let directory = directories
                .get(node)
                .with_context(|| format!("no node {node}"))?
                .join(format!("{topic}-{partition}"));
            replicas.insert((partition, *node), Replica::read(&directory)?);
        }
    }
    Ok(replicas)
}

/// Compares each replica with the first of its partition.
pub fn compare(replicas: &BTreeMap<(Partition, NodeNumber), Replica>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut first: Option<(Partition, NodeNumber, &Replica)> = None;
    for (&(partition, node), replica) in replicas {
        let mut found = |what: String| {
            violations.push(Violation {
                rule: Rule::ReplicasDiffer,
                partition,
                what,
            });
        };
        for what in replica.wrong_epochs() {
            found(format!("checkpoint of node {node}: {what}"));
        }
        match first {
            Some((of, with, other)) if of == partition => {
                if let Some(what) = difference(other, replica) {
                    found(format!("nodes {with} and {node}: {what}"));
                }
            }
            _ => first = Some((partition, node, replica)),
        }
    }
    violations
}

fn difference(one: &Replica, other: &Replica) -> Option<String> {
    let ends = |replica: &Replica| {
        let first = replica.batches.keys().next().copied();
        let last = replica.batches.keys().next_back().copied();
        (first, last, replica.trailing_bytes)
    };
    if ends(one) != ends(other) {
        return Some(format!(
            "first and last batch and trailing bytes are {:?} and {:?}",
            ends(one),
            ends(other)
        ));
    }
    let mut others = other.batches.iter();
    one.batches.iter().find_map(|(offset, batch)| {
        let theirs = others.next();
        (theirs != Some((offset, batch))).then(|| {
            format!(
                "a batch of epoch {} and {} bytes at {offset}, and {:?}",
                epoch(batch),
                batch.len(),
                theirs.map(|(offset, batch)| (offset, epoch(batch), batch.len()))
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::BatchSpec;

    fn batch(offset: i64, epoch: i32) -> Vec<u8> {
        let mut batch = BatchSpec::small(2, 0);
        batch.base_offset = offset;
        batch.leader_epoch = epoch;
        batch.build().unwrap().to_vec()
    }

    fn write(directory: &Path, segments: &[(&str, Vec<u8>)], epochs: &str) -> Replica {
        std::fs::create_dir_all(directory).unwrap();
        for (name, bytes) in segments {
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        std::fs::write(directory.join("leader-epoch-checkpoint"), epochs).unwrap();
        Replica::read(directory).unwrap()
    }

    fn compared(one: &Replica, other: &Replica) -> Vec<Violation> {
        compare(&BTreeMap::from([
            ((0, 1), one.clone()),
            ((0, 2), other.clone()),
        ]))
    }

    #[test]
    fn replicas_agree_wherever_their_segments_begin_and_differ_by_one_byte() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (batch(0, 1), batch(2, 3));
        let epochs = "0\n2\n1 0\n3 2\n";
        let one = write(
            &home.path().join("one"),
            &[("00.log", [first.clone(), second.clone()].concat())],
            epochs,
        );
        let other = write(
            &home.path().join("other"),
            &[("00.log", first.clone()), ("02.log", second.clone())],
            epochs,
        );
        assert_eq!(compared(&one, &other), []);
        let mut changed = second.clone();
        *changed.last_mut().unwrap() ^= 1;
        let changed = write(
            &home.path().join("changed"),
            &[("00.log", [first.clone(), changed].concat())],
            epochs,
        );
        assert_eq!(compared(&one, &changed).len(), 1);
        let short = write(&home.path().join("short"), &[("00.log", first)], epochs);
        assert_eq!(compared(&one, &short).len(), 1);
    }

    #[test]
    fn a_checkpoint_that_the_batches_do_not_bear_out_is_found() {
        let home = tempfile::tempdir().unwrap();
        let segments = [("00.log", [batch(0, 1), batch(2, 3)].concat())];
        let right = write(
            &home.path().join("right"),
            &segments,
            "0\n3\n1 0\n3 2\n4 4\n",
        );
        assert_eq!(compared(&right, &right), []);
        let wrong = write(&home.path().join("wrong"), &segments, "0\n2\n1 0\n3 1\n");
        assert_eq!(compared(&right, &wrong).len(), 1);
    }
}
