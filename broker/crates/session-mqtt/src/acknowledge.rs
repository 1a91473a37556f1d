//! PUBACK, PUBREC, PUBREL and PUBCOMP from a client (sections 3.4 to 3.7, 4.3).

use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{Failure, PacketResult};
use crate::state::MessageOwner;
use codec_mqtt::{Ack, AckKind, Qos, Reason};

impl ClientConnection {
    pub(crate) fn acknowledged(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        match ack.kind {
            AckKind::PubAck => self.settled(ack, Qos::AtLeastOnce, cx),
            AckKind::PubRec if ack.reason.is_error() => self.settled(ack, Qos::ExactlyOnce, cx),
            AckKind::PubRec => self.received(ack, cx),
            AckKind::PubRel => {
                self.released(ack, cx);
                Ok(())
            }
            AckKind::PubComp => self.completed(ack, cx),
        }
    }

    /// What is said to a packet identifier that is not under way. In a session that goes on that is no error: the answer to it was
    /// lost with the earlier connection (sections 3.6.2.1 and 3.7.2.1).
    fn unknown(&self) -> Reason {
        match self.extras.present {
            true => Reason::Success,
            false => Reason::PacketIdentifierNotFound,
        }
    }

    /// The message is done with, for good or not [MQTT-4.4.0-2].
    fn settled(&mut self, ack: &Ack<'_>, wanted: Qos, cx: &mut StepContext<'_>) -> PacketResult {
        let Some(at) = self.state.position(ack.packet_id) else {
            return Ok(());
        };
        match self.state.inflight.get(at) {
            Some(inflight) if !inflight.released && inflight.qos == wanted => {}
            _ => return Err(mismatch(ack)),
        }
        self.acked(at, cx);
        self.send_waiting(cx);
        Ok(())
    }

    /// [MQTT-4.3.3-4]
    fn received(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        let at = self.state.position(ack.packet_id);
        let reason = match at.and_then(|at| self.state.inflight.get_mut(at)) {
            Some(inflight) => {
                if inflight.qos == Qos::AtLeastOnce {
                    return Err(mismatch(ack));
                }
                inflight.released = true;
                // The queue keeps its messages until PUBCOMP: a client that waits for PUBREL may have nothing else.
                if inflight.owed == MessageOwner::Nobody {
                    inflight.delivery = None;
                }
                Reason::Success
            }
            None => self.unknown(),
        };
        Ack::new(AckKind::PubRel, ack.packet_id, reason).encode(self.version, cx.packet());
        Ok(())
    }

    fn completed(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) -> PacketResult {
        if self.state.was_released(ack.packet_id) {
            self.send_waiting(cx);
            return Ok(());
        }
        let Some(at) = self.state.position(ack.packet_id) else {
            return Ok(());
        };
        if self.state.inflight.get(at).is_none_or(|i| !i.released) {
            return Err(mismatch(ack));
        }
        self.acked(at, cx);
        self.send_waiting(cx);
        Ok(())
    }

    /// [MQTT-4.3.3-11], [MQTT-4.3.3-12]
    fn released(&mut self, ack: &Ack<'_>, cx: &mut StepContext<'_>) {
        let reason = match self.state.forget_received(ack.packet_id) {
            true => Reason::Success,
            false => self.unknown(),
        };
        self.owe_less();
        Ack::new(AckKind::PubComp, ack.packet_id, reason).encode(self.version, cx.packet());
    }
}

fn mismatch(ack: &Ack<'_>) -> Failure {
    let text = format!(
        "{:?} for packet identifier {} does not fit what was sent with it",
        ack.kind, ack.packet_id
    );
    Failure::new(Reason::ProtocolError, text)
}
