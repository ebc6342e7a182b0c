//! The example is killed, and so is the broker, again and again; what it has written must be as if nothing had happened.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::groups::committed;
use compat_tests::process::Process;
use compat_tests::requests::{LATEST, create_topic, delete_topic, list_offset, produce_ok};
use compat_tests::server::Server;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use rusqlite::Connection;

const PATIENCE: Duration = Duration::from_secs(90);
const GROUP: &str = "bookkeepers";

/// Sums of accounts.
type Balances = BTreeMap<String, i64>;

/// Where the example runs, and what it writes.
struct Bookkeeper {
    home: tempfile::TempDir,
}

impl Bookkeeper {
    fn new() -> Result<Self> {
        Ok(Self {
            home: tempfile::tempdir()?,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn start(&self, server: &Server, topic: &str) -> Result<Process> {
        let database = self.path("books.sqlite").display().to_string();
        let bootstrap = server.bootstrap();
        let arguments = [&bootstrap, topic, GROUP, "one", &database].map(str::to_owned);
        let program = Path::new(env!("CARGO_BIN_EXE_effects-in-sqlite"));
        Process::start("example", program, &arguments, &self.path("log"), |_| {})
    }

    fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.path("log"))?)
    }

    /// The database, once the example has made it.
    fn books(&self) -> Result<Option<Connection>> {
        let path = self.path("books.sqlite");
        if !path.exists() {
            return Ok(None);
        }
        let books = Connection::open(path)?;
        books.busy_timeout(PATIENCE)?;
        let tables: i64 =
            books.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((tables == 2).then_some(books))
    }

    /// How many records have had their effect.
    fn handled(&self) -> Result<i64> {
        match self.books()? {
            Some(books) => {
                Ok(books.query_row("SELECT count(*) FROM handled", [], |row| row.get(0))?)
            }
            None => Ok(0),
        }
    }

    fn balances(&self) -> Result<Balances> {
        let books = self.books()?.context("no books")?;
        let mut query = books.prepare("SELECT name, balance FROM accounts")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Waits until so many records have had their effect.
    fn until_handled(&self, process: &mut Process, wanted: i64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.handled()? < wanted {
            ensure!(process.exited()?.is_none(), "it ended: {}", self.log()?);
            ensure!(
                Instant::now() < deadline,
                "{} of {wanted}: {}",
                self.handled()?,
                process.log_tail()
            );
            std::thread::sleep(Duration::from_millis(4));
        }
        Ok(())
    }
}

/// Pays until told to stop, with an idempotent producer; what it has paid.
fn pay(bootstrap: &str, topic: &str, stopped: &AtomicBool, seed: u64) -> Result<(i64, Balances)> {
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("enable.idempotence", "true")
        .set("linger.ms", "1")
        .set("message.timeout.ms", "0")
        .create()?;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut paid, mut balances) = (0, Balances::new());
    while !stopped.load(Ordering::Acquire) {
        let account = format!("account-{}", rng.random_range(0..20));
        let amount = rng.random_range(-500..1_000);
        let value = format!("{amount}");
        loop {
            let record = BaseRecord::to(topic).key(&account).payload(&value);
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err((error, _)) => return Err(error.into()),
            }
        }
        *balances.entry(account).or_default() += amount;
        paid += 1;
        std::thread::sleep(Duration::from_micros(rng.random_range(100..1_500)));
    }
    producer.flush(PATIENCE)?;
    Ok((paid, balances))
}

#[test]
fn no_effect_is_missing_or_doubled_however_often_it_and_the_broker_are_killed() -> Result<()> {
    const KILLS: usize = 24;
    const PARTITIONS: i32 = 3;
    let seed: u64 = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    eprintln!("ODRADEK_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut server = Server::start()?;
    let topic = create_topic(&mut server.connect()?, "payments", PARTITIONS, &[])?;
    let stopped = Arc::new(AtomicBool::new(false));
    let (bootstrap, told) = (server.bootstrap(), Arc::clone(&stopped));
    let payer = std::thread::spawn(move || pay(&bootstrap, "payments", &told, seed));
    let bookkeeper = Bookkeeper::new()?;
    for kill in 0..KILLS {
        let mut process = bookkeeper.start(&server, "payments")?;
        bookkeeper.until_handled(&mut process, bookkeeper.handled()? + 1)?;
        let moment = Duration::from_micros(rng.random_range(0..120_000));
        std::thread::sleep(moment);
        match kill % 4 {
            // The broker goes, and the example has to do without it until its own end comes.
            1 => {
                server.process().kill()?;
                std::thread::sleep(moment / 4);
                process.kill()?;
                server.kill_and_restart()?;
            }
            // It outlives the broker and goes on with the next one.
            2 => {
                server.kill_and_restart()?;
                bookkeeper.until_handled(&mut process, bookkeeper.handled()? + 1)?;
                process.kill()?;
            }
            _ => process.kill()?,
        }
    }
    stopped.store(true, Ordering::Release);
    let (paid, balances) = payer.join().ok().context("the payer panicked")??;
    let mut process = bookkeeper.start(&server, "payments")?;
    bookkeeper.until_handled(&mut process, paid)?;
    // And once more from the last committed offsets, in case that it is not at rest.
    let mut wire = server.connect()?;
    let deadline = Instant::now() + PATIENCE;
    for partition in 0..PARTITIONS {
        let end = list_offset(&mut wire, &topic, partition, LATEST)?.offset;
        while committed(&mut wire, GROUP, "payments", partition)?.0 < end {
            ensure!(Instant::now() < deadline, "offsets are not committed");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    process.kill()?;
    assert_eq!(bookkeeper.handled()?, paid, "each record once");
    assert_eq!(bookkeeper.balances()?, balances);
    let log = bookkeeper.log()?;
    let again: usize = log
        .lines()
        .filter_map(|line| line.strip_suffix(" again")?.rsplit(' ').next())
        .filter_map(|count| count.parse::<usize>().ok())
        .sum();
    eprintln!("{paid} records, {again} of them came again");
    ensure!(again > 0, "no kill hit the moment that matters");
    Ok(())
}

#[test]
fn a_topic_made_again_has_its_effects_and_nonsense_stops_nothing() -> Result<()> {
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let bookkeeper = Bookkeeper::new()?;
    for round in 1..=2 {
        let topic = create_topic(&mut wire, "again", 1, &[])?;
        let records = vec![
            RecordSpec::keyed("a", "5"),
            RecordSpec::value("7"),
            RecordSpec::keyed("a", "much"),
            RecordSpec::keyed("b", "-3"),
        ];
        produce_ok(&mut wire, &topic, 0, BatchSpec::of(records).build()?)?;
        let mut process = bookkeeper.start(&server, "again")?;
        bookkeeper.until_handled(&mut process, 4 * round)?;
        process.kill()?;
        let expected = [("a", 5 * round), ("b", -3 * round)];
        let expected = expected.map(|(name, balance)| (name.to_owned(), balance));
        assert_eq!(bookkeeper.balances()?, Balances::from(expected));
        delete_topic(&mut wire, "again")?;
    }
    Ok(())
}
