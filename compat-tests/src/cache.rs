//! Where what is slow to fetch or build is kept between runs, outside the source tree.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// `${XDG_CACHE_HOME:-~/.cache}/odradek`, as in `test.sh`.
pub fn cache_directory() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("odradek"))
}
