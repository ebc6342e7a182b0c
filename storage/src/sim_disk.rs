//! A disk in memory that loses what a real one may lose.
//!
//! Every operation that changes something is a step with a number, counted from 1. The disk can be
//! told to stop at a step, or to fail it. [`SimDisk::power_cut`] then leaves what a power cut may
//! leave: everything that was synced; and of what was not, each write kept, lost or torn, and of
//! each directory some first few of its changes, as a seed decides. The same seed after the same
//! steps leaves the same bytes.
//!
//! As on Linux, a sync that failed has lost the writes it was to make durable: a later one succeeds
//! without them. Renames across directories are absent on purpose: nobody here needs one.

mod inodes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, IoSlice};
use std::path::{Component, Path};
use std::sync::Arc;

use odradek_protocol::ids::TimestampMs;
use odradek_protocol::response::RegionSource;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::disk::{Disk, DiskEntry, DiskFile, OpenMode, SyncFileSystem};
use inodes::{DirChange, DirInode, FileChange, FileInode, Inode, InodeId, SplitMix64};

const ROOT: InodeId = 0;

/// A simulated disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    inodes: HashMap<InodeId, Inode>,
    next_id: InodeId,
    steps: u64,
    syncs: u64,
    stop_at: Option<u64>,
    stopped: bool,
    failures: BTreeMap<u64, io::ErrorKind>,
    capacity: Option<u64>,
    /// How often something can still be opened.
    openings_left: Option<u64>,
    honours_sync_fs: bool,
    now: TimestampMs,
    /// Number of power cuts; files opened before the last one are dead.
    generation: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            inodes: HashMap::from([(ROOT, Inode::Dir(DirInode::default()))]),
            next_id: ROOT + 1,
            steps: 0,
            syncs: 0,
            stop_at: None,
            stopped: false,
            failures: BTreeMap::new(),
            capacity: None,
            openings_left: None,
            honours_sync_fs: false,
            now: TimestampMs::new(0),
            generation: 0,
        }
    }
}

impl SimDisk {
    /// An empty disk that loses nothing until told to.
    pub fn new() -> Self {
        Self::default()
    }

    /// The disk behind the trait.
    pub fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// How many of them were syncs, of files, directories or the whole.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Stops the disk at a step: the step fails halfway, and everything after it fails too, until
    /// the power is cut.
    pub fn stop_at(&self, step: u64) {
        self.state.lock().stop_at = Some(step);
    }

    /// Whether the disk has stopped.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Lets one step fail with this error. A failed write leaves half of its bytes.
    pub fn fail_at(&self, step: u64, error: io::ErrorKind) {
        self.state.lock().failures.insert(step, error);
    }

    /// Bounds the bytes in all files; a write past it fails with `StorageFull` and leaves what had
    /// room.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Lets files and directories be opened so many times more and then refuses, as the system does
    /// when no descriptor is left. `None` refuses no more.
    pub fn set_openings_left(&self, openings: Option<u64>) {
        self.state.lock().openings_left = openings;
    }

    /// Lets the whole file system be synced at once.
    pub fn honour_sync_fs(&self) {
        self.state.lock().honours_sync_fs = true;
    }

    /// The clock for times of modification.
    pub fn set_now(&self, now: TimestampMs) {
        self.state.lock().now = now;
    }

    /// Cuts the power: see the module's documentation for what is left. The disk works again
    /// afterwards, and files that were open are not.
    pub fn power_cut(&self, seed: u64) {
        let mut state = self.state.lock();
        let mut random = SplitMix64(seed);
        let mut ids: Vec<InodeId> = state.inodes.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            match state.inodes.get_mut(&id) {
                Some(Inode::File(file)) => file.power_cut(&mut random),
                Some(Inode::Dir(dir)) => dir.power_cut(&mut random),
                None => {}
            }
        }
        state.drop_unreachable();
        state.stopped = false;
        state.stop_at = None;
        state.failures.clear();
        state.generation += 1;
    }
}

/// What becomes of a step.
enum Step {
    Done,
    Fail(io::Error),
}

fn stopped() -> io::Error {
    io::Error::other("the simulated disk has stopped")
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl State {
    /// Counts a step. `Err` means that nothing of it may happen.
    fn step(&mut self) -> io::Result<Step> {
        if self.stopped {
            return Err(stopped());
        }
        self.steps += 1;
        if self.stop_at.is_some_and(|stop| self.steps >= stop) {
            self.stopped = true;
            return Ok(Step::Fail(stopped()));
        }
        Ok(match self.failures.remove(&self.steps) {
            Some(kind) => Step::Fail(kind.into()),
            None => Step::Done,
        })
    }

    /// A step that waits for what was written.
    fn sync_step(&mut self) -> io::Result<Step> {
        self.syncs += 1;
        self.step()
    }

    /// A step that happens wholly or not at all.
    fn atomic_step(&mut self) -> io::Result<()> {
        match self.step()? {
            Step::Done => Ok(()),
            Step::Fail(error) => Err(error),
        }
    }

    fn check_running(&self) -> io::Result<()> {
        if self.stopped { Err(stopped()) } else { Ok(()) }
    }

    fn take_descriptor(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.openings_left {
            *left = left.checked_sub(1).ok_or(Errno::MFILE)?;
        }
        Ok(())
    }

    fn resolve(&self, path: &Path) -> io::Result<InodeId> {
        let mut id = ROOT;
        for component in path.components() {
            if let Component::Normal(name) = component {
                let name = name.to_str().ok_or_else(not_found)?;
                let Some(Inode::Dir(dir)) = self.inodes.get(&id) else {
                    return Err(not_found());
                };
                id = *dir.entries.get(name).ok_or_else(not_found)?;
            }
        }
        Ok(id)
    }

    fn parent(&mut self, path: &Path) -> io::Result<(&mut DirInode, String)> {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(not_found)?
            .to_string();
        let id = self.resolve(path.parent().unwrap_or(Path::new("")))?;
        match self.inodes.get_mut(&id) {
            Some(Inode::Dir(dir)) => Ok((dir, name)),
            _ => Err(not_found()),
        }
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut DirInode> {
        let id = self.resolve(path)?;
        match self.inodes.get_mut(&id) {
            Some(Inode::Dir(dir)) => Ok(dir),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, id: InodeId, generation: u64) -> io::Result<&mut FileInode> {
        if self.generation != generation {
            return Err(io::Error::other("file was open when the power was cut"));
        }
        match self.inodes.get_mut(&id) {
            Some(Inode::File(file)) => Ok(file),
            _ => Err(not_found()),
        }
    }

    fn link(&mut self, path: &Path, inode: Inode) -> io::Result<InodeId> {
        let id = self.next_id;
        let (dir, name) = self.parent(path)?;
        dir.change(DirChange::Link(name, id));
        self.inodes.insert(id, inode);
        self.next_id += 1;
        Ok(id)
    }

    fn change_file(&mut self, id: InodeId, generation: u64, change: FileChange) -> io::Result<()> {
        let now = self.now;
        let file = self.file(id, generation)?;
        change.apply(&mut file.content);
        file.pending.push(change);
        file.modified = now;
        Ok(())
    }

    fn used(&self) -> u64 {
        self.inodes
            .values()
            .map(|inode| match inode {
                Inode::File(file) => file.content.len() as u64,
                Inode::Dir(_) => 0,
            })
            .sum()
    }

    fn drop_unreachable(&mut self) {
        let mut reachable = HashSet::from([ROOT]);
        let mut open = vec![ROOT];
        while let Some(id) = open.pop() {
            if let Some(Inode::Dir(dir)) = self.inodes.get(&id) {
                for child in dir.entries.values() {
                    if reachable.insert(*child) {
                        open.push(*child);
                    }
                }
            }
        }
        self.inodes.retain(|id, _| reachable.contains(id));
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.check_running()?;
        state.take_descriptor()?;
        let id = match state.resolve(path) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound && mode == OpenMode::Create => {
                state.parent(path)?;
                state.atomic_step()?;
                let modified = state.now;
                state.link(
                    path,
                    Inode::File(FileInode {
                        modified,
                        ..FileInode::default()
                    }),
                )?
            }
            Err(error) => return Err(error),
        };
        let generation = state.generation;
        state.file(id, generation)?;
        Ok(Arc::new(SimFile {
            state: self.state.clone(),
            id,
            generation,
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut ancestors: Vec<&Path> = path.ancestors().collect();
        ancestors.reverse();
        for dir in ancestors {
            if state.resolve(dir).is_err() {
                state.atomic_step()?;
                state.link(dir, Inode::Dir(DirInode::default()))?;
            }
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        let mut state = self.state.lock();
        state.check_running()?;
        let entries = state.dir(path)?.entries.clone();
        Ok(entries
            .into_iter()
            .filter_map(|(name, id)| {
                let (len, is_dir) = match state.inodes.get(&id)? {
                    Inode::File(file) => (file.content.len() as u64, false),
                    Inode::Dir(_) => (0, true),
                };
                Some(DiskEntry { name, len, is_dir })
            })
            .collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        if from.parent() != to.parent() {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        state.resolve(from)?;
        state.atomic_step()?;
        let (_, to) = state.parent(to)?;
        let (dir, from) = state.parent(from)?;
        dir.change(DirChange::Rename(from, to));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.resolve(path)?;
        state.atomic_step()?;
        let (dir, name) = state.parent(path)?;
        dir.change(DirChange::Unlink(name));
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.take_descriptor()?;
        let step = state.sync_step()?;
        let dir = state.dir(path)?;
        match step {
            Step::Done => {
                for change in dir.pending.drain(..) {
                    change.apply(&mut dir.durable);
                }
                Ok(())
            }
            Step::Fail(error) => Err(error),
        }
    }

    fn modified(&self, path: &Path) -> io::Result<TimestampMs> {
        let mut state = self.state.lock();
        let (id, generation) = (state.resolve(path)?, state.generation);
        Ok(state.file(id, generation)?.modified)
    }

    fn file_system(&self, _path: &Path) -> io::Result<Option<Box<dyn SyncFileSystem>>> {
        if self.state.lock().honours_sync_fs {
            Ok(Some(Box::new(self.clone())))
        } else {
            Ok(None)
        }
    }
}

impl SyncFileSystem for SimDisk {
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let step = state.sync_step()?;
        for inode in state.inodes.values_mut() {
            match (inode, &step) {
                (Inode::File(file), Step::Done) => file.sync(),
                (Inode::File(file), Step::Fail(_)) => file.pending.clear(),
                (Inode::Dir(dir), Step::Done) => {
                    for change in dir.pending.drain(..) {
                        change.apply(&mut dir.durable);
                    }
                }
                (Inode::Dir(_), Step::Fail(_)) => {}
            }
        }
        match step {
            Step::Done => Ok(()),
            Step::Fail(error) => Err(error),
        }
    }
}

/// An open file of a simulated disk.
#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    id: InodeId,
    generation: u64,
}

impl SimFile {
    fn write(&self, mut bytes: Vec<u8>, position: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file(self.id, self.generation)?;
        let mut failure = match state.step()? {
            Step::Done => None,
            Step::Fail(error) => {
                // The stopped disk has the whole write in its cache; it is torn at the power cut.
                if !state.stopped {
                    bytes.truncate(bytes.len() / 2);
                }
                Some(error)
            }
        };
        let position = usize::try_from(position).map_err(io::Error::other)?;
        if let Some(capacity) = state.capacity {
            let len = state.file(self.id, self.generation)?.content.len();
            let room = capacity.saturating_sub(state.used()) as usize;
            let most = (len + room).saturating_sub(position);
            if bytes.len() > most {
                bytes.truncate(most);
                failure = Some(io::ErrorKind::StorageFull.into());
            }
        }
        if !bytes.is_empty() {
            state.change_file(
                self.id,
                self.generation,
                FileChange::Write { position, bytes },
            )?;
        }
        failure.map_or(Ok(()), Err)
    }
}

impl RegionSource for SimFile {
    fn std_file(&self) -> Option<&std::fs::File> {
        None
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check_running()?;
        let file = state.file(self.id, self.generation)?;
        let bytes = usize::try_from(position)
            .ok()
            .and_then(|start| file.content.get(start..)?.get(..buffer.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write(bytes.to_vec(), position)
    }

    fn write_vectored_at(&self, slices: &mut [IoSlice<'_>], position: u64) -> io::Result<()> {
        let bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        self.write(bytes, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file(self.id, self.generation)?;
        let step = state.sync_step()?;
        let stopped = state.stopped;
        let file = state.file(self.id, self.generation)?;
        match step {
            Step::Done => {
                file.sync();
                Ok(())
            }
            Step::Fail(error) => {
                if !stopped {
                    file.pending.clear();
                }
                Err(error)
            }
        }
    }

    fn settle(&self) -> io::Result<()> {
        self.sync_data()?;
        let mut state = self.state.lock();
        let file = state.file(self.id, self.generation)?;
        file.content.clone_from(&file.durable);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file(self.id, self.generation)?;
        state.atomic_step()?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        state.change_file(self.id, self.generation, FileChange::SetLen(len))
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.check_running()?;
        Ok(state.file(self.id, self.generation)?.content.len() as u64)
    }

    fn is_resident(&self, _position: u64, _len: usize) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
        disk.read_file(Path::new(path), 1 << 20).ok()
    }

    #[test]
    fn a_power_cut_takes_nothing_that_was_synced_with_its_directory() {
        for seed in 0..200 {
            let disk = SimDisk::new();
            disk.create_dir_all(Path::new("d")).unwrap();
            disk.sync_dir(Path::new("")).unwrap();
            let file = disk.open(Path::new("d/f"), OpenMode::Create).unwrap();
            file.write_at(b"safe", 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("d")).unwrap();
            file.write_at(b"unsafe", 4).unwrap();
            disk.power_cut(seed);
            let after = content(&disk, "d/f").unwrap();
            assert!(after.starts_with(b"safe"), "seed {seed}");
            assert!(file.len().is_err(), "an old handle is dead");
        }
    }

    #[test]
    fn unsynced_writes_are_kept_lost_and_torn_as_the_seed_says() {
        let outcomes: HashSet<Vec<u8>> = (0..500)
            .map(|seed| {
                let disk = SimDisk::new();
                let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
                file.sync_data().unwrap();
                disk.sync_dir(Path::new("")).unwrap();
                file.write_at(&[1; 1024], 0).unwrap();
                file.write_at(&[2; 10], 1024).unwrap();
                disk.power_cut(seed);
                content(&disk, "f").unwrap()
            })
            .collect();
        assert!(outcomes.contains(&Vec::new()));
        assert!(outcomes.contains(&[[1; 1024].as_slice(), &[2; 10]].concat()));
        assert!(outcomes.contains(&vec![1; 512]));
        assert!(outcomes.contains(&[[0; 1024].as_slice(), &[2; 10]].concat()));
    }

    #[test]
    fn a_file_whose_directory_was_not_synced_may_be_gone() {
        let survived = (0..100).filter(|seed| {
            let disk = SimDisk::new();
            let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
            file.sync_data().unwrap();
            disk.power_cut(*seed);
            content(&disk, "f").is_some()
        });
        assert!((1..100).contains(&survived.count()));
    }

    #[test]
    fn a_failed_sync_has_lost_its_writes_although_the_next_one_succeeds() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        file.write_at(b"lost", 0).unwrap();
        disk.fail_at(disk.steps() + 1, io::ErrorKind::Other);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        assert_eq!(content(&disk, "f").unwrap(), b"lost");
        disk.power_cut(1);
        assert_eq!(content(&disk, "f").unwrap(), b"");
    }

    #[test]
    fn a_stopped_disk_does_nothing_until_the_power_is_cut() {
        let disk = SimDisk::new();
        let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
        disk.stop_at(disk.steps() + 2);
        file.write_at(b"a", 0).unwrap();
        assert!(file.write_at(b"b", 1).is_err());
        assert!(file.sync_data().is_err());
        assert!(disk.is_stopped());
        assert!(content(&disk, "f").is_none());
        disk.power_cut(0);
        assert!(disk.open(Path::new("g"), OpenMode::Create).is_ok());
    }

    #[test]
    fn a_full_disk_takes_what_has_room() {
        let disk = SimDisk::new();
        disk.set_capacity(Some(6));
        let file = disk.open(Path::new("f"), OpenMode::Create).unwrap();
        file.write_at(b"1234", 0).unwrap();
        let error = file.write_at(b"56789", 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(content(&disk, "f").unwrap(), b"123456");
        file.write_at(b"xx", 0).unwrap();
    }
}
