//! Consumers, deliveries and settlement.

use crate::fake::{Conn, consume, queue_declare, queue_delete, ready, with_queue};
use codec_amqp091::{Method, Properties};
use message::{Table, Value};
use metadata::Change;
use metadata::features::QUEUE_ARGUMENT_CHECKS;
use queue::RequestBody;
use session::{Session, SessionState};
use session_amqp091::{Limits, SessionConfig};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn deliveries_follow_consume_ok_and_acks_settle_them() {
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
fn acks_in_one_read_become_one_request() {
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
fn nack_requeues_and_reject_drops() {
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
    assert_eq!(headers.get("x-acquired-count"), Some(&Value::I64(1)));
    conn.expect_redeliver(1, "c", 6, true, "q", b"2");
    conn.expect_nothing();
}

#[test]
fn unknown_delivery_tag_closes_channel_with_406() {
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
fn delivery_cannot_be_acked_twice() {
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
fn prefetch_limits_each_consumer() {
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
fn server_generates_consumer_tags_and_refuses_duplicates() {
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

fn consume_exclusive<'a>(queue: &'a str, consumer_tag: &'a str) -> Method<'a> {
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
fn quorum_queue_ignores_exclusive_consumers() {
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
        conn.send(1, consume_exclusive("q", tag));
        conn.expect(1, Method::BasicConsumeOk { consumer_tag: tag });
    }
    conn.consume(1, "q", "c", false);
}

#[test]
fn exclusive_consumer_is_refused_while_another_exists() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    conn.send(1, consume_exclusive("q", "x"));
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
fn deliveries_sent_before_the_cancel_precede_cancel_ok() {
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
    // All frames in one read.
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
fn stream_arguments_are_refused() {
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
fn deliveries_that_cross_the_cancel_are_requeued() {
    let mut conn = with_queue(0);
    conn.consume(1, "q", "c", false);
    // The queue delivers before it processes the cancel; the session gets the delivery after it.
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
            acquired: 0,
            left: 0,
            message: m.clone(),
            annotations: None,
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
    conn.broker.notices.push_back(
        session::QueueNotification::Deliver {
            queue,
            consumer,
            deliveries: vec![delivery],
        }
        .into(),
    );
    conn.settle();
    conn.expect_nothing();
    assert_eq!(ready(&conn), ["1"]);
}

/// The queue serves consumers between the settlements. The order decides which message a consumer
/// gets next and which messages a length limit drops.
#[test]
fn multiple_settlement_is_ordered_by_consumer() {
    let nack = Method::BasicNack {
        delivery_tag: 0,
        multiple: true,
        requeue: true,
    };
    let ack = Method::BasicAck {
        delivery_tag: 0,
        multiple: true,
    };
    for settlement in [nack, Method::BasicRecover { requeue: true }, ack] {
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
        // A cancelled consumer keeps its position.
        let cancel = Method::BasicCancel {
            consumer_tag: "b",
            no_wait: false,
        };
        conn.send(1, cancel);
        conn.drain();
        let before = conn.broker.requests.len();
        conn.send(1, settlement);
        let requests = conn.broker.requests.get(before..).unwrap();
        let settled = requests.iter().filter_map(|r| match &r.1 {
            RequestBody::Settle { consumer, ids, .. } => Some((consumer.0, ids.len())),
            _ => None,
        });
        let settled: Vec<(u32, usize)> = settled.collect();
        // The two basic.gets, then a before b.
        assert_eq!(settled.first(), Some(&(1, 1)), "{settled:?}");
        assert_eq!(settled.get(1), Some(&(2, 1)), "{settled:?}");
        assert_eq!(settled.get(2..), Some(&[(4, 1), (3, 1)][..]), "{settled:?}");
    }
}

#[test]
fn channel_close_requeues_unacknowledged_deliveries() {
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
    assert_eq!(
        conn.session
            .info(&session::ServiceStates::default())
            .channels,
        0
    );
}

/// Otherwise each requeued delivery would be redelivered to the next consumer that ends.
#[test]
fn consumers_that_end_together_get_no_requeued_deliveries() {
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
        let requests = conn.broker.requests.get(before..).unwrap();
        let is_leave = |r: &RequestBody| matches!(r, RequestBody::CancelAndRequeue { .. });
        let stopped = requests.iter().take_while(|r| !is_leave(&r.1));
        assert_eq!(
            stopped
                .filter(|r| matches!(r.1, RequestBody::Cancel { .. }))
                .count(),
            3
        );
        assert_eq!(requests.iter().filter(|r| is_leave(&r.1)).count(), 3);
        assert_eq!(ready(&conn), ["1", "2", "3", "4", "5", "6"]);
    }
}

/// The order of RabbitMQ's quorum queues: consumers in order of creation, including cancelled ones
/// with unacknowledged deliveries, then basic.get. The consumer that ends with the channel gets
/// none of the deliveries.
#[test]
fn channel_close_requeues_by_consumer_and_then_basic_get() {
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
    let requests = conn.broker.requests.get(before..).unwrap();
    let ended: Vec<(&str, u32)> = requests
        .iter()
        .filter_map(|r| match &r.1 {
            RequestBody::Cancel { consumer } => Some(("cancel", consumer.0)),
            RequestBody::CancelAndRequeue { consumer } => Some(("leave", consumer.0)),
            _ => None,
        })
        .collect();
    // Consumer 1 is the first one, 2 is basic.get, 3 is the last one.
    let order = [("cancel", 3), ("leave", 1), ("leave", 3), ("leave", 2)];
    assert_eq!(ended, order);
    assert_eq!(ready(&conn).len(), 4);
}

#[test]
fn connection_close_requeues_unacknowledged_deliveries() {
    let mut conn = with_queue(2);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.expect_get_ok();
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
    fn expect_get_ok(&mut self) {
        assert_eq!(self.next_method(), (1, "basic.get-ok"));
        self.expect_content(1);
    }
}

#[test]
fn get_returns_one_message() {
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
fn recover_requeues_all_unacknowledged_deliveries() {
    let mut conn = with_queue(2);
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.expect_get_ok();
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    conn.expect_get_ok();
    conn.send(1, Method::BasicRecover { requeue: true });
    conn.expect(1, Method::BasicRecoverOk {});
    assert_eq!(ready(&conn).len(), 2);
    conn.send(1, Method::BasicRecoverAsync { requeue: true });
    conn.expect_nothing();
    conn.send(1, Method::BasicRecover { requeue: false });
    conn.expect_connection_close(540, "NOT_IMPLEMENTED - requeue=false", (60, 110));
}

#[test]
fn queue_delete_cancels_consumers() {
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
fn delete_ok_precedes_basic_cancel_on_the_same_channel() {
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
fn auto_ack_deliveries_are_settled_when_written() {
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

/// Otherwise one consumer of a quorum queue would receive all messages, and other consumers none.
#[test]
fn prefetch_limits_auto_ack_consumers_of_quorum_queues_only() {
    for (kind, prefetch) in [("quorum", 2), ("classic", 0)] {
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
        let prefetches = conn.broker.requests.iter().filter_map(|r| match &r.1 {
            RequestBody::Consume { spec, .. } => Some(spec.prefetch),
            _ => None,
        });
        assert_eq!(prefetches.collect::<Vec<_>>(), [prefetch]);
        for n in 1..=9u64 {
            conn.expect_deliver(1, "c", n, "q", n.to_string().as_bytes());
        }
    }
}

#[test]
fn outbox_limit_stops_deliveries_to_a_slow_client() {
    let limits = Limits {
        outbox_deliveries: 10_000,
        ..Limits::default()
    };
    let mut conn = Conn::open_with(limits);
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
fn large_bodies_are_split_into_frames_by_reference() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let body: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    conn.publish(1, "", "q", &body);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", &body);
    conn.expect_nothing();
}

#[test]
fn get_without_answer_closes_the_connection_after_the_timeout() {
    let mut conn = with_queue(0);
    conn.broker.silent = true;
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: false,
        },
    );
    // Other channels continue meanwhile; later frames of this channel wait.
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
        conn.advance(Duration::from_secs(5));
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
    panic!("no connection.close within the timeout");
}

#[test]
fn duplicate_answer_for_a_closed_channel_is_ignored() {
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
    conn.broker.notices.push_back(
        session::QueueNotification::Answer {
            queue,
            seq,
            answer: queue::QueueReply::Empty,
        }
        .into(),
    );
    conn.settle();
    conn.expect(1, Method::BasicGetEmpty {});
    conn.expect(1, Method::ChannelCloseOk {});
    conn.broker.notices.push_back(
        session::QueueNotification::Answer {
            queue,
            seq,
            answer: queue::QueueReply::Empty,
        }
        .into(),
    );
    conn.settle();
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Open);
}

#[test]
fn acknowledgement_timeout_closes_the_channel() {
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
        conn.advance(Duration::from_secs(8));
        conn.heartbeat();
    }
    while let Some((kind, _, _)) = conn.next_frame() {
        assert_eq!(kind, codec_amqp091::FrameKind::Heartbeat);
    }
    // The session checks once per minute.
    conn.heartbeat();
    conn.broker.now = conn.broker.now + Duration::from_secs(16);
    conn.advance(Duration::ZERO);
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 120000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more",
        (0, 0),
    );
    assert_eq!(ready(&conn), ["1"]);
}

/// `x-consumer-timeout` takes precedence over the node's timeout, for each queue separately.
#[test]
fn queue_timeout_overrides_the_node_timeout() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "default");
    let mut arguments = Table::default();
    arguments.set("x-consumer-timeout", Value::I32(60_000));
    let declare = Method::QueueDeclare {
        queue: "short",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: true,
        arguments,
    };
    conn.send(1, declare);
    for (n, queue) in [(1, "default"), (2, "short")] {
        conn.publish(1, "", queue, b"x");
        conn.consume(1, queue, queue, false);
        conn.expect_deliver(1, queue, n, queue, b"x");
    }
    conn.heartbeat();
    conn.broker.now = conn.broker.now + Duration::from_secs(61);
    conn.heartbeat();
    conn.advance(Duration::ZERO);
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms. This \
         timeout value can be configured, see consumers doc guide to learn more",
        (0, 0),
    );
}

fn declare_auto_delete(conn: &mut Conn, queue: &'static str) {
    let mut declare = crate::fake::queue_declare(queue);
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

/// Returns true if a client that reconnects now would find the queue.
#[track_caller]
fn exists(conn: &Conn, queue: &str) -> bool {
    conn.broker.queue("/", queue).is_some()
}

#[test]
fn channel_close_ok_follows_deletion_of_auto_delete_queues() {
    let mut conn = Conn::with_channel();
    conn.open_channel(2);
    for queue in ["a", "b", "used", "untouched"] {
        declare_auto_delete(&mut conn, queue);
    }
    for (queue, tag) in [("a", "1"), ("b", "2"), ("b", "3"), ("used", "4")] {
        conn.consume(1, queue, tag, false);
    }
    conn.consume(2, "used", "other", false);
    conn.broker.hold_log = true;
    conn.send(1, CLOSE_CHANNEL);
    conn.expect_nothing();
    // The first deletion is pending; the other ones wait for it.
    while conn.broker.apply_next() {
        conn.settle();
    }
    conn.expect(1, Method::ChannelCloseOk {});
    assert!(!exists(&conn, "a") && !exists(&conn, "b"));
    assert!(exists(&conn, "used") && exists(&conn, "untouched"));
    conn.broker.hold_log = false;
    conn.open_channel(1);
    declare_auto_delete(&mut conn, "a");
}

#[test]
fn connection_close_ok_follows_deletion_of_auto_delete_queues() {
    let mut conn = Conn::with_channel();
    conn.open_channel(2);
    for queue in ["a", "b"] {
        declare_auto_delete(&mut conn, queue);
    }
    conn.consume(1, "a", "1", false);
    conn.consume(2, "b", "2", true);
    conn.broker.hold_log = true;
    conn.send(0, CLOSE_CONNECTION);
    conn.expect_nothing();
    while conn.broker.apply_next() {
        conn.settle();
    }
    assert!(!exists(&conn, "a") && !exists(&conn, "b"));
    conn.expect(0, Method::ConnectionCloseOk {});
    assert_eq!(
        conn.session_state,
        SessionState::Open,
        "the client closes the socket"
    );
}

#[test]
fn unanswered_auto_delete_check_does_not_block_close() {
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
        conn.advance(Duration::from_secs(16));
        conn.expect(channel, answer);
    }
}

#[test]
fn last_cancel_deletes_an_auto_delete_queue() {
    let mut conn = Conn::with_channel();
    declare_auto_delete(&mut conn, "q");
    conn.consume(1, "q", "a", false);
    conn.consume(1, "q", "b", false);
    for (tag, exists) in [("a", true), ("b", false)] {
        let cancel = Method::BasicCancel {
            consumer_tag: tag,
            no_wait: false,
        };
        conn.send(1, cancel);
        // The next method on this channel sees the result.
        conn.send(1, consume("q", "again", false));
        conn.expect(1, Method::BasicCancelOk { consumer_tag: tag });
        if exists {
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

#[test]
fn consumer_whose_time_is_over_is_cancelled_and_its_channel_stays() {
    let mut conn = with_queue(1);
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    let queues = conn.broker.queues.iter();
    let mut consumers = queues.flat_map(|(queue, q)| q.consumers.keys().map(|c| (*queue, *c)));
    let (queue, consumer) = consumers.next().expect("a consumer");
    let timed_out = session::QueueNotification::TimedOut {
        queue,
        consumer: queue::ConsumerId(consumer),
        up_to: u64::MAX,
    };
    conn.broker.notices.push_back(timed_out.into());
    conn.settle();
    conn.expect(
        1,
        Method::BasicCancel {
            consumer_tag: "c",
            no_wait: true,
        },
    );
    // A late acknowledgement is no error, and the tag is free.
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.expect_nothing();
    conn.consume(1, "q", "c", false);
}

#[test]
fn consumer_timeout_is_checked_once_the_flag_is_enabled() {
    let mut conn = with_queue(0);
    consume_with(&mut conn, "x-consumer-timeout", "long");
    conn.expect(1, Method::BasicConsumeOk { consumer_tag: "x" });
    conn.broker.must(Change::EnableFeature {
        name: QUEUE_ARGUMENT_CHECKS.name.into(),
    });
    conn.open_channel(2);
    let consume = |queue| {
        let mut arguments = Table::default();
        arguments.set("x-consumer-timeout", "long".into());
        Method::BasicConsume {
            queue,
            consumer_tag: "y",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments,
        }
    };
    conn.send(2, consume("q"));
    conn.expect_channel_close(
        2,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
        (60, 20),
    );
    conn.open_channel(2);
    let mut declare = queue_declare("quorum");
    if let Method::QueueDeclare {
        durable, arguments, ..
    } = &mut declare
    {
        *durable = true;
        arguments.set("x-queue-type", "quorum".into());
    }
    conn.send(2, declare);
    assert_eq!(conn.next_method(), (2, "queue.declare-ok"));
    conn.send(2, consume("quorum"));
    conn.expect_channel_close(
        2,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-consumer-timeout' for queue 'quorum' in vhost '/': \"expected integer, got longstr\"",
        (60, 20),
    );
}
