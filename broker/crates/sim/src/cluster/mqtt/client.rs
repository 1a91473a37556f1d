//! An MQTT client: its connection, the connections that it abandoned, and its view of its session.

mod actions;

use super::super::client::Link;
use super::dying_node::{DyingClients, Fate};
use super::expiring_session::ExpiringSession;
use super::inbound::Inbound;
use super::oracle::{MqttOracle, QueueLookup};
use super::outbound::{AnswerOutcome, Draft, Outbound};
use super::retained::RetainedOracle;
use super::routes::ShardIncarnation;
use super::tracked_message::MessageId;
use super::wire::{MqttConnection, ServerMessage};
use codec_mqtt::{
    AckKind, Connect, Disconnect, Packet, Properties, Qos, ReasonCode, Version, Will as WillPacket,
};
use env::{NodeId, SeededRng, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// The behaviour of a client.
#[derive(Clone, Debug, Default)]
pub(super) struct MqttClientPlan {
    pub client: String,
    /// Its session survives its connections.
    pub is_persistent: bool,
    pub filters: Vec<(&'static str, Qos)>,
    /// A filter that it subscribes to and unsubscribes from repeatedly.
    pub toggled_filter: Option<(&'static str, Qos)>,
    /// It connects with Clean Start at times.
    pub starts_clean: bool,
    /// It publishes, and its retained messages are under this name.
    pub publisher_name: Option<&'static str>,
    pub has_will: bool,
    /// Its session expires, and it stays away for shorter or longer than that.
    pub expiring_session: bool,
    /// It inspects the retained messages once, on this shard of this machine.
    pub inspects_retained: Option<(NodeId, u64)>,
    /// It connects once, to a machine that will be killed.
    pub dying_node: Option<DyingClients>,
}

/// Contents of a CONNECT packet.
pub(super) struct ConnectOffer {
    /// Session Expiry Interval in seconds.
    pub expiry: u32,
    pub will: Option<MessageId>,
    /// Topic and delay interval (seconds) of the will.
    pub topic: &'static str,
    pub delay: Option<u32>,
}

/// A connection that its client abandoned without DISCONNECT.
pub(super) struct AbandonedConnection {
    pub link: Link<MqttConnection>,
    /// When the client's next connection was accepted.
    pub since: Option<Time>,
}

/// The parts of the run that a client accesses while it acts.
pub(super) struct RunContext<'a> {
    pub now: Time,
    /// When the faults ended.
    pub faults_ended_at: Option<Time>,
    /// A subscriber waits for messages.
    pub has_waiting_subscribers: bool,
    pub mqtt_oracle: &'a mut MqttOracle,
    pub retained: &'a mut RetainedOracle,
    pub find_bound_queue: QueueLookup<'a>,
}

/// What a client wants to do with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientAction {
    Continue,
    Disconnect,
    /// Open a new connection and abandon the old one.
    Reconnect,
}

/// A message that was published, by its number.
struct SentMessage {
    id: Option<MessageId>,
    /// Number of the retained write.
    write: Option<u64>,
    /// The client's epoch when it was sent first.
    epoch: u64,
}

pub(super) struct MqttClient {
    pub number: usize,
    pub plan: MqttClientPlan,
    pub rng: SeededRng,
    pub link: Option<Link<MqttConnection>>,
    pub abandoned: Vec<AbandonedConnection>,
    /// The shard of the last connection.
    pub location: Option<ShardIncarnation>,
    /// Number of times the client connected to another shard than before.
    pub(super) epoch: u64,
    /// Its next connection requests Clean Start.
    pub(super) clean_start: bool,
    inbound: Inbound,
    outbound: Outbound,
    sent: BTreeMap<u64, SentMessage>,
    /// QoS 0 messages that were sent on this connection.
    unanswered: Vec<MessageId>,
    last_sent_number: u64,
    streams: u32,
    stream: Option<u32>,
    stream_messages: u32,
    /// Filters of the SUBSCRIBE that has no answer yet.
    pending_filters: Vec<String>,
    is_unsubscribing: bool,
    pub(super) will: Option<MessageId>,
    pub(super) fate: Fate,
    pub(super) expiring_session: ExpiringSession,
    pub(super) final_phase: FinalPhase,
    pub found: BTreeMap<String, MessageId>,
}

/// Progress of a client after the faults have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct FinalPhase {
    /// It has reconnected once.
    pub(super) has_reconnected: bool,
    /// Number of times that it closed its connection right after PUBLISH.
    cut_connections: u32,
    /// Number of cancelled wills, and of wills that were left.
    cancelled_wills: u32,
    left_wills: u32,
    /// Number of its final retained messages that are written.
    written_retained: u32,
    last_round: Option<Time>,
    /// See [`MqttClientPlan::inspects_retained`].
    has_pinged: bool,
    has_inspected: bool,
}

impl MqttClient {
    pub(super) fn new(number: usize, plan: MqttClientPlan, rng: SeededRng) -> MqttClient {
        MqttClient {
            number,
            plan,
            rng,
            link: None,
            abandoned: Vec::new(),
            location: None,
            epoch: 0,
            clean_start: false,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            sent: BTreeMap::new(),
            unanswered: Vec::new(),
            last_sent_number: 0,
            streams: (number as u32) << 16,
            stream: None,
            stream_messages: 0,
            pending_filters: Vec::new(),
            is_unsubscribing: false,
            will: None,
            fate: Fate::default(),
            expiring_session: ExpiringSession::default(),
            final_phase: FinalPhase::default(),
            found: BTreeMap::new(),
        }
    }

    /// After the faults it closes its connection right after PUBLISH, and sends the messages again.
    fn cuts_connection(&self) -> bool {
        self.plan.publisher_name.is_some() && self.plan.is_persistent
    }

    /// Its next connection goes to the shard of the last one, whose session knows the packet identifiers of its
    /// publishes.
    pub(super) fn returns_to_shard(&self) -> bool {
        self.cuts_connection() && self.final_phase.cut_connections > 0
    }

    /// The queue of its session, if the session survives connections.
    pub(super) fn queue(&self) -> Option<String> {
        let MqttClientPlan {
            is_persistent,
            client,
            ..
        } = &self.plan;
        is_persistent.then(|| format!("mqtt-subscription-{client}qos1"))
    }

    fn next_message(&mut self) -> MessageId {
        let streams = &mut self.streams;
        let stream = *self.stream.get_or_insert_with(|| {
            *streams += 1;
            *streams
        });
        self.stream_messages += 1;
        MessageId::new(stream, self.stream_messages)
    }

    /// A message in a stream of its own.
    pub(super) fn single_message(&mut self) -> MessageId {
        self.streams += 1;
        MessageId::new(self.streams, 1)
    }

    /// The contents of its next CONNECT.
    fn offer(&mut self, cx: &mut RunContext<'_>) -> ConnectOffer {
        if self.plan.expiring_session {
            return self.expiring_session_offer(cx);
        }
        let will = self.plan.has_will.then(|| self.next_message());
        if let Some(id) = will {
            cx.mqtt_oracle.will_set(cx.now, id, WILL_TOPIC);
        }
        ConnectOffer {
            expiry: if self.plan.is_persistent {
                LONG_EXPIRY
            } else {
                0
            },
            will,
            topic: WILL_TOPIC,
            delay: None,
        }
    }

    /// A connection to this shard begins.
    pub(super) fn begin_connection(
        &mut self,
        link: Link<MqttConnection>,
        location: ShardIncarnation,
        cx: &mut RunContext<'_>,
    ) {
        if self.location.replace(location) != Some(location) {
            self.epoch += 1;
        }
        self.pending_filters.clear();
        self.is_unsubscribing = false;
        let offer = self.offer(cx);
        self.will = offer.will;
        let payload = offer.will.map(MessageId::payload).unwrap_or_default();
        let mut link = link;
        link.wire.send(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: !self.plan.is_persistent || self.clean_start,
            keep_alive: 0,
            properties: Properties {
                session_expiry: Some(offer.expiry),
                ..Properties::default()
            },
            client_id: &self.plan.client,
            will: offer.will.map(|_| WillPacket {
                qos: Qos::AtLeastOnce,
                retain: false,
                properties: Properties {
                    will_delay: offer.delay,
                    ..Properties::default()
                },
                topic: offer.topic,
                payload: &payload,
            }),
            user_name: Some(super::super::amqp::USER),
            password: Some(super::super::amqp::PASSWORD.as_bytes()),
        }));
        self.link = Some(link);
    }

    /// The connection has ended or is abandoned. A clean session ends with it.
    pub(super) fn end_connection(
        &mut self,
        cx: &mut RunContext<'_>,
    ) -> Option<Link<MqttConnection>> {
        let link = self.link.take()?;
        for id in self.unanswered.drain(..) {
            cx.mqtt_oracle.abandoned(cx.now, link.connection, id);
        }
        self.leave_dying_node(cx);
        if self.plan.expiring_session {
            self.expiring_session_disconnected(link.open, cx);
        }
        if !self.plan.is_persistent {
            self.forget_session(cx);
        }
        Some(link)
    }

    /// The session has ended.
    fn forget_session(&mut self, cx: &mut RunContext<'_>) {
        self.forget_open_publishes(cx);
        cx.mqtt_oracle.session_ended(self.number);
    }

    /// Records that the outcome of all open publishes will not be known.
    fn forget_open_publishes(&mut self, cx: &mut RunContext<'_>) {
        self.inbound.begin_connection(false);
        for number in self.outbound.forget() {
            self.record_unknown(number, cx);
        }
        self.stream = None;
    }

    fn record_unknown(&mut self, number: u64, cx: &mut RunContext<'_>) {
        let Some(sent) = self.sent.get(&number) else {
            return;
        };
        if let Some(id) = sent.id {
            cx.mqtt_oracle.unknown(id);
        }
        if let Some(write) = sent.write {
            cx.retained.record_unknown(write);
        }
    }

    fn handle_connack(&mut self, present: bool, cx: &mut RunContext<'_>) -> Result<(), String> {
        if let Some(link) = &mut self.link {
            link.open = true;
        }
        for connection in &mut self.abandoned {
            connection.since.get_or_insert(cx.now);
        }
        cx.mqtt_oracle.accepted(cx.now, self.number);
        let clean_start = std::mem::take(&mut self.clean_start);
        let is_other_session = self.plan.expiring_session
            && self.expiring_session_accepted((present, clean_start), cx)?;
        if present && (clean_start || !self.plan.is_persistent) {
            return Err("the server has a session that should not exist".to_owned());
        }
        if !self.plan.is_persistent {
            return Ok(());
        }
        if !present {
            let subscribed = cx.mqtt_oracle.is_subscribed(self.number);
            if !clean_start && !self.plan.expiring_session && subscribed {
                return Err("the session is gone".to_owned());
            }
            if clean_start || self.plan.expiring_session && subscribed {
                self.forget_session(cx);
            } else {
                // An earlier SUBSCRIBE without an answer may still take effect.
                self.forget_open_publishes(cx);
            }
            return Ok(());
        }
        if is_other_session {
            self.forget_session(cx);
            cx.mqtt_oracle.session_is_uncertain(self.number);
            self.subscribe(cx);
        }
        self.inbound.begin_connection(true);
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        for number in self.outbound.resume(&mut link.wire) {
            let Some(sent) = self.sent.get(&number) else {
                continue;
            };
            match sent.id {
                Some(id) if sent.epoch == self.epoch => {
                    cx.mqtt_oracle
                        .sent_again_in_session(cx.now, id, cx.find_bound_queue);
                }
                Some(id) => cx.mqtt_oracle.sent_again(cx.now, id, cx.find_bound_queue),
                None => {}
            }
            if let Some(write) = sent.write {
                cx.retained.record_unknown(write);
            }
        }
        Ok(())
    }

    /// A packet has arrived.
    pub(super) fn on_message(
        &mut self,
        message: ServerMessage,
        cx: &mut RunContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Accepted { present } => self.handle_connack(present, cx),
            ServerMessage::Refused(ReasonCode::AdministrativeAction)
            | ServerMessage::Ended(ReasonCode::AdministrativeAction)
                if self.plan.expiring_session =>
            {
                self.expiring_session_ended(cx)
            }
            ServerMessage::Refused(reason) => may_refuse(reason),
            ServerMessage::Ended(reason) => {
                // This is the client's newest connection, so no other one took the session over. Nodes that could not
                // reach each other both held the session, and because a clock had jumped, this holding counts as the
                // older one. The session has been on another node since.
                self.epoch += u64::from(reason == ReasonCode::SessionTakenOver);
                may_end(reason)
            }
            ServerMessage::Message(publish) => {
                if !self.inbound.received(&publish) {
                    return Ok(());
                }
                if publish.retained && self.plan.inspects_retained.is_some() {
                    let id = MessageId::read(&publish.payload)?;
                    self.found.insert(publish.topic.clone(), id);
                }
                cx.mqtt_oracle
                    .received(cx.now, self.number, &publish, self.epoch)
            }
            ServerMessage::Ack {
                kind: AckKind::PubRel,
                packet_id,
                ..
            } => {
                self.inbound.pubrel_received(packet_id);
                Ok(())
            }
            ServerMessage::Ack {
                kind,
                packet_id,
                reason,
            } => self.handle_answer((kind, packet_id, reason), cx),
            ServerMessage::Subscribed { granted } => {
                let filters = std::mem::take(&mut self.pending_filters);
                if filters.len() != granted.len() {
                    return Err("SUBACK does not match the filters of SUBSCRIBE".to_owned());
                }
                let granted = filters.iter().zip(granted).filter(|(_, granted)| *granted);
                granted.for_each(|(filter, _)| {
                    cx.mqtt_oracle
                        .subscribed(cx.now, self.number, filter, cx.find_bound_queue)
                });
                Ok(())
            }
            ServerMessage::Unsubscribed => {
                self.is_unsubscribing = false;
                Ok(())
            }
            ServerMessage::PingResponse => {
                self.final_phase.has_inspected = true;
                Ok(())
            }
        }
    }

    fn handle_answer(
        &mut self,
        answer: (AckKind, u16, ReasonCode),
        cx: &mut RunContext<'_>,
    ) -> Result<(), String> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let number = match self.outbound.handle_answer(&mut link.wire, answer)? {
            AnswerOutcome::Nothing => return Ok(()),
            AnswerOutcome::Rejected(number) => {
                self.record_unknown(number, cx);
                return Ok(());
            }
            AnswerOutcome::Acknowledged(number) => number,
        };
        let Some(sent) = self.sent.get(&number) else {
            return Ok(());
        };
        if let Some(id) = sent.id {
            cx.mqtt_oracle.acknowledged(cx.now, id);
        }
        if let Some(write) = sent.write {
            cx.retained.acknowledged(write);
        }
        Ok(())
    }

    /// Describes what the client waits for after the faults. `None`: nothing.
    pub(super) fn describe_wait(&self, cx: &RunContext<'_>) -> Option<String> {
        let waiting_for = match () {
            () if self.plan.dying_node.is_some() => self.dying_wait(cx)?,
            () if !self.abandoned.is_empty() => "the end of an abandoned connection",
            () if self.outbound.len() > 0 => "answers to its publishes",
            () if self.inbound.pending_answers() > 0 => "its own answers",
            () if self.plan.inspects_retained.is_some() && !self.final_phase.has_inspected => {
                "the retained messages"
            }
            () if self.plan.has_will && self.final_phase.left_wills == 0 => "its will",
            () if self.plan.publisher_name.is_some() && !self.has_written_retained() => {
                "its retained messages"
            }
            () if self.cuts_connection() && self.final_phase.cut_connections < FINAL_CUTS => {
                "to publish and cut its connection"
            }
            () if self.plan.inspects_retained.is_none() && !self.has_received_all(cx) => "messages",
            () => return None,
        };
        let client = &self.plan.client;
        let node = self.location.map_or(0, |location| location.node.0);
        let open = self.link.as_ref().map(|l| l.open);
        Some(format!("{client} on {node} ({open:?}): {waiting_for}"))
    }

    /// The retained messages that it found, once it has inspected them.
    pub(super) fn inspected(&self) -> Option<&BTreeMap<String, MessageId>> {
        self.final_phase.has_inspected.then_some(&self.found)
    }
}

/// Topic of wills.
pub(super) const WILL_TOPIC: &str = "w/1";
/// Session Expiry Interval in seconds, longer than any run.
pub(super) const LONG_EXPIRY: u32 = 3600;
/// Time after the last fault in which its effects may still be seen.
pub(super) const FAULT_EFFECT_TIME: Duration = Duration::from_secs(4);
/// How many times a publisher with a persistent session closes its connection right after PUBLISH, after the faults.
const FINAL_CUTS: u32 = 3;

/// Whether CONNACK may have this reason code.
fn may_refuse(reason: ReasonCode) -> Result<(), String> {
    match reason {
        ReasonCode::ServerUnavailable
        | ReasonCode::ServerBusy
        | ReasonCode::ServerShuttingDown
        | ReasonCode::ImplementationSpecificError => Ok(()),
        _ => Err(format!("CONNACK with {reason:?}")),
    }
}

/// Whether DISCONNECT may have this reason code.
fn may_end(reason: ReasonCode) -> Result<(), String> {
    match reason {
        // The node shuts down, a clean session lost messages, or the queue of the session is unreachable.
        ReasonCode::ServerShuttingDown
        | ReasonCode::SessionTakenOver
        | ReasonCode::UnspecifiedError
        | ReasonCode::ServerUnavailable
        | ReasonCode::ImplementationSpecificError => Ok(()),
        _ => Err(format!("DISCONNECT with {reason:?}")),
    }
}

pub(super) fn disconnect() -> Packet<'static> {
    Packet::Disconnect(Disconnect {
        reason: ReasonCode::Success,
        properties: Properties::default(),
    })
}
