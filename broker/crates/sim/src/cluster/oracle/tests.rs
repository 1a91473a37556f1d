//! Tests of each rule.

use super::super::tracked_message::ReadMessage;
use super::*;

const HOLDER: Holder = Holder {
    connection: 1,
    channel: 1,
    consumer: 1,
};
const DELIVERY: Delivery = first_to(HOLDER);

/// The first delivery to a holder.
const fn first_to(to: Holder) -> Delivery {
    Delivery { to, tag: 1 }
}

fn oracle(treatment: QueueTreatment) -> Oracle {
    let mut oracle = Oracle::new(vec![QueuePlan {
        name: "q".to_owned(),
        quorum: true,
        treatment,
    }]);
    oracle.faults_until = Time::ZERO;
    oracle
}

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// A message that is published and confirmed at the second of its number.
fn publish(oracle: &mut Oracle, number: u32) -> MessageId {
    let id = MessageId::new(1, number);
    oracle.sent(at(number.into()), id, 0);
    oracle.confirmed(at(number.into()), id).expect("accepted");
    id
}

fn read(id: MessageId) -> ReadMessage {
    ReadMessage {
        id,
        attempts: 0,
        acquired: 0,
        died: false,
    }
}

fn deliver(
    oracle: &mut Oracle,
    second: u64,
    id: MessageId,
    redelivered: bool,
) -> Result<(), String> {
    oracle.delivered(at(second), read(id), 0, DELIVERY, redelivered)
}

#[test]
fn confirmed_message_is_owed_until_settled() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    assert_eq!(oracle.owed(at(2)).0, 1);
    deliver(&mut oracle, 2, id, false).expect("first delivery");
    assert_eq!(oracle.owed(at(2)).0, 1);
    oracle.settled(at(3), id, DELIVERY).expect("accepted");
    assert_eq!(oracle.owed(at(3)).0, 0);
    oracle.channel_ended_by_client(at(30), |_| true);
    deliver(&mut oracle, 4, id, true).expect("a lost acknowledgement is allowed");
    assert_eq!(oracle.owed(at(4)).0, 1);
}

#[test]
fn only_messages_of_one_priority_keep_their_order() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let ids: Vec<MessageId> = (1..=3).map(|n| publish(&mut oracle, n)).collect();
    let levels: Vec<u8> = ids.iter().map(|id| id.level()).collect();
    assert_eq!(levels, [31, 31, 0]);
    deliver(&mut oracle, 4, ids[2], false).expect("a lower priority");
    deliver(&mut oracle, 4, ids[1], false).expect("a higher priority");
    assert!(deliver(&mut oracle, 4, ids[0], false).is_err(), "order");
}

#[test]
fn violation_of_each_delivery_rule_is_reported() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    deliver(&mut oracle, 3, second, false).expect("first delivery");
    assert!(deliver(&mut oracle, 3, first, false).is_err(), "order");
    assert!(deliver(&mut oracle, 4, second, true).is_err(), "twice");
    oracle
        .requeued(at(4), second, DELIVERY, false)
        .expect("accepted");
    assert!(
        deliver(&mut oracle, 5, second, false).is_err(),
        "the redelivered flag is required"
    );
    deliver(&mut oracle, 5, second, true).expect("requeued");
    oracle.settled(at(6), second, DELIVERY).expect("accepted");
    oracle
        .settlement_known(at(7), NodeId(1), &[(second, DELIVERY)])
        .expect("accepted");
    oracle.channel_ended_by_client(at(30), |_| true);
    assert!(
        deliver(&mut oracle, 8, second, true).is_err(),
        "settled messages must not return"
    );
    assert!(
        deliver(&mut oracle, 8, MessageId::new(1, 9), false).is_err(),
        "unknown messages must not arrive"
    );
    assert!(oracle.confirmed(at(9), second).is_err(), "confirmed twice");
}

#[test]
fn only_the_broker_takes_a_message_from_a_client() {
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let mut oracle = oracle(QueueTreatment::Plain);
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [first, second] {
        deliver(&mut oracle, 3, id, false).expect("first delivery");
    }
    let again = oracle.delivered(at(4), read(first), 0, first_to(other), true);
    again.expect("the client's channel may have ended");
    oracle
        .check_double_deliveries(at(5))
        .expect("the client may learn of the end of its channel yet");
    assert!(
        oracle.check_double_deliveries(at(9)).is_err(),
        "the client's channel did not end"
    );
    oracle.channel_ended_by_broker(at(5), |h| h == HOLDER);
    oracle
        .check_double_deliveries(at(9))
        .expect("the end of the channel explains it");

    deliver(&mut oracle, 10, second, true).expect("it returned with the channel");
    oracle.channel_ended_by_client(at(30), |h| h == HOLDER);
    oracle
        .delivered(at(11), read(second), 0, first_to(other), true)
        .expect("it returned to the queue");
    oracle
        .check_double_deliveries(at(19))
        .expect("requeued first");
}

#[test]
fn deletion_explains_loss_of_publishes_shortly_after_it() {
    let mut oracle = oracle(QueueTreatment::Recreated);
    let deletion = oracle.window_opened(at(1), 0);
    oracle.window_closed(at(2), deletion);
    for (number, after) in [(1, 1), (2, 900)] {
        let id = MessageId::new(1, number);
        oracle.sent(at(2) + Duration::from_millis(after), id, 0);
        oracle.confirmed(at(4), id).expect("accepted");
    }
    assert_eq!(oracle.owed(at(9)).0, 1, "the second message is owed");
}

#[test]
fn deletion_explains_loss_of_publishes_of_a_cut_off_node() {
    let mut oracle = oracle(QueueTreatment::Recreated);
    let deletion = oracle.window_opened(at(0), 0);
    oracle.record_fault(at(1));
    oracle.window_closed(at(2), deletion);
    oracle.record_fault(at(4));
    publish(&mut oracle, 7);
    oracle.record_fault(at(20));
    publish(&mut oracle, 21);
    assert_eq!(oracle.owed(at(30)).0, 1, "the second message is owed");
}

#[test]
fn settlement_after_node_was_given_up_is_not_known() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    deliver(&mut oracle, 2, id, false).expect("first delivery");
    oracle.given_up(at(3), NodeId(2), NodeId(1));
    oracle.settled(at(4), id, DELIVERY).expect("accepted");
    let answer = oracle.settlement_known(at(5), NodeId(1), &[(id, DELIVERY)]);
    answer.expect("accepted");
    deliver(&mut oracle, 6, id, true).expect("it had returned to the queue");
}

#[test]
fn new_leader_takes_back_messages_of_unreachable_nodes() {
    for (reachable_at, is_known) in [(Some(2), true), (Some(7), false), (None, false)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        oracle.given_up(at(1), NodeId(3), NodeId(1));
        if reachable_at == Some(2) {
            oracle.reachable_again(at(2), NodeId(3), NodeId(1));
        }
        // Another node, which reaches the client's node, leads the queue.
        let id = publish(&mut oracle, 4);
        deliver(&mut oracle, 5, id, false).expect("first delivery");
        oracle.settled(at(6), id, DELIVERY).expect("accepted");
        if reachable_at == Some(7) {
            oracle.reachable_again(at(7), NodeId(3), NodeId(1));
        }
        let answer = oracle.settlement_known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("accepted");
        assert_eq!(oracle.known_settled == 1, is_known, "{reachable_at:?}");
    }
}

#[test]
fn messages_of_a_paused_machine_may_be_taken_back() {
    for (paused_machine, is_known) in [(1, false), (2, true)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.machine_paused(at(3), NodeId(paused_machine), Duration::from_secs(4));
        oracle.given_up(at(5), NodeId(2), NodeId(1));
        oracle.reachable_again(at(5), NodeId(2), NodeId(1));
        // The queue has a leader all the time.
        publish(&mut oracle, 6);
        oracle.record_fault(at(7));
        deliver(&mut oracle, 7, id, false).expect("first delivery");
        oracle.settled(at(7), id, DELIVERY).expect("accepted");
        let answer = oracle.settlement_known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("accepted");
        assert_eq!(oracle.known_settled == 1, is_known, "{paused_machine}");
        let again = deliver(&mut oracle, 9, id, true);
        assert_eq!(again.is_err(), is_known, "{again:?}");
    }
}

#[test]
fn settlement_lost_with_a_classic_queues_node_is_not_known() {
    let mut oracle = oracle(QueueTreatment::Plain);
    oracle.queues[0].quorum = false;
    let id = publish(&mut oracle, 1);
    deliver(&mut oracle, 2, id, false).expect("first delivery");
    oracle.settled(at(3), id, DELIVERY).expect("accepted");
    oracle.machine_ended(at(3), NodeId(2));
    let answer = oracle.settlement_known(at(8), NodeId(1), &[(id, DELIVERY)]);
    answer.expect("accepted");
    deliver(&mut oracle, 9, id, true).expect("the settlement was lost");
}

#[test]
fn purge_explains_loss_of_earlier_messages() {
    let mut oracle = oracle(QueueTreatment::Purged);
    publish(&mut oracle, 1);
    let purge = oracle.window_opened(at(2), 0);
    publish(&mut oracle, 3);
    oracle.window_closed(at(4), purge);
    publish(&mut oracle, 5);
    assert_eq!(oracle.owed(at(6)).0, 1);
}

#[test]
fn length_limit_explains_loss_beyond_the_limit() {
    let mut oracle = oracle(QueueTreatment::MaxLength(2));
    publish(&mut oracle, 1);
    publish(&mut oracle, 2);
    assert_eq!(oracle.owed(at(9)).0, 2);
    publish(&mut oracle, 3);
    assert_eq!(oracle.owed(at(9)).0, 0);
}

#[test]
fn purge_does_not_explain_loss_of_unacknowledged_messages() {
    let mut oracle = oracle(QueueTreatment::Purged);
    let (unacknowledged, ready) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [unacknowledged, ready] {
        deliver(&mut oracle, 3, id, false).expect("first delivery");
    }
    oracle
        .requeued(at(4), ready, DELIVERY, false)
        .expect("accepted");
    let purge = oracle.window_opened(at(5), 0);
    oracle.window_closed(at(6), purge);
    oracle
        .requeued(at(7), unacknowledged, DELIVERY, false)
        .expect("accepted");
    let owed = oracle.owed(at(9)).1;
    assert!(
        owed.iter().map(|(id, _)| *id).eq([unacknowledged]),
        "{owed:?}"
    );
}

/// The first return shows that the queue counts.
#[test]
fn only_a_failure_that_the_client_reports_counts() {
    for (has_failed, attempts, returns, is_allowed) in [
        (false, 0, 2, true),
        (false, 1, 2, false),
        (true, 1, 2, true),
        (true, 0, 2, false),
        // Another consumer had it in between, and its connection has ended.
        (false, 1, 3, true),
    ] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        let counted = |attempts, acquired| ReadMessage {
            attempts,
            acquired,
            ..read(id)
        };
        let first = oracle.delivered(at(2), counted(0, 1), 0, DELIVERY, true);
        first.expect("first delivery");
        oracle
            .requeued(at(3), id, DELIVERY, has_failed)
            .expect("accepted");
        oracle
            .requeue_known(at(4), &[(id, DELIVERY)])
            .expect("accepted");
        let next = oracle.delivered(at(5), counted(attempts, returns), 0, DELIVERY, true);
        assert_eq!(
            next.is_ok(),
            is_allowed,
            "{has_failed} {attempts} of {returns}: {next:?}"
        );
    }
}

#[test]
fn requeued_message_comes_before_new_ones() {
    for queue_knows in [true, false] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let (requeued, new) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
        deliver(&mut oracle, 3, requeued, false).expect("first delivery");
        oracle
            .requeued(at(4), requeued, DELIVERY, false)
            .expect("accepted");
        if queue_knows {
            oracle
                .requeue_known(at(5), &[(requeued, DELIVERY)])
                .expect("accepted");
        }
        deliver(&mut oracle, 7, new, false)
            .expect("the other message may be on its way to a client");
        assert_eq!(
            deliver(&mut oracle, 9, requeued, true).is_err(),
            queue_knows
        );
    }
}

#[test]
fn rejected_message_is_owed_by_the_dead_letter_queue() {
    let mut oracle = oracle(QueueTreatment::DeadLettering);
    oracle.queues.push(QueuePlan {
        name: DEAD_LETTER_QUEUE.to_owned(),
        quorum: true,
        treatment: QueueTreatment::Plain,
    });
    let from_dead_letter_queue = |id| ReadMessage {
        died: true,
        ..read(id)
    };
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [first, second] {
        deliver(&mut oracle, 3, id, false).expect("first delivery");
    }
    let not_rejected = oracle.delivered(at(3), from_dead_letter_queue(second), 1, DELIVERY, false);
    assert!(not_rejected.is_err(), "no client rejected it");
    oracle.rejected(at(4), first, DELIVERY).expect("accepted");
    oracle.settled(at(4), second, DELIVERY).expect("accepted");
    oracle
        .settlement_known(at(5), NodeId(1), &[(first, DELIVERY), (second, DELIVERY)])
        .expect("accepted");
    assert_eq!(oracle.owed(at(6)).0, 1);
    assert!(
        deliver(&mut oracle, 6, first, true).is_err(),
        "settled messages must not return"
    );
    oracle
        .delivered(at(7), from_dead_letter_queue(first), 1, DELIVERY, false)
        .expect("dead-lettered");
    oracle.settled(at(8), first, DELIVERY).expect("accepted");
    assert_eq!(oracle.owed(at(9)).0, 0);
}

/// A node that was cut off continues to send deliveries that its queue took back and gave to another client.
#[test]
fn crossed_delivery_may_be_settled_by_the_earlier_receiver() {
    let (earlier, later) = (
        HOLDER,
        Holder {
            connection: 2,
            ..HOLDER
        },
    );
    for (quorum, had_fault, attempts, expected) in [
        (false, true, [0, 0], 0),
        (false, false, [0, 0], 1),
        (true, true, [1, 0], 0),
        (true, true, [0, 1], 1),
    ] {
        let mut oracle = oracle(QueueTreatment::Plain);
        oracle.queues[0].quorum = quorum;
        let id = publish(&mut oracle, 1);
        if had_fault {
            oracle.record_fault(at(4));
        }
        for ((second, holder), attempts) in [(3, later), (4, earlier)].into_iter().zip(attempts) {
            let read = ReadMessage {
                attempts,
                ..read(id)
            };
            let delivered = oracle.delivered(at(second), read, 0, first_to(holder), true);
            delivered.expect("the client's channel may have ended");
        }
        oracle.channel_ended_by_client(at(5), |h| h == earlier);
        oracle
            .settled(at(5), id, first_to(later))
            .expect("accepted");
        let case = (quorum, had_fault, attempts);
        assert_eq!(oracle.owed(at(6)).0, expected, "{case:?}");
    }
}

#[test]
fn dead_letter_queue_may_have_copies_after_a_fault() {
    for (faults_until, is_copy_allowed) in [(3, false), (4, true)] {
        let mut oracle = oracle(QueueTreatment::DeadLettering);
        oracle.queues.push(QueuePlan {
            name: DEAD_LETTER_QUEUE.to_owned(),
            quorum: true,
            treatment: QueueTreatment::Plain,
        });
        let id = publish(&mut oracle, 1);
        deliver(&mut oracle, 2, id, false).expect("first delivery");
        oracle.faults_until = at(faults_until);
        oracle.rejected(at(4), id, DELIVERY).expect("accepted");
        let dead_lettered = ReadMessage {
            died: true,
            ..read(id)
        };
        for (second, is_allowed) in [(8, true), (9, is_copy_allowed)] {
            let delivered = oracle.delivered(at(second), dead_lettered, 1, DELIVERY, false);
            assert_eq!(delivered.is_ok(), is_allowed, "{delivered:?}");
            oracle.settled(at(second), id, DELIVERY).expect("accepted");
        }
    }
}

/// The queue considered the client's node down and served the client again: only the last delivery counts.
#[test]
fn only_the_last_of_several_deliveries_counts() {
    let second = Delivery { tag: 2, ..DELIVERY };
    for (requeued, settled, expected) in [(DELIVERY, second, 0), (second, DELIVERY, 1)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.record_fault(at(4));
        deliver(&mut oracle, 2, id, false).expect("first delivery");
        let again = ReadMessage {
            attempts: 1,
            ..read(id)
        };
        let delivered = oracle.delivered(at(3), again, 0, second, true);
        delivered.expect("its node was considered down");
        oracle
            .requeued(at(5), id, requeued, false)
            .expect("accepted");
        oracle.settled(at(6), id, settled).expect("accepted");
        assert_eq!(oracle.owed(at(7)).0, expected, "{requeued:?}");
    }
}

#[test]
fn answer_about_an_earlier_delivery_does_not_count_for_the_last() {
    let second = Delivery { tag: 2, ..DELIVERY };
    for (answered, is_settled) in [(DELIVERY, false), (second, true)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.record_fault(at(4));
        deliver(&mut oracle, 2, id, false).expect("first delivery");
        let delivered = oracle.delivered(at(3), read(id), 0, second, true);
        delivered.expect("its node was considered down");
        oracle.settled(at(5), id, second).expect("accepted");
        let answer = oracle.settlement_known(at(6), NodeId(1), &[(id, answered)]);
        answer.expect("accepted");
        assert_eq!(oracle.known_settled == 1, is_settled, "{answered:?}");
    }
}

#[test]
fn delivery_older_than_the_settlement_may_arrive_late() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let with_attempts = |attempts| ReadMessage {
        attempts,
        ..read(id)
    };
    // Its node is paused with the first delivery to HOLDER on its way.
    oracle.record_fault(at(2));
    let second = oracle.delivered(at(3), with_attempts(1), 0, first_to(other), true);
    second.expect("taken back from a node that was considered down");
    oracle
        .settled(at(4), id, first_to(other))
        .expect("accepted");
    let answer = oracle.settlement_known(at(5), NodeId(2), &[(id, first_to(other))]);
    answer.expect("accepted");
    assert_eq!(oracle.known_settled, 1);
    deliver(&mut oracle, 6, id, false).expect("the node continues");
    assert_eq!(oracle.owed(at(6)).0, 0, "the message stays settled");
    let third = oracle.delivered(at(7), with_attempts(2), 0, DELIVERY, true);
    assert!(third.is_err(), "the queue knew the settlement");
}

#[test]
fn log_of_a_new_leader_may_take_back_what_it_sends() {
    // The message is sent at the second of its number. The node is considered down in second 3, and the queue has no
    // leader until second 7. `passed` is another message: its publish in the first second was confirmed in the second
    // one, which is before that or together with all entries that the new leader found.
    let cases = [
        (1, None, false),
        (1, Some((2, 5)), false),
        (1, Some((4, 5)), true),
        (1, Some((4, 7)), false),
        (4, None, false),
    ];
    for (number, passed, is_settled) in cases {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = MessageId::new(1, number);
        oracle.sent(at(number.into()), id, 0);
        oracle.given_up(at(3), NodeId(2), NodeId(1));
        oracle.reachable_again(at(3), NodeId(2), NodeId(1));
        if let Some((sent, confirmed)) = passed {
            let other = MessageId::new(2, 1);
            oracle.sent(at(sent), other, 0);
            oracle.confirmed(at(confirmed), other).expect("accepted");
        }
        oracle.record_fault(at(7));
        deliver(&mut oracle, 7, id, false).expect("first delivery");
        oracle.settled(at(8), id, DELIVERY).expect("accepted");
        let answer = oracle.settlement_known(at(9), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("accepted");
        assert_eq!(oracle.known_settled == 1, is_settled, "{number} {passed:?}");
        let again = deliver(&mut oracle, 10, id, true);
        assert_eq!(again.is_err(), is_settled, "{again:?}");
    }
}

#[test]
fn delayed_message_must_not_come_before_its_time() {
    let plan = DelayPlan {
        returns: DelayedReturns::Failed,
        min: Duration::from_secs(3),
        max: Duration::from_secs(5),
    };
    // Failures before, whether this is one, and the seconds that the message must wait.
    for (attempts, has_failed, wait) in [(0, true, 3), (1, true, 5), (7, true, 5), (1, false, 0)] {
        for (after, jumped) in [(wait, false), (wait.max(1) - 1, false), (0, true)] {
            let mut oracle = oracle(QueueTreatment::DelayedRetry(plan));
            oracle.has_all_features = true;
            let id = publish(&mut oracle, 1);
            let first = ReadMessage {
                attempts,
                acquired: attempts,
                ..read(id)
            };
            (oracle.delivered(at(2), first, 0, DELIVERY, attempts > 0)).expect("accepted");
            (oracle.requeued(at(10), id, DELIVERY, has_failed)).expect("accepted");
            if jumped {
                oracle.record_clock_jump();
            }
            let again = ReadMessage {
                attempts: attempts + u32::from(has_failed),
                acquired: attempts + 1,
                ..read(id)
            };
            let result = oracle.delivered(at(10 + after), again, 0, DELIVERY, true);
            let is_allowed = after >= wait || jumped;
            assert_eq!(result.is_ok(), is_allowed, "{attempts} {after}: {result:?}");
        }
    }
}

/// The broker processes a requeue behind a request without an answer later, or not at all if the connection ends.
#[test]
fn end_of_the_channel_may_take_the_place_of_a_requeue() {
    let plan = DelayPlan {
        returns: DelayedReturns::Returned,
        min: Duration::from_secs(3),
        max: Duration::from_secs(5),
    };
    // Whether the queue is known to have processed the requeue, and the connection that ends.
    for (is_known, ended, is_allowed) in [
        (false, None, false),
        (false, Some(2), false),
        (false, Some(1), true),
        (true, Some(1), false),
    ] {
        let mut oracle = oracle(QueueTreatment::DelayedRetry(plan));
        oracle.has_all_features = true;
        let id = publish(&mut oracle, 1);
        deliver(&mut oracle, 2, id, false).expect("first delivery");
        (oracle.requeued(at(10), id, DELIVERY, false)).expect("accepted");
        if is_known {
            (oracle.requeue_known(at(10), &[(id, DELIVERY)])).expect("accepted");
        }
        if let Some(ended) = ended {
            oracle.channel_ended_by_client(at(10), |of| of.connection == ended);
        }
        let failed = ReadMessage {
            attempts: 1,
            acquired: 1,
            ..read(id)
        };
        let again = oracle.delivered(at(11), failed, 0, DELIVERY, true);
        assert_eq!(again.is_ok(), is_allowed, "{is_known} {ended:?}: {again:?}");
    }
}

#[test]
fn client_must_not_keep_a_message_beyond_the_timeout() {
    for (settles, is_late) in [(false, true), (true, false)] {
        let mut oracle = oracle(QueueTreatment::ConsumerTimeout(Duration::from_secs(3)));
        oracle.has_all_features = true;
        let id = publish(&mut oracle, 1);
        deliver(&mut oracle, 2, id, false).expect("accepted");
        oracle.check_timeouts(at(9)).expect("not late yet");
        if settles {
            oracle.settled(at(9), id, DELIVERY).expect("accepted");
        }
        assert_eq!(oracle.check_timeouts(at(11)).is_err(), is_late);
    }
}

/// Two messages of one group and stream, with equal priority.
fn two_of_a_group() -> [MessageId; 2] {
    let mut all = (1..1000).map(|number| MessageId::new(1, number));
    let first = all.find(|id| id.group().is_some()).expect("most have one");
    let is_like_first = |id: &MessageId| (id.group(), id.level()) == (first.group(), first.level());
    let second = all.find(is_like_first).expect("there are few groups");
    [first, second]
}

#[test]
fn group_stays_with_a_consumer_that_has_its_messages() {
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    for settles in [true, false] {
        let mut oracle = oracle(QueueTreatment::Grouped);
        let [first, second] = two_of_a_group();
        for id in [first, second] {
            oracle.sent(at(1), id, 0);
        }
        deliver(&mut oracle, 2, first, false).expect("accepted");
        if settles {
            oracle.settled(at(3), first, DELIVERY).expect("accepted");
        }
        oracle
            .delivered(at(4), read(second), 0, first_to(other), false)
            .expect("the channel may have ended");
        let checked = oracle.check_double_deliveries(at(20));
        assert_eq!(checked.is_ok(), settles, "{checked:?}");
    }
}

#[test]
fn messages_of_a_group_come_in_order_to_all_consumers() {
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let mut oracle = oracle(QueueTreatment::Grouped);
    let [first, second] = two_of_a_group();
    for id in [first, second] {
        oracle.sent(at(1), id, 0);
    }
    deliver(&mut oracle, 2, second, false).expect("accepted");
    oracle.settled(at(3), second, DELIVERY).expect("accepted");
    let late = oracle.delivered(at(4), read(first), 0, first_to(other), false);
    assert!(late.unwrap_err().contains("of the same group"));
}

#[test]
fn returned_message_comes_before_new_ones_of_its_group() {
    let mut oracle = oracle(QueueTreatment::Grouped);
    let [first, second] = two_of_a_group();
    for id in [first, second] {
        oracle.sent(at(1), id, 0);
    }
    deliver(&mut oracle, 2, first, false).expect("accepted");
    oracle
        .requeued(at(3), first, DELIVERY, false)
        .expect("accepted");
    let known = [(first, DELIVERY)];
    oracle.requeue_known(at(4), &known).expect("accepted");
    let early = deliver(&mut oracle, 6, second, false);
    assert!(early.unwrap_err().contains("of its group, which was new"));
}
