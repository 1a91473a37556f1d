//! Redelivery of messages of shared subscriptions that a member had not acknowledged when its
//! session ended: another member gets them (section 4.8.2).

use super::{MqttRouter, RouterOutput};
use crate::Delivery;
use crate::exchange::peer_message::ForwardedMessage;
use codec_mqtt::Qos;
use std::collections::VecDeque;
use std::sync::Arc;

impl MqttRouter {
    /// Gives the messages of a removed member to other members of the groups that selected it.
    pub(super) fn hand_over_undelivered(&mut self, vhost: &Arc<str>, undelivered: Vec<Delivery>) {
        for Delivery { message, group, .. } in undelivered {
            let vhost_state = self.vhosts.get(vhost);
            let Some(group) =
                vhost_state.and_then(|vhost_state| vhost_state.routes.group_name(group))
            else {
                continue;
            };
            let group = group.clone();
            let forwarded = ForwardedMessage {
                numbered: true,
                group: Some(group.clone()),
                hops: 0,
                vhost: vhost.clone(),
                message,
            };
            self.deliver_shared(&forwarded, &group);
        }
    }
}

/// Takes the undelivered messages of an ended session that belong to shared subscriptions and have
/// QoS 1 or 2.
pub(super) fn take_unsent(outputs: &mut VecDeque<RouterOutput>, session: u64) -> Vec<Delivery> {
    let mut unsent = Vec::new();
    for output in std::mem::take(outputs) {
        match output {
            RouterOutput::Deliver {
                session: to,
                delivery,
            } if to == session => {
                if delivery.group != 0 && is_acknowledged(&delivery) {
                    unsent.push(delivery);
                }
            }
            other => outputs.push_back(other),
        }
    }
    unsent
}

fn is_acknowledged(delivery: &Delivery) -> bool {
    let granted = delivery.hits.iter().map(|hit| hit.qos).max();
    delivery.message.durable() && granted > Some(Qos::AtMostOnce)
}
