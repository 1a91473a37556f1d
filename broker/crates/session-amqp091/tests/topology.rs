//! Exchanges, queues and bindings, and the errors that close channels and connections.

use crate::fake::{Conn, FakeBroker, capabilities, consume, exchange_declare, queue_declare};
use bytes::BytesMut;
use codec_amqp091::{FrameKind, Method, encode_content_header, encode_method, open_body};
use message::{Table, Value};
use metadata::{Change, SessionId};
use session::{Session, SessionState};
use session_amqp091::SessionConfig;
use std::time::Duration;

#[test]
fn repeated_declare_returns_counts_without_a_log_entry() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.publish(1, "", "q", b"1");
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    conn.publish(1, "", "q", b"2");
    conn.expect_deliver(1, "c", 2, "q", b"2");
    conn.send(
        1,
        Method::BasicCancel {
            consumer_tag: "c",
            no_wait: true,
        },
    );
    conn.publish(1, "", "q", b"3");
    let changes = conn.broker.changes.len();
    conn.send(1, queue_declare("q"));
    conn.expect(
        1,
        Method::QueueDeclareOk {
            queue: "q",
            message_count: 1,
            consumer_count: 0,
        },
    );
    assert_eq!(
        conn.broker.changes.len(),
        changes,
        "an identical declaration writes no log entry"
    );
    let passive = Method::QueueDeclare {
        queue: "q",
        passive: true,
        durable: false,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::default(),
    };
    conn.send(1, passive);
    conn.expect(
        1,
        Method::QueueDeclareOk {
            queue: "q",
            message_count: 1,
            consumer_count: 0,
        },
    );
}

#[test]
fn empty_queue_name_means_the_last_declared_queue() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::BasicGet {
            queue: "",
            no_ack: true,
        },
    );
    conn.expect_channel_close(1, 404, "NOT_FOUND - no previously declared queue", (60, 70));
    conn.open_channel(1);
    conn.send(1, queue_declare(""));
    let (_, _, payload) = conn.next_frame().unwrap();
    let Method::QueueDeclareOk { queue, .. } = Method::decode(&payload).unwrap() else {
        panic!("no declare-ok")
    };
    assert!(
        queue.starts_with("amq.gen-") && queue.len() == 30,
        "{queue}"
    );
    conn.publish(1, "", queue, b"x");
    conn.send(
        1,
        Method::BasicGet {
            queue: "",
            no_ack: true,
        },
    );
    assert_eq!(conn.next_method(), (1, "basic.get-ok"));
    conn.expect_content(1);
    conn.send(
        1,
        Method::QueueBind {
            queue: "",
            exchange: "amq.direct",
            routing_key: "",
            no_wait: false,
            arguments: Table::default(),
        },
    );
    conn.expect(1, Method::QueueBindOk {});
    conn.publish(1, "amq.direct", queue, b"y");
    conn.send(
        1,
        Method::QueuePurge {
            queue: "",
            no_wait: false,
        },
    );
    conn.expect(1, Method::QueuePurgeOk { message_count: 1 });
}

fn declare_with(queue: &str, durable: bool, key: &str, value: Value) -> Method<'static> {
    let mut arguments = Table::default();
    arguments.set(key, value);
    let queue: &'static str = queue.to_owned().leak();
    Method::QueueDeclare {
        queue,
        passive: false,
        durable,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments,
    }
}

#[test]
fn declaration_errors_match_rabbitmq() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let cases: [(Method<'_>, u16, &str, (u16, u16)); 9] = [
        (
            queue_declare("amq.mine"),
            403,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
            (50, 10),
        ),
        (
            Method::QueueDeclare {
                queue: "nope",
                passive: true,
                durable: false,
                exclusive: false,
                auto_delete: false,
                no_wait: false,
                arguments: Table::default(),
            },
            404,
            "NOT_FOUND - no queue 'nope' in vhost '/'",
            (50, 10),
        ),
        (
            Method::QueueDeclare {
                queue: "q",
                passive: false,
                durable: false,
                exclusive: false,
                auto_delete: false,
                no_wait: false,
                arguments: Table::default(),
            },
            406,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'",
            (50, 10),
        ),
        (
            declare_with("", true, "x-queue-type", "quorum".into()),
            406,
            "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
            (50, 10),
        ),
        (
            declare_with("x", true, "x-queue-type", "wheel".into()),
            406,
            "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'x' in vhost '/': \"unsupported queue type 'wheel'\"",
            (50, 10),
        ),
        (
            declare_with("x", true, "x-dead-letter-exchange", Value::I32(1)),
            406,
            "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'x' in vhost '/'",
            (50, 10),
        ),
        (
            exchange_declare("amq.mine", "direct"),
            403,
            "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
            (40, 10),
        ),
        (
            exchange_declare("", "direct"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
            (40, 10),
        ),
        (
            exchange_declare("amq.direct", "fanout"),
            406,
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'",
            (40, 10),
        ),
    ];
    for (method, code, text, ids) in cases {
        conn.send(1, method);
        conn.expect_channel_close(1, code, text, ids);
        conn.open_channel(1);
    }
}

#[test]
fn exchanges_can_be_declared_bound_and_deleted() {
    let mut conn = Conn::with_channel();
    conn.send(1, exchange_declare("e", "topic"));
    conn.expect(1, Method::ExchangeDeclareOk {});
    conn.send(1, exchange_declare("e", "topic"));
    conn.expect(1, Method::ExchangeDeclareOk {});
    let passive = |exchange| Method::ExchangeDeclare {
        exchange,
        kind: "",
        passive: true,
        durable: false,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::default(),
    };
    conn.send(1, passive("e"));
    conn.expect(1, Method::ExchangeDeclareOk {});
    conn.declare(1, "q");
    conn.send(
        1,
        Method::QueueBind {
            queue: "q",
            exchange: "e",
            routing_key: "a.*",
            no_wait: false,
            arguments: Table::default(),
        },
    );
    conn.expect(1, Method::QueueBindOk {});
    conn.publish(1, "e", "a.b", b"x");
    assert_eq!(conn.broker.queue("/", "q").unwrap().ready.len(), 1);
    conn.send(
        1,
        Method::ExchangeBind {
            destination: "e",
            source: "amq.fanout",
            routing_key: "",
            no_wait: false,
            arguments: Table::default(),
        },
    );
    conn.expect(1, Method::ExchangeBindOk {});
    conn.publish(1, "amq.fanout", "a.c", b"x");
    assert_eq!(conn.broker.queue("/", "q").unwrap().ready.len(), 2);
    conn.send(
        1,
        Method::ExchangeUnbind {
            destination: "e",
            source: "amq.fanout",
            routing_key: "",
            no_wait: false,
            arguments: Table::default(),
        },
    );
    conn.expect(1, Method::ExchangeUnbindOk {});
    conn.send(
        1,
        Method::ExchangeDelete {
            exchange: "e",
            if_unused: true,
            no_wait: false,
        },
    );
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - exchange 'e' in vhost '/' in use",
        (40, 20),
    );
    conn.open_channel(1);
    conn.send(
        1,
        Method::QueueUnbind {
            queue: "q",
            exchange: "e",
            routing_key: "a.*",
            arguments: Table::default(),
        },
    );
    conn.expect(1, Method::QueueUnbindOk {});
    conn.send(
        1,
        Method::ExchangeDelete {
            exchange: "e",
            if_unused: true,
            no_wait: false,
        },
    );
    conn.expect(1, Method::ExchangeDeleteOk {});
    conn.send(
        1,
        Method::ExchangeDelete {
            exchange: "e",
            if_unused: false,
            no_wait: false,
        },
    );
    conn.expect(1, Method::ExchangeDeleteOk {});
    conn.send(1, passive("e"));
    conn.expect_channel_close(1, 404, "NOT_FOUND - no exchange 'e' in vhost '/'", (40, 10));
}

#[test]
fn predeclared_exchanges_are_protected() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::ExchangeDelete {
            exchange: "amq.topic",
            if_unused: false,
            no_wait: false,
        },
    );
    conn.expect_channel_close(
        1,
        403,
        "ACCESS_REFUSED - deletion of system exchange 'amq.topic' in vhost '/' not allowed",
        (40, 20),
    );
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.send(
        1,
        Method::QueueBind {
            queue: "q",
            exchange: "",
            routing_key: "x",
            no_wait: false,
            arguments: Table::default(),
        },
    );
    conn.expect_channel_close(
        1,
        403,
        "ACCESS_REFUSED - operation not permitted on the default exchange",
        (50, 20),
    );
    conn.open_channel(1);
    conn.send(1, exchange_declare("e", "x-wheel"));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - unknown exchange type 'x-wheel'",
        (40, 10),
    );
}

/// The declaration is compared with the existing queue before the type is validated.
#[test]
fn unsupported_queue_type_is_inequivalent_if_the_queue_exists() {
    let mut conn = Conn::with_channel();
    let declare = |kind| Method::QueueDeclare {
        queue: "q",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table(vec![("x-queue-type".into(), kind)]),
    };
    conn.send(1, declare(Value::from("tape")));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type \
         'tape'\"",
        (50, 10),
    );
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.send(1, declare(Value::from("tape")));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'tape' but \
         current is 'classic'",
        (50, 10),
    );
    conn.open_channel(1);
    conn.send(1, declare(Value::Binary(b"classic"[..].into())));
    conn.expect(
        1,
        Method::QueueDeclareOk {
            queue: "q",
            message_count: 0,
            consumer_count: 0,
        },
    );
}

#[test]
fn bind_requires_both_endpoints() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    let bind = |queue, exchange| Method::QueueBind {
        queue,
        exchange,
        routing_key: "",
        no_wait: false,
        arguments: Table::default(),
    };
    conn.send(1, bind("q", "nope"));
    conn.expect_channel_close(
        1,
        404,
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
        (50, 20),
    );
    conn.open_channel(1);
    conn.send(1, bind("nope", "amq.direct"));
    conn.expect_channel_close(1, 404, "NOT_FOUND - no queue 'nope' in vhost '/'", (50, 20));
}

#[test]
fn queue_delete_checks_its_conditions() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.publish(1, "", "q", b"x");
    let delete = |if_unused, if_empty| Method::QueueDelete {
        queue: "q",
        if_unused,
        if_empty,
        no_wait: false,
    };
    conn.send(1, delete(false, true));
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - queue in vhost '/' not empty",
        (50, 40),
    );
    conn.open_channel(1);
    conn.send(1, delete(true, false));
    conn.expect(1, Method::QueueDeleteOk { message_count: 1 });
    conn.send(1, delete(false, false));
    conn.expect(1, Method::QueueDeleteOk { message_count: 0 });
    conn.send(1, consume("q", "c", true));
    conn.expect_channel_close(1, 404, "NOT_FOUND - no queue 'q' in vhost '/'", (60, 20));
}

#[test]
fn queue_delete_catches_up_with_the_log_first() {
    let mut conn = Conn::with_channel();
    conn.broker.silent = true;
    conn.send(
        1,
        Method::QueueDelete {
            queue: "q",
            if_unused: false,
            if_empty: false,
            no_wait: false,
        },
    );
    conn.expect_nothing();
    // The log brings a declaration that this node had missed.
    conn.broker.silent = false;
    let mut other = Conn::with_channel();
    other.declare(1, "q");
    other.publish(1, "", "q", b"x");
    std::mem::swap(&mut conn.broker.tree, &mut other.broker.tree);
    std::mem::swap(&mut conn.broker.queues, &mut other.broker.queues);
    let result = Ok(metadata::ChangeResult::Unchanged);
    let token = 1 << 16 | 1;
    conn.broker
        .notices
        .push_back(session::ControlEvent::Changed { token, result }.into());
    conn.settle();
    conn.expect(1, Method::QueueDeleteOk { message_count: 1 });
    assert!(conn.broker.tree.queue("/", "q").is_none());
}

/// A disconnected node may have missed the deletion of a queue that does not answer.
#[test]
fn unanswered_declare_is_decided_by_the_log() {
    for (deleted, log_answers) in [(false, true), (true, true), (false, false)] {
        let mut conn = Conn::with_channel();
        conn.declare(1, "q");
        conn.broker.silent = true;
        conn.send(1, queue_declare("q"));
        conn.expect_nothing();
        conn.broker.silent = false;
        conn.broker.hold_log = true;
        conn.advance(Duration::from_secs(16));
        expect_only_heartbeats(&mut conn);
        if deleted {
            conn.broker.must(delete_change("q"));
        }
        match log_answers {
            true => assert!(conn.broker.apply_next()),
            false => {
                conn.heartbeat();
                conn.advance(Duration::from_secs(16));
            }
        }
        conn.settle();
        let declared = Method::QueueDeclareOk {
            queue: "q",
            message_count: 0,
            consumer_count: 0,
        };
        match (deleted, log_answers) {
            (false, true) => conn.expect(1, declared),
            (true, _) => {
                let text = "NOT_FOUND - no queue 'q' in vhost '/'";
                conn.expect_channel_close(1, 404, text, (50, 10));
            }
            // An internal error closes the connection.
            (false, false) => {
                assert_eq!(conn.next_method(), (0, "connection.close"));
            }
        }
    }
}

fn expect_only_heartbeats(conn: &mut Conn) {
    while let Some((kind, ..)) = conn.next_frame() {
        assert_eq!(kind, FrameKind::Heartbeat);
    }
}

fn delete_change(name: &str) -> Change {
    Change::DeleteQueue {
        vhost: "/".into(),
        name: name.into(),
        id: None,
    }
}

/// Declares a queue and an exchange through another node, so that this node has not applied them
/// yet.
fn declare_on_other_node(conn: &mut Conn) {
    let queue = metadata::QueueRecord {
        id: metadata::QueueId::default(),
        vhost: "/".into(),
        name: "q".into(),
        kind: queue::QueueType::Classic,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: Table::default(),
        members: vec![env::NodeId(1)],
        declared_by: "guest".into(),
    };
    conn.broker
        .change_from_other_node(Change::DeclareQueue(queue));
    let exchange = metadata::ExchangeRecord {
        vhost: "/".into(),
        name: "x".into(),
        kind: "fanout".into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    };
    conn.broker
        .change_from_other_node(Change::DeclareExchange(exchange));
}

fn exchange_passive() -> Method<'static> {
    let mut method = exchange_declare("x", "fanout");
    if let Method::ExchangeDeclare { passive, .. } = &mut method {
        *passive = true;
    }
    method
}

fn queue_passive() -> Method<'static> {
    let mut method = queue_declare("q");
    if let Method::QueueDeclare { passive, .. } = &mut method {
        *passive = true;
    }
    method
}

#[test]
fn recent_declaration_of_another_node_is_found() {
    let declared = Method::QueueDeclareOk {
        queue: "q",
        message_count: 0,
        consumer_count: 0,
    };
    let get = Method::BasicGet {
        queue: "q",
        no_ack: true,
    };
    let purge = Method::QueuePurge {
        queue: "q",
        no_wait: false,
    };
    for (method, reply) in [
        (queue_passive(), declared),
        (
            consume("q", "c", true),
            Method::BasicConsumeOk { consumer_tag: "c" },
        ),
        (get, Method::BasicGetEmpty {}),
        (purge, Method::QueuePurgeOk { message_count: 0 }),
        (exchange_passive(), Method::ExchangeDeclareOk {}),
    ] {
        let mut conn = Conn::with_channel();
        declare_on_other_node(&mut conn);
        conn.send(1, method);
        // Later frames wait.
        conn.send(1, Method::ConfirmSelect { no_wait: false });
        conn.expect_nothing();
        while conn.broker.apply_next() {
            conn.settle();
        }
        conn.expect(1, reply);
        conn.expect(1, Method::ConfirmSelectOk {});
    }
}

#[test]
fn publish_waits_for_an_exchange_declared_on_another_node() {
    for body in [&b""[..], b"small", &[7; 300_000]] {
        let mut conn = Conn::with_channel();
        conn.send(1, Method::ConfirmSelect { no_wait: false });
        conn.expect(1, Method::ConfirmSelectOk {});
        declare_on_other_node(&mut conn);
        conn.publish(1, "x", "", body);
        conn.publish(1, "x", "", body);
        conn.expect_nothing();
        while conn.broker.apply_next() {
            conn.settle();
        }
        let ack = Method::BasicAck {
            delivery_tag: 2,
            multiple: true,
        };
        conn.expect(1, ack);
    }
}

#[test]
fn unknown_object_is_404_after_one_log_round_trip() {
    for (method, text, ids) in [
        (queue_passive(), "queue 'q'", (50, 10)),
        (exchange_passive(), "exchange 'x'", (40, 10)),
    ] {
        let text = format!("NOT_FOUND - no {text} in vhost '/'");
        let mut conn = Conn::with_channel();
        let before = conn.broker.changes.len();
        conn.send(1, method.clone());
        conn.expect_channel_close(1, 404, &text, ids);
        assert_eq!(conn.broker.changes.len(), before + 1);
        conn.open_channel(1);
        conn.broker.is_single_node = true;
        conn.send(1, method.clone());
        conn.expect_channel_close(1, 404, &text, ids);
        assert_eq!(
            conn.broker.changes.len(),
            before + 1,
            "a single node needs no round trip"
        );
        conn.broker.is_single_node = false;
        // The log does not answer: decide with the local tree.
        conn.open_channel(1);
        conn.broker.hold_log = true;
        conn.send(1, method);
        conn.expect_nothing();
        conn.advance(Duration::from_secs(16));
        conn.expect_channel_close(1, 404, &text, ids);
    }
    let mut conn = Conn::with_channel();
    conn.broker.hold_log = true;
    conn.publish(1, "x", "", &[7; 300_000]);
    conn.expect_nothing();
    conn.advance(Duration::from_secs(16));
    let text = "NOT_FOUND - no exchange 'x' in vhost '/'";
    conn.expect_channel_close(1, 404, text, (60, 40));
}

#[test]
fn queue_on_an_unavailable_node_is_404() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.broker.lost_home = Some("n2".into());
    let text =
        "NOT_FOUND - home node 'n2' of durable queue 'q' in vhost '/' is down or inaccessible";
    let delete = Method::QueueDelete {
        queue: "q",
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    let get = Method::BasicGet {
        queue: "q",
        no_ack: true,
    };
    for (method, ids) in [
        (queue_declare("q"), (50, 10)),
        (delete, (50, 40)),
        (get, (60, 70)),
        (consume("q", "c", true), (60, 20)),
    ] {
        conn.send(1, method);
        conn.expect_channel_close(1, 404, text, ids);
        conn.open_channel(1);
    }
    conn.broker.lost_home = None;
    conn.declare(1, "q");
}

fn declare_own<'a>() -> Method<'a> {
    Method::QueueDeclare {
        queue: "own",
        passive: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

/// A client whose connection was closed and that reconnects at once can declare its exclusive
/// queues again.
#[test]
fn connection_close_follows_deletion_of_exclusive_queues() {
    let fault = Method::BasicQos {
        prefetch_size: 1,
        prefetch_count: 1,
        global: false,
    };
    let text = "NOT_IMPLEMENTED - prefetch_size!=0 (1)";
    for log_answers in [true, false] {
        let mut conn = Conn::with_channel();
        conn.send(1, declare_own());
        assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
        conn.broker.hold_log = true;
        conn.send(1, fault.clone());
        conn.expect_nothing();
        if log_answers {
            assert!(conn.broker.apply_next());
            conn.settle();
            assert!(conn.broker.queue("/", "own").is_none());
        } else {
            conn.advance(SessionConfig::default().limits.operation);
        }
        conn.expect_connection_close(540, text, (60, 10));
        assert_eq!(conn.session_state, SessionState::Open);
        conn.send(0, Method::ConnectionCloseOk {});
        assert_eq!(conn.session_state, SessionState::Closing);
    }
}

/// The socket closes before the log has ended the session. A declaration from the new connection
/// follows that end in the log.
#[test]
fn exclusive_queue_can_be_redeclared_while_the_old_session_ends() {
    for owner_is_gone in [true, false] {
        let mut conn = Conn::with_channel();
        conn.send(1, declare_own());
        assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
        conn.broker.hold_log = true;
        if owner_is_gone {
            conn.session.gone(&mut conn.broker);
        }
        let mut broker: FakeBroker = conn.broker;
        broker.id = SessionId {
            number: 8,
            ..crate::fake::ME
        };
        let mut other = Conn::on(broker, SessionConfig::default());
        other.log_in("guest");
        other.open_channel(1);
        other.send(1, declare_own());
        other.expect_nothing();
        while other.broker.apply_next() {}
        other.settle();
        if owner_is_gone {
            assert_eq!(other.next_method(), (1, "queue.declare-ok"));
        } else {
            other.expect_channel_close(1, 405, LOCKED, (50, 10));
        }
    }
}

const LOCKED: &str = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'own' in vhost '/'. It could be \
                      originally declared on another connection or the exclusive property value does not match that of \
                      the original declaration.";

#[test]
fn exclusive_queue_of_another_connection_is_locked() {
    let mut conn = Conn::with_channel();
    let own = declare_own();
    conn.send(1, own.clone());
    assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
    let mut broker: FakeBroker = conn.broker;
    broker.id = SessionId {
        number: 8,
        ..crate::fake::ME
    };
    let mut other = Conn::on(broker, SessionConfig::default());
    other.log_in("guest");
    let attempts = [
        own,
        consume("own", "c", true),
        Method::BasicGet {
            queue: "own",
            no_ack: true,
        },
        Method::QueuePurge {
            queue: "own",
            no_wait: false,
        },
        Method::QueueDelete {
            queue: "own",
            if_unused: false,
            if_empty: false,
            no_wait: false,
        },
        Method::QueueBind {
            queue: "own",
            exchange: "amq.direct",
            routing_key: "",
            no_wait: false,
            arguments: Table::default(),
        },
    ];
    for method in attempts {
        other.open_channel(1);
        let ids = method.ids();
        other.send(1, method);
        other.expect_channel_close(1, 405, LOCKED, ids);
    }
    // A binding that does not exist is not locked.
    other.open_channel(1);
    let unbind = Method::QueueUnbind {
        queue: "own",
        exchange: "amq.direct",
        routing_key: "none",
        arguments: Table::default(),
    };
    other.send(1, unbind);
    other.expect(1, Method::QueueUnbindOk {});
}

#[test]
fn permissions_are_checked() {
    let mut conn = Conn::open_as(SessionConfig::default(), "small");
    let refused = |right: &str, object: &str| {
        format!("ACCESS_REFUSED - {right} access to {object} in vhost '/' refused for user 'small'")
    };
    conn.open_channel(1);
    conn.declare(1, "mine");
    let bind = |queue, exchange| Method::QueueBind {
        queue,
        exchange,
        routing_key: "",
        no_wait: false,
        arguments: Table::default(),
    };
    let cases = [
        (queue_declare("q"), refused("configure", "queue 'q'")),
        (
            exchange_declare("e", "direct"),
            refused("configure", "exchange 'e'"),
        ),
        (
            Method::ExchangeDelete {
                exchange: "e",
                if_unused: false,
                no_wait: false,
            },
            refused("configure", "exchange 'e'"),
        ),
        (
            Method::QueueDelete {
                queue: "q",
                if_unused: false,
                if_empty: false,
                no_wait: false,
            },
            refused("configure", "queue 'q'"),
        ),
        (consume("q", "", false), refused("read", "queue 'q'")),
        (
            Method::BasicGet {
                queue: "q",
                no_ack: false,
            },
            refused("read", "queue 'q'"),
        ),
        (
            Method::QueuePurge {
                queue: "q",
                no_wait: false,
            },
            refused("read", "queue 'q'"),
        ),
        (bind("q", "amq.direct"), refused("write", "queue 'q'")),
        (
            bind("mine", "amq.direct"),
            refused("read", "exchange 'amq.direct'"),
        ),
        (
            declare_with("mine2", true, "x-dead-letter-exchange", "dlx".into()),
            refused("write", "exchange 'dlx'"),
        ),
    ];
    for (method, text) in cases {
        let ids = method.ids();
        conn.send(1, method);
        conn.expect_channel_close(1, 403, &text, ids);
        conn.open_channel(1);
    }
}

#[test]
fn waiting_channel_does_not_block_other_channels() {
    let mut conn = Conn::with_channel();
    conn.open_channel(2);
    conn.broker.silent = true;
    conn.send(1, queue_declare("q"));
    let (token, result) = {
        // The tree has applied it; the session has not received the event yet.
        let record = conn.broker.tree.queue("/", "q").unwrap().clone();
        (
            1 << 16 | 1,
            Ok(metadata::ChangeResult::Queue {
                record,
                created: true,
            }),
        )
    };
    conn.send(
        1,
        Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 1,
            global: false,
        },
    );
    conn.send(
        2,
        Method::BasicQos {
            prefetch_size: 0,
            prefetch_count: 1,
            global: false,
        },
    );
    conn.expect(2, Method::BasicQosOk {});
    conn.expect_nothing();
    conn.broker
        .notices
        .push_back(session::ControlEvent::Changed { token, result }.into());
    conn.settle();
    conn.expect(
        1,
        Method::QueueDeclareOk {
            queue: "q",
            message_count: 0,
            consumer_count: 0,
        },
    );
    conn.expect(1, Method::BasicQosOk {});
}

#[test]
fn frames_held_during_a_wait_are_limited() {
    let mut conn = Conn::with_channel();
    conn.broker.silent = true;
    conn.send(1, queue_declare("q"));
    let mut sent = 0;
    while conn.session_state == SessionState::Open && sent < 200 {
        conn.publish(1, "", "q", &[0; 50_000]);
        sent += 1;
    }
    assert_eq!(conn.session_state, SessionState::Paused);
    assert!(sent < 30, "{sent}");
    conn.broker.silent = false;
    let record = conn.broker.tree.queue("/", "q").unwrap().clone();
    let result = Ok(metadata::ChangeResult::Queue {
        record,
        created: true,
    });
    conn.broker.notices.push_back(
        session::ControlEvent::Changed {
            token: 1 << 16 | 1,
            result,
        }
        .into(),
    );
    conn.settle();
    assert_eq!(conn.session_state, SessionState::Open);
    assert_eq!(conn.broker.queue("/", "q").unwrap().ready.len(), sent);
}

#[test]
fn channel_flow_and_access_request_are_answered() {
    let mut conn = Conn::with_channel();
    conn.send(1, Method::ChannelFlow { active: true });
    conn.expect(1, Method::ChannelFlowOk { active: true });
    conn.send(
        1,
        Method::AccessRequest {
            realm: "/",
            exclusive: false,
            passive: true,
            active: true,
            write: true,
            read: true,
        },
    );
    conn.expect(1, Method::AccessRequestOk { ticket: 1 });
    conn.send(1, Method::ChannelFlow { active: false });
    conn.expect_connection_close(540, "NOT_IMPLEMENTED - active=false", (20, 20));
    // channel.flow-ok without a channel.flow.
    let mut conn = Conn::with_channel();
    conn.send(1, Method::ChannelFlowOk { active: true });
    let text = "COMMAND_INVALID - unimplemented method";
    conn.expect_connection_close(503, text, (20, 21));
}

/// Errors that close the connection.
#[test]
fn hard_errors_match_rabbitmq() {
    let content = |conn: &mut Conn, class_bytes: &[u8]| {
        let mut bytes = BytesMut::new();
        encode_method(
            &mut bytes,
            1,
            &Method::BasicPublish {
                exchange: "",
                routing_key: "q",
                mandatory: false,
                immediate: false,
            },
        );
        bytes.extend_from_slice(class_bytes);
        conn.raw(&bytes);
    };
    let mut body = BytesMut::new();
    open_body(&mut body, 1, 1);
    body.extend_from_slice(&[7, 0xCE]);
    let mut header = BytesMut::new();
    encode_content_header(&mut header, 1, 1, &[0, 0]);
    let mut wrong_class = header.clone();
    wrong_class[8] = 50;
    let mut ack = BytesMut::new();
    encode_method(
        &mut ack,
        1,
        &Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );

    let mut conn = Conn::with_channel();
    conn.send(1, Method::ChannelOpen {});
    conn.expect_connection_close(504, "CHANNEL_ERROR - second 'channel.open' seen", (20, 10));

    let mut conn = Conn::open();
    conn.send(5, queue_declare("q"));
    conn.expect_connection_close(504, "CHANNEL_ERROR - expected 'channel.open'", (50, 10));

    let mut conn = Conn::with_channel();
    conn.raw(&body);
    conn.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        (0, 0),
    );

    let mut conn = Conn::with_channel();
    content(&mut conn, &ack);
    conn.expect_connection_close(505, "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead", (60, 40));

    let mut conn = Conn::with_channel();
    content(&mut conn, &wrong_class);
    conn.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        (60, 40),
    );

    let mut conn = Conn::with_channel();
    content(&mut conn, &[&header[..], &ack].concat());
    conn.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        (60, 40),
    );

    // A truncated content header is reported without a method.
    let mut conn = Conn::with_channel();
    content(&mut conn, &[2, 0, 1, 0, 0, 0, 4, 0, 60, 0, 0, 0xCE]);
    conn.expect_connection_close(
        501,
        "FRAME_ERROR - type 2, all octets = <<0,60,0,0>>: unknown_frame",
        (0, 0),
    );

    let mut conn = Conn::with_channel();
    conn.raw(&[1, 0, 1, 0, 0, 0, 4, 0, 60, 0, 99, 0xCE]);
    conn.expect_connection_close(
        503,
        "COMMAND_INVALID - cannot decode method: no method 99 in class 60",
        (60, 99),
    );

    let mut conn = Conn::with_channel();
    conn.raw(&[1, 0, 1, 0, 0, 0, 5, 0, 60, 0, 80, 1, 0xCE]);
    conn.expect_connection_close(501, "FRAME_ERROR - cannot decode <<1>>", (60, 80));

    let mut conn = Conn::with_channel();
    conn.raw(&[9, 0, 1, 0, 0, 0, 0, 0xCE]);
    conn.expect_connection_close(
        501,
        "FRAME_ERROR - type 9, all octets = <<>>: unknown_frame",
        (0, 0),
    );

    let mut conn = Conn::with_channel();
    conn.raw(&[1, 0, 1, 0, 0, 0, 2, 0, 60, 0xCE]);
    conn.expect_connection_close(
        501,
        "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame",
        (0, 0),
    );

    // A name that is not UTF-8.
    let mut conn = Conn::with_channel();
    let declare = [0, 50, 0, 10, 0, 0, 1, 0xFF, 0, 0, 0, 0, 0];
    conn.raw(&[&[1, 0, 1, 0, 0, 0, 13], &declare[..], &[0xCE]].concat());
    conn.expect_connection_close(501, "FRAME_ERROR - Malformed UTF-8 in shortstr", (0, 0));

    let mut conn = Conn::with_channel();
    conn.raw(&[8, 0, 0, 0, 0, 0, 2, b'h', b'b', 0xCE]);
    conn.expect_connection_close(
        501,
        "FRAME_ERROR - type 8, all octets = <<\"hb\">>: unknown_frame",
        (0, 0),
    );

    let mut conn = Conn::with_channel();
    conn.raw(&[8, 0, 1, 0, 0, 0, 0, 1]);
    conn.expect_connection_close(
        501,
        "FRAME_ERROR - type 8, all octets = <<>>: {invalid_frame_end_marker,1}",
        (0, 0),
    );

    let mut conn = Conn::with_channel();
    conn.raw(&[8, 0, 1, 0, 0, 0, 0, 0xCE]);
    conn.expect_connection_close(505, "UNEXPECTED_FRAME - type 8, all octets = <<>>", (0, 0));

    let mut conn = Conn::with_channel();
    conn.send(0, queue_declare("q"));
    conn.expect_connection_close(
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (50, 10),
    );

    let mut conn = Conn::with_channel();
    conn.send(1, Method::BasicQosOk {});
    conn.expect_connection_close(503, "COMMAND_INVALID - unimplemented method", (60, 11));
}

#[test]
fn input_after_a_framing_error_is_ignored() {
    for bad in [&[1u8, 0, 1, 0, 2, 0, 1, 0][..], &[1, 0, 1, 0, 0, 0, 0, 0]] {
        let mut conn = Conn::with_channel();
        conn.raw(bad);
        let (_, _, payload) = conn.next_frame().unwrap();
        assert!(matches!(
            Method::decode(&payload).unwrap(),
            Method::ConnectionClose {
                reply_code: 501,
                ..
            }
        ));
        conn.send(0, Method::ConnectionCloseOk {});
        assert_ne!(conn.session_state, SessionState::Closing);
        conn.advance(std::time::Duration::from_secs(3));
        assert_eq!(conn.session_state, SessionState::Closing);
    }
}

#[test]
fn frames_are_dropped_between_channel_close_and_close_ok() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(conn.next_method(), (1, "channel.close"));
    conn.publish(1, "", "q", b"lost");
    conn.send(1, queue_declare("lost"));
    conn.expect_nothing();
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    conn.expect(1, Method::ChannelCloseOk {});
    conn.send(1, Method::ChannelCloseOk {});
    conn.open_channel(1);
    assert!(conn.broker.queue("/", "lost").is_none());
}

#[test]
fn notifications_require_client_capabilities() {
    let mut table = capabilities();
    table.set("capabilities", Value::Table(Table::default()));
    let mut conn = Conn::new(SessionConfig::default());
    conn.raw(&codec_amqp091::PROTOCOL_HEADER);
    conn.next_frame();
    conn.send(
        0,
        Method::ConnectionStartOk {
            client_properties: table,
            mechanism: "PLAIN",
            response: b"\0guest\0guest",
            locale: "",
        },
    );
    conn.next_frame();
    conn.send(
        0,
        Method::ConnectionTuneOk {
            channel_max: 10,
            frame_max: 4096,
            heartbeat: 0,
        },
    );
    conn.send(0, Method::ConnectionOpen { virtual_host: "/" });
    conn.next_frame();
    conn.open_channel(1);
    conn.declare(1, "q");
    conn.consume(1, "q", "c", true);
    conn.send(
        1,
        Method::QueueDelete {
            queue: "q",
            if_unused: false,
            if_empty: false,
            no_wait: true,
        },
    );
    conn.broker
        .notices
        .push_back(session::ControlEvent::Blocked(Some("low on disk")).into());
    conn.settle();
    conn.publish(1, "", "q", b"x");
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Paused);
}

#[test]
fn quorum_queue_refuses_conditional_delete() {
    for (flag, if_unused) in [("if-unused", true), ("if-empty", false)] {
        let mut conn = Conn::with_channel();
        conn.send(1, declare_with("q", true, "x-queue-type", "quorum".into()));
        assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
        conn.send(
            1,
            Method::QueueDelete {
                queue: "q",
                if_unused,
                if_empty: !if_unused,
                no_wait: false,
            },
        );
        let text = format!(
            "NOT_IMPLEMENTED - cannot delete queue 'q' in vhost '/'. queue.delete operations with {flag} flag set are not \
             supported by quorum queues"
        );
        conn.expect_connection_close(540, &text, (50, 40));
    }
}
