use crate::composite::read_descriptor;
use crate::{Decode, DecodeError, Encode, Multiple, Output, Reader, Reason, Symbol};

/// The result of a SASL exchange (section 5.3.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslCode {
    /// Authenticated.
    Ok = 0,
    /// Wrong credentials.
    Auth = 1,
    /// A system error.
    System = 2,
    /// A system error that will not go away by itself.
    SystemPermanent = 3,
    /// A system error that may go away.
    SystemTemporary = 4,
}

impl<'a> Decode<'a> for SaslCode {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.read::<u8>()? {
            0 => Self::Ok,
            1 => Self::Auth,
            2 => Self::System,
            3 => Self::SystemPermanent,
            4 => Self::SystemTemporary,
            other => {
                return Err(Reason::OutOfRange {
                    of: "sasl-code",
                    value: u64::from(other),
                }
                .into());
            }
        })
    }
}

impl Encode for SaslCode {
    fn encode<O: Output>(&self, out: &mut O) {
        (*self as u8).encode(out);
    }
}

composite! {
    /// The mechanisms that the server offers (section 5.3.3.1).
    SaslMechanisms<'a> = "sasl-mechanisms" 0x40 "amqp:sasl-mechanisms:list" {
        /// Names of mechanisms.
        sasl_server_mechanisms "sasl-server-mechanisms" required Multiple<'a>,
    }
}

composite! {
    /// The client chooses a mechanism (section 5.3.3.2).
    SaslInit<'a> = "sasl-init" 0x41 "amqp:sasl-init:list" {
        /// The mechanism's name.
        mechanism "mechanism" required Symbol<'a>,
        /// Its first message.
        initial_response "initial-response" optional &'a [u8],
        /// The target host.
        hostname "hostname" optional &'a str,
    }
}

composite! {
    /// A challenge of the mechanism (section 5.3.3.3).
    SaslChallenge<'a> = "sasl-challenge" 0x42 "amqp:sasl-challenge:list" {
        /// Bytes that the mechanism defines.
        challenge "challenge" required &'a [u8],
    }
}

composite! {
    /// The response to a challenge (section 5.3.3.4).
    SaslResponse<'a> = "sasl-response" 0x43 "amqp:sasl-response:list" {
        /// Bytes that the mechanism defines.
        response "response" required &'a [u8],
    }
}

composite! {
    /// The end of the exchange (section 5.3.3.5).
    SaslOutcome<'a> = "sasl-outcome" 0x44 "amqp:sasl-outcome:list" {
        /// The result.
        code "code" required SaslCode,
        /// Bytes that the mechanism defines.
        additional_data "additional-data" optional &'a [u8],
    }
}

/// The body of a SASL frame (section 5.3.3).
#[derive(Clone, Debug, PartialEq)]
pub enum SaslFrame<'a> {
    /// The server's mechanisms.
    Mechanisms(SaslMechanisms<'a>),
    /// The client's choice.
    Init(SaslInit<'a>),
    /// A challenge.
    Challenge(SaslChallenge<'a>),
    /// A response.
    Response(SaslResponse<'a>),
    /// The end.
    Outcome(SaslOutcome<'a>),
}

impl<'a> SaslFrame<'a> {
    /// Reads the body of a SASL frame.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        const MECHANISMS: u64 = SaslMechanisms::DESCRIPTOR as u64;
        const INIT: u64 = SaslInit::DESCRIPTOR as u64;
        const CHALLENGE: u64 = SaslChallenge::DESCRIPTOR as u64;
        const RESPONSE: u64 = SaslResponse::DESCRIPTOR as u64;
        const OUTCOME: u64 = SaslOutcome::DESCRIPTOR as u64;
        let known = [
            (SaslMechanisms::SYMBOL, SaslMechanisms::DESCRIPTOR),
            (SaslInit::SYMBOL, SaslInit::DESCRIPTOR),
            (SaslChallenge::SYMBOL, SaslChallenge::DESCRIPTOR),
            (SaslResponse::SYMBOL, SaslResponse::DESCRIPTOR),
            (SaslOutcome::SYMBOL, SaslOutcome::DESCRIPTOR),
        ];
        let mut reader = Reader::new(body);
        let (frame, name) = match read_descriptor(&mut reader, &known)? {
            MECHANISMS => (
                SaslMechanisms::read_fields(&mut reader).map(Self::Mechanisms),
                "sasl-mechanisms",
            ),
            INIT => (
                SaslInit::read_fields(&mut reader).map(Self::Init),
                "sasl-init",
            ),
            CHALLENGE => (
                SaslChallenge::read_fields(&mut reader).map(Self::Challenge),
                "sasl-challenge",
            ),
            RESPONSE => (
                SaslResponse::read_fields(&mut reader).map(Self::Response),
                "sasl-response",
            ),
            OUTCOME => (
                SaslOutcome::read_fields(&mut reader).map(Self::Outcome),
                "sasl-outcome",
            ),
            other => return Err(Reason::UnknownDescriptor(other).into()),
        };
        let frame = frame.map_err(|error| error.in_performative(name))?;
        match reader.rest().len() {
            0 => Ok(frame),
            left => Err(DecodeError::from(Reason::TrailingBytes(left)).in_performative(name)),
        }
    }
}

impl Encode for SaslFrame<'_> {
    fn encode<O: Output>(&self, out: &mut O) {
        match self {
            Self::Mechanisms(body) => body.encode(out),
            Self::Init(body) => body.encode(out),
            Self::Challenge(body) => body.encode(out),
            Self::Response(body) => body.encode(out),
            Self::Outcome(body) => body.encode(out),
        }
    }
}
