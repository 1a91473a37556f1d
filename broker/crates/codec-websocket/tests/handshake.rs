//! The opening handshake, checked statement by statement against RFC 6455, section 4.2.

use codec_websocket::{EndpointOffer, HandshakeRefusal, HandshakeResponse, MAX_REQUEST, answer};
use proptest::prelude::*;

const OFFER: EndpointOffer<'static> = EndpointOffer {
    path: "/ws",
    protocols: &["mqtt", "mqttv3.1"],
    origins: &[],
};

/// The request of section 1.3 with this test's path and subprotocol.
const REQUEST: &str = "GET /ws HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\nSec-WebSocket-Protocol: chat, mqtt\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

fn to(request: &str) -> Result<HandshakeResponse, HandshakeRefusal> {
    answer(request.as_bytes(), &OFFER).map(|a| a.expect("a complete request"))
}

fn changed(from: &str, to: &str) -> String {
    assert!(REQUEST.contains(from));
    REQUEST.replace(from, to)
}

/// 4.2.2, with the key of the example.
#[test]
fn valid_request_is_granted() {
    let granted = to(REQUEST).expect("granted");
    assert_eq!(granted.read, REQUEST.len());
    for line in [
        "HTTP/1.1 101 Switching Protocols\r\n",
        "\r\nUpgrade: websocket\r\n",
        "\r\nConnection: Upgrade\r\n",
        "\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n",
        "\r\nSec-WebSocket-Protocol: mqtt\r\n",
    ] {
        assert!(granted.response.contains(line), "{line}");
    }
    assert!(granted.response.ends_with("\r\n\r\n"));
    assert!(
        !granted.response.contains("Extensions"),
        "no extension is negotiated (9.1)"
    );
}

#[test]
fn request_may_arrive_in_pieces_and_be_followed_by_frames() {
    for end in 0..REQUEST.len() {
        assert_eq!(answer(&REQUEST.as_bytes()[..end], &OFFER), Ok(None));
    }
    let followed = [REQUEST.as_bytes(), &[0x82, 0x80, 0, 0, 0, 0]].concat();
    let granted = answer(&followed, &OFFER)
        .expect("granted")
        .expect("complete");
    assert_eq!(granted.read, REQUEST.len());
}

/// 4.2.1, items 1 to 6.
#[test]
fn invalid_requests_are_refused() {
    for (from, to_text, expected) in [
        ("GET", "POST", HandshakeRefusal::Method),
        ("HTTP/1.1", "HTTP/1.0", HandshakeRefusal::Malformed),
        ("GET /ws", "GET /", HandshakeRefusal::Path),
        ("GET /ws", "GET /wss", HandshakeRefusal::Path),
        ("Host: server.example.com\r\n", "", HandshakeRefusal::Host),
        ("Upgrade: websocket\r\n", "", HandshakeRefusal::NoUpgrade),
        (
            "Upgrade: websocket",
            "Upgrade: h2c",
            HandshakeRefusal::NoUpgrade,
        ),
        (
            "Connection: Upgrade",
            "Connection: close",
            HandshakeRefusal::NoUpgrade,
        ),
        (
            "dGhlIHNhbXBsZSBub25jZQ==",
            "dGhlIHNhbXBsZQ==",
            HandshakeRefusal::Key,
        ),
        ("dGhlIHNhbXBsZSBub25jZQ==", "!!!", HandshakeRefusal::Key),
        (
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            "",
            HandshakeRefusal::Key,
        ),
        ("Version: 13", "Version: 8", HandshakeRefusal::Version),
        ("chat, mqtt", "chat", HandshakeRefusal::Protocol),
        (
            "Sec-WebSocket-Protocol: chat, mqtt\r\n",
            "",
            HandshakeRefusal::Protocol,
        ),
        ("GET /ws", "\u{16}\u{3}\u{1}", HandshakeRefusal::Malformed),
    ] {
        assert_eq!(
            to(&changed(from, to_text)),
            Err(expected),
            "{from} -> {to_text}"
        );
    }
}

/// 4.2.1: names of fields and these tokens are case-insensitive, lists may have several elements,
/// and a path may have a query.
#[test]
fn equivalent_requests_are_granted() {
    // 3.1.1: [MQTT-6.0.0-4]
    for (from, to_text) in [
        ("Upgrade: websocket", "upgrade: WebSocket"),
        ("Connection: Upgrade", "Connection: keep-alive, upgrade"),
        ("GET /ws", "GET /ws?token=x"),
        ("chat, mqtt", "chat\r\nSec-WebSocket-Protocol: mqtt"),
    ] {
        assert!(to(&changed(from, to_text)).is_ok(), "{to_text}");
    }
    // [MQTT-6.0.0-4]
    let old = to(&changed("chat, mqtt", "mqttv3.1")).expect("granted");
    assert!(
        old.response
            .contains("\r\nSec-WebSocket-Protocol: mqttv3.1\r\n")
    );
    let both = to(&changed("chat, mqtt", "mqttv3.1, mqtt")).expect("granted");
    assert!(
        both.response
            .contains("\r\nSec-WebSocket-Protocol: mqtt\r\n"),
        "[MQTT-6.0.0-4]"
    );
}

/// 10.2: a server may restrict the origins.
#[test]
fn configured_origins_are_checked() {
    let origins = vec!["http://EXAMPLE.com".to_owned(), "https://other".to_owned()];
    let offer = EndpointOffer {
        origins: &origins,
        ..OFFER
    };
    assert!(answer(REQUEST.as_bytes(), &offer).is_ok());
    let other = changed("http://example.com", "https://evil.example");
    assert_eq!(
        answer(other.as_bytes(), &offer),
        Err(HandshakeRefusal::Origin)
    );
    let none = changed("Origin: http://example.com\r\n", "");
    assert!(answer(none.as_bytes(), &offer).is_ok(), "not a browser");
}

#[test]
fn request_size_is_limited() {
    let long = |n: usize| changed("Host:", &format!("Cookie: {}\r\nHost:", "x".repeat(n)));
    assert!(to(&long(MAX_REQUEST / 2)).is_ok());
    assert_eq!(to(&long(MAX_REQUEST)), Err(HandshakeRefusal::TooLarge));
    let unfinished = long(MAX_REQUEST);
    let unfinished = &unfinished.as_bytes()[..MAX_REQUEST];
    assert_eq!(answer(unfinished, &OFFER), Err(HandshakeRefusal::TooLarge));
    let many = changed("Host:", &format!("{}Host:", "a: b\r\n".repeat(101)));
    assert_eq!(to(&many), Err(HandshakeRefusal::TooLarge));
}

/// 4.4, and the requirements of HTTP.
#[test]
fn refusal_is_a_complete_http_response() {
    for (refusal, status) in [
        (HandshakeRefusal::Version, "426 "),
        (HandshakeRefusal::NoUpgrade, "426 "),
        (HandshakeRefusal::Path, "404 "),
        (HandshakeRefusal::Method, "405 "),
        (HandshakeRefusal::Origin, "403 "),
        (HandshakeRefusal::TooLarge, "431 "),
        (HandshakeRefusal::Protocol, "400 "),
    ] {
        let response = refusal.response();
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}")),
            "{response}"
        );
        let (head, body) = response.split_once("\r\n\r\n").expect("an empty line");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(head.contains("Connection: close"));
    }
    assert!(
        HandshakeRefusal::Version
            .response()
            .contains("Sec-WebSocket-Version: 13\r\n")
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
        let _ = answer(&bytes, &OFFER);
        let mixed = [&REQUEST.as_bytes()[..cut.min(REQUEST.len())], &bytes].concat();
        let _ = answer(&mixed, &OFFER);
    }
}
