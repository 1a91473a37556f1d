use super::*;
use crate::{ConsumerSpec, EpochConsumer, SessionEpoch};
use env::{Incarnation, WallTime};
use message::{MessageBuilder, Protocol, Table};

const HERE: NodeId = NodeId(1);
const THERE: NodeId = NodeId(2);
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

pub(super) fn hear(client: &mut QueueClient<u64>, event: QueueEvent) -> Vec<ClientEvent<u64>> {
    let mut told = Vec::new();
    let owner = client.owner().unwrap_or(THERE);
    let now = client.now;
    client.event(now, owner, event, &mut told);
    told
}

fn delivery(id: u64) -> Delivery {
    Delivery {
        id,
        redelivered: false,
        attempts: Some(0),
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

pub(super) fn ids(told: &[ClientEvent<u64>]) -> Vec<u64> {
    let of = |t: &ClientEvent<u64>| match t {
        ClientEvent::Deliver { deliveries, .. } => deliveries.iter().map(|d| d.id).collect(),
        _ => Vec::new(),
    };
    told.iter().flat_map(of).collect()
}

#[test]
fn publishes_are_kept_until_applied_and_told_once() {
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
    let told = hear(&mut client, QueueEvent::AppliedExcept { up_to: 3, refused });
    let expected = [
        ClientEvent::Published(11),
        ClientEvent::NotPublished(12, RejectReason::MaxLength),
        ClientEvent::Published(13),
    ];
    assert_eq!(told, expected);
    assert_eq!(hear(&mut client, QueueEvent::Applied { up_to: 2 }), []);
    assert_eq!((client.in_flight(), client.is_full()), (1, false));
    assert_eq!(
        hear(&mut client, QueueEvent::Applied { up_to: 4 }),
        [ClientEvent::Published(14)]
    );
    assert!(client.is_idle());
    assert_eq!(client.wake_at(), None);
}

#[test]
fn it_is_full_by_count_and_by_bytes() {
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
    hear(&mut one, QueueEvent::Applied { up_to: 1 });
    assert_eq!((one.is_full(), one.in_flight_bytes()), (false, 0));
}

#[test]
fn it_follows_hints_but_not_in_circles() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    for turn in 0..MAX_HOPS {
        assert_eq!(sent(&mut client), [1]);
        let leader = Some(if turn % 2 == 0 { THIRD } else { THERE });
        hear(&mut client, QueueEvent::NotOwner { leader });
        assert_eq!(client.owner(), leader);
    }
    let leader = Some(THERE);
    hear(&mut client, QueueEvent::NotOwner { leader });
    assert_eq!((client.owner(), sent(&mut client)), (None, vec![]));
    let at = client.wake_at().unwrap();
    client.tick(at);
    assert_eq!((client.owner(), sent(&mut client)), (leader, vec![1]));
}

#[test]
fn it_sends_again_after_a_growing_while_and_tries_others() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    client.publish(Some(2), message(1));
    assert_eq!(sent(&mut client), [1, 2]);
    let mut waits = Vec::new();
    let mut owners = Vec::new();
    for _ in 0..6 {
        let at = client.wake_at().unwrap();
        waits.push(at.since(client.now).as_millis());
        client.tick(at);
        owners.push(client.owner().unwrap().0);
        assert_eq!(sent(&mut client), [1, 2]);
    }
    assert_eq!(waits, [200, 400, 800, 1600, 2000, 2000]);
    assert_eq!(owners, [2, 2, 3, 3, 3, 2]);
    hear(&mut client, QueueEvent::Expecting { expected: 2 });
    assert_eq!(sent(&mut client), [2]);
}

/// With consumer 1.
fn consuming() -> QueueClient<u64> {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, false));
    assert_eq!(sent(&mut client), [1]);
    let answer = QueueReply::Consuming;
    hear(&mut client, QueueEvent::Answer { seq: 1, answer });
    hear(&mut client, QueueEvent::Applied { up_to: 1 });
    client
}

#[test]
fn duplicates_are_dropped_and_gaps_asked_for() {
    let mut client = consuming();
    assert_eq!(ids(&hear(&mut client, deliver(1, &[1, 2]))), [1, 2]);
    assert_eq!(ids(&hear(&mut client, deliver(1, &[2, 3]))), [3]);
    assert_eq!(ids(&hear(&mut client, deliver(1, &[5, 6]))), [0u64; 0]);
    let asked = client.poll_send();
    let resume = ResumeConsumer {
        session: client.session,
        consumer: ConsumerId(1),
        next: 4,
    };
    assert_eq!(asked, Some(QueueMessage::Resume(resume)));
    // Still on its way from before.
    assert_eq!(ids(&hear(&mut client, deliver(1, &[7]))), [0u64; 0]);
    assert_eq!(client.poll_send(), None);
    // 4 went to someone else meanwhile.
    let resumed = QueueEvent::Resumed {
        consumer: ConsumerId(1),
        next: 5,
    };
    hear(&mut client, resumed);
    assert_eq!(ids(&hear(&mut client, deliver(1, &[5, 6, 7]))), [5, 6, 7]);
}

#[test]
fn another_owner_hears_what_has_gone_to_the_client() {
    let mut client = consuming();
    hear(&mut client, deliver(1, &[1, 2, 3]));
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
fn without_acknowledgement_it_settles_when_the_session_has_the_message() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, true));
    sent(&mut client);
    hear(&mut client, deliver(1, &[1, 2, 3]));
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
    assert_eq!(ids(&hear(&mut client, deliver(2, &[1]))), [1]);
    assert_eq!(sent(&mut client), [4]);
    assert_eq!(ids(&hear(&mut client, deliver(2, &[1]))), [0u64; 0]);
}

#[test]
fn what_comes_before_a_cancel_is_applied_is_passed_on_and_the_rest_goes_back() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, false));
    sent(&mut client);
    hear(&mut client, deliver(1, &[1, 2]));
    let consumer = ConsumerId(1);
    client.request(RequestBody::Cancel { consumer });
    assert_eq!(ids(&hear(&mut client, deliver(1, &[3]))), [3]);
    // One got lost: what comes behind it is not asked for again.
    assert_eq!(hear(&mut client, deliver(1, &[5])), []);
    assert_eq!(sent(&mut client), [2]);
    hear(&mut client, QueueEvent::Applied { up_to: 2 });
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
fn a_new_window_does_not_start_a_consumer_anew() {
    let mut c = client(QueueType::Classic);
    hear(&mut c, QueueEvent::Owner);
    c.request(consume(1, false));
    sent(&mut c);
    let answer = |seq, answer| QueueEvent::Answer { seq, answer };
    hear(&mut c, answer(1, QueueReply::Consuming));
    assert_eq!(ids(&hear(&mut c, deliver(1, &[1, 2]))), [1, 2]);
    c.request(consume(1, false));
    sent(&mut c);
    assert_eq!(ids(&hear(&mut c, deliver(1, &[3]))), [3]);
    // Refused it is no end: that the queue tells by itself.
    let refused = QueueReply::Refused {
        code: 404,
        text: String::new(),
    };
    hear(&mut c, answer(2, refused));
    assert_eq!(ids(&hear(&mut c, deliver(1, &[4]))), [4]);
}

#[test]
fn one_that_leaves_settles_what_it_saw_and_hears_no_more() {
    let mut client = client(QueueType::Quorum);
    client.request(consume(1, true));
    sent(&mut client);
    hear(&mut client, deliver(1, &[1, 2]));
    let consumer = ConsumerId(1);
    client.request(RequestBody::Leave { consumer });
    assert_eq!(hear(&mut client, deliver(1, &[3])), []);
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
    assert_eq!(bodies, [settle, RequestBody::Leave { consumer }]);
    hear(&mut client, QueueEvent::Applied { up_to: 3 });
    assert_eq!(client.poll_send(), None);
    assert_eq!(hear(&mut client, deliver(1, &[3])), []);
}

#[test]
fn an_owner_that_forgot_everything_is_lost_and_numbering_starts_again() {
    let mut client = client(QueueType::Classic);
    client.publish(Some(1), message(1));
    client.request(consume(1, false));
    sent(&mut client);
    hear(&mut client, QueueEvent::Applied { up_to: 2 });
    let answer = QueueReply::Consuming;
    hear(&mut client, QueueEvent::Answer { seq: 2, answer });
    client.publish(Some(3), message(1));
    let stat = client.request(RequestBody::Stat);
    assert_eq!(sent(&mut client), [3, 4]);
    let told = hear(&mut client, QueueEvent::Expecting { expected: 1 });
    assert_eq!(
        told[0],
        ClientEvent::NotPublished(3, RejectReason::Unavailable)
    );
    assert!(
        matches!(&told[1], ClientEvent::Answer { seq, answer: QueueReply::Refused { code: 404, .. } } if *seq == stat)
    );
    assert_eq!(
        told[2],
        ClientEvent::Cancelled {
            consumer: ConsumerId(1)
        }
    );
    let next = client.request(RequestBody::Stat);
    assert_eq!(next, stat + 1);
    assert_eq!(sent(&mut client), [EPOCH + 1]);
    // A late word of before means nothing.
    assert_eq!(hear(&mut client, QueueEvent::Applied { up_to: 4 }), []);
    assert_eq!(client.in_flight(), 1);
    let answer = QueueReply::Empty;
    let told = hear(
        &mut client,
        QueueEvent::Answer {
            seq: EPOCH + 1,
            answer: answer.clone(),
        },
    );
    assert_eq!(told, [ClientEvent::Answer { seq: next, answer }]);
}

#[test]
fn a_lagging_leader_of_a_quorum_queue_is_waited_for() {
    let mut client = client(QueueType::Quorum);
    client.publish(Some(1), message(1));
    client.publish(Some(2), message(1));
    sent(&mut client);
    hear(&mut client, QueueEvent::Applied { up_to: 1 });
    assert_eq!(hear(&mut client, QueueEvent::Expecting { expected: 1 }), []);
    assert_eq!(client.in_flight(), 1);
}

#[test]
fn an_end_that_its_queue_has_forgotten_is_over() {
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
    // Nothing is known to be applied: all of it may be yet to come.
    assert_eq!(hear(&mut client, unknown(3)), []);
    assert_eq!(client.in_flight(), 3);
    hear(&mut client, QueueEvent::Applied { up_to: 1 });
    assert_eq!(hear(&mut client, unknown(2)), []);
    let lost = ClientEvent::NotPublished(2, RejectReason::Unavailable);
    assert_eq!(hear(&mut client, unknown(3)), [lost]);
    // What the queue may have of it ends all the same.
    assert_eq!(sent(&mut client), [EPOCH + 1]);
    hear(&mut client, QueueEvent::Applied { up_to: EPOCH + 1 });
    assert!(client.is_idle());
}

#[test]
fn answers_out_at_a_time_are_bounded_and_asked_again() {
    let mut client = client(QueueType::Quorum);
    for _ in 0..MAX_UNANSWERED + 5 {
        client.request(RequestBody::Stat);
    }
    assert_eq!(sent(&mut client).len(), MAX_UNANSWERED);
    // Applied, but the answers are lost.
    let up_to = MAX_UNANSWERED as u64;
    hear(&mut client, QueueEvent::Applied { up_to });
    assert_eq!(sent(&mut client).len(), 0);
    client.link_restored(Time(5));
    assert_eq!(sent(&mut client).len(), MAX_UNANSWERED);
    let answer = QueueReply::Empty;
    let told = hear(
        &mut client,
        QueueEvent::Answer {
            seq: 1,
            answer: answer.clone(),
        },
    );
    assert_eq!(told.len(), 1);
    assert_eq!(
        hear(&mut client, QueueEvent::Answer { seq: 1, answer }).len(),
        0
    );
    assert_eq!(sent(&mut client).len(), 1);
}

#[test]
fn an_owner_out_of_reach_hears_of_the_end() {
    let mut client = client(QueueType::Classic);
    client.request(consume(1, false));
    sent(&mut client);
    client.request(RequestBody::Close);
    client.owner_lost(&mut Vec::new());
    assert_eq!(
        (client.in_flight(), sent(&mut client)),
        (1, vec![EPOCH + 1])
    );
}

#[test]
fn an_owner_out_of_reach_hears_that_consumers_are_over() {
    let mut client = client(QueueType::Classic);
    client.request(consume(1, false));
    sent(&mut client);
    hear(&mut client, QueueEvent::Applied { up_to: 1 });
    let answer = QueueReply::Consuming;
    hear(&mut client, QueueEvent::Answer { seq: 1, answer });
    assert_eq!(client.in_flight(), 0);
    let mut told = Vec::new();
    client.owner_lost(&mut told);
    let consumer = ConsumerId(1);
    assert_eq!(told, [ClientEvent::Cancelled { consumer }]);
    assert_eq!(sent(&mut client), [EPOCH + 1]);
    hear(&mut client, QueueEvent::Applied { up_to: EPOCH + 1 });
    assert!(client.is_idle());
}

#[test]
fn what_it_is_done_with_and_the_queue_may_not_know() {
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
    hear(&mut client, QueueEvent::Applied { up_to: first });
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
fn one_that_is_succeeded_before_it_heard_that_it_stands_ends() {
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
    let seq = client.request(RequestBody::Succeed(Box::new(next)));
    assert_eq!(sent(&mut client), [seq]);
    // The answer is lost with the link; its owner tells it what it told before.
    client.link_restored(client.now);
    sent(&mut client);
    let answer = QueueReply::Consuming;
    hear(&mut client, QueueEvent::Answer { seq, answer });
    let asks = |item| matches!(item, QueueMessage::Resume(r) if r.consumer == consumer);
    assert!(std::iter::from_fn(|| client.poll_send()).any(asks));
    let told = hear(&mut client, QueueEvent::Cancelled { consumer });
    assert_eq!(told, [ClientEvent::Cancelled { consumer }]);
}
