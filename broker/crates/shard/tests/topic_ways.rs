//! MQTT clients without a queue get whatever comes by their exchange, on whichever way: from another exchange, as what an exchange
//! could not route, as a dead letter, by the HTTP API.

use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Client, Cluster, arguments, persistent_to};
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use control::{ControlRequest, PublishResult};
use message::{Table, Value};
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use std::time::Duration;

fn durable() -> Properties<'static> {
    Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    }
}

fn subscriber(cluster: &mut Cluster, at: usize, filter: &str) -> MqttClient {
    let mut client = MqttClient::new(cluster, at, &format!("s{at}"), 0, None);
    client.subscribe(cluster, filter, Qos::AtLeastOnce);
    client.said(cluster);
    client
}

fn exchange(client: &mut Client, cluster: &mut Cluster, exchange: &str, alternate: Option<&str>) {
    let mut arguments = Table::default();
    if let Some(alternate) = alternate {
        arguments.set("alternate-exchange", Value::from(alternate));
    }
    let method = Method::ExchangeDeclare {
        exchange,
        kind: "direct",
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments,
    };
    client.call(cluster, 1, method);
}

fn bind_exchange(client: &mut Client, cluster: &mut Cluster, ends: (&str, &str), key: &str) {
    let (source, destination) = ends;
    let method = Method::ExchangeBind {
        destination,
        source,
        routing_key: key,
        no_wait: false,
        arguments: Table::default(),
    };
    client.call(cluster, 1, method);
}

#[test]
fn what_another_exchange_hands_on_reaches_them() {
    let mut cluster = Cluster::new(3);
    let mut amqp = cluster.client(2);
    for (name, alternate) in [
        ("first", None),
        ("second", None),
        ("last", Some("amq.topic")),
    ] {
        exchange(&mut amqp, &mut cluster, name, alternate);
    }
    bind_exchange(&mut amqp, &mut cluster, ("first", "second"), "a.b");
    bind_exchange(&mut amqp, &mut cluster, ("second", "amq.topic"), "a.b");
    amqp.declare(&mut cluster, "q", &[]);
    amqp.bind(&mut cluster, "q", "last", "a.taken", &[]);
    for at in [0, 2] {
        let mut mqtt = subscriber(&mut cluster, at, "a/+");
        for (name, key) in [
            ("first", "a.b"),
            ("first", "a.c"),
            ("last", "a.taken"),
            ("last", "a.left"),
            ("amq.fanout", "a.b"),
        ] {
            let body = format!("{name} {key}");
            amqp.publish(&mut cluster, name, key, &durable(), body.as_bytes());
        }
        let said = mqtt.said(&mut cluster);
        assert_eq!(said, ["a/b first a.b q1 []", "a/left last a.left q1 []"]);
    }
}

#[test]
fn a_way_is_taken_for_as_long_as_it_is_there() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let mut mqtt = subscriber(&mut cluster, 0, "a/+");
    let mut reached = |cluster: &mut Cluster, amqp: &mut Client| {
        amqp.publish(cluster, "last", "a.b", &durable(), b"one");
        match &mqtt.said(cluster)[..] {
            [] => false,
            said => {
                assert_eq!(said, ["a/b one q1 []"]);
                true
            }
        }
    };
    exchange(&mut amqp, &mut cluster, "last", Some("amq.topic"));
    assert!(reached(&mut cluster, &mut amqp), "by its argument");
    let method = Method::ExchangeDelete {
        exchange: "last",
        if_unused: false,
        no_wait: false,
    };
    amqp.call(&mut cluster, 1, method);
    exchange(&mut amqp, &mut cluster, "last", None);
    assert!(!reached(&mut cluster, &mut amqp), "by nothing");
    cluster.change(Change::PutPolicy(PolicyRecord {
        scope: PolicyScope::User,
        vhost: "/".into(),
        name: "p".into(),
        pattern: "last".into(),
        apply_to: ApplyTo::Exchanges,
        priority: 0,
        definition: arguments(&[("alternate-exchange", "amq.topic".into())]),
    }));
    assert!(reached(&mut cluster, &mut amqp), "by a policy");
    cluster.change(Change::DeletePolicy {
        vhost: "/".into(),
        name: "p".into(),
        scope: PolicyScope::User,
    });
    assert!(!reached(&mut cluster, &mut amqp), "by nothing");
}

fn dead_letters(strategy: &str, queue_type: &str) {
    let mut cluster = Cluster::new(3);
    let mut amqp = cluster.client(1);
    let text = |s: &str| Value::from(s);
    let mut list = vec![
        ("x-queue-type", text(queue_type)),
        ("x-dead-letter-exchange", text("amq.topic")),
        ("x-dead-letter-routing-key", text("dead.letters")),
    ];
    if queue_type == "quorum" {
        list.push(("x-dead-letter-strategy", text(strategy)));
        list.push(("x-overflow", text("reject-publish")));
    }
    amqp.declare(&mut cluster, "q", &list);
    let mut here = subscriber(&mut cluster, 1, "dead/+");
    let mut there = subscriber(&mut cluster, 0, "#");
    amqp.publish(&mut cluster, "", "q", &durable(), b"one");
    let got = amqp.must_get(&mut cluster, "q");
    amqp.reject(&mut cluster, got.tag);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(here.said(&mut cluster), ["dead/letters one q1 []"]);
    assert_eq!(there.said(&mut cluster), ["dead/letters one q1 []"]);
    // The queue is rid of it.
    let stats = cluster
        .queue(1, "q")
        .and_then(|q| q.stats)
        .expect("a queue");
    assert_eq!((stats.ready, stats.unacknowledged, stats.dead), (0, 0, 0));
    cluster.pass(Duration::from_secs(60));
    assert!(there.said(&mut cluster).is_empty());
}

#[test]
fn dead_letters_reach_them() {
    dead_letters("at-most-once", "classic");
    dead_letters("at-most-once", "quorum");
}

#[test]
fn dead_letters_that_must_not_be_lost_reach_them_once() {
    dead_letters("at-least-once", "quorum");
}

/// What a client of MQTT published and a queue gave up has the topic that the queue gives it.
#[test]
fn a_dead_letter_of_mqtt_has_its_new_topic() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let list = [
        ("x-dead-letter-exchange", Value::from("amq.topic")),
        ("x-dead-letter-routing-key", Value::from("dead.letters")),
    ];
    amqp.declare(&mut cluster, "q", &list);
    amqp.bind(&mut cluster, "q", "amq.topic", "alive.*", &[]);
    let mut clean = subscriber(&mut cluster, 0, "dead/+");
    let mut lasting = MqttClient::new(&mut cluster, 0, "lasting", 600, None);
    lasting.subscribe(&mut cluster, "dead/+", Qos::AtLeastOnce);
    lasting.said(&mut cluster);
    let mut publisher = MqttClient::new(&mut cluster, 0, "p", 0, None);
    let none = codec_mqtt::Properties::default();
    publisher.publish(&mut cluster, "alive/one", Qos::AtLeastOnce, b"one", none);
    let got = amqp.must_get(&mut cluster, "q");
    amqp.reject(&mut cluster, got.tag);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(clean.said(&mut cluster), ["dead/letters one q1 []"]);
    assert_eq!(lasting.said(&mut cluster), ["dead/letters one q1 []"]);
}

#[test]
fn what_comes_by_the_http_api_reaches_them() {
    let mut cluster = Cluster::new(3);
    let mut here = subscriber(&mut cluster, 0, "a/+");
    let mut publish = |cluster: &mut Cluster, at: usize, key: &'static str| {
        let published = cluster.ask(at, |reply| ControlRequest::Publish {
            vhost: "/".into(),
            user: "guest".into(),
            build: Box::new(persistent_to("amq.topic", key, b"http")),
            reply,
        });
        let PublishResult { routed, taken } = published.expect("published");
        (routed, taken, here.said(cluster))
    };
    let got = || vec!["a/b http q1 []".to_owned()];
    assert_eq!(publish(&mut cluster, 0, "a.b"), (true, true, got()));
    assert_eq!(publish(&mut cluster, 2, "a.b"), (true, true, got()));
    assert_eq!(publish(&mut cluster, 2, "b"), (false, true, vec![]));
}

/// A session has a copy for each shared subscription and one for its own ones, as of what MQTT publishes (section 4.8.2).
#[test]
fn who_shares_twice_and_has_a_subscription_gets_three() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    for expiry in [0, 600] {
        let name = format!("m{expiry}");
        let mut mqtt = MqttClient::new(&mut cluster, 0, &name, expiry, None);
        mqtt.subscribe(&mut cluster, "$share/g/a/b", Qos::AtLeastOnce);
        mqtt.subscribe(&mut cluster, "$share/h/a/#", Qos::AtLeastOnce);
        mqtt.subscribe(&mut cluster, "a/+", Qos::AtLeastOnce);
        mqtt.said(&mut cluster);
        amqp.publish(&mut cluster, "amq.topic", "a.b", &durable(), b"one");
        assert_eq!(mqtt.said(&mut cluster), ["a/b one q1 []"; 3]);
        mqtt.cut(&mut cluster);
    }
}
