//! The connection: packets in, notices in, time; and how they are told apart.

use crate::client_connection::{ClientConnection, LEARNING, MAKING, OPENING, StepContext};
use crate::settings::{SessionConfig, Settings};
use crate::unanswered_publishes::{is_deleted, pass_on};
use auth::TlsPeer;
use bytes::{Buf, BytesMut};
use codec_mqtt::{
    DecodeError, Frame, Packet, PacketKind, Reason, Version, encode_pingresp, is_bridge,
    parse_frame,
};
use env::Time;
use env::planted::{self, Bug};
use message::Message;
use metadata::{ChangeError, ChangeResult};
use session::{
    Broker, Held, Outbox, Session, SessionDetails, SessionEvent, SessionInfo, SessionState,
};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// CONNECT is awaited.
    Connecting,
    /// The client's password is being checked.
    Verifying,
    /// The log is asked what was done before the client connected.
    Learning,
    /// Another connection has the client id and was told to leave.
    Claiming,
    /// The session's queue has to answer.
    Opening,
    Running,
    Ended,
}

/// Who is at the other end.
#[derive(Debug)]
pub(crate) enum ClientPhase {
    /// CONNECT has not come.
    Unknown(Box<HandshakeState>),
    Known(ClientConnection),
    Gone,
}

/// What is needed to know it.
#[derive(Debug)]
pub(crate) struct HandshakeState {
    pub settings: Arc<Settings>,
    pub peer_is_loopback: bool,
    /// Where it may tell the user.
    pub tls: Option<Arc<TlsPeer>>,
    /// Bytes of a packet that the client takes, if it has said so: it may be refused before it is known.
    pub packet: u32,
}

impl ClientPhase {
    pub fn known(&self) -> Option<&ClientConnection> {
        match self {
            ClientPhase::Known(link) => Some(link),
            _ => None,
        }
    }

    /// Bytes of a packet that it takes.
    pub fn max_packet(&self) -> usize {
        match self {
            ClientPhase::Known(link) => link.max_packet(),
            ClientPhase::Unknown(unknown) => usize::try_from(unknown.packet).unwrap_or(usize::MAX),
            ClientPhase::Gone => usize::MAX,
        }
    }

    pub fn known_mut(&mut self) -> Option<&mut ClientConnection> {
        match self {
            ClientPhase::Known(link) => Some(link),
            _ => None,
        }
    }
}

/// A time in units of 67 ms, of which nine years have fewer than 2^32: wake-ups are no more exact (`shard::wake_times`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoarseTime(u32);

impl CoarseTime {
    const BITS: u32 = 26;

    /// The first that is not before `time`: nobody is found silent too early.
    pub fn of(time: Time) -> CoarseTime {
        CoarseTime(u32::try_from(time.0.div_ceil(1 << Self::BITS)).unwrap_or(u32::MAX))
    }

    pub fn time(self) -> Time {
        Time(u64::from(self.0) << Self::BITS)
    }
}

/// An MQTT connection as a state machine. In one piece, and small while it is idle: there may be millions.
#[derive(Debug)]
pub struct MqttSession {
    pub(crate) phase: Phase,
    pub(crate) version: Version,
    /// A large CONNECT is on its way ([`Broker::hold_unknown`]).
    holds: bool,
    /// While it runs: when bytes came last. Before: when CONNECT must have been accepted.
    pub(crate) since: CoarseTime,
    pub(crate) client: ClientPhase,
}

// The allocator has this size.
const _: () = assert!(size_of::<MqttSession>() <= 80);

/// A packet could not go on: the connection ends for this reason.
pub(crate) struct Failure {
    pub reason: Reason,
    pub text: String,
}

impl Failure {
    pub fn new(reason: Reason, text: impl Into<String>) -> Failure {
        Failure {
            reason,
            text: text.into(),
        }
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Failure {
        Failure::new(error.reason(), error.to_string())
    }
}

pub(crate) type PacketResult = Result<(), Failure>;

impl MqttSession {
    /// For a connection accepted `now`.
    pub fn new(config: SessionConfig, now: Time) -> MqttSession {
        let login = config.settings.limits.login;
        MqttSession {
            phase: Phase::Connecting,
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

    /// As in metrics' labels.
    fn protocol(&self) -> &'static str {
        match self.version {
            Version::V31 => "mqtt310",
            Version::V311 => "mqtt311",
            Version::V5 => "mqtt50",
        }
    }

    fn session_state(&self) -> SessionState {
        match self.phase {
            Phase::Ended => SessionState::Closing,
            _ if self.is_paused() => SessionState::Paused,
            _ => SessionState::Open,
        }
    }

    /// Nothing is read meanwhile; what has been read stays where it is.
    fn is_paused(&self) -> bool {
        match (self.phase, self.client.known()) {
            (Phase::Verifying | Phase::Learning | Phase::Claiming | Phase::Opening, _) => true,
            (Phase::Running, Some(link)) => {
                link.behind
                    || link.extras.pending.is_some()
                    || link.retaining >= RETAINING
                    || link.alarm && link.published
                    || link.unconfirmed.len() >= link.settings.limits.unconfirmed
            }
            _ => false,
        }
    }

    fn read(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        let (mut at, mut packets) = (0, 0);
        while self.phase != Phase::Ended && !self.is_paused() {
            let max = match &self.client {
                ClientPhase::Known(link) if self.phase == Phase::Running => {
                    link.settings.limits.packet
                }
                ClientPhase::Known(link) => link.settings.limits.packet_unauthenticated,
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
                Err(error) if self.phase == Phase::Connecting => {
                    self.end_silently(&error.to_string(), cx);
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
        if self.phase != Phase::Connecting {
            self.let_go(cx);
        }
        match self.phase {
            Phase::Ended => input.clear(),
            _ => input.advance(at),
        }
    }

    /// Of the packet that comes there are so many bytes. Clients that nobody knows must not make the node hold much.
    fn wait_for_rest(&mut self, bytes: usize, cx: &mut StepContext<'_>) {
        let large = match &self.client {
            ClientPhase::Unknown(unknown) => bytes > unknown.settings.limits.connect,
            _ => false,
        };
        if large && !self.holds {
            self.holds = cx.broker.hold_unknown(true);
            if !self.holds {
                self.end_silently("too many clients send a large CONNECT at a time", cx);
            }
        }
    }

    fn let_go(&mut self, cx: &mut StepContext<'_>) {
        if std::mem::take(&mut self.holds) {
            cx.broker.hold_unknown(false);
        }
    }

    fn frame(&mut self, frame: &Frame<'_>, cx: &mut StepContext<'_>) {
        if self.phase == Phase::Connecting {
            return self.first_packet(frame, cx);
        }
        // What is inside does not matter.
        if frame.kind.is_servers() {
            return self.fail(unexpected("a packet that only servers send"), cx);
        }
        if frame.kind == PacketKind::Auth && self.version.is_5() {
            // [MQTT-4.12.0-7]: no method was agreed.
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

    fn first_packet(&mut self, frame: &Frame<'_>, cx: &mut StepContext<'_>) {
        // [MQTT-3.1.0-1]
        if frame.kind != PacketKind::Connect {
            return self.end_silently("the first packet is not CONNECT", cx);
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
        let Some(link) = self.client.known_mut() else {
            return Ok(());
        };
        match packet {
            Packet::Publish(publish) => link.publish(&publish, cx),
            Packet::Ack(ack) => link.acknowledged(&ack, cx),
            Packet::Subscribe(subscribe) => link.subscribe(&subscribe, cx),
            Packet::Unsubscribe(unsubscribe) => link.unsubscribe(&unsubscribe, cx),
            Packet::PingReq => {
                encode_pingresp(cx.packet());
                // Whoever pings has nothing else to do.
                link.forget_completed(cx);
                link.rest();
                Ok(())
            }
            Packet::Disconnect(disconnect) => self.disconnected(&disconnect, cx),
            // [MQTT-3.1.0-2]
            Packet::Connect(_) => Err(unexpected("a second CONNECT")),
            // See [`MqttSession::frame`].
            Packet::Auth(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp => Ok(()),
        }
    }

    fn take_session_event(&mut self, session_event: SessionEvent, cx: &mut StepContext<'_>) {
        match session_event {
            SessionEvent::Topic(delivery) => {
                self.with_link(cx, |link, cx| link.deliver(delivery, cx))
            }
            SessionEvent::Published { tag, .. } | SessionEvent::Heard { tag } => {
                self.with_link(cx, |link, cx| link.confirmed(tag.tag, true, cx));
            }
            SessionEvent::NotPublished { queue, tag, why } => {
                let deleted = is_deleted(queue, why, cx.broker.tree());
                self.with_link(cx, |link, cx| link.confirmed(tag.tag, deleted, cx));
            }
            SessionEvent::AnsweredLate {
                publisher,
                tag,
                taken,
            } => {
                let link = self.client.known_mut();
                let outcome = link.map(|link| link.answered_late((publisher, tag), taken, cx));
                if let Some(Err(failure)) = outcome {
                    self.fail(failure, cx);
                }
            }
            SessionEvent::Known => self.with_link(cx, ClientConnection::known),
            SessionEvent::Missed => {
                self.forgo_will(cx);
                let text =
                    "messages are lost that other nodes had while they could not reach this one";
                self.fail(Failure::new(Reason::UnspecifiedError, text), cx);
            }
            SessionEvent::TellWill => {
                if let Some(link) = self.client.known() {
                    link.tell_will(cx);
                }
            }
            SessionEvent::TakenOver if planted::is(Bug::TakeoverIgnored) => {}
            SessionEvent::TakenOver => self.taken_over(cx),
            SessionEvent::ClaimAgain if self.phase == Phase::Claiming => self.claim(cx),
            SessionEvent::Verified { right } => self.verified(right, cx),
            SessionEvent::Relieved => {
                if let Some(link) = self.client.known_mut() {
                    link.catch_up();
                }
            }
            SessionEvent::Blocked(alarm) => {
                if let Some(link) = self.client.known_mut() {
                    link.alarm = alarm.is_some();
                }
            }
            // Before CONNECT there is nobody to be told.
            SessionEvent::Close { .. } | SessionEvent::Shutdown
                if self.phase == Phase::Connecting =>
            {
                self.end_silently("ended by the node", cx);
            }
            SessionEvent::Shed { text, can_hear }
                if can_hear && self.phase != Phase::Connecting =>
            {
                self.fail(Failure::new(Reason::QuotaExceeded, text), cx);
            }
            SessionEvent::Shed { text, .. } => self.end_silently(&text, cx),
            SessionEvent::Close { text } => {
                self.fail(Failure::new(Reason::AdministrativeAction, text), cx);
            }
            SessionEvent::Shutdown => {
                let text = "the node stops";
                self.fail(Failure::new(Reason::ServerShuttingDown, text), cx);
            }
            SessionEvent::Changed { token, result } => self.changed(token, result, cx),
            SessionEvent::Answer { queue, seq, answer } => {
                let link = self.client.known_mut();
                match link.map_or(Ok(false), |link| link.answered(queue, seq, answer, cx)) {
                    Ok(true) if self.phase == Phase::Opening => self.run(cx),
                    Ok(_) => {}
                    Err(failure) => self.fail(failure, cx),
                }
            }
            SessionEvent::Deliver {
                queue, deliveries, ..
            } => {
                if let Some(link) = self.client.known_mut() {
                    link.take(queue, deliveries, cx);
                }
            }
            SessionEvent::Cancelled { queue, .. } => {
                let link = self.client.known_mut();
                if let Some(Err(failure)) = link.map(|link| link.queue_lost(queue, cx)) {
                    self.fail(failure, cx);
                }
            }
            SessionEvent::ClaimAgain => {}
        }
    }

    /// The metadata group's word.
    fn changed(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) {
        if token == LEARNING {
            // Or nobody answered: what this node knows has to do.
            if self.phase == Phase::Learning {
                if let (Ok(_), Some(link)) = (result, self.client.known_mut()) {
                    link.extras.learned = cx.broker.tree().applied();
                }
                self.claim(cx);
            }
            return;
        }
        if !matches!(token, OPENING | MAKING) {
            return self.with_link(cx, |link, cx| {
                let retained = link.retained(token, result.is_ok(), cx);
                retained.unwrap_or_else(|| link.changed(token, result, cx))
            });
        }
        let Some(link) = self.client.known_mut() else {
            return;
        };
        if self.phase != Phase::Opening {
            return;
        }
        match result {
            Ok(ChangeResult::Queue { record, .. }) => {
                link.queue_made(record.id, cx);
                self.run(cx);
            }
            Ok(_) if link.make_queue(cx) => {}
            Ok(_) => self.run(cx),
            // The session ends with the process then, or has its queue with the first subscription.
            Err(refused) if token == MAKING => {
                let client = link.client_id(cx);
                tracing::warn!(client, why = %refused, "a session is kept in memory only");
                self.run(cx);
            }
            Err(refused) => {
                let text = refused.to_string();
                self.fail(Failure::new(Reason::ServerUnavailable, text), cx);
            }
        }
    }

    /// The end of a step: what came together goes to the session's queue together.
    fn end_step(&mut self, cx: &mut StepContext<'_>) -> SessionState {
        if let Some(link) = self.client.known_mut() {
            link.flush_settled(cx);
        }
        cx.flush_counters(self.protocol());
        self.session_state()
    }

    fn with_link(
        &mut self,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(&mut ClientConnection, &mut StepContext<'_>) -> PacketResult,
    ) {
        if self.phase != Phase::Running {
            return;
        }
        let outcome = self.client.known_mut().map(|link| step(link, cx));
        if let Some(Err(failure)) = outcome {
            self.fail(failure, cx);
        }
    }

    fn on_time(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        let running = self.phase == Phase::Running;
        let late = !running && self.since.time() <= now;
        if late && matches!(self.phase, Phase::Learning | Phase::Opening) {
            let text = match self.phase {
                Phase::Learning => "the cluster does not answer",
                _ => "the session's queue does not answer",
            };
            return self.fail(Failure::new(Reason::ServerUnavailable, text), cx);
        }
        if late {
            return self.end_silently("no CONNECT in time", cx);
        }
        // A connection that we do not read cannot be heard.
        if running && self.is_paused() {
            self.since = CoarseTime::of(now);
        }
        // [MQTT-3.1.2-22]
        if self.silent_at().is_some_and(|at| at <= now) {
            let text = "nothing was heard for one and a half times the keep alive";
            self.fail(Failure::new(Reason::KeepAliveTimeout, text), cx);
        }
    }

    /// When the client has been silent for too long.
    fn silent_at(&self) -> Option<Time> {
        let link = self.client.known().filter(|link| link.keep_alive > 0)?;
        let patience = Duration::from_millis(1500) * link.keep_alive.into();
        (self.phase == Phase::Running).then(|| self.since.time() + patience)
    }
}

/// Retained messages of a client that are on their way to the cluster, above which it is not read.
const RETAINING: u16 = 64;

fn unexpected(what: &str) -> Failure {
    Failure::new(Reason::ProtocolError, format!("{what} came"))
}

impl Session for MqttSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        if self.phase == Phase::Running {
            self.since = CoarseTime::of(broker.now());
        }
        let cx = &mut StepContext::new(broker, out);
        self.read(input, cx);
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
            Phase::Ended => pass_on(&session_event, cx),
            _ => self.take_session_event(session_event, cx),
        }
        self.end_step(cx)
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        if self.phase != Phase::Ended {
            let cx = &mut StepContext::new(broker, out);
            self.on_time(cx);
            cx.flush_counters(self.protocol());
        }
        if let Some(link) = self.client.known_mut() {
            link.rest();
        }
        self.session_state()
    }

    fn wake_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Ended => None,
            Phase::Running => self.silent_at(),
            _ => Some(self.since.time()),
        }
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        let out = &mut Outbox::default();
        let cx = &mut StepContext::new(broker, out);
        self.let_go(cx);
        self.leave(false, cx);
        cx.flush_counters(self.protocol());
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        let cx = &mut StepContext::new(broker, out);
        self.with_link(cx, |link, cx| {
            link.busy = !cx.out.is_empty();
            link.unread = if link.busy { link.unread } else { 0 };
            link.send_waiting(cx);
            Ok(())
        });
        self.end_step(cx)
    }

    fn info(&self) -> SessionInfo {
        let link = self.client.known();
        let name = link.and_then(|link| link.extras.client_id.as_deref());
        SessionInfo {
            protocol: self.protocol(),
            user: link.map_or_else(String::new, |link| link.account.user.to_string()),
            vhost: link.map_or_else(String::new, |link| link.account.vhost.to_string()),
            client_name: name.unwrap_or_default().to_owned(),
            subscriber: link.and_then(|link| link.subscriber.to_option()),
            channels: 0,
        }
    }

    fn held(&self) -> Held {
        let link = self.client.known();
        Held {
            is_authenticated: !matches!(self.phase, Phase::Connecting | Phase::Verifying),
            unread: link.map_or(0, |link| link.state.held()),
            ..Held::default()
        }
    }

    fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        if let Some(link) = self.client.known() {
            link.state.visit_messages(visit);
        }
    }

    fn details(&self) -> SessionDetails {
        let blocked = self.client.known().is_some_and(|l| l.alarm && l.published);
        SessionDetails {
            state: match self.phase {
                Phase::Running if blocked => "blocked",
                Phase::Running if self.is_paused() => "flow",
                Phase::Running => "running",
                Phase::Ended => "closing",
                _ => "starting",
            },
            heartbeat_s: self.client.known().map_or(0, |link| link.keep_alive),
            ..SessionDetails::default()
        }
    }
}
