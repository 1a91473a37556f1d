//! Messages that are larger than the default `max_message_size`: of a client of the one node that is configured to take
//! them, on all nodes of the cluster.

use crate::cluster::{Client, Cluster};
use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    FrameKind, Method, encode_body, encode_content_header, encode_method, parse_frame,
};
use env::NodeId;
use message::Value;
use std::time::Duration;

const FRAME_MAX: u32 = 131_072;
const LARGE: usize = 100 << 20;

/// A body in which no part is like another one.
fn body() -> Bytes {
    let numbers = 0..(LARGE / 8) as u64;
    let mut body = BytesMut::with_capacity(LARGE);
    numbers
        .for_each(|n| body.extend_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()));
    body.freeze()
}

fn publish(client: &mut Client, cluster: &mut Cluster, queue: &str, body: &[u8]) {
    let method = Method::BasicPublish {
        exchange: "",
        routing_key: queue,
        mandatory: false,
        immediate: false,
    };
    let mut frames = BytesMut::new();
    encode_method(&mut frames, 1, &method);
    // Persistent.
    encode_content_header(&mut frames, 1, body.len() as u64, &[0x10, 0, 2]);
    encode_body(&mut frames, 1, body, FRAME_MAX);
    client.send_raw(cluster, &frames);
}

/// The body of the message that `basic.get` takes from the queue.
fn get(client: &mut Client, cluster: &mut Cluster, queue: &str) -> Bytes {
    let no_ack = true;
    client.send(cluster, 1, Method::BasicGet { queue, no_ack });
    let (mut got, mut body) = (BytesMut::new(), BytesMut::with_capacity(LARGE));
    cluster.until("the whole message", |c| {
        client.take_raw(c, |piece| got.extend_from_slice(piece));
        client.drained(c);
        while let Some(frame) = parse_frame(&got, FRAME_MAX).expect("a good frame") {
            match frame.kind {
                FrameKind::Body => body.extend_from_slice(frame.payload),
                FrameKind::Method => {
                    let method = Method::decode(frame.payload).expect("a method");
                    assert!(matches!(method, Method::BasicGetOk { .. }), "{method:?}");
                }
                _ => {}
            }
            let len = frame.wire_len();
            let _ = got.split_to(len);
        }
        (body.len() >= LARGE).then_some(())
    });
    body.freeze()
}

fn confirming(cluster: &mut Cluster, at: usize) -> Client {
    let mut client = cluster.client(at);
    client.call(cluster, 1, Method::ConfirmSelect { no_wait: false });
    client
}

/// One member is away when it comes and gets it from the log, one loses its directory and gets it with a checkpoint.
#[test]
fn a_large_message_reaches_all_members_of_a_quorum_queue() {
    let mut c = Cluster::with_message_size(3, LARGE as u32);
    let mut client = confirming(&mut c, 0);
    client.declare(&mut c, "q", &[("x-queue-type", Value::from("quorum"))]);
    c.kill(2);
    let body = body();
    publish(&mut client, &mut c, "q", &body);
    let confirmed = client.next_method(&mut c);
    assert!(confirmed.starts_with("BasicAck"), "{confirmed}");
    c.back(2);
    c.until("the log is level", |c| {
        (c.replicas(0, "q").len() == 3).then_some(())
    });
    c.pass(Duration::from_secs(5));
    // From memory to segments, and a checkpoint that begins behind it.
    for at in 0..3 {
        c.roll_log(at);
    }
    c.pass(Duration::from_secs(5));
    c.kill(1);
    let new = c.lose_directory(1);
    c.until("the new self holds the message", |c| {
        let len = c.disk(new).files().into_iter();
        let segments = len.filter(|(path, _)| path.ends_with(".seg"));
        let largest = segments.map(|(_, len)| len).max();
        (largest > Some(LARGE as u64)).then_some(())
    });
    let voters = [1, 3, 4].map(NodeId);
    c.until("the old self is in no group", |c| {
        let mut members = c.queue(0, "q").map(|q| q.members).unwrap_or_default();
        let mut metadata = c.metadata_voters(0);
        members.sort_unstable();
        metadata.sort_unstable();
        (members == voters && metadata == voters).then_some(())
    });
    // It and the one that was away are enough, and neither is configured to take such a message from a client.
    c.kill(0);
    c.until("another leader", |c| (c.ready(2, "q") == 1).then_some(()));
    let mut reader = c.client(2);
    assert!(get(&mut reader, &mut c, "q") == body, "another body");
    assert_eq!(c.failed(2), None);
}

#[test]
fn a_large_message_passes_through_a_classic_queue_on_another_node() {
    let mut c = Cluster::with_message_size(2, LARGE as u32);
    let mut home = c.client(1);
    home.declare(&mut c, "q", &[]);
    let mut client = confirming(&mut c, 0);
    let body = body();
    publish(&mut client, &mut c, "q", &body);
    let confirmed = client.next_method(&mut c);
    assert!(confirmed.starts_with("BasicAck"), "{confirmed}");
    let written = c.disk(1).files().into_iter();
    let written: u64 = written
        .filter(|(path, _)| path.starts_with("classic/"))
        .map(|(_, len)| len)
        .sum();
    assert!(written > LARGE as u64, "{written} bytes on its disk");
    assert!(get(&mut client, &mut c, "q") == body, "another body");
}

#[test]
fn a_message_over_the_limit_of_the_node_is_refused() {
    let mut c = Cluster::with_message_size(2, LARGE as u32);
    let mut client = c.client(1);
    client.declare(&mut c, "q", &[("x-queue-type", Value::from("quorum"))]);
    publish(&mut client, &mut c, "q", &body());
    let refused = client.next_method(&mut c);
    assert!(refused.starts_with("ChannelClose"), "{refused}");
    let text = "message size 104857600 is larger than configured max size 16777216";
    assert!(refused.contains(text), "{refused}");
}
