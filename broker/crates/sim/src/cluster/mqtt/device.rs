//! One client: its connection, and those that it has left behind without a word; its session as it knows it.

mod acts;

use super::super::client::Link;
use super::book::{Book, Knows};
use super::dying::{Dies, Fate};
use super::guest::Stay;
use super::inbound::Inbound;
use super::outbound::{Draft, Outbound, Word};
use super::post::PostId;
use super::retained::RetainedBook;
use super::routes::Place;
use super::wire::{Heard, Wire};
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
    pub guest: bool,
    /// It looks, once, at what is retained here: a machine, and a shard of it.
    pub looks: Option<(NodeId, u64)>,
    /// It connects once, to a machine that is to die.
    pub dies: Option<Dies>,
}

/// What a connection begins with.
pub(super) struct Offer {
    /// Seconds.
    pub expiry: u32,
    pub will: Option<PostId>,
    /// Of the will, and how long it waits.
    pub topic: &'static str,
    pub delay: Option<u32>,
}

/// A connection that its client has left without a word.
pub struct Ghost {
    pub link: Link<Wire>,
    /// When the next one was accepted.
    pub since: Option<Time>,
}

/// What a device sees of the run.
pub struct Cx<'a> {
    pub now: Time,
    /// Since when there are no more faults.
    pub quiet: Option<Time>,
    /// Somebody waits for messages.
    pub wanted: bool,
    pub book: &'a mut Book,
    pub retained: &'a mut RetainedBook,
    pub knows: Knows<'a>,
}

/// What a device wants done with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    GoOn,
    HangUp,
    /// A new connection; the old one is left as it is.
    MoveOn,
}

/// A message that was published, by its number.
struct Sent {
    id: Option<PostId>,
    /// It is retained: the number of the write.
    write: Option<u64>,
    /// The device's epoch when it was sent first.
    epoch: u64,
}

pub struct Device {
    pub number: usize,
    pub plan: Plan,
    pub rng: SeededRng,
    pub link: Option<Link<Wire>>,
    pub ghosts: Vec<Ghost>,
    /// Where the last connection went.
    pub place: Option<Place>,
    /// How often that was another place than before.
    pub(super) epoch: u64,
    /// It wants a session of its own beginning.
    pub(super) anew: bool,
    inbound: Inbound,
    outbound: Outbound,
    sent: BTreeMap<u64, Sent>,
    /// Messages of QoS 0 that it sent on this connection.
    unanswered: Vec<PostId>,
    serial: u64,
    streams: u32,
    stream: Option<u32>,
    posts: u32,
    /// Filters of the SUBSCRIBE that waits for its answer.
    asking: Vec<String>,
    unsubscribing: bool,
    pub(super) will: Option<PostId>,
    pub(super) fate: Fate,
    pub(super) stay: Stay,
    pub(super) closing: Closing,
    pub found: BTreeMap<String, PostId>,
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

impl Device {
    pub fn new(number: usize, plan: Plan, rng: SeededRng) -> Device {
        Device {
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
            stay: Stay::default(),
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

    fn next_post(&mut self) -> PostId {
        let streams = &mut self.streams;
        let stream = *self.stream.get_or_insert_with(|| {
            *streams += 1;
            *streams
        });
        self.posts += 1;
        PostId::new(stream, self.posts)
    }

    /// A message of a stream of its own.
    pub(super) fn lone_post(&mut self) -> PostId {
        self.streams += 1;
        PostId::new(self.streams, 1)
    }

    /// What its next connection asks for.
    fn offer(&mut self, cx: &mut Cx<'_>) -> Offer {
        if self.plan.guest {
            return self.visits(cx);
        }
        let will = self.plan.wills.then(|| self.next_post());
        if let Some(id) = will {
            cx.book.willed(cx.now, id, WILLS);
        }
        Offer {
            expiry: if self.plan.lasting { EXPIRY } else { 0 },
            will,
            topic: WILLS,
            delay: None,
        }
    }

    /// A connection to this place begins.
    pub fn connects(&mut self, link: Link<Wire>, place: Place, cx: &mut Cx<'_>) {
        if self.place.replace(place) != Some(place) {
            self.epoch += 1;
        }
        self.asking.clear();
        self.unsubscribing = false;
        let offer = self.offer(cx);
        self.will = offer.will;
        let payload = offer.will.map(PostId::payload).unwrap_or_default();
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
    pub fn loses(&mut self, cx: &mut Cx<'_>) -> Option<Link<Wire>> {
        let link = self.link.take()?;
        for id in self.unanswered.drain(..) {
            cx.book.left_behind(cx.now, link.connection, id);
        }
        self.has_left(cx);
        if self.plan.guest {
            self.has_gone(link.open, cx);
        }
        if !self.plan.lasting {
            self.forget(cx);
        }
        Some(link)
    }

    /// The session is over.
    fn forget(&mut self, cx: &mut Cx<'_>) {
        self.drop_open(cx);
        cx.book.session_over(self.number);
    }

    /// Nobody will say what became of what is open.
    fn drop_open(&mut self, cx: &mut Cx<'_>) {
        self.inbound.begin(false);
        for number in self.outbound.forget() {
            self.unknown(number, cx);
        }
        self.stream = None;
    }

    fn unknown(&mut self, number: u64, cx: &mut Cx<'_>) {
        let Some(sent) = self.sent.get(&number) else {
            return;
        };
        if let Some(id) = sent.id {
            cx.book.unknown(id);
        }
        if let Some(write) = sent.write {
            cx.retained.doubted(write);
        }
    }

    fn accepted(&mut self, present: bool, cx: &mut Cx<'_>) -> Result<(), String> {
        if let Some(link) = &mut self.link {
            link.open = true;
        }
        for ghost in &mut self.ghosts {
            ghost.since.get_or_insert(cx.now);
        }
        cx.book.accepted(cx.now, self.number);
        let anew = std::mem::take(&mut self.anew);
        let other = self.plan.guest && self.is_let_in((present, anew), cx)?;
        if present && (anew || !self.plan.lasting) {
            return Err("a session that begins was there before".to_owned());
        }
        if !self.plan.lasting {
            return Ok(());
        }
        if !present {
            let subscribed = cx.book.is_subscribed(self.number);
            if !anew && !self.plan.guest && subscribed {
                return Err("the session is gone".to_owned());
            }
            if anew || self.plan.guest && subscribed {
                self.forget(cx);
            } else {
                // Of an earlier SUBSCRIBE that was not answered something may be made yet.
                self.drop_open(cx);
            }
            return Ok(());
        }
        if other {
            self.forget(cx);
            cx.book.session_is_unclear(self.number);
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
                    cx.book.sent_again_in_session(cx.now, id, cx.knows);
                }
                Some(id) => cx.book.sent_again(cx.now, id, cx.knows),
                None => {}
            }
            if let Some(write) = sent.write {
                cx.retained.doubted(write);
            }
        }
        Ok(())
    }

    /// Something came on the connection.
    pub fn heard(&mut self, heard: Heard, cx: &mut Cx<'_>) -> Result<(), String> {
        match heard {
            Heard::Accepted { present } => self.accepted(present, cx),
            Heard::Refused(Reason::AdministrativeAction)
            | Heard::Ended(Reason::AdministrativeAction)
                if self.plan.guest =>
            {
                self.is_put_out(cx)
            }
            Heard::Refused(reason) => may_refuse(reason),
            Heard::Ended(reason) => {
                // Nobody took it over, for this is its client's newest connection: nodes that were out of each other's reach held it both,
                // and a clock that had jumped says that this one is the older. The session has been elsewhere since.
                self.epoch += u64::from(reason == Reason::SessionTakenOver);
                may_end(reason)
            }
            Heard::Message(arrival) => {
                if !self.inbound.arrived(&arrival) {
                    return Ok(());
                }
                if arrival.retained && self.plan.looks.is_some() {
                    let id = PostId::read(&arrival.payload)?;
                    self.found.insert(arrival.topic.clone(), id);
                }
                cx.book.arrived(cx.now, self.number, &arrival, self.epoch)
            }
            Heard::Ack {
                kind: AckKind::PubRel,
                packet_id,
                ..
            } => {
                self.inbound.released(packet_id);
                Ok(())
            }
            Heard::Ack {
                kind,
                packet_id,
                reason,
            } => self.answered((kind, packet_id, reason), cx),
            Heard::Subscribed { granted } => {
                let asked = std::mem::take(&mut self.asking);
                if asked.len() != granted.len() {
                    return Err("SUBACK does not fit".to_owned());
                }
                let made = asked.iter().zip(granted).filter(|(_, granted)| *granted);
                made.for_each(|(filter, _)| {
                    cx.book.subscribed(cx.now, self.number, filter, cx.knows)
                });
                Ok(())
            }
            Heard::Unsubscribed => {
                self.unsubscribing = false;
                Ok(())
            }
            Heard::Pong => {
                self.closing.looked = true;
                Ok(())
            }
        }
    }

    fn answered(&mut self, answer: (AckKind, u16, Reason), cx: &mut Cx<'_>) -> Result<(), String> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let number = match self.outbound.answered(&mut link.wire, answer)? {
            Word::Nothing => return Ok(()),
            Word::Refused(number) => {
                self.unknown(number, cx);
                return Ok(());
            }
            Word::Taken(number) => number,
        };
        let Some(sent) = self.sent.get(&number) else {
            return Ok(());
        };
        if let Some(id) = sent.id {
            cx.book.acknowledged(cx.now, id);
        }
        if let Some(write) = sent.write {
            cx.retained.acknowledged(write);
        }
        Ok(())
    }

    /// What it waits for when all is quiet, for people; None: nothing.
    pub fn waits_for(&self, cx: &Cx<'_>) -> Option<String> {
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
    pub fn looked(&self) -> Option<&BTreeMap<String, PostId>> {
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
