//! AlterConfigs: all settings of a resource at once. What the request does not name falls back to
//! its default.

use odradek_protocol::message;
use odradek_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use odradek_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse, StrBytes};

use super::Reply;
use super::admin_answers::Verdict;
use crate::context::RequestContext;
use crate::metadata::controller::alter_configs::{KeyValue, ResourceChange, alter_configs};
use crate::metadata::topics;

/// Answers AlterConfigs.
pub async fn handle(
    context: RequestContext,
    request: AlterConfigsRequest,
) -> Reply<AlterConfigsResponse> {
    let broker = &context.broker;
    let named: Vec<(i8, StrBytes)> = request
        .resources
        .iter()
        .map(|resource| (resource.resource_type, resource.resource_name.clone()))
        .collect();
    let changes: Vec<_> = request
        .resources
        .into_iter()
        .map(|resource| ResourceChange {
            kind: resource.resource_type,
            name: resource.resource_name.into_string(),
            changes: resource
                .configs
                .into_iter()
                .map(|config| KeyValue {
                    key: config.name.into_string(),
                    value: config.value.map(StrBytes::into_string),
                })
                .collect(),
        })
        .collect();
    let (rules, validate_only) = (topics::rules(broker), request.validate_only);
    let altered = broker.metadata.run(move |image| {
        let (records, outcomes) = alter_configs(image, &changes, &rules);
        (topics::unless(validate_only, records), outcomes)
    });
    let verdicts: Vec<Verdict> = match altered.await {
        Ok(done) => {
            broker.partitions.wait_until_reconciled(done.offset).await;
            done.value.iter().map(Verdict::of_result).collect()
        }
        Err(error) => vec![Verdict::from(&error); named.len()],
    };
    let responses = named
        .into_iter()
        .zip(verdicts)
        .map(|((resource_type, resource_name), verdict)| {
            message!(AlterConfigsResourceResponse {
                error_code: verdict.code,
                error_message: verdict.message,
                resource_type,
                resource_name,
            })
        })
        .collect();
    Reply::Now(message!(AlterConfigsResponse { responses }))
}
