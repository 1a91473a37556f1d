//! Whole sessions of AMQP 0.9.1: bytes, frames, notices of the node and time, in any order. No panic, bounded buffers, and what
//! the session writes is whole frames that its client can read.
#![no_main]

#[path = "../../crates/session-amqp091/tests/fake/mod.rs"]
mod fake;

use bytes::BytesMut;
use codec_amqp091::{Frame, FrameKind, Method, parse_frame};
use fake::Conn;
use libfuzzer_sys::fuzz_target;
use session::{ControlEvent, Session, SessionState};
use std::time::Duration;

/// `Limits::outbox` with what one step may add.
const OUTBOX: usize = (4 << 20) + (1 << 20);

/// Methods that a client sends, for inputs that name one by its place here.
const METHODS: [(u8, u8); 34] = [
    (10, 11),
    (10, 31),
    (10, 40),
    (10, 50),
    (10, 51),
    (10, 70),
    (20, 10),
    (20, 20),
    (20, 21),
    (20, 40),
    (20, 41),
    (40, 10),
    (40, 20),
    (40, 30),
    (40, 40),
    (50, 10),
    (50, 20),
    (50, 30),
    (50, 40),
    (50, 50),
    (60, 10),
    (60, 20),
    (60, 30),
    (60, 40),
    (60, 70),
    (60, 80),
    (60, 90),
    (60, 100),
    (60, 110),
    (60, 120),
    (85, 10),
    (90, 10),
    (90, 20),
    (90, 30),
];

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// As many as the next byte says, or as there are.
    fn bytes(&mut self) -> &'a [u8] {
        let wanted = usize::from(self.byte().unwrap_or(0));
        let (taken, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let mut conn = match script.byte() {
        None => return,
        Some(0) => Conn::new(Default::default()),
        Some(1) => Conn::open(),
        Some(_) => {
            let mut conn = Conn::with_channel();
            conn.declare(1, "q");
            conn.open_channel(2);
            conn
        }
    };
    conn.drain();
    conn.received.clear();
    while let Some(step) = script.byte() {
        if conn.session_state == SessionState::Closing {
            break;
        }
        take(step, &mut script, &mut conn);
        assert!(conn.out.len() <= OUTBOX, "{} bytes wait", conn.out.len());
    }
    conn.drain();
    read_all(&mut conn);
    conn.session.gone(&mut conn.broker);
});

fn take(step: u8, script: &mut Script<'_>, conn: &mut Conn) {
    let channel = u16::from(step >> 4) % 4;
    let frame = |conn: &mut Conn, kind, payload: &[u8]| {
        let mut bytes = BytesMut::new();
        Frame {
            kind,
            channel,
            payload,
        }
        .encode(&mut bytes);
        conn.raw(&bytes);
    };
    match step % 16 {
        0..=7 => {
            let (class, method) = METHODS[usize::from(script.byte().unwrap_or(0)) % METHODS.len()];
            let payload = [&[0, class, 0, method], script.bytes()].concat();
            frame(conn, FrameKind::Method, &payload);
        }
        8 | 9 => frame(conn, FrameKind::Header, script.bytes()),
        10 => frame(conn, FrameKind::Body, script.bytes()),
        11 => frame(conn, FrameKind::Heartbeat, script.bytes()),
        12 => conn.raw(script.bytes()),
        13 => conn.advance(Duration::from_secs(script.byte().unwrap_or(0).into())),
        14 => {
            let notice = match script.byte().unwrap_or(0) % 5 {
                0 => ControlEvent::Blocked(Some("memory")),
                1 => ControlEvent::Blocked(None),
                2 => ControlEvent::Unblocked,
                3 => ControlEvent::Verified { verdict: true.into() },
                _ => ControlEvent::Close {
                    text: "an operator".to_owned(),
                },
            };
            conn.broker.notices.push_back(notice.into());
            conn.settle();
        }
        _ => {
            conn.drain();
            read_all(conn);
        }
    }
}

/// Reads what the client has got, as a client.
fn read_all(conn: &mut Conn) {
    let mut rest = &conn.received[..];
    while !rest.is_empty() && !rest.starts_with(b"AMQP") {
        let frame = parse_frame(rest, 131_072)
            .expect("a frame")
            .expect("a whole frame");
        if frame.kind == FrameKind::Method {
            Method::decode(frame.payload).expect("a method");
        }
        rest = &rest[frame.wire_len()..];
    }
    conn.received.clear();
}
