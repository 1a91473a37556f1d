//! The bytes of an AMQP 1.0 client connection: protocol headers, SASL, the open, and frames.

use crate::cluster::amqp::{PASSWORD, USER};
use bytes::{Buf, Bytes, BytesMut};
use codec_amqp10::{
    Condition, Encode, FrameKind, Multiple, Open, PROTOCOL_HEADER_SIZE, Performative,
    ProtocolHeader, SaslCode, SaslFrame, SaslInit, Symbol, Transfer, encode_frame,
    encode_sasl_frame, encode_transfer_frame, parse_frame,
};

/// The frames that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    SaslHeader,
    Mechanisms,
    SaslOutcome,
    AmqpHeader,
    Open,
    Running,
}

/// Input of the broker.
#[derive(Debug)]
pub(super) enum WireInput {
    /// The connection is open.
    Opened,
    /// A frame after the open.
    Frame { channel: u16, body: Bytes },
    /// The broker does not accept the client now.
    Refused,
}

pub(super) struct Wire {
    stage: Stage,
    /// Everything up to the open was sent without waiting for answers (section 2.4.5).
    is_pipelined: bool,
    /// The largest frame that the client accepts.
    max_frame_size: u32,
    /// The largest frame that the broker accepts.
    pub remote_max_frame_size: u32,
    input: BytesMut,
    pub output: BytesMut,
}

impl Wire {
    /// A client sends its first header.
    pub(super) fn new(max_frame_size: u32, is_pipelined: bool) -> Wire {
        let mut wire = Wire {
            stage: Stage::SaslHeader,
            is_pipelined,
            max_frame_size,
            remote_max_frame_size: 0,
            input: BytesMut::new(),
            output: BytesMut::new(),
        };
        wire.output
            .extend_from_slice(&ProtocolHeader::SASL.to_bytes());
        if is_pipelined {
            wire.send_init();
            wire.send_open();
        }
        wire
    }

    fn send_init(&mut self) {
        let response = format!("\0{USER}\0{PASSWORD}");
        let init = SaslInit {
            mechanism: Symbol::from_static("PLAIN"),
            initial_response: Some(response.as_bytes()),
            hostname: None,
        };
        encode_sasl_frame(&mut self.output, &init);
    }

    fn send_open(&mut self) {
        self.output
            .extend_from_slice(&ProtocolHeader::AMQP.to_bytes());
        let open = Open {
            container_id: "client",
            hostname: None,
            max_frame_size: self.max_frame_size,
            channel_max: 7,
            idle_time_out: None,
            outgoing_locales: Multiple::NONE,
            incoming_locales: Multiple::NONE,
            offered_capabilities: Multiple::NONE,
            desired_capabilities: Multiple::NONE,
            properties: None,
        };
        self.send(0, &open);
    }

    pub(super) fn send(&mut self, channel: u16, body: &impl Encode) {
        encode_frame(&mut self.output, channel, body);
    }

    /// Sends a transfer with as much of the message behind its first `sent` bytes as fits in a frame of this size, and returns
    /// how much that is. Sets `transfer.more`.
    pub(super) fn send_transfer(
        &mut self,
        channel: u16,
        transfer: &mut Transfer<'_>,
        message: &[u8],
        sent: usize,
        frame_size: usize,
    ) -> usize {
        let size = frame_size.min(self.remote_max_frame_size as usize);
        encode_transfer_frame(&mut self.output, channel, transfer, &[message], sent, size)
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Returns the next input. None: more bytes are missing. An error means that the broker broke the protocol.
    pub(super) fn next(&mut self) -> Result<Option<WireInput>, String> {
        loop {
            match self.stage {
                Stage::SaslHeader => {
                    if !self.take_header(ProtocolHeader::SASL)? {
                        return Ok(None);
                    }
                    self.stage = Stage::Mechanisms;
                }
                Stage::AmqpHeader => {
                    if !self.take_header(ProtocolHeader::AMQP)? {
                        return Ok(None);
                    }
                    self.stage = Stage::Open;
                }
                Stage::Mechanisms | Stage::SaslOutcome => {
                    let Some((_, body)) = self.take_frame(FrameKind::Sasl)? else {
                        return Ok(None);
                    };
                    if !self.handle_sasl(&body)? {
                        return Ok(Some(WireInput::Refused));
                    }
                }
                Stage::Open => {
                    let Some((_, body)) = self.take_frame(FrameKind::Amqp)? else {
                        return Ok(None);
                    };
                    return match decode(&body)?.0 {
                        Performative::Open(open) => {
                            self.remote_max_frame_size = open.max_frame_size;
                            self.stage = Stage::Running;
                            Ok(Some(WireInput::Opened))
                        }
                        other => Err(format!("{} before the open", other.kind().name())),
                    };
                }
                Stage::Running => {
                    let frame = self.take_frame(FrameKind::Amqp)?;
                    return Ok(frame.map(|(channel, body)| WireInput::Frame { channel, body }));
                }
            }
        }
    }

    fn take_header(&mut self, expected: ProtocolHeader) -> Result<bool, String> {
        let Some(header) = self.input.get(..PROTOCOL_HEADER_SIZE) else {
            return Ok(false);
        };
        if header != expected.to_bytes() {
            return Err(format!("the protocol header {header:?}"));
        }
        self.input.advance(PROTOCOL_HEADER_SIZE);
        Ok(true)
    }

    /// Takes the next frame that has a body.
    fn take_frame(&mut self, kind: FrameKind) -> Result<Option<(u16, Bytes)>, String> {
        loop {
            let frame = parse_frame(&self.input, self.max_frame_size).map_err(|e| e.to_string())?;
            let Some(frame) = frame else {
                return Ok(None);
            };
            if frame.kind != kind {
                return Err(format!("a frame of kind {:?}", frame.kind));
            }
            let (channel, start) = (frame.channel, frame.size - frame.body.len());
            let size = frame.size;
            let body = self.input.split_to(size).freeze().slice(start..);
            if !body.is_empty() {
                return Ok(Some((channel, body)));
            }
        }
    }

    /// Returns false if the broker does not accept the client.
    fn handle_sasl(&mut self, body: &[u8]) -> Result<bool, String> {
        match (
            self.stage,
            SaslFrame::decode(body).map_err(|e| e.to_string())?,
        ) {
            (Stage::Mechanisms, SaslFrame::Mechanisms(mechanisms)) => {
                if !mechanisms.sasl_server_mechanisms.contains("PLAIN") {
                    return Err("the broker does not offer PLAIN".to_owned());
                }
                if !self.is_pipelined {
                    self.send_init();
                }
                self.stage = Stage::SaslOutcome;
                Ok(true)
            }
            (Stage::SaslOutcome, SaslFrame::Outcome(outcome)) => {
                if outcome.code == SaslCode::Ok && !self.is_pipelined {
                    self.send_open();
                }
                self.stage = Stage::AmqpHeader;
                Ok(outcome.code == SaslCode::Ok)
            }
            (stage, other) => Err(format!("{other:?} at stage {stage:?} of the handshake")),
        }
    }
}

pub(super) fn decode(body: &[u8]) -> Result<(Performative<'_>, &[u8]), String> {
    Performative::decode(body).map_err(|error| error.to_string())
}

/// Whether the broker blames the client for an error. The clients keep to the protocol.
pub(super) fn is_client_fault(condition: Condition<'_>) -> bool {
    matches!(
        condition,
        Condition::DecodeError
            | Condition::InvalidField
            | Condition::NotAllowed
            | Condition::NotImplemented
            | Condition::IllegalState
            | Condition::FrameSizeTooSmall
            | Condition::FramingError
            | Condition::WindowViolation
            | Condition::ErrantLink
            | Condition::HandleInUse
            | Condition::UnattachedHandle
            | Condition::TransferLimitExceeded
            | Condition::MessageSizeExceeded
            | Condition::Stolen
            | Condition::UnauthorizedAccess
    )
}
