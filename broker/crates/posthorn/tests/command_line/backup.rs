//! Backups: written while clients are active, and restored after everything is lost.

use super::{Outcome, Single};
use crate::client::Client;
use crate::mqtt_client;
use crate::program::{Result, Scratch, address, eventually};
use bytes::Bytes;
use codec_amqp091::Method;
use codec_mqtt::Qos;
use message::Table;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages of the queue with active clients before the backup begins.
const STEADY: u64 = 300;
/// Messages of the stream.
const LOGGED: u64 = 300;
/// Retained messages.
const RETAINED: [(&str, &str); 2] = [("meters/1", "17"), ("meters/é/2", "42")];
/// More than one page of a listing shows of a body.
const LARGE: usize = 5 << 20;

fn amqp(node: &Single) -> Result<String> {
    address(&node.scratch.0.join("ready"), "amqp")
}

/// Fills a node with queues of all kinds.
fn fill(node: &Single) -> Result<()> {
    let declare = |name: &str, kind: &str, arguments: &str| {
        node.ctl(&[
            "declare_queue",
            name,
            "--type",
            kind,
            "--arguments",
            arguments,
        ])
        .map(Outcome::ok)
    };
    for (name, kind, arguments) in [
        ("orders", "quorum", "{}"),
        ("jobs", "classic", "{}"),
        ("urgent", "classic", "{\"x-max-priority\": 5}"),
        ("later", "quorum", "{}"),
        ("failed", "quorum", "{}"),
        (
            "shipping",
            "quorum",
            "{\"x-dead-letter-exchange\": \"\", \"x-dead-letter-routing-key\": \"failed\", \"x-max-length\": 1}",
        ),
        ("large-quorum", "quorum", "{}"),
        ("large-classic", "classic", "{}"),
        (
            "log",
            "stream",
            "{\"x-stream-max-segment-size-bytes\": 1000000}",
        ),
        ("nothing-logged", "stream", "{}"),
        ("empty", "quorum", "{}"),
    ] {
        declare(name, kind, arguments)?;
    }
    let run = |words: &[&str]| node.ctl(words).map(Outcome::ok);
    run(&[
        "declare_exchange",
        "delays",
        "--type",
        "x-delayed-message",
        "--arguments",
        "{\"x-delayed-type\": \"direct\"}",
    ])?;
    run(&["bind", "delays", "later", "--routing-key", "later"])?;
    run(&["bind", "amq.topic", "jobs", "--routing-key", "job.#"])?;
    run(&[
        "publish",
        "later",
        "in a while",
        "--exchange",
        "delays",
        "--header",
        "x-delay=3600000",
    ])?;
    run(&["publish", "later", "now"])?;
    for n in 1..=3 {
        run(&["publish", "shipping", &format!("order {n}")])?;
    }
    for n in 0..6 {
        let priority = format!("priority={}", n % 3);
        run(&[
            "publish",
            "urgent",
            &format!("urgent {n}"),
            "--property",
            &priority,
        ])?;
    }
    for n in 0..3 {
        run(&[
            "publish",
            "job.print",
            &format!("job {n}"),
            "--exchange",
            "amq.topic",
            "--header",
            "shop=eu",
            "--property",
            "content_type=text/plain",
            "--property",
            "correlation_id=c-1",
            "--property",
            "expiration=86400000",
        ])?;
    }
    run(&["add_user", "app", "secret-of-app"])?;
    run(&["set_permissions", "app", "^app", ".*", ".*"])?;
    run(&["set_policy", "short", "^jobs$", "{\"max-length\": 1000}"])?;
    let mut client = Client::publisher(&amqp(node)?)?;
    client.publish_all("orders", STEADY, 100)?;
    client.publish_all("jobs", 500, 700)?;
    client.publish_all("large-quorum", 2, LARGE)?;
    client.publish_all("large-classic", 2, LARGE)?;
    client.publish_all("large-classic", 3, 10)?;
    client.publish_all("log", LOGGED - 3, 100)?;
    client.publish_all("log", 2, LARGE)?;
    run(&[
        "publish",
        "log",
        "filtered",
        "--header",
        "x-stream-filter-value=eu",
    ])?;
    let (mut device, _) = mqtt_client::Client::open(&mqtt(node)?, "device", true)?;
    for (id, (topic, payload)) in (1..).zip(RETAINED) {
        device.publish(topic, id, payload, true)?;
        assert_eq!(device.acknowledged()?, id);
    }
    Ok(())
}

/// A node with a listener for MQTT.
fn start(name: &str) -> Result<Single> {
    let listener = "mqtt.listeners.tcp.default=127.0.0.1:0";
    Single::start(name, &[listener.to_owned()])
}

fn mqtt(node: &Single) -> Result<String> {
    address(&node.scratch.0.join("ready"), "mqtt")
}

/// The payload of the retained message of a topic.
fn retained(node: &Single, topic: &str) -> Result<String> {
    let (mut client, _) = mqtt_client::Client::open(&mqtt(node)?, "reader", true)?;
    client.subscribe(topic, Qos::AtMostOnce)?;
    let got = client.message()?;
    assert!(got.retain, "{got:?}");
    Ok(got.payload)
}

/// The bodies of the messages of a stream from its beginning, which match a filter value if there is one.
fn stream(node: &Single, vhost: &str, filter: Option<&str>, count: usize) -> Result<Vec<Bytes>> {
    let mut client = Client::open(&amqp(node)?, "guest", "guest", vhost)?;
    let mut arguments = Table::default();
    arguments.set("x-stream-offset", "first".into());
    if let Some(filter) = filter {
        arguments.set("x-stream-filter", filter.into());
    }
    consume(&mut client, "log", u16::try_from(count)?, arguments)?;
    let bodies = client.delivered.into_iter().map(|(_, body)| body);
    Ok(bodies.collect())
}

/// The messages of a queue in their order, without what begins anew with a restore.
fn messages(node: &Single, vhost: &str, queue: &str) -> Result<Vec<Json>> {
    let listed = node.ctl(&[
        "browse",
        queue,
        "--vhost",
        vhost,
        "--count",
        "5000",
        "--truncate",
        "4194304",
        "--output",
        "json",
    ])?;
    let listed = listed.json()?;
    let listed = listed.as_array().ok_or("no list")?.iter().map(|shown| {
        let mut properties = shown["properties"].clone();
        if let Some(headers) = properties["headers"].as_object_mut() {
            headers.remove("x-acquired-count");
            headers.remove("x-delivery-count");
        }
        if properties["headers"] == json!({}) {
            properties["headers"] = Json::Null;
        }
        let properties = properties.as_object().cloned().unwrap_or_default();
        let set = properties.into_iter().filter(|(_, value)| !value.is_null());
        json!({
            "delayed": shown["state"] == "delayed",
            "exchange": shown["exchange"],
            "routing_key": shown["routing_key"],
            "received_at": shown["received_at"],
            "bytes": shown["payload_bytes"],
            "payload": shown["payload"],
            "properties": set.collect::<BTreeMap<String, Json>>(),
        })
    });
    Ok(listed.collect())
}

/// The whole bodies of the messages of a queue.
fn bodies(node: &Single, queue: &str) -> Result<Vec<Json>> {
    let got = node.ctl(&["get", queue, "--count", "10", "--output", "json"])?;
    let got = got.json()?;
    let got = got.as_array().ok_or("no list")?.iter();
    Ok(got.map(|message| message["payload"].clone()).collect())
}

/// Consumes without acknowledging until the prefetch is used up.
fn hold(client: &mut Client, queue: &str, count: u16) -> Result<()> {
    consume(client, queue, count, Table::default())
}

fn consume(client: &mut Client, queue: &str, count: u16, arguments: Table) -> Result<()> {
    let qos = Method::BasicQos {
        prefetch_size: 0,
        prefetch_count: count,
        global: false,
    };
    client.ask(&qos, "basic.qos-ok")?;
    let consume = Method::BasicConsume {
        queue,
        consumer_tag: "holds",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments,
    };
    client.ask(&consume, "basic.consume-ok")?;
    client.until_true(|c| c.delivered.len() >= usize::from(count))
}

const COMPARED: [&str; 8] = [
    "jobs",
    "urgent",
    "later",
    "failed",
    "shipping",
    "large-quorum",
    "large-classic",
    "empty",
];

fn state(node: &Single, vhost: &str) -> Result<BTreeMap<&'static str, Vec<Json>>> {
    let queues = COMPARED.into_iter();
    queues
        .map(|queue| Ok((queue, messages(node, vhost, queue)?)))
        .collect()
}

fn text(path: &Path) -> Result<&str> {
    Ok(path.to_str().ok_or("the path is not UTF-8")?)
}

#[test]
fn everything_is_restored_after_everything_is_lost() -> Result<()> {
    let kept = Scratch::new("backup-store")?;
    let store = text(&kept.0)?;
    let node = start("backup-source")?;
    fill(&node)?;
    let logged = stream(&node, "/", None, LOGGED as usize)?;
    let filtered = stream(&node, "/", Some("eu"), 1)?;
    let segments = stream_segments(&node)?;
    assert!(segments > 2, "{segments}");
    let before = state(&node, "/")?;
    assert!(before["later"].iter().any(|m| m["delayed"] == true));
    assert_eq!(before["failed"].len(), 2);
    let large: Vec<_> = ["large-quorum", "large-classic"]
        .map(|queue| bodies(&node, queue))
        .into_iter()
        .collect::<Result<_>>()?;
    let marked = state(&node, "/")?;
    // Clients hold, return and publish messages of one queue during the backup.
    let mut holder = Client::open(&amqp(&node)?, "guest", "guest", "/")?;
    hold(&mut holder, "orders", 20)?;
    let ends = AtomicBool::new(false);
    let backed_up = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let work = || -> Result<u64> {
                let mut publisher = Client::publisher(&amqp(&node)?)?;
                publisher.number_offset = STEADY;
                while !ends.load(Ordering::Relaxed) {
                    publisher.publish_all("orders", 20, 100)?;
                    // They are requeued.
                    node.ctl(&["get", "orders", "--count", "50"])?.ok();
                }
                Ok(publisher.sent)
            };
            work().map_err(|error| error.to_string())
        });
        let create = ["backup", "create", "--to", store, "--name", "drill"];
        let backed_up = node.ctl(&create).map_err(|error| error.to_string());
        ends.store(true, Ordering::Relaxed);
        let sent = busy
            .join()
            .map_err(|_| "the clients have failed".to_owned())??;
        assert!(sent > 0);
        backed_up
    })?;
    assert!(!backed_up.stderr.contains("stream"), "{}", backed_up.stderr);
    let shown = backed_up.ok();
    assert!(shown.contains("2 retained messages"), "{shown}");
    assert!(shown.contains("is written and verified"), "{shown}");
    // Nothing in the queues has changed.
    assert_eq!(state(&node, "/")?, marked);
    assert_eq!(stream_segments(&node)?, segments);
    drop(holder);
    drop(node);

    let node = start("backup-target")?;
    let restore = ["backup", "restore", "--from", store, "drill"];
    let restored = node.ctl(&restore)?;
    let shown = restored.ok();
    assert!(shown.contains("2 retained messages"), "{shown}");
    assert!(stream(&node, "/", None, LOGGED as usize)? == logged);
    assert!(stream(&node, "/", Some("eu"), 1)? == filtered);
    for (topic, payload) in RETAINED {
        assert_eq!(retained(&node, topic)?, payload, "{topic}");
    }
    let after = state(&node, "/")?;
    for (queue, messages) in &before {
        assert_eq!(&after[queue], messages, "{queue}");
    }
    for (queue, bodies_before) in ["large-quorum", "large-classic"].iter().zip(&large) {
        assert!(bodies(&node, queue)? == *bodies_before, "{queue}");
    }
    // Each message that was there all the time is there once, in its order, and no other one twice.
    let orders = messages(&node, "/", "orders")?;
    let mut client = Client::open(&amqp(&node)?, "guest", "guest", "/")?;
    let count = u16::try_from(orders.len())?;
    hold(&mut client, "orders", count)?;
    let numbers = client.delivered.iter().map(|(_, body)| {
        let number = body.first_chunk().map(|n| u64::from_le_bytes(*n));
        number.unwrap_or(0)
    });
    let numbers: Vec<u64> = numbers.collect();
    let steady: Vec<u64> = numbers.iter().copied().filter(|n| *n <= STEADY).collect();
    assert_eq!(steady, (1..=STEADY).collect::<Vec<_>>());
    let mut once = numbers.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), numbers.len());
    drop(client);
    // Definitions.
    let users = node.ctl(&["list_users", "--output", "json"])?.json()?;
    assert!(users.to_string().contains("\"app\""), "{users}");
    let policies = node.ctl(&["list_policies", "--output", "json"])?.json()?;
    assert!(policies.to_string().contains("short"), "{policies}");
    let published = node.ctl(&["publish", "job.x", "routed", "--exchange", "amq.topic"])?;
    published.ok();

    // A queue that is not empty is not restored without an option.
    let again = node.ctl(&[
        "backup",
        "restore",
        "--from",
        store,
        "drill",
        "--messages-only",
    ])?;
    assert_eq!(again.code, 1);
    assert!(
        again.stderr.contains("has messages") && again.stderr.contains("--into-non-empty"),
        "{}",
        again.stderr
    );
    let (mut device, _) = mqtt_client::Client::open(&mqtt(&node)?, "device", true)?;
    device.publish("meters/1", 1, "18", true)?;
    assert_eq!(device.acknowledged()?, 1);
    let skipped = node.ctl(&[
        "backup",
        "restore",
        "--from",
        store,
        "drill",
        "--skip-non-empty",
        "--output",
        "json",
    ])?;
    let counts = skipped.json()?;
    assert_eq!(counts["messages"], 0, "{}", skipped.stdout);
    assert_eq!(counts["retained_messages"], 0, "{}", skipped.stdout);
    assert_eq!(retained(&node, "meters/1")?, "18", "it is newer");

    // One queue.
    node.ctl(&["delete_queue", "jobs"])?.ok();
    let one = node.ctl(&[
        "backup", "restore", "--from", store, "drill", "--vhost", "/", "--queue", "jobs",
    ])?;
    let one = one.ok();
    assert!(one.contains("of 1 queues"), "{one}");
    assert_eq!(messages(&node, "/", "jobs")?, before["jobs"]);

    // One stream.
    node.ctl(&["delete_queue", "log"])?.ok();
    let one = node.ctl(&[
        "backup", "restore", "--from", store, "drill", "--vhost", "/", "--queue", "log",
    ])?;
    let one = one.ok();
    assert!(
        one.contains(&format!("{LOGGED} messages of 1 queues")),
        "{one}"
    );
    assert!(stream(&node, "/", None, LOGGED as usize)? == logged);

    // Another virtual host.
    node.ctl(&[
        "backup",
        "restore",
        "--from",
        store,
        "drill",
        "--vhost",
        "/",
        "--as-vhost",
        "copy",
    ])?
    .ok();
    eventually("the copies", || {
        (state(&node, "copy").ok()? == before).then_some(())
    })?;
    assert_eq!(messages(&node, "copy", "orders")?, orders);
    assert!(stream(&node, "copy", None, LOGGED as usize)? == logged);
    Ok(())
}

/// Number of segments of the stream.
fn stream_segments(node: &Single) -> Result<u64> {
    let status = node.ctl(&["stream_status", "log", "--output", "json"])?;
    let status = status.json()?;
    Ok(status[0]["segments"].as_u64().ok_or("no segments")?)
}

#[test]
fn backups_are_listed_verified_and_deleted_without_a_node() -> Result<()> {
    let kept = Scratch::new("backups-store")?;
    let store = text(&kept.0)?;
    let node = Single::start("backups", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    node.ctl(&["publish", "orders", "first"])?.ok();
    let create = |name| node.ctl(&["backup", "create", "--to", store, "--name", name]);
    create("one")?.ok();
    create("two")?.ok();
    let again = create("one")?;
    assert_eq!(again.code, 1);
    assert!(
        again.stderr.contains("a backup 'one' exists"),
        "{}",
        again.stderr
    );
    let invalid = create("../one")?;
    assert_eq!(invalid.code, 2, "{}", invalid.stderr);
    let missing = node.ctl(&["backup", "create", "--to", store, "--queue", "nothing"])?;
    assert!(
        missing.stderr.contains("queue 'nothing' does not exist"),
        "{}",
        missing.stderr
    );

    let nowhere = |words: &[&str]| super::run(super::ctl("http://127.0.0.1:1", words), b"");
    std::fs::remove_file(kept.0.join("two/manifest.json"))?;
    let listed = nowhere(&["backup", "list", "--in", store, "--output", "json"])?.json()?;
    assert_eq!(listed[0]["messages"], 1, "{listed}");
    assert_eq!(listed[1]["state"], "incomplete", "{listed}");
    nowhere(&["backup", "verify", "--in", store, "one"])?.ok();
    let incomplete = nowhere(&["backup", "verify", "--in", store, "two"])?;
    assert!(
        incomplete.stderr.contains("'two' is incomplete"),
        "{}",
        incomplete.stderr
    );
    let part = kept.0.join("one/messages/00000000/00000000");
    let mut content = std::fs::read(&part)?;
    *content.last_mut().ok_or("empty")? ^= 1;
    std::fs::write(&part, content)?;
    node.ctl(&["purge_queue", "orders"])?.ok();
    for words in [
        ["backup", "verify", "--in", store, "one"],
        ["backup", "restore", "--from", store, "one"],
    ] {
        let damaged = node.ctl(&words)?;
        assert_eq!(damaged.code, 1);
        let object = "one/messages/00000000/00000000";
        assert!(damaged.stderr.contains(object), "{}", damaged.stderr);
    }
    assert_eq!(messages(&node, "/", "orders")?.len(), 0);
    nowhere(&["backup", "delete", "--in", store, "two"])?.ok();
    let gone = nowhere(&["backup", "delete", "--in", store, "two"])?;
    assert!(gone.stderr.contains("no backup 'two'"), "{}", gone.stderr);
    nowhere(&["backup", "delete", "--in", store, "two", "--if-exists"])?.ok();
    let absent = format!("{store}/absent");
    nowhere(&["backup", "delete", "--in", &absent, "two", "--if-exists"])?.ok();
    Ok(())
}

#[test]
fn result_files_have_the_counts() -> Result<()> {
    let kept = Scratch::new("backup-results")?;
    let store = text(&kept.0)?;
    let file = kept.0.join("result");
    let result = || -> Result<Json> { Ok(serde_json::from_slice(&std::fs::read(&file)?)?) };
    let path = text(&file)?;
    let node = Single::start("results", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    node.ctl(&["publish", "orders", "first"])?.ok();
    let create = |words: &[&str]| {
        let words = [
            &["backup", "create", "--to", store, "--result-file", path][..],
            words,
        ]
        .concat();
        node.ctl(&words)
    };
    create(&["--name", "all"])?.ok();
    let all = result()?;
    assert_eq!(all["messages"], 1, "{all}");
    assert_eq!(all["queues"], 1, "{all}");
    assert_eq!(all["queues_not_included"], 0, "{all}");
    create(&["--name", "definitions", "--definitions-only"])?.ok();
    let definitions = result()?;
    assert_eq!(definitions["messages"], 0, "{definitions}");
    let both = create(&["--definitions-only", "--queue", "orders"])?;
    assert_eq!(both.code, 2, "{}", both.stderr);
    node.ctl(&["delete_queue", "orders"])?.ok();
    let restore = ["backup", "restore", "--from", store, "--result-file", path];
    node.ctl(&[&restore[..], &["definitions"]].concat())?.ok();
    assert_eq!(messages(&node, "/", "orders")?.len(), 0);
    node.ctl(&[&restore[..], &["all"]].concat())?.ok();
    let restored = result()?;
    assert_eq!(restored["messages"], 1, "{restored}");
    assert_eq!(restored["queues_skipped"], 0, "{restored}");
    Ok(())
}

/// A restore that a full queue interrupts tells what it has done, and can be continued.
#[test]
fn interrupted_restore_is_continued() -> Result<()> {
    let kept = Scratch::new("backup-interrupted")?;
    let store = text(&kept.0)?;
    let node = Single::start("interrupted", &[])?;
    for queue in ["a", "b", "c"] {
        node.ctl(&["declare_queue", queue, "--type", "classic"])?
            .ok();
    }
    let mut client = Client::publisher(&amqp(&node)?)?;
    for queue in ["a", "b", "c"] {
        client.publish_all(queue, 50, 10)?;
    }
    node.ctl(&["backup", "create", "--to", store, "--name", "x"])?
        .ok();
    for queue in ["a", "b", "c"] {
        node.ctl(&["purge_queue", queue])?.ok();
    }
    let limit = "{\"max-length\": 10, \"overflow\": \"reject-publish\"}";
    node.ctl(&["set_policy", "limit", "^b$", limit])?.ok();
    let restore = |option: &[&str]| {
        let words = ["backup", "restore", "--from", store, "x", "--messages-only"];
        node.ctl(&[&words[..], option].concat())
    };
    let interrupted = restore(&[])?;
    assert_eq!(interrupted.code, 1);
    for part in [
        "queue 'a' in vhost '/' with 50 messages",
        "queue 'b' in vhost '/' has taken",
    ] {
        assert!(interrupted.stderr.contains(part), "{}", interrupted.stderr);
    }
    node.ctl(&["clear_policy", "limit"])?.ok();
    node.ctl(&["purge_queue", "b"])?.ok();
    restore(&["--skip-non-empty"])?.ok();
    for queue in ["a", "b", "c"] {
        assert_eq!(messages(&node, "/", queue)?.len(), 50, "{queue}");
    }
    restore(&["--into-non-empty"])?.ok();
    assert_eq!(messages(&node, "/", "a")?.len(), 100);
    Ok(())
}

const RECIPIENT: &str = "age18uzanmq5dspj63svw49587497ml8c9aa05asfmzysn2r3sy5ccwsvk2pw6";
const IDENTITY: &str = "AGE-SECRET-KEY-1A6JGMUXC73E7ZG7S8ND00JN5MGFADW7DPA36NK3MAS5P2UAJQ63SNSLFJR";
const OTHER: &str = "AGE-SECRET-KEY-1EGTZVFFV20835NWYV6270LXYVK2VKNX2MMDKWYKLMGR48UAWX40Q2P2LM0";

#[test]
fn encrypted_backup_is_restored_with_its_identity_only() -> Result<()> {
    let kept = Scratch::new("backup-encrypted")?;
    let place = kept.0.join("store");
    let store = text(&place)?;
    let (own, other) = (kept.0.join("own.txt"), kept.0.join("other.txt"));
    std::fs::write(&own, format!("# public key: {RECIPIENT}\n{IDENTITY}\n"))?;
    std::fs::write(&other, OTHER)?;
    let node = Single::start("encrypted", &[])?;
    node.ctl(&["declare_queue", "orders"])?.ok();
    node.ctl(&["declare_queue", "journal", "--type", "stream"])?
        .ok();
    for queue in ["orders", "journal"] {
        node.ctl(&["publish", queue, "a secret of the shop"])?.ok();
    }
    let create = [
        "backup",
        "create",
        "--to",
        store,
        "--name",
        "x",
        "--encrypt-to",
    ];
    let wrong = node.ctl(&[&create[..], &[IDENTITY]].concat())?;
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains("age-keygen") && !wrong.stderr.contains("AGE-SECRET-KEY-1A6"),
        "{}",
        wrong.stderr
    );
    let created = node.ctl(&[&create[..], &[RECIPIENT]].concat())?.ok();
    assert!(created.contains("orders"), "{created}");
    for entry in [
        "definitions.json",
        "manifest.json",
        "messages/00000000/00000000",
    ] {
        let content = std::fs::read(place.join("x").join(entry))?;
        let content = String::from_utf8_lossy(&content);
        assert!(!content.contains("secret of the shop") && !content.contains("orders"));
    }
    let listed = node.ctl(&["backup", "list", "--in", store, "--output", "json"])?;
    let listed = listed.json()?;
    assert_eq!(listed[0]["encryption"], "age", "{listed}");
    assert_eq!(listed[0]["messages"], 2, "{listed}");

    let verify =
        |keys: &[&str]| node.ctl(&[&["backup", "verify", "--in", store, "x"], keys].concat());
    let objects = verify(&[])?;
    assert!(
        objects.stderr.contains("give --identity"),
        "{}",
        objects.stderr
    );
    objects.ok();
    let whole = verify(&["--identity", text(&own)?])?;
    assert!(!whole.stderr.contains("--identity"), "{}", whole.stderr);
    let shown = whole.ok();
    assert!(shown.contains("orders"), "{shown}");
    let refused = verify(&["-i", text(&other)?])?;
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("encrypted for other recipients"),
        "{}",
        refused.stderr
    );

    for queue in ["orders", "journal"] {
        node.ctl(&["delete_queue", queue])?.ok();
    }
    let restore =
        |keys: &[&str]| node.ctl(&[&["backup", "restore", "--from", store, "x"], keys].concat());
    for keys in [&[][..], &["-i", text(&other)?]] {
        let refused = restore(keys)?;
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains("--identity"), "{}", refused.stderr);
    }
    let queues = node.ctl(&["list_queues", "--output", "json"])?.json()?;
    assert_eq!(queues, json!([]), "nothing was restored");
    let restored = restore(&["-i", text(&own)?])?.ok();
    assert!(restored.contains("2 messages of 2 queues"), "{restored}");
    assert_eq!(messages(&node, "/", "orders")?.len(), 1);
    Ok(())
}
