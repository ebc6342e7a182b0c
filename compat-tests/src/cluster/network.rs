//! The network between the nodes of a cluster, of either kind, behind one face.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::NodeNumber;
use super::namespaces::{self, Namespaces};
use super::relay::{Link, Relays};

/// Where a node listens, and where everybody else finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Clients and brokers find it here.
    pub broker: SocketAddr,
    /// Controllers find it here.
    pub controller: SocketAddr,
    /// It listens here for clients and brokers.
    pub broker_bind: SocketAddr,
    /// It listens here for controllers.
    pub controller_bind: SocketAddr,
}

/// What the network is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkKind {
    /// Namespaces where they can be made, else relays.
    #[default]
    Any,
    /// A network namespace a node.
    Namespaces,
    /// The loopback interface with a relay in front of every node; the only kind that can delay.
    Relays,
}

/// How slow a node's links become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness {
    /// What every chunk waits, in each direction; needs [`NetworkKind::Relays`].
    pub delay: Duration,
    /// The most that passes in each direction.
    pub bytes_per_second: u64,
}

enum Kind {
    Namespaces(Namespaces),
    Relays(Relays),
}

/// The network of a cluster, and what is cut of it.
pub struct Network {
    kind: Kind,
    numbers: Vec<NodeNumber>,
    cuts: BTreeSet<(NodeNumber, NodeNumber)>,
    slow: BTreeSet<NodeNumber>,
}

impl Network {
    /// Makes the network for these nodes; `home` is for logs.
    pub fn new(kind: NetworkKind, numbers: &[NodeNumber], home: &Path) -> Result<Self> {
        let namespaces = match kind {
            NetworkKind::Any => namespaces::are_possible(),
            NetworkKind::Namespaces => true,
            NetworkKind::Relays => false,
        };
        Ok(Self {
            kind: if namespaces {
                Kind::Namespaces(Namespaces::new(numbers, home)?)
            } else {
                Kind::Relays(Relays::new(numbers)?)
            },
            numbers: numbers.to_vec(),
            cuts: BTreeSet::new(),
            slow: BTreeSet::new(),
        })
    }

    /// Where a node listens.
    pub fn addresses(&self, number: NodeNumber) -> Result<Addresses> {
        match &self.kind {
            Kind::Namespaces(namespaces) => Ok(namespaces.addresses(number)),
            Kind::Relays(relays) => relays.addresses(number),
        }
    }

    /// What a command must be prefixed with to run on the node's network; empty if nothing.
    pub fn enter(&self, number: NodeNumber) -> Result<Vec<String>> {
        match &self.kind {
            Kind::Namespaces(namespaces) => namespaces.enter(number),
            Kind::Relays(_) => Ok(Vec::new()),
        }
    }

    /// Says which process is the node from now on.
    pub fn runs_as(&self, number: NodeNumber, pid: u32) {
        if let Kind::Relays(relays) = &self.kind {
            relays.runs_as(number, pid);
        }
    }

    /// Drops, from now on, what `from` sends to `to`; nothing new if that is cut already.
    pub fn cut(&mut self, from: NodeNumber, to: NodeNumber) -> Result<()> {
        if from == to || !self.cuts.insert((from, to)) {
            return Ok(());
        }
        match &self.kind {
            Kind::Namespaces(namespaces) => namespaces.cut(from, to),
            Kind::Relays(relays) => {
                relays.change(from, to, |link| link.cut = true);
                Ok(())
            }
        }
    }

    /// Cuts both directions between the two.
    pub fn cut_both_ways(&mut self, one: NodeNumber, other: NodeNumber) -> Result<()> {
        self.cut(one, other)?;
        self.cut(other, one)
    }

    /// Cuts a node off from all others.
    pub fn isolate(&mut self, number: NodeNumber) -> Result<()> {
        for other in self.numbers.clone() {
            self.cut_both_ways(number, other)?;
        }
        Ok(())
    }

    /// Makes all links of a node slow.
    pub fn slow_down(&mut self, number: NodeNumber, slowness: Slowness) -> Result<()> {
        self.slow.insert(number);
        self.set_slowness(number, Some(slowness))
    }

    fn set_slowness(&self, number: NodeNumber, slowness: Option<Slowness>) -> Result<()> {
        match &self.kind {
            Kind::Namespaces(namespaces) => {
                namespaces.throttle(number, slowness.map(|slow| slow.bytes_per_second))
            }
            Kind::Relays(relays) => {
                let set = |link: &mut Link| {
                    link.delay = slowness.map_or(Duration::ZERO, |slow| slow.delay);
                    link.bytes_per_second = slowness.map(|slow| slow.bytes_per_second);
                };
                for &other in self.numbers.iter().filter(|&&other| other != number) {
                    relays.change(number, other, set);
                    relays.change(other, number, set);
                }
                Ok(())
            }
        }
    }

    /// Undoes every cut and slowness.
    pub fn heal(&mut self) -> Result<()> {
        while let Some((from, to)) = self.cuts.pop_first() {
            match &self.kind {
                Kind::Namespaces(namespaces) => namespaces.join(from, to)?,
                Kind::Relays(relays) => relays.change(from, to, |link| link.cut = false),
            }
        }
        while let Some(number) = self.slow.pop_first() {
            self.set_slowness(number, None)?;
        }
        Ok(())
    }
}
