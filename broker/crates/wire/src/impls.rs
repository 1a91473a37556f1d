//! Encodings of common types.

use crate::{
    DecodeCause, Decoded, Encoding, Reader, Varint, Wire, wire_enum, wire_newtype, wire_struct,
};
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId, WallTime};
use ids::{
    DeadLettering, DelayedRetry, DelayedReturns, Overflow, QueueId, QueueSettings, QueueType,
    QuorumFeatures, QuorumSettings, SessionId,
};
use std::sync::Arc;

/// Appends bytes with a `u32` length.
///
/// # Panics
///
/// In debug builds, if the bytes are longer than the length can say. Every format bounds its parts below that.
pub fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    debug_assert!(u32::try_from(bytes.len()).is_ok(), "{} bytes", bytes.len());
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

/// Appends a list with a `u32` length. Reading it gives a `Vec`.
pub fn put_list<'a, T: Wire + 'a>(out: &mut BytesMut, items: impl ExactSizeIterator<Item = &'a T>) {
    debug_assert!(u32::try_from(items.len()).is_ok(), "{} items", items.len());
    out.put_u32(items.len() as u32);
    for item in items {
        item.put(out);
    }
}

macro_rules! integers {
    ($($t:ty, $put:ident);*) => { $(
        impl Wire for $t {
            const MIN_LEN: usize = size_of::<$t>();

            #[inline]
            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }

            #[inline]
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                Ok(<$t>::from_be_bytes(from.array()?))
            }
        }
    )* };
}
integers!(
    u8, put_u8; u16, put_u16; u32, put_u32; u64, put_u64;
    i8, put_i8; i16, put_i16; i32, put_i32; i64, put_i64;
    f32, put_f32; f64, put_f64
);

impl Wire for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(from.error(DecodeCause::Tag("a boolean", other))),
        }
    }
}

impl Wire for Bytes {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let len = u32::get(from)?;
        from.take_bytes(len as usize)
    }
}

impl Wire for String {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.text().map(str::to_owned)
    }
}

impl Wire for Arc<str> {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.text().map(Arc::from)
    }
}

impl<T: Wire> Wire for Arc<T> {
    const MIN_LEN: usize = T::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        T::put(self, out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        T::get(from).map(Arc::new)
    }
}

impl<T: Wire> Wire for Box<T> {
    const MIN_LEN: usize = T::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        T::put(self, out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        T::get(from).map(Box::new)
    }
}

impl<const N: usize> Wire for [u8; N] {
    const MIN_LEN: usize = N;

    fn put(&self, out: &mut BytesMut) {
        out.put_slice(self);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        from.array()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut BytesMut) {
        self.is_some().put(out);
        if let Some(inner) = self {
            inner.put(out);
        }
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(match bool::get(from)? {
            true => Some(T::get(from)?),
            false => None,
        })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const MIN_LEN: usize = A::MIN_LEN + B::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
        self.1.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

/// Items for which memory is reserved before they have been read.
const MAX_RESERVED: usize = 64;

impl<T: Wire> Wire for Vec<T> {
    const MIN_LEN: usize = u32::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        put_list(out, self.iter());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let count = from.count(T::MIN_LEN)?;
        let mut items = Vec::with_capacity(count.min(MAX_RESERVED));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

wire_newtype!(QueueId(u64));
wire_newtype!(NodeId(u64));
wire_newtype!(Incarnation(u64));
wire_newtype!(WallTime(u64));
wire_struct!(SessionId {
    node: NodeId,
    incarnation: Incarnation,
    number: u64
});

wire_enum!(Overflow, "an overflow behaviour" {
    0 = DropHead,
    1 = RejectPublish,
    2 = RejectPublishDlx,
});
wire_enum!(DeadLettering, "a dead-letter strategy" {
    0 = Off,
    1 = AtMostOnce,
    2 = AtLeastOnce,
});
wire_enum!(DelayedReturns, "the returns that delay a message" {
    0 = All,
    1 = Failed,
    2 = Returned,
});
wire_struct!(DelayedRetry {
    returns: DelayedReturns,
    min_ms: u64 as Varint,
    max_ms: u64 as Varint,
});

/// The settings of version 0.2. [`put_quorum_settings`] encodes the others.
impl Wire for QueueSettings {
    const MIN_LEN: usize = 8;

    fn put(&self, out: &mut BytesMut) {
        <Varint as Encoding<_>>::put(&self.max_length, out);
        <Varint as Encoding<_>>::put(&self.max_length_bytes, out);
        self.overflow.put(out);
        <Varint as Encoding<_>>::put(&self.delivery_limit, out);
        <Varint as Encoding<_>>::put(&self.message_ttl_ms, out);
        self.single_active_consumer.put(out);
        self.max_priority.put(out);
        self.dead_letter.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(QueueSettings {
            max_length: <Varint as Encoding<_>>::get(from)?,
            max_length_bytes: <Varint as Encoding<_>>::get(from)?,
            overflow: from.get()?,
            delivery_limit: <Varint as Encoding<_>>::get(from)?,
            message_ttl_ms: <Varint as Encoding<_>>::get(from)?,
            single_active_consumer: from.get()?,
            max_priority: from.get()?,
            dead_letter: from.get()?,
            quorum: QuorumSettings::default(),
        })
    }
}

/// Appends the settings of the features of a queue.
pub fn put_quorum_settings(
    settings: &QuorumSettings,
    features: QuorumFeatures,
    out: &mut BytesMut,
) {
    let QuorumSettings {
        delayed_retry,
        deduplication_window_ms,
    } = settings.supported_by(features);
    if features.delayed_retry {
        delayed_retry.put(out);
    }
    if features.deduplication {
        <Varint as Encoding<_>>::put(&deduplication_window_ms, out);
    }
}

/// Reads settings that [`put_quorum_settings`] wrote for the same features.
pub fn get_quorum_settings(
    from: &mut Reader<'_>,
    features: QuorumFeatures,
) -> Decoded<QuorumSettings> {
    Ok(QuorumSettings {
        delayed_retry: match features.delayed_retry {
            true => from.get()?,
            false => None,
        },
        deduplication_window_ms: match features.deduplication {
            true => <Varint as Encoding<_>>::get(from)?,
            false => None,
        },
    })
}

/// Bits of the features in their encoding.
const STRICT_PRIORITIES: u8 = 1;
const DELIVERY_COUNTS: u8 = 2;
const DELAYED_RETRY: u8 = 4;
const SCHEDULED_DELIVERY: u8 = 8;
const DEDUPLICATION: u8 = 16;
const MESSAGE_GROUPS: u8 = 32;
const EXACT_EXPIRY: u8 = 64;
const KNOWN_FEATURES: u8 = STRICT_PRIORITIES
    | DELIVERY_COUNTS
    | DELAYED_RETRY
    | SCHEDULED_DELIVERY
    | DEDUPLICATION
    | MESSAGE_GROUPS
    | EXACT_EXPIRY;

/// A bit for each feature. Unknown bits are an error, because a replica that ignores a feature diverges from the others.
impl Wire for QuorumFeatures {
    fn put(&self, out: &mut BytesMut) {
        let QuorumFeatures {
            strict_priorities,
            delivery_counts,
            delayed_retry,
            scheduled_delivery,
            deduplication,
            message_groups,
            exact_expiry,
        } = *self;
        let bit = |is_enabled: bool, bit: u8| if is_enabled { bit } else { 0 };
        out.put_u8(
            bit(strict_priorities, STRICT_PRIORITIES)
                | bit(delivery_counts, DELIVERY_COUNTS)
                | bit(delayed_retry, DELAYED_RETRY)
                | bit(scheduled_delivery, SCHEDULED_DELIVERY)
                | bit(deduplication, DEDUPLICATION)
                | bit(message_groups, MESSAGE_GROUPS)
                | bit(exact_expiry, EXACT_EXPIRY),
        );
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let bits = from.u8()?;
        if bits & !KNOWN_FEATURES != 0 {
            return Err(from.error(DecodeCause::Tag("features of a quorum queue", bits)));
        }
        Ok(QuorumFeatures {
            strict_priorities: bits & STRICT_PRIORITIES != 0,
            delivery_counts: bits & DELIVERY_COUNTS != 0,
            delayed_retry: bits & DELAYED_RETRY != 0,
            scheduled_delivery: bits & SCHEDULED_DELIVERY != 0,
            deduplication: bits & DEDUPLICATION != 0,
            message_groups: bits & MESSAGE_GROUPS != 0,
            exact_expiry: bits & EXACT_EXPIRY != 0,
        })
    }
}

impl Wire for QueueType {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.descriptor().code);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let code = from.u8()?;
        QueueType::from_code(code).ok_or(from.error(DecodeCause::Tag("a queue type", code)))
    }
}
