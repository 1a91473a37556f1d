//! The account of all messages, and the rules that what clients see must keep.
//!
//! Clients report what they sent and what reached them. A message's confirm makes the cluster answerable for it: it is
//! delivered until a client settles it, or something that clients did accounts for it (a purge, a deletion, a limit).

use super::letter::LetterId;
use env::{NodeId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

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
}

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
}

/// A purge or deletion: it may take what was sent before `until` and reached no client after that.
#[derive(Clone, Copy, Debug)]
struct Window {
    queue: usize,
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

    /// The software of a machine has ended; with what was not synced, unless it was just killed.
    pub fn ended(&mut self, now: Time, machine: NodeId, killed: bool) {
        self.ended.insert(machine, now);
        if !killed {
            self.powerless = now;
        }
        self.disturb(now);
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
        };
        self.letters.insert(id, letter);
    }

    fn letter(&mut self, id: LetterId) -> Result<&mut Letter, String> {
        let letter = self.letters.get_mut(&id);
        letter.ok_or_else(|| format!("message {id:?} was never published"))
    }

    pub fn confirmed(&mut self, id: LetterId) -> Result<(), String> {
        self.confirmed += 1;
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
        (id, attempts): (LetterId, u32),
        queue: usize,
        holder: Holder,
        redelivered: bool,
    ) -> Result<(), String> {
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
            Fate::Out(_, since) | Fate::Settled(_, since) if disturbed >= since => {}
            Fate::Out(from, _) | Fate::Settled(from, _) if from != holder => {
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
        letter.fate = Fate::Out(holder, now);
        letter.deliveries += 1;
        letter.attempts = attempts;
        letter.last = Some(now);
        self.taken.extend(taken);
        self.delivered += 1;
        self.redelivered += u64::from(redelivered);
        if !redelivered {
            self.in_order(id, queue, holder)?;
        }
        Ok(())
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
    pub fn given_back(&mut self, id: LetterId, by: Holder) -> Result<(), String> {
        let letter = self.letter(id)?;
        if matches!(letter.fate, Fate::Out(holder, _) if holder == by) {
            letter.fate = Fate::Waits;
        }
        Ok(())
    }

    /// The client has acknowledged or rejected it.
    pub fn settled(&mut self, now: Time, id: LetterId, by: Holder) -> Result<(), String> {
        let letter = self.letter(id)?;
        if matches!(letter.fate, Fate::Out(holder, _) if holder == by) {
            letter.fate = Fate::Settled(by, now);
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
            let settled = match letter.fate {
                Fate::Settled(holder, at) if holder.connection == connection => at,
                // Delivered to somebody else meanwhile: that is what the queue took the old settling for.
                _ => continue,
            };
            let (queue, last) = (letter.queue, letter.last);
            // A queue that gave up this node for a while took the message back, and the settling came too late.
            let too_late = last.is_some_and(|last| given_up >= Some(last));
            // What was on its way to a classic queue went with its node; who answers is its next life.
            let quorum = self.queues.get(queue).is_some_and(|q| q.quorum);
            let lost = !quorum && last_end >= Some(settled);
            let letter = self.letter(*id)?;
            if too_late || lost {
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
        self.released(of);
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
    pub fn released(&mut self, of: impl Fn(Holder) -> bool) {
        for letter in self.letters.values_mut() {
            match letter.fate {
                Fate::Out(holder, _) if of(holder) => letter.fate = Fate::Waits,
                // Nobody knows whether the queue heard of it.
                Fate::Settled(holder, _) if of(holder) => letter.fate = Fate::Doubtful,
                _ => {}
            }
        }
    }

    pub fn opened(&mut self, queue: usize) -> WindowId {
        self.windows.push(Window {
            queue,
            until: None,
            unheard: false,
        });
        WindowId(self.windows.len() - 1)
    }

    /// It was carried out.
    pub fn closed(&mut self, now: Time, window: WindowId) {
        let disturbed = self.disturbed;
        if let Some(window) = self.windows.get_mut(window.0) {
            let plan = self.queues.get(window.queue);
            let deleted = plan.is_some_and(|q| q.character == Character::Recreated);
            window.unheard = deleted && disturbed >= now;
            window.until = Some(if window.unheard { disturbed } else { now });
        }
    }

    /// Messages that the cluster still owes, and how many there are.
    pub fn owed(&self, now: Time) -> (u64, Vec<(LetterId, String)>) {
        let (mut count, mut some) = (0, Vec::new());
        for (id, letter) in &self.letters {
            let open = matches!(letter.fate, Fate::Waits | Fate::Out(..));
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
        if queue.quorum && letter.attempts + 1 >= DELIVERY_LIMIT {
            return true;
        }
        match queue.character {
            Character::Plain => false,
            Character::Purged | Character::Recreated => {
                let mut windows = self.windows.iter().filter(|w| w.queue == letter.queue);
                windows.any(|w| {
                    let until = w.until.unwrap_or(now);
                    letter.sent <= until && letter.last.is_none_or(|last| last <= until)
                })
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: Holder = Holder {
        connection: 1,
        channel: 1,
        consumer: 1,
    };

    fn ledger(character: Character) -> Ledger {
        let mut ledger = Ledger::new(vec![QueuePlan {
            name: "q".to_owned(),
            quorum: true,
            character,
        }]);
        ledger.disturbed = Time::ZERO;
        ledger
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Published and confirmed in the second of its number.
    fn publish(ledger: &mut Ledger, number: u32) -> LetterId {
        let id = LetterId::new(1, number);
        ledger.sent(at(number.into()), id, 0);
        ledger.confirmed(id).expect("known");
        id
    }

    fn deliver(ledger: &mut Ledger, second: u64, id: LetterId, again: bool) -> Result<(), String> {
        ledger.delivered(at(second), (id, 0), 0, HOLDER, again)
    }

    #[test]
    fn a_confirmed_message_is_owed_until_it_is_settled() {
        let mut ledger = ledger(Character::Plain);
        let id = publish(&mut ledger, 1);
        assert_eq!(ledger.owed(at(2)).0, 1);
        deliver(&mut ledger, 2, id, false).expect("its first time");
        assert_eq!(ledger.owed(at(2)).0, 1);
        ledger.settled(at(3), id, HOLDER).expect("known");
        assert_eq!(ledger.owed(at(3)).0, 0);
        ledger.released(|_| true);
        deliver(&mut ledger, 4, id, true).expect("the acknowledgement was lost");
        assert_eq!(ledger.owed(at(4)).0, 1);
    }

    #[test]
    fn what_must_not_be_is_told() {
        let mut ledger = ledger(Character::Plain);
        let (first, second) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
        deliver(&mut ledger, 3, second, false).expect("its first time");
        assert!(deliver(&mut ledger, 3, first, false).is_err(), "order");
        assert!(deliver(&mut ledger, 4, second, true).is_err(), "twice");
        ledger.given_back(second, HOLDER).expect("known");
        assert!(deliver(&mut ledger, 5, second, false).is_err(), "the flag");
        deliver(&mut ledger, 5, second, true).expect("given back");
        ledger.settled(at(6), second, HOLDER).expect("known");
        ledger
            .known(at(7), (NodeId(1), HOLDER.connection), &[second])
            .expect("known");
        ledger.released(|_| true);
        assert!(
            deliver(&mut ledger, 8, second, true).is_err(),
            "resurrected"
        );
        assert!(
            deliver(&mut ledger, 8, LetterId::new(1, 9), false).is_err(),
            "invented"
        );
        assert!(ledger.confirmed(second).is_err(), "confirmed twice");
    }

    #[test]
    fn only_the_broker_may_take_a_message_from_a_client() {
        let other = Holder {
            connection: 2,
            ..HOLDER
        };
        let mut ledger = ledger(Character::Plain);
        let (first, second) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
        for id in [first, second] {
            deliver(&mut ledger, 3, id, false).expect("its first time");
        }
        let again = ledger.delivered(at(4), (first, 0), 0, other, true);
        again.expect("its client's channel may have ended");
        ledger
            .doubled(at(5))
            .expect("the client may hear of it yet");
        assert!(ledger.doubled(at(9)).is_err(), "it heard of nothing");
        ledger.ended_by_broker(at(5), |h| h == HOLDER);
        ledger.doubled(at(9)).expect("that explains it");

        deliver(&mut ledger, 10, second, true).expect("it went back with the channel");
        ledger.released(|h| h == HOLDER);
        ledger
            .delivered(at(11), (second, 0), 0, other, true)
            .expect("back");
        ledger.doubled(at(19)).expect("given back first");
    }

    #[test]
    fn a_deletion_that_a_cut_off_node_has_not_heard_of_may_take_what_it_sends() {
        let mut ledger = ledger(Character::Recreated);
        let deletion = ledger.opened(0);
        ledger.disturb(at(1));
        ledger.closed(at(2), deletion);
        ledger.disturb(at(4));
        publish(&mut ledger, 7);
        ledger.disturb(at(20));
        publish(&mut ledger, 21);
        assert_eq!(ledger.owed(at(30)).0, 1, "the second is owed");
    }

    #[test]
    fn a_settling_that_came_after_its_node_was_given_up_is_not_known() {
        let mut ledger = ledger(Character::Plain);
        let id = publish(&mut ledger, 1);
        deliver(&mut ledger, 2, id, false).expect("its first time");
        ledger.given_up(at(3), NodeId(1));
        ledger.settled(at(4), id, HOLDER).expect("known");
        let known = ledger.known(at(5), (NodeId(1), HOLDER.connection), &[id]);
        known.expect("known");
        deliver(&mut ledger, 6, id, true).expect("it had gone back");
    }

    #[test]
    fn a_settling_that_a_classic_queues_node_took_along_is_not_known() {
        let mut ledger = ledger(Character::Plain);
        ledger.queues[0].quorum = false;
        let id = publish(&mut ledger, 1);
        deliver(&mut ledger, 2, id, false).expect("its first time");
        ledger.settled(at(3), id, HOLDER).expect("known");
        ledger.ended(at(3), NodeId(2), true);
        let known = ledger.known(at(8), (NodeId(1), HOLDER.connection), &[id]);
        known.expect("known");
        deliver(&mut ledger, 9, id, true).expect("the queue had not heard");
    }

    #[test]
    fn a_purge_accounts_for_what_it_may_have_taken() {
        let mut ledger = ledger(Character::Purged);
        publish(&mut ledger, 1);
        let purge = ledger.opened(0);
        publish(&mut ledger, 3);
        ledger.closed(at(4), purge);
        publish(&mut ledger, 5);
        assert_eq!(ledger.owed(at(6)).0, 1);
    }

    #[test]
    fn a_limit_accounts_for_what_it_must_have_dropped() {
        let mut ledger = ledger(Character::Short(2));
        publish(&mut ledger, 1);
        publish(&mut ledger, 2);
        assert_eq!(ledger.owed(at(9)).0, 2);
        publish(&mut ledger, 3);
        assert_eq!(ledger.owed(at(9)).0, 0);
    }
}
