//! The account of all messages, and the rules that what clients see must keep.
//!
//! Clients report what they sent and what reached them. A message's confirm makes the cluster answerable for it: it is
//! delivered until a client settles it, or something that clients did accounts for it (a purge, a deletion, a limit).

use super::letter::{LetterId, Read};
use env::{NodeId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// What is done to a queue besides publishing and consuming; decides what accounts for a message that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Character {
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

/// A queue of the workload.
#[derive(Clone, Debug)]
pub struct QueuePlan {
    pub name: String,
    pub quorum: bool,
    pub character: Character,
}

/// A client's consumer, or its gets: where a delivery went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub connection: u64,
    pub channel: u16,
    /// 0: a get.
    pub consumer: u32,
}

/// What the publisher knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    Confirmed,
    /// Returned: no queue had it.
    Returned,
    /// Refused, or its channel ended first: the queue may have it or not.
    Unknown,
}

/// What the consumers know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// No client has it.
    Waits,
    Out(Holder, Time),
    /// Acknowledged, or rejected for good; the queue may not know.
    Settled(Holder, Time),
    /// The same, but the connection ended before the queue had to know.
    Doubtful,
    /// Rejected for good in a mortal queue, which may not know.
    Condemned(Holder, Time),
    /// The same, and the queue knows: it comes from the grave next.
    Dead,
    /// Settled, and a later answer of the queue has shown that it knows.
    Gone(Time),
}

#[derive(Clone, Debug)]
struct Letter {
    queue: usize,
    sent: Time,
    outcome: Outcome,
    fate: Fate,
    deliveries: u32,
    attempts: u32,
    /// When it reached a client last.
    last: Option<Time>,
    /// When its client gave it back last, by its own will.
    back: Option<Back>,
    /// When a client rejected it for good first.
    condemned: Option<Time>,
    /// It came from the grave.
    died: Option<Died>,
    /// Others whom it reached and who may have it still: where something was wrong with net or nodes, what a queue sent later may
    /// come first, and who got it last need not be who the queue says has it.
    elsewhere: Vec<Holder>,
    /// When one settled it who may have been the one that the queue says had it: then it is gone.
    over: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Died {
    /// When it left its queue, at the earliest.
    left: Time,
}

impl Letter {
    /// It is about to reach a client: what others have of it, or have settled, counts on if the two may have crossed.
    /// `newer`: they have not, it was taken back from all who had it.
    fn crossed_by(&mut self, disturbed: Time, newer: bool) {
        match self.fate {
            Fate::Out(holder, since) if disturbed >= since => self.elsewhere.push(holder),
            Fate::Settled(_, at) => self.over = Some(at),
            _ => {}
        }
        if newer || self.last.is_none_or(|last| disturbed < last) {
            self.elsewhere.clear();
        }
        self.over = self.over.filter(|at| !newer && disturbed >= *at);
    }

    /// A client had it all the while: a purge takes what is ready.
    fn held_through(&self, window: &Window) -> bool {
        let (Some(last), Some(back), Some(until)) = (self.last, self.back, window.until) else {
            return false;
        };
        window.disturbed < last && last <= window.opened && until <= back.at
    }
}

/// A message that a client gave back.
#[derive(Clone, Copy, Debug)]
struct Back {
    at: Time,
    /// When an answer of the queue showed that it knows.
    known: Option<Time>,
}

/// A purge or deletion: it may take what was sent before `until` and reached no client after that.
#[derive(Clone, Copy, Debug)]
struct Window {
    queue: usize,
    /// It takes also what clients have, for the queue is gone.
    deletes: bool,
    /// When it was asked for.
    opened: Time,
    /// The last time before its end at which something may have been wrong with net or nodes.
    disturbed: Time,
    /// None while nobody knows whether it was carried out.
    until: Option<Time>,
    /// A deletion that a node may not have heard of: what that node still sends to the queue it knew is gone with it, and
    /// confirmed, as what is published to any queue while it is deleted. Ends when net and nodes are well.
    unheard: bool,
}

/// A message that went on to somebody else while a client still had it. The broker may do that when it ends the client's
/// channel or consumer; the client hears of it within [`HEARD_WITHIN`].
#[derive(Clone, Copy, Debug)]
struct Taken {
    id: LetterId,
    from: Holder,
    at: Time,
}

/// More than what an event takes from a queue to the client of another node, when nothing is wrong.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// The way from a node to its client, when nothing is wrong.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// A number for a purge or deletion that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowId(usize);

/// A quorum queue drops a message that failed this often.
const DELIVERY_LIMIT: u32 = 20;
/// After the last fault: until nothing of it can show any more.
const CALMING: Duration = Duration::from_secs(4);

#[derive(Default)]
pub struct Ledger {
    pub queues: Vec<QueuePlan>,
    letters: BTreeMap<LetterId, Letter>,
    windows: Vec<Window>,
    taken: Vec<Taken>,
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
    /// When a machine was last given up by another one: queues took back what clients there had.
    given_up: BTreeMap<NodeId, Time>,
    /// When a machine last lost power: classic queues write before they confirm, and do not sync.
    powerless: Time,
    /// Wall clocks are not to be trusted: a message's life may be over at any time.
    clocks_jump: bool,
}

impl Ledger {
    pub fn new(queues: Vec<QueuePlan>) -> Ledger {
        Ledger {
            queues,
            ..Ledger::default()
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

    /// The software of a machine has ended.
    pub fn ended(&mut self, now: Time, machine: NodeId) {
        self.ended.insert(machine, now);
        self.disturb(now);
    }

    /// A machine's disk has lost what was not synced.
    pub fn lost_power(&mut self, at: Time) {
        self.powerless = self.powerless.max(at);
    }

    /// Another node takes this machine to be down.
    pub fn given_up(&mut self, now: Time, machine: NodeId) {
        self.given_up.insert(machine, now);
    }

    pub fn sent(&mut self, now: Time, id: LetterId, queue: usize) {
        let letter = Letter {
            queue,
            sent: now,
            outcome: Outcome::Open,
            fate: Fate::Waits,
            deliveries: 0,
            attempts: 0,
            last: None,
            back: None,
            condemned: None,
            died: None,
            elsewhere: Vec::new(),
            over: None,
        };
        tracing::debug!(letter = id.0, queue, "sent");
        self.letters.insert(id, letter);
    }

    fn letter(&mut self, id: LetterId) -> Result<&mut Letter, String> {
        let letter = self.letters.get_mut(&id);
        letter.ok_or_else(|| format!("message {id:?} was never published"))
    }

    pub fn confirmed(&mut self, id: LetterId) -> Result<(), String> {
        self.confirmed += 1;
        tracing::debug!(letter = id.0, "confirmed");
        let letter = self.letter(id)?;
        match letter.outcome {
            Outcome::Open => letter.outcome = Outcome::Confirmed,
            // A returned message is confirmed after that.
            Outcome::Returned => {}
            other => return Err(format!("message {id:?} was confirmed and is {other:?}")),
        }
        Ok(())
    }

    pub fn returned(&mut self, id: LetterId) -> Result<(), String> {
        let letter = self.letter(id)?;
        if letter.outcome != Outcome::Open {
            return Err(format!(
                "message {id:?} was returned and is {:?}",
                letter.outcome
            ));
        }
        letter.outcome = Outcome::Returned;
        Ok(())
    }

    /// Refused, or never answered.
    pub fn unknown(&mut self, id: LetterId) -> Result<(), String> {
        self.letter(id)?.outcome = Outcome::Unknown;
        Ok(())
    }

    /// A message has reached a client.
    pub fn delivered(
        &mut self,
        now: Time,
        read: Read,
        queue: usize,
        holder: Holder,
        redelivered: bool,
    ) -> Result<(), String> {
        let (id, attempts) = (read.id, read.attempts);
        tracing::debug!(
            letter = id.0,
            queue,
            ?holder,
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
                if from != holder =>
            {
                taken = Some(Taken { id, from, at: now });
            }
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
        letter.fate = Fate::Out(holder, now);
        letter.deliveries += 1;
        letter.attempts = attempts;
        letter.last = Some(now);
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
            self.in_order(id, queue, holder)?;
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

    /// Back in the queue by the client's wish.
    pub fn given_back(&mut self, now: Time, id: LetterId, by: Holder) -> Result<(), String> {
        tracing::debug!(letter = id.0, ?by, "given back");
        let letter = self.letter(id)?;
        letter.elsewhere.retain(|holder| *holder != by);
        if matches!(letter.fate, Fate::Out(holder, _) if holder == by) {
            letter.fate = Fate::Waits;
            letter.back = Some(Back {
                at: now,
                known: None,
            });
        }
        Ok(())
    }

    /// The queue has answered something that the client asked after it had given these back.
    pub fn known_back(&mut self, now: Time, ids: &[LetterId]) -> Result<(), String> {
        for id in ids {
            if let Some(back) = &mut self.letter(*id)?.back {
                back.known.get_or_insert(now);
            }
        }
        Ok(())
    }

    /// The client has rejected it for good.
    pub fn rejected(&mut self, now: Time, id: LetterId, by: Holder) -> Result<(), String> {
        tracing::debug!(letter = id.0, ?by, "rejected");
        let queue = self.letter(id)?.queue;
        let plan = self.queues.get(queue);
        if plan.is_none_or(|q| q.character != Character::Mortal) {
            return self.settled(now, id, by);
        }
        let letter = self.letter(id)?;
        if matches!(letter.fate, Fate::Out(holder, _) if holder == by) {
            letter.fate = Fate::Condemned(by, now);
            letter.condemned.get_or_insert(now);
        }
        Ok(())
    }

    /// The client has acknowledged or rejected it.
    pub fn settled(&mut self, now: Time, id: LetterId, by: Holder) -> Result<(), String> {
        tracing::debug!(letter = id.0, ?by, "settled");
        let letter = self.letter(id)?;
        match letter.fate {
            Fate::Out(holder, _) if holder == by => letter.fate = Fate::Settled(by, now),
            fate if letter.elsewhere.contains(&by) => {
                letter.over = Some(now);
                if fate == Fate::Waits {
                    letter.fate = Fate::Doubtful;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Settled, if the client had it at all; nobody can tell.
    pub fn perhaps_settled(&mut self, now: Time, id: LetterId) -> Result<(), String> {
        tracing::debug!(letter = id.0, "perhaps settled");
        let letter = self.letter(id)?;
        if letter.fate == Fate::Waits {
            letter.fate = Fate::Doubtful;
            letter.over = Some(now);
            // By a rejection, perhaps: then it comes from the grave.
            letter.condemned.get_or_insert(now);
        }
        Ok(())
    }

    /// The queue has answered something that the client asked after it had settled these.
    pub fn known(
        &mut self,
        now: Time,
        (machine, connection): (NodeId, u64),
        ids: &[LetterId],
    ) -> Result<(), String> {
        let given_up = self.given_up.get(&machine).copied();
        let last_end = self.ended.values().copied().max();
        for id in ids {
            let letter = self.letter(*id)?;
            let (settled, dies) = match letter.fate {
                Fate::Settled(holder, at) if holder.connection == connection => (at, false),
                Fate::Condemned(holder, at) if holder.connection == connection => (at, true),
                // Delivered to somebody else meanwhile: that is what the queue took the old settling for.
                _ => continue,
            };
            let (queue, last) = (letter.queue, letter.last);
            // A queue that gave up this node for a while took the message back, and the settling came too late.
            let too_late = last.is_some_and(|last| given_up >= Some(last));
            // What an earlier life of a classic queue's node delivered is back in the queue, and settling it comes too late; what
            // was on its way there went with it. Who answers is the next life.
            let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
            let lost = !quorum && last_end >= Some(last.unwrap_or(settled));
            let letter = self.letter(*id)?;
            if dies {
                letter.fate = if too_late { Fate::Waits } else { Fate::Dead };
            } else if too_late || lost {
                letter.over = Some(settled);
                letter.fate = Fate::Doubtful;
            } else {
                letter.fate = Fate::Gone(now);
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

    /// Whether it is too early for [`Ledger::doubled`] to tell.
    pub fn may_be_doubled(&self, now: Time) -> bool {
        let last = self.taken.last();
        last.is_some_and(|t| now.since(t.at) <= HEARD_WITHIN)
    }

    /// Messages that went to somebody else although nobody had taken them from the client that had them.
    pub fn doubled(&self, now: Time) -> Result<(), String> {
        let mut late = (self.taken.iter()).filter(|t| now.since(t.at) > HEARD_WITHIN);
        match late.find(|t| self.disturbed < t.at) {
            Some(Taken { id, from, at }) => Err(format!(
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
        for (id, letter) in &mut self.letters {
            letter.elsewhere.retain(|holder| !of(*holder));
            match letter.fate {
                Fate::Out(holder, _) if of(holder) => {
                    tracing::debug!(letter = id.0, ?holder, "taken back");
                    letter.fate = match letter.over {
                        Some(_) => Fate::Doubtful,
                        None => Fate::Waits,
                    };
                    letter.back = at.map(|at| Back { at, known: None });
                }
                // Back in its queue, or in the grave.
                Fate::Condemned(holder, _) if of(holder) => letter.fate = Fate::Waits,
                // Nobody knows whether the queue heard of it.
                Fate::Settled(holder, at) if of(holder) => {
                    letter.over = Some(at);
                    letter.fate = Fate::Doubtful;
                }
                _ => {}
            }
        }
    }

    pub fn opened(&mut self, now: Time, queue: usize) -> WindowId {
        let plan = self.queues.get(queue);
        let deletes = plan.is_some_and(|q| q.character == Character::Recreated);
        self.windows.push(Window {
            queue,
            deletes,
            opened: now,
            disturbed: now,
            until: None,
            unheard: false,
        });
        WindowId(self.windows.len() - 1)
    }

    /// A classic queue is gone with its machine, and whoever runs the cluster deletes it.
    pub fn lost(&mut self, now: Time, queue: usize) -> WindowId {
        let window = self.opened(now, queue);
        if let Some(window) = self.windows.get_mut(window.0) {
            window.deletes = true;
        }
        window
    }

    /// It was carried out.
    pub fn closed(&mut self, now: Time, window: WindowId) {
        let disturbed = self.disturbed;
        if let Some(window) = self.windows.get_mut(window.0) {
            window.unheard = window.deletes && disturbed >= now;
            // Other nodes hear of a deletion a moment after the answer to it.
            let heard = match window.deletes {
                true => now + ON_THE_WAY,
                false => now,
            };
            window.until = Some(if window.unheard { disturbed } else { heard });
            window.disturbed = disturbed;
        }
    }

    /// Messages that the cluster still owes, and how many there are.
    pub fn owed(&self, now: Time) -> (u64, Vec<(LetterId, String)>) {
        let (mut count, mut some) = (0, Vec::new());
        for (id, letter) in &self.letters {
            let open = match letter.fate {
                Fate::Waits | Fate::Out(..) | Fate::Condemned(..) | Fate::Dead => true,
                Fate::Settled(..) | Fate::Doubtful | Fate::Gone(_) => false,
            };
            let owed = letter.outcome == Outcome::Confirmed && open;
            if owed && !self.excused(now, *id, letter) {
                count += 1;
                if some.len() < 5 {
                    let name = self.queues.get(letter.queue).map(|q| q.name.clone());
                    some.push((*id, format!("{} {letter:?}", name.unwrap_or_default())));
                }
            }
        }
        (count, some)
    }

    /// Whether something that was done to its queue may account for it.
    fn excused(&self, now: Time, id: LetterId, letter: &Letter) -> bool {
        let Some(queue) = self.queues.get(letter.queue) else {
            return false;
        };
        let lost = !queue.quorum && !id.persistent();
        if lost && self.ended.values().any(|end| *end >= letter.sent) {
            return true;
        }
        if !queue.quorum && self.powerless >= letter.sent {
            return true;
        }
        let mortal = queue.character == Character::Mortal;
        if queue.quorum && !mortal && letter.attempts + 1 >= DELIVERY_LIMIT {
            return true;
        }
        let mut windows = self.windows.iter().filter(|w| w.queue == letter.queue);
        let taken = windows.any(|w| {
            let until = w.until.unwrap_or(now);
            let there = letter.sent <= until && letter.last.is_none_or(|last| last <= until);
            there && (w.deletes || !letter.held_through(w))
        });
        if taken {
            return true;
        }
        match queue.character {
            Character::Plain
            | Character::Refusing(_)
            | Character::Mortal
            | Character::Purged
            | Character::Recreated => false,
            Character::Short(most) => self.could_be_with(letter) > most,
            Character::Brief(life) => self.clocks_jump || now.since(letter.sent) >= life,
        }
    }

    /// Messages, this one among them, that its queue may have had at the same time.
    fn could_be_with(&self, letter: &Letter) -> u64 {
        let same = self.letters.values().filter(|l| l.queue == letter.queue);
        same.filter(|l| !matches!(l.fate, Fate::Gone(at) if at < letter.sent))
            .count() as u64
    }

    pub fn published(&self) -> usize {
        self.letters.len()
    }
}
