//! Messages expire on time behind others: the length of the queue and its dead letters follow.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::Change;
use metadata::features::EXACT_EXPIRY;
use std::time::Duration;

const QUEUE: &str = "work";
const DEAD: &str = "dead";

/// Declares a queue whose dead letters go to another one, and publishes a message without a TTL and two behind it.
fn set_up(c: &mut Cluster, client: &mut Client, kind: &str) {
    client.declare(c, DEAD, &[("x-queue-type", Value::from(kind))]);
    let arguments = [
        ("x-queue-type", Value::from(kind)),
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from(DEAD)),
    ];
    client.declare(c, QUEUE, &arguments);
    publish(c, client, None, "lasting");
    publish(c, client, Some("20000"), "long");
    publish(c, client, Some("5000"), "short");
    c.until("the messages are ready", |c| {
        (c.ready(0, QUEUE) == 3).then_some(())
    });
}

fn publish(c: &mut Cluster, client: &mut Client, expiration: Option<&str>, body: &str) {
    let properties = Properties {
        expiration,
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, "", QUEUE, &properties, body.as_bytes());
}

/// Lets time pass until the queue has this number of ready messages, and gets its dead letter.
fn expire(c: &mut Cluster, client: &mut Client, (at, left): (usize, u64), body: &str) {
    c.until("the message has expired", |c| {
        (c.ready(at, QUEUE) == left).then_some(())
    });
    let letter = client.must_get(c, DEAD);
    assert_eq!(letter.body, body.as_bytes());
    let headers = letter.headers();
    let reason = headers.get("x-first-death-reason").and_then(Value::as_str);
    assert_eq!(reason, Some("expired"));
    let ack = Method::BasicAck {
        delivery_tag: letter.tag,
        multiple: false,
    };
    client.send(c, 1, ack);
    c.settle();
}

fn expires_behind_a_lasting_message(kind: &str) {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    set_up(&mut c, &mut client, kind);
    let begin = c.wall.0;
    expire(&mut c, &mut client, (0, 2), "short");
    assert!(c.wall.0 >= begin + 4900, "not before its time");
    expire(&mut c, &mut client, (0, 1), "long");
    let got = client.must_get(&mut c, QUEUE);
    assert_eq!(got.body, b"lasting"[..]);
}

#[test]
fn message_of_a_quorum_queue_expires_behind_a_lasting_one() {
    expires_behind_a_lasting_message("quorum");
}

#[test]
fn flag_drops_overdue_messages_and_the_next_leader_knows_the_others() {
    let mut c = Cluster::without_feature(3, EXACT_EXPIRY.name);
    let mut client = c.client(0);
    set_up(&mut c, &mut client, "quorum");
    c.pass(Duration::from_secs(6));
    assert_eq!(
        c.ready(0, QUEUE),
        3,
        "without the flag only the first expires"
    );
    let name = EXACT_EXPIRY.name.into();
    c.change(Change::EnableFeature { name });
    expire(&mut c, &mut client, (0, 2), "short");
    let (other, mut client) = c.kill_leader(QUEUE);
    expire(&mut c, &mut client, (other, 1), "long");
    let got = client.must_get(&mut c, QUEUE);
    assert_eq!(got.body, b"lasting"[..]);
}
