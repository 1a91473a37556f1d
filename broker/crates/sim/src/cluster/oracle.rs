//! The account of all messages, and the rules that what clients see must keep.
//!
//! Clients report what they sent and what reached them. A message's confirm makes the cluster answerable for it: it is
//! delivered until a client settles it, or something that clients did accounts for it (a purge, a deletion, a limit).

use super::tracked_message::MessageId;
use env::{NodeId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

mod delays;
mod deliveries;
mod outstanding;
mod reachability;
#[cfg(test)]
mod tests;
mod windows;

use delays::FrozenMachine;
use reachability::Reachability;
use windows::Window;
pub use windows::WindowId;

/// What is done to a queue besides publishing and consuming; decides what accounts for a message that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueTreatment {
    /// Nothing: every confirmed message is delivered.
    Plain,
    /// Purged now and then.
    Purged,
    /// Deleted and declared again now and then.
    Recreated,
    /// A policy limits its length to this, dropping the oldest.
    Short(u64),
    /// A policy gives its messages this long to live.
    Brief(Duration),
    /// A policy limits its length to this, refusing what is too much.
    Refusing(u64),
    /// What is rejected for good goes on to [`GRAVE`], once at least.
    Mortal,
}

/// The queue that messages of a mortal one go to.
pub const GRAVE: &str = "grave";

/// A queue that clients leave to one of them until all is quiet.
pub const STEADY: &str = "steady";

/// A queue of the workload.
#[derive(Clone, Debug)]
pub struct QueuePlan {
    pub name: String,
    pub quorum: bool,
    pub character: QueueTreatment,
}

/// A client's consumer, or its gets: where a delivery went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub connection: u64,
    pub channel: u16,
    /// 0: a get.
    pub consumer: u32,
}

/// One delivery of a message. A client may have several of the same message, when its queue took its node to be down between;
/// only the last of them counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub to: Holder,
    /// The channel's delivery tag.
    pub tag: u64,
}

/// What the publisher knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishOutcome {
    Open,
    Confirmed,
    /// Returned: no queue had it.
    Returned,
    /// Refused, or its channel ended first: the queue may have it or not.
    Unknown,
}

/// What the consumers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// No client has it.
    Waits,
    Out(Delivery, Time),
    /// Acknowledged, or rejected for good; the queue may not know.
    Settled(Delivery, Time),
    /// The same, but the connection ended before the queue had to know.
    Doubtful,
    /// Rejected for good in a mortal queue, which may not know.
    Condemned(Delivery, Time),
    /// The same, and the queue knows: it comes from the grave next.
    Dead,
    /// Settled, and a later answer of the queue has shown that it knows.
    Gone(Time),
}

#[derive(Clone, Debug)]
struct TrackedMessage {
    queue: usize,
    sent: Time,
    /// What was [`done`](Ledger::done) in its queue before it reached a client last.
    done: Option<Time>,
    outcome: PublishOutcome,
    fate: MessageFate,
    deliveries: u32,
    attempts: u32,
    /// When it reached a client last.
    last: Option<Time>,
    /// When its client gave it back last, by its own will.
    back: Option<ReturnedMessage>,
    /// When a client rejected it for good first.
    condemned: Option<Time>,
    /// It came from the grave.
    died: Option<DeadLettered>,
    /// Deliveries before the last that may be the one that counts: where something was wrong with net or nodes, what a queue sent
    /// later may come first, and who got it last need not be who the queue says has it.
    elsewhere: Vec<Delivery>,
    /// When one settled it who may have been the one that the queue says had it: then it is gone.
    over: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct DeadLettered {
    /// When it left its queue, at the earliest.
    left: Time,
}

impl TrackedMessage {
    /// It is about to reach a client: what others have of it, or have settled, counts on if the two may have crossed.
    /// `newer`: they have not, it was taken back from all who had it.
    fn crossed_by(&mut self, disturbed: Time, newer: bool) {
        match self.fate {
            MessageFate::Out(out, since) if disturbed >= since => self.elsewhere.push(out),
            MessageFate::Settled(_, at) => self.over = Some(at),
            _ => {}
        }
        if newer || self.last.is_none_or(|last| disturbed < last) {
            self.elsewhere.clear();
        }
        self.over = self.over.filter(|at| !newer && disturbed >= *at);
    }
}

/// A message that a client gave back.
#[derive(Clone, Copy, Debug)]
struct ReturnedMessage {
    at: Time,
    of: Delivery,
    /// When an answer of the queue showed that it knows.
    known: Option<Time>,
}

/// A message that went on to somebody else while a client still had it. The broker may do that when it ends the client's
/// channel or consumer; the client hears of it within [`HEARD_WITHIN`].
#[derive(Clone, Copy, Debug)]
struct HandedOver {
    id: MessageId,
    from: Holder,
    at: Time,
}

/// More than what an event takes from a queue to the client of another node, when nothing is wrong.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// The way from a node to its client, when nothing is wrong.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// A quorum queue drops a message that failed this often.
const DELIVERY_LIMIT: u32 = 20;
/// After the last fault: until nothing of it can show any more.
const CALMING: Duration = Duration::from_secs(4);

#[derive(Default)]
pub struct Oracle {
    pub queues: Vec<QueuePlan>,
    messages: BTreeMap<MessageId, TrackedMessage>,
    windows: Vec<Window>,
    taken: Vec<HandedOver>,
    /// Until when something may be wrong with net or nodes.
    disturbed: Time,
    /// When messages of a queue came to a client for the first time.
    firsts: BTreeMap<usize, Vec<Time>>,
    /// The last number of each stream that came for the first time, by consumer and queue.
    order: BTreeMap<(Holder, usize, u32), u32>,
    pub confirmed: u64,
    pub delivered: u64,
    pub redelivered: u64,
    /// Settled, and known to be.
    pub gone: u64,
    /// When a machine's software last ended: classic queues there forget what was not written.
    ended: BTreeMap<NodeId, Time>,
    reach: Reachability,
    /// By queue: when it was known that a message had got through its log, for it was confirmed or delivered, and when that was sent; each
    /// newer than the one before.
    done: BTreeMap<usize, VecDeque<(Time, Time)>>,
    /// Machines that stood still.
    still: Vec<FrozenMachine>,
    /// When a machine last lost power: classic queues write before they confirm, and do not sync.
    powerless: Time,
    /// Wall clocks are not to be trusted: a message's life may be over at any time.
    clocks_jump: bool,
}

impl Oracle {
    pub fn new(queues: Vec<QueuePlan>) -> Oracle {
        Oracle {
            queues,
            ..Oracle::default()
        }
    }

    /// Something is wrong with net or nodes at this time.
    pub fn disturb(&mut self, now: Time) {
        let calm_before = self.disturbed < now;
        self.disturbed = self.disturbed.max(now + CALMING);
        for window in self.windows.iter_mut().filter(|w| w.unheard) {
            window.unheard = !calm_before;
            if window.unheard {
                window.until = Some(self.disturbed);
            }
        }
    }

    /// A wall clock has jumped.
    pub fn clocks_jump(&mut self) {
        self.clocks_jump = true;
    }

    /// Nothing was wrong since then.
    pub fn calm_since(&self, then: Time) -> bool {
        self.disturbed < then
    }

    /// Until when something may be wrong.
    pub fn disturbed(&self) -> Time {
        self.disturbed
    }

    /// The software of a machine has ended.
    pub fn ended(&mut self, now: Time, machine: NodeId) {
        self.ended.insert(machine, now);
        self.reach.ended(now, machine);
        self.disturb(now);
    }

    /// A machine's disk has lost what was not synced.
    pub fn lost_power(&mut self, at: Time) {
        self.powerless = self.powerless.max(at);
    }

    /// Another node takes this machine to be down.
    pub fn given_up(&mut self, now: Time, by: NodeId, machine: NodeId) {
        self.reach.given_up(now, by, machine);
    }

    /// Another node hears this machine.
    pub fn heard(&mut self, now: Time, by: NodeId, machine: NodeId) {
        self.reach.heard(now, by, machine);
    }

    pub fn sent(&mut self, now: Time, id: MessageId, queue: usize) {
        let message = TrackedMessage {
            queue,
            sent: now,
            done: None,
            outcome: PublishOutcome::Open,
            fate: MessageFate::Waits,
            deliveries: 0,
            attempts: 0,
            last: None,
            back: None,
            condemned: None,
            died: None,
            elsewhere: Vec::new(),
            over: None,
        };
        tracing::debug!(message = id.0, queue, "sent");
        self.messages.insert(id, message);
    }

    fn message(&mut self, id: MessageId) -> Result<&mut TrackedMessage, String> {
        let message = self.messages.get_mut(&id);
        message.ok_or_else(|| format!("message {id:?} was never published"))
    }

    pub fn confirmed(&mut self, now: Time, id: MessageId) -> Result<(), String> {
        self.confirmed += 1;
        tracing::debug!(message = id.0, "confirmed");
        let message = self.message(id)?;
        match message.outcome {
            PublishOutcome::Open => message.outcome = PublishOutcome::Confirmed,
            // A returned message is confirmed after that.
            PublishOutcome::Returned => return Ok(()),
            other => return Err(format!("message {id:?} was confirmed and is {other:?}")),
        }
        let (queue, sent) = (message.queue, message.sent);
        self.has_done(now, queue, sent);
        Ok(())
    }

    /// A message of this queue, sent then, has got through its log.
    fn has_done(&mut self, now: Time, queue: usize, sent: Time) {
        let done = self.done.entry(queue).or_default();
        if done.back().is_none_or(|(_, last)| *last < sent) {
            done.push_back((now, sent));
        }
    }

    /// When the newest message was sent that had got through this queue's log before what comes now left it: a log that got no further
    /// for a while goes on with all that it has at once, and what comes of that crosses on its way.
    fn done_before(&mut self, now: Time, queue: usize) -> Option<Time> {
        let done = self.done.get_mut(&queue)?;
        let early = |at: &(Time, Time)| at.0 + ON_THE_WAY <= now;
        while done.get(1).is_some_and(early) {
            done.pop_front();
        }
        done.front().filter(|at| early(at)).map(|at| at.1)
    }

    pub fn returned(&mut self, id: MessageId) -> Result<(), String> {
        let message = self.message(id)?;
        if message.outcome != PublishOutcome::Open {
            return Err(format!(
                "message {id:?} was returned and is {:?}",
                message.outcome
            ));
        }
        message.outcome = PublishOutcome::Returned;
        Ok(())
    }

    /// Refused, or never answered.
    pub fn unknown(&mut self, id: MessageId) -> Result<(), String> {
        self.message(id)?.outcome = PublishOutcome::Unknown;
        Ok(())
    }

    /// Back in the queue by the client's wish.
    pub fn given_back(&mut self, now: Time, id: MessageId, by: Delivery) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, "given back");
        let message = self.message(id)?;
        message.elsewhere.retain(|before| *before != by);
        if matches!(message.fate, MessageFate::Out(out, _) if out == by) {
            message.fate = MessageFate::Waits;
            message.back = Some(ReturnedMessage {
                at: now,
                of: by,
                known: None,
            });
        }
        Ok(())
    }

    /// The queue has answered something that the client asked after it had given these back.
    pub fn known_back(&mut self, now: Time, given: &[(MessageId, Delivery)]) -> Result<(), String> {
        for (id, of) in given {
            let back = self.message(*id)?.back.as_mut();
            if let Some(back) = back.filter(|back| back.of == *of) {
                back.known.get_or_insert(now);
            }
        }
        Ok(())
    }

    /// The client has rejected it for good.
    pub fn rejected(&mut self, now: Time, id: MessageId, by: Delivery) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, "rejected");
        let queue = self.message(id)?.queue;
        let plan = self.queues.get(queue);
        if plan.is_none_or(|q| q.character != QueueTreatment::Mortal) {
            return self.settled(now, id, by);
        }
        let message = self.message(id)?;
        if matches!(message.fate, MessageFate::Out(out, _) if out == by) {
            message.fate = MessageFate::Condemned(by, now);
            message.condemned.get_or_insert(now);
        }
        Ok(())
    }

    /// The client has acknowledged or rejected it.
    pub fn settled(&mut self, now: Time, id: MessageId, by: Delivery) -> Result<(), String> {
        tracing::debug!(message = id.0, ?by, "settled");
        let message = self.message(id)?;
        match message.fate {
            MessageFate::Out(out, _) if out == by => message.fate = MessageFate::Settled(by, now),
            fate if message.elsewhere.contains(&by) => {
                message.over = Some(now);
                if fate == MessageFate::Waits {
                    message.fate = MessageFate::Doubtful;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Settled, if the client had it at all; nobody can tell.
    pub fn perhaps_settled(&mut self, now: Time, id: MessageId) -> Result<(), String> {
        tracing::debug!(message = id.0, "perhaps settled");
        let message = self.message(id)?;
        if message.fate == MessageFate::Waits {
            message.fate = MessageFate::Doubtful;
            message.over = Some(now);
            // By a rejection, perhaps: then it comes from the grave.
            message.condemned.get_or_insert(now);
        }
        Ok(())
    }

    /// The queue has answered something that the client asked after it had settled these.
    pub fn known(
        &mut self,
        now: Time,
        machine: NodeId,
        settled: &[(MessageId, Delivery)],
    ) -> Result<(), String> {
        let out_of_reach = self.reach.out_of_reach_until(now, machine);
        let last_end = self.ended.values().copied().max();
        for (id, of) in settled {
            let message = self.message(*id)?;
            let (settled, dies) = match message.fate {
                MessageFate::Settled(out, at) if out == *of => (at, false),
                MessageFate::Condemned(out, at) if out == *of => (at, true),
                // Delivered once more meanwhile: that is what the queue took the old settling for.
                _ => continue,
            };
            let (queue, last, done) = (message.queue, message.last, message.done);
            // A queue that took this node to be out of reach for a while took the message back, then or when it came to be led by who
            // did, and the settling came too late. The delivery may have been on its way then.
            let sent = last.map(|last| self.sent_at_earliest(machine, last));
            // Or that stood in the log already, behind what made the queue send the message (its publishing, or somebody's consume), and
            // nobody had heard of either: whoever comes to lead a queue that nobody led for a while sends it first, and then takes it back.
            let in_log = out_of_reach.is_some_and(|at| done.is_none_or(|done| done <= at));
            let too_late = in_log || sent.is_some_and(|sent| out_of_reach >= Some(sent));
            // What an earlier life of a classic queue's node delivered is back in the queue, and settling it comes too late; what
            // was on its way there went with it. Who answers is the next life.
            let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
            let lost = !quorum && last_end >= Some(last.unwrap_or(settled));
            let message = self.message(*id)?;
            if dies {
                message.fate = if too_late {
                    MessageFate::Waits
                } else {
                    MessageFate::Dead
                };
            } else if too_late || lost {
                message.over = Some(settled);
                message.fate = MessageFate::Doubtful;
            } else {
                message.fate = MessageFate::Gone(now);
                self.gone += 1;
            }
        }
        Ok(())
    }

    /// The broker has ended a client's channel or consumer: it may have taken back what that had before this was heard.
    pub fn ended_by_broker(&mut self, now: Time, of: impl Fn(Holder) -> bool) {
        self.taken
            .retain(|t| !of(t.from) || now.since(t.at) > HEARD_WITHIN);
        self.taken_back(None, of);
    }

    /// Whether it is too early for [`Oracle::doubled`] to tell.
    pub fn may_be_doubled(&self, now: Time) -> bool {
        let last = self.taken.last();
        last.is_some_and(|t| now.since(t.at) <= HEARD_WITHIN)
    }

    /// Messages that went to somebody else although nobody had taken them from the client that had them.
    pub fn doubled(&self, now: Time) -> Result<(), String> {
        let mut late = (self.taken.iter()).filter(|t| now.since(t.at) > HEARD_WITHIN);
        match late.find(|t| self.disturbed < t.at) {
            Some(HandedOver { id, from, at }) => Err(format!(
                "message {id:?} was with {from:?} and came to somebody else at {at:?}"
            )),
            None => Ok(()),
        }
    }

    /// A connection or a consumer of it has ended: what it had goes back.
    pub fn released(&mut self, now: Time, of: impl Fn(Holder) -> bool) {
        self.taken_back(Some(now), of);
    }

    /// `at`: when the client ended it, if it was the client.
    fn taken_back(&mut self, at: Option<Time>, of: impl Fn(Holder) -> bool) {
        for (id, message) in &mut self.messages {
            message.elsewhere.retain(|before| !of(before.to));
            match message.fate {
                MessageFate::Out(out, _) if of(out.to) => {
                    tracing::debug!(message = id.0, ?out, "taken back");
                    message.fate = match message.over {
                        Some(_) => MessageFate::Doubtful,
                        None => MessageFate::Waits,
                    };
                    message.back = at.map(|at| ReturnedMessage {
                        at,
                        of: out,
                        known: None,
                    });
                }
                // Back in its queue, or in the grave.
                MessageFate::Condemned(out, _) if of(out.to) => message.fate = MessageFate::Waits,
                // Nobody knows whether the queue heard of it.
                MessageFate::Settled(out, at) if of(out.to) => {
                    message.over = Some(at);
                    message.fate = MessageFate::Doubtful;
                }
                _ => {}
            }
        }
    }

    pub fn published(&self) -> usize {
        self.messages.len()
    }
}
