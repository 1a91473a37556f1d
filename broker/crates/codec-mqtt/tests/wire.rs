//! Single packets byte by byte: corner cases of the format, and errors. Statement numbers are those
//! of MQTT 5.0, or of 3.1.1 where the test says so.

use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, ConnAck, Connect, DecodeError, Disconnect, ForwardedPublish, Packet, PacketType,
    Properties, PropertyLocation, Qos, ReasonCode, Version, encode_pingresp, is_bridge,
    parse_frame, shared,
};

fn decode(raw: &[u8], version: Version) -> Result<Packet<'_>, DecodeError> {
    let frame = parse_frame(raw, 1 << 20)?.expect("a whole packet");
    Packet::decode(&frame, version)
}

fn decode_error(raw: &[u8], version: Version) -> DecodeError {
    decode(raw, version).expect_err("must be refused")
}

fn encoded(packet: &Packet<'_>, version: Version) -> Vec<u8> {
    let mut out = BytesMut::new();
    packet.encode(version, &mut out);
    out.to_vec()
}

/// Flags 0xCE, keep alive 10, a will with QoS 1, user name and password, and one extra byte.
const CONNECT_311: &[u8] = &[
    0x10, 0x1E, 0, 4, b'M', b'Q', b'T', b'T', 4, 0xCE, 0, 10, 0, 1, b'c', 0, 1, b'w', 0, 2, b'm',
    b's', 0, 2, b'u', b's', 0, 3, b'p', b'w', b'd', 0,
];

#[test]
fn connect_of_3_1_1_is_decoded_byte_by_byte() {
    // 3.1.1: [MQTT-3.1.2-9], [MQTT-3.1.3-1], [MQTT-3.1.3-3]
    let mut raw = CONNECT_311.to_vec();
    raw.pop();
    raw[1] = (raw.len() - 2) as u8;
    let Ok(Packet::Connect(connect)) = decode(&raw, Version::V311) else {
        panic!("{:?}", decode(&raw, Version::V311));
    };
    assert_eq!((connect.version, connect.keep_alive), (Version::V311, 10));
    assert!(connect.clean_start);
    let will = connect.will.unwrap();
    assert_eq!((will.qos, will.retain), (Qos::AtLeastOnce, false));
    assert_eq!((will.topic, will.payload), ("w", &b"ms"[..]));
    assert_eq!(
        (connect.user_name, connect.password),
        (Some("us"), Some(&b"pwd"[..]))
    );
    assert_eq!(encoded(&Packet::Connect(connect), Version::V311), raw);
    // [MQTT-3.1.2-9], [MQTT-3.1.3-1]: the will's fields, where they belong. One byte more than they have.
    raw.push(0);
    raw[1] += 1;
    assert_eq!(decode_error(&raw, Version::V311), DecodeError::Trailing(1));
}

#[test]
fn connect_rejects_contradictory_flags() {
    // 3.1.1: [MQTT-3.1.2-11], [MQTT-3.1.2-14], [MQTT-3.1.2-18], [MQTT-3.1.2-19], [MQTT-3.1.2-20], [MQTT-3.1.2-21]
    let with = |flags: u8, level: u8| {
        let mut raw = vec![0x10, 0, 0, 4, b'M', b'Q', b'T', b'T', level, flags, 0, 10];
        if level == 5 {
            raw.push(0);
        }
        raw.extend([0, 1, b'c']);
        if level == 5 && flags & 0x04 != 0 {
            raw.push(0);
        }
        raw.extend([0, 1, b'w', 0, 1, b'm', 0, 1, b'u', 0, 1, b'p']);
        raw[1] = (raw.len() - 2) as u8;
        decode(&raw, Version::V311).map(|_| ())
    };
    for level in [4, 5] {
        // [MQTT-3.1.2-3]
        assert_eq!(with(0x01, level), Err(DecodeError::ReservedBit));
        // [MQTT-3.1.2-11] and [MQTT-3.1.2-13]; 3.1.1: [MQTT-3.1.2-13] and [MQTT-3.1.2-15]
        assert_eq!(with(0x08, level), Err(DecodeError::WillFlags));
        assert_eq!(with(0x20, level), Err(DecodeError::WillFlags));
        // What the flags do not announce is left over: [MQTT-3.1.2-16] to [MQTT-3.1.2-19].
        assert_eq!(with(0x02, level), Err(DecodeError::Trailing(12)));
        assert_eq!(with(0x84, level), Err(DecodeError::Trailing(3)));
    }
    // 3.1.1: [MQTT-3.1.2-22]
    assert_eq!(with(0x44, 4), Err(DecodeError::PasswordWithoutUser));
    // [MQTT-3.1.2-12]; the will's fields would follow.
    assert_eq!(with(0xDC, 4), Err(DecodeError::Qos));
}

#[test]
fn protocol_name_and_level_must_match() {
    let with = |name: &[u8], level: u8| {
        let mut raw = vec![0x10, 0, 0, name.len() as u8];
        raw.extend(name);
        raw.extend([level, 2, 0, 10]);
        if level == 5 {
            raw.push(0);
        }
        raw.extend([0, 1, b'c']);
        raw[1] = (raw.len() - 2) as u8;
        decode(&raw, Version::V311).map(|_| ())
    };
    for (name, level) in [(&b"MQIsdp"[..], 3), (b"MQTT", 4), (b"MQTT", 5)] {
        assert_eq!(with(name, level), Ok(()));
    }
    // As Mosquitto's bridges send it.
    for (name, level) in [(&b"MQIsdp"[..], 0x83), (b"MQTT", 0x84)] {
        assert_eq!(with(name, level), Ok(()));
    }
    for (body, bridge) in [
        (&b"\0\x04MQTT\x84"[..], true),
        (b"\0\x04MQTT\x04", false),
        (b"\0\x04MQT", false),
        (b"", false),
    ] {
        assert_eq!(is_bridge(body), bridge);
    }
    // [MQTT-3.1.2-1]
    for name in [&b"MQTt"[..], b"", b"HTTP", b"\xFF\xFE"] {
        assert_eq!(with(name, 4), Err(DecodeError::ProtocolName));
    }
    // [MQTT-3.1.2-2]
    for (name, level) in [
        (&b"MQTT"[..], 6),
        (b"MQTT", 3),
        (b"MQTT", 0),
        (b"MQIsdp", 4),
        (b"MQTT", 0x83),
        (b"MQIsdp", 0x84),
        (b"MQTT", 0x85),
    ] {
        let error = DecodeError::ProtocolLevel(level);
        assert_eq!(with(name, level), Err(error));
        assert_eq!(error.reason(), ReasonCode::UnsupportedProtocolVersion);
    }
}

#[test]
fn dup_is_allowed_on_more_packets_in_3_1() {
    // Its section 2.1. 3.1.1: [MQTT-2.2.2-1]
    for raw in [
        &[0x6A, 2, 0, 1][..],
        &[0x8A, 6, 0, 1, 0, 1, b'a', 0],
        &[0xAA, 5, 0, 1, 0, 1, b'a'],
    ] {
        let frame = parse_frame(raw, 100).unwrap().unwrap();
        assert!(Packet::decode(&frame, Version::V31).is_ok());
        for version in [Version::V311, Version::V5] {
            let flags = DecodeError::Flags(frame.kind, 0b1010);
            assert_eq!(Packet::decode(&frame, version), Err(flags));
        }
    }
    // 3.1 does not define the lowest bit of the connect flags either.
    let name = [0x10, 15, 0, 6, b'M', b'Q', b'I', b's', b'd', b'p', 3];
    let raw = [&name[..], &[1, 0, 0, 0, 1, b'c']].concat();
    let frame = parse_frame(&raw, 100).unwrap().unwrap();
    assert!(Packet::decode(&frame, Version::V31).is_ok());
}

#[test]
fn connect_header_flags_are_ignored_in_3_1() {
    let three = [
        15, 0, 6, b'M', b'Q', b'I', b's', b'd', b'p', 3, 2, 0, 0, 0, 1, b'c',
    ];
    // [MQTT-2.1.3-1]; 3.1.1: [MQTT-2.2.2-1]
    let four = [13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, b'c'];
    let five = [14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, b'c'];
    for flags in 1..16 {
        let decoded = |rest: &[u8]| {
            let raw = [&[0x10 | flags], rest].concat();
            let frame = parse_frame(&raw, 100).unwrap().unwrap();
            Packet::decode(&frame, Version::V311).map(|_| ())
        };
        let decode_error = Err(DecodeError::Flags(PacketType::Connect, flags));
        assert_eq!(decoded(&three), Ok(()));
        assert_eq!(
            (decoded(&four), decoded(&five)),
            (decode_error, decode_error)
        );
    }
}

#[test]
fn header_is_validated_before_body_arrives() {
    // 3.1.1: [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.14.1-1]
    // [MQTT-2.1.3-1], [MQTT-3.6.1-1]; 3.1.1: [MQTT-2.2.2-1], [MQTT-2.2.2-2]
    for (first, kind) in [
        (0x60, PacketType::PubRel),
        (0x80, PacketType::Subscribe),
        (0xA0, PacketType::Unsubscribe),
        (0xC1, PacketType::PingReq),
        (0xE1, PacketType::Disconnect),
        (0xF2, PacketType::Auth),
    ] {
        assert_eq!(
            parse_frame(&[first], 100),
            Err(DecodeError::Flags(kind, first & 15))
        );
    }
    assert_eq!(
        parse_frame(&[0x00, 0], 100),
        Err(DecodeError::UnknownKind(0))
    );
    assert_eq!(
        parse_frame(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], 100),
        Err(DecodeError::TooLarge {
            size: 268_435_460,
            max: 100
        })
    );
    assert_eq!(
        parse_frame(&[0x30, 99], 100),
        Err(DecodeError::TooLarge {
            size: 101,
            max: 100
        })
    );
    assert_eq!(parse_frame(&[0x30, 98], 100), Ok(None));
    assert_eq!(
        parse_frame(&[0x30, 0x80, 0x80, 0x80, 0x80], 100),
        Err(DecodeError::LengthEncoding)
    );
    assert_eq!(parse_frame(&[0x30, 0x80, 0x80, 0x80], 100), Ok(None));
}

#[test]
fn overlong_length_is_rejected_in_5() {
    // [MQTT-1.5.5-1]
    let ping = [0xC0, 0x80, 0x00];
    assert_eq!(decode(&ping, Version::V311), Ok(Packet::PingReq));
    assert_eq!(
        decode_error(&ping, Version::V5),
        DecodeError::LengthEncoding
    );
    // The length of properties.
    let publish = [0x30, 5, 0, 1, b'a', 0x80, 0x00];
    assert_eq!(
        decode_error(&publish, Version::V5),
        DecodeError::LengthEncoding
    );
}

#[test]
fn strings_are_utf8_without_null() {
    // 3.1.1: [MQTT-1.5.3-3]
    let publish = |topic: &[u8]| {
        let mut raw = vec![0x30, topic.len() as u8 + 2, 0, topic.len() as u8];
        raw.extend(topic);
        decode(&raw, Version::V311).map(|_| ())
    };
    // [MQTT-1.5.4-1]; 3.1.1: [MQTT-1.5.3-1]. A surrogate, a byte alone, an overlong encoding.
    for topic in [&b"\xED\xA0\x80"[..], b"a\xFF", b"\xC0\x80"] {
        assert_eq!(publish(topic), Err(DecodeError::Utf8));
    }
    // [MQTT-1.5.4-2]; 3.1.1: [MQTT-1.5.3-2]
    assert_eq!(publish(b"a\0b"), Err(DecodeError::NullCharacter));
    // [MQTT-1.5.4-3]: a byte order mark stays.
    let raw = [0x30, 5, 0, 3, 0xEF, 0xBB, 0xBF];
    let Ok(Packet::Publish(publish)) = decode(&raw, Version::V311) else {
        panic!("refused");
    };
    assert_eq!(publish.topic, "\u{FEFF}");
}

#[test]
fn names_reject_unwanted_characters() {
    // Section 1.5.4.2: what a receiver may treat as malformed. mosquitto does, of names and of all other text.
    for bad in [
        "a\u{1}",
        "a\u{1F}b",
        "\u{7F}",
        "a\u{9F}",
        "\u{FFFF}",
        "\u{FDD0}",
        "\u{1FFFE}",
    ] {
        let mut raw = vec![0x30, bad.len() as u8 + 2, 0, bad.len() as u8];
        raw.extend(bad.as_bytes());
        assert_eq!(
            decode_error(&raw, Version::V311),
            DecodeError::UnwantedCharacter,
            "{bad:?}"
        );
    }
    for good in ["a b", "a~", "ä/\u{A0}", "\u{FFFD}", "\u{1F4EF}"] {
        let mut raw = vec![0x30, good.len() as u8 + 2, 0, good.len() as u8];
        raw.extend(good.as_bytes());
        assert!(decode(&raw, Version::V311).is_ok(), "{good:?}");
    }
    let connect = [
        0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, 7,
    ];
    let error = decode_error(&connect, Version::V5);
    assert_eq!(error.reason(), ReasonCode::ClientIdentifierNotValid);
    // Text for humans may contain line breaks.
    let raw = [0x30, 11, 0, 1, b'a', 7, 0x26, 0, 1, b'k', 0, 1, b'\n'];
    assert!(decode(&raw, Version::V5).is_ok());
}

#[test]
fn publish_rejects_invalid_fields() {
    // 3.1.1: [MQTT-3.3.1-4], [MQTT-3.3.2-1], [MQTT-3.3.2-2], [MQTT-4.7.1-1], [MQTT-4.7.3-1]
    // [MQTT-3.3.1-4]
    assert_eq!(
        decode_error(&[0x36, 5, 0, 1, b'a', 0, 1], Version::V311),
        DecodeError::Qos
    );
    // [MQTT-3.3.1-2]
    assert_eq!(
        decode_error(&[0x38, 3, 0, 1, b'a'], Version::V311),
        DecodeError::DupWithoutQos
    );
    // 3.1.1: [MQTT-2.3.1-1]
    assert_eq!(
        decode_error(&[0x32, 5, 0, 1, b'a', 0, 0], Version::V311),
        DecodeError::PacketId
    );
    // [MQTT-3.3.2-2], [MQTT-4.7.0-1], [MQTT-4.7.3-1]
    for raw in [
        &[0x30, 3, 0, 1, b'#'][..],
        &[0x30, 5, 0, 3, b'a', b'/', b'+'],
        &[0x30, 2, 0, 0],
    ] {
        assert_eq!(decode_error(raw, Version::V311), DecodeError::TopicName);
    }
    // Section 3.3.2.1: neither a topic nor an alias.
    let error = decode_error(&[0x30, 3, 0, 0, 0], Version::V5);
    assert_eq!(error.reason(), ReasonCode::ProtocolError);
    // [MQTT-3.3.2-8]
    let error = decode_error(&[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 0], Version::V5);
    assert_eq!(error.reason(), ReasonCode::TopicAliasInvalid);
    // [MQTT-3.3.2-14]
    let raw = [0x30, 8, 0, 1, b'a', 4, 0x08, 0, 1, b'#'];
    assert_eq!(decode_error(&raw, Version::V5), DecodeError::ResponseTopic);
    assert_eq!(
        decode_error(&[0x30, 1, 0], Version::V311),
        DecodeError::Short
    );
}

#[test]
fn properties_are_unique_valid_and_in_the_right_packet() {
    let publish =
        |section: &[u8]| Properties::decode(section, PropertyLocation::Publish).map(|_| ());
    assert_eq!(publish(&[0x01, 2]), Err(DecodeError::PropertyValue(0x01)));
    assert_eq!(
        publish(&[0x01, 1, 0x01, 1]),
        Err(DecodeError::PropertyTwice(0x01))
    );
    assert_eq!(
        publish(&[0x11, 0, 0, 0, 1]),
        Err(DecodeError::PropertyMisplaced(0x11))
    );
    assert_eq!(publish(&[0x7F]), Err(DecodeError::UnknownProperty(0x7F)));
    assert_eq!(
        publish(&[0x80, 0x01]),
        Err(DecodeError::UnknownProperty(0x80))
    );
    assert_eq!(publish(&[0x80, 0x02]), Err(DecodeError::LengthEncoding));
    assert_eq!(publish(&[0x0B, 0]), Err(DecodeError::PropertyValue(0x0B)));
    assert_eq!(publish(&[0x26, 0, 1, b'a']), Err(DecodeError::Short));
    assert_eq!(publish(&[0x26, 0, 1, 0xFF, 0, 0]), Err(DecodeError::Utf8));
    let connect =
        |section: &[u8]| Properties::decode(section, PropertyLocation::Connect).map(|_| ());
    assert_eq!(
        connect(&[0x21, 0, 0]),
        Err(DecodeError::PropertyValue(0x21))
    );
    assert_eq!(
        connect(&[0x27, 0, 0, 0, 0]),
        Err(DecodeError::PropertyValue(0x27))
    );
    assert_eq!(
        connect(&[0x16, 0, 0]),
        Err(DecodeError::AuthenticationMethod)
    );
    assert_eq!(
        connect(&[0x0B, 1]),
        Err(DecodeError::PropertyMisplaced(0x0B))
    );
    let subscribe = Properties::decode(&[0x0B, 1, 0x0B, 2], PropertyLocation::Subscribe);
    assert_eq!(subscribe, Err(DecodeError::PropertyTwice(0x0B)));
}

#[test]
fn subscribe_needs_a_filter_and_no_reserved_bits() {
    // [MQTT-3.8.3-2] and [MQTT-3.10.3-2]; 3.1.1: [MQTT-3.8.3-3], [MQTT-3.10.3-2]
    assert_eq!(
        decode_error(&[0x82, 2, 0, 1], Version::V311),
        DecodeError::NoFilter
    );
    assert_eq!(
        decode_error(&[0x82, 3, 0, 1, 0], Version::V5),
        DecodeError::NoFilter
    );
    assert_eq!(
        decode_error(&[0xA2, 2, 0, 1], Version::V311),
        DecodeError::NoFilter
    );
    let with = |options: u8, version: Version| {
        let five = [0x82, 7, 0, 1, 0, 0, 1, b'a', options];
        let three = [0x82, 6, 0, 1, 0, 1, b'a', options];
        match version {
            Version::V5 => decode(&five, version).map(|_| ()),
            _ => decode(&three, version).map(|_| ()),
        }
    };
    assert_eq!(with(0x2E, Version::V5), Ok(()));
    // [MQTT-3.8.3-5]; 3.1.1: [MQTT-3.8.3-4]
    assert_eq!(with(0x40, Version::V5), Err(DecodeError::ReservedBit));
    assert_eq!(with(0x04, Version::V311), Err(DecodeError::ReservedBit));
    assert_eq!(with(0x03, Version::V5), Err(DecodeError::Qos));
    assert_eq!(with(0x30, Version::V5), Err(DecodeError::RetainHandling));
    // [MQTT-3.8.3-4]
    let mut raw = vec![0x82, 0, 0, 1, 0, 0, 10];
    raw.extend(b"$share/g/a\x04");
    raw[1] = (raw.len() - 2) as u8;
    assert_eq!(decode_error(&raw, Version::V5), DecodeError::NoLocalShared);
    assert_eq!(
        decode_error(&[0x82, 6, 0, 0, 0, 1, b'a', 0], Version::V311),
        DecodeError::SubscriptionPacketId
    );
    // [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    assert_eq!(shared("$share/a"), Err(DecodeError::SharedFilter));
}

#[test]
fn acknowledgements_have_a_short_form() {
    let ack = Ack::new(AckKind::PubAck, 7, ReasonCode::Success);
    assert_eq!(encoded(&Packet::Ack(ack), Version::V5), [0x40, 2, 0, 7]);
    assert_eq!(
        decode(&[0x40, 3, 0, 7, 0], Version::V5),
        Ok(Packet::Ack(ack))
    );
    assert_eq!(
        decode(&[0x40, 4, 0, 7, 0, 0], Version::V5),
        Ok(Packet::Ack(ack))
    );
    let none = Ack::new(AckKind::PubAck, 7, ReasonCode::NoMatchingSubscribers);
    assert_eq!(
        encoded(&Packet::Ack(none), Version::V5),
        [0x40, 3, 0, 7, 0x10]
    );
    assert_eq!(encoded(&Packet::Ack(none), Version::V311), [0x40, 2, 0, 7]);
    let rel = Ack::new(AckKind::PubRel, 7, ReasonCode::Success);
    assert_eq!(encoded(&Packet::Ack(rel), Version::V311), [0x62, 2, 0, 7]);
    // [MQTT-3.4.2-1]
    assert_eq!(
        decode_error(&[0x40, 3, 0, 7, 0x8E], Version::V5),
        DecodeError::ReasonCode(0x8E)
    );
    assert_eq!(
        decode_error(&[0x40, 3, 0, 7, 0x0F], Version::V5),
        DecodeError::ReasonCode(0x0F)
    );
    // [MQTT-3.6.2-1]
    assert_eq!(
        decode_error(&[0x62, 3, 0, 7, 0x10], Version::V5),
        DecodeError::ReasonCode(0x10)
    );
    assert_eq!(
        decode_error(&[0x40, 3, 0, 7, 0], Version::V311),
        DecodeError::Trailing(1)
    );
    assert_eq!(
        decode_error(&[0x40, 2, 0, 0], Version::V311),
        DecodeError::PacketId
    );
}

#[test]
fn disconnect_and_auth_are_decoded() {
    let normal = Disconnect {
        reason: ReasonCode::Success,
        properties: Properties::default(),
    };
    assert_eq!(encoded(&Packet::Disconnect(normal), Version::V5), [0xE0, 0]);
    let taken = Disconnect {
        reason: ReasonCode::SessionTakenOver,
        ..normal
    };
    assert_eq!(
        encoded(&Packet::Disconnect(taken), Version::V5),
        [0xE0, 1, 0x8E]
    );
    assert_eq!(
        decode(&[0xE0, 0], Version::V311),
        Ok(Packet::Disconnect(normal))
    );
    assert_eq!(
        decode_error(&[0xE0, 1, 0], Version::V311),
        DecodeError::Trailing(1)
    );
    assert_eq!(
        decode_error(&[0xE0, 1, 0x01], Version::V5),
        DecodeError::ReasonCode(1)
    );
    assert_eq!(
        decode_error(&[0xE0, 1, 0x85], Version::V5),
        DecodeError::ReasonCode(0x85)
    );
    // AUTH exists since 5.0.
    assert_eq!(
        decode_error(&[0xF0, 0], Version::V311),
        DecodeError::UnknownKind(15)
    );
    assert_eq!(
        decode_error(&[0xF0, 2, 0x81, 0], Version::V5),
        DecodeError::ReasonCode(0x81)
    );
    assert_eq!(
        decode_error(&[0xC0, 1, 0], Version::V5),
        DecodeError::Trailing(1)
    );
}

#[test]
fn server_packets_are_decoded() {
    let decode_error = ConnAck {
        session_present: false,
        reason: ReasonCode::BadUserNameOrPassword,
        properties: Properties::default(),
    };
    assert_eq!(
        encoded(&Packet::ConnAck(decode_error), Version::V311),
        [0x20, 2, 0, 4]
    );
    assert_eq!(
        encoded(&Packet::ConnAck(decode_error), Version::V5),
        [0x20, 3, 0, 0x86, 0]
    );
    let present = ConnAck {
        session_present: true,
        reason: ReasonCode::Success,
        ..decode_error
    };
    assert_eq!(
        encoded(&Packet::ConnAck(present), Version::V311),
        [0x20, 2, 1, 0]
    );
    assert_eq!(
        encoded(&Packet::ConnAck(present), Version::V31),
        [0x20, 2, 0, 0]
    );
    let mut out = BytesMut::new();
    encode_pingresp(&mut out);
    assert_eq!(&out[..], [0xD0, 0]);
    let forward = ForwardedPublish {
        dup: false,
        qos: Qos::AtLeastOnce,
        retain: true,
        topic: b"a/b",
        packet_id: 10,
        message_expiry: Some(5),
        alias: Some(3),
        subscription_identifiers: &[1, 200],
        kept: &[0x01, 1],
    };
    let mut out = BytesMut::new();
    forward.encode_head(Version::V5, 2, &mut out);
    let five = [
        0x33, 25, 0, 3, b'a', b'/', b'b', 0, 10, 15, 0x02, 0, 0, 0, 5, 0x23, 0, 3, 0x0B, 1, 0x0B,
        0xC8, 0x01, 0x01, 1,
    ];
    assert_eq!(&out[..], five);
    let mut out = BytesMut::new();
    forward.encode_head(Version::V311, 2, &mut out);
    assert_eq!(&out[..], [0x33, 9, 0, 3, b'a', b'/', b'b', 0, 10]);
}

#[test]
fn largest_packet_has_a_four_byte_length() {
    let user = "u".repeat(300);
    let connect = Connect {
        version: Version::V311,
        clean_start: true,
        keep_alive: 0,
        properties: Properties::default(),
        client_id: "",
        will: None,
        user_name: Some(&user),
        password: None,
    };
    let raw = encoded(&Packet::Connect(connect), Version::V311);
    assert_eq!(raw[..3], [0x10, 0xBA, 0x02]);
    assert_eq!(raw.len(), 3 + 314);
}

#[test]
fn ten_thousand_filters_in_a_packet_are_iterated() {
    let mut raw = vec![0x82, 0xD2, 0xB8, 0x02, 0, 1];
    for _ in 0..10_000 {
        raw.extend([0, 1, b'a', 0]);
    }
    raw[1..4].copy_from_slice(&[0xC2, 0xB8, 0x02]);
    let Ok(Packet::Subscribe(subscribe)) = decode(&raw, Version::V311) else {
        panic!("{:?}", decode(&raw, Version::V311));
    };
    assert_eq!(subscribe.filters.iter().count(), 10_000);
}
