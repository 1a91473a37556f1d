//! How a connection ends (sections 3.14 and 4.13), and what becomes of the will and of the session.

use crate::client_connection::{ClientConnection, StepContext};
use crate::handover::SentEarlier;
use crate::publish::publish_will;
use crate::rare_state::PreviousRelease;
use crate::session::{ClientPhase, Failure, MqttSession, PacketResult, Phase};
use crate::state::ParkedState;
use bytes::BytesMut;
use codec_mqtt::{ConnAck, Disconnect, Properties, Reason};
use env::Time;
use std::time::Duration;
use topics::{SessionRelease, Will};

impl MqttSession {
    /// The client says goodbye.
    pub(crate) fn disconnected(
        &mut self,
        disconnect: &Disconnect<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if !may_come_from_client(disconnect.reason)
            || disconnect.properties.server_reference.is_some()
        {
            let text = "only a server disconnects like this";
            return Err(Failure::new(Reason::ProtocolError, text));
        }
        let expiry = disconnect.properties.session_expiry;
        if let (Some(link), Some(expiry)) = (self.client.known_mut(), expiry) {
            // Section 3.14.2.2.2
            if link.extras.session_expiry == 0 && expiry > 0 {
                let text = "a session that ends with its connection cannot be kept";
                return Err(Failure::new(Reason::ProtocolError, text));
            }
            let most = link.settings.limits.session_expiry;
            if expiry.min(most) != link.extras.session_expiry {
                link.extras.session_expiry = expiry.min(most);
            }
        }
        // [MQTT-3.14.4-3]
        self.leave(disconnect.reason == Reason::Success, cx);
        Ok(())
    }

    /// Another connection has the client id now.
    pub(crate) fn taken_over(&mut self, cx: &mut StepContext<'_>) {
        self.forgo_will(cx);
        match self.phase {
            Phase::Running => {
                let text = "another connection has this client id";
                self.fail(Failure::new(Reason::SessionTakenOver, text), cx);
            }
            _ => self.end_silently("another connection has this client id", cx),
        }
    }

    /// The connection ends because this node was out of reach, and another one may have published its will for that.
    pub(crate) fn forgo_will(&mut self, cx: &mut StepContext<'_>) {
        if let Some(link) = self.client.known_mut()
            && let (Some(subscriber), Some(router)) =
                (link.subscriber.to_option(), cx.broker.topics())
            && router.will_was_published(subscriber)
        {
            // What was published is that of the connection that was let in last.
            match link.extras.waited_mut() {
                Some(waited) => waited.will = None,
                None => link.extras.drop_will(),
            }
        }
    }

    /// Says why, where the client can be told, and ends.
    pub(crate) fn fail(&mut self, failure: Failure, cx: &mut StepContext<'_>) {
        let Failure { reason, text } = failure;
        tracing::info!(peer = %cx.broker.peer(), reason = reason.text(), text, "MQTT connection ends");
        let room = self.client.max_packet();
        let told = Properties {
            reason_string: Some(&text),
            ..Properties::default()
        };
        let mut packet = BytesMut::new();
        let plain = Properties::default();
        for properties in [told, plain] {
            packet.clear();
            match self.phase {
                // [MQTT-3.14.0-1]: before CONNACK there is no DISCONNECT.
                Phase::Connecting
                | Phase::Verifying
                | Phase::Learning
                | Phase::Claiming
                | Phase::Opening => ConnAck {
                    session_present: false,
                    reason,
                    properties,
                }
                .encode(self.version, &mut packet),
                Phase::Running if self.version.is_5() => {
                    Disconnect { reason, properties }.encode(self.version, &mut packet);
                }
                _ => {}
            }
            // [MQTT-3.2.2-19], [MQTT-3.14.2-3]: rather without the text than too long.
            if packet.len() <= room {
                cx.packet().extend_from_slice(&packet);
                break;
            }
        }
        self.leave(false, cx);
    }

    /// Ends without a word.
    pub(crate) fn end_silently(&mut self, why: &str, cx: &mut StepContext<'_>) {
        tracing::info!(peer = %cx.broker.peer(), why, "MQTT connection ends");
        self.leave(false, cx);
    }

    /// Gives up the client id; keeps the session and publishes the will as they ask. Once.
    pub(crate) fn leave(&mut self, said_goodbye: bool, cx: &mut StepContext<'_>) {
        let (claiming, opening) = (self.phase == Phase::Claiming, self.phase == Phase::Opening);
        self.phase = Phase::Ended;
        let ClientPhase::Known(mut link) = std::mem::replace(&mut self.client, ClientPhase::Gone)
        else {
            return;
        };
        link.uncount(cx);
        if opening {
            return link.step_back(cx);
        }
        if claiming {
            let number = cx.broker.id().number;
            if let (Some(router), Some(name)) = (cx.broker.topics(), &link.extras.client_id) {
                router.withdraw(&link.account.vhost, name, number);
            }
            return;
        }
        link.leave(said_goodbye, cx);
    }
}

impl ClientConnection {
    /// Another node is to publish the will if this one dies.
    pub(crate) fn tell_will(&self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.topics())
        else {
            return;
        };
        if let Some(waited) = &self.extras.waited {
            if let Some((at, will)) = &waited.will {
                router.replicate_will(subscriber, will, seconds_until(now, *at));
            }
        } else if let Some(waits) = &self.extras.will {
            // [MQTT-3.1.2-8]
            let delay = waits.delay.min(self.extras.session_expiry);
            router.replicate_will(subscriber, &waits.will, delay);
        }
    }

    /// The client is let in: what waited for the end of its session does so no more [MQTT-3.1.3-9].
    pub(crate) fn comes_back(&mut self, cx: &mut StepContext<'_>) {
        if let Some(waited) = self.extras.take_waited()
            && let (Some(subscriber), Some(router)) =
                (self.subscriber.to_option(), cx.broker.topics())
        {
            router.session_resumed(subscriber, waited.will);
        }
        self.agree_on_expiry(cx);
    }

    /// The connection had the client id and is not let in: the session is as it was.
    fn step_back(mut self, cx: &mut StepContext<'_>) {
        let waited = self.extras.waited.take().map(|waited| *waited);
        let (until, will) = match waited {
            Some(PreviousRelease { until, will }) => (until, will),
            // It is new here.
            None => {
                let seconds = self.extras.session_expiry.max(1);
                let until = (seconds < u32::MAX).then(|| after(cx.broker.now(), seconds));
                (until, None)
            }
        };
        self.park(until, will, cx);
    }

    fn leave(mut self, said_goodbye: bool, cx: &mut StepContext<'_>) {
        let Some(subscriber) = self.subscriber.to_option() else {
            return;
        };
        let now = cx.broker.now();
        let expiry = self.extras.session_expiry;
        let will = match self.extras.will {
            Some(_) if !said_goodbye => self.extras.will.take(),
            _ => None,
        };
        let delayed = will.and_then(|delayed| {
            let delayed = *delayed;
            // The session's end comes first if it is earlier [MQTT-3.1.2-8].
            match delayed.delay.min(expiry) {
                0 => {
                    publish_will(cx.broker, &self.account.vhost, delayed.will);
                    None
                }
                seconds => Some((after(now, seconds), delayed.will)),
            }
        });
        if expiry == 0 {
            self.leave_queue(cx);
            self.delete_own_queue(cx);
            if let Some(router) = cx.broker.topics() {
                let leave = SessionRelease {
                    undelivered: self.state.take_undelivered(),
                    ..SessionRelease::default()
                };
                router.leave(subscriber, leave);
            }
            return;
        }
        self.agree_on_expiry(cx);
        let until = (expiry < u32::MAX).then(|| after(now, expiry));
        self.park(until, delayed, cx);
    }

    /// The session waits for its client.
    fn park(mut self, until: Option<Time>, will: Option<(Time, Will)>, cx: &mut StepContext<'_>) {
        let Some(subscriber) = self.subscriber.to_option() else {
            return;
        };
        self.keep_unconfirmed(cx);
        let stored = self.extras.stored.as_deref();
        let fence = match self.extras.pending {
            None => stored.map_or(0, |stored| stored.fence),
            Some(_) => 0,
        };
        let epoch = stored.and_then(|stored| stored.epoch);
        let sent_earlier = stored.map(|stored| stored.sent_earlier.clone());
        let mut sent_earlier = sent_earlier.unwrap_or(SentEarlier::NOTHING);
        for mark in self.state.unsent_again() {
            sent_earlier.add(mark);
        }
        let settled = self.leave_queue(cx);
        self.state.rewind();
        let kept = ParkedState {
            queue: self.queue(),
            state: self.state,
            ids: self.ids,
            settled,
            epoch,
            sent_earlier,
            fence,
            settings: self.settings,
        };
        let leave = SessionRelease {
            state: Some(Box::new(kept)),
            until,
            will,
            ..SessionRelease::default()
        };
        if let Some(router) = cx.broker.topics() {
            router.leave(subscriber, leave);
        }
    }
}

/// Of the reasons of a DISCONNECT those that clients give (section 3.14.2.1).
fn may_come_from_client(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Success
            | Reason::DisconnectWithWill
            | Reason::UnspecifiedError
            | Reason::MalformedPacket
            | Reason::ProtocolError
            | Reason::ImplementationSpecificError
            | Reason::TopicNameInvalid
            | Reason::ReceiveMaximumExceeded
            | Reason::TopicAliasInvalid
            | Reason::PacketTooLarge
            | Reason::MessageRateTooHigh
            | Reason::QuotaExceeded
            | Reason::AdministrativeAction
            | Reason::PayloadFormatInvalid
    )
}

fn seconds_until(now: Time, at: Time) -> u32 {
    u32::try_from(at.since(now).as_secs()).unwrap_or(u32::MAX)
}

fn after(now: Time, seconds: u32) -> Time {
    now + Duration::from_secs(seconds.into())
}
