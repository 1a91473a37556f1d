//! Connections under rate limits: their input is handled in pieces that the limits permit, and they are not read while a limit
//! is exceeded. [`crate::quotas`] has the limits.

use super::Shard;
use crate::ConnectionKey;
use bytes::BytesMut;
use env::Time;
use session::SessionState;

impl Shard {
    /// Passes input to a session with rate limits, and throttles its connection when a limit is exceeded. The rest of the input
    /// stays with the driver.
    #[cold]
    pub(crate) fn receive_within_quotas(
        &mut self,
        key: ConnectionKey,
        input: &mut BytesMut,
    ) -> SessionState {
        let now = self.state.ctx.now();
        // A piece without a complete frame is followed by a larger one.
        let (mut least, mut taken) = (1, 0);
        loop {
            let Some(slot) = self.sessions.get(key) else {
                return SessionState::Closing;
            };
            // A driver passes no input of a connection that is paused.
            if slot.marks.is_throttled() {
                return slot.driver_state();
            }
            let Some(readable) = self.state.limits.readable_bytes(now, key) else {
                return self.throttle(now, key);
            };
            let before = input.len();
            let size = readable.max(least).min(before);
            let charged = self.state.limits.charged_messages();
            let session_state = self.receive_piece(key, input, size);
            let piece = before.saturating_sub(input.len());
            taken += piece;
            let messages = self.state.limits.charged_messages() - charged;
            if messages > 0 {
                self.state.limits.note_input(key, messages, taken);
                taken = 0;
            }
            if session_state != SessionState::Open || input.is_empty() {
                return session_state;
            }
            match piece {
                // The rest is a part of a frame.
                0 if size == before => return session_state,
                0 => least = size.saturating_mul(2),
                _ => least = 1,
            }
        }
    }

    /// Passes the first bytes of the input to a session.
    fn receive_piece(
        &mut self,
        key: ConnectionKey,
        input: &mut BytesMut,
        size: usize,
    ) -> SessionState {
        if size >= input.len() {
            return self.step(key, |s, view, out| s.receive(input, view, out));
        }
        let rest = input.split_off(size);
        let session_state = self.step(key, |s, view, out| s.receive(input, view, out));
        match input.is_empty() {
            true => *input = rest,
            // They are parts of one buffer, so nothing is copied.
            false => input.unsplit(rest),
        }
        session_state
    }

    /// The driver does not read the connection until [`Shard::release_throttled`].
    fn throttle(&mut self, now: Time, key: ConnectionKey) -> SessionState {
        let Some(number) = self.sessions.number(key) else {
            return SessionState::Closing;
        };
        self.state.limits.throttle(now, key, number);
        let Some(slot) = self.sessions.get(key) else {
            return SessionState::Closing;
        };
        slot.marks.set_throttled(true);
        slot.driver_state()
    }

    /// The driver reads connections again whose limits permit it.
    #[cold]
    pub(crate) fn release_throttled(&mut self, now: Time) {
        for number in self.state.limits.release_throttled(now) {
            let Some(key) = self.sessions.by_number(number) else {
                continue;
            };
            let Some(slot) = self.sessions.get(key) else {
                continue;
            };
            slot.marks.set_throttled(false);
            // The driver learns the state with the flush.
            if !slot.marks.is_dirty() {
                slot.marks.set_dirty(true);
                self.dirty.push(key);
            }
        }
    }

    /// Rate limits were set or cleared: brings the marks of all connections up to date.
    #[cold]
    pub(crate) fn mark_rate_limited_sessions(&mut self) {
        let limits = &self.state.limits;
        for (key, slot) in self.sessions.iter_mut() {
            slot.marks.set_rate_limited(limits.has_quota(key));
        }
    }
}
