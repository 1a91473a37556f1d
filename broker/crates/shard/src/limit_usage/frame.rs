//! Open connections and channels of users and virtual hosts with limits, as a part of [`Frame`](crate::frame::Frame).

use super::{LimitSubject, OpenCounts};
use metadata::Name;
use wire::{AtMost, wire_enum, wire_struct};

/// Most names in one frame. The sender splits longer lists.
pub(crate) const MAX_USES: usize = 1_000;

/// The current numbers of a shard. Names that are not in the frame are unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitUsageFrame {
    /// The shard of the sending node.
    pub shard: u16,
    pub limit_usage: Vec<(LimitSubject, OpenCounts)>,
}

/// Users and virtual hosts with rate limits, and whether the sending shard has active publishers of each. Subjects that are
/// not in the frame are unchanged. Only sent while the feature flag `quotas` is enabled.
#[derive(Clone, Debug, PartialEq)]
pub struct PublisherActivityFrame {
    /// The shard of the sending node.
    pub shard: u16,
    pub subjects: Vec<(LimitSubject, bool)>,
}

wire_struct!(PublisherActivityFrame {
    shard: u16,
    subjects: Vec<(LimitSubject, bool)> as AtMost<MAX_USES>,
});
wire_struct!(LimitUsageFrame {
    shard: u16,
    limit_usage: Vec<(LimitSubject, OpenCounts)> as AtMost<MAX_USES>,
});
wire_enum!(LimitSubject, "a subject of limits" { 1 = User(name: Name), 2 = Vhost(name: Name) });
wire_struct!(OpenCounts {
    connections: u64,
    channels: u64,
});

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    #[test]
    fn frame_comes_back_and_cut_one_is_refused() {
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
        let raw = wire::encode(&frame);
        assert_eq!(wire::decode("frame", &raw), Ok(frame));
        for cut in 0..raw.len() {
            assert!(wire::decode::<LimitUsageFrame>("frame", &raw.slice(..cut)).is_err());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), count in any::<u32>()) {
            let mut whole = vec![0, 0];
            whole.extend(count.to_be_bytes());
            whole.extend(bytes);
            let _ = wire::decode::<LimitUsageFrame>("frame", &Bytes::from(whole));
        }
    }
}
