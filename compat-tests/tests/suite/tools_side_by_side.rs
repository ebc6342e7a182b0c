//! Kafka's command-line tools at Odradek and at Kafka beside it: what they print is compared.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use compat_tests::beside::beside;
use compat_tests::kafka::{BROKER_API_VERSIONS, CLUSTER, DUMP_LOG};
use compat_tests::server::kafka_instead;
use compat_tests::tool_script::{Command, FILES, SCRIPT, TOOL_DIFFERENCES};
use compat_tests::tool_text::{normalized, sorted_lines, without_number_of, without_numbers};
use compat_tests::toolbox::{Printed, ToolBox};
use compat_tests::wire::Wire;

/// Where a tool finds a server.
struct Place<'a> {
    bootstrap: &'a str,
    data: &'a Path,
    files: &'a Path,
}

/// Runs a command and takes what differs between any two servers out of what it prints.
fn printed(tools: &mut ToolBox, command: &Command, place: &Place) -> Result<Printed> {
    let (data, files) = (
        place.data.display().to_string(),
        place.files.display().to_string(),
    );
    let mut arguments: Vec<String> = command
        .arguments
        .split_whitespace()
        .map(|argument| {
            let argument = argument.replace("{files}", &files);
            argument.replace("{data}", &data).replace('~', " ")
        })
        .collect();
    if command.tool != DUMP_LOG {
        // This one has an option of that name for each of its commands, behind the command.
        let at = usize::from(command.tool == CLUSTER);
        let server = ["--bootstrap-server".to_owned(), place.bootstrap.to_owned()];
        arguments.splice(at..at, server);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = tools
        .run(command.tool, &arguments, command.input)
        .with_context(|| format!("{} {:?}", command.tool.name, command.arguments))?;
    let (host, port) = place.bootstrap.rsplit_once(':').context("no port")?;
    let known = [
        (place.bootstrap, "<address>"),
        (data.as_str(), "<data>"),
        (files.as_str(), "<files>"),
        (port, "<port>"),
        (host, "<host>"),
    ];
    let shown = |text: &str| {
        let mut text = normalized(text, &known);
        // Raft's terms begin at 1, Kafka's epochs at 0; how many records the metadata has is each one's own affair.
        for label in ["partitionLeaderEpoch: ", " Epoch: "] {
            text = without_number_of(&text, label);
        }
        if !command.only.is_empty() {
            let kept: Vec<&str> = text
                .lines()
                .filter(|line| line.contains(command.only))
                .collect();
            text = kept.join("\n");
        }
        if command.measured {
            text = without_numbers(&text);
        }
        match command.unordered {
            true => sorted_lines(&text),
            false => text,
        }
    };
    Ok(Printed {
        status: said.status,
        out: shown(&said.out),
        // Where in the tool's own code something went wrong is no part of the answer.
        err: shown(&without_stacks(&said.err)),
    })
}

fn without_stacks(text: &str) -> String {
    let lines = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with("at ") && !line.starts_with("... ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is different, in a few lines.
fn difference(ours: &Printed, kafka: &Printed) -> String {
    let mut text = String::new();
    if ours.status != kafka.status {
        let _ = writeln!(
            text,
            "    status: odradek {} kafka {}",
            ours.status, kafka.status
        );
    }
    for (what, ours, kafka) in [
        ("out", &ours.out, &kafka.out),
        ("err", &ours.err, &kafka.err),
    ] {
        let (left, right): (BTreeSet<&str>, BTreeSet<&str>) =
            (ours.lines().collect(), kafka.lines().collect());
        for line in left.difference(&right) {
            let _ = writeln!(text, "    {what} odradek: {line}");
        }
        for line in right.difference(&left) {
            let _ = writeln!(text, "    {what} kafka:   {line}");
        }
        if ours != kafka && left == right {
            let _ = writeln!(text, "    {what} in another order:\n{ours}\n---\n{kafka}");
        }
    }
    text
}

/// What is served is listed as Kafka lists it; Kafka serves more.
fn without_what_is_not_served(ours: &mut Printed, kafka: &mut Printed) {
    let name = |line: &str| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let missing: BTreeSet<String> = ours
        .out
        .lines()
        .filter(|line| line.contains("UNSUPPORTED"))
        .map(name)
        .collect();
    for printed in [ours, kafka] {
        let kept = printed
            .out
            .lines()
            .filter(|line| !missing.contains(&name(line)));
        // The last one has no comma.
        let kept: Vec<&str> = kept.map(|line| line.trim_end_matches(',')).collect();
        printed.out = kept.join("\n");
    }
}

#[test]
fn tools_print_the_same_as_at_kafka() -> Result<()> {
    let both = beside()?;
    let files = tempfile::tempdir()?;
    for (name, content) in FILES {
        std::fs::write(files.path().join(name), content)?;
    }
    let (ours, kafka) = (
        both.ours.address.to_string(),
        both.kafka.address.to_string(),
    );
    let place = |bootstrap, data| Place {
        bootstrap,
        data,
        files: files.path(),
    };
    let ours = place(&ours, &both.ours.data_dir);
    let kafka = place(&kafka, &both.kafka.data_dir);
    let mut tools = ToolBox::start()?;
    let mut report = String::new();
    let (mut equal, mut known) = (0, 0);
    for chapter in SCRIPT {
        (chapter.prepare)(&mut Wire::connect(both.ours.address)?).context("Odradek")?;
        (chapter.prepare)(&mut Wire::connect(both.kafka.address)?).context("Kafka")?;
        for command in chapter.commands {
            let mut left = printed(&mut tools, command, &ours)?;
            let mut right = printed(&mut tools, command, &kafka)?;
            if command.tool == BROKER_API_VERSIONS {
                without_what_is_not_served(&mut left, &mut right);
            }
            let label = format!("{}, {}", command.tool.name, command.label);
            let listed = TOOL_DIFFERENCES
                .iter()
                .any(|(tool, label, _)| *tool == command.tool.name && *label == command.label);
            match (left == right, listed && !kafka_instead()) {
                (true, false) => equal += 1,
                (false, true) => known += 1,
                (true, true) => {
                    let _ = writeln!(report, "{label}: listed as known, but equal");
                }
                (false, false) => {
                    let _ = write!(report, "{label}:\n{}", difference(&left, &right));
                }
            }
        }
    }
    eprintln!("{equal} commands print the same, {known} differ as is known");
    ensure!(report.is_empty(), "tools differ\n{report}");
    Ok(())
}
