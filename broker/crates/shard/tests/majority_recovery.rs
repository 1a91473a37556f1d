//! A cluster that lost most of its nodes continues with those that are left, when an operator asks for it.

use crate::cluster::{Client, Cluster};
use codec_amqp091::Properties;
use control::{QueueRecovery, RecoveredGroup, RecoveryStep};
use env::NodeId;
use message::Value;
use metadata::features::MAJORITY_RECOVERY;
use std::time::Duration;

fn quorum(replicas: i64) -> Vec<(&'static str, Value)> {
    vec![
        ("x-queue-type", Value::from("quorum")),
        ("x-quorum-initial-group-size", Value::I64(replicas)),
    ]
}

fn publish(c: &mut Cluster, client: &mut Client, queue: &str, count: u64) {
    let before = c.ready(0, queue);
    for _ in 0..count {
        client.publish(c, "", queue, &Properties::default(), b"body");
    }
    c.until("the messages are there", |c| {
        (c.ready(0, queue) == before + count).then_some(())
    });
}

fn kill(c: &mut Cluster, lost: &[u64]) {
    lost.iter().for_each(|n| c.kill(*n as usize - 1));
    c.pass(Duration::from_secs(40));
}

/// Repeats the request until nothing is left. Returns what was done with the queues.
fn recover(c: &mut Cluster, at: usize, lost: &[u64]) -> Vec<QueueRecovery> {
    let mut recovered = Vec::new();
    for _ in 0..100 {
        match c.recover_step(at, lost) {
            Ok(RecoveryStep::Queues { outcomes, left }) => {
                let is_over = outcomes.is_empty() && left == 0;
                recovered.extend(outcomes);
                if is_over {
                    return recovered;
                }
            }
            Ok(_) => {}
            // The leader of a moment ago may be known still.
            Err(refused) => assert!(refused.to_string().contains("leads"), "{refused}"),
        }
        c.pass(Duration::from_secs(1));
    }
    panic!("not in time: recovery")
}

#[test]
fn last_of_three_nodes_continues_with_its_messages() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    for queue in ["one", "two"] {
        client.declare(&mut c, queue, &quorum(3));
        publish(&mut c, &mut client, queue, 5);
    }
    let mut elsewhere = c.client(1);
    elsewhere.declare(&mut c, "classic", &[]);
    kill(&mut c, &[2, 3]);

    let mut recovered = recover(&mut c, 0, &[2, 3]);
    recovered.retain(|r| r.result.is_ok());
    recovered.dedup_by_key(|r| r.queue);
    assert_eq!(recovered.len(), 2, "{recovered:?}");
    let RecoveredGroup {
        node,
        replicas,
        voters,
        ..
    } = recovered[0].result.clone().expect("recovered");
    assert_eq!((node, replicas, voters), (NodeId(1), 1, 3));
    assert_eq!(c.nodes_known(0), [NodeId(1)]);
    assert_eq!(c.metadata_voters(0), [NodeId(1)]);
    for queue in ["one", "two"] {
        c.until("its messages are there", |c| {
            (c.ready(0, queue) == 5).then_some(())
        });
        publish(&mut c, &mut client, queue, 1);
        let members = c.queue(0, queue).map(|q| q.members);
        assert_eq!(members, Some(vec![NodeId(1)]));
    }
    client.declare(&mut c, "new", &quorum(3));
    publish(&mut c, &mut client, "new", 1);

    // A lost node that returns is told that it was removed, and ends.
    c.back(1);
    c.until("it ends", |c| c.failed(1));
    let reason = c.failed(1).expect("it ended");
    assert!(reason.contains("was removed from its cluster"), "{reason}");
}

#[test]
fn two_of_five_nodes_continue_with_the_newest_copy() {
    let mut c = Cluster::new(5);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(5));
    publish(&mut c, &mut client, "q", 3);
    // Node 2 lacks what three of the others and node 1 have.
    c.cut_off(1);
    publish(&mut c, &mut client, "q", 4);
    kill(&mut c, &[3, 4, 5]);
    c.link(1);
    // The link to the lost nodes comes up and breaks.
    kill(&mut c, &[3, 4, 5]);

    // The node that is asked need not be the one with the newest copy.
    recover(&mut c, 1, &[3, 4, 5]);
    c.until("all messages are there", |c| {
        (c.ready(1, "q") == 7).then_some(())
    });
    let mut voters = c.metadata_voters(0);
    voters.sort_unstable();
    assert_eq!(voters, [NodeId(1), NodeId(2)]);
    publish(&mut c, &mut client, "q", 1);
}

#[test]
fn queue_continues_when_the_cluster_has_a_majority() {
    let mut c = Cluster::new(5);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(3));
    publish(&mut c, &mut client, "q", 2);
    let members = c.queue(0, "q").expect("there").members;
    let lost: Vec<u64> = (members.iter().map(|n| n.0).filter(|n| *n != 1))
        .take(2)
        .collect();
    assert!(members.contains(&NodeId(1)), "{members:?}");
    kill(&mut c, &lost);
    recover(&mut c, 0, &lost);
    c.until("the messages are there", |c| {
        (c.ready(0, "q") == 2).then_some(())
    });
    publish(&mut c, &mut client, "q", 1);
    for node in lost {
        assert!(!c.nodes_known(0).contains(&NodeId(node)));
    }
}

#[test]
fn nodes_that_may_come_back_are_not_given_up() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(3));
    let refused = |c: &mut Cluster, lost: &[u64]| {
        let step = c.recover_step(0, lost);
        step.expect_err("it is refused").to_string()
    };
    assert!(refused(&mut c, &[2]).contains("node 'n2' is running"));
    assert!(refused(&mut c, &[1]).contains("answers this request"));
    c.kill(1);
    c.kill(2);
    c.pass(Duration::from_secs(10));
    let why = refused(&mut c, &[2, 3]);
    assert!(why.contains("may only be slow or restart"), "{why}");
    c.pass(Duration::from_secs(30));
    // One of them is not named: it has a replica of the metadata, and may have more than this node.
    let why = refused(&mut c, &[2]);
    assert!(why.contains("node 'n3' has a replica"), "{why}");
    assert_eq!(c.nodes_known(0).len(), 3);
}

#[test]
fn node_that_another_one_reaches_is_not_lost() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(3));
    // Node 1 is cut off; the others are well.
    c.cut_off(0);
    c.pass(Duration::from_secs(40));
    let why = c.recover_step(0, &[2]).expect_err("refused").to_string();
    assert!(why.contains("node 'n3' has a replica"), "{why}");
}

#[test]
fn recovery_needs_its_feature_flag() {
    let mut c = Cluster::without_feature(3, MAJORITY_RECOVERY.name);
    let why = c.recover_step(0, &[2]).expect_err("refused").to_string();
    assert!(why.contains("majority_recovery"), "{why}");
}
