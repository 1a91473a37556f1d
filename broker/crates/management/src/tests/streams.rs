//! Streams in metrics and in the API: replicas, lag of consumers, tracking, and super streams.

use super::*;
use control::{
    StreamConsumerFacts, StreamFollowerFacts, StreamProtocolCounters, StreamPublisherFacts,
    StreamReaderFacts, StreamReplicaFacts, StreamSessionFacts, StreamTrackingFacts,
};
use queue::cursor::StreamRequest;

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

#[test]
fn consumers_are_listed_with_their_lag() {
    let server = with_stream();
    let consumers = server.get("/api/stream/consumers");
    let lag = |at: usize| consumers[at]["offset_lag"].clone();
    assert_eq!(consumers[0]["subscription_id"], 5);
    assert_eq!(lag(0), 25);
    assert_eq!(lag(1), 0, "a consumer that waits has no lag");
    assert_eq!(lag(2), Json::Null, "no replica knows the consumer");
    let own = server.get("/api/stream/connections/%2F/a%20-%3E%20s/consumers");
    assert_eq!(own, consumers);
}

#[test]
fn replicas_of_a_stream_are_listed_with_their_lag() {
    let server = with_stream();
    assert_eq!(
        server.get("/api/stream/%2F/s/status"),
        json!([
            {
                "node": "c-0", "role": "writer", "state": "running", "epoch": 3, "offset": 109,
                "committed_offset": 99, "first_offset": 10, "segments": 2, "chunks": 7,
                "bytes": 5_000, "readers": 1, "max_offset_lag": 25, "lag": 0,
            },
            {
                "node": "c-1", "role": "replica", "state": "running", "epoch": 3, "offset": 99,
                "committed_offset": 94, "first_offset": 10, "segments": 2, "chunks": 7,
                "bytes": 5_000, "readers": 0, "max_offset_lag": 0, "lag": 10,
            },
            {"node": "c-2", "role": "replica", "state": "down", "lag": null},
        ])
    );
    assert_eq!(
        server
            .ask("GET", "/api/stream/%2F/none/status", None)
            .status,
        404
    );
    server.quorum("q");
    let refused = server.ask("GET", "/api/stream/%2F/q/status", None);
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.reason(),
        "queue 'q' in vhost '/' is a quorum queue, not a stream"
    );
}

#[test]
fn tracking_of_a_stream_is_that_of_its_leader() {
    let server = with_stream();
    let (offsets, writers) = (json!({"app": 60}), json!({"producer": 40}));
    let path = "/api/stream/%2F/s/tracking";
    let all = json!({"offsets": offsets, "writers": writers});
    assert_eq!(server.get(path), all);
    assert_eq!(server.get(&format!("{path}?type=all")), all);
    let only = server.get(&format!("{path}?type=offset"));
    assert_eq!(only, json!({"offsets": offsets}));
    let only = server.get(&format!("{path}?type=writer"));
    assert_eq!(only, json!({"writers": writers}));
    server.fake.lock().unwrap().streams[0].leads = false;
    assert_eq!(server.ask("GET", path, None).status, 503);
}

#[test]
fn stored_offset_is_reset_to_zero_and_only_if_there_is_one() {
    let server = with_stream();
    assert_eq!(server.delete("/api/stream/%2F/s/tracking/app"), 204);
    let requests = std::mem::take(&mut server.fake.lock().unwrap().requests);
    assert!(
        matches!(
            &requests[..],
            [
                RequestBody::Stream(StreamRequest::StoreOffset { name: stored, offset: 0 }),
                RequestBody::Stream(StreamRequest::QueryOffset { name: queried }),
            ] if **stored == *"app" && stored == queried
        ),
        "{requests:?}"
    );
    let absent = server.ask("DELETE", "/api/stream/%2F/s/tracking/other", None);
    assert_eq!(absent.status, 404);
    assert!(absent.reason().contains("no stored offset for 'other'"));
    let long = format!("/api/stream/%2F/s/tracking/{}", "x".repeat(256));
    assert_eq!(server.delete(&long), 400);
    assert!(server.fake.lock().unwrap().requests.is_empty());
}

#[test]
fn super_streams_are_created_listed_and_deleted() {
    let server = Server::start();
    let path = "/api/stream/super-streams/%2F/invoices";
    let body = json!({"partitions": 3, "arguments": {"max-length-bytes": 1_000_000}});
    assert_eq!(server.put(path, body.clone()), 201);
    let partition = |number: usize| json!({"name": format!("invoices-{number}"), "routing_key": number.to_string(), "order": number});
    let listed = json!([{
        "name": "invoices",
        "vhost": "/",
        "arguments": {
            "x-queue-type": "stream", "x-max-length-bytes": 1_000_000,
            "x-queue-leader-locator": "balanced",
        },
        "partition_count": 3,
        "partitions": [partition(0), partition(1), partition(2)],
    }]);
    assert_eq!(server.get("/api/stream/super-streams"), listed);
    assert_eq!(server.get("/api/stream/super-streams/%2F"), listed);
    let exchange = server.get("/api/exchanges/%2F/invoices");
    assert_eq!(
        (&exchange["type"], &exchange["arguments"]),
        (&json!("direct"), &json!({"x-super-stream": true}))
    );
    let again = server.ask("PUT", path, Some(body));
    assert_eq!(
        (again.status, again.reason()),
        (400, "exchange 'invoices' in vhost '/' exists already")
    );
    assert_eq!(server.delete(path), 204);
    assert_eq!(server.get("/api/stream/super-streams"), json!([]));
    assert_eq!(server.get("/api/queues"), json!([]));
    assert_eq!(server.delete(path), 404);
    // An exchange that is no super stream stays, and so do queues that are bound to it.
    let direct = server.ask("DELETE", "/api/stream/super-streams/%2F/amq.direct", None);
    assert_eq!(direct.status, 400, "{direct:?}");
}

#[test]
fn invalid_super_streams_are_refused_and_leave_nothing_behind() {
    let server = Server::start();
    let before = server.get("/api/exchanges/%2F");
    let path = "/api/stream/super-streams/%2F/s";
    for (body, reason) in [
        (json!({}), "Must specify partitions or binding keys"),
        (
            json!({"partitions": 1, "binding-keys": "a"}),
            "Specify partitions or binding keys, not both",
        ),
        (
            json!({"partitions": 0}),
            "The partition number must be greater than 0",
        ),
        (
            json!({"partitions": 1001}),
            "The partition number must not exceed 1000",
        ),
        (
            json!({"partitions": "many"}),
            "'partitions' should be a number",
        ),
        (
            json!({"binding-keys": " , ,"}),
            "The number of binding keys must be greater than 0",
        ),
        (
            json!({"partitions": 1, "node": "c-9"}),
            "Node c-9 is not a cluster member",
        ),
        (
            json!({"binding-keys": "a,b,a"}),
            "super stream 's' has the partition 's-a' twice",
        ),
        (
            json!({"partitions": 1, "arguments": {"max-length-bytes": "many"}}),
            "max-length-bytes must be a number, got 'many'",
        ),
        (
            json!({"partitions": 1, "arguments": {"initial-cluster-size": 0}}),
            "initial-cluster-size must be in the range 1 to 9223372036854775807, got 0",
        ),
    ] {
        let refused = server.ask("PUT", path, Some(body));
        assert_eq!((refused.status, refused.reason()), (400, reason));
    }
    // An invalid age is found when the first stream is planned.
    let age = json!({"partitions": 2, "arguments": {"max-age": "soon"}});
    assert_eq!(server.put(path, age), 400);
    let body = json!({"binding-keys": "emea,apac"});
    server.fake.lock().unwrap().declare("s-apac");
    let taken = server.ask("PUT", path, Some(body));
    assert_eq!(taken.reason(), "queue 's-apac' in vhost '/' exists already");
    assert_eq!(server.get("/api/exchanges/%2F"), before);
    assert_eq!(server.get("/api/queues").as_array().map(Vec::len), Some(1));
}
