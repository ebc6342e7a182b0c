//! What a node may say of itself when it registers, as a broker or as a controller.
//!
//! Nodes are not authenticated, and what one of them registers is in the metadata of all, is told to
//! every client, and is an address that the others connect to. So it is bounded, and must be such that
//! somebody could be there. Whether somebody is, the leader finds out before it unfences a broker.

use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;

use super::super::records::BrokerEndpoint;
use super::super::refusal::Refusal;

/// Listeners of one node.
const MAX_ENDPOINTS: usize = 64;
/// Bytes of a listener's name, and of a host: no host name is longer.
const MAX_NAME_BYTES: usize = 255;
/// Bytes of `broker.rack`.
const MAX_RACK_BYTES: usize = 1024;
/// Log directories of one node.
const MAX_DIRECTORIES: usize = 64;
/// Voters that a configuration names.
const MAX_VOTERS: usize = 1024;
/// Kafka's security protocols are numbered from 0 to this one.
const LAST_SECURITY_PROTOCOL: i16 = 3;

/// What a node says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said<'a> {
    pub(super) node: NodeId,
    pub(super) endpoints: &'a [BrokerEndpoint],
    pub(super) rack: Option<&'a str>,
    pub(super) directories: &'a [Uuid],
    pub(super) voters: &'a [NodeId],
}

/// Refuses what cannot be.
pub(super) fn check(said: Said<'_>) -> Result<(), Refusal> {
    let node = said.node;
    match fault(said) {
        None => Ok(()),
        Some(what) => Err(Refusal::BadRegistration { node, what }),
    }
}

fn fault(said: Said<'_>) -> Option<String> {
    if said.node.get() < 0 {
        return Some("its id is negative".to_owned());
    }
    let counts = [
        ("listeners", said.endpoints.len(), MAX_ENDPOINTS),
        ("log directories", said.directories.len(), MAX_DIRECTORIES),
        ("voters", said.voters.len(), MAX_VOTERS),
    ];
    for (what, count, most) in counts {
        if count > most {
            return Some(format!("it names {count} {what}, and may name {most}"));
        }
    }
    if said.rack.is_some_and(|rack| rack.len() > MAX_RACK_BYTES) {
        return Some(format!("its rack is longer than {MAX_RACK_BYTES} bytes"));
    }
    if said.directories.iter().any(|id| id.is_zero()) {
        return Some("a log directory has no id".to_owned());
    }
    if said.voters.iter().any(|id| id.get() < 0) {
        return Some("the id of a voter is negative".to_owned());
    }
    (0..)
        .zip(said.endpoints)
        .find_map(|(at, endpoint)| Some(format!("listener {at} {}", endpoint_fault(endpoint)?)))
}

fn endpoint_fault(endpoint: &BrokerEndpoint) -> Option<&'static str> {
    let is_word = |text: &str| {
        let is_odd = |it: char| it.is_whitespace() || it.is_control();
        !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.contains(is_odd)
    };
    if !is_word(&endpoint.name) {
        return Some("has no name that a listener can have");
    }
    if !is_word(&endpoint.host) {
        return Some("has no host");
    }
    if endpoint.port == 0 {
        return Some("has no port");
    }
    let protocols = 0..=LAST_SECURITY_PROTOCOL;
    (!protocols.contains(&endpoint.security_protocol)).then_some("has an unknown security protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> BrokerEndpoint {
        BrokerEndpoint {
            name: "PLAINTEXT".to_owned(),
            host: "broker-1.example".to_owned(),
            port: 9092,
            security_protocol: 0,
        }
    }

    fn fault_of(change: impl FnOnce(&mut BrokerEndpoint)) -> String {
        let mut changed = endpoint();
        change(&mut changed);
        let said = Said {
            endpoints: &[endpoint(), changed],
            ..said()
        };
        check(said).expect_err("refused").to_string()
    }

    fn said<'a>() -> Said<'a> {
        Said {
            node: NodeId::new(7),
            endpoints: &[],
            rack: None,
            directories: &[],
            voters: &[],
        }
    }

    #[test]
    fn what_nobody_could_be_is_refused_with_the_reason() {
        let ipv6 = BrokerEndpoint {
            host: "fe80::1%eth0".to_owned(),
            ..endpoint()
        };
        let fine = Said {
            endpoints: &[endpoint(), ipv6],
            rack: Some("rack 1"),
            directories: &[Uuid::from_bytes([1; 16])],
            voters: &[NodeId::new(0)],
            ..said()
        };
        assert_eq!(check(fine), Ok(()));
        let reason = |said| check(said).expect_err("refused").to_string();
        let negative = Said {
            node: NodeId::new(-2),
            ..said()
        };
        assert_eq!(
            reason(negative),
            "node -2 cannot be registered: its id is negative"
        );
        let many = vec![endpoint(); MAX_ENDPOINTS + 1];
        let many = Said {
            endpoints: &many,
            ..said()
        };
        assert!(reason(many).ends_with("it names 65 listeners, and may name 64"));
        let rack = "r".repeat(MAX_RACK_BYTES + 1);
        let rack = Said {
            rack: Some(&rack),
            ..said()
        };
        assert!(reason(rack).ends_with("its rack is longer than 1024 bytes"));
        let zero = Said {
            directories: &[Uuid::ZERO],
            ..said()
        };
        assert!(reason(zero).ends_with("a log directory has no id"));
        assert!(fault_of(|it| it.host.clear()).ends_with("listener 1 has no host"));
        assert!(fault_of(|it| it.host = "h\n9092".to_owned()).ends_with("has no host"));
        assert!(fault_of(|it| it.host = "h".repeat(256)).ends_with("has no host"));
        assert!(fault_of(|it| it.port = 0).ends_with("listener 1 has no port"));
        assert!(fault_of(|it| it.name.clear()).ends_with("no name that a listener can have"));
        assert!(fault_of(|it| it.security_protocol = 9).ends_with("security protocol"));
    }
}
