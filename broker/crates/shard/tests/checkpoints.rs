//! What queues say in the turn in which they write a checkpoint.

use crate::cluster::{Client, Cluster};
use bytes::BytesMut;
use codec_amqp091::{FrameKind, Method, parse_frame};
use codec_amqp091::{encode_body, encode_content_header, encode_method};

fn publish(frames: &mut BytesMut, queue: &str) {
    let method = Method::BasicPublish {
        exchange: "",
        routing_key: queue,
        mandatory: false,
        immediate: false,
    };
    encode_method(frames, 1, &method);
    encode_content_header(frames, 1, 3, &[0, 0]);
    encode_body(frames, 1, b"abc", 4096);
}

/// How many messages have been confirmed, when `before` were.
fn confirmed(client: &Client, cluster: &mut Cluster, before: u64) -> u64 {
    let (mut got, mut count) = (BytesMut::new(), before);
    client.take_raw(cluster, |piece| got.extend_from_slice(piece));
    while let Ok(Some(frame)) = parse_frame(&got, 4096) {
        assert_eq!(frame.kind, FrameKind::Method);
        match Method::decode(frame.payload) {
            Ok(Method::BasicAck {
                delivery_tag,
                multiple,
            }) => count = if multiple { delivery_tag } else { count + 1 },
            other => panic!("{other:?}"),
        }
        let len = frame.wire_len();
        let _ = got.split_to(len);
    }
    count
}

/// Every queue's confirms are its own, also when another one's checkpoint is due in the same turn: here without any time
/// for a second try.
#[test]
fn each_queue_speaks_for_itself() {
    let mut cluster = Cluster::with_checkpoints(1);
    let mut client = cluster.client(0);
    let queues = ["a", "b", "c"];
    for queue in queues {
        client.declare(&mut cluster, queue, &[("x-queue-type", "quorum".into())]);
    }
    client.call(&mut cluster, 1, Method::ConfirmSelect { no_wait: false });
    let (mut sent, mut known) = (0, 0);
    for round in 0..100 {
        let mut frames = BytesMut::new();
        for (n, queue) in queues.iter().enumerate() {
            // Their checkpoints are not always due together.
            for _ in 0..=(round + n) % 3 {
                publish(&mut frames, queue);
                sent += 1;
            }
        }
        client.send_raw(&mut cluster, &frames);
        known = confirmed(&client, &mut cluster, known);
        assert_eq!(known, sent, "in round {round}");
    }
    let ready: u64 = queues.iter().map(|q| cluster.ready(0, q)).sum();
    assert_eq!(ready, sent);
}
