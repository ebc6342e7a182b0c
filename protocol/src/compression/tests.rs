use std::io::Write as _;

use super::*;

/// Text-like, with long-range repetitions, over several blocks of every codec.
fn sample(len: usize) -> Vec<u8> {
    let mut state = 12345_u32;
    let mut out = Vec::with_capacity(len + 32);
    while out.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend_from_slice(format!("key-{} value;", state >> 20).as_bytes());
    }
    out.truncate(len);
    out
}

fn expand(compression: Compression, compressed: &[u8], max: usize) -> Result<Vec<u8>, BatchError> {
    decompress_capped(compression, compressed, max)
}

#[test]
fn every_codec_gives_back_what_it_took() {
    for &codec in Compression::ALL {
        for len in [0, 1, 100, 32 << 10, (32 << 10) + 1, 300_000] {
            let input = sample(len);
            let compressed = compress(codec, &input).expect("compresses");
            let output = expand(codec, &compressed, len).expect("decompresses");
            assert!(output == input, "{codec:?}, {len} bytes");
            if len > 1000 && codec != Compression::None {
                assert!(compressed.len() < len, "{codec:?} compresses text");
            }
        }
    }
}

#[test]
fn output_over_the_cap_is_refused_by_one_byte() {
    for &codec in Compression::ALL {
        let compressed = compress(codec, &sample(100_000)).expect("compresses");
        assert_eq!(
            expand(codec, &compressed, 99_999),
            Err(BatchError::ExpandsTooFar { limit: 99_999 }),
            "{codec:?}"
        );
    }
}

#[test]
fn ids_and_names_are_kafkas() {
    let names: Vec<&str> = Compression::ALL.iter().map(|codec| codec.name()).collect();
    assert_eq!(names, ["none", "gzip", "snappy", "lz4", "zstd"]);
    for (id, &codec) in (0..).zip(Compression::ALL) {
        assert_eq!(codec.id(), id);
        assert_eq!(Compression::from_id(id), Some(codec));
    }
    assert_eq!(Compression::from_id(5), None);
}

#[test]
fn snappy_is_read_framed_joined_and_raw() {
    let input = sample(100_000);
    let framed = compress(Compression::Snappy, &input).expect("compresses");
    assert_eq!(framed.get(..8), Some(&b"\x82SNAPPY\0"[..]));
    assert_eq!(framed.get(8..16), Some(&[0, 0, 0, 1, 0, 0, 0, 1][..]));

    let mut joined = framed.to_vec();
    joined.extend_from_slice(&framed);
    let twice = expand(Compression::Snappy, &joined, 1 << 20).expect("joined streams are read");
    assert!(twice == [input.clone(), input.clone()].concat());

    let raw = snap::raw::Encoder::new()
        .compress_vec(&input)
        .expect("compresses");
    assert!(expand(Compression::Snappy, &raw, 1 << 20).expect("raw is read") == input);
}

#[test]
fn lz4_is_read_in_linked_and_independent_blocks_of_every_size_with_checksums() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let input = sample(1_000_000);
    for mode in [BlockMode::Linked, BlockMode::Independent] {
        for size in [
            BlockSize::Max64KB,
            BlockSize::Max256KB,
            BlockSize::Max1MB,
            BlockSize::Max4MB,
        ] {
            let info = FrameInfo::new()
                .block_mode(mode)
                .block_size(size)
                .block_checksums(true)
                .content_checksum(true);
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&input).expect("compresses");
            let compressed = encoder.finish().expect("compresses");
            assert!(expand(Compression::Lz4, &compressed, 1 << 20).expect("reads") == input);
        }
    }
}

#[test]
fn gzip_is_read_in_several_members() {
    let input = sample(10_000);
    let one = compress(Compression::Gzip, &input).expect("compresses");
    let two = [&one[..], &one[..]].concat();
    let output = expand(Compression::Gzip, &two, 1 << 20).expect("reads");
    assert!(output == [input.clone(), input].concat());
}

#[test]
fn zstd_is_read_in_several_frames_and_after_a_broken_one() {
    let input = sample(50_000);
    let one = compress(Compression::Zstd, &input).expect("compresses");
    let two = [&one[..], &one[..]].concat();
    for _ in 0..3 {
        let output = expand(Compression::Zstd, &two, 1 << 20).expect("reads");
        assert!(output == [input.clone(), input.clone()].concat());
        let cut = expand(Compression::Zstd, &two[..two.len() - 10], 1 << 20);
        assert!(matches!(cut, Err(BatchError::Undecompressible { .. })));
        // Left in the middle: the context is used again by the next.
        let over = expand(Compression::Zstd, &two, 60_000);
        assert!(matches!(over, Err(BatchError::ExpandsTooFar { .. })));
    }
    assert_eq!(expand(Compression::Zstd, &[], 10), Ok(Vec::new()));
}

#[test]
fn a_snappy_block_of_twelve_bytes_that_announces_gigabytes_takes_no_memory() {
    // 0xffff_ffff as a varint, then nonsense.
    let bomb = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0, 0, 0, 0];
    assert!(matches!(
        expand(Compression::Snappy, &bomb, 1 << 30),
        Err(BatchError::ExpandsTooFar { .. })
    ));
    // Within the cap, but more than twelve bytes can hold.
    let bomb = [0x80, 0x80, 0x80, 0x40, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(matches!(
        expand(Compression::Snappy, &bomb, 1 << 30),
        Err(BatchError::Undecompressible { .. })
    ));
    let mut framed = compress(Compression::Snappy, b"")
        .expect("compresses")
        .to_vec();
    framed.extend_from_slice(&12_u32.to_be_bytes());
    framed.extend_from_slice(&bomb);
    assert!(expand(Compression::Snappy, &framed, 1 << 30).is_err());
}

#[test]
fn expansion_bombs_are_refused_at_the_cap() {
    let cap = 1 << 20;
    let zeros = vec![0; 64 << 20];
    for codec in [
        Compression::Gzip,
        Compression::Lz4,
        Compression::Snappy,
        Compression::Zstd,
    ] {
        let bomb = compress(codec, &zeros).expect("compresses");
        assert_eq!(
            expand(codec, &bomb, cap),
            Err(BatchError::ExpandsTooFar { limit: cap }),
            "{codec:?}"
        );
    }
    // A zstd frame that does not announce its length, as streaming writers leave it.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("an encoder");
    encoder.write_all(&zeros).expect("compresses");
    let bomb = encoder.finish().expect("compresses");
    assert_eq!(
        expand(Compression::Zstd, &bomb, cap),
        Err(BatchError::ExpandsTooFar { limit: cap })
    );
}

#[test]
fn garbage_and_truncation_are_errors_or_short_output_but_never_a_panic() {
    let input = sample(50_000);
    for &codec in Compression::ALL {
        let compressed = compress(codec, &input).expect("compresses");
        for cut in (0..compressed.len()).step_by(997) {
            if let Ok(output) = expand(codec, &compressed[..cut], 1 << 20) {
                assert!(output.len() < input.len() || output == input);
            }
        }
        for flip in (0..compressed.len()).step_by(997) {
            let mut bad = compressed.to_vec();
            bad[flip] ^= 0x55;
            let _ = expand(codec, &bad, 1 << 20);
        }
    }
}

#[test]
fn the_level_counts_for_gzip_and_zstd() {
    let input = sample(200_000);
    for (codec, low, high) in [(Compression::Gzip, 1, 9), (Compression::Zstd, -50, 19)] {
        let at = |level| compress_at_level(codec, level, &input).expect("compresses");
        assert!(at(low).len() > at(high).len(), "{codec:?}");
        for packed in [at(low), at(high)] {
            let unpacked = decompress_capped(codec, &packed, input.len()).expect("expands");
            assert_eq!(unpacked, input);
        }
    }
    // -1 is the library's own choice.
    let default = compress(Compression::Gzip, &input).expect("compresses");
    let asked = compress_at_level(Compression::Gzip, -1, &input).expect("compresses");
    assert_eq!(default, asked);
}
