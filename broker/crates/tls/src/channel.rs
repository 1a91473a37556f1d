//! The server side of one TLS connection, without a socket.

use crate::OutgoingBytes;
use bytes::BytesMut;
use rustls::server::{ServerConfig, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls_pki_types::CertificateDer;
use std::sync::Arc;

/// Maximum number of bytes buffered during the handshake. Its largest message has 65,535 bytes
/// (rustls refuses larger ones), plus the overhead of records of a reasonable size.
const MAX_HANDSHAKE: usize = 80 << 10;

/// Maximum number of bytes buffered after the handshake: the largest record has 5 + 16,384 + 2,048
/// bytes (RFC 5246, 6.2.3).
const MAX_RECORD: usize = 5 + (16 << 10) + (2 << 10);

/// Maximum overhead of a record in bytes: header, explicit nonce or inner type, and tag.
const RECORD_OVERHEAD: usize = 5 + 8 + 16;

/// Maximum number of plain bytes in a record.
const RECORD: usize = 16 << 10;

/// Content types of records that may precede an alert (RFC 8446, 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;

/// Buffer space for an encrypted alert in bytes.
const ALERT: usize = 64;

/// The reason why a connection failed. An alert for the peer, if any, is in the [`OutgoingBytes`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// The peer violated the protocol, or no common version, cipher suite or certificate was found.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// A record or handshake message of the peer exceeds the limit in bytes.
    #[error("handshake message or record exceeds {0} bytes")]
    TooLong(usize),
    /// A TLS 1.2 key has reached its encryption limit.
    #[error("TLS 1.2 key has reached its encryption limit")]
    Exhausted,
    /// The connection has ended, or its handshake is incomplete.
    #[error("connection cannot send or receive in its current state")]
    State,
}

impl From<EncryptError> for ChannelError {
    fn from(_: EncryptError) -> ChannelError {
        ChannelError::Exhausted
    }
}

/// The state after input was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// The peer may send more.
    Open,
    /// The peer has sent close_notify.
    Ended,
}

/// The TLS state of a connection. Between calls it buffers only an incomplete record or handshake
/// message.
pub struct TlsChannel {
    connection: UnbufferedServerConnection,
    rest: Vec<u8>,
    /// Set by an error; nothing is read or written afterwards.
    broken: bool,
}

impl std::fmt::Debug for TlsChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rest = self.rest.len();
        write!(f, "Channel {{ rest: {rest}, .. }}")
    }
}

impl TlsChannel {
    /// Creates the server side of a connection, before its handshake.
    pub fn new(config: Arc<ServerConfig>) -> Result<TlsChannel, rustls::Error> {
        Ok(TlsChannel {
            connection: UnbufferedServerConnection::new(config)?,
            rest: Vec::new(),
            broken: false,
        })
    }

    /// Buffered input that is still incomplete.
    pub fn rest(&self) -> &[u8] {
        &self.rest
    }

    /// Returns true until the handshake is complete; application data cannot be sent before.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The verified certificate of the client. None before the end of the handshake, or if the
    /// client sent none.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// TLS version and cipher suite, under the names used by RabbitMQ and by the standards.
    pub fn version_and_cipher(&self) -> (&'static str, &'static str) {
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

    /// Processes input, which must start with [`TlsChannel::rest`]. Appends plain bytes to `plain` and
    /// output to `out`, both possibly even if an error is returned.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        plain: &mut BytesMut,
        out: &mut OutgoingBytes,
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
        out: &mut OutgoingBytes,
    ) -> Result<ReceiveOutcome, ChannelError> {
        if self.broken {
            return Err(ChannelError::State);
        }
        let mut at = 0;
        let outcome = loop {
            let pending = input.get_mut(at..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.connection.process_tls_records(pending);
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
                // Early data is disabled.
                Ok(_) => return Err(ChannelError::State),
            }
            at += discard;
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        self.buffer_rest(input.get(at..).unwrap_or_default(), outcome)?;
        Ok(outcome)
    }

    fn buffer_rest(&mut self, rest: &[u8], outcome: ReceiveOutcome) -> Result<(), ChannelError> {
        let limit = match self.is_handshaking() {
            true => MAX_HANDSHAKE,
            false => MAX_RECORD,
        };
        // Input after close_notify is ignored.
        let rest = match outcome {
            ReceiveOutcome::Open => rest,
            ReceiveOutcome::Ended => &[],
        };
        if rest.len() > limit {
            return Err(ChannelError::TooLong(limit));
        }
        // An exact copy, without an allocation if it is empty.
        self.rest = rest.to_vec();
        Ok(())
    }

    /// Encodes the alert for an error, after handshake records that rustls wants to send first.
    /// `pending` is the input that was not discarded.
    fn alert(&mut self, pending: &mut [u8], out: &mut OutgoingBytes) {
        loop {
            let state = self.connection.process_tls_records(pending).state;
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
                return;
            };
            let before = out.filled().len();
            // After the alert, do not call again: rustls would process `pending` a second time.
            let first_byte = encode(&mut data, out).map(|()| out.filled().get(before).copied());
            if !matches!(first_byte, Ok(Some(HANDSHAKE | CHANGE_CIPHER_SPEC))) {
                return;
            }
        }
    }

    /// Encrypts application data. Only allowed after the handshake.
    pub fn seal(&mut self, plain: &[u8], out: &mut OutgoingBytes) -> Result<(), ChannelError> {
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

    /// Sends close_notify. Does nothing during the handshake.
    pub fn end(&mut self, out: &mut OutgoingBytes) {
        if self.broken {
            return;
        }
        let status = self.connection.process_tls_records(&mut self.rest);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state
            && let Ok(filled) = traffic.queue_close_notify(out.space(ALERT))
        {
            out.fill(filled);
        }
    }
}

fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    plain: &[u8],
    out: &mut OutgoingBytes,
) -> Result<(), ChannelError> {
    let records = plain.len().div_ceil(RECORD);
    let mut size = plain.len() + records * RECORD_OVERHEAD;
    loop {
        match traffic.encrypt(plain, out.space(size)) {
            Ok(filled) => {
                out.fill(filled);
                return Ok(());
            }
            // A pending key update answer precedes the data.
            Err(EncryptError::InsufficientSize(needed)) if needed.required_size > size => {
                size = needed.required_size;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, out: &mut OutgoingBytes) -> Result<(), ChannelError> {
    let mut size = 0;
    loop {
        match data.encode(out.space(size)) {
            Ok(filled) => {
                out.fill(filled);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(needed)) if needed.required_size > size => {
                size = needed.required_size;
            }
            Err(_) => return Err(ChannelError::State),
        }
    }
}
