//! Nothing acknowledged is lost: kill −9, power cuts, and disks that fail or fill up.
//!
//! Every test prints its seed; `ODRADEK_SEED` replays it.
#![allow(clippy::unwrap_used, missing_docs)]

use compat_tests::broker::Broker;
use compat_tests::forgetful::{Fault, FaultKind, store::Refusal};
use compat_tests::loss::{create_topic, produce_one, read_back};
use compat_tests::power::{ForgetfulDirectory, Rig, die_repeatedly};

const CUTS: u32 = 50;
const KAFKA_STORAGE_ERROR: i16 = 56;

fn seed() -> u64 {
    std::env::var("ODRADEK_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap())
}

fn show(name: &str, rig: Rig) {
    let summary = die_repeatedly(rig, CUTS, seed()).unwrap();
    eprintln!(
        "{name}: {} records acknowledged, none lost, in {} deaths",
        summary.acknowledged, summary.cuts
    );
}

#[test]
fn kill_9_under_load_loses_nothing_acknowledged() {
    show("kill -9", Rig::kill9().unwrap());
}

#[test]
fn a_power_cut_on_a_forgetful_disk_loses_nothing_acknowledged() {
    show("forgetful disk", Rig::forgetful().unwrap());
}

#[test]
fn a_power_cut_under_ext4_loses_nothing_acknowledged() {
    show("ext4 on a forgetful disk", Rig::ext4().unwrap());
}

/// After `fault`, a produce is refused, stays refused when the disk works again, and a restart
/// finds everything that was acknowledged.
fn a_failing_disk_takes_the_log_directory_offline(fault: Fault) {
    let disk = ForgetfulDirectory::new().unwrap();
    let data = disk.mount().path().join("data");
    let mut broker = Broker::options().data_dir(&data).start().unwrap();
    create_topic(broker.address(), "victim", 1).unwrap();
    let mut wire = broker.connect().unwrap();
    for number in 0..20 {
        let offset = produce_one(&mut wire, "victim", 0, &format!("0/{number}/")).unwrap();
        assert_eq!(offset, Ok(number));
    }
    disk.mount().inject(fault);
    let refused = produce_one(&mut wire, "victim", 0, "0/20/").unwrap();
    assert_eq!(refused, Err(KAFKA_STORAGE_ERROR));
    disk.mount().clear_faults();
    // A failed fsync may have thrown the dirty pages away: a later one that succeeds proves nothing.
    match produce_one(&mut wire, "victim", 0, "0/21/") {
        Ok(answer) => assert_eq!(answer, Err(KAFKA_STORAGE_ERROR)),
        Err(_) => assert!(
            broker.process().exited().unwrap().is_some(),
            "closed but still running"
        ),
    }
    broker.kill9().unwrap();
    broker.start_again().unwrap();
    let log = read_back(broker.address(), "victim", 1).unwrap();
    let values: Vec<&str> = log[&0].iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(
        values[..20],
        (0..20)
            .map(|number| format!("0/{number}/"))
            .collect::<Vec<_>>()
    );
    assert!(
        produce_one(&mut broker.connect().unwrap(), "victim", 0, "0/30/")
            .unwrap()
            .is_ok()
    );
}

#[test]
fn a_failed_fsync_takes_the_log_directory_offline_and_is_never_retried_as_if_it_had_worked() {
    a_failing_disk_takes_the_log_directory_offline(Fault {
        kind: FaultKind::SyncFile,
        path_part: "victim-0".into(),
        skip: 0,
        times: 1,
        refusal: Refusal::Io,
    });
}

#[test]
fn a_failed_write_takes_the_log_directory_offline() {
    a_failing_disk_takes_the_log_directory_offline(Fault {
        kind: FaultKind::Write,
        path_part: "victim-0".into(),
        skip: 0,
        times: 1,
        refusal: Refusal::Io,
    });
}

#[test]
fn a_full_disk_loses_nothing_acknowledged_and_the_broker_starts_again_once_there_is_room() {
    let disk = ForgetfulDirectory::new().unwrap();
    disk.mount().set_capacity(24 << 20);
    let data = disk.mount().path().join("data");
    let mut broker = Broker::options().data_dir(&data).start().unwrap();
    create_topic(broker.address(), "filling", 1).unwrap();
    let mut wire = broker.connect().unwrap();
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for number in 0..200 {
        let value = format!("0/{number}/{}", "x".repeat(256 * 1024));
        match produce_one(&mut wire, "filling", 0, &value) {
            Ok(Ok(offset)) => acknowledged.push((offset, value)),
            Ok(Err(_)) => refused += 1,
            Err(_) => break,
        }
        if refused > 3 {
            break;
        }
    }
    assert!(
        !acknowledged.is_empty() && acknowledged.len() < 100,
        "{} acknowledged",
        acknowledged.len()
    );
    disk.mount().set_capacity(1 << 30);
    broker.kill9().unwrap();
    broker.start_again().unwrap();
    let log = read_back(broker.address(), "filling", 1).unwrap();
    assert_eq!(log[&0][..acknowledged.len()], acknowledged);
    assert!(
        produce_one(&mut broker.connect().unwrap(), "filling", 0, "0/900/")
            .unwrap()
            .is_ok()
    );
}
