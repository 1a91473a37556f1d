//! Clients that make the node hold memory, beside clients that follow the protocol: one budget bounds the first and spares the second.

use crate::cluster::MQTT;
use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Client, Cluster, RawConnection};
use codec_amqp091::Properties;
use codec_mqtt::{Properties as MqttProperties, Qos};
use shard::MemoryBudget;
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes that arrive in one turn before the shard looks at the budget again.
const TURN: usize = 2 * MIB;

fn publish_and_get(cluster: &mut Cluster, client: &mut Client) {
    client.publish(cluster, "", "honest", &Properties::default(), b"body");
    client.must_get(cluster, "honest");
}

#[test]
fn unfinished_logins_stay_within_their_share_and_clients_with_a_login_live() {
    let budget = MemoryBudget::of(51 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut honest = c.client(0);
    honest.declare(&mut c, "honest", &[]);
    // CONNECT of 3.1.1 that announces 64,000 bytes; 60 KiB of them come.
    let mut connect = vec![
        0x10, 0x80, 0xf4, 0x03, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 60, 0xf0, 0,
    ];
    connect.resize(60 * KIB, b'a');
    let mut attackers: Vec<RawConnection> = Vec::new();
    let mut most = 0;
    for number in 0..9_000 {
        let mut attacker = RawConnection::new(&mut c, 0, MQTT);
        attacker.send(&mut c, &connect);
        attackers.push(attacker);
        if number % (TURN / connect.len()) == 0 {
            c.turn(0);
            attackers.retain_mut(|a| !a.is_over(&mut c));
        }
        if number % 1_000 == 0 {
            publish_and_get(&mut c, &mut honest);
        }
        most = most.max(attackers.iter().map(RawConnection::kept).sum());
    }
    assert!(
        most <= budget.unauthenticated + TURN,
        "{most} bytes were held"
    );
    assert!(
        most >= budget.unauthenticated / 2,
        "only {most} bytes: no attack"
    );
    publish_and_get(&mut c, &mut honest);
    assert!(!honest.is_closing(&mut c));
    // The last ones are still there; the oldest went first.
    let newest = attackers.last().map(RawConnection::kept);
    assert_eq!(newest, Some(connect.len()));
    c.pass(Duration::from_secs(11));
    attackers.retain_mut(|a| !a.is_over(&mut c));
    assert!(attackers.is_empty(), "the login timeout ends the rest");
    c.pass(Duration::from_secs(1));
    assert_eq!((budget.node.all(), budget.node.unauthenticated()), (0, 0));
}

#[test]
fn qos_0_for_silent_subscribers_is_dropped_before_anybody_is_closed() {
    let budget = MemoryBudget::of(8 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut publisher = MqttClient::new(&mut c, 0, "publisher", 0, None);
    let mut reader = MqttClient::new(&mut c, 0, "reader", 0, None);
    reader.subscribe(&mut c, "t/+", Qos::AtMostOnce);
    let mut silent: Vec<MqttClient> = (0..20)
        .map(|n| MqttClient::new(&mut c, 0, &format!("silent-{n}"), 0, None))
        .collect();
    // Each has a topic of its own: messages for all of them would be in memory once.
    for (client, n) in silent.iter_mut().zip(0..) {
        client.subscribe(&mut c, &format!("t/{n}"), Qos::AtMostOnce);
        client.read(&mut c);
    }
    reader.read(&mut c);
    let payload = vec![1; 64 * KIB];
    let (mut read, mut most) = (0, 0);
    for round in 0..40 {
        for (n, client) in silent.iter().enumerate() {
            let topic = format!("t/{n}");
            publisher.publish(
                &mut c,
                &topic,
                Qos::AtMostOnce,
                &payload,
                MqttProperties::default(),
            );
            read += reader.read(&mut c);
            if round == 0 {
                client.stop_reading(&mut c);
            }
        }
        let waiting: Vec<usize> = silent.iter().map(|client| client.waiting(&mut c)).collect();
        let largest = waiting.iter().max().copied().unwrap_or(0);
        assert!(largest <= budget.per_connection, "{largest} bytes for one");
        most = most.max(waiting.iter().sum());
    }
    assert!(
        most <= budget.bytes,
        "{most} bytes wait for clients that do not read"
    );
    assert!(most >= budget.bytes / 4, "only {most} bytes: no attack");
    assert!(silent.iter().all(|client| !client.is_closing(&mut c)));
    let published = 40 * silent.len() * payload.len();
    assert!(
        read >= published,
        "a client that reads gets everything: {read}"
    );
}

#[test]
fn unfinished_bodies_are_shed_largest_first_and_publishers_are_spared() {
    let budget = MemoryBudget::of(16 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut honest = c.client(0);
    honest.declare(&mut c, "honest", &[]);
    let mut attackers: Vec<Client> = (0..5).map(|_| c.client(0)).collect();
    for (attacker, size) in attackers.iter_mut().zip(1..) {
        attacker.begin_body(&mut c, 10 * MIB, size * MIB);
        publish_and_get(&mut c, &mut honest);
    }
    // 15 MiB so far: everybody fits.
    attackers
        .iter()
        .for_each(|a| assert!(!a.is_closing(&mut c)));
    attackers[0].continue_body(&mut c, 2 * MIB);
    c.pass(Duration::from_millis(100));
    let close = attackers[4].next_method(&mut c);
    assert!(
        close.contains("ConnectionClose") && close.contains("506"),
        "{close}"
    );
    assert!(close.contains("memory_budget.relative"), "{close}");
    publish_and_get(&mut c, &mut honest);
    let alive = attackers.iter_mut().take(4);
    for attacker in alive {
        attacker.continue_body(&mut c, KIB);
        assert_eq!(attacker.waiting(&mut c), 0, "it was not told anything");
    }
    assert!(budget.node.all() < budget.bytes);
    // Everything that was held is given back.
    for attacker in attackers {
        attacker.close_socket(&mut c);
    }
    c.pass(Duration::from_millis(100));
    assert_eq!(budget.node.all(), 0);
}

#[test]
fn many_small_unfinished_messages_are_shed_before_a_large_one_that_goes_on() {
    let budget = MemoryBudget::of(8 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut attackers = Vec::new();
    for number in 0..40 {
        let mut attacker = MqttClient::new(&mut c, 0, &format!("a{number}"), 0, None);
        attacker.said(&mut c);
        // PUBLISH of 1 MiB, of which 150 KiB come.
        let mut publish = vec![0x30, 0x80, 0x80, 0x40, 0, 1, b't', 0];
        publish.resize(150 * KIB, 1);
        attacker.send_raw(&mut c, &publish);
        attackers.push(attacker);
    }
    c.pass(Duration::from_secs(5));
    let mut honest = c.client(0);
    honest.declare(&mut c, "q", &[]);
    // Each body is under its share, but larger than what any of the others holds.
    for _ in 0..20 {
        honest.begin_body(&mut c, 900 * KIB, 800 * KIB);
        let mut late = MqttClient::new(&mut c, 0, &format!("b{}", attackers.len()), 0, None);
        let mut publish = vec![0x30, 0x80, 0x80, 0x40, 0, 1, b't', 0];
        publish.resize(200 * KIB, 1);
        late.send_raw(&mut c, &publish);
        attackers.push(late);
        c.pass(Duration::from_millis(20));
        honest.continue_body(&mut c, 100 * KIB);
        c.pass(Duration::from_millis(20));
        assert!(!honest.is_closing(&mut c) && honest.waiting(&mut c) == 0);
    }
    let shed = attackers.iter().filter(|a| a.is_closing(&mut c)).count();
    assert!(shed > 0, "the budget was not exceeded");
    c.until("published", |c| (c.ready(0, "q") == 20).then_some(()));
}

#[test]
fn a_message_for_many_slow_readers_is_counted_once() {
    let budget = MemoryBudget::of(8 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut publisher = MqttClient::new(&mut c, 0, "publisher", 0, None);
    let mut slow: Vec<MqttClient> = (0..40)
        .map(|n| MqttClient::new(&mut c, 0, &format!("slow-{n}"), 0, None))
        .collect();
    for client in &mut slow {
        client.subscribe(&mut c, "t", Qos::AtMostOnce);
        client.read(&mut c);
    }
    for _ in 0..5 {
        let payload = vec![1; MIB];
        publisher.publish(
            &mut c,
            "t",
            Qos::AtMostOnce,
            &payload,
            MqttProperties::default(),
        );
        slow.iter().for_each(|client| client.stop_reading(&mut c));
        c.pass(Duration::from_millis(100));
        let held: usize = slow.iter().map(|client| client.waiting(&mut c)).sum();
        assert!(held > 4 * budget.bytes, "{held} bytes wait");
        assert!(slow.iter().all(|client| !client.is_closing(&mut c)));
        assert!(budget.node.all() < budget.bytes / 2);
        for client in &slow {
            client.read(&mut c);
        }
    }
    c.pass(Duration::from_millis(100));
    assert_eq!(budget.node.all(), 0);
}

#[test]
fn a_message_that_is_not_continued_ends_its_connection() {
    let budget = MemoryBudget::of(51 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut idle = c.client(0);
    idle.declare(&mut c, "q", &[]);
    let (mut steady, mut body) = (c.client(0), c.client(0));
    let mut packet = MqttClient::new(&mut c, 0, "packet", 0, None);
    packet.said(&mut c);
    steady.begin_body(&mut c, MIB, KIB);
    body.begin_body(&mut c, MIB, 0);
    packet.send_raw(&mut c, &[0x30, 100, 0, 1, b't']);
    c.pass(Duration::from_secs(20));
    steady.continue_body(&mut c, KIB);
    assert!(body.waiting(&mut c) == 0 && !packet.is_closing(&mut c));
    c.pass(Duration::from_secs(12));
    let close = body.next_method(&mut c);
    assert!(
        close.contains("506") && close.contains("memory_budget.unfinished_timeout"),
        "{close}"
    );
    assert!(packet.is_closing(&mut c));
    let said = packet.said(&mut c);
    assert_eq!(said, ["DISCONNECT QuotaExceeded"]);
    assert!(idle.waiting(&mut c) == 0 && steady.waiting(&mut c) == 0);
    c.pass(Duration::from_secs(20));
    assert!(steady.next_method(&mut c).contains("506"));
    assert_eq!(idle.waiting(&mut c), 0);
}

#[test]
fn a_client_that_the_node_does_not_read_is_not_late() {
    let budget = MemoryBudget::of(51 * MIB);
    let mut c = Cluster::with_budget(&budget);
    let mut publisher = c.client(0);
    publisher.declare(&mut c, "q", &[]);
    c.memory_alarm(0, true);
    publisher.begin_body(&mut c, 2 * KIB, KIB);
    c.pass(Duration::from_secs(60));
    assert!(!publisher.is_closing(&mut c) && publisher.waiting(&mut c) == 0);
    c.memory_alarm(0, false);
    publisher.continue_body(&mut c, KIB);
    c.until("published", |c| (c.ready(0, "q") == 1).then_some(()));
}
