//! File descriptors: how many this process may have, and what connections may take of them.
//!
//! Segments, journals and connections are all descriptors, and the system has one bound for the
//! process. Connections are held to a half of it, so that clients cannot take from the log what it
//! needs to write; those beyond wait in the kernel's queue, as they do beyond `max.connections`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Part of the descriptors that connections may take.
const CONNECTIONS_SHARE: u64 = 2;

/// Raises the bound of this process as far as it may by itself; the one that most systems begin with
/// is meant for shells.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// How many connections there may be at most, whatever the configuration says, and of how many
/// descriptors that is a part.
pub fn most_connections() -> (usize, Option<u64>) {
    let limit = getrlimit(Resource::Nofile).current;
    (share_of_connections(limit), limit)
}

/// `None` stands for no limit.
fn share_of_connections(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |limit| {
        let share = (limit / CONNECTIONS_SHARE).max(1);
        usize::try_from(share).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_take_all_descriptors() {
        assert_eq!(share_of_connections(Some(1_024)), 512);
        assert_eq!(share_of_connections(Some(1)), 1);
        assert_eq!(share_of_connections(None), usize::MAX);
    }
}
