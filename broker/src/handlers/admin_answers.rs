//! What the answers of the administrative APIs have in common.

use std::time::{Duration, Instant};

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::messages::StrBytes;

use crate::context::{BrokerContext, RequestContext};
use crate::metadata::config_rules::TableRules;
use crate::metadata::image::MetadataImage;
use crate::metadata::records::MetadataRecord;
use crate::metadata::refusal::Refusal;
use crate::metadata::service::MetadataError;
use crate::metadata::topics;
use crate::partitions::log_dir::Room;

/// "Nobody asked which operations are allowed."
pub const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// Every operation on a topic, as KIP-430 numbers them: nothing is forbidden to anybody yet.
pub const ALL_TOPIC_OPERATIONS: i32 = {
    let (read, write, create, delete) = (1 << 3, 1 << 4, 1 << 5, 1 << 6);
    let (alter, describe, describe_configs, alter_configs) = (1 << 7, 1 << 8, 1 << 10, 1 << 11);
    read | write | create | delete | alter | describe | describe_configs | alter_configs
};

/// Every operation on the cluster.
pub const ALL_CLUSTER_OPERATIONS: i32 = {
    let (create, alter, describe, cluster_action) = (1 << 5, 1 << 7, 1 << 8, 1 << 9);
    let (describe_configs, alter_configs, idempotent_write) = (1 << 10, 1 << 11, 1 << 12);
    create | alter | describe | cluster_action | describe_configs | alter_configs | idempotent_write
};

/// A code and a sentence, as most entries of an answer carry them.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The code.
    pub code: i16,
    /// The sentence; there is none for success.
    pub message: Option<StrBytes>,
}

impl Verdict {
    /// Success.
    pub const OK: Self = Self {
        code: 0,
        message: None,
    };

    /// A code with its own sentence.
    pub fn of(code: ErrorCode) -> Self {
        Self {
            code: code.code(),
            message: (code != ErrorCode::None).then(|| StrBytes::from(code.message())),
        }
    }

    /// What became of an entry.
    pub fn of_result<T>(result: &Result<T, Refusal>) -> Self {
        match result {
            Ok(_) => Self::OK,
            Err(refusal) => Self::from(refusal),
        }
    }
}

impl From<&Refusal> for Verdict {
    fn from(refusal: &Refusal) -> Self {
        Self {
            code: refusal.code().code(),
            message: Some(StrBytes::from(refusal.to_string())),
        }
    }
}

impl From<&MetadataError> for Verdict {
    fn from(error: &MetadataError) -> Self {
        Self {
            code: error.code().code(),
            message: Some(StrBytes::from(error.to_string())),
        }
    }
}

/// A resource whose settings are altered: its kind and its name.
pub type AlteredResource = (i8, StrBytes);

/// What a change of settings comes to: records, and an outcome for each resource.
pub type Alteration = (Vec<MetadataRecord>, Vec<Result<(), Refusal>>);

/// Carries out a change of settings, or with `validate_only` says what would come of it, and
/// returns each resource with its verdict once this broker has taken the change over.
pub async fn alter_configs<D>(
    broker: &BrokerContext,
    named: Vec<AlteredResource>,
    validate_only: bool,
    decide: D,
) -> impl Iterator<Item = (AlteredResource, Verdict)> + use<D>
where
    D: FnOnce(&MetadataImage, &TableRules) -> Alteration + Send + 'static,
{
    let rules = topics::rules(broker);
    let altered = broker.metadata.run_where(Room::Scarce, move |image| {
        let (records, outcomes) = decide(image, &rules);
        (topics::unless(validate_only, records), outcomes)
    });
    let verdicts: Vec<Verdict> = match altered.await {
        Ok(done) => {
            broker.partitions.wait_until_reconciled(done.offset).await;
            done.value.iter().map(Verdict::of_result).collect()
        }
        Err(error) => vec![Verdict::from(&error); named.len()],
    };
    named.into_iter().zip(verdicts)
}

/// When the sender stops waiting; `None` if it does not wait for partitions at all.
pub fn deadline(context: &RequestContext, timeout_ms: i32) -> Option<Instant> {
    let timeout_ms = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0)?;
    Some(context.received_at + Duration::from_millis(timeout_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_operations_are_the_numbers_that_kafka_sends_without_an_authorizer() {
        assert_eq!(ALL_TOPIC_OPERATIONS, 3_576);
        assert_eq!(ALL_CLUSTER_OPERATIONS, 8_096);
    }
}
