//! ListConfigResources (KIP-1142): what has a configuration.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::list_config_resources_response::ConfigResource;
use odradek_protocol::messages::{
    ListConfigResourcesRequest, ListConfigResourcesResponse, StrBytes,
};

use super::Reply;
use crate::context::RequestContext;
use crate::metadata::image::{MetadataImage, ResourceKind};

/// First version that lists other resources than client metrics subscriptions.
const FIRST_TYPED_VERSION: i16 = 1;

/// In the order of the answer.
const ALL_KINDS: [ResourceKind; 5] = [
    ResourceKind::Group,
    ResourceKind::ClientMetrics,
    ResourceKind::BrokerLogger,
    ResourceKind::Broker,
    ResourceKind::Topic,
];

/// Answers ListConfigResources.
pub async fn handle(
    context: RequestContext,
    request: ListConfigResourcesRequest,
) -> Reply<ListConfigResourcesResponse> {
    let kinds: Option<Vec<ResourceKind>> = if context.api_version < FIRST_TYPED_VERSION {
        Some(vec![ResourceKind::ClientMetrics])
    } else if request.resource_types.is_empty() {
        Some(ALL_KINDS.to_vec())
    } else {
        let kinds = request
            .resource_types
            .into_iter()
            .map(ResourceKind::from_code);
        kinds.collect()
    };
    let Some(kinds) = kinds else {
        return Reply::Now(message!(ListConfigResourcesResponse {
            error_code: ErrorCode::UnsupportedVersion.code(),
        }));
    };
    let image = context.broker.metadata.image();
    let config_resources = ALL_KINDS
        .into_iter()
        .filter(|kind| kinds.contains(kind))
        .flat_map(|kind| {
            names(&image, kind).into_iter().map(move |resource_name| {
                message!(ConfigResource {
                    resource_name,
                    resource_type: kind.code(),
                })
            })
        })
        .collect();
    Reply::Now(message!(ListConfigResourcesResponse { config_resources }))
}

fn names(image: &MetadataImage, kind: ResourceKind) -> Vec<StrBytes> {
    match kind {
        ResourceKind::Topic => image
            .topics()
            .map(|topic| StrBytes::from(&*topic.name))
            .collect(),
        ResourceKind::Broker | ResourceKind::BrokerLogger => image
            .brokers()
            .map(|(id, _)| StrBytes::from(id.to_string()))
            .collect(),
        ResourceKind::ClientMetrics | ResourceKind::Group => image
            .configured_of(kind)
            .map(|(resource, _)| StrBytes::from(resource.name.as_str()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::records::{MetadataRecord, TopicRecord};
    use odradek_protocol::ids::{Offset, TopicId};

    #[test]
    fn topics_are_listed_whether_or_not_they_have_settings() {
        let mut image = MetadataImage::default();
        let topic = MetadataRecord::Topic(TopicRecord {
            name: "t".to_owned(),
            topic_id: TopicId::from_bytes([1; 16]),
        });
        image.apply(&[topic], Offset::new(1)).expect("applies");
        assert_eq!(names(&image, ResourceKind::Topic), [StrBytes::from("t")]);
        assert!(names(&image, ResourceKind::Group).is_empty());
    }
}
