//! Packets of each kind with one error at each position, and the same packet without the error,
//! which is accepted.

use crate::fake::World;
use codec_mqtt::Version;

fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

/// A packet with fewer than 128 bytes.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first, body.len() as u8];
    out.extend(body);
    out
}

fn properties(version: Version, bytes: &[u8]) -> Vec<u8> {
    match version.is_5() {
        true => [&[bytes.len() as u8], bytes].concat(),
        false => Vec::new(),
    }
}

fn connect(version: Version, flags: u8, wanted: &[u8], payload: &[&[u8]]) -> Vec<u8> {
    let mut body = text(b"MQTT");
    body.extend([if version.is_5() { 5 } else { 4 }, flags, 0, 60]);
    body.extend(properties(version, wanted));
    for part in payload {
        body.extend(*part);
    }
    packet(0x10, &body)
}

fn new(w: &mut World, version: Version) -> usize {
    let c = w.open(version);
    w.connect(c, |_| ());
    w.output(c);
    c
}

const BOTH: [Version; 2] = [Version::V311, Version::V5];

/// The packet types that clients send, with their flags and a body that is valid in both versions
/// except for properties.
const PACKETS: [(u8, u8, &[u8]); 8] = [
    (4, 0, &[0, 9]),
    (5, 0, &[0, 9]),
    (6, 2, &[0, 9]),
    (7, 0, &[0, 9]),
    (8, 2, &[0, 1]),
    (10, 2, &[0, 1]),
    (12, 0, &[]),
    (14, 0, &[]),
];

#[test]
fn reserved_flags_end_the_connection() {
    // 3.1.1: [MQTT-2.2.2-1], [MQTT-2.2.2-2], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.14.1-1]
    // [MQTT-2.1.3-1], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1], [MQTT-3.14.1-1], [MQTT-4.13.2-1]
    let mut w = World::default();
    for version in BOTH {
        let told = match version.is_5() {
            true => &["DISCONNECT 0x81", "END"][..],
            false => &["END"],
        };
        for (kind, right, start) in PACKETS {
            let mut body = start.to_vec();
            if kind == 8 || kind == 10 {
                body.extend(properties(version, &[]));
                body.extend(text(b"a"));
                body.extend((kind == 8).then_some(0));
            }
            for flags in (0..16).filter(|flags| *flags != right) {
                let c = new(&mut w, version);
                w.send_raw(c, &packet(kind << 4 | flags, &body));
                assert_eq!(w.output(c), told, "{version:?} {kind} {flags:#x}");
            }
            let c = new(&mut w, version);
            w.send_raw(c, &packet(kind << 4 | right, &body));
            let output = w.output(c);
            // DISCONNECT ends the connection as well, and 3.1.1 gives no reason.
            let alike = kind == 14 && !version.is_5();
            assert!(alike || output != told, "{version:?} {kind}");
        }
    }
}

/// Builds a packet with this string at one position.
type WithString = fn(Version, &[u8]) -> Vec<u8>;

fn publish(topic: &[u8], wanted: &[&[u8]]) -> Vec<u8> {
    let wanted = wanted.concat();
    packet(
        0x30,
        &[text(topic), properties(Version::V5, &wanted)].concat(),
    )
}

#[test]
fn connect_strings_are_utf8_without_null() {
    // 3.1.1: [MQTT-3.1.3-4], [MQTT-3.1.3-10], [MQTT-3.1.3-11]
    // [MQTT-3.1.3-4], [MQTT-3.1.3-11], [MQTT-3.1.3-12]
    let places: [(WithString, &str); 3] = [
        (|v, s| connect(v, 2, &[], &[&text(s)]), "CONNACK 0x00"),
        (
            |v, s| {
                let no_properties = properties(v, &[]);
                connect(
                    v,
                    6,
                    &[],
                    &[&text(b"w"), &no_properties, &text(s), &text(b"x")],
                )
            },
            "CONNACK 0x00",
        ),
        // There is no user with this name.
        (
            |v, s| connect(v, 0xC2, &[], &[&text(b"u"), &text(s), &text(b"x")]),
            "CONNACK 0x86",
        ),
    ];
    let mut w = World::default();
    for version in BOTH {
        for (at, (place, fine)) in places.iter().enumerate() {
            let c = w.open(version);
            w.send_raw(c, &place(version, "\u{E9}".as_bytes()));
            let output = w.output(c);
            assert!(output[0].starts_with(fine), "{version:?} {at}: {output:?}");
            for bad in BAD {
                let c = w.open(version);
                w.send_raw(c, &place(version, bad));
                let output = w.output(c);
                let (last, told) = output.split_last().expect("an end");
                assert_eq!(last, "END", "{version:?} {at} {bad:?}");
                let malformed = |output: &String| output.starts_with("CONNACK 0x81");
                assert_eq!(told.len(), usize::from(version.is_5()), "{output:?}");
                assert!(
                    told.iter().all(malformed),
                    "{version:?} {at} {bad:?}: {output:?}"
                );
            }
        }
    }
}

/// A surrogate, an overlong encoding, a truncated character and U+0000.
const BAD: [&[u8]; 4] = [b"\xED\xA0\x80", b"\xC0\x80", b"a\xC3", b"a\0b"];

#[test]
fn packet_strings_are_utf8_without_null() {
    // 3.1.1: [MQTT-3.8.3-1], [MQTT-3.10.3-1], [MQTT-4.7.3-2]
    // [MQTT-3.8.3-1], [MQTT-3.10.3-1], [MQTT-4.7.3-2], [MQTT-1.5.7-1], [MQTT-3.3.2-13], [MQTT-3.3.2-19]
    let of_both: [WithString; 3] = [
        |v, s| packet(0x30, &[text(s), properties(v, &[])].concat()),
        |v, s| {
            packet(
                0x82,
                &[vec![0, 1], properties(v, &[]), text(s), vec![0]].concat(),
            )
        },
        |v, s| packet(0xA2, &[vec![0, 1], properties(v, &[]), text(s)].concat()),
    ];
    let of_5: [WithString; 6] = [
        |_, s| publish(b"a", &[&[3], &text(s)]),
        |_, s| publish(b"a", &[&[8], &text(s)]),
        |_, s| publish(b"a", &[&[0x26], &text(s), &text(b"v")]),
        |_, s| publish(b"a", &[&[0x26], &text(b"k"), &text(s)]),
        |v, s| {
            let reason = properties(v, &[&[0x1F][..], &text(s)].concat());
            packet(0x40, &[vec![0, 9, 0], reason].concat())
        },
        |v, s| {
            let pair = properties(v, &[&[0x26][..], &text(s), &text(b"v")].concat());
            packet(0x82, &[vec![0, 1], pair, text(b"a"), vec![0]].concat())
        },
    ];
    let mut w = World::default();
    for version in BOTH {
        let told = match version.is_5() {
            true => &["DISCONNECT 0x81", "END"][..],
            false => &["END"],
        };
        let more = of_5.iter().filter(|_| version.is_5());
        for (at, place) in of_both.iter().chain(more).enumerate() {
            let c = new(&mut w, version);
            w.send_raw(c, &place(version, "\u{E9}".as_bytes()));
            w.output(c);
            assert!(!w.is_closed(c), "{version:?} {at}");
            for bad in BAD {
                let c = new(&mut w, version);
                w.send_raw(c, &place(version, bad));
                assert_eq!(w.output(c), told, "{version:?} {at} {bad:?}");
            }
        }
    }
}

#[test]
fn each_acknowledgement_accepts_only_its_reason_codes() {
    // [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1]
    let of_messages = [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
    let mut w = World::default();
    for (first, reasons) in [
        (0x40, &of_messages[..]),
        (0x50, &of_messages),
        (0x62, &[0, 0x92]),
        (0x70, &[0, 0x92]),
    ] {
        for reason in 0..=255 {
            let c = new(&mut w, Version::V5);
            w.send_raw(c, &packet(first, &[0, 9, reason]));
            let output = w.output(c);
            let ended = output.last().is_some_and(|last| last == "END");
            assert_eq!(
                ended,
                !reasons.contains(&reason),
                "{first:#x} {reason:#x}: {output:?}"
            );
        }
    }
}

#[test]
fn acknowledgements_have_no_optional_properties() {
    // [MQTT-3.1.2-29], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-2]
    // [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2]: no reason string and no user property.
    let filter = [vec![0, 5, 0], text(b"a")].concat();
    let all: [(Vec<u8>, Vec<u8>); 6] = [
        // Clients may not publish to this topic.
        (
            packet(0x32, &[text(b"$SYS/x"), vec![0, 1, 0]].concat()),
            vec![0x40, 3, 0, 1, 0x87],
        ),
        (
            packet(0x34, &[text(b"$SYS/x"), vec![0, 2, 0]].concat()),
            vec![0x50, 3, 0, 2, 0x87],
        ),
        // Unknown packet identifiers.
        (packet(0x50, &[0, 3]), vec![0x62, 3, 0, 3, 0x92]),
        (packet(0x62, &[0, 4]), vec![0x70, 3, 0, 4, 0x92]),
        (
            packet(0x82, &[&filter[..], &[1]].concat()),
            vec![0x90, 4, 0, 5, 0, 1],
        ),
        (
            packet(0xA2, &[vec![0, 6, 0], text(b"other")].concat()),
            vec![0xB0, 4, 0, 6, 0, 0x11],
        ),
    ];
    for wanted in [&[0x17, 0][..], &[0x17, 1]] {
        let mut w = World::default();
        let c = w.open(Version::V5);
        w.send_raw(c, &connect(Version::V5, 2, wanted, &[&text(b"c")]));
        w.bytes(c);
        for (sent, answer) in &all {
            w.send_raw(c, sent);
            assert_eq!(w.bytes(c), *answer, "{wanted:?} {sent:?}");
        }
    }
}
