//! The seam between the log and the operating system: everything that touches a disk goes through
//! [`Disk`] and [`DiskFile`], so that a simulated disk can stand in for the real one.
//!
//! Contract, as strict as POSIX and no stricter: bytes written are readable at once, but survive a
//! power cut only after `sync_data` of their file *and*, for a file that is new or was renamed,
//! `sync_dir` of its directory. Unsynced writes may be kept, lost or torn, in any order.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::ids::TimestampMs;
use odradek_protocol::response::RegionSource;
use rustix::io::Errno;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// For reading; it has to exist.
    Read,
    /// For reading and writing; it has to exist.
    Write,
    /// For reading and writing; made empty if it does not exist, left as it is if it does.
    Create,
}

/// What a directory listing tells of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskEntry {
    /// File name without directory.
    pub name: String,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// A disk, or a stand-in for one.
pub trait Disk: Send + Sync + fmt::Debug + 'static {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a directory and its missing parents.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// What is in a directory, in name order. Names that are not Unicode are left out.
    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>>;

    /// Renames a file or directory, replacing a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory's entries durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// [`DiskFile::settle`] for a file that may not exist.
    fn settle_file(&self, path: &Path) -> io::Result<()> {
        match self.open(path, OpenMode::Write) {
            Ok(file) => file.settle(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// When the file's content last changed.
    fn modified(&self, path: &Path) -> io::Result<TimestampMs>;

    /// A handle to sync the whole file system of `path` at once, or `None` where that is not known
    /// to wait until data and directory entries are on stable storage and to report failures.
    fn file_system(&self, path: &Path) -> io::Result<Option<Box<dyn SyncFileSystem>>>;

    /// Reads a whole file, which must not be longer than `limit` bytes.
    fn read_file(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, OpenMode::Read)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        if len > limit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("file of {len} bytes, at most {limit} expected"),
            ));
        }
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Replaces a file's content so that a crash leaves the old content or the new, never a mix,
    /// and returns when the new one is durable. If it fails for want of descriptors, the file is as
    /// it was.
    fn replace_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let temporary = with_suffix(path, ".tmp");
        let file = self.open(&temporary, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(content, 0)?;
        file.sync_data()?;
        drop(file);
        self.rename(&temporary, path)?;
        match path.parent() {
            Some(dir) => self.sync_dir(dir),
            None => Ok(()),
        }
    }
}

/// A file system that can be synced as a whole.
pub trait SyncFileSystem: Send + Sync + fmt::Debug {
    /// Makes everything written to the file system so far durable. A write-back failure since the
    /// handle was made is reported once.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Positions and lengths are in bytes.
pub trait DiskFile: RegionSource + fmt::Debug + 'static {
    /// Writes all of `bytes` from `position` on.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Writes all of `slices`, one after the other, from `position` on. The slices are used up.
    fn write_vectored_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Makes the content, and the length that is needed to read it, durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file off or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the content durable, and has the next reads come from the disk itself rather than from
    /// what the system keeps in memory: that may hold what the disk has refused to take. As far as
    /// the system does what it is asked for.
    fn settle(&self) -> io::Result<()>;

    /// The file's length.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Whether reading this run of bytes is likely to be served from memory. A hint that decides
    /// which thread reads, nothing more; "no" when the system cannot tell.
    fn is_resident(&self, position: u64, len: usize) -> bool;
}

/// Whether a failure says that the process or the system can open nothing more at the moment.
/// Nothing has been tried on the file then, and the next attempt may succeed: it is a refusal, not a
/// failed disk.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// `path` with `suffix` appended to its file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}
