//! What the control plane asks of a cluster beyond its tree: who is connected, who consumes, what was counted; a connection
//! closed from afar; messages published and looked at.

use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Cluster, persistent};
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use control::{
    ControlRequest, Counters, MessageCounts, PublishResult, TrafficFacts, TrafficFilter,
};
use env::NodeId;
use message::{Table, Value};
use metadata::{Change, ChangeError, QueueId};
use queue::{Delivery, QueueType, SettlementOutcome};

fn connections(c: &mut Cluster, at: usize) -> Vec<control::ConnectionFacts> {
    let mut all = c.ask(at, |reply| ControlRequest::Connections { reply });
    all.sort_by_key(|c| c.node);
    all
}

fn counters(c: &mut Cluster, at: usize) -> Vec<(NodeId, Counters)> {
    c.ask(at, |reply| ControlRequest::Counters {
        everywhere: true,
        reply,
    })
}

fn publish(c: &mut Cluster, at: usize, key: &'static str) -> Result<PublishResult, ChangeError> {
    c.ask(at, |reply| ControlRequest::Publish {
        vhost: "/".into(),
        user: "guest".into(),
        build: Box::new(persistent(key, b"body")),
        reply,
    })
}

fn get(
    c: &mut Cluster,
    at: usize,
    queue: QueueId,
    count: u32,
    settle: SettlementOutcome,
) -> Result<Vec<Delivery>, ChangeError> {
    c.ask(at, |reply| ControlRequest::Get {
        queue,
        user: "guest".into(),
        count,
        bytes: 1 << 20,
        settle,
        reply,
    })
}

fn quorum() -> [(&'static str, Value); 1] {
    [("x-queue-type", Value::from("quorum"))]
}

#[test]
fn every_node_knows_the_clients_of_all() {
    let mut c = Cluster::new(3);
    let mut first = c.client(1);
    let mut second = c.client(2);
    first.declare(&mut c, "q", &quorum());
    second.call(
        &mut c,
        1,
        Method::BasicConsume {
            queue: "q",
            consumer_tag: "t",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::default(),
        },
    );
    first.publish(&mut c, "", "q", &Properties::default(), b"one");
    for at in 0..3 {
        let all = connections(&mut c, at);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].node, all[1].node), (NodeId(2), NodeId(3)));
        assert_eq!(
            (all[0].user.as_str(), all[0].vhost.as_str()),
            ("guest", "/")
        );
        assert_eq!(
            (all[0].state.as_str(), all[0].protocol.as_str()),
            ("running", "amqp091")
        );
        assert_eq!(all[0].channels.len(), 1);
        assert_eq!(all[0].channels[0].counts.publish, 1);
        assert!(all[0].received_bytes > 0);
        assert_eq!(all[0].auth_mechanism, "PLAIN");
        let consumers = c.ask(at, |reply| ControlRequest::Consumers { reply });
        assert_eq!(consumers.len(), 1);
        assert_eq!(consumers[0].session_node, 3);
        assert_eq!(consumers[0].session_number, all[1].number);
        assert!(consumers[0].active);
        for (node, counters) in counters(&mut c, at) {
            let resources = counters
                .resources
                .expect("every node reports its resources");
            assert_eq!(resources.memory_used, Some(node.0));
            assert!(resources.uptime_s.is_some());
        }
    }
    let own = c.ask(1, |reply| ControlRequest::Counters {
        everywhere: false,
        reply,
    });
    assert_eq!(
        (own.len(), own[0].0, own[0].1.connections),
        (1, NodeId(2), 1)
    );
    let all = counters(&mut c, 0);
    assert_eq!(all.len(), 3);
    let mut sum = Counters::default();
    all.iter().for_each(|(_, one)| sum.add(one));
    assert_eq!(
        (sum.connections, sum.connections_opened, sum.channels),
        (2, 2, 2)
    );
    assert_eq!((sum.queues.queues, sum.queues.consumers), (1, 1));
    let amqp = &sum.protocols["amqp091"];
    assert_eq!((amqp.received, amqp.routed), (1, 1));
    assert_eq!(amqp.by_queue_type[QueueType::Quorum].deliver, 1);
    assert_eq!(
        amqp.by_queue_type[QueueType::Classic],
        MessageCounts::default()
    );
}

#[test]
fn connections_of_a_deleted_user_are_closed() {
    let mut c = Cluster::new(3);
    let client = c.client(1);
    assert_eq!(connections(&mut c, 0).len(), 1);
    c.change(Change::DeleteUser {
        name: "guest".into(),
    });
    let mut got = Vec::new();
    c.until("closed", |c| {
        client.take_raw(c, |bytes| got.extend_from_slice(bytes));
        let text = b"CONNECTION_FORCED - user 'guest' is deleted";
        got.windows(text.len()).any(|w| w == text).then_some(())
    });
}

#[test]
fn connections_to_a_deleted_vhost_are_closed() {
    let mut c = Cluster::new(1);
    let client = c.client(0);
    c.change(Change::DeleteVhost { name: "/".into() });
    let mut got = Vec::new();
    c.until("closed", |c| {
        client.take_raw(c, |bytes| got.extend_from_slice(bytes));
        let text = b"CONNECTION_FORCED - vhost '/' is deleted";
        got.windows(text.len()).any(|w| w == text).then_some(())
    });
}

#[test]
fn a_connection_is_closed_from_another_node() {
    let mut c = Cluster::new(3);
    let _client = c.client(2);
    let name = connections(&mut c, 0)[0].name.clone();
    let mut close = |name: &str| {
        let name = name.to_owned();
        c.ask(0, |reply| ControlRequest::CloseConnection {
            name,
            reason: "enough".into(),
            reply,
        })
    };
    assert!(!close("nobody"));
    assert!(close(&name));
    let state = connections(&mut c, 0)[0].state.clone();
    assert_eq!(state, "closing");
}

#[test]
fn a_node_that_is_gone_keeps_nobody_waiting() {
    let mut c = Cluster::new(3);
    let _stays = c.client(1);
    let _goes = c.client(2);
    c.kill(2);
    let all = connections(&mut c, 0);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].node, NodeId(2));
}

#[test]
fn messages_are_published_looked_at_and_taken() {
    for kind in ["quorum", "classic"] {
        let mut c = Cluster::new(3);
        let mut client = c.client(1);
        client.declare(&mut c, "q", &[("x-queue-type", Value::from(kind))]);
        let queue = c.queue(0, "q").unwrap().id;
        for _ in 0..3 {
            let published = publish(&mut c, 2, "q").unwrap();
            assert_eq!(
                published,
                PublishResult {
                    routed: true,
                    taken: true
                }
            );
        }
        assert!(!publish(&mut c, 2, "nowhere").unwrap().routed);
        // More often than a quorum queue allows failed attempts.
        for _ in 0..25 {
            let seen = get(&mut c, 0, queue, 2, SettlementOutcome::Released).unwrap();
            assert_eq!(seen.len(), 2, "{kind}");
            assert_eq!(seen[0].attempts.unwrap_or(0), 0, "{kind}");
        }
        c.until("given back", |c| (c.ready(0, "q") == 3).then_some(()));
        let taken = get(&mut c, 0, queue, 2, SettlementOutcome::Accepted).unwrap();
        assert_eq!(taken.len(), 2);
        assert_eq!(taken[0].message.body(), &b"body"[..]);
        c.until("taken", |c| (c.ready(0, "q") == 1).then_some(()));
        assert_eq!(
            get(&mut c, 0, queue, 9, SettlementOutcome::Rejected)
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            get(&mut c, 0, queue, 9, SettlementOutcome::Requeue)
                .unwrap()
                .len(),
            0
        );
        let stats = c.queue(0, "q").unwrap();
        assert_eq!(stats.stats.unwrap().unacknowledged, 0);
        assert_eq!(stats.counters.publish, 3);
        assert_eq!(stats.counters.deliveries.get_no_ack, 2);
        let gone = get(&mut c, 0, QueueId(u64::MAX), 1, SettlementOutcome::Requeue);
        assert!(matches!(gone, Err(ChangeError::NotFound(_))), "{gone:?}");
    }
}

#[test]
fn a_queue_without_a_majority_is_answered_for_in_time() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum());
    let queue = c.queue(0, "q").unwrap().id;
    publish(&mut c, 0, "q").unwrap();
    c.kill(1);
    c.kill(2);
    let refused = publish(&mut c, 0, "q");
    assert!(
        matches!(refused, Err(ChangeError::Unavailable(_))),
        "{refused:?}"
    );
    let refused = get(&mut c, 0, queue, 1, SettlementOutcome::Requeue);
    assert!(
        matches!(refused, Err(ChangeError::Unavailable(_))),
        "{refused:?}"
    );
}

fn traffic(c: &mut Cluster, at: usize, exchanges: &[&str]) -> TrafficFacts {
    let named = |name: &&str| ("/".to_owned(), (*name).to_owned());
    let of = TrafficFilter {
        vhosts: vec!["/".to_owned(), "none".to_owned()],
        exchanges: exchanges.iter().map(named).collect(),
    };
    c.ask(at, |reply| ControlRequest::Traffic { of, reply })
}

#[test]
fn virtual_hosts_and_exchanges_are_counted_on_every_node() {
    let mut c = Cluster::new(2);
    let (mut first, mut second) = (c.client(0), c.client(1));
    for queue in ["a", "b"] {
        first.declare(&mut c, queue, &quorum());
        first.bind(&mut c, queue, "amq.fanout", "", &[]);
    }
    c.until("known", |c| c.knows(1, "b").then_some(()));
    let nothing = Properties::default();
    first.publish(&mut c, "amq.fanout", "", &nothing, b"to both");
    second.publish(&mut c, "amq.fanout", "", &nothing, b"to both");
    second.publish(&mut c, "amq.direct", "none", &nothing, b"to nobody");
    first.publish(&mut c, "", "a", &nothing, b"to one");
    publish(&mut c, 0, "a").expect("published");
    // What was published in a transaction counts when it is committed.
    first.call(&mut c, 2, Method::ChannelOpen {});
    first.call(&mut c, 2, Method::TxSelect {});
    first.publish_on(&mut c, 2, "amq.fanout", "");
    first.call(&mut c, 2, Method::TxRollback {});
    first.publish_on(&mut c, 2, "amq.fanout", "");
    first.call(&mut c, 2, Method::TxCommit {});
    let mut mqtt = MqttClient::new(&mut c, 1, "m", 0, None);
    mqtt.subscribe(&mut c, "t/#", Qos::AtLeastOnce);
    c.pass(std::time::Duration::from_millis(100));
    mqtt.publish(
        &mut c,
        "t/1",
        Qos::AtMostOnce,
        b"to itself",
        Default::default(),
    );
    second.publish(&mut c, "amq.topic", "t.2", &nothing, b"to the same");
    second.get(&mut c, "a").expect("a message");
    // A client that is gone has done what it has done.
    second.close(&mut c);
    let names = [
        "",
        "amq.fanout",
        "amq.direct",
        "amq.topic",
        "amq.match",
        "none",
    ];
    for at in 0..2 {
        let facts = traffic(&mut c, at, &names);
        let of = |name| {
            let counts = facts.exchange("/", name);
            (counts.publish_in, counts.publish_out)
        };
        assert_eq!(
            names.map(of),
            [(2, 2), (3, 6), (1, 0), (2, 2), (0, 0), (0, 0)]
        );
        assert_eq!(facts.exchanges["/"].len(), 4, "no more than was used");
        let there: Vec<_> = facts.vhosts.keys().collect();
        assert_eq!(there, ["/"]);
        let counts = facts.vhosts["/"];
        assert_eq!((counts.publish, counts.get), (8, 1));
        assert_eq!((counts.drop_unroutable, counts.confirm), (1, 1));
        assert_eq!(
            counts.deliver + counts.deliver_no_ack,
            2,
            "to the MQTT client"
        );
    }
    let mut sum = Counters::default();
    counters(&mut c, 0).iter().for_each(|(_, one)| sum.add(one));
    assert_eq!(sum.messages(), traffic(&mut c, 0, &[]).vhosts["/"]);
}

/// An entry of the metadata log that cannot be read ends every node that comes to it. What clients may send is nested deeper than its tables.
#[test]
fn a_change_that_could_not_be_read_again_does_not_come_into_the_log() {
    let mut c = Cluster::new(3);
    let deep = (1..20).fold(Value::Void, |inner, _| Value::Array(vec![inner]));
    let refused = "arguments are nested deeper than 16";
    for at in 0..3 {
        let mut client = c.client(at);
        let declare = Method::QueueDeclare {
            queue: "deep",
            passive: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            no_wait: false,
            arguments: crate::cluster::arguments(&[("a", deep.clone())]),
        };
        let answer = client.ask(&mut c, 1, declare).map(drop);
        assert_eq!(answer, Err(format!("PRECONDITION_FAILED - {refused}")));
        let change = Change::Bind(metadata::BindingRecord {
            vhost: "/".into(),
            source: "amq.topic".into(),
            destination: metadata::Destination::Exchange("amq.direct".into()),
            routing_key: "".into(),
            arguments: crate::cluster::arguments(&[("a", deep.clone())]),
        });
        let answer = c.ask(at, |reply| ControlRequest::Change { change, reply });
        assert_eq!(
            answer.map(drop),
            Err(ChangeError::PreconditionFailed(refused.into()))
        );
    }
    let mut client = c.client(0);
    client.declare(&mut c, "after", &[]);
    c.until("every node has it", |c| {
        (0..3).all(|at| c.knows(at, "after")).then_some(())
    });
}

#[test]
fn raft_groups_and_won_elections_are_counted() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[("x-queue-type", "quorum".into())]);
    let leader = c.until("a leader", |c| c.queue(1, "q")?.leader);
    let leader = leader.0 as usize - 1;
    let before = counters(&mut c, 1).into_iter();
    let before: Vec<_> = before.map(|(_, one)| one.raft).collect();
    // The metadata and the queue.
    let groups: Vec<u64> = before.iter().map(|raft| raft.groups).collect();
    assert_eq!(groups, [2, 2, 2]);
    let won: u64 = before.iter().map(|raft| raft.elections_won).sum();
    assert_eq!(won, 2);
    c.kill(leader);
    let at = (leader + 1) % 3;
    c.until("the next leader", |c| {
        let leads = c.queue(at, "q")?.leader?;
        (leads.0 as usize - 1 != leader).then_some(())
    });
    let after = counters(&mut c, at);
    assert_eq!(after.len(), 2);
    let won_since: u64 = after.iter().map(|(_, one)| one.raft.elections_won).sum();
    let of_the_dead = before[leader].elections_won;
    assert!(won_since > won - of_the_dead, "{won_since} elections");
}
