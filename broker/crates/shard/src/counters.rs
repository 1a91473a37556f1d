//! What the sessions of a shard have counted, by protocol and virtual host, those that are gone included.

use crate::FixedState;
use control::{LoginCounts, ProtocolCounters, StreamProtocolCounters};
use hashbrown::HashMap;
use metadata::{Name, Traffic};
use queue::ByQueueType;
use session::MessageCounters;
use slots::Slab;
use std::collections::BTreeMap;

/// Sessions of one protocol in one virtual host.
struct ProtocolSum {
    protocol: &'static str,
    /// None: it was deleted.
    vhost: Option<Name>,
    /// Those that count here.
    sessions: u32,
    message_counters: MessageCounters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub connections_opened: u64,
    pub connections_closed: u64,
    pub channels_opened: u64,
    pub channels_closed: u64,
    sums: Slab<ProtocolSum>,
    /// Of virtual hosts that are there.
    by_vhost: HashMap<Name, Vec<u32>, FixedState>,
    /// What belongs to no virtual host, or to one that is gone.
    others: Vec<(&'static str, MessageCounters)>,
    /// By protocol.
    logins: BTreeMap<&'static str, LoginCounts>,
    stream: StreamProtocolCounters,
}

impl Counters {
    /// What belongs to no virtual host.
    pub(crate) fn add(&mut self, protocol: &'static str, message_counters: &MessageCounters) {
        match self.others.iter_mut().find(|(p, _)| *p == protocol) {
            Some((_, sum)) => sum.add(message_counters),
            None => self.others.push((protocol, *message_counters)),
        }
    }

    pub(crate) fn add_at(&mut self, at: u32, message_counters: &MessageCounters) {
        if let Some(sum) = self.sums.get_mut(at as usize) {
            sum.message_counters.add(message_counters);
        }
    }

    /// One session more counts there. Where.
    pub(crate) fn join(&mut self, protocol: &'static str, vhost: &Name) -> u32 {
        let there = self.by_vhost.entry(vhost.clone()).or_default();
        let found = there.iter().copied().find(|at| {
            let sum = self.sums.get(*at as usize);
            sum.is_some_and(|sum| sum.protocol == protocol)
        });
        let at = found.unwrap_or_else(|| {
            let at = self.sums.insert(ProtocolSum {
                protocol,
                vhost: Some(vhost.clone()),
                sessions: 0,
                message_counters: MessageCounters::default(),
            }) as u32;
            there.push(at);
            at
        });
        if let Some(sum) = self.sums.get_mut(at as usize) {
            sum.sessions += 1;
        }
        at
    }

    /// A session counts there no more.
    pub(crate) fn leave(&mut self, at: u32) {
        if let Some(sum) = self.sums.get_mut(at as usize) {
            sum.sessions = sum.sessions.saturating_sub(1);
        }
        self.drop_unused(at);
    }

    /// The counts of a virtual host that is gone stay those of their protocol.
    fn drop_unused(&mut self, at: u32) {
        let unused = |sum: &ProtocolSum| sum.sessions == 0 && sum.vhost.is_none();
        if self.sums.get(at as usize).is_some_and(unused)
            && let Some(sum) = self.sums.remove(at as usize)
        {
            self.add(sum.protocol, &sum.message_counters);
        }
    }

    pub(crate) fn vhost_removed(&mut self, vhost: &str) {
        for at in self.by_vhost.remove(vhost).unwrap_or_default() {
            if let Some(sum) = self.sums.get_mut(at as usize) {
                sum.vhost = None;
            }
            self.drop_unused(at);
        }
    }

    /// Only these virtual hosts are there.
    pub(crate) fn keep_vhosts(&mut self, is_there: impl Fn(&str) -> bool) {
        let names = self.by_vhost.keys().filter(|name| !is_there(name));
        for gone in names.cloned().collect::<Vec<_>>() {
            self.vhost_removed(&gone);
        }
    }

    fn of_vhost(&self, vhost: &str) -> impl Iterator<Item = &ProtocolSum> {
        let there = self.by_vhost.get(vhost).into_iter().flatten();
        there.filter_map(|at| self.sums.get(*at as usize))
    }

    /// What clients did in a virtual host.
    pub(crate) fn messages(&self, vhost: &str) -> control::MessageCounts {
        let mut all = control::Counters::default();
        for sum in self.of_vhost(vhost) {
            let protocol = all.protocols.entry(sum.protocol.to_owned()).or_default();
            protocol.add(&counters(&sum.message_counters));
        }
        all.messages()
    }

    /// Publishes in a virtual host by sessions with the selected protocol labels.
    pub(crate) fn published_by(&self, vhost: &str, is_selected: impl Fn(&str) -> bool) -> Traffic {
        let mut all = Traffic::default();
        for sum in self.of_vhost(vhost).filter(|s| is_selected(s.protocol)) {
            all.published += sum.message_counters.publishes.received;
            all.routed += sum.message_counters.publishes.routed;
        }
        all
    }

    pub(crate) fn count_login(&mut self, protocol: &'static str, succeeded: bool) {
        self.logins.entry(protocol).or_default().count(succeeded);
    }

    /// A connection of the stream protocol opens (1) or ends (-1).
    pub(crate) fn count_stream_connection(&mut self, change: i64) {
        self.stream.connections += change;
    }

    /// A client of the stream protocol is sent an error.
    pub(crate) fn count_stream_error(&mut self, error: &'static str) {
        match self.stream.errors.get_mut(error) {
            Some(count) => *count += 1,
            None => {
                self.stream.errors.insert(error.to_owned(), 1);
            }
        }
    }

    pub(crate) fn stream(&self) -> &StreamProtocolCounters {
        &self.stream
    }

    pub(crate) fn logins(&self) -> BTreeMap<String, LoginCounts> {
        let logins = self.logins.iter();
        logins.map(|(name, l)| ((*name).to_owned(), *l)).collect()
    }

    pub(crate) fn protocols(&self) -> BTreeMap<String, ProtocolCounters> {
        let mut all = BTreeMap::new();
        let sums = self
            .sums
            .iter()
            .map(|(_, sum)| (sum.protocol, &sum.message_counters));
        let others = self
            .others
            .iter()
            .map(|(protocol, message_counters)| (*protocol, message_counters));
        for (protocol, message_counters) in sums.chain(others) {
            let sum: &mut ProtocolCounters = all.entry(protocol.to_owned()).or_default();
            sum.add(&counters(message_counters));
        }
        all
    }
}

/// Under the API's names.
fn counters(message_counters: &MessageCounters) -> ProtocolCounters {
    let publishes = &message_counters.publishes;
    ProtocolCounters {
        received: publishes.received,
        received_confirm: publishes.received_confirm,
        confirmed: publishes.confirmed,
        routed: publishes.routed,
        unroutable_returned: publishes.unroutable_returned,
        unroutable_dropped: publishes.unroutable_dropped,
        by_queue_type: ByQueueType::from_fn(|t| (&message_counters.deliveries[t]).into()),
        queueless: (&message_counters.queueless).into(),
        traffic: traffic_counts(&message_counters.traffic),
        publishers: message_counters.publishers,
        consumers: message_counters.consumers,
        sizes: size_counts(&message_counters.sizes),
    }
}

fn size_counts(sizes: &session::MessageSizes) -> control::MessageSizeCounts {
    let [classes @ .., larger] = sizes.counts;
    control::MessageSizeCounts {
        classes: control::MESSAGE_SIZE_BOUNDS
            .into_iter()
            .zip(classes)
            .collect(),
        larger,
        bytes: sizes.bytes,
    }
}

fn traffic_counts(traffic: &session::TrafficCounters) -> control::TrafficCounts {
    control::TrafficCounts {
        connects: traffic.connects,
        packets_in: traffic.packets_in,
        packets_out: traffic.packets_out,
        bytes_in: traffic.bytes_in,
        bytes_out: traffic.bytes_out,
        payload_in: traffic.payload_in,
        payload_out: traffic.payload_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(count: u64) -> MessageCounters {
        let mut message_counters = MessageCounters::default();
        message_counters.publishes.received = count;
        message_counters
    }

    fn publish(all_counters: &Counters, vhost: &str) -> u64 {
        all_counters.messages(vhost).publish
    }

    #[test]
    fn a_virtual_host_has_its_own_and_a_protocol_keeps_those_of_one_that_is_gone() {
        let mut all_counters = Counters::default();
        let (a, b): (Name, Name) = ("a".into(), "b".into());
        let (amqp, mqtt) = (
            all_counters.join("amqp091", &a),
            all_counters.join("mqtt50", &a),
        );
        assert_eq!(all_counters.join("amqp091", &a), amqp);
        let other = all_counters.join("amqp091", &b);
        all_counters.add_at(amqp, &received(1));
        all_counters.add_at(mqtt, &received(10));
        all_counters.add_at(other, &received(100));
        all_counters.add("amqp091", &received(1000));
        assert_eq!(
            (publish(&all_counters, "a"), publish(&all_counters, "b")),
            (11, 100)
        );
        assert_eq!(publish(&all_counters, "none"), 0);
        assert_eq!(
            all_counters.published_by("a", |p| p == "mqtt50").published,
            10
        );
        let sum = |t: &Counters| t.protocols()["amqp091"].received;
        assert_eq!(sum(&all_counters), 1101);

        // Its sessions take a moment to end, and the name may come again meanwhile.
        all_counters.vhost_removed("a");
        assert_eq!(publish(&all_counters, "a"), 0);
        let again = all_counters.join("amqp091", &a);
        assert_ne!(again, amqp);
        all_counters.add_at(amqp, &received(1));
        all_counters.leave(amqp);
        all_counters.leave(amqp);
        all_counters.leave(mqtt);
        assert_eq!((publish(&all_counters, "a"), sum(&all_counters)), (0, 1102));
        assert_eq!(all_counters.sums.len(), 2, "what is in use, and no more");

        // Clients that are gone count on where the virtual host is there.
        all_counters.leave(other);
        assert_eq!(publish(&all_counters, "b"), 100);
        all_counters.keep_vhosts(|name| name == "a");
        assert_eq!((publish(&all_counters, "b"), sum(&all_counters)), (0, 1102));
        assert_eq!(
            (all_counters.sums.len(), all_counters.by_vhost.len()),
            (1, 1)
        );
    }
}
