//! The records inside a batch: reading them without allocation, and building batches of them.

mod builder;
mod varint;
mod walker;

pub use builder::{BatchBuilder, NewRecord};
pub use walker::{HeaderIter, HeaderView, RecordView, RecordWalker};
