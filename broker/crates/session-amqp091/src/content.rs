//! Method, header, body, body...: a publish is put together from its frames (section 2.3.5.2).

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::retry::RetriedMethod;
use bytes::BytesMut;
use codec_amqp091::{ContentHeader, Frame, FrameKind, Shown};
use env::Time;

/// A publish of which some frames are missing; reused for the channel's next one.
#[derive(Debug, Default)]
pub(crate) struct PublishAssembly {
    stage: Stage,
    /// Exchange and routing key, one behind the other.
    names: String,
    exchange_len: usize,
    pub mandatory: bool,
    pub immediate: bool,
    /// Property flags and list.
    pub properties: Vec<u8>,
    body_size: u64,
    /// Body frames that have come, when it takes more than one.
    body: BytesMut,
    /// When its last frame came, if more are missing.
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

/// A buffer above this is given back after the publish.
const KEEP: usize = 4096;

impl PublishAssembly {
    /// basic.publish has come.
    pub fn start(
        slot: &mut Option<Box<PublishAssembly>>,
        exchange: &str,
        routing_key: &str,
        mandatory: bool,
        immediate: bool,
    ) {
        let this = slot.get_or_insert_default();
        this.stage = Stage::Header;
        this.names.clear();
        this.names.push_str(exchange);
        this.names.push_str(routing_key);
        this.exchange_len = exchange.len();
        this.mandatory = mandatory;
        this.immediate = immediate;
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Octets of the body kept here.
    pub fn collected(&self) -> usize {
        self.body.len()
    }

    /// Octets that a publish holds beside its body while that is not complete.
    pub fn overhead(&self) -> usize {
        match self.stage {
            Stage::Body { .. } => size_of::<PublishAssembly>() + self.properties.len(),
            Stage::Idle | Stage::Header => 0,
        }
    }

    /// The publish is over: what it holds does not count any more.
    pub fn uncount(&self, link: &mut ConnectionState) {
        link.partial = link.partial.saturating_sub(self.collected());
        link.begun = link.begun.saturating_sub(self.overhead());
    }

    /// The last progress of a publish whose body is not complete.
    pub fn unfinished_since(&self) -> Option<Time> {
        matches!(self.stage, Stage::Body { .. }).then_some(self.since)
    }

    pub fn exchange(&self) -> &str {
        self.names.get(..self.exchange_len).unwrap_or("")
    }

    pub fn routing_key(&self) -> &str {
        self.names.get(self.exchange_len..).unwrap_or("")
    }

    /// True: there is no body.
    fn header(&mut self, frame: Frame<'_>, link: &mut ConnectionState) -> MethodResult<bool> {
        let header = match (frame.kind, ContentHeader::decode(frame.payload)) {
            (FrameKind::Header, Ok(header)) => header,
            (FrameKind::Header, Err(_)) => {
                let payload = Shown::of(frame.payload);
                refuse!(FrameError, "type 2, {payload}: unknown_frame")
            }
            _ => return not_the_header(),
        };
        // Such a frame is nothing that RabbitMQ knows.
        if header.weight != 0 {
            return not_the_header();
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
        link.begun += self.overhead();
        Ok(false)
    }

    /// Said when all of the message has come, as in RabbitMQ: a client that writes on hears of it when it has written.
    fn too_large(&self, link: &ConnectionState) -> Option<Failure> {
        let most = link.limits.message;
        (self.body_size > most).then(|| {
            let size = self.body_size;
            let text = format!("message size {size} is larger than configured max size {most}");
            Failure::new(ReplyCode::PreconditionFailed, text)
        })
    }

    /// The whole body, when this frame was the last one.
    fn body<'f>(
        &mut self,
        frame: Frame<'f>,
        missing: u64,
        link: &mut ConnectionState,
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
        if let Some(failure) = self.too_large(link) {
            // Nothing of it is kept.
            self.stage = Stage::Body { missing };
            return if missing == 0 { Err(failure) } else { Ok(None) };
        }
        if missing == 0 && self.body.is_empty() {
            return Ok(Some(Body::Whole(frame.payload)));
        }
        if link.partial + frame.payload.len() > link.limits.partial {
            refuse!(
                ResourceError,
                "unfinished messages of this connection exceed {} octets",
                link.limits.partial
            );
        }
        link.partial += frame.payload.len();
        self.body.extend_from_slice(frame.payload);
        self.stage = Stage::Body { missing };
        Ok((missing == 0).then_some(Body::Collected))
    }

    /// What was kept of the body.
    pub fn kept(&self) -> &[u8] {
        &self.body
    }

    /// Ready for the channel's next publish, without what was large.
    pub fn finish(&mut self, link: &mut ConnectionState) {
        self.uncount(link);
        if !self.body.is_empty() {
            link.finished = link.finished.wrapping_add(1);
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
    /// In one frame: not copied.
    Whole(&'f [u8]),
    /// In the assembly's buffer.
    Collected,
}

/// A frame while a content is awaited, or a content frame while none is.
pub(crate) fn frame(
    channel: &mut Channel,
    frame: Frame<'_>,
    link: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> MethodResult {
    // Taken out for the time being: publishing needs both.
    let Some(mut assembly) = channel.assembly.take() else {
        return not_awaited();
    };
    let body = match assembly.stage {
        Stage::Idle => {
            channel.assembly = Some(assembly);
            return not_awaited();
        }
        Stage::Header => match assembly.header(frame, link) {
            Ok(complete) => {
                if link.alarm.is_some() {
                    link.blocked = true;
                }
                Ok(complete.then_some(Body::Whole(&[])))
            }
            Err(failure) => Err(failure),
        },
        Stage::Body { missing } => assembly.body(frame, missing, link),
    };
    let done = match body {
        Ok(None) => {
            assembly.since = cx.broker.now();
            Ok(())
        }
        Ok(Some(body)) => {
            let collected;
            let whole = match body {
                Body::Whole(bytes) => bytes,
                Body::Collected => {
                    collected = &assembly.body;
                    &collected[..]
                }
            };
            let published = crate::publish::publish(channel, &assembly, whole, link, cx);
            if let Err(Failure {
                unknown: Some(exchange),
                ..
            }) = &published
                && !cx.broker.knows_all()
            {
                if let Body::Whole(bytes) = body {
                    link.partial += bytes.len();
                    assembly.body.extend_from_slice(bytes);
                }
                let again = RetriedMethod::Publish(assembly);
                channel.ask_the_log_of(exchange.clone(), again, (60, 40), link, cx);
                return Ok(());
            }
            assembly.finish(link);
            published
        }
        Err(failure) => Err(failure),
    };
    channel.assembly = Some(assembly);
    done
}

fn not_the_header() -> MethodResult<bool> {
    refuse!(
        UnexpectedFrame,
        "expected content header for class 60, got non content header frame instead"
    )
}

fn not_awaited() -> MethodResult {
    refuse!(
        UnexpectedFrame,
        "expected method frame, got non method frame instead"
    )
}
