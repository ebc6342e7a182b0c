//! Several histograms as text.

use std::fmt;

use crate::Histogram;

/// Histograms under their names.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart {
    series: Vec<(String, Histogram)>,
}

impl AsciiChart {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more histogram.
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.series.push((name.to_owned(), histogram));
        self
    }

    /// Every bucket of every histogram, a line each.
    pub fn detailed(&self) -> DetailedDisplay<'_> {
        DetailedDisplay(self)
    }
}

/// Lines of `name`, then `<= bound: count`.
#[derive(Debug)]
pub struct DetailedDisplay<'a>(&'a AsciiChart);

impl fmt::Display for DetailedDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, histogram) in &self.0.series {
            writeln!(f, "{name}")?;
            for (bound, count) in histogram.buckets() {
                writeln!(f, "  <= {bound}: {count}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_bucket_in_use() {
        let mut histogram = Histogram::new();
        histogram.record_n(3, 2);
        histogram.record(900);
        let chart = AsciiChart::new().add("waiting", histogram);
        let text = chart.detailed().to_string();
        assert_eq!(text, "waiting\n  <= 3: 2\n  <= 1023: 1\n");
    }
}
