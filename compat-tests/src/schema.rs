//! A codec for every API and version that Apache Kafka has, driven by the message definitions that its own jar carries.
//!
//! It encodes from and decodes to [`Node`]s, so that versions which the codec of the other tests does not know are
//! compared field by field like the rest. Fields keep Kafka's names in snake case. An answer must be consumed to its
//! last byte. Bytes are given as hexadecimal digits behind `0x`; records are read as their batches ([`crate::fetched`]).
//! Messages can also be made up field by field ([`Maker`]).
//!
//! Absent on purpose: speed, and defaults of structs inside structs (Kafka has none that matter to a request here).

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::Value;
use uuid::Uuid;

use crate::fetched::batches_as_nodes;
use crate::jar::Jar;
use crate::kafka;
use crate::tree::Node;

/// Inclusive bounds; `None` for no version at all.
type Versions = Option<(i16, i16)>;

fn contains(versions: Versions, version: i16) -> bool {
    versions.is_some_and(|(min, max)| (min..=max).contains(&version))
}

fn versions(text: &str) -> Result<Versions> {
    Ok(if text == "none" {
        None
    } else if let Some(min) = text.strip_suffix('+') {
        Some((min.parse()?, i16::MAX))
    } else if let Some((min, max)) = text.split_once('-') {
        Some((min.parse()?, max.parse()?))
    } else {
        Some((text.parse()?, text.parse()?))
    })
}

#[derive(Debug)]
enum Kind {
    Bool,
    /// A signed integer of so many bytes.
    Int(usize),
    Uint16,
    Float64,
    Uuid,
    Text,
    Bytes,
    Records,
    Array(Box<Kind>),
    Struct(Vec<Field>),
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
    versions: Versions,
    nullable: Versions,
    tag: Option<(u32, Versions)>,
    default: Option<String>,
}

/// One request or response.
#[derive(Debug)]
pub struct Schema {
    name: String,
    api_key: i16,
    valid: Versions,
    flexible: Versions,
    fields: Vec<Field>,
}

/// `PartitionIndex` to `partition_index`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// JSON without the comments that Kafka's definitions have.
fn without_comments(text: &str) -> String {
    let mut clean = String::new();
    for line in text.lines() {
        let (mut quoted, mut escaped, mut previous) = (false, false, ' ');
        let mut end = line.len();
        for (at, c) in line.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '/' if previous == '/' && !quoted => {
                    end = at - 1;
                    break;
                }
                _ => {}
            }
            previous = c;
        }
        clean.push_str(&line[..end]);
        clean.push('\n');
    }
    clean
}

impl Schema {
    /// The request of an API, as in `ListOffsets`.
    pub fn request(api: &str) -> Result<Self> {
        Self::load(&format!("{api}Request"))
    }

    /// Its answer.
    pub fn response(api: &str) -> Result<Self> {
        Self::load(&format!("{api}Response"))
    }

    fn load(name: &str) -> Result<Self> {
        static JAR: OnceLock<Result<Jar, String>> = OnceLock::new();
        let open =
            || Jar::open(&kafka::libs()?.join(format!("kafka-clients-{}.jar", kafka::VERSION)));
        let jar = JAR
            .get_or_init(|| open().map_err(|e| format!("{e:#}")))
            .as_ref()
            .map_err(|e| anyhow::anyhow!(e.clone()))?;
        let text = String::from_utf8(jar.file(&format!("common/message/{name}.json"))?)?;
        Self::parse(&text).with_context(|| name.to_owned())
    }

    fn parse(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(&without_comments(text))?;
        let mut shared = BTreeMap::new();
        for definition in json["commonStructs"].as_array().into_iter().flatten() {
            let name = definition["name"].as_str().context("no name")?;
            shared.insert(name.to_owned(), definition["fields"].clone());
        }
        Ok(Self {
            name: json["name"].as_str().context("no name")?.to_owned(),
            api_key: json["apiKey"].as_i64().context("no key")?.try_into()?,
            valid: versions(json["validVersions"].as_str().context("no versions")?)?,
            flexible: versions(json["flexibleVersions"].as_str().context("no versions")?)?,
            fields: parse_fields(&json["fields"], &shared)?,
        })
    }

    /// The API's key.
    pub fn api_key(&self) -> i16 {
        self.api_key
    }

    /// Whether Kafka knows this version.
    pub fn is_valid(&self, version: i16) -> bool {
        contains(self.valid, version)
    }

    /// Whether this version has tagged fields and compact lengths (KIP-482).
    pub fn is_flexible(&self, version: i16) -> bool {
        contains(self.flexible, version)
    }

    /// Whether a field of this name stands anywhere in this version.
    pub fn mentions(&self, name: &str, version: i16) -> bool {
        mentions(&self.fields, name, version)
    }

    /// The bytes of a message; fields that `message` does not have are their defaults.
    pub fn encode(&self, message: &Node, version: i16) -> Result<Bytes> {
        ensure!(self.is_valid(version), "{} has no v{version}", self.name);
        let mut bytes = BytesMut::new();
        let flexible = self.is_flexible(version);
        encode_struct(&self.fields, message, version, flexible, &mut bytes)
            .with_context(|| format!("{} v{version}", self.name))?;
        Ok(bytes.freeze())
    }

    /// A message of this version whose every field `maker` chooses.
    pub fn make(&self, version: i16, maker: &mut dyn Maker) -> Node {
        make_struct(&self.fields, version, "", maker)
    }

    /// The message in `bytes`, which must hold nothing else.
    pub fn decode(&self, mut bytes: Bytes, version: i16) -> Result<Node> {
        let flexible = self.is_flexible(version);
        let node = decode_struct(&self.fields, version, flexible, &mut bytes)
            .with_context(|| format!("{} v{version}", self.name))?;
        ensure!(
            bytes.is_empty(),
            "{} v{version}: {} bytes after the end",
            self.name,
            bytes.len()
        );
        Ok(node)
    }
}

/// What a field of a message that is made up can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// True or false.
    Bool,
    /// A number.
    Number,
    /// An id.
    Uuid,
    /// Text.
    Text,
    /// Bytes, or records.
    Bytes,
}

/// Chooses the fields of messages, in their order.
pub trait Maker {
    /// The value at a path such as `topics[].name`; `None` for its default.
    fn leaf(&mut self, path: &str, leaf: Leaf, nullable: bool) -> Option<Node>;

    /// How many items the list at a path has; `None` for null.
    fn items(&mut self, path: &str, nullable: bool) -> Option<usize>;

    /// Whether the struct at a path, which may be null, is there.
    fn is_there(&mut self, path: &str) -> bool;
}

fn make_struct(fields: &[Field], version: i16, path: &str, maker: &mut dyn Maker) -> Node {
    let present = fields.iter().filter(|f| contains(f.versions, version));
    let made = present.filter_map(|field| {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", field.name);
        let nullable = contains(field.nullable, version);
        let value = make_value(&field.kind, nullable, version, &path, maker)?;
        Some((field.name.clone(), value))
    });
    Node::Struct(made.collect())
}

fn make_value(
    kind: &Kind,
    nullable: bool,
    version: i16,
    path: &str,
    maker: &mut dyn Maker,
) -> Option<Node> {
    let leaf = match kind {
        Kind::Bool => Leaf::Bool,
        Kind::Int(_) | Kind::Uint16 | Kind::Float64 => Leaf::Number,
        Kind::Uuid => Leaf::Uuid,
        Kind::Text => Leaf::Text,
        Kind::Bytes | Kind::Records => Leaf::Bytes,
        Kind::Array(items) => {
            let Some(count) = maker.items(path, nullable) else {
                return Some(Node::atom("None"));
            };
            let path = format!("{path}[]");
            let items = (0..count).filter_map(|_| make_value(items, false, version, &path, maker));
            return Some(Node::List(items.collect()));
        }
        Kind::Struct(fields) => {
            return Some(match nullable && !maker.is_there(path) {
                true => Node::atom("None"),
                false => make_struct(fields, version, path, maker),
            });
        }
    };
    maker.leaf(path, leaf, nullable)
}

fn mentions(fields: &[Field], name: &str, version: i16) -> bool {
    fields
        .iter()
        .filter(|f| contains(f.versions, version))
        .any(|field| {
            field.name == name
                || match &field.kind {
                    Kind::Struct(fields) => mentions(fields, name, version),
                    Kind::Array(items) => match &**items {
                        Kind::Struct(fields) => mentions(fields, name, version),
                        _ => false,
                    },
                    _ => false,
                }
        })
}

fn parse_fields(json: &Value, shared: &BTreeMap<String, Value>) -> Result<Vec<Field>> {
    json.as_array()
        .context("no fields")?
        .iter()
        .map(|field| parse_field(field, shared))
        .collect()
}

fn parse_field(json: &Value, shared: &BTreeMap<String, Value>) -> Result<Field> {
    let text = |key: &str| json[key].as_str();
    let name = text("name").context("no name")?;
    let inside = |kind: &str| match shared.get(kind) {
        Some(fields) => parse_fields(fields, shared),
        None => parse_fields(&json["fields"], shared),
    };
    let tag = match json["tag"].as_u64() {
        Some(tag) => {
            let versions = versions(text("taggedVersions").context("no tagged versions")?)?;
            Some((u32::try_from(tag)?, versions))
        }
        None => None,
    };
    Ok(Field {
        kind: parse_kind(text("type").context("no type")?, &inside)
            .with_context(|| name.to_owned())?,
        versions: versions(text("versions").context("no versions")?)?,
        nullable: match text("nullableVersions") {
            Some(text) => versions(text)?,
            None => None,
        },
        tag,
        default: match &json["default"] {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
        name: snake_case(name),
    })
}

fn parse_kind(kind: &str, inside: &impl Fn(&str) -> Result<Vec<Field>>) -> Result<Kind> {
    Ok(match kind {
        "bool" => Kind::Bool,
        "int8" => Kind::Int(1),
        "int16" => Kind::Int(2),
        "uint16" => Kind::Uint16,
        "int32" => Kind::Int(4),
        "int64" => Kind::Int(8),
        "float64" => Kind::Float64,
        "uuid" => Kind::Uuid,
        "string" => Kind::Text,
        "bytes" => Kind::Bytes,
        "records" => Kind::Records,
        _ => match kind.strip_prefix("[]") {
            Some(items) => Kind::Array(Box::new(parse_kind(items, inside)?)),
            None => Kind::Struct(inside(kind)?),
        },
    })
}

impl Field {
    fn is_tagged(&self, version: i16) -> bool {
        self.tag
            .is_some_and(|(_, versions)| contains(versions, version))
    }

    /// What is encoded where a message does not have the field.
    fn default(&self) -> Node {
        match (&self.default, &self.kind) {
            (Some(text), _) if text == "null" => Node::atom("None"),
            (Some(text), Kind::Text) => Node::atom(format!("{text:?}")),
            (Some(text), _) => Node::atom(text.clone()),
            (None, Kind::Bool) => Node::atom("false"),
            (None, Kind::Int(_) | Kind::Uint16 | Kind::Float64) => Node::atom("0"),
            (None, Kind::Uuid) => Node::atom(Uuid::nil().to_string()),
            (None, Kind::Text) => Node::atom("\"\""),
            (None, Kind::Bytes | Kind::Records) => Node::atom("0x"),
            (None, Kind::Array(_)) => Node::List(Vec::new()),
            (None, Kind::Struct(_)) => Node::Struct(Vec::new()),
        }
    }
}

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

fn encode_struct(
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
fn given_bytes(text: &str) -> Result<Vec<u8>> {
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

fn decode_struct(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fields as message;

    const DEFINITION: &str = r#"
// A comment // with "quotes"
{ "apiKey": 7, "name": "TestRequest", "validVersions": "0-2", "flexibleVersions": "1+", "fields": [ // another
    { "name": "GroupId", "type": "string", "versions": "0+", "nullableVersions": "1+", "default": "null" },
    { "name": "Rows", "type": "[]Row", "versions": "0+", "about": "http://not.a.comment", "fields": [
      { "name": "Index", "type": "int32", "versions": "0+", "default": "-1" },
      { "name": "TopicId", "type": "uuid", "versions": "2+" } ] },
    { "name": "Late", "type": "int64", "versions": "1+", "tag": 3, "taggedVersions": "1+", "default": "7" } ] }"#;

    #[test]
    fn every_version_is_encoded_in_its_own_shape_and_read_back() -> Result<()> {
        let schema = Schema::parse(DEFINITION)?;
        let row = message(&[("index", Node::atom("5"))]);
        let given = message(&[
            ("group_id", Node::atom("\"g\"")),
            ("rows", Node::List(vec![row])),
            ("late", Node::atom("9")),
        ]);
        let bytes = |version| schema.encode(&given, version);
        assert_eq!(&bytes(0)?[..], b"\0\x01g\0\0\0\x01\0\0\0\x05");
        assert_eq!(
            &bytes(1)?[..],
            b"\x02g\x02\0\0\0\x05\0\x01\x03\x08\0\0\0\0\0\0\0\x09"
        );
        assert_eq!(
            schema.decode(bytes(2)?, 2)?.to_string(),
            r#"{group_id: "g", rows: [{index: 5, topic_id: 00000000-0000-0000-0000-000000000000}], late: 9}"#
        );
        assert!(schema.mentions("topic_id", 2) && !schema.mentions("topic_id", 1));
        Ok(())
    }

    struct Lasting(Vec<String>);

    impl Maker for Lasting {
        fn leaf(&mut self, path: &str, leaf: Leaf, _: bool) -> Option<Node> {
            self.0.push(path.to_owned());
            (leaf == Leaf::Number).then(|| Node::atom("7"))
        }

        fn items(&mut self, _: &str, nullable: bool) -> Option<usize> {
            (!nullable).then_some(2)
        }

        fn is_there(&mut self, _: &str) -> bool {
            true
        }
    }

    #[test]
    fn a_message_is_made_field_by_field_at_its_version() -> Result<()> {
        let schema = Schema::parse(DEFINITION)?;
        let mut maker = Lasting(Vec::new());
        let made = schema.make(1, &mut maker);
        assert_eq!(
            maker.0,
            ["group_id", "rows[].index", "rows[].index", "late"]
        );
        assert_eq!(
            made.to_string(),
            "{rows: [{index: 7}, {index: 7}], late: 7}"
        );
        assert!(schema.encode(&made, 1).is_ok());
        Ok(())
    }

    #[test]
    fn bytes_are_given_in_hexadecimal() -> Result<()> {
        assert_eq!(hexadecimal(&[0, 0xab]), Node::atom("0x00ab"));
        assert_eq!(given_bytes("0x00ab")?, [0, 0xab]);
        assert!(given_bytes("0x0").is_err() && given_bytes("00").is_err());
        Ok(())
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let schema = Schema::parse(DEFINITION)?;
        let nothing = message(&[]);
        assert!(schema.encode(&nothing, 3).is_err(), "no such version");
        assert!(schema.encode(&nothing, 0).is_err(), "null before version 1");
        let unknown = message(&[("nonsense", Node::atom("1"))]);
        assert!(schema.encode(&unknown, 1).is_err(), "no such field");
        let mut longer = BytesMut::from(&schema.encode(&nothing, 1)?[..]);
        longer.put_u8(0);
        assert!(
            schema.decode(longer.freeze(), 1).is_err(),
            "a byte too many"
        );
        let unknown_tag = Bytes::from_static(b"\0\x01\x01\x09\0");
        assert!(schema.decode(unknown_tag, 1).is_err(), "an unknown tag");
        Ok(())
    }
}
