//! PUBACK, PUBREC, PUBREL and PUBCOMP from a client (sections 3.4 to 3.7 and 4.3).

use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{ConnectionFailure, PacketResult};
use crate::state::MessageOwner;
use codec_mqtt::{Ack, AckKind, Qos, ReasonCode};

impl ClientConnection {
    pub(crate) fn handle_ack(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        match ack.kind {
            AckKind::PubAck => self.handle_final_ack(ack, Qos::AtLeastOnce, cx),
            AckKind::PubRec if ack.reason.is_error() => {
                self.handle_final_ack(ack, Qos::ExactlyOnce, cx)
            }
            AckKind::PubRec => self.handle_pubrec(ack, cx),
            AckKind::PubRel => {
                self.handle_pubrel(ack, cx);
                Ok(())
            }
            AckKind::PubComp => self.handle_pubcomp(ack, cx),
        }
    }

    /// The reason code for an unknown packet identifier. In a resumed session it is no error: the
    /// previous answer was lost with the earlier connection (sections 3.6.2.1 and 3.7.2.1).
    fn unknown_id_reason(&self) -> ReasonCode {
        match self.rare.session_present {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        }
    }

    /// Completes a message by PUBACK, or by PUBREC with an error [MQTT-4.4.0-2].
    fn handle_final_ack(
        &mut self,
        ack: &Ack<'_>,
        expected_qos: Qos,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let Some(at) = self.state.position(ack.packet_id) else {
            return Ok(());
        };
        match self.state.inflight.get(at) {
            Some(inflight) if !inflight.released && inflight.qos == expected_qos => {}
            _ => return Err(unexpected_ack(ack)),
        }
        self.message_acked(at, cx);
        self.send_waiting(cx);
        Ok(())
    }

    /// [MQTT-4.3.3-4]
    fn handle_pubrec(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        let at = self.state.position(ack.packet_id);
        let reason = match at.and_then(|at| self.state.inflight.get_mut(at)) {
            Some(inflight) => {
                if inflight.qos == Qos::AtLeastOnce {
                    return Err(unexpected_ack(ack));
                }
                inflight.released = true;
                // The queue keeps its messages until PUBCOMP, because it may deliver them again to
                // a session that has lost its state.
                if matches!(
                    inflight.owner,
                    MessageOwner::Nobody | MessageOwner::Stream(_)
                ) {
                    inflight.delivery = None;
                }
                ReasonCode::Success
            }
            None => self.unknown_id_reason(),
        };
        Ack::new(AckKind::PubRel, ack.packet_id, reason).encode(self.version, cx.packet());
        Ok(())
    }

    fn handle_pubcomp(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        if self.state.was_released(ack.packet_id) {
            self.send_waiting(cx);
            return Ok(());
        }
        let Some(at) = self.state.position(ack.packet_id) else {
            return Ok(());
        };
        if self.state.inflight.get(at).is_none_or(|i| !i.released) {
            return Err(unexpected_ack(ack));
        }
        self.message_acked(at, cx);
        self.send_waiting(cx);
        Ok(())
    }

    /// [MQTT-4.3.3-11], [MQTT-4.3.3-12]
    fn handle_pubrel(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) {
        let reason = match self.state.forget_received(ack.packet_id) {
            true => ReasonCode::Success,
            false => self.unknown_id_reason(),
        };
        self.publish_completed();
        Ack::new(AckKind::PubComp, ack.packet_id, reason).encode(self.version, cx.packet());
    }
}

fn unexpected_ack(ack: &Ack<'_>) -> ConnectionFailure {
    let text = format!(
        "{:?} for packet identifier {} does not fit what was sent with it",
        ack.kind, ack.packet_id
    );
    ConnectionFailure::new(ReasonCode::ProtocolError, text)
}
