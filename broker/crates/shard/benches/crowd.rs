//! What very many clients of MQTT cost one shard: sessions, shard and hub together, without sockets.
//!
//! `cargo bench -p shard --bench crowd` does it with a million, `crowd COUNT` with so many. Bytes are those that were asked of the
//! allocator; "most" is the most that was held at a time.

#[path = "../tests/cluster/mod.rs"]
mod cluster;
#[path = "../../queue/benches/counting.rs"]
mod counting;

use cluster::Cluster;
use cluster::mqtt::{Crowd, MqttClient};
use codec_mqtt::{Properties, Qos};
use counting::{Counting, LIVE};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const COUNT: usize = 1_000_000;
/// Publishes that the cost of a match is the mean of.
const MATCHES: usize = 10_000;

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn live() -> f64 {
    LIVE.load(Relaxed) as f64
}

/// Tells what a step did for each of `count`.
fn measured(what: &str, count: usize, step: impl FnOnce()) {
    let (before, began) = (live(), cpu());
    step();
    let spent = cpu().saturating_sub(began).as_nanos() as f64;
    let count = count as f64;
    let bytes = (live() - before) / count;
    println!("{what:<44}{bytes:>10.0} B{:>12.0} ns", spent / count);
}

fn publish(cluster: &mut Cluster, publisher: &mut MqttClient, topic: &str) {
    let nothing = Properties::default();
    publisher.publish(cluster, topic, Qos::AtLeastOnce, b"twelve bytes", nothing);
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let count = arguments.next().and_then(|n| n.parse().ok());
    let count = count.unwrap_or(COUNT);
    println!("{count} clients; for each of them, or of what is named");
    let mut cluster = Cluster::new(1);
    let mut publisher = MqttClient::new(&mut cluster, 0, "publisher", 0, None);
    publisher.said(&mut cluster);
    let mut crowd = Crowd::new(0);
    measured("idle", count, || {
        crowd.grow(&mut cluster, count);
        // Waiting for CONNECT is over by then.
        cluster.pass(Duration::from_secs(11));
    });
    measured("a subscription of its own, with a wildcard", count, || {
        crowd.subscribe(&mut cluster, 0, |n| format!("devices/{n}/+/in"));
    });
    measured("publish for one of them", MATCHES, || {
        for n in (0..count).step_by((count / MATCHES).max(1)) {
            publish(&mut cluster, &mut publisher, &format!("devices/{n}/x/in"));
            publisher.said(&mut cluster);
            crowd.hear(&mut cluster, n);
        }
    });
    measured("a subscription that all have", count, || {
        crowd.subscribe(&mut cluster, 0, |_| "all".to_owned());
    });
    let mut heard = 0;
    let before = live();
    measured("publish for all, not yet written", count, || {
        publish(&mut cluster, &mut publisher, "all");
    });
    let most = (live() - before) / count as f64;
    measured("the same, written", count, || {
        heard = crowd.heard(&mut cluster)
    });
    println!("most {most:.0} B for each, and {} B sent", heard / count);
}
