//! The state of a client connection in the event loop.

use crate::held::TlsAndPartialFrame;
use crate::secure::TlsConnection;
use mio::net::TcpStream;
use session::ProtocolId;
use session::SessionState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    /// In the TLS handshake; the driver does not know the connection yet.
    Handshaking,
    /// The driver has a session for the connection.
    Serving,
    /// The session has ended; the remaining output is sent within a deadline.
    Flushing,
    /// Our side is shut down and the driver has forgotten the connection. Input is discarded until
    /// the client closes.
    Lingering,
}

// There may be a million connections. With debug assertions mio's sockets are larger.
#[cfg(not(debug_assertions))]
const _: () = assert!(size_of::<Option<Connection>>() <= 32);

pub(crate) struct Connection {
    pub socket: TcpStream,
    pub protocol: ProtocolId,
    pub held: TlsAndPartialFrame,
    /// Distinguishes this connection from earlier ones in the same slot. It only has to be unique
    /// within the close timeout, so it may wrap around.
    pub serial: u32,
    /// Number of bytes discarded while lingering.
    pub discarded: u32,
    pub phase: ConnectionPhase,
    pub session_state: SessionState,
    /// The socket may have input. Events are edge-triggered, so this is set until a read returns
    /// less than requested.
    pub readable: bool,
    /// The peer has shut down its side, so a short read does not mean that the socket is empty.
    pub hung_up: bool,
    /// The connection is in the loop's service queue.
    pub queued: bool,
    /// The connection is in the loop's flush list.
    pub dirty: bool,
    /// The socket did not accept all output; wait for a writable event.
    pub blocked: bool,
    /// The output exceeds its limit; nothing is read meanwhile.
    pub output_exceeded: bool,
    /// Frames may remain in the partial input from before a pause.
    pub resume: bool,
}

impl Connection {
    pub(crate) fn new(
        socket: TcpStream,
        protocol: ProtocolId,
        serial: u32,
        secure: Option<Box<TlsConnection>>,
    ) -> Connection {
        let phase = match secure {
            Some(_) => ConnectionPhase::Handshaking,
            None => ConnectionPhase::Serving,
        };
        Connection {
            socket,
            protocol,
            held: TlsAndPartialFrame::new(secure),
            serial,
            discarded: 0,
            phase,
            session_state: SessionState::Open,
            readable: false,
            hung_up: false,
            queued: false,
            dirty: false,
            blocked: false,
            output_exceeded: false,
            resume: false,
        }
    }

    /// Returns true if serving the connection could make progress.
    pub(crate) fn wants_service(&self) -> bool {
        match self.phase {
            ConnectionPhase::Serving => {
                self.session_state == SessionState::Open
                    && !self.output_exceeded
                    && (self.readable || (self.resume && self.held.has_partial()))
            }
            ConnectionPhase::Flushing => false,
            ConnectionPhase::Handshaking | ConnectionPhase::Lingering => self.readable,
        }
    }

    /// Returns true if the driver has a session for the connection.
    pub(crate) fn is_known(&self) -> bool {
        matches!(
            self.phase,
            ConnectionPhase::Serving | ConnectionPhase::Flushing
        )
    }

    /// Returns true if TLS has no more output, including close_notify.
    pub(crate) fn tls_finished(&self) -> bool {
        self.held.secure().is_none_or(|s| s.is_finished())
    }
}
