//! Every black-box test, in one program because linking is what costs time.

#![allow(missing_docs)]

mod compare_metadata;
mod smoke;
