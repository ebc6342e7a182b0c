//! Takes single files out of a jar (a zip archive), as far as the ones that Maven makes go.
//!
//! Absent on purpose: encryption, archives over 4 GiB, and checking sums. The jars are what `test.sh` fetched.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::DeflateDecoder;

/// The archive's bytes.
pub struct Jar {
    bytes: Vec<u8>,
}

impl Jar {
    /// Reads the whole archive.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        Ok(Self { bytes })
    }

    fn slice(&self, at: usize, length: usize) -> Result<&[u8]> {
        self.bytes
            .get(at..at + length)
            .context("the archive breaks off")
    }

    fn number(&self, at: usize, length: usize) -> Result<usize> {
        let bytes = self.slice(at, length)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
    }

    /// The content of one file.
    pub fn file(&self, name: &str) -> Result<Vec<u8>> {
        let end = self
            .bytes
            .windows(4)
            .rposition(|window| window == b"PK\x05\x06")
            .context("no directory")?;
        let (count, mut at) = (self.number(end + 10, 2)?, self.number(end + 16, 4)?);
        for _ in 0..count {
            ensure!(self.slice(at, 4)? == b"PK\x01\x02", "a damaged directory");
            let (name_len, extra_len, comment_len) = (
                self.number(at + 28, 2)?,
                self.number(at + 30, 2)?,
                self.number(at + 32, 2)?,
            );
            if self.slice(at + 46, name_len)? == name.as_bytes() {
                return self.content(at);
            }
            at += 46 + name_len + extra_len + comment_len;
        }
        bail!("no {name} in the archive")
    }

    fn content(&self, entry: usize) -> Result<Vec<u8>> {
        let (method, packed_len, header) = (
            self.number(entry + 10, 2)?,
            self.number(entry + 20, 4)?,
            self.number(entry + 42, 4)?,
        );
        let start = header + 30 + self.number(header + 26, 2)? + self.number(header + 28, 2)?;
        let packed = self.slice(start, packed_len)?;
        match method {
            0 => Ok(packed.to_vec()),
            8 => {
                let mut content = Vec::new();
                DeflateDecoder::new(packed).read_to_end(&mut content)?;
                Ok(content)
            }
            other => bail!("compression method {other}"),
        }
    }
}
