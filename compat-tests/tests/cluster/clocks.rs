//! A node whose wall clock is an hour off, ahead or behind: no safety and no liveness rests on wall clocks.
//!
//! The kernel has no wall clock of its own for one process, so the node is started with a library in front of the C
//! library that shifts what `clock_gettime(CLOCK_REALTIME)` and its kin say. That it does is checked by a record that
//! the broker stamps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use compat_tests::batches::BatchSpec;
use compat_tests::cluster::clients::create_topic;
use compat_tests::cluster::stall::{Failure, one_round};
use compat_tests::cluster::{Cluster, Product};
use compat_tests::requests::{MAX_TIMESTAMP, list_offset, produce_ok};

use crate::beside;
use crate::shared::{PATIENCE, now_ms, serves, to_leader};

/// Shifts by `SHIFTED_SECONDS`.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    static long seconds;
    static int known;
    if (!known) {
        const char *text = getenv("SHIFTED_SECONDS");
        seconds = text ? atol(text) : 0;
        known = 1;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return (int)result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"#;

fn library(directory: &Path) -> Result<PathBuf> {
    let source = directory.join("shift.c");
    let library = directory.join("shift.so");
    std::fs::write(&source, SHIFT)?;
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(library)
}

#[test]
fn a_node_whose_clock_is_an_hour_off_takes_part_leads_and_is_followed() -> Result<()> {
    let _beside = beside();
    let home = tempfile::tempdir()?;
    let library = library(home.path())?;
    for hours in [1, -1] {
        let options = Cluster::options(Product::Odradek, 3)
            .environment_of(2, "LD_PRELOAD", library.display())
            .environment_of(2, "SHIFTED_SECONDS", hours * 3_600);
        let mut cluster = options.start()?;
        let configs = [("message.timestamp.type", "LogAppendTime")];
        let topic = create_topic(&cluster.addresses(), "clocks", 3, 3, &configs)?;
        cluster.await_in_sync(PATIENCE)?;
        let mut records = 0;
        let all = cluster.numbers();
        for _ in 0..3 {
            serves(&mut cluster, &all, &topic, 3, &mut records)?;
        }
        // The node whose clock is off leads a partition, and stamps with its own clock.
        let mut stamped = None;
        for partition in 0..3 {
            let (leader, mut wire) = to_leader(&mut cluster, &all, &topic, partition)?;
            let answer = list_offset(&mut wire, &topic, partition, MAX_TIMESTAMP)?;
            let off_by = (answer.timestamp - now_ms()?).abs();
            if leader == 2 {
                stamped = Some(answer.timestamp - now_ms()?);
            } else {
                ensure!(off_by < 120_000, "node {leader} is off by {off_by} ms");
            }
        }
        let stamped = stamped.unwrap_or_default();
        ensure!(
            (stamped - hours * 3_600_000).abs() < 120_000,
            "node 2 stamps {stamped} ms off: its clock is right, or it leads nothing"
        );
        // Whoever's clock is right or wrong: a leader that dies is followed.
        let single = create_topic(&cluster.addresses(), "single", 1, 3, &[])?;
        for _ in 0..3 {
            cluster.await_in_sync(PATIENCE)?;
            let stall = one_round(&mut cluster, &single, Failure::Kill)?;
            ensure!(stall < Duration::from_secs(10), "{stall:?}");
            cluster.make_whole(PATIENCE)?;
        }
        cluster.node(2)?.kill9()?;
        serves(&mut cluster, &[1, 3], &topic, 3, &mut records)?;
        cluster.launch(2)?;
        cluster.await_members(PATIENCE)?;
        cluster.await_in_sync(PATIENCE)?;
        serves(&mut cluster, &all, &topic, 3, &mut records)?;
        let (_, mut wire) = to_leader(&mut cluster, &all, &topic, 0)?;
        produce_ok(
            &mut wire,
            &topic,
            0,
            BatchSpec::small(1, now_ms()?).build()?,
        )?;
    }
    Ok(())
}
