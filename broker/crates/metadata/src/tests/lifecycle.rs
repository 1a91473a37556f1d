use super::*;

fn session(node: u64, incarnation: u64, number: u64) -> SessionId {
    SessionId {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        number,
    }
}

fn exclusive(called: &str, owner: SessionId) -> QueueRecord {
    QueueRecord {
        durable: false,
        exclusive: Some(owner),
        members: vec![owner.node],
        ..queue(called)
    }
}

fn names(log: &Log) -> Vec<String> {
    let queues = log.tree.queues("/");
    queues.iter().map(|q| q.name.to_string()).collect()
}

#[test]
fn exclusive_queues_are_locked_and_end_with_their_session() {
    let mut log = Log::new();
    let (mine, other) = (session(1, 1, 1), session(1, 1, 2));
    log.declare(exclusive("a", mine));
    log.declare(exclusive("a", mine));
    log.declare(exclusive("b", other));
    for stranger in [
        exclusive("a", other),
        QueueRecord {
            durable: false,
            ..queue("a")
        },
    ] {
        let refused = log.refused(Change::DeclareQueue(stranger));
        let Refused::ResourceLocked(text) = refused else {
            panic!("{refused:?}")
        };
        assert!(text.starts_with(
            "cannot obtain exclusive access to locked queue 'a' in vhost '/'. It could"
        ));
    }
    assert_eq!(log.tree.exclusive_queues(mine).count(), 1);
    assert_eq!(log.ok(Change::EndSession { session: mine }), Done::Changed);
    assert!(matches!(log.tree.events(), [TreeEvent::QueueRemoved(q)] if &*q.name == "a"));
    assert_eq!(log.ok(Change::EndSession { session: mine }), Done::AsBefore);
    assert_eq!(names(&log), ["b"]);
}

#[test]
fn a_life_that_is_over_takes_what_was_only_there() {
    let mut log = Log::new();
    let transient = |called, node| QueueRecord {
        durable: false,
        members: vec![NodeId(node)],
        ..queue(called)
    };
    log.declare(exclusive("own", session(1, 1, 1)));
    log.declare(exclusive("new-life", session(1, 2, 1)));
    log.declare(transient("transient", 1));
    log.declare(transient("elsewhere", 2));
    log.declare(queue("durable"));
    log.declare(quorum("quorum"));
    log.ok(Change::Bind(to_queue("amq.topic", "transient", "k")));
    let end = |incarnation| Change::EndIncarnation {
        node: NodeId(1),
        incarnation: Incarnation(incarnation),
    };
    assert_eq!(log.ok(end(1)), Done::Changed);
    assert_eq!(names(&log), ["durable", "elsewhere", "new-life", "quorum"]);
    assert!(log.tree.bindings("/").is_empty());
    // Said again, what the next life made stays.
    log.declare(transient("transient", 1));
    assert_eq!(log.ok(end(1)), Done::AsBefore);
    assert_eq!(log.ok(end(0)), Done::AsBefore);
    assert!(names(&log).contains(&"transient".to_owned()));
    // A declaration that was under way for a life that is over comes too late.
    assert!(matches!(
        log.refused(Change::DeclareQueue(exclusive("late", session(1, 1, 9)))),
        Refused::ResourceLocked(_)
    ));
}

#[test]
fn deleting_a_queue_takes_its_bindings_and_auto_delete_exchanges() {
    let mut log = Log::new();
    let auto = |called| ExchangeRecord {
        auto_delete: true,
        ..exchange(called, "fanout")
    };
    log.ok(Change::DeclareExchange(auto("x")));
    log.ok(Change::DeclareExchange(auto("y")));
    let first = log.declare(queue("q"));
    log.ok(Change::Bind(to_queue("y", "q", "")));
    log.ok(Change::Bind(to_exchange("x", "y", "")));
    assert_eq!(log.route("x", &["k"]), [first]);
    let delete = |id| Change::DeleteQueue {
        vhost: name("/"),
        name: name("q"),
        id,
    };
    assert_eq!(log.ok(delete(Some(QueueId(12345)))), Done::AsBefore);
    assert_eq!(log.ok(delete(Some(first))), Done::Changed);
    assert!(
        log.tree.exchange("/", "y").is_none(),
        "its last binding went"
    );
    assert!(
        log.tree.exchange("/", "x").is_none(),
        "its last binding ended at y"
    );
    let second = log.declare(queue("q"));
    assert!(second > first);
    assert_eq!(log.ok(delete(Some(first))), Done::AsBefore);
    assert_eq!(log.ok(delete(None)), Done::Changed);
}

#[test]
fn unbinding_the_last_removes_an_auto_delete_exchange() {
    let mut log = Log::new();
    log.declare(queue("q"));
    log.ok(Change::DeclareExchange(ExchangeRecord {
        auto_delete: true,
        ..exchange("x", "direct")
    }));
    log.ok(Change::Bind(to_queue("x", "q", "a")));
    log.ok(Change::Bind(to_queue("x", "q", "b")));
    log.ok(Change::Unbind(to_queue("x", "q", "a")));
    assert!(log.tree.exchange("/", "x").is_some());
    log.ok(Change::Unbind(to_queue("x", "q", "b")));
    assert!(log.tree.exchange("/", "x").is_none());
}

#[test]
fn deleting_a_vhost_takes_all_that_is_in_it() {
    let mut log = Log::new();
    let vhost = |description: &str| Change::PutVhost {
        name: name("v"),
        description: name(description),
        tags: vec![],
    };
    assert_eq!(log.ok(vhost("")), Done::Changed);
    assert_eq!(log.ok(vhost("")), Done::AsBefore);
    assert_eq!(log.ok(vhost("new")), Done::Changed);
    let exchanges = log.tree.exchanges("v");
    let exchanges: Vec<_> = exchanges.iter().map(|x| &*x.name).collect();
    assert_eq!(
        exchanges,
        [
            "",
            "amq.direct",
            "amq.fanout",
            "amq.headers",
            "amq.match",
            "amq.rabbitmq.trace",
            "amq.topic"
        ]
    );
    let id = log.declare(QueueRecord {
        vhost: name("v"),
        ..queue("q")
    });
    log.ok(Change::Bind(BindingRecord {
        vhost: name("v"),
        ..to_queue("amq.topic", "q", "k")
    }));
    log.ok(Change::PutPolicy(PolicyRecord {
        vhost: name("v"),
        ..policy("p", "", &[("max-length", Value::I64(1))])
    }));
    log.ok(Change::PutPermission(PermissionRecord {
        user: name("guest"),
        vhost: name("v"),
        configure: name(""),
        write: name(""),
        read: name(""),
    }));
    log.ok(Change::DeleteVhost { name: name("v") });
    let removed = log
        .tree
        .events()
        .iter()
        .any(|e| matches!(e, TreeEvent::QueueRemoved(q) if q.id == id));
    assert!(removed);
    assert!(
        log.tree
            .events()
            .contains(&TreeEvent::VhostRemoved(name("v")))
    );
    assert!(!log.tree.vhost_access("guest", "v"));
    log.ok(vhost(""));
    assert!(log.tree.queues("v").is_empty() && log.tree.bindings("v").is_empty());
    assert!(log.tree.policies(PolicyScope::User).is_empty());
}

#[test]
fn a_node_is_not_forgotten_while_it_holds_the_last_copy() {
    let mut log = Log::new();
    let id = log.declare(QueueRecord {
        members: vec![NodeId(3)],
        ..quorum("q")
    });
    log.declare(QueueRecord {
        durable: false,
        members: vec![NodeId(3)],
        ..queue("t")
    });
    let refused = log.refused(Change::DeleteNode { id: NodeId(3) });
    assert!(
        refused.to_string().contains("queue 'q' in vhost '/'"),
        "{refused}"
    );
    log.ok(Change::SetQueueMembers {
        id,
        members: vec![NodeId(1), NodeId(3)],
    });
    assert!(
        matches!(log.tree.events(), [TreeEvent::QueueMembersChanged(q)] if q.members.len() == 2)
    );
    log.ok(Change::DeleteNode { id: NodeId(3) });
    assert_eq!(names(&log), ["q"]);
    assert!(log.tree.node(NodeId(3)).is_none());
    log.ok(Change::SetMaintenance {
        id: NodeId(1),
        on: true,
    });
    assert!(matches!(log.tree.events(), [TreeEvent::NodeChanged(n)] if n.maintenance));
    assert!(matches!(
        log.refused(Change::SetMaintenance {
            id: NodeId(3),
            on: true
        }),
        Refused::NotFound(_)
    ));
    log.refused(Change::SetQueueMembers {
        id,
        members: vec![],
    });
    log.ok(Change::PutNode(node(4)));
    assert!(matches!(log.tree.events(), [TreeEvent::NodeAdded(n)] if n.id == NodeId(4)));
}

#[test]
fn a_restored_tree_tells_what_became_different() {
    let mut log = Log::new();
    log.declare(queue("goes"));
    log.declare(queue("stays"));
    let before = Tree::restore(&log.tree.snapshot()).unwrap();
    log.ok(Change::DeleteQueue {
        vhost: name("/"),
        name: name("goes"),
        id: None,
    });
    let new = log.declare(quorum("comes"));
    log.ok(Change::PutPolicy(policy(
        "p",
        "^stays",
        &[("max-length", Value::I64(1))],
    )));
    log.ok(Change::PutNode(node(4)));
    log.ok(Change::DeleteUser {
        name: name("guest"),
    });
    let after = Tree::restore(&log.tree.snapshot()).unwrap();
    let events = after.events_since(&before);
    let stays = after.queue("/", "stays").unwrap().id;
    assert!(events.contains(&TreeEvent::QueueAdded(
        after.queue_by_id(new).unwrap().clone()
    )));
    assert!(events.contains(&TreeEvent::QueueRemoved(
        before.queue("/", "goes").unwrap().clone()
    )));
    assert!(events.contains(&TreeEvent::PolicyChanged(vec![stays])));
    assert!(events.contains(&TreeEvent::PermissionsChanged {
        user: name("guest")
    }));
    assert_eq!(events.len(), 5, "{events:?}");
}
