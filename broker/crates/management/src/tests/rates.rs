//! What is sampled, on a clock that is moved by hand.

use super::*;
use crate::access::Call;
use crate::ask::Api;
use crate::page::Query;
use crate::rates::sample;
use crate::{Clock, dispatch};
use env::sim::SimClock;
use std::time::Duration;

struct Sampled {
    fake: Arc<Mutex<Fake>>,
    api: Api,
    clock: SimClock,
    runtime: tokio::runtime::Runtime,
}

impl Sampled {
    fn new() -> Sampled {
        let fake = Arc::new(Mutex::new(fake()));
        let clock = SimClock::new(WallTime(1_000_000_000));
        let mut config = Config::new(NodeId(1), "c-0");
        config.clock = Clock(Arc::new(clock.clone()));
        let shared = fake.clone();
        let node: Node = Arc::new(move |request| shared.lock().unwrap().serve(request));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        Sampled {
            fake,
            api: Api::new(node, config).unwrap(),
            clock,
            runtime: runtime.enable_all().build().unwrap(),
        }
    }

    fn fake(&self) -> std::sync::MutexGuard<'_, Fake> {
        self.fake.lock().unwrap()
    }

    /// Five seconds, and the sample at their end.
    fn five_seconds(&self) {
        self.clock.advance(Duration::from_secs(5));
        self.runtime.block_on(sample(&self.api)).unwrap();
    }

    fn get(&self, path: &str) -> Json {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let call = Call {
            is_operator: false,
            makes: false,
            user: Arc::new(user("guest", "guest", &["administrator"])),
            query: Query::parse(Some(query)),
            body: axum::body::Bytes::new(),
            reason: None,
        };
        let path: Vec<&str> = path.split('|').collect();
        self.runtime.block_on(async {
            let answer = dispatch::dispatch(&self.api, &call, "GET", &path).await;
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

    /// Of the next sample.
    fn questions(&self) -> (u32, u32) {
        let before = {
            let fake = self.fake();
            (fake.asked_of_queues, fake.asked_of_connections)
        };
        self.five_seconds();
        let fake = self.fake();
        (
            fake.asked_of_queues - before.0,
            fake.asked_of_connections - before.1,
        )
    }
}

fn samples(details: &Json) -> Vec<(u64, u64)> {
    let all = details["samples"].as_array().unwrap().iter();
    let number = |s: &Json, what: &str| s[what].as_u64().unwrap();
    all.map(|s| (number(s, "timestamp"), number(s, "sample")))
        .collect()
}

#[test]
fn the_clusters_messages_are_sampled_though_nobody_looks() {
    let sampled = Sampled::new();
    for n in 1..=24 {
        {
            let mut fake = sampled.fake();
            let amqp = fake.counters.protocols.entry("amqp091".into()).or_default();
            amqp.received = 100 * n;
            fake.counters.connections_opened = n;
        }
        sampled.five_seconds();
    }
    sampled.clock.advance(Duration::from_secs(2));
    let shown = sampled.get("overview?msg_rates_age=60&msg_rates_incr=5");
    // No message for two seconds, after 100 in five.
    let stats = &shown["message_stats"];
    assert_eq!(stats["publish"], 2400);
    assert_eq!(stats["publish_details"]["rate"], json!(100.0 / 7.0));
    assert_eq!(shown["churn_rates"]["connection_created"], 24);
    assert_eq!(
        shown["churn_rates"]["connection_created_details"]["rate"],
        json!(1.0 / 7.0)
    );
    let known = samples(&stats["publish_details"]);
    assert_eq!(known.len(), 13);
    assert_eq!(known[0], (1_000_120_000, 2400));
    for pair in known.windows(2) {
        assert_eq!(pair[0].0 - pair[1].0, 5000);
        assert_eq!(pair[0].1 - pair[1].1, 100);
    }
    assert_eq!(stats["publish_details"]["avg_rate"], 20.0);
    assert_eq!(stats["publish_details"]["avg"], 1800.0);
    // Only what was asked for comes with samples.
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
fn a_queue_that_was_looked_at_is_sampled_and_after_a_while_no_more() {
    let sampled = Sampled::new();
    sampled.declare(2);
    assert_eq!(sampled.questions(), (0, 0), "nobody looks");
    sampled.set_ready("q0", 1000);
    let first = sampled.get("queues|/|q0");
    assert_eq!(first["messages_details"]["rate"], 0.0);
    for n in 0..12 {
        sampled.set_ready("q0", 1000 + 10 * n);
        assert_eq!(sampled.questions(), (1, 0), "that one");
    }
    sampled.clock.advance(Duration::from_secs(1));
    sampled.set_ready("q0", 1122);
    let shown = sampled.get("queues|/|q0?lengths_age=20&lengths_incr=5");
    // Since the sample of six seconds ago, not since the look before.
    assert_eq!(shown["messages_details"]["rate"], 22.0 / 6.0);
    let known: Vec<u64> = samples(&shown["messages_details"])
        .into_iter()
        .map(|(_, n)| n)
        .collect();
    assert_eq!(known, [1110, 1100, 1090, 1080, 1070]);
    for _ in 0..23 {
        assert_eq!(sampled.questions().0, 1);
    }
    assert_eq!(sampled.questions(), (0, 0), "two minutes later");
    let again = sampled.get("queues|/|q0");
    assert_eq!(again["messages_details"]["rate"], 0.0);
    assert_eq!(sampled.questions(), (1, 0));
}

#[test]
fn what_is_asked_in_the_background_is_bounded() {
    let few = Sampled::new();
    few.declare(900);
    (0..16).for_each(|n| drop(few.get(&format!("queues|/|q{n}"))));
    assert_eq!(few.questions(), (16, 0));
    few.get("queues|/|q16");
    assert_eq!(few.questions(), (1, 0), "all together");
    few.get("queues");
    assert_eq!(few.questions(), (1, 0));
    let many = Sampled::new();
    many.declare(1_001);
    many.get("queues");
    assert_eq!(many.questions(), (64, 0));
    let crowded = Sampled::new();
    {
        let connection = |n: u32| ConnectionFacts {
            name: format!("c{n}"),
            ..ConnectionFacts::default()
        };
        crowded.fake().connections = (0..1_000).map(connection).collect();
    }
    assert_eq!(crowded.questions(), (0, 0), "nobody looks");
    crowded.get("connections");
    assert_eq!(crowded.questions(), (0, 1));
    crowded.fake().connections.push(ConnectionFacts::default());
    assert_eq!(crowded.questions(), (0, 0));
}

#[test]
fn connections_and_channels_that_were_looked_at_are_sampled() {
    let sampled = Sampled::new();
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
        sampled.five_seconds();
    }
    let shown = sampled.get("connections");
    assert_eq!(shown[0]["recv_oct_details"]["rate"], 10.0);
    let shown = sampled.get("connections|a?data_rates_age=10&data_rates_incr=5");
    let known = samples(&shown["recv_oct_details"]);
    assert_eq!(
        known.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        [500, 450, 400]
    );
    let shown = sampled.get("channels");
    assert_eq!(shown[0]["message_stats"]["publish_details"]["rate"], 1.4);
}

#[test]
fn a_node_that_was_looked_at_is_sampled() {
    let sampled = Sampled::new();
    sampled.get("nodes|c-0");
    for n in 1..=3 {
        sampled.fake().counters.connections_opened = 20 * n;
        sampled.five_seconds();
    }
    let shown = sampled.get("nodes|c-0");
    assert_eq!(shown["connection_created"], 60);
    assert_eq!(shown["connection_created_details"]["rate"], 4.0);
    // Nobody knows what another one has counted.
    assert!(sampled.get("nodes|c-1").get("connection_created").is_none());
}

#[test]
fn virtual_hosts_have_the_lengths_of_their_queues() {
    let sampled = Sampled::new();
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
        sampled.five_seconds();
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
fn where_there_are_many_queues_their_sums_are_made_once_in_five_seconds() {
    let sampled = Sampled::new();
    sampled.declare(1_001);
    sampled.set_ready("q7", 3);
    let asked = || sampled.fake().asked_of_queues;
    let before = asked();
    assert_eq!(sampled.get("vhosts|/")["messages"], 3);
    sampled.set_ready("q7", 4);
    assert_eq!(sampled.get("vhosts|/")["messages"], 3);
    assert_eq!(asked() - before, 1);
    sampled.five_seconds();
    assert_eq!(asked() - before, 1, "nor is the background to ask");
    assert_eq!(sampled.get("vhosts")[0]["messages"], 4);
    assert_eq!(asked() - before, 2);
}

#[test]
fn a_small_page_of_many_queues_asks_for_those_on_it() {
    let sampled = Sampled::new();
    sampled.declare(999);
    let asked = |path: &str| {
        let before = sampled.fake().asked_of_queues;
        let page = sampled.get(path);
        assert_eq!(page["items"][49]["state"], "running", "{path}");
        sampled.fake().asked_of_queues - before
    };
    assert_eq!(asked("queues?page=1&page_size=50"), 1, "all together");
    sampled.fake().declare("another");
    assert_eq!(asked("queues?page=1&page_size=50"), 50);
    assert_eq!(asked("queues?page=1&page_size=50&sort=messages"), 1);
}

#[test]
fn a_sorted_page_is_cut_from_what_the_sorted_list_would_be() {
    let sampled = Sampled::new();
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
        // Nobody answers for it.
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
fn virtual_hosts_and_exchanges_that_were_looked_at_are_sampled() {
    let sampled = Sampled::new();
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
    sampled.five_seconds();
    assert!(sampled.fake().asked_of_names.is_empty(), "nobody looks");
    sampled.get("vhosts");
    sampled.get("exchanges|/|amq.fanout");
    assert_eq!(sampled.fake().asked_of_names, [1, 1]);
    for n in 1..=10 {
        set(n);
        sampled.five_seconds();
    }
    // Each of the two kinds once for a sample.
    assert_eq!(sampled.fake().asked_of_names[2..], [1; 20]);
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
    // Two minutes later nobody is asked any more.
    for _ in 0..24 {
        sampled.five_seconds();
    }
    sampled.fake().asked_of_names.clear();
    sampled.five_seconds();
    assert!(sampled.fake().asked_of_names.is_empty());
}

#[test]
fn no_more_names_are_asked_for_at_a_time_than_a_shard_tells_in_one_turn() {
    let sampled = Sampled::new();
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
    assert_eq!(sampled.fake().asked_of_names, [1_000, 1_000, 507]);
    sampled.fake().asked_of_names.clear();
    sampled.five_seconds();
    assert_eq!(
        sampled.fake().asked_of_names,
        [1_000],
        "those that were looked at last"
    );
}

#[test]
fn more_samples_than_anybody_can_look_at_are_refused() {
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
