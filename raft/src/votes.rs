//! `raft.votes`: the votes of all groups of a data directory, in one file.
//!
//! A vote must be durable before it is acted upon. A thousand groups that elect their leaders at
//! once would sync a thousand files; here the votes that arrive while a sync runs share the next
//! one. The newest record of a group counts. The file is rewritten when it is mostly old records.
//!
//! Each round of votes ends with a *mark*: up to where the file was durable before the round. A
//! crash tears only what comes after the last of them, so a record that cannot be read below it was
//! damaged, and the votes behind it are not taken for those that were given last.
//!
//! Every saved vote is visible to [`VoteFile::get`] at once and durable when [`VoteFile::save`]
//! returns. After a failure nothing is saved any more.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use odradek_protocol::ids::{PartitionIndex, TopicId};
use odradek_storage::SyncFile;
use odradek_storage::disk::{Disk, is_out_of_descriptors};
use odradek_storage::flush::{FlushTarget, Flusher};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::framing::{self, Frames};
use crate::types::{GroupKey, Incarnation, Vote};
use crate::wire::{IN_INCARNATION, put_group_key};

/// Name of the file in the data directory.
pub(crate) const FILE_NAME: &str = "raft.votes";
/// First bytes of the file; the last one is the version.
pub(crate) const MAGIC: [u8; 8] = *b"ODRVOTE\x01";
const FILE_MAX_BYTES: usize = 256 << 20;
const REWRITE_MIN_BYTES: u64 = 256 << 10;
/// Bytes that one vote takes in the file.
const RECORD_BYTES: u64 = 46;

/// How often a rewritten file is tried to be opened when no descriptor is left.
const OPEN_ATTEMPTS: u32 = 100;
/// Pause between two attempts.
const OPEN_RETRY: Duration = Duration::from_millis(10);

const KIND_VOTE: u8 = 1;
const KIND_DELETED: u8 = 2;
const KIND_MARK: u8 = 3;
/// Bytes of a mark's body.
const MARK_BYTES: usize = 9;

/// The votes of one data directory.
pub(crate) struct VoteFile {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    flusher: Arc<Flusher>,
    state: Mutex<State>,
}

struct State {
    file: Arc<SyncFile>,
    end: u64,
    votes: HashMap<GroupKey, Vote>,
    /// Records that wait for the running sync to end.
    queued: BytesMut,
    /// Who waits for the queued records.
    waiting: Vec<oneshot::Sender<io::Result<()>>>,
    syncing: bool,
    failure: Option<String>,
}

impl VoteFile {
    /// Opens the file in `data_dir`, or makes it; durable on return.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        data_dir: &Path,
        flusher: Arc<Flusher>,
    ) -> io::Result<Arc<Self>> {
        let path = data_dir.join(FILE_NAME);
        disk.settle_file(&path)?;
        let bytes = match disk.read_file(&path, FILE_MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let file = SyncFile::existing(disk.clone(), path.clone());
        let (votes, end) = match bytes.strip_prefix(&MAGIC) {
            Some(records) => {
                let (votes, valid) = read(records)?;
                let end = MAGIC.len() + valid;
                let durable = last_mark(records.get(valid..).unwrap_or_default());
                if durable.is_some_and(|durable| durable > end as u64) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "{} is damaged at byte {end}, and votes behind it were durable. Put \
                             back an intact copy; or move the whole log directory away and have \
                             the other brokers rebuild its replicas",
                            path.display()
                        ),
                    ));
                }
                if bytes.len() > end {
                    file.set_len(end as u64)?;
                    file.sync()?;
                }
                // What was read is durable since it was settled. The name may come from a process
                // that died before its sync.
                disk.sync_dir(data_dir)?;
                (votes, end as u64)
            }
            // The file is made by an atomic replacement, so one without its magic is not ours.
            None if bytes.is_empty() => {
                disk.replace_file(&path, &MAGIC)?;
                (HashMap::new(), MAGIC.len() as u64)
            }
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not a vote file",
                ));
            }
        };
        hold_open(&file)?;
        Ok(Arc::new(Self {
            disk,
            path,
            flusher,
            state: Mutex::new(State {
                file,
                end,
                votes,
                queued: BytesMut::new(),
                waiting: Vec::new(),
                syncing: false,
                failure: None,
            }),
        }))
    }

    /// The last vote of a group.
    pub(crate) fn get(&self, key: GroupKey) -> Option<Vote> {
        self.state.lock().votes.get(&key).copied()
    }

    /// Takes a vote that follows from the group's log for its last one. It is not written: the
    /// election that follows saves a later one.
    pub(crate) fn adopt(&self, key: GroupKey, vote: Vote) {
        self.state.lock().votes.insert(key, vote);
    }

    /// Saves a group's vote; durable on return.
    pub(crate) async fn save(self: &Arc<Self>, key: GroupKey, vote: Vote) -> io::Result<()> {
        self.enqueue(&encode_vote(key, vote), |votes| {
            votes.insert(key, vote);
        })
        .await
    }

    /// Forgets a group's vote.
    pub(crate) async fn delete(self: &Arc<Self>, key: GroupKey) -> io::Result<()> {
        if self.get(key).is_none() {
            return Ok(());
        }
        self.enqueue(&encode_deleted(key), |votes| {
            votes.remove(&key);
        })
        .await
    }

    async fn enqueue(
        self: &Arc<Self>,
        body: &[u8],
        change: impl FnOnce(&mut HashMap<GroupKey, Vote>),
    ) -> io::Result<()> {
        let (done, outcome) = oneshot::channel();
        let starts = {
            let mut state = self.state.lock();
            if let Some(failure) = &state.failure {
                return Err(io::Error::other(failure.clone()));
            }
            change(&mut state.votes);
            framing::put(&mut state.queued, body);
            state.waiting.push(done);
            !std::mem::replace(&mut state.syncing, true)
        };
        if starts {
            self.start_round();
        }
        outcome
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the vote file was closed")))
    }

    /// Writes what is queued and has it synced. Only called while `syncing` is set, by whoever
    /// set it.
    fn start_round(self: &Arc<Self>) {
        let (file, waiting, written) = {
            let mut state = self.state.lock();
            let mut records = state.queued.split();
            framing::put(&mut records, &encode_mark(state.end));
            let waiting = std::mem::take(&mut state.waiting);
            let written = state.file.write_at(&records, state.end);
            state.end += records.len() as u64;
            (state.file.clone(), waiting, written)
        };
        let this = self.clone();
        match written {
            Ok(()) => {
                let mut target = FlushTarget::new();
                target.add(&file);
                self.flusher.submit(
                    target,
                    Box::new(move |result| this.end_round(result, waiting)),
                );
            }
            Err(error) => self.end_round(Err(error), waiting),
        }
    }

    fn end_round(
        self: &Arc<Self>,
        result: io::Result<()>,
        waiting: Vec<oneshot::Sender<io::Result<()>>>,
    ) {
        let (result, also_done, more) = {
            let mut state = self.state.lock();
            let mut also_done = Vec::new();
            let result = result.and_then(|()| {
                if state.end > REWRITE_MIN_BYTES
                    && state.end > 4 * RECORD_BYTES * (state.votes.len() as u64 + 1)
                {
                    match self.rewrite(&mut state) {
                        // The file is as it was, only longer than it need be.
                        Err(error) if is_out_of_descriptors(&error) => {}
                        result => {
                            // The map already holds what is queued, so the rewrite covers that.
                            result?;
                            also_done = std::mem::take(&mut state.waiting);
                            state.queued.clear();
                        }
                    }
                }
                Ok(())
            });
            if let Err(error) = &result {
                state.failure = Some(error.to_string());
                also_done.append(&mut state.waiting);
                state.queued.clear();
            }
            let more = !state.waiting.is_empty();
            state.syncing = more;
            (result, also_done, more)
        };
        for waiter in waiting.into_iter().chain(also_done) {
            // One that has gone no longer needs the answer.
            let _ = waiter.send(copy(&result));
        }
        if more {
            self.start_round();
        }
    }

    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        let mut content = BytesMut::new();
        content.put_slice(&MAGIC);
        for (key, vote) in &state.votes {
            framing::put(&mut content, &encode_vote(*key, *vote));
        }
        // The file takes its place as a whole.
        let end = content.len() as u64;
        framing::put(&mut content, &encode_mark(end));
        self.disk.replace_file(&self.path, &content)?;
        state.file = SyncFile::existing(self.disk.clone(), self.path.clone());
        state.end = content.len() as u64;
        hold_open(&state.file)
    }
}

/// Opens the file for good: the next vote may have to be written when no descriptor is left.
fn hold_open(file: &SyncFile) -> io::Result<()> {
    for _ in 0..OPEN_ATTEMPTS {
        match file.file() {
            Err(error) if is_out_of_descriptors(&error) => std::thread::sleep(OPEN_RETRY),
            opened => return opened.map(|_| ()),
        }
    }
    Err(io::Error::other("the vote file cannot be opened again"))
}

fn copy(result: &io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

fn encode_vote(key: GroupKey, vote: Vote) -> BytesMut {
    let mut out = BytesMut::with_capacity(44);
    out.put_u8(KIND_VOTE);
    put_group_key(&mut out, key);
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
    out
}

fn encode_deleted(key: GroupKey) -> BytesMut {
    let mut out = BytesMut::with_capacity(28);
    out.put_u8(KIND_DELETED);
    put_group_key(&mut out, key);
    out
}

/// Everything before `durable` was durable when this was written.
fn encode_mark(durable: u64) -> BytesMut {
    let mut out = BytesMut::with_capacity(MARK_BYTES);
    out.put_u8(KIND_MARK);
    out.put_u64(durable);
    out
}

fn decode_mark(mut body: &[u8]) -> Option<u64> {
    let kind = body.try_get_u8().ok()?;
    let durable = body.try_get_u64().ok()?;
    (kind == KIND_MARK && body.is_empty()).then_some(durable)
}

/// What the last intact mark in a part of the file says that does not begin with a record.
fn last_mark(bytes: &[u8]) -> Option<u64> {
    const MARK_RECORD: usize = framing::OVERHEAD + MARK_BYTES;
    bytes
        .windows(MARK_RECORD)
        .filter_map(|window| decode_mark(Frames::new(window).next()?))
        .max()
}

fn read(records: &[u8]) -> io::Result<(HashMap<GroupKey, Vote>, usize)> {
    let mut votes = HashMap::new();
    let mut frames = Frames::new(records);
    for body in frames.by_ref() {
        if decode_mark(body).is_some() {
            continue;
        }
        match decode(body) {
            Some((key, Some(vote))) => votes.insert(key, vote),
            Some((key, None)) => votes.remove(&key),
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the vote file holds an unknown record",
                ));
            }
        };
    }
    let valid = frames.valid_bytes();
    Ok((votes, valid))
}

fn decode(mut body: &[u8]) -> Option<(GroupKey, Option<Vote>)> {
    let kind = body.try_get_u8().ok()?;
    let mut topic_id = [0; 16];
    body.try_copy_to_slice(&mut topic_id).ok()?;
    let partition = body.try_get_i32().ok()?;
    let mut key = GroupKey::new(
        TopicId::from_bytes(topic_id),
        PartitionIndex::new(partition & !IN_INCARNATION),
    );
    if partition & IN_INCARNATION != 0 {
        key = key.in_incarnation(Incarnation::new(body.try_get_u32().ok()?));
    }
    let vote = match kind {
        KIND_VOTE => {
            let term = body.try_get_u64().ok()?;
            let node = body.try_get_u64().ok()?;
            Some(match body.try_get_u8().ok()? {
                0 => Vote::new(term, node),
                1 => Vote::new_committed(term, node),
                _ => return None,
            })
        }
        KIND_DELETED => None,
        _ => return None,
    };
    body.is_empty().then_some((key, vote))
}

#[cfg(test)]
mod tests {
    use odradek_storage::disk::OpenMode;
    use odradek_storage::{LogDirHealth, SimDisk};

    use super::*;

    const DIR: &str = "/data";

    fn key(partition: i32) -> GroupKey {
        GroupKey::new(TopicId::from_bytes([5; 16]), PartitionIndex::new(partition))
    }

    fn open(disk: &SimDisk) -> io::Result<Arc<VoteFile>> {
        let shared = disk.shared();
        shared.create_dir_all(Path::new(DIR))?;
        shared.sync_dir(Path::new("/"))?;
        let flusher = Arc::new(Flusher::inline(LogDirHealth::new(DIR)));
        VoteFile::open(shared, Path::new(DIR), flusher)
    }

    #[tokio::test]
    async fn the_newest_vote_of_every_group_survives_a_power_cut() {
        let disk = SimDisk::new();
        let votes = open(&disk).unwrap();
        for term in 1..20 {
            for partition in 0..10 {
                let vote = Vote::new(term, partition as u64);
                votes.save(key(partition), vote).await.unwrap();
            }
        }
        votes
            .save(key(3), Vote::new_committed(19, 3))
            .await
            .unwrap();
        votes.delete(key(4)).await.unwrap();
        disk.power_cut(1);
        let votes = open(&disk).unwrap();
        assert_eq!(votes.get(key(0)), Some(Vote::new(19, 0)));
        assert_eq!(votes.get(key(3)), Some(Vote::new_committed(19, 3)));
        assert_eq!(votes.get(key(4)), None);
    }

    #[tokio::test]
    async fn a_vote_in_one_incarnation_is_none_in_another() {
        let disk = SimDisk::new();
        let votes = open(&disk).unwrap();
        let later = key(3).in_incarnation(Incarnation::new(1_005));
        votes.save(key(3), Vote::new(7, 1)).await.unwrap();
        votes.save(later, Vote::new(1_006, 2)).await.unwrap();
        votes.save(key(4), Vote::new(2, 2)).await.unwrap();
        votes.delete(key(3)).await.unwrap();
        disk.power_cut(1);
        let votes = open(&disk).unwrap();
        assert_eq!(votes.get(key(3)), None);
        assert_eq!(votes.get(later), Some(Vote::new(1_006, 2)));
        assert_eq!(votes.get(key(4)), Some(Vote::new(2, 2)));
    }

    #[tokio::test]
    async fn a_vote_counts_only_once_it_is_durable_whatever_step_the_disk_stops_at() {
        for step in 1..40 {
            let disk = SimDisk::new();
            disk.stop_at(step);
            let mut saved = None;
            if let Ok(votes) = open(&disk) {
                for term in 1..8 {
                    if votes.save(key(0), Vote::new(term, 1)).await.is_ok() {
                        saved = Some(term);
                    }
                }
            }
            disk.power_cut(step);
            let found = open(&disk).unwrap().get(key(0));
            let term = found.map(|vote| vote.leader_id.term);
            assert!(
                term >= saved,
                "step {step}: {term:?} after {saved:?} was saved"
            );
        }
    }

    #[tokio::test]
    async fn opening_syncs_what_may_not_be_durable_and_nothing_twice() {
        let disk = SimDisk::new();
        let shared = disk.shared();
        shared.create_dir_all(Path::new(DIR)).unwrap();
        let opened = || {
            let before = disk.syncs();
            let flusher = Arc::new(Flusher::inline(LogDirHealth::new(DIR)));
            let votes = VoteFile::open(shared.clone(), Path::new(DIR), flusher).unwrap();
            (votes, disk.syncs() - before)
        };
        // The content, and the name.
        let (votes, syncs) = opened();
        assert_eq!(syncs, 2);
        votes.save(key(0), Vote::new(1, 1)).await.unwrap();
        let (_, syncs) = opened();
        assert_eq!(syncs, 2);
    }

    #[tokio::test]
    async fn the_file_is_rewritten_when_it_is_mostly_old_votes() {
        let disk = SimDisk::new();
        let votes = open(&disk).unwrap();
        for term in 1..8000 {
            votes.save(key(0), Vote::new(term, 1)).await.unwrap();
        }
        let len = disk
            .shared()
            .read_file(&Path::new(DIR).join(FILE_NAME), 1 << 20);
        // As they were written it would be half a megabyte.
        assert!(len.unwrap().len() <= REWRITE_MIN_BYTES as usize + 1024);
        assert_eq!(votes.get(key(0)), Some(Vote::new(7999, 1)));
        disk.power_cut(1);
        assert_eq!(open(&disk).unwrap().get(key(0)), Some(Vote::new(7999, 1)));
    }

    #[tokio::test]
    async fn a_torn_end_is_cut_but_damage_before_durable_votes_is_refused() {
        let disk = SimDisk::new();
        let votes = open(&disk).unwrap();
        let path = Path::new(DIR).join(FILE_NAME);
        let read = || disk.shared().read_file(&path, 1 << 20).unwrap();
        let write = |bytes: &[u8]| {
            let file = disk.shared().open(&path, OpenMode::Write).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            file.write_at(bytes, 0).unwrap();
        };
        let mut ends = vec![read().len()];
        for term in 1..4 {
            votes.save(key(0), Vote::new(term, 1)).await.unwrap();
            ends.push(read().len());
        }
        drop(votes);
        let whole = read();
        // The last round may be torn anywhere: the one before it counts.
        for cut in ends[2]..whole.len() {
            write(&whole[..cut]);
            let found = open(&disk).unwrap().get(key(0)).unwrap();
            let complete = cut >= ends[2] + RECORD_BYTES as usize;
            assert_eq!(found.leader_id.term, if complete { 3 } else { 2 });
        }
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 0x20;
            write(&damaged);
            let refused = open(&disk).is_err();
            assert_eq!(refused, byte < ends[2], "byte {byte}");
            if refused {
                assert_eq!(read(), damaged, "left as it was");
            }
        }
    }

    #[test]
    fn a_vote_has_the_bytes_that_the_format_says() {
        let body = encode_vote(key(2), Vote::new_committed(3, 4));
        let mut expected = vec![1];
        expected.extend([5; 16]);
        expected.extend([0, 0, 0, 2]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 4, 1]);
        assert_eq!(body[..], expected);
        assert_eq!(
            decode(&body),
            Some((key(2), Some(Vote::new_committed(3, 4))))
        );
        for cut in 0..body.len() {
            assert_eq!(decode(&body[..cut]), None);
        }
    }
}
