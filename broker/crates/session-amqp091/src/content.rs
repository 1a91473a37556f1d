//! Assembly of a publish from its method, header and body frames (section 2.3.5.2).

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::retry::RetriedMethod;
use bytes::BytesMut;
use codec_amqp091::{ContentHeader, Frame, FrameKind, Shown};
use env::Time;

/// A publish with missing frames. Reused for the next publish of the connection.
#[derive(Debug, Default)]
pub(crate) struct PublishAssembly {
    stage: Stage,
    /// Exchange and routing key, concatenated.
    names: String,
    exchange_len: usize,
    pub mandatory: bool,
    pub immediate: bool,
    /// Encoded property flags and property list.
    pub properties: Vec<u8>,
    body_size: u64,
    /// The body received so far, if it takes more than one frame.
    body: BytesMut,
    /// Time of the last frame, if more are missing.
    since: Time,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    Header,
    Body {
        missing: u64,
    },
}

/// Larger buffers, in octets, are freed after the publish.
const KEEP: usize = 4096;

impl PublishAssembly {
    /// Starts with a basic.publish.
    pub(crate) fn start(
        slot: &mut Option<Box<PublishAssembly>>,
        spare: &mut Option<Box<PublishAssembly>>,
        exchange: &str,
        routing_key: &str,
        mandatory: bool,
        immediate: bool,
    ) {
        let this = slot.get_or_insert_with(|| spare.take().unwrap_or_default());
        this.stage = Stage::Header;
        this.names.clear();
        this.names.push_str(exchange);
        this.names.push_str(routing_key);
        this.exchange_len = exchange.len();
        this.mandatory = mandatory;
        this.immediate = immediate;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Octets of the body collected here.
    pub(crate) fn collected_len(&self) -> usize {
        self.body.len()
    }

    /// Octets that an incomplete publish holds besides its body.
    pub(crate) fn overhead(&self) -> usize {
        match self.stage {
            Stage::Body { .. } => size_of::<PublishAssembly>() + self.properties.len(),
            Stage::Idle | Stage::Header => 0,
        }
    }

    /// Removes the publish from the connection's totals.
    pub(crate) fn subtract_from_totals(&self, conn: &mut ConnectionState) {
        conn.partial = conn.partial.saturating_sub(self.collected_len());
        conn.publish_overhead = conn.publish_overhead.saturating_sub(self.overhead());
    }

    /// Time of the last progress of a publish whose body is incomplete.
    pub(crate) fn unfinished_since(&self) -> Option<Time> {
        matches!(self.stage, Stage::Body { .. }).then_some(self.since)
    }

    pub(crate) fn exchange(&self) -> &str {
        self.names.get(..self.exchange_len).unwrap_or("")
    }

    pub(crate) fn routing_key(&self) -> &str {
        self.names.get(self.exchange_len..).unwrap_or("")
    }

    /// Handles the content header. Returns true if the body is empty.
    fn header(&mut self, frame: Frame<'_>, conn: &mut ConnectionState) -> MethodResult<bool> {
        let header = match (frame.kind, ContentHeader::decode(frame.payload)) {
            (FrameKind::Header, Ok(header)) => header,
            (FrameKind::Header, Err(_)) => {
                let payload = Shown::of(frame.payload);
                refuse!(FrameError, "type 2, {payload}: unknown_frame")
            }
            _ => return unexpected_header_frame(),
        };
        // RabbitMQ does not recognize such a frame as a content header.
        if header.weight != 0 {
            return unexpected_header_frame();
        }
        if header.class_id != 60 {
            refuse!(
                UnexpectedFrame,
                "expected content header for class 60, got one for class {} instead",
                header.class_id
            );
        }
        self.properties.clear();
        self.properties.extend_from_slice(header.properties);
        self.body_size = header.body_size;
        if header.body_size == 0 {
            return Ok(true);
        }
        self.stage = Stage::Body {
            missing: header.body_size,
        };
        conn.publish_overhead += self.overhead();
        Ok(false)
    }

    /// Returns an error if the message is too large. It is sent when the whole message has arrived,
    /// as in RabbitMQ, because a client notices it only after writing.
    fn too_large(&self, conn: &ConnectionState) -> Option<Failure> {
        let max = conn.limits.message;
        (self.body_size > max).then(|| {
            let size = self.body_size;
            let text = format!("message size {size} is larger than configured max size {max}");
            Failure::new(ReplyCode::PreconditionFailed, text)
        })
    }

    /// Handles a body frame. Returns the body if it is complete.
    fn body<'f>(
        &mut self,
        frame: Frame<'f>,
        missing: u64,
        conn: &mut ConnectionState,
    ) -> MethodResult<Option<Body<'f>>> {
        if frame.kind != FrameKind::Body {
            refuse!(
                UnexpectedFrame,
                "expected content body, got non content body frame instead"
            );
        }
        let Some(missing) = missing.checked_sub(frame.payload.len() as u64) else {
            refuse!(
                UnexpectedFrame,
                "expected content body, got non content body frame instead"
            );
        };
        if let Some(failure) = self.too_large(conn) {
            // Discard the body of a message that will be refused.
            self.stage = Stage::Body { missing };
            return if missing == 0 { Err(failure) } else { Ok(None) };
        }
        if missing == 0 && self.body.is_empty() {
            return Ok(Some(Body::Whole(frame.payload)));
        }
        if conn.partial + frame.payload.len() > conn.limits.partial {
            refuse!(
                ResourceError,
                "unfinished messages of this connection exceed {} octets",
                conn.limits.partial
            );
        }
        conn.partial += frame.payload.len();
        self.body.extend_from_slice(frame.payload);
        self.stage = Stage::Body { missing };
        Ok((missing == 0).then_some(Body::Collected))
    }

    /// The collected body.
    pub(crate) fn collected_body(&self) -> &[u8] {
        &self.body
    }

    /// Prepares for the channel's next publish and frees large buffers.
    pub(crate) fn finish(&mut self, conn: &mut ConnectionState) {
        self.subtract_from_totals(conn);
        if !self.body.is_empty() {
            conn.finished = conn.finished.wrapping_add(1);
        }
        self.stage = Stage::Idle;
        self.body.clear();
        self.properties.clear();
        if self.body.capacity() > KEEP {
            self.body = BytesMut::new();
        }
        if self.properties.capacity() > KEEP {
            self.properties = Vec::new();
        }
    }
}

enum Body<'f> {
    /// The body arrived in one frame and is not copied.
    Whole(&'f [u8]),
    /// The body is in the assembly's buffer.
    Collected,
}

/// Handles a content frame, or any frame while content is expected.
pub(crate) fn frame(
    channel: &mut Channel,
    frame: Frame<'_>,
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> MethodResult {
    // Taken out of the channel because publishing borrows both.
    let Some(mut assembly) = channel.assembly.take() else {
        return unexpected_content_frame();
    };
    let body = match assembly.stage {
        Stage::Idle => {
            channel.assembly = Some(assembly);
            return unexpected_content_frame();
        }
        Stage::Header => match assembly.header(frame, conn) {
            Ok(complete) => {
                if conn.alarm.is_some() {
                    conn.blocked = true;
                }
                Ok(complete.then_some(Body::Whole(&[])))
            }
            Err(failure) => Err(failure),
        },
        Stage::Body { missing } => assembly.body(frame, missing, conn),
    };
    let result = match body {
        Ok(None) => {
            assembly.since = cx.broker.now();
            Ok(())
        }
        Ok(Some(body)) => {
            let collected_len;
            let whole = match body {
                Body::Whole(bytes) => bytes,
                Body::Collected => {
                    collected_len = &assembly.body;
                    &collected_len[..]
                }
            };
            let published = match crate::publish::check_reply_queue(&assembly, conn, cx) {
                Ok(()) => crate::publish::publish(channel, &assembly, whole, conn, cx),
                Err(failure) => Err(failure),
            };
            if let Err(Failure {
                unknown: Some(_), ..
            }) = &published
                && !cx.broker.knows_all()
            {
                if let Body::Whole(bytes) = body {
                    conn.partial += bytes.len();
                    assembly.body.extend_from_slice(bytes);
                }
                let retry = RetriedMethod::Publish(assembly);
                channel.check_log_for(retry, (60, 40), conn, cx);
                return Ok(());
            }
            assembly.finish(conn);
            published
        }
        Err(failure) => Err(failure),
    };
    // An idle channel keeps no buffers.
    match assembly.is_idle() {
        true => conn.spare_assembly = Some(assembly),
        false => channel.assembly = Some(assembly),
    }
    result
}

fn unexpected_header_frame() -> MethodResult<bool> {
    refuse!(
        UnexpectedFrame,
        "expected content header for class 60, got non content header frame instead"
    )
}

fn unexpected_content_frame() -> MethodResult {
    refuse!(
        UnexpectedFrame,
        "expected method frame, got non method frame instead"
    )
}
