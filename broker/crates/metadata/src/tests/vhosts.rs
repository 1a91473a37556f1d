use super::*;

fn limit(limit: &str, value: Option<i64>) -> Change {
    Change::SetVhostLimit {
        vhost: name("/"),
        limit: name(limit),
        value,
    }
}

#[test]
fn queue_limit_of_a_vhost_is_enforced() {
    let mut log = Log::new();
    log.ok(limit("max-queues", Some(2)));
    log.declare(queue("a"));
    log.declare(queue("b"));
    let refused = log.refused(Change::DeclareQueue(queue("c")));
    assert_eq!(
        refused.to_string(),
        "cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    );
    // A repeated declaration does not count again.
    log.declare(queue("b"));
    log.ok(Change::DeleteQueue {
        vhost: name("/"),
        name: name("a"),
        id: None,
    });
    log.declare(queue("c"));
    log.ok(limit("max-queues", Some(-1)));
    log.declare(queue("d"));
    log.ok(limit("max-queues", Some(0)));
    log.refused(Change::DeclareQueue(queue("e")));
    log.ok(limit("max-queues", None));
    log.declare(queue("e"));
    log.refused(limit("max-dreams", Some(1)));
    let nowhere = Change::SetVhostLimit {
        vhost: name("nowhere"),
        limit: name("max-queues"),
        value: Some(1),
    };
    assert!(matches!(log.refused(nowhere), ChangeError::NotFound(_)));
}

fn enable_quotas(log: &mut Log) {
    let name = crate::features::QUOTAS.name.into();
    log.apply(Change::EnableFeature { name }).expect("allowed");
}

fn user_limit(limit: &str, value: Option<i64>) -> Change {
    Change::SetUserLimit {
        user: name("guest"),
        limit: name(limit),
        value,
    }
}

#[test]
fn rate_limits_need_the_feature_flag() {
    let mut log = Log::new();
    for change in [
        limit("max-message-rate", Some(100)),
        limit("max-byte-rate", Some(-1)),
        limit("max-channels", Some(10)),
        limit("max-stored-bytes", Some(1 << 30)),
        user_limit("max-message-rate", Some(100)),
        user_limit("max-byte-rate", Some(100)),
    ] {
        let refused = log.refused(change);
        assert!(matches!(refused, ChangeError::PreconditionFailed(_)));
        assert!(refused.to_string().contains("'quotas'"), "{refused}");
    }
    assert_eq!(
        log.refused(limit("max-message-rate", Some(100)))
            .to_string(),
        "max-message-rate of vhost '/' needs the feature flag 'quotas', which is disabled: enable it after all nodes are upgraded"
    );
    let with_limit = UserRecord {
        limits: vec![(name("max-byte-rate"), 100)],
        ..user("u")
    };
    let refused = log.refused(Change::PutUser(with_limit.clone()));
    assert!(refused.to_string().contains("user 'u'"), "{refused}");
    // Limits that all versions know need no flag, and a limit that cannot be set can be cleared.
    log.ok(user_limit("max-channels", Some(10)));
    let cleared = log.ok(limit("max-message-rate", None));
    assert_eq!(cleared, ChangeResult::Unchanged);

    enable_quotas(&mut log);
    log.ok(limit("max-message-rate", Some(100)));
    log.ok(limit("max-byte-rate", Some(-1)));
    log.ok(limit("max-channels", Some(10)));
    log.ok(limit("max-stored-bytes", Some(1 << 30)));
    log.ok(user_limit("max-message-rate", Some(100)));
    log.ok(Change::PutUser(with_limit));
    let record = log.tree.vhost("/").unwrap();
    let limits = [
        "max-message-rate",
        "max-byte-rate",
        "max-channels",
        "max-stored-bytes",
    ];
    assert_eq!(
        limits.map(|l| record.limit(l)),
        [Some(100), None, Some(10), Some(1 << 30)]
    );
}

#[test]
fn rate_of_zero_is_refused_and_names_the_limit() {
    let mut log = Log::new();
    enable_quotas(&mut log);
    assert_eq!(
        log.refused(limit("max-byte-rate", Some(0))).to_string(),
        "max-byte-rate of vhost '/' must not be 0, because publishers would wait for ever: set at least 1, or -1 for no limit"
    );
    let refused = log.refused(limit("max-stored-bytes", Some(0)));
    assert!(
        refused.to_string().contains("'/' must not be 0"),
        "{refused}"
    );
    let unknown = log.refused(user_limit("max-stored-bytes", Some(1)));
    assert!(
        unknown.to_string().contains("unrecognised user limit"),
        "{unknown}"
    );
    let refused = log.refused(user_limit("max-message-rate", Some(0)));
    assert!(
        refused
            .to_string()
            .contains("max-message-rate of user 'guest'")
    );
    let with_limit = UserRecord {
        limits: vec![(name("max-byte-rate"), 0)],
        ..user("u")
    };
    log.refused(Change::PutUser(with_limit));
    // No channel at all is a limit, as for users.
    log.ok(limit("max-channels", Some(0)));
    let refused = log.refused(user_limit("max-queues", Some(1)));
    assert_eq!(
        refused.to_string(),
        "unrecognised user limit 'max-queues': max-connections, max-channels, max-message-rate, max-byte-rate are known"
    );
}

#[test]
fn vhost_settings_survive_a_new_description_and_end_with_the_vhost() {
    let mut log = Log::new();
    let v = name("v");
    let put = |description: &str| Change::PutVhost {
        name: name("v"),
        description: name(description),
        tags: Vec::new(),
    };
    let protect = |on| Change::ProtectVhost {
        vhost: name("v"),
        on,
    };
    log.ok(put("a"));
    log.ok(protect(true));
    log.ok(Change::SetDefaultQueueType {
        vhost: v.clone(),
        kind: Some(QueueType::Quorum),
    });
    assert_eq!(log.ok(put("b")), ChangeResult::Changed);
    let record = log.tree.vhost("v").unwrap();
    assert!(record.protected);
    assert_eq!(record.default_queue_type, Some(QueueType::Quorum));
    let typed = |lasting, given: Table| {
        let arguments = log.tree.with_default_type("v", lasting, given);
        arguments.get("x-queue-type").cloned()
    };
    assert_eq!(typed(true, Table::default()), Some(Value::from("quorum")));
    assert_eq!(typed(false, Table::default()), None);
    let classic = table(&[("x-queue-type", Value::from("classic"))]);
    assert_eq!(typed(true, classic), Some(Value::from("classic")));
    let delete = Change::DeleteVhost { name: v };
    let refused = log.refused(delete.clone());
    assert!(refused.to_string().contains("protected from deletion"));
    log.ok(protect(false));
    log.ok(delete);
    log.ok(put("c"));
    assert_eq!(log.tree.vhost("v").unwrap().default_queue_type, None);
}

#[test]
fn global_parameters_are_stored_and_bounded() {
    let mut log = Log::new();
    let put = |label: String, value: &str| Change::PutGlobalParameter {
        name: label.into(),
        value: name(value),
    };
    assert_eq!(log.ok(put("a".into(), "{\"x\":1}")), ChangeResult::Changed);
    assert_eq!(
        log.ok(put("a".into(), "{\"x\":1}")),
        ChangeResult::Unchanged
    );
    assert_eq!(log.ok(put("a".into(), "2")), ChangeResult::Changed);
    assert_eq!(log.tree.global_parameter("a"), Some(&name("2")));
    let long = "x".repeat(limits::PARAMETER_BYTES + 1);
    assert!(matches!(
        log.refused(put("b".into(), &long)),
        ChangeError::Invalid(_)
    ));
    log.refused(put(String::new(), "1"));
    for n in 1..limits::PARAMETERS {
        let change = put(format!("p{n}"), "1");
        log.index += 1;
        log.tree.apply(log.index, &change).unwrap();
    }
    log.refused(put("one-too-many".into(), "1"));
    let delete = Change::DeleteGlobalParameter { name: name("a") };
    assert_eq!(log.ok(delete.clone()), ChangeResult::Changed);
    assert_eq!(log.ok(delete), ChangeResult::Unchanged);
    log.ok(put("one-too-many".into(), "1"));
}

#[test]
fn vhost_is_traced_until_tracing_stops_or_it_is_deleted() {
    let mut log = Log::new();
    log.refused(trace("nowhere", true));
    assert!(!log.tree.traces());
    assert_eq!(log.ok(trace("/", true)), ChangeResult::Changed);
    assert_eq!(log.ok(trace("/", true)), ChangeResult::Unchanged);
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert!(restored.traces() && restored.vhost("/").unwrap().traced);
    assert_eq!(restored.digest(), log.tree.digest());
    log.ok(trace("/", false));
    assert!(!log.tree.traces());
    log.ok(Change::PutVhost {
        name: name("v"),
        description: name(""),
        tags: Vec::new(),
    });
    log.ok(trace("v", true));
    log.ok(Change::DeleteVhost { name: name("v") });
    assert!(!log.tree.traces());
    // A node that records spans does so whatever the virtual hosts say, and it does not replicate that.
    let digest = log.tree.digest();
    log.tree.trace_all();
    assert!(log.tree.traces());
    assert_eq!(log.tree.digest(), digest);
    log.ok(trace("/", true));
    log.ok(trace("/", false));
    assert!(log.tree.traces());
    assert!(!Tree::restore(&log.tree.snapshot()).unwrap().traces());
}

fn trace(vhost: &str, on: bool) -> Change {
    Change::TraceVhost {
        vhost: name(vhost),
        on,
    }
}
