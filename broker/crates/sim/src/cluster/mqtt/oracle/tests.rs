//! The rules, one by one.

use super::*;

const ALL: QueueLookup<'static> = &|_, _| Some(QueueId(1));
const NOBODY: QueueLookup<'static> = &|_, _| None;
/// One of the same name that is gone.
const EARLIER: QueueLookup<'static> = &|_, _| Some(QueueId(2));
/// A device with a lasting session, one with a clean one.
const LASTING: usize = 1;
const CLEAN: usize = 2;

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// Both subscribe to a filter in second 1.
fn mqtt_oracle(filter: &str, qos: Qos) -> MqttOracle {
    let mut mqtt_oracle = MqttOracle::default();
    mqtt_oracle.join(LASTING, Some("queue".to_owned()));
    mqtt_oracle.join(CLEAN, None);
    for mqtt_client in [LASTING, CLEAN] {
        mqtt_oracle.asked(at(1), mqtt_client, filter, qos);
        mqtt_oracle.subscribed(at(1), mqtt_client, filter, ALL);
    }
    mqtt_oracle.disturbed = at(100);
    mqtt_oracle
}

fn id(number: u32) -> MessageId {
    MessageId::new(1, number)
}

/// Published in the second of its number, and acknowledged.
fn post(mqtt_oracle: &mut MqttOracle, number: u32, knows: QueueLookup<'_>) -> MessageId {
    let id = id(number);
    mqtt_oracle.sent(at(number.into()), id, ("t/1", Qos::ExactlyOnce), knows);
    mqtt_oracle.acknowledged(at(number.into()), id);
    id
}

fn comes(
    mqtt_oracle: &mut MqttOracle,
    mqtt_client: usize,
    id: MessageId,
    epoch: u64,
) -> Result<(), String> {
    comes_with(
        mqtt_oracle,
        mqtt_client,
        id,
        (Qos::ExactlyOnce, epoch, false),
    )
}

fn comes_with(
    mqtt_oracle: &mut MqttOracle,
    mqtt_client: usize,
    id: MessageId,
    (qos, epoch, retained): (Qos, u64, bool),
) -> Result<(), String> {
    let arrival = ReceivedPublish {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos,
        packet_id: 1,
        retained,
    };
    mqtt_oracle.arrived(at(1000), mqtt_client, &arrival, epoch)
}

#[test]
fn an_acknowledged_message_is_owed_to_sessions_that_last_until_it_comes() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let first = post(&mut mqtt_oracle, 2, ALL);
    assert_eq!(mqtt_oracle.owes().0, 1);
    assert_eq!(comes(&mut mqtt_oracle, CLEAN, first, 0), Ok(()));
    assert_eq!(mqtt_oracle.owes().0, 1);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, first, 0), Ok(()));
    assert_eq!(mqtt_oracle.owes().0, 0);
    // A node that has not heard of the subscription, while something is wrong; and while nothing is.
    post(&mut mqtt_oracle, 3, NOBODY);
    post(&mut mqtt_oracle, 33, EARLIER);
    assert_eq!(mqtt_oracle.owes().0, 0);
    mqtt_oracle.disturbed = Time::ZERO;
    post(&mut mqtt_oracle, 4, NOBODY);
    assert_eq!(mqtt_oracle.owes().0, 1);
    // What the publisher could not be told of counts as it was sent last.
    mqtt_oracle.disturbed = at(100);
    mqtt_oracle.sent_again(at(80), id(4), NOBODY);
    assert_eq!(mqtt_oracle.owes().0, 0);
    post(&mut mqtt_oracle, 5, ALL);
    mqtt_oracle.leaves(LASTING, "t/+");
    assert_eq!(mqtt_oracle.owes().0, 0);
    assert!(comes(&mut mqtt_oracle, LASTING, MessageId::new(7, 7), 0).is_err());
}

#[test]
fn with_qos_2_a_message_comes_once_where_the_session_goes_on() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let one = post(&mut mqtt_oracle, 2, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, one, 0), Ok(()));
    assert!(comes(&mut mqtt_oracle, LASTING, one, 0).is_err());
    // At another place its memory is not.
    assert_eq!(comes(&mut mqtt_oracle, LASTING, one, 1), Ok(()));
    let other = post(&mut mqtt_oracle, 3, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, other, 1), Ok(()));
    mqtt_oracle.sent_again(at(80), other, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, other, 1), Ok(()));
}

#[test]
fn publisher_whose_session_goes_on_is_heard_once() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    mqtt_oracle.disturbed = at(10);
    // Something was wrong since it was sent first.
    let one = post(&mut mqtt_oracle, 2, ALL);
    mqtt_oracle.sent_again_in_session(at(80), one, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, one, 0), Ok(()));
    assert_eq!(comes(&mut mqtt_oracle, LASTING, one, 0), Ok(()));
    let two = post(&mut mqtt_oracle, 20, ALL);
    mqtt_oracle.sent_again_in_session(at(80), two, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, two, 0), Ok(()));
    assert!(comes(&mut mqtt_oracle, LASTING, two, 0).is_err_and(|e| e.contains("twice")));
}

#[test]
fn a_publishers_order_is_kept_and_sessions_end() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let (one, two) = (
        post(&mut mqtt_oracle, 2, ALL),
        post(&mut mqtt_oracle, 3, ALL),
    );
    assert_eq!(comes(&mut mqtt_oracle, LASTING, two, 0), Ok(()));
    let late = comes(&mut mqtt_oracle, LASTING, one, 0);
    assert!(late.is_err_and(|e| e.contains("after number 3")));
    // Another connection goes on with the order.
    let (three, four) = (
        post(&mut mqtt_oracle, 4, ALL),
        post(&mut mqtt_oracle, 60, ALL),
    );
    assert_eq!(comes(&mut mqtt_oracle, LASTING, four, 1), Ok(()));
    assert!(
        comes(&mut mqtt_oracle, LASTING, three, 1).is_err_and(|e| e.contains("after number 60"))
    );
    // What is sent again is late for who may not have been known to its publisher's node, and for nobody else.
    let (five, six) = (
        post(&mut mqtt_oracle, 61, NOBODY),
        post(&mut mqtt_oracle, 62, ALL),
    );
    let (seven, eight) = (
        post(&mut mqtt_oracle, 63, ALL),
        post(&mut mqtt_oracle, 64, ALL),
    );
    assert_eq!(comes(&mut mqtt_oracle, LASTING, six, 1), Ok(()));
    for id in [five, seven] {
        mqtt_oracle.sent_again(at(80), id, ALL);
    }
    assert_eq!(comes(&mut mqtt_oracle, LASTING, five, 1), Ok(()));
    assert_eq!(comes(&mut mqtt_oracle, LASTING, eight, 1), Ok(()));
    assert!(
        comes(&mut mqtt_oracle, LASTING, seven, 1).is_err_and(|e| e.contains("after number 64"))
    );
    // Another session: what was acknowledged before it began is not for it.
    mqtt_oracle.session_over(LASTING);
    assert!(comes(&mut mqtt_oracle, LASTING, two, 0).is_err_and(|e| e.contains("never asked")));
    mqtt_oracle.asked(at(10), LASTING, "t/+", Qos::ExactlyOnce);
    assert!(
        comes(&mut mqtt_oracle, LASTING, two, 0).is_err_and(|e| e.contains("was acknowledged"))
    );
    let retained = (Qos::ExactlyOnce, 0, true);
    assert_eq!(comes_with(&mut mqtt_oracle, LASTING, two, retained), Ok(()));
}

#[test]
fn what_is_sent_again_may_be_late_for_a_session_that_has_begun_since() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let two = post(&mut mqtt_oracle, 2, ALL);
    mqtt_oracle.session_over(LASTING);
    mqtt_oracle.asked(at(10), LASTING, "t/+", Qos::ExactlyOnce);
    mqtt_oracle.subscribed(at(10), LASTING, "t/+", ALL);
    let later = post(&mut mqtt_oracle, 13, ALL);
    mqtt_oracle.sent_again(at(80), two, ALL);
    assert_eq!(comes(&mut mqtt_oracle, LASTING, later, 1), Ok(()));
    assert_eq!(comes(&mut mqtt_oracle, LASTING, two, 1), Ok(()));
}

#[test]
fn what_was_left_on_a_connection_of_a_node_that_stood_still_comes_late_and_in_order() {
    let zero = (Qos::AtMostOnce, 1, false);
    for (wrong_until, fine) in [(5, true), (4, false)] {
        let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
        for number in 2..5 {
            let at = at(number.into());
            mqtt_oracle.sent(at, id(number), ("t/1", Qos::AtMostOnce), ALL);
        }
        mqtt_oracle.disturbed = at(wrong_until);
        for number in [2, 3] {
            mqtt_oracle.left_behind(at(5), 1, id(number));
        }
        assert_eq!(comes_with(&mut mqtt_oracle, LASTING, id(4), zero), Ok(()));
        let late = comes_with(&mut mqtt_oracle, LASTING, id(3), zero);
        assert_eq!(late.is_ok(), fine, "{late:?}");
        let before = comes_with(&mut mqtt_oracle, LASTING, id(2), zero);
        assert!(before.is_err(), "a connection is read in its order");
    }
}

#[test]
fn one_of_a_group_has_a_message() {
    let mut mqtt_oracle = mqtt_oracle("$share/g/t/+", Qos::AtLeastOnce);
    let one = post(&mut mqtt_oracle, 2, ALL);
    // A member without a queue may have taken it along.
    assert_eq!(mqtt_oracle.owes().0, 0);
    let once = (Qos::AtLeastOnce, 0, false);
    assert_eq!(comes_with(&mut mqtt_oracle, CLEAN, one, once), Ok(()));
    assert!(comes_with(&mut mqtt_oracle, LASTING, one, once).is_err());
    mqtt_oracle.session_over(CLEAN);
    mqtt_oracle.disturbed = at(1);
    mqtt_oracle.accepted(at(2), CLEAN);
    let two = post(&mut mqtt_oracle, 3, ALL);
    assert_eq!(mqtt_oracle.owes().0, 1);
    assert_eq!(comes_with(&mut mqtt_oracle, LASTING, two, once), Ok(()));
    assert_eq!(mqtt_oracle.owes().0, 0);
    assert!(mqtt_oracle.has_heard(LASTING, "$share/g/t/+", at(3)));
}

#[test]
fn a_group_may_lose_what_came_to_a_connection_that_its_client_had_left() {
    let mut mqtt_oracle = mqtt_oracle("$share/g/t/+", Qos::AtLeastOnce);
    mqtt_oracle.disturbed = at(1);
    mqtt_oracle.session_over(CLEAN);
    post(&mut mqtt_oracle, 3, ALL);
    assert_eq!(mqtt_oracle.owes().0, 0, "the connection may not have ended");
    mqtt_oracle.accepted(at(4), CLEAN);
    post(&mut mqtt_oracle, 5, ALL);
    assert_eq!(mqtt_oracle.owes().0, 1);
    // Nothing is wrong until second 9: by then it has ended everywhere.
    mqtt_oracle.asked(at(6), CLEAN, "$share/g/t/+", Qos::AtLeastOnce);
    mqtt_oracle.session_over(CLEAN);
    mqtt_oracle.disturbed = at(9);
    mqtt_oracle.accepted(at(7), CLEAN);
    post(&mut mqtt_oracle, 8, ALL);
    post(&mut mqtt_oracle, 10, ALL);
    assert_eq!(
        mqtt_oracle.owes().0,
        1,
        "it took along what was owed before"
    );
}

#[test]
fn a_will_comes_when_its_client_breaks_off_and_not_after_goodbye() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::AtLeastOnce);
    let once = (Qos::AtLeastOnce, 0, false);
    mqtt_oracle.willed(at(2), id(2), "t/1");
    assert_eq!(mqtt_oracle.owes().0, 0);
    mqtt_oracle.will_is_due(at(3), id(2), ALL);
    assert_eq!(mqtt_oracle.owes().0, 1);
    assert_eq!(comes_with(&mut mqtt_oracle, LASTING, id(2), once), Ok(()));
    mqtt_oracle.willed(at(4), id(4), "t/1");
    mqtt_oracle.will_is_cancelled(at(4), id(4));
    // Whether goodbye was heard is open when something is wrong.
    assert_eq!(comes_with(&mut mqtt_oracle, LASTING, id(4), once), Ok(()));
    mqtt_oracle.disturbed = at(3);
    assert!(comes_with(&mut mqtt_oracle, CLEAN, id(4), once).is_err());
}

#[test]
fn a_will_of_a_dead_node_may_come_to_who_subscribes_later_and_never_after_goodbye() {
    let mut mqtt_oracle = mqtt_oracle("t/#", Qos::AtLeastOnce);
    mqtt_oracle.disturbed = at(0);
    mqtt_oracle.willed(at(2), id(2), "t/1");
    mqtt_oracle.will_becomes_due(at(3), id(2), ALL);
    assert_eq!(mqtt_oracle.owes().0, 1);
    mqtt_oracle.session_over(CLEAN);
    mqtt_oracle.asked(at(5), CLEAN, "t/#", Qos::AtLeastOnce);
    mqtt_oracle.subscribed(at(5), CLEAN, "t/#", ALL);
    let one = (Qos::AtLeastOnce, 1, false);
    assert_eq!(comes_with(&mut mqtt_oracle, CLEAN, id(2), one), Ok(()));
    assert_eq!(comes_with(&mut mqtt_oracle, LASTING, id(2), one), Ok(()));
    assert_eq!(mqtt_oracle.owes().0, 0);

    mqtt_oracle.willed(at(6), id(6), "t/1");
    mqtt_oracle.will_is_forsworn(id(6));
    mqtt_oracle.disturbed = at(8);
    assert!(comes_with(&mut mqtt_oracle, CLEAN, id(6), one).is_err());
}

#[test]
fn a_queue_that_is_bound_is_owed_what_its_nodes_know_and_marks_what_it_gives_again() {
    const BOUND: usize = 3;
    let arrival = |id: MessageId| ReceivedPublish {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos: Qos::AtLeastOnce,
        packet_id: 0,
        retained: false,
    };
    let mut mqtt_oracle = MqttOracle::default();
    mqtt_oracle.join_bound(BOUND, "queue");
    mqtt_oracle.asked(at(1), BOUND, "t/+", Qos::AtLeastOnce);
    mqtt_oracle.subscribed(at(1), BOUND, "t/+", ALL);
    // Its answer does not say that other nodes know.
    mqtt_oracle.disturbed = Time::ZERO;
    post(&mut mqtt_oracle, 2, NOBODY);
    assert_eq!(mqtt_oracle.owes().0, 0);
    let (three, four) = (
        post(&mut mqtt_oracle, 3, ALL),
        post(&mut mqtt_oracle, 4, ALL),
    );
    assert_eq!(mqtt_oracle.owes().0, 2);
    let mut comes = |id, marked| mqtt_oracle.tapped(at(1000), BOUND, &arrival(id), marked);
    assert_eq!((comes(four, false), comes(three, false)), (Ok(()), Ok(())));
    assert_eq!(comes(four, true), Ok(()));
    assert!(comes(four, false).is_err_and(|e| e.contains("not marked")));
    assert_eq!(mqtt_oracle.owes().0, 0);
    // Of what its client published twice there may be two.
    mqtt_oracle.sent_again(at(10), three, ALL);
    assert_eq!(
        mqtt_oracle.tapped(at(1000), BOUND, &arrival(three), false),
        Ok(())
    );
}
