//! Which partition of a coordinator's topic a group or a transactional id belongs to.

use odradek_protocol::ids::PartitionIndex;

/// The partition of `id` among `count`: the absolute value of Java's `String.hashCode`, modulo the
/// number of partitions. Every Kafka tool and every broker computes the same.
pub fn partition_of(id: &str, count: i32) -> PartitionIndex {
    // Java hashes UTF-16 units.
    let hash = id.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    // The smallest integer has none; Kafka's `Utils.abs` gives 0 for it.
    let positive = hash.checked_abs().unwrap_or(0);
    PartitionIndex::new(positive.checked_rem(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_those_of_java() {
        // As a JVM prints them.
        for (group, hash) in [
            ("", 0_i32),
            ("a", 97),
            ("hello", 99_162_322),
            ("test-group", 627_841_412),
            ("ключ", 33_309_882),
        ] {
            assert_eq!(partition_of(group, i32::MAX).get(), hash, "{group}");
        }
        assert_eq!(partition_of("hello", 50).get(), 99_162_322 % 50);
    }

    #[test]
    fn a_negative_hash_counts_without_its_sign() {
        // "polygenelubricants".hashCode() is the smallest integer, and the next one's is one more.
        assert_eq!(partition_of("polygenelubricants", 50).get(), 0);
        assert_eq!(partition_of("polygenelubricantt", 50).get(), 47);
    }

    #[test]
    fn no_partitions_is_not_a_division_by_zero() {
        assert_eq!(partition_of("g", 0).get(), 0);
    }
}
