//! Plays sessions to Odradek and to Kafka until enough requests have been compared, and cuts down those that differ.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use super::play::Player;
use super::tolerated::{Verdict, judge};
use super::{Asked, Session, apis_without_choices};
use crate::server::kafka_instead;
use crate::transcript::served_versions;
use crate::tree::{Difference, Node};

/// Requests of a session.
const SESSION_LENGTH: usize = 40;
/// After so many kinds of differences there is enough to look at.
const MOST_KINDS: usize = 40;

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of the first session; the next ones have the numbers behind it.
    pub seed: u64,
    /// How many requests are compared at least.
    pub requests: u64,
    /// Sessions at a time.
    pub at_a_time: usize,
    /// No session is begun later than this.
    pub until: Option<Instant>,
}

/// What has been done.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How often each API was compared at each version.
    pub compared: BTreeMap<(String, i16), u64>,
    /// Kinds of differences: what they are, and a session cut down to the requests that it takes.
    pub kinds: BTreeMap<String, String>,
    /// Sessions that were not played to their end because the two had parted as is known.
    pub parted: u64,
}

impl Outcome {
    /// How many requests were compared.
    pub fn requests(&self) -> u64 {
        self.compared.values().sum()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let apis: std::collections::BTreeSet<&str> =
            self.compared.keys().map(|(api, _)| api.as_str()).collect();
        write!(
            f,
            "{} requests of {} APIs at {} versions compared, {} sessions parted, {} kinds of differences",
            self.requests(),
            apis.len(),
            self.compared.len(),
            self.parted,
            self.kinds.len()
        )
    }
}

/// What a difference is told by. Long numbers are another time's.
fn kind_of(asked: &Asked, difference: &Difference) -> String {
    let short = |text: &str| {
        let text: String = text.chars().take(60).collect();
        let mut shown = String::new();
        for part in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
            let is_long = digits.len() > 4 && digits.contains(|c: char| c.is_ascii_digit());
            shown.push_str(if is_long { "#" } else { digits });
            shown.push_str(&part[digits.len()..]);
        }
        shown
    };
    format!(
        "{} {}: odradek {} kafka {}",
        asked.api,
        difference.pattern(),
        short(&difference.left),
        short(&difference.right)
    )
}

/// One player for each of the two.
struct Pair<'a> {
    ours: Player,
    kafka: Player,
    /// Draws a number for each world.
    worlds: &'a AtomicU64,
}

/// Both transcripts.
type Answers = (Vec<Node>, Vec<Node>);

impl Pair<'_> {
    fn play(&mut self, steps: &[Asked]) -> Result<Answers> {
        let prefix = format!("s{}-", self.worlds.fetch_add(1, Ordering::Relaxed));
        let (ours, kafka) = std::thread::scope(|scope| {
            let kafka = scope.spawn(|| self.kafka.play(&prefix, steps));
            (self.ours.play(&prefix, steps), kafka.join())
        });
        let kafka = kafka.map_err(|_| anyhow!("a player panicked"))?;
        Ok((
            ours.context("while Odradek was asked")?,
            kafka.context("while Kafka was asked")?,
        ))
    }

    /// Whether the last of these requests is answered differently, in this way.
    fn differs(&mut self, steps: &[Asked], kind: &str) -> Result<bool> {
        let (ours, kafka) = self.play(steps)?;
        let last = steps.last().context("no requests")?;
        Ok(match (ours.last(), kafka.last()) {
            (Some(ours), Some(kafka)) => matches!(
                judge(last, ours, kafka),
                Verdict::Different(differences)
                    if differences.iter().any(|one| kind_of(last, one) == kind)
            ),
            _ => false,
        })
    }

    /// The fewest requests that still differ in this way at the last one.
    fn cut_down(&mut self, steps: &[Asked], kind: &str) -> Result<Vec<Asked>> {
        let mut steps = steps.to_vec();
        let mut width = steps.len() / 2;
        while width > 0 {
            let mut at = 0;
            while at + width < steps.len() {
                let mut fewer = steps.clone();
                fewer.drain(at..at + width);
                match self.differs(&fewer, kind)? {
                    true => steps = fewer,
                    false => at += width,
                }
            }
            width /= 2;
        }
        for at in (0..steps.len()).rev() {
            let mut item = 0;
            while let Some(smaller) = without_item(&steps[at], item) {
                let mut fewer = steps.clone();
                fewer[at] = smaller;
                match self.differs(&fewer, kind)? {
                    true => steps = fewer,
                    false => item += 1,
                }
            }
        }
        Ok(steps)
    }
}

/// A request without the item of this number, counted through all its lists.
fn without_item(asked: &Asked, number: usize) -> Option<Asked> {
    let mut smaller = asked.clone();
    let (mut seen, mut done) = (0, false);
    smaller.message.visit(&mut |_, node| {
        if let Node::List(items) = node
            && !done
        {
            if number < seen + items.len() {
                items.remove(number - seen);
                done = true;
            } else {
                seen += items.len();
            }
        }
    });
    done.then_some(smaller)
}

/// Plays sessions to both servers.
pub fn compare_at_random(plan: Plan, ours: SocketAddr, kafka: SocketAddr) -> Result<Outcome> {
    let served = served_versions(ours)?;
    let missing = apis_without_choices(&served);
    ensure!(
        missing.is_empty(),
        "no requests are made up for {missing:?}"
    );
    let (next, worlds) = (AtomicU64::new(0), AtomicU64::new(0));
    let outcome = Mutex::new(Outcome::default());
    let locked = || outcome.lock().map_err(|_| anyhow!("a worker panicked"));
    let work = |worker: usize| -> Result<()> {
        let canary = format!("__canary-{worker}");
        let mut pair = Pair {
            ours: Player::new(ours, kafka_instead(), &canary)?,
            kafka: Player::new(kafka, true, &format!("{canary}-k"))?,
            worlds: &worlds,
        };
        loop {
            {
                let so_far = locked()?;
                let is_over = plan.until.is_some_and(|until| Instant::now() >= until);
                let is_done = so_far.requests() >= plan.requests;
                if is_done || is_over || so_far.kinds.len() >= MOST_KINDS {
                    return Ok(());
                }
            }
            let seed = plan.seed.wrapping_add(next.fetch_add(1, Ordering::Relaxed));
            let session = Session::new(seed, &served, SESSION_LENGTH)?;
            let told = format!("ODRADEK_SEED={seed}");
            let answers = pair.play(&session.steps).with_context(|| told.clone())?;
            let found = count(&session, &answers, &mut *locked()?);
            if let Some((at, differences)) = found {
                let last = &session.steps[at];
                let Some(kind) = differences.first().map(|one| kind_of(last, one)) else {
                    continue;
                };
                if locked()?.kinds.contains_key(&kind) {
                    continue;
                }
                locked()?.kinds.insert(kind.clone(), String::new());
                let fewer = pair
                    .cut_down(&session.steps[..=at], &kind)
                    .with_context(|| told.clone())?;
                // What differs in one world only, by the numbers of its names, is told as it was seen.
                let (ours, kafka) = match fewer.len() == at + 1 {
                    true => answers,
                    false => pair.play(&fewer).with_context(|| told.clone())?,
                };
                let report = report(&told, &fewer, &ours, &kafka);
                eprintln!("{kind}\n{report}");
                locked()?.kinds.insert(kind, report);
            }
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..plan.at_a_time.max(1))
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    outcome
        .into_inner()
        .map_err(|_| anyhow!("a worker panicked"))
}

/// Counts what was compared; the first request whose answers differ.
fn count(
    session: &Session,
    (ours, kafka): &Answers,
    outcome: &mut Outcome,
) -> Option<(usize, Vec<Difference>)> {
    for (at, (asked, (ours, kafka))) in session.steps.iter().zip(ours.iter().zip(kafka)).enumerate()
    {
        let row = (asked.api.clone(), asked.version);
        *outcome.compared.entry(row).or_default() += 1;
        match judge(asked, ours, kafka) {
            Verdict::Equal => {}
            Verdict::Parted => {
                outcome.parted += 1;
                return None;
            }
            Verdict::Different(differences) => return Some((at, differences)),
        }
    }
    None
}

/// The requests, and what differs in the answers to the last one.
fn report(told: &str, steps: &[Asked], ours: &[Node], kafka: &[Node]) -> String {
    let mut text = format!("  {told}\n");
    for (at, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "  {}. {step}", at + 1);
        let answers = ours.get(at).zip(kafka.get(at));
        if at + 1 < steps.len()
            && let Some((ours, _)) = answers
        {
            let _ = writeln!(text, "     both {ours}");
        } else if let Some((ours, kafka)) = answers {
            let _ = writeln!(text, "     odradek {ours}\n     kafka   {kafka}");
        }
    }
    text
}
