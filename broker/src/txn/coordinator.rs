//! The state of one shard of the transaction coordinator: all transactional ids of one partition of
//! `__transaction_state`.
//!
//! Pure: `(state, request, now) → effects`. Every record that it asks to be written is already in
//! its state, so the state is that of the log's end; the shell keeps replies back until the log has
//! committed that far, and throws the state away should a write fail.
//!
//! A transaction is decided by one record (`PrepareCommit`, `PrepareAbort`), and told to its
//! partitions only after that is committed: [`TxnRequest::NextMarkers`] is answered with what is to
//! be told, and an answer waits for the log like any other. Until every partition is known to know,
//! the id takes no further transaction; requests wait a little for that, and are then told to ask
//! again.
//!
//! Absent on purpose: producer ids come with the requests that may need one, and topics are only
//! names and ids here.

use std::collections::HashMap;

use odradek_protocol::ids::TimestampMs;

use super::config::CoordinatorConfig;
use super::error::TxnError;
use super::messages::{
    AddRequest, DecidedTxn, Description, EndRequest, InitRequest, ListRequest, Listing,
    MarkersWritten, Refusal, TopicOfTxn, TxnEffects, TxnReply, TxnRequest, TxnTimer, VerifyRequest,
};
use super::names::{TransactionalId, TxnVersion};
use super::records::{Transaction, TxnRecord, TxnState, size_bound};
use crate::coordinator::StateMachine;
use crate::coordinator::effects::{ProducerIdentity, RequestToken};

/// Requests that wait for the completion of one id's transaction.
const MAX_WAITING: usize = 64;
/// Transactions told of in one answer.
const MAX_DECIDED: usize = 256;

/// A transactional id, with the requests that wait for its transaction to be completed.
#[derive(Debug)]
struct Entry {
    transaction: Transaction,
    waiting: Vec<(RequestToken, TxnRequest)>,
}

/// All transactional ids of one partition of `__transaction_state`.
#[derive(Debug)]
pub struct TxnCoordinator {
    config: CoordinatorConfig,
    version: TxnVersion,
    ids: HashMap<TransactionalId, Entry>,
    /// Ids whose transaction is decided, and whose partitions nobody has been told to tell.
    untold: Vec<TransactionalId>,
    /// Who waits for something to tell.
    teller: Option<RequestToken>,
}

impl TxnCoordinator {
    /// A shard without ids, in a cluster whose `transaction.version` is `version`.
    pub fn new(config: CoordinatorConfig, version: TxnVersion) -> Self {
        Self {
            config,
            version,
            ids: HashMap::new(),
            untold: Vec::new(),
            teller: None,
        }
    }

    /// What is known of an id.
    pub fn get(&self, id: &TransactionalId) -> Option<&Transaction> {
        self.ids.get(id).map(|entry| &entry.transaction)
    }

    /// Every id with what is known of it, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&TransactionalId, &Transaction)> {
        self.ids.iter().map(|(id, entry)| (id, &entry.transaction))
    }

    fn put(&mut self, id: &TransactionalId, transaction: Transaction) {
        match self.ids.get_mut(id) {
            Some(entry) => entry.transaction = transaction,
            None => {
                let entry = Entry {
                    transaction,
                    waiting: Vec::new(),
                };
                self.ids.insert(id.clone(), entry);
            }
        }
    }

    /// Brings a changed transaction into the state and has it written.
    fn write(&mut self, id: &TransactionalId, transaction: Transaction, effects: &mut TxnEffects) {
        effects.records.push(TxnRecord {
            id: id.clone(),
            transaction: Some(transaction.clone()),
            version: self.version,
        });
        if transaction.state.is_prepared() {
            self.untold.push(id.clone());
        }
        self.put(id, transaction);
    }

    /// Has a request wait until the id's transaction is completed.
    fn wait(
        &mut self,
        id: &TransactionalId,
        token: RequestToken,
        request: TxnRequest,
        effects: &mut TxnEffects,
    ) {
        let wait_ms = self.config.completion_wait_ms;
        match self.ids.get_mut(id) {
            Some(entry) if wait_ms > 0 && entry.waiting.len() < MAX_WAITING => {
                if entry.waiting.is_empty() {
                    effects.set_timer(TxnTimer::Waited(id.clone()), wait_ms);
                }
                entry.waiting.push((token, request));
            }
            _ => refuse(token, &request, TxnError::ConcurrentTransactions, effects),
        }
    }

    fn init(
        &mut self,
        token: RequestToken,
        request: InitRequest,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        let id = request.id.clone();
        let current = match self.ids.get(&id).map(|entry| &entry.transaction) {
            Some(current) if current.state.is_prepared() => {
                return self.wait(&id, token, TxnRequest::Init(request), effects);
            }
            Some(current) => current.clone(),
            None => match request.fresh {
                Some(fresh) => Transaction::new(fresh, now),
                None => return reply_init(token, Err(Refusal::NeedsProducerId), effects),
            },
        };
        if current.state == TxnState::Ongoing {
            let goes_on = |producer| current.may_go_on(producer);
            let concurrent = match request.expected.is_none_or(goes_on) {
                true => {
                    self.write(&id, current.fenced(self.version, now), effects);
                    TxnError::ConcurrentTransactions
                }
                false => TxnError::ProducerFenced,
            };
            return reply_init(token, Err(concurrent.into()), effects);
        }
        if effects.is_scarce {
            return reply_init(token, Err(TxnError::NotAvailable.into()), effects);
        }
        let initialized = current.initialized(&request, now);
        let reply = initialized.map(|next| {
            let producer = next.producer();
            self.write(&id, next, effects);
            producer
        });
        reply_init(token, reply, effects);
    }

    fn add(
        &mut self,
        token: RequestToken,
        request: AddRequest,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        let id = request.id.clone();
        let Some(current) = self.ids.get(&id).map(|entry| &entry.transaction) else {
            let unknown = TxnReply::Add(Err(TxnError::InvalidProducerIdMapping));
            return effects.reply(token, unknown);
        };
        if current.state.is_prepared() {
            return self.wait(&id, token, TxnRequest::Add(request), effects);
        }
        let checked = current.check_producer(request.producer);
        let changed = checked.map(|()| {
            let is_new = !current.has_all(&request);
            is_new.then(|| current.with_partitions(&request, now))
        });
        let max_bytes = self
            .config
            .max_record_bytes
            .saturating_sub(id.as_str().len());
        let reply = match changed {
            Ok(None) => Ok(()),
            Ok(Some(next)) if size_bound(&next) > max_bytes => Err(TxnError::TooLarge),
            Ok(Some(_)) if effects.is_scarce => Err(TxnError::NotAvailable),
            Ok(Some(next)) => {
                self.write(&id, next, effects);
                Ok(())
            }
            Err(error) => Err(error),
        };
        effects.reply(token, TxnReply::Add(reply));
    }

    fn verify(&self, request: &VerifyRequest) -> Result<Vec<Vec<bool>>, TxnError> {
        let current = self
            .get(&request.id)
            .ok_or(TxnError::InvalidProducerIdMapping)?;
        current.check_producer(request.producer)?;
        if current.state.is_prepared() {
            return Err(TxnError::ConcurrentTransactions);
        }
        let verify_topic = |asked: &TopicOfTxn| {
            // One that was made again under the same name is another topic.
            let known = current
                .partitions
                .get(&asked.name)
                .filter(|known| known.id.is_zero() || known.id == asked.id);
            let has = |index| known.is_some_and(|known| known.partitions.contains(index));
            asked.partitions.iter().map(has).collect()
        };
        Ok(request.topics.iter().map(verify_topic).collect())
    }

    fn end(
        &mut self,
        token: RequestToken,
        request: EndRequest,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        let id = request.id.clone();
        let Some(current) = self.ids.get(&id).map(|entry| &entry.transaction) else {
            let unknown = Err(TxnError::InvalidProducerIdMapping.into());
            return effects.reply(token, TxnReply::End(unknown));
        };
        if current.state.is_prepared() {
            // Who asks with another epoch asks in vain, unless epochs are about to change.
            let checked = match request.client_version.bumps_epoch() {
                true => Ok(()),
                false => current.check_producer(request.producer),
            };
            return match checked {
                Ok(()) => self.wait(&id, token, TxnRequest::End(request), effects),
                Err(error) => effects.reply(token, TxnReply::End(Err(error.into()))),
            };
        }
        let reply = match current.ended(&request, now) {
            Ok(None) => Ok(current.producer()),
            // There is nothing to end, but a new epoch to give.
            Ok(Some(_)) if effects.is_scarce && current.state != TxnState::Ongoing => {
                Err(TxnError::NotAvailable.into())
            }
            Ok(Some(next)) => {
                let producer = next.producer_after_completion();
                self.write(&id, next, effects);
                Ok(producer)
            }
            Err(refusal) => Err(refusal),
        };
        effects.reply(token, TxnReply::End(reply));
    }

    fn describe(&self, id: &TransactionalId) -> Option<Description> {
        let transaction = self.get(id)?;
        Some(Description {
            producer: transaction.producer(),
            state: transaction.state,
            timeout_ms: transaction.timeout_ms,
            started_at: transaction.started_at,
            partitions: transaction.partitions.clone(),
        })
    }

    fn list(&self, request: &ListRequest, now: TimestampMs) -> Vec<Listing> {
        self.iter()
            .filter(|(_, transaction)| {
                let open_for = now.get().saturating_sub(transaction.started_at.get());
                let states = request.states.as_ref();
                states.is_none_or(|states| states.contains(&transaction.state))
                    && (request.producer_ids.is_empty()
                        || request.producer_ids.contains(&transaction.producer_id))
                    && (request.open_for_ms < 0 || open_for > request.open_for_ms)
            })
            .map(|(id, transaction)| Listing {
                id: id.clone(),
                producer_id: transaction.producer_id,
                state: transaction.state,
            })
            .collect()
    }

    fn next_markers(&mut self, token: RequestToken, anew: bool, effects: &mut TxnEffects) {
        if anew {
            self.untold = self.prepared();
        }
        // There is one who asks; if it asks again it has given up waiting.
        if let Some(earlier) = self.teller.replace(token) {
            effects.reply(earlier, TxnReply::Markers(Vec::new()));
        }
        self.tell(effects);
    }

    fn prepared(&self) -> Vec<TransactionalId> {
        self.those(|transaction| transaction.state.is_prepared())
    }

    /// The ids whose transactions are `wanted`, in order: what is done to all of them is done in the
    /// same order whenever the same happens.
    fn those(&self, wanted: impl Fn(&Transaction) -> bool) -> Vec<TransactionalId> {
        let found = self.iter().filter(|(_, transaction)| wanted(transaction));
        let mut ids: Vec<_> = found.map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Answers who waits for something to tell, if there is something.
    fn tell(&mut self, effects: &mut TxnEffects) {
        if self.untold.is_empty() {
            return;
        }
        let Some(token) = self.teller.take() else {
            return;
        };
        let count = self.untold.len().min(MAX_DECIDED);
        let taken: Vec<_> = self.untold.drain(..count).collect();
        let decided: Vec<_> = taken.iter().filter_map(|id| self.decided(id)).collect();
        effects.reply(token, TxnReply::Markers(decided));
    }

    fn decided(&self, id: &TransactionalId) -> Option<DecidedTxn> {
        let transaction = self.get(id).filter(|known| known.state.is_prepared())?;
        Some(DecidedTxn {
            id: id.clone(),
            producer: transaction.producer(),
            committed: transaction.state == TxnState::PrepareCommit,
            partitions: transaction.partitions.clone(),
            client_version: transaction.client_version,
            started_at: transaction.started_at,
        })
    }

    fn markers_written(
        &mut self,
        written: &MarkersWritten,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        // Some producers keep their epoch, so it does not say which of their transactions is meant.
        let is_current = |transaction: &&Transaction| {
            transaction.state.is_prepared()
                && transaction.producer() == written.producer
                && transaction.started_at == written.started_at
        };
        let Some(current) = self.get(&written.id).filter(is_current) else {
            return;
        };
        let completed = current.completed(now);
        self.write(&written.id, completed, effects);
        effects.cancel_timer(TxnTimer::Waited(written.id.clone()));
        let waiting = self
            .ids
            .get_mut(&written.id)
            .map(|entry| std::mem::take(&mut entry.waiting))
            .unwrap_or_default();
        for (token, request) in waiting {
            self.answer(token, request, now, effects);
        }
    }

    fn waited(&mut self, id: &TransactionalId, effects: &mut TxnEffects) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        for (token, request) in std::mem::take(&mut entry.waiting) {
            refuse(token, &request, TxnError::ConcurrentTransactions, effects);
        }
    }

    fn abort_timed_out(&mut self, now: TimestampMs, effects: &mut TxnEffects) {
        for id in self.those(|transaction| transaction.is_timed_out(now)) {
            let Some(open) = self.get(&id) else { continue };
            let aborted = open.fenced(self.version, now);
            tracing::info!(%id, "a transaction is aborted, because its time is up");
            self.write(&id, aborted, effects);
        }
    }

    fn remove_expired(&mut self, now: TimestampMs, effects: &mut TxnEffects) {
        let expiration_ms = self.config.id_expiration_ms;
        for id in self.those(|transaction| transaction.is_expired(now, expiration_ms)) {
            self.ids.remove(&id);
            effects.records.push(TxnRecord {
                id,
                transaction: None,
                version: self.version,
            });
        }
    }

    fn schedule(&self, timer: TxnTimer, effects: &mut TxnEffects) {
        let after_ms = match timer {
            TxnTimer::TimedOut => self.config.timeout_check_interval_ms,
            TxnTimer::Expired => self.config.expiration_check_interval_ms,
            TxnTimer::Waited(_) => self.config.completion_wait_ms,
        };
        effects.set_timer(timer, after_ms);
    }

    fn answer(
        &mut self,
        token: RequestToken,
        request: TxnRequest,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        match request {
            TxnRequest::Init(request) => self.init(token, request, now, effects),
            TxnRequest::Add(request) => self.add(token, request, now, effects),
            TxnRequest::End(request) => self.end(token, request, now, effects),
            TxnRequest::NextMarkers { anew } => self.next_markers(token, anew, effects),
            TxnRequest::Verify(request) => {
                effects.reply(token, TxnReply::Verify(self.verify(&request)));
            }
            TxnRequest::Describe(id) => {
                effects.reply(token, TxnReply::Describe(self.describe(&id)));
            }
            TxnRequest::List(request) => {
                effects.reply(token, TxnReply::List(self.list(&request, now)));
            }
            TxnRequest::MarkersWritten(written) => {
                for written in &written {
                    self.markers_written(written, now, effects);
                }
                effects.reply(token, TxnReply::Done);
            }
            TxnRequest::SetVersion(version) => {
                self.version = version;
                effects.reply(token, TxnReply::Done);
            }
        }
    }
}

fn reply_init(
    token: RequestToken,
    reply: Result<ProducerIdentity, Refusal>,
    effects: &mut TxnEffects,
) {
    effects.reply(token, TxnReply::Init(reply));
}

/// Refuses a request that was to wait.
fn refuse(token: RequestToken, request: &TxnRequest, error: TxnError, effects: &mut TxnEffects) {
    let reply = match request {
        TxnRequest::Init(_) => TxnReply::Init(Err(error.into())),
        TxnRequest::Add(_) => TxnReply::Add(Err(error)),
        TxnRequest::End(_) => TxnReply::End(Err(error.into())),
        // These never wait.
        TxnRequest::Verify(_)
        | TxnRequest::Describe(_)
        | TxnRequest::List(_)
        | TxnRequest::NextMarkers { .. }
        | TxnRequest::MarkersWritten(_)
        | TxnRequest::SetVersion(_) => TxnReply::Done,
    };
    effects.reply(token, reply);
}

impl StateMachine for TxnCoordinator {
    type Request = TxnRequest;
    type Reply = TxnReply;
    type Record = TxnRecord;
    type Timer = TxnTimer;

    fn replay(&mut self, key: Option<&[u8]>, value: Option<&[u8]>, _now: TimestampMs) {
        match TxnRecord::decode(key, value) {
            Ok(Some((id, Some(transaction)))) => self.put(&id, transaction),
            Ok(Some((id, None))) => {
                self.ids.remove(&id);
            }
            Ok(None) => tracing::debug!("a record of an unknown kind is passed over"),
            Err(error) => tracing::error!(%error, "a damaged transaction record is passed over"),
        }
    }

    fn loaded(&mut self, _now: TimestampMs, effects: &mut TxnEffects) {
        self.untold = self.prepared();
        self.schedule(TxnTimer::TimedOut, effects);
        self.schedule(TxnTimer::Expired, effects);
    }

    fn handle(
        &mut self,
        token: RequestToken,
        request: TxnRequest,
        now: TimestampMs,
        effects: &mut TxnEffects,
    ) {
        self.answer(token, request, now, effects);
        self.tell(effects);
    }

    fn only_reads(&self, request: &TxnRequest) -> bool {
        match request {
            TxnRequest::Verify(_)
            | TxnRequest::Describe(_)
            | TxnRequest::List(_)
            | TxnRequest::NextMarkers { .. }
            | TxnRequest::SetVersion(_) => true,
            TxnRequest::Init(_)
            | TxnRequest::Add(_)
            | TxnRequest::End(_)
            | TxnRequest::MarkersWritten(_) => false,
        }
    }

    fn timer_fired(&mut self, timer: TxnTimer, now: TimestampMs, effects: &mut TxnEffects) {
        match &timer {
            TxnTimer::Waited(id) => return self.waited(id, effects),
            TxnTimer::TimedOut => self.abort_timed_out(now, effects),
            TxnTimer::Expired => self.remove_expired(now, effects),
        }
        self.schedule(timer, effects);
        self.tell(effects);
    }
}

/// What survives a restart, for comparing a live coordinator with a replayed one.
#[cfg(test)]
pub(super) fn persistent_view(
    coordinator: &TxnCoordinator,
) -> std::collections::BTreeMap<TransactionalId, Transaction> {
    let view = coordinator.iter().map(|(id, transaction)| {
        let mut transaction = transaction.clone();
        transaction.last_epoch = odradek_protocol::ids::ProducerEpoch::NONE;
        (id.clone(), transaction)
    });
    view.collect()
}
