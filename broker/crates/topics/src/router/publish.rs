//! A message on its way to its subscribers.

use super::remote_subscribers::{ClientLocations, index};
use super::{MqttRouter, PublishOutcome, Publisher, RouterOutput, queues};
use crate::Delivery;
use crate::exchange::SendOutcome;
use crate::exchange::peer::Waiter;
use crate::exchange::peer_message::ForwardedMessage;
use crate::routes::{PeerMatch, RouteMatch};
use message::Message;
use std::sync::Arc;

impl MqttRouter {
    /// Hands a message to the subscribers of its topic, and to the hubs of others. Those who
    /// get it through a queue that is bound to the exchange are not among them; queues that are to have it because their
    /// clients share a subscription are added to `queues`.
    pub fn publish(
        &mut self,
        vhost: &str,
        topic: &str,
        message: &Message,
        publisher: Publisher,
        queues: &mut Vec<u64>,
    ) -> PublishOutcome {
        let Some(there) = self.vhosts.get_mut(vhost) else {
            return PublishOutcome::default();
        };
        let seats = &ClientLocations {
            subscribers: &self.subscribers,
            routers: &self.routers,
        };
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        let durable = message.durable();
        there.routes.find(topic, durable, seats, &mut found);
        let from = publisher.subscriber;
        let matched = !found.here.is_empty();
        found
            .here
            .retain(|f| !(f.subscription.no_local && Some(f.who) == from));
        let mut heard = PublishOutcome {
            matched,
            receivers: self.hand_out(&found.here, message, queues),
            ..PublishOutcome::default()
        };
        if !found.routers.is_empty()
            && let Some((name, _)) = self.vhosts.get_key_value(vhost)
        {
            let name = name.clone();
            self.pass_on(&found.routers, &name, message, publisher, &mut heard);
        }
        self.found = found;
        heard
    }

    /// To other hubs: once to each, and once for each group. There it may wait for longer than this turn, which no message in a
    /// [`message::Room`] may.
    fn pass_on(
        &mut self,
        bound: &[PeerMatch],
        vhost: &Arc<str>,
        message: &Message,
        publisher: Publisher,
        heard: &mut PublishOutcome,
    ) {
        let waiter = Waiter {
            session: publisher.session,
            channel: publisher.channel,
            tag: publisher.tag,
        };
        let message = &message.to_keep();
        for to in bound {
            let sent = ForwardedMessage {
                numbered: to.numbered,
                group: to.group.clone(),
                hops: 0,
                vhost: vhost.clone(),
                message: message.clone(),
            };
            match self.routers.send(to.router, sent, waiter) {
                SendOutcome::Taken { behind } => {
                    heard.receivers += 1;
                    heard.behind |= behind;
                    heard.awaited += usize::from(to.numbered && waiter.tag != 0);
                }
                SendOutcome::Dropped | SendOutcome::GivenUp => {}
                SendOutcome::Refused => heard.refused = true,
            }
        }
    }

    /// To clients of this hub; how many copies. A client has one for all its own subscriptions, and one for each that it shares
    /// and was chosen for: those are independent of any other (section 4.8.2).
    pub(super) fn hand_out(
        &mut self,
        found: &[RouteMatch],
        message: &Message,
        queues: &mut Vec<u64>,
    ) -> usize {
        let mut receivers = 0;
        let together =
            |a: &RouteMatch, b: &RouteMatch| a.who == b.who && !a.is_shared() && !b.is_shared();
        for matched in found.chunk_by(together) {
            let Some(first) = matched.first() else {
                continue;
            };
            let Some(entry) = self.subscribers.get_mut(index(first.who)) else {
                continue;
            };
            if entry.queue != 0
                && let Some(through) = queues::through_queue(matched, message)
            {
                queues.extend(through.then_some(entry.queue));
                continue;
            }
            receivers += 1;
            let delivery = Delivery {
                message: message.clone(),
                hits: matched.iter().map(|f| f.subscription.hit()).collect(),
                retained: false,
                group: first.group,
            };
            if let Some(session) = entry.session() {
                let output = RouterOutput::Deliver { session, delivery };
                self.outputs.push_back(output);
                continue;
            }
            // Without a state of QoS 0: need not be kept (section 4.5).
            let state = entry.away_mut().and_then(|away| away.state.as_mut());
            if let Some(state) = state {
                self.not_kept += u64::from(!state.deliver(delivery));
            }
        }
        receivers
    }
}
