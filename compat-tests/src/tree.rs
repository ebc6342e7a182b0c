//! A decoded message as a tree of named fields, made from its `Debug` form, so that any two answers can be compared
//! field by field without a line of code for each message.

use std::fmt::{self, Debug};

use anyhow::{Result, bail, ensure};

/// A field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A number, text, bytes, null or an id, as `Debug` prints it.
    Atom(String),
    /// An array.
    List(Vec<Node>),
    /// A message or a map: names and values.
    Struct(Vec<(String, Node)>),
}

impl Node {
    /// The tree of a value whose `Debug` is derived.
    pub fn of(value: &impl Debug) -> Result<Self> {
        let text = format!("{value:?}");
        let mut parser = Parser { rest: &text };
        let node = parser.value()?;
        ensure!(parser.rest.is_empty(), "left over: {}", parser.rest);
        Ok(node)
    }

    /// An atom with this text.
    pub fn atom(text: impl Into<String>) -> Self {
        Self::Atom(text.into())
    }

    /// An atom that stands for this text, quoted as `Debug` does it.
    pub fn text(text: &str) -> Self {
        Self::Atom(format!("{text:?}"))
    }

    /// Calls `change` with each node and its path, such as `topics[].partitions[].error_code`, parents first.
    pub fn visit(&mut self, change: &mut impl FnMut(&str, &mut Node)) {
        self.visit_below(&mut String::new(), change);
    }

    fn visit_below(&mut self, path: &mut String, change: &mut impl FnMut(&str, &mut Node)) {
        change(path, self);
        let length = path.len();
        match self {
            Self::Atom(_) => {}
            Self::List(items) => {
                path.push_str("[]");
                for item in items {
                    item.visit_below(path, change);
                }
            }
            Self::Struct(fields) => {
                for (name, value) in fields {
                    if length > 0 {
                        path.push('.');
                    }
                    path.push_str(name);
                    value.visit_below(path, change);
                    path.truncate(length);
                }
            }
        }
        path.truncate(length);
    }

    /// The value of a field of this struct.
    pub fn field(&self, name: &str) -> Option<&Node> {
        match self {
            Self::Struct(fields) => fields
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// Where two trees differ: path with indexes, and both values.
    pub fn differences(&self, other: &Node) -> Vec<Difference> {
        let mut found = Vec::new();
        compare(self, other, "", &mut found);
        found
    }
}

/// A struct of named fields.
pub fn fields(fields: &[(&str, Node)]) -> Node {
    let own = |(name, value): &(&str, Node)| ((*name).to_owned(), value.clone());
    Node::Struct(fields.iter().map(own).collect())
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Atom(text) => f.write_str(text),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Struct(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {value}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// One place where two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, with indexes: `topics[0].error_code`.
    pub path: String,
    /// What the first tree has there.
    pub left: String,
    /// What the second has.
    pub right: String,
}

impl Difference {
    /// The path without its indexes: `topics[].error_code`.
    pub fn pattern(&self) -> String {
        let mut pattern = String::new();
        let mut inside = false;
        for c in self.path.chars() {
            match c {
                '[' => inside = true,
                ']' => inside = false,
                _ if inside => continue,
                _ => {}
            }
            pattern.push(c);
        }
        pattern
    }
}

fn compare(left: &Node, right: &Node, path: &str, found: &mut Vec<Difference>) {
    match (left, right) {
        (Node::List(a), Node::List(b)) => {
            if a.len() != b.len() {
                found.push(Difference {
                    path: format!("{path}.len()"),
                    left: format!("{} {left}", a.len()),
                    right: format!("{} {right}", b.len()),
                });
                return;
            }
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{index}]"), found);
            }
        }
        (Node::Struct(a), Node::Struct(b))
            if a.iter().map(|(n, _)| n).eq(b.iter().map(|(n, _)| n)) =>
        {
            for ((name, a), (_, b)) in a.iter().zip(b) {
                let dot = if path.is_empty() { "" } else { "." };
                compare(a, b, &format!("{path}{dot}{name}"), found);
            }
        }
        _ if left == right => {}
        _ => found.push(Difference {
            path: path.to_owned(),
            left: left.to_string(),
            right: right.to_string(),
        }),
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: char) -> bool {
        self.spaces();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Result<Node> {
        self.spaces();
        if self.rest.starts_with('"') || self.rest.starts_with("b\"") {
            return self.quoted().map(Node::Atom);
        }
        if self.eat('[') {
            return self.items(']').map(Node::List);
        }
        if self.eat('{') {
            return self.fields();
        }
        let word = self.word();
        let tuple = self.eat('(');
        ensure!(tuple || !word.is_empty(), "no value at {:.40}", self.rest);
        if tuple {
            let mut items = self.items(')')?;
            // Newtypes and `Some` stand for what they hold.
            return Ok(if items.len() == 1 {
                items.remove(0)
            } else {
                Node::List(items)
            });
        }
        if self.eat('{') {
            return self.fields();
        }
        Ok(Node::Atom(word))
    }

    fn word(&mut self) -> String {
        let end = self
            .rest
            .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+')))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let word = word.to_owned();
        self.rest = rest;
        word
    }

    fn quoted(&mut self) -> Result<String> {
        let open = self.rest.find('"').unwrap_or(0);
        let mut escaped = false;
        for (index, c) in self.rest.char_indices().skip(open + 1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    let (text, rest) = self.rest.split_at(index + 1);
                    let text = text.to_owned();
                    self.rest = rest;
                    return Ok(text);
                }
                _ => {}
            }
        }
        bail!("text without an end");
    }

    fn items(&mut self, close: char) -> Result<Vec<Node>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(self.value()?);
            self.eat(',');
        }
        Ok(items)
    }

    /// The inside of a struct, a map or a set, the opening brace already read.
    fn fields(&mut self) -> Result<Node> {
        let mut fields = Vec::new();
        while !self.eat('}') {
            let name = match self.value()? {
                Node::Atom(name) => name,
                other => other.to_string(),
            };
            let value = if self.eat(':') {
                self.value()?
            } else {
                Node::atom("")
            };
            self.eat(',');
            fields.push((name, value));
        }
        Ok(Node::Struct(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[allow(dead_code)]
    struct Inner(i32);

    #[derive(Debug)]
    #[allow(dead_code)]
    struct Outer {
        name: Option<&'static str>,
        items: Vec<Inner>,
        map: std::collections::BTreeMap<i32, &'static str>,
        none: Option<i32>,
    }

    #[test]
    fn debug_forms_become_trees_with_paths() -> Result<()> {
        let value = Outer {
            name: Some("a \"quoted\" {text}"),
            items: vec![Inner(-1), Inner(2)],
            map: [(1, "x")].into(),
            none: None,
        };
        let tree = Node::of(&value)?;
        assert_eq!(
            tree.to_string(),
            r#"{name: "a \"quoted\" {text}", items: [-1, 2], map: {1: "x"}, none: None}"#
        );
        let other = Outer {
            items: vec![Inner(-1), Inner(3)],
            ..value
        };
        let differences = tree.differences(&Node::of(&other)?);
        assert_eq!(differences.len(), 1);
        assert_eq!(differences[0].path, "items[1]");
        assert_eq!(differences[0].pattern(), "items[]");
        Ok(())
    }
}
