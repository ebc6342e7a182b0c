//! Reading an image back.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::batch::{self, BatchHeader};
use odradek_protocol::ids::{LeaderEpoch, Offset};
use odradek_protocol::records::RecordWalker;
use odradek_storage::disk::{Disk, DiskFile, OpenMode};

use super::{CheckpointError, CheckpointId, FOOTER, HEADER};
use crate::metadata::image::{ImageError, MetadataImage};
use crate::metadata::replay::{self, ReplayError};

/// Bytes before those that a batch's length counts: its offset and the length.
const LENGTH_END: usize = 12;
/// Longest batch that is read. The ones that are written have a thousand records at most.
const MAX_BATCH_BYTES: usize = 64 << 20;

/// Reads the checkpoint `id` from the file at `path`, and checks it whole. Waits for the disk.
pub fn read(
    disk: &dyn Disk,
    path: &Path,
    id: CheckpointId,
) -> Result<MetadataImage, CheckpointError> {
    let file = disk.open(path, OpenMode::Read)?;
    let mut batches = Batches {
        len: file.len()?,
        file,
        position: 0,
        offset: Offset::ZERO,
        epoch: id.epoch,
    };
    let (header, first) = batches.read_on()?;
    if control_kind(&header, &first) != Some(HEADER) {
        return Err(batches.shape("it does not begin as a checkpoint does"));
    }
    let mut image = MetadataImage::default();
    loop {
        let (header, batch) = batches.read_on()?;
        if header.is_control() {
            return match control_kind(&header, &batch) {
                Some(FOOTER) if batches.position == batches.len => {
                    image.stands_at(id.end, id.epoch);
                    Ok(image)
                }
                Some(FOOTER) => Err(batches.shape("something follows its end")),
                _ => Err(batches.shape("a control record of another kind")),
            };
        }
        let records = replay::records(&header, &batch)?;
        let applied = image.apply(&records, id.end);
        applied.map_err(|cause: ImageError| ReplayError::Image {
            offset: header.base_offset,
            cause,
        })?;
    }
}

struct Batches {
    file: Arc<dyn DiskFile>,
    len: u64,
    position: u64,
    /// Offset that the next batch has to have.
    offset: Offset,
    /// Epoch that all have.
    epoch: LeaderEpoch,
}

impl Batches {
    fn shape(&self, what: &'static str) -> CheckpointError {
        CheckpointError::Shape {
            position: self.position,
            what,
        }
    }

    /// The next batch, with a checksum that is right and the offset that follows.
    fn read_on(&mut self) -> Result<(BatchHeader, Bytes), CheckpointError> {
        let left = usize::try_from(self.len - self.position).unwrap_or(usize::MAX);
        if left < LENGTH_END {
            return Err(self.shape("it ends before its end"));
        }
        let mut head = [0; LENGTH_END];
        self.file.read_exact_at(&mut head, self.position)?;
        let [.., a, b, c, d] = head;
        let size = usize::try_from(i32::from_be_bytes([a, b, c, d])).ok();
        let size = size.and_then(|length| length.checked_add(LENGTH_END));
        let Some(size) = size.filter(|size| *size <= left.min(MAX_BATCH_BYTES)) else {
            return Err(self.shape("a batch that is longer than it can be"));
        };
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, self.position)?;
        let damaged = |cause| CheckpointError::Batch {
            position: self.position,
            cause,
        };
        let header = BatchHeader::parse(&bytes).map_err(damaged)?;
        if header.size_in_bytes() != bytes.len() || header.last_offset_delta < 0 {
            return Err(self.shape("a batch that contradicts itself"));
        }
        batch::verify_crc(&header, &bytes).map_err(damaged)?;
        if header.base_offset != self.offset || header.partition_leader_epoch != self.epoch {
            return Err(self.shape("a batch that does not follow the one before it"));
        }
        self.offset = header.next_offset();
        self.position += bytes.len() as u64;
        Ok((header, Bytes::from(bytes)))
    }
}

/// Kafka's number of the only record of a control batch.
fn control_kind(header: &BatchHeader, batch: &[u8]) -> Option<i16> {
    if !header.is_control() {
        return None;
    }
    let record = RecordWalker::of_batch(header, batch).next()?.ok()?;
    match record.key? {
        [_, _, high, low] => Some(i16::from_be_bytes([*high, *low])),
        _ => None,
    }
}
