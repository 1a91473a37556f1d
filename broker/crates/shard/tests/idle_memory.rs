//! What connections hold in memory while nothing happens: session, shard and hub together, without sockets. A bound is what was
//! found and a little more: who makes it grow is to notice.

#[path = "../../queue/benches/counting.rs"]
mod counting;

mod cluster;

use cluster::Cluster;
use cluster::mqtt::Crowd;
use counting::{Counting, LIVE};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Connections that the mean is taken of; as many are there before, so that what all share is not counted.
const MANY: usize = 8192;

fn held_by_each(
    cluster: &mut Cluster,
    crowd: &mut Crowd,
    step: impl FnOnce(&mut Cluster, &mut Crowd),
) -> u64 {
    let before = LIVE.load(Relaxed);
    step(cluster, crowd);
    // Waiting for CONNECT is over by then.
    cluster.pass(Duration::from_secs(11));
    (LIVE.load(Relaxed) - before) / MANY as u64
}

/// Alone in this file: what other tests hold at the same time would be counted too.
#[test]
fn an_idle_client_of_mqtt_is_small() {
    let mut cluster = Cluster::new(1);
    let mut crowd = Crowd::new(0);
    crowd.grow(&mut cluster, MANY);
    let idle = held_by_each(&mut cluster, &mut crowd, |c, crowd| crowd.grow(c, 2 * MANY));
    let subscribed = held_by_each(&mut cluster, &mut crowd, |c, crowd| {
        crowd.subscribe(c, MANY, |n| format!("devices/{n}/in"));
    });
    println!("idle {idle} B, its subscription {subscribed} B");
    assert!(idle <= 242, "{idle} B");
    assert!(subscribed <= 228, "{subscribed} B");
}
