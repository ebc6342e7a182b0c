//! DescribeLogDirs (KIP-113, KIP-827): the log directories of this broker, what is in them and how
//! much room they have.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use odradek_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use odradek_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse, StrBytes};

use super::Reply;
use crate::context::RequestContext;
use crate::partition::Partition;
use crate::partitions::PartitionManager;
use crate::partitions::log_dir::LogDirectory;

/// "Not known" for a number of bytes.
const UNKNOWN_BYTES: i64 = -1;

/// Answers DescribeLogDirs.
pub async fn handle(
    context: RequestContext,
    request: DescribeLogDirsRequest,
) -> Reply<DescribeLogDirsResponse> {
    let asked = request.topics.map(asked);
    let partitions = &context.broker.partitions;
    let mut all = partitions.all();
    all.retain(|partition| is_asked(asked.as_ref(), partition));
    let results = partitions
        .directories()
        .iter()
        .map(|directory| describe(partitions, directory, &all))
        .collect();
    Reply::Now(message!(DescribeLogDirsResponse { results }))
}

type Asked = HashMap<StrBytes, HashSet<i32>>;

fn asked(topics: Vec<DescribableLogDirTopic>) -> Asked {
    let mut asked = Asked::new();
    for topic in topics {
        asked
            .entry(topic.topic)
            .or_default()
            .extend(topic.partitions);
    }
    asked
}

fn is_asked(asked: Option<&Asked>, partition: &Partition) -> bool {
    asked.is_none_or(|asked| {
        asked
            .get(&StrBytes::from(&**partition.topic()))
            .is_some_and(|indexes| indexes.contains(&partition.index().get()))
    })
}

fn describe(
    manager: &PartitionManager,
    directory: &Arc<LogDirectory>,
    partitions: &[Arc<Partition>],
) -> DescribeLogDirsResult {
    // Kafka's tools name a directory by its full path.
    let log_dir = directory.absolute_path();
    let mut result = message!(DescribeLogDirsResult {
        log_dir: StrBytes::from(log_dir.to_string_lossy().into_owned()),
        total_bytes: UNKNOWN_BYTES,
        usable_bytes: UNKNOWN_BYTES,
    });
    if directory.health().is_offline() {
        result.error_code = ErrorCode::KafkaStorageError.code();
        return result;
    }
    match directory.space() {
        Ok(space) => {
            result.total_bytes = bytes(space.total_bytes);
            result.usable_bytes = bytes(space.usable_bytes);
        }
        Err(error) => tracing::warn!(%error, "the room of a log directory is not known"),
    }
    let mut topics: BTreeMap<&str, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for partition in partitions {
        if Arc::ptr_eq(partition.directory(), directory) {
            let described = message!(DescribeLogDirsPartition {
                partition_index: partition.index().get(),
                partition_size: bytes(partition.size_bytes()),
            });
            topics.entry(partition.topic()).or_default().push(described);
        }
        let moving = manager.moving(partition);
        if let Some(moving) = moving.filter(|moving| Arc::ptr_eq(moving.target(), directory)) {
            let end = partition.offsets().log_end.get();
            let lag = end - moving.copied_end().get();
            topics
                .entry(partition.topic())
                .or_default()
                .push(message!(DescribeLogDirsPartition {
                    partition_index: partition.index().get(),
                    partition_size: bytes(moving.copied_bytes()),
                    offset_lag: lag.max(0),
                    is_future_key: true,
                }));
        }
    }
    result.topics = topics
        .into_iter()
        .map(|(name, mut partitions)| {
            partitions.sort_by_key(|partition| partition.partition_index);
            message!(DescribeLogDirsTopic {
                name: StrBytes::from(name),
                partitions,
            })
        })
        .collect();
    result
}

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
