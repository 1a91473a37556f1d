//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11).

use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{Failure, PacketResult};
use crate::session_queue::{binding_key, is_same};
use codec_mqtt::{
    Properties, Reason, RetainHandling, SubAck, Subscribe, SubscribeOptions, UnsubAck, Unsubscribe,
    Version, check_filter, shared,
};
use metadata::{BindingRecord, Change, ChangeError, ChangeResult};
use std::collections::{BTreeMap, VecDeque};
use topics::Subscription;

/// Changes of one packet that are on their way to the metadata group at a time.
const WINDOW: usize = 64;
/// The token of the change that makes the session's queue. Of others it is the filter's place, from 1.
const DECLARE: u64 = u64::MAX - 1;

/// A filter of a packet, and what becomes of it.
#[derive(Debug)]
struct RequestedFilter {
    filter: Box<str>,
    subscription: Subscription,
    handling: RetainHandling,
    reason: Reason,
    /// What is retained for it is to be sent.
    retained: bool,
}

/// A packet that is answered when the metadata group has taken all that it means for the session's queue, and the other hubs
/// know of its subscriptions.
#[derive(Debug)]
pub(crate) struct PendingSubscribe {
    packet_id: u16,
    subscribes: bool,
    wanted: Vec<RequestedFilter>,
    changes: VecDeque<(u64, Change)>,
    /// Changes that are on their way.
    out: usize,
    /// Only other hubs are waited for.
    announced: bool,
}

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

impl ClientConnection {
    pub(crate) fn subscribe(
        &mut self,
        subscribe: &Subscribe<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        // Before the first takes effect: one that is no filter ends the connection.
        for (filter, _) in subscribe.filters.iter() {
            plain(filter)?;
        }
        let identifier = subscribe.properties.subscription_identifiers().next();
        let mut wanted: Vec<RequestedFilter> = Vec::new();
        for (filter, options) in subscribe.filters.iter() {
            let reason = self.judge(filter, options, wanted.len(), cx)?;
            wanted.push(RequestedFilter {
                filter: filter.into(),
                subscription: Subscription {
                    qos: options.qos,
                    no_local: options.no_local || self.extras.bridge,
                    retain_as_published: options.retain_as_published || self.extras.bridge,
                    identifier: identifier.unwrap_or(0),
                },
                handling: options.retain_handling,
                reason,
                retained: false,
            });
        }
        if self.extras.stored.is_none() {
            return self.subscribed(subscribe.packet_id, wanted, cx);
        }
        let changes = self.bindings(&mut wanted, cx);
        self.extras.pending = Some(Box::new(PendingSubscribe {
            packet_id: subscribe.packet_id,
            subscribes: true,
            wanted,
            changes,
            out: 0,
            announced: false,
        }));
        self.carry_on(cx)
    }

    /// What a filter can be granted, after `more` others of its packet.
    fn judge(
        &mut self,
        filter: &str,
        options: SubscribeOptions,
        more: usize,
        cx: &mut StepContext<'_>,
    ) -> Result<Reason, Failure> {
        let (pattern, _) = plain(filter)?;
        if !self.may_subscribe(options.qos, &binding_key(pattern), cx) {
            return Ok(Reason::NotAuthorized);
        }
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.topics())
        else {
            return Ok(Reason::UnspecifiedError);
        };
        if router.subscriptions_of(subscriber) + more >= self.settings.limits.subscriptions {
            return Ok(Reason::QuotaExceeded);
        }
        Ok(Reason::granted(options.qos))
    }

    /// What the filters change about the bindings of the session's queue.
    fn bindings(
        &mut self,
        wanted: &mut [RequestedFilter],
        cx: &mut StepContext<'_>,
    ) -> VecDeque<(u64, Change)> {
        let fence = self.fence(cx);
        let mut changes = VecDeque::new();
        let mut earlier: BTreeMap<&str, BindingRecord> = BTreeMap::new();
        for (at, want) in wanted.iter_mut().enumerate() {
            if want.reason.is_error() {
                continue;
            }
            let Some(binding) = self.binding(&want.filter, want.subscription, fence) else {
                want.reason = Reason::ImplementationSpecificError;
                continue;
            };
            let before = match earlier.insert(&want.filter, binding.clone()) {
                Some(earlier) => vec![earlier],
                None => self.bindings_of(&want.filter, cx),
            };
            let token = at as u64 + 1;
            let there = before.iter().any(|old| is_same(old, &binding));
            let old = before.into_iter().filter(|old| !is_same(old, &binding));
            let old = old.map(|old| (token, Change::Unbind(old)));
            // The new one first: a message that comes in between is for both.
            changes.extend((!there).then(|| (token, Change::Bind(binding.clone()))));
            changes.extend(old);
        }
        if self.queue().is_none()
            && !changes.is_empty()
            && let Some(record) = self.new_queue(cx)
        {
            changes.push_front((DECLARE, Change::DeclareQueue(record)));
        }
        changes
    }

    /// Asks for what is still to be changed; answers the packet when that is nothing.
    fn carry_on(&mut self, cx: &mut StepContext<'_>) -> PacketResult {
        let Some(pending) = self.extras.pending_mut() else {
            return Ok(());
        };
        while pending.out < WINDOW
            && let Some((token, change)) = pending.changes.pop_front()
        {
            pending.out += 1;
            cx.broker.change(token, change);
        }
        if pending.out > 0 {
            return Ok(());
        }
        let Some(done) = self.extras.pending.take() else {
            return Ok(());
        };
        match done.subscribes {
            true => self.subscribed(done.packet_id, done.wanted, cx),
            false => {
                self.unsubscribed(done.packet_id, &done.wanted, cx);
                Ok(())
            }
        }
    }

    /// The metadata group's word about a subscription.
    pub(crate) fn changed(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let client = match result {
            Ok(_) => String::new(),
            Err(_) => self.client_id(cx),
        };
        let pending = self.extras.pending_mut();
        let Some(pending) = pending.filter(|p| token != 0 && !p.announced) else {
            return Ok(());
        };
        pending.out = pending.out.saturating_sub(1);
        let place = usize::try_from(token).ok().and_then(|n| n.checked_sub(1));
        match result {
            Ok(ChangeResult::Queue { record, .. }) => self.queue_made(record.id, cx),
            Ok(_) => {}
            Err(refused) => {
                let unknown = matches!(refused, ChangeError::Unavailable(_));
                tracing::warn!(client, why = %refused, "a subscription was not made or ended");
                let reason = reason_of(&refused);
                match place.and_then(|at| pending.wanted.get_mut(at)) {
                    Some(one) => one.reason = reason,
                    // Without a queue there is nothing to bind.
                    None => {
                        pending.changes.clear();
                        let all = pending.wanted.iter_mut();
                        all.for_each(|one| one.reason = reason);
                    }
                }
                if unknown {
                    self.doubt();
                }
            }
        }
        self.carry_on(cx)
    }

    /// The subscriptions are made here. The client is told when they count everywhere.
    fn subscribed(
        &mut self,
        packet_id: u16,
        mut wanted: Vec<RequestedFilter>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let session = cx.broker.id().number;
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.topics())
        else {
            return self.answer_subscribe(packet_id, &wanted, cx);
        };
        for want in wanted.iter_mut().filter(|want| !want.reason.is_error()) {
            let was_there = router.subscribe(subscriber, &want.filter, want.subscription);
            self.extras.note_no_local(&want.subscription);
            let sends = match want.handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => !was_there,
                RetainHandling::DoNotSend => false,
            };
            want.retained = sends && shared(&want.filter)?.is_none();
        }
        if !router.announce(session) {
            return self.answer_subscribe(packet_id, &wanted, cx);
        }
        self.extras.pending = Some(Box::new(PendingSubscribe {
            packet_id,
            subscribes: true,
            wanted,
            changes: VecDeque::new(),
            out: 0,
            announced: true,
        }));
        Ok(())
    }

    /// The other hubs know.
    pub(crate) fn known(&mut self, cx: &mut StepContext<'_>) -> PacketResult {
        let announced = |pending: &PendingSubscribe| pending.announced;
        if !self.extras.pending.as_deref().is_some_and(announced) {
            return Ok(());
        }
        match self.extras.pending.take() {
            Some(done) => self.answer_subscribe(done.packet_id, &done.wanted, cx),
            None => Ok(()),
        }
    }

    /// The subscriptions count: the client is told, and given what is retained.
    fn answer_subscribe(
        &mut self,
        packet_id: u16,
        wanted: &[RequestedFilter],
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        self.count_consumer(cx);
        let mut reasons = Vec::with_capacity(wanted.len());
        let mut retained = Vec::new();
        let mut complete = true;
        for want in wanted {
            reasons.push(self.told(want.reason));
            if want.retained {
                complete &= self.find_retained(want, &mut retained, cx);
            }
        }
        let ack = SubAck {
            packet_id,
            properties: Properties::default(),
            reasons: &reasons,
        };
        ack.encode(self.version, cx.packet());
        if !complete {
            let limit = self.settings.limits.retained;
            tracing::warn!(
                client = self.client_id(cx),
                limit,
                "more retained messages than are sent at once"
            );
        }
        for delivery in retained {
            self.deliver(delivery, cx)?;
        }
        Ok(())
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
        want: &RequestedFilter,
        found: &mut Vec<topics::Delivery>,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let now = cx.broker.wall();
        let limit = self.settings.limits.retained;
        match (self.subscriber.to_option(), cx.broker.topics()) {
            (Some(subscriber), Some(router)) => {
                // Each filter as if it had come alone [MQTT-3.8.4-5].
                let asked = (&*want.filter, want.subscription);
                router.retained_for(subscriber, asked, now, limit, found)
            }
            _ => true,
        }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        unsubscribe: &Unsubscribe<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        for filter in unsubscribe.filters.iter() {
            plain(filter)?;
        }
        let mut wanted = Vec::new();
        let mut changes = VecDeque::new();
        for (at, filter) in unsubscribe.filters.iter().enumerate() {
            let bindings = self.bindings_of(filter, cx).into_iter();
            changes.extend(bindings.map(|b| (at as u64 + 1, Change::Unbind(b))));
            wanted.push(RequestedFilter {
                filter: filter.into(),
                subscription: Subscription::default(),
                handling: RetainHandling::DoNotSend,
                reason: Reason::Success,
                retained: false,
            });
        }
        if changes.is_empty() {
            self.unsubscribed(unsubscribe.packet_id, &wanted, cx);
            return Ok(());
        }
        self.extras.pending = Some(Box::new(PendingSubscribe {
            packet_id: unsubscribe.packet_id,
            subscribes: false,
            wanted,
            changes,
            out: 0,
            announced: false,
        }));
        self.carry_on(cx)
    }

    fn unsubscribed(
        &mut self,
        packet_id: u16,
        wanted: &[RequestedFilter],
        cx: &mut StepContext<'_>,
    ) {
        let mut reasons = Vec::with_capacity(wanted.len());
        for want in wanted {
            let there = match (self.subscriber.to_option(), cx.broker.topics()) {
                (Some(subscriber), Some(router)) if !want.reason.is_error() => {
                    router.unsubscribe(subscriber, &want.filter)
                }
                _ => false,
            };
            reasons.push(match there {
                true => Reason::Success as u8,
                false if want.reason.is_error() => want.reason as u8,
                false => Reason::NoSubscriptionExisted as u8,
            });
        }
        self.count_consumer(cx);
        let ack = UnsubAck {
            packet_id,
            properties: Properties::default(),
            reasons: &reasons,
        };
        ack.encode(self.version, cx.packet());
    }
}

/// Why the metadata group did not take a subscription, in the codes of SUBACK and UNSUBACK.
fn reason_of(refused: &ChangeError) -> Reason {
    match refused {
        ChangeError::AccessRefused(_) => Reason::NotAuthorized,
        ChangeError::PreconditionFailed(_) | ChangeError::ResourceLocked(_) => {
            Reason::QuotaExceeded
        }
        ChangeError::Unavailable(_) => Reason::ImplementationSpecificError,
        ChangeError::NotFound(_) | ChangeError::Invalid(_) => Reason::UnspecifiedError,
    }
}
