//! The task beside a coordinator that has partitions told what the coordinator has decided.
//!
//! It asks the coordinator what there is to tell, which answers only with what is committed, and
//! says when every partition of a transaction knows. Whenever it cannot be sure that the coordinator
//! and it agree on what is under way, it drops everything and asks for all of it anew; a partition
//! that is told twice before the transaction is completed is none the worse.

use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::LeaderEpoch;
use tokio::task::{JoinError, JoinSet};

use super::coordinator::TxnCoordinator;
use super::delivery::{Delivery, Replaced, Undelivered};
use super::messages::{DecidedTxn, MarkersWritten, TxnReply, TxnRequest};
use crate::coordinator::{Shard, ShardError};

/// Answers of the coordinator whose transactions are told at a time.
const MAX_TELLING: usize = 32;
/// Pause before the coordinator is asked again that did not answer.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// Pause after it turned out that another coordinator has taken over.
const REPLACED_PAUSE: Duration = Duration::from_secs(1);
/// Pause before partitions that did not take their marker are told again, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why transactions were not brought to their end.
#[derive(Debug)]
enum Stopped {
    /// Another coordinator has taken over.
    Replaced,
    /// The coordinator has lost track, or is gone.
    Shard,
}

impl From<Replaced> for Stopped {
    fn from(_: Replaced) -> Self {
        Self::Replaced
    }
}

/// Tells partitions what `shard`, which coordinates in the term `epoch`, decides. Runs until it is
/// aborted.
pub async fn run(shard: Shard<TxnCoordinator>, delivery: Arc<Delivery>, epoch: LeaderEpoch) {
    loop {
        let pause = match tell_all(&shard, &delivery, epoch).await {
            Stopped::Replaced => REPLACED_PAUSE,
            Stopped::Shard => ASK_PAUSE,
        };
        tokio::time::sleep(pause).await;
    }
}

/// Tells partitions until something goes wrong.
async fn tell_all(
    shard: &Shard<TxnCoordinator>,
    delivery: &Arc<Delivery>,
    epoch: LeaderEpoch,
) -> Stopped {
    let mut telling: JoinSet<Result<(), Stopped>> = JoinSet::new();
    let mut anew = true;
    let stopped = loop {
        let mut asking = std::pin::pin!(shard.call(TxnRequest::NextMarkers { anew }));
        let answer = loop {
            tokio::select! {
                biased;
                Some(told) = telling.join_next(), if !telling.is_empty() => {
                    if let Err(stopped) = outcome(told) {
                        break Err(stopped);
                    }
                }
                answer = &mut asking, if telling.len() < MAX_TELLING => break Ok(answer),
            }
        };
        match answer {
            Ok(Ok(TxnReply::Markers(decided))) => {
                anew = false;
                if !decided.is_empty() {
                    telling.spawn(tell(shard.clone(), Arc::clone(delivery), epoch, decided));
                }
            }
            Ok(Ok(_) | Err(_)) => break Stopped::Shard,
            Err(stopped) => break stopped,
        }
    };
    telling.shutdown().await;
    stopped
}

fn outcome(told: Result<Result<(), Stopped>, JoinError>) -> Result<(), Stopped> {
    told.unwrap_or(Err(Stopped::Shard))
}

/// Tells the partitions of some transactions until all know.
async fn tell(
    shard: Shard<TxnCoordinator>,
    delivery: Arc<Delivery>,
    epoch: LeaderEpoch,
    decided: Vec<DecidedTxn>,
) -> Result<(), Stopped> {
    let mut left: Vec<_> = decided.into_iter().map(Undelivered::new).collect();
    let mut pause = FIRST_PAUSE;
    loop {
        delivery.round(epoch, &mut left).await?;
        let (done, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(Undelivered::is_delivered);
        complete(&shard, done).await?;
        if rest.is_empty() {
            return Ok(());
        }
        left = rest;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn complete(
    shard: &Shard<TxnCoordinator>,
    delivered: Vec<Undelivered>,
) -> Result<(), Stopped> {
    if delivered.is_empty() {
        return Ok(());
    }
    let written: Vec<_> = delivered
        .into_iter()
        .map(|delivered| MarkersWritten {
            id: delivered.transaction.id,
            producer: delivered.transaction.producer,
            started_at: delivered.transaction.started_at,
        })
        .collect();
    loop {
        let request = TxnRequest::MarkersWritten(written.clone());
        match shard.call(request).await {
            Ok(_) => return Ok(()),
            // Too much to do for it, or it is about to load anew; then it is loading next.
            Err(ShardError::Unavailable) => tokio::time::sleep(ASK_PAUSE).await,
            Err(ShardError::Loading | ShardError::NotCoordinator) => return Err(Stopped::Shard),
        }
    }
}
