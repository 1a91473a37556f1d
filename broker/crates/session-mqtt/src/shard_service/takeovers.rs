//! Connections that another one takes over, until their input is read.
//!
//! A client that disconnects and connects again at once may reach two shards or nodes. The shard of
//! its old connection can learn of the takeover while DISCONNECT waits in the socket. DISCONNECT
//! decides about the session and the will, so it must be handled first: a takeover waits until the
//! shard has polled its sockets once more and has read what they had.

use env::Time;
use std::collections::VecDeque;

/// The takeovers of one shard, as numbers of sessions.
#[derive(Debug, Default)]
pub(super) struct Takeovers {
    /// New in this turn.
    new: Vec<u64>,
    /// Sockets were polled since, and are read in this turn.
    polled: Vec<u64>,
    /// The input that had arrived before the takeover is read.
    due: VecDeque<u64>,
    /// The start of this turn.
    now: Time,
}

impl Takeovers {
    /// Adds a session that is taken over.
    pub(super) fn push(&mut self, session: u64) {
        self.new.push(session);
    }

    /// Begins a turn, after the sockets were polled.
    pub(super) fn begin_turn(&mut self, now: Time) {
        self.now = now;
        self.due.extend(self.polled.drain(..));
        std::mem::swap(&mut self.polled, &mut self.new);
    }

    /// Removes the first session whose takeover is due.
    pub(super) fn take_due(&mut self) -> Option<u64> {
        self.due.pop_front()
    }

    /// Returns true if a takeover is due.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns true without takeovers.
    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.polled.is_empty() && self.due.is_empty()
    }

    /// Returns the time at which the next turn is needed: at once.
    pub(super) fn wake_at(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.now)
    }
}
