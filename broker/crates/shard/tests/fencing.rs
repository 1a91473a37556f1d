//! What a client's earlier connection asked for and what its later one was told, through everything between their bytes.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use bytes::BytesMut;
use codec_mqtt::{Packet, Properties, Qos, Unsubscribe, UnsubscribeFilters};
use metadata::{Change, QueueType};
use std::time::Duration;

const SESSION: &str = "mqtt-subscription-kqos1";

/// Queues of sessions are quorum queues.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(QueueType::Quorum),
    });
    cluster
}

fn subscribed(cluster: &mut Cluster, at: usize, filter: &str) -> MqttClient {
    let mut keeper = MqttClient::new(cluster, at, "k", 60, None);
    cluster.until("CONNACK", |c| keeper.said(c).pop());
    keeper.subscribe(cluster, filter, Qos::AtLeastOnce);
    cluster.until("SUBACK", |c| keeper.said(c).pop());
    keeper
}

fn unsubscribe(cluster: &mut Cluster, client: &mut MqttClient, filter: &str) {
    let mut raw = BytesMut::new();
    UnsubscribeFilters::put(&mut raw, filter);
    let unsubscribe = Unsubscribe {
        packet_id: 2,
        properties: Properties::default(),
        filters: UnsubscribeFilters::new(&raw),
    };
    client.send(cluster, &Packet::Unsubscribe(unsubscribe));
}

/// What is published at the second node gets this answer.
fn publish(cluster: &mut Cluster) -> String {
    let mut publisher = MqttClient::new(cluster, 1, "p", 0, None);
    cluster.until("CONNACK", |c| publisher.said(c).pop());
    let qos = Qos::AtLeastOnce;
    publisher.publish(cluster, "a", qos, b"1", Properties::default());
    cluster.until("PUBACK", |c| publisher.said(c).pop())
}

/// A node that is cut off is asked to end a subscription. Its client goes on elsewhere, and subscribes: when the node is back
/// its change comes into the log behind that.
fn late_unsubscribe() -> String {
    let mut cluster = cluster();
    let mut left = subscribed(&mut cluster, 0, "a");
    cluster.until("the queue", |c| c.knows(2, SESSION).then_some(()));
    cluster.cut_off(0);
    unsubscribe(&mut cluster, &mut left, "a");
    let keeper = subscribed(&mut cluster, 2, "a");
    cluster.link(0);
    cluster.pass(Duration::from_secs(5));
    let told = publish(&mut cluster);
    if told == "PubAck Success" {
        // What the cut off node still had to say to the queue may have ended the connection.
        keeper.cut(&mut cluster);
        let mut keeper = MqttClient::new(&mut cluster, 2, "k", 60, None);
        let mut said = Vec::new();
        cluster.until("the message", |c| {
            said.extend(keeper.said(c));
            said.iter().any(|s| s.contains("a 1 q1")).then_some(())
        });
        unsubscribe(&mut cluster, &mut keeper, "a");
        cluster.until("UNSUBACK", |c| keeper.said(c).pop());
        assert_eq!(publish(&mut cluster), "PubAck NoMatchingSubscribers");
    }
    told
}

#[test]
fn a_subscription_that_was_acknowledged_is_not_undone_by_an_earlier_connection() {
    assert_eq!(late_unsubscribe(), "PubAck Success");
}

#[test]
fn a_shared_subscription_that_is_changed_counts_on_every_node() {
    let mut cluster = cluster();
    let share = "$share/g/a";
    let mut keeper = subscribed(&mut cluster, 0, share);
    keeper.subscribe(&mut cluster, share, Qos::ExactlyOnce);
    cluster.until("SUBACK", |c| keeper.said(c).pop());
    assert_eq!(publish(&mut cluster), "PubAck Success");
    let got = cluster.until("the message", |c| keeper.said(c).pop());
    assert_eq!(got, "a 1 q1 []");
}
