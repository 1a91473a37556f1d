//! A virtual host that is traced: copies of what clients of every protocol publish and get, and none of the copies themselves.

use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Client, Cluster, Got, persistent};
use codec_amqp091::Properties as Amqp;
use codec_mqtt::{Properties, Qos};
use control::ControlRequest;
use message::{Table, Value};
use metadata::Change;
use queue::SettlementOutcome;

const EXCHANGE: &str = "amq.rabbitmq.trace";

fn trace(cluster: &mut Cluster, on: bool) {
    let vhost = "/".into();
    cluster.change(Change::TraceVhost { vhost, on });
}

/// All that has come, by its key.
fn copies(cluster: &mut Cluster, watcher: &mut Client) -> Vec<(String, Got)> {
    let mut all = Vec::new();
    while let Some(got) = watcher.get(cluster, "watch") {
        all.push((got.routing_key.clone(), got));
    }
    all
}

fn watched() -> (Cluster, Client) {
    let mut cluster = Cluster::new(1);
    let mut watcher = cluster.client(0);
    watcher.declare(&mut cluster, "watch", &[]);
    watcher.bind(&mut cluster, "watch", EXCHANGE, "#", &[]);
    (cluster, watcher)
}

fn text<'t>(headers: &'t Table, name: &str) -> &'t str {
    headers.get(name).and_then(Value::as_str).unwrap_or("")
}

#[test]
fn publishes_and_deliveries_are_copied_while_it_is_on() {
    let (mut c, mut watcher) = watched();
    let mut client = c.client(0);
    client.declare(&mut c, "work", &[]);
    client.bind(&mut c, "work", "amq.direct", "k", &[]);
    let plain = Amqp {
        content_type: Some("text/plain"),
        ..Amqp::default()
    };
    client.publish(&mut c, "amq.direct", "k", &plain, b"before");
    client.must_get(&mut c, "work");
    assert!(copies(&mut c, &mut watcher).is_empty(), "nobody asked");
    trace(&mut c, true);
    client.publish(&mut c, "amq.direct", "k", &plain, b"traced");
    client.must_get(&mut c, "work");
    let all = copies(&mut c, &mut watcher);
    let keys: Vec<&str> = all.iter().map(|(key, _)| &**key).collect();
    // Each once: what the watcher gets is no news.
    assert_eq!(keys, ["publish.amq.direct", "deliver.work"]);
    for (_, got) in &all {
        assert_eq!((&*got.exchange, &got.body[..]), (EXCHANGE, &b"traced"[..]));
        let headers = got.headers();
        let said = ["exchange_name", "node", "user", "vhost"].map(|name| text(&headers, name));
        assert_eq!(said, ["amq.direct", "n1", "guest", "/"]);
        assert!(text(&headers, "connection").contains(" -> "));
        assert_eq!(headers.get("channel"), Some(&Value::I32(1)));
        let keys = Value::Array(vec![Value::from("k")]);
        assert_eq!(headers.get("routing_keys"), Some(&keys));
        let Some(Value::Table(properties)) = headers.get("properties") else {
            panic!("{headers:?}");
        };
        assert_eq!(text(properties, "content_type"), "text/plain");
    }
    let routed = Value::Array(vec![Value::from("work")]);
    assert_eq!(all[0].1.headers().get("routed_queues"), Some(&routed));
    assert_eq!(all[1].1.headers().get("redelivered"), Some(&Value::I32(0)));
    trace(&mut c, false);
    client.publish(&mut c, "amq.direct", "k", &plain, b"after");
    client.must_get(&mut c, "work");
    assert!(copies(&mut c, &mut watcher).is_empty(), "it is off");
}

#[test]
fn mqtt_clients_are_traced_too() {
    let (mut c, mut watcher) = watched();
    trace(&mut c, true);
    let mut mqtt = MqttClient::new(&mut c, 0, "m", 0, None);
    mqtt.subscribe(&mut c, "a/#", Qos::AtMostOnce);
    mqtt.publish(
        &mut c,
        "a/b",
        Qos::AtMostOnce,
        b"hello",
        Properties::default(),
    );
    let said = mqtt.said(&mut c);
    assert!(said.iter().any(|s| s.contains("hello")), "{said:?}");
    let all = copies(&mut c, &mut watcher);
    let mut keys: Vec<&str> = all.iter().map(|(key, _)| &**key).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["deliver.mqtt-subscription-mqos0", "publish.amq.topic"]
    );
    assert!(all.iter().all(|(_, got)| &got.body[..] == b"hello"));
}

#[test]
fn what_the_control_plane_publishes_and_takes_is_traced_and_counted() {
    let (mut c, mut watcher) = watched();
    let mut client = c.client(0);
    client.declare(&mut c, "work", &[]);
    trace(&mut c, true);
    for key in ["work", "nobody"] {
        let published = c.ask(0, |reply| ControlRequest::Publish {
            vhost: "/".into(),
            user: "operator".into(),
            build: Box::new(persistent(key, b"body")),
            reply,
        });
        assert_eq!(published.expect("taken").routed, key == "work");
    }
    let queue = c.queue(0, "work").expect("known").id;
    let taken = c.ask(0, |reply| ControlRequest::Get {
        queue,
        user: "operator".into(),
        count: 1,
        bytes: 1 << 20,
        settle: SettlementOutcome::Accepted,
        reply,
    });
    assert_eq!(taken.expect("taken").len(), 1);
    let counters = c.ask(0, |reply| ControlRequest::Counters {
        everywhere: false,
        reply,
    });
    let all = copies(&mut c, &mut watcher);
    let keys: Vec<&str> = all.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, ["publish.", "publish.", "deliver.work"]);
    for (_, got) in &all {
        let headers = got.headers();
        let said = ["user", "connection", "vhost"].map(|name| text(&headers, name));
        assert_eq!(said, ["operator", "<n1.http>", "/"]);
        assert_eq!(&got.body[..], b"body");
    }
    let routed = |at: usize| all[at].1.headers().get("routed_queues").cloned();
    let work = Value::Array(vec![Value::from("work")]);
    assert_eq!(routed(0), Some(work));
    assert_eq!(routed(1), Some(Value::Array(Vec::new())));
    let counts = counters[0].1.messages();
    let said = [counts.publish, counts.confirm, counts.return_unroutable];
    assert_eq!(said, [2, 1, 1]);
    assert_eq!(counts.get_no_ack, 1);
}
