//! AlterReplicaLogDirs (KIP-113): in which log directory of this broker a partition is to be. What is here begins
//! to move; what is not here yet is remembered, and answered with an error all the same, as Kafka does.

use std::collections::BTreeMap;
use std::path::Path;

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::PartitionIndex;
use odradek_protocol::message;
use odradek_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use odradek_protocol::messages::{
    AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, StrBytes,
};

use super::Reply;
use crate::context::RequestContext;

/// Answers AlterReplicaLogDirs.
pub async fn handle(
    context: RequestContext,
    request: AlterReplicaLogDirsRequest,
) -> Reply<AlterReplicaLogDirsResponse> {
    // Of a partition that is named twice the last counts.
    let mut wanted: BTreeMap<StrBytes, BTreeMap<i32, StrBytes>> = BTreeMap::new();
    for dir in request.dirs {
        for topic in dir.topics {
            let partitions = wanted.entry(topic.name).or_default();
            for index in topic.partitions {
                partitions.insert(index, dir.path.clone());
            }
        }
    }
    let partitions = &context.broker.partitions;
    let results = wanted
        .into_iter()
        .map(|(name, indexes)| {
            let results = indexes.into_iter().map(|(index, path)| {
                let at = PartitionIndex::new(index);
                let altered = partitions.alter_log_dir(&name, at, Path::new(path.as_str()));
                let code = match altered {
                    Ok(()) => ErrorCode::None,
                    Err(error) => {
                        tracing::info!(topic = &*name, partition = index, %error, "not moved at once");
                        error.error_code()
                    }
                };
                message!(AlterReplicaLogDirPartitionResult {
                    partition_index: index,
                    error_code: code.code(),
                })
            });
            let partitions = results.collect();
            message!(AlterReplicaLogDirTopicResult {
                topic_name: name,
                partitions,
            })
        })
        .collect();
    Reply::Now(message!(AlterReplicaLogDirsResponse { results }))
}
