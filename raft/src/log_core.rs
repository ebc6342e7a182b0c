//! The log of one group: the partition's segments and its journal, kept in step.
//!
//! One owner changes it: openraft's core task, and the state machine's task while it installs a
//! snapshot (the core task then waits in [`Core::purge`]). Everybody else takes the lock for a few
//! lookups in memory. The lock is never held across an await.
//!
//! What must be durable before what, on which recovery relies:
//! - a mark in the journal before any batch behind it is written;
//! - batches and marks before openraft hears of them ([`Core::flush`]);
//! - the journal's purge record before segments are removed;
//! - the journal's word that batches are to be cut off, or all of them to go, before that is begun; and
//!   that it is done, before a batch is written behind.
//!
//! Any failure to write or sync takes the group offline; openraft stops on the same error.
//!
//! `state` is what the lock is around, and how it changes; `lookup` finds entries in it; `records` is
//! about records that no entry stands for.

mod lookup;
mod records;
mod state;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use odradek_protocol::ids::{NodeId, Offset, TimestampMs};
use odradek_storage::flush::{FlushTarget, Flusher};
use odradek_storage::{Log, LogReader};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::entry_map::{EntryMap, Purged};
use crate::error::RaftError;
use crate::journal::Journal;
use crate::membership::GroupMembership;
use crate::shared::Shared;
use crate::types::{
    Entry, GroupKey, LogId, Membership, RaftIndex, StoredMembership, raft_id, term_of,
};
use crate::votes::VoteFile;

use self::state::{State, Step};

pub(crate) use self::state::{ReceivedLog, carry_out};

pub(crate) use self::lookup::{Piece, nth_header};

/// Pause before an append looks again whether its files can be opened.
const DESCRIPTOR_RETRY: Duration = Duration::from_millis(100);

/// Tells the wall-clock time.
pub(crate) type Clock = Arc<dyn Fn() -> TimestampMs + Send + Sync>;
/// A group's log, shared by the tasks that work on it.
pub(crate) type CoreHandle = Arc<Core>;

/// See the module.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) votes: Arc<VoteFile>,
    pub(crate) reader: LogReader,
    pub(crate) clock: Clock,
    /// Told which groups have something to purge.
    pub(crate) housekeeper: mpsc::UnboundedSender<GroupKey>,
    /// A snapshot has been installed.
    installed: Notify,
    /// Who takes part. Changed under the lock, before anybody else can read the entry that says so.
    members: ArcSwap<GroupMembership>,
    state: Mutex<State>,
}

impl Core {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        shared: Arc<Shared>,
        flusher: Arc<Flusher>,
        votes: Arc<VoteFile>,
        clock: Clock,
        housekeeper: mpsc::UnboundedSender<GroupKey>,
        log: Log,
        journal: Journal,
        map: EntryMap,
        applied: Option<LogId>,
    ) -> CoreHandle {
        shared.set_first_index(map.first_index());
        let core = Self {
            reader: log.reader(),
            shared,
            flusher,
            votes,
            clock,
            housekeeper,
            installed: Notify::new(),
            members: ArcSwap::default(),
            state: Mutex::new(State {
                log,
                journal,
                map,
                unapplied: VecDeque::new(),
                applied,
                snapshot: None,
                generation: 0,
                batches_since_checkpoint: 0,
                purge_requested: false,
                compactable_end: Offset::ZERO,
                barrier: false,
                flush_delayed: false,
                members_changed: true,
                received: None,
            }),
        };
        core.note_members(&mut core.state.lock());
        Arc::new(core)
    }

    /// Publishes who takes part, if that has changed.
    fn note_members(&self, state: &mut State) {
        if std::mem::take(&mut state.members_changed) {
            self.members.store(Arc::new(state.members()));
        }
    }

    /// Who takes part, by the newest entry about that.
    pub(crate) fn members(&self) -> Arc<GroupMembership> {
        self.members.load_full()
    }

    /// Who takes part, and who took part before that if the newest entry about it is not known to be
    /// committed: whichever decides is one of the two.
    pub(crate) fn memberships(&self) -> (GroupMembership, GroupMembership) {
        let state = self.state.lock();
        let newest = state.members();
        let before = state.membership_before();
        match before.map(|before| GroupMembership::of(before, true)) {
            Some(before) if !before.voters.is_empty() => (newest, before),
            _ => (newest.clone(), newest),
        }
    }

    /// Whether a node has a vote by either of [`Core::memberships`].
    pub(crate) fn has_voter(&self, node: NodeId) -> bool {
        let id = raft_id(node);
        let votes = |members: &Membership| {
            let mut configs = members.get_joint_config().iter();
            configs.any(|voters| voters.contains(&id))
        };
        self.state.lock().may_be_so(votes)
    }

    /// Whether a node takes part by either of [`Core::memberships`].
    pub(crate) fn has_member(&self, node: NodeId) -> bool {
        let id = raft_id(node);
        let takes_part = |members: &Membership| members.get_node(&id).is_some();
        self.state.lock().may_be_so(takes_part)
    }

    /// Whether every entry but those that the group was made with is of this term.
    pub(crate) fn is_first_term(&self, term: u64) -> bool {
        let state = self.state.lock();
        let second = state.map.log_id_at(RaftIndex::ZERO.next());
        state.map.purged().last.is_none()
            && state.map.last_term() == term
            && second.is_some_and(|id| term_of(&id) == term)
    }

    /// An entry about who takes part is committed.
    pub(crate) fn members_committed(&self) {
        let mut state = self.state.lock();
        state.members_changed = true;
        self.note_members(&mut state);
    }

    /// Runs something that may fail for good: a failure takes the group offline.
    fn guarded<T>(&self, result: Result<T, RaftError>) -> io::Result<T> {
        result.map_err(|error| {
            self.fail(&error.to_string());
            io::Error::other(error)
        })
    }

    /// Takes the group offline and lets nobody wait any longer.
    pub(crate) fn fail(&self, cause: &str) {
        self.shared.go_offline(cause);
        self.give_up_waiting();
    }

    /// Writes entries behind the last one. Not durable yet: [`Core::flush_target`]. Returns
    /// whether writing is enough (`write.caching`); it never is for entries that are not batches.
    pub(crate) async fn append(&self, entries: Vec<Entry>) -> io::Result<bool> {
        let log_start = self.shared.log_start();
        let prepared = self.state.lock().prepare(entries, log_start);
        let mut work = self.guarded(prepared)?;
        let mut waiting = false;
        loop {
            let now = (self.clock)();
            let high_watermark = self.shared.high_watermark();
            let step = {
                let mut state = self.state.lock();
                let step = state.append_some(&mut work, now, high_watermark);
                self.note_members(&mut state);
                step
            };
            if let Err(error) = &step
                && error.is_out_of_descriptors()
            {
                self.wait_for_descriptors(error, &mut waiting).await?;
                continue;
            }
            match self.guarded(step)? {
                Step::Done { cached } => return Ok(cached),
                Step::Sync(target) => self.flush(target).await?,
            }
        }
    }

    /// What is to be written stays in the queue, as it does behind a slow disk: who waits for it
    /// gives up by itself, and new batches are refused when the queue is full.
    async fn wait_for_descriptors(&self, error: &RaftError, waiting: &mut bool) -> io::Result<()> {
        if self.shared.is_closed() {
            return Err(io::Error::other("closed while no file could be opened"));
        }
        self.flusher.health().note_shortage();
        if !std::mem::replace(waiting, true) {
            tracing::warn!(group = %self.shared.key(), %error, "waiting for a file descriptor");
        }
        tokio::time::sleep(DESCRIPTOR_RETRY).await;
        Ok(())
    }

    /// Closes the descriptors of files that were not used since the last call.
    pub(crate) fn release_idle_files(&self) {
        let state = self.state.lock();
        state.log.release_idle_files();
        state.journal.file().release_if_idle();
    }

    /// What has to be durable for everything appended so far to be.
    pub(crate) fn flush_target(&self) -> FlushTarget {
        self.state.lock().flush_target()
    }

    /// Makes a target durable.
    pub(crate) async fn flush(&self, target: FlushTarget) -> io::Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        let (done, outcome) = oneshot::channel();
        self.flusher.submit(
            target,
            Box::new(move |result| {
                let _ = done.send(result);
            }),
        );
        let result = outcome
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the flusher has stopped")));
        if let Err(error) = &result {
            self.fail(&error.to_string());
        }
        result
    }

    /// Whether the caller is to see to the delayed flush; nobody does so far.
    pub(crate) fn begin_delayed_flush(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().flush_delayed, true)
    }

    /// The delayed flush begins: what is written from now on needs another.
    pub(crate) fn end_delayed_flush(&self) {
        self.state.lock().flush_delayed = false;
    }

    /// Forgets everything after `last`; durable on return.
    pub(crate) async fn truncate_after(&self, last: Option<LogId>) -> io::Result<()> {
        let next = last.map_or(RaftIndex::ZERO, |id| RaftIndex::new(id.index()).next());
        let now = (self.clock)();
        let result = {
            let mut state = self.state.lock();
            let result = state.truncate(next, now);
            self.note_members(&mut state);
            result
        };
        let (given_up, target) = self.guarded(result)?;
        drop(given_up);
        self.flush(target).await
    }

    /// Drops everything up to `last`, journal first.
    pub(crate) async fn purge(&self, last: LogId) -> io::Result<()> {
        loop {
            let installed = self.installed.notified();
            let log_start = self.shared.log_start();
            let now = (self.clock)();
            let result = {
                let mut state = self.state.lock();
                if state.map.purged().last.is_some_and(|purged| purged >= last) {
                    return Ok(());
                }
                // Entries that are not here come with a snapshot that is about to be installed.
                (last.index() < state.map.next_index().get())
                    .then(|| state.purge(last, log_start, now))
            };
            match result {
                Some(result) => {
                    self.shared
                        .set_first_index(RaftIndex::new(last.index()).next());
                    return self.guarded(result);
                }
                None => installed.await,
            }
        }
    }

    /// Takes over where a leader's log starts. Entries that are here and match stay.
    pub(crate) async fn install(&self, snapshot: Purged) -> io::Result<()> {
        let now = (self.clock)();
        let result = {
            let mut state = self.state.lock();
            let result = state.install(&snapshot, now);
            self.note_members(&mut state);
            result
        };
        let (given_up, log_start) = self.guarded(result)?;
        drop(given_up);
        let target = self.flush_target();
        self.flush(target).await?;
        let first = self.state.lock().map.first_index();
        self.shared.set_first_index(first);
        self.raise_log_start(log_start);
        self.raise_high_watermark(snapshot.start_offset);
        self.installed.notify_waiters();
        Ok(())
    }

    /// First and last entry, for openraft's start: what it hears of is durable.
    pub(crate) async fn log_state(&self) -> io::Result<(Option<LogId>, Option<LogId>)> {
        let target = self.flush_target();
        self.flush(target).await?;
        let state = self.state.lock();
        Ok((state.map.purged().last, state.map.last_log_id()))
    }

    pub(crate) fn key_log_ids(&self, first: LogId, last: LogId) -> Vec<LogId> {
        self.state.lock().map.key_log_ids(first, last)
    }

    /// Entries without payloads, from memory. Batches that are not taken from those waiting for
    /// their commit come without their offsets.
    pub(crate) fn entry_heads(&self, from: RaftIndex, to: RaftIndex) -> Vec<Entry> {
        let state = self.state.lock();
        let from = from.max(state.map.first_index());
        let to = to.min(state.map.next_index());
        (from.get()..to.get())
            .filter_map(|index| state.head(RaftIndex::new(index)))
            .collect()
    }

    /// As [`Core::entry_heads`], for the state machine: takes along who waits for the batches, and
    /// tells the offsets of the last batch at least.
    pub(crate) fn take_entry_heads(
        &self,
        from: RaftIndex,
        to: RaftIndex,
    ) -> io::Result<Vec<Entry>> {
        let result = self.state.lock().take_heads(from, to);
        self.guarded(result)
    }

    /// What the replication path has to read to get these entries; `None` if the first of them has
    /// been dropped.
    pub(crate) fn plan(&self, from: RaftIndex, to: RaftIndex) -> Option<(u64, Vec<Piece>)> {
        let state = self.state.lock();
        (from >= state.map.first_index()).then(|| (state.generation, state.plan(from, to)))
    }

    pub(crate) fn last_log_id(&self) -> Option<LogId> {
        self.state.lock().map.last_log_id()
    }

    /// Offset at which the log continues before the entry with this index. May have to read
    /// headers from the disk if that lies far back.
    pub(crate) fn end_before(&self, next: RaftIndex) -> Result<Offset, RaftError> {
        let state = self.state.lock();
        if next <= state.map.first_index() {
            return Ok(state.map.purged().start_offset);
        }
        state.offset_of(next)
    }

    /// Whether something else is committed here than one of these entries.
    pub(crate) fn contradicts(&self, ids: impl IntoIterator<Item = LogId>) -> bool {
        let state = self.state.lock();
        let Some(applied) = state.applied else {
            return false;
        };
        ids.into_iter().any(|id| {
            if id.index() > applied.index() {
                return id < applied;
            }
            match state.map.log_id_at(RaftIndex::new(id.index())) {
                Some(known) => known != id,
                // It has been dropped.
                None => id > applied,
            }
        })
    }

    pub(crate) fn next_index(&self) -> RaftIndex {
        self.state.lock().map.next_index()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    pub(crate) fn set_applied(&self, id: LogId) {
        self.state.lock().applied = Some(id);
    }

    /// The high watermark tells of everything up to `id`.
    pub(crate) fn set_visible(&self, id: LogId) {
        self.shared.set_visible(id);
    }

    pub(crate) fn applied_state(&self) -> (Option<LogId>, StoredMembership) {
        let state = self.state.lock();
        let membership = match &state.applied {
            Some(id) => state.map.membership_at(RaftIndex::new(id.index())),
            None => state.map.purged().membership.clone(),
        };
        (state.applied, membership)
    }

    /// Offset at which the log continues after an entry that is not a batch.
    pub(crate) fn offset_after(&self, index: RaftIndex) -> Option<Offset> {
        self.state.lock().map.offset_after(index)
    }

    pub(crate) fn raise_high_watermark(&self, offset: Offset) {
        self.reader.on_high_watermark(offset);
        let first_unstable = self
            .reader
            .with_producers(|producers| producers.first_unstable_offset());
        if self.shared.raise_high_watermark(offset, first_unstable) {
            self.shared.observe_high_watermark(self.reader.log_end());
        }
    }

    /// A log-start entry has been committed.
    pub(crate) fn move_log_start(&self, offset: Offset) {
        self.raise_log_start(offset);
        let (needs_roll, has_records) = {
            let state = self.state.lock();
            (
                state.log.needs_roll_for_start(offset),
                state.has_records_without_entries(offset),
            )
        };
        if needs_roll || has_records || self.snapshot_point().is_some() {
            self.request_purge();
        }
    }

    /// Begins a new segment if everything in the active one is below the log start, so that it
    /// can go.
    pub(crate) fn roll_for_log_start(&self) -> io::Result<()> {
        let now = (self.clock)();
        let log_start = self.shared.log_start();
        let result = match self.state_while_open() {
            Some(mut state) if state.log.needs_roll_for_start(log_start) => state.roll(now),
            _ => Ok(()),
        };
        self.guarded(result)
    }

    /// Drops segments below the log start that no entry stands for any more.
    pub(crate) fn drop_records_without_entries(&self) -> io::Result<()> {
        let now = (self.clock)();
        let log_start = self.shared.log_start();
        let result = match self.state_while_open() {
            Some(mut state) if state.has_records_without_entries(log_start) => {
                state.drop_records_without_entries(log_start, now)
            }
            _ => Ok(()),
        };
        self.guarded(result)
    }

    fn raise_log_start(&self, offset: Offset) {
        if self.shared.raise_log_start(offset) {
            self.shared.observe_log_start();
        }
    }

    fn request_purge(&self) {
        if !std::mem::replace(&mut self.state.lock().purge_requested, true) {
            // Without a housekeeper the node is shutting down.
            let _ = self.housekeeper.send(self.shared.key());
        }
    }

    /// The housekeeper has taken the request up.
    pub(crate) fn purge_request_taken(&self) {
        self.state.lock().purge_requested = false;
    }

    /// The blank entry of a term is committed.
    pub(crate) fn term_is_ready(&self, term: u64, blank: RaftIndex) {
        if let Some(log_end) = self.offset_after(blank) {
            self.shared.term_is_ready(term, log_end);
            let membership = self.state.lock().map.membership_at(blank);
            self.shared.voters_are(membership.membership());
        }
    }

    /// Up to where the log could be dropped now; `None` if that is no progress.
    pub(crate) fn snapshot_point(&self) -> Option<Purged> {
        let log_start = self.shared.log_start();
        let state = self.state.lock();
        let last = state
            .map
            .purge_point(log_start.max(state.compactable_end))?;
        if state.applied.is_none_or(|applied| applied < last) {
            return None;
        }
        let index = RaftIndex::new(last.index());
        Some(Purged {
            last: Some(last),
            start_offset: state.map.offset_after(index)?,
            log_start,
            membership: state.map.membership_at(index),
        })
    }

    /// Lets the entries of records below `offset` be dropped, so that these can be compacted.
    pub(crate) fn allow_compaction_below(&self, offset: Offset) {
        let mut state = self.state.lock();
        state.compactable_end = state.compactable_end.max(offset);
    }

    /// Offset of the first batch that an entry stands for.
    pub(crate) fn first_entry_offset(&self) -> Offset {
        self.state.lock().map.purged().start_offset
    }

    /// The newest snapshot there is.
    pub(crate) fn current_snapshot(&self) -> Purged {
        let log_start = self.shared.log_start();
        let state = self.state.lock();
        let purged = state.map.purged();
        let newest = match &state.snapshot {
            Some(built) if built.last > purged.last => built,
            _ => purged,
        };
        Purged {
            log_start: newest.log_start.max(log_start),
            ..newest.clone()
        }
    }

    pub(crate) fn set_snapshot(&self, snapshot: Purged) {
        self.state.lock().snapshot = Some(snapshot);
    }

    /// Runs `f` on the log, for housekeeping and inspection.
    pub(crate) fn with_log<T>(&self, f: impl FnOnce(&mut Log) -> T) -> T {
        f(&mut self.state.lock().log)
    }

    /// Runs `f` on the log, unless the group is closed: for housekeeping that touches files.
    pub(crate) fn with_open_log<T>(&self, f: impl FnOnce(&mut Log) -> T) -> Option<T> {
        self.state_while_open().map(|mut state| f(&mut state.log))
    }

    /// The state, unless the group is closed. Who closes a group says so first, and moves its directory under the lock or
    /// leaves it to the next group of that name after it. Whoever comes from time to time may come later than that, and
    /// would write where nothing is any more, or into what belongs to another group.
    fn state_while_open(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        (!self.shared.is_closed()).then_some(state)
    }

    /// Lets nobody wait any longer for a commit.
    pub(crate) fn give_up_waiting(&self) {
        let waiting = std::mem::take(&mut self.state.lock().unapplied);
        drop(waiting);
    }

    /// Makes everything durable and leaves marks for a quick start. Waits for the disk.
    pub(crate) fn close(&self) -> Result<(), RaftError> {
        let high_watermark = self.shared.high_watermark();
        let mut state = self.state.lock();
        state.checkpoint(high_watermark)?;
        state
            .flush_target()
            .sync()
            .map_err(|error| RaftError::io("sync the journal", error))?;
        state.log.close()?;
        Ok(())
    }

    /// Renames the partition's directory to that of a deleted one. Waits for the disk.
    pub(crate) fn mark_deleted(&self) -> Result<PathBuf, RaftError> {
        let now = (self.clock)();
        Ok(self.state.lock().log.mark_deleted(now)?)
    }
}
