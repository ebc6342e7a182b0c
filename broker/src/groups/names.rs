//! Names and numbers of the group protocol as types of their own.
//!
//! The names are shared slices: a group id stands in its map, in its timers and in its records,
//! and cloning one costs a reference count. They always own their bytes, because a slice of a
//! request would keep that whole request frame in memory.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Copies `text`.
            pub fn new(text: &str) -> Self {
                Self(Arc::from(text))
            }

            /// The text as on the wire.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether the text is empty, which on the wire means "none".
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

pub(crate) use name;

name!(
    /// `group.id` of a consumer.
    GroupId
);
name!(
    /// Id that the coordinator gave to a member; empty before it has one.
    MemberId
);
name!(
    /// `group.instance.id` of a static member (KIP-345).
    InstanceId
);
name!(
    /// Name of a topic.
    TopicName
);

/// Number of completed rebalances of a group. −1 on the wire means "not a member".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationId(i32);

impl GenerationId {
    /// Wraps the number as it stands on the wire.
    pub const fn new(value: i32) -> Self {
        Self(value)
    }

    /// The number as it stands on the wire.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The generation of the next completed rebalance. Wraps to 0: a negative generation would be
    /// taken for a consumer outside the group.
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(next) => Self(next),
            None => Self(0),
        }
    }
}

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// An epoch of a consumer group (KIP-848): the group itself, its target assignment and each of its
/// members are at one. A change of the group raises the group's; the target assignment follows, and
/// each member once it has let go of what it no longer gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(i32);

impl Epoch {
    /// Of a member that is about to join, or has no assignment yet.
    pub const JOINING: Self = Self(0);
    /// Of a member that leaves.
    pub const LEAVING: Self = Self(-1);
    /// Of a static member that is away and will come back for its partitions.
    pub const AWAY: Self = Self(-2);
    /// Where a new group and its assignment begin.
    pub const FIRST: Self = Self(1);

    /// Wraps the number as it stands on the wire.
    pub const fn new(value: i32) -> Self {
        Self(value)
    }

    /// The number as it stands on the wire.
    pub const fn get(self) -> i32 {
        self.0
    }

    /// The epoch after this one. Stops at the largest: a group changes less often.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The generation that a classic member of the group is told for this epoch.
    pub const fn as_generation(self) -> GenerationId {
        GenerationId::new(self.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
