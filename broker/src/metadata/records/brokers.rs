//! Records about brokers.

use odradek_protocol::codec::{
    DecodeError, Decoder, EncodeError, EncodeTarget, Encoder, StrBytes, TagOutcome, TaggedField,
    Uuid,
};
use odradek_protocol::ids::NodeId;

use super::codec::{read_uuids, tag, write_nullable_string, write_string, write_uuids};

/// A broker's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterBrokerRecord {
    /// The broker.
    pub broker_id: NodeId,
    /// Identity of the process, new at every start.
    pub incarnation_id: Uuid,
    /// Number of this registration, growing with every start.
    pub broker_epoch: i64,
    /// Where clients reach the broker.
    pub endpoints: Vec<BrokerEndpoint>,
    /// What the broker could be finalized at.
    pub features: Vec<SupportedFeature>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Whether the broker may not lead yet.
    pub fenced: bool,
    /// Ids of the broker's log directories.
    pub log_dirs: Vec<Uuid>,
}

/// One advertised listener of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerEndpoint {
    /// Name of the listener.
    pub name: String,
    /// Advertised host.
    pub host: String,
    /// Advertised port.
    pub port: u16,
    /// Kafka's number of the security protocol; 0 is PLAINTEXT.
    pub security_protocol: i16,
}

/// Levels of a feature that a broker can work at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportedFeature {
    /// Name of the feature.
    pub name: String,
    /// Lowest level.
    pub min_level: i16,
    /// Highest level.
    pub max_level: i16,
}

/// A broker that is not expected back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnregisterBrokerRecord {
    /// The broker.
    pub broker_id: NodeId,
    /// Its registration.
    pub broker_epoch: i64,
}

/// A change of a registered broker; `None` and `false` leave things as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerChangeRecord {
    /// The broker.
    pub broker_id: NodeId,
    /// Its registration.
    pub broker_epoch: i64,
    /// Whether it may lead.
    pub fenced: Option<bool>,
    /// Whether it is about to stop: it gives its leaderships away and gets no new ones.
    pub stopping: bool,
}

impl UnregisterBrokerRecord {
    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.broker_id.get())?;
        encoder.write_i64(self.broker_epoch)?;
        Ok(Vec::new())
    }

    pub(super) fn decode(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        let record = Self {
            broker_id: NodeId::new(decoder.read_i32()?),
            broker_epoch: decoder.read_i64()?,
        };
        decoder.read_tagged_fields()?;
        Ok(record)
    }
}

impl BrokerChangeRecord {
    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.broker_id.get())?;
        encoder.write_i64(self.broker_epoch)?;
        let mut tags = Vec::new();
        if let Some(fenced) = self.fenced {
            let change = if fenced { FENCED } else { UNFENCED };
            tags.push(tag(0, |encoder| encoder.write_i8(change))?);
        }
        if self.stopping {
            tags.push(tag(1, |encoder| encoder.write_i8(1))?);
        }
        Ok(tags)
    }

    pub(super) fn decode(decoder: &mut Decoder) -> Result<Self, DecodeError> {
        let mut record = Self {
            broker_id: NodeId::new(decoder.read_i32()?),
            broker_epoch: decoder.read_i64()?,
            fenced: None,
            stopping: false,
        };
        decoder.read_tagged_fields_with(|tag, decoder| {
            match tag {
                0 => {
                    record.fenced = match decoder.read_i8()? {
                        FENCED => Some(true),
                        UNFENCED => Some(false),
                        _ => None,
                    }
                }
                1 => record.stopping = decoder.read_i8()? > 0,
                _ => return Ok(TagOutcome::Retained),
            }
            Ok(TagOutcome::Decoded)
        })?;
        Ok(record)
    }
}

/// "Fenced" in a change of a broker.
const FENCED: i8 = 1;
/// "Not fenced any more" in a change of a broker.
const UNFENCED: i8 = -1;

impl RegisterBrokerRecord {
    pub(super) fn encode<T: EncodeTarget>(
        &self,
        encoder: &mut Encoder<T>,
    ) -> Result<Vec<TaggedField>, EncodeError> {
        encoder.write_i32(self.broker_id.get())?;
        // Never a ZooKeeper broker in migration.
        encoder.write_bool(false)?;
        encoder.write_uuid(self.incarnation_id)?;
        encoder.write_i64(self.broker_epoch)?;
        write_reach(encoder, &self.endpoints, &self.features)?;
        write_nullable_string(encoder, self.rack.as_deref())?;
        encoder.write_bool(self.fenced)?;
        // Never registered in the middle of a controlled shutdown.
        encoder.write_bool(false)?;
        let mut tags = Vec::new();
        if !self.log_dirs.is_empty() {
            tags.push(tag(0, |encoder| write_uuids(encoder, &self.log_dirs))?);
        }
        Ok(tags)
    }

    pub(super) fn decode(decoder: &mut Decoder, version: u32) -> Result<Self, DecodeError> {
        let broker_id = NodeId::new(decoder.read_i32()?);
        if version >= 2 {
            decoder.read_bool()?;
        }
        let incarnation_id = decoder.read_uuid()?;
        let broker_epoch = decoder.read_i64()?;
        let (endpoints, features) = read_reach(decoder)?;
        let rack = decoder
            .read_compact_nullable_string()?
            .map(StrBytes::into_string);
        let fenced = decoder.read_bool()?;
        if version >= 1 {
            decoder.read_bool()?;
        }
        let mut log_dirs = Vec::new();
        decoder.read_tagged_fields_with(|tag, decoder| match tag {
            0 => {
                log_dirs = read_uuids(decoder)?;
                Ok(TagOutcome::Decoded)
            }
            _ => Ok(TagOutcome::Retained),
        })?;
        Ok(Self {
            broker_id,
            incarnation_id,
            broker_epoch,
            endpoints,
            features,
            rack,
            fenced,
            log_dirs,
        })
    }
}

/// Writes where a node is reached and at what its features can be finalized: this stands alike in the
/// registrations of brokers and of controllers.
pub(super) fn write_reach<T: EncodeTarget>(
    encoder: &mut Encoder<T>,
    endpoints: &[BrokerEndpoint],
    features: &[SupportedFeature],
) -> Result<(), EncodeError> {
    encoder.write_compact_array_len(endpoints.len())?;
    for endpoint in endpoints {
        write_string(encoder, &endpoint.name)?;
        write_string(encoder, &endpoint.host)?;
        encoder.write_u16(endpoint.port)?;
        encoder.write_i16(endpoint.security_protocol)?;
        encoder.write_unsigned_varint(0)?;
    }
    encoder.write_compact_array_len(features.len())?;
    for feature in features {
        write_string(encoder, &feature.name)?;
        encoder.write_i16(feature.min_level)?;
        encoder.write_i16(feature.max_level)?;
        encoder.write_unsigned_varint(0)?;
    }
    Ok(())
}

/// Reads what [`write_reach`] writes.
pub(super) fn read_reach(
    decoder: &mut Decoder,
) -> Result<(Vec<BrokerEndpoint>, Vec<SupportedFeature>), DecodeError> {
    let count = decoder.read_compact_array_len()?;
    let endpoints = decoder.read_vec(count, |decoder| {
        let endpoint = BrokerEndpoint {
            name: decoder.read_compact_string()?.into_string(),
            host: decoder.read_compact_string()?.into_string(),
            port: decoder.read_u16()?,
            security_protocol: decoder.read_i16()?,
        };
        decoder.read_tagged_fields()?;
        Ok(endpoint)
    })?;
    let count = decoder.read_compact_array_len()?;
    let features = decoder.read_vec(count, |decoder| {
        let feature = SupportedFeature {
            name: decoder.read_compact_string()?.into_string(),
            min_level: decoder.read_i16()?,
            max_level: decoder.read_i16()?,
        };
        decoder.read_tagged_fields()?;
        Ok(feature)
    })?;
    Ok((endpoints, features))
}
