//! Rigs on which a broker dies under load and comes back: kill −9 on a real disk, and power cuts
//! on a disk that forgets what was not synced, with or without ext4 in between.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::broker::Broker;
use crate::forgetful::ForgetfulMount;
use crate::kafka::Kafka;
use crate::loss::{History, Load, create_topic, read_back};

const PARTITIONS: i32 = 6;
const PRODUCERS: u64 = 3;
/// Bytes that the forgetful disk holds.
pub const DISK_BYTES: u64 = 3 << 30;
/// Size of the ext4 image.
const IMAGE_BYTES: u64 = 1 << 30;

/// A data directory whose broker can be made to lose its power, or only its process.
pub enum Rig {
    /// A directory on the machine's own disk: the kernel's page cache survives.
    Kill9(TempDir),
    /// The forgetful disk itself.
    Forgetful(ForgetfulDirectory),
    /// ext4 on a loop device over a file on the forgetful disk.
    Ext4(Ext4OnForgetful),
}

impl Rig {
    /// A directory on the machine's own disk.
    pub fn kill9() -> Result<Self> {
        Ok(Self::Kill9(tempfile::tempdir()?))
    }

    /// The forgetful disk itself.
    pub fn forgetful() -> Result<Self> {
        Ok(Self::Forgetful(ForgetfulDirectory::new()?))
    }

    /// ext4 over the forgetful disk; needs root for the loop mount.
    pub fn ext4() -> Result<Self> {
        Ok(Self::Ext4(Ext4OnForgetful::new()?))
    }

    /// Where the broker's data goes.
    pub fn data_dir(&self) -> PathBuf {
        match self {
            Self::Kill9(directory) => directory.path().join("data"),
            Self::Forgetful(rig) => rig.mount.path().join("data"),
            Self::Ext4(rig) => rig.file_system.path().join("data"),
        }
    }

    /// Takes the power away; the broker's process must be killed next.
    pub fn cut(&self) {
        match self {
            Self::Kill9(_) => {}
            Self::Forgetful(rig) => rig.mount.power_off(),
            Self::Ext4(rig) => rig.below.mount.power_off(),
        }
    }

    /// Gives the power back with what survived, once the broker's process is gone.
    pub fn restore(&mut self, seed: u64) -> Result<()> {
        match self {
            Self::Kill9(_) => Ok(()),
            Self::Forgetful(rig) => {
                rig.mount.power_on(seed)?;
                Ok(())
            }
            Self::Ext4(rig) => rig.restore(seed),
        }
    }
}

/// A forgetful mount with the directory it is mounted on.
pub struct ForgetfulDirectory {
    mount: ForgetfulMount,
    // After the mount, so that it is removed once nothing is mounted on it.
    _directory: TempDir,
}

impl ForgetfulDirectory {
    /// Mounts an empty disk.
    pub fn new() -> Result<Self> {
        Self::of(DISK_BYTES)
    }

    /// Mounts an empty disk that holds so many bytes.
    pub fn of(capacity_bytes: u64) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("forgetful-").tempdir()?;
        let mount = ForgetfulMount::new(directory.path(), capacity_bytes)
            .context("mounting through FUSE (is fuse3 installed?)")?;
        Ok(Self {
            mount,
            _directory: directory,
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// The mounted disk, to have it fail.
    pub fn mount(&self) -> &ForgetfulMount {
        &self.mount
    }

    /// Gives the power back with what survived; nothing may still have the mount open.
    pub fn power_on(&mut self, seed: u64) -> Result<()> {
        self.mount.power_on(seed)?;
        Ok(())
    }
}

/// A mounted ext4 image that stands on a forgetful mount.
pub struct Ext4OnForgetful {
    file_system: TempDir,
    mounted: bool,
    below: ForgetfulDirectory,
}

impl Ext4OnForgetful {
    fn new() -> Result<Self> {
        let below = ForgetfulDirectory::new()?;
        let file_system = tempfile::Builder::new().prefix("ext4-").tempdir()?;
        let mut rig = Self {
            file_system,
            mounted: false,
            below,
        };
        let image = rig.image();
        let file = std::fs::File::create(&image)?;
        file.set_len(IMAGE_BYTES)?;
        command("mkfs.ext4", &["-q", "-F"], &image)?;
        file.sync_all()?;
        std::fs::File::open(rig.below.mount.path())?.sync_all()?;
        rig.mount()?;
        Ok(rig)
    }

    fn image(&self) -> PathBuf {
        self.below.mount.path().join("image")
    }

    fn mount(&mut self) -> Result<()> {
        let output = Command::new("mount")
            .args(["-t", "ext4", "-o", "loop,noatime"])
            .arg(self.image())
            .arg(self.file_system.path())
            .output()?;
        ensure!(
            output.status.success(),
            "mount of the ext4 image: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if self.mounted {
            command("umount", &[], self.file_system.path())?;
            self.mounted = false;
        }
        Ok(())
    }

    fn restore(&mut self, seed: u64) -> Result<()> {
        // With the power off nothing of this reaches the image.
        self.unmount()?;
        self.below.mount.power_on(seed)?;
        self.mount()
    }
}

impl Drop for Ext4OnForgetful {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
    }
}

fn command(program: &str, arguments: &[&str], path: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .arg(path)
        .output()
        .context(program.to_owned())?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What a run of cuts showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Deaths.
    pub cuts: u32,
    /// Records acknowledged over all rounds.
    pub acknowledged: usize,
    /// Of these, not there afterwards.
    pub lost: usize,
}

/// Runs the broker on `rig` and makes it die under load `cuts` times; after each restart every
/// acknowledged record must be at its offset, once and in order. Each round writes a topic of its
/// own, and the topic of the round before is read again, so that recovery of quiet logs is
/// covered too. The last round reads them all.
pub fn die_repeatedly(mut rig: Rig, cuts: u32, seed: u64) -> Result<Summary> {
    eprintln!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut broker = Broker::options().data_dir(&rig.data_dir()).start()?;
    let mut histories: Vec<(String, History)> = Vec::new();
    let mut summary = Summary::default();
    for round in 0..cuts {
        let topic = format!("round-{round}");
        create_topic(broker.address(), &topic, PARTITIONS)?;
        let load = Load::start(
            broker.address(),
            &topic,
            PARTITIONS,
            PRODUCERS,
            rng.random(),
        );
        std::thread::sleep(Duration::from_millis(rng.random_range(20..400)));
        rig.cut();
        broker.kill9()?;
        let history = load.finish()?;
        rig.restore(rng.random())?;
        broker
            .start_again()
            .with_context(|| format!("round {round}, seed {seed}"))?;
        summary.cuts += 1;
        summary.acknowledged += history.acknowledged.len();
        histories.push((topic, history));
        let first = if round + 1 == cuts {
            0
        } else {
            histories.len().saturating_sub(2)
        };
        for (topic, history) in &histories[first..] {
            let log = read_back(broker.address(), topic, PARTITIONS)
                .with_context(|| format!("round {round}, seed {seed}"))?;
            history
                .check(&log)
                .with_context(|| format!("round {round}, {topic}, seed {seed}"))?;
        }
    }
    ensure!(
        summary.acknowledged > 0,
        "nothing was ever acknowledged: the rounds prove nothing"
    );
    Ok(summary)
}

/// The same rounds with Apache Kafka in our place; counts what it lost instead of failing.
pub fn kafka_dies_repeatedly(mut rig: Rig, cuts: u32, seed: u64, flush: bool) -> Result<Summary> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut options = Kafka::options().data_dir(&rig.data_dir());
    if flush {
        options = options.set("log.flush.interval.messages", 1);
    }
    let mut kafka = options.start()?;
    let mut summary = Summary::default();
    for round in 0..cuts {
        let topic = format!("round-{round}");
        create_topic(kafka.address(), &topic, PARTITIONS)?;
        let load = Load::start(kafka.address(), &topic, PARTITIONS, PRODUCERS, rng.random());
        std::thread::sleep(Duration::from_secs(3));
        rig.cut();
        kafka.kill9()?;
        let history = load.finish()?;
        rig.restore(rng.random())?;
        kafka.start_again()?;
        summary.cuts += 1;
        summary.acknowledged += history.acknowledged.len();
        // A topic that is gone altogether has lost everything.
        summary.lost += match read_back(kafka.address(), &topic, PARTITIONS) {
            Ok(log) => history.lost(&log),
            Err(_) => history.acknowledged.len(),
        };
    }
    Ok(summary)
}
