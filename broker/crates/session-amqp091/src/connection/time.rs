//! What time brings: heartbeats, and what took too long.

use super::{AmqpSession, Phase};
use crate::channel::Channel;
use crate::connection_state::StepContext;
use crate::method_failure::MethodFailure;
use codec_amqp091::encode_heartbeat;
use env::Time;

impl AmqpSession {
    pub(super) fn on_time(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        if self.deadline.is_some_and(|at| at <= now) && !self.say_farewell(cx) {
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
        // A connection that we do not read cannot be heard.
        if self.is_paused() {
            self.last_received = now;
        }
        if now >= self.last_received + self.heartbeat * 2 {
            tracing::info!(peer = %self.config.peer, "missed heartbeats from client");
            self.release_channels(cx);
            self.phase = Phase::Ended;
            return;
        }
        if now >= self.last_sent + self.heartbeat / 2 {
            // Unsent bytes are as good as a heartbeat, and a client that reads nothing gets no more.
            if cx.out.is_empty() {
                encode_heartbeat(cx.out.tail());
            }
            self.last_sent = now;
        }
    }

    /// Operations that took too long.
    pub(super) fn expire_waits(&mut self, now: Time, cx: &mut StepContext<'_>) {
        if self.link.wait_deadline.is_none_or(|at| at > now) {
            return;
        }
        let limit = self.link.limits.operation;
        let mut waits: Vec<(u16, Time)> = self
            .channels
            .values()
            .filter_map(|c| Some((c.number, c.waiting.as_ref()?.since + limit)))
            .collect();
        waits.sort_unstable();
        self.link.wait_deadline = waits.iter().map(|w| w.1).filter(|&at| at > now).min();
        for (number, _) in waits.into_iter().filter(|w| w.1 <= now) {
            self.with_channel(number, cx, Channel::timed_out);
        }
    }

    /// Deliveries that a client has kept for too long close its channel.
    pub(super) fn expire_deliveries(&mut self, now: Time, cx: &mut StepContext<'_>) {
        if self.link.ack_check.is_none_or(|at| at > now) {
            return;
        }
        let limit = self.link.limits.acknowledgement;
        let mut numbers: Vec<u16> = self.channels.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.with_channel(number, cx, |channel, _, cx| {
                let checked = channel.check_acknowledgements(limit, cx);
                checked.map_err(|failure| MethodFailure {
                    failure,
                    ids: (0, 0),
                })
            });
        }
        let owed = self.channels.values().any(|c| c.unacked.len() > 0);
        self.link.ack_check = owed.then(|| now + crate::deliver::ACK_CHECK);
    }
}
