//! A client that exchanges frames with the session.

mod broker;

pub use broker::*;

use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    ContentHeader, Frame, FrameKind, Method, PROTOCOL_HEADER, Properties, encode_body,
    encode_content_header, encode_heartbeat, encode_method, parse_frame,
};
use message::Table;
use session::{Outbox, Session, SessionState};
use session_amqp091::{AmqpSession, Limits, SessionConfig};
use std::sync::Arc;
use std::time::Duration;

/// A connection: the session under test, its node, and the client side.
pub struct Conn {
    pub session: AmqpSession,
    pub broker: FakeBroker,
    pub out: Outbox,
    pub session_state: SessionState,
    pub received: BytesMut,
    input: BytesMut,
}

pub fn capabilities() -> Table {
    let mut inner = Table::default();
    for name in [
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    ] {
        inner.set(name, message::Value::Bool(true));
    }
    let mut table = Table::default();
    table.set("capabilities", message::Value::Table(inner));
    table.set("connection_name", "tester".into());
    table
}

impl Conn {
    pub fn new(config: SessionConfig) -> Conn {
        Conn::on(FakeBroker::new(), config)
    }

    pub fn on(broker: FakeBroker, config: SessionConfig) -> Conn {
        Conn {
            session: AmqpSession::new(config, broker.now),
            broker,
            out: Outbox::default(),
            session_state: SessionState::Open,
            received: BytesMut::new(),
            input: BytesMut::new(),
        }
    }

    /// A connection after connection.open-ok.
    pub fn open_as(config: SessionConfig, user: &str) -> Conn {
        let mut conn = Conn::new(config);
        conn.log_in(user);
        conn
    }

    /// An open connection of `guest` with these limits.
    pub fn open_with(limits: Limits) -> Conn {
        let config = SessionConfig {
            limits: Arc::new(limits),
            ..SessionConfig::default()
        };
        Conn::open_as(config, "guest")
    }

    pub fn log_in(&mut self, user: &str) {
        self.raw(&PROTOCOL_HEADER);
        assert!(matches!(self.next_method(), (0, "connection.start")));
        let response = format!("\0{user}\0{user}");
        self.send(
            0,
            Method::ConnectionStartOk {
                client_properties: capabilities(),
                mechanism: "PLAIN",
                response: response.as_bytes(),
                locale: "en_US",
            },
        );
        self.expect(
            0,
            Method::ConnectionTune {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 60,
            },
        );
        self.send(
            0,
            Method::ConnectionTuneOk {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 10,
            },
        );
        self.send(0, Method::ConnectionOpen { virtual_host: "/" });
        self.expect(0, Method::ConnectionOpenOk {});
    }

    pub fn open() -> Conn {
        Conn::open_as(SessionConfig::default(), "guest")
    }

    /// An open connection with channel 1.
    pub fn with_channel() -> Conn {
        let mut conn = Conn::open();
        conn.open_channel(1);
        conn
    }

    pub fn open_channel(&mut self, channel: u16) {
        self.send(channel, Method::ChannelOpen {});
        self.expect(channel, Method::ChannelOpenOk {});
    }

    /// Passes bytes to the session and delivers the resulting events.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        if self.session_state != SessionState::Closing {
            self.session_state =
                self.session
                    .receive(&mut self.input, &mut self.broker, &mut self.out);
        }
        self.settle();
    }

    /// Delivers the node's events until there are none.
    pub fn settle(&mut self) {
        while let Some(session_event) = self.broker.notices.pop_front() {
            self.session_state =
                self.session
                    .session_event(session_event, &mut self.broker, &mut self.out);
        }
    }

    /// Reads the session's output as a socket would.
    pub fn drain(&mut self) {
        loop {
            let pieces: Vec<Bytes> = self.out.pieces().iter().cloned().collect();
            if pieces.is_empty() {
                return;
            }
            for piece in pieces {
                self.out.consume(piece.len());
                self.received.extend_from_slice(&piece);
            }
            self.session_state = self.session.drained(&mut self.broker, &mut self.out);
            self.settle();
        }
    }

    pub fn send(&mut self, channel: u16, method: Method<'_>) {
        let mut bytes = BytesMut::new();
        encode_method(&mut bytes, channel, &method);
        self.raw(&bytes);
    }

    pub fn heartbeat(&mut self) {
        let mut bytes = BytesMut::new();
        encode_heartbeat(&mut bytes);
        self.raw(&bytes);
    }

    pub fn publish_with(
        &mut self,
        channel: u16,
        exchange: &str,
        key: &str,
        mandatory: bool,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        let mut bytes = BytesMut::new();
        let method = Method::BasicPublish {
            exchange,
            routing_key: key,
            mandatory,
            immediate: false,
        };
        encode_method(&mut bytes, channel, &method);
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        encode_content_header(&mut bytes, channel, body.len() as u64, &raw);
        encode_body(&mut bytes, channel, body, 131_072);
        self.raw(&bytes);
    }

    pub fn publish(&mut self, channel: u16, exchange: &str, key: &str, body: &[u8]) {
        self.publish_with(channel, exchange, key, false, &Properties::default(), body);
    }

    /// The next frame that the client receives.
    pub fn next_frame(&mut self) -> Option<(FrameKind, u16, Bytes)> {
        self.drain();
        let frame: Frame<'_> = parse_frame(&self.received, 131_072).unwrap()?;
        let (kind, channel, len) = (frame.kind, frame.channel, frame.wire_len());
        let mut whole = self.received.split_to(len).freeze();
        let payload = whole.split_to(len - 1).slice(7..);
        Some((kind, channel, payload))
    }

    pub fn next_method(&mut self) -> (u16, &'static str) {
        let (kind, channel, payload) = self.next_frame().expect("a frame");
        assert_eq!(kind, FrameKind::Method);
        (channel, Method::decode(&payload).unwrap().name())
    }

    pub fn expect(&mut self, channel: u16, method: Method<'_>) {
        let (kind, number, payload) = self
            .next_frame()
            .unwrap_or_else(|| panic!("expected {method:?}, got no frame"));
        assert_eq!(kind, FrameKind::Method, "expected {method:?}");
        assert_eq!(
            (number, Method::decode(&payload).unwrap()),
            (channel, method)
        );
    }

    /// Reads the header and body frames after deliver, return or get-ok. Returns the properties and
    /// the body.
    pub fn expect_content(&mut self, channel: u16) -> (Bytes, Vec<u8>) {
        let (kind, number, payload) = self.next_frame().expect("a header");
        assert_eq!((kind, number), (FrameKind::Header, channel));
        let header = ContentHeader::decode(&payload).unwrap();
        let properties = payload.slice_ref(header.properties);
        let mut body = Vec::new();
        while (body.len() as u64) < header.body_size {
            let (kind, number, payload) = self.next_frame().expect("a body");
            assert_eq!((kind, number), (FrameKind::Body, channel));
            body.extend_from_slice(&payload);
        }
        (properties, body)
    }

    pub fn expect_nothing(&mut self) {
        let frame = self.next_frame();
        let method = frame
            .as_ref()
            .map(|(_, _, p)| format!("{:?}", Method::decode(p)));
        assert!(frame.is_none(), "{frame:?} {method:?}");
    }

    pub fn expect_channel_close(&mut self, channel: u16, code: u16, text: &str, ids: (u16, u16)) {
        self.expect(
            channel,
            Method::ChannelClose {
                reply_code: code,
                reply_text: text,
                class_id: ids.0,
                method_id: ids.1,
            },
        );
        self.send(channel, Method::ChannelCloseOk {});
    }

    pub fn expect_connection_close(&mut self, code: u16, text: &str, ids: (u16, u16)) {
        self.expect(
            0,
            Method::ConnectionClose {
                reply_code: code,
                reply_text: text,
                class_id: ids.0,
                method_id: ids.1,
            },
        );
    }

    pub fn declare(&mut self, channel: u16, queue: &str) {
        self.send(channel, queue_declare(queue));
        self.expect(
            channel,
            Method::QueueDeclareOk {
                queue,
                message_count: 0,
                consumer_count: 0,
            },
        );
    }

    pub fn consume(&mut self, channel: u16, queue: &str, tag: &str, no_ack: bool) {
        self.send(channel, consume(queue, tag, no_ack));
        self.expect(channel, Method::BasicConsumeOk { consumer_tag: tag });
    }

    pub fn expect_deliver(
        &mut self,
        channel: u16,
        tag: &str,
        delivery_tag: u64,
        key: &str,
        body: &[u8],
    ) {
        self.expect_redeliver(channel, tag, delivery_tag, false, key, body);
    }

    pub fn expect_redeliver(
        &mut self,
        channel: u16,
        tag: &str,
        delivery_tag: u64,
        redelivered: bool,
        key: &str,
        body: &[u8],
    ) {
        self.expect(
            channel,
            Method::BasicDeliver {
                consumer_tag: tag,
                delivery_tag,
                redelivered,
                exchange: "",
                routing_key: key,
            },
        );
        assert_eq!(self.expect_content(channel).1, body);
    }

    pub fn advance(&mut self, time: Duration) {
        self.broker.now = self.broker.now + time;
        self.session_state = self.session.tick(&mut self.broker, &mut self.out);
        self.settle();
    }
}

pub fn queue_declare(queue: &str) -> Method<'_> {
    Method::QueueDeclare {
        queue,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

pub fn queue_delete(queue: &str) -> Method<'_> {
    Method::QueueDelete {
        queue,
        if_unused: false,
        if_empty: false,
        no_wait: false,
    }
}

pub fn exchange_declare<'a>(exchange: &'a str, kind: &'a str) -> Method<'a> {
    Method::ExchangeDeclare {
        exchange,
        kind,
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

pub fn consume<'a>(queue: &'a str, tag: &'a str, no_ack: bool) -> Method<'a> {
    Method::BasicConsume {
        queue,
        consumer_tag: tag,
        no_local: false,
        no_ack,
        exclusive: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

/// A connection with channel 1 and queue `q`, which contains the messages "1" to `messages`.
pub fn with_queue(messages: u64) -> Conn {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    for n in 1..=messages {
        conn.publish(1, "", "q", n.to_string().as_bytes());
    }
    conn
}

/// The ready messages of queue `q`.
pub fn ready(conn: &Conn) -> Vec<String> {
    let queue = conn.broker.queue("/", "q").unwrap();
    queue
        .ready
        .iter()
        .map(|(m, _)| String::from_utf8_lossy(m.body()).into_owned())
        .collect()
}
