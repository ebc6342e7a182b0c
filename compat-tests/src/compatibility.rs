//! `docs/COMPATIBILITY.md`: what of Kafka's world has been seen to work, made from the tables that the tests themselves
//! go by.
//!
//! Invariant: a line names the test that shows it, or the table it is taken from; a test checks that the document is
//! what is made here, and that the tests which it names exist and are run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::compared::COMPARED;
use crate::generator::tolerated::TOLERATED;
use crate::kafka::VERSION;
use crate::known::KNOWN;
use crate::tool_script::{SCRIPT, TOOL_DIFFERENCES};

/// A client, what of the protocol it uses, and the test (`file::function` of `tests/suite`) that shows that it works.
pub const CLIENTS: &[(&str, &str, &str)] = &[
    (
        "kcat (librdkafka of the distribution)",
        "produce and fetch with every codec",
        "clients::kcat_reads_back_what_it_wrote_with_every_codec",
    ),
    (
        "kcat (librdkafka of the distribution)",
        "metadata, offsets by time, a classic group",
        "clients::kcat_lists_queries_and_reads_as_a_group",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "produce with and without idempotence, headers, every codec",
        "clients::librdkafka_produces_with_and_without_idempotence_and_reads_back",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "classic groups: sharing and taking over",
        "clients::librdkafka_group_consumers_share_partitions_and_take_over",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "static members (KIP-345)",
        "clients::a_static_librdkafka_consumer_comes_back_to_its_partitions_and_fences_its_double",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "topics and settings",
        "clients::librdkafka_administers_topics_and_configs",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "consumer groups (KIP-848)",
        "consumer_groups::librdkafka_consumers_of_the_new_protocol_share_grow_and_take_over",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "consumer groups by regular expression",
        "consumer_groups::librdkafka_subscribes_by_expression_and_sees_new_topics",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "a group that goes over to the new protocol and back",
        "consumer_groups::a_group_moves_from_the_classic_protocol_to_the_new_one_and_back",
    ),
    (
        "librdkafka (rdkafka crate 0.39)",
        "transactions, fencing",
        "transactions::a_transactional_producer_of_librdkafka_commits_aborts_and_is_fenced",
    ),
    (
        "confluent-kafka for Python",
        "the README's program",
        "clients::python_runs_what_the_readme_says",
    ),
    (
        "Kafka's Java clients",
        "consumer groups (KIP-848)",
        "consumer_groups::verifiable_consumers_of_the_new_protocol_read_what_was_produced",
    ),
    (
        "Kafka's Java clients",
        "transactions, over kills (KIP-890)",
        "transactions::kafkas_copier_copies_every_message_once_however_often_it_is_killed",
    ),
    (
        "Kafka Streams 4.3",
        "exactly once, over kills",
        "streams::streams_smoke_test_passes_its_own_verification_though_an_instance_is_killed",
    ),
];

/// The names of the tests that [`CLIENTS`] relies on and that are not run.
pub fn missing_tests(suite: &Path) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for (_, _, test) in CLIENTS {
        let (file, function) = test.split_once("::").context("no file")?;
        let text = std::fs::read_to_string(suite.join(format!("{file}.rs")))?;
        let declared = text.find(&format!("\nfn {function}("));
        let is_run = declared.is_some_and(|at| {
            let before = text[..at].trim_end();
            before.ends_with("#[test]") || before.rsplit('\n').take(3).any(|line| line == "#[test]")
        });
        if !is_run {
            missing.push(*test);
        }
    }
    Ok(missing)
}

/// How many requests were compared of each API and version.
type Compared = BTreeMap<String, BTreeMap<i16, u64>>;

/// What the last long comparison of random requests says of itself.
///
/// # Errors
/// Its results in `results` cannot be read.
pub fn about_random_requests(results: &Path) -> Result<String> {
    random_results(results).map(|(about, _)| about)
}

/// What `compat-tests/results/random.txt` says of itself, and its lines: API, version, how many were compared.
fn random_results(results: &Path) -> Result<(String, Compared)> {
    let path = results.join("random.txt");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let about = lines.next().context("an empty file")?.to_owned();
    let mut apis = Compared::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [api, version, count] = words[..] else {
            anyhow::bail!("{}: {line}", path.display());
        };
        let versions = apis.entry(api.to_owned()).or_default();
        versions.insert(version.parse()?, count.parse()?);
    }
    Ok((about, apis))
}

/// What the lists of the clients' own suites (`compat-tests/suites/*.txt`) leave out: suite, kind, how many.
fn suites(lists: &Path) -> Result<BTreeMap<String, BTreeMap<String, usize>>> {
    let mut suites = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(lists) else {
        return Ok(suites);
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let name = path
            .file_stem()
            .context("no name")?
            .to_string_lossy()
            .into_owned();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for line in std::fs::read_to_string(&path)?.lines() {
            let kind = line.split_whitespace().next().unwrap_or("#");
            if !kind.starts_with('#') {
                *kinds.entry(kind.to_owned()).or_default() += 1;
            }
        }
        suites.insert(name, kinds);
    }
    Ok(suites)
}

/// The document, from the directory of this crate.
pub fn document(crate_directory: &Path) -> Result<String> {
    let mut text = format!(
        "# What of Kafka's world works\n\n\
         Made by the tests from the tables that they go by (`compat-tests/src/compatibility.rs`); a line stands as\n\
         long as the test passes that it names. The reference is Apache Kafka {VERSION}. Why answers differ where they do:\n\
         [PROTOCOL.md](PROTOCOL.md). What is not there at all: [GAPS.md](GAPS.md).\n\n\
         ## Clients and what of the protocol they use\n\n\
         | client | what | shown by |\n|---|---|---|\n"
    );
    for (client, feature, test) in CLIENTS {
        let _ = writeln!(text, "| {client} | {feature} | `{test}` |");
    }
    let suites = suites(&crate_directory.join("suites"))?;
    if !suites.is_empty() {
        text.push_str(
            "\n## The test suites of clients\n\n\
             All of a suite's tests pass but those that its list (`compat-tests/suites/NAME.txt`) names, each with its\n\
             reason; a test that is listed as failing and passes fails the run.\n\n\
             | suite | fail | skipped by the suite | not run | run again alone |\n|---|---|---|---|---|\n",
        );
        for (name, kinds) in suites {
            let count = |kind: &str| kinds.get(kind).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "| {name} | {} | {} | {} | {} |",
                count("fails"),
                count("skips"),
                count("excluded"),
                count("retried")
            );
        }
    }
    tools(&mut text);
    apis(&mut text, &crate_directory.join("results"))?;
    Ok(text)
}

fn tools(text: &mut String) {
    text.push_str(
        "\n## Kafka's command-line tools\n\n\
         Each command is run at Odradek and at Kafka, and what it prints is compared, ids and times apart\n\
         (`tools_side_by_side`; the commands are in `compat-tests/src/tool_script.rs`).\n\n\
         | tool | the same | different |\n|---|---|---|\n",
    );
    let mut tools: Vec<(&str, Vec<&str>)> = Vec::new();
    for command in SCRIPT.iter().flat_map(|chapter| chapter.commands) {
        match tools
            .iter_mut()
            .find(|(name, _)| *name == command.tool.name)
        {
            Some((_, labels)) => labels.push(command.label),
            None => tools.push((command.tool.name, vec![command.label])),
        }
    }
    for (tool, labels) in tools {
        let why = |label: &str| {
            let listed = TOOL_DIFFERENCES
                .iter()
                .find(|(name, known, _)| *name == tool && *known == label);
            listed.map(|(_, _, why)| format!("{label}: {why}"))
        };
        let different: Vec<String> = labels.iter().filter_map(|label| why(label)).collect();
        let same: Vec<&str> = labels
            .iter()
            .copied()
            .filter(|label| why(label).is_none())
            .collect();
        let _ = writeln!(
            text,
            "| `{tool}` | {} | {} |",
            same.join("; "),
            different.join(" ")
        );
    }
}

fn apis(text: &mut String, results: &Path) -> Result<()> {
    let (about, random) = random_results(results)?;
    let _ = write!(
        text,
        "\n## APIs and versions\n\n\
         Every version of every API that is advertised is sent to both, valid and broken, by scripts and at random,\n\
         and the answers are compared field by field. {about}\n\
         Differences are the lines of PROTOCOL.md's tables that belong to the API.\n\n\
         | API | versions | scripts | requests at random, the fewest at a version | differences on purpose |\n|---|---|---|---|---|\n",
    );
    let mut rows: BTreeMap<i16, (String, BTreeSet<i16>, BTreeSet<&str>)> = BTreeMap::new();
    for row in COMPARED {
        let entry = rows.entry(row.api as i16).or_default();
        entry.0 = format!("{:?}", row.api);
        entry.1.extend(row.versions());
        entry.2.insert(row.case);
    }
    for (key, (api, versions, cases)) in rows {
        let bounds = versions.first().zip(versions.last());
        let (min, max) = bounds.context("no versions")?;
        let shown = match min == max {
            true => min.to_string(),
            false => format!("{min}–{max}"),
        };
        let counts = random.get(&api);
        let total: u64 = counts.map_or(0, |counts| counts.values().sum());
        let fewest = counts
            .and_then(|counts| counts.values().min())
            .copied()
            .unwrap_or(0);
        let scripted = KNOWN.iter().filter(|known| known.api == api).count();
        let tolerated = TOLERATED.iter().filter(|known| known.api == api).count();
        let scripts: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        let _ = writeln!(
            text,
            "| {api} ({key}) | {shown} | {} | {total}, {fewest} | {} |",
            scripts.join(", "),
            scripted + tolerated
        );
    }
    ensure!(text.contains("Metadata (3)"), "no APIs");
    Ok(())
}
