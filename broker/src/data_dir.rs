//! The data directory of a node: its lock, and whose it is.
//!
//! `.lock` is held by an exclusive `flock` while a process uses the directory; the system lets go of
//! it whatever way the process ends. `meta.properties` is Kafka's file of that name, version 1: the
//! cluster, the node and an id of the directory itself. It is written on the first start, whole or not
//! at all, and a directory of another cluster or node is never touched. A node on its own names its
//! cluster at once; one among others learns the name, and until then the file goes without it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use odradek_protocol::ids::NodeId;
use rustix::fs::FlockOperation;

use crate::config::properties;

const LOCK: &str = ".lock";
const META: &str = "meta.properties";
const META_NEW: &str = "meta.properties.tmp";
/// What a fresh file system or a first start leaves in a directory without data.
const HARMLESS: &[&str] = &[LOCK, META_NEW, "lost+found"];

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system refuses.
    #[error("data directory {path}: {cause}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// Another process uses it.
    #[error(
        "data directory {path} is in use by another process{holder}; a directory belongs to one \
         broker at a time",
        path = path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// `" (process 123)"`, where that is known.
        holder: String,
    },
    /// It holds something, but not what says whose it is.
    #[error(
        "data directory {path} is not empty and has no meta.properties (it contains {found}); use an \
         empty directory",
        path = path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The name of something in it.
        found: String,
    },
    /// `meta.properties` does not say what it must.
    #[error("{path}: {reason}", path = path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It is another cluster's.
    #[error(
        "data directory {path} belongs to the cluster {owner}, and the other nodes are of the cluster \
         {cluster}",
        path = path.display()
    )]
    OtherCluster {
        /// The directory.
        path: PathBuf,
        /// `cluster.id` of the file.
        owner: String,
        /// Cluster of the other nodes.
        cluster: String,
    },
    /// It is another cluster's than another directory of this node.
    #[error(
        "data directory {path} belongs to the cluster {owner}, and {other} to the cluster {others}; all \
         directories of a node are of one cluster",
        path = path.display(),
        other = other.display()
    )]
    ClustersDiffer {
        /// The directory.
        path: PathBuf,
        /// `cluster.id` of its file.
        owner: String,
        /// The other one.
        other: PathBuf,
        /// `cluster.id` of that.
        others: String,
    },
    /// Two of this node's directories are one, or one is a copy of the other.
    #[error(
        "data directories {path} and {other} are the same one, or one is a copy of the other: both have \
         the directory.id {id}",
        path = path.display(),
        other = other.display()
    )]
    SameDirectory {
        /// The directory.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
        /// Their `directory.id`, or the path that both lead to.
        id: String,
    },
    /// The metadata of the cluster is not where it is looked for.
    #[error(
        "{path} is to hold the cluster's metadata (metadata.log.dir, or the first of log.dirs) and does \
         not, while {other} {reason}",
        path = path.display(),
        other = other.display()
    )]
    MetadataElsewhere {
        /// Where it is looked for.
        path: PathBuf,
        /// The directory that tells of it.
        other: PathBuf,
        /// What is found there.
        reason: &'static str,
    },
    /// It is another node's.
    #[error(
        "data directory {path} belongs to node.id {owner}, and this node is {node}",
        path = path.display()
    )]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// `node.id` of the file.
        owner: NodeId,
        /// `node.id` of the configuration.
        node: NodeId,
    },
}

/// A locked data directory that is ours.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    meta: Meta,
    _lock: File,
}

/// Where the id of a cluster comes from at the first start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterNaming {
    /// The node is a cluster of its own, and makes it up.
    MadeHere,
    /// The cluster tells.
    Learned,
}

/// A locked directory of which it may not be settled yet whose it is.
#[derive(Debug)]
pub(crate) struct Claimed {
    path: PathBuf,
    meta: Option<Meta>,
    lock: File,
}

impl Claimed {
    /// Locks `path` for `node`, creating what is missing.
    pub(crate) fn new(path: &Path, node: NodeId) -> Result<Self, DataDirError> {
        create_durably(path).map_err(failed(path))?;
        let lock = lock(path)?;
        let meta_path = path.join(META);
        let meta = match fs::read_to_string(&meta_path) {
            Ok(text) => Some(Meta::parse(&text).map_err(|reason| DataDirError::Meta {
                path: meta_path,
                reason,
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                refuse_foreign(path)?;
                None
            }
            Err(cause) => return Err(failed(&meta_path)(cause)),
        };
        if let Some(meta) = meta.as_ref().filter(|meta| meta.node != node) {
            return Err(DataDirError::OtherNode {
                path: path.to_owned(),
                owner: meta.node,
                node,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            meta,
            lock,
        })
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether nobody has used it before.
    pub(crate) fn is_fresh(&self) -> bool {
        self.meta.is_none()
    }

    /// Cluster that it belongs to, once it does.
    pub(crate) fn cluster_id(&self) -> Option<&str> {
        self.meta.as_ref()?.cluster_id.as_deref()
    }

    /// Its own id, once it has one.
    pub(crate) fn directory_id(&self) -> Option<&str> {
        Some(&self.meta.as_ref()?.directory_id)
    }

    /// Makes it the node's, and of this cluster where that is known.
    pub(crate) fn settle(
        self,
        node: NodeId,
        cluster_id: Option<&str>,
    ) -> Result<DataDir, DataDirError> {
        let (meta, is_written) = match self.meta {
            Some(meta) => {
                // It may have been to join others and never did.
                let is_written = meta.cluster_id.is_some() || cluster_id.is_none();
                (meta, is_written)
            }
            None => {
                let meta = Meta {
                    cluster_id: None,
                    node,
                    directory_id: random_id(),
                };
                (meta, false)
            }
        };
        let meta = Meta {
            cluster_id: meta.cluster_id.or(cluster_id.map(str::to_owned)),
            ..meta
        };
        if !is_written {
            let meta_path = self.path.join(META);
            meta.write(&self.path).map_err(failed(&meta_path))?;
        }
        Ok(DataDir {
            path: self.path,
            meta,
            _lock: self.lock,
        })
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |cause| DataDirError::Io { path, cause }
}

impl DataDir {
    /// Makes the directory one of this cluster, for good.
    pub fn join_cluster(&mut self, cluster_id: &str) -> Result<(), DataDirError> {
        match &self.meta.cluster_id {
            Some(known) if known == cluster_id => Ok(()),
            Some(known) => Err(DataDirError::OtherCluster {
                path: self.path.clone(),
                owner: known.clone(),
                cluster: cluster_id.to_owned(),
            }),
            None => {
                let meta = Meta {
                    cluster_id: Some(cluster_id.to_owned()),
                    ..self.meta.clone()
                };
                meta.write(&self.path).map_err(|cause| DataDirError::Io {
                    path: self.path.join(META),
                    cause,
                })?;
                self.meta = meta;
                Ok(())
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cluster that the directory belongs to, once it does: 22 characters of URL-safe base64.
    pub fn cluster_id(&self) -> Option<&str> {
        self.meta.cluster_id.as_deref()
    }

    /// Id of the directory itself, in the same form.
    pub fn directory_id(&self) -> &str {
        &self.meta.directory_id
    }
}

/// Creates the directory and those above it, each durably in the one that holds it.
fn create_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_durably(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

fn lock(path: &Path) -> Result<File, DataDirError> {
    let lock_path = path.join(LOCK);
    let failed = |cause| DataDirError::Io {
        path: lock_path.clone(),
        cause,
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // Only for the message of whoever comes second.
            let _ = file.set_len(0);
            let _ = writeln!(file, "{}", std::process::id());
            Ok(file)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DataDirError::Locked {
            path: path.to_owned(),
            holder: fs::read_to_string(&lock_path)
                .ok()
                .and_then(|text| text.trim().parse::<u32>().ok())
                .map(|pid| format!(" (process {pid})"))
                .unwrap_or_default(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

/// A directory without `meta.properties` must be empty: whatever is in it is not ours to write to.
fn refuse_foreign(path: &Path) -> Result<(), DataDirError> {
    let entries = fs::read_dir(path).map_err(|cause| DataDirError::Io {
        path: path.to_owned(),
        cause,
    })?;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !HARMLESS.contains(&name.as_str()) {
            return Err(DataDirError::Foreign {
                path: path.to_owned(),
                found: name,
            });
        }
    }
    Ok(())
}

/// Contents of `meta.properties`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Meta {
    /// `None` until a node among others has learned it.
    cluster_id: Option<String>,
    node: NodeId,
    directory_id: String,
}

impl Meta {
    fn parse(text: &str) -> Result<Self, String> {
        let properties = properties::parse(text).map_err(|error| error.to_string())?;
        let known = |key: &str| {
            properties
                .iter()
                .rev()
                .find(|property| property.key == key)
                .map(|property| property.value.trim().to_owned())
                .filter(|value| !value.is_empty())
        };
        let find = |key: &str| known(key).ok_or_else(|| format!("{key} is missing"));
        let version = find("version")?;
        if version != "1" {
            return Err(format!("version {version} is not supported, only 1 is"));
        }
        let node = find("node.id")?;
        Ok(Self {
            cluster_id: known("cluster.id"),
            node: NodeId::new(
                node.parse()
                    .map_err(|_| format!("node.id {node} is no number"))?,
            ),
            directory_id: find("directory.id")?,
        })
    }

    fn write(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join(META_NEW);
        let mut file = File::create(&new)?;
        writeln!(file, "#")?;
        if let Some(cluster_id) = &self.cluster_id {
            writeln!(file, "cluster.id={cluster_id}")?;
        }
        write!(
            file,
            "directory.id={}\nnode.id={}\nversion=1\n",
            self.directory_id, self.node
        )?;
        file.sync_all()?;
        fs::rename(&new, dir.join(META))?;
        File::open(dir)?.sync_all()
    }
}

/// Sixteen random bytes as Kafka prints them. None starts with a hyphen, which command-line tools
/// would take for an option.
pub(crate) fn random_id() -> String {
    loop {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>());
        if !id.starts_with('-') {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dirs::DataDirs;

    const NODE: NodeId = NodeId::new(1);

    fn open(path: &Path, node: NodeId, naming: ClusterNaming) -> Result<DataDirs, DataDirError> {
        DataDirs::open(path, &[path.to_owned()], node, naming)
    }

    #[test]
    fn a_second_start_finds_the_cluster_of_the_first() {
        let parent = tempfile::tempdir().expect("a directory");
        let path = parent.path().join("a/b/data");
        let first = open(&path, NODE, ClusterNaming::MadeHere).expect("created");
        let ids = (
            first.cluster_id().expect("named").to_owned(),
            first.directory_id().to_owned(),
        );
        assert_eq!(ids.0.len(), 22);
        assert_ne!(ids.0, ids.1);
        drop(first);
        let second = open(&path, NODE, ClusterNaming::MadeHere).expect("opened");
        assert_eq!(
            ids,
            (
                second.cluster_id().expect("named").to_owned(),
                second.directory_id().to_owned()
            )
        );
    }

    #[test]
    fn a_directory_in_use_is_refused_and_its_user_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let _first = open(dir.path(), NODE, ClusterNaming::MadeHere).expect("created");
        let message = open(dir.path(), NODE, ClusterNaming::MadeHere)
            .expect_err("it is in use")
            .to_string();
        let pid = format!("(process {})", std::process::id());
        assert!(message.contains(&pid), "{message}");
    }

    #[test]
    fn a_directory_of_another_node_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(open(dir.path(), NODE, ClusterNaming::MadeHere).expect("created"));
        let error =
            open(dir.path(), NodeId::new(2), ClusterNaming::MadeHere).expect_err("it is node 1's");
        assert!(matches!(error, DataDirError::OtherNode { .. }));
    }

    #[test]
    fn a_directory_with_somebody_elses_files_is_not_taken_over() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("lost+found")).expect("created");
        fs::write(dir.path().join(META_NEW), "half").expect("written");
        drop(
            open(dir.path(), NODE, ClusterNaming::MadeHere).expect("that is an empty file system"),
        );

        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("topic-0")).expect("created");
        let error = open(dir.path(), NODE, ClusterNaming::MadeHere).expect_err("it holds data");
        assert!(matches!(error, DataDirError::Foreign { .. }));
        assert!(!dir.path().join(META).exists());
    }

    #[test]
    fn a_file_that_kafka_wrote_is_understood_and_damaged_ones_are_not() {
        let kafka = "#\n#Mon Nov 30 00:00:00 UTC 2026\ncluster.id=4L6g3nShT-eMCtK--X86sw\n\
                     directory.id=0m8wHxTyRvKnWFZ7V-sqVQ\nnode.id=1\nversion=1\n";
        assert_eq!(
            Meta::parse(kafka),
            Ok(Meta {
                cluster_id: Some("4L6g3nShT-eMCtK--X86sw".to_owned()),
                node: NODE,
                directory_id: "0m8wHxTyRvKnWFZ7V-sqVQ".to_owned(),
            })
        );
        for bad in [
            "",
            "version=0\nbroker.id=1",
            "version=1\nnode.id=x\ncluster.id=a\ndirectory.id=b",
            "version=1\nnode.id=1\ncluster.id=a",
        ] {
            assert!(Meta::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_among_others_keeps_the_cluster_that_it_has_learned() {
        let dir = tempfile::tempdir().expect("a directory");
        let opened = || open(dir.path(), NODE, ClusterNaming::Learned).expect("opened");
        let mut first = opened();
        assert_eq!(first.cluster_id(), None);
        let directory = first.directory_id().to_owned();
        drop(first);
        first = opened();
        first.join_cluster("one").expect("the first it hears of");
        drop(first);
        let mut second = opened();
        assert_eq!(second.cluster_id(), Some("one"));
        assert_eq!(second.directory_id(), directory);
        second.join_cluster("one").expect("the same");
        let error = second.join_cluster("two").expect_err("another");
        assert!(matches!(error, DataDirError::OtherCluster { .. }));
    }
}
