//! Files of classic queues as version 0.2 wrote them.

use super::inventory::Inventory;
use super::location::SegmentId;
use super::record::{self, RecordFooter, RecordHeader, parse_footer, put_footer};
use super::*;
use crate::codec::format_tests::{CRATE, message, session, spec};
use crate::{ConsumerId, FlowMode, QueueEvent, Request, SettlementOutcome};
use bytes::{Bytes, BytesMut};
use env::sim::SimDisk;
use env::{NodeId, Time, WallTime};

const QUEUE: QueueId = QueueId(5);
const CONSUMER: ConsumerId = ConsumerId(1);
const SEGMENT: &str = "classic/0000000000000005/00000001.seg";
const ACKS: &str = "classic/0000000000000005/00000001.ack";
const CLEAN_STOP: &str = "classic/0000000000000005/stopped";
const INVENTORY: &str = "classic-inventory/0000000000000005";
/// Names of the golden files.
const FILES: [(&str, &str); 4] = [
    ("segment", SEGMENT),
    ("acks", ACKS),
    ("clean-stop", CLEAN_STOP),
    ("inventory", INVENTORY),
];

const NOW: Timestamps = Timestamps {
    now: Time(1),
    wall: WallTime(1_790_000_000_000),
};

fn open(disk: &SimDisk, incarnation: u64) -> ClassicQueue {
    let settings = QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: crate::Overflow::DropHead,
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter: crate::DeadLettering::Off,
        quorum: Default::default(),
    };
    let label = "queue 'q' in vhost '/'".into();
    let disk = Arc::new(disk.clone());
    ClassicQueue::open(disk, QUEUE, label, settings, Incarnation(incarnation)).expect("open")
}

fn request(
    queue: &mut ClassicQueue,
    session: SessionId,
    seq: u64,
    body: RequestBody,
) -> QueueOutput {
    let mut out = QueueOutput::default();
    let request = Request { session, seq, body };
    queue.step(NOW, QueueMessage::Request(request), &mut out);
    queue.flush(NOW, &mut out);
    out
}

/// A queue whose node stopped cleanly: four messages, of which one expires. The first two were delivered, and the first is
/// settled.
fn stopped_queue() -> SimDisk {
    let disk = SimDisk::new();
    let mut queue = open(&disk, 1);
    let ttls = [None, None, Some(600_000), None];
    for (seq, ttl_ms) in (1..).zip(ttls) {
        let publish = RequestBody::Publish(message(None, ttl_ms));
        request(&mut queue, session(), seq, publish);
    }
    // Files are written before the first delivery, so that the settlement is in the ack file.
    queue.write_all(&mut QueueOutput::default()).expect("write");
    let spec = crate::ConsumerSpec {
        prefetch: 2,
        ..spec(FlowMode::Prefetch)
    };
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec,
    };
    request(&mut queue, session(), 5, consume);
    let settle = RequestBody::Settle {
        consumer: CONSUMER,
        outcome: SettlementOutcome::Accepted,
        ids: vec![(1, 1)],
    };
    request(&mut queue, session(), 6, settle);
    queue.write_all(&mut QueueOutput::default()).expect("write");
    disk
}

/// The queue as the next incarnation of the node reads it.
#[derive(Debug)]
struct ReadQueue {
    /// Messages in order: priority, time to live, redelivered.
    #[allow(dead_code, reason = "read by Debug")]
    messages: Vec<(Option<u8>, Option<u64>, bool)>,
    #[allow(dead_code, reason = "read by Debug")]
    faults: Vec<String>,
}

fn read_queue(disk: &SimDisk) -> ReadQueue {
    let mut queue = open(disk, 2);
    let spec = crate::ConsumerSpec {
        prefetch: 10,
        ..spec(FlowMode::Prefetch)
    };
    let consumer = SessionId {
        node: NodeId(1),
        ..session()
    };
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec,
    };
    let out = request(&mut queue, consumer, 1, consume);
    let deliveries = out
        .events
        .iter()
        .filter_map(|addressed| match &addressed.event {
            QueueEvent::Deliver { deliveries, .. } => Some(deliveries),
            _ => None,
        });
    let messages = deliveries.flatten();
    let messages = messages.map(|d| (d.message.priority(), d.message.ttl_ms(), d.redelivered));
    ReadQueue {
        messages: messages.collect(),
        faults: out.faults,
    }
}

#[test]
fn classic_queue_of_version_0_2_is_read() {
    golden::verify(CRATE, "0.2/classic-queue", |files| {
        let written = stopped_queue();
        let stored = SimDisk::new();
        for (name, path) in FILES {
            let content = golden::read_file(&written, path);
            if let Some(content) = files.check_bytes(name, &content) {
                golden::write_file(&stored, path, &content);
            }
        }
        files.check_text("queue", &format!("{:#?}\n", read_queue(&stored)));
    });
}

#[test]
fn segment_footer_of_version_0_2_is_decoded() {
    let footer = RecordFooter {
        messages: 300,
        bytes: 1 << 40,
        last_seq: 70_000,
    };
    golden::verify(CRATE, "0.2/classic-footer", |files| {
        let encode = |footer: &RecordFooter| {
            let mut out = BytesMut::new();
            put_footer(&mut out, footer);
            out.to_vec()
        };
        let decode = |raw: &[u8]| parse_footer(raw).ok_or("damaged");
        files.check("footer", &footer, encode, decode);
    });
}

/// Transient messages are written when the queue needs their memory.
#[test]
fn transient_record_of_version_0_2_is_decoded() {
    let message = message(None, None);
    let expires = 1_790_000_000_123;
    let mut raw = BytesMut::new();
    record::put_message(&mut raw, 300, false, expires, 4, message.as_bytes());
    golden::verify(CRATE, "0.2/classic-record", |files| {
        let stored = files.check_bytes("transient-expiring", &raw);
        let stored = Bytes::from(stored.unwrap_or_default());
        let header = RecordHeader::parse(&stored).expect("a header");
        files.check_text("transient-expiring", &format!("{header:#?}\n"));
        let payload = stored.slice(record::HEADER..);
        assert_eq!(header.message(&payload), Some((message, expires)));
    });
}

#[test]
fn inventory_of_version_0_2_is_decoded() {
    golden::verify(CRATE, "0.2/classic-inventory", |files| {
        let disk = SimDisk::new();
        let mut inventory = Inventory::new(QUEUE);
        for (lane, count) in [(0, 1), (0, 2), (9, 1)] {
            inventory.add(&disk, SegmentId::new(lane, count));
        }
        inventory.count(&disk, SegmentId::new(0, 2), 300);
        inventory.remove(&disk, SegmentId::new(0, 1));
        let written = golden::read_file(&disk, INVENTORY);
        if let Some(content) = files.check_bytes("inventory", &written) {
            let disk = SimDisk::new();
            golden::write_file(&disk, INVENTORY, &content);
            let listed = Inventory::new(QUEUE).read(&disk).expect("read the file");
            files.check_text("inventory", &format!("{listed:#?}\n"));
        }
    });
}
