use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::test_random::seeded;

fn key(partition: i32) -> FetchKey {
    FetchKey {
        topic: TopicRef::Id(TopicId::from_bytes([7; 16])),
        partition: PartitionIndex::new(partition),
    }
}

fn target(partition: i32, offset: i64) -> FetchTarget {
    FetchTarget {
        key: key(partition),
        current_leader_epoch: LeaderEpoch::NONE,
        fetch_offset: Offset::new(offset),
        last_fetched_epoch: LeaderEpoch::NONE,
        max_bytes: 1_000,
    }
}

fn request(session_id: i32, epoch: i32, targets: Vec<FetchTarget>) -> SessionRequest {
    SessionRequest {
        session_id,
        epoch,
        uses_topic_ids: true,
        targets,
        forgotten: Vec::new(),
    }
}

fn idle(high_watermark: i64) -> Outcome {
    Outcome {
        high_watermark,
        log_start: 0,
        has_records: false,
        must_send: false,
        is_error: false,
    }
}

fn records(high_watermark: i64) -> Outcome {
    Outcome {
        has_records: true,
        ..idle(high_watermark)
    }
}

fn error() -> Outcome {
    Outcome {
        high_watermark: -1,
        log_start: -1,
        has_records: false,
        must_send: true,
        is_error: true,
    }
}

fn counter() -> impl FnMut() -> i32 {
    let mut id = 100;
    move || {
        id += 1;
        id
    }
}

fn order(context: &FetchContext) -> Vec<i32> {
    context
        .targets
        .iter()
        .map(|target| target.key.partition.get())
        .collect()
}

struct Client<'a> {
    cache: &'a mut SessionCache,
    now: Instant,
    session_id: i32,
    epoch: i32,
}

impl<'a> Client<'a> {
    fn open(cache: &'a mut SessionCache, now: Instant, targets: Vec<FetchTarget>) -> Self {
        let outcomes: Vec<_> = targets.iter().map(|_| idle(5)).collect();
        let context = cache.begin(request(0, 0, targets), now).unwrap();
        let selection = cache.finish(&context, &outcomes, now, counter()).unwrap();
        assert_eq!(selection.included, None, "a full answer holds everything");
        Self {
            cache,
            now,
            session_id: selection.session_id,
            epoch: 1,
        }
    }

    fn fetch(
        &mut self,
        changed: Vec<FetchTarget>,
        forgotten: Vec<FetchKey>,
        outcome: impl Fn(i32) -> Outcome,
    ) -> (Vec<i32>, Vec<i32>) {
        let mut request = request(self.session_id, self.epoch, changed);
        request.forgotten = forgotten;
        let context = self.cache.begin(request, self.now).unwrap();
        let outcomes: Vec<_> = order(&context).into_iter().map(outcome).collect();
        let selection = self
            .cache
            .finish(&context, &outcomes, self.now, counter())
            .unwrap();
        self.epoch += 1;
        let included = selection.included.unwrap_or_default();
        let sent = order(&context)
            .into_iter()
            .zip(included)
            .filter_map(|(partition, included)| included.then_some(partition))
            .collect();
        (order(&context), sent)
    }
}

#[test]
fn an_incremental_answer_holds_only_what_changed() {
    let mut cache = SessionCache::new(10);
    let targets = vec![target(0, 0), target(1, 0), target(2, 0)];
    let mut client = Client::open(&mut cache, Instant::now(), targets);
    assert_eq!(
        client.fetch(vec![], vec![], |_| idle(5)).1,
        Vec::<i32>::new()
    );
    let moved = |partition| if partition == 1 { idle(6) } else { idle(5) };
    assert_eq!(client.fetch(vec![], vec![], moved).1, vec![1]);
    let with_error = |partition| match partition {
        1 => idle(6),
        2 => error(),
        _ => idle(5),
    };
    assert_eq!(client.fetch(vec![], vec![], with_error).1, vec![2]);
    assert_eq!(
        client.fetch(vec![], vec![], moved).1,
        vec![2],
        "after an error the partition is sent once more"
    );
}

#[test]
fn partitions_that_gave_records_go_to_the_end_of_the_order() {
    let mut cache = SessionCache::new(10);
    let targets = vec![target(0, 0), target(1, 0), target(2, 0)];
    let mut client = Client::open(&mut cache, Instant::now(), targets);
    let first_gives = |partition| if partition == 0 { records(5) } else { idle(5) };
    assert_eq!(client.fetch(vec![], vec![], first_gives).0, vec![0, 1, 2]);
    assert_eq!(client.fetch(vec![], vec![], |_| idle(5)).0, vec![1, 2, 0]);
}

#[test]
fn changed_new_and_forgotten_partitions_update_the_session() {
    let mut cache = SessionCache::new(10);
    let targets = vec![target(0, 0), target(1, 0)];
    let mut client = Client::open(&mut cache, Instant::now(), targets);
    let (asked, sent) = client.fetch(vec![target(0, 9), target(4, 0)], vec![key(1)], |_| idle(5));
    assert_eq!(asked, vec![0, 4]);
    assert_eq!(sent, vec![4], "a new partition is always answered");
    let context = client
        .cache
        .begin(request(client.session_id, client.epoch, vec![]), client.now)
        .unwrap();
    assert_eq!(context.targets[0].fetch_offset, Offset::new(9));
}

#[test]
fn wrong_epochs_unknown_sessions_and_mixed_naming_are_refused() {
    let mut cache = SessionCache::new(10);
    let now = Instant::now();
    let id = Client::open(&mut cache, now, vec![target(0, 0)]).session_id;
    assert_eq!(
        cache.begin(request(id, 5, vec![]), now).unwrap_err(),
        SessionFault::InvalidEpoch
    );
    assert_eq!(
        cache.begin(request(id + 1, 1, vec![]), now).unwrap_err(),
        SessionFault::NotFound
    );
    let mut by_name = request(id, 1, vec![]);
    by_name.uses_topic_ids = false;
    assert_eq!(
        cache.begin(by_name, now).unwrap_err(),
        SessionFault::TopicIdMismatch
    );
}

#[test]
fn an_answer_whose_session_has_moved_on_is_refused() {
    let mut cache = SessionCache::new(10);
    let now = Instant::now();
    let id = Client::open(&mut cache, now, vec![target(0, 0)]).session_id;
    let parked = cache.begin(request(id, 1, vec![]), now).unwrap();
    cache.begin(request(id, 2, vec![]), now).unwrap();
    assert_eq!(
        cache.finish(&parked, &[idle(5)], now, counter()),
        Err(SessionFault::InvalidEpoch)
    );
}

#[test]
fn a_session_ends_when_closed_when_emptied_and_when_replaced() {
    let mut cache = SessionCache::new(10);
    let now = Instant::now();
    let id = Client::open(&mut cache, now, vec![target(0, 0)]).session_id;
    cache.begin(request(id, -1, vec![]), now).unwrap();
    assert_eq!(cache.session_count(), 0);

    let mut client = Client::open(&mut cache, now, vec![target(0, 0)]);
    client.fetch(vec![], vec![key(0)], |_| idle(5));
    assert_eq!(cache.session_count(), 0);

    let id = Client::open(&mut cache, now, vec![target(0, 0)]).session_id;
    cache
        .begin(request(id, 0, vec![target(0, 0)]), now)
        .unwrap();
    assert_eq!(cache.session_count(), 0);
}

#[test]
fn a_full_cache_gives_the_slot_of_an_idle_or_smaller_old_session_only() {
    let mut cache = SessionCache::new(2);
    let start = Instant::now();
    let mut open = |at: Duration, partitions: i32| {
        let now = start + at;
        let targets: Vec<_> = (0..partitions).map(|index| target(index, 0)).collect();
        let outcomes: Vec<_> = targets.iter().map(|_| idle(5)).collect();
        let context = cache.begin(request(0, 0, targets), now).unwrap();
        let mut rng = StdRng::seed_from_u64(u64::try_from(at.as_millis()).unwrap());
        let random = || rng.random();
        let id = cache
            .finish(&context, &outcomes, now, random)
            .unwrap()
            .session_id;
        (id, cache.evictions())
    };
    open(Duration::ZERO, 3);
    open(Duration::from_secs(100), 9);
    assert_eq!(
        open(Duration::from_secs(110), 50),
        (NO_SESSION, 0),
        "young sessions stay"
    );
    let (id, evictions) = open(Duration::from_secs(121), 1);
    assert!(id > 0, "the idle one goes, whatever its size");
    assert_eq!(evictions, 1);
    assert_eq!(open(Duration::from_secs(200), 50), (NO_SESSION, 1));
    assert!(open(Duration::from_secs(230), 2).0 > 0);
}

#[test]
fn smaller_old_sessions_give_way_to_larger_ones_even_while_in_use() {
    let mut cache = SessionCache::new(1);
    let start = Instant::now();
    let mut client = Client::open(&mut cache, start, vec![target(0, 0), target(1, 0)]);
    client.now = start + Duration::from_secs(119);
    client.fetch(vec![], vec![], |_| idle(5));
    let now = start + Duration::from_secs(125);
    let mut try_open = |partitions: i32| {
        let targets: Vec<_> = (0..partitions).map(|index| target(index, 0)).collect();
        let outcomes: Vec<_> = targets.iter().map(|_| idle(5)).collect();
        let context = cache.begin(request(0, 0, targets), now).unwrap();
        let mut id = 500;
        let random = || {
            id += 1;
            id
        };
        cache
            .finish(&context, &outcomes, now, random)
            .unwrap()
            .session_id
    };
    assert_eq!(try_open(2), NO_SESSION, "an equal one does not displace it");
    assert!(try_open(3) > 0);
}

/// Random sessions against a plain model: the union of what a session was told is what it asks
/// for, and an answer is sent exactly if it differs from what the client last saw.
#[test]
fn random_sessions_agree_with_a_model_of_what_the_client_knows() {
    let mut rng = seeded();
    for _ in 0..200 {
        let mut cache = SessionCache::new(4);
        let mut client = Client::open(&mut cache, Instant::now(), vec![target(0, 0)]);
        let mut seen: HashMap<i32, Option<i64>> = HashMap::from([(0, Some(5))]);
        for _ in 0..30 {
            let changed: Vec<i32> = (0..rng.random_range(0..4))
                .map(|_| rng.random_range(0..6))
                .collect();
            let forgotten: Vec<i32> = (0..rng.random_range(0..2))
                .map(|_| rng.random_range(1..6))
                .collect();
            for partition in &changed {
                seen.entry(*partition).or_insert(None);
            }
            for partition in &forgotten {
                seen.remove(partition);
            }
            if seen.is_empty() {
                break;
            }
            let watermark = rng.random_range(5..8);
            let failing = rng.random_range(0..8);
            let outcome = |partition: i32| match partition {
                p if p == failing => error(),
                p => idle(watermark + i64::from(p % 2)),
            };
            let (asked, mut sent) = client.fetch(
                changed.iter().map(|p| target(*p, 1)).collect(),
                forgotten.iter().map(|p| key(*p)).collect(),
                outcome,
            );
            let mut asked_sorted = asked.clone();
            asked_sorted.sort_unstable();
            let mut known: Vec<i32> = seen.keys().copied().collect();
            known.sort_unstable();
            assert_eq!(asked_sorted, known);
            let mut expected: Vec<i32> = known
                .iter()
                .copied()
                .filter(|p| *p == failing || seen[p] != Some(outcome(*p).high_watermark))
                .collect();
            expected.sort_unstable();
            sent.sort_unstable();
            assert_eq!(sent, expected);
            for partition in known {
                let now = (partition != failing).then(|| outcome(partition).high_watermark);
                seen.insert(partition, now);
            }
        }
    }
}
