//! Delivery of a published message to its subscribers.

use super::remote_subscribers::{ClientLocations, index};
use super::{MqttRouter, PublishOutcome, Publisher, RouterOutput, queues};
use crate::Delivery;
use crate::exchange::SendOutcome;
use crate::exchange::peer::ConfirmWaiter;
use crate::exchange::peer_message::ForwardedMessage;
use crate::routes::{PeerMatch, RouteMatch};
use message::Message;
use std::sync::Arc;

impl MqttRouter {
    /// Delivers a message to the subscribers of its topic and forwards it to other routers.
    /// Subscribers that receive the message through a queue bound to the exchange are excluded.
    /// Queues that must store the message because a shared subscription selected their client are
    /// appended to `queues`.
    pub fn publish(
        &mut self,
        vhost: &str,
        topic: &str,
        message: &Message,
        publisher: Publisher,
        queues: &mut Vec<u64>,
    ) -> PublishOutcome {
        let Some(vhost_state) = self.vhosts.get_mut(vhost) else {
            return PublishOutcome::default();
        };
        let locations = &ClientLocations {
            subscribers: &self.subscribers,
            routers: &self.routers,
        };
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let durable = message.durable();
        vhost_state
            .routes
            .find(topic, durable, locations, &mut self.cache, &mut found);
        let from = publisher.subscriber;
        let matched = !found.here.is_empty();
        found
            .here
            .retain(|f| !(f.subscription.no_local && Some(f.subscriber) == from));
        let mut outcome = PublishOutcome {
            matched,
            receivers: self.deliver_local(&found.here, message, queues),
            ..PublishOutcome::default()
        };
        if !found.routers.is_empty()
            && let Some((name, _)) = self.vhosts.get_key_value(vhost)
        {
            let name = name.clone();
            self.forward(&found.routers, &name, message, publisher, &mut outcome);
        }
        self.found = found;
        outcome
    }

    /// Forwards a message to other routers: once to each, and once per shared subscription. It may
    /// wait there for longer than this turn, so messages in a [`message::Room`] are copied.
    fn forward(
        &mut self,
        bound: &[PeerMatch],
        vhost: &Arc<str>,
        message: &Message,
        publisher: Publisher,
        outcome: &mut PublishOutcome,
    ) {
        let waiter = ConfirmWaiter {
            session: publisher.session,
            tag: publisher.tag,
        };
        let message = &message.to_keep();
        for to in bound {
            let forwarded = ForwardedMessage {
                numbered: to.numbered,
                group: to.group.clone(),
                hops: 0,
                vhost: vhost.clone(),
                message: message.clone(),
            };
            match self.routers.send(to.router, forwarded, waiter) {
                SendOutcome::Taken { behind } => {
                    outcome.receivers += 1;
                    outcome.behind |= behind;
                    outcome.awaited += usize::from(to.numbered && waiter.tag != 0);
                }
                SendOutcome::Dropped | SendOutcome::GivenUp => {}
                SendOutcome::Refused => outcome.refused = true,
            }
        }
    }

    /// Delivers a message to local clients and returns the number of copies. A client gets one copy
    /// for all of its non-shared subscriptions and one for each shared subscription that selected
    /// it: those are independent of all others (section 4.8.2).
    pub(super) fn deliver_local(
        &mut self,
        found: &[RouteMatch],
        message: &Message,
        queues: &mut Vec<u64>,
    ) -> usize {
        let mut receivers = 0;
        let together = |a: &RouteMatch, b: &RouteMatch| {
            a.subscriber == b.subscriber && !a.is_shared() && !b.is_shared()
        };
        for matched in found.chunk_by(together) {
            let Some(first) = matched.first() else {
                continue;
            };
            let Some(entry) = self.subscribers.get_mut(index(first.subscriber)) else {
                continue;
            };
            if entry.queue != 0
                && let Some(through) = queues::is_for_queue(matched, message)
            {
                queues.extend(through.then_some(entry.queue));
                continue;
            }
            receivers += 1;
            let delivery = Delivery {
                message: message.clone(),
                hits: matched.iter().map(|f| f.subscription.to_match()).collect(),
                retained: false,
                group: first.group,
            };
            if let Some(session) = entry.session() {
                let output = RouterOutput::Deliver { session, delivery };
                self.outputs.push_back(output);
                continue;
            }
            // A QoS 0 message for a client without session state need not be stored (section 4.5).
            let state = entry.away_mut().and_then(|away| away.state.as_mut());
            if let Some(state) = state {
                self.not_kept += u64::from(!state.deliver(delivery));
            }
        }
        receivers
    }
}
