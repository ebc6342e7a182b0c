//! OTLP metrics (`opentelemetry.proto.metrics.v1.MetricsData`), read within bounds.
//!
//! A message is taken apart one level at a time: what is nested stays a slice of the pushed bytes until its
//! turn comes, so that a push of many tiny messages takes no more than a slice for each that is open, some
//! thirty times its own size, and not an object for every one of them.
//!
//! Samples beyond the bounds, and kinds of metrics that are not shown, are left out and counted. What is no
//! such message at all is refused as a whole.

use bytes::Bytes;
use prost::Message;

/// Longest name of a metric, and longest value of a label, in bytes.
pub const MAX_TEXT_BYTES: usize = 256;
/// Most labels of a sample.
pub const MAX_LABELS: usize = 16;

/// The value is not there, says the sender.
const FLAG_NO_RECORDED_VALUE: u32 = 1;
const TEMPORALITY_DELTA: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct MetricsData {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    resource_metrics: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(bytes = "bytes", tag = "1")]
    resource: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    scope_metrics: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    attributes: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    metrics: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "bytes", optional, tag = "5")]
    gauge: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    sum: Option<Bytes>,
}

/// A gauge is one without the last two fields.
#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    data_points: Vec<Bytes>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct NumberDataPoint {
    #[prost(double, optional, tag = "4")]
    as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    as_int: Option<i64>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    attributes: Vec<Bytes>,
    #[prost(uint32, tag = "8")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
    #[prost(bool, optional, tag = "2")]
    bool_value: Option<bool>,
    #[prost(int64, optional, tag = "3")]
    int_value: Option<i64>,
    #[prost(double, optional, tag = "4")]
    double_value: Option<f64>,
}

/// How a value goes on from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is what is.
    Gauge,
    /// It is what has come together since the client began, and only rises if `rises`.
    Cumulative {
        /// Whether it never falls.
        rises: bool,
    },
    /// It is what has come since the last push.
    Delta {
        /// Whether it is never negative.
        rises: bool,
    },
}

/// One value of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric, as pushed.
    pub name: String,
    /// Labels, those of the resource first.
    pub labels: Vec<(String, String)>,
    /// What the value means.
    pub kind: Kind,
    /// The value.
    pub value: f64,
}

/// What a push says.
#[derive(Debug, Default, PartialEq)]
pub struct Pushed {
    /// Its samples, as many as may be.
    pub samples: Vec<Sample>,
    /// Samples and metrics that were left out.
    pub left_out: u64,
}

/// The bytes are no metrics.
#[derive(Debug, thiserror::Error)]
#[error("the metrics cannot be decoded: {0}")]
pub struct Undecodable(#[from] prost::DecodeError);

/// Reads a push, at most `max_samples` of it.
///
/// # Errors
/// If any part of it is no message of its kind.
pub fn decode(metrics: Bytes, max_samples: usize) -> Result<Pushed, Undecodable> {
    let mut reader = Reader {
        pushed: Pushed::default(),
        max_samples,
    };
    for resource_metrics in MetricsData::decode(metrics)?.resource_metrics {
        let ResourceMetrics {
            resource,
            scope_metrics,
        } = ResourceMetrics::decode(resource_metrics)?;
        let labels = labels(&Resource::decode(resource)?.attributes)?;
        for scope in scope_metrics {
            for metric in ScopeMetrics::decode(scope)?.metrics {
                reader.metric(Metric::decode(metric)?, labels.as_deref())?;
            }
        }
    }
    Ok(reader.pushed)
}

struct Reader {
    pushed: Pushed,
    max_samples: usize,
}

impl Reader {
    /// `resource` are the labels of all; `None` if they are beyond the bounds.
    fn metric(
        &mut self,
        metric: Metric,
        resource: Option<&[(String, String)]>,
    ) -> Result<(), Undecodable> {
        let is_gauge = metric.gauge.is_some();
        let Some(numbers) = metric.gauge.or(metric.sum) else {
            self.pushed.left_out += 1;
            return Ok(());
        };
        let numbers = Sum::decode(numbers)?;
        let rises = numbers.is_monotonic;
        let kind = match numbers.aggregation_temporality {
            _ if is_gauge => Kind::Gauge,
            TEMPORALITY_DELTA => Kind::Delta { rises },
            _ => Kind::Cumulative { rises },
        };
        let is_named = !metric.name.is_empty() && metric.name.len() <= MAX_TEXT_BYTES;
        for point in numbers.data_points {
            let point = NumberDataPoint::decode(point)?;
            let own = labels(&point.attributes)?;
            let value = point.as_double.or(point.as_int.map(|whole| whole as f64));
            let value = value.filter(|_| point.flags & FLAG_NO_RECORDED_VALUE == 0);
            match (value, resource, own) {
                (Some(value), Some(resource), Some(own))
                    if is_named
                        && self.pushed.samples.len() < self.max_samples
                        && resource.len() + own.len() <= MAX_LABELS =>
                {
                    self.pushed.samples.push(Sample {
                        name: metric.name.clone(),
                        labels: [resource, own.as_slice()].concat(),
                        kind,
                        value,
                    });
                }
                _ => self.pushed.left_out += 1,
            }
        }
        Ok(())
    }
}

/// `None` if they are beyond the bounds. What is no plain value is no label.
fn labels(attributes: &[Bytes]) -> Result<Option<Vec<(String, String)>>, Undecodable> {
    let mut labels = Vec::new();
    let mut is_too_much = false;
    for attribute in attributes {
        let KeyValue { key, value } = KeyValue::decode(attribute.clone())?;
        let value = AnyValue::decode(value)?;
        let text = value
            .string_value
            .or(value.int_value.map(|whole| whole.to_string()))
            .or(value.double_value.map(|number| number.to_string()))
            .or(value.bool_value.map(|truth| truth.to_string()));
        let Some(text) = text else { continue };
        is_too_much |= key.len() > MAX_TEXT_BYTES || text.len() > MAX_TEXT_BYTES;
        is_too_much |= labels.len() >= MAX_LABELS;
        if !is_too_much {
            labels.push((key, text));
        }
    }
    Ok((!is_too_much).then_some(labels))
}

/// Bytes as clients push them.
#[cfg(test)]
pub(super) mod pushes {
    use super::*;

    pub fn pair(key: &str, value: &str) -> Bytes {
        let value = AnyValue {
            string_value: Some(value.to_owned()),
            ..AnyValue::default()
        };
        let pair = KeyValue {
            key: key.to_owned(),
            value: value.encode_to_vec().into(),
        };
        pair.encode_to_vec().into()
    }

    /// A metric with one whole number.
    pub fn number(name: &str, kind: Kind, labels: &[(&str, &str)], value: i64) -> Bytes {
        let labels = labels.iter();
        let point = NumberDataPoint {
            as_int: Some(value),
            attributes: labels.map(|(key, value)| pair(key, value)).collect(),
            ..NumberDataPoint::default()
        };
        let (aggregation_temporality, is_monotonic) = match kind {
            Kind::Gauge => (0, false),
            Kind::Delta { rises } => (TEMPORALITY_DELTA, rises),
            Kind::Cumulative { rises } => (2, rises),
        };
        let numbers = Sum {
            data_points: vec![point.encode_to_vec().into()],
            aggregation_temporality,
            is_monotonic,
        };
        let numbers: Bytes = numbers.encode_to_vec().into();
        let is_gauge = kind == Kind::Gauge;
        let metric = Metric {
            name: name.to_owned(),
            gauge: is_gauge.then(|| numbers.clone()),
            sum: (!is_gauge).then_some(numbers),
        };
        metric.encode_to_vec().into()
    }

    /// A push of metrics by a resource with these attributes.
    pub fn push(resource: Vec<Bytes>, metrics: Vec<Bytes>) -> Bytes {
        let resource = Resource {
            attributes: resource,
        };
        let scope = ScopeMetrics { metrics };
        let one = ResourceMetrics {
            resource: resource.encode_to_vec().into(),
            scope_metrics: vec![scope.encode_to_vec().into()],
        };
        let data = MetricsData {
            resource_metrics: vec![one.encode_to_vec().into()],
        };
        data.encode_to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::pushes::{number, pair, push};
    use super::*;

    #[test]
    fn numbers_come_with_their_kind_and_all_labels() {
        let metrics = vec![
            number("a.rate", Kind::Gauge, &[], 3),
            number(
                "a.total",
                Kind::Delta { rises: true },
                &[("node_id", "1")],
                5,
            ),
            number("a.open", Kind::Cumulative { rises: false }, &[], -2),
        ];
        let pushed = decode(push(vec![pair("group_id", "g")], metrics), 10).expect("metrics");
        let of_group = ("group_id".to_owned(), "g".to_owned());
        let sample = |name: &str, kind, value: f64| Sample {
            name: name.to_owned(),
            labels: vec![of_group.clone()],
            kind,
            value,
        };
        let mut total = sample("a.total", Kind::Delta { rises: true }, 5.0);
        total.labels.push(("node_id".to_owned(), "1".to_owned()));
        assert_eq!(
            pushed.samples,
            [
                sample("a.rate", Kind::Gauge, 3.0),
                total,
                sample("a.open", Kind::Cumulative { rises: false }, -2.0),
            ]
        );
        assert_eq!(pushed.left_out, 0);
    }

    #[test]
    fn what_is_beyond_the_bounds_is_left_out_and_counted() {
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        let many: Vec<(String, String)> = (0..=MAX_LABELS)
            .map(|number| (format!("label{number}"), String::new()))
            .collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(k, v)| (&**k, &**v)).collect();
        let no_number = Metric {
            name: "histogram".to_owned(),
            ..Metric::default()
        };
        let metrics = vec![
            number(&long, Kind::Gauge, &[], 1),
            number("", Kind::Gauge, &[], 1),
            number("a", Kind::Gauge, &[("label", &long)], 1),
            number("b", Kind::Gauge, &many, 1),
            no_number.encode_to_vec().into(),
            number("c", Kind::Gauge, &many[1..], 1),
            number("d", Kind::Gauge, &[], 1),
            number("e", Kind::Gauge, &[], 1),
        ];
        let pushed = decode(push(vec![], metrics), 2).expect("metrics");
        let names: Vec<_> = pushed.samples.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((names, pushed.left_out), (vec!["c", "d"], 6));
    }

    #[test]
    fn what_is_no_push_is_refused_wherever_it_breaks() {
        let whole = push(vec![], vec![number("a", Kind::Gauge, &[("l", "v")], 1)]);
        for end in 1..whole.len() {
            assert!(decode(whole.slice(..end), 10).is_err(), "{end} bytes");
        }
        assert!(decode(Bytes::from_static(b"\xff\xff\xff"), 10).is_err());
        // A group that never ends, and a name that is no text.
        assert!(decode(Bytes::from_static(b"\x0b"), 10).is_err());
        let metric = Bytes::from_static(b"\x0a\x01\xff");
        assert!(decode(push(vec![], vec![metric]), 10).is_err());
        assert_eq!(
            decode(Bytes::new(), 10).expect("nothing"),
            Pushed::default()
        );
    }

    #[test]
    fn many_tiny_messages_are_gone_through_without_a_result() {
        // A million bytes of resources that are empty.
        let tiny = b"\x0a\x00".repeat(500_000);
        let pushed = decode(tiny.into(), 10).expect("empty messages");
        assert_eq!(pushed, Pushed::default());
    }
}
