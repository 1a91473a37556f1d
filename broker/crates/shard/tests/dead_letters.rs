//! Dead lettering from a client's publish to a client's get: what the history says, which way messages take, and that
//! none is lost that must not be.

use crate::cluster::{Client, Cluster, Got, arguments};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, table};
use message::{Table, Value};
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn text(s: &str) -> Value {
    Value::from(s)
}

fn none() -> Properties<'static> {
    Properties::default()
}

fn expiring(ms: &str) -> Properties<'_> {
    Properties {
        expiration: Some(ms),
        ..Properties::default()
    }
}

fn policy(name: &str, pattern: &str, definition: &[(&str, Value)]) -> Change {
    Change::PutPolicy(PolicyRecord {
        scope: PolicyScope::User,
        vhost: "/".into(),
        name: name.into(),
        pattern: pattern.into(),
        apply_to: ApplyTo::Queues,
        priority: 0,
        definition: arguments(definition),
    })
}

fn alone() -> (Cluster, Client) {
    let mut cluster = Cluster::new(1);
    let client = cluster.client(0);
    (cluster, client)
}

/// Each record of x-death, as names and values.
fn deaths(got: &Got) -> Vec<Table> {
    let headers = got.headers();
    let Some(Value::Array(records)) = headers.get("x-death") else {
        panic!("no history: {headers:?}");
    };
    let table = |v: &Value| match v {
        Value::Table(table) => table.clone(),
        other => panic!("{other:?} is no table"),
    };
    records.iter().map(table).collect()
}

fn said<'t>(table: &'t Table, key: &str) -> &'t str {
    table.get(key).and_then(Value::as_str).unwrap_or("")
}

#[test]
fn the_history_is_what_rabbitmq_writes_to_the_byte() {
    let (mut c, mut client) = alone();
    client.declare_exchange(&mut c, "dlx", "direct");
    client.declare(&mut c, "dead", &[]);
    client.bind(&mut c, "dead", "dlx", "gone", &[]);
    let way = [
        ("x-dead-letter-exchange", text("dlx")),
        ("x-dead-letter-routing-key", text("gone")),
        ("x-message-ttl", Value::I32(5000)),
    ];
    client.declare(&mut c, "work", &way);
    let mut headers = BytesMut::new();
    let own = arguments(&[
        ("CC", Value::Array(vec![text("copy")])),
        ("BCC", Value::Array(vec![text("blind")])),
        ("mine", Value::I32(7)),
        ("x-death", text("not yours to say")),
        ("x-first-death-queue", text("nor this")),
    ]);
    table::encode(&own, &mut headers);
    let properties = Properties {
        headers: Some(&headers[4..]),
        delivery_mode: Some(2),
        ..expiring("40")
    };
    client.publish(&mut c, "", "work", &properties, b"body");
    let before = c.wall.0;
    let got = client.must_get(&mut c, "dead");
    assert_eq!((&*got.exchange, &*got.routing_key), ("dlx", "gone"));
    assert_eq!((&got.body[..], got.expiration()), (&b"body"[..], None));
    let death = arguments(&[
        ("original-expiration", text("40")),
        ("count", Value::I64(1)),
        ("reason", text("expired")),
        ("queue", text("work")),
        ("time", Value::Timestamp((before + 40) / 1000)),
        ("exchange", text("")),
        (
            "routing-keys",
            Value::Array(vec![text("work"), text("copy")]),
        ),
    ]);
    let expected = arguments(&[
        ("CC", Value::Array(vec![text("copy")])),
        ("mine", Value::I32(7)),
        ("x-death", Value::Array(vec![Value::Table(death)])),
        ("x-first-death-exchange", text("")),
        ("x-first-death-queue", text("work")),
        ("x-first-death-reason", text("expired")),
        ("x-last-death-exchange", text("")),
        ("x-last-death-queue", text("work")),
        ("x-last-death-reason", text("expired")),
    ]);
    let mut raw = BytesMut::new();
    table::encode(&expected, &mut raw);
    let expected = Properties {
        headers: Some(&raw[4..]),
        delivery_mode: Some(2),
        ..none()
    };
    let mut bytes = BytesMut::new();
    expected.encode(&mut bytes);
    assert_eq!(got.properties, bytes);
}

#[test]
fn deaths_are_counted_and_the_latest_comes_first() {
    for kind in ["classic", "quorum"] {
        let (mut c, mut client) = alone();
        let kind = ("x-queue-type", text(kind));
        // work -> retry -> work, by rejection and by time.
        let to = |key: &str| {
            [
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-routing-key", text(key)),
            ]
        };
        let work = [&to("retry")[..], std::slice::from_ref(&kind)].concat();
        client.declare(&mut c, "work", &work);
        let ttl = ("x-message-ttl", Value::I32(100));
        let retry = [&to("work")[..], &[kind, ttl]].concat();
        client.declare(&mut c, "retry", &retry);
        client.publish(&mut c, "amq.direct", "nobody", &none(), b"lost");
        client.publish(&mut c, "", "work", &none(), b"again");
        for round in 1..=3 {
            let got = client.must_get(&mut c, "work");
            if round > 1 {
                let records = deaths(&got);
                let names: Vec<_> = records
                    .iter()
                    .map(|d| (said(d, "queue"), said(d, "reason"), d.get("count").cloned()))
                    .collect();
                let count = Some(Value::I64(round - 1));
                assert_eq!(
                    names,
                    [
                        ("retry", "expired", count.clone()),
                        ("work", "rejected", count)
                    ]
                );
                let headers = got.headers();
                assert_eq!(said(&headers, "x-first-death-queue"), "work");
                assert_eq!(said(&headers, "x-last-death-queue"), "retry");
            }
            client.reject(&mut c, got.tag);
        }
    }
}

#[test]
fn an_automatic_cycle_is_cut_and_a_missing_exchange_drops() {
    let (mut c, mut client) = alone();
    let to = |key: &str| {
        vec![
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(key)),
            ("x-message-ttl", Value::I32(20)),
        ]
    };
    client.declare(&mut c, "a", &to("b"));
    client.declare(&mut c, "b", &to("a"));
    let nowhere = [
        ("x-dead-letter-exchange", text("missing")),
        ("x-message-ttl", Value::I32(0)),
    ];
    client.declare(&mut c, "nowhere", &nowhere);
    client.publish(&mut c, "", "a", &none(), b"round");
    client.publish(&mut c, "", "nowhere", &none(), b"gone");
    c.pass(Duration::from_millis(25));
    assert_eq!((c.ready(0, "a"), c.ready(0, "b")), (0, 1));
    c.pass(Duration::from_millis(500));
    for queue in ["a", "b", "nowhere"] {
        assert_eq!(c.ready(0, queue), 0, "{queue}");
    }
}

#[test]
fn a_headers_exchange_can_match_what_a_message_died_of() {
    let (mut c, mut client) = alone();
    client.declare_exchange(&mut c, "dlx", "headers");
    for (queue, reason) in [("timed-out", "expired"), ("refused", "rejected")] {
        client.declare(&mut c, queue, &[]);
        let how = [
            ("x-match", text("all-with-x")),
            ("x-first-death-reason", text(reason)),
            ("x-first-death-queue", text("work")),
        ];
        client.bind(&mut c, queue, "dlx", "", &how);
    }
    client.declare(&mut c, "work", &[("x-dead-letter-exchange", text("dlx"))]);
    client.publish(&mut c, "", "work", &expiring("0"), b"late");
    assert_eq!(&client.must_get(&mut c, "timed-out").body[..], b"late");
    client.publish(&mut c, "", "work", &none(), b"bad");
    let got = client.must_get(&mut c, "work");
    client.reject(&mut c, got.tag);
    assert_eq!(&client.must_get(&mut c, "refused").body[..], b"bad");
    assert_eq!(c.ready(0, "timed-out"), 0);
}

#[test]
fn limits_and_deliveries_kill_too() {
    let (mut c, mut client) = alone();
    client.declare(&mut c, "dead", &[]);
    let dlx = [
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
    ];
    let short = [&dlx[..], &[("x-max-length", Value::I32(1))]].concat();
    client.declare(&mut c, "short", &short);
    let mut reject = short.clone();
    reject.push(("x-overflow", text("reject-publish-dlx")));
    client.declare(&mut c, "closed", &reject);
    for (queue, body) in [
        ("short", b"1"),
        ("short", b"2"),
        ("closed", b"3"),
        ("closed", b"4"),
    ] {
        client.publish(&mut c, "", queue, &none(), body);
    }
    // The head of the one, the publish to the other.
    for (body, queue) in [(b"1", "short"), (b"4", "closed")] {
        let got = client.must_get(&mut c, "dead");
        assert_eq!(&got.body[..], body);
        let record = deaths(&got).remove(0);
        assert_eq!(
            (said(&record, "queue"), said(&record, "reason")),
            (queue, "maxlen")
        );
    }
    let quorum = [
        &dlx[..],
        &[
            ("x-queue-type", text("quorum")),
            ("x-delivery-limit", Value::I32(1)),
        ],
    ]
    .concat();
    client.declare(&mut c, "tries", &quorum);
    client.publish(&mut c, "", "tries", &none(), b"5");
    for _ in 0..2 {
        let delivery_tag = client.must_get(&mut c, "tries").tag;
        let method = Method::BasicReject {
            delivery_tag,
            requeue: true,
        };
        client.send(&mut c, 1, method);
    }
    let got = client.must_get(&mut c, "dead");
    assert_eq!(said(&deaths(&got)[0], "reason"), "delivery_limit");
    assert_eq!(got.headers().get("x-delivery-count"), None);
}

/// And `redelivered` with it, until the queue that it is in has attempts of its own.
#[test]
fn a_quorum_queue_shows_how_often_quorum_queues_before_it_had_a_message_rejected() {
    let (mut c, mut client) = alone();
    let queue = |kind, to| {
        [
            ("x-queue-type", text(kind)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(to)),
        ]
    };
    client.declare(&mut c, "first", &queue("quorum", "second"));
    client.declare(&mut c, "second", &queue("quorum", "third"));
    client.declare(&mut c, "third", &queue("classic", "fourth"));
    client.declare(&mut c, "fourth", &queue("quorum", "fifth"));
    client.publish(&mut c, "", "first", &none(), b"m");
    for (from, requeue, shown) in [
        ("first", true, None),
        ("first", false, Some(1)),
        ("second", true, Some(1)),
        ("second", true, Some(1)),
        ("second", false, Some(2)),
        ("third", false, None),
        ("fourth", true, Some(2)),
        ("fourth", true, Some(1)),
    ] {
        let got = client.must_get(&mut c, from);
        let count = got.headers().get("x-delivery-count").cloned();
        assert_eq!(count, shown.map(Value::I64), "{from}");
        let delivery_tag = got.tag;
        let method = Method::BasicReject {
            delivery_tag,
            requeue,
        };
        client.send(&mut c, 1, method);
    }
}

#[test]
fn policies_name_the_way_and_the_queues_own_arguments_come_first() {
    let (mut c, mut client) = alone();
    client.declare(&mut c, "by-policy", &[]);
    client.declare(&mut c, "by-argument", &[]);
    client.declare(&mut c, "q1", &[("x-message-ttl", Value::I32(10))]);
    let own = [
        ("x-message-ttl", Value::I32(10)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("by-argument")),
    ];
    client.declare(&mut c, "q2", &own);
    let way = [
        ("dead-letter-exchange", text("")),
        ("dead-letter-routing-key", text("by-policy")),
    ];
    c.change(policy("dead", "^q", &way));
    client.publish(&mut c, "", "q1", &none(), b"1");
    client.publish(&mut c, "", "q2", &none(), b"2");
    assert_eq!(&client.must_get(&mut c, "by-policy").body[..], b"1");
    assert_eq!(&client.must_get(&mut c, "by-argument").body[..], b"2");
    c.change(Change::DeletePolicy {
        vhost: "/".into(),
        name: "dead".into(),
        scope: PolicyScope::User,
    });
    client.publish(&mut c, "", "q1", &none(), b"3");
    c.pass(Duration::from_millis(100));
    assert_eq!((c.ready(0, "q1"), c.ready(0, "by-policy")), (0, 0));
}

/// Many at once: more than a turn of the shard passes on, and more than fit on the way to a queue.
#[test]
fn a_backlog_that_expires_at_once_arrives_whole() {
    for (source, target) in [("classic", "classic"), ("quorum", "quorum")] {
        let (mut c, mut client) = alone();
        client.declare(&mut c, "dead", &[("x-queue-type", text(target))]);
        let dlx = [
            ("x-queue-type", text(source)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("dead")),
            ("x-message-ttl", Value::I32(1000)),
        ];
        client.declare(&mut c, "work", &dlx);
        for n in 0..6000u32 {
            client.publish(&mut c, "", "work", &none(), &n.to_be_bytes());
        }
        assert_eq!((c.ready(0, "work"), c.ready(0, "dead")), (6000, 0));
        c.pass(Duration::from_millis(1000));
        c.until("moved", |c| (c.ready(0, "dead") == 6000).then_some(()));
        assert_eq!(c.ready(0, "work"), 0);
        assert_eq!(
            &client.must_get(&mut c, "dead").body[..],
            0u32.to_be_bytes()
        );
    }
}

fn kept(dlx: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text(dlx)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ]
}

fn dead_of(c: &mut Cluster, at: usize, queue: &str) -> u64 {
    let stats = c.queue(at, queue).and_then(|q| q.stats);
    stats.map_or(0, |s| s.dead)
}

#[test]
fn at_least_once_waits_for_the_exchange_for_a_queue_and_for_its_confirm() {
    let (mut c, mut client) = alone();
    client.declare(&mut c, "work", &kept("dlx"));
    client.publish(&mut c, "", "work", &none(), b"kept");
    let got = client.must_get(&mut c, "work");
    client.reject(&mut c, got.tag);
    let held = |c: &mut Cluster| {
        c.pass(Duration::from_secs(10));
        dead_of(c, 0, "work") == 1
    };
    assert!(held(&mut c), "no exchange");
    client.declare_exchange(&mut c, "dlx", "fanout");
    assert!(held(&mut c), "no queue");
    // A full queue does not take it.
    let full = [
        ("x-max-length", Value::I32(0)),
        ("x-overflow", text("reject-publish")),
    ];
    client.declare(&mut c, "full", &full);
    client.bind(&mut c, "full", "dlx", "", &[]);
    client.declare(&mut c, "open", &[]);
    client.bind(&mut c, "open", "dlx", "", &[]);
    assert!(held(&mut c), "one of two confirmed");
    assert_eq!(c.ready(0, "open"), 1);
    let delete = Method::QueueDelete {
        queue: "full",
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    client.call(&mut c, 1, delete);
    c.until("passed on", |c| (dead_of(c, 0, "work") == 0).then_some(()));
    let got = client.must_get(&mut c, "open");
    assert_eq!(said(&deaths(&got)[0], "queue"), "work");
    assert!(client.get(&mut c, "open").is_none(), "once");
}

#[test]
fn at_least_once_survives_its_leader() {
    let mut c = Cluster::new(3);
    let mut first = c.client(0);
    first.declare(&mut c, "work", &kept("dlx"));
    c.until("led", |c| c.queue(0, "work")?.leader);
    for n in 0..10u8 {
        first.publish(&mut c, "", "work", &none(), &[n]);
    }
    for _ in 0..10 {
        let got = first.must_get(&mut c, "work");
        first.reject(&mut c, got.tag);
    }
    c.until("dead", |c| (dead_of(c, 0, "work") == 10).then_some(()));
    let leader = c.queue(0, "work").and_then(|q| q.leader).expect("a leader");
    let at = leader.0 as usize - 1;
    let other = (at + 1) % 3;
    c.kill(at);
    let mut second = c.client(other);
    second.declare_exchange(&mut c, "dlx", "fanout");
    second.declare(&mut c, "dead", &[("x-queue-type", text("quorum"))]);
    second.bind(&mut c, "dead", "dlx", "", &[]);
    c.until("moved", |c| (c.ready(other, "dead") == 10).then_some(()));
    c.until("logged", |c| (dead_of(c, other, "work") == 0).then_some(()));
    let mut bodies: Vec<u8> = Vec::new();
    for _ in 0..10 {
        bodies.push(second.must_get(&mut c, "dead").body[0]);
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..10).collect::<Vec<_>>());
}

#[test]
fn unused_queues_expire_and_use_renews_their_lease() {
    for kind in ["classic", "quorum"] {
        let (mut c, mut client) = alone();
        let with = |ms| [("x-queue-type", text(kind)), ("x-expires", Value::I32(ms))];
        for queue in ["idle", "got", "declared", "consumed"] {
            client.declare(&mut c, queue, &with(1000));
        }
        let mut consumer = c.client(0);
        let consume = Method::BasicConsume {
            queue: "consumed",
            consumer_tag: "c",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        };
        consumer.call(&mut c, 1, consume);
        for _ in 0..4 {
            c.pass(Duration::from_millis(600));
            assert!(client.get(&mut c, "got").is_none());
            client.declare(&mut c, "declared", &with(1000));
        }
        assert!(c.queue(0, "idle").is_none(), "{kind}");
        for queue in ["got", "declared", "consumed"] {
            assert!(c.queue(0, queue).is_some(), "{kind} {queue}");
        }
        consumer.close(&mut c);
        c.pass(Duration::from_millis(900));
        assert!(c.queue(0, "consumed").is_some(), "{kind}");
        c.pass(Duration::from_millis(300));
        for queue in ["got", "declared", "consumed"] {
            assert!(c.queue(0, queue).is_none(), "{kind} {queue}");
        }
        // By policy as well.
        client.declare(&mut c, "later", &[("x-queue-type", text(kind))]);
        c.pass(Duration::from_secs(5));
        c.change(policy("lease", "later", &[("expires", Value::I32(500))]));
        assert!(c.queue(0, "later").is_some(), "{kind}");
        c.pass(Duration::from_millis(600));
        assert!(c.queue(0, "later").is_none(), "{kind}");
    }
}

/// Nothing else happens in the turn in which its time is over: it is no tick of the groups'.
#[test]
fn an_unused_queue_goes_when_its_time_is_over_and_not_at_the_next_occasion() {
    for kind in ["classic", "quorum"] {
        let (mut c, mut client) = alone();
        let arguments = [
            ("x-queue-type", text(kind)),
            ("x-expires", Value::I32(1030)),
        ];
        client.declare(&mut c, "idle", &arguments);
        c.pass(Duration::from_millis(1020));
        assert!(c.queue(0, "idle").is_some(), "{kind}");
        assert!(c.turn(0), "{kind}: its deletion is written");
        assert!(c.queue(0, "idle").is_none(), "{kind}");
    }
}

/// A queue of a random graph: its time to live if it has one, and the queues behind its dead letter exchange.
#[derive(Clone, Debug)]
struct Node {
    quorum: bool,
    ttl: Option<u8>,
    to: Vec<usize>,
}

fn graph() -> impl Strategy<Value = Vec<Node>> {
    let to = proptest::collection::btree_set(0usize..5, 0..3);
    let node = (any::<bool>(), proptest::option::weighted(0.7, 0u8..3), to);
    let node = node.prop_map(|(quorum, ttl, to)| Node {
        quorum,
        ttl,
        to: to.into_iter().collect(),
    });
    proptest::collection::vec(node, 5)
}

/// Where a message published to `at` comes to rest, and how often.
fn rests(graph: &[Node], at: usize, path: &[usize], found: &mut BTreeMap<usize, u64>) {
    let node = &graph[at];
    if node.ttl.is_none() {
        *found.entry(at).or_default() += 1;
        return;
    }
    let path = [path, &[at]].concat();
    for next in node.to.iter().filter(|next| !path.contains(next)) {
        rests(graph, *next, &path, found);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Whatever the graph, messages come to rest where they must and nowhere else, and nothing goes round for ever.
    #[test]
    fn in_any_graph_each_message_comes_to_rest(graph in graph()) {
        let (mut c, mut client) = alone();
        for (at, node) in graph.iter().enumerate() {
            let (queue, exchange) = (format!("q{at}"), format!("x{at}"));
            client.declare_exchange(&mut c, &exchange, "fanout");
            let kind = if node.quorum { "quorum" } else { "classic" };
            let mut list = vec![
                ("x-queue-type", text(kind)),
                ("x-dead-letter-exchange", text(&exchange)),
            ];
            list.extend(node.ttl.map(|ttl| ("x-message-ttl", Value::I32(20 * i32::from(ttl)))));
            client.declare(&mut c, &queue, &list);
        }
        for (at, node) in graph.iter().enumerate() {
            for to in &node.to {
                client.bind(&mut c, &format!("q{to}"), &format!("x{at}"), "", &[]);
            }
        }
        let mut expected = BTreeMap::new();
        for at in 0..graph.len() {
            client.publish(&mut c, "", &format!("q{at}"), &none(), b"m");
            rests(&graph, at, &[], &mut expected);
        }
        c.pass(Duration::from_millis(1000));
        for at in 0..graph.len() {
            let wanted = expected.get(&at).copied().unwrap_or(0);
            prop_assert_eq!(c.ready(0, &format!("q{at}")), wanted, "q{}", at);
        }
    }
}
