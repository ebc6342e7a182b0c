//! DeleteTopics: answered once the deletion is committed and this broker holds nothing of the
//! topics any more, or the sender's time is up.

use odradek_protocol::error_code::ErrorCode;
use odradek_protocol::ids::TopicId;
use odradek_protocol::message;
use odradek_protocol::messages::delete_topics_response::DeletableTopicResult;
use odradek_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, StrBytes};

use super::Reply;
use super::admin_answers::{Verdict, deadline};
use crate::context::RequestContext;
use crate::metadata::controller::delete_topics::{DoomedTopic, delete_topics};
use crate::metadata::refusal::Refusal;

/// First version whose entries carry a name or an id (KIP-516).
const FIRST_TOPIC_ID_VERSION: i16 = 6;
/// First version that knows TOPIC_DELETION_DISABLED (KIP-322).
const FIRST_DELETION_DISABLED_VERSION: i16 = 3;

/// Answers DeleteTopics.
pub async fn handle(
    context: RequestContext,
    request: DeleteTopicsRequest,
) -> Reply<DeleteTopicsResponse> {
    let broker = &context.broker;
    let doomed = doomed(&request, context.api_version);
    if !broker.config.load().delete_topics {
        let code = if context.api_version < FIRST_DELETION_DISABLED_VERSION {
            ErrorCode::InvalidRequest
        } else {
            ErrorCode::TopicDeletionDisabled
        };
        let verdict = Verdict {
            code: code.code(),
            ..Verdict::from(&Refusal::DeletionDisabled)
        };
        return Reply::Now(all(doomed, &verdict));
    }
    let command = doomed.clone();
    let deleted = broker
        .metadata
        .run(move |image| delete_topics(image, &command));
    let done = match deleted.await {
        Ok(done) => done,
        Err(error) => return Reply::Now(all(doomed, &Verdict::from(&error))),
    };
    let mut timed_out = false;
    if let Some(deadline) = deadline(&context, request.timeout_ms) {
        let gone = broker.partitions.wait_until_reconciled(done.offset);
        timed_out = tokio::time::timeout_at(deadline.into(), gone)
            .await
            .is_err();
    }
    let responses = done
        .value
        .into_iter()
        .map(|outcome| {
            let verdict = match &outcome.result {
                Ok(()) if timed_out => Verdict::of(ErrorCode::RequestTimedOut),
                result => Verdict::of_result(result),
            };
            result(outcome.name.map(StrBytes::from), outcome.topic_id, verdict)
        })
        .collect();
    Reply::Now(message!(DeleteTopicsResponse { responses }))
}

fn doomed(request: &DeleteTopicsRequest, version: i16) -> Vec<DoomedTopic> {
    if version < FIRST_TOPIC_ID_VERSION {
        let by_name = |name: &StrBytes| DoomedTopic {
            name: Some(name.as_str().to_owned()),
            topic_id: TopicId::ZERO,
        };
        return request.topic_names.iter().map(by_name).collect();
    }
    request
        .topics
        .iter()
        .map(|topic| DoomedTopic {
            name: topic.name.as_ref().map(|name| name.as_str().to_owned()),
            topic_id: topic.topic_id.into(),
        })
        .collect()
}

fn all(doomed: Vec<DoomedTopic>, verdict: &Verdict) -> DeleteTopicsResponse {
    let responses = doomed
        .into_iter()
        .map(|topic| {
            result(
                topic.name.map(StrBytes::from),
                topic.topic_id,
                verdict.clone(),
            )
        })
        .collect();
    message!(DeleteTopicsResponse { responses })
}

fn result(name: Option<StrBytes>, topic_id: TopicId, verdict: Verdict) -> DeletableTopicResult {
    message!(DeletableTopicResult {
        name,
        topic_id: topic_id.into(),
        error_code: verdict.code,
        error_message: verdict.message,
    })
}
