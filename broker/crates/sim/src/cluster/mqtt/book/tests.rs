//! The rules, one by one.

use super::*;

const ALL: Knows<'static> = &|_, _| Some(QueueId(1));
const NOBODY: Knows<'static> = &|_, _| None;
/// One of the same name that is gone.
const EARLIER: Knows<'static> = &|_, _| Some(QueueId(2));
/// A device with a lasting session, one with a clean one.
const LASTING: usize = 1;
const CLEAN: usize = 2;

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// Both subscribe to a filter in second 1.
fn book(filter: &str, qos: Qos) -> Book {
    let mut book = Book::default();
    book.join(LASTING, Some("queue".to_owned()));
    book.join(CLEAN, None);
    for device in [LASTING, CLEAN] {
        book.asked(at(1), device, filter, qos);
        book.subscribed(at(1), device, filter, ALL);
    }
    book.disturbed = at(100);
    book
}

fn id(number: u32) -> PostId {
    PostId::new(1, number)
}

/// Published in the second of its number, and acknowledged.
fn post(book: &mut Book, number: u32, knows: Knows<'_>) -> PostId {
    let id = id(number);
    book.sent(at(number.into()), id, ("t/1", Qos::ExactlyOnce), knows);
    book.acknowledged(at(number.into()), id);
    id
}

fn comes(book: &mut Book, device: usize, id: PostId, epoch: u64) -> Result<(), String> {
    comes_with(book, device, id, (Qos::ExactlyOnce, epoch, false))
}

fn comes_with(
    book: &mut Book,
    device: usize,
    id: PostId,
    (qos, epoch, retained): (Qos, u64, bool),
) -> Result<(), String> {
    let arrival = Arrival {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos,
        packet_id: 1,
        retained,
    };
    book.arrived(at(1000), device, &arrival, epoch)
}

#[test]
fn an_acknowledged_message_is_owed_to_sessions_that_last_until_it_comes() {
    let mut book = book("t/+", Qos::ExactlyOnce);
    let first = post(&mut book, 2, ALL);
    assert_eq!(book.owes().0, 1);
    assert_eq!(comes(&mut book, CLEAN, first, 0), Ok(()));
    assert_eq!(book.owes().0, 1);
    assert_eq!(comes(&mut book, LASTING, first, 0), Ok(()));
    assert_eq!(book.owes().0, 0);
    // A node that has not heard of the subscription, while something is wrong; and while nothing is.
    post(&mut book, 3, NOBODY);
    post(&mut book, 33, EARLIER);
    assert_eq!(book.owes().0, 0);
    book.disturbed = Time::ZERO;
    post(&mut book, 4, NOBODY);
    assert_eq!(book.owes().0, 1);
    // What the publisher could not be told of counts as it was sent last.
    book.disturbed = at(100);
    book.sent_again(at(80), id(4), NOBODY);
    assert_eq!(book.owes().0, 0);
    post(&mut book, 5, ALL);
    book.leaves(LASTING, "t/+");
    assert_eq!(book.owes().0, 0);
    assert!(comes(&mut book, LASTING, PostId::new(7, 7), 0).is_err());
}

#[test]
fn with_qos_2_a_message_comes_once_where_the_session_goes_on() {
    let mut book = book("t/+", Qos::ExactlyOnce);
    let one = post(&mut book, 2, ALL);
    assert_eq!(comes(&mut book, LASTING, one, 0), Ok(()));
    assert!(comes(&mut book, LASTING, one, 0).is_err());
    // At another place its memory is not.
    assert_eq!(comes(&mut book, LASTING, one, 1), Ok(()));
    let other = post(&mut book, 3, ALL);
    assert_eq!(comes(&mut book, LASTING, other, 1), Ok(()));
    book.sent_again(at(80), other, ALL);
    assert_eq!(comes(&mut book, LASTING, other, 1), Ok(()));
}

#[test]
fn publisher_whose_session_goes_on_is_heard_once() {
    let mut book = book("t/+", Qos::ExactlyOnce);
    book.disturbed = at(10);
    // Something was wrong since it was sent first.
    let one = post(&mut book, 2, ALL);
    book.sent_again_in_session(at(80), one, ALL);
    assert_eq!(comes(&mut book, LASTING, one, 0), Ok(()));
    assert_eq!(comes(&mut book, LASTING, one, 0), Ok(()));
    let two = post(&mut book, 20, ALL);
    book.sent_again_in_session(at(80), two, ALL);
    assert_eq!(comes(&mut book, LASTING, two, 0), Ok(()));
    assert!(comes(&mut book, LASTING, two, 0).is_err_and(|e| e.contains("twice")));
}

#[test]
fn a_publishers_order_is_kept_and_sessions_end() {
    let mut book = book("t/+", Qos::ExactlyOnce);
    let (one, two) = (post(&mut book, 2, ALL), post(&mut book, 3, ALL));
    assert_eq!(comes(&mut book, LASTING, two, 0), Ok(()));
    let late = comes(&mut book, LASTING, one, 0);
    assert!(late.is_err_and(|e| e.contains("after number 3")));
    // Another connection goes on with the order.
    let (three, four) = (post(&mut book, 4, ALL), post(&mut book, 60, ALL));
    assert_eq!(comes(&mut book, LASTING, four, 1), Ok(()));
    assert!(comes(&mut book, LASTING, three, 1).is_err_and(|e| e.contains("after number 60")));
    // What is sent again is late for who may not have been known to its publisher's node, and for nobody else.
    let (five, six) = (post(&mut book, 61, NOBODY), post(&mut book, 62, ALL));
    let (seven, eight) = (post(&mut book, 63, ALL), post(&mut book, 64, ALL));
    assert_eq!(comes(&mut book, LASTING, six, 1), Ok(()));
    for id in [five, seven] {
        book.sent_again(at(80), id, ALL);
    }
    assert_eq!(comes(&mut book, LASTING, five, 1), Ok(()));
    assert_eq!(comes(&mut book, LASTING, eight, 1), Ok(()));
    assert!(comes(&mut book, LASTING, seven, 1).is_err_and(|e| e.contains("after number 64")));
    // Another session: what was acknowledged before it began is not for it.
    book.session_over(LASTING);
    assert!(comes(&mut book, LASTING, two, 0).is_err_and(|e| e.contains("never asked")));
    book.asked(at(10), LASTING, "t/+", Qos::ExactlyOnce);
    assert!(comes(&mut book, LASTING, two, 0).is_err_and(|e| e.contains("was acknowledged")));
    let retained = (Qos::ExactlyOnce, 0, true);
    assert_eq!(comes_with(&mut book, LASTING, two, retained), Ok(()));
}

#[test]
fn what_is_sent_again_may_be_late_for_a_session_that_has_begun_since() {
    let mut book = book("t/+", Qos::ExactlyOnce);
    let two = post(&mut book, 2, ALL);
    book.session_over(LASTING);
    book.asked(at(10), LASTING, "t/+", Qos::ExactlyOnce);
    book.subscribed(at(10), LASTING, "t/+", ALL);
    let later = post(&mut book, 13, ALL);
    book.sent_again(at(80), two, ALL);
    assert_eq!(comes(&mut book, LASTING, later, 1), Ok(()));
    assert_eq!(comes(&mut book, LASTING, two, 1), Ok(()));
}

#[test]
fn what_was_left_on_a_connection_of_a_node_that_stood_still_comes_late_and_in_order() {
    let zero = (Qos::AtMostOnce, 1, false);
    for (wrong_until, fine) in [(5, true), (4, false)] {
        let mut book = book("t/+", Qos::ExactlyOnce);
        for number in 2..5 {
            let at = at(number.into());
            book.sent(at, id(number), ("t/1", Qos::AtMostOnce), ALL);
        }
        book.disturbed = at(wrong_until);
        for number in [2, 3] {
            book.left_behind(at(5), 1, id(number));
        }
        assert_eq!(comes_with(&mut book, LASTING, id(4), zero), Ok(()));
        let late = comes_with(&mut book, LASTING, id(3), zero);
        assert_eq!(late.is_ok(), fine, "{late:?}");
        let before = comes_with(&mut book, LASTING, id(2), zero);
        assert!(before.is_err(), "a connection is read in its order");
    }
}

#[test]
fn one_of_a_group_has_a_message() {
    let mut book = book("$share/g/t/+", Qos::AtLeastOnce);
    let one = post(&mut book, 2, ALL);
    // A member without a queue may have taken it along.
    assert_eq!(book.owes().0, 0);
    let once = (Qos::AtLeastOnce, 0, false);
    assert_eq!(comes_with(&mut book, CLEAN, one, once), Ok(()));
    assert!(comes_with(&mut book, LASTING, one, once).is_err());
    book.session_over(CLEAN);
    book.disturbed = at(1);
    book.accepted(at(2), CLEAN);
    let two = post(&mut book, 3, ALL);
    assert_eq!(book.owes().0, 1);
    assert_eq!(comes_with(&mut book, LASTING, two, once), Ok(()));
    assert_eq!(book.owes().0, 0);
    assert!(book.has_heard(LASTING, "$share/g/t/+", at(3)));
}

#[test]
fn a_group_may_lose_what_came_to_a_connection_that_its_client_had_left() {
    let mut book = book("$share/g/t/+", Qos::AtLeastOnce);
    book.disturbed = at(1);
    book.session_over(CLEAN);
    post(&mut book, 3, ALL);
    assert_eq!(book.owes().0, 0, "the connection may not have ended");
    book.accepted(at(4), CLEAN);
    post(&mut book, 5, ALL);
    assert_eq!(book.owes().0, 1);
    // Nothing is wrong until second 9: by then it has ended everywhere.
    book.asked(at(6), CLEAN, "$share/g/t/+", Qos::AtLeastOnce);
    book.session_over(CLEAN);
    book.disturbed = at(9);
    book.accepted(at(7), CLEAN);
    post(&mut book, 8, ALL);
    post(&mut book, 10, ALL);
    assert_eq!(book.owes().0, 1, "it took along what was owed before");
}

#[test]
fn a_will_comes_when_its_client_breaks_off_and_not_after_goodbye() {
    let mut book = book("t/+", Qos::AtLeastOnce);
    let once = (Qos::AtLeastOnce, 0, false);
    book.willed(at(2), id(2), "t/1");
    assert_eq!(book.owes().0, 0);
    book.will_is_due(at(3), id(2), ALL);
    assert_eq!(book.owes().0, 1);
    assert_eq!(comes_with(&mut book, LASTING, id(2), once), Ok(()));
    book.willed(at(4), id(4), "t/1");
    book.will_is_cancelled(at(4), id(4));
    // Whether goodbye was heard is open when something is wrong.
    assert_eq!(comes_with(&mut book, LASTING, id(4), once), Ok(()));
    book.disturbed = at(3);
    assert!(comes_with(&mut book, CLEAN, id(4), once).is_err());
}

#[test]
fn a_will_of_a_dead_node_may_come_to_who_subscribes_later_and_never_after_goodbye() {
    let mut book = book("t/#", Qos::AtLeastOnce);
    book.disturbed = at(0);
    book.willed(at(2), id(2), "t/1");
    book.will_becomes_due(at(3), id(2), ALL);
    assert_eq!(book.owes().0, 1);
    book.session_over(CLEAN);
    book.asked(at(5), CLEAN, "t/#", Qos::AtLeastOnce);
    book.subscribed(at(5), CLEAN, "t/#", ALL);
    let one = (Qos::AtLeastOnce, 1, false);
    assert_eq!(comes_with(&mut book, CLEAN, id(2), one), Ok(()));
    assert_eq!(comes_with(&mut book, LASTING, id(2), one), Ok(()));
    assert_eq!(book.owes().0, 0);

    book.willed(at(6), id(6), "t/1");
    book.will_is_forsworn(id(6));
    book.disturbed = at(8);
    assert!(comes_with(&mut book, CLEAN, id(6), one).is_err());
}

#[test]
fn a_queue_that_is_bound_is_owed_what_its_nodes_know_and_marks_what_it_gives_again() {
    const BOUND: usize = 3;
    let arrival = |id: PostId| Arrival {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos: Qos::AtLeastOnce,
        packet_id: 0,
        retained: false,
    };
    let mut book = Book::default();
    book.join_bound(BOUND, "queue");
    book.asked(at(1), BOUND, "t/+", Qos::AtLeastOnce);
    book.subscribed(at(1), BOUND, "t/+", ALL);
    // Its answer does not say that other nodes know.
    book.disturbed = Time::ZERO;
    post(&mut book, 2, NOBODY);
    assert_eq!(book.owes().0, 0);
    let (three, four) = (post(&mut book, 3, ALL), post(&mut book, 4, ALL));
    assert_eq!(book.owes().0, 2);
    let mut comes = |id, marked| book.tapped(at(1000), BOUND, &arrival(id), marked);
    assert_eq!((comes(four, false), comes(three, false)), (Ok(()), Ok(())));
    assert_eq!(comes(four, true), Ok(()));
    assert!(comes(four, false).is_err_and(|e| e.contains("not marked")));
    assert_eq!(book.owes().0, 0);
    // Of what its client published twice there may be two.
    book.sent_again(at(10), three, ALL);
    assert_eq!(book.tapped(at(1000), BOUND, &arrival(three), false), Ok(()));
}
