//! One client: its connection, and those that it has left behind without a word; its session as it knows it.

mod actions;

use super::super::client::Link;
use super::dying_node::{DyingClients, Fate};
use super::expiring_session::ExpiringSession;
use super::inbound::Inbound;
use super::oracle::{MqttOracle, QueueLookup};
use super::outbound::{AnswerMeaning, Draft, Outbound};
use super::retained::RetainedOracle;
use super::routes::ShardIncarnation;
use super::tracked_message::MessageId;
use super::wire::{MqttConnection, ServerMessage};
use codec_mqtt::{
    AckKind, Connect, Disconnect, Packet, Properties, Qos, Reason, Version, Will as WillPacket,
};
use env::{NodeId, SeededRng, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a device does.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub client: String,
    /// Its session outlives its connections.
    pub lasting: bool,
    pub filters: Vec<(&'static str, Qos)>,
    /// It subscribes and unsubscribes.
    pub toggled: Option<(&'static str, Qos)>,
    /// It ends its session now and then.
    pub begins_anew: bool,
    /// It publishes, and what it retains is under this name.
    pub publishes: Option<&'static str>,
    pub wills: bool,
    /// Its session runs out, and it stays away for shorter or longer than that.
    pub expiring_session: bool,
    /// It looks, once, at what is retained here: a machine, and a shard of it.
    pub looks: Option<(NodeId, u64)>,
    /// It connects once, to a machine that is to die.
    pub dies: Option<DyingClients>,
}

/// What a connection begins with.
pub(super) struct ConnectOffer {
    /// Seconds.
    pub expiry: u32,
    pub will: Option<MessageId>,
    /// Of the will, and how long it waits.
    pub topic: &'static str,
    pub delay: Option<u32>,
}

/// A connection that its client has left without a word.
pub struct AbandonedConnection {
    pub link: Link<MqttConnection>,
    /// When the next one was accepted.
    pub since: Option<Time>,
}

/// What a device sees of the run.
pub struct RunContext<'a> {
    pub now: Time,
    /// Since when there are no more faults.
    pub quiet: Option<Time>,
    /// Somebody waits for messages.
    pub wanted: bool,
    pub mqtt_oracle: &'a mut MqttOracle,
    pub retained: &'a mut RetainedOracle,
    pub knows: QueueLookup<'a>,
}

/// What a device wants done with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAction {
    GoOn,
    HangUp,
    /// A new connection; the old one is left as it is.
    MoveOn,
}

/// A message that was published, by its number.
struct SentMessage {
    id: Option<MessageId>,
    /// It is retained: the number of the write.
    write: Option<u64>,
    /// The device's epoch when it was sent first.
    epoch: u64,
}

pub struct MqttClient {
    pub number: usize,
    pub plan: Plan,
    pub rng: SeededRng,
    pub link: Option<Link<MqttConnection>>,
    pub ghosts: Vec<AbandonedConnection>,
    /// Where the last connection went.
    pub place: Option<ShardIncarnation>,
    /// How often that was another place than before.
    pub(super) epoch: u64,
    /// It wants a session of its own beginning.
    pub(super) anew: bool,
    inbound: Inbound,
    outbound: Outbound,
    sent: BTreeMap<u64, SentMessage>,
    /// Messages of QoS 0 that it sent on this connection.
    unanswered: Vec<MessageId>,
    serial: u64,
    streams: u32,
    stream: Option<u32>,
    posts: u32,
    /// Filters of the SUBSCRIBE that waits for its answer.
    asking: Vec<String>,
    unsubscribing: bool,
    pub(super) will: Option<MessageId>,
    pub(super) fate: Fate,
    pub(super) stay: ExpiringSession,
    pub(super) closing: Closing,
    pub found: BTreeMap<String, MessageId>,
}

/// How far a device is when all is quiet.
#[derive(Clone, Debug, Default)]
pub(super) struct Closing {
    /// It has moved on once.
    pub(super) moved: bool,
    /// How often it has cut its connection right after PUBLISH.
    cuts: u32,
    /// Its will was cancelled, and one was left behind.
    goodbyes: u32,
    wills: u32,
    /// What it retains last is written.
    written: u32,
    last_round: Option<Time>,
    /// See [`Plan::looks`].
    pinged: bool,
    looked: bool,
}

impl MqttClient {
    pub fn new(number: usize, plan: Plan, rng: SeededRng) -> MqttClient {
        MqttClient {
            number,
            plan,
            rng,
            link: None,
            ghosts: Vec::new(),
            place: None,
            epoch: 0,
            anew: false,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            sent: BTreeMap::new(),
            unanswered: Vec::new(),
            serial: 0,
            streams: (number as u32) << 16,
            stream: None,
            posts: 0,
            asking: Vec::new(),
            unsubscribing: false,
            will: None,
            fate: Fate::default(),
            stay: ExpiringSession::default(),
            closing: Closing::default(),
            found: BTreeMap::new(),
        }
    }

    /// It cuts its connection right after PUBLISH when all is quiet, and sends the messages again.
    fn cuts(&self) -> bool {
        self.plan.publishes.is_some() && self.plan.lasting
    }

    /// Its next connection goes to the place of the last one, whose session remembers what was published.
    pub fn returns(&self) -> bool {
        self.cuts() && self.closing.cuts > 0
    }

    /// The queue that its session has, if that outlives connections.
    pub fn queue(&self) -> Option<String> {
        let Plan {
            lasting, client, ..
        } = &self.plan;
        lasting.then(|| format!("mqtt-subscription-{client}qos1"))
    }

    fn next_post(&mut self) -> MessageId {
        let streams = &mut self.streams;
        let stream = *self.stream.get_or_insert_with(|| {
            *streams += 1;
            *streams
        });
        self.posts += 1;
        MessageId::new(stream, self.posts)
    }

    /// A message of a stream of its own.
    pub(super) fn lone_post(&mut self) -> MessageId {
        self.streams += 1;
        MessageId::new(self.streams, 1)
    }

    /// What its next connection asks for.
    fn offer(&mut self, cx: &mut RunContext<'_>) -> ConnectOffer {
        if self.plan.expiring_session {
            return self.visits(cx);
        }
        let will = self.plan.wills.then(|| self.next_post());
        if let Some(id) = will {
            cx.mqtt_oracle.willed(cx.now, id, WILLS);
        }
        ConnectOffer {
            expiry: if self.plan.lasting { EXPIRY } else { 0 },
            will,
            topic: WILLS,
            delay: None,
        }
    }

    /// A connection to this place begins.
    pub fn connects(
        &mut self,
        link: Link<MqttConnection>,
        place: ShardIncarnation,
        cx: &mut RunContext<'_>,
    ) {
        if self.place.replace(place) != Some(place) {
            self.epoch += 1;
        }
        self.asking.clear();
        self.unsubscribing = false;
        let offer = self.offer(cx);
        self.will = offer.will;
        let payload = offer.will.map(MessageId::payload).unwrap_or_default();
        let mut link = link;
        link.wire.say(&Packet::Connect(Connect {
            version: Version::V5,
            clean_start: !self.plan.lasting || self.anew,
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

    /// The connection is gone, or left: a clean session with it.
    pub fn loses(&mut self, cx: &mut RunContext<'_>) -> Option<Link<MqttConnection>> {
        let link = self.link.take()?;
        for id in self.unanswered.drain(..) {
            cx.mqtt_oracle.left_behind(cx.now, link.connection, id);
        }
        self.has_left(cx);
        if self.plan.expiring_session {
            self.has_gone(link.open, cx);
        }
        if !self.plan.lasting {
            self.forget(cx);
        }
        Some(link)
    }

    /// The session is over.
    fn forget(&mut self, cx: &mut RunContext<'_>) {
        self.drop_open(cx);
        cx.mqtt_oracle.session_over(self.number);
    }

    /// Nobody will say what became of what is open.
    fn drop_open(&mut self, cx: &mut RunContext<'_>) {
        self.inbound.begin(false);
        for number in self.outbound.forget() {
            self.unknown(number, cx);
        }
        self.stream = None;
    }

    fn unknown(&mut self, number: u64, cx: &mut RunContext<'_>) {
        let Some(sent) = self.sent.get(&number) else {
            return;
        };
        if let Some(id) = sent.id {
            cx.mqtt_oracle.unknown(id);
        }
        if let Some(write) = sent.write {
            cx.retained.doubted(write);
        }
    }

    fn accepted(&mut self, present: bool, cx: &mut RunContext<'_>) -> Result<(), String> {
        if let Some(link) = &mut self.link {
            link.open = true;
        }
        for ghost in &mut self.ghosts {
            ghost.since.get_or_insert(cx.now);
        }
        cx.mqtt_oracle.accepted(cx.now, self.number);
        let anew = std::mem::take(&mut self.anew);
        let other = self.plan.expiring_session && self.is_let_in((present, anew), cx)?;
        if present && (anew || !self.plan.lasting) {
            return Err("a session that begins was there before".to_owned());
        }
        if !self.plan.lasting {
            return Ok(());
        }
        if !present {
            let subscribed = cx.mqtt_oracle.is_subscribed(self.number);
            if !anew && !self.plan.expiring_session && subscribed {
                return Err("the session is gone".to_owned());
            }
            if anew || self.plan.expiring_session && subscribed {
                self.forget(cx);
            } else {
                // Of an earlier SUBSCRIBE that was not answered something may be made yet.
                self.drop_open(cx);
            }
            return Ok(());
        }
        if other {
            self.forget(cx);
            cx.mqtt_oracle.session_is_unclear(self.number);
            self.subscribe(cx);
        }
        self.inbound.begin(true);
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        for number in self.outbound.resume(&mut link.wire) {
            let Some(sent) = self.sent.get(&number) else {
                continue;
            };
            match sent.id {
                Some(id) if sent.epoch == self.epoch => {
                    cx.mqtt_oracle.sent_again_in_session(cx.now, id, cx.knows);
                }
                Some(id) => cx.mqtt_oracle.sent_again(cx.now, id, cx.knows),
                None => {}
            }
            if let Some(write) = sent.write {
                cx.retained.doubted(write);
            }
        }
        Ok(())
    }

    /// Something came on the connection.
    pub fn heard(&mut self, heard: ServerMessage, cx: &mut RunContext<'_>) -> Result<(), String> {
        match heard {
            ServerMessage::Accepted { present } => self.accepted(present, cx),
            ServerMessage::Refused(Reason::AdministrativeAction)
            | ServerMessage::Ended(Reason::AdministrativeAction)
                if self.plan.expiring_session =>
            {
                self.is_put_out(cx)
            }
            ServerMessage::Refused(reason) => may_refuse(reason),
            ServerMessage::Ended(reason) => {
                // Nobody took it over, for this is its client's newest connection: nodes that were out of each other's reach held it both,
                // and a clock that had jumped says that this one is the older. The session has been elsewhere since.
                self.epoch += u64::from(reason == Reason::SessionTakenOver);
                may_end(reason)
            }
            ServerMessage::Message(arrival) => {
                if !self.inbound.arrived(&arrival) {
                    return Ok(());
                }
                if arrival.retained && self.plan.looks.is_some() {
                    let id = MessageId::read(&arrival.payload)?;
                    self.found.insert(arrival.topic.clone(), id);
                }
                cx.mqtt_oracle
                    .arrived(cx.now, self.number, &arrival, self.epoch)
            }
            ServerMessage::Ack {
                kind: AckKind::PubRel,
                packet_id,
                ..
            } => {
                self.inbound.released(packet_id);
                Ok(())
            }
            ServerMessage::Ack {
                kind,
                packet_id,
                reason,
            } => self.answered((kind, packet_id, reason), cx),
            ServerMessage::Subscribed { granted } => {
                let asked = std::mem::take(&mut self.asking);
                if asked.len() != granted.len() {
                    return Err("SUBACK does not fit".to_owned());
                }
                let made = asked.iter().zip(granted).filter(|(_, granted)| *granted);
                made.for_each(|(filter, _)| {
                    cx.mqtt_oracle
                        .subscribed(cx.now, self.number, filter, cx.knows)
                });
                Ok(())
            }
            ServerMessage::Unsubscribed => {
                self.unsubscribing = false;
                Ok(())
            }
            ServerMessage::Pong => {
                self.closing.looked = true;
                Ok(())
            }
        }
    }

    fn answered(
        &mut self,
        answer: (AckKind, u16, Reason),
        cx: &mut RunContext<'_>,
    ) -> Result<(), String> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let number = match self.outbound.answered(&mut link.wire, answer)? {
            AnswerMeaning::Nothing => return Ok(()),
            AnswerMeaning::Refused(number) => {
                self.unknown(number, cx);
                return Ok(());
            }
            AnswerMeaning::Taken(number) => number,
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

    /// What it waits for when all is quiet, for people; None: nothing.
    pub fn waits_for(&self, cx: &RunContext<'_>) -> Option<String> {
        let what = match () {
            () if self.plan.dies.is_some() => self.waits_to_die(cx)?,
            () if !self.ghosts.is_empty() => "the end of a connection that it left",
            () if self.outbound.len() > 0 => "answers to what it published",
            () if self.inbound.owes() > 0 => "a moment to answer",
            () if self.plan.looks.is_some() && !self.closing.looked => "what is retained",
            () if self.plan.wills && self.closing.wills == 0 => "its will",
            () if self.plan.publishes.is_some() && !self.is_written() => "what it retains",
            () if self.cuts() && self.closing.cuts < CUTS => "to publish and cut its connection",
            () if self.plan.looks.is_none() && !self.is_content(cx) => "messages",
            () => return None,
        };
        let client = &self.plan.client;
        let node = self.place.map_or(0, |place| place.node.0);
        let open = self.link.as_ref().map(|l| l.open);
        Some(format!("{client} on {node} ({open:?}): {what}"))
    }

    /// What a node has retained, once it was looked at.
    pub fn looked(&self) -> Option<&BTreeMap<String, MessageId>> {
        self.closing.looked.then_some(&self.found)
    }
}

/// The topic of wills.
pub const WILLS: &str = "w/1";
/// Seconds, longer than any run.
pub(super) const EXPIRY: u32 = 3600;
/// After the last fault, until nothing of it can show any more.
pub(super) const CALMING: Duration = Duration::from_secs(4);
/// When all is quiet: how often a publisher whose session lasts cuts its connection right after PUBLISH.
const CUTS: u32 = 3;

/// CONNACK.
fn may_refuse(reason: Reason) -> Result<(), String> {
    match reason {
        Reason::ServerUnavailable
        | Reason::ServerBusy
        | Reason::ServerShuttingDown
        | Reason::ImplementationSpecificError => Ok(()),
        _ => Err(format!("CONNACK with {reason:?}")),
    }
}

/// DISCONNECT.
fn may_end(reason: Reason) -> Result<(), String> {
    match reason {
        // The node goes; messages were lost for a clean session; the session's queue cannot be reached.
        Reason::ServerShuttingDown
        | Reason::SessionTakenOver
        | Reason::UnspecifiedError
        | Reason::ServerUnavailable
        | Reason::ImplementationSpecificError => Ok(()),
        _ => Err(format!("DISCONNECT with {reason:?}")),
    }
}

pub(super) fn goodbye() -> Packet<'static> {
    Packet::Disconnect(Disconnect {
        reason: Reason::Success,
        properties: Properties::default(),
    })
}
