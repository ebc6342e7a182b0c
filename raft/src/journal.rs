//! `raft.journal`: the entries of one partition that are not batches, and the marks that give the
//! batches their Raft indexes ([`crate::entry_map`]).
//!
//! The file only grows, but for [`Journal::rewrite`], which replaces it as a whole (before a
//! truncation, for a purge, or when it has grown). What is written after a sync may be lost or torn
//! in a crash; [`Journal::open`] cuts it off. The log store sees to it that the journal is durable
//! before a batch is written that relies on it.
//!
//! Segments are changed otherwise than by appending ([`Pending`](crate::entry_map::Pending)) as the
//! journal says that they are going to be: a replacement of the file says so and already describes what
//! the change makes of the log; a record at its end says that it has been carried out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use odradek_storage::SyncFile;
use odradek_storage::disk::Disk;

use crate::codec::{self, Record};
use crate::entry_map::{EntryMap, Mark, MarkKind, NonData, Pending};
use crate::error::RaftError;
use crate::framing::{self, Frames};
use crate::types::{Incarnation, Membership};

/// Name of the file in the partition's directory.
pub(crate) const FILE_NAME: &str = "raft.journal";
/// First bytes of the file; the last one is the version.
pub(crate) const MAGIC: [u8; 8] = *b"ODRJRNL\x01";
/// Larger than any journal we write; anything else is not one.
const FILE_MAX_BYTES: usize = 256 << 20;
/// Below this a journal is not worth rewriting.
const REWRITE_MIN_BYTES: u64 = 64 << 10;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<SyncFile>,
    end: u64,
    /// Length right after the last rewrite or open.
    rewritten_bytes: u64,
}

/// What opening a journal found.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) journal: Journal,
    pub(crate) map: EntryMap,
    /// Bytes of a torn tail, which [`Journal::cut_tail`] cuts off.
    pub(crate) torn_bytes: u64,
    /// Whether there was none, or none that had been made to its end.
    pub(crate) made: bool,
}

impl Journal {
    /// Opens the journal of the partition in `dir`, or makes one. A new journal begins with
    /// `bootstrap` as its first entry, if given: the voters of a new group. None is made beside a
    /// log that `has_records`: without its marks they would belong to nothing.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        bootstrap: Option<Membership>,
        has_records: bool,
    ) -> io::Result<Opened> {
        let path = dir.join(FILE_NAME);
        let bytes = match disk.read_file(&path, FILE_MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        if has_records && bytes.len() < MAGIC.len() {
            return Err(damaged("is missing or empty, but the log holds records"));
        }
        // Counts as not durable even if it was there: what was read may be in the page cache only.
        let mut dirs = vec![dir.to_path_buf()];
        dirs.extend(dir.parent().map(Path::to_path_buf));
        let file = SyncFile::create(disk.clone(), path.clone(), dirs)?;
        let Some(records) = bytes.strip_prefix(&MAGIC) else {
            // Only a journal whose making was interrupted is shorter than its magic, and nothing
            // can have followed it in the log.
            if bytes.len() >= MAGIC.len() {
                return Err(damaged("does not begin as a journal does"));
            }
            return Self::create(disk, path, file, bootstrap, bytes.len() as u64);
        };
        let (map, valid) = read(records)?;
        let end = (MAGIC.len() + valid) as u64;
        let torn_bytes = bytes.len() as u64 - end;
        let is_first = map.incarnation() == Incarnation::FIRST && map.pending().is_none();
        if map.last_log_id().is_none() && bootstrap.is_some() && is_first {
            if has_records {
                return Err(damaged("holds no whole entry, but the log holds records"));
            }
            // Made, but cut off before the first entry was whole.
            return Self::create(disk, path, file, bootstrap, torn_bytes);
        }
        Ok(Self::opened(disk, path, file, end).with(map, torn_bytes, false))
    }

    /// Cuts off what stands behind the last whole record. Must come before the first write.
    pub(crate) fn cut_tail(&self) -> io::Result<()> {
        self.file.set_len(self.end)
    }

    fn create(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        file: Arc<SyncFile>,
        bootstrap: Option<Membership>,
        torn_bytes: u64,
    ) -> io::Result<Opened> {
        let mut map = EntryMap::default();
        if let Some(membership) = bootstrap {
            map.push_non_data(0, NonData::Membership(membership));
        }
        let content = content_of(&map);
        file.set_len(0)?;
        file.write_at(&content, 0)?;
        let end = content.len() as u64;
        Ok(Self::opened(disk, path, file, end).with(map, torn_bytes, true))
    }

    /// A journal that ends at `end`.
    fn opened(disk: Arc<dyn Disk>, path: PathBuf, file: Arc<SyncFile>, end: u64) -> Self {
        Self {
            disk,
            path,
            file,
            end,
            rewritten_bytes: end,
        }
    }

    fn with(self, map: EntryMap, torn_bytes: u64, made: bool) -> Opened {
        Opened {
            journal: self,
            map,
            torn_bytes,
            made,
        }
    }

    /// Writes marks behind the last ones, into the page cache.
    pub(crate) fn append<'a>(
        &mut self,
        marks: impl IntoIterator<Item = &'a Mark>,
    ) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        for mark in marks {
            framing::put(&mut bytes, &codec::encode_mark(mark));
        }
        self.append_bytes(&bytes)
    }

    /// Writes, into the page cache, that what was to be done to the segments has been done. To be durable
    /// before a batch is written behind them: a start would do it again, and with that batch.
    pub(crate) fn append_carried_out(&mut self) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        framing::put(&mut bytes, &codec::encode_carried_out());
        self.append_bytes(&bytes)
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.file.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Opens the file if it is closed, so that the next write needs no descriptor.
    pub(crate) fn hold_open(&self) -> io::Result<()> {
        self.file.file().map(|_| ())
    }

    /// The file, for syncing it.
    pub(crate) fn file(&self) -> &Arc<SyncFile> {
        &self.file
    }

    /// Whether the file has grown enough since the last rewrite for another to pay.
    pub(crate) fn wants_rewrite(&self) -> bool {
        self.end > REWRITE_MIN_BYTES && self.end > 2 * self.rewritten_bytes
    }

    /// Replaces the file by one that holds exactly `map`; durable on return. Slow: it syncs.
    pub(crate) fn rewrite(&mut self, map: &EntryMap) -> io::Result<()> {
        let content = content_of(map);
        self.disk.replace_file(&self.path, &content)?;
        self.was_replaced(content.len());
        Ok(())
    }

    /// Somebody else has put another file of so many bytes in the place of this one, durably.
    pub(crate) fn was_replaced(&mut self, len: usize) {
        self.file = SyncFile::existing(self.disk.clone(), self.path.clone());
        self.end = len as u64;
        self.rewritten_bytes = self.end;
    }
}

/// The incarnation that the journal in `dir` is of; `None` if there is none that says so. Waits for the
/// disk.
pub(crate) fn incarnation_in(
    disk: &dyn Disk,
    dir: &Path,
) -> Result<Option<Incarnation>, RaftError> {
    let path = dir.join(FILE_NAME);
    let failed = |error| RaftError::io(format!("read {}", path.display()), error);
    let bytes = match disk.read_file(&path, FILE_MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let Some(records) = bytes.strip_prefix(&MAGIC) else {
        return Ok(None);
    };
    let (map, _) = read(records).map_err(failed)?;
    Ok(Some(map.incarnation()))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The file that holds exactly `map`.
pub(crate) fn content_of(map: &EntryMap) -> BytesMut {
    let mut content = BytesMut::new();
    content.put_slice(&MAGIC);
    if map.incarnation() != Incarnation::FIRST {
        let body = codec::encode_incarnation(map.incarnation());
        framing::put(&mut content, &body);
    }
    if let Some(pending) = map.pending() {
        framing::put(&mut content, &codec::encode_pending(pending));
    }
    if map.purged().last.is_some() {
        framing::put(&mut content, &codec::encode_purged(map.purged()));
    }
    // A rewrite is the moment to let go of all checkpoints but the last.
    let last_checkpoint = map
        .marks()
        .filter(|mark| matches!(mark.kind, MarkKind::Checkpoint { .. }))
        .last();
    for mark in map.marks() {
        if !matches!(mark.kind, MarkKind::Checkpoint { .. }) || Some(mark) == last_checkpoint {
            framing::put(&mut content, &codec::encode_mark(mark));
        }
    }
    content
}

/// How much of what comes before all marks has been read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Head {
    Nothing,
    Incarnation,
    Pending,
    Read,
}

/// The map that the records describe, and how many bytes of them are whole.
fn read(records: &[u8]) -> io::Result<(EntryMap, usize)> {
    let mut map = EntryMap::default();
    let mut frames = Frames::new(records);
    let mut head = Head::Nothing;
    for body in frames.by_ref() {
        // A record whose checksum is right but whose content is not was written that way: no
        // crash does that, so it is not cut off silently.
        head = match codec::decode(body) {
            Some(Record::Incarnation(incarnation, cut)) if head < Head::Incarnation => {
                map = EntryMap::empty_in(incarnation);
                if let Some(offset) = cut {
                    map.set_pending(Pending::Cut(offset));
                }
                Head::Incarnation
            }
            Some(Record::Pending(pending)) if head < Head::Pending && map.pending().is_none() => {
                map.set_pending(pending);
                Head::Pending
            }
            Some(Record::Purged(purged)) if head < Head::Read => {
                map = EntryMap::starting_after(purged).in_incarnation_of(&map);
                Head::Read
            }
            Some(Record::Mark(mark)) => {
                map.replay(mark)
                    .map_err(|contradiction| damaged(&contradiction.to_string()))?;
                Head::Read
            }
            Some(Record::CarriedOut) if map.pending().is_some() => {
                map.is_carried_out();
                Head::Read
            }
            Some(
                Record::Purged(_)
                | Record::Incarnation(..)
                | Record::Pending(_)
                | Record::CarriedOut,
            )
            | None => return Err(damaged("holds an unknown record")),
        };
    }
    let valid = frames.valid_bytes();
    Ok((map, valid))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use odradek_protocol::ids::Offset;
    use odradek_storage::SimDisk;
    use odradek_storage::disk::OpenMode;

    use super::*;
    use crate::entry_map::Purged;
    use crate::types::{RaftIndex, log_id};

    fn dir() -> &'static Path {
        Path::new("/data/topic-0")
    }

    fn voters() -> Membership {
        Membership::new_with_defaults(vec![BTreeSet::from([1])], [])
    }

    fn disk() -> (SimDisk, Arc<dyn Disk>) {
        let disk = SimDisk::new();
        let shared = disk.shared();
        shared.create_dir_all(dir()).unwrap();
        (disk, shared)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_journal_has_the_bytes_that_the_format_says() {
        let (_, disk) = disk();
        let Opened {
            mut journal,
            mut map,
            ..
        } = Journal::open(disk.clone(), dir(), Some(voters()), false).unwrap();
        map.push_non_data(1, NonData::Blank);
        journal.append(map.last_mark()).unwrap();
        let bytes = disk.read_file(&dir().join(FILE_NAME), 4096).unwrap();
        let membership = "02 0000000000000001 0000000000000000 0000000000000000 \
                          0001 0001 0000000000000001 0001 0000000000000001";
        let blank = "01 0000000000000002 0000000000000001 0000000000000000";
        let mut expected = hex(&MAGIC);
        for body in [membership, blank] {
            let body: String = body.split_whitespace().collect();
            let raw: Vec<u8> = (0..body.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&body[at..at + 2], 16).unwrap())
                .collect();
            expected += &format!("{:08x}{:08x}{body}", raw.len(), crc32c::crc32c(&raw));
        }
        assert_eq!(hex(&bytes), expected);
    }

    #[test]
    fn a_journal_says_of_which_incarnation_it_is() {
        let (_, disk) = disk();
        let mut journal = Journal::open(disk.clone(), dir(), Some(voters()), false)
            .unwrap()
            .journal;
        let later = Incarnation::new(1_005);
        let purged = Purged {
            last: Some(log_id(3, 7)),
            ..Purged::default()
        };
        for before in [
            EntryMap::default(),
            EntryMap::starting_after(purged.clone()),
        ] {
            let mut map = before.in_incarnation_of(&EntryMap::empty_in(later));
            map.push_non_data(1_005, NonData::Membership(voters()));
            journal.rewrite(&map).unwrap();
            assert_eq!(incarnation_in(&*disk, dir()).unwrap(), Some(later));
            let again = Journal::open(disk.clone(), dir(), None, true).unwrap().map;
            assert_eq!(again.incarnation(), later);
            assert_eq!(again.pending(), None);
            assert_eq!(again.purged(), map.purged());
            assert_eq!(again.last_log_id(), map.last_log_id());
        }
        let bytes = disk.read_file(&dir().join(FILE_NAME), 4096).unwrap();
        let body = &bytes[MAGIC.len() + framing::OVERHEAD..][..13];
        assert_eq!(hex(body), "08000003edffffffffffffffff");
    }

    #[test]
    fn a_journal_says_what_is_to_be_done_to_the_segments_until_it_is_done() {
        let (_, disk) = disk();
        let mut journal = Journal::open(disk.clone(), dir(), Some(voters()), false)
            .unwrap()
            .journal;
        let purged = Purged {
            last: Some(log_id(3, 7)),
            ..Purged::default()
        };
        let cut = Pending::Cut(Offset::new(12));
        for (incarnation, pending) in [
            (Incarnation::FIRST, Pending::Restart(Offset::ZERO)),
            (Incarnation::new(1_005), cut),
            (Incarnation::FIRST, cut),
        ] {
            for before in [
                EntryMap::default(),
                EntryMap::starting_after(purged.clone()),
            ] {
                let mut map = before.in_incarnation_of(&EntryMap::empty_in(incarnation));
                map.set_pending(pending);
                map.push_non_data(1_005, NonData::Membership(voters()));
                journal.rewrite(&map).unwrap();
                let read = || Journal::open(disk.clone(), dir(), None, true).unwrap().map;
                assert_eq!(read().pending(), Some(pending));
                journal.append_carried_out().unwrap();
                assert_eq!(read().pending(), None);
                map.push_non_data(1_006, NonData::Blank);
                journal.append(map.last_mark()).unwrap();
                assert_eq!(read().pending(), None);
                assert_eq!(read().incarnation(), incarnation);
                assert_eq!(read().purged(), map.purged());
                assert_eq!(read().last_log_id(), map.last_log_id());
            }
        }
        let bytes = disk.read_file(&dir().join(FILE_NAME), 4096).unwrap();
        let body = &bytes[MAGIC.len() + framing::OVERHEAD..][..10];
        assert_eq!(hex(body), "0901000000000000000c");
        let done = &bytes[bytes.len() - 25 - framing::OVERHEAD - 1..][..1];
        assert_eq!(hex(done), "0a");
        journal.append_carried_out().unwrap();
        let refused = Journal::open(disk, dir(), None, true);
        assert!(refused.is_err(), "there was nothing to be done any more");
    }

    /// Earlier versions said it with the incarnation.
    #[test]
    fn a_journal_of_an_earlier_version_that_waits_for_a_cut_is_understood() {
        let (_, disk) = disk();
        let mut bytes = BytesMut::from(&MAGIC[..]);
        let body = [8, 0, 0, 3, 0xed, 0, 0, 0, 0, 0, 0, 0, 12];
        framing::put(&mut bytes, &body);
        let file = disk.open(&dir().join(FILE_NAME), OpenMode::Create).unwrap();
        file.write_at(&bytes, 0).unwrap();
        let map = Journal::open(disk, dir(), None, true).unwrap().map;
        assert_eq!(map.incarnation(), Incarnation::new(1_005));
        assert_eq!(map.pending(), Some(Pending::Cut(Offset::new(12))));
    }

    #[test]
    fn a_torn_tail_is_cut_and_written_over() {
        let (_, disk) = disk();
        let Opened {
            mut journal,
            mut map,
            ..
        } = Journal::open(disk.clone(), dir(), Some(voters()), false).unwrap();
        map.push_non_data(1, NonData::Blank);
        journal.append(map.last_mark()).unwrap();
        let path = dir().join(FILE_NAME);
        let whole = disk.read_file(&path, 4096).unwrap();
        for cut in 1..33 {
            let file = disk.open(&path, OpenMode::Write).unwrap();
            file.set_len((whole.len() - cut) as u64).unwrap();
            let Opened {
                mut journal,
                mut map,
                torn_bytes,
                ..
            } = Journal::open(disk.clone(), dir(), Some(voters()), false).unwrap();
            assert_eq!(torn_bytes, 33 - cut as u64);
            journal.cut_tail().unwrap();
            assert_eq!(map.last_log_id(), Some(log_id(0, 0)));
            map.push_non_data(1, NonData::Blank);
            journal.append(map.last_mark()).unwrap();
            assert_eq!(disk.read_file(&path, 4096).unwrap(), whole);
        }
    }

    #[test]
    fn no_journal_is_made_beside_a_log_that_holds_records() {
        let (_, disk) = disk();
        let path = dir().join(FILE_NAME);
        assert!(Journal::open(disk.clone(), dir(), Some(voters()), true).is_err());
        assert!(disk.read_file(&path, 4096).is_err(), "nothing was made");
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(&MAGIC, 0).unwrap();
        assert!(Journal::open(disk.clone(), dir(), Some(voters()), true).is_err());
        assert_eq!(disk.read_file(&path, 4096).unwrap(), MAGIC);
    }

    #[test]
    fn a_foreign_file_is_refused_and_left_alone() {
        let (_, disk) = disk();
        let path = dir().join(FILE_NAME);
        let file = disk.open(&path, OpenMode::Create).unwrap();
        file.write_at(b"something else", 0).unwrap();
        assert!(Journal::open(disk.clone(), dir(), Some(voters()), false).is_err());
        assert_eq!(disk.read_file(&path, 4096).unwrap(), b"something else");
    }

    #[test]
    fn a_rewritten_journal_holds_the_same_and_only_the_last_checkpoint() {
        let (_, disk) = disk();
        let Opened {
            mut journal,
            mut map,
            ..
        } = Journal::open(disk.clone(), dir(), Some(voters()), false).unwrap();
        map.push_non_data(1, NonData::Blank);
        map.push_batch(3);
        map.push_checkpoint(Offset::new(3), RaftIndex::new(3));
        map.push_batch(2);
        map.push_checkpoint(Offset::new(5), RaftIndex::new(4));
        map.push_roll();
        map.push_batch(1);
        map.purge(log_id(1, 2), Offset::new(3), Offset::new(4));
        journal.rewrite(&map).unwrap();
        let again = Journal::open(disk, dir(), None, false).unwrap().map;
        assert_eq!(again.purged(), map.purged());
        assert_eq!(again.last_checkpoint(), map.last_checkpoint());
        assert_eq!(again.next_offset(), Offset::new(5));
        assert_eq!(again.next_index(), RaftIndex::new(4));
    }
}
