//! What a listener with TLS gets before anybody has said who he is: no panic, bounded memory.
#![no_main]

use authority::Fixture;
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};
use tls::{TlsOptions, OutgoingBytes, ServerTls, ClientVerification};

fn server() -> &'static Arc<ServerTls> {
    static SERVER: OnceLock<Arc<ServerTls>> = OnceLock::new();
    SERVER.get_or_init(|| {
        let fixture = Fixture::new("fuzz").expect("files");
        let options = TlsOptions {
            cacertfile: Some(fixture.path("ca.pem")),
            certfile: fixture.path("cert.pem"),
            keyfile: fixture.path("key.pem"),
            verify: ClientVerification::Peer { required: true },
            ..TlsOptions::default()
        };
        ServerTls::load(options).expect("a server").0
    })
}

// The first byte is the size of the pieces in which the input arrives.
fuzz_target!(|input: &[u8]| {
    let Some((piece, wire)) = input.split_first() else {
        return;
    };
    let mut channel = server().accept().expect("a connection");
    let (mut plain, mut out) = (BytesMut::new(), OutgoingBytes::default());
    for piece in wire.chunks(usize::from(*piece) + 1) {
        let mut bytes = [channel.rest(), piece].concat();
        if channel.receive(&mut bytes, &mut plain, &mut out).is_err() {
            break;
        }
        assert!(channel.rest().len() <= 80 << 10);
    }
    assert!(
        plain.is_empty(),
        "nothing is said before the handshake is over"
    );
    channel.end(&mut out);
});
