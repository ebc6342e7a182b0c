//! ApiVersions: what this broker answers (KIP-35, KIP-511, KIP-584).
//!
//! The list is the served versions of `odradek_protocol::api`, and nothing that has no handler.

use std::sync::LazyLock;

use odradek_protocol::api::{self, ApiKey, ServedApi};
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::{
    ApiVersionsRequest, ApiVersionsResponse, StrBytes, api_versions_response,
};

use crate::context::{ClientSoftware, NodeIdentity, RequestContext};
use crate::dispatch;
use crate::handlers::Reply;
use crate::metadata::features;
use crate::metadata::image::MetadataImage;

/// First version whose request names the client's software.
const FIRST_NAMED_VERSION: i16 = 3;
/// First version in which the lowest level of a feature may be 0.
const FIRST_WITH_LEVEL_ZERO: i16 = 4;
/// First version whose request may name the cluster and node that the client means to reach.
const FIRST_ADDRESSED_VERSION: i16 = 5;

static SERVED: LazyLock<Vec<api_versions_response::ApiVersion>> =
    LazyLock::new(|| listed(|_| true));

/// What the listeners for controllers answer.
static SERVED_TO_CONTROLLERS: LazyLock<Vec<api_versions_response::ApiVersion>> =
    LazyLock::new(|| listed(|served| served.is_for_controllers()));

fn listed(wanted: impl Fn(&ServedApi) -> bool) -> Vec<api_versions_response::ApiVersion> {
    api::served()
        .iter()
        .filter(|served| dispatch::is_routed(served.key) && wanted(served))
        .map(|served| {
            message!(api_versions_response::ApiVersion {
                api_key: served.key.key(),
                min_version: served.min,
                max_version: served.max,
            })
        })
        .collect()
}

static SUPPORTED_FEATURES: LazyLock<Vec<api_versions_response::SupportedFeatureKey>> =
    LazyLock::new(|| {
        features::supported()
            .into_iter()
            .map(|feature| {
                message!(api_versions_response::SupportedFeatureKey {
                    name: StrBytes::from(feature.name),
                    min_version: feature.min_level,
                    max_version: feature.max_level,
                })
            })
            .collect()
    });

/// Answers with the served APIs and the features. The epoch of the features is the offset of the
/// metadata that they are read from, as with Kafka.
pub async fn handle(
    context: RequestContext,
    request: ApiVersionsRequest,
) -> Reply<ApiVersionsResponse> {
    let refused = |code: ErrorCode| {
        Reply::Now(message!(ApiVersionsResponse {
            error_code: code.code(),
        }))
    };
    if context.api_version >= FIRST_NAMED_VERSION
        && !(is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version))
    {
        return refused(ErrorCode::InvalidRequest);
    }
    if context.api_version >= FIRST_NAMED_VERSION {
        // The first counts: what a connection is counted as does not change.
        let software = &context.connection.client_software;
        software.get_or_init(|| ClientSoftware {
            name: request.client_software_name.as_str().to_owned(),
            version: request.client_software_version.as_str().to_owned(),
        });
    }
    if context.api_version >= FIRST_ADDRESSED_VERSION
        && let Err(code) = check_address(&context.broker.identity, &request)
    {
        return refused(code);
    }
    let image = context.broker.metadata.image();
    let last_offset = image.next_offset().get() - 1;
    Reply::Now(message!(ApiVersionsResponse {
        api_keys: if context.connection.is_for_controllers {
            SERVED_TO_CONTROLLERS.clone()
        } else {
            SERVED.clone()
        },
        supported_features: supported_features(context.api_version),
        finalized_features: finalized(&image),
        finalized_features_epoch: last_offset,
    }))
}

/// The supported features. Clients that ask in an old version fail on a lowest level of 0.
fn supported_features(version: i16) -> Vec<api_versions_response::SupportedFeatureKey> {
    let mut features = SUPPORTED_FEATURES.clone();
    if version < FIRST_WITH_LEVEL_ZERO {
        for feature in &mut features {
            feature.min_version = feature.min_version.max(1);
        }
    }
    features
}

/// The finalized features of the cluster, each at one level.
fn finalized(image: &MetadataImage) -> Vec<api_versions_response::FinalizedFeatureKey> {
    image
        .features()
        .iter()
        .map(|(name, level)| {
            message!(api_versions_response::FinalizedFeatureKey {
                name: StrBytes::from(name.as_str()),
                max_version_level: *level,
                min_version_level: *level,
            })
        })
        .collect()
}

/// Whether the client, if it says whom it means to reach, means this node of this cluster. An address
/// that now belongs to somebody else sends it back to its bootstrap servers. It names both or neither
/// (KIP-1242).
fn check_address(identity: &NodeIdentity, request: &ApiVersionsRequest) -> Result<(), ErrorCode> {
    const NO_NODE: i32 = -1;
    match (&request.cluster_id, request.node_id) {
        (None, NO_NODE) => Ok(()),
        (None, _) | (Some(_), NO_NODE) => Err(ErrorCode::InvalidRequest),
        (Some(cluster_id), node_id)
            if cluster_id.as_str() == identity.cluster_id && node_id == identity.node_id.get() =>
        {
            Ok(())
        }
        (Some(_), _) => Err(ErrorCode::RebootstrapRequired),
    }
}

/// The answer, in version 0, to a version of ApiVersions that is not known here: the versions of
/// ApiVersions, so that the sender can ask again.
pub fn unsupported_version() -> ApiVersionsResponse {
    message!(ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: SERVED
            .iter()
            .filter(|served| served.api_key == ApiKey::ApiVersions.key())
            .cloned()
            .collect(),
    })
}

/// Letters, digits, dots and hyphens, with a letter or digit at both ends (KIP-511).
fn is_software_name(name: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use odradek_protocol::ids::NodeId;

    #[test]
    fn a_client_that_means_another_cluster_or_node_is_sent_back() {
        let identity = NodeIdentity {
            node_id: NodeId::new(1),
            cluster_id: "ours".to_owned(),
            rack: None,
        };
        let meant = |cluster_id: Option<&str>, node_id: i32| {
            let request = message!(ApiVersionsRequest {
                cluster_id: cluster_id.map(Into::into),
                node_id,
            });
            check_address(&identity, &request)
        };
        assert_eq!(meant(None, -1), Ok(()));
        assert_eq!(meant(Some("ours"), 1), Ok(()));
        let sent_back = Err(ErrorCode::RebootstrapRequired);
        assert_eq!(meant(Some("ours"), 2), sent_back);
        assert_eq!(meant(Some("theirs"), 1), sent_back);
        let half = Err(ErrorCode::InvalidRequest);
        assert_eq!(meant(Some("ours"), -1), half);
        assert_eq!(meant(None, 1), half);
    }

    #[test]
    fn software_names_follow_the_rule_of_kip_511() {
        for good in [
            "a",
            "librdkafka",
            "apache-kafka-java",
            "4.4.0",
            "2.12.0-rc1",
        ] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", ".", "a b", "ä", "a_b"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }
}
