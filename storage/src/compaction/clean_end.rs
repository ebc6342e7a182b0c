//! Where the last compaction of a log ended, in the file that says that there was one.
//!
//! Two lines of text, `0` and the offset; an empty or damaged file stands for the offset 0. Too low
//! a value only has more be read again. Too high a one would be wrong: of two records of a key below
//! it the older would stay for ever, and come back to life when the newer is a tombstone that
//! expires. So it is kept beside the records that it is about, and lowered before they change.

use std::path::Path;

use odradek_protocol::ids::Offset;

use crate::disk::Disk;
use crate::error::StorageError;
use crate::file_names::COMPACTED_MARKER;

const VERSION: &str = "0";
/// Larger than the file ever is.
const MAX_BYTES: usize = 4096;

/// The file's content.
pub(crate) fn content(end: Offset) -> String {
    format!("{VERSION}\n{end}\n")
}

fn parse(content: &[u8]) -> Option<Offset> {
    let mut lines = std::str::from_utf8(content).ok()?.lines();
    if lines.next()? != VERSION {
        return None;
    }
    let end: i64 = lines.next()?.parse().ok()?;
    (end >= 0 && lines.next().is_none()).then(|| Offset::new(end))
}

/// Reads it from a partition's directory.
pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Offset {
    let content = disk.read_file(&dir.join(COMPACTED_MARKER), MAX_BYTES);
    content
        .ok()
        .and_then(|content| parse(&content))
        .unwrap_or(Offset::ZERO)
}

/// Writes it; durable on return.
pub(crate) fn write(disk: &dyn Disk, dir: &Path, end: Offset) -> Result<(), StorageError> {
    let path = dir.join(COMPACTED_MARKER);
    disk.replace_file(&path, content(end).as_bytes())
        .map_err(|error| StorageError::io("write", &path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_anything_else_stands_for_the_beginning() {
        let end = Offset::new(4711);
        assert_eq!(content(end), "0\n4711\n");
        assert_eq!(parse(content(end).as_bytes()), Some(end));
        for damaged in ["", "0\n", "1\n5\n", "0\n-1\n", "0\nx\n", "0\n5\n6\n"] {
            assert_eq!(parse(damaged.as_bytes()), None, "{damaged:?}");
        }
    }
}
