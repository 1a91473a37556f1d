//! Direct reply-to.

mod fake;

use codec_amqp091::{Method, Properties};
use fake::{Conn, consume, queue_declare};
use metadata::SessionId;
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
    let seen = Properties::decode(raw).unwrap();
    assert_eq!(seen.correlation_id, Some("7"));
    seen.reply_to.unwrap().to_owned()
}

#[test]
fn a_reply_finds_its_way_without_a_declared_queue() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "service");
    conn.consume(1, REPLY_TO, "replies", true);
    let reply_to = request(&mut conn);
    assert!(
        reply_to.starts_with("amq.rabbitmq.reply-to.") && reply_to.len() == 69,
        "{reply_to}"
    );
    assert!(reply_to.ends_with("==") && reply_to.split('.').count() == 5);
    // Another connection answers, and may ask first whether anybody waits.
    conn.broker.id = SessionId {
        number: 8,
        ..fake::ME
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
    // To anything else there is no such queue.
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
    // One that is mandatory comes back, too: nobody's queue has it. And replies are not counted.
    let properties = Properties::default();
    conn.publish_with(2, "", &reply_to, true, &properties, b"again");
    let returned = Method::BasicReturn {
        reply_code: 312,
        reply_text: "NO_ROUTE",
        exchange: "",
        routing_key: &reply_to,
    };
    conn.expect(2, returned);
    assert_eq!(conn.expect_content(2).1, b"again");
    conn.expect_deliver(1, "replies", 1, &reply_to, b"again");
    conn.declare(1, "others");
    conn.consume(1, "others", "others", false);
    conn.publish(2, "", "others", b"mail");
    conn.expect_deliver(1, "others", 1, "others", b"mail");
    conn.publish(2, "", &reply_to, b"later");
    conn.expect_deliver(1, "replies", 2, &reply_to, b"later");
    conn.broker.id = fake::ME;
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
    // What everybody consumes from is always there.
    conn.open_channel(2);
    conn.send(2, queue_declare(REPLY_TO));
    let declared = Method::QueueDeclareOk {
        queue: REPLY_TO,
        message_count: 0,
        consumer_count: 1,
    };
    conn.expect(2, declared);
    // Again, under the same tag.
    conn.consume(1, REPLY_TO, "replies", true);
    assert_ne!(request(&mut conn), reply_to);
}

#[test]
fn its_rules_are_rabbitmqs() {
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
    assert!(conn.broker.queues.is_empty(), "it goes with its channel");
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
fn the_user_needs_no_rights_for_it() {
    let mut conn = Conn::open_as(SessionConfig::default(), "small");
    conn.open_channel(1);
    conn.consume(1, REPLY_TO, "a", true);
}
