//! One listener for AMQP 0.9.1 and 1.0, which clients choose by their first eight bytes (the protocol header).

use bytes::BytesMut;
use env::Time;
use message::Message;
use session::{
    Broker, ConnectionInfo, HeldMemory, Outbox, Protocol, ServiceStates, Session, SessionDetails,
    SessionEvent, SessionInfo, SessionState,
};
use session_amqp10::Amqp10;
use session_amqp091::Amqp091;
use std::any::Any;
use std::sync::Arc;

/// Factory of sessions that become AMQP 0.9.1 or 1.0.
#[derive(Clone, Debug)]
pub(crate) struct AmqpProtocol {
    pub amqp091: Amqp091,
    pub amqp10: Arc<Amqp10>,
}

impl Protocol for AmqpProtocol {
    fn listener_names(&self) -> [&'static str; 2] {
        self.amqp091.listener_names()
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        Box::new(AmqpSession {
            inner: self.amqp091.session(connection, now),
            choice: Some(Box::new(Amqp10Start {
                amqp10: self.amqp10.clone(),
                connection: connection.clone(),
                accepted: now,
            })),
        })
    }
}

/// The session of AMQP 0.9.1, until the client's header is that of AMQP 1.0. It answers every other header, and its
/// handshake timeout covers a client that sends none.
struct AmqpSession {
    inner: Box<dyn Session>,
    /// None: the client has chosen.
    choice: Option<Box<Amqp10Start>>,
}

/// The data to start a session of AMQP 1.0.
struct Amqp10Start {
    amqp10: Arc<Amqp10>,
    connection: ConnectionInfo,
    accepted: Time,
}

/// The headers of AMQP 1.0 without and with SASL. Its session refuses other versions of these protocol ids.
const AMQP10_HEADERS: [[u8; 8]; 2] = [*b"AMQP\x00\x01\x00\x00", *b"AMQP\x03\x01\x00\x00"];

#[derive(Debug, PartialEq, Eq)]
enum ProtocolHeaderMatch {
    /// The header is incomplete and may become that of AMQP 1.0.
    Partial,
    Amqp10,
    Other,
}

fn match_header(input: &[u8]) -> ProtocolHeaderMatch {
    let is_prefix = |header: &[u8; 8]| header.iter().zip(input).all(|(a, b)| a == b);
    match AMQP10_HEADERS.iter().any(is_prefix) {
        true if input.len() >= 8 => ProtocolHeaderMatch::Amqp10,
        true => ProtocolHeaderMatch::Partial,
        false => ProtocolHeaderMatch::Other,
    }
}

impl Session for AmqpSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        if let Some(choice) = self.choice.take() {
            match match_header(input) {
                ProtocolHeaderMatch::Other => {}
                ProtocolHeaderMatch::Amqp10 => {
                    let Amqp10Start {
                        amqp10,
                        connection,
                        accepted,
                    } = *choice;
                    self.inner = amqp10.session(&connection, accepted);
                }
                ProtocolHeaderMatch::Partial => {
                    self.choice = Some(choice);
                    return SessionState::Open;
                }
            }
        }
        self.inner.receive(input, broker, out)
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.inner.session_event(session_event, broker, out)
    }

    fn service_event(
        &mut self,
        event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.inner.service_event(event, broker, out)
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.inner.tick(broker, out)
    }

    fn wake_at(&self) -> Option<Time> {
        self.inner.wake_at()
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        self.inner.gone(broker);
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.inner.drained(broker, out)
    }

    fn info(&self, services: &ServiceStates) -> SessionInfo {
        self.inner.info(services)
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

    fn details(&self) -> SessionDetails {
        self.inner.details()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_chooses_the_protocol_as_soon_as_it_is_known() {
        for (input, expected) in [
            (&b""[..], ProtocolHeaderMatch::Partial),
            (b"AMQP", ProtocolHeaderMatch::Partial),
            (b"AMQP\x00", ProtocolHeaderMatch::Partial),
            (b"AMQP\x00\x00", ProtocolHeaderMatch::Other),
            (b"AMQP\x00\x00\x09\x01", ProtocolHeaderMatch::Other),
            (b"AMQP\x03\x01\x00", ProtocolHeaderMatch::Partial),
            (b"AMQP\x03\x01\x00\x00", ProtocolHeaderMatch::Amqp10),
            (b"AMQP\x00\x01\x00\x00rest", ProtocolHeaderMatch::Amqp10),
            (b"AMQP\x02\x01\x00\x00", ProtocolHeaderMatch::Other),
            (b"AMQP\x01\x01\x08\x00", ProtocolHeaderMatch::Other),
            (b"GET /", ProtocolHeaderMatch::Other),
        ] {
            assert_eq!(match_header(input), expected, "{input:?}");
        }
    }
}
