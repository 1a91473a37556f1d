//! What shards tell each other of users and virtual hosts with limits. Within [`crate::frame::Frame`]; integers big-endian.

use super::{LimitSubject, OpenCounts};
use crate::frame::{FrameError, name, put_name, u8, u16, u32, u64};
use bytes::{BufMut, Bytes, BytesMut};

/// Most names in one frame; more are told in several.
pub const MAX_USES: usize = 1_000;

/// What a shard has open now; what it does not name is as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitUsageFrame {
    /// Of the node that the frame comes from.
    pub shard: u16,
    pub limit_usage: Vec<(LimitSubject, OpenCounts)>,
}

const USER: u8 = 1;
const VHOST: u8 = 2;

impl LimitUsageFrame {
    pub fn encode(&self, out: &mut BytesMut) {
        out.put_u16(self.shard);
        out.put_u32(self.limit_usage.len() as u32);
        for (holder, open) in &self.limit_usage {
            let (kind, name) = match holder {
                LimitSubject::User(name) => (USER, name),
                LimitSubject::Vhost(name) => (VHOST, name),
            };
            out.put_u8(kind);
            put_name(out, name);
            out.put_u64(open.connections);
            out.put_u64(open.channels);
        }
    }

    pub fn decode(mut frame: Bytes) -> Result<LimitUsageFrame, FrameError> {
        let (shard, count) = (u16(&mut frame)?, u32(&mut frame)? as usize);
        if count > MAX_USES {
            return Err(FrameError);
        }
        let limit_usage = (0..count).map(|_| {
            let kind = u8(&mut frame)?;
            let name = name(&mut frame)?.into();
            let holder = match kind {
                USER => LimitSubject::User(name),
                VHOST => LimitSubject::Vhost(name),
                _ => return Err(FrameError),
            };
            let (connections, channels) = (u64(&mut frame)?, u64(&mut frame)?);
            Ok((
                holder,
                OpenCounts {
                    connections,
                    channels,
                },
            ))
        });
        let limit_usage = limit_usage.collect::<Result<_, FrameError>>()?;
        Ok(LimitUsageFrame { shard, limit_usage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_returns_and_a_cut_one_does_not() {
        let open = |connections, channels| OpenCounts {
            connections,
            channels,
        };
        let frame = LimitUsageFrame {
            shard: 3,
            limit_usage: vec![
                (LimitSubject::User("u".into()), open(1, u64::MAX)),
                (LimitSubject::Vhost("/".into()), open(0, 0)),
            ],
        };
        let mut out = BytesMut::new();
        frame.encode(&mut out);
        let bytes = out.freeze();
        assert_eq!(LimitUsageFrame::decode(bytes.clone()), Ok(frame));
        for cut in 0..bytes.len() {
            assert!(LimitUsageFrame::decode(bytes.slice(..cut)).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), count in any::<u32>()) {
            let mut whole = vec![0, 0];
            whole.extend(count.to_be_bytes());
            whole.extend(bytes);
            let _ = LimitUsageFrame::decode(Bytes::from(whole));
        }
    }
}
