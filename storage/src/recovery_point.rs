//! The `recovery-point` file: the offset below which a crash cannot have lost or torn anything,
//! neither records nor index entries nor epochs. Recovery reads batches only from there on.
//!
//! Two slots of 24 bytes, `generation u64, offset i64, CRC-32C u32 of both, zero u32`, big-endian.
//! A new value goes to the slot that does not hold the current one, so a torn write leaves the
//! current one. Raising it need not be durable: an older value only makes the scan longer.
//! Lowering it must be durable before the log is cut.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use odradek_protocol::ids::Offset;

use crate::disk::{Disk, OpenMode};
use crate::file_names::RECOVERY_POINT;

const SLOT_BYTES: usize = 24;

#[derive(Debug)]
pub(crate) struct RecoveryPoint {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    generation: u64,
    offset: Offset,
}

impl RecoveryPoint {
    /// Reads the file in a partition's directory. Without a usable one, nothing is known to be
    /// safe and the offset is 0.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path) -> io::Result<Self> {
        let path = dir.join(RECOVERY_POINT);
        let bytes = match disk.read_file(&path, 4096) {
            Ok(bytes) => bytes,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidData
                ) =>
            {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let (slots, _) = bytes.as_chunks::<SLOT_BYTES>();
        let newest = slots.iter().take(2).filter_map(decode).max();
        let (generation, offset) = newest.unwrap_or((0, 0));
        Ok(Self {
            disk,
            path,
            generation,
            offset: Offset::new(offset),
        })
    }

    /// What the file of a log holds of which everything below `offset` is safe.
    pub fn content(offset: Offset) -> Vec<u8> {
        let mut content = vec![0; 2 * SLOT_BYTES];
        let slot = content.len() - SLOT_BYTES;
        if let Some(second) = content.get_mut(slot..) {
            second.copy_from_slice(&encode(1, offset));
        }
        content
    }

    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// Moves the recovery point; `durable` when it must not come back higher after a crash.
    pub fn set(&mut self, offset: Offset, durable: bool) -> io::Result<()> {
        let generation = self.generation + 1;
        let file = self.disk.open(&self.path, OpenMode::Create)?;
        file.write_at(
            &encode(generation, offset),
            (generation % 2) * SLOT_BYTES as u64,
        )?;
        if durable {
            file.sync_data()?;
            if let Some(dir) = self.path.parent() {
                self.disk.sync_dir(dir)?;
            }
        }
        self.generation = generation;
        self.offset = offset;
        Ok(())
    }
}

fn encode(generation: u64, offset: Offset) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    let (content, check) = slot.split_at_mut(16);
    let (generation_bytes, offset_bytes) = content.split_at_mut(8);
    generation_bytes.copy_from_slice(&generation.to_be_bytes());
    offset_bytes.copy_from_slice(&offset.get().to_be_bytes());
    let crc = crc32c::crc32c(content);
    check.copy_from_slice(&(u64::from(crc) << 32).to_be_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(u64, i64)> {
    let (generation, rest) = slot.split_first_chunk::<8>()?;
    let (offset, _) = rest.split_first_chunk::<8>()?;
    let (generation, offset) = (u64::from_be_bytes(*generation), i64::from_be_bytes(*offset));
    (encode(generation, Offset::new(offset)) == *slot && generation > 0 && offset >= 0)
        .then_some((generation, offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real_disk::RealDisk;

    #[test]
    fn a_torn_write_leaves_the_value_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut point = RecoveryPoint::open(RealDisk::shared(), dir.path()).unwrap();
        assert_eq!(point.offset(), Offset::ZERO);
        point.set(Offset::new(5), true).unwrap();
        point.set(Offset::new(9), false).unwrap();
        let path = dir.path().join(RECOVERY_POINT);
        let whole = std::fs::read(&path).unwrap();
        let reopen = || {
            RecoveryPoint::open(RealDisk::shared(), dir.path())
                .unwrap()
                .offset()
        };
        assert_eq!(reopen(), Offset::new(9));
        let newest = (point.generation % 2) as usize * SLOT_BYTES;
        for at in newest..newest + SLOT_BYTES {
            let mut torn = whole.clone();
            torn[at] ^= 0x40;
            std::fs::write(&path, &torn).unwrap();
            assert_eq!(reopen(), Offset::new(5), "byte {at}");
        }
        std::fs::write(&path, b"nonsense").unwrap();
        assert_eq!(reopen(), Offset::ZERO);
    }
}
