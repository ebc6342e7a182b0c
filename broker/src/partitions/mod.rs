//! The partitions of this broker: it keeps them equal to what the metadata says.
//!
//! The manager follows the metadata image. A partition that has a replica here is opened, its
//! directory made if there is none; one whose topic is gone is closed and its data removed; a
//! changed topic configuration reaches the open logs. Only one reconciliation runs at a time;
//! lookups take no lock and see either the state before or after.
//!
//! Invariants:
//! - a partition is looked up by topic id, or by the name that currently stands for that id;
//! - a directory is opened only for the topic id in its `partition.metadata`; data of another one
//!   is set aside, never read and never deleted;
//! - a removed partition leaves the index before its files go.

mod cleaner;
pub mod directory;
mod files;
#[cfg(test)]
pub(crate) mod fixture;
mod housekeeping;
mod index;
pub mod log_dir;
mod moves;
mod placement;
mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use odradek_protocol::ids::{NodeId, Offset, PartitionIndex, TopicId};
use odradek_raft::{GroupKey, GroupObserver, GroupSpec, RaftNode};
use odradek_storage::disk::{Disk, is_out_of_descriptors};
use tokio::sync::{Mutex, watch};

use crate::clock::Clock;
use crate::config::ConfigStore;
use crate::data_metrics::AppendMetrics;
use crate::fetch_sessions::TopicRef;
use crate::leading::LeadershipChanges;
use crate::metadata::image::{ConfigResource, MetadataImage, PartitionState, ResourceKind};
use crate::partition::{Gone, Partition, PartitionEvents, PartitionParts, PartitionSettings};
pub use housekeeping::HousekeepingOptions;
pub use index::LookupError;
use index::{Index, LocalTopic, Slot};
use log_dir::{LogDirectories, LogDirectory};
use moves::Moves;
pub use moves::{AlterLogDirError, Moving};
use placement::Place;
pub use placement::{PlacesError, settle_places};
use reconcile::Wanted;

/// Partitions that are opened, made or removed at the same time, so that they share their syncs.
const HANDLED_AT_ONCE: usize = 64;
/// How often a partition is tried to be opened when no file descriptor is left for it.
const OPEN_ATTEMPTS: u32 = 100;
/// Pause between two attempts, in which others close what they do not use.
const OPEN_RETRY: Duration = Duration::from_millis(100);
/// How long a start waits for groups of one voter to elect it.
const ELECTIONS_LIMIT: Duration = Duration::from_secs(60);
/// How often the start says how far it has come.
const PROGRESS_PERIOD: Duration = Duration::from_secs(2);

/// What the manager works with.
pub struct PartitionManagerOptions {
    /// This node.
    pub node_id: NodeId,
    /// The groups of this process.
    pub raft: Arc<RaftNode>,
    /// The disk that the log directories are on.
    pub disk: Arc<dyn Disk>,
    /// The log directories.
    pub directories: Arc<LogDirectories>,
    /// The broker's settings, which topics fall back to. Dynamic ones must be in it before the
    /// image that brings them is reconciled.
    pub config: Arc<ConfigStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// See the module.
pub struct PartitionManager {
    options: PartitionManagerOptions,
    index: ArcSwap<Index>,
    /// Directories found at the start that have not been opened yet; held while reconciling.
    inventory: Mutex<Option<HashMap<(TopicId, PartitionIndex), PathBuf>>>,
    reconciled: watch::Sender<Offset>,
    /// Held while files are closed for want of descriptors.
    relief: Mutex<()>,
    moves: Moves,
    /// How often a partition was closed and opened again without a change of the metadata.
    reopened: watch::Sender<u64>,
    metrics: Arc<AppendMetrics>,
    leadership_changes: Arc<LeadershipChanges>,
}

impl fmt::Debug for PartitionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionManager").finish_non_exhaustive()
    }
}

impl PartitionManager {
    /// Nodes that are thought not to answer at this moment. Of those that share no group with this one
    /// nothing is known.
    pub fn silent_nodes(&self) -> BTreeSet<NodeId> {
        let peers = self.options.raft.peers();
        peers
            .into_iter()
            .filter(|peer| !peer.alive)
            .map(|peer| peer.node)
            .collect()
    }

    /// A manager that holds no partition until it is told of the metadata.
    pub fn new(options: PartitionManagerOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            index: ArcSwap::default(),
            inventory: Mutex::new(None),
            reconciled: watch::Sender::new(Offset::ZERO),
            relief: Mutex::default(),
            moves: Moves::default(),
            reopened: watch::Sender::new(0),
            metrics: Arc::default(),
            leadership_changes: Arc::default(),
        })
    }

    /// The partition, if it is open here.
    pub fn get(&self, topic_id: TopicId, index: PartitionIndex) -> Option<Arc<Partition>> {
        self.index.load().get(topic_id, index).map(Arc::clone)
    }

    /// The partition of the topic that has this name now, if it is open here.
    pub fn get_by_name(&self, name: &str, index: PartitionIndex) -> Option<Arc<Partition>> {
        self.index.load().get_by_name(name, index).map(Arc::clone)
    }

    /// The partition, or why it cannot be had.
    pub fn lookup(
        &self,
        topic: &TopicRef,
        index: PartitionIndex,
    ) -> Result<Arc<Partition>, LookupError> {
        self.index.load().lookup(topic, index)
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.options.node_id
    }

    /// Where changes of leadership of the partitions here are noted.
    pub fn leadership_changes(&self) -> &Arc<LeadershipChanges> {
        &self.leadership_changes
    }

    /// The metadata that is being carried out here.
    pub fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(self.index.load().image())
    }

    /// What the metadata says of a partition, whether or not it is open here.
    pub fn state(&self, topic: &TopicRef, index: PartitionIndex) -> Option<PartitionState> {
        let known = self.index.load();
        let topic = match topic {
            TopicRef::Name(name) => known.image().topic(name),
            TopicRef::Id(id) => known.image().topic_by_id(*id),
        };
        topic?.partition(index).cloned()
    }

    /// Whether the metadata that has been carried out here knows a topic of this name.
    pub fn knows_topic(&self, name: &str) -> bool {
        self.index.load().image().topic(name).is_some()
    }

    /// All partitions that are open here, in no order.
    pub fn all(&self) -> Vec<Arc<Partition>> {
        let index = self.index.load();
        index
            .topics()
            .flat_map(|topic| topic.open())
            .map(Arc::clone)
            .collect()
    }

    /// The log directories.
    pub fn directories(&self) -> &[Arc<LogDirectory>] {
        self.options.directories.all()
    }

    /// Changes when a partition was closed and opened again without a change of the metadata: whoever holds on
    /// to one has to look for it anew.
    pub fn subscribe_reopened(&self) -> watch::Receiver<u64> {
        self.reopened.subscribe()
    }

    /// Waits until the metadata below `offset` has been carried out here.
    pub async fn wait_until_reconciled(&self, offset: Offset) {
        let mut reconciled = self.reconciled.subscribe();
        // The sender lives as long as this manager.
        let _ = reconciled.wait_for(|done| *done >= offset).await;
    }

    /// Waits until every group whose only voter is this node has elected it, so that whoever comes
    /// right after the start finds its partitions led. Gives up after a while: the log says of a
    /// group what keeps it, and the others can be served.
    pub async fn wait_until_lone_groups_lead(&self) {
        let index = self.index.load_full();
        let node = self.options.node_id;
        // By the metadata: what a group says of itself may be a moment old.
        let is_alone = |partition: &Arc<Partition>| {
            let topic = index.image().topic_by_id(partition.topic_id());
            topic
                .and_then(|topic| topic.partition(partition.index()))
                .is_some_and(|state| state.replicas == [node])
        };
        let partitions: Vec<_> = self.all().into_iter().filter(is_alone).collect();
        let total = partitions.len();
        let mut electing: FuturesUnordered<_> = partitions
            .iter()
            .map(|partition| partition.group().wait_until_ready())
            .collect();
        let deadline = tokio::time::Instant::now() + ELECTIONS_LIMIT;
        let mut report = tokio::time::interval(PROGRESS_PERIOD);
        report.reset();
        loop {
            tokio::select! {
                one = electing.next() => match one {
                    // One that has stopped has said why.
                    Some(Ok(_) | Err(_)) => {}
                    None => return,
                },
                _ = report.tick() => {
                    let elected = total - electing.len();
                    tracing::info!(elected, total, "electing leaders");
                }
                () = tokio::time::sleep_until(deadline) => {
                    let left = electing.len();
                    tracing::warn!(left, total, "not every group has elected a leader yet");
                    return;
                }
            }
        }
    }

    /// Makes this broker hold what `image` says. Older images than the last are ignored. The first
    /// must be complete: what it does not know is set aside as stray.
    pub async fn reconcile(&self, image: Arc<MetadataImage>) {
        let mut inventory = self.inventory.lock().await;
        let is_first = inventory.is_none();
        if !is_first && image.next_offset() <= *self.reconciled.borrow() {
            return;
        }
        let inventory = match &mut *inventory {
            Some(inventory) => inventory,
            empty => {
                let found = self.take_inventory(&image).await;
                empty.insert(found)
            }
        };
        let before = self.index.load_full();
        let changes = reconcile::changes(&before, &image, self.options.node_id);
        let mut removed: Vec<(Arc<Partition>, Gone)> = changes
            .removed
            .iter()
            .flat_map(|topic| topic.open())
            .map(|partition| (Arc::clone(partition), Gone::Deleted))
            .collect();
        let mut superseded = Vec::new();
        self.update_index(|index| {
            index.set_image(Arc::clone(&image));
            for topic in &changes.removed {
                index.remove(topic.id);
            }
            for (topic, at) in &changes.superseded {
                // What is left in the place of one that could not be opened is tried again.
                if let Slot::Open(partition) = index.take(*topic, *at) {
                    superseded.push(partition);
                }
            }
            for (topic, at) in &changes.released {
                match index.take(*topic, *at) {
                    Slot::Open(partition) => {
                        tracing::info!(?partition, "others hold this partition from now on");
                        removed.push((partition, Gone::Released));
                    }
                    // What is in its directory is for the operator to look at.
                    Slot::Unopenable | Slot::Absent => {}
                }
            }
        });
        futures_util::stream::iter(&removed)
            .for_each_concurrent(HANDLED_AT_ONCE, |(partition, why)| {
                self.remove(partition, *why)
            })
            .await;
        futures_util::stream::iter(&superseded)
            .for_each_concurrent(HANDLED_AT_ONCE, |partition| self.close(partition))
            .await;
        for partition in superseded {
            let place = (partition.topic_id(), partition.index());
            inventory.insert(place, partition.group().dir().to_path_buf());
        }
        self.open_all(changes.added, inventory, &image, is_first)
            .await;
        self.apply_settings(before.image(), &image);
        self.reconciled.send_replace(image.next_offset());
    }

    fn update_index(&self, change: impl FnOnce(&mut Index)) {
        // Only the one reconciliation that runs changes the index.
        let mut index = Index::clone(&self.index.load());
        change(&mut index);
        self.index.store(Arc::new(index));
    }

    async fn open_all(
        &self,
        added: Vec<Wanted>,
        inventory: &mut HashMap<(TopicId, PartitionIndex), PathBuf>,
        image: &MetadataImage,
        is_first: bool,
    ) {
        if added.is_empty() {
            return;
        }
        let (total, started) = (added.len(), Instant::now());
        let mut last_report = started;
        let mut settings: HashMap<TopicId, PartitionSettings> = HashMap::new();
        let placed: Vec<_> = self
            .place(added, inventory, is_first)
            .into_iter()
            .map(|(wanted, place)| {
                let settings = settings
                    .entry(wanted.topic_id)
                    .or_insert_with(|| self.settings(image, &wanted.topic))
                    .clone();
                (wanted, place, settings)
            })
            .collect();
        let mut opening = futures_util::stream::iter(placed)
            .map(|(wanted, place, settings)| async move {
                let slot = self.open(&wanted, place, settings).await;
                (wanted, slot)
            })
            .buffer_unordered(HANDLED_AT_ONCE);
        let mut opened = Vec::with_capacity(total);
        while let Some(one) = opening.next().await {
            opened.push(one);
            if last_report.elapsed() >= PROGRESS_PERIOD {
                last_report = Instant::now();
                tracing::info!(opened = opened.len(), total, "opening partitions");
            }
        }
        drop(opening);
        self.update_index(|index| {
            for (wanted, slot) in opened {
                index.insert(wanted.topic_id, &wanted.topic, wanted.index, slot);
            }
        });
        if is_first {
            let elapsed_ms = started.elapsed().as_millis() as u64;
            tracing::info!(partitions = total, elapsed_ms, "partitions are open");
        }
    }

    /// Opens one partition, making its directory if it has none.
    async fn open(
        &self,
        wanted: &Wanted,
        place: anyhow::Result<Place>,
        settings: PartitionSettings,
    ) -> Slot {
        let mut attempts_left = OPEN_ATTEMPTS;
        loop {
            let opened = match &place {
                Ok(place) => self.try_open(wanted, place, settings.clone()).await,
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            match opened {
                Ok(partition) => return Slot::Open(Arc::new(partition)),
                Err(error) if attempts_left > 0 && is_for_want_of_descriptors(&error) => {
                    attempts_left -= 1;
                    self.relieve_descriptors().await;
                    tokio::time::sleep(OPEN_RETRY).await;
                }
                Err(error) => {
                    tracing::error!(
                        topic = &*wanted.topic,
                        partition = wanted.index.get(),
                        error = format!("{error:#}"),
                        "a partition cannot be opened"
                    );
                    if let Ok(place) = place {
                        place.directory.partition_removed();
                    }
                    return Slot::Unopenable;
                }
            }
        }
    }

    async fn try_open(
        &self,
        wanted: &Wanted,
        place: &Place,
        settings: PartitionSettings,
    ) -> anyhow::Result<Partition> {
        let directory = Arc::clone(&place.directory);
        let path = match &place.found {
            Some(path) => path.clone(),
            None => self.make_directory(wanted, &directory).await?,
        };
        let incarnation = wanted.begun.map(|begun| begun.incarnation);
        let key = GroupKey::new(wanted.topic_id, wanted.index)
            .in_incarnation(incarnation.unwrap_or_default());
        let changes = Arc::clone(&self.leadership_changes);
        let events = Arc::new(PartitionEvents::noted_in(key, changes));
        let spec = GroupSpec {
            key,
            dir: path,
            log_config: Arc::new(settings.log.clone()),
            voters: wanted.voters.clone(),
            bootstrap: wanted.begins,
            succession: wanted.begun.map(|begun| begun.succession),
        };
        let observer = Arc::clone(&events) as Arc<dyn GroupObserver>;
        let group = self.options.raft.open_group(spec, observer).await?;
        Ok(Partition::new(PartitionParts {
            topic: Arc::clone(&wanted.topic),
            group,
            events,
            settings,
            directory,
            clock: Arc::clone(&self.options.clock),
            metrics: Arc::clone(&self.metrics),
            alone: self.options.config.load().cluster.is_alone(),
        }))
    }

    /// Hands changed topic configurations to the open partitions.
    fn apply_settings(&self, before: &MetadataImage, after: &MetadataImage) {
        let index = self.index.load_full();
        let configure = |topic: &LocalTopic| {
            let settings = self.settings(after, &topic.name);
            for partition in topic.open() {
                partition.apply_settings(settings.clone());
            }
        };
        if self.broker_config_changed(before, after) {
            index.topics().for_each(|topic| configure(topic));
            return;
        }
        let changed = after.config_changes(before).into_iter();
        changed
            .map(|change| change.key)
            .filter(|resource| resource.kind == ResourceKind::Topic)
            .filter_map(|resource| after.topic(&resource.name))
            .filter_map(|topic| index.topic(topic.id))
            .for_each(|topic| configure(topic));
    }

    fn settings(&self, image: &MetadataImage, topic: &str) -> PartitionSettings {
        let own = image.config(&ConfigResource::topic(topic));
        PartitionSettings::of_topic(&self.options.config.load(), topic, own)
    }

    fn broker_config_changed(&self, before: &MetadataImage, after: &MetadataImage) -> bool {
        [
            ConfigResource::all_brokers(),
            ConfigResource::broker(self.options.node_id),
        ]
        .iter()
        .any(|resource| before.config(resource) != after.config(resource))
    }
}

/// Whether nothing more could be opened, so that another attempt may succeed.
fn is_for_want_of_descriptors(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(is_out_of_descriptors)
}
