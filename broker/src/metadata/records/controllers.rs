//! Records about controllers: the nodes that may vote on the metadata, and those that do.

use odradek_protocol::codec::{
    DecodeError, Decoder, EncodeError, EncodeTarget, Encoder, TagOutcome, TaggedField, Uuid,
};
use odradek_protocol::ids::NodeId;

use super::OWN_TAGS;
use super::brokers::{BrokerEndpoint, SupportedFeature, read_reach, write_reach};
use super::codec::{tag, write_string};

/// The id of a controller's data directory, which Kafka's record has no field for.
const DIRECTORY: u32 = OWN_TAGS;

/// A controller's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterControllerRecord {
    /// The controller.
    pub controller_id: NodeId,
    /// Identity of the process, new at every start.
    pub incarnation_id: Uuid,
    /// Where it is reached.
    pub endpoints: Vec<BrokerEndpoint>,
    /// What it could be finalized at.
    pub features: Vec<SupportedFeature>,
    /// Id of its data directory; zero in a record of Kafka's.
    pub directory: Uuid,
}

/// A voter of the metadata quorum. A node with another data directory is not it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoterRecord {
    /// Its `node.id`.
    pub id: NodeId,
    /// Id of its data directory.
    pub directory: Uuid,
    /// Where it is reached by other controllers.
    pub endpoints: Vec<VoterEndpoint>,
}

/// One listener of a voter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoterEndpoint {
    /// Name of the listener.
    pub name: String,
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl RegisterControllerRecord {
    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.controller_id.get())?;
        encoder.write_uuid(self.incarnation_id)?;
        // Never ready for a migration from ZooKeeper.
        encoder.write_bool(false)?;
        write_reach(encoder, &self.endpoints, &self.features)?;
        let mut tags = Vec::new();
        if !self.directory.is_zero() {
            tags.push(tag(DIRECTORY, |encoder| {
                encoder.write_uuid(self.directory)
            })?);
        }
        Ok(tags)
    }

    pub(super) fn decode(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        let controller_id = NodeId::new(decoder.read_i32()?);
        let incarnation_id = decoder.read_uuid()?;
        decoder.read_bool()?;
        let (endpoints, features) = read_reach(decoder)?;
        let mut directory = Uuid::ZERO;
        decoder.read_tagged_fields_with(|tag, decoder| match tag {
            DIRECTORY => {
                directory = decoder.read_uuid()?;
                Ok(TagOutcome::Decoded)
            }
            _ => Ok(TagOutcome::Retained),
        })?;
        Ok(Self {
            controller_id,
            incarnation_id,
            endpoints,
            features,
            directory,
        })
    }
}

pub(super) fn write_voters<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    voters: &[VoterRecord],
) -> Result<(), EncodeError> {
    encoder.write_compact_array_len(voters.len())?;
    for voter in voters {
        encoder.write_i32(voter.id.get())?;
        encoder.write_uuid(voter.directory)?;
        encoder.write_compact_array_len(voter.endpoints.len())?;
        for endpoint in &voter.endpoints {
            write_string(encoder, &endpoint.name)?;
            write_string(encoder, &endpoint.host)?;
            encoder.write_u16(endpoint.port)?;
        }
    }
    Ok(())
}

pub(super) fn read_voters(decoder: &mut Decoder) -> Result<Vec<VoterRecord>, DecodeError> {
    let count = decoder.read_compact_array_len()?;
    decoder.read_vec(count, |decoder| {
        let id = NodeId::new(decoder.read_i32()?);
        let directory = decoder.read_uuid()?;
        let count = decoder.read_compact_array_len()?;
        let endpoints = decoder.read_vec(count, |decoder| {
            Ok(VoterEndpoint {
                name: decoder.read_compact_string()?.into_string(),
                host: decoder.read_compact_string()?.into_string(),
                port: decoder.read_u16()?,
            })
        })?;
        Ok(VoterRecord {
            id,
            directory,
            endpoints,
        })
    })
}
