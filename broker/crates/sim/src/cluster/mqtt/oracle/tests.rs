//! Tests of each rule.

use super::*;

const ALL: QueueLookup<'static> = &|_, _| Some(QueueId(1));
const NONE: QueueLookup<'static> = &|_, _| None;
/// A queue of the same name that was deleted.
const EARLIER: QueueLookup<'static> = &|_, _| Some(QueueId(2));
/// A client with a persistent session, and one with a clean session.
const PERSISTENT: usize = 1;
const CLEAN: usize = 2;

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

/// Both clients subscribe to a filter at second 1.
fn mqtt_oracle(filter: &str, qos: Qos) -> MqttOracle {
    let mut mqtt_oracle = MqttOracle::default();
    mqtt_oracle.add(PERSISTENT, Some("queue".to_owned()));
    mqtt_oracle.add(CLEAN, None);
    for mqtt_client in [PERSISTENT, CLEAN] {
        mqtt_oracle.subscribe_sent(at(1), mqtt_client, filter, qos);
        mqtt_oracle.subscribed(at(1), mqtt_client, filter, ALL);
    }
    mqtt_oracle.faults_until = at(100);
    mqtt_oracle
}

fn id(number: u32) -> MessageId {
    MessageId::new(1, number)
}

/// A message that is published and acknowledged at the second of its number.
fn publish(
    mqtt_oracle: &mut MqttOracle,
    number: u32,
    find_bound_queue: QueueLookup<'_>,
) -> MessageId {
    let id = id(number);
    mqtt_oracle.sent(
        at(number.into()),
        id,
        ("t/1", Qos::ExactlyOnce),
        find_bound_queue,
    );
    mqtt_oracle.acknowledged(at(number.into()), id);
    id
}

fn receive(
    mqtt_oracle: &mut MqttOracle,
    mqtt_client: usize,
    id: MessageId,
    epoch: u64,
) -> Result<(), String> {
    receive_with(
        mqtt_oracle,
        mqtt_client,
        id,
        (Qos::ExactlyOnce, epoch, false),
    )
}

fn receive_with(
    mqtt_oracle: &mut MqttOracle,
    mqtt_client: usize,
    id: MessageId,
    (qos, epoch, retained): (Qos, u64, bool),
) -> Result<(), String> {
    let publish = ReceivedPublish {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos,
        packet_id: 1,
        retained,
    };
    mqtt_oracle.received(at(1000), mqtt_client, &publish, epoch)
}

#[test]
fn acknowledged_message_is_owed_to_persistent_sessions_until_received() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let first = publish(&mut mqtt_oracle, 2, ALL);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    assert_eq!(receive(&mut mqtt_oracle, CLEAN, first, 0), Ok(()));
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, first, 0), Ok(()));
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    // The publisher's node does not know the subscription, first after a fault and then without one.
    publish(&mut mqtt_oracle, 3, NONE);
    publish(&mut mqtt_oracle, 33, EARLIER);
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    mqtt_oracle.faults_until = Time::ZERO;
    publish(&mut mqtt_oracle, 4, NONE);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    // After an unknown outcome, the sessions owed are those of the last sending.
    mqtt_oracle.faults_until = at(100);
    mqtt_oracle.sent_again(at(80), id(4), NONE);
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    publish(&mut mqtt_oracle, 5, ALL);
    mqtt_oracle.unsubscribe_sent(PERSISTENT, "t/+");
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    assert!(receive(&mut mqtt_oracle, PERSISTENT, MessageId::new(7, 7), 0).is_err());
}

#[test]
fn qos_2_message_comes_once_while_the_session_stays_on_its_shard() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let one = publish(&mut mqtt_oracle, 2, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, one, 0), Ok(()));
    assert!(receive(&mut mqtt_oracle, PERSISTENT, one, 0).is_err());
    // Another shard does not have the session's memory.
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, one, 1), Ok(()));
    let other = publish(&mut mqtt_oracle, 3, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, other, 1), Ok(()));
    mqtt_oracle.sent_again(at(80), other, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, other, 1), Ok(()));
}

#[test]
fn qos_2_publish_repeated_within_its_session_comes_once() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    mqtt_oracle.faults_until = at(10);
    // There was a fault since the first sending.
    let one = publish(&mut mqtt_oracle, 2, ALL);
    mqtt_oracle.sent_again_in_session(at(80), one, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, one, 0), Ok(()));
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, one, 0), Ok(()));
    let two = publish(&mut mqtt_oracle, 20, ALL);
    mqtt_oracle.sent_again_in_session(at(80), two, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, two, 0), Ok(()));
    assert!(receive(&mut mqtt_oracle, PERSISTENT, two, 0).is_err_and(|e| e.contains("twice")));
}

#[test]
fn order_of_a_publisher_is_checked_and_sessions_end() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let (one, two) = (
        publish(&mut mqtt_oracle, 2, ALL),
        publish(&mut mqtt_oracle, 3, ALL),
    );
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, two, 0), Ok(()));
    let late = receive(&mut mqtt_oracle, PERSISTENT, one, 0);
    assert!(late.is_err_and(|e| e.contains("after number 3")));
    // The order continues on another connection.
    let (three, four) = (
        publish(&mut mqtt_oracle, 4, ALL),
        publish(&mut mqtt_oracle, 60, ALL),
    );
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, four, 1), Ok(()));
    assert!(
        receive(&mut mqtt_oracle, PERSISTENT, three, 1)
            .is_err_and(|e| e.contains("after number 60"))
    );
    // A repetition may come late only to a session that the publisher's node may not have known.
    let (five, six) = (
        publish(&mut mqtt_oracle, 61, NONE),
        publish(&mut mqtt_oracle, 62, ALL),
    );
    let (seven, eight) = (
        publish(&mut mqtt_oracle, 63, ALL),
        publish(&mut mqtt_oracle, 64, ALL),
    );
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, six, 1), Ok(()));
    for id in [five, seven] {
        mqtt_oracle.sent_again(at(80), id, ALL);
    }
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, five, 1), Ok(()));
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, eight, 1), Ok(()));
    assert!(
        receive(&mut mqtt_oracle, PERSISTENT, seven, 1)
            .is_err_and(|e| e.contains("after number 64"))
    );
    // A new session must not get messages that were acknowledged before it began.
    mqtt_oracle.session_ended(PERSISTENT);
    assert!(
        receive(&mut mqtt_oracle, PERSISTENT, two, 0)
            .is_err_and(|e| e.contains("never subscribed"))
    );
    mqtt_oracle.subscribe_sent(at(10), PERSISTENT, "t/+", Qos::ExactlyOnce);
    assert!(
        receive(&mut mqtt_oracle, PERSISTENT, two, 0)
            .is_err_and(|e| e.contains("was acknowledged"))
    );
    let retained = (Qos::ExactlyOnce, 0, true);
    assert_eq!(
        receive_with(&mut mqtt_oracle, PERSISTENT, two, retained),
        Ok(())
    );
}

#[test]
fn repeated_publish_may_come_late_to_a_newer_session() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
    let two = publish(&mut mqtt_oracle, 2, ALL);
    mqtt_oracle.session_ended(PERSISTENT);
    mqtt_oracle.subscribe_sent(at(10), PERSISTENT, "t/+", Qos::ExactlyOnce);
    mqtt_oracle.subscribed(at(10), PERSISTENT, "t/+", ALL);
    let later = publish(&mut mqtt_oracle, 13, ALL);
    mqtt_oracle.sent_again(at(80), two, ALL);
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, later, 1), Ok(()));
    assert_eq!(receive(&mut mqtt_oracle, PERSISTENT, two, 1), Ok(()));
}

#[test]
fn abandoned_qos_0_publish_of_a_paused_node_comes_late_and_in_order() {
    let qos_0 = (Qos::AtMostOnce, 1, false);
    for (faults_until, is_allowed) in [(5, true), (4, false)] {
        let mut mqtt_oracle = mqtt_oracle("t/+", Qos::ExactlyOnce);
        for number in 2..5 {
            let at = at(number.into());
            mqtt_oracle.sent(at, id(number), ("t/1", Qos::AtMostOnce), ALL);
        }
        mqtt_oracle.faults_until = at(faults_until);
        for number in [2, 3] {
            mqtt_oracle.abandoned(at(5), 1, id(number));
        }
        assert_eq!(
            receive_with(&mut mqtt_oracle, PERSISTENT, id(4), qos_0),
            Ok(())
        );
        let late = receive_with(&mut mqtt_oracle, PERSISTENT, id(3), qos_0);
        assert_eq!(late.is_ok(), is_allowed, "{late:?}");
        let before = receive_with(&mut mqtt_oracle, PERSISTENT, id(2), qos_0);
        assert!(before.is_err(), "a node reads each connection in order");
    }
}

#[test]
fn one_member_of_a_shared_subscription_gets_a_message() {
    let mut mqtt_oracle = mqtt_oracle("$share/g/t/+", Qos::AtLeastOnce);
    let one = publish(&mut mqtt_oracle, 2, ALL);
    // A member without a queue may have got the message and lost it.
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    let once = (Qos::AtLeastOnce, 0, false);
    assert_eq!(receive_with(&mut mqtt_oracle, CLEAN, one, once), Ok(()));
    assert!(receive_with(&mut mqtt_oracle, PERSISTENT, one, once).is_err());
    mqtt_oracle.session_ended(CLEAN);
    mqtt_oracle.faults_until = at(1);
    mqtt_oracle.accepted(at(2), CLEAN);
    let two = publish(&mut mqtt_oracle, 3, ALL);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    assert_eq!(
        receive_with(&mut mqtt_oracle, PERSISTENT, two, once),
        Ok(())
    );
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    assert!(mqtt_oracle.has_received_since(PERSISTENT, "$share/g/t/+", at(3)));
}

#[test]
fn shared_subscription_may_lose_messages_of_an_abandoned_connection() {
    let mut mqtt_oracle = mqtt_oracle("$share/g/t/+", Qos::AtLeastOnce);
    mqtt_oracle.faults_until = at(1);
    mqtt_oracle.session_ended(CLEAN);
    publish(&mut mqtt_oracle, 3, ALL);
    assert_eq!(
        mqtt_oracle.count_owed().0,
        0,
        "the connection may not have ended"
    );
    mqtt_oracle.accepted(at(4), CLEAN);
    publish(&mut mqtt_oracle, 5, ALL);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    // Faults have effects until second 9. By then the connection has ended everywhere.
    mqtt_oracle.subscribe_sent(at(6), CLEAN, "$share/g/t/+", Qos::AtLeastOnce);
    mqtt_oracle.session_ended(CLEAN);
    mqtt_oracle.faults_until = at(9);
    mqtt_oracle.accepted(at(7), CLEAN);
    publish(&mut mqtt_oracle, 8, ALL);
    publish(&mut mqtt_oracle, 10, ALL);
    assert_eq!(
        mqtt_oracle.count_owed().0,
        1,
        "it lost the earlier messages"
    );
}

#[test]
fn will_comes_after_connection_loss_and_not_after_disconnect() {
    let mut mqtt_oracle = mqtt_oracle("t/+", Qos::AtLeastOnce);
    let once = (Qos::AtLeastOnce, 0, false);
    mqtt_oracle.will_set(at(2), id(2), "t/1");
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    mqtt_oracle.will_due(at(3), id(2), ALL);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    assert_eq!(
        receive_with(&mut mqtt_oracle, PERSISTENT, id(2), once),
        Ok(())
    );
    mqtt_oracle.will_set(at(4), id(4), "t/1");
    mqtt_oracle.will_cancelled(at(4), id(4));
    // With a fault, DISCONNECT may not have arrived.
    assert_eq!(
        receive_with(&mut mqtt_oracle, PERSISTENT, id(4), once),
        Ok(())
    );
    mqtt_oracle.faults_until = at(3);
    assert!(receive_with(&mut mqtt_oracle, CLEAN, id(4), once).is_err());
}

#[test]
fn will_of_a_dead_node_may_reach_later_subscribers() {
    let mut mqtt_oracle = mqtt_oracle("t/#", Qos::AtLeastOnce);
    mqtt_oracle.faults_until = at(0);
    mqtt_oracle.will_set(at(2), id(2), "t/1");
    mqtt_oracle.will_of_dead_node_due(at(3), id(2), ALL);
    assert_eq!(mqtt_oracle.count_owed().0, 1);
    mqtt_oracle.session_ended(CLEAN);
    mqtt_oracle.subscribe_sent(at(5), CLEAN, "t/#", Qos::AtLeastOnce);
    mqtt_oracle.subscribed(at(5), CLEAN, "t/#", ALL);
    let one = (Qos::AtLeastOnce, 1, false);
    assert_eq!(receive_with(&mut mqtt_oracle, CLEAN, id(2), one), Ok(()));
    assert_eq!(
        receive_with(&mut mqtt_oracle, PERSISTENT, id(2), one),
        Ok(())
    );
    assert_eq!(mqtt_oracle.count_owed().0, 0);

    mqtt_oracle.will_set(at(6), id(6), "t/1");
    mqtt_oracle.will_must_not_come(id(6));
    mqtt_oracle.faults_until = at(8);
    assert!(receive_with(&mut mqtt_oracle, CLEAN, id(6), one).is_err());
}

#[test]
fn bound_queue_is_owed_known_messages_and_marks_redeliveries() {
    const BOUND: usize = 3;
    let arrival = |id: MessageId| ReceivedPublish {
        topic: "t/1".to_owned(),
        payload: id.payload(),
        qos: Qos::AtLeastOnce,
        packet_id: 0,
        retained: false,
    };
    let mut mqtt_oracle = MqttOracle::default();
    mqtt_oracle.add_bound_queue(BOUND, "queue");
    mqtt_oracle.subscribe_sent(at(1), BOUND, "t/+", Qos::AtLeastOnce);
    mqtt_oracle.subscribed(at(1), BOUND, "t/+", ALL);
    // The answer to the bind does not mean that other nodes know the binding.
    mqtt_oracle.faults_until = Time::ZERO;
    publish(&mut mqtt_oracle, 2, NONE);
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    let (three, four) = (
        publish(&mut mqtt_oracle, 3, ALL),
        publish(&mut mqtt_oracle, 4, ALL),
    );
    assert_eq!(mqtt_oracle.count_owed().0, 2);
    let mut receive = |id, redelivered| {
        mqtt_oracle.delivered_to_bound_queue(at(1000), BOUND, &arrival(id), redelivered)
    };
    assert_eq!(
        (receive(four, false), receive(three, false)),
        (Ok(()), Ok(()))
    );
    assert_eq!(receive(four, true), Ok(()));
    assert!(receive(four, false).is_err_and(|e| e.contains("not marked")));
    assert_eq!(mqtt_oracle.count_owed().0, 0);
    // A message that its client published twice may exist twice.
    mqtt_oracle.sent_again(at(10), three, ALL);
    assert_eq!(
        mqtt_oracle.delivered_to_bound_queue(at(1000), BOUND, &arrival(three), false),
        Ok(())
    );
}
