//! A server's end of AMQP 1.0 connections with any bytes, commands of the broker and time in any order: no panic, buffers stay within
//! their limits, and the client gets only whole frames that it can read.
#![no_main]

use std::sync::Arc;

use amqp10::{
    AttachReply, Config, Connection, Event, LinkId, OpenReply, OutgoingDelivery, SaslDecision,
};
use bytes::{Bytes, BytesMut};
use codec_amqp10::{DeliveryState, FrameKind, Performative, SaslFrame, parse_frame};
use libfuzzer_sys::fuzz_target;

/// A client's bytes up to two links: SASL and AMQP headers, init, open, begin, attach of a sender and of a receiver.
const PRELUDE: &[&[u8]] = &[
    b"AMQP\x03\x01\x00\x00",
    b"\x00\x00\x00\x19\x02\x01\x00\x00\x00SA\xc0\x0c\x01\xa3\x09ANONYMOUS",
    b"AMQP\x00\x01\x00\x00",
    b"\x00\x00\x00\x11\x02\x00\x00\x00\x00S\x10\xc0\x04\x01\xa1\x01c",
    b"\x00\x00\x00\x16\x02\x00\x00\x00\x00S\x11\xc0\x09\x05@CRdRdR\x07",
    b"\x00\x00\x00+\x02\x00\x00\x00\x00S\x12\xc0\x1e\x0a\xa1\x01aCB@@\x00S(\xc0\x04\x01\xa1\x01s\x00S)\xc0\x04\x01\xa1\x01t@@R\x0a",
    b"\x00\x00\x00(\x02\x00\x00\x00\x00S\x12\xc0\x1b\x07\xa1\x01bR\x01A@@\x00S(\xc0\x04\x01\xa1\x01s\x00S)\xc0\x04\x01\xa1\x01t",
];

/// Commands may come for links that are gone.
fn ignore<T, E>(_result: Result<T, E>) {}

fn config() -> Config {
    Config {
        max_frame_size: 512,
        channel_max: 3,
        handle_max: 7,
        incoming_window: 8,
        link_credit: 4,
        max_message_size: 1000,
        max_unfinished_size: 1500,
        max_unsettled: 6,
        output_limit: 2048,
        ..Config::server("broker", &["ANONYMOUS"])
    }
}

struct World {
    connection: Connection,
    input: Vec<u8>,
    out: BytesMut,
    now: u64,
    links: Vec<LinkId>,
    received: Vec<(LinkId, u32)>,
}

impl World {
    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.input);
        let mut input = &all[..];
        let Self {
            connection,
            out,
            links,
            received,
            ..
        } = self;
        while let Some(event) = connection.poll(&mut input, self.now, out) {
            match event {
                Event::SaslInit { pending, .. } | Event::SaslResponse { pending, .. } => {
                    connection.answer_sasl(pending, SaslDecision::Accept, out);
                }
                Event::OpenRequested { pending, .. } => {
                    let _ = connection.accept_open(pending, OpenReply::default(), out);
                }
                Event::AttachRequested { attach, pending } => {
                    let reply = AttachReply {
                        source: attach.source,
                        target: attach.target,
                        rcv_settle_mode: Some(attach.rcv_settle_mode),
                        ..AttachReply::default()
                    };
                    links.extend(
                        connection
                            .accept_attach(pending, &reply, out)
                            .map(|attached| attached.link),
                    );
                }
                Event::MessageReceived { link, delivery } => {
                    assert!(delivery.payload.as_ref().len() <= 1000);
                    received.push((link, delivery.id));
                }
                _ => {}
            }
        }
        self.input = input.to_vec();
        // The rest of the input is less than one frame; those of SASL may be larger.
        assert!(self.input.len() < 8192 || self.connection.is_deciding());
    }

    fn command(&mut self, command: u8, argument: u8) {
        let link = self
            .links
            .get(usize::from(argument & 7) % self.links.len().max(1))
            .copied();
        let (connection, out) = (&mut self.connection, &mut self.out);
        match (command % 9, link) {
            (0, Some(link)) => {
                let parts = [Bytes::from(vec![7; usize::from(argument) * 8])];
                let delivery = OutgoingDelivery {
                    tag: &[argument],
                    message_format: 0,
                    settled: argument & 1 == 1,
                    parts: &parts,
                    token: 1,
                };
                let _ = connection.send(link, &delivery, out);
            }
            (1, _) => {
                if let Some((link, id)) = self.received.pop() {
                    let state = if argument & 1 == 0 {
                        DeliveryState::ACCEPTED
                    } else {
                        DeliveryState::RELEASED
                    };
                    let _ = connection.settle_received(link, id, &state, out);
                }
            }
            (2, Some(link)) => ignore(connection.drained(link, out)),
            (3, Some(link)) => {
                ignore(connection.grant_credit(link, u32::from(argument), argument & 1 == 1, out))
            }
            (4, Some(link)) => ignore(connection.detach(link, argument & 1 == 1, None, out)),
            (5, Some(link)) => ignore(connection.report_flow(link, false, out)),
            (6, _) => connection.block_publishers(argument & 1 == 1, out),
            (7, _) => {
                self.now += u64::from(argument) * 100;
                let _ = connection.tick(self.now, out);
            }
            _ => connection.flush(self.now, out),
        }
    }

    /// Reads the output as a client would.
    fn read_output(&mut self) {
        let out = self.out.split();
        let mut rest = &out[..];
        while !rest.is_empty() {
            if rest.starts_with(b"AMQP") {
                rest = &rest[8..];
                continue;
            }
            let frame = parse_frame(rest, 512)
                .expect("a frame")
                .expect("a whole frame");
            match frame.kind {
                FrameKind::Sasl => drop(SaslFrame::decode(frame.body).expect("a SASL frame")),
                FrameKind::Amqp if frame.body.is_empty() => {}
                FrameKind::Amqp => drop(Performative::decode(frame.body).expect("a performative")),
            }
            rest = &rest[frame.size..];
        }
    }

    fn check(&self) {
        assert!(self.connection.unfinished_size() <= 1500);
        for session in self.connection.sessions() {
            assert!(
                session.incoming_window <= 8
                    && session.unsettled_outgoing <= 6
                    && session.links.len() <= 8
            );
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, mut rest)) = input.split_first() else {
        return;
    };
    let mut out = BytesMut::new();
    let connection = Connection::new(Arc::new(config()), 0, &mut out);
    let mut world = World {
        connection,
        input: Vec::new(),
        out,
        now: 0,
        links: Vec::new(),
        received: Vec::new(),
    };
    if first & 1 == 1 {
        PRELUDE.iter().for_each(|bytes| world.receive(bytes));
        assert!(world.connection.is_running());
    }
    // A byte below 128 is the size of a piece of input; any other is a command with an argument.
    while let Some((&size, after)) = rest.split_first() {
        if size < 128 {
            let (piece, after) = after.split_at(usize::from(size).min(after.len()));
            world.receive(piece);
            rest = after;
        } else {
            let Some((&argument, after)) = after.split_first() else {
                break;
            };
            world.command(size - 128, argument);
            rest = after;
        }
        world.read_output();
        world.check();
    }
});
