//! MQTT clients of a process that is killed: acknowledged messages survive.

use crate::mqtt_client::Client;
use crate::program::{Result, Scratch, Serving, address, eventually, serve};
use codec_mqtt::Qos;
use std::path::Path;
use std::process::Stdio;

fn start(dir: &Path, ready: &Path) -> Result<Serving> {
    let mut command = serve(dir, ready);
    command.args(["--set", "mqtt.listeners.tcp.default=127.0.0.1:0"]);
    Ok(Serving(command.stderr(Stdio::null()).spawn()?))
}

/// Kills the process (SIGKILL) and starts it again.
fn kill_and_restart(mut running: Serving, dir: &Path, ready: &Path) -> Result<Serving> {
    running.0.kill()?;
    running.0.wait()?;
    drop(running);
    std::fs::remove_file(ready)?;
    start(dir, ready)
}

fn quorum_by_default(ready: &Path) -> Result<()> {
    let url = format!("http://{}/api/vhosts/%2F", address(ready, "management")?);
    let request = ureq::put(&url).header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
    request.send_json(serde_json::json!({"default_queue_type": "quorum"}))?;
    Ok(())
}

/// Number of messages that a publisher sends without waiting.
const MESSAGES: u16 = 300;

fn messages_survive_a_kill(name: &str, quorum: bool) -> Result<()> {
    let scratch = Scratch::new(name)?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let running = start(&dir, &ready)?;
    let mqtt = address(&ready, "mqtt")?;
    if quorum {
        quorum_by_default(&ready)?;
    }
    let (mut keeper, present) = Client::open(&mqtt, "keeper", false)?;
    assert!(!present);
    keeper.subscribe("a/#", Qos::AtLeastOnce)?;
    let (mut publisher, _) = Client::open(&mqtt, "publisher", true)?;
    for id in 1..=MESSAGES {
        publisher.publish("a/b", id, &id.to_string(), false)?;
    }
    // The client has received some messages and acknowledged none.
    let first = keeper.message()?;
    assert_eq!((first.dup, first.payload.as_str()), (false, "1"));
    for id in 1..=MESSAGES {
        assert_eq!(publisher.acknowledged()?, id);
    }
    let running = kill_and_restart(running, &dir, &ready)?;
    let mqtt = address(&ready, "mqtt")?;
    let (mut keeper, present) = Client::open(&mqtt, "keeper", false)?;
    assert!(present, "{name}");
    for id in 1..=MESSAGES {
        let got = keeper.message()?;
        assert_eq!(got.payload, id.to_string(), "{name}: {got:?}");
        assert!(id > 1 || got.dup, "{name}: it was sent before");
        keeper.acknowledge(got.id)?;
    }
    // Acknowledged messages are not redelivered after another restart: only new ones arrive.
    publisher = Client::open(&mqtt, "publisher", true)?.0;
    publisher.publish("a/b", 1, "new", false)?;
    publisher.acknowledged()?;
    assert_eq!(keeper.message()?.payload, "new");
    let queue = if quorum { "quorum" } else { "classic" };
    eventually("acknowledgements in the queue", || {
        let url = format!("http://{}/api/queues", address(&ready, "management").ok()?);
        let request = ureq::get(&url).header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
        let text = request.call().ok()?.body_mut().read_to_string().ok()?;
        let all: serde_json::Value = serde_json::from_str(&text).ok()?;
        let one = all.as_array()?.iter().find(|q| q["type"] == queue)?;
        (one["name"] == "mqtt-subscription-keeperqos1" && one["messages"] == 1).then_some(())
    })?;
    drop(running);
    Ok(())
}

#[test]
fn acknowledged_messages_survive_in_a_classic_queue() -> Result<()> {
    messages_survive_a_kill("mqtt-classic", false)
}

#[test]
fn acknowledged_messages_survive_in_a_quorum_queue() -> Result<()> {
    messages_survive_a_kill("mqtt-quorum", true)
}

#[test]
fn retained_messages_survive_a_restart() -> Result<()> {
    let scratch = Scratch::new("mqtt-retained")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let running = start(&dir, &ready)?;
    let mqtt = address(&ready, "mqtt")?;
    let (mut publisher, _) = Client::open(&mqtt, "publisher", true)?;
    for (id, topic, payload) in [(1, "a", "1"), (2, "b", "2"), (3, "a", "3"), (4, "b", "")] {
        publisher.publish(topic, id, payload, true)?;
    }
    for id in 1..=4 {
        assert_eq!(publisher.acknowledged()?, id);
    }
    let running = kill_and_restart(running, &dir, &ready)?;
    let mqtt = address(&ready, "mqtt")?;
    let (mut subscriber, _) = Client::open(&mqtt, "subscriber", true)?;
    subscriber.subscribe("#", Qos::AtLeastOnce)?;
    let got = subscriber.message()?;
    assert_eq!((got.retain, got.payload.as_str()), (true, "3"));
    let (mut publisher, _) = Client::open(&mqtt, "publisher", true)?;
    publisher.publish("c", 1, "next", false)?;
    assert_eq!(subscriber.message()?.payload, "next", "and nothing else");
    drop(running);
    Ok(())
}
