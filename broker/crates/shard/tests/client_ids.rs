//! MQTT client ids on several nodes: a client id has one connection in the cluster.

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_mqtt::{Disconnect, Packet, Properties, Qos, ReasonCode, Will};
use metadata::{Change, QueueType};
use std::time::Duration;

fn quorum(cluster: &mut Cluster) {
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(QueueType::Quorum),
    });
}

fn open(cluster: &mut Cluster, at: usize, name: &str, expiry: u32) -> (MqttClient, String) {
    let mut client = MqttClient::new(cluster, at, name, expiry, None);
    let said = cluster.until("CONNACK", |c| client.said(c).into_iter().next());
    (client, said)
}

/// A client that hears wills.
fn watcher(cluster: &mut Cluster, at: usize) -> MqttClient {
    let (mut watcher, _) = open(cluster, at, "watcher", 0);
    watcher.subscribe(cluster, "will", Qos::AtMostOnce);
    assert_eq!(cluster.until("SUBACK", |c| watcher.said(c).pop()), "SubAck");
    watcher
}

fn will(delay: u32) -> Option<Will<'static>> {
    Some(Will {
        qos: Qos::AtMostOnce,
        retain: false,
        properties: Properties {
            will_delay: Some(delay),
            ..Properties::default()
        },
        topic: "will",
        payload: b"gone",
    })
}

#[test]
fn the_connection_on_another_node_is_told_to_leave() {
    let mut cluster = Cluster::new(3);
    // Their owners are different nodes.
    for name in ["a", "b", "c", "d", "e", "f"] {
        for expiry in [0, 60] {
            let (mut before, _) = open(&mut cluster, 0, name, expiry);
            for at in [1, 2, 1, 0] {
                let (after, said) = open(&mut cluster, at, name, expiry);
                // What is to be kept is known everywhere, also without a subscription.
                assert_eq!(said, format!("CONNACK Success {}", expiry > 0));
                let told = before.said(&mut cluster);
                assert_eq!(told, ["DISCONNECT SessionTakenOver"], "{name}");
                before.cut(&mut cluster);
                assert_eq!(cluster.holders(name), 1, "{name}");
                before = after;
            }
            before.cut(&mut cluster);
        }
    }
}

/// The socket of the old connection can be read after the shard has heard of the new one. Section 3.14.4: DISCONNECT
/// drops the will, and may end the session.
#[test]
fn a_disconnect_sent_before_the_next_connection_counts() {
    let mut cluster = Cluster::new(1);
    let mut watcher = watcher(&mut cluster, 0);
    for (expiry, is_kept) in [(None, true), (Some(0), false)] {
        let mut first = MqttClient::new(&mut cluster, 0, "c", 60, will(0));
        cluster.until("CONNACK", |c| first.said(c).pop());
        let mut second = MqttClient::begin(&mut cluster, 0, "c", 60);
        cluster.turn(0);
        let properties = Properties {
            session_expiry: expiry,
            ..Properties::default()
        };
        let reason = ReasonCode::Success;
        first.send(
            &mut cluster,
            &Packet::Disconnect(Disconnect { reason, properties }),
        );
        let said = cluster.until("CONNACK", |c| second.said(c).pop());
        assert_eq!(said, format!("CONNACK Success {is_kept}"));
        assert_eq!(first.said(&mut cluster), [""; 0]);
        first.cut(&mut cluster);
        second.cut(&mut cluster);
    }
    assert_eq!(watcher.said(&mut cluster), [""; 0], "no will");
}

/// The deletion of the session's queue is a change of the metadata, which the next node applies later.
#[test]
fn a_session_that_has_ended_is_not_there_for_the_next_connection() {
    let mut cluster = Cluster::new(3);
    quorum(&mut cluster);
    // Their owners are different nodes.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let (mut before, _) = open(&mut cluster, 0, name, 60);
        for at in [1, 2, 1, 0] {
            let packet = Packet::Disconnect(Disconnect {
                reason: ReasonCode::Success,
                properties: Properties {
                    session_expiry: Some(0),
                    ..Properties::default()
                },
            });
            before.begin_send(&mut cluster, &packet);
            let mut after = MqttClient::begin(&mut cluster, at, name, 60);
            let said = cluster.until("CONNACK", |c| after.said(c).pop());
            assert_eq!(said, "CONNACK Success false", "{name} at {at}");
            cluster.pass(Duration::from_secs(1));
            assert_eq!(after.said(&mut cluster), [""; 0], "it stays connected");
            before.cut(&mut cluster);
            before = after;
        }
    }
}

#[test]
fn a_session_goes_on_at_another_node_while_the_old_connection_is_there() {
    let mut cluster = Cluster::new(3);
    quorum(&mut cluster);
    let (mut first, _) = open(&mut cluster, 0, "k", 60);
    first.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
    cluster.until("SUBACK", |c| first.said(c).pop());
    let (mut publisher, _) = open(&mut cluster, 1, "p", 0);
    for (at, text) in [(2, "x"), (1, "y"), (0, "z")] {
        let (mut next, said) = open(&mut cluster, at, "k", 60);
        assert_eq!(said, "CONNACK Success true");
        let told = first.said(&mut cluster);
        assert_eq!(told, ["DISCONNECT SessionTakenOver"]);
        publisher.publish(
            &mut cluster,
            "a",
            Qos::AtLeastOnce,
            text.as_bytes(),
            Properties::default(),
        );
        let told = cluster.until("PUBACK", |c| publisher.said(c).pop());
        assert_eq!(told, "PubAck Success");
        let wanted = format!("a {text} q1 []");
        cluster.until("the message", |c| {
            next.said(c).contains(&wanted).then_some(())
        });
        first.cut(&mut cluster);
        first = next;
    }
}

/// Section 3.1.3.2.2: who comes back in time, wherever, has no will.
#[test]
fn a_will_that_waits_on_one_node_is_stopped_by_the_client_on_another() {
    for (back, heard) in [(true, 0), (false, 1)] {
        let mut cluster = Cluster::new(3);
        let mut watcher = watcher(&mut cluster, 1);
        let mut client = MqttClient::new(&mut cluster, 0, "c", 60, will(5));
        cluster.until("CONNACK", |c| client.said(c).pop());
        client.cut(&mut cluster);
        cluster.pass(Duration::from_secs(3));
        if back {
            open(&mut cluster, 2, "c", 60);
        }
        cluster.pass(Duration::from_secs(4));
        assert_eq!(watcher.said(&mut cluster).len(), heard);
        assert_eq!(cluster.holders("c"), 1);
    }
}

#[test]
fn whoever_holds_or_owns_an_id_may_die() {
    for killed in 0..3 {
        let mut cluster = Cluster::new(3);
        quorum(&mut cluster);
        let names: Vec<String> = (0..6).map(|n| format!("c{n}")).collect();
        let at = (killed + 1) % 3;
        let mut clients = Vec::new();
        for name in &names {
            clients.push(open(&mut cluster, killed, name, 0).0);
            clients.push(open(&mut cluster, at, &format!("{name}-stays"), 0).0);
        }
        cluster.kill(killed);
        for name in &names {
            for name in [name.clone(), format!("{name}-stays")] {
                let (_, said) = open(&mut cluster, (killed + 2) % 3, &name, 0);
                assert_eq!(said, "CONNACK Success false");
            }
        }
        cluster.settle();
        // Those that were there have been told.
        let told = clients.iter_mut().skip(1).step_by(2);
        let told: Vec<_> = told.flat_map(|client| client.said(&mut cluster)).collect();
        assert_eq!(told, ["DISCONNECT SessionTakenOver"; 6]);
    }
}

#[test]
fn after_a_partition_the_younger_connection_stays() {
    let mut cluster = Cluster::new(3);
    let (mut old, _) = open(&mut cluster, 0, "c", 0);
    cluster.cut_off(0);
    cluster.pass(Duration::from_secs(1));
    let (mut new, said) = open(&mut cluster, 1, "c", 0);
    assert_eq!(said, "CONNACK Success false");
    assert_eq!(old.said(&mut cluster), [""; 0]);
    cluster.link(0);
    let told = cluster.until("the end", |c| old.said(c).pop());
    assert_eq!(told, "DISCONNECT SessionTakenOver");
    assert_eq!(new.said(&mut cluster), [""; 0]);
    assert_eq!(cluster.holders("c"), 1);
}

/// What is known of a session may be old: the log is asked before a client is told.
#[test]
fn a_session_is_found_where_it_is_not_known_yet() {
    for slow in 0..3 {
        let mut cluster = Cluster::new(3);
        quorum(&mut cluster);
        cluster.hold_back(Some(slow));
        let (first, said) = open(&mut cluster, (slow + 1) % 3, "k", 60);
        assert_eq!(said, "CONNACK Success false");
        first.cut(&mut cluster);
        let mut next = MqttClient::new(&mut cluster, slow, "k", 60, None);
        cluster.pass(Duration::from_millis(500));
        assert!(next.said(&mut cluster).is_empty());
        cluster.hold_back(None);
        let said = cluster.until("CONNACK", |c| next.said(c).into_iter().next());
        assert_eq!(said, "CONNACK Success true");
    }
}

/// Nobody answers for the cluster: a client is told so, rather than that it has no session.
#[test]
fn a_session_is_not_opened_by_a_node_that_hears_of_nobody() {
    let mut cluster = Cluster::new(3);
    let (first, _) = open(&mut cluster, 1, "k", 60);
    first.cut(&mut cluster);
    cluster.cut_off(0);
    let mut client = MqttClient::new(&mut cluster, 0, "k", 60, None);
    let said = cluster.until("CONNACK", |c| client.said(c).into_iter().next());
    assert_eq!(said, "CONNACK ServerUnavailable false");
    // One that keeps nothing needs no log.
    let (_, said) = open(&mut cluster, 0, "clean", 0);
    assert_eq!(said, "CONNACK Success false");
}
