//! UpdateFeatures (KIP-584): finalized levels of features.
//!
//! `metadata.version` has one level in this version, so all there is to say is whether it is that one.
//! `kraft.version` goes from 0 to 1, after which the metadata says who votes on it, and never back. The
//! others go up, and down if that is asked for by name.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::message;
use odradek_protocol::messages::update_features_request::FeatureUpdateKey;
use odradek_protocol::messages::update_features_response::UpdatableFeatureResult;
use odradek_protocol::messages::{StrBytes, UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::Reply;
use super::admin_answers::Verdict;
use crate::context::{BrokerContext, RequestContext};
use crate::metadata::controller::voters::name_voters;
use crate::metadata::features::{self, KRAFT_VERSION, VOTERS_IN_METADATA};
use crate::metadata::image::MetadataImage;
use crate::metadata::records::{FeatureLevelRecord, MetadataRecord};
use crate::metadata::topics;
use crate::partitions::log_dir::Room;

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
    let verdict = update(&context, &request).await;
    let results =
        if context.api_version <= LAST_DETAILED_VERSION && verdict.code == ErrorCode::None.code() {
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
        error_code: verdict.code,
        error_message: verdict.message,
        results,
    }))
}

async fn update(context: &RequestContext, request: &UpdateFeaturesRequest) -> Verdict {
    let broker = &context.broker;
    let image = broker.metadata.image();
    let refusal = request
        .feature_updates
        .iter()
        .find_map(|update| refusal(broker, &image, update, context.api_version));
    if let Some(refusal) = refusal {
        return refused(refusal);
    }
    let raises = request.feature_updates.iter().any(|update| {
        update.feature.as_str() == KRAFT_VERSION && update.max_version_level == VOTERS_IN_METADATA
    });
    let raises = raises && !image.has_voter_records();
    if !raises && levels(&image, &request.feature_updates).is_empty() {
        return Verdict::OK;
    }
    let (validate_only, updates) = (request.validate_only, request.feature_updates.clone());
    let named = broker.metadata.run_where(Room::Scarce, move |image| {
        let mut records = levels(image, &updates);
        if raises && !image.has_voter_records() {
            match name_voters(image) {
                Ok(named) => records.extend(named),
                Err(missing) => return (Vec::new(), Err(missing)),
            }
        }
        (topics::unless(validate_only, records), Ok(()))
    });
    match named.await {
        Ok(done) => match done.value {
            Ok(()) => Verdict::OK,
            Err(missing) => refused(invalid(
                KRAFT_VERSION,
                VOTERS_IN_METADATA,
                &format!("Controller {missing} is not registered."),
            )),
        },
        Err(error) => Verdict::from(&error),
    }
}

/// The records of changed levels, but for those that come with other records.
fn levels(image: &MetadataImage, updates: &[FeatureUpdateKey]) -> Vec<MetadataRecord> {
    updates
        .iter()
        .filter(|update| update.feature.as_str() != KRAFT_VERSION)
        .filter(|update| finalized(image, &update.feature) != update.max_version_level)
        .map(|update| {
            MetadataRecord::FeatureLevel(FeatureLevelRecord {
                name: update.feature.as_str().to_owned(),
                level: update.max_version_level,
            })
        })
        .collect()
}

fn finalized(image: &MetadataImage, name: &str) -> i16 {
    image.features().get(name).copied().unwrap_or(0)
}

fn refused(reason: String) -> Verdict {
    Verdict {
        code: ErrorCode::InvalidUpdateVersion.code(),
        message: Some(StrBytes::from(format!("{FAILED}{reason}"))),
    }
}

fn invalid(name: &str, level: i16, reason: &str) -> String {
    format!("Invalid update version {level} for feature {name}. {reason}")
}

fn refusal(
    broker: &BrokerContext,
    image: &MetadataImage,
    update: &FeatureUpdateKey,
    version: i16,
) -> Option<String> {
    const UPGRADE: i8 = 1;
    const UNSAFE_DOWNGRADE: i8 = 3;
    let (name, level) = (update.feature.as_str(), update.max_version_level);
    let invalid = |reason: &str| Some(invalid(name, level, reason));
    if version > 0 && !(UPGRADE..=UNSAFE_DOWNGRADE).contains(&update.upgrade_type) {
        return invalid("The controller does not support the given upgrade type.");
    }
    if level < 0 {
        return invalid("A feature version cannot be less than 0.");
    }
    let supported = features::supported();
    let Some(known) = supported.iter().find(|known| known.name == name) else {
        return invalid("Local controller does not support this feature.");
    };
    let (min, max) = (known.min_level, known.max_level);
    if !(min..=max).contains(&level) {
        let node = broker.identity.node_id;
        return invalid(&format!(
            "Local controller {node} only supports versions {min}-{max}"
        ));
    }
    if name == KRAFT_VERSION && level < VOTERS_IN_METADATA && image.has_voter_records() {
        return invalid("Can't downgrade the version of this feature.");
    }
    let may_fall = match version {
        0 => update.allow_downgrade,
        _ => update.upgrade_type != UPGRADE,
    };
    if name != KRAFT_VERSION && level < finalized(image, name) && !may_fall {
        return invalid(
            "Can't downgrade the version of this feature without setting the upgrade type to \
             either safe or unsafe downgrade.",
        );
    }
    None
}
