//! ConsumerGroupDescribe (69): consumer groups in detail, each in the order asked (KIP-848).
//!
//! Version 1 says of each member which protocol it speaks.

use odradek_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use odradek_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, StrBytes,
};

use super::Reply;
use super::group_answers::ALL_OPERATIONS;
use crate::context::RequestContext;
use crate::groups::consumer::assignment::Partitions;
use crate::groups::error::GroupError;
use crate::groups::messages::{ConsumerGroupDescription, ConsumerMemberDescription};
use crate::groups::names::GroupId;
use crate::metadata::features;
use crate::metadata::image::MetadataImage;

/// What version 1 says of a member of the classic protocol.
const CLASSIC_MEMBER: i8 = 0;
/// What version 1 says of a member of the consumer protocol.
const CONSUMER_MEMBER: i8 = 1;

/// Answers ConsumerGroupDescribe.
pub async fn handle(
    context: RequestContext,
    request: ConsumerGroupDescribeRequest,
) -> Reply<ConsumerGroupDescribeResponse> {
    let image = context.broker.metadata.image();
    let is_served = features::serves_consumer_groups(&image);
    let mut response = ConsumerGroupDescribeResponse::default();
    for id in request.group_ids {
        let described = match is_served {
            true if id.is_empty() => Err(GroupError::InvalidGroupId),
            true => {
                let groups = &context.broker.groups;
                groups.describe_consumer(GroupId::new(&id)).await
            }
            false => Err(GroupError::UnsupportedVersion),
        };
        let mut group = answer(&image, &id, described);
        if request.include_authorized_operations && group.error_code == 0 {
            group.authorized_operations = ALL_OPERATIONS;
        }
        response.groups.push(group);
    }
    Reply::Now(response)
}

fn answer(
    image: &MetadataImage,
    id: &StrBytes,
    described: Result<Option<ConsumerGroupDescription>, GroupError>,
) -> DescribedGroup {
    let mut group = DescribedGroup::default();
    group.group_id = id.clone();
    match described {
        Ok(Some(description)) => {
            group.group_state = StrBytes::from(description.state);
            group.group_epoch = description.epoch.get();
            group.assignment_epoch = description.target_epoch.get();
            group.assignor_name = StrBytes::from(description.assignor);
            let members = description.members.iter();
            group.members = members.map(|member| member_of(image, member)).collect();
        }
        Ok(None) => {
            group.error_code = GroupError::GroupNotFound.code().code();
            group.error_message = Some(StrBytes::from(format!("Group {id} not found.")));
        }
        Err(error) => group.error_code = error.code().code(),
    }
    group
}

fn member_of(image: &MetadataImage, described: &ConsumerMemberDescription) -> Member {
    let mut member = Member::default();
    member.member_id = StrBytes::from(described.member.as_str());
    let instance = described.instance.as_ref();
    member.instance_id = instance.map(|instance| StrBytes::from(instance.as_str()));
    member.rack_id = described.rack.as_deref().map(StrBytes::from);
    member.member_epoch = described.epoch.get();
    member.client_id = StrBytes::from(described.client_id.as_str());
    member.client_host = StrBytes::from(described.client_host.as_str());
    let topics = described.topics.iter();
    member.subscribed_topic_names = topics.map(|name| StrBytes::from(name.as_str())).collect();
    member.subscribed_topic_regex = described.regex.as_deref().map(StrBytes::from);
    member.assignment = assignment_of(image, &described.assigned);
    member.target_assignment = assignment_of(image, &described.target);
    member.member_type = match described.is_classic {
        true => CLASSIC_MEMBER,
        false => CONSUMER_MEMBER,
    };
    member
}

/// Partitions by the names of their topics; those of topics that are gone are left out.
fn assignment_of(image: &MetadataImage, partitions: &Partitions) -> Assignment {
    let topics = partitions.topics().filter_map(|(id, indexes)| {
        let mut topic = TopicPartitions::default();
        topic.topic_id = id.into();
        topic.topic_name = StrBytes::from(&*image.topic_by_id(id)?.name);
        topic.partitions = indexes.iter().map(|index| index.get()).collect();
        Some(topic)
    });
    let mut assignment = Assignment::default();
    assignment.topic_partitions = topics.collect();
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_does_not_exist_is_an_error_with_words() {
        let image = MetadataImage::default();
        let group = answer(&image, &StrBytes::from("g"), Ok(None));
        assert_eq!((group.error_code, group.group_id.as_str()), (69, "g"));
        assert!(group.error_message.is_some());
        let loading = answer(&image, &StrBytes::from("g"), Err(GroupError::Loading));
        assert_eq!(loading.error_code, 14);
    }
}
