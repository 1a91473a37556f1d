//! Encodings of the standard, byte by byte, and the errors of bytes that break it.

use codec_amqp10::{
    AmqpError, AnyTarget, Attach, Begin, Close, Condition, DecodeError, DeliveryState, Detach,
    Disposition, Encode, End, Flow, Frame, FrameError, FrameKind, Header, MAX_EMPTY_ELEMENTS,
    Modified, Multiple, Open, Outcome, Performative, Properties, ProtocolHeader, ProtocolId,
    Reader, Reason, ReceiverSettleMode, Role, SaslCode, SaslFrame, SaslInit, SaslMechanisms,
    SaslOutcome, SectionKind, Sections, SenderSettleMode, Source, Symbol, Target, Timestamp,
    Transfer, Uuid, Value, encode_frame, encode_heartbeat, encode_sasl_frame,
    encode_transfer_frame, parse_frame,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// A composite value with a short list of fields.
fn composite(descriptor: u8, count: u8, fields: &str) -> Vec<u8> {
    let fields = hex(fields);
    let size = u8::try_from(fields.len() + 1).expect("a short list");
    [&[0, 0x53, descriptor, 0xc0, size, count], &fields[..]].concat()
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn decode(bytes: &[u8]) -> Result<Value<'_>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = reader.read()?;
    assert!(reader.is_empty(), "{bytes:02x?} has bytes behind the value");
    Ok(value)
}

const fn symbol(text: &'static str) -> Symbol<'static> {
    Symbol::from_static(text)
}

#[test]
fn every_encoding_of_a_scalar_decodes_and_the_shortest_is_written() {
    let longest = "x".repeat(256);
    let long_string = [&hex("b1 00000100")[..], longest.as_bytes()].concat();
    let long_symbol = [&hex("b3 00000100")[..], longest.as_bytes()].concat();
    let long_binary = [&hex("b0 00000100")[..], longest.as_bytes()].concat();
    // The shortest encoding first, then the others.
    let cases: &[(Value<'_>, &[&str])] = &[
        (Value::Null, &["40"]),
        (Value::Boolean(true), &["41", "5601"]),
        (Value::Boolean(false), &["42", "5600"]),
        (Value::Ubyte(7), &["5007"]),
        (Value::Ushort(0x102), &["600102"]),
        (Value::Uint(0), &["43", "5200", "7000000000"]),
        (Value::Uint(255), &["52ff", "70000000ff"]),
        (Value::Uint(256), &["7000000100"]),
        (Value::Ulong(0), &["44", "5300", "800000000000000000"]),
        (Value::Ulong(255), &["53ff", "8000000000000000ff"]),
        (Value::Ulong(256), &["800000000000000100"]),
        (Value::Byte(-2), &["51fe"]),
        (Value::Short(-2), &["61fffe"]),
        (Value::Int(-2), &["54fe", "71fffffffe"]),
        (Value::Int(128), &["7100000080"]),
        (Value::Long(-2), &["55fe", "81fffffffffffffffe"]),
        (Value::Long(-129), &["81ffffffffffffff7f"]),
        (Value::Float(1.5), &["723fc00000"]),
        (Value::Double(1.5), &["823ff8000000000000"]),
        (Value::Decimal32([1, 2, 3, 4]), &["7401020304"]),
        (Value::Decimal64([1; 8]), &["840101010101010101"]),
        (
            Value::Decimal128([2; 16]),
            &["9402020202020202020202020202020202"],
        ),
        (Value::Char('€'), &["73000020ac"]),
        (Value::Timestamp(Timestamp(-1)), &["83ffffffffffffffff"]),
        (
            Value::Uuid(Uuid([3; 16])),
            &["9803030303030303030303030303030303"],
        ),
        (Value::Binary(&[1, 2]), &["a0020102", "b0000000020102"]),
        // Part 1, section 1.6.20: "Hello Glorious Messaging World!" is a string of 31 bytes.
        (
            Value::String("Hello Glorious Messaging World!"),
            &[
                "a11f48656c6c6f20476c6f72696f7573204d6573736167696e6720576f726c6421",
                "b10000001f48656c6c6f20476c6f72696f7573204d6573736167696e6720576f726c6421",
            ],
        ),
        (Value::Symbol(symbol("ab")), &["a3026162", "b3000000026162"]),
    ];
    for (value, encodings) in cases {
        assert_eq!(encoded(value), hex(encodings[0]), "{value:?}");
        for encoding in *encodings {
            assert_eq!(decode(&hex(encoding)), Ok(*value), "{encoding}");
        }
    }
    for (value, bytes) in [
        (Value::String(&longest), long_string),
        (
            Value::Symbol(Symbol::new(&longest).expect("ASCII")),
            long_symbol,
        ),
        (Value::Binary(longest.as_bytes()), long_binary),
    ] {
        assert_eq!(encoded(&value), bytes);
        assert_eq!(decode(&bytes), Ok(value));
    }
}

#[test]
fn compound_values_decode_from_both_sizes_and_are_written_short() {
    for bytes in [
        "c00804 5201 a10178 40 41",
        "d00000000b00000004 5201 a10178 40 41",
    ] {
        let bytes = hex(bytes);
        let Value::List(list) = decode(&bytes).expect("a list") else {
            panic!("no list")
        };
        let elements: Vec<_> = list.iter().collect();
        assert_eq!(
            elements,
            [
                Value::Uint(1),
                Value::String("x"),
                Value::Null,
                Value::Boolean(true)
            ]
        );
        assert_eq!(encoded(&Value::List(list)), hex("c00804 5201 a10178 40 41"));
    }
    assert_eq!(
        encoded(&decode(&hex("c00100")).expect("an empty list")),
        hex("45")
    );
    assert_eq!(
        encoded(&decode(&hex("d00000000400000000")).expect("an empty list")),
        hex("45")
    );

    let bytes = hex("d1 00000009 00000002 a30161 5405");
    let Value::Map(map) = decode(&bytes).expect("a map") else {
        panic!("no map")
    };
    assert_eq!(map.get("a"), Some(Value::Int(5)));
    assert_eq!(map.get("b"), None);
    assert_eq!(encoded(&Value::Map(map)), hex("c10602 a30161 5405"));

    // Part 1, section 1.6.24: elements share one constructor.
    let bytes = hex("f0 0000000a 00000002 a3 0161 026262");
    let Value::Array(array) = decode(&bytes).expect("an array") else {
        panic!("no array")
    };
    let elements: Vec<_> = array.iter().collect();
    assert_eq!(
        elements,
        [Value::Symbol(symbol("a")), Value::Symbol(symbol("bb"))]
    );
    assert_eq!(encoded(&Value::Array(array)), hex("e00702 a3 0161 026262"));

    let bytes = hex("e00a02 00 a30174 70 00000001");
    assert!(
        decode(&bytes).is_err(),
        "two elements of four bytes do not fit in four"
    );
    let bytes = hex("e00e02 00 a30174 70 00000001 00000002");
    let Value::Array(array) = decode(&bytes).expect("an array") else {
        panic!("no array")
    };
    assert_eq!(
        array.iter().collect::<Vec<_>>(),
        [Value::Uint(1), Value::Uint(2)]
    );
    assert_eq!(encoded(&Value::Array(array)), bytes);

    // Part 1, section 1.2.1: a URL is a string with the descriptor "URL".
    let bytes = hex("00 a10355524c a10161");
    assert_eq!(
        decode(&bytes).map_err(|e| e.reason),
        Err(Reason::ReservedDescriptor(0xa1))
    );
    let bytes = hex("00 a30355524c a10161");
    let Value::Described(described) = decode(&bytes).expect("a described value") else {
        panic!("not described")
    };
    assert_eq!(described.value(), Value::String("a"));
    assert_eq!(encoded(&Value::Described(described)), bytes);
}

#[test]
fn broken_values_are_refused_with_their_reason() {
    let cases: &[(&str, Reason)] = &[
        ("", Reason::Truncated),
        ("01", Reason::UnknownFormatCode(0x01)),
        ("46", Reason::UnknownFormatCode(0x46)),
        ("57", Reason::UnknownFormatCode(0x57)),
        ("ff", Reason::UnknownFormatCode(0xff)),
        ("50", Reason::Truncated),
        ("700000", Reason::Truncated),
        ("5602", Reason::Boolean(2)),
        ("730000d800", Reason::Character(0xd800)),
        ("a10261", Reason::Truncated),
        ("a101ff", Reason::Utf8),
        ("a301c3", Reason::NotAscii),
        ("b0ffffffff00", Reason::Truncated),
        ("c0", Reason::Truncated),
        ("c000", Reason::Truncated),
        ("c00201 ff", Reason::UnknownFormatCode(0xff)),
        // The count is compared with the bytes before anything is read.
        (
            "d000000004ffffffff",
            Reason::ElementCount {
                count: u32::MAX,
                bytes: 0,
            },
        ),
        ("c00303 4040", Reason::ElementCount { count: 3, bytes: 2 }),
        ("c00301 4040", Reason::TrailingBytes(1)),
        ("c10201 40", Reason::OddMap(1)),
        (
            "f000000005ffffffff40",
            Reason::ElementCount {
                count: u32::MAX,
                bytes: 0,
            },
        ),
        (
            "f000000005ffffffff45",
            Reason::ElementCount {
                count: u32::MAX,
                bytes: 0,
            },
        ),
        (
            "f000000006ffffffff5000",
            Reason::ElementCount {
                count: u32::MAX,
                bytes: 1,
            },
        ),
        (
            "f000000006ffffffffa000",
            Reason::ElementCount {
                count: u32::MAX,
                bytes: 1,
            },
        ),
        ("e0020001", Reason::UnknownFormatCode(1)),
        ("e00301 a0 05", Reason::Truncated),
        ("e00401 50 0000", Reason::TrailingBytes(1)),
        ("00", Reason::Truncated),
        ("0053", Reason::Truncated),
        ("005324", Reason::Truncated),
        ("0040 40", Reason::ReservedDescriptor(0x40)),
        ("00005324 40 40", Reason::ReservedDescriptor(0)),
    ];
    for (bytes, reason) in cases {
        assert_eq!(
            decode(&hex(bytes)).map_err(|error| error.reason),
            Err(*reason),
            "{bytes}"
        );
    }
}

#[test]
fn nesting_is_limited() {
    fn nested(depth: usize) -> Vec<u8> {
        let mut bytes = vec![0x45];
        for _ in 0..depth {
            let mut outer = vec![0xd0];
            outer.extend((bytes.len() as u32 + 4).to_be_bytes());
            outer.extend(1u32.to_be_bytes());
            outer.extend(bytes);
            bytes = outer;
        }
        bytes
    }
    assert!(decode(&nested(31)).is_ok());
    assert_eq!(
        decode(&nested(32)).map_err(|error| error.reason),
        Err(Reason::TooDeep)
    );
    assert_eq!(
        decode(&nested(10_000)).map_err(|error| error.reason),
        Err(Reason::TooDeep)
    );
    let described = [&[0, 0x53, 1].repeat(40)[..], &[0x40]].concat();
    assert_eq!(
        decode(&described).map_err(|error| error.reason),
        Err(Reason::TooDeep)
    );
}

#[test]
fn arrays_of_elements_without_bytes_are_limited() {
    let array = |count: u32| {
        let mut bytes = hex("f000000005");
        bytes.extend(count.to_be_bytes());
        bytes.push(0x43);
        bytes
    };
    let most = array(MAX_EMPTY_ELEMENTS);
    let Value::Array(decoded) = decode(&most).expect("an array") else {
        panic!("no array")
    };
    assert_eq!(decoded.iter().count(), MAX_EMPTY_ELEMENTS as usize);
    assert!(decode(&array(MAX_EMPTY_ELEMENTS + 1)).is_err());
}

#[test]
fn protocol_headers_name_layer_and_version() {
    let parse = |bytes: &[u8]| ProtocolHeader::parse(bytes.try_into().expect("eight bytes"));
    assert_eq!(parse(b"AMQP\x00\x01\x00\x00"), Some(ProtocolHeader::AMQP));
    assert_eq!(parse(b"AMQP\x02\x01\x00\x00"), Some(ProtocolHeader::TLS));
    assert_eq!(parse(b"AMQP\x03\x01\x00\x00"), Some(ProtocolHeader::SASL));
    let other = parse(b"AMQP\x01\x01\x00\x0a").expect("a header");
    assert_eq!(other.id, ProtocolId::Other(1));
    assert!(!other.is_supported_version());
    assert_eq!(other.to_bytes(), *b"AMQP\x01\x01\x00\x0a");
    // AMQP 0.9.1.
    assert!(
        !parse(b"AMQP\x00\x00\x09\x01")
            .expect("a header")
            .is_supported_version()
    );
    assert_eq!(parse(b"GET / HT"), None);
    for header in [
        ProtocolHeader::AMQP,
        ProtocolHeader::TLS,
        ProtocolHeader::SASL,
    ] {
        assert!(header.is_supported_version());
        assert_eq!(ProtocolHeader::parse(&header.to_bytes()), Some(header));
    }
}

#[test]
fn frames_are_found_and_malformed_headers_refused() {
    let mut out = Vec::new();
    encode_heartbeat(&mut out);
    assert_eq!(out, hex("00000008 02000000"));
    assert_eq!(
        parse_frame(&out, 512),
        Ok(Some(Frame {
            kind: FrameKind::Amqp,
            channel: 0,
            body: &[],
            size: 8
        }))
    );
    // An extended header is skipped (section 2.3.1).
    assert_eq!(
        parse_frame(&hex("0000000d 03010002 01020304 ff 99"), 512),
        Ok(Some(Frame {
            kind: FrameKind::Sasl,
            channel: 2,
            body: &[0xff],
            size: 13
        }))
    );
    assert_eq!(parse_frame(&hex("0000000d 030000"), 512), Ok(None));
    assert_eq!(parse_frame(&hex("0000000d 03000002 010203"), 512), Ok(None));
    let cases = [
        ("00000007 02000000", FrameError::TooSmall(7)),
        (
            "00000201 02000000",
            FrameError::TooLarge {
                size: 513,
                max: 512,
            },
        ),
        (
            "ffffffff 02000000",
            FrameError::TooLarge {
                size: u32::MAX,
                max: 512,
            },
        ),
        (
            "00000008 01000000",
            FrameError::DataOffset { offset: 1, size: 8 },
        ),
        (
            "00000008 03000000",
            FrameError::DataOffset { offset: 3, size: 8 },
        ),
        ("00000008 02020000", FrameError::UnknownType(2)),
    ];
    for (bytes, error) in cases {
        assert_eq!(parse_frame(&hex(bytes), 512), Err(error), "{bytes}");
    }
}

fn frame(body: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, 1, body);
    out
}

#[test]
fn performatives_are_written_compactly() {
    let offered = [symbol("a"), symbol("bc")];
    let open = Open {
        container_id: "c",
        hostname: None,
        max_frame_size: 512,
        channel_max: u16::MAX,
        idle_time_out: None,
        outgoing_locales: Multiple::NONE,
        incoming_locales: Multiple::NONE,
        offered_capabilities: Multiple::new(&offered),
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    assert_eq!(
        encoded(&open),
        composite(
            0x10,
            8,
            "a10163 40 7000000200 40 40 40 40 e00702 a3 0161 026263"
        )
    );
    let begin = Begin {
        remote_channel: Some(1),
        next_outgoing_id: 0,
        incoming_window: 400,
        outgoing_window: u32::MAX,
        handle_max: 255,
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::NONE,
        properties: None,
    };
    assert_eq!(
        encoded(&begin),
        composite(0x11, 5, "600001 43 7000000190 70ffffffff 52ff")
    );
    assert_eq!(encoded(&End { error: None }), hex("00531745"));
    assert_eq!(encoded(&Close { error: None }), hex("00531845"));
    let detach = Detach {
        handle: 0,
        closed: true,
        error: Some(AmqpError::new(Condition::NotFound, "x")),
    };
    assert_eq!(
        encoded(&detach),
        composite(
            0x16,
            3,
            "43 41 00531d c01402 a30e616d71703a6e6f742d666f756e64 a10178"
        )
    );
    let disposition = Disposition {
        role: Role::Receiver,
        first: 3,
        last: Some(5),
        settled: true,
        state: Some(DeliveryState::ACCEPTED),
        batchable: false,
    };
    assert_eq!(
        encoded(&disposition),
        composite(0x15, 5, "41 5203 5205 41 00532445")
    );
    let transfer = Transfer {
        handle: 0,
        delivery_id: Some(1),
        delivery_tag: Some(&[9]),
        message_format: Some(0),
        ..Transfer::default()
    };
    assert_eq!(encoded(&transfer), composite(0x14, 4, "43 5201 a00109 43"));
    let flow = Flow {
        next_incoming_id: Some(1),
        incoming_window: 400,
        next_outgoing_id: 2,
        outgoing_window: 3,
        handle: None,
        delivery_count: None,
        link_credit: None,
        available: None,
        drain: false,
        echo: false,
        properties: None,
    };
    assert_eq!(
        encoded(&flow),
        composite(0x13, 4, "5201 7000000190 5202 5203")
    );
    // Composite values above 255 bytes get the long header.
    let long = "x".repeat(300);
    let open = Open {
        container_id: &long,
        hostname: None,
        ..open
    };
    let bytes = encoded(&open);
    assert_eq!(bytes[..5], hex("005310d000"));
    assert_eq!(
        Performative::decode(&bytes),
        Ok((Performative::Open(open), &[][..]))
    );
}

#[test]
fn an_attach_with_everything_decodes_to_what_was_written() {
    let capabilities = [symbol("queue"), symbol("x")];
    let outcomes = [symbol("amqp:accepted:list")];
    let mut raw = Vec::new();
    let mut filter = codec_amqp10::map(&mut raw);
    filter.push(&symbol("selector"));
    filter.push_with(|out| {
        codec_amqp10::encode_described(out, symbol("apache.org:selector-filter:string"), "a = 1")
    });
    filter.finish();
    let filter = Reader::new(&raw).read().expect("a map");
    let attach = Attach {
        name: "link",
        handle: 4,
        role: Role::Receiver,
        snd_settle_mode: SenderSettleMode::Settled,
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source {
            address: Some(Value::String("/queues/q")),
            filter: Some(filter),
            default_outcome: Some(Outcome::Modified(Modified {
                delivery_failed: true,
                undeliverable_here: false,
                message_annotations: None,
            })),
            outcomes: Multiple::new(&outcomes),
            capabilities: Multiple::new(&capabilities),
            ..Source::default()
        }),
        target: Some(AnyTarget::Target(Target {
            address: Some(Value::String("t")),
            ..Target::default()
        })),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: Some(0xffff_fffb),
        max_message_size: Some(1 << 40),
        offered_capabilities: Multiple::NONE,
        desired_capabilities: Multiple::new(&capabilities[..1]),
        properties: None,
    };
    let bytes = encoded(&attach);
    let (decoded, rest) = Performative::decode(&bytes).expect("an attach");
    assert_eq!(rest, []);
    assert_eq!(decoded, Performative::Attach(attach));
    let Performative::Attach(attach) = decoded else {
        panic!("no attach")
    };
    let source = attach.source.expect("a source");
    assert!(source.capabilities.contains("queue") && !source.capabilities.contains("que"));
    let Some(Value::Described(selector)) = source.filter.and_then(|filter| filter.get("selector"))
    else {
        panic!("no filter")
    };
    assert_eq!(selector.value(), Value::String("a = 1"));
}

#[test]
fn symbolic_descriptors_and_single_symbols_are_understood() {
    let mut bytes = vec![0, 0xa3, 17];
    bytes.extend(b"amqp:transfer:list");
    assert!(
        Performative::decode(&bytes).is_err(),
        "the symbol is longer than its size"
    );
    bytes[2] = 18;
    bytes.extend(hex("c00201 43"));
    let transfer = Performative::Transfer(Transfer::default());
    assert_eq!(Performative::decode(&bytes), Ok((transfer, &[][..])));
    let mechanisms = composite(0x40, 1, "a305504c41494e");
    let SaslFrame::Mechanisms(mechanisms) = SaslFrame::decode(&mechanisms).expect("mechanisms")
    else {
        panic!("no mechanisms")
    };
    assert!(
        mechanisms
            .sasl_server_mechanisms
            .iter()
            .eq([symbol("PLAIN")])
    );
}

#[test]
fn sasl_frames_are_written_and_read() {
    let mechanisms = [symbol("PLAIN"), symbol("ANONYMOUS")];
    let frames = [
        SaslFrame::Mechanisms(SaslMechanisms {
            sasl_server_mechanisms: Multiple::new(&mechanisms),
        }),
        SaslFrame::Init(SaslInit {
            mechanism: symbol("PLAIN"),
            initial_response: Some(b"\0u\0p"),
            hostname: Some("h"),
        }),
        SaslFrame::Challenge(codec_amqp10::SaslChallenge { challenge: b"c" }),
        SaslFrame::Response(codec_amqp10::SaslResponse { response: b"r" }),
        SaslFrame::Outcome(SaslOutcome {
            code: SaslCode::Auth,
            additional_data: None,
        }),
    ];
    for expected in frames {
        let mut out = Vec::new();
        encode_sasl_frame(&mut out, &expected);
        let frame = parse_frame(&out, 512)
            .expect("a frame")
            .expect("a whole frame");
        assert_eq!(frame.kind, FrameKind::Sasl);
        assert_eq!(SaslFrame::decode(frame.body), Ok(expected));
    }
}

/// Frame bodies with a broken field, and the text and condition of the error.
#[test]
fn errors_name_performative_field_and_condition() {
    let raw = |text: &str| hex(text);
    let cases: Vec<(Vec<u8>, &str, Condition<'_>)> = vec![
        (
            composite(0x10, 0, ""),
            "open: field 'container-id': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x10, 1, "40"),
            "open: field 'container-id': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x10, 1, "41"),
            "open: field 'container-id': expected string, found format code 0x41",
            Condition::InvalidField,
        ),
        (
            composite(0x11, 1, "40"),
            "begin: field 'next-outgoing-id': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x11, 2, "40 43"),
            "begin: field 'incoming-window': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x11, 3, "40 43 43"),
            "begin: field 'outgoing-window': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            raw("00531245"),
            "attach: field 'name': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 1, "a10178"),
            "attach: field 'handle': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 2, "a10178 43"),
            "attach: field 'role': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 4, "a10178 43 41 5003"),
            "attach: field 'snd-settle-mode': 3 is not a valid sender-settle-mode",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 5, "a10178 43 41 40 5002"),
            "attach: field 'rcv-settle-mode': 2 is not a valid receiver-settle-mode",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 6, "a10178 43 41 40 40 41"),
            "attach: source: expected a described type, found format code 0x41",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 6, "a10178 43 41 40 40 005329 45"),
            "attach: source: unknown descriptor 0x29",
            Condition::NotImplemented,
        ),
        (
            composite(0x12, 6, "a10178 43 41 40 40 005328 c00302 40 41"),
            "attach: field 'durable' of source: expected uint, found format code 0x41",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 6, "a10178 43 41 40 40 005328 c00402 40 5203"),
            "attach: field 'durable' of source: 3 is not a valid terminus-durability",
            Condition::InvalidField,
        ),
        (
            composite(0x12, 6, "a10178 43 41 40 40 005328 c00603 40 40 a30178"),
            "attach: field 'expiry-policy' of source: unknown terminus-expiry-policy",
            Condition::InvalidField,
        ),
        (
            raw("00531345"),
            "flow: field 'incoming-window': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x13, 3, "40 43 40"),
            "flow: field 'next-outgoing-id': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x13, 4, "40 43 43 40"),
            "flow: field 'outgoing-window': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            raw("00531445"),
            "transfer: field 'handle': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            raw("00531545"),
            "disposition: field 'role': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x15, 1, "41"),
            "disposition: field 'first': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            raw("00531645"),
            "detach: field 'handle': missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x17, 1, "00531d c00201 40"),
            "end: field 'condition' of error: missing mandatory field",
            Condition::InvalidField,
        ),
        (
            composite(0x18, 2, "40 40"),
            "close: 2 fields, at most 1 are defined",
            Condition::DecodeError,
        ),
        (
            raw("00531845ff"),
            "close: 1 bytes follow the last element",
            Condition::DecodeError,
        ),
        (
            composite(0x18, 1, "40 40"),
            "close: 1 bytes follow the last element",
            Condition::DecodeError,
        ),
        (
            raw("00531840"),
            "close: expected list, found format code 0x40",
            Condition::InvalidField,
        ),
        (
            raw("00531945"),
            "unknown descriptor 0x19",
            Condition::NotImplemented,
        ),
        (
            raw("00a3017845"),
            "unknown symbolic descriptor",
            Condition::NotImplemented,
        ),
        (
            raw("40"),
            "expected a described type, found format code 0x40",
            Condition::InvalidField,
        ),
        (
            composite(0x14, 3, "43 43 a021"),
            "transfer: field 'delivery-tag': the bytes end within a value",
            Condition::DecodeError,
        ),
        (
            composite(0x14, 3, &format!("43 43 a021 {}", "00".repeat(33))),
            "transfer: field 'delivery-tag': a delivery tag of 33 bytes is longer than 32",
            Condition::InvalidField,
        ),
        (
            composite(0x14, 5, "43 43 40 43 5602"),
            "transfer: field 'settled': 0x02 is not a boolean",
            Condition::DecodeError,
        ),
        (
            raw("005314c00aff43"),
            "transfer: the bytes end within a value",
            Condition::DecodeError,
        ),
        (
            composite(0x14, 255, "43"),
            "transfer: 255 elements in 1 bytes",
            Condition::DecodeError,
        ),
    ];
    for (bytes, text, condition) in cases {
        let error = Performative::decode(&bytes).expect_err(text);
        assert!(
            error.to_string().starts_with(text),
            "{bytes:02x?}: '{error}', expected '{text}'"
        );
        assert_eq!(error.condition(), condition, "{text}");
    }
}

#[test]
fn conditions_have_their_symbols_and_unknown_ones_are_kept() {
    for condition in Condition::STANDARD {
        assert_eq!(Condition::from(condition.symbol()), *condition);
    }
    let own = Condition::from(symbol("com.example:own"));
    assert_eq!(own, Condition::Other(symbol("com.example:own")));
    assert_eq!(
        Condition::WindowViolation.symbol().as_str(),
        "amqp:session:window-violation"
    );
}

#[test]
fn unknown_delivery_states_are_kept_and_transactional_states_do_not_nest() {
    let bytes = hex("005399 c00201 41");
    let state: DeliveryState<'_> = Reader::new(&bytes).read().expect("a state");
    assert!(matches!(state, DeliveryState::Other(_)) && !state.is_terminal());
    assert_eq!(encoded(&state), bytes);
    let accepted = hex("005334 c00802 a00101 00532445");
    let state: DeliveryState<'_> = Reader::new(&accepted).read().expect("a state");
    assert!(state.is_terminal());
    assert_eq!(encoded(&state), accepted);
    let mut nested = hex("00532445");
    for _ in 0..20 {
        let mut outer = hex("005334");
        outer.extend([0xc0, nested.len() as u8 + 4, 2, 0xa0, 1, 1]);
        outer.append(&mut nested);
        nested = outer;
    }
    assert!(Reader::new(&nested).read::<DeliveryState<'_>>().is_err());
}

#[test]
fn a_message_keeps_its_bytes_and_gives_its_sections() {
    let message = hex("005370 c00201 41
         005371 c10602 a30161 5401
         005372 c10602 a30162 5402
         005373 c00401 a10131
         005374 c10702 a10163 a10164
         005375 a00161 005375 a00162
         005378 c10100");
    let sections = Sections::parse(&message).expect("a message");
    assert!(sections.read_header(&message).expect("a header").durable);
    let properties = sections.read_properties(&message).expect("properties");
    assert_eq!(properties.message_id, Some(Value::String("1")));
    let annotations = sections
        .read_map(sections.message_annotations, &message)
        .expect("annotations");
    assert_eq!(annotations.get("b"), Some(Value::Int(2)));
    let application = sections
        .read_map(sections.application_properties, &message)
        .expect("properties");
    assert_eq!(application.get("c"), Some(Value::String("d")));
    let body = sections.body.expect("a body");
    assert_eq!((body.kind, body.count), (SectionKind::Data, 2));
    let data: Vec<_> = sections
        .read_body(&message)
        .map(|value| value.expect("data"))
        .collect();
    assert_eq!(data, [Value::Binary(b"a"), Value::Binary(b"b")]);
    assert_eq!(
        message[sections.bare()],
        hex("005373 c00401 a10131 005374 c10702 a10163 a10164 005375 a00161 005375 a00162")
    );
    assert_eq!(
        sections.after_annotations(),
        sections.bare().start..message.len()
    );

    let empty = Sections::parse(&[]).expect("a message without sections");
    assert_eq!((empty.body, empty.bare()), (None, 0..0));
    assert_eq!(empty.read_header(&[]), Ok(Header::default()));
    assert_eq!(empty.read_properties(&[]), Ok(Properties::default()));
}

#[test]
fn messages_with_broken_sections_are_refused() {
    let cases = [
        // Order and repetition.
        ("005373 45 005370 45", Reason::SectionOrder(0x70)),
        ("005370 45 005370 45", Reason::SectionOrder(0x70)),
        ("005377 40 005377 40", Reason::SectionOrder(0x77)),
        ("005375 a000 005376 45", Reason::SectionOrder(0x76)),
        ("005375 a000 005373 45", Reason::SectionOrder(0x73)),
        ("005378 c10100 005378 c10100", Reason::SectionOrder(0x78)),
        ("005378 c10100 005375 a000", Reason::SectionOrder(0x75)),
        // Values of the wrong type.
        (
            "005370 41",
            Reason::WrongType {
                expected: "list",
                found: 0x41,
            },
        ),
        (
            "005372 45",
            Reason::WrongType {
                expected: "map",
                found: 0x45,
            },
        ),
        (
            "005375 45",
            Reason::WrongType {
                expected: "binary",
                found: 0x45,
            },
        ),
        (
            "005376 a000",
            Reason::WrongType {
                expected: "list",
                found: 0xa0,
            },
        ),
        // No section at all.
        ("005379 45", Reason::UnknownDescriptor(0x79)),
        ("005324 45", Reason::UnknownDescriptor(0x24)),
        (
            "45",
            Reason::WrongType {
                expected: "a described type",
                found: 0x45,
            },
        ),
        ("005375", Reason::Truncated),
        ("005375 a005 00", Reason::Truncated),
        ("005374 c10302 a105", Reason::Truncated),
        (
            "005370 c00706 4040404040 40",
            Reason::TooManyFields { known: 5, found: 6 },
        ),
    ];
    for (bytes, reason) in cases {
        let error = Sections::parse(&hex(bytes)).expect_err(bytes);
        assert_eq!(error.reason, reason, "{bytes}");
        assert_eq!(error.performative, Some("message"));
    }
}

#[test]
fn a_payload_is_split_at_the_frame_size_and_none_of_it_is_lost() {
    let payload: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
    for cut in [0, 1, 700, 2000] {
        let parts = [&payload[..cut], &payload[cut..]];
        let (mut sent, mut frames, mut out) = (0, 0, Vec::new());
        loop {
            let mut transfer = Transfer {
                handle: 1,
                ..Transfer::default()
            };
            if sent == 0 {
                transfer.delivery_id = Some(70_000);
                transfer.delivery_tag = Some(&[7; 32]);
            }
            sent += encode_transfer_frame(&mut out, 3, &mut transfer, &parts, sent, 512);
            frames += 1;
            if !transfer.more {
                break;
            }
        }
        assert_eq!((sent, frames), (2000, 5));
        let (mut rest, mut received) = (&out[..], Vec::<u8>::new());
        while let Some(frame) = parse_frame(rest, 512).expect("frames") {
            let (performative, part) = Performative::decode(frame.body).expect("a transfer");
            let Performative::Transfer(transfer) = performative else {
                panic!("no transfer")
            };
            received.extend(part);
            rest = &rest[frame.size..];
            assert_eq!(transfer.more, !rest.is_empty());
            assert_eq!(
                transfer.more,
                frame.size == 512,
                "every frame but the last is full"
            );
        }
        assert_eq!(received, payload);
    }
    assert_eq!(frame(&End { error: None }).len(), 12);
}

/// Both are written in one piece, into buffers of the size of the longest ones.
#[test]
fn longest_header_and_transfer_have_room() {
    let header = Header {
        durable: true,
        priority: u8::MAX,
        ttl: Some(u32::MAX),
        first_acquirer: true,
        delivery_count: u32::MAX,
    };
    let mut section = Vec::new();
    header.encode_section(&mut section);
    let sections = Sections::parse(&section).expect("a header");
    assert_eq!(sections.read_header(&section), Ok(header));
    let mut transfer = Transfer {
        handle: u32::MAX,
        delivery_id: Some(u32::MAX),
        delivery_tag: Some(&[7; 32]),
        message_format: Some(u32::MAX),
        settled: Some(true),
        more: false,
        rcv_settle_mode: Some(ReceiverSettleMode::Second),
        state: None,
        resume: true,
        aborted: true,
        batchable: true,
    };
    let mut out = Vec::new();
    // The payload does not fit, so that every field is written.
    let payload = [0; 600];
    encode_transfer_frame(&mut out, u16::MAX, &mut transfer, &[&payload], 0, 512);
    assert!(transfer.more);
    let frame = parse_frame(&out, 512)
        .expect("a frame")
        .expect("a whole frame");
    let (decoded, _) = Performative::decode(frame.body).expect("a transfer");
    assert_eq!(decoded, Performative::Transfer(transfer));
}
