//! Input of hostile clients.

use crate::fake::{broker, new_session};
use bytes::BytesMut;
use codec_amqp10::{
    Multiple, Open, ProtocolHeader, SaslInit, Symbol, encode_frame, encode_sasl_frame,
};
use proptest::prelude::*;
use session::{Outbox, Session};
use session_amqp10::Amqp10Config;

/// The bytes of a client up to an open connection.
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
        max_frame_size: 512,
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

fn feed(bytes: &[u8]) {
    let mut broker = broker();
    let mut session = new_session(Amqp10Config::default(), &broker);
    let mut out = Outbox::default();
    let mut input = BytesMut::from(bytes);
    session.receive(&mut input, &mut broker, &mut out);
    while let Some(event) = broker.notices.pop_front() {
        session.session_event(event, &mut broker, &mut out);
    }
    session.gone(&mut broker);
    assert_eq!(broker.channels_left, 10_000, "every session was released");
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, opens: bool) {
        let mut all = if opens { opening() } else { Vec::new() };
        all.extend_from_slice(&bytes);
        feed(&all);
    }

    #[test]
    fn damaged_frames_do_not_panic(
        frames in prop::collection::vec((0u16..3, 0x10u8..0x19, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let mut all = opening();
        for (channel, kind, fields) in frames {
            let size = 8 + 3 + fields.len() as u32;
            all.extend_from_slice(&size.to_be_bytes());
            all.extend_from_slice(&[2, 0]);
            all.extend_from_slice(&channel.to_be_bytes());
            all.extend_from_slice(&[0, 0x53, kind]);
            all.extend_from_slice(&fields);
        }
        feed(&all);
    }
}
