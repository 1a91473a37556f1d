//! What a client has completed, and the queue of its session has not heard of when somebody takes it away (section 4.3.3).
#![forbid(unsafe_code)]

mod cluster;

use cluster::Cluster;
use cluster::mqtt::MqttClient;
use codec_mqtt::{AckKind, Properties, Qos};
use metadata::{Change, QueueKind};

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
fn session(kind: QueueKind) -> (Cluster, [usize; 3]) {
    let mut cluster = Cluster::new(3);
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

/// The client comes again, and what it is told until this comes that is published then.
fn told_until(cluster: &mut Cluster, at: usize, payload: &str) -> Vec<String> {
    let (mut keeper, mut said) = connected(cluster, at);
    publish(cluster, at, payload);
    let last = format!("a {payload} q2 []");
    cluster.until("the next message", |c| {
        said.extend(keeper.said(c));
        said.contains(&last).then_some(())
    });
    said
}

/// A connection's request to the queue is on its way for long. Its client goes on at another node, and completes a message while
/// that node's words are on their way, too: the first request comes, takes the queue from the second connection, and then what
/// that one was done with is nothing to the queue.
#[test]
fn a_completed_message_is_not_sent_again_when_an_earlier_connection_takes_the_queue() {
    for kind in [QueueKind::Quorum, QueueKind::Classic] {
        let (mut cluster, [_, early, late]) = session(kind);
        cluster.delay_requests(early);
        let left = MqttClient::new(&mut cluster, early, "k", 60, None);
        left.cut(&mut cluster);
        let mut keeper = keeper(&mut cluster, late, &["1", "2", "3"]);
        cluster.delay_requests(late);
        // The first is completed, the second was received, the third may not have come.
        complete(&mut cluster, &mut keeper, "1");
        let second = keeper.packet_id_of("2");
        keeper.answer(&mut cluster, AckKind::PubRec, second);
        keeper.said(&mut cluster);
        cluster.let_through(early);
        let told = cluster.until("the end", |c| keeper.said(c).pop());
        assert_eq!(told, "DISCONNECT ImplementationSpecificError");
        cluster.let_through(late);
        let told = told_until(&mut cluster, late, "4");
        let expected = [
            "CONNACK Success true",
            "PubRel Success",
            "a 3 q2 []",
            "a 4 q2 []",
        ];
        assert_eq!(told, expected, "{kind:?}");
        let stats = cluster.queue(0, SESSION).and_then(|q| q.stats);
        assert_eq!(stats.map(|s| (s.ready, s.unacknowledged)), Some((0, 3)));
    }
}
