//! Encoding of changes: version, tag, fields.

use super::{DecodeError, Decoded, Reader, Wire};
use crate::{Change, ChangeError, limits};
use bytes::{BufMut as _, Bytes, BytesMut};

/// Version of the encoding. Tags are never used again for something else.
const VERSION: u8 = 1;

macro_rules! changes {
    ($($tag:literal = $name:ident { $($field:ident),* };)* | $($one:literal = $record:ident;)*) => {
        impl Change {
            /// The form it has in the metadata group's log.
            pub fn encode(&self) -> Bytes {
                let mut out = BytesMut::new();
                out.put_u8(VERSION);
                match self {
                    $(Change::$name { $($field),* } => { out.put_u8($tag); $($field.put(&mut out);)* })*
                    $(Change::$record(record) => { out.put_u8($one); record.put(&mut out); })*
                }
                out.freeze()
            }

            /// Reads what [`Change::encode`] wrote. Bytes that are anything else give an error.
            pub fn decode(raw: &[u8]) -> Decoded<Change> {
                if raw.len() > limits::CHANGE_BYTES {
                    return Err(DecodeError::Limit);
                }
                let mut from = Reader::new(raw);
                let version = from.u8()?;
                if version != VERSION {
                    return Err(DecodeError::Version(version));
                }
                let change = match from.u8()? {
                    $($tag => Change::$name { $($field: from.get()?),* },)*
                    $($one => Change::$record(from.get()?),)*
                    other => return Err(DecodeError::Tag("a change", other)),
                };
                from.end()?;
                Ok(change)
            }
        }
    };
}

impl Change {
    /// Whether it can be read again: an entry of the log that cannot ends every node that comes to it, now and whenever it starts. What
    /// clients of AMQP 0.9.1 send may be nested 32 deep, more than tables here.
    pub fn check_readable(&self) -> Result<(), ChangeError> {
        let encoded = self.encode();
        match Change::decode(&encoded) {
            Ok(_) => Ok(()),
            Err(DecodeError::Limit) if encoded.len() > limits::CHANGE_BYTES => {
                Err(ChangeError::Invalid(format!(
                    "a change of {} bytes is too large for the cluster's metadata",
                    encoded.len()
                )))
            }
            Err(DecodeError::Limit) => Err(ChangeError::PreconditionFailed(format!(
                "arguments are nested deeper than {}",
                limits::TABLE_DEPTH
            ))),
            Err(error) => Err(ChangeError::Invalid(error.to_string())),
        }
    }
}

changes! {
    1 = Bootstrap { cluster, nodes, user };
    2 = PutVhost { name, description, tags };
    3 = DeleteVhost { name };
    5 = DeleteUser { name };
    7 = DeletePermission { user, vhost };
    9 = DeleteTopicPermission { user, vhost, exchange };
    10 = SetUserLimit { user, limit, value };
    12 = DeletePolicy { vhost, name, scope };
    14 = DeleteExchange { vhost, name, if_unused };
    16 = DeleteQueue { vhost, name, id };
    17 = EndSession { session };
    18 = EndIncarnation { node, incarnation };
    22 = DeleteNode { id };
    23 = SetMaintenance { id, on };
    24 = SetQueueMembers { id, members };
    30 = ReplaceQueueMembers { id, from, to };
    31 = ForgetNode { id };
    32 = SetZone { id, zone };
    40 = SetDefaultQueueType { vhost, kind };
    41 = SetVhostLimit { vhost, limit, value };
    42 = ProtectVhost { vhost, on };
    43 = PutGlobalParameter { name, value };
    44 = DeleteGlobalParameter { name };
    45 = EnableFeature { name };
    46 = SetQueueExpires { id, expires_ms };
    47 = Retain { vhost, topic, message };
    48 = TraceVhost { vhost, on };
    49 = EnableKnownFeature { name, known_by };
    50 = ForgetFreeNode { id, seen };
    51 = ReplaceNode { old, new };
    52 = Barrier { };
    |
    4 = PutUser;
    6 = PutPermission;
    8 = PutTopicPermission;
    11 = PutPolicy;
    13 = DeclareExchange;
    15 = DeclareQueue;
    19 = Bind;
    20 = Unbind;
    21 = PutNode;
}
