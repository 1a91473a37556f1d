//! Tests of sampling with a manually advanced clock.

use super::*;
use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::page::Query;
use crate::rates::sample;
use crate::{Clock, routes};
use env::sim::SimClock;
use std::time::Duration;

struct SamplerTest {
    fake: Arc<Mutex<FakeNode>>,
    api: Api,
    clock: SimClock,
    runtime: tokio::runtime::Runtime,
}

impl SamplerTest {
    fn new() -> SamplerTest {
        let fake = Arc::new(Mutex::new(fake()));
        let clock = SimClock::new(WallTime(1_000_000_000));
        let mut config = Config::new(NodeId(1), "c-0");
        config.clock = Clock(Arc::new(clock.clone()));
        let shared = fake.clone();
        let node: Node = Arc::new(move |request| shared.lock().unwrap().serve(request));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        SamplerTest {
            fake,
            api: Api::new(node, config).unwrap(),
            clock,
            runtime: runtime.enable_all().build().unwrap(),
        }
    }

    fn fake(&self) -> std::sync::MutexGuard<'_, FakeNode> {
        self.fake.lock().unwrap()
    }

    /// Advances the clock by five seconds and takes a sample.
    fn advance_and_sample(&self) {
        self.clock.advance(Duration::from_secs(5));
        self.runtime.block_on(sample(&self.api)).unwrap();
    }

    fn get(&self, path: &str) -> Json {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let call = AuthenticatedRequest {
            is_operator: false,
            is_local: true,
            identity: None,
            is_put_or_post: false,
            user: Arc::new(user("guest", "guest", &["administrator"])),
            query: Query::parse(Some(query)),
            body: axum::body::Bytes::new(),
            reason: None,
            trace: None,
        };
        let path: Vec<&str> = path.split('|').collect();
        self.runtime.block_on(async {
            let route = routes::find("GET", &path).unwrap();
            let answer = route.handle(&self.api, &call, &path).await;
            let body = axum::body::to_bytes(answer.unwrap().into_body(), usize::MAX).await;
            serde_json::from_slice(&body.unwrap()).unwrap()
        })
    }

    fn declare(&self, count: usize) {
        let mut fake = self.fake();
        (0..count).for_each(|n| fake.declare(&format!("q{n}")));
    }

    fn set_ready(&self, queue: &str, ready: u64) {
        let mut fake = self.fake();
        let id = fake.tree.queue("/", queue).unwrap().id;
        fake.stats.insert(
            id,
            QueueStats {
                ready,
                ..QueueStats::default()
            },
        );
    }

    /// Number of requests for queues and for connections during the next sample.
    fn count_requests(&self) -> (u32, u32) {
        let before = {
            let fake = self.fake();
            (fake.queue_requests, fake.connection_requests)
        };
        self.advance_and_sample();
        let fake = self.fake();
        (
            fake.queue_requests - before.0,
            fake.connection_requests - before.1,
        )
    }
}

fn samples(details: &Json) -> Vec<(u64, u64)> {
    let all = details["samples"].as_array().unwrap().iter();
    let number = |s: &Json, key: &str| s[key].as_u64().unwrap();
    all.map(|s| (number(s, "timestamp"), number(s, "sample")))
        .collect()
}

#[test]
fn cluster_totals_are_sampled_without_requests() {
    let sampled = SamplerTest::new();
    for n in 1..=24 {
        {
            let mut fake = sampled.fake();
            let amqp = fake.counters.protocols.entry("amqp091".into()).or_default();
            amqp.received = 100 * n;
            fake.counters.connections_opened = n;
        }
        sampled.advance_and_sample();
    }
    sampled.clock.advance(Duration::from_secs(2));
    let shown = sampled.get("overview?msg_rates_age=60&msg_rates_incr=5");
    // No message in the last two seconds, and 100 in the five seconds before.
    let stats = &shown["message_stats"];
    assert_eq!(stats["publish"], 2400);
    assert_eq!(stats["publish_details"]["rate"], json!(100.0 / 7.0));
    assert_eq!(shown["churn_rates"]["connection_created"], 24);
    assert_eq!(
        shown["churn_rates"]["connection_created_details"]["rate"],
        json!(1.0 / 7.0)
    );
    let values = samples(&stats["publish_details"]);
    assert_eq!(values.len(), 13);
    assert_eq!(values[0], (1_000_120_000, 2400));
    for pair in values.windows(2) {
        assert_eq!(pair[0].0 - pair[1].0, 5000);
        assert_eq!(pair[0].1 - pair[1].1, 100);
    }
    assert_eq!(stats["publish_details"]["avg_rate"], 20.0);
    assert_eq!(stats["publish_details"]["avg"], 1800.0);
    // Samples are included only for requested ranges.
    let lengths = &shown["queue_totals"]["messages_details"];
    assert_eq!(lengths, &json!({"rate": 0.0}));
    let shown = sampled.get("overview?lengths_age=60&lengths_incr=5&msg_rates_age=60");
    assert_eq!(
        samples(&shown["queue_totals"]["messages_details"]).len(),
        13
    );
    assert!(
        shown["message_stats"]["publish_details"]
            .get("samples")
            .is_none()
    );
}

#[test]
fn requested_queue_is_sampled_for_a_limited_time() {
    let sampled = SamplerTest::new();
    sampled.declare(2);
    assert_eq!(sampled.count_requests(), (0, 0), "nobody looks");
    sampled.set_ready("q0", 1000);
    let first = sampled.get("queues|/|q0");
    assert_eq!(first["messages_details"]["rate"], 0.0);
    for n in 0..12 {
        sampled.set_ready("q0", 1000 + 10 * n);
        assert_eq!(sampled.count_requests(), (1, 0), "that one");
    }
    sampled.clock.advance(Duration::from_secs(1));
    sampled.set_ready("q0", 1122);
    let shown = sampled.get("queues|/|q0?lengths_age=20&lengths_incr=5");
    // The rate since the sample six seconds ago, not since the previous request.
    assert_eq!(shown["messages_details"]["rate"], 22.0 / 6.0);
    let values: Vec<u64> = samples(&shown["messages_details"])
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_eq!(values, [1110, 1100, 1090, 1080, 1070]);
    for _ in 0..23 {
        assert_eq!(sampled.count_requests().0, 1);
    }
    assert_eq!(sampled.count_requests(), (0, 0), "two minutes later");
    let again = sampled.get("queues|/|q0");
    assert_eq!(again["messages_details"]["rate"], 0.0);
    assert_eq!(sampled.count_requests(), (1, 0));
}

#[test]
fn background_requests_are_bounded() {
    let few = SamplerTest::new();
    few.declare(900);
    (0..16).for_each(|n| drop(few.get(&format!("queues|/|q{n}"))));
    assert_eq!(few.count_requests(), (16, 0));
    few.get("queues|/|q16");
    assert_eq!(few.count_requests(), (1, 0), "all together");
    few.get("queues");
    assert_eq!(few.count_requests(), (1, 0));
    let many = SamplerTest::new();
    many.declare(1_001);
    many.get("queues");
    assert_eq!(many.count_requests(), (64, 0));
    let crowded = SamplerTest::new();
    {
        let connection = |n: u32| ConnectionFacts {
            name: format!("c{n}"),
            ..ConnectionFacts::default()
        };
        crowded.fake().connections = (0..1_000).map(connection).collect();
    }
    assert_eq!(crowded.count_requests(), (0, 0), "nobody looks");
    crowded.get("connections");
    assert_eq!(crowded.count_requests(), (0, 1));
    crowded.fake().connections.push(ConnectionFacts::default());
    assert_eq!(crowded.count_requests(), (0, 0));
}

#[test]
fn requested_connections_and_channels_are_sampled() {
    let sampled = SamplerTest::new();
    let set = |n: u64| {
        let channel = control::ChannelFacts {
            number: 1,
            counts: control::MessageCounts {
                publish: 7 * n,
                ..control::MessageCounts::default()
            },
            ..control::ChannelFacts::default()
        };
        sampled.fake().connections = vec![ConnectionFacts {
            name: "a".into(),
            received_bytes: 50 * n,
            channels: vec![channel],
            ..ConnectionFacts::default()
        }];
    };
    set(0);
    sampled.get("connections|a");
    sampled.get("channels|a (1)");
    for n in 1..=10 {
        set(n);
        sampled.advance_and_sample();
    }
    let shown = sampled.get("connections");
    assert_eq!(shown[0]["recv_oct_details"]["rate"], 10.0);
    let shown = sampled.get("connections|a?data_rates_age=10&data_rates_incr=5");
    let values = samples(&shown["recv_oct_details"]);
    assert_eq!(
        values.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        [500, 450, 400]
    );
    let shown = sampled.get("channels");
    assert_eq!(shown[0]["message_stats"]["publish_details"]["rate"], 1.4);
}

#[test]
fn nodes_are_sampled_without_requests() {
    let sampled = SamplerTest::new();
    for n in 1..=3 {
        sampled.fake().counters.connections_opened = 20 * n;
        sampled.advance_and_sample();
    }
    let shown = sampled.get("nodes|c-0");
    assert_eq!(shown["connection_created"], 60);
    assert_eq!(shown["connection_created_details"]["rate"], 4.0);
    // The other nodes do not answer.
    assert!(sampled.get("nodes|c-1").get("connection_created").is_none());
}

#[test]
fn vhost_shows_total_queue_lengths() {
    let sampled = SamplerTest::new();
    sampled.declare(3);
    sampled.set_ready("q0", 5);
    sampled.set_ready("q2", 2);
    let shown = sampled.get("vhosts");
    assert_eq!(
        (&shown[0]["messages"], &shown[0]["messages_ready"]),
        (&json!(7), &json!(7))
    );
    assert_eq!(shown[0]["messages_unacknowledged"], 0);
    sampled.set_ready("q2", 52);
    for _ in 0..3 {
        sampled.advance_and_sample();
    }
    let shown = sampled.get("vhosts|/?lengths_age=10&lengths_incr=5");
    assert_eq!(shown["messages_ready"], 57);
    let details = &shown["messages_ready_details"];
    assert_eq!(details["rate"], 0.0);
    assert_eq!(samples(details).len(), 3, "it was sampled meanwhile");
    sampled.set_ready("q0", 55);
    assert_eq!(sampled.get("vhosts|/")["messages"], 107);
}

#[test]
fn length_sums_of_many_queues_are_cached_for_five_seconds() {
    let sampled = SamplerTest::new();
    sampled.declare(1_001);
    sampled.set_ready("q7", 3);
    let request_count = || sampled.fake().queue_requests;
    let before = request_count();
    assert_eq!(sampled.get("vhosts|/")["messages"], 3);
    sampled.set_ready("q7", 4);
    assert_eq!(sampled.get("vhosts|/")["messages"], 3);
    assert_eq!(request_count() - before, 1);
    sampled.advance_and_sample();
    assert_eq!(request_count() - before, 1, "nor is the background to ask");
    assert_eq!(sampled.get("vhosts")[0]["messages"], 4);
    assert_eq!(request_count() - before, 2);
}

#[test]
fn small_page_requests_statistics_only_of_its_queues() {
    let sampled = SamplerTest::new();
    sampled.declare(999);
    let request_count = |path: &str| {
        let before = sampled.fake().queue_requests;
        let page = sampled.get(path);
        assert_eq!(page["items"][49]["state"], "running", "{path}");
        sampled.fake().queue_requests - before
    };
    assert_eq!(
        request_count("queues?page=1&page_size=50"),
        1,
        "all together"
    );
    sampled.fake().declare("another");
    assert_eq!(request_count("queues?page=1&page_size=50"), 50);
    assert_eq!(request_count("queues?page=1&page_size=50&sort=messages"), 1);
}

#[test]
fn sorted_page_is_part_of_the_sorted_list() {
    let sampled = SamplerTest::new();
    sampled.declare(40);
    for n in 0..30_u64 {
        let mut fake = sampled.fake();
        let name = format!("q{n}");
        let id = fake.tree.queue("/", &name).unwrap().id;
        let stats = QueueStats {
            ready: n * 7 % 5,
            unacknowledged: n * 3 % 4,
            consumers: (n % 3) as u32,
            bytes: n * 11 % 13,
            ..QueueStats::default()
        };
        fake.stats.insert(id, stats);
    }
    {
        // No node answers for it.
        let mut fake = sampled.fake();
        let id = fake.tree.queue("/", "q39").unwrap().id;
        fake.stats.remove(&id);
    }
    for sort in [
        "name",
        "vhost",
        "type",
        "state",
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "message_bytes",
        "consumers",
        "message_stats.publish",
        "none",
    ] {
        for reverse in ["false", "true"] {
            let order = format!("sort={sort}&sort_reverse={reverse}");
            let all = sampled.get(&format!("queues?{order}"));
            let names = |list: &Json| {
                let list = list.as_array().unwrap().iter();
                list.map(|q| q["name"].clone()).collect::<Vec<_>>()
            };
            let page = sampled.get(&format!("queues?{order}&page=2&page_size=15"));
            assert_eq!(names(&page["items"]), names(&all)[15..30], "{order}");
        }
    }
}

#[test]
fn requested_vhosts_and_exchanges_are_sampled() {
    let sampled = SamplerTest::new();
    let set = |n: u64| {
        let counts = control::MessageCounts {
            publish: 20 * n,
            deliver: 5 * n,
            ..control::MessageCounts::default()
        };
        let exchange = control::ExchangeCounts {
            publish_in: 10 * n,
            publish_out: 30 * n,
        };
        let mut fake = sampled.fake();
        fake.traffic.vhosts.insert("/".into(), counts);
        let exchanges = fake.traffic.exchanges.entry("/".into()).or_default();
        exchanges.insert("amq.fanout".into(), exchange);
    };
    set(0);
    sampled.advance_and_sample();
    assert!(sampled.fake().requested_names.is_empty(), "nobody looks");
    sampled.get("vhosts");
    sampled.get("exchanges|/|amq.fanout");
    assert_eq!(sampled.fake().requested_names, [1, 1]);
    for n in 1..=10 {
        set(n);
        sampled.advance_and_sample();
    }
    // One request per kind and sample.
    assert_eq!(sampled.fake().requested_names[2..], [1; 20]);
    let shown = sampled.get("vhosts|/?msg_rates_age=10&msg_rates_incr=5");
    let stats = &shown["message_stats"];
    assert_eq!(
        (&stats["publish"], &stats["deliver_get"]),
        (&json!(200), &json!(50))
    );
    assert_eq!(stats["publish_details"]["rate"], 4.0);
    assert_eq!(samples(&stats["deliver_details"]).len(), 3);
    let shown = sampled.get("exchanges");
    let all = shown.as_array().unwrap().iter();
    let rates: Vec<_> = all
        .filter(|x| x["message_stats"]["publish_in"] != 0)
        .map(|x| {
            (
                &x["name"],
                &x["message_stats"]["publish_out_details"]["rate"],
            )
        })
        .collect();
    assert_eq!(rates, [(&json!("amq.fanout"), &json!(6.0))]);
    let shown = sampled.get("exchanges|/|amq.fanout");
    assert_eq!(shown["message_stats"]["publish_in_details"]["rate"], 2.0);
    assert_eq!(
        (&shown["incoming"], &shown["outgoing"]),
        (&json!([]), &json!([]))
    );
    // After two minutes no requests are made.
    for _ in 0..24 {
        sampled.advance_and_sample();
    }
    sampled.fake().requested_names.clear();
    sampled.advance_and_sample();
    assert!(sampled.fake().requested_names.is_empty());
}

#[test]
fn traffic_requests_are_split_into_parts() {
    let sampled = SamplerTest::new();
    for n in 0..2_500 {
        let exchange = metadata::ExchangeRecord {
            vhost: "/".into(),
            name: format!("x{n}").into(),
            kind: "fanout".into(),
            durable: true,
            auto_delete: false,
            internal: false,
            arguments: message::Table::default(),
        };
        let done = sampled.fake().apply(Change::DeclareExchange(exchange));
        done.unwrap();
    }
    sampled.get("exchanges");
    assert_eq!(sampled.fake().requested_names, [1_000, 1_000, 507]);
    sampled.fake().requested_names.clear();
    sampled.advance_and_sample();
    assert_eq!(
        sampled.fake().requested_names,
        [1_000],
        "those that were looked at last"
    );
}

#[test]
fn ranges_with_too_many_samples_are_refused() {
    let server = Server::start();
    for path in [
        "/api/overview?msg_rates_age=100000&msg_rates_incr=1",
        "/api/queues?lengths_age=100000&lengths_incr=1",
        "/api/connections?data_rates_age=100000&data_rates_incr=1",
        "/api/channels?msg_rates_age=100000&msg_rates_incr=1",
        "/api/exchanges?msg_rates_age=100000&msg_rates_incr=1",
        "/api/vhosts?msg_rates_age=100000&msg_rates_incr=1",
    ] {
        assert_eq!(server.ask("GET", path, None).status, 400, "{path}");
    }
}
