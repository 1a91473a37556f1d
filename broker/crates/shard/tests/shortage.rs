//! A process without descriptors cannot read quorum queues' messages that have left its memory: they wait, and no node ends.

use crate::cluster::{Client, Cluster};
use bytes::BytesMut;
use codec_amqp091::{FrameKind, Method, Properties, parse_frame};
use message::{Table, Value};
use std::time::Duration;

const MESSAGES: u8 = 20;

/// A quorum queue of that many members whose messages are in segments alone, and a client of its leader.
fn flushed(members: usize) -> (Cluster, Client) {
    let mut c = Cluster::new(members);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[("x-queue-type", Value::from("quorum"))]);
    for n in 1..=MESSAGES {
        publish(&mut client, &mut c, n);
    }
    c.until("all are there", |c| {
        (c.ready(0, "q") == u64::from(MESSAGES)).then_some(())
    });
    for at in 0..members {
        c.roll_log(at);
    }
    c.until("a segment on every node", |c| {
        let all = (0..members).all(|at| c.files_at(at).iter().any(|f| f.ends_with(".seg")));
        c.pass(Duration::from_millis(100));
        all.then_some(())
    });
    c.pass(Duration::from_secs(1));
    (c, client)
}

/// A message that begins with `n`; many of them are more than is written to the log again in place of a segment.
fn publish(client: &mut Client, cluster: &mut Cluster, n: u8) {
    client.publish(cluster, "", "q", &Properties::default(), &[n; 500]);
}

fn consume(client: &mut Client, cluster: &mut Cluster, no_ack: bool) {
    let method = Method::BasicConsume {
        queue: "q",
        consumer_tag: "c",
        no_local: false,
        no_ack,
        exclusive: false,
        no_wait: true,
        arguments: Table::default(),
    };
    client.send(cluster, 1, method);
}

/// What the bodies begin with that have come since the last call.
fn bodies(client: &Client, cluster: &mut Cluster) -> Vec<u8> {
    let (mut got, mut bodies) = (BytesMut::new(), Vec::new());
    client.take_raw(cluster, |piece| got.extend_from_slice(piece));
    client.drained(cluster);
    while let Some(frame) = parse_frame(&got, 131_072).expect("a good frame") {
        if frame.kind == FrameKind::Body {
            bodies.extend(frame.payload.first());
        }
        let len = frame.wire_len();
        let _ = got.split_to(len);
    }
    bodies
}

#[test]
fn consumers_get_their_messages_in_order_once_descriptors_are_there() {
    for members in [1, 3] {
        for no_ack in [false, true] {
            let (mut c, mut client) = flushed(members);
            for at in 0..members {
                c.disk(at).set_out_of_descriptors(true);
            }
            consume(&mut client, &mut c, no_ack);
            c.pass(Duration::from_secs(3));
            assert_eq!(bodies(&client, &mut c), [0; 0], "{members} members");
            // Those that are published meanwhile are confirmed and wait behind the others.
            let mut publisher = c.client(0);
            let confirms = Method::ConfirmSelect { no_wait: false };
            publisher.call(&mut c, 1, confirms);
            publish(&mut publisher, &mut c, MESSAGES + 1);
            let ack = publisher.next_method(&mut c);
            assert!(ack.starts_with("BasicAck"), "{ack}");
            c.pass(Duration::from_secs(1));
            for at in 0..members {
                c.disk(at).set_out_of_descriptors(false);
            }
            c.pass(Duration::from_secs(2));
            let expected: Vec<u8> = (1..=MESSAGES + 1).collect();
            assert_eq!(bodies(&client, &mut c), expected, "{members} members");
        }
    }
}

/// Checkpoints do not let go of messages that are on their way to a consumer that does not acknowledge.
#[test]
fn checkpoint_during_a_shortage_keeps_messages_that_wait_to_be_read() {
    let mut c = Cluster::with_checkpoints(5);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[("x-queue-type", Value::from("quorum"))]);
    client.declare(&mut c, "other", &[("x-queue-type", Value::from("quorum"))]);
    for n in 1..=MESSAGES {
        publish(&mut client, &mut c, n);
    }
    c.roll_log(0);
    c.pass(Duration::from_secs(5));
    c.disk(0).set_out_of_memory(true);
    consume(&mut client, &mut c, true);
    // Files can be written, and checkpoints are.
    let mut publisher = c.client(0);
    for n in 1..=50 {
        publish(&mut publisher, &mut c, MESSAGES + n);
        c.pass(Duration::from_millis(50));
    }
    c.roll_log(0);
    c.pass(Duration::from_secs(5));
    c.disk(0).set_out_of_memory(false);
    c.pass(Duration::from_secs(2));
    let expected: Vec<u8> = (1..=MESSAGES + 50).collect();
    assert_eq!(bodies(&client, &mut c), expected);
}

#[test]
fn get_is_refused_at_once_while_messages_cannot_be_read() {
    let (mut c, mut client) = flushed(1);
    c.disk(0).set_out_of_descriptors(true);
    let get = Method::BasicGet {
        queue: "q",
        no_ack: false,
    };
    let mut first = c.client(0);
    // The first one finds out, and waits.
    first.send(&mut c, 1, get.clone());
    let refused = client.ask(&mut c, 1, get).expect_err("cannot be read");
    assert!(refused.contains("queue 'q' in vhost '/'"), "{refused}");
    assert!(refused.contains("try again later"), "{refused}");
    c.disk(0).set_out_of_descriptors(false);
    c.pass(Duration::from_secs(2));
    assert_eq!(bodies(&first, &mut c), [1]);
    let mut later = c.client(0);
    let got = later.get(&mut c, "q").expect("it is not empty");
    assert_eq!(got.body[..], [2; 500]);
}
