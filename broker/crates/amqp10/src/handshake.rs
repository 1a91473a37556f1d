use bytes::BytesMut;
use codec_amqp10::{
    Condition, FrameKind, Multiple, Output, PROTOCOL_HEADER_SIZE, ProtocolHeader, ProtocolId,
    SaslChallenge, SaslCode, SaslFrame, SaslInit, SaslMechanisms, SaslOutcome, Symbol,
    encode_sasl_frame, parse_frame,
};

use crate::{ClientSasl, Config, Event, Fault, Peer, PendingSasl, SaslDecision};

/// Protocol headers (section 2.2) and the SASL layer (part 5, section 5.3), until the AMQP headers are exchanged.
#[derive(Debug)]
pub(crate) struct Handshake(HandshakeStage);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandshakeStage {
    /// A server awaits the first protocol header.
    ServerHeader,
    /// It awaits the client's choice of a mechanism.
    ServerInit,
    /// The broker decides.
    Deciding,
    /// The client owes a response.
    ServerResponse,
    /// The client is authenticated and owes the AMQP header.
    ServerAmqpHeader,
    /// A client awaits the server's SASL header.
    ClientSaslHeader,
    /// It awaits the server's mechanisms.
    ClientMechanisms,
    /// It awaits the outcome.
    ClientOutcome,
    /// It awaits the server's AMQP header.
    ClientAmqpHeader,
}

/// The result of reading from the input.
#[allow(
    clippy::large_enum_variant,
    reason = "an allocation for each event costs more than its copy"
)]
pub(crate) enum Step<'a> {
    /// A whole header or frame is missing, or the broker decides.
    Blocked,
    /// Something was read; there may be more.
    Progress,
    /// The broker has to decide.
    Event(Event<'a>),
    /// The AMQP headers are exchanged.
    Complete,
}

impl Handshake {
    /// Starts the handshake. A client writes its first header.
    pub(crate) fn start(config: &Config, out: &mut BytesMut) -> Self {
        Self(match &config.peer {
            Peer::Server { .. } => HandshakeStage::ServerHeader,
            Peer::Client { sasl: Some(_), .. } => {
                out.put(&ProtocolHeader::SASL.to_bytes());
                HandshakeStage::ClientSaslHeader
            }
            Peer::Client { sasl: None, .. } => {
                out.put(&ProtocolHeader::AMQP.to_bytes());
                HandshakeStage::ClientAmqpHeader
            }
        })
    }

    /// Reads one header or frame. After an error the connection must be closed without a close frame, because no layer exists in
    /// which one could be sent.
    pub(crate) fn step<'a>(
        &mut self,
        input: &mut &'a [u8],
        config: &Config,
        out: &mut BytesMut,
    ) -> Result<Step<'a>, Fault> {
        match self.0 {
            HandshakeStage::Deciding => Ok(Step::Blocked),
            HandshakeStage::ServerHeader
            | HandshakeStage::ServerAmqpHeader
            | HandshakeStage::ClientSaslHeader
            | HandshakeStage::ClientAmqpHeader => self.read_header(input, config, out),
            HandshakeStage::ServerInit
            | HandshakeStage::ServerResponse
            | HandshakeStage::ClientMechanisms
            | HandshakeStage::ClientOutcome => self.read_frame(input, config, out),
        }
    }

    fn read_header<'a>(
        &mut self,
        input: &mut &'a [u8],
        config: &Config,
        out: &mut BytesMut,
    ) -> Result<Step<'a>, Fault> {
        let expected = match (self.0, &config.peer) {
            (HandshakeStage::ClientSaslHeader, _) => ProtocolHeader::SASL,
            (
                HandshakeStage::ServerHeader,
                Peer::Server {
                    requires_sasl: true,
                    ..
                },
            ) => ProtocolHeader::SASL,
            _ => ProtocolHeader::AMQP,
        };
        let Some((bytes, rest)) = input.split_first_chunk::<PROTOCOL_HEADER_SIZE>() else {
            // Bytes that cannot become a header are refused at once, so that the client is not left waiting.
            let start = &ProtocolHeader::AMQP.to_bytes()[..4];
            if input
                .iter()
                .zip(start)
                .any(|(found, wanted)| found != wanted)
            {
                return Err(self.refuse_header(expected, "no AMQP protocol header", out));
            }
            return Ok(Step::Blocked);
        };
        let header = match ProtocolHeader::parse(bytes) {
            Some(header) if header.is_supported_version() => header,
            Some(header) => {
                let [major, minor, revision] = header.version;
                let text = format!("unsupported version {major}.{minor}.{revision}");
                return Err(self.refuse_header(expected, &text, out));
            }
            None => return Err(self.refuse_header(expected, "no AMQP protocol header", out)),
        };
        let accepts_both =
            self.0 == HandshakeStage::ServerHeader && expected == ProtocolHeader::AMQP;
        if header != expected && !(accepts_both && header == ProtocolHeader::SASL) {
            let text = match header.id {
                ProtocolId::Amqp => "the SASL layer is required",
                ProtocolId::Sasl => "the SASL layer has ended",
                ProtocolId::Tls => "TLS inside of the connection is not supported",
                ProtocolId::Other(_) => "unknown protocol id",
            };
            return Err(self.refuse_header(expected, text, out));
        }
        *input = rest;
        match (self.0, header.id, &config.peer) {
            (HandshakeStage::ServerHeader, ProtocolId::Sasl, Peer::Server { mechanisms, .. }) => {
                out.put(&header.to_bytes());
                let names: Vec<Symbol<'_>> = mechanisms
                    .iter()
                    .filter_map(|name| Symbol::new(name))
                    .collect();
                let sasl_server_mechanisms = Multiple::new(&names);
                encode_sasl_frame(
                    out,
                    &SaslMechanisms {
                        sasl_server_mechanisms,
                    },
                );
                self.0 = HandshakeStage::ServerInit;
                Ok(Step::Progress)
            }
            (HandshakeStage::ServerHeader | HandshakeStage::ServerAmqpHeader, ..) => {
                out.put(&header.to_bytes());
                Ok(Step::Complete)
            }
            (HandshakeStage::ClientSaslHeader, ..) => {
                self.0 = HandshakeStage::ClientMechanisms;
                Ok(Step::Progress)
            }
            _ => Ok(Step::Complete),
        }
    }

    /// A server answers a header that it does not support with the one that it does (section 2.2).
    fn refuse_header(&self, expected: ProtocolHeader, text: &str, out: &mut BytesMut) -> Fault {
        if matches!(
            self.0,
            HandshakeStage::ServerHeader | HandshakeStage::ServerAmqpHeader
        ) {
            out.put(&expected.to_bytes());
        }
        Fault::connection(Condition::FramingError, text)
    }

    fn read_frame<'a>(
        &mut self,
        input: &mut &'a [u8],
        config: &Config,
        out: &mut BytesMut,
    ) -> Result<Step<'a>, Fault> {
        let parsed = parse_frame(input, config.sasl_max_frame_size).map_err(Fault::framing)?;
        let Some(frame) = parsed else {
            return Ok(Step::Blocked);
        };
        *input = &input[frame.size..];
        if frame.kind != FrameKind::Sasl {
            return Err(Fault::connection(
                Condition::FramingError,
                "an AMQP frame in the SASL layer",
            ));
        }
        let body = SaslFrame::decode(frame.body)
            .map_err(|error| Fault::connection(error.condition(), error))?;
        match (self.0, body, &config.peer) {
            (
                HandshakeStage::ServerInit,
                SaslFrame::Init(init),
                Peer::Server { mechanisms, .. },
            ) => {
                let SaslInit {
                    mechanism,
                    initial_response,
                    hostname,
                } = init;
                if !mechanisms.iter().any(|name| **name == *mechanism.as_str()) {
                    outcome(out, SaslCode::Auth);
                    let text = format!("SASL mechanism '{mechanism}' is not offered");
                    return Err(Fault::connection(Condition::UnauthorizedAccess, text));
                }
                self.0 = HandshakeStage::Deciding;
                Ok(Step::Event(Event::SaslInit {
                    mechanism: mechanism.as_str(),
                    initial_response,
                    hostname,
                    pending: PendingSasl(()),
                }))
            }
            (HandshakeStage::ServerResponse, SaslFrame::Response(response), _) => {
                self.0 = HandshakeStage::Deciding;
                Ok(Step::Event(Event::SaslResponse {
                    response: response.response,
                    pending: PendingSasl(()),
                }))
            }
            (
                HandshakeStage::ClientMechanisms,
                SaslFrame::Mechanisms(offered),
                Peer::Client {
                    sasl: Some(sasl),
                    hostname,
                },
            ) => {
                let ClientSasl {
                    mechanism,
                    initial_response,
                } = sasl;
                let known = Symbol::new(mechanism)
                    .filter(|name| offered.sasl_server_mechanisms.contains(name.as_str()));
                let Some(mechanism) = known else {
                    let text = format!("the server does not offer SASL mechanism '{mechanism}'");
                    return Err(Fault::connection(Condition::NotImplemented, text));
                };
                let init = SaslInit {
                    mechanism,
                    initial_response: Some(initial_response),
                    hostname: hostname.as_deref(),
                };
                encode_sasl_frame(out, &init);
                self.0 = HandshakeStage::ClientOutcome;
                Ok(Step::Progress)
            }
            (HandshakeStage::ClientOutcome, SaslFrame::Outcome(outcome), _) => {
                if outcome.code != SaslCode::Ok {
                    let text = format!("SASL outcome {:?}", outcome.code);
                    return Err(Fault::connection(Condition::UnauthorizedAccess, text));
                }
                out.put(&ProtocolHeader::AMQP.to_bytes());
                self.0 = HandshakeStage::ClientAmqpHeader;
                Ok(Step::Progress)
            }
            _ => Err(Fault::connection(
                Condition::IllegalState,
                "a SASL frame that the exchange does not expect",
            )),
        }
    }

    /// Writes the broker's answer. Returns false if the connection has to be closed.
    pub(crate) fn answer(&mut self, decision: SaslDecision<'_>, out: &mut BytesMut) -> bool {
        debug_assert_eq!(
            self.0,
            HandshakeStage::Deciding,
            "a pending SASL message has its state"
        );
        match decision {
            SaslDecision::Challenge(challenge) => {
                encode_sasl_frame(out, &SaslChallenge { challenge });
                self.0 = HandshakeStage::ServerResponse;
                true
            }
            SaslDecision::Accept => {
                outcome(out, SaslCode::Ok);
                self.0 = HandshakeStage::ServerAmqpHeader;
                true
            }
            SaslDecision::Reject => {
                outcome(out, SaslCode::Auth);
                false
            }
            SaslDecision::TemporaryError => {
                outcome(out, SaslCode::SystemTemporary);
                false
            }
        }
    }

    pub(crate) fn is_deciding(&self) -> bool {
        self.0 == HandshakeStage::Deciding
    }
}

fn outcome(out: &mut BytesMut, code: SaslCode) {
    encode_sasl_frame(
        out,
        &SaslOutcome {
            code,
            additional_data: None,
        },
    );
}
