//! Random requests, well formed and within bounds, for a broker and for Kafka beside it.
//!
//! A [`Session`] is a sequence of requests over all advertised APIs and versions, made up from a seed and from Kafka's
//! own message definitions ([`choices`]). It is played to both in the same order, over one connection each, in a small
//! world that both have alike ([`world`]): topics, groups and producers that are there, and names that are not. What a
//! server chooses (ids of topics, members and producers, epochs) is written into requests as a symbol, and answers are
//! turned back into symbols before they are compared ([`side`], [`play`]). A session that ends in a difference is cut
//! down to the requests that it takes ([`run`]); what differs on purpose is listed with its reason ([`tolerated`]).
//!
//! Invariants: a seed gives the same session anywhere, as long as the APIs that are served are the same; a session uses
//! names of its own, so that several can run at a time and leave each other alone; no request waits for anything but
//! a moment, since what happens first would then decide what is answered.
//!
//! Absent on purpose: members that wait for each other, and everything else that is decided by a clock; changes that
//! reach beyond a session's names (features, voters, settings of brokers) are asked for only where they are refused.

pub mod choices;
pub mod fixing;
pub mod play;
pub mod run;
pub mod side;
pub mod tolerated;
pub mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result, anyhow};
use kafka_protocol::messages::ApiKey;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::schema::Schema;
use crate::transcript::Served;
use crate::tree::Node;
use choices::Choices;
use world::{Remembered, WEIGHTS};

/// One request, with symbols in the place of what only a server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The API, as Kafka spells it.
    pub api: String,
    /// Its version.
    pub version: i16,
    /// The message.
    pub message: Node,
    /// How much of the body is sent, in thousandths, if not all of it.
    pub cut: Option<u16>,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{} {}", self.api, self.version, self.message)?;
        match self.cut {
            Some(thousandths) => write!(f, " cut off after {thousandths}/1000"),
            None => Ok(()),
        }
    }
}

/// Requests in their order.
#[derive(Clone, Debug)]
pub struct Session {
    /// What it was made from.
    pub seed: u64,
    /// The requests.
    pub steps: Vec<Asked>,
}

impl Session {
    /// A session of `length` requests of the APIs and versions that are `served`.
    pub fn new(seed: u64, served: &Served, length: usize) -> Result<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut remembered = Remembered::default();
        let apis: Vec<(&str, u32, (i16, i16))> = WEIGHTS
            .iter()
            .filter_map(|&(api, weight)| Some((api, weight, *served.get(&key_of(api)?)?)))
            .collect();
        let total: u32 = apis.iter().map(|(_, weight, _)| weight).sum();
        let mut steps = Vec::with_capacity(length);
        while steps.len() < length {
            let mut drawn = rng.random_range(0..total);
            let chosen = apis.iter().find(|(_, weight, _)| {
                let here = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                here
            });
            let &(api, _, (min, max)) = chosen.context("nothing is served")?;
            let schema = &messages(api)?.request;
            let version = rng.random_range(min..=max);
            // Versions that are listed for old clients' sake and have no shape.
            if !schema.is_valid(version) {
                continue;
            }
            let mut choices = Choices::new(&mut rng, &mut remembered, api, version);
            let mut message = schema.make(version, &mut choices);
            let cut = choices.cut();
            fixing::fix(api, version, &mut message);
            if cut.is_none() {
                remembered.note(api, version, &message);
            }
            steps.push(Asked {
                api: api.to_owned(),
                version,
                message,
                cut,
            });
        }
        Ok(Self { seed, steps })
    }
}

/// What is served and never made up, although it ought to be.
pub fn apis_without_choices(served: &Served) -> Vec<String> {
    served
        .keys()
        .filter(|key| !WEIGHTS.iter().any(|(api, _)| key_of(api) == Some(**key)))
        .map(|key| {
            ApiKey::try_from(*key).map_or_else(|()| key.to_string(), |key| format!("{key:?}"))
        })
        .collect()
}

fn key_of(api: &str) -> Option<i16> {
    messages(api).ok().map(|both| both.request.api_key())
}

/// The definitions of an API's request and answer.
#[derive(Debug)]
pub struct Messages {
    /// The request.
    pub request: Schema,
    /// Its answer.
    pub response: Schema,
}

/// Kafka's definitions of an API, read once.
pub fn messages(api: &str) -> Result<Arc<Messages>> {
    static READ: OnceLock<Mutex<BTreeMap<String, Arc<Messages>>>> = OnceLock::new();
    let mut read = READ
        .get_or_init(Mutex::default)
        .lock()
        .map_err(|_| anyhow!("a reader of definitions panicked"))?;
    if let Some(known) = read.get(api) {
        return Ok(known.clone());
    }
    let both = Arc::new(Messages {
        request: Schema::request(api)?,
        response: Schema::response(api)?,
    });
    read.insert(api.to_owned(), both.clone());
    Ok(both)
}
