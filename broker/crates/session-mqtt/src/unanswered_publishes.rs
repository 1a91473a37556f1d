//! QoS 2 publishes whose connection ended before queues and routers had confirmed them.
//!
//! The node continues to route these messages, so their packet identifiers remain received: the
//! client sends them again on its next connection, and they must not be delivered twice
//! [MQTT-4.3.3-10]. The confirms reach the session wherever it is, connected or parked. A rejected
//! message is forgotten, and is a new one when the client sends it again.

use crate::client_connection::{ClientConnection, PendingPublish, StepContext};
use crate::publish::retained_seq;
use crate::session::PacketResult;
use crate::shard_service::RouterAccess;
use crate::state::UnansweredPublish;
use codec_mqtt::Qos;
use env::planted::{self, Bug};
use metadata::{QueueId, Tree};
use queue::RejectReason;
use session::{
    ControlEvent, PublishTag, QueueNotification, ServiceNotification, SessionEvent, TagRange,
};
use std::collections::BTreeSet;

/// Maximum number of earlier connections that a connection waits for, so that a client that often
/// reconnects does not cost more each time.
const EARLIER_SESSIONS: usize = 16;

/// Returns the outcome of publishes from an event for their session: the tags, and true if they were
/// confirmed.
pub(crate) fn publish_answer(
    session_event: &SessionEvent,
    tree: &Tree,
) -> Option<(TagRange, bool)> {
    match session_event {
        SessionEvent::Queue(QueueNotification::Published { tag, .. }) => {
            Some(((*tag).into(), true))
        }
        SessionEvent::Service(ServiceNotification::Confirmed { tags }) => Some((*tags, true)),
        SessionEvent::Queue(QueueNotification::NotPublished { queue, tag, why }) => {
            Some(((*tag).into(), is_deleted(*queue, *why, tree)))
        }
        SessionEvent::Control(ControlEvent::Changed { token, result }) => {
            let seq = retained_seq(*token).filter(|seq| *seq != 0)?;
            Some((PublishTag(seq).into(), result.is_ok()))
        }
        _ => None,
    }
}

/// Handles an event for a connection that has ended while its last bytes are being written: passes
/// the outcomes of its publishes to the client's session.
pub(crate) fn forward_event(session_event: &SessionEvent, cx: &mut StepContext<'_>) {
    let Some((tags, accepted)) = publish_answer(session_event, cx.broker.tree()) else {
        return;
    };
    let session = cx.broker.id().number;
    if let Some(router) = cx.broker.router() {
        for tag in tags {
            router.answer_late(session, tag.0, accepted);
        }
    }
}

/// A queue that was deleted in the meantime does not reject the publish, as in RabbitMQ.
pub(crate) fn is_deleted(queue: QueueId, why: RejectReason, tree: &Tree) -> bool {
    why == RejectReason::Unavailable && tree.queue_by_id(queue).is_none()
}

impl ClientConnection {
    /// The connection ends: the session remembers the unanswered publishes.
    pub(crate) fn park_unconfirmed(&mut self, cx: &mut StepContext<'_>) {
        if self.unconfirmed.is_empty() {
            return;
        }
        let session = cx.broker.id().number;
        let mut answers = 0;
        for publish in std::mem::take(&mut self.unconfirmed) {
            let mut earlier = self.state.unanswered.iter_mut();
            if let Some(earlier) = earlier.find(|earlier| earlier.resent == Some(publish.seq)) {
                earlier.resent = None;
                continue;
            }
            answers += publish.missing_confirms;
            self.park_unanswered(session, &publish);
        }
        let answers = u32::try_from(answers).unwrap_or(u32::MAX);
        if !self.state.unanswered.is_empty()
            && answers > 0
            && let (Some(client), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        {
            router.expect_late_answers(client, session, answers);
        }
    }

    fn park_unanswered(&mut self, session: u64, publish: &PendingPublish) {
        if publish.qos != Qos::ExactlyOnce {
            return;
        }
        if publish.refused || planted::is(Bug::ForgetsReceivedId) {
            self.state.forget_received(publish.packet_id);
        } else if publish.missing_confirms > 0 {
            self.state.unanswered.push(UnansweredPublish {
                session,
                seq: publish.seq,
                packet_id: publish.packet_id,
                missing_confirms: publish.missing_confirms,
                resent: None,
            });
        }
    }

    /// Orders the next publishes behind those of earlier connections that queues have not answered
    /// yet [MQTT-4.6.0-5]. The session does not publish these again when the client sends them again.
    pub(crate) fn publish_after_earlier(&self, cx: &mut StepContext<'_>) {
        let sessions: BTreeSet<u64> = self.state.unanswered.iter().map(|u| u.session).collect();
        // Session numbers ascend, and the latest sessions may themselves wait for the others.
        for earlier in sessions.into_iter().rev().take(EARLIER_SESSIONS) {
            cx.broker.send_after(earlier);
        }
    }

    /// The client sends a publish again. Returns true if an earlier connection's publish is
    /// unanswered, so that PUBREC must wait.
    pub(crate) fn await_earlier_publish(&mut self, id: u16) -> bool {
        if self.state.unanswered.is_empty() {
            return false;
        }
        let seq = self.next_seq;
        let mut all = self.state.unanswered.iter_mut();
        let Some(earlier) = all.find(|earlier| earlier.packet_id == id) else {
            return false;
        };
        earlier.resent = Some(seq);
        self.next_seq += 1;
        self.unconfirmed.push_back(PendingPublish {
            seq,
            packet_id: id,
            qos: Qos::ExactlyOnce,
            missing_confirms: 1,
            refused: false,
            is_unroutable: false,
        });
        true
    }

    /// A publish of an earlier connection was confirmed or rejected.
    pub(crate) fn handle_late_answer(
        &mut self,
        (publisher, seq): (u64, u64),
        accepted: bool,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let answered = self.state.record_answer(publisher, seq, accepted);
        match answered.and_then(|publish| publish.resent) {
            Some(resent) => self.handle_confirm(resent, accepted, cx),
            None => Ok(()),
        }
    }
}
