//! Delayed wills (section 3.1.3.2.2): when they may come at the earliest, and when they must have come.

use super::{MqttOracle, PublishOutcome, QueueLookup};
use crate::cluster::mqtt::tracked_message::MessageId;
use env::Time;
use std::time::Duration;

/// Maximum time from the due time of a will until its subscribers have it.
const MAX_WILL_DELAY: Duration = Duration::from_secs(5);
/// A client that returns up to this time after the due time of its will may have prevented the publish.
const RETURN_TOLERANCE: Duration = Duration::from_secs(1);

impl MqttOracle {
    /// A client has set a will on a connection that begins now. The will is published `wait` after the connection has
    /// ended.
    pub(crate) fn delayed_will_set(
        &mut self,
        now: Time,
        id: MessageId,
        topic: &str,
        wait: Duration,
    ) {
        self.will_set(now, id, topic);
        if let Some(message) = self.messages.get_mut(&id) {
            message.owed_clients.clear();
            message.first_owed.clear();
            message.owed_groups.clear();
            message.outcome = PublishOutcome::Delayed {
                since: now,
                due: now + wait,
            };
        }
    }

    /// The client ends its connection without cancelling the will.
    pub(crate) fn delayed_will_left(
        &mut self,
        now: Time,
        id: MessageId,
        wait: Duration,
        find_bound_queue: QueueLookup<'_>,
    ) {
        let Some(message) = self.messages.get(&id) else {
            return;
        };
        let PublishOutcome::Delayed { since, .. } = message.outcome else {
            return;
        };
        let (topic, qos) = (message.topic.clone(), message.qos);
        let (owed, _) = self.owed(now, (&topic, qos), find_bound_queue);
        if let Some(message) = self.messages.get_mut(&id) {
            let due = now + wait;
            tracing::debug!(message = id.0, ?due, "a will is left");
            message.sent = now;
            message.owed_clients = owed;
            message.outcome = PublishOutcome::Delayed { since, due };
            self.pending_wills.insert(id);
        }
    }

    /// The client connects with Clean Start, which ends its session and makes the will due.
    pub(crate) fn delayed_will_due_now(&mut self, now: Time, id: MessageId) {
        if let Some(message) = self.messages.get_mut(&id)
            && let PublishOutcome::Delayed { due, .. } = &mut message.outcome
        {
            *due = now.min(*due);
        }
    }

    /// The client has a connection again, which began at `asked`, and continues its session. A will that was not due
    /// yet must not come.
    pub(crate) fn client_returned_before_will(
        &mut self,
        now: Time,
        id: MessageId,
        connected_at: Time,
    ) {
        let Some(message) = self.messages.get_mut(&id) else {
            return;
        };
        let PublishOutcome::Delayed { since, due } = message.outcome else {
            return;
        };
        if now < due {
            message.outcome = PublishOutcome::Cancelled(since);
        } else if connected_at < due + RETURN_TOLERANCE {
            message.outcome = PublishOutcome::Unknown;
        }
    }

    /// Checks that due wills have come if there was no fault since their clients connected.
    pub(crate) fn check_wills(&mut self, now: Time) -> Result<(), String> {
        let faults_until = self.faults_until;
        let mut overdue = None;
        let messages = &mut self.messages;
        self.pending_wills.retain(|id| {
            let Some(message) = messages.get_mut(id) else {
                return false;
            };
            match message.outcome {
                PublishOutcome::Delayed { due, .. } if now < due + MAX_WILL_DELAY => true,
                PublishOutcome::Delayed { since, .. } if faults_until < since => {
                    if !message.owed_clients.is_empty() {
                        overdue.get_or_insert_with(|| {
                            format!("{id:?} is a will that is due and does not come: {message:?}")
                        });
                    }
                    false
                }
                PublishOutcome::Delayed { .. } => {
                    message.outcome = PublishOutcome::Unknown;
                    false
                }
                _ => false,
            }
        });
        overdue.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::mqtt::wire::ReceivedPublish;
    use codec_mqtt::Qos;
    use metadata::QueueId;

    const ALL: QueueLookup<'static> = &|_, _| Some(QueueId(1));
    const PERSISTENT: usize = 1;
    /// A clean session, which must not get a message twice.
    const CLEAN: usize = 2;
    const WAIT: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A will of a connection that began at second 10, which its client left at second 12. Faults have effects until
    /// second `faults_until`.
    fn will_left(faults_until: u64) -> (MqttOracle, MessageId) {
        let mut mqtt_oracle = MqttOracle::default();
        mqtt_oracle.add(PERSISTENT, Some("queue".to_owned()));
        mqtt_oracle.add(CLEAN, None);
        for mqtt_client in [PERSISTENT, CLEAN] {
            mqtt_oracle.subscribe_sent(at(9), mqtt_client, "w/#", Qos::ExactlyOnce);
            mqtt_oracle.subscribed(at(9), mqtt_client, "w/#", ALL);
        }
        mqtt_oracle.faults_until = at(faults_until);
        let id = MessageId::new(7, 1);
        mqtt_oracle.delayed_will_set(at(10), id, "w/2", WAIT);
        assert_eq!(mqtt_oracle.count_owed().0, 0);
        mqtt_oracle.delayed_will_left(at(12), id, WAIT, ALL);
        assert_eq!(mqtt_oracle.count_owed().0, 1);
        (mqtt_oracle, id)
    }

    fn receive(
        mqtt_oracle: &mut MqttOracle,
        now: u64,
        mqtt_client: usize,
        id: MessageId,
    ) -> Result<(), String> {
        let publish = ReceivedPublish {
            topic: "w/2".to_owned(),
            payload: id.payload(),
            qos: Qos::AtLeastOnce,
            packet_id: 1,
            retained: false,
        };
        mqtt_oracle.received(at(now), mqtt_client, &publish, 0)
    }

    #[test]
    fn delayed_will_comes_when_due_and_once_without_faults() {
        let (mut mqtt_oracle, id) = will_left(8);
        assert!(
            receive(&mut mqtt_oracle, 14, PERSISTENT, id).is_err_and(|e| e.contains("not due"))
        );
        assert_eq!(receive(&mut mqtt_oracle, 15, CLEAN, id), Ok(()));
        assert!(receive(&mut mqtt_oracle, 15, CLEAN, id).is_err_and(|e| e.contains("twice")));
        assert_eq!(mqtt_oracle.check_wills(at(19)), Ok(()));
        assert!(
            mqtt_oracle
                .check_wills(at(20))
                .is_err_and(|e| e.contains("does not come"))
        );
        let (mut mqtt_oracle, id) = will_left(8);
        assert_eq!(receive(&mut mqtt_oracle, 15, PERSISTENT, id), Ok(()));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.count_owed().0),
            (Ok(()), 0)
        );
        // There was a fault, after the client had left.
        let (mut mqtt_oracle, id) = will_left(13);
        for now in [13, 17] {
            assert_eq!(receive(&mut mqtt_oracle, now, CLEAN, id), Ok(()));
        }
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.count_owed().0),
            (Ok(()), 0)
        );
    }

    #[test]
    fn delayed_will_does_not_come_if_its_client_returns_in_time() {
        let (mut mqtt_oracle, id) = will_left(8);
        mqtt_oracle.client_returned_before_will(at(14), id, at(13));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.count_owed().0),
            (Ok(()), 0)
        );
        assert!(
            receive(&mut mqtt_oracle, 21, PERSISTENT, id)
                .is_err_and(|e| e.contains("back in time"))
        );
        // The client returned about when the will was due, so it may have come. If it returns later, the will must have
        // come.
        let (mut mqtt_oracle, id) = will_left(8);
        mqtt_oracle.client_returned_before_will(at(16), id, at(15));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.count_owed().0),
            (Ok(()), 0)
        );
        assert_eq!(receive(&mut mqtt_oracle, 21, PERSISTENT, id), Ok(()));
        let (mut mqtt_oracle, id) = will_left(8);
        mqtt_oracle.client_returned_before_will(at(17), id, at(16));
        assert!(mqtt_oracle.check_wills(at(20)).is_err());
    }

    #[test]
    fn clean_start_makes_the_delayed_will_due() {
        let (mut mqtt_oracle, id) = will_left(8);
        mqtt_oracle.delayed_will_due_now(at(13), id);
        assert_eq!(receive(&mut mqtt_oracle, 13, CLEAN, id), Ok(()));
        assert!(mqtt_oracle.check_wills(at(18)).is_err());
        assert_eq!(receive(&mut mqtt_oracle, 19, PERSISTENT, id), Ok(()));
    }
}
