//! The way to whoever leads the metadata.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use odradek_protocol::ids::Offset;

use crate::metadata::leader_report::LeaderReport;

/// Why a report did not get through. It may have been taken all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leaders cannot be reported: {0}")]
pub struct ReportError(pub String);

/// Takes what leaders report into the cluster's metadata.
pub trait MetadataLeader: Debug + Send + Sync + 'static {
    /// Has the metadata leader take `reports`, and returns the end of the metadata log that includes
    /// them and everything that was committed when they came. No reports ask for just that.
    fn report(&self, reports: Vec<LeaderReport>) -> BoxFuture<'_, Result<Offset, ReportError>>;
}
