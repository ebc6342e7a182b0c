//! kcat, the librdkafka-based command-line client of the distribution (an older librdkafka than the `rdkafka` crate's).

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::run;

/// Runs `kcat -b bootstrap ARGUMENTS…` with `input`; its standard output.
pub fn kcat(bootstrap: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut all = vec!["-b".to_owned(), bootstrap.to_owned()];
    all.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let output = run(
        Path::new("kcat"),
        &all,
        input.as_bytes(),
        Duration::from_secs(60),
    )?;
    ensure!(output.success, "kcat {all:?} failed:\n{}", output.both());
    Ok(output.stdout)
}

/// Produces each line of `lines` as one record, `key:value` where there is a colon; `extra` are further arguments.
pub fn produce(bootstrap: &str, topic: &str, lines: &str, extra: &[&str]) -> Result<()> {
    let mut arguments = vec!["-P", "-t", topic];
    arguments.extend(extra);
    kcat(bootstrap, &arguments, lines).map(drop)
}

/// Everything in `topic` from its beginning to its end, printed by `format` (kcat's `-f`).
pub fn consume_all(bootstrap: &str, topic: &str, format: &str) -> Result<String> {
    kcat(
        bootstrap,
        &[
            "-C",
            "-t",
            topic,
            "-o",
            "beginning",
            "-e",
            "-q",
            "-f",
            format,
        ],
        "",
    )
}
