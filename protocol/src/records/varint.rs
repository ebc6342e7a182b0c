//! Zigzag variable-length integers, as records use them throughout.

use bytes::BufMut;

/// Most bytes of a 64-bit integer.
pub(super) const MAX_BYTES: usize = 10;
/// Most bytes of a 32-bit integer.
pub(super) const MAX_SHORT_BYTES: usize = 5;

/// Bytes that [`put`] writes for `value`.
pub(super) const fn len(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends `value`.
pub(super) fn put(out: &mut impl BufMut, value: i64) {
    let mut rest = zigzag(value);
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

/// Reads a 32-bit integer off the front of `bytes`; `None` if it breaks off or has more than five
/// bytes.
#[inline(always)]
pub(super) fn take_i32(bytes: &mut &[u8]) -> Option<i32> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag(u64::from(first)) as i32);
    }
    Some(unzigzag_short(take_long(bytes, MAX_SHORT_BYTES)?))
}

/// Reads a 64-bit integer off the front of `bytes`; `None` if it breaks off or has more than ten
/// bytes.
#[inline(always)]
pub(super) fn take_i64(bytes: &mut &[u8]) -> Option<i64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag(u64::from(first)));
    }
    Some(unzigzag(take_long(bytes, MAX_BYTES)?))
}

#[inline]
fn take_long(bytes: &mut &[u8], max_len: usize) -> Option<u64> {
    let mut raw = 0_u64;
    let mut shift = 0_u32;
    for (at, &byte) in bytes.iter().enumerate().take(max_len) {
        raw |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            *bytes = bytes.get(at + 1..)?;
            return Some(raw);
        }
    }
    None
}

const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Bits above the 32nd are dropped, as Kafka's reader drops them.
#[inline(always)]
pub(super) const fn unzigzag_short(raw: u64) -> i32 {
    let raw = raw as u32;
    ((raw >> 1) as i32) ^ -((raw & 1) as i32)
}

#[inline(always)]
pub(super) const fn unzigzag(raw: u64) -> i64 {
    ((raw >> 1) as i64) ^ -((raw & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_come_back() {
        let mut values = vec![0, -1, 1, i64::MAX, i64::MIN];
        for shift in 0..63 {
            for near in [-1, 0, 1] {
                values.push((1_i64 << shift) + near);
                values.push(-(1_i64 << shift) + near);
            }
        }
        for value in values {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out.len(), len(value), "{value}");
            let mut read = out.as_slice();
            assert_eq!(take_i64(&mut read), Some(value));
            assert!(read.is_empty());
            if let Ok(value) = i32::try_from(value) {
                let mut read = out.as_slice();
                assert_eq!(take_i32(&mut read), Some(value));
                assert!(read.is_empty());
            }
            for cut in 0..out.len() {
                assert_eq!(take_i64(&mut &out[..cut]), None);
            }
        }
    }

    #[test]
    fn an_integer_that_does_not_end_is_refused() {
        assert_eq!(take_i32(&mut [0xff_u8; 6].as_slice()), None);
        assert_eq!(take_i64(&mut [0xff_u8; 11].as_slice()), None);
    }
}
