//! Credit of consumers in the session's count of deliveries.
//!
//! A session counts the deliveries that it received. A queue counts delivery ids, and some ids never arrive:
//! while the session's node could not be reached, the queue gave those messages to other consumers. Their
//! credit must not be lost. So the client adds their number to `up_to`, and renews the credit when it learns of
//! them.

use super::{PendingRequest, QueueClient};
use crate::{ConsumerId, QueueReply, RequestBody};

/// The credit of one consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CreditState {
    /// The last `up_to` of the session. None: it gave no credit, or drained it.
    granted: Option<u64>,
    /// Number of ids that never arrived.
    skipped: u64,
    /// The last run of ids that never arrived: its first id and its length.
    last_skip: (u64, u64),
}

impl CreditState {
    /// Records credit of the session. Returns the delivery id up to which the queue may deliver.
    pub(crate) fn grant(&mut self, up_to: u64, drain: bool) -> u64 {
        self.granted = (!drain).then_some(up_to);
        up_to.saturating_add(self.skipped)
    }

    /// Records that the ids from `from` to before `next` will not arrive. Returns the `up_to` that renews their
    /// credit.
    pub(crate) fn skip(&mut self, from: u64, next: u64) -> Option<u64> {
        debug_assert!(from <= next);
        let count = next.saturating_sub(from);
        self.skipped += count;
        self.last_skip = (from, count);
        self.granted.map(|up_to| up_to.saturating_add(self.skipped))
    }

    /// Number of deliveries up to this id, without the ids that never arrive.
    fn count(&self, id: u64) -> u64 {
        let (from, count) = self.last_skip;
        debug_assert!(count <= self.skipped);
        let before = self.skipped - count;
        let in_last_skip = id.saturating_sub(from.saturating_sub(1)).min(count);
        id.saturating_sub(before + in_last_skip)
    }
}

impl<T: Copy> QueueClient<T> {
    /// Translates the credit in a request to delivery ids.
    pub(super) fn translate_credit(&mut self, body: RequestBody) -> RequestBody {
        match body {
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            } => {
                let progress = self.consumers.get_mut(&consumer);
                let up_to = progress.map_or(up_to, |progress| progress.credit.grant(up_to, drain));
                RequestBody::Credit {
                    consumer,
                    up_to,
                    drain,
                }
            }
            body => body,
        }
    }

    /// Deliveries of a consumer, from the next expected one to before `next`, will not arrive.
    pub(super) fn skip(&mut self, consumer: ConsumerId, next: u64) {
        let Some(progress) = self.consumers.get_mut(&consumer) else {
            return;
        };
        let renewed = progress.credit.skip(progress.expected, next);
        progress.expected = next;
        progress.unsettled_from = next;
        let is_cancelled = progress.cancelled.is_some();
        if let Some(up_to) = renewed.filter(|_| !is_cancelled) {
            self.enqueue(RequestBody::CreditOneWay { consumer, up_to }, None);
        }
    }

    /// Returns true if deliveries that the answer counts have not arrived yet. The session gets the answer
    /// after them.
    pub(super) fn is_early(&self, body: &RequestBody, answer: &QueueReply) -> bool {
        let (RequestBody::Credit { consumer, .. }, QueueReply::Credited { last, .. }) =
            (body, answer)
        else {
            return false;
        };
        let progress = self.consumers.get(consumer);
        progress.is_some_and(|w| w.cancelled.is_none() && w.expected <= *last)
    }

    /// Translates an answer to the session's count of deliveries.
    pub(super) fn to_counts(&self, body: &RequestBody, answer: QueueReply) -> QueueReply {
        match (body, answer) {
            (
                RequestBody::Credit { consumer, .. },
                QueueReply::Credited {
                    last,
                    available,
                    drained,
                },
            ) => QueueReply::Credited {
                last: match self.consumers.get(consumer) {
                    Some(progress) => progress.credit.count(last),
                    None => last,
                },
                available,
                drained,
            },
            (_, answer) => answer,
        }
    }

    /// Removes the next answer whose deliveries have all arrived.
    pub(super) fn next_due_answer(&mut self) -> Option<(PendingRequest, QueueReply)> {
        if self.early_answers == 0 {
            return None;
        }
        let at = self.unanswered.iter().position(|pending| {
            let early = pending.answer.as_ref();
            early.is_some_and(|answer| !self.is_early(&pending.body, answer))
        })?;
        let mut pending = self.unanswered.remove(at)?;
        let answer = pending.answer.take()?;
        self.early_answers -= 1;
        Some((pending, answer))
    }
}

impl PendingRequest {
    /// Returns true if the owner may need a long time: a drain ends when the session has taken the deliveries.
    pub(super) fn may_be_slow(&self, first_unapplied: u64) -> bool {
        let is_drain = matches!(self.body, RequestBody::Credit { drain: true, .. });
        self.answer.is_some() || (is_drain && self.seq < first_unapplied)
    }
}

#[cfg(test)]
mod tests {
    use super::CreditState;

    #[test]
    fn skipped_ids_do_not_count_as_deliveries() {
        let mut credit = CreditState::default();
        assert_eq!(credit.skip(1, 4), None);
        // The deliveries 1 to 3 never arrived.
        assert_eq!(credit.grant(10, false), 13);
        assert_eq!([3, 4, 13].map(|id| credit.count(id)), [0, 1, 10]);
        assert_eq!(credit.skip(6, 8), Some(15));
        assert_eq!(
            [4, 5, 6, 7, 8, 15].map(|id| credit.count(id)),
            [1, 2, 2, 2, 3, 10]
        );
        assert_eq!(credit.grant(10, true), 15);
        assert_eq!(credit.skip(8, 9), None);
    }
}
