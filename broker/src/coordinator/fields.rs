//! The fields that coordinators' records are made of, in Kafka's two encodings: with lengths of fixed size, and
//! the flexible one. Reading never trusts a length.

use bytes::{BufMut as _, BytesMut};

use thiserror::Error;

/// Why bytes are not the fields that they should be.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FieldError {
    /// The bytes end within a field.
    #[error("record ends within a field")]
    Truncated,
    /// A length or count is negative or larger than what is left.
    #[error("record has an impossible length")]
    BadLength,
    /// A string is not UTF-8.
    #[error("record has a string that is not UTF-8")]
    NotUtf8,
}

/// Why bytes from the log are not a record of its topic.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// A field cannot be read.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The value's schema version is newer than those known.
    #[error("record value has unknown version {0}")]
    UnknownVersion(i16),
    /// The state of a transaction has a number that stands for none.
    #[error("record has unknown state {0}")]
    UnknownState(i8),
    /// A record without a key, which a compacted topic cannot hold.
    #[error("record has no key")]
    NoKey,
}

/// The length of something that fits in memory and in a record, which is bounded far below 2³¹.
pub(crate) fn length(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

pub(crate) fn put_string(out: &mut BytesMut, text: &str) {
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

pub(crate) fn put_nullable_string(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_string(out, text),
        None => out.put_i16(-1),
    }
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(length(bytes.len()));
    out.put_slice(bytes);
}

pub(crate) fn put_compact_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_unsigned_varint(
        out,
        u32::try_from(bytes.len())
            .unwrap_or(u32::MAX - 1)
            .saturating_add(1),
    );
    out.put_slice(bytes);
}

pub(crate) fn put_compact_nullable_string(out: &mut BytesMut, text: Option<&str>) {
    match text {
        Some(text) => put_compact_bytes(out, text.as_bytes()),
        None => put_unsigned_varint(out, 0),
    }
}

/// The length of a compact array; null is written by its own zero.
pub(crate) fn put_compact_count(out: &mut BytesMut, count: usize) {
    put_unsigned_varint(out, u32::try_from(count).unwrap_or(u32::MAX - 1) + 1);
}

/// One tagged field, whose bytes `write` puts.
pub(crate) fn put_tagged(out: &mut BytesMut, tag: u32, write: impl FnOnce(&mut BytesMut)) {
    let mut field = BytesMut::new();
    write(&mut field);
    put_unsigned_varint(out, tag);
    put_unsigned_varint(out, u32::try_from(field.len()).unwrap_or(u32::MAX));
    out.put_slice(&field);
}

pub(crate) fn put_unsigned_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads fields off the front of a slice; never reads or reserves past its end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FieldError> {
        let (head, tail) = self
            .rest
            .split_at_checked(len)
            .ok_or(FieldError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let (head, tail) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(FieldError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    pub(crate) fn i8(&mut self) -> Result<i8, FieldError> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub(crate) fn i16(&mut self) -> Result<i16, FieldError> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, FieldError> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, FieldError> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(crate) fn unsigned_varint(&mut self) -> Result<u32, FieldError> {
        let mut value = 0u32;
        for shift in (0..).step_by(7).take(5) {
            let [byte] = self.array()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                return Err(FieldError::BadLength);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FieldError::BadLength)
    }

    /// The length of a nullable field: `None` for null.
    pub(crate) fn compact_length(&mut self) -> Result<Option<usize>, FieldError> {
        let length = self.unsigned_varint()?;
        Ok(length.checked_sub(1).map(|length| length as usize))
    }

    pub(crate) fn string(&mut self) -> Result<&'a str, FieldError> {
        self.string_of(false)
    }

    pub(crate) fn string_of(&mut self, flexible: bool) -> Result<&'a str, FieldError> {
        self.nullable_string_of(flexible)?
            .ok_or(FieldError::BadLength)
    }

    pub(crate) fn nullable_string_of(
        &mut self,
        flexible: bool,
    ) -> Result<Option<&'a str>, FieldError> {
        let length = if flexible {
            self.compact_length()?
        } else {
            let length = self.i16()?;
            if length < -1 {
                return Err(FieldError::BadLength);
            }
            usize::try_from(length).ok()
        };
        let Some(length) = length else {
            return Ok(None);
        };
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| FieldError::NotUtf8)?;
        Ok(Some(text))
    }

    pub(crate) fn bytes_of(&mut self, flexible: bool) -> Result<&'a [u8], FieldError> {
        let length = if flexible {
            self.compact_length()?
        } else {
            usize::try_from(self.i32()?).ok()
        };
        self.take(length.ok_or(FieldError::BadLength)?)
    }

    pub(crate) fn count_of(&mut self, flexible: bool) -> Result<usize, FieldError> {
        let count = if flexible {
            self.compact_length()?
        } else {
            usize::try_from(self.i32()?).ok()
        };
        count.ok_or(FieldError::BadLength)
    }

    pub(crate) fn tagged_fields(
        &mut self,
        mut each: impl FnMut(u32, Reader<'a>) -> Result<(), FieldError>,
    ) -> Result<(), FieldError> {
        let count = self.unsigned_varint()?;
        for _ in 0..count {
            let tag = self.unsigned_varint()?;
            let len = self.unsigned_varint()? as usize;
            each(tag, Reader::new(self.take(len)?))?;
        }
        Ok(())
    }
}
