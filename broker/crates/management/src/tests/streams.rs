//! Streams in metrics and in the API: replicas, lag of consumers, tracking, and super streams.

use super::*;
use control::{
    StreamConsumerFacts, StreamFollowerFacts, StreamProtocolCounters, StreamPublisherFacts,
    StreamReaderFacts, StreamReplicaFacts, StreamSessionFacts, StreamTrackingFacts,
};

/// A server with the stream `s`: nodes 1 (leader), 2 and 3 have replicas, and node 3 is not attached.
fn with_stream() -> Server {
    let server = Server::start_with(|c| c.listeners.push(("stream".into(), 5552)));
    let body = json!({"durable": true, "arguments": {"x-queue-type": "stream"}});
    assert_eq!(server.put("/api/queues/%2F/s", body), 201);
    let mut fake = server.fake.lock().unwrap();
    let queue = fake.tree.queue("/", "s").unwrap().id.0;
    let leader = StreamReplicaFacts {
        queue,
        node: NodeId(1),
        leads: true,
        epoch: 3,
        first_offset: 10,
        next_offset: 110,
        committed_offset: 100,
        segments: 2,
        chunks: 7,
        bytes: 5_000,
        reader_count: 1,
        max_lag: 25,
        followers: vec![
            StreamFollowerFacts {
                node: 2,
                next_offset: Some(100),
            },
            StreamFollowerFacts {
                node: 3,
                next_offset: None,
            },
        ],
        tracking: Some(StreamTrackingFacts {
            offsets: BTreeMap::from([("app".into(), 60)]),
            writers: BTreeMap::from([("producer".into(), 40)]),
        }),
        readers: vec![StreamReaderFacts {
            session_node: 1,
            session_number: 8,
            // The second use of subscription id 5.
            consumer: (2 << 8) | 5,
            lag: 25,
        }],
    };
    let follower = StreamReplicaFacts {
        node: NodeId(2),
        leads: false,
        next_offset: 100,
        committed_offset: 95,
        reader_count: 0,
        max_lag: 0,
        followers: Vec::new(),
        tracking: None,
        readers: Vec::new(),
        ..leader.clone()
    };
    fake.streams = vec![leader, follower];
    let consumer = |id: u8, active: bool| StreamConsumerFacts {
        id,
        stream: "s".into(),
        credit: 4,
        consumed: 65,
        offset: 75,
        active,
        properties: BTreeMap::from([
            ("single-active-consumer".into(), "true".into()),
            ("name".into(), "app".into()),
        ]),
    };
    fake.connections = vec![ConnectionFacts {
        name: "a -> s".into(),
        node: NodeId(1),
        number: 8,
        user: "guest".into(),
        vhost: "/".into(),
        protocol: "stream".into(),
        peer: "[::1]:4000".into(),
        local: "127.0.0.1:5552".into(),
        stream: Some(StreamSessionFacts {
            publishers: vec![StreamPublisherFacts {
                stream: "s".into(),
                ..StreamPublisherFacts::default()
            }],
            consumers: vec![consumer(5, true), consumer(6, false), consumer(7, true)],
        }),
        ..ConnectionFacts::default()
    }];
    drop(fake);
    server
}

fn page(server: &Server, path: &str) -> String {
    let url = format!("http://{}{path}", server.metrics);
    let text = ureq::get(url).call().unwrap().body_mut().read_to_string();
    text.unwrap()
}

fn assert_lines(page: &str, lines: &[&str]) {
    for line in lines {
        assert!(page.lines().any(|l| l == *line), "{line} in\n{page}");
    }
}

#[test]
fn metrics_of_a_node_sum_the_replicas_of_streams_on_it() {
    let server = with_stream();
    server.fake.lock().unwrap().counters.stream = StreamProtocolCounters {
        connections: 3,
        errors: BTreeMap::from([("access_refused".into(), 2)]),
    };
    let all = page(&server, "/metrics");
    assert_lines(
        &all,
        &[
            "rabbitmq_stream_consumer_max_offset_lag 25",
            "rabbitmq_global_stream_error_access_refused_total{protocol=\"stream\"} 2",
            "rabbitmq_global_stream_error_stream_does_not_exist_total{protocol=\"stream\"} 0",
            "posthorn_stream_connections 3",
            "posthorn_stream_replicas 1",
            "posthorn_stream_leaders 1",
            "posthorn_stream_readers 1",
            "posthorn_stream_segments 2",
            "posthorn_stream_chunks 7",
            "posthorn_stream_bytes 5000",
            "posthorn_stream_max_replica_lag 10",
            "posthorn_stream_replicas_detached 1",
        ],
    );
    let errors = all
        .lines()
        .filter(|l| l.starts_with("rabbitmq_global_stream_error_"));
    assert_eq!(errors.count(), 17, "RabbitMQ's errors");
}

#[test]
fn metrics_of_streams_are_reported_by_stream_and_replica() {
    let server = with_stream();
    let each = page(&server, "/metrics/per-object");
    let object = "{vhost=\"/\",queue=\"s\"}";
    let line = |name: &str, value: u64| format!("{name}{object} {value}");
    for line in [
        line("rabbitmq_stream_consumer_max_offset_lag", 25),
        line("posthorn_stream_first_offset", 10),
        line("posthorn_stream_next_offset", 110),
        line("posthorn_stream_committed_next_offset", 100),
        line("posthorn_stream_leader", 1),
        line("posthorn_stream_queue_segments", 2),
        line("posthorn_stream_queue_chunks", 7),
        line("posthorn_stream_queue_bytes", 5_000),
        line("posthorn_stream_queue_readers", 1),
    ] {
        assert_lines(&each, &[&line]);
    }
    assert_lines(
        &each,
        &["posthorn_stream_replica_lag{vhost=\"/\",queue=\"s\",replica=\"c-1\"} 10"],
    );
    assert!(!each.contains("replica=\"c-2\""), "it is not attached");
    let heads: Vec<&str> = each.lines().filter(|l| l.starts_with("# TYPE")).collect();
    let once: std::collections::BTreeSet<_> = heads.iter().collect();
    assert_eq!(heads.len(), once.len(), "each metric has one head");

    let lags = page(&server, "/metrics/detailed?family=stream_consumer_metrics");
    assert_lines(
        &lags,
        &["rabbitmq_detailed_stream_consumer_max_offset_lag{vhost=\"/\",queue=\"s\"} 25"],
    );
    assert!(!lags.contains("posthorn"), "only the requested family");
    let own = page(&server, "/metrics/detailed?family=stream_metrics&vhost=%2F");
    assert_lines(
        &own,
        &["posthorn_detailed_stream_queue_segments{vhost=\"/\",queue=\"s\"} 2"],
    );
    let none = page(
        &server,
        "/metrics/detailed?family=stream_metrics&vhost=other",
    );
    assert!(!none.contains("queue="), "{none}");
}
