//! Those who only look: at committed offsets, and at records that are committed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::PartitionIndex;

use super::producer::GROUP;
use super::world::{PARTITIONS, Process, TOPIC, TOPIC_NUMBER, World};
use crate::groups::messages::{FetchRequest, FetchTopic};
use crate::groups::names::{GroupId, TopicName};
use crate::metadata::test_support::topic_id;

const PATIENCE_MS: i64 = 1_000;

/// Reads the offset of one partition; `None` if there was no answer, or none that stands.
pub(super) async fn offset(
    world: &Arc<World>,
    group: &str,
    partition: i32,
    stable: bool,
) -> Option<Option<u64>> {
    let request = FetchRequest {
        group: GroupId::new(group),
        member: None,
        topics: Some(vec![FetchTopic {
            topic: TopicName::new(TOPIC),
            topic_id: topic_id(TOPIC_NUMBER),
            partitions: vec![PartitionIndex::new(partition)],
        }]),
        require_stable: stable,
    };
    let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
        let request = request.clone();
        Box::pin(async move { process.groups.fetch(request).await })
    };
    let node = world.leader_hint(world.coordinator_of_group(group));
    let topics = world.ask(node, PATIENCE_MS, handle).await.ok()?.ok()?;
    let topic = topics.into_iter().next()?;
    if !topic.unstable.is_empty() {
        return None;
    }
    let (_, found) = topic.partitions.into_iter().next()?;
    Some(found.map(|found| found.offset.get() as u64))
}

/// Looks at the offsets of groups for as long as the world is there.
pub(super) async fn audit(world: Arc<World>, groups: Vec<String>, ids: usize) {
    loop {
        world.dice.pause(50, 300).await;
        let asked_ms = world.now_ms();
        if world.dice.chance(1, 3) {
            let number = world.dice.index(ids);
            let found = offset(&world, GROUP, number as i32, true).await;
            world.note(&format!("offset of id {number}: {found:?}"));
            if let Some(found) = found {
                world
                    .checker
                    .lock()
                    .read_in_transaction(number, found, asked_ms);
            }
            continue;
        }
        let Some(group) = groups.get(world.dice.index(groups.len())) else {
            continue;
        };
        let partition = world.dice.below(i64::from(PARTITIONS)) as i32;
        let found = offset(&world, group, partition, false).await;
        world.note(&format!("offset of {group}-{partition}: {found:?}"));
        if let Some(found) = found {
            world.checker.lock().read(group, partition, found, asked_ms);
        }
    }
}

/// Reads what is committed for as long as the world is there.
pub(super) async fn read(world: Arc<World>) {
    let mut positions = [0; PARTITIONS as usize];
    loop {
        world.dice.pause(100, 400).await;
        let partition = world.dice.below(i64::from(PARTITIONS)) as i32;
        let from = positions[partition as usize];
        let there = Arc::clone(&world);
        let handle = move |process: Arc<Process>| -> BoxFuture<'static, _> {
            let fetched = there.fetch(&process, partition, from);
            Box::pin(std::future::ready(fetched))
        };
        let node = world.leader_hint(super::world::Place::Records(partition));
        let fetched = world.ask(node, PATIENCE_MS, handle).await;
        if let Ok(Ok((values, next))) = fetched {
            world.note(&format!("read {values:?} of {partition} up to {next}"));
            positions[partition as usize] = next;
        }
    }
}
