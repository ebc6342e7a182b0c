//! A codec for every API and version that Apache Kafka has, driven by the message definitions that its own jar carries.
//!
//! It encodes from and decodes to [`Node`]s (`encoding`), so that versions which the codec of the other tests does not
//! know are compared field by field like the rest. Fields keep Kafka's names in snake case. An answer must be consumed to
//! its last byte. Bytes are given as hexadecimal digits behind `0x`; records are read as their batches
//! ([`crate::fetched`]). Messages can also be made up field by field ([`Maker`], in `made`).
//!
//! Absent on purpose: speed, and defaults of structs inside structs (Kafka has none that matter to a request here).

mod encoding;
mod made;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use uuid::Uuid;

pub use self::encoding::hexadecimal;
use self::encoding::{decode_struct, encode_struct};
use self::made::make_struct;
pub use self::made::{Leaf, Maker};
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

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::encoding::given_bytes;
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
