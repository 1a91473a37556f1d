use super::*;
use control::{
    ChannelFacts, LinkFacts, LinkFilterFacts, LinkSessionFacts, MessageCounts, ProtocolCounters,
};
use queue::QueueType;

fn connection(name: &str, user: &str, number: u64) -> ConnectionFacts {
    ConnectionFacts {
        name: name.into(),
        node: NodeId(1),
        number,
        user: user.into(),
        vhost: "/".into(),
        protocol: "amqp091".into(),
        peer: "[::1]:4000".into(),
        local: "127.0.0.1:5672".into(),
        state: "running".into(),
        auth_mechanism: "PLAIN".into(),
        received_bytes: 100,
        channels: vec![ChannelFacts {
            number: 3,
            prefetch: 7,
            consumers: 2,
            auto_ack: vec!["silent".into()],
            counts: MessageCounts {
                publish: 5,
                ..MessageCounts::default()
            },
            ..ChannelFacts::default()
        }],
        ..ConnectionFacts::default()
    }
}

fn connected() -> Server {
    let server = Server::start();
    server.add_user("m", &["management"]);
    server.quorum("q");
    let mut fake = server.fake.lock().unwrap();
    let queue = fake.tree.queue("/", "q").unwrap().id.0;
    fake.connections = vec![
        connection("a -> x", "guest", 8),
        connection("b -> x", "m", 9),
    ];
    let consumer = |tag: &str, number: u64| ConsumerFacts {
        queue,
        session_node: 1,
        session_number: number,
        channel: 3,
        tag: tag.into(),
        active: true,
        ..ConsumerFacts::default()
    };
    fake.consumers = vec![
        consumer("silent", 8),
        consumer("t", 8),
        consumer("lost", 77),
    ];
    drop(fake);
    server
}

#[test]
fn sessions_of_an_amqp10_connection_are_listed_with_their_links() {
    let server = connected();
    let link = |handle: u32, address: Option<&str>, mode: &str| LinkFacts {
        handle,
        name: format!("link {handle}"),
        address: address.map(str::to_owned),
        settle_mode: mode.into(),
        delivery_count: 9,
        credit: 170,
        ..LinkFacts::default()
    };
    let session = LinkSessionFacts {
        handle_max: 255,
        next_incoming_id: 1,
        incoming_window: 400,
        next_outgoing_id: 2,
        remote_incoming_window: 3,
        remote_outgoing_window: 4,
        incoming: vec![
            LinkFacts {
                max_message_size: Some(1000),
                unconfirmed: 5,
                ..link(0, Some("/exchanges/x/k"), "mixed")
            },
            link(1, None, "unsettled"),
        ],
        outgoing: vec![LinkFacts {
            queue: "a b".into(),
            filters: vec![LinkFilterFacts {
                name: "sql".into(),
                descriptor: json!("amqp:sql-filter"),
                value: json!("properties.subject = 'a'"),
            }],
            ..link(2, Some("/queues/a%20b"), "settled")
        }],
    };
    server.fake.lock().unwrap().connections[0] = ConnectionFacts {
        protocol: "web_amqp10".into(),
        channels: vec![ChannelFacts {
            number: 7,
            unacknowledged: 6,
            links: Some(session),
            ..ChannelFacts::default()
        }],
        ..connection("a -> x", "guest", 8)
    };
    assert_eq!(
        server.get("/api/connections/a%20-%3E%20x/sessions"),
        json!([{
            "channel_number": 7,
            "handle_max": 255,
            "next_incoming_id": 1,
            "incoming_window": 400,
            "next_outgoing_id": 2,
            "remote_incoming_window": 3,
            "remote_outgoing_window": 4,
            "outgoing_unsettled_deliveries": 6,
            "incoming_links": [
                {
                    "handle": 0,
                    "link_name": "link 0",
                    "target_address": "/exchanges/x/k",
                    "snd_settle_mode": "mixed",
                    "max_message_size": 1000,
                    "delivery_count": 9,
                    "credit": 170,
                    "unconfirmed_messages": 5,
                },
                {
                    "handle": 1,
                    "link_name": "link 1",
                    "target_address": null,
                    "snd_settle_mode": "unsettled",
                    "max_message_size": "unlimited",
                    "delivery_count": 9,
                    "credit": 170,
                    "unconfirmed_messages": 0,
                },
            ],
            "outgoing_links": [{
                "handle": 2,
                "link_name": "link 2",
                "source_address": "/queues/a%20b",
                "queue_name": "a b",
                "send_settled": true,
                "max_message_size": "unlimited",
                "delivery_count": 9,
                "credit": 170,
                "filter": [{
                    "name": "sql",
                    "descriptor": "amqp:sql-filter",
                    "value": "properties.subject = 'a'",
                }],
            }],
        }])
    );
    let other = server.ask("GET", "/api/connections/b%20-%3E%20x/sessions", None);
    assert_eq!(other.status, 400);
    let none = server.ask("GET", "/api/connections/none/sessions", None);
    assert_eq!(none.status, 404);
    // Other users do not see the connection.
    let hidden = server.ask_as(
        Some(("m", "secret")),
        "GET",
        "/api/connections/a%20-%3E%20x/sessions",
        None,
    );
    assert_eq!(hidden.status, 404);
}

#[test]
fn channel_list_contains_connection_details() {
    let server = connected();
    let all = server.get("/api/channels");
    assert_eq!(all.as_array().unwrap().len(), 2);
    let first = &all[0];
    assert_eq!(
        (
            &first["name"],
            &first["number"],
            &first["prefetch_count"],
            &first["node"]
        ),
        (&json!("a -> x (3)"), &json!(3), &json!(7), &json!("c-0"))
    );
    assert_eq!(first["message_stats"]["publish"], 5);
    assert_eq!(
        first["connection_details"],
        json!({"name": "a -> x", "peer_host": "::1", "peer_port": 4000})
    );
    assert_eq!(
        server.get("/api/channels/a%20-%3E%20x%20(3)")["user"],
        "guest"
    );
    assert_eq!(server.ask("GET", "/api/channels/none", None).status, 404);
    // A single channel includes its consumers; counts per exchange and queue are not kept.
    let shown = server.get("/api/channels/a%20-%3E%20x%20(3)");
    let consumers = shown["consumer_details"].as_array().unwrap().iter();
    let tags: Vec<_> = consumers.map(|c| c["consumer_tag"].clone()).collect();
    assert_eq!(tags, ["silent", "t"]);
    assert_eq!(
        (&shown["publishes"], &shown["deliveries"]),
        (&json!([]), &json!([]))
    );
    let one = server.get("/api/connections/a%20-%3E%20x/channels");
    assert_eq!(one.as_array().unwrap().len(), 1);
    assert_eq!(
        server
            .ask("GET", "/api/connections/none/channels", None)
            .status,
        404
    );
    assert_eq!(
        server
            .get("/api/vhosts/%2F/channels")
            .as_array()
            .unwrap()
            .len(),
        2
    );
    // Users without the monitoring tag see only their own channels.
    let own = server
        .ask_as(Some(("m", "secret")), "GET", "/api/channels", None)
        .body;
    assert_eq!(own.as_array().unwrap().len(), 1);
    assert_eq!(own[0]["user"], "m");
}

#[test]
fn consumer_list_contains_channel_details() {
    let server = connected();
    let all = server.get("/api/consumers");
    let shown: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["consumer_tag"].clone(), c["ack_required"].clone()))
        .collect();
    assert_eq!(
        shown,
        [
            (json!("lost"), json!(true)),
            (json!("silent"), json!(false)),
            (json!("t"), json!(true)),
        ]
    );
    // A client whose node did not answer has no channel details.
    assert_eq!(all[0]["channel_details"], json!({}));
    assert_eq!(all[2]["channel_details"]["name"], "a -> x (3)");
    // The node's timeout applies, except for a client with an unknown protocol.
    assert_eq!(all[2]["consumer_timeout"], 1_800_000);
    assert!(all[0].get("consumer_timeout").is_none());
    assert_eq!(all[2]["queue"], json!({"name": "q", "vhost": "/"}));
    assert_eq!(server.get("/api/consumers/%2F"), all);
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    assert_eq!(server.get("/api/consumers/other"), json!([]));
    let queue = server.get("/api/queues/%2F/q");
    assert_eq!(queue["consumer_details"], all);
    assert_eq!(queue["single_active_consumer_tag"], json!(null));
}

#[test]
fn consumer_timeout_of_policy_is_shown() {
    let server = connected();
    let policy = json!({"pattern": "^q$", "definition": {"consumer-timeout": 60_000}});
    assert_eq!(server.put("/api/policies/%2F/patience", policy), 201);
    let shown = server.get("/api/queues/%2F/q");
    let consumers = shown["consumer_details"].as_array().unwrap();
    let of = |tag: &str| {
        let found = consumers.iter().find(|c| c["consumer_tag"] == tag);
        found.unwrap()["consumer_timeout"].clone()
    };
    assert_eq!((of("t"), of("lost")), (json!(60_000), Json::Null));
}

#[test]
fn connection_shows_auth_mechanism_and_tls_parameters() {
    let server = connected();
    let shown = server.get("/api/connections/a%20-%3E%20x");
    assert_eq!(shown["auth_mechanism"], "PLAIN");
    // Without TLS the keys are present and null.
    for name in ["ssl_protocol", "ssl_cipher", "peer_cert_subject"] {
        assert_eq!(shown.get(name), Some(&Json::Null), "{name}");
    }
    {
        let mut fake = server.fake.lock().unwrap();
        let connection = &mut fake.connections[0];
        connection.tls = true;
        connection.auth_mechanism = String::new();
    }
    // Over TLS with unknown session parameters.
    let shown = server.get("/api/connections/a%20-%3E%20x");
    assert_eq!(
        (shown.get("ssl_protocol"), &shown["auth_mechanism"]),
        (None, &json!("none"))
    );
    {
        let mut fake = server.fake.lock().unwrap();
        let connection = &mut fake.connections[0];
        connection.tls_protocol = "tlsv1.3".into();
        connection.tls_suite = "TLS13_AES_256_GCM_SHA384".into();
        connection.certificate = Some("CN=client,O=Acme".into());
    }
    let shown = server.get("/api/connections/a%20-%3E%20x");
    for (name, value) in [
        ("ssl_protocol", "tlsv1.3"),
        ("ssl_key_exchange", "any"),
        ("ssl_cipher", "aes_256_gcm"),
        ("ssl_hash", "aead"),
        ("peer_cert_subject", "CN=client,O=Acme"),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
    assert!(shown.get("peer_cert_issuer").is_none());
}

#[test]
fn queue_shows_single_active_and_exclusive_consumer_tags() {
    let server = connected();
    let arguments = json!({"x-single-active-consumer": true});
    let body = json!({"durable": true, "arguments": arguments});
    assert_eq!(server.put("/api/queues/%2F/single", body), 201);
    {
        let mut fake = server.fake.lock().unwrap();
        let queue = fake.tree.queue("/", "single").unwrap().id.0;
        for consumer in &mut fake.consumers {
            consumer.queue = queue;
            consumer.active = consumer.tag == "t";
            consumer.exclusive = consumer.tag == "t";
        }
    }
    let queue = server.get("/api/queues/%2F/single");
    assert_eq!(queue["single_active_consumer_tag"], "t");
    assert_eq!(queue["exclusive_consumer_tag"], "t");
}

#[test]
fn consumer_shows_activity_status() {
    let server = connected();
    let status = |path: &str| {
        let all = server.get(path);
        let all = all.as_array().unwrap().iter();
        let status_of = |c: &Json| {
            let of = |key: &str| c[key].as_str().unwrap().to_owned();
            (
                of("consumer_tag"),
                of("activity_status"),
                c["active"] == true,
            )
        };
        all.map(status_of).collect::<Vec<_>>()
    };
    let up = |tag: &str| (tag.to_owned(), "up".to_owned(), true);
    assert_eq!(status("/api/consumers"), ["lost", "silent", "t"].map(up));
    let arguments = json!({"x-single-active-consumer": true});
    let body = json!({"durable": true, "arguments": arguments});
    assert_eq!(server.put("/api/queues/%2F/single", body), 201);
    {
        let mut fake = server.fake.lock().unwrap();
        let queue = fake.tree.queue("/", "single").unwrap().id.0;
        let chosen = |c: &&mut ConsumerFacts| c.tag != "lost";
        for consumer in fake.consumers.iter_mut().filter(chosen) {
            consumer.queue = queue;
            consumer.active = consumer.tag == "t";
        }
    }
    let waiting = ("silent".to_owned(), "waiting".to_owned(), false);
    let active = ("t".to_owned(), "single_active".to_owned(), true);
    let expected = [up("lost"), waiting.clone(), active];
    assert_eq!(status("/api/consumers/%2F"), expected);
    {
        let mut fake = server.fake.lock().unwrap();
        fake.is_alone = true;
        for consumer in &mut fake.consumers {
            consumer.session_node = 2;
        }
    }
    let suspected = |tag: &str| (tag.to_owned(), "suspected_down".to_owned(), false);
    let expected = [suspected("lost"), waiting, suspected("t")];
    assert_eq!(status("/api/consumers"), expected);
}

#[test]
fn connections_of_a_user_are_listed_and_closed() {
    let server = connected();
    let of = |who, user: &str| {
        let path = format!("/api/connections/username/{user}");
        server.ask_as(Some(who), "GET", &path, None)
    };
    let m = ("m", "secret");
    assert_eq!(of(("guest", "guest"), "m").body[0]["name"], "b -> x");
    assert_eq!(of(m, "m").body.as_array().unwrap().len(), 1);
    assert_eq!(of(m, "guest").status, 401);
    let close = |user: &str| {
        let path = format!("/api/connections/username/{user}");
        server.ask_as(Some(m), "DELETE", &path, None).status
    };
    assert_eq!(close("guest"), 401);
    assert_eq!(close("m"), 204);
    assert_eq!(server.get("/api/connections").as_array().unwrap().len(), 1);
    let shown = &server.get("/api/connections")[0];
    assert_eq!(shown["client_properties"], json!({}));
    assert!(shown.get("user_provided_name").is_none());
    assert_eq!(
        (
            &shown["protocol"],
            &shown["host"],
            &shown["port"],
            &shown["ssl"]
        ),
        (
            &json!("AMQP 0-9-1"),
            &json!("127.0.0.1"),
            &json!(5672),
            &json!(false)
        )
    );
}

#[test]
fn connection_shows_client_properties() {
    let server = connected();
    let properties = json!({"product": "pika", "capabilities": {"basic.nack": true}});
    {
        let mut fake = server.fake.lock().unwrap();
        let [amqp, mqtt] = &mut fake.connections[..] else {
            panic!("expected two connections");
        };
        amqp.client_name = "orders".into();
        amqp.client_properties = properties.as_object().unwrap().clone();
        mqtt.client_name = "sensor".into();
        mqtt.protocol = "mqtt50".into();
    }
    let shown = server.get("/api/connections");
    assert_eq!(shown[0]["client_properties"], properties);
    assert_eq!(shown[0]["user_provided_name"], json!("orders"));
    let client = json!({"product": "MQTT client", "client_id": "sensor"});
    assert_eq!(shown[1]["client_properties"], client);
}

#[test]
fn mqtt_connections_and_sessions_of_each_node_are_listed() {
    let server = connected();
    let other = control::Counters {
        mqtt: control::MqttCounters {
            sessions_away: 2,
            ..control::MqttCounters::default()
        },
        ..control::Counters::default()
    };
    {
        let mut fake = server.fake.lock().unwrap();
        let [_, mqtt] = &mut fake.connections[..] else {
            panic!("expected two connections");
        };
        mqtt.client_name = "sensor".into();
        mqtt.protocol = "web_mqtt50".into();
        mqtt.vhost = "/".into();
        let own = &mut fake.counters.mqtt;
        (own.connected, own.subscriptions, own.retained_bytes) = (1, 5, 900);
        fake.other_counters = vec![(NodeId(2), other)];
    }
    for path in ["/api/mqtt/connections", "/api/mqtt/connections/%2F"] {
        let listed = server.get(path);
        assert_eq!(listed.as_array().unwrap().len(), 1, "{path}");
        assert_eq!(listed[0]["client_properties"]["client_id"], "sensor");
    }
    let missing = server.ask("GET", "/api/mqtt/connections/none", None);
    assert_eq!(missing.status, 404);
    let nodes = server.get("/api/mqtt/nodes");
    assert_eq!(nodes.as_array().unwrap().len(), 2);
    let first = &nodes[0];
    assert_eq!(
        (&first["node"], &first["connected_sessions"]),
        (&json!("c-0"), &json!(1))
    );
    assert_eq!(
        (&first["subscriptions"], &first["retained_bytes"]),
        (&json!(5), &json!(900))
    );
    assert_eq!(
        (&nodes[1]["node"], &nodes[1]["offline_sessions"]),
        (&json!("c-1"), &json!(2))
    );
}

#[test]
fn amqp10_connection_shows_its_container_id() {
    let server = connected();
    {
        let mut fake = server.fake.lock().unwrap();
        let connection = &mut fake.connections[0];
        connection.client_name = "orders".into();
        connection.protocol = "amqp10".into();
    }
    let shown = server.get("/api/connections");
    assert_eq!(shown[0]["container_id"], json!("orders"));
    assert!(shown[1].get("container_id").is_none());
}

#[test]
fn lists_can_be_sorted_and_reduced_to_columns() {
    let server = Server::start();
    for (name, ready) in [("a", 5), ("b", 20), ("c", 10)] {
        server.quorum(name);
        server.set_stats(name, ready, 0);
    }
    let names = |query: &str| {
        let got = server.get(&format!("/api/queues?{query}"));
        let list = if got.is_array() {
            got
        } else {
            got["items"].clone()
        };
        let names = list
            .as_array()
            .unwrap()
            .iter()
            .map(|q| q["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>().join("")
    };
    assert_eq!(names("sort=messages_ready"), "acb");
    assert_eq!(names("sort=messages_ready&sort_reverse=true"), "bca");
    assert_eq!(
        names("sort=messages_ready&sort_reverse=true&page=1&page_size=2"),
        "bc"
    );
    assert_eq!(names("sort=messages_ready&page=2&page_size=2"), "b");
    let page = server.get("/api/queues?page=2&page_size=2&sort=name&columns=name,messages_ready");
    assert_eq!(page["items"], json!([{"name": "c", "messages_ready": 10}]));
    assert_eq!(
        (&page["item_count"], &page["total_count"]),
        (&json!(1), &json!(3))
    );
}

#[test]
fn metrics_are_reported_by_protocol_queue_type_and_object() {
    let server = connected();
    let mut counts = ProtocolCounters {
        received: 12,
        ..ProtocolCounters::default()
    };
    counts.sizes.classes[1].1 = 7;
    counts.sizes.larger = 1;
    counts.sizes.bytes = 200_000_000;
    counts.by_queue_type[QueueType::Quorum] = MessageCounts {
        deliver: 4,
        get_no_ack: 1,
        ..MessageCounts::default()
    };
    {
        let mut fake = server.fake.lock().unwrap();
        fake.counters.protocols.insert("amqp091".into(), counts);
        fake.counters.connections_opened = 6;
        fake.counters.quota_paused_ms = 12_034;
        let facts = control::StoredBytesFacts {
            stored: 70,
            limit: 64,
            is_blocked: true,
        };
        fake.counters.stored_bytes.insert("tenant".into(), facts);
        let quorum = &mut fake.counters.dead_letters[QueueType::Quorum];
        (quorum.disabled.expired, quorum.confirmed) = (3, 4);
        quorum.at_least_once.delivery_limit = 5;
        fake.counters.dead_letters[QueueType::Classic]
            .at_most_once
            .maxlen = 6;
    }
    let page = |path: &str| {
        let url = format!("http://{}{path}", server.metrics);
        let text = ureq::get(url).call().unwrap().body_mut().read_to_string();
        text.unwrap()
    };
    let all = page("/metrics");
    for line in [
        "rabbitmq_connections_opened_total 6",
        "posthorn_quota_paused_seconds_total 12.034",
        "posthorn_vhost_stored_bytes{vhost=\"tenant\"} 70",
        "posthorn_vhost_stored_bytes_limit{vhost=\"tenant\"} 64",
        "posthorn_vhost_publishers_blocked{vhost=\"tenant\"} 1",
        "rabbitmq_connections 2",
        "rabbitmq_channels 2",
        "rabbitmq_global_messages_received_total{protocol=\"amqp091\"} 12",
        "rabbitmq_global_messages_delivered_total{protocol=\"amqp091\",queue_type=\"rabbit_quorum_queue\"} 5",
        "rabbitmq_global_messages_delivered_total{protocol=\"amqp091\",queue_type=\"rabbit_classic_queue\"} 0",
        "# TYPE rabbitmq_global_messages_received_total counter",
        "rabbitmq_message_size_bytes_bucket{protocol=\"amqp091\",le=\"100\"} 0",
        "rabbitmq_message_size_bytes_bucket{protocol=\"amqp091\",le=\"100000000\"} 7",
        "rabbitmq_message_size_bytes_bucket{protocol=\"amqp091\",le=\"+Inf\"} 8",
        "rabbitmq_message_size_bytes_sum{protocol=\"amqp091\"} 200000000",
        "rabbitmq_message_size_bytes_count{protocol=\"amqp10\"} 0",
        "rabbitmq_global_messages_dead_lettered_expired_total{queue_type=\"rabbit_quorum_queue\",dead_letter_strategy=\"disabled\"} 3",
        "rabbitmq_global_messages_dead_lettered_confirmed_total{queue_type=\"rabbit_quorum_queue\",dead_letter_strategy=\"at_least_once\"} 4",
        "rabbitmq_global_messages_dead_lettered_delivery_limit_total{queue_type=\"rabbit_quorum_queue\",dead_letter_strategy=\"at_least_once\"} 5",
        "rabbitmq_global_messages_dead_lettered_maxlen_total{queue_type=\"rabbit_classic_queue\",dead_letter_strategy=\"at_most_once\"} 6",
        "rabbitmq_global_messages_dead_lettered_rejected_total{queue_type=\"rabbit_classic_queue\",dead_letter_strategy=\"disabled\"} 0",
    ] {
        assert!(all.lines().any(|l| l == line), "{line} in\n{all}");
    }
    assert!(
        !all.contains("channel_prefetch{"),
        "objects are not in the sums"
    );
    assert!(!all.contains("mqtt"), "there is no MQTT listener");
    let series = all
        .lines()
        .filter(|l| l.starts_with("rabbitmq_global_messages_dead_lettered_"));
    assert_eq!(
        series.count(),
        4 + 5 + 5 + 3 + 1,
        "what cannot be is not there"
    );
    let each = page("/metrics/per-object");
    assert!(each.contains("rabbitmq_connection_incoming_bytes_total{connection=\"a -> x\"} 100"));
    assert!(each.contains("rabbitmq_channel_consumers{channel=\"b -> x (3)\"} 2"));
    assert_eq!(page("/metrics/detailed"), "", "no family was requested");
    let some = page("/metrics/detailed?family=queue_coarse_metrics&family=nothing");
    assert!(
        some.contains("rabbitmq_detailed_queue_messages{vhost=\"/\",queue=\"q\"} 0"),
        "{some}"
    );
    assert!(!some.contains("connection"));
    let none = page("/metrics/detailed?family=queue_coarse_metrics&vhost=other");
    assert!(!none.contains("queue=\"q\""));
    // The same metrics for a client that asks for OpenMetrics.
    let open = |path: &str| {
        let request = ureq::get(format!("http://{}{path}", server.metrics));
        let mut answer = request
            .header("accept", "application/openmetrics-text;version=1.0.0")
            .call()
            .unwrap();
        let content_type = answer.headers()["content-type"].to_str().unwrap();
        assert_eq!(
            content_type,
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        );
        answer.body_mut().read_to_string().unwrap()
    };
    let names = |page: &str| -> Vec<String> {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let names = samples.filter_map(|line| line.split(['{', ' ']).next());
        names.map(str::to_owned).collect()
    };
    for (path, plain) in [
        ("/metrics", &all),
        ("/metrics/per-object", &each),
        (
            "/metrics/detailed?family=queue_coarse_metrics&family=nothing",
            &some,
        ),
    ] {
        let open = open(path);
        assert_eq!(names(&open), names(plain), "{path}");
        assert_eq!(open.matches("# EOF").count(), 1, "{path}");
        assert!(
            open.ends_with("# EOF\n") && !plain.contains("# EOF"),
            "{path}"
        );
    }
    assert_eq!(open("/metrics/detailed"), "# EOF\n");
    // Each metric appears once, with its samples directly after its head.
    for page in [&all, &each, &some] {
        let heads: Vec<&str> = page.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let once: std::collections::BTreeSet<_> = heads.iter().collect();
        assert_eq!(heads.len(), once.len());
    }
}

#[test]
fn mqtt_metrics_are_reported_with_an_mqtt_listener() {
    let server = Server::start_with(|c| c.listeners.push(("mqtt".into(), 1883)));
    {
        let mut fake = server.fake.lock().unwrap();
        let five = fake.counters.protocols.entry("mqtt50".into()).or_default();
        (five.received, five.publishers, five.consumers) = (7, 2, 3);
        five.queueless.deliver_no_ack = 4;
        five.by_queue_type[QueueType::Classic].ack = 5;
        let mqtt = &mut fake.counters.mqtt;
        (mqtt.dropped, mqtt.retained, mqtt.retained_bytes) = (6, 8, 900);
        (mqtt.sessions_away, mqtt.lost_between) = (9, 1);
        (mqtt.wills, mqtt.wills_not_kept) = (11, 12);
    }
    let url = format!("http://{}/metrics", server.metrics);
    let text = ureq::get(url).call().unwrap().body_mut().read_to_string();
    let all = text.unwrap();
    for line in [
        "rabbitmq_global_messages_received_total{protocol=\"mqtt50\"} 7",
        "rabbitmq_global_messages_received_total{protocol=\"mqtt311\"} 0",
        "rabbitmq_global_messages_received_total{protocol=\"mqtt310\"} 0",
        "rabbitmq_global_publishers{protocol=\"mqtt50\"} 2",
        "rabbitmq_global_consumers{protocol=\"mqtt50\"} 3",
        "rabbitmq_global_messages_delivered_consume_auto_ack_total{protocol=\"mqtt50\",queue_type=\"rabbit_mqtt_qos0_queue\"} 4",
        "rabbitmq_global_messages_acknowledged_total{protocol=\"mqtt50\",queue_type=\"rabbit_classic_queue\"} 5",
        "rabbitmq_global_messages_dead_lettered_maxlen_total{queue_type=\"rabbit_mqtt_qos0_queue\",dead_letter_strategy=\"disabled\"} 6",
        "posthorn_mqtt_retained_messages 8",
        "posthorn_mqtt_retained_bytes 900",
        "posthorn_mqtt_sessions_away 9",
        "posthorn_mqtt_messages_lost_between_nodes_total 1",
        "posthorn_mqtt_wills_kept 11",
        "posthorn_mqtt_wills_not_kept_total 12",
    ] {
        assert!(all.lines().any(|l| l == line), "{line} in\n{all}");
    }
}

#[test]
fn metrics_of_many_queues_are_streamed_completely() {
    const QUEUES: usize = 2_500;
    let server = Server::start();
    {
        let mut fake = server.fake.lock().unwrap();
        for at in 0..QUEUES {
            let name = format!("a-queue-with-a-name-of-some-length-{at:05}");
            fake.declare(&name);
        }
    }
    let url = format!("http://{}/metrics/per-object", server.metrics);
    let mut answer = ureq::get(url).call().unwrap();
    assert!(
        answer.headers().get("content-length").is_none(),
        "it is not made beforehand"
    );
    let text = answer
        .body_mut()
        .with_config()
        .limit(64 << 20)
        .read_to_string();
    let text = text.unwrap();
    for metric in [
        "queue_messages_ready",
        "queue_consumers",
        "queue_messages_acked_total",
    ] {
        let prefix = format!("rabbitmq_{metric}{{");
        let samples = text.lines().filter(|l| l.starts_with(&prefix)).count();
        assert_eq!(samples, QUEUES, "{metric}");
    }
}
