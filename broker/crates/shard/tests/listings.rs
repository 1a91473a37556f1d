//! Listings of many queues, connections and consumers: a turn does a bounded part of them, and serves its clients in between.

use crate::cluster::{Client, Cluster, arguments};
use codec_amqp091::{Method, Properties};
use control::{CollectWalk, ControlRequest, Reply};
use env::NodeId;
use message::Value;
use metadata::{Change, QueueCursor, QueueId, QueueRecord, QueueType};
use std::sync::mpsc;

/// More than two turns look at.
const QUEUES: usize = 600;
/// Items of all listings together that one turn may look at.
const STEP: u64 = 256;

fn declare(cluster: &mut Cluster, number: usize) {
    let record = QueueRecord {
        id: QueueId(0),
        vhost: "/".into(),
        name: format!("listed-{number}").into(),
        kind: QueueType::Classic,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: arguments(&[]),
        members: vec![NodeId(1)],
        declared_by: "guest".into(),
    };
    cluster.change(Change::DeclareQueue(record));
}

fn with_queues() -> (Cluster, Client) {
    let mut cluster = Cluster::new(1);
    let mut publisher = cluster.client(0);
    let classic = [("x-queue-type", Value::from("classic"))];
    publisher.declare(&mut cluster, "q", &classic);
    publisher.call(&mut cluster, 1, Method::ConfirmSelect { no_wait: false });
    for number in 0..QUEUES {
        declare(&mut cluster, number);
    }
    (cluster, publisher)
}

/// Lists, and publishes a message in each turn until the answer is there: the answer, and the turns it took.
fn list_while_publishing<T: Send + 'static>(
    cluster: &mut Cluster,
    publisher: &mut Client,
    request: impl FnOnce(Reply<T>) -> ControlRequest,
) -> (T, u64) {
    let (tell, told) = mpsc::channel();
    let reply = Box::new(move |answer| drop(tell.send(answer)));
    cluster.begin(0, request(reply));
    // A classic queue confirms a transient message at once, so a confirm shows that this turn served the publisher.
    let transient = Properties {
        delivery_mode: Some(1),
        ..Properties::default()
    };
    for turns in 1..100 {
        let before = cluster.looked_at(0);
        publisher.publish_unsettled(cluster, "q", &transient, b"hello");
        cluster.turn(0);
        let looked_at = cluster.looked_at(0) - before;
        assert!(
            looked_at <= STEP,
            "turn {turns} looked at {looked_at} items"
        );
        let confirmed = publisher.next_method_now(cluster);
        assert!(
            confirmed.as_ref().is_some_and(|m| m.contains("BasicAck")),
            "turn {turns} confirms: {confirmed:?}"
        );
        if let Ok(answer) = told.try_recv() {
            return (answer, turns);
        }
    }
    panic!("no answer");
}

#[test]
fn figures_of_all_queues_take_several_turns_which_serve_publishers() {
    let (mut cluster, mut publisher) = with_queues();
    let (facts, turns) = list_while_publishing(&mut cluster, &mut publisher, |reply| {
        let only = None;
        ControlRequest::Queues { only, reply }
    });
    assert_eq!(facts.len(), QUEUES + 1);
    assert!(facts.iter().all(|f| f.stats.is_some()));
    // Its owner looks at each queue, and so does the shard that puts the answers together.
    assert!(turns >= 2 * QUEUES as u64 / STEP, "{turns} turns");
}

#[test]
fn a_walk_over_the_tree_takes_several_turns_which_serve_publishers() {
    let (mut cluster, mut publisher) = with_queues();
    let (names, turns) = list_while_publishing(&mut cluster, &mut publisher, |reply| {
        let name = |_: &metadata::Tree, q: &std::sync::Arc<QueueRecord>| Some(q.name.clone());
        ControlRequest::Walk(Box::new(CollectWalk::new(
            QueueCursor::default(),
            name,
            reply,
        )))
    });
    assert_eq!(names.len(), QUEUES + 1);
    assert!(turns > QUEUES as u64 / STEP, "{turns} turns");
}

#[test]
fn connections_and_consumers_are_listed_in_several_turns_which_serve_publishers() {
    let (mut cluster, mut publisher) = with_queues();
    let clients: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = cluster.client(0);
            client.consume(&mut cluster, "listed-1");
            client
        })
        .collect();
    let (connections, turns) = list_while_publishing(&mut cluster, &mut publisher, |reply| {
        ControlRequest::Connections { reply }
    });
    assert_eq!(connections.len(), clients.len() + 1);
    assert!(turns > 1, "{turns} turns");
    let (tell, told) = mpsc::channel();
    let reply = Box::new(move |answer| drop(tell.send(answer)));
    cluster.begin(0, ControlRequest::Consumers { reply });
    let consumers = cluster.until("answer", |_| told.try_recv().ok());
    assert_eq!(consumers.len(), clients.len());
}

#[test]
fn a_queue_that_is_deleted_during_a_listing_is_left_out() {
    let (mut cluster, _) = with_queues();
    let (tell, told) = mpsc::channel();
    let reply = Box::new(move |answer| drop(tell.send(answer)));
    let only = None;
    cluster.begin(0, ControlRequest::Queues { only, reply });
    cluster.turn(0);
    assert!(told.try_recv().is_err(), "the listing is not done");
    let last = format!("listed-{}", QUEUES - 1);
    cluster.change(Change::DeleteQueue {
        vhost: "/".into(),
        name: last.into(),
        id: None,
    });
    let facts = cluster.until("answer", |_| told.try_recv().ok());
    let mut ids: Vec<QueueId> = facts.iter().map(|f| f.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), facts.len(), "each queue once");
    assert!(facts.len() == QUEUES, "{} queues", facts.len());
}
