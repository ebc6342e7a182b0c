//! Names and contents of partition directories: which partition a directory belongs to, and which
//! topic it was made for.
//!
//! Invariant: the file `partition.metadata` is durable before the first batch of the partition is
//! written, so that a directory with data always says which topic (by id, not only by name) the
//! data belongs to. A directory of a topic id that the metadata log says was deleted is removed. One of
//! any other topic id is *stray*: it is renamed out of the way and kept for the operator, never
//! opened and never deleted by the broker.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_storage::disk::Disk;
use odradek_storage::file_names::{deleted_dir_name, is_deleted_dir};

/// Name of the file that says which topic a directory belongs to.
const METADATA_FILE: &str = "partition.metadata";
/// More than any version of that file has been.
const METADATA_FILE_LIMIT: usize = 4096;
/// Ending of a directory that was set aside.
const STRAY: &str = "-stray";
/// Ending of the directory of a log that is being copied from another log directory.
const FUTURE: &str = "-future";
/// Longest file name on the file systems we know.
pub const NAME_MAX_BYTES: usize = 255;

/// What a directory below a log directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryKind {
    /// A partition's data.
    Partition {
        /// Topic name.
        topic: String,
        /// Index in the topic.
        partition: PartitionIndex,
    },
    /// A copy of a partition's data that does not count yet.
    Future {
        /// Topic name.
        topic: String,
        /// Index in the topic.
        partition: PartitionIndex,
    },
    /// The rest of a deletion that was cut short.
    Deleted,
    /// Set aside earlier.
    Stray,
    /// Nothing of ours.
    Other,
}

/// Reads a directory's name.
pub fn kind_of(name: &str) -> DirectoryKind {
    if is_deleted_dir(name) {
        return DirectoryKind::Deleted;
    }
    if name.ends_with(STRAY) {
        return DirectoryKind::Stray;
    }
    if let Some(copied) = name.strip_suffix(FUTURE) {
        let of = copied
            .rsplit_once('.')
            .filter(|(_, unique)| {
                unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
            .and_then(|(of, _)| partition_of(of));
        return match of {
            Some((topic, partition)) => DirectoryKind::Future { topic, partition },
            None => DirectoryKind::Other,
        };
    }
    match partition_of(name) {
        Some((topic, partition)) => DirectoryKind::Partition { topic, partition },
        None => DirectoryKind::Other,
    }
}

fn partition_of(name: &str) -> Option<(String, PartitionIndex)> {
    let (topic, index) = name.rsplit_once('-')?;
    let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    let index = index.parse().ok().filter(|_| is_number)?;
    (!topic.is_empty()).then(|| (topic.to_owned(), PartitionIndex::new(index)))
}

/// Name of the directory that a partition's data is copied into. As in Kafka it may be longer than a file
/// name can be.
pub fn future_name(topic: &str, partition: PartitionIndex, unique: u128) -> String {
    format!("{topic}-{partition}.{unique:032x}{FUTURE}")
}

/// Name of a partition's directory.
pub fn name_of(topic: &str, partition: PartitionIndex) -> String {
    format!("{topic}-{partition}")
}

/// Name that a directory gets before it is removed: whatever is left of it if the removal is cut
/// short is known for what it is, and is never taken for the data of a topic made again.
pub fn doomed_name(name: &str, topic_id: TopicId) -> String {
    deleted_dir_name(name, u128::from_be_bytes(topic_id.to_bytes()))
}

/// Name that a directory gets when it is set aside. A long topic name is cut so that it fits into
/// the 255 bytes of a file name.
pub fn stray_name(topic: &str, partition: PartitionIndex, topic_id: TopicId) -> String {
    let hex: String = topic_id
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let tail = format!("-{partition}.{hex}{STRAY}");
    let room = topic.len().min(255_usize.saturating_sub(tail.len()));
    // Topic names are ASCII; another name that stands on the disk is cut at a character.
    let cut = (0..=room).rev().find_map(|at| topic.get(..at));
    format!("{}{tail}", cut.unwrap_or_default())
}

/// The topic id that a partition directory was made for; `None` where the file is missing or says
/// nothing that can be read.
pub fn read_topic_id(disk: &dyn Disk, dir: &Path) -> io::Result<Option<TopicId>> {
    match disk.read_file(&dir.join(METADATA_FILE), METADATA_FILE_LIMIT) {
        Ok(content) => Ok(parse_metadata(&content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a partition directory holds any record data. One that cannot be looked into is not taken for
/// an empty one.
pub fn has_records(disk: &dyn Disk, dir: &Path) -> bool {
    disk.list(dir).map_or(true, |files| {
        files
            .iter()
            .any(|file| file.name.ends_with(".log") && file.len > 0)
    })
}

/// Makes a partition directory and writes which topic it is for; durable when this returns, but
/// for the directory's entry in its log directory, which the caller syncs once for many.
pub fn create(disk: &dyn Disk, dir: &Path, topic_id: TopicId) -> io::Result<()> {
    disk.create_dir_all(dir)?;
    disk.replace_file(
        &dir.join(METADATA_FILE),
        format_metadata(topic_id).as_bytes(),
    )
}

/// The names in a log directory.
pub fn names_in(disk: &dyn Disk, log_dir: &Path) -> io::Result<HashSet<String>> {
    let entries = disk.list(log_dir)?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

/// `name`, or one like it if that is taken already; it is taken afterwards.
pub fn take_free_name(taken: &mut HashSet<String>, name: &str) -> String {
    let mut candidate = name.to_owned();
    let mut attempt = 1;
    while !taken.insert(candidate.clone()) {
        let (stem, ending) = name.rsplit_once('-').unwrap_or((name, ""));
        candidate = format!("{stem}.{attempt}-{ending}");
        attempt += 1;
    }
    candidate
}

fn format_metadata(topic_id: TopicId) -> String {
    format!("version: 0\ntopic_id: {topic_id}")
}

fn parse_metadata(content: &[u8]) -> Option<TopicId> {
    let text = std::str::from_utf8(content).ok()?;
    let mut version = None;
    let mut topic_id = None;
    for line in text.lines() {
        match line.split_once(':') {
            Some(("version", value)) => version = Some(value.trim()),
            Some(("topic_id", value)) => topic_id = TopicId::parse(value.trim()),
            _ => return None,
        }
    }
    topic_id.filter(|id| version == Some("0") && !id.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(topic: &str, index: i32) -> DirectoryKind {
        DirectoryKind::Partition {
            topic: topic.to_owned(),
            partition: PartitionIndex::new(index),
        }
    }

    #[test]
    fn directory_names_are_read_as_kafka_reads_them() {
        assert_eq!(kind_of("orders-0"), partition("orders", 0));
        assert_eq!(kind_of("a-b.c-12"), partition("a-b.c", 12));
        assert_eq!(
            kind_of("__cluster_metadata-0"),
            partition("__cluster_metadata", 0)
        );
        let doomed = doomed_name("orders-0", TopicId::from_bytes([9; 16]));
        assert_eq!(kind_of(&doomed), DirectoryKind::Deleted);
        assert_eq!(kind_of("o-0.ff-stray"), DirectoryKind::Stray);
        let (topic, partition) = ("a-b".to_owned(), PartitionIndex::new(3));
        assert_eq!(
            kind_of(&future_name("a-b", partition, 7)),
            DirectoryKind::Future { topic, partition }
        );
        for other in [
            "orders",
            "-0",
            "orders-",
            "orders-x",
            "orders-+1",
            // Not a name that a removal gives; it may be anybody's.
            "orders-0.00ff-delete",
            "photos-delete",
            "orders-0.07-future",
            "back-to-the-future",
        ] {
            assert_eq!(kind_of(other), DirectoryKind::Other, "{other}");
        }
    }

    #[test]
    fn a_stray_directory_of_the_longest_topic_name_still_fits_a_file_name() {
        let topic = "t".repeat(249);
        let name = stray_name(&topic, PartitionIndex::new(i32::MAX), TopicId::ZERO);
        assert!(name.len() <= 255);
        assert_eq!(kind_of(&name), DirectoryKind::Stray);
    }

    #[test]
    fn the_metadata_file_is_kafkas_and_reads_back() {
        let id = TopicId::from_bytes([9; 16]);
        let text = format_metadata(id);
        assert_eq!(text, "version: 0\ntopic_id: CQkJCQkJCQkJCQkJCQkJCQ");
        assert_eq!(parse_metadata(text.as_bytes()), Some(id));
    }

    #[test]
    fn a_damaged_metadata_file_names_no_topic() {
        for damaged in [
            &b""[..],
            b"version: 0",
            b"version: 1\ntopic_id: CQkJCQkJCQkJCQkJCQkJCQ",
            b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
            b"version: 0\ntopic_id: short",
            b"\xff\xfe",
        ] {
            assert_eq!(parse_metadata(damaged), None);
        }
    }
}
