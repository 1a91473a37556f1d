//! Messages between the members of a stream.

use crate::LogEnd;
use wire::{Varint, wire_enum, wire_struct};

/// One attachment of a follower to its leader. Messages of an earlier attachment are ignored: the follower may have lost
/// since then what they say that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// The incarnation of the follower's node.
    pub incarnation: u64,
    /// Counts the attachments in this incarnation.
    pub number: u64,
}
wire_struct!(Attachment {
    incarnation: u64 as Varint,
    number: u64 as Varint,
});

/// A message to another member. Every message has the epoch of its sender; a receiver in another epoch ignores it.
///
/// Chunks are not a message of their own: they follow [`MemberMessage::Chunks`] in the same frame, as they are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberMessage {
    /// The leader, before it writes: where does your log end?
    AskEnd {
        /// The leader's epoch.
        epoch: u64,
    },
    /// The answer to [`MemberMessage::AskEnd`].
    End {
        /// The epoch.
        epoch: u64,
        /// The end of the log.
        end: LogEnd,
        /// The log cannot have lost its end.
        intact: bool,
    },
    /// The leader writes; its followers can attach.
    Opened {
        /// The epoch.
        epoch: u64,
    },
    /// A follower wants the chunks after the end of its log.
    Attach {
        /// The epoch.
        epoch: u64,
        /// The new attachment.
        attachment: Attachment,
        /// The end of the follower's log.
        end: LogEnd,
    },
    /// The follower's log has chunks that the leader's has not. It has to drop them and to attach again.
    Truncate {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// The end of the longest part that can be equal. The follower drops every later epoch and offset.
        end: LogEnd,
    },
    /// The leader no longer has the chunks after the end of the follower's log. The follower deletes its log and begins
    /// at `start`.
    Reset {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// The leader's oldest offset.
        start: u64,
    },
    /// The follower's log is a part of the leader's; chunks follow.
    Attached {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// The end of the leader's log at this time.
        leader_next: u64,
    },
    /// Chunks follow, the first of them at `first`.
    Chunks {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// The offset of the first chunk.
        first: u64,
        /// The leader's committed offset.
        committed: u64,
    },
    /// The leader's committed offset, for a follower that has all chunks.
    Committed {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// Everything before it is committed.
        committed: u64,
    },
    /// The follower has written its log up to here.
    Written {
        /// The epoch.
        epoch: u64,
        /// The attachment.
        attachment: Attachment,
        /// The offset after the last written chunk.
        next: u64,
        /// The committed offset that the follower knows.
        committed: u64,
    },
}

wire_enum!(MemberMessage, "a message of a stream's member" {
    1 = AskEnd { epoch: u64 as Varint },
    2 = End { epoch: u64 as Varint, end: LogEnd, intact: bool },
    3 = Opened { epoch: u64 as Varint },
    4 = Attach { epoch: u64 as Varint, attachment: Attachment, end: LogEnd },
    5 = Truncate { epoch: u64 as Varint, attachment: Attachment, end: LogEnd },
    6 = Reset { epoch: u64 as Varint, attachment: Attachment, start: u64 as Varint },
    7 = Attached { epoch: u64 as Varint, attachment: Attachment, leader_next: u64 as Varint },
    8 = Chunks { epoch: u64 as Varint, attachment: Attachment, first: u64 as Varint, committed: u64 as Varint },
    9 = Committed { epoch: u64 as Varint, attachment: Attachment, committed: u64 as Varint },
    10 = Written { epoch: u64 as Varint, attachment: Attachment, next: u64 as Varint, committed: u64 as Varint },
});

impl MemberMessage {
    /// The epoch of the sender.
    pub fn epoch(&self) -> u64 {
        match *self {
            MemberMessage::AskEnd { epoch }
            | MemberMessage::End { epoch, .. }
            | MemberMessage::Opened { epoch }
            | MemberMessage::Attach { epoch, .. }
            | MemberMessage::Truncate { epoch, .. }
            | MemberMessage::Reset { epoch, .. }
            | MemberMessage::Attached { epoch, .. }
            | MemberMessage::Chunks { epoch, .. }
            | MemberMessage::Committed { epoch, .. }
            | MemberMessage::Written { epoch, .. } => epoch,
        }
    }
}
