//! The behaviour of an AMQP 1.0 client. Its links belong to one queue, and either publish or receive.

use super::Amqp10Queue;
use super::connection::{ClientState, Connection, ConnectionPlan};
use super::filters::{FIRST_PART, FilterLanguage, PARTS, PartFilter};
use super::oracle::{Amqp10Oracle, ReceiverOutcome};
use super::session::{ClientSession, Context, HeldDelivery, LinkEnd, LinkPlan};
use crate::cluster::client::Link;
use codec_amqp10::{ReceiverSettleMode, SenderSettleMode};
use env::{Rng, SeededRng, Time};
use std::collections::VecDeque;

/// Publishes of a session without an outcome, at most.
const MOST_OPEN: usize = 6;
/// Credit grants of a link that the broker may not know, at most.
const MOST_GRANTS: usize = 5;
/// A receiver that waits for everything has at least this much credit, and its session this window.
const CREDIT: i64 = 5;
const WINDOW: u32 = 8;
/// Smallest max-frame-size of the standard (section 2.4.1).
const SMALLEST_FRAME: u64 = 512;

/// The number of each action that a client still takes after the faults, when stricter rules hold.
#[derive(Clone, Copy, Debug)]
struct LastActions {
    messages: u32,
    drains: u32,
    take_backs: u32,
    modifications: u32,
    detaches: u32,
    hang_ups: u32,
}

const LAST_ACTIONS: LastActions = LastActions {
    messages: 20,
    drains: 4,
    take_backs: 8,
    modifications: 8,
    detaches: 3,
    hang_ups: 1,
};

/// What the links of a client do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientRole {
    Publish,
    /// `first_part`: the part of the messages that its first receiver takes, if the queue has parts.
    Consume {
        first_part: u64,
    },
    Browse,
}

pub(super) struct Amqp10Client {
    pub queue: Amqp10Queue,
    pub role: ClientRole,
    pub rng: SeededRng,
    pub link: Option<Link<Connection>>,
    /// Messages to publish again.
    repeats: VecDeque<u64>,
    /// The receiver that hands over to the next consumer: it drains or takes its credit back, settles and detaches.
    stopping: Option<u64>,
    faults_ended: bool,
    last: LastActions,
}

impl Amqp10Client {
    pub(super) fn new(queue: Amqp10Queue, role: ClientRole, rng: SeededRng) -> Amqp10Client {
        Amqp10Client {
            queue,
            role,
            rng,
            link: None,
            repeats: VecDeque::new(),
            stopping: None,
            faults_ended: false,
            last: LAST_ACTIONS,
        }
    }

    /// Chooses the sessions and links of a new connection.
    pub(super) fn plan(&mut self) -> ConnectionPlan {
        let rng = &mut self.rng;
        let mut sessions = Vec::new();
        for session in 0..1 + rng.below(2) {
            let mut links = Vec::new();
            for link in 0..1 + rng.below(2) {
                links.push(match self.role {
                    // The first link learns outcomes.
                    ClientRole::Publish => LinkPlan::Publish(
                        self.queue,
                        match rng.below(if session + link == 0 { 5 } else { 6 }) {
                            0..3 => SenderSettleMode::Unsettled,
                            3..5 => SenderSettleMode::Mixed,
                            _ => SenderSettleMode::Settled,
                        },
                    ),
                    ClientRole::Browse => LinkPlan::Browse(
                        self.queue,
                        // Some show all parts.
                        (self.queue.is_filtered() && rng.chance(1, 2)).then(|| PartFilter {
                            part: rng.below(PARTS),
                            language: FilterLanguage::Selector,
                        }),
                    ),
                    ClientRole::Consume { first_part } => LinkPlan::Receive(
                        self.queue,
                        match rng.chance(1, 4) {
                            true => ReceiverSettleMode::Second,
                            false => ReceiverSettleMode::First,
                        },
                        self.queue.is_filtered().then(|| PartFilter {
                            // The first receivers of all clients take all parts together.
                            part: match session + link {
                                0 => first_part,
                                _ => rng.below(PARTS),
                            },
                            language: match rng.chance(1, 2) {
                                true => FilterLanguage::Selector,
                                false => FilterLanguage::Sql,
                            },
                        }),
                    ),
                });
            }
            sessions.push(links);
        }
        ConnectionPlan {
            queue: self.queue,
            sessions,
            frame_size: (SMALLEST_FRAME << rng.below(4)) as u32,
            window: 1 + rng.below(u64::from(WINDOW)) as u32,
            is_pipelined: rng.chance(1, 2),
        }
    }

    /// The connection has ended, and with it its sessions and links.
    pub(super) fn lose(&mut self, now: Time, oracle: &mut Amqp10Oracle) {
        self.stopping = None;
        let state = &mut ClientState {
            now,
            oracle,
            repeats: &mut self.repeats,
        };
        if let Some(link) = &mut self.link {
            link.wire.lose(state);
        }
    }

    /// Processes received bytes. Returns true if the connection is of no more use.
    pub(super) fn receive(
        &mut self,
        now: Time,
        bytes: &[u8],
        oracle: &mut Amqp10Oracle,
    ) -> Result<bool, String> {
        let Some(link) = &mut self.link else {
            return Ok(true);
        };
        let state = &mut ClientState {
            now,
            oracle,
            repeats: &mut self.repeats,
        };
        let ends = link.wire.receive(bytes, state)?;
        link.open |= link.wire.is_declared;
        Ok(ends)
    }

    /// Takes random actions. Returns true if the client ends its connection.
    pub(super) fn act(&mut self, now: Time, faults_ended: bool, oracle: &mut Amqp10Oracle) -> bool {
        self.faults_ended |= faults_ended;
        if faults_ended {
            oracle.filtered_receivers.end_faults(now);
        }
        let Some(mut link) = self.link.take() else {
            return false;
        };
        let mut ends = false;
        if link.open {
            // The methods below change the list of messages to publish again.
            let mut repeats = std::mem::take(&mut self.repeats);
            let state = &mut ClientState {
                now,
                oracle,
                repeats: &mut repeats,
            };
            for at in 0..link.wire.sessions.len() {
                if let Some((session, mut cx)) = link.wire.session(at, state)
                    && session.is_mapped()
                {
                    self.act_in_session(session, &mut cx);
                }
            }
            self.repeats = repeats;
            ends = self.wants_to_end(&link.wire);
            if ends && self.rng.chance(1, 2) {
                link.wire.close();
            }
        }
        self.link = Some(link);
        ends
    }

    fn wants_to_end(&mut self, connection: &Connection) -> bool {
        if !self.faults_ended {
            return self.rng.chance(1, 120);
        }
        let sessions = &connection.sessions;
        let holds = sessions.iter().any(|session| session.held().count() > 0);
        let ends = holds && self.last.hang_ups > 0 && self.rng.chance(1, 6);
        self.last.hang_ups -= u32::from(ends);
        ends
    }

    fn act_in_session(&mut self, session: &mut ClientSession, cx: &mut Context<'_>) {
        self.open_window(session, cx);
        let attached = session.links().filter(|(_, link)| link.is_attached());
        let attached: Vec<u32> = attached.map(|(handle, _)| handle).collect();
        for handle in &attached {
            match self.role {
                ClientRole::Publish => self.publish(session, *handle, cx),
                ClientRole::Consume { .. } | ClientRole::Browse => self.grant(session, *handle, cx),
            }
        }
        self.settle(session, cx);
        self.end_something(session, &attached, cx);
    }

    fn open_window(&mut self, session: &mut ClientSession, cx: &mut Context<'_>) {
        let left = session.window_left();
        match self.faults_ended {
            true if left < CREDIT => session.open_window(WINDOW, false, cx.wire),
            false if self.rng.chance(1, if left == 0 { 2 } else { 8 }) => {
                let window = self.rng.below(u64::from(WINDOW)) as u32;
                session.open_window(window, self.rng.chance(1, 3), cx.wire);
            }
            _ => {}
        }
    }

    fn frame_size(&mut self) -> usize {
        (SMALLEST_FRAME + self.rng.below(1500)) as usize
    }

    fn publish(&mut self, session: &mut ClientSession, handle: u32, cx: &mut Context<'_>) {
        let frame_size = self.frame_size();
        if session.has_partial_message(handle) {
            if !self.faults_ended && self.rng.chance(1, 20) {
                session.abort_message(handle, cx);
            } else if self.faults_ended || self.rng.chance(2, 3) {
                session.continue_message(handle, frame_size, cx);
            }
            return;
        }
        if !session.may_publish(handle) || session.unsettled_publishes() >= MOST_OPEN {
            return;
        }
        let link = session.link(handle).map(|link| &link.end);
        let Some(LinkEnd::Publisher(publisher)) = link else {
            return;
        };
        let mode = publisher.mode;
        // Nobody knows whether a settled publish has reached the queue.
        let may_repeat = mode != SenderSettleMode::Settled;
        let repeat = match may_repeat && (self.faults_ended || self.rng.chance(1, 2)) {
            true => cx.repeats.pop_front(),
            false => None,
        };
        let is_new = repeat.is_none();
        if is_new && self.faults_ended {
            if self.last.messages == 0 {
                return;
            }
            self.last.messages -= 1;
        }
        let is_settled = match mode {
            SenderSettleMode::Settled => true,
            SenderSettleMode::Unsettled => false,
            SenderSettleMode::Mixed => is_new && self.rng.chance(1, 4),
        };
        let number = repeat.unwrap_or_else(|| cx.oracle.next_number());
        session.publish(handle, number, is_settled, frame_size, cx);
    }

    fn grant(&mut self, session: &mut ClientSession, handle: u32, cx: &mut Context<'_>) {
        let link = session.link(handle).map(|link| &link.end);
        let Some(LinkEnd::Receiver(receiver)) = link else {
            return;
        };
        if self.stopping == Some(receiver.number) && !self.faults_ended {
            return;
        }
        let left = receiver.credit_left();
        // After the faults, one part is drained first, so that the drain finds messages of the other parts.
        let receivers = &cx.oracle.filtered_receivers;
        let waits_for_drain = self.faults_ended
            && self.role != ClientRole::Browse
            && receivers.awaits_last_drain(self.queue);
        let is_first = receiver
            .filter
            .is_some_and(|filter| filter.part == FIRST_PART);
        let credit = match self.faults_ended {
            true if waits_for_drain && !is_first => return,
            true if receiver.is_draining() => return,
            true if waits_for_drain => (2 * CREDIT as u32 + self.rng.below(3) as u32, true, true),
            true if left >= CREDIT => return,
            true => {
                let drain = self.last.drains > 0 && self.rng.chance(1, 2);
                self.last.drains -= u32::from(drain);
                (2 * CREDIT as u32 + self.rng.below(3) as u32, drain, true)
            }
            false => {
                // Few do not wait for the end of a drain.
                let waits = receiver.awaits_drain() && !self.rng.chance(1, 12);
                if waits || receiver.open_grants() >= MOST_GRANTS || self.rng.chance(1, 2) {
                    return;
                }
                let credit = self.rng.below(12) as u32;
                (credit, self.rng.chance(1, 4), self.rng.chance(1, 3))
            }
        };
        // A message on the way to a receiver without credit returns to the queue, behind others that returned.
        let keeps_order = self.queue == Amqp10Queue::SingleActive;
        let (credit, drain, echo) = credit;
        let credit = credit.max(if keeps_order { left as u32 } else { 0 });
        let takes_back = self.faults_ended
            && !drain
            && self.queue.is_filtered()
            && self.last.take_backs > 0
            && self.rng.chance(2, 3);
        session.grant(handle, (credit, drain, echo), cx);
        if takes_back {
            // The queue finds messages for the credit, and the receiver has no room for them any more.
            self.last.take_backs -= 1;
            session.grant(handle, (0, false, true), cx);
        }
    }

    /// Settles held deliveries, in ranges of one outcome.
    fn settle(&mut self, session: &mut ClientSession, cx: &mut Context<'_>) {
        let held: Vec<(u32, HeldDelivery)> = session.held().collect();
        let mut rest = &held[..];
        while let Some(((first, delivery), others)) = rest.split_first() {
            rest = others;
            if !self.faults_ended && self.rng.chance(1, 2) {
                continue;
            }
            let mut last = *first;
            for _ in 0..self.rng.below(5) {
                match rest.split_first() {
                    Some(((next, other), others))
                        if other.settles_second == delivery.settles_second
                            && !session.has_partial_between(*first, *next) =>
                    {
                        last = *next;
                        rest = others;
                    }
                    _ => break,
                }
            }
            let outcome = self.outcome(cx.oracle);
            session.settle((*first, last), outcome, delivery.settles_second, cx);
        }
    }

    fn outcome(&mut self, oracle: &mut Amqp10Oracle) -> ReceiverOutcome {
        if self.queue == Amqp10Queue::SingleActive {
            return ReceiverOutcome::Accepted;
        }
        let may_return = !self.faults_ended || self.last.modifications > 0;
        let choice = self.rng.below(10);
        if choice < 5 && may_return {
            self.last.modifications -= u32::from(self.faults_ended);
        }
        match choice {
            0 if may_return => ReceiverOutcome::Released,
            1..5 if may_return => ReceiverOutcome::Modified {
                delivery_failed: self.rng.chance(1, 2),
                undeliverable_here: self.rng.chance(1, 12),
                value: match self.rng.chance(3, 4) {
                    true => oracle.next_value(),
                    false => 0,
                },
            },
            5 if self.rng.chance(1, 3) => ReceiverOutcome::Rejected,
            _ => ReceiverOutcome::Accepted,
        }
    }

    /// Detaches a link or ends the session, rarely. The client attaches or begins it again.
    fn end_something(
        &mut self,
        session: &mut ClientSession,
        attached: &[u32],
        cx: &mut Context<'_>,
    ) {
        let handle = attached.get(self.rng.below(attached.len().max(1) as u64) as usize);
        let Some(handle) = handle.copied() else {
            return;
        };
        if let Some(stopped) = self.stopped_link(session) {
            self.stopping = None;
            return session.detach(stopped, true, cx);
        }
        if self.faults_ended {
            let holds = session.held().count() > 0;
            if holds && self.last.detaches > 0 && self.rng.chance(1, 3) {
                self.last.detaches -= 1;
                session.detach(handle, self.rng.chance(1, 2), cx);
            }
            return;
        }
        match self.rng.below(120) {
            0..2 => session.detach(handle, self.rng.chance(1, 2), cx),
            2 => session.end(cx),
            3..6 => {
                let link = session.link(handle).map(|link| &link.end);
                if let Some(LinkEnd::Receiver(receiver)) = link {
                    self.stopping = Some(receiver.number);
                    let drain = (receiver.credit_left() as u32 + 1, true, false);
                    let stop = (0, false, true);
                    let drains = self.queue == Amqp10Queue::SingleActive || self.rng.chance(1, 2);
                    session.grant(handle, if drains { drain } else { stop }, cx);
                }
            }
            _ => {}
        }
    }

    /// The receiver that hands over, when the broker knows that it wants no more and everything is settled.
    fn stopped_link(&self, session: &ClientSession) -> Option<u32> {
        let found = session.links().find(|(_, link)| match &link.end {
            LinkEnd::Receiver(receiver) => self.stopping == Some(receiver.number),
            LinkEnd::Publisher(_) => false,
        });
        let (handle, link) = found.filter(|(_, link)| link.is_attached())?;
        let LinkEnd::Receiver(receiver) = &link.end else {
            return None;
        };
        let holds = session.held().any(|(_, held)| held.is_of(handle));
        (receiver.is_stopped() && !holds).then_some(handle)
    }

    /// Nothing is left to do after the faults have ended.
    pub(super) fn is_done(&self) -> bool {
        let Some(link) = self.link.as_ref().filter(|link| link.open) else {
            return false;
        };
        let has_rest = |session: &ClientSession| {
            session.held().count() + session.told() + session.unsettled_publishes() > 0
                || session.links().any(|(handle, link)| match &link.end {
                    LinkEnd::Publisher(_) => session.has_partial_message(handle),
                    LinkEnd::Receiver(receiver) => receiver.awaits_answer(),
                })
        };
        let publishes = self.role == ClientRole::Publish;
        let has_messages = publishes && (self.last.messages > 0 || !self.repeats.is_empty());
        self.faults_ended
            && link.wire.is_complete()
            && !has_messages
            && !link.wire.sessions.iter().any(has_rest)
    }

    pub(super) fn describe_wait(&self) -> String {
        let sessions = self.link.iter().flat_map(|link| &link.wire.sessions);
        let sessions: Vec<String> = sessions.map(ClientSession::describe_wait).collect();
        format!(
            "{:?}, {:?}, {:?}, {} to repeat: {sessions:?}",
            self.queue,
            self.role,
            self.last,
            self.repeats.len()
        )
    }
}
