//! A member that lost its data directory and comes back under its name is replaced, whatever only its disk had.

use crate::cluster::mqtt::MqttClient;
use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use codec_mqtt::Qos;
use control::ControlRequest;
use env::NodeId;
use message::Value;
use metadata::QueueId;

fn quorum() -> Vec<(&'static str, Value)> {
    vec![("x-queue-type", Value::from("quorum"))]
}

fn ids(list: &[u64]) -> Vec<NodeId> {
    list.iter().map(|n| NodeId(*n)).collect()
}

fn sorted(mut nodes: Vec<NodeId>) -> Vec<NodeId> {
    nodes.sort_unstable();
    nodes
}

/// Three nodes with a quorum queue and a classic queue on the second one, which loses its directory and comes back.
fn replaced() -> (Cluster, Client, usize) {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "quorum", &quorum());
    let mut other = c.client(1);
    other.declare(&mut c, "classic", &[]);
    c.kill(1);
    let new = c.lose_directory(1);
    (c, client, new)
}

fn until_replaced(c: &mut Cluster) {
    let want = ids(&[1, 3, 4]);
    c.until("the old self is in no group", |c| {
        let voters = c.queue(0, "quorum").map(|q| q.members).unwrap_or_default();
        let known = sorted(c.nodes_known(0));
        let metadata = sorted(c.metadata_voters(0));
        (known == want && sorted(voters) == want && metadata == want).then_some(())
    });
}

#[test]
fn old_self_is_replaced_while_it_was_the_home_of_a_durable_classic_queue() {
    let (mut c, mut client, _) = replaced();
    until_replaced(&mut c);
    c.kill(2);
    client.publish(&mut c, "", "quorum", &Properties::default(), b"body");
    c.until("two of three go on", |c| {
        (c.ready(0, "quorum") == 1).then_some(())
    });
}

fn lost(c: &mut Cluster, at: usize) -> Vec<(String, String)> {
    c.ask(at, |reply| {
        ControlRequest::Read(Box::new(move |tree| {
            let named = |(id, node): (QueueId, &metadata::Name)| {
                let queue = tree.queue_by_id(id)?;
                Some((queue.name.to_string(), node.to_string()))
            };
            reply(tree.lost_queues().filter_map(named).collect());
        }))
    })
}

fn declare(queue: &str) -> Method<'_> {
    Method::QueueDeclare {
        queue,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Default::default(),
    }
}

#[test]
fn queue_whose_only_copy_is_lost_waits_for_its_deletion() {
    let (mut c, _, new) = replaced();
    until_replaced(&mut c);
    for at in [0, 2] {
        assert_eq!(lost(&mut c, at), [("classic".to_owned(), "n2".to_owned())]);
    }
    c.until("the new self listens", |c| c.listens(new).then_some(()));
    let consume = Method::BasicConsume {
        queue: "classic",
        consumer_tag: "",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments: Default::default(),
    };
    let get = Method::BasicGet {
        queue: "classic",
        no_ack: true,
    };
    for at in [0, new] {
        for method in [declare("classic"), consume.clone(), get.clone()] {
            let mut client = c.client(at);
            let refused = client.ask(&mut c, 1, method).expect_err("lost");
            for part in [
                "queue 'classic' in vhost '/' is lost",
                "node 'n2'",
                "delete the queue",
            ] {
                assert!(refused.contains(part), "{refused}");
            }
        }
    }
    let mut client = c.client(0);
    client.call(
        &mut c,
        1,
        Method::QueueDelete {
            queue: "classic",
            if_unused: false,
            if_empty: false,
            no_wait: false,
        },
    );
    assert!(lost(&mut c, 0).is_empty());
    client.declare(&mut c, "classic", &[]);
    client.publish(&mut c, "", "classic", &Properties::default(), b"new");
    assert_eq!(client.must_get(&mut c, "classic").body, b"new"[..]);
}

#[test]
fn lost_queue_does_not_hold_up_messages_to_other_queues() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare_exchange(&mut c, "all", "fanout");
    client.declare(&mut c, "here", &[]);
    let mut other = c.client(1);
    other.declare(&mut c, "there", &[]);
    for queue in ["here", "there"] {
        client.bind(&mut c, queue, "all", "", &[]);
    }
    c.kill(1);
    c.lose_directory(1);
    c.until("lost", |c| (!lost(c, 0).is_empty()).then_some(()));
    let confirms = Method::ConfirmSelect { no_wait: false };
    client.call(&mut c, 1, confirms);
    let body = Properties::default();
    client.publish(&mut c, "all", "", &body, b"both");
    let answer = client.next_method(&mut c);
    assert!(answer.contains("BasicAck"), "{answer}");
    assert_eq!(c.ready(0, "here"), 1);
    // With nowhere else to go it is refused, not dropped.
    client.publish(&mut c, "", "there", &body, b"lost");
    let answer = client.next_method(&mut c);
    assert!(answer.contains("BasicNack"), "{answer}");
}

#[test]
fn client_of_a_lost_mqtt_session_gets_a_new_one() {
    let mut c = Cluster::new(3);
    let mut device = MqttClient::new(&mut c, 1, "device", 3600, None);
    device.subscribe(&mut c, "a/b", Qos::AtLeastOnce);
    c.until("subscribed", |c| {
        let said = device.said(c);
        said.iter().any(|s| s.contains("SubAck")).then_some(())
    });
    device.cut(&mut c);
    c.kill(1);
    c.lose_directory(1);
    c.until("the session is over", |c| {
        (c.nodes_known(0) == ids(&[1, 3, 4]) && !c.knows(0, "mqtt-subscription-deviceqos1"))
            .then_some(())
    });
    let mut device = MqttClient::new(&mut c, 0, "device", 3600, None);
    c.until("connected", |c| {
        let said = device.said(c);
        let answer = said.first()?;
        assert_eq!(answer, "CONNACK Success false");
        Some(())
    });
}

/// It is not what the others depend on, and must not be kept from being replaced.
#[test]
fn isolated_node_is_not_quorum_critical() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "quorum", &quorum());
    let critical = |c: &mut Cluster, at| {
        c.ask(at, |reply| ControlRequest::QuorumCritical { reply })
            .len()
    };
    c.cut_off(2);
    c.until("the others need each other", |c| {
        (critical(c, 0) == 2 && critical(c, 1) == 2).then_some(())
    });
    assert_eq!(critical(&mut c, 2), 0);
}

/// The leader's list of voters counts, not the nodes that run: the new self votes when it has caught up.
#[test]
fn nodes_are_critical_until_the_new_self_has_the_old_ones_votes() {
    let (mut c, _, _) = replaced();
    let critical = |c: &mut Cluster, at| {
        c.ask(at, |reply| ControlRequest::QuorumCritical { reply })
            .len()
    };
    assert!(critical(&mut c, 0) > 0);
    until_replaced(&mut c);
    c.until("nobody is needed", |c| {
        (critical(c, 0) + critical(c, 2) == 0).then_some(())
    });
}
