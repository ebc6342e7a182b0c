//! Kafka's command-line tools, run one after the other in one Java process (`kafka/ToolBox.java`), because starting one
//! takes longer than most of them do.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};

use anyhow::{Context, Result};

use crate::kafka::{Tool, java_arguments, libs};
use crate::process::Piped;

/// The program.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kafka/ToolBox.java");

/// The process that runs them.
pub struct ToolBox {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Last, so that it ends after its pipes are closed.
    _process: Piped,
}

/// What a tool printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Its exit status; 124 if it did not end in time.
    pub status: i32,
    /// On standard output.
    pub out: String,
    /// On standard error.
    pub err: String,
}

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

impl ToolBox {
    /// Starts the process.
    pub fn start() -> Result<Self> {
        let mut arguments = java_arguments("384m", &libs()?);
        arguments.push("--add-opens=java.base/java.lang=ALL-UNNAMED".to_owned());
        arguments.push(SOURCE.to_owned());
        let mut process = Piped::start(Path::new("java"), &arguments)?;
        Ok(Self {
            input: process.input()?,
            output: BufReader::new(process.output()?),
            _process: process,
        })
    }

    /// Runs a tool to its end.
    pub fn run(&mut self, tool: Tool, arguments: &[&str], input: &str) -> Result<Printed> {
        let words: Vec<String> = [tool.class(), input]
            .iter()
            .chain(arguments)
            .map(|word| hexadecimal(word))
            .collect();
        writeln!(self.input, "{}", words.join(" ")).context("the tools' process has ended")?;
        self.input.flush()?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut numbers = line.split_whitespace();
        let mut number = || -> Result<i64> {
            let text = numbers.next().context("the tools' process has ended")?;
            text.parse().with_context(|| line.clone())
        };
        let (status, out, err) = (number()?, number()?, number()?);
        let mut text = |length: i64| -> Result<String> {
            let mut bytes = vec![0; usize::try_from(length)?];
            self.output.read_exact(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Printed {
            status: i32::try_from(status)?,
            out: text(out)?,
            err: text(err)?,
        })
    }
}
