//! The layout of [`PublishTag`] in this protocol: the channel in the highest 16 bits, then the
//! channel's epoch in 20 bits, then the low 28 bits of the publish number.
//!
//! The channel is never 0, so no tag of a publish is 0. The epoch distinguishes channels that were
//! opened with the same number one after the other: an answer for a closed channel is recognised
//! until its number was reused 2^20 times. The publish number is complete again with the help of the
//! oldest unsettled publish ([`Confirms::expand`](crate::confirms::Confirms::expand)), which is
//! exact for fewer than 2^28 unsettled publishes.

use session::PublishTag;

const SEQ_BITS: u32 = 28;
const EPOCH_BITS: u32 = 20;
const CHANNEL_SHIFT: u32 = SEQ_BITS + EPOCH_BITS;

/// The bits of a publish number that a tag has room for.
pub(crate) const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;
/// The bits of an epoch that a tag has room for.
pub(crate) const EPOCH_MASK: u32 = (1 << EPOCH_BITS) - 1;

const _: () = assert!(CHANNEL_SHIFT + u16::BITS == u64::BITS);

/// The parts of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TagParts {
    pub channel: u16,
    pub epoch: u32,
    /// The low bits of the publish number.
    pub seq: u64,
}

impl TagParts {
    /// Packs the parts; `epoch` and `seq` must fit into their bits.
    pub(crate) fn pack(self) -> PublishTag {
        debug_assert!(self.channel != 0, "channel 0 does not publish");
        debug_assert!(self.epoch <= EPOCH_MASK && self.seq <= SEQ_MASK);
        let (channel, epoch) = (u64::from(self.channel), u64::from(self.epoch));
        PublishTag(channel << CHANNEL_SHIFT | epoch << SEQ_BITS | self.seq)
    }

    pub(crate) fn unpack(tag: PublishTag) -> TagParts {
        TagParts {
            channel: (tag.0 >> CHANNEL_SHIFT) as u16,
            epoch: (tag.0 >> SEQ_BITS) as u32 & EPOCH_MASK,
            seq: tag.0 & SEQ_MASK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_keeps_every_part_and_is_not_zero() {
        for channel in [1, 2, 0x8000, u16::MAX] {
            for epoch in [0, 1, EPOCH_MASK] {
                for seq in [0, 1, SEQ_MASK] {
                    let parts = TagParts {
                        channel,
                        epoch,
                        seq,
                    };
                    let tag = parts.pack();
                    assert_ne!(tag, PublishTag::NO_CONFIRM);
                    assert_eq!(TagParts::unpack(tag), parts);
                }
            }
        }
    }
}
