//! What a broker is like right after its start, and what it has cleaned up by then.

use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::broker::Broker;
use compat_tests::requests::{create_topic, list_offsets_request, produce_ok, topic_name};
use kafka_protocol::messages::DeleteTopicsRequest;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;

const NOW: i64 = 1_790_000_000_000;
const LATEST: i64 = -1;

/// The first answer to anybody means that the partitions can be used: nobody has to try again.
#[test]
fn every_partition_is_led_when_the_first_request_is_answered() -> Result<()> {
    let partitions = 200;
    let mut broker = Broker::start()?;
    let topic = create_topic(&mut broker.connect()?, "wide", partitions, &[])?;
    for round in 0..4 {
        if round % 2 == 0 {
            broker.kill9()?;
        } else {
            broker.terminate()?;
        }
        broker.launch_again()?;
        // Connects before the broker serves, and is answered when it does.
        broker.wait_until_ready(Duration::from_secs(30))?;
        let mut request = list_offsets_request(9, &topic, 0, LATEST);
        for row in &mut request.topics {
            row.partitions = (0..partitions)
                .map(|index| {
                    ListOffsetsPartition::default()
                        .with_partition_index(index)
                        .with_timestamp(LATEST)
                })
                .collect();
        }
        let answer = broker.connect()?.call(9, &request)?;
        let rows = answer.topics.iter().flat_map(|row| &row.partitions);
        let refused: Vec<_> = rows.filter(|row| row.error_code != 0).collect();
        ensure!(refused.is_empty(), "round {round}: {refused:?}");
    }
    Ok(())
}

/// A kill while topics are being deleted leaves nothing behind after the next start, whenever it came.
#[test]
fn a_kill_in_the_middle_of_deletions_leaves_no_directories_behind() -> Result<()> {
    let mut broker = Broker::start()?;
    let batch = BatchSpec::small(10, NOW).build()?;
    for round in 0..8 {
        let mut wire = broker.connect()?;
        let names: Vec<String> = (0..10).map(|i| format!("doomed-{round}-{i}")).collect();
        for name in &names {
            let topic = create_topic(&mut wire, name, 3, &[])?;
            produce_ok(&mut wire, &topic, 0, batch.clone())?;
        }
        let states = names
            .iter()
            .map(|name| DeleteTopicState::default().with_name(Some(topic_name(name))));
        let request = DeleteTopicsRequest::default()
            .with_timeout_ms(10_000)
            .with_topics(states.collect());
        wire.send(6, &request)?;
        std::thread::sleep(Duration::from_millis(round * 3));
        broker.kill9()?;
        broker.start_again()?;
        let metadata = broker.connect()?.metadata_of_everything()?;
        let left: Vec<String> = metadata
            .topics
            .iter()
            .filter_map(|topic| topic.name.as_ref().map(|name| name.0.to_string()))
            .collect();
        for entry in std::fs::read_dir(broker.data_dir())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let belongs = left
                .iter()
                .any(|topic| name.starts_with(&format!("{topic}-")));
            ensure!(
                belongs || !name.starts_with("doomed-"),
                "round {round}: {name} is left, topics: {left:?}"
            );
            ensure!(!name.ends_with("-stray"), "round {round}: {name}");
        }
    }
    Ok(())
}
