//! The manager's work on directories: what is found at the start, what is made, what is removed.
//! All of it blocks, and so runs on the blocking pool.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use odradek_protocol::ids::{NodeId, PartitionIndex, TopicId};
use odradek_storage::disk::Disk;

use super::PartitionManager;
use super::directory::{self, DirectoryKind};
use super::log_dir::LogDirectory;
use super::reconcile::{FoundDirectory, Inventory, Wanted, inventory};
use crate::metadata::image::MetadataImage;
use crate::metadata::topic_name::CLUSTER_METADATA;
use crate::partition::{Gone, Partition};

impl PartitionManager {
    /// Looks through the log directories, removes what a cut-short deletion left, sets strays
    /// aside, and returns where the partitions of `image` are.
    pub(super) async fn take_inventory(
        &self,
        image: &Arc<MetadataImage>,
    ) -> HashMap<(TopicId, PartitionIndex), PathBuf> {
        let mut known = HashMap::new();
        for log_dir in &self.options.directories {
            let (disk, log_dir) = (Arc::clone(&self.options.disk), Arc::clone(log_dir));
            let (image, path) = (Arc::clone(image), log_dir.path().to_path_buf());
            let node = self.options.node_id;
            let found =
                tokio::task::spawn_blocking(move || tidy(&*disk, &path, &image, node)).await;
            match found {
                Ok(Ok(found)) => known.extend(found),
                Ok(Err(error)) => log_dir.health().fail(&error),
                Err(error) => log_dir.health().fail(&error),
            }
        }
        known
    }

    /// The log directory that `path` lies in.
    pub(super) fn directory_of(&self, path: &Path) -> anyhow::Result<Arc<LogDirectory>> {
        self.options
            .directories
            .iter()
            .find(|directory| path.parent() == Some(directory.path()))
            .map(Arc::clone)
            .with_context(|| format!("{} is in no log directory", path.display()))
    }

    /// The working log directory with the fewest partitions.
    pub(super) fn roomiest_directory(&self) -> anyhow::Result<Arc<LogDirectory>> {
        self.options
            .directories
            .iter()
            .filter(|directory| !directory.health().is_offline())
            .min_by_key(|directory| directory.partition_count())
            .map(Arc::clone)
            .context("every log directory is offline")
    }

    /// Makes the directory of a new partition; it is durable, and so is whose it is.
    pub(super) async fn make_directory(
        &self,
        wanted: &Wanted,
        directory: &LogDirectory,
    ) -> anyhow::Result<PathBuf> {
        let log_dir = directory.path().to_path_buf();
        let path = log_dir.join(directory::name_of(&wanted.topic, wanted.index));
        let (disk, topic_id) = (Arc::clone(&self.options.disk), wanted.topic_id);
        let made = path.clone();
        tokio::task::spawn_blocking(move || {
            directory::create(&*disk, &made, topic_id)?;
            disk.sync_dir(&log_dir)
        })
        .await?
        .with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Closes a partition that is here no more and removes its data. The files go in the background;
    /// what is being read stays readable until it has been sent.
    pub(super) async fn remove(&self, partition: &Arc<Partition>, why: Gone) {
        partition.mark_gone(why);
        let key = partition.group().key();
        let deleted = self.options.raft.delete_group(key).await;
        partition.directory().partition_removed();
        let path = match deleted {
            Ok(path) => path,
            Err(error) => {
                tracing::error!(
                    topic = &**partition.topic(),
                    partition = partition.index().get(),
                    %error,
                    "the data of a partition that is here no more cannot be taken away"
                );
                return;
            }
        };
        let disk = Arc::clone(&self.options.disk);
        // The directory is renamed: from here on a restart finishes the removal.
        tokio::task::spawn_blocking(move || {
            if let Err(error) = disk.remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "deleted data cannot be removed");
            }
        });
    }
}

fn tidy(
    disk: &dyn Disk,
    log_dir: &Path,
    image: &MetadataImage,
    node: NodeId,
) -> anyhow::Result<HashMap<(TopicId, PartitionIndex), PathBuf>> {
    let Inventory {
        mut known,
        nameless,
        stray,
        leftover,
    } = inventory(scan(disk, log_dir)?, image, node, CLUSTER_METADATA);
    for path in leftover {
        tracing::info!(path = %path.display(), "finishing a removal that was cut short");
        disk.remove_dir_all(&path)?;
    }
    for (topic_id, partition, path) in nameless {
        tracing::warn!(
            path = %path.display(),
            %topic_id,
            "partition.metadata is lost or unreadable; written again, for the metadata knows the name"
        );
        directory::create(disk, &path, topic_id)?;
        known.insert((topic_id, partition), path);
    }
    let mut taken = directory::names_in(disk, log_dir)?;
    for (path, topic, partition, topic_id) in stray {
        let name = directory::stray_name(&topic, partition, topic_id);
        let goal = log_dir.join(directory::take_free_name(&mut taken, &name));
        tracing::warn!(
            from = %path.display(),
            to = %goal.display(),
            "set aside: the metadata knows no replica here of this partition and topic id"
        );
        disk.rename(&path, &goal)?;
    }
    disk.sync_dir(log_dir)?;
    Ok(known)
}

fn scan(disk: &dyn Disk, log_dir: &Path) -> anyhow::Result<Vec<FoundDirectory>> {
    let entries = disk
        .list(log_dir)
        .with_context(|| format!("list {}", log_dir.display()))?;
    let mut found = Vec::new();
    for entry in entries.into_iter().filter(|entry| entry.is_dir) {
        let path = log_dir.join(&entry.name);
        let is_partition = matches!(
            directory::kind_of(&entry.name),
            DirectoryKind::Partition { .. }
        );
        let topic_id = if is_partition {
            directory::read_topic_id(disk, &path)?
        } else {
            None
        };
        let has_data = is_partition
            && topic_id.is_none()
            && disk
                .list(&path)?
                .iter()
                .any(|file| file.name.ends_with(".log") && file.len > 0);
        found.push(FoundDirectory {
            path,
            name: entry.name,
            topic_id,
            has_data,
        });
    }
    Ok(found)
}
