//! What the leader of a partition tells the metadata leader: that it leads, who is in sync, and that a
//! reassignment is done.
//!
//! The partition's Raft group decides who leads, and the cluster's metadata learns it from these
//! reports, of which one message carries many. A report that is older than what the metadata knows
//! changes nothing, so they may be sent again and in any order.

use bytes::{Bytes, BytesMut};
use odradek_protocol::codec::{DecodeError, DecodeLimits, Decoder, EncodeError, Encoder};
use odradek_protocol::ids::{LeaderEpoch, NodeId, PartitionIndex, TopicId};

use super::records::codec::{read_nodes, read_nullable_nodes, write_nodes};

/// Most reports that are put into one message. One is under 100 bytes with a handful of replicas.
pub const MAX_REPORTS: usize = 2_000;
/// Longest message that is read.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The state of one partition, as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReport {
    /// Topic of the partition.
    pub topic_id: TopicId,
    /// Index in the topic.
    pub partition: PartitionIndex,
    /// The leader, which is the sender.
    pub leader: NodeId,
    /// Term of the group in which it leads.
    pub epoch: LeaderEpoch,
    /// Replicas in sync, the leader among them.
    pub isr: Vec<NodeId>,
    /// Once the group has no other voters and learners than these: a reassignment to them is done.
    /// The metadata drops `adding` and `removing` if that is what it asked for.
    pub reassigned: Option<Vec<NodeId>>,
}

/// One message of reports.
pub fn encode(reports: &[LeaderReport]) -> Result<Bytes, EncodeError> {
    let mut buffer = BytesMut::with_capacity(64 * reports.len() + 8);
    let mut encoder = Encoder::new(&mut buffer);
    encoder.write_compact_array_len(reports.len())?;
    for report in reports {
        encoder.write_uuid(report.topic_id.into())?;
        encoder.write_i32(report.partition.get())?;
        encoder.write_i32(report.leader.get())?;
        encoder.write_i32(report.epoch.get())?;
        write_nodes(&mut encoder, &report.isr)?;
        match &report.reassigned {
            Some(replicas) => write_nodes(&mut encoder, replicas)?,
            None => encoder.write_compact_nullable_array_len(None)?,
        }
    }
    Ok(buffer.freeze())
}

/// Reads one message of reports.
pub fn decode(message: Bytes) -> Result<Vec<LeaderReport>, DecodeError> {
    let mut limits = DecodeLimits::default();
    limits.max_frame_bytes = MAX_MESSAGE_BYTES;
    let mut decoder = Decoder::new(message, limits)?;
    let count = decoder.read_compact_array_len()?;
    let reports = decoder.read_vec(count, |decoder| {
        Ok(LeaderReport {
            topic_id: decoder.read_uuid()?.into(),
            partition: PartitionIndex::new(decoder.read_i32()?),
            leader: NodeId::new(decoder.read_i32()?),
            epoch: LeaderEpoch::new(decoder.read_i32()?),
            isr: read_nodes(decoder)?,
            reassigned: read_nullable_nodes(decoder)?,
        })
    })?;
    decoder.finish()?;
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> Vec<LeaderReport> {
        let report = LeaderReport {
            topic_id: TopicId::from_bytes([7; 16]),
            partition: PartitionIndex::new(3),
            leader: NodeId::new(1),
            epoch: LeaderEpoch::new(9),
            isr: vec![NodeId::new(1), NodeId::new(2)],
            reassigned: None,
        };
        let done = LeaderReport {
            reassigned: Some(vec![NodeId::new(2), NodeId::new(1)]),
            ..report.clone()
        };
        vec![report, done]
    }

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let message = encode(&reports()).expect("encodes");
        assert_eq!(decode(message), Ok(reports()));
    }

    #[test]
    fn cut_and_changed_messages_are_errors_and_never_more() {
        let message = encode(&reports()).expect("encodes");
        for length in 0..message.len() {
            assert!(decode(message.slice(..length)).is_err(), "{length}");
        }
        for at in 0..message.len() {
            let mut changed = message.to_vec();
            changed[at] ^= 0xff;
            // Whatever it says now, it is read or refused.
            let _ = decode(changed.into());
        }
    }
}
