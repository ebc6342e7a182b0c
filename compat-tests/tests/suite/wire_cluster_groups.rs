//! Consumer groups of both protocols on clusters of three nodes: coordinators that are killed or moved.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use compat_tests::cluster::clients::coordinator::{COORDINATOR_ERRORS, Coordinator, Kind};
use compat_tests::groups::{
    Member, committed, going_on, join_request, joining, offset_commit, offset_fetch, sync_request,
};
use compat_tests::wire::{Wire, text};
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatResponse, DescribeGroupsRequest, FindCoordinatorRequest, GroupId,
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, OffsetCommitRequest,
    OffsetCommitResponse,
};

use crate::coordinated::{
    ALL, PATIENCE, PAUSE, Three, eventually, seed, state_partition, state_topic,
};

const NOT_COORDINATOR: i16 = 16;
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER_ID: i16 = 25;
const REBALANCE_IN_PROGRESS: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

fn row_code(answer: &OffsetCommitResponse) -> i16 {
    let mut rows = answer.topics.iter().flat_map(|topic| &topic.partitions);
    rows.next().map_or(-1, |row| row.error_code)
}

/// Commits until whoever coordinates has answered for good; the error code.
fn commit(coordinator: &mut Coordinator, request: &OffsetCommitRequest) -> Result<i16> {
    let answer = coordinator.ask_until(8, request, PATIENCE, &[], row_code)?;
    Ok(row_code(&answer))
}

/// What is committed for partition 0 of a topic, by whoever coordinates.
fn committed_now(coordinator: &mut Coordinator, group: &str, topic: &str) -> Result<i64> {
    let request = offset_fetch(7, group, Some(&[(topic, &[0])]));
    let answer = coordinator.ask_until(7, &request, PATIENCE, &[], |answer| answer.error_code)?;
    ensure!(answer.error_code == 0, "error {}", answer.error_code);
    Ok(answer.topics[0].partitions[0].committed_offset)
}

#[test]
fn each_node_coordinates_for_partitions_that_others_lead_and_no_other_answers_for_it() -> Result<()>
{
    let mut three = Three::start()?;
    let topic = three.create("elsewhere", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]])?;
    for (offset, node) in (100..).zip(ALL) {
        three.coordinate(Kind::Group, "wanderers", node)?;
        let address = three.cluster.node(node)?.addresses().broker;
        // A coordinator that has only just been found may still load.
        let mut coordinator = three.coordinator(Kind::Group, "wanderers");
        let before = committed_now(&mut coordinator, "wanderers", &topic.name)?;
        ensure!(before == if offset == 100 { -1 } else { offset - 1 });
        let mut member = Member::join(address, "wanderers", "range")?;
        let id = member.id.clone();
        member.sync(&[(&id, b"all")])?;
        assert_eq!(member.commit(&[(&topic.name, 0, offset)])?, [0]);
        for other in ALL.into_iter().filter(|other| *other != node) {
            let mut wire = Wire::connect(three.cluster.node(other)?.addresses().broker)?;
            let fetch = offset_fetch(7, "wanderers", Some(&[(&topic.name, &[0])]));
            assert_eq!(wire.call(7, &fetch)?.error_code, NOT_COORDINATOR);
            let commit = offset_commit(8, "wanderers", -1, "", &[(&topic.name, 0, 1)]);
            assert_eq!(row_code(&wire.call(8, &commit)?), NOT_COORDINATOR);
        }
        assert_eq!(member.heartbeat()?, 0);
        assert_eq!(member.leave()?, 0);
        let mut wire = Wire::connect(address)?;
        assert_eq!(committed(&mut wire, "wanderers", &topic.name, 0)?.0, offset);
    }
    Ok(())
}

#[test]
fn the_first_question_for_a_coordinator_is_answered_soon_whichever_node_is_asked() -> Result<()> {
    // With the first question the topic is made, which happens twice in a cluster: for groups and for transactions.
    for nodes in [[1, 2], [3, 1]] {
        let mut three = Three::start()?;
        for (key_type, node) in (0..).zip(nodes) {
            let request = FindCoordinatorRequest::default()
                .with_key_type(key_type)
                .with_coordinator_keys((0..8).map(|key| text(format!("key-{key}"))).collect());
            let mut wire = Wire::connect(three.cluster.node(node)?.addresses().broker)?;
            let asked = Instant::now();
            let first = wire.call(4, &request)?;
            let took = asked.elapsed();
            ensure!(
                took < Duration::from_secs(3),
                "node {node}, kind {key_type}: {took:?}"
            );
            assert_eq!(first.coordinators.len(), 8);
            for other in ALL {
                let mut wire = Wire::connect(three.cluster.node(other)?.addresses().broker)?;
                eventually("not all coordinators are known", || {
                    let answer = wire.call(4, &request)?;
                    let found = answer.coordinators.iter().all(|row| row.error_code == 0);
                    ensure!(found, "{answer:?}");
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

/// A member of the classic protocol that goes wherever its coordinator is.
struct Classic {
    coordinator: Coordinator,
    group: &'static str,
    id: String,
    generation: i32,
}

impl Classic {
    fn new(three: &Three, group: &'static str) -> Self {
        Self {
            coordinator: three.coordinator(Kind::Group, group),
            group,
            id: String::new(),
            generation: -1,
        }
    }

    fn join_request(&self) -> JoinGroupRequest {
        join_request(7, self.group, &self.id, "range")
            .with_session_timeout_ms(6_000)
            .with_rebalance_timeout_ms(6_000)
    }

    /// One join; none if it is to be tried again.
    fn join(&mut self) -> Result<Option<JoinGroupResponse>> {
        let request = self.join_request();
        let answer = self
            .coordinator
            .ask(7, &request, Duration::from_secs(10), |answer| {
                answer.error_code
            })?;
        match answer.error_code {
            0 => return Ok(Some(answer)),
            MEMBER_ID_REQUIRED => self.id = answer.member_id.to_string(),
            UNKNOWN_MEMBER_ID => self.id.clear(),
            code => ensure!(
                COORDINATOR_ERRORS.contains(&code) || code == REBALANCE_IN_PROGRESS,
                "JoinGroup: error {code}"
            ),
        }
        Ok(None)
    }

    /// Joins and syncs until it is told its share in a group of `size` members.
    fn take_part(&mut self, size: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            ensure!(Instant::now() < deadline, "{} does not get on", self.id);
            if self.try_to_take_part(size).unwrap_or(false) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_to_take_part(&mut self, size: usize) -> Result<bool> {
        let Some(joined) = self.join()? else {
            return Ok(false);
        };
        self.id = joined.member_id.to_string();
        let leads = joined.leader == joined.member_id;
        let shares: Vec<(&str, Bytes)> = match leads {
            true => joined
                .members
                .iter()
                .map(|member| {
                    let count = joined.members.len().to_string();
                    (&*member.member_id, Bytes::from(count))
                })
                .collect(),
            false => Vec::new(),
        };
        let generation = joined.generation_id;
        let request = sync_request(5, self.group, generation, &self.id, "range", &shares);
        let answer = self
            .coordinator
            .ask(5, &request, Duration::from_secs(10), |answer| {
                answer.error_code
            })?;
        if answer.error_code != 0 {
            return Ok(false);
        }
        self.generation = generation;
        Ok(answer.assignment == size.to_string().as_bytes())
    }

    fn heartbeat(&mut self) -> Result<i16> {
        let request = HeartbeatRequest::default()
            .with_group_id(GroupId(text(self.group)))
            .with_generation_id(self.generation)
            .with_member_id(text(&self.id));
        let asked = self
            .coordinator
            .ask_until(4, &request, PATIENCE, &[], |answer| answer.error_code)?;
        Ok(asked.error_code)
    }
}

#[test]
fn members_get_on_after_their_coordinator_was_killed_in_the_middle_of_a_rebalance() -> Result<()> {
    const GROUP: &str = "rebalancing";
    let mut three = Three::start()?;
    three.create("rebalanced", &[&[1, 2, 3]])?;
    for node in ALL {
        three.coordinate(Kind::Group, GROUP, node)?;
        let mut first = Classic::new(&three, GROUP);
        first.take_part(1)?;
        let before = first.generation;
        let old = offset_commit(8, GROUP, before, &first.id, &[("rebalanced", 0, 7)]);
        assert_eq!(commit(&mut first.coordinator, &old)?, 0);
        // The second asks to join, and the first has not heard of it.
        let mut second = Classic::new(&three, GROUP);
        while second.id.is_empty() {
            second.join()?;
        }
        let request = second.join_request();
        second.coordinator.wire(PATIENCE)?.send(7, &request)?;
        std::thread::sleep(Duration::from_millis(50));
        three.kill(node)?;
        second.coordinator.forget();
        first.coordinator.forget();
        // The generation that was written down is still the group's, and its member is known by it.
        let code = first.heartbeat()?;
        ensure!(
            [0, REBALANCE_IN_PROGRESS].contains(&code),
            "the new coordinator knows nothing of the member: error {code}"
        );
        let joining = std::thread::spawn(move || second.take_part(2).map(|()| second));
        first.take_part(2)?;
        let second = joining.join().map_err(|_| anyhow!("panicked"))??;
        assert_eq!(first.generation, second.generation);
        ensure!(first.generation > before, "a new generation");
        assert_eq!(
            commit(&mut first.coordinator, &old)?,
            ILLEGAL_GENERATION,
            "a commit by the old generation"
        );
        let rows = [("rebalanced", 0, 8)];
        let new = offset_commit(8, GROUP, second.generation, &second.id, &rows);
        assert_eq!(commit(&mut first.coordinator, &new)?, 0);
        let now = committed_now(&mut first.coordinator, GROUP, "rebalanced")?;
        assert_eq!(now, 8);
        three.make_whole()?;
        // Both are thrown out before the next round.
        let mut coordinator = three.coordinator(Kind::Group, GROUP);
        eventually("members stay", || {
            let request = DescribeGroupsRequest::default().with_groups(vec![GroupId(text(GROUP))]);
            let described = coordinator.ask(5, &request, PATIENCE, |answer| {
                answer.groups.first().map_or(-1, |group| group.error_code)
            })?;
            let state = described
                .groups
                .first()
                .map(|group| group.group_state.to_string());
            ensure!(state.as_deref() == Some("Empty"), "{state:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn no_answered_commit_is_lost_when_its_coordinator_is_killed_in_the_middle_of_the_next()
-> Result<()> {
    const GROUP: &str = "committing";
    const ROUNDS: i64 = 9;
    let mut three = Three::start()?;
    three.create("committed", &[&[1, 2, 3]])?;
    let mut coordinator = three.coordinator(Kind::Group, GROUP);
    eventually("no coordinator", || coordinator.locate())?;
    for round in 0..ROUNDS {
        let answered = 10 * round;
        let request = |offset| offset_commit(8, GROUP, -1, "", &[("committed", 0, offset)]);
        assert_eq!(commit(&mut coordinator, &request(answered))?, 0);
        let node = three.leader(&state_topic(Kind::Group), state_partition(GROUP))?;
        coordinator
            .wire(PATIENCE)?
            .send(8, &request(answered + 1))?;
        std::thread::sleep(Duration::from_micros(300 * (round as u64 % 5)));
        three.kill(node)?;
        coordinator.forget();
        let begun = Instant::now();
        let now = committed_now(&mut coordinator, GROUP, "committed")?;
        eprintln!("round {round}: {now} after {:?}", begun.elapsed());
        ensure!(
            now == answered || now == answered + 1,
            "{now} where {answered} was answered"
        );
        three.make_whole()?;
    }
    Ok(())
}

/// Partitions that an answer gives to a member.
fn given_in(answer: &ConsumerGroupHeartbeatResponse) -> usize {
    let topics = answer
        .assignment
        .iter()
        .flat_map(|given| &given.topic_partitions);
    topics.map(|topic| topic.partitions.len()).sum()
}

#[test]
fn a_member_of_the_new_protocol_goes_on_in_its_epoch_at_the_next_coordinator() -> Result<()> {
    const GROUP: &str = "epochs";
    let mut three = Three::start()?;
    let topic = three.create("epoch-topic", &[&[1, 2, 3], &[2, 3, 1]])?;
    let owned = vec![
        TopicPartitions::default()
            .with_topic_id(topic.id)
            .with_partitions(vec![0, 1]),
    ];
    let code = |answer: &ConsumerGroupHeartbeatResponse| answer.error_code;
    for (round, node) in ALL.into_iter().enumerate() {
        three.coordinate(Kind::Group, GROUP, node)?;
        let member = format!("member-{round}");
        let mut coordinator = three.coordinator(Kind::Group, GROUP);
        let join = joining(GROUP, &member, &[&topic.name]);
        let joined = coordinator.ask_until(1, &join, PATIENCE, &[], code)?;
        assert_eq!(joined.error_code, 0, "{joined:?}");
        let mut epoch = joined.member_epoch;
        let mut given = given_in(&joined);
        let deadline = Instant::now() + PATIENCE;
        while given < 2 {
            ensure!(Instant::now() < deadline, "{given} of 2 partitions");
            std::thread::sleep(PAUSE);
            let request = going_on(GROUP, &member, epoch);
            let answer = coordinator.ask_until(1, &request, PATIENCE, &[], code)?;
            assert_eq!(answer.error_code, 0, "{answer:?}");
            epoch = answer.member_epoch;
            given = given.max(given_in(&answer));
        }
        let has_it_all = going_on(GROUP, &member, epoch).with_topic_partitions(Some(owned.clone()));
        let answer = coordinator.ask_until(1, &has_it_all, PATIENCE, &[], code)?;
        assert_eq!(answer.error_code, 0);
        epoch = answer.member_epoch;
        three.kill(node)?;
        coordinator.forget();
        let request = going_on(GROUP, &member, epoch).with_topic_partitions(Some(owned.clone()));
        let answer = coordinator.ask_until(1, &request, PATIENCE, &[], code)?;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        assert_eq!(answer.member_epoch, epoch);
        ensure!(coordinator.node() != Some(node), "the node is dead");
        let rows = [(topic.name.as_str(), 0, i64::from(node))];
        let request = offset_commit(9, GROUP, epoch, &member, &rows);
        let answer = coordinator.ask_until(9, &request, PATIENCE, &[], row_code)?;
        assert_eq!(row_code(&answer), 0);
        let now = committed_now(&mut coordinator, GROUP, &topic.name)?;
        assert_eq!(now, i64::from(node));
        let leave = going_on(GROUP, &member, -1);
        let answer = coordinator.ask_until(1, &leave, PATIENCE, &[], code)?;
        assert_eq!(answer.error_code, 0, "{answer:?}");
        three.make_whole()?;
    }
    Ok(())
}

/// Members of both protocols and transactional producers run on while every coordinator moves from node to node.
#[test]
fn coordinators_move_under_running_members_and_producers_and_nobody_is_the_worse() -> Result<()> {
    let mut three = Three::start()?;
    three.under_load(seed()?, |three| {
        for round in 0..4 {
            for kind in [Kind::Group, Kind::Transaction] {
                for partition in 0..4 {
                    let node = ALL[(round + partition as usize) % ALL.len()];
                    three.lead(&state_topic(kind), partition, node)?;
                }
                std::thread::sleep(Duration::from_millis(300));
            }
        }
        Ok(())
    })
}

/// A member that waits for the others is told that its coordinator has gone, and does not wait for the end of a
/// rebalance that goes on elsewhere.
#[test]
fn who_waits_for_a_rebalance_hears_at_once_that_its_coordinator_has_moved() -> Result<()> {
    const GROUP: &str = "waiting";
    const FIVE_MINUTES_MS: i32 = 300_000;
    let mut three = Three::start()?;
    three.create("waited-for", &[&[1, 2, 3]])?;
    three.coordinate(Kind::Group, GROUP, 1)?;
    let mut first = Classic::new(&three, GROUP);
    first.take_part(1)?;
    let mut second = Classic::new(&three, GROUP);
    while second.id.is_empty() {
        second.join()?;
    }
    let request = second
        .join_request()
        .with_rebalance_timeout_ms(FIVE_MINUTES_MS);
    let wire = second.coordinator.wire(PATIENCE)?;
    let correlation_id = wire.send(7, &request)?;
    std::thread::sleep(Duration::from_millis(100));
    three.coordinate(Kind::Group, GROUP, 2)?;
    let begun = Instant::now();
    let answer = wire.receive::<JoinGroupRequest>(7, correlation_id)?;
    assert_eq!(answer.error_code, NOT_COORDINATOR);
    ensure!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    second.coordinator.forget();
    let joining = std::thread::spawn(move || second.take_part(2));
    first.take_part(2)?;
    joining.join().map_err(|_| anyhow!("panicked"))?
}
