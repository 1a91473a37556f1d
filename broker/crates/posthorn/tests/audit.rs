//! The audit log of a node, compared with a list of operations over every protocol.

use crate::audit_clients::{Amqp10Client, Http, StreamClient};
use crate::client::Client;
use crate::program::{Result, Scratch, Serving, address, eventually, serve};
use audit::Operation;
use codec_amqp091::Method;
use codec_mqtt::Qos;
use message::Table;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

const PASSWORD: &str = "right-password";
const WRONG: &str = "wrong-password";

/// Protocol, user, operation, virtual host, name and outcome of a record.
type Entry = [String; 6];

/// The operations that were carried out.
#[derive(Default)]
struct Expected(BTreeMap<Entry, usize>);

impl Expected {
    fn add(&mut self, protocol: &str, user: &str, object: (&str, &str, &str), outcome: &str) {
        let (operation, vhost, name) = object;
        let entry = [protocol, user, operation, vhost, name, outcome].map(str::to_owned);
        *self.0.entry(entry).or_default() += 1;
    }
}

fn entry(record: &Json) -> Entry {
    let fields = ["protocol", "user", "operation", "vhost", "name", "outcome"];
    fields.map(|field| record[field].as_str().unwrap_or_default().to_owned())
}

fn records(file: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may not be complete yet.
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    let records = lines.map(|line| serde_json::from_str(line).expect("a line of JSON"));
    records.collect()
}

fn count(records: &[Json]) -> BTreeMap<Entry, usize> {
    let mut counted = BTreeMap::new();
    for record in records {
        *counted.entry(entry(record)).or_default() += 1;
    }
    counted
}

/// Method, path and body of a request over HTTP, and the operation with virtual host and name that its record has.
type HttpRequest = (
    &'static str,
    &'static str,
    Json,
    (&'static str, &'static str, &'static str),
);

fn http_requests() -> Vec<HttpRequest> {
    use serde_json::json;
    let none = || json!({});
    vec![
        ("PUT", "vhosts/v", none(), ("vhost.put", "v", "v")),
        (
            "PUT",
            "users/app",
            json!({"password": PASSWORD, "tags": "management"}),
            ("user.put", "", "app"),
        ),
        (
            "PUT",
            "users/gone",
            json!({"password": PASSWORD, "tags": ""}),
            ("user.put", "", "gone"),
        ),
        (
            "PUT",
            "permissions/%2F/app",
            json!({"configure": "^(app|mqtt)", "write": "^(app|mqtt|amq.topic)", "read": "^(app|mqtt|amq.topic)"}),
            ("permission.put", "/", "app"),
        ),
        (
            "PUT",
            "permissions/v/nobody",
            json!({"configure": "", "write": "", "read": ""}),
            ("permission.put", "v", "nobody"),
        ),
        (
            "PUT",
            "permissions/v/gone",
            json!({"configure": "", "write": "", "read": ""}),
            ("permission.put", "v", "gone"),
        ),
        (
            "DELETE",
            "permissions/v/gone",
            none(),
            ("permission.delete", "v", "gone"),
        ),
        (
            "PUT",
            "topic-permissions/%2F/app",
            json!({"exchange": "amq.topic", "write": "^app", "read": "^app"}),
            ("topic_permission.put", "/", "app"),
        ),
        (
            "PUT",
            "topic-permissions/%2F/gone",
            json!({"exchange": "amq.topic", "write": "", "read": ""}),
            ("topic_permission.put", "/", "gone"),
        ),
        (
            "DELETE",
            "topic-permissions/%2F/gone",
            none(),
            ("topic_permission.delete", "/", "gone"),
        ),
        (
            "PUT",
            "user-limits/app/max-connections",
            json!({"value": 100}),
            ("user_limit.set", "", "app"),
        ),
        (
            "DELETE",
            "user-limits/app/max-connections",
            none(),
            ("user_limit.clear", "", "app"),
        ),
        (
            "PUT",
            "vhost-limits/v/max-queues",
            json!({"value": 100}),
            ("vhost_limit.set", "v", "max-queues"),
        ),
        (
            "DELETE",
            "vhost-limits/v/max-queues",
            none(),
            ("vhost_limit.clear", "v", "max-queues"),
        ),
        (
            "POST",
            "vhosts/v/deletion/protection",
            none(),
            ("vhost.protect", "v", "v"),
        ),
        ("DELETE", "vhosts/v", none(), ("vhost.delete", "v", "v")),
        (
            "DELETE",
            "vhosts/v/deletion/protection",
            none(),
            ("vhost.unprotect", "v", "v"),
        ),
        (
            "POST",
            "vhosts/v/start/nowhere",
            none(),
            ("vhost.start", "v", "nowhere"),
        ),
        (
            "PUT",
            "policies/%2F/pol",
            json!({"pattern": "^none", "definition": {"max-length": 10}}),
            ("policy.put", "/", "pol"),
        ),
        (
            "DELETE",
            "policies/%2F/pol",
            none(),
            ("policy.delete", "/", "pol"),
        ),
        (
            "PUT",
            "operator-policies/%2F/pol",
            json!({"pattern": "^none", "definition": {"max-length": 10}}),
            ("operator_policy.put", "/", "pol"),
        ),
        (
            "DELETE",
            "operator-policies/%2F/pol",
            none(),
            ("operator_policy.delete", "/", "pol"),
        ),
        (
            "PUT",
            "parameters/shovel/%2F/par",
            json!({"value": {}}),
            ("parameter.put", "/", "par"),
        ),
        (
            "DELETE",
            "parameters/shovel/%2F/par",
            none(),
            ("parameter.delete", "/", "par"),
        ),
        (
            "PUT",
            "global-parameters/par",
            json!({"value": 1}),
            ("global_parameter.put", "", "par"),
        ),
        (
            "DELETE",
            "global-parameters/par",
            none(),
            ("global_parameter.delete", "", "par"),
        ),
        (
            "PUT",
            "cluster-name",
            json!({"name": "renamed"}),
            ("global_parameter.put", "", ""),
        ),
        (
            "PUT",
            "exchanges/%2F/hx",
            json!({"type": "direct"}),
            ("exchange.declare", "/", "hx"),
        ),
        ("PUT", "queues/%2F/hq", none(), ("queue.declare", "/", "hq")),
        (
            "POST",
            "bindings/%2F/e/hx/q/hq",
            json!({"routing_key": "k"}),
            ("binding.create", "/", "hx"),
        ),
        (
            "DELETE",
            "bindings/%2F/e/hx/q/hq/k",
            none(),
            ("binding.delete", "/", "hx"),
        ),
        (
            "POST",
            "bindings/%2F/e/hx/e/amq.topic",
            json!({"routing_key": "k"}),
            ("binding.create", "/", "hx"),
        ),
        (
            "DELETE",
            "bindings/%2F/e/hx/e/amq.topic/k",
            none(),
            ("binding.delete", "/", "hx"),
        ),
        (
            "POST",
            "exchanges/%2F/hx/publish",
            json!({"properties": {}, "routing_key": "k", "payload": "p", "payload_encoding": "string"}),
            ("message.publish", "/", "hx"),
        ),
        (
            "POST",
            "queues/%2F/hq/get",
            json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
            ("message.get", "/", "hq"),
        ),
        (
            "GET",
            "queues/%2F/hq/messages/export",
            none(),
            ("message.export", "/", "hq"),
        ),
        (
            "POST",
            "queues/%2F/hq/messages/import",
            json!({"not": "records"}),
            ("message.import", "/", "hq"),
        ),
        (
            "POST",
            "queues/%2F/hq/messages/move",
            json!({"destination_exchange": "hx", "count": 1}),
            ("message.move", "/", "hq"),
        ),
        (
            "POST",
            "queues/%2F/hq/messages/redrive",
            json!({"count": 1}),
            ("message.redrive", "/", "hq"),
        ),
        (
            "DELETE",
            "queues/%2F/hq/messages/7",
            none(),
            ("message.delete", "/", "hq"),
        ),
        (
            "POST",
            "queues/%2F/hq/actions",
            json!({"action": "sync"}),
            ("queue.action", "/", "hq"),
        ),
        (
            "DELETE",
            "queues/%2F/hq/contents",
            none(),
            ("queue.purge", "/", "hq"),
        ),
        (
            "DELETE",
            "queues/%2F/hq",
            none(),
            ("queue.delete", "/", "hq"),
        ),
        (
            "DELETE",
            "exchanges/%2F/hx",
            none(),
            ("exchange.delete", "/", "hx"),
        ),
        (
            "DELETE",
            "exchanges/%2F/missing",
            none(),
            ("exchange.delete", "/", "missing"),
        ),
        (
            "PUT",
            "stream/super-streams/%2F/hs",
            json!({"partitions": 1}),
            ("super_stream.create", "/", "hs"),
        ),
        (
            "DELETE",
            "stream/super-streams/%2F/hs",
            none(),
            ("super_stream.delete", "/", "hs"),
        ),
        (
            "DELETE",
            "stream/%2F/missing/tracking/ref",
            none(),
            ("stream.reset_offset", "/", "missing"),
        ),
        (
            "POST",
            "definitions",
            json!({"queues": []}),
            ("definitions.import", "", ""),
        ),
        ("GET", "definitions", none(), ("definitions.export", "", "")),
        (
            "GET",
            "definitions/v",
            none(),
            ("definitions.export", "v", "v"),
        ),
        (
            "PUT",
            "feature-flags/missing/enable",
            none(),
            ("feature_flag.enable", "", "missing"),
        ),
        (
            "DELETE",
            "nodes/missing",
            none(),
            ("node.forget", "", "missing"),
        ),
        (
            "DELETE",
            "nodes/missing/maintenance",
            none(),
            ("node.maintenance", "", "missing"),
        ),
        (
            "PUT",
            "nodes/missing/log-levels",
            json!({"level": "info"}),
            ("node.configure", "", "missing"),
        ),
        (
            "POST",
            "rebalance/queues",
            none(),
            ("queue.rebalance", "", ""),
        ),
        (
            "POST",
            "recovery/majority",
            json!({"lost": ["missing"]}),
            ("majority.recover", "", ""),
        ),
        (
            "POST",
            "queues/quorum/replicas/on/missing/grow",
            none(),
            ("queue.change_members", "", "missing"),
        ),
        (
            "DELETE",
            "connections/missing",
            none(),
            ("connection.close", "", "missing"),
        ),
        (
            "DELETE",
            "auth/attempts/missing",
            none(),
            ("login_counts.reset", "", "missing"),
        ),
        (
            "POST",
            "users/bulk-delete",
            json!({"users": ["gone"]}),
            ("user.delete", "", ""),
        ),
        ("DELETE", "vhosts/v", none(), ("vhost.delete", "v", "v")),
        ("PUT", "vhosts/v", none(), ("vhost.put", "v", "v")),
    ]
}

fn over_http(address: &str, expected: &mut Expected) -> Result<()> {
    let mut http = Http::open(address)?;
    expected.add("http", "guest", ("login", "", "guest"), "ok");
    for (method, path, body, object) in http_requests() {
        let status = http.send(method, path, ("guest", "guest"), &body)?;
        let outcome = match status {
            200..300 => "ok",
            401 | 403 => "refused",
            _ => "failed",
        };
        expected.add("http", "guest", object, outcome);
        // A read that is not recorded.
        assert_eq!(
            http.send("GET", "vhosts", ("guest", "guest"), &Json::Null)?,
            200
        );
    }
    // Another user on the same connection logs in.
    assert_eq!(
        http.send("GET", "users", ("app", PASSWORD), &Json::Null)?,
        401
    );
    expected.add("http", "app", ("login", "", "app"), "ok");
    expected.add(
        "http",
        "app",
        ("permission.check", "", "/api/users"),
        "refused",
    );
    assert_eq!(
        http.send("DELETE", "users/gone", ("app", PASSWORD), &Json::Null)?,
        401
    );
    expected.add("http", "app", ("user.delete", "", "gone"), "refused");
    assert_eq!(
        http.send("GET", "whoami", ("app", WRONG), &Json::Null)?,
        401
    );
    expected.add("http", "app", ("login", "", "app"), "refused");
    Ok(())
}

fn over_amqp091(address: &str, expected: &mut Expected) -> Result<()> {
    let mut add = |object, outcome| expected.add("amqp091", "app", object, outcome);
    assert!(Client::open(address, "app", WRONG, "/").is_err());
    add(("login", "", "app"), "refused");
    assert!(Client::open(address, "app", PASSWORD, "v").is_err());
    add(("login", "", "app"), "ok");
    add(("vhost.open", "v", "v"), "refused");

    let mut client = Client::open(address, "app", PASSWORD, "/")?;
    add(("login", "", "app"), "ok");
    client.declare("app-q", "classic")?;
    add(("queue.declare", "/", "app-q"), "ok");
    // Changes nothing.
    client.declare("app-q", "classic")?;
    let exchange = Method::ExchangeDeclare {
        exchange: "app-x",
        kind: "direct",
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::default(),
    };
    client.ask(&exchange, "exchange.declare-ok")?;
    add(("exchange.declare", "/", "app-x"), "ok");
    let bind = Method::QueueBind {
        queue: "app-q",
        exchange: "app-x",
        routing_key: "k",
        no_wait: false,
        arguments: Table::default(),
    };
    client.ask(&bind, "queue.bind-ok")?;
    add(("binding.create", "/", "app-x"), "ok");
    let unbind = Method::QueueUnbind {
        queue: "app-q",
        exchange: "app-x",
        routing_key: "k",
        arguments: Table::default(),
    };
    client.ask(&unbind, "queue.unbind-ok")?;
    add(("binding.delete", "/", "app-x"), "ok");
    let purge = Method::QueuePurge {
        queue: "app-q",
        no_wait: false,
    };
    client.ask(&purge, "queue.purge-ok")?;
    add(("queue.purge", "/", "app-q"), "ok");

    let mut refused = Client::open(address, "app", PASSWORD, "/")?;
    add(("login", "", "app"), "ok");
    refused.publish_to("app-x", "k", 1)?;
    refused.ask(&bind, "queue.bind-ok")?;
    add(("binding.create", "/", "app-x"), "ok");
    refused.publish_to("app-x", "k", 1)?;
    let delete = Method::QueueDelete {
        queue: "app-q",
        if_unused: false,
        if_empty: true,
        no_wait: false,
    };
    assert!(
        refused.ask(&delete, "queue.delete-ok").is_err(),
        "the queue is not empty"
    );
    add(("queue.delete", "/", "app-q"), "failed");

    client.delete("app-q")?;
    add(("queue.delete", "/", "app-q"), "ok");
    let delete = Method::ExchangeDelete {
        exchange: "app-x",
        if_unused: false,
        no_wait: false,
    };
    client.ask(&delete, "exchange.delete-ok")?;
    add(("exchange.delete", "/", "app-x"), "ok");
    assert!(client.declare("other", "classic").is_err());
    add(("permission.check", "/", "other"), "refused");
    Ok(())
}

fn over_amqp10(address: &str, expected: &mut Expected) -> Result<()> {
    let mut add = |object, outcome| expected.add("amqp10", "app", object, outcome);
    assert!(Amqp10Client::open(address, "app", WRONG).is_err());
    add(("login", "", "app"), "refused");
    let mut client = Amqp10Client::open(address, "app", PASSWORD)?;
    add(("login", "", "app"), "ok");
    let binding = [
        ("source", "app-x"),
        ("destination_queue", "app-q"),
        ("binding_key", "k"),
    ];
    for (method, path, body, object) in [
        (
            "PUT",
            "/queues/app-q",
            &[][..],
            ("queue.declare", "/", "app-q"),
        ),
        (
            "PUT",
            "/exchanges/app-x",
            &[("type", "direct")],
            ("exchange.declare", "/", "app-x"),
        ),
        (
            "POST",
            "/bindings",
            &binding,
            ("binding.create", "/", "app-x"),
        ),
        (
            "DELETE",
            "/bindings/src=app-x;dstq=app-q;key=k;args=",
            &[],
            ("binding.delete", "/", "app-x"),
        ),
        (
            "DELETE",
            "/queues/app-q/messages",
            &[],
            ("queue.purge", "/", "app-q"),
        ),
        (
            "DELETE",
            "/queues/app-q",
            &[],
            ("queue.delete", "/", "app-q"),
        ),
        (
            "DELETE",
            "/exchanges/app-x",
            &[],
            ("exchange.delete", "/", "app-x"),
        ),
    ] {
        let status = client.manage(method, path, body)?;
        assert!(status.starts_with('2'), "{method} {path}: {status}");
        add(object, "ok");
    }
    // A queue that does not exist: nothing is deleted.
    client.manage("DELETE", "/queues/app-missing", &[])?;
    let refused = client.manage("PUT", "/queues/other", &[]);
    assert!(!refused.is_ok_and(|status| status.starts_with('2')));
    add(("permission.check", "/", "other"), "refused");
    Ok(())
}

fn over_mqtt(address: &str, expected: &mut Expected) -> Result<()> {
    use crate::mqtt_client::Client;
    let mut add = |object, outcome| expected.add("mqtt", "app", object, outcome);
    assert!(Client::log_in(address, "app", WRONG).is_err());
    add(("login", "", "app"), "refused");
    let queue = ("queue.declare", "/", "mqtt-subscription-dqos1");
    let mut client = Client::log_in_as(address, ("d", false), "app", PASSWORD)?;
    add(("login", "", "app"), "ok");
    client.subscribe("app/t", Qos::AtLeastOnce)?;
    add(queue, "ok");
    add(("binding.create", "/", "amq.topic"), "ok");
    assert!(client.subscribe("other", Qos::AtLeastOnce).is_err());
    add(("permission.check", "/", "other"), "refused");
    client.publish("other", 7, "p", false)?;
    assert!(client.acknowledged().is_err(), "the connection is closed");
    add(("permission.check", "/", "other"), "refused");
    let mut client = Client::log_in_as(address, ("d", true), "app", PASSWORD)?;
    add(("login", "", "app"), "ok");
    add(("queue.delete", "/", queue.2), "ok");
    client.goodbye()
}

fn over_streams(address: &str, expected: &mut Expected) -> Result<()> {
    let mut add = |object, outcome| expected.add("stream", "app", object, outcome);
    assert!(StreamClient::open(address, "app", WRONG).is_err());
    add(("login", "", "app"), "refused");
    let mut client = StreamClient::open(address, "app", PASSWORD)?;
    add(("login", "", "app"), "ok");
    client.create("app-s")?;
    add(("queue.declare", "/", "app-s"), "ok");
    client.delete("app-s")?;
    add(("queue.delete", "/", "app-s"), "ok");
    client.create_super_stream("app-ss", "app-ss-0")?;
    add(("exchange.declare", "/", "app-ss"), "ok");
    add(("queue.declare", "/", "app-ss-0"), "ok");
    add(("binding.create", "/", "app-ss"), "ok");
    client.delete_super_stream("app-ss")?;
    add(("queue.delete", "/", "app-ss-0"), "ok");
    add(("exchange.delete", "/", "app-ss"), "ok");
    assert!(client.create("other").is_err());
    add(("permission.check", "/", "other"), "refused");
    Ok(())
}

/// Operations that this test does not cause.
const OTHER_OPERATIONS: &[Operation] = &[
    // Tests of other crates cover a lost record and a node that joins.
    Operation::AuditLost,
    Operation::NodeJoin,
    // A change of the metadata that only definitions and vhosts cause, over HTTP.
    Operation::VhostTrace,
    // Any route that has no operation; a test of crate `management` makes sure that there is none.
    Operation::HttpRequest,
];

#[test]
fn every_operation_over_every_protocol_is_recorded_once() -> Result<()> {
    let scratch = Scratch::new("audit")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let file = scratch.0.join("audit.log");
    let mut command = serve(&dir, &ready);
    for setting in [
        format!("audit.file={}", file.display()),
        "mqtt.listeners.tcp.default=127.0.0.1:0".to_owned(),
        "stream.listeners.tcp.default=127.0.0.1:0".to_owned(),
        "shards=2".to_owned(),
    ] {
        command.arg("--set").arg(setting);
    }
    let mut node = Serving(command.stderr(Stdio::null()).spawn()?);
    let mut expected = Expected::default();
    over_http(&address(&ready, "management")?, &mut expected)?;
    let amqp = address(&ready, "amqp")?;
    over_amqp091(&amqp, &mut expected)?;
    over_amqp10(&amqp, &mut expected)?;
    over_mqtt(&address(&ready, "mqtt")?, &mut expected)?;
    over_streams(&address(&ready, "stream")?, &mut expected)?;

    // Rotation: further records go to a new file.
    eventually("the records so far", || {
        (records(&file).len() >= expected.0.values().sum()).then_some(())
    })?;
    let moved = scratch.0.join("audit.1");
    std::fs::rename(&file, &moved)?;
    let pid = node.0.id().to_string();
    let hangup = Command::new("kill").args(["-HUP", &pid]).status()?;
    assert!(hangup.success());
    eventually("the new file", || file.exists().then_some(()))?;
    assert!(Client::open(&amqp, "late", WRONG, "/").is_err());
    expected.add("amqp091", "late", ("login", "", "late"), "refused");

    // The rest of the records is written before the node ends.
    let ended = Command::new("kill").args(["-TERM", &pid]).status()?;
    assert!(ended.success());
    assert!(node.0.wait()?.success());
    let late = records(&file);
    assert_eq!(late.len(), 1, "{late:?}");
    let all: Vec<Json> = records(&moved).into_iter().chain(late).collect();
    let found = count(&all);
    let missing: Vec<_> = expected
        .0
        .iter()
        .filter(|(e, n)| found.get(*e) != Some(n))
        .collect();
    let unexpected: Vec<_> = found
        .iter()
        .filter(|(e, n)| expected.0.get(*e) != Some(n))
        .collect();
    assert!(
        missing.is_empty() && unexpected.is_empty(),
        "missing: {missing:#?}\nunexpected: {unexpected:#?}"
    );

    for record in &all {
        let text = record.to_string();
        assert!(!text.contains(PASSWORD) && !text.contains(WRONG), "{text}");
        for field in ["time", "node", "peer"] {
            assert!(record[field].is_string(), "{field} is missing: {text}");
        }
        assert_eq!(
            record["outcome"] == "ok",
            record["error"].is_null(),
            "{text}"
        );
    }
    let seen: BTreeSet<&str> = all.iter().filter_map(|r| r["operation"].as_str()).collect();
    let known = Operation::ALL
        .iter()
        .filter(|o| !OTHER_OPERATIONS.contains(o));
    let known: BTreeSet<&str> = known.map(|operation| operation.name()).collect();
    assert_eq!(seen, known);
    Ok(())
}

/// The messages of a queue, as routing key and headers, once there are `count`.
fn events(address: &str, count: usize) -> Result<Vec<(String, Json)>> {
    let body = serde_json::json!({"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"});
    let got = eventually("the events", || {
        let mut http = Http::open(address).ok()?;
        let (_, text) = http
            .ask("POST", "queues/%2F/events/get", ("guest", "guest"), &body)
            .ok()?;
        let got: Vec<Json> = serde_json::from_slice(&text).ok()?;
        (got.len() >= count).then_some(got)
    })?;
    let events = got.into_iter().map(|message| {
        let key = message["routing_key"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        (key, message["properties"]["headers"].clone())
    });
    Ok(events.collect())
}

#[test]
fn records_are_published_to_the_event_exchange() -> Result<()> {
    let scratch = Scratch::new("events")?;
    let (dir, ready) = (scratch.0.join("data"), scratch.0.join("ready"));
    let mut command = serve(&dir, &ready);
    command.args(["--set", "event_exchange.vhost=/"]);
    let _node = Serving(command.stderr(Stdio::null()).spawn()?);
    let management = address(&ready, "management")?;
    let guest = ("guest", "guest");
    // The first event declares the exchange.
    let mut http = Http::open(&management)?;
    let is_declared = |http: &mut Http| {
        http.send(
            "GET",
            "exchanges/%2F/amq.rabbitmq.event",
            guest,
            &Json::Null,
        )
        .ok()
    };
    eventually("the exchange", || {
        (is_declared(&mut http)? == 200).then_some(())
    })?;
    http.send("PUT", "queues/%2F/events", guest, &serde_json::json!({}))?;
    let bind = serde_json::json!({"routing_key": "#"});
    http.send(
        "POST",
        "bindings/%2F/e/amq.rabbitmq.event/q/events",
        guest,
        &bind,
    )?;

    let mut client = Client::open(&address(&ready, "amqp")?, "guest", "guest", "/")?;
    client.declare("q", "classic")?;
    client.delete("q")?;
    assert!(Client::open(&address(&ready, "amqp")?, "nobody", WRONG, "/").is_err());
    let user = serde_json::json!({"password": PASSWORD, "tags": "monitoring"});
    http.send("PUT", "users/eve", guest, &user)?;

    let events = events(&management, 7)?;
    let found = |key: &str, field: &str, value: &str| {
        let is_it = |(k, headers): &&(String, Json)| k == key && headers[field] == value;
        events.iter().find(is_it).map(|(_, headers)| headers)
    };
    let created = found("queue.created", "name", "q").ok_or("no queue.created")?;
    assert_eq!(created["vhost"], "/");
    assert_eq!(created["durable"], true);
    assert_eq!(created["user_who_performed_action"], "guest");
    assert!(created["timestamp_in_ms"].is_i64());
    assert!(found("queue.deleted", "name", "q").is_some(), "{events:?}");
    let failure = found("user.authentication.failure", "name", "nobody");
    assert_eq!(failure.ok_or("no failure")?["protocol"], "amqp091");
    assert!(found("user.authentication.success", "name", "guest").is_some());
    assert!(found("user.created", "name", "eve").is_some());
    assert!(found("user.tags.set", "tags", "monitoring").is_some());
    let text = format!("{events:?}");
    assert!(!text.contains(PASSWORD) && !text.contains(WRONG), "{text}");
    Ok(())
}

#[test]
fn documented_operations_match_the_source() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/audit-log.md");
    let text = std::fs::read_to_string(file).expect("the reference");
    let before_events = text.split("## Events").next().unwrap_or_default();
    let rows = before_events.lines().filter_map(|line| {
        let (name, meaning) = line.strip_prefix("| `")?.split_once("` | ")?;
        let is_operation = name == "login" || name.contains('.');
        is_operation.then_some((name, meaning.strip_suffix(" |")?))
    });
    let known = Operation::ALL.iter().map(|o| (o.name(), o.description()));
    assert_eq!(rows.collect::<Vec<_>>(), known.collect::<Vec<_>>());
}
