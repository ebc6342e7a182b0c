//! A script played to a server, and every answer written down.
//!
//! Ids, ports and times that differ from server to server are replaced by stand-ins as an answer is written down.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::{Buf, BytesMut};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, FetchResponse};
use kafka_protocol::protocol::Request;

use crate::requests::{Topic, batches_of};
use crate::schema::Schema;
use crate::tree::Node;
use crate::wire::{Wire, WireError, text};

/// Fields that never agree between two servers, wherever they stand: what is written in their place.
const STAND_INS: &[(&str, &str)] = &[
    ("port", "<port>"),
    ("cluster_id", "<cluster>"),
    ("topic_id", "<topic id>"),
    ("producer_id", "<producer id>"),
    ("member_id", "<member>"),
    ("leader", "<member or node>"),
    // Kafka counts leaders of a partition from 0, Odradek has Raft's terms, which begin at 1.
    ("leader_epoch", "<epoch>"),
    ("committed_leader_epoch", "<epoch>"),
    ("epoch", "<epoch>"),
    // The words are each broker's own; that there are some is compared.
    ("error_message", "<words>"),
    ("batch_index_error_message", "<words>"),
];

/// Answers that take longer are mentioned in the test's output.
const SLOW: Duration = Duration::from_secs(1);

/// One answer of a transcript.
#[derive(Clone, Debug)]
pub struct Step {
    /// What was asked, for people.
    pub label: String,
    /// The API.
    pub api: String,
    /// Its version.
    pub version: i16,
    /// The answer, or what happened in its place.
    pub answer: Node,
}

/// Plays a script to one server and writes down the answers.
pub struct Probe {
    address: SocketAddr,
    wire: Option<Wire>,
    steps: Vec<Step>,
    served: Served,
    topics: Vec<Topic>,
    sent: BTreeSet<(i16, i16)>,
    masks: Vec<(String, &'static str)>,
    sorts: Vec<(String, &'static str)>,
    left_out: Vec<(String, &'static str)>,
}

impl Probe {
    /// A probe of the server at `address`.
    pub fn new(address: SocketAddr, served: Served) -> Self {
        Self {
            address,
            served,
            wire: None,
            steps: Vec::new(),
            topics: Vec::new(),
            sent: BTreeSet::new(),
            masks: Vec::new(),
            sorts: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Replaces what stands at `path` (as in `topics[].leader_epoch`) in every later answer.
    pub fn mask(&mut self, path: &str) {
        self.masks.push((path.to_owned(), "<masked>"));
    }

    /// Sorts the array at `path` by a field of its items, or by several with commas between, in every later answer: its
    /// order has no meaning. What has no fields is sorted by what it is.
    pub fn sort(&mut self, path: &str, by: &'static str) {
        self.sorts.push((path.to_owned(), by));
    }

    /// Leaves items of the array at `path` out of every later answer, by their names.
    pub fn leave_out(&mut self, path: &str, name: &'static str) {
        self.left_out.push((path.to_owned(), name));
    }

    /// Remembers a topic: versions that name topics by id alone get its id where a script gives its name, and its id
    /// in answers is written down as its name.
    pub fn remember(&mut self, topic: &Topic) {
        self.topics.push(topic.clone());
    }

    /// The versions of an API that are compared: those that Odradek serves and answers.
    pub fn versions<R: Request>(&self) -> std::ops::RangeInclusive<i16> {
        match self.served.get(&R::KEY) {
            Some(&(min, max)) => min.max(R::VERSIONS.min)..=max,
            // An empty range: nothing to compare.
            #[allow(clippy::reversed_empty_ranges)]
            None => 1..=0,
        }
    }

    /// Writes down something that is not an answer.
    pub fn note(&mut self, label: &str, what: impl Debug) -> Result<()> {
        let answer = self.normalized(Node::of(&what)?);
        self.steps.push(Step {
            label: label.to_owned(),
            api: "-".to_owned(),
            version: 0,
            answer,
        });
        Ok(())
    }

    /// The connection, made when first used and again after it was closed.
    pub fn wire(&mut self) -> Result<&mut Wire> {
        let wire = match self.wire.take() {
            Some(wire) => wire,
            None => Wire::connect(self.address)?,
        };
        Ok(self.wire.insert(wire))
    }

    /// Begins a new connection with the next request.
    pub fn reconnect(&mut self) {
        self.wire = None;
    }

    /// Waits until a change has reached the part of Kafka that answers questions; its brokers follow the controller.
    pub fn settle(&self) {
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Where the probed server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks, writes the answer down, and gives it back if there was one. At a version that the codec does not know,
    /// Kafka's own definitions take its place, and the answer is written down only.
    pub fn ask<R: Request + Debug>(
        &mut self,
        label: &str,
        version: i16,
        request: &R,
    ) -> Result<Option<R::Response>>
    where
        R::Response: Debug + 'static,
    {
        if version > R::VERSIONS.max {
            let api = api_name(R::KEY);
            let mut message = Node::of(request)?;
            if Schema::request(&api)?.mentions("topic_id", version) {
                self.name_topics_by_id(&mut message);
            }
            if Schema::request(&api)?.mentions(GENERATION_OR_EPOCH, version) {
                name_generation(&mut message);
            }
            self.ask_message(label, &api, version, &message)?;
            return Ok(None);
        }
        let begun = Instant::now();
        let answer = self.wire()?.call(version, request);
        if begun.elapsed() > SLOW {
            eprintln!(
                "{} took {:?} over {label} (API {}, v{version})",
                self.address,
                begun.elapsed(),
                R::KEY
            );
        }
        self.write_down::<R>(label, version, answer)
    }

    /// Asks with a message in the shape of Kafka's definitions, and writes the answer down; fields that the message
    /// does not have are their defaults.
    pub fn ask_message(
        &mut self,
        label: &str,
        api: &str,
        version: i16,
        message: &Node,
    ) -> Result<()> {
        let (request, response) = (Schema::request(api)?, Schema::response(api)?);
        let header_version = if request.is_flexible(version) { 2 } else { 1 };
        let body = request.encode(message, version)?;
        let key = request.api_key();
        let is_flexible = response.is_flexible(version) && key != ApiKey::ApiVersions as i16;
        let wire = self.wire()?;
        let answer = wire
            .send_body(key, version, header_version, &body)
            .and_then(|correlation_id| {
                let mut frame = wire.receive_frame()?;
                let undecodable = |what: String| WireError::Undecodable(what);
                let got = frame
                    .try_get_i32()
                    .map_err(|e| undecodable(e.to_string()))?;
                if got != correlation_id {
                    return Err(WireError::Correlation {
                        want: correlation_id,
                        got,
                    });
                }
                if is_flexible && frame.try_get_u8().ok() != Some(0) {
                    return Err(undecodable("tags in the header".to_owned()));
                }
                response
                    .decode(frame, version)
                    .map_err(|e| undecodable(format!("{e:#}")))
            });
        let node = match answer {
            Ok(node) => self.normalized(node),
            Err(error) => self.failed(&error),
        };
        self.push_step(label, key, version, node);
        Ok(())
    }

    /// Asks with any body under a header of version 1 and writes down whether the connection ends over it.
    pub fn ask_refused(
        &mut self,
        label: &str,
        key: ApiKey,
        version: i16,
        body: &[u8],
    ) -> Result<()> {
        let wire = self.wire()?;
        let is_closed = wire
            .send_body(key as i16, version, 1, body)
            .map(|_| wire.is_closed_by_peer());
        self.wire = None;
        let node = Node::of(&is_closed?)?;
        self.push_step(label, key as i16, version, node);
        Ok(())
    }

    /// Where a struct has a name, an id beside it.
    fn name_topics_by_id(&self, message: &mut Node) {
        message.visit(&mut |_, node| {
            let Some(Node::Atom(name)) = node.field("name") else {
                return;
            };
            let id = self
                .topics
                .iter()
                .find(|topic| format!("{:?}", topic.name) == *name)
                .map_or(Topic::missing("").id, |topic| topic.id);
            if let Node::Struct(fields) = node {
                fields.retain(|(name, _)| name != "topic_id");
                fields.push(("topic_id".to_owned(), Node::atom(id.to_string())));
            }
        });
    }

    /// Asks at every version that is compared.
    pub fn ask_each<R: Request + Debug>(
        &mut self,
        label: &str,
        request: impl Fn(i16) -> R,
    ) -> Result<()>
    where
        R::Response: Debug + 'static,
    {
        for version in self.versions::<R>() {
            self.ask(label, version, &request(version))?;
        }
        Ok(())
    }

    /// Asks without writing anything down: preparation.
    pub fn prepare<R: Request>(&mut self, version: i16, request: &R) -> Result<R::Response> {
        Ok(self.wire()?.call(version, request)?)
    }

    /// Sends the request's bytes after `damage` has changed them, and writes down what comes of it.
    pub fn ask_damaged<R: Request>(
        &mut self,
        label: &str,
        version: i16,
        request: &R,
        damage: impl FnOnce(&mut BytesMut),
    ) -> Result<Option<R::Response>>
    where
        R::Response: Debug + 'static,
    {
        let mut body = BytesMut::new();
        request.encode(&mut body, version)?;
        damage(&mut body);
        let wire = self.wire()?;
        let answer = wire
            .send_body(R::KEY, version, R::header_version(version), &body)
            .and_then(|correlation_id| wire.receive::<R>(version, correlation_id));
        self.write_down::<R>(label, version, answer)
    }

    fn write_down<R: Request>(
        &mut self,
        label: &str,
        version: i16,
        answer: Result<R::Response, WireError>,
    ) -> Result<Option<R::Response>>
    where
        R::Response: Debug + 'static,
    {
        let (node, value) = match answer {
            Ok(response) => {
                let node = match (&response as &dyn Any).downcast_ref::<FetchResponse>() {
                    Some(fetched) => Node::of(&without_epochs_in_batches(fetched))?,
                    None => Node::of(&response)?,
                };
                (self.normalized(node), Some(response))
            }
            Err(WireError::Unencodable(reason)) => anyhow::bail!("{label} v{version}: {reason}"),
            Err(error) => (self.failed(&error), None),
        };
        self.push_step(label, R::KEY, version, node);
        Ok(value)
    }

    /// What is written down in place of an answer.
    fn failed(&mut self, error: &WireError) -> Node {
        // A connection after a failure is in an unknown state.
        self.wire = None;
        Node::atom(format!("<{error}>"))
    }

    fn push_step(&mut self, label: &str, key: i16, version: i16, answer: Node) {
        self.sent.insert((key, version));
        self.steps.push(Step {
            label: label.to_owned(),
            api: api_name(key),
            version,
            answer,
        });
    }

    fn normalized(&self, mut node: Node) -> Node {
        node.visit(&mut |path, node| {
            let name = path
                .rsplit('.')
                .next()
                .unwrap_or(path)
                .trim_end_matches("[]");
            if let Node::Atom(text) = node {
                let absent = matches!(text.as_str(), "None" | "-1" | "\"\"")
                    || text == "00000000-0000-0000-0000-000000000000";
                if let Some(topic) = self.topics.iter().find(|t| t.id.to_string() == *text) {
                    *text = format!("<id of {}>", topic.name);
                } else if let Some((_, stand_in)) =
                    STAND_INS.iter().find(|(field, _)| *field == name)
                    && !absent
                {
                    *text = (*stand_in).to_owned();
                }
            }
            for (masked, stand_in) in &self.masks {
                if masked == path {
                    *node = Node::atom(*stand_in);
                }
            }
        });
        node.visit(&mut |path, node| {
            for (path_of_list, name) in &self.left_out {
                if path_of_list == path
                    && let Node::List(items) = node
                {
                    items.retain(|item| {
                        item.field("name") != Some(&Node::atom(format!("{name:?}")))
                    });
                }
            }
            for (sorted, by) in &self.sorts {
                if sorted == path
                    && let Node::List(items) = node
                {
                    items.sort_by_cached_key(|item| {
                        let fields: Vec<String> = by
                            .split(',')
                            .filter_map(|name| item.field(name).map(Node::to_string))
                            .collect();
                        match fields.is_empty() {
                            true => item.to_string(),
                            false => fields.join(","),
                        }
                    });
                }
            }
        });
        node
    }

    /// What was written down.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Keys and versions of what was asked and written down.
    pub fn sent(&self) -> &BTreeSet<(i16, i16)> {
        &self.sent
    }

    /// Writes down a part of an answer that was got with [`Self::prepare`].
    pub fn note_answer<R: Request>(
        &mut self,
        label: &str,
        version: i16,
        what: impl Debug,
    ) -> Result<()> {
        let answer = self.normalized(Node::of(&what)?);
        self.push_step(label, R::KEY, version, answer);
        Ok(())
    }
}

/// What `generation_id` is called since there are members' epochs (KIP-848).
const GENERATION_OR_EPOCH: &str = "generation_id_or_member_epoch";

/// Gives `generation_id` its newer name.
fn name_generation(message: &mut Node) {
    message.visit(&mut |_, node| {
        let Node::Struct(fields) = node else {
            return;
        };
        for (name, _) in fields
            .iter_mut()
            .filter(|(name, _)| name == "generation_id")
        {
            *name = GENERATION_OR_EPOCH.to_owned();
        }
    });
}

/// Kafka's name for an API.
fn api_name(key: i16) -> String {
    ApiKey::try_from(key).map_or_else(|()| key.to_string(), |key| format!("{key:?}"))
}

/// Leader epochs stand in the headers of batches, too.
fn without_epochs_in_batches(response: &FetchResponse) -> FetchResponse {
    let mut response = response.clone();
    for data in response
        .responses
        .iter_mut()
        .flat_map(|topic| &mut topic.partitions)
    {
        if let Some(records) = &mut data.records {
            let mut bytes = records.to_vec();
            let mut start = 0;
            for length in batches_of(records).iter().map(|batch| batch.len()) {
                if let Some(epoch) = bytes.get_mut(start + 12..start + 16) {
                    epoch.fill(0);
                }
                start += length;
            }
            *records = bytes.into();
        }
    }
    response
}

/// API key to lowest and highest version.
pub type Served = BTreeMap<i16, (i16, i16)>;

/// What a server says it serves.
pub fn served_versions(address: SocketAddr) -> Result<Served> {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("odradek-tests"))
        .with_client_software_version(text("1"));
    let answer = Wire::connect(address)?.call(3, &request)?;
    Ok(answer
        .api_keys
        .iter()
        .map(|key| (key.api_key, (key.min_version, key.max_version)))
        .collect())
}
