//! What the loop keeps per connection.

use crate::secure::Secure;
use bytes::BytesMut;
use mio::net::TcpStream;
use session::Standing;
use shard::ClientProtocol;

/// A partial frame in a buffer larger than this is moved to one of its own size.
const COMPACT_FROM: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// TLS is being agreed on; the driver does not know it yet.
    Shaking,
    /// The driver has a session for it.
    Serving,
    /// The session has ended; its last bytes go out, within a deadline.
    Flushing,
    /// Our side is shut and the driver has forgotten it; what still comes is thrown away until the client closes.
    Lingering,
}

pub(crate) struct Connection {
    pub socket: TcpStream,
    pub protocol: ClientProtocol,
    /// Its TLS. None: it has none, or it is over.
    pub secure: Option<Box<Secure>>,
    /// Bytes without the end of their frame; None between frames.
    pub partial: Option<Box<BytesMut>>,
    /// Tells this connection from an earlier one in the same slot.
    pub serial: u64,
    /// Bytes read and thrown away while lingering.
    pub discarded: u32,
    pub phase: Phase,
    pub standing: Standing,
    /// The socket may have bytes: edge-triggered, so it is remembered until a read says otherwise.
    pub readable: bool,
    /// The other side has shut its half: a short read is not the end then.
    pub hung_up: bool,
    /// In the loop's queue of connections to serve.
    pub queued: bool,
    /// In the loop's list of connections to flush.
    pub dirty: bool,
    /// The socket took less than there was; waits for a writable event.
    pub blocked: bool,
    /// Too much waits to be written: nothing is read meanwhile.
    pub glutted: bool,
    /// Frames may be left in `partial` from before a pause.
    pub resume: bool,
}

impl Connection {
    pub fn new(
        socket: TcpStream,
        protocol: ClientProtocol,
        serial: u64,
        secure: Option<Box<Secure>>,
    ) -> Connection {
        let phase = match secure {
            Some(_) => Phase::Shaking,
            None => Phase::Serving,
        };
        Connection {
            socket,
            protocol,
            secure,
            partial: None,
            serial,
            discarded: 0,
            phase,
            standing: Standing::Open,
            readable: false,
            hung_up: false,
            queued: false,
            dirty: false,
            blocked: false,
            glutted: false,
            resume: false,
        }
    }

    /// Whether serving it now could do anything.
    pub fn wants_service(&self) -> bool {
        match self.phase {
            Phase::Serving => {
                self.standing == Standing::Open
                    && !self.glutted
                    && (self.readable || (self.resume && self.partial.is_some()))
            }
            Phase::Flushing => false,
            Phase::Shaking | Phase::Lingering => self.readable,
        }
    }

    /// Whether the driver has a session for it.
    pub fn is_known(&self) -> bool {
        matches!(self.phase, Phase::Serving | Phase::Flushing)
    }

    /// Whether TLS has nothing to say any more.
    pub fn is_silent(&self) -> bool {
        self.secure.as_ref().is_none_or(|s| s.is_silent())
    }

    /// Keeps what a step left over, without holding a large buffer for it.
    pub fn keep(&mut self, rest: BytesMut) {
        self.partial = if rest.is_empty() {
            None
        } else if rest.len() < COMPACT_FROM / 2 && rest.capacity() > COMPACT_FROM {
            Some(Box::new(BytesMut::from(&rest[..])))
        } else {
            Some(Box::new(rest))
        };
    }
}
