//! The commands of a quorum queue's log.
//!
//! ```text
//! version u8 | kind u8 | ...
//! batch:     wall ms u64 | runs: session (3 x u64) | first request number varint | count u32 | bodies
//! time:      wall ms u64
//! settings:  settings            gone node: node u64, incarnation u64
//! suspected, trusted: node u64   gone session: session
//! passed on: count varint | each: first number varint, how many more varint
//! ```
//! A run is consecutive requests of one session. A publish's message is a `u32` length and the container's bytes: the
//! offset of that length is all the machine remembers of where a message is.

use crate::codec::{
    self, CodecError, Reader, VERSION, put_body, put_ranges, put_session, put_settings,
    take_ranges, take_session, take_settings,
};
use crate::{DeadIncarnation, QueueSettings, Request, RequestBody, SessionId};
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId, WallTime};

/// Requests in one command at most.
pub const MAX_BATCH_REQUESTS: usize = 4096;
/// A command takes no further request once it has this many bytes.
pub const MAX_BATCH_BYTES: usize = 1 << 20;

const BATCH: u8 = 1;
const TIME: u8 = 2;
const SETTINGS: u8 = 3;
const GONE_NODE: u8 = 4;
const SUSPECTED: u8 = 5;
const TRUSTED: u8 = 6;
const GONE_SESSION: u8 = 7;
const PASSED_ON: u8 = 8;
/// Version, kind, wall clock.
const BATCH_HEADER: usize = 10;

/// A command that is no batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The leader's wall clock, so that messages expire alike everywhere.
    Time(WallTime),
    Settings(QueueSettings),
    GoneNode(DeadIncarnation),
    NodeSuspected(NodeId),
    NodeTrusted(NodeId),
    GoneSession(SessionId),
    /// Dead messages, by inclusive ranges of their numbers, that every queue they go to has confirmed.
    PassedOn(Vec<(u64, u64)>),
}

impl Command {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        match self {
            Command::Time(wall) => {
                out.put_u8(TIME);
                out.put_u64(wall.0);
            }
            Command::Settings(settings) => {
                out.put_u8(SETTINGS);
                put_settings(&mut out, settings);
            }
            Command::GoneNode(gone) => {
                out.put_u8(GONE_NODE);
                out.put_u64(gone.node.0);
                out.put_u64(gone.before.0);
            }
            Command::NodeSuspected(node) => {
                out.put_u8(SUSPECTED);
                out.put_u64(node.0);
            }
            Command::NodeTrusted(node) => {
                out.put_u8(TRUSTED);
                out.put_u64(node.0);
            }
            Command::GoneSession(session) => {
                out.put_u8(GONE_SESSION);
                put_session(&mut out, *session);
            }
            Command::PassedOn(ranges) => {
                out.put_u8(PASSED_ON);
                put_ranges(&mut out, ranges);
            }
        }
        out.freeze()
    }
}

/// Requests on their way into one command.
#[derive(Debug, Default)]
pub struct Batch {
    out: BytesMut,
    requests: usize,
    run: Option<RequestRun>,
}

#[derive(Debug)]
struct RequestRun {
    session: SessionId,
    next: u64,
    count: u32,
    /// Where its count is.
    at: usize,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// No room for another request: take it first.
    pub fn is_full(&self) -> bool {
        self.requests >= MAX_BATCH_REQUESTS || self.out.len() >= MAX_BATCH_BYTES
    }

    pub fn push(&mut self, request: &Request) {
        if self.out.is_empty() {
            self.out.put_u8(VERSION);
            self.out.put_u8(BATCH);
            self.out.put_u64(0);
        }
        match &mut self.run {
            Some(run) if run.session == request.session && run.next == request.seq => {}
            _ => self.begin_run(request),
        }
        if let Some(run) = &mut self.run {
            run.next += 1;
            run.count += 1;
        }
        put_body(&mut self.out, &request.body);
        self.requests += 1;
    }

    fn begin_run(&mut self, request: &Request) {
        self.end_run();
        put_session(&mut self.out, request.session);
        codec::put_varint(&mut self.out, request.seq);
        let at = self.out.len();
        self.out.put_u32(0);
        self.run = Some(RequestRun {
            session: request.session,
            next: request.seq,
            count: 0,
            at,
        });
    }

    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        if let Some(count) = self.out.get_mut(run.at..run.at + 4) {
            count.copy_from_slice(&run.count.to_be_bytes());
        }
    }

    /// The command with what was pushed, as of `wall`; None when that is nothing.
    pub fn take(&mut self, wall: WallTime) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        self.end_run();
        if let Some(at) = self.out.get_mut(2..BATCH_HEADER) {
            at.copy_from_slice(&wall.0.to_be_bytes());
        }
        self.requests = 0;
        Some(self.out.split().freeze())
    }
}

/// A decoded command; a batch is read run by run.
pub(super) enum DecodedCommand {
    Batch { wall: WallTime, runs: Reader },
    Other(Command),
}

pub(super) fn decode(command: &Bytes) -> Result<DecodedCommand, CodecError> {
    let mut reader = Reader::new(command.clone());
    match reader.u8()? {
        VERSION => {}
        other => return Err(CodecError::Version(other)),
    }
    let other = match reader.u8()? {
        BATCH => {
            let wall = WallTime(reader.u64()?);
            return Ok(DecodedCommand::Batch { wall, runs: reader });
        }
        TIME => Command::Time(WallTime(reader.u64()?)),
        SETTINGS => Command::Settings(take_settings(&mut reader)?),
        GONE_NODE => Command::GoneNode(DeadIncarnation {
            node: NodeId(reader.u64()?),
            before: Incarnation(reader.u64()?),
        }),
        SUSPECTED => Command::NodeSuspected(NodeId(reader.u64()?)),
        TRUSTED => Command::NodeTrusted(NodeId(reader.u64()?)),
        GONE_SESSION => Command::GoneSession(take_session(&mut reader)?),
        PASSED_ON => Command::PassedOn(take_ranges(&mut reader)?),
        found => {
            return Err(CodecError::Kind {
                what: "command",
                found,
            });
        }
    };
    if !reader.is_empty() {
        return Err(CodecError::Trailing);
    }
    Ok(DecodedCommand::Other(other))
}

/// The node that a command judges.
pub(super) fn judged(command: &Bytes) -> Option<NodeId> {
    match decode(command).ok()? {
        DecodedCommand::Other(Command::NodeSuspected(node) | Command::NodeTrusted(node)) => {
            Some(node)
        }
        _ => None,
    }
}

/// The head of a run: whose, the first number, how many.
pub(super) fn take_run(runs: &mut Reader) -> Result<(SessionId, u64, u32), CodecError> {
    Ok((take_session(runs)?, runs.varint()?, runs.u32()?))
}

/// One request's body, and where its message's length is when it is a publish.
pub(super) fn take_request(runs: &mut Reader) -> Result<(RequestBody, u32), CodecError> {
    // The kind byte comes first.
    let offset = u32::try_from(runs.position() + 1).map_err(|_| CodecError::Range)?;
    Ok((codec::take_body(runs)?, offset))
}
