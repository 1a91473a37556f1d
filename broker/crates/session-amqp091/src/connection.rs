//! The connection: frames to channels, notices to channels. How it ends and what time brings have files of their own.

mod ending;
mod time;

use crate::channel::{Channel, ChannelState};
use crate::connection_state::{ConnectionState, PROTOCOL, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode};
use crate::handshake::Login;
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::{Limits, SessionConfig};
use auth::Mechanism;
use bytes::{Buf, BytesMut};
use codec_amqp091::{
    Frame, FrameKind, Method, PROTOCOL_HEADER, ProtocolHeader, parse_frame, table,
};
use env::Time;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use message::Message;
use queue::SettlementOutcome;
use session::{
    Broker, Held, Outbox, Session, SessionDetails, SessionEvent, SessionInfo, SessionState,
};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The protocol header is awaited.
    Header,
    /// connection.start is out.
    Starting,
    /// The client's password is being checked.
    Verifying,
    /// connection.tune is out.
    Tuning,
    /// connection.open is awaited.
    Opening,
    Running,
    /// The client closed; its exclusive queues and unused auto-delete ones go first, then close-ok.
    Leaving,
    /// Our connection.close is out.
    Closing,
    /// Nothing is read any more; the end comes at the deadline.
    Dying,
    Ended,
}

/// An AMQP 0.9.1 connection as a state machine.
#[derive(Debug)]
pub struct AmqpSession {
    pub(crate) config: SessionConfig,
    pub(crate) phase: Phase,
    pub(crate) link: ConnectionState,
    pub(crate) channels: HashMap<u16, Box<Channel>, FixedState>,
    pub(crate) channel_max: u16,
    /// What the client has logged in with.
    pub(crate) mechanism: Option<Mechanism>,
    /// Zero: none.
    pub(crate) heartbeat: Duration,
    pub(crate) client_name: String,
    /// What the client said about itself, encoded; no longer than a frame of the handshake.
    pub(crate) client_properties: Box<[u8]>,
    /// Of the handshake, or of the end. None while running.
    pub(crate) deadline: Option<Time>,
    last_received: Time,
    last_sent: Time,
    /// Input that came while nothing could be read.
    input: BytesMut,
    /// Of `Change::EndSession`; 0 when not asked for.
    end_token: u64,
    /// Our connection.close, until the exclusive queues are gone: who comes back at once may declare them again.
    farewell: Box<[u8]>,
    /// Auto-delete queues that its consumers have left with it, and the change that takes one away; 0: none is asked for.
    left: LeftQueues,
    left_token: u64,
    /// connection.close is to be read next, and waits.
    stalled: bool,
    /// Whose password is being checked, while it is.
    pub(crate) login: Option<Box<Login>>,
    /// connection.blocked has been sent.
    told_blocked: bool,
    /// The channel whose held deliveries were written last.
    pumped_last: u16,
    /// The channel whose held publishes went on last.
    published_last: u16,
}

impl AmqpSession {
    /// For a connection accepted `now`.
    pub fn new(config: SessionConfig, now: Time) -> AmqpSession {
        let limits: Arc<Limits> = config.limits.clone();
        AmqpSession {
            config,
            phase: Phase::Header,
            link: ConnectionState::new(limits.clone()),
            channels: HashMap::with_hasher(FixedState::default()),
            channel_max: 0,
            mechanism: None,
            heartbeat: Duration::ZERO,
            client_name: String::new(),
            client_properties: Box::default(),
            deadline: Some(now + limits.handshake),
            last_received: now,
            last_sent: now,
            input: BytesMut::new(),
            end_token: 0,
            farewell: Box::default(),
            left: LeftQueues::default(),
            left_token: 0,
            stalled: false,
            login: None,
            told_blocked: false,
            pumped_last: 0,
            published_last: 0,
        }
    }

    /// One step of the machine: what happened, then what can go on because of it.
    fn step(
        &mut self,
        broker: &mut dyn Broker,
        out: &mut Outbox,
        happened: impl FnOnce(&mut Self, &mut StepContext<'_>),
    ) -> SessionState {
        let before = out.len();
        let now = broker.now();
        let cx = &mut StepContext { broker, out };
        self.link.weigh(cx.out);
        happened(self, cx);
        self.link.weigh(cx.out);
        self.publish_held(cx);
        self.read_kept(cx);
        self.link.flush_settlements(cx);
        if !self.link.stopped.is_empty() {
            self.share_rooms(cx);
        }
        if !self.link.withheld.is_empty() {
            self.tell_withheld(cx);
        }
        self.link.flush_counters(cx);
        if cx.out.len() > before {
            self.last_sent = now;
        }
        self.session_state()
    }

    fn session_state(&self) -> SessionState {
        match self.phase {
            Phase::Ended => SessionState::Closing,
            _ if self.is_paused() => SessionState::Paused,
            _ => SessionState::Open,
        }
    }

    /// As listings call it.
    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Running if self.link.blocked => "blocked",
            Phase::Running if self.link.alarm.is_some() => "blocking",
            Phase::Running if self.link.holding > 0 => "flow",
            Phase::Running => "running",
            Phase::Leaving | Phase::Closing | Phase::Dying | Phase::Ended => "closing",
            Phase::Header | Phase::Starting | Phase::Verifying | Phase::Tuning | Phase::Opening => {
                "starting"
            }
        }
    }

    fn is_paused(&self) -> bool {
        // The client's password is being checked.
        (self.phase == Phase::Verifying && self.login.is_some())
            || self.phase == Phase::Running
                && (self.stalled
                    || self.link.blocked
                    || self.link.congested
                    || self.link.held > self.link.limits.held)
    }

    /// Whole frames from the front of the input, until one makes it stop.
    fn read(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        if self.phase == Phase::Header && !self.read_header(input, cx) {
            return;
        }
        let mut at = 0;
        loop {
            if matches!(self.phase, Phase::Dying | Phase::Ended) {
                input.clear();
                return;
            }
            if self.is_paused() {
                break;
            }
            let rest = input.get(at..).unwrap_or(&[]);
            match parse_frame(rest, self.link.frame_max) {
                Ok(None) => break,
                Ok(Some(frame)) if self.must_stall(&frame) => break,
                Ok(Some(frame)) => {
                    at += frame.wire_len();
                    self.frame(frame, cx);
                    self.link.weigh(cx.out);
                }
                Err(error) => {
                    // Where the next frame starts nobody knows: say so (to who has logged in), then be silent.
                    let failure = Failure::new(ReplyCode::FrameError, error.to_string());
                    self.refuse(&failure, (0, 0), cx);
                    self.die(cx);
                }
            }
        }
        input.advance(at);
    }

    /// Publishes that were held back, as soon as queues keep up.
    fn publish_held(&mut self, cx: &mut StepContext<'_>) {
        if self.link.holding == 0 || self.link.publishes_wait() {
            return;
        }
        let mut numbers: Vec<u16> = self
            .channels
            .values()
            .filter(|c| c.holding)
            .map(|c| c.number)
            .collect();
        numbers.sort_unstable();
        // Another one begins each time: a channel that floods the queues leaves the next turn to the others.
        let first = numbers.partition_point(|&n| n <= self.published_last);
        numbers.rotate_left(first);
        for number in numbers {
            if self.link.publishes_wait() {
                return;
            }
            self.published_last = number;
            self.with_channel(number, cx, |_, _, _| Ok(()));
        }
    }

    /// What a client sent before it closes counts: its connection.close waits for frames that are still held.
    fn must_stall(&mut self, frame: &Frame<'_>) -> bool {
        self.stalled = self.phase == Phase::Running
            && self.link.held > 0
            && frame.channel == 0
            && frame.kind == FrameKind::Method
            && frame.payload.starts_with(&[0, 10, 0, 50]);
        self.stalled
    }

    /// What was kept while paused.
    fn read_kept(&mut self, cx: &mut StepContext<'_>) {
        self.stalled &= self.link.held > 0;
        if self.input.is_empty() || self.is_paused() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        self.read(&mut input, cx);
        if !input.is_empty() {
            self.input = input;
        }
    }

    /// True: it is ours, go on.
    fn read_header(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) -> bool {
        match ProtocolHeader::parse(input) {
            ProtocolHeader::Partial => false,
            ProtocolHeader::Amqp091 => {
                input.advance(PROTOCOL_HEADER.len());
                self.send_start(cx);
                true
            }
            ProtocolHeader::Amqp10 { .. } | ProtocolHeader::Other => {
                input.clear();
                cx.out.tail().extend_from_slice(&PROTOCOL_HEADER);
                self.phase = Phase::Ended;
                false
            }
        }
    }

    fn frame(&mut self, frame: Frame<'_>, cx: &mut StepContext<'_>) {
        if frame.channel == 0 {
            return self.connection_frame(frame, cx);
        }
        match self.phase {
            Phase::Running => {}
            // Still on their way when we closed.
            Phase::Closing | Phase::Leaving => return,
            _ => return self.unexpected(frame, cx),
        }
        match frame.kind {
            FrameKind::Heartbeat if frame.payload.is_empty() => self.unexpected(frame, cx),
            FrameKind::Heartbeat => self.unknown(frame, cx),
            FrameKind::Unknown(_) => self.unknown(frame, cx),
            _ => self.channel_frame(frame, cx),
        }
    }

    fn channel_frame(&mut self, frame: Frame<'_>, cx: &mut StepContext<'_>) {
        // The common case: nothing waits, nothing fails, nothing closes.
        if let Some(channel) = self.channels.get_mut(&frame.channel) {
            let result = channel.frame(frame, &mut self.link, cx);
            if result.is_err() || channel.state == ChannelState::Closed {
                self.with_channel(frame.channel, cx, |_, _, _| result);
            }
        } else if self.create_channel(frame.channel, cx) {
            self.with_channel(frame.channel, cx, |channel, link, cx| {
                channel.frame(frame, link, cx)
            });
        }
        self.tell_blocked(cx);
    }

    fn create_channel(&mut self, number: u16, cx: &mut StepContext<'_>) -> bool {
        let refusal = if self.channels.len() >= usize::from(self.channel_max) {
            format!(
                "number of channels opened ({}) has reached the negotiated channel_max ({})",
                self.channels.len(),
                self.channel_max
            )
        } else if let Err(limit) = cx.broker.open_channel() {
            format!(
                "number of channels opened for user '{}' has reached the maximum allowed user limit of ({limit})",
                self.link.user
            )
        } else {
            let channel = Channel::new(number, self.link.new_epoch());
            self.channels.insert(number, Box::new(channel));
            return true;
        };
        let failure = Failure::new(ReplyCode::NotAllowed, refusal);
        self.fail_connection(&failure, (0, 0), cx);
        false
    }

    /// A publisher under alarm hears why it is not read, once.
    fn tell_blocked(&mut self, cx: &mut StepContext<'_>) {
        if !self.link.blocked || self.told_blocked {
            return;
        }
        self.told_blocked = true;
        if self.link.capabilities.connection_blocked {
            let reason = self.link.alarm.unwrap_or("low on resources");
            cx.send(0, &Method::ConnectionBlocked { reason });
        }
    }

    /// A step of one channel, with its consequences: a failure closes it or the connection; a wait that is over lets
    /// the frames behind it come, and so do queues that keep up again.
    fn with_channel(
        &mut self,
        number: u16,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(
            &mut Channel,
            &mut ConnectionState,
            &mut StepContext<'_>,
        ) -> Result<(), MethodFailure>,
    ) {
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        let mut result = step(channel, &mut self.link, cx);
        while result.is_ok()
            && channel.state != ChannelState::Closed
            && channel.goes_on(&mut self.link)
            && !channel.held_frames.is_empty()
        {
            let mut held = std::mem::take(&mut channel.held_frames);
            self.link.held = self.link.held.saturating_sub(held.len());
            // They were whole when they were held.
            while let Ok(Some(frame)) = parse_frame(&held, u32::MAX) {
                let len = frame.wire_len();
                if channel.must_hold(&frame, &mut self.link, cx) {
                    break;
                }
                result = channel.frame(frame, &mut self.link, cx);
                held.advance(len);
                if result.is_err() || channel.waiting.is_some() {
                    break;
                }
            }
            if result.is_ok() && (channel.waiting.is_some() || channel.holding) {
                self.link.held += held.len();
                channel.held_frames = held;
            }
        }
        channel.let_flow(cx);
        if channel.state == ChannelState::Closed {
            // What came behind channel.close is nobody's.
            self.link.held = self.link.held.saturating_sub(channel.held_frames.len());
            self.channels.remove(&number);
            cx.broker.close_channel();
        }
        if let Err(MethodFailure { failure, ids }) = result {
            self.fail(number, &failure, ids, cx);
        }
    }

    fn connection_frame(&mut self, frame: Frame<'_>, cx: &mut StepContext<'_>) {
        let closing = matches!(self.phase, Phase::Closing | Phase::Leaving);
        match frame.kind {
            FrameKind::Heartbeat if closing || frame.payload.is_empty() => {}
            FrameKind::Heartbeat => self.unknown(frame, cx),
            FrameKind::Method => match Method::decode(frame.payload) {
                Ok(method) => {
                    let ids = method.ids();
                    if let Err(failure) = self.connection_method(method, cx) {
                        self.refuse(&failure, ids, cx);
                    }
                }
                Err(error) if !closing => {
                    let MethodFailure { failure, ids } =
                        MethodFailure::undecodable(&error, frame.payload);
                    self.refuse(&failure, ids, cx);
                }
                Err(_) => {}
            },
            _ if closing => {}
            FrameKind::Unknown(_) => self.unknown(frame, cx),
            _ => self.unexpected(frame, cx),
        }
    }

    fn connection_method(&mut self, method: Method<'_>, cx: &mut StepContext<'_>) -> MethodResult {
        match (self.phase, method) {
            (Phase::Running, Method::ConnectionClose { .. }) => {
                let consumed = self.link.subscriptions.values().filter(|s| !s.get);
                self.left = LeftQueues::of(consumed.map(|s| s.queue), cx.broker);
                self.release_channels(cx);
                self.phase = Phase::Leaving;
                self.deadline = Some(cx.broker.now() + self.link.limits.operation);
                self.end_session(cx);
                if self.end_token == 0 {
                    self.go_on_leaving(cx);
                }
                Ok(())
            }
            (Phase::Closing, Method::ConnectionCloseOk {}) => {
                self.phase = Phase::Ended;
                Ok(())
            }
            (Phase::Closing, Method::ConnectionClose { .. }) => {
                cx.send(0, &Method::ConnectionCloseOk {});
                Ok(())
            }
            (Phase::Closing | Phase::Leaving, _) => Ok(()),
            (Phase::Running, Method::ConnectionUpdateSecret { reason, .. }) => {
                self.update_secret(reason, cx);
                Ok(())
            }
            (Phase::Running, _) => Err(Failure::new(
                ReplyCode::ChannelError,
                "unexpected method in connection state running",
            )),
            (Phase::Tuning | Phase::Opening, Method::ConnectionClose { .. }) => {
                self.finish(cx);
                Ok(())
            }
            (_, method) => self.handshake(method, cx),
        }
    }

    fn take_session_event(&mut self, session_event: SessionEvent, cx: &mut StepContext<'_>) {
        match session_event {
            SessionEvent::Published { tag, .. } | SessionEvent::Heard { tag } => {
                self.answered(tag, true, cx)
            }
            SessionEvent::NotPublished { queue, tag, why } => {
                // A queue that was deleted meanwhile is not a reason for a nack: RabbitMQ's rule.
                let deleted = why == queue::RejectReason::Unavailable
                    && cx.broker.tree().queue_by_id(queue).is_none();
                self.answered(tag, deleted, cx);
            }
            SessionEvent::Deliver {
                queue,
                consumer,
                deliveries,
            } => {
                self.deliver(queue, consumer, deliveries, cx);
            }
            SessionEvent::Changed { token, result } => {
                if token != 0 && (token == self.end_token || token == self.left_token) {
                    self.say_farewell(cx);
                    return self.go_on_leaving(cx);
                }
                let number = (token & 0xFFFF) as u16;
                self.with_channel(number, cx, |channel, link, cx| {
                    channel.changed(token, result, link, cx)
                });
            }
            SessionEvent::Answer { queue, seq, answer } => {
                let number = self.link.answered(queue, seq);
                if number == Some(0) {
                    self.left_answered(&answer, cx);
                } else if let Some(number) = number {
                    self.with_channel(number, cx, |channel, link, cx| {
                        channel.got_answer(answer, link, cx)
                    });
                }
            }
            SessionEvent::Cancelled { consumer, .. } => {
                let number = self.link.subscriptions.get(&consumer.0).map(|s| s.channel);
                let Some(number) = number else { return };
                self.with_channel(number, cx, |channel, link, cx| {
                    channel.cancelled_while_waiting(consumer, link)?;
                    if !channel.ended_by_own_delete(consumer, link) {
                        channel.cancelled(consumer, link, cx);
                    }
                    Ok(())
                });
            }
            // It has no client id and subscribes to queues alone.
            SessionEvent::Topic(_)
            | SessionEvent::TakenOver
            | SessionEvent::ClaimAgain
            | SessionEvent::AnsweredLate { .. }
            | SessionEvent::Known
            | SessionEvent::Missed
            | SessionEvent::TellWill => {}
            SessionEvent::Relieved => self.link.behind = false,
            SessionEvent::Verified { right } => self.verified(right, cx),
            SessionEvent::Blocked(alarm) => self.alarm(alarm, cx),
            SessionEvent::Close { text } => self.force(&text, cx),
            SessionEvent::Shed { text, can_hear } => self.shed(&text, can_hear, cx),
            SessionEvent::Shutdown => {
                self.force(
                    "broker forced connection closure with reason 'shutdown'",
                    cx,
                );
            }
        }
    }

    fn answered(&mut self, tag: session::PublishTag, taken: bool, cx: &mut StepContext<'_>) {
        if let Some(channel) = self.channels.get_mut(&tag.channel) {
            channel.answered(tag, taken, &mut self.link, cx);
            if channel.transaction.is_some() && channel.waiting.is_some() {
                self.with_channel(tag.channel, cx, |channel, _, cx| channel.committing(cx));
            }
        }
    }

    fn deliver(
        &mut self,
        queue: queue::QueueId,
        consumer: queue::ConsumerId,
        deliveries: Vec<queue::Delivery>,
        cx: &mut StepContext<'_>,
    ) {
        let Some(number) = self.link.subscriptions.get(&consumer.0).map(|s| s.channel) else {
            // Sent before the queue heard of the cancel.
            for delivery in &deliveries {
                let range = (delivery.id, delivery.id);
                self.link
                    .settle_range(queue, consumer, SettlementOutcome::Requeue, range);
            }
            return;
        };
        self.with_channel(number, cx, |channel, link, cx| {
            if !channel.delivery_as_answer(queue, consumer, &deliveries, link, cx) {
                channel.deliver(queue, consumer, deliveries, link, cx);
            }
            Ok(())
        });
    }

    fn alarm(&mut self, alarm: Option<&'static str>, cx: &mut StepContext<'_>) {
        self.link.alarm = alarm;
        if alarm.is_none() && self.link.blocked {
            self.link.blocked = false;
            self.told_blocked = false;
            if self.link.capabilities.connection_blocked {
                cx.send(0, &Method::ConnectionUnblocked {});
            }
            self.last_received = cx.broker.now();
        }
    }

    fn pump(&mut self, cx: &mut StepContext<'_>) {
        if self.phase != Phase::Running {
            return;
        }
        let mut numbers: Vec<u16> = self
            .channels
            .values()
            .filter(|c| !c.held_deliveries.is_empty())
            .map(|c| c.number)
            .collect();
        numbers.sort_unstable();
        self.link.channels_hold =
            !numbers.is_empty() || self.channels.values().any(|c| c.transaction.is_some());
        // Another one begins each time: a channel that fills the outbox leaves the next turn to the others.
        let first = numbers.partition_point(|&n| n <= self.pumped_last);
        numbers.rotate_left(first);
        for number in numbers {
            if cx.out.len() >= self.link.limits.outbox_deliveries {
                return;
            }
            self.pumped_last = number;
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.pump(&mut self.link, cx);
            }
        }
    }
}

/// Input of a paused connection below this size is copied to a buffer of its own.
const FEW: usize = 16 << 10;

impl Session for AmqpSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| {
            if !input.is_empty() {
                this.last_received = cx.broker.now();
            }
            if this.input.is_empty() {
                this.read(input, cx);
                if this.is_paused() {
                    // A few bytes must not keep all of the buffer that they were read into.
                    this.input = match input.len() < FEW {
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
            this.take_session_event(session_event, cx)
        })
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, Self::on_time)
    }

    fn wake_at(&self) -> Option<Time> {
        if self.phase == Phase::Ended {
            return None;
        }
        let beats =
            !self.heartbeat.is_zero() && matches!(self.phase, Phase::Opening | Phase::Running);
        let send = beats.then(|| self.last_sent + self.heartbeat / 2);
        let receive = beats.then(|| self.last_received + self.heartbeat * 2);
        [
            self.deadline,
            self.link.wait_deadline,
            self.link.ack_check,
            send,
            receive,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        let cx = &mut StepContext {
            broker,
            out: &mut Outbox::default(),
        };
        self.end_session(cx);
        for channel in self.channels.values_mut() {
            channel.uncount(&mut self.link);
        }
        self.channels.clear();
        self.link.flush_counters(cx);
        self.phase = Phase::Ended;
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, Self::pump)
    }

    fn unfinished(&self) -> usize {
        let transactions = || {
            let all = self
                .channels
                .values()
                .filter_map(|c| c.transaction.as_ref());
            all.map(|t| t.octets()).sum::<usize>()
        };
        let kept = self.link.partial + self.link.begun + self.link.held + self.input.len();
        match self.link.channels_hold {
            true => kept + transactions(),
            false => kept,
        }
    }

    fn held(&self) -> Held {
        let deliveries = || self.channels.values().flat_map(|c| &c.held_deliveries);
        let unread = match self.link.channels_hold {
            true => deliveries()
                .map(|h| h.delivery.message.as_bytes().len())
                .sum(),
            false => 0,
        };
        Held {
            is_authenticated: !matches!(
                self.phase,
                Phase::Header | Phase::Starting | Phase::Verifying
            ),
            unread,
            finished: self.link.finished,
        }
    }

    fn unfinished_since(&self) -> Option<Time> {
        let assemblies = self.channels.values().filter_map(|c| c.assembly.as_ref());
        assemblies.filter_map(|a| a.unfinished_since()).min()
    }

    fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        let deliveries = self.channels.values().flat_map(|c| &c.held_deliveries);
        deliveries.for_each(|held| visit(&held.delivery.message));
    }

    fn info(&self) -> SessionInfo {
        SessionInfo {
            protocol: PROTOCOL,
            user: self.link.user.to_string(),
            vhost: self.link.vhost.to_string(),
            client_name: self.client_name.clone(),
            subscriber: None,
            channels: self.channels.len() as u32,
        }
    }

    fn details(&self) -> SessionDetails {
        let mut channels: Vec<_> = self
            .channels
            .values()
            .map(|c| c.details(&self.link))
            .collect();
        channels.sort_unstable_by_key(|c| c.number);
        SessionDetails {
            state: self.state(),
            auth_mechanism: self.mechanism.map_or("", Mechanism::name),
            tls: self.config.tls.clone(),
            heartbeat_s: u16::try_from(self.heartbeat.as_secs()).unwrap_or(u16::MAX),
            frame_max: self.link.frame_max,
            channel_max: self.channel_max,
            client_properties: table::decode(&self.client_properties).unwrap_or_default(),
            channels,
        }
    }
}
