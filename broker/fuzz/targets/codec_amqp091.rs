//! Frames, methods, properties and tables of AMQP 0.9.1: no panic, and what is understood is written as it was read.
#![no_main]

use bytes::BytesMut;
use codec_amqp091::{ContentHeader, FrameKind, Method, Properties, ProtocolHeader, parse_frame};
use libfuzzer_sys::fuzz_target;

const FRAME_MAX: u32 = 131_072;

fuzz_target!(|input: &[u8]| {
    ProtocolHeader::parse(input);
    method(input);
    properties(input);
    let mut rest = input;
    while let Ok(Some(frame)) = parse_frame(rest, FRAME_MAX) {
        let len = frame.wire_len();
        assert!((8..=rest.len()).contains(&len));
        match frame.kind {
            FrameKind::Method => method(frame.payload),
            FrameKind::Header => {
                if let Ok(header) = ContentHeader::decode(frame.payload) {
                    properties(header.properties);
                }
            }
            _ => {}
        }
        let mut again = BytesMut::new();
        frame.encode(&mut again);
        if !matches!(frame.kind, FrameKind::Unknown(_)) {
            assert_eq!(again, rest[..len]);
        }
        rest = &rest[len..];
    }
});

/// Octets beside what a method says (bits that mean nothing) may differ; what it says may not.
fn method(payload: &[u8]) {
    let Ok(read) = Method::decode(payload) else {
        return;
    };
    let mut written = BytesMut::new();
    read.encode(&mut written);
    let again = Method::decode(&written).expect("what we write can be read");
    let mut twice = BytesMut::new();
    again.encode(&mut twice);
    assert_eq!(written, twice, "{read:?}");
    assert_eq!(read.name(), again.name());
}

fn properties(raw: &[u8]) {
    let Ok(read) = Properties::decode(raw) else {
        return;
    };
    if read.header_table().is_err() {
        return;
    }
    let mut written = BytesMut::new();
    read.encode(&mut written);
    let again = Properties::decode(&written).expect("what we write can be read");
    let mut twice = BytesMut::new();
    again.encode(&mut twice);
    assert_eq!(written, twice, "{read:?}");
}
