//! One command of a suite: bounded in time, with all that it starts, its output in a file.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::process::Process;

/// So much of a command's output is shown when it fails.
const SHOWN_BYTES: usize = 6 * 1024;

/// A command to be run to its end.
#[derive(Clone, Debug)]
pub struct Job {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: PathBuf,
    log: PathBuf,
    bound: Duration,
}

/// What a command left behind.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Whether it ended with 0.
    pub success: bool,
    /// Whether it ended by itself; otherwise it was killed, with everything that it had started.
    pub in_time: bool,
    /// What it printed, both streams.
    pub output: String,
    program: PathBuf,
}

impl Job {
    pub(super) fn new(program: &Path, directory: &Path, log: &Path, bound: Duration) -> Self {
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: directory.to_owned(),
            log: log.to_owned(),
            bound,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl ToString) -> Self {
        self.arguments.push(argument.to_string());
        self
    }

    /// Adds arguments.
    pub fn args<S: ToString>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments
            .extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, key: &str, value: impl ToString) -> Self {
        self.environment.push((key.to_owned(), value.to_string()));
        self
    }

    /// Runs it there.
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = path.to_owned();
        self
    }

    /// Lets it take no longer than this; a session's end comes first in any case.
    pub fn bound(mut self, bound: Duration) -> Self {
        self.bound = self.bound.min(bound);
        self
    }

    /// Runs it, until it ends or its time is up.
    pub fn run(self) -> Result<Finished> {
        // Each command starts a file of its own: what was printed before is not its output.
        std::fs::write(&self.log, "")?;
        let mut process = Process::start(
            &self.program.display().to_string(),
            &self.program,
            &self.arguments,
            &self.log,
            |command| {
                command
                    .current_dir(&self.directory)
                    .envs(self.environment.iter().map(|(key, value)| (key, value)))
                    .process_group(0);
            },
        )?;
        let group = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
        let status = process.wait(self.bound).ok();
        if let Some(group) = group {
            // What it started may run on; a group that is empty is no failure.
            let _ = kill_process_group(group, Signal::KILL);
        }
        process.kill()?;
        Ok(Finished {
            success: status.is_some_and(|status| status.success()),
            in_time: status.is_some(),
            output: process.log_text(),
            program: self.program,
        })
    }

    /// Runs it and wants it to succeed; what it printed.
    pub fn succeed(self) -> Result<String> {
        let words = format!("{} {}", self.program.display(), self.arguments.join(" "));
        let finished = self.run().with_context(|| words.clone())?;
        ensure!(
            finished.success,
            "{words} {}:\n{}",
            finished.verdict(),
            finished.tail()
        );
        Ok(finished.output)
    }
}

impl Finished {
    /// How it ended, in words.
    pub fn verdict(&self) -> &'static str {
        match (self.in_time, self.success) {
            (false, _) => "was ended because its time was up",
            (true, false) => "failed",
            (true, true) => "succeeded",
        }
    }

    /// The end of what it printed.
    pub fn tail(&self) -> &str {
        let mut start = self.output.len().saturating_sub(SHOWN_BYTES);
        while !self.output.is_char_boundary(start) {
            start += 1;
        }
        &self.output[start..]
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(home: &Path, script: &str) -> Job {
        let log = home.join("log");
        Job::new(Path::new("sh"), home, &log, Duration::from_secs(20)).args(["-c", script])
    }

    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_what_it_started() {
        let home = tempfile::tempdir().unwrap();
        let job = shell(home.path(), "sleep 100 & echo $!; wait").bound(Duration::from_secs(1));
        let finished = job.run().unwrap();
        assert!(!finished.in_time && !finished.success);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while runs(finished.output.trim()) {
            assert!(std::time::Instant::now() < deadline, "it runs on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_command_that_ends_leaves_nothing_running_and_tells_both_streams() {
        let home = tempfile::tempdir().unwrap();
        let finished = shell(
            home.path(),
            "sleep 100 & echo $! >pid; echo out; echo err >&2",
        )
        .run()
        .unwrap();
        assert!(finished.in_time && finished.success);
        assert_eq!(finished.output, "out\nerr\n");
        let pid = std::fs::read_to_string(home.path().join("pid")).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while runs(pid.trim()) {
            assert!(std::time::Instant::now() < deadline, "it runs on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_command_that_must_succeed_tells_why_it_did_not() {
        let home = tempfile::tempdir().unwrap();
        let error = shell(home.path(), "echo because; exit 3").succeed();
        assert!(format!("{:#}", error.unwrap_err()).contains("because"));
    }
}
