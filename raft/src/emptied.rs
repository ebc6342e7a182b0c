//! Replicas that hold nothing.
//!
//! A replica that is opened with an empty log may be new, or it may have lost its disk: then it has
//! forgotten what it stored, on which others count, and whom it voted for. Of the two it cannot tell
//! which it is. So it takes no part, neither votes nor takes entries, until a node that speaks to it
//! says that it may (*clearance*):
//!
//! - By the leader, which knows the newest membership by a lease that it holds after the question, and
//!   if neither that nor the last committed one gives the replica a vote. Nobody counts on what it has
//!   forgotten, then. If it still has a vote, the leader first takes it out ([`Group::take_out`]),
//!   which takes a majority of the others.
//! - By a voter that is in every majority, by the newest membership that it knows and by the last
//!   committed one: one of at most two voters. Others cannot have been agreed on without it, so there is
//!   no newer one. It holds everything that was ever committed, then, and nobody can lead without it.
//!   There is no majority to take the replica out, and no need to.
//! - By the first leader that a group has ever had, if this voter has never answered it: it comes late.
//!
//! What was cleared is *rebuilt* until its log has what was committed on the other's then. So long it
//! stands for no election, for what it is given first are memberships of long ago, by one of which it
//! may be the only voter; and it votes only for who has that: one that was left behind may take its
//! vote, by such a membership, for that of a majority. This is kept in a file that is durable before the
//! first entry is.
//!
//! Nobody becomes a voter before the leader has heard that it holds something, and so was cleared. A
//! replica that has a vote and waits for its clearance is therefore always one that has lost its log,
//! and a change of voters never waits for one.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use odradek_protocol::ids::NodeId;
use odradek_storage::disk::Disk;
use parking_lot::Mutex;

use crate::codec::{get_log_id, put_log_id};
use crate::error::RaftError;
use crate::framing::{self, Frames};
use crate::group::Group;
use crate::lease::Known;
use crate::network::Link;
use crate::node::blocking;
use crate::observer::Leadership;
use crate::rpc::Clearance;
use crate::types::{GroupKey, Incarnation, LogId, log_id, term_of};

/// Name of the file in the partition's directory.
pub(crate) const FILE_NAME: &str = "raft.rebuilding";
/// First bytes of the file; the last one is the version.
pub(crate) const MAGIC: [u8; 8] = *b"ODRRBLD\x01";
/// Larger than the file ever is.
const FILE_MAX_BYTES: usize = 4096;
/// How long a node may take to say whether this replica may take part.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the leader tries to take a replica out before it says that it cannot.
const TAKE_OUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a refusal.
const TAKE_OUT_RETRY: Duration = Duration::from_millis(100);

/// How far a replica that held nothing has to come: to this entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rebuilding {
    until: LogId,
}

impl Rebuilding {
    /// As far as the first entry of that incarnation, wherever it is.
    pub(crate) fn until_begun(incarnation: Incarnation) -> Self {
        Self {
            until: log_id(incarnation.term(), 0),
        }
    }

    /// Whether it is about another incarnation than this one, an earlier one.
    pub(crate) fn is_older_than(&self, incarnation: Incarnation) -> bool {
        term_of(&self.until) < incarnation.term()
    }

    /// Whether a log that ends with `last` has come so far.
    fn is_reached_by(&self, last: Option<LogId>) -> bool {
        last >= Some(self.until)
    }

    pub(crate) fn encode(&self) -> BytesMut {
        let mut body = BytesMut::new();
        put_log_id(&mut body, Some(&self.until));
        let mut out = BytesMut::from(&MAGIC[..]);
        framing::put(&mut out, &body);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut body = Frames::new(bytes.strip_prefix(&MAGIC)?).next()?;
        let until = get_log_id(&mut body)??;
        body.is_empty().then_some(Self { until })
    }
}

/// What part a replica takes in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// None: it holds nothing, and waits to be told that nobody counts on more.
    Waits,
    /// All but standing for election, and voting for those who lack what it is to be given.
    Rebuilds(Rebuilding),
    /// All.
    Whole,
}

/// Reads how far the replica in `dir` has to come, if it is being rebuilt. Waits for the disk.
pub(crate) fn read(
    disk: &dyn Disk,
    dir: &Path,
    group: GroupKey,
) -> Result<Option<Rebuilding>, RaftError> {
    let path = dir.join(FILE_NAME);
    match disk.read_file(&path, FILE_MAX_BYTES) {
        Ok(bytes) => match Rebuilding::decode(&bytes) {
            Some(found) => Ok(Some(found)),
            None => Err(RaftError::JournalDamaged {
                group,
                detail: format!("{} does not say until when it is rebuilt", path.display()),
            }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RaftError::io(format!("read {}", path.display()), error)),
    }
}

/// What part a replica takes whose log ends with `last`.
pub(crate) fn part_found(found: Option<Rebuilding>, last: Option<LogId>) -> Part {
    match found {
        // It has lost what it was given, too, or had nothing yet. Whoever is asked says so anew.
        _ if last.is_none() => Part::Waits,
        Some(rebuilding) => Part::Rebuilds(rebuilding),
        None => Part::Whole,
    }
}

/// Notes, durably, how far the replica in `dir` has to come. Waits for the disk.
pub(crate) fn write(disk: &dyn Disk, dir: &Path, rebuilding: Rebuilding) -> Result<(), RaftError> {
    disk.replace_file(&dir.join(FILE_NAME), &rebuilding.encode())
        .map_err(|error| RaftError::io(format!("write {FILE_NAME}"), error))
}

/// Notes, durably, that the replica in `dir` has come as far as it had to. Waits for the disk.
pub(crate) fn remove(disk: &dyn Disk, dir: &Path) -> Result<(), RaftError> {
    disk.remove_file(&dir.join(FILE_NAME))
        .and_then(|()| disk.sync_dir(dir))
        .map_err(|error| RaftError::io(format!("remove {FILE_NAME}"), error))
}

/// What a replica remembers of that, and its disk.
pub(crate) struct Emptied {
    disk: Arc<dyn Disk>,
    part: Mutex<Part>,
    /// One asks at a time.
    asking: tokio::sync::Mutex<()>,
}

impl Emptied {
    pub(crate) fn new(disk: Arc<dyn Disk>, part: Part) -> Self {
        Self {
            disk,
            part: Mutex::new(part),
            asking: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn part(&self) -> Part {
        *self.part.lock()
    }
}

impl Group {
    /// Whether this replica takes its full part in the group. One that was opened with an empty log
    /// does not until it has been given the log again; meanwhile others may wait for its vote.
    pub fn is_whole(&self) -> bool {
        self.emptied.part() == Part::Whole
    }

    /// Whether this replica takes entries of `leader`.
    pub(crate) async fn takes_entries_of(&self, leader: NodeId) -> bool {
        self.part_with(leader).await != Part::Waits
    }

    /// Whether this replica votes for `candidate`, whose log ends with `last`, as far as what it may have
    /// forgotten goes.
    pub(crate) async fn may_vote_for(&self, candidate: NodeId, last: Option<LogId>) -> bool {
        match self.part_with(candidate).await {
            Part::Waits => false,
            Part::Rebuilds(rebuilding) => rebuilding.is_reached_by(last),
            Part::Whole => true,
        }
    }

    /// Whether this replica may stand for election.
    pub(crate) async fn may_stand(&self) -> bool {
        self.finish_rebuilding().await == Part::Whole
    }

    /// Takes note that the log has come as far as it had to.
    pub(crate) async fn finish_rebuilding(&self) -> Part {
        let part = self.emptied.part();
        let Part::Rebuilds(rebuilding) = part else {
            return part;
        };
        let is_done = rebuilding.is_reached_by(self.core.last_log_id());
        // What the log has is durable before it is said that it has it.
        if !is_done || self.core.flush(self.core.flush_target()).await.is_err() {
            return self.emptied.part();
        }
        let (disk, dir) = (Arc::clone(&self.emptied.disk), self.dir().to_path_buf());
        match blocking(move || remove(&*disk, &dir)).await {
            Ok(()) => self.set_part(Part::Whole),
            Err(error) => {
                tracing::warn!(group = %self.key(), %error, "a rebuilt replica counts as such on");
            }
        }
        self.emptied.part()
    }

    fn set_part(&self, part: Part) {
        *self.emptied.part.lock() = part;
        let whole = part == Part::Whole;
        self.shared.set_whole(whole);
        // openraft stands by itself when nothing is heard for long, if need be without asking anybody.
        self.raft().runtime_config().elect(whole);
    }

    /// What part this replica takes, asking `other` if it is none so far.
    async fn part_with(&self, other: NodeId) -> Part {
        let part = self.finish_rebuilding().await;
        if part != Part::Waits || other == self.node {
            return part;
        }
        let _asking = self.emptied.asking.lock().await;
        if self.emptied.part() != Part::Waits {
            return self.emptied.part();
        }
        let link = Link {
            from: self.node,
            to: other,
            group: self.key(),
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.network.clearance(link)).await;
        let Ok(Ok(Clearance::Until(until))) = answer else {
            return Part::Waits;
        };
        let rebuilding = Rebuilding { until };
        let (disk, dir) = (Arc::clone(&self.emptied.disk), self.dir().to_path_buf());
        let written = blocking(move || write(&*disk, &dir, rebuilding));
        if let Err(error) = written.await {
            if !error.is_out_of_descriptors() {
                self.core.fail(&error.to_string());
            }
            return Part::Waits;
        }
        tracing::info!(group = %self.key(), by = %other, ?rebuilding, "a replica is given its log");
        self.set_part(Part::Rebuilds(rebuilding));
        self.emptied.part()
    }

    /// Says whether a replica that holds nothing may take part.
    pub(crate) async fn clears(self: &Arc<Self>, node: NodeId) -> Clearance {
        let leadership = self.leadership();
        let (newest, before) = self.core.memberships();
        let has_vote = self.core.has_voter(node);
        if has_vote && newest.needs(self.node) && before.needs(self.node) && self.may_stand().await
        {
            return self.clears_until_its_end(node).await;
        }
        if has_vote && !self.has_never_answered(node) {
            self.take_out(node);
            return Clearance::No;
        }
        // Looked at last: that what was just known of the members is the newest there is.
        let is_cleared = self.still_leads(leadership);
        let (committed, _) = self.core.applied_state();
        match committed.filter(|_| is_cleared) {
            Some(committed) => {
                // One with a vote comes late to a new group, and nothing was ever known of it.
                if !has_vote {
                    self.shared.is_rebuilt_until(node, committed);
                }
                self.not_lost(node);
                Clearance::Until(committed)
            }
            None => Clearance::No,
        }
    }

    /// Clears a voter until its log ends where this one does, of which it is not known how much is
    /// committed. That is durable first: if a power cut took it back, the other could have more than
    /// this node and still be forbidden to stand.
    async fn clears_until_its_end(&self, node: NodeId) -> Clearance {
        let last = self.core.last_log_id();
        match (last, self.core.flush(self.core.flush_target()).await) {
            (Some(last), Ok(())) => {
                self.shared.is_rebuilt_until(node, last);
                self.not_lost(node);
                self.shared.observe_lost(node);
                Clearance::Until(last)
            }
            _ => Clearance::No,
        }
    }

    /// Whether this node has been the leader since it was found to be, and still is.
    fn still_leads(&self, found: Leadership) -> bool {
        match (found, &self.liveness) {
            (Leadership::Leader { epoch, ready: true }, Some(_)) => self.holds_lease_in(epoch),
            // Without a failure detector there is no lease.
            (Leadership::Leader { ready: true, .. }, None) => self.leadership() == found,
            _ => false,
        }
    }

    /// Whether this node is the first that has ever led the group, and that voter has never answered
    /// it: it comes late to a group that began without it. Nobody has counted on it but perhaps this
    /// leader on its vote, and who wants that vote in the same term lacks the term's first entry.
    fn has_never_answered(&self, node: NodeId) -> bool {
        let Known::Leads(term) = self.shared.known() else {
            return false;
        };
        self.core.is_first_term(term) && !self.shared.lease.has_answered(node, term)
    }

    fn not_lost(&self, node: NodeId) {
        self.shared.lost.lock().remove(&node);
    }

    /// On the leader: voters that have lost their log, and wait to be taken out or to be added again.
    pub fn lost_replicas(&self) -> BTreeSet<NodeId> {
        let Known::Leads(term) = self.shared.known() else {
            return BTreeSet::new();
        };
        let lost = self.shared.lost.lock();
        lost.iter()
            .filter(|(_, of)| **of == term)
            .map(|(node, _)| *node)
            .collect()
    }

    /// Replicas that do not have the log, whatever was known of them before: those that have lost it, and
    /// those that are being given it again as far as it was committed then.
    pub(crate) fn incomplete_replicas(&self) -> BTreeSet<NodeId> {
        let mut incomplete = self.shared.rebuilding();
        incomplete.extend(self.lost_replicas());
        incomplete
    }

    /// On the leader: takes away the vote of a replica that has lost its log, as soon as most of the
    /// others are there.
    fn take_out(self: &Arc<Self>, node: NodeId) {
        let Known::Leads(term) = self.shared.known() else {
            return;
        };
        if self.shared.lost.lock().insert(node, term) == Some(term) {
            return;
        }
        self.shared.observe_lost(node);
        tracing::warn!(
            group = %self.key(), %node,
            "a replica has lost its log: it is taken out of the voters, to be given it again"
        );
        let group = Arc::clone(self);
        tokio::spawn(async move {
            while !group.shared.is_closed() && group.lost_replicas().contains(&node) {
                let change = group.change_voters(group.voters_left());
                match tokio::time::timeout(TAKE_OUT_TIMEOUT, change).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        tracing::debug!(group = %group.key(), %node, %error, "not taken out yet");
                        tokio::time::sleep(TAKE_OUT_RETRY).await;
                    }
                    Err(_) => tracing::error!(
                        group = %group.key(), %node,
                        "a replica has lost its log, and too few of the other voters answer to take \
                         it out: the group waits for them"
                    ),
                }
            }
        });
    }

    /// Who is to vote once all that have lost their log are taken out.
    fn voters_left(&self) -> BTreeSet<NodeId> {
        let members = self.core.members();
        let goal = members.joint.as_ref().unwrap_or(&members.voters);
        goal.difference(&self.lost_replicas()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_back_and_damage_is_noticed() {
        let kept = Rebuilding {
            until: log_id(3, 17),
        };
        let bytes = kept.encode();
        assert_eq!(Rebuilding::decode(&bytes), Some(kept));
        for cut in 0..bytes.len() {
            assert_eq!(Rebuilding::decode(&bytes[..cut]), None);
        }
        assert!(kept.is_reached_by(Some(log_id(3, 17))) && kept.is_reached_by(Some(log_id(4, 2))));
        assert!(!kept.is_reached_by(Some(log_id(3, 16))) && !kept.is_reached_by(None));
    }
}
