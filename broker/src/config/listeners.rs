//! Addresses in the configuration: listeners, what they advertise, quorum voters, limits by address.
//!
//! Syntax as in Kafka: `NAME://host:port`, with IPv6 hosts in brackets. Names are compared without
//! regard to case and kept in upper case.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use super::key::list_elements;

/// One `NAME://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Listener name, in upper case.
    pub name: String,
    /// Host, without brackets; empty for every interface.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "{}://[{}]:{}", self.name, self.host, self.port)
        } else {
            write!(f, "{}://{}:{}", self.name, self.host, self.port)
        }
    }
}

/// Reads a list of endpoints.
pub fn parse_endpoints(value: &str) -> Result<Vec<Endpoint>, String> {
    list_elements(value).map(parse_endpoint).collect()
}

fn parse_endpoint(element: &str) -> Result<Endpoint, String> {
    let (name, address) = element
        .split_once("://")
        .ok_or_else(|| format!("\"{element}\" is not NAME://host:port"))?;
    let well_formed = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if !well_formed {
        return Err(format!("\"{name}\" is no listener name"));
    }
    let (host, port) = split_address(address)?;
    Ok(Endpoint {
        name: name.to_ascii_uppercase(),
        host,
        port,
    })
}

/// Splits `host:port`, with an IPv6 host in brackets.
pub fn split_address(address: &str) -> Result<(String, u16), String> {
    let malformed = || format!("\"{address}\" is not host:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let port = port.parse().map_err(|_| malformed())?;
    let host = match host.strip_prefix('[') {
        Some(rest) => {
            let inner = rest.strip_suffix(']').ok_or_else(malformed)?;
            let ip: std::net::Ipv6Addr = inner.parse().map_err(|_| malformed())?;
            ip.to_string()
        }
        None if host.contains([':', '/', '[', ']']) => return Err(malformed()),
        None => host.to_owned(),
    };
    Ok((host, port))
}

/// Checks `listeners`: well formed, each name once, each port once unless it is 0 or the hosts are
/// an IPv4 and an IPv6 address.
pub(super) fn check_listeners(value: &str) -> Result<(), String> {
    let endpoints = parse_endpoints(value)?;
    if endpoints.is_empty() {
        return Err("there must be one at least".to_owned());
    }
    for (at, endpoint) in endpoints.iter().enumerate() {
        for earlier in endpoints.iter().take(at) {
            if earlier.name == endpoint.name {
                return Err(format!("the name {} stands twice", endpoint.name));
            }
            let families = |host: &str| host.parse::<IpAddr>().ok().map(|ip| ip.is_ipv6());
            let apart = match (families(&earlier.host), families(&endpoint.host)) {
                (Some(one), Some(other)) => one != other,
                _ => false,
            };
            if endpoint.port != 0 && earlier.port == endpoint.port && !apart {
                return Err(format!("the port {} stands twice", endpoint.port));
            }
        }
    }
    Ok(())
}

/// Checks `advertised.listeners`: well formed, each name once, hosts that a client can reach.
pub(super) fn check_advertised(value: &str) -> Result<(), String> {
    let endpoints = parse_endpoints(value)?;
    for (at, endpoint) in endpoints.iter().enumerate() {
        if endpoints
            .iter()
            .take(at)
            .any(|earlier| earlier.name == endpoint.name)
        {
            return Err(format!("the name {} stands twice", endpoint.name));
        }
        let unreachable = endpoint
            .host
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_unspecified());
        if unreachable {
            return Err(format!("no client can connect to {}", endpoint.host));
        }
    }
    Ok(())
}

/// Reads `listener.security.protocol.map`: protocol by upper-case listener name.
pub fn parse_protocol_map(value: &str) -> Result<HashMap<String, String>, String> {
    let mut map = HashMap::new();
    for element in list_elements(value) {
        let (name, protocol) = element
            .split_once(':')
            .ok_or_else(|| format!("\"{element}\" is not NAME:PROTOCOL"))?;
        let protocol = protocol.trim().to_ascii_uppercase();
        if !["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"].contains(&protocol.as_str()) {
            return Err(format!("there is no protocol {protocol}"));
        }
        if map
            .insert(name.trim().to_ascii_uppercase(), protocol)
            .is_some()
        {
            return Err(format!("the name {} stands twice", name.trim()));
        }
    }
    Ok(map)
}

pub(super) fn check_protocol_map(value: &str) -> Result<(), String> {
    parse_protocol_map(value).map(|_| ())
}

/// Reads `controller.quorum.voters`: node ids and their addresses.
pub fn parse_voters(value: &str) -> Result<Vec<(i32, String, u16)>, String> {
    list_elements(value)
        .map(|element| {
            let malformed = || format!("\"{element}\" is not id@host:port");
            let (id, address) = element.split_once('@').ok_or_else(malformed)?;
            let id = id.trim().parse().map_err(|_| malformed())?;
            let (host, port) = split_address(address.trim())?;
            Ok((id, host, port))
        })
        .collect()
}

/// Checks `controller.quorum.bootstrap.servers`.
pub(super) fn check_servers(value: &str) -> Result<(), String> {
    list_elements(value).try_for_each(|server| split_address(server).map(|_| ()))
}

pub(super) fn check_voters(value: &str) -> Result<(), String> {
    parse_voters(value).map(|_| ())
}

/// Reads `max.connections.per.ip.overrides`.
pub fn parse_ip_overrides(value: &str) -> Result<HashMap<IpAddr, usize>, String> {
    list_elements(value)
        .map(|element| {
            let malformed = || format!("\"{element}\" is not address:count");
            let (address, count) = element.rsplit_once(':').ok_or_else(malformed)?;
            let address = address.trim_start_matches('[').trim_end_matches(']');
            let ip: IpAddr = address.trim().parse().map_err(|_| malformed())?;
            let count = count.trim().parse().map_err(|_| malformed())?;
            Ok((ip.to_canonical(), count))
        })
        .collect()
}

pub(super) fn check_ip_overrides(value: &str) -> Result<(), String> {
    parse_ip_overrides(value).map(|_| ())
}

pub(super) fn check_http_listener(value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    split_address(value).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_in_every_form_that_kafka_documents() {
        let endpoints =
            parse_endpoints("plaintext://:9092, CLIENT_1://0.0.0.0:9093,V6://[::1]:9094")
                .expect("well formed");
        let shown: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "PLAINTEXT://:9092",
                "CLIENT_1://0.0.0.0:9093",
                "V6://[::1]:9094"
            ]
        );
        for bad in [
            "localhost:9092",
            "PLAINTEXT:/localhost:9092",
            "PLAINTEXT://localhost",
            "PLAINTEXT://localhost:70000",
            "PLAINTEXT://::1:9092",
            "PLAINTEXT://[::1:9092",
            "PLAIN TEXT://localhost:9092",
            "://localhost:9092",
        ] {
            assert!(parse_endpoints(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listeners_share_neither_name_nor_port() {
        assert!(check_listeners("A://:1,B://:2").is_ok());
        assert!(check_listeners("A://:0,B://:0").is_ok());
        assert!(check_listeners("A://127.0.0.1:1,B://[::1]:1").is_ok());
        assert!(check_listeners("A://:1,a://:2").is_err());
        assert!(check_listeners("A://:1,B://:1").is_err());
        assert!(check_listeners("").is_err());
    }

    #[test]
    fn the_meta_address_is_not_advertised() {
        assert!(check_advertised("A://host:1,B://host:1").is_ok());
        assert!(check_advertised("A://0.0.0.0:1").is_err());
        assert!(check_advertised("A://[::]:1").is_err());
    }

    #[test]
    fn voters_and_overrides_are_read() {
        assert_eq!(
            parse_voters("1@a:9093, 2@[::1]:9094"),
            Ok(vec![(1, "a".to_owned(), 9093), (2, "::1".to_owned(), 9094)])
        );
        assert!(parse_voters("a:9093").is_err());
        let overrides = parse_ip_overrides("127.0.0.1:5,[::1]:6").expect("well formed");
        assert_eq!(overrides.get(&IpAddr::from([127, 0, 0, 1])), Some(&5));
        assert!(parse_ip_overrides("host").is_err());
    }
}
