//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11).

use crate::link::{Cx, Link};
use crate::session::{Failure, Outcome};
use codec_mqtt::{
    Properties, Reason, RetainHandling, SubAck, Subscribe, SubscribeOptions, UnsubAck, Unsubscribe,
    Version, check_filter, shared,
};
use topics::{Subscription, key_of};

/// A filter without what makes it a shared one, and whether it was one.
fn plain(filter: &str) -> Result<(&str, bool), Failure> {
    match shared(filter)? {
        Some(shared) => Ok((shared.filter, true)),
        None => {
            check_filter(filter)?;
            Ok((filter, false))
        }
    }
}

impl Link {
    pub(crate) fn subscribe(&mut self, subscribe: &Subscribe<'_>, cx: &mut Cx<'_>) -> Outcome {
        // Before the first takes effect: one that is no filter ends the connection.
        for (filter, _) in subscribe.filters.iter() {
            plain(filter)?;
        }
        let identifier = subscribe.properties.subscription_identifiers().next();
        let mut reasons = Vec::new();
        let mut retained = Vec::new();
        let mut complete = true;
        for (filter, options) in subscribe.filters.iter() {
            let (reason, is_new) = self.add(filter, options, identifier.unwrap_or(0), cx)?;
            reasons.push(self.told(reason));
            let wanted = match options.retain_handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => is_new,
                RetainHandling::DoNotSend => false,
            };
            let is_shared = shared(filter)?.is_some();
            if wanted && !is_shared && !reason.is_error() {
                complete &= self.find_retained(filter, &mut retained, cx);
            }
        }
        let ack = SubAck {
            packet_id: subscribe.packet_id,
            properties: Properties::default(),
            reasons: &reasons,
        };
        ack.encode(self.version, cx.out.tail());
        if !complete {
            let limit = self.settings.limits.retained;
            tracing::warn!(
                client = &*self.client_id,
                limit,
                "more retained messages than are sent at once"
            );
        }
        for delivery in retained {
            self.deliver(delivery, cx)?;
        }
        Ok(())
    }

    /// What becomes of one filter, and whether it is new to the session.
    fn add(
        &mut self,
        filter: &str,
        options: SubscribeOptions,
        identifier: u32,
        cx: &mut Cx<'_>,
    ) -> Result<(Reason, bool), Failure> {
        let (pattern, _) = plain(filter)?;
        if !self.may_subscribe(cx.broker.tree(), options.qos, &binding_key(pattern)) {
            return Ok((Reason::NotAuthorized, false));
        }
        let limit = self.settings.limits.subscriptions;
        let (Some(subscriber), Some(hub)) = (self.subscriber, cx.broker.topics()) else {
            return Ok((Reason::UnspecifiedError, false));
        };
        if hub.subscriptions_of(subscriber) >= limit {
            return Ok((Reason::QuotaExceeded, false));
        }
        let subscription = Subscription {
            qos: options.qos,
            no_local: options.no_local,
            retain_as_published: options.retain_as_published,
            identifier,
        };
        let was_there = hub.subscribe(subscriber, filter, subscription);
        Ok((Reason::granted(options.qos), !was_there))
    }

    /// 3.1 and 3.1.1 know one failure.
    fn told(&self, reason: Reason) -> u8 {
        match self.version {
            Version::V5 => reason as u8,
            _ if reason.is_error() => Reason::UnspecifiedError as u8,
            _ => reason as u8,
        }
    }

    fn find_retained(
        &self,
        filter: &str,
        found: &mut Vec<topics::Delivery>,
        cx: &mut Cx<'_>,
    ) -> bool {
        let now = cx.broker.wall();
        let limit = self.settings.limits.retained;
        match (self.subscriber, cx.broker.topics()) {
            (Some(subscriber), Some(hub)) => {
                hub.retained_for(subscriber, filter, now, limit, found)
            }
            _ => true,
        }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        unsubscribe: &Unsubscribe<'_>,
        cx: &mut Cx<'_>,
    ) -> Outcome {
        for filter in unsubscribe.filters.iter() {
            plain(filter)?;
        }
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            let there = match (self.subscriber, cx.broker.topics()) {
                (Some(subscriber), Some(hub)) => hub.unsubscribe(subscriber, filter),
                _ => false,
            };
            reasons.push(match there {
                true => Reason::Success as u8,
                false => Reason::NoSubscriptionExisted as u8,
            });
        }
        let ack = UnsubAck {
            packet_id: unsubscribe.packet_id,
            properties: Properties::default(),
            reasons: &reasons,
        };
        ack.encode(self.version, cx.out.tail());
        Ok(())
    }
}

/// A filter as the routing key of a binding, which is what topic permissions are about.
fn binding_key(filter: &str) -> String {
    key_of(filter).replace('+', "*")
}
