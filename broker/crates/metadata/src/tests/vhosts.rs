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
}

fn trace(vhost: &str, on: bool) -> Change {
    Change::TraceVhost {
        vhost: name(vhost),
        on,
    }
}
