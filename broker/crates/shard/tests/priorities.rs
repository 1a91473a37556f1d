//! Strict priorities of quorum queues, behind their feature flag.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::Change;
use metadata::features::QUORUM_STRICT_PRIORITIES;
use queue::ReadyDetails;

const QUEUE: &str = "work";

fn declare(c: &mut Cluster, client: &mut Client) {
    client.declare(c, QUEUE, &[("x-queue-type", Value::from("quorum"))]);
}

/// Publishes messages of these priorities, and waits until they are ready. Each has its priority as its body.
fn publish(c: &mut Cluster, client: &mut Client, priorities: &[u8]) {
    let expected = c.ready(0, QUEUE) + priorities.len() as u64;
    for priority in priorities {
        let properties = Properties {
            priority: Some(*priority),
            ..Properties::default()
        };
        client.publish(c, "", QUEUE, &properties, &[*priority]);
    }
    c.until("the messages are ready", |c| {
        (c.ready(0, QUEUE) == expected).then_some(())
    });
}

/// Gets and acknowledges messages.
fn get(c: &mut Cluster, client: &mut Client, count: usize) -> Vec<u8> {
    let mut priorities = Vec::new();
    for _ in 0..count {
        let got = client.must_get(c, QUEUE);
        let ack = Method::BasicAck {
            delivery_tag: got.tag,
            multiple: false,
        };
        client.send(c, 1, ack);
        priorities.push(got.body[0]);
    }
    c.settle();
    priorities
}

fn details(c: &mut Cluster, at: usize) -> Option<ReadyDetails> {
    c.queue(at, QUEUE).expect("the queue").ready
}

#[test]
fn queue_of_a_new_cluster_has_strict_levels_and_every_node_reports_them() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    publish(&mut c, &mut client, &[0, 4, 9, 5, 9]);
    let expected = ReadyDetails {
        by_priority: vec![(0, 1), (4, 1), (5, 1), (9, 2)],
        returned: 0,
    };
    for at in 0..3 {
        let all = c.ask(at, |reply| control::ControlRequest::Queues {
            only: None,
            reply,
        });
        assert_eq!(
            all.first().and_then(|q| q.ready.clone()),
            Some(expected.clone())
        );
        assert_eq!(details(&mut c, at), Some(expected.clone()), "node {at}");
    }
    assert_eq!(get(&mut c, &mut client, 5), [9, 9, 5, 4, 0]);
    assert_eq!(details(&mut c, 1), None, "no message is ready");
}

#[test]
fn flag_changes_the_order_of_existing_queues_for_good() {
    let flag = QUORUM_STRICT_PRIORITIES.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    publish(&mut c, &mut client, &[0, 5, 6, 7, 8]);
    assert_eq!(
        details(&mut c, 0),
        None,
        "weighted priorities are not counted"
    );
    assert_eq!(
        get(&mut c, &mut client, 3),
        [5, 6, 0],
        "two of high priority first"
    );
    publish(&mut c, &mut client, &[1]);
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    publish(&mut c, &mut client, &[2, 30, 9, 31]);
    let counts = vec![(2, 1), (4, 1), (9, 1), (30, 1), (31, 3)];
    let expected = ReadyDetails {
        by_priority: counts,
        returned: 0,
    };
    assert_eq!(details(&mut c, 2), Some(expected.clone()));
    // The next leader has the same state.
    let (other, mut client) = c.kill_leader(QUEUE);
    c.until("the messages are ready", |c| {
        (c.ready(other, QUEUE) == 7).then_some(())
    });
    let order = get(&mut c, &mut client, 7);
    assert_eq!(order, [7, 8, 31, 30, 9, 1, 2]);
}
