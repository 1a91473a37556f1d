//! Messages of a shared subscription in the queue of a kept session that ends: other members get them (section 4.8.2).

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_mqtt::{AckKind, Connect, Disconnect, Packet, Properties, Qos, ReasonCode, Version};
use metadata::{Change, QueueType};
use std::collections::BTreeSet;
use std::time::Duration;

const SHARE: &str = "$share/g/a";
const QUEUE: &str = "mqtt-subscription-leavingqos1";
/// More than a client is sent before it acknowledges.
const COUNT: usize = 40;

/// How the session ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Expires,
    Disconnect,
    CleanStart,
}

fn cluster_of(kind: QueueType) -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(kind),
    });
    cluster
}

fn connect(cluster: &mut Cluster, at: usize, client_id: &str, expiry: u32) -> MqttClient {
    let mut client = MqttClient::new(cluster, at, client_id, expiry, None);
    cluster.until("CONNACK", |c| client.said(c).pop());
    client
}

fn member(cluster: &mut Cluster, at: usize, client_id: &str, expiry: u32) -> MqttClient {
    let mut member = connect(cluster, at, client_id, expiry);
    member.subscribe(cluster, SHARE, Qos::ExactlyOnce);
    cluster.until("SUBACK", |c| member.said(c).pop());
    member
}

fn publish(cluster: &mut Cluster, qos: Qos) {
    let mut publisher = connect(cluster, 2, "p", 0);
    for n in 0..COUNT {
        let payload = format!("{n:02}");
        publisher.publish(cluster, "a", qos, payload.as_bytes(), Properties::default());
        cluster.until("the answer", |c| publisher.said(c).pop());
        if qos == Qos::ExactlyOnce {
            publisher.answer(cluster, AckKind::PubRel, 1);
            cluster.until("PUBCOMP", |c| publisher.said(c).pop());
        }
    }
}

fn payloads(said: &[String]) -> BTreeSet<String> {
    let peer_messages = said.iter().filter_map(|said| said.strip_prefix("a "));
    peer_messages.map(|said| said[..2].to_owned()).collect()
}

fn end(cluster: &mut Cluster, mut leaving: MqttClient, at: usize, how: End) {
    match how {
        End::Expires => {
            leaving.cut(cluster);
            cluster.pass(Duration::from_secs(12));
        }
        End::Disconnect => {
            let properties = Properties {
                session_expiry: Some(0),
                ..Properties::default()
            };
            let reason = ReasonCode::Success;
            leaving.send(
                cluster,
                &Packet::Disconnect(Disconnect { reason, properties }),
            );
        }
        End::CleanStart => {
            let connect = Connect {
                version: Version::V5,
                clean_start: true,
                keep_alive: 0,
                properties: Properties::default(),
                client_id: "leaving",
                will: None,
                user_name: Some("guest"),
                password: Some(b"guest"),
            };
            let mut anew = MqttClient::with(cluster, at, connect);
            let said = cluster.until("CONNACK", |c| anew.said(c).into_iter().next());
            assert_eq!(said, "CONNACK Success false");
        }
    }
    for at in 0..3 {
        cluster.until("the queue's end", |c| (!c.knows(at, QUEUE)).then_some(()));
    }
}

/// What the member that stays gets of the other one's messages, and what that one had been sent.
fn handed_over(
    kind: QueueType,
    qos: Qos,
    (how, again_at): (End, usize),
    staying_expiry: u32,
) -> [BTreeSet<String>; 2] {
    let mut cluster = cluster_of(kind);
    let mut leaving = member(&mut cluster, 0, "leaving", 10);
    publish(&mut cluster, qos);
    cluster.pass(Duration::from_millis(200));
    let sent = payloads(&leaving.said(&mut cluster));
    assert!(!sent.is_empty() && sent.len() < COUNT, "some wait");
    let mut staying = member(&mut cluster, 1, "staying", staying_expiry);
    end(&mut cluster, leaving, again_at, how);
    let mut got = Vec::new();
    let mut answered = 0;
    for _ in 0..50 {
        cluster.pass(Duration::from_millis(20));
        got.extend(staying.said(&mut cluster));
        // It takes more when it has acknowledged.
        let all: Vec<String> = payloads(&got).into_iter().collect();
        for payload in all.iter().skip(answered) {
            let id = staying.packet_id_of(payload);
            match qos {
                Qos::ExactlyOnce => {
                    staying.answer(&mut cluster, AckKind::PubRec, id);
                    staying.answer(&mut cluster, AckKind::PubComp, id);
                }
                _ => staying.answer(&mut cluster, AckKind::PubAck, id),
            }
        }
        answered = all.len();
    }
    [payloads(&got), sent]
}

fn all() -> BTreeSet<String> {
    (0..COUNT).map(|n| format!("{n:02}")).collect()
}

#[test]
fn another_member_gets_unread_and_unacknowledged_messages_when_the_session_ends() {
    for kind in [QueueType::Quorum, QueueType::Classic] {
        for how in [End::Expires, End::Disconnect, End::CleanStart] {
            for staying_expiry in [0, 60] {
                let [got, _] = handed_over(kind, Qos::AtLeastOnce, (how, 0), staying_expiry);
                assert_eq!(got, all(), "{kind:?} {how:?} {staying_expiry}");
            }
        }
    }
}

#[test]
fn another_member_gets_the_messages_when_the_client_begins_anew_at_another_node() {
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let [got, _] = handed_over(kind, Qos::AtLeastOnce, (End::CleanStart, 2), 60);
        assert_eq!(got, all(), "{kind:?}");
    }
}

#[test]
fn message_of_qos_2_that_was_sent_goes_to_nobody_else() {
    // [MQTT-4.8.2-5]
    for how in [End::Expires, End::Disconnect, End::CleanStart] {
        let [got, sent] = handed_over(QueueType::Quorum, Qos::ExactlyOnce, (how, 0), 60);
        let unsent: BTreeSet<String> = all().difference(&sent).cloned().collect();
        assert_eq!(got, unsent, "{how:?}");
    }
}
