//! A message reaches a client: whether it may, and whether now.

use super::super::tracked_message::{MessageId, ReadMessage};
use super::{
    DELIVERY_LIMIT, DeadLettered, Delivery, GRAVE, HandedOver, Holder, MessageFate, ON_THE_WAY,
    Oracle, PublishOutcome, ReturnedMessage,
};
use env::Time;

impl Oracle {
    /// A message has reached a client.
    pub fn delivered(
        &mut self,
        now: Time,
        read: ReadMessage,
        queue: usize,
        delivery: Delivery,
        redelivered: bool,
    ) -> Result<(), String> {
        let (id, attempts) = (read.id, read.attempts);
        tracing::debug!(
            message = id.0,
            queue,
            ?delivery,
            attempts,
            redelivered,
            died = read.died,
            "delivered"
        );
        if read.died {
            self.came_from_grave(id, queue)?;
        } else if self.is_stale(id, queue)? {
            return Ok(());
        }
        let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
        let (disturbed, last_end) = (self.disturbed, self.ended.values().copied().max());
        let done = self.done_before(now, queue);
        let mut taken = None;
        let message = self.message(id)?;
        if message.queue != queue {
            return Err(format!(
                "message {id:?} came from queue {queue}, not {}",
                message.queue
            ));
        }
        if message.outcome == PublishOutcome::Returned {
            return Err(format!("message {id:?} was returned and came from a queue"));
        }
        // Something on the way to a client that the queue gave up may come after what the queue sent then.
        let crossed = message.last.is_some_and(|last| disturbed >= last);
        if message.deliveries > 0 && !redelivered && !crossed {
            return Err(format!(
                "message {id:?} came again without the flag ({:?})",
                message.fate
            ));
        }
        match message.fate {
            MessageFate::Waits | MessageFate::Doubtful => {}
            MessageFate::Out(_, since)
            | MessageFate::Settled(_, since)
            | MessageFate::Condemned(_, since)
                if disturbed >= since => {}
            MessageFate::Out(from, _)
            | MessageFate::Settled(from, _)
            | MessageFate::Condemned(from, _)
                if from.to != delivery.to =>
            {
                let (from, at) = (from.to, now);
                taken = Some(HandedOver { id, from, at });
            }
            // What it was sent with before its queue took it back and somebody else settled it, from a node that stood still.
            MessageFate::Gone(_) if quorum && crossed && attempts < message.attempts => {
                return Ok(());
            }
            // A classic queue does not write each acknowledgement before it answers.
            MessageFate::Gone(since) if !quorum && last_end.is_some_and(|end| end >= since) => {}
            fate => {
                let sent = message.sent;
                let name = self.queues.get(queue).map(|q| q.name.clone());
                return Err(format!(
                    "message {id:?}, sent to {} at {sent:?}, came again and is {fate:?}",
                    name.unwrap_or_default()
                ));
            }
        }
        let first = message.deliveries == 0 && !redelivered;
        let back = message.back.take();
        // Quorum queues count each time that they take a message back.
        message.crossed_by(disturbed, quorum && attempts > message.attempts);
        message.fate = MessageFate::Out(delivery, now);
        message.deliveries += 1;
        message.attempts = attempts;
        message.last = Some(now);
        message.done = done;
        let sent = message.sent;
        self.has_done(now, queue, sent);
        self.taken.extend(taken);
        self.delivered += 1;
        self.redelivered += u64::from(redelivered);
        if first {
            self.firsts.entry(queue).or_default().push(now);
        }
        if let Some(back) = back {
            self.not_passed_by(now, id, queue, back)?;
        }
        if !redelivered && !read.died {
            self.in_order(id, queue, delivery.to)?;
        }
        Ok(())
    }

    /// A message has come through the dead letter exchange: to the grave, and because it was rejected. There may be copies
    /// of it when something was wrong with net or nodes while it was on its way.
    fn came_from_grave(&mut self, id: MessageId, queue: usize) -> Result<(), String> {
        let disturbed = self.disturbed;
        let is_grave = self.queues.get(queue).is_some_and(|q| q.name == GRAVE);
        let message = self.message(id)?;
        let copied = message.died.is_some_and(|died| disturbed >= died.left);
        if message.died.is_some() && !copied {
            return Ok(());
        }
        let tired = message.attempts + 1 >= DELIVERY_LIMIT || disturbed >= message.sent;
        if !is_grave || !(message.condemned.is_some() || tired || copied) {
            return Err(format!("message {id:?} died of nothing: {message:?}"));
        }
        let left = message.condemned.or(message.last).unwrap_or(message.sent);
        message.queue = queue;
        message.deliveries = 0;
        message.attempts = 0;
        message.last = None;
        message.back = None;
        message.fate = MessageFate::Waits;
        message.elsewhere.clear();
        message.over = None;
        message.died.get_or_insert(DeadLettered { left });
        Ok(())
    }

    /// Something that was on its way to a client of a node that its queue had given up, while others had it, until it died.
    fn is_stale(&mut self, id: MessageId, queue: usize) -> Result<bool, String> {
        let disturbed = self.disturbed;
        let message = self.message(id)?;
        let crossed = message.died.is_some_and(|died| disturbed >= died.left);
        Ok(message.queue != queue && crossed)
    }

    /// What is given back comes before messages that nobody has had. One that is on its way to a client of which the queue
    /// hears only then that it is gone may be late.
    fn not_passed_by(
        &self,
        now: Time,
        id: MessageId,
        queue: usize,
        back: ReturnedMessage,
    ) -> Result<(), String> {
        let Some(known) = back.known.filter(|_| self.disturbed < back.at) else {
            return Ok(());
        };
        let firsts = self.firsts.get(&queue).map_or(&[][..], Vec::as_slice);
        let after = firsts.partition_point(|first| *first <= known + ON_THE_WAY);
        match firsts.get(after) {
            Some(first) if *first + ON_THE_WAY < now => Err(format!(
                "message {id:?} was given back at {:?} and came after others that were new at {first:?}",
                back.at
            )),
            _ => Ok(()),
        }
    }

    /// First deliveries of a stream come to a consumer in the order in which they were published.
    fn in_order(&mut self, id: MessageId, queue: usize, holder: Holder) -> Result<(), String> {
        let last = self.order.entry((holder, queue, id.stream())).or_default();
        let before = std::mem::replace(last, id.number());
        if before >= id.number() {
            return Err(format!(
                "message {id:?} came after number {before} of its stream"
            ));
        }
        Ok(())
    }
}
