//! Redelivery of messages of shared subscriptions that a member had not acknowledged when its
//! session ended: another member gets them (section 4.8.2).

use super::{MqttRouter, RouterOutput};
use crate::Delivery;
use crate::exchange::peer_message::ForwardedMessage;
use codec_mqtt::Qos;
use message::Message;
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

/// Maximum number of choices of a group member while the ended session is chosen again.
const MAX_PICKS: usize = 16;

/// Destination of a message of a shared subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassedOn {
    /// The member's queue. The caller publishes the message to it.
    Queue(u64),
    /// A member without a queue; the message is on its way.
    Member,
    /// The group has no other member.
    Nobody,
}

impl MqttRouter {
    /// Passes a message from the queue of an ended session (`ended`) to another member of its group.
    pub fn pass_on_shared(
        &mut self,
        vhost: &Arc<str>,
        group: &Arc<str>,
        ended: u64,
        message: Message,
    ) -> PassedOn {
        let sent = ForwardedMessage {
            numbered: true,
            group: Some(group.clone()),
            hops: 0,
            vhost: vhost.clone(),
            message,
        };
        let mut queues = Vec::new();
        for _ in 0..MAX_PICKS {
            if !self.pass_to_member(&sent, group, &mut queues) {
                return PassedOn::Nobody;
            }
            match queues.pop() {
                // A connection on this router is a member of the group until it learns of the end.
                Some(queue) if queue == ended => {}
                Some(queue) => return PassedOn::Queue(queue),
                None => return PassedOn::Member,
            }
        }
        PassedOn::Nobody
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
