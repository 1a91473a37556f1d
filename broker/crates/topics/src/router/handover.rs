//! Messages of shared subscriptions that a member had not acknowledged when its session ended: another member gets them
//! (section 4.8.2).

use super::{MqttRouter, RouterOutput};
use crate::Delivery;
use crate::exchange::peer_message::ForwardedMessage;
use codec_mqtt::Qos;
use std::collections::VecDeque;
use std::sync::Arc;

impl MqttRouter {
    /// The member that was chosen is gone: hands its messages to the groups that chose it.
    pub(super) fn hand_over(&mut self, vhost: &Arc<str>, undelivered: Vec<Delivery>) {
        for Delivery { message, group, .. } in undelivered {
            let there = self.vhosts.get(vhost);
            let Some(group) = there.and_then(|there| there.routes.group_name(group)) else {
                continue;
            };
            let group = group.clone();
            let sent = ForwardedMessage {
                numbered: true,
                group: Some(group.clone()),
                hops: 0,
                vhost: vhost.clone(),
                message,
            };
            self.take_shared(&sent, &group);
        }
    }
}

/// The undelivered messages of a session that ended: those of shared subscriptions with QoS 1 and 2.
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
