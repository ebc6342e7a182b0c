//! The shape of the workspace itself: who may depend on whom, and under which licences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Each crate of ours and the crates of ours that it may name.
const EDGES: [(&str, &[&str]); 7] = [
    ("base2histogram", &[]),
    ("odradek-protocol", &[]),
    ("odradek-storage", &["odradek-protocol"]),
    ("odradek-raft", &["odradek-protocol", "odradek-storage"]),
    (
        "odradek",
        &["odradek-protocol", "odradek-storage", "odradek-raft"],
    ),
    ("compat-tests", &[]),
    // Its own tests alone use the harness.
    ("effects-in-sqlite", &["compat-tests"]),
];

/// Licences that a dependency may come under.
const LICENCES: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

fn metadata() -> Result<Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--manifest-path",
        ])
        .arg(manifest)
        .output()?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn packages(metadata: &Value) -> Result<&Vec<Value>> {
    metadata["packages"].as_array().context("no packages")
}

#[test]
fn crates_depend_on_each_other_in_one_direction_only() -> Result<()> {
    let metadata = metadata()?;
    let ours: BTreeSet<&str> = metadata["workspace_members"]
        .as_array()
        .context("no members")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into();
    let mut seen = BTreeSet::new();
    for package in packages(&metadata)?
        .iter()
        .filter(|package| package["id"].as_str().is_some_and(|id| ours.contains(id)))
    {
        let name = package["name"].as_str().context("no name")?;
        let may = allowed
            .get(name)
            .with_context(|| format!("{name} is a new crate: give it its place in EDGES"))?;
        seen.insert(name);
        for dependency in package["dependencies"]
            .as_array()
            .context("no dependencies")?
        {
            let on = dependency["name"].as_str().context("no name")?;
            ensure!(
                !allowed.contains_key(on) || may.contains(&on),
                "{name} must not depend on {on}"
            );
        }
    }
    ensure!(seen.len() == EDGES.len(), "only {seen:?} are there");
    Ok(())
}

/// Whether an SPDX expression (with the old `/` for OR) can be satisfied with [`LICENCES`].
fn acceptable(expression: &str) -> bool {
    let expression = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = expression.split_whitespace().collect();
    let mut rest = words.as_slice();
    let answer = any_of(&mut rest);
    answer && rest.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut answer = all_of(words);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        answer |= all_of(words);
    }
    answer
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut answer = one(words);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        answer &= one(words);
    }
    answer
}

fn one(words: &mut &[&str]) -> bool {
    match words.split_first() {
        Some((&"(", rest)) => {
            *words = rest;
            let answer = any_of(words);
            *words = words.get(1..).unwrap_or(&[]);
            answer
        }
        Some((licence, rest)) => {
            *words = rest;
            // An exception only ever grants more.
            if words.first() == Some(&"WITH") {
                *words = words.get(2..).unwrap_or(&[]);
            }
            LICENCES.contains(licence)
        }
        None => false,
    }
}

#[test]
fn licence_expressions_are_understood() {
    assert!(acceptable("MIT/Apache-2.0"));
    assert!(acceptable("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
    assert!(acceptable("(MIT OR GPL-2.0) AND Unicode-3.0"));
    assert!(!acceptable("MIT AND GPL-3.0"));
    assert!(!acceptable("GPL-3.0"));
    assert!(!acceptable(""));
}

#[test]
fn every_dependency_has_an_acceptable_licence() -> Result<()> {
    let metadata = metadata()?;
    let refused: Vec<String> = packages(&metadata)?
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(acceptable))
        .map(|package| {
            format!(
                "{} {}: {}",
                package["name"], package["version"], package["license"]
            )
        })
        .collect();
    ensure!(refused.is_empty(), "{refused:#?}");
    Ok(())
}
