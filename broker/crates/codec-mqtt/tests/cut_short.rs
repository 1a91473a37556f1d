//! Packets of every kind that a client sends, each cut short at every byte with a header that says so, and each with a byte too many:
//! malformed, but for the shorter forms that the standard has (MQTT 5.0, section 4.13; [MQTT-4.8.0-1] in 3.1.1).

use codec_mqtt::{Packet, ReasonCode, Version, parse_frame};

/// The first byte and the body of a packet, and the other lengths at which the body is valid.
struct Case {
    what: &'static str,
    header: u8,
    body: &'static [u8],
    whole: &'static [usize],
}

const fn case(
    what: &'static str,
    header: u8,
    body: &'static [u8],
    whole: &'static [usize],
) -> Case {
    Case {
        what,
        header,
        body,
        whole,
    }
}

const PLAIN: &[Case] = &[
    case(
        "CONNECT",
        0x10,
        b"\0\x04MQTT\x04\xce\0\x0a\0\x01c\0\x01w\0\x02ms\0\x02us\0\x03pwd",
        &[],
    ),
    // The payload may have any length.
    case("PUBLISH", 0x32, b"\0\x01a\0\x07xyz", &[5, 6, 7, 9]),
    case("PUBACK", 0x40, b"\0\x07", &[]),
    case("PUBREC", 0x50, b"\0\x07", &[]),
    case("PUBREL", 0x62, b"\0\x07", &[]),
    case("PUBCOMP", 0x70, b"\0\x07", &[]),
    // After the first filter.
    case("SUBSCRIBE", 0x82, b"\0\x07\0\x01a\x01\0\x02b/\x02", &[6]),
    case("UNSUBSCRIBE", 0xa2, b"\0\x07\0\x01a\0\x02b/", &[5]),
    case("PINGREQ", 0xc0, b"", &[]),
    case("DISCONNECT", 0xe0, b"", &[]),
];

const FIVE: &[Case] = &[
    case(
        "CONNECT",
        0x10,
        b"\0\x04MQTT\x05\xce\0\x0a\x05\x11\0\0\0\x09\0\x01c\x05\x18\0\0\0\x01\0\x01w\0\x02ms\0\x02us\0\x03pwd",
        &[],
    ),
    case("PUBLISH", 0x32, b"\0\x01a\0\x07\x02\x01\x01xyz", &[8, 9, 10, 12]),
    // Without properties, and without a reason code.
    case("PUBACK", 0x40, b"\0\x07\x10\x04\x1f\0\x01r", &[2, 3]),
    case("PUBREC", 0x50, b"\0\x07\x10\x04\x1f\0\x01r", &[2, 3]),
    case("PUBREL", 0x62, b"\0\x07\x92\x04\x1f\0\x01r", &[2, 3]),
    case("PUBCOMP", 0x70, b"\0\x07\x92\x04\x1f\0\x01r", &[2, 3]),
    case("SUBSCRIBE", 0x82, b"\0\x07\x02\x0b\x05\0\x01a\x01\0\x02b/\x02", &[9]),
    case("UNSUBSCRIBE", 0xa2, b"\0\x07\x07\x26\0\x01k\0\x01v\0\x01a\0\x02b/", &[13]),
    case("PINGREQ", 0xc0, b"", &[]),
    case("DISCONNECT", 0xe0, b"\x04\x05\x11\0\0\0\x09", &[0, 1]),
    case("AUTH", 0xf0, b"\x18\x04\x15\0\x01m", &[0]),
];

fn check(cases: &[Case], version: Version) {
    for Case {
        what,
        header,
        body,
        whole,
    } in cases
    {
        let longer = [body, &b"\0"[..]].concat();
        for length in 0..=longer.len() {
            let mut raw = vec![*header, length as u8];
            raw.extend(&longer[..length]);
            let frame = parse_frame(&raw, 1 << 20);
            let frame = frame.map(|frame| frame.expect("a whole frame"));
            let read = frame.and_then(|frame| Packet::decode(&frame, version).map(|_| ()));
            let right = length == body.len() || whole.contains(&length);
            match read {
                Ok(()) => assert!(right, "{what} of {length} bytes is taken"),
                Err(error) => {
                    assert!(!right, "{what} of {length} bytes: {error}");
                    let malformed = [ReasonCode::MalformedPacket, ReasonCode::ProtocolError];
                    assert!(malformed.contains(&error.reason()), "{what}: {error}");
                }
            }
        }
    }
}

#[test]
fn truncated_packets_before_5_are_malformed() {
    check(PLAIN, Version::V311);
}

#[test]
fn truncated_packets_in_5_are_malformed() {
    check(FIVE, Version::V5);
}
