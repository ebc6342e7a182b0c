//! Histograms for openraft's statistics, in the place of the crate of this name in the registry.
//!
//! openraft keeps sixteen histograms a group, and with the registry's crate the first of them makes lookup tables
//! of 26 MB for widths that nobody asks for, and each takes 2 KB from the start: two thirds of the memory of a fresh
//! broker (docs/decisions/histograms.md). Here a histogram counts by powers of two and has its 64 counters from its
//! first value on.
//!
//! Invariants: a percentile is the upper bound of the bucket that it falls into, at most twice the value that was
//! recorded; counters stop at their largest value rather than begin again.
//!
//! Absent on purpose: all that openraft does not call (time slots, other widths, merging, interpolation).

mod chart;
mod histogram;
mod percentiles;

pub use chart::{AsciiChart, DetailedDisplay};
pub use histogram::Histogram;
pub use percentiles::PercentileStats;
