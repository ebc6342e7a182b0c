//! Metadata and its relatives, compared with Kafka.

use anyhow::Result;
use compat_tests::transcript::compare;
use compat_tests::wire::text;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{ApiKey, MetadataRequest, TopicName};

#[test]
fn metadata_of_a_topic_that_does_not_exist() -> Result<()> {
    compare("metadata_of_a_topic_that_does_not_exist", |probe| {
        for version in probe.versions(ApiKey::Metadata) {
            let topic =
                MetadataRequestTopic::default().with_name(Some(TopicName(text(".. not/a name"))));
            let mut request = MetadataRequest::default().with_topics(Some(vec![topic]));
            if version >= 4 {
                request = request.with_allow_auto_topic_creation(false);
            }
            probe.ask("one topic", version, &request)?;
        }
        Ok(())
    })
}
