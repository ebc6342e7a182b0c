//! The data directories of a node: each locked and with an identity of its own, all of one node and
//! one cluster.
//!
//! One of them, `metadata.log.dir` or else the first of `log.dirs`, holds the cluster's metadata and what
//! the node keeps of itself. Its id stands for the node among others.

use std::fs;
use std::path::{Path, PathBuf};

use odradek_protocol::ids::NodeId;

use crate::data_dir::{Claimed, ClusterNaming, DataDir, DataDirError, random_id};
use crate::metadata::topic_name::CLUSTER_METADATA;

/// See the module.
#[derive(Debug)]
pub struct DataDirs {
    metadata: DataDir,
    others: Vec<DataDir>,
    /// Directories that the system does not let us use, other than that of the metadata.
    failed: Vec<(PathBuf, DataDirError)>,
}

impl DataDirs {
    /// Locks all directories for `node`, creating what is missing. `metadata` may be one of `log_dirs`.
    pub fn open(
        metadata: &Path,
        log_dirs: &[PathBuf],
        node: NodeId,
        naming: ClusterNaming,
    ) -> Result<Self, DataDirError> {
        let mut paths = vec![metadata];
        paths.extend(
            log_dirs
                .iter()
                .map(PathBuf::as_path)
                .filter(|path| *path != metadata),
        );
        let mut failed = Vec::new();
        let mut claimed = Vec::with_capacity(paths.len());
        for path in paths {
            refuse_twice(path, &claimed)?;
            match Claimed::new(path, node) {
                Ok(directory) => claimed.push(directory),
                Err(error @ DataDirError::Io { .. }) if path != metadata => {
                    failed.push((path.to_owned(), error));
                }
                Err(error) => return Err(error),
            }
        }
        let known = common_cluster(&claimed)?;
        require_metadata(&claimed, naming)?;
        let cluster_id = match naming {
            ClusterNaming::MadeHere => Some(known.unwrap_or_else(random_id)),
            ClusterNaming::Learned => known,
        };
        let mut settled = Vec::with_capacity(claimed.len());
        for directory in claimed {
            let path = directory.path().to_owned();
            match directory.settle(node, cluster_id.as_deref()) {
                Ok(directory) => settled.push(directory),
                Err(error) if path != metadata => failed.push((path, error)),
                Err(error) => return Err(error),
            }
        }
        let others = settled.split_off(1);
        let Some(metadata) = settled.pop() else {
            unreachable!("the first is the one for the metadata");
        };
        Ok(Self {
            metadata,
            others,
            failed,
        })
    }

    /// Makes all directories ones of this cluster, for good.
    pub fn join_cluster(&mut self, cluster_id: &str) -> Result<(), DataDirError> {
        self.metadata.join_cluster(cluster_id)?;
        let mut others = self.others.iter_mut();
        others.try_for_each(|directory| directory.join_cluster(cluster_id))
    }

    /// Where the metadata is, and what the node keeps of itself.
    pub fn path(&self) -> &Path {
        self.metadata.path()
    }

    /// Cluster that the directories belong to, once they do: 22 characters of URL-safe base64.
    pub fn cluster_id(&self) -> Option<&str> {
        self.metadata.cluster_id()
    }

    /// Id of the directory with the metadata, in the same form.
    pub fn directory_id(&self) -> &str {
        self.metadata.directory_id()
    }

    /// Ids of all directories, that one's first.
    pub fn directory_ids(&self) -> impl Iterator<Item = &str> {
        let all = std::iter::once(&self.metadata).chain(&self.others);
        all.map(DataDir::directory_id)
    }

    /// Those that cannot be used, and why not. The metadata's is none of them.
    pub fn failed(&self) -> &[(PathBuf, DataDirError)] {
        &self.failed
    }

    /// All directories that can be used, that one first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let all = std::iter::once(&self.metadata).chain(&self.others);
        all.map(DataDir::path)
    }
}

/// Refuses a path that leads to a directory which has been claimed already. Its lock would say that
/// another process has it.
fn refuse_twice(path: &Path, claimed: &[Claimed]) -> Result<(), DataDirError> {
    let Ok(real) = fs::canonicalize(path) else {
        // It is not there yet, or whoever claims it finds out why not.
        return Ok(());
    };
    let twin = claimed
        .iter()
        .find(|other| fs::canonicalize(other.path()).is_ok_and(|other| other == real));
    match twin {
        Some(other) => Err(DataDirError::SameDirectory {
            path: path.to_owned(),
            other: other.path().to_owned(),
            id: real.display().to_string(),
        }),
        None => Ok(()),
    }
}

/// The cluster of those that belong to one already.
fn common_cluster(claimed: &[Claimed]) -> Result<Option<String>, DataDirError> {
    let mut known: Option<(&Claimed, &str)> = None;
    for (at, directory) in claimed.iter().enumerate() {
        let mut earlier = claimed.iter().take(at);
        let id = directory.directory_id();
        if let Some(id) = id
            && let Some(twin) = earlier.find(|twin| twin.directory_id() == Some(id))
        {
            return Err(DataDirError::SameDirectory {
                path: directory.path().to_owned(),
                other: twin.path().to_owned(),
                id: id.to_owned(),
            });
        }
        let Some(owner) = directory.cluster_id() else {
            continue;
        };
        match known {
            Some((other, others)) if others != owner => {
                return Err(DataDirError::ClustersDiffer {
                    path: directory.path().to_owned(),
                    owner: owner.to_owned(),
                    other: other.path().to_owned(),
                    others: others.to_owned(),
                });
            }
            Some(_) => {}
            None => known = Some((directory, owner)),
        }
    }
    Ok(known.map(|(_, id)| id.to_owned()))
}

/// Refuses to look for the metadata in another directory than the one that it was kept in: without it
/// everything in the others would be set aside.
fn require_metadata(claimed: &[Claimed], naming: ClusterNaming) -> Result<(), DataDirError> {
    let Some((first, others)) = claimed.split_first() else {
        return Ok(());
    };
    let has_log = |directory: &Claimed| {
        let log = directory.path().join(format!("{CLUSTER_METADATA}-0"));
        log.is_dir()
    };
    if has_log(first) {
        return Ok(());
    }
    let elsewhere = |other: &Claimed, reason| {
        Err(DataDirError::MetadataElsewhere {
            path: first.path().to_owned(),
            other: other.path().to_owned(),
            reason,
        })
    };
    if let Some(other) = others.iter().find(|other| has_log(other)) {
        return elsewhere(other, "holds it");
    }
    // A node among others is told by these whether it may go on without.
    let used = others.iter().find(|other| other.cluster_id().is_some());
    match used.filter(|_| first.is_fresh() && naming == ClusterNaming::MadeHere) {
        Some(used) => elsewhere(used, "has been used before"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId::new(1);

    fn open(dirs: &[PathBuf]) -> Result<DataDirs, DataDirError> {
        let [first, ..] = dirs else {
            unreachable!("there is one");
        };
        DataDirs::open(first, dirs, NODE, ClusterNaming::MadeHere)
    }

    fn dirs(parent: &Path, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| parent.join(name)).collect()
    }

    #[test]
    fn every_directory_has_an_id_of_its_own_and_all_are_of_one_cluster() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        let first = open(&two).expect("created");
        let cluster = first.cluster_id().expect("named").to_owned();
        let ids: Vec<String> = first.directory_ids().map(str::to_owned).collect();
        assert_eq!(ids.len(), 2);
        assert_ne!(ids[0], ids[1]);
        assert!(open(&two[1..]).is_err(), "each is locked");
        drop(first);
        // A third one is added later.
        let three = open(&dirs(parent.path(), &["a", "b", "c"])).expect("opened");
        assert_eq!(three.cluster_id(), Some(cluster.as_str()));
        assert_eq!(three.directory_ids().take(2).collect::<Vec<_>>(), ids);
        drop(three);
        let alone = open(&dirs(parent.path(), &["c"])).expect("it is of the cluster");
        assert_eq!(alone.cluster_id(), Some(cluster.as_str()));
    }

    #[test]
    fn a_node_among_others_names_the_cluster_in_every_directory_once_it_knows_it() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        let open = || DataDirs::open(&two[0], &two, NODE, ClusterNaming::Learned);
        let mut first = open().expect("created");
        assert_eq!(first.cluster_id(), None);
        first.join_cluster("one").expect("the first it hears of");
        drop(first);
        let mut again = open().expect("opened");
        assert_eq!(again.cluster_id(), Some("one"));
        assert!(again.join_cluster("two").is_err());
    }

    #[test]
    fn directories_of_two_clusters_are_refused_and_both_named() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        drop(open(&two[..1]).expect("created"));
        drop(open(&two[1..]).expect("created"));
        let message = open(&two).expect_err("they differ").to_string();
        for dir in &two {
            assert!(message.contains(&*dir.to_string_lossy()), "{message}");
        }
    }

    #[test]
    fn one_directory_under_two_names_or_a_copy_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        drop(open(&two[..1]).expect("created"));
        std::os::unix::fs::symlink(&two[0], &two[1]).expect("made");
        let error = open(&two).expect_err("they are one");
        assert!(
            matches!(error, DataDirError::SameDirectory { .. }),
            "{error}"
        );
        fs::remove_file(&two[1]).expect("removed");
        fs::create_dir(&two[1]).expect("made");
        fs::copy(
            two[0].join("meta.properties"),
            two[1].join("meta.properties"),
        )
        .expect("copied");
        let error = open(&two).expect_err("one is a copy");
        assert!(
            matches!(error, DataDirError::SameDirectory { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_left_out_unless_it_is_the_metadatas() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        fs::write(&two[1], "a file").expect("written");
        let opened = open(&two).expect("one is enough");
        assert_eq!(opened.paths().collect::<Vec<_>>(), [&two[0]]);
        let [(path, _)] = opened.failed() else {
            unreachable!("{:?}", opened.failed());
        };
        assert_eq!(path, &two[1]);
        drop(opened);
        let turned = dirs(parent.path(), &["b", "a"]);
        assert!(matches!(open(&turned), Err(DataDirError::Io { .. })));
    }

    #[test]
    fn the_metadata_is_looked_for_where_it_was_kept() {
        let parent = tempfile::tempdir().expect("a directory");
        let two = dirs(parent.path(), &["a", "b"]);
        drop(open(&two).expect("created"));
        fs::create_dir(two[0].join("__cluster_metadata-0")).expect("made");
        drop(open(&two).expect("as before"));
        let turned = dirs(parent.path(), &["b", "a"]);
        let error = open(&turned).expect_err("it is in the other");
        assert!(
            matches!(error, DataDirError::MetadataElsewhere { .. }),
            "{error}"
        );
        let message = open(&dirs(parent.path(), &["c", "b"]))
            .expect_err("the disk was lost, or another was mounted")
            .to_string();
        assert!(message.ends_with("b has been used before"), "{message}");
    }
}
