//! Memory that a session holds for its client.

/// Memory that a session holds for its client: output that the client has not read or acknowledged.
/// Incomplete messages ([`Session::unfinished`](crate::Session::unfinished)), the outbox and the
/// driver's input buffer are counted separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// The client has logged in.
    pub is_authenticated: bool,
    /// Bytes of messages that wait until the client reads or acknowledges them.
    pub unread: usize,
    /// Number of messages that the client completed after their bytes were held; may wrap around.
    pub finished: u32,
}
