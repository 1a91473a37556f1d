//! Messages to queues, queue events and message annotations as version 0.2 wrote them.

use super::{decode_list, encode_list};
use crate::cursor::{
    CursorEvent, CursorRequest, CursorSpec, CursorStart, MessageBatch, StreamBatch, StreamChunks,
    StreamReply, StreamRequest, StreamStats,
};
use crate::{
    Annotations, BrowsePosition, ConsumerFilter, ConsumerId, ConsumerSpec, Delivery,
    DeliveryProgress, EpochConsumer, FlowMode, Modification, PositionedGet, QueueEvent,
    QueueMessage, QueueReply, RefusedPublishes, RejectReason, Request, RequestBody, ResumeConsumer,
    SessionEpoch, SessionId, Settlement, SettlementOutcome,
};
use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
use message::{Message, MessageBuilder, Protocol, Table, Value};
use std::sync::Arc;

pub(crate) const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn message_name(QueueMessage) {
        QueueMessage::Request(Request { body: RequestBody::Publish(_), .. }) => "publish",
        QueueMessage::Request(Request { body: RequestBody::Consume { .. }, .. }) => "consume",
        QueueMessage::Request(Request { body: RequestBody::TakeOver(_), .. }) => "succeed",
        QueueMessage::Request(Request { body: RequestBody::Cancel { .. }, .. }) => "cancel",
        QueueMessage::Request(Request { body: RequestBody::Credit { .. }, .. }) => "credit",
        QueueMessage::Request(Request { body: RequestBody::CreditOneWay { .. }, .. }) => "credit-one-way",
        QueueMessage::Request(Request { body: RequestBody::CancelAndRequeue { .. }, .. }) => "leave",
        QueueMessage::Request(Request { body: RequestBody::Settle { .. }, .. }) => "settle",
        QueueMessage::Request(Request { body: RequestBody::Modify { .. }, .. }) => "modify",
        QueueMessage::Request(Request { body: RequestBody::Get { .. }, .. }) => "get",
        QueueMessage::Request(Request { body: RequestBody::GetAt(_), .. }) => "get-at",
        QueueMessage::Request(Request { body: RequestBody::Recover { .. }, .. }) => "recover",
        QueueMessage::Request(Request { body: RequestBody::PublishBatch(_), .. }) => "publish-batch",
        QueueMessage::Request(Request { body: RequestBody::Stream(_), .. }) => "stream",
        QueueMessage::Request(Request { body: RequestBody::Purge, .. }) => "purge",
        QueueMessage::Request(Request { body: RequestBody::Stat, .. }) => "stat",
        QueueMessage::Request(Request { body: RequestBody::Delete { .. }, .. }) => "delete",
        QueueMessage::Request(Request { body: RequestBody::Close, .. }) => "close",
        QueueMessage::Resume(_) => "resume",
        QueueMessage::Received(_) => "received",
    }
    fn flow_mode_name(FlowMode) {
        FlowMode::Prefetch => "prefetch",
        FlowMode::Credit => "credit",
    }
    fn epoch_name(SessionEpoch) {
        SessionEpoch::New => "new",
        SessionEpoch::Of(_) => "of",
    }
    fn outcome_name(SettlementOutcome) {
        SettlementOutcome::Accepted => "accepted",
        SettlementOutcome::Requeue => "requeue",
        SettlementOutcome::Rejected => "rejected",
        SettlementOutcome::Released => "released",
        SettlementOutcome::Unseen => "unseen",
    }
    fn event_name(QueueEvent) {
        QueueEvent::Applied { .. } => "applied",
        QueueEvent::AppliedExcept { .. } => "applied-except",
        QueueEvent::Answer { answer: QueueReply::Consuming, .. } => "answer-consuming",
        QueueEvent::Answer { answer: QueueReply::EpochContinues, .. } => "answer-goes-on",
        QueueEvent::Answer { answer: QueueReply::Empty, .. } => "answer-empty",
        QueueEvent::Answer { answer: QueueReply::Count { .. }, .. } => "answer-count",
        QueueEvent::Answer { answer: QueueReply::Credited { .. }, .. } => "answer-credited",
        QueueEvent::Answer { answer: QueueReply::NotTaken(_), .. } => "answer-not-taken",
        QueueEvent::Answer { answer: QueueReply::Refused { .. }, .. } => "answer-refused",
        QueueEvent::Answer { answer: QueueReply::Stream(_), .. } => "answer-stream",
        QueueEvent::Deliver { .. } => "deliver",
        QueueEvent::Cancelled { .. } => "cancelled",
        QueueEvent::Resumed { .. } => "resumed",
        QueueEvent::NotOwner { .. } => "not-owner",
        QueueEvent::Owner => "owner",
        QueueEvent::Expecting { .. } => "expecting",
        QueueEvent::Activity { .. } => "activity",
        QueueEvent::TimedOut { .. } => "timed-out",
    }
    fn reject_name(RejectReason) {
        RejectReason::MaxLength => "max-length",
        RejectReason::Unavailable => "unavailable",
    }
    fn stream_request_name(StreamRequest) {
        StreamRequest::StoreOffset { .. } => "store-offset",
        StreamRequest::QueryOffset { .. } => "query-offset",
        StreamRequest::QueryPublisher { .. } => "query-publisher",
        StreamRequest::ResolveOffset { .. } => "resolve-offset",
        StreamRequest::Stats => "stats",
        StreamRequest::ReadChunks { .. } => "read-chunks",
        StreamRequest::AppendChunks { .. } => "append-chunks",
    }
    fn stream_reply_name(StreamReply) {
        StreamReply::Offset(_) => "offset",
        StreamReply::PublishingId(_) => "publishing-id",
        StreamReply::Stats(_) => "stats",
        StreamReply::Chunks(_) => "chunks",
    }
    fn start_name(CursorStart) {
        CursorStart::First => "first",
        CursorStart::Last => "last",
        CursorStart::Next => "next",
        CursorStart::Offset(_) => "offset",
        CursorStart::Timestamp(_) => "timestamp",
    }
    fn cursor_request_name(CursorRequest) {
        CursorRequest::Attach { .. } => "attach",
        CursorRequest::Credit { .. } => "credit",
        CursorRequest::Detach { .. } => "detach",
    }
    fn cursor_event_name(CursorEvent) {
        CursorEvent::Attached { .. } => "attached",
        CursorEvent::Batch { .. } => "batch",
        CursorEvent::Detached { .. } => "detached",
        CursorEvent::Refused { .. } => "refused",
    }
}

const CONSUMER: ConsumerId = ConsumerId(300);

pub(crate) fn session() -> SessionId {
    SessionId {
        node: NodeId(u64::MAX),
        incarnation: Incarnation(2),
        number: 70_000,
    }
}

/// As decoded, so that its Debug text does not depend on the way it was built.
pub(crate) fn message(priority: Option<u8>, ttl_ms: Option<u64>) -> Message {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority,
        ttl_ms,
        received: WallTime(1_790_000_000_123),
        exchange: "amq.topic",
        routing_keys: &["a.b"],
        properties: b"properties",
    };
    let built = builder.build(4, [&b"body"[..]]).expect("a message");
    Message::decode(built.to_bytes()).expect("a container")
}

pub(crate) fn annotations() -> Annotations {
    let table = Table(vec![
        ("x-opt-a é".into(), Value::I64(-1)),
        ("x-opt-b".into(), Value::from("text")),
    ]);
    Annotations::new(table).expect("small annotations")
}

pub(crate) fn spec(flow_mode: FlowMode) -> ConsumerSpec {
    ConsumerSpec {
        tag: "tag é".into(),
        channel: 2,
        flow_mode,
        prefetch: 1000,
        no_ack: false,
        exclusive: true,
        priority: -3,
        arguments: Table(vec![("x-stream-offset".into(), Value::from("first"))]),
        filter: None,
    }
}

fn request_bodies() -> Vec<RequestBody> {
    let epochs = [SessionEpoch::New, SessionEpoch::Of(session())];
    golden::assert_covers(&epochs, epoch_name);
    let settlements = [
        None,
        Some(Settlement {
            session: session(),
            consumer: CONSUMER,
            ids: vec![(1, 1), (3, 500)],
        }),
    ];
    let successors = epochs.into_iter().zip(settlements);
    let succeed = successors.map(|(epoch, settled)| {
        RequestBody::TakeOver(Box::new(EpochConsumer {
            consumer: CONSUMER,
            spec: spec(FlowMode::Prefetch),
            settled,
            epoch,
            at: 9,
        }))
    });
    let outcomes = [
        SettlementOutcome::Accepted,
        SettlementOutcome::Requeue,
        SettlementOutcome::Rejected,
        SettlementOutcome::Released,
        SettlementOutcome::Unseen,
    ];
    golden::assert_covers(&outcomes, outcome_name);
    let settle = outcomes.into_iter().map(|outcome| RequestBody::Settle {
        consumer: CONSUMER,
        outcome,
        ids: vec![(1, u64::MAX)],
    });
    let flow_modes = [FlowMode::Prefetch, FlowMode::Credit];
    golden::assert_covers(&flow_modes, flow_mode_name);
    let consume = flow_modes
        .into_iter()
        .map(|flow_mode| RequestBody::Consume {
            consumer: CONSUMER,
            spec: spec(flow_mode),
        });
    let filtered = RequestBody::Consume {
        consumer: CONSUMER,
        spec: ConsumerSpec {
            filter: ConsumerFilter::new(b"filter"),
            ..spec(FlowMode::Credit)
        },
    };
    let modification = Modification {
        delivery_failed: true,
        undeliverable_here: false,
        annotations: annotations(),
    };
    let others = [
        RequestBody::Publish(message(None, None)),
        RequestBody::Cancel { consumer: CONSUMER },
        RequestBody::Credit {
            consumer: CONSUMER,
            up_to: 1000,
            drain: true,
        },
        RequestBody::CreditOneWay {
            consumer: CONSUMER,
            up_to: 1000,
        },
        RequestBody::CancelAndRequeue { consumer: CONSUMER },
        RequestBody::Modify {
            consumer: CONSUMER,
            ids: vec![(2, 4)],
            modification: Box::new(modification),
        },
        RequestBody::Get {
            consumer: CONSUMER,
            no_ack: true,
        },
        RequestBody::GetAt(Box::new(PositionedGet {
            consumer: CONSUMER,
            no_ack: true,
            at: BrowsePosition {
                level: 4,
                number: 1 << 40,
                segment: 1 << 32 | 7,
                offset: 300,
            },
        })),
        RequestBody::Recover { consumer: CONSUMER },
        RequestBody::Purge,
        RequestBody::Stat,
        RequestBody::Delete {
            if_unused: true,
            if_empty: false,
        },
        RequestBody::Close,
    ];
    others
        .into_iter()
        .chain(stream_requests())
        .chain(consume)
        .chain([filtered])
        .chain(succeed)
        .chain(settle)
        .collect()
}

fn starts() -> [CursorStart; 5] {
    let starts = [
        CursorStart::First,
        CursorStart::Last,
        CursorStart::Next,
        CursorStart::Offset(70_000),
        CursorStart::Timestamp(WallTime(1_790_000_000_123)),
    ];
    golden::assert_covers(&starts, start_name);
    starts
}

fn stream_requests() -> Vec<RequestBody> {
    let name = || "reader é".into();
    let mut requests = vec![
        StreamRequest::StoreOffset {
            name: name(),
            offset: 70_000,
        },
        StreamRequest::QueryOffset { name: name() },
        StreamRequest::QueryPublisher { name: name() },
        StreamRequest::Stats,
    ];
    let resolve = |start| StreamRequest::ResolveOffset { start };
    requests.extend(starts().map(resolve));
    requests.push(StreamRequest::ReadChunks {
        from: 300,
        end: 70_000,
    });
    requests.push(StreamRequest::AppendChunks {
        at: 300,
        chunks: vec![Bytes::from_static(b"chunk"), Bytes::from_static(b"other")],
    });
    golden::assert_covers(&requests, stream_request_name);
    let batches = [None, Some("producer é".into())].map(|producer| StreamBatch {
        producer,
        version: 2,
        count: 300,
        entries: Bytes::from_static(b"entries"),
    });
    let requests = requests.into_iter().map(RequestBody::Stream);
    let batches = batches.into_iter().map(RequestBody::PublishBatch);
    batches.chain(requests).collect()
}

fn stream_replies() -> Vec<StreamReply> {
    let stats = StreamStats {
        first_offset: Some(1),
        last_chunk: Some(70_000),
        committed: None,
    };
    let replies = vec![
        StreamReply::Offset(None),
        StreamReply::Offset(Some(70_000)),
        StreamReply::PublishingId(Some(u64::MAX)),
        StreamReply::Stats(stats),
        StreamReply::Chunks(StreamChunks {
            next: 300,
            chunks: vec![Bytes::from_static(b"chunk"), Bytes::from_static(b"other")],
        }),
    ];
    golden::assert_covers(&replies, stream_reply_name);
    replies
}

/// The only item of a frame.
fn decode_one<T: wire::Wire>(raw: &[u8]) -> Result<T, Option<wire::DecodeError>> {
    let mut items = decode_list(&Bytes::copy_from_slice(raw)).map_err(Some)?;
    items.pop().filter(|_| items.is_empty()).ok_or(None)
}

#[test]
fn messages_to_queues_of_version_0_2_are_decoded() {
    let requests = request_bodies().into_iter().map(|body| {
        QueueMessage::Request(Request {
            session: session(),
            seq: 1_000_000,
            body,
        })
    });
    let mut all: Vec<QueueMessage> = requests.collect();
    all.push(QueueMessage::Resume(ResumeConsumer {
        session: session(),
        consumer: CONSUMER,
        next: 7,
    }));
    all.push(QueueMessage::Received(DeliveryProgress {
        session: session(),
        consumer: CONSUMER,
        up_to: 8,
    }));
    golden::verify(CRATE, "0.2/queue-message", |files| {
        let encode = |message: &QueueMessage| encode_list(std::slice::from_ref(message)).to_vec();
        files.check_enum(&all, message_name, encode, decode_one);
    });
}

#[test]
fn queue_events_of_version_0_2_are_decoded() {
    let reasons = [RejectReason::MaxLength, RejectReason::Unavailable];
    golden::assert_covers(&reasons, reject_name);
    let refused = reasons.into_iter().map(|why| RefusedPublishes {
        from: 299,
        to: 300,
        why,
    });
    let delivery = Delivery {
        id: 300,
        redelivered: true,
        attempts: Some(2),
        acquired: 0,
        left: 1 << 40,
        message: message(None, None),
        annotations: Some(Arc::new(annotations())),
    };
    let plain = Delivery {
        redelivered: false,
        attempts: None,
        left: 0,
        annotations: None,
        ..delivery.clone()
    };
    let replies = [
        QueueReply::Consuming,
        QueueReply::EpochContinues,
        QueueReply::Empty,
        QueueReply::Count {
            messages: 1000,
            consumers: 3,
        },
        QueueReply::Credited {
            last: 5,
            available: 300,
            drained: true,
        },
        QueueReply::NotTaken(RejectReason::MaxLength),
        QueueReply::Refused {
            code: 406,
            text: "PRECONDITION_FAILED é".into(),
        },
    ];
    let answers = replies
        .into_iter()
        .chain(stream_replies().into_iter().map(QueueReply::Stream))
        .map(|answer| QueueEvent::Answer { seq: 300, answer });
    let mut all: Vec<QueueEvent> = answers.collect();
    all.extend([
        QueueEvent::Applied { up_to: 300 },
        QueueEvent::AppliedExcept {
            up_to: 300,
            refused: refused.collect(),
        },
        QueueEvent::Deliver {
            consumer: CONSUMER,
            deliveries: vec![delivery.clone(), plain],
        },
        QueueEvent::Deliver {
            consumer: CONSUMER,
            deliveries: vec![Delivery {
                acquired: 300,
                ..delivery
            }],
        },
        QueueEvent::Cancelled { consumer: CONSUMER },
        QueueEvent::Resumed {
            consumer: CONSUMER,
            next: 8,
        },
        QueueEvent::NotOwner { leader: None },
        QueueEvent::NotOwner {
            leader: Some(NodeId(9)),
        },
        QueueEvent::Owner,
        QueueEvent::Expecting { expected: 300 },
        QueueEvent::Activity {
            consumer: CONSUMER,
            is_active: true,
        },
        QueueEvent::TimedOut {
            consumer: CONSUMER,
            up_to: 300,
        },
    ]);
    golden::verify(CRATE, "0.2/queue-event", |files| {
        let encode = |event: &QueueEvent| encode_list(std::slice::from_ref(event)).to_vec();
        files.check_enum(&all, event_name, encode, decode_one);
    });
}

#[test]
fn message_annotations_of_version_0_2_are_decoded() {
    golden::verify(CRATE, "0.2/annotations", |files| {
        let encode = |own: &Annotations| crate::annotations::encode(own).to_vec();
        files.check(
            "annotations",
            &annotations(),
            encode,
            crate::annotations::decode,
        );
    });
}

fn decode_whole<T: wire::Wire>(raw: &[u8]) -> wire::Decoded<T> {
    wire::decode("cursor", &Bytes::copy_from_slice(raw))
}

#[test]
fn requests_and_events_of_cursors_are_decoded() {
    let cursor = CONSUMER;
    let attachment = 300;
    let attach = starts().map(|start| CursorRequest::Attach {
        cursor,
        attachment,
        spec: CursorSpec {
            tag: "tag é".into(),
            channel: 300,
            start,
            arguments: Table(vec![("x-stream-filter".into(), Value::from("a"))]),
        },
        total: 10,
    });
    let mut requests: Vec<CursorRequest> = attach.into_iter().collect();
    requests.push(CursorRequest::Credit {
        cursor,
        attachment,
        total: 1_000,
        probe: true,
    });
    requests.push(CursorRequest::Detach { cursor });
    golden::verify(CRATE, "0.2/cursor-request", |files| {
        let encode = |request: &CursorRequest| wire::encode(request).to_vec();
        files.check_enum(&requests, cursor_request_name, encode, decode_whole);
    });
    let batch = MessageBatch {
        from: 60_000,
        first: 70_000,
        count: 300,
        received: WallTime(1_790_000_000_123),
        bytes: Bytes::from_static(b"chunk"),
    };
    let events = [
        CursorEvent::Attached {
            cursor,
            attachment,
            next: 70_000,
        },
        CursorEvent::Batch {
            cursor,
            attachment,
            batch,
        },
        CursorEvent::Detached { cursor, attachment },
        CursorEvent::Refused {
            cursor,
            attachment,
            text: "no queue é".into(),
        },
    ];
    golden::verify(CRATE, "0.2/cursor-event", |files| {
        let encode = |event: &CursorEvent| wire::encode(event).to_vec();
        files.check_enum(&events, cursor_event_name, encode, decode_whole);
    });
}
