//! MQTT and AMQP 0.9.1 clients of one node, through everything between their bytes.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use bytes::BytesMut;
use codec_amqp091::{Method, Properties as Amqp, table};
use codec_mqtt::{Properties, Qos, RepeatedProperties, Will, put_user_property};
use message::{Table, Value};
use metadata::{Change, QueueType};
use std::time::Duration;

#[test]
fn what_mqtt_publishes_amqp_gets_and_the_answer_waits_for_the_queue() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let quorum = [("x-queue-type", Value::from("quorum"))];
    amqp.declare(&mut cluster, "q", &quorum);
    amqp.bind(&mut cluster, "q", "amq.topic", "a.*", &[]);
    let mut mqtt = MqttClient::new(&mut cluster, 0, "m", 0, None);
    assert_eq!(mqtt.said(&mut cluster), ["CONNACK Success false"]);
    let mut users = BytesMut::new();
    put_user_property(&mut users, "k", "v");
    let properties = Properties {
        content_type: Some("text/plain"),
        response_topic: Some("re/ply"),
        repeated: RepeatedProperties(&users),
        ..Properties::default()
    };
    mqtt.publish(&mut cluster, "a/b", Qos::AtLeastOnce, b"hello", properties);
    let told = cluster.until("PUBACK", |c| mqtt.said(c).pop());
    assert_eq!(told, "PubAck Success");
    let got = amqp.get(&mut cluster, "q").expect("a message");
    assert_eq!((&*got.exchange, &*got.routing_key), ("amq.topic", "a.b"));
    assert_eq!(got.headers().get("k"), Some(&Value::from("v")));
    let reply = Some(Value::from("re.ply"));
    assert_eq!(got.headers().get("x-opt-reply-to-topic"), reply.as_ref());
}

/// As in RabbitMQ.
#[test]
fn headers_exchange_matches_user_properties() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    amqp.declare(&mut cluster, "matched", &[]);
    let matches = [("x-match", Value::from("all")), ("k", Value::from("v"))];
    amqp.bind(&mut cluster, "matched", "amq.headers", "", &matches);
    let method = Method::ExchangeBind {
        destination: "amq.headers",
        source: "amq.topic",
        routing_key: "direct",
        no_wait: false,
        arguments: Table::default(),
    };
    amqp.call(&mut cluster, 1, method);
    let expiring = [
        ("x-message-ttl", Value::I32(0)),
        ("x-dead-letter-exchange", Value::from("amq.headers")),
    ];
    amqp.declare(&mut cluster, "expiring", &expiring);
    amqp.bind(&mut cluster, "expiring", "amq.topic", "dead", &[]);
    let mut mqtt = MqttClient::new(&mut cluster, 0, "m", 0, None);
    mqtt.said(&mut cluster);
    for topic in ["direct", "dead"] {
        for value in ["v", "w"] {
            let mut users = BytesMut::new();
            put_user_property(&mut users, "k", value);
            let properties = Properties {
                repeated: RepeatedProperties(&users),
                ..Properties::default()
            };
            let payload = format!("{topic} {value}");
            mqtt.publish(
                &mut cluster,
                topic,
                Qos::AtLeastOnce,
                payload.as_bytes(),
                properties,
            );
            cluster.until("PUBACK", |c| mqtt.said(c).pop());
        }
    }
    for body in ["direct v", "dead v"] {
        let got = cluster.until(body, |c| amqp.get(c, "matched"));
        assert_eq!(got.body, body.as_bytes());
    }
    cluster.settle();
    assert_eq!(cluster.ready(0, "matched"), 0);
}

#[test]
fn what_amqp_publishes_mqtt_gets() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let mut mqtt = MqttClient::new(&mut cluster, 0, "m", 0, None);
    mqtt.subscribe(&mut cluster, "a/+", Qos::AtLeastOnce);
    mqtt.said(&mut cluster);
    let mut headers = Table::default();
    headers.set("k", "v".into());
    let mut raw = BytesMut::new();
    table::encode(&headers, &mut raw);
    let durable = Amqp {
        delivery_mode: Some(2),
        headers: Some(&raw[4..]),
        ..Amqp::default()
    };
    amqp.publish(&mut cluster, "amq.topic", "a.b", &durable, b"one");
    amqp.publish(&mut cluster, "amq.topic", "a.c", &Amqp::default(), b"two");
    amqp.publish(&mut cluster, "amq.topic", "b", &durable, b"not for it");
    amqp.publish(&mut cluster, "amq.fanout", "a.b", &durable, b"elsewhere");
    let said = mqtt.said(&mut cluster);
    assert_eq!(said, ["a/b one q1 [(\"k\", \"v\")]", "a/c two q0 []"]);
}

#[test]
fn clients_change_hands_and_wills_wait() {
    let mut cluster = Cluster::new(1);
    let mut watcher = MqttClient::new(&mut cluster, 0, "w", 0, None);
    watcher.subscribe(&mut cluster, "will", Qos::AtMostOnce);
    watcher.said(&mut cluster);
    let will = || {
        Some(Will {
            qos: Qos::AtMostOnce,
            retain: false,
            properties: Properties {
                will_delay: Some(5),
                ..Properties::default()
            },
            topic: "will",
            payload: b"gone",
        })
    };
    let mut first = MqttClient::new(&mut cluster, 0, "c", 60, will());
    first.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
    let mut second = MqttClient::new(&mut cluster, 0, "c", 60, will());
    let told = first.said(&mut cluster);
    assert_eq!(
        told.last().map(String::as_str),
        Some("DISCONNECT SessionTakenOver")
    );
    first.cut(&mut cluster);
    assert_eq!(second.said(&mut cluster), ["CONNACK Success true"]);
    second.cut(&mut cluster);
    watcher.publish(
        &mut cluster,
        "a",
        Qos::AtLeastOnce,
        b"kept",
        Properties::default(),
    );
    let told = cluster.until("PUBACK", |c| watcher.said(c).pop());
    assert_eq!(told, "PubAck Success");
    cluster.pass(Duration::from_secs(4));
    assert_eq!(watcher.said(&mut cluster), [""; 0]);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(watcher.said(&mut cluster), ["will gone q0 []"]);
    let mut third = MqttClient::new(&mut cluster, 0, "c", 60, None);
    let mut said = Vec::new();
    cluster.until("the message", |c| {
        said.extend(third.said(c));
        (said.len() == 2).then_some(())
    });
    assert_eq!(said, ["CONNACK Success true", "a kept q1 []"]);
}

#[test]
fn a_session_goes_on_at_another_node_when_its_node_is_gone() {
    let mut cluster = Cluster::new(3);
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(QueueType::Quorum),
    });
    let mut keeper = MqttClient::new(&mut cluster, 0, "k", 60, None);
    cluster.until("CONNACK", |c| keeper.said(c).pop());
    keeper.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
    cluster.until("SUBACK", |c| keeper.said(c).pop());
    for at in 0..3 {
        let name = "mqtt-subscription-kqos1";
        cluster.until("the queue", |c| c.knows(at, name).then_some(()));
    }
    let mut publisher = MqttClient::new(&mut cluster, 1, "p", 0, None);
    cluster.until("CONNACK", |c| publisher.said(c).pop());
    for payload in [b"1", b"2", b"3"] {
        let qos = Qos::AtLeastOnce;
        publisher.publish(&mut cluster, "a", qos, payload, Properties::default());
        let told = cluster.until("PUBACK", |c| publisher.said(c).pop());
        assert_eq!(told, "PubAck Success");
    }
    cluster.kill(0);
    let mut keeper = MqttClient::new(&mut cluster, 2, "k", 60, None);
    let mut said = Vec::new();
    cluster.until("all messages", |c| {
        said.extend(keeper.said(c));
        (said.len() == 4).then_some(())
    });
    let told = [
        "CONNACK Success true",
        "a 1 q1 []",
        "a 2 q1 []",
        "a 3 q1 []",
    ];
    assert_eq!(said, told);
}

#[test]
fn what_one_node_retains_every_node_has() {
    let mut cluster = Cluster::new(3);
    let mut publisher = MqttClient::new(&mut cluster, 1, "p", 0, None);
    cluster.until("CONNACK", |c| publisher.said(c).pop());
    for payload in [&b"1"[..], b"2"] {
        publisher.retain(&mut cluster, "a", payload);
        cluster.until("PUBACK", |c| publisher.said(c).pop());
    }
    for at in 0..3 {
        let mut subscriber = MqttClient::new(&mut cluster, at, &format!("s{at}"), 0, None);
        cluster.until("CONNACK", |c| subscriber.said(c).pop());
        let got = cluster.until("the message", |c| {
            subscriber.subscribe(c, "#", Qos::AtMostOnce);
            subscriber
                .said(c)
                .into_iter()
                .find(|epoch| epoch != "SubAck")
        });
        assert_eq!(got, "a 2 q0 []");
    }
}

#[test]
fn the_servers_own_topics_say_what_the_node_is_and_does() {
    let mut cluster = Cluster::new(1);
    let mut other = MqttClient::new(&mut cluster, 0, "o", 0, None);
    other.publish(
        &mut cluster,
        "a",
        Qos::AtMostOnce,
        b"12345",
        Properties::default(),
    );
    let mut client = MqttClient::new(&mut cluster, 0, "c", 0, None);
    client.subscribe(&mut cluster, "#", Qos::AtLeastOnce);
    client.subscribe(&mut cluster, "$SYS/broker/#", Qos::AtLeastOnce);
    let said = client.said(&mut cluster);
    assert_eq!(said[..3], ["CONNACK Success false", "SubAck", "SubAck"]);
    let has = |said: &[String], wanted: &str| {
        let wanted = format!("$SYS/broker/{wanted} q0 []");
        assert!(said.contains(&wanted), "{wanted}: {said:#?}");
    };
    let version = format!("version posthorn version {}", env!("CARGO_PKG_VERSION"));
    for wanted in [
        &*version,
        "clients/connected 2",
        "clients/total 2",
        "clients/disconnected 0",
        "subscriptions/count 2",
        "retained messages/count 0",
        "publish/messages/received 1",
        "publish/bytes/received 5",
        "publish/bytes/sent 0",
        // Twice CONNECT, PUBLISH, twice SUBSCRIBE.
        "messages/received 5",
        "load/publish/received/1min 0.00",
    ] {
        has(&said, wanted);
    }
    other.retain(&mut cluster, "kept", b"123");
    client.said(&mut cluster);
    cluster.pass(Duration::from_secs(11));
    let said = client.said(&mut cluster);
    for wanted in ["retained messages/count 1", "publish/messages/received 2"] {
        has(&said, wanted);
    }
    assert!(
        !said.iter().any(|epoch| epoch.contains("version")),
        "{said:#?}"
    );
    // Whoever may publish in AMQP does not speak for the server.
    let mut amqp = cluster.client(0);
    amqp.publish(
        &mut cluster,
        "amq.topic",
        "$SYS.broker.version",
        &Amqp::default(),
        b"x",
    );
    amqp.publish(
        &mut cluster,
        "amq.topic",
        "$SYSTEM.x",
        &Amqp::default(),
        b"x",
    );
    assert_eq!(client.said(&mut cluster), [""; 0]);
}
