//! Telling partitions, wherever they are led, how transactions have ended.
//!
//! A partition whose topic has been deleted has nothing to be told, whatever has been made under its name
//! since. A topic that is merely not known here may be newer than what this broker knows of the metadata;
//! only after a while it is taken for one that was deleted long ago. A partition that says that the producer has gone on has been told by somebody before:
//! whoever aborts a transaction that hangs does that. A broker that does not answer is waited for until others lead
//! what it was told of; being told twice does a partition no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join, join_all};
use odradek_protocol::api::ApiKey;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{
    LeaderEpoch, NodeId, PartitionIndex, ProducerId, TimestampMs, TopicId,
};
use odradek_protocol::message;
use odradek_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use odradek_protocol::messages::{
    StrBytes, TaggedField, TaggedFields, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use odradek_storage::producer_state::EndTxnMarker;
use tokio::time::Instant;

use super::elsewhere::while_it_counts;
use super::markers::MarkerWriter;
use super::messages::DecidedTxn;
use super::metrics;
use crate::fetch_sessions::TopicRef;
use crate::groups::names::TopicName;
use crate::handlers::leader_hint::LeaderHint;
use crate::metadata::image::Topic;
use crate::metadata::service::MetadataService;
use crate::partition::TxnEnd;
use crate::partitions::PartitionManager;
use crate::peer::{Peers, ask_broker};

/// Version of WriteTxnMarkers between brokers.
const VERSION: i16 = 2;
/// How long a topic that is not known may still turn up.
const UNKNOWN_TOPIC_GRACE: Duration = Duration::from_secs(60);
/// How long another broker may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Another coordinator has taken over, and its word is what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced;

/// A partition that is to be told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name of its topic.
    pub topic: TopicName,
    /// Its index.
    pub index: PartitionIndex,
}

/// A decided transaction with the partitions that do not know yet.
#[derive(Debug)]
pub struct Undelivered {
    /// The transaction.
    pub transaction: DecidedTxn,
    /// In order, so that the same history has the same partitions told in turn.
    left: BTreeMap<Place, TopicId>,
    since: Instant,
}

impl Undelivered {
    /// No partition knows.
    pub fn new(transaction: DecidedTxn) -> Self {
        let mut left = BTreeMap::new();
        for (name, topic) in &transaction.partitions {
            for index in &topic.partitions {
                let place = Place {
                    topic: name.clone(),
                    index: *index,
                };
                left.insert(place, topic.id);
            }
        }
        Self {
            transaction,
            left,
            since: Instant::now(),
        }
    }

    /// Whether every partition knows.
    pub fn is_delivered(&self) -> bool {
        self.left.is_empty()
    }

    fn end(&self, coordinator: LeaderEpoch) -> TxnEnd {
        TxnEnd {
            producer: self.transaction.producer,
            marker: EndTxnMarker {
                aborted: !self.transaction.committed,
                coordinator_epoch: coordinator.get(),
            },
            bumps_epoch: self.transaction.client_version.bumps_epoch(),
            started_at: self.transaction.started_at,
        }
    }
}

/// Who is to be told by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// Nobody need be told.
    Gone,
    /// This broker.
    Here,
    /// Another broker.
    At(NodeId),
    /// Nobody is known to lead the partition at present.
    Unknown,
}

/// What one attempt came to.
pub type Outcome = (ProducerId, Place, Result<(), ErrorCode>);

/// How partitions are reached.
pub trait Ways: Debug + Send + Sync + 'static {
    /// Who leads a partition of the topic of that id, which is zero if it is not known. `is_old` says
    /// that what is not known by now does not exist.
    fn leader_of(&self, place: &Place, topic_id: TopicId, is_old: bool) -> Leader;

    /// Tells a partition that is led here; the code says why it is not known to have been told.
    fn tell_here(&self, place: Place, end: TxnEnd) -> BoxFuture<'static, Result<(), ErrorCode>>;

    /// Tells partitions that `node` leads. Those that nothing is heard of are left out of the answer.
    fn tell_elsewhere(
        &self,
        node: NodeId,
        markers: Vec<(TxnEnd, Vec<Place>)>,
    ) -> BoxFuture<'static, Vec<Outcome>>;
}

/// See the module.
#[derive(Debug)]
pub struct Delivery {
    ways: Arc<dyn Ways>,
}

impl Delivery {
    /// Tells partitions that are led here by `writer`, and others through `peers`.
    pub fn new(
        metadata: Arc<MetadataService>,
        partitions: Arc<PartitionManager>,
        writer: MarkerWriter,
        peers: Option<Arc<Peers>>,
    ) -> Self {
        Self::by(Arc::new(ClusterWays {
            metadata,
            partitions,
            writer,
            peers,
        }))
    }

    /// Tells partitions by `ways`.
    pub fn by(ways: Arc<dyn Ways>) -> Self {
        Self { ways }
    }

    /// Tells every partition once; what is not known to have arrived is left.
    ///
    /// # Errors
    /// Another coordinator has taken over.
    pub async fn round(
        &self,
        coordinator: LeaderEpoch,
        transactions: &mut [Undelivered],
    ) -> Result<(), Replaced> {
        let mut here = Vec::new();
        let mut elsewhere: BTreeMap<NodeId, Vec<(usize, Vec<Place>)>> = BTreeMap::new();
        for (number, undelivered) in transactions.iter_mut().enumerate() {
            let end = undelivered.end(coordinator);
            let is_old = undelivered.since.elapsed() >= UNKNOWN_TOPIC_GRACE;
            undelivered.left.retain(|place, topic_id| {
                match self.ways.leader_of(place, *topic_id, is_old) {
                    Leader::Gone => return false,
                    Leader::Here => here.push((place.clone(), end)),
                    Leader::At(node) => {
                        let markers = elsewhere.entry(node).or_default();
                        match markers.last_mut() {
                            Some((last, places)) if *last == number => places.push(place.clone()),
                            _ => markers.push((number, vec![place.clone()])),
                        }
                    }
                    Leader::Unknown => {}
                }
                true
            });
        }
        let told_here = join_all(here.into_iter().map(|(place, end)| {
            let telling = self.ways.tell_here(place.clone(), end);
            async move { (end.producer.id, place, telling.await) }
        }));
        let told_elsewhere = join_all(elsewhere.into_iter().map(|(node, markers)| {
            let markers = markers.into_iter().map(|(number, places)| {
                let end = transactions.get(number).map(|told| told.end(coordinator));
                end.map(|end| (end, places))
            });
            let markers: Vec<_> = markers.flatten().collect();
            let places = markers
                .iter()
                .flat_map(|(_, places)| places.iter().cloned());
            let places: Vec<Place> = places.collect();
            let telling = self.ways.tell_elsewhere(node, markers);
            async move {
                let leads_all = || places.iter().all(|place| self.may_be_led_by(place, node));
                while_it_counts(telling, leads_all)
                    .await
                    .unwrap_or_default()
            }
        }));
        let (told_here, told_elsewhere) = join(told_here, told_elsewhere).await;
        let outcomes = told_here
            .into_iter()
            .chain(told_elsewhere.into_iter().flatten());
        settle(transactions, outcomes)
    }

    /// Whether nobody else is known to lead the partition.
    fn may_be_led_by(&self, place: &Place, node: NodeId) -> bool {
        match self.ways.leader_of(place, TopicId::ZERO, false) {
            Leader::At(leader) => leader == node,
            Leader::Here => false,
            Leader::Gone | Leader::Unknown => true,
        }
    }
}

/// How partitions of a cluster are reached.
#[derive(Debug)]
struct ClusterWays {
    metadata: Arc<MetadataService>,
    partitions: Arc<PartitionManager>,
    writer: MarkerWriter,
    peers: Option<Arc<Peers>>,
}

impl Ways for ClusterWays {
    fn leader_of(&self, place: &Place, topic_id: TopicId, is_old: bool) -> Leader {
        let image = self.metadata.image();
        if image.has_deleted(topic_id) {
            return Leader::Gone;
        }
        let is_it = |topic: &&Arc<Topic>| topic_id.is_zero() || topic.id == topic_id;
        let known = image.topic(place.topic.as_str()).filter(is_it);
        let Some(topic) = known.filter(|topic| topic.partition(place.index).is_some()) else {
            return match is_old {
                true => Leader::Gone,
                false => Leader::Unknown,
            };
        };
        let reference = TopicRef::Id(topic.id);
        match LeaderHint::of(&self.partitions, &reference, place.index) {
            Some(hint) if hint.leader == self.partitions.node_id() => Leader::Here,
            Some(hint) => Leader::At(hint.leader),
            None => Leader::Unknown,
        }
    }

    fn tell_here(&self, place: Place, end: TxnEnd) -> BoxFuture<'static, Result<(), ErrorCode>> {
        let writer = self.writer.clone();
        Box::pin(async move { writer.write(place.topic.as_str(), place.index, end).await })
    }

    fn tell_elsewhere(
        &self,
        node: NodeId,
        markers: Vec<(TxnEnd, Vec<Place>)>,
    ) -> BoxFuture<'static, Vec<Outcome>> {
        let peers = self.peers.clone();
        Box::pin(async move {
            match peers {
                Some(peers) => tell_by(&peers, node, markers).await,
                None => Vec::new(),
            }
        })
    }
}

/// Tells partitions that another broker leads, through `peers`.
async fn tell_by(peers: &Peers, node: NodeId, markers: Vec<(TxnEnd, Vec<Place>)>) -> Vec<Outcome> {
    let request = message!(WriteTxnMarkersRequest {
        markers: markers
            .iter()
            .map(|(end, places)| to_marker(*end, places))
            .collect(),
    });
    let asked = ask_broker(
        peers,
        node,
        (ApiKey::WriteTxnMarkers, VERSION),
        &request,
        ANSWER_TIMEOUT,
    );
    let response: WriteTxnMarkersResponse = match asked.await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%node, %error, "a broker was not told of the ends of transactions");
            return Vec::new();
        }
    };
    let mut outcomes = Vec::new();
    for marker in response.markers {
        for topic in marker.topics {
            for partition in topic.partitions {
                let place = Place {
                    topic: TopicName::new(&topic.name),
                    index: PartitionIndex::new(partition.partition_index),
                };
                let result = match ErrorCode::from_code(partition.error_code) {
                    Some(ErrorCode::None) => Ok(()),
                    Some(code) => Err(code),
                    None => Err(ErrorCode::UnknownServerError),
                };
                outcomes.push((ProducerId::new(marker.producer_id), place, result));
            }
        }
    }
    outcomes
}

/// Tag, in a marker between brokers, of the time at which the transaction began: int64, in milliseconds.
const STARTED_AT_TAG: u32 = 10_000;

fn started_at_field(started_at: TimestampMs) -> TaggedFields {
    let payload = Bytes::copy_from_slice(&started_at.get().to_be_bytes());
    let field = TaggedField::new(STARTED_AT_TAG, payload);
    // One field is in order.
    TaggedFields::from_sorted(vec![field]).unwrap_or_default()
}

/// When the transaction of a marker began, if whoever wrote it says so.
pub fn started_at(marker: &WritableTxnMarker) -> TimestampMs {
    let mut fields = marker.unknown_tagged_fields.iter();
    fields
        .find(|field| field.tag() == STARTED_AT_TAG)
        .and_then(|field| field.data().as_ref().try_into().ok())
        .map_or(TimestampMs::NONE, |bytes| {
            TimestampMs::new(i64::from_be_bytes(bytes))
        })
}

fn to_marker(end: TxnEnd, places: &[Place]) -> WritableTxnMarker {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for place in places {
        let indexes = topics.entry(place.topic.as_str()).or_default();
        indexes.push(place.index.get());
    }
    message!(WritableTxnMarker {
        producer_id: end.producer.id.get(),
        producer_epoch: end.producer.epoch.get(),
        transaction_result: !end.marker.aborted,
        coordinator_epoch: end.marker.coordinator_epoch,
        transaction_version: if end.bumps_epoch { 2 } else { 0 },
        unknown_tagged_fields: started_at_field(end.started_at),
        topics: topics
            .into_iter()
            .map(
                |(name, partition_indexes)| message!(WritableTxnMarkerTopic {
                    name: StrBytes::from(name.to_owned()),
                    partition_indexes,
                })
            )
            .collect(),
    })
}

/// Takes account of what the attempts came to.
fn settle(
    transactions: &mut [Undelivered],
    outcomes: impl Iterator<Item = Outcome>,
) -> Result<(), Replaced> {
    let mut done: BTreeSet<(ProducerId, Place)> = BTreeSet::new();
    let mut repeated = 0;
    for (producer_id, place, result) in outcomes {
        match result {
            Ok(()) => {
                done.insert((producer_id, place));
            }
            Err(ErrorCode::InvalidProducerEpoch) => {
                tracing::warn!(
                    %producer_id, topic = %place.topic, partition = %place.index,
                    "the producer has gone on here before its transaction was ended"
                );
                done.insert((producer_id, place));
            }
            Err(ErrorCode::TransactionCoordinatorFenced) => return Err(Replaced),
            Err(code) => {
                tracing::debug!(?code, topic = %place.topic, "a marker is to be written again");
                repeated += 1;
            }
        }
    }
    metrics::markers_repeated(repeated);
    for undelivered in transactions {
        let producer_id = undelivered.transaction.producer.id;
        undelivered
            .left
            .retain(|place, _| !done.contains(&(producer_id, place.clone())));
    }
    Ok(())
}
