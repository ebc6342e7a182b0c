//! Messages as bytes: what a version's fields look like on the wire.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::{Field, Kind, contains};
use crate::fetched::batches_as_nodes;
use crate::tree::Node;

fn put_varint(mut value: u32, bytes: &mut BytesMut) {
    while value >= 0x80 {
        bytes.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value as u8);
}

/// The length of something, or null, in the width that a version has for it (`wide` for arrays and bytes).
fn put_length(
    length: Option<usize>,
    flexible: bool,
    wide: bool,
    bytes: &mut BytesMut,
) -> Result<()> {
    match (flexible, wide) {
        (true, _) => put_varint(length.map_or(Ok(0), |n| u32::try_from(n + 1))?, bytes),
        (false, true) => bytes.put_i32(length.map_or(Ok(-1), i32::try_from)?),
        (false, false) => bytes.put_i16(length.map_or(Ok(-1), i16::try_from)?),
    }
    Ok(())
}

pub(super) fn encode_struct(
    fields: &[Field],
    message: &Node,
    version: i16,
    flexible: bool,
    bytes: &mut BytesMut,
) -> Result<()> {
    let Node::Struct(given) = message else {
        bail!("a struct is due, not {message}");
    };
    for (name, _) in given {
        // The other codec's structs have this one, empty.
        ensure!(
            name == "unknown_tagged_fields" || fields.iter().any(|field| field.name == *name),
            "there is no field {name}"
        );
    }
    let mut tagged = Vec::new();
    for field in fields.iter().filter(|f| contains(f.versions, version)) {
        let default = field.default();
        let value = message.field(&field.name).unwrap_or(&default);
        let nullable = contains(field.nullable, version);
        if field.is_tagged(version) {
            if *value != default
                && let Some((tag, _)) = field.tag
            {
                let mut body = BytesMut::new();
                encode(&field.kind, value, nullable, version, flexible, &mut body)
                    .with_context(|| field.name.clone())?;
                tagged.push((tag, body));
            }
            continue;
        }
        encode(&field.kind, value, nullable, version, flexible, bytes)
            .with_context(|| field.name.clone())?;
    }
    if flexible {
        tagged.sort_by_key(|(tag, _)| *tag);
        put_varint(u32::try_from(tagged.len())?, bytes);
        for (tag, body) in tagged {
            put_varint(tag, bytes);
            put_varint(u32::try_from(body.len())?, bytes);
            bytes.put_slice(&body);
        }
    }
    Ok(())
}

fn encode(
    kind: &Kind,
    value: &Node,
    nullable: bool,
    version: i16,
    flexible: bool,
    bytes: &mut BytesMut,
) -> Result<()> {
    let is_null = *value == Node::atom("None");
    ensure!(!is_null || nullable, "null is not allowed");
    match (kind, value) {
        (Kind::Text, _) if is_null => put_length(None, flexible, false, bytes)?,
        (Kind::Bytes | Kind::Records | Kind::Array(_), _) if is_null => {
            put_length(None, flexible, true, bytes)?;
        }
        (Kind::Struct(_), _) if is_null => bytes.put_i8(-1),
        (Kind::Struct(fields), _) => {
            if nullable {
                bytes.put_i8(1);
            }
            encode_struct(fields, value, version, flexible, bytes)?;
        }
        (Kind::Array(items), Node::List(values)) => {
            put_length(Some(values.len()), flexible, true, bytes)?;
            for value in values {
                encode(items, value, false, version, flexible, bytes)?;
            }
        }
        (Kind::Text, Node::Atom(text)) => {
            let text: String = serde_json::from_str(text)?;
            put_length(Some(text.len()), flexible, false, bytes)?;
            bytes.put_slice(text.as_bytes());
        }
        (Kind::Bytes | Kind::Records, Node::Atom(text)) => {
            let given = given_bytes(text)?;
            put_length(Some(given.len()), flexible, true, bytes)?;
            bytes.put_slice(&given);
        }
        (Kind::Bool, Node::Atom(text)) => bytes.put_u8(text.parse::<bool>()?.into()),
        (Kind::Int(width), Node::Atom(text)) => bytes.put_int(text.parse()?, *width),
        (Kind::Uint16, Node::Atom(text)) => bytes.put_u16(text.parse()?),
        (Kind::Float64, Node::Atom(text)) => bytes.put_f64(text.parse()?),
        (Kind::Uuid, Node::Atom(text)) => bytes.put_slice(text.parse::<Uuid>()?.as_bytes()),
        _ => bail!("{value} does not fit"),
    }
    Ok(())
}

/// `0x` and hexadecimal digits, or no bytes as `Debug` prints them.
pub(super) fn given_bytes(text: &str) -> Result<Vec<u8>> {
    if text == "b\"\"" {
        return Ok(Vec::new());
    }
    let digits = text.strip_prefix("0x").context("bytes are not `0x…`")?;
    ensure!(digits.is_ascii() && digits.len() % 2 == 0, "half a byte");
    (0..digits.len())
        .step_by(2)
        .map(|at| Ok(u8::from_str_radix(&digits[at..at + 2], 16)?))
        .collect()
}

/// Bytes as a message gives them.
pub fn hexadecimal(bytes: &[u8]) -> Node {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Node::atom(format!("0x{digits}"))
}

fn get_varint(bytes: &mut Bytes) -> Result<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let byte = bytes.try_get_u8()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a varint without an end")
}

fn get_length(flexible: bool, wide: bool, bytes: &mut Bytes) -> Result<Option<usize>> {
    let length = match (flexible, wide) {
        (true, _) => i64::from(get_varint(bytes)?) - 1,
        (false, true) => bytes.try_get_i32()?.into(),
        (false, false) => bytes.try_get_i16()?.into(),
    };
    Ok(match length {
        -1 => None,
        length => Some(usize::try_from(length)?),
    })
}

fn get_slice(length: usize, bytes: &mut Bytes) -> Result<Bytes> {
    ensure!(length <= bytes.len(), "{length} bytes are not there");
    Ok(bytes.split_to(length))
}

pub(super) fn decode_struct(
    fields: &[Field],
    version: i16,
    flexible: bool,
    bytes: &mut Bytes,
) -> Result<Node> {
    let present: Vec<&Field> = fields
        .iter()
        .filter(|f| contains(f.versions, version))
        .collect();
    let mut values = Vec::with_capacity(present.len());
    for field in &present {
        let value = if field.is_tagged(version) {
            field.default()
        } else {
            let nullable = contains(field.nullable, version);
            decode(&field.kind, nullable, version, flexible, bytes)
                .with_context(|| field.name.clone())?
        };
        values.push((field.name.clone(), value));
    }
    if flexible {
        for _ in 0..get_varint(bytes)? {
            let tag = get_varint(bytes)?;
            let length = usize::try_from(get_varint(bytes)?)?;
            let mut body = get_slice(length, bytes)?;
            let at = present.iter().position(|field| {
                field.is_tagged(version) && field.tag.is_some_and(|(t, _)| t == tag)
            });
            let (field, slot) = at
                .and_then(|at| Some((present.get(at)?, values.get_mut(at)?)))
                .with_context(|| format!("tag {tag}, which Kafka does not have"))?;
            let nullable = contains(field.nullable, version);
            slot.1 = decode(&field.kind, nullable, version, flexible, &mut body)?;
            ensure!(body.is_empty(), "tag {tag} is too long");
        }
    }
    Ok(Node::Struct(values))
}

fn decode(
    kind: &Kind,
    nullable: bool,
    version: i16,
    flexible: bool,
    bytes: &mut Bytes,
) -> Result<Node> {
    let null = |node: Option<Node>| match node {
        None if !nullable => bail!("null where that is not allowed"),
        node => Ok(node.unwrap_or_else(|| Node::atom("None"))),
    };
    Ok(match kind {
        Kind::Bool => Node::atom((bytes.try_get_u8()? != 0).to_string()),
        Kind::Int(width) => Node::atom(bytes.try_get_int(*width)?.to_string()),
        Kind::Uint16 => Node::atom(bytes.try_get_u16()?.to_string()),
        Kind::Float64 => Node::atom(bytes.try_get_f64()?.to_string()),
        Kind::Uuid => Node::atom(Uuid::from_slice(&get_slice(16, bytes)?)?.to_string()),
        Kind::Text => match get_length(flexible, false, bytes)? {
            None => null(None)?,
            Some(length) => {
                let text = String::from_utf8(get_slice(length, bytes)?.to_vec())?;
                Node::atom(format!("{text:?}"))
            }
        },
        Kind::Bytes => match get_length(flexible, true, bytes)? {
            None => null(None)?,
            Some(length) => Node::atom(format!("{:?}", get_slice(length, bytes)?)),
        },
        Kind::Records => match get_length(flexible, true, bytes)? {
            None => null(None)?,
            Some(length) => batches_as_nodes(&get_slice(length, bytes)?),
        },
        Kind::Array(items) => match get_length(flexible, true, bytes)? {
            None => null(None)?,
            Some(length) => {
                ensure!(length <= bytes.len(), "{length} items are not there");
                let items = (0..length).map(|_| decode(items, false, version, flexible, bytes));
                Node::List(items.collect::<Result<_>>()?)
            }
        },
        Kind::Struct(fields) => {
            if nullable && bytes.try_get_i8()? < 0 {
                return null(None);
            }
            decode_struct(fields, version, flexible, bytes)?
        }
    })
}
