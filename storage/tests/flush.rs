//! The flusher: what is called back is durable, syncs are shared, and a failure is final.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use odradek_storage::disk::{Disk, DiskEntry, DiskFile, OpenMode, SyncFileSystem};
use odradek_storage::flush::{FlushTarget, Flusher, FlusherOptions};
use odradek_storage::{LogDirHealth, RealDisk, SimDisk, SyncFile};

use odradek_protocol::ids::TimestampMs;
use odradek_protocol::response::RegionSource;

/// A disk whose syncs wait at a gate and are counted.
#[derive(Debug)]
struct GatedDisk {
    inner: SimDisk,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: std::sync::Condvar,
    file_syncs: AtomicUsize,
    fs_syncs: AtomicUsize,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        while *closed {
            closed = self.changed.wait(closed).unwrap();
        }
    }
}

impl Disk for GatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GatedFile {
            inner: self.inner.open(path, mode)?,
            gate: self.gate.clone(),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DiskEntry>> {
        self.inner.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn modified(&self, path: &Path) -> io::Result<TimestampMs> {
        self.inner.modified(path)
    }

    fn file_system(&self, path: &Path) -> io::Result<Option<Box<dyn SyncFileSystem>>> {
        let inner = self.inner.file_system(path)?;
        let gate = self.gate.clone();
        Ok(inner.map(|inner| Box::new(GatedFileSystem { inner, gate }) as Box<dyn SyncFileSystem>))
    }
}

#[derive(Debug)]
struct GatedFile {
    inner: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl RegionSource for GatedFile {
    fn std_file(&self) -> Option<&std::fs::File> {
        None
    }

    fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, position)
    }
}

impl DiskFile for GatedFile {
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.inner.write_at(bytes, position)
    }

    fn write_vectored_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.inner.write_vectored_at(slices, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.file_syncs.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        self.inner.sync_data()
    }

    fn settle(&self) -> io::Result<()> {
        self.inner.settle()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn is_resident(&self, position: u64, len: usize) -> bool {
        self.inner.is_resident(position, len)
    }
}

#[derive(Debug)]
struct GatedFileSystem {
    inner: Box<dyn SyncFileSystem>,
    gate: Arc<Gate>,
}

impl SyncFileSystem for GatedFileSystem {
    fn sync(&self) -> io::Result<()> {
        self.gate.fs_syncs.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        self.inner.sync()
    }
}

struct Rig {
    sim: SimDisk,
    gate: Arc<Gate>,
    disk: Arc<dyn Disk>,
    health: Arc<LogDirHealth>,
}

impl Rig {
    fn new(sim: SimDisk) -> Self {
        sim.create_dir_all(Path::new("d")).unwrap();
        sim.sync_dir(Path::new("")).unwrap();
        let gate = Arc::new(Gate::default());
        let disk: Arc<dyn Disk> = Arc::new(GatedDisk {
            inner: sim.clone(),
            gate: gate.clone(),
        });
        Self {
            sim,
            gate,
            disk,
            health: LogDirHealth::new("d"),
        }
    }

    fn flusher(&self, threads: usize, sync_fs_min_files: usize) -> Flusher {
        let options = FlusherOptions {
            threads,
            sync_fs_min_files,
        };
        Flusher::start(&self.disk, self.health.clone(), options).unwrap()
    }

    fn file(&self, name: &str) -> Arc<SyncFile> {
        let path = Path::new("d").join(name);
        SyncFile::create(self.disk.clone(), path, vec!["d".into()]).unwrap()
    }
}

fn write(file: &Arc<SyncFile>) -> FlushTarget {
    let end = file.len().unwrap();
    file.write_at(b"x", end).unwrap();
    target(file)
}

fn target(file: &Arc<SyncFile>) -> FlushTarget {
    let mut target = FlushTarget::new();
    target.add(file);
    target
}

fn submit(flusher: &Flusher, target: FlushTarget) -> Receiver<io::Result<()>> {
    let (sender, receiver) = channel();
    flusher.submit(
        target,
        Box::new(move |result| {
            // The test may have given up on it.
            let _ = sender.send(result);
        }),
    );
    receiver
}

fn wait(receiver: &Receiver<io::Result<()>>) -> io::Result<()> {
    receiver.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// Waits until a count is reached; other threads get there by themselves.
fn wait_until(count: &AtomicUsize, wanted: usize) {
    for _ in 0..4000 {
        if count.load(Ordering::SeqCst) >= wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} of {wanted}", count.load(Ordering::SeqCst));
}

#[test]
fn what_is_called_back_survives_a_power_cut_with_its_name() {
    let rig = Rig::new(SimDisk::new());
    let flusher = rig.flusher(2, usize::MAX);
    let file = rig.file("f");
    wait(&submit(&flusher, write(&file))).unwrap();
    assert!(!file.is_dirty());
    rig.sim.power_cut(3);
    assert_eq!(rig.sim.read_file(Path::new("d/f"), 10).unwrap(), b"x");
}

#[test]
fn submissions_during_a_sync_share_the_next_one() {
    let rig = Rig::new(SimDisk::new());
    let flusher = rig.flusher(4, usize::MAX);
    let file = rig.file("f");
    rig.gate.set(true);
    let first = submit(&flusher, write(&file));
    wait_until(&rig.gate.file_syncs, 1);
    let later: Vec<_> = (0..50).map(|_| submit(&flusher, write(&file))).collect();
    assert!(first.try_recv().is_err());
    rig.gate.set(false);
    wait(&first).unwrap();
    later.iter().for_each(|receiver| wait(receiver).unwrap());
    assert_eq!(rig.gate.file_syncs.load(Ordering::SeqCst), 2);
}

#[test]
fn a_file_that_is_slow_to_sync_does_not_hold_up_the_others() {
    let slow = Rig::new(SimDisk::new());
    let quick = Rig::new(SimDisk::new());
    let flusher = slow.flusher(2, usize::MAX);
    slow.gate.set(true);
    let stuck = submit(&flusher, write(&slow.file("slow")));
    wait_until(&slow.gate.file_syncs, 1);
    wait(&submit(&flusher, write(&quick.file("quick")))).unwrap();
    assert!(stuck.try_recv().is_err());
    slow.gate.set(false);
    wait(&stuck).unwrap();
}

#[test]
fn a_target_of_several_files_waits_for_all_of_them() {
    let slow = Rig::new(SimDisk::new());
    let quick = Rig::new(SimDisk::new());
    let flusher = slow.flusher(2, usize::MAX);
    slow.gate.set(true);
    let mut both = write(&quick.file("quick"));
    both.extend(write(&slow.file("slow")));
    let receiver = submit(&flusher, both);
    wait_until(&slow.gate.file_syncs, 1);
    wait_until(&quick.gate.file_syncs, 1);
    assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
    slow.gate.set(false);
    wait(&receiver).unwrap();
}

#[test]
fn many_files_are_synced_by_one_sync_of_the_file_system() {
    let sim = SimDisk::new();
    sim.honour_sync_fs();
    let rig = Rig::new(sim);
    let flusher = rig.flusher(1, 8);
    let blocker = rig.file("blocker");
    let files: Vec<_> = (0..40).map(|i| rig.file(&format!("f{i}"))).collect();
    rig.gate.set(true);
    let blocked = submit(&flusher, write(&blocker));
    wait_until(&rig.gate.file_syncs, 1);
    let receivers: Vec<_> = files
        .iter()
        .map(|file| submit(&flusher, write(file)))
        .collect();
    rig.gate.set(false);
    wait(&blocked).unwrap();
    receivers
        .iter()
        .for_each(|receiver| wait(receiver).unwrap());
    assert_eq!(rig.gate.fs_syncs.load(Ordering::SeqCst), 1);
    assert_eq!(rig.gate.file_syncs.load(Ordering::SeqCst), 1);
    assert!(files.iter().all(|file| !file.is_dirty()));
    let stats = flusher.stats();
    assert_eq!(
        (stats.submitted, stats.file_syncs, stats.fs_syncs),
        (41, 1, 1)
    );
    rig.sim.power_cut(1);
    assert_eq!(rig.sim.list(Path::new("d")).unwrap().len(), 41);
}

#[test]
fn a_failed_sync_is_final_for_the_whole_directory() {
    for honours_sync_fs in [false, true] {
        let sim = SimDisk::new();
        if honours_sync_fs {
            sim.honour_sync_fs();
        }
        let rig = Rig::new(sim);
        let flusher = rig.flusher(2, 1);
        let (file, other) = (rig.file("f"), rig.file("other"));
        let target = write(&file);
        rig.sim.fail_at(rig.sim.steps() + 1, io::ErrorKind::Other);
        assert!(wait(&submit(&flusher, target)).is_err());
        assert!(rig.health.is_offline());
        assert!(file.is_dirty(), "what failed is not taken for durable");
        // The disk would work again; nobody asks it.
        let syncs = rig.sim.steps();
        for file in [&file, &other] {
            assert!(wait(&submit(&flusher, target_of(file))).is_err());
        }
        assert_eq!(rig.sim.steps(), syncs);
    }
}

fn target_of(file: &Arc<SyncFile>) -> FlushTarget {
    target(file)
}

#[test]
fn a_clean_target_is_durable_at_once_and_dropping_the_flusher_finishes_the_rest() {
    let rig = Rig::new(SimDisk::new());
    let flusher = rig.flusher(2, usize::MAX);
    wait(&submit(&flusher, FlushTarget::new())).unwrap();
    let receivers: Vec<_> = (0..30)
        .map(|i| submit(&flusher, write(&rig.file(&format!("f{i}")))))
        .collect();
    drop(flusher);
    for receiver in receivers {
        receiver.try_recv().unwrap().unwrap();
    }
}

#[test]
fn the_real_disk_flushes_under_many_threads() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::shared();
    let health = LogDirHealth::new(dir.path());
    let options = FlusherOptions {
        threads: 3,
        sync_fs_min_files: 4,
    };
    let flusher = Arc::new(Flusher::start(&disk, health, options).unwrap());
    let writers: Vec<_> = (0..12)
        .map(|index| {
            let file = SyncFile::create(
                disk.clone(),
                dir.path().join(format!("f{index}")),
                vec![dir.path().to_path_buf()],
            )
            .unwrap();
            let flusher = flusher.clone();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    wait(&submit(&flusher, write(&file))).unwrap();
                    assert!(!file.is_dirty());
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(flusher.stats().submitted, 240);
}
