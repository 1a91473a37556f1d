//! MQTT clients of several nodes, whose hubs hear each other.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_amqp091::Properties as Amqp;
use codec_mqtt::{AckKind, Properties, Qos, Will};
use metadata::{Change, QueueType};
use std::time::Duration;

fn connect(cluster: &mut Cluster, at: usize, name: &str, expiry: u32) -> MqttClient {
    let mut client = MqttClient::new(cluster, at, name, expiry, None);
    let said = cluster.until("CONNACK", |c| client.said(c).pop());
    assert_eq!(said, "CONNACK Success false", "{name}");
    client
}

fn subscriber(cluster: &mut Cluster, at: usize, name: &str, filter: &str, qos: Qos) -> MqttClient {
    let mut client = connect(cluster, at, name, 0);
    client.subscribe(cluster, filter, qos);
    assert_eq!(cluster.until("SUBACK", |c| client.said(c).pop()), "SubAck");
    client
}

fn publish(cluster: &mut Cluster, client: &mut MqttClient, topic: &str, qos: Qos, text: &str) {
    client.publish(cluster, topic, qos, text.as_bytes(), Properties::default());
}

#[test]
fn who_has_subscribed_gets_what_is_published_anywhere() {
    let mut cluster = Cluster::new(3);
    let mut subscriber = subscriber(&mut cluster, 0, "s", "a/#", Qos::ExactlyOnce);
    for at in 0..3 {
        let mut publisher = connect(&mut cluster, at, &format!("p{at}"), 0);
        for (qos, answer) in [
            (Qos::AtMostOnce, vec![]),
            (Qos::AtLeastOnce, vec!["PubAck Success"]),
            (Qos::ExactlyOnce, vec!["PubRec Success"]),
        ] {
            publish(&mut cluster, &mut publisher, "a/b", qos, "x");
            let got = format!("a/b x q{} []", qos as u8);
            assert_eq!(subscriber.said(&mut cluster), [got], "from node {at}");
            assert_eq!(publisher.said(&mut cluster), answer);
        }
        publish(&mut cluster, &mut publisher, "b", Qos::AtLeastOnce, "x");
        assert_eq!(
            publisher.said(&mut cluster),
            ["PubAck NoMatchingSubscribers"]
        );
    }
    subscriber.cut(&mut cluster);
    let mut publisher = connect(&mut cluster, 1, "last", 0);
    publish(&mut cluster, &mut publisher, "a/b", Qos::AtLeastOnce, "x");
    assert_eq!(
        publisher.said(&mut cluster),
        ["PubAck NoMatchingSubscribers"]
    );
}

#[test]
fn what_amqp_publishes_reaches_mqtt_clients_of_other_nodes() {
    let mut cluster = Cluster::new(3);
    let mut subscriber = subscriber(&mut cluster, 0, "s", "a/+", Qos::AtLeastOnce);
    let mut amqp = cluster.client(2);
    let durable = Amqp {
        delivery_mode: Some(2),
        ..Amqp::default()
    };
    amqp.publish(&mut cluster, "amq.topic", "a.b", &durable, b"one");
    amqp.publish(&mut cluster, "amq.topic", "a.b", &Amqp::default(), b"two");
    amqp.publish(&mut cluster, "amq.topic", "b", &durable, b"not for it");
    let said = subscriber.said(&mut cluster);
    assert_eq!(said, ["a/b one q1 []", "a/b two q0 []"]);
}

#[test]
fn a_will_is_heard_on_other_nodes() {
    let mut cluster = Cluster::new(3);
    let mut watcher = subscriber(&mut cluster, 0, "w", "will", Qos::AtLeastOnce);
    let will = Will {
        qos: Qos::AtLeastOnce,
        retain: false,
        properties: Properties::default(),
        topic: "will",
        payload: b"gone",
    };
    let mut client = MqttClient::new(&mut cluster, 1, "c", 0, Some(will));
    cluster.until("CONNACK", |c| client.said(c).pop());
    client.cut(&mut cluster);
    assert_eq!(watcher.said(&mut cluster), ["will gone q1 []"]);
}

#[test]
fn a_group_is_one_over_all_nodes() {
    let mut cluster = Cluster::new(3);
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(QueueType::Quorum),
    });
    let share = "$share/g/a";
    let mut members: Vec<MqttClient> = (0..3)
        .map(|at| {
            // The last one has its session in a queue.
            let mut member = connect(
                &mut cluster,
                at,
                &format!("m{at}"),
                if at == 2 { 60 } else { 0 },
            );
            member.subscribe(&mut cluster, share, Qos::AtLeastOnce);
            assert_eq!(cluster.until("SUBACK", |c| member.said(c).pop()), "SubAck");
            member
        })
        .collect();
    for at in 0..3 {
        cluster.until("the queue", |c| {
            c.knows(at, "mqtt-subscription-m2qos1").then_some(())
        });
    }
    cluster.pass(Duration::from_millis(100));
    for at in 0..3 {
        let mut publisher = connect(&mut cluster, at, &format!("p{at}"), 0);
        for n in 0..6 {
            let text = format!("{at}{n}");
            publish(&mut cluster, &mut publisher, "a", Qos::AtLeastOnce, &text);
            let told = cluster.until("PUBACK", |c| publisher.said(c).pop());
            assert_eq!(told, "PubAck Success");
        }
    }
    cluster.pass(Duration::from_millis(100));
    let got: Vec<Vec<String>> = members.iter_mut().map(|m| m.said(&mut cluster)).collect();
    let mut all: Vec<&String> = got.iter().flatten().collect();
    all.sort();
    let want: Vec<String> = (0..3)
        .flat_map(|at| (0..6).map(move |n| format!("a {at}{n} q1 []")))
        .collect();
    assert_eq!(all, want.iter().collect::<Vec<_>>());
    for (at, got) in got.iter().enumerate() {
        assert_eq!(got.len(), 6, "member {at}: {got:?}");
    }
}

#[test]
fn a_publisher_waits_for_a_node_that_is_out_of_reach_and_not_for_ever() {
    let mut cluster = Cluster::new(3);
    let mut subscriber = subscriber(&mut cluster, 0, "s", "a", Qos::AtLeastOnce);
    let mut publisher = connect(&mut cluster, 1, "p", 0);
    cluster.cut_off(0);
    publish(&mut cluster, &mut publisher, "a", Qos::AtLeastOnce, "1");
    publish(
        &mut cluster,
        &mut publisher,
        "a",
        Qos::AtMostOnce,
        "dropped",
    );
    assert!(publisher.said(&mut cluster).is_empty());
    cluster.link(0);
    assert_eq!(
        cluster.until("PUBACK", |c| publisher.said(c).pop()),
        "PubAck Success"
    );
    assert_eq!(subscriber.said(&mut cluster), ["a 1 q1 []"]);
    cluster.cut_off(0);
    publish(&mut cluster, &mut publisher, "a", Qos::AtLeastOnce, "2");
    assert_eq!(
        cluster.until("PUBACK", |c| publisher.said(c).pop()),
        "PubAck Success"
    );
    cluster.link(0);
    // What it missed it is told of.
    let said = cluster.until("the end", |c| subscriber.said(c).pop());
    assert_eq!(said, "DISCONNECT UnspecifiedError");
}

/// A node that is slow to hear what the cluster agreed on: nobody is told that a subscription counts before it does there.
#[test]
fn a_subscription_counts_where_its_binding_is_not_known_yet() {
    for slow in 0..3 {
        let mut cluster = Cluster::new(3);
        let mut publisher = connect(&mut cluster, slow, "p", 0);
        let mut keeper = connect(&mut cluster, (slow + 1) % 3, "k", 60);
        cluster.hold_back(Some(slow));
        keeper.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
        cluster.pass(Duration::from_millis(500));
        assert!(keeper.said(&mut cluster).is_empty());
        cluster.hold_back(None);
        assert_eq!(cluster.until("SUBACK", |c| keeper.said(c).pop()), "SubAck");
        publish(&mut cluster, &mut publisher, "a", Qos::AtLeastOnce, "x");
        let told = cluster.until("PUBACK", |c| publisher.said(c).pop());
        assert_eq!(told, "PubAck Success");
        let got = cluster.until("the message", |c| keeper.said(c).pop());
        assert_eq!(got, "a x q1 []");
    }
}

#[test]
fn what_was_retained_before_is_found_where_it_is_not_known_yet() {
    for slow in 0..3 {
        let mut cluster = Cluster::new(3);
        let mut subscriber = connect(&mut cluster, slow, "s", 0);
        let mut publisher = connect(&mut cluster, (slow + 1) % 3, "p", 0);
        cluster.hold_back(Some(slow));
        publisher.retain(&mut cluster, "a", b"kept");
        let told = cluster.until("PUBACK", |c| publisher.said(c).pop());
        assert_eq!(told, "PubAck NoMatchingSubscribers");
        subscriber.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
        cluster.pass(Duration::from_millis(500));
        assert!(subscriber.said(&mut cluster).is_empty());
        cluster.hold_back(None);
        let mut said = Vec::new();
        cluster.until("the message", |c| {
            said.extend(subscriber.said(c));
            (said.len() == 2).then_some(())
        });
        assert_eq!(said, ["SubAck", "a kept q1 []"]);
    }
}

#[test]
fn clients_come_when_all_nodes_have_met_or_a_second_later() {
    let all = Cluster::new(3).age();
    let but_one = Cluster::without(3, Some(2)).age();
    // Most of it is the first election.
    let waited = but_one.saturating_sub(all);
    let second = Duration::from_millis(500)..Duration::from_millis(1500);
    assert!(second.contains(&waited), "{all:?}, {but_one:?}");
}

/// A publisher's messages of one QoS, and what each member of a group on another node has got of them by the time they are all out.
fn shared_out(cluster: &mut Cluster, qos: Qos, count: usize) -> [(MqttClient, Vec<String>); 2] {
    let members = [0, 1].map(|at| {
        let name = format!("m{at}");
        let member = subscriber(cluster, at, &name, "$share/g/a", Qos::ExactlyOnce);
        (member, Vec::new())
    });
    let mut publisher = connect(cluster, 2, "p", 0);
    for n in 0..count {
        publish(cluster, &mut publisher, "a", qos, &format!("{n:02}"));
        let answer = cluster.until("the answer", |c| publisher.said(c).pop());
        if qos == Qos::ExactlyOnce {
            assert_eq!(answer, "PubRec Success");
            publisher.answer(cluster, AckKind::PubRel, 1);
            cluster.until("PUBCOMP", |c| publisher.said(c).pop());
        }
    }
    members.map(|(mut member, mut got)| {
        got.extend(member.said(cluster));
        (member, got)
    })
}

/// Section 4.8.2: the session ends with its connection, and members on other nodes are left.
#[test]
fn member_on_another_node_gets_the_messages_of_a_member_that_left() {
    const COUNT: usize = 30;
    let mut cluster = Cluster::new(3);
    let [(leaving, first), (mut staying, mut got)] =
        shared_out(&mut cluster, Qos::AtLeastOnce, COUNT);
    // Ten are sent and not acknowledged, five wait.
    assert_eq!((first.len(), got.len()), (10, 10));
    let mut answered = 0;
    let mut take_all = |cluster: &mut Cluster, wanted: usize| {
        cluster.until("the messages", |c| {
            for message in got.split_off(answered) {
                let payload = message.split(' ').nth(1).expect("a payload").to_owned();
                let id = staying.packet_id_of(&payload);
                staying.answer(c, AckKind::PubAck, id);
                got.push(message);
            }
            answered = got.len();
            got.extend(staying.said(c));
            (got.len() == wanted).then_some(())
        });
    };
    take_all(&mut cluster, COUNT / 2);
    leaving.cut(&mut cluster);
    take_all(&mut cluster, COUNT);
    cluster.pass(Duration::from_secs(1));
    got.extend(staying.said(&mut cluster));
    got.sort_unstable();
    let all: Vec<String> = (0..COUNT).map(|n| format!("a {n:02} q1 []")).collect();
    assert_eq!(got, all, "each of them once");
}

/// [MQTT-4.8.2-5]: a message of QoS 2 that was sent to a member goes to no other one; those that waited for it do.
#[test]
fn message_of_qos_2_that_was_sent_stays_with_the_member_that_left() {
    const COUNT: usize = 26;
    let mut cluster = Cluster::new(3);
    let [(leaving, first), (mut staying, mut got)] =
        shared_out(&mut cluster, Qos::ExactlyOnce, COUNT);
    assert_eq!((first.len(), got.len()), (10, 10));
    leaving.cut(&mut cluster);
    let mut answered = 0;
    cluster.until("the messages", |c| {
        for message in got.split_off(answered) {
            if message.starts_with("a ") {
                let payload = message.split(' ').nth(1).expect("a payload").to_owned();
                let id = staying.packet_id_of(&payload);
                staying.answer(c, AckKind::PubRec, id);
                staying.answer(c, AckKind::PubComp, id);
                got.push(message);
            }
        }
        answered = got.len();
        got.extend(staying.said(c));
        (answered == COUNT - first.len()).then_some(())
    });
    cluster.pass(Duration::from_secs(1));
    got.extend(staying.said(&mut cluster));
    got.retain(|packet| packet.starts_with("a "));
    got.extend(first);
    got.sort_unstable();
    let all: Vec<String> = (0..COUNT).map(|n| format!("a {n:02} q2 []")).collect();
    assert_eq!(got, all, "each of them once");
}
