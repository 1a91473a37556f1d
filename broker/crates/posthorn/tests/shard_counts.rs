//! Real processes with different numbers of shards in one cluster, which change one by one under
//! load.

use crate::client::Client;
use crate::nodes::Nodes;
use crate::program::{Result, Scratch, Serving, address, eventually, serve};
use codec_amqp091::Method;
use codec_mqtt::Qos;
use message::{Table, Value};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Queues of each type: enough that every shard has some.
const QUEUES: usize = 6;
/// Messages that every publisher must get confirmed after each restart.
const PROGRESS: u64 = 30;
/// Publishes without a confirm.
const WINDOW: u64 = 4;
const SUBSCRIBERS: u16 = 4;

/// Files with the addresses of the nodes.
type ReadyFiles = Arc<Vec<PathBuf>>;

/// The state that a publisher shares with the test.
#[derive(Default)]
struct Shared {
    confirmed: AtomicU64,
    stop: AtomicBool,
}

struct Publisher {
    name: String,
    shared: Arc<Shared>,
    /// Ends with the numbers of the confirmed messages.
    thread: JoinHandle<BTreeSet<u64>>,
}

impl Publisher {
    /// Publishes numbers from 1 on to a queue until stopped. A number is sent once.
    fn start(queue: String, ready: ReadyFiles, first: usize) -> Publisher {
        let shared = Arc::<Shared>::default();
        let (name, seen) = (queue.clone(), shared.clone());
        let thread = std::thread::spawn(move || {
            let (mut confirmed, mut next, mut at) = (BTreeSet::new(), 0, first);
            while !seen.stop.load(Ordering::Relaxed) {
                let node = &ready[at % ready.len()];
                at += 1;
                let Some(mut client) = connect(node) else {
                    std::thread::yield_now();
                    continue;
                };
                client.number_offset = next;
                // An error means that the node has closed the connection.
                let _ = publish(&mut client, &queue, &seen);
                next += client.sent;
                let offset = client.number_offset;
                confirmed.extend(client.confirmed.iter().map(|number| number + offset));
            }
            confirmed
        });
        Publisher {
            name,
            shared,
            thread,
        }
    }

    fn confirmed(&self) -> u64 {
        self.shared.confirmed.load(Ordering::Relaxed)
    }

    fn finish(self) -> (String, BTreeSet<u64>) {
        self.shared.stop.store(true, Ordering::Relaxed);
        (self.name, self.thread.join().expect("a publisher"))
    }
}

/// Connects to a node that serves.
fn connect(ready: &Path) -> Option<Client> {
    if !ready.exists() {
        return None;
    }
    Client::publisher(&address(ready, "amqp").ok()?).ok()
}

fn publish(client: &mut Client, queue: &str, shared: &Shared) -> Result<()> {
    while !shared.stop.load(Ordering::Relaxed) {
        client.publish(queue, 100)?;
        let before = client.confirmed.len();
        client.until_true(|c| c.unconfirmed() < WINDOW)?;
        let new = client.confirmed.len() - before;
        shared.confirmed.fetch_add(new as u64, Ordering::Relaxed);
    }
    client.until_true(|c| c.unconfirmed() == 0)
}

/// Publishes with MQTT from any node until stopped. Returns the acknowledged payloads.
fn publish_mqtt(ready: &ReadyFiles, shared: &Shared) -> BTreeSet<u64> {
    let (mut acknowledged, mut number, mut at) = (BTreeSet::new(), 0u64, 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let node = &ready[at % ready.len()];
        at += 1;
        let open = || -> Result<_> {
            let address = address(node, "mqtt")?;
            Ok(crate::mqtt_client::Client::open(&address, "publisher", true)?.0)
        };
        let Some(mut client) = node.exists().then(|| open().ok()).flatten() else {
            std::thread::yield_now();
            continue;
        };
        while !shared.stop.load(Ordering::Relaxed) {
            number += 1;
            let sent = client.publish("load/all", 1, &number.to_string(), false);
            if sent.is_err() || client.acknowledged().is_err() {
                break;
            }
            acknowledged.insert(number);
            shared.confirmed.fetch_add(1, Ordering::Relaxed);
        }
    }
    acknowledged
}

/// Reads a queue from its start until all of `wanted` were received, and returns the numbers in the
/// order of delivery.
fn read(address: &str, queue: &str, wanted: &BTreeSet<u64>) -> Result<Vec<u64>> {
    let mut client = Client::open(address, "guest", "guest", "/")?;
    let qos = Method::BasicQos {
        prefetch_size: 0,
        prefetch_count: 50,
        global: false,
    };
    client.ask(&qos, "basic.qos-ok")?;
    let mut arguments = Table::default();
    if queue.starts_with("stream") {
        arguments.set("x-stream-offset", Value::from("first"));
    }
    let consume = Method::BasicConsume {
        queue,
        consumer_tag: "tag",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments,
    };
    client.ask(&consume, "basic.consume-ok")?;
    let (mut all, mut left) = (Vec::new(), wanted.clone());
    while !left.is_empty() {
        client.until_true(|c| !c.delivered.is_empty())?;
        for (delivery_tag, body) in std::mem::take(&mut client.delivered) {
            let number = u64::from_le_bytes(*body.first_chunk().ok_or("a longer body")?);
            all.push(number);
            left.remove(&number);
            client.tell(&Method::BasicAck {
                delivery_tag,
                multiple: false,
            })?;
        }
    }
    Ok(all)
}

/// The number of shards that a node has logged at its start.
fn logged_shards(nodes: &Nodes, at: usize) -> Result<u16> {
    let log = std::fs::read_to_string(nodes.log(at))?;
    let line = log.lines().find(|line| line.contains("node.starting"));
    let rest = line
        .and_then(|line| line.split_once("shards="))
        .ok_or(log.clone())?
        .1;
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Ok(number.parse()?)
}

#[test]
fn nodes_change_their_numbers_of_shards_one_by_one_under_load() -> Result<()> {
    let settings = &["mqtt.listeners.tcp.default=127.0.0.1:0"];
    let mut nodes = Nodes::with_shards("shard-counts", &[1, 2, 4], settings)?;
    let ready: ReadyFiles = Arc::new((0..3).map(|at| nodes.ready(at)).collect());

    let mut publishers = Vec::new();
    for kind in ["quorum", "classic", "stream"] {
        for number in 0..QUEUES {
            let queue = format!("{kind}-{number}");
            // Classic queues and first leaders are on the node of the client.
            let mut client = Client::publisher(&nodes.address(number % 3, "amqp")?)?;
            client.declare(&queue, kind)?;
            publishers.push(Publisher::start(queue, ready.clone(), number + 1));
        }
    }
    for n in 0..SUBSCRIBERS {
        let address = nodes.address(usize::from(n) % 3, "mqtt")?;
        let (mut client, _) = crate::mqtt_client::Client::open(&address, &format!("s{n}"), false)?;
        client.subscribe("load/#", Qos::AtLeastOnce)?;
        client.goodbye()?;
    }
    let mqtt = Arc::<Shared>::default();
    let mqtt_thread = {
        let (ready, mqtt) = (ready.clone(), mqtt.clone());
        std::thread::spawn(move || publish_mqtt(&ready, &mqtt))
    };

    for (at, shards) in [(0, 4), (1, 1), (2, 2)] {
        nodes.stop(at)?;
        std::fs::remove_file(nodes.ready(at)).or_else(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(e),
        })?;
        nodes.shards[at] = shards;
        nodes.run(at)?;
        nodes.address(at, "amqp")?;
        assert_eq!(logged_shards(&nodes, at)?, shards);
        let goals = publishers.iter().map(|p| p.confirmed() + PROGRESS);
        let goals: Vec<u64> = goals.collect();
        let mqtt_goal = mqtt.confirmed.load(Ordering::Relaxed) + PROGRESS;
        eventually("confirms of every queue", || {
            let mut all = publishers.iter().zip(&goals);
            let is_reached = all.all(|(p, goal)| p.confirmed() >= *goal);
            (is_reached && mqtt.confirmed.load(Ordering::Relaxed) >= mqtt_goal).then_some(())
        })?;
    }

    for publisher in publishers {
        let (queue, confirmed) = publisher.finish();
        assert!(confirmed.len() as u64 >= 3 * PROGRESS, "{queue}");
        let got = read(&nodes.address(0, "amqp")?, &queue, &confirmed)?;
        // A publish to a stream without a producer can be stored twice after a change of leader.
        let may_repeat = if queue.starts_with("stream") {
            WINDOW
        } else {
            0
        };
        let mut newest = 0;
        for number in got {
            let is_repeated = number <= newest && newest < number + may_repeat;
            assert!(
                number > newest || is_repeated,
                "{queue}: {number} after {newest}"
            );
            newest = newest.max(number);
        }
    }
    mqtt.stop.store(true, Ordering::Relaxed);
    let acknowledged = mqtt_thread.join().map_err(|_| "the MQTT publisher")?;
    for n in 0..SUBSCRIBERS {
        let address = nodes.address(usize::from(n + 1) % 3, "mqtt")?;
        let (mut client, present) =
            crate::mqtt_client::Client::open(&address, &format!("s{n}"), false)?;
        assert!(present, "the session of s{n}");
        let (mut left, mut last) = (acknowledged.clone(), 0);
        while !left.is_empty() {
            let message = client.message()?;
            client.acknowledge(message.id)?;
            let number: u64 = message.payload.parse()?;
            assert!(number > last, "s{n}: {number} after {last}");
            last = number;
            left.remove(&number);
        }
    }
    // Listings ask every shard of every node.
    for at in 0..3 {
        let (status, queues) = nodes.ask(at, "GET", "/api/queues", &Json::Null)?;
        let queues = queues.as_array().ok_or("a list of queues")?;
        let led = queues
            .iter()
            .filter(|q| q["name"].as_str().is_some_and(|n| n.contains('-')));
        assert_eq!(status, 200);
        assert!(led.clone().count() >= 3 * QUEUES);
        for queue in led {
            assert!(queue["messages"].is_u64(), "n{at}: {queue}");
        }
    }
    Ok(())
}

/// Messages cross between all shards of nodes with different numbers of them.
#[test]
fn mqtt_messages_cross_nodes_with_different_numbers_of_shards() -> Result<()> {
    let settings = &["mqtt.listeners.tcp.default=127.0.0.1:0"];
    let nodes = Nodes::with_shards("shard-counts-mqtt", &[3, 1, 2], settings)?;
    let open = |count: usize, name: &str| -> Result<Vec<crate::mqtt_client::Client>> {
        let all = (0..count).map(|n| {
            let address = nodes.address(n % 3, "mqtt")?;
            Ok(crate::mqtt_client::Client::open(&address, &format!("{name}{n}"), true)?.0)
        });
        all.collect()
    };
    let (mut subscribers, mut publishers) = (open(18, "s")?, open(18, "p")?);
    for subscriber in &mut subscribers {
        subscriber.subscribe("a/#", Qos::AtLeastOnce)?;
    }
    for (n, publisher) in publishers.iter_mut().enumerate() {
        publisher.publish(&format!("a/{n}"), 1, &n.to_string(), false)?;
        publisher.acknowledged()?;
    }
    for subscriber in &mut subscribers {
        let mut got = BTreeSet::new();
        for _ in 0..publishers.len() {
            let message = subscriber.message()?;
            subscriber.acknowledge(message.id)?;
            assert!(
                got.insert(message.payload.clone()),
                "{} twice",
                message.payload
            );
        }
    }
    Ok(())
}

#[test]
fn node_logs_its_number_of_shards_with_the_source_and_refuses_an_impossible_one() -> Result<()> {
    let scratch = Scratch::new("shard-setting")?;
    let (dir, ready, log) = (
        scratch.0.join("data"),
        scratch.0.join("ready"),
        scratch.0.join("log"),
    );
    for (setting, logged) in [
        (None, "CPU"),
        (Some("shards=auto"), "CPU"),
        (
            Some("shards=3"),
            "shards=3 shards_source=\"setting `shards`\"",
        ),
    ] {
        let mut command = serve(&dir, &ready);
        command.args(setting.into_iter().flat_map(|setting| ["--set", setting]));
        let node = Serving(command.stderr(File::create(&log)?).spawn()?);
        address(&ready, "amqp")?;
        let text = std::fs::read_to_string(&log)?;
        let line = text.lines().find(|line| line.contains("node.starting"));
        assert!(line.is_some_and(|line| line.contains(logged)), "{text}");
        drop(node);
        std::fs::remove_file(&ready)?;
    }
    for value in ["257", "-1", "many"] {
        let mut command = serve(&dir, &ready);
        command.args(["--set", &format!("shards={value}")]);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(
            text.contains("shards") && text.contains("auto or 0 to 256"),
            "{text}"
        );
    }
    Ok(())
}
