//! An MQTT 5.0 client connection, sans-io: takes bytes and returns packets of the server.

use super::super::client::ProtocolEndpoint;
use bytes::{Bytes, BytesMut};
use codec_mqtt::{AckKind, Packet, Qos, ReasonCode, Version, parse_frame};

const V5: Version = Version::V5;
/// Longer than any packet of the workload.
const MAX_PACKET: usize = 1 << 20;

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedPublish {
    pub topic: String,
    pub payload: Bytes,
    pub qos: Qos,
    /// 0 for QoS 0.
    pub packet_id: u16,
    /// It was retained before the subscription.
    pub retained: bool,
}

/// A packet of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerMessage {
    Accepted {
        present: bool,
    },
    Refused(ReasonCode),
    Message(ReceivedPublish),
    Ack {
        kind: AckKind,
        packet_id: u16,
        reason: ReasonCode,
    },
    /// Whether each filter was granted.
    Subscribed {
        granted: Vec<bool>,
    },
    Unsubscribed,
    PingResponse,
    /// The server closes the connection.
    Ended(ReasonCode),
}

/// One connection.
#[derive(Default)]
pub(super) struct MqttConnection {
    input: BytesMut,
    out: BytesMut,
}

impl ProtocolEndpoint for MqttConnection {
    fn take(&mut self) -> Option<Bytes> {
        (!self.out.is_empty()).then(|| self.out.split().freeze())
    }
}

impl MqttConnection {
    pub(super) fn send(&mut self, packet: &Packet<'_>) {
        packet.encode(V5, &mut self.out);
    }

    /// Processes received bytes. An error means that the server broke the protocol.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        messages: &mut Vec<ServerMessage>,
    ) -> Result<(), String> {
        self.input.extend_from_slice(bytes);
        let input = self.input.split().freeze();
        let mut rest = &input[..];
        while let Some(frame) = parse_frame(rest, MAX_PACKET).map_err(|e| e.to_string())? {
            let packet = Packet::decode(&frame, V5).map_err(|e| e.to_string())?;
            messages.push(server_message(&packet)?);
            rest = rest.get(frame.wire_len()..).unwrap_or_default();
        }
        self.input.extend_from_slice(rest);
        Ok(())
    }
}

fn server_message(packet: &Packet<'_>) -> Result<ServerMessage, String> {
    Ok(match packet {
        Packet::ConnAck(ack) if ack.reason.is_error() => ServerMessage::Refused(ack.reason),
        Packet::ConnAck(ack) => ServerMessage::Accepted {
            present: ack.session_present,
        },
        Packet::Publish(publish) => ServerMessage::Message(ReceivedPublish {
            topic: publish.topic.to_owned(),
            payload: Bytes::copy_from_slice(publish.payload),
            qos: publish.qos,
            packet_id: publish.packet_id,
            retained: publish.retain,
        }),
        Packet::Ack(ack) => ServerMessage::Ack {
            kind: ack.kind,
            packet_id: ack.packet_id,
            reason: ack.reason,
        },
        Packet::SubAck(ack) => ServerMessage::Subscribed {
            granted: ack.reasons.iter().map(|reason| *reason < 0x80).collect(),
        },
        Packet::UnsubAck(_) => ServerMessage::Unsubscribed,
        Packet::PingResp => ServerMessage::PingResponse,
        Packet::Disconnect(disconnect) => ServerMessage::Ended(disconnect.reason),
        other => return Err(format!("a server sent {other:?}")),
    })
}
