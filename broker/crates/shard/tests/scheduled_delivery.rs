//! Messages that are delivered at the time that their publisher set.
#![forbid(unsafe_code)]

mod cluster;

use bytes::BytesMut;
use cluster::{Client, Cluster, arguments};
use codec_amqp091::{Method, Properties, table};
use message::Value;
use metadata::Change;
use metadata::features::SCHEDULED_DELIVERY;
use std::time::Duration;

const EXCHANGE: &str = "later";
const QUEUE: &str = "work";
const DELAY: Duration = Duration::from_secs(20);

fn declare_exchange(c: &mut Cluster, client: &mut Client) -> Result<(), String> {
    let method = Method::ExchangeDeclare {
        exchange: EXCHANGE,
        kind: "x-delayed-message",
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: arguments(&[("x-delayed-type", Value::from("topic"))]),
    };
    client.ask(c, 1, method).map(|_| ())
}

fn declare(c: &mut Cluster, client: &mut Client) {
    declare_exchange(c, client).unwrap_or_else(|error| panic!("{error}"));
    client.declare(c, QUEUE, &[("x-queue-type", Value::from("quorum"))]);
    client.bind(c, QUEUE, EXCHANGE, "job.#", &[]);
}

fn publish(c: &mut Cluster, client: &mut Client, delay: Duration, body: &[u8]) {
    let ms = i32::try_from(delay.as_millis()).expect("a short delay");
    let mut headers = BytesMut::new();
    table::encode(&arguments(&[("x-delay", Value::I32(ms))]), &mut headers);
    let properties = Properties {
        headers: Some(&headers[4..]),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, EXCHANGE, "job.one", &properties, body);
}

fn waiting(c: &mut Cluster, at: usize) -> u64 {
    let details = c.queue(at, QUEUE).and_then(|q| q.delayed);
    details.map_or(0, |details| details.messages)
}

#[test]
fn messages_come_when_they_are_due() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.call(&mut c, 1, Method::ConfirmSelect { no_wait: false });
    let start = c.wall.0;
    publish(&mut c, &mut client, DELAY * 2, b"second");
    publish(&mut c, &mut client, DELAY, b"first");
    publish(&mut c, &mut client, Duration::ZERO, b"at once");
    // A message that waits is confirmed like any other.
    client.until_confirmed(&mut c, 3);
    assert_eq!(waiting(&mut c, 1), 2);
    for (delay, body) in [
        (Duration::ZERO, &b"at once"[..]),
        (DELAY, b"first"),
        (DELAY * 2, b"second"),
    ] {
        let due = start + delay.as_millis() as u64;
        c.until("the message is ready", |c| {
            (c.ready(0, QUEUE) == 1).then_some(())
        });
        assert!(c.wall.0 >= due);
        let got = client.must_get(&mut c, QUEUE);
        assert_eq!(got.body[..], *body);
        assert!(client.get(&mut c, QUEUE).is_none());
    }
}

#[test]
fn next_leader_delivers_on_time() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let start = c.wall.0;
    publish(&mut c, &mut client, DELAY, b"m");
    c.until("the message waits", |c| (waiting(c, 2) == 1).then_some(()));
    let (other, mut client) = c.kill_leader(QUEUE);
    c.until("the message is ready", |c| {
        (c.ready(other, QUEUE) == 1).then_some(())
    });
    assert!(c.wall.0 >= start + DELAY.as_millis() as u64);
    assert_eq!(client.must_get(&mut c, QUEUE).body[..], b"m"[..]);
}

#[test]
fn queue_that_cannot_hold_messages_back_closes_the_channel() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.declare(&mut c, "classic", &[]);
    client.declare_exchange(&mut c, "all", "fanout");
    client.bind(&mut c, "classic", "all", "", &[]);
    let bind = Method::ExchangeBind {
        destination: "all",
        source: EXCHANGE,
        routing_key: "#",
        no_wait: false,
        arguments: arguments(&[]),
    };
    client.call(&mut c, 1, bind);
    publish(&mut c, &mut client, Duration::ZERO, b"m");
    c.until("the message is ready", |c| {
        (c.ready(0, "classic") == 1).then_some(())
    });
    publish(&mut c, &mut client, DELAY, b"m");
    let closed = client.next_method(&mut c);
    assert!(closed.contains("reply_code: 540"), "{closed}");
    assert!(closed.contains("queue 'classic' in vhost '/'"), "{closed}");
    assert_eq!((c.ready(0, "classic"), waiting(&mut c, 0)), (1, 0));
}

#[test]
fn exchange_needs_the_feature_flag() {
    let flag = SCHEDULED_DELIVERY.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    client.declare(&mut c, QUEUE, &[("x-queue-type", Value::from("quorum"))]);
    let refused = declare_exchange(&mut c, &mut client).expect_err("no flag");
    assert!(refused.contains(flag), "{refused}");
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    // A queue of an older version holds messages back from now on.
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    publish(&mut c, &mut client, DELAY, b"m");
    c.until("the message waits", |c| (waiting(c, 0) == 1).then_some(()));
}
