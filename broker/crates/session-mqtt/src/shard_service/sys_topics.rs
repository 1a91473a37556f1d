//! The state of this node in the topics below `$SYS/broker/`, with Mosquitto's names, while a client of
//! this shard subscribes to them.

use super::state;
use control::{Counters, ProtocolCounters};
use env::Time;
use session::ServiceHost;

/// Number of periods over which a load is averaged.
const AVERAGES: usize = 3;
/// The periods in seconds.
const SECONDS: [f64; AVERAGES] = [60.0, 300.0, 900.0];

/// Returns true for the labels of MQTT in counters (`mqtt50`, `web_mqtt311`, …).
pub(super) fn is_mqtt(protocol: &str) -> bool {
    protocol.contains("mqtt")
}

/// Counters since the start of the node.
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
        for (_, counts) in protocols.filter(|(name, _)| is_mqtt(name)) {
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

/// A load: the counter whose growth it is, and its topics.
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

/// The loads at the last update: growth per minute as a moving average with exponential weights over
/// each of [`SECONDS`].
#[derive(Default)]
pub(super) struct SysTopics {
    last: Option<(Time, SysTotals)>,
    loads: [[f64; AVERAGES]; LOADS.len()],
}

impl SysTopics {
    /// Adds the growth since the last update. The first update has nothing to compare with.
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

/// All topics except loads, with their values. `uptime` is in seconds.
fn values(version: &str, uptime: u64, counters: &Counters) -> Vec<(&'static str, String)> {
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
        ("$SYS/broker/uptime", format!("{uptime} seconds")),
    ];
    all.extend(numbers.map(|(topic, number)| (topic, number.to_string())));
    all
}

/// Publishes the state of the node. `counters` are those of all its shards.
pub(super) fn update(host: &mut dyn ServiceHost, counters: &Counters) {
    let (now, wall) = (host.now(), host.wall());
    let uptime = now.since(host.started_at()).as_secs();
    let mut all = values(host.version(), uptime, counters);
    let Some(shard) = state(host) else { return };
    shard.sys_topics.advance(now, SysTotals::of(counters));
    all.extend(shard.sys_topics.loads());
    let exchange = &shard.settings.exchange;
    shard.router.set_sys_topics((now, wall), exchange, all);
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
    fn load_is_growth_per_minute_and_fades() {
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
        // 600 per minute during one minute: 1 - 1/e of it.
        figures.advance(after(60), totals(1600));
        assert_eq!(load(&figures, short).as_deref(), Some("379.27"));
        assert_eq!(load(&figures, long).as_deref(), Some("38.70"));
        assert_eq!(
            load(&figures, "$SYS/broker/load/publish/sent/1min").as_deref(),
            Some("0.00")
        );
        // Neither the same time again nor a counter that starts again is growth.
        figures.advance(after(60), totals(0));
        figures.advance(after(6000), totals(0));
        assert_eq!(load(&figures, short).as_deref(), Some("0.00"));
    }

    #[test]
    fn each_topic_occurs_once_and_is_reserved_for_the_server() {
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
        let mut all = values("1.2.3", 7, &counters);
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
                topics::is_sys_topic(topic) && check_name(topic).is_ok(),
                "{topic}"
            );
        }
    }
}
