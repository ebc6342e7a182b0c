//! A segment that is written as a whole, beside the log: by compaction, or out of what another
//! replica gives.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::Offset;

use super::swap::staged;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::StorageError;
use crate::file_names::{LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX};
use crate::index::{IndexBuilder, IndexEntries};
use crate::segment::SegmentFiles;
use crate::txn_index::AbortedTxn;

/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// A segment whose files have a suffix of their own, the *stage*. Nothing of it is durable before
/// [`Output::finish`] has returned, and its names are not even then.
pub(crate) struct Output {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    base: Offset,
    stage: &'static str,
    log: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
    index: IndexBuilder,
    interval_bytes: u32,
    entries: IndexEntries,
    aborted: Vec<AbortedTxn>,
}

impl Output {
    pub fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base: Offset,
        stage: &'static str,
        interval_bytes: u32,
    ) -> Result<Self, StorageError> {
        Ok(Self {
            log: create(disk, &staged(dir, base, LOG_SUFFIX, stage))?,
            disk: Arc::clone(disk),
            dir: dir.to_path_buf(),
            base,
            stage,
            buffer: Vec::new(),
            written: 0,
            index: IndexBuilder::new(base),
            interval_bytes,
            entries: IndexEntries::default(),
            aborted: Vec::new(),
        })
    }

    /// Bytes of the log so far.
    pub fn size(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends a batch. The caller sees to it that the segment does not grow past 2 GiB.
    pub fn push(&mut self, header: &BatchHeader, batch: &[u8]) -> Result<(), StorageError> {
        let position = u32::try_from(self.size()).unwrap_or(u32::MAX);
        self.index
            .add(header, position, self.interval_bytes, &mut self.entries);
        self.buffer.extend_from_slice(batch);
        if self.buffer.len() >= WRITE_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Has the transaction index name an aborted transaction whose marker is in this segment.
    pub fn push_aborted(&mut self, txn: AbortedTxn) {
        self.aborted.push(txn);
    }

    fn write(&mut self) -> Result<(), StorageError> {
        self.log
            .write_at(&self.buffer, self.written)
            .map_err(|error| self.failed("write", LOG_SUFFIX, error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn path(&self, suffix: &str) -> PathBuf {
        staged(&self.dir, self.base, suffix, self.stage)
    }

    fn failed(&self, action: &'static str, suffix: &str, error: std::io::Error) -> StorageError {
        StorageError::io(action, &self.path(suffix), error)
    }

    /// Writes what is left and the indexes, and makes all of it durable but the names. Returns the
    /// files' lengths.
    pub fn finish(mut self) -> Result<SegmentFiles, StorageError> {
        self.write()?;
        self.entries.times.extend(self.index.seal());
        let offsets: Vec<u8> = self
            .entries
            .offsets
            .iter()
            .flat_map(|entry| entry.to_bytes())
            .collect();
        let times: Vec<u8> = self
            .entries
            .times
            .iter()
            .flat_map(|entry| entry.to_bytes())
            .collect();
        let aborted: Vec<u8> = self.aborted.iter().flat_map(|txn| txn.to_bytes()).collect();
        self.write_file(OFFSET_INDEX_SUFFIX, &offsets)?;
        self.write_file(TIME_INDEX_SUFFIX, &times)?;
        self.write_file(TXN_INDEX_SUFFIX, &aborted)?;
        self.log
            .sync_data()
            .map_err(|error| self.failed("sync", LOG_SUFFIX, error))?;
        Ok(SegmentFiles {
            log: self.written,
            offset_index: Some(offsets.len() as u64),
            time_index: Some(times.len() as u64),
            txn_index: Some(aborted.len() as u64),
        })
    }

    fn write_file(&self, suffix: &str, content: &[u8]) -> Result<(), StorageError> {
        let file = create(&self.disk, &self.path(suffix))?;
        file.write_at(content, 0)
            .and_then(|()| file.sync_data())
            .map_err(|error| self.failed("write", suffix, error))
    }
}

fn create(disk: &Arc<dyn Disk>, path: &Path) -> Result<Arc<dyn DiskFile>, StorageError> {
    disk.open(path, OpenMode::Create)
        .and_then(|file| file.set_len(0).map(|()| file))
        .map_err(|error| StorageError::io("create", path, error))
}
