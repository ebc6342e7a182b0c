//! The database: accounts, and the identities of the records that made them what they are.

use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::records::Record;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS accounts (
        name TEXT NOT NULL PRIMARY KEY,
        balance INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS handled (
        topic_id BLOB NOT NULL,
        partition INTEGER NOT NULL,
        record_offset INTEGER NOT NULL,
        refused TEXT,
        PRIMARY KEY (topic_id, partition, record_offset)
    ) STRICT, WITHOUT ROWID;
";

/// How long to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The open database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// What a record asks for.
struct Payment<'a> {
    account: &'a str,
    amount: i32,
}

impl<'a> Payment<'a> {
    fn of(record: &'a Record) -> Result<Self, &'static str> {
        let text = |bytes: &'a Option<Vec<u8>>| {
            let bytes = bytes.as_deref()?;
            std::str::from_utf8(bytes).ok()
        };
        let account = text(&record.key).ok_or("the key is no account")?;
        let amount = text(&record.value).and_then(|value| value.parse().ok());
        let amount = amount.ok_or("the value is no amount")?;
        Ok(Self { account, amount })
    }
}

impl Store {
    /// Opens the database and makes it if there is none.
    pub fn open(path: &str) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // The broker is told that a record has been dealt with, and will not give it again: by then a power cut must
        // not take it back. With less than FULL it could.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLES)?;
        Ok(Self { connection })
    }

    /// Takes the effects of the records that have not had theirs, all in one transaction. Returns how many had theirs
    /// before.
    ///
    /// A record that makes no sense is taken note of and has no effect; to stop at it would stop its partition for ever.
    pub fn handle(&mut self, records: &[Record]) -> Result<usize> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(behavior)?;
        let mut again = 0;
        {
            let mut mark = transaction.prepare(
                "INSERT INTO handled (topic_id, partition, record_offset, refused)
                 VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
            )?;
            let mut pay = transaction.prepare(
                "INSERT INTO accounts (name, balance) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET balance = balance + excluded.balance",
            )?;
            for record in records {
                let payment = Payment::of(record);
                let marked = mark.execute(params![
                    record.identity.topic_id.as_bytes(),
                    record.identity.partition,
                    record.identity.offset,
                    payment.as_ref().err(),
                ])?;
                if marked == 0 {
                    again += 1;
                } else if let Ok(payment) = payment {
                    pay.execute(params![payment.account, payment.amount])?;
                }
            }
        }
        transaction.commit()?;
        Ok(again)
    }
}
