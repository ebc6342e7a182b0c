//! Shared syncing for all logs of one log directory.
//!
//! Callers submit the files they have written to and are called back once those files are durable.
//! A file that is being synced takes the next submissions in its next sync, so that however many
//! appends arrive during one `fdatasync`, they share the next. One dirty file is synced by itself,
//! several by a pool of threads, and many by one `syncfs`, where the file system honours it and
//! where it has lately been the cheaper of the two.
//!
//! A failed sync takes the log directory offline and is never repeated: every later submission
//! fails at once. The queue holds each file once; the number of callbacks waiting is bounded by
//! what the callers keep in flight.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::disk::{Disk, SyncFileSystem, is_out_of_descriptors};
use crate::health::LogDirHealth;
use crate::sync_file::SyncFile;

/// Pause before a thread tries again to open what it has to sync.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(20);

/// Called once, from a thread that must not be blocked, when a target is durable or has failed.
pub type FlushCallback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// The files that have to be durable together.
#[derive(Clone, Debug, Default)]
pub struct FlushTarget {
    files: Vec<Arc<SyncFile>>,
}

impl FlushTarget {
    /// A target without files: durable at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file unless everything in it is durable.
    pub fn add(&mut self, file: &Arc<SyncFile>) {
        if file.is_dirty() {
            self.files.push(file.clone());
        }
    }

    /// Adds the files of another target.
    pub fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
    }

    /// Whether there is nothing to sync.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Syncs the files on the calling thread, one after the other.
    pub fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync())
    }
}

/// How a [`Flusher`] works.
#[derive(Clone, Copy, Debug)]
pub struct FlusherOptions {
    /// Threads that sync single files.
    pub threads: usize,
    /// Number of files waiting from which on `syncfs` is considered.
    pub sync_fs_min_files: usize,
}

impl Default for FlusherOptions {
    fn default() -> Self {
        Self {
            threads: 8,
            sync_fs_min_files: 16,
        }
    }
}

/// What a flusher has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushStats {
    /// Targets submitted.
    pub submitted: u64,
    /// Files synced one by one.
    pub file_syncs: u64,
    /// Time spent in them, summed over the threads, in microseconds.
    pub file_sync_us: u64,
    /// Syncs of the whole file system.
    pub fs_syncs: u64,
    /// Time spent in them, in microseconds.
    pub fs_sync_us: u64,
}

/// Makes files durable; see the module's documentation.
#[derive(Debug)]
pub struct Flusher {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Flusher {
    /// A flusher with its own threads for the log directory of `health`.
    pub fn start(
        disk: &Arc<dyn Disk>,
        health: Arc<LogDirHealth>,
        options: FlusherOptions,
    ) -> io::Result<Self> {
        let file_system = disk.file_system(health.path())?;
        let shared = Arc::new(Shared::new(health, file_system, options));
        let threads = (0..options.threads.max(1))
            .map(|index| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("flush-{index}"))
                    .spawn(move || shared.work())
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self { shared, threads })
    }

    /// A flusher without threads, which syncs before `submit` returns: for simulations, where what
    /// happens when must not depend on the scheduler.
    pub fn inline(health: Arc<LogDirHealth>) -> Self {
        Self {
            shared: Arc::new(Shared::new(health, None, FlusherOptions::default())),
            threads: Vec::new(),
        }
    }

    /// Has the target's files made durable, as they are now, and then calls `callback`.
    pub fn submit(&self, target: FlushTarget, callback: FlushCallback) {
        let shared = &self.shared;
        shared.submitted.fetch_add(1, Ordering::Relaxed);
        if let Some(cause) = shared.health.failure() {
            callback(Err(io::Error::other(cause.to_string())));
            return;
        }
        if target.is_empty() {
            callback(Ok(()));
            return;
        }
        if self.threads.is_empty() {
            let result = target.sync();
            if let Err(error) = &result {
                shared.health.fail(error);
            }
            callback(result);
            return;
        }
        let ticket = Arc::new(Ticket {
            remaining: AtomicUsize::new(target.files.len()),
            outcome: Mutex::new((Some(callback), None)),
        });
        let mut wake = 0;
        {
            let mut queue = shared.queue.lock();
            for file in target.files {
                wake += usize::from(queue.add(file, ticket.clone()));
            }
        }
        for _ in 0..wake {
            shared.wake.notify_one();
        }
    }

    /// The log directory's state.
    pub fn health(&self) -> &Arc<LogDirHealth> {
        &self.shared.health
    }

    /// Counts since the start.
    pub fn stats(&self) -> FlushStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        FlushStats {
            submitted: read(&self.shared.submitted),
            file_syncs: read(&self.shared.file_syncs),
            file_sync_us: read(&self.shared.file_sync_us),
            fs_syncs: read(&self.shared.fs_syncs),
            fs_sync_us: read(&self.shared.fs_sync_us),
        }
    }
}

impl Drop for Flusher {
    /// Waits until everything submitted is done.
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
        let current = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last owner may be a callback, on one of the threads themselves.
            if thread.thread().id() != current {
                // A panic in a callback has been printed by the thread already.
                let _ = thread.join();
            }
        }
    }
}

/// A submission; its callback runs when the last of its files is done.
struct Ticket {
    remaining: AtomicUsize,
    outcome: Mutex<(Option<FlushCallback>, Option<io::Error>)>,
}

impl Ticket {
    fn file_done(&self, result: &io::Result<()>) {
        if let Err(error) = result {
            self.outcome.lock().1 = Some(copy_of(error));
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            let (callback, error) = {
                let mut outcome = self.outcome.lock();
                (outcome.0.take(), outcome.1.take())
            };
            if let Some(callback) = callback {
                callback(error.map_or(Ok(()), Err));
            }
        }
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Identity of a file while somebody holds it.
type FileKey = usize;

struct Job {
    file: Arc<SyncFile>,
    tickets: Vec<Arc<Ticket>>,
}

impl Job {
    fn done(self, result: &io::Result<()>) {
        for ticket in self.tickets {
            ticket.file_done(result);
        }
    }
}

#[derive(Default)]
struct Queue {
    /// Files with submissions that no sync has begun to cover.
    waiting: HashMap<FileKey, Job>,
    /// Those of them that are not being synced, oldest first.
    ready: VecDeque<FileKey>,
    /// Files being synced.
    running: HashSet<FileKey>,
    /// Whether the whole file system is being synced; the rest waits to share the next round.
    fs_sync_running: bool,
    costs: Costs,
    closed: bool,
}

impl Queue {
    /// Returns whether a thread should wake up for it.
    fn add(&mut self, file: Arc<SyncFile>, ticket: Arc<Ticket>) -> bool {
        let key = Arc::as_ptr(&file) as FileKey;
        if let Some(job) = self.waiting.get_mut(&key) {
            job.tickets.push(ticket);
            return false;
        }
        self.waiting.insert(
            key,
            Job {
                file,
                tickets: vec![ticket],
            },
        );
        if self.running.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        !self.fs_sync_running
    }

    fn take_one(&mut self) -> Option<(FileKey, Job)> {
        let key = self.ready.pop_front()?;
        let job = self.waiting.remove(&key)?;
        self.running.insert(key);
        Some((key, job))
    }

    fn take_ready(&mut self) -> Vec<Job> {
        let Self { ready, waiting, .. } = self;
        ready
            .drain(..)
            .filter_map(|key| waiting.remove(&key))
            .collect()
    }

    /// Returns whether the file has new submissions.
    fn finish(&mut self, key: FileKey) -> bool {
        self.running.remove(&key);
        let again = self.waiting.contains_key(&key);
        if again {
            self.ready.push_back(key);
        }
        again
    }
}

/// Lately measured costs, to choose between the pool and `syncfs`.
#[derive(Default)]
struct Costs {
    file_sync: Estimate,
    fs_sync: Estimate,
}

/// How long something took lately.
#[derive(Default)]
struct Estimate {
    cost: Option<Duration>,
    measured_at: Option<Instant>,
}

/// An estimate older than this is tried again.
const ESTIMATE_EXPIRES: Duration = Duration::from_secs(10);

impl Estimate {
    fn learn(&mut self, measured: Duration, now: Instant) {
        self.cost = Some(match self.cost {
            Some(old) => (old * 7 + measured) / 8,
            None => measured,
        });
        self.measured_at = Some(now);
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.measured_at
            .is_none_or(|at| now.saturating_duration_since(at) > ESTIMATE_EXPIRES)
    }
}

impl Costs {
    /// Whether to sync the file system rather than `files` files with `threads` threads. `syncfs`
    /// may take half as long again as the pool, because it costs far less processor time.
    fn prefer_fs_sync(&self, files: usize, threads: usize, now: Instant) -> bool {
        let rounds = u32::try_from(files.div_ceil(threads.max(1))).unwrap_or(u32::MAX);
        let cheaper = match (self.file_sync.cost, self.fs_sync.cost) {
            (Some(file), Some(fs)) => fs * 2 <= file.saturating_mul(rounds).saturating_mul(3),
            _ => true,
        };
        if cheaper {
            !self.file_sync.is_expired(now)
        } else {
            self.fs_sync.is_expired(now)
        }
    }
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    health: Arc<LogDirHealth>,
    file_system: Option<Box<dyn SyncFileSystem>>,
    options: FlusherOptions,
    submitted: AtomicU64,
    file_syncs: AtomicU64,
    file_sync_us: AtomicU64,
    fs_syncs: AtomicU64,
    fs_sync_us: AtomicU64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("health", &self.health)
            .field("file_system", &self.file_system)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn new(
        health: Arc<LogDirHealth>,
        file_system: Option<Box<dyn SyncFileSystem>>,
        options: FlusherOptions,
    ) -> Self {
        Self {
            queue: Mutex::default(),
            wake: Condvar::new(),
            health,
            file_system,
            options,
            submitted: AtomicU64::new(0),
            file_syncs: AtomicU64::new(0),
            file_sync_us: AtomicU64::new(0),
            fs_syncs: AtomicU64::new(0),
            fs_sync_us: AtomicU64::new(0),
        }
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if queue.fs_sync_running || queue.ready.is_empty() {
                if queue.closed && queue.waiting.is_empty() {
                    return;
                }
                self.wake.wait(&mut queue);
                continue;
            }
            let files = queue.ready.len();
            let file_system = self.file_system.as_deref().filter(|_| {
                files >= self.options.sync_fs_min_files
                    && queue
                        .costs
                        .prefer_fs_sync(files, self.options.threads, Instant::now())
            });
            match file_system {
                Some(file_system) => {
                    queue.fs_sync_running = true;
                    let jobs = queue.take_ready();
                    drop(queue);
                    let (took, result) = self.sync_file_system(file_system, &jobs);
                    queue = self.queue.lock();
                    queue.fs_sync_running = false;
                    queue.costs.fs_sync.learn(took, Instant::now());
                    let wake = queue.ready.len();
                    drop(queue);
                    if wake > 0 {
                        self.wake.notify_all();
                    }
                    jobs.into_iter().for_each(|job| job.done(&result));
                }
                None => {
                    let Some((key, job)) = queue.take_one() else {
                        continue;
                    };
                    drop(queue);
                    let (took, result) = self.sync_one(&job.file);
                    queue = self.queue.lock();
                    queue.costs.file_sync.learn(took, Instant::now());
                    queue.finish(key);
                    drop(queue);
                    job.done(&result);
                }
            }
            queue = self.queue.lock();
            if queue.closed {
                self.wake.notify_all();
            }
        }
    }

    fn sync_one(&self, file: &SyncFile) -> (Duration, io::Result<()>) {
        let began = Instant::now();
        let result = self.guarded(|| file.sync());
        let took = began.elapsed();
        self.file_syncs.fetch_add(1, Ordering::Relaxed);
        self.file_sync_us
            .fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        (took, result)
    }

    fn sync_file_system(
        &self,
        file_system: &dyn SyncFileSystem,
        jobs: &[Job],
    ) -> (Duration, io::Result<()>) {
        let marks: Vec<_> = jobs.iter().map(|job| job.file.mark()).collect();
        let began = Instant::now();
        let result = self.guarded(|| file_system.sync());
        let took = began.elapsed();
        if result.is_ok() {
            for (job, mark) in jobs.iter().zip(&marks) {
                job.file.set_durable(mark);
            }
        }
        self.fs_syncs.fetch_add(1, Ordering::Relaxed);
        self.fs_sync_us
            .fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        (took, result)
    }

    /// Refuses to sync once the directory is offline, and takes it offline when a sync fails.
    fn guarded(&self, mut sync: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        if let Some(cause) = self.health.failure() {
            return Err(io::Error::other(cause.to_string()));
        }
        loop {
            match sync() {
                // Something could not be opened, so nothing has been asked of the disk yet, and what
                // waits to be synced is all still there.
                Err(error) if is_out_of_descriptors(&error) => {
                    self.health.note_shortage();
                    std::thread::sleep(DESCRIPTOR_RETRY);
                }
                Err(error) => {
                    self.health.fail(&error);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_tried_again_when_its_cost_is_old() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let ms = Duration::from_millis;
        let mut costs = Costs::default();
        assert!(
            !costs.prefer_fs_sync(100, 8, at(0)),
            "the pool is tried first"
        );
        costs.file_sync.learn(ms(1), at(0));
        assert!(costs.prefer_fs_sync(100, 8, at(0)), "then syncfs");
        costs.fs_sync.learn(ms(27), at(0));
        assert!(
            !costs.prefer_fs_sync(100, 8, at(1)),
            "13 rounds of 1 ms are quicker"
        );
        assert!(
            costs.prefer_fs_sync(200, 8, at(1)),
            "25 rounds are not, by enough"
        );
        assert!(
            costs.prefer_fs_sync(100, 8, at(11)),
            "syncfs may be quicker by now"
        );
        costs.fs_sync.learn(ms(1), at(11));
        assert!(!costs.prefer_fs_sync(1000, 8, at(11)), "so may the pool");
    }
}
