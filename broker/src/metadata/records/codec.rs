//! Pieces that several records are made of.

use bytes::BytesMut;
use odradek_protocol::codec::{
    BufferTarget, DecodeError, Decoder, EncodeError, EncodeTarget, Encoder, StrBytes, TaggedField,
    Uuid,
};
use odradek_protocol::ids::NodeId;

pub(super) fn tag(
    number: u32,
    write: impl FnOnce(&mut Encoder<BufferTarget<'_>>) -> Result<(), EncodeError>,
) -> Result<TaggedField, EncodeError> {
    let mut payload = BytesMut::new();
    write(&mut Encoder::new(&mut payload))?;
    Ok(TaggedField::new(number, payload.freeze()))
}

pub(super) fn write_string<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    value: &str,
) -> Result<(), EncodeError> {
    encoder.write_compact_string(&StrBytes::from(value))
}

pub(super) fn write_nullable_string<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    value: Option<&str>,
) -> Result<(), EncodeError> {
    encoder.write_compact_nullable_string(value.map(StrBytes::from).as_ref())
}

pub(super) fn write_nodes<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    nodes: &[NodeId],
) -> Result<(), EncodeError> {
    encoder.write_compact_array_len(nodes.len())?;
    for node in nodes {
        encoder.write_i32(node.get())?;
    }
    Ok(())
}

pub(super) fn read_nodes(decoder: &mut Decoder) -> Result<Vec<NodeId>, DecodeError> {
    let count = decoder.read_compact_array_len()?;
    decoder.read_vec(count, |decoder| Ok(NodeId::new(decoder.read_i32()?)))
}

pub(super) fn read_nullable_nodes(
    decoder: &mut Decoder,
) -> Result<Option<Vec<NodeId>>, DecodeError> {
    let Some(count) = decoder.read_compact_nullable_array_len()? else {
        return Ok(None);
    };
    decoder
        .read_vec(count, |decoder| Ok(NodeId::new(decoder.read_i32()?)))
        .map(Some)
}

pub(super) fn write_uuids<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    ids: &[Uuid],
) -> Result<(), EncodeError> {
    encoder.write_compact_array_len(ids.len())?;
    for id in ids {
        encoder.write_uuid(*id)?;
    }
    Ok(())
}

pub(super) fn read_uuids(decoder: &mut Decoder) -> Result<Vec<Uuid>, DecodeError> {
    let count = decoder.read_compact_array_len()?;
    decoder.read_vec(count, Decoder::read_uuid)
}

pub(super) fn read_nullable_uuids(decoder: &mut Decoder) -> Result<Option<Vec<Uuid>>, DecodeError> {
    let Some(count) = decoder.read_compact_nullable_array_len()? else {
        return Ok(None);
    };
    decoder.read_vec(count, Decoder::read_uuid).map(Some)
}
