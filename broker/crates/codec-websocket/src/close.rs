//! Why a connection is closed (section 7.4).

/// A status code of a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// The server goes down.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// The other side violates the WebSocket protocol.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// Frames of a kind that is not taken.
    pub const UNSUPPORTED_DATA: CloseCode = CloseCode(1003);
    /// Text that is not UTF-8.
    pub const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// A frame exceeds the limit of the receiver.
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    /// The server is short of resources (registered by IANA).
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// What another side may send: 1004 to 1006 and 1015 never are on the wire, others nobody has defined (section 7.4.2).
    pub fn received(code: u16) -> Option<CloseCode> {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(CloseCode(code))
    }

    /// The code as it is on the wire.
    pub fn number(self) -> u16 {
        self.0
    }
}
