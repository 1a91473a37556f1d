//! When a node that starts lets clients in.

use crate::cluster::Cluster;
use std::time::Duration;

/// Longer than any election.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_node_alone_opens_when_it_has_its_first_contents() {
    let mut cluster = Cluster::new(1);
    assert!(cluster.listens(0));
    cluster.client(0).declare(&mut cluster, "q", &[]);
}

#[test]
fn a_node_that_starts_late_opens_with_all_that_was_declared_before() {
    let mut cluster = Cluster::without(3, Some(2));
    let mut client = cluster.client(0);
    for n in 0..100 {
        client.declare(&mut cluster, &format!("q{n}"), &[]);
    }
    cluster.start_alone(2);
    cluster.pass(LONG);
    assert!(!cluster.listens(2), "it knows nothing of the cluster yet");

    cluster.link(2);
    cluster.until("open", |c| c.listens(2).then_some(()));
    assert!(cluster.knows(2, "q99"));
}

#[test]
fn what_was_declared_while_a_starting_node_was_linked_does_not_keep_it_closed() {
    let mut cluster = Cluster::without(3, Some(2));
    let mut client = cluster.client(0);
    cluster.start_alone(2);
    cluster.link(2);
    let mut n = 0;
    cluster.until("open", |c| {
        n += 1;
        client.declare(c, &format!("q{n}"), &[]);
        c.listens(2).then_some(())
    });
}
