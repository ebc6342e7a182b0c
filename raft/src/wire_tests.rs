use std::collections::BTreeSet;

use odradek_protocol::ids::TimestampMs;
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::{Piece, TransferFile, TransferKind};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::rpc::{RecordsOpened, RecordsRead, RecordsSession, RecordsWanted};

/// What was written, batches apart from the bytes around them.
#[derive(Default)]
struct Pieces {
    done: Vec<Bytes>,
    open: BytesMut,
}

impl Sink for Pieces {
    fn buffer(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    fn share(&mut self, bytes: Bytes) {
        self.done.push(self.open.split().freeze());
        self.done.push(bytes);
    }
}

fn batch(value_bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.push(NewRecord {
        timestamp: TimestampMs::new(1),
        key: None,
        value: Some(&vec![7; value_bytes]),
        headers: &[],
    });
    builder.build()
}

fn entry(index: u64, payload: Payload) -> Entry {
    Entry {
        log_id: log_id(3, index),
        payload,
    }
}

fn batch_entry(index: u64, bytes: Bytes) -> Entry {
    let header = BatchHeader::parse(&bytes).unwrap();
    let command = BatchCommand {
        bytes,
        header,
        stamp: Stamp::Final,
        waiter: None,
    };
    entry(index, Payload::Normal(Command::Batch(Box::new(command))))
}

fn joint() -> Membership {
    Membership::new_with_defaults(
        vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])],
        [9],
    )
}

fn request() -> AppendRequest {
    AppendRequest {
        vote: Vote::new_committed(3, 1),
        prev_log_id: Some(log_id(2, 9)),
        entries: vec![
            entry(10, Payload::Blank),
            entry(11, Payload::Membership(joint())),
            batch_entry(12, batch(10)),
            batch_entry(13, batch(5_000)),
            entry(14, Payload::Normal(Command::LogStart(Offset::new(77)))),
            batch_entry(15, batch(2_000)),
        ],
        leader_commit: Some(log_id(3, 11)),
    }
}

fn encoded(request: &AppendRequest) -> Bytes {
    let mut out = BytesMut::new();
    put_append_request(&mut out, request).unwrap();
    assert_eq!(out.len(), append_request_len(request).unwrap());
    out.freeze()
}

fn whole<T>(
    frame: Bytes,
    read: impl FnOnce(&mut Reader) -> Result<T, WireError>,
) -> Result<T, WireError> {
    let mut reader = Reader::new(frame);
    let value = read(&mut reader)?;
    reader.end()?;
    Ok(value)
}

fn assert_same(read: &AppendRequest, sent: &AppendRequest) {
    assert_eq!(read.vote, sent.vote);
    assert_eq!(read.prev_log_id, sent.prev_log_id);
    assert_eq!(read.leader_commit, sent.leader_commit);
    assert_eq!(read.entries.len(), sent.entries.len());
    for (read, sent) in read.entries.iter().zip(&sent.entries) {
        assert_eq!(read.log_id, sent.log_id);
        match (&read.payload, &sent.payload) {
            (Payload::Blank, Payload::Blank) => {}
            (Payload::Membership(read), Payload::Membership(sent)) => assert_eq!(read, sent),
            (
                Payload::Normal(Command::LogStart(read)),
                Payload::Normal(Command::LogStart(sent)),
            ) => assert_eq!(read, sent),
            (Payload::Normal(Command::Batch(read)), Payload::Normal(Command::Batch(sent))) => {
                assert_eq!(read.bytes, sent.bytes);
                assert_eq!(read.header, sent.header);
                assert_eq!(read.stamp, Stamp::Final);
            }
            (read, sent) => panic!("{read} in place of {sent}"),
        }
    }
}

#[test]
fn append_requests_read_back_as_written() {
    let heartbeat = AppendRequest {
        vote: Vote::new_committed(8, 2),
        prev_log_id: None,
        entries: vec![],
        leader_commit: None,
    };
    for sent in [request(), heartbeat] {
        let read = whole(encoded(&sent), get_append_request).unwrap();
        assert_same(&read, &sent);
    }
}

#[test]
fn large_batches_are_handed_over_and_read_as_slices_of_the_frame() {
    let sent = request();
    let mut pieces = Pieces::default();
    put_append_request(&mut pieces, &sent).unwrap();
    pieces.done.push(pieces.open.freeze());
    let batches: Vec<Bytes> = sent
        .entries
        .iter()
        .filter_map(|entry| match &entry.payload {
            Payload::Normal(Command::Batch(batch)) => Some(batch.bytes.clone()),
            _ => None,
        })
        .collect();
    let shared = |bytes: &Bytes| pieces.done.iter().any(|it| it.as_ptr() == bytes.as_ptr());
    assert!(!shared(&batches[0]), "a small batch is copied");
    assert!(shared(&batches[1]) && shared(&batches[2]));
    assert_eq!(pieces.done.concat(), encoded(&sent));

    let frame = encoded(&sent);
    let range = frame.as_ptr_range();
    let read = whole(frame.clone(), get_append_request).unwrap();
    for entry in &read.entries {
        if let Payload::Normal(Command::Batch(batch)) = &entry.payload {
            assert!(range.contains(&batch.bytes.as_ptr()), "copied");
        }
    }
}

#[test]
fn entries_of_the_apply_path_are_not_sent() {
    let applied = Command::Applied(crate::types::AppliedBatch {
        outcome: None,
        waiter: None,
    });
    let sent = AppendRequest {
        vote: Vote::new_committed(3, 1),
        prev_log_id: None,
        entries: vec![entry(0, Payload::Normal(applied))],
        leader_commit: None,
    };
    assert!(matches!(
        append_request_len(&sent),
        Err(WireError::Unsendable(_))
    ));
    let written = put_append_request(&mut BytesMut::new(), &sent);
    assert!(matches!(written, Err(WireError::Unsendable(_))));
}

#[test]
fn a_flipped_bit_in_a_batch_is_damage_and_not_an_entry() {
    let sent = AppendRequest {
        entries: vec![batch_entry(12, batch(200))],
        ..request()
    };
    let frame = encoded(&sent);
    // Behind the batch's own header, which may change on its way through a log.
    let mut damaged = frame.to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let read = whole(damaged.into(), get_append_request);
    assert!(matches!(read, Err(WireError::Damaged { index: 12, .. })));
}

/// Every other message, as bytes and as a function that reads and writes it again.
type Rewrite = fn(Bytes) -> Result<BytesMut, WireError>;

macro_rules! rewrite {
    ($get:ident, $put:ident) => {
        |frame| {
            let value = whole(frame, $get)?;
            let mut out = BytesMut::new();
            $put(&mut out, &value);
            Ok(out)
        }
    };
}

fn others() -> Vec<(BytesMut, Rewrite)> {
    let vote = Vote::new(5, 2);
    let won = Vote::new_committed(6, 3);
    let last = Some(log_id(4, 20));
    let mut all: Vec<(BytesMut, Rewrite)> = Vec::new();
    macro_rules! add {
        ($put:ident, $get:ident, $value:expr) => {{
            let mut out = BytesMut::new();
            $put(&mut out, $value);
            all.push((out, rewrite!($get, $put)));
        }};
    }
    let mut request = VoteRequest::new(vote, last);
    add!(put_vote_request, get_vote_request, &request);
    request.leadership_transfer = true;
    request.last_log_id = None;
    add!(put_vote_request, get_vote_request, &request);
    for granted in [true, false] {
        let reply = VoteReply::new(won, last, granted);
        add!(put_vote_reply, get_vote_reply, &reply);
    }
    let results: [AppendResult; 4] = [
        Ok(last),
        Ok(None),
        Err(StreamAppendError::Conflict(log_id(1, 2))),
        Err(StreamAppendError::HigherVote(won)),
    ];
    for result in &results {
        add!(put_append_result, get_append_result, result);
    }
    let offer = SnapshotOffer {
        vote: won,
        snapshot: Snapshot {
            meta: SnapshotMeta {
                last_log_id: last,
                last_membership: StoredMembership::new(Some(log_id(1, 0)), joint()),
            },
            snapshot: SnapshotState {
                start_offset: Offset::new(100),
                log_start: Offset::new(120),
            },
        },
    };
    add!(put_snapshot_offer, get_snapshot_offer, &offer);
    let reply = SnapshotReply::new(vote);
    add!(put_snapshot_reply, get_snapshot_reply, &reply);
    let transfer = TransferRequest::new(won, 3, last);
    add!(put_transfer_request, get_transfer_request, &transfer);
    let replies: [TransferReply; 3] = [
        Ok(()),
        Err(TransferLeaderError::VoteChanged {
            expected: vote,
            actual: won,
        }),
        Err(TransferLeaderError::LogNotFlushed {
            expected: last,
            actual: None,
        }),
    ];
    for reply in &replies {
        add!(put_transfer_reply, get_transfer_reply, reply);
    }
    let probe = Probe {
        from: NodeId::new(3),
        incarnation: 9,
        sequence: 4,
    };
    add!(put_probe, get_probe, &probe);
    for promise in [Some(8), None] {
        let reply = ProbeReply {
            incarnation: 7,
            promise,
        };
        add!(put_probe_reply, get_probe_reply, &reply);
    }
    let query = LeadershipQuery {
        group: GroupKey::new(TopicId::from_bytes([5; 16]), PartitionIndex::new(6)),
        term: 11,
    };
    add!(put_leadership_query, get_leadership_query, &query);
    let later = LeadershipQuery {
        group: query.group.in_incarnation(Incarnation::new(1_005)),
        ..query
    };
    add!(put_leadership_query, get_leadership_query, &later);
    let reply = LeadershipReply { given_up: true };
    add!(put_leadership_reply, get_leadership_reply, &reply);
    let clearances = [Clearance::No, Clearance::Until(log_id(2, 9))];
    for clearance in &clearances {
        add!(put_clearance, get_clearance, clearance);
    }
    let wanted = RecordsWanted(log_id(2, 9));
    add!(put_records_wanted, get_records_wanted, &wanted);
    let kinds = [
        TransferKind::Aborted,
        TransferKind::Segment {
            base_offset: Offset::new(5),
            next_offset: Offset::new(70),
        },
        TransferKind::Producers,
        TransferKind::Epochs,
    ];
    let session = RecordsSession {
        session: 8,
        log_start: Offset::new(6),
        end: Offset::new(100),
        files: (1..)
            .zip(kinds)
            .map(|(len, kind)| TransferFile { kind, len })
            .collect(),
    };
    for opened in [
        RecordsOpened::Open(session),
        RecordsOpened::Busy,
        RecordsOpened::Gone,
    ] {
        add!(put_records_opened, get_records_opened, &opened);
    }
    let read = RecordsRead {
        session: 8,
        piece: Piece {
            file: 1,
            position: 1 << 33,
            len: 77,
        },
    };
    add!(put_records_read, get_records_read, &read);
    add!(put_droppable, get_droppable, &Offset::new(1234));
    all
}

#[test]
fn a_first_incarnation_takes_no_bytes_and_a_later_one_follows_the_partition() {
    let first = GroupKey::new(TopicId::from_bytes([5; 16]), PartitionIndex::new(6));
    let later = first.in_incarnation(Incarnation::new(1_005));
    let bytes_of = |key| {
        let mut out = BytesMut::new();
        put_group_key(&mut out, key);
        out.freeze()
    };
    let topic = [5; 16];
    assert_eq!(bytes_of(first)[..], [&topic[..], &[0, 0, 0, 6]].concat());
    assert_eq!(
        bytes_of(later)[..],
        [&topic[..], &[0x80, 0, 0, 6], &[0, 0, 3, 237]].concat()
    );
    for key in [first, later] {
        assert_eq!(Reader::new(bytes_of(key)).group_key(), Ok(key));
    }
    let none = [&topic[..], &[0x80, 0, 0, 6], &[0; 4]].concat();
    let none = Reader::new(none.into()).group_key();
    assert_eq!(none, Err(WireError::Malformed("incarnation")));
}

#[test]
fn every_other_message_reads_back_as_written() {
    for (bytes, rewrite) in others() {
        assert_eq!(rewrite(bytes.clone().freeze()), Ok(bytes));
    }
}

#[test]
fn messages_that_break_off_or_go_on_are_refused() {
    let mut all = others();
    all.push((encoded(&request())[..].into(), |frame| {
        whole(frame, get_append_request).map(|request| encoded(&request)[..].into())
    }));
    for (bytes, rewrite) in all {
        for cut in 0..bytes.len() {
            let read = rewrite(Bytes::copy_from_slice(&bytes[..cut]));
            assert!(read.is_err(), "cut at {cut} of {}", bytes.len());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(rewrite(longer.into()).is_err());
    }
}

#[test]
fn counts_that_the_frame_cannot_hold_are_refused_before_memory_is_taken() {
    let mut head = BytesMut::new();
    put_vote(&mut head, &Vote::new(1, 1));
    put_log_id(&mut head, None);
    put_log_id(&mut head, None);
    head.put_u32(u32::MAX);
    let read = whole(head.freeze(), get_append_request);
    assert!(matches!(read, Err(WireError::TooMany { .. })));

    let mut bytes = BytesMut::new();
    bytes.put_u32(u32::MAX);
    let read = whole(bytes.clone().freeze(), Reader::bytes);
    assert!(matches!(read, Err(WireError::TooMany { .. })));
    let read = whole(bytes.freeze(), |reader| reader.count("things", 0));
    assert!(matches!(read, Err(WireError::TooMany { .. })));
}

#[test]
fn random_and_mutated_bytes_are_errors_or_messages_and_never_a_panic() {
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => rand::random::<u64>(),
    };
    println!("replay with ODRADEK_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut all = others();
    all.push((encoded(&request())[..].into(), |frame| {
        whole(frame, get_append_request).map(|request| encoded(&request)[..].into())
    }));
    for _ in 0..2_000 {
        let (bytes, rewrite) = &all[random.random_range(0..all.len())];
        let mut bytes = bytes.to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        // Whatever still reads writes the same again.
        if let Ok(again) = rewrite(bytes.clone().into()) {
            assert_eq!(again, bytes);
        }
        let mut noise = vec![0; random.random_range(0..200)];
        random.fill(&mut noise[..]);
        let _ = rewrite(noise.into());
    }
}

#[test]
fn strings_are_cut_at_a_character_and_read_back() {
    for text in ["", "node-1", "größer"] {
        let mut out = BytesMut::new();
        put_string(&mut out, text);
        assert_eq!(whole(out.freeze(), Reader::string).as_deref(), Ok(text));
    }
    let long = "ö".repeat(40_000);
    let mut out = BytesMut::new();
    put_string(&mut out, &long);
    let read = whole(out.freeze(), Reader::string).unwrap();
    assert_eq!(read.len(), 65_534);
    let mut out = BytesMut::new();
    out.put_u16(1);
    out.put_u8(0xff);
    assert!(whole(out.freeze(), Reader::string).is_err());
}

/// What carries a term, an index and a node's id, with these.
fn carriers(term: u64, index: u64, node: u64) -> Vec<(BytesMut, Rewrite)> {
    let (vote, last) = (Vote::new(term, node), Some(log_id(term, index)));
    let mut all: Vec<(BytesMut, Rewrite)> = Vec::new();
    macro_rules! add {
        ($put:ident, $get:ident, $value:expr) => {{
            let mut out = BytesMut::new();
            $put(&mut out, $value);
            all.push((out, rewrite!($get, $put)));
        }};
    }
    let vote_alone = VoteRequest::new(vote, None);
    add!(put_vote_request, get_vote_request, &vote_alone);
    let last_alone = VoteRequest::new(Vote::new(1, 1), last);
    add!(put_vote_request, get_vote_request, &last_alone);
    let answer: AppendResult = Ok(last);
    add!(put_append_result, get_append_result, &answer);
    let higher: AppendResult = Err(StreamAppendError::HigherVote(vote));
    add!(put_append_result, get_append_result, &higher);
    let transfer = TransferRequest::new(vote, node, last);
    add!(put_transfer_request, get_transfer_request, &transfer);
    let clearance = Clearance::Until(log_id(term, index));
    add!(put_clearance, get_clearance, &clearance);
    all
}

/// A vote for a term that no leader epoch can be says good-bye to every later leader.
#[test]
fn terms_beyond_31_bits_and_ids_that_are_none_are_refused() {
    let term = i32::MAX as u64;
    for (bytes, rewrite) in carriers(term, 7, 1) {
        assert_eq!(rewrite(bytes.clone().freeze()), Ok(bytes));
    }
    // Of each of these some carriers have nothing.
    for (bad, refused_at_least) in [
        (carriers(term + 1, 7, 1), 6),
        (carriers(u64::MAX, 7, 1), 6),
        (carriers(1, u64::MAX, 1), 4),
        (carriers(1, 7, u64::from(u32::MAX)), 3),
    ] {
        let refused = bad
            .into_iter()
            .filter(|(bytes, rewrite)| rewrite(bytes.clone().freeze()).is_err())
            .count();
        assert_eq!(refused, refused_at_least);
    }
    for (term, index) in [(u64::from(u32::MAX), 1), (1, u64::MAX)] {
        let mut head = BytesMut::new();
        put_vote(&mut head, &Vote::new_committed(3, 1));
        head.put_slice(&[0, 0]);
        head.put_u32(1);
        head.put_u8(ENTRY_BLANK);
        head.put_u64(term);
        head.put_u64(index);
        assert!(get_append_request(&mut Reader::new(head.freeze())).is_err());
    }
    let mut key = BytesMut::new();
    key.put_slice(&[7; 16]);
    key.put_i32(IN_INCARNATION);
    key.put_u32(u32::MAX);
    assert!(Reader::new(key.freeze()).group_key().is_err());
}
