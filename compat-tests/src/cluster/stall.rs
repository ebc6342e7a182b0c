//! How long a client waits when the leader of its partition fails.
//!
//! One client sends one record after the other to one partition with `acks=all`, idempotently, and turns to another
//! node when an answer takes longer than `ANSWER_PATIENCE` or is an error. The stall of a round is the longest time
//! between two acknowledgements around the fault.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::clients::{BACKOFF, Router, create_topic};
use super::faults::{Fault, Nemesis, Target};
use super::{Cluster, ClusterOptions, Product};
use crate::batches::{BatchSpec, RecordSpec};
use crate::requests::{Topic, init_producer_id, produce};
use crate::wire::Wire;

/// How long the client waits for one answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Between two records.
const PACE: Duration = Duration::from_millis(5);
/// The client is watched this long after the fault at least.
const WATCHED: Duration = Duration::from_secs(3);
/// A round is over once acknowledgements have come for this long.
const STEADY: Duration = Duration::from_millis(1_500);
/// No client waits longer.
const ROUND_PATIENCE: Duration = Duration::from_secs(120);
const HEALING_PATIENCE: Duration = Duration::from_secs(120);

/// How the leader fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Killed with SIGKILL, and started again after the round.
    Kill,
    /// Stopped with SIGSTOP for the round.
    Pause,
    /// Cut off from the other nodes; the client still reaches it.
    Isolation,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kill, Self::Pause, Self::Isolation];

    fn fault(self) -> Fault {
        let leader = Target::Leader(0);
        match self {
            Self::Kill => Fault::Kill(vec![leader]),
            Self::Pause => Fault::Pause(leader),
            Self::Isolation => Fault::Isolate(leader),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill −9",
            Self::Pause => "SIGSTOP",
            Self::Isolation => "isolation from the other nodes",
        })
    }
}

/// The stalls of one kind of failure, in the order of rounds.
#[derive(Clone, Debug)]
pub struct Stalls {
    /// Whose cluster it was.
    pub product: Product,
    /// What happened.
    pub failure: Failure,
    /// How long the client waited in each round.
    pub stalls: Vec<Duration>,
}

impl Stalls {
    /// The middle one; of an even number, the larger of the two.
    pub fn median(&self) -> Duration {
        let mut sorted = self.stalls.clone();
        sorted.sort();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    /// The longest.
    pub fn worst(&self) -> Duration {
        self.stalls.iter().max().copied().unwrap_or_default()
    }
}

/// Lets the leader fail so many times in each way and measures the stalls.
pub fn measure(
    product: Product,
    options: ClusterOptions,
    failures: &[Failure],
    rounds: usize,
) -> Result<Vec<Stalls>> {
    let mut cluster = options.start()?;
    let addresses = cluster.addresses();
    let topic = create_topic(&addresses, "stall", 1, 3, &[])?;
    let mut all = Vec::new();
    for &failure in failures {
        let mut stalls = Vec::new();
        for round in 0..rounds {
            cluster.await_in_sync(HEALING_PATIENCE)?;
            let stall = one_round(&mut cluster, &topic, failure)
                .with_context(|| format!("{failure}, round {round}"))?;
            eprintln!(
                "  {}, {failure}, round {round}: {:.0} ms",
                product.name(),
                stall.as_secs_f64() * 1e3
            );
            stalls.push(stall);
            cluster.make_whole(HEALING_PATIENCE)?;
        }
        all.push(Stalls {
            product,
            failure,
            stalls,
        });
    }
    cluster.terminate()?;
    Ok(all)
}

/// One failure of the leader under a client; how long it waited.
pub fn one_round(cluster: &mut Cluster, topic: &Topic, failure: Failure) -> Result<Duration> {
    let mut nemesis = Nemesis::new(cluster, topic, &[], 0);
    let mut client = Client::new(cluster, topic)?;
    // Connections and caches are warm before the fault.
    let warm = Instant::now() + Duration::from_millis(700);
    while Instant::now() < warm {
        client.step();
    }
    ensure!(
        client.last.is_some(),
        "nothing is acknowledged before the fault"
    );
    client.longest = Duration::ZERO;
    let ongoing = std::thread::scope(|scope| {
        let fault = scope.spawn(|| nemesis.begin(cluster, &failure.fault()));
        let begun = Instant::now();
        loop {
            client.step();
            let steady = client
                .steady_since
                .is_some_and(|since| since.elapsed() > STEADY);
            if (steady && begun.elapsed() > WATCHED) || begun.elapsed() > ROUND_PATIENCE {
                break;
            }
        }
        fault
            .join()
            .map_err(|_| anyhow::anyhow!("the fault panicked"))?
    })?;
    ensure!(
        client.steady_since.is_some(),
        "nothing is acknowledged {ROUND_PATIENCE:?} after the fault"
    );
    nemesis.end(cluster, &ongoing)?;
    Ok(client.longest)
}

struct Client {
    topic: Topic,
    router: Router,
    wire: Option<Wire>,
    identity: (i64, i16),
    next_sequence: i32,
    last: Option<Instant>,
    steady_since: Option<Instant>,
    longest: Duration,
}

impl Client {
    fn new(cluster: &Cluster, topic: &Topic) -> Result<Self> {
        let addresses = cluster.addresses();
        let deadline = Instant::now() + HEALING_PATIENCE;
        let mut next = 0;
        let identity = loop {
            let address = addresses[next % addresses.len()];
            next += 1;
            let identity = Wire::connect_within(address, ANSWER_PATIENCE)
                .and_then(|mut wire| init_producer_id(&mut wire));
            match identity {
                Ok(identity) => break identity,
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(BACKOFF),
            }
        };
        Ok(Self {
            topic: topic.clone(),
            router: Router::new(&addresses, topic, 0),
            wire: None,
            identity,
            next_sequence: 0,
            last: None,
            steady_since: None,
            longest: Duration::ZERO,
        })
    }

    /// Sends the next record, or the one before again.
    fn step(&mut self) {
        match self.send() {
            Ok(()) => {
                let now = Instant::now();
                if let Some(last) = self.last {
                    self.longest = self.longest.max(now - last);
                }
                self.last = Some(now);
                self.steady_since.get_or_insert(now);
                self.next_sequence += 1;
                std::thread::sleep(PACE);
            }
            Err(_) => {
                self.wire = None;
                self.steady_since = None;
                std::thread::sleep(BACKOFF);
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        let wire = match &mut self.wire {
            Some(wire) => wire,
            none => none.insert(self.router.connect(0, ANSWER_PATIENCE)?),
        };
        let (id, epoch) = self.identity;
        let batch = BatchSpec::of(vec![RecordSpec::value("stall")])
            .from_producer(id, epoch, self.next_sequence)
            .build()?;
        let answer = produce(wire, &self.topic, 0, batch)?;
        // A duplicate was written when it was sent before.
        ensure!(
            matches!(answer.error_code, 0 | 46),
            "produce: error {}",
            answer.error_code
        );
        Ok(())
    }
}

/// The table for the docs: a row a failure, median and worst of each product.
pub fn markdown(all: &[Stalls]) -> String {
    let mut out = String::from("| the leader's failure |");
    let mut products: Vec<Product> = Vec::new();
    for stalls in all {
        if !products.contains(&stalls.product) {
            products.push(stalls.product);
        }
    }
    for product in &products {
        let name = product.name();
        out.push_str(&format!(" {name}, median | {name}, worst | rounds |"));
    }
    out.push_str("\n|---|");
    out.push_str(&"---|---|---|".repeat(products.len()));
    out.push('\n');
    for failure in Failure::ALL {
        let of = |product| {
            all.iter()
                .find(|stalls| stalls.failure == failure && stalls.product == product)
        };
        if !products.iter().any(|&product| of(product).is_some()) {
            continue;
        }
        out.push_str(&format!("| {failure} |"));
        for &product in &products {
            match of(product) {
                Some(stalls) => out.push_str(&format!(
                    " {:.2} s | {:.2} s | {} |",
                    stalls.median().as_secs_f64(),
                    stalls.worst().as_secs_f64(),
                    stalls.stalls.len()
                )),
                None => out.push_str(" – | – | – |"),
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_a_failure_and_columns_a_product() {
        let stalls = |product, failure, millis: &[u64]| Stalls {
            product,
            failure,
            stalls: millis.iter().map(|&ms| Duration::from_millis(ms)).collect(),
        };
        let table = markdown(&[
            stalls(Product::Odradek, Failure::Kill, &[500, 700, 600]),
            stalls(Product::Kafka, Failure::Kill, &[9_000]),
            stalls(Product::Kafka, Failure::Pause, &[10_000]),
        ]);
        assert!(
            table.contains("| kill −9 | 0.60 s | 0.70 s | 3 | 9.00 s | 9.00 s | 1 |"),
            "{table}"
        );
        assert!(
            table.contains("| SIGSTOP | – | – | – | 10.00 s | 10.00 s | 1 |"),
            "{table}"
        );
    }
}
