//! Random sequences of changes: indexes agree, replicas agree, and a restored replica continues the same way.

use super::*;
use proptest::prelude::*;

fn arb_name(prefix: &'static str) -> impl Strategy<Value = String> {
    (0u8..3).prop_map(move |n| format!("{prefix}{n}"))
}

fn binding() -> impl Strategy<Value = BindingRecord> {
    let source = prop_oneof![
        arb_name("x"),
        Just("amq.topic".to_owned()),
        Just("amq.headers".to_owned())
    ];
    let destination = prop_oneof![
        arb_name("q").prop_map(|q| Destination::Queue(name(&q))),
        arb_name("x").prop_map(|x| Destination::Exchange(name(&x))),
        Just(Destination::Exchange(name("amq.topic"))),
    ];
    let arguments = prop_oneof![
        Just(Table::default()),
        Just(table(&[("a", Value::I32(1))])),
        Just(table(&[("x-match", Value::from("any"))])),
    ];
    (source, destination, "[ab*#]", arguments).prop_map(|(source, destination, key, arguments)| {
        BindingRecord {
            destination,
            arguments,
            ..to_queue(&source, "", &key)
        }
    })
}

/// The alternate exchange of an argument or a policy, or none.
fn alternate() -> impl Strategy<Value = Table> {
    let exchanges = prop_oneof![arb_name("x"), Just("amq.topic".to_owned())];
    proptest::option::of(exchanges).prop_map(|x| match x {
        Some(x) => table(&[("alternate-exchange", Value::from(&*x))]),
        None => Table::default(),
    })
}

fn change() -> impl Strategy<Value = Change> {
    let session = (1u64..3, 1u64..3, 1u64..3).prop_map(|(n, i, number)| SessionId {
        node: NodeId(n),
        incarnation: Incarnation(i),
        number,
    });
    let declare = (
        arb_name("q"),
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(session.clone()),
    );
    let declare = declare.prop_map(|(q, is_quorum, durable, exclusive)| {
        Change::DeclareQueue(if is_quorum {
            quorum(&q)
        } else {
            QueueRecord {
                durable,
                exclusive,
                members: vec![exclusive.map_or(NodeId(1), |s| s.node)],
                ..queue(&q)
            }
        })
    });
    let kinds = prop_oneof![
        Just("direct"),
        Just("fanout"),
        Just("topic"),
        Just("headers")
    ];
    let make = (arb_name("x"), kinds, any::<bool>(), alternate());
    let make = make.prop_map(|(x, kind, auto_delete, arguments)| {
        Change::DeclareExchange(ExchangeRecord {
            auto_delete,
            arguments,
            ..exchange(&x, kind)
        })
    });
    let policies = (
        arb_name("p"),
        "\\^?[qx]?[0-2]?",
        0i64..3,
        any::<bool>(),
        1i64..4,
    );
    let policies = policies.prop_map(|(p, pattern, priority, operator, length)| {
        let scope = if operator {
            PolicyScope::Operator
        } else {
            PolicyScope::User
        };
        Change::PutPolicy(PolicyRecord {
            priority,
            scope,
            ..policy(&p, &pattern, &[("max-length", Value::I64(length))])
        })
    });
    prop_oneof![
        4 => declare,
        3 => make,
        6 => binding().prop_map(Change::Bind),
        3 => binding().prop_map(Change::Unbind),
        2 => arb_name("q").prop_map(|q| Change::DeleteQueue { vhost: name("/"), name: name(&q), id: None }),
        2 => (arb_name("x"), any::<bool>()).prop_map(|(x, if_unused)| Change::DeleteExchange { vhost: name("/"), name: name(&x), if_unused }),
        1 => session.prop_map(|session| Change::EndSession { session }),
        1 => (1u64..3, 1u64..3).prop_map(|(n, i)| Change::EndIncarnation { node: NodeId(n), incarnation: Incarnation(i) }),
        2 => policies,
        1 => (arb_name("p"), "\\^?x[0-2]?", alternate()).prop_map(|(p, pattern, definition)| {
            Change::PutPolicy(PolicyRecord { definition, ..policy(&p, &pattern, &[]) })
        }),
        1 => arb_name("p").prop_map(|p| Change::DeletePolicy { vhost: name("/"), name: name(&p), scope: PolicyScope::User }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn replicas_and_a_restored_replica_agree(
        changes in proptest::collection::vec(change(), 1..40), restore_at: prop::sample::Index,
    ) {
        let mut log = Log::new();
        let mut other = Tree::restore(&log.tree.snapshot()).unwrap();
        let restore_at = restore_at.index(changes.len());
        for (index, change) in changes.into_iter().enumerate() {
            let result = log.apply(change.clone());
            if index == restore_at {
                other = Tree::restore(&log.tree.snapshot()).unwrap();
            } else {
                prop_assert_eq!(&other.apply(log.index, &change), &result);
                prop_assert_eq!(other.events(), log.tree.events());
            }
            prop_assert_eq!(other.digest(), log.tree.digest());
            for key in ["a", "b", "q0"] {
                for source in ["", "x0", "x1", "x2", "amq.topic"] {
                    let (mut a, mut b) = (Vec::new(), Vec::new());
                    let headers = || table(&[("a", Value::I64(1))]);
                    let expected = log.tree.route("/", source, &[key], &headers, &mut a);
                    prop_assert_eq!(other.route("/", source, &[key], &headers, &mut b), expected);
                    prop_assert_eq!(&a, &b);
                    prop_assert!(a.iter().all(|id| log.tree.queue_by_id(*id).is_some()));
                    let exchanges = (source, "amq.topic");
                    let passes = log.tree.passes_exchange("/", exchanges, &[key], &headers);
                    prop_assert_eq!(other.passes_exchange("/", exchanges, &[key], &headers), passes);
                }
            }
            let vhost = &log.tree.vhosts["/"];
            let alternates = vhost.exchanges.values().filter(|e| e.alternate.is_some());
            prop_assert_eq!(vhost.alternates, alternates.count());
        }
    }
}
