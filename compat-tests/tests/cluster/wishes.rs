//! Topics and reassignments that ask for what cannot be, or for very much: refused with Kafka's error or carried out,
//! and the cluster serves on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::cluster::admin::{
    Placement, ask_for_topic, connect, connect_to_any, placement, reassign, reassigning,
};
use compat_tests::cluster::clients::create_topic;
use compat_tests::cluster::{Cluster, NodeNumber, Product, replicas};
use compat_tests::requests::{creatable, delete_topic};
use kafka_protocol::messages::CreateTopicsRequest;

use crate::shared::{PATIENCE, PAUSE, create, serves};
use crate::{alone, beside};

const THREE: [NodeNumber; 3] = [1, 2, 3];
/// Topics that a loop makes unless `ODRADEK_TOPICS` says otherwise: as many as a debug build makes in half a minute.
const TOPICS: usize = 2_500;
const INVALID_REPLICATION_FACTOR: i16 = 38;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;

#[test]
fn replicas_on_unknown_brokers_and_more_replicas_than_brokers_are_refused() -> Result<()> {
    let _beside = beside();
    let mut cluster = Cluster::options(Product::Odradek, 3).start()?;
    let topic = create(&mut cluster, "kept", &[&[1, 2, 3], &[2, 3, 1]])?;
    let mut records = 0;
    serves(&mut cluster, &THREE, &topic, 2, &mut records)?;
    let before = placement(&mut cluster, &topic)?;
    for node in THREE {
        let mut wire = connect(&mut cluster, node)?;
        let unknown = ask_for_topic(&mut wire, "unknown", &[&[1, 2, 9]], -1)?;
        assert_eq!(
            unknown.error_code, INVALID_REPLICA_ASSIGNMENT,
            "{unknown:?}"
        );
        let twice = ask_for_topic(&mut wire, "twice", &[&[1, 2, 2]], -1)?;
        assert_eq!(twice.error_code, INVALID_REPLICA_ASSIGNMENT, "{twice:?}");
        let many = ask_for_topic(&mut wire, "many", &[], 4)?;
        assert_eq!(many.error_code, INVALID_REPLICATION_FACTOR, "{many:?}");
        for replicas in [
            vec![1, 9],
            vec![9],
            vec![1, 2, 3, 4],
            vec![],
            vec![2, 2],
            vec![1, -2],
        ] {
            let wish = Placement::from([(0, replicas.clone()), (1, vec![2, 3, 1])]);
            let refused = reassign(&mut wire, &topic, &wish)?;
            let codes: Vec<i16> = refused.iter().map(|(code, _)| *code).collect();
            assert_eq!(
                codes,
                [INVALID_REPLICA_ASSIGNMENT],
                "{replicas:?}: {refused:?}"
            );
        }
    }
    assert_eq!(placement(&mut cluster, &topic)?, before);
    let names: Vec<String> = cluster
        .ask(1)?
        .topics
        .iter()
        .filter_map(|topic| topic.name.as_ref().map(|name| name.0.to_string()))
        .filter(|name| !name.starts_with("__"))
        .collect();
    assert_eq!(names, ["kept"]);
    serves(&mut cluster, &THREE, &topic, 2, &mut records)
}

/// As in Kafka, a new wish takes the place of the one that is being carried out. What was half done is undone, and the
/// records are where the last wish wants them.
#[test]
fn a_reassignment_during_a_reassignment_takes_its_place_and_loses_nothing() -> Result<()> {
    let _beside = beside();
    let mut cluster = Cluster::options(Product::Odradek, 5).start()?;
    let all: Vec<NodeNumber> = cluster.numbers();
    let topic = create(&mut cluster, "moving", &[&[1, 2, 3]])?;
    let mut records = 0;
    for _ in 0..50 {
        serves(&mut cluster, &all, &topic, 1, &mut records)?;
    }
    let wishes = [
        vec![4, 5, 1],
        vec![2, 3, 4],
        vec![5, 1, 2],
        vec![3, 4, 5],
        vec![5, 4, 3],
        vec![1, 2, 5],
    ];
    for (pause_ms, wish) in (0..).zip(&wishes) {
        let wanted = Placement::from([(0, wish.clone())]);
        let refused = reassign(&mut connect_to_any(&mut cluster)?, &topic, &wanted)?;
        ensure!(refused.is_empty(), "{wish:?}: {refused:?}");
        if pause_ms % 2 == 0 {
            serves(&mut cluster, &all, &topic, 1, &mut records)?;
        }
        std::thread::sleep(Duration::from_millis(pause_ms * 30));
    }
    let last = Placement::from([(0, wishes[wishes.len() - 1].clone())]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = reassigning(&mut connect_to_any(&mut cluster)?)?;
        let now = placement(&mut cluster, &topic)?;
        if left == 0 && now == last {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{left} reassignments are left, the replicas are {now:?}\n{}",
            cluster.logs()
        );
        std::thread::sleep(PAUSE);
    }
    cluster.await_in_sync(PATIENCE)?;
    serves(&mut cluster, &all, &topic, 1, &mut records)?;
    // Nothing is left where it was on the way, and what there is, is the same.
    let mut directories = BTreeMap::new();
    for &number in &all {
        directories.insert(number, cluster.node(number)?.data_dir().to_owned());
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let held: Vec<NodeNumber> = directories
            .iter()
            .filter(|(_, directory)| directory.join("moving-0").exists())
            .map(|(&number, _)| number)
            .collect();
        let same = held == [1, 2, 5] && {
            let found = replicas::read(&directories, "moving", &last)?;
            replicas::compare(&found).is_empty()
        };
        if same {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "replicas are left on {held:?}, or differ"
        );
        std::thread::sleep(PAUSE);
    }
}

/// One after the other, as a program does that makes a topic for each of its users. `ODRADEK_TOPICS=10000` makes as many.
#[test]
fn topics_made_by_a_loop_are_made_or_refused_and_the_cluster_serves_on() -> Result<()> {
    let topics = match std::env::var("ODRADEK_TOPICS") {
        Ok(topics) => topics.parse()?,
        Err(_) => TOPICS,
    };
    let _alone = alone();
    let mut cluster = Cluster::options(Product::Odradek, 3).start()?;
    let topic = create_topic(&cluster.addresses(), "before", 3, 3, &[])?;
    let mut records = 0;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    let mut wire = connect(&mut cluster, 1)?;
    wire.set_patience(Duration::from_secs(60))?;
    let begun = Instant::now();
    let mut refused: BTreeMap<i16, usize> = BTreeMap::new();
    let mut made = 0;
    let mut longest = Duration::ZERO;
    for number in 0..topics {
        let wanted = creatable(&format!("user-{number}"), 1, &[]).with_replication_factor(1);
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(vec![wanted]);
        let asked = Instant::now();
        let answer = wire.call(7, &request)?;
        longest = longest.max(asked.elapsed());
        let row = answer.topics.first().context("no topic in the answer")?;
        match row.error_code {
            0 => made += 1,
            code => *refused.entry(code).or_default() += 1,
        }
        if number % 1_000 == 0 {
            eprintln!("{number} topics after {:?}", begun.elapsed());
            serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
        }
    }
    eprintln!(
        "{made} made in {:?}, the slowest took {longest:?}; refused: {refused:?}",
        begun.elapsed()
    );
    for node in THREE {
        let resident = cluster.node(node)?.process()?.resident_bytes()? >> 20;
        eprintln!("node {node}: {resident} MiB");
    }
    // What was answered is true, on every node, also after it was started again.
    for node in THREE {
        cluster.node(node)?.kill9()?;
        cluster.launch(node)?;
        cluster.await_members(PATIENCE * 2)?;
    }
    let deadline = Instant::now() + PATIENCE;
    for node in THREE {
        loop {
            let known = cluster.ask(node).map_or(0, |answer| {
                answer
                    .topics
                    .iter()
                    .filter(|topic| {
                        topic
                            .name
                            .as_ref()
                            .is_some_and(|name| name.0.starts_with("user-"))
                    })
                    .count()
            });
            if known == made {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "node {node} knows {known} of {made} topics"
            );
            std::thread::sleep(PAUSE);
        }
    }
    serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    delete_topic(&mut connect(&mut cluster, 2)?, "user-0")?;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)
}
