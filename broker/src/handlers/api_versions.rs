//! ApiVersions: what this broker answers (KIP-35, KIP-511, KIP-584).
//!
//! The list is the served versions of `odradek_protocol::api`, and nothing that has no handler.

use std::sync::LazyLock;

use odradek_protocol::api;
use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, api_versions_response};

use crate::context::RequestContext;
use crate::dispatch;
use crate::handlers::Reply;

/// First version whose request names the client's software.
const FIRST_NAMED_VERSION: i16 = 3;

static SERVED: LazyLock<Vec<api_versions_response::ApiVersion>> = LazyLock::new(|| {
    api::served()
        .iter()
        .filter(|served| dispatch::is_routed(served.key))
        .map(|served| {
            message!(api_versions_response::ApiVersion {
                api_key: served.key.key(),
                min_version: served.min,
                max_version: served.max,
            })
        })
        .collect()
});

/// Answers with the served APIs.
pub async fn handle(
    context: RequestContext,
    request: ApiVersionsRequest,
) -> Reply<ApiVersionsResponse> {
    if context.api_version >= FIRST_NAMED_VERSION
        && !(is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version))
    {
        return Reply::Now(message!(ApiVersionsResponse {
            error_code: ErrorCode::InvalidRequest.code(),
        }));
    }
    Reply::Now(message!(ApiVersionsResponse {
        api_keys: SERVED.clone(),
    }))
}

/// The answer, in version 0, to a version of ApiVersions that is not known here: the sender tries
/// again with one that is.
pub fn unsupported_version() -> ApiVersionsResponse {
    message!(ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: SERVED.clone(),
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
