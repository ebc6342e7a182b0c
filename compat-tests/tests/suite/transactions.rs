//! Transactions with real clients and tools: librdkafka's producer, Kafka's copier, `kafka-transactions`,
//! `kafka-dump-log`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use compat_tests::batches::{BatchSpec, RecordSpec};
use compat_tests::groups::{committed, coordinator_is_up};
use compat_tests::kafka;
use compat_tests::requests::{create_topic, produce_ok};
use compat_tests::server::Server;
use compat_tests::transactions::{TxnProducer, latest_stable, read_committed};
use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use super::dump_log::{dump, files_ending_in};

const NOW: i64 = 1_700_000_000_000;

#[test]
fn kafka_transactions_lists_describes_and_aborts_what_hangs() -> Result<()> {
    let server = Server::with(&[("transaction.partition.verification.enable", "false")])?;
    let bootstrap = server.bootstrap();
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "hanging", 1, &[])?;
    let mine = TxnProducer::init(&mut wire, "tool-txn")?;
    let tool = |arguments: &[&str]| {
        let all = [&["--bootstrap-server", bootstrap.as_str()][..], arguments].concat();
        kafka::TRANSACTIONS.succeed(&all, "")
    };
    mine.add(&mut wire, "hanging", &[0])?;
    let listed = tool(&["list"])?;
    ensure!(
        listed.contains("tool-txn") && listed.contains("Ongoing"),
        "{listed}"
    );
    let described = tool(&["describe", "--transactional-id", "tool-txn"])?;
    ensure!(described.contains("hanging-0"), "{described}");
    mine.end(&mut wire, 4, true)?;
    // Without verification a late batch begins a transaction that nobody knows of.
    mine.produce(&mut wire, 11, &topic, 0, mine.batch(0, 1, NOW)?)?;
    let stuck = latest_stable(&mut wire, &topic)?;
    let producers = tool(&[
        "describe-producers",
        "--topic",
        "hanging",
        "--partition",
        "0",
    ])?;
    ensure!(
        producers.contains(&mine.producer_id.to_string()),
        "{producers}"
    );
    let start = stuck.to_string();
    tool(&[
        "abort",
        "--topic",
        "hanging",
        "--partition",
        "0",
        "--start-offset",
        &start,
    ])?;
    assert_eq!(latest_stable(&mut wire, &topic)?, stuck + 2);
    let hanging = tool(&["find-hanging", "--broker-id", "1"])?;
    ensure!(!hanging.contains("hanging"), "{hanging}");
    Ok(())
}

#[test]
fn kafka_dump_log_reads_the_state_of_transactions_and_their_markers() -> Result<()> {
    let mut server = Server::start()?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "dumped", 1, &[])?;
    coordinator_is_up(&mut wire, "dumped")?;
    let mut mine = TxnProducer::init(&mut wire, "dumped-txn")?;
    for (round, committed) in [true, false, true].into_iter().enumerate() {
        mine.produce(&mut wire, 12, &topic, 0, mine.batch(0, 2, NOW)?)?;
        mine.commit(&mut wire, 5, "dumped", ("dumped", 0), round as i64)?;
        mine = mine.end(&mut wire, 5, committed)?;
    }
    drop(wire);
    server.process().terminate(Duration::from_secs(60))?;
    let files = files_ending_in(server.data_dir(), ".log")?;
    let of = |topic: &str| -> Vec<_> {
        let is_of = |file: &&std::path::PathBuf| file.to_string_lossy().contains(topic);
        files.iter().filter(is_of).cloned().collect()
    };
    let state = dump(&["--transaction-log-decoder"], &of("__transaction_state"))?;
    for part in ["dumped-txn", "producerEpoch", "transactionStatus"] {
        ensure!(state.contains(part), "no {part} in {state}");
    }
    let data = dump(&["--print-data-log"], &of("/dumped-"))?;
    for part in [
        "endTxnMarker: COMMIT",
        "endTxnMarker: ABORT",
        "isTransactional: true",
    ] {
        ensure!(data.contains(part), "no {part} in {data}");
    }
    let offsets = dump(&["--offsets-decoder"], &of("__consumer_offsets"))?;
    ensure!(offsets.contains("endTxnMarker: COMMIT"), "{offsets}");
    let index = files_ending_in(server.data_dir(), ".txnindex")?;
    ensure!(!index.is_empty(), "no index of the aborted transaction");
    dump(&[], &index)?;
    Ok(())
}

#[test]
fn a_transactional_producer_of_librdkafka_commits_aborts_and_is_fenced() -> Result<()> {
    let server = Server::start()?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "rd", 2, &[])?;
    let producer = || -> Result<FutureProducer> {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", server.bootstrap())
            .set("transactional.id", "rd-txn")
            .set("linger.ms", "1")
            .create()?;
        producer.init_transactions(Duration::from_secs(30))?;
        Ok(producer)
    };
    let send = |producer: &FutureProducer, value: &str| -> Result<()> {
        for partition in 0..2 {
            let record = FutureRecord::<str, str>::to("rd")
                .payload(value)
                .partition(partition);
            producer
                .send_result(record)
                .map_err(|(error, _)| error)
                .map(drop)?;
        }
        Ok(())
    };
    let old = producer()?;
    for round in 0..20 {
        old.begin_transaction()?;
        send(&old, &format!("{round}"))?;
        match round % 2 {
            0 => old.commit_transaction(Duration::from_secs(30))?,
            _ => old.abort_transaction(Duration::from_secs(30))?,
        }
    }
    old.begin_transaction()?;
    send(&old, "fenced")?;
    let new = producer()?;
    new.begin_transaction()?;
    send(&new, "new")?;
    new.commit_transaction(Duration::from_secs(30))?;
    let fenced = old.commit_transaction(Duration::from_secs(30));
    ensure!(
        matches!(&fenced, Err(KafkaError::Transaction(error)) if error.is_fatal()
            || error.code() == RDKafkaErrorCode::Fenced),
        "{fenced:?}"
    );
    let expected: Vec<String> = (0..20)
        .step_by(2)
        .map(|round| round.to_string())
        .chain(["new".to_owned()])
        .collect();
    for values in read_committed(&server.bootstrap(), "rd", 2)? {
        assert_eq!(values, expected);
    }
    Ok(())
}

/// Kafka's own copier reads, writes and commits its offsets in transactions, aborts some of them at random, and is
/// killed and started again.
#[test]
fn kafkas_copier_copies_every_message_once_however_often_it_is_killed() -> Result<()> {
    const MESSAGES: usize = 3_000;
    let server = Server::start()?;
    let mut wire = server.connect()?;
    let input = create_topic(&mut wire, "copied-from", 1, &[])?;
    create_topic(&mut wire, "copied-to", 1, &[])?;
    coordinator_is_up(&mut wire, "copier")?;
    for first in (0..MESSAGES).step_by(500) {
        let records = (first..first + 500)
            .map(|number| RecordSpec::value(format!("{number}")))
            .collect();
        produce_ok(&mut wire, &input, 0, BatchSpec::of(records).build()?)?;
    }
    let bootstrap = server.bootstrap();
    let arguments = [
        "--broker-list",
        &bootstrap,
        "--input-topic",
        "copied-from",
        "--input-partition",
        "0",
        "--output-topic",
        "copied-to",
        "--consumer-group",
        "copier",
        "--transactional-id",
        "copier",
        "--transaction-size",
        "50",
        "--enable-random-aborts",
        "--use-group-metadata",
        // It asks for its position, for which it waits 60 s, before it initializes its producer. If the one before
        // was killed with an offset staged, only the timeout of that transaction ends it, which is 60 s too.
        "--transaction-timeout",
        "20000",
    ];
    let log = tempfile::NamedTempFile::new()?;
    for seconds in [3, 4, 3] {
        let mut copier = kafka::TRANSACTIONAL_MESSAGE_COPIER.start(&arguments, log.path())?;
        std::thread::sleep(Duration::from_secs(seconds));
        copier.kill()?;
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while committed(&mut wire, "copier", "copied-from", 0)?.0 < MESSAGES as i64 {
        ensure!(Instant::now() < deadline, "not everything is copied");
        kafka::TRANSACTIONAL_MESSAGE_COPIER.succeed(&arguments, "")?;
    }
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    let copied = &read_committed(&bootstrap, "copied-to", 1)?[0];
    ensure!(*copied == expected, "{} messages were copied", copied.len());
    Ok(())
}
