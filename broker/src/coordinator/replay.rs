//! Bringing a state machine up to the end of its log.

use std::time::{Duration, Instant};

use bytes::Bytes;
use odradek_protocol::batch::{BatchError, BatchIter, BatchView, verify_crc};
use odradek_protocol::compression::DEFAULT_MAX_EXPANDED_BYTES;
use odradek_protocol::ids::{Offset, TimestampMs};
use odradek_protocol::records::{RecordWalker, expand};
use odradek_storage::producer_state::EndTxnMarker;

use super::effects::ProducerIdentity;
use super::log::{CoordinatorLog, LogFailure};
use super::{StateMachine, metrics, shard::ShardOptions};

/// How long to wait for commits that are still on their way.
const COMMIT_POLL: Duration = Duration::from_millis(10);

/// Replays into `state` everything that is in the log, once it has committed. What an earlier life of the
/// shard has appended in this term will commit, or the term ends; it may not even be in the log yet, and
/// what is would be replayed without it.
///
/// # Errors
/// The log cannot be read, or `is_abandoned` says that nobody needs the state any more.
pub(super) async fn replay<S: StateMachine>(
    state: &mut S,
    log: &dyn CoordinatorLog,
    options: &ShardOptions,
    now: TimestampMs,
    is_abandoned: impl Fn() -> bool,
) -> Result<(), LogFailure> {
    let began = Instant::now();
    while log.in_flight() > 0 {
        tokio::time::sleep(COMMIT_POLL).await;
        if is_abandoned() {
            return Err(LogFailure::NotLeader);
        }
    }
    let target = log.log_end();
    let mut next = log.log_start();
    let mut records = 0_u64;
    loop {
        let bytes = log.read(next, options.load_buffer_bytes).await?;
        let (end, count) = replay_batches(state, next, &bytes, now);
        records += count;
        if is_abandoned() {
            return Err(LogFailure::NotLeader);
        }
        if end > next {
            next = end;
            tokio::task::yield_now().await;
        } else if log.high_watermark() >= target {
            break;
        } else {
            tokio::time::sleep(COMMIT_POLL).await;
        }
    }
    let elapsed = began.elapsed();
    metrics::loaded(records, elapsed.as_secs_f64());
    tracing::info!(
        label = options.label, records, next_offset = %next,
        elapsed_ms = elapsed.as_millis(), "coordinator is loaded"
    );
    Ok(())
}

/// Replays the batches in `bytes`; returns the offset after the last one and the number of
/// records. Offsets below `from` have been replayed before.
fn replay_batches<S: StateMachine>(
    state: &mut S,
    from: Offset,
    bytes: &Bytes,
    now: TimestampMs,
) -> (Offset, u64) {
    let mut end = from;
    let mut count = 0;
    for batch in BatchIter::new(bytes) {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(%error, after = %end, "unreadable batch in a coordinator's log");
                break;
            }
        };
        match replay_batch(state, from, &batch, now) {
            Ok(replayed) => count += replayed,
            Err(error) => tracing::error!(
                %error, offset = %batch.header.base_offset,
                "a batch of a coordinator's log is damaged and is passed over"
            ),
        }
        end = end.max(batch.header.next_offset());
    }
    (end, count)
}

fn replay_batch<S: StateMachine>(
    state: &mut S,
    from: Offset,
    batch: &BatchView<'_>,
    now: TimestampMs,
) -> Result<u64, BatchError> {
    let header = &batch.header;
    verify_crc(header, batch.bytes)?;
    let producer = ProducerIdentity {
        id: header.producer_id,
        epoch: header.producer_epoch,
    };
    if header.is_control() {
        if let Some(marker) = EndTxnMarker::parse(header, batch.bytes) {
            state.replay_end(producer, marker, now);
        }
        return Ok(0);
    }
    let records = expand(header, batch.bytes, DEFAULT_MAX_EXPANDED_BYTES)?;
    let mut count = 0;
    for record in RecordWalker::new(&records, header.record_count) {
        let record = record?;
        if header.base_offset.plus(i64::from(record.offset_delta)) >= from {
            match header.is_transactional() {
                true => state.replay_in_transaction(producer, record.key, record.value, now),
                false => state.replay(record.key, record.value, now),
            }
            count += 1;
        }
    }
    Ok(count)
}
