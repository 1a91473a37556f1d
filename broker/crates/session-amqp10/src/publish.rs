//! Links on which a client publishes: routing of each message, and its outcome.

use crate::address::{self, Destination};
use crate::ended;
use crate::refusal::Refusal;
use crate::state::{ConnectionState, StepContext};
use crate::stored::{PublishView, ReceivedMessage};
use crate::unconfirmed::{PublishOutcome, QueueAnswer, SettledMessage, Unconfirmed};
use amqp10::{Connection, LinkId, ShortBytes};
use codec_amqp10::{
    AmqpError, Condition, DeliveryState, Map, Outcome, Reader, Symbol, Timestamp, map,
};
use conversion::amqp10::{AddedAnnotation, add_annotations};
use env::WallTime;
use env::planted::{self, Bug};
use message::{Message, MessageBuilder, Protocol};
use metadata::features::SCHEDULED_DELIVERY;
use metadata::{Name, QueueId, Right, RouteResult, Traffic};
use operations::Resource;
use queue::RejectReason;
use routing::{PublishOrigin, RoutingInput};
use session::interceptors::{self, Interceptors};
use session::{Broker, FlowState, PublishTag, TraceEvent};
use smallvec::SmallVec;

/// The target of a link.
#[derive(Clone, Debug)]
pub(crate) enum PublishTarget {
    Fixed(Destination),
    /// The anonymous terminus: each message names its target in the property `to`.
    PerMessage,
}

#[derive(Debug)]
pub(crate) struct Publisher {
    pub link: LinkId,
    pub target: PublishTarget,
    /// The queue of a dynamic target, which ends with the link.
    pub dynamic_queue: Option<Name>,
    pub unconfirmed: Unconfirmed,
    /// A queue asked for no more messages, so the link gets no new credit.
    pub is_behind: bool,
    /// Cache of the last permission check: the tree's version and the exchange that the user may write to.
    writable: Option<(u64, Name)>,
}

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publish<'a> {
    pub delivery: u32,
    pub is_settled: bool,
    /// The transaction that the message belongs to.
    pub transaction: Option<&'a ShortBytes>,
    pub payload: &'a [u8],
}

/// The properties of a publish besides the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishProperties {
    pub channel: u16,
    /// The client does not want to know the outcome.
    pub is_settled: bool,
    /// The exchange has counted the message and its queues.
    pub is_counted: bool,
}

/// The result of [`hand_over`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOver {
    /// Answers that will follow.
    pub answers: usize,
    pub receivers: usize,
    /// A queue asks for no more messages.
    pub is_behind: bool,
    /// One of the answers is a refusal, which the caller has to record.
    pub is_refused: bool,
}

/// Publishes a message to the queues that it was routed to, and to subscribers without a queue.
pub(crate) fn hand_over(
    message: Message,
    routes: &mut Vec<QueueId>,
    tag: PublishTag,
    origin: PublishProperties,
    state: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> HandedOver {
    let bound = routes.len();
    let announced = cx.broker.announce(&state.vhost, &message, tag, routes);
    let mut is_behind = announced.behind;
    let receivers = routes.len() + announced.receivers;
    let traffic = match origin.is_counted {
        true => Traffic {
            published: 0,
            routed: (receivers - bound) as u64,
        },
        false => Traffic {
            published: 1,
            routed: receivers as u64,
        },
    };
    if traffic.published + traffic.routed > 0 {
        let tree = cx.broker.tree();
        tree.count_traffic(&state.vhost, message.exchange(), traffic);
    }
    state.count(|counters| {
        let publishes = &mut counters.publishes;
        publishes.received += 1;
        publishes.received_confirm += u64::from(!origin.is_settled);
        let bytes = message.body_len() + message.properties().len();
        counters.published_bytes += bytes as u64;
        counters.sizes.observe(bytes);
        let publishes = &mut counters.publishes;
        publishes.routed += receivers as u64;
        match (receivers, origin.is_settled) {
            (0, true) => publishes.unroutable_dropped += 1,
            (0, false) => publishes.unroutable_returned += 1,
            _ => {}
        }
    });
    if cx.broker.tree().traces() {
        let what = TraceEvent::Published { routes, tag };
        state.trace(origin.channel, &message, what, cx);
    }
    let answers = routes.len() + announced.awaited + usize::from(announced.refused);
    if let Some((&last, others)) = routes.split_last() {
        for &queue in others {
            is_behind |= cx.broker.publish(queue, tag, message.clone()) == FlowState::Behind;
        }
        is_behind |= cx.broker.publish(last, tag, message) == FlowState::Behind;
    }
    HandedOver {
        answers,
        receivers,
        is_behind,
        is_refused: announced.refused,
    }
}

/// The reason why a message was not published.
#[derive(Debug)]
pub(crate) enum PublishError {
    /// The message is refused; the link goes on.
    Rejected(Refusal),
    /// The link ends. As in RabbitMQ, the message has no outcome.
    Detach(Refusal),
    /// The link ends because of its target. The message is released.
    ReleaseAndDetach(Refusal),
    /// The session ends.
    EndSession(Refusal),
    /// No queue has the message; it is released.
    Unroutable,
    /// The tree of this node does not contain the exchange or queue with this name, and may be outdated. The error
    /// holds if the object is still missing after the tree has caught up.
    Unknown(Name, Box<PublishError>),
}

/// Gives the message a delay in milliseconds, if all its queues can hold it back. Otherwise it is rejected.
#[cold]
fn schedule(
    message: &Message,
    delay: u64,
    routes: &[QueueId],
    cx: &StepContext<'_>,
) -> Result<Message, PublishError> {
    let checked = operations::check_scheduled(cx.broker.tree(), routes);
    checked.map_err(|error| PublishError::Rejected(error.into()))?;
    queue::schedule(message, delay).map_err(|error| {
        PublishError::Rejected(Refusal::new(Condition::InvalidField, error.to_string()))
    })
}

/// The tag of a publish: the number of its link and its number within the link. Never 0.
pub(crate) fn publish_tag(link: u32, number: u32) -> PublishTag {
    PublishTag(u64::from(link) << 32 | u64::from(number))
}

/// The link and the number of a publish.
pub(crate) fn split_tag(tag: PublishTag) -> (u32, u32) {
    ((tag.0 >> 32) as u32, tag.0 as u32)
}

impl Publisher {
    /// The user may have other permissions now.
    pub(crate) fn forget_permission(&mut self) {
        self.writable = None;
    }

    pub(crate) fn new(
        link: LinkId,
        target: PublishTarget,
        dynamic_queue: Option<Name>,
    ) -> Publisher {
        Publisher {
            link,
            target,
            dynamic_queue,
            unconfirmed: Unconfirmed::default(),
            is_behind: false,
            writable: None,
        }
    }

    pub(crate) fn publish(
        &mut self,
        publish: Publish<'_>,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), PublishError> {
        let (message, routes) = self.route(publish.payload, false, state, cx)?;
        state.routes = self.dispatch(message, routes, publish, engine, state, cx);
        Ok(())
    }

    /// Checks a message and finds its queues. The caller must return the vector to the connection's state. A message of
    /// a transaction is counted at the commit.
    pub(crate) fn route(
        &mut self,
        payload: &[u8],
        is_transactional: bool,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(Message, Vec<QueueId>), PublishError> {
        let received = ReceivedMessage::parse(payload).map_err(|error| {
            PublishError::Detach(Refusal::new(Condition::DecodeError, error.to_string()))
        })?;
        let properties = received.properties().map_err(|error| {
            PublishError::Detach(Refusal::new(Condition::DecodeError, error.to_string()))
        })?;
        let named;
        let (destination, is_anonymous) = match &self.target {
            PublishTarget::Fixed(destination) => (destination, false),
            PublishTarget::PerMessage => {
                named = destination_of(properties.as_ref().and_then(|p| p.to))?;
                (&named, true)
            }
        };
        let exchange = &*destination.exchange;
        let applied = cx.broker.tree().applied();
        let caller = state.caller(cx.broker);
        let is_checked = self
            .writable
            .as_ref()
            .is_some_and(|(at, name)| *at == applied && **name == *exchange);
        if !is_checked {
            caller
                .check(Right::Write, Resource::Exchange(exchange))
                .map_err(|error| PublishError::EndSession(error.into()))?;
        }
        let record = caller.exchange_to_publish(exchange);
        let record = record.map_err(|error| {
            let missing = error.missing.clone();
            let error = match (&missing, is_anonymous) {
                // The exchange is internal.
                (None, _) => PublishError::Detach(error.into()),
                (Some(_), true) => PublishError::Rejected(error.into()),
                (Some(_), false) => PublishError::ReleaseAndDetach(error.into()),
            };
            match missing {
                Some(name) if !cx.broker.knows_all() => {
                    PublishError::Unknown(name, Box::new(error))
                }
                _ => error,
            }
        })?;
        // The queue of a request that has just been received may be newer than this node's tree.
        let key = &*destination.routing_key;
        if destination.is_queue
            && operations::is_direct_reply_name(key)
            && caller.queue(key).is_none()
            && !cx.broker.knows_all()
        {
            let error = Box::new(PublishError::Unroutable);
            return Err(PublishError::Unknown(key.into(), error));
        }
        let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
        keys.push(&destination.routing_key);
        let copy_keys = received.copy_keys().map_err(|value| {
            let text = format!("bad value for the message annotation 'x-cc': {value:?}; it must be a list of strings");
            let refusal = Refusal::new(Condition::InvalidField, text);
            match is_anonymous {
                true => PublishError::Rejected(refusal),
                false => PublishError::ReleaseAndDetach(refusal),
            }
        })?;
        if !copy_keys.is_empty() {
            keys.extend(copy_keys);
        }
        if let Some(record) = record {
            keys.iter()
                .try_for_each(|key| caller.check_topic(Right::Write, record, key))
                .map_err(|error| PublishError::EndSession(error.into()))?;
        }
        let reads_delays = operations::reads_delays(record);
        if let Some(user_id) = properties.as_ref().and_then(|p| p.user_id)
            && user_id != state.user.as_bytes()
            && !state.impersonator
        {
            let text = format!(
                "user_id property set to '{}' but authenticated user was '{}'",
                String::from_utf8_lossy(user_id),
                state.user
            );
            let refusal = Refusal::new(Condition::UnauthorizedAccess, text);
            return Err(PublishError::Detach(refusal));
        }
        if !is_checked {
            self.writable = Some((applied, exchange.into()));
        }
        let now = cx.broker.wall();
        let interceptors = &state.settings.limits.interceptors;
        let annotated = interceptors
            .is_incoming()
            .then(|| annotated(interceptors, received.properties_part(), now, cx.broker));
        let builder = MessageBuilder {
            protocol: Protocol::Amqp10,
            durable: received.durable,
            priority: received.priority,
            ttl_ms: received.ttl_ms,
            received: now,
            exchange,
            routing_keys: &keys,
            properties: annotated.as_deref().unwrap_or(received.properties_part()),
        };
        let body = received.body_part();
        let mut message = builder.build(body.len(), [body]).map_err(|error| {
            PublishError::Detach(Refusal::new(Condition::InvalidField, error.to_string()))
        })?;
        let view = PublishView {
            message: &message,
            origin: PublishOrigin {
                node: cx.broker.id().node.0,
                random: state.next_random(now),
            },
        };
        let mut routes = std::mem::take(&mut state.routes);
        routes.clear();
        let tree = cx.broker.tree();
        let routed = match is_transactional {
            true => tree.route(&state.vhost, exchange, &keys, &view, &mut routes),
            false => tree.publish(&state.vhost, exchange, &keys, &view, &mut routes),
        };
        debug_assert_ne!(
            routed,
            RouteResult::NoExchange,
            "the exchange was found above"
        );
        let delayed = match reads_delays {
            true => operations::delay_of(&view.headers()),
            false => None,
        };
        let asked = received.delivery_delay(now);
        let asked = asked.filter(|_| tree.feature_enabled(SCHEDULED_DELIVERY.name));
        if routes.is_empty() && self.is_target_deleted(state, cx) {
            state.routes = routes;
            return Err(PublishError::ReleaseAndDetach(self.target_deleted(state)));
        }
        let mut annotated = None;
        if tree.has_deduplicating_queues() {
            let identified = operations::deduplicate(tree, &routes, &message, || view.headers());
            annotated = identified.map_err(|error| PublishError::Rejected(error.into()))?;
        }
        if tree.has_queues_with_groups() {
            let of = annotated.as_ref().unwrap_or(&message);
            let group_id = properties.as_ref().and_then(|p| p.group_id);
            let grouped = operations::assign_group(tree, &routes, of, group_id, || view.headers());
            let grouped = grouped.map_err(|error| PublishError::Rejected(error.into()))?;
            annotated = grouped.or(annotated);
        }
        if let Some(annotated) = annotated {
            message = annotated;
        }
        if let Some(delay) = asked.or(delayed) {
            let message = schedule(&message, delay, &routes, cx)?;
            return Ok((message, routes));
        }
        Ok((message, routes))
    }

    /// Returns true if the target of the link was a queue that is gone. The link was attached to it, so the tree is not
    /// outdated.
    fn is_target_deleted(&self, state: &ConnectionState, cx: &StepContext<'_>) -> bool {
        match &self.target {
            PublishTarget::Fixed(target) if target.is_queue => {
                state.caller(cx.broker).queue(&target.routing_key).is_none()
            }
            _ => false,
        }
    }

    fn target_deleted(&self, state: &ConnectionState) -> Refusal {
        let queue = match &self.target {
            PublishTarget::Fixed(target) => &*target.routing_key,
            PublishTarget::PerMessage => "",
        };
        let text = format!("queue '{queue}' in vhost '{}' was deleted", state.vhost);
        Refusal::new(Condition::ResourceDeleted, text)
    }

    /// The error that ends the link after its queue has refused a message because it was deleted.
    pub(crate) fn check_target(
        &self,
        state: &ConnectionState,
        cx: &StepContext<'_>,
    ) -> Result<(), Refusal> {
        match self.is_target_deleted(state, cx) {
            true => Err(self.target_deleted(state)),
            false => Ok(()),
        }
    }

    /// Publishes a message to its queues. Hands the vector of queues back for reuse.
    fn dispatch(
        &mut self,
        message: Message,
        mut routes: Vec<QueueId>,
        publish: Publish<'_>,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Vec<QueueId> {
        let Publish {
            delivery,
            is_settled,
            ..
        } = publish;
        let tag = publish_tag(self.link.number(), self.unconfirmed.next());
        let size = u32::try_from(message.as_bytes().len()).unwrap_or(u32::MAX);
        let origin = PublishProperties {
            channel: self.link.channel(),
            is_settled,
            is_counted: true,
        };
        let HandedOver {
            answers,
            receivers,
            is_behind,
            is_refused,
        } = hand_over(message, &mut routes, tag, origin, state, cx);
        if answers == 0 {
            // Receivers that nobody waits for have the message already.
            let outcome = match receivers {
                0 => DeliveryState::RELEASED,
                _ => DeliveryState::ACCEPTED,
            };
            ended(engine.settle_received(self.link, delivery, &outcome, cx.tail()));
            return routes;
        }
        self.unconfirmed.push(delivery, is_settled, size, answers);
        if planted::is(Bug::OutcomeEarly) {
            let accepted = DeliveryState::ACCEPTED;
            ended(engine.settle_received(self.link, delivery, &accepted, cx.tail()));
        }
        state.add_in_flight(size);
        if is_refused {
            let answer = QueueAnswer::Rejected(QueueId::NONE, RejectReason::Unavailable);
            self.record_answer(split_tag(tag).1, answer, engine, state, cx);
        }
        if is_behind && !self.is_behind {
            self.is_behind = true;
            ended(engine.withhold_credit(self.link, true));
        }
        routes
    }

    /// Records the answer of a queue, and tells the client the outcome after the last one.
    pub(crate) fn record_answer(
        &mut self,
        number: u32,
        answer: QueueAnswer,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(settled) = self.unconfirmed.record_answer(number, answer) else {
            return;
        };
        state.remove_in_flight(settled.size as usize);
        if settled.outcome == PublishOutcome::Accepted && !settled.is_settled {
            state.count(|counters| counters.publishes.confirmed += 1);
        }
        self.tell_outcome(&settled, engine, state, cx);
    }

    fn tell_outcome(
        &self,
        settled: &SettledMessage,
        engine: &mut Connection,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let mut settle = |outcome: &DeliveryState<'_>, cx: &mut StepContext<'_>| {
            ended(engine.settle_received(self.link, settled.delivery, outcome, cx.tail()));
        };
        let (queue, why) = match settled.outcome {
            PublishOutcome::Accepted => return settle(&DeliveryState::ACCEPTED, cx),
            PublishOutcome::Released => return settle(&DeliveryState::RELEASED, cx),
            PublishOutcome::Rejected(queue, why) => (queue, why),
        };
        let record = cx.broker.tree().queue_by_id(queue);
        let name = record.map_or("", |record| &*record.name).to_owned();
        let (condition, reason, text) = match why {
            RejectReason::MaxLength => (
                Condition::ResourceLimitExceeded,
                "maxlen",
                "its maximum length is reached",
            ),
            RejectReason::Unavailable => (
                Condition::InternalError,
                "unavailable",
                "it is unavailable; publish the message again later",
            ),
        };
        let text = format!(
            "queue '{name}' in vhost '{}' rejected the message: {text}",
            state.vhost
        );
        let mut info = Vec::new();
        let mut writer = map(&mut info);
        writer.push(&const { Symbol::from_static("queue") });
        writer.push(&*name);
        writer.push(&const { Symbol::from_static("reason") });
        writer.push(&Symbol::from_static(reason));
        writer.finish();
        let error = AmqpError {
            condition,
            description: Some(&text),
            info: Reader::new(&info).read::<Map<'_>>().ok(),
        };
        settle(&DeliveryState::Outcome(Outcome::Rejected(Some(error))), cx);
    }

    /// Gives the link credit again after its queues have caught up.
    pub(crate) fn relieve(&mut self, engine: &mut Connection) {
        if std::mem::take(&mut self.is_behind) {
            ended(engine.withhold_credit(self.link, false));
        }
    }
}

/// The target in the property `to` of a message to the anonymous terminus.
fn destination_of(to: Option<&str>) -> Result<Destination, PublishError> {
    let refuse =
        |text: String| PublishError::Rejected(Refusal::new(Condition::PreconditionFailed, text));
    match to {
        None => Err(refuse(
            "the anonymous terminus requires the property 'to'".into(),
        )),
        Some(to) => address::parse_target(to)
            .map_err(|error| refuse(format!("bad 'to' address string: {error}"))),
    }
}

/// The stored properties with the annotations of interceptors.
fn annotated(
    interceptors: &Interceptors,
    properties: &[u8],
    received: WallTime,
    broker: &dyn Broker,
) -> Vec<u8> {
    let node = interceptors::routing_node(broker);
    let mut added: SmallVec<[AddedAnnotation<'_>; 2]> = SmallVec::new();
    added.extend(
        interceptors
            .received_time
            .map(|is_overwritten| AddedAnnotation {
                name: interceptors::RECEIVED_TIME,
                value: codec_amqp10::Value::Timestamp(Timestamp(
                    i64::try_from(received.0).unwrap_or(i64::MAX),
                )),
                is_overwritten,
            }),
    );
    added.extend(
        interceptors
            .routing_node
            .map(|is_overwritten| AddedAnnotation {
                name: interceptors::ROUTED_BY,
                value: codec_amqp10::Value::String(&node),
                is_overwritten,
            }),
    );
    add_annotations(properties, &added)
}
