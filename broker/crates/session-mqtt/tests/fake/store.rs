//! A queue with one consumer as sessions see it: in order, with a prefetch, and requeueing what a
//! consumer leaves.

use env::Time;
use message::Message;
use queue::client::CancelReason;
use queue::{
    ConsumerId, ConsumerSpec, Delivery, QueueId, QueueReply, RequestBody, SessionEpoch, SessionId,
    Settlement, SettlementOutcome,
};
use session::{QueueNotification, SessionEvent};
use std::collections::VecDeque;

#[derive(Clone)]
struct StoredMessage {
    /// Starts at 1.
    number: u64,
    message: Message,
    redelivered: bool,
}

struct Consumer {
    number: u64,
    id: ConsumerId,
    prefetch: usize,
    next: u64,
}

#[derive(Default)]
pub struct Store {
    ready: VecDeque<StoredMessage>,
    out: VecDeque<(u64, StoredMessage)>,
    consumer: Option<Consumer>,
    /// The connection that began the epoch of the last consumer.
    epoch: Option<SessionId>,
    published: u64,
    /// The session whose consumer was ended by [`Store::end_consumer`].
    ended: Option<u64>,
    /// The last consumer came with [`RequestBody::TakeOver`].
    pub is_epoch_consumer: bool,
    unused_since: Option<Time>,
}

pub fn cancelled(queue: QueueId) -> SessionEvent {
    let consumer = ConsumerId(1);
    QueueNotification::Cancelled {
        queue,
        consumer,
        reason: CancelReason::ByQueue,
    }
    .into()
}

impl Store {
    pub fn consumer(&self) -> Option<u64> {
        self.consumer.as_ref().map(|c| c.number)
    }

    pub fn unused_since(&self) -> Option<Time> {
        self.unused_since
    }

    pub fn len(&self) -> usize {
        self.ready.len() + self.out.len()
    }

    pub fn publish(&mut self, message: Message) {
        self.published += 1;
        self.ready.push_back(StoredMessage {
            number: self.published,
            message,
            redelivered: false,
        });
    }

    pub fn session_over(&mut self, number: u64, now: Time) {
        if self.consumer() != Some(number) {
            return;
        }
        self.consumer = None;
        self.unused_since = Some(now);
        while let Some((_, mut stored_message)) = self.out.pop_back() {
            stored_message.redelivered = true;
            self.ready.push_front(stored_message);
        }
    }

    pub fn request(&mut self, by: SessionId, body: RequestBody, now: Time) -> Option<QueueReply> {
        let number = by.number;
        match body {
            RequestBody::Consume { consumer, spec } => {
                assert!(self.consumer.is_none(), "the last one has not left");
                self.is_epoch_consumer = false;
                return Some(self.begin(number, consumer, &spec));
            }
            RequestBody::TakeOver(next) => {
                if let Some(settled) = &next.settled {
                    self.settle_late(settled);
                }
                if let Some(last) = self.consumer() {
                    self.session_over(last, now);
                }
                self.is_epoch_consumer = true;
                let answer = self.begin(number, next.consumer, &next.spec);
                return Some(match self.join_epoch(by, next.epoch) {
                    true => QueueReply::EpochContinues,
                    false => answer,
                });
            }
            RequestBody::Settle { outcome, ids, .. } => {
                assert_eq!(outcome, SettlementOutcome::Accepted);
                match self.consumer() {
                    Some(holder) if holder == number => self.settle(&ids),
                    holder => assert!(holder.is_none() && self.ended == Some(number)),
                }
            }
            RequestBody::CancelAndRequeue { .. } => self.session_over(number, now),
            other => panic!("no MQTT session asks a queue for {other:?}"),
        }
        None
    }

    fn begin(&mut self, number: u64, id: ConsumerId, spec: &ConsumerSpec) -> QueueReply {
        self.unused_since = None;
        self.consumer = Some(Consumer {
            number,
            id,
            prefetch: spec.prefetch as usize,
            next: 1,
        });
        QueueReply::Consuming
    }

    fn join_epoch(&mut self, by: SessionId, epoch: SessionEpoch) -> bool {
        let known = self.epoch;
        match epoch {
            SessionEpoch::Of(named) if known == Some(named) => return true,
            SessionEpoch::New | SessionEpoch::Of(_) => self.epoch = Some(by),
        }
        epoch == SessionEpoch::New && known.is_none()
    }

    /// A connection at another node has consumed and ended.
    pub fn consumed_elsewhere(&mut self, by: SessionId) {
        self.epoch = Some(by);
    }

    fn settle(&mut self, ids: &[(u64, u64)]) {
        let settled = |id: u64| ids.iter().any(|(from, to)| (*from..=*to).contains(&id));
        self.out.retain(|(id, _)| !settled(*id));
    }

    fn settle_late(&mut self, settled: &Settlement) {
        if self.consumer() == Some(settled.session.number) {
            self.settle(&settled.ids);
        }
    }

    /// A delayed request, or the end of the session if `None`. Another session may have consumed
    /// since.
    pub fn late(&mut self, by: SessionId, body: Option<RequestBody>, now: Time) {
        let number = by.number;
        match body {
            _ if self.consumer() != Some(number) => {}
            Some(body) => drop(self.request(by, body, now)),
            None => self.session_over(number, now),
        }
    }

    /// A late request and the end of an earlier connection: the current consumer gets no more
    /// messages.
    pub fn end_consumer(&mut self, now: Time) -> Option<u64> {
        let number = self.consumer()?;
        self.session_over(number, now);
        self.ended = Some(number);
        Some(number)
    }

    /// Delivers messages within the prefetch of the consumer.
    pub fn next(&mut self, queue: QueueId) -> Option<(u64, SessionEvent)> {
        let consumer = self.consumer.as_mut()?;
        let mut deliveries = Vec::new();
        while self.out.len() < consumer.prefetch
            && let Some(stored_message) = self.ready.pop_front()
        {
            deliveries.push(Delivery {
                id: consumer.next,
                redelivered: stored_message.redelivered,
                attempts: None,
                acquired: 0,
                left: stored_message.number,
                message: stored_message.message.clone(),
                annotations: None,
            });
            self.out.push_back((consumer.next, stored_message));
            consumer.next += 1;
        }
        let session_event = QueueNotification::Deliver {
            queue,
            consumer: consumer.id,
            deliveries: deliveries.clone(),
        };
        (!deliveries.is_empty()).then_some((consumer.number, session_event.into()))
    }
}
