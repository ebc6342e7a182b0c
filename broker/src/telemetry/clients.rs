//! The client instances that were heard of: what each may do next.
//!
//! A pure core: `(request, now) → answer`, with Kafka's rules. A client asks once what it is to push, pushes at
//! its interval, and asks again once it is told that its subscription is another. It may ask again before its
//! interval is up only after such a refusal, and push before it is up only right after it has asked: it spreads
//! its first push over the interval by itself. After a push that says that it is the last one, none is taken.
//!
//! A client whose connection has ended is as good as new, and so is one that was silent for three intervals and
//! a minute at least. What it pushed is shown until it has been silent for as long.
//!
//! Invariants: there are at most `most_clients` clients and `most_series` series; the client heard of longest
//! ago goes for a new one, and a series that does not fit is left out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;
use std::time::{Duration, Instant};

use odradek_protocol::codec::Uuid;
use odradek_protocol::error_code::ErrorCode;

use super::otlp::{MAX_TEXT_BYTES, Sample};
use super::series::{self, Page, Series};
use super::subscriptions::{ClientFacts, Subscriptions, Wanted};
use crate::context::ConnectionInfo;

/// A client that is silent for less than this is not forgotten.
const MIN_MEMORY: Duration = Duration::from_secs(60);
/// How many of its intervals a client is remembered for.
const INTERVALS_REMEMBERED: u32 = 3;

/// Why a client is not told its subscription, or why its push is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not say which client it is.
    #[error("no client instance id")]
    NoInstanceId,
    /// It has said that its push before was its last.
    #[error("pushed after the last push")]
    Terminated,
    /// Its interval is not up.
    #[error("before the interval is up")]
    TooEarly,
    /// Its subscription is another, or it has never asked for it.
    #[error("of a subscription that is not the client's")]
    UnknownSubscription,
    /// No such codec.
    #[error("compressed in an unknown way")]
    UnsupportedCompression,
    /// More than `telemetry.max.bytes`, as it comes.
    #[error("too large")]
    TooLarge,
    /// More than `telemetry.max.bytes` once it is expanded, or no metrics at all.
    #[error("no metrics")]
    Undecodable,
}

impl Refusal {
    /// The code that says it on the wire.
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::NoInstanceId | Self::Terminated => ErrorCode::InvalidRequest,
            Self::TooEarly => ErrorCode::ThrottlingQuotaExceeded,
            Self::UnknownSubscription => ErrorCode::UnknownSubscriptionId,
            Self::UnsupportedCompression => ErrorCode::UnsupportedCompressionType,
            Self::TooLarge => ErrorCode::TelemetryTooLarge,
            Self::Undecodable => ErrorCode::InvalidRecord,
        }
    }

    /// What metrics call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoInstanceId => "no_instance_id",
            Self::Terminated => "terminated",
            Self::TooEarly => "too_early",
            Self::UnknownSubscription => "unknown_subscription",
            Self::UnsupportedCompression => "unsupported_compression",
            Self::TooLarge => "too_large",
            Self::Undecodable => "undecodable",
        }
    }
}

/// Who sends a request.
#[derive(Debug)]
pub struct Sender {
    /// What it can be told by.
    pub facts: ClientFacts,
    /// Its connection.
    pub connection: Weak<ConnectionInfo>,
}

/// What a push says besides metrics.
#[derive(Debug, Clone, Copy)]
pub struct PushHead {
    /// Who pushes.
    pub client_instance_id: Uuid,
    /// Of which subscription.
    pub subscription_id: i32,
    /// Whether it is the last one.
    pub is_last: bool,
    /// Whether the codec is known.
    pub is_codec_known: bool,
    /// Length of the metrics as they come.
    pub bytes: usize,
}

/// Bounds of what is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// `odradek.telemetry.max.clients`.
    pub most_clients: usize,
    /// `odradek.telemetry.max.series`.
    pub most_series: usize,
    /// `odradek.telemetry.client.max.series`.
    pub most_series_of_a_client: usize,
}

#[derive(Debug)]
struct Client {
    facts: ClientFacts,
    wanted: Wanted,
    version: u64,
    connection: Weak<ConnectionInfo>,
    asked_at: Option<Instant>,
    pushed_at: Option<Instant>,
    has_ended: bool,
    last_refusal: Option<Refusal>,
    heard_at: Instant,
    /// Its place in the order in which clients were heard of.
    turn: u64,
    series: Series,
    /// Its own labels, in Prometheus's text.
    labels: String,
}

impl Client {
    fn interval(&self) -> Duration {
        Duration::from_millis(self.wanted.interval_ms.into())
    }

    fn memory(&self) -> Duration {
        MIN_MEMORY.max(self.interval() * INTERVALS_REMEMBERED)
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard_at) >= self.memory()
    }

    fn is_due(&self, last: Option<Instant>, now: Instant) -> bool {
        last.is_none_or(|last| now.saturating_duration_since(last) >= self.interval())
    }

    fn ask(&mut self, now: Instant) -> Result<(), Refusal> {
        if self.is_due(self.asked_at.max(self.pushed_at), now) {
            self.asked_at = Some(now);
        } else if !matches!(
            self.last_refusal,
            Some(Refusal::UnknownSubscription | Refusal::UnsupportedCompression)
        ) {
            return Err(Refusal::TooEarly);
        }
        self.last_refusal = None;
        Ok(())
    }

    fn push(&mut self, push: &PushHead, now: Instant, max_bytes: usize) -> Result<(), Refusal> {
        if self.has_ended {
            return Err(Refusal::Terminated);
        }
        if self.asked_at > self.pushed_at || self.is_due(self.pushed_at, now) {
            self.pushed_at = Some(now);
        } else if !push.is_last {
            return Err(Refusal::TooEarly);
        }
        if push.subscription_id != self.wanted.subscription_id {
            return Err(Refusal::UnknownSubscription);
        }
        if !push.is_codec_known {
            return Err(Refusal::UnsupportedCompression);
        }
        if push.bytes > max_bytes {
            return Err(Refusal::TooLarge);
        }
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub struct Clients {
    bounds: Bounds,
    by_id: HashMap<Uuid, Client>,
    /// Who was heard of when, the longest ago first.
    turns: BTreeMap<u64, Uuid>,
    next_turn: u64,
    series: usize,
}

impl Clients {
    /// Nobody yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            by_id: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            series: 0,
        }
    }

    /// Whether a client of this id was heard of.
    pub fn knows(&self, id: Uuid) -> bool {
        self.by_id.contains_key(&id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// How many series there are.
    pub fn series(&self) -> usize {
        self.series
    }

    /// The client `id` asks what it is to push.
    ///
    /// # Errors
    /// If it asks too early.
    pub fn ask(
        &mut self,
        id: Uuid,
        sender: Sender,
        subscriptions: &Subscriptions,
        now: Instant,
    ) -> Result<Wanted, Refusal> {
        let client = self.heard_of(id, sender, subscriptions, now);
        client.ask(now)?;
        Ok(client.wanted.clone())
    }

    /// A client pushes. Its metrics are looked at only if this takes the push.
    ///
    /// # Errors
    /// Why the push is not taken.
    pub fn push(
        &mut self,
        push: &PushHead,
        sender: Sender,
        subscriptions: &Subscriptions,
        now: Instant,
        max_bytes: usize,
    ) -> Result<(), Refusal> {
        if is_reserved(push.client_instance_id) {
            return Err(Refusal::NoInstanceId);
        }
        let client = self.heard_of(push.client_instance_id, sender, subscriptions, now);
        let verdict = client.push(push, now, max_bytes);
        client.has_ended = push.is_last;
        client.last_refusal = verdict.err();
        verdict
    }

    /// The metrics of a push that was taken were none.
    pub fn was_undecodable(&mut self, id: Uuid) {
        if let Some(client) = self.by_id.get_mut(&id) {
            client.last_refusal = Some(Refusal::Undecodable);
        }
    }

    /// Takes the samples of a push that was taken; returns how many were left out.
    pub fn take(&mut self, id: Uuid, samples: &[Sample], now: Instant) -> u64 {
        let Some(client) = self.by_id.get_mut(&id) else {
            return samples.len() as u64;
        };
        let before = client.series.len();
        let free = self.bounds.most_series.saturating_sub(self.series);
        let most = self.bounds.most_series_of_a_client.min(before + free);
        let left_out = samples
            .iter()
            .filter(|sample| !client.series.take(sample, now, most))
            .count();
        self.series += client.series.len() - before;
        left_out as u64
    }

    /// Forgets clients, and series of others, that have been silent for long enough.
    pub fn forget_silent(&mut self, now: Instant) {
        for client in self.by_id.values_mut() {
            if let Some(since) = now.checked_sub(client.memory()) {
                client.series.forget_before(since);
            }
        }
        let turns = &mut self.turns;
        self.by_id.retain(|_, client| {
            let stays = !client.is_forgotten(now);
            if !stays {
                turns.remove(&client.turn);
            }
            stays
        });
        self.series = self.by_id.values().map(|client| client.series.len()).sum();
    }

    /// The series of all clients, in Prometheus's text.
    pub fn page(&self) -> String {
        let mut page = Page::default();
        for client in self.turns.values().filter_map(|id| self.by_id.get(id)) {
            page.add(&client.labels, &client.series);
        }
        let mut text = String::new();
        page.write(&mut text);
        text
    }

    fn heard_of(
        &mut self,
        id: Uuid,
        sender: Sender,
        subscriptions: &Subscriptions,
        now: Instant,
    ) -> &mut Client {
        let turn = self.next_turn;
        self.next_turn += 1;
        let known = self.by_id.remove(&id);
        if let Some(client) = &known {
            self.turns.remove(&client.turn);
        } else if self.by_id.len() >= self.bounds.most_clients
            && let Some((_, oldest)) = self.turns.pop_first()
            && let Some(oldest) = self.by_id.remove(&oldest)
        {
            self.series -= oldest.series.len();
        }
        self.turns.insert(turn, id);
        let client = match known {
            Some(client)
                if client.version == subscriptions.version()
                    && client.connection.strong_count() > 0
                    && !client.is_forgotten(now) =>
            {
                client
            }
            // As good as new, but for what it has pushed.
            known => {
                let is_there = |client: &Client| client.connection.strong_count() > 0;
                let (facts, series) = match known {
                    Some(client) if is_there(&client) => (client.facts, client.series),
                    Some(client) => (sender.facts, client.series),
                    None => (sender.facts, Series::default()),
                };
                Client {
                    wanted: subscriptions.wanted(id, &facts),
                    version: subscriptions.version(),
                    labels: labels(&facts),
                    facts,
                    connection: sender.connection,
                    asked_at: None,
                    pushed_at: None,
                    has_ended: false,
                    last_refusal: None,
                    heard_at: now,
                    turn,
                    series,
                }
            }
        };
        let client = self.by_id.entry(id).insert_entry(client).into_mut();
        client.heard_at = now;
        client.turn = turn;
        client
    }
}

/// Ids that no client has: that of nobody, and that of Kafka's metadata log.
pub fn is_reserved(id: Uuid) -> bool {
    let [zeros @ .., last] = id.to_bytes();
    zeros == [0; 15] && last <= 1
}

fn labels(facts: &ClientFacts) -> String {
    let client_id = facts.client_id.as_deref().unwrap_or_default();
    let mut end = client_id.len().min(MAX_TEXT_BYTES);
    while !client_id.is_char_boundary(end) {
        end -= 1;
    }
    let client_id = client_id.get(..end).unwrap_or_default();
    format!(
        "{},{}",
        series::label(series::CLIENT_ID, client_id),
        series::label(series::CLIENT_INSTANCE_ID, &facts.instance_id)
    )
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
