//! In which log directory a partition is.
//!
//! One whose directory was found at the start stays there. A new one goes to the directory with the
//! fewest, unless another has been asked for, or knows that this node has voted in its group: a replica that
//! does not know of its vote could give a second one in the same term.
//!
//! What is not found at the start while a log directory is offline may be in that one, and is not made anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use odradek_protocol::ids::{PartitionIndex, TimestampMs, TopicId};
use odradek_raft::GroupKey;
use odradek_storage::disk::Disk;
use odradek_storage::{StorageError, finish_relocation, was_moved};

use super::PartitionManager;
use super::directory::{self, DirectoryKind};
use super::log_dir::LogDirectory;
use super::reconcile::Wanted;

/// Where a partition is, or is to be. It is counted as one of the directory's.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) directory: Arc<LogDirectory>,
    /// Its own directory, if it has one.
    pub(super) found: Option<PathBuf>,
}

impl PartitionManager {
    /// Says where each partition goes. Those that are somewhere already come first, so that the others
    /// are spread around them.
    pub(super) fn place(
        &self,
        added: Vec<Wanted>,
        inventory: &mut HashMap<(TopicId, PartitionIndex), PathBuf>,
        is_first: bool,
    ) -> Vec<(Wanted, anyhow::Result<Place>)> {
        let mut directories = self.directories().iter();
        let offline = directories
            .find(|directory| is_first && directory.health().is_offline())
            .map(|directory| directory.path().display());
        let found: Vec<_> = added
            .iter()
            .map(|wanted| {
                let path = inventory.remove(&(wanted.topic_id, wanted.index))?;
                Some(self.directory_of(&path).map(|directory| {
                    directory.partition_added();
                    let found = Some(path);
                    Place { directory, found }
                }))
            })
            .collect();
        added
            .into_iter()
            .zip(found)
            .map(|(wanted, found)| {
                let place = found.unwrap_or_else(|| match &offline {
                    Some(path) => Err(anyhow::anyhow!("it may be in {path}, which is offline")),
                    None => self.new_place(&wanted),
                });
                (wanted, place)
            })
            .collect()
    }

    fn new_place(&self, wanted: &Wanted) -> anyhow::Result<Place> {
        let wish = self.moves.take_wish(&wanted.topic, wanted.index);
        let wish = wish.filter(|directory| !directory.health().is_offline());
        let directory = match self.voted_in(wanted).or(wish) {
            Some(directory) => directory,
            None => self.roomiest_directory()?,
        };
        directory.partition_added();
        Ok(Place {
            directory,
            found: None,
        })
    }

    fn voted_in(&self, wanted: &Wanted) -> Option<Arc<LogDirectory>> {
        let incarnation = wanted.begun.map(|begun| begun.incarnation);
        let key = GroupKey::new(wanted.topic_id, wanted.index)
            .in_incarnation(incarnation.unwrap_or_default());
        let path = self.options.raft.voted_in(key)?;
        self.directory_at(path)
    }

    fn directory_at(&self, path: &Path) -> Option<Arc<LogDirectory>> {
        let mut directories = self.directories().iter();
        directories
            .find(|directory| directory.path() == path)
            .map(Arc::clone)
    }

    /// The log directory that a partition's directory lies in.
    fn directory_of(&self, path: &Path) -> anyhow::Result<Arc<LogDirectory>> {
        path.parent()
            .and_then(|parent| self.directory_at(parent))
            .with_context(|| format!("{} is in no log directory", path.display()))
    }

    /// The working log directory with the fewest partitions.
    fn roomiest_directory(&self) -> anyhow::Result<Arc<LogDirectory>> {
        self.directories()
            .iter()
            .filter(|directory| !directory.health().is_offline())
            .min_by_key(|directory| directory.partition_count())
            .map(Arc::clone)
            .context("every log directory is offline")
    }
}

/// Why it is not clear where partitions are.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// A partition has data in two log directories.
    #[error(
        "{path} and {other} hold the same partition; find out which of them is the current one, and move the \
         other away",
        path = path.display(),
        other = other.display()
    )]
    Two {
        /// Its directory in the one.
        path: PathBuf,
        /// Its directory in the other.
        other: PathBuf,
    },
    /// What is left of a move cannot be taken out of the way.
    #[error("the move of a partition to {path} cannot be finished: {cause}", path = path.display())]
    Unfinished {
        /// The partition's directory.
        path: PathBuf,
        /// The failure.
        cause: StorageError,
    },
}

/// A directory with data of a partition.
struct Held {
    path: PathBuf,
    topic_id: Option<TopicId>,
    /// It was moved here, and the log that it was copied from may still be somewhere.
    is_moved: bool,
}

/// Ends the moves that were cut short after the copy counted, and refuses to start where a partition has data in
/// two of the directories otherwise: to take one of them would be to guess. A directory that cannot be read is
/// passed over; whoever opens it finds out.
pub fn settle_places<'a>(
    disk: &dyn Disk,
    log_dirs: impl IntoIterator<Item = &'a Path>,
    now: TimestampMs,
) -> Result<(), PlacesError> {
    let mut seen: HashMap<(String, PartitionIndex), Vec<Held>> = HashMap::new();
    let mut is_all = true;
    for log_dir in log_dirs {
        let Ok(entries) = disk.list(log_dir) else {
            is_all = false;
            continue;
        };
        for entry in entries.into_iter().filter(|entry| entry.is_dir) {
            let DirectoryKind::Partition { topic, partition } = directory::kind_of(&entry.name)
            else {
                continue;
            };
            let path = log_dir.join(&entry.name);
            if let Some(held) = held(disk, path) {
                settle(disk, seen.entry((topic, partition)).or_default(), held, now)?;
            }
        }
    }
    // The other directory may come back with what was there before the move.
    let moved = seen
        .into_values()
        .flatten()
        .filter(|held| held.is_moved && is_all);
    for held in moved {
        finish(disk, &held.path, None, now)?;
    }
    Ok(())
}

fn held(disk: &dyn Disk, path: PathBuf) -> Option<Held> {
    let topic_id = directory::read_topic_id(disk, &path).ok().flatten();
    // What a creation that was cut short has left is no data of anybody.
    let is_any = topic_id.is_some() || directory::has_records(disk, &path);
    is_any.then(|| Held {
        is_moved: was_moved(disk, &path).unwrap_or(false),
        topic_id,
        path,
    })
}

fn settle(
    disk: &dyn Disk,
    others: &mut Vec<Held>,
    held: Held,
    now: TimestampMs,
) -> Result<(), PlacesError> {
    // A topic that was made again under its name is another one.
    let is_twin = |other: &Held| {
        held.topic_id.is_none() || other.topic_id.is_none() || other.topic_id == held.topic_id
    };
    let Some(at) = others.iter().position(is_twin) else {
        others.push(held);
        return Ok(());
    };
    let other = others.swap_remove(at);
    let (log, old) = match (held.is_moved, other.is_moved) {
        (true, false) => (held, other),
        (false, true) => (other, held),
        _ => {
            let (path, other) = (held.path, other.path);
            return Err(PlacesError::Two { path, other });
        }
    };
    tracing::info!(from = %old.path.display(), to = %log.path.display(), "finishing a move that was cut short");
    finish(disk, &log.path, Some(&old.path), now)?;
    others.push(Held {
        is_moved: false,
        ..log
    });
    Ok(())
}

fn finish(
    disk: &dyn Disk,
    path: &Path,
    old: Option<&Path>,
    now: TimestampMs,
) -> Result<(), PlacesError> {
    // What is retired has the name of a removal that was cut short, and goes with those.
    let finished = finish_relocation(disk, path, old, now);
    finished.map(drop).map_err(|cause| PlacesError::Unfinished {
        path: path.to_owned(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use odradek_storage::SimDisk;
    use odradek_storage::disk::OpenMode;

    use super::*;
    use crate::partitions::fixture::topic_id;

    const NOW: TimestampMs = TimestampMs::new(1);

    fn put(disk: &SimDisk, dir: &str, id: Option<TopicId>, has_records: bool) {
        let dir = Path::new(dir);
        disk.create_dir_all(dir).expect("made");
        if let Some(id) = id {
            directory::create(disk, dir, id).expect("made");
        }
        if has_records {
            let log = disk.open(&dir.join("00000000000000000000.log"), OpenMode::Create);
            log.and_then(|log| log.write_at(b"records", 0))
                .expect("written");
        }
    }

    fn check(disk: &SimDisk) -> Result<(), String> {
        settle_places(disk, ["a", "b"].map(Path::new), NOW).map_err(|error| error.to_string())
    }

    #[test]
    fn a_partition_in_two_directories_is_refused_and_both_are_named() {
        let disk = SimDisk::new();
        put(&disk, "a/orders-0", Some(topic_id(1)), true);
        put(&disk, "b/orders-1", Some(topic_id(1)), true);
        put(&disk, "b/orders-0", Some(topic_id(2)), true);
        assert_eq!(
            check(&disk),
            Ok(()),
            "another partition, another topic of that name"
        );
        put(&disk, "b/orders-1.0af-delete", Some(topic_id(1)), true);
        put(&disk, "a/orders-1", None, false);
        assert_eq!(check(&disk), Ok(()), "nothing that counts");
        put(&disk, "a/orders-1", Some(topic_id(1)), false);
        let message = check(&disk).expect_err("it is in both");
        assert!(
            message.starts_with("b/orders-1 and a/orders-1 hold"),
            "{message}"
        );
    }

    #[test]
    fn data_whose_topic_is_not_known_counts_as_that_of_its_namesake() {
        let disk = SimDisk::new();
        put(&disk, "a/orders-0", None, true);
        put(&disk, "b/orders-0", Some(topic_id(1)), false);
        assert!(check(&disk).is_err());
    }

    #[test]
    fn of_two_directories_the_one_that_was_moved_counts() {
        let names = |disk: &SimDisk, dir: &str| -> Vec<String> {
            let entries = disk.list(Path::new(dir)).expect("listed");
            entries.into_iter().map(|entry| entry.name).collect()
        };
        for (old, new) in [("a", "b"), ("b", "a")] {
            let disk = SimDisk::new();
            for dir in [old, new] {
                put(&disk, &format!("{dir}/orders-0"), Some(topic_id(1)), true);
            }
            let moved = Path::new(new).join("orders-0/moved");
            disk.open(&moved, OpenMode::Create).expect("made");
            assert_eq!(check(&disk), Ok(()));
            assert_eq!(names(&disk, new), ["orders-0"]);
            let left = names(&disk, old);
            assert!(left.len() == 1 && left[0].ends_with("-delete"), "{left:?}");
            assert!(!was_moved(&disk, &Path::new(new).join("orders-0")).expect("read"));
        }
    }

    #[test]
    fn a_move_is_over_once_every_directory_has_been_looked_through() {
        let disk = SimDisk::new();
        put(&disk, "b/orders-0", Some(topic_id(1)), true);
        let dir = Path::new("b/orders-0");
        disk.open(&dir.join("moved"), OpenMode::Create)
            .expect("made");
        assert_eq!(check(&disk), Ok(()));
        assert!(
            was_moved(&disk, dir).expect("read"),
            "the other one is not there"
        );
        disk.create_dir_all(Path::new("a")).expect("made");
        assert_eq!(check(&disk), Ok(()));
        assert!(!was_moved(&disk, dir).expect("read"));
    }
}
