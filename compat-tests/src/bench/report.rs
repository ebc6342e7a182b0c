//! The table that the benchmark prints: one row a measurement, one column a broker, and ratios.

use std::collections::BTreeMap;

use super::nodes::Kind;

/// Measurements by row, in the order they were made.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
}

struct Row {
    name: String,
    unit: &'static str,
    values: BTreeMap<&'static str, Vec<f64>>,
}

impl Report {
    /// Adds one sample; several samples of a row and broker are reported as their median.
    pub fn add(&mut self, row: &str, unit: &'static str, kind: Kind, value: f64) {
        eprintln!("  {}: {row} = {} {unit}", kind.name(), number(value));
        let index = match self.rows.iter().position(|known| known.name == row) {
            Some(index) => index,
            None => {
                self.rows.push(Row {
                    name: row.to_owned(),
                    unit,
                    values: BTreeMap::new(),
                });
                self.rows.len() - 1
            }
        };
        self.rows[index]
            .values
            .entry(kind.name())
            .or_default()
            .push(value);
    }

    /// Adds a line under the table.
    pub fn note(&mut self, text: String) {
        eprintln!("  {text}");
        self.notes.push(text);
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let kinds = [Kind::Odradek, Kind::Kafka, Kind::KafkaFlushing];
        let mut out = String::from("| measurement | unit |");
        for kind in kinds {
            out.push_str(&format!(" {} |", kind.name()));
        }
        out.push_str(" Odradek ÷ Kafka |\n|---|---|---|---|---|---|\n");
        for row in &self.rows {
            out.push_str(&format!("| {} | {} |", row.name, row.unit));
            let medians: Vec<Option<f64>> = kinds
                .iter()
                .map(|kind| row.values.get(kind.name()).map(|v| median(v)))
                .collect();
            for value in &medians {
                out.push_str(&format!(
                    " {} |",
                    value.map_or_else(|| "–".to_owned(), number)
                ));
            }
            let ratio = match (medians[0], medians[1]) {
                (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
                _ => "–".to_owned(),
            };
            out.push_str(&format!(" {ratio} |\n"));
        }
        out.push('\n');
        for note in &self.notes {
            out.push_str(&format!("- {note}\n"));
        }
        out
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn number(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_medians_and_the_ratio_to_kafka() {
        let mut report = Report::default();
        for value in [1.0, 4.0, 2.0] {
            report.add("produce", "MB/s", Kind::Odradek, value);
        }
        report.add("produce", "MB/s", Kind::Kafka, 4.0);
        assert!(
            report
                .markdown()
                .contains("| produce | MB/s | 2.00 | 4.00 | – | 0.50 |")
        );
    }
}
