//! From the bytes of a Produce request to the batch that goes into the log.
//!
//! The batch is validated and, only where the topic's configuration asks for it, rewritten: other
//! timestamps (`message.timestamp.type=LogAppendTime`) or another codec (`compression.type` other
//! than `producer`). In every other case the bytes that came off the socket are the bytes that
//! reach the disk; nothing is copied.

use bytes::{Bytes, BytesMut};
use odradek_protocol::batch::{
    BatchError, BatchHeader, BatchOrigin, BatchSummary, TimestampType, ValidationLimits, restamp,
    validate_batch,
};
use odradek_protocol::compression::{Compression, compress_at_level, decompress_capped};
use odradek_protocol::ids::TimestampMs;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::settings::PartitionSettings;

/// A batch that may be proposed.
#[derive(Clone, Debug)]
pub struct PreparedBatch {
    /// The whole batch, its base offset and leader epoch not yet those of the log.
    pub bytes: Bytes,
    /// Its header.
    pub header: BatchHeader,
    /// The broker's time, where the topic's records carry that.
    pub log_append_time: Option<TimestampMs>,
}

/// Batches from this size on are expanded and compressed where they hold up nobody: they can
/// expand to thousands of times their size.
const LARGE_BYTES: usize = 16 * 1024;

/// Runs `work` on `records` such that a worker thread of the runtime can be replaced while it
/// expands or compresses a large batch.
fn off_the_runtime<T>(records: &[u8], wanted: Option<Compression>, work: impl FnOnce() -> T) -> T {
    let is_plain = BatchHeader::parse(records)
        .is_ok_and(|header| matches!(header.compression(), Ok(Compression::None)));
    let stays_plain = is_plain && matches!(wanted, None | Some(Compression::None));
    let has_workers = Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if records.len() >= LARGE_BYTES && !stays_plain && has_workers {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Validates the one batch in `records` and gives it the form that the topic asks for.
pub fn prepare(
    records: Bytes,
    settings: &PartitionSettings,
    origin: BatchOrigin,
    zstd_allowed: bool,
    now: TimestampMs,
) -> Result<PreparedBatch, BatchError> {
    let limits = settings.limits(origin, zstd_allowed, now);
    off_the_runtime(
        &records.clone(),
        settings.compression.map(|(codec, _level)| codec),
        || prepare_within(records, settings, origin, &limits),
    )
}

fn prepare_within(
    records: Bytes,
    settings: &PartitionSettings,
    origin: BatchOrigin,
    limits: &ValidationLimits,
) -> Result<PreparedBatch, BatchError> {
    let summary = validate_batch(&records, limits)?;
    let mut bytes = records;
    let compression = summary.header.compression()?;
    match settings.compression {
        // One that has the codec already is kept, whatever its level, as Kafka does.
        Some(wanted) if wanted.0 != compression && origin == BatchOrigin::Client => {
            let cap = settings.expansion().max_batch_bytes;
            bytes = recompress(
                &bytes,
                &summary,
                compression,
                wanted,
                cap,
                settings.timestamp_type,
            )?;
            if bytes.len() > settings.max_message_bytes {
                return Err(BatchError::TooLarge {
                    len: bytes.len(),
                    limit: settings.max_message_bytes,
                });
            }
        }
        _ if summary.needs_restamp => {
            bytes = restamp(bytes, settings.timestamp_type, summary.max_timestamp);
        }
        _ => {}
    }
    let header = BatchHeader::parse(&bytes)?;
    let log_append_time = match header.timestamp_type() {
        TimestampType::LogAppendTime => Some(header.max_timestamp),
        TimestampType::CreateTime => None,
    };
    Ok(PreparedBatch {
        bytes,
        header,
        log_append_time,
    })
}

/// The same records under another codec, stamped as the topic asks for.
fn recompress(
    batch: &[u8],
    summary: &BatchSummary,
    from: Compression,
    (to, level): (Compression, i32),
    max_decompressed_bytes: usize,
    timestamp_type: TimestampType,
) -> Result<Bytes, BatchError> {
    let records = batch.get(BatchHeader::SIZE..).unwrap_or_default();
    let plain = decompress_capped(from, records, max_decompressed_bytes)?;
    let packed = compress_at_level(to, level, &plain)?;
    let mut header = summary.header;
    header.attributes = header.attributes.with_compression(to);
    let length = BatchHeader::SIZE - BatchHeader::LOG_OVERHEAD + packed.len();
    header.batch_length = i32::try_from(length).map_err(|_| BatchError::TooLarge {
        len: length,
        limit: i32::MAX as usize,
    })?;
    let mut rewritten = BytesMut::with_capacity(BatchHeader::SIZE + packed.len());
    rewritten.extend_from_slice(&header.to_bytes());
    rewritten.extend_from_slice(&packed);
    Ok(restamp(
        rewritten.freeze(),
        timestamp_type,
        summary.max_timestamp,
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use odradek_protocol::records::{BatchBuilder, NewRecord};

    use super::*;
    use crate::config::{BrokerConfig, Settings};

    const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

    fn settings(compression: &str) -> PartitionSettings {
        let own = [("compression.type".to_owned(), compression.to_owned())];
        PartitionSettings::of_topic(&BrokerConfig::defaults(), "orders", &Settings::from(own))
    }

    /// Zeros by the megabyte, which gzip makes a thousandth of.
    fn plain(megabytes: usize) -> Bytes {
        let value = vec![0; 1 << 20];
        let mut builder = BatchBuilder::new();
        for _ in 0..megabytes {
            builder.push(NewRecord {
                timestamp: NOW,
                key: None,
                value: Some(&value),
                headers: &[],
            });
        }
        builder.build()
    }

    fn gzipped(megabytes: usize) -> Bytes {
        let settings = PartitionSettings {
            max_message_bytes: usize::MAX,
            ..settings("gzip")
        };
        let prepared = prepare(plain(megabytes), &settings, BatchOrigin::Client, true, NOW);
        prepared.expect("a good batch").bytes
    }

    /// How often another task of a runtime with one worker had its turn while `work` ran.
    fn turns_of_another_task(work: impl FnOnce() + Send + 'static) -> u32 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .expect("a runtime");
        let turns = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&turns);
        runtime.spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let during = runtime.spawn(async move {
            let before = turns.load(Ordering::SeqCst);
            work();
            turns.load(Ordering::SeqCst) - before
        });
        let during = runtime.block_on(during).expect("no panic");
        runtime.shutdown_background();
        during
    }

    #[test]
    fn a_large_compressed_batch_is_expanded_without_holding_up_the_runtime() {
        let batch = gzipped(100);
        assert!(batch.len() >= LARGE_BYTES, "{}", batch.len());
        let turns = turns_of_another_task(move || {
            let settings = settings("producer");
            let prepared = prepare(batch, &settings, BatchOrigin::Client, true, NOW);
            assert!(prepared.is_ok());
        });
        assert!(turns > 0, "nobody else had a turn");
    }

    #[test]
    fn a_large_batch_is_compressed_without_holding_up_the_runtime() {
        let batch = plain(50);
        let turns = turns_of_another_task(move || {
            let settings = PartitionSettings {
                max_message_bytes: usize::MAX,
                ..settings("gzip")
            };
            let prepared = prepare(batch, &settings, BatchOrigin::Client, true, NOW);
            assert!(prepared.is_ok());
        });
        assert!(turns > 0, "nobody else had a turn");
    }
}
