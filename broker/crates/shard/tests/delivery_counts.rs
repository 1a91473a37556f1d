//! Failed deliveries and returns of quorum queues, behind their feature flag.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::Change;
use metadata::features::QUORUM_DELIVERY_COUNTS;

const QUEUE: &str = "work";
const LIMIT: i32 = 2;

fn declare(c: &mut Cluster, client: &mut Client) {
    let arguments = [
        ("x-queue-type", Value::from("quorum")),
        ("x-delivery-limit", Value::I32(LIMIT)),
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from("dead")),
    ];
    client.declare(c, QUEUE, &arguments);
    client.declare(c, "dead", &[("x-queue-type", Value::from("quorum"))]);
    client.publish(c, "", QUEUE, &Properties::default(), b"m");
}

fn nack(delivery_tag: u64) -> Method<'static> {
    Method::BasicNack {
        delivery_tag,
        multiple: false,
        requeue: true,
    }
}

fn reject(delivery_tag: u64) -> Method<'static> {
    Method::BasicReject {
        delivery_tag,
        requeue: true,
    }
}

/// Gets the message and requeues it. Returns the counts of failed and of all deliveries in its headers.
fn get(
    c: &mut Cluster,
    client: &mut Client,
    requeue: fn(u64) -> Method<'static>,
) -> (Option<i64>, Option<i64>) {
    let got = client.must_get(c, QUEUE);
    client.send(c, 1, requeue(got.tag));
    let headers = got.headers();
    let count = |key: &str| headers.get(key).and_then(Value::as_integer);
    (count("x-delivery-count"), count("x-acquired-count"))
}

#[test]
fn only_rejections_count_towards_the_delivery_limit() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    assert_eq!(get(&mut c, &mut client, nack), (None, None));
    for returns in 1..=2 * i64::from(LIMIT) {
        let counts = get(&mut c, &mut client, nack);
        assert_eq!(counts, (None, Some(returns)));
    }
    assert_eq!(get(&mut c, &mut client, reject), (None, Some(5)));
    assert_eq!(get(&mut c, &mut client, reject), (Some(1), Some(6)));
    assert_eq!(get(&mut c, &mut client, nack), (Some(2), Some(7)));
    assert_eq!(get(&mut c, &mut client, reject), (Some(2), Some(8)));
    assert_eq!(client.must_get(&mut c, "dead").body[..], b"m"[..]);
}

#[test]
fn message_of_basic_get_has_failed_when_its_channel_closes() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let close = Method::ChannelClose {
        reply_code: 200,
        reply_text: "",
        class_id: 0,
        method_id: 0,
    };
    client.must_get(&mut c, QUEUE);
    client.call(&mut c, 1, close);
    client.call(&mut c, 1, Method::ChannelOpen {});
    assert_eq!(get(&mut c, &mut client, nack), (Some(1), Some(1)));
}

#[test]
fn without_the_flag_each_requeue_counts_until_it_is_enabled() {
    let flag = QUORUM_DELIVERY_COUNTS.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    assert_eq!(get(&mut c, &mut client, nack), (None, None));
    assert_eq!(get(&mut c, &mut client, reject), (Some(1), None));
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    assert_eq!(get(&mut c, &mut client, nack), (Some(2), Some(2)));
    assert_eq!(get(&mut c, &mut client, nack), (Some(2), Some(3)));
    // The next leader has the same counts.
    let (other, mut client) = c.kill_leader(QUEUE);
    c.until("the message is ready", |c| {
        (c.ready(other, QUEUE) == 1).then_some(())
    });
    assert_eq!(get(&mut c, &mut client, reject), (Some(2), Some(4)));
    assert_eq!(client.must_get(&mut c, "dead").body[..], b"m"[..]);
}
