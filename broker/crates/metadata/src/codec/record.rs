//! Encodings of the tree's records.

use super::{DecodeError, Decoded, Reader, Wire, put_blob};
use crate::{
    ApplyTo, BindingRecord, Destination, ExchangeRecord, NodeRecord, PermissionRecord,
    PolicyRecord, PolicyScope, QueueId, QueueRecord, QueueType, SessionId, TopicPermissionRecord,
    UserRecord,
};
use auth::{HashAlgorithm, PasswordHash};
use bytes::{BufMut as _, BytesMut};
use env::{Incarnation, NodeId};

/// Records that consist of their fields in order.
macro_rules! fields {
    ($t:ty { $($field:ident),* }) => {
        impl Wire for $t {
            fn put(&self, out: &mut BytesMut) {
                $(self.$field.put(out);)*
            }
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                Ok(Self { $($field: from.get()?),* })
            }
        }
    };
}

/// Enumerations without content, encoded as stable numbers.
macro_rules! choices {
    ($t:ty, $type_name:literal { $($number:literal = $choice:path),* }) => {
        impl Wire for $t {
            fn put(&self, out: &mut BytesMut) {
                out.put_u8(match self { $($choice => $number),* });
            }
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                match from.u8()? {
                    $($number => Ok($choice),)*
                    other => Err(DecodeError::Tag($type_name, other)),
                }
            }
        }
    };
}

macro_rules! numbers {
    ($($t:ident),*) => { $(
        impl Wire for $t {
            fn put(&self, out: &mut BytesMut) {
                self.0.put(out);
            }
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                from.get().map($t)
            }
        }
    )* };
}

numbers!(QueueId, NodeId, Incarnation);

impl Wire for QueueType {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.descriptor().code);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let code = from.u8()?;
        QueueType::from_code(code).ok_or(DecodeError::Tag("a queue type", code))
    }
}

choices!(PolicyScope, "a policy scope" { 1 = PolicyScope::User, 2 = PolicyScope::Operator });
choices!(ApplyTo, "apply-to" {
    1 = ApplyTo::All, 2 = ApplyTo::Queues, 3 = ApplyTo::ClassicQueues, 4 = ApplyTo::QuorumQueues,
    5 = ApplyTo::Streams, 6 = ApplyTo::Exchanges
});
choices!(HashAlgorithm, "a hash algorithm" {
    1 = HashAlgorithm::Sha256, 2 = HashAlgorithm::Sha512, 3 = HashAlgorithm::Argon2id, 4 = HashAlgorithm::Md5
});
fields!(SessionId {
    node,
    incarnation,
    number
});
fields!(QueueRecord {
    id,
    vhost,
    name,
    kind,
    durable,
    auto_delete,
    exclusive,
    arguments,
    members,
    declared_by
});
fields!(ExchangeRecord {
    vhost,
    name,
    kind,
    durable,
    auto_delete,
    internal,
    arguments
});
fields!(BindingRecord {
    vhost,
    source,
    destination,
    routing_key,
    arguments
});
fields!(PolicyRecord {
    vhost,
    name,
    scope,
    pattern,
    apply_to,
    priority,
    definition
});
fields!(UserRecord {
    name,
    password,
    tags,
    limits
});
fields!(PermissionRecord {
    user,
    vhost,
    configure,
    write,
    read
});
fields!(TopicPermissionRecord {
    user,
    vhost,
    exchange,
    write,
    read
});
fields!(NodeRecord {
    id,
    name,
    address,
    voter,
    maintenance
});

impl Wire for PasswordHash {
    fn put(&self, out: &mut BytesMut) {
        self.algorithm.put(out);
        put_blob(out, &self.bytes);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(PasswordHash {
            algorithm: from.get()?,
            bytes: from.blob()?.to_vec(),
        })
    }
}

impl Wire for Destination {
    fn put(&self, out: &mut BytesMut) {
        let (tag, name) = match self {
            Destination::Queue(name) => (1, name),
            Destination::Exchange(name) => (2, name),
        };
        out.put_u8(tag);
        name.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        match from.u8()? {
            1 => from.get().map(Destination::Queue),
            2 => from.get().map(Destination::Exchange),
            other => Err(DecodeError::Tag("a destination", other)),
        }
    }
}
