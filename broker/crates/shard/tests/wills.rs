//! Wills of MQTT clients whose node dies (docs/decisions/0012-mqtt-wills.md).

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_mqtt::{Connect, Disconnect, Packet, Properties, Qos, ReasonCode, Version, Will};
use metadata::{Change, QueueType};
use std::time::Duration;

/// Ids whose wills are kept by different nodes.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// A node is waited for no longer than this.
const GONE: Duration = Duration::from_secs(6);

fn will<'a>(payload: &'a str, delay: u32) -> Option<Will<'a>> {
    Some(Will {
        qos: Qos::AtLeastOnce,
        retain: false,
        properties: Properties {
            will_delay: (delay > 0).then_some(delay),
            ..Properties::default()
        },
        topic: "will",
        payload: payload.as_bytes(),
    })
}

fn watcher(cluster: &mut Cluster, at: usize) -> MqttClient {
    let mut watcher = MqttClient::new(cluster, at, "watcher", 0, None);
    cluster.until("CONNACK", |c| watcher.said(c).pop());
    watcher.subscribe(cluster, "will", Qos::AtMostOnce);
    assert_eq!(cluster.until("SUBACK", |c| watcher.said(c).pop()), "SubAck");
    watcher
}

/// A client for each of the names, whose will says its name.
fn mortals(cluster: &mut Cluster, at: usize, expiry: u32, delay: u32) -> Vec<MqttClient> {
    let open = |name: &&str| {
        let mut client = MqttClient::new(cluster, at, name, expiry, will(name, delay));
        let said = cluster.until("CONNACK", |c| client.said(c).into_iter().next());
        assert!(said.starts_with("CONNACK Success"), "{said}");
        client
    };
    NAMES.iter().map(open).collect()
}

fn come(cluster: &mut Cluster, at: usize, name: &str, expiry: u32) -> MqttClient {
    let mut client = MqttClient::new(cluster, at, name, expiry, None);
    let said = cluster.until("CONNACK", |c| client.said(c).into_iter().next());
    assert!(said.starts_with("CONNACK Success"), "{said}");
    client
}

fn goodbye(cluster: &mut Cluster, client: &mut MqttClient) {
    let packet = Packet::Disconnect(Disconnect {
        reason: ReasonCode::Success,
        properties: Properties::default(),
    });
    client.send(cluster, &packet);
}

/// The wills that have come, in order of their names.
fn heard(cluster: &mut Cluster, watcher: &mut MqttClient) -> String {
    let said = watcher.said(cluster);
    let mut names: Vec<&str> = said.iter().map(|s| s.split(' ').nth(1).unwrap()).collect();
    names.sort_unstable();
    names.concat()
}

fn quorum(cluster: &mut Cluster) {
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(QueueType::Quorum),
    });
}

#[test]
fn another_node_publishes_what_a_dead_one_had() {
    for delay in [0, 10] {
        let mut cluster = Cluster::new(3);
        quorum(&mut cluster);
        let mut watcher = watcher(&mut cluster, 1);
        mortals(&mut cluster, 0, 60, delay);
        cluster.settle();
        assert_eq!(cluster.wills_kept(), 6);
        cluster.kill(0);
        cluster.pass(Duration::from_secs(4) + Duration::from_secs(delay.into()));
        assert_eq!(
            heard(&mut cluster, &mut watcher),
            "",
            "its node may be back"
        );
        cluster.pass(Duration::from_secs(2));
        assert_eq!(heard(&mut cluster, &mut watcher), "abcdef");
        cluster.pass(GONE * 4);
        assert_eq!(heard(&mut cluster, &mut watcher), "", "once");
        assert_eq!(cluster.wills_kept(), 0);
    }
}

/// [MQTT-3.1.2-8]: the session's end comes before the delay's.
#[test]
fn a_clean_session_ends_with_its_node() {
    let mut cluster = Cluster::new(3);
    let mut watcher = watcher(&mut cluster, 1);
    mortals(&mut cluster, 0, 0, 600);
    cluster.kill(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "abcdef");
}

/// [MQTT-3.1.2-10]
#[test]
fn who_said_goodbye_has_no_will_there_either() {
    let mut cluster = Cluster::new(3);
    quorum(&mut cluster);
    let mut watcher = watcher(&mut cluster, 1);
    for (number, mut client) in mortals(&mut cluster, 0, 60, 0).into_iter().enumerate() {
        match number {
            0..3 => goodbye(&mut cluster, &mut client),
            // It is published, once.
            _ => client.cut(&mut cluster),
        }
    }
    cluster.settle();
    assert_eq!(heard(&mut cluster, &mut watcher), "def");
    assert_eq!(cluster.wills_kept(), 0);
    cluster.kill(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "");
}

/// [MQTT-3.1.3-9] for those with a delay; the others' come before their clients are let in.
#[test]
fn who_goes_on_at_another_node_has_no_will_left() {
    for (delay, expected) in [(30, ""), (0, "abcdef")] {
        let mut cluster = Cluster::new(3);
        quorum(&mut cluster);
        let mut watcher = watcher(&mut cluster, 1);
        mortals(&mut cluster, 0, 60, delay);
        cluster.kill(0);
        cluster.pass(Duration::from_secs(1));
        for name in NAMES {
            come(&mut cluster, 2, name, 60);
        }
        assert_eq!(heard(&mut cluster, &mut watcher), expected);
        cluster.pass(GONE * 10);
        assert_eq!(heard(&mut cluster, &mut watcher), "");
    }
}

/// A client that starts clean ends its session: the will does not wait any more.
#[test]
fn who_starts_clean_elsewhere_has_its_will_published() {
    let mut cluster = Cluster::new(3);
    quorum(&mut cluster);
    let mut watcher = watcher(&mut cluster, 1);
    mortals(&mut cluster, 0, 60, 30);
    cluster.kill(0);
    cluster.pass(Duration::from_secs(1));
    for client_id in NAMES {
        let connect = Connect {
            version: Version::V5,
            clean_start: true,
            keep_alive: 0,
            properties: Properties::default(),
            client_id,
            will: None,
            user_name: Some("guest"),
            password: Some(b"guest"),
        };
        let mut client = MqttClient::with(&mut cluster, 2, connect);
        cluster.until("CONNACK", |c| client.said(c).pop());
    }
    assert_eq!(heard(&mut cluster, &mut watcher), "abcdef");
}

#[test]
fn nobody_is_called_dead_by_a_node_that_is_alone() {
    let mut cluster = Cluster::new(3);
    let mut watcher = watcher(&mut cluster, 1);
    mortals(&mut cluster, 0, 0, 0);
    cluster.kill(2);
    cluster.pass(Duration::from_secs(1));
    cluster.kill(0);
    cluster.pass(GONE * 4);
    assert_eq!(heard(&mut cluster, &mut watcher), "");
    cluster.back(2);
    let mut all = String::new();
    cluster.until("all wills", |c| {
        all += &heard(c, &mut watcher);
        (all.len() == 6).then_some(())
    });
}

#[test]
fn a_keeper_that_dies_is_followed_by_another() {
    let mut cluster = Cluster::new(5);
    let mut watcher = watcher(&mut cluster, 4);
    mortals(&mut cluster, 0, 0, 0);
    for keeper in [1, 2] {
        cluster.kill(keeper);
        cluster.pass(GONE);
        assert_eq!(heard(&mut cluster, &mut watcher), "");
        cluster.back(keeper);
        cluster.until("its start", |c| c.listens(keeper).then_some(()));
    }
    cluster.kill(1);
    cluster.pass(Duration::from_secs(1));
    cluster.kill(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "abcdef");
}

/// A link that breaks for a moment loses words: everything is told anew.
#[test]
fn a_node_that_was_out_of_reach_for_a_moment_says_again_what_it_has() {
    let mut cluster = Cluster::new(3);
    let mut watcher = watcher(&mut cluster, 1);
    let mut clients = mortals(&mut cluster, 0, 0, 0);
    cluster.cut_off(0);
    cluster.pass(Duration::from_secs(2));
    for mut client in clients.drain(..3) {
        goodbye(&mut cluster, &mut client);
    }
    cluster.link(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "");
    assert_eq!(cluster.wills_kept(), 3);
    cluster.kill(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "def");
}

/// The others have published it: the connection that has to end because of that brings no second one.
#[test]
fn a_partition_brings_a_will_once() {
    let mut cluster = Cluster::new(3);
    let mut watcher = watcher(&mut cluster, 1);
    let old = mortals(&mut cluster, 0, 0, 0);
    cluster.cut_off(0);
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "abcdef");
    let new: Vec<_> = NAMES
        .iter()
        .map(|name| come(&mut cluster, 1, name, 0))
        .collect();
    cluster.link(0);
    for mut client in old {
        let told = cluster.until("the end", |c| client.said(c).pop());
        assert_eq!(told, "DISCONNECT SessionTakenOver");
    }
    cluster.pass(GONE);
    assert_eq!(heard(&mut cluster, &mut watcher), "");
    drop(new);
}
