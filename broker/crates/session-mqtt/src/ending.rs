//! The end of a connection (sections 3.14 and 4.13): publishes the will, and parks or ends the
//! session.

use crate::client_connection::{ClientConnection, StepContext};
use crate::handover::{EarlierSentMessages, encode_ended};
use crate::publish::publish_will;
use crate::rare_state::PreviousRelease;
use crate::session::{ClientPhase, ConnectionFailure, MqttSession, PacketResult, SessionPhase};
use crate::shard_service::RouterAccess;
use crate::state::ParkedState;
use bytes::BytesMut;
use codec_mqtt::{ConnAck, Disconnect, Properties, ReasonCode};
use env::Time;
use std::time::Duration;
use topics::{SessionRelease, Will};

impl MqttSession {
    /// Handles DISCONNECT from the client.
    pub(crate) fn handle_disconnect(
        &mut self,
        disconnect: &Disconnect<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if !is_client_reason(disconnect.reason) || disconnect.properties.server_reference.is_some()
        {
            let text = "only a server disconnects like this";
            return Err(ConnectionFailure::new(ReasonCode::ProtocolError, text));
        }
        let expiry = disconnect.properties.session_expiry;
        if let (Some(connection), Some(expiry)) = (self.client.connection_mut(), expiry) {
            // Section 3.14.2.2.2
            if connection.rare.session_expiry == 0 && expiry > 0 {
                let text = "a session that ends with its connection cannot be kept";
                return Err(ConnectionFailure::new(ReasonCode::ProtocolError, text));
            }
            let most = connection.settings.limits.session_expiry;
            if expiry.min(most) != connection.rare.session_expiry {
                connection.rare.session_expiry = expiry.min(most);
            }
        }
        // [MQTT-3.14.4-3]
        self.leave(disconnect.reason == ReasonCode::Success, cx);
        Ok(())
    }

    /// Another connection has taken over the client id.
    pub(crate) fn handle_takeover(&mut self, cx: &mut StepContext<'_>) {
        self.drop_published_will(cx);
        match self.phase {
            SessionPhase::Running => {
                let text = "another connection has this client id";
                self.fail(
                    ConnectionFailure::new(ReasonCode::SessionTakenOver, text),
                    cx,
                );
            }
            _ => self.close_silently("another connection has this client id", cx),
        }
    }

    /// Drops the will if another node may have published it because this node was unreachable.
    pub(crate) fn drop_published_will(&mut self, cx: &mut StepContext<'_>) {
        if let Some(connection) = self.client.connection_mut()
            && let (Some(subscriber), Some(router)) =
                (connection.subscriber.to_option(), cx.broker.router())
            && router.will_was_published(subscriber)
        {
            // The published will is that of the connection that was accepted last.
            match connection.rare.previous_mut() {
                Some(previous) => previous.will = None,
                None => connection.rare.drop_will(),
            }
        }
    }

    /// Ends the connection and sends the reason if the client can receive it.
    pub(crate) fn fail(&mut self, failure: ConnectionFailure, cx: &mut StepContext<'_>) {
        let ConnectionFailure { reason, text } = failure;
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
                // [MQTT-3.14.0-1]: no DISCONNECT before CONNACK.
                SessionPhase::Connecting
                | SessionPhase::Verifying
                | SessionPhase::Learning
                | SessionPhase::Claiming
                | SessionPhase::Opening => ConnAck {
                    session_present: false,
                    reason,
                    properties,
                }
                .encode(self.version, &mut packet),
                SessionPhase::Running if self.version.is_5() => {
                    Disconnect { reason, properties }.encode(self.version, &mut packet);
                }
                _ => {}
            }
            // [MQTT-3.2.2-19], [MQTT-3.14.2-3]: omit the reason string if the packet would be too
            // large.
            if packet.len() <= room {
                cx.packet().extend_from_slice(&packet);
                break;
            }
        }
        self.leave(false, cx);
    }

    /// Ends the connection without sending a reason.
    pub(crate) fn close_silently(&mut self, why: &str, cx: &mut StepContext<'_>) {
        tracing::info!(peer = %cx.broker.peer(), why, "MQTT connection ends");
        self.leave(false, cx);
    }

    /// Releases the client id, parks or ends the session and publishes the will as required. Has an
    /// effect only once.
    pub(crate) fn leave(&mut self, is_normal_disconnect: bool, cx: &mut StepContext<'_>) {
        let (claiming, opening) = (
            self.phase == SessionPhase::Claiming,
            self.phase == SessionPhase::Opening,
        );
        self.phase = SessionPhase::Ended;
        let ClientPhase::Known(mut connection) =
            std::mem::replace(&mut self.client, ClientPhase::Gone)
        else {
            return;
        };
        connection.uncount(cx);
        if opening {
            return connection.restore_session(cx);
        }
        if claiming {
            let number = cx.broker.id().number;
            if let (Some(router), Some(name)) = (cx.broker.router(), &connection.rare.client_id) {
                router.withdraw(&connection.account.vhost, name, number);
            }
            return;
        }
        connection.leave(is_normal_disconnect, cx);
    }
}

impl ClientConnection {
    /// Replicates the will, so that another node publishes it if this one fails.
    pub(crate) fn replicate_will(&self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        else {
            return;
        };
        if let Some(previous) = &self.rare.previous_release {
            if let Some((at, will)) = &previous.will {
                router.replicate_will(subscriber, will, seconds_until(now, *at));
            }
        } else if let Some(waits) = &self.rare.will {
            // [MQTT-3.1.2-8]
            let delay = waits.delay.min(self.rare.session_expiry);
            router.replicate_will(subscriber, &waits.will, delay);
        }
    }

    /// The connection was accepted: cancels the pending will and expiry of its session
    /// [MQTT-3.1.3-9].
    pub(crate) fn resume_session(&mut self, cx: &mut StepContext<'_>) {
        if let Some(previous) = self.rare.take_previous()
            && let (Some(subscriber), Some(router)) =
                (self.subscriber.to_option(), cx.broker.router())
        {
            router.session_resumed(subscriber, previous.will);
        }
        self.update_queue_expiry(cx);
    }

    /// The connection got the client id but was rejected: restores the session.
    fn restore_session(mut self, cx: &mut StepContext<'_>) {
        let previous = self.rare.previous_release.take().map(|previous| *previous);
        let (until, will) = match previous {
            Some(PreviousRelease { until, will }) => (until, will),
            // The session is new on this router.
            None => {
                let seconds = self.rare.session_expiry.max(1);
                let until = (seconds < u32::MAX).then(|| after(cx.broker.now(), seconds));
                (until, None)
            }
        };
        self.park(until, will, cx);
    }

    fn leave(mut self, is_normal_disconnect: bool, cx: &mut StepContext<'_>) {
        let Some(subscriber) = self.subscriber.to_option() else {
            return;
        };
        let now = cx.broker.now();
        let expiry = self.rare.session_expiry;
        let will = match self.rare.will {
            Some(_) if !is_normal_disconnect => self.rare.will.take(),
            _ => None,
        };
        let delayed = will.and_then(|delayed| {
            let delayed = *delayed;
            // The will is due at the end of the session if that is earlier [MQTT-3.1.2-8].
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
            let handover = self.queue().map(encode_ended).unwrap_or_default();
            if let Some(router) = cx.broker.router() {
                let leave = SessionRelease {
                    handover,
                    undelivered: self.state.take_undelivered(),
                    ..SessionRelease::default()
                };
                router.leave(subscriber, leave);
            }
            return;
        }
        self.update_queue_expiry(cx);
        let until = (expiry < u32::MAX).then(|| after(now, expiry));
        self.park(until, delayed, cx);
    }

    /// Parks the session until its client comes back.
    fn park(mut self, until: Option<Time>, will: Option<(Time, Will)>, cx: &mut StepContext<'_>) {
        let Some(subscriber) = self.subscriber.to_option() else {
            return;
        };
        self.park_unconfirmed(cx);
        let stored = self.rare.stored.as_deref();
        let fence = match self.rare.pending {
            None => stored.map_or(0, |stored| stored.fence),
            Some(_) => 0,
        };
        let epoch = stored.and_then(|stored| stored.epoch);
        let sent_earlier = stored.map(|stored| stored.sent_earlier.clone());
        let mut sent_earlier = sent_earlier.unwrap_or(EarlierSentMessages::NOTHING);
        for mark in self.state.pending_redeliveries() {
            sent_earlier.add(mark);
        }
        let settled = self.leave_queue(cx);
        self.state.prepare_resend();
        let parked = ParkedState {
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
            state: Some(Box::new(parked)),
            until,
            will,
            ..SessionRelease::default()
        };
        if let Some(router) = cx.broker.router() {
            router.leave(subscriber, leave);
        }
    }
}

/// Returns true for the reason codes that clients may send in DISCONNECT (section 3.14.2.1).
fn is_client_reason(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::Success
            | ReasonCode::DisconnectWithWill
            | ReasonCode::UnspecifiedError
            | ReasonCode::MalformedPacket
            | ReasonCode::ProtocolError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::TopicNameInvalid
            | ReasonCode::ReceiveMaximumExceeded
            | ReasonCode::TopicAliasInvalid
            | ReasonCode::PacketTooLarge
            | ReasonCode::MessageRateTooHigh
            | ReasonCode::QuotaExceeded
            | ReasonCode::AdministrativeAction
            | ReasonCode::PayloadFormatInvalid
    )
}

fn seconds_until(now: Time, at: Time) -> u32 {
    u32::try_from(at.since(now).as_secs()).unwrap_or(u32::MAX)
}

fn after(now: Time, seconds: u32) -> Time {
    now + Duration::from_secs(seconds.into())
}
