//! The replicated state of a quorum queue.

use super::command::{Command, Decoded, decode, take_request, take_run};
use super::effects::{Effect, Effects, Place};
use super::ready::{Held, Ready};
use crate::checkout::{Admission, Checkout, Handed, Store, Taken};
use crate::codec::{CodecError, Reader};
use crate::{
    ConsumerInfo, DeadReason, Event, GoneNode, Name, Overflow, QueueSettings, QueueStats, Reject,
    RequestBody, Resume, SessionId,
};
use bytes::Bytes;
use env::{NodeId, WallTime};
use message::Message;

/// Priorities from this one on are high (Q7).
const HIGH_PRIORITY: u8 = 5;

/// See the module. Holds where messages are, never the messages.
#[derive(Debug)]
pub struct Machine {
    pub(super) settings: QueueSettings,
    /// The newest wall clock that a command carried.
    pub(super) clock: u64,
    pub(super) applied: u64,
    pub(super) ready: Ready,
    /// Body bytes of what is out.
    pub(super) out_bytes: u64,
    pub(super) checkout: Checkout<Held>,
    /// Commands that could not be read (written by no program of ours).
    pub(super) unreadable: u64,
}

/// The machine's messages and its way out, as the checkout sees them.
struct Shelf<'a> {
    ready: &'a mut Ready,
    out_bytes: &'a mut u64,
    effects: &'a mut Effects,
}

impl Store for Shelf<'_> {
    type Item = Held;

    fn ready(&self) -> u64 {
        self.ready.len()
    }

    fn take(&mut self) -> Option<Taken<Held>> {
        let taken = self.ready.pop()?;
        *self.out_bytes += u64::from(taken.item.body);
        Some(taken)
    }

    fn give_back(&mut self, item: Held, attempts: u32) {
        *self.out_bytes -= u64::from(item.body);
        self.ready.give_back(item, attempts);
    }

    fn settled(&mut self, item: Held) {
        *self.out_bytes -= u64::from(item.body);
    }

    fn dead(&mut self, item: Held, reason: DeadReason) {
        *self.out_bytes -= u64::from(item.body);
        self.bury(&item, reason);
    }

    fn deliver(&mut self, handed: Handed, item: &Held) {
        self.effects.push(Effect::Deliver {
            session: handed.session,
            consumer: handed.consumer,
            id: handed.id,
            redelivered: handed.redelivered,
            attempts: handed.attempts,
            left: handed.left,
            at: place(item),
        });
    }

    fn event(&mut self, session: SessionId, event: Event) {
        self.effects.push(Effect::Event { session, event });
    }

    fn purge(&mut self) -> u64 {
        self.ready.clear()
    }
}

impl Shelf<'_> {
    fn bury(&mut self, item: &Held, reason: DeadReason) {
        let at = place(item);
        self.effects.push(Effect::DeadLetter { reason, at });
    }
}

fn place(item: &Held) -> Place {
    Place {
        index: item.index,
        offset: item.offset,
    }
}

impl Machine {
    /// An empty queue. `label` is what refusals call it (`queue 'orders' in vhost '/'`), the same on every member.
    pub fn new(label: Name, settings: QueueSettings) -> Machine {
        Machine {
            clock: 0,
            applied: 0,
            ready: Ready::new(),
            out_bytes: 0,
            checkout: Checkout::new(
                label,
                settings.single_active_consumer,
                settings.delivery_limit,
            ),
            settings,
            unreadable: 0,
        }
    }

    /// The checkout and what it works on, borrowed apart.
    fn parts<'a>(&'a mut self, effects: &'a mut Effects) -> (&'a mut Checkout<Held>, Shelf<'a>) {
        let shelf = Shelf {
            ready: &mut self.ready,
            out_bytes: &mut self.out_bytes,
            effects,
        };
        (&mut self.checkout, shelf)
    }

    /// Applies a committed command. Commands at or below the last applied index are passed over.
    pub fn apply(&mut self, index: u64, command: &Bytes, effects: &mut Effects) {
        if index <= self.applied {
            return;
        }
        self.applied = index;
        let done = match decode(command) {
            Ok(Decoded::Batch { wall, runs }) => {
                self.advance(wall, effects);
                self.apply_runs(index, runs, effects)
            }
            Ok(Decoded::Other(command)) => {
                self.apply_other(command, effects);
                Ok(())
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            // Every member reads the same bytes and leaves off at the same request.
            self.unreadable += 1;
        }
        let (checkout, mut shelf) = self.parts(effects);
        checkout.dispatch(&mut shelf);
        self.drop_expired(effects);
        self.keep_limits(effects);
    }

    fn apply_runs(
        &mut self,
        index: u64,
        mut runs: Reader,
        effects: &mut Effects,
    ) -> Result<(), CodecError> {
        while !runs.is_empty() {
            let (session, first, count) = take_run(&mut runs)?;
            let mut result = Ok(());
            for seq in (0..u64::from(count)).map(|n| first.saturating_add(n)) {
                match take_request(&mut runs) {
                    Ok((body, offset)) => {
                        self.request(session, seq, body, Place { index, offset }, effects);
                    }
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
            self.report(session, first, count, effects);
            result?;
        }
        Ok(())
    }

    fn report(&mut self, session: SessionId, first: u64, count: u32, effects: &mut Effects) {
        let up_to = match self.checkout.sessions.get(&session) {
            Some(state) => state.last,
            // It closed within the run, or long ago.
            None if self.checkout.closed_set.contains(&session) => {
                first.saturating_add(u64::from(count)).saturating_sub(1)
            }
            None => return,
        };
        let event = self.checkout.report(session, up_to);
        effects.push(Effect::Event { session, event });
    }

    fn request(
        &mut self,
        session: SessionId,
        seq: u64,
        body: RequestBody,
        at: Place,
        effects: &mut Effects,
    ) {
        let (checkout, mut shelf) = self.parts(effects);
        match checkout.admit(&mut shelf, session, seq) {
            Admission::Apply => {}
            Admission::Again => {
                let (checkout, mut shelf) = self.parts(effects);
                return checkout.answer_again(&mut shelf, session, seq, &body);
            }
            Admission::Gap { expected } => {
                let event = Event::Expecting { expected };
                return effects.push(Effect::Event { session, event });
            }
            Admission::Closed | Admission::Ignore => return,
        }
        match body {
            RequestBody::Publish(message) => self.publish(session, seq, &message, at, effects),
            body => {
                let clock = self.clock;
                let (checkout, mut shelf) = self.parts(effects);
                checkout.apply(&mut shelf, session, seq, body, clock);
            }
        }
        let (checkout, mut shelf) = self.parts(effects);
        checkout.dispatch(&mut shelf);
    }

    fn publish(
        &mut self,
        session: SessionId,
        seq: u64,
        message: &Message,
        at: Place,
        effects: &mut Effects,
    ) {
        let body = u32::try_from(message.body_len()).unwrap_or(u32::MAX);
        if self.checkout.deleted {
            return self.checkout.refuse(session, seq, Reject::Unavailable);
        }
        if self.settings.overflow == Overflow::RejectPublish && self.over(1, u64::from(body)) {
            return self.checkout.refuse(session, seq, Reject::MaxLength);
        }
        let ttl = [message.ttl_ms(), self.settings.message_ttl_ms];
        let ttl = ttl.into_iter().flatten().min();
        self.ready.push(&Held {
            index: at.index,
            offset: at.offset,
            body,
            high: message.priority().is_some_and(|p| p >= HIGH_PRIORITY),
            expires: ttl.map_or(0, |ttl| self.clock.saturating_add(ttl).max(1)),
        });
        if self.settings.max_length.is_some() || self.settings.max_length_bytes.is_some() {
            let (checkout, mut shelf) = self.parts(effects);
            checkout.dispatch(&mut shelf);
            self.keep_limits(effects);
        }
    }

    /// Whether the limits do not allow so much more.
    fn over(&self, messages: u64, bytes: u64) -> bool {
        let length = self.ready.len().saturating_add(messages);
        let bytes = self.ready.bytes().saturating_add(bytes);
        self.settings.max_length.is_some_and(|max| length > max)
            || self
                .settings
                .max_length_bytes
                .is_some_and(|max| bytes > max)
    }

    /// Drops heads while there is too much (Q13). With reject-publish only new messages are held off.
    fn keep_limits(&mut self, effects: &mut Effects) {
        if self.settings.overflow != Overflow::DropHead {
            return;
        }
        while self.ready.len() > 0 && self.over(0, 0) {
            let Some(taken) = self.ready.pop() else {
                return;
            };
            let (_, mut shelf) = self.parts(effects);
            shelf.bury(&taken.item, DeadReason::MaxLength);
        }
    }

    fn advance(&mut self, wall: WallTime, effects: &mut Effects) {
        self.clock = self.clock.max(wall.0);
        self.drop_expired(effects);
    }

    fn drop_expired(&mut self, effects: &mut Effects) {
        while let Some(item) = self.ready.pop_expired(self.clock) {
            let (_, mut shelf) = self.parts(effects);
            shelf.bury(&item, DeadReason::Expired);
        }
    }

    fn apply_other(&mut self, command: Command, effects: &mut Effects) {
        let clock = self.clock;
        match command {
            Command::Time(wall) => self.advance(wall, effects),
            Command::Settings(settings) => {
                self.checkout
                    .set_limits(settings.single_active_consumer, settings.delivery_limit);
                self.settings = settings;
            }
            Command::GoneNode(gone) => {
                let (checkout, mut shelf) = self.parts(effects);
                checkout.gone_node(&mut shelf, gone);
            }
            Command::NodeSuspected(node) => {
                let (checkout, mut shelf) = self.parts(effects);
                checkout.suspect_node(&mut shelf, node);
            }
            Command::NodeTrusted(node) => self.checkout.trust_node(node),
            Command::GoneSession(session) => {
                let (checkout, mut shelf) = self.parts(effects);
                checkout.close(&mut shelf, session, clock);
            }
        }
    }

    /// Delivers again what is out to a consumer. Changes nothing, so it needs no log entry; leader only.
    pub fn resume(&mut self, resume: &Resume, effects: &mut Effects) {
        let (checkout, mut shelf) = self.parts(effects);
        let known = checkout.resume(&mut shelf, resume.session, resume.consumer, resume.next);
        // Otherwise a leader that was deposed without knowing it might end a consumer it has not heard of.
        if !known && checkout.deleted {
            let consumer = resume.consumer;
            shelf.event(resume.session, Event::Cancelled { consumer });
        }
    }

    /// Answers a request that was applied before, without a log entry.
    pub(super) fn answer_again(
        &mut self,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
        effects: &mut Effects,
    ) {
        let (checkout, mut shelf) = self.parts(effects);
        checkout.answer_again(&mut shelf, session, seq, body);
        self.report(session, seq, 1, effects);
    }

    /// The log entries whose messages are still here, ascending: all others at or below the applied index may go.
    pub fn live_indexes(&self) -> Vec<u64> {
        let out = self.checkout.consumers.values();
        let out = out.flat_map(|c| c.out.values().map(|o| o.item.index));
        let returned = self.ready.returned().map(|(held, _)| held.index);
        let mut live: Vec<u64> = Vec::new();
        for index in self
            .ready
            .fresh()
            .map(|h| h.index)
            .chain(returned)
            .chain(out)
        {
            if live.last() != Some(&index) {
                live.push(index);
            }
        }
        live.sort_unstable();
        live.dedup();
        live
    }

    pub fn applied(&self) -> u64 {
        self.applied
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// The wall clock at which a message expires next.
    pub fn next_expiry(&self) -> Option<WallTime> {
        self.ready.next_expiry().map(WallTime)
    }

    pub fn deleted(&self) -> bool {
        self.checkout.deleted
    }

    /// Commands that could not be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    pub(super) fn last_of(&self, session: SessionId) -> u64 {
        self.checkout.last_applied(session)
    }

    pub(super) fn standing(&self, session: SessionId, seq: u64) -> Admission {
        self.checkout.standing(session, seq)
    }

    /// Whether a node has consumers here, and whether they are suspended.
    pub(super) fn suspended(&self, node: NodeId) -> bool {
        self.checkout.suspended.contains(&node)
    }

    pub(super) fn has_sessions_of(&self, node: NodeId) -> bool {
        self.checkout.sessions.keys().any(|s| s.node == node)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.checkout.sessions.keys().copied()
    }

    pub(super) fn has_sessions_over(&self, gone: GoneNode) -> bool {
        let over = |s: &SessionId| s.node == gone.node && s.incarnation < gone.before;
        self.checkout.sessions.keys().any(over)
    }

    pub fn stats(&self) -> QueueStats {
        QueueStats {
            ready: self.ready.len(),
            unacknowledged: self.checkout.out,
            consumers: self.checkout.live,
            bytes: self.ready.bytes() + self.out_bytes,
        }
    }

    pub fn consumers(&self) -> Vec<ConsumerInfo> {
        self.checkout.listing()
    }
}
