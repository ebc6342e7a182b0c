//! The two sparse indexes of a segment, in Kafka's format, and the rule that fills them.
//!
//! Both files are runs of big-endian entries that only grow at the end. A reader looks up by
//! reading a few of them from the file (from the page cache, in practice); nothing is held in
//! memory but the number of entries and the last one. The single writer publishes an entry only
//! after its bytes are in place, so readers need no lock.
//!
//! `offset index: (last offset of a batch − base, position of that batch)`, both strictly
//! increasing. `time index: (largest timestamp so far, last offset of its batch − base)`, the
//! timestamp strictly increasing, the offset not decreasing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use odradek_protocol::batch::BatchHeader;
use odradek_protocol::ids::{Offset, TimestampMs};

use crate::sync_file::SyncFile;

/// Entries that a lookup reads at once when it has narrowed its search this far.
const BLOCK_ENTRIES: u32 = 256;

/// Entry of an offset index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    /// Last offset of a batch, counted from the segment's base offset.
    pub relative_offset: u32,
    /// Position of that batch in the segment, in bytes.
    pub position: u32,
}

impl OffsetEntry {
    pub const SIZE: usize = 8;

    fn pack(self) -> u64 {
        u64::from(self.relative_offset) << 32 | u64::from(self.position)
    }

    fn unpack(packed: u64) -> Self {
        Self {
            relative_offset: (packed >> 32) as u32,
            position: packed as u32,
        }
    }

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        self.pack().to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        Self::unpack(u64::from_be_bytes(bytes))
    }
}

/// Entry of a time index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// Largest timestamp up to and including `relative_offset`.
    pub timestamp: TimestampMs,
    /// Last offset of the batch that has it, counted from the segment's base offset.
    pub relative_offset: u32,
}

impl TimeEntry {
    pub const SIZE: usize = 12;

    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let (timestamp, offset) = bytes.split_at_mut(8);
        timestamp.copy_from_slice(&self.timestamp.get().to_be_bytes());
        offset.copy_from_slice(&self.relative_offset.to_be_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h, offset @ ..] = bytes;
        Self {
            timestamp: TimestampMs::new(i64::from_be_bytes([a, b, c, d, e, f, g, h])),
            relative_offset: u32::from_be_bytes(offset),
        }
    }
}

/// Entries for both indexes that are to be written together.
#[derive(Debug, Default)]
pub(crate) struct IndexEntries {
    pub offsets: Vec<OffsetEntry>,
    pub times: Vec<TimeEntry>,
}

/// Decides which batches get index entries. Pure: the same batches give the same entries, whether
/// they are appended or read back by recovery.
#[derive(Clone, Debug)]
pub(crate) struct IndexBuilder {
    base_offset: Offset,
    bytes_since_entry: u64,
    max_timestamp: TimestampMs,
    max_relative_offset: u32,
    last_time: TimestampMs,
}

impl IndexBuilder {
    /// For a segment without batches.
    pub fn new(base_offset: Offset) -> Self {
        Self {
            base_offset,
            bytes_since_entry: 0,
            max_timestamp: TimestampMs::NONE,
            max_relative_offset: 0,
            last_time: TimestampMs::NONE,
        }
    }

    /// For a segment whose time index ends with `last`, to go on after the batches it covers.
    pub fn resume(base_offset: Offset, last: Option<TimeEntry>) -> Self {
        let mut builder = Self::new(base_offset);
        if let Some(last) = last {
            builder.max_timestamp = last.timestamp;
            builder.max_relative_offset = last.relative_offset;
            builder.last_time = last.timestamp;
        }
        builder
    }

    /// Largest timestamp seen.
    pub fn max_timestamp(&self) -> TimestampMs {
        self.max_timestamp
    }

    /// Takes account of the batch at `position`, and adds the entries that are due.
    pub fn add(
        &mut self,
        header: &BatchHeader,
        position: u32,
        interval_bytes: u32,
        entries: &mut IndexEntries,
    ) {
        let relative_offset = relative(self.base_offset, header.last_offset());
        if header.max_timestamp > self.max_timestamp {
            self.max_timestamp = header.max_timestamp;
            self.max_relative_offset = relative_offset;
        }
        if self.bytes_since_entry > u64::from(interval_bytes) {
            entries.offsets.push(OffsetEntry {
                relative_offset,
                position,
            });
            entries.times.extend(self.seal());
            self.bytes_since_entry = 0;
        }
        self.bytes_since_entry += header.size_in_bytes() as u64;
    }

    /// Takes account of a batch that has its index entry already.
    pub fn skip_indexed(&mut self, header: &BatchHeader) {
        self.bytes_since_entry = header.size_in_bytes() as u64;
        if header.max_timestamp > self.max_timestamp {
            self.max_timestamp = header.max_timestamp;
            self.max_relative_offset = relative(self.base_offset, header.last_offset());
        }
    }

    /// The time entry that a segment gets when it is closed or rolled, so that the last entry
    /// tells the segment's largest timestamp.
    pub fn seal(&mut self) -> Option<TimeEntry> {
        if self.max_timestamp <= self.last_time {
            return None;
        }
        self.last_time = self.max_timestamp;
        Some(TimeEntry {
            timestamp: self.max_timestamp,
            relative_offset: self.max_relative_offset,
        })
    }
}

/// `offset − base`, which the segment has made sure fits; 0 for an offset below the base.
pub(crate) fn relative(base: Offset, offset: Offset) -> u32 {
    let distance = offset.get().saturating_sub(base.get()).max(0);
    u32::try_from(distance).unwrap_or(u32::MAX)
}

/// A segment's map from offset to position.
#[derive(Debug)]
pub(crate) struct OffsetIndex {
    file: Arc<SyncFile>,
    entries: AtomicU32,
    /// The last entry, so that a reader at the log's end needs no read; meaningless without any.
    last: AtomicU64,
}

impl OffsetIndex {
    /// An index of `len` bytes. A part of an entry at the end is ignored and overwritten.
    pub fn open(file: Arc<SyncFile>, len: u64) -> io::Result<Self> {
        let entries = u32::try_from(len / OffsetEntry::SIZE as u64).unwrap_or(u32::MAX);
        let index = Self {
            file,
            entries: AtomicU32::new(0),
            last: AtomicU64::new(0),
        };
        index.publish(entries)?;
        Ok(index)
    }

    fn publish(&self, entries: u32) -> io::Result<()> {
        if let Some(last) = entries.checked_sub(1) {
            self.last.store(self.entry(last)?.pack(), Ordering::Release);
        }
        self.entries.store(entries, Ordering::Release);
        Ok(())
    }

    pub fn file(&self) -> &Arc<SyncFile> {
        &self.file
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Acquire)
    }

    fn entry(&self, index: u32) -> io::Result<OffsetEntry> {
        let mut bytes = [0; OffsetEntry::SIZE];
        self.file
            .read_exact_at(&mut bytes, u64::from(index) * OffsetEntry::SIZE as u64)?;
        Ok(OffsetEntry::from_bytes(bytes))
    }

    /// The last entry.
    pub fn last(&self) -> Option<OffsetEntry> {
        (self.entries() > 0).then(|| OffsetEntry::unpack(self.last.load(Ordering::Acquire)))
    }

    /// Appends entries. Writer only.
    pub fn append(&self, entries: &[OffsetEntry]) -> io::Result<()> {
        let Some(last) = entries.last() else {
            return Ok(());
        };
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let count = self.entries();
        self.file
            .write_at(&bytes, u64::from(count) * OffsetEntry::SIZE as u64)?;
        self.last.store(last.pack(), Ordering::Release);
        self.entries
            .store(count + entries.len() as u32, Ordering::Release);
        Ok(())
    }

    /// Cuts the index off after `entries` entries. Writer only.
    pub fn truncate(&self, entries: u32) -> io::Result<()> {
        if entries < self.entries() {
            self.publish(entries)?;
        }
        self.file
            .set_len(u64::from(entries) * OffsetEntry::SIZE as u64)
    }

    /// Position from which a scan finds the batch that holds `relative_offset`: that of the last
    /// entry that is not above it, or 0.
    pub fn position_for(&self, relative_offset: u32) -> io::Result<u32> {
        self.last_where(|entry| entry.relative_offset <= relative_offset)
            .map(|found| found.map_or(0, |entry| entry.position))
    }

    /// The last batch boundary known to the index that is not above `position`.
    pub fn boundary_at_or_before(&self, position: u32) -> io::Result<u32> {
        self.last_where(|entry| entry.position <= position)
            .map(|found| found.map_or(0, |entry| entry.position))
    }

    /// Position of the `count`-th entry from the end, or 0 if there are fewer.
    pub fn position_of_entry_from_end(&self, count: u32) -> io::Result<u32> {
        match self.entries().checked_sub(count) {
            Some(index) if count > 0 => Ok(self.entry(index)?.position),
            _ => Ok(0),
        }
    }

    /// Number of entries that are below `relative_offset`.
    pub fn count_below(&self, relative_offset: u32) -> io::Result<u32> {
        partition_point(&self.file, self.entries(), |bytes| {
            OffsetEntry::from_bytes(*bytes).relative_offset < relative_offset
        })
    }

    fn last_where(&self, holds: impl Fn(OffsetEntry) -> bool) -> io::Result<Option<OffsetEntry>> {
        if let Some(last) = self.last()
            && holds(last)
        {
            return Ok(Some(last));
        }
        let count = partition_point(&self.file, self.entries(), |bytes| {
            holds(OffsetEntry::from_bytes(*bytes))
        })?;
        count
            .checked_sub(1)
            .map(|index| self.entry(index))
            .transpose()
    }

    /// The last of the first `entries` entries, if there is one and each of them lies after the
    /// one before it, within `size` bytes and below `next_relative_offset`.
    pub fn last_of_sane(
        &self,
        entries: u32,
        size: u32,
        next_relative_offset: u32,
    ) -> io::Result<Option<OffsetEntry>> {
        let mut previous: Option<OffsetEntry> = None;
        let mut sane = true;
        for_each(&self.file, entries.min(self.entries()), |bytes| {
            let entry = OffsetEntry::from_bytes(*bytes);
            sane &= entry.position < size && entry.relative_offset < next_relative_offset;
            if let Some(previous) = previous {
                sane &= previous.relative_offset < entry.relative_offset
                    && previous.position < entry.position;
            }
            previous = Some(entry);
            sane
        })?;
        Ok(previous.filter(|_| sane))
    }
}

/// A segment's map from timestamp to offset.
#[derive(Debug)]
pub(crate) struct TimeIndex {
    file: Arc<SyncFile>,
    entries: AtomicU32,
}

impl TimeIndex {
    /// An index of `len` bytes. A part of an entry at the end is ignored and overwritten.
    pub fn open(file: Arc<SyncFile>, len: u64) -> Self {
        let entries = u32::try_from(len / TimeEntry::SIZE as u64).unwrap_or(u32::MAX);
        Self {
            file,
            entries: AtomicU32::new(entries),
        }
    }

    pub fn file(&self) -> &Arc<SyncFile> {
        &self.file
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Acquire)
    }

    fn entry(&self, index: u32) -> io::Result<TimeEntry> {
        let mut bytes = [0; TimeEntry::SIZE];
        self.file
            .read_exact_at(&mut bytes, u64::from(index) * TimeEntry::SIZE as u64)?;
        Ok(TimeEntry::from_bytes(bytes))
    }

    /// The last entry.
    pub fn last(&self) -> io::Result<Option<TimeEntry>> {
        self.entries()
            .checked_sub(1)
            .map(|index| self.entry(index))
            .transpose()
    }

    /// Appends entries. Writer only.
    pub fn append(&self, entries: &[TimeEntry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let count = self.entries();
        self.file
            .write_at(&bytes, u64::from(count) * TimeEntry::SIZE as u64)?;
        self.entries
            .store(count + entries.len() as u32, Ordering::Release);
        Ok(())
    }

    /// Cuts the index off after `entries` entries. Writer only.
    pub fn truncate(&self, entries: u32) -> io::Result<()> {
        self.entries.fetch_min(entries, Ordering::AcqRel);
        self.file
            .set_len(u64::from(entries) * TimeEntry::SIZE as u64)
    }

    /// The last entry below `timestamp`: every record up to its offset is older than that.
    pub fn last_before(&self, timestamp: TimestampMs) -> io::Result<Option<TimeEntry>> {
        let count = partition_point(&self.file, self.entries(), |bytes| {
            TimeEntry::from_bytes(*bytes).timestamp < timestamp
        })?;
        count
            .checked_sub(1)
            .map(|index| self.entry(index))
            .transpose()
    }

    /// Number of entries whose offset is below `relative_offset`.
    pub fn count_below(&self, relative_offset: u32) -> io::Result<u32> {
        partition_point(&self.file, self.entries(), |bytes| {
            TimeEntry::from_bytes(*bytes).relative_offset < relative_offset
        })
    }

    /// Whether in the first `entries` entries timestamps increase, offsets do not decrease, and all
    /// are below `next_relative_offset`.
    pub fn is_sane(&self, entries: u32, next_relative_offset: u32) -> io::Result<bool> {
        let mut previous: Option<TimeEntry> = None;
        let mut sane = true;
        for_each(&self.file, entries.min(self.entries()), |bytes| {
            let entry = TimeEntry::from_bytes(*bytes);
            sane &= entry.relative_offset < next_relative_offset;
            if let Some(previous) = previous {
                sane &= previous.timestamp < entry.timestamp
                    && previous.relative_offset <= entry.relative_offset;
            }
            previous = Some(entry);
            sane
        })?;
        Ok(sane)
    }
}

/// Number of leading entries of `N` bytes for which `holds`, which must be true for a prefix.
fn partition_point<const N: usize>(
    file: &SyncFile,
    count: u32,
    holds: impl Fn(&[u8; N]) -> bool,
) -> io::Result<u32> {
    let (mut low, mut high) = (0, count);
    while high - low > BLOCK_ENTRIES {
        let middle = low + (high - low) / 2;
        let mut bytes = [0; N];
        file.read_exact_at(&mut bytes, u64::from(middle) * N as u64)?;
        if holds(&bytes) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low == high {
        return Ok(low);
    }
    let mut block = vec![0; (high - low) as usize * N];
    file.read_exact_at(&mut block, u64::from(low) * N as u64)?;
    let (entries, _) = block.as_chunks::<N>();
    Ok(low + entries.partition_point(holds) as u32)
}

/// Calls `visit` for the entries in order until it returns false.
fn for_each<const N: usize>(
    file: &SyncFile,
    count: u32,
    mut visit: impl FnMut(&[u8; N]) -> bool,
) -> io::Result<()> {
    const BLOCK: u32 = 8192;
    let mut first = 0;
    while first < count {
        let in_block = (count - first).min(BLOCK);
        let mut block = vec![0; in_block as usize * N];
        file.read_exact_at(&mut block, u64::from(first) * N as u64)?;
        let (entries, _) = block.as_chunks::<N>();
        for entry in entries {
            if !visit(entry) {
                return Ok(());
            }
        }
        first += in_block;
    }
    Ok(())
}
