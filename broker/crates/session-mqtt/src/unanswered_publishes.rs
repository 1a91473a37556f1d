//! Publishes of QoS 2 whose connection ends before queues and other hubs have answered.
//!
//! The node goes on routing them, so their packet identifiers stay received: the client sends them again on its next connection,
//! and they must not be delivered twice [MQTT-4.3.3-10]. Their answers reach the session wherever it is, connected or not. A
//! message that is refused is forgotten, and comes as a new one.

use crate::client_connection::{ClientConnection, PendingPublish, StepContext};
use crate::publish::retained_seq;
use crate::session::PacketResult;
use crate::state::UnansweredPublish;
use codec_mqtt::Qos;
use env::planted::{self, Bug};
use metadata::{QueueId, Tree};
use queue::RejectReason;
use session::SessionEvent;
use std::collections::BTreeSet;

/// Earlier connections that a connection waits for: a client that comes back often does not cost more with each time.
const EARLIER_SESSIONS: usize = 16;

/// The outcome of one publish in a notice for its session: the number, and whether it was accepted.
pub fn publish_answer(session_event: &SessionEvent, tree: &Tree) -> Option<(u64, bool)> {
    match session_event {
        SessionEvent::Published { tag, .. } | SessionEvent::Heard { tag } => Some((tag.tag, true)),
        SessionEvent::NotPublished { queue, tag, why } => {
            Some((tag.tag, is_deleted(*queue, *why, tree)))
        }
        SessionEvent::Changed { token, result } => {
            let seq = retained_seq(*token).filter(|seq| *seq != 0)?;
            Some((seq, result.is_ok()))
        }
        _ => None,
    }
}

/// A notice for a connection that has ended and whose last bytes are still being written: the client's session hears answers to
/// its publishes.
pub(crate) fn pass_on(session_event: &SessionEvent, cx: &mut StepContext<'_>) {
    let Some((tag, taken)) = publish_answer(session_event, cx.broker.tree()) else {
        return;
    };
    let session = cx.broker.id().number;
    if let Some(router) = cx.broker.topics() {
        router.answer_late(session, tag, taken);
    }
}

/// A queue that was deleted meanwhile is no reason to refuse: RabbitMQ's rule.
pub(crate) fn is_deleted(queue: QueueId, why: RejectReason, tree: &Tree) -> bool {
    why == RejectReason::Unavailable && tree.queue_by_id(queue).is_none()
}

impl ClientConnection {
    /// The connection ends: the session remembers the publishes that are not answered.
    pub(crate) fn keep_unconfirmed(&mut self, cx: &mut StepContext<'_>) {
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
            answers += publish.left;
            self.keep_unanswered(session, &publish);
        }
        let answers = u32::try_from(answers).unwrap_or(u32::MAX);
        if !self.state.unanswered.is_empty()
            && answers > 0
            && let (Some(client), Some(router)) = (self.subscriber.known(), cx.broker.topics())
        {
            router.expect_late_answers(client, session, answers);
        }
    }

    fn keep_unanswered(&mut self, session: u64, publish: &PendingPublish) {
        if publish.qos != Qos::ExactlyOnce {
            return;
        }
        if publish.refused || planted::is(Bug::ForgetsReceivedId) {
            self.state.forget_received(publish.packet_id);
        } else if publish.left > 0 {
            self.state.unanswered.push(UnansweredPublish {
                session,
                seq: publish.seq,
                packet_id: publish.packet_id,
                left: publish.left,
                resent: None,
            });
        }
    }

    /// The next publishes must not overtake those of earlier connections that queues have yet to answer [MQTT-4.6.0-5]. They are not
    /// published anew when the client sends them again.
    pub(crate) fn publish_after_earlier(&self, cx: &mut StepContext<'_>) {
        let sessions: BTreeSet<u64> = self.state.unanswered.iter().map(|u| u.session).collect();
        // Numbers ascend, and the latest sessions may wait for the others.
        for earlier in sessions.into_iter().rev().take(EARLIER_SESSIONS) {
            cx.broker.send_after(earlier);
        }
    }

    /// The client sends a message again. True: an earlier connection's publish is not answered yet, and PUBREC waits for that.
    pub(crate) fn await_earlier(&mut self, id: u16) -> bool {
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
            left: 1,
            refused: false,
            lonely: false,
        });
        true
    }

    /// A publish of an earlier connection was answered.
    pub(crate) fn answered_late(
        &mut self,
        (publisher, seq): (u64, u64),
        taken: bool,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let answered = self.state.answered(publisher, seq, taken);
        match answered.and_then(|publish| publish.resent) {
            Some(resent) => self.confirmed(resent, taken, cx),
            None => Ok(()),
        }
    }
}
