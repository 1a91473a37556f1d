use super::*;

fn session(node: u64, incarnation: u64, number: u64) -> SessionId {
    SessionId {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        number,
    }
}

fn exclusive(label: &str, owner: SessionId) -> QueueRecord {
    QueueRecord {
        durable: false,
        exclusive: Some(owner),
        members: vec![owner.node],
        ..queue(label)
    }
}

fn names(log: &Log) -> Vec<String> {
    let queues = log.tree.queues("/");
    queues.iter().map(|q| q.name.to_string()).collect()
}

#[test]
fn exclusive_queue_is_locked_and_ends_with_its_session() {
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
        let ChangeError::ResourceLocked(text) = refused else {
            panic!("{refused:?}")
        };
        assert!(text.starts_with(
            "cannot obtain exclusive access to locked queue 'a' in vhost '/'. It could"
        ));
    }
    assert_eq!(log.tree.exclusive_queues(mine).count(), 1);
    assert_eq!(
        log.ok(Change::EndSession { session: mine }),
        ChangeResult::Changed
    );
    assert!(matches!(log.tree.events(), [TreeEvent::QueueRemoved(q)] if &*q.name == "a"));
    assert_eq!(
        log.ok(Change::EndSession { session: mine }),
        ChangeResult::Unchanged
    );
    assert_eq!(names(&log), ["b"]);
}

#[test]
fn end_of_incarnation_deletes_its_transient_and_exclusive_queues() {
    let mut log = Log::new();
    let transient = |label, node| QueueRecord {
        durable: false,
        members: vec![NodeId(node)],
        ..queue(label)
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
    assert_eq!(log.ok(end(1)), ChangeResult::Changed);
    assert_eq!(names(&log), ["durable", "elsewhere", "new-life", "quorum"]);
    assert!(log.tree.bindings("/").is_empty());
    // A repetition keeps the queues of the next incarnation.
    log.declare(transient("transient", 1));
    assert_eq!(log.ok(end(1)), ChangeResult::Unchanged);
    assert_eq!(log.ok(end(0)), ChangeResult::Unchanged);
    assert!(names(&log).contains(&"transient".to_owned()));
    // A declaration for an ended incarnation arrives too late.
    assert!(matches!(
        log.refused(Change::DeclareQueue(exclusive("late", session(1, 1, 9)))),
        ChangeError::ResourceLocked(_)
    ));
}

#[test]
fn deleting_a_queue_deletes_its_bindings_and_auto_delete_exchanges() {
    let mut log = Log::new();
    let auto = |label| ExchangeRecord {
        auto_delete: true,
        ..exchange(label, "fanout")
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
    assert_eq!(
        log.ok(delete(Some(QueueId(12345)))),
        ChangeResult::Unchanged
    );
    assert_eq!(log.ok(delete(Some(first))), ChangeResult::Changed);
    assert!(
        log.tree.exchange("/", "y").is_none(),
        "its last binding was removed"
    );
    assert!(
        log.tree.exchange("/", "x").is_none(),
        "its last binding ended at y"
    );
    let second = log.declare(queue("q"));
    assert!(second > first);
    assert_eq!(log.ok(delete(Some(first))), ChangeResult::Unchanged);
    assert_eq!(log.ok(delete(None)), ChangeResult::Changed);
}

#[test]
fn last_unbind_deletes_an_auto_delete_exchange() {
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
fn deleting_a_vhost_deletes_its_contents() {
    let mut log = Log::new();
    let vhost = |description: &str| Change::PutVhost {
        name: name("v"),
        description: name(description),
        tags: vec![],
    };
    assert_eq!(log.ok(vhost("")), ChangeResult::Changed);
    assert_eq!(log.ok(vhost("")), ChangeResult::Unchanged);
    assert_eq!(log.ok(vhost("new")), ChangeResult::Changed);
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
fn node_with_the_last_copy_is_not_forgotten() {
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
        ChangeError::NotFound(_)
    ));
    log.refused(Change::SetQueueMembers {
        id,
        members: vec![],
    });
    log.ok(Change::PutNode(node(4)));
    assert!(matches!(log.tree.events(), [TreeEvent::NodeAdded(n)] if n.id == NodeId(4)));
}

#[test]
fn restored_tree_reports_differences_as_events() {
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

#[test]
fn forgotten_node_cannot_join_again() {
    let mut log = Log::new();
    log.ok(Change::SetZone {
        id: NodeId(3),
        zone: name("a"),
    });
    assert_eq!(log.tree.zone(NodeId(3)), "a");
    log.declare(QueueRecord {
        members: vec![NodeId(3)],
        ..quorum("q")
    });
    log.refused(Change::ForgetNode { id: NodeId(3) });
    assert!(!log.tree.is_forgotten(NodeId(3)), "refused changes nothing");
    let id = log.tree.queue("/", "q").unwrap().id;
    log.ok(Change::ReplaceQueueMembers {
        id,
        from: vec![NodeId(3)],
        to: vec![NodeId(1)],
    });
    log.ok(Change::ForgetNode { id: NodeId(3) });
    assert!(matches!(log.tree.events(), [TreeEvent::NodeRemoved(n)] if n.id == NodeId(3)));
    assert!(log.tree.node(NodeId(3)).is_none() && log.tree.zone(NodeId(3)).is_empty());
    let refused = log.refused(Change::PutNode(node(3)));
    assert!(refused.to_string().contains("was removed"), "{refused}");
    let again = log.ok(Change::ForgetNode { id: NodeId(3) });
    assert_eq!(again, ChangeResult::Unchanged);
    // The snapshot contains the forgotten node. A deleted node may join again.
    let mut log = Log {
        tree: Tree::restore(&log.tree.snapshot()).unwrap(),
        ..log
    };
    log.refused(Change::PutNode(node(3)));
    log.ok(Change::DeleteNode { id: NodeId(2) });
    log.ok(Change::PutNode(node(2)));
    // Also a node that was not a member when it was forgotten.
    log.ok(Change::ForgetNode { id: NodeId(9) });
    log.refused(Change::PutNode(node(9)));
}

#[test]
fn members_are_replaced_only_if_they_are_unchanged() {
    let mut log = Log::new();
    let ids = |list: &[u64]| list.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
    let id = log.declare(quorum("q"));
    let classic = log.declare(queue("c"));
    let replace = |id, from: &[u64], to: &[u64]| Change::ReplaceQueueMembers {
        id,
        from: ids(from),
        to: ids(to),
    };
    log.ok(Change::PutNode(node(4)));
    log.ok(replace(id, &[1, 2, 3], &[1, 2, 4]));
    assert!(
        matches!(log.tree.events(), [TreeEvent::QueueMembersChanged(q)] if q.members == ids(&[1, 2, 4]))
    );
    for (what, change) in [
        (
            "decided against older members",
            replace(id, &[1, 2, 3], &[1, 2]),
        ),
        ("no member left", replace(id, &[1, 2, 4], &[])),
        ("one twice", replace(id, &[1, 2, 4], &[1, 1])),
        ("a stranger", replace(id, &[1, 2, 4], &[1, 2, 9])),
        ("a classic queue", replace(classic, &[1], &[2])),
        ("no queue", replace(QueueId(999), &[1], &[2])),
    ] {
        log.refused(change);
        assert!(log.tree.events().is_empty(), "{what}");
        let now = &log.tree.queue_by_id(id).unwrap().members;
        assert_eq!(*now, ids(&[1, 2, 4]), "{what}");
    }
}

#[test]
fn zones_are_reported_and_kept() {
    let mut log = Log::new();
    let zone = |id, zone: &str| Change::SetZone {
        id: NodeId(id),
        zone: name(zone),
    };
    assert_eq!(log.tree.zone(NodeId(1)), "");
    assert_eq!(log.ok(zone(1, "")), ChangeResult::Unchanged);
    assert_eq!(log.ok(zone(1, "eu-1a")), ChangeResult::Changed);
    assert!(matches!(log.tree.events(), [TreeEvent::NodeChanged(n)] if n.id == NodeId(1)));
    assert_eq!(log.ok(zone(1, "eu-1a")), ChangeResult::Unchanged);
    // A node that returns with another address keeps its zone.
    log.ok(Change::PutNode(NodeRecord {
        address: name("elsewhere:1"),
        ..node(1)
    }));
    assert_eq!(log.tree.zone(NodeId(1)), "eu-1a");
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(restored.zone(NodeId(1)), "eu-1a");
    assert_eq!(restored.digest(), log.tree.digest());
    log.refused(zone(9, "eu-1a"));
    log.refused(zone(1, &"z".repeat(256)));
    log.ok(zone(1, ""));
    assert_eq!(log.tree.zone(NodeId(1)), "");
}

#[test]
fn placement_comes_from_arguments_and_policies() {
    let mut log = Log::new();
    let placement_request = |log: &Log, arguments: &[(&str, Value)]| {
        log.tree.placement_request(&QueueRecord {
            arguments: table(arguments),
            ..quorum("wished")
        })
    };
    assert_eq!(placement_request(&log, &[]), PlacementRequest::default());
    let arguments = [
        ("x-quorum-initial-group-size", Value::I64(5)),
        ("x-quorum-target-group-size", Value::I64(5)),
        ("x-queue-leader-locator", Value::from("balanced")),
    ];
    let both = placement_request(&log, &arguments);
    assert_eq!((both.initial, both.target), (5, 5));
    assert_eq!(both.locator, LeaderLocator::Balanced);
    log.ok(Change::PutPolicy(policy(
        "p",
        "^wished",
        &[
            ("target-group-size", Value::I64(3)),
            ("queue-leader-locator", Value::from("client-local")),
        ],
    )));
    let both = placement_request(&log, &arguments);
    assert_eq!(both.target, 5, "the larger value applies");
    assert_eq!(
        both.locator,
        LeaderLocator::ClientLocal,
        "the policy applies"
    );
    assert_eq!(placement_request(&log, &[]).target, 3);
    // The placement of an existing queue.
    let id = log.declare(quorum("wished"));
    let existing = log.tree.queue_by_id(id).unwrap().clone();
    assert_eq!(log.tree.placement_request(&existing).target, 3);
}

/// The requester of a node's removal looked at the queues earlier, and has not seen queues that were placed on the node
/// since.
#[test]
fn node_is_not_forgotten_if_a_queue_was_placed_on_it_meanwhile() {
    let free = |seen: u64| Change::ForgetFreeNode {
        id: NodeId(3),
        seen,
    };
    let mut log = Log::new();
    log.declare(quorum("before"));
    let seen = log.tree.applied();
    let id = log.declare(quorum("q"));
    let two = vec![NodeId(1), NodeId(2)];
    let three = vec![NodeId(1), NodeId(2), NodeId(3)];
    let members = |from: &[NodeId], to: &[NodeId]| Change::ReplaceQueueMembers {
        id,
        from: from.to_vec(),
        to: to.to_vec(),
    };
    // The queue no longer lists the node, but its group may still count it.
    log.ok(members(&three, &two));
    log.tree = Tree::restore(&log.tree.snapshot()).unwrap();
    let refused = log.refused(free(seen));
    let ChangeError::Unavailable(reason) = &refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("node 'c-3'"), "{reason}");

    let seen = log.tree.applied();
    log.ok(members(&two, &three));
    assert!(matches!(
        log.refused(free(seen)),
        ChangeError::Unavailable(_)
    ));
    let seen = log.tree.applied();
    // A member that stays is not a new placement, and a classic queue has no votes.
    log.ok(members(&three, &[NodeId(3), NodeId(1)]));
    log.declare(queue("classic"));
    assert_eq!(log.ok(free(seen)), ChangeResult::Changed);
    assert!(log.tree.is_forgotten(NodeId(3)));
    assert_eq!(log.ok(free(0)), ChangeResult::Unchanged);
}
