//! The rules, one by one.

use super::super::tracked_message::ReadMessage;
use super::*;

const HOLDER: Holder = Holder {
    connection: 1,
    channel: 1,
    consumer: 1,
};
const DELIVERY: Delivery = first_to(HOLDER);

/// The first delivery to a client.
const fn first_to(to: Holder) -> Delivery {
    Delivery { to, tag: 1 }
}

fn oracle(character: QueueTreatment) -> Oracle {
    let mut oracle = Oracle::new(vec![QueuePlan {
        name: "q".to_owned(),
        quorum: true,
        character,
    }]);
    oracle.disturbed = Time::ZERO;
    oracle
}

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// Published and confirmed in the second of its number.
fn publish(oracle: &mut Oracle, number: u32) -> MessageId {
    let id = MessageId::new(1, number);
    oracle.sent(at(number.into()), id, 0);
    oracle.confirmed(at(number.into()), id).expect("known");
    id
}

fn read(id: MessageId) -> ReadMessage {
    ReadMessage {
        id,
        attempts: 0,
        died: false,
    }
}

fn deliver(oracle: &mut Oracle, second: u64, id: MessageId, again: bool) -> Result<(), String> {
    oracle.delivered(at(second), read(id), 0, DELIVERY, again)
}

#[test]
fn a_confirmed_message_is_owed_until_it_is_settled() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    assert_eq!(oracle.owed(at(2)).0, 1);
    deliver(&mut oracle, 2, id, false).expect("its first time");
    assert_eq!(oracle.owed(at(2)).0, 1);
    oracle.settled(at(3), id, DELIVERY).expect("known");
    assert_eq!(oracle.owed(at(3)).0, 0);
    oracle.released(at(30), |_| true);
    deliver(&mut oracle, 4, id, true).expect("the acknowledgement was lost");
    assert_eq!(oracle.owed(at(4)).0, 1);
}

#[test]
fn what_must_not_be_is_told() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    deliver(&mut oracle, 3, second, false).expect("its first time");
    assert!(deliver(&mut oracle, 3, first, false).is_err(), "order");
    assert!(deliver(&mut oracle, 4, second, true).is_err(), "twice");
    oracle.given_back(at(4), second, DELIVERY).expect("known");
    assert!(deliver(&mut oracle, 5, second, false).is_err(), "the flag");
    deliver(&mut oracle, 5, second, true).expect("given back");
    oracle.settled(at(6), second, DELIVERY).expect("known");
    oracle
        .known(at(7), NodeId(1), &[(second, DELIVERY)])
        .expect("known");
    oracle.released(at(30), |_| true);
    assert!(
        deliver(&mut oracle, 8, second, true).is_err(),
        "resurrected"
    );
    assert!(
        deliver(&mut oracle, 8, MessageId::new(1, 9), false).is_err(),
        "invented"
    );
    assert!(oracle.confirmed(at(9), second).is_err(), "confirmed twice");
}

#[test]
fn only_the_broker_may_take_a_message_from_a_client() {
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let mut oracle = oracle(QueueTreatment::Plain);
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [first, second] {
        deliver(&mut oracle, 3, id, false).expect("its first time");
    }
    let again = oracle.delivered(at(4), read(first), 0, first_to(other), true);
    again.expect("its client's channel may have ended");
    oracle
        .doubled(at(5))
        .expect("the client may hear of it yet");
    assert!(oracle.doubled(at(9)).is_err(), "it heard of nothing");
    oracle.ended_by_broker(at(5), |h| h == HOLDER);
    oracle.doubled(at(9)).expect("that explains it");

    deliver(&mut oracle, 10, second, true).expect("it went back with the channel");
    oracle.released(at(30), |h| h == HOLDER);
    oracle
        .delivered(at(11), read(second), 0, first_to(other), true)
        .expect("back");
    oracle.doubled(at(19)).expect("given back first");
}

#[test]
fn other_nodes_hear_of_a_deletion_a_moment_later() {
    let mut oracle = oracle(QueueTreatment::Recreated);
    let deletion = oracle.opened(at(1), 0);
    oracle.closed(at(2), deletion);
    for (number, after) in [(1, 1), (2, 900)] {
        let id = MessageId::new(1, number);
        oracle.sent(at(2) + Duration::from_millis(after), id, 0);
        oracle.confirmed(at(4), id).expect("known");
    }
    assert_eq!(oracle.owed(at(9)).0, 1, "the second is owed");
}

#[test]
fn a_deletion_that_a_cut_off_node_has_not_heard_of_may_take_what_it_sends() {
    let mut oracle = oracle(QueueTreatment::Recreated);
    let deletion = oracle.opened(at(0), 0);
    oracle.disturb(at(1));
    oracle.closed(at(2), deletion);
    oracle.disturb(at(4));
    publish(&mut oracle, 7);
    oracle.disturb(at(20));
    publish(&mut oracle, 21);
    assert_eq!(oracle.owed(at(30)).0, 1, "the second is owed");
}

#[test]
fn a_settling_that_came_after_its_node_was_given_up_is_not_known() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    deliver(&mut oracle, 2, id, false).expect("its first time");
    oracle.given_up(at(3), NodeId(2), NodeId(1));
    oracle.settled(at(4), id, DELIVERY).expect("known");
    let known = oracle.known(at(5), NodeId(1), &[(id, DELIVERY)]);
    known.expect("known");
    deliver(&mut oracle, 6, id, true).expect("it had gone back");
}

#[test]
fn who_comes_to_lead_a_queue_takes_back_what_is_where_it_hears_nobody() {
    for (heard, is_known) in [(Some(2), true), (Some(7), false), (None, false)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        oracle.given_up(at(1), NodeId(3), NodeId(1));
        if heard == Some(2) {
            oracle.heard(at(2), NodeId(3), NodeId(1));
        }
        // Led by another node, which hears it.
        let id = publish(&mut oracle, 4);
        deliver(&mut oracle, 5, id, false).expect("its first time");
        oracle.settled(at(6), id, DELIVERY).expect("known");
        if heard == Some(7) {
            oracle.heard(at(7), NodeId(3), NodeId(1));
        }
        let answer = oracle.known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("known");
        assert_eq!(oracle.gone == 1, is_known, "{heard:?}");
    }
}

#[test]
fn what_waited_where_a_machine_stood_still_may_have_been_taken_back_meanwhile() {
    for (stood_still, known) in [(1, false), (2, true)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.stands_still(at(3), NodeId(stood_still), Duration::from_secs(4));
        oracle.given_up(at(5), NodeId(2), NodeId(1));
        oracle.heard(at(5), NodeId(2), NodeId(1));
        // The queue has a leader all the time.
        publish(&mut oracle, 6);
        oracle.disturb(at(7));
        deliver(&mut oracle, 7, id, false).expect("its first time");
        oracle.settled(at(7), id, DELIVERY).expect("known");
        let answer = oracle.known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("known");
        assert_eq!(oracle.gone == 1, known, "{stood_still}");
        let again = deliver(&mut oracle, 9, id, true);
        assert_eq!(again.is_err(), known, "{again:?}");
    }
}

#[test]
fn a_settling_that_a_classic_queues_node_took_along_is_not_known() {
    let mut oracle = oracle(QueueTreatment::Plain);
    oracle.queues[0].quorum = false;
    let id = publish(&mut oracle, 1);
    deliver(&mut oracle, 2, id, false).expect("its first time");
    oracle.settled(at(3), id, DELIVERY).expect("known");
    oracle.ended(at(3), NodeId(2));
    let known = oracle.known(at(8), NodeId(1), &[(id, DELIVERY)]);
    known.expect("known");
    deliver(&mut oracle, 9, id, true).expect("the queue had not heard");
}

#[test]
fn a_purge_accounts_for_what_it_may_have_taken() {
    let mut oracle = oracle(QueueTreatment::Purged);
    publish(&mut oracle, 1);
    let purge = oracle.opened(at(2), 0);
    publish(&mut oracle, 3);
    oracle.closed(at(4), purge);
    publish(&mut oracle, 5);
    assert_eq!(oracle.owed(at(6)).0, 1);
}

#[test]
fn a_limit_accounts_for_what_it_must_have_dropped() {
    let mut oracle = oracle(QueueTreatment::Short(2));
    publish(&mut oracle, 1);
    publish(&mut oracle, 2);
    assert_eq!(oracle.owed(at(9)).0, 2);
    publish(&mut oracle, 3);
    assert_eq!(oracle.owed(at(9)).0, 0);
}

#[test]
fn a_purge_does_not_take_what_a_client_has() {
    let mut oracle = oracle(QueueTreatment::Purged);
    let (held, ready) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [held, ready] {
        deliver(&mut oracle, 3, id, false).expect("its first time");
    }
    oracle.given_back(at(4), ready, DELIVERY).expect("known");
    let purge = oracle.opened(at(5), 0);
    oracle.closed(at(6), purge);
    oracle.given_back(at(7), held, DELIVERY).expect("known");
    let owed = oracle.owed(at(9)).1;
    assert!(owed.iter().map(|(id, _)| *id).eq([held]), "{owed:?}");
}

#[test]
fn what_was_given_back_goes_before_what_is_new() {
    for known in [true, false] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let (back, new) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
        deliver(&mut oracle, 3, back, false).expect("its first time");
        oracle.given_back(at(4), back, DELIVERY).expect("known");
        if known {
            oracle
                .known_back(at(5), &[(back, DELIVERY)])
                .expect("known");
        }
        deliver(&mut oracle, 7, new, false).expect("the other may be on its way to somebody");
        assert_eq!(deliver(&mut oracle, 9, back, true).is_err(), known);
    }
}

#[test]
fn what_was_rejected_in_a_mortal_queue_is_owed_by_the_grave() {
    let mut oracle = oracle(QueueTreatment::Mortal);
    oracle.queues.push(QueuePlan {
        name: GRAVE.to_owned(),
        quorum: true,
        character: QueueTreatment::Plain,
    });
    let from_grave = |id| ReadMessage {
        died: true,
        ..read(id)
    };
    let (first, second) = (publish(&mut oracle, 1), publish(&mut oracle, 2));
    for id in [first, second] {
        deliver(&mut oracle, 3, id, false).expect("its first time");
    }
    let early = oracle.delivered(at(3), from_grave(second), 1, DELIVERY, false);
    assert!(early.is_err(), "nobody rejected it");
    oracle.rejected(at(4), first, DELIVERY).expect("known");
    oracle.settled(at(4), second, DELIVERY).expect("known");
    oracle
        .known(at(5), NodeId(1), &[(first, DELIVERY), (second, DELIVERY)])
        .expect("known");
    assert_eq!(oracle.owed(at(6)).0, 1);
    assert!(deliver(&mut oracle, 6, first, true).is_err(), "resurrected");
    oracle
        .delivered(at(7), from_grave(first), 1, DELIVERY, false)
        .expect("from the grave");
    oracle.settled(at(8), first, DELIVERY).expect("known");
    assert_eq!(oracle.owed(at(9)).0, 0);
}

/// A node that was cut off goes on sending what its queue has taken back and given to somebody else.
#[test]
fn what_crossed_on_its_way_may_be_settled_by_who_had_it_before() {
    let (stale, new) = (
        HOLDER,
        Holder {
            connection: 2,
            ..HOLDER
        },
    );
    for (quorum, disturbed, attempts, owed) in [
        (false, true, [0, 0], 0),
        (false, false, [0, 0], 1),
        (true, true, [1, 0], 0),
        (true, true, [0, 1], 1),
    ] {
        let mut oracle = oracle(QueueTreatment::Plain);
        oracle.queues[0].quorum = quorum;
        let id = publish(&mut oracle, 1);
        if disturbed {
            oracle.disturb(at(4));
        }
        for ((second, holder), attempts) in [(3, new), (4, stale)].into_iter().zip(attempts) {
            let read = ReadMessage {
                attempts,
                ..read(id)
            };
            let arrives = oracle.delivered(at(second), read, 0, first_to(holder), true);
            arrives.expect("its client's channel may have ended");
        }
        oracle.released(at(5), |h| h == stale);
        oracle.settled(at(5), id, first_to(new)).expect("known");
        let what = (quorum, disturbed, attempts);
        assert_eq!(oracle.owed(at(6)).0, owed, "{what:?}");
    }
}

#[test]
fn a_grave_may_have_copies_of_what_died_while_something_was_wrong() {
    for (disturbed, allowed) in [(3, false), (4, true)] {
        let mut oracle = oracle(QueueTreatment::Mortal);
        oracle.queues.push(QueuePlan {
            name: GRAVE.to_owned(),
            quorum: true,
            character: QueueTreatment::Plain,
        });
        let id = publish(&mut oracle, 1);
        deliver(&mut oracle, 2, id, false).expect("its first time");
        oracle.disturbed = at(disturbed);
        oracle.rejected(at(4), id, DELIVERY).expect("known");
        let dead = ReadMessage {
            died: true,
            ..read(id)
        };
        for (second, fine) in [(8, true), (9, allowed)] {
            let came = oracle.delivered(at(second), dead, 1, DELIVERY, false);
            assert_eq!(came.is_ok(), fine, "{came:?}");
            oracle.settled(at(second), id, DELIVERY).expect("known");
        }
    }
}

/// A queue took a client's node to be down, and served the client again: only the last of its deliveries counts.
#[test]
fn of_deliveries_of_a_message_to_one_client_the_last_counts() {
    let later = Delivery { tag: 2, ..DELIVERY };
    for (given_back, settled, owed) in [(DELIVERY, later, 0), (later, DELIVERY, 1)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.disturb(at(4));
        deliver(&mut oracle, 2, id, false).expect("its first time");
        let again = ReadMessage {
            attempts: 1,
            ..read(id)
        };
        let came = oracle.delivered(at(3), again, 0, later, true);
        came.expect("its node was given up");
        oracle.given_back(at(5), id, given_back).expect("known");
        oracle.settled(at(6), id, settled).expect("known");
        assert_eq!(oracle.owed(at(7)).0, owed, "{given_back:?}");
    }
}

#[test]
fn an_answer_about_an_earlier_delivery_says_nothing_of_the_last() {
    let later = Delivery { tag: 2, ..DELIVERY };
    for (asked_of, gone) in [(DELIVERY, false), (later, true)] {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = publish(&mut oracle, 1);
        oracle.disturb(at(4));
        deliver(&mut oracle, 2, id, false).expect("its first time");
        let came = oracle.delivered(at(3), read(id), 0, later, true);
        came.expect("its node was given up");
        oracle.settled(at(5), id, later).expect("known");
        let known = oracle.known(at(6), NodeId(1), &[(id, asked_of)]);
        known.expect("known");
        assert_eq!(oracle.gone == 1, gone, "{asked_of:?}");
    }
}

#[test]
fn a_delivery_from_before_the_settling_may_come_late_and_a_newer_one_may_not() {
    let mut oracle = oracle(QueueTreatment::Plain);
    let id = publish(&mut oracle, 1);
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let with = |attempts| ReadMessage {
        attempts,
        ..read(id)
    };
    // Its node stands still with the first delivery to HOLDER on its way.
    oracle.disturb(at(2));
    let second = oracle.delivered(at(3), with(1), 0, first_to(other), true);
    second.expect("taken back from a node that was given up");
    oracle.settled(at(4), id, first_to(other)).expect("known");
    let known = oracle.known(at(5), NodeId(2), &[(id, first_to(other))]);
    known.expect("known");
    assert_eq!(oracle.gone, 1);
    deliver(&mut oracle, 6, id, false).expect("the node goes on");
    assert_eq!(oracle.owed(at(6)).0, 0, "it is gone all the same");
    let newer = oracle.delivered(at(7), with(2), 0, DELIVERY, true);
    assert!(newer.is_err(), "the queue knew that it was settled");
}

#[test]
fn what_a_new_leader_sends_may_be_taken_back_by_what_stood_in_its_log() {
    // Sent in the second of the number; the node is given up in the third, and nobody leads the queue until the seventh. A message sent
    // in the first second of `done` was confirmed in the other one: before that, or with all that the new leader found.
    let cases = [
        (1, None, false),
        (1, Some((2, 5)), false),
        (1, Some((4, 5)), true),
        (1, Some((4, 7)), false),
        (4, None, false),
    ];
    for (number, done, gone) in cases {
        let mut oracle = oracle(QueueTreatment::Plain);
        let id = MessageId::new(1, number);
        oracle.sent(at(number.into()), id, 0);
        oracle.given_up(at(3), NodeId(2), NodeId(1));
        oracle.heard(at(3), NodeId(2), NodeId(1));
        if let Some((sent, confirmed)) = done {
            let other = MessageId::new(2, 1);
            oracle.sent(at(sent), other, 0);
            oracle.confirmed(at(confirmed), other).expect("known");
        }
        oracle.disturb(at(7));
        deliver(&mut oracle, 7, id, false).expect("its first time");
        oracle.settled(at(8), id, DELIVERY).expect("known");
        let known = oracle.known(at(9), NodeId(1), &[(id, DELIVERY)]);
        known.expect("known");
        assert_eq!(oracle.gone == 1, gone, "{number} {done:?}");
        let again = deliver(&mut oracle, 10, id, true);
        assert_eq!(again.is_err(), gone, "{again:?}");
    }
}
