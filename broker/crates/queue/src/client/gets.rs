//! A `Get` whose message the queue gave back before it came is asked once more.

use super::{PendingRequest, QueueClient, UnappliedRequest};
use crate::RequestBody;

/// The attempts of one `Get`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GetRequest {
    /// The number that the session knows it by.
    pub first: u64,
    /// The number of its last attempt, counted as the session counts.
    pub last: u64,
    /// The queue gave back the message of an attempt: [`QueueReply::Empty`](crate::Answer::Empty) does not say that the queue is
    /// empty.
    pub given_back: bool,
}

impl GetRequest {
    pub fn new(seq: u64) -> GetRequest {
        GetRequest {
            first: seq,
            last: seq,
            given_back: false,
        }
    }
}

impl<T: Copy> QueueClient<T> {
    /// The number under which the session asked.
    pub(super) fn caller_number(&self, asked: &PendingRequest) -> u64 {
        let get = match &asked.body {
            RequestBody::Get { consumer, .. } => self.watches.get(consumer).and_then(|w| w.get),
            _ => None,
        };
        get.map_or(self.base.wrapping_add(asked.seq), |get| get.first)
    }

    /// Repeats a `Get` under a new number if the queue gave its message back before it came. False: the session is to hear
    /// the answer.
    pub(super) fn get_again(&mut self, body: &RequestBody) -> bool {
        let RequestBody::Get { consumer, .. } = body else {
            return false;
        };
        let last = self.next_number();
        // The queue passes over requests behind the end of the session.
        let is_closing = |k: &UnappliedRequest<T>| matches!(k.body, RequestBody::Close);
        if self.kept.iter().any(is_closing) {
            return false;
        }
        let watch = self.watches.get_mut(consumer);
        let watch = watch.filter(|w| w.cancelled.is_none());
        let Some(get) = watch.and_then(|w| w.get.as_mut()) else {
            return false;
        };
        if !std::mem::take(&mut get.given_back) {
            return false;
        }
        get.last = last;
        self.kept.push_back(UnappliedRequest {
            body: body.clone(),
            tag: None,
        });
        true
    }
}
