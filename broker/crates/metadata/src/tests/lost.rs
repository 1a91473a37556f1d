use super::*;

fn queue_on(label: &str, nodes: &[u64]) -> QueueRecord {
    QueueRecord {
        members: nodes.iter().map(|n| NodeId(*n)).collect(),
        ..quorum(label)
    }
}

/// Node 4 is the replacement of node 3 and has its name.
fn replacement() -> Change {
    let new = NodeRecord {
        name: node(3).name,
        ..node(4)
    };
    let old = NodeId(3);
    Change::ReplaceNode { old, new }
}

fn lost(tree: &Tree) -> Vec<(&str, &str)> {
    tree.lost_queues()
        .map(|(id, node)| (&*tree.queue_by_id(id).unwrap().name, &**node))
        .collect()
}

#[test]
fn replaced_node_is_removed_at_once_and_its_only_copies_are_lost() {
    let mut log = Log::new();
    let classic = QueueRecord {
        members: vec![NodeId(3)],
        ..queue("classic")
    };
    let transient = QueueRecord {
        durable: false,
        name: name("transient"),
        ..classic.clone()
    };
    for record in [
        classic.clone(),
        transient,
        queue_on("one", &[3]),
        queue_on("three", &[1, 2, 3]),
        queue_on("elsewhere", &[1]),
    ] {
        log.declare(record);
    }
    assert_eq!(log.ok(replacement()), ChangeResult::Changed);
    let events = log.tree.events().to_vec();
    let told = |e: &&TreeEvent| matches!(e, TreeEvent::QueueLost { .. });
    assert_eq!(events.iter().filter(told).count(), 2);
    assert_eq!(lost(&log.tree), [("classic", "c-3"), ("one", "c-3")]);
    assert!(log.tree.queue("/", "transient").is_none());
    let names: Vec<_> = log.tree.nodes().map(|n| (n.id.0, &*n.name)).collect();
    assert_eq!(names, [(1, "c-1"), (2, "c-2"), (4, "c-3")]);
    assert!(log.tree.is_forgotten(NodeId(3)));
    // A repeated request has no effect.
    assert_eq!(log.ok(replacement()), ChangeResult::Unchanged);

    let refused = log.refused(Change::DeclareQueue(classic.clone()));
    let ChangeError::NotFound(reason) = refused else {
        panic!("{refused:?}");
    };
    for part in [
        "queue 'classic' in vhost '/' is lost",
        "node 'c-3'",
        "delete the queue",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    let mut log = Log {
        tree: Tree::restore(&log.tree.snapshot()).unwrap(),
        ..log
    };
    assert_eq!(lost(&log.tree), [("classic", "c-3"), ("one", "c-3")]);
    for label in ["classic", "one"] {
        log.ok(Change::DeleteQueue {
            vhost: name("/"),
            name: name(label),
            id: None,
        });
    }
    assert!(lost(&log.tree).is_empty());
    log.declare(QueueRecord {
        members: vec![NodeId(4)],
        ..classic
    });
    assert!(lost(&log.tree).is_empty());
}

#[test]
fn replacement_is_refused_for_another_name_or_a_removed_node() {
    let mut log = Log::new();
    let replace = |old: u64, new: NodeRecord| Change::ReplaceNode {
        old: NodeId(old),
        new,
    };
    log.ok(Change::ForgetNode { id: NodeId(2) });
    for change in [
        replace(3, node(4)),
        replace(3, node(3)),
        replace(
            3,
            NodeRecord {
                name: node(3).name,
                ..node(2)
            },
        ),
    ] {
        log.refused(change);
        assert_eq!(log.tree.nodes().count(), 2);
    }
}

#[test]
fn message_skips_lost_queues_unless_all_its_queues_are_lost() {
    let mut log = Log::new();
    log.ok(Change::DeclareExchange(exchange("all", "fanout")));
    for (label, node) in [("here", 1), ("there", 3)] {
        log.declare(queue_on(label, &[node]));
        log.ok(Change::Bind(to_queue("all", label, "")));
    }
    let routes = |log: &Log, exchange: &str, keys: &[&str]| {
        let mut out = vec![QueueId(0)];
        log.tree
            .route("/", exchange, keys, &Table::default, &mut out);
        let names = |id: &QueueId| log.tree.queue_by_id(*id).unwrap().name.to_string();
        out[1..].iter().map(names).collect::<Vec<_>>()
    };
    assert_eq!(routes(&log, "all", &[""]), ["here", "there"]);
    log.ok(replacement());
    assert_eq!(routes(&log, "all", &[""]), ["here"]);
    assert_eq!(routes(&log, "", &["there"]), ["there"]);
}

#[test]
fn refusal_to_forget_a_node_names_its_last_copies() {
    let mut log = Log::new();
    for n in 0..25 {
        log.declare(queue_on(&format!("q{n:02}"), &[3]));
    }
    let refused = log
        .refused(Change::ForgetNode { id: NodeId(3) })
        .to_string();
    for part in [
        "queue 'q00' in vhost '/'",
        "queue 'q19' in vhost '/'",
        "and 5 more",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn lost_node_is_removed_with_its_only_copies() {
    let mut log = Log::new();
    for record in [
        queue_on("one", &[3]),
        queue_on("three", &[1, 2, 3]),
        queue_on("elsewhere", &[1]),
    ] {
        log.declare(record);
    }
    let forget = |id: u64| Change::ForgetLostNode { id: NodeId(id) };
    assert_eq!(log.ok(forget(3)), ChangeResult::Changed);
    assert_eq!(lost(&log.tree), [("one", "c-3")]);
    assert!(log.tree.is_forgotten(NodeId(3)));
    assert_eq!(log.ok(forget(3)), ChangeResult::Unchanged);
    // Of the three members one is left: its queue is not lost, and the next node to go takes it along.
    assert_eq!(log.ok(forget(2)), ChangeResult::Changed);
    assert_eq!(lost(&log.tree), [("one", "c-3")]);
    assert_eq!(log.ok(forget(1)), ChangeResult::Changed);
    let mut all: Vec<&str> = lost(&log.tree)
        .into_iter()
        .map(|(queue, _)| queue)
        .collect();
    all.sort_unstable();
    assert_eq!(all, ["elsewhere", "one", "three"]);
    log.refused(forget(0));
}
