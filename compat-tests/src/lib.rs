//! Black-box tests of the broker binary.

pub mod forgetful;
