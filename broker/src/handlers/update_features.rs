//! UpdateFeatures (KIP-584): finalized levels of features. Each has one level in this version, so all
//! there is to say is whether it is that one.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::update_features_request::FeatureUpdateKey;
use odradek_protocol::messages::update_features_response::UpdatableFeatureResult;
use odradek_protocol::messages::{StrBytes, UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::Reply;
use crate::context::RequestContext;
use crate::metadata::features;

/// Last version that answers for each feature.
const LAST_DETAILED_VERSION: i16 = 1;

/// What Kafka says before it names the feature that is in the way.
const FAILED: &str =
    "The update failed for all features since the following feature had an error: ";

/// Answers UpdateFeatures.
pub async fn handle(
    context: RequestContext,
    request: UpdateFeaturesRequest,
) -> Reply<UpdateFeaturesResponse> {
    let refusal = request
        .feature_updates
        .iter()
        .find_map(|update| refusal(update, context.api_version));
    let (code, message) = match refusal {
        Some(message) => (
            ErrorCode::InvalidUpdateVersion,
            Some(StrBytes::from(format!("{FAILED}{message}"))),
        ),
        None => (ErrorCode::None, None),
    };
    let results = if context.api_version <= LAST_DETAILED_VERSION && code == ErrorCode::None {
        let of = |update: &FeatureUpdateKey| {
            message!(UpdatableFeatureResult {
                feature: update.feature.clone(),
            })
        };
        request.feature_updates.iter().map(of).collect()
    } else {
        Vec::new()
    };
    Reply::Now(message!(UpdateFeaturesResponse {
        error_code: code.code(),
        error_message: message,
        results,
    }))
}

fn refusal(update: &FeatureUpdateKey, version: i16) -> Option<String> {
    const UPGRADE: i8 = 1;
    const UNSAFE_DOWNGRADE: i8 = 3;
    let (name, level) = (update.feature.as_str(), update.max_version_level);
    let invalid = |reason: String| {
        Some(format!(
            "Invalid update version {level} for feature {name}. {reason}"
        ))
    };
    if version > 0 && !(UPGRADE..=UNSAFE_DOWNGRADE).contains(&update.upgrade_type) {
        return invalid("The controller does not support the given upgrade type.".to_owned());
    }
    if level < 0 {
        return invalid("A feature version cannot be less than 0.".to_owned());
    }
    let known = features::INITIAL.iter().find(|(known, _)| *known == name);
    match known {
        Some((_, only)) if *only == level => None,
        Some((_, only)) => invalid(format!(
            "Local controller {} only supports versions {only}-{only}",
            "of this version"
        )),
        None => invalid("Local controller does not support this feature.".to_owned()),
    }
}
