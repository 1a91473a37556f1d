//! Connections under quotas. With rate limits, their input is handled in pieces that the limits permit, and they are not read while a limit
//! is exceeded. [`crate::quotas`] has these limits, [`crate::stored_bytes`] those of stored bytes, which block publishers.

use super::{Shard, ShardState};
use crate::ConnectionKey;
use bytes::BytesMut;
use env::Time;
use metadata::Name;
use session::{ControlEvent, SessionState};

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

    /// Measures the queues of virtual hosts with a quota of stored bytes.
    #[cold]
    pub(crate) fn measure_stored_bytes(&mut self) {
        let state = &mut self.state;
        let tree = state.metadata.tree();
        let stored = state.queues.local().stored_bytes();
        let by_vhost =
            stored.filter_map(|(queue, bytes)| Some((&tree.queue_by_id(queue)?.vhost, bytes)));
        let peers = state.cluster.peers();
        let quotas = state.limits.stored_bytes_mut();
        quotas.measured(&mut state.ctx, peers, by_vhost);
    }

    /// Tells each session whether its publishers are blocked.
    #[cold]
    pub(crate) fn announce_blocked(&mut self) {
        let keys: Vec<_> = self.sessions.iter_mut().map(|(key, _)| key).collect();
        for key in keys {
            let number = self.sessions.number(key);
            let alarm = number.and_then(|number| self.state.blocked_reason(number));
            self.step(key, |s, view, out| {
                s.session_event(ControlEvent::Blocked(alarm).into(), view, out)
            });
        }
    }
}

impl ShardState {
    /// Why a session's publishers are blocked, if they are: an alarm of a node, or the quota of their virtual host.
    pub(crate) fn blocked_reason(&self, number: u64) -> Option<&'static str> {
        let alarm = self.cluster.alarms().in_force();
        alarm.or_else(|| self.limits.blocked_by_quota(number))
    }

    /// As [`Self::blocked_reason`], for messages to a virtual host that no client publishes.
    pub(crate) fn blocked_in_vhost(&self, vhost: &Name) -> Option<&'static str> {
        let alarm = self.cluster.alarms().in_force();
        alarm.or_else(|| self.limits.stored_bytes().blocked(vhost))
    }
}
