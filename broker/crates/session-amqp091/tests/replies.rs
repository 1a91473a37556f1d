//! Direct reply-to.

use crate::fake::{Conn, consume, queue_declare};
use codec_amqp091::{Method, Properties};
use metadata::{Change, SessionId};
use session_amqp091::SessionConfig;

const REPLY_TO: &str = "amq.rabbitmq.reply-to";

fn request(conn: &mut Conn) -> String {
    let properties = Properties {
        reply_to: Some(REPLY_TO),
        correlation_id: Some("7"),
        ..Properties::default()
    };
    conn.publish_with(1, "", "service", true, &properties, b"question");
    conn.expect_nothing();
    let queue = conn.broker.queue("/", "service").unwrap();
    let raw = queue.ready.back().unwrap().0.properties();
    let stored = Properties::decode(raw).unwrap();
    assert_eq!(stored.correlation_id, Some("7"));
    stored.reply_to.unwrap().to_owned()
}

#[test]
fn reply_is_delivered_without_a_declared_queue() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "service");
    conn.consume(1, REPLY_TO, "replies", true);
    let reply_to = request(&mut conn);
    assert!(
        reply_to.starts_with("amq.rabbitmq.reply-to.") && reply_to.len() == 69,
        "{reply_to}"
    );
    assert!(reply_to.ends_with("==") && reply_to.split('.').count() == 5);
    // Another connection replies. It may first test whether the requester still waits.
    conn.broker.id = SessionId {
        number: 8,
        ..crate::fake::ME
    };
    conn.open_channel(2);
    conn.send(2, queue_declare(&reply_to));
    conn.expect(
        2,
        Method::QueueDeclareOk {
            queue: &reply_to,
            message_count: 0,
            consumer_count: 1,
        },
    );
    // For other methods the queue does not exist.
    let delete = Method::QueueDelete {
        queue: &reply_to,
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    conn.send(2, delete);
    conn.expect(2, Method::QueueDeleteOk { message_count: 0 });
    let get = Method::BasicGet {
        queue: &reply_to,
        no_ack: true,
    };
    conn.send(2, get);
    let none = format!("NOT_FOUND - no queue '{reply_to}' in vhost '/'");
    conn.expect_channel_close(2, 404, &none, (60, 70));
    conn.open_channel(2);
    conn.publish(2, "", &reply_to, b"answer");
    conn.expect_deliver(1, "replies", 1, &reply_to, b"answer");
    // A mandatory reply is not returned, because the consumer gets it.
    let properties = Properties::default();
    conn.publish_with(2, "", &reply_to, true, &properties, b"again");
    conn.expect_deliver(1, "replies", 2, &reply_to, b"again");
    conn.declare(1, "others");
    conn.consume(1, "others", "others", false);
    conn.publish(2, "", "others", b"mail");
    conn.expect_deliver(1, "others", 3, "others", b"mail");
    conn.publish(2, "", &reply_to, b"later");
    conn.expect_deliver(1, "replies", 4, &reply_to, b"later");
    conn.broker.id = crate::fake::ME;
    conn.send(
        1,
        Method::BasicCancel {
            consumer_tag: "replies",
            no_wait: false,
        },
    );
    conn.expect(
        1,
        Method::BasicCancelOk {
            consumer_tag: "replies",
        },
    );
    conn.send(2, queue_declare(&reply_to));
    conn.expect_channel_close(
        2,
        404,
        &format!("NOT_FOUND - no queue '{reply_to}' in vhost '/'"),
        (50, 10),
    );
    // The pseudo queue always exists.
    conn.open_channel(2);
    conn.send(2, queue_declare(REPLY_TO));
    let declared = Method::QueueDeclareOk {
        queue: REPLY_TO,
        message_count: 0,
        consumer_count: 1,
    };
    conn.expect(2, declared);
    // A new reply consumer with the same tag.
    conn.consume(1, REPLY_TO, "replies", true);
    assert_ne!(request(&mut conn), reply_to);
}

/// The queue of a request that has just been received may be newer than this node's tree.
#[test]
fn reply_waits_for_the_log_if_the_tree_may_be_outdated() {
    let name = "amq.rabbitmq.reply-to.a.b";
    let mut conn = Conn::with_channel();
    let queue = metadata::QueueRecord {
        id: metadata::QueueId::default(),
        vhost: "/".into(),
        name: name.into(),
        kind: queue::QueueType::Classic,
        durable: false,
        auto_delete: false,
        exclusive: None,
        arguments: message::Table::default(),
        members: vec![env::NodeId(1)],
        declared_by: "guest".into(),
    };
    (conn.broker).change_from_other_node(Change::DeclareQueue(queue));
    let properties = Properties::default();
    conn.publish_with(1, "", name, true, &properties, b"answer");
    conn.publish_with(1, "", name, true, &properties, b"another");
    conn.expect_nothing();
    while conn.broker.apply_next() {
        conn.settle();
    }
    let stored = |conn: &Conn| conn.broker.queue("/", name).unwrap().ready.len();
    assert_eq!(stored(&conn), 2);
    conn.expect_nothing();
}

#[test]
fn reply_to_a_queue_that_the_log_does_not_have_is_returned() {
    let name = "amq.rabbitmq.reply-to.a.b";
    let mut conn = Conn::with_channel();
    let properties = Properties::default();
    conn.publish_with(1, "", name, true, &properties, b"answer");
    assert_eq!(conn.next_method(), (1, "basic.return"));
}

#[test]
fn reply_consumer_errors_match_rabbitmq() {
    let mut conn = Conn::with_channel();
    conn.send(1, consume(REPLY_TO, "", false));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - reply consumer cannot acknowledge",
        (60, 20),
    );
    conn.open_channel(1);
    conn.consume(1, REPLY_TO, "a", true);
    conn.send(1, consume(REPLY_TO, "b", true));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - reply consumer already set",
        (60, 20),
    );
    assert!(
        conn.broker.queues.is_empty(),
        "the queue is deleted with its channel"
    );
    conn.open_channel(1);
    let properties = Properties {
        reply_to: Some(REPLY_TO),
        ..Properties::default()
    };
    conn.publish_with(1, "", "service", false, &properties, b"x");
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - fast reply consumer does not exist",
        (60, 40),
    );
}

#[test]
fn direct_reply_to_requires_no_permissions() {
    let mut conn = Conn::open_as(SessionConfig::default(), "small");
    conn.open_channel(1);
    conn.consume(1, REPLY_TO, "a", true);
}
