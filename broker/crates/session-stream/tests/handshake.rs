//! Handshake, heartbeats and closing.

use bytes::BytesMut;
use codec_stream::{
    ClientCommand, List, MIN_FRAME_MAX, OffsetSpecification, Property, ResponseCode, ServerCommand,
    Trailing, split_frame,
};
use env::Time;
use proptest::prelude::*;
use session_stream::{CloseReason, Connection, ConnectionConfig, MAX_HANDSHAKE_FRAME_BYTES, Step};
use std::time::Duration;

const CONFIG: ConnectionConfig<'static> = ConnectionConfig {
    frame_max: 1 << 20,
    heartbeat: 60,
    properties: &[Property {
        key: "product",
        value: "Posthorn",
    }],
    mechanisms: &["PLAIN"],
};

const fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn encode(commands: &[ClientCommand<'_>]) -> Vec<u8> {
    let mut out = BytesMut::new();
    commands.iter().for_each(|command| command.encode(&mut out));
    out.to_vec()
}

/// The frames of the server, which are leaked.
fn answers(out: &mut BytesMut) -> Vec<ServerCommand<'static>> {
    let mut rest: &'static [u8] = Box::leak(out.split().to_vec().into_boxed_slice());
    let mut commands = Vec::new();
    while let Some((frame, len)) = split_frame(rest, 0).expect("valid") {
        commands.push(ServerCommand::decode(frame).expect("decodes"));
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    commands
}

/// A connection and its client.
struct Peers {
    connection: Connection,
    input: Vec<u8>,
    out: BytesMut,
}

impl Peers {
    fn new() -> Peers {
        Peers {
            connection: Connection::new(at(0)),
            input: Vec::new(),
            out: BytesMut::new(),
        }
    }

    /// Sends commands and returns the next step in words, with the answers.
    fn send(&mut self, commands: &[ClientCommand<'_>]) -> (String, Vec<ServerCommand<'static>>) {
        self.send_bytes(&encode(commands))
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> (String, Vec<ServerCommand<'static>>) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        // The properties of the client are a step of their own, after which reading goes on.
        let step = loop {
            let received = self.connection.receive(&CONFIG, at(1), rest, &mut self.out);
            let (read, step) = received;
            rest = &rest[read..];
            if !matches!(step, Step::PeerProperties(_)) {
                break format!("{step:?}");
            }
        };
        self.input = rest.to_vec();
        (step, answers(&mut self.out))
    }

    fn authenticated(&mut self, result: ResponseCode) -> Vec<ServerCommand<'static>> {
        self.connection
            .authenticated(&CONFIG, result, &mut self.out);
        answers(&mut self.out)
    }

    fn opened(&mut self, result: ResponseCode) -> Vec<ServerCommand<'static>> {
        let properties = [Property {
            key: "advertised_host",
            value: "node-0",
        }];
        self.connection.opened(result, &properties, &mut self.out);
        answers(&mut self.out)
    }

    /// An open connection.
    fn open() -> Peers {
        let mut peers = Peers::new();
        peers.send(&[peer_properties(), authenticate()]);
        peers.authenticated(ResponseCode::OK);
        peers.send(&[tune(), open()]);
        peers.opened(ResponseCode::OK);
        assert!(peers.connection.is_open());
        peers
    }
}

fn peer_properties() -> ClientCommand<'static> {
    ClientCommand::PeerProperties {
        correlation_id: 1,
        properties: List::from(&[][..]),
    }
}

fn authenticate() -> ClientCommand<'static> {
    ClientCommand::SaslAuthenticate {
        correlation_id: 3,
        mechanism: "PLAIN",
        data: Some(b"\0user\0password"),
    }
}

fn tune() -> ClientCommand<'static> {
    ClientCommand::Tune {
        frame_max: 100_000,
        heartbeat: 10,
    }
}

fn open() -> ClientCommand<'static> {
    ClientCommand::Open {
        correlation_id: 4,
        virtual_host: "/",
    }
}

fn close_request(answers: &[ServerCommand<'_>]) -> (u32, ResponseCode) {
    match answers {
        [
            ServerCommand::Close {
                correlation_id,
                code,
                ..
            },
        ] => (*correlation_id, *code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn client_is_led_to_an_open_connection() {
    let mut peers = Peers::new();
    let (step, answers) = peers.send(&[peer_properties()]);
    let code = ResponseCode::OK;
    let expected = ServerCommand::PeerProperties {
        correlation_id: 1,
        code,
        properties: List::from(CONFIG.properties),
    };
    assert_eq!((step.as_str(), answers), ("Starved", vec![expected]));
    let (_, answers) = peers.send(&[ClientCommand::SaslHandshake { correlation_id: 2 }]);
    let expected = ServerCommand::SaslHandshake {
        correlation_id: 2,
        code,
        mechanisms: List::from(CONFIG.mechanisms),
    };
    assert_eq!(answers, [expected]);
    let (step, answers) = peers.send(&[authenticate()]);
    assert!(
        step.starts_with("Authenticate { mechanism: \"PLAIN\""),
        "{step}"
    );
    assert_eq!(answers, []);
    let answers = peers.authenticated(code);
    let expected = [
        ServerCommand::SaslAuthenticate {
            correlation_id: 3,
            code,
            challenge: Trailing(None),
        },
        ServerCommand::Tune {
            frame_max: 1 << 20,
            heartbeat: 60,
        },
    ];
    assert_eq!(answers, expected);
    let (step, answers) = peers.send(&[tune(), open()]);
    assert_eq!(
        (step.as_str(), answers.len()),
        ("Open { virtual_host: \"/\" }", 0)
    );
    assert_eq!(peers.connection.frame_max(), 100_000);
    let answers = peers.opened(code);
    let properties = [Property {
        key: "advertised_host",
        value: "node-0",
    }];
    let expected = ServerCommand::Open {
        correlation_id: 4,
        code,
        properties: Trailing(List::from(&properties[..])),
    };
    assert_eq!(answers, [expected]);
    let (step, _) = peers.send(&[ClientCommand::Delete {
        correlation_id: 5,
        stream: "s",
    }]);
    assert!(step.starts_with("Command(Delete"), "{step}");
}

#[test]
fn tune_may_have_the_key_of_a_response() {
    let mut peers = Peers::new();
    peers.send(&[peer_properties(), authenticate()]);
    peers.authenticated(ResponseCode::OK);
    let tune = ClientCommand::TuneResponse {
        frame_max: 100_000,
        heartbeat: 10,
    };
    let (step, _) = peers.send(&[tune, open()]);
    assert_eq!(step, "Open { virtual_host: \"/\" }");
    assert_eq!(peers.connection.frame_max(), 100_000);
}

#[test]
fn nothing_is_read_while_the_owner_verifies() {
    let mut peers = Peers::new();
    let all = encode(&[peer_properties(), authenticate(), tune(), open()]);
    let (step, _) = peers.send_bytes(&all);
    assert!(step.starts_with("Authenticate"), "{step}");
    assert_eq!(peers.send_bytes(b"").0, "Starved");
    assert_eq!(peers.input.len(), encode(&[tune(), open()]).len());
    peers.authenticated(ResponseCode::OK);
    assert!(peers.send_bytes(b"").0.starts_with("Open"));
    peers.authenticated(ResponseCode::OK);
    assert!(
        !peers.connection.is_open(),
        "no credentials are being verified"
    );
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let mut peers = Peers::new();
    let bytes = encode(&[peer_properties(), authenticate()]);
    let (last, rest) = bytes.split_last().expect("some");
    for byte in rest {
        assert_eq!(peers.send_bytes(&[*byte]).0, "Starved");
    }
    assert!(peers.send_bytes(&[*last]).0.starts_with("Authenticate"));
}

#[test]
fn refused_clients_get_the_code_and_are_closed() {
    let mut peers = Peers::new();
    peers.send(&[peer_properties(), authenticate()]);
    let code = ResponseCode::AUTHENTICATION_FAILURE;
    let expected = ServerCommand::SaslAuthenticate {
        correlation_id: 3,
        code,
        challenge: Trailing(None),
    };
    assert_eq!(peers.authenticated(code), [expected]);
    assert_eq!(peers.send(&[tune()]).0, "Closed(Refused)");

    let mut peers = Peers::new();
    let other = ClientCommand::SaslAuthenticate {
        correlation_id: 3,
        mechanism: "EXTERNAL",
        data: None,
    };
    let (step, answers) = peers.send(&[peer_properties(), other]);
    assert_eq!(step, "Closed(Refused)");
    let code = ResponseCode::SASL_MECHANISM_NOT_SUPPORTED;
    assert!(
        matches!(answers[1], ServerCommand::SaslAuthenticate { code: found, .. } if found == code)
    );

    let mut peers = Peers::new();
    peers.send(&[peer_properties(), authenticate()]);
    peers.authenticated(ResponseCode::OK);
    peers.send(&[tune(), open()]);
    let code = ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE;
    let properties = Trailing(List::from(&[][..]));
    let expected = ServerCommand::Open {
        correlation_id: 4,
        code,
        properties,
    };
    assert_eq!(peers.opened(code), [expected]);
    assert_eq!(peers.send(&[]).0, "Closed(Refused)");
}

/// Every command before its time closes the connection.
#[test]
fn commands_out_of_order_close_the_connection() {
    let query = ClientCommand::QueryOffset {
        correlation_id: 9,
        reference: "r",
        stream: "s",
    };
    let commands = [
        peer_properties(),
        ClientCommand::SaslHandshake { correlation_id: 2 },
        authenticate(),
        tune(),
        open(),
        query,
    ];
    // Commands that are allowed in each state of the handshake.
    let allowed: [&[usize]; 4] = [&[0], &[1, 2], &[3], &[4]];
    for (state, allowed) in allowed.iter().enumerate() {
        for (n, command) in commands.iter().enumerate() {
            let mut peers = Peers::new();
            if state > 0 {
                peers.send(&[peer_properties()]);
            }
            if state > 1 {
                peers.send(&[authenticate()]);
                peers.authenticated(ResponseCode::OK);
            }
            if state > 2 {
                peers.send(&[tune()]);
            }
            let (_, answers) = peers.send(&[*command]);
            let is_closing = matches!(answers[..], [ServerCommand::Close { .. }]);
            assert_eq!(is_closing, !allowed.contains(&n), "{state}: {command:?}");
            if is_closing {
                assert_eq!(close_request(&answers).1, ResponseCode::UNKNOWN_FRAME);
            }
        }
    }
    for command in [peer_properties(), tune(), open()] {
        let mut peers = Peers::open();
        let (_, answers) = peers.send(&[command]);
        assert_eq!(close_request(&answers).1, ResponseCode::UNKNOWN_FRAME);
        assert!(!peers.connection.is_open());
    }
}

#[test]
fn credentials_of_an_open_connection_are_renewed() {
    let mut peers = Peers::open();
    let (step, _) = peers.send(&[authenticate()]);
    assert!(step.starts_with("Authenticate"), "{step}");
    assert!(peers.connection.is_open());
    let expected = ServerCommand::SaslAuthenticate {
        correlation_id: 3,
        code: ResponseCode::OK,
        challenge: Trailing(None),
    };
    assert_eq!(
        peers.authenticated(ResponseCode::OK),
        [expected],
        "no second tune"
    );
    assert!(peers.connection.is_open());
}

#[test]
fn client_closes_in_every_state() {
    let close = ClientCommand::Close {
        correlation_id: 8,
        code: ResponseCode::OK,
        reason: "bye",
    };
    for mut peers in [Peers::new(), Peers::open()] {
        let (step, answers) = peers.send(&[close]);
        let expected = ServerCommand::CloseResponse {
            correlation_id: 8,
            code: ResponseCode::OK,
        };
        assert_eq!((step.as_str(), answers), ("Closed(Client)", vec![expected]));
    }
}

#[test]
fn server_waits_for_the_answer_to_its_close_request() {
    let mut peers = Peers::open();
    let Peers {
        connection, out, ..
    } = &mut peers;
    connection.close(ResponseCode::INTERNAL_ERROR, "stopping", out);
    connection.close(ResponseCode::INTERNAL_ERROR, "stopping", out);
    let (correlation_id, code) = close_request(&answers(&mut peers.out));
    assert_eq!(code, ResponseCode::INTERNAL_ERROR);
    let delete = ClientCommand::Delete {
        correlation_id: 5,
        stream: "s",
    };
    let (step, ignored) = peers.send(&[delete, tune()]);
    assert_eq!((step.as_str(), ignored.len()), ("Starved", 0));
    assert_eq!(peers.send_bytes(b"\0\0\0\x04\0\xff\0\x01").0, "Starved");
    let response = ClientCommand::CloseResponse {
        correlation_id,
        code: ResponseCode::OK,
    };
    assert_eq!(peers.send(&[response]).0, "Closed(Server)");
}

#[test]
fn malformed_and_oversized_frames_are_answered_with_their_code() {
    let mut peers = Peers::open();
    let (_, answers) = peers.send_bytes(b"\0\0\0\x04\0\xff\0\x01");
    assert_eq!(close_request(&answers).1, ResponseCode::UNKNOWN_FRAME);
    let mut peers = Peers::open();
    let (_, answers) = peers.send_bytes(&100_001_u32.to_be_bytes());
    assert_eq!(close_request(&answers).1, ResponseCode::FRAME_TOO_LARGE);
    let mut peers = Peers::new();
    let (_, answers) = peers.send_bytes(&(MAX_HANDSHAKE_FRAME_BYTES + 1).to_be_bytes());
    assert_eq!(close_request(&answers).1, ResponseCode::FRAME_TOO_LARGE);
    // Further garbage does not wait for an answer.
    assert_eq!(peers.send_bytes(&[0xFF; 8]).0, "Closed(Server)");
}

#[test]
fn smaller_frame_size_applies() {
    for (client, expected) in [
        (0, 1 << 20),
        (1 << 21, 1 << 20),
        (100_000, 100_000),
        (1, MIN_FRAME_MAX),
    ] {
        let mut peers = Peers::new();
        peers.send(&[peer_properties(), authenticate()]);
        peers.authenticated(ResponseCode::OK);
        peers.send(&[ClientCommand::Tune {
            frame_max: client,
            heartbeat: 0,
        }]);
        assert_eq!(peers.connection.frame_max(), expected);
    }
}

#[test]
fn heartbeats_follow_the_interval_of_the_client() {
    let mut peers = Peers::open();
    let Peers {
        connection, out, ..
    } = &mut peers;
    connection.sent(at(1));
    assert_eq!(connection.tick(at(10), out), Step::Starved);
    assert!(out.is_empty());
    assert_eq!(connection.tick(at(11), out), Step::Starved);
    assert_eq!(answers(out), [ServerCommand::Heartbeat {}]);
    assert_eq!(connection.tick(at(12), out), Step::Starved);
    assert!(out.is_empty());
    let heartbeat = encode(&[ClientCommand::Heartbeat {}]);
    let received = connection.receive(&CONFIG, at(15), &heartbeat, out);
    assert_eq!(received, (heartbeat.len(), Step::Starved));
    assert_eq!(connection.tick(at(35), out), Step::Starved);
    let late = at(35).0 + Duration::from_millis(1).as_nanos() as u64;
    let silent = Step::Closed(CloseReason::Silent);
    assert_eq!(connection.tick(Time(late), out), silent);
    assert_eq!(connection.tick(Time(late), out), silent);
}

#[test]
fn connection_without_heartbeats_may_be_silent() {
    let mut connection = Connection::new(at(0));
    let mut out = BytesMut::new();
    assert_eq!(connection.tick(at(1 << 20), &mut out), Step::Starved);
    assert!(out.is_empty());
}

proptest! {
    /// The steps are the same wherever the input is cut, and no input causes a panic.
    #[test]
    fn input_may_be_cut_anywhere(
        picks in prop::collection::vec((0_usize..9, any::<u8>()), 0..12),
        cuts in prop::collection::vec(1_usize..30, 1..20),
    ) {
        let mut bytes = Vec::new();
        for (pick, noise) in picks {
            let command = match pick {
                0 | 1 => peer_properties(),
                2 => authenticate(),
                3 => tune(),
                4 | 5 => open(),
                6 => ClientCommand::Heartbeat {},
                7 => ClientCommand::ResolveOffsetSpec {
                    correlation_id: noise.into(),
                    stream: "s",
                    offset: OffsetSpecification::Next,
                    properties: Trailing(List::from(&[][..])),
                },
                _ => {
                    bytes.extend_from_slice(&[0, 0, 0, 4, 0, noise, 0, 1]);
                    continue;
                }
            };
            bytes.extend(encode(&[command]));
        }
        let run = |pieces: &mut dyn Iterator<Item = Vec<u8>>| {
            let mut peers = Peers::new();
            let mut log = Vec::new();
            for piece in pieces {
                let mut piece = piece;
                loop {
                    let before = peers.input.len() + piece.len();
                    let (step, answers) = peers.send_bytes(&piece);
                    piece.clear();
                    log.extend(answers.iter().map(|answer| format!("{answer:?}")));
                    if step != "Starved" {
                        log.push(step.clone());
                    }
                    match &*step {
                        step if step.starts_with("Authenticate") => {
                            peers.authenticated(ResponseCode::OK);
                        }
                        step if step.starts_with("Open") => {
                            peers.opened(ResponseCode::OK);
                        }
                        _ => {}
                    }
                    if step.starts_with("Closed") {
                        return log;
                    }
                    if step == "Starved" && peers.input.len() == before {
                        break;
                    }
                }
            }
            log
        };
        let whole = run(&mut std::iter::once(bytes.clone()));
        let mut rest = &bytes[..];
        let mut cuts = cuts.iter().cycle();
        let mut pieces = std::iter::from_fn(|| {
            let len = (*cuts.next()?).min(rest.len());
            let (piece, after) = rest.split_at(len);
            rest = after;
            (len > 0).then(|| piece.to_vec())
        });
        let cut = run(&mut pieces);
        prop_assert_eq!(whole, cut);
    }
}
