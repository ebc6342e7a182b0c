//! Where the other nodes are.
//!
//! A node may have two addresses: the one that it has as a voter of the metadata quorum, known from
//! the configuration, from the metadata or from whoever was asked, and the one that it registered
//! with. The registered one is newer and comes first; the other is tried when it fails.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use odradek_protocol::ids::NodeId;
use parking_lot::RwLock;

/// Host and port of a listener that serves other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAddress {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct AddressBook {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    voters: BTreeMap<NodeId, PeerAddress>,
    registered: HashMap<NodeId, PeerAddress>,
}

impl AddressBook {
    /// A book of the voters in the configuration.
    pub fn new(voters: impl IntoIterator<Item = (NodeId, PeerAddress)>) -> Self {
        Self {
            known: RwLock::new(Known {
                voters: voters.into_iter().collect(),
                registered: HashMap::new(),
            }),
        }
    }

    /// Takes over where the registered nodes are, in place of what was registered before.
    pub fn set_registered(&self, nodes: impl IntoIterator<Item = (NodeId, PeerAddress)>) {
        let registered = nodes.into_iter().collect();
        let mut known = self.known.write();
        if known.registered != registered {
            known.registered = registered;
        }
    }

    /// Takes over the voters of the metadata quorum, in place of those before.
    pub fn set_voters(&self, voters: impl IntoIterator<Item = (NodeId, PeerAddress)>) {
        self.known.write().voters = voters.into_iter().collect();
    }

    /// Notes where a node is that may be a voter, beside the others.
    pub fn add_voter(&self, node: NodeId, address: PeerAddress) {
        self.known.write().voters.insert(node, address);
    }

    /// The voters of the metadata quorum, as far as they are known, and where each is.
    pub fn voters(&self) -> Vec<(NodeId, PeerAddress)> {
        let known = self.known.read();
        let voters = known.voters.iter();
        voters
            .map(|(node, address)| (*node, address.clone()))
            .collect()
    }

    /// Everybody who has an address.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        let known = self.known.read();
        let nodes = known.voters.keys().chain(known.registered.keys());
        nodes.copied().collect()
    }

    /// Whether a node votes on the metadata, as far as is known.
    pub fn is_voter(&self, node: NodeId) -> bool {
        self.known.read().voters.contains_key(&node)
    }

    /// Whether a node has an address.
    pub fn has(&self, node: NodeId) -> bool {
        let known = self.known.read();
        known.voters.contains_key(&node) || known.registered.contains_key(&node)
    }

    /// Addresses of a node, the likeliest first.
    pub fn addresses(&self, node: NodeId) -> Vec<PeerAddress> {
        let known = self.known.read();
        let mut addresses: Vec<PeerAddress> = Vec::new();
        for address in [known.registered.get(&node), known.voters.get(&node)] {
            if let Some(address) = address
                && !addresses.contains(address)
            {
                addresses.push(address.clone());
            }
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> PeerAddress {
        PeerAddress {
            host: "h".to_owned(),
            port,
        }
    }

    #[test]
    fn a_registered_address_comes_before_the_configured_one_and_goes_with_the_registration() {
        let (one, two) = (NodeId::new(1), NodeId::new(2));
        let book = AddressBook::new([(one, at(1)), (two, at(2))]);
        book.set_registered([(one, at(11)), (two, at(2))]);
        assert_eq!(book.addresses(one), [at(11), at(1)]);
        assert_eq!(book.addresses(two), [at(2)]);
        assert_eq!(book.nodes(), [one, two].into());
        let three = NodeId::new(3);
        assert!(book.is_voter(one) && book.has(two) && !book.has(three));
        book.set_registered([]);
        assert_eq!(book.addresses(one), [at(1)]);
        assert_eq!(book.addresses(three), []);
        assert_eq!(
            PeerAddress {
                host: "::1".to_owned(),
                port: 1
            }
            .to_string(),
            "[::1]:1"
        );
    }
}
