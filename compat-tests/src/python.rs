//! kafka-python 3 in a virtual environment of its own, which lives in the cache between runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cache::cache_directory;
use crate::process::{Output, run};

const PACKAGE: &str = "kafka-python==3.*";

/// How long one script, or the installation, may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interpreter of an environment that has the client; made when it is not there.
fn interpreter() -> Result<PathBuf> {
    let home = cache_directory()?.join("kafka-python-3");
    let python = home.join("bin/python");
    let check = ["-c".to_owned(), "import kafka".to_owned()];
    let is_there = || run(&python, &check, b"", PATIENCE).is_ok_and(|output| output.success);
    if !is_there() {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let path = home.display().to_string();
        succeed(
            Path::new("python3"),
            &words(&["-m", "venv", "--clear", &path]),
        )?;
        let install = ["-m", "pip", "install", "--quiet", PACKAGE];
        succeed(&python, &words(&install))?;
    }
    Ok(python)
}

fn succeed(program: &Path, arguments: &[String]) -> Result<()> {
    let output = run(program, arguments, b"", PATIENCE)?;
    ensure!(
        output.success,
        "{} {arguments:?} failed:\n{}",
        program.display(),
        output.both()
    );
    Ok(())
}

/// Runs a script to its end.
pub fn run_script(script: &str) -> Result<Output> {
    let arguments = ["-c".to_owned(), script.to_owned()];
    run(&interpreter()?, &arguments, b"", PATIENCE)
}
