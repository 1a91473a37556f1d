//! One replica alone: requests, deduplication, cursors, restarts and retention.

use super::*;
use crate::{MAX_BATCH_BYTES, TierConfig};
use env::Disk;
use queue::client::NUMBERING_EPOCH;
use queue::cursor::{
    AddressedCursorEvent, CursorEvent, CursorRequest, CursorSource, CursorSpec, CursorStart,
    MessageBatch, StreamReply, StreamRequest, StreamStats,
};
use queue::{ConsumerId, QueueEvent, QueueReply, RefusedPublishes, RejectReason};
use std::time::Duration;
use stream_log::Retention;

fn publish(body: &[u8]) -> RequestBody {
    RequestBody::Publish(message(body))
}

fn query(request: StreamRequest) -> RequestBody {
    RequestBody::Stream(request)
}

fn answer(seq: u64, reply: StreamReply) -> QueueEvent {
    let answer = QueueReply::Stream(reply);
    QueueEvent::Answer { seq, answer }
}

fn attach(start: CursorStart, total: u64) -> CursorRequest {
    CursorRequest::Attach {
        cursor: ConsumerId(1),
        attachment: 1,
        spec: CursorSpec {
            tag: "c".into(),
            channel: 1,
            start,
            arguments: message::Table::default(),
        },
        total,
    }
}

impl Single {
    fn cursor(&mut self, request: CursorRequest) -> Vec<CursorEvent> {
        let mut out = Vec::new();
        self.replica.handle(session(50), request, &mut out);
        self.read(out)
    }

    /// Serves cursors and does their reads.
    fn read(&mut self, mut out: Vec<AddressedCursorEvent>) -> Vec<CursorEvent> {
        for _ in 0..10 {
            while self.replica.send_batches(1 << 20, &mut out) {}
            self.work();
        }
        out.into_iter().map(|addressed| addressed.event).collect()
    }
}

fn batches(events: &[CursorEvent]) -> Vec<&MessageBatch> {
    let batches = events.iter().filter_map(|event| match event {
        CursorEvent::Batch { batch, .. } => Some(batch),
        _ => None,
    });
    batches.collect()
}

fn offsets(events: &[CursorEvent]) -> Vec<(u64, u32)> {
    let all = batches(events).into_iter();
    all.map(|batch| (batch.first, batch.count)).collect()
}

#[test]
fn publishes_of_one_turn_are_one_chunk_and_confirmed_once_written() {
    let mut one = Single::new(LogConfig::default());
    for seq in 1..=3 {
        one.request(session(1), seq, publish(b"x"));
    }
    assert_eq!(one.events(session(1)), vec![]);
    one.work();
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::Applied { up_to: 3 }]
    );
    let events = one.cursor(attach(CursorStart::First, 10));
    assert_eq!(offsets(&events), vec![(0, 3)]);
    assert_eq!(one.replica.counters().publish, 3);
    assert_eq!(one.replica.stats().ready, 3);
}

#[test]
fn gap_is_reported_and_duplicate_is_not_stored_again() {
    let mut one = Single::new(LogConfig::default());
    one.request(session(1), 1, publish(b"a"));
    one.request(session(1), 3, publish(b"c"));
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::Expecting { expected: 2 }]
    );
    one.work();
    one.events(session(1));
    one.request(session(1), 1, publish(b"a"));
    one.work();
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::Applied { up_to: 1 }]
    );
    assert_eq!(one.replica.committed(), Some(1));
    // An unknown session has to start a numbering epoch.
    one.request(session(2), NUMBERING_EPOCH + 4, publish(b"d"));
    let expected = NUMBERING_EPOCH + 1;
    assert_eq!(
        one.events(session(2)),
        vec![QueueEvent::Expecting { expected }]
    );
    one.request(session(2), expected, publish(b"d"));
    one.work();
    let applied = QueueEvent::Applied { up_to: expected };
    assert_eq!(one.events(session(2)), vec![applied]);
}

#[test]
fn messages_of_a_producer_are_deduplicated_also_after_a_restart() {
    let mut one = Single::new(LogConfig::default());
    let first = RequestBody::PublishBatch(batch(Some("p"), &[(1, b"a"), (2, b"b"), (2, b"c")]));
    one.request(session(1), 1, first);
    one.work();
    assert_eq!(one.replica.committed(), Some(2));
    one.restart(2, b"machine-1", LogConfig::default());
    let again = RequestBody::PublishBatch(batch(Some("p"), &[(2, b"b"), (3, b"d")]));
    one.request(session(1), 1, again);
    one.request(
        session(1),
        2,
        query(StreamRequest::QueryPublisher { name: "p".into() }),
    );
    one.work();
    let events = one.events(session(1));
    assert!(
        events.contains(&answer(2, StreamReply::PublishingId(Some(3)))),
        "{events:?}"
    );
    assert!(
        events.contains(&QueueEvent::Applied { up_to: 2 }),
        "{events:?}"
    );
    // The marker of the second term has offset 2.
    assert_eq!(one.replica.committed(), Some(4));
}

#[test]
fn damaged_and_oversized_batches_are_refused_as_a_whole() {
    let mut one = Single::new(LogConfig::default());
    let mut damaged = batch(None, &[(1, b"a"), (2, b"b")]);
    damaged.count = 3;
    one.request(session(1), 1, RequestBody::PublishBatch(damaged));
    let large = vec![0; MAX_BATCH_BYTES / 2 + 1];
    let oversized = batch(None, &[(1, &large), (2, &large)]);
    one.request(session(1), 2, RequestBody::PublishBatch(oversized));
    one.request(session(1), 3, publish(b"good"));
    one.work();
    let refused = RefusedPublishes {
        from: 1,
        to: 2,
        why: RejectReason::Unavailable,
    };
    let expected = QueueEvent::AppliedExcept {
        up_to: 3,
        refused: vec![refused],
    };
    assert_eq!(one.events(session(1)), vec![expected]);
    assert_eq!(one.replica.committed(), Some(1));
}

#[test]
fn offsets_of_consumers_are_stored() {
    let mut one = Single::new(LogConfig::default());
    let name = || "reader".into();
    one.request(session(1), 1, publish(b"a"));
    let store = StreamRequest::StoreOffset {
        name: name(),
        offset: 17,
    };
    one.request(session(1), 2, query(store));
    one.request(
        session(1),
        3,
        query(StreamRequest::QueryOffset { name: name() }),
    );
    let other = StreamRequest::QueryOffset {
        name: "other".into(),
    };
    one.request(session(1), 4, query(other));
    one.work();
    let events = one.events(session(1));
    assert!(
        events.contains(&answer(3, StreamReply::Offset(Some(17)))),
        "{events:?}"
    );
    assert!(
        events.contains(&answer(4, StreamReply::Offset(None))),
        "{events:?}"
    );
}

#[test]
fn statistics_name_the_ends_of_the_log() {
    let mut one = Single::new(LogConfig::default());
    one.request(session(1), 1, query(StreamRequest::Stats));
    one.work();
    let empty = answer(1, StreamReply::Stats(StreamStats::default()));
    assert!(one.events(session(1)).contains(&empty));
    for seq in 2..=3 {
        one.request(session(1), seq, publish(b"a"));
        one.work();
    }
    one.request(session(1), 4, query(StreamRequest::Stats));
    let last = StreamRequest::ResolveOffset {
        start: CursorStart::Last,
    };
    one.request(session(1), 5, query(last));
    one.work();
    let stats = StreamStats {
        first_offset: Some(0),
        last_chunk: Some(1),
        committed: Some(1),
    };
    let events = one.events(session(1));
    assert!(
        events.contains(&answer(4, StreamReply::Stats(stats))),
        "{events:?}"
    );
    assert!(
        events.contains(&answer(5, StreamReply::Offset(Some(1)))),
        "{events:?}"
    );
}

#[test]
fn cursors_start_at_every_kind_of_position() {
    let mut one = Single::new(LogConfig::default());
    for seq in 1..=4 {
        one.ms = seq * 1000;
        one.request(session(1), 2 * seq - 1, publish(b"a"));
        one.request(session(1), 2 * seq, publish(b"b"));
        one.work();
    }
    let cases = [
        (CursorStart::First, vec![(0, 2), (2, 2), (4, 2), (6, 2)]),
        (CursorStart::Last, vec![(6, 2)]),
        (CursorStart::Next, vec![]),
        (CursorStart::Offset(3), vec![(3, 1), (4, 2), (6, 2)]),
        // Clamped by the leader.
        (CursorStart::Offset(99), vec![]),
        (
            CursorStart::Timestamp(WallTime(1_000_000 + 2_500)),
            vec![(4, 2), (6, 2)],
        ),
    ];
    for (start, expected) in cases {
        let events = one.cursor(attach(start, 10));
        assert_eq!(offsets(&events), expected, "{start:?}");
        let is_attached = matches!(events.first(), Some(CursorEvent::Attached { .. }));
        assert!(is_attached, "{start:?}: {events:?}");
    }
}

#[test]
fn cursor_gets_no_more_batches_than_its_credit() {
    let mut one = Single::new(LogConfig::default());
    for seq in 1..=5 {
        one.request(session(1), seq, publish(b"a"));
        one.work();
    }
    let events = one.cursor(attach(CursorStart::First, 2));
    assert_eq!(offsets(&events), vec![(0, 1), (1, 1)]);
    let credit = |total, probe| CursorRequest::Credit {
        cursor: ConsumerId(1),
        attachment: 1,
        total,
        probe,
    };
    assert_eq!(offsets(&one.cursor(credit(3, false))), vec![(2, 1)]);
    // A probe is answered after the batches that the credit allows.
    let events = one.cursor(credit(9, true));
    assert_eq!(offsets(&events), vec![(3, 1), (4, 1)]);
    let last = CursorEvent::Attached {
        cursor: ConsumerId(1),
        attachment: 1,
        next: 5,
    };
    assert_eq!(events.last(), Some(&last));
    // New messages come from memory.
    one.request(session(1), 6, publish(b"a"));
    one.work();
    assert_eq!(offsets(&one.read(Vec::new())), vec![(5, 1)]);
}

#[test]
fn chunks_that_no_entry_matches_are_skipped() {
    let mut one = Single::new(LogConfig::default());
    let filtered = |value: &'static str| {
        let mut buffer = BytesMut::new();
        let published = PublishedMessage {
            publishing_id: 1,
            filter: (!value.is_empty()).then_some(value),
            body: PublishedBody::Message(b"m"),
        };
        PublishedMessages::encode(&[published], &mut buffer);
        RequestBody::PublishBatch(StreamBatch {
            producer: None,
            version: if value.is_empty() { 1 } else { 2 },
            count: 1,
            entries: buffer.freeze(),
        })
    };
    for (seq, value) in (1..).zip(["a", "b", "", "a"]) {
        one.request(session(1), seq, filtered(value));
        one.work();
    }
    let mut wanted = attach(CursorStart::First, 10);
    if let CursorRequest::Attach { spec, .. } = &mut wanted {
        spec.arguments.set("x-stream-filter", "a".into());
    }
    assert_eq!(offsets(&one.cursor(wanted.clone())), vec![(0, 1), (3, 1)]);
    if let CursorRequest::Attach { spec, .. } = &mut wanted {
        let unfiltered = message::Value::Bool(true);
        spec.arguments.set("x-stream-match-unfiltered", unfiltered);
    }
    assert_eq!(offsets(&one.cursor(wanted)), vec![(0, 1), (2, 1), (3, 1)]);
}

#[test]
fn retention_deletes_old_segments_and_cursors_continue_behind_them() {
    let config = LogConfig {
        max_segment_bytes: 2_000,
        retention: Retention {
            max_bytes: None,
            max_age: Some(Duration::from_secs(60)),
        },
        ..LogConfig::default()
    };
    let mut one = Single::new(config);
    for seq in 1..=20 {
        one.request(session(1), seq, publish(&[7; 400]));
        one.work();
    }
    assert_eq!(one.replica.first_offset(), Some(0));
    let due = one.replica.wake_at().expect("retention is due");
    one.ms = due.0 / 1_000_000 + 1;
    let now = one.at();
    one.replica.tick(now, &mut one.out);
    one.work();
    let first = one.replica.first_offset().expect("open");
    assert!(first > 0, "old segments are deleted");
    assert_eq!(one.replica.wake_at(), None, "nothing is periodic");
    let events = one.cursor(attach(CursorStart::Offset(0), 100));
    assert_eq!(
        offsets(&events).first().map(|(offset, _)| *offset),
        Some(first + 1)
    );
    assert_eq!(one.fatal, Vec::<String>::new());
}

/// The reader of a cursor has a segment open that retention deletes.
#[test]
fn cursor_that_retention_overtakes_between_two_reads_continues_behind_it() {
    let config = LogConfig {
        retention: Retention {
            max_bytes: None,
            max_age: Some(Duration::from_secs(60)),
        },
        ..small_segments()
    };
    let mut one = Single::new(config);
    for seq in 1..=20 {
        // The newer half stays.
        one.ms = seq / 10 * 30_000;
        one.request(session(1), seq, publish(&[7; 400]));
        one.work();
    }
    // Chunks are on the disk only.
    one.restart(2, b"machine", config);
    let mut out = Vec::new();
    let request = attach(CursorStart::Offset(1), 1);
    one.replica.handle(session(50), request, &mut out);
    one.replica.send_batches(1 << 20, &mut out);
    let Some(StreamEffect::Job(read)) = one.replica.poll() else {
        panic!("no read");
    };
    let read = read.run(&one.disk);
    let credit = CursorRequest::Credit {
        cursor: ConsumerId(1),
        attachment: 1,
        total: 2,
        probe: false,
    };
    one.replica.handle(session(50), credit, &mut out);
    one.ms = one.replica.wake_at().expect("retention is due").0 / 1_000_000 + 1;
    let now = one.at();
    one.replica.tick(now, &mut one.out);
    one.work();
    let first = one.replica.first_offset().expect("open");
    assert!(first > 2, "retention was faster");
    one.replica.job_done(now, read, &mut one.out);
    let events = one.read(out);
    let offsets: Vec<u64> = offsets(&events).iter().map(|(offset, _)| *offset).collect();
    assert!(
        matches!(offsets[..], [1, next] if next >= first),
        "{offsets:?} {first}"
    );
}

/// A cursor must not wait for a segment that retention did not delete.
#[test]
fn missing_segment_detaches_cursors_and_is_named_as_a_fault() {
    let config = small_segments();
    let mut one = Single::new(config);
    for seq in 1..=20 {
        one.request(session(1), seq, publish(&[7; 400]));
        one.work();
    }
    // Chunks are on the disk only.
    one.restart(2, b"machine", config);
    let files = one.disk.files();
    let mut segments = files
        .iter()
        .filter(|(path, _)| path.ends_with(".segment"))
        .map(|(path, _)| path);
    let second = segments.nth(1).expect("several segments");
    one.disk.remove(second).expect("removed");

    let events = one.cursor(attach(CursorStart::Offset(0), 100));
    assert!(!batches(&events).is_empty(), "the first segment is read");
    assert!(
        matches!(events.last(), Some(CursorEvent::Detached { .. })),
        "{events:?}"
    );
    assert_eq!(
        one.out.faults,
        vec![format!(
            "{second} is damaged at byte 0: the file is missing"
        )]
    );
    assert_eq!(one.fatal, Vec::<String>::new());

    // The messages behind the missing segment can be read.
    let events = one.cursor(attach(CursorStart::Last, 100));
    assert!(!batches(&events).is_empty(), "{events:?}");
}

#[test]
fn follower_redirects_and_new_leader_calls_sessions() {
    let mut one = Single::new(LogConfig::default());
    let out = &mut one.out;
    let raft = |term, leader| RaftState {
        term,
        leader: Some(NodeId(leader)),
    };
    one.replica.set_raft(at(0), raft(2, 2), out);
    one.request(session(1), 1, publish(b"a"));
    let leader = Some(NodeId(2));
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::NotOwner { leader }]
    );
    let none = RaftState {
        term: 3,
        leader: None,
    };
    one.replica.set_raft(at(0), none, &mut one.out);
    one.request(session(1), 1, publish(b"a"));
    one.events(session(1));
    one.lead(4);
    assert_eq!(one.events(session(1)), vec![QueueEvent::Owner]);
    one.request(session(1), 1, publish(b"a"));
    one.work();
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::Applied { up_to: 1 }]
    );
    one.replica.set_raft(at(0), raft(5, 2), &mut one.out);
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::NotOwner { leader }]
    );
}

#[test]
fn refusals_name_the_stream() {
    let mut one = Single::new(LogConfig::default());
    let get = RequestBody::Get {
        consumer: ConsumerId(1),
        no_ack: false,
    };
    one.request(session(1), 1, get);
    one.request(session(1), 2, RequestBody::Purge);
    let texts: Vec<(u16, String)> = one
        .events(session(1))
        .into_iter()
        .filter_map(|event| match event {
            QueueEvent::Answer {
                answer: QueueReply::Refused { code, text },
                ..
            } => Some((code, text)),
            _ => None,
        })
        .collect();
    let expected = [
        format!("basic.get not supported by stream queues {LABEL}"),
        format!("queue.purge not supported by stream queues {LABEL}"),
    ];
    assert_eq!(texts, expected.map(|text| (540, text)).to_vec());
}

#[test]
fn deleted_stream_refuses_requests_and_ends_cursors() {
    let mut one = Single::new(LogConfig::default());
    one.cursor(attach(CursorStart::First, 1));
    let delete = RequestBody::Delete {
        if_unused: false,
        if_empty: false,
    };
    one.request(session(1), 1, delete);
    one.request(session(1), 2, publish(b"late"));
    one.work();
    assert!(one.replica.is_deleted());
    let refused = RefusedPublishes {
        from: 2,
        to: 2,
        why: RejectReason::Unavailable,
    };
    let expected = QueueEvent::AppliedExcept {
        up_to: 2,
        refused: vec![refused],
    };
    let events = one.events(session(1));
    assert_eq!(events.last(), Some(&expected), "{events:?}");
    let ended = one.read(Vec::new());
    assert!(
        matches!(ended[..], [CursorEvent::Refused { .. }]),
        "{ended:?}"
    );
}

#[test]
fn full_disk_delays_confirms_until_there_is_space() {
    let mut one = Single::new(LogConfig::default());
    one.request(session(1), 1, publish(b"a"));
    one.work();
    one.events(session(1));
    one.disk.set_capacity(Some(0));
    one.request(session(1), 2, publish(&[1; 5_000]));
    one.work();
    assert_eq!(one.events(session(1)), vec![]);
    one.disk.set_capacity(None);
    one.ms += 1_000;
    let now = one.at();
    one.replica.tick(now, &mut one.out);
    one.work();
    assert_eq!(
        one.events(session(1)),
        vec![QueueEvent::Applied { up_to: 2 }]
    );
    assert_eq!(one.fatal, Vec::<String>::new());
}

#[test]
fn leader_takes_no_more_than_its_limit_of_unwritten_bytes() {
    let mut one = Single::new(LogConfig::default());
    let body = vec![1; 4 << 20];
    for seq in 1..=8 {
        one.request(session(1), seq, publish(&body));
    }
    // The first requests filled the limit; the others are dropped and asked for again.
    assert_eq!(one.events(session(1)), vec![]);
    one.work();
    let events = one.events(session(1));
    let expected = events.iter().find_map(|event| match event {
        QueueEvent::Expecting { expected } => Some(*expected),
        _ => None,
    });
    let expected = expected.expect("asks for the dropped requests");
    assert!((3..=6).contains(&expected), "{events:?}");
    for seq in expected..=8 {
        one.request(session(1), seq, publish(&body));
        one.work();
    }
    let done = QueueEvent::Applied { up_to: 8 };
    assert_eq!(one.events(session(1)).last(), Some(&done));
}

#[test]
fn log_is_intact_only_in_the_run_of_the_machine_that_wrote_it() {
    let mut one = Single::new(LogConfig::default());
    one.request(session(1), 1, publish(b"a"));
    one.work();
    let is_intact = |one: &Single, machine: &[u8]| {
        let recorded = stream_log::read_machine(&one.disk, STREAM).expect("readable");
        recorded.as_deref() == Some(machine)
    };
    assert!(is_intact(&one, b"machine-1"));
    // The machine has restarted: the only voter has everything that there is, and leads.
    one.restart(2, b"machine-2", LogConfig::default());
    assert!(one.replica.leads());
    assert!(
        is_intact(&one, b"machine-2"),
        "the record names the new run"
    );
    // A replica that was not there when the stream was founded is not intact without a record.
    one.disk.wipe();
    let config = ReplicaConfig {
        founds: false,
        ..config(1, LogConfig::default())
    };
    one.replica = StreamReplica::new(config, one.at());
    one.work();
    assert!(!is_intact(&one, b"machine-1"));
}

/// The run of the machine is the same, so nothing explains the loss of a chunk that was finished.
#[test]
fn log_with_a_damaged_chunk_is_not_intact() {
    for is_damaged in [false, true] {
        let mut one = Single::new(LogConfig::default());
        one.request(session(1), 1, publish(b"a"));
        one.work();
        one.request(session(1), 2, publish(b"b"));
        one.work();
        let files = one.disk.files();
        let segment = files.iter().find(|(path, _)| path.ends_with(".segment"));
        let (path, len) = segment.expect("a segment");
        assert!(!is_damaged || one.disk.flip(path, len - 1, 1));
        // Without members nobody tells it that its log is the only one.
        let config = ReplicaConfig {
            founds: false,
            ..config(1, LogConfig::default())
        };
        one.replica = StreamReplica::new(config, one.at());
        one.work();
        assert_eq!(one.replica.written(), Some(if is_damaged { 1 } else { 2 }));
        assert_eq!(one.replica.is_whole(), !is_damaged);
    }
}

/// The replica again, with an object store and one small segment on the disk.
fn restart_with_store(one: &mut Single, term: u64, store: &stream_tier::MemoryStore) {
    let remote = stream_tier::Remote::new(Box::new(store.clone()), "");
    let tier = TierConfig {
        remote: std::sync::Arc::new(remote),
        local: Retention {
            max_bytes: Some(1),
            max_age: None,
        },
    };
    let config = ReplicaConfig {
        tier: Some(tier),
        ..config(1, small_segments())
    };
    one.replica = StreamReplica::new(config, one.at());
    one.out = QueueOutput::default();
    one.lead(term);
}

fn small_segments() -> LogConfig {
    LogConfig {
        max_segment_bytes: 2_000,
        ..LogConfig::default()
    }
}

/// Offsets of the messages that a cursor from the start gets.
fn all_offsets(one: &mut Single) -> Vec<u64> {
    let events = one.cursor(attach(CursorStart::First, 1_000));
    let found = offsets(&events).into_iter();
    found
        .flat_map(|(first, n)| first..first + u64::from(n))
        .collect()
}

fn local_segments(one: &Single) -> usize {
    let names = one.disk.list("streams/00000000000000ab").expect("lists");
    names
        .iter()
        .filter(|name| name.ends_with(".segment"))
        .count()
}

#[test]
fn stream_is_read_from_the_object_store_also_after_a_restart() {
    let store = stream_tier::MemoryStore::new(1);
    let mut one = Single::new(small_segments());
    restart_with_store(&mut one, 2, &store);
    for seq in 1..=24 {
        one.request(session(1), seq, publish(&[seq as u8; 400]));
        one.work();
    }
    let first = one.replica.first_offset();
    assert_eq!(local_segments(&one), 1, "the others are in the store only");
    let before = all_offsets(&mut one);
    assert_eq!(before.len(), 24);
    assert_eq!(first, Some(0), "the stream begins in the store");
    restart_with_store(&mut one, 3, &store);
    assert_eq!(all_offsets(&mut one), before);
    // Every message is newer, so the first one is found, which is in the store.
    let start = CursorStart::Timestamp(WallTime(0));
    assert_eq!(offsets(&one.cursor(attach(start, 1)))[0].0, before[0]);
}

#[test]
fn lag_and_first_offset_include_the_object_store() {
    let store = stream_tier::MemoryStore::new(1);
    let mut one = Single::new(small_segments());
    restart_with_store(&mut one, 2, &store);
    for seq in 1..=24 {
        one.request(session(1), seq, publish(&[seq as u8; 400]));
        one.work();
    }
    let events = one.cursor(attach(CursorStart::First, 1));
    let (first, count) = offsets(&events)[0];
    let status = one.replica.status().expect("open");
    assert_eq!((status.first_offset, status.segments), (0, 1));
    let rest = status.committed_offset - first - u64::from(count);
    let lags: Vec<u64> = one.replica.lags().map(|(_, _, lag)| lag).collect();
    assert_eq!((lags, status.max_lag), (vec![rest], rest));
    assert!(rest > status.chunks, "most messages are in the store only");
}

#[test]
fn oldest_message_is_known_in_the_log_and_in_the_object_store() {
    let store = stream_tier::MemoryStore::new(1);
    let mut one = Single::new(small_segments());
    assert_eq!(one.replica.oldest_message(), None);
    restart_with_store(&mut one, 2, &store);
    assert_eq!(one.replica.oldest_message(), None, "there is only a marker");
    one.ms = 5_000;
    let first = i64::try_from(one.at().wall.0).expect("a time");
    one.request(session(1), 1, publish(&[0; 400]));
    one.work();
    assert_eq!(one.replica.oldest_message(), Some(first));
    for seq in 2..=24 {
        one.ms += 1_000;
        one.request(session(1), seq, publish(&[seq as u8; 400]));
        one.work();
    }
    assert_eq!(local_segments(&one), 1, "the others are in the store only");
    let oldest = one.replica.oldest_message().expect("a time");
    assert!(oldest <= first, "the segment was begun before: {oldest}");
    restart_with_store(&mut one, 3, &store);
    assert_eq!(one.replica.oldest_message(), Some(oldest));
}

#[test]
fn publishing_goes_on_without_the_store_and_a_consumer_waits_for_it() {
    let store = stream_tier::MemoryStore::new(1);
    let mut one = Single::new(small_segments());
    restart_with_store(&mut one, 2, &store);
    for seq in 1..=10 {
        one.request(session(1), seq, publish(&[1; 400]));
        one.work();
    }
    store.set_faults(stream_tier::MemoryFaults {
        is_gone: true,
        ..Default::default()
    });
    restart_with_store(&mut one, 3, &store);
    let _ = one.events(session(2));
    for seq in 1..=16 {
        one.request(session(2), seq, publish(&[2; 400]));
        one.work();
    }
    let confirmed = one
        .events(session(2))
        .into_iter()
        .any(|event| matches!(event, QueueEvent::Applied { up_to: 16 }));
    assert!(confirmed && one.fatal.is_empty(), "{:?}", one.fatal);
    assert!(
        local_segments(&one) > 3,
        "nothing is deleted that the store lacks"
    );
    assert_eq!(
        all_offsets(&mut one),
        [],
        "the start of the stream is not known"
    );
    let reported = one.out.faults.iter().any(|f| f.contains("does not answer"));
    assert!(reported, "{:?}", one.out.faults);
    store.set_faults(stream_tier::MemoryFaults::default());
    one.ms += 120_000;
    let now = one.at();
    one.replica.tick(now, &mut one.out);
    one.work();
    assert_eq!(all_offsets(&mut one).len(), 26);
    assert_eq!(local_segments(&one), 1);
}

#[test]
fn deleted_stream_leaves_nothing_in_the_object_store() {
    let store = stream_tier::MemoryStore::new(1);
    let mut one = Single::new(small_segments());
    restart_with_store(&mut one, 2, &store);
    for seq in 1..=20 {
        one.request(session(1), seq, publish(&[1; 400]));
        one.work();
    }
    assert!(!store.objects().is_empty());
    let delete = RequestBody::Delete {
        if_unused: false,
        if_empty: false,
    };
    one.request(session(1), 21, delete);
    one.work();
    assert!(store.objects().is_empty(), "{:?}", store.objects().keys());
}
