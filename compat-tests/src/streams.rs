//! Applications of Kafka Streams and the drivers that check what they have made of their input, out of Kafka's own
//! system tests.
//!
//! Invariants: what an application keeps is in the directory that it was given; it is dead once its value is dropped;
//! everything waits with a deadline.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::kafka::{java_arguments, streams_libs};
use crate::process::Process;

/// A program of the tests, and of which version it is.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    version: &'static str,
    /// A class, or a source file that is compiled first.
    class: &'static str,
}

/// The application of many operators.
pub const SMOKE_TEST: Program = Program {
    version: "4.3.1",
    class: "org.apache.kafka.streams.tests.StreamsSmokeTest",
};
/// The driver of that, told how much to send and how fast: a program of ours around Kafka's class.
pub const SMOKE_DRIVER: Program = Program {
    version: "4.3.1",
    class: concat!(env!("CARGO_MANIFEST_DIR"), "/kafka/SmokeDriver.java"),
};
/// Application and driver of the exactly-once test. 4.2.1 is the last that has it.
pub const EOS_TEST: Program = Program {
    version: "4.2.1",
    class: "org.apache.kafka.streams.tests.StreamsEosTest",
};

/// What an application says once it has its tasks and works.
pub const RUNNING: &str = "REBALANCING -> RUNNING";
/// What it says of every hundredth record of a task.
pub const PROCESSED: &str = "00 records from topic=";

/// One of them, running.
pub struct App {
    name: String,
    process: Process,
    /// How much of its output has been looked at.
    seen: usize,
}

impl App {
    /// Starts a program with arguments. It works in `home`, which exists.
    pub fn start(name: &str, program: Program, arguments: &[&str], home: &Path) -> Result<Self> {
        let mut all = java_arguments("320m", &streams_libs(program.version)?);
        all.insert(0, format!("-Djava.io.tmpdir={}", home.display()));
        all.push(program.class.to_owned());
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        let log = home.join(format!("{name}.log"));
        let seen = std::fs::metadata(&log).map_or(0, |log| log.len());
        Ok(Self {
            name: name.to_owned(),
            process: Process::start(name, Path::new("java"), &all, &log, |_| {})?,
            seen: usize::try_from(seen)?,
        })
    }

    /// What it has printed since this value was made.
    pub fn output(&self) -> String {
        self.process.log_text()
    }

    /// Overlooks everything that it has said so far.
    pub fn forget(&mut self) {
        self.seen = self.process.log_text().len();
    }

    /// Waits until it says something that it has not said when it was last waited for.
    pub fn wait_for(&mut self, wanted: &str, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let text = self.process.log_text();
            let new = text.get(self.seen..).unwrap_or_default();
            if let Some(at) = new.find(wanted) {
                self.seen += at + wanted.len();
                return Ok(());
            }
            if let Some(status) = self.process.exited()? {
                bail!(
                    "{} ended with {status} and never said {wanted:?}\n{}",
                    self.name,
                    self.process.log_tail()
                );
            }
            ensure!(
                Instant::now() < deadline,
                "{} did not say {wanted:?} within {patience:?}\n{}",
                self.name,
                self.process.log_tail()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it with SIGKILL.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Asks it to stop (SIGTERM) and waits for that.
    pub fn stop(&mut self, patience: Duration) -> Result<()> {
        self.process.terminate(patience).map(drop)
    }

    /// Waits until it ends by itself, with success.
    pub fn finish(&mut self, patience: Duration) -> Result<()> {
        let status = self.process.wait(patience)?;
        ensure!(
            status.success(),
            "{} ended with {status}\n{}",
            self.name,
            self.process.log_tail()
        );
        Ok(())
    }

    /// The end of its output, for messages.
    pub fn tail(&self) -> String {
        self.process.log_tail()
    }
}

/// Writes a property file for an application that keeps its state under `home` and is missed soon after a kill.
pub fn properties(home: &Path, bootstrap: &str, more: &[(&str, &str)]) -> Result<PathBuf> {
    let state = home.join("state");
    std::fs::create_dir_all(&state)?;
    let mut text = format!(
        "bootstrap.servers={bootstrap}\n\
         processing.guarantee=exactly_once_v2\n\
         state.dir={}\n\
         session.timeout.ms=6000\n\
         heartbeat.interval.ms=1000\n",
        state.display()
    );
    for (key, value) in more {
        text.push_str(&format!("{key}={value}\n"));
    }
    let file = home.join("streams.properties");
    std::fs::write(&file, text)?;
    Ok(file)
}
