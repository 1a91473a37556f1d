//! An MQTT 3.1.1 client over a socket.

use crate::program::Result;
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Connect, Disconnect, Packet, Properties, Publish, Qos, ReasonCode, Subscribe,
    SubscribeOptions, SubscriptionFilters, Version, Will, parse_frame,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of every operation, so that a hanging test ends.
const TIMEOUT: Duration = Duration::from_secs(120);

pub struct Client {
    stream: TcpStream,
    input: BytesMut,
}

/// A received message.
#[derive(Debug)]
pub struct ReceivedMessage {
    pub id: u16,
    pub qos: Qos,
    pub dup: bool,
    pub retain: bool,
    pub payload: String,
}

impl Client {
    /// Connects. Returns the client and whether a session was present.
    pub fn open(address: &str, client_id: &str, clean: bool) -> Result<(Client, bool)> {
        Client::open_with(address, client_id, clean, None)
    }

    /// Connects with a will.
    pub fn open_with(
        address: &str,
        client_id: &str,
        clean: bool,
        will: Option<Will<'_>>,
    ) -> Result<(Client, bool)> {
        Client::connect(
            address,
            Connect {
                version: Version::V311,
                clean_start: clean,
                keep_alive: 0,
                properties: Properties::default(),
                client_id,
                will,
                user_name: None,
                password: None,
            },
        )
    }

    /// Connects with user name and password. Fails if the login is rejected.
    #[track_caller]
    pub fn log_in(address: &str, user: &str, password: &str) -> Result<Client> {
        Client::log_in_as(address, ("login", true), user, password)
    }

    /// As [`Client::log_in`], with a client id and the flag for a clean session.
    #[track_caller]
    pub fn log_in_as(
        address: &str,
        (client_id, clean): (&str, bool),
        user: &str,
        password: &str,
    ) -> Result<Client> {
        let connect = Connect {
            version: Version::V311,
            clean_start: clean,
            keep_alive: 0,
            properties: Properties::default(),
            client_id,
            will: None,
            user_name: Some(user),
            password: Some(password.as_bytes()),
        };
        Ok(Client::connect(address, connect)?.0)
    }

    fn connect(address: &str, connect: Connect<'_>) -> Result<(Client, bool)> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let input = BytesMut::new();
        let mut client = Client { stream, input };
        client.send(&Packet::Connect(connect))?;
        let present = client.next(|packet| match packet {
            Packet::ConnAck(p) if p.reason == ReasonCode::Success => Some(p.session_present),
            _ => None,
        })?;
        Ok((client, present))
    }

    fn send(&mut self, packet: &Packet<'_>) -> Result<()> {
        let mut raw = BytesMut::new();
        packet.encode(Version::V311, &mut raw);
        Ok(self.stream.write_all(&raw)?)
    }

    /// Reads the next packet, which `read` must accept. An error names the place of the test.
    #[track_caller]
    fn next<T>(&mut self, read: impl Fn(&Packet<'_>) -> Option<T>) -> Result<T> {
        loop {
            let whole = parse_frame(&self.input, usize::MAX).map_err(|e| e.to_string())?;
            if let Some(frame) = whole {
                let length = frame.wire_len();
                let packet = Packet::decode(&frame, Version::V311).map_err(|e| e.to_string())?;
                let found = read(&packet).ok_or_else(|| format!("unexpected: {packet:?}"))?;
                drop(self.input.split_to(length));
                return Ok(found);
            }
            let mut buffer = [0; 4096];
            let place = std::panic::Location::caller();
            let read = self.stream.read(&mut buffer);
            match read.map_err(|e| format!("{place}: no packet: {e}"))? {
                0 => return Err("the connection is closed".into()),
                n => self.input.extend_from_slice(&buffer[..n]),
            }
        }
    }

    #[track_caller]
    pub fn subscribe(&mut self, filter: &str, qos: Qos) -> Result<()> {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        let mut raw = BytesMut::new();
        SubscriptionFilters::put(&mut raw, filter, options);
        self.send(&Packet::Subscribe(Subscribe {
            packet_id: 1,
            properties: Properties::default(),
            filters: SubscriptionFilters::new(&raw, Version::V311),
        }))?;
        self.next(|packet| match packet {
            Packet::SubAck(p) if p.reasons == [qos as u8] => Some(()),
            _ => None,
        })
    }

    pub fn publish(&mut self, topic: &str, id: u16, payload: &str, retain: bool) -> Result<()> {
        self.publish_at(Qos::AtLeastOnce, topic, id, payload, retain)
    }

    pub fn publish_at(
        &mut self,
        qos: Qos,
        topic: &str,
        id: u16,
        payload: &str,
        retain: bool,
    ) -> Result<()> {
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos,
            retain,
            topic,
            packet_id: id,
            properties: Properties::default(),
            payload: payload.as_bytes(),
        }))
    }

    #[track_caller]
    pub fn acknowledged(&mut self) -> Result<u16> {
        self.next(|packet| match packet {
            Packet::Ack(ack) if matches!(ack.kind, AckKind::PubAck | AckKind::PubRec) => {
                Some(ack.packet_id)
            }
            _ => None,
        })
    }

    #[track_caller]
    pub fn message(&mut self) -> Result<ReceivedMessage> {
        self.next(|packet| match packet {
            Packet::Publish(p) => Some(ReceivedMessage {
                id: p.packet_id,
                qos: p.qos,
                dup: p.dup,
                retain: p.retain,
                payload: String::from_utf8_lossy(p.payload).into_owned(),
            }),
            _ => None,
        })
    }

    /// True if a retained message follows the subscription, before the answer to a ping.
    #[track_caller]
    pub fn finds_retained(&mut self, filter: &str) -> Result<bool> {
        self.subscribe(filter, Qos::AtMostOnce)?;
        self.send(&Packet::PingReq)?;
        self.next(|packet| match packet {
            Packet::Publish(publish) => Some(publish.retain),
            Packet::PingResp => Some(false),
            _ => None,
        })
    }

    /// Disconnects properly, so that no will is published.
    pub fn goodbye(&mut self) -> Result<()> {
        self.send(&Packet::Disconnect(Disconnect {
            reason: ReasonCode::Success,
            properties: Properties::default(),
        }))
    }

    pub fn acknowledge(&mut self, id: u16) -> Result<()> {
        let ack = Ack::new(AckKind::PubAck, id, ReasonCode::Success);
        self.send(&Packet::Ack(ack))
    }
}
