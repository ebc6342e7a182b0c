//! The voters of the metadata quorum, on three nodes of each, compared with Kafka.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use compat_tests::cluster::Addresses;
use compat_tests::comparison::compare_clusters;
use compat_tests::requests::topic_name;
use compat_tests::transcript::Probe;
use compat_tests::wire::text;
use kafka_protocol::messages::add_raft_voter_request::Listener;
use kafka_protocol::messages::describe_quorum_request::{PartitionData, TopicData};
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    AddRaftVoterRequest, BrokerId, DescribeClusterRequest, DescribeQuorumRequest,
    RemoveRaftVoterRequest, UpdateFeaturesRequest,
};
use uuid::Uuid;

/// How long the voters may take to tell what they can do and who they are, or to be taken out and back.
const PATIENCE: Duration = Duration::from_secs(60);

/// A voter, and where it is.
#[derive(Clone, Debug)]
struct Voter {
    id: i32,
    directory: Uuid,
    listeners: Vec<Listener>,
}

fn quorum() -> DescribeQuorumRequest {
    let partition = PartitionData::default().with_partition_index(0);
    let topic = TopicData::default()
        .with_topic_name(topic_name("__cluster_metadata"))
        .with_partitions(vec![partition]);
    DescribeQuorumRequest::default().with_topics(vec![topic])
}

/// The voters that are there now, in the order of their ids, and who leads.
fn voters(probe: &mut Probe) -> Result<(Vec<Voter>, i32)> {
    let answer = probe.prepare(2, &quorum())?;
    let row = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("no partition")?;
    let mut voters: Vec<Voter> = row
        .current_voters
        .iter()
        .map(|state| Voter {
            id: state.replica_id.0,
            directory: state.replica_directory_id,
            listeners: answer
                .nodes
                .iter()
                .filter(|node| node.node_id == state.replica_id)
                .flat_map(|node| &node.listeners)
                .map(|listener| {
                    Listener::default()
                        .with_name(listener.name.clone())
                        .with_host(listener.host.clone())
                        .with_port(listener.port)
                })
                .collect(),
        })
        .collect();
    voters.sort_by_key(|voter| voter.id);
    Ok((voters, row.leader_id.0))
}

fn addition(voter: &Voter) -> AddRaftVoterRequest {
    AddRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_timeout_ms(5_000)
        .with_voter_id(voter.id)
        .with_voter_directory_id(voter.directory)
        .with_listeners(voter.listeners.clone())
}

fn removal(voter: &Voter) -> RemoveRaftVoterRequest {
    RemoveRaftVoterRequest::default()
        .with_cluster_id(None)
        .with_voter_id(voter.id)
        .with_voter_directory_id(voter.directory)
}

fn listener(name: &str) -> Listener {
    Listener::default()
        .with_name(text(name))
        .with_host(text("127.0.0.1"))
        .with_port(9)
}

/// Requests that are refused whoever votes, and one that is not for these voters.
fn ask_what_is_refused(probe: &mut Probe, when: &str, stranger: &Voter) -> Result<()> {
    let label = |what: &str| format!("{when}: {what}");
    let nobody = Voter {
        id: -1,
        ..stranger.clone()
    };
    let nowhere = Voter {
        directory: Uuid::nil(),
        ..stranger.clone()
    };
    probe.ask_each(&label("another cluster"), |_| {
        addition(stranger).with_cluster_id(Some(text("xxxxxxxxxxxxxxxxxxxxxx")))
    })?;
    probe.ask_each(&label("no id"), |_| addition(&nobody))?;
    probe.ask_each(&label("no directory"), |_| addition(&nowhere))?;
    probe.ask_each(&label("no listener"), |_| {
        addition(stranger).with_listeners(vec![])
    })?;
    probe.ask_each(&label("another listener"), |_| {
        addition(stranger).with_listeners(vec![listener("OTHER")])
    })?;
    probe.ask_each(&label("a stranger"), |_| {
        addition(stranger).with_timeout_ms(500)
    })?;
    probe.ask_each(&label("another cluster"), |_| {
        removal(stranger).with_cluster_id(Some(text("xxxxxxxxxxxxxxxxxxxxxx")))
    })?;
    probe.ask_each(&label("no id"), |_| removal(&nobody))?;
    probe.ask_each(&label("no directory"), |_| removal(&nowhere))?;
    probe.ask_each(&label("a stranger"), |_| removal(stranger))
}

/// Requests that are refused because of who votes; a voter that does not lead.
fn ask_of_a_voter(probe: &mut Probe) -> Result<Voter> {
    // Each voter is named with its directory once its node has told.
    let deadline = Instant::now() + PATIENCE;
    let (voters, leader) = loop {
        let (voters, leader) = voters(probe)?;
        if voters.iter().all(|voter| !voter.directory.is_nil()) {
            break (voters, leader);
        }
        ensure!(Instant::now() < deadline, "a voter without a directory");
        std::thread::sleep(Duration::from_millis(200));
    };
    let follower = voters.into_iter().find(|voter| voter.id != leader);
    let voter = follower.context("no voter but the leader")?;
    let other_disk = Voter {
        directory: Uuid::from_bytes([8; 16]),
        ..voter.clone()
    };
    for (label, voter) in [("a voter", &voter), ("a voter's other disk", &other_disk)] {
        probe.ask_each(label, |_| addition(voter))?;
    }
    probe.ask_each("a voter's other disk", |_| removal(&other_disk))?;
    Ok(voter)
}

/// Takes a voter out and adds it again.
fn take_out_and_back(probe: &mut Probe, voter: &Voter) -> Result<()> {
    let votes = |probe: &mut Probe| -> Result<(usize, Option<bool>)> {
        let (voters, _) = voters(probe)?;
        let found = voters.iter().find(|known| known.id == voter.id);
        let found = found.map(|known| known.directory == voter.directory);
        Ok((voters.len(), found))
    };
    probe.ask("out", 0, &removal(voter))?;
    let left = votes(probe)?;
    probe.note("voters without it", left)?;
    probe.ask("out once more", 0, &removal(voter))?;
    // Until it has followed for a while, Kafka says that it lags behind.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = probe.prepare(0, &addition(voter))?;
        match answer.error_code {
            0 => break,
            7 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(200)),
            code => bail!("error {code}: {:?}", answer.error_message),
        }
    }
    let whole = votes(probe)?;
    probe.note("voters with it", whole)?;
    probe.ask("back once more", 0, &addition(voter))?;
    Ok(())
}

#[test]
fn voters_of_three_nodes() -> Result<()> {
    let broker = |node: Addresses| node.broker;
    compare_clusters("voters_of_three_nodes", 3, broker, |probe| {
        // Directories and ports are in the sentences.
        probe.mask("error_message");
        probe.mask("results[].error_message");
        let stranger = Voter {
            id: BrokerId(9).0,
            directory: Uuid::from_bytes([9; 16]),
            listeners: vec![listener("CONTROLLER")],
        };
        ask_what_is_refused(probe, "fixed", &stranger)?;
        let raise = |level: i16| {
            let update = FeatureUpdateKey::default()
                .with_feature(text("kraft.version"))
                .with_max_version_level(level)
                .with_upgrade_type(1);
            UpdateFeaturesRequest::default()
                .with_timeout_ms(10_000)
                .with_feature_updates(vec![update])
        };
        for (label, level) in [("one too many", 2), ("as it is", 0)] {
            probe.ask(&format!("kraft.version: {label}"), 1, &raise(level))?;
        }
        // Kafka refuses until every voter has told what it can do.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let code = probe.prepare(1, &raise(1))?.error_code;
            if code == 0 {
                break;
            }
            ensure!(Instant::now() < deadline, "error {code}");
            std::thread::sleep(Duration::from_millis(200));
        }
        probe.ask("kraft.version: again", 1, &raise(1))?;
        probe.ask("kraft.version: back", 1, &raise(0))?;
        ask_what_is_refused(probe, "named", &stranger)?;
        let voter = ask_of_a_voter(probe)?;
        take_out_and_back(probe, &voter)
    })
}

#[test]
fn controllers_of_three_nodes() -> Result<()> {
    let controller = |node: Addresses| node.controller;
    compare_clusters("controllers_of_three_nodes", 3, controller, |probe| {
        // Whoever leads; and a node's port is its own.
        probe.mask("controller_id");
        probe.mask("brokers[].port");
        probe.mask("brokers[].host");
        probe.sort("brokers", "broker_id");
        for kind in [0, 1, 2, 3, -1] {
            for version in 0..=2 {
                // Version 0 cannot say it.
                if version == 0 && kind != 1 {
                    continue;
                }
                let request = DescribeClusterRequest::default().with_endpoint_type(kind);
                probe.ask(&format!("endpoints of type {kind}"), version, &request)?;
            }
        }
        Ok(())
    })
}
