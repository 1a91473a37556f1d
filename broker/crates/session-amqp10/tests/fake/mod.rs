//! A client, which is the protocol engine in its client role, in front of the session and an in-memory node.

#[allow(dead_code, reason = "the tests of AMQP 0.9.1 use the rest")]
#[path = "../../../session-amqp091/tests/fake/broker.rs"]
mod broker;

pub use broker::*;

use amqp10::{Cause, ClientSasl, Config, Connection, Event, LinkId, OutgoingDelivery, SessionId};
use auth::TlsPeer;
use bytes::{Bytes, BytesMut};
use codec_amqp10::{
    AmqpError, AnyTarget, Attach, DeliveryState, Encode, Multiple, Outcome, Performative,
    Properties, ReceiverSettleMode, Role, SenderSettleMode, Source, Target, Value,
    encode_data_section,
};
use message::Table;
use metadata::{Change, ChangeResult, QueueId, QueueRecord, QueueType};
use session::{ConnectionInfo, Outbox, ProtocolId, Session, SessionState};
use session_amqp10::{Amqp10, Amqp10Config, Amqp10Session};
use std::collections::VecDeque;
use std::sync::Arc;

/// An event of the client.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Opened,
    Begun,
    Attached(LinkId),
    Message {
        link: LinkId,
        id: u32,
        payload: Vec<u8>,
    },
    /// The outcome of a sent delivery, and the information of an error.
    Outcome(u32, String),
    Drained(LinkId),
    Available(LinkId, u32),
    Detached(Option<String>),
    Ended(Option<String>),
    Closed(Option<String>),
}

pub struct Client {
    pub engine: Connection,
    pub session: Amqp10Session,
    pub broker: FakeBroker,
    pub out: Outbox,
    pub state: SessionState,
    pub seen: VecDeque<Seen>,
    /// The server's answers to attaches, encoded.
    pub attached: Vec<(LinkId, Vec<u8>)>,
    /// Everything that the server has sent.
    pub received: Vec<u8>,
    /// The container id of the server.
    pub server_container: String,
    /// The connection properties of the server.
    pub server_properties: Vec<(String, String)>,
    to_server: BytesMut,
    from_server: BytesMut,
    input: BytesMut,
    /// The client does not read.
    pub is_deaf: bool,
    next_tag: u32,
}

fn condition(error: Option<&AmqpError<'_>>) -> Option<String> {
    error.map(|error| error.condition.symbol().as_str().to_owned())
}

fn cause(cause: &Cause<'_>) -> Option<String> {
    match cause {
        Cause::Peer(error) => condition(error.as_ref()),
        Cause::Fault(fault) => Some(format!("fault: {fault}")),
    }
}

pub fn new_session(config: Amqp10Config, broker: &FakeBroker) -> Amqp10Session {
    session_over(config, broker, None)
}

fn session_over(
    config: Amqp10Config,
    broker: &FakeBroker,
    tls: Option<Arc<TlsPeer>>,
) -> Amqp10Session {
    let connection = ConnectionInfo {
        protocol: ProtocolId(0),
        peer: "127.0.0.1:40000".parse().unwrap(),
        local: "127.0.0.1:5672".parse().unwrap(),
        tls,
    };
    Amqp10::new(config).amqp10_session(&connection, broker.now)
}

pub fn broker() -> FakeBroker {
    let mut broker = FakeBroker::new();
    broker.protocol = "amqp10";
    broker.is_single_node = true;
    broker
}

impl Client {
    pub fn new(config: Amqp10Config, user: &str, password: &str, hostname: Option<&str>) -> Client {
        let sasl = ClientSasl {
            mechanism: "PLAIN".into(),
            initial_response: format!("\0{user}\0{password}").into_bytes().into(),
        };
        Client::over(config, sasl, hostname, None)
    }

    pub fn over(
        config: Amqp10Config,
        sasl: ClientSasl,
        hostname: Option<&str>,
        tls: Option<Arc<TlsPeer>>,
    ) -> Client {
        let broker = broker();
        let client = Config::client("client", hostname, Some(sasl));
        let mut to_server = BytesMut::new();
        Client {
            engine: Connection::new(Arc::new(client), 0, &mut to_server),
            session: session_over(config, &broker, tls),
            broker,
            out: Outbox::default(),
            state: SessionState::Open,
            seen: VecDeque::new(),
            attached: Vec::new(),
            received: Vec::new(),
            server_container: String::new(),
            server_properties: Vec::new(),
            to_server,
            from_server: BytesMut::new(),
            input: BytesMut::new(),
            is_deaf: false,
            next_tag: 0,
        }
    }

    /// An open connection of `guest` with a session.
    pub fn open() -> (Client, SessionId) {
        Client::open_with(Amqp10Config::default(), "guest")
    }

    pub fn open_with(config: Amqp10Config, user: &str) -> (Client, SessionId) {
        let mut client = Client::new(config, user, user, None);
        client.pump();
        client.expect(Seen::Opened);
        let session = client.begin();
        (client, session)
    }

    pub fn begin(&mut self) -> SessionId {
        let session = self.engine.begin_session(&mut self.to_server).unwrap();
        self.pump();
        self.expect(Seen::Begun);
        session
    }

    pub fn expect(&mut self, expected: Seen) {
        assert_eq!(
            self.seen.pop_front(),
            Some(expected),
            "then {:?}",
            self.seen
        );
    }

    /// Expects that the server refuses a link: it attaches, and detaches at once with an error.
    pub fn expect_refused(&mut self, condition: &str) {
        let attached = self.seen.pop_front();
        assert!(matches!(attached, Some(Seen::Attached(_))), "{attached:?}");
        self.expect(Seen::Detached(Some(condition.into())));
    }

    pub fn nothing_seen(&mut self) {
        assert_eq!(self.seen, [], "nothing was expected");
    }

    /// Exchanges bytes and events until nothing more happens.
    pub fn pump(&mut self) {
        loop {
            let sent = self.to_server.split();
            self.input.extend_from_slice(&sent);
            self.serve();
            self.deliver_events();
            if self.is_deaf || (!self.read_output() && self.to_server.is_empty()) {
                return;
            }
        }
    }

    fn serve(&mut self) {
        if self.state == SessionState::Open && !self.input.is_empty() {
            self.state = self
                .session
                .receive(&mut self.input, &mut self.broker, &mut self.out);
        }
    }

    pub fn deliver_events(&mut self) {
        while let Some(event) = self.broker.notices.pop_front() {
            self.state = self
                .session
                .session_event(event, &mut self.broker, &mut self.out);
        }
    }

    /// Returns true if there was output.
    fn read_output(&mut self) -> bool {
        let pieces: Vec<Bytes> = self.out.pieces().iter().cloned().collect();
        for piece in &pieces {
            self.out.consume(piece.len());
            self.from_server.extend_from_slice(piece);
            self.received.extend_from_slice(piece);
        }
        if !pieces.is_empty() {
            self.state = self.session.drained(&mut self.broker, &mut self.out);
            self.deliver_events();
        }
        let bytes = self.from_server.split();
        let mut rest: &[u8] = &bytes;
        while let Some(event) = self.engine.poll(&mut rest, 0, &mut self.to_server) {
            if let Event::LinkAttached { link, attach } = &event {
                let mut encoded = Vec::new();
                attach.encode(&mut encoded);
                self.attached.push((*link, encoded));
            }
            if let Event::Opened { open } = &event {
                self.server_container = open.container_id.to_owned();
                let text = |value: Value<'_>| value.as_text().unwrap_or_default().to_owned();
                let properties = open.properties.into_iter().flatten();
                self.server_properties = properties.map(|(k, v)| (text(k), text(v))).collect();
            }
            see(event, &mut self.seen);
        }
        self.from_server = BytesMut::from(rest);
        self.engine.flush(0, &mut self.to_server);
        !pieces.is_empty()
    }

    /// Sends bytes that the client's engine would not send.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.to_server.extend_from_slice(bytes);
        self.pump();
    }

    pub fn attach(&mut self, session: SessionId, attach: &Attach<'_>) -> LinkId {
        let link = self
            .engine
            .attach(session, attach, Some(0), &mut self.to_server)
            .unwrap();
        self.pump();
        link
    }

    /// A link that publishes to an address.
    pub fn publisher(&mut self, session: SessionId, address: &str) -> LinkId {
        let link = self.try_publisher(session, Some(address));
        self.expect(Seen::Attached(link));
        link
    }

    /// The server's answer to an attach.
    pub fn answer(&self, link: LinkId) -> Attach<'_> {
        let found = self.attached.iter().rfind(|(other, _)| *other == link);
        match Performative::decode(&found.unwrap().1) {
            Ok((Performative::Attach(attach), _)) => attach,
            other => panic!("{other:?}"),
        }
    }

    /// The address of the server's source of a link.
    pub fn source_address(&self, link: LinkId) -> String {
        match self.answer(link).source.unwrap().address {
            Some(Value::String(address)) => address.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    pub fn try_publisher(&mut self, session: SessionId, address: Option<&str>) -> LinkId {
        let name = format!("to {address:?}");
        let attach = Attach {
            source: Some(Source::default()),
            target: Some(AnyTarget::Target(Target {
                address: address.map(Value::String),
                ..Target::default()
            })),
            ..link(&name, Role::Sender)
        };
        self.attach(session, &attach)
    }

    /// A link that consumes from an address, without credit.
    pub fn consumer(&mut self, session: SessionId, address: &str) -> LinkId {
        let link = self.try_consumer(session, address, SenderSettleMode::Mixed);
        self.expect(Seen::Attached(link));
        link
    }

    pub fn try_consumer(
        &mut self,
        session: SessionId,
        address: &str,
        mode: SenderSettleMode,
    ) -> LinkId {
        let name = format!("from {address} {}", self.next_tag);
        self.next_tag += 1;
        let attach = Attach {
            source: Some(Source {
                address: Some(Value::String(address)),
                ..Source::default()
            }),
            target: Some(AnyTarget::Target(Target::default())),
            snd_settle_mode: mode,
            ..link(&name, Role::Receiver)
        };
        self.attach(session, &attach)
    }

    /// Sends a message without waiting.
    pub fn send_message(&mut self, link: LinkId, message: Vec<u8>, settled: bool) -> u32 {
        self.next_tag += 1;
        let delivery = OutgoingDelivery {
            tag: &self.next_tag.to_be_bytes(),
            message_format: 0,
            settled,
            parts: &[message.into()],
            token: 0,
        };
        let id = self
            .engine
            .send(link, &delivery, &mut self.to_server)
            .unwrap();
        self.pump();
        id
    }

    pub fn send(&mut self, link: LinkId, body: &str) -> u32 {
        self.send_message(link, message(None, body), false)
    }

    pub fn credit(&mut self, link: LinkId, credit: u32, drain: bool) {
        self.engine
            .grant_credit(link, credit, drain, &mut self.to_server)
            .unwrap();
        self.pump();
    }

    /// Reads all output. The session learns of it in the same step in which it gets the credit.
    pub fn credit_after_reading(&mut self, link: LinkId, credit: u32, drain: bool) {
        self.engine
            .grant_credit(link, credit, drain, &mut self.to_server)
            .unwrap();
        let pieces: Vec<Bytes> = self.out.pieces().iter().cloned().collect();
        for piece in &pieces {
            self.out.consume(piece.len());
            self.from_server.extend_from_slice(piece);
        }
        self.is_deaf = false;
        self.pump();
    }

    /// The next message; returns its delivery id.
    pub fn expect_message(&mut self, body: &str) -> u32 {
        match self.seen.pop_front() {
            Some(Seen::Message { id, payload, .. }) => {
                assert_eq!(data(&payload), body.as_bytes());
                id
            }
            other => panic!("{other:?} instead of message {body}"),
        }
    }

    pub fn settle(&mut self, link: LinkId, id: u32, state: &DeliveryState<'_>) {
        self.engine
            .settle_received(link, id, state, &mut self.to_server)
            .unwrap();
        self.engine.flush(0, &mut self.to_server);
        self.pump();
    }

    pub fn detach(&mut self, link: LinkId) {
        self.engine
            .detach(link, true, None, &mut self.to_server)
            .unwrap();
        self.pump();
    }

    pub fn end(&mut self, session: SessionId) {
        self.engine
            .end_session(session, None, &mut self.to_server)
            .unwrap();
        self.pump();
    }

    pub fn declare(&mut self, name: &str) -> QueueId {
        self.declare_type(name, QueueType::Classic)
    }

    pub fn declare_type(&mut self, name: &str, kind: QueueType) -> QueueId {
        self.declare_with(name, kind, Table::default())
    }

    pub fn declare_with(&mut self, name: &str, kind: QueueType, arguments: Table) -> QueueId {
        let record = QueueRecord {
            id: QueueId::default(),
            vhost: "/".into(),
            name: name.into(),
            kind,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments,
            members: vec![env::NodeId(1)],
            declared_by: "guest".into(),
        };
        match self.broker.must(Change::DeclareQueue(record)) {
            ChangeResult::Queue { record, .. } => record.id,
            other => panic!("{other:?}"),
        }
    }
}

/// An attach without termini.
pub fn link(name: &str, role: Role) -> Attach<'_> {
    Attach {
        name,
        handle: 0,
        role,
        snd_settle_mode: SenderSettleMode::Mixed,
        rcv_settle_mode: ReceiverSettleMode::First,
        source: None,
        target: None,
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: None,
        max_message_size: None,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    }
}

fn see(event: Event<'_>, seen: &mut VecDeque<Seen>) {
    seen.push_back(match event {
        Event::Opened { .. } => Seen::Opened,
        Event::SessionBegun { .. } => Seen::Begun,
        Event::LinkAttached { link, .. } => Seen::Attached(link),
        Event::MessageReceived { link, delivery } => Seen::Message {
            link,
            id: delivery.id,
            payload: delivery.payload.as_ref().to_vec(),
        },
        Event::Disposition {
            state, deliveries, ..
        } => {
            for delivery in deliveries {
                seen.push_back(Seen::Outcome(delivery.id, outcome(state.as_ref())));
            }
            return;
        }
        Event::Drained { link } => Seen::Drained(link),
        Event::AvailableChanged { link, available } => Seen::Available(link, available),
        Event::LinkDetached { cause: why, .. } => Seen::Detached(cause(&why)),
        Event::SessionEnded { cause: why, .. } => Seen::Ended(cause(&why)),
        Event::Closed { cause: why } => Seen::Closed(cause(&why)),
        _ => return,
    });
}

fn outcome(state: Option<&DeliveryState<'_>>) -> String {
    match state {
        Some(DeliveryState::Outcome(Outcome::Rejected(error))) => {
            let info = error.as_ref().and_then(|error| error.info);
            let text = |key| info.and_then(|info| info.get(key)?.as_text());
            let why = condition(error.as_ref()).unwrap_or_default();
            match (text("queue"), text("reason")) {
                (Some(queue), Some(reason)) => format!("rejected {why} {queue} {reason}"),
                _ => format!("rejected {why}"),
            }
        }
        Some(DeliveryState::Outcome(Outcome::Accepted)) => "accepted".into(),
        Some(DeliveryState::Outcome(Outcome::Released)) => "released".into(),
        other => format!("{other:?}"),
    }
}

/// A message with a data section.
pub fn message(to: Option<&str>, body: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if to.is_some() {
        let properties = Properties {
            to,
            ..Properties::default()
        };
        properties.encode(&mut message);
    }
    encode_data_section(&mut message, body.as_bytes());
    message
}

/// The bytes of the data section of a message.
pub fn data(message: &[u8]) -> Vec<u8> {
    let sections = codec_amqp10::Sections::parse(message).unwrap();
    match sections.read_body(message).next() {
        Some(Ok(Value::Binary(bytes))) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}
