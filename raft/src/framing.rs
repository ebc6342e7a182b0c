//! Records in a file of ours: a length, a CRC-32C of the body, the body. Big-endian, as in Kafka's
//! own formats. A reader stops at the first record that is cut short or whose checksum is wrong:
//! what follows was never synced.

use bytes::{BufMut, BytesMut};

/// Bytes before the body of a record.
pub(crate) const OVERHEAD: usize = 8;
/// No record of ours comes near this; a larger length is not one.
pub(crate) const BODY_MAX_BYTES: usize = 1 << 20;

/// Appends one record to `out`.
pub(crate) fn put(out: &mut BytesMut, body: &[u8]) {
    out.reserve(OVERHEAD + body.len());
    out.put_u32(body.len() as u32);
    out.put_u32(crc32c::crc32c(body));
    out.put_slice(body);
}

/// Splits the records of `bytes`.
pub(crate) struct Frames<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Frames<'a> {
    /// Reads from the start of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes that whole, intact records took so far.
    pub(crate) fn valid_bytes(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.position..)?;
        let length = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let crc = u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?);
        // Zeroes, as a file system leaves behind, would otherwise read as an empty record.
        if length == 0 || length > BODY_MAX_BYTES {
            return None;
        }
        let body = rest.get(OVERHEAD..OVERHEAD + length)?;
        if crc32c::crc32c(body) != crc {
            return None;
        }
        self.position += OVERHEAD + length;
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_or_flipped_record_ends_the_file() {
        let mut out = BytesMut::new();
        put(&mut out, b"first");
        let first_end = out.len();
        put(&mut out, b"second");
        for cut in first_end..out.len() {
            let mut frames = Frames::new(&out[..cut]);
            assert_eq!(frames.by_ref().count(), 1);
            assert_eq!(frames.valid_bytes(), first_end);
        }
        for byte in first_end..out.len() {
            let mut damaged = out.to_vec();
            damaged[byte] ^= 0x10;
            assert_eq!(Frames::new(&damaged).count(), 1, "flip in byte {byte}");
        }
    }

    #[test]
    fn zeroes_are_no_record() {
        assert_eq!(Frames::new(&[0; 64]).count(), 0);
    }
}
