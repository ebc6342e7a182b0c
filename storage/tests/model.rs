//! The log against a reference model, a plain list of batches, over random operations.
//!
//! A failure prints the seed; `ODRADEK_SEED=<seed> cargo test -p odradek-storage --test model`
//! replays it alone.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use bytes::Bytes;
use odradek_protocol::compression::Compression;
use odradek_protocol::ids::{LeaderEpoch, Offset, TimestampMs};
use odradek_storage::{LogConfig, StorageError, TimestampedOffset};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use support::{NOW, Rig, batch_of_timestamps, verify};

const OPERATIONS: usize = 250;

/// A batch as the model remembers it.
#[derive(Clone, Debug)]
struct ModelBatch {
    base: i64,
    timestamps: Vec<i64>,
    epoch: i32,
    size: usize,
}

impl ModelBatch {
    fn next(&self) -> i64 {
        self.base + self.timestamps.len() as i64
    }
}

struct Model {
    rig: Rig,
    random: StdRng,
    batches: Vec<ModelBatch>,
    log_start: i64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let config = LogConfig {
            segment_bytes: random.random_range(300..3000),
            index_interval_bytes: random.random_range(0..600),
            segment_index_bytes: random.random_range(60..2000),
            segment_ms: if random.random_bool(0.3) { 50 } else { 1 << 40 },
            file_delete_delay_ms: random.random_range(0..5),
            retention_ms: Some(100),
            retention_bytes: random.random_bool(0.5).then_some(4000),
            ..LogConfig::default()
        };
        Self {
            rig: Rig::real(config),
            random,
            batches: Vec::new(),
            log_start: 0,
        }
    }

    fn end(&self) -> i64 {
        self.batches.last().map_or(self.log_start, ModelBatch::next)
    }

    fn append(&mut self) {
        let count = self.random.random_range(1..6);
        let clock = self.rig.now.get();
        let timestamps: Vec<i64> = (0..count)
            .map(|_| clock + self.random.random_range(-40..5))
            .collect();
        let builder = batch_of_timestamps(&timestamps);
        let bytes: Bytes = match self.random.random_range(0..4) {
            0 => builder.build_compressed(Compression::Lz4).unwrap(),
            1 => builder.build_compressed(Compression::Gzip).unwrap(),
            _ => builder.build(),
        };
        let size = bytes.len();
        let base = self.rig.append(bytes).get();
        assert_eq!(base, self.end());
        self.batches.push(ModelBatch {
            base,
            timestamps,
            epoch: self.rig.epoch,
            size,
        });
    }

    fn truncate(&mut self) {
        let offset = self.random.random_range(self.log_start..=self.end());
        let end = self.rig.log.truncate_to(Offset::new(offset), self.rig.now);
        self.batches.retain(|batch| batch.next() <= offset);
        if self.end() <= self.log_start {
            // The batch that held the log start is gone; the log goes on there, empty.
            self.batches.clear();
        }
        assert_eq!(end.unwrap().get(), self.end());
    }

    fn move_log_start(&mut self, to: i64) {
        let (offset, now) = (Offset::new(to), self.rig.now);
        if self.rig.log.needs_roll_for_start(offset) {
            self.rig.log.roll(now).unwrap();
        }
        self.rig.log.set_log_start(offset, now).unwrap();
        self.log_start = self.log_start.max(to);
        let first = self.rig.reader().segment_bases()[0].get();
        self.batches.retain(|batch| batch.base >= first);
    }

    fn retain(&mut self) {
        let now = self.rig.now;
        let watermark = Offset::new(self.random.random_range(self.log_start..=self.end()));
        let point = self.rig.log.retention_point(now, watermark).unwrap();
        if let Some(point) = point {
            assert!(point <= watermark);
            let size: usize = self.batches.iter().map(|batch| batch.size).sum();
            let limit = self.rig.config.retention_bytes.unwrap_or(u64::MAX);
            let gone: Vec<_> = self
                .batches
                .iter()
                .filter(|batch| batch.next() <= point.get())
                .collect();
            let rest = size - gone.iter().map(|batch| batch.size).sum::<usize>();
            let newest = gone.iter().flat_map(|batch| &batch.timestamps).max();
            assert!(
                rest as u64 >= limit || newest.is_none_or(|newest| now.get() - newest > 100),
                "only what is old, or too much, goes"
            );
            self.move_log_start(point.get());
        }
    }

    fn reopen(&mut self) {
        let log_start = Some(Offset::new(self.log_start));
        let clean = self.random.random_bool(0.5);
        if clean {
            self.rig.log.close().unwrap();
        } else if self.random.random_bool(0.5)
            && let Some((checkpoint, target)) = self.rig.log.begin_checkpoint()
        {
            target.sync().unwrap();
            self.rig.log.finish_checkpoint(checkpoint).unwrap();
        }
        self.rig.reopen_with(clean, log_start);
        assert_eq!(self.rig.report.cut, None);
        let faults = verify::faults(self.rig.disk.as_ref(), &self.rig.dir);
        assert_eq!(faults, Vec::<String>::new());
    }

    fn read(&mut self) {
        let from = self.random.random_range(self.log_start..=self.end());
        let upper = self.random.random_range(from..=self.end());
        let max_bytes = self.random.random_range(0..3000);
        let min_one = self.random.random_bool(0.5);
        let mut expected = Vec::new();
        let mut size = 0;
        for batch in &self.batches {
            if batch.next() <= from {
                continue;
            }
            size += batch.size;
            let first = expected.is_empty() && min_one;
            if batch.next() > upper || from >= upper || (size > max_bytes && !first) {
                break;
            }
            expected.push((batch.base, batch.next()));
        }
        let read = self.rig.read(from, max_bytes, upper, min_one);
        assert_eq!(
            read, expected,
            "from {from}, {max_bytes} bytes, up to {upper}"
        );
    }

    fn records(&self, lower: i64, upper: i64) -> impl Iterator<Item = TimestampedOffset> {
        self.batches
            .iter()
            .flat_map(|batch| {
                let numbered = batch.timestamps.iter().enumerate();
                numbered.map(|(index, timestamp)| TimestampedOffset {
                    offset: Offset::new(batch.base + index as i64),
                    timestamp: TimestampMs::new(*timestamp),
                    leader_epoch: LeaderEpoch::new(batch.epoch),
                })
            })
            .filter(move |found| (self.log_start.max(lower)..upper).contains(&found.offset.get()))
    }

    fn look_up(&mut self) {
        let upper = self.random.random_range(self.log_start..=self.end());
        let lower = self.random.random_range(0..=upper);
        let target = TimestampMs::new(self.rig.now.get() + self.random.random_range(-150..20));
        let reader = self.rig.reader();
        assert_eq!(
            reader
                .lookup_timestamp(target, Offset::new(lower), Offset::new(upper))
                .unwrap(),
            self.records(lower, upper)
                .find(|found| found.timestamp >= target),
            "{target} in {lower}..{upper}"
        );
        // The first of those with the largest timestamp.
        let largest = self
            .records(lower, upper)
            .map(|found| found.timestamp)
            .max();
        assert_eq!(
            reader
                .max_timestamp(Offset::new(lower), Offset::new(upper))
                .unwrap(),
            self.records(lower, upper)
                .find(|found| Some(found.timestamp) == largest),
            "largest in {lower}..{upper}"
        );
    }

    fn check_epochs(&mut self) {
        let mut known: Vec<(i32, i64)> = Vec::new();
        for batch in self
            .batches
            .iter()
            .filter(|batch| batch.next() > self.log_start)
        {
            if known.last().is_none_or(|(epoch, _)| *epoch != batch.epoch) {
                known.push((batch.epoch, batch.base.max(self.log_start)));
            }
        }
        let reader = self.rig.reader();
        for window in known.windows(2) {
            let epoch = LeaderEpoch::new(window[0].0);
            let end = Offset::new(window[1].1);
            assert_eq!(reader.end_offset_for_epoch(epoch), Some((epoch, end)));
        }
        for batch in &self.batches {
            if batch.base >= self.log_start {
                let epoch = reader.epoch_at(Offset::new(batch.base));
                assert_eq!(epoch, Some(LeaderEpoch::new(batch.epoch)));
            }
        }
    }

    fn check_bounds(&self) {
        let reader = self.rig.reader();
        assert_eq!(reader.log_start().get(), self.log_start);
        assert_eq!(reader.log_end().get(), self.end());
        for outside in [self.log_start - 1, self.end() + 1] {
            let read = reader.read(Offset::new(outside), 1, Offset::new(i64::MAX), true);
            assert!(matches!(read, Err(StorageError::OffsetOutOfRange { .. })));
        }
        let cursor = reader
            .headers_from(reader.log_start(), reader.log_end())
            .unwrap();
        let walked: Vec<i64> = cursor
            .map(|batch| batch.unwrap().header.base_offset.get())
            .collect();
        let expected: Vec<i64> = self
            .batches
            .iter()
            .filter(|batch| batch.next() > self.log_start)
            .map(|batch| batch.base)
            .collect();
        assert_eq!(walked, expected);
    }

    fn step(&mut self) {
        self.rig.now = TimestampMs::new(self.rig.now.get() + self.random.random_range(0..4));
        match self.random.random_range(0..100) {
            0..45 => self.append(),
            45..48 => self.truncate(),
            48..51 => {
                let to = self.random.random_range(self.log_start..=self.end());
                self.move_log_start(to);
            }
            51..54 => self.retain(),
            54..58 => self.reopen(),
            58..61 => self.rig.epoch += 1,
            61..63 => {
                let now = self.rig.now;
                self.rig.log.purge_deleted(now).unwrap();
                self.rig.log.release_idle_files();
            }
            63..66 => self.check_epochs(),
            66..85 => self.read(),
            _ => self.look_up(),
        }
        self.check_bounds();
    }
}

#[test]
fn the_log_agrees_with_a_list_of_batches() {
    let seeds = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..30).map(|_| rand::random()).collect::<Vec<u64>>(),
    };
    for seed in seeds {
        println!("ODRADEK_SEED={seed}");
        let mut model = Model::new(seed);
        model.rig.now = NOW;
        for _ in 0..OPERATIONS {
            model.step();
        }
        model.reopen();
        model.check_epochs();
    }
}
