//! [`Disk`] on the operating system's file systems.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use odradek_protocol::ids::TimestampMs;
use odradek_protocol::response::RegionSource;
use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::disk::{
    Disk, DiskEntry, DiskFile, OpenMode, SyncFileSystem, is_out_of_descriptors, with_suffix,
};

/// `statfs` magic of ext2, ext3 and ext4.
const EXT4_MAGIC: u64 = 0xEF53;
/// `statfs` magic of XFS.
const XFS_MAGIC: u64 = 0x5846_5342;
/// Slices a single `pwritev` takes (`IOV_MAX` on Linux).
const MAX_SLICES: usize = 1024;
/// Writes of this size and more have their blocks allocated first, all at once.
const RESERVE_MIN_BYTES: usize = 256 * 1024;
/// Distance of the bytes that [`DiskFile::is_resident`] looks at: the kernel's usual read-ahead.
const PROBE_STEP_BYTES: u64 = 128 * 1024;

/// How often something that is open for a moment only is tried again when no descriptor is left.
const OPEN_ATTEMPTS: u32 = 50;
/// Pause between two attempts.
const OPEN_RETRY: Duration = Duration::from_millis(10);

/// The machine's own disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl RealDisk {
    /// A disk behind the trait, ready to be shared.
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(Self)
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(false);
            }
        }
        let file = options.open(path)?;
        let reserves = rustix::fs::fstatfs(&file)?.f_type as u64 == EXT4_MAGIC;
        Ok(Arc::new(RealFile { file, reserves }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed by somebody between the listing and the look.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let is_dir = metadata.is_dir();
            entries.push(DiskEntry {
                name,
                len: if is_dir { 0 } else { metadata.len() },
                is_dir,
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        patiently(|| File::open(path))?.sync_all()
    }

    fn replace_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        // Everything that has to be open is opened before anything changes.
        let dir = path.parent().map(|dir| patiently(|| File::open(dir)));
        let dir = dir.transpose()?;
        let temporary = with_suffix(path, ".tmp");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let file = patiently(|| options.open(&temporary))?;
        file.write_all_at(content, 0)?;
        file.sync_data()?;
        fs::rename(&temporary, path)?;
        dir.map_or(Ok(()), |dir| dir.sync_all())
    }

    fn modified(&self, path: &Path) -> io::Result<TimestampMs> {
        let since_epoch = fs::metadata(path)?
            .modified()?
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(TimestampMs::new(
            i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX),
        ))
    }

    fn file_system(&self, path: &Path) -> io::Result<Option<Box<dyn SyncFileSystem>>> {
        let dir = File::open(path)?;
        let magic = rustix::fs::fstatfs(&dir)?.f_type as u64;
        Ok(match magic {
            EXT4_MAGIC | XFS_MAGIC => Some(Box::new(RealFileSystem { dir })),
            _ => None,
        })
    }
}

/// A descriptor held back for what is opened for a moment only. Without it syncs could wait for one
/// that is only given back after a sync.
static SPARE: Mutex<Option<File>> = Mutex::new(None);

/// Opens what is closed again at once: with the descriptor held back, if there is no other. Others
/// close what they have opened for a moment, too, so that a short wait is likely to help; it is rare,
/// and short enough for any thread.
fn patiently<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..OPEN_ATTEMPTS {
        match open() {
            Err(error) if is_out_of_descriptors(&error) => {
                let spare = SPARE.lock().take();
                if spare.is_none() {
                    std::thread::sleep(OPEN_RETRY);
                }
            }
            result => {
                let mut spare = SPARE.lock();
                if spare.is_none() {
                    // Held back again as soon as there is one to spare.
                    *spare = File::open("/dev/null").ok();
                }
                return result;
            }
        }
    }
    open()
}

/// A file system that honours `syncfs`. The descriptor stays open, because Linux (5.8 and later)
/// reports each write-back failure once to every descriptor that was open when it happened.
#[derive(Debug)]
struct RealFileSystem {
    dir: File,
}

impl SyncFileSystem for RealFileSystem {
    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }
}

/// An open file of the operating system.
#[derive(Debug)]
struct RealFile {
    file: File,
    /// Whether its file system gains from [`RealFile::reserve`].
    reserves: bool,
}

impl RealFile {
    /// Allocates the blocks of a large write in one go. Without this ext4 reserves and tracks them
    /// one by one in the page cache, which costs as much as copying the bytes. The file's length
    /// stays, so a crash shows nothing of it; small writes are quicker without.
    fn reserve(&self, slices: &[IoSlice<'_>], position: u64) {
        if !self.reserves {
            return;
        }
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        if len >= RESERVE_MIN_BYTES {
            // A full disk is for the write itself to report.
            let _ =
                rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, position, len as u64);
        }
    }
}

impl RegionSource for RealFile {
    fn std_file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, position)
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, position)
    }

    fn write_vectored_at(
        &self,
        mut slices: &mut [IoSlice<'_>],
        mut position: u64,
    ) -> io::Result<()> {
        self.reserve(slices, position);
        while !slices.is_empty() {
            let count = slices.len().min(MAX_SLICES);
            let written = match rustix::io::pwritev(&self.file, &slices[..count], position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            position += written as u64;
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn settle(&self) -> io::Result<()> {
        // Only clean pages are dropped. Those of a write that failed are clean: Linux marks them so
        // and keeps them, and a second sync has nothing to complain of.
        self.file.sync_data()?;
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?;
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn is_resident(&self, position: u64, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let last = position + len as u64 - 1;
        let mut at = position;
        loop {
            let mut byte = [0];
            let read = rustix::io::preadv2(
                &self.file,
                &mut [IoSliceMut::new(&mut byte)],
                at,
                ReadWriteFlags::NOWAIT,
            );
            if !matches!(read, Ok(1)) {
                return false;
            }
            if at == last {
                return true;
            }
            at = (at + PROBE_STEP_BYTES).min(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_slices_than_one_call_takes_are_all_written_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = RealDisk.open(&path, OpenMode::Create).unwrap();
        let pieces: Vec<Vec<u8>> = (0..3000u32).map(|i| i.to_be_bytes().to_vec()).collect();
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        file.write_vectored_at(&mut slices, 5).unwrap();
        let mut expected = vec![0; 5];
        expected.extend(pieces.concat());
        assert_eq!(RealDisk.read_file(&path, 1 << 20).unwrap(), expected);
    }

    #[test]
    fn fresh_bytes_are_resident_and_bytes_past_the_end_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk
            .open(&dir.path().join("file"), OpenMode::Create)
            .unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        assert!(!file.is_resident(4096, 1));
        assert!(file.is_resident(0, 0));
    }

    #[test]
    fn replacing_a_file_leaves_no_temporary_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        RealDisk.replace_file(&path, b"longer old content").unwrap();
        RealDisk.replace_file(&path, b"new").unwrap();
        assert_eq!(RealDisk.read_file(&path, 100).unwrap(), b"new");
        assert_eq!(RealDisk.list(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_settled_file_is_read_from_the_disk_again() {
        // A file system that is memory, as /tmp may be, keeps what it has.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let file = RealDisk.open(&path, OpenMode::Create).unwrap();
        file.write_at(&[7; 1 << 20], 0).unwrap();
        file.settle().unwrap();
        RealDisk.settle_file(&path).unwrap();
        RealDisk.settle_file(&dir.path().join("missing")).unwrap();
        assert_eq!(RealDisk.read_file(&path, 1 << 20).unwrap(), [7; 1 << 20]);
    }
}
