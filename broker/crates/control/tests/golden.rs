//! Queries and answers between shards as version 0.2 wrote them.
#![forbid(unsafe_code)]

use control::{
    BrowseFacts, BrowseFilter, ChannelFacts, ConnectionFacts, ConsumerFacts, Counters,
    DeadLetterReasons, DeadLetterTotals, ExchangeCounts, LinkFacts, LinkFilterFacts,
    LinkSessionFacts, LoginCounts, MessageCounts, MessageSizeCounts, MqttCounters, NodeResources,
    ProtocolCounters, QueueTotals, RaftCounters, ShardFacts, ShardQuery, StoredBytesFacts,
    StreamConsumerFacts, StreamFilter, StreamFollowerFacts, StreamProtocolCounters,
    StreamPublisherFacts, StreamReaderFacts, StreamReplicaFacts, StreamSessionFacts,
    StreamTrackingFacts, TrafficCounts, TrafficFacts, TrafficFilter,
};
use env::{NodeId, WallTime};
use message::{MessageBuilder, Protocol};
use metadata::QueueId;
use queue::{
    BROWSE_BODY_BYTES, BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, BrowsedState,
    ByQueueType, QueueType,
};
use serde_json::json;
use std::collections::BTreeMap;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn query_name(ShardQuery) {
        ShardQuery::Connections => "connections",
        ShardQuery::Consumers => "consumers",
        ShardQuery::Counters => "counters",
        ShardQuery::Traffic(_) => "traffic",
        ShardQuery::Streams(_) => "streams",
        ShardQuery::Browse(_) => "browse",
        ShardQuery::Close { .. } => "close",
    }
    fn facts_name(ShardFacts) {
        ShardFacts::Connections(_) => "connections",
        ShardFacts::Consumers(_) => "consumers",
        ShardFacts::Counters(_) => "counters",
        ShardFacts::Traffic(_) => "traffic",
        ShardFacts::Streams(_) => "streams",
        ShardFacts::Browsed(_) => "browsed",
        ShardFacts::Closed(_) => "closed",
    }
}

fn members(value: serde_json::Value) -> serde_json::Map<String, serde_json::Value> {
    value.as_object().expect("an object").clone()
}

/// Numbers from `first` on, so that no two fields of a sample are equal.
fn numbers(first: u64) -> impl FnMut() -> u64 {
    let mut next = first;
    move || {
        next += 1;
        next - 1
    }
}

fn message_counts(first: u64) -> MessageCounts {
    let mut n = numbers(first);
    MessageCounts {
        publish: n(),
        confirm: n(),
        return_unroutable: n(),
        drop_unroutable: n(),
        deliver: n(),
        deliver_no_ack: n(),
        get: n(),
        get_no_ack: n(),
        get_empty: n(),
        redeliver: n(),
        ack: n(),
    }
}

fn connection() -> ConnectionFacts {
    let link = |name: &str| LinkFacts {
        handle: 1,
        name: name.to_owned(),
        address: Some("/queues/q".to_owned()),
        queue: "q".to_owned(),
        settle_mode: "mixed".to_owned(),
        max_message_size: Some(1 << 20),
        delivery_count: 8,
        credit: 9,
        unconfirmed: 10,
        // They are in the frame only if there are any.
        filters: Vec::new(),
    };
    let channel = ChannelFacts {
        number: u16::MAX,
        confirm: true,
        transactional: true,
        flow_blocked: true,
        prefetch: 10,
        global_prefetch: 20,
        consumers: 3,
        auto_ack: vec!["ctag é".into(), String::new()],
        unacknowledged: 4,
        unconfirmed: 5,
        uncommitted: 6,
        acks_uncommitted: 7,
        counts: message_counts(100),
        links: Some(LinkSessionFacts {
            handle_max: 255,
            next_incoming_id: 3,
            incoming_window: 400,
            next_outgoing_id: 5,
            remote_incoming_window: 6,
            remote_outgoing_window: 7,
            incoming: vec![link("incoming")],
            outgoing: vec![link("outgoing")],
        }),
    };
    ConnectionFacts {
        name: "10.0.0.1:5000 -> 10.0.0.2:5671".into(),
        // Not part of the format: the receiver knows the node from the link.
        node: NodeId::default(),
        number: u64::MAX,
        user: "guest".into(),
        vhost: "/".into(),
        protocol: "amqp091".into(),
        client_name: "orders \"1\"".into(),
        client_properties: members(
            json!({"product": "client", "capabilities": {"basic.nack": true}}),
        ),
        peer: "10.0.0.1:5000".into(),
        local: "10.0.0.2:5671".into(),
        tls: true,
        state: "running".into(),
        auth_mechanism: "PLAIN".into(),
        tls_protocol: "tlsv1.3".into(),
        tls_suite: "TLS_AES_256_GCM_SHA384".into(),
        certificate: Some("CN=client,O=Example".into()),
        connected_ms: 1_790_000_000_123,
        heartbeat_s: 60,
        frame_max: 131_072,
        channel_max: 2047,
        received_bytes: 1,
        sent_bytes: 2,
        pending_bytes: 3,
        channels: vec![channel, ChannelFacts::default()],
        stream: None,
    }
}

fn filtered_connection() -> ConnectionFacts {
    let filters = vec![
        LinkFilterFacts {
            name: "position".into(),
            descriptor: json!("rabbitmq:stream-offset-spec"),
            value: json!(7),
        },
        LinkFilterFacts {
            name: "fields".into(),
            descriptor: json!(0x0001_2345),
            value: json!([{"key": "subject", "value": "a"}]),
        },
    ];
    let link = LinkFacts {
        name: "outgoing".into(),
        filters,
        ..LinkFacts::default()
    };
    let channel = ChannelFacts {
        links: Some(LinkSessionFacts {
            outgoing: vec![link],
            ..LinkSessionFacts::default()
        }),
        ..ChannelFacts::default()
    };
    ConnectionFacts {
        protocol: "amqp10".into(),
        channels: vec![channel],
        ..ConnectionFacts::default()
    }
}

fn stream_connection() -> ConnectionFacts {
    let publisher = StreamPublisherFacts {
        id: 255,
        stream: "s".into(),
        reference: "orders".into(),
        published: 3,
        confirmed: 2,
        errored: 1,
    };
    let consumer = StreamConsumerFacts {
        id: 7,
        stream: "s".into(),
        credit: 4,
        consumed: 5,
        offset: 6,
        active: true,
        properties: BTreeMap::from([("name".into(), "group".into())]),
    };
    ConnectionFacts {
        protocol: "stream".into(),
        stream: Some(StreamSessionFacts {
            publishers: vec![publisher],
            consumers: vec![consumer],
        }),
        ..ConnectionFacts::default()
    }
}

fn consumer() -> ConsumerFacts {
    ConsumerFacts {
        queue: 300,
        session_node: u64::MAX,
        session_number: 7,
        channel: 1,
        tag: "ctag".into(),
        exclusive: true,
        prefetch: 10,
        active: true,
        arguments: members(json!({"x-priority": -5})),
    }
}

fn dead_letters(first: u64) -> DeadLetterTotals {
    let mut n = numbers(first);
    let mut reasons = || DeadLetterReasons {
        maxlen: n(),
        expired: n(),
        rejected: n(),
        delivery_limit: n(),
    };
    DeadLetterTotals {
        disabled: reasons(),
        at_most_once: reasons(),
        at_least_once: reasons(),
        confirmed: first + 50,
    }
}

/// One value for each queue type that version 0.2.0 had, in the order of the types.
fn by_queue_type<T: Default>(sample: impl Fn(u64) -> T) -> ByQueueType<T> {
    ByQueueType::from_fn(|queue_type| match queue_type {
        QueueType::Classic => sample(1000),
        QueueType::Quorum => sample(2000),
        QueueType::Stream => T::default(),
    })
}

fn protocol() -> ProtocolCounters {
    let mut n = numbers(20);
    ProtocolCounters {
        received: n(),
        received_confirm: n(),
        confirmed: n(),
        routed: n(),
        unroutable_returned: n(),
        unroutable_dropped: n(),
        by_queue_type: by_queue_type(message_counts),
        queueless: message_counts(200),
        traffic: TrafficCounts {
            connects: n(),
            packets_in: n(),
            packets_out: n(),
            bytes_in: n(),
            bytes_out: n(),
            payload_in: n(),
            payload_out: n(),
        },
        publishers: -1,
        consumers: 2,
        // They are in the frame only if there are any.
        sizes: MessageSizeCounts::default(),
    }
}

fn size_counters() -> Counters {
    let sizes = MessageSizeCounts {
        classes: vec![(100, 3), (1_000, 0)],
        larger: 2,
        bytes: 7_000,
    };
    let counted = ProtocolCounters {
        sizes,
        ..ProtocolCounters::default()
    };
    Counters {
        protocols: BTreeMap::from([("amqp091".to_owned(), counted)]),
        ..Counters::default()
    }
}

fn counters() -> Counters {
    let mut n = numbers(40);
    Counters {
        connections_opened: n(),
        connections_closed: n(),
        channels_opened: n(),
        channels_closed: n(),
        connections: n(),
        channels: n(),
        queues: QueueTotals {
            queues: n(),
            ready: n(),
            unacknowledged: n(),
            bytes: n(),
            dead: n(),
            // It is in the frame only if it is not zero.
            delayed: 0,
            consumers: n(),
            lost_messages: n(),
            lost_segments: n(),
        },
        protocols: BTreeMap::from([("amqp091".into(), protocol())]),
        logins: BTreeMap::from([(
            "mqtt".into(),
            LoginCounts {
                succeeded: n(),
                failed: n(),
            },
        )]),
        mqtt: MqttCounters {
            connected: n(),
            sessions_away: n(),
            most: n(),
            expired: n(),
            subscriptions: n(),
            retained: n(),
            retained_bytes: n(),
            dropped: n(),
            not_kept: n(),
            dropped_between: n(),
            lost_between: n(),
            wills: n(),
            wills_not_kept: n(),
        },
        dead_letters: by_queue_type(dead_letters),
        stream: StreamProtocolCounters::default(),
        raft: RaftCounters::default(),
        // It is in the frame only if it is not zero.
        quota_paused_ms: 0,
        stored_bytes: BTreeMap::new(),
        resources: None,
    }
}

fn node_counters() -> Counters {
    let mut n = numbers(400);
    Counters {
        resources: Some(NodeResources {
            memory_used: Some(n()),
            memory_limit: Some(n()),
            disk_free: Some(n()),
            disk_free_limit: Some(n()),
            descriptors_used: Some(n()),
            descriptors: Some(n()),
            is_short_of_files: true,
            connections: Some(n()),
            threads: Some(n()),
            thread_limit: Some(n()),
            processors: Some(n()),
            uptime_s: None,
            processor_time_ms: None,
            started_ms: None,
        }),
        ..Counters::default()
    }
}

fn delayed_counters() -> Counters {
    Counters {
        queues: QueueTotals {
            delayed: 5,
            ..QueueTotals::default()
        },
        ..Counters::default()
    }
}

fn quota_counters() -> Counters {
    Counters {
        quota_paused_ms: 6,
        ..Counters::default()
    }
}

fn stored_bytes_counters() -> Counters {
    let facts = StoredBytesFacts {
        stored: 8,
        limit: 7,
        is_blocked: true,
    };
    Counters {
        stored_bytes: BTreeMap::from([("v".to_owned(), facts)]),
        ..Counters::default()
    }
}

fn raft_counters() -> Counters {
    let mut n = numbers(500);
    Counters {
        raft: RaftCounters {
            groups: n(),
            awake: n(),
            memory: n(),
            elections_won: n(),
            refused: n(),
            failed_transfers: n(),
            postponed_jobs: n(),
        },
        ..Counters::default()
    }
}

fn stream_protocol_counters() -> Counters {
    Counters {
        stream: StreamProtocolCounters {
            connections: 3,
            errors: BTreeMap::from([("stream_does_not_exist".into(), 4)]),
        },
        ..Counters::default()
    }
}

fn stream_replica() -> StreamReplicaFacts {
    let mut n = numbers(300);
    StreamReplicaFacts {
        queue: n(),
        // Not part of the format: the receiver knows the node from the link.
        node: NodeId::default(),
        leads: true,
        epoch: n(),
        first_offset: n(),
        next_offset: n(),
        committed_offset: n(),
        segments: n(),
        chunks: n(),
        bytes: n(),
        reader_count: n(),
        max_lag: n(),
        followers: vec![
            StreamFollowerFacts {
                node: n(),
                next_offset: Some(n()),
            },
            StreamFollowerFacts {
                node: n(),
                next_offset: None,
            },
        ],
        tracking: Some(StreamTrackingFacts {
            offsets: BTreeMap::from([("é".into(), n())]),
            writers: BTreeMap::from([("p".into(), n())]),
        }),
        readers: vec![StreamReaderFacts {
            session_node: n(),
            session_number: n(),
            consumer: n(),
            lag: n(),
        }],
    }
}

fn stream_counters() -> Counters {
    let mut protocol = ProtocolCounters::default();
    protocol.by_queue_type[QueueType::Stream] = message_counts(1);
    let mut counters = Counters {
        protocols: BTreeMap::from([("stream".into(), protocol)]),
        ..Counters::default()
    };
    counters.dead_letters[QueueType::Stream] = dead_letters(2);
    counters
}

fn browse_request() -> BrowseRequest {
    BrowseRequest {
        from: Some(browse_position()),
        least: 3,
        most: u64::MAX,
        messages: 100,
        body_bytes: 4096,
        body_start: 0,
        state: None,
        unexpired_at: None,
    }
}

fn browse_position() -> BrowsePosition {
    BrowsePosition {
        level: 4,
        number: 1 << 40,
        segment: 7,
        offset: 300,
    }
}

fn browse_page() -> BrowsePage {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1_000),
        exchange: "events",
        routing_keys: &["a.b"],
        properties: &[],
    };
    let states = [
        BrowsedState::Ready,
        BrowsedState::Unacknowledged,
        BrowsedState::Delayed,
    ];
    let message = |state| BrowsedMessage {
        at: browse_position(),
        state,
        due_at: None,
        redelivered: true,
        failed: Some(2),
        acquired: 3,
        body_len: 1_000,
        body_start: 0,
        message: builder.build(4, [&b"body"[..]]).unwrap(),
    };
    BrowsePage {
        messages: states.map(message).into(),
        next: Some(browse_position()),
        last_number: None,
    }
}

#[test]
fn browsed_page_is_restored() {
    let page = browse_page();
    let facts = BrowseFacts::new(Ok(page.clone()));
    assert_eq!(facts.into_page(), Ok(page));
    let mut part = browse_page();
    part.messages[2].due_at = Some(1_700_000_000_000);
    for browsed in &mut part.messages {
        browsed.body_start = 4096;
    }
    let facts = BrowseFacts::new(Ok(part.clone()));
    assert_eq!(facts.into_page(), Ok(part));
    let page = page_for_client();
    let facts = BrowseFacts::new(Ok(page.clone()));
    assert_eq!(facts.into_page(), Ok(page));
    for (state, body_start) in [(None, 0), (Some(BrowsedState::Delayed), 4096)] {
        let request = BrowseRequest {
            state,
            body_start,
            ..browse_request()
        };
        assert_eq!(BrowseFilter::new(QueueId(9), &request).request(7), request);
    }
}

#[test]
fn clock_of_the_queue_and_the_limit_of_bodies_hold_for_browse_queries() {
    let request = BrowseRequest {
        body_bytes: u32::MAX,
        ..request_for_client()
    };
    let decoded = BrowseFilter::new(QueueId(9), &request).request(7);
    assert_eq!(decoded.unexpired_at, Some(7));
    assert_eq!(decoded.body_bytes, BROWSE_BODY_BYTES);
}

/// The request for a page that a client of AMQP 1.0 browses.
fn request_for_client() -> BrowseRequest {
    BrowseRequest {
        state: Some(BrowsedState::Ready),
        unexpired_at: Some(1_700_000_000_000),
        ..browse_request()
    }
}

fn page_for_client() -> BrowsePage {
    BrowsePage {
        last_number: Some(1 << 41),
        ..browse_page()
    }
}

#[test]
fn queries_of_version_0_2_are_decoded() {
    let samples = [
        ShardQuery::Connections,
        ShardQuery::Consumers,
        ShardQuery::Counters,
        ShardQuery::Traffic(TrafficFilter {
            vhosts: vec!["/".into(), "é".into()],
            exchanges: vec![("/".into(), "amq.topic".into())],
        }),
        ShardQuery::Streams(StreamFilter {
            queue: Some(u64::MAX),
            tracking: true,
            readers: true,
        }),
        ShardQuery::Streams(StreamFilter::default()),
        ShardQuery::Browse(BrowseFilter::new(QueueId(9), &browse_request())),
        ShardQuery::Browse(BrowseFilter::new(QueueId(9), &request_for_client())),
        ShardQuery::Close {
            name: "a -> b".into(),
            reason: "closed by an operator".into(),
        },
    ];
    golden::verify(CRATE, "0.2/shard-query", |files| {
        let decode = |raw: &[u8]| ShardQuery::decode(raw).ok_or("not a query");
        files.check_enum(&samples, query_name, ShardQuery::encode, decode);
    });
}

#[test]
fn facts_of_version_0_2_are_decoded() {
    let exchange = ExchangeCounts {
        publish_in: 1,
        publish_out: 2,
    };
    let samples = [
        ShardFacts::Connections(vec![connection(), ConnectionFacts::default()]),
        ShardFacts::Consumers(vec![consumer()]),
        ShardFacts::Counters(Box::new(counters())),
        ShardFacts::Traffic(TrafficFacts {
            vhosts: BTreeMap::from([("/".into(), message_counts(1))]),
            exchanges: BTreeMap::from([(
                "/".into(),
                BTreeMap::from([("amq.topic".into(), exchange)]),
            )]),
        }),
        ShardFacts::Closed(true),
        ShardFacts::Closed(false),
        ShardFacts::Connections(vec![stream_connection()]),
        ShardFacts::Counters(Box::new(stream_counters())),
        ShardFacts::Counters(Box::new(stream_protocol_counters())),
        ShardFacts::Streams(vec![stream_replica(), StreamReplicaFacts::default()]),
        ShardFacts::Counters(Box::new(node_counters())),
        ShardFacts::Counters(Box::new(delayed_counters())),
        ShardFacts::Counters(Box::new(raft_counters())),
        ShardFacts::Counters(Box::new(quota_counters())),
        ShardFacts::Counters(Box::new(stored_bytes_counters())),
        ShardFacts::Counters(Box::new(size_counters())),
        ShardFacts::Connections(vec![filtered_connection()]),
        ShardFacts::Browsed(None),
        ShardFacts::Browsed(Some(Box::new(BrowseFacts::new(Ok(browse_page()))))),
        ShardFacts::Browsed(Some(Box::new(BrowseFacts::new(Err("it is away".into()))))),
        ShardFacts::Browsed(Some(Box::new(BrowseFacts::new(Ok(page_for_client()))))),
    ];
    golden::verify(CRATE, "0.2/shard-facts", |files| {
        let decode = |raw: &[u8]| ShardFacts::decode(raw).ok_or("not an answer");
        files.check_enum(&samples, facts_name, ShardFacts::encode, decode);
    });
}
