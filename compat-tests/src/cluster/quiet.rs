//! How much of the machine others had while something was timed.
//!
//! A bound on a time says something about the broker only if the broker had a processor when it needed one. Processor
//! time that was used on the machine and neither by this process, nor by what it started, was others'.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Cluster;

/// More of a core than this, used by others, disturbs.
const DISTURBING_CORES: f64 = 0.4;
/// Length of a tick of the counters in `/proc`.
const TICK: Duration = Duration::from_millis(10);

/// Counters of processor time at one moment.
pub struct Watch {
    begun: Instant,
    busy: Duration,
    ours: Duration,
}

impl Watch {
    /// Counts from now on.
    pub fn begin(cluster: &mut Cluster) -> Result<Self> {
        Ok(Self {
            begun: Instant::now(),
            busy: busy()?,
            ours: ours(cluster)?,
        })
    }

    /// Cores that others kept busy since then, on average.
    pub fn cores_of_others(&self, cluster: &mut Cluster) -> Result<f64> {
        let busy = busy()?.saturating_sub(self.busy);
        let ours = ours(cluster)?.saturating_sub(self.ours);
        Ok(busy.saturating_sub(ours).as_secs_f64() / self.begun.elapsed().as_secs_f64())
    }

    /// Whether others had so little of the machine since then that a time means something.
    pub fn was_quiet(&self, cluster: &mut Cluster) -> Result<bool> {
        Ok(self.cores_of_others(cluster)? <= DISTURBING_CORES)
    }
}

/// What all processors of the machine did besides waiting.
fn busy() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    busy_in(&stat).context("/proc/stat")
}

/// Everything in the first line but idle time, waiting for a disk, and guests' time, which is counted as user's.
fn busy_in(stat: &str) -> Option<Duration> {
    let fields: Vec<u32> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let of = |index: usize| fields.get(index).copied().unwrap_or(0);
    Some(TICK * [0, 1, 2, 5, 6, 7].into_iter().map(of).sum())
}

/// This process, the children that have ended, and the nodes that run.
fn ours(cluster: &mut Cluster) -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let mut sum = own_in(&stat).context("/proc/self/stat")?;
    for number in cluster.running()? {
        // One that ends at this moment is counted next time, with the children.
        sum += cluster
            .node(number)?
            .process()?
            .cpu_time()
            .unwrap_or_default();
    }
    Ok(sum)
}

fn own_in(stat: &str) -> Option<Duration> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // utime, stime, cutime and cstime: fields 14 to 17 of the whole line, counted from 1.
    let ticks: Option<u32> = (11..15)
        .map(|index| fields.get(index)?.parse::<u32>().ok())
        .sum();
    Some(TICK * ticks?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_and_guests_are_no_work() {
        let stat = "cpu  100 20 30 99999 888 1 2 3 50 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_in(stat), Some(Duration::from_millis(1_560)));
        assert_eq!(busy_in("intr 1 2"), None);
    }

    #[test]
    fn ended_children_count_as_ours() {
        let stat = "1 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 10 20 30 40 20 0 1 0 5 5";
        assert_eq!(own_in(stat), Some(Duration::from_secs(1)));
        assert_eq!(own_in("1 (a"), None);
    }
}
