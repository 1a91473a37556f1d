//! Hostile input: no panic, and bounded memory.

use crate::fake::Conn;
use bytes::BytesMut;
use codec_amqp091::{Frame, FrameKind, Method, encode_content_header, encode_method, open_body};
use message::Table;
use proptest::prelude::*;
use session::{Session, SessionState};
use std::time::Duration;

fn kind() -> impl Strategy<Value = FrameKind> {
    prop_oneof![
        6 => Just(FrameKind::Method),
        2 => Just(FrameKind::Header),
        2 => Just(FrameKind::Body),
        1 => Just(FrameKind::Heartbeat),
    ]
}

/// Complete frames with an existing class id and random content.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let class = prop_oneof![
        Just(10u8),
        Just(20),
        Just(40),
        Just(50),
        Just(60),
        Just(85),
        Just(90)
    ];
    (
        kind(),
        0u16..4,
        class,
        0u8..130,
        proptest::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(kind, channel, class, id, tail)| {
            let mut payload = vec![0, class, 0, id];
            payload.extend(tail);
            let mut out = BytesMut::new();
            Frame {
                kind,
                channel,
                payload: &payload,
            }
            .encode(&mut out);
            out.to_vec()
        })
}

/// Valid methods, in any order.
fn method(n: u8, q: usize, flag: bool, number: u64) -> (u16, Vec<u8>) {
    let queue = ["", "q", "r"][q];
    let channel = 1 + u16::from(n) % 2;
    let arguments = Table::default;
    let method = match n % 23 {
        0 => Method::ChannelOpen {},
        1 => Method::QueueDeclare {
            queue,
            passive: false,
            durable: true,
            exclusive: flag,
            auto_delete: false,
            no_wait: flag,
            arguments: arguments(),
        },
        2 | 3 => Method::BasicConsume {
            queue,
            consumer_tag: "",
            no_local: false,
            no_ack: flag,
            exclusive: false,
            no_wait: flag,
            arguments: arguments(),
        },
        4 | 5 => Method::BasicAck {
            delivery_tag: number % 9,
            multiple: flag,
        },
        6 => Method::BasicNack {
            delivery_tag: number % 9,
            multiple: flag,
            requeue: number.is_multiple_of(2),
        },
        7 => Method::BasicGet {
            queue,
            no_ack: flag,
        },
        8 => Method::QueueDelete {
            queue,
            if_unused: flag,
            if_empty: false,
            no_wait: flag,
        },
        9 => Method::BasicRecover { requeue: true },
        10 => Method::ConfirmSelect { no_wait: flag },
        11 => Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: number as u16 % 5,
            global: flag,
        },
        12 => Method::ChannelClose {
            reply_code: 0,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
        13 => Method::ChannelCloseOk {},
        14 => Method::QueuePurge {
            queue,
            no_wait: flag,
        },
        15 => Method::TxSelect {},
        16 => Method::TxCommit {},
        17 => Method::TxRollback {},
        _ => {
            let mut out = BytesMut::new();
            let publish = Method::BasicPublish {
                exchange: "",
                routing_key: queue,
                mandatory: flag,
                immediate: false,
            };
            encode_method(&mut out, channel, &publish);
            encode_content_header(&mut out, channel, 3, &[0, 0]);
            open_body(&mut out, channel, 3);
            out.extend_from_slice(b"abc\xCE");
            return (channel, out.to_vec());
        }
    };
    let mut out = BytesMut::new();
    encode_method(&mut out, channel, &method);
    (channel, out.to_vec())
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(stage in 0usize..3, chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..6)) {
        let mut conn = match stage {
            0 => Conn::new(Default::default()),
            1 => Conn::open(),
            _ => Conn::with_channel(),
        };
        for chunk in chunks {
            conn.raw(&chunk);
        }
        conn.advance(Duration::from_secs(3600));
        prop_assert!(conn.out.len() < 1 << 20);
    }

    #[test]
    fn arbitrary_frames_do_not_panic(frames in proptest::collection::vec(frame(), 1..30)) {
        let mut conn = Conn::with_channel();
        conn.declare(1, "q");
        for frame in frames {
            conn.raw(&frame);
        }
        conn.drain();
        conn.session.gone(&mut conn.broker);
    }

    /// Random sessions lose no message: each routed one is in the queue, unacknowledged in the
    /// session, or settled.
    #[test]
    fn random_methods_lose_no_message(script in proptest::collection::vec((any::<u8>(), 0usize..3, any::<bool>(), any::<u64>(), any::<bool>()), 1..80)) {
        let mut conn = Conn::with_channel();
        conn.open_channel(2);
        conn.declare(1, "q");
        for (n, q, flag, number, read) in script {
            let (_, bytes) = method(n, q, flag, number);
            conn.raw(&bytes);
            if read {
                conn.drain();
            }
        }
        // After all channels are closed, no delivery may be outstanding at a queue.
        for channel in 1..3 {
            conn.send(channel, Method::ChannelCloseOk {});
            conn.send(channel, Method::ChannelOpen {});
        }
        conn.send(0, Method::ConnectionClose { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 });
        conn.drain();
        conn.settle();
        for queue in conn.broker.queues.values() {
            for consumer in queue.consumers.values() {
                prop_assert!(consumer.cancelled);
                prop_assert!(consumer.out.is_empty());
            }
        }
    }
}

#[test]
fn unread_replies_pause_the_connection() {
    let mut conn = Conn::with_channel();
    let mut bytes = BytesMut::new();
    for _ in 0..1000 {
        encode_method(
            &mut bytes,
            1,
            &Method::BasicQos {
                prefetch_size: 0,
                prefetch_count: 1,
                global: false,
            },
        );
    }
    for _ in 0..10_000 {
        conn.raw(&bytes);
        if conn.session_state == SessionState::Paused {
            break;
        }
    }
    assert_eq!(conn.session_state, SessionState::Paused);
    assert!(conn.out.len() <= (4 << 20) + 64, "{}", conn.out.len());
    conn.drain();
    assert_eq!(conn.session_state, SessionState::Open);
}
