//! The connection: dispatches events of the protocol engine and of the node to links.

mod browsing;
mod publishing;
mod removal;

use crate::browse::{Browser, BrowserTurns};
use crate::config::Settings;
use crate::consume::Consumer;
use crate::ended;
use crate::management::{ManagementLink, Pair};
use crate::publish::Publisher;
use crate::refusal::Refusal;
use crate::state::{ConnectionState, PROTOCOL, StepContext};
use crate::transaction::{Coordinator, Transactions};
use crate::unconfirmed::QueueAnswer;
use crate::wait::{WaitKey, WaitReason};
use amqp10::{
    Cause, Connection, Event, LinkId, Millis, PendingSasl, SaslDecision, SendError, SessionId,
};
use auth::{Mechanism, TlsPeer};
use bytes::{Buf, BytesMut};
use codec_amqp10::{AmqpError, Condition, DeliveryState};
use env::Time;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use message::{Message, Table};
use queue::{QueueReply, RejectReason};
use session::{
    Broker, ChannelLimit, ConnectionInfo, ControlEvent, HeldMemory, Login, Outbox,
    QueueNotification, ServiceNotification, ServiceStates, Session, SessionDetails, SessionEvent,
    SessionInfo, SessionState,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the open.
    Handshake,
    Open,
    /// The login was refused: input is ignored until the socket closes.
    Lingering(Time),
    Ended,
}

/// A link that the client attached.
#[derive(Debug)]
pub(crate) enum Link {
    Publisher(Box<Publisher>),
    Consumer(Box<Consumer>),
    Browser(Box<Browser>),
    Management(ManagementLink),
    Coordinator(Box<Coordinator>),
}

impl Link {
    fn id(&self) -> LinkId {
        match self {
            Link::Publisher(publisher) => publisher.link,
            Link::Consumer(consumer) => consumer.link,
            Link::Browser(browser) => browser.link,
            Link::Management(management) => management.link,
            Link::Coordinator(coordinator) => coordinator.link,
        }
    }
}

/// An AMQP 1.0 connection as a state machine.
#[derive(Debug)]
pub struct Amqp10Session {
    pub(crate) engine: Connection,
    pub(crate) state: ConnectionState,
    /// By the engine's number.
    pub(crate) links: HashMap<u32, Link, FixedState>,
    pub(crate) browsers: BrowserTurns,
    /// Pairs of links of the management node.
    pub(crate) pairs: Vec<Pair>,
    pub(crate) transactions: Transactions,
    /// Sessions that count as channels of the user.
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) phase: Phase,
    pub(crate) peer: SocketAddr,
    pub(crate) is_loopback: bool,
    pub(crate) tls: Option<Arc<TlsPeer>>,
    pub(crate) mechanism: Option<Mechanism>,
    /// The login whose password check is pending.
    pub(crate) login: Option<Box<(PendingSasl, Login)>>,
    /// The management link whose new token is being checked.
    pub(crate) renewal: Option<LinkId>,
    pub(crate) client_name: Box<str>,
    pub(crate) client_properties: Option<Box<Table>>,
    pub(crate) frame_max: u32,
    /// Input received while reading was paused.
    input: BytesMut,
    /// An alarm closed the windows of the sessions.
    is_blocked: bool,
    /// The outbox limit was exceeded. Cleared when the outbox falls below half of it.
    is_congested: bool,
    /// The last progress of a message whose last transfer has not arrived.
    unfinished_since: Option<Time>,
}

impl Amqp10Session {
    pub(crate) fn new(
        settings: Arc<Settings>,
        connection: &ConnectionInfo,
        now: Time,
    ) -> Amqp10Session {
        let config = match connection.tls {
            Some(_) => settings.secure.clone(),
            None => settings.plain.clone(),
        };
        // A server writes nothing before the client's header.
        let engine = Connection::new(config, millis(now), &mut BytesMut::new());
        Amqp10Session {
            engine,
            frame_max: settings.limits.frame,
            state: ConnectionState::new(settings),
            links: HashMap::with_hasher(FixedState::default()),
            browsers: BrowserTurns::default(),
            pairs: Vec::new(),
            transactions: Transactions::default(),
            sessions: Vec::new(),
            phase: Phase::Handshake,
            peer: connection.peer,
            is_loopback: connection.is_loopback(),
            tls: connection.tls.clone(),
            mechanism: None,
            login: None,
            renewal: None,
            client_name: Box::default(),
            client_properties: None,
            input: BytesMut::new(),
            is_blocked: false,
            is_congested: false,
            unfinished_since: None,
        }
    }

    /// Runs one step: handles the input, then everything that it unblocked.
    fn step(
        &mut self,
        broker: &mut dyn Broker,
        out: &mut Outbox,
        handle: impl FnOnce(&mut Self, &mut StepContext<'_>),
    ) -> SessionState {
        let cx = &mut StepContext { broker, out };
        self.update_output(cx);
        handle(self, cx);
        self.update_output(cx);
        self.read_buffered(cx);
        self.send_held(cx);
        if !self.browsers.is_empty() {
            self.run_browsers(cx);
        }
        if !self.pairs.is_empty() {
            self.send_responses(cx);
        }
        self.state.flush_settlements(cx);
        self.engine.flush(millis(cx.broker.now()), cx.out.tail());
        self.state.flush_counters(cx);
        self.update_output(cx);
        self.session_state()
    }

    fn session_state(&self) -> SessionState {
        match self.phase {
            Phase::Ended => SessionState::Closing,
            Phase::Lingering(_) => SessionState::Open,
            _ if self.engine.is_closed() => SessionState::Closing,
            _ if self.is_paused() => SessionState::Paused,
            _ => SessionState::Open,
        }
    }

    /// Informs the engine of output that the socket has not accepted.
    fn update_output(&mut self, cx: &mut StepContext<'_>) {
        let waiting = cx.out.len();
        self.engine.set_backlog(waiting - cx.out.tail().len());
        let limit = self.state.settings.limits.outbox;
        let bound = if self.is_congested { limit / 2 } else { limit };
        self.is_congested = waiting > bound;
    }

    fn is_paused(&self) -> bool {
        let limits = &self.state.settings.limits;
        self.login.is_some()
            || self.renewal.is_some()
            || self.state.in_flight_exceeded
            || self.is_congested
            || self.state.waits.len() >= limits.pending_requests
            || self
                .state
                .waits
                .iter()
                .any(|wait| matches!(wait.reason, WaitReason::RetryPublish(_)))
    }

    /// Reads frames from the front of the input until one pauses the connection.
    fn read(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        if matches!(self.phase, Phase::Lingering(_) | Phase::Ended) {
            input.clear();
            return;
        }
        let now = cx.broker.now();
        let unfinished = self.engine.unfinished_size();
        let mut rest: &[u8] = input;
        while !self.is_paused() {
            let event = self.engine.poll(&mut rest, millis(now), cx.out.tail());
            let Some(event) = event else { break };
            self.handle_event(event, cx);
            self.update_output(cx);
        }
        let used = input.len() - rest.len();
        input.advance(used);
        if self.engine.unfinished_size() != unfinished {
            let is_unfinished = self.engine.unfinished_size() > 0;
            self.unfinished_since = is_unfinished.then_some(now);
        }
    }

    /// Reads input that was buffered while the connection was paused.
    fn read_buffered(&mut self, cx: &mut StepContext<'_>) {
        if self.input.is_empty() || self.is_paused() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        self.read(&mut input, cx);
        self.input = input;
    }

    fn handle_event(&mut self, event: Event<'_>, cx: &mut StepContext<'_>) {
        match event {
            Event::SaslInit {
                mechanism,
                initial_response,
                pending,
                ..
            } => self.log_in(mechanism, initial_response.unwrap_or_default(), pending, cx),
            Event::SaslResponse { pending, .. } => {
                // No mechanism has challenges.
                self.engine
                    .answer_sasl(pending, SaslDecision::Reject, cx.out.tail());
            }
            Event::OpenRequested { open, pending } => self.open(&open, pending, cx),
            Event::SessionBegun { session, .. } => self.begin_session(session, cx),
            Event::AttachRequested { attach, pending } => {
                self.handle_attach(&attach, pending, cx);
            }
            Event::MessageReceived { link, delivery } => self.receive_message(link, &delivery, cx),
            Event::Disposition {
                session,
                state,
                settled,
                deliveries,
                ..
            } => self.handle_disposition(session, state.as_ref(), settled, &deliveries, cx),
            Event::CreditChanged { link, state } => match self.links.get_mut(&link.number()) {
                Some(Link::Consumer(consumer)) => match consumer.is_volatile {
                    true => consumer.set_volatile_credit(state, &mut self.engine, cx),
                    false => consumer.set_credit(state, &mut self.state, cx),
                },
                // It is served at the end of the step.
                Some(Link::Browser(browser)) => browser.set_credit(state),
                _ => {}
            },
            Event::LinkDetached { link, cause, .. } => {
                self.log_fault("link detached", &cause);
                self.release_unsettled(link.number(), cx);
                self.remove_link(link.number(), cx);
            }
            Event::SessionEnded { session, cause } => {
                self.log_fault("session ended", &cause);
                self.remove_session(session, cx);
            }
            Event::Closed { cause } => {
                self.log_fault("connection closed", &cause);
                self.release(cx);
            }
            // Held deliveries are tried again after every step, and the server starts no link.
            Event::WindowOpened { .. }
            | Event::Opened { .. }
            | Event::LinkAttached { .. }
            | Event::AvailableChanged { .. }
            | Event::Drained { .. } => {}
        }
    }

    fn log_fault(&self, what: &'static str, cause: &Cause<'_>) {
        if let Cause::Fault(error) = cause {
            tracing::info!(peer = %self.peer, user = %self.state.user, %error, "{what}");
        }
    }

    fn begin_session(&mut self, session: SessionId, cx: &mut StepContext<'_>) {
        match cx.broker.open_channel() {
            Ok(()) => self.sessions.push(session),
            Err(ChannelLimit { of_vhost, limit }) => {
                let (kind, name) = match of_vhost {
                    true => ("vhost", &self.state.vhost),
                    false => ("user", &self.state.user),
                };
                let text = format!(
                    "number of sessions of {kind} '{name}' has reached the maximum allowed {kind} limit of ({limit})"
                );
                let refusal = Refusal::new(Condition::ResourceLimitExceeded, text);
                self.end_session(session, &refusal, cx);
            }
        }
    }

    /// The session of a link.
    pub(crate) fn session_of(&self, link: LinkId) -> Option<SessionId> {
        let mut sessions = self.sessions.iter();
        sessions
            .find(|session| session.channel() == link.channel())
            .copied()
    }

    /// Ends a session because of an error.
    pub(crate) fn end_session(
        &mut self,
        session: SessionId,
        refusal: &Refusal,
        cx: &mut StepContext<'_>,
    ) {
        tracing::info!(peer = %self.peer, user = %self.state.user, error = %refusal.text, "session ended");
        let error = refusal.to_error();
        ended(
            self.engine
                .end_session(session, Some(&error), cx.out.tail()),
        );
        self.remove_session(session, cx);
    }

    /// Sends deliveries that waited for a window or for space in the outbox.
    fn send_held(&mut self, cx: &mut StepContext<'_>) {
        if self.state.holding.is_empty() {
            return;
        }
        // Round robin, so that a link that fills the outbox does not starve the others.
        self.state.holding.rotate_left(1);
        for number in self.state.holding.clone() {
            self.with_consumer(number, cx, |consumer, engine, state, cx| {
                consumer.send_held(engine, state, cx)
            });
        }
    }

    /// Runs a step of a consumer. An error ends its link.
    fn with_consumer(
        &mut self,
        number: u32,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(
            &mut Consumer,
            &mut Connection,
            &mut ConnectionState,
            &mut StepContext<'_>,
        ) -> Result<(), SendError>,
    ) {
        let Some(Link::Consumer(consumer)) = self.links.get_mut(&number) else {
            return;
        };
        let link = consumer.link;
        match step(consumer, &mut self.engine, &mut self.state, cx) {
            Ok(()) => {}
            Err(error @ SendError::MessageTooLarge { .. }) => {
                let refusal = Refusal::new(Condition::MessageSizeExceeded, error.to_string());
                self.detach(link, &refusal, cx);
            }
            Err(_) => self.remove_link(number, cx),
        }
    }

    fn handle_session_event(&mut self, event: SessionEvent, cx: &mut StepContext<'_>) {
        match event {
            SessionEvent::Queue(notification) => self.handle_queue_notification(notification, cx),
            SessionEvent::Control(event) => self.handle_control_event(event, cx),
            SessionEvent::Service(ServiceNotification::Confirmed { tags }) => {
                for tag in tags {
                    self.record_answer(tag, QueueAnswer::Confirmed, cx);
                }
            }
        }
    }

    fn handle_queue_notification(
        &mut self,
        notification: QueueNotification,
        cx: &mut StepContext<'_>,
    ) {
        match notification {
            QueueNotification::Published { tag, .. } => {
                self.record_answer(tag, QueueAnswer::Confirmed, cx);
            }
            QueueNotification::NotPublished { queue, tag, why } => {
                let is_deleted = why == RejectReason::Unavailable
                    && cx.broker.tree().queue_by_id(queue).is_none();
                let answer = match is_deleted {
                    true => QueueAnswer::Deleted,
                    false => QueueAnswer::Rejected(queue, why),
                };
                self.record_answer(tag, answer, cx);
                if is_deleted {
                    self.detach_if_target_is_deleted(tag, cx);
                }
            }
            QueueNotification::Deliver {
                consumer,
                deliveries,
                ..
            } => {
                // Deliveries for a link that has ended return to the queue with its `CancelAndRequeue`.
                self.with_consumer(consumer.0, cx, |consumer, engine, state, cx| {
                    consumer.deliver(deliveries, engine, state, cx)
                });
            }
            QueueNotification::Answer { queue, seq, answer } => {
                let Some(wait) = self.state.take_wait(WaitKey::Queue(queue, seq)) else {
                    return;
                };
                match wait.reason {
                    WaitReason::Consume(held) => self.handle_consuming(*held, answer, cx),
                    WaitReason::Credit => self.handle_credit_answer(wait.link, answer, cx),
                    WaitReason::Commit(link, discharge) => {
                        self.handle_committed(link, discharge, answer, cx);
                    }
                    WaitReason::Management(pending) => {
                        let (link, continuation) = *pending;
                        self.continue_with_answer(link, continuation, answer, cx);
                    }
                    _ => {}
                }
            }
            QueueNotification::Cancelled {
                queue,
                consumer,
                reason,
            } => self.handle_cancelled(queue, consumer.0, reason, cx),
            QueueNotification::TimedOut {
                consumer, up_to, ..
            } => self.handle_timed_out(consumer.0, up_to, cx),
            QueueNotification::Activity {
                consumer,
                is_active,
                owner,
                ..
            } => self.with_consumer(consumer.0, cx, |consumer, engine, _, cx| {
                consumer.handle_activity(is_active, owner, engine, cx);
                Ok(())
            }),
            QueueNotification::Browsed { answer, .. } => self.handle_browsed(*answer, cx),
            QueueNotification::Removed { queue } => {
                self.detach_browsers(queue, cx);
                self.detach_from_removed_queues(cx);
            }
            // This session has no cursors.
            QueueNotification::Cursor { .. } => {}
        }
    }

    fn handle_control_event(&mut self, event: ControlEvent, cx: &mut StepContext<'_>) {
        match event {
            ControlEvent::Changed { token, result } => {
                let Some(wait) = self.state.take_wait(WaitKey::Change(token)) else {
                    return;
                };
                match wait.reason {
                    WaitReason::RetryAttach(held) => self.retry_attach(*held, cx),
                    WaitReason::RetryPublish(held) => self.retry_publish(&held, cx),
                    WaitReason::Declare(held) => self.handle_declared(*held, result, cx),
                    WaitReason::Management(pending) => {
                        let (link, continuation) = *pending;
                        self.continue_with_change(link, continuation, result, cx);
                    }
                    _ => {}
                }
            }
            ControlEvent::Unblocked => {
                for link in self.links.values_mut() {
                    if let Link::Publisher(publisher) = link {
                        publisher.relieve(&mut self.engine);
                    }
                }
            }
            ControlEvent::Blocked(alarm) => self.set_alarm(alarm, cx),
            ControlEvent::Verified { verdict } => self.handle_verified(verdict, cx),
            ControlEvent::Expired => {
                let refusal = Refusal::new(Condition::UnauthorizedAccess, "credential expired");
                self.close(&refusal, cx);
            }
            ControlEvent::Close { text } => self.force_close(&text, cx),
            ControlEvent::Shed { text, can_hear } => match can_hear {
                true => {
                    let refusal = Refusal::new(Condition::ResourceLimitExceeded, text);
                    self.close(&refusal, cx);
                }
                false => {
                    self.release(cx);
                    cx.out.clear();
                    self.phase = Phase::Ended;
                }
            },
            ControlEvent::Shutdown if self.login.is_some() => self.postpone_login(cx),
            ControlEvent::Shutdown => {
                self.force_close(
                    "broker forced connection closure with reason 'shutdown'",
                    cx,
                );
            }
        }
    }

    fn handle_credit_answer(&mut self, link: u32, answer: QueueReply, cx: &mut StepContext<'_>) {
        match answer {
            QueueReply::Credited {
                available, drained, ..
            } => self.with_consumer(link, cx, |consumer, engine, state, cx| {
                consumer.handle_credited(available, drained, engine, state, cx);
                Ok(())
            }),
            QueueReply::Refused { code, text } => {
                if let Some(Link::Consumer(consumer)) = self.links.get(&link) {
                    let link = consumer.link;
                    let refusal = match cx.broker.tree().queue_by_id(consumer.queue) {
                        Some(_) => crate::refusal::from_queue_reply(code, text),
                        // The deletion was faster than the credit.
                        None => self.source_deleted(),
                    };
                    self.detach(link, &refusal, cx);
                }
            }
            other => tracing::error!(?other, "unexpected answer to a credit"),
        }
    }

    /// Closes the windows of the sessions during an alarm, which stops publishers only.
    pub(crate) fn set_alarm(&mut self, alarm: Option<&'static str>, cx: &mut StepContext<'_>) {
        let is_blocked = alarm.is_some();
        if self.is_blocked != is_blocked {
            self.is_blocked = is_blocked;
            self.engine.block_publishers(is_blocked, cx.out.tail());
        }
    }

    /// Closes the connection on behalf of an operator or because the node stops.
    fn force_close(&mut self, why: &str, cx: &mut StepContext<'_>) {
        // RabbitMQ's condition and text, which quotes the reason.
        let text = format!("Connection forced: \"{why}\"");
        self.close(&Refusal::new(Condition::InternalError, text), cx);
    }

    pub(crate) fn close(&mut self, refusal: &Refusal, cx: &mut StepContext<'_>) {
        tracing::info!(peer = %self.peer, user = %self.state.user, error = %refusal.text, "connection closed");
        self.release(cx);
        let error: AmqpError<'_> = refusal.to_error();
        if self.engine.close(Some(&error), cx.out.tail()).is_err() && !self.engine.is_closed() {
            // There is no layer yet in which an error could be sent.
            self.phase = Phase::Ended;
        }
    }

    fn handle_tick(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        if let Phase::Lingering(until) = self.phase {
            if now >= until {
                self.phase = Phase::Ended;
            }
            return;
        }
        // A connection that is not read must not count as silent.
        if self.is_paused() || cx.broker.is_throttled() {
            self.engine.excuse_silence(millis(now));
        }
        if let Some(event) = self.engine.tick(millis(now), cx.out.tail()) {
            self.handle_event(event, cx);
        }
        self.time_out_waits(now, cx);
    }

    fn time_out_waits(&mut self, now: Time, cx: &mut StepContext<'_>) {
        let is_late = |wait: &crate::wait::Wait| now >= wait.deadline && wait.has_deadline();
        while let Some(at) = self.state.waits.iter().position(is_late) {
            let wait = self.state.waits.swap_remove(at);
            match wait.reason {
                WaitReason::RetryAttach(held)
                | WaitReason::Declare(held)
                | WaitReason::Consume(held) => {
                    self.time_out_attach(&held, cx);
                }
                WaitReason::RetryPublish(held) => {
                    let released = DeliveryState::RELEASED;
                    ended(self.engine.settle_received(
                        held.link,
                        held.delivery,
                        &released,
                        cx.out.tail(),
                    ));
                }
                WaitReason::Management(pending) => self.time_out_request(pending.0, cx),
                WaitReason::Credit | WaitReason::Commit(..) | WaitReason::Abandoned => {}
            }
        }
    }

    fn held_deliveries(&self) -> impl Iterator<Item = &Message> {
        let holding = self.state.holding.iter();
        let consumers = holding.filter_map(|number| match self.links.get(number) {
            Some(Link::Consumer(consumer)) => Some(consumer),
            _ => None,
        });
        let held = consumers.flat_map(|consumer| consumer.held.iter());
        let copies = self.browsers().flat_map(|browser| browser.held());
        held.map(|delivery| &delivery.message).chain(copies)
    }
}

fn millis(time: Time) -> Millis {
    u64::try_from(time.since(Time::ZERO).as_millis()).unwrap_or(u64::MAX)
}

/// Input of a paused connection below this size in bytes is copied, to free the driver's read buffer.
const SMALL_INPUT: usize = 16 << 10;

impl Session for Amqp10Session {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| {
            if this.input.is_empty() {
                this.read(input, cx);
                if this.is_paused() {
                    // A few bytes must not keep the whole read buffer allocated.
                    this.input = match input.len() < SMALL_INPUT {
                        true => BytesMut::from(&std::mem::take(input)[..]),
                        false => input.split(),
                    };
                }
            } else {
                this.input.unsplit(input.split());
            }
            if this.unfinished() > 0 {
                cx.broker.note_held();
            }
        })
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| {
            let mut next = Some(session_event);
            while let Some(session_event) = next {
                this.handle_session_event(session_event, cx);
                next = cx.broker.next_event();
            }
        })
    }

    fn service_event(
        &mut self,
        _event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        // The protocol has no shard service.
        self.step(broker, out, |_, _| {})
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, Self::handle_tick)
    }

    fn wake_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Ended => return None,
            Phase::Lingering(until) => return Some(until),
            Phase::Handshake | Phase::Open => {}
        }
        let engine = self
            .engine
            .deadline()
            .map(|ms| Time::ZERO + Duration::from_millis(ms));
        let waits = self.state.waits.iter();
        let waits = waits.filter(|wait| wait.has_deadline());
        let browsers = self.browsers().filter_map(Browser::wake_at);
        let deadlines = waits.map(|wait| wait.deadline).chain(browsers);
        deadlines.chain(engine).min()
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        let cx = &mut StepContext {
            broker,
            out: &mut Outbox::default(),
        };
        self.release(cx);
        self.state.flush_settlements(cx);
        self.state.flush_counters(cx);
        self.phase = Phase::Ended;
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, |_, _| {})
    }

    fn unfinished(&self) -> usize {
        let held = self.state.waits.iter().map(|wait| match &wait.reason {
            WaitReason::RetryPublish(held) => held.payload.len(),
            WaitReason::RetryAttach(held)
            | WaitReason::Declare(held)
            | WaitReason::Consume(held) => held.encoded.len(),
            WaitReason::Credit
            | WaitReason::Commit(..)
            | WaitReason::Management(_)
            | WaitReason::Abandoned => 0,
        });
        let requests = self.pairs.iter().map(Pair::bytes).sum::<usize>();
        let transactions = self.transactions.bytes();
        self.engine.unfinished_size()
            + self.input.len()
            + held.sum::<usize>()
            + requests
            + transactions
    }

    fn held(&self) -> HeldMemory {
        HeldMemory {
            is_authenticated: self.mechanism.is_some(),
            unread: self
                .held_deliveries()
                .map(|message| message.as_bytes().len())
                .chain(self.browsers().map(Browser::partial_bytes))
                .sum(),
            finished: self.state.finished,
        }
    }

    fn unfinished_since(&self) -> Option<Time> {
        self.unfinished_since
    }

    fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        self.held_deliveries().for_each(visit);
    }

    fn info(&self, _services: &ServiceStates) -> SessionInfo {
        SessionInfo {
            protocol: PROTOCOL,
            user: self.state.user.to_string(),
            vhost: self.state.vhost.to_string(),
            client_name: self.client_name.to_string(),
            channels: self.sessions.len() as u32,
        }
    }

    fn details(&self) -> SessionDetails {
        let channels = self.channel_details();
        let limits = &self.state.settings.limits;
        SessionDetails {
            state: match self.phase {
                Phase::Handshake => "starting",
                Phase::Open if !self.engine.is_running() => "closing",
                Phase::Open if self.is_blocked => "blocked",
                Phase::Open if channels.iter().any(|channel| channel.flow_blocked) => "flow",
                Phase::Open => "running",
                Phase::Lingering(_) | Phase::Ended => "closing",
            },
            auth_mechanism: self.mechanism.map_or("", Mechanism::name),
            tls: self.tls.clone(),
            heartbeat_s: u16::try_from(limits.idle.as_secs()).unwrap_or(u16::MAX),
            frame_max: self.frame_max,
            channel_max: limits.sessions,
            client_properties: self
                .client_properties
                .as_deref()
                .cloned()
                .unwrap_or_default(),
            channels,
            stream: None,
        }
    }
}
