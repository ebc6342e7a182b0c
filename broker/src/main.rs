//! The command line, and the life of the process around a broker.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use odradek::broker::Broker;
use odradek::config::load::{self, Loaded};
use odradek::data_dirs::DataDirs;
use odradek::{descriptors, log_levels};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Most threads that wait for disks: opening logs, reading what is not in memory.
const BLOCKING_THREADS: usize = 128;
/// How long such a thread stays when there is nothing to do.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(2);

/// A Kafka-compatible broker.
///
/// Without a command it starts a node of one on 127.0.0.1:9092 with its data under ./odradek-data.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a broker.
    Start(Start),
}

#[derive(Args, Default)]
struct Start {
    /// Settings, in the syntax of Kafka's server.properties.
    file: Option<PathBuf>,
    /// A setting that counts before the file; may be repeated.
    #[arg(long = "override", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

fn main() -> ExitCode {
    let start = match Cli::parse().command {
        Some(Command::Start(start)) => start,
        None => Start::default(),
    };
    match run(&start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("odradek: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(start: &Start) -> anyhow::Result<()> {
    let loaded = load::load(start.file.as_deref(), &start.overrides)?;
    init_logging(loaded.config.log_as_json);
    descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("odradek")
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .build()
        .context("the runtime cannot be started")?;
    let served = runtime.block_on(serve(loaded));
    // Whatever a thread still waits for at a disk, nobody waits for it any more.
    runtime.shutdown_background();
    served
}

async fn serve(loaded: Loaded) -> anyhow::Result<()> {
    // Before anything else, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    if !loaded.without_effect.is_empty() {
        tracing::warn!(
            keys = loaded.without_effect.join(", "),
            "these keys of Kafka have no effect here"
        );
    }
    let broker = tokio::select! {
        broker = Broker::start(loaded) => broker?,
        // Logs that are being looked through are looked through again at the next start.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    // Whoever started it may not want to read it.
    let _ = writeln!(std::io::stdout(), "{}", start_line(&broker));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        cause = broker.until_useless() => {
            anyhow::bail!("no log directory is left, or none with the metadata; other nodes take over: {cause}")
        }
    }
    tracing::info!("stopping");
    tokio::select! {
        () = broker.stop() => tracing::info!("stopped"),
        // Whoever asks twice does not want to wait; the data survives that as it survives kill -9.
        _ = terminate.recv() => anyhow::bail!("stopped at once at the second signal"),
        _ = interrupt.recv() => anyhow::bail!("stopped at once at the second signal"),
    }
    Ok(())
}

/// Where it listens, where the data is, and how to try it.
fn start_line(broker: &Broker) -> String {
    let http = broker
        .http_address()
        .map(|address| format!(", metrics on http://{address}/metrics"))
        .unwrap_or_default();
    let try_it = broker
        .context()
        .endpoints
        .first()
        .map(|endpoint| format!("; try: kcat -b {}:{} -L", endpoint.host, endpoint.port))
        .unwrap_or_default();
    format!(
        "odradek {} listens on {}, data in {}{http}{try_it}",
        env!("CARGO_PKG_VERSION"),
        broker.listening().join(", "),
        shown(broker.data_dir()),
    )
}

fn shown(data_dirs: &DataDirs) -> String {
    let paths: Vec<_> = data_dirs
        .paths()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

fn init_logging(as_json: bool) {
    let chosen = std::env::var("RUST_LOG").ok();
    let filter = chosen
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(default_filter);
    let (filter_now, handle) = reload::Layer::new(filter.clone());
    log_levels::of_process().begin_with(&filter, move |targets| {
        if let Err(error) = handle.reload(targets) {
            tracing::error!(%error, "log levels cannot be changed");
        }
    });
    let filtered = tracing_subscriber::registry().with(filter_now);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    if as_json {
        filtered.with(lines.json()).init();
    } else {
        let to_a_person = std::io::IsTerminal::is_terminal(&std::io::stderr());
        filtered.with(lines.with_ansi(to_a_person)).init();
    }
}

/// What is logged without RUST_LOG: the Raft library tells of every election and every group.
fn default_filter() -> Targets {
    Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("openraft", LevelFilter::ERROR)
}
