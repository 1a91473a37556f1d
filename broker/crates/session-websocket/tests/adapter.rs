//! WebSocket around an inner session whose frames are lines: the input of the session and the
//! output to the client.
#![forbid(unsafe_code)]

use bytes::{Bytes, BytesMut};
use env::{NodeId, Time, WallTime};
use metadata::{Change, QueueId, SessionId, Tree};
use queue::RequestBody;
use session::{
    Broker, ControlEvent, FlowState, Outbox, PublishTag, RequestSeq, Session, SessionEvent,
    SessionInfo, SessionState,
};
use session_websocket::{WebSocketSession, WebSocketSettings};
use std::any::Any;
use std::sync::Arc;

const REQUEST: &[u8] = b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// Echoes each line. "pause" pauses until [`ControlEvent::Unblocked`], "end" ends the session,
/// "large" returns a large reply.
#[derive(Default)]
struct Lines {
    paused: bool,
    over: bool,
    gone: bool,
}

impl Lines {
    fn session_state(&self) -> SessionState {
        match (self.over, self.paused) {
            (true, _) => SessionState::Closing,
            (_, true) => SessionState::Paused,
            _ => SessionState::Open,
        }
    }
}

const LARGE: usize = 100_000;

impl Session for Lines {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        _: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        while let (Some(end), false, false) = (
            input.iter().position(|b| *b == b'\n'),
            self.paused,
            self.over,
        ) {
            let line = input.split_to(end + 1);
            match &line[..] {
                b"pause\n" => self.paused = true,
                b"end\n" => self.over = true,
                b"large\n" => out.push(Bytes::from(vec![b'L'; LARGE])),
                line => out.tail().extend_from_slice(line),
            }
        }
        self.session_state()
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        _: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        match session_event {
            SessionEvent::Control(ControlEvent::Unblocked) => self.paused = false,
            SessionEvent::Control(ControlEvent::Shutdown) => {
                self.over = true;
                out.tail().extend_from_slice(b"goodbye\n");
            }
            _ => {}
        }
        self.session_state()
    }

    fn service_event(
        &mut self,
        event: &mut dyn Any,
        _: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        let line = event.downcast_mut::<Option<&'static str>>();
        let line = line.and_then(Option::take).expect("an event");
        out.tail().extend_from_slice(line.as_bytes());
        self.session_state()
    }

    fn tick(&mut self, _: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        out.tail().extend_from_slice(b"tick\n");
        self.session_state()
    }

    fn wake_at(&self) -> Option<Time> {
        None
    }

    fn gone(&mut self, _: &mut dyn Broker) {
        self.gone = true;
    }

    fn drained(&mut self, _: &mut dyn Broker, _: &mut Outbox) -> SessionState {
        self.session_state()
    }

    fn info(&self, _: &session::ServiceStates) -> SessionInfo {
        SessionInfo {
            protocol: "mqtt50",
            ..SessionInfo::default()
        }
    }
}

/// A node that does nothing.
struct IdleBroker(Tree);

impl Broker for IdleBroker {
    fn id(&self) -> SessionId {
        SessionId {
            node: NodeId(1),
            incarnation: env::Incarnation(1),
            number: 1,
        }
    }
    fn now(&self) -> Time {
        Time::ZERO
    }
    fn wall(&self) -> WallTime {
        WallTime::default()
    }
    fn random(&mut self) -> u64 {
        0
    }
    fn tree(&self) -> &Tree {
        &self.0
    }
    fn change(&mut self, _: u64, _: Change) {}
    fn place(&mut self, _: metadata::QueueType, _: u32) -> Vec<NodeId> {
        Vec::new()
    }
    fn publish_batch(
        &mut self,
        _: QueueId,
        _: PublishTag,
        _: queue::cursor::StreamBatch,
    ) -> FlowState {
        unreachable!("no client of this protocol publishes batches")
    }
    fn browse(&mut self, _: QueueId, _: &queue::BrowseRequest, _: Option<NodeId>) -> u64 {
        unreachable!("no client of this protocol browses")
    }
    fn watch(&mut self, _: QueueId) {
        unreachable!("no client of this protocol browses")
    }
    fn cursor(&mut self, _: QueueId, _: queue::cursor::CursorSend) {
        unreachable!("no client of this protocol has cursors")
    }
    fn leader_of(&self, _: &metadata::QueueRecord) -> Option<NodeId> {
        None
    }
    fn is_reachable(&self, _: NodeId) -> bool {
        true
    }
    fn publish(&mut self, _: QueueId, _: PublishTag, _: message::Message) -> FlowState {
        FlowState::Steady
    }
    fn request(&mut self, _: QueueId, _: RequestBody) -> RequestSeq {
        RequestSeq(0)
    }
    fn publishers_blocked(&self) -> Option<&'static str> {
        None
    }
    fn draining(&self) -> bool {
        false
    }
    fn admit(&mut self, _: &str) -> Result<(), u64> {
        Ok(())
    }
    fn open_channel(&mut self) -> Result<(), session::ChannelLimit> {
        Ok(())
    }
    fn close_channel(&mut self) {}
}

/// A connection with the driver's buffers.
struct Connection {
    session: WebSocketSession,
    input: BytesMut,
    out: Outbox,
    broker: IdleBroker,
    session_state: SessionState,
}

impl Connection {
    fn new() -> Connection {
        let settings = Arc::new(WebSocketSettings {
            max_frame: 1_000_000,
            ..WebSocketSettings::new(WebSocketSettings::MQTT)
        });
        let peer = "127.0.0.1:1".parse().expect("an address");
        Connection {
            session: WebSocketSession::new(Box::new(Lines::default()), settings, peer),
            input: BytesMut::new(),
            out: Outbox::default(),
            broker: IdleBroker(Tree::default()),
            session_state: SessionState::Open,
        }
    }

    fn open() -> Connection {
        let mut connection = Connection::new();
        connection.receive(REQUEST);
        assert!(connection.take_output().starts_with(b"HTTP/1.1 101 "));
        connection
    }

    fn receive(&mut self, bytes: &[u8]) -> SessionState {
        self.input.extend_from_slice(bytes);
        let (broker, out) = (&mut self.broker, &mut self.out);
        self.session_state = self.session.receive(&mut self.input, broker, out);
        self.session_state
    }

    fn session_event(&mut self, session_event: SessionEvent) -> SessionState {
        let (broker, out) = (&mut self.broker, &mut self.out);
        self.session.session_event(session_event, broker, out)
    }

    fn service_event(&mut self, line: &'static str) -> SessionState {
        let (broker, out) = (&mut self.broker, &mut self.out);
        self.session.service_event(&mut Some(line), broker, out)
    }

    fn take_output(&mut self) -> Vec<u8> {
        let all: Vec<u8> = self.out.pieces().iter().flatten().copied().collect();
        self.out.consume(all.len());
        all
    }
}

/// A client frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [9, 8, 7, 6];
    let mut out = vec![first, 0x80 | 126];
    out.extend((payload.len() as u16).to_be_bytes());
    if payload.len() < 126 {
        out.truncate(1);
        out.push(0x80 | payload.len() as u8);
    }
    out.extend(key);
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
    out
}

/// The server's close frame with this code.
fn close_frame(code: u16) -> Vec<u8> {
    let code = code.to_be_bytes();
    vec![0x88, 2, code[0], code[1]]
}

#[test]
fn output_of_a_step_is_one_frame() {
    let mut one = Connection::open();
    assert_eq!(one.receive(&frame(0x82, b"a\nb\n")), SessionState::Open);
    assert_eq!(one.take_output(), b"\x82\x04a\nb\n");
    one.receive(&frame(0x82, b"large\n"));
    one.receive(&frame(0x82, b"c\n"));
    let wrote = one.take_output();
    let header = [0x82, 127, 0, 0, 0, 0, 0, 1, 0x86, 0xA0];
    assert_eq!(wrote[..10], header);
    assert_eq!(wrote[10..10 + LARGE], [b'L'; LARGE]);
    assert_eq!(wrote[10 + LARGE..], *b"\x82\x02c\n");
    assert_eq!(
        one.session
            .info(&session::ServiceStates::default())
            .protocol,
        "web_mqtt50"
    );
    assert!(one.input.is_empty());
}

#[test]
fn input_may_be_split_anywhere() {
    // 3.1.1: [MQTT-6.0.0-2]
    // [MQTT-6.0.0-2]: frames are not the bounds of packets.
    let mut one = Connection::new();
    let wire = [
        REQUEST,
        &frame(0x02, b"fir"),
        &frame(0x89, b"ping"),
        &frame(0x80, b"st\nsec"),
        &frame(0x82, b"ond"),
        &frame(0x82, b"\nthi"),
        &frame(0x8A, b""),
        &frame(0x82, b"rd\n"),
    ]
    .concat();
    let mut wrote = Vec::new();
    for byte in wire {
        assert_eq!(one.receive(&[byte]), SessionState::Open);
        wrote.extend(one.take_output());
    }
    let end = wrote
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("101");
    let frames = b"\x8A\x04ping\x82\x06first\n\x82\x07second\n\x82\x06third\n";
    assert_eq!(wrote[end + 4..], *frames);
    assert!(one.input.is_empty());
}

#[test]
fn output_of_a_service_event_is_one_frame() {
    let mut one = Connection::open();
    assert_eq!(one.service_event("event\n"), SessionState::Open);
    assert_eq!(one.take_output(), b"\x82\x06event\n");
}

#[test]
fn paused_session_continues_with_buffered_input() {
    let mut one = Connection::open();
    let wire = [
        frame(0x82, b"pause\na\nb"),
        frame(0x82, b"\n")[..4].to_vec(),
    ]
    .concat();
    assert_eq!(one.receive(&wire), SessionState::Paused);
    assert_eq!(one.take_output(), b"");
    assert_eq!(
        one.session_event(ControlEvent::Unblocked.into()),
        SessionState::Open
    );
    assert_eq!(one.receive(&frame(0x82, b"\n")[4..]), SessionState::Open);
    assert_eq!(one.take_output(), b"\x82\x04a\nb\n");
    assert!(one.input.is_empty());
}

#[test]
fn end_of_the_session_closes_the_connection() {
    let mut one = Connection::open();
    let wire = [frame(0x82, b"a\nend\n"), frame(0x82, b"b\n")].concat();
    assert_eq!(one.receive(&wire), SessionState::Closing);
    assert_eq!(
        one.take_output(),
        [b"\x82\x02a\n", &close_frame(1000)[..]].concat()
    );
    assert_eq!(one.receive(&frame(0x82, b"c\n")), SessionState::Closing);
    assert_eq!(
        one.session_event(ControlEvent::Shutdown.into()),
        SessionState::Closing
    );
    assert_eq!(one.take_output(), b"");
}

#[test]
fn close_frame_is_answered_with_its_code() {
    let mut one = Connection::open();
    let wire = [frame(0x82, b"last\n"), frame(0x88, &[0x03, 0xE9])].concat();
    assert_eq!(one.receive(&wire), SessionState::Closing);
    assert_eq!(
        one.take_output(),
        [b"\x82\x05last\n", &close_frame(1001)[..]].concat()
    );
}

#[test]
fn shutdown_closes_with_going_away() {
    let mut one = Connection::open();
    assert_eq!(
        one.session_event(ControlEvent::Shutdown.into()),
        SessionState::Closing
    );
    let wrote = one.take_output();
    assert_eq!(
        wrote,
        [b"\x82\x08goodbye\n", &close_frame(1001)[..]].concat()
    );
}

#[test]
fn violations_close_the_connection_with_a_code() {
    // [MQTT-6.0.0-1] and violations of RFC 6455.
    for (wire, code) in [
        (frame(0x81, b"text"), 1003),
        (vec![0x82, 0x01, b'x'], 1002),
        (frame(0xC2, b"x"), 1002),
        (
            vec![0x82, 0xFF, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0],
            1009,
        ),
    ] {
        let mut one = Connection::open();
        assert_eq!(one.receive(&wire), SessionState::Closing);
        assert_eq!(one.take_output(), close_frame(code));
    }
}

#[test]
fn requests_without_upgrade_are_refused() {
    let mut one = Connection::new();
    assert_eq!(
        one.receive(b"GET / HTTP/1.1\r\nHost: h\r\n"),
        SessionState::Open
    );
    assert_eq!(one.receive(b"\r\n"), SessionState::Closing);
    assert!(one.take_output().starts_with(b"HTTP/1.1 404 "));
    let mut one = Connection::new();
    assert_eq!(
        one.receive(b"\x10\x0C\x00\x04MQTT\x04\x02"),
        SessionState::Closing
    );
    assert!(one.take_output().starts_with(b"HTTP/1.1 400 "));
    // Before the handshake the session cannot send output.
    let mut one = Connection::new();
    assert_eq!(
        one.session_event(ControlEvent::Shutdown.into()),
        SessionState::Closing
    );
    assert_eq!(one.take_output(), b"");
}
