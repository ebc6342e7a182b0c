//! A file that knows whether what was written to it is durable, and that holds a descriptor only
//! while it is used.
//!
//! Invariant: `durable ≤ written`. Both count writes, not bytes. `durable` is raised only after a
//! sync that began when `written` already had that value.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use odradek_protocol::response::{FileRegion, RegionSource};

use crate::disk::{Disk, DiskFile, OpenMode};

/// A file with its durability. Many threads may read; one at a time writes.
pub struct SyncFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    handle: ArcSwapOption<Handle>,
    used: AtomicBool,
    /// Its name means another file, or none.
    retired: AtomicBool,
    written: AtomicU64,
    durable: AtomicU64,
    /// What has to be durable for the file to be found again, if it is new.
    entry: Option<Arc<NewEntry>>,
}

/// The directory entries of files that were made together.
#[derive(Debug)]
pub(crate) struct NewEntry {
    /// Directories to sync: that of the files, and those above it that are new too.
    dirs: Vec<PathBuf>,
    durable: AtomicBool,
}

impl NewEntry {
    /// Entries that become durable with `dirs`. All files are to be made before one is synced.
    pub fn new(dirs: Vec<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            dirs,
            durable: AtomicBool::new(false),
        })
    }

    fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire)
    }

    fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        if self.is_durable() {
            return Ok(());
        }
        for dir in &self.dirs {
            match disk.sync_dir(dir) {
                // The directory was removed or renamed for removal, and the file with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        self.durable.store(true, Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
struct Handle(Arc<dyn DiskFile>);

impl SyncFile {
    /// A file that exists and is durable, content and name. It is opened when it is first used.
    pub fn existing(disk: Arc<dyn Disk>, path: PathBuf) -> Arc<Self> {
        Arc::new(Self::new(disk, path))
    }

    /// A file that exists and whose content is durable, but perhaps not its name.
    pub(crate) fn existing_with(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        entry: Option<Arc<NewEntry>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            entry,
            ..Self::new(disk, path)
        })
    }

    /// Makes a file, or opens it if it exists. It counts as not durable, and its first sync also
    /// syncs `dirs`: its directory, and those above it that are new too.
    pub fn create(disk: Arc<dyn Disk>, path: PathBuf, dirs: Vec<PathBuf>) -> io::Result<Arc<Self>> {
        let created = Self::create_with(disk, path, NewEntry::new(dirs))?;
        created.mark_written();
        Ok(created)
    }

    /// Makes one of several empty files whose entries become durable together.
    pub(crate) fn create_with(
        disk: Arc<dyn Disk>,
        path: PathBuf,
        entry: Arc<NewEntry>,
    ) -> io::Result<Arc<Self>> {
        let file = disk.open(&path, OpenMode::Create)?;
        Ok(Arc::new(Self {
            entry: Some(entry),
            handle: ArcSwapOption::from_pointee(Handle(file)),
            ..Self::new(disk, path)
        }))
    }

    fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self {
            disk,
            path,
            handle: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            entry: None,
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file; opens it if need be.
    pub fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        self.used.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.load().as_ref() {
            return Ok(handle.0.clone());
        }
        if self.retired.load(Ordering::Acquire) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = self.disk.open(&self.path, OpenMode::Write)?;
        self.handle.store(Some(Arc::new(Handle(file.clone()))));
        Ok(file)
    }

    /// Length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        self.file()?.len()
    }

    /// Whether the file holds no byte.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `position` on.
    pub fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file()?.read_exact_at(buffer, position)
    }

    /// A run of the file's bytes, to be sent without copying them.
    pub fn region(&self, position: u64, len: usize) -> io::Result<FileRegion> {
        let source: Arc<dyn RegionSource> = self.file()?;
        Ok(FileRegion {
            source,
            position,
            len,
        })
    }

    /// Writes all of `bytes` from `position` on.
    pub fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let result = self.file()?.write_at(bytes, position);
        self.mark_written();
        result
    }

    /// Writes all of `slices`, one after the other, from `position` on.
    pub fn write_vectored_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let result = self.file()?.write_vectored_at(slices, position);
        self.mark_written();
        result
    }

    /// Cuts the file off or extends it with zeros. Leaves the disk alone if the length is right.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let file = self.file()?;
        if file.len()? == len {
            return Ok(());
        }
        let result = file.set_len(len);
        self.mark_written();
        result
    }

    /// Counts the content as not durable, whatever is known of it.
    pub(crate) fn mark_written(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// Whether there is something that a power cut could take back.
    pub fn is_dirty(&self) -> bool {
        self.has_dirty_data() || self.entry.as_ref().is_some_and(|entry| !entry.is_durable())
    }

    /// Whether there is content that a power cut could take back.
    pub(crate) fn has_dirty_data(&self) -> bool {
        self.durable.load(Ordering::Acquire) < self.written.load(Ordering::Acquire)
    }

    /// Makes everything written so far durable, the file's name included.
    pub fn sync(&self) -> io::Result<()> {
        if self.has_dirty_data() {
            let mark = self.mark();
            self.file()?.sync_data()?;
            self.durable.fetch_max(mark.written, Ordering::AcqRel);
        }
        match &self.entry {
            Some(entry) => entry.sync(self.disk.as_ref()),
            None => Ok(()),
        }
    }

    /// What a sync of the whole file system that begins now will cover.
    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark {
            written: self.written.load(Ordering::Acquire),
        }
    }

    /// Records that a sync of the whole file system which began after `mark` has succeeded.
    pub(crate) fn set_durable(&self, mark: &SyncMark) {
        self.durable.fetch_max(mark.written, Ordering::AcqRel);
        if let Some(entry) = &self.entry {
            entry.durable.store(true, Ordering::Release);
        }
    }

    /// Closes the descriptor if the file was not used since the last call and has no content that
    /// waits for a sync. Whoever still holds the open file keeps it.
    pub fn release_if_idle(&self) {
        if !self.used.swap(false, Ordering::Relaxed) && !self.has_dirty_data() {
            self.handle.store(None);
        }
    }

    /// The file's name is about to mean another file: it is never opened again. Whoever has it open
    /// goes on.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether a descriptor is held.
    pub fn is_open(&self) -> bool {
        self.handle.load().is_some()
    }
}

impl fmt::Debug for SyncFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncFile")
            .field("path", &self.path)
            .field("dirty", &self.is_dirty())
            .finish_non_exhaustive()
    }
}

/// A point in a file's history of writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncMark {
    written: u64,
}
