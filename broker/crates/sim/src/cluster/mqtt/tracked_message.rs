//! A message of the MQTT clients. The payload begins with its id, and the rest of the payload follows from it.

use bytes::{BufMut, Bytes, BytesMut};

/// Stream in the upper half, number within the stream (from 1) in the lower. A stream consists of the publishes of a
/// client in one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MessageId(pub u64);

impl MessageId {
    pub(crate) fn new(stream: u32, number: u32) -> MessageId {
        MessageId(u64::from(stream) << 32 | u64::from(number))
    }

    pub(crate) fn stream(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn number(self) -> u32 {
        self.0 as u32
    }

    /// Number of bytes after the id.
    fn padding_len(self) -> usize {
        let mixed = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        (mixed % 120) as usize
    }

    pub(crate) fn payload(self) -> Bytes {
        let mut payload = BytesMut::with_capacity(8 + self.padding_len());
        payload.put_u64(self.0);
        let padding = (self.0 as u8).wrapping_mul(31);
        payload.put_bytes(padding, self.padding_len());
        payload.freeze()
    }

    /// Returns an error if the payload differs from its publish.
    pub(crate) fn read(payload: &[u8]) -> Result<MessageId, String> {
        let id = payload.first_chunk().copied().map(u64::from_be_bytes);
        let id = MessageId(id.ok_or("a message without an id")?);
        match id.payload() == payload {
            true => Ok(id),
            false => Err(format!("the payload of {id:?} is not what was published")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_identified_and_a_changed_one_is_refused() {
        for number in 1..100 {
            let id = MessageId::new(3, number);
            let mut payload = id.payload().to_vec();
            assert_eq!(MessageId::read(&payload), Ok(id));
            payload.push(1);
            assert!(MessageId::read(&payload).is_err());
        }
        assert!(MessageId::read(&[1, 2]).is_err());
    }
}
