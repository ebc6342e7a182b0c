//! The wire layer: everything that is defined by bytes on a socket or in a record batch.
//!
//! This crate does no I/O and knows no broker state. It is the only place, with the request
//! handlers, that names the message types of the generated codec.

pub mod codec;
pub mod ids;
