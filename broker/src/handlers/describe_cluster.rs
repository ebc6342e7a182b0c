//! DescribeCluster (KIP-700, KIP-919): the brokers of the cluster, or through a listener for controllers
//! the controllers.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use odradek_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse, StrBytes};

use super::admin_answers::{ALL_CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED};
use super::{Reply, topic_view};
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::image::MetadataImage;

/// First version that says which kind of endpoints is meant.
const FIRST_TYPED_VERSION: i16 = 1;
const ENDPOINTS_OF_BROKERS: i8 = 1;
const ENDPOINTS_OF_CONTROLLERS: i8 = 2;

/// Answers DescribeCluster.
pub async fn handle(
    context: RequestContext,
    request: DescribeClusterRequest,
) -> Reply<DescribeClusterResponse> {
    let is_for_controllers = context.connection.is_for_controllers;
    if let Err((code, message)) = check_kind(&context, request.endpoint_type) {
        return Reply::Now(refused(code, message));
    }
    let broker = &context.broker;
    let image = broker.metadata.image();
    if is_for_controllers {
        return Reply::Now(controllers(broker, &image, &request));
    }
    let brokers = topic_view::brokers(&context, &image)
        .into_iter()
        .filter(|broker| !broker.is_fenced || request.include_fenced_brokers)
        .map(|broker| {
            message!(DescribeClusterBroker {
                broker_id: broker.id,
                host: broker.host,
                port: broker.port,
                rack: broker.rack,
                is_fenced: broker.is_fenced,
            })
        })
        .collect();
    Reply::Now(message!(DescribeClusterResponse {
        cluster_id: StrBytes::from(broker.identity.cluster_id.as_str()),
        controller_id: topic_view::controller(broker, &image).get(),
        brokers,
        cluster_authorized_operations: operations(&request),
    }))
}

/// Whether the listener is of the kind that is asked about. Version 0 knows one kind only.
fn check_kind(context: &RequestContext, asked: i8) -> Result<(), (ErrorCode, String)> {
    let own = match context.connection.is_for_controllers {
        true => ENDPOINTS_OF_CONTROLLERS,
        false => ENDPOINTS_OF_BROKERS,
    };
    let name = |kind: i8| match kind {
        ENDPOINTS_OF_BROKERS => "BROKER",
        _ => "CONTROLLER",
    };
    let code = match context.api_version < FIRST_TYPED_VERSION {
        true => ErrorCode::InvalidRequest,
        false => ErrorCode::MismatchedEndpointType,
    };
    match asked {
        asked if asked == own => Ok(()),
        ENDPOINTS_OF_BROKERS | ENDPOINTS_OF_CONTROLLERS => {
            let (own, asked) = (name(own), name(asked));
            let message = format!(
                "The request was sent to an endpoint of type {own}, but we wanted an endpoint of type \
                 {asked}"
            );
            Err((code, message))
        }
        other => Err((
            ErrorCode::UnsupportedEndpointType,
            format!("Unsupported endpoint type {other}"),
        )),
    }
}

fn controllers(
    broker: &BrokerContext,
    image: &MetadataImage,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let listed = image.controllers().filter_map(|(id, controller)| {
        let endpoint = controller.endpoints.first()?;
        Some(message!(DescribeClusterBroker {
            broker_id: id.get(),
            host: StrBytes::from(endpoint.host.as_str()),
            port: i32::from(endpoint.port),
        }))
    });
    message!(DescribeClusterResponse {
        endpoint_type: ENDPOINTS_OF_CONTROLLERS,
        cluster_id: StrBytes::from(broker.identity.cluster_id.as_str()),
        controller_id: broker.metadata.controller().map_or(-1, |node| node.get()),
        brokers: listed.collect(),
        cluster_authorized_operations: operations(request),
    })
}

fn operations(request: &DescribeClusterRequest) -> i32 {
    match request.include_cluster_authorized_operations {
        true => ALL_CLUSTER_OPERATIONS,
        false => OPERATIONS_NOT_ASKED,
    }
}

fn refused(code: ErrorCode, message: String) -> DescribeClusterResponse {
    message!(DescribeClusterResponse {
        error_code: code.code(),
        error_message: Some(StrBytes::from(message)),
        controller_id: -1,
    })
}
