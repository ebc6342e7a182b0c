//! What is asked of the metadata leader.

use std::collections::BTreeSet;

use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::metadata::controller::create_topics::{CreationRules, NewTopic, create_topics};
use crate::metadata::controller::delete_topics::{DoomedTopic, delete_topics};
use crate::metadata::controller::leader_reports::apply_reports;
use crate::metadata::controller::producer_ids;
use crate::metadata::controller::reassignments::{Reassignment, alter_reassignments};
use crate::metadata::controller::register_broker::{stop_broker, unregister_broker};
use crate::metadata::image::{ConfigResource, MetadataImage, PartitionState, Topic};
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::records::{ConfigRecord, MetadataRecord};

/// What a command makes of an image.
type Decide = Box<dyn FnOnce(&MetadataImage) -> Vec<MetadataRecord> + Send>;

/// A command: what it is, and what it makes of the image that it is carried out on.
pub(super) struct Command {
    pub(super) what: String,
    pub(super) decide: Decide,
}

fn command(
    what: String,
    decide: impl FnOnce(&MetadataImage) -> Vec<MetadataRecord> + Send + 'static,
) -> Command {
    Command {
        what,
        decide: Box::new(decide),
    }
}

/// A command that is likely to change something of `image`, which is what some node knows.
pub(super) fn random(rng: &mut StdRng, image: &MetadataImage) -> Command {
    let topics: Vec<_> = image.topics().collect();
    let topic = topics.choose(rng).map(|topic| Topic::clone(topic));
    match (rng.random_range(0..20), topic) {
        (0..6, _) | (_, None) => creation(rng),
        (6..8, Some(topic)) => deletion(&topic),
        (8..13, Some(topic)) => report(rng, &topic),
        (13..15, Some(topic)) => reassignment(rng, &topic),
        (15..17, Some(topic)) => setting(rng, &topic),
        (17, _) => departure(rng, image),
        (18, _) if rng.random_ratio(1, 8) => {
            let node = NodeId::new(rng.random_range(1..6));
            command(format!("unregister {node}"), move |image| {
                unregister_broker(image, node).unwrap_or_default()
            })
        }
        _ => {
            let node = NodeId::new(rng.random_range(1..6));
            command("producer ids".to_owned(), move |image| {
                producer_ids::allocate(image, node).0
            })
        }
    }
}

fn creation(rng: &mut StdRng) -> Command {
    let topics: Vec<NewTopic> = (0..rng.random_range(1..4))
        .map(|_| NewTopic {
            name: format!(
                "topic{}{}",
                ["-", ".", "_"][rng.random_range(0..3)],
                rng.random_range(0..30)
            ),
            partitions: rng.random_range(1..4),
            replication_factor: rng.random_range(1..4),
            assignments: Vec::new(),
            configs: vec![("retention.ms".to_owned(), Some("1000".to_owned()))],
        })
        .collect();
    let mut ids: Vec<TopicId> = topics
        .iter()
        .map(|_| TopicId::from_bytes(rng.random()))
        .collect();
    let names: Vec<_> = topics.iter().map(|topic| topic.name.clone()).collect();
    command(format!("create {names:?}"), move |image| {
        let rules = CreationRules {
            default_partitions: 1,
            default_replication_factor: 1,
            silent: BTreeSet::new(),
            check_configs: &|settings| Ok(settings.clone()),
        };
        create_topics(image, &topics, &rules, || {
            ids.pop().unwrap_or(TopicId::ZERO)
        })
        .0
    })
}

fn deletion(topic: &Topic) -> Command {
    let doomed = DoomedTopic {
        name: None,
        topic_id: topic.id,
    };
    command(format!("delete {}", topic.name), move |image| {
        delete_topics(image, &[doomed]).0
    })
}

fn some_partition(rng: &mut StdRng, topic: &Topic) -> Option<(PartitionIndex, PartitionState)> {
    let all: Vec<_> = topic.indexed().collect();
    all.choose(rng)
        .map(|(index, state)| (*index, (*state).clone()))
}

/// A leader says of its partition what may be true: that it leads, in this epoch or the next, and that
/// replicas have come and gone.
fn report(rng: &mut StdRng, topic: &Topic) -> Command {
    let Some((partition, state)) = some_partition(rng, topic) else {
        return creation(rng);
    };
    let target = state.target_replicas();
    let candidates = if target.is_empty() {
        &state.replicas
    } else {
        &target
    };
    let leader = *candidates.choose(rng).expect("a partition has replicas");
    let mut isr = state.replicas.clone();
    isr.shuffle(rng);
    isr.truncate(rng.random_range(1..4));
    let report = LeaderReport {
        topic_id: topic.id,
        partition,
        incarnation: state.incarnation(),
        leader,
        epoch: LeaderEpoch::new(state.leader_epoch.get() + rng.random_range(0..2)),
        isr,
        reassigned: (state.is_reassigning() && rng.random()).then_some(target),
    };
    command(format!("report {report:?}"), move |image| {
        apply_reports(image, &[report])
    })
}

fn reassignment(rng: &mut StdRng, topic: &Topic) -> Command {
    let Some((partition, state)) = some_partition(rng, topic) else {
        return creation(rng);
    };
    let mut replicas: Vec<NodeId> = (1..6).map(NodeId::new).collect();
    replicas.shuffle(rng);
    replicas.truncate(state.target_replicas().len().max(1));
    let wanted = Reassignment {
        topic: topic.name.to_string(),
        partition,
        replicas: rng.random_ratio(4, 5).then_some(replicas),
    };
    command(format!("reassign {wanted:?}"), move |image| {
        alter_reassignments(image, &[wanted], true).0
    })
}

fn setting(rng: &mut StdRng, topic: &Topic) -> Command {
    let (id, value) = (
        topic.id,
        rng.random_ratio(3, 4)
            .then(|| rng.random_range(0..9).to_string()),
    );
    command(format!("configure {}", topic.name), move |image| {
        let topic = image.topic_by_id(id);
        let records = topic.map(|topic| {
            let resource = ConfigResource::topic(&*topic.name);
            MetadataRecord::Config(ConfigRecord {
                resource_type: resource.kind.code(),
                resource_name: resource.name,
                name: "retention.ms".to_owned(),
                value,
            })
        });
        records.into_iter().collect()
    })
}

fn departure(rng: &mut StdRng, image: &MetadataImage) -> Command {
    let brokers: Vec<_> = image
        .brokers()
        .map(|(id, it)| (id, it.broker_epoch))
        .collect();
    let (node, epoch) = brokers.choose(rng).copied().unwrap_or((NodeId::new(1), 0));
    let now = rng.random();
    command(format!("stop {node} {now}"), move |image| {
        stop_broker(image, node, epoch, now)
    })
}
