//! Black-box tests of the broker binary.
