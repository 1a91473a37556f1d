//! Message counters of the node and of the channel.

use crate::fake::Conn;
use codec_amqp091::{Method, Properties};
use metadata::QueueType;
use session::{ChannelDetails, DeliveryCounters, PublishCounters, Session as _};

fn channel(conn: &Conn) -> ChannelDetails {
    let details = conn.session.details();
    details.channels.into_iter().next().expect("a channel")
}

#[test]
fn publishes_are_counted_by_result() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.publish(1, "", "q", b"before confirms");
    conn.send(1, Method::ConfirmSelect { no_wait: true });
    conn.publish(1, "", "q", b"routed");
    conn.publish(1, "", "nowhere", b"dropped");
    conn.publish_with(1, "", "nowhere", true, &Properties::default(), b"returned");
    conn.settle();
    let expected = PublishCounters {
        received: 4,
        received_confirm: 3,
        confirmed: 3,
        routed: 2,
        unroutable_returned: 1,
        unroutable_dropped: 1,
    };
    assert_eq!(conn.broker.message_counters.publishes, expected);
    assert_eq!(channel(&conn).publishes, expected);
    // Bodies, and two bytes of empty properties each.
    let bytes = 15 + 6 + 7 + 8 + 4 * 2;
    assert_eq!(conn.broker.message_counters.published_bytes, bytes);
    let sizes = conn.broker.message_counters.sizes;
    let published = conn.broker.message_counters.publishes.received;
    assert_eq!(sizes.counts.iter().sum::<u64>(), published);
    assert!((1..=bytes).contains(&sizes.bytes), "{sizes:?}");
}

#[test]
fn deliveries_are_counted_by_acknowledgement_mode() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.declare(1, "auto-ack");
    for body in [b"1", b"2", b"3"] {
        conn.publish(1, "", "q", body);
    }
    conn.publish(1, "", "auto-ack", b"4");
    conn.settle();
    conn.consume(1, "auto-ack", "s", true);
    conn.expect_deliver(1, "s", 1, "auto-ack", b"4");
    conn.consume(1, "q", "c", false);
    conn.settle();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 3,
            multiple: true,
        },
    );
    conn.settle();
    let get = |no_ack| Method::BasicGet { queue: "q", no_ack };
    conn.publish(1, "", "q", b"5");
    conn.send(1, get(false));
    conn.settle();
    let DeliveryCounters {
        deliver,
        deliver_no_ack,
        ack,
        ..
    } = *conn.broker.message_counters.of(QueueType::Classic);
    assert_eq!((deliver, deliver_no_ack), (4, 1));
    assert_eq!(ack, 2, "tag 1 needs no acknowledgement");
    let details = channel(&conn);
    assert_eq!(
        (
            details.deliveries.deliver,
            details.deliveries.deliver_no_ack
        ),
        (4, 1)
    );
    assert_eq!(details.deliveries.ack, 2);
    assert_eq!(details.auto_ack, ["s"]);
    assert_eq!(details.consumers, 2);
    assert_eq!(
        *conn.broker.message_counters.of(QueueType::Quorum),
        DeliveryCounters::default()
    );
}

#[test]
fn get_on_an_empty_queue_is_counted() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let get = Method::BasicGet {
        queue: "q",
        no_ack: true,
    };
    conn.send(1, get);
    conn.expect(1, Method::BasicGetEmpty {});
    conn.publish(1, "", "q", b"x");
    conn.settle();
    conn.send(
        1,
        Method::BasicGet {
            queue: "q",
            no_ack: true,
        },
    );
    conn.settle();
    let counted = *conn.broker.message_counters.of(QueueType::Classic);
    let expected = DeliveryCounters {
        get_no_ack: 1,
        get_empty: 1,
        ..DeliveryCounters::default()
    };
    assert_eq!(counted, expected);
    assert_eq!(channel(&conn).deliveries, expected);
}
