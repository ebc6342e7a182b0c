//! A file system that forgets: what was written but not synced is lost, kept or torn at a power
//! cut, and any operation can be made to fail on command.
//!
//! [`store`] is the pure model of files, directories and what of them is durable; [`fuse`] mounts
//! it, so that the real broker binary runs on it. Data lives in memory; nothing survives the test.
//!
//! Rules of durability, the strictest that POSIX allows:
//! - bytes and sizes of a file are durable after `fsync`/`fdatasync` of that file;
//! - names (create, unlink, rename, mkdir, rmdir) are durable after `fsync` of the directory;
//! - what is not durable at the cut is decided block by block from a seed: the old bytes, the new
//!   bytes, or some sectors of each. Names are undone back to a point that the seed draws, in
//!   reverse order, as a journalling file system would.

pub mod fuse;
pub mod store;

pub use fuse::ForgetfulMount;
pub use store::{Fault, FaultKind, Store};
