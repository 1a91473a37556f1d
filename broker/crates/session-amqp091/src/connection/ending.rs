//! Closing of channels and connections: after a failure, on request of the client, or by force.

use super::{AmqpSession, Phase};
use crate::channel::ChannelState;
use crate::connection_state::StepContext;
use crate::failure::{Failure, ReplyCode};
use bytes::BytesMut;
use codec_amqp091::{Frame, Method, Shown, encode_method};
use metadata::Change;
use session::SILENT_CLOSE_DELAY;
use std::time::Duration;

/// Time for a client to answer connection.close, or to close the socket after close-ok (`closing
/// timeout`).
const CLOSING_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a client in the middle of its login to get as far as an answer when the node stops.
const STOPPING_HANDSHAKE: Duration = Duration::from_secs(1);

impl AmqpSession {
    /// Closes the channel, or the connection if the failure is a hard error.
    pub(super) fn fail(
        &mut self,
        number: u16,
        failure: &Failure,
        ids: (u16, u16),
        cx: &mut StepContext<'_>,
    ) {
        if failure.code.is_hard() || number == 0 {
            return self.fail_connection(failure, ids, cx);
        }
        let Some(channel) = self.channels.get_mut(&number) else {
            return;
        };
        channel.release(&mut self.conn, cx);
        channel.state = ChannelState::Closing;
        tracing::info!(
            peer = %self.config.peer, user = %self.conn.user, channel = number,
            error = %failure.reply_text(), "channel closed"
        );
        let close = Method::ChannelClose {
            reply_code: failure.code.number(),
            reply_text: &failure.reply_text(),
            class_id: ids.0,
            method_id: ids.1,
        };
        cx.send(number, &close);
    }

    /// Sends connection.close with the reason. The connection ends with the client's close-ok or at
    /// the deadline.
    pub(crate) fn fail_connection(
        &mut self,
        failure: &Failure,
        (class_id, method_id): (u16, u16),
        cx: &mut StepContext<'_>,
    ) {
        if matches!(self.phase, Phase::Closing | Phase::Lingering | Phase::Ended) {
            return;
        }
        tracing::info!(
            peer = %self.config.peer, user = %self.conn.user,
            error = %failure.reply_text(), "connection closed"
        );
        self.release_channels(cx);
        self.end_session(cx);
        let close = Method::ConnectionClose {
            reply_code: failure.code.number(),
            reply_text: &failure.reply_text(),
            class_id,
            method_id,
        };
        self.phase = Phase::Closing;
        let mut frame = BytesMut::new();
        encode_method(&mut frame, 0, &close);
        self.pending_close = frame[..].into();
        // A stopping node does not delete queues, so do not wait for it.
        if self.end_token == 0 || failure.code == ReplyCode::ConnectionForced {
            self.send_pending_close(cx);
            return;
        }
        self.deadline = Some(cx.broker.now() + self.conn.limits.operation);
    }

    /// Sends the connection.close that [`fail_connection`](Self::fail_connection) deferred. Returns
    /// false if there was none.
    pub(super) fn send_pending_close(&mut self, cx: &mut StepContext<'_>) -> bool {
        let pending_close = std::mem::take(&mut self.pending_close);
        if pending_close.is_empty() {
            return false;
        }
        cx.out.tail().extend_from_slice(&pending_close);
        self.deadline = Some(cx.broker.now() + CLOSING_TIMEOUT);
        true
    }

    /// Ignores all further input. The socket closes after a delay, so that sent bytes arrive and
    /// password guessing is slow.
    pub(super) fn close_silently(&mut self, cx: &mut StepContext<'_>) {
        self.send_pending_close(cx);
        self.phase = Phase::Lingering;
        self.deadline = Some(cx.broker.now() + SILENT_CLOSE_DELAY);
    }

    pub(super) fn release_channels(&mut self, cx: &mut StepContext<'_>) {
        self.conn.stop(|_| true, cx);
        // In a deterministic order.
        let mut numbers: Vec<u16> = self.channels.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            if let Some(mut channel) = self.channels.remove(&number) {
                channel.release_stopped(&mut self.conn, cx);
                cx.broker.close_channel();
            }
        }
    }

    /// Deletes the exclusive queues of the connection. Does nothing when called again.
    pub(super) fn end_session(&mut self, cx: &mut StepContext<'_>) {
        if self.conn.owns_queues && self.end_token == 0 {
            self.end_token = self.conn.new_token(0);
            let session = cx.broker.id();
            cx.broker
                .change(self.end_token, Change::EndSession { session });
        }
    }

    pub(super) fn unexpected(&mut self, frame: Frame<'_>, cx: &mut StepContext<'_>) {
        let failure = Failure::new(ReplyCode::UnexpectedFrame, describe(frame));
        self.refuse(&failure, (0, 0), cx);
    }

    pub(super) fn unknown(&mut self, frame: Frame<'_>, cx: &mut StepContext<'_>) {
        let text = format!("{}: unknown_frame", describe(frame));
        self.refuse(&Failure::new(ReplyCode::FrameError, text), (0, 0), cx);
    }

    /// Reports a connection failure. A client that has not logged in gets no error unless the
    /// specification requires it.
    pub(crate) fn refuse(&mut self, failure: &Failure, ids: (u16, u16), cx: &mut StepContext<'_>) {
        let notifies_client = match self.phase {
            Phase::Header | Phase::Starting | Phase::Verifying => {
                matches!(
                    failure.code,
                    ReplyCode::AccessRefused | ReplyCode::ConnectionForced
                ) && self.conn.capabilities.authentication_failure_close
            }
            _ => true,
        };
        if matches!(self.phase, Phase::Starting | Phase::Verifying) && notifies_client {
            // As in RabbitMQ, a refused login names no method. The client gets little time to
            // answer.
            self.fail_connection(failure, (0, 0), cx);
            self.deadline = Some(cx.broker.now() + SILENT_CLOSE_DELAY);
        } else if notifies_client {
            self.fail_connection(failure, ids, cx);
        } else {
            tracing::info!(peer = %self.config.peer, error = %failure.reply_text(), "handshake failed");
            self.close_silently(cx);
        }
    }

    /// Deletes the next unused auto-delete queue, or sends close-ok when none is left.
    pub(super) fn delete_left_queues(&mut self, cx: &mut StepContext<'_>) {
        if self.phase == Phase::Leaving && !self.left.send_request(0, &mut self.conn, cx) {
            self.finish(cx);
        }
    }

    pub(super) fn handle_left_answer(
        &mut self,
        answer: &queue::QueueReply,
        cx: &mut StepContext<'_>,
    ) {
        match self.left.record_answer(answer) {
            Some(change) => {
                self.left_token = self.conn.new_token(0);
                cx.broker.change(self.left_token, change);
            }
            None => self.delete_left_queues(cx),
        }
    }

    /// Sends close-ok. As with RabbitMQ, the client closes the socket: some clients take an end of
    /// stream directly after close-ok for a broken connection.
    pub(super) fn finish(&mut self, cx: &mut StepContext<'_>) {
        cx.send(0, &Method::ConnectionCloseOk {});
        self.phase = Phase::Lingering;
        self.deadline = Some(cx.broker.now() + CLOSING_TIMEOUT);
    }

    /// Closes a connection that holds more memory than the node can spare. Nothing is sent before
    /// the login, as in [`Self::refuse`], or if the output ends in the middle of a frame.
    pub(super) fn shed(&mut self, text: &str, can_hear: bool, cx: &mut StepContext<'_>) {
        match self.phase {
            Phase::Running | Phase::Opening if can_hear => {
                let failure = Failure::new(ReplyCode::ResourceError, text);
                self.fail_connection(&failure, (0, 0), cx);
            }
            _ => {
                tracing::info!(peer = %self.config.peer, error = text, "connection closed");
                self.release_channels(cx);
                self.phase = Phase::Ended;
            }
        }
    }

    /// Closes the connection with connection-forced (320), or at once if it is not open yet.
    pub(super) fn force_close(&mut self, text: &str, cx: &mut StepContext<'_>) {
        match self.phase {
            Phase::Running | Phase::Opening | Phase::Tuning => {
                let failure = Failure::new(ReplyCode::ConnectionForced, text);
                self.fail_connection(&failure, (0, 0), cx);
            }
            Phase::Closing | Phase::Ended => {}
            _ => self.phase = Phase::Ended,
        }
    }

    /// Closes the connection because the node stops. A client that is logging in is told so, if it can
    /// be told: it would take the end of its connection for a refusal of its password.
    pub(super) fn shut_down(&mut self, cx: &mut StepContext<'_>) {
        match self.phase {
            Phase::Verifying if self.conn.capabilities.authentication_failure_close => {
                self.refuse(&shutdown(), (0, 0), cx);
            }
            // Its connection.start-ok tells whether it can be told now, or at connection.open.
            Phase::Starting | Phase::Verifying => {
                self.is_stopping = true;
                let latest = cx.broker.now() + STOPPING_HANDSHAKE;
                self.deadline = Some(self.deadline.map_or(latest, |at| at.min(latest)));
            }
            _ => self.force_close(SHUTDOWN, cx),
        }
    }
}

/// RabbitMQ's text for connections of a node that stops.
const SHUTDOWN: &str = "broker forced connection closure with reason 'shutdown'";

/// The failure of connections of a node that stops.
pub(crate) fn shutdown() -> Failure {
    Failure::new(ReplyCode::ConnectionForced, SHUTDOWN)
}

/// Formats an unexpected frame as RabbitMQ does.
fn describe(frame: Frame<'_>) -> String {
    format!("type {}, {}", frame.kind.octet(), Shown::of(frame.payload))
}
