//! Child processes that cannot outlive the test: started, watched, killed and measured.
//!
//! Invariants: a [`Process`] is dead once its value is dropped, and dies with the test process even if that is killed
//! (`setpriv --pdeathsig`); its output goes to a file whose end is shown when the test that owns it panics.
//! The parent-death signal follows the *thread* that forked, so one thread that lives as long as the process does
//! all the starting.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to stop after SIGSTOP.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

type SpawnRequest = (Command, Sender<io::Result<Child>>);

fn spawn_from_lasting_thread(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<SpawnRequest>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for (mut command, reply) in receiver {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = channel();
    let sender = spawner
        .lock()
        .map_err(|_| anyhow::anyhow!("the spawner is poisoned"))?
        .clone();
    sender
        .send((command, reply))
        .context("the spawner is gone")?;
    Ok(child.recv().context("the spawner is gone")??)
}

/// The command of a program that does not outlive the thread that starts it.
///
/// Cargo lends a test the directories of everything that it built in `LD_LIBRARY_PATH`, a librdkafka among it. Another
/// project's program would load that one instead of its own.
fn supervised(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .env_remove("LD_LIBRARY_PATH")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(arguments);
    command
}

/// A running (or ended) child process and the file that its output goes to.
pub struct Process {
    name: String,
    child: Child,
    started: Instant,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `program` with `arguments`; its output is appended to `log`. `configure` may set environment or directory.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: &[String],
        log: &Path,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("{}", log.display()))?;
        let mut command = supervised(program, arguments);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        configure(&mut command);
        let started = Instant::now();
        let child = spawn_from_lasting_thread(command)
            .with_context(|| format!("starting {name} ({})", program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            started,
            log: log.to_owned(),
            status: None,
        })
    }

    /// The operating system's id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long ago the process was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The exit status, if the process has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Kills with SIGKILL and waits for the end; nothing if it has already ended.
    pub fn kill(&mut self) -> Result<()> {
        if self.exited()?.is_none() {
            self.child.kill()?;
            self.status = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// Sends a signal to the process if it still runs.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.exited()?.is_none() {
            kill_process(Pid::from_child(&self.child), signal)?;
        }
        Ok(())
    }

    /// Waits until every thread of a process that was sent SIGSTOP has stopped: a thread that runs on another
    /// processor does so a moment later.
    pub fn await_stopped(&self) -> Result<()> {
        let tasks = format!("/proc/{}/task", self.pid());
        let deadline = Instant::now() + STOP_PATIENCE;
        loop {
            let mut running = false;
            for task in std::fs::read_dir(&tasks)? {
                // A thread that has just ended does not run either.
                let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else {
                    continue;
                };
                let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
                running |= !state.is_some_and(|state| state.starts_with(['T', 't', 'Z', 'X']));
            }
            if !running {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "process {} goes on although it was stopped",
                self.pid()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks the process to end (SIGTERM) and waits at most `patience` for it.
    pub fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(patience)
    }

    /// Waits at most `patience` for the process to end by itself.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} still runs after {patience:?}\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last 16 KiB of what the process printed.
    pub fn log_tail(&self) -> String {
        let mut tail = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let length = file.metadata().map_or(0, |m| m.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(16 * 1024)));
            let _ = file.read_to_end(&mut tail);
        }
        format!(
            "--- {} ({}) ---\n{}",
            self.name,
            self.log.display(),
            String::from_utf8_lossy(&tail)
        )
    }

    /// Everything the process printed so far.
    pub fn log_text(&self) -> String {
        std::fs::read(&self.log).map_or_else(
            |_| String::new(),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.status_kib("VmRSS:").map(|kib| kib * 1024)
    }

    /// The most memory that was ever resident, in bytes.
    pub fn peak_resident_bytes(&self) -> Result<u64> {
        self.status_kib("VmHWM:").map(|kib| kib * 1024)
    }

    fn status_kib(&self, key: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status
            .lines()
            .find(|line| line.starts_with(key))
            .with_context(|| format!("no {key}"))?;
        Ok(line
            .split_whitespace()
            .nth(1)
            .context("no value")?
            .parse()?)
    }

    /// Number of open file descriptors.
    pub fn open_descriptors(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// CPU time used so far, user and system together.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after_name = stat.rsplit_once(')').context("no command name")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = |index: usize| -> Result<u64> {
            Ok(fields.get(index).context("short stat line")?.parse()?)
        };
        // utime and stime are fields 14 and 15 of the whole line, counted from 1; 100 ticks a second on Linux.
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
        let _ = self.kill();
    }
}

/// A running child that is spoken to: its standard input and output are pipes. It is dead once the value is dropped.
pub struct Piped {
    child: Child,
}

impl Piped {
    /// Starts `program` with `arguments`; its standard error is this process's.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self> {
        let mut command = supervised(program, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = spawn_from_lasting_thread(command)
            .with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { child })
    }

    /// What it reads; it sees the end when this is dropped. Only once.
    pub fn input(&mut self) -> Result<ChildStdin> {
        self.child.stdin.take().context("no stdin")
    }

    /// What it writes. Only once.
    pub fn output(&mut self) -> Result<ChildStdout> {
        self.child.stdout.take().context("no stdout")
    }

    /// Waits at most `patience` for it to end, and for nothing but success.
    pub fn wait(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "it ended with {status}");
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "it still runs after {patience:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        // Nothing can be done about one that cannot be killed; one that has ended is no failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program that ran to its end printed.
#[derive(Debug)]
pub struct Output {
    /// Whether it exited with 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Both streams, for messages.
    pub fn both(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

/// Runs a program to its end with `input` on its standard input, and kills it after `patience`.
pub fn run(
    program: &Path,
    arguments: &[String],
    input: &[u8],
    patience: Duration,
) -> Result<Output> {
    use std::io::Write;
    let mut command = supervised(program, arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn_from_lasting_thread(command)
        .with_context(|| format!("starting {}", program.display()))?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let collect = |mut stream: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = collect(Box::new(child.stdout.take().context("no stdout")?));
    let stderr = collect(Box::new(child.stderr.take().context("no stderr")?));
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let joined = |handle: std::thread::JoinHandle<String>| handle.join().unwrap_or_default();
    let (stdout, stderr) = (joined(stdout), joined(stderr));
    let _ = feeder.join();
    match status {
        Some(status) => Ok(Output {
            success: status.success(),
            stdout,
            stderr,
        }),
        None => bail!(
            "{} {arguments:?} ran for more than {patience:?}\n{stdout}\n{stderr}",
            program.display()
        ),
    }
}
