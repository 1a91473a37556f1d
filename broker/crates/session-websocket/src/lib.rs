//! Protocol sessions over WebSocket (RFC 6455; MQTT 5.0, section 6; AMQP WebSocket Binding 1.0).
//!
//! [`WebSocketSession`] wraps a session that is unaware of WebSocket and adds and removes the
//! frames. Between two events it owns no buffer: incomplete input stays in the driver's buffer.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod protocol;
mod settings;

pub use protocol::WebSocket;
pub use settings::WebSocketSettings;

use bytes::{Buf, BytesMut};
use codec_websocket::{CloseCode, DecodeStep, Decoder, EndpointOffer, FrameHeader};
use env::Time;
use message::Message;
use session::{
    Broker, ControlEvent, HeldMemory, Outbox, ServiceStates, Session, SessionDetails, SessionEvent,
    SessionInfo, SessionState,
};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebSocketPhase {
    /// Waiting for the HTTP request.
    Handshake,
    Open,
    /// The last output is in the outbox.
    Ended,
}

/// A session over WebSocket.
pub struct WebSocketSession {
    inner: Box<dyn Session>,
    settings: Arc<WebSocketSettings>,
    peer: SocketAddr,
    phase: WebSocketPhase,
    decoder: Decoder,
    /// Number of bytes at the front of the driver's buffer that are unframed payload for the inner
    /// session.
    plain: usize,
    session_state: SessionState,
}

impl WebSocketSession {
    /// Creates a session that waits for the HTTP request of a client at `peer`, and then passes its data to `inner`.
    pub fn new(
        inner: Box<dyn Session>,
        settings: Arc<WebSocketSettings>,
        peer: SocketAddr,
    ) -> WebSocketSession {
        let decoder = Decoder::new(settings.max_frame);
        WebSocketSession {
            inner,
            settings,
            peer,
            phase: WebSocketPhase::Handshake,
            decoder,
            plain: 0,
            session_state: SessionState::Open,
        }
    }

    /// Handles the HTTP request as far as it has arrived.
    fn handle_request(&mut self, input: &mut BytesMut, out: &mut Outbox) {
        let offer = EndpointOffer {
            path: &self.settings.path,
            protocols: self.settings.protocols,
            origins: &self.settings.origins,
        };
        match codec_websocket::answer(input, &offer) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                input.advance(answer.read);
                out.tail().extend_from_slice(answer.response.as_bytes());
                self.phase = WebSocketPhase::Open;
            }
            Err(refusal) => {
                tracing::info!(peer = %self.peer, why = %refusal, "WebSocket refused");
                let response = refusal.response();
                out.tail().extend_from_slice(response.as_bytes());
                self.phase = WebSocketPhase::Ended;
            }
        }
    }

    /// Removes frame headers, so that the first `plain` bytes of `input` are payload for the inner
    /// session. Returns the code of the close frame to send if the connection ends.
    fn unframe(&mut self, input: &mut BytesMut, out: &mut Outbox) -> Option<Option<CloseCode>> {
        let (mut read, mut written) = (self.plain, self.plain);
        let end = loop {
            match self.decoder.step(input, &mut read, &mut written) {
                Ok(DecodeStep::Starved) => break None,
                Ok(DecodeStep::Ping(payload)) => {
                    let payload = input.get(payload).unwrap_or_default();
                    codec_websocket::pong(payload, out.tail());
                }
                Ok(DecodeStep::Close(code)) => break Some(code),
                Err(violation) => {
                    tracing::info!(peer = %self.peer, why = %violation, "WebSocket connection ends");
                    break Some(Some(violation.code()));
                }
            }
        };
        let rest = input.len() - read;
        if read != written {
            input.copy_within(read.., written);
            input.truncate(written + rest);
        }
        self.plain = written;
        end
    }

    /// Passes the payload to the inner session.
    fn feed(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        // At most a part of a frame header, and rarely that.
        let rest = (input.len() > self.plain).then(|| input.split_off(self.plain));
        let before = out.len();
        let session_state = self.inner.receive(input, broker, out);
        frame(out, before);
        self.plain = input.len();
        if let Some(rest) = rest {
            input.unsplit(rest);
        }
        session_state
    }

    /// Runs a step of the inner session that is not caused by input. `code` is the close code if
    /// the session ends.
    fn step(
        &mut self,
        code: CloseCode,
        out: &mut Outbox,
        f: impl FnOnce(&mut dyn Session, &mut Outbox) -> SessionState,
    ) -> SessionState {
        let session_state = match self.phase {
            WebSocketPhase::Open => {
                let before = out.len();
                let session_state = f(self.inner.as_mut(), out);
                frame(out, before);
                session_state
            }
            // Before the handshake and after the end the client cannot receive output.
            _ => f(self.inner.as_mut(), &mut Outbox::default()),
        };
        self.update_state(session_state, code, out)
    }

    /// Ends the connection if the inner session has ended.
    fn update_state(
        &mut self,
        session_state: SessionState,
        code: CloseCode,
        out: &mut Outbox,
    ) -> SessionState {
        if session_state == SessionState::Closing {
            self.end(Some(code), out);
        }
        self.session_state = match self.phase {
            WebSocketPhase::Ended => SessionState::Closing,
            _ => session_state,
        };
        self.session_state
    }

    fn end(&mut self, code: Option<CloseCode>, out: &mut Outbox) {
        if self.phase == WebSocketPhase::Open {
            codec_websocket::close(code, out.tail());
        }
        self.phase = WebSocketPhase::Ended;
    }
}

/// Wraps the output written since `before` in a frame.
fn frame(out: &mut Outbox, before: usize) {
    let payload = out.len().saturating_sub(before);
    if payload > 0 {
        out.insert(before, FrameHeader::binary(payload).bytes());
    }
}

impl Session for WebSocketSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        if self.phase == WebSocketPhase::Handshake {
            self.handle_request(input, out);
        }
        if self.phase == WebSocketPhase::Open {
            let before = self.plain;
            let end = self.unframe(input, out);
            let session_state = match self.plain > before || before > 0 {
                true => self.feed(input, broker, out),
                // Only control frames: nothing for the inner session.
                false => self.session_state,
            };
            // Payload before the close frame has been processed.
            if let Some(code) = end {
                self.end(code, out);
            }
            self.update_state(session_state, CloseCode::NORMAL, out);
        }
        if self.phase == WebSocketPhase::Ended {
            input.clear();
            self.plain = 0;
            self.session_state = SessionState::Closing;
        }
        self.session_state
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        let code = match session_event {
            SessionEvent::Control(ControlEvent::Shutdown) => CloseCode::GOING_AWAY,
            SessionEvent::Control(ControlEvent::Shed { .. }) => CloseCode::TRY_AGAIN_LATER,
            _ => CloseCode::NORMAL,
        };
        self.step(code, out, |inner, out| {
            inner.session_event(session_event, broker, out)
        })
    }

    fn service_event(
        &mut self,
        event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(CloseCode::NORMAL, out, |inner, out| {
            inner.service_event(event, broker, out)
        })
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(CloseCode::NORMAL, out, |inner, out| inner.tick(broker, out))
    }

    fn wake_at(&self) -> Option<Time> {
        self.inner.wake_at()
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        self.inner.gone(broker);
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(CloseCode::NORMAL, out, |inner, out| {
            inner.drained(broker, out)
        })
    }

    fn info(&self, services: &ServiceStates) -> SessionInfo {
        let info = self.inner.info(services);
        let protocol = match info.protocol {
            "mqtt310" => "web_mqtt310",
            "mqtt311" => "web_mqtt311",
            "mqtt50" => "web_mqtt50",
            "amqp10" => "web_amqp10",
            other => other,
        };
        SessionInfo { protocol, ..info }
    }

    fn details(&self) -> SessionDetails {
        self.inner.details()
    }

    fn unfinished(&self) -> usize {
        self.inner.unfinished()
    }

    fn held(&self) -> HeldMemory {
        self.inner.held()
    }

    fn unfinished_since(&self) -> Option<Time> {
        self.inner.unfinished_since()
    }

    fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        self.inner.visit_messages(visit);
    }
}
