//! MQTT clients of several shards and of several processes: each receives messages published
//! anywhere.

use crate::mqtt_client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, Scratch, Serving, address, eventually, serve};
use codec_mqtt::{Properties, Qos, Will};
use std::collections::BTreeMap;
use std::process::Stdio;

/// Number of clients of each kind: enough for every pair of two shards.
const CLIENTS: u16 = 12;
const EVERY_QOS: [Qos; 3] = [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce];

/// Publishes and waits for the acknowledgement.
#[track_caller]
fn publish(client: &mut Client, qos: Qos, topic: &str, id: u16, payload: &str) -> Result<()> {
    client.publish_at(qos, topic, id, payload, false)?;
    if qos != Qos::AtMostOnce {
        assert_eq!(client.acknowledged()?, id);
    }
    Ok(())
}

/// Every publisher publishes with every QoS; every subscriber receives all messages in order.
fn assert_all_receive_all(subscribers: &mut [Client], publishers: &mut [Client]) -> Result<()> {
    for subscriber in &mut *subscribers {
        subscriber.subscribe("a/#", Qos::AtLeastOnce)?;
    }
    for (n, publisher) in publishers.iter_mut().enumerate() {
        for (id, qos) in EVERY_QOS.into_iter().enumerate() {
            let payload = format!("{n} {id}");
            publish(publisher, qos, &format!("a/{n}"), id as u16 + 1, &payload)?;
        }
    }
    for subscriber in subscribers {
        let mut got = BTreeMap::<String, Vec<(String, Qos)>>::new();
        for _ in 0..publishers.len() * 3 {
            let message = subscriber.message()?;
            if message.qos == Qos::AtLeastOnce {
                subscriber.acknowledge(message.id)?;
            }
            let (from, number) = message.payload.split_once(' ').ok_or("two numbers")?;
            let all = got.entry(from.to_owned()).or_default();
            all.push((number.to_owned(), message.qos));
        }
        assert_eq!(got.len(), publishers.len());
        for all in got.values_mut() {
            // Order is guaranteed within a QoS.
            all.sort_by_key(|(_, qos)| *qos);
            let (most, least) = (Qos::AtMostOnce, Qos::AtLeastOnce);
            let want = [("0", most), ("1", least), ("2", least)];
            assert!(
                all.iter().map(|(n, q)| (n.as_str(), *q)).eq(want),
                "{all:?}"
            );
        }
    }
    Ok(())
}

/// Messages to a shared subscription are distributed: every member gets some, and every message has
/// one receiver.
fn assert_shared_subscription_distributes(
    members: &mut [Client],
    publishers: &mut [Client],
) -> Result<()> {
    for member in &mut *members {
        member.subscribe("$share/g/s", Qos::AtLeastOnce)?;
    }
    let each = members.len() as u16;
    for publisher in &mut *publishers {
        for id in 1..=each {
            publish(publisher, Qos::AtLeastOnce, "s", id, "x")?;
        }
    }
    // The router of each publisher has its own round robin, so every member gets its share of each.
    for member in members {
        for _ in 0..publishers.len() {
            let got = member.message()?;
            member.acknowledge(got.id)?;
        }
    }
    Ok(())
}

fn clients(addresses: &[String], count: u16, name: &str) -> Result<Vec<Client>> {
    let all = addresses.iter().cycle().take(count.into()).enumerate();
    all.map(|(n, address)| Ok(Client::open(address, &format!("{name}{n}"), true)?.0))
        .collect()
}

#[test]
fn mqtt_messages_cross_shards() -> Result<()> {
    let scratch = Scratch::new("mqtt-shards")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let mut command = serve(&dir, &ready);
    for setting in ["mqtt.listeners.tcp.default=127.0.0.1:0", "shards=2"] {
        command.args(["--set", setting]);
    }
    let running = Serving(command.stderr(Stdio::null()).spawn()?);
    let mqtt = [address(&ready, "mqtt")?];
    let mut subscribers = clients(&mqtt, CLIENTS, "s")?;
    let mut publishers = clients(&mqtt, CLIENTS, "p")?;
    assert_all_receive_all(&mut subscribers, &mut publishers)?;
    let mut members = clients(&mqtt, CLIENTS, "m")?;
    // With a single publisher: where its router starts the round robin is not specified.
    assert_shared_subscription_distributes(&mut members, &mut publishers[..1])?;
    drop(running);
    Ok(())
}

#[test]
fn mqtt_messages_cross_nodes() -> Result<()> {
    let settings = &["mqtt.listeners.tcp.default=127.0.0.1:0"];
    let mut nodes = Nodes::with("mqtt-nodes", 3, settings)?;
    let all = |nodes: &Nodes| (0..3).map(|at| nodes.address(at, "mqtt")).collect();
    let mqtt: Vec<String> = Result::from(all(&nodes))?;
    let mut subscribers = clients(&mqtt, 3, "s")?;
    let mut publishers = clients(&mqtt, 3, "p")?;
    assert_all_receive_all(&mut subscribers, &mut publishers)?;
    let mut members = clients(&mqtt, 3, "m")?;
    assert_shared_subscription_distributes(&mut members, &mut publishers)?;

    // AMQP on another node; its confirm means that the subscribers' routers have the message.
    let mut amqp = crate::client::Client::publisher(&nodes.address(1, "amqp")?)?;
    amqp.publish_to("amq.topic", "a.amqp", 5)?;
    amqp.until_true(|c| c.unconfirmed() == 0)?;
    for subscriber in &mut subscribers {
        let got = subscriber.message()?;
        assert_eq!((got.qos, got.payload.len()), (Qos::AtLeastOnce, 13));
        subscriber.acknowledge(got.id)?;
    }

    // A client that reconnects to another node closes its older connection.
    let mut older = Client::open(&mqtt[0], "same", true)?.0;
    let mut younger = Client::open(&mqtt[1], "same", true)?.0;
    assert!(
        older
            .message()
            .is_err_and(|e| e.to_string() == "the connection is closed")
    );
    younger.subscribe("same", Qos::AtLeastOnce)?;
    publish(&mut publishers[2], Qos::AtLeastOnce, "same", 6, "here")?;
    assert_eq!(younger.message()?.payload, "here");

    // A will, and a retained message.
    let will = Will {
        qos: Qos::AtLeastOnce,
        retain: true,
        properties: Properties::default(),
        topic: "a/will",
        payload: b"gone",
    };
    drop(Client::open_with(&mqtt[2], "w", true, Some(will))?);
    for subscriber in &mut subscribers {
        let got = subscriber.message()?;
        assert_eq!((got.payload.as_str(), got.retain), ("gone", false));
        subscriber.acknowledge(got.id)?;
    }

    // It is retained after it was delivered, and nobody is told when: the node must not be killed before.
    eventually("the retained will", || {
        let mut client = Client::open(&mqtt[0], "look", true).ok()?.0;
        client.finds_retained("a/will").ok()?.then_some(())
    })?;

    // A node is killed: the others continue immediately, and it continues after its restart.
    nodes.kill(2)?;
    publish(&mut publishers[0], Qos::AtLeastOnce, "a/0", 7, "without")?;
    for subscriber in &mut subscribers[..2] {
        let got = subscriber.message()?;
        assert_eq!(got.payload, "without");
        subscriber.acknowledge(got.id)?;
    }
    nodes.run(2)?;
    let back = nodes.address(2, "mqtt")?;
    let mut publisher = Client::open(&back, "back", true)?.0;
    publish(&mut publisher, Qos::AtLeastOnce, "a/2", 1, "with")?;
    let mut late = Client::open(&back, "late", true)?.0;
    late.subscribe("a/#", Qos::AtLeastOnce)?;
    let got = late.message()?;
    assert_eq!((got.payload.as_str(), got.retain), ("gone", true));
    late.acknowledge(got.id)?;
    publish(&mut publishers[1], Qos::AtLeastOnce, "a/1", 8, "again")?;
    for subscriber in &mut subscribers[..2] {
        assert_eq!(subscriber.message()?.payload, "with");
        assert_eq!(subscriber.message()?.payload, "again");
    }
    assert_eq!(late.message()?.payload, "again");
    Ok(())
}

/// Clients with wills on the topics w/0, w/1 ..., whose payload is their number.
fn clients_with_wills(address: &str, count: u16) -> Result<Vec<Client>> {
    let open = |n: u16| {
        let topic = format!("w/{n}");
        let will = Will {
            qos: Qos::AtLeastOnce,
            retain: false,
            properties: Properties::default(),
            topic: &topic,
            payload: topic.as_bytes(),
        };
        Ok(Client::open_with(address, &format!("c{n}"), true, Some(will))?.0)
    };
    (0..count).map(open).collect()
}

/// Receives the wills of the first `count` clients in any order, and no other message before them.
fn assert_receives_wills(watcher: &mut Client, count: usize) -> Result<()> {
    let mut heard = Vec::new();
    while heard.len() < count {
        let got = watcher.message()?;
        watcher.acknowledge(got.id)?;
        heard.push(got.payload);
    }
    heard.sort_unstable();
    let expected: Vec<String> = (0..count).map(|n| format!("w/{n}")).collect();
    assert_eq!(heard, expected);
    Ok(())
}

/// Wills of clients whose node is killed with their connections. Clients that disconnected properly
/// before have none.
#[test]
fn wills_of_a_killed_node_are_published_by_the_others() -> Result<()> {
    let settings = &["mqtt.listeners.tcp.default=127.0.0.1:0"];
    let mut nodes = Nodes::with("mqtt-wills", 3, settings)?;
    let mut watcher = Client::open(&nodes.address(0, "mqtt")?, "watcher", true)?.0;
    watcher.subscribe("w/#", Qos::AtLeastOnce)?;
    let mut other = Client::open(&nodes.address(1, "mqtt")?, "other", true)?.0;
    other.subscribe("w/here", Qos::AtLeastOnce)?;
    let mortal = nodes.address(2, "mqtt")?;
    let mut clients = clients_with_wills(&mortal, 8)?;
    for client in &mut clients[6..] {
        client.goodbye()?;
        assert!(client.message().is_err(), "its connection ends");
    }
    // The will copies use the same path as this message, so they have arrived at both other nodes
    // with it.
    for (n, client) in clients[..6].iter_mut().enumerate() {
        publish(client, Qos::AtLeastOnce, "w/here", 1, &format!("here {n}"))?;
        let got = watcher.message()?;
        assert_eq!(got.payload, format!("here {n}"));
        watcher.acknowledge(got.id)?;
        let got = other.message()?;
        other.acknowledge(got.id)?;
    }
    nodes.kill(2)?;
    assert_receives_wills(&mut watcher, 6)?;
    // All wills of a node are published at one time: no more follow.
    let mut publisher = Client::open(&nodes.address(1, "mqtt")?, "last", true)?.0;
    publish(&mut publisher, Qos::AtLeastOnce, "w/last", 1, "last")?;
    assert_eq!(watcher.message()?.payload, "last");
    Ok(())
}

/// A node that stops publishes its clients' wills itself. The nodes with copies learn of that
/// before it is gone.
#[test]
fn wills_of_a_stopping_node_are_published_once() -> Result<()> {
    let settings = &["mqtt.listeners.tcp.default=127.0.0.1:0"];
    let mut nodes = Nodes::with("mqtt-stops", 3, settings)?;
    let mut watcher = Client::open(&nodes.address(0, "mqtt")?, "watcher", true)?.0;
    watcher.subscribe("w/#", Qos::AtLeastOnce)?;
    let clients = clients_with_wills(&nodes.address(2, "mqtt")?, 6)?;
    let kept = |nodes: &Nodes, at| -> Option<u32> {
        let told = nodes.metric(at, "posthorn_mqtt_wills_kept").ok()?;
        told.parse().ok()
    };
    let until = |nodes: &Nodes, count| {
        let all = |nodes| Some(kept(nodes, 0)? + kept(nodes, 1)?);
        eventually("copies of wills", || {
            (all(nodes) == Some(count)).then_some(())
        })
    };
    until(&nodes, 6)?;
    nodes.stop(2)?;
    assert_receives_wills(&mut watcher, 6)?;
    // A node that still had a copy would publish it before its copies are dropped.
    until(&nodes, 0)?;
    let mut publisher = Client::open(&nodes.address(1, "mqtt")?, "last", true)?.0;
    publish(&mut publisher, Qos::AtLeastOnce, "w/last", 1, "last")?;
    assert_eq!(watcher.message()?.payload, "last");
    drop(clients);
    Ok(())
}
