//! Takes the effect of every record into SQLite exactly once, though records are delivered at least once.
//!
//! A record moves money: its key names an account, its value says how much is added. The effect and the record's
//! identity, which is topic id, partition and offset, are written in one transaction of SQLite; only then is the offset
//! committed to the broker. Wherever the process, the broker or the machine stops in between, the record comes again,
//! and its identity says that it has been dealt with.
//!
//! Invariants: an effect is in the database if and only if the record's identity is; an offset is committed only when
//! every record below it is in the database, and durable there.
//!
//! `docs/EXACTLY-ONCE.md` explains it. Run it with
//! `cargo run -p effects-in-sqlite -- 127.0.0.1:9092 TOPIC GROUP INSTANCE DATABASE`.

mod records;
mod store;
mod topic_ids;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use records::{Rebalances, Record, Records};
use store::Store;

/// How long to wait for a first record.
const PATIENCE: Duration = Duration::from_millis(500);

struct Options {
    bootstrap: String,
    topic: String,
    group: String,
    instance: String,
    database: String,
}

impl Options {
    fn from_arguments() -> Result<Self> {
        let mut arguments = std::env::args().skip(1);
        let mut next = |name| arguments.next().with_context(|| format!("no {name}"));
        let options = Self {
            bootstrap: next("BOOTSTRAP")?,
            topic: next("TOPIC")?,
            group: next("GROUP")?,
            instance: next("INSTANCE")?,
            database: next("DATABASE")?,
        };
        if arguments.next().is_some() {
            bail!("wanted: BOOTSTRAP TOPIC GROUP INSTANCE DATABASE");
        }
        Ok(options)
    }
}

fn consumer(options: &Options) -> Result<BaseConsumer<Rebalances>> {
    let consumer: BaseConsumer<Rebalances> = ClientConfig::new()
        .set("bootstrap.servers", &options.bootstrap)
        .set("group.id", &options.group)
        // A static member (KIP-345): started again, it has its partitions back without waiting for a session to end.
        .set("group.instance.id", &options.instance)
        // What was never committed is read from the beginning, so that nothing is missing.
        .set("auto.offset.reset", "earliest")
        // Nobody but this program knows when a record has been dealt with.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", "read_committed")
        .create_with_context(Rebalances::default())?;
    consumer.subscribe(&[&options.topic])?;
    Ok(consumer)
}

/// The offsets after the last of these records in each partition.
fn positions(records: &[Record]) -> Result<TopicPartitionList> {
    let mut positions = TopicPartitionList::new();
    for record in records {
        let after = Offset::Offset(record.identity.offset + 1);
        // In the order of the records, so that the last one stands.
        match positions.find_partition(&record.topic, record.identity.partition) {
            Some(mut position) => position.set_offset(after)?,
            None => {
                let partition = record.identity.partition;
                positions.add_partition_offset(&record.topic, partition, after)?;
            }
        }
    }
    Ok(positions)
}

fn main() -> Result<()> {
    let options = Options::from_arguments()?;
    let mut store = Store::open(&options.database)?;
    let consumer = consumer(&options)?;
    let mut records = Records::new(&options.bootstrap);
    loop {
        let batch = records.next_batch(&consumer, PATIENCE)?;
        if batch.is_empty() {
            continue;
        }
        let again = store.handle(&batch)?;
        println!("handled {}, of which {again} again", batch.len());
        // From here on a crash costs nothing but reading these records again. So does a commit that fails, because
        // the broker is away or the partition has gone to another member.
        if let Err(error) = consumer.commit(&positions(&batch)?, CommitMode::Sync) {
            println!("not committed: {error}");
        }
    }
}
