use super::*;
use crate::{
    Annotations, BrowsePosition, ConsumerFilter, ConsumerId, ConsumerSpec, DeadLettering, Delivery,
    DeliveryProgress, EpochConsumer, FlowMode, Modification, Overflow, PositionedGet, QueueEvent,
    QueueMessage, QueueReply, QueueSettings, RefusedPublishes, RejectReason, Request, RequestBody,
    ResumeConsumer, SessionEpoch, SessionId, Settlement, SettlementOutcome,
};
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId, WallTime};
use message::{Message, MessageBuilder, Protocol, Table, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

fn message() -> impl Strategy<Value = Message> {
    (
        any::<bool>(),
        any::<Option<u8>>(),
        "[a-z]{0,9}",
        any::<Vec<u8>>(),
    )
        .prop_map(|(durable, priority, key, body)| {
            MessageBuilder {
                protocol: Protocol::Amqp091,
                durable,
                priority,
                ttl_ms: None,
                received: WallTime(7),
                exchange: "x",
                routing_keys: &[&key],
                properties: &[1, 2],
            }
            .build(body.len(), [&body[..]])
            .unwrap()
        })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Void),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        (-1e9f32..1e9).prop_map(Value::F32),
        (-1e9f64..1e9).prop_map(Value::F64),
        any::<(u8, u32)>().prop_map(|(scale, value)| Value::Decimal { scale, value }),
        any::<Vec<u8>>().prop_map(|v| Value::String(Bytes::from(v))),
        any::<Vec<u8>>().prop_map(|v| Value::Binary(Bytes::from(v))),
        any::<u64>().prop_map(Value::Timestamp),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::Array),
            vec(("[a-zä]{0,5}", inner), 0..4).prop_map(|v| Value::Table(table(v))),
        ]
    })
}

fn table(items: Vec<(String, Value)>) -> Table {
    Table(items.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn tables() -> impl Strategy<Value = Table> {
    vec(("[a-z-]{0,8}", value()), 0..4).prop_map(table)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<(u64, u64, u64)>().prop_map(|(node, incarnation, number)| SessionId {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        number,
    })
}

fn consumer() -> impl Strategy<Value = ConsumerId> {
    any::<u32>().prop_map(ConsumerId)
}

fn spec() -> impl Strategy<Value = ConsumerSpec> {
    let numbers = any::<(u16, u32, bool, bool, i32, bool)>();
    let filters = prop::option::of(vec(any::<u8>(), 0..9));
    let parts = ("[a-z]{0,9}", numbers, tables(), filters);
    parts.prop_map(|(tag, n, arguments, filter)| ConsumerSpec {
        tag: tag.into(),
        channel: n.0,
        flow_mode: match n.5 {
            true => FlowMode::Credit,
            false => FlowMode::Prefetch,
        },
        prefetch: n.1,
        no_ack: n.2,
        exclusive: n.3,
        priority: n.4,
        arguments,
        filter: filter
            .filter(|_| n.5)
            .and_then(|filter| ConsumerFilter::new(&filter)),
    })
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let range = any::<(u64, u64)>().prop_map(|(a, b)| (a.min(b), a.max(b)));
    vec(range, 0..5)
}

fn epoch_consumer() -> impl Strategy<Value = EpochConsumer> {
    let settled =
        (session(), consumer(), ranges()).prop_map(|(session, consumer, ids)| Settlement {
            session,
            consumer,
            ids,
        });
    let settled = proptest::option::of(settled);
    let epoch = prop_oneof![
        any::<u64>().prop_map(|at| (SessionEpoch::New, at)),
        (session(), any::<u64>()).prop_map(|(first, at)| (SessionEpoch::Of(first), at))
    ];
    let parts = (consumer(), spec(), settled, epoch);
    parts.prop_map(|(consumer, spec, settled, (epoch, at))| EpochConsumer {
        consumer,
        spec,
        settled,
        epoch,
        at,
    })
}

fn annotations() -> impl Strategy<Value = Annotations> {
    tables().prop_map(|table| Annotations::new(table).unwrap_or_default())
}

fn modification() -> impl Strategy<Value = Modification> {
    let flags = any::<(bool, bool)>();
    (flags, annotations()).prop_map(|(flags, annotations)| Modification {
        delivery_failed: flags.0,
        undeliverable_here: flags.1,
        annotations,
    })
}

fn body() -> impl Strategy<Value = RequestBody> {
    let outcome = prop_oneof![
        Just(SettlementOutcome::Accepted),
        Just(SettlementOutcome::Requeue),
        Just(SettlementOutcome::Rejected),
        Just(SettlementOutcome::Released),
        Just(SettlementOutcome::Unseen)
    ];
    prop_oneof![
        message().prop_map(RequestBody::Publish),
        (consumer(), spec()).prop_map(|(consumer, spec)| RequestBody::Consume { consumer, spec }),
        epoch_consumer().prop_map(|it| RequestBody::TakeOver(Box::new(it))),
        consumer().prop_map(|consumer| RequestBody::Cancel { consumer }),
        consumer().prop_map(|consumer| RequestBody::CancelAndRequeue { consumer }),
        (consumer(), any::<u64>(), any::<bool>()).prop_map(|(consumer, up_to, drain)| {
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            }
        }),
        (consumer(), any::<u64>())
            .prop_map(|(consumer, up_to)| RequestBody::CreditOneWay { consumer, up_to }),
        (consumer(), ranges(), modification()).prop_map(|(consumer, ids, modification)| {
            RequestBody::Modify {
                consumer,
                ids,
                modification: Box::new(modification),
            }
        }),
        (consumer(), outcome, ranges()).prop_map(|(consumer, outcome, ids)| RequestBody::Settle {
            consumer,
            outcome,
            ids
        }),
        (consumer(), any::<bool>())
            .prop_map(|(consumer, no_ack)| RequestBody::Get { consumer, no_ack }),
        (consumer(), any::<bool>(), any::<(u8, u64, u64, u64)>()).prop_map(
            |(consumer, no_ack, (level, number, segment, offset))| {
                let at = BrowsePosition {
                    level,
                    number,
                    segment,
                    offset,
                };
                RequestBody::GetAt(Box::new(PositionedGet {
                    consumer,
                    no_ack,
                    at,
                }))
            }
        ),
        consumer().prop_map(|consumer| RequestBody::Recover { consumer }),
        Just(RequestBody::Purge),
        Just(RequestBody::Stat),
        any::<(bool, bool)>().prop_map(|(if_unused, if_empty)| RequestBody::Delete {
            if_unused,
            if_empty
        }),
        Just(RequestBody::Close),
    ]
}

fn item() -> impl Strategy<Value = QueueMessage> {
    prop_oneof![
        (session(), any::<u64>(), body())
            .prop_map(|(session, seq, body)| QueueMessage::Request(Request { session, seq, body })),
        (session(), consumer(), any::<u64>()).prop_map(|(session, consumer, next)| {
            QueueMessage::Resume(ResumeConsumer {
                session,
                consumer,
                next,
            })
        }),
        (session(), consumer(), any::<u64>()).prop_map(|(session, consumer, up_to)| {
            QueueMessage::Received(DeliveryProgress {
                session,
                consumer,
                up_to,
            })
        }),
    ]
}

fn reject() -> impl Strategy<Value = RejectReason> {
    prop_oneof![
        Just(RejectReason::MaxLength),
        Just(RejectReason::Unavailable)
    ]
}

fn event() -> impl Strategy<Value = QueueEvent> {
    let answer = prop_oneof![
        Just(QueueReply::Consuming),
        Just(QueueReply::EpochContinues),
        Just(QueueReply::Empty),
        any::<(u64, u32)>().prop_map(|(messages, consumers)| QueueReply::Count {
            messages,
            consumers
        }),
        any::<(u64, u64, bool)>().prop_map(|(last, available, drained)| QueueReply::Credited {
            last,
            available,
            drained,
        }),
        reject().prop_map(QueueReply::NotTaken),
        (any::<u16>(), "[a-zß ]{0,20}").prop_map(|(code, text)| QueueReply::Refused { code, text }),
    ];
    let refusal = (any::<(u64, u64)>(), reject()).prop_map(|((a, b), why)| RefusedPublishes {
        from: a.min(b),
        to: a.max(b),
        why,
    });
    let delivery = (
        any::<(u64, bool, Option<u32>, u64)>(),
        message(),
        proptest::option::of(annotations()),
    )
        .prop_map(|(n, message, annotations)| Delivery {
            id: n.0,
            redelivered: n.1,
            attempts: n.2,
            acquired: n.2.map_or(0, |failed| failed / 2),
            left: n.3,
            message,
            annotations: annotations.map(Arc::new),
        });
    prop_oneof![
        any::<u64>().prop_map(|up_to| QueueEvent::Applied { up_to }),
        (any::<u64>(), vec(refusal, 0..4))
            .prop_map(|(up_to, refused)| QueueEvent::AppliedExcept { up_to, refused }),
        (any::<u64>(), answer).prop_map(|(seq, answer)| QueueEvent::Answer { seq, answer }),
        (consumer(), vec(delivery, 0..4)).prop_map(|(consumer, deliveries)| QueueEvent::Deliver {
            consumer,
            deliveries
        }),
        consumer().prop_map(|consumer| QueueEvent::Cancelled { consumer }),
        Just(QueueEvent::Owner),
        (consumer(), any::<u64>())
            .prop_map(|(consumer, next)| QueueEvent::Resumed { consumer, next }),
        any::<Option<u64>>().prop_map(|n| QueueEvent::NotOwner {
            leader: n.map(NodeId)
        }),
        any::<u64>().prop_map(|expected| QueueEvent::Expecting { expected }),
        (consumer(), any::<bool>()).prop_map(|(consumer, is_active)| QueueEvent::Activity {
            consumer,
            is_active
        }),
        (consumer(), any::<u64>())
            .prop_map(|(consumer, up_to)| QueueEvent::TimedOut { consumer, up_to }),
    ]
}

proptest! {
    #[test]
    fn messages_to_queues_come_back(items in vec(item(), 0..6)) {
        prop_assert_eq!(decode_list::<QueueMessage>(&encode_list(&items)), Ok(items));
    }

    #[test]
    fn events_come_back(events in vec(event(), 0..6)) {
        prop_assert_eq!(decode_list::<QueueEvent>(&encode_list(&events)), Ok(events));
    }

    #[test]
    fn settings_come_back(
        max_length: Option<u64>, max_length_bytes: Option<u64>, delivery_limit: Option<u32>,
        message_ttl_ms: Option<u64>, overflow in 0usize..3, dead_letter in 0usize..3, single_active_consumer: bool, max_priority: Option<u8>,
    ) {
        use DeadLettering::{AtLeastOnce, AtMostOnce, Off};
        let settings = QueueSettings {
            max_length, max_length_bytes, delivery_limit, message_ttl_ms, single_active_consumer,
            overflow: [Overflow::DropHead, Overflow::RejectPublish, Overflow::RejectPublishDlx][overflow],
            dead_letter: [Off, AtMostOnce, AtLeastOnce][dead_letter],
            quorum: Default::default(),
            max_priority,
        };
        prop_assert_eq!(wire::decode("settings", &wire::encode(&settings)), Ok(settings));
    }

    /// A cut or altered frame may be refused or decoded to other values.
    #[test]
    fn damaged_frames_do_not_panic(items in vec(item(), 1..4), cut: prop::sample::Index, flip: prop::sample::Index, bit in 0u8..8) {
        let whole = encode_list(&items);
        let cut = whole.slice(..cut.index(whole.len()));
        let _ = decode_list::<QueueMessage>(&cut);
        let mut raw = whole.to_vec();
        let at = flip.index(raw.len());
        raw[at] ^= 1 << bit;
        let _ = decode_list::<QueueMessage>(&Bytes::from(raw));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(mut raw: Vec<u8>) {
        raw.insert(0, VERSION);
        let raw = Bytes::from(raw);
        let _ = decode_list::<QueueMessage>(&raw);
        let _ = decode_list::<QueueEvent>(&raw);
    }
}

#[test]
fn count_beyond_the_frame_reserves_no_memory() {
    let deliveries = Bytes::from_static(&[VERSION, 3, 1, 0xff, 0xff, 0xff, 0xff]);
    let decoded = decode_list::<QueueEvent>(&deliveries);
    assert_eq!(decoded.map_err(|e| e.cause), Err(DecodeCause::Short));
    let mut settled = BytesMut::from(&[VERSION, 1][..]);
    SessionId::default().put(&mut settled);
    // Request 1 settles for consumer 1.
    settled.put_slice(&[1, 4, 1, 0]);
    wire::put_varint(&mut settled, u64::MAX);
    let decoded = decode_list::<QueueMessage>(&settled.freeze());
    assert_eq!(decoded.map_err(|e| e.cause), Err(DecodeCause::Short));
}

#[test]
fn decoded_message_shares_the_buffer_of_the_frame() {
    let body = vec![7; 5000];
    let message = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(body.len(), [&body[..]])
    .unwrap();
    let frame = encode_list(&[QueueMessage::Request(Request {
        session: SessionId::default(),
        seq: 1,
        body: RequestBody::Publish(message),
    })]);
    let within = frame.as_ptr_range();
    let read = decode_list::<QueueMessage>(&frame).unwrap();
    let Some(QueueMessage::Request(Request {
        body: RequestBody::Publish(message),
        ..
    })) = read.first()
    else {
        panic!("{read:?}");
    };
    assert!(within.contains(&message.body().as_ptr()));
}

/// A range without ids must not become one with an id: that delivery would be settled.
#[test]
fn range_that_ends_before_it_begins_stays_without_ids() {
    let request = |ids| {
        let body = RequestBody::Settle {
            consumer: ConsumerId(1),
            outcome: SettlementOutcome::Accepted,
            ids,
        };
        QueueMessage::Request(Request {
            session: SessionId::default(),
            seq: 1,
            body,
        })
    };
    let decoded =
        decode_list::<QueueMessage>(&encode_list(&[request(vec![(1, 2), (9, 8), (10, 10)])]));
    assert_eq!(decoded, Ok(vec![request(vec![(1, 2), (10, 10)])]));
}
