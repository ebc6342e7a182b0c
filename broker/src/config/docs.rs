//! `docs/CONFIG.md`, made from the tables so that it cannot say anything else.

use std::fmt::Write as _;

use super::key::KeySpec;
use super::{broker_keys, foreign_keys};
use crate::topic_config::TOPIC_KEYS;

const HEAD: &str = "\
# Configuration

This file is generated from the tables in `broker/src/config` and `broker/src/topic_config`;
`ODRADEK_WRITE_DOCS=1 cargo test -p odradek --lib config::docs` writes it anew.

`odradek start [server.properties] [--override key=value]…` reads a file in the syntax of Java
properties, and overrides count before the file. Keys, types, units and defaults are those of Apache
Kafka 4.4; keys of our own start with `odradek.`. A key that nobody knows, a value of the wrong type and
one out of range stop the start with a message that names the key, where it stands, and what was
probably meant.

*Update* says when a broker key may change: `read-only` at a start, `cluster-wide` also while running,
with `kafka-configs.sh --entity-type brokers`, for one broker or all.

";

const DIFFERENCES: &str = "\
## Where the defaults differ from Kafka's

| Key | Kafka 4.4 | here | why |
|---|---|---|---|
| `listeners` | `PLAINTEXT://:9092` | `PLAINTEXT://127.0.0.1:9092` | a fresh broker is reachable from its own machine only |
| `log.dir` | `/tmp/kafka-logs` | `./odradek-data` | a restart of the machine may empty `/tmp` |
| `process.roles` | required | `broker,controller` | a node of one needs no file |
| `node.id` | required | `1` | a node of one needs no file |

";

/// The text of the file.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    text.push_str(DIFFERENCES);
    for (heading, keys) in broker_keys::SECTIONS {
        let _ = writeln!(text, "## {heading}\n");
        text.push_str(
            "| Key | Type | Default | Takes | Update | Importance |\n|---|---|---|---|---|---|\n",
        );
        for key in *keys {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} |",
                key.name,
                key.kind.name(),
                shown_default(key),
                key.expected(),
                key.update.name(),
                key.importance.name(),
            );
        }
        text.push('\n');
        for key in *keys {
            let _ = writeln!(text, "- `{}`: {}", key.name, key.doc);
        }
        text.push('\n');
    }
    topics(&mut text);
    foreign(&mut text);
    text
}

fn topics(text: &mut String) {
    text.push_str(
        "## Topic settings\n\nSet with `kafka-topics.sh --config` or `kafka-configs.sh --entity-type \
         topics`. Where a topic sets nothing, the broker key in the last column counts.\n\n\
         | Setting | Type | Default | Takes | Broker key |\n|---|---|---|---|---|\n",
    );
    for key in TOPIC_KEYS {
        let coarser = key.coarser.iter().map(|(name, _)| *name);
        let names: Vec<String> = key
            .synonym
            .into_iter()
            .chain(coarser)
            .map(|name| format!("`{name}`"))
            .collect();
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            key.spec.name,
            key.spec.kind.name(),
            shown_default(&key.spec),
            key.spec.expected(),
            names.join(", "),
        );
    }
    text.push('\n');
    for key in TOPIC_KEYS {
        let note = if key.effective {
            ""
        } else {
            " (Kept and shown; no effect yet.)"
        };
        let _ = writeln!(text, "- `{}`: {}{note}", key.spec.name, key.spec.doc);
    }
    text.push('\n');
}

fn foreign(text: &mut String) {
    text.push_str(
        "## Keys of Kafka's without effect\n\nThese are accepted, so that a file that works with Kafka \
         works here, and a start names those that were set. Keys below `listener.name.` and of plugins \
         are treated alike.\n\n",
    );
    let names: Vec<String> = foreign_keys::FOREIGN
        .iter()
        .filter(|(name, _)| {
            !foreign_keys::REFUSED
                .iter()
                .any(|(refused, _)| refused == name)
        })
        .map(|(name, _)| format!("`{name}`"))
        .collect();
    text.push_str(&names.join(", "));
    text.push_str(".\n\n## Keys of Kafka's that stop the start\n\n");
    for (name, reason) in foreign_keys::REFUSED {
        let _ = writeln!(text, "- `{name}`: {reason}.");
    }
}

fn shown_default(key: &KeySpec) -> String {
    match key.default {
        None => "not set".to_owned(),
        Some("") => "empty".to_owned(),
        Some(value) => format!("`{value}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_what_the_tables_say() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFIG.md");
        let expected = markdown();
        if std::env::var_os("ODRADEK_WRITE_DOCS").is_some() {
            std::fs::write(&path, &expected).expect("docs/CONFIG.md can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == expected,
            "docs/CONFIG.md is out of date; write it with ODRADEK_WRITE_DOCS=1"
        );
    }
}
