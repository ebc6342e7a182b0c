//! The wire layer: everything that is defined by bytes on a socket or in a record batch.
//!
//! This crate does no I/O and knows no broker state. It is the only place, with the request
//! handlers, that names the message types of the generated codec.

pub mod api;
pub mod batch;
pub mod codec;
pub mod compression;
pub mod error;
pub mod error_code;
pub mod fetch_response;
pub mod frame;
pub mod header;
pub mod ids;
pub mod messages;
pub mod records;
pub mod request;
pub mod response;

#[cfg(test)]
mod test_data;

pub use error::ProtocolError;
pub use error_code::ErrorCode;

/// Seed of this run's random tests: `ODRADEK_SEED` to replay a run, otherwise the time of day.
/// Tests name it when they fail.
#[cfg(test)]
fn test_seed() -> u64 {
    std::env::var("ODRADEK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |elapsed| elapsed.as_nanos() as u64)
        })
}
