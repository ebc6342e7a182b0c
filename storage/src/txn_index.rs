//! The aborted transactions of a segment, in Kafka's `.txnindex` format: a run of 34-byte
//! big-endian entries `version i16 = 0, producer id, first offset, last offset, last stable offset
//! (i64 each)`, in the order in which they were aborted. A segment without an abort marker has no file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use odradek_protocol::ids::{Offset, ProducerId};

use crate::disk::Disk;
use crate::producer_state::CompletedTxn;
use crate::sync_file::SyncFile;

const VERSION: i16 = 0;

/// An aborted transaction, as read_committed consumers need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTxn {
    /// The producer.
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: Offset,
    /// Offset of its abort marker.
    pub last_offset: Offset,
    /// Last stable offset right after the marker.
    pub last_stable_offset: Offset,
}

impl AbortedTxn {
    pub(crate) const SIZE: usize = 34;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = VERSION.to_be_bytes().to_vec();
        bytes.extend(self.producer_id.get().to_be_bytes());
        bytes.extend(self.first_offset.get().to_be_bytes());
        bytes.extend(self.last_offset.get().to_be_bytes());
        bytes.extend(self.last_stable_offset.get().to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first_chunk::<2>()?;
        if i16::from_be_bytes(*version) != VERSION {
            return None;
        }
        let mut next = || {
            let (taken, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(i64::from_be_bytes(*taken))
        };
        Some(Self {
            producer_id: ProducerId::new(next()?),
            first_offset: Offset::new(next()?),
            last_offset: Offset::new(next()?),
            last_stable_offset: Offset::new(next()?),
        })
    }
}

impl From<CompletedTxn> for AbortedTxn {
    fn from(txn: CompletedTxn) -> Self {
        Self {
            producer_id: txn.producer_id,
            first_offset: txn.first_offset,
            last_offset: txn.last_offset,
            last_stable_offset: txn.last_stable_offset,
        }
    }
}

/// A segment's transaction index. Many threads may read; one at a time writes.
#[derive(Debug)]
pub(crate) struct TxnIndex {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: OnceLock<Arc<SyncFile>>,
    entries: AtomicU32,
}

impl TxnIndex {
    /// The index at `path`, of `len` bytes; `None` if there is no file.
    pub fn new(disk: Arc<dyn Disk>, path: PathBuf, len: Option<u64>) -> Self {
        let file = OnceLock::new();
        if len.is_some() {
            file.get_or_init(|| SyncFile::existing(disk.clone(), path.clone()));
        }
        let entries = len.unwrap_or(0) / AbortedTxn::SIZE as u64;
        Self {
            disk,
            path,
            file,
            entries: AtomicU32::new(u32::try_from(entries).unwrap_or(u32::MAX)),
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Arc<SyncFile>> {
        self.file.get()
    }

    /// The file, made now if there is none. It is open then, so that the next entry needs no descriptor. Writer only.
    pub fn make(&self) -> io::Result<&Arc<SyncFile>> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let dirs = self.path.parent().map(Path::to_path_buf);
        let created = SyncFile::create(
            self.disk.clone(),
            self.path.clone(),
            dirs.into_iter().collect(),
        )?;
        Ok(self.file.get_or_init(|| created))
    }

    /// Bytes of its entries.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.entries.load(Ordering::Acquire)) * AbortedTxn::SIZE as u64
    }

    /// Appends an entry, and makes the file if it is the first. Writer only.
    pub fn append(&self, txn: AbortedTxn) -> io::Result<()> {
        let file = self.make()?;
        let entries = self.entries.load(Ordering::Acquire);
        file.write_at(
            &txn.to_bytes(),
            u64::from(entries) * AbortedTxn::SIZE as u64,
        )?;
        self.entries.store(entries + 1, Ordering::Release);
        Ok(())
    }

    /// All entries, oldest first. An entry of an unknown version ends the list.
    pub fn read(&self) -> io::Result<Vec<AbortedTxn>> {
        let entries = self.entries.load(Ordering::Acquire) as usize;
        let Some(file) = self.file.get().filter(|_| entries > 0) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; entries * AbortedTxn::SIZE];
        file.read_exact_at(&mut bytes, 0)?;
        let (chunks, _) = bytes.as_chunks::<{ AbortedTxn::SIZE }>();
        Ok(chunks.iter().map_while(AbortedTxn::from_bytes).collect())
    }

    /// Drops the entries whose marker is at `log_end` or after. Writer only.
    pub fn truncate(&self, log_end: Offset) -> io::Result<()> {
        let entries = self.read()?;
        self.keep(entries.partition_point(|txn| txn.last_offset < log_end))
    }

    /// The entries below `log_end` that stand in the order of a segment that begins at `base`. What a power cut
    /// leaves of entries that were not synced may be zeros, which read as an entry of producer 0 at offset 0. The
    /// last of what is returned may be a torn one nevertheless.
    pub fn read_in_order(&self, base: Offset, log_end: Offset) -> io::Result<Vec<AbortedTxn>> {
        let mut entries = self.read()?;
        let mut after = base.plus(-1);
        let in_order = entries.iter().take_while(|txn| {
            let follows = txn.last_offset > after
                && txn.last_offset < log_end
                && txn.first_offset < txn.last_offset
                && txn.producer_id.get() >= 0;
            after = txn.last_offset;
            follows
        });
        let kept = in_order.count();
        entries.truncate(kept);
        Ok(entries)
    }

    /// Drops all but the first `kept` entries. Writer only.
    pub fn keep(&self, kept: usize) -> io::Result<()> {
        let Some(file) = self.file.get() else {
            return Ok(());
        };
        let kept = u32::try_from(kept).unwrap_or(u32::MAX);
        let kept = kept.min(self.entries.load(Ordering::Acquire));
        self.entries.store(kept, Ordering::Release);
        file.set_len(u64::from(kept) * AbortedTxn::SIZE as u64)
    }
}
