//! Consumers, deliveries and settlement.

mod fake;

use codec_amqp091::{Method, Properties};
use fake::{Conn, consume, queue_declare, queue_delete, ready, with_queue};
use message::{Table, Value};
use queue::RequestBody;
use session::{Session, SessionState};
use session_amqp091::{Limits, SessionConfig};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn deliveries_follow_consume_ok_and_acks_remove_them() {
    let mut conn = with_queue(2);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.expect_deliver(1, "c", 2, "q", b"2");
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 2,
            multiple: true,
        },
    );
    conn.expect_nothing();
    let settle = conn.broker.requests.last().unwrap();
    assert!(
        matches!(&settle.1, RequestBody::Settle { outcome: queue::SettlementOutcome::Accepted, ids, .. } if ids == &[(1, 2)])
    );
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    assert!(ready(&conn).is_empty());
}

#[test]
fn acks_of_one_read_are_one_request() {
    let mut conn = with_queue(50);
    conn.consume(1, "q", "c", false);
    conn.drain();
    let before = conn.broker.requests.len();
    let mut bytes = bytes::BytesMut::new();
    for delivery_tag in 1..=50 {
        codec_amqp091::encode_method(
            &mut bytes,
            1,
            &Method::BasicAck {
                delivery_tag,
                multiple: false,
            },
        );
    }
    conn.raw(&bytes);
    assert_eq!(conn.broker.requests.len(), before + 1);
}

#[test]
fn nack_and_reject_go_back_or_away() {
    let mut conn = with_queue(4);
    conn.send(
        1,
        Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 4,
            global: false,
        },
    );
    conn.expect(1, Method::BasicQosOk {});
    conn.consume(1, "q", "c", false);
    for n in 1..=4 {
        conn.expect_deliver(1, "c", n, "q", n.to_string().as_bytes());
    }
    conn.send(
        1,
        Method::BasicReject {
            delivery_tag: 4,
            requeue: false,
        },
    );
    conn.expect_nothing();
    conn.send(
        1,
        Method::BasicNack {
            delivery_tag: 2,
            multiple: true,
            requeue: true,
        },
    );
    conn.expect(
        1,
        Method::BasicDeliver {
            consumer_tag: "c",
            delivery_tag: 5,
            redelivered: true,
            exchange: "",
            routing_key: "q",
        },
    );
    let (raw, body) = conn.expect_content(1);
    assert_eq!(body, b"1");
    let headers = Properties::decode(&raw).unwrap().header_table().unwrap();
    assert_eq!(headers.get("x-delivery-count"), Some(&Value::I64(1)));
    conn.expect_redeliver(1, "c", 6, true, "q", b"2");
    conn.expect_nothing();
}

#[test]
fn unknown_delivery_tags_are_406() {
    let attempts = [
        (
            Method::BasicAck {
                delivery_tag: 7,
                multiple: false,
            },
            7,
            (60, 80),
        ),
        (
            Method::BasicAck {
                delivery_tag: 7,
                multiple: true,
            },
            7,
            (60, 80),
        ),
        (
            Method::BasicAck {
                delivery_tag: 0,
                multiple: false,
            },
            0,
            (60, 80),
        ),
        (
            Method::BasicNack {
                delivery_tag: 9,
                multiple: false,
                requeue: true,
            },
            9,
            (60, 120),
        ),
        (
            Method::BasicReject {
                delivery_tag: 9,
                requeue: false,
            },
            9,
            (60, 90),
        ),
    ];
    let mut conn = Conn::open();
    for (method, tag, ids) in attempts {
        conn.open_channel(1);
        conn.send(1, method);
        conn.expect_channel_close(
            1,
            406,
            &format!("PRECONDITION_FAILED - unknown delivery tag {tag}"),
            ids,
        );
    }
    conn.open_channel(1);
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 0,
            multiple: true,
        },
    );
    conn.expect_nothing();
}

#[test]
fn an_ack_counts_once() {
    let mut conn = with_queue(1);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        (60, 80),
    );
}

#[test]
fn prefetch_is_the_consumers() {
    let mut conn = with_queue(3);
    conn.send(
        1,
        Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 1,
            global: false,
        },
    );
    conn.expect(1, Method::BasicQosOk {});
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.expect_nothing();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_deliver(1, "c", 2, "q", b"2");
    conn.expect_nothing();
    conn.send(
        1,
        Method::BasicQos {
            prefetch_size: 1,
            prefetch_count: 1,
            global: false,
        },
    );
    conn.expect_connection_close(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)", (60, 10));
}

#[test]
fn tags_are_made_up_and_not_used_twice() {
    let mut conn = with_queue(0);
    conn.send(1, consume("q", "", false));
    let (_, _, payload) = conn.next_frame().unwrap();
    let Method::BasicConsumeOk { consumer_tag } = Method::decode(&payload).unwrap() else {
        panic!("no consume-ok")
    };
    assert!(
        consumer_tag.starts_with("amq.ctag-") && consumer_tag.len() == 31,
        "{consumer_tag}"
    );
    conn.consume(1, "q", "c", false);
    conn.send(1, consume("q", "c", false));
    conn.expect_connection_close(
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 'c'",
        (60, 20),
    );
}

fn consume_alone<'a>(queue: &'a str, consumer_tag: &'a str) -> Method<'a> {
    Method::BasicConsume {
        queue,
        consumer_tag,
        no_local: false,
        no_ack: false,
        exclusive: true,
        no_wait: false,
        arguments: Table::default(),
    }
}

#[test]
fn a_quorum_queue_takes_no_notice_of_exclusive_consumers() {
    let mut conn = Conn::with_channel();
    let mut declare = queue_declare("q");
    if let Method::QueueDeclare {
        durable, arguments, ..
    } = &mut declare
    {
        *durable = true;
        arguments.set("x-queue-type", Value::String("quorum".into()));
    }
    conn.send(1, declare);
    assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
    for tag in ["a", "b"] {
        conn.send(1, consume_alone("q", tag));
        conn.expect(1, Method::BasicConsumeOk { consumer_tag: tag });
    }
    conn.consume(1, "q", "c", false);
}

#[test]
fn exclusive_consumers_are_alone() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    conn.send(1, consume_alone("q", "x"));
    conn.expect_channel_close(
        1,
        403,
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use",
        (60, 20),
    );
}

fn consume_with(conn: &mut Conn, key: &str, value: &str) {
    let mut arguments = Table::default();
    arguments.set(key, value.into());
    let method = Method::BasicConsume {
        queue: "q",
        consumer_tag: "x",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments,
    };
    conn.send(1, method);
}

#[test]
fn consumer_arguments_are_checked() {
    let mut conn = with_queue(0);
    consume_with(&mut conn, "x-priority", "high");
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
        (60, 20),
    );
    conn.open_channel(1);
    let mut arguments = Table::default();
    arguments.set("x-priority", Value::I8(9));
    conn.send(
        1,
        Method::BasicConsume {
            queue: "q",
            consumer_tag: "x",
            no_local: true,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments,
        },
    );
    conn.expect(1, Method::BasicConsumeOk { consumer_tag: "x" });
    let queue = conn.broker.queue("/", "q").unwrap();
    let spec = &queue
        .consumers
        .values()
        .find(|c| !c.cancelled)
        .unwrap()
        .spec;
    assert_eq!((spec.priority, spec.channel, &*spec.tag), (9, 1, "x"));
}

#[test]
fn cancel_stops_deliveries_but_not_settlement() {
    let mut conn = with_queue(1);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.send(
        1,
        Method::BasicCancel {
            consumer_tag: "c",
            no_wait: false,
        },
    );
    conn.expect(1, Method::BasicCancelOk { consumer_tag: "c" });
    conn.publish(1, "", "q", b"2");
    conn.expect_nothing();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_nothing();
    assert_eq!(ready(&conn), ["2"]);
    conn.send(
        1,
        Method::BasicCancel {
            consumer_tag: "unknown",
            no_wait: false,
        },
    );
    conn.expect(
        1,
        Method::BasicCancelOk {
            consumer_tag: "unknown",
        },
    );
}

#[test]
fn what_the_queue_delivers_before_it_hears_of_the_cancel_comes_before_cancel_ok() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    let publish = Method::BasicPublish {
        exchange: "",
        routing_key: "q",
        mandatory: false,
        immediate: false,
    };
    let cancel = Method::BasicCancel {
        consumer_tag: "c",
        no_wait: false,
    };
    // All in one read.
    let mut bytes = bytes::BytesMut::new();
    codec_amqp091::encode_method(&mut bytes, 1, &publish);
    codec_amqp091::encode_content_header(&mut bytes, 1, 1, &[0, 0]);
    codec_amqp091::encode_body(&mut bytes, 1, b"1", 131_072);
    codec_amqp091::encode_method(&mut bytes, 1, &cancel);
    conn.raw(&bytes);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.expect(1, Method::BasicCancelOk { consumer_tag: "c" });
    conn.publish(1, "", "q", b"2");
    conn.expect_nothing();
    assert_eq!(ready(&conn), ["2"]);
}

#[test]
fn arguments_for_streams_are_refused() {
    let mut conn = with_queue(0);
    consume_with(&mut conn, "x-stream-offset", "first");
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
        (60, 20),
    );
}

#[test]
fn deliveries_that_crossed_the_cancel_go_back() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    // The queue delivers, and the cancel comes before the session is told.
    let queue = conn.broker.queue_id("q");
    conn.publish(1, "", "q", b"1");
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.send(
        1,
        Method::BasicNack {
            delivery_tag: 1,
            multiple: false,
            requeue: true,
        },
    );
    conn.expect_redeliver(1, "c", 2, true, "q", b"1");
    let (consumer, delivery) = {
        let q = &conn.broker.queues[&queue];
        let (&id, c) = q.consumers.iter().next().unwrap();
        let (&n, (m, _)) = c.out.iter().next().unwrap();
        let delivery = queue::Delivery {
            id: n,
            redelivered: true,
            attempts: None,
            left: 0,
            message: m.clone(),
        };
        (queue::ConsumerId(id), delivery)
    };
    conn.send(
        1,
        Method::BasicCancel {
            consumer_tag: "c",
            no_wait: true,
        },
    );
    conn.broker
        .notices
        .push_back(session::SessionEvent::Deliver {
            queue,
            consumer,
            deliveries: vec![delivery],
        });
    conn.settle();
    conn.expect_nothing();
    assert_eq!(ready(&conn), ["1"]);
}

/// And the queue serves between them: which message a consumer gets next or again, and what a limit drops, follows from that.
#[test]
fn what_is_settled_together_is_so_consumer_by_consumer() {
    let nack = Method::BasicNack {
        delivery_tag: 0,
        multiple: true,
        requeue: true,
    };
    let ack = Method::BasicAck {
        delivery_tag: 0,
        multiple: true,
    };
    for back in [nack, Method::BasicRecover { requeue: true }, ack] {
        let mut conn = with_queue(2);
        let get = Method::BasicGet {
            queue: "q",
            no_ack: false,
        };
        (0..2).for_each(|_| conn.send(1, get.clone()));
        conn.send(
            1,
            Method::BasicQos {
                prefetch_size: 0,
                prefetch_count: 1,
                global: false,
            },
        );
        conn.drain();
        conn.send(1, consume("q", "b", false));
        conn.send(1, consume("q", "a", false));
        (3..=4).for_each(|n| conn.publish(1, "", "q", n.to_string().as_bytes()));
        conn.drain();
        // One that is cancelled keeps its place.
        let cancel = Method::BasicCancel {
            consumer_tag: "b",
            no_wait: false,
        };
        conn.send(1, cancel);
        conn.drain();
        let before = conn.broker.requests.len();
        conn.send(1, back);
        let asked = conn.broker.requests.get(before..).unwrap();
        let settled = asked.iter().filter_map(|r| match &r.1 {
            RequestBody::Settle { consumer, ids, .. } => Some((consumer.0, ids.len())),
            _ => None,
        });
        let settled: Vec<(u32, usize)> = settled.collect();
        // Two gets, then a before b.
        assert_eq!(settled.first(), Some(&(1, 1)), "{settled:?}");
        assert_eq!(settled.get(1), Some(&(2, 1)), "{settled:?}");
        assert_eq!(settled.get(2..), Some(&[(4, 1), (3, 1)][..]), "{settled:?}");
    }
}

#[test]
fn closing_a_channel_returns_what_it_had() {
    let mut conn = with_queue(3);
    conn.consume(1, "q", "c", false);
    conn.drain();
    assert!(ready(&conn).is_empty());
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    assert_eq!(ready(&conn), ["1", "2", "3"]);
    assert_eq!(conn.session.info().channels, 0);
}

/// Or what one gives back would be delivered to the next, as often as there are consumers, and be redelivered that often.
#[test]
fn consumers_that_end_together_get_nothing_of_each_other() {
    let close = |channel| {
        let (reply_code, reply_text, class_id, method_id) = (200, "", 0, 0);
        let close = Method::ChannelClose {
            reply_code,
            reply_text,
            class_id,
            method_id,
        };
        let end = Method::ConnectionClose {
            reply_code,
            reply_text,
            class_id,
            method_id,
        };
        if channel == 0 { end } else { close }
    };
    for (channels, closing) in [([1, 1, 1], 1), ([1, 2, 3], 0)] {
        let mut conn = with_queue(0);
        (2..=3).for_each(|channel| conn.open_channel(channel));
        for (channel, tag) in channels.into_iter().zip(["a", "b", "c"]) {
            conn.consume(channel, "q", tag, false);
        }
        (1..=6).for_each(|n| conn.publish(1, "", "q", n.to_string().as_bytes()));
        conn.drain();
        let before = conn.broker.requests.len();
        conn.send(closing, close(closing));
        let asked = conn.broker.requests.get(before..).unwrap();
        let gives_back = |r: &RequestBody| matches!(r, RequestBody::Leave { .. });
        let stopped = asked.iter().take_while(|r| !gives_back(&r.1));
        assert_eq!(
            stopped
                .filter(|r| matches!(r.1, RequestBody::Cancel { .. }))
                .count(),
            3
        );
        assert_eq!(asked.iter().filter(|r| gives_back(&r.1)).count(), 3);
        assert_eq!(ready(&conn), ["1", "2", "3", "4", "5", "6"]);
    }
}

/// As a quorum queue of RabbitMQ takes it back: consumers as they came, also one that was cancelled and still holds something, and then
/// what was got. None of it goes to the consumer that ends with them.
#[test]
fn what_a_channel_held_goes_back_consumer_by_consumer_and_then_what_was_got() {
    let mut conn = with_queue(1);
    conn.consume(1, "q", "first", false);
    conn.drain();
    conn.publish(1, "", "q", b"2");
    conn.drain();
    let cancel = Method::BasicCancel {
        consumer_tag: "first",
        no_wait: false,
    };
    conn.send(1, cancel);
    conn.publish(1, "", "q", b"3");
    let get = Method::BasicGet {
        queue: "q",
        no_ack: false,
    };
    conn.send(1, get);
    conn.drain();
    conn.send(1, consume("q", "last", false));
    conn.publish(1, "", "q", b"4");
    conn.drain();
    let before = conn.broker.requests.len();
    let close = Method::ChannelClose {
        reply_code: 200,
        reply_text: "",
        class_id: 0,
        method_id: 0,
    };
    conn.send(1, close);
    let asked = conn.broker.requests.get(before..).unwrap();
    let told: Vec<(&str, u32)> = asked
        .iter()
        .filter_map(|r| match &r.1 {
            RequestBody::Cancel { consumer } => Some(("cancel", consumer.0)),
            RequestBody::Recover { consumer } => Some(("recover", consumer.0)),
            RequestBody::Leave { consumer } => Some(("leave", consumer.0)),
            _ => None,
        })
        .collect();
    // The first consumer, what was got, the last consumer: 1, 2, 3.
    let order = [("cancel", 3), ("recover", 1), ("leave", 3), ("recover", 2)];
    assert_eq!(told, order);
    assert_eq!(ready(&conn).len(), 4);
}

#[test]
fn so_does_the_connection() {
    let mut conn = with_queue(2);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.consume_after_get();
    conn.send(
        0,
        Method::ConnectionClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    assert_eq!(ready(&conn).len(), 2);
}

impl Conn {
    fn consume_after_get(&mut self) {
        assert_eq!(self.next_method(), (1, "basic.get-ok"));
        self.expect_content(1);
    }
}

#[test]
fn get_takes_one_at_a_time() {
    let mut conn = with_queue(2);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.expect(
        1,
        Method::BasicGetOk {
            delivery_tag: 1,
            redelivered: false,
            exchange: "",
            routing_key: "q",
            message_count: 1,
        },
    );
    assert_eq!(conn.expect_content(1).1, b"1");
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: true,
        },
    );
    conn.expect(
        1,
        Method::BasicGetOk {
            delivery_tag: 2,
            redelivered: false,
            exchange: "",
            routing_key: "q",
            message_count: 0,
        },
    );
    conn.expect_content(1);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: true,
        },
    );
    conn.expect(1, Method::BasicGetEmpty {});
    conn.send(
        1,
        Method::BasicNack {
            delivery_tag: 1,
            multiple: false,
            requeue: true,
        },
    );
    assert_eq!(ready(&conn), ["1"]);
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 2,
            multiple: false,
        },
    );
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 2",
        (60, 80),
    );
}

#[test]
fn recover_requeues_everything() {
    let mut conn = with_queue(2);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.consume_after_get();
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.consume_after_get();
    conn.send(1, Method::BasicRecover { requeue: true });
    conn.expect(1, Method::BasicRecoverOk {});
    assert_eq!(ready(&conn).len(), 2);
    conn.send(1, Method::BasicRecoverAsync { requeue: true });
    conn.expect_nothing();
    conn.send(1, Method::BasicRecover { requeue: false });
    conn.expect_connection_close(540, "NOT_IMPLEMENTED - requeue=false", (60, 110));
}

#[test]
fn a_deleted_queue_cancels_its_consumers() {
    let mut conn = with_queue(0);
    conn.open_channel(2);
    conn.consume(1, "q", "c", false);
    conn.send(
        2,
        Method::QueueDelete {
            queue: "q",
            if_unused: false,
            if_empty: false,
            no_wait: true,
        },
    );
    conn.expect(
        1,
        Method::BasicCancel {
            consumer_tag: "c",
            no_wait: true,
        },
    );
    conn.expect_nothing();
    conn.declare(2, "q");
    conn.consume(1, "q", "c", false);
}

#[test]
fn a_channel_that_deletes_its_consumers_queue_hears_of_that_first() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    conn.send(1, queue_delete("q"));
    conn.expect(1, Method::QueueDeleteOk { message_count: 0 });
    let cancel = Method::BasicCancel {
        consumer_tag: "c",
        no_wait: true,
    };
    conn.expect(1, cancel);
    conn.declare(1, "q");
    conn.consume(1, "q", "c", false);
}

#[test]
fn no_ack_deliveries_are_settled_when_written() {
    let mut conn = with_queue(3000);
    conn.consume(1, "q", "c", true);
    for n in 1..=3000u64 {
        conn.expect_deliver(1, "c", n, "q", n.to_string().as_bytes());
    }
    assert!(
        conn.broker
            .queue("/", "q")
            .unwrap()
            .consumers
            .values()
            .all(|c| c.out.is_empty())
    );
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - unknown delivery tag 1",
        (60, 80),
    );
}

/// Otherwise one consumer of a quorum queue would be given all that others could have had.
#[test]
fn a_consumer_without_acknowledgement_has_its_prefetch_in_quorum_queues_only() {
    for (kind, window) in [("quorum", 2), ("classic", 0)] {
        let mut conn = Conn::with_channel();
        let kind = Table(vec![("x-queue-type".into(), Value::from(kind))]);
        let declare = Method::QueueDeclare {
            queue: "q",
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: kind,
        };
        conn.send(1, declare);
        assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
        (1..=9).for_each(|n| conn.publish(1, "", "q", n.to_string().as_bytes()));
        let qos = Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 2,
            global: false,
        };
        conn.send(1, qos);
        conn.expect(1, Method::BasicQosOk {});
        conn.consume(1, "q", "c", true);
        let asked = conn.broker.requests.iter().filter_map(|r| match &r.1 {
            RequestBody::Consume { spec, .. } => Some(spec.prefetch),
            _ => None,
        });
        assert_eq!(asked.collect::<Vec<_>>(), [window]);
        for n in 1..=9u64 {
            conn.expect_deliver(1, "c", n, "q", n.to_string().as_bytes());
        }
    }
}

#[test]
fn a_client_that_does_not_read_gets_no_more_than_the_outbox_holds() {
    let limits = Limits {
        outbox_deliveries: 10_000,
        ..Limits::default()
    };
    let mut conn = Conn::open_as(
        SessionConfig {
            limits: Arc::new(limits),
            ..SessionConfig::default()
        },
        "guest",
    );
    conn.open_channel(1);
    conn.declare(1, "q");
    for _ in 0..5000 {
        conn.publish(1, "", "q", &[7; 1000]);
    }
    conn.send(1, consume("q", "c", true));
    assert!(conn.out.len() < 12_000, "{}", conn.out.len());
    let queue = conn.broker.queue("/", "q").unwrap();
    assert!(queue.ready.len() >= 2900, "{}", queue.ready.len());
    conn.expect(1, Method::BasicConsumeOk { consumer_tag: "c" });
    for n in 1..=5000 {
        conn.expect_deliver(1, "c", n, "q", &[7; 1000]);
    }
}

#[test]
fn large_bodies_are_cut_and_sent_by_reference() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let body: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    conn.publish(1, "", "q", &body);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", &body);
    conn.expect_nothing();
}

#[test]
fn a_get_that_nobody_answers_ends_the_connection_in_time() {
    let mut conn = with_queue(0);
    conn.broker.silent = true;
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    // Others go on meanwhile; what follows on the channel waits.
    conn.open_channel(2);
    conn.send(
        1,
        Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 1,
            global: false,
        },
    );
    conn.expect_nothing();
    for _ in 0..3 {
        conn.pass(Duration::from_secs(5));
        conn.heartbeat();
    }
    while let Some((kind, _, payload)) = conn.next_frame() {
        if kind == codec_amqp091::FrameKind::Method {
            let close = Method::decode(&payload).unwrap();
            assert!(
                matches!(
                    close,
                    Method::ConnectionClose {
                        reply_code: 541,
                        class_id: 60,
                        method_id: 70,
                        ..
                    }
                ),
                "{close:?}"
            );
            return;
        }
    }
    panic!("nothing came");
}

#[test]
fn an_answer_for_a_closed_channel_is_ignored() {
    let mut conn = with_queue(1);
    conn.broker.silent = true;
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    conn.expect_nothing();
    let queue = conn.broker.queue_id("q");
    let seq = session::RequestSeq(
        conn.broker
            .requests
            .iter()
            .filter(|(q, _)| *q == queue)
            .count() as u64,
    );
    conn.broker
        .notices
        .push_back(session::SessionEvent::Answer {
            queue,
            seq,
            answer: queue::QueueReply::Empty,
        });
    conn.settle();
    conn.expect(1, Method::BasicGetEmpty {});
    conn.expect(1, Method::ChannelCloseOk {});
    conn.broker
        .notices
        .push_back(session::SessionEvent::Answer {
            queue,
            seq,
            answer: queue::QueueReply::Empty,
        });
    conn.settle();
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Open);
}

#[test]
fn a_delivery_that_is_never_acknowledged_closes_the_channel() {
    let limits = Limits {
        acknowledgement: Some(Duration::from_secs(120)),
        ..Limits::default()
    };
    let config = SessionConfig {
        limits: Arc::new(limits),
        ..SessionConfig::default()
    };
    let mut conn = Conn::open_as(config, "guest");
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.publish(1, "", "q", b"1");
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    for _ in 0..14 {
        conn.pass(Duration::from_secs(8));
        conn.heartbeat();
    }
    while let Some((kind, _, _)) = conn.next_frame() {
        assert_eq!(kind, codec_amqp091::FrameKind::Heartbeat);
    }
    // Looked at once a minute.
    conn.heartbeat();
    conn.broker.now = conn.broker.now + Duration::from_secs(16);
    conn.pass(Duration::ZERO);
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 120000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more",
        (0, 0),
    );
    assert_eq!(ready(&conn), ["1"]);
}

/// `x-consumer-timeout` comes before the node's; of several queues each has its own.
#[test]
fn a_queue_may_have_a_timeout_of_its_own() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "patient");
    let mut arguments = Table::default();
    arguments.set("x-consumer-timeout", Value::I32(60_000));
    let declare = Method::QueueDeclare {
        queue: "hasty",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: true,
        arguments,
    };
    conn.send(1, declare);
    for (n, queue) in [(1, "patient"), (2, "hasty")] {
        conn.publish(1, "", queue, b"x");
        conn.consume(1, queue, queue, false);
        conn.expect_deliver(1, queue, n, queue, b"x");
    }
    conn.heartbeat();
    conn.broker.now = conn.broker.now + Duration::from_secs(61);
    conn.heartbeat();
    conn.pass(Duration::ZERO);
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more",
        (0, 0),
    );
}

fn declare_auto_delete(conn: &mut Conn, queue: &'static str) {
    let mut declare = fake::queue_declare(queue);
    if let Method::QueueDeclare { auto_delete, .. } = &mut declare {
        *auto_delete = true;
    }
    conn.send(1, declare);
    let declared = Method::QueueDeclareOk {
        queue,
        message_count: 0,
        consumer_count: 0,
    };
    conn.expect(1, declared);
}

const CLOSE_CHANNEL: Method<'_> = Method::ChannelClose {
    reply_code: 200,
    reply_text: "",
    class_id: 0,
    method_id: 0,
};

const CLOSE_CONNECTION: Method<'_> = Method::ConnectionClose {
    reply_code: 200,
    reply_text: "",
    class_id: 0,
    method_id: 0,
};

/// Whether a client that comes back at once would still find the queue.
#[track_caller]
fn there(conn: &Conn, queue: &str) -> bool {
    conn.broker.queue("/", queue).is_some()
}

#[test]
fn auto_delete_queues_go_before_their_channel_is_closed() {
    let mut conn = Conn::with_channel();
    conn.open_channel(2);
    for queue in ["a", "b", "used", "untouched"] {
        declare_auto_delete(&mut conn, queue);
    }
    for (queue, tag) in [("a", "1"), ("b", "2"), ("b", "3"), ("used", "4")] {
        conn.consume(1, queue, tag, false);
    }
    conn.consume(2, "used", "other", false);
    conn.broker.slow_log = true;
    conn.send(1, CLOSE_CHANNEL);
    conn.expect_nothing();
    // The first deletion is on its way, the others wait for it.
    while conn.broker.log_goes_on() {
        conn.settle();
    }
    conn.expect(1, Method::ChannelCloseOk {});
    assert!(!there(&conn, "a") && !there(&conn, "b"));
    assert!(there(&conn, "used") && there(&conn, "untouched"));
    conn.broker.slow_log = false;
    conn.open_channel(1);
    declare_auto_delete(&mut conn, "a");
}

#[test]
fn auto_delete_queues_go_before_their_connection_is_closed() {
    let mut conn = Conn::with_channel();
    conn.open_channel(2);
    for queue in ["a", "b"] {
        declare_auto_delete(&mut conn, queue);
    }
    conn.consume(1, "a", "1", false);
    conn.consume(2, "b", "2", true);
    conn.broker.slow_log = true;
    conn.send(0, CLOSE_CONNECTION);
    conn.expect_nothing();
    while conn.broker.log_goes_on() {
        conn.settle();
    }
    assert!(!there(&conn, "a") && !there(&conn, "b"));
    conn.expect(0, Method::ConnectionCloseOk {});
    assert_eq!(
        conn.session_state,
        SessionState::Open,
        "the client closes the socket"
    );
}

#[test]
fn what_cannot_be_told_of_auto_delete_queues_does_not_hold_up_the_end() {
    for close in [CLOSE_CHANNEL, CLOSE_CONNECTION] {
        let mut conn = Conn::with_channel();
        declare_auto_delete(&mut conn, "q");
        conn.consume(1, "q", "c", false);
        conn.broker.silent = true;
        let (channel, answer) = match close {
            Method::ChannelClose { .. } => (1, Method::ChannelCloseOk {}),
            _ => (0, Method::ConnectionCloseOk {}),
        };
        conn.send(channel, close);
        conn.expect_nothing();
        conn.pass(Duration::from_secs(16));
        conn.expect(channel, answer);
    }
}

#[test]
fn the_last_consumer_of_an_auto_delete_queue_takes_it_along() {
    let mut conn = Conn::with_channel();
    declare_auto_delete(&mut conn, "q");
    conn.consume(1, "q", "a", false);
    conn.consume(1, "q", "b", false);
    for (tag, there) in [("a", true), ("b", false)] {
        let cancel = Method::BasicCancel {
            consumer_tag: tag,
            no_wait: false,
        };
        conn.send(1, cancel);
        // What comes next on this channel sees what is left.
        conn.send(1, consume("q", "again", false));
        conn.expect(1, Method::BasicCancelOk { consumer_tag: tag });
        if there {
            conn.expect(
                1,
                Method::BasicConsumeOk {
                    consumer_tag: "again",
                },
            );
            conn.send(
                1,
                Method::BasicCancel {
                    consumer_tag: "again",
                    no_wait: true,
                },
            );
        } else {
            let text = "NOT_FOUND - no queue 'q' in vhost '/'";
            conn.expect_channel_close(1, 404, text, (60, 20));
        }
    }
}
