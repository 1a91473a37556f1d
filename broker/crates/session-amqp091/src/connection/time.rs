//! Timers of the connection: heartbeats, operation timeouts and acknowledgement timeouts.

use super::{AmqpSession, Phase};
use crate::channel::Channel;
use crate::connection_state::StepContext;
use crate::method_failure::MethodFailure;
use codec_amqp091::encode_heartbeat;
use env::Time;

impl AmqpSession {
    pub(super) fn handle_tick(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        if self.deadline.is_some_and(|at| at <= now) && !self.send_pending_close(cx) {
            self.deadline = None;
            if self.phase == Phase::Leaving {
                return self.finish(cx);
            }
            if self.phase != Phase::Running {
                self.phase = Phase::Ended;
                return;
            }
        }
        self.expire_waits(now, cx);
        self.expire_deliveries(now, cx);
        if self.heartbeat.is_zero() || !matches!(self.phase, Phase::Opening | Phase::Running) {
            return;
        }
        // A paused connection is not read, so its heartbeats are not seen.
        if self.is_paused() || cx.broker.is_throttled() {
            self.last_received = now;
        }
        if now >= self.last_received + self.heartbeat * 2 {
            tracing::info!(peer = %self.config.peer, "missed heartbeats from client");
            self.release_channels(cx);
            self.phase = Phase::Ended;
            return;
        }
        if now >= self.last_sent + self.heartbeat / 2 {
            // Unsent bytes serve as a heartbeat, and a client that does not read gets no more of
            // them.
            if cx.out.is_empty() {
                encode_heartbeat(cx.out.tail());
            }
            self.last_sent = now;
        }
    }

    /// Ends operations that exceeded their timeout.
    pub(super) fn expire_waits(&mut self, now: Time, cx: &mut StepContext<'_>) {
        if self.conn.wait_deadline.is_none_or(|at| at > now) {
            return;
        }
        let limit = self.conn.limits.operation;
        let mut waits: Vec<(u16, Time)> = self
            .channels
            .values()
            .filter_map(|c| Some((c.number, c.waiting.as_ref()?.since + limit)))
            .collect();
        waits.sort_unstable();
        self.conn.wait_deadline = waits.iter().map(|w| w.1).filter(|&at| at > now).min();
        for (number, _) in waits.into_iter().filter(|w| w.1 <= now) {
            self.with_channel(number, cx, Channel::handle_timeout);
        }
    }

    /// Closes channels whose client exceeded the acknowledgement timeout.
    pub(super) fn expire_deliveries(&mut self, now: Time, cx: &mut StepContext<'_>) {
        if self.conn.ack_check.is_none_or(|at| at > now) {
            return;
        }
        let limit = self.conn.limits.acknowledgement;
        let mut numbers: Vec<u16> = self.channels.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.with_channel(number, cx, |channel, _, cx| {
                let result = channel.check_acknowledgements(limit, cx);
                result.map_err(|failure| MethodFailure {
                    failure,
                    ids: (0, 0),
                })
            });
        }
        let has_unacked = self.channels.values().any(|c| c.unacked.len() > 0);
        self.conn.ack_check = has_unacked.then(|| now + crate::deliver::ACK_CHECK);
    }
}
