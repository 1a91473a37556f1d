//! What a device does when its turn comes.

use super::{CALMING, CUTS, ClientAction, Draft, MqttClient, RunContext, SentMessage, goodbye};
use crate::cluster::client::Client;
use crate::cluster::mqtt::oracle::is_shared;
use bytes::BytesMut;
use codec_mqtt::{
    Filters, Packet, Properties, Qos, Subscribe, SubscribeOptions, Unsubscribe, UnsubscribeFilters,
    Version,
};
use env::{Rng, Time};
use std::time::Duration;

/// What is published is of these.
const TOPICS: [&str; 6] = ["a/x", "a/y", "b/x", "b/y/z", "s/1", "s/2"];
/// Topics that a publisher retains messages of, under its name.
const KEPT: u32 = 2;
/// Publishes of a client that wait for their answers, at most.
const MOST_OPEN: usize = 8;
/// When all is quiet: between two messages of each topic.
const ROUND: Duration = Duration::from_millis(400);
/// Of SUBSCRIBE and UNSUBSCRIBE: one at a time.
const PACKET_ID: u16 = 60_000;

impl MqttClient {
    /// Does something, by chance.
    pub fn act(&mut self, cx: &mut RunContext<'_>) -> ClientAction {
        let Some(since) = self.link.as_ref().filter(|l| l.open).map(|l| l.since) else {
            return ClientAction::GoOn;
        };
        let most = match cx.quiet {
            Some(_) => usize::MAX,
            None => self.rng.below(6) as usize,
        };
        if let Some(link) = &mut self.link {
            self.inbound.answer(&mut link.wire, most);
        }
        if self.asking.is_empty() && !self.unsubscribing {
            self.subscribe(cx);
        }
        if let Some(dies) = self.plan.dies {
            return self.live_last(dies, since, cx);
        }
        if self.plan.expiring_session {
            return self.visit(cx);
        }
        match cx.quiet {
            None => {
                self.publish(cx);
                self.wander(since, cx)
            }
            Some(quiet) => {
                if self.publish_and_cut(cx) {
                    return ClientAction::HangUp;
                }
                self.publish_last(quiet, cx);
                self.look(cx);
                self.move_last(since, quiet, cx)
            }
        }
    }

    pub(in super::super) fn say(&mut self, packet: &Packet<'_>) {
        if let Some(link) = &mut self.link {
            link.wire.say(packet);
        }
    }

    /// Asks for what it wants and has not; drops what it does not want any more.
    pub(super) fn subscribe(&mut self, cx: &mut RunContext<'_>) {
        let number = self.number;
        let has = |filter: &str| cx.mqtt_oracle.subscribed_since(number, filter).is_some();
        let mut wanted: Vec<_> = self.plan.filters.clone();
        if let Some((filter, qos)) = self.plan.toggled {
            let changes = cx.quiet.is_none() && self.rng.chance(1, 20);
            match (has(filter), changes) {
                (true, true) => return self.unsubscribe(filter, cx),
                (false, true) => wanted.push((filter, qos)),
                _ => {}
            }
        }
        wanted.retain(|(filter, _)| !has(filter));
        if wanted.is_empty() {
            return;
        }
        let mut raw = BytesMut::new();
        for (filter, qos) in wanted {
            let options = SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            };
            Filters::put(&mut raw, filter, options);
            cx.mqtt_oracle.asked(cx.now, number, filter, qos);
            self.asking.push(filter.to_owned());
        }
        self.say(&Packet::Subscribe(Subscribe {
            packet_id: PACKET_ID,
            properties: Properties::default(),
            filters: Filters::new(&raw, Version::V5),
        }));
    }

    fn unsubscribe(&mut self, filter: &str, cx: &mut RunContext<'_>) {
        cx.mqtt_oracle.leaves(self.number, filter);
        let mut raw = BytesMut::new();
        UnsubscribeFilters::put(&mut raw, filter);
        self.unsubscribing = true;
        self.say(&Packet::Unsubscribe(Unsubscribe {
            packet_id: PACKET_ID,
            properties: Properties::default(),
            filters: UnsubscribeFilters::new(&raw),
        }));
    }

    fn publish(&mut self, cx: &mut RunContext<'_>) {
        let Some(name) = self.plan.publishes else {
            return;
        };
        for _ in 0..self.rng.below(3) {
            if self.outbound.len() >= MOST_OPEN {
                return;
            }
            let qos = match self.rng.below(5) {
                0 => Qos::AtMostOnce,
                1 | 2 => Qos::AtLeastOnce,
                _ => Qos::ExactlyOnce,
            };
            if self.rng.chance(1, 8) {
                let topic = format!("r/{name}/{}", self.rng.below(KEPT.into()));
                let clears = self.rng.chance(1, 6);
                self.post(topic, qos.max(Qos::AtLeastOnce), (true, clears), cx);
            } else {
                let topic = Client::pick(&mut self.rng, &TOPICS).unwrap_or_default();
                self.post(topic.to_owned(), qos, (false, false), cx);
            }
        }
    }

    fn post(
        &mut self,
        topic: String,
        qos: Qos,
        (retain, clears): (bool, bool),
        cx: &mut RunContext<'_>,
    ) {
        let id = (!clears).then(|| self.next_post());
        self.serial += 1;
        let write = retain.then(|| cx.retained.written(&topic, id));
        if let Some(id) = id {
            cx.mqtt_oracle.sent(cx.now, id, (&topic, qos), cx.knows);
            if qos == Qos::AtMostOnce {
                cx.mqtt_oracle.unknown(id);
                self.unanswered.push(id);
            }
        }
        let epoch = self.epoch;
        self.sent
            .insert(self.serial, SentMessage { id, write, epoch });
        let draft = Draft {
            id,
            topic,
            qos,
            retain,
        };
        if let Some(link) = &mut self.link {
            self.outbound.publish(&mut link.wire, draft, self.serial);
        }
    }

    /// Ends its connection now and then, in one way or the other.
    fn wander(&mut self, since: Time, cx: &mut RunContext<'_>) -> ClientAction {
        match self.rng.below(if self.plan.wills { 40 } else { 200 }) {
            0 => self.leave(since, cx),
            1 => ClientAction::HangUp,
            2 if !self.plan.wills => {
                self.anew = self.plan.begins_anew;
                self.leave(since, cx)
            }
            3 | 4 if !self.plan.wills => ClientAction::MoveOn,
            _ => ClientAction::GoOn,
        }
    }

    fn leave(&mut self, since: Time, cx: &mut RunContext<'_>) -> ClientAction {
        if let Some(id) = self.will.take() {
            cx.mqtt_oracle.will_is_cancelled(since, id);
        }
        self.say(&goodbye());
        ClientAction::HangUp
    }

    /// When all is quiet: what it retains is written once more, and messages come until all have heard some.
    fn publish_last(&mut self, quiet: Time, cx: &mut RunContext<'_>) {
        let Some(name) = self.plan.publishes else {
            return;
        };
        let late = |last: Time| cx.now >= last + ROUND;
        let due = self.closing.last_round.is_none_or(late);
        if self.outbound.len() > 0 || !due || cx.now < quiet + CALMING {
            return;
        }
        self.closing.last_round = Some(cx.now);
        if !self.is_written() {
            let topic = format!("r/{name}/{}", self.closing.written);
            let clears = self.rng.chance(1, 6);
            self.closing.written += 1;
            self.post(topic, Qos::AtLeastOnce, (true, clears), cx);
        } else if cx.wanted {
            for topic in TOPICS {
                self.post(topic.to_owned(), Qos::ExactlyOnce, (false, false), cx);
            }
        }
    }

    /// When all is quiet: messages of QoS 2, and the end of the connection before any answer can come. The next one sends them
    /// again, and the server must not take them for new ones. True: they are sent.
    fn publish_and_cut(&mut self, cx: &mut RunContext<'_>) -> bool {
        let ready = self.is_written() && self.outbound.len() == 0;
        if !self.cuts() || !ready || self.closing.cuts == CUTS {
            return false;
        }
        self.closing.cuts += 1;
        for topic in TOPICS {
            self.post(topic.to_owned(), Qos::ExactlyOnce, (false, false), cx);
        }
        true
    }

    pub(super) fn is_written(&self) -> bool {
        self.closing.written == KEPT
    }

    /// See [`super::Plan::looks`].
    fn look(&mut self, cx: &RunContext<'_>) {
        let ready = self.plan.looks.is_some() && cx.mqtt_oracle.is_subscribed(self.number);
        if ready && !std::mem::replace(&mut self.closing.pinged, true) {
            self.say(&Packet::PingReq);
        }
    }

    /// When all is quiet: once more to another connection; a will that is not to come, and one that is.
    fn move_last(&mut self, since: Time, quiet: Time, cx: &mut RunContext<'_>) -> ClientAction {
        let calm = since >= quiet + CALMING;
        if self.plan.wills && calm {
            if self.closing.goodbyes == 0 {
                self.closing.goodbyes = 1;
                return self.leave(since, cx);
            }
            if self.closing.wills == 0
                && let Some(id) = self.will.take()
            {
                self.closing.wills = 1;
                cx.mqtt_oracle.will_is_due(cx.now, id, cx.knows);
                return ClientAction::HangUp;
            }
        }
        if self.plan.wills && !calm && self.closing.goodbyes == 0 && cx.now >= quiet + CALMING {
            return self.leave(since, cx);
        }
        let moves = !self.plan.filters.is_empty() && self.plan.looks.is_none();
        if moves && !self.closing.moved && cx.now >= quiet + CALMING {
            self.closing.moved = true;
            return ClientAction::MoveOn;
        }
        ClientAction::GoOn
    }

    /// It has all its subscriptions, and has heard something that was published since.
    pub(super) fn is_content(&self, cx: &RunContext<'_>) -> bool {
        let Some(quiet) = cx.quiet else {
            return false;
        };
        if self.plan.filters.is_empty() {
            return true;
        }
        let open = self.link.as_ref().is_some_and(|l| l.open);
        open && self.closing.moved
            && self.plan.filters.iter().all(|(filter, _)| {
                let since = cx.mqtt_oracle.subscribed_since(self.number, filter);
                let since = since.map(|since| since.max(quiet + CALMING));
                // Wills are few: those that are owed are waited for.
                let few = !is_shared(filter) && filter.starts_with('w');
                since.is_some_and(|at| few || cx.mqtt_oracle.has_heard(self.number, filter, at))
            })
    }
}
