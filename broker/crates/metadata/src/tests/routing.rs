use super::*;
use crate::features::{CONSISTENT_HASH_TREE, MODULUS_AND_RANDOM_EXCHANGES, SCHEDULED_DELIVERY};

#[test]
fn default_exchange_routes_by_queue_name() {
    let mut log = Log::new();
    let (a, b) = (log.declare(queue("a")), log.declare(queue("b")));
    assert_eq!(log.route("", &["a"]), [a]);
    assert_eq!(log.route("", &["b", "a", "b", "none"]), [a, b]);
    let mut out = vec![QueueId(7)];
    let none = log
        .tree
        .route("/", "", &["none"], &Table::default, &mut out);
    assert_eq!(
        (none, &out[..]),
        (RouteResult::Unroutable, &[QueueId(7)][..])
    );
    let no = log.tree.route("/", "no", &["a"], &Table::default, &mut out);
    assert_eq!(no, RouteResult::NoExchange);
    let no = log.tree.route("no", "", &["a"], &Table::default, &mut out);
    assert_eq!(no, RouteResult::NoExchange);
}

#[test]
fn each_exchange_type_routes_and_a_queue_gets_a_message_once() {
    let mut log = Log::new();
    let (a, b) = (log.declare(queue("a")), log.declare(queue("b")));
    for binding in [
        to_queue("amq.direct", "a", "k"),
        to_queue("amq.direct", "b", "k"),
        to_queue("amq.direct", "b", "l"),
        to_queue("amq.fanout", "a", "ignored"),
        to_queue("amq.topic", "a", "*.x"),
        to_queue("amq.topic", "a", "#"),
        to_queue("amq.topic", "b", "y.#"),
    ] {
        assert_eq!(log.ok(Change::Bind(binding.clone())), ChangeResult::Changed);
        assert_eq!(log.ok(Change::Bind(binding)), ChangeResult::Unchanged);
    }
    assert_eq!(log.route("amq.direct", &["k"]), [a, b]);
    assert_eq!(log.route("amq.direct", &["k", "l"]), [a, b]);
    assert_eq!(log.route("amq.direct", &["l"]), [b]);
    assert_eq!(log.route("amq.fanout", &["anything"]), [a]);
    assert_eq!(log.route("amq.topic", &["y.x"]), [a, b]);
    assert_eq!(log.route("amq.topic", &["z"]), [a]);
    log.ok(Change::Unbind(to_queue("amq.topic", "a", "#")));
    assert_eq!(log.route("amq.topic", &["z"]), []);
    assert_eq!(
        log.ok(Change::Unbind(to_queue("amq.topic", "a", "#"))),
        ChangeResult::Unchanged
    );
}

#[test]
fn headers_are_read_only_if_the_routing_needs_them() {
    let mut log = Log::new();
    let a = log.declare(queue("a"));
    let binding = BindingRecord {
        arguments: table(&[
            ("x-match", Value::from("any")),
            ("kind", Value::from("pdf")),
        ]),
        ..to_queue("amq.headers", "a", "")
    };
    log.ok(Change::Bind(binding.clone()));
    log.ok(Change::Bind(to_queue("amq.topic", "a", "k")));
    let mut out = Vec::new();
    let headers = || table(&[("kind", Value::from("pdf"))]);
    log.tree
        .route("/", "amq.headers", &["k"], &headers, &mut out);
    assert_eq!(out, [a]);
    let never = || -> Table { panic!("asked for headers") };
    log.tree.route("/", "amq.topic", &["k"], &never, &mut out);
    log.tree.route("/", "amq.match", &["k"], &never, &mut out);
    let bad = BindingRecord {
        arguments: table(&[("x-match", Value::from("some"))]),
        ..binding.clone()
    };
    let refused = log.refused(Change::Bind(bad));
    assert!(
        refused
            .to_string()
            .starts_with("Invalid x-match field value"),
        "{refused}"
    );
    // A binding's identity does not depend on the order of its arguments.
    let mut turned = binding;
    turned.arguments.0.reverse();
    assert_eq!(
        log.ok(Change::Bind(turned.clone())),
        ChangeResult::Unchanged
    );
    assert_eq!(log.ok(Change::Unbind(turned)), ChangeResult::Changed);
    assert!(log.tree.bindings_of_queue(a).len() == 1);
}

#[test]
fn exchange_bindings_and_alternates_are_followed_without_cycles() {
    let mut log = Log::new();
    let (a, b) = (log.declare(queue("a")), log.declare(queue("b")));
    for (label, alternate) in [("x", "y"), ("y", "x"), ("z", "")] {
        log.ok(Change::DeclareExchange(ExchangeRecord {
            arguments: table(&[("alternate-exchange", Value::from(alternate))]),
            ..exchange(label, "direct")
        }));
    }
    // x has no match for the key and leads to y, y has none and leads to x again, which ends it.
    assert_eq!(log.route("x", &["k"]), []);
    log.ok(Change::Bind(to_queue("y", "b", "k")));
    assert_eq!(log.route("x", &["k"]), [b]);
    // With a match in x the alternate exchange gets nothing.
    log.ok(Change::Bind(to_queue("x", "a", "k")));
    assert_eq!(log.route("x", &["k"]), [a]);
    // The alternate exchange of z is the default exchange, which routes nothing then (as RabbitMQ 4.0.5 does).
    assert_eq!(log.route("z", &["b"]), []);
    // Bound in a cycle.
    log.ok(Change::Bind(to_exchange("x", "y", "k")));
    log.ok(Change::Bind(to_exchange("y", "x", "k")));
    log.ok(Change::Bind(to_exchange("x", "x", "k")));
    assert_eq!(log.route("x", &["k"]), [a, b]);
    assert_eq!(log.tree.bindings_of_exchange("/", "x").len(), 2);
    log.ok(Change::DeleteExchange {
        vhost: name("/"),
        name: name("x"),
        if_unused: false,
    });
    assert_eq!(log.tree.bindings("/").len(), 1);
}

#[test]
fn alternate_exchange_may_come_from_a_policy() {
    let mut log = Log::new();
    let a = log.declare(queue("a"));
    log.ok(Change::DeclareExchange(exchange("x", "direct")));
    log.ok(Change::Bind(to_queue("amq.fanout", "a", "")));
    assert_eq!(log.route("x", &["k"]), []);
    let alternate = policy(
        "ae",
        "^x$",
        &[("alternate-exchange", Value::from("amq.fanout"))],
    );
    log.ok(Change::PutPolicy(alternate));
    assert_eq!(log.route("x", &["k"]), [a]);
    log.ok(Change::DeletePolicy {
        vhost: name("/"),
        name: name("ae"),
        scope: PolicyScope::User,
    });
    assert_eq!(log.route("x", &["k"]), []);
}

#[test]
fn binding_to_missing_objects_is_refused() {
    let mut log = Log::new();
    log.declare(queue("q"));
    let cases = [
        (
            to_queue("no", "q", ""),
            ChangeError::NotFound("no exchange 'no' in vhost '/'".into()),
        ),
        (
            to_queue("amq.topic", "no", ""),
            ChangeError::NotFound("no queue 'no' in vhost '/'".into()),
        ),
        (
            to_exchange("amq.topic", "no", ""),
            ChangeError::NotFound("no exchange 'no' in vhost '/'".into()),
        ),
        (
            to_queue("", "q", "q"),
            ChangeError::AccessRefused("operation not permitted on the default exchange".into()),
        ),
    ];
    for (binding, want) in cases {
        assert_eq!(log.refused(Change::Bind(binding)), want);
    }
    let nowhere = BindingRecord {
        vhost: name("no"),
        ..to_queue("amq.topic", "q", "")
    };
    assert_eq!(
        log.refused(Change::Bind(nowhere)),
        ChangeError::NotFound("vhost 'no' not found".into())
    );
    assert_eq!(
        log.ok(Change::Unbind(to_queue("no", "q", ""))),
        ChangeResult::Unchanged
    );
}

#[test]
fn consistent_hash_exchange_selects_one_queue_per_key() {
    let mut log = Log::new();
    let all = [
        log.declare(queue("a")),
        log.declare(queue("b")),
        log.declare(queue("c")),
    ];
    log.ok(Change::DeclareExchange(exchange("h", "x-consistent-hash")));
    for (label, weight) in [("a", "1"), ("b", "2"), ("c", "1")] {
        log.ok(Change::Bind(to_queue("h", label, weight)));
    }
    let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let routed: Vec<Vec<QueueId>> = keys.iter().map(|k| log.route("h", &[k])).collect();
    assert!(routed.iter().all(|r| r.len() == 1));
    assert!(all.iter().all(|id| routed.contains(&vec![*id])));
    log.check();
    // A replica that added the bindings in another order routes the same way.
    log.tree = Tree::restore(&log.tree.snapshot()).unwrap();
    let again: Vec<Vec<QueueId>> = keys.iter().map(|k| log.route("h", &[k])).collect();
    assert_eq!(again, routed);
    log.ok(Change::Unbind(to_queue("h", "b", "2")));
    assert!(keys.iter().all(|k| log.route("h", &[k]) != [all[1]]));
    for (weight, why) in [
        ("", "The binding key must be an integer: <<>>"),
        ("0", "The binding key must be greater than 0"),
    ] {
        let refused = log.refused(Change::Bind(to_queue("h", "b", weight)));
        assert_eq!(refused, ChangeError::PreconditionFailed(why.into()));
    }
}

#[test]
fn consistent_hash_exchange_changes_its_selection_when_the_flag_is_enabled() {
    let mut log = Log::new();
    log.ok(Change::DeclareExchange(exchange("h", "x-consistent-hash")));
    for label in 'a'..='z' {
        log.declare(queue(&label.to_string()));
        log.ok(Change::Bind(to_queue("h", &label.to_string(), "1")));
    }
    let keys: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let route_all =
        |log: &Log| -> Vec<Vec<QueueId>> { keys.iter().map(|k| log.route("h", &[k])).collect() };
    let before = route_all(&log);
    // A restored replica without the flag selects as before.
    log.tree = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(route_all(&log), before);
    log.ok(Change::EnableFeature {
        name: name(CONSISTENT_HASH_TREE.name),
    });
    let after = route_all(&log);
    assert_ne!(after, before);
    log.tree = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(route_all(&log), after);
    // An exchange that is declared later selects in the same way.
    log.ok(Change::DeclareExchange(exchange("i", "x-consistent-hash")));
    for label in ('a'..='z').rev() {
        log.ok(Change::Bind(to_queue("i", &label.to_string(), "1")));
    }
    let later: Vec<_> = keys.iter().map(|k| log.route("i", &[k])).collect();
    assert_eq!(later, after);
}

#[test]
fn newer_exchange_types_need_their_feature_flag() {
    let mut log = Log::new();
    for kind in ["x-modulus-hash", "x-random"] {
        let refused = log.refused(Change::DeclareExchange(exchange("x", kind)));
        let expected = format!(
            "exchange 'x' in vhost '/' of type {kind} needs the feature flag 'modulus_and_random_exchanges': enable it when \
             all nodes run a version that knows it"
        );
        assert_eq!(refused, ChangeError::PreconditionFailed(expected));
    }
    log.ok(Change::EnableFeature {
        name: name(MODULUS_AND_RANDOM_EXCHANGES.name),
    });
    for kind in ["x-modulus-hash", "x-random"] {
        log.ok(Change::DeclareExchange(exchange(kind, kind)));
    }
}

#[test]
fn modulus_hash_and_random_exchanges_select_one_queue_with_any_binding_key() {
    let mut log = Log::new();
    log.ok(Change::EnableFeature {
        name: name(MODULUS_AND_RANDOM_EXCHANGES.name),
    });
    let all = [
        log.declare(queue("a")),
        log.declare(quorum("b")),
        log.declare(queue("c")),
    ];
    for kind in ["x-modulus-hash", "x-random"] {
        log.ok(Change::DeclareExchange(exchange(kind, kind)));
        for (label, key) in [("c", ""), ("a", "any"), ("a", "other"), ("b", "#")] {
            log.ok(Change::Bind(to_queue(kind, label, key)));
        }
        let keys: Vec<String> = (0..60).map(|n| n.to_string()).collect();
        let routed: Vec<Vec<QueueId>> = keys.iter().map(|k| log.route(kind, &[k])).collect();
        assert!(routed.iter().all(|r| r.len() == 1));
        assert!(all.iter().all(|id| routed.contains(&vec![*id])));
        log.ok(Change::Unbind(to_queue(kind, "c", "")));
        assert!(keys.iter().all(|k| log.route(kind, &[k]) != [all[2]]));
    }
    let keys: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    let by_hash = |log: &Log| -> Vec<Vec<QueueId>> {
        let keys = keys.iter();
        keys.map(|k| log.route("x-modulus-hash", &[k])).collect()
    };
    let before = by_hash(&log);
    log.tree = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(by_hash(&log), before);
}

fn delayed(label: &str, delayed_type: &str) -> ExchangeRecord {
    ExchangeRecord {
        arguments: Table(vec![("x-delayed-type".into(), delayed_type.into())]),
        ..exchange(label, "x-delayed-message")
    }
}

#[test]
fn delayed_message_exchange_needs_its_feature_flag_and_a_type() {
    let mut log = Log::new();
    let refused = log.refused(Change::DeclareExchange(delayed("x", "topic")));
    let ChangeError::PreconditionFailed(text) = refused else {
        panic!("{refused:?}");
    };
    assert!(text.contains("feature flag 'scheduled_delivery'"), "{text}");
    log.ok(Change::EnableFeature {
        name: name(SCHEDULED_DELIVERY.name),
    });
    let invalid = ChangeError::PreconditionFailed(
        "Invalid argument, 'x-delayed-type' must be an existing exchange type".into(),
    );
    for wrong in [
        exchange("x", "x-delayed-message"),
        delayed("x", "x-delayed-message"),
        delayed("x", "x-local-random"),
        delayed("x", "none"),
    ] {
        assert_eq!(log.refused(Change::DeclareExchange(wrong)), invalid);
    }
    log.ok(Change::DeclareExchange(delayed("x", "topic")));
}

#[test]
fn delayed_message_exchange_routes_by_its_type_to_queues_that_hold_messages_back() {
    let mut log = Log::new();
    log.ok(Change::EnableFeature {
        name: name(SCHEDULED_DELIVERY.name),
    });
    let a = log.declare(quorum("a"));
    log.declare(queue("classic"));
    for kind in ["direct", "fanout", "topic", "x-consistent-hash"] {
        log.ok(Change::DeclareExchange(delayed(kind, kind)));
    }
    log.ok(Change::Bind(to_queue("direct", "a", "key.one")));
    log.ok(Change::Bind(to_queue("fanout", "a", "")));
    log.ok(Change::Bind(to_queue("topic", "a", "key.*")));
    assert_eq!(log.route("direct", &["key.one"]), [a]);
    assert_eq!(log.route("direct", &["key.two"]), []);
    assert_eq!(log.route("topic", &["key.two"]), [a]);
    assert_eq!(log.route("fanout", &["any"]), [a]);
    // Its type checks the binding.
    let refused = log.refused(Change::Bind(to_queue("x-consistent-hash", "a", "key")));
    assert!(
        refused.to_string().contains("must be an integer"),
        "{refused}"
    );
    let refused = log.refused(Change::Bind(to_queue("fanout", "classic", "")));
    assert_eq!(
        refused.to_string(),
        "queue 'classic' in vhost '/' of type classic delivers messages at once and cannot be bound to an exchange of type \
         x-delayed-message: declare it with x-queue-type=quorum"
    );
    let refused = log.refused(Change::Bind(to_exchange("amq.fanout", "topic", "")));
    assert!(refused.to_string().contains("publish to it"), "{refused}");
    log.ok(Change::Bind(to_exchange("topic", "amq.fanout", "#")));
    log.check();
}

/// A message that is published on a node, with a random number for the choice.
struct Published(u64, u64);

impl ::routing::RoutingInput for Published {
    fn headers(&self) -> Table {
        Table::default()
    }
    fn origin(&self) -> Option<::routing::PublishOrigin> {
        Some(::routing::PublishOrigin {
            node: self.0,
            random: self.1,
        })
    }
}

#[test]
fn local_random_exchange_selects_a_queue_on_the_publishers_node() {
    let mut log = Log::new();
    let on = |node, label: &str| QueueRecord {
        members: vec![NodeId(node)],
        ..queue(label)
    };
    let (a, b, c) = (
        log.declare(on(1, "a")),
        log.declare(on(1, "b")),
        log.declare(on(2, "c")),
    );
    log.declare(quorum("q"));
    log.ok(Change::DeclareExchange(exchange("r", "x-local-random")));
    for label in ["a", "b", "c"] {
        log.ok(Change::Bind(to_queue("r", label, "")));
    }
    let route = |from: Published| {
        let mut out = Vec::new();
        log.tree.route("/", "r", &["any"], &from, &mut out);
        out
    };
    assert_eq!(
        (route(Published(1, 0)), route(Published(1, 1))),
        (vec![a], vec![b])
    );
    assert_eq!(
        (route(Published(2, 7)), route(Published(3, 7))),
        (vec![c], vec![])
    );
    assert_eq!(log.route("r", &["any"]).len(), 1);
    for (binding, why) in [
        (
            to_queue("r", "a", "k"),
            "Non empty binding 'k' key not permitted",
        ),
        (
            to_queue("r", "q", ""),
            "Queue type rabbit_quorum_queue not valid for this exchange type",
        ),
        (to_exchange("r", "amq.fanout", ""), "Destination not found"),
    ] {
        let refused = log.refused(Change::Bind(binding));
        assert_eq!(refused, ChangeError::PreconditionFailed(why.into()));
    }
}

#[test]
fn client_publishes_are_counted_and_survive_a_replaced_tree() {
    let mut log = Log::new();
    for name in ["a", "b"] {
        log.declare(queue(name));
        log.ok(Change::Bind(to_queue("amq.fanout", name, "")));
    }
    let publish = |tree: &Tree, exchange: &str, key: &str| {
        let mut out = vec![QueueId(7)];
        tree.publish("/", exchange, &[key], &Table::default, &mut out)
    };
    assert_eq!(publish(&log.tree, "amq.fanout", ""), RouteResult::Routed);
    assert_eq!(publish(&log.tree, "", "a"), RouteResult::Routed);
    assert_eq!(publish(&log.tree, "", "none"), RouteResult::Unroutable);
    assert_eq!(publish(&log.tree, "none", ""), RouteResult::NoExchange);
    // Publishes of the broker itself are not counted as client publishes.
    log.route("amq.fanout", &[""]);
    let traffic = |published, routed| Some(Traffic { published, routed });
    let of = |tree: &Tree, exchange: &str| tree.traffic("/", exchange);
    assert_eq!(of(&log.tree, "amq.fanout"), traffic(1, 2));
    assert_eq!(of(&log.tree, ""), traffic(2, 1));
    assert_eq!(
        (of(&log.tree, "amq.topic"), of(&log.tree, "none")),
        (traffic(0, 0), None)
    );

    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(
        of(&restored, "amq.fanout"),
        traffic(0, 0),
        "no part of the tree"
    );
    restored.take_traffic(&log.tree);
    publish(&restored, "amq.fanout", "");
    assert_eq!(
        (of(&restored, "amq.fanout"), of(&restored, "")),
        (traffic(2, 4), traffic(2, 1))
    );
}
