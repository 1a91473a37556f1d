//! The rules, one by one.

use super::super::letter::Read;
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

fn ledger(character: Character) -> Ledger {
    let mut ledger = Ledger::new(vec![QueuePlan {
        name: "q".to_owned(),
        quorum: true,
        character,
    }]);
    ledger.disturbed = Time::ZERO;
    ledger
}

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// Published and confirmed in the second of its number.
fn publish(ledger: &mut Ledger, number: u32) -> LetterId {
    let id = LetterId::new(1, number);
    ledger.sent(at(number.into()), id, 0);
    ledger.confirmed(at(number.into()), id).expect("known");
    id
}

fn read(id: LetterId) -> Read {
    Read {
        id,
        attempts: 0,
        died: false,
    }
}

fn deliver(ledger: &mut Ledger, second: u64, id: LetterId, again: bool) -> Result<(), String> {
    ledger.delivered(at(second), read(id), 0, DELIVERY, again)
}

#[test]
fn a_confirmed_message_is_owed_until_it_is_settled() {
    let mut ledger = ledger(Character::Plain);
    let id = publish(&mut ledger, 1);
    assert_eq!(ledger.owed(at(2)).0, 1);
    deliver(&mut ledger, 2, id, false).expect("its first time");
    assert_eq!(ledger.owed(at(2)).0, 1);
    ledger.settled(at(3), id, DELIVERY).expect("known");
    assert_eq!(ledger.owed(at(3)).0, 0);
    ledger.released(at(30), |_| true);
    deliver(&mut ledger, 4, id, true).expect("the acknowledgement was lost");
    assert_eq!(ledger.owed(at(4)).0, 1);
}

#[test]
fn what_must_not_be_is_told() {
    let mut ledger = ledger(Character::Plain);
    let (first, second) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
    deliver(&mut ledger, 3, second, false).expect("its first time");
    assert!(deliver(&mut ledger, 3, first, false).is_err(), "order");
    assert!(deliver(&mut ledger, 4, second, true).is_err(), "twice");
    ledger.given_back(at(4), second, DELIVERY).expect("known");
    assert!(deliver(&mut ledger, 5, second, false).is_err(), "the flag");
    deliver(&mut ledger, 5, second, true).expect("given back");
    ledger.settled(at(6), second, DELIVERY).expect("known");
    ledger
        .known(at(7), NodeId(1), &[(second, DELIVERY)])
        .expect("known");
    ledger.released(at(30), |_| true);
    assert!(
        deliver(&mut ledger, 8, second, true).is_err(),
        "resurrected"
    );
    assert!(
        deliver(&mut ledger, 8, LetterId::new(1, 9), false).is_err(),
        "invented"
    );
    assert!(ledger.confirmed(at(9), second).is_err(), "confirmed twice");
}

#[test]
fn only_the_broker_may_take_a_message_from_a_client() {
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let mut ledger = ledger(Character::Plain);
    let (first, second) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
    for id in [first, second] {
        deliver(&mut ledger, 3, id, false).expect("its first time");
    }
    let again = ledger.delivered(at(4), read(first), 0, first_to(other), true);
    again.expect("its client's channel may have ended");
    ledger
        .doubled(at(5))
        .expect("the client may hear of it yet");
    assert!(ledger.doubled(at(9)).is_err(), "it heard of nothing");
    ledger.ended_by_broker(at(5), |h| h == HOLDER);
    ledger.doubled(at(9)).expect("that explains it");

    deliver(&mut ledger, 10, second, true).expect("it went back with the channel");
    ledger.released(at(30), |h| h == HOLDER);
    ledger
        .delivered(at(11), read(second), 0, first_to(other), true)
        .expect("back");
    ledger.doubled(at(19)).expect("given back first");
}

#[test]
fn other_nodes_hear_of_a_deletion_a_moment_later() {
    let mut ledger = ledger(Character::Recreated);
    let deletion = ledger.opened(at(1), 0);
    ledger.closed(at(2), deletion);
    for (number, after) in [(1, 1), (2, 900)] {
        let id = LetterId::new(1, number);
        ledger.sent(at(2) + Duration::from_millis(after), id, 0);
        ledger.confirmed(at(4), id).expect("known");
    }
    assert_eq!(ledger.owed(at(9)).0, 1, "the second is owed");
}

#[test]
fn a_deletion_that_a_cut_off_node_has_not_heard_of_may_take_what_it_sends() {
    let mut ledger = ledger(Character::Recreated);
    let deletion = ledger.opened(at(0), 0);
    ledger.disturb(at(1));
    ledger.closed(at(2), deletion);
    ledger.disturb(at(4));
    publish(&mut ledger, 7);
    ledger.disturb(at(20));
    publish(&mut ledger, 21);
    assert_eq!(ledger.owed(at(30)).0, 1, "the second is owed");
}

#[test]
fn a_settling_that_came_after_its_node_was_given_up_is_not_known() {
    let mut ledger = ledger(Character::Plain);
    let id = publish(&mut ledger, 1);
    deliver(&mut ledger, 2, id, false).expect("its first time");
    ledger.given_up(at(3), NodeId(2), NodeId(1));
    ledger.settled(at(4), id, DELIVERY).expect("known");
    let known = ledger.known(at(5), NodeId(1), &[(id, DELIVERY)]);
    known.expect("known");
    deliver(&mut ledger, 6, id, true).expect("it had gone back");
}

#[test]
fn who_comes_to_lead_a_queue_takes_back_what_is_where_it_hears_nobody() {
    for (heard, is_known) in [(Some(2), true), (Some(7), false), (None, false)] {
        let mut ledger = ledger(Character::Plain);
        ledger.given_up(at(1), NodeId(3), NodeId(1));
        if heard == Some(2) {
            ledger.heard(at(2), NodeId(3), NodeId(1));
        }
        // Led by another node, which hears it.
        let id = publish(&mut ledger, 4);
        deliver(&mut ledger, 5, id, false).expect("its first time");
        ledger.settled(at(6), id, DELIVERY).expect("known");
        if heard == Some(7) {
            ledger.heard(at(7), NodeId(3), NodeId(1));
        }
        let answer = ledger.known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("known");
        assert_eq!(ledger.gone == 1, is_known, "{heard:?}");
    }
}

#[test]
fn what_waited_where_a_machine_stood_still_may_have_been_taken_back_meanwhile() {
    for (stood_still, known) in [(1, false), (2, true)] {
        let mut ledger = ledger(Character::Plain);
        let id = publish(&mut ledger, 1);
        ledger.stands_still(at(3), NodeId(stood_still), Duration::from_secs(4));
        ledger.given_up(at(5), NodeId(2), NodeId(1));
        ledger.heard(at(5), NodeId(2), NodeId(1));
        // The queue has a leader all the time.
        publish(&mut ledger, 6);
        ledger.disturb(at(7));
        deliver(&mut ledger, 7, id, false).expect("its first time");
        ledger.settled(at(7), id, DELIVERY).expect("known");
        let answer = ledger.known(at(8), NodeId(1), &[(id, DELIVERY)]);
        answer.expect("known");
        assert_eq!(ledger.gone == 1, known, "{stood_still}");
        let again = deliver(&mut ledger, 9, id, true);
        assert_eq!(again.is_err(), known, "{again:?}");
    }
}

#[test]
fn a_settling_that_a_classic_queues_node_took_along_is_not_known() {
    let mut ledger = ledger(Character::Plain);
    ledger.queues[0].quorum = false;
    let id = publish(&mut ledger, 1);
    deliver(&mut ledger, 2, id, false).expect("its first time");
    ledger.settled(at(3), id, DELIVERY).expect("known");
    ledger.ended(at(3), NodeId(2));
    let known = ledger.known(at(8), NodeId(1), &[(id, DELIVERY)]);
    known.expect("known");
    deliver(&mut ledger, 9, id, true).expect("the queue had not heard");
}

#[test]
fn a_purge_accounts_for_what_it_may_have_taken() {
    let mut ledger = ledger(Character::Purged);
    publish(&mut ledger, 1);
    let purge = ledger.opened(at(2), 0);
    publish(&mut ledger, 3);
    ledger.closed(at(4), purge);
    publish(&mut ledger, 5);
    assert_eq!(ledger.owed(at(6)).0, 1);
}

#[test]
fn a_limit_accounts_for_what_it_must_have_dropped() {
    let mut ledger = ledger(Character::Short(2));
    publish(&mut ledger, 1);
    publish(&mut ledger, 2);
    assert_eq!(ledger.owed(at(9)).0, 2);
    publish(&mut ledger, 3);
    assert_eq!(ledger.owed(at(9)).0, 0);
}

#[test]
fn a_purge_does_not_take_what_a_client_has() {
    let mut ledger = ledger(Character::Purged);
    let (held, ready) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
    for id in [held, ready] {
        deliver(&mut ledger, 3, id, false).expect("its first time");
    }
    ledger.given_back(at(4), ready, DELIVERY).expect("known");
    let purge = ledger.opened(at(5), 0);
    ledger.closed(at(6), purge);
    ledger.given_back(at(7), held, DELIVERY).expect("known");
    let owed = ledger.owed(at(9)).1;
    assert!(owed.iter().map(|(id, _)| *id).eq([held]), "{owed:?}");
}

#[test]
fn what_was_given_back_goes_before_what_is_new() {
    for known in [true, false] {
        let mut ledger = ledger(Character::Plain);
        let (back, new) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
        deliver(&mut ledger, 3, back, false).expect("its first time");
        ledger.given_back(at(4), back, DELIVERY).expect("known");
        if known {
            ledger
                .known_back(at(5), &[(back, DELIVERY)])
                .expect("known");
        }
        deliver(&mut ledger, 7, new, false).expect("the other may be on its way to somebody");
        assert_eq!(deliver(&mut ledger, 9, back, true).is_err(), known);
    }
}

#[test]
fn what_was_rejected_in_a_mortal_queue_is_owed_by_the_grave() {
    let mut ledger = ledger(Character::Mortal);
    ledger.queues.push(QueuePlan {
        name: GRAVE.to_owned(),
        quorum: true,
        character: Character::Plain,
    });
    let from_grave = |id| Read {
        died: true,
        ..read(id)
    };
    let (first, second) = (publish(&mut ledger, 1), publish(&mut ledger, 2));
    for id in [first, second] {
        deliver(&mut ledger, 3, id, false).expect("its first time");
    }
    let early = ledger.delivered(at(3), from_grave(second), 1, DELIVERY, false);
    assert!(early.is_err(), "nobody rejected it");
    ledger.rejected(at(4), first, DELIVERY).expect("known");
    ledger.settled(at(4), second, DELIVERY).expect("known");
    ledger
        .known(at(5), NodeId(1), &[(first, DELIVERY), (second, DELIVERY)])
        .expect("known");
    assert_eq!(ledger.owed(at(6)).0, 1);
    assert!(deliver(&mut ledger, 6, first, true).is_err(), "resurrected");
    ledger
        .delivered(at(7), from_grave(first), 1, DELIVERY, false)
        .expect("from the grave");
    ledger.settled(at(8), first, DELIVERY).expect("known");
    assert_eq!(ledger.owed(at(9)).0, 0);
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
        let mut ledger = ledger(Character::Plain);
        ledger.queues[0].quorum = quorum;
        let id = publish(&mut ledger, 1);
        if disturbed {
            ledger.disturb(at(4));
        }
        for ((second, holder), attempts) in [(3, new), (4, stale)].into_iter().zip(attempts) {
            let read = Read {
                attempts,
                ..read(id)
            };
            let arrives = ledger.delivered(at(second), read, 0, first_to(holder), true);
            arrives.expect("its client's channel may have ended");
        }
        ledger.released(at(5), |h| h == stale);
        ledger.settled(at(5), id, first_to(new)).expect("known");
        let what = (quorum, disturbed, attempts);
        assert_eq!(ledger.owed(at(6)).0, owed, "{what:?}");
    }
}

#[test]
fn a_grave_may_have_copies_of_what_died_while_something_was_wrong() {
    for (disturbed, allowed) in [(3, false), (4, true)] {
        let mut ledger = ledger(Character::Mortal);
        ledger.queues.push(QueuePlan {
            name: GRAVE.to_owned(),
            quorum: true,
            character: Character::Plain,
        });
        let id = publish(&mut ledger, 1);
        deliver(&mut ledger, 2, id, false).expect("its first time");
        ledger.disturbed = at(disturbed);
        ledger.rejected(at(4), id, DELIVERY).expect("known");
        let dead = Read {
            died: true,
            ..read(id)
        };
        for (second, fine) in [(8, true), (9, allowed)] {
            let came = ledger.delivered(at(second), dead, 1, DELIVERY, false);
            assert_eq!(came.is_ok(), fine, "{came:?}");
            ledger.settled(at(second), id, DELIVERY).expect("known");
        }
    }
}

/// A queue took a client's node to be down, and served the client again: only the last of its deliveries counts.
#[test]
fn of_deliveries_of_a_message_to_one_client_the_last_counts() {
    let later = Delivery { tag: 2, ..DELIVERY };
    for (given_back, settled, owed) in [(DELIVERY, later, 0), (later, DELIVERY, 1)] {
        let mut ledger = ledger(Character::Plain);
        let id = publish(&mut ledger, 1);
        ledger.disturb(at(4));
        deliver(&mut ledger, 2, id, false).expect("its first time");
        let again = Read {
            attempts: 1,
            ..read(id)
        };
        let came = ledger.delivered(at(3), again, 0, later, true);
        came.expect("its node was given up");
        ledger.given_back(at(5), id, given_back).expect("known");
        ledger.settled(at(6), id, settled).expect("known");
        assert_eq!(ledger.owed(at(7)).0, owed, "{given_back:?}");
    }
}

#[test]
fn an_answer_about_an_earlier_delivery_says_nothing_of_the_last() {
    let later = Delivery { tag: 2, ..DELIVERY };
    for (asked_of, gone) in [(DELIVERY, false), (later, true)] {
        let mut ledger = ledger(Character::Plain);
        let id = publish(&mut ledger, 1);
        ledger.disturb(at(4));
        deliver(&mut ledger, 2, id, false).expect("its first time");
        let came = ledger.delivered(at(3), read(id), 0, later, true);
        came.expect("its node was given up");
        ledger.settled(at(5), id, later).expect("known");
        let known = ledger.known(at(6), NodeId(1), &[(id, asked_of)]);
        known.expect("known");
        assert_eq!(ledger.gone == 1, gone, "{asked_of:?}");
    }
}

#[test]
fn a_delivery_from_before_the_settling_may_come_late_and_a_newer_one_may_not() {
    let mut ledger = ledger(Character::Plain);
    let id = publish(&mut ledger, 1);
    let other = Holder {
        connection: 2,
        ..HOLDER
    };
    let with = |attempts| Read {
        attempts,
        ..read(id)
    };
    // Its node stands still with the first delivery to HOLDER on its way.
    ledger.disturb(at(2));
    let second = ledger.delivered(at(3), with(1), 0, first_to(other), true);
    second.expect("taken back from a node that was given up");
    ledger.settled(at(4), id, first_to(other)).expect("known");
    let known = ledger.known(at(5), NodeId(2), &[(id, first_to(other))]);
    known.expect("known");
    assert_eq!(ledger.gone, 1);
    deliver(&mut ledger, 6, id, false).expect("the node goes on");
    assert_eq!(ledger.owed(at(6)).0, 0, "it is gone all the same");
    let newer = ledger.delivered(at(7), with(2), 0, DELIVERY, true);
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
        let mut ledger = ledger(Character::Plain);
        let id = LetterId::new(1, number);
        ledger.sent(at(number.into()), id, 0);
        ledger.given_up(at(3), NodeId(2), NodeId(1));
        ledger.heard(at(3), NodeId(2), NodeId(1));
        if let Some((sent, confirmed)) = done {
            let other = LetterId::new(2, 1);
            ledger.sent(at(sent), other, 0);
            ledger.confirmed(at(confirmed), other).expect("known");
        }
        ledger.disturb(at(7));
        deliver(&mut ledger, 7, id, false).expect("its first time");
        ledger.settled(at(8), id, DELIVERY).expect("known");
        let known = ledger.known(at(9), NodeId(1), &[(id, DELIVERY)]);
        known.expect("known");
        assert_eq!(ledger.gone == 1, gone, "{number} {done:?}");
        let again = deliver(&mut ledger, 10, id, true);
        assert_eq!(again.is_err(), gone, "{again:?}");
    }
}
