//! AlterConfigs: all settings of a resource at once. What the request does not name falls back to
//! its default.

use odradek_protocol::message;
use odradek_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use odradek_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse, StrBytes};

use super::Reply;
use super::admin_answers::{self, AlteredResource};
use crate::context::RequestContext;
use crate::metadata::config_rules::TableRules;
use crate::metadata::controller::alter_configs::{KeyValue, ResourceChange, alter_configs};
use crate::metadata::image::MetadataImage;

/// Answers AlterConfigs.
pub async fn handle(
    context: RequestContext,
    request: AlterConfigsRequest,
) -> Reply<AlterConfigsResponse> {
    let broker = &context.broker;
    let named: Vec<AlteredResource> = request
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
    let decide =
        move |image: &MetadataImage, rules: &TableRules| alter_configs(image, &changes, rules);
    let responses = admin_answers::alter_configs(broker, named, request.validate_only, decide)
        .await
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
