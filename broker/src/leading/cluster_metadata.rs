//! The way to the metadata leader in a running cluster, and its end: this node itself where it leads
//! the metadata, a message between nodes otherwise.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use odradek_protocol::ids::{NodeId, Offset};
use odradek_raft::GroupKey;

use super::hand_over::{HandOverError, hand_over};
use super::metadata_leader::{MetadataLeader, ReportError};
use crate::metadata::controller::leader_reports::apply_reports;
use crate::metadata::leader_report::LeaderReport;
use crate::metadata::service::{MetadataError, MetadataService};
use crate::partitions::PartitionManager;
use crate::peer::message::LeaderReports;
use crate::peer::{PeerReply, PeerRequest, Peers};

/// See the module.
pub struct ClusterMetadata {
    node: NodeId,
    metadata: Arc<MetadataService>,
    /// `None` in a cluster of one node.
    peers: Option<Arc<Peers>>,
}

impl fmt::Debug for ClusterMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterMetadata").finish_non_exhaustive()
    }
}

impl ClusterMetadata {
    /// The way of `node` to the metadata leader.
    pub fn new(node: NodeId, metadata: Arc<MetadataService>, peers: Option<Arc<Peers>>) -> Self {
        Self {
            node,
            metadata,
            peers,
        }
    }

    async fn tell(&self, reports: Vec<LeaderReport>) -> Result<Offset, ReportError> {
        if self.metadata.is_leading() {
            return take_reports(&self.metadata, reports).await.map_err(failed);
        }
        let unknown = || ReportError("nobody is known to lead the metadata".to_owned());
        let leader = self.metadata.controller().ok_or_else(unknown)?;
        let peers = self.peers.as_ref().ok_or_else(unknown)?;
        let image = self.metadata.image();
        let request = PeerRequest::Report(LeaderReports {
            node: self.node,
            broker_epoch: image
                .broker(self.node)
                .map_or(-1, |broker| broker.broker_epoch),
            reports,
        });
        match peers.call(leader, request).await {
            Ok(PeerReply::Committed { metadata_offset }) => Ok(metadata_offset),
            Ok(other) => Err(ReportError(format!("node {leader} answers {other:?}"))),
            Err(error) => Err(failed(error)),
        }
    }
}

impl MetadataLeader for ClusterMetadata {
    fn report(&self, reports: Vec<LeaderReport>) -> BoxFuture<'_, Result<Offset, ReportError>> {
        self.tell(reports).boxed()
    }
}

fn failed(error: impl fmt::Display) -> ReportError {
    ReportError(error.to_string())
}

async fn take_reports(
    metadata: &MetadataService,
    reports: Vec<LeaderReport>,
) -> Result<Offset, MetadataError> {
    let done = metadata
        .run(move |image| (apply_reports(image, &reports), ()))
        .await?;
    // Where nothing had to be written, nothing has shown that this node still leads.
    if !metadata.group().holds_lease() {
        return Err(MetadataError::NotController { leader: None });
    }
    Ok(done.offset)
}

/// Answers [`PeerRequest::Report`].
pub async fn serve_reports(metadata: &MetadataService, message: LeaderReports) -> PeerReply {
    match take_reports(metadata, message.reports).await {
        Ok(metadata_offset) => PeerReply::Committed { metadata_offset },
        Err(MetadataError::NotController { leader }) => PeerReply::NotController { leader },
        Err(error) => {
            tracing::warn!(%error, from = %message.node, "reports of leaders are not taken");
            PeerReply::Busy
        }
    }
}

/// Answers [`PeerRequest::TransferLeader`].
pub async fn serve_hand_over(
    partitions: &PartitionManager,
    group: GroupKey,
    to: NodeId,
) -> PeerReply {
    match hand_over(partitions, group, to).await {
        Ok(()) => PeerReply::Done,
        Err(HandOverError::NotLeader { leader }) => PeerReply::NotLeader { leader },
        Err(error @ (HandOverError::NoVoter(_) | HandOverError::Failed(_))) => PeerReply::Refused {
            reason: error.to_string(),
        },
    }
}
