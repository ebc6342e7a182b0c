//! One file of the store: its blocks, what of them is durable, and what a cut leaves of the rest.

use std::collections::HashMap;

use rand::Rng;
use rand::rngs::StdRng;

use super::{BLOCK_BYTES, CutReport, SECTOR_BYTES};

pub(super) type Block = Box<[u8; BLOCK_BYTES]>;

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) size: u64,
    pub(super) blocks: HashMap<u64, Block>,
    /// Size at the last sync, if it has changed since.
    pub(super) durable_size: Option<u64>,
    /// For each block changed since the last sync: its durable content, `None` for a hole.
    pub(super) undo: HashMap<u64, Option<Block>>,
}

impl File {
    /// Keeps the durable content of a block before its first change since the last sync.
    pub(super) fn remember(&mut self, block: u64) {
        let blocks = &self.blocks;
        self.undo
            .entry(block)
            .or_insert_with(|| blocks.get(&block).cloned());
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if size != self.size {
            self.durable_size.get_or_insert(self.size);
            self.size = size;
        }
    }

    pub(super) fn cut(&mut self, rng: &mut StdRng, report: &mut CutReport) {
        if let Some(durable) = self.durable_size.take()
            && rng.random_bool(0.5)
        {
            self.size = durable;
        }
        let mut undo: Vec<(u64, Option<Block>)> = self.undo.drain().collect();
        undo.sort_unstable_by_key(|(block, _)| *block);
        // Each file draws how likely its blocks are to have reached the disk, so that all-lost
        // and all-kept happen as well as mixtures.
        let kept_probability = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
        for (block, durable) in undo {
            if rng.random_bool(kept_probability) {
                report.blocks_kept += 1;
            } else if rng.random_bool(0.25) {
                report.blocks_torn += 1;
                let old = durable.unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
                let new = self
                    .blocks
                    .entry(block)
                    .or_insert_with(|| Box::new([0; BLOCK_BYTES]));
                for (new, old) in new.chunks_mut(SECTOR_BYTES).zip(old.chunks(SECTOR_BYTES)) {
                    if rng.random_bool(0.5) {
                        new.copy_from_slice(old);
                    }
                }
            } else {
                report.blocks_forgotten += 1;
                match durable {
                    Some(content) => self.blocks.insert(block, content),
                    None => self.blocks.remove(&block),
                };
            }
        }
        let end = self.size.div_ceil(BLOCK_BYTES as u64);
        self.blocks.retain(|block, _| *block < end);
        let within = (self.size % BLOCK_BYTES as u64) as usize;
        if within > 0
            && let Some(content) = self.blocks.get_mut(&(self.size / BLOCK_BYTES as u64))
        {
            content[within..].fill(0);
        }
    }
}

/// The pieces of `[offset, offset + length)` by block: block number, start within the block, and
/// range within the buffer.
pub(super) fn block_pieces(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let piece = (BLOCK_BYTES - within).min(length - done);
        let range = done..done + piece;
        done += piece;
        Some((at / BLOCK_BYTES as u64, within, range))
    })
}
