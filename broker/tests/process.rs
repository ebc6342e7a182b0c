//! The binary as a process: its start line, its exit codes, its signals, its lock.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odradek"));
    command
        .current_dir(dir)
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

struct Running {
    child: Child,
    start_line: String,
}

impl Running {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut child = command(dir, arguments).spawn().expect("it can be run");
        let stdout = child.stdout.take().expect("piped");
        let mut start_line = String::new();
        BufReader::new(stdout)
            .read_line(&mut start_line)
            .expect("it prints text");
        Self { child, start_line }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for its end; its exit code and what it logged.
    fn wait(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            match self.child.try_wait().expect("it is a child") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    self.child.kill().expect("killed");
                    panic!("it does not stop");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut log = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut log).expect("text");
        (status.code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(dir: &Path, arguments: &[&str]) -> String {
    let output: Output = command(dir, arguments).output().expect("it can be run");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

const ANY_PORT: &str = "listeners=PLAINTEXT://127.0.0.1:0";

#[test]
fn the_start_line_says_where_it_listens_where_the_data_is_and_how_to_try_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Running::start(dir.path(), &["start", "--override", ANY_PORT]);
    let line = &broker.start_line;
    assert!(line.contains("listens on PLAINTEXT://127.0.0.1:"), "{line}");
    assert!(!line.contains("127.0.0.1:0"), "the real port: {line}");
    assert!(line.contains("data in ./odradek-data"), "{line}");
    assert!(line.contains("try: kcat -b 127.0.0.1:"), "{line}");
    assert!(dir.path().join("odradek-data/meta.properties").exists());
}

#[test]
fn sigterm_and_ctrl_c_stop_cleanly_and_a_second_start_finds_the_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut clusters = Vec::new();
    for signal in ["-TERM", "-INT"] {
        let broker = Running::start(dir.path(), &["start", "--override", ANY_PORT]);
        broker.signal(signal);
        let (code, log) = broker.wait();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("stopped"), "{log}");
        let meta = dir.path().join("odradek-data/meta.properties");
        clusters.push(std::fs::read_to_string(meta).expect("it is there"));
    }
    assert_eq!(clusters[0], clusters[1]);
}

#[test]
fn a_second_process_on_the_same_directory_is_refused_until_the_first_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let arguments = ["start", "--override", ANY_PORT];
    let first = Running::start(dir.path(), &arguments);
    let message = refused(dir.path(), &arguments);
    assert!(message.contains("in use by another process"), "{message}");
    first.signal("-KILL");
    first.wait();
    Running::start(dir.path(), &arguments);
}

#[test]
fn a_wrong_setting_stops_the_start_with_one_line_that_names_key_line_and_nearest_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("server.properties");
    std::fs::write(&file, "node.id=1\nlog.retention.hour=5\n").expect("written");
    let message = refused(dir.path(), &["start", "server.properties"]);
    assert_eq!(
        message,
        "odradek: server.properties:2: unknown configuration key log.retention.hour; did you mean \
         log.retention.hours?\n"
    );
    assert!(!dir.path().join("odradek-data").exists());
}

#[test]
fn a_port_that_is_taken_stops_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("it has one");
    let listeners = format!("listeners=PLAINTEXT://{address}");
    let message = refused(dir.path(), &["start", "--override", &listeners]);
    assert!(message.contains("cannot be bound"), "{message}");
}

#[test]
fn another_node_id_does_not_get_the_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Running::start(dir.path(), &["start", "--override", ANY_PORT]);
    broker.signal("-TERM");
    broker.wait();
    let other = ["start", "--override", ANY_PORT, "--override", "node.id=2"];
    let message = refused(dir.path(), &other);
    assert!(message.contains("belongs to node.id 1"), "{message}");
}

#[test]
fn the_log_is_json_on_request_and_keys_without_effect_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Running::start(
        dir.path(),
        &[
            "start",
            "--override",
            ANY_PORT,
            "--override",
            "odradek.log.format=json",
            "--override",
            "num.io.threads=8",
        ],
    );
    broker.signal("-TERM");
    let (code, log) = broker.wait();
    assert_eq!(code, Some(0));
    assert!(log.contains("num.io.threads"), "{log}");
    for line in log.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[test]
fn the_version_is_told_and_nonsense_on_the_command_line_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let version = command(dir.path(), &["--version"]).output().expect("runs");
    let text = String::from_utf8(version.stdout).expect("text");
    assert_eq!(text, format!("odradek {}\n", env!("CARGO_PKG_VERSION")));
    let nonsense = command(dir.path(), &["begin"]).output().expect("runs");
    assert_eq!(nonsense.status.code(), Some(2));
}
