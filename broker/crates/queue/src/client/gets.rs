//! Repetition of a `Get` whose message the queue requeued before it arrived.

use super::{PendingRequest, QueueClient, UnappliedRequest};
use crate::RequestBody;

/// The attempts of one `Get`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GetRequest {
    /// The request number that the session knows.
    pub first: u64,
    /// The session's number of the last attempt.
    pub last: u64,
    /// The queue requeued the message of an attempt: [`QueueReply::Empty`](crate::QueueReply::Empty) does not
    /// mean that the queue is empty.
    pub given_back: bool,
}

impl GetRequest {
    pub(crate) fn new(seq: u64) -> GetRequest {
        GetRequest {
            first: seq,
            last: seq,
            given_back: false,
        }
    }
}

impl<T: Copy> QueueClient<T> {
    /// The number under which the session made a request.
    pub(super) fn caller_number(&self, pending: &PendingRequest) -> u64 {
        let get = match &pending.body {
            RequestBody::Get { consumer, .. } => self.consumers.get(consumer).and_then(|w| w.get),
            _ => None,
        };
        get.map_or(self.base.wrapping_add(pending.seq), |get| get.first)
    }

    /// Repeats a `Get` under a new number if the queue requeued its message before it arrived. Returns false if
    /// the session gets the answer instead.
    pub(super) fn repeat_get(&mut self, body: &RequestBody) -> bool {
        let RequestBody::Get { consumer, .. } = body else {
            return false;
        };
        let last = self.next_number();
        // The queue ignores requests after the session's `Close`.
        let is_closing = |k: &UnappliedRequest<T>| matches!(k.body, RequestBody::Close);
        if self.unapplied.iter().any(is_closing) {
            return false;
        }
        let progress = self.consumers.get_mut(consumer);
        let progress = progress.filter(|w| w.cancelled.is_none());
        let Some(get) = progress.and_then(|w| w.get.as_mut()) else {
            return false;
        };
        if !std::mem::take(&mut get.given_back) {
            return false;
        }
        get.last = last;
        self.unapplied.push_back(UnappliedRequest {
            body: body.clone(),
            tag: None,
        });
        true
    }
}
