//! Strangers at the listeners of a cluster's nodes: what they send must not stop anything.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use compat_tests::requests::Topic;

use super::three::{Three, batch, three};

/// How long a node may take to answer or to close a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// A node that has been silent for this long has said what it had to say.
const SILENCE: Duration = Duration::from_millis(300);
/// API key of a node's hello.
const HELLO: i16 = 10_000;
/// A connection for appends, and one for requests of one broker to another.
const APPEND: u8 = 1;
const REQUESTS: u8 = 2;
/// Kinds of frames.
const CALL: u8 = 1;
const OPEN: u8 = 3;
const APPEND_REQUEST: u8 = 4;
/// A candidate's call, and one to the broker.
const VOTE: u8 = 1;
const PEER: u8 = 5;
/// A broker registers.
const REGISTER: u8 = 4;
/// A term that no leader gets to, and one that is no leader epoch.
const LATE: u64 = 1 << 30;
const TOO_LATE: u64 = 1 << 40;

fn put_text(out: &mut BytesMut, text: &str) -> Result<()> {
    out.put_u16(u16::try_from(text.len())?);
    out.put_slice(text.as_bytes());
    Ok(())
}

/// Says to be node `id` to node `to`, and to belong to that cluster if one is named.
fn say_hello(
    address: SocketAddr,
    id: i32,
    to: i32,
    cluster: &str,
    purpose: u8,
) -> Result<TcpStream> {
    let mut hello = BytesMut::new();
    hello.put_i16(HELLO);
    hello.put_i16(0);
    hello.put_i32(0);
    put_text(&mut hello, "odradek")?;
    hello.put_u16(1);
    hello.put_u16(2);
    hello.put_i32(id);
    put_text(&mut hello, cluster)?;
    put_text(&mut hello, "a-directory")?;
    hello.put_slice(&[7; 16]);
    hello.put_i32(to);
    hello.put_u8(purpose);
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&u32::try_from(hello.len())?.to_be_bytes())?;
    stream.write_all(&hello)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length))?];
    stream.read_exact(&mut answer)?;
    ensure!(answer.get(4) == Some(&0), "it is not let in at all");
    Ok(stream)
}

fn frame(kind: u8, body: &[u8]) -> Result<Bytes> {
    let mut frame = BytesMut::new();
    frame.put_u32(u32::try_from(body.len() + 5)?);
    frame.put_u8(kind);
    frame.put_u32(1);
    frame.put_slice(body);
    Ok(frame.freeze())
}

/// The group of the metadata, or of a topic's first partition.
fn group(topic: Option<&Topic>) -> Bytes {
    let mut key = BytesMut::new();
    match topic {
        Some(topic) => key.put_slice(topic.id.as_bytes()),
        None => {
            key.put_bytes(0, 15);
            key.put_u8(1);
        }
    }
    key.put_i32(0);
    key.freeze()
}

/// A heartbeat of `leader`, who leads in that term.
fn heartbeat(group: &[u8], leader: u64, term: u64) -> Result<Bytes> {
    let mut body = BytesMut::new();
    body.put_u64(term);
    body.put_u64(leader);
    // Elected; nothing before it, nothing committed, no entry.
    body.put_slice(&[1, 0, 0, 0, 0, 0, 0]);
    let frames = [frame(OPEN, group)?, frame(APPEND_REQUEST, &body)?];
    Ok(frames.concat().into())
}

/// A candidate that has more entries than anybody.
fn vote(group: &[u8], candidate: u64, term: u64) -> Result<Bytes> {
    let mut body = BytesMut::new();
    body.put_u8(VOTE);
    body.put_slice(group);
    body.put_u64(term);
    body.put_u64(candidate);
    body.put_slice(&[0, 1]);
    body.put_u64(term);
    body.put_u64(1 << 30);
    // At the leader's wish, which sets aside what was promised to it.
    body.put_u8(1);
    frame(CALL, &body)
}

/// A broker of this id that nobody could reach.
fn registration(id: i32, host: &str, port: u16) -> Result<Bytes> {
    let mut body = BytesMut::new();
    body.put_slice(&[PEER, 1, REGISTER]);
    body.put_i32(id);
    body.put_slice(&[7; 16]);
    body.put_u32(1);
    put_text(&mut body, "PLAINTEXT")?;
    put_text(&mut body, host)?;
    body.put_u16(port);
    body.put_i16(0);
    // No rack, no directory, no voters.
    body.put_u8(0);
    body.put_u32(0);
    body.put_u32(0);
    frame(CALL, &body)
}

/// What comes back until the connection is closed or nothing more does.
fn answer(mut stream: TcpStream, message: &[u8]) -> Result<Vec<u8>> {
    // It may be closed already.
    let _ = stream.write_all(message);
    stream.set_read_timeout(Some(SILENCE))?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(read) => answer.extend(buffer.iter().take(read)),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(answer),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                return Ok(answer);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The cluster's id, which every client is told.
fn cluster_id(three: &mut Three) -> Result<String> {
    let request = kafka_protocol::messages::DescribeClusterRequest::default();
    let answer = three.any()?.call(0, &request)?;
    Ok(answer.cluster_id.to_string())
}

#[test]
fn strangers_stop_neither_partitions_nor_the_metadata() -> Result<()> {
    let mut three = Three::start(three())?;
    let topic = three.create(1, "guarded", &[&[1, 2, 3]])?;
    let (_, epoch) = three.leader(&topic, 0)?;
    three.produce(&topic, 0, &batch(1)?)?;
    let id = cluster_id(&mut three)?;
    for node in 1..=3 {
        let at = three.cluster.node(node)?.addresses();
        for address in [at.broker, at.controller] {
            // With the cluster's id and without it; in the name of nobody, and of another node.
            for cluster in ["", id.as_str()] {
                for leader in [99, 77, 1] {
                    for group in [group(None), group(Some(&topic))] {
                        for term in [LATE, TOO_LATE] {
                            let messages = [
                                heartbeat(&group, leader, term)?,
                                vote(&group, leader, term)?,
                            ];
                            for message in messages {
                                let stream = say_hello(address, 99, node, cluster, APPEND)?;
                                answer(stream, &message)?;
                            }
                        }
                    }
                }
            }
        }
    }
    // In the same epoch as before.
    let offset = three.produce(&topic, 0, &batch(1)?)?;
    assert_eq!(offset, 1);
    assert_eq!(three.leader(&topic, 0)?.1, epoch);
    three.create(2, "made-after", &[&[2, 3, 1]])?;
    Ok(())
}

#[test]
fn nobody_registers_as_a_broker_that_cannot_be() -> Result<()> {
    let mut three = Three::start(three())?;
    let id = cluster_id(&mut three)?;
    for node in 1..=3 {
        let address = three.cluster.node(node)?.addresses().controller;
        for (number, host, port, cluster) in [
            // Without a cluster, under a negative id, without an address, in the place of another.
            (98, "h", 9092, ""),
            (-3, "h", 9092, id.as_str()),
            (98, "", 9092, id.as_str()),
            (98, "h", 0, id.as_str()),
            (2, "h", 9092, id.as_str()),
        ] {
            let stream = say_hello(address, 98, node, cluster, REQUESTS)?;
            answer(stream, &registration(number, host, port)?)?;
        }
    }
    let request = kafka_protocol::messages::DescribeClusterRequest::default()
        .with_include_fenced_brokers(true);
    let known = three.any()?.call(2, &request)?;
    let mut ids: Vec<i32> = known.brokers.iter().map(|it| it.broker_id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
    // One that says what could be is registered, and no client is sent to it before it has been heard.
    for node in 1..=3 {
        let address = three.cluster.node(node)?.addresses().controller;
        let stream = say_hello(address, 98, node, &id, REQUESTS)?;
        answer(stream, &registration(98, "203.0.113.1", 9092)?)?;
    }
    let known = three.any()?.call(2, &request)?;
    let newcomer = known.brokers.iter().find(|it| it.broker_id.0 == 98);
    ensure!(newcomer.context("it is registered")?.is_fenced);
    Ok(())
}
