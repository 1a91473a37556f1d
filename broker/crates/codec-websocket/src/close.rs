//! Status codes of the closing handshake (section 7.4).

/// A status code of a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(u16);

impl CloseCode {
    /// Normal closure.
    pub const NORMAL: CloseCode = CloseCode(1000);
    /// The server shuts down.
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    /// The peer violates the WebSocket protocol.
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// The peer sent a type of data that is not accepted.
    pub const UNSUPPORTED_DATA: CloseCode = CloseCode(1003);
    /// Text that is not UTF-8.
    pub const INVALID_PAYLOAD: CloseCode = CloseCode(1007);
    /// A frame exceeds the receiver's limit.
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    /// The server lacks resources (registered with IANA).
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// Validates a received code. 1004 to 1006 and 1015 must not be sent; codes outside the known
    /// ranges are undefined (section 7.4.2).
    pub fn received(code: u16) -> Option<CloseCode> {
        matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999).then_some(CloseCode(code))
    }

    /// The number on the wire.
    pub fn number(self) -> u16 {
        self.0
    }
}
