//! What shards tell each other of users and virtual hosts with limits. Within [`crate::frame::Frame`]; integers big-endian.

use super::{Holder, Open};
use crate::frame::{FrameError, name, put_name, u8, u16, u32, u64};
use bytes::{BufMut, Bytes, BytesMut};

/// Most names in one frame; more are told in several.
pub const MAX_USES: usize = 1_000;

/// What a shard has open now; what it does not name is as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct UsesFrame {
    /// Of the node that the frame comes from.
    pub shard: u16,
    pub uses: Vec<(Holder, Open)>,
}

const USER: u8 = 1;
const VHOST: u8 = 2;

impl UsesFrame {
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u16(self.shard);
        out.put_u32(self.uses.len() as u32);
        for (holder, open) in &self.uses {
            let (kind, name) = match holder {
                Holder::User(name) => (USER, name),
                Holder::Vhost(name) => (VHOST, name),
            };
            out.put_u8(kind);
            put_name(out, name);
            out.put_u64(open.connections);
            out.put_u64(open.channels);
        }
    }

    pub fn decode(mut frame: Bytes) -> Result<UsesFrame, FrameError> {
        let (shard, count) = (u16(&mut frame)?, u32(&mut frame)? as usize);
        if count > MAX_USES {
            return Err(FrameError);
        }
        let uses = (0..count).map(|_| {
            let kind = u8(&mut frame)?;
            let name = name(&mut frame)?.into();
            let holder = match kind {
                USER => Holder::User(name),
                VHOST => Holder::Vhost(name),
                _ => return Err(FrameError),
            };
            let (connections, channels) = (u64(&mut frame)?, u64(&mut frame)?);
            Ok((
                holder,
                Open {
                    connections,
                    channels,
                },
            ))
        });
        let uses = uses.collect::<Result<_, FrameError>>()?;
        Ok(UsesFrame { shard, uses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_returns_and_a_cut_one_does_not() {
        let open = |connections, channels| Open {
            connections,
            channels,
        };
        let frame = UsesFrame {
            shard: 3,
            uses: vec![
                (Holder::User("u".into()), open(1, u64::MAX)),
                (Holder::Vhost("/".into()), open(0, 0)),
            ],
        };
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(UsesFrame::decode(bytes.clone()), Ok(frame));
        for cut in 0..bytes.len() {
            assert!(UsesFrame::decode(bytes.slice(..cut)).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), count in any::<u32>()) {
            let mut whole = vec![0, 0];
            whole.extend(count.to_be_bytes());
            whole.extend(bytes);
            let _ = UsesFrame::decode(Bytes::from(whole));
        }
    }
}
