//! Names of the files in a partition's directory. They are Kafka's, but for [`RECOVERY_POINT`] and
//! [`COMPACTED_MARKER`].

use std::path::{Path, PathBuf};

use odradek_protocol::ids::Offset;

/// Record batches of a segment.
pub const LOG_SUFFIX: &str = ".log";
/// Sparse map from offset to position.
pub const OFFSET_INDEX_SUFFIX: &str = ".index";
/// Sparse map from timestamp to offset.
pub const TIME_INDEX_SUFFIX: &str = ".timeindex";
/// Aborted transactions of a segment.
pub const TXN_INDEX_SUFFIX: &str = ".txnindex";
/// State of the idempotent producers at an offset.
pub const SNAPSHOT_SUFFIX: &str = ".snapshot";
/// Appended to the name of a file that waits for its removal.
pub const DELETED_SUFFIX: &str = ".deleted";
/// Appended to the name of a file that is being written and has no meaning yet.
pub const TEMPORARY_SUFFIX: &str = ".tmp";
/// First offset of every leader epoch.
pub const LEADER_EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";
/// Offset below which a crash cannot have lost anything.
pub const RECOVERY_POINT: &str = "recovery-point";
/// Says that the log was compacted, so that offsets may be missing from its middle, whatever its
/// settings say now, and where the last compaction ended.
pub const COMPACTED_MARKER: &str = "compacted";

/// Longest file name on the file systems we know.
const MAX_NAME_BYTES: usize = 255;

/// `<dir>/<offset, 20 digits><suffix>`.
pub fn offset_file(dir: &Path, offset: Offset, suffix: &str) -> PathBuf {
    dir.join(format!("{:020}{suffix}", offset.get()))
}

/// The offset in a name that [`offset_file`] gives for `suffix`.
pub fn parse_offset(name: &str, suffix: &str) -> Option<Offset> {
    let digits = name.strip_suffix(suffix)?;
    if digits.len() != 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Offset::new)
}

/// Name of a partition's directory while it waits for its removal:
/// `<topic>-<partition>.<unique>-delete`, the topic cut off where the name would grow too long.
pub fn deleted_dir_name(partition_dir: &str, unique: u128) -> String {
    let suffix = format!(".{unique:032x}-delete");
    let mut keep = partition_dir.len().min(MAX_NAME_BYTES - suffix.len());
    while !partition_dir.is_char_boundary(keep) {
        keep -= 1;
    }
    format!("{}{suffix}", &partition_dir[..keep])
}

/// Whether a directory's name is one that [`deleted_dir_name`] gives.
pub fn is_deleted_dir(name: &str) -> bool {
    name.strip_suffix("-delete")
        .and_then(|rest| rest.rsplit_once('.'))
        .is_some_and(|(_, unique)| {
            unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_in_names_have_twenty_digits_and_read_back() {
        let path = offset_file(Path::new("t-0"), Offset::new(1234), LOG_SUFFIX);
        assert_eq!(path, Path::new("t-0/00000000000000001234.log"));
        let parse = |name| parse_offset(name, LOG_SUFFIX);
        assert_eq!(parse("00000000000000001234.log"), Some(Offset::new(1234)));
        assert_eq!(parse("1234.log"), None);
        assert_eq!(parse("00000000000000001234.index"), None);
        assert_eq!(parse("99999999999999999999.log"), None);
        assert_eq!(parse("+0000000000000001234.log"), None);
    }

    #[test]
    fn a_deleted_directory_is_told_by_its_name_however_long_the_topic() {
        let name = deleted_dir_name(&format!("{}-0", "t".repeat(249)), 7);
        assert_eq!(name.len(), MAX_NAME_BYTES);
        assert!(is_deleted_dir(&name));
        assert!(!is_deleted_dir("orders-delete"));
        assert!(!is_deleted_dir("orders-0"));
    }
}
