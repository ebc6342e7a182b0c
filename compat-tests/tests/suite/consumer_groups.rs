//! Consumer groups (KIP-848) with real clients and tools, and through kills.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::groups::{committed, coordinator_is_up, going_on, joining, offset_commit};
use compat_tests::kafka;
use compat_tests::kcat::produce;
use compat_tests::requests::{Topic, create_topic};
use compat_tests::server::Server;
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, GroupId,
};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::Message as _;

/// Quick heartbeats, or a test would wait for most of its time.
const QUICK: &[(&str, &str)] = &[
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("group.consumer.heartbeat.interval.ms", "200"),
    ("group.consumer.min.session.timeout.ms", "1000"),
    ("group.consumer.session.timeout.ms", "6000"),
    ("group.consumer.assignment.interval.ms", "100"),
    ("group.initial.rebalance.delay.ms", "0"),
];
const PATIENCE: Duration = Duration::from_secs(60);

fn consumer(server: &Server, group: &str, protocol: &str) -> Result<BaseConsumer> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", server.bootstrap())
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("topic.metadata.refresh.interval.ms", "500")
        .set("group.protocol", protocol);
    if protocol == "classic" {
        config
            .set("partition.assignment.strategy", "range")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "200");
    }
    Ok(config.create()?)
}

fn owned(consumer: &BaseConsumer) -> BTreeSet<i32> {
    let list = consumer.assignment().ok();
    let elements = list.iter().flat_map(|list| list.elements());
    elements.map(|element| element.partition()).collect()
}

/// Records by partition and offset. One that was not committed when its partition went to another comes again.
type Records = BTreeSet<(i32, i64)>;

/// Polls everybody until each has as many partitions as `wanted` says and none is owned twice. Gives what came meanwhile.
fn until_shared(consumers: &[&BaseConsumer], wanted: &[usize]) -> Result<Records> {
    let begun = Instant::now();
    let mut seen = Records::new();
    loop {
        for consumer in consumers {
            if let Some(message) = consumer.poll(Duration::from_millis(20)) {
                let message = message?;
                seen.insert((message.partition(), message.offset()));
            }
        }
        let sets: Vec<_> = consumers.iter().map(|consumer| owned(consumer)).collect();
        let union: BTreeSet<i32> = sets.iter().flatten().copied().collect();
        let counts: Vec<usize> = sets.iter().map(BTreeSet::len).collect();
        if counts == wanted && union.len() == counts.iter().sum::<usize>() {
            return Ok(seen);
        }
        ensure!(begun.elapsed() < PATIENCE, "{sets:?}, not {wanted:?}");
    }
}

#[test]
fn librdkafka_consumers_of_the_new_protocol_share_grow_and_take_over() -> Result<()> {
    let server = Server::with(QUICK)?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "new-shared", 6, &[])?;
    let lines: String = (0..300).map(|i| format!("{i}:{i}\n")).collect();
    produce(&server.bootstrap(), "new-shared", &lines, &["-K:"])?;
    let first = consumer(&server, "new-sharers", "consumer")?;
    first.subscribe(&["new-shared"])?;
    let mut seen = until_shared(&[&first], &[6])?;
    let second = consumer(&server, "new-sharers", "consumer")?;
    second.subscribe(&["new-shared"])?;
    seen.extend(until_shared(&[&first, &second], &[3, 3])?);
    let begun = Instant::now();
    while seen.len() < 300 {
        ensure!(begun.elapsed() < PATIENCE, "{} of 300", seen.len());
        for consumer in [&first, &second] {
            if let Some(message) = consumer.poll(Duration::from_millis(20)) {
                let message = message?;
                seen.insert((message.partition(), message.offset()));
            }
        }
    }
    for consumer in [&first, &second] {
        consumer.commit_consumer_state(CommitMode::Sync)?;
    }
    drop(second);
    until_shared(&[&first], &[6])?;
    let total: i64 = (0..6)
        .map(|partition| committed(&mut wire, "new-sharers", "new-shared", partition))
        .map(|found| found.map(|(offset, _)| offset))
        .sum::<Result<i64>>()?;
    assert_eq!(total, 300);
    Ok(())
}

#[test]
fn librdkafka_subscribes_by_expression_and_sees_new_topics() -> Result<()> {
    let mut properties = QUICK.to_vec();
    properties.push(("group.consumer.regex.refresh.interval.ms", "10000"));
    let server = Server::with(&properties)?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "by-regex-1", 2, &[])?;
    create_topic(&mut wire, "not-by-regex", 2, &[])?;
    let consumer = consumer(&server, "by-regex", "consumer")?;
    consumer.subscribe(&["^by-regex-.*"])?;
    let topics = || -> BTreeSet<String> {
        let list = consumer.assignment().ok();
        let elements = list.iter().flat_map(|list| list.elements());
        elements.map(|element| element.topic().to_owned()).collect()
    };
    let wait_for = |wanted: &[&str]| -> Result<()> {
        let begun = Instant::now();
        let wanted: BTreeSet<String> = wanted.iter().map(|t| (*t).to_owned()).collect();
        while topics() != wanted {
            ensure!(begun.elapsed() < PATIENCE, "{:?}, not {wanted:?}", topics());
            consumer.poll(Duration::from_millis(50)).transpose()?;
        }
        Ok(())
    };
    wait_for(&["by-regex-1"])?;
    create_topic(&mut wire, "by-regex-2", 1, &[])?;
    wait_for(&["by-regex-1", "by-regex-2"])
}

#[test]
fn a_group_moves_from_the_classic_protocol_to_the_new_one_and_back() -> Result<()> {
    let server = Server::with(QUICK)?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "moving", 4, &[])?;
    let kind = |wire: &mut Wire| -> Result<String> {
        let list = kafka_protocol::messages::ListGroupsRequest::default();
        let listed = wire.call(5, &list)?.groups;
        let one = listed.first().context("no group")?;
        Ok(one.group_type.to_string())
    };
    let member = |protocol: &str| -> Result<BaseConsumer> {
        let consumer = consumer(&server, "movers", protocol)?;
        consumer.subscribe(&["moving"])?;
        Ok(consumer)
    };
    let old = [member("classic")?, member("classic")?];
    until_shared(&[&old[0], &old[1]], &[2, 2])?;
    assert_eq!(kind(&mut wire)?, "classic");
    let new = member("consumer")?;
    let [first, second] = old;
    // Four partitions for three members, in whatever way.
    let begun = Instant::now();
    loop {
        for consumer in [&first, &second, &new] {
            consumer.poll(Duration::from_millis(20)).transpose()?;
        }
        let sets = [owned(&first), owned(&second), owned(&new)];
        let union: BTreeSet<i32> = sets.iter().flatten().copied().collect();
        let sum: usize = sets.iter().map(BTreeSet::len).sum();
        if union.len() == 4 && sum == 4 && sets.iter().all(|set| !set.is_empty()) {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "{sets:?}");
    }
    assert_eq!(kind(&mut wire)?, "consumer");
    drop(first);
    until_shared(&[&second, &new], &[2, 2])?;
    // The last of the new protocol goes: those that are left are a classic group.
    drop(new);
    until_shared(&[&second], &[4])?;
    assert_eq!(kind(&mut wire)?, "classic");
    Ok(())
}

fn at<'a>(bootstrap: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["--bootstrap-server", bootstrap];
    all.extend(arguments);
    all
}

#[test]
fn verifiable_consumers_of_the_new_protocol_read_what_was_produced() -> Result<()> {
    let server = Server::with(QUICK)?;
    let bootstrap = server.bootstrap();
    let mut wire = server.connect()?;
    create_topic(&mut wire, "new-vouched", 2, &[])?;
    let lines_in: String = (0..200).map(|i| format!("{i}\n")).collect();
    produce(&bootstrap, "new-vouched", &lines_in, &[])?;
    let arguments = [
        "--topic",
        "new-vouched",
        "--group-id",
        "new-vouchers",
        "--group-protocol",
        "consumer",
        "--reset-policy",
        "earliest",
        "--max-messages",
        "200",
    ];
    let consumed = kafka::VERIFIABLE_CONSUMER.succeed(&at(&bootstrap, &arguments), "")?;
    assert_eq!(kafka::records_consumed(&consumed), 200, "{consumed}");
    ensure!(
        consumed.contains(r#""name":"offsets_committed""#),
        "{consumed}"
    );
    ensure!(!consumed.contains(r#""success":false"#), "{consumed}");
    Ok(())
}

#[test]
fn tools_show_reset_and_delete_groups_of_both_protocols() -> Result<()> {
    let server = Server::with(QUICK)?;
    let bootstrap = server.bootstrap();
    let mut wire = server.connect()?;
    create_topic(&mut wire, "both-kinds", 1, &[])?;
    let text_in: String = (0..9).map(|i| format!("{i}\n")).collect();
    produce(&bootstrap, "both-kinds", &text_in, &[])?;
    let groups =
        |arguments: &[&str]| kafka::CONSUMER_GROUPS.succeed(&at(&bootstrap, arguments), "");
    for protocol in ["consumer", "classic"] {
        let group = format!("group-{protocol}");
        let group = group.as_str();
        let member = consumer(&server, group, protocol)?;
        member.subscribe(&["both-kinds"])?;
        until_shared(&[&member], &[1])?;
        let begun = Instant::now();
        let mut seen = 0;
        while seen < 5 {
            ensure!(begun.elapsed() < PATIENCE, "{seen} of 5");
            if let Some(message) = member.poll(Duration::from_millis(50)) {
                seen = message?.offset() + 1;
            }
        }
        member.commit_consumer_state(CommitMode::Sync)?;
        let (at_offset, _) = committed(&mut wire, group, "both-kinds", 0)?;
        let described = groups(&["--describe", "--group", group])?;
        let row = described
            .lines()
            .find(|line| line.contains("both-kinds"))
            .context("no row")?;
        let fields: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(fields[..3], [group, "both-kinds", "0"], "{described}");
        ensure!(
            fields.contains(&at_offset.to_string().as_str()),
            "{described}"
        );
        let state = groups(&["--describe", "--group", group, "--state"])?;
        ensure!(state.contains("Stable"), "{state}");
        let members = groups(&["--describe", "--group", group, "--members", "--verbose"])?;
        ensure!(members.contains("both-kinds"), "{members}");
        drop(member);
        let begun = Instant::now();
        while !groups(&["--describe", "--group", group, "--state"])?.contains("Empty") {
            ensure!(begun.elapsed() < PATIENCE, "the member has not left");
        }
        let mut reset = |form: &[&str], wanted: i64| -> Result<()> {
            let mut arguments = vec!["--reset-offsets", "--group", group];
            arguments.extend(["--topic", "both-kinds", "--execute"]);
            arguments.extend(form);
            groups(&arguments)?;
            let (offset, _) = committed(&mut wire, group, "both-kinds", 0)?;
            ensure!(offset == wanted, "{form:?} gives {offset}, not {wanted}");
            Ok(())
        };
        reset(&["--to-earliest"], 0)?;
        reset(&["--to-offset", "4"], 4)?;
        reset(&["--shift-by", "2"], 6)?;
        reset(&["--to-current"], 6)?;
        reset(&["--to-latest"], 9)?;
        reset(&["--to-datetime", "2020-01-01T00:00:00.000"], 0)?;
        reset(&["--by-duration", "PT0S"], 9)?;
        let plan = std::env::temp_dir().join(format!("odradek-reset-{}", std::process::id()));
        std::fs::write(&plan, "both-kinds,0,3\n")?;
        let path = plan.to_string_lossy().into_owned();
        reset(&["--from-file", &path], 3)?;
        std::fs::remove_file(&plan)?;
        let offsets = [
            "--delete-offsets",
            "--group",
            group,
            "--topic",
            "both-kinds",
        ];
        groups(&offsets)?;
        assert_eq!(committed(&mut wire, group, "both-kinds", 0)?.0, -1);
    }
    let listed = kafka::GROUPS.succeed(&at(&bootstrap, &["--list"]), "")?;
    for (group, kind) in [("group-consumer", "Consumer"), ("group-classic", "Classic")] {
        let row = listed
            .lines()
            .find(|line| line.contains(group))
            .context("no row")?;
        ensure!(row.contains(kind), "{listed}");
    }
    let only =
        kafka::GROUPS.succeed(&at(&bootstrap, &["--list", "--group-type", "consumer"]), "")?;
    ensure!(
        !only.contains("group-classic") && only.contains("group-consumer"),
        "{only}"
    );
    for group in ["group-consumer", "group-classic"] {
        let deleted = groups(&["--delete", "--group", group])?;
        ensure!(deleted.contains("successful"), "{deleted}");
    }
    Ok(())
}

#[test]
fn kafka_configs_gives_a_group_its_own_intervals() -> Result<()> {
    let server = Server::start()?;
    let bootstrap = server.bootstrap();
    let configs = |arguments: &[&str]| kafka::CONFIGS.succeed(&at(&bootstrap, arguments), "");
    let of = ["--entity-type", "groups", "--entity-name", "own"];
    let mut alter = vec!["--alter"];
    alter.extend(of);
    alter.extend(["--add-config", "consumer.heartbeat.interval.ms=7000"]);
    configs(&alter)?;
    let mut describe = vec!["--describe"];
    describe.extend(of);
    let described = configs(&describe)?;
    ensure!(
        described.contains("consumer.heartbeat.interval.ms=7000"),
        "{described}"
    );
    let mut wire = server.connect()?;
    for group in ["own", "other"] {
        coordinator_is_up(&mut wire, group)?;
    }
    let answer = wire.call(1, &joining("own", "m", &["nowhere"]))?;
    assert_eq!(
        (answer.error_code, answer.heartbeat_interval_ms),
        (0, 7_000)
    );
    let mut bad = vec!["--alter"];
    bad.extend(of);
    bad.extend(["--add-config", "consumer.heartbeat.interval.ms=1"]);
    ensure!(configs(&bad).is_err(), "below the bound");
    let answer = wire.call(1, &joining("other", "m", &["nowhere"]))?;
    assert_eq!(
        (answer.error_code, answer.heartbeat_interval_ms),
        (0, 5_000)
    );
    Ok(())
}

#[test]
fn kafka_dump_log_reads_the_records_of_a_consumer_group() -> Result<()> {
    let mut properties = QUICK.to_vec();
    properties.push(("offsets.topic.num.partitions", "1"));
    let mut server = Server::with(&properties)?;
    let mut wire = server.connect()?;
    create_topic(&mut wire, "dumped", 2, &[])?;
    coordinator_is_up(&mut wire, "dumped-group")?;
    let mut join = joining("dumped-group", "m", &["dumped"]);
    join.subscribed_topic_regex = Some(text("dump.*"));
    let answer = wire.call(1, &join)?;
    assert_eq!(answer.error_code, 0);
    std::thread::sleep(Duration::from_millis(500));
    server.restart()?;
    let log = server
        .data_dir()
        .join("__consumer_offsets-0/00000000000000000000.log");
    let files = log.to_string_lossy().into_owned();
    let arguments = ["--offsets-decoder", "--files", &files];
    let decoded = kafka::DUMP_LOG.succeed(&arguments, "")?;
    // The tool names keys by their numbers: group, member, target's epoch, target, current, expression.
    for kind in ["3", "5", "6", "7", "8", "16"] {
        let key = format!("{{\"type\":\"{kind}\"");
        ensure!(decoded.contains(&key), "no key of kind {kind} in {decoded}");
    }
    Ok(())
}

/// A member that does as it is told.
struct Honest {
    id: String,
    incarnation: u32,
    /// −1 outside the group.
    epoch: i32,
    owned: BTreeSet<i32>,
    told: Option<BTreeSet<i32>>,
}

impl Honest {
    fn id(&self) -> String {
        format!("{}-{}", self.id, self.incarnation)
    }

    fn heartbeat(&self, group: &str, topic: &Topic) -> ConsumerGroupHeartbeatRequest {
        if self.epoch < 0 {
            return joining(group, &self.id(), &[&topic.name]);
        }
        let owned = TopicPartitions::default()
            .with_topic_id(topic.id)
            .with_partitions(self.owned.iter().copied().collect());
        let owned = match self.owned.is_empty() {
            true => Vec::new(),
            false => vec![owned],
        };
        going_on(group, &self.id(), self.epoch).with_topic_partitions(Some(owned))
    }

    fn lose(&mut self) {
        self.epoch = -1;
        self.owned.clear();
        self.told = None;
        self.incarnation += 1;
    }
}

/// Kills of the process in a run of the test.
const KILLS: usize = 50;
/// Errors that only say "again": the coordinator is coming up.
const AGAIN: [i16; 3] = [14, 15, 16];

/// one-owner, no lost commit and epochs that only grow, seen from outside while the coordinator is
/// killed in the middle of rebalances and commits.
#[test]
fn a_coordinator_killed_in_rebalances_and_commits_keeps_its_promises() -> Result<()> {
    let seed: u64 = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    eprintln!("ODRADEK_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut properties = QUICK.to_vec();
    properties.push(("offsets.topic.num.partitions", "1"));
    let mut server = Server::with(&properties)?;
    let mut wire = server.connect()?;
    let topic = create_topic(&mut wire, "killed", 6, &[])?;
    coordinator_is_up(&mut wire, "killed")?;
    let mut members: Vec<Honest> = (0..4)
        .map(|index| Honest {
            id: format!("m{index}"),
            incarnation: 0,
            epoch: -1,
            owned: BTreeSet::new(),
            told: None,
        })
        .collect();
    let mut acked: BTreeMap<i32, i64> = BTreeMap::new();
    let (mut next_offset, mut group_epoch, mut kills, mut landed) = (0, 0, 0, 0);
    while kills < KILLS {
        for _ in 0..rng.random_range(1..25) {
            let index = rng.random_range(0..members.len());
            step(
                &mut wire,
                &topic,
                &mut members[index],
                &mut rng,
                &mut acked,
                &mut next_offset,
            )?;
            let all: Vec<i32> = members
                .iter()
                .flat_map(|m| m.owned.iter().copied())
                .collect();
            let distinct: BTreeSet<i32> = all.iter().copied().collect();
            ensure!(
                all.len() == distinct.len(),
                "one-owner: {all:?}, seed {seed}"
            );
        }
        // Something is under way, and nobody will hear the answer.
        let member = &members[rng.random_range(0..members.len())];
        if rng.random_bool(0.5) {
            wire.send(1, &member.heartbeat("killed", &topic))?;
        } else if let Some(partition) = member.owned.first() {
            next_offset += 1;
            let rows = [("killed", *partition, next_offset)];
            wire.send(
                9,
                &offset_commit(9, "killed", member.epoch, &member.id(), &rows),
            )?;
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(0..3_000)));
        server.kill_and_restart()?;
        kills += 1;
        wire = server.connect()?;
        coordinator_is_up(&mut wire, "killed")?;
        for (partition, acked) in &acked {
            let (offset, _) = committed(&mut wire, "killed", "killed", *partition)?;
            ensure!(
                offset >= *acked,
                "lost commit: {offset} < {acked}, seed {seed}"
            );
            landed += 1;
        }
        let describe =
            ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(text("killed"))]);
        if let Some(group) = wire.call(1, &describe)?.groups.first()
            && group.error_code == 0
        {
            ensure!(group.group_epoch >= group_epoch, "epochs-grow, seed {seed}");
            ensure!(
                group.assignment_epoch <= group.group_epoch,
                "epochs-grow, seed {seed}"
            );
            group_epoch = group.group_epoch;
        }
    }
    ensure!(
        landed > 0 && group_epoch > 5,
        "nothing happened: {landed}, {group_epoch}"
    );
    let begun = Instant::now();
    while members
        .iter()
        .map(|member| member.owned.len())
        .sum::<usize>()
        < 6
    {
        ensure!(begun.elapsed() < PATIENCE, "converges, seed {seed}");
        for member in &mut members {
            step(
                &mut wire,
                &topic,
                member,
                &mut rng,
                &mut acked,
                &mut next_offset,
            )?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn step(
    wire: &mut Wire,
    topic: &Topic,
    member: &mut Honest,
    rng: &mut StdRng,
    acked: &mut BTreeMap<i32, i64>,
    next_offset: &mut i64,
) -> Result<()> {
    if rng.random_bool(0.3)
        && let Some(partition) = member.owned.first().copied()
    {
        *next_offset += 1;
        let rows = [("killed", partition, *next_offset)];
        let request = offset_commit(9, "killed", member.epoch, &member.id(), &rows);
        let answer = wire.call(9, &request)?;
        let partition_of = answer
            .topics
            .first()
            .and_then(|topic| topic.partitions.first());
        match partition_of.context("no row")?.error_code {
            0 => {
                acked.insert(partition, *next_offset);
            }
            // UNKNOWN_MEMBER_ID and STALE_MEMBER_EPOCH: it will hear of it.
            25 | 113 => {}
            again if AGAIN.contains(&again) => {}
            other => bail!("a commit fails with {other}"),
        }
        return Ok(());
    }
    if rng.random_bool(0.03) && member.epoch > 0 {
        wire.call(1, &going_on("killed", &member.id(), -1))?;
        member.lose();
        return Ok(());
    }
    let answer = wire.call(1, &member.heartbeat("killed", topic))?;
    match answer.error_code {
        0 => {
            member.epoch = answer.member_epoch;
            if let Some(assignment) = answer.assignment {
                let told = assignment.topic_partitions.iter();
                member.told = Some(told.flat_map(|t| t.partitions.iter().copied()).collect());
            }
        }
        // UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH.
        25 | 110 => member.lose(),
        again if AGAIN.contains(&again) => {}
        other => bail!("a heartbeat fails with {other}: {:?}", answer.error_message),
    }
    if rng.random_bool(0.7)
        && let Some(told) = member.told.take()
    {
        member.owned = told;
    }
    Ok(())
}
