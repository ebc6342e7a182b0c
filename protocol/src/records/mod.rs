//! The records inside a batch: reading them without allocation, and building batches of them.

mod builder;
mod scan;
mod varint;
mod walker;

pub use builder::{BatchBuilder, NewRecord};
pub use scan::{ExpansionLimits, RecordStamp, expand, record_timestamp, scan_stamps};
pub use walker::{HeaderIter, HeaderView, RecordView, RecordWalker};

#[cfg(test)]
mod tests;
