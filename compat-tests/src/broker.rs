//! A real Odradek broker as a child process: start, kill −9, stop, start again on the same directory.
//!
//! The binary is `$ODRADEK_BIN`, or else what `cargo build` gives for the profile that the tests were built with; it
//! is built once a test process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::ports::free_port;
use crate::process::Process;
use crate::wire::Wire;

/// How long a broker may take to answer its first Metadata request in a test (a debug build on a busy machine).
const START_PATIENCE: Duration = Duration::from_secs(30);

/// The binary under test.
pub fn binary() -> Result<PathBuf> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY
        .get_or_init(|| find_or_build().map_err(|e| format!("{e:#}")))
        .clone()
        .map_err(|e| anyhow::anyhow!(e))
}

fn find_or_build() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ODRADEK_BIN") {
        return Ok(path.into());
    }
    // .../target/<profile>/deps/suite-<hash> or .../target/<profile>/bench
    let this = std::env::current_exe()?;
    let mut profile_dir = this
        .parent()
        .context("no directory above the test binary")?;
    if profile_dir.ends_with("deps") {
        profile_dir = profile_dir.parent().context("no directory above deps")?;
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "odradek",
        "--bin",
        "odradek",
    ]);
    cargo
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    if let Some(target_dir) = profile_dir.parent() {
        cargo.arg("--target-dir").arg(target_dir);
    }
    if !cargo.status().context("cargo build")?.success() {
        bail!("the broker does not build");
    }
    Ok(profile_dir.join("odradek"))
}

/// What a broker is started with.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    properties: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    data_dir: Option<PathBuf>,
    binary: Option<PathBuf>,
    file_limit: Option<u32>,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        let mut properties = BTreeMap::new();
        for (key, value) in [
            ("node.id", "1"),
            ("offsets.topic.num.partitions", "4"),
            ("offsets.topic.replication.factor", "1"),
            ("group.initial.rebalance.delay.ms", "0"),
        ] {
            properties.insert(key.to_owned(), value.to_owned());
        }
        Self {
            properties,
            environment: BTreeMap::new(),
            data_dir: None,
            binary: None,
            file_limit: None,
        }
    }
}

impl BrokerOptions {
    /// Sets a line of server.properties.
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.properties.insert(key.to_owned(), value.to_string());
        self
    }

    /// Removes a line that the harness would otherwise write.
    pub fn unset(mut self, key: &str) -> Self {
        self.properties.remove(key);
        self
    }

    /// Sets an environment variable of the process.
    pub fn environment(mut self, key: &str, value: &str) -> Self {
        self.environment.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Puts the data somewhere else than into the broker's own temporary directory.
    pub fn data_dir(mut self, path: &Path) -> Self {
        self.data_dir = Some(path.to_owned());
        self
    }

    /// Runs another binary than [`binary`].
    pub fn binary(mut self, path: &Path) -> Self {
        self.binary = Some(path.to_owned());
        self
    }

    /// Lets the process have so many files open at most (`ulimit -n`).
    pub fn file_limit(mut self, files: u32) -> Self {
        self.file_limit = Some(files);
        self
    }

    /// Starts the broker and waits until it answers.
    pub fn start(self) -> Result<Broker> {
        Broker::launch(self)
    }
}

/// A broker process on its own port with its own directory.
pub struct Broker {
    process: Process,
    options: BrokerOptions,
    binary: PathBuf,
    port: u16,
    home: TempDir,
    data_dir: PathBuf,
}

impl Broker {
    /// Starts a broker with the harness's defaults.
    pub fn start() -> Result<Self> {
        BrokerOptions::default().start()
    }

    /// What a broker is started with, to be changed before it is.
    pub fn options() -> BrokerOptions {
        BrokerOptions::default()
    }

    fn launch(options: BrokerOptions) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("odradek-test-").tempdir()?;
        let data_dir = options
            .data_dir
            .clone()
            .unwrap_or_else(|| home.path().join("data"));
        let binary = match &options.binary {
            Some(path) => path.clone(),
            None => binary()?,
        };
        let port = free_port();
        let process = Self::spawn(&options, &binary, port, home.path(), &data_dir)?;
        let mut broker = Self {
            process,
            options,
            binary,
            port,
            home,
            data_dir,
        };
        broker.wait_until_ready(START_PATIENCE)?;
        Ok(broker)
    }

    fn spawn(
        options: &BrokerOptions,
        binary: &Path,
        port: u16,
        home: &Path,
        data_dir: &Path,
    ) -> Result<Process> {
        let mut properties = options.properties.clone();
        properties
            .entry("listeners".to_owned())
            .or_insert_with(|| format!("PLAINTEXT://127.0.0.1:{port}"));
        properties
            .entry("log.dirs".to_owned())
            .or_insert_with(|| data_dir.display().to_string());
        let text: String = properties
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        let file = home.join("server.properties");
        std::fs::write(&file, text)?;
        let mut program = binary.to_path_buf();
        let mut arguments = vec!["start".to_owned(), file.display().to_string()];
        if let Some(files) = options.file_limit {
            let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
            arguments.insert(0, binary.display().to_string());
            arguments.splice(0..0, ["-c".to_owned(), limited]);
            program = PathBuf::from("/bin/sh");
        }
        Process::start(
            "odradek",
            &program,
            &arguments,
            &home.join("broker.log"),
            |command| {
                command.current_dir(home).envs(&options.environment);
            },
        )
    }

    /// Waits until the broker answers a Metadata request; an early end of the process is an error with its log.
    pub fn wait_until_ready(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.process.exited()? {
                bail!(
                    "the broker ended with {status} while it started\n{}",
                    self.process.log_tail()
                );
            }
            let answer = Wire::connect(self.address())
                .and_then(|mut wire| Ok(wire.metadata_of_everything()?));
            match answer {
                Ok(metadata) if !metadata.brokers.is_empty() => return Ok(()),
                _ if Instant::now() >= deadline => {
                    bail!(
                        "no Metadata answer within {patience:?}\n{}",
                        self.process.log_tail()
                    )
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The same as `host:port`, for clients.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its data directory (`log.dirs`).
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A directory of its own outside the data, gone with this value.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A new connection to it.
    pub fn connect(&self) -> Result<Wire> {
        Wire::connect(self.address())
    }

    /// Ends it at once with SIGKILL.
    pub fn kill9(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Asks it to stop (SIGTERM) and waits for that.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.process.terminate(Duration::from_secs(30))
    }

    /// Starts it again on the same port and directory and waits until it answers; it must have ended.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch_again()?;
        self.wait_until_ready(START_PATIENCE)
    }

    /// Like [`Self::start_again`] without the wait.
    pub fn launch_again(&mut self) -> Result<()> {
        if self.process.exited()?.is_none() {
            bail!("the broker still runs");
        }
        self.process = Self::spawn(
            &self.options,
            &self.binary,
            self.port,
            self.home.path(),
            &self.data_dir,
        )?;
        Ok(())
    }

    /// Changes a line of server.properties for the next start.
    pub fn set_for_next_start(&mut self, key: &str, value: impl ToString) {
        self.options
            .properties
            .insert(key.to_owned(), value.to_string());
    }

    /// Stops it cleanly and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        let status = self.terminate()?;
        if !status.success() {
            bail!(
                "the broker stopped with {status}\n{}",
                self.process.log_tail()
            );
        }
        self.start_again()
    }
}
