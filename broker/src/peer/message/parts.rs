//! The bytes of what questions and answers are made of.

use bytes::{BufMut, Bytes, BytesMut};
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::{LeaderEpoch, NodeId, Offset};
use odradek_raft::wire::{Reader, WireError, put_group_key, put_string};
use odradek_raft::{Incarnation, RaftIndex, Standing};

use super::Forward;
use crate::metadata::checkpoint::CheckpointId;
use crate::metadata::controller::register_broker::Registration;
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::records::BrokerEndpoint;

pub(super) fn put_checkpoint_id(out: &mut BytesMut, id: CheckpointId) {
    out.put_i64(id.end.get());
    out.put_i32(id.epoch.get());
}

pub(super) fn get_checkpoint_id(reader: &mut Reader) -> Result<CheckpointId, WireError> {
    Ok(CheckpointId {
        end: Offset::new(reader.i64()?),
        epoch: LeaderEpoch::new(reader.i32()?),
    })
}

pub(super) fn put_forward(out: &mut BytesMut, forward: &Forward) {
    out.put_i16(forward.api_key);
    out.put_i16(forward.api_version);
    put_optional(out, forward.client_id.as_deref(), |out, id| {
        put_string(out, id);
    });
    put_string(out, &forward.principal);
    put_bytes(out, &forward.body);
}

pub(super) fn get_forward(reader: &mut Reader) -> Result<Forward, WireError> {
    Ok(Forward {
        api_key: reader.i16()?,
        api_version: reader.i16()?,
        client_id: get_optional(reader, Reader::string)?,
        principal: reader.string()?,
        body: reader.bytes()?,
    })
}

pub(super) fn put_leader_report(out: &mut BytesMut, report: &LeaderReport) {
    put_group_key(out, report.group());
    out.put_i32(report.leader.get());
    out.put_i32(report.epoch.get());
    put_nodes(out, &report.isr);
    put_optional(out, report.reassigned.as_deref(), put_nodes);
}

pub(super) fn get_leader_report(reader: &mut Reader) -> Result<LeaderReport, WireError> {
    let group = reader.group_key()?;
    Ok(LeaderReport {
        topic_id: group.topic_id,
        partition: group.partition,
        incarnation: group.incarnation,
        leader: get_node(reader)?,
        epoch: LeaderEpoch::new(reader.i32()?),
        isr: get_nodes(reader)?,
        reassigned: get_optional(reader, get_nodes)?,
    })
}

pub(super) fn put_standing(out: &mut BytesMut, standing: &Standing) {
    out.put_u32(standing.incarnation.get());
    out.put_u8(u8::from(standing.is_whole));
    out.put_u8(u8::from(standing.leads));
    out.put_u64(standing.term);
    put_optional(out, standing.last, |out, (term, index)| {
        out.put_u64(term);
        out.put_u64(index.get());
    });
    out.put_u64(standing.committed_end.get());
    out.put_i64(standing.log_start.get());
    out.put_i64(standing.high_watermark.get());
    out.put_i64(standing.log_end.get());
    put_list(out, &standing.voters, |out, voters| {
        let voters: Vec<NodeId> = voters.iter().copied().collect();
        put_nodes(out, &voters);
    });
}

pub(super) fn get_standing(reader: &mut Reader) -> Result<Standing, WireError> {
    Ok(Standing {
        incarnation: Incarnation::new(reader.u32()?),
        is_whole: reader.bool()?,
        leads: reader.bool()?,
        term: reader.term()?,
        last: get_optional(reader, |reader| {
            Ok((reader.term()?, RaftIndex::new(reader.index()?)))
        })?,
        committed_end: RaftIndex::new(reader.u64()?),
        log_start: Offset::new(reader.i64()?),
        high_watermark: Offset::new(reader.i64()?),
        log_end: Offset::new(reader.i64()?),
        voters: get_list(reader, "sets of voters", 4, |reader| {
            Ok(get_nodes(reader)?.into_iter().collect())
        })?,
    })
}

pub(super) fn put_registration(out: &mut BytesMut, registration: &Registration) {
    out.put_i32(registration.broker_id.get());
    out.put_slice(&registration.incarnation_id.to_bytes());
    put_list(out, &registration.endpoints, put_endpoint);
    put_optional(out, registration.rack.as_deref(), |out, rack| {
        put_string(out, rack);
    });
    put_list(out, &registration.log_dirs, |out, id| {
        out.put_slice(&id.to_bytes());
    });
    put_nodes(out, &registration.voters);
}

pub(super) fn put_endpoint(out: &mut BytesMut, endpoint: &BrokerEndpoint) {
    put_string(out, &endpoint.name);
    put_string(out, &endpoint.host);
    out.put_u16(endpoint.port);
    out.put_i16(endpoint.security_protocol);
}

pub(super) fn get_endpoint(reader: &mut Reader) -> Result<BrokerEndpoint, WireError> {
    Ok(BrokerEndpoint {
        name: reader.string()?,
        host: reader.string()?,
        port: reader.u16()?,
        security_protocol: reader.i16()?,
    })
}

pub(super) fn get_registration(reader: &mut Reader) -> Result<Registration, WireError> {
    Ok(Registration {
        broker_id: get_node(reader)?,
        incarnation_id: Uuid::from_bytes(reader.id()?),
        endpoints: get_list(reader, "endpoints", 8, get_endpoint)?,
        rack: get_optional(reader, Reader::string)?,
        log_dirs: get_list(reader, "log directories", 16, |reader| {
            Ok(Uuid::from_bytes(reader.id()?))
        })?,
        voters: get_nodes(reader)?,
    })
}

pub(super) fn put_nodes(out: &mut BytesMut, nodes: &[NodeId]) {
    put_list(out, nodes, |out, node| out.put_i32(node.get()));
}

pub(super) fn get_nodes(reader: &mut Reader) -> Result<Vec<NodeId>, WireError> {
    get_list(reader, "nodes", 4, get_node)
}

pub(super) fn get_node(reader: &mut Reader) -> Result<NodeId, WireError> {
    Ok(NodeId::new(reader.i32()?))
}

pub(super) fn put_bytes(out: &mut BytesMut, bytes: &Bytes) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

pub(super) fn put_optional<T>(
    out: &mut BytesMut,
    value: Option<T>,
    put: impl FnOnce(&mut BytesMut, T),
) {
    out.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

pub(super) fn get_optional<T>(
    reader: &mut Reader,
    get: impl FnOnce(&mut Reader) -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    match reader.bool()? {
        true => get(reader).map(Some),
        false => Ok(None),
    }
}

pub(super) fn put_list<T>(out: &mut BytesMut, list: &[T], mut put: impl FnMut(&mut BytesMut, &T)) {
    out.put_u32(list.len() as u32);
    for element in list {
        put(out, element);
    }
}

/// Reads a list of elements that take at least `each` bytes.
pub(super) fn get_list<T>(
    reader: &mut Reader,
    what: &'static str,
    each: usize,
    mut get: impl FnMut(&mut Reader) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let count = reader.count(what, each)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(get(reader)?);
    }
    Ok(list)
}
