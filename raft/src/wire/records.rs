//! The messages about records that no entry stands for any more.

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::ids::Offset;
use odradek_storage::{Piece, TransferFile, TransferKind};

use super::{Reader, WireError};
use crate::codec::put_log_id;
use crate::rpc::{RecordsOpened, RecordsRead, RecordsSession, RecordsWanted};

/// Writes which records are wanted.
pub fn put_records_wanted(out: &mut BytesMut, wanted: &RecordsWanted) {
    put_log_id(out, Some(&wanted.0));
}

/// Reads what [`put_records_wanted`] wrote.
pub fn get_records_wanted(reader: &mut Reader) -> Result<RecordsWanted, WireError> {
    let last = reader.log_id()?;
    last.map(RecordsWanted)
        .ok_or(WireError::Malformed("records before no entry"))
}

const RECORDS_OPEN: u8 = 0;
const RECORDS_BUSY: u8 = 1;
const RECORDS_GONE: u8 = 2;

const FILE_SEGMENT: u8 = 0;
const FILE_ABORTED: u8 = 1;
const FILE_PRODUCERS: u8 = 2;
const FILE_EPOCHS: u8 = 3;
/// Bytes of the shortest file in a list.
const FILE_MIN_BYTES: usize = 9;

/// Writes the answer to them.
pub fn put_records_opened(out: &mut BytesMut, opened: &RecordsOpened) {
    let session = match opened {
        RecordsOpened::Busy => return out.put_u8(RECORDS_BUSY),
        RecordsOpened::Gone => return out.put_u8(RECORDS_GONE),
        RecordsOpened::Open(session) => session,
    };
    out.put_u8(RECORDS_OPEN);
    out.put_u64(session.session);
    out.put_i64(session.log_start.get());
    out.put_i64(session.end.get());
    out.put_u32(u32::try_from(session.files.len()).unwrap_or(u32::MAX));
    for file in &session.files {
        match file.kind {
            TransferKind::Segment {
                base_offset,
                next_offset,
            } => {
                out.put_u8(FILE_SEGMENT);
                out.put_i64(base_offset.get());
                out.put_i64(next_offset.get());
            }
            TransferKind::Aborted => out.put_u8(FILE_ABORTED),
            TransferKind::Producers => out.put_u8(FILE_PRODUCERS),
            TransferKind::Epochs => out.put_u8(FILE_EPOCHS),
        }
        out.put_u64(file.len);
    }
}

/// Reads what [`put_records_opened`] wrote.
pub fn get_records_opened(reader: &mut Reader) -> Result<RecordsOpened, WireError> {
    match reader.u8()? {
        RECORDS_OPEN => {}
        RECORDS_BUSY => return Ok(RecordsOpened::Busy),
        RECORDS_GONE => return Ok(RecordsOpened::Gone),
        found => {
            return Err(WireError::Unknown {
                what: "answer to records that are wanted",
                found,
            });
        }
    }
    let session = reader.u64()?;
    let (log_start, end) = (Offset::new(reader.i64()?), Offset::new(reader.i64()?));
    let count = reader.count("files", FILE_MIN_BYTES)?;
    let files = (0..count)
        .map(|_| get_transfer_file(reader))
        .collect::<Result<_, _>>()?;
    Ok(RecordsOpened::Open(RecordsSession {
        session,
        log_start,
        end,
        files,
    }))
}

fn get_transfer_file(reader: &mut Reader) -> Result<TransferFile, WireError> {
    let kind = match reader.u8()? {
        FILE_SEGMENT => TransferKind::Segment {
            base_offset: Offset::new(reader.i64()?),
            next_offset: Offset::new(reader.i64()?),
        },
        FILE_ABORTED => TransferKind::Aborted,
        FILE_PRODUCERS => TransferKind::Producers,
        FILE_EPOCHS => TransferKind::Epochs,
        found => {
            return Err(WireError::Unknown {
                what: "file of records",
                found,
            });
        }
    };
    let len = reader.u64()?;
    Ok(TransferFile { kind, len })
}

/// Writes which piece of records is asked for.
pub fn put_records_read(out: &mut BytesMut, read: &RecordsRead) {
    out.put_u64(read.session);
    out.put_u32(read.piece.file);
    out.put_u64(read.piece.position);
    out.put_u32(read.piece.len);
}

/// Reads what [`put_records_read`] wrote.
pub fn get_records_read(reader: &mut Reader) -> Result<RecordsRead, WireError> {
    Ok(RecordsRead {
        session: reader.u64()?,
        piece: Piece {
            file: reader.u32()?,
            position: reader.u64()?,
            len: reader.u32()?,
        },
    })
}

/// Writes a piece of records, or that there are none any more.
pub fn put_records_piece(out: &mut BytesMut, piece: &Option<Bytes>) {
    out.put_u8(u8::from(piece.is_some()));
    out.put_slice(piece.as_deref().unwrap_or_default());
}

/// Reads what [`put_records_piece`] wrote.
pub fn get_records_piece(reader: &mut Reader) -> Result<Option<Bytes>, WireError> {
    match reader.bool()? {
        true => reader.take(reader.remaining()).map(Some),
        false => Ok(None),
    }
}

/// Writes below which offset entries may be dropped.
pub fn put_droppable(out: &mut BytesMut, below: &Offset) {
    out.put_i64(below.get());
}

/// Reads what [`put_droppable`] wrote.
pub fn get_droppable(reader: &mut Reader) -> Result<Offset, WireError> {
    reader.i64().map(Offset::new)
}

/// Writes that there is nothing to say.
pub fn put_nothing(_out: &mut BytesMut, (): &()) {}

/// Reads what [`put_nothing`] wrote.
pub fn get_nothing(_reader: &mut Reader) -> Result<(), WireError> {
    Ok(())
}
