//! Segmented log.
