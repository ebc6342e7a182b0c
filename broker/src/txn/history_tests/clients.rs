//! What the clients of a history do: they begin, write, end, and go on after errors as real ones do.

use odradek_protocol::ids::{PartitionIndex, ProducerId, TopicId};
use rand::Rng as _;

use super::{Client, ClientTxn, PARTITIONS, TIMEOUT_MS, World, Write};
use crate::groups::names::TopicName;
use crate::txn::error::TxnError;
use crate::txn::messages::{
    AddRequest, EndRequest, InitRequest, Refusal, TopicOfTxn, TxnReply, TxnRequest, VerifyRequest,
};
use crate::txn::names::TxnVersion;

impl World {
    pub(super) fn init(&mut self, number: usize) {
        let id = self.clients[number].id.clone();
        let expected = self.clients[number]
            .producer
            .filter(|_| self.rng.random_bool(0.5));
        let fresh = self.number() as i64;
        let reply = self.call(TxnRequest::Init(InitRequest {
            id,
            timeout_ms: TIMEOUT_MS,
            expected,
            fresh: Some(ProducerId::new(1_000 + fresh)),
        }));
        let client = &mut self.clients[number];
        match reply {
            Some(TxnReply::Init(Ok(producer))) => {
                client.producer = Some(producer);
                client.sequences = [0; PARTITIONS];
            }
            Some(TxnReply::Init(Err(Refusal::Failed(TxnError::ProducerFenced)))) => {
                client.producer = None;
            }
            _ => {}
        }
    }

    pub(super) fn topics(partition: usize) -> Vec<TopicOfTxn> {
        vec![TopicOfTxn {
            name: TopicName::new("t"),
            id: TopicId::from_bytes([1; 16]),
            partitions: vec![PartitionIndex::new(partition as i32)],
        }]
    }

    pub(super) fn add(&mut self, number: usize, partition: usize) -> Option<Result<(), TxnError>> {
        let client = &self.clients[number];
        let request = AddRequest {
            id: client.id.clone(),
            producer: client.producer?,
            topics: Self::topics(partition),
            client_version: self.version,
        };
        match self.call(TxnRequest::Add(request)) {
            Some(TxnReply::Add(reply)) => Some(reply),
            _ => None,
        }
    }

    /// The partition asks about the transaction; things happen meanwhile.
    pub(super) fn verify(
        &mut self,
        number: usize,
        partition: usize,
    ) -> Option<Result<(), TxnError>> {
        let answer = match self.version {
            TxnVersion::V2 => self.add(number, partition),
            TxnVersion::V0 | TxnVersion::V1 => {
                let client = &self.clients[number];
                let request = VerifyRequest {
                    id: client.id.clone(),
                    producer: client.producer?,
                    topics: Self::topics(partition),
                };
                match self.call(TxnRequest::Verify(request)) {
                    Some(TxnReply::Verify(Ok(parts))) => Some(match parts[0][0] {
                        true => Ok(()),
                        false => Err(TxnError::NotInTransaction),
                    }),
                    Some(TxnReply::Verify(Err(error))) => Some(Err(error)),
                    _ => None,
                }
            }
        };
        for _ in 0..self.rng.random_range(0..4) {
            self.tell_one();
        }
        answer
    }

    /// Sends the last write of the client's transaction, for the first time or again.
    pub(super) fn write(&mut self, number: usize) {
        let Some(producer) = self.clients[number].producer else {
            return;
        };
        let client = &self.clients[number];
        let Some(write) = client
            .txn
            .as_ref()
            .and_then(|txn| txn.writes.last().cloned())
        else {
            return;
        };
        let guard = self.partitions[write.partition].ends_of(producer.id);
        if !self.partitions[write.partition].is_open(producer) {
            match self.verify(number, write.partition) {
                Some(Ok(())) => {}
                Some(Err(error)) => return self.fail(number, error),
                None => return,
            }
            if self.partitions[write.partition].ends_of(producer.id) != guard {
                return self.fail(number, TxnError::NotInTransaction);
            }
        }
        let partition = &mut self.partitions[write.partition];
        if partition
            .write(producer, write.sequence, write.value)
            .is_err()
        {
            return self.fail(number, TxnError::NotInTransaction);
        }
        if self.rng.random_bool(0.05) {
            return;
        }
        if let Some(txn) = self.clients[number].txn.as_mut() {
            let number = txn.number;
            if let Some(last) = txn.writes.last_mut() {
                last.acknowledged = true;
            }
            self.acknowledged.entry(number).or_default().push(write);
        }
    }

    /// What a client does after an error.
    pub(super) fn fail(&mut self, number: usize, error: TxnError) {
        let client = &mut self.clients[number];
        match error {
            // It asks again.
            TxnError::ConcurrentTransactions => {}
            // An old client cannot know what became of its sequence numbers; it starts anew.
            TxnError::NotInTransaction if self.version == TxnVersion::V2 => {
                if let Some(txn) = client.txn.as_mut() {
                    txn.ending = Some(false);
                }
            }
            _ => {
                client.txn = None;
                client.producer = None;
            }
        }
    }

    pub(super) fn new_write(&mut self, number: usize) {
        let partition = self.rng.random_range(0..PARTITIONS);
        let is_old = self.version == TxnVersion::V0;
        let added = |client: &Client| {
            let txn = client.txn.as_ref();
            txn.is_some_and(|txn| txn.added.contains(&partition))
        };
        if is_old && !added(&self.clients[number]) {
            match self.add(number, partition) {
                Some(Ok(())) => {}
                Some(Err(error)) => return self.fail(number, error),
                None => return,
            }
        }
        let value = self.number();
        let client = &mut self.clients[number];
        let Some(txn) = client.txn.as_mut() else {
            return;
        };
        txn.added.insert(partition);
        txn.writes.push(Write {
            partition,
            sequence: client.sequences[partition],
            value,
            acknowledged: false,
        });
        client.sequences[partition] += 1;
        self.txn_of.insert(value, txn.number);
        self.write(number);
    }

    pub(super) fn end(&mut self, number: usize, committed: bool) {
        let fresh = self.number() as i64;
        let client = &self.clients[number];
        let (Some(producer), Some(txn)) = (client.producer, &client.txn) else {
            return;
        };
        let txn_number = txn.number;
        let reply = self.call(TxnRequest::End(EndRequest {
            id: client.id.clone(),
            producer,
            committed,
            client_version: self.version,
            fresh: Some(ProducerId::new(1_000_000 + fresh)),
        }));
        match reply {
            Some(TxnReply::End(Ok(next))) => {
                self.answered.insert(txn_number, committed);
                let client = &mut self.clients[number];
                if client.producer != Some(next) {
                    client.sequences = [0; PARTITIONS];
                }
                client.producer = Some(next);
                client.txn = None;
            }
            Some(TxnReply::End(Err(Refusal::Failed(error)))) => match error {
                TxnError::ConcurrentTransactions => {}
                _ => self.fail(number, error),
            },
            _ => {}
        }
    }

    pub(super) fn client_step(&mut self, number: usize) {
        if self.clients[number].producer.is_none() {
            self.clients[number].txn = None;
            return self.init(number);
        }
        if self.rng.random_bool(0.02) {
            // It is started anew in the middle of whatever it did.
            self.clients[number].producer = None;
            return;
        }
        let txn_number = self.number();
        let client = &mut self.clients[number];
        let Some(txn) = &client.txn else {
            client.txn = Some(ClientTxn {
                number: txn_number,
                ..ClientTxn::default()
            });
            return;
        };
        if let Some(committed) = txn.ending {
            return self.end(number, committed);
        }
        let unacknowledged = txn.writes.last().is_some_and(|last| !last.acknowledged);
        let is_empty = txn.writes.is_empty();
        if unacknowledged {
            self.write(number);
        } else if is_empty || self.rng.random_bool(0.6) {
            self.new_write(number);
        } else {
            let committed = self.rng.random_bool(0.7);
            if let Some(txn) = self.clients[number].txn.as_mut() {
                txn.ending = Some(committed);
            }
        }
    }
}
