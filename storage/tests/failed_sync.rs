//! A sync that fails and the process that starts after it: the page cache still holds what the disk
//! has not taken, and nothing may be built on that.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::io;
use std::path::PathBuf;

use odradek_storage::disk::Disk;
use odradek_storage::{LogConfig, SimDisk};
use support::{Rig, batch, verify};

#[test]
fn what_a_failed_sync_has_lost_is_not_taken_from_the_cache_by_the_next_process() {
    for seed in 0..20 {
        let disk = SimDisk::new();
        disk.create_dir_all("d".as_ref()).unwrap();
        disk.sync_dir("".as_ref()).unwrap();
        let dir = PathBuf::from("d/t-0");
        let mut rig = Rig::on(disk.shared(), dir, LogConfig::default()).unwrap();
        rig.append(batch(2, 10, 1));
        rig.log.flush_target().sync().unwrap();
        rig.append(batch(3, 10, 1));
        disk.fail_at(disk.steps() + 1, io::ErrorKind::Other);
        assert!(rig.log.flush_target().sync().is_err());
        // The process ends, and another one starts on the same running system.
        rig.reopen();
        assert_eq!(rig.log.next_offset().get(), 2, "seed {seed}");
        rig.append(batch(4, 10, 1));
        rig.log.flush_target().sync().unwrap();
        disk.power_cut(seed);
        rig.reopen();
        assert_eq!(rig.log.next_offset().get(), 6, "seed {seed}");
        assert_eq!(rig.read(0, 1 << 20, 6, true), [(0, 2), (2, 6)]);
        assert_eq!(verify::faults(&disk, &rig.dir), [""; 0]);
    }
}
