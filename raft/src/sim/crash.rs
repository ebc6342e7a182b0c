//! One voter whose disk stops at every step of a workload in turn.
//!
//! The workload makes a group, fills some segments, moves the log start, closes and opens again.
//! Whatever the step, afterwards: what was acknowledged is there, at its offset; the log goes on
//! behind it in a new term; and that holds as well if the power fails again during recovery.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use odradek_protocol::ids::Offset;
use odradek_storage::SimDisk;
use parking_lot::Mutex;

use super::{batches, open_group, produce, propose, simulate, start_node};
use crate::network::NoNetwork;
use crate::{AppendOutcome, Group, RaftNode};

type Acknowledged = Arc<Mutex<BTreeMap<u64, AppendOutcome>>>;

async fn start(disk: &SimDisk) -> Option<(Arc<RaftNode>, Arc<Group>)> {
    let node = start_node(1, disk, Arc::new(NoNetwork)).ok()?;
    let group = open_group(&node, &[1]).await.ok()?;
    let ready = tokio::time::timeout(Duration::from_secs(5), group.wait_until_ready());
    matches!(ready.await, Ok(Ok(_))).then_some((node, group))
}

/// Appends bursts until the disk stops; returns whether it has not.
async fn fill(group: &Arc<Group>, first_id: u64, acknowledged: &Acknowledged) -> bool {
    for burst in 0..6 {
        let mut waiting = Vec::new();
        for id in first_id + burst * 4..first_id + burst * 4 + 4 {
            if let Ok((_, committed)) = propose(group, id) {
                waiting.push((id, committed));
            }
        }
        for (id, committed) in waiting {
            let answer = tokio::time::timeout(Duration::from_secs(5), committed).await;
            match answer.expect("a batch was neither committed nor given up") {
                Ok(Ok(outcome)) => acknowledged.lock().insert(id, outcome),
                Ok(Err(_)) | Err(_) => return false,
            };
        }
    }
    true
}

/// Everything that is done to the disk. Stops where the disk does.
async fn workload(disk: &SimDisk, acknowledged: &Acknowledged) {
    for round in 0..2u64 {
        let Some((node, group)) = start(disk).await else {
            return;
        };
        if fill(&group, round * 100 + 1, acknowledged).await {
            let high_watermark = group.offsets().high_watermark.offset();
            let target = Offset::new(high_watermark.get() / 2);
            let advanced =
                tokio::time::timeout(Duration::from_secs(5), group.advance_log_start(target));
            let _ = advanced.await;
            // Time for the housekeeper.
            tokio::time::sleep(Duration::from_millis(200)).await;
            fill(&group, round * 100 + 50, acknowledged).await;
            // Fails when the disk has stopped, which is not of interest here.
            let _ = node.shutdown().await;
        }
        node.abandon().await;
        if group.offline_cause().is_some() {
            return;
        }
    }
}

async fn check(disk: &SimDisk, acknowledged: &Acknowledged, what: &str) {
    let (node, group) = start(disk)
        .await
        .unwrap_or_else(|| panic!("{what}: the group does not come back"));
    let offsets = group.offsets();
    let from = offsets.log_start.offset();
    let found = batches(&group, from, offsets.high_watermark.offset());
    assert_eq!(
        offsets.high_watermark.get(),
        offsets.log_end.get(),
        "{what}"
    );
    let mut end = 0;
    for (id, outcome) in acknowledged.lock().iter() {
        end = end.max(outcome.last_offset.get() + 1);
        if outcome.base_offset < from {
            continue;
        }
        let at = found.get(&outcome.base_offset.get()).map(|(id, _)| id);
        assert_eq!(
            at,
            Some(id),
            "{what}: acknowledged at {}",
            outcome.base_offset
        );
    }
    assert!(offsets.log_end.get() >= end, "{what}: the log has shrunk");
    let outcome = produce(&group, 999).await.unwrap();
    assert!(
        outcome.base_offset.get() >= end,
        "{what}: an offset was reused"
    );
    node.abandon().await;
}

/// Steps that the workload takes when nothing goes wrong.
fn steps() -> u64 {
    let disk = SimDisk::new();
    let acknowledged = Acknowledged::default();
    simulate(1, workload(&disk, &acknowledged));
    assert_eq!(acknowledged.lock().len(), 96);
    disk.steps()
}

/// A group that cannot open its files has not lost them: what was proposed meanwhile is committed
/// once there are descriptors again, and nothing goes offline.
#[test]
fn batches_that_find_no_descriptor_wait_for_one() {
    simulate(1, async {
        let disk = SimDisk::new();
        let (node, group) = start(&disk).await.expect("starts");
        let acknowledged = Acknowledged::default();
        for round in 0..5 {
            assert!(fill(&group, 1 + round * 100, &acknowledged).await);
            // As an idle partition's files are closed.
            group.release_idle_files();
            group.release_idle_files();
            disk.set_openings_left(Some(0));
            let (_, mut committed) = propose(&group, 50 + round * 100).expect("taken");
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(committed.try_recv().is_err(), "nothing can be written yet");
            assert_eq!(group.offline_cause(), None);
            disk.set_openings_left(None);
            let outcome = committed.await.expect("answered").expect("committed");
            acknowledged.lock().insert(50 + round * 100, outcome);
        }
        // One that stops does not wait for ever.
        group.release_idle_files();
        group.release_idle_files();
        disk.set_openings_left(Some(0));
        let (_, committed) = propose(&group, 999).expect("taken");
        node.abandon().await;
        assert!(!matches!(committed.await, Ok(Ok(_))));
        disk.set_openings_left(None);
        check(&disk, &acknowledged, "without descriptors").await;
    });
}

#[test]
fn a_power_cut_after_any_step_loses_nothing_acknowledged() {
    let steps = steps();
    assert!(steps > 150, "{steps} steps");
    for step in 1..=steps {
        let disk = SimDisk::new();
        let acknowledged = Acknowledged::default();
        simulate(step, async {
            disk.stop_at(step);
            workload(&disk, &acknowledged).await;
            disk.power_cut(step);
            // And once more, somewhere in the recovery.
            disk.stop_at(disk.steps() + 1 + step % 40);
            if let Some((node, _)) = start(&disk).await {
                node.abandon().await;
            }
            disk.power_cut(step + 1);
            check(&disk, &acknowledged, &format!("step {step}")).await;
        });
    }
}

#[test]
fn a_failing_disk_is_never_acknowledged_against() {
    let steps = steps();
    for step in 1..=steps {
        let disk = SimDisk::new();
        let acknowledged = Acknowledged::default();
        simulate(step, async {
            disk.fail_at(step, io::ErrorKind::Other);
            workload(&disk, &acknowledged).await;
            disk.power_cut(step);
            check(&disk, &acknowledged, &format!("failure in step {step}")).await;
        });
    }
}

/// After a failure of the disk the process alone starts again, so that the page cache still shows
/// what the disk has not taken. Nothing that is acknowledged from then on may rest on that.
#[test]
fn a_process_that_starts_after_a_failed_write_builds_on_what_the_disk_has() {
    let steps = steps();
    for step in 1..=steps {
        let disk = SimDisk::new();
        let acknowledged = Acknowledged::default();
        let what = format!("failure in step {step}");
        simulate(step, async {
            disk.fail_at(step, io::ErrorKind::Other);
            workload(&disk, &acknowledged).await;
            let (node, group) = start(&disk)
                .await
                .unwrap_or_else(|| panic!("{what}: the group does not come back"));
            assert!(fill(&group, 500, &acknowledged).await, "{what}");
            node.abandon().await;
            disk.power_cut(step);
            check(&disk, &acknowledged, &what).await;
        });
    }
}
