//! Where Odradek's answers differ from Apache Kafka 4.4.0's on purpose, each with its reason.
//!
//! This is the one list; `docs/PROTOCOL.md` prints it, and a test compares the two. The list only shrinks: a line
//! that matches nothing any more fails the comparison it belongs to.

/// One known difference.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The comparison that it belongs to.
    pub case: &'static str,
    /// The API, as Kafka spells it.
    pub api: &'static str,
    /// What was asked: the beginning of the step's label; empty for every step.
    pub asked: &'static str,
    /// The field, as in `topics[].error_code`; everything below it is included.
    pub path: &'static str,
    /// Why it differs.
    pub reason: &'static str,
}

macro_rules! known {
    ($($case:ident $api:ident [$($asked:literal)|*] [$($path:literal)|*] $reason:literal;)*) => {
        &[$(known!(@asked $case $api [$($asked)|*] [$($path)|*] $reason)),*]
    };
    (@asked $case:ident $api:ident [$($asked:literal)|*] $paths:tt $reason:literal) => {
        Differences {
            case: stringify!($case),
            api: stringify!($api),
            asked: &[$($asked),*],
            paths: known!(@paths $paths),
            reason: $reason,
        }
    };
    (@paths [$($path:literal)|*]) => { &[$($path),*] };
}

/// Several differences with one reason: each `asked` at each of `paths`.
#[derive(Clone, Copy, Debug)]
pub struct Differences {
    /// The comparison that they belong to.
    pub case: &'static str,
    /// The API.
    pub api: &'static str,
    /// Labels.
    pub asked: &'static [&'static str],
    /// Fields.
    pub paths: &'static [&'static str],
    /// Why they differ.
    pub reason: &'static str,
}

impl Differences {
    /// One by one.
    pub fn each(&self) -> impl Iterator<Item = Known> {
        self.asked.iter().flat_map(move |asked| {
            self.paths.iter().map(move |path| Known {
                case: self.case,
                api: self.api,
                asked,
                path,
                reason: self.reason,
            })
        })
    }
}

/// Every known difference.
pub const KNOWN: &[Differences] = known! {
    api_versions ApiVersions ["a client" | "a name"] ["api_keys"]
        "Only what is served is advertised; the table above is the whole of it.";
    api_versions ApiVersions ["a client"] ["supported_features" | "finalized_features"]
        "Clients choose newer behaviour by these features, so a feature is listed once what it promises works.";
    metadata_by_id Metadata ["by neither"] ["topics[].error_code" | "error_code"]
        "A topic with neither name nor id is INVALID_REQUEST; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.";
    describe_configs_of_other_resources DescribeConfigs ["a group"] ["results[].configs"]
        "Groups have the settings of consumer groups only, and the assignor is never run elsewhere.";
    incremental_alter_configs_of_a_topic IncrementalAlterConfigs ["an unknown operation"] ["responses[]"]
        "INVALID_REQUEST; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.";
    incremental_alter_configs_of_brokers IncrementalAlterConfigs ["an unknown key"] ["responses[]"]
        "A broker key that does not exist is refused; Kafka stores it.";
    incremental_alter_configs_of_loggers DescribeConfigs ["fatal, now"] ["results[].configs[].value"]
        "There is no level above ERROR, which FATAL is taken for.";
    fetch_read_committed Fetch ["isolation level 2" | "isolation level -1"] ["responses" | "error_code"]
        "An isolation level that does not exist reads as the nearest that does; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.";
    fetch_with_small_limits Fetch ["3200"] ["responses[].partitions[].records"]
        "Only whole batches are sent; Kafka cuts the last one off where the limit falls, and clients throw the piece away.";
    produce_with_every_codec Produce ["Lz4Linked"] ["responses[].partition_responses[]"]
        "LZ4 frames whose blocks depend on each other are taken; Kafka's library cannot read them, and the answer is UNKNOWN_SERVER_ERROR.";
    produce_of_damaged_batches Produce ["codec 5" | "codec 7"]
        ["responses[].partition_responses[].error_code"]
        "INVALID_RECORD; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.";
    produce_of_damaged_batches Produce ["codec 5" | "codec 7"]
        ["responses[].partition_responses[].log_start_offset"]
        "The log start offset is told with every refusal of a batch.";
    produce_of_damaged_batches Produce ["gzip of nonsense" | "zstd of nonsense" | "lz4 of nonsense" | "snappy of nonsense"]
        ["responses[].partition_responses[].error_code"]
        "INVALID_RECORD; Kafka lets an exception through as UNKNOWN_SERVER_ERROR.";
    produce_of_damaged_batches Produce ["length too short"] ["responses[].partition_responses[]"]
        "Bytes behind the batch that are no batch make the request INVALID_RECORD before the CRC is looked at.";
    produce_of_damaged_batches Produce ["length negative" | "magic 3" | "magic -1"]
        ["responses[].partition_responses[].error_message"]
        "Told by the error code alone.";
    produce_of_damaged_batches Produce ["first delta not zero" | "a delta twice" | "a delta too large" | "a delta negative"]
        ["responses[].partition_responses[]"]
        "Offset deltas that do not count up from 0 are INVALID_RECORD; Kafka stores them as they are.";
};
