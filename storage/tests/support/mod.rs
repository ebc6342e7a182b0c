//! What the tests of the log share: batches, and a log on a disk.
#![allow(dead_code)]

pub mod verify;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::BatchIter;
use odradek_protocol::ids::{
    LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs,
};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::disk::Disk;
use odradek_storage::{
    Log, LogConfig, LogDirHealth, LogReader, OpenHint, RealDisk, RecoveryReport, StampedBatch,
    StorageError,
};

pub const NOW: TimestampMs = TimestampMs::new(1_700_000_000_000);

/// A batch of `count` records with values of `value_bytes` bytes, all with one timestamp.
pub fn batch(count: usize, value_bytes: usize, timestamp: i64) -> Bytes {
    let value = vec![b'v'; value_bytes];
    let mut builder = BatchBuilder::new();
    for _ in 0..count {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(timestamp),
            value: Some(&value),
            ..NewRecord::default()
        });
    }
    builder.build()
}

/// A batch with one record per timestamp.
pub fn batch_of_timestamps(timestamps: &[i64]) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for timestamp in timestamps {
        builder.push(NewRecord {
            timestamp: TimestampMs::new(*timestamp),
            value: Some(b"v"),
            ..NewRecord::default()
        });
    }
    builder
}

/// A batch of an idempotent or transactional producer.
pub fn producer_batch(id: i64, epoch: i16, sequence: i32, count: usize, txn: bool) -> Bytes {
    let mut builder = BatchBuilder::new().producer(
        ProducerId::new(id),
        ProducerEpoch::new(epoch),
        Sequence::new(sequence),
    );
    if txn {
        builder = builder.transactional();
    }
    for _ in 0..count {
        builder.push(NewRecord {
            timestamp: NOW,
            value: Some(b"value"),
            ..NewRecord::default()
        });
    }
    builder.build()
}

/// A transaction marker.
pub fn marker(id: i64, epoch: i16, commit: bool) -> Bytes {
    let kind: i16 = commit.into();
    let key = [0i16.to_be_bytes(), kind.to_be_bytes()].concat();
    let value = [0, 0, 0, 0, 0, 9];
    BatchBuilder::new()
        .producer(
            ProducerId::new(id),
            ProducerEpoch::new(epoch),
            Sequence::NONE,
        )
        .transactional()
        .control()
        .record(NewRecord {
            timestamp: NOW,
            key: Some(&key),
            value: Some(&value),
            ..NewRecord::default()
        })
        .build()
}

/// A log and what is needed to open it again.
pub struct Rig {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub config: LogConfig,
    pub health: Arc<LogDirHealth>,
    pub log: Log,
    pub report: RecoveryReport,
    pub now: TimestampMs,
    pub epoch: i32,
    _temporary: Option<tempfile::TempDir>,
}

impl Rig {
    /// A fresh log on the real disk.
    pub fn real(config: LogConfig) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().to_path_buf();
        let mut rig = Self::on(RealDisk::shared(), root.join("t-0"), config).unwrap();
        rig._temporary = Some(temporary);
        rig
    }

    pub fn on(disk: Arc<dyn Disk>, dir: PathBuf, config: LogConfig) -> Result<Self, StorageError> {
        let health = LogDirHealth::new(dir.parent().unwrap());
        let (log, report) = Log::open(
            disk.clone(),
            &dir,
            Arc::new(config.clone()),
            OpenHint::none(health.clone()),
            NOW,
        )?;
        Ok(Self {
            disk,
            dir,
            config,
            health,
            log,
            report,
            now: NOW,
            epoch: 0,
            _temporary: None,
        })
    }

    /// Opens the log again, without having closed it.
    pub fn reopen(&mut self) {
        self.reopen_with(false, None);
    }

    /// Closes the log and opens it again.
    pub fn restart(&mut self) {
        self.log.close().unwrap();
        self.reopen_with(true, Some(self.log.log_start()));
    }

    pub fn reopen_with(&mut self, clean_shutdown: bool, log_start: Option<Offset>) {
        let (log, report) = Log::open(
            self.disk.clone(),
            &self.dir,
            Arc::new(self.config.clone()),
            OpenHint {
                clean_shutdown,
                log_start,
                ..OpenHint::none(self.health.clone())
            },
            self.now,
        )
        .unwrap();
        self.log = log;
        self.report = report;
    }

    /// Appends one batch and rolls before it if that is due. Returns its base offset.
    pub fn append(&mut self, bytes: Bytes) -> Offset {
        self.try_append(bytes).unwrap()
    }

    pub fn try_append(&mut self, bytes: Bytes) -> Result<Offset, StorageError> {
        let base_offset = self.log.next_offset();
        let stamped = [StampedBatch {
            base_offset,
            leader_epoch: LeaderEpoch::new(self.epoch),
            bytes,
        }];
        if self.log.fitting(&stamped, self.now)? == 0 {
            self.log.roll(self.now)?;
        }
        self.log.append(&stamped)?;
        Ok(base_offset)
    }

    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    /// Base and next offsets of all batches that a read from `from` returns.
    pub fn read(&self, from: i64, max_bytes: usize, upper: i64, min_one: bool) -> Vec<(i64, i64)> {
        let slice = self
            .reader()
            .read(Offset::new(from), max_bytes, Offset::new(upper), min_one)
            .unwrap();
        let bytes = slice.read().unwrap();
        assert_eq!(bytes.len(), slice.len);
        let mut batches = BatchIter::new(&bytes);
        let found: Vec<_> = batches
            .by_ref()
            .map(|batch| {
                let header = batch.unwrap().header;
                (header.base_offset.get(), header.next_offset().get())
            })
            .collect();
        assert!(batches.rest().is_empty(), "only whole batches are returned");
        if let (Some((base, _)), Some((_, next))) = (found.first(), found.last()) {
            assert_eq!(slice.base_offset.get(), *base);
            assert_eq!(slice.next_offset.get(), *next);
        } else {
            assert_eq!(slice.next_offset.get(), from);
        }
        found
    }

    /// Names of the files in the log's directory, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = self.disk.list(&self.dir).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }
}
