//! Clients that ask and push, on a time of their own.

use std::sync::Arc;

use odradek_protocol::ids::Offset;

use super::super::otlp::Kind;
use super::*;
use crate::metadata::image::{MetadataImage, ResourceKind};
use crate::metadata::records::{ConfigRecord, MetadataRecord};

const BOUNDS: Bounds = Bounds {
    most_clients: 3,
    most_series: 5,
    most_series_of_a_client: 4,
};

struct World {
    image: MetadataImage,
    subscriptions: Subscriptions,
    clients: Clients,
    connection: Arc<ConnectionInfo>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            image: MetadataImage::default(),
            subscriptions: Subscriptions::default(),
            clients: Clients::new(BOUNDS),
            connection: Arc::new(ConnectionInfo::of_nobody()),
            now: Instant::now(),
        };
        world.subscribe("metrics", "x.");
        world.subscribe("interval.ms", "1000");
        world
    }

    fn subscribe(&mut self, key: &str, value: &str) {
        let record = MetadataRecord::Config(ConfigRecord {
            resource_type: ResourceKind::ClientMetrics.code(),
            resource_name: "s".to_owned(),
            name: key.to_owned(),
            value: Some(value.to_owned()),
        });
        let next = Offset::new(self.image.next_offset().get() + 1);
        self.image.apply(&[record], next).expect("it applies");
        self.subscriptions.follow(&self.image);
    }

    fn sender(&self) -> Sender {
        Sender {
            facts: ClientFacts {
                instance_id: "i".to_owned(),
                client_id: Some("c".to_owned()),
                software_name: "n".to_owned(),
                software_version: "v".to_owned(),
                source_address: "127.0.0.1".to_owned(),
                source_port: "1".to_owned(),
            },
            connection: Arc::downgrade(&self.connection),
        }
    }

    fn after(&mut self, ms: u64) -> &mut Self {
        self.now += Duration::from_millis(ms);
        self
    }

    fn ask(&mut self, client: u8) -> Result<i32, Refusal> {
        let (sender, now) = (self.sender(), self.now);
        let asked = self
            .clients
            .ask(id(client), sender, &self.subscriptions, now);
        asked.map(|wanted| wanted.subscription_id)
    }

    fn push(&mut self, client: u8, subscription_id: i32) -> Result<(), Refusal> {
        self.push_with(client, |push| push.subscription_id = subscription_id)
    }

    fn push_with(&mut self, client: u8, change: impl FnOnce(&mut PushHead)) -> Result<(), Refusal> {
        let mut push = PushHead {
            client_instance_id: id(client),
            subscription_id: 0,
            is_last: false,
            is_codec_known: true,
            bytes: 1,
        };
        change(&mut push);
        let (sender, now) = (self.sender(), self.now);
        self.clients
            .push(&push, sender, &self.subscriptions, now, 100)
    }

    fn take(&mut self, client: u8, names: &[&str]) -> u64 {
        let samples: Vec<Sample> = names
            .iter()
            .map(|name| Sample {
                name: (*name).to_owned(),
                labels: vec![],
                kind: Kind::Gauge,
                value: 1.0,
            })
            .collect();
        self.clients.take(id(client), &samples, self.now)
    }
}

fn id(client: u8) -> Uuid {
    Uuid::from_bytes([client; 16])
}

#[test]
fn a_client_asks_once_and_pushes_at_its_interval() {
    let mut world = World::new();
    let subscription = world.ask(1).expect("new");
    // At any time after it has asked, since it spreads its first push.
    assert_eq!(world.after(500).push(1, subscription), Ok(()));
    assert_eq!(
        world.after(999).push(1, subscription),
        Err(Refusal::TooEarly)
    );
    assert_eq!(world.after(1).push(1, subscription), Ok(()));
    assert_eq!(world.after(999).ask(1), Err(Refusal::TooEarly));
    assert_eq!(world.after(1).ask(1), Ok(subscription));
}

#[test]
fn the_last_push_may_come_early_and_none_after_it() {
    let mut world = World::new();
    let subscription = world.ask(1).expect("new");
    assert_eq!(world.after(1).push(1, subscription), Ok(()));
    let last = world.after(1).push_with(1, |push| {
        push.subscription_id = subscription;
        push.is_last = true;
    });
    assert_eq!(last, Ok(()));
    assert_eq!(
        world.after(5_000).push(1, subscription),
        Err(Refusal::Terminated)
    );
}

#[test]
fn a_changed_subscription_is_told_at_once_and_has_to_be_asked_for() {
    let mut world = World::new();
    let old = world.ask(1).expect("new");
    assert_eq!(world.after(10).push(1, old), Ok(()));
    world.subscribe("metrics", "y.");
    assert_eq!(
        world.after(1_000).push(1, old),
        Err(Refusal::UnknownSubscription)
    );
    let new = world.after(1).ask(1).expect("after such a refusal");
    assert_ne!(new, old);
    assert_eq!(world.after(1_000).push(1, new), Ok(()));
}

#[test]
fn pushes_are_refused_for_what_is_wrong_with_them() {
    let mut world = World::new();
    for nobody in [
        Uuid::ZERO,
        crate::metadata::service::METADATA_TOPIC_ID.into(),
    ] {
        let refused = world.push_with(1, |push| push.client_instance_id = nobody);
        assert_eq!(refused, Err(Refusal::NoInstanceId));
    }
    assert_eq!(world.clients.len(), 0);
    let subscription = world.ask(1).expect("new");
    for (codec, bytes, refusal) in [
        (false, 1, Refusal::UnsupportedCompression),
        (true, 101, Refusal::TooLarge),
    ] {
        let refused = world.after(1_000).push_with(1, |push| {
            push.subscription_id = subscription;
            push.is_codec_known = codec;
            push.bytes = bytes;
        });
        assert_eq!(refused, Err(refusal));
    }
    assert_eq!(world.after(1).ask(1), Err(Refusal::TooEarly));
}

#[test]
fn a_client_without_its_connection_or_silent_for_long_is_as_good_as_new() {
    let mut world = World::new();
    let subscription = world.ask(1).expect("new");
    world.take(1, &["a"]);
    world.connection = Arc::new(ConnectionInfo::of_nobody());
    assert_eq!(world.after(1).ask(1), Ok(subscription));
    assert_eq!(world.clients.series(), 1);
    assert_eq!(world.after(1).ask(1), Err(Refusal::TooEarly));
    let (now, minute) = (world.now, Duration::from_secs(60));
    world
        .clients
        .forget_silent(now + minute - Duration::from_millis(1));
    assert_eq!(world.clients.len(), 1);
    world.clients.forget_silent(now + minute);
    assert_eq!((world.clients.len(), world.clients.series()), (0, 0));
}

#[test]
fn the_client_heard_of_longest_ago_makes_room() {
    let mut world = World::new();
    for client in 1..=3 {
        world.ask(client).expect("new");
        assert_eq!(world.take(client, &["a"]), 0);
    }
    assert_eq!(world.after(1).ask(1), Err(Refusal::TooEarly));
    world.ask(4).expect("new");
    let knows: Vec<bool> = (1..=4)
        .map(|client| world.clients.knows(id(client)))
        .collect();
    assert_eq!(knows, [true, false, true, true]);
    assert_eq!((world.clients.len(), world.clients.series()), (3, 2));
}

#[test]
fn series_are_bounded_for_each_client_and_for_all() {
    let mut world = World::new();
    world.ask(1).expect("new");
    world.ask(2).expect("new");
    assert_eq!(world.take(1, &["a", "b", "c", "d", "e"]), 1);
    assert_eq!(world.take(2, &["a", "b"]), 1);
    assert_eq!(world.clients.series(), 5);
    // What is there may change for ever.
    assert_eq!(world.take(1, &["a", "b", "c", "d"]), 0);
    let page = world.clients.page();
    assert_eq!(
        page.lines().filter(|line| !line.starts_with('#')).count(),
        5,
        "{page}"
    );
}

#[test]
fn a_long_client_id_is_cut_between_characters() {
    let facts = ClientFacts {
        client_id: Some("ä".repeat(1_000)),
        ..World::new().sender().facts
    };
    let text = labels(&facts);
    assert!(
        text.starts_with(&format!("client_id=\"{}\"", "ä".repeat(128))),
        "{text}"
    );
}
