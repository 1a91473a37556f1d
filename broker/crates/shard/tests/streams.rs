//! Streams on whole nodes: replication, consumers on every node, changes of the leader and of the members.

use crate::cluster::{Client, Cluster, Got, arguments};
use codec_amqp091::{Method, Properties};
use control::{ControlRequest, MemberChange, StreamFilter, StreamReplicaFacts};
use env::NodeId;
use message::Value;
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use queue::cursor::{StreamReply, StreamRequest};
use queue::{QueueReply, RequestBody};
use std::ops::Range;

fn stream(extra: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
    let kind = ("x-queue-type", Value::from("stream"));
    [&[kind], extra].concat()
}

fn number_of(got: &Got) -> u32 {
    let bytes = got.body[..4].try_into().expect("four bytes");
    u32::from_be_bytes(bytes)
}

fn offset_of(got: &Got) -> i64 {
    let headers = got.headers();
    let offset = headers.get("x-stream-offset").and_then(Value::as_integer);
    offset.unwrap_or_else(|| panic!("no offset in {headers:?}"))
}

/// A client with publisher confirms.
struct Publisher {
    client: Client,
    published: u64,
}

impl Publisher {
    fn new(c: &mut Cluster, at: usize) -> Publisher {
        let mut client = c.client(at);
        client.call(c, 1, Method::ConfirmSelect { no_wait: false });
        Publisher {
            client,
            published: 0,
        }
    }

    fn publish(&mut self, c: &mut Cluster, queue: &str, numbers: Range<u32>) {
        for number in numbers {
            let body = [&number.to_be_bytes()[..], &[7; 96]].concat();
            self.client
                .publish(c, "", queue, &Properties::default(), &body);
            self.published += 1;
        }
        self.client.until_confirmed(c, self.published);
    }
}

/// A client that consumes a stream with a prefetch of 10.
fn consumer(c: &mut Cluster, at: usize, queue: &str, offset: Value) -> Client {
    let mut client = c.client(at);
    client.limit_prefetch(c, 10);
    let consuming = client.consume_stream(c, queue, offset);
    consuming.unwrap_or_else(|error| panic!("{error}"));
    client
}

/// Receives and acknowledges these messages, in order, each once.
fn receive(c: &mut Cluster, client: &mut Client, numbers: Range<u32>) {
    let mut last = None;
    for number in numbers {
        let got = client.delivery(c);
        assert_eq!(number_of(&got), number);
        let offset = offset_of(&got);
        assert!(last.is_none_or(|last| offset > last), "offsets ascend");
        last = Some(offset);
        client.acknowledge(c, got.tag);
    }
}

fn leader(c: &mut Cluster, at: usize, queue: &str) -> usize {
    let leader = c.until("a leader", |c| c.queue(at, queue)?.leader);
    leader.0 as usize - 1
}

fn has_files(c: &Cluster, at: usize) -> bool {
    let files = c.files_at(at);
    files.iter().any(|path| path.starts_with("streams/"))
}

#[test]
fn consumers_on_every_node_get_all_messages_in_order() {
    let mut c = Cluster::new(4);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let members = c.queue(0, "s").map(|q| q.members).expect("the stream");
    assert_eq!(members.len(), 3);
    let mut publisher = Publisher::new(&mut c, 3);
    publisher.publish(&mut c, "s", 0..100);
    for at in 0..4 {
        let mut early = consumer(&mut c, at, "s", Value::from("first"));
        receive(&mut c, &mut early, 0..100);
    }
    let mut late = consumer(&mut c, 2, "s", Value::from("next"));
    let mut middle = consumer(&mut c, 1, "s", Value::I64(50));
    publisher.publish(&mut c, "s", 100..150);
    receive(&mut c, &mut late, 100..150);
    receive(&mut c, &mut middle, 50..150);
    assert_eq!(c.ready(0, "s"), 150, "reading removes nothing");
}

#[test]
fn confirmed_messages_and_consumers_survive_the_death_of_the_leader() {
    let mut c = Cluster::new(3);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let first = leader(&mut c, 0, "s");
    let others: Vec<usize> = (0..3).filter(|at| *at != first).collect();
    let mut publisher = Publisher::new(&mut c, others[0]);
    publisher.publish(&mut c, "s", 0..40);
    let mut reader = consumer(&mut c, others[1], "s", Value::from("first"));
    receive(&mut c, &mut reader, 0..20);
    c.kill(first);
    publisher.publish(&mut c, "s", 40..80);
    receive(&mut c, &mut reader, 20..80);
    let second = leader(&mut c, others[0], "s");
    assert_ne!(second, first);
    let mut again = consumer(&mut c, others[0], "s", Value::from("first"));
    receive(&mut c, &mut again, 0..80);
}

#[test]
fn a_replica_moves_and_leaves_no_files_behind() {
    let mut c = Cluster::new(4);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let mut publisher = Publisher::new(&mut c, 0);
    publisher.publish(&mut c, "s", 0..60);
    let mut reader = consumer(&mut c, 2, "s", Value::from("first"));
    receive(&mut c, &mut reader, 0..30);
    assert!(has_files(&c, 2) && !has_files(&c, 3));
    let replace = MemberChange::Replace {
        old: NodeId(3),
        new: NodeId(4),
    };
    let members = c.change_members("s", replace).expect("possible");
    assert_eq!(members, [NodeId(1), NodeId(2), NodeId(4)]);
    c.until("the new replica has the files, and the old one none", |c| {
        (has_files(c, 3) && !has_files(c, 2)).then_some(())
    });
    // The consumer on the node that lost its replica goes on with another one.
    receive(&mut c, &mut reader, 30..60);
    publisher.publish(&mut c, "s", 60..70);
    receive(&mut c, &mut reader, 60..70);
    // The new member has everything: without it there is no majority.
    c.kill(1);
    publisher.publish(&mut c, "s", 70..80);
    let mut there = consumer(&mut c, 3, "s", Value::from("first"));
    receive(&mut c, &mut there, 0..80);
}

/// A node that was cut off gets the changes in a checkpoint of the metadata instead of one by one.
#[test]
fn clients_of_a_node_that_missed_a_move_of_all_replicas_find_them() {
    let mut c = Cluster::with_nodes_and_checkpoints(7, 10);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let members = c.queue(0, "s").map(|q| q.members).expect("the stream");
    assert_eq!(members, [NodeId(1), NodeId(2), NodeId(3)]);
    let mut publisher = Publisher::new(&mut c, 6);
    publisher.publish(&mut c, "s", 0..10);
    let mut reader = consumer(&mut c, 6, "s", Value::from("first"));
    receive(&mut c, &mut reader, 0..10);
    c.cut_off(6);
    for (old, new) in [(1, 4), (2, 5), (3, 6)] {
        let (old, new) = (NodeId(old), NodeId(new));
        let members = c.change_members("s", MemberChange::Replace { old, new });
        assert!(members.expect("possible").contains(&new));
        c.until("the replica has moved", |c| {
            let files = |node: NodeId| has_files(c, node.0 as usize - 1);
            (files(new) && !files(old)).then_some(())
        });
    }
    for number in 0..30 {
        admin.declare(&mut c, &format!("q{number}"), &[]);
    }
    c.link(6);
    publisher.publish(&mut c, "s", 10..20);
    receive(&mut c, &mut reader, 10..20);
}

#[test]
fn deleting_a_stream_ends_its_consumers_and_deletes_its_files() {
    let mut c = Cluster::new(3);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let mut publisher = Publisher::new(&mut c, 0);
    publisher.publish(&mut c, "s", 0..5);
    let mut reader = consumer(&mut c, 1, "s", Value::from("first"));
    receive(&mut c, &mut reader, 0..5);
    let delete = Method::QueueDelete {
        queue: "s",
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    admin.call(&mut c, 1, delete);
    c.until("no files are left", |c| {
        (0..3).all(|at| !has_files(c, at)).then_some(())
    });
}

#[test]
fn a_stream_needs_its_feature_flag() {
    let mut c = Cluster::without_feature(1, "stream_queues");
    let mut client = c.client(0);
    let declare = Method::QueueDeclare {
        queue: "s",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: arguments(&stream(&[])),
    };
    let refused = client.ask(&mut c, 1, declare).unwrap_err();
    assert!(refused.contains("'stream_queues'"), "{refused}");
}

#[test]
fn requests_that_a_stream_does_not_support_are_refused() {
    let mut c = Cluster::new(1);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let refusals = [
        (None, Value::from("first"), "prefetch count is not set"),
        (Some(10), Value::from("later"), "'x-stream-offset'"),
    ];
    for (prefetch, offset, text) in refusals {
        let mut client = c.client(0);
        if let Some(prefetch) = prefetch {
            client.limit_prefetch(&mut c, prefetch);
        }
        let refused = client.consume_stream(&mut c, "s", offset).unwrap_err();
        assert!(refused.contains(text), "{refused}");
    }
    let mut client = c.client(0);
    let get = Method::BasicGet {
        queue: "s",
        no_ack: false,
    };
    let refused = client.ask(&mut c, 1, get).unwrap_err();
    assert!(refused.contains("not supported by stream"), "{refused}");
}

#[test]
fn a_policy_limits_the_bytes_of_a_stream() {
    let mut c = Cluster::new(3);
    let mut admin = c.client(0);
    let small = [
        ("x-stream-max-segment-size-bytes", Value::I64(2_000)),
        ("x-max-length-bytes", Value::I64(1_000_000)),
    ];
    admin.declare(&mut c, "s", &stream(&small));
    let mut publisher = Publisher::new(&mut c, 0);
    // A chunk of ten messages each: what waits for the disk becomes one chunk.
    for first in (0..100).step_by(10) {
        publisher.publish(&mut c, "s", first..first + 10);
    }
    // Each segment begins with a snapshot of the tracking, which takes an offset.
    assert!(c.ready(0, "s") >= 100);
    c.change(Change::PutPolicy(PolicyRecord {
        vhost: "/".into(),
        name: "small".into(),
        scope: PolicyScope::User,
        pattern: "^s$".into(),
        apply_to: ApplyTo::Streams,
        priority: 0,
        definition: arguments(&[("max-length-bytes", Value::I64(4_000))]),
    }));
    c.until("the oldest segments are deleted", |c| {
        (c.ready(0, "s") < 50).then_some(())
    });
    let mut reader = consumer(&mut c, 1, "s", Value::from("first"));
    let oldest = reader.delivery(&mut c);
    assert!(number_of(&oldest) > 40, "{}", number_of(&oldest));
}

/// The replicas of a stream that all nodes report to this one.
fn replicas(c: &mut Cluster, at: usize, queue: &str) -> Vec<StreamReplicaFacts> {
    let queue = c.queue(at, queue).map(|facts| facts.id.0);
    let mut found = c.ask(at, |reply| ControlRequest::Streams {
        of: StreamFilter {
            queue,
            tracking: true,
            readers: true,
        },
        everywhere: true,
        reply,
    });
    found.sort_by_key(|replica| replica.node);
    found
}

#[test]
fn every_replica_reports_its_log_and_the_lag_of_its_readers() {
    let mut c = Cluster::new(3);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let mut publisher = Publisher::new(&mut c, 0);
    publisher.publish(&mut c, "s", 0..40);
    let mut reader = consumer(&mut c, 1, "s", Value::from("first"));
    receive(&mut c, &mut reader, 0..40);
    let all = c.until("all replicas have everything", |c| {
        let all = replicas(c, 2, "s");
        let leader = all.iter().find(|replica| replica.leads)?;
        let end = leader.next_offset;
        let has_all = |r: &StreamReplicaFacts| (r.next_offset, r.committed_offset) == (end, end);
        let lags = leader.followers.iter().map(|follower| follower.next_offset);
        let is_told = lags.clone().count() == 2 && lags.flatten().all(|offset| offset == end);
        (all.len() == 3 && all.iter().all(has_all) && is_told).then_some(all)
    });
    assert_eq!(all.iter().filter(|replica| replica.leads).count(), 1);
    for replica in &all {
        assert!(replica.next_offset >= 40 && replica.epoch > 0);
        assert_eq!((replica.first_offset, replica.segments), (0, 1));
        assert!(replica.chunks > 0 && replica.bytes > 4_000, "{replica:?}");
        let is_tracked = replica.tracking.is_some();
        assert_eq!(
            is_tracked, replica.leads,
            "only the leader tells its tracking"
        );
    }
    let read: Vec<_> = all.iter().filter(|r| r.reader_count > 0).collect();
    assert_eq!(read.len(), 1, "one replica serves the consumer");
    assert_eq!((read[0].node, read[0].readers.len()), (NodeId(2), 1));
    assert_eq!((read[0].max_lag, read[0].readers[0].lag), (0, 0));
    assert_eq!(read[0].readers[0].session_node, 2);

    // The consumer acknowledges nothing, so it is sent no more than its prefetch.
    publisher.publish(&mut c, "s", 40..100);
    let lag = c.until("the consumer lags", |c| {
        let all = replicas(c, 2, "s");
        let replica = all.iter().find(|r| r.node == NodeId(2))?;
        (replica.max_lag > 0).then_some((replica.max_lag, replica.readers[0].lag))
    });
    assert_eq!(lag.0, lag.1);
}

#[test]
fn the_control_plane_stores_an_offset_and_asks_for_it() {
    let mut c = Cluster::new(3);
    let mut admin = c.client(0);
    admin.declare(&mut c, "s", &stream(&[]));
    let mut publisher = Publisher::new(&mut c, 0);
    publisher.publish(&mut c, "s", 0..10);
    let queue = c.queue(2, "s").expect("the stream").id;
    let ask = |c: &mut Cluster, request: StreamRequest| {
        let body = RequestBody::Stream(request);
        c.ask(2, |reply| ControlRequest::Queue { queue, body, reply })
    };
    let name: metadata::Name = "app".into();
    for offset in [7, 0] {
        let name = name.clone();
        ask(&mut c, StreamRequest::StoreOffset { name, offset }).expect("sent");
        let name = "app".into();
        let answer = ask(&mut c, StreamRequest::QueryOffset { name });
        let stored = StreamReply::Offset(Some(offset));
        assert_eq!(answer, Ok(QueueReply::Stream(stored)));
        let all = replicas(&mut c, 1, "s");
        let tracking = all.into_iter().find_map(|replica| replica.tracking);
        let offsets = tracking.expect("of the leader").offsets;
        assert_eq!(offsets, [("app".to_owned(), offset)].into());
    }
}
