//! The coordinators of all transactional ids that this broker is responsible for.
//!
//! An id belongs to the partition of `__transaction_state` that it hashes to, and to the broker that
//! leads it. Each coordinator has a [`teller`], which tells partitions what the
//! coordinator has decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicI16, Ordering};
use std::time::Duration;

use odradek_protocol::ids::{PartitionIndex, ProducerId};
use tokio::task::JoinHandle;

use super::config::CoordinatorConfig;
use super::coordinator::TxnCoordinator;
use super::delivery::Delivery;
use super::error::TxnError;
use super::messages::{
    AddRequest, Description, EndRequest, InitRequest, ListRequest, Listing, Refusal, TxnReply,
    TxnRequest, VerifyRequest,
};
use super::metrics;
use super::names::{TransactionalId, TxnVersion};
use super::teller;
use crate::clock::Clock;
use crate::coordinator::effects::ProducerIdentity;
use crate::coordinator::host::{Host, variant};
use crate::coordinator::hosting::Coordinators;
use crate::coordinator::{CoordinatorLog, Shard, ShardError, ShardOptions};
use crate::metadata::producer_ids::ProducerIds;

/// How soon a coordinator that loads is told again of a new level.
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// How long a client waits for a new block of producer ids.
const ID_PATIENCE: Duration = Duration::from_secs(1);

/// Name of the topic that holds the state of transactions.
pub const STATE_TOPIC: &str = "__transaction_state";

impl From<ShardError> for TxnError {
    fn from(error: ShardError) -> Self {
        match error {
            ShardError::Loading => Self::Loading,
            ShardError::NotCoordinator => Self::NotCoordinator,
            ShardError::Unavailable => Self::NotAvailable,
        }
    }
}

/// The task beside a coordinator that tells partitions what it decides.
#[derive(Debug)]
pub struct Telling(JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The transaction coordinator of a broker.
#[derive(Debug)]
pub struct Service {
    config: CoordinatorConfig,
    load_buffer_bytes: usize,
    clock: Arc<dyn Clock>,
    delivery: Arc<Delivery>,
    /// Level of `transaction.version`.
    version: Arc<AtomicI16>,
    host: Host<TxnCoordinator, Telling>,
}

impl Coordinators for Service {
    type Machine = TxnCoordinator;
    type Beside = Telling;

    fn host(&self) -> &Host<TxnCoordinator, Telling> {
        &self.host
    }

    fn lead(&self, partition: PartitionIndex, log: Arc<dyn CoordinatorLog>) {
        let mut config = self.config.clone();
        config.max_record_bytes = log.max_record_bytes();
        let options = ShardOptions {
            label: format!("{STATE_TOPIC}-{partition}"),
            load_buffer_bytes: self.load_buffer_bytes,
            ..ShardOptions::default()
        };
        let (clock, epoch) = (Arc::clone(&self.clock), log.epoch());
        let version = Arc::clone(&self.version);
        let make_state = move || {
            let version = TxnVersion::of_level(version.load(Ordering::Acquire));
            TxnCoordinator::new(config.clone(), version)
        };
        let shard = Shard::start(make_state, log, clock, options);
        let telling = teller::run(shard.clone(), Arc::clone(&self.delivery), epoch);
        let telling = Telling(tokio::spawn(telling));
        self.host.insert(partition, shard, telling);
    }
}

impl Service {
    /// A service that coordinates nothing yet, and tells partitions by `delivery`.
    pub fn new(
        config: CoordinatorConfig,
        load_buffer_bytes: usize,
        clock: Arc<dyn Clock>,
        delivery: Arc<Delivery>,
    ) -> Self {
        Self {
            config,
            load_buffer_bytes,
            clock,
            delivery,
            version: Arc::default(),
            host: Host::new(metrics::coordinators),
        }
    }

    /// The level of `transaction.version` is now this.
    pub async fn set_version(&self, version: TxnVersion) {
        if self.version.swap(version.level(), Ordering::AcqRel) == version.level() {
            return;
        }
        for shard in self.host.shards() {
            // One that loads may have begun with the old level.
            while let Err(ShardError::Loading | ShardError::Unavailable) =
                shard.call(TxnRequest::SetVersion(version)).await
            {
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn ask<T>(
        &self,
        id: &TransactionalId,
        request: TxnRequest,
        take: impl FnOnce(TxnReply) -> Option<T>,
    ) -> Result<T, TxnError> {
        Ok(self.host.ask(id.as_str(), request, take).await?)
    }

    /// InitProducerId with a transactional id. `ids` is asked if a new producer id is needed.
    ///
    /// # Errors
    /// The producer is fenced, the request impossible, or it is to be tried again.
    pub async fn init(
        &self,
        mut request: InitRequest,
        ids: &impl FreshIds,
    ) -> Result<ProducerIdentity, TxnError> {
        if request.id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        if request.timeout_ms <= 0 || request.timeout_ms > self.config.max_timeout_ms {
            return Err(TxnError::InvalidTimeout);
        }
        loop {
            let asked = TxnRequest::Init(request.clone());
            let reply = self
                .ask(&request.id, asked, variant!(TxnReply::Init))
                .await?;
            match reply {
                Ok(producer) => return Ok(producer),
                Err(refusal) => refresh(refusal, &mut request.fresh, ids).await?,
            }
        }
    }

    /// Makes partitions part of a transaction, which begins with them if it has not begun.
    ///
    /// # Errors
    /// The producer is fenced, the request impossible, or it is to be tried again.
    pub async fn add(&self, request: AddRequest) -> Result<(), TxnError> {
        if request.id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        let id = request.id.clone();
        let asked = TxnRequest::Add(request);
        self.ask(&id, asked, variant!(TxnReply::Add)).await?
    }

    /// Whether partitions are part of the open transaction, in the order asked.
    ///
    /// # Errors
    /// There is no such transaction, or it cannot be told now.
    pub async fn verify(&self, request: VerifyRequest) -> Result<Vec<Vec<bool>>, TxnError> {
        if request.id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        let id = request.id.clone();
        let asked = TxnRequest::Verify(request);
        self.ask(&id, asked, variant!(TxnReply::Verify)).await?
    }

    /// EndTxn. Returns once the outcome is decided for good: with what the producer goes on.
    ///
    /// # Errors
    /// The producer is fenced, the request impossible, or it is to be tried again.
    pub async fn end(
        &self,
        mut request: EndRequest,
        ids: &impl FreshIds,
    ) -> Result<ProducerIdentity, TxnError> {
        if request.id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        loop {
            let asked = TxnRequest::End(request.clone());
            let reply = self
                .ask(&request.id, asked, variant!(TxnReply::End))
                .await?;
            match reply {
                Ok(producer) => {
                    metrics::ended(request.committed);
                    return Ok(producer);
                }
                Err(refusal) => refresh(refusal, &mut request.fresh, ids).await?,
            }
        }
    }

    /// DescribeTransactions of one id.
    ///
    /// # Errors
    /// There is no such id, or it cannot be told now.
    pub async fn describe(&self, id: TransactionalId) -> Result<Description, TxnError> {
        if id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        let asked = TxnRequest::Describe(id.clone());
        let described = self.ask(&id, asked, variant!(TxnReply::Describe)).await?;
        described.ok_or(TxnError::NotFound)
    }

    /// ListTransactions: the ids coordinated here.
    ///
    /// # Errors
    /// A coordinator is loading, so the list would have a hole.
    pub async fn list(&self, request: &ListRequest) -> Result<Vec<Listing>, TxnError> {
        let asked = || TxnRequest::List(request.clone());
        let listed = self.host.collect(asked, variant!(TxnReply::List)).await;
        let mut ids = listed?;
        ids.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        Ok(ids)
    }
}

/// Where producer ids come from.
pub trait FreshIds: Sync {
    /// An id that no producer has had.
    ///
    /// # Errors
    /// There is none at present.
    fn fresh(&self) -> impl Future<Output = Result<ProducerId, TxnError>> + Send;
}

impl FreshIds for ProducerIds {
    async fn fresh(&self) -> Result<ProducerId, TxnError> {
        match tokio::time::timeout(ID_PATIENCE, self.next()).await {
            Ok(Ok(id)) => Ok(id),
            Ok(Err(error)) => {
                tracing::warn!(%error, "no producer id can be given out");
                Err(TxnError::NoProducerId)
            }
            Err(_elapsed) => Err(TxnError::NoProducerId),
        }
    }
}

/// Gets the producer id that a coordinator has asked for. It asks once.
async fn refresh(
    refusal: Refusal,
    fresh: &mut Option<ProducerId>,
    ids: &impl FreshIds,
) -> Result<(), TxnError> {
    match refusal {
        Refusal::Failed(error) => Err(error),
        Refusal::NeedsProducerId if fresh.is_none() => {
            *fresh = Some(ids.fresh().await?);
            Ok(())
        }
        Refusal::NeedsProducerId => Err(TxnError::NotAvailable),
    }
}
