//! What a client has completed, and the queue of its session has not heard of when somebody takes it away (section 4.3.3).

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_mqtt::{AckKind, Properties, Qos};
use metadata::{Change, QueueType};
use std::time::Duration;

const SESSION: &str = "mqtt-subscription-kqos1";

fn connected(cluster: &mut Cluster, at: usize) -> (MqttClient, Vec<String>) {
    let mut client = MqttClient::new(cluster, at, "k", 60, None);
    let mut said = Vec::new();
    cluster.until("CONNACK", |c| {
        said.extend(client.said(c));
        said.iter().any(|s| s.starts_with("CONNACK")).then_some(())
    });
    (client, said)
}

fn publish(cluster: &mut Cluster, at: usize, payload: &str) {
    let mut publisher = MqttClient::new(cluster, at, "p", 0, None);
    cluster.until("CONNACK", |c| publisher.said(c).pop());
    let properties = Properties::default();
    publisher.publish(
        cluster,
        "a",
        Qos::ExactlyOnce,
        payload.as_bytes(),
        properties,
    );
    cluster.until("PUBREC", |c| publisher.said(c).pop());
}

/// A cluster, the node that has the session's queue, and the two others.
fn session(mut cluster: Cluster, kind: QueueType) -> (Cluster, [usize; 3]) {
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(kind),
    });
    let (mut client, _) = connected(&mut cluster, 0);
    client.subscribe(&mut cluster, "a", Qos::ExactlyOnce);
    cluster.until("SUBACK", |c| client.said(c).pop());
    client.cut(&mut cluster);
    let leader = cluster.until("a leader", |c| c.queue(0, SESSION)?.leader);
    let leader = leader.0 as usize - 1;
    (cluster, [leader, (leader + 1) % 3, (leader + 2) % 3])
}

/// The client at a node with these messages under way to it.
fn keeper(cluster: &mut Cluster, at: usize, payloads: &[&str]) -> MqttClient {
    let (mut keeper, _) = connected(cluster, at);
    // Those that an earlier life of the node may have used are released.
    for id in 1..=64 {
        keeper.answer(cluster, AckKind::PubComp, id);
    }
    let mut missing: Vec<String> = payloads.iter().map(|p| format!("a {p} q2 []")).collect();
    for payload in payloads {
        publish(cluster, at, payload);
    }
    cluster.until("the messages", |c| {
        let said = keeper.said(c);
        missing.retain(|message| !said.contains(message));
        missing.is_empty().then_some(())
    });
    keeper
}

fn complete(cluster: &mut Cluster, keeper: &mut MqttClient, payload: &str) {
    let id = keeper.packet_id_of(payload);
    for kind in [AckKind::PubRec, AckKind::PubComp] {
        keeper.answer(cluster, kind, id);
    }
    keeper.said(cluster);
}

/// The same where queues know which connection asked for the session last: the late request changes nothing.
#[test]
fn an_earlier_connection_does_not_take_the_queue_from_a_later_one() {
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let (mut cluster, [_, early, late]) = session(Cluster::new(3), kind);
        cluster.delay_requests(early);
        let left = MqttClient::new(&mut cluster, early, "k", 60, None);
        left.cut(&mut cluster);
        let mut keeper = keeper(&mut cluster, late, &["1"]);
        cluster.let_through(early);
        complete(&mut cluster, &mut keeper, "1");
        publish(&mut cluster, late, "2");
        cluster.until("the next message", |c| {
            let said = keeper.said(c);
            said.contains(&"a 2 q2 []".to_owned()).then_some(())
        });
    }
}

/// A node is cut off with a connection, and hears no more of what its client does: that goes on at another node, receives messages
/// there, and comes back when the node is linked again and the other one is gone. The client waits for PUBREL of a message, and would
/// take a new one under its identifier for that [MQTT-4.3.3-10]: all that it may wait for is let go.
#[test]
fn a_node_that_was_cut_off_lets_go_what_another_one_sent_its_client() {
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let (mut cluster, [_, first, other]) = session(Cluster::new(3), kind);
        let mut before = keeper(&mut cluster, first, &["1"]);
        complete(&mut cluster, &mut before, "1");
        cluster.cut_off(first);
        cluster.pass(Duration::from_secs(3));
        before.cut(&mut cluster);
        let mut elsewhere = keeper(&mut cluster, other, &["2"]);
        let held = elsewhere.packet_id_of("2");
        elsewhere.answer(&mut cluster, AckKind::PubRec, held);
        cluster.kill(other);
        cluster.link(first);
        cluster.pass(Duration::from_secs(3));
        let (_, told) = connected(&mut cluster, first);
        let released = told.iter().filter(|packet| *packet == "PubRel Success");
        let count = released.count();
        assert_eq!(
            (told[0].as_str(), count),
            ("CONNACK Success true", 64),
            "{kind:?}"
        );
    }
}
