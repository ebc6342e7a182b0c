//! Kafka's own reader of log directories finds nothing wrong with what a busy broker left on disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use compat_tests::batches::{BatchSpec, Codec, RecordSpec};
use compat_tests::groups::{Member, committed};
use compat_tests::kafka::DUMP_LOG;
use compat_tests::requests::{create_topic, init_producer_id, produce_ok};
use compat_tests::server::Server;
use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};

/// All but LZ4 with linked blocks, which Kafka itself cannot read.
const CODECS: [Codec; 6] = [
    Codec::None,
    Codec::Gzip,
    Codec::SnappyRaw,
    Codec::SnappyXerial,
    Codec::Lz4,
    Codec::Zstd,
];

pub(super) fn files_ending_in(data_dir: &Path, suffix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in std::fs::read_dir(data_dir)? {
        let directory = directory?.path();
        if directory.is_dir() {
            for file in std::fs::read_dir(directory)? {
                let file = file?.path();
                if file.to_string_lossy().ends_with(suffix) {
                    found.push(file);
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn dump(flags: &[&str], files: &[PathBuf]) -> Result<String> {
    let list = files
        .iter()
        .map(|file| file.display().to_string())
        .collect::<Vec<_>>()
        .join(",");
    let arguments: Vec<&str> = flags.iter().copied().chain(["--files", &list]).collect();
    let output = DUMP_LOG.run(&arguments, "")?;
    ensure!(output.success, "{}", output.both());
    for complaint in [
        "isvalid: false",
        "Mismatches in",
        "Found timestamp mismatch",
        "Exception",
        "corrupt",
        "failed",
    ] {
        ensure!(
            !output.both().contains(complaint),
            "{complaint}: {}",
            output.both()
        );
    }
    Ok(output.both())
}

/// Several segments, every codec, idempotent producers, a group, moved log starts, and clean restarts in between.
#[test]
fn every_file_of_a_busy_broker_is_read_without_complaint() -> Result<()> {
    // The metadata is written down at once, and its log may go.
    let mut server = Server::with(&[("metadata.log.max.snapshot.interval.ms", "500")])?;
    let mut now = 1_790_000_000_000;
    let mut records = 0;
    let config = [
        ("segment.bytes", "1048576"),
        ("index.interval.bytes", "4096"),
        ("max.message.bytes", "4194304"),
    ];
    let topic = create_topic(&mut server.connect()?, "busy", 2, &config)?;
    for round in 0..3 {
        let mut wire = server.connect()?;
        let (id, epoch) = init_producer_id(&mut wire)?;
        let mut sequence = 0;
        for step in 0..60 {
            now += 1000;
            let codec = CODECS[step % CODECS.len()];
            let noise = |i: usize| -> Vec<u8> {
                (0..2000)
                    .map(|j| ((i * 7919 + j * j * 31 + step * 131) >> 3) as u8)
                    .collect()
            };
            let batch = BatchSpec::of(
                (0..15)
                    .map(|i| RecordSpec::keyed(format!("k{i}"), noise(i)).at(now))
                    .collect(),
            );
            produce_ok(&mut wire, &topic, 0, batch.compressed(codec).build()?)?;
            records += 15;
            let batch = BatchSpec::small(3, now).from_producer(id, epoch, sequence);
            produce_ok(&mut wire, &topic, 1, batch.build()?)?;
            sequence += 3;
        }
        let mut member = Member::join(server.address(), "busy-group", "range")?;
        member.sync(&[(&member.id.clone(), b"all")])?;
        assert_eq!(
            member.commit(&[("busy", 0, records), ("busy", 1, 3)])?,
            [0, 0]
        );
        if round == 1 {
            let row = DeleteRecordsPartition::default()
                .with_partition_index(0)
                .with_offset(100);
            let rows = DeleteRecordsTopic::default()
                .with_name(topic.name())
                .with_partitions(vec![row]);
            let request = DeleteRecordsRequest::default()
                .with_topics(vec![rows])
                .with_timeout_ms(10_000);
            wire.call(2, &request)?;
        }
        member.leave()?;
        server.restart()?;
    }
    assert_eq!(
        committed(&mut server.connect()?, "busy-group", "busy", 0)?.0,
        records
    );
    let data_dir = server.data_dir().to_owned();
    // Written in the background, some time after the metadata has changed.
    let deadline = Instant::now() + Duration::from_secs(30);
    while files_ending_in(&data_dir, ".checkpoint")?.is_empty() {
        ensure!(
            Instant::now() < deadline,
            "the metadata was not written down"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    server.process().terminate(Duration::from_secs(60))?;

    let logs = files_ending_in(&data_dir, ".log")?;
    let of = |name: &str| -> Vec<PathBuf> {
        let directory = data_dir.join(name);
        logs.iter()
            .filter(|file| file.starts_with(&directory))
            .cloned()
            .collect()
    };
    ensure!(of("busy-0").len() >= 3, "one segment only: {logs:?}");
    let deep = dump(&["--deep-iteration"], &logs)?;
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        ensure!(
            deep.contains(&format!("compresscodec: {codec}")),
            "no {codec} in the log"
        );
    }
    ensure!(
        deep.matches("| offset:").count() >= usize::try_from(records)?,
        "records are missing"
    );

    let mut indexes = files_ending_in(&data_dir, ".index")?;
    indexes.extend(files_ending_in(&data_dir, ".timeindex")?);
    let sane = dump(&["--index-sanity-check"], &indexes)?;
    let checked = sane.matches("passed sanity check").count() + sane.matches("is empty.").count();
    assert_eq!(checked, indexes.len(), "{sane}");
    dump(&["--verify-index-only"], &indexes)?;

    let others: Vec<_> = [".snapshot", ".txnindex"]
        .iter()
        .map(|s| files_ending_in(&data_dir, s))
        .collect::<Result<_>>()?;
    let others: Vec<PathBuf> = others.into_iter().flatten().collect();
    ensure!(!others.is_empty(), "no producer snapshot");
    ensure!(
        dump(&[], &others)?.contains("producerId: "),
        "no producer in any snapshot"
    );

    let offsets: Vec<PathBuf> = (0..4)
        .flat_map(|index| of(&format!("__consumer_offsets-{index}")))
        .collect();
    let decoded = dump(&["--offsets-decoder"], &offsets)?;
    ensure!(decoded.contains("busy-group"), "{decoded}");
    ensure!(
        decoded.contains(&format!("\"offset\":{records}")),
        "{decoded}"
    );
    let checkpoints = files_ending_in(&data_dir, ".checkpoint")?;
    ensure!(!checkpoints.is_empty(), "the metadata was not written down");
    let mut metadata = of("__cluster_metadata-0");
    metadata.extend(checkpoints);
    let metadata = dump(&["--cluster-metadata-decoder"], &metadata)?;
    ensure!(
        metadata.contains("SnapshotHeader") && metadata.contains("SnapshotFooter"),
        "{metadata}"
    );
    ensure!(
        metadata.contains("TOPIC_RECORD") && metadata.contains("\"name\":\"busy\""),
        "{metadata}"
    );
    ensure!(
        metadata.contains("PARTITION_RECORD") && metadata.contains("CONFIG_RECORD"),
        "{metadata}"
    );
    Ok(())
}
