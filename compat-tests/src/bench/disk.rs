//! What the disk gives to a plain writer: the yardstick for a broker that syncs.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

/// The disk's own limits.
#[derive(Clone, Copy, Debug)]
pub struct DiskLimits {
    /// MB/s of one writer that syncs after every 8 MiB.
    pub sequential_mb_per_second: f64,
    /// Median time of an fdatasync after 4 KiB of appended data.
    pub fdatasync_p50: Duration,
    /// 99th percentile of the same.
    pub fdatasync_p99: Duration,
}

/// Writes and removes a file of `bytes`, so that the page cache's memory is there before a run. In
/// a virtual machine the first touch of a page can cost the writer ten times the copy itself, and
/// would be counted as the broker's.
pub fn touch_page_cache(directory: &Path, bytes: u64) -> Result<()> {
    let path = directory.join("touch-page-cache");
    let chunk = vec![0x5a; 1 << 20];
    let mut file = File::create(&path)?;
    for _ in 0..bytes / chunk.len() as u64 {
        file.write_all(&chunk)?;
    }
    drop(file);
    Ok(std::fs::remove_file(&path)?)
}

/// MB/s of one writer of `total_bytes` in `directory` that syncs every 8 MiB.
pub fn sequential(directory: &Path, total_bytes: u64) -> Result<f64> {
    const CHUNK_BYTES: usize = 1 << 20;
    const SYNC_EVERY_BYTES: u64 = 8 << 20;
    let path = directory.join("disk-sequential");
    let chunk = vec![0x5a; CHUNK_BYTES];
    let mut file = File::create(&path)?;
    let started = Instant::now();
    let (mut written, mut unsynced) = (0, 0);
    while written < total_bytes {
        file.write_all(&chunk)?;
        written += CHUNK_BYTES as u64;
        unsynced += CHUNK_BYTES as u64;
        if unsynced >= SYNC_EVERY_BYTES {
            file.sync_data()?;
            unsynced = 0;
        }
    }
    file.sync_data()?;
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(written as f64 / 1e6 / seconds)
}

/// Measures both in `directory`, writing `total_bytes` for the first.
pub fn measure(directory: &Path, total_bytes: u64) -> Result<DiskLimits> {
    const SYNCS: usize = 2_000;
    let sequential_mb_per_second = sequential(directory, total_bytes)?;
    let path = directory.join("disk-limits");
    let block = [0x5a; 4096];

    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&block)?;
        let started = Instant::now();
        file.sync_data()?;
        times.push(started.elapsed());
    }
    std::fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(DiskLimits {
        sequential_mb_per_second,
        fdatasync_p50: times[SYNCS / 2],
        fdatasync_p99: times[SYNCS * 99 / 100],
    })
}
