//! WriteTxnMarkers (KIP-98, KIP-890): the ends of transactions, into partitions led here.
//!
//! Sent by transaction coordinators, and by tools that abort a transaction that hangs (KIP-664). A
//! marker goes once into a partition that it names twice.

use std::collections::HashSet;
use std::future::Future;

use futures_util::StreamExt as _;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::{PartitionIndex, ProducerEpoch, ProducerId};
use odradek_protocol::message;
use odradek_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use odradek_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use odradek_protocol::messages::{StrBytes, WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use odradek_storage::producer_state::EndTxnMarker;

use super::{ROWS_AT_ONCE, Reply};
use crate::context::RequestContext;
use crate::coordinator::effects::ProducerIdentity;
use crate::partition::TxnEnd;
use crate::txn::delivery;
use crate::txn::names::TxnVersion;

/// Answers WriteTxnMarkers.
pub async fn handle(
    context: RequestContext,
    request: WriteTxnMarkersRequest,
) -> Reply<WriteTxnMarkersResponse> {
    let writer = &context.broker.markers;
    let written = write_all(request, |row: Row| async move {
        writer.write(row.topic.as_str(), row.index, row.end).await
    });
    Reply::Now(written.await)
}

/// A marker for one partition.
struct Row {
    /// Marker, topic and partition, by their places in the answer.
    place: (usize, usize, usize),
    topic: StrBytes,
    index: PartitionIndex,
    end: TxnEnd,
}

/// Has every row written, so many at a time.
async fn write_all<F>(
    request: WriteTxnMarkersRequest,
    write: impl Fn(Row) -> F,
) -> WriteTxnMarkersResponse
where
    F: Future<Output = Result<(), ErrorCode>>,
{
    let mut rows = Vec::new();
    let mut markers: Vec<WritableTxnMarkerResult> = Vec::new();
    for marker in request.markers {
        let at = markers.len();
        let known = rows.len();
        let result = lay_out(marker, at, &mut rows);
        // A marker for no partition is not answered, as with Kafka.
        if rows.len() > known {
            markers.push(result);
        }
    }
    let mut writing = futures_util::stream::iter(rows)
        .map(|row| {
            let place = row.place;
            let written = write(row);
            async move { (place, written.await) }
        })
        .buffer_unordered(ROWS_AT_ONCE);
    while let Some(((marker, topic, row), written)) = writing.next().await {
        let row = markers
            .get_mut(marker)
            .and_then(|marker| marker.topics.get_mut(topic))
            .and_then(|topic| topic.partitions.get_mut(row));
        if let Some(row) = row {
            row.error_code = written.map_or_else(|code| code.code(), |()| 0);
        }
    }
    message!(WriteTxnMarkersResponse { markers })
}

/// The answer to a marker without what became of it, and what has to become of it.
fn lay_out(
    marker: WritableTxnMarker,
    marker_at: usize,
    rows: &mut Vec<Row>,
) -> WritableTxnMarkerResult {
    let version = TxnVersion::of_level(marker.transaction_version.into());
    let end = TxnEnd {
        producer: ProducerIdentity {
            id: ProducerId::new(marker.producer_id),
            epoch: ProducerEpoch::new(marker.producer_epoch),
        },
        marker: EndTxnMarker {
            aborted: !marker.transaction_result,
            coordinator_epoch: marker.coordinator_epoch,
        },
        bumps_epoch: version.bumps_epoch(),
        started_at: delivery::started_at(&marker),
    };
    let mut seen = HashSet::new();
    let mut topics: Vec<WritableTxnMarkerTopicResult> = Vec::new();
    for topic in marker.topics {
        let mut partitions = Vec::new();
        for index in topic.partition_indexes {
            if !seen.insert((topic.name.clone(), index)) {
                continue;
            }
            rows.push(Row {
                place: (marker_at, topics.len(), partitions.len()),
                topic: topic.name.clone(),
                index: PartitionIndex::new(index),
                end,
            });
            partitions.push(message!(WritableTxnMarkerPartitionResult {
                partition_index: index,
            }));
        }
        if !partitions.is_empty() {
            topics.push(message!(WritableTxnMarkerTopicResult {
                name: topic.name,
                partitions,
            }));
        }
    }
    message!(WritableTxnMarkerResult {
        producer_id: marker.producer_id,
        topics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use odradek_protocol::messages::write_txn_markers_request::WritableTxnMarkerTopic;
    use std::cell::Cell;

    #[tokio::test]
    async fn a_marker_goes_once_into_each_partition_and_into_so_many_at_a_time() {
        let partitions = i32::try_from(ROWS_AT_ONCE).expect("few") * 3;
        let topic = |name: &str| {
            message!(WritableTxnMarkerTopic {
                name: StrBytes::from(name),
                // Each of them twice.
                partition_indexes: (0..partitions).chain(0..partitions).collect(),
            })
        };
        let request = message!(WriteTxnMarkersRequest {
            markers: vec![
                message!(WritableTxnMarker { producer_id: 1 }),
                message!(WritableTxnMarker {
                    producer_id: 2,
                    topics: vec![topic("orders"), topic("orders"), topic("bills")],
                }),
            ],
        });
        let (running, most, all) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let response = write_all(request, |row| {
            let (running, most, all) = (&running, &most, &all);
            async move {
                running.set(running.get() + 1);
                most.set(running.get().max(most.get()));
                tokio::task::yield_now().await;
                running.set(running.get() - 1);
                all.set(all.get() + 1);
                match row.index.get() {
                    7 => Err(ErrorCode::InvalidProducerEpoch),
                    _ => Ok(()),
                }
            }
        })
        .await;
        assert_eq!(all.get(), 2 * partitions);
        assert!(most.get() <= ROWS_AT_ONCE, "{} at a time", most.get());
        let [marker] = <[_; 1]>::try_from(response.markers).expect("one has partitions");
        assert_eq!(marker.producer_id, 2);
        let names: Vec<&str> = marker
            .topics
            .iter()
            .map(|topic| topic.name.as_str())
            .collect();
        assert_eq!(names, ["orders", "bills"]);
        for topic in &marker.topics {
            let indexes = topic.partitions.iter().map(|row| row.partition_index);
            assert!(indexes.eq(0..partitions));
            for row in &topic.partitions {
                let is_refused = row.error_code == ErrorCode::InvalidProducerEpoch.code();
                assert_eq!(is_refused, row.partition_index == 7);
            }
        }
    }
}
