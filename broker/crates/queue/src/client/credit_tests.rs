//! Credit of a session while deliveries and answers are lost or delayed.

use super::tests::{THERE, client, deliver, handle_event, ids, spec};
use super::*;
use crate::{ConsumerSpec, FlowMode};

const CONSUMER: ConsumerId = ConsumerId(1);

/// A client with an established consumer.
fn consuming() -> QueueClient<u64> {
    let mut client = client(QueueType::Quorum);
    let consumer = CONSUMER;
    let spec = ConsumerSpec {
        flow_mode: FlowMode::Credit,
        ..spec(false)
    };
    client.request(RequestBody::Consume { consumer, spec });
    requests(&mut client);
    let answer = QueueReply::Consuming;
    handle_event(&mut client, QueueEvent::Answer { seq: 1, answer });
    handle_event(&mut client, QueueEvent::Applied { up_to: 1 });
    client
}

fn credit(client: &mut QueueClient<u64>, up_to: u64, drain: bool) -> u64 {
    let consumer = CONSUMER;
    client.request(RequestBody::Credit {
        consumer,
        up_to,
        drain,
    })
}

fn requests(client: &mut QueueClient<u64>) -> Vec<(u64, RequestBody)> {
    let mut all = Vec::new();
    while let Some(item) = client.poll_send() {
        if let QueueMessage::Request(request) = item {
            all.push((request.seq, request.body));
        }
    }
    all
}

fn credited(last: u64, drained: bool) -> QueueReply {
    QueueReply::Credited {
        last,
        available: 0,
        drained,
    }
}

fn answer(client: &mut QueueClient<u64>, seq: u64, last: u64) -> Vec<ClientEvent<u64>> {
    let answer = credited(last, true);
    handle_event(client, QueueEvent::Answer { seq, answer })
}

fn asks_to_resume(client: &mut QueueClient<u64>) -> bool {
    let mut items = std::iter::from_fn(|| client.poll_send());
    items.any(|item| matches!(item, QueueMessage::Resume(_)))
}

#[test]
fn credit_answer_follows_the_deliveries_that_it_counts() {
    let mut client = consuming();
    let seq = credit(&mut client, 5, true);
    requests(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: seq });
    handle_event(&mut client, deliver(1, &[1]));
    assert_eq!(answer(&mut client, seq, 3), []);
    // The answer is reported once, whether or not it was asked for again.
    assert_eq!(answer(&mut client, seq, 3), []);
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[2]))), [2]);
    let events = handle_event(&mut client, deliver(1, &[3, 4]));
    assert_eq!(ids(&events), [3, 4]);
    let answer = credited(3, true);
    assert_eq!(events.last(), Some(&ClientEvent::Answer { seq, answer }));
    assert_eq!(
        handle_event(&mut client, QueueEvent::Applied { up_to: seq }),
        []
    );
    assert_eq!(client.wake_at(), Some(client.now + PROBE_EVERY));
}

#[test]
fn credit_answer_does_not_wait_for_requeued_deliveries() {
    let mut client = consuming();
    let seq = credit(&mut client, 5, true);
    requests(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: seq });
    handle_event(&mut client, deliver(1, &[1]));
    assert_eq!(answer(&mut client, seq, 3), []);
    client.link_restored(client.now);
    assert!(asks_to_resume(&mut client));
    let resumed = QueueEvent::Resumed {
        consumer: CONSUMER,
        next: 4,
    };
    // The session got one delivery. The rest of the credit was drained.
    let answer = credited(1, true);
    let events = handle_event(&mut client, resumed);
    assert_eq!(events, [ClientEvent::Answer { seq, answer }]);
    // There is no credit to renew after a drain.
    assert_eq!(requests(&mut client), []);
}

#[test]
fn credit_of_requeued_deliveries_is_renewed() {
    let mut client = consuming();
    let seq = credit(&mut client, 5, false);
    requests(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: seq });
    answer(&mut client, seq, 0);
    handle_event(&mut client, deliver(1, &[1]));
    client.link_restored(client.now);
    assert!(asks_to_resume(&mut client));
    // Deliveries 2 to 4 went to other consumers while the node could not be reached.
    let resumed = QueueEvent::Resumed {
        consumer: CONSUMER,
        next: 5,
    };
    handle_event(&mut client, resumed);
    let consumer = CONSUMER;
    let renewed = RequestBody::CreditOneWay { consumer, up_to: 8 };
    assert_eq!(requests(&mut client), [(seq + 1, renewed)]);
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[5, 6]))), [5, 6]);
    // The session has three deliveries now, and continues the count.
    let seq = credit(&mut client, 10, false);
    let expected = RequestBody::Credit {
        consumer,
        up_to: 13,
        drain: false,
    };
    assert_eq!(requests(&mut client), [(seq, expected)]);
    let events = answer(&mut client, seq, 6);
    let answer = credited(3, true);
    assert_eq!(events, [ClientEvent::Answer { seq, answer }]);
}

/// The session sent a later request before it had the answer, which comes again and counts fewer deliveries than arrived.
#[test]
fn lost_answer_of_a_drain_comes_again_after_later_deliveries() {
    let mut client = consuming();
    let drain = credit(&mut client, 5, true);
    let later = credit(&mut client, 8, false);
    requests(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: later });
    handle_event(&mut client, deliver(1, &[1, 2]));
    // The answers are lost with the owner.
    client.link_restored(client.now);
    let repeated: Vec<u64> = requests(&mut client).iter().map(|(seq, _)| *seq).collect();
    assert_eq!(repeated, [drain, later]);
    let resumed = QueueEvent::Resumed {
        consumer: CONSUMER,
        next: 3,
    };
    handle_event(&mut client, resumed);
    assert_eq!(ids(&handle_event(&mut client, deliver(1, &[3]))), [3]);
    let events = answer(&mut client, drain, 0);
    let answer = credited(0, true);
    assert_eq!(events, [ClientEvent::Answer { seq: drain, answer }]);
}

/// A drain ends when the session has taken the messages, which may take a long time.
#[test]
fn drain_does_not_make_the_client_try_another_owner() {
    let mut client = consuming();
    let seq = credit(&mut client, 5, true);
    requests(&mut client);
    handle_event(&mut client, QueueEvent::Applied { up_to: seq });
    let owner = client.owner();
    for _ in 0..20 {
        let Some(at) = client.wake_at() else { break };
        client.tick(at, |_| true);
        while let Some(item) = client.poll_send() {
            assert!(matches!(item, QueueMessage::Resume(_)), "{item:?}");
            let resumed = QueueEvent::Resumed {
                consumer: CONSUMER,
                next: 1,
            };
            handle_event(&mut client, resumed);
        }
    }
    assert_eq!(client.owner(), owner);
    // A new owner is asked for the answer.
    client.owner_is(client.now, Some(NodeId(3)));
    let is_repeated: Vec<u64> = requests(&mut client).iter().map(|r| r.0).collect();
    assert_eq!(is_repeated, [seq]);
}

#[test]
fn activity_is_reported_once_and_only_from_the_owner() {
    let mut client = consuming();
    let activity = |is_active| QueueEvent::Activity {
        consumer: CONSUMER,
        is_active,
    };
    let owner = client.owner().unwrap_or(THERE);
    let reported = |is_active| {
        [ClientEvent::Activity {
            consumer: CONSUMER,
            is_active,
            owner,
        }]
    };
    assert_eq!(handle_event(&mut client, activity(false)), reported(false));
    assert_eq!(handle_event(&mut client, activity(false)), []);
    assert_eq!(handle_event(&mut client, activity(true)), reported(true));
    let mut events = Vec::new();
    let now = client.now;
    client.event(now, NodeId(77), activity(false), &mut events);
    assert_eq!(events, []);
}
