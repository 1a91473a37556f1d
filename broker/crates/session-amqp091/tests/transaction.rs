//! Transactions (class tx).

use crate::fake::{Conn, queue_delete};
use codec_amqp091::{Method, Properties};
use queue::RejectReason;
use session_amqp091::{Limits, SessionConfig};
use std::sync::Arc;

fn transactional(messages: u64) -> Conn {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    for n in 1..=messages {
        conn.publish(1, "", "q", n.to_string().as_bytes());
    }
    conn.send(1, Method::TxSelect {});
    conn.expect(1, Method::TxSelectOk {});
    conn
}

fn ready(conn: &Conn) -> usize {
    conn.broker.queue("/", "q").unwrap().ready.len()
}

#[test]
fn messages_are_published_at_commit() {
    let mut conn = transactional(0);
    conn.publish(1, "", "q", b"1");
    conn.publish(1, "", "q", b"2");
    assert_eq!(ready(&conn), 0);
    conn.broker.silent = true;
    conn.send(1, Method::TxCommit {});
    assert_eq!(ready(&conn), 2);
    // commit-ok waits for the queue's confirm, and later frames wait for commit-ok.
    conn.send(1, Method::TxSelect {});
    conn.expect_nothing();
    conn.broker.settle_publishes();
    conn.settle();
    conn.expect(1, Method::TxCommitOk {});
    conn.expect(1, Method::TxSelectOk {});
    conn.send(1, Method::TxCommit {});
    conn.expect(1, Method::TxCommitOk {});
}

#[test]
fn rollback_drops_messages_and_restores_deliveries() {
    let mut conn = transactional(3);
    conn.consume(1, "q", "c", false);
    for n in 1..=3u64 {
        conn.expect_deliver(1, "c", n, "q", n.to_string().as_bytes());
    }
    conn.publish(1, "", "q", b"never");
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 2,
            multiple: true,
        },
    );
    conn.send(1, Method::TxRollback {});
    conn.expect(1, Method::TxRollbackOk {});
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    conn.send(
        1,
        Method::BasicNack {
            delivery_tag: 2,
            multiple: false,
            requeue: true,
        },
    );
    conn.expect_nothing();
    conn.send(1, Method::TxCommit {});
    conn.expect(1, Method::TxCommitOk {});
    conn.expect_redeliver(1, "c", 4, true, "q", b"2");
    conn.expect_nothing();
}

#[test]
fn unroutable_messages_are_returned_at_commit() {
    let mut conn = transactional(0);
    conn.publish_with(1, "", "nowhere", true, &Default::default(), b"x");
    conn.expect_nothing();
    conn.send(1, Method::TxCommit {});
    assert_eq!(conn.next_method(), (1, "basic.return"));
    conn.expect_content(1);
    conn.expect(1, Method::TxCommitOk {});
}

#[test]
fn rejected_message_fails_the_commit() {
    let mut conn = transactional(0);
    conn.broker.reject = Some(RejectReason::MaxLength);
    conn.publish(1, "", "q", b"x");
    conn.send(1, Method::TxCommit {});
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - partial tx completion",
        (90, 20),
    );
}

#[test]
fn channel_close_requeues_uncommitted_settlements() {
    let mut conn = transactional(2);
    conn.consume(1, "q", "c", false);
    conn.drain();
    conn.send(
        1,
        Method::BasicAck {
            delivery_tag: 0,
            multiple: true,
        },
    );
    assert_eq!(ready(&conn), 0);
    conn.send(
        1,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    assert_eq!(ready(&conn), 2);
}

#[test]
fn tx_and_confirm_mode_exclude_each_other() {
    let mut conn = transactional(0);
    conn.send(1, Method::ConfirmSelect { no_wait: false });
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
        (85, 10),
    );
    conn.open_channel(1);
    conn.send(1, Method::TxCommit {});
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - channel is not transactional",
        (90, 20),
    );
    conn.open_channel(1);
    conn.send(1, Method::ConfirmSelect { no_wait: true });
    conn.send(1, Method::TxSelect {});
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
        (90, 10),
    );
}

#[test]
fn transaction_over_its_limit_closes_only_its_channel() {
    let limits = Limits {
        transaction: 1000,
        ..Limits::default()
    };
    let config = SessionConfig {
        limits: Arc::new(limits),
        ..SessionConfig::default()
    };
    let mut conn = Conn::open_as(config, "guest");
    conn.open_channel(1);
    conn.send(1, Method::TxSelect {});
    conn.expect(1, Method::TxSelectOk {});
    conn.publish(1, "", "q", &[0; 700]);
    conn.expect_nothing();
    conn.publish(1, "", "q", &[0; 700]);
    conn.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - the transaction exceeds 1000 octets, commit it in parts",
        (60, 40),
    );
    // Other channels continue.
    conn.open_channel(2);
    conn.declare(2, "q");
}

#[test]
fn message_is_returned_if_its_queue_was_deleted_before_commit() {
    let mut conn = transactional(0);
    conn.publish_with(1, "", "q", true, &Properties::default(), b"late");
    conn.send(1, queue_delete("q"));
    conn.expect(1, Method::QueueDeleteOk { message_count: 0 });
    conn.send(1, Method::TxCommit {});
    assert_eq!(conn.next_method(), (1, "basic.return"));
    assert_eq!(conn.expect_content(1).1, b"late");
    conn.expect(1, Method::TxCommitOk {});
}

#[test]
fn uncommitted_settlements_count_against_the_channel_limit() {
    let mut conn = transactional(2);
    let qos = Method::BasicQos {
        prefetch_size: 0,
        prefetch_count: 1,
        global: true,
    };
    conn.send(1, qos);
    conn.expect(1, Method::BasicQosOk {});
    conn.consume(1, "q", "c", false);
    conn.expect_deliver(1, "c", 1, "q", b"1");
    let ack = Method::BasicAck {
        delivery_tag: 1,
        multiple: false,
    };
    conn.send(1, ack.clone());
    conn.expect_nothing();
    conn.send(1, Method::TxRollback {});
    conn.expect(1, Method::TxRollbackOk {});
    conn.expect_nothing();
    conn.send(1, ack);
    conn.send(1, Method::TxCommit {});
    conn.expect(1, Method::TxCommitOk {});
    conn.expect_deliver(1, "c", 2, "q", b"2");
}
