//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 to 3.11).

use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{ConnectionFailure, PacketResult};
use crate::session_queue::{binding_key, is_same};
use crate::settings::UnauthorizedAction;
use crate::shard_service::RouterAccess;
use crate::stream_subscriptions::{StreamRequest, StreamStart};
use codec_mqtt::{
    Properties, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeOptions, UnsubAck,
    Unsubscribe, Version, check_filter, shared,
};
use metadata::{BindingRecord, Change, ChangeError, ChangeResult};
use std::collections::{BTreeMap, VecDeque};
use topics::Subscription;

/// Maximum number of changes of one packet that the metadata group has not answered.
const WINDOW: usize = 64;
/// Token of the change that declares the session's queue. The tokens of other changes are the index
/// of their filter, from 1.
const DECLARE: u64 = u64::MAX - 1;

/// A filter of a packet and its result.
#[derive(Debug)]
struct RequestedFilter {
    filter: Box<str>,
    subscription: Subscription,
    handling: RetainHandling,
    reason: ReasonCode,
    /// Retained messages must be sent for it.
    retained: bool,
    /// The stream to read, in a SUBSCRIBE that asks for one.
    stream: Option<StreamRequest>,
}

/// A packet that is answered when the metadata group has applied its changes to the session's queue
/// and the other routers know its subscriptions.
#[derive(Debug)]
pub(crate) struct PendingSubscribe {
    packet_id: u16,
    subscribes: bool,
    requests: Vec<RequestedFilter>,
    changes: VecDeque<(u64, Change)>,
    /// Number of unanswered changes.
    unanswered: usize,
    /// Waits only for other routers.
    announced: bool,
}

/// Validates a filter. Returns it without the prefix of a shared subscription, and whether it had
/// one.
fn validate_filter(filter: &str) -> Result<(&str, bool), ConnectionFailure> {
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
        // Validate all filters first: an invalid one ends the connection without any effect.
        for (filter, _) in subscribe.filters.iter() {
            validate_filter(filter)?;
        }
        let identifier = subscribe.properties.subscription_identifiers().next();
        let start = StreamStart::find(&subscribe.properties);
        let mut requests: Vec<RequestedFilter> = Vec::new();
        for (filter, options) in subscribe.filters.iter() {
            let mut reason = self.check_filter(filter, options, requests.len(), cx)?;
            let mut stream = None;
            if let (false, Some(start)) = (reason.is_error(), &start) {
                match self.find_stream(filter, start, cx) {
                    Ok(found) => stream = Some(found),
                    Err(refusal) => reason = refusal,
                }
            }
            requests.push(RequestedFilter {
                filter: filter.into(),
                subscription: Subscription {
                    qos: options.qos,
                    no_local: options.no_local || self.rare.is_bridge,
                    retain_as_published: options.retain_as_published || self.rare.is_bridge,
                    identifier: identifier.unwrap_or(0),
                },
                handling: options.retain_handling,
                reason,
                retained: false,
                stream,
            });
        }
        if self.rare.stored.is_none() {
            return self.register_subscriptions(subscribe.packet_id, requests, cx);
        }
        let changes = self.binding_changes(&mut requests, cx);
        self.rare.pending = Some(Box::new(PendingSubscribe {
            packet_id: subscribe.packet_id,
            subscribes: true,
            requests,
            changes,
            unanswered: 0,
            announced: false,
        }));
        self.continue_pending(cx)
    }

    /// Returns the result of a filter that follows `more` others in its packet.
    fn check_filter(
        &mut self,
        filter: &str,
        options: SubscribeOptions,
        more: usize,
        cx: &mut StepContext<'_>,
    ) -> Result<ReasonCode, ConnectionFailure> {
        let (pattern, _) = validate_filter(filter)?;
        if !self.may_subscribe(options.qos, &binding_key(pattern), cx) {
            let text = format!("the user may not subscribe to '{filter}'");
            self.note_refusal(("topic", filter), "read", &text, cx);
            return Ok(ReasonCode::NotAuthorized);
        }
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        else {
            return Ok(ReasonCode::UnspecifiedError);
        };
        let existing = router.subscriptions_of(subscriber) + self.stream_subscriptions();
        if existing + more >= self.settings.limits.subscriptions {
            return Ok(ReasonCode::QuotaExceeded);
        }
        Ok(ReasonCode::granted(options.qos))
    }

    /// Returns the changes to the bindings of the session's queue for these filters.
    fn binding_changes(
        &mut self,
        requests: &mut [RequestedFilter],
        cx: &mut StepContext<'_>,
    ) -> VecDeque<(u64, Change)> {
        let fence = self.fence(cx);
        let mut changes = VecDeque::new();
        let mut earlier: BTreeMap<&str, BindingRecord> = BTreeMap::new();
        for (at, request) in requests.iter_mut().enumerate() {
            if request.reason.is_error() {
                continue;
            }
            if request.stream.is_some() {
                // The stream replaces a subscription with the same filter.
                let token = at as u64 + 1;
                let before = self.bindings_of(&request.filter, cx).into_iter();
                changes.extend(before.map(|old| (token, Change::Unbind(old))));
                continue;
            }
            let Some(binding) = self.binding(&request.filter, request.subscription, fence) else {
                request.reason = ReasonCode::ImplementationSpecificError;
                continue;
            };
            let before = match earlier.insert(&request.filter, binding.clone()) {
                Some(earlier) => vec![earlier],
                None => self.bindings_of(&request.filter, cx),
            };
            let token = at as u64 + 1;
            let existed = before.iter().any(|old| is_same(old, &binding));
            let old = before.into_iter().filter(|old| !is_same(old, &binding));
            let old = old.map(|old| (token, Change::Unbind(old)));
            // Bind before unbind, so that no message is missed in between.
            changes.extend((!existed).then(|| (token, Change::Bind(binding.clone()))));
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

    /// Requests the next changes, or answers the packet if there are none left.
    fn continue_pending(&mut self, cx: &mut StepContext<'_>) -> PacketResult {
        let Some(pending) = self.rare.pending_mut() else {
            return Ok(());
        };
        while pending.unanswered < WINDOW
            && let Some((token, change)) = pending.changes.pop_front()
        {
            pending.unanswered += 1;
            cx.broker.change(token, change);
        }
        if pending.unanswered > 0 {
            return Ok(());
        }
        let Some(done) = self.rare.pending.take() else {
            return Ok(());
        };
        match done.subscribes {
            true => self.register_subscriptions(done.packet_id, done.requests, cx),
            false => {
                self.remove_subscriptions(done.packet_id, &done.requests, cx);
                Ok(())
            }
        }
    }

    /// Handles the result of a change to a binding.
    pub(crate) fn handle_change_result(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let client = match result {
            Ok(_) => String::new(),
            Err(_) => self.client_id(cx),
        };
        let pending = self.rare.pending_mut();
        let Some(pending) = pending.filter(|p| token != 0 && !p.announced) else {
            return Ok(());
        };
        pending.unanswered = pending.unanswered.saturating_sub(1);
        let index = usize::try_from(token).ok().and_then(|n| n.checked_sub(1));
        match result {
            Ok(ChangeResult::Queue { record, .. }) => self.queue_declared(record.id, cx),
            Ok(_) => {}
            Err(refused) => {
                let unknown = matches!(refused, ChangeError::Unavailable(_));
                tracing::warn!(client, why = %refused, "a subscription was not made or ended");
                let reason = reason_of(&refused);
                match index.and_then(|at| pending.requests.get_mut(at)) {
                    Some(request) => request.reason = reason,
                    // Without a queue nothing can be bound.
                    None => {
                        pending.changes.clear();
                        let all = pending.requests.iter_mut();
                        all.for_each(|request| request.reason = reason);
                    }
                }
                if unknown {
                    self.reset_fence();
                }
            }
        }
        self.continue_pending(cx)
    }

    /// Registers the subscriptions in the router. SUBACK waits until they are effective everywhere.
    fn register_subscriptions(
        &mut self,
        packet_id: u16,
        mut requests: Vec<RequestedFilter>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let session = cx.broker.id().number;
        for request in requests.iter().filter(|r| !r.reason.is_error()) {
            // A subscription replaces the one with the same filter [MQTT-3.8.4-3].
            self.remove_stream_subscription(&request.filter, cx);
        }
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        else {
            return self.answer_subscribe(packet_id, &requests, cx);
        };
        for request in requests
            .iter_mut()
            .filter(|request| !request.reason.is_error())
        {
            if request.stream.is_some() {
                router.unsubscribe(subscriber, &request.filter);
                continue;
            }
            let was_there = router.subscribe(subscriber, &request.filter, request.subscription);
            self.rare.note_subscription(&request.subscription);
            let sends = match request.handling {
                RetainHandling::Send => true,
                RetainHandling::SendIfNew => !was_there,
                RetainHandling::DoNotSend => false,
            };
            request.retained = sends && shared(&request.filter)?.is_none();
        }
        if !router.announce(session) {
            return self.answer_subscribe(packet_id, &requests, cx);
        }
        self.rare.pending = Some(Box::new(PendingSubscribe {
            packet_id,
            subscribes: true,
            requests,
            changes: VecDeque::new(),
            unanswered: 0,
            announced: true,
        }));
        Ok(())
    }

    /// The other routers know the subscriptions.
    pub(crate) fn handle_announced(&mut self, cx: &mut StepContext<'_>) -> PacketResult {
        let announced = |pending: &PendingSubscribe| pending.announced;
        if !self.rare.pending.as_deref().is_some_and(announced) {
            return Ok(());
        }
        match self.rare.pending.take() {
            Some(done) => self.answer_subscribe(done.packet_id, &done.requests, cx),
            None => Ok(()),
        }
    }

    /// The subscriptions are effective: sends SUBACK and retained messages.
    fn answer_subscribe(
        &mut self,
        packet_id: u16,
        requests: &[RequestedFilter],
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let mut reasons = Vec::with_capacity(requests.len());
        let mut retained = Vec::new();
        let mut complete = true;
        for request in requests {
            reasons.push(self.reason_code(request.reason));
            if request.retained {
                complete &= self.find_retained(request, &mut retained, cx);
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
        for request in requests.iter().filter(|r| !r.reason.is_error()) {
            if let Some(stream) = &request.stream {
                self.subscribe_stream(&request.filter, request.subscription, stream, cx);
            }
        }
        self.count_consumer(cx);
        let mut all = requests.iter();
        if self.settings.unauthorized == UnauthorizedAction::Disconnect
            && all.any(|request| request.reason == ReasonCode::NotAuthorized)
        {
            let text = "the user may not subscribe to all of the filters";
            return Err(ConnectionFailure::new(ReasonCode::NotAuthorized, text));
        }
        for delivery in retained {
            self.deliver(delivery, cx)?;
        }
        Ok(())
    }

    /// Versions 3.1 and 3.1.1 have a single failure code.
    fn reason_code(&self, reason: ReasonCode) -> u8 {
        match self.version {
            Version::V5 => reason as u8,
            _ if reason.is_error() => ReasonCode::UnspecifiedError as u8,
            _ => reason as u8,
        }
    }

    fn find_retained(
        &self,
        request: &RequestedFilter,
        found: &mut Vec<topics::Delivery>,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let now = cx.broker.wall();
        let limit = self.settings.limits.retained;
        match (self.subscriber.to_option(), cx.broker.router()) {
            (Some(subscriber), Some(router)) => {
                // Treat each filter as if it was the only one of its packet [MQTT-3.8.4-5].
                let asked = (&*request.filter, request.subscription);
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
            validate_filter(filter)?;
        }
        let mut requests = Vec::new();
        let mut changes = VecDeque::new();
        for (at, filter) in unsubscribe.filters.iter().enumerate() {
            let bindings = self.bindings_of(filter, cx).into_iter();
            changes.extend(bindings.map(|b| (at as u64 + 1, Change::Unbind(b))));
            requests.push(RequestedFilter {
                filter: filter.into(),
                subscription: Subscription::default(),
                handling: RetainHandling::DoNotSend,
                reason: ReasonCode::Success,
                retained: false,
                stream: None,
            });
        }
        if changes.is_empty() {
            self.remove_subscriptions(unsubscribe.packet_id, &requests, cx);
            return Ok(());
        }
        self.rare.pending = Some(Box::new(PendingSubscribe {
            packet_id: unsubscribe.packet_id,
            subscribes: false,
            requests,
            changes,
            unanswered: 0,
            announced: false,
        }));
        self.continue_pending(cx)
    }

    fn remove_subscriptions(
        &mut self,
        packet_id: u16,
        requests: &[RequestedFilter],
        cx: &mut StepContext<'_>,
    ) {
        let mut reasons = Vec::with_capacity(requests.len());
        for request in requests {
            let read_stream =
                !request.reason.is_error() && self.remove_stream_subscription(&request.filter, cx);
            let in_router = match (self.subscriber.to_option(), cx.broker.router()) {
                (Some(subscriber), Some(router)) if !request.reason.is_error() => {
                    router.unsubscribe(subscriber, &request.filter)
                }
                _ => false,
            };
            reasons.push(match read_stream || in_router {
                true => ReasonCode::Success as u8,
                false if request.reason.is_error() => request.reason as u8,
                false => ReasonCode::NoSubscriptionExisted as u8,
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

/// Maps a rejected change to a reason code of SUBACK and UNSUBACK.
fn reason_of(refused: &ChangeError) -> ReasonCode {
    match refused {
        ChangeError::AccessRefused(_) => ReasonCode::NotAuthorized,
        ChangeError::PreconditionFailed(_)
        | ChangeError::ResourceLocked(_)
        | ChangeError::NotPermitted(_) => ReasonCode::QuotaExceeded,
        ChangeError::Unavailable(_) => ReasonCode::ImplementationSpecificError,
        ChangeError::NotFound(_) | ChangeError::Invalid(_) => ReasonCode::UnspecifiedError,
    }
}
