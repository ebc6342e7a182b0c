//! DescribeCluster (KIP-700, KIP-919): the brokers of the cluster.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use odradek_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse, StrBytes};

use super::admin_answers::{ALL_CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED};
use super::{Reply, topic_view};
use crate::context::RequestContext;

const ENDPOINTS_OF_BROKERS: i8 = 1;
const ENDPOINTS_OF_CONTROLLERS: i8 = 2;

/// Answers DescribeCluster.
pub async fn handle(
    context: RequestContext,
    request: DescribeClusterRequest,
) -> Reply<DescribeClusterResponse> {
    match request.endpoint_type {
        ENDPOINTS_OF_BROKERS => {}
        ENDPOINTS_OF_CONTROLLERS => {
            return Reply::Now(refused(
                ErrorCode::MismatchedEndpointType,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of \
                 type CONTROLLER"
                    .to_owned(),
            ));
        }
        other => {
            return Reply::Now(refused(
                ErrorCode::UnsupportedEndpointType,
                format!("Unsupported endpoint type {other}"),
            ));
        }
    }
    let broker = &context.broker;
    let image = broker.metadata.image();
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
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            ALL_CLUSTER_OPERATIONS
        } else {
            OPERATIONS_NOT_ASKED
        },
    }))
}

fn refused(code: ErrorCode, message: String) -> DescribeClusterResponse {
    message!(DescribeClusterResponse {
        error_code: code.code(),
        error_message: Some(StrBytes::from(message)),
        controller_id: -1,
    })
}
