//! Rate limits of virtual hosts and users: publishers are paused, and no message is refused or lost.

use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Client, Cluster};
use codec_mqtt::{Packet, Properties, Publish, Qos};
use control::{ControlRequest, StoredBytesFacts};
use metadata::{Change, PermissionRecord};
use std::collections::BTreeMap;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(10);
const MINUTE: Duration = Duration::from_secs(60);
/// Messages per second.
const RATE: u64 = 100;

fn limit_vhost(c: &mut Cluster, limit: &str, value: Option<i64>) {
    c.change(Change::SetVhostLimit {
        vhost: "/".into(),
        limit: limit.into(),
        value,
    });
    c.pass(STEP);
}

/// A client with messages that the node has not read yet.
struct Publisher {
    client: Client,
    message_bytes: usize,
}

impl Publisher {
    fn new(mut client: Client, queue: &str, count: usize, body: &[u8]) -> Publisher {
        client.write_publish(queue, body);
        let message_bytes = client.unread();
        for _ in 1..count {
            client.write_publish(queue, body);
        }
        Publisher {
            client,
            message_bytes,
        }
    }

    /// Messages of which the node has not read the last byte.
    fn unread(&self) -> u64 {
        self.client.unread().div_ceil(self.message_bytes) as u64
    }
}

/// Nodes read the sockets of all publishers for some time. Returns the messages that were read.
fn run(c: &mut Cluster, publishers: &mut [Publisher], time: Duration) -> Vec<u64> {
    let before: Vec<u64> = publishers.iter().map(Publisher::unread).collect();
    let end = c.age() + time;
    while c.age() < end {
        for publisher in &mut *publishers {
            publisher.client.be_read(c);
        }
        c.pass(STEP);
    }
    let after = publishers.iter().map(Publisher::unread);
    before.into_iter().zip(after).map(|(b, a)| b - a).collect()
}

#[track_caller]
fn assert_near(count: u64, expected: u64) {
    let range = expected - expected / 10..=expected + expected / 10;
    assert!(range.contains(&count), "{count} is not about {expected}");
}

fn paused_ms(c: &mut Cluster) -> u64 {
    let counters = c.ask(0, |reply| ControlRequest::Counters {
        everywhere: true,
        reply,
    });
    counters.iter().map(|(_, c)| c.quota_paused_ms).sum()
}

#[test]
fn one_publishing_shard_keeps_the_rate_and_nothing_is_lost() {
    let mut c = Cluster::new(1);
    c.change(Change::PutVhost {
        name: "free".into(),
        description: "".into(),
        tags: Vec::new(),
    });
    c.change(Change::PutPermission(PermissionRecord {
        user: "guest".into(),
        vhost: "free".into(),
        configure: ".*".into(),
        write: ".*".into(),
        read: ".*".into(),
    }));
    // The connection is there before the limit.
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    let count = 7000;
    let mut publishers = [Publisher::new(client, "q", count, b"body")];
    let read = run(&mut c, &mut publishers, MINUTE)[0];
    assert_near(read, 60 * RATE);
    assert_eq!(c.ready(0, "q"), read, "what was read was accepted");
    let paused = paused_ms(&mut c);
    assert!((50_000..=60_000).contains(&paused), "{paused} ms");

    // Other virtual hosts are not affected.
    let mut client = c.try_client_of_vhost(0, "free").expect("a client");
    client.declare(&mut c, "q", &[]);
    let mut unlimited = [Publisher::new(client, "q", count, b"body")];
    let read = run(&mut c, &mut unlimited, Duration::from_secs(1))[0];
    assert_eq!(read, count as u64);

    limit_vhost(&mut c, "max-message-rate", None);
    run(&mut c, &mut publishers, Duration::from_secs(2));
    assert_eq!(publishers[0].client.unread(), 0);
    assert_eq!(c.ready(0, "q"), count as u64);
}

#[track_caller]
fn two_publishing_shards(mut c: Cluster) {
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    let other = c.client(1);
    let mut publishers = [
        Publisher::new(client, "q", 10_000, b"body"),
        Publisher::new(other, "q", 3000, b"body"),
    ];
    let read = run(&mut c, &mut publishers, MINUTE);
    assert_near(read.iter().sum(), 60 * RATE);
    for each in &read {
        assert_near(*each, 30 * RATE);
    }
    assert_eq!(c.ready(0, "q"), read.iter().sum::<u64>());
    // One has no more messages, and the other one gets its share.
    run(&mut c, &mut publishers, Duration::from_secs(3));
    assert_eq!(publishers[1].unread(), 0);
    let alone = run(&mut c, &mut publishers, MINUTE)[0];
    assert_near(alone, 60 * RATE);
    limit_vhost(&mut c, "max-message-rate", Some(1_000_000));
    run(&mut c, &mut publishers, Duration::from_secs(5));
    assert_eq!(c.ready(0, "q"), 13_000);
}

#[test]
fn two_publishing_shards_of_a_node_share_the_rate() {
    two_publishing_shards(Cluster::of_shards(2));
}

#[test]
fn two_publishing_nodes_share_the_rate() {
    two_publishing_shards(Cluster::new(3));
}

#[test]
fn byte_rate_of_a_user_is_kept() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    c.change(Change::SetUserLimit {
        user: "guest".into(),
        limit: "max-byte-rate".into(),
        value: Some(10_000),
    });
    // With the properties of the message 500 bytes.
    let mut publishers = [Publisher::new(client, "q", 2000, &[1; 498])];
    let read = run(&mut c, &mut publishers, MINUTE)[0];
    assert_near(read, 60 * 20);
    assert_eq!(c.ready(0, "q"), read);
}

#[test]
fn message_larger_than_the_byte_rate_is_accepted() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    limit_vhost(&mut c, "max-byte-rate", Some(1000));
    let mut publishers = [Publisher::new(client, "q", 20, &[1; 10_000])];
    let read = run(&mut c, &mut publishers, MINUTE)[0];
    // The first one overdraws the full bucket.
    assert!((6..=8).contains(&read), "{read}");
    assert_eq!(c.ready(0, "q"), read);
}

#[test]
fn rate_below_one_message_per_shard_and_second_is_kept() {
    let mut c = Cluster::of_shards(2);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    limit_vhost(&mut c, "max-message-rate", Some(1));
    let other = c.client(1);
    let mut publishers = [client, other].map(|client| Publisher::new(client, "q", 200, b"body"));
    let read: u64 = run(&mut c, &mut publishers, MINUTE).iter().sum();
    assert_near(read, 63);
}

#[test]
fn connections_of_a_shard_share_the_rate_evenly() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    let mut clients = vec![client];
    clients.extend((0..9).map(|_| c.client(0)));
    let each = |client| Publisher::new(client, "q", 2000, b"body");
    let mut publishers: Vec<Publisher> = clients.into_iter().map(each).collect();
    // The first one has the tokens of the burst.
    run(&mut c, &mut publishers, Duration::from_secs(2));
    let read = run(&mut c, &mut publishers, MINUTE);
    assert_near(read.iter().sum(), 60 * RATE);
    for count in read {
        assert_near(count, 6 * RATE);
    }
    // One that is gone does not keep others from being read.
    publishers.remove(3).client.close_socket(&mut c);
    let read = run(&mut c, &mut publishers, MINUTE);
    assert_near(read.iter().sum(), 60 * RATE);
}

#[test]
fn limits_of_the_user_and_the_virtual_host_apply_together() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    c.change(Change::SetUserLimit {
        user: "guest".into(),
        limit: "max-message-rate".into(),
        value: Some(20),
    });
    let mut publishers = [Publisher::new(client, "q", 5000, b"body")];
    assert_near(run(&mut c, &mut publishers, MINUTE)[0], 60 * 20);
    c.change(Change::SetUserLimit {
        user: "guest".into(),
        limit: "max-message-rate".into(),
        value: Some(-1),
    });
    assert_near(run(&mut c, &mut publishers, MINUTE / 2)[0], 30 * RATE);
}

#[test]
fn mqtt_publishers_are_paused() {
    let mut c = Cluster::new(1);
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    let mut client = MqttClient::new(&mut c, 0, "publisher", 0, None);
    let publish = Packet::Publish(Publish {
        dup: false,
        qos: Qos::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: Properties::default(),
        payload: b"payload",
    });
    client.write(&publish);
    let message_bytes = client.unread();
    let count = 7000;
    (1..count).for_each(|_| client.write(&publish));
    let end = c.age() + MINUTE;
    while c.age() < end {
        client.be_read(&mut c);
        c.pass(STEP);
    }
    let read = count - client.unread().div_ceil(message_bytes);
    assert_near(read as u64, 60 * RATE);
}

#[test]
fn shard_that_is_out_of_reach_gives_its_share_to_others() {
    let mut c = Cluster::new(3);
    limit_vhost(&mut c, "max-message-rate", Some(RATE as i64));
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    let other = c.client(2);
    let mut publishers = [client, other].map(|client| Publisher::new(client, "q", 9000, b"body"));
    run(&mut c, &mut publishers, Duration::from_secs(5));
    let both = run(&mut c, &mut publishers, Duration::from_secs(10));
    assert_near(both[0], 5 * RATE);
    c.cut_off(2);
    let alone = run(&mut c, &mut publishers[..1], MINUTE)[0];
    assert_near(alone, 60 * RATE);
}

/// Body bytes of a message, and the messages that the quota of stored bytes permits.
const BODY: usize = 1000;
const STORED: u64 = 500;
/// Messages that a publisher sends in each step.
const AT_ONCE: usize = 5;
/// What publishers send until their shard knows that the quota is reached.
const OVERSHOOT: u64 = 25 * AT_ONCE as u64;

/// A publisher sends messages for some time. Returns the number that it has written.
fn publish_for(c: &mut Cluster, publisher: &mut Publisher, time: Duration) -> u64 {
    let (end, mut sent) = (c.age() + time, 0);
    while c.age() < end {
        // The socket takes no more while the node does not read.
        while publisher.unread() < AT_ONCE as u64 {
            publisher.client.write_publish("q", &[1; BODY]);
            sent += 1;
        }
        publisher.client.be_read(c);
        c.pass(STEP);
    }
    sent
}

#[track_caller]
fn assert_at_quota(c: &mut Cluster) {
    let stored = c.ready(0, "q");
    let range = STORED..=STORED + OVERSHOOT;
    assert!(range.contains(&stored), "{stored} are stored");
}

/// What each node knows of the virtual hosts with a quota of stored bytes.
fn stored_bytes(c: &mut Cluster) -> Vec<BTreeMap<String, StoredBytesFacts>> {
    let counters = c.ask(0, |reply| ControlRequest::Counters {
        everywhere: true,
        reply,
    });
    counters.into_iter().map(|(_, c)| c.stored_bytes).collect()
}

#[track_caller]
fn stored_bytes_are_bounded(mut c: Cluster, queue_type: &str, publisher: Option<usize>) {
    let mut consumer = c.client(0);
    consumer.declare(&mut c, "q", &[("x-queue-type", queue_type.into())]);
    let publisher = publisher.unwrap_or_else(|| (c.owner_shard("q") + 1) % 2);
    let mut early = Publisher::new(c.client(publisher), "q", 1, &[1; BODY]);
    limit_vhost(
        &mut c,
        "max-stored-bytes",
        Some((STORED * BODY as u64) as i64),
    );
    let mut sent = 2 + publish_for(&mut c, &mut early, Duration::from_secs(5));
    assert_at_quota(&mut c);
    for known in stored_bytes(&mut c) {
        let facts = known["/"];
        assert_eq!(facts.limit, STORED * BODY as u64);
        assert!(facts.is_blocked && facts.stored >= facts.limit, "{facts:?}");
    }
    // A connection that comes now is blocked with its first message.
    let stored = c.ready(0, "q");
    let mut late = Publisher::new(c.client(publisher), "q", 1, &[1; BODY]);
    sent += publish_for(&mut c, &mut late, Duration::from_secs(2));
    assert_eq!(c.ready(0, "q"), stored);
    // Consumers make room, and publishers fill it.
    let consumed = stored - (STORED - 100);
    for _ in 0..consumed {
        let got = consumer.must_get(&mut c, "q");
        consumer.acknowledge(&mut c, got.tag);
    }
    sent += publish_for(&mut c, &mut late, Duration::from_secs(2));
    assert_at_quota(&mut c);
    limit_vhost(&mut c, "max-stored-bytes", None);
    sent += publish_for(&mut c, &mut late, Duration::from_secs(1));
    sent += publish_for(&mut c, &mut early, Duration::from_secs(1));
    assert_eq!((early.unread(), late.unread()), (0, 0));
    assert!(stored_bytes(&mut c).iter().all(BTreeMap::is_empty));
    assert_eq!(c.ready(0, "q"), sent - consumed, "no message is lost");
}

#[test]
fn stored_bytes_of_a_classic_queue_are_bounded() {
    stored_bytes_are_bounded(Cluster::new(1), "classic", Some(0));
}

#[test]
fn stored_bytes_of_a_quorum_queue_are_bounded() {
    stored_bytes_are_bounded(Cluster::new(3), "quorum", Some(0));
}

#[test]
fn publisher_on_another_shard_than_the_queue_is_blocked() {
    stored_bytes_are_bounded(Cluster::of_shards(2), "classic", None);
}
