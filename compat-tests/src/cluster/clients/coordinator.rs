//! Finding coordinators, as every client does: by asking one node after the other, and asking again after each error.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kafka_protocol::messages::FindCoordinatorRequest;
use kafka_protocol::protocol::Request;

use super::{BACKOFF, ROUTE_PATIENCE};
use crate::cluster::NodeNumber;
use crate::wire::{Wire, text};

/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR.
pub const COORDINATOR_ERRORS: [i16; 3] = [14, 15, 16];

/// What is coordinated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A consumer group.
    Group,
    /// A transactional id.
    Transaction,
}

/// The way to the coordinator of one group or transactional id, and the connection to it.
pub struct Coordinator {
    addresses: Vec<SocketAddr>,
    kind: Kind,
    key: String,
    next: usize,
    wire: Option<(NodeNumber, Wire)>,
}

impl Coordinator {
    /// The coordinator of `key`, which is first asked of the node drawn by `start`.
    pub fn of(addresses: &[SocketAddr], kind: Kind, key: &str, start: usize) -> Self {
        Self {
            addresses: addresses.to_vec(),
            kind,
            key: key.to_owned(),
            next: start,
            wire: None,
        }
    }

    /// Where the next node says that it is.
    pub fn locate(&mut self) -> Result<(NodeNumber, SocketAddr)> {
        let address = self.addresses[self.next % self.addresses.len()];
        self.next += 1;
        let mut wire = Wire::connect_within(address, ROUTE_PATIENCE)?;
        let kind = match self.kind {
            Kind::Group => 0,
            Kind::Transaction => 1,
        };
        let request = FindCoordinatorRequest::default()
            .with_key(text(&self.key))
            .with_key_type(kind);
        let answer = wire.call(3, &request)?;
        ensure!(
            answer.error_code == 0,
            "FindCoordinator: error {}",
            answer.error_code
        );
        let address = format!("{}:{}", answer.host, answer.port).parse()?;
        Ok((answer.node_id.0, address))
    }

    /// The connection, which is made where there is none.
    pub fn wire(&mut self, patience: Duration) -> Result<&mut Wire> {
        if self.wire.is_none() {
            let (node, address) = self.locate()?;
            self.wire = Some((node, Wire::connect_within(address, patience)?));
        }
        let (_, wire) = self.wire.as_mut().context("no connection")?;
        wire.set_patience(patience)?;
        Ok(wire)
    }

    /// The node at the other end of the connection.
    pub fn node(&self) -> Option<NodeNumber> {
        self.wire.as_ref().map(|(node, _)| *node)
    }

    /// Gives the connection up; the next request looks for the coordinator afresh.
    pub fn forget(&mut self) {
        self.wire = None;
    }

    /// Asks once. Without an answer, and after an answer that sends clients elsewhere, the connection is given up.
    pub fn ask<R: Request>(
        &mut self,
        version: i16,
        request: &R,
        patience: Duration,
        error_code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response> {
        let answer = self
            .wire(patience)
            .and_then(|wire| Ok(wire.call(version, request)?));
        match answer {
            Ok(answer) if !COORDINATOR_ERRORS.contains(&error_code(&answer)) => Ok(answer),
            Ok(answer) => {
                self.forget();
                Ok(answer)
            }
            Err(error) => {
                self.forget();
                Err(error)
            }
        }
    }

    /// Asks until there is an answer that is none of `passing` and none of [`COORDINATOR_ERRORS`], for as long as
    /// `patience`; each question may take a tenth of that.
    pub fn ask_until<R: Request>(
        &mut self,
        version: i16,
        request: &R,
        patience: Duration,
        passing: &[i16],
        error_code: impl Fn(&R::Response) -> i16,
    ) -> Result<R::Response> {
        let deadline = Instant::now() + patience;
        loop {
            let answer = self.ask(version, request, patience / 10, &error_code);
            let passes = answer.as_ref().map_or(true, |answer| {
                let code = error_code(answer);
                COORDINATOR_ERRORS.contains(&code) || passing.contains(&code)
            });
            if !passes || Instant::now() >= deadline {
                return answer;
            }
            std::thread::sleep(BACKOFF);
        }
    }
}
