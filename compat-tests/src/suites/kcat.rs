//! kcat of the distribution (1.7.1, with librdkafka 2.0.2): a cheap check with an older client.
//!
//! It has no test suite for a broker that is packaged; each mode of the program is one test here.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Session, Short, Suite, own};

/// The suite.
pub const SUITE: Suite = Suite {
    name: "kcat",
    about: "kcat 1.7.1 (librdkafka 2.0.2)",
    exceptions: include_str!("../../suites/kcat.txt"),
    bound: Duration::from_secs(180),
    at_least: 10,
    short: Short::Everything,
    prepare: |_| Ok(PathBuf::new()),
    run: |session| Ok(own::run(session, &TESTS)),
    ..Suite::PLAIN
};

const TESTS: [own::Test; 10] = [
    ("metadata", metadata),
    ("codec none", |session| codec(session, "none")),
    ("codec gzip", |session| codec(session, "gzip")),
    ("codec snappy", |session| codec(session, "snappy")),
    ("codec lz4", |session| codec(session, "lz4")),
    ("codec zstd", |session| codec(session, "zstd")),
    ("offsets from the end", offsets),
    ("offsets by time", times),
    ("a group", group),
    ("a transaction", transaction),
];

/// One command, which must succeed; what it printed, warnings of its library apart.
fn kcat(session: &Session, arguments: &[&str]) -> Result<String> {
    crate::kcat::kcat(&session.bootstrap(), arguments, "")
}

/// Writes so many records of one key each into a topic.
fn produce(session: &Session, topic: &str, records: usize, extra: &[&str]) -> Result<()> {
    let lines: String = (0..records)
        .map(|number| format!("k{number}:v{number}\n"))
        .collect();
    let file = session
        .write("lines", &lines)?
        .to_string_lossy()
        .into_owned();
    let mut arguments = vec!["-P", "-t", topic, "-K:", "-l", &file];
    arguments.extend(extra);
    kcat(session, &arguments).map(drop)
}

fn consume(session: &Session, arguments: &[&str]) -> Result<Vec<String>> {
    let mut all = vec!["-q", "-f", "%k=%s %h\n"];
    all.extend(arguments);
    let mut lines: Vec<String> = kcat(session, &all)?
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.sort();
    Ok(lines)
}

fn expected(range: std::ops::Range<usize>, headers: &str) -> Vec<String> {
    let mut all: Vec<String> = range
        .map(|number| {
            format!("k{number}=v{number} {headers}")
                .trim_end()
                .to_owned()
        })
        .collect();
    all.sort();
    all
}

fn metadata(session: &Session) -> Result<()> {
    produce(session, "kcat-metadata", 1, &[])?;
    let text = kcat(session, &["-L", "-J"])?;
    let found: serde_json::Value = serde_json::from_str(text.trim()).context("no JSON")?;
    let topics: BTreeSet<&str> = found["topics"]
        .as_array()
        .context("no topics")?
        .iter()
        .filter_map(|topic| topic["topic"].as_str())
        .collect();
    ensure!(topics.contains("kcat-metadata"), "{text}");
    ensure!(
        found["brokers"].as_array().map(Vec::len) == Some(session.nodes().len()),
        "{text}"
    );
    Ok(())
}

fn codec(session: &Session, codec: &str) -> Result<()> {
    let topic = format!("kcat-{codec}");
    produce(session, &topic, 2000, &["-z", codec, "-H", "a=1"])?;
    let read = consume(session, &["-C", "-t", &topic, "-o", "beginning", "-e"])?;
    ensure!(read == expected(0..2000, "a=1"), "{} records", read.len());
    Ok(())
}

fn offsets(session: &Session) -> Result<()> {
    produce(session, "kcat-offsets", 20, &["-p", "0"])?;
    let arguments = ["-C", "-t", "kcat-offsets", "-p", "0", "-o", "-5", "-e"];
    let read = consume(session, &arguments)?;
    ensure!(read == expected(15..20, ""), "{read:?}");
    let arguments = ["-C", "-t", "kcat-offsets", "-p", "0", "-o", "7", "-c", "3"];
    let read = consume(session, &arguments)?;
    ensure!(read == expected(7..10, ""), "{read:?}");
    Ok(())
}

fn times(session: &Session) -> Result<()> {
    produce(session, "kcat-times", 5, &["-p", "0"])?;
    let text = kcat(session, &["-Q", "-t", "kcat-times:0:1"])?;
    ensure!(text.trim() == "kcat-times [0] offset 0", "{text}");
    let text = kcat(session, &["-Q", "-t", "kcat-times:0:-1"])?;
    ensure!(text.trim() == "kcat-times [0] offset 5", "{text}");
    Ok(())
}

fn group(session: &Session) -> Result<()> {
    let read = |count: &str| {
        let earliest = ["-G", "kcat-readers", "-X", "auto.offset.reset=earliest"];
        let mut arguments = earliest.to_vec();
        arguments.extend(["-c", count, "kcat-group"]);
        consume(session, &arguments)
    };
    produce(session, "kcat-group", 50, &[])?;
    let first = read("50")?;
    ensure!(first == expected(0..50, ""), "{} records", first.len());
    // What was committed is not read again.
    produce(session, "kcat-group", 3, &[])?;
    let second = read("3")?;
    ensure!(second == expected(0..3, ""), "{second:?}");
    Ok(())
}

fn transaction(session: &Session) -> Result<()> {
    let id = "transactional.id=kcat-transaction";
    produce(session, "kcat-transaction", 100, &["-X", id])?;
    let arguments = ["-C", "-t", "kcat-transaction", "-o", "beginning", "-e"];
    let mut committed = arguments.to_vec();
    committed.extend(["-X", "isolation.level=read_committed"]);
    let read = consume(session, &committed)?;
    ensure!(read == expected(0..100, ""), "{} records", read.len());
    Ok(())
}
