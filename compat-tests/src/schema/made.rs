//! Messages that are made up, field by field.

use super::{Field, Kind, contains};
use crate::tree::Node;

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

pub(super) fn make_struct(
    fields: &[Field],
    version: i16,
    path: &str,
    maker: &mut dyn Maker,
) -> Node {
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
