//! Moving a log to another log directory.
//!
//! While the log is in use, a [`Relocation`] copies it into a directory of another name, `<topic>-<partition>
//! .<id>-future` in the other log directory: segments as far as their ends are published. That may take as long
//! as it takes; what it has copied stands for nothing. Then the log is closed, for good if all goes well, and
//!
//! 1. [`Relocation::finish`] copies what is missing and makes all of it durable, and beside it a file `moved`;
//! 2. [`Relocation::take_place`] gives the directory its name. **From that rename on the copy is the log**: of
//!    two directories of a partition the one that holds `moved` counts;
//! 3. [`finish_relocation`] takes the old directory out of the way, durably, and then the file `moved`.
//!
//! So a crash at any step leaves one whole log that counts: the old one before the rename, the new one after it.
//! An opening does the third step again where it finds that file.
//!
//! What has been copied stays true as long as files only grow at their ends or go as a whole, which is all that
//! appending, rolling and retention do. Cuts, compaction and the taking of another replica's records make the
//! copy void ([`Relocation::is_void`]); then it has to begin again.
//!
//! Absent on purpose: pacing, and going on with a copy that an earlier process has left.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::ids::{Offset, TimestampMs};

use crate::deletion::remove_if_present;
use crate::disk::{Disk, OpenMode};
use crate::error::StorageError;
use crate::file_names::{
    DELETED_SUFFIX, LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, deleted_dir_name, offset_file, parse_offset,
};
use crate::log::Log;
use crate::reader::Shared;
use crate::segment::Segment;
use crate::trim::unique;

/// In a log that was moved, until the one that it was copied from is out of the way.
const MOVED: &str = "moved";
/// Bytes that are read and written at once.
const PIECE_BYTES: usize = 1 << 20;

/// A copy of a log that is being made. See the module.
#[derive(Debug)]
pub struct Relocation {
    disk: Arc<dyn Disk>,
    from: PathBuf,
    to: PathBuf,
    shared: Arc<Shared>,
    /// How often the log had been changed other than at its ends.
    rewrites: u64,
    /// How much of each file has been copied.
    copied: BTreeMap<String, u64>,
    /// Files of which not everything that was copied is durable.
    unsynced: BTreeSet<String>,
}

impl Log {
    /// Begins to copy the log into `to`, which is made; what is there goes.
    pub fn begin_relocation(&self, to: &Path) -> Result<Relocation, StorageError> {
        self.check_usable()?;
        let disk = self.disk.clone();
        let io = |error| StorageError::io("make", to, error);
        match disk.remove_dir_all(to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        disk.create_dir_all(to).map_err(io)?;
        Ok(Relocation {
            disk,
            from: self.dir.clone(),
            to: to.to_owned(),
            shared: self.shared.clone(),
            rewrites: self.rewrites(),
            copied: BTreeMap::new(),
            unsynced: BTreeSet::new(),
        })
    }

    /// Says that the log is elsewhere from now on. Whatever is asked of it is refused, as of one that has been
    /// deleted; readers that were made before read on.
    pub fn mark_moved(&mut self) {
        self.deleted = true;
    }

    /// How often the log was changed other than by growing at its end and losing segments at its start.
    pub(crate) fn rewrites(&self) -> u64 {
        self.cuts + self.replacements
    }
}

impl Relocation {
    /// Whether the log has been changed so that the copy is worth nothing.
    pub fn is_void(&self, log: &Log) -> bool {
        log.rewrites() != self.rewrites
    }

    /// The copy's directory.
    pub fn dir(&self) -> &Path {
        &self.to
    }

    /// Copies about so many bytes of what is not there yet. Returns how many; 0 once the copy has caught up.
    /// A read or write that fails is no failure of the log.
    pub fn copy_some(&mut self, max_bytes: u64) -> Result<u64, StorageError> {
        let segments = self.shared.segments.load_full();
        let mut done = 0;
        for (at, segment) in segments.iter().enumerate() {
            let is_sealed = at + 1 < segments.len();
            for (name, len) in self.files_of(segment, is_sealed) {
                while done < max_bytes {
                    let from = self.copied.get(&name).copied().unwrap_or(0);
                    if self.copied.contains_key(&name) && from >= len {
                        break;
                    }
                    let piece = (len - from).min(PIECE_BYTES as u64);
                    if !self.copy_piece(&name, from, piece)? {
                        // Retention was faster.
                        break;
                    }
                    done += piece;
                }
            }
            if is_sealed && done < max_bytes {
                self.sync_files_of(segment)?;
            }
        }
        Ok(done)
    }

    /// What of a segment is copied while the log is in use, and how far it goes by now. The files beside the
    /// records are complete once it is sealed.
    fn files_of(&self, segment: &Segment, is_sealed: bool) -> Vec<(String, u64)> {
        let name = |suffix: &str| {
            let path = offset_file(Path::new(""), segment.base_offset, suffix);
            path.to_string_lossy().into_owned()
        };
        let mut files = vec![(name(LOG_SUFFIX), u64::from(segment.end().size))];
        if is_sealed {
            let entries = |count: u32, size: usize| u64::from(count) * size as u64;
            files.push((
                name(OFFSET_INDEX_SUFFIX),
                entries(
                    segment.offset_index.entries(),
                    crate::index::OffsetEntry::SIZE,
                ),
            ));
            files.push((
                name(TIME_INDEX_SUFFIX),
                entries(segment.time_index.entries(), crate::index::TimeEntry::SIZE),
            ));
            if segment.txn_index.len_bytes() > 0 {
                files.push((name(TXN_INDEX_SUFFIX), segment.txn_index.len_bytes()));
            }
        }
        files
    }

    fn sync_files_of(&mut self, segment: &Segment) -> Result<(), StorageError> {
        for (name, _) in self.files_of(segment, true) {
            if self.unsynced.contains(&name) {
                self.sync_file(&name)?;
            }
        }
        Ok(())
    }

    /// Makes durable what has been copied so far.
    pub fn sync(&mut self) -> Result<(), StorageError> {
        for name in self.unsynced.clone() {
            self.sync_file(&name)?;
        }
        Ok(())
    }

    fn sync_file(&mut self, name: &str) -> Result<(), StorageError> {
        let path = self.to.join(name);
        self.disk
            .open(&path, OpenMode::Write)
            .and_then(|file| file.sync_data())
            .map_err(|error| StorageError::io("sync", &path, error))?;
        self.unsynced.remove(name);
        Ok(())
    }

    /// Copies a piece of a file behind what has been copied of it. Returns whether the file is still there.
    fn copy_piece(&mut self, name: &str, at: u64, len: u64) -> Result<bool, StorageError> {
        let (from, to) = (self.from.join(name), self.to.join(name));
        let source = match self.disk.open(&from, OpenMode::Read) {
            Ok(source) => source,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StorageError::io("open", &from, error)),
        };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)];
        source
            .read_exact_at(&mut bytes, at)
            .map_err(|error| StorageError::io("read", &from, error))?;
        self.unsynced.insert(name.to_owned());
        self.disk
            .open(&to, OpenMode::Create)
            .and_then(|file| {
                if at == 0 {
                    file.set_len(0)?;
                }
                match bytes.is_empty() {
                    true => Ok(()),
                    false => file.write_at(&bytes, at),
                }
            })
            .map_err(|error| StorageError::io("write", &to, error))?;
        self.copied.insert(name.to_owned(), at + bytes.len() as u64);
        Ok(true)
    }

    /// Bytes of records that have been copied.
    pub fn copied_bytes(&self) -> u64 {
        let logs = self
            .copied
            .iter()
            .filter(|(name, _)| name.ends_with(LOG_SUFFIX));
        logs.map(|(_, len)| len).sum()
    }

    /// Everything below has been copied, as far as it is still in the log.
    pub fn copied_end(&self) -> Offset {
        let segments = self.shared.segments.load();
        let mut end = Offset::ZERO;
        for segment in segments.iter() {
            let published = segment.end();
            let name = offset_file(Path::new(""), segment.base_offset, LOG_SUFFIX);
            let copied = self.copied.get(&*name.to_string_lossy()).copied();
            if copied.is_none_or(|copied| copied < u64::from(published.size)) {
                return segment.base_offset;
            }
            end = published.next_offset;
        }
        end
    }

    /// Copies what is missing of a log that has been closed, and makes all of it durable. It does not count yet.
    pub fn finish(&mut self) -> Result<(), StorageError> {
        let (disk, from) = (self.disk.clone(), self.from.clone());
        let list = |dir: &Path| {
            disk.list(dir)
                .map_err(|error| StorageError::io("list", dir, error))
        };
        let mut kept = BTreeSet::new();
        for entry in list(&from)?.into_iter().filter(|entry| !entry.is_dir) {
            let Some(is_grown) = is_moved(&entry.name) else {
                continue;
            };
            let known = self.copied.get(&entry.name).copied();
            let mut at = known
                .filter(|len| is_grown && *len <= entry.len)
                .unwrap_or(0);
            if at == 0 || at < entry.len {
                loop {
                    let piece = (entry.len - at).min(PIECE_BYTES as u64);
                    if !self.copy_piece(&entry.name, at, piece)? {
                        return Err(StorageError::corrupt(&from, 0, "a file is gone"));
                    }
                    at += piece;
                    if at >= entry.len {
                        break;
                    }
                }
            }
            kept.insert(entry.name);
        }
        for entry in list(&self.to)? {
            if !kept.contains(&entry.name) {
                remove_if_present(disk.as_ref(), &self.to.join(&entry.name))?;
                self.unsynced.remove(&entry.name);
            }
        }
        let moved = self.to.join(MOVED);
        disk.open(&moved, OpenMode::Create)
            .map_err(|error| StorageError::io("create", &moved, error))?;
        self.unsynced.insert(MOVED.to_owned());
        self.sync()?;
        disk.sync_dir(&self.to)
            .map_err(|error| StorageError::io("sync", &self.to, error))
    }

    /// Makes the finished copy the log, under the name `goal`. Durable on return. After an error nobody knows
    /// which of the two counts before the next start: neither may be written to.
    pub fn take_place(&self, goal: &Path) -> Result<(), StorageError> {
        self.disk
            .rename(&self.to, goal)
            .and_then(|()| match goal.parent() {
                Some(parent) => self.disk.sync_dir(parent),
                None => Ok(()),
            })
            .map_err(|error| StorageError::io("rename", &self.to, error))
    }

    /// Drops what has been copied.
    pub fn discard(self) -> Result<(), StorageError> {
        self.disk
            .remove_dir_all(&self.to)
            .map_err(|error| StorageError::io("remove", &self.to, error))
    }
}

/// Whether a file goes with the log, and if so, whether it only grows.
fn is_moved(name: &str) -> Option<bool> {
    let is_passing = [DELETED_SUFFIX, TEMPORARY_SUFFIX, ".cleaned", ".incoming"]
        .iter()
        .any(|suffix| name.ends_with(suffix));
    if is_passing || name == MOVED {
        return None;
    }
    let grows = [
        LOG_SUFFIX,
        OFFSET_INDEX_SUFFIX,
        TIME_INDEX_SUFFIX,
        TXN_INDEX_SUFFIX,
        SNAPSHOT_SUFFIX,
    ];
    Some(
        grows
            .iter()
            .any(|suffix| parse_offset(name, suffix).is_some()),
    )
}

/// Whether the log in `dir` was moved there, and the one that it was copied from may still be somewhere.
pub fn was_moved(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    match disk.open(&dir.join(MOVED), OpenMode::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends the move of a log to `dir`: takes the old one out of the way, if it is there. Returns where that is
/// now; whoever calls removes it.
pub fn finish_relocation(
    disk: &dyn Disk,
    dir: &Path,
    old: Option<&Path>,
    now: TimestampMs,
) -> Result<Option<PathBuf>, StorageError> {
    let mut retired = None;
    if let Some(old) = old {
        let name = old.file_name().unwrap_or_default().to_string_lossy();
        let goal = old.with_file_name(deleted_dir_name(&name, unique(old, now)));
        disk.rename(old, &goal)
            .and_then(|()| match old.parent() {
                Some(parent) => disk.sync_dir(parent),
                None => Ok(()),
            })
            .map_err(|error| StorageError::io("rename", old, error))?;
        retired = Some(goal);
    }
    remove_if_present(disk, &dir.join(MOVED))?;
    disk.sync_dir(dir)
        .map_err(|error| StorageError::io("sync", dir, error))?;
    Ok(retired)
}
