//! How a channel or the connection ends: by a failure, by the client's wish, by force.

use super::{AmqpSession, Phase};
use crate::channel::ChannelState;
use crate::connection_state::StepContext;
use crate::failure::{Failure, ReplyCode};
use crate::handshake::SILENT_CLOSE_DELAY;
use bytes::BytesMut;
use codec_amqp091::{Frame, Method, Shown, encode_method};
use metadata::Change;
use std::time::Duration;

/// A client gets this long to answer connection.close, or to close the socket after close-ok (`closing timeout`).
const CLOSING_TIMEOUT: Duration = Duration::from_secs(30);

impl AmqpSession {
    /// Closes what the failure is about.
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
        channel.release(&mut self.link, cx);
        channel.state = ChannelState::Closing;
        tracing::info!(
            peer = %self.config.peer, user = %self.link.user, channel = number,
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

    /// connection.close with the reason; then the client's close-ok or the deadline ends it.
    pub(crate) fn fail_connection(
        &mut self,
        failure: &Failure,
        (class_id, method_id): (u16, u16),
        cx: &mut StepContext<'_>,
    ) {
        if matches!(self.phase, Phase::Closing | Phase::Dying | Phase::Ended) {
            return;
        }
        tracing::info!(
            peer = %self.config.peer, user = %self.link.user,
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
        self.farewell = frame[..].into();
        // A node that stops asks for nothing any more.
        if self.end_token == 0 || failure.code == ReplyCode::ConnectionForced {
            self.say_farewell(cx);
            return;
        }
        self.deadline = Some(cx.broker.now() + self.link.limits.operation);
    }

    /// Sends what [`fail_connection`](Self::fail_connection) kept back. True: there was something.
    pub(super) fn say_farewell(&mut self, cx: &mut StepContext<'_>) -> bool {
        let farewell = std::mem::take(&mut self.farewell);
        if farewell.is_empty() {
            return false;
        }
        cx.out.tail().extend_from_slice(&farewell);
        self.deadline = Some(cx.broker.now() + CLOSING_TIMEOUT);
        true
    }

    /// No more words; the socket closes a little later, so that what was said arrives and guessing is slow.
    pub(super) fn die(&mut self, cx: &mut StepContext<'_>) {
        self.say_farewell(cx);
        self.phase = Phase::Dying;
        self.deadline = Some(cx.broker.now() + SILENT_CLOSE_DELAY);
    }

    pub(super) fn release_channels(&mut self, cx: &mut StepContext<'_>) {
        self.link.stop(|_| true, cx);
        // In the order of their numbers, so that a run can be repeated.
        let mut numbers: Vec<u16> = self.channels.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            if let Some(mut channel) = self.channels.remove(&number) {
                channel.let_go(&mut self.link, cx);
                cx.broker.close_channel();
            }
        }
    }

    /// Exclusive queues end with their connection. Once.
    pub(super) fn end_session(&mut self, cx: &mut StepContext<'_>) {
        if self.link.owns_queues && self.end_token == 0 {
            self.end_token = self.link.new_token(0);
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

    /// A failure of the connection. To who has not logged in nothing is said, except as the standard demands.
    pub(crate) fn refuse(&mut self, failure: &Failure, ids: (u16, u16), cx: &mut StepContext<'_>) {
        let told = match self.phase {
            Phase::Header | Phase::Starting | Phase::Verifying => {
                matches!(
                    failure.code,
                    ReplyCode::AccessRefused | ReplyCode::ConnectionForced
                ) && self.link.capabilities.authentication_failure_close
            }
            _ => true,
        };
        if matches!(self.phase, Phase::Starting | Phase::Verifying) && told {
            // A login that is refused is about no method: RabbitMQ's ids. Nor does it wait long for an answer.
            self.fail_connection(failure, (0, 0), cx);
            self.deadline = Some(cx.broker.now() + SILENT_CLOSE_DELAY);
        } else if told {
            self.fail_connection(failure, ids, cx);
        } else {
            tracing::info!(peer = %self.config.peer, error = %failure.reply_text(), "handshake failed");
            self.die(cx);
        }
    }

    /// Exclusive queues are gone; now the others, one after the other.
    pub(super) fn go_on_leaving(&mut self, cx: &mut StepContext<'_>) {
        if self.phase == Phase::Leaving && !self.left.ask(0, &mut self.link, cx) {
            self.finish(cx);
        }
    }

    pub(super) fn left_answered(&mut self, answer: &queue::QueueReply, cx: &mut StepContext<'_>) {
        match self.left.answered(answer) {
            Some(change) => {
                self.left_token = self.link.new_token(0);
                cx.broker.change(self.left_token, change);
            }
            None => self.go_on_leaving(cx),
        }
    }

    /// close-ok. Who asked for it closes the socket, as with RabbitMQ: a client that finds the end of the stream right behind close-ok may
    /// take it for a connection that broke.
    pub(super) fn finish(&mut self, cx: &mut StepContext<'_>) {
        cx.send(0, &Method::ConnectionCloseOk {});
        self.phase = Phase::Dying;
        self.deadline = Some(cx.broker.now() + CLOSING_TIMEOUT);
    }

    /// Ends a connection that holds more memory than the node can spare. A client that has not logged in is told nothing, as in
    /// [`Self::refuse`]; nor is one whose output is cut off in the middle of a frame.
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

    pub(super) fn force(&mut self, text: &str, cx: &mut StepContext<'_>) {
        match self.phase {
            Phase::Running | Phase::Opening => {
                let failure = Failure::new(ReplyCode::ConnectionForced, text);
                self.fail_connection(&failure, (0, 0), cx);
            }
            Phase::Closing | Phase::Ended => {}
            _ => self.phase = Phase::Ended,
        }
    }
}

/// As RabbitMQ shows a frame that it did not expect.
fn describe(frame: Frame<'_>) -> String {
    format!("type {}, {}", frame.kind.octet(), Shown::of(frame.payload))
}
