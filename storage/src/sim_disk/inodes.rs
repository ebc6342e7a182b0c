//! Files and directories of a simulated disk: what is in memory, what is durable, and what becomes of
//! the difference when the power is cut.

use std::collections::BTreeMap;

use odradek_protocol::ids::TimestampMs;

/// Torn writes break at multiples of this, as sectors do.
const SECTOR_BYTES: usize = 512;

pub(super) type InodeId = u64;

#[derive(Debug)]
pub(super) enum Inode {
    File(FileInode),
    Dir(DirInode),
}

#[derive(Debug, Default)]
pub(super) struct FileInode {
    pub(super) content: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<FileChange>,
    pub(super) modified: TimestampMs,
}

#[derive(Debug)]
pub(super) enum FileChange {
    Write { position: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Debug, Default)]
pub(super) struct DirInode {
    pub(super) entries: BTreeMap<String, InodeId>,
    pub(super) durable: BTreeMap<String, InodeId>,
    pub(super) pending: Vec<DirChange>,
}

#[derive(Debug)]
pub(super) enum DirChange {
    Link(String, InodeId),
    Unlink(String),
    Rename(String, String),
}

impl FileChange {
    pub(super) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => content.resize(*len, 0),
            Self::Write { position, bytes } => {
                let end = position + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                if let Some(target) = content.get_mut(*position..end) {
                    target.copy_from_slice(bytes);
                }
            }
        }
    }
}

impl DirChange {
    pub(super) fn apply(&self, entries: &mut BTreeMap<String, InodeId>) {
        match self {
            Self::Link(name, id) => {
                entries.insert(name.clone(), *id);
            }
            Self::Unlink(name) => {
                entries.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(id) = entries.remove(from) {
                    entries.insert(to.clone(), id);
                }
            }
        }
    }
}

impl FileInode {
    pub(super) fn power_cut(&mut self, random: &mut SplitMix64) {
        let mut survivors = std::mem::take(&mut self.durable);
        // Often all or nothing, as caches are flushed in one go; else each change for itself.
        let mode = random.below(4);
        for change in std::mem::take(&mut self.pending) {
            match (mode, random.below(3)) {
                (0, _) | (2 | 3, 0) => {}
                (1, _) | (2 | 3, 1) => change.apply(&mut survivors),
                _ => change.torn(random).apply(&mut survivors),
            }
        }
        self.content.clone_from(&survivors);
        self.durable = survivors;
    }
}

impl FileChange {
    /// A part of a write, at least one sector short; a change of length cannot be torn.
    fn torn(self, random: &mut SplitMix64) -> Self {
        match self {
            Self::Write {
                position,
                mut bytes,
            } => {
                let sectors = bytes.len().div_ceil(SECTOR_BYTES);
                let first = random.below(sectors as u64) as usize * SECTOR_BYTES;
                if random.below(2) == 0 {
                    bytes.truncate(first);
                    Self::Write { position, bytes }
                } else {
                    // The later sectors arrived, the first ones read as zeros.
                    let gap = first.min(bytes.len());
                    if let Some(lost) = bytes.get_mut(..gap) {
                        lost.fill(0);
                    }
                    Self::Write { position, bytes }
                }
            }
            set_len @ Self::SetLen(_) => set_len,
        }
    }
}

impl DirInode {
    pub(super) fn power_cut(&mut self, random: &mut SplitMix64) {
        let kept = random.below(self.pending.len() as u64 + 1) as usize;
        for change in self.pending.drain(..).take(kept) {
            change.apply(&mut self.durable);
        }
        self.entries = self.durable.clone();
    }

    pub(super) fn change(&mut self, change: DirChange) {
        change.apply(&mut self.entries);
        self.pending.push(change);
    }
}

impl FileInode {
    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }
}

/// A small generator of pseudo-random numbers, so that what a seed means never changes.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}
