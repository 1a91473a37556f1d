//! Frames, statement by statement of RFC 6455, section 5.
#![forbid(unsafe_code)]

use bytes::BytesMut;
use codec_websocket::{CloseCode, Decoder, FrameHeader, Step, Violation, close, pong};
use proptest::prelude::*;

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A client's frame; `first`: its first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        n @ 0..=125 => out.push(0x80 | n as u8),
        n @ 126..=0xFFFF => {
            out.push(0x80 | 126);
            out.extend((n as u16).to_be_bytes());
        }
        n => {
            out.push(0x80 | 127);
            out.extend((n as u64).to_be_bytes());
        }
    }
    out.extend(KEY);
    out.extend(payload.iter().zip(KEY.iter().cycle()).map(|(b, k)| b ^ k));
    out
}

/// What a decoder makes of bytes that come in these pieces: payload, and what its frames wanted.
fn decode(pieces: &[&[u8]], max_frame: u64) -> (Vec<u8>, Result<Vec<Step>, Violation>) {
    let mut decoder = Decoder::new(max_frame);
    let (mut buffer, mut plain, mut steps) = (Vec::new(), 0, Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let (mut read, mut written) = (plain, plain);
        loop {
            match decoder.step(&mut buffer, &mut read, &mut written) {
                Ok(Step::Starved) => break,
                Ok(Step::Ping(at)) => {
                    // Its payload, in the test's own words.
                    let copied = buffer[at].to_vec();
                    steps.push(Step::Ping(0..copied.len()));
                    assert!(copied.iter().all(|b| *b == b'p'));
                }
                Ok(step) => steps.push(step),
                Err(violation) => return (buffer[..written].to_vec(), Err(violation)),
            }
        }
        assert!(written <= read && read <= buffer.len());
        buffer.drain(written..read);
        plain = written;
    }
    buffer.truncate(plain);
    (buffer, Ok(steps))
}

fn violation(wire: &[u8]) -> Option<Violation> {
    decode(&[wire], u64::MAX).1.err()
}

/// 5.7: the example of the RFC, masked.
#[test]
fn a_payload_is_unmasked() {
    let wire = [
        0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(decode(&[&wire], 5), (b"Hello".to_vec(), Ok(vec![])));
}

/// 5.1: "The server MUST close the connection upon receiving a frame that is not masked."
#[test]
fn a_frame_that_is_not_masked_is_refused() {
    let found = violation(&[0x82, 0x01, b'x']);
    assert_eq!(found, Some(Violation::Unmasked));
    assert_eq!(Violation::Unmasked.code(), CloseCode::PROTOCOL_ERROR);
}

/// 5.2: reserved bits "MUST be 0 unless an extension is negotiated".
#[test]
fn reserved_bits_are_refused() {
    for bit in [0x40, 0x20, 0x10] {
        assert_eq!(
            violation(&frame(0x82 | bit, b"x")),
            Some(Violation::Reserved)
        );
    }
}

/// 5.2: an unknown opcode fails the connection.
#[test]
fn unknown_opcodes_are_refused() {
    for opcode in [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF] {
        let found = violation(&frame(0x80 | opcode, b""));
        assert_eq!(found, Some(Violation::UnknownOpcode));
    }
}

/// 5.2: "the minimal number of bytes MUST be used to encode the length"; the most significant bit of 64 must be 0.
#[test]
fn lengths_are_minimal_and_below_2_to_63() {
    for length in [
        &[0x80 | 126, 0, 125][..],
        &[0x80 | 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF],
        &[0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let wire = [&[0x82], length, &KEY].concat();
        assert_eq!(violation(&wire), Some(Violation::BadLength), "{length:?}");
    }
}

/// 5.4: fragments; control frames may be in between.
#[test]
fn a_message_may_be_in_fragments_with_control_frames_between() {
    let wire = [
        frame(0x02, b"one "),
        frame(0x89, b"pp"),
        frame(0x00, b""),
        frame(0x80, b"two"),
        frame(0x82, b" three"),
    ]
    .concat();
    let (payload, steps) = decode(&[&wire], 100);
    assert_eq!(payload, b"one two three");
    assert_eq!(steps, Ok(vec![Step::Ping(0..2)]));
}

/// 5.4: "fragments of one message MUST NOT be interleaved between the fragments of another message".
#[test]
fn fragments_come_in_their_order() {
    let loose = frame(0x80, b"x");
    assert_eq!(violation(&loose), Some(Violation::LooseContinuation));
    let twice = [frame(0x02, b"x"), frame(0x82, b"y")].concat();
    assert_eq!(violation(&twice), Some(Violation::Interleaved));
    let ended = [frame(0x02, b"x"), frame(0x80, b"y"), frame(0x00, b"z")].concat();
    assert_eq!(violation(&ended), Some(Violation::LooseContinuation));
}

/// 5.5: control frames "MUST have a payload length of 125 bytes or less and MUST NOT be fragmented".
#[test]
fn control_frames_are_short_and_whole() {
    for opcode in [0x8, 0x9, 0xA] {
        let found = violation(&frame(opcode, b""));
        assert_eq!(found, Some(Violation::FragmentedControl));
        // It shows with the second byte.
        let found = violation(&[0x80 | opcode, 0x80 | 126]);
        assert_eq!(found, Some(Violation::LongControl));
    }
    let longest = frame(0x89, &[b'p'; 125]);
    assert_eq!(decode(&[&longest], 0).1, Ok(vec![Step::Ping(0..125)]));
}

/// 5.5.1 and 7.4: codes of close frames.
#[test]
fn close_frames_have_a_code_that_may_be_sent_and_a_reason_in_utf8() {
    let with = |payload: &[u8]| decode(&[&frame(0x88, payload)], 0).1;
    assert_eq!(with(b""), Ok(vec![Step::Close(None)]));
    let normal = Ok(vec![Step::Close(Some(CloseCode::NORMAL))]);
    assert_eq!(with(&[0x03, 0xE8]), normal);
    assert_eq!(with(b"\x03\xE8bye"), normal);
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535u16] {
        let found = with(&code.to_be_bytes());
        assert_eq!(found, Err(Violation::BadCloseCode), "{code}");
    }
    for code in [1001, 1002, 1003, 1007, 1011, 1014, 3000, 4999u16] {
        assert!(with(&code.to_be_bytes()).is_ok(), "{code}");
    }
    assert_eq!(with(b"x"), Err(Violation::BadCloseCode));
    assert_eq!(with(b"\x03\xE8\xFF"), Err(Violation::BadCloseReason));
    assert_eq!(Violation::BadCloseReason.code(), CloseCode::INVALID_PAYLOAD);
}

#[test]
fn text_is_not_taken() {
    // 3.1.1: [MQTT-6.0.0-1]
    // [MQTT-6.0.0-1]
    assert_eq!(violation(&frame(0x81, b"x")), Some(Violation::Text));
    assert_eq!(Violation::Text.code(), CloseCode::UNSUPPORTED_DATA);
}

/// 10.4: a limit of a frame, which shows before its payload comes.
#[test]
fn a_large_frame_is_refused_when_its_length_is_known() {
    let header = FrameHeader::binary(1000);
    let mut wire = header.bytes().to_vec();
    wire[1] |= 0x80;
    assert_eq!(decode(&[&wire], 999).1, Err(Violation::TooBig));
    assert_eq!(decode(&[&wire], 1000).1, Ok(vec![]));
    assert_eq!(Violation::TooBig.code(), CloseCode::TOO_BIG);
}

/// 5.1: "A server MUST NOT mask any frames"; 5.2: the lengths; 5.5.3: a pong has the ping's payload.
#[test]
fn what_the_server_sends() {
    assert_eq!(FrameHeader::binary(125).bytes(), [0x82, 125]);
    assert_eq!(FrameHeader::binary(126).bytes(), [0x82, 126, 0, 126]);
    assert_eq!(FrameHeader::binary(65535).bytes(), [0x82, 126, 255, 255]);
    let large = FrameHeader::binary(65536);
    assert_eq!(large.bytes(), [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    let mut out = BytesMut::new();
    pong(b"abc", &mut out);
    close(Some(CloseCode::GOING_AWAY), &mut out);
    close(None, &mut out);
    assert_eq!(&out[..], b"\x8A\x03abc\x88\x02\x03\xE9\x88\x00");
}

proptest! {
    /// However a client cuts its payload into frames and the network cuts those into pieces, the payload is the same.
    #[test]
    fn neither_frames_nor_pieces_matter(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 1..12),
        cuts in prop::collection::vec(1usize..200, 1..40),
    ) {
        let (mut wire, mut payload, mut fragmented) = (Vec::new(), Vec::new(), false);
        let last = parts.len() - 1;
        for (i, (part, end)) in parts.iter().enumerate() {
            let fin = *end || i == last;
            let opcode = if fragmented { 0x0 } else { 0x2 };
            wire.extend(frame(opcode | if fin { 0x80 } else { 0 }, part));
            wire.extend(frame(0x89, b"pp"));
            payload.extend_from_slice(part);
            fragmented = !fin;
        }
        let (mut pieces, mut rest) = (Vec::new(), &wire[..]);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = behind;
        }
        let (found, steps) = decode(&pieces, u64::MAX);
        prop_assert_eq!(found, payload);
        prop_assert_eq!(steps.map(|s| s.len()), Ok(parts.len()));
    }

    #[test]
    fn nothing_makes_it_panic(wire in prop::collection::vec(any::<u8>(), 0..600), max in any::<u64>()) {
        let mut decoder = Decoder::new(max);
        let mut buffer = wire;
        let (mut read, mut written) = (0, 0);
        while let Ok(step) = decoder.step(&mut buffer, &mut read, &mut written) {
            prop_assert!(written <= read && read <= buffer.len());
            if step == Step::Starved {
                break;
            }
        }
    }
}
