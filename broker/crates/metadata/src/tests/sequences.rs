//! Whatever is applied in whatever order: indexes agree, replicas agree, a restored replica goes on the same way.

use super::*;
use proptest::prelude::*;

fn called(prefix: &'static str) -> impl Strategy<Value = String> {
    (0u8..3).prop_map(move |n| format!("{prefix}{n}"))
}

fn binding() -> impl Strategy<Value = BindingRecord> {
    let source = prop_oneof![
        called("x"),
        Just("amq.topic".to_owned()),
        Just("amq.headers".to_owned())
    ];
    let end = prop_oneof![
        called("q").prop_map(|q| Destination::Queue(name(&q))),
        called("x").prop_map(|x| Destination::Exchange(name(&x))),
        Just(Destination::Exchange(name("amq.topic"))),
    ];
    let arguments = prop_oneof![
        Just(Table::default()),
        Just(table(&[("a", Value::I32(1))])),
        Just(table(&[("x-match", Value::from("any"))])),
    ];
    (source, end, "[ab*#]", arguments).prop_map(|(source, destination, key, arguments)| {
        BindingRecord {
            destination,
            arguments,
            ..to_queue(&source, "", &key)
        }
    })
}

/// An alternate exchange as an argument or as a policy has it, or none.
fn alternate() -> impl Strategy<Value = Table> {
    let exchanges = prop_oneof![called("x"), Just("amq.topic".to_owned())];
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
        called("q"),
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
    let make = (called("x"), kinds, any::<bool>(), alternate());
    let make = make.prop_map(|(x, kind, auto_delete, arguments)| {
        Change::DeclareExchange(ExchangeRecord {
            auto_delete,
            arguments,
            ..exchange(&x, kind)
        })
    });
    let policies = (
        called("p"),
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
        2 => called("q").prop_map(|q| Change::DeleteQueue { vhost: name("/"), name: name(&q), id: None }),
        2 => (called("x"), any::<bool>()).prop_map(|(x, if_unused)| Change::DeleteExchange { vhost: name("/"), name: name(&x), if_unused }),
        1 => session.prop_map(|session| Change::EndSession { session }),
        1 => (1u64..3, 1u64..3).prop_map(|(n, i)| Change::EndIncarnation { node: NodeId(n), incarnation: Incarnation(i) }),
        2 => policies,
        1 => (called("p"), "\\^?x[0-2]?", alternate()).prop_map(|(p, pattern, definition)| {
            Change::PutPolicy(PolicyRecord { definition, ..policy(&p, &pattern, &[]) })
        }),
        1 => called("p").prop_map(|p| Change::DeletePolicy { vhost: name("/"), name: name(&p), scope: PolicyScope::User }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn replicas_agree_and_so_does_a_restored_one(
        changes in proptest::collection::vec(change(), 1..40), half: prop::sample::Index,
    ) {
        let mut log = Log::new();
        let mut other = Tree::restore(&log.tree.snapshot()).unwrap();
        let half = half.index(changes.len());
        for (at, change) in changes.into_iter().enumerate() {
            let here = log.apply(change.clone());
            if at == half {
                other = Tree::restore(&log.tree.snapshot()).unwrap();
            } else {
                prop_assert_eq!(&other.apply(log.index, &change), &here);
                prop_assert_eq!(other.events(), log.tree.events());
            }
            prop_assert_eq!(other.digest(), log.tree.digest());
            for key in ["a", "b", "q0"] {
                for source in ["", "x0", "x1", "x2", "amq.topic"] {
                    let (mut a, mut b) = (Vec::new(), Vec::new());
                    let headers = || table(&[("a", Value::I64(1))]);
                    let went = log.tree.route("/", source, &[key], &headers, &mut a);
                    prop_assert_eq!(other.route("/", source, &[key], &headers, &mut b), went);
                    prop_assert_eq!(&a, &b);
                    prop_assert!(a.iter().all(|id| log.tree.queue_by_id(*id).is_some()));
                    let ways = (source, "amq.topic");
                    let comes = log.tree.comes_by("/", ways, &[key], &headers);
                    prop_assert_eq!(other.comes_by("/", ways, &[key], &headers), comes);
                }
            }
            let vhost = &log.tree.vhosts["/"];
            let alternates = vhost.exchanges.values().filter(|e| e.alternate.is_some());
            prop_assert_eq!(vhost.alternates, alternates.count());
        }
    }
}
