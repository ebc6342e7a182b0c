//! Nonsense, too much, and too slow: refused in bounded memory, and the process lives.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use compat_tests::broker::Broker;
use compat_tests::groups::{coordinator_is_up, join_request};
use compat_tests::requests::create_topic;
use compat_tests::server::{Server, kafka_instead};
use compat_tests::transcript::served_versions;
use compat_tests::wire::{Wire, WireError, request_header_version};
use kafka_protocol::messages::MetadataRequest;

const MIB: u64 = 1 << 20;

fn lives(server: &Server) -> Result<()> {
    server.connect()?.metadata_of_everything()?;
    Ok(())
}

#[test]
fn counts_larger_than_the_frame_are_refused_by_every_api() -> Result<()> {
    let mut server = Server::start()?;
    lives(&server)?;
    let before = server.process().peak_resident_bytes()?;
    let patterns: [&[u8]; 5] = [
        // An array or a string of 2³¹−1, plain and compact; a tag section of 2³².
        &[0x7f, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0x07],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
        &[0x7f, 0xff],
    ];
    for (key, (min, max)) in served_versions(server.address())? {
        for version in min..=max {
            // The lie at the start and after a few fields that look like anything.
            for lead in [0, 1, 2, 4, 7, 12, 16] {
                for pattern in patterns {
                    let mut wire = server.connect()?;
                    // What waits by design is not waited for: a Produce with acks=0 has no answer, a Fetch waits for
                    // data, a join and a sync for other members.
                    let may_wait = matches!(key, 0 | 1 | 11 | 14) || kafka_instead();
                    wire.set_patience(Duration::from_millis(if may_wait { 50 } else { 10_000 }))?;
                    let body: Vec<u8> = [&vec![0; lead][..], pattern, pattern, pattern].concat();
                    wire.send_body(key, version, request_header_version(key, version), &body)?;
                    match wire.receive_frame() {
                        Ok(_) | Err(WireError::Closed) => {}
                        Err(WireError::TimedOut) if may_wait => {}
                        Err(error) => anyhow::bail!(
                            "API {key} v{version}, {lead} bytes, {pattern:?}: {error}"
                        ),
                    }
                }
            }
        }
        lives(&server).with_context(|| format!("after API {key}"))?;
    }
    let grown = server
        .process()
        .peak_resident_bytes()?
        .saturating_sub(before);
    ensure!(
        kafka_instead() || grown < 64 * MIB,
        "{} MiB more",
        grown / MIB
    );
    Ok(())
}

#[test]
fn frames_of_impossible_lengths_end_the_connection() -> Result<()> {
    let mut server = Server::start()?;
    lives(&server)?;
    let before = server.process().peak_resident_bytes()?;
    for bytes in [
        &[0, 0, 0, 3, 0, 3, 0][..],
        &[0, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff],
        &[0x80, 0, 0, 0],
        &[0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 9, 0, 0, 0, 1],
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
    ] {
        let mut wire = server.connect()?;
        wire.send_bytes(bytes)?;
        ensure!(wire.is_closed_by_peer(), "{bytes:?} is taken");
    }
    // Cut frames: the client goes away in the middle.
    for length in 0..40 {
        let mut wire = server.connect()?;
        let frame = wire.frame(3, 9, 2, 1, &[0; 30])?;
        wire.send_bytes(frame.get(..length).unwrap_or_default())?;
    }
    lives(&server)?;
    let grown = server
        .process()
        .peak_resident_bytes()?
        .saturating_sub(before);
    ensure!(
        kafka_instead() || grown < 32 * MIB,
        "{} MiB more",
        grown / MIB
    );
    Ok(())
}

#[test]
fn random_bytes_behind_good_headers_do_no_harm() -> Result<()> {
    use rand::{Rng, SeedableRng};
    let mut server = Server::start()?;
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => rand::random(),
    };
    eprintln!("ODRADEK_SEED={seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let served: Vec<_> = served_versions(server.address())?.into_iter().collect();
    for round in 0..3000 {
        let (key, (min, max)) = served[random.random_range(0..served.len())];
        let version = random.random_range(min..=max);
        let mut body = vec![0; random.random_range(0..200)];
        random.fill(&mut body[..]);
        // Small numbers make more of it look like a request.
        for byte in &mut body {
            if random.random_bool(0.6) {
                *byte = random.random_range(0..4);
            }
        }
        let mut wire = server.connect()?;
        wire.send_body(key, version, request_header_version(key, version), &body)?;
        if round % 20 == 0 {
            wire.set_patience(Duration::from_millis(100))?;
            let _ = wire.receive_frame();
        }
    }
    lives(&server)?;
    ensure!(
        kafka_instead() || server.process().resident_bytes()? < 512 * MIB,
        "it has grown"
    );
    Ok(())
}

#[test]
fn a_thousand_idle_connections_disturb_nobody() -> Result<()> {
    let mut server = Server::start()?;
    lives(&server)?;
    let before = (
        server.process().resident_bytes()?,
        server.process().open_descriptors()?,
    );
    let idle: Vec<_> = (0..1000).map(|_| server.connect()).collect::<Result<_>>()?;
    let begun = Instant::now();
    lives(&server)?;
    ensure!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    let grown = server.process().resident_bytes()?.saturating_sub(before.0);
    ensure!(
        kafka_instead() || grown < 64 * MIB,
        "{} MiB for a thousand connections",
        grown / MIB
    );
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.process().open_descriptors()? > before.1 + 10 {
        ensure!(Instant::now() < deadline, "descriptors are kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn idle_connections_are_closed_in_time() -> Result<()> {
    let server = Server::with(&[("connections.max.idle.ms", "1000")])?;
    let mut silent = server.connect()?;
    let mut busy = server.connect()?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3000) {
        busy.metadata_of_everything()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    silent.set_patience(Duration::from_millis(5000))?;
    ensure!(silent.is_closed_by_peer(), "the silent one is still there");
    busy.metadata_of_everything()?;
    Ok(())
}

#[test]
fn half_frames_of_two_thousand_sockets_leave_nothing_behind() -> Result<()> {
    let mut server = Server::start()?;
    lives(&server)?;
    let before = (
        server.process().resident_bytes()?,
        server.process().open_descriptors()?,
    );
    for _ in 0..2 {
        let mut sockets = Vec::new();
        for _ in 0..2000 {
            let mut socket = TcpStream::connect(server.address())?;
            // A frame of a megabyte is announced, and half a kilobyte of it sent.
            let mut half = vec![0, 0x10, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff];
            half.resize(512, 0);
            socket.write_all(&half)?;
            sockets.push(socket);
        }
        lives(&server)?;
        let grown = server.process().resident_bytes()?.saturating_sub(before.0);
        ensure!(
            kafka_instead() || grown < 256 * MIB,
            "{} MiB for half frames",
            grown / MIB
        );
        drop(sockets);
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.process().open_descriptors()? > before.1 + 10 {
            ensure!(Instant::now() < deadline, "descriptors are kept");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let grown = server.process().resident_bytes()?.saturating_sub(before.0);
    ensure!(
        kafka_instead() || grown < 96 * MIB,
        "{} MiB kept",
        grown / MIB
    );
    Ok(())
}

#[test]
fn clients_that_never_read_are_not_read_from_and_stop_nobody() -> Result<()> {
    let mut broker = Broker::start()?;
    let mut wire = broker.connect()?;
    for i in 0..30 {
        create_topic(&mut wire, &format!("unread-{i}"), 100, &[])?;
    }
    let before = broker.process().resident_bytes()?;
    let mut sockets = Vec::new();
    for _ in 0..100 {
        let wire = broker.connect()?;
        let mut requests = Vec::new();
        for id in 0..50 {
            let mut body = bytes::BytesMut::new();
            use kafka_protocol::protocol::Encodable;
            MetadataRequest::default()
                .with_topics(None)
                .encode(&mut body, 9)?;
            requests.extend_from_slice(&wire.frame(3, 9, 2, id, &body)?);
        }
        let mut socket = wire.stream().try_clone()?;
        socket.set_write_timeout(Some(Duration::from_millis(200)))?;
        let _ = socket.write_all(&requests);
        sockets.push(socket);
    }
    std::thread::sleep(Duration::from_secs(1));
    // Of many requests, so that a busy machine does not decide.
    let mut waits = Vec::new();
    for _ in 0..40 {
        let begun = Instant::now();
        wire.call(9, &compat_tests::requests::metadata_of("unread-0"))?;
        waits.push(begun.elapsed());
    }
    waits.sort();
    ensure!(
        waits[20] < Duration::from_millis(200),
        "others waited {waits:?}"
    );
    let grown = broker.process().resident_bytes()?.saturating_sub(before);
    ensure!(grown < 256 * MIB, "{} MiB more", grown / MIB);
    // Who reads after all gets everything.
    let mut late = sockets.pop().context("no socket")?;
    late.set_read_timeout(Some(Duration::from_secs(20)))?;
    for _ in 0..50 {
        let mut length = [0; 4];
        late.read_exact(&mut length)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length))?];
        late.read_exact(&mut frame)?;
    }
    Ok(())
}

/// JoinGroup into a group of its own with so much to bring, by a version that needs no id first.
fn join_alone(wire: &mut Wire, group: &str, bytes: usize) -> Result<i16> {
    let mut request = join_request(3, group, "", "range");
    request.session_timeout_ms = 300_000;
    request.protocols[0].metadata = vec![b'x'; bytes].into();
    Ok(wire.call(3, &request)?.error_code)
}

/// One client's members that never come back took all the memory, and nobody joined a group anew meanwhile.
#[test]
fn members_that_never_come_back_leave_room_for_others() -> Result<()> {
    const COORDINATOR_NOT_AVAILABLE: i16 = 15;
    let fill = |wire: &mut Wire, prefix: &str, bytes| {
        for number in 0..1_000 {
            let code = join_alone(wire, &format!("{prefix}-{number}"), bytes)?;
            if code != 0 {
                assert_eq!(code, COORDINATOR_NOT_AVAILABLE);
                return Ok(number);
            }
        }
        anyhow::bail!("{prefix} takes everything")
    };
    let start = |percent: &str| {
        let broker = Broker::options()
            .set("odradek.groups.member.bytes", "1000000")
            .set("odradek.groups.member.host.percent", percent)
            .start()?;
        let mut wire = broker.connect()?;
        coordinator_is_up(&mut wire, "limits")?;
        Ok::<_, anyhow::Error>((broker, wire))
    };
    // Large ones leave a quarter to small ones.
    let (_broker, mut wire) = start("100")?;
    let large = fill(&mut wire, "large", 100_000)?;
    ensure!((5..=7).contains(&large), "{large} large members");
    assert_eq!(join_alone(&mut wire, "small", 1_000)?, 0);
    let small = fill(&mut wire, "small", 1_000)?;
    ensure!((50..=300).contains(&small), "{small} small members");
    // Those of one address leave room to those of others.
    let (broker, mut wire) = start("50")?;
    let small = fill(&mut wire, "from-one", 10_000)?;
    ensure!((40..=50).contains(&small), "{small} members of one address");
    let mut other = Wire::connect_from([127, 0, 0, 2].into(), broker.address())?;
    assert_eq!(join_alone(&mut other, "from-another", 10_000)?, 0);
    assert_eq!(
        join_alone(&mut wire, "from-one-again", 10_000)?,
        COORDINATOR_NOT_AVAILABLE
    );
    Ok(())
}
