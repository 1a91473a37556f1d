//! The connection as a state machine: decodes packets and dispatches packets, events and timers.

use crate::client_connection::{
    ClientConnection, DECLARE_SESSION_QUEUE, DELETE_SESSION_QUEUE, SYNC, StepContext,
};
use crate::session_queue::CONSUMER;
use crate::settings::{MqttSettings, SessionConfig};
use crate::shard_service::MqttShard;
use crate::unanswered_publishes::{forward_event, is_deleted};
use auth::TlsPeer;
use bytes::{Buf, BytesMut};
use codec_mqtt::{
    DecodeError, Packet, PacketType, RawPacket, ReasonCode, Version, encode_pingresp, is_bridge,
    parse_frame,
};
use env::Time;
use env::planted::{self, Bug};
use message::Message;
use metadata::{ChangeError, ChangeResult};
use session::{
    Broker, ControlEvent, HeldMemory, Outbox, QueueNotification, ServiceNotification,
    ServiceStates, Session, SessionDetails, SessionEvent, SessionInfo, SessionState,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use topics::RouterOutput;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPhase {
    /// Waiting for CONNECT.
    Connecting,
    /// The node is checking the password.
    Verifying,
    /// Waiting until this node has applied all earlier metadata changes.
    Learning,
    /// Another connection holds the client id and was told to leave.
    Claiming,
    /// Waiting for the answer of the session's queue.
    Opening,
    Running,
    Ended,
}

/// The client at the other end.
#[derive(Debug)]
pub(crate) enum ClientPhase {
    /// CONNECT has not arrived.
    Unknown(Box<HandshakeState>),
    Known(ClientConnection),
    Gone,
}

/// The state needed to authenticate a client.
#[derive(Debug)]
pub(crate) struct HandshakeState {
    pub settings: Arc<MqttSettings>,
    pub peer_is_loopback: bool,
    /// The peer's TLS certificate, if it may name the user.
    pub tls: Option<Arc<TlsPeer>>,
    /// The client's Maximum Packet Size, if known: CONNECT may be rejected before it is processed.
    pub packet: u32,
}

impl ClientPhase {
    pub(crate) fn connection(&self) -> Option<&ClientConnection> {
        match self {
            ClientPhase::Known(connection) => Some(connection),
            _ => None,
        }
    }

    /// The client's Maximum Packet Size in bytes.
    pub(crate) fn max_packet(&self) -> usize {
        match self {
            ClientPhase::Known(connection) => connection.max_packet(),
            ClientPhase::Unknown(unknown) => usize::try_from(unknown.packet).unwrap_or(usize::MAX),
            ClientPhase::Gone => usize::MAX,
        }
    }

    pub(crate) fn connection_mut(&mut self) -> Option<&mut ClientConnection> {
        match self {
            ClientPhase::Known(connection) => Some(connection),
            _ => None,
        }
    }
}

/// A time in units of 67 ms, of which 2^32 are more than nine years. Wake-ups are no more exact
/// (`shard::wake_times`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoarseTime(u32);

impl CoarseTime {
    const BITS: u32 = 26;

    /// Rounds up, so that no timeout is early.
    pub(crate) fn of(time: Time) -> CoarseTime {
        CoarseTime(u32::try_from(time.0.div_ceil(1 << Self::BITS)).unwrap_or(u32::MAX))
    }

    pub(crate) fn time(self) -> Time {
        Time(u64::from(self.0) << Self::BITS)
    }
}

/// An MQTT connection as a state machine. Small while it is idle, because there may be millions.
#[derive(Debug)]
pub struct MqttSession {
    pub(crate) phase: SessionPhase,
    pub(crate) version: Version,
    /// A large CONNECT is being received ([`Broker::hold_unknown`]).
    holds: bool,
    /// While running, when bytes arrived last; before that, the deadline for CONNECT.
    pub(crate) since: CoarseTime,
    pub(crate) client: ClientPhase,
}

// A size class of the allocator.
const _: () = assert!(size_of::<MqttSession>() <= 80);

/// The reason why a connection must end.
pub(crate) struct ConnectionFailure {
    pub reason: ReasonCode,
    pub text: String,
}

impl ConnectionFailure {
    pub(crate) fn new(reason: ReasonCode, text: impl Into<String>) -> ConnectionFailure {
        ConnectionFailure {
            reason,
            text: text.into(),
        }
    }
}

impl From<DecodeError> for ConnectionFailure {
    fn from(error: DecodeError) -> ConnectionFailure {
        ConnectionFailure::new(error.reason(), error.to_string())
    }
}

pub(crate) type PacketResult = Result<(), ConnectionFailure>;

/// The protocol label in metrics.
pub(crate) fn metrics_label(version: Version) -> &'static str {
    match version {
        Version::V31 => "mqtt310",
        Version::V311 => "mqtt311",
        Version::V5 => "mqtt50",
    }
}

impl MqttSession {
    /// Creates the session of a connection that was accepted at `now`.
    pub fn new(config: SessionConfig, now: Time) -> MqttSession {
        let login = config.settings.limits.login;
        MqttSession {
            phase: SessionPhase::Connecting,
            version: Version::V311,
            holds: false,
            since: CoarseTime::of(now + login),
            client: ClientPhase::Unknown(Box::new(HandshakeState {
                tls: config.tls.filter(|_| config.settings.by_certificate),
                packet: u32::MAX,
                settings: config.settings,
                peer_is_loopback: config.peer_is_loopback,
            })),
        }
    }

    /// The protocol label in metrics.
    fn protocol(&self) -> &'static str {
        metrics_label(self.version)
    }

    fn session_state(&self) -> SessionState {
        match self.phase {
            SessionPhase::Ended => SessionState::Closing,
            _ if self.is_paused() => SessionState::Paused,
            _ => SessionState::Open,
        }
    }

    /// While paused, no input is processed; it stays in the buffer.
    fn is_paused(&self) -> bool {
        match (self.phase, self.client.connection()) {
            (
                SessionPhase::Verifying
                | SessionPhase::Learning
                | SessionPhase::Claiming
                | SessionPhase::Opening,
                _,
            ) => true,
            (SessionPhase::Running, Some(connection)) => {
                connection.is_blocked
                    || connection.rare.pending.is_some()
                    || connection.pending_retains >= MAX_PENDING_RETAINS
                    || connection.is_alarmed && connection.has_published
                    || connection.unconfirmed.len() >= connection.settings.limits.unconfirmed
            }
            _ => false,
        }
    }

    fn process_input(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        let (mut at, mut packets) = (0, 0);
        while self.phase != SessionPhase::Ended && !self.is_paused() {
            let max = match &self.client {
                ClientPhase::Known(connection) if self.phase == SessionPhase::Running => {
                    connection.settings.limits.packet
                }
                ClientPhase::Known(connection) => connection.settings.limits.packet_unauthenticated,
                ClientPhase::Unknown(unknown) => unknown.settings.limits.packet_unauthenticated,
                ClientPhase::Gone => break,
            };
            match parse_frame(input.get(at..).unwrap_or(&[]), max) {
                Ok(None) => {
                    self.wait_for_rest(input.len() - at, cx);
                    break;
                }
                Ok(Some(frame)) => {
                    at += frame.wire_len();
                    packets += 1;
                    self.frame(&frame, cx);
                }
                Err(error) if self.phase == SessionPhase::Connecting => {
                    self.close_silently(&error.to_string(), cx);
                }
                Err(error) => self.fail(error.into(), cx),
            }
        }
        if packets > 0 {
            cx.count(|t| {
                t.traffic.packets_in += packets;
                t.traffic.bytes_in += at as u64;
            });
        }
        if self.phase != SessionPhase::Connecting {
            self.release_unknown_hold(cx);
        }
        match self.phase {
            SessionPhase::Ended => input.clear(),
            _ => input.advance(at),
        }
    }

    /// Handles an incomplete packet of which `bytes` have arrived. Unauthenticated clients must not
    /// make the node buffer much.
    fn wait_for_rest(&mut self, bytes: usize, cx: &mut StepContext<'_>) {
        let large = match &self.client {
            ClientPhase::Unknown(unknown) => bytes > unknown.settings.limits.connect,
            _ => false,
        };
        if large && !self.holds {
            self.holds = cx.broker.hold_unknown(true);
            if !self.holds {
                self.close_silently("too many clients send a large CONNECT at a time", cx);
            }
        }
    }

    fn release_unknown_hold(&mut self, cx: &mut StepContext<'_>) {
        if std::mem::take(&mut self.holds) {
            cx.broker.hold_unknown(false);
        }
    }

    fn frame(&mut self, frame: &RawPacket<'_>, cx: &mut StepContext<'_>) {
        if self.phase == SessionPhase::Connecting {
            return self.first_packet(frame, cx);
        }
        // Reject it whatever it contains.
        if frame.kind.is_server_only() {
            return self.fail(unexpected("a packet that only servers send"), cx);
        }
        if frame.kind == PacketType::Auth && self.version.is_5() {
            // [MQTT-4.12.0-7]: no authentication method was agreed on.
            return self.fail(unexpected("AUTH without an authentication method"), cx);
        }
        let packet = Packet::decode(frame, self.version);
        let outcome = match packet {
            Ok(packet) => self.packet(packet, cx),
            Err(error) => Err(error.into()),
        };
        if let Err(failure) = outcome {
            self.fail(failure, cx);
        }
    }

    fn first_packet(&mut self, frame: &RawPacket<'_>, cx: &mut StepContext<'_>) {
        // [MQTT-3.1.0-1]
        if frame.kind != PacketType::Connect {
            return self.close_silently("the first packet is not CONNECT", cx);
        }
        match Packet::decode(frame, self.version) {
            Ok(Packet::Connect(connect)) => {
                let bridge = is_bridge(frame.body);
                if let Err(failure) = self.connect(&connect, bridge, cx) {
                    self.fail(failure, cx);
                }
            }
            Ok(_) => {}
            Err(error) => self.refuse_connect(frame.body, error, cx),
        }
    }

    fn packet(&mut self, packet: Packet<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        let Some(connection) = self.client.connection_mut() else {
            return Ok(());
        };
        match packet {
            Packet::Publish(publish) => connection.publish(&publish, cx),
            Packet::Ack(ack) => connection.handle_ack(&ack, cx),
            Packet::Subscribe(subscribe) => connection.subscribe(&subscribe, cx),
            Packet::Unsubscribe(unsubscribe) => connection.unsubscribe(&unsubscribe, cx),
            Packet::PingReq => {
                encode_pingresp(cx.packet());
                // A client that sends PINGREQ is idle.
                connection.forget_completed(cx);
                connection.free_unused();
                Ok(())
            }
            Packet::Disconnect(disconnect) => self.handle_disconnect(&disconnect, cx),
            // [MQTT-3.1.0-2]
            Packet::Connect(_) => Err(unexpected("a second CONNECT")),
            // Rejected by [`MqttSession::frame`].
            Packet::Auth(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp => Ok(()),
        }
    }

    fn handle_event(&mut self, session_event: SessionEvent, cx: &mut StepContext<'_>) {
        match session_event {
            SessionEvent::Queue(notification) => self.handle_queue_notification(notification, cx),
            SessionEvent::Control(event) => self.handle_control_event(event, cx),
            SessionEvent::Service(ServiceNotification::Confirmed { tags }) => {
                self.with_connection(cx, |connection, cx| {
                    connection.handle_confirms(tags, cx);
                    Ok(())
                });
            }
        }
    }

    /// Handles an output of the shard's router.
    fn handle_router_output(&mut self, output: RouterOutput, cx: &mut StepContext<'_>) {
        match output {
            RouterOutput::Deliver { delivery, .. } => {
                self.with_connection(cx, |connection, cx| connection.deliver(delivery, cx));
            }
            RouterOutput::LateAnswer {
                publisher,
                tag,
                taken,
                ..
            } => {
                let connection = self.client.connection_mut();
                let outcome = connection
                    .map(|connection| connection.handle_late_answer((publisher, tag), taken, cx));
                if let Some(Err(failure)) = outcome {
                    self.fail(failure, cx);
                }
            }
            RouterOutput::Announced { .. } => {
                self.with_connection(cx, ClientConnection::handle_announced);
            }
            RouterOutput::MessagesLost { .. } => {
                self.drop_published_will(cx);
                let text =
                    "messages are lost that other nodes had while they could not reach this one";
                self.fail(
                    ConnectionFailure::new(ReasonCode::UnspecifiedError, text),
                    cx,
                );
            }
            RouterOutput::ReplicateWill { .. } => {
                if let Some(connection) = self.client.connection() {
                    connection.replicate_will(cx);
                }
            }
            RouterOutput::TakenOver { .. } if planted::is(Bug::TakeoverIgnored) => {}
            RouterOutput::TakenOver { .. } => self.handle_takeover(cx),
            RouterOutput::ClaimAgain { .. } if self.phase == SessionPhase::Claiming => {
                self.claim(cx)
            }
            RouterOutput::ClaimAgain { .. } => {}
            // The shard handles these.
            RouterOutput::Confirmed { .. }
            | RouterOutput::Unblocked { .. }
            | RouterOutput::Will { .. }
            | RouterOutput::ToQueue { .. }
            | RouterOutput::SysTopicsDue => {}
        }
    }

    fn handle_queue_notification(
        &mut self,
        notification: QueueNotification,
        cx: &mut StepContext<'_>,
    ) {
        match notification {
            QueueNotification::Published { tag, .. } => {
                self.with_connection(cx, |connection, cx| {
                    connection.handle_confirm(tag.0, true, cx)
                });
            }
            QueueNotification::NotPublished { queue, tag, why } => {
                let deleted = is_deleted(queue, why, cx.broker.tree());
                self.with_connection(cx, |connection, cx| {
                    connection.handle_confirm(tag.0, deleted, cx)
                });
            }
            QueueNotification::Answer { queue, seq, answer } => {
                let connection = self.client.connection_mut();
                if let Some(Err(failure)) = connection
                    .and_then(|connection| connection.handle_stream_answer(queue, seq, &answer))
                {
                    return self.fail(failure, cx);
                }
                let connection = self.client.connection_mut();
                match connection.map_or(Ok(false), |connection| {
                    connection.handle_queue_answer(queue, seq, answer, cx)
                }) {
                    Ok(true) if self.phase == SessionPhase::Opening => self.start_session(cx),
                    Ok(_) => {}
                    Err(failure) => self.fail(failure, cx),
                }
            }
            QueueNotification::Deliver {
                queue,
                consumer,
                deliveries,
            } => {
                let Some(connection) = self.client.connection_mut() else {
                    return;
                };
                match consumer {
                    CONSUMER => connection.handle_deliveries(queue, deliveries, cx),
                    stream => connection.handle_stream_deliveries(stream, deliveries, cx),
                }
            }
            QueueNotification::Cancelled { consumer, .. } if consumer != CONSUMER => {
                let connection = self.client.connection_mut();
                if let Some(Err(failure)) =
                    connection.map(|connection| connection.stream_cancelled(consumer))
                {
                    self.fail(failure, cx);
                }
            }
            QueueNotification::Cancelled { queue, .. } => {
                let connection = self.client.connection_mut();
                if let Some(Err(failure)) =
                    connection.map(|connection| connection.consumer_cancelled(queue, cx))
                {
                    self.fail(failure, cx);
                }
            }
            // This session has no cursors, and its consumers have neither credit nor a timeout.
            QueueNotification::Removed { .. }
            | QueueNotification::Cursor { .. }
            | QueueNotification::Browsed { .. }
            | QueueNotification::TimedOut { .. }
            | QueueNotification::Activity { .. } => {}
        }
    }

    fn handle_control_event(&mut self, event: ControlEvent, cx: &mut StepContext<'_>) {
        match event {
            ControlEvent::Changed { token, result } => self.handle_change_result(token, result, cx),
            ControlEvent::Verified { verdict } => self.password_checked(verdict, cx),
            ControlEvent::Expired => {
                let text = "credential expired";
                // CONNACK cannot have the reason code of DISCONNECT.
                let reason = match self.phase {
                    SessionPhase::Running => ReasonCode::MaximumConnectTime,
                    _ => ReasonCode::NotAuthorized,
                };
                self.fail(ConnectionFailure::new(reason, text), cx);
            }
            ControlEvent::Unblocked => {
                if let Some(connection) = self.client.connection_mut() {
                    connection.unblock();
                }
            }
            ControlEvent::Blocked(alarm) => {
                if let Some(connection) = self.client.connection_mut() {
                    connection.is_alarmed = alarm.is_some();
                }
            }
            // Before CONNECT the protocol version is unknown, so no reason can be sent.
            ControlEvent::Close { .. } | ControlEvent::Shutdown
                if self.phase == SessionPhase::Connecting =>
            {
                self.close_silently("ended by the node", cx);
            }
            ControlEvent::Shed { text, can_hear }
                if can_hear && self.phase != SessionPhase::Connecting =>
            {
                self.fail(ConnectionFailure::new(ReasonCode::QuotaExceeded, text), cx);
            }
            ControlEvent::Shed { text, .. } => self.close_silently(&text, cx),
            ControlEvent::Close { text } => {
                let reason = match self.phase {
                    SessionPhase::Running => ReasonCode::AdministrativeAction,
                    _ => ReasonCode::ServerUnavailable,
                };
                self.fail(ConnectionFailure::new(reason, text), cx);
            }
            ControlEvent::Shutdown => {
                let text = "the node stops";
                // CONNACK cannot have the reason code of DISCONNECT (section 3.2.2.2).
                let reason = match self.phase {
                    SessionPhase::Running => ReasonCode::ServerShuttingDown,
                    _ => ReasonCode::ServerUnavailable,
                };
                self.fail(ConnectionFailure::new(reason, text), cx);
            }
        }
    }

    /// Handles the result of a metadata change.
    fn handle_change_result(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) {
        if token == SYNC {
            // On an error, continue with what this node knows.
            if self.phase == SessionPhase::Learning {
                if let (Ok(_), Some(connection)) = (result, self.client.connection_mut()) {
                    connection.rare.applied_at_connect = cx.broker.tree().applied();
                }
                self.claim(cx);
            }
            return;
        }
        if !matches!(token, DELETE_SESSION_QUEUE | DECLARE_SESSION_QUEUE) {
            return self.with_connection(cx, |connection, cx| {
                let retained = connection.handle_retained(token, result.is_ok(), cx);
                retained.unwrap_or_else(|| connection.handle_change_result(token, result, cx))
            });
        }
        let Some(connection) = self.client.connection_mut() else {
            return;
        };
        if self.phase != SessionPhase::Opening {
            return;
        }
        match result {
            Ok(ChangeResult::Queue { record, .. }) => {
                connection.queue_declared(record.id, cx);
                self.start_session(cx);
            }
            Ok(_) if connection.declare_queue(cx) => {}
            Ok(_) => self.start_session(cx),
            // The session is then lost with the process, unless its first subscription creates the
            // queue.
            Err(refused) if token == DECLARE_SESSION_QUEUE => {
                let client = connection.client_id(cx);
                tracing::warn!(client, why = %refused, "a session is kept in memory only");
                self.start_session(cx);
            }
            Err(refused) => {
                let text = refused.to_string();
                self.fail(
                    ConnectionFailure::new(ReasonCode::ServerUnavailable, text),
                    cx,
                );
            }
        }
    }

    /// Ends a step: sends the settlements of the step to the session's queue in one request.
    fn end_step(&mut self, cx: &mut StepContext<'_>) -> SessionState {
        if let Some(connection) = self.client.connection_mut() {
            connection.flush_settled(cx);
        }
        cx.flush_counters(self.protocol());
        self.session_state()
    }

    fn with_connection(
        &mut self,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(&mut ClientConnection, &mut StepContext<'_>) -> PacketResult,
    ) {
        if self.phase != SessionPhase::Running {
            return;
        }
        let outcome = self
            .client
            .connection_mut()
            .map(|connection| step(connection, cx));
        if let Some(Err(failure)) = outcome {
            self.fail(failure, cx);
        }
    }

    fn handle_timer(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        let running = self.phase == SessionPhase::Running;
        let late = !running && self.since.time() <= now;
        if late && matches!(self.phase, SessionPhase::Learning | SessionPhase::Opening) {
            let text = match self.phase {
                SessionPhase::Learning => "the cluster does not answer",
                _ => "the session's queue does not answer",
            };
            return self.fail(
                ConnectionFailure::new(ReasonCode::ServerUnavailable, text),
                cx,
            );
        }
        if late {
            return self.close_silently("no CONNECT in time", cx);
        }
        // A paused connection is not read, so it must not count as silent.
        if running && (self.is_paused() || cx.broker.is_throttled()) {
            self.since = CoarseTime::of(now);
        }
        // [MQTT-3.1.2-22]
        if self.keep_alive_deadline().is_some_and(|at| at <= now) {
            let text = "nothing was heard for one and a half times the keep alive";
            self.fail(
                ConnectionFailure::new(ReasonCode::KeepAliveTimeout, text),
                cx,
            );
        }
    }

    /// The time at which the keep alive expires.
    fn keep_alive_deadline(&self) -> Option<Time> {
        let connection = self
            .client
            .connection()
            .filter(|connection| connection.keep_alive > 0)?;
        let patience = Duration::from_millis(1500) * connection.keep_alive.into();
        (self.phase == SessionPhase::Running).then(|| self.since.time() + patience)
    }
}

/// Number of retained messages waiting for the metadata group above which the client is not read.
const MAX_PENDING_RETAINS: u16 = 64;

fn unexpected(what: &str) -> ConnectionFailure {
    ConnectionFailure::new(ReasonCode::ProtocolError, format!("{what} came"))
}

impl Session for MqttSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        if self.phase == SessionPhase::Running {
            self.since = CoarseTime::of(broker.now());
        }
        let cx = &mut StepContext::new(broker, out);
        self.process_input(input, cx);
        self.end_step(cx)
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        let cx = &mut StepContext::new(broker, out);
        match self.phase {
            SessionPhase::Ended => forward_event(&session_event, cx),
            _ => self.handle_event(session_event, cx),
        }
        self.end_step(cx)
    }

    fn service_event(
        &mut self,
        event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        let cx = &mut StepContext::new(broker, out);
        let output = event.downcast_mut::<Option<RouterOutput>>();
        debug_assert!(output.is_some(), "the event is an output of the router");
        if self.phase != SessionPhase::Ended
            && let Some(output) = output.and_then(Option::take)
        {
            self.handle_router_output(output, cx);
        }
        self.end_step(cx)
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        if self.phase != SessionPhase::Ended {
            let cx = &mut StepContext::new(broker, out);
            self.handle_timer(cx);
            cx.flush_counters(self.protocol());
        }
        if let Some(connection) = self.client.connection_mut() {
            connection.free_unused();
        }
        self.session_state()
    }

    fn wake_at(&self) -> Option<Time> {
        match self.phase {
            SessionPhase::Ended => None,
            SessionPhase::Running => self.keep_alive_deadline(),
            _ => Some(self.since.time()),
        }
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        let out = &mut Outbox::default();
        let cx = &mut StepContext::new(broker, out);
        self.release_unknown_hold(cx);
        self.leave(false, cx);
        cx.flush_counters(self.protocol());
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        let cx = &mut StepContext::new(broker, out);
        self.with_connection(cx, |connection, cx| {
            connection.is_slow = !cx.out.is_empty();
            connection.unread = if connection.is_slow {
                connection.unread
            } else {
                0
            };
            connection.send_waiting(cx);
            Ok(())
        });
        self.end_step(cx)
    }

    fn info(&self, services: &ServiceStates) -> SessionInfo {
        let connection = self.client.connection();
        let subscriber = connection.and_then(|connection| connection.subscriber.to_option());
        let shard: Option<&MqttShard> = services.get();
        let held = subscriber.and_then(|subscriber| shard?.router.client_id(subscriber));
        let claimed = connection.and_then(|connection| connection.rare.client_id.as_deref());
        let name = held.or(claimed);
        SessionInfo {
            protocol: self.protocol(),
            user: connection.map_or_else(String::new, |connection| {
                connection.account.user.to_string()
            }),
            vhost: connection.map_or_else(String::new, |connection| {
                connection.account.vhost.to_string()
            }),
            client_name: name.unwrap_or_default().to_owned(),
            channels: 0,
        }
    }

    fn held(&self) -> HeldMemory {
        let connection = self.client.connection();
        HeldMemory {
            is_authenticated: !matches!(
                self.phase,
                SessionPhase::Connecting | SessionPhase::Verifying
            ),
            unread: connection.map_or(0, |connection| connection.state.held()),
            ..HeldMemory::default()
        }
    }

    fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        if let Some(connection) = self.client.connection() {
            connection.state.visit_messages(visit);
        }
    }

    fn details(&self) -> SessionDetails {
        let blocked = self
            .client
            .connection()
            .is_some_and(|l| l.is_alarmed && l.has_published);
        SessionDetails {
            state: match self.phase {
                SessionPhase::Running if blocked => "blocked",
                SessionPhase::Running if self.is_paused() => "flow",
                SessionPhase::Running => "running",
                SessionPhase::Ended => "closing",
                _ => "starting",
            },
            heartbeat_s: self
                .client
                .connection()
                .map_or(0, |connection| connection.keep_alive),
            ..SessionDetails::default()
        }
    }
}
