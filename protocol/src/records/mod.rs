//! The records inside a batch: reading them without allocation, building batches of them, and
//! leaving some out.

mod builder;
mod rewrite;
mod scan;
mod varint;
mod walker;

pub use builder::{BatchBuilder, NewRecord};
pub use rewrite::{NewHorizon, Rewritten, emptied, rewrite};
pub use scan::{ExpansionLimits, RecordStamp, expand, record_timestamp, scan_stamps};
pub use walker::{HeaderIter, HeaderView, RecordView, RecordWalker};

#[cfg(test)]
mod tests;
