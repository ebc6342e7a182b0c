//! Fetched records as a tree of batches and their headers, so that two brokers' can be compared field by field.
//!
//! Left out is what no two brokers agree on: leader epochs, the broker's own timestamps and what follows from them
//! (the CRC), and all of a control batch but which kind it is of. A batch that is cut off at the end is left out too.

use crate::requests::batches_of;
use crate::tree::{Node, fields};

const LOG_APPEND_TIME: i16 = 1 << 3;
const CONTROL: i16 = 1 << 5;
/// Where the records of a batch begin.
const HEADER: usize = 61;

/// Every whole batch in `bytes`.
pub fn batches_as_nodes(bytes: &[u8]) -> Node {
    Node::List(batches_of(bytes).into_iter().map(batch_as_node).collect())
}

/// A big-endian number in a batch; 0 beyond its end.
fn number(batch: &[u8], at: usize, width: usize) -> i64 {
    let bytes = batch.get(at..at + width).unwrap_or_default();
    let value = bytes
        .iter()
        .fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
    let unused = 64 - 8 * width as u32;
    (value.cast_signed() << unused) >> unused
}

fn batch_as_node(batch: &[u8]) -> Node {
    let atom = |at, width| Node::atom(number(batch, at, width).to_string());
    let attributes = number(batch, 21, 2) as i16;
    let mut shown = vec![
        ("base_offset", atom(0, 8)),
        ("magic", atom(16, 1)),
        ("attributes", atom(21, 2)),
        ("last_offset_delta", atom(23, 4)),
        ("producer_id", atom(43, 8)),
        ("producer_epoch", atom(51, 2)),
        ("base_sequence", atom(53, 4)),
        ("count", atom(57, 4)),
    ];
    let payload = batch.get(HEADER..).unwrap_or_default();
    if attributes & CONTROL != 0 {
        shown.push(("control", Node::atom(control_type(payload).to_string())));
    } else {
        if attributes & LOG_APPEND_TIME == 0 {
            shown.push(("base_timestamp", atom(27, 8)));
            shown.push(("max_timestamp", atom(35, 8)));
            shown.push(("crc", atom(17, 4)));
        }
        shown.push(("length", atom(8, 4)));
        shown.push((
            "records",
            Node::atom(format!("{:08x}", crc32c::crc32c(payload))),
        ));
    }
    fields(&shown)
}

/// The type in the key of a control record: 0 aborts, 1 commits.
fn control_type(payload: &[u8]) -> i64 {
    let mut at = 0;
    // Length, attributes (one byte, and small), deltas of time and offset, and the length of the key.
    for _ in 0..5 {
        while payload.get(at).is_some_and(|byte| byte & 0x80 != 0) {
            at += 1;
        }
        at += 1;
    }
    // A version and a type.
    number(payload, at + 2, 2)
}

#[cfg(test)]
mod tests {
    use anyhow::Result;

    use super::*;
    use crate::batches::{BatchSpec, CONTROL, RecordSpec};

    #[test]
    fn two_batches_differ_where_their_headers_or_records_do_and_not_in_the_epoch() -> Result<()> {
        let spec = BatchSpec::small(2, 1_000);
        let other = BatchSpec {
            leader_epoch: 9,
            ..spec.clone()
        };
        let tree = batches_as_nodes(&spec.build()?);
        assert_eq!(tree, batches_as_nodes(&other.build()?));
        let longer = batches_as_nodes(&BatchSpec::small(3, 1_000).build()?);
        let paths: Vec<String> = tree
            .differences(&longer)
            .into_iter()
            .map(|difference| difference.path)
            .collect();
        for path in ["[0].last_offset_delta", "[0].count", "[0].records"] {
            assert!(paths.iter().any(|p| p == path), "{path} in {paths:?}");
        }
        Ok(())
    }

    #[test]
    fn a_control_batch_shows_its_type_only_and_a_torn_one_nothing() -> Result<()> {
        let marker = RecordSpec::keyed(&b"\0\0\0\x01"[..], &b"whatever"[..]).at(5);
        let mut spec = BatchSpec::of(vec![marker]);
        spec.attributes = CONTROL;
        let bytes = spec.build()?;
        let tree = batches_as_nodes(&bytes).to_string();
        assert!(
            tree.contains("control: 1") && !tree.contains("crc"),
            "{tree}"
        );
        assert_eq!(
            batches_as_nodes(&bytes[..bytes.len() - 1]),
            Node::List(Vec::new())
        );
        Ok(())
    }
}
