//! Whole sessions of AMQP 1.0 on a node in memory: frames, events of the node and time, in any order. No panic, bounded buffers, and
//! what the session writes is whole frames that its client can read.
#![no_main]

#[path = "../../crates/session-amqp10/tests/fake/mod.rs"]
mod fake;

use bytes::BytesMut;
use codec_amqp10::{
    AnyTarget, Attach, Begin, DeliveryState, Detach, Disposition, Encode, End, Flow, FrameKind,
    Multiple, Open, Output, Performative, Properties, ProtocolHeader, Role, SaslFrame, SaslInit,
    SectionKind, SenderSettleMode, Source, Symbol, Target, Transfer, Value, encode_data_section,
    encode_frame, encode_sasl_frame, encode_section_descriptor, map, parse_frame,
};
use libfuzzer_sys::fuzz_target;
use metadata::{Change, Name, QueueType};
use session::{ControlEvent, Outbox, Session, SessionState};
use session_amqp10::{Amqp10Config, Amqp10Session, Limits};
use std::time::Duration;

/// Frames of both directions have at most this size, so that messages are split.
const FRAME: u32 = 512;
/// `Limits::outbox` with what one step may add.
const OUTBOX: usize = 4096 + (64 << 10);

const ADDRESSES: [Option<&str>; 8] = [
    Some("/queues/q"),
    Some("/queues/missing"),
    Some("/exchanges/amq.topic/key"),
    Some("/exchanges/amq.fanout"),
    Some("/management"),
    Some("/queues/a%2Fb"),
    Some("q"),
    None,
];

const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "PATCH"];

const PATHS: [&str; 9] = [
    "/queues/q",
    "/queues/new",
    "/queues/q/messages",
    "/exchanges/new",
    "/bindings",
    "/bindings?src=amq.topic&dstq=q&key=key",
    "/bindings/src=amq.topic;dstq=q;key=key;args=",
    "/auth/tokens",
    "/%",
];

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// As many as the next byte says, or as there are.
    fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.number());
        let (taken, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn choice<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::from(self.number()) % of.len()].clone()
    }
}

/// A transfer whose `more` is true or false independent of the message, unlike with `encode_transfer_frame`.
struct TransferFrame<'a> {
    transfer: Transfer<'a>,
    message: &'a [u8],
}

impl Encode for TransferFrame<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        self.transfer.encode(out);
        out.put(self.message);
    }
}

struct World {
    session: Amqp10Session,
    broker: fake::FakeBroker,
    out: Outbox,
    state: SessionState,
    next_delivery: u32,
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let limits = Limits {
        frame: FRAME,
        sessions: 3,
        links: 8,
        unfinished: 4096,
        link_credit: 4,
        incoming_window: 8,
        unsettled: 6,
        outbox_deliveries: 2048,
        outbox: 4096,
        in_flight: 4096,
        pending_requests: 8,
        ..Limits::default()
    }
    .with_message_size(2000);
    let config = Amqp10Config {
        limits,
        ..Amqp10Config::default()
    };
    let broker = fake::broker();
    let mut world = World {
        session: fake::new_session(config, &broker),
        broker,
        out: Outbox::default(),
        state: SessionState::Open,
        next_delivery: 0,
    };
    world.declare("q");
    match script.byte() {
        None => return,
        Some(0) => {}
        Some(_) => {
            world.receive(&opening());
            world.frame(0, &begin());
            world.frame(1, &begin());
            world.drain();
        }
    }
    while let Some(step) = script.byte() {
        if world.state == SessionState::Closing {
            break;
        }
        world.take(step, &mut script);
        let waiting = world.out.len();
        assert!(waiting <= OUTBOX, "{waiting} bytes wait");
        assert!(world.session.unfinished() <= 1 << 20);
    }
    world.drain();
    world.session.gone(&mut world.broker);
    assert_eq!(
        world.broker.channels_left, 10_000,
        "every session was released"
    );
});

fn opening() -> Vec<u8> {
    let mut bytes = ProtocolHeader::SASL.to_bytes().to_vec();
    let init = SaslInit {
        mechanism: Symbol::from_static("PLAIN"),
        initial_response: Some(b"\0guest\0guest"),
        hostname: None,
    };
    encode_sasl_frame(&mut bytes, &init);
    bytes.extend_from_slice(&ProtocolHeader::AMQP.to_bytes());
    let open = Open {
        container_id: "c",
        hostname: None,
        max_frame_size: FRAME,
        channel_max: 10,
        idle_time_out: None,
        outgoing_locales: Multiple::NONE,
        incoming_locales: Multiple::NONE,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    encode_frame(&mut bytes, 0, &open);
    bytes
}

fn begin() -> Begin<'static> {
    Begin {
        remote_channel: None,
        next_outgoing_id: u32::MAX,
        incoming_window: 5,
        outgoing_window: 5,
        handle_max: 7,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    }
}

/// A request to the management node.
fn request(script: &mut Script<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    let properties = Properties {
        message_id: Some(Value::Ulong(7)),
        to: Some(script.choice(&PATHS)),
        subject: Some(script.choice(&METHODS)),
        reply_to: Some("$me"),
        ..Properties::default()
    };
    properties.encode(&mut message);
    encode_section_descriptor(&mut message, SectionKind::Value);
    if script.number() % 2 == 0 {
        message.extend_from_slice(script.bytes());
        return message;
    }
    let mut body = map(&mut message);
    for (key, value) in [
        ("source", Value::String("amq.topic")),
        ("destination_queue", Value::String("q")),
        ("binding_key", Value::String("key")),
        ("durable", Value::Boolean(true)),
        ("exclusive", Value::Boolean(true)),
        ("type", Value::String("topic")),
    ] {
        if script.number() % 2 == 0 {
            body.push(key);
            body.push(&value);
        }
    }
    body.finish();
    message
}

impl World {
    fn declare(&mut self, name: &str) {
        let record = metadata::QueueRecord {
            id: metadata::QueueId::default(),
            vhost: "/".into(),
            name: Name::from(name),
            kind: QueueType::Classic,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: message::Table::default(),
            members: vec![env::NodeId(1)],
            declared_by: "guest".into(),
        };
        self.broker.must(Change::DeclareQueue(record));
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut input = BytesMut::from(bytes);
        self.state = self
            .session
            .receive(&mut input, &mut self.broker, &mut self.out);
        self.settle();
    }

    /// Delivers the events of the node.
    fn settle(&mut self) {
        while let Some(event) = self.broker.notices.pop_front() {
            self.state = self
                .session
                .session_event(event, &mut self.broker, &mut self.out);
        }
    }

    fn frame(&mut self, channel: u16, body: &impl Encode) {
        let mut bytes = Vec::new();
        encode_frame(&mut bytes, channel, body);
        self.receive(&bytes);
    }

    fn attach(&mut self, channel: u16, script: &mut Script<'_>) {
        let options = script.number();
        let name = script.choice(&["a", "b", "c"]);
        let address = script.choice(&ADDRESSES).map(Value::String);
        let role = if options & 1 == 0 {
            Role::Sender
        } else {
            Role::Receiver
        };
        let is_dynamic = options & 2 != 0;
        let capabilities = [Symbol::from_static("temporary-queue")];
        let mut paired = Vec::new();
        let mut properties = map(&mut paired);
        properties.push(&Symbol::from_static("paired"));
        properties.push(&Value::Boolean(options & 4 == 0));
        properties.finish();
        let (own, remote) = (Some(Value::String("me")), address);
        let (from, to) = match role {
            Role::Sender => (own, remote),
            Role::Receiver => (remote, own),
        };
        let attach = Attach {
            name,
            handle: u32::from(script.number() % 9),
            role,
            snd_settle_mode: script.choice(&[
                SenderSettleMode::Mixed,
                SenderSettleMode::Settled,
                SenderSettleMode::Unsettled,
            ]),
            rcv_settle_mode: codec_amqp10::ReceiverSettleMode::First,
            source: Some(Source {
                address: from.filter(|_| !is_dynamic),
                dynamic: is_dynamic && role == Role::Receiver,
                capabilities: Multiple::new(&capabilities),
                ..Source::default()
            }),
            target: Some(AnyTarget::Target(Target {
                address: to.filter(|_| !is_dynamic),
                dynamic: is_dynamic && role == Role::Sender,
                capabilities: Multiple::new(&capabilities),
                ..Target::default()
            })),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: Some(u32::from(options)),
            max_message_size: Some(u64::from(script.number())),
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: codec_amqp10::Reader::new(&paired).read().ok(),
        };
        self.frame(channel, &attach);
    }

    fn transfer(&mut self, channel: u16, message: &[u8], script: &mut Script<'_>) {
        let options = script.number();
        if options & 8 == 0 {
            self.next_delivery = self.next_delivery.wrapping_add(1);
        }
        let transfer = Transfer {
            handle: u32::from(script.number() % 9),
            delivery_id: Some(self.next_delivery),
            delivery_tag: Some(b"tag"),
            message_format: Some(0),
            settled: Some(options & 1 != 0),
            more: options & 2 != 0,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            aborted: options & 4 != 0,
            batchable: false,
        };
        self.frame(channel, &TransferFrame { transfer, message });
    }

    fn take(&mut self, step: u8, script: &mut Script<'_>) {
        let channel = u16::from(step >> 5) % 4;
        match step % 20 {
            0 => self.frame(channel, &begin()),
            1..=3 => self.attach(channel, script),
            4 | 5 => {
                let mut message = Vec::new();
                let properties = Properties {
                    to: script.choice(&ADDRESSES),
                    ..Properties::default()
                };
                properties.encode(&mut message);
                encode_data_section(&mut message, script.bytes());
                self.transfer(channel, &message, script);
            }
            6 => {
                let message = script.bytes();
                self.transfer(channel, message, script);
            }
            7 | 8 => {
                let message = request(script);
                self.transfer(channel, &message, script);
            }
            9 | 10 => {
                let options = script.number();
                let flow = Flow {
                    next_incoming_id: None,
                    incoming_window: u32::from(options),
                    next_outgoing_id: 0,
                    outgoing_window: 100,
                    handle: Some(u32::from(script.number() % 9)),
                    delivery_count: None,
                    link_credit: Some(u32::from(script.number())),
                    available: None,
                    drain: options & 1 != 0,
                    echo: options & 2 != 0,
                    properties: None,
                };
                self.frame(channel, &flow);
            }
            11 => {
                let first = u32::from(script.number());
                let state = script.choice(&[DeliveryState::ACCEPTED, DeliveryState::RELEASED]);
                let disposition = Disposition {
                    role: Role::Receiver,
                    first,
                    last: Some(first + u32::from(script.number())),
                    settled: script.number() % 2 == 0,
                    state: Some(state),
                    batchable: false,
                };
                self.frame(channel, &disposition);
            }
            12 => {
                let detach = Detach {
                    handle: u32::from(script.number() % 9),
                    closed: script.number() % 2 == 0,
                    error: None,
                };
                self.frame(channel, &detach);
            }
            13 => self.frame(channel, &End { error: None }),
            // A performative with any fields.
            14 => {
                let descriptor = 0x10 + script.number() % 9;
                let fields = script.bytes();
                let mut bytes = (11 + fields.len() as u32).to_be_bytes().to_vec();
                bytes.extend_from_slice(&[2, 0, 0, channel as u8, 0, 0x53, descriptor]);
                bytes.extend_from_slice(fields);
                self.receive(&bytes);
            }
            15 => {
                let bytes = script.bytes();
                self.receive(bytes);
            }
            16 => {
                let seconds = script.number();
                self.broker.now = self.broker.now + Duration::from_secs(seconds.into());
                self.state = self.session.tick(&mut self.broker, &mut self.out);
                self.settle();
            }
            17 => {
                match script.number() % 8 {
                    0 => self.control(ControlEvent::Blocked(Some("memory"))),
                    1 => self.control(ControlEvent::Blocked(None)),
                    2 => self.control(ControlEvent::Unblocked),
                    3 => self.control(ControlEvent::Close {
                        text: "an operator".to_owned(),
                    }),
                    4 => self.broker.silent = !self.broker.silent,
                    5 => self.broker.settle_publishes(),
                    6 => self.declare("q"),
                    _ => {
                        let change = Change::DeleteQueue {
                            vhost: "/".into(),
                            name: "q".into(),
                            id: None,
                        };
                        if self.broker.queue("/", "q").is_some() {
                            self.broker.must(change);
                        }
                    }
                }
                self.settle();
            }
            _ => self.drain(),
        }
    }

    fn control(&mut self, event: ControlEvent) {
        self.broker.notices.push_back(event.into());
    }

    /// Reads the output, as a client.
    fn drain(&mut self) {
        let mut received = Vec::new();
        loop {
            let pieces: Vec<_> = self.out.pieces().iter().cloned().collect();
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                self.out.consume(piece.len());
                received.extend_from_slice(&piece);
            }
            self.state = self.session.drained(&mut self.broker, &mut self.out);
            self.settle();
        }
        let mut rest = &received[..];
        while !rest.is_empty() {
            if rest.starts_with(b"AMQP") {
                rest = &rest[8..];
                continue;
            }
            let frame = parse_frame(rest, FRAME)
                .expect("a frame")
                .expect("a whole frame");
            if !frame.body.is_empty() {
                match frame.kind {
                    FrameKind::Amqp => {
                        drop(Performative::decode(frame.body).expect("a performative"))
                    }
                    FrameKind::Sasl => drop(SaslFrame::decode(frame.body).expect("a SASL frame")),
                }
            }
            rest = &rest[frame.size..];
        }
    }
}
