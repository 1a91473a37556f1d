//! The connection state machine: dispatches frames and events to channels. [`ending`] closes
//! channels and the connection, [`time`] handles timers.

mod ending;
mod time;

pub(crate) use ending::shutdown;

use crate::channel::{Channel, ChannelState};
use crate::connection_state::{ConnectionState, PROTOCOL, StepContext, TOKEN_HANDSHAKE_FRAME_MAX};
use crate::failure::{Failure, MethodResult, ReplyCode};
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::publish_tag::TagParts;
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
    Broker, ChannelLimit, ControlEvent, HeldMemory, Login, Outbox, QueueNotification,
    ServiceNotification, ServiceStates, Session, SessionDetails, SessionEvent, SessionInfo,
    SessionState,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for the protocol header.
    Header,
    /// connection.start was sent.
    Starting,
    /// The client's password is being checked.
    Verifying,
    /// connection.tune was sent.
    Tuning,
    /// Waiting for connection.open.
    Opening,
    Running,
    /// The client closed. Its exclusive queues and its unused auto-delete queues are deleted before
    /// close-ok.
    Leaving,
    /// We sent connection.close.
    Closing,
    /// Input is ignored; the connection ends at the deadline.
    Lingering,
    Ended,
}

/// An AMQP 0.9.1 connection as a state machine.
#[derive(Debug)]
pub struct AmqpSession {
    pub(crate) config: SessionConfig,
    pub(crate) phase: Phase,
    pub(crate) conn: ConnectionState,
    pub(crate) channels: HashMap<u16, Box<Channel>, FixedState>,
    pub(crate) channel_max: u16,
    /// The mechanism of the login.
    pub(crate) mechanism: Option<Mechanism>,
    /// Zero: disabled.
    pub(crate) heartbeat: Duration,
    pub(crate) client_name: String,
    /// The encoded client properties, at most as long as a handshake frame.
    pub(crate) client_properties: Box<[u8]>,
    /// The deadline of the handshake or of the close. None while running.
    pub(crate) deadline: Option<Time>,
    last_received: Time,
    last_sent: Time,
    /// Input received while reading was paused.
    input: BytesMut,
    /// The token of `Change::EndSession`; 0 if it was not requested.
    end_token: u64,
    /// An encoded connection.close, sent after the exclusive queues are deleted, so that a client
    /// that reconnects at once can declare them again.
    pending_close: Box<[u8]>,
    /// Auto-delete queues whose consumers ended with this connection.
    left: LeftQueues,
    /// The token of the change that deletes one of them; 0 if none is pending.
    left_token: u64,
    /// The next frame is connection.close, and it must wait for held frames.
    stalled: bool,
    /// The node stops, and the client has not logged in yet.
    pub(crate) is_stopping: bool,
    /// The login whose password check is pending.
    pub(crate) login: Option<Box<Login>>,
    /// connection.blocked has been sent.
    blocked_sent: bool,
    /// The channel whose held deliveries were written most recently.
    last_pumped: u16,
    /// The channel whose held publishes were resumed most recently.
    last_published: u16,
}

impl AmqpSession {
    /// Creates the session of a connection accepted at `now`.
    pub fn new(config: SessionConfig, now: Time) -> AmqpSession {
        let limits: Arc<Limits> = config.limits.clone();
        let mut conn = ConnectionState::new(limits.clone());
        if config.logins.has_external_backend {
            conn.frame_max = TOKEN_HANDSHAKE_FRAME_MAX;
        }
        AmqpSession {
            config,
            phase: Phase::Header,
            conn,
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
            pending_close: Box::default(),
            left: LeftQueues::default(),
            left_token: 0,
            stalled: false,
            is_stopping: false,
            login: None,
            blocked_sent: false,
            last_pumped: 0,
            last_published: 0,
        }
    }

    /// Runs one step: handles the input, then everything that it unblocked.
    fn step(
        &mut self,
        broker: &mut dyn Broker,
        out: &mut Outbox,
        handle: impl FnOnce(&mut Self, &mut StepContext<'_>),
    ) -> SessionState {
        let before = out.len();
        let now = broker.now();
        let cx = &mut StepContext { broker, out };
        self.conn.update_congestion(cx.out);
        handle(self, cx);
        self.conn.update_congestion(cx.out);
        self.resume_held_publishes(cx);
        self.read_buffered(cx);
        self.conn.flush_settlements(cx);
        if !self.conn.throttled_channels.is_empty() {
            self.grant_credits(cx);
        }
        if !self.conn.withheld.is_empty() {
            self.report_withheld(cx);
        }
        self.conn.flush_counters(cx);
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

    /// The connection state as listings show it.
    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Running if self.conn.blocked => "blocked",
            Phase::Running if self.conn.alarm.is_some() => "blocking",
            Phase::Running if self.conn.holding_channels > 0 => "flow",
            Phase::Running => "running",
            Phase::Leaving | Phase::Closing | Phase::Lingering | Phase::Ended => "closing",
            Phase::Header | Phase::Starting | Phase::Verifying | Phase::Tuning | Phase::Opening => {
                "starting"
            }
        }
    }

    fn is_paused(&self) -> bool {
        // The client's password or new secret is being checked.
        (matches!(self.phase, Phase::Verifying | Phase::Running) && self.login.is_some())
            || self.phase == Phase::Running
                && (self.stalled
                    || self.conn.blocked
                    || self.conn.congested
                    || self.conn.held_bytes > self.conn.limits.held)
    }

    /// Reads complete frames from the front of the input until one pauses the connection.
    fn read(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        if self.phase == Phase::Header && !self.read_header(input, cx) {
            return;
        }
        let mut at = 0;
        loop {
            if matches!(self.phase, Phase::Lingering | Phase::Ended) {
                input.clear();
                return;
            }
            if self.is_paused() {
                break;
            }
            let rest = input.get(at..).unwrap_or(&[]);
            match parse_frame(rest, self.conn.frame_max) {
                Ok(None) => break,
                Ok(Some(frame)) if self.must_stall(&frame) => break,
                Ok(Some(frame)) => {
                    at += frame.wire_len();
                    self.frame(frame, cx);
                    self.conn.update_congestion(cx.out);
                }
                Err(error) => {
                    // The start of the next frame is unknown: report the error if the client has
                    // logged in, then ignore all input.
                    let failure = Failure::new(ReplyCode::FrameError, error.to_string());
                    self.refuse(&failure, (0, 0), cx);
                    self.close_silently(cx);
                }
            }
        }
        input.advance(at);
    }

    /// Resumes held publishes when queues have caught up.
    fn resume_held_publishes(&mut self, cx: &mut StepContext<'_>) {
        if self.conn.holding_channels == 0 || self.conn.must_hold_publishes() {
            return;
        }
        let mut numbers: Vec<u16> = self
            .channels
            .values()
            .filter(|c| c.is_holding)
            .map(|c| c.number)
            .collect();
        numbers.sort_unstable();
        // Round robin, so that a channel that floods the queues does not starve the others.
        let first = numbers.partition_point(|&n| n <= self.last_published);
        numbers.rotate_left(first);
        for number in numbers {
            if self.conn.must_hold_publishes() {
                return;
            }
            self.last_published = number;
            self.with_channel(number, cx, |_, _, _| Ok(()));
        }
    }

    /// Returns true for a connection.close while frames are held: frames sent before the close must
    /// be processed first.
    fn must_stall(&mut self, frame: &Frame<'_>) -> bool {
        self.stalled = self.phase == Phase::Running
            && self.conn.held_bytes > 0
            && frame.channel == 0
            && frame.kind == FrameKind::Method
            && frame.payload.starts_with(&[0, 10, 0, 50]);
        self.stalled
    }

    /// Reads input that was buffered while the connection was paused.
    fn read_buffered(&mut self, cx: &mut StepContext<'_>) {
        self.stalled &= self.conn.held_bytes > 0;
        if self.input.is_empty() || self.is_paused() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        self.read(&mut input, cx);
        if !input.is_empty() {
            self.input = input;
        }
    }

    /// Returns true if the client speaks AMQP 0.9.1.
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
            // Sent before the client saw our close.
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
        // The common case: no wait, no failure, no close.
        if let Some(channel) = self.channels.get_mut(&frame.channel) {
            let result = channel.frame(frame, &mut self.conn, cx);
            if result.is_err() || channel.state == ChannelState::Closed {
                self.with_channel(frame.channel, cx, |_, _, _| result);
            }
        } else if self.create_channel(frame.channel, cx) {
            self.with_channel(frame.channel, cx, |channel, conn, cx| {
                channel.frame(frame, conn, cx)
            });
        }
        self.send_blocked(cx);
    }

    fn create_channel(&mut self, number: u16, cx: &mut StepContext<'_>) -> bool {
        let refusal = if self.channels.len() >= usize::from(self.channel_max) {
            format!(
                "number of channels opened ({}) has reached the negotiated channel_max ({})",
                self.channels.len(),
                self.channel_max
            )
        } else if let Err(ChannelLimit { of_vhost, limit }) = cx.broker.open_channel() {
            let (kind, name) = match of_vhost {
                true => ("vhost", &self.conn.vhost),
                false => ("user", &self.conn.user),
            };
            format!(
                "number of channels opened for {kind} '{name}' has reached the maximum allowed {kind} limit of ({limit})"
            )
        } else {
            let channel = Channel::new(number, self.conn.new_epoch());
            self.channels.insert(number, Box::new(channel));
            return true;
        };
        let failure = Failure::new(ReplyCode::NotAllowed, refusal);
        self.fail_connection(&failure, (0, 0), cx);
        false
    }

    /// Sends connection.blocked once when an alarm pauses a publishing connection.
    fn send_blocked(&mut self, cx: &mut StepContext<'_>) {
        if !self.conn.blocked || self.blocked_sent {
            return;
        }
        self.blocked_sent = true;
        if self.conn.capabilities.connection_blocked {
            let reason = self.conn.alarm.unwrap_or("low on resources");
            cx.send(0, &Method::ConnectionBlocked { reason });
        }
    }

    /// Runs a step of one channel and handles its result. A failure closes the channel or the
    /// connection. After a wait or a hold has ended, the held frames are processed.
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
        let mut result = step(channel, &mut self.conn, cx);
        while result.is_ok()
            && channel.state != ChannelState::Closed
            && channel.try_resume(&mut self.conn)
            && !channel.held_frames.is_empty()
        {
            let mut held = std::mem::take(&mut channel.held_frames);
            self.conn.held_bytes = self.conn.held_bytes.saturating_sub(held.len());
            // Frames are complete when they are held.
            while let Ok(Some(frame)) = parse_frame(&held, u32::MAX) {
                let len = frame.wire_len();
                if channel.must_hold(&frame, &mut self.conn, cx) {
                    break;
                }
                result = channel.frame(frame, &mut self.conn, cx);
                held.advance(len);
                if result.is_err() || channel.waiting.is_some() {
                    break;
                }
            }
            if result.is_ok() && (channel.waiting.is_some() || channel.is_holding) {
                self.conn.held_bytes += held.len();
                channel.held_frames = held;
            }
        }
        channel.resume_flow(cx);
        if channel.state == ChannelState::Closed {
            // Frames after channel.close are dropped.
            self.conn.held_bytes = self
                .conn
                .held_bytes
                .saturating_sub(channel.held_frames.len());
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
                let consumed = self.conn.subscriptions.values().filter(|s| !s.get);
                self.left = LeftQueues::of(consumed.map(|s| s.queue), cx.broker);
                self.release_channels(cx);
                self.phase = Phase::Leaving;
                self.deadline = Some(cx.broker.now() + self.conn.limits.operation);
                self.end_session(cx);
                if self.end_token == 0 {
                    self.delete_left_queues(cx);
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
            (Phase::Running, Method::ConnectionUpdateSecret { new_secret, reason }) => {
                self.update_secret(new_secret, reason, cx)
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

    fn handle_session_event(&mut self, session_event: SessionEvent, cx: &mut StepContext<'_>) {
        match session_event {
            SessionEvent::Queue(notification) => self.handle_queue_notification(notification, cx),
            SessionEvent::Control(event) => self.handle_control_event(event, cx),
            SessionEvent::Service(ServiceNotification::Confirmed { tags }) => {
                for tag in tags {
                    self.record_answer(tag, true, cx);
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
            QueueNotification::Published { tag, .. } => self.record_answer(tag, true, cx),
            QueueNotification::NotPublished { queue, tag, why } => {
                // As in RabbitMQ, a queue that was deleted in the meantime does not cause a nack.
                let deleted = why == queue::RejectReason::Unavailable
                    && cx.broker.tree().queue_by_id(queue).is_none();
                self.record_answer(tag, deleted, cx);
            }
            QueueNotification::Deliver {
                queue,
                consumer,
                deliveries,
            } => {
                self.deliver(queue, consumer, deliveries, cx);
            }
            QueueNotification::Answer { queue, seq, answer } => {
                let number = self.conn.take_request(queue, seq);
                if number == Some(0) {
                    self.handle_left_answer(&answer, cx);
                } else if let Some(number) = number {
                    self.with_channel(number, cx, |channel, conn, cx| {
                        channel.handle_queue_answer(answer, conn, cx)
                    });
                }
            }
            QueueNotification::Cancelled { consumer, .. } => {
                let number = self.conn.subscriptions.get(&consumer.0).map(|s| s.channel);
                let Some(number) = number else { return };
                self.with_channel(number, cx, |channel, conn, cx| {
                    channel.fail_cancelled_wait(consumer, conn)?;
                    if !channel.defer_cancel_by_own_delete(consumer, conn) {
                        channel.handle_queue_cancel(consumer, conn, cx);
                    }
                    Ok(())
                });
            }
            QueueNotification::TimedOut { consumer, .. } => {
                let number = self.conn.subscriptions.get(&consumer.0).map(|s| s.channel);
                let Some(number) = number else { return };
                self.with_channel(number, cx, |channel, conn, cx| {
                    channel.fail_cancelled_wait(consumer, conn)?;
                    let result = channel.handle_timed_out(consumer, conn, cx);
                    result.map_err(|failure| MethodFailure {
                        failure,
                        ids: (0, 0),
                    })
                });
            }
            // This session has no cursors.
            QueueNotification::Removed { .. }
            | QueueNotification::Cursor { .. }
            | QueueNotification::Browsed { .. }
            | QueueNotification::Activity { .. } => {}
        }
    }

    fn handle_control_event(&mut self, event: ControlEvent, cx: &mut StepContext<'_>) {
        match event {
            ControlEvent::Changed { token, result } => {
                if token != 0 && (token == self.end_token || token == self.left_token) {
                    self.send_pending_close(cx);
                    return self.delete_left_queues(cx);
                }
                let number = (token & 0xFFFF) as u16;
                self.with_channel(number, cx, |channel, conn, cx| {
                    channel.handle_change_result(token, result, conn, cx)
                });
            }
            ControlEvent::Unblocked => self.conn.behind = false,
            ControlEvent::Verified { verdict } => self.handle_verified(verdict, cx),
            ControlEvent::Expired => self.force_close("credential expired", cx),
            ControlEvent::Blocked(alarm) => self.handle_alarm(alarm, cx),
            ControlEvent::Close { text } => self.force_close(&text, cx),
            ControlEvent::Shed { text, can_hear } => self.shed(&text, can_hear, cx),
            ControlEvent::Shutdown => self.shut_down(cx),
        }
    }

    fn record_answer(
        &mut self,
        tag: session::PublishTag,
        accepted: bool,
        cx: &mut StepContext<'_>,
    ) {
        let number = TagParts::unpack(tag).channel;
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.record_answer(tag, accepted, &mut self.conn, cx);
            if channel.transaction.is_some() && channel.waiting.is_some() {
                self.with_channel(number, cx, |channel, _, cx| channel.finish_commit(cx));
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
        let Some(number) = self.conn.subscriptions.get(&consumer.0).map(|s| s.channel) else {
            // Sent before the queue processed the cancellation.
            for delivery in &deliveries {
                let range = (delivery.id, delivery.id);
                self.conn
                    .settle_range(queue, consumer, SettlementOutcome::Requeue, range);
            }
            return;
        };
        self.with_channel(number, cx, |channel, conn, cx| {
            if !channel.try_deliver_as_answer(queue, consumer, &deliveries, conn, cx) {
                channel.deliver(queue, consumer, deliveries, conn, cx);
            }
            Ok(())
        });
    }

    fn handle_alarm(&mut self, alarm: Option<&'static str>, cx: &mut StepContext<'_>) {
        self.conn.alarm = alarm;
        if alarm.is_none() && self.conn.blocked {
            self.conn.blocked = false;
            self.blocked_sent = false;
            if self.conn.capabilities.connection_blocked {
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
        self.conn.channels_may_hold =
            !numbers.is_empty() || self.channels.values().any(|c| c.transaction.is_some());
        // Round robin, so that a channel that fills the outbox does not starve the others.
        let first = numbers.partition_point(|&n| n <= self.last_pumped);
        numbers.rotate_left(first);
        for number in numbers {
            if cx.out.len() >= self.conn.limits.outbox_deliveries {
                return;
            }
            self.last_pumped = number;
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.pump(&mut self.conn, cx);
            }
        }
    }
}

/// Input of a paused connection below this size in bytes is copied, to free the driver's read
/// buffer.
const SMALL_INPUT: usize = 16 << 10;

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
                this.conn.update_congestion(cx.out);
                next = match this.phase {
                    // The node drops what waits for a connection that has ended.
                    Phase::Ended => None,
                    _ => cx.broker.next_event(),
                };
            }
        })
    }

    /// The protocol has no state on shards.
    fn service_event(
        &mut self,
        _event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |_, _| {})
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, Self::handle_tick)
    }

    fn wake_at(&self) -> Option<Time> {
        if self.phase == Phase::Ended {
            return None;
        }
        let sends_heartbeats =
            !self.heartbeat.is_zero() && matches!(self.phase, Phase::Opening | Phase::Running);
        let send = sends_heartbeats.then(|| self.last_sent + self.heartbeat / 2);
        let receive = sends_heartbeats.then(|| self.last_received + self.heartbeat * 2);
        [
            self.deadline,
            self.conn.wait_deadline,
            self.conn.ack_check,
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
            channel.subtract_from_totals(&mut self.conn);
        }
        self.channels.clear();
        self.conn.flush_counters(cx);
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
        let buffered = self.conn.partial
            + self.conn.publish_overhead
            + self.conn.held_bytes
            + self.input.len();
        match self.conn.channels_may_hold {
            true => buffered + transactions(),
            false => buffered,
        }
    }

    fn held(&self) -> HeldMemory {
        let deliveries = || self.channels.values().flat_map(|c| &c.held_deliveries);
        let unread = match self.conn.channels_may_hold {
            true => deliveries()
                .map(|h| h.delivery.message.as_bytes().len())
                .sum(),
            false => 0,
        };
        HeldMemory {
            is_authenticated: !matches!(
                self.phase,
                Phase::Header | Phase::Starting | Phase::Verifying
            ),
            unread,
            finished: self.conn.finished,
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

    fn info(&self, _services: &ServiceStates) -> SessionInfo {
        SessionInfo {
            protocol: PROTOCOL,
            user: self.conn.user.to_string(),
            vhost: self.conn.vhost.to_string(),
            client_name: self.client_name.clone(),
            channels: self.channels.len() as u32,
        }
    }

    fn details(&self) -> SessionDetails {
        let mut channels: Vec<_> = self
            .channels
            .values()
            .map(|c| c.details(&self.conn))
            .collect();
        channels.sort_unstable_by_key(|c| c.number);
        SessionDetails {
            state: self.state(),
            auth_mechanism: self.mechanism.map_or("", Mechanism::name),
            tls: self.config.tls.clone(),
            heartbeat_s: u16::try_from(self.heartbeat.as_secs()).unwrap_or(u16::MAX),
            frame_max: self.conn.frame_max,
            channel_max: self.channel_max,
            client_properties: table::decode(&self.client_properties).unwrap_or_default(),
            channels,
            stream: None,
        }
    }
}
