//! Encoders of the two methods that a broker sends once per message. They do the work of
//! [`encode_method`](crate::encode_method) without a [`Method`](crate::Method) value, in fewer instructions.

use crate::field::short;
use crate::{FRAME_END, FRAME_OVERHEAD};
use bytes::{BufMut, BytesMut};

const METHOD_FRAME: u8 = 1;
const BASIC: u16 = 60;
const DELIVER: u16 = 60;
const ACK: u16 = 80;

/// Appends a `basic.ack`.
#[inline]
pub fn encode_ack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    const PAYLOAD: usize = 4 + 8 + 1;
    let mut frame = [0; PAYLOAD + FRAME_OVERHEAD];
    let mut to = &mut frame[..];
    to.put_u8(METHOD_FRAME);
    to.put_u16(channel);
    to.put_u32(PAYLOAD as u32);
    to.put_u16(BASIC);
    to.put_u16(ACK);
    to.put_u64(delivery_tag);
    to.put_u8(multiple.into());
    to.put_u8(FRAME_END);
    out.extend_from_slice(&frame);
}

/// The fields of a `basic.deliver`.
#[derive(Clone, Copy, Debug)]
pub struct BasicDeliver<'a> {
    /// Truncated to 255 bytes.
    pub consumer_tag: &'a str,
    /// Number of the delivery in its channel.
    pub delivery_tag: u64,
    /// The message was delivered before.
    pub redelivered: bool,
    /// The exchange in UTF-8; at most 255 bytes.
    pub exchange: &'a [u8],
    /// The routing key in UTF-8; at most 255 bytes.
    pub routing_key: &'a [u8],
}

impl BasicDeliver<'_> {
    /// Appends the method frame.
    #[inline]
    pub fn encode(&self, out: &mut BytesMut, channel: u16) {
        debug_assert!(
            self.exchange.len() <= 255 && self.routing_key.len() <= 255,
            "an exchange of {} bytes, a routing key of {} bytes",
            self.exchange.len(),
            self.routing_key.len()
        );
        let tag = match self.consumer_tag.len() {
            0..=255 => self.consumer_tag.as_bytes(),
            _ => short(self.consumer_tag).as_bytes(),
        };
        let payload =
            4 + 1 + tag.len() + 8 + 1 + 1 + self.exchange.len() + 1 + self.routing_key.len();
        out.reserve(payload + FRAME_OVERHEAD);
        let mut head = [0; 12];
        let mut to = &mut head[..];
        to.put_u8(METHOD_FRAME);
        to.put_u16(channel);
        to.put_u32(payload as u32);
        to.put_u16(BASIC);
        to.put_u16(DELIVER);
        to.put_u8(tag.len() as u8);
        out.extend_from_slice(&head);
        out.extend_from_slice(tag);
        let mut middle = [0; 10];
        let mut to = &mut middle[..];
        to.put_u64(self.delivery_tag);
        to.put_u8(self.redelivered.into());
        to.put_u8(self.exchange.len() as u8);
        out.extend_from_slice(&middle);
        out.extend_from_slice(self.exchange);
        out.put_u8(self.routing_key.len() as u8);
        out.extend_from_slice(self.routing_key);
        out.put_u8(FRAME_END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Method, encode_method};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_equal_those_of_the_general_encoder(
            channel: u16, delivery_tag: u64, flag: bool,
            (consumer_tag, exchange, routing_key) in ("[a-zé.]{0,300}", "[a-z]{0,255}", "[a-z.]{0,255}"),
        ) {
            let (mut general, mut special) = (BytesMut::new(), BytesMut::new());
            encode_method(&mut general, channel, &Method::BasicAck { delivery_tag, multiple: flag });
            encode_ack(&mut special, channel, delivery_tag, flag);
            encode_method(&mut general, channel, &Method::BasicDeliver {
                consumer_tag: &consumer_tag, delivery_tag, redelivered: flag,
                exchange: &exchange, routing_key: &routing_key,
            });
            BasicDeliver {
                consumer_tag: &consumer_tag, delivery_tag, redelivered: flag,
                exchange: exchange.as_bytes(), routing_key: routing_key.as_bytes(),
            }.encode(&mut special, channel);
            prop_assert_eq!(general, special);
        }
    }
}
