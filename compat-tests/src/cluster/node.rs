//! One node of a cluster: its files, its process, and what can be done to them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{Addresses, Network, NodeNumber, Product};
use crate::power::{DISK_BYTES, ForgetfulDirectory};
use crate::process::Process;

/// Room that a full disk still has, so that it fills up in the middle of something.
const LAST_BYTES: u64 = 96 * 1024;

/// What a node's process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It was never started, has ended or was killed.
    Nothing,
    /// It runs.
    Running,
    /// It is stopped by a signal.
    Paused,
}

/// A node of a cluster.
pub struct Node {
    number: NodeNumber,
    addresses: Addresses,
    home: PathBuf,
    data_dir: PathBuf,
    properties: BTreeMap<String, String>,
    process: Option<Process>,
    paused: bool,
    disk: Option<ForgetfulDirectory>,
}

impl Node {
    pub(super) fn new(
        number: NodeNumber,
        addresses: Addresses,
        home: PathBuf,
        properties: BTreeMap<String, String>,
        forgetful: bool,
    ) -> Result<Self> {
        std::fs::create_dir_all(&home)?;
        let disk = forgetful.then(ForgetfulDirectory::new).transpose()?;
        let data_dir = disk
            .as_ref()
            .map_or(home.as_path(), |disk| disk.mount().path())
            .join("data");
        let mut this = Self {
            number,
            addresses,
            home,
            data_dir,
            properties,
            process: None,
            paused: false,
            disk,
        };
        this.properties
            .insert("log.dirs".to_owned(), this.data_dir.display().to_string());
        this.write_properties()?;
        Ok(this)
    }

    /// Its `node.id`.
    pub fn number(&self) -> NodeNumber {
        self.number
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Its data directory (`log.dirs`).
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The property file that it is started with.
    pub fn property_file(&self) -> PathBuf {
        self.home.join("server.properties")
    }

    /// Changes a line of the property file for the next start.
    pub fn set_for_next_start(&mut self, key: &str, value: impl ToString) -> Result<()> {
        self.properties.insert(key.to_owned(), value.to_string());
        self.write_properties()
    }

    fn write_properties(&self) -> Result<()> {
        let text: String = self
            .properties
            .iter()
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        Ok(std::fs::write(self.property_file(), text)?)
    }

    /// What its process does now.
    pub fn doing(&mut self) -> Result<Doing> {
        let runs = match &mut self.process {
            Some(process) => process.exited()?.is_none(),
            None => false,
        };
        Ok(match (runs, self.paused) {
            (false, _) => Doing::Nothing,
            (true, false) => Doing::Running,
            (true, true) => Doing::Paused,
        })
    }

    /// Its process, if it was ever started.
    pub fn process(&mut self) -> Result<&mut Process> {
        let number = self.number;
        self.process
            .as_mut()
            .with_context(|| format!("node {number} was never started"))
    }

    pub(super) fn launch(
        &mut self,
        product: Product,
        heap: &str,
        binary: &Path,
        network: &Network,
        environment: &BTreeMap<String, String>,
    ) -> Result<()> {
        ensure!(
            self.doing()? == Doing::Nothing,
            "node {} still runs",
            self.number
        );
        let file = self.property_file().display().to_string();
        let mut command = network.enter(self.number)?;
        match product {
            Product::Odradek => {
                command.extend([binary.display().to_string(), "start".to_owned(), file]);
            }
            Product::Kafka => {
                command.push("java".to_owned());
                command.extend(crate::kafka::broker_arguments(heap, &file)?);
            }
        }
        let process = Process::start(
            &format!("{} {}", product.name(), self.number),
            Path::new(&command[0]),
            &command[1..],
            &self.home.join("node.log"),
            |child| {
                child.current_dir(&self.home).envs(environment);
            },
        )?;
        network.runs_as(self.number, process.pid());
        self.process = Some(process);
        self.paused = false;
        Ok(())
    }

    /// Ends it at once with SIGKILL.
    pub fn kill9(&mut self) -> Result<()> {
        self.process()?.kill()
    }

    /// Stops it in its tracks (SIGSTOP).
    pub fn pause(&mut self) -> Result<()> {
        let process = self.process()?;
        process.signal(Signal::STOP)?;
        process.await_stopped()?;
        self.paused = true;
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&mut self) -> Result<()> {
        self.process()?.signal(Signal::CONT)?;
        self.paused = false;
        Ok(())
    }

    /// Asks it to stop (SIGTERM) and waits for that.
    pub fn terminate(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.process()?.terminate(patience)
    }

    fn disk(&self) -> Result<&ForgetfulDirectory> {
        self.disk
            .as_ref()
            .with_context(|| format!("node {} is not on a forgetful disk", self.number))
    }

    /// Whether its disk can lose power and fill up.
    pub fn has_forgetful_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Takes its power away: what was not synced is lost once the power is back.
    pub fn power_off(&mut self) -> Result<()> {
        self.disk()?.mount().power_off();
        self.kill9()
    }

    /// Gives its disk the power back with what survived, decided from `seed`. The node must be started after that.
    pub fn power_on(&mut self, seed: u64) -> Result<()> {
        let number = self.number;
        self.disk
            .as_mut()
            .with_context(|| format!("node {number} is not on a forgetful disk"))?
            .power_on(seed)
    }

    /// Leaves next to no room on its disk.
    pub fn fill_disk(&self) -> Result<()> {
        let mount = self.disk()?.mount();
        let (used, _) = mount.usage();
        mount.set_capacity(used + LAST_BYTES);
        Ok(())
    }

    /// Gives the room back.
    pub fn free_disk(&self) -> Result<()> {
        self.disk()?.mount().set_capacity(DISK_BYTES);
        Ok(())
    }
}
