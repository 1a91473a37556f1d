use super::*;

fn text(refused: ChangeError) -> String {
    match &refused {
        ChangeError::PreconditionFailed(_) => refused.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_declaration_returns_the_existing_queue() {
    let mut log = Log::new();
    let id = log.declare(quorum("q"));
    assert_eq!(
        log.tree.events(),
        [TreeEvent::QueueAdded(
            log.tree.queue("/", "q").unwrap().clone()
        )]
    );
    let ChangeResult::Queue { record, created } = log.ok(Change::DeclareQueue(quorum("q"))) else {
        panic!()
    };
    assert_eq!((record.id, created), (id, false));
    assert!(log.tree.events().is_empty());
    // A classic queue may be declared with or without its type.
    log.declare(queue("c"));
    let typed = QueueRecord {
        arguments: table(&[("x-queue-type", Value::from("classic"))]),
        ..queue("c")
    };
    log.declare(typed);
    // The declaration stays equal with any consumer timeout or target group size.
    let many = Value::from("many");
    for value in [Value::I32(5), Value::I32(-6), many, Value::Void] {
        for key in ["x-consumer-timeout", "x-quorum-target-group-size"] {
            for queue in [queue("t"), quorum("tq")] {
                let mut record = queue;
                record.arguments.set(key, value.clone());
                log.declare(record);
            }
        }
    }
    // The same bytes or the same number of another type are equal.
    for [first, then] in [
        [
            ("x-overflow", Value::from("drop-head")),
            ("x-overflow", Value::Binary(b"drop-head"[..].into())),
        ],
        [
            ("x-max-length", Value::I32(5)),
            ("x-max-length", Value::Timestamp(5)),
        ],
        [
            ("x-queue-type", Value::from("classic")),
            ("x-queue-type", Value::Binary(b"classic"[..].into())),
        ],
    ] {
        for argument in [first, then] {
            log.declare(QueueRecord {
                arguments: table(&[argument]),
                ..queue("octets")
            });
        }
        let gone = Change::DeleteQueue {
            vhost: name("/"),
            name: name("octets"),
            id: None,
        };
        log.ok(gone);
    }
}

/// The error texts of RabbitMQ 4.0.5 for each value.
#[test]
fn error_texts_show_different_values_like_rabbitmq() {
    let mut log = Log::new();
    let with = |value| QueueRecord {
        arguments: table(&[("x-max-length", value)]),
        ..queue("q")
    };
    log.declare(with(Value::I32(5)));
    let pair = Table(vec![("b".into(), Value::I32(1))]);
    for (value, expected_value) in [
        (Value::F64(5.0), "'5.0'"),
        (Value::F32(1000.0), "'1.0e3'"),
        (Value::Void, "none"),
        (Value::Bool(true), "'true'"),
        (Value::Binary(b"abc"[..].into()), "'abc'"),
        (Value::String(b"\xff"[..].into()), "'\u{ff}'"),
        (Value::Array(vec![Value::I32(1)]), "'[{signedint,1}]'"),
        (Value::Table(pair), "'[{<<\"b\">>,signedint,1}]'"),
    ] {
        let expected = format!(
            "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received {expected_value} but current is '5'"
        );
        assert_eq!(
            text(log.refused(Change::DeclareQueue(with(value)))),
            expected
        );
    }
    // Compared with a missing argument, a void counts as a value.
    log.declare(queue("without"));
    let void = QueueRecord {
        name: name("without"),
        ..with(Value::Void)
    };
    assert_eq!(
        text(log.refused(Change::DeclareQueue(void))),
        "inequivalent arg 'x-max-length' for queue 'without' in vhost '/': received the value 'undefined' of type \
         'void' but current is none"
    );
}

#[test]
fn unknown_queue_type_is_compared_with_an_existing_queue() {
    let mut log = Log::new();
    log.declare(queue("q"));
    for (value, expected_value) in [
        (Value::from("jms"), "'jms'"),
        (Value::I32(5), "'5'"),
        (Value::Void, "none"),
    ] {
        let arguments = table(&[("x-queue-type", value)]);
        let kind = log.tree.queue_kind("/", "q", &arguments).unwrap();
        assert_eq!(kind, QueueType::Classic);
        assert!(log.tree.queue_kind("/", "nothing", &arguments).is_err());
        let again = QueueRecord {
            kind,
            arguments,
            ..queue("q")
        };
        // Durability is compared first.
        let transient = QueueRecord {
            durable: !again.durable,
            ..again.clone()
        };
        let refused = text(log.refused(Change::DeclareQueue(transient)));
        assert!(
            refused.starts_with("inequivalent arg 'durable'"),
            "{refused}"
        );
        let expected = format!(
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received {expected_value} but current is 'classic'"
        );
        assert_eq!(text(log.refused(Change::DeclareQueue(again))), expected);
    }
}

#[test]
fn different_declaration_is_refused_with_rabbitmqs_text() {
    let mut log = Log::new();
    log.declare(quorum("q"));
    log.declare(QueueRecord {
        arguments: table(&[("x-max-length", Value::I32(10))]),
        ..queue("c")
    });
    let cases = [
        (
            queue("q"),
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'classic' but current is 'quorum'",
        ),
        (
            QueueRecord {
                arguments: table(&[("x-queue-type", Value::from("classic"))]),
                ..queue("q")
            },
            "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received 'classic' but current is 'quorum'",
        ),
        (
            // An existing queue is compared before arguments are checked.
            QueueRecord {
                arguments: table(&[("x-max-length", Value::from("ten"))]),
                ..queue("c")
            },
            "inequivalent arg 'x-max-length' for queue 'c' in vhost '/': received 'ten' but current is '10'",
        ),
        (
            QueueRecord {
                durable: false,
                ..queue("c")
            },
            "inequivalent arg 'durable' for queue 'c' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            QueueRecord {
                auto_delete: true,
                ..queue("c")
            },
            "inequivalent arg 'auto_delete' for queue 'c' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            queue("c"),
            "inequivalent arg 'x-max-length' for queue 'c' in vhost '/': received none but current is the value '10' of type 'signedint'",
        ),
        (
            QueueRecord {
                arguments: table(&[("x-max-length", Value::I64(11))]),
                ..queue("c")
            },
            "inequivalent arg 'x-max-length' for queue 'c' in vhost '/': received '11' but current is '10'",
        ),
    ];
    for (record, expected) in cases {
        assert_eq!(text(log.refused(Change::DeclareQueue(record))), expected);
    }
    // The width of an integer is ignored.
    log.declare(QueueRecord {
        arguments: table(&[("x-max-length", Value::I64(10))]),
        ..queue("c")
    });
}

#[test]
fn invalid_arguments_are_refused_with_rabbitmqs_text() {
    let mut log = Log::new();
    let classic = |key: &str, value: Value| QueueRecord {
        arguments: table(&[(key, value)]),
        ..queue("q")
    };
    let cases = [
        (
            classic("x-max-length", Value::from("ten")),
            "x-max-length",
            ": \"expected integer, got longstr\"",
        ),
        (
            classic("x-max-length", Value::I32(-1)),
            "x-max-length",
            ": {value_negative,-1}",
        ),
        (
            classic("x-expires", Value::I32(0)),
            "x-expires",
            ": {value_zero,0}",
        ),
        (
            classic("x-message-ttl", Value::I64(1 << 40)),
            "x-message-ttl",
            ": {value_too_large,1099511627776}",
        ),
        (
            classic("x-overflow", Value::from("drop")),
            "x-overflow",
            ": invalid_overflow",
        ),
        (
            classic("x-dead-letter-routing-key", Value::from("k")),
            "x-dead-letter-routing-key",
            ": routing_key_but_no_dlx_defined",
        ),
        (
            classic("x-max-priority", Value::I32(256)),
            "x-max-priority",
            ": {max_value_exceeded,256}",
        ),
        (
            classic("x-single-active-consumer", Value::I32(1)),
            "x-single-active-consumer",
            ": {unacceptable_type,signedint}",
        ),
        (
            classic("x-delivery-limit", Value::I32(1)),
            "x-delivery-limit",
            " of queue type rabbit_classic_queue",
        ),
        (
            classic("x-queue-type", Value::String(b"\xff"[..].into())),
            "x-queue-type",
            ": \"unsupported queue type '\u{ff}'\"",
        ),
        (
            classic("x-max-age", Value::from("1D")),
            "x-max-age",
            " of queue type rabbit_classic_queue",
        ),
        (
            classic("x-queue-type", Value::from("jms")),
            "x-queue-type",
            ": \"unsupported queue type 'jms'\"",
        ),
        (
            classic("x-queue-type", Value::Bool(true)),
            "x-queue-type",
            ": {unacceptable_type,bool}",
        ),
    ];
    for (record, key, end) in cases {
        let expected = format!("invalid arg '{key}' for queue 'q' in vhost '/'{end}");
        assert_eq!(text(log.refused(Change::DeclareQueue(record))), expected);
    }
    assert_eq!(
        text(log.refused(Change::DeclareQueue(classic(
            "x-dead-letter-exchange",
            Value::I32(1)
        )))),
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    );
    // Unknown arguments are kept.
    log.declare(classic("x-mine", Value::from("yes")));
    // Without the flag `queue_argument_checks` these arguments are accepted with any value, also on other types of queues.
    for (n, record) in [
        classic("x-consumer-timeout", Value::I32(-1)),
        classic("x-quorum-target-group-size", Value::I32(0)),
        classic("x-stream-filter-size-bytes", Value::from("x")),
        QueueRecord {
            arguments: table(&[
                ("x-queue-type", Value::from("quorum")),
                ("x-delivery-limit", Value::from("5")),
                ("x-quorum-target-group-size", Value::Bool(true)),
            ]),
            ..quorum("q")
        },
    ]
    .into_iter()
    .enumerate()
    {
        log.declare(QueueRecord {
            name: name(&format!("taken {n}")),
            ..record
        });
    }
}

#[test]
fn quorum_queue_must_be_durable_and_not_exclusive() {
    let mut log = Log::new();
    let session = SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: 1,
    };
    let cases = [
        (
            QueueRecord {
                durable: false,
                ..quorum("q")
            },
            "non-durable",
        ),
        (
            QueueRecord {
                auto_delete: true,
                ..quorum("q")
            },
            "auto-delete",
        ),
        (
            QueueRecord {
                exclusive: Some(session),
                ..quorum("q")
            },
            "exclusive-owner",
        ),
    ];
    for (record, property) in cases {
        let expected = format!("invalid property '{property}' for queue 'q' in vhost '/'");
        assert_eq!(text(log.refused(Change::DeclareQueue(record))), expected);
    }
}

#[test]
fn names_vhosts_and_members_are_checked_at_declaration() {
    let mut log = Log::new();
    let nowhere = QueueRecord {
        vhost: name("no"),
        ..queue("q")
    };
    assert_eq!(
        log.refused(Change::DeclareQueue(nowhere)),
        ChangeError::NotFound("vhost 'no' not found".into())
    );
    for bad in [String::new(), "x".repeat(256)] {
        let refused = log.refused(Change::DeclareQueue(queue(&bad)));
        assert!(matches!(refused, ChangeError::Invalid(_)));
    }
    let lost = QueueRecord {
        members: vec![NodeId(9)],
        ..queue("q")
    };
    assert!(matches!(
        log.refused(Change::DeclareQueue(lost)),
        ChangeError::Unavailable(_)
    ));
    let members = vec![NodeId(2), NodeId(9), NodeId(2), NodeId(1)];
    let id = log.declare(QueueRecord {
        members,
        ..quorum("q")
    });
    assert_eq!(
        log.tree.queue_by_id(id).unwrap().members,
        [NodeId(2), NodeId(1)]
    );
    let mut deep = Value::Bool(true);
    for _ in 0..40 {
        deep = Value::Array(vec![deep]);
    }
    // A change with this depth cannot be encoded either.
    let record = QueueRecord {
        arguments: table(&[("x", deep)]),
        ..queue("d")
    };
    let change = Change::DeclareQueue(record);
    let decoded = Change::decode(&change.encode()).map_err(|e| e.cause);
    assert_eq!(decoded, Err(wire::DecodeCause::Limit));
    assert!(matches!(
        log.tree.apply(99, &change),
        Err(ChangeError::PreconditionFailed(_))
    ));
    let wide = Value::String(vec![b'x'; limits::TABLE_BYTES].into());
    let record = QueueRecord {
        arguments: table(&[("x", wide)]),
        ..queue("w")
    };
    log.refused(Change::DeclareQueue(record));
    let nan = QueueRecord {
        arguments: table(&[("x", Value::F64(f64::NAN))]),
        ..queue("n")
    };
    let refused = log.tree.apply(99, &Change::DeclareQueue(nan));
    assert!(matches!(refused, Err(ChangeError::PreconditionFailed(_))));
}

#[test]
fn exchange_declarations_are_compared_and_checked() {
    let mut log = Log::new();
    assert_eq!(
        log.ok(Change::DeclareExchange(exchange("x", "topic"))),
        ChangeResult::Changed
    );
    assert_eq!(
        log.ok(Change::DeclareExchange(exchange("x", "topic"))),
        ChangeResult::Unchanged
    );
    assert_eq!(
        log.ok(Change::DeclareExchange(exchange("amq.topic", "topic"))),
        ChangeResult::Unchanged
    );
    let cases = [
        (
            exchange("x", "direct"),
            "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'direct' but current is 'topic'",
        ),
        (
            ExchangeRecord {
                durable: false,
                ..exchange("x", "topic")
            },
            "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            ExchangeRecord {
                internal: true,
                ..exchange("x", "topic")
            },
            "inequivalent arg 'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            ExchangeRecord {
                arguments: table(&[("alternate-exchange", Value::from("a"))]),
                ..exchange("x", "topic")
            },
            "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received the value 'a' of type 'longstr' but current is none",
        ),
        (exchange("h", "x-wheel"), "unknown exchange type 'x-wheel'"),
        (
            ExchangeRecord {
                arguments: table(&[("alternate-exchange", Value::I32(1))]),
                ..exchange("h", "topic")
            },
            "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'h' in vhost '/'",
        ),
        (
            ExchangeRecord {
                arguments: table(&[("hash-property", Value::from("priority"))]),
                ..exchange("h", "x-consistent-hash")
            },
            "Unsupported property: priority",
        ),
    ];
    for (record, expected) in cases {
        assert_eq!(text(log.refused(Change::DeclareExchange(record))), expected);
    }
    let delete = |label: &str, if_unused| Change::DeleteExchange {
        vhost: name("/"),
        name: name(label),
        if_unused,
    };
    assert_eq!(
        log.refused(delete("amq.direct", false)),
        ChangeError::AccessRefused(
            "deletion of system exchange 'amq.direct' in vhost '/' not allowed".into()
        )
    );
    assert_eq!(
        log.refused(delete("", false)),
        ChangeError::AccessRefused("operation not permitted on the default exchange".into())
    );
    log.declare(queue("q"));
    log.ok(Change::Bind(to_queue("x", "q", "k")));
    assert_eq!(
        text(log.refused(delete("x", true))),
        "exchange 'x' in vhost '/' in use"
    );
    assert_eq!(log.ok(delete("x", false)), ChangeResult::Changed);
    assert_eq!(log.ok(delete("x", false)), ChangeResult::Unchanged);
}
