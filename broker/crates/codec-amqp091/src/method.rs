//! All methods of AMQP 0.9.1 and RabbitMQ's extensions, generated from one table.
//!
//! A row contains: class id, method id, wire name, variant name, leading reserved fields, fields,
//! trailing reserved fields. Reserved fields are written as zero and ignored when read (section
//! 4.2.1).

use crate::DecodeError;
use crate::field::{Field, Reader, Writer};
use bytes::BytesMut;
use message::Table;

macro_rules! methods {
    (<$a:lifetime> $(
        $class:literal $id:literal $wire:literal $name:ident
        [$($before:ty),*] { $($field:ident : $ty:ty),* } [$($after:ty),*];
    )*) => {
        /// A method with its arguments, borrowed from the frame it came in.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the specification describes the fields")]
        pub enum Method<$a> {
            $(#[doc = concat!("The method `", $wire, "`.")] $name { $($field: $ty),* },)*
        }

        impl<$a> Method<$a> {
            /// Decodes the complete payload of a method frame.
            pub fn decode(payload: &$a [u8]) -> Result<Method<$a>, DecodeError> {
                let mut from = Reader::new(payload);
                let class = u16::read(&mut from)?;
                let id = u16::read(&mut from)?;
                let method = match (class, id) {
                    $(($class, $id) => {
                        $(let _ = <$before as Field<$a>>::read(&mut from)?;)*
                        $(let $field = <$ty as Field<$a>>::read(&mut from)?;)*
                        $(let _ = <$after as Field<$a>>::read(&mut from)?;)*
                        Method::$name { $($field),* }
                    })*
                    _ => return Err(DecodeError::UnknownMethod(class, id)),
                };
                from.finish()?;
                Ok(method)
            }

            /// Appends ids and arguments, the payload of a method frame. Short strings are
            /// truncated to 255 bytes.
            #[inline]
            pub fn encode(&self, out: &mut BytesMut) {
                let mut to = Writer::new(out);
                match self {
                    $(Method::$name { $($field),* } => {
                        let ids: [u16; 2] = [$class, $id];
                        ids[0].write(&mut to);
                        ids[1].write(&mut to);
                        $(<$before as Default>::default().write(&mut to);)*
                        $($field.write(&mut to);)*
                        $(<$after as Default>::default().write(&mut to);)*
                    })*
                }
                to.flush_bits();
            }

            /// Class id and method id.
            pub fn ids(&self) -> (u16, u16) {
                match self {
                    $(Method::$name { .. } => ($class, $id),)*
                }
            }

            /// The name in the specification, `class.method`.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Method::$name { .. } => $wire,)*
                }
            }
        }

        /// All rows of the table, for tests.
        #[cfg(test)]
        pub(crate) const ROWS: &[(u16, u16, &str)] = &[$(($class, $id, $wire)),*];
    };
}

methods! { <'a>
    10 10 "connection.start" ConnectionStart [] { version_major: u8, version_minor: u8, server_properties: Table, mechanisms: &'a [u8], locales: &'a [u8] } [];
    10 11 "connection.start-ok" ConnectionStartOk [] { client_properties: Table, mechanism: &'a str, response: &'a [u8], locale: &'a str } [];
    10 20 "connection.secure" ConnectionSecure [] { challenge: &'a [u8] } [];
    10 21 "connection.secure-ok" ConnectionSecureOk [] { response: &'a [u8] } [];
    10 30 "connection.tune" ConnectionTune [] { channel_max: u16, frame_max: u32, heartbeat: u16 } [];
    10 31 "connection.tune-ok" ConnectionTuneOk [] { channel_max: u16, frame_max: u32, heartbeat: u16 } [];
    10 40 "connection.open" ConnectionOpen [] { virtual_host: &'a str } [&'a str, bool];
    10 41 "connection.open-ok" ConnectionOpenOk [&'a str] {} [];
    10 50 "connection.close" ConnectionClose [] { reply_code: u16, reply_text: &'a str, class_id: u16, method_id: u16 } [];
    10 51 "connection.close-ok" ConnectionCloseOk [] {} [];
    10 60 "connection.blocked" ConnectionBlocked [] { reason: &'a str } [];
    10 61 "connection.unblocked" ConnectionUnblocked [] {} [];
    10 70 "connection.update-secret" ConnectionUpdateSecret [] { new_secret: &'a [u8], reason: &'a str } [];
    10 71 "connection.update-secret-ok" ConnectionUpdateSecretOk [] {} [];

    20 10 "channel.open" ChannelOpen [&'a str] {} [];
    20 11 "channel.open-ok" ChannelOpenOk [&'a [u8]] {} [];
    20 20 "channel.flow" ChannelFlow [] { active: bool } [];
    20 21 "channel.flow-ok" ChannelFlowOk [] { active: bool } [];
    20 40 "channel.close" ChannelClose [] { reply_code: u16, reply_text: &'a str, class_id: u16, method_id: u16 } [];
    20 41 "channel.close-ok" ChannelCloseOk [] {} [];

    30 10 "access.request" AccessRequest [] { realm: &'a str, exclusive: bool, passive: bool, active: bool, write: bool, read: bool } [];
    30 11 "access.request-ok" AccessRequestOk [] { ticket: u16 } [];

    40 10 "exchange.declare" ExchangeDeclare [u16] { exchange: &'a str, kind: &'a str, passive: bool, durable: bool, auto_delete: bool, internal: bool, no_wait: bool, arguments: Table } [];
    40 11 "exchange.declare-ok" ExchangeDeclareOk [] {} [];
    40 20 "exchange.delete" ExchangeDelete [u16] { exchange: &'a str, if_unused: bool, no_wait: bool } [];
    40 21 "exchange.delete-ok" ExchangeDeleteOk [] {} [];
    40 30 "exchange.bind" ExchangeBind [u16] { destination: &'a str, source: &'a str, routing_key: &'a str, no_wait: bool, arguments: Table } [];
    40 31 "exchange.bind-ok" ExchangeBindOk [] {} [];
    40 40 "exchange.unbind" ExchangeUnbind [u16] { destination: &'a str, source: &'a str, routing_key: &'a str, no_wait: bool, arguments: Table } [];
    40 51 "exchange.unbind-ok" ExchangeUnbindOk [] {} [];

    50 10 "queue.declare" QueueDeclare [u16] { queue: &'a str, passive: bool, durable: bool, exclusive: bool, auto_delete: bool, no_wait: bool, arguments: Table } [];
    50 11 "queue.declare-ok" QueueDeclareOk [] { queue: &'a str, message_count: u32, consumer_count: u32 } [];
    50 20 "queue.bind" QueueBind [u16] { queue: &'a str, exchange: &'a str, routing_key: &'a str, no_wait: bool, arguments: Table } [];
    50 21 "queue.bind-ok" QueueBindOk [] {} [];
    50 30 "queue.purge" QueuePurge [u16] { queue: &'a str, no_wait: bool } [];
    50 31 "queue.purge-ok" QueuePurgeOk [] { message_count: u32 } [];
    50 40 "queue.delete" QueueDelete [u16] { queue: &'a str, if_unused: bool, if_empty: bool, no_wait: bool } [];
    50 41 "queue.delete-ok" QueueDeleteOk [] { message_count: u32 } [];
    50 50 "queue.unbind" QueueUnbind [u16] { queue: &'a str, exchange: &'a str, routing_key: &'a str, arguments: Table } [];
    50 51 "queue.unbind-ok" QueueUnbindOk [] {} [];

    60 10 "basic.qos" BasicQos [] { prefetch_size: u32, prefetch_count: u16, global: bool } [];
    60 11 "basic.qos-ok" BasicQosOk [] {} [];
    60 20 "basic.consume" BasicConsume [u16] { queue: &'a str, consumer_tag: &'a str, no_local: bool, no_ack: bool, exclusive: bool, no_wait: bool, arguments: Table } [];
    60 21 "basic.consume-ok" BasicConsumeOk [] { consumer_tag: &'a str } [];
    60 30 "basic.cancel" BasicCancel [] { consumer_tag: &'a str, no_wait: bool } [];
    60 31 "basic.cancel-ok" BasicCancelOk [] { consumer_tag: &'a str } [];
    60 40 "basic.publish" BasicPublish [u16] { exchange: &'a str, routing_key: &'a str, mandatory: bool, immediate: bool } [];
    60 50 "basic.return" BasicReturn [] { reply_code: u16, reply_text: &'a str, exchange: &'a str, routing_key: &'a str } [];
    60 60 "basic.deliver" BasicDeliver [] { consumer_tag: &'a str, delivery_tag: u64, redelivered: bool, exchange: &'a str, routing_key: &'a str } [];
    60 70 "basic.get" BasicGet [u16] { queue: &'a str, no_ack: bool } [];
    60 71 "basic.get-ok" BasicGetOk [] { delivery_tag: u64, redelivered: bool, exchange: &'a str, routing_key: &'a str, message_count: u32 } [];
    60 72 "basic.get-empty" BasicGetEmpty [&'a str] {} [];
    60 80 "basic.ack" BasicAck [] { delivery_tag: u64, multiple: bool } [];
    60 90 "basic.reject" BasicReject [] { delivery_tag: u64, requeue: bool } [];
    60 100 "basic.recover-async" BasicRecoverAsync [] { requeue: bool } [];
    60 110 "basic.recover" BasicRecover [] { requeue: bool } [];
    60 111 "basic.recover-ok" BasicRecoverOk [] {} [];
    60 120 "basic.nack" BasicNack [] { delivery_tag: u64, multiple: bool, requeue: bool } [];

    85 10 "confirm.select" ConfirmSelect [] { no_wait: bool } [];
    85 11 "confirm.select-ok" ConfirmSelectOk [] {} [];

    90 10 "tx.select" TxSelect [] {} [];
    90 11 "tx.select-ok" TxSelectOk [] {} [];
    90 20 "tx.commit" TxCommit [] {} [];
    90 21 "tx.commit-ok" TxCommitOk [] {} [];
    90 30 "tx.rollback" TxRollback [] {} [];
    90 31 "tx.rollback-ok" TxRollbackOk [] {} [];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn method_ids_and_names_are_unique_and_match_their_class() {
        let classes = [
            (10, "connection"),
            (20, "channel"),
            (30, "access"),
            (40, "exchange"),
            (50, "queue"),
            (60, "basic"),
            (85, "confirm"),
            (90, "tx"),
        ];
        let mut ids: Vec<_> = ROWS.iter().map(|&(class, id, _)| (class, id)).collect();
        let mut names: Vec<_> = ROWS.iter().map(|&(_, _, name)| name).collect();
        ids.sort_unstable();
        ids.dedup();
        names.sort_unstable();
        names.dedup();
        assert_eq!((ids.len(), names.len()), (ROWS.len(), ROWS.len()));
        for &(class, _, name) in ROWS {
            let prefix = name.split('.').next();
            assert!(
                classes
                    .iter()
                    .any(|&(c, n)| c == class && Some(n) == prefix),
                "{name}"
            );
        }
    }

    /// Expected bytes derived by hand from the specification, to verify the order of arguments.
    #[test]
    fn methods_encode_to_known_bytes() {
        let mut out = BytesMut::new();
        Method::QueueDeclare {
            queue: "q",
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: true,
            no_wait: true,
            arguments: Table::default(),
        }
        .encode(&mut out);
        assert_eq!(&out[..], [0, 50, 0, 10, 0, 0, 1, b'q', 0b11010, 0, 0, 0, 0]);
        out.clear();
        Method::BasicDeliver {
            consumer_tag: "c",
            delivery_tag: 258,
            redelivered: true,
            exchange: "",
            routing_key: "r",
        }
        .encode(&mut out);
        assert_eq!(
            &out[..],
            [0, 60, 0, 60, 1, b'c', 0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 1, b'r']
        );
        out.clear();
        Method::ConnectionOpen { virtual_host: "/" }.encode(&mut out);
        assert_eq!(&out[..], [0, 10, 0, 40, 1, b'/', 0, 0]);
    }
}
