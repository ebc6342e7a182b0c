//! The v2 record batch (KIP-98): its 61-byte header, and what can be done with a batch without
//! looking at its records.
//!
//! A batch on the wire and on disk is the same bytes. Base offset and leader epoch stand outside
//! the CRC, so that the log stamps them without touching the rest; everything else that changes
//! (timestamps of LogAppendTime topics) needs a new CRC.
//!
//! Batches of magic 0 and 1 are deliberately absent: nothing since Kafka 4.0 reads or writes them.

mod error;
mod header;
mod iter;
mod stamp;
mod validate;

pub use error::{BatchError, RecordFault, RecordFaultCause};
pub use header::{Attributes, BatchHeader, TimestampType};
pub use iter::{BatchIter, BatchView};
pub(crate) use stamp::seal;
pub use stamp::{patch_offsets, restamp};
pub use validate::{
    BatchOrigin, BatchSummary, ValidationLimits, single_batch, validate_batch, verify_crc,
};
