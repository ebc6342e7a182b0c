//! sarama, the Go client of IBM: its functional tests, which cut connections and stop brokers.
//!
//! They want five brokers behind toxiproxy, and `docker compose` to stop and start brokers and to run Kafka's own tools
//! beside them. Toxiproxy comes from Go's proxy too; in Docker's place stands a script (`docker.sh`) that writes requests
//! into a directory, which a thread here carries out.
//!
//! Internal topics have three replicas rather than two: of two, none may be lost while a majority has to know a record.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::go::{self, Package};
use super::{Brokers, NodePlace, Preparation, Session, Short, Suite, TestResult};
use crate::process::Process;

const PACKAGES: &[Package] = &[Package::at(".")];
const NODES: u16 = 5;
/// The proxy of the first node; the others follow.
const FIRST_PROXY: u16 = 29091;
const PROXY_CONTROL: u16 = 8474;
const PROXY_PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether the tests want a broker stopped.
const LOOK: Duration = Duration::from_millis(20);
const DOCKER: &str = include_str!("sarama/docker.sh");
/// Kafka's tools that the tests run, and their classes.
const TOOLS: [(&str, &str); 3] = [
    (
        "kafka-console-producer.sh",
        "org.apache.kafka.tools.ConsoleProducer",
    ),
    (
        "kafka-console-consumer.sh",
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
    ),
    (
        "kafka-verifiable-consumer.sh",
        "org.apache.kafka.tools.VerifiableConsumer",
    ),
];

/// The suite.
pub const SUITE: Suite = Suite {
    name: "sarama",
    about: "sarama 1.61.1: functional tests on five brokers behind toxiproxy",
    exceptions: include_str!("../../suites/sarama.txt"),
    brokers: Brokers {
        count: NODES,
        first_id: 1,
    },
    properties: &[
        (
            "listener.security.protocol.map",
            "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ),
        ("auto.create.topics.enable", "false"),
        ("default.replication.factor", "2"),
        (
            "replica.selector.class",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
    ],
    properties_of: listeners,
    bound: Duration::from_secs(15 * 60),
    at_least: 88,
    short: Short::Nothing,
    prepare,
    run,
    ..Suite::PLAIN
};

/// Where a node listens for what comes through its proxy.
fn proxied_port(place: &NodePlace) -> u16 {
    place.port + 1
}

fn proxy_port(place: &NodePlace) -> u16 {
    let index = u16::try_from(place.id - SUITE.brokers.first_id).unwrap_or(0);
    FIRST_PROXY + index
}

fn listeners(place: &NodePlace) -> Vec<(String, String)> {
    let plain = format!("PLAINTEXT://127.0.0.1:{}", place.port);
    let lines = [
        (
            "listeners",
            format!(
                "{plain},PROXIED://127.0.0.1:{},CONTROLLER://127.0.0.1:{}",
                proxied_port(place),
                place.controller_port
            ),
        ),
        (
            "advertised.listeners",
            format!("{plain},PROXIED://localhost:{}", proxy_port(place)),
        ),
        ("broker.rack", place.id.to_string()),
    ];
    lines.map(|(key, value)| (key.to_owned(), value)).to_vec()
}

fn prepare(preparation: &Preparation) -> Result<PathBuf> {
    const TOXIPROXY: &str = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0";
    let proxy = preparation.directory("toxiproxy-v2.12.0", TOXIPROXY, |directory| {
        preparation
            .job("go", directory)
            .env("GOBIN", directory.display())
            .args(["install", TOXIPROXY])
            .succeed()?;
        Ok(())
    })?;
    let module = ("sarama", "github.com/IBM/sarama", "v1.61.1");
    let prepared = go::prepare(preparation, module, &["-tags=functional"], PACKAGES)?;
    // Beside the tests, where the session finds it.
    let link = prepared.join("toxiproxy");
    if !link.exists() {
        std::os::unix::fs::symlink(proxy.join("server"), link)?;
    }
    Ok(prepared)
}

fn run(session: &Session) -> Result<Vec<TestResult>> {
    let tests = go::tests_in(&session.prepared().join("source"), |name| {
        name.starts_with("functional_") && name.ends_with("_test.go")
    })?;
    ensure!(!tests.is_empty(), "there are no functional tests");
    let _proxies = start_proxies(session)?;
    let control = session.work().join("control");
    std::fs::create_dir_all(&control)?;
    let programs = programs(session)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let environment = [
        ("PATH", format!("{}:{path}", programs.display())),
        ("KAFKA_VERSION", "4.4.0".to_owned()),
        ("SUITE_CONTROL", control.display().to_string()),
        ("SUITE_TOOLS", programs.display().to_string()),
        ("SUITE_LOGS", session.logs().display().to_string()),
        (
            "SUITE_BROKER",
            session.nodes().first().context("no broker")?.clone(),
        ),
    ];
    let environment = environment
        .each_ref()
        .map(|(key, value)| (*key, value.as_str()));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clerk = scope.spawn(|| carry_out(session, &control, &ended));
        let results = go::run(session, PACKAGES, Some(&tests), &environment);
        ended.store(true, Ordering::Release);
        clerk
            .join()
            .map_err(|_| anyhow::anyhow!("nobody carried requests out"))??;
        results
    })
}

/// Starts toxiproxy with a proxy for each node and waits until all of them listen.
fn start_proxies(session: &Session) -> Result<Process> {
    let places: Vec<NodePlace> = SUITE.brokers.places().collect();
    let proxies: Vec<serde_json::Value> = places
        .iter()
        .map(|place| {
            json!({
                "name": format!("kafka{}", place.id),
                "listen": format!("127.0.0.1:{}", proxy_port(place)),
                "upstream": format!("127.0.0.1:{}", proxied_port(place)),
                "enabled": true,
            })
        })
        .collect();
    let file = session.write("proxies.json", &json!(proxies).to_string())?;
    let arguments = [
        "-host".to_owned(),
        "127.0.0.1".to_owned(),
        "-port".to_owned(),
        PROXY_CONTROL.to_string(),
        "-config".to_owned(),
        file.display().to_string(),
    ];
    let log = session.logs().join("toxiproxy.log");
    let mut process = Process::start(
        "toxiproxy",
        &session.prepared().join("toxiproxy"),
        &arguments,
        &log,
        |_| {},
    )?;
    let deadline = Instant::now() + PROXY_PATIENCE;
    let mut ports: BTreeSet<u16> = places.iter().map(proxy_port).collect();
    ports.insert(PROXY_CONTROL);
    while !ports.is_empty() {
        ports.retain(|&port| std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
        ensure!(
            Instant::now() < deadline && process.exited()?.is_none(),
            "no proxies\n{}",
            process.log_tail()
        );
        std::thread::sleep(LOOK);
    }
    Ok(process)
}

/// Writes `docker` and Kafka's tools into a directory of their own.
fn programs(session: &Session) -> Result<PathBuf> {
    let directory = session.work().join("programs");
    std::fs::create_dir_all(&directory)?;
    let put = |name: &str, text: &str| -> Result<()> {
        let path = directory.join(name);
        std::fs::write(&path, text)?;
        let executable = std::fs::Permissions::from_mode(0o755);
        Ok(std::fs::set_permissions(path, executable)?)
    };
    put("docker", DOCKER)?;
    let java = crate::kafka::java_arguments("256m", &crate::kafka::libs()?);
    for (name, class) in TOOLS {
        let words: Vec<String> = java.iter().map(|word| format!("'{word}'")).collect();
        put(
            name,
            &format!("#!/bin/sh\nexec java {} {class} \"$@\"\n", words.join(" ")),
        )?;
    }
    Ok(directory)
}

/// Stops and starts brokers as the tests ask for it, until they have ended; starts again what is stopped then.
fn carry_out(session: &Session, control: &Path, ended: &AtomicBool) -> Result<()> {
    let mut stopped = BTreeSet::new();
    while !ended.load(Ordering::Acquire) {
        for entry in std::fs::read_dir(control)? {
            let request = entry?.path();
            if request.extension().is_none_or(|kind| kind != "request") {
                continue;
            }
            let text = std::fs::read_to_string(&request)?;
            std::fs::remove_file(&request)?;
            let answer = answer(session, &text, &mut stopped);
            let answer = answer.map_or_else(|error| format!("{error:#}"), |()| String::new());
            // Under another name first: it is read once it is there.
            let draft = request.with_extension("draft");
            std::fs::write(&draft, answer)?;
            std::fs::rename(&draft, request.with_extension("answer"))?;
        }
        std::thread::sleep(LOOK);
    }
    for id in stopped {
        session.start_node(id)?;
    }
    Ok(())
}

fn answer(session: &Session, request: &str, stopped: &mut BTreeSet<i32>) -> Result<()> {
    let (verb, id) = request.trim().split_once(' ').context("half a request")?;
    let id: i32 = id.parse().with_context(|| format!("{id} is no broker"))?;
    match verb {
        "stop" if stopped.insert(id) => session.stop_node(id),
        "start" if stopped.remove(&id) => session.start_node(id),
        // As Docker has it: it is done already.
        "stop" | "start" => Ok(()),
        _ => anyhow::bail!("{verb} is not known"),
    }
}
