//! IncrementalAlterConfigs (KIP-339): single settings are set, deleted, appended to or subtracted
//! from; the others stay.
//!
//! Settings are changed by whoever leads the metadata. Log levels (KIP-412) are those of the broker that is
//! asked: they are changed here and stored nowhere, and what else such a request asks for is passed on.

use std::collections::HashMap;
use std::time::Duration;

use odradek_protocol::api::ApiKey;
use odradek_protocol::ids::NodeId;
use odradek_protocol::message;
use odradek_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use odradek_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use odradek_protocol::messages::{
    Bytes, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, StrBytes,
};
use odradek_protocol::request;

use super::Reply;
use super::admin_answers::{self, AlteredResource, Verdict};
use crate::context::{BrokerContext, RequestContext};
use crate::log_levels;
use crate::metadata::config_rules::TableRules;
use crate::metadata::controller::alter_configs::{
    KeyChange, ResourceChange, check_changes, incremental_alter_configs,
};
use crate::metadata::image::{MetadataImage, ResourceKind};
use crate::metadata::refusal::Refusal;

/// How long an answer waits until this node goes by what was changed elsewhere.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a request is about log levels too, and so is for the node that it was sent to.
pub fn is_about_log_levels(body: &Bytes, version: i16) -> bool {
    request::decode::<IncrementalAlterConfigsRequest>(body.clone(), version)
        .is_ok_and(|request| request.resources.iter().any(is_logger))
}

/// Answers IncrementalAlterConfigs.
pub async fn handle(
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> Reply<IncrementalAlterConfigsResponse> {
    let broker = &context.broker;
    let validate_only = request.validate_only;
    let mut times: HashMap<AlteredResource, usize> = HashMap::new();
    for resource in &request.resources {
        *times.entry(named(resource)).or_default() += 1;
    }
    let order: Vec<AlteredResource> = request.resources.iter().map(named).collect();
    let (of_loggers, rest): (Vec<_>, Vec<_>) = request.resources.into_iter().partition(is_logger);
    // Those of loggers first, whatever else there is.
    let verdict_on = |resource| {
        let is_once = times.get(&named(&resource)) == Some(&1);
        let outcome = if is_once {
            change_levels(broker.identity.node_id, resource, validate_only)
        } else {
            Err(Refusal::DuplicateResource)
        };
        Verdict::of_result(&outcome)
    };
    let of_loggers: Vec<Verdict> = of_loggers.into_iter().map(verdict_on).collect();
    let of_rest = match rest.is_empty() {
        true => Vec::new(),
        false => change_settings(&context, rest, validate_only).await,
    };
    let (mut of_loggers, mut of_rest) = (of_loggers.into_iter(), of_rest.into_iter());
    let responses = order
        .into_iter()
        .filter_map(|(resource_type, resource_name)| {
            let verdict = match is_logger_type(resource_type) {
                true => of_loggers.next(),
                false => of_rest.next(),
            }?;
            Some(message!(AlterConfigsResourceResponse {
                error_code: verdict.code,
                error_message: verdict.message,
                resource_type,
                resource_name,
            }))
        })
        .collect();
    Reply::Now(message!(IncrementalAlterConfigsResponse { responses }))
}

fn named(resource: &AlterConfigsResource) -> AlteredResource {
    (resource.resource_type, resource.resource_name.clone())
}

fn is_logger(resource: &AlterConfigsResource) -> bool {
    is_logger_type(resource.resource_type)
}

fn is_logger_type(resource_type: i8) -> bool {
    ResourceKind::from_code(resource_type) == Some(ResourceKind::BrokerLogger)
}

fn changes(resource: AlterConfigsResource) -> Vec<KeyChange> {
    resource
        .configs
        .into_iter()
        .map(|config| KeyChange {
            key: config.name.into_string(),
            operation: config.config_operation,
            value: config.value.map(StrBytes::into_string),
        })
        .collect()
}

fn change_levels(
    own: NodeId,
    resource: AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refusal> {
    let name = resource.resource_name.clone();
    let changes = changes(resource);
    check_changes(&changes)?;
    let id: i32 = name
        .parse()
        .map_err(|_| Refusal::BrokerNotANumber(name.as_str().to_owned()))?;
    if id != own.get() {
        return Err(Refusal::InvalidRequest(format!(
            "Unexpected node id. Expected {own}, but received {id}"
        )));
    }
    log_levels::of_process().change(&changes, validate_only)
}

/// A verdict for each resource, from here if this node leads the metadata and else from whoever does.
async fn change_settings(
    context: &RequestContext,
    resources: Vec<AlterConfigsResource>,
    validate_only: bool,
) -> Vec<Verdict> {
    let broker = &context.broker;
    let elsewhere = broker.controllers.as_ref();
    if let Some(controllers) = elsewhere.filter(|_| !broker.metadata.is_leading()) {
        let count = resources.len();
        let request = message!(IncrementalAlterConfigsRequest {
            resources,
            validate_only,
        });
        let api = ApiKey::IncrementalAlterConfigs;
        let answer = controllers.forward_message(api, context.api_version, &request);
        let answer: Result<IncrementalAlterConfigsResponse, _> = answer.await;
        return match answer {
            Ok(answer) => {
                // What was changed counts here once the metadata has been carried out as far as it is known.
                let known = broker.metadata.image().next_offset();
                let counts = broker.partitions.wait_until_reconciled(known);
                // Later than that the client asks again.
                let _ = tokio::time::timeout(CATCH_UP_TIMEOUT, counts).await;
                let responses = answer.responses.into_iter();
                responses
                    .map(|response| Verdict {
                        code: response.error_code,
                        message: response.error_message,
                    })
                    .collect()
            }
            Err(error) => vec![Verdict::from(&error); count],
        };
    }
    change_settings_here(broker, resources, validate_only).await
}

async fn change_settings_here(
    broker: &BrokerContext,
    resources: Vec<AlterConfigsResource>,
    validate_only: bool,
) -> Vec<Verdict> {
    let named: Vec<AlteredResource> = resources.iter().map(named).collect();
    let changes: Vec<_> = resources
        .into_iter()
        .map(|resource| ResourceChange {
            kind: resource.resource_type,
            name: resource.resource_name.as_str().to_owned(),
            changes: changes(resource),
        })
        .collect();
    let decide = move |image: &MetadataImage, rules: &TableRules| {
        incremental_alter_configs(image, &changes, rules)
    };
    let altered = admin_answers::alter_configs(broker, named, validate_only, decide).await;
    altered.map(|(_, verdict)| verdict).collect()
}
