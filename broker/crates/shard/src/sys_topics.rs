//! What this node says of itself under `$SYS/broker/`, in mosquitto's words, while an MQTT client of this shard listens.

use crate::core::Core;
use crate::listings::ListingTarget;
use control::{Counters, ProtocolCounters, ShardFacts, ShardQuery};
use env::Time;

/// Minutes over which a load is averaged, and how many seconds those are.
const AVERAGES: usize = 3;
const SECONDS: [f64; AVERAGES] = [60.0, 300.0, 900.0];

/// What grows while the node lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SysTotals {
    connects: u64,
    packets_in: u64,
    packets_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    payload_in: u64,
    payload_out: u64,
    published: u64,
    delivered: u64,
    dropped: u64,
}

impl SysTotals {
    fn of(counters: &Counters) -> SysTotals {
        let mqtt = &counters.mqtt;
        let mut sum = SysTotals {
            dropped: mqtt.dropped + mqtt.not_kept + mqtt.dropped_between + mqtt.lost_between,
            ..SysTotals::default()
        };
        let protocols = counters.protocols.iter();
        for (_, counts) in protocols.filter(|(name, _)| name.contains("mqtt")) {
            sum.add(counts);
        }
        sum
    }

    fn add(&mut self, counts: &ProtocolCounters) {
        let traffic = &counts.traffic;
        self.connects += traffic.connects;
        self.packets_in += traffic.packets_in;
        self.packets_out += traffic.packets_out;
        self.bytes_in += traffic.bytes_in;
        self.bytes_out += traffic.bytes_out;
        self.payload_in += traffic.payload_in;
        self.payload_out += traffic.payload_out;
        self.published += counts.received;
        for sent in (counts.by_queue_type.values()).chain([&counts.queueless]) {
            self.delivered += sent.deliver_get();
        }
    }
}

/// A load: the total that it is the growth of, and its topics.
type SysLoad = (fn(&SysTotals) -> u64, [&'static str; AVERAGES]);

const LOADS: [SysLoad; 8] = [
    (
        |t| t.connects,
        [
            "$SYS/broker/load/connections/1min",
            "$SYS/broker/load/connections/5min",
            "$SYS/broker/load/connections/15min",
        ],
    ),
    (
        |t| t.packets_in,
        [
            "$SYS/broker/load/messages/received/1min",
            "$SYS/broker/load/messages/received/5min",
            "$SYS/broker/load/messages/received/15min",
        ],
    ),
    (
        |t| t.packets_out,
        [
            "$SYS/broker/load/messages/sent/1min",
            "$SYS/broker/load/messages/sent/5min",
            "$SYS/broker/load/messages/sent/15min",
        ],
    ),
    (
        |t| t.bytes_in,
        [
            "$SYS/broker/load/bytes/received/1min",
            "$SYS/broker/load/bytes/received/5min",
            "$SYS/broker/load/bytes/received/15min",
        ],
    ),
    (
        |t| t.bytes_out,
        [
            "$SYS/broker/load/bytes/sent/1min",
            "$SYS/broker/load/bytes/sent/5min",
            "$SYS/broker/load/bytes/sent/15min",
        ],
    ),
    (
        |t| t.published,
        [
            "$SYS/broker/load/publish/received/1min",
            "$SYS/broker/load/publish/received/5min",
            "$SYS/broker/load/publish/received/15min",
        ],
    ),
    (
        |t| t.delivered,
        [
            "$SYS/broker/load/publish/sent/1min",
            "$SYS/broker/load/publish/sent/5min",
            "$SYS/broker/load/publish/sent/15min",
        ],
    ),
    (
        |t| t.dropped,
        [
            "$SYS/broker/load/publish/dropped/1min",
            "$SYS/broker/load/publish/dropped/5min",
            "$SYS/broker/load/publish/dropped/15min",
        ],
    ),
];

/// Loads as they were told last: growth a minute, averaged with weights that fall off over each of [`SECONDS`].
#[derive(Default)]
pub struct SysTopics {
    last: Option<(Time, SysTotals)>,
    loads: [[f64; AVERAGES]; LOADS.len()],
}

impl SysTopics {
    /// Takes in what there is since the last time; the first time there is nothing to compare with.
    fn advance(&mut self, now: Time, totals: SysTotals) {
        let Some((then, before)) = self.last.replace((now, totals)) else {
            return;
        };
        let seconds = (now.0.saturating_sub(then.0)) as f64 / 1e9;
        if seconds <= 0.0 {
            return;
        }
        for ((total, _), averages) in LOADS.iter().zip(&mut self.loads) {
            let grown = total(&totals).saturating_sub(total(&before));
            let rate = grown as f64 * 60.0 / seconds;
            for (average, over) in averages.iter_mut().zip(SECONDS) {
                *average = rate + (-seconds / over).exp() * (*average - rate);
            }
        }
    }

    fn loads(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = LOADS.iter().zip(&self.loads);
        all.flat_map(|((_, topics), averages)| {
            let averages = averages.iter().map(|average| format!("{average:.2}"));
            topics.iter().copied().zip(averages)
        })
    }
}

/// Everything but loads. `lived` is in seconds.
fn told(version: &str, lived: u64, counters: &Counters) -> Vec<(&'static str, String)> {
    let (mqtt, queues) = (&counters.mqtt, &counters.queues);
    let totals = SysTotals::of(counters);
    let stored = queues.ready + queues.unacknowledged + mqtt.retained;
    let stored_bytes = queues.bytes + mqtt.retained_bytes;
    let numbers = [
        (
            "$SYS/broker/clients/total",
            mqtt.connected + mqtt.sessions_away,
        ),
        ("$SYS/broker/clients/maximum", mqtt.most),
        ("$SYS/broker/clients/connected", mqtt.connected),
        ("$SYS/broker/clients/active", mqtt.connected),
        ("$SYS/broker/clients/disconnected", mqtt.sessions_away),
        ("$SYS/broker/clients/inactive", mqtt.sessions_away),
        ("$SYS/broker/clients/expired", mqtt.expired),
        ("$SYS/broker/messages/received", totals.packets_in),
        ("$SYS/broker/messages/sent", totals.packets_out),
        ("$SYS/broker/messages/stored", stored),
        ("$SYS/broker/store/messages/count", stored),
        ("$SYS/broker/store/messages/bytes", stored_bytes),
        ("$SYS/broker/subscriptions/count", mqtt.subscriptions),
        ("$SYS/broker/retained messages/count", mqtt.retained),
        ("$SYS/broker/bytes/received", totals.bytes_in),
        ("$SYS/broker/bytes/sent", totals.bytes_out),
        ("$SYS/broker/publish/messages/received", totals.published),
        ("$SYS/broker/publish/messages/sent", totals.delivered),
        ("$SYS/broker/publish/messages/dropped", totals.dropped),
        ("$SYS/broker/publish/bytes/received", totals.payload_in),
        ("$SYS/broker/publish/bytes/sent", totals.payload_out),
    ];
    let mut all = vec![
        ("$SYS/broker/version", format!("posthorn version {version}")),
        ("$SYS/broker/uptime", format!("{lived} seconds")),
    ];
    all.extend(numbers.map(|(topic, number)| (topic, number.to_string())));
    all
}

impl Core {
    /// An MQTT client listens: the shards of this node are asked, this one first.
    pub fn ask_figures(&mut self) {
        let sum = ListingTarget::Figures(Box::default());
        let token = self.ask_shards(&ShardQuery::Counters, false, sum);
        let own = ShardFacts::Counters(Box::new(self.counters()));
        let me = (self.me(), self.now);
        self.listings.take(token, me, true, Some(own));
    }

    /// They have answered.
    pub fn tell_figures(&mut self) {
        let Some(counters) = self.listings.take_figures() else {
            return;
        };
        let lived = self.now.0.saturating_sub(self.started.0) / 1_000_000_000;
        let mut all = told(self.config.program.version, lived, &counters);
        self.figures.advance(self.now, SysTotals::of(&counters));
        all.extend(self.figures.loads());
        let exchange = &self.config.mqtt.exchange;
        self.topics
            .say_figures((self.now, self.wall), exchange, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_mqtt::check_name;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn after(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_load_is_the_growth_a_minute_and_fades() {
        let mut figures = SysTopics::default();
        let totals = |published| SysTotals {
            published,
            ..SysTotals::default()
        };
        let load = |figures: &SysTopics, topic: &str| {
            let mut all = figures.loads();
            all.find(|(t, _)| *t == topic).map(|(_, value)| value)
        };
        let (short, long) = (
            "$SYS/broker/load/publish/received/1min",
            "$SYS/broker/load/publish/received/15min",
        );
        figures.advance(after(0), totals(1000));
        assert_eq!(load(&figures, short).as_deref(), Some("0.00"));
        // 600 a minute, for a minute: 1 - 1/e of it.
        figures.advance(after(60), totals(1600));
        assert_eq!(load(&figures, short).as_deref(), Some("379.27"));
        assert_eq!(load(&figures, long).as_deref(), Some("38.70"));
        assert_eq!(
            load(&figures, "$SYS/broker/load/publish/sent/1min").as_deref(),
            Some("0.00")
        );
        // The same moment again, and a counter that begins anew, are no growth.
        figures.advance(after(60), totals(0));
        figures.advance(after(6000), totals(0));
        assert_eq!(load(&figures, short).as_deref(), Some("0.00"));
    }

    #[test]
    fn each_topic_is_said_once_and_is_the_servers() {
        let mut counters = Counters::default();
        counters.mqtt.connected = 3;
        counters.mqtt.sessions_away = 4;
        for (name, received) in [("mqtt50", 5), ("web_mqtt311", 6), ("amqp091", 100)] {
            let counts = ProtocolCounters {
                received,
                ..ProtocolCounters::default()
            };
            counters.protocols.insert(name.to_owned(), counts);
        }
        let mut all = told("1.2.3", 7, &counters);
        let value = |topic: &str| {
            all.iter()
                .find(|(t, _)| *t == topic)
                .map(|(_, v)| v.clone())
        };
        assert_eq!(
            value("$SYS/broker/version").as_deref(),
            Some("posthorn version 1.2.3")
        );
        assert_eq!(value("$SYS/broker/uptime").as_deref(), Some("7 seconds"));
        assert_eq!(value("$SYS/broker/clients/total").as_deref(), Some("7"));
        assert_eq!(
            value("$SYS/broker/publish/messages/received").as_deref(),
            Some("11")
        );
        all.extend(SysTopics::default().loads());
        let topics: BTreeSet<&str> = all.iter().map(|(topic, _)| *topic).collect();
        assert_eq!(topics.len(), all.len());
        for topic in topics {
            assert!(
                topics::is_servers(topic) && check_name(topic).is_ok(),
                "{topic}"
            );
        }
    }
}
