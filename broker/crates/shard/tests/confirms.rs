//! How long a publisher waits for its confirm: no timer may be part of it.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;

/// Confirms that arrive while the clock stands still, for publishes that wait for each other.
fn confirms_without_time(kind: &str, publishes: usize, consumed: bool) -> usize {
    let mut cluster = Cluster::new(1);
    let mut publisher = cluster.client(0);
    let kind = [("x-queue-type", Value::from(kind))];
    publisher.declare(&mut cluster, "q", &kind);
    publisher.call(&mut cluster, 1, Method::ConfirmSelect { no_wait: false });
    let mut consumer = cluster.client(0);
    if consumed {
        consumer.consume(&mut cluster, "q");
        // The queue learns that this consumer does not acknowledge in time.
        publish(&mut cluster, &mut publisher);
        assert_eq!(publisher.next_method(&mut cluster), confirm(1));
    }
    let before = cluster.age();
    let first = 1 + u64::from(consumed);
    let confirmed = (first..first + publishes as u64).take_while(|number| {
        publish(&mut cluster, &mut publisher);
        let confirmed = publisher.next_method_now(&mut cluster);
        confirmed.is_some_and(|method| method == confirm(*number))
    });
    let confirmed = confirmed.count();
    assert_eq!(cluster.age(), before, "the clock stands still");
    confirmed
}

fn publish(cluster: &mut Cluster, publisher: &mut Client) {
    let persistent = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    publisher.publish(cluster, "", "q", &persistent, b"hello");
}

fn confirm(delivery_tag: u64) -> String {
    let multiple = false;
    let ack = Method::BasicAck {
        delivery_tag,
        multiple,
    };
    format!("{ack:?}")
}

#[test]
fn a_classic_queue_confirms_a_lone_publish_without_a_timer() {
    assert_eq!(confirms_without_time("classic", 100, false), 100);
}

#[test]
fn a_classic_queue_with_a_slow_consumer_confirms_without_a_timer() {
    assert_eq!(confirms_without_time("classic", 100, true), 100);
}

#[test]
fn a_quorum_queue_confirms_a_lone_publish_without_a_timer() {
    assert_eq!(confirms_without_time("quorum", 100, false), 100);
}

/// A session whose shard has no replica of the queue does not know the leader. It must not wait for a member that is down.
#[test]
fn new_sessions_find_the_leader_without_waiting_for_a_dead_member() {
    let mut cluster = Cluster::new(4);
    let mut declarer = cluster.client(0);
    let arguments = [
        ("x-queue-type", Value::from("quorum")),
        ("x-quorum-initial-group-size", Value::I64(3)),
    ];
    declarer.declare(&mut cluster, "q", &arguments);
    let members: Vec<usize> = cluster
        .replicas(0, "q")
        .iter()
        .map(|r| r.node.0 as usize - 1)
        .collect();
    let outside = (0..4)
        .find(|at| !members.contains(at))
        .expect("a node without a replica");
    let first = members[0];
    cluster.kill(first);
    let observer = members[1];
    cluster.until("the next leader", |c| {
        let leader = c.queue(observer, "q")?.leader?;
        (leader.0 as usize - 1 != first).then_some(())
    });
    let mut client = cluster.client(outside);
    let before = cluster.age();
    client.declare(&mut cluster, "q", &arguments);
    assert_eq!(cluster.age(), before, "the clock stands still");
}
