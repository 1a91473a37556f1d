//! Streams of a node that is killed: a client of the stream protocol against the real process.

use crate::program::{Result, Scratch, Serving, address, serve};
use bytes::BytesMut;
use codec_stream::{
    ClientCommand, List, OffsetSpecification, PublishedBody, PublishedMessage, PublishedMessages,
    ResponseCode, ServerCommand, Trailing, split_frame,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Timeout of every operation, so that a hanging test ends.
const TIMEOUT: Duration = Duration::from_secs(120);
const STREAM: &str = "s";
const PUBLISHER: u8 = 1;
/// Length in bytes of the header of a delivered chunk.
const CHUNK_HEADER: usize = 48;

/// A synchronous client of the stream protocol.
struct Client {
    socket: TcpStream,
    input: BytesMut,
    /// Publishing ids.
    confirmed: BTreeSet<u64>,
    /// Offset and publishing id of each delivered message, in order of arrival.
    delivered: Vec<(u64, u64)>,
    /// Code and number of the newest response.
    response: Option<(ResponseCode, u64)>,
}

impl Client {
    fn open(address: &str) -> Result<Client> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let mut client = Client {
            socket,
            input: BytesMut::new(),
            confirmed: BTreeSet::new(),
            delivered: Vec::new(),
            response: None,
        };
        client.ask(&ClientCommand::PeerProperties {
            correlation_id: 1,
            properties: List::from(&[][..]),
        })?;
        client.ask(&ClientCommand::SaslAuthenticate {
            correlation_id: 2,
            mechanism: "PLAIN",
            data: Some(b"\0guest\0guest"),
        })?;
        client.send(&ClientCommand::Tune {
            frame_max: 1 << 20,
            heartbeat: 0,
        })?;
        client.ask(&ClientCommand::Open {
            correlation_id: 3,
            virtual_host: "/",
        })?;
        Ok(client)
    }

    fn send(&mut self, command: &ClientCommand<'_>) -> Result<()> {
        let mut out = BytesMut::new();
        command.encode(&mut out);
        Ok(self.socket.write_all(&out)?)
    }

    /// Sends a request, expects success, and returns the number in the response.
    fn ask(&mut self, command: &ClientCommand<'_>) -> Result<u64> {
        self.response = None;
        self.send(command)?;
        loop {
            match self.response {
                Some((ResponseCode::OK, number)) => return Ok(number),
                Some((code, _)) => return Err(format!("{command:?} failed with {code:?}").into()),
                None => self.step()?,
            }
        }
    }

    /// Handles the next frame of the server.
    fn step(&mut self) -> Result<()> {
        let mut buffer = [0; 64 << 10];
        loop {
            let split = split_frame(&self.input, 0)?.map(|(frame, len)| (frame.to_vec(), len));
            if let Some((frame, len)) = split {
                let _ = self.input.split_to(len);
                return self.handle(&frame);
            }
            match self.socket.read(&mut buffer)? {
                0 => return Err("the connection has ended".into()),
                n => self.input.extend_from_slice(&buffer[..n]),
            }
        }
    }

    fn handle(&mut self, frame: &[u8]) -> Result<()> {
        match ServerCommand::decode(frame)? {
            ServerCommand::PublishConfirm { publishing_ids, .. } => {
                self.confirmed.extend(publishing_ids.iter());
            }
            ServerCommand::Deliver {
                subscription_id,
                chunk,
                ..
            } => {
                self.read_chunk(chunk.0)?;
                self.send(&ClientCommand::Credit {
                    subscription_id,
                    credit: 1,
                })?;
            }
            ServerCommand::QueryPublisherSequence { code, sequence, .. } => {
                self.response = Some((code, sequence));
            }
            ServerCommand::PeerProperties { code, .. }
            | ServerCommand::SaslAuthenticate { code, .. }
            | ServerCommand::Open { code, .. }
            | ServerCommand::Create { code, .. }
            | ServerCommand::DeclarePublisher { code, .. }
            | ServerCommand::Subscribe { code, .. } => self.response = Some((code, 0)),
            ServerCommand::Tune { .. } => {}
            other => return Err(format!("unexpected: {other:?}").into()),
        }
        Ok(())
    }

    /// Reads a chunk of messages that are no sub-batches. Each body is the publishing id.
    fn read_chunk(&mut self, chunk: &[u8]) -> Result<()> {
        let (header, mut entries) = chunk.split_at_checked(CHUNK_HEADER).ok_or("no header")?;
        let mut offset = u64::from_be_bytes(header[24..32].try_into()?);
        while let Some((len, rest)) = entries.split_first_chunk::<4>() {
            let len = u32::from_be_bytes(*len) as usize;
            let (body, rest) = rest.split_at_checked(len).ok_or("a message is cut")?;
            self.delivered
                .push((offset, u64::from_be_bytes(body.try_into()?)));
            offset += 1;
            entries = rest;
        }
        Ok(())
    }

    fn declare_publisher(&mut self) -> Result<()> {
        self.ask(&ClientCommand::DeclarePublisher {
            correlation_id: 5,
            publisher_id: PUBLISHER,
            reference: "p",
            stream: STREAM,
        })?;
        Ok(())
    }

    fn publish(&mut self, ids: std::ops::RangeInclusive<u64>) -> Result<()> {
        let bodies: Vec<(u64, [u8; 8])> = ids.map(|id| (id, id.to_be_bytes())).collect();
        let messages: Vec<PublishedMessage<'_>> = bodies
            .iter()
            .map(|(id, body)| PublishedMessage {
                publishing_id: *id,
                filter: None,
                body: PublishedBody::Message(body),
            })
            .collect();
        let mut buffer = BytesMut::new();
        let messages = PublishedMessages::encode(&messages, &mut buffer);
        self.send(&ClientCommand::Publish {
            publisher_id: PUBLISHER,
            messages,
        })
    }

    /// Consumes the stream from its start up to the message with this publishing id.
    fn consume(&mut self, last: u64) -> Result<Vec<(u64, u64)>> {
        self.ask(&ClientCommand::Subscribe {
            correlation_id: 6,
            subscription_id: 1,
            stream: STREAM,
            offset: OffsetSpecification::First,
            credit: 10,
            properties: Trailing(List::from(&[][..])),
        })?;
        while !self.delivered.iter().any(|(_, id)| *id == last) {
            self.step()?;
        }
        Ok(self.delivered.clone())
    }
}

fn start(dir: &Path, ready: &Path) -> Result<Serving> {
    let mut command = serve(dir, ready);
    command.args(["--set", "stream.listeners.tcp.default=127.0.0.1:0"]);
    Ok(Serving(command.stderr(Stdio::null()).spawn()?))
}

#[test]
fn confirmed_messages_of_a_killed_node_are_read_once_at_their_offsets() -> Result<()> {
    const BATCH: u64 = 50;
    let scratch = Scratch::new("streams")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let mut node = start(&dir, &ready)?;
    let mut client = Client::open(&address(&ready, "stream")?)?;
    client.ask(&ClientCommand::Create {
        correlation_id: 4,
        stream: STREAM,
        arguments: List::from(&[][..]),
    })?;
    client.declare_publisher()?;
    let mut sent = 0;
    while sent < 20 * BATCH {
        client.publish(sent + 1..=sent + BATCH)?;
        sent += BATCH;
    }
    while (client.confirmed.len() as u64) < sent {
        client.step()?;
    }
    let before = Client::open(&address(&ready, "stream")?)?.consume(sent)?;

    // The node dies while messages are in flight.
    let until = sent + 40 * BATCH;
    while client.confirmed.last().is_none_or(|id| *id < until) {
        client.publish(sent + 1..=sent + BATCH)?;
        client.publish(sent + BATCH + 1..=sent + 2 * BATCH)?;
        sent += 2 * BATCH;
        client.step()?;
    }
    node.0.kill()?;
    node.0.wait()?;
    // The confirms that were sent before the end.
    while client.step().is_ok() {}
    let confirmed = client.confirmed;

    std::fs::remove_file(&ready)?;
    let _node = start(&dir, &ready)?;
    let mut client = Client::open(&address(&ready, "stream")?)?;
    client.declare_publisher()?;
    let stored = client.ask(&ClientCommand::QueryPublisherSequence {
        correlation_id: 7,
        reference: "p",
        stream: STREAM,
    })?;
    assert!(confirmed.last().is_some_and(|id| *id <= stored));
    // Ids up to `stored` are duplicates.
    client.publish(1..=stored + 1)?;
    let after = client.consume(stored + 1)?;
    let ids: Vec<u64> = after.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids, (1..=stored + 1).collect::<Vec<u64>>());
    assert!(after.is_sorted_by(|(one, _), (other, _)| one < other));
    let offsets: BTreeMap<u64, u64> = after.iter().map(|(offset, id)| (*id, *offset)).collect();
    for (offset, id) in before {
        assert_eq!(offsets[&id], offset, "message {id}");
    }
    Ok(())
}
