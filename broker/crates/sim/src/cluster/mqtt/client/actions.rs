//! Actions of an MQTT client at its turns.

use super::{
    ClientAction, Draft, FAULT_EFFECT_TIME, FINAL_CUTS, MqttClient, RunContext, SentMessage,
    disconnect,
};
use crate::cluster::client::Client;
use crate::cluster::mqtt::oracle::is_shared;
use bytes::BytesMut;
use codec_mqtt::{
    Packet, Properties, Qos, Subscribe, SubscribeOptions, SubscriptionFilters, Unsubscribe,
    UnsubscribeFilters, Version,
};
use env::{Rng, Time};
use std::time::Duration;

/// Topics of its messages.
const TOPICS: [&str; 6] = ["a/x", "a/y", "b/x", "b/y/z", "s/1", "s/2"];
/// Number of topics with retained messages of a publisher, under its name.
const RETAINED_TOPICS: u32 = 2;
/// Maximum number of publishes without an answer.
const MAX_OPEN: usize = 8;
/// Time between two messages of each topic after the faults.
const ROUND_TIME: Duration = Duration::from_millis(400);
/// Packet identifier of SUBSCRIBE and UNSUBSCRIBE, of which one is open at a time.
const PACKET_ID: u16 = 60_000;

impl MqttClient {
    /// Takes a random action.
    pub(crate) fn act(&mut self, cx: &mut RunContext<'_>) -> ClientAction {
        let Some(since) = self.link.as_ref().filter(|l| l.open).map(|l| l.since) else {
            return ClientAction::Continue;
        };
        let max = match cx.faults_ended_at {
            Some(_) => usize::MAX,
            None => self.rng.below(6) as usize,
        };
        if let Some(link) = &mut self.link {
            self.inbound.answer(&mut link.wire, max);
        }
        if self.pending_filters.is_empty() && !self.is_unsubscribing {
            self.subscribe(cx);
        }
        if let Some(dying) = self.plan.dying_node {
            return self.act_until_death(dying, since, cx);
        }
        if self.plan.expiring_session {
            return self.act_with_expiring_session(cx);
        }
        match cx.faults_ended_at {
            None => {
                self.publish(cx);
                self.leave_randomly(since, cx)
            }
            Some(faults_ended_at) => {
                if self.publish_and_cut(cx) {
                    return ClientAction::Disconnect;
                }
                self.publish_finally(faults_ended_at, cx);
                self.inspect_retained(cx);
                self.reconnect_finally(since, faults_ended_at, cx)
            }
        }
    }

    pub(in super::super) fn send(&mut self, packet: &Packet<'_>) {
        if let Some(link) = &mut self.link {
            link.wire.send(packet);
        }
    }

    /// Subscribes to the filters that it wants and lacks. Unsubscribes from the toggled filter at times.
    pub(super) fn subscribe(&mut self, cx: &mut RunContext<'_>) {
        let number = self.number;
        let is_subscribed =
            |filter: &str| cx.mqtt_oracle.subscribed_since(number, filter).is_some();
        let mut wanted: Vec<_> = self.plan.filters.clone();
        if let Some((filter, qos)) = self.plan.toggled_filter {
            let changes = cx.faults_ended_at.is_none() && self.rng.chance(1, 20);
            match (is_subscribed(filter), changes) {
                (true, true) => return self.unsubscribe(filter, cx),
                (false, true) => wanted.push((filter, qos)),
                _ => {}
            }
        }
        wanted.retain(|(filter, _)| !is_subscribed(filter));
        if wanted.is_empty() {
            return;
        }
        let mut raw = BytesMut::new();
        for (filter, qos) in wanted {
            let options = SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            };
            SubscriptionFilters::put(&mut raw, filter, options);
            cx.mqtt_oracle.subscribe_sent(cx.now, number, filter, qos);
            self.pending_filters.push(filter.to_owned());
        }
        self.send(&Packet::Subscribe(Subscribe {
            packet_id: PACKET_ID,
            properties: Properties::default(),
            filters: SubscriptionFilters::new(&raw, Version::V5),
        }));
    }

    fn unsubscribe(&mut self, filter: &str, cx: &mut RunContext<'_>) {
        cx.mqtt_oracle.unsubscribe_sent(self.number, filter);
        let mut raw = BytesMut::new();
        UnsubscribeFilters::put(&mut raw, filter);
        self.is_unsubscribing = true;
        self.send(&Packet::Unsubscribe(Unsubscribe {
            packet_id: PACKET_ID,
            properties: Properties::default(),
            filters: UnsubscribeFilters::new(&raw),
        }));
    }

    fn publish(&mut self, cx: &mut RunContext<'_>) {
        let Some(name) = self.plan.publisher_name else {
            return;
        };
        for _ in 0..self.rng.below(3) {
            if self.outbound.len() >= MAX_OPEN {
                return;
            }
            let qos = match self.rng.below(5) {
                0 => Qos::AtMostOnce,
                1 | 2 => Qos::AtLeastOnce,
                _ => Qos::ExactlyOnce,
            };
            if self.rng.chance(1, 8) {
                let topic = format!("r/{name}/{}", self.rng.below(RETAINED_TOPICS.into()));
                let is_clear = self.rng.chance(1, 6);
                self.publish_message(topic, qos.max(Qos::AtLeastOnce), (true, is_clear), cx);
            } else {
                let topic = Client::pick(&mut self.rng, &TOPICS).unwrap_or_default();
                self.publish_message(topic.to_owned(), qos, (false, false), cx);
            }
        }
    }

    fn publish_message(
        &mut self,
        topic: String,
        qos: Qos,
        (retain, is_clear): (bool, bool),
        cx: &mut RunContext<'_>,
    ) {
        let id = (!is_clear).then(|| self.next_message());
        self.last_sent_number += 1;
        let write = retain.then(|| cx.retained.written(&topic, id));
        if let Some(id) = id {
            cx.mqtt_oracle
                .sent(cx.now, id, (&topic, qos), cx.find_bound_queue);
            if qos == Qos::AtMostOnce {
                cx.mqtt_oracle.unknown(id);
                self.unanswered.push(id);
            }
        }
        let epoch = self.epoch;
        self.sent
            .insert(self.last_sent_number, SentMessage { id, write, epoch });
        let draft = Draft {
            id,
            topic,
            qos,
            retain,
        };
        if let Some(link) = &mut self.link {
            self.outbound
                .publish(&mut link.wire, draft, self.last_sent_number);
        }
    }

    /// Ends its connection at times, in different ways.
    fn leave_randomly(&mut self, since: Time, cx: &mut RunContext<'_>) -> ClientAction {
        match self.rng.below(if self.plan.has_will { 40 } else { 200 }) {
            0 => self.leave(since, cx),
            1 => ClientAction::Disconnect,
            2 if !self.plan.has_will => {
                self.clean_start = self.plan.starts_clean;
                self.leave(since, cx)
            }
            3 | 4 if !self.plan.has_will => ClientAction::Reconnect,
            _ => ClientAction::Continue,
        }
    }

    fn leave(&mut self, since: Time, cx: &mut RunContext<'_>) -> ClientAction {
        if let Some(id) = self.will.take() {
            cx.mqtt_oracle.will_cancelled(since, id);
        }
        self.send(&disconnect());
        ClientAction::Disconnect
    }

    /// After the faults: writes its retained messages once more, and publishes until all subscribers have received
    /// some.
    fn publish_finally(&mut self, faults_ended_at: Time, cx: &mut RunContext<'_>) {
        let Some(name) = self.plan.publisher_name else {
            return;
        };
        let is_late = |last: Time| cx.now >= last + ROUND_TIME;
        let is_due = self.final_phase.last_round.is_none_or(is_late);
        if self.outbound.len() > 0 || !is_due || cx.now < faults_ended_at + FAULT_EFFECT_TIME {
            return;
        }
        self.final_phase.last_round = Some(cx.now);
        if !self.has_written_retained() {
            let topic = format!("r/{name}/{}", self.final_phase.written_retained);
            let is_clear = self.rng.chance(1, 6);
            self.final_phase.written_retained += 1;
            self.publish_message(topic, Qos::AtLeastOnce, (true, is_clear), cx);
        } else if cx.has_waiting_subscribers {
            for topic in TOPICS {
                self.publish_message(topic.to_owned(), Qos::ExactlyOnce, (false, false), cx);
            }
        }
    }

    /// After the faults: publishes QoS 2 messages and closes the connection before an answer can arrive. The next
    /// connection sends them again, and the server must recognise them. Returns true if they were sent.
    fn publish_and_cut(&mut self, cx: &mut RunContext<'_>) -> bool {
        let is_ready = self.has_written_retained() && self.outbound.len() == 0;
        if !self.cuts_connection() || !is_ready || self.final_phase.cut_connections == FINAL_CUTS {
            return false;
        }
        self.final_phase.cut_connections += 1;
        for topic in TOPICS {
            self.publish_message(topic.to_owned(), Qos::ExactlyOnce, (false, false), cx);
        }
        true
    }

    pub(super) fn has_written_retained(&self) -> bool {
        self.final_phase.written_retained == RETAINED_TOPICS
    }

    /// See [`super::MqttClientPlan::inspects_retained`].
    fn inspect_retained(&mut self, cx: &RunContext<'_>) {
        let is_ready =
            self.plan.inspects_retained.is_some() && cx.mqtt_oracle.is_subscribed(self.number);
        if is_ready && !std::mem::replace(&mut self.final_phase.has_pinged, true) {
            self.send(&Packet::PingReq);
        }
    }

    /// After the faults: reconnects once more. A client with wills leaves one that must not come, and then one that
    /// must.
    fn reconnect_finally(
        &mut self,
        since: Time,
        faults_ended_at: Time,
        cx: &mut RunContext<'_>,
    ) -> ClientAction {
        let is_calm = since >= faults_ended_at + FAULT_EFFECT_TIME;
        if self.plan.has_will && is_calm {
            if self.final_phase.cancelled_wills == 0 {
                self.final_phase.cancelled_wills = 1;
                return self.leave(since, cx);
            }
            if self.final_phase.left_wills == 0
                && let Some(id) = self.will.take()
            {
                self.final_phase.left_wills = 1;
                cx.mqtt_oracle.will_due(cx.now, id, cx.find_bound_queue);
                return ClientAction::Disconnect;
            }
        }
        if self.plan.has_will
            && !is_calm
            && self.final_phase.cancelled_wills == 0
            && cx.now >= faults_ended_at + FAULT_EFFECT_TIME
        {
            return self.leave(since, cx);
        }
        let must_reconnect = !self.plan.filters.is_empty() && self.plan.inspects_retained.is_none();
        if must_reconnect
            && !self.final_phase.has_reconnected
            && cx.now >= faults_ended_at + FAULT_EFFECT_TIME
        {
            self.final_phase.has_reconnected = true;
            return ClientAction::Reconnect;
        }
        ClientAction::Continue
    }

    /// Whether it has all its subscriptions, and has received a message that was published since.
    pub(super) fn has_received_all(&self, cx: &RunContext<'_>) -> bool {
        let Some(faults_ended_at) = cx.faults_ended_at else {
            return false;
        };
        if self.plan.filters.is_empty() {
            return true;
        }
        let is_open = self.link.as_ref().is_some_and(|l| l.open);
        is_open
            && self.final_phase.has_reconnected
            && self.plan.filters.iter().all(|(filter, _)| {
                let since = cx.mqtt_oracle.subscribed_since(self.number, filter);
                let since = since.map(|since| since.max(faults_ended_at + FAULT_EFFECT_TIME));
                // Wills are few, so the client only waits for those that are owed.
                let is_will = !is_shared(filter) && filter.starts_with('w');
                since.is_some_and(|at| {
                    is_will || cx.mqtt_oracle.has_received_since(self.number, filter, at)
                })
            })
    }
}
