//! Names and numbers of transactions as types of their own.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::groups::names::name;

name!(
    /// `transactional.id` of a producer.
    TransactionalId
);

/// How transactions are spoken of between client, coordinator and partitions (KIP-890).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TxnVersion {
    /// Without KIP-890.
    #[default]
    V0,
    /// The coordinator's records may carry tagged fields.
    V1,
    /// Every end of a transaction raises the producer's epoch, and partitions join a transaction as
    /// they are written to.
    V2,
}

impl TxnVersion {
    /// The version of this number; what is newer than all known counts as the newest.
    pub const fn of_level(level: i16) -> Self {
        match level {
            i16::MIN..=0 => Self::V0,
            1 => Self::V1,
            2.. => Self::V2,
        }
    }

    /// Its number.
    pub const fn level(self) -> i16 {
        match self {
            Self::V0 => 0,
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Whether every end of a transaction raises the epoch.
    pub const fn bumps_epoch(self) -> bool {
        matches!(self, Self::V2)
    }
}
