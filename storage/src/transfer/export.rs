//! The files of a log as they are at one moment.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use odradek_protocol::ids::Offset;

use super::{Piece, TransferFile, TransferKind};
use crate::disk::{DiskFile, OpenMode};
use crate::epoch_cache::EpochCache;
use crate::error::StorageError;
use crate::file_names::{SNAPSHOT_SUFFIX, offset_file};
use crate::log::Log;
use crate::segment::Segment;

/// See the module. Holds the files open.
#[derive(Debug)]
pub struct Export {
    log_start: Offset,
    end: Offset,
    files: Vec<(TransferFile, Source)>,
}

#[derive(Debug)]
enum Source {
    File(Arc<dyn DiskFile>),
    Memory(Bytes),
}

impl Log {
    /// Everything below `end`; `None` if no segment begins there.
    pub fn export(&self, end: Offset) -> Result<Option<Export>, StorageError> {
        self.check_usable()?;
        let segments = self.shared.segments.load();
        let count = segments.partition_point(|segment| segment.base_offset < end);
        if segments
            .get(count)
            .is_none_or(|next| next.base_offset != end)
        {
            return Ok(None);
        }
        let mut export = Export {
            log_start: self.log_start().min(end),
            end,
            files: Vec::with_capacity(2 * count + 2),
        };
        for segment in segments.iter().take(count) {
            export.add_segment(segment)?;
        }
        if self.snapshots.contains(&end) {
            let path = offset_file(&self.dir, end, SNAPSHOT_SUFFIX);
            let opened = self
                .disk
                .open(&path, OpenMode::Read)
                .and_then(|file| file.len().map(|len| (file, len)));
            let (file, len) = opened.map_err(|error| StorageError::io("open", &path, error))?;
            export.add(TransferKind::Producers, len, Source::File(file));
        }
        let mut epochs: EpochCache = self.shared.epochs.read().clone();
        epochs.truncate_from_end(end);
        let text = Bytes::from(epochs.to_text());
        let len = text.len() as u64;
        export.add(TransferKind::Epochs, len, Source::Memory(text));
        Ok(Some(export))
    }
}

impl Export {
    fn add(&mut self, kind: TransferKind, len: u64, source: Source) {
        self.files.push((TransferFile { kind, len }, source));
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), StorageError> {
        if let Some(file) = segment.txn_index.file()
            && segment.txn_index.len_bytes() > 0
        {
            let opened = file
                .file()
                .map_err(|error| StorageError::io("open", file.path(), error))?;
            let len = segment.txn_index.len_bytes();
            self.add(TransferKind::Aborted, len, Source::File(opened));
        }
        let end = segment.end();
        let kind = TransferKind::Segment {
            base_offset: segment.base_offset,
            next_offset: end.next_offset,
        };
        let log = segment
            .log
            .file()
            .map_err(|error| StorageError::io("open", segment.log.path(), error))?;
        self.add(kind, u64::from(end.size), Source::File(log));
        Ok(())
    }

    /// First readable offset.
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// Everything below is in the files.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// The files, in the order in which they are to be read.
    pub fn files(&self) -> Vec<TransferFile> {
        self.files.iter().map(|(file, _)| *file).collect()
    }

    /// Reads a piece, or as much of it as there is; `None` if there is no such file.
    pub fn read(&self, piece: Piece) -> io::Result<Option<Bytes>> {
        let Some((file, source)) = self.files.get(piece.file as usize) else {
            return Ok(None);
        };
        let left = file.len.saturating_sub(piece.position);
        let len = u64::from(piece.len).min(left) as usize;
        match source {
            Source::Memory(bytes) => {
                let from = usize::try_from(piece.position).unwrap_or(usize::MAX);
                let from = from.min(bytes.len());
                let to = from.saturating_add(len).min(bytes.len());
                Ok(Some(bytes.slice(from..to)))
            }
            Source::File(file) => {
                let mut buffer = vec![0; len];
                file.read_exact_at(&mut buffer, piece.position)?;
                Ok(Some(buffer.into()))
            }
        }
    }
}
