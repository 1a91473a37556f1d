use super::*;
use crate::{ConsumerSpec, EpochConsumer, SessionEpoch};
use env::{Incarnation, WallTime};
use message::{MessageBuilder, Protocol, Table};

const HERE: NodeId = NodeId(1);
pub(super) const THERE: NodeId = NodeId(2);
const THIRD: NodeId = NodeId(3);

pub(super) fn client(kind: QueueType) -> QueueClient<u64> {
    let session = SessionId {
        node: HERE,
        incarnation: Incarnation(1),
        number: 1,
    };
    QueueClient::new(session, kind, vec![THERE, THIRD], None, Time(1))
}

fn message(len: usize) -> Message {
    let body = vec![1; len];
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(len, [&body[..]])
    .unwrap()
}

pub(super) fn spec(no_ack: bool) -> ConsumerSpec {
    ConsumerSpec {
        tag: "c".into(),
        channel: 1,
        flow_mode: crate::FlowMode::Prefetch,
        prefetch: 10,
        no_ack,
        exclusive: false,
        priority: 0,
        arguments: Table::default(),
        filter: None,
    }
}

fn consume(consumer: u32, no_ack: bool) -> RequestBody {
    RequestBody::Consume {
        consumer: ConsumerId(consumer),
        spec: spec(no_ack),
    }
}

fn sent(client: &mut QueueClient<u64>) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(item) = client.poll_send() {
        if let QueueMessage::Request(request) = item {
            all.push(request.seq);
        }
    }
    all
}

pub(super) fn handle_event(
    client: &mut QueueClient<u64>,
    event: QueueEvent,
) -> Vec<ClientEvent<u64>> {
    let mut events = Vec::new();
    let owner = client.owner().unwrap_or(THERE);
    let now = client.now;
    client.event(now, owner, event, &mut events);
    events
}

fn delivery(id: u64) -> Delivery {
    Delivery {
        id,
        redelivered: false,
        attempts: Some(0),
        acquired: 0,
        left: 0,
        message: message(1),
        annotations: None,
    }
}

pub(super) fn deliver(consumer: u32, ids: &[u64]) -> QueueEvent {
    QueueEvent::Deliver {
        consumer: ConsumerId(consumer),
        deliveries: ids.iter().map(|id| delivery(*id)).collect(),
    }
}

pub(super) fn ids(events: &[ClientEvent<u64>]) -> Vec<u64> {
    let of = |t: &ClientEvent<u64>| match t {
        ClientEvent::Deliver { deliveries, .. } => deliveries.iter().map(|d| d.id).collect(),
        _ => Vec::new(),
    };
    events.iter().flat_map(of).collect()
}

#[test]
fn publish_is_kept_until_applied_and_reported_once() {
    let mut client = client(QueueType::Quorum);
    for tag in 11..=14 {
        client.publish(Some(tag), message(5));
    }
    assert_eq!(sent(&mut client), [1, 2, 3, 4]);
    let refused = vec![RefusedPublishes {
        from: 2,
        to: 2,
        why: RejectReason::MaxLength,
    }];
    let events = handle_event(&mut client, QueueEvent::AppliedExcept { up_to: 3, refused });
    let expected = [
        ClientEvent::Published(11),
        ClientEvent::NotPublished(12, RejectReason::MaxLength),
        ClientEvent::Published(13),
    ];
    assert_eq!(events, expected);
    assert_eq!(
        handle_event(&mut client, QueueEvent::Applied { up_to: 2 }),
        []
    );
    assert_eq!((client.in_flight(), client.is_full()), (1, false));
    assert_eq!(
        handle_event(&mut client, QueueEvent::Applied { up_to: 4 }),
        [ClientEvent::Published(14)]
    );
    assert!(client.is_idle());
    assert_eq!(client.wake_at(), None);
}

#[test]
fn client_is_full_by_count_and_by_bytes() {
    let mut one = client(QueueType::Quorum);
    for _ in 0..MAX_IN_FLIGHT {
        assert!(!one.is_full());
        one.publish(None, message(1));
    }
    assert!(one.is_full());
    let mut one = client(QueueType::Quorum);
    one.publish(None, message(MAX_IN_FLIGHT_BYTES));
    assert!(one.is_full());
    sent(&mut one);
    handle_event(&mut one, QueueEvent::Applied { up_to: 1 });
    assert_eq!((one.is_full(), one.in_flight_bytes()), (false, 0));
}

#[test]
fn client_follows_redirects_but_not_in_circles() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    for turn in 0..MAX_HOPS {
        assert_eq!(sent(&mut client), [1]);
        let leader = Some(if turn % 2 == 0 { THIRD } else { THERE });
        handle_event(&mut client, QueueEvent::NotOwner { leader });
        assert_eq!(client.owner(), leader);
    }
    let leader = Some(THERE);
    handle_event(&mut client, QueueEvent::NotOwner { leader });
    assert_eq!((client.owner(), sent(&mut client)), (None, vec![]));
    let at = client.wake_at().unwrap();
    client.tick(at, |_| true);
    assert_eq!((client.owner(), sent(&mut client)), (leader, vec![1]));
}

#[test]
fn client_backs_off_and_tries_other_members() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    client.publish(Some(2), message(1));
    assert_eq!(sent(&mut client), [1, 2]);
    let mut awaits_owner = Vec::new();
    let mut owners = Vec::new();
    for _ in 0..6 {
        let at = client.wake_at().unwrap();
        awaits_owner.push(at.since(client.now).as_millis());
        client.tick(at, |_| true);
        owners.push(client.owner().unwrap().0);
        assert_eq!(sent(&mut client), [1, 2]);
    }
    assert_eq!(awaits_owner, [200, 400, 800, 1600, 2000, 2000]);
    assert_eq!(owners, [2, 2, 3, 3, 3, 2]);
    handle_event(&mut client, QueueEvent::Expecting { expected: 2 });
    assert_eq!(sent(&mut client), [2]);
}

#[test]
fn client_tries_members_that_are_linked_first() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    assert_eq!((client.owner(), sent(&mut client)), (Some(THERE), vec![1]));
    let mut owners = Vec::new();
    for linked in [vec![THIRD], vec![THIRD], vec![THERE, THIRD], vec![], vec![]] {
        let at = client.wake_at().unwrap();
        client.tick(at, |member| linked.contains(&member));
        owners.push(client.owner().unwrap());
        assert_eq!(sent(&mut client), [1]);
    }
    // The owner is kept while it is linked. Without any linked member they are tried in turn.
    assert_eq!(owners, [THIRD, THIRD, THIRD, THERE, THIRD]);
}

/// A client with consumer 1.
fn consuming() -> QueueClient<u64> {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, false));
    assert_eq!(sent(&mut client), [1]);
    let answer = QueueReply::Consuming;
    handle_event(&mut client, QueueEvent::Answer { seq: 1, answer });
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    client
}

#[test]
fn duplicate_deliveries_are_dropped_and_missing_ones_requested() {
    let mut client = consuming();
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[1, 2]))), [1, 2]);
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[2, 3]))), [3]);
    assert_eq!(
        ids(&handle_event(&mut client, deliver(1, &[5, 6]))),
        [0u64; 0]
    );
    let pending = client.poll_send();
    let resume = ResumeConsumer {
        session: client.session,
        consumer: ConsumerId(1),
        next: 4,
    };
    assert_eq!(pending, Some(QueueMessage::Resume(resume)));
    // Sent before the gap was noticed.
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[7]))), [0u64; 0]);
    assert_eq!(client.poll_send(), None);
    // Delivery 4 was requeued.
    let resumed = QueueEvent::Resumed {
        consumer: ConsumerId(1),
        next: 5,
    };
    handle_event(&mut client, resumed);
    assert_eq!(
        ids(&handle_event(&mut client, deliver(1, &[5, 6, 7]))),
        [5, 6, 7]
    );
}

#[test]
fn new_owner_is_told_the_delivery_progress() {
    let mut client = consuming();
    handle_event(&mut client, deliver(1, &[1, 2, 3]));
    let (session, consumer) = (client.session, ConsumerId(1));
    let received = QueueMessage::Received(DeliveryProgress {
        session,
        consumer,
        up_to: 2,
    });
    client.received(consumer, 2);
    client.received(ConsumerId(7), 2);
    assert_eq!(client.poll_send(), Some(received.clone()));
    assert_eq!(client.poll_send(), None);
    client.owner_is(Time(9), Some(NodeId(3)));
    let next = 4;
    let resume = QueueMessage::Resume(ResumeConsumer {
        session,
        consumer,
        next,
    });
    assert_eq!(client.poll_send(), Some(received));
    assert_eq!(client.poll_send(), Some(resume));
}

#[test]
fn delivery_without_acknowledgement_is_settled_once_the_session_has_it() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, true));
    sent(&mut client);
    handle_event(&mut client, deliver(1, &[1, 2, 3]));
    let Some(QueueMessage::Request(request)) = client.poll_send() else {
        panic!("a settle is due");
    };
    let settle = RequestBody::Settle {
        consumer: ConsumerId(1),
        outcome: SettlementOutcome::Accepted,
        ids: vec![(1, 3)],
    };
    assert_eq!(request.body, settle);
    assert_eq!(client.poll_send(), None);
    let get = RequestBody::Get {
        consumer: ConsumerId(2),
        no_ack: true,
    };
    client.request(get);
    assert_eq!(sent(&mut client), [3]);
    assert_eq!(ids(&handle_event(&mut client, deliver(2, &[1]))), [1]);
    assert_eq!(sent(&mut client), [4]);
    assert_eq!(ids(&handle_event(&mut client, deliver(2, &[1]))), [0u64; 0]);
}

#[test]
fn deliveries_before_an_applied_cancel_arrive_and_later_ones_are_requeued() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, false));
    sent(&mut client);
    handle_event(&mut client, deliver(1, &[1, 2]));
    let consumer = ConsumerId(1);
    client.request(RequestBody::Cancel { consumer });
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[3]))), [3]);
    // A delivery got lost: later ones are not asked for again.
    assert_eq!(handle_event(&mut client, deliver(1, &[5])), []);
    assert_eq!(sent(&mut client), [2]);
    handle_event(&mut client, QueueEvent::Applied { up_to: 2 });
    let Some(QueueMessage::Request(request)) = client.poll_send() else {
        panic!("a settle is due");
    };
    let settle = RequestBody::Settle {
        consumer,
        outcome: SettlementOutcome::Requeue,
        ids: vec![(4, u64::MAX)],
    };
    assert_eq!(request.body, settle);
}

#[test]
fn prefetch_change_does_not_restart_a_consumer() {
    let mut c = client(QueueType::Classic);
    handle_event(&mut c, QueueEvent::Owner);
    c.request(consume(1, false));
    sent(&mut c);
    let answer = |seq, answer| QueueEvent::Answer { seq, answer };
    handle_event(&mut c, answer(1, QueueReply::Consuming));
    assert_eq!(ids(&handle_event(&mut c, deliver(1, &[1, 2]))), [1, 2]);
    c.request(consume(1, false));
    sent(&mut c);
    assert_eq!(ids(&handle_event(&mut c, deliver(1, &[3]))), [3]);
    // A refused prefetch change does not end the consumer; only the queue does.
    let refused = QueueReply::Refused {
        code: 404,
        text: String::new(),
    };
    handle_event(&mut c, answer(2, refused));
    assert_eq!(ids(&handle_event(&mut c, deliver(1, &[4]))), [4]);
}

#[test]
fn consumer_that_leaves_settles_its_deliveries_and_gets_no_more() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, true));
    sent(&mut client);
    handle_event(&mut client, deliver(1, &[1, 2]));
    let consumer = ConsumerId(1);
    client.request(RequestBody::CancelAndRequeue { consumer });
    assert_eq!(handle_event(&mut client, deliver(1, &[3])), []);
    let bodies: Vec<_> = std::iter::from_fn(|| client.poll_send())
        .filter_map(|item| match item {
            QueueMessage::Request(request) => Some(request.body),
            QueueMessage::Resume(_) | QueueMessage::Received(_) => None,
        })
        .collect();
    let settle = RequestBody::Settle {
        consumer,
        outcome: SettlementOutcome::Accepted,
        ids: vec![(1, 2)],
    };
    assert_eq!(bodies, [settle, RequestBody::CancelAndRequeue { consumer }]);
    handle_event(&mut client, QueueEvent::Applied { up_to: 3 });
    assert_eq!(client.poll_send(), None);
    assert_eq!(handle_event(&mut client, deliver(1, &[3])), []);
}

#[test]
fn owner_that_lost_its_state_starts_a_new_numbering_epoch() {
    let mut client = client(QueueType::Classic);
    client.publish(Some(1), message(1));
    client.request(consume(1, false));
    sent(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: 2 });
    let answer = QueueReply::Consuming;
    handle_event(&mut client, QueueEvent::Answer { seq: 2, answer });
    client.publish(Some(3), message(1));
    let stat = client.request(RequestBody::Stat);
    assert_eq!(sent(&mut client), [3, 4]);
    let events = handle_event(&mut client, QueueEvent::Expecting { expected: 1 });
    assert_eq!(
        events[0],
        ClientEvent::NotPublished(3, RejectReason::Unavailable)
    );
    assert!(
        matches!(&events[1], ClientEvent::Answer { seq, answer: QueueReply::Refused { code: 404, .. } } if *seq == stat)
    );
    assert_eq!(
        events[2],
        ClientEvent::Cancelled {
            consumer: ConsumerId(1),
            reason: CancelReason::OwnerLost,
        }
    );
    let next = client.request(RequestBody::Stat);
    assert_eq!(next, stat + 1);
    assert_eq!(sent(&mut client), [NUMBERING_EPOCH + 1]);
    // Late events of the previous epoch have no effect.
    assert_eq!(
        handle_event(&mut client, QueueEvent::Applied { up_to: 4 }),
        []
    );
    assert_eq!(client.in_flight(), 1);
    let answer = QueueReply::Empty;
    let events = handle_event(
        &mut client,
        QueueEvent::Answer {
            seq: NUMBERING_EPOCH + 1,
            answer: answer.clone(),
        },
    );
    assert_eq!(events, [ClientEvent::Answer { seq: next, answer }]);
}

#[test]
fn client_waits_for_a_lagging_leader_of_a_quorum_queue() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    client.publish(Some(2), message(1));
    sent(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    assert_eq!(
        handle_event(&mut client, QueueEvent::Expecting { expected: 1 }),
        []
    );
    assert_eq!(client.in_flight(), 1);
}

#[test]
fn close_of_a_forgotten_session_is_complete() {
    let unknown = |seq| QueueEvent::Answer {
        seq,
        answer: QueueReply::Refused {
            code: 404,
            text: "does not know the session".to_owned(),
        },
    };
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    client.publish(Some(2), message(1));
    client.request(RequestBody::Close);
    sent(&mut client);
    // No request is known to be applied: all of them may be applied later.
    assert_eq!(handle_event(&mut client, unknown(3)), []);
    assert_eq!(client.in_flight(), 3);
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    assert_eq!(handle_event(&mut client, unknown(2)), []);
    let lost = ClientEvent::NotPublished(2, RejectReason::Unavailable);
    assert_eq!(handle_event(&mut client, unknown(3)), [lost]);
    // The queue must still end what it has of the session.
    assert_eq!(sent(&mut client), [NUMBERING_EPOCH + 1]);
    handle_event(
        &mut client,
        QueueEvent::Applied {
            up_to: NUMBERING_EPOCH + 1,
        },
    );
    assert!(client.is_idle());
}

#[test]
fn unanswered_requests_are_bounded_and_repeated() {
    let mut client = client(QueueType::Quorum);
    for _ in 0..MAX_UNANSWERED + 5 {
        client.request(RequestBody::Stat);
    }
    assert_eq!(sent(&mut client).len(), MAX_UNANSWERED);
    // Applied, but the answers are lost.
    let up_to = MAX_UNANSWERED as u64;
    handle_event(&mut client, QueueEvent::Applied { up_to });
    assert_eq!(sent(&mut client).len(), 0);
    client.link_restored(Time(5));
    assert_eq!(sent(&mut client).len(), MAX_UNANSWERED);
    let answer = QueueReply::Empty;
    let events = handle_event(
        &mut client,
        QueueEvent::Answer {
            seq: 1,
            answer: answer.clone(),
        },
    );
    assert_eq!(events.len(), 1);
    assert_eq!(
        handle_event(&mut client, QueueEvent::Answer { seq: 1, answer }).len(),
        0
    );
    assert_eq!(sent(&mut client).len(), 1);
}

#[test]
fn unreachable_owner_is_sent_the_close() {
    let mut client = client(QueueType::Classic);
    client.request(consume(1, false));
    sent(&mut client);
    client.request(RequestBody::Close);
    client.owner_lost(&mut Vec::new());
    assert_eq!(
        (client.in_flight(), sent(&mut client)),
        (1, vec![NUMBERING_EPOCH + 1])
    );
}

#[test]
fn unreachable_owner_is_told_that_consumers_ended() {
    let mut client = client(QueueType::Classic);
    client.request(consume(1, false));
    sent(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    let answer = QueueReply::Consuming;
    handle_event(&mut client, QueueEvent::Answer { seq: 1, answer });
    assert_eq!(client.in_flight(), 0);
    let mut events = Vec::new();
    client.owner_lost(&mut events);
    let (consumer, reason) = (ConsumerId(1), CancelReason::OwnerLost);
    assert_eq!(events, [ClientEvent::Cancelled { consumer, reason }]);
    assert_eq!(sent(&mut client), [NUMBERING_EPOCH + 1]);
    handle_event(
        &mut client,
        QueueEvent::Applied {
            up_to: NUMBERING_EPOCH + 1,
        },
    );
    assert!(client.is_idle());
}

#[test]
fn owner_that_is_unreachable_twice_is_told_that_consumers_ended() {
    let mut client = consuming();
    client.owner_lost(&mut Vec::new());
    // The owner has not applied the first request when it is lost again.
    assert_eq!(sent(&mut client), [NUMBERING_EPOCH + 1]);
    let mut events = Vec::new();
    client.owner_lost(&mut events);
    assert_eq!(events, []);
    let epoch = 2 * NUMBERING_EPOCH;
    assert_eq!(sent(&mut client), [epoch + 1]);
    handle_event(&mut client, QueueEvent::Applied { up_to: epoch + 1 });
    assert!(client.is_idle());
}

#[test]
fn settling_returns_accepted_deliveries_that_are_not_applied() {
    let mut client = consuming();
    let settle = |client: &mut QueueClient<u64>, outcome, ids: &[(u64, u64)]| {
        client.request(RequestBody::Settle {
            consumer: ConsumerId(1),
            outcome,
            ids: ids.to_vec(),
        })
    };
    let first = settle(&mut client, SettlementOutcome::Accepted, &[(1, 1)]);
    settle(&mut client, SettlementOutcome::Accepted, &[(8, 9), (3, 3)]);
    settle(&mut client, SettlementOutcome::Requeue, &[(5, 5)]);
    settle(&mut client, SettlementOutcome::Accepted, &[(2, 2), (9, 12)]);
    sent(&mut client);
    assert_eq!(client.settling(ConsumerId(1)), [(1, 3), (8, 12)]);
    assert_eq!(client.settling(ConsumerId(2)), []);
    handle_event(&mut client, QueueEvent::Applied { up_to: first });
    assert_eq!(client.settling(ConsumerId(1)), [(2, 3), (8, 12)]);
    let apart: Vec<(u64, u64)> = (20..)
        .step_by(2)
        .take(MAX_SETTLING)
        .map(|n| (n, n))
        .collect();
    settle(&mut client, SettlementOutcome::Accepted, &apart);
    assert_eq!(client.settling(ConsumerId(1)).len(), MAX_SETTLING);
}

#[test]
fn consumer_replaced_before_its_answer_arrived_is_cancelled() {
    let mut client = client(QueueType::Quorum);
    let RequestBody::Consume { consumer, spec } = consume(1, false) else {
        panic!("a consumer");
    };
    let next = EpochConsumer {
        consumer,
        spec,
        settled: None,
        epoch: SessionEpoch::New,
        at: 0,
    };
    let seq = client.request(RequestBody::TakeOver(Box::new(next)));
    assert_eq!(sent(&mut client), [seq]);
    // The answer is lost with the connection; the owner repeats it.
    client.link_restored(client.now);
    sent(&mut client);
    let answer = QueueReply::Consuming;
    handle_event(&mut client, QueueEvent::Answer { seq, answer });
    let asks = |item| matches!(item, QueueMessage::Resume(r) if r.consumer == consumer);
    assert!(std::iter::from_fn(|| client.poll_send()).any(asks));
    let events = handle_event(&mut client, QueueEvent::Cancelled { consumer });
    let reason = CancelReason::ByQueue;
    assert_eq!(events, [ClientEvent::Cancelled { consumer, reason }]);
}

fn stream_client() -> QueueClient<u64> {
    let session = SessionId {
        node: HERE,
        incarnation: Incarnation(1),
        number: 1,
    };
    QueueClient::of_stream(session, vec![THERE, THIRD], Some(THERE), Time(1))
}

#[test]
fn client_of_a_stream_numbers_anew_when_its_leader_forgot_it() {
    let mut client = stream_client();
    for tag in 1..=3 {
        client.publish(Some(tag), message(10));
    }
    let stat = client.request(RequestBody::Stat);
    assert_eq!(sent(&mut client), [1, 2, 3, 4]);
    let applied = handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    assert_eq!(applied, [ClientEvent::Published(1)]);
    // A new leader knows nothing of the session.
    let forgotten = QueueEvent::Expecting { expected: 1 };
    assert_eq!(handle_event(&mut client, forgotten.clone()), []);
    let first = NUMBERING_EPOCH + 1;
    assert_eq!(sent(&mut client), [first, first + 1, first + 2]);
    // Late copies of the event change nothing.
    assert_eq!(handle_event(&mut client, forgotten), []);
    assert_eq!(sent(&mut client), []);
    let answer = QueueReply::Count {
        messages: 7,
        consumers: 0,
    };
    let events = [
        QueueEvent::Answer {
            seq: first + 2,
            answer: answer.clone(),
        },
        QueueEvent::Applied { up_to: first + 2 },
    ];
    let told: Vec<_> = events
        .into_iter()
        .flat_map(|event| handle_event(&mut client, event))
        .collect();
    let expected = [
        ClientEvent::Answer { seq: stat, answer },
        ClientEvent::Published(2),
        ClientEvent::Published(3),
    ];
    assert_eq!(told, expected);
    assert_eq!(client.publish(Some(4), message(10)), stat + 1);
    assert_eq!(sent(&mut client), [first + 3]);
}

#[test]
fn client_of_a_stream_refuses_an_answer_that_was_lost_with_the_leader() {
    let mut client = stream_client();
    let stat = client.request(RequestBody::Stat);
    client.publish(Some(1), message(10));
    assert_eq!(sent(&mut client), [1, 2]);
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    let told = handle_event(&mut client, QueueEvent::Expecting { expected: 1 });
    let is_refused = matches!(
        told[..],
        [ClientEvent::Answer {
            seq,
            answer: QueueReply::Refused { code: 404, .. }
        }] if seq == stat
    );
    assert!(is_refused, "{told:?}");
    assert_eq!(sent(&mut client), [NUMBERING_EPOCH + 1]);
}

#[test]
fn batches_of_a_stream_count_towards_the_bytes_in_flight() {
    let mut client = stream_client();
    let batch = StreamBatch {
        producer: None,
        version: 1,
        count: 1,
        entries: vec![0; MAX_IN_FLIGHT_BYTES].into(),
    };
    client.publish_batch(Some(1), batch);
    assert!(client.is_full());
    sent(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    assert!(!client.is_full());
    assert_eq!(client.in_flight_bytes(), 0);
}
