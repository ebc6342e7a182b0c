//! Plays a session to one server.
//!
//! Kafka's broker learns of what its controller has decided a moment later; after every request that may change the
//! metadata a setting is changed twice and read until it is there, so that all before it has been carried out. A
//! transaction that is being ended is waited for. Both would otherwise be races that say nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Buf;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest,
    DescribeConfigsRequest, DescribeTransactionsRequest, GroupId, IncrementalAlterConfigsRequest,
    InitProducerIdRequest, LeaveGroupRequest, ProducerId, TransactionalId,
};

use super::side::Side;
use super::world::{CLASSIC, CONSUMER, PRODUCERS, SIMPLE, STATIC, TOPICS};
use super::{Asked, messages};
use crate::groups::{going_on, joining};
use crate::requests::{Topic, creatable, metadata_of, topic_name, wait_for_leaders};
use crate::tree::Node;
use crate::wire::{PATIENCE, Wire, WireError, text};

/// Error code CONCURRENT_TRANSACTIONS.
const CONCURRENT_TRANSACTIONS: &str = "51";

/// One server that sessions are played to, one at a time.
pub struct Player {
    address: SocketAddr,
    /// A topic whose setting tells how far the metadata has been carried out; none if no change is answered before.
    canary: Option<String>,
    changes: u64,
    /// What the session says, one connection from its beginning to its end or to the answer that ends it.
    wire: Option<Wire>,
    /// What is asked beside the session.
    control: Wire,
}

impl Player {
    /// A player of the server at `address`; if it `lags` behind its controller, that is waited for with a topic of the
    /// name `canary`.
    pub fn new(address: SocketAddr, lags: bool, canary: &str) -> Result<Self> {
        let mut player = Self {
            address,
            canary: None,
            changes: 0,
            wire: None,
            control: Wire::connect(address)?,
        };
        if lags {
            crate::requests::create_topic(&mut player.control, canary, 1, &[])?;
            player.canary = Some(canary.to_owned());
        }
        Ok(player)
    }

    fn wire(&mut self) -> Result<&mut Wire> {
        let wire = match self.wire.take() {
            Some(wire) => wire,
            None => Wire::connect(self.address)?,
        };
        Ok(self.wire.insert(wire))
    }

    /// Plays requests in a fresh world whose names begin with `prefix`; the answers, as they are compared.
    pub fn play(&mut self, prefix: &str, steps: &[Asked]) -> Result<Vec<Node>> {
        self.wire = None;
        let (mut side, topics) = self.make_world(prefix)?;
        let mut answers = Vec::with_capacity(steps.len());
        for step in steps {
            let answer = self
                .ask(&mut side, step)
                .with_context(|| step.to_string())?;
            answers.push(answer);
            let settled = self.settle(&mut side, step);
            settled.with_context(|| format!("after {step}"))?;
        }
        self.clear(&side, &topics).context("at the end")?;
        Ok(answers)
    }

    fn make_world(&mut self, prefix: &str) -> Result<(Side, Vec<String>)> {
        let names = TOPICS.map(|(name, _, _)| name.replace('@', prefix));
        let wanted = TOPICS.iter().zip(&names);
        let topics =
            wanted.map(|((_, partitions, configs), name)| creatable(name, *partitions, configs));
        let request = CreateTopicsRequest::default()
            .with_timeout_ms(20_000)
            .with_topics(topics.collect());
        let answer = self.control.call(7, &request)?;
        let mut learned = Vec::new();
        for (topic, (name, partitions, _)) in answer.topics.iter().zip(TOPICS) {
            ensure!(topic.error_code == 0, "{name}: error {}", topic.error_code);
            let topic = Topic {
                name: topic.name.to_string(),
                id: topic.topic_id,
            };
            wait_for_leaders(&mut self.control, &topic, partitions)?;
            learned.push(topic);
        }
        self.await_coordinator(&CONSUMER.replace('@', prefix), &learned)?;
        let first = learned.first().context("no topics")?;
        let first_epoch = crate::requests::leader_epoch(&mut self.control, first, 0)?;
        let mut side = Side::new(prefix, first_epoch.into());
        learn_topics(&mut side, &learned);
        let more = ["@new", "@newer"].map(|name| name.replace('@', prefix));
        Ok((side, names.into_iter().chain(more).collect()))
    }

    /// Waits until the coordinator of a consumer group gives out these topics: in Kafka it learns of them later than
    /// the broker that it is part of. The group is gone again afterwards.
    fn await_coordinator(&mut self, group: &str, topics: &[Topic]) -> Result<()> {
        let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.control.call(0, &joining(group, "probe", &names))?;
            ensure!(answer.error_code == 0, "{group}: {answer:?}");
            let given = answer
                .assignment
                .map_or(0, |given| given.topic_partitions.len());
            if given == topics.len() {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{group} is given {given} of {names:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.control.call(0, &going_on(group, "probe", -1))?;
        let request = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(text(group))]);
        let answer = self.control.call(2, &request)?;
        let is_gone = answer.results.iter().all(|result| result.error_code == 0);
        ensure!(is_gone, "{group} stays: {answer:?}");
        Ok(())
    }

    fn ask(&mut self, side: &mut Side, step: &Asked) -> Result<Node> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = match self.ask_once(side, step) {
                Ok(answer) => answer,
                Err(error) => match error.downcast::<WireError>() {
                    Ok(error) => {
                        // A connection after a failure is in an unknown state.
                        self.wire = None;
                        return Ok(Node::atom(format!("<{error}>")));
                    }
                    Err(error) => return Err(error),
                },
            };
            // Kafka says so where Odradek waits; either way the transaction is complete in the end.
            if !mentions_concurrent_transactions(&answer) || Instant::now() > deadline {
                side.learn(&step.api, &step.message, &answer);
                return Ok(side.normalized(&step.api, answer));
            }
            self.await_transactions(side)?;
        }
    }

    fn ask_once(&mut self, side: &Side, step: &Asked) -> Result<Node> {
        let both = messages(&step.api)?;
        let message = side.resolved(&step.message)?;
        let mut body = both.request.encode(&message, step.version)?;
        if let Some(thousandths) = step.cut {
            body.truncate(body.len() * usize::from(thousandths) / 1000);
        }
        let key = both.request.api_key();
        let header_version = if both.request.is_flexible(step.version) {
            2
        } else {
            1
        };
        let is_flexible =
            both.response.is_flexible(step.version) && key != ApiKey::ApiVersions as i16;
        let wire = self.wire()?;
        let sent = wire.send_body(key, step.version, header_version, &body)?;
        if step.api == "Produce" && message.field("acks") == Some(&Node::atom("0")) {
            // Requests of a connection are carried out one after the other, so this comes behind it.
            let request = ApiVersionsRequest::default()
                .with_client_software_name(text("tests"))
                .with_client_software_version(text("1"));
            wire.call(3, &request)?;
            return Ok(Node::atom("<no answer is due>"));
        }
        let mut frame = wire.receive_frame()?;
        let got = frame.try_get_i32()?;
        ensure!(got == sent, WireError::Correlation { want: sent, got });
        if is_flexible {
            ensure!(
                frame.try_get_u8().ok() == Some(0),
                WireError::Undecodable("tags in the header".to_owned())
            );
        }
        // An answer to ApiVersions at a version that is not known comes at version 0; here all are known.
        let answer = both.response.decode(frame, step.version);
        answer.map_err(|error| WireError::Undecodable(format!("{error:#}")).into())
    }

    /// Waits until nothing that a request has begun goes on behind its answer.
    fn settle(&mut self, side: &mut Side, step: &Asked) -> Result<()> {
        match step.api.as_str() {
            "EndTxn" | "InitProducerId" => self.await_transactions(side),
            "CreateTopics" => {
                self.await_metadata()?;
                for name in ["@new", "@newer"] {
                    let answer = self.control.call(12, &metadata_of(&side.name(name)))?;
                    let found = answer.topics.iter().filter(|topic| topic.error_code == 0);
                    let found: Vec<Topic> = found
                        .map(|topic| Topic {
                            name: side.name(name),
                            id: topic.topic_id,
                        })
                        .collect();
                    learn_topics(side, &found);
                }
                Ok(())
            }
            "DeleteTopics"
            | "CreatePartitions"
            | "AlterConfigs"
            | "IncrementalAlterConfigs"
            | "ElectLeaders"
            | "AlterPartitionReassignments"
            | "UpdateFeatures" => self.await_metadata(),
            _ => Ok(()),
        }
    }

    fn await_transactions(&mut self, side: &Side) -> Result<()> {
        let ids = PRODUCERS.map(|id| TransactionalId(text(side.name(id))));
        let request = DescribeTransactionsRequest::default().with_transactional_ids(ids.to_vec());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.control.call(0, &request)?;
            let mut states = answer.transaction_states.iter();
            if !states.any(|state| state.transaction_state.starts_with("Prepare")) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "a transaction is not completed: {answer:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn await_metadata(&mut self) -> Result<()> {
        let Some(canary) = self.canary.clone() else {
            return Ok(());
        };
        // What is published with the first change has been carried out when the second one is seen.
        for _ in 0..2 {
            self.changes += 1;
            let value = (1_000_000 + self.changes).to_string();
            let config = AlterableConfig::default()
                .with_name(text("retention.ms"))
                .with_value(Some(text(&value)));
            let resource = AlterConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text(&canary))
                .with_configs(vec![config]);
            let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
            self.control.call(1, &request)?;
            self.await_setting(&canary, &value)?;
        }
        Ok(())
    }

    fn await_setting(&mut self, topic: &str, value: &str) -> Result<()> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(topic))
            .with_configuration_keys(Some(vec![text("retention.ms")]));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.control.call(4, &request)?;
            let mut configs = answer.results.iter().flat_map(|result| &result.configs);
            if configs.any(|config| {
                config
                    .value
                    .as_ref()
                    .is_some_and(|known| known.as_str() == value)
            }) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{topic} does not get its setting"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes a session's world away, so that the next ones do not get slower by it. What cannot be taken away stays.
    fn clear(&mut self, side: &Side, topics: &[String]) -> Result<()> {
        for id in PRODUCERS {
            if side.chosen(&format!("pid:{id}")).is_some() {
                let request = InitProducerIdRequest::default()
                    .with_transactional_id(Some(TransactionalId(text(side.name(id)))))
                    .with_transaction_timeout_ms(60_000)
                    .with_producer_id(ProducerId(-1))
                    .with_producer_epoch(-1);
                self.control.call(4, &request)?;
            }
        }
        self.await_transactions(side)?;
        for group in [CLASSIC, STATIC] {
            if let Some(member) = side.chosen(&format!("member:{group}")) {
                let request = LeaveGroupRequest::default()
                    .with_group_id(GroupId(text(side.name(group))))
                    .with_member_id(text(member.trim_matches('"')));
                self.control.call(2, &request)?;
            }
        }
        for group in [CONSUMER, SIMPLE] {
            for member in ["m1", "m2", "m3"] {
                if side.chosen(&format!("member_epoch:{member}")).is_some() {
                    let request = going_on(&side.name(group), member, -1);
                    self.control.call(0, &request)?;
                }
            }
        }
        let groups = [CLASSIC, STATIC, SIMPLE, CONSUMER, "@nobody"]
            .map(|group| GroupId(text(side.name(group))));
        let request = DeleteGroupsRequest::default().with_groups_names(groups.to_vec());
        self.control.call(2, &request)?;
        let states = topics
            .iter()
            .map(|topic| DeleteTopicState::default().with_name(Some(topic_name(topic))));
        let request = DeleteTopicsRequest::default()
            .with_topics(states.collect())
            .with_timeout_ms(20_000);
        self.control.call(6, &request)?;
        Ok(())
    }
}

fn learn_topics(side: &mut Side, topics: &[Topic]) {
    let rows = topics.iter().map(|topic| {
        crate::tree::fields(&[
            ("error_code", Node::atom("0")),
            ("name", Node::text(&topic.name)),
            ("topic_id", Node::atom(topic.id.to_string())),
        ])
    });
    let answer = crate::tree::fields(&[("topics", Node::List(rows.collect()))]);
    side.learn("CreateTopics", &Node::Struct(Vec::new()), &answer);
}

fn mentions_concurrent_transactions(answer: &Node) -> bool {
    let mut found = false;
    answer.clone().visit(&mut |path, node| {
        let is_code = path.ends_with("error_code") && *node == Node::atom(CONCURRENT_TRANSACTIONS);
        found |= is_code;
    });
    found
}
