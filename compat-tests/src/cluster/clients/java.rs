//! Kafka's own producer and consumer, in one Java process (`kafka/NemesisClient.java`) that is told what to send and
//! tells what became of it and what it reads.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{FINISH_PATIENCE, Name, Names, Shared};
use crate::cluster::history::{OutOfRange, Partition, Promise, Read, Recorder, Seen};
use crate::kafka;
use crate::process::Piped;

/// The program.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kafka/NemesisClient.java");

/// The pair of clients.
pub struct Client {
    shared: Shared,
    rng: StdRng,
}

impl Client {
    /// Clients that write down everything they do.
    pub fn new(shared: Shared, seed: u64) -> Self {
        Self {
            shared,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Works until told to stop and all is answered, or given up.
    pub fn run(mut self) -> Result<()> {
        let servers: Vec<String> = self
            .shared
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        let arguments = [
            "-Xmx128m".to_owned(),
            "-XX:TieredStopAtLevel=1".to_owned(),
            "-XX:+UseSerialGC".to_owned(),
            // Its standard output is for what it is asked to say.
            "-Dlog4j2.level=OFF".to_owned(),
            "-cp".to_owned(),
            format!("{}/*", kafka::libs()?.display()),
            SOURCE.to_owned(),
            servers.join(","),
            self.shared.topic.name.clone(),
            self.shared.partitions.to_string(),
        ];
        let mut process = Piped::start(Path::new("java"), &arguments)?;
        let (mut input, output) = (process.input()?, process.output()?);
        let recorder = self.shared.recorder.clone();
        let listening = std::thread::spawn(move || listen(&recorder, output));
        let mut names = Names::new(&self.shared.recorder, Promise::Idempotent);
        while !self.shared.stopping() {
            self.send(&mut input, &mut names)?;
            std::thread::sleep(Duration::from_millis(self.rng.random_range(5..40)));
        }
        drop(input);
        process.wait(FINISH_PATIENCE * 2)?;
        listening
            .join()
            .map_err(|_| anyhow!("the Java client's listener panicked"))?
    }

    fn send(&mut self, input: &mut ChildStdin, names: &mut Names) -> Result<()> {
        for _ in 0..self.rng.random_range(1..8) {
            let partition = self.rng.random_range(0..self.shared.partitions);
            let name = names.next();
            let value = name.value(self.rng.random_range(0..300));
            let write = self.shared.recorder.write_begins(partition, vec![name]);
            writeln!(input, "{write} {partition} {value}").context("the Java client has ended")?;
        }
        Ok(())
    }
}

/// Writes down what the process says until it has ended.
fn listen(recorder: &Recorder, output: ChildStdout) -> Result<()> {
    let mut next: HashMap<Partition, i64> = HashMap::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let (kind, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match kind {
            "a" => {
                let (write, offset) = rest.split_once(' ').context("an acknowledgement")?;
                let offset: i64 = offset.parse()?;
                recorder.write_ends(write.parse()?, Some(offset).filter(|offset| *offset >= 0));
            }
            "e" => recorder.note(|history| {
                history.given_up.push(format!("the Java producer: {rest}"));
            }),
            "r" => read(recorder, &mut next, rest)?,
            "o" => {
                let (partition, offset) = rest.split_once(' ').context("out of range")?;
                let refusal = OutOfRange {
                    partition: partition.parse()?,
                    offset: offset.parse()?,
                    completed: recorder.now(),
                };
                recorder.note(|history| history.out_of_range.push(refusal));
            }
            _ => bail!("the Java client says {line:?}"),
        }
    }
    Ok(())
}

fn read(recorder: &Recorder, next: &mut HashMap<Partition, i64>, line: &str) -> Result<()> {
    let mut parts = line.split(' ');
    let partition = parts.next().context("no partition")?.parse()?;
    let records = parts.map(seen).collect::<Result<Vec<Seen>>>()?;
    let now = recorder.now();
    let next = next.entry(partition).or_insert(0);
    let from = *next;
    if let Some(last) = records.last() {
        *next = last.offset + 1;
    }
    let read = Read {
        partition,
        invoked: now,
        completed: now,
        from,
        records,
        high_watermark: None,
    };
    recorder.note(|history| history.reads.push(read));
    Ok(())
}

fn seen(text: &str) -> Result<Seen> {
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next().with_context(|| format!("record {text:?}"));
    Ok(Seen {
        offset: part()?.parse()?,
        epoch: part()?.parse()?,
        name: Name::parse(part()?.as_bytes()),
        sent_as: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_begins_where_the_last_reading_ended() {
        let recorder = Recorder::default();
        let mut next = HashMap::new();
        read(&recorder, &mut next, "2 0:1:7/0/ 1:1:7/1/").unwrap();
        read(&recorder, &mut next, "2 3:4:7/2/").unwrap();
        let reads = recorder.history().reads;
        assert_eq!((reads[0].partition, reads[0].from), (2, 0));
        assert_eq!(reads[1].from, 2);
        let name = Some(Name {
            producer: 7,
            sequence: 2,
        });
        assert_eq!(
            reads[1].records,
            [Seen {
                offset: 3,
                name,
                epoch: 4,
                sent_as: None
            }]
        );
        assert!(read(&recorder, &mut next, "2 x").is_err());
    }
}
