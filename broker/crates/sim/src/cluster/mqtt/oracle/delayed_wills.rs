//! Wills that wait (section 3.1.3.2.2): before when they may not come, and until when they have to have come.

use super::{MqttOracle, PublishOutcome, QueueLookup};
use crate::cluster::mqtt::tracked_message::MessageId;
use env::Time;
use std::time::Duration;

/// After a will was due, until it has come to those who are to have it.
const LATE: Duration = Duration::from_secs(5);
/// Who comes back less than this after a will was due may have kept it from being published.
const CROSSING: Duration = Duration::from_secs(1);

impl MqttOracle {
    /// A client has a will on a connection of now, which is published when that has been over for so long.
    pub fn will_is_held(&mut self, now: Time, id: MessageId, topic: &str, wait: Duration) {
        self.willed(now, id, topic);
        if let Some(post) = self.posts.get_mut(&id) {
            post.owed.clear();
            post.first.clear();
            post.owed_groups.clear();
            post.outcome = PublishOutcome::Waits {
                since: now,
                due: now + wait,
            };
        }
    }

    /// The client leaves its connection, and has not said goodbye.
    pub fn will_is_left(
        &mut self,
        now: Time,
        id: MessageId,
        wait: Duration,
        knows: QueueLookup<'_>,
    ) {
        let Some(post) = self.posts.get(&id) else {
            return;
        };
        let PublishOutcome::Waits { since, .. } = post.outcome else {
            return;
        };
        let (topic, qos) = (post.topic.clone(), post.qos);
        let (owed, _) = self.owed(now, (&topic, qos), knows);
        if let Some(post) = self.posts.get_mut(&id) {
            let due = now + wait;
            tracing::debug!(post = id.0, ?due, "a will is left");
            post.sent = now;
            post.owed = owed;
            post.outcome = PublishOutcome::Waits { since, due };
            self.waiting.insert(id);
        }
    }

    /// The client begins anew: that ends its session, and the wait of the will that it left.
    pub fn will_may_come(&mut self, now: Time, id: MessageId) {
        if let Some(post) = self.posts.get_mut(&id)
            && let PublishOutcome::Waits { due, .. } = &mut post.outcome
        {
            *due = now.min(*due);
        }
    }

    /// The client has a connection again, for which it asked then, and goes on with its session: a will that was not due yet never
    /// comes.
    pub fn will_is_spared(&mut self, now: Time, id: MessageId, asked: Time) {
        let Some(post) = self.posts.get_mut(&id) else {
            return;
        };
        let PublishOutcome::Waits { since, due } = post.outcome else {
            return;
        };
        if now < due {
            post.outcome = PublishOutcome::Cancelled(since);
        } else if asked < due + CROSSING {
            post.outcome = PublishOutcome::Unknown;
        }
    }

    /// Wills that were due have come, if nothing was wrong since their clients connected.
    pub fn check_wills(&mut self, now: Time) -> Result<(), String> {
        let disturbed = self.disturbed;
        let mut late = None;
        let posts = &mut self.posts;
        self.waiting.retain(|id| {
            let Some(post) = posts.get_mut(id) else {
                return false;
            };
            match post.outcome {
                PublishOutcome::Waits { due, .. } if now < due + LATE => true,
                PublishOutcome::Waits { since, .. } if disturbed < since => {
                    if !post.owed.is_empty() {
                        late.get_or_insert_with(|| {
                            format!("{id:?} is a will that is due and does not come: {post:?}")
                        });
                    }
                    false
                }
                PublishOutcome::Waits { .. } => {
                    post.outcome = PublishOutcome::Unknown;
                    false
                }
                _ => false,
            }
        });
        late.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::mqtt::wire::ReceivedPublish;
    use codec_mqtt::Qos;
    use metadata::QueueId;

    const ALL: QueueLookup<'static> = &|_, _| Some(QueueId(1));
    const LISTENER: usize = 1;
    /// A clean session, which may have nothing twice.
    const CLEAN: usize = 2;
    const WAIT: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A will of a connection of second 10, which its client has left in second 12. Something was wrong until `disturbed`.
    fn left(disturbed: u64) -> (MqttOracle, MessageId) {
        let mut mqtt_oracle = MqttOracle::default();
        mqtt_oracle.join(LISTENER, Some("queue".to_owned()));
        mqtt_oracle.join(CLEAN, None);
        for mqtt_client in [LISTENER, CLEAN] {
            mqtt_oracle.asked(at(9), mqtt_client, "w/#", Qos::ExactlyOnce);
            mqtt_oracle.subscribed(at(9), mqtt_client, "w/#", ALL);
        }
        mqtt_oracle.disturbed = at(disturbed);
        let id = MessageId::new(7, 1);
        mqtt_oracle.will_is_held(at(10), id, "w/2", WAIT);
        assert_eq!(mqtt_oracle.owes().0, 0);
        mqtt_oracle.will_is_left(at(12), id, WAIT, ALL);
        assert_eq!(mqtt_oracle.owes().0, 1);
        (mqtt_oracle, id)
    }

    fn comes(
        mqtt_oracle: &mut MqttOracle,
        now: u64,
        mqtt_client: usize,
        id: MessageId,
    ) -> Result<(), String> {
        let arrival = ReceivedPublish {
            topic: "w/2".to_owned(),
            payload: id.payload(),
            qos: Qos::AtLeastOnce,
            packet_id: 1,
            retained: false,
        };
        mqtt_oracle.arrived(at(now), mqtt_client, &arrival, 0)
    }

    #[test]
    fn a_will_comes_at_its_time_and_once_when_nothing_is_wrong() {
        let (mut mqtt_oracle, id) = left(8);
        assert!(comes(&mut mqtt_oracle, 14, LISTENER, id).is_err_and(|e| e.contains("not due")));
        assert_eq!(comes(&mut mqtt_oracle, 15, CLEAN, id), Ok(()));
        assert!(comes(&mut mqtt_oracle, 15, CLEAN, id).is_err_and(|e| e.contains("twice")));
        assert_eq!(mqtt_oracle.check_wills(at(19)), Ok(()));
        assert!(
            mqtt_oracle
                .check_wills(at(20))
                .is_err_and(|e| e.contains("does not come"))
        );
        let (mut mqtt_oracle, id) = left(8);
        assert_eq!(comes(&mut mqtt_oracle, 15, LISTENER, id), Ok(()));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.owes().0),
            (Ok(()), 0)
        );
        // Something was wrong, though only after it was left.
        let (mut mqtt_oracle, id) = left(13);
        for now in [13, 17] {
            assert_eq!(comes(&mut mqtt_oracle, now, CLEAN, id), Ok(()));
        }
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.owes().0),
            (Ok(()), 0)
        );
    }

    #[test]
    fn a_will_does_not_come_when_its_client_is_back_in_time() {
        let (mut mqtt_oracle, id) = left(8);
        mqtt_oracle.will_is_spared(at(14), id, at(13));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.owes().0),
            (Ok(()), 0)
        );
        assert!(
            comes(&mut mqtt_oracle, 21, LISTENER, id).is_err_and(|e| e.contains("back in time"))
        );
        // About when it was due: it may have come or not. Long after that it must have.
        let (mut mqtt_oracle, id) = left(8);
        mqtt_oracle.will_is_spared(at(16), id, at(15));
        assert_eq!(
            (mqtt_oracle.check_wills(at(20)), mqtt_oracle.owes().0),
            (Ok(()), 0)
        );
        assert_eq!(comes(&mut mqtt_oracle, 21, LISTENER, id), Ok(()));
        let (mut mqtt_oracle, id) = left(8);
        mqtt_oracle.will_is_spared(at(17), id, at(16));
        assert!(mqtt_oracle.check_wills(at(20)).is_err());
    }

    #[test]
    fn whoever_begins_anew_ends_the_wait() {
        let (mut mqtt_oracle, id) = left(8);
        mqtt_oracle.will_may_come(at(13), id);
        assert_eq!(comes(&mut mqtt_oracle, 13, CLEAN, id), Ok(()));
        assert!(mqtt_oracle.check_wills(at(18)).is_err());
        assert_eq!(comes(&mut mqtt_oracle, 19, LISTENER, id), Ok(()));
    }
}
