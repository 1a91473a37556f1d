//! The server's side of one TLS connection, without a socket.

use crate::Outgoing;
use bytes::BytesMut;
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls_pki_types::CertificateDer;
use std::sync::Arc;

/// Bytes of a handshake that may wait for their message's end: its largest message has 65,535 (rustls refuses more), in
/// records of a reasonable size.
const MAX_HANDSHAKE: usize = 80 << 10;

/// Bytes that may wait for their record's end afterwards: the largest is 5 + 16,384 + 2,048 (RFC 5246, 6.2.3).
const MAX_RECORD: usize = 5 + (16 << 10) + (2 << 10);

/// What a record adds at the most: header, explicit nonce or inner type, tag.
const RECORD_OVERHEAD: usize = 5 + 8 + 16;

/// Plain bytes of a record at the most.
const RECORD: usize = 16 << 10;

/// Content types that come before an alert (RFC 8446, 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;

/// Room for an alert, encrypted.
const ALERT: usize = 64;

/// Why a connection cannot go on. What is to be sent about it is in the [`Outgoing`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// The other side broke the protocol, or no common version, cipher or certificate was found.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The other side sends a record or handshake message above the limit, in bytes.
    #[error("more than {0} bytes of one handshake message or record")]
    TooLong(usize),
    /// A TLS 1.2 key has encrypted as much as is safe.
    #[error("its keys are used up")]
    Exhausted,
    /// It is over already, or not that far yet.
    #[error("nothing can be sent or received now")]
    State,
}

impl From<EncryptError> for ChannelError {
    fn from(_: EncryptError) -> ChannelError {
        ChannelError::Exhausted
    }
}

/// What came of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// The other side may send more.
    Open,
    /// It has said that nothing follows (close_notify).
    Ended,
}

/// A connection. Between calls it owns no bytes but those of a record, or of a handshake's message, that is not whole
/// yet.
pub struct Channel {
    connection: UnbufferedServerConnection,
    rest: Vec<u8>,
    /// After an error nothing is read or said any more.
    broken: bool,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rest = self.rest.len();
        write!(f, "Channel {{ rest: {rest}, .. }}")
    }
}

impl Channel {
    /// Creates the server side of a connection, before its handshake.
    pub fn new(config: Arc<ServerConfig>) -> Result<Channel, rustls::Error> {
        Ok(Channel {
            connection: UnbufferedServerConnection::new(config)?,
            rest: Vec::new(),
            broken: false,
        })
    }

    /// Bytes that came before and wait for what completes them.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// Returns true until the handshake is complete; application data cannot be sent before.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The client's certificate; it has been verified. None before the end of the handshake, and when it showed none.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// Version and cipher suite, under the names that RabbitMQ and the standards have for them.
    pub fn terms(&self) -> (&'static str, &'static str) {
        use rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};
        let version = match self.connection.protocol_version() {
            Some(TLSv1_2) => "tlsv1.2",
            Some(TLSv1_3) => "tlsv1.3",
            _ => "",
        };
        let suite = self.connection.negotiated_cipher_suite();
        let suite = suite.and_then(|s| s.suite().as_str());
        (version, suite.unwrap_or_default())
    }

    /// Takes [`Channel::rest`] with what came behind it. Plain bytes go to the end of `plain`, answers to `out`; both
    /// may have got something also when this fails.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut BytesMut,
        out: &mut Outgoing,
    ) -> Result<ReceiveOutcome, ChannelError> {
        let received = self.process(input, plain, out);
        if received.is_err() {
            self.broken = true;
            self.rest = Vec::new();
        }
        received
    }

    fn process(
        &mut self,
        input: &mut [u8],
        plain: &mut BytesMut,
        out: &mut Outgoing,
    ) -> Result<ReceiveOutcome, ChannelError> {
        if self.broken {
            return Err(ChannelError::State);
        }
        let mut at = 0;
        let outcome = loop {
            let waiting = input.get_mut(at..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.connection.process_tls_records(waiting);
            let mut outcome = None;
            match state {
                Err(error) => {
                    self.alert(input.get_mut(at + discard..).unwrap_or_default(), out);
                    return Err(error.into());
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        plain.extend_from_slice(record?.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out)?,
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    outcome = Some(ReceiveOutcome::Open);
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    outcome = Some(ReceiveOutcome::Ended);
                }
                // Early data is never allowed by our configurations.
                Ok(_) => return Err(ChannelError::State),
            }
            at += discard;
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        self.keep(input.get(at..).unwrap_or_default(), outcome)?;
        Ok(outcome)
    }

    fn keep(&mut self, rest: &[u8], outcome: ReceiveOutcome) -> Result<(), ChannelError> {
        let limit = match self.is_handshaking() {
            true => MAX_HANDSHAKE,
            false => MAX_RECORD,
        };
        // What follows the other side's last word is nothing.
        let rest = match outcome {
            ReceiveOutcome::Open => rest,
            ReceiveOutcome::Ended => &[],
        };
        if rest.len() > limit {
            return Err(ChannelError::TooLong(limit));
        }
        // Of its own size, and without an allocation when it is empty.
        self.rest = rest.to_vec();
        Ok(())
    }

    /// What rustls wants to say about an error: an alert, behind what it said just before. `waiting` is what it has not
    /// discarded.
    fn alert(&mut self, waiting: &mut [u8], out: &mut Outgoing) {
        loop {
            let state = self.connection.process_tls_records(waiting).state;
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
                return;
            };
            let before = out.filled().len();
            // Asked again after the alert it would read `waiting` again.
            let said = encode(&mut data, out).map(|()| out.filled().get(before).copied());
            if !matches!(said, Ok(Some(HANDSHAKE | CHANGE_CIPHER_SPEC))) {
                return;
            }
        }
    }

    /// Encrypts; only after the handshake.
    pub fn seal(&mut self, plain: &[u8], out: &mut Outgoing) -> Result<(), ChannelError> {
        if self.broken {
            return Err(ChannelError::State);
        }
        loop {
            let status = self.connection.process_tls_records(&mut self.rest);
            match status.state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    return encrypt(&mut traffic, plain, out);
                }
                ConnectionState::EncodeTlsData(mut data) => encode(&mut data, out)?,
                ConnectionState::TransmitTlsData(data) => data.done(),
                _ => return Err(ChannelError::State),
            }
        }
    }

    /// Our last word: nothing follows (close_notify). Nothing during the handshake.
    pub fn end(&mut self, out: &mut Outgoing) {
        if self.broken {
            return;
        }
        let status = self.connection.process_tls_records(&mut self.rest);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state
            && let Ok(filled) = traffic.queue_close_notify(out.room(ALERT))
        {
            out.fill(filled);
        }
    }
}

fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    plain: &[u8],
    out: &mut Outgoing,
) -> Result<(), ChannelError> {
    let records = plain.len().div_ceil(RECORD);
    let mut wanted = plain.len() + records * RECORD_OVERHEAD;
    loop {
        match traffic.encrypt(plain, out.room(wanted)) {
            Ok(filled) => {
                out.fill(filled);
                return Ok(());
            }
            // The answer to a change of keys goes first.
            Err(EncryptError::InsufficientSize(size)) if size.required_size > wanted => {
                wanted = size.required_size;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, out: &mut Outgoing) -> Result<(), ChannelError> {
    let mut wanted = 0;
    loop {
        match data.encode(out.room(wanted)) {
            Ok(filled) => {
                out.fill(filled);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(size)) if size.required_size > wanted => {
                wanted = size.required_size;
            }
            Err(_) => return Err(ChannelError::State),
        }
    }
}
