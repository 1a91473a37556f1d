//! What a session holds for its client.

/// What a session holds for its client beside unfinished messages ([`Session::unfinished`](crate::Session::unfinished)): output that
/// the client has not taken. The outbox and the driver's input buffer come on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The client has logged in.
    pub is_authenticated: bool,
    /// Bytes of messages that wait for the client to read or to acknowledge.
    pub unread: usize,
    /// Messages that the client has finished after their bytes were held; it may wrap around.
    pub finished: u32,
}
