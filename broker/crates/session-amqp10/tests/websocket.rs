//! AMQP 1.0 in WebSocket frames (AMQP WebSocket Binding 1.0).

use crate::fake::{FakeBroker, broker, new_session};
use amqp10::{ClientSasl, Config, Connection, Event};
use bytes::BytesMut;
use session::{Outbox, ServiceStates, Session, SessionState};
use session_amqp10::Amqp10Config;
use session_websocket::{WebSocketSession, WebSocketSettings};
use std::sync::Arc;

/// A connection that has sent its request with this subprotocol.
struct Peer {
    session: WebSocketSession,
    broker: FakeBroker,
    /// Input that the session has not consumed, as in the driver.
    input: BytesMut,
    out: Outbox,
    state: SessionState,
    /// The answer to the request.
    response: Vec<u8>,
}

impl Peer {
    fn connect(subprotocol: &str) -> Peer {
        let broker = broker();
        let inner = new_session(Amqp10Config::default(), &broker);
        let settings = WebSocketSettings::new(WebSocketSettings::AMQP10);
        let peer = "127.0.0.1:40000".parse().unwrap();
        let mut peer = Peer {
            session: WebSocketSession::new(Box::new(inner), Arc::new(settings), peer),
            broker,
            input: BytesMut::new(),
            out: Outbox::default(),
            state: SessionState::Open,
            response: Vec::new(),
        };
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
        );
        peer.receive(request.as_bytes());
        peer.response = peer.take_output();
        peer
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.state = self
            .session
            .receive(&mut self.input, &mut self.broker, &mut self.out);
        while let Some(event) = self.broker.notices.pop_front() {
            self.state = self
                .session
                .session_event(event, &mut self.broker, &mut self.out);
        }
    }

    fn take_output(&mut self) -> Vec<u8> {
        let pieces: Vec<_> = self.out.pieces().iter().cloned().collect();
        for piece in &pieces {
            self.out.consume(piece.len());
        }
        pieces.concat()
    }

    /// The payload of the server's binary frames, and the code of its close frame.
    fn take_payload(&mut self) -> (Vec<u8>, Option<u16>) {
        let output = self.take_output();
        let (mut rest, mut payload) = (&output[..], Vec::new());
        while let [first, length, tail @ ..] = rest {
            let (size, tail) = match length {
                126 => (u16::from_be_bytes([tail[0], tail[1]]).into(), &tail[2..]),
                127 => panic!("the output is short"),
                length => (usize::from(*length), tail),
            };
            let (body, tail) = tail.split_at(size);
            match first {
                0x82 => payload.extend_from_slice(body),
                0x88 => return (payload, Some(u16::from_be_bytes([body[0], body[1]]))),
                other => panic!("a frame with the first byte {other:#x}"),
            }
            rest = tail;
        }
        (payload, None)
    }
}

/// A binary frame of a client with at most 125 bytes.
fn client_frame(payload: &[u8]) -> Vec<u8> {
    let key = [9, 8, 7, 6];
    let mut out = vec![0x82, 0x80 | payload.len() as u8];
    out.extend(key);
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
    out
}

#[test]
fn client_opens_and_closes_a_connection_in_frames_of_any_size() {
    for size in [1, 7, 125] {
        let mut peer = Peer::connect("amqp");
        let response = String::from_utf8(peer.response.clone()).unwrap();
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        assert!(response.contains("Sec-WebSocket-Protocol: amqp\r\n"));

        let sasl = ClientSasl {
            mechanism: "PLAIN".into(),
            initial_response: b"\0guest\0guest".to_vec().into(),
        };
        let config = Config::client("client", None, Some(sasl));
        let mut to_server = BytesMut::new();
        let mut client = Connection::new(Arc::new(config), 0, &mut to_server);
        let (mut seen, mut from_server) = (Vec::new(), Vec::new());
        let mut is_closing = false;
        let code = loop {
            for part in to_server.split().chunks(size) {
                peer.receive(&client_frame(part));
            }
            let (payload, code) = peer.take_payload();
            from_server.extend(payload);
            let mut rest = &from_server[..];
            while let Some(event) = client.poll(&mut rest, 0, &mut to_server) {
                match event {
                    Event::Opened { .. } => seen.push("opened"),
                    Event::SessionBegun { .. } => seen.push("begun"),
                    _ => {}
                }
            }
            from_server = rest.to_vec();
            if to_server.is_empty() {
                match seen.last() {
                    Some(&"opened") => {
                        client.begin_session(&mut to_server).unwrap();
                    }
                    Some(&"begun") if !is_closing => {
                        let info = peer.session.info(&ServiceStates::default());
                        assert_eq!((info.protocol, &*info.user), ("web_amqp10", "guest"));
                        client.close(None, &mut to_server).unwrap();
                        is_closing = true;
                    }
                    _ => break code,
                }
            }
        };
        assert_eq!(seen, ["opened", "begun"]);
        assert!(from_server.is_empty(), "whole frames are read");
        assert_eq!((peer.state, code), (SessionState::Closing, Some(1000)));
    }
}

#[test]
fn client_without_the_subprotocol_amqp_is_refused() {
    let peer = Peer::connect("mqtt");
    let response = String::from_utf8(peer.response).unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert_eq!(peer.state, SessionState::Closing);
}
