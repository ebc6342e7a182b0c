//! The values of one client, as the metrics endpoint shows them.
//!
//! Names and labels become Prometheus's: `org.apache.kafka.producer.connection.creation.total` is
//! `kafka_client_producer_connection_creation_total`. No metric of the broker begins so, and none of a client
//! can take the name of one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use super::otlp::{Kind, Sample};

/// What every name begins with.
const PREFIX: &str = "kafka_client_";
/// What the names of Kafka's own metrics begin with.
const KAFKA: &str = "org.apache.kafka.";
/// Labels that the broker gives.
pub const CLIENT_ID: &str = "client_id";
/// See [`CLIENT_ID`].
pub const CLIENT_INSTANCE_ID: &str = "client_instance_id";

/// Name and labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: String,
    /// In Prometheus's text, without brackets.
    labels: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    rises: bool,
    value: f64,
    pushed_at: Instant,
}

/// The series of one client.
#[derive(Debug, Default)]
pub struct Series(BTreeMap<Key, Point>);

impl Series {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a sample. A new series is made only if there are fewer than `most`; returns whether the sample
    /// was taken.
    pub fn take(&mut self, sample: &Sample, now: Instant, most: usize) -> bool {
        let key = Key {
            name: metric_name(&sample.name),
            labels: labels_text(&sample.labels),
        };
        let before = self.0.get(&key);
        if before.is_none() && self.0.len() >= most {
            return false;
        }
        let (rises, value) = match sample.kind {
            Kind::Gauge => (false, sample.value),
            Kind::Cumulative { rises } => (rises, sample.value),
            Kind::Delta { rises } => {
                let sum = before.map_or(0.0, |point| point.value) + sample.value;
                (rises, sum)
            }
        };
        let point = Point {
            rises,
            value,
            pushed_at: now,
        };
        self.0.insert(key, point);
        true
    }

    /// Forgets what was last pushed before `since`.
    pub fn forget_before(&mut self, since: Instant) {
        self.0.retain(|_, point| point.pushed_at >= since);
    }
}

/// The text of many clients' series, a metric at a time.
#[derive(Debug, Default)]
pub struct Page<'a>(BTreeMap<&'a str, Vec<Row<'a>>>);

#[derive(Debug)]
struct Row<'a> {
    client: &'a str,
    labels: &'a str,
    point: Point,
}

impl<'a> Page<'a> {
    /// Adds the series of a client whose own labels are `client`, in Prometheus's text.
    pub fn add(&mut self, client: &'a str, series: &'a Series) {
        for (key, point) in &series.0 {
            self.0.entry(&key.name).or_default().push(Row {
                client,
                labels: &key.labels,
                point: *point,
            });
        }
    }

    /// Appends the text. A metric that clients disagree about has no type.
    pub fn write(&self, text: &mut String) {
        for (name, rows) in &self.0 {
            let rising = rows.iter().filter(|row| row.point.rises).count();
            let kind = match rising {
                0 => "gauge",
                all if all == rows.len() => "counter",
                _ => "untyped",
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "# HELP {name} Pushed by clients.\n# TYPE {name} {kind}"
            );
            for row in rows {
                let comma = if row.labels.is_empty() { "" } else { "," };
                let (client, labels) = (row.client, row.labels);
                let _ = writeln!(
                    text,
                    "{name}{{{client}{comma}{labels}}} {}",
                    number(row.point.value)
                );
            }
        }
    }
}

fn number(value: f64) -> String {
    if value == f64::INFINITY {
        "+Inf".to_owned()
    } else if value == f64::NEG_INFINITY {
        "-Inf".to_owned()
    } else {
        value.to_string()
    }
}

fn metric_name(pushed: &str) -> String {
    let name = pushed.strip_prefix(KAFKA).unwrap_or(pushed);
    format!("{PREFIX}{}", plain(name))
}

/// Letters, digits and underscores.
fn plain(name: &str) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' => character,
        _ => '_',
    };
    name.chars().map(plain).collect()
}

/// Of two labels that come to the same name the first counts, and the broker's own before all.
fn labels_text(labels: &[(String, String)]) -> String {
    let mut named = BTreeMap::new();
    for (name, value) in labels {
        let mut name = plain(name);
        // Names of these kinds cannot be, or are Prometheus's own.
        if name.is_empty()
            || name.starts_with("__")
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            name.insert_str(0, "label");
        }
        if name != CLIENT_ID && name != CLIENT_INSTANCE_ID {
            named.entry(name).or_insert(value.as_str());
        }
    }
    let pairs: Vec<String> = named
        .into_iter()
        .map(|(name, value)| label(&name, value))
        .collect();
    pairs.join(",")
}

/// A label in Prometheus's text.
pub fn label(name: &str, value: &str) -> String {
    let mut text = format!("{name}=\"");
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(name: &str, kind: Kind, labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels.iter();
        Sample {
            name: name.to_owned(),
            labels: labels
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            kind,
            value,
        }
    }

    fn text(series: &Series) -> String {
        let mut page = Page::default();
        page.add("client_id=\"c\"", series);
        let mut text = String::new();
        page.write(&mut text);
        text
    }

    #[test]
    fn names_and_labels_are_prometheuss() {
        let now = Instant::now();
        let mut series = Series::default();
        let labels = [
            ("node.id", "1"),
            ("node-id", "2"),
            ("__name__", "up"),
            ("client_id", "another"),
            ("1st", "a\"b\\c\nd"),
        ];
        let rate = sample(
            "org.apache.kafka.producer.node.request.rate",
            Kind::Gauge,
            &labels,
            0.5,
        );
        assert!(series.take(&rate, now, 9));
        let up = sample("up", Kind::Cumulative { rises: true }, &[], f64::INFINITY);
        assert!(series.take(&up, now, 9));
        assert_eq!(
            text(&series),
            "# HELP kafka_client_producer_node_request_rate Pushed by clients.\n\
             # TYPE kafka_client_producer_node_request_rate gauge\n\
             kafka_client_producer_node_request_rate{client_id=\"c\",label1st=\"a\\\"b\\\\c\\nd\",label__name__=\"up\",node_id=\"1\"} 0.5\n\
             # HELP kafka_client_up Pushed by clients.\n\
             # TYPE kafka_client_up counter\n\
             kafka_client_up{client_id=\"c\"} +Inf\n"
        );
    }

    #[test]
    fn what_came_since_the_last_push_is_added_up() {
        let now = Instant::now();
        let mut series = Series::default();
        for _ in 0..3 {
            let delta = sample("a.total", Kind::Delta { rises: true }, &[], 2.0);
            assert!(series.take(&delta, now, 9));
            let whole = sample("b.total", Kind::Cumulative { rises: true }, &[], 2.0);
            assert!(series.take(&whole, now, 9));
        }
        let text = text(&series);
        assert!(
            text.contains("kafka_client_a_total{client_id=\"c\"} 6\n"),
            "{text}"
        );
        assert!(
            text.contains("kafka_client_b_total{client_id=\"c\"} 2\n"),
            "{text}"
        );
    }

    #[test]
    fn there_are_no_more_series_than_there_may_be() {
        let now = Instant::now();
        let mut series = Series::default();
        let gauge = |name: &str| sample(name, Kind::Gauge, &[], 1.0);
        assert!(series.take(&gauge("a"), now, 1));
        assert!(!series.take(&gauge("b"), now, 1));
        assert!(series.take(&gauge("a"), now, 1));
        assert_eq!(series.len(), 1);
        let later = now + Duration::from_secs(1);
        series.forget_before(later);
        assert_eq!(series.len(), 0);
    }

    #[test]
    fn a_metric_that_clients_disagree_about_has_no_type() {
        let now = Instant::now();
        let (mut one, mut other) = (Series::default(), Series::default());
        one.take(&sample("a", Kind::Gauge, &[], 1.0), now, 9);
        other.take(&sample("a", Kind::Delta { rises: true }, &[], 1.0), now, 9);
        let mut page = Page::default();
        page.add("client_id=\"c\"", &one);
        page.add("client_id=\"d\"", &other);
        let mut text = String::new();
        page.write(&mut text);
        assert!(text.contains("# TYPE kafka_client_a untyped\n"), "{text}");
        assert_eq!(text.matches("# TYPE").count(), 1, "{text}");
    }
}
