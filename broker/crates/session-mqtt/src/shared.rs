//! Messages of a session that came through a shared subscription, so that another member can get them when the session ends
//! (section 4.8.2).

use crate::session_queue::subscription_of;
use codec_mqtt::Qos;
use conversion::mqtt::{Envelope, convert, topic_of};
use message::{Message, Protocol};
use metadata::{BindingRecord, Name};
use std::sync::Arc;

/// Subscriptions with QoS 1 or 2 that the bindings of a session's queue store.
#[derive(Debug, Default)]
pub(crate) struct SessionSubscriptions {
    shared: Vec<SharedSubscription>,
    /// Filters of subscriptions that are not shared.
    own: Vec<String>,
}

#[derive(Debug)]
struct SharedSubscription {
    /// The exchange of MQTT, to which the queue is bound.
    exchange: Name,
    /// The filter as the client subscribed to it: `$share/group/filter`.
    group: Name,
    filter: String,
    granted: Qos,
}

impl SessionSubscriptions {
    pub(crate) fn of(bindings: &[Arc<BindingRecord>]) -> SessionSubscriptions {
        let mut all = SessionSubscriptions::default();
        for binding in bindings {
            let Some((filter, subscription)) = subscription_of(binding) else {
                continue;
            };
            if subscription.qos == Qos::AtMostOnce {
                continue;
            }
            match codec_mqtt::shared(&filter) {
                Ok(Some(shared)) => all.shared.push(SharedSubscription {
                    exchange: binding.source.clone(),
                    group: filter.as_str().into(),
                    filter: shared.filter.to_owned(),
                    granted: subscription.qos,
                }),
                _ => all.own.push(filter),
            }
        }
        all
    }

    pub(crate) fn has_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The shared subscription through which a message of this topic came. None: another subscription of the session matches
    /// the topic too, so the copy cannot be attributed, or no shared subscription matches.
    fn share_of(&self, topic: &str) -> Option<&SharedSubscription> {
        if self.own.iter().any(|f| codec_mqtt::matches(f, topic)) {
            return None;
        }
        let mut all = self.shared.iter();
        let share = all.find(|share| codec_mqtt::matches(&share.filter, topic))?;
        let is_only = !all.any(|share| codec_mqtt::matches(&share.filter, topic));
        is_only.then_some(share)
    }

    /// The group to which a message from the session's queue belongs, and the message in the form for members. None: the
    /// message is not handed over.
    pub(crate) fn share(&self, message: &Message, redelivered: bool) -> Option<(Name, Message)> {
        let (share, message) = match message.protocol() {
            Protocol::Mqtt if !message.has_died() => {
                let topic = Envelope::read(message.properties()).ok()?.topic().ok()?;
                (self.share_of(topic)?, message.clone())
            }
            _ => message.routing_keys().find_map(|key| {
                let share = self.share_of(&topic_of(key))?;
                Some((share, convert(message, key, &share.exchange)?))
            })?,
        };
        let published = Envelope::read(message.properties()).ok()?.qos;
        // [MQTT-4.8.2-5]
        let was_sent = redelivered && published.min(share.granted) == Qos::ExactlyOnce;
        (!was_sent).then(|| (share.group.clone(), message))
    }
}
