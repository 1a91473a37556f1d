//! A message reaches a client: whether it may, and whether now.

use super::super::letter::{LetterId, Read};
use super::{
    Back, DELIVERY_LIMIT, Delivery, Died, Fate, GRAVE, Holder, Ledger, ON_THE_WAY, Outcome, Taken,
};
use env::Time;

impl Ledger {
    /// A message has reached a client.
    pub fn delivered(
        &mut self,
        now: Time,
        read: Read,
        queue: usize,
        delivery: Delivery,
        redelivered: bool,
    ) -> Result<(), String> {
        let (id, attempts) = (read.id, read.attempts);
        tracing::debug!(
            letter = id.0,
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
        let letter = self.letter(id)?;
        if letter.queue != queue {
            return Err(format!(
                "message {id:?} came from queue {queue}, not {}",
                letter.queue
            ));
        }
        if letter.outcome == Outcome::Returned {
            return Err(format!("message {id:?} was returned and came from a queue"));
        }
        // Something on the way to a client that the queue gave up may come after what the queue sent then.
        let crossed = letter.last.is_some_and(|last| disturbed >= last);
        if letter.deliveries > 0 && !redelivered && !crossed {
            return Err(format!(
                "message {id:?} came again without the flag ({:?})",
                letter.fate
            ));
        }
        match letter.fate {
            Fate::Waits | Fate::Doubtful => {}
            Fate::Out(_, since) | Fate::Settled(_, since) | Fate::Condemned(_, since)
                if disturbed >= since => {}
            Fate::Out(from, _) | Fate::Settled(from, _) | Fate::Condemned(from, _)
                if from.to != delivery.to =>
            {
                let (from, at) = (from.to, now);
                taken = Some(Taken { id, from, at });
            }
            // What it was sent with before its queue took it back and somebody else settled it, from a node that stood still.
            Fate::Gone(_) if quorum && crossed && attempts < letter.attempts => return Ok(()),
            // A classic queue does not write each acknowledgement before it answers.
            Fate::Gone(since) if !quorum && last_end.is_some_and(|end| end >= since) => {}
            fate => {
                let sent = letter.sent;
                let name = self.queues.get(queue).map(|q| q.name.clone());
                return Err(format!(
                    "message {id:?}, sent to {} at {sent:?}, came again and is {fate:?}",
                    name.unwrap_or_default()
                ));
            }
        }
        let first = letter.deliveries == 0 && !redelivered;
        let back = letter.back.take();
        // Quorum queues count each time that they take a message back.
        letter.crossed_by(disturbed, quorum && attempts > letter.attempts);
        letter.fate = Fate::Out(delivery, now);
        letter.deliveries += 1;
        letter.attempts = attempts;
        letter.last = Some(now);
        letter.done = done;
        let sent = letter.sent;
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
    fn came_from_grave(&mut self, id: LetterId, queue: usize) -> Result<(), String> {
        let disturbed = self.disturbed;
        let is_grave = self.queues.get(queue).is_some_and(|q| q.name == GRAVE);
        let letter = self.letter(id)?;
        let copied = letter.died.is_some_and(|died| disturbed >= died.left);
        if letter.died.is_some() && !copied {
            return Ok(());
        }
        let tired = letter.attempts + 1 >= DELIVERY_LIMIT || disturbed >= letter.sent;
        if !is_grave || !(letter.condemned.is_some() || tired || copied) {
            return Err(format!("message {id:?} died of nothing: {letter:?}"));
        }
        let left = letter.condemned.or(letter.last).unwrap_or(letter.sent);
        letter.queue = queue;
        letter.deliveries = 0;
        letter.attempts = 0;
        letter.last = None;
        letter.back = None;
        letter.fate = Fate::Waits;
        letter.elsewhere.clear();
        letter.over = None;
        letter.died.get_or_insert(Died { left });
        Ok(())
    }

    /// Something that was on its way to a client of a node that its queue had given up, while others had it, until it died.
    fn is_stale(&mut self, id: LetterId, queue: usize) -> Result<bool, String> {
        let disturbed = self.disturbed;
        let letter = self.letter(id)?;
        let crossed = letter.died.is_some_and(|died| disturbed >= died.left);
        Ok(letter.queue != queue && crossed)
    }

    /// What is given back comes before messages that nobody has had. One that is on its way to a client of which the queue
    /// hears only then that it is gone may be late.
    fn not_passed_by(
        &self,
        now: Time,
        id: LetterId,
        queue: usize,
        back: Back,
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
    fn in_order(&mut self, id: LetterId, queue: usize, holder: Holder) -> Result<(), String> {
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
