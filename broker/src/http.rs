//! The operator's HTTP endpoint: metrics, liveness, readiness. Plain HTTP without authentication, on
//! an address that the operator chooses; off unless one is set.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::data_metrics;
use crate::fetch_service::FetchService;
use crate::http_connections::BoundedListener;
use crate::memory::MemoryBudget;
use crate::metrics::{self, REQUEST_DURATION, REQUEST_DURATION_BUCKETS};
use crate::partitions::PartitionManager;
use crate::partitions::log_dir::LogDirectories;
use crate::peer::{self, Peers};
use crate::telemetry::{self, Telemetry};
use crate::{coordinator, groups, txn};

/// Most connections of the endpoint.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection may go on without taking a byte of an answer: time to send a request, to be
/// silent after one, and to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often recorded durations are folded into their histograms when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why the endpoint cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address is taken or is none of ours.
    #[error("odradek.http.listener {host}:{port} cannot be bound: {cause}")]
    Bind {
        /// Host of the configuration.
        host: String,
        /// Port of the configuration.
        port: u16,
        /// What the system says.
        cause: io::Error,
    },
    /// The process already has another recorder of metrics.
    #[error("metrics cannot be recorded: {0}")]
    Recorder(#[from] BuildError),
}

/// How the process is.
#[derive(Debug)]
pub struct Health {
    ready: AtomicBool,
    directories: Arc<LogDirectories>,
}

impl Health {
    /// Of a process whose data is in these directories and that serves nobody yet.
    pub fn new(directories: Arc<LogDirectories>) -> Self {
        Self {
            ready: AtomicBool::new(false),
            directories,
        }
    }

    /// Says whether clients are served.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }
}

/// Starts to record metrics in this process. At most once a process.
pub fn install_recorder() -> Result<PrometheusHandle, HttpError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full(REQUEST_DURATION.to_owned()),
            REQUEST_DURATION_BUCKETS,
        )?
        .install_recorder()?;
    metrics::describe();
    data_metrics::describe();
    coordinator::metrics::describe();
    groups::metrics::describe();
    txn::metrics::describe();
    peer::metrics::describe();
    telemetry::metrics::describe();
    Ok(handle)
}

/// The endpoint while it is served; dropping it ends that.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    data_path: Arc<OnceLock<DataPath>>,
    peers: Arc<OnceLock<Arc<Peers>>>,
    telemetry: Arc<OnceLock<Arc<Telemetry>>>,
    tasks: [JoinHandle<()>; 2],
}

impl HttpServer {
    /// Serves on `host:port`. Port 0 lets the system choose.
    pub async fn start(
        (host, port): (String, u16),
        recorder: PrometheusHandle,
        health: Arc<Health>,
        budget: Arc<MemoryBudget>,
    ) -> Result<Self, HttpError> {
        let bind = async {
            let listener = TcpListener::bind((host.as_str(), port)).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            bind.await
                .map_err(|cause| HttpError::Bind { host, port, cause })?;
        let listener = BoundedListener::new(listener, MAX_CONNECTIONS, PATIENCE);
        let upkeep = recorder.clone();
        let data_path = Arc::default();
        let peers = Arc::default();
        let telemetry = Arc::default();
        let shared = Arc::new(Shared {
            data_path: Arc::clone(&data_path),
            peers: Arc::clone(&peers),
            telemetry: Arc::clone(&telemetry),
            recorder,
            health,
            budget,
        });
        let router = Router::new()
            .route("/metrics", get(scrape))
            .route("/healthz", get(healthz))
            .route("/readyz", get(readyz))
            .with_state(shared);
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the HTTP endpoint has ended");
            }
        });
        let folding = tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        Ok(Self {
            address,
            data_path,
            peers,
            telemetry,
            tasks: [serving, folding],
        })
    }

    /// Has what these know brought up to date at every scrape. The endpoint is served before they
    /// exist; the first call counts.
    pub fn observe(&self, partitions: Arc<PartitionManager>, fetch: Arc<FetchService>) {
        let _ = self.data_path.set(DataPath { partitions, fetch });
    }

    /// The same for the connections between nodes, where there are other nodes.
    pub fn observe_peers(&self, peers: Arc<Peers>) {
        let _ = self.peers.set(peers);
    }

    /// Has what clients have pushed shown beside the broker's own metrics.
    pub fn observe_telemetry(&self, telemetry: Arc<Telemetry>) {
        let _ = self.telemetry.set(telemetry);
    }

    /// The real address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// What is asked at every scrape.
#[derive(Debug)]
struct DataPath {
    partitions: Arc<PartitionManager>,
    fetch: Arc<FetchService>,
}

struct Shared {
    data_path: Arc<OnceLock<DataPath>>,
    peers: Arc<OnceLock<Arc<Peers>>>,
    telemetry: Arc<OnceLock<Arc<Telemetry>>>,
    recorder: PrometheusHandle,
    health: Arc<Health>,
    budget: Arc<MemoryBudget>,
}

async fn scrape(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    metrics::observe(&shared.budget);
    if let Some(data_path) = shared.data_path.get() {
        data_path.partitions.observe();
        data_path.fetch.observe();
    }
    if let Some(peers) = shared.peers.get() {
        peer::metrics::observe(peers);
    }
    let of_clients = shared.telemetry.get().map(|telemetry| telemetry.page());
    let mut page = shared.recorder.render();
    page.push_str(&of_clients.unwrap_or_default());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page)
}

/// Whether the process is worth keeping.
async fn healthz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    if shared.health.directories.failure().is_some() {
        (StatusCode::SERVICE_UNAVAILABLE, "log directory offline\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

/// Whether clients are served.
async fn readyz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let health = &shared.health;
    if health.ready.load(Ordering::Relaxed) && health.directories.failure().is_none() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

#[cfg(test)]
mod tests {
    use odradek_storage::LogDirHealth;

    use super::*;
    use crate::partitions::log_dir::LogDirectory;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("text");
        response
    }

    #[tokio::test]
    async fn metrics_health_and_readiness_are_served() {
        let recorder = install_recorder().expect("the only test that records");
        let log_dir = LogDirHealth::new("data");
        let directory = LogDirectory::new(Arc::clone(&log_dir));
        let directories = LogDirectories::new(vec![directory], Arc::clone(&log_dir));
        let health = Arc::new(Health::new(directories));
        let budget = MemoryBudget::new(1 << 20, 1 << 20);
        let server = HttpServer::start(
            ("127.0.0.1".to_owned(), 0),
            recorder,
            Arc::clone(&health),
            Arc::clone(&budget),
        )
        .await
        .expect("port 0 is free");
        let counted = metrics::ServerMetrics::new();
        counted.request_done(
            odradek_protocol::api::ApiKey::Metadata,
            std::time::Instant::now(),
        );
        let _held = budget.reserve(1_000).await;

        let address = server.address();
        let ok = "HTTP/1.1 200";
        assert!(get(address, "/healthz").await.starts_with(ok));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        health.set_ready(true);
        assert!(get(address, "/readyz").await.starts_with(ok));
        let metrics = get(address, "/metrics").await;
        for expected in [
            "odradek_requests_total{api=\"Metadata\"} 1",
            "odradek_request_duration_seconds_bucket{api=\"Metadata\",le=\"+Inf\"} 1",
            "odradek_memory_requests_bytes 1000",
            "odradek_process_resident_bytes",
            "# HELP odradek_network_sent_bytes_total",
        ] {
            assert!(
                metrics.contains(expected),
                "{expected} is not in\n{metrics}"
            );
        }
        log_dir.fail(&"a sync failed");
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 503"));
        assert!(get(address, "/elsewhere").await.starts_with("HTTP/1.1 404"));
    }
}
