//! WebSocket: a request and frames as one piece and cut anywhere give the same payload and the same end; positions stay in order.
#![no_main]

use codec_websocket::{Decoder, MAX_REQUEST, EndpointOffer, DecodeStep, ProtocolViolation, answer};
use libfuzzer_sys::fuzz_target;

const OFFER: EndpointOffer<'static> = EndpointOffer {
    path: "/ws",
    protocols: &["mqtt", "mqttv3.1"],
    origins: &[],
};

/// What a client's frames came to: payload, steps that want an answer, and how it ended.
type Outcome = (Vec<u8>, usize, Option<Result<DecodeStep, ProtocolViolation>>);

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut decoder = Decoder::new(1 << 20);
    let (mut buffer, mut plain, mut wanted) = (Vec::new(), 0, 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let (mut read, mut written) = (plain, plain);
        let end = loop {
            let step = decoder.step(&mut buffer, &mut read, &mut written);
            assert!(written <= read && read <= buffer.len());
            match step {
                Ok(DecodeStep::Starved) => break None,
                Ok(DecodeStep::Ping(at)) => {
                    assert!(at.len() <= 125 && at.end == read);
                    wanted += 1;
                }
                end => break Some(end),
            }
        };
        buffer.drain(written..read);
        plain = written;
        if end.is_some() {
            buffer.truncate(plain);
            return (buffer, wanted, end);
        }
        // What waits is a header, or a control frame, that is not whole.
        assert!(buffer.len() - plain < 14 + 125);
    }
    buffer.truncate(plain);
    (buffer, wanted, None)
}

fuzz_target!(|input: &[u8]| {
    match answer(input, &OFFER) {
        Ok(Some(granted)) => assert!(granted.read <= input.len().min(MAX_REQUEST)),
        Ok(None) => assert!(input.len() < MAX_REQUEST),
        Err(refusal) => assert!(refusal.response().ends_with('\n')),
    }
    let Some((cut, wire)) = input.split_first() else {
        return;
    };
    let whole = decode(std::iter::once(wire));
    assert_eq!(decode(wire.chunks(usize::from(*cut) % 31 + 1)), whole);
});
