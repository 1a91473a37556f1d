//! What the loop keeps per connection.

use crate::held::Held;
use crate::secure::Secure;
use mio::net::TcpStream;
use session::ProtocolId;
use session::SessionState;

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

// There may be a million. With debug assertions mio keeps more in a socket.
#[cfg(not(debug_assertions))]
const _: () = assert!(size_of::<Option<Connection>>() <= 32);

pub(crate) struct Connection {
    pub socket: TcpStream,
    pub protocol: ProtocolId,
    pub held: Held,
    /// Tells this connection from an earlier one in the same slot: of the last seconds, so it may begin anew.
    pub serial: u32,
    /// Bytes read and thrown away while lingering.
    pub discarded: u32,
    pub phase: Phase,
    pub session_state: SessionState,
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
        protocol: ProtocolId,
        serial: u32,
        secure: Option<Box<Secure>>,
    ) -> Connection {
        let phase = match secure {
            Some(_) => Phase::Shaking,
            None => Phase::Serving,
        };
        Connection {
            socket,
            protocol,
            held: Held::new(secure),
            serial,
            discarded: 0,
            phase,
            session_state: SessionState::Open,
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
                self.session_state == SessionState::Open
                    && !self.glutted
                    && (self.readable || (self.resume && self.held.has_partial()))
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
        self.held.secure().is_none_or(|s| s.is_silent())
    }
}
