//! What a partition knows of transactions when its leadership goes and comes back.

use bytes::Bytes;
use odradek_protocol::ids::{NodeId, ProducerEpoch, ProducerId, Sequence};
use odradek_protocol::records::{BatchBuilder, NewRecord};
use odradek_storage::producer_state::EndTxnMarker;

use super::test_cluster::{CLIENT, Cluster, append, eventually};
use crate::coordinator::effects::ProducerIdentity;
use crate::partition::{
    AppendOptions, Partition, PartitionError, TxnEnd, Unverified, Verification,
};
use crate::partitions::fixture::START;

const PRODUCER: ProducerIdentity = ProducerIdentity {
    id: ProducerId::new(9),
    epoch: ProducerEpoch::new(0),
};

fn in_transaction(sequence: i32) -> Bytes {
    let mut builder = BatchBuilder::new().transactional().producer(
        PRODUCER.id,
        PRODUCER.epoch,
        Sequence::new(sequence),
    );
    builder.push(NewRecord {
        timestamp: START,
        key: None,
        value: Some(b"value"),
        headers: &[],
    });
    builder.build()
}

/// The trace that a question leaves.
fn asked(partition: &Partition, sequence: i32) -> Unverified {
    let options = AppendOptions {
        verification: Verification::Needed { bumps_epoch: false },
        ..CLIENT
    };
    match partition.append(in_transaction(sequence), options) {
        Err(PartitionError::Unverified(asked)) => asked,
        other => panic!("{other:?}"),
    }
}

fn answered(asked: Unverified) -> AppendOptions {
    AppendOptions {
        verification: Verification::Done(asked.guard),
        ..CLIENT
    }
}

/// The producer's first transaction is asked about at one leader, and written and ended at another, which gives the
/// partition back.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_was_asked_before_a_leader_went_counts_for_nothing_when_it_is_back() {
    let cluster = Cluster::new(3).await;
    cluster.create_topic("orders", 1, &[&[1, 2, 3]]).await;
    let (first, partition) = cluster.leader(1, 0).await;
    let other = [1, 2, 3].into_iter().find(|id| *id != first).expect("two");
    let early = asked(&partition, 0);
    let away = partition.group().transfer_leader(NodeId::new(other));
    away.await.expect("handed over");
    let (_, second) = cluster.leader(1, 0).await;
    assert_eq!(append(&second, in_transaction(0)).await.expect("taken"), 0);
    let end = TxnEnd {
        producer: PRODUCER,
        marker: EndTxnMarker {
            aborted: false,
            coordinator_epoch: 1,
        },
        bumps_epoch: false,
        started_at: START,
    };
    let marker = second.append_marker(end).expect("taken");
    marker.committed().await.expect("committed");
    let back = second.group().transfer_leader(NodeId::new(first));
    back.await.expect("handed back");
    eventually("it leads again", || {
        partition.require_ready_leader().ok()?;
        partition.require_lease().ok()
    })
    .await;
    let late = partition.append(in_transaction(1), answered(early));
    assert!(
        matches!(late, Err(PartitionError::NotLeader { .. })),
        "it would begin a transaction that nobody ends: {late:?}"
    );
    // The next transaction of the producer, which keeps its epoch, is not held back for the sake of the first.
    let again = asked(&partition, 1);
    let taken = partition.append(in_transaction(1), answered(again));
    let taken = taken.expect("taken").committed().await.expect("committed");
    assert_eq!(taken.base_offset.get(), 2);
}
