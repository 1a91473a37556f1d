//! Clients in front of sessions that share an in-memory node.

mod broker;

pub use broker::*;

use bytes::{Bytes, BytesMut};
use codec_stream::{
    ClientCommand, CommandVersions, List, OffsetSpecification, Property, PublishedBody,
    PublishedMessage, PublishedMessages, ResponseCode, ServerCommand, Trailing, split_frame,
};
use session::{ConnectionInfo, Outbox, ProtocolId, Session, SessionState};
use session_stream::{StreamConfig, StreamProtocol, StreamSession};
use std::time::Duration;

/// A command of the server, which is leaked.
pub type Seen = ServerCommand<'static>;

pub struct Client {
    pub session: StreamSession,
    pub out: Outbox,
    pub state: SessionState,
    pub seen: Vec<Seen>,
    from_server: Vec<u8>,
    to_server: BytesMut,
    /// The client does not read.
    pub is_deaf: bool,
    number: u64,
}

/// A node and its clients.
pub struct World {
    pub broker: FakeBroker,
    pub clients: Vec<Client>,
    protocol: StreamProtocol,
}

pub const FIRST: OffsetSpecification = OffsetSpecification::First;
pub const OK: ResponseCode = ResponseCode::OK;

impl World {
    pub fn new(config: StreamConfig) -> World {
        let protocol = StreamProtocol::new(config);
        World {
            broker: FakeBroker::new(&protocol),
            clients: Vec::new(),
            protocol,
        }
    }

    /// A node with the stream `s` and an open connection of `guest`.
    pub fn open() -> World {
        World::open_with(StreamConfig::default(), "guest")
    }

    pub fn open_with(config: StreamConfig, user: &str) -> World {
        let mut world = World::new(config);
        world.broker.declare("s");
        world.connect(user);
        world
    }

    /// Opens a connection; its clients have the numbers 0, 1, ...
    pub fn connect(&mut self, user: &str) -> usize {
        let at = self.accept();
        self.handshake(at, user);
        at
    }

    /// A connection before the handshake.
    pub fn accept(&mut self) -> usize {
        let connection = ConnectionInfo {
            protocol: ProtocolId(0),
            peer: "127.0.0.1:40000".parse().unwrap(),
            local: "127.0.0.1:5552".parse().unwrap(),
            tls: None,
        };
        self.clients.push(Client {
            session: self.protocol.stream_session(&connection, self.broker.now),
            out: Outbox::default(),
            state: SessionState::Open,
            seen: Vec::new(),
            from_server: Vec::new(),
            to_server: BytesMut::new(),
            is_deaf: false,
            number: 100 + self.clients.len() as u64,
        });
        self.clients.len() - 1
    }

    fn handshake(&mut self, at: usize, user: &str) {
        self.greet(at);
        let data = format!("\0{user}\0{user}");
        self.authenticate(at, "PLAIN", data.as_bytes());
        self.send(
            at,
            &ClientCommand::Tune {
                frame_max: 1 << 20,
                heartbeat: 60,
            },
        );
        self.send(
            at,
            &ClientCommand::Open {
                correlation_id: 3,
                virtual_host: "/",
            },
        );
        let seen = self.take(at);
        assert!(
            matches!(seen.last(), Some(ServerCommand::Open { code: OK, .. })),
            "{seen:?}"
        );
    }

    pub fn greet(&mut self, at: usize) {
        let properties = [Property {
            key: "connection_name",
            value: "me",
        }];
        self.send(
            at,
            &ClientCommand::PeerProperties {
                correlation_id: 1,
                properties: List::from(&properties[..]),
            },
        );
    }

    pub fn authenticate(&mut self, at: usize, mechanism: &str, data: &[u8]) {
        self.send(
            at,
            &ClientCommand::SaslAuthenticate {
                correlation_id: 2,
                mechanism,
                data: Some(data),
            },
        );
    }

    /// Sends a command and exchanges everything that follows.
    pub fn send(&mut self, at: usize, command: &ClientCommand<'_>) {
        command.encode(&mut self.clients[at].to_server);
        self.pump();
    }

    pub fn send_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.clients[at].to_server.extend_from_slice(bytes);
        self.pump();
    }

    /// The commands that a client has received since the last call.
    pub fn take(&mut self, at: usize) -> Vec<Seen> {
        std::mem::take(&mut self.clients[at].seen)
    }

    /// Sends a command of the first client and returns what it receives.
    pub fn ask(&mut self, command: &ClientCommand<'_>) -> Vec<Seen> {
        self.send(0, command);
        self.take(0)
    }

    /// Exchanges bytes and events until nothing more happens.
    pub fn pump(&mut self) {
        loop {
            let mut is_busy = false;
            for at in 0..self.clients.len() {
                is_busy |= self.serve(at);
            }
            while let Some((number, event)) = self.broker.events.pop_front() {
                is_busy = true;
                self.with_session(number, |client, broker| {
                    client.session.session_event(event, broker, &mut client.out)
                });
            }
            for (number, mut event) in self.broker.run_service() {
                is_busy = true;
                self.with_session(number, |client, broker| {
                    client
                        .session
                        .service_event(&mut *event, broker, &mut client.out)
                });
            }
            if !is_busy {
                return;
            }
        }
    }

    fn with_session(
        &mut self,
        number: u64,
        step: impl FnOnce(&mut Client, &mut FakeBroker) -> SessionState,
    ) {
        self.broker.id.number = number;
        let found = self.clients.iter_mut().find(|c| c.number == number);
        if let Some(client) = found {
            client.state = step(client, &mut self.broker);
        }
    }

    /// Returns true if bytes moved.
    fn serve(&mut self, at: usize) -> bool {
        let client = &mut self.clients[at];
        self.broker.id.number = client.number;
        let before = client.to_server.len();
        if client.state == SessionState::Open && before > 0 {
            client.state =
                client
                    .session
                    .receive(&mut client.to_server, &mut self.broker, &mut client.out);
        }
        let is_read = client.to_server.len() != before;
        if client.is_deaf {
            return is_read;
        }
        let pieces: Vec<Bytes> = client.out.pieces().iter().cloned().collect();
        for piece in &pieces {
            client.out.consume(piece.len());
            client.from_server.extend_from_slice(piece);
        }
        if !pieces.is_empty() {
            client.state = client.session.drained(&mut self.broker, &mut client.out);
        }
        client.read_frames();
        is_read || !pieces.is_empty()
    }

    /// Time passes and every session gets a tick.
    pub fn pass(&mut self, seconds: u64) {
        self.broker.now = self.broker.now + Duration::from_secs(seconds);
        for client in &mut self.clients {
            self.broker.id.number = client.number;
            client.state = client.session.tick(&mut self.broker, &mut client.out);
        }
        self.pump();
    }

    /// The socket of a client breaks.
    pub fn disconnect(&mut self, at: usize) {
        self.broker.id.number = self.clients[at].number;
        self.clients[at].session.gone(&mut self.broker);
        self.clients[at].number = 0;
        self.pump();
    }

    pub fn declare_publisher(&mut self, id: u8, reference: &str, stream: &str) -> ResponseCode {
        let seen = self.ask(&ClientCommand::DeclarePublisher {
            correlation_id: 9,
            publisher_id: id,
            reference,
            stream,
        });
        match seen[..] {
            [ServerCommand::DeclarePublisher { code, .. }] => code,
            _ => panic!("{seen:?}"),
        }
    }

    pub fn publish(&mut self, at: usize, publisher_id: u8, messages: &[(u64, &str)]) {
        let mut buffer = BytesMut::new();
        let messages: Vec<PublishedMessage<'_>> = messages
            .iter()
            .map(|&(publishing_id, body)| PublishedMessage {
                publishing_id,
                filter: None,
                body: PublishedBody::Message(body.as_bytes()),
            })
            .collect();
        let messages = PublishedMessages::encode(&messages, &mut buffer);
        self.send(
            at,
            &ClientCommand::Publish {
                publisher_id,
                messages,
            },
        );
    }

    pub fn subscribe(
        &mut self,
        at: usize,
        id: u8,
        stream: &str,
        offset: OffsetSpecification,
        credit: u16,
        properties: &[(&str, &str)],
    ) -> ResponseCode {
        let properties: Vec<Property<'_>> = properties
            .iter()
            .map(|&(key, value)| Property { key, value })
            .collect();
        let before = self.clients[at].seen.len();
        self.send(
            at,
            &ClientCommand::Subscribe {
                correlation_id: 8,
                subscription_id: id,
                stream,
                offset,
                credit,
                properties: Trailing(List::from(&properties[..])),
            },
        );
        match self.clients[at].seen.remove(before) {
            ServerCommand::Subscribe { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    pub fn credit(&mut self, at: usize, subscription_id: u8, credit: u16) -> Vec<Seen> {
        self.send(
            at,
            &ClientCommand::Credit {
                subscription_id,
                credit,
            },
        );
        self.take(at)
    }

    /// States that the client reads version 2 of deliveries.
    pub fn exchange_versions(&mut self, at: usize) -> Vec<Seen> {
        let commands = [CommandVersions {
            key: 8,
            min: 1,
            max: 2,
        }];
        self.send(
            at,
            &ClientCommand::ExchangeCommandVersions {
                correlation_id: 1,
                commands: List::from(&commands[..]),
            },
        );
        self.take(at)
    }
}

impl Client {
    fn read_frames(&mut self) {
        let bytes: &'static [u8] =
            Box::leak(std::mem::take(&mut self.from_server).into_boxed_slice());
        let mut rest = bytes;
        while let Some((frame, len)) = split_frame(rest, 0).expect("a frame") {
            self.seen
                .push(ServerCommand::decode(frame).expect("a command"));
            rest = &rest[len..];
        }
        self.from_server = rest.to_vec();
    }
}

/// The bodies of the messages in deliveries, by subscription id.
pub fn bodies(seen: &[Seen]) -> Vec<(u8, String)> {
    let mut found = Vec::new();
    for command in seen {
        let ServerCommand::Deliver {
            subscription_id,
            chunk,
            ..
        } = command
        else {
            continue;
        };
        let data_len = u32::from_be_bytes(chunk.0[36..40].try_into().unwrap()) as usize;
        assert_eq!(chunk.0[45..48], [0; 3], "reserved bytes");
        let mut rest = &chunk.0[48..];
        assert_eq!(rest.len(), data_len, "neither filter nor trailer");
        while !rest.is_empty() {
            let len = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            let body = std::str::from_utf8(&rest[4..4 + len]).unwrap();
            found.push((*subscription_id, body.to_owned()));
            rest = &rest[4 + len..];
        }
    }
    found
}
