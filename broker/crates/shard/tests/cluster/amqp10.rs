//! Connections of AMQP 1.0: one that sends frames which its user encodes, and many that are opened and then do nothing.

use super::{AMQP10, Cluster};
use bytes::BytesMut;
use shard::{ConnectionKey, ShardDriver};

/// So many are opened before anything is settled.
const TOGETHER: usize = 64;

const OPEN: u8 = 0x10;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const SOURCE: u8 = 0x28;
const TARGET: u8 = 0x29;
const SASL_INIT: u8 = 0x41;

const NULL: &[u8] = &[0x40];
const SENDER: &[u8] = &[0x42];
const RECEIVER: &[u8] = &[0x41];
const ZERO: &[u8] = &[0x43];
/// Transfers of a session.
const WINDOW: &[u8] = &[0x52, 200];

fn described(descriptor: u8, fields: &[&[u8]]) -> Vec<u8> {
    let list = fields.concat();
    let len = u8::try_from(list.len() + 1).expect("a short list");
    [
        &[0x00, 0x53, descriptor, 0xC0, len, fields.len() as u8],
        &list[..],
    ]
    .concat()
}

fn text(text: &str) -> Vec<u8> {
    let len = u8::try_from(text.len()).expect("a short text");
    [&[0xA1, len], text.as_bytes()].concat()
}

fn frame(kind: u8, channel: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 8).expect("a short frame");
    [&len.to_be_bytes()[..], &[2, kind, 0, channel], body].concat()
}

/// The bytes of a client up to its open.
fn opening() -> Vec<u8> {
    let plain = [&[0xA3, 5], &b"PLAIN"[..]].concat();
    let login = [&[0xA0, 12], &b"\0guest\0guest"[..]].concat();
    let open = described(OPEN, &[&text("client"), &text("vhost:/")]);
    let bytes = [
        b"AMQP\x03\x01\x00\x00".to_vec(),
        frame(1, 0, &described(SASL_INIT, &[&plain, &login])),
        b"AMQP\x00\x01\x00\x00".to_vec(),
        frame(0, 0, &open),
    ];
    bytes.concat()
}

/// A connection of a client that encodes and decodes its frames itself.
pub struct Amqp10Client {
    at: usize,
    key: ConnectionKey,
    input: BytesMut,
}

impl Amqp10Client {
    /// Opens a connection. The answers to it are taken already.
    pub fn open(cluster: &mut Cluster, at: usize) -> Amqp10Client {
        let key = cluster.connect(at, AMQP10);
        let input = BytesMut::new();
        let mut client = Amqp10Client { at, key, input };
        client.send_raw(cluster, &opening());
        client.take_raw(cluster, |_| {});
        client
    }

    /// Sends frames.
    pub fn send_raw(&mut self, cluster: &mut Cluster, frames: &[u8]) {
        self.input.extend_from_slice(frames);
        cluster.receive(self.at, self.key, &mut self.input);
        cluster.settle();
    }

    /// Takes the output: whole frames and a part of one, in pieces as they would be written to a socket.
    pub fn take_raw(&self, cluster: &mut Cluster, each: impl FnMut(&[u8])) {
        cluster.take_raw(self.at, self.key, each);
    }
}

/// Connections, and a socket for each that takes everything at once.
pub struct IdleConnections {
    at: usize,
    keys: Vec<ConnectionKey>,
    input: BytesMut,
}

impl IdleConnections {
    pub fn new(at: usize) -> IdleConnections {
        let (keys, input) = (Vec::new(), BytesMut::new());
        IdleConnections { at, keys, input }
    }

    /// Opens connections until there are so many.
    pub fn grow(&mut self, cluster: &mut Cluster, count: usize) {
        let bytes = opening();
        for number in self.keys.len()..count {
            self.keys.push(cluster.connect(self.at, AMQP10));
            self.send(cluster, number, &bytes);
        }
        cluster.settle();
        for number in 0..self.keys.len() {
            self.take(cluster, number);
        }
    }

    /// Begins a session on each connection from the given number on.
    pub fn begin(&mut self, cluster: &mut Cluster, from: usize, channel: u8) {
        let begin = described(BEGIN, &[NULL, ZERO, WINDOW, WINDOW]);
        self.send_all(cluster, from, &frame(0, channel, &begin));
    }

    /// Attaches a link to an exchange.
    pub fn attach_sender(&mut self, cluster: &mut Cluster, from: usize, channel: u8) {
        let target = described(TARGET, &[&text("/exchanges/amq.fanout")]);
        let source = described(SOURCE, &[]);
        let fields: &[&[u8]] = &[
            &text("to"),
            ZERO,
            SENDER,
            NULL,
            NULL,
            &source,
            &target,
            NULL,
            NULL,
            ZERO,
        ];
        self.send_all(
            cluster,
            from,
            &frame(0, channel, &described(ATTACH, fields)),
        );
    }

    /// Attaches a link from a queue.
    pub fn attach_receiver(
        &mut self,
        cluster: &mut Cluster,
        from: usize,
        channel: u8,
        queue: &str,
    ) {
        let source = described(SOURCE, &[&text(&format!("/queues/{queue}"))]);
        let target = described(TARGET, &[]);
        let fields: &[&[u8]] = &[&text("from"), ZERO, RECEIVER, NULL, NULL, &source, &target];
        self.send_all(
            cluster,
            from,
            &frame(0, channel, &described(ATTACH, fields)),
        );
    }

    fn send_all(&mut self, cluster: &mut Cluster, from: usize, bytes: &[u8]) {
        for number in from..self.keys.len() {
            self.send(cluster, number, bytes);
        }
        cluster.settle();
        for number in from..self.keys.len() {
            self.take(cluster, number);
        }
    }

    fn send(&mut self, cluster: &mut Cluster, number: usize, bytes: &[u8]) {
        self.input.clear();
        self.input.extend_from_slice(bytes);
        cluster.receive(self.at, self.keys[number], &mut self.input);
        assert!(self.input.is_empty(), "whole frames are read");
        self.take(cluster, number);
        if number.is_multiple_of(TOGETHER) {
            cluster.settle();
        }
    }

    /// The socket takes what there is.
    fn take(&mut self, cluster: &mut Cluster, number: usize) {
        let key = self.keys[number];
        assert!(
            !cluster.is_closing(self.at, key),
            "connection {number} has ended"
        );
        let shard = &mut cluster.nodes[self.at].shard;
        let Some((outbox, _)) = shard.outbox(key) else {
            panic!("connection {number} has ended");
        };
        let len = outbox.len();
        if len > 0 {
            outbox.pieces();
            outbox.consume(len);
            shard.drained(key);
        }
    }
}
