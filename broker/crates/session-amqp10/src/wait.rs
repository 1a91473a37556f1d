//! Requests to queues and to the metadata group that links wait for.

use crate::management::Continuation;
use amqp10::{LinkId, PendingAttach, ShortBytes};
use bytes::Bytes;
use env::Time;
use queue::QueueId;
use session::RequestSeq;

/// The answer that a wait ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKey {
    /// The result of the metadata change with this token.
    Change(u64),
    /// The answer of a queue.
    Queue(QueueId, RequestSeq),
}

/// An attach that was not answered yet.
#[derive(Debug)]
pub(crate) struct HeldAttach {
    pub pending: PendingAttach,
    /// The encoded attach, at most as long as a frame.
    pub encoded: Bytes,
}

/// A published message whose exchange this node does not know yet.
#[derive(Debug)]
pub(crate) struct HeldMessage {
    pub link: LinkId,
    pub delivery: u32,
    pub is_settled: bool,
    pub transaction: Option<ShortBytes>,
    pub payload: Bytes,
}

#[derive(Debug)]
pub(crate) enum WaitReason {
    /// The attach is tried again with the current tree.
    RetryAttach(Box<HeldAttach>),
    /// The publish is tried again with the current tree. The client is not read meanwhile.
    RetryPublish(Box<HeldMessage>),
    /// The queue of a dynamic terminus is being declared.
    Declare(Box<HeldAttach>),
    /// The queue adds a consumer.
    Consume(Box<HeldAttach>),
    /// The queue was told a consumer's credit.
    Credit,
    /// The queue applies the outcomes of a commit, which was requested with this delivery on the link.
    Commit(LinkId, u32),
    /// A request to the management node continues.
    Management(Box<(LinkId, Continuation)>),
    /// The link has ended.
    Abandoned,
}

#[derive(Debug)]
pub(crate) struct Wait {
    pub key: WaitKey,
    /// The number of the link that waits.
    pub link: u32,
    pub deadline: Time,
    pub reason: WaitReason,
}

impl Wait {
    /// Returns false for a wait whose client must get its answer when the queue is available again, however late.
    pub(crate) fn has_deadline(&self) -> bool {
        !matches!(self.reason, WaitReason::Credit | WaitReason::Commit(..))
    }
}
