//! Frames, checked statement by statement against RFC 6455, section 5.

use bytes::BytesMut;
use codec_websocket::{
    CloseCode, DecodeStep, Decoder, FrameHeader, ProtocolViolation, close, pong,
};
use proptest::prelude::*;

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A client frame. `first` is its first byte.
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

/// Decodes bytes that arrive in these pieces. Returns the payload and the steps that need an
/// action.
fn decode(
    pieces: &[&[u8]],
    max_frame: u64,
) -> (Vec<u8>, Result<Vec<DecodeStep>, ProtocolViolation>) {
    let mut decoder = Decoder::new(max_frame);
    let (mut buffer, mut plain, mut steps) = (Vec::new(), 0, Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let (mut read, mut written) = (plain, plain);
        loop {
            match decoder.step(&mut buffer, &mut read, &mut written) {
                Ok(DecodeStep::Starved) => break,
                Ok(DecodeStep::Ping(at)) => {
                    // Normalize the position, and check the payload here.
                    let copied = buffer[at].to_vec();
                    steps.push(DecodeStep::Ping(0..copied.len()));
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

fn violation(wire: &[u8]) -> Option<ProtocolViolation> {
    decode(&[wire], u64::MAX).1.err()
}

/// 5.7: the masked example of the RFC.
#[test]
fn payload_is_unmasked() {
    let wire = [
        0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(decode(&[&wire], 5), (b"Hello".to_vec(), Ok(vec![])));
}

/// 5.1: "The server MUST close the connection upon receiving a frame that is not masked."
#[test]
fn unmasked_frame_is_refused() {
    let error = violation(&[0x82, 0x01, b'x']);
    assert_eq!(error, Some(ProtocolViolation::Unmasked));
    assert_eq!(
        ProtocolViolation::Unmasked.code(),
        CloseCode::PROTOCOL_ERROR
    );
}

/// 5.2: reserved bits "MUST be 0 unless an extension is negotiated".
#[test]
fn reserved_bits_are_refused() {
    for bit in [0x40, 0x20, 0x10] {
        assert_eq!(
            violation(&frame(0x82 | bit, b"x")),
            Some(ProtocolViolation::Reserved)
        );
    }
}

/// 5.2: an unknown opcode fails the connection.
#[test]
fn unknown_opcodes_are_refused() {
    for opcode in [3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF] {
        let error = violation(&frame(0x80 | opcode, b""));
        assert_eq!(error, Some(ProtocolViolation::UnknownOpcode));
    }
}

/// 5.2: "the minimal number of bytes MUST be used to encode the length"; the most significant bit of 64 must be 0.
#[test]
fn payload_length_must_be_minimal_and_below_2_to_63() {
    for length in [
        &[0x80 | 126, 0, 125][..],
        &[0x80 | 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF],
        &[0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let wire = [&[0x82], length, &KEY].concat();
        assert_eq!(
            violation(&wire),
            Some(ProtocolViolation::BadLength),
            "{length:?}"
        );
    }
}

/// 5.4: fragmented messages, with control frames between the fragments.
#[test]
fn control_frames_may_occur_between_fragments() {
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
    assert_eq!(steps, Ok(vec![DecodeStep::Ping(0..2)]));
}

/// 5.4: "fragments of one message MUST NOT be interleaved between the fragments of another message".
#[test]
fn fragments_of_messages_must_not_interleave() {
    let orphan = frame(0x80, b"x");
    assert_eq!(
        violation(&orphan),
        Some(ProtocolViolation::LooseContinuation)
    );
    let twice = [frame(0x02, b"x"), frame(0x82, b"y")].concat();
    assert_eq!(violation(&twice), Some(ProtocolViolation::Interleaved));
    let ended = [frame(0x02, b"x"), frame(0x80, b"y"), frame(0x00, b"z")].concat();
    assert_eq!(
        violation(&ended),
        Some(ProtocolViolation::LooseContinuation)
    );
}

/// 5.5: control frames "MUST have a payload length of 125 bytes or less and MUST NOT be fragmented".
#[test]
fn control_frames_are_short_and_unfragmented() {
    for opcode in [0x8, 0x9, 0xA] {
        let error = violation(&frame(opcode, b""));
        assert_eq!(error, Some(ProtocolViolation::FragmentedControl));
        // The second byte is enough to detect it.
        let error = violation(&[0x80 | opcode, 0x80 | 126]);
        assert_eq!(error, Some(ProtocolViolation::LongControl));
    }
    let longest = frame(0x89, &[b'p'; 125]);
    assert_eq!(decode(&[&longest], 0).1, Ok(vec![DecodeStep::Ping(0..125)]));
}

/// 5.5.1 and 7.4: status codes of close frames.
#[test]
fn close_frame_requires_a_valid_code_and_a_utf8_reason() {
    let with = |payload: &[u8]| decode(&[&frame(0x88, payload)], 0).1;
    assert_eq!(with(b""), Ok(vec![DecodeStep::Close(None)]));
    let normal = Ok(vec![DecodeStep::Close(Some(CloseCode::NORMAL))]);
    assert_eq!(with(&[0x03, 0xE8]), normal);
    assert_eq!(with(b"\x03\xE8bye"), normal);
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535u16] {
        let result = with(&code.to_be_bytes());
        assert_eq!(result, Err(ProtocolViolation::BadCloseCode), "{code}");
    }
    for code in [1001, 1002, 1003, 1007, 1011, 1014, 3000, 4999u16] {
        assert!(with(&code.to_be_bytes()).is_ok(), "{code}");
    }
    assert_eq!(with(b"x"), Err(ProtocolViolation::BadCloseCode));
    assert_eq!(
        with(b"\x03\xE8\xFF"),
        Err(ProtocolViolation::BadCloseReason)
    );
    assert_eq!(
        ProtocolViolation::BadCloseReason.code(),
        CloseCode::INVALID_PAYLOAD
    );
}

#[test]
fn text_frames_are_refused() {
    // 3.1.1: [MQTT-6.0.0-1]
    // [MQTT-6.0.0-1]
    assert_eq!(violation(&frame(0x81, b"x")), Some(ProtocolViolation::Text));
    assert_eq!(ProtocolViolation::Text.code(), CloseCode::UNSUPPORTED_DATA);
}

/// 10.4: the frame size limit applies before the payload arrives.
#[test]
fn oversized_frame_is_refused_before_its_payload_arrives() {
    let header = FrameHeader::binary(1000);
    let mut wire = header.bytes().to_vec();
    wire[1] |= 0x80;
    assert_eq!(decode(&[&wire], 999).1, Err(ProtocolViolation::TooBig));
    assert_eq!(decode(&[&wire], 1000).1, Ok(vec![]));
    assert_eq!(ProtocolViolation::TooBig.code(), CloseCode::TOO_BIG);
}

/// 5.1: "A server MUST NOT mask any frames". 5.2: encoding of lengths. 5.5.3: a pong has the
/// payload of the ping.
#[test]
fn server_frames_are_unmasked_and_minimal() {
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
    /// The payload is independent of the boundaries of frames and of network reads.
    #[test]
    fn payload_is_independent_of_frame_and_read_boundaries(
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
            let (piece, remaining) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = remaining;
        }
        let (decoded, steps) = decode(&pieces, u64::MAX);
        prop_assert_eq!(decoded, payload);
        prop_assert_eq!(steps.map(|s| s.len()), Ok(parts.len()));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(wire in prop::collection::vec(any::<u8>(), 0..600), max in any::<u64>()) {
        let mut decoder = Decoder::new(max);
        let mut buffer = wire;
        let (mut read, mut written) = (0, 0);
        while let Ok(step) = decoder.step(&mut buffer, &mut read, &mut written) {
            prop_assert!(written <= read && read <= buffer.len());
            if step == DecodeStep::Starved {
                break;
            }
        }
    }
}
