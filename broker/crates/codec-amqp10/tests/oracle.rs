//! Another implementation reads what this one writes, and writes what this one reads.

use codec_amqp10::{
    AmqpError, AnyTarget, Attach, Begin, Close, Condition, Coordinator, DeliveryState, Detach,
    Disposition, Encode, End, Flow, Header, Modified, Multiple, Open, Outcome, Performative,
    Properties, Reader, ReceiverSettleMode, Role, SaslCode, SaslFrame, SaslInit, SaslMechanisms,
    SaslOutcome, SenderSettleMode, Source, Symbol, Target, Timestamp, Transfer, Uuid, Value,
};
use fe2o3_amqp_types::{messaging, performatives, sasl};
use proptest::prelude::*;
use serde_amqp::{from_slice, to_vec};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// The bytes after the oracle has read and written them.
macro_rules! through {
    ($type:ty, $bytes:expr) => {{
        let bytes = $bytes;
        let read: $type =
            from_slice(&bytes).unwrap_or_else(|error| panic!("{error:?} in {bytes:02x?}"));
        to_vec(&read).expect("a value that can be written")
    }};
}

fn check(body: Performative<'_>) {
    let bytes = encoded(&body);
    let again = match &body {
        Performative::Open(_) => through!(performatives::Open, bytes),
        Performative::Begin(_) => through!(performatives::Begin, bytes),
        Performative::Attach(_) => through!(performatives::Attach, bytes),
        Performative::Flow(_) => through!(performatives::Flow, bytes),
        Performative::Transfer(_) => through!(performatives::Transfer, bytes),
        Performative::Disposition(_) => through!(performatives::Disposition, bytes),
        Performative::Detach(_) => through!(performatives::Detach, bytes),
        Performative::End(_) => through!(performatives::End, bytes),
        Performative::Close(_) => through!(performatives::Close, bytes),
    };
    assert_eq!(Performative::decode(&again), Ok((body, &[][..])));
}

const SYMBOLS: &[Symbol<'static>] = &[
    Symbol::from_static("queue"),
    Symbol::from_static("amqp:accepted:list"),
];

const TRANSACTIONS: &[Symbol<'static>] = &[Symbol::from_static("amqp:local-transactions")];

#[test]
fn rare_performatives_pass_through_the_oracle() {
    let error = || Some(AmqpError::new(Condition::NotFound, "no queue 'q'"));
    check(Performative::Open(Open {
        container_id: "c",
        hostname: Some("h"),
        max_frame_size: 4096,
        channel_max: 7,
        idle_time_out: Some(30_000),
        outgoing_locales: Multiple::NONE,
        incoming_locales: Multiple::NONE,
        offered_capabilities: Multiple::new(SYMBOLS),
        desired_capabilities: Multiple::new(&SYMBOLS[..1]),
        properties: Reader::new(&[0xc1, 0x09, 2, 0xa3, 1, b'a', 0xa1, 3, b'b', b'c', b'd'])
            .read()
            .ok(),
    }));
    check(Performative::Begin(Begin {
        remote_channel: Some(3),
        next_outgoing_id: 1,
        incoming_window: 256,
        outgoing_window: u32::MAX,
        handle_max: 255,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    }));
    let attach = Attach {
        name: "link",
        handle: 1,
        role: Role::Receiver,
        snd_settle_mode: SenderSettleMode::Settled,
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source {
            address: Some(Value::String("/queues/q")),
            default_outcome: Some(Outcome::Released),
            outcomes: Multiple::new(SYMBOLS),
            capabilities: Multiple::new(SYMBOLS),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target {
            address: Some(Value::String("t")),
            dynamic: true,
            ..Target::default()
        })),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: Some(u32::MAX),
        max_message_size: Some(1 << 33),
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    check(Performative::Attach(attach.clone()));
    check(Performative::Attach(Attach {
        source: None,
        target: None,
        role: Role::Sender,
        ..attach.clone()
    }));
    check(Performative::Attach(Attach {
        target: Some(AnyTarget::Coordinator(Coordinator {
            capabilities: Multiple::new(TRANSACTIONS),
        })),
        ..attach
    }));
    check(Performative::Detach(Detach {
        handle: 300,
        closed: true,
        error: error(),
    }));
    check(Performative::End(End { error: error() }));
    check(Performative::Close(Close { error: None }));
}

#[test]
fn sasl_frames_pass_through_the_oracle() {
    let mechanisms = SaslMechanisms {
        sasl_server_mechanisms: Multiple::new(SYMBOLS),
    };
    let again = through!(sasl::SaslMechanisms, encoded(&mechanisms));
    assert_eq!(
        SaslFrame::decode(&again),
        Ok(SaslFrame::Mechanisms(mechanisms))
    );
    let init = SaslInit {
        mechanism: SYMBOLS[0],
        initial_response: Some(b"\0user\0pass"),
        hostname: Some("h"),
    };
    let again = through!(sasl::SaslInit, encoded(&init));
    assert_eq!(SaslFrame::decode(&again), Ok(SaslFrame::Init(init)));
    let outcome = SaslOutcome {
        code: SaslCode::SystemTemporary,
        additional_data: Some(b"x"),
    };
    let again = through!(sasl::SaslOutcome, encoded(&outcome));
    assert_eq!(SaslFrame::decode(&again), Ok(SaslFrame::Outcome(outcome)));
}

#[test]
fn message_headers_and_properties_pass_through_the_oracle() {
    let header = Header {
        durable: true,
        priority: 9,
        ttl: Some(1000),
        first_acquirer: true,
        delivery_count: 2,
    };
    let again = through!(messaging::Header, encoded(&header));
    let sections = codec_amqp10::Sections::parse(&again).expect("a message");
    assert_eq!(sections.read_header(&again), Ok(header));
    for id in [
        Value::Ulong(5),
        Value::String("id"),
        Value::Uuid(Uuid([7; 16])),
        Value::Binary(b"id"),
    ] {
        let properties = Properties {
            message_id: Some(id),
            user_id: Some(b"u"),
            to: Some("to"),
            subject: Some("s"),
            reply_to: Some("r"),
            correlation_id: Some(id),
            content_type: Some(SYMBOLS[0]),
            content_encoding: None,
            absolute_expiry_time: Some(Timestamp(-1)),
            creation_time: Some(Timestamp(1 << 40)),
            group_id: None,
            group_sequence: Some(70_000),
            reply_to_group_id: Some("g"),
        };
        let again = through!(messaging::Properties, encoded(&properties));
        let sections = codec_amqp10::Sections::parse(&again).expect("a message");
        assert_eq!(sections.read_properties(&again), Ok(properties));
    }
}

proptest! {
    #[test]
    fn flows_pass_through_the_oracle(numbers in any::<[Option<u32>; 5]>(), required in any::<[u32; 3]>(), drain: bool, echo: bool) {
        let [next_incoming_id, handle, delivery_count, link_credit, available] = numbers;
        let [incoming_window, next_outgoing_id, outgoing_window] = required;
        check(Performative::Flow(Flow {
            next_incoming_id, incoming_window, next_outgoing_id, outgoing_window, handle, delivery_count, link_credit,
            available, drain, echo, properties: None,
        }));
    }

    #[test]
    fn transfers_and_dispositions_pass_through_the_oracle(
        handle: u32, id in any::<Option<u32>>(), tag in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
        flags in any::<[bool; 4]>(), settled in any::<Option<bool>>(), kind in 0..5u8, description in prop::option::of("\\PC{0,300}"),
    ) {
        let [more, resume, aborted, batchable] = flags;
        let error = AmqpError { condition: Condition::ResourceLocked, description: description.as_deref(), info: None };
        let state = match kind {
            0 => None,
            1 => Some(DeliveryState::ACCEPTED),
            2 => Some(DeliveryState::Outcome(Outcome::Rejected(Some(error)))),
            3 => Some(DeliveryState::Outcome(Outcome::Modified(Modified { delivery_failed: more, undeliverable_here: resume, message_annotations: None }))),
            _ => Some(DeliveryState::Received(codec_amqp10::Received { section_number: handle, section_offset: u64::from(handle) << 9 })),
        };
        check(Performative::Transfer(Transfer {
            handle, delivery_id: id, delivery_tag: tag.as_deref(), message_format: id, settled, more, resume, aborted, batchable,
            rcv_settle_mode: settled.map(|_| ReceiverSettleMode::Second), state: state.clone(),
        }));
        check(Performative::Disposition(Disposition { role: Role::Receiver, first: handle, last: id, settled: more, state, batchable }));
    }

    #[test]
    fn values_pass_through_the_oracle(
        unsigned: u64, signed: i64, double in -1e300..1e300f64, character: char, text in "\\PC{0,300}", bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut raw = Vec::new();
        let mut list = codec_amqp10::list(&mut raw);
        let values = [
            Value::Null, Value::Boolean(unsigned.is_multiple_of(2)), Value::Ubyte(unsigned as u8), Value::Ushort(unsigned as u16),
            Value::Uint(unsigned as u32), Value::Uint(unsigned as u8 as u32), Value::Ulong(unsigned), Value::Ulong(unsigned as u8 as u64),
            Value::Byte(signed as i8), Value::Short(signed as i16), Value::Int(signed as i32), Value::Int(signed as i8 as i32),
            Value::Long(signed), Value::Long(signed as i8 as i64), Value::Double(double), Value::Char(character),
            Value::Timestamp(Timestamp(signed)), Value::Binary(&bytes), Value::String(&text), Value::Symbol(SYMBOLS[0]),
        ];
        values.iter().for_each(|value| list.push(value));
        list.finish();
        let again = through!(serde_amqp::Value, raw.clone());
        let Value::List(read) = Reader::new(&again).read::<Value<'_>>().expect("a list") else { panic!("no list") };
        prop_assert!(read.iter().eq(values));
    }
}
