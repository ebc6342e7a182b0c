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
use parking_lot::Mutex;

use crate::disk::{Disk, DiskFile, OpenMode};

/// A file with its durability. Many threads may read; one at a time writes.
pub struct SyncFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    handle: ArcSwapOption<Handle>,
    used: AtomicBool,
    written: AtomicU64,
    durable: AtomicU64,
    /// Directories whose entries have to be durable before this file can be found again.
    unsynced_dirs: Mutex<Vec<PathBuf>>,
}

#[derive(Debug)]
struct Handle(Arc<dyn DiskFile>);

impl SyncFile {
    /// A file that exists and whose content is durable. It is opened when it is first used.
    pub fn existing(disk: Arc<dyn Disk>, path: PathBuf) -> Arc<Self> {
        Arc::new(Self::new(disk, path))
    }

    /// Makes a file, or opens it if it exists. It counts as not durable, and its first sync also
    /// syncs `dirs`: its directory, and those above it that are new too.
    pub fn create(disk: Arc<dyn Disk>, path: PathBuf, dirs: Vec<PathBuf>) -> io::Result<Arc<Self>> {
        let file = disk.open(&path, OpenMode::Create)?;
        let created = Self {
            unsynced_dirs: Mutex::new(dirs),
            written: AtomicU64::new(1),
            handle: ArcSwapOption::from_pointee(Handle(file)),
            ..Self::new(disk, path)
        };
        Ok(Arc::new(created))
    }

    fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self {
            disk,
            path,
            handle: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            unsynced_dirs: Mutex::new(Vec::new()),
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

    /// Cuts the file off or extends it with zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let result = self.file()?.set_len(len);
        self.mark_written();
        result
    }

    /// Counts the content as not durable, whatever is known of it.
    pub(crate) fn mark_written(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// Whether there is something that a power cut could take back.
    pub fn is_dirty(&self) -> bool {
        self.durable.load(Ordering::Acquire) < self.written.load(Ordering::Acquire)
    }

    /// Makes everything written so far durable, the file's name included.
    pub fn sync(&self) -> io::Result<()> {
        let mark = self.mark();
        if self.durable.load(Ordering::Acquire) >= mark.written {
            return Ok(());
        }
        self.file()?.sync_data()?;
        for dir in &mark.dirs {
            match self.disk.sync_dir(dir) {
                // The directory was removed or renamed for removal, and the file with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        self.set_durable(&mark);
        Ok(())
    }

    /// What a sync that begins now will cover.
    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark {
            written: self.written.load(Ordering::Acquire),
            dirs: self.unsynced_dirs.lock().clone(),
        }
    }

    /// Records that a sync which began after `mark` has succeeded.
    pub(crate) fn set_durable(&self, mark: &SyncMark) {
        if !mark.dirs.is_empty() {
            self.unsynced_dirs
                .lock()
                .retain(|dir| !mark.dirs.contains(dir));
        }
        self.durable.fetch_max(mark.written, Ordering::AcqRel);
    }

    /// Closes the descriptor if the file was not used since the last call and has nothing that
    /// waits for a sync. Whoever still holds the open file keeps it.
    pub fn release_if_idle(&self) {
        if !self.used.swap(false, Ordering::Relaxed) && !self.is_dirty() {
            self.handle.store(None);
        }
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
#[derive(Debug)]
pub(crate) struct SyncMark {
    written: u64,
    dirs: Vec<PathBuf>,
}
