//! IncrementalAlterConfigs (KIP-339): single settings are set, deleted, appended to or subtracted
//! from; the others stay.

use odradek_protocol::message;
use odradek_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use odradek_protocol::messages::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, StrBytes,
};

use super::Reply;
use super::admin_answers::{self, AlteredResource};
use crate::context::RequestContext;
use crate::metadata::config_rules::TableRules;
use crate::metadata::controller::alter_configs::{
    KeyChange, ResourceChange, incremental_alter_configs,
};
use crate::metadata::image::MetadataImage;

/// Answers IncrementalAlterConfigs.
pub async fn handle(
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> Reply<IncrementalAlterConfigsResponse> {
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
                .map(|config| KeyChange {
                    key: config.name.into_string(),
                    operation: config.config_operation,
                    value: config.value.map(StrBytes::into_string),
                })
                .collect(),
        })
        .collect();
    let decide = move |image: &MetadataImage, rules: &TableRules| {
        incremental_alter_configs(image, &changes, rules)
    };
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
    Reply::Now(message!(IncrementalAlterConfigsResponse { responses }))
}
