//! Every API and version that is advertised is answered, and what is not advertised is refused.

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use compat_tests::compared::COMPARED;
use compat_tests::server::Server;
use compat_tests::transcript::served_versions;
use compat_tests::wire::{Wire, WireError, request_header_version, text};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, AddRaftVoterRequest, AlterConfigsRequest,
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, ApiKey, ApiVersionsRequest,
    ApiVersionsResponse, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    CreatePartitionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteRecordsRequest,
    DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, DescribeGroupsRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest,
    DescribeTopicPartitionsRequest, DescribeTransactionsRequest, ElectLeadersRequest,
    EndTxnRequest, FetchRequest, FindCoordinatorRequest, GetTelemetrySubscriptionsRequest,
    HeartbeatRequest, IncrementalAlterConfigsRequest, InitProducerIdRequest, JoinGroupRequest,
    LeaveGroupRequest, ListConfigResourcesRequest, ListGroupsRequest, ListOffsetsRequest,
    ListPartitionReassignmentsRequest, ListTransactionsRequest, MetadataRequest,
    OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest,
    ProduceRequest, PushTelemetryRequest, RemoveRaftVoterRequest, SyncGroupRequest,
    TxnOffsetCommitRequest, UnregisterBrokerRequest, UpdateFeaturesRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::{Decodable, Request};

/// What `docs/PROTOCOL.md` lists: key, lowest and highest version.
fn documented() -> Result<Vec<(i16, i16, i16)>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PROTOCOL.md");
    let text = std::fs::read_to_string(path)?;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let [_, key, versions] = cells[..]
            && let Ok(key) = key.parse()
        {
            let (min, max) = versions.split_once('–').unwrap_or((versions, versions));
            rows.push((key, min.parse()?, max.parse()?));
        }
    }
    Ok(rows)
}

/// The section of `docs/PROTOCOL.md` that is written by this test when `ODRADEK_WRITE_DOCS` is set.
#[test]
fn the_known_differences_are_documented() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PROTOCOL.md");
    let text = std::fs::read_to_string(path)?;
    let heading = "## Answers that differ from Kafka's on purpose\n";
    let mut section = format!(
        "{heading}\nThe tests play the same requests, at every advertised version, to Apache Kafka {} and compare the answers\n\
         field by field, but for ids, ports, leader epochs (Raft's terms here) and the words of error messages.\n\
         Whatever else differs is in this table, which is taken from `compat-tests/src/known.rs`; a line that no\n\
         longer applies fails the tests.\n\n\
         | API | asked | field | why |\n|---|---|---|---|\n",
        compat_tests::kafka::VERSION
    );
    for row in compat_tests::known::KNOWN {
        let code = |words: &[&str]| {
            words
                .iter()
                .map(|word| format!("`{word}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let asked = row.asked.join("; ");
        section.push_str(&format!(
            "| {} | {asked} | {} | {} |\n",
            row.api,
            code(row.paths),
            row.reason
        ));
    }
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/results");
    let about = compat_tests::compatibility::about_random_requests(results.as_ref())?;
    section.push_str(&format!(
        "\nRequests that are made up at random are compared in the same way (`compare_random`).\n{about}\n\
         What differs there on purpose (`compat-tests/src/generator/tolerated.rs`):\n\n\
         | API | field | here | Kafka | why |\n|---|---|---|---|---|\n",
    ));
    for row in compat_tests::generator::tolerated::TOLERATED {
        let or_anything = |text: &str| match text {
            "" => "anything".to_owned(),
            text => format!("`{text}`"),
        };
        section.push_str(&format!(
            "| {} | `{}` | {} | {} | {} |\n",
            row.api,
            row.path,
            or_anything(row.ours),
            or_anything(row.kafka),
            row.reason
        ));
    }
    let before = text
        .split(heading)
        .next()
        .context("nothing in the document")?;
    let wanted = format!("{}\n\n{section}", before.trim_end());
    if std::env::var_os("ODRADEK_WRITE_DOCS").is_some() {
        std::fs::write(path, &wanted)?;
    }
    ensure!(
        std::fs::read_to_string(path)? == wanted,
        "run the tests with ODRADEK_WRITE_DOCS=1"
    );
    Ok(())
}

#[test]
fn the_advertised_apis_are_those_that_are_documented() -> Result<()> {
    let server = Server::start()?;
    let served: Vec<(i16, i16, i16)> = served_versions(server.address())?
        .into_iter()
        .map(|(key, (min, max))| (key, min, max))
        .collect();
    assert_eq!(served, documented()?);
    Ok(())
}

/// A new API or version needs a comparison, and a row in `compat-tests/src/compared.rs` that names it.
#[test]
fn every_advertised_version_is_compared_with_kafka() -> Result<()> {
    let server = Server::start()?;
    let mut missing = Vec::new();
    for (key, (min, max)) in served_versions(server.address())? {
        for version in min..=max {
            let is_compared = COMPARED
                .iter()
                .any(|row| row.api as i16 == key && row.versions().contains(&version));
            if !is_compared && !compat_tests::server::kafka_instead() {
                missing.push(format!("API {key} v{version}"));
            }
        }
    }
    ensure!(missing.is_empty(), "in no comparison: {missing:?}");
    Ok(())
}

fn ask<R: Request>(wire: &mut Wire, min: i16, max: i16, request: impl Fn(i16) -> R) -> Result<()> {
    for version in min.max(R::VERSIONS.min)..=max.min(R::VERSIONS.max) {
        wire.call(version, &request(version))
            .map(drop)
            .with_context(|| format!("API {} v{version}", R::KEY))?;
    }
    Ok(())
}

#[test]
fn every_advertised_version_gets_a_well_formed_answer() -> Result<()> {
    let server = Server::start()?;
    let served = served_versions(server.address())?;
    let mut wire = server.connect()?;
    for (&key, &(min, max)) in &served {
        let wire = &mut wire;
        // Bodies as empty as they can be: what is tested is that request and answer have the version's shape.
        match ApiKey::try_from(key).ok() {
            Some(ApiKey::Produce) => {
                ask(wire, min, max, |_| ProduceRequest::default().with_acks(-1))?
            }
            Some(ApiKey::Fetch) => ask(wire, min, max, |_| FetchRequest::default())?,
            Some(ApiKey::ListOffsets) => ask(wire, min, max, |_| ListOffsetsRequest::default())?,
            Some(ApiKey::Metadata) => ask(wire, min, max, |_| MetadataRequest::default())?,
            Some(ApiKey::OffsetCommit) => ask(wire, min, max, |_| OffsetCommitRequest::default())?,
            Some(ApiKey::OffsetFetch) => ask(wire, min, max, |_| OffsetFetchRequest::default())?,
            Some(ApiKey::FindCoordinator) => {
                ask(wire, min, max, |_| FindCoordinatorRequest::default())?
            }
            Some(ApiKey::JoinGroup) => ask(wire, min, max, |_| JoinGroupRequest::default())?,
            Some(ApiKey::Heartbeat) => ask(wire, min, max, |_| HeartbeatRequest::default())?,
            Some(ApiKey::LeaveGroup) => ask(wire, min, max, |_| LeaveGroupRequest::default())?,
            Some(ApiKey::SyncGroup) => ask(wire, min, max, |_| SyncGroupRequest::default())?,
            Some(ApiKey::ApiVersions) => ask(wire, min, max, |version| {
                let name = if version >= 3 { "t" } else { "" };
                ApiVersionsRequest::default()
                    .with_client_software_name(text(name))
                    .with_client_software_version(text(name))
            })?,
            Some(ApiKey::CreateTopics) => ask(wire, min, max, |_| CreateTopicsRequest::default())?,
            Some(ApiKey::DeleteTopics) => ask(wire, min, max, |_| DeleteTopicsRequest::default())?,
            Some(ApiKey::DeleteRecords) => {
                ask(wire, min, max, |_| DeleteRecordsRequest::default())?
            }
            Some(ApiKey::InitProducerId) => {
                ask(wire, min, max, |_| {
                    InitProducerIdRequest::default().with_transactional_id(None)
                })?;
            }
            Some(ApiKey::OffsetForLeaderEpoch) => {
                ask(wire, min, max, |_| OffsetForLeaderEpochRequest::default())?
            }
            Some(ApiKey::DescribeConfigs) => {
                ask(wire, min, max, |_| DescribeConfigsRequest::default())?
            }
            Some(ApiKey::AlterConfigs) => ask(wire, min, max, |_| AlterConfigsRequest::default())?,
            Some(ApiKey::AlterReplicaLogDirs) => {
                ask(wire, min, max, |_| AlterReplicaLogDirsRequest::default())?
            }
            Some(ApiKey::DescribeLogDirs) => {
                ask(wire, min, max, |_| DescribeLogDirsRequest::default())?
            }
            Some(ApiKey::CreatePartitions) => {
                ask(wire, min, max, |_| CreatePartitionsRequest::default())?
            }
            Some(ApiKey::IncrementalAlterConfigs) => ask(wire, min, max, |_| {
                IncrementalAlterConfigsRequest::default()
            })?,
            Some(ApiKey::DescribeCluster) => {
                ask(wire, min, max, |_| DescribeClusterRequest::default())?
            }
            Some(ApiKey::DescribeGroups) => {
                ask(wire, min, max, |_| DescribeGroupsRequest::default())?
            }
            Some(ApiKey::ListGroups) => ask(wire, min, max, |_| ListGroupsRequest::default())?,
            Some(ApiKey::DeleteGroups) => ask(wire, min, max, |_| DeleteGroupsRequest::default())?,
            Some(ApiKey::OffsetDelete) => ask(wire, min, max, |_| OffsetDeleteRequest::default())?,
            Some(ApiKey::ConsumerGroupHeartbeat) => {
                ask(wire, min, max, |_| ConsumerGroupHeartbeatRequest::default())?
            }
            Some(ApiKey::ConsumerGroupDescribe) => {
                ask(wire, min, max, |_| ConsumerGroupDescribeRequest::default())?
            }
            Some(ApiKey::DescribeProducers) => {
                ask(wire, min, max, |_| DescribeProducersRequest::default())?
            }
            Some(ApiKey::ListConfigResources) => {
                ask(wire, min, max, |_| ListConfigResourcesRequest::default())?
            }
            Some(ApiKey::ElectLeaders) => ask(wire, min, max, |_| ElectLeadersRequest::default())?,
            Some(ApiKey::AlterPartitionReassignments) => ask(wire, min, max, |_| {
                AlterPartitionReassignmentsRequest::default()
            })?,
            Some(ApiKey::ListPartitionReassignments) => ask(wire, min, max, |_| {
                ListPartitionReassignmentsRequest::default()
            })?,
            Some(ApiKey::DescribeQuorum) => {
                ask(wire, min, max, |_| DescribeQuorumRequest::default())?
            }
            Some(ApiKey::UpdateFeatures) => {
                ask(wire, min, max, |_| UpdateFeaturesRequest::default())?
            }
            Some(ApiKey::AddRaftVoter) => {
                ask(wire, min, max, |_| AddRaftVoterRequest::default())?;
            }
            Some(ApiKey::RemoveRaftVoter) => {
                ask(wire, min, max, |_| RemoveRaftVoterRequest::default())?;
            }
            Some(ApiKey::UnregisterBroker) => ask(wire, min, max, |_| {
                UnregisterBrokerRequest::default().with_broker_id(77.into())
            })?,
            Some(ApiKey::AddPartitionsToTxn) => {
                ask(wire, min, max, |_| AddPartitionsToTxnRequest::default())?
            }
            Some(ApiKey::AddOffsetsToTxn) => {
                ask(wire, min, max, |_| AddOffsetsToTxnRequest::default())?
            }
            Some(ApiKey::EndTxn) => ask(wire, min, max, |_| EndTxnRequest::default())?,
            Some(ApiKey::WriteTxnMarkers) => {
                ask(wire, min, max, |_| WriteTxnMarkersRequest::default())?
            }
            Some(ApiKey::TxnOffsetCommit) => {
                ask(wire, min, max, |_| TxnOffsetCommitRequest::default())?
            }
            Some(ApiKey::DescribeTransactions) => {
                ask(wire, min, max, |_| DescribeTransactionsRequest::default())?
            }
            Some(ApiKey::ListTransactions) => {
                ask(wire, min, max, |_| ListTransactionsRequest::default())?
            }
            Some(ApiKey::GetTelemetrySubscriptions) => {
                ask(wire, min, max, |_| {
                    GetTelemetrySubscriptionsRequest::default()
                })?;
            }
            Some(ApiKey::PushTelemetry) => {
                ask(wire, min, max, |_| PushTelemetryRequest::default())?;
            }
            Some(ApiKey::DescribeTopicPartitions) => {
                ask(wire, min, max, |_| {
                    DescribeTopicPartitionsRequest::default()
                })?;
            }
            _ if compat_tests::server::kafka_instead() => {}
            other => anyhow::bail!("API {key} ({other:?}) is advertised, but no test sends it"),
        }
    }
    Ok(())
}

/// Bodies of the versions that the test's codec does not know yet, by hand, and what follows the answer's header.
#[test]
fn versions_beyond_the_codec_are_answered_in_their_own_shape() -> Result<()> {
    let (_server, mut wire) = Server::connected()?;
    let mut raw = |key: i16, version: i16, body: &[u8]| -> Result<Bytes, WireError> {
        wire.send_body(key, version, 2, body)?;
        let mut frame = wire.receive_frame()?;
        // Correlation id and, but for ApiVersions, an empty tag section.
        frame.advance(if key == 18 { 4 } else { 5 });
        Ok(frame)
    };
    // ListOffsets v11: replica, isolation, no topics, timeout, tags. Throttle time, no topics, tags.
    let answer = raw(2, 11, &[0xff, 0xff, 0xff, 0xff, 0, 1, 0, 0, 0, 100, 0])?;
    assert_eq!(&answer[..], [0, 0, 0, 0, 1, 0]);
    // OffsetCommit v10: group, generation, member, no instance, no topics.
    let mut body = BytesMut::from(&b"\x02g"[..]);
    body.put_i32(-1);
    body.put_slice(&[1, 0, 1, 0]);
    assert_eq!(&raw(8, 10, &body)?[..], [0, 0, 0, 0, 1, 0]);
    // OffsetFetch v10: no groups, not only stable.
    assert_eq!(&raw(9, 10, &[1, 0, 0])?[..], [0, 0, 0, 0, 1, 0]);
    // DescribeLogDirs v5: no topics asked for. Throttle time, error, one directory.
    let answer = raw(35, 5, &[1, 0])?;
    assert_eq!(&answer[..7], [0, 0, 0, 0, 0, 0, 2], "{answer:?}");
    // WriteTxnMarkers v2: no markers. Nothing was written.
    assert_eq!(&raw(27, 2, &[1, 0])?[..], [1, 0]);
    // TxnOffsetCommit v6: transactional id, group, producer, epoch, generation, member, no instance, no topics.
    let mut body = BytesMut::from(&b"\x02t\x02g"[..]);
    body.put_i64(1);
    body.put_i16(0);
    body.put_i32(-1);
    body.put_slice(&[1, 0, 1, 0]);
    assert_eq!(&raw(28, 6, &body)?[..], [0, 0, 0, 0, 1, 0]);
    // ApiVersions v5: name and version of the client, and the cluster and node that it means to speak to.
    let mut answer = raw(18, 5, b"\x02t\x021\x00\xff\xff\xff\xff\x00")?;
    ensure!(answer.len() > 20, "{answer:?}");
    assert_eq!(answer.get_i16(), 0);
    const REBOOTSTRAP_REQUIRED: i16 = 129;
    let mut answer = raw(18, 5, b"\x02t\x021\x06other\x00\x00\x00\x01\x00")?;
    assert_eq!(answer.get_i16(), REBOOTSTRAP_REQUIRED);
    Ok(())
}

#[test]
fn an_unknown_version_of_api_versions_is_answered_at_version_0_with_the_list() -> Result<()> {
    let server = Server::start()?;
    for version in [6, 99, i16::MAX, -1] {
        let mut wire = server.connect()?;
        let correlation_id = wire.send_body(18, version, 2, b"\x02t\x021\x00")?;
        let mut frame = wire.receive_frame()?;
        assert_eq!(frame.get_i32(), correlation_id);
        let answer = ApiVersionsResponse::decode(&mut frame, 0)?;
        assert_eq!(answer.error_code, 35);
        ensure!(
            answer.api_keys.iter().any(|row| row.api_key == 18),
            "no versions to choose from"
        );
        ensure!(!frame.has_remaining(), "more than version 0");
        // The client goes on over the same connection.
        wire.call(0, &ApiVersionsRequest::default())?;
    }
    Ok(())
}

#[test]
fn unknown_apis_and_versions_end_the_connection_and_nothing_else() -> Result<()> {
    let server = Server::start()?;
    for (key, version) in [
        (999, 0),
        (-1, 0),
        (i16::MAX, 3),
        (3, 99),
        (3, -1),
        (0, 14),
        (1, 3),
        (19, 0),
        (4, 0),
    ] {
        let mut wire = server.connect()?;
        wire.metadata_of_everything()?;
        wire.send_body(
            key,
            version,
            request_header_version(key, version).max(1),
            &[0; 16],
        )?;
        ensure!(wire.is_closed_by_peer(), "API {key} v{version} is answered");
        server.connect()?.metadata_of_everything()?;
    }
    Ok(())
}
