//! Readers that see committed transactions only, as every client makes them out: from the list of aborted transactions
//! that comes with the records, and from the markers among these.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::fetch_response::PartitionData;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::coordinator::{Coordinator, Kind};
use super::copier::{id_of, position};
use super::{BACKOFF, READING_PATIENCE, Router, Shared};
use crate::cluster::history::{
    AttemptName, CommittedRead, CommittedSeen, CommittedTopic, CommittedView, Partition,
};
use crate::requests::{
    LATEST, Topic, fetch_request, first_partition, list_offsets_request, records_of,
};
use crate::wire::Wire;

const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
const FETCH_VERSION: i16 = 12;
/// How long transactions may stay undecided once all copiers have finished.
const DECIDING_PATIENCE: Duration = Duration::from_secs(30);

/// Follows one partition of the copiers' topic from its start, at its leader or at any replica.
pub struct CommittedReader {
    shared: Shared,
    topic: Topic,
    partition: Partition,
    rng: StdRng,
    router: Router,
    wire: Option<Wire>,
    next_offset: i64,
}

impl CommittedReader {
    /// A reader that writes down everything it sees.
    pub fn new(shared: Shared, topic: &Topic, partition: Partition, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            router: Router::new(&shared.addresses, topic, rng.random_range(0..100)),
            shared,
            topic: topic.clone(),
            partition,
            rng,
            wire: None,
            next_offset: 0,
        }
    }

    /// Reads until told to stop.
    pub fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            if self.round().is_err() {
                self.wire = None;
                std::thread::sleep(BACKOFF);
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        if self.wire.is_none() {
            self.wire = Some(match self.rng.random_bool(0.7) {
                true => self.router.connect(self.partition, ANSWER_PATIENCE)?,
                false => {
                    let nodes = &self.shared.addresses;
                    let address = nodes[self.rng.random_range(0..nodes.len())];
                    Wire::connect_within(address, ANSWER_PATIENCE)?
                }
            });
        }
        let wire = self.wire.as_mut().context("no connection")?;
        let asked = [(self.partition, self.next_offset, 1 << 20)];
        let request = fetch_request(FETCH_VERSION, &self.topic, &asked)
            .with_isolation_level(1)
            .with_max_wait_ms(200)
            .with_min_bytes(1);
        let data = first_partition(wire.call(FETCH_VERSION, &request)?)?;
        // A replica that is behind has not heard of the offset, which is out of range there.
        ensure!(data.error_code == 0, "fetch: error {}", data.error_code);
        let answer = committed_in(data, self.next_offset)?;
        if answer.next == self.next_offset {
            return Ok(());
        }
        let read = CommittedRead {
            partition: self.partition,
            completed: self.shared.recorder.now(),
            from: self.next_offset,
            next: answer.next,
            records: answer.counts,
        };
        self.next_offset = answer.next;
        let recorder = &self.shared.recorder;
        recorder.note(|history| history.committed_reads.push(read));
        Ok(())
    }
}

/// A read_committed answer taken apart.
#[derive(Clone, Debug, Default)]
pub struct CommittedAnswer {
    /// The offset to ask for next.
    pub next: i64,
    /// What counts.
    pub counts: Vec<CommittedSeen>,
    /// What belongs to aborted transactions.
    pub aborted: Vec<CommittedSeen>,
}

/// Takes a read_committed answer apart, from an offset on.
pub fn committed_in(data: PartitionData, from: i64) -> Result<CommittedAnswer> {
    let mut aborted: Vec<(i64, i64)> = data
        .aborted_transactions
        .unwrap_or_default()
        .iter()
        .map(|aborted| (aborted.first_offset, aborted.producer_id.0))
        .collect();
    aborted.sort_unstable();
    let mut aborted = aborted.into_iter().peekable();
    let mut aborting: HashSet<i64> = HashSet::new();
    let mut answer = CommittedAnswer {
        next: from,
        ..CommittedAnswer::default()
    };
    for record in records_of(data.records)? {
        while let Some((_, producer)) = aborted.next_if(|(first, _)| *first <= record.offset) {
            aborting.insert(producer);
        }
        let is_dropped = record.transactional && aborting.contains(&record.producer_id);
        if record.control {
            if is_abort_marker(record.key.as_deref()) {
                aborting.remove(&record.producer_id);
            }
        } else if record.offset >= from {
            let name = record.value.as_deref().and_then(AttemptName::parse);
            let seen = (record.offset, name);
            match is_dropped {
                true => answer.aborted.push(seen),
                false => answer.counts.push(seen),
            }
        }
        answer.next = answer.next.max(record.offset + 1);
    }
    Ok(answer)
}

/// Whether the key of a control record, version and kind, says that a transaction was aborted.
fn is_abort_marker(key: Option<&[u8]>) -> bool {
    key.is_some_and(|key| key.get(2..4) == Some(&[0, 0]))
}

/// Reads the whole topic of the copiers and where their groups stand, once every transaction is decided or has had
/// time to be.
pub fn read_committed(
    shared: &Shared,
    topic: &Topic,
    partitions: i32,
    copiers: u32,
) -> Result<CommittedTopic> {
    let mut read = CommittedTopic::default();
    let deciding = Instant::now() + DECIDING_PATIENCE;
    for partition in 0..partitions {
        let mut router = Router::new(&shared.addresses, topic, 0);
        let view = patiently(|| {
            let mut wire = router.connect(partition, Duration::from_secs(10))?;
            let view = view_of(&mut wire, topic, partition)?;
            let is_decided = view.last_stable == view.end;
            ensure!(
                is_decided || Instant::now() >= deciding,
                "decided up to {} of {}",
                view.last_stable,
                view.end
            );
            Ok(view)
        })
        .with_context(|| format!("reading partition {partition} of the copiers back"))?;
        read.partitions.insert(partition, view);
    }
    for copier in 0..copiers {
        let addresses = &shared.addresses;
        let mut group = Coordinator::of(addresses, Kind::Group, &id_of(copier), 0);
        let position = patiently(|| {
            let position = position(&mut group, &shared.topic.name, copier)?;
            position.map_err(|code| anyhow::anyhow!("error {code}"))
        })
        .with_context(|| format!("where copier {copier} stands"))?;
        read.positions.insert(copier, position);
    }
    Ok(read)
}

fn patiently<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + READING_PATIENCE;
    loop {
        match read() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

/// A partition as a read_committed reader sees it at the node at the other end.
pub fn view_of(wire: &mut Wire, topic: &Topic, partition: Partition) -> Result<CommittedView> {
    let mut latest = |isolation| -> Result<i64> {
        let request =
            list_offsets_request(9, topic, partition, LATEST).with_isolation_level(isolation);
        let answer = wire.call(9, &request)?;
        let row = answer.topics.first().and_then(|row| row.partitions.first());
        let row = row.context("no partition in the answer")?;
        ensure!(row.error_code == 0, "ListOffsets: error {}", row.error_code);
        Ok(row.offset)
    };
    let (last_stable, end) = (latest(1)?, latest(0)?);
    let mut view = CommittedView {
        last_stable,
        end,
        ..CommittedView::default()
    };
    let mut next_offset = 0;
    while next_offset < last_stable {
        let request = fetch_request(FETCH_VERSION, topic, &[(partition, next_offset, 4 << 20)])
            .with_isolation_level(1);
        let data = first_partition(wire.call(FETCH_VERSION, &request)?)?;
        ensure!(
            data.error_code == 0,
            "fetch at {next_offset}: error {}",
            data.error_code
        );
        let answer = committed_in(data, next_offset)?;
        ensure!(
            answer.next > next_offset,
            "nothing at {next_offset} below {last_stable}"
        );
        next_offset = answer.next;
        view.records.extend(answer.counts);
        view.aborted.extend(answer.aborted);
    }
    Ok(view)
}
