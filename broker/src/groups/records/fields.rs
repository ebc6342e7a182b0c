//! The fields that the records are made of, in Kafka's two encodings: with lengths of fixed size, and
//! the flexible one. Reading never trusts a length.

use bytes::{BufMut as _, BytesMut};

use super::RecordError;

/// The length of something that fits in memory and in a record, which is bounded far below 2³¹.
pub(super) fn length(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

pub(super) fn put_string(out: &mut BytesMut, text: &str) {
    // Kafka's strings carry an i16 length. What reaches a record came over the wire in such a
    // string, so the cut never happens; it keeps the record readable should that change.
    let mut end = text.len().min(i16::MAX as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let bytes = text.as_bytes().get(..end).unwrap_or_default();
    out.put_i16(i16::try_from(bytes.len()).unwrap_or(i16::MAX));
    out.put_slice(bytes);
}

pub(super) fn put_nullable_string(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_string(out, text),
        None => out.put_i16(-1),
    }
}

pub(super) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(length(bytes.len()));
    out.put_slice(bytes);
}

pub(super) fn put_compact_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_unsigned_varint(
        out,
        u32::try_from(bytes.len())
            .unwrap_or(u32::MAX - 1)
            .saturating_add(1),
    );
    out.put_slice(bytes);
}

pub(super) fn put_unsigned_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads fields off the front of a slice; never reads or reserves past its end.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let (head, tail) = self
            .rest
            .split_at_checked(len)
            .ok_or(RecordError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (head, tail) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(RecordError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    pub(super) fn i16(&mut self) -> Result<i16, RecordError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, RecordError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64, RecordError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(super) fn unsigned_varint(&mut self) -> Result<u32, RecordError> {
        let mut value = 0u32;
        for shift in (0..).step_by(7).take(5) {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                return Err(RecordError::BadLength);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordError::BadLength)
    }

    /// The length of a nullable field: `None` for null.
    pub(super) fn compact_length(&mut self) -> Result<Option<usize>, RecordError> {
        let length = self.unsigned_varint()?;
        Ok(length.checked_sub(1).map(|length| length as usize))
    }

    pub(super) fn string(&mut self) -> Result<&'a str, RecordError> {
        self.string_of(false)
    }

    pub(super) fn string_of(&mut self, flexible: bool) -> Result<&'a str, RecordError> {
        self.nullable_string_of(flexible)?
            .ok_or(RecordError::BadLength)
    }

    pub(super) fn nullable_string_of(
        &mut self,
        flexible: bool,
    ) -> Result<Option<&'a str>, RecordError> {
        let length = if flexible {
            self.compact_length()?
        } else {
            let length = self.i16()?;
            if length < -1 {
                return Err(RecordError::BadLength);
            }
            usize::try_from(length).ok()
        };
        let Some(length) = length else {
            return Ok(None);
        };
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| RecordError::NotUtf8)?;
        Ok(Some(text))
    }

    pub(super) fn bytes_of(&mut self, flexible: bool) -> Result<&'a [u8], RecordError> {
        let length = if flexible {
            self.compact_length()?
        } else {
            usize::try_from(self.i32()?).ok()
        };
        self.take(length.ok_or(RecordError::BadLength)?)
    }

    pub(super) fn count_of(&mut self, flexible: bool) -> Result<usize, RecordError> {
        let count = if flexible {
            self.compact_length()?
        } else {
            usize::try_from(self.i32()?).ok()
        };
        count.ok_or(RecordError::BadLength)
    }

    pub(super) fn tagged_fields(
        &mut self,
        mut each: impl FnMut(u32, Reader<'a>) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let count = self.unsigned_varint()?;
        for _ in 0..count {
            let tag = self.unsigned_varint()?;
            let len = self.unsigned_varint()? as usize;
            each(tag, Reader::new(self.take(len)?))?;
        }
        Ok(())
    }
}
