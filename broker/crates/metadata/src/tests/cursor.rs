//! Cursors over a tree that changes between their steps.

use super::*;
use std::sync::Arc;

/// All remaining items of a cursor, and the number of steps.
fn collect_rest<C: Cursor>(cursor: &mut C, tree: &Tree) -> (Vec<Arc<C::Item>>, usize) {
    let (mut items, mut steps) = (Vec::new(), 0);
    loop {
        steps += 1;
        match cursor.next(tree) {
            CursorStep::Item(item) => items.push(item.clone()),
            CursorStep::Skipped => {}
            CursorStep::End => return (items, steps),
        }
    }
}

fn names(queues: &[Arc<QueueRecord>]) -> Vec<&str> {
    queues.iter().map(|q| &*q.name).collect()
}

#[test]
fn queue_cursor_visits_each_queue_once_while_others_are_added_and_deleted() {
    let mut log = Log::new();
    for label in ["a", "b", "c", "d"] {
        log.declare(queue(label));
    }
    let mut cursor = QueueCursor::default();
    let CursorStep::Item(first) = cursor.next(&log.tree) else {
        panic!("a queue");
    };
    assert_eq!(&*first.name, "a");
    for label in ["a", "c"] {
        let (vhost, label) = (name("/"), name(label));
        log.ok(Change::DeleteQueue {
            vhost,
            name: label,
            id: None,
        });
    }
    log.declare(queue("e"));
    let (found, _) = collect_rest(&mut cursor, &log.tree);
    assert_eq!(names(&found), ["b", "d", "e"]);
}

#[test]
fn queues_by_id_skip_deleted_queues() {
    let mut log = Log::new();
    let ids: Vec<QueueId> = ["a", "b", "c"]
        .iter()
        .map(|label| log.declare(queue(label)))
        .collect();
    let mut cursor = QueuesById::from(ids);
    log.ok(Change::DeleteQueue {
        vhost: name("/"),
        name: name("b"),
        id: None,
    });
    let (found, steps) = collect_rest(&mut cursor, &log.tree);
    assert_eq!((names(&found), steps), (vec!["a", "c"], 4));
}

#[test]
fn exchange_and_binding_cursors_agree_with_vhost_listings() {
    let mut log = Log::new();
    log.declare(queue("q"));
    for label in ["x", "y", "z"] {
        log.ok(Change::DeclareExchange(exchange(label, "topic")));
    }
    for (source, key) in [("x", "1"), ("x", "2"), ("z", "1")] {
        log.ok(Change::Bind(to_queue(source, "q", key)));
    }
    log.ok(Change::Bind(to_exchange("x", "z", "#")));
    let (exchanges, _) = collect_rest(&mut ExchangeCursor::default(), &log.tree);
    let mut listed: Vec<&str> = exchanges.iter().map(|x| &*x.name).collect();
    listed.sort_unstable();
    let all = log.tree.exchanges("/");
    let all: Vec<&str> = all.iter().map(|x| &*x.name).collect();
    assert_eq!(listed, all);
    let (mut bindings, _) = collect_rest(&mut BindingCursor::default(), &log.tree);
    bindings.sort_by(|a, b| {
        let key = |b: &BindingRecord| (b.source.clone(), b.destination.clone());
        (key(a), &a.routing_key).cmp(&(key(b), &b.routing_key))
    });
    let all: Vec<_> = log.tree.bindings("/").into_iter().cloned().collect();
    assert_eq!(bindings, all);
    let (from_x, _) = collect_rest(&mut SourceCursor::new("/", "x"), &log.tree);
    assert_eq!(from_x.len(), log.tree.bindings_from("/", "x").len());
    assert!(from_x.iter().all(|b| *b.source == *"x"));
}

#[test]
fn binding_cursor_continues_after_its_source_was_deleted() {
    let mut log = Log::new();
    log.declare(queue("q"));
    for label in ["x", "y"] {
        log.ok(Change::DeclareExchange(exchange(label, "topic")));
        for key in ["1", "2", "3"] {
            log.ok(Change::Bind(to_queue(label, "q", key)));
        }
    }
    let mut cursor = BindingCursor::default();
    let first = loop {
        match cursor.next(&log.tree) {
            CursorStep::Item(binding) => break binding.clone(),
            CursorStep::Skipped => {}
            CursorStep::End => panic!("a binding"),
        }
    };
    assert_eq!((&*first.source, &*first.routing_key), ("x", "1"));
    log.ok(Change::Unbind(to_queue("x", "q", "2")));
    let CursorStep::Item(second) = cursor.next(&log.tree) else {
        panic!("a binding");
    };
    assert_eq!((&*second.source, &*second.routing_key), ("x", "3"));
    log.ok(Change::DeleteExchange {
        vhost: name("/"),
        name: name("x"),
        if_unused: false,
    });
    let (remaining, _) = collect_rest(&mut cursor, &log.tree);
    let keys: Vec<&str> = remaining.iter().map(|b| &*b.routing_key).collect();
    assert_eq!(keys, ["1", "2", "3"]);
    assert!(remaining.iter().all(|b| *b.source == *"y"));
}
