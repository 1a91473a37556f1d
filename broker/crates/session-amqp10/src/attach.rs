//! Attaching of links: checks of the terminus, and the consumer of a source.

use crate::address;
use crate::browse::Browser;
use crate::connection::{Amqp10Session, Link};
use crate::consume::Consumer;
use crate::ended;
use crate::filters::{self, SourceFilters};
use crate::publish::{PublishTarget, Publisher};
use crate::refusal::{Refusal, from_queue_reply};
use crate::state::StepContext;
use crate::wait::{HeldAttach, WaitReason};
use amqp10::{AttachReply, LinkId, PendingAttach};
use bytes::Bytes;
use codec_amqp10::{
    AnyTarget, Attach, Condition, Durability, Encode, ExpiryPolicy, Map, Multiple, Outcome,
    Performative, Reader, Role, SenderSettleMode, Source, Symbol, Target, Value, list, map,
};
use message::Table;
use metadata::{Change, ChangeError, ChangeResult, Name, QueueRecord, Right};
use operations::{ErrorKind, OperationError, QueueDeclaration, Resource};
use queue::{ConsumerSpec, FlowMode, QueueReply, RequestBody};
use std::sync::Arc;

/// Outcomes that clients can choose (section 3.4).
const OUTCOMES: [Symbol<'static>; 4] = [
    Symbol::from_static("amqp:accepted:list"),
    Symbol::from_static("amqp:rejected:list"),
    Symbol::from_static("amqp:released:list"),
    Symbol::from_static("amqp:modified:list"),
];

/// The capability of a dynamic terminus: a queue that ends with the link.
const TEMPORARY_QUEUE: &str = "temporary-queue";
const TEMPORARY_QUEUE_CAPABILITIES: [Symbol<'static>; 1] = [Symbol::from_static(TEMPORARY_QUEUE)];

/// The capability of a dynamic source: direct reply-to.
const VOLATILE_QUEUE: &str = "rabbitmq:volatile-queue";
const VOLATILE_QUEUE_CAPABILITIES: [Symbol<'static>; 1] = [Symbol::from_static(VOLATILE_QUEUE)];

/// Each receiver gets a copy of each message (part 3, section 3.5.3).
const COPY: Symbol<'static> = Symbol::from_static("copy");
/// Each message goes to one receiver.
const MOVE: Symbol<'static> = Symbol::from_static("move");

/// Prefix of the names of queues for dynamic termini.
const DYNAMIC_PREFIX: &str = "amq.dyn-";

/// The link property with the priority of a consumer.
const PRIORITY: &str = "rabbitmq:priority";

/// The link property with the time in milliseconds in which the client must settle a delivery.
const CONSUMER_TIMEOUT: &str = "rabbitmq:consumer-timeout";
/// The argument of a consumer with the same meaning.
const CONSUMER_TIMEOUT_ARGUMENT: &str = "x-consumer-timeout";

/// The reason why an attach was not answered at once.
enum AttachError {
    Refused(Refusal),
    /// The user lacks a permission. As in RabbitMQ, the session ends.
    Forbidden(Refusal),
    /// The tree of this node does not contain the object with this name, and may be outdated. The refusal holds if the
    /// object is still missing after the tree has caught up.
    Unknown(Name, Refusal),
}

impl From<Refusal> for AttachError {
    fn from(refusal: Refusal) -> AttachError {
        AttachError::Refused(refusal)
    }
}

impl From<OperationError> for AttachError {
    fn from(error: OperationError) -> AttachError {
        match error.kind {
            ErrorKind::AccessRefused => AttachError::Forbidden(error.into()),
            _ => AttachError::Refused(error.into()),
        }
    }
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(Condition::InvalidField, text)
}

impl Amqp10Session {
    /// Handles the attach of a client.
    pub(crate) fn handle_attach(
        &mut self,
        attach: &Attach<'_>,
        pending: PendingAttach,
        cx: &mut StepContext<'_>,
    ) {
        let link = pending.link();
        let held = HeldAttach {
            pending,
            encoded: encode(attach),
        };
        self.try_attach(link, attach, held, false, cx);
    }

    /// Handles an attach again after the tree has caught up.
    pub(crate) fn retry_attach(&mut self, held: HeldAttach, cx: &mut StepContext<'_>) {
        let link = held.pending.link();
        let encoded = held.encoded.clone();
        if let Some(attach) = decode(&encoded) {
            self.try_attach(link, &attach, held, true, cx);
        }
    }

    fn try_attach(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        held: HeldAttach,
        has_caught_up: bool,
        cx: &mut StepContext<'_>,
    ) {
        if is_management(attach) {
            return self.attach_management(link, attach, held, cx);
        }
        let attached = match attach.role {
            Role::Sender => self.attach_publisher(link, attach, held, cx),
            Role::Receiver => self.attach_consumer(link, attach, held, cx),
        };
        match attached {
            Ok(()) => {}
            Err((held, AttachError::Unknown(name, _))) if !has_caught_up => {
                let reason = WaitReason::RetryAttach(Box::new(held));
                self.state.catch_up(name, link.number(), reason, cx);
            }
            // The engine answers an attach without a terminus before it detaches the link (section 2.6.3).
            Err((_, AttachError::Refused(refusal) | AttachError::Unknown(_, refusal))) => {
                self.detach(link, &refusal, cx);
            }
            Err((_, AttachError::Forbidden(refusal))) => match self.session_of(link) {
                Some(session) => self.end_session(session, &refusal, cx),
                None => debug_assert!(false, "a link has its session"),
            },
        }
    }

    fn unknown_or_refused(error: OperationError, cx: &StepContext<'_>) -> AttachError {
        match error.missing.clone() {
            Some(name) if !cx.broker.knows_all() => AttachError::Unknown(name, error.into()),
            _ => error.into(),
        }
    }

    fn attach_publisher(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) -> Result<(), (HeldAttach, AttachError)> {
        let target = match &attach.target {
            Some(AnyTarget::Target(target)) => target,
            Some(AnyTarget::Coordinator(_)) => {
                self.attach_coordinator(link, attach, held, cx);
                return Ok(());
            }
            None => return Err((held, invalid("attach: field 'target': missing").into())),
        };
        if target.dynamic {
            return self.declare_dynamic(link, target.address, target.capabilities, held, cx);
        }
        if let Err(error) = self.check_target(target, cx) {
            return Err((held, error));
        }
        let publish_target = match target.address.map(|address| parse_target(&address)) {
            None => PublishTarget::PerMessage,
            Some(Ok(destination)) => PublishTarget::Fixed(destination),
            Some(Err(refusal)) => return Err((held, refusal.into())),
        };
        let reply = AttachReply {
            source: attach.source.clone(),
            target: attach.target.clone(),
            ..AttachReply::default()
        };
        self.accept_publisher(link, publish_target, None, &reply, held, cx);
        Ok(())
    }

    /// Checks that the client may publish to the target and that it exists.
    fn check_target(&self, target: &Target<'_>, cx: &StepContext<'_>) -> Result<(), AttachError> {
        let Some(address) = &target.address else {
            return Ok(());
        };
        let destination = parse_target(address)?;
        let caller = self.state.caller(cx.broker);
        caller.check(Right::Write, Resource::Exchange(&destination.exchange))?;
        let exchange = caller.exchange_to_publish(&destination.exchange);
        exchange.map_err(|error| match error.kind {
            // An internal exchange concerns this link only.
            ErrorKind::AccessRefused => AttachError::Refused(error.into()),
            _ => Self::unknown_or_refused(error, cx),
        })?;
        let queue = &destination.routing_key;
        if destination.is_queue && caller.queue(queue).is_none() {
            let error = OperationError::missing("queue", queue, &self.state.vhost);
            return Err(Self::unknown_or_refused(error, cx));
        }
        Ok(())
    }

    fn accept_publisher(
        &mut self,
        link: LinkId,
        target: PublishTarget,
        dynamic_queue: Option<Name>,
        reply: &AttachReply<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) {
        if self
            .engine
            .accept_attach(held.pending, reply, cx.tail())
            .is_err()
        {
            return;
        }
        let publisher = Publisher::new(link, target, dynamic_queue);
        self.links
            .insert(link.number(), Link::Publisher(Box::new(publisher)));
        self.state.count_links(1, 0, cx);
    }

    fn attach_consumer(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) -> Result<(), (HeldAttach, AttachError)> {
        let Some(source) = &attach.source else {
            return Err((held, invalid("attach: field 'source': missing").into()));
        };
        if source.dynamic && source.capabilities.contains(VOLATILE_QUEUE) {
            if let Err(refusal) = check_volatile(source, attach.snd_settle_mode) {
                return Err((held, refusal.into()));
            }
            self.declare_replies(link, held, cx);
            return Ok(());
        }
        if source.dynamic {
            return self.declare_dynamic(link, source.address, source.capabilities, held, cx);
        }
        let found = self.find_source(source, attach, cx);
        let (record, priority) = match found {
            Ok(found) => found,
            Err(error) => return Err((held, error)),
        };
        let mode = source.distribution_mode.map(Symbol::as_str);
        if mode == Some(COPY.as_str()) && !record.kind.descriptor().cursors {
            self.browse(link, attach, &record, held, cx);
            return Ok(());
        }
        self.consume(link, attach, &record, priority, None, held, cx);
        Ok(())
    }

    fn find_source(
        &self,
        source: &Source<'_>,
        attach: &Attach<'_>,
        cx: &StepContext<'_>,
    ) -> Result<(Arc<QueueRecord>, i32), AttachError> {
        let Some(Value::String(address)) = source.address else {
            return Err(invalid("source: field 'address': not a string").into());
        };
        let queue = address::parse_source(address).map_err(|error| invalid(error.to_string()))?;
        if let Some(unsupported) = source
            .outcomes
            .iter()
            .find(|outcome| !OUTCOMES.contains(outcome))
        {
            let text =
                format!("source: field 'outcomes': outcome '{unsupported}' is not supported");
            return Err(Refusal::new(Condition::NotImplemented, text).into());
        }
        let priority = consumer_priority(attach.properties)?;
        let caller = self.state.caller(cx.broker);
        let record = caller
            .queue_to_read(&queue)
            .map_err(|error| Self::unknown_or_refused(error, cx))?;
        caller
            .check_available(record, cx.broker.unreachable_home(record))
            .map_err(AttachError::from)?;
        Ok((record.clone(), priority))
    }

    /// Adds a consumer to the queue. The attach is answered when the queue has it.
    #[allow(clippy::too_many_arguments, reason = "the parts of one consumer")]
    fn consume(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        record: &QueueRecord,
        priority: i32,
        dynamic_queue: Option<Name>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) {
        let is_volatile = operations::is_direct_reply_name(&record.name);
        let is_settled = attach.snd_settle_mode == SenderSettleMode::Settled || is_volatile;
        let mut consumer = Consumer::new(link, record, is_settled);
        consumer.dynamic_queue = dynamic_queue;
        consumer.is_volatile = is_volatile;
        let requested = attach.source.as_ref().and_then(|source| source.filter);
        let filters = if record.kind.descriptor().cursors {
            SourceFilters::read(requested)
        } else if is_volatile || !cx.broker.tree().filters_consumers_of(record) {
            SourceFilters::default()
        } else {
            SourceFilters::read_conditions(requested)
        };
        let mut arguments = filters.arguments;
        // As with queues, a value that is not a number is ignored.
        if let Some(Ok(ms)) = integer_property(attach.properties, CONSUMER_TIMEOUT) {
            arguments.set(CONSUMER_TIMEOUT_ARGUMENT, message::Value::I64(ms));
        }
        consumer.conditions = filters.conditions.into();
        consumer.effective_filters = filters.effective;
        let end = attach.name.floor_char_boundary(MAX_TAG);
        let spec = ConsumerSpec {
            tag: attach.name.get(..end).unwrap_or_default().into(),
            channel: link.channel(),
            // Replies that the client has no credit for must leave the queue.
            flow_mode: match is_volatile {
                true => FlowMode::Prefetch,
                false => FlowMode::Credit,
            },
            prefetch: 0,
            // The session settles a delivery when it is in the outbox. If the queue settled it on sending, a client
            // that does not read would pull the whole queue into memory.
            no_ack: false,
            exclusive: false,
            priority,
            arguments,
            filter: filters.consumer_filter,
        };
        let body = RequestBody::Consume {
            consumer: consumer.id,
            spec,
        };
        self.links
            .insert(link.number(), Link::Consumer(Box::new(consumer)));
        self.state.count_links(0, 1, cx);
        let reason = WaitReason::Consume(Box::new(held));
        self.state
            .request(record.id, body, link.number(), reason, cx);
    }

    /// Handles the queue's answer to a new consumer.
    pub(crate) fn handle_consuming(
        &mut self,
        held: HeldAttach,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) {
        let link = held.pending.link();
        let refusal = match answer {
            QueueReply::Consuming => {
                self.accept_consumer(held, cx);
                return;
            }
            QueueReply::Refused { code, text } => from_queue_reply(code, text),
            _ => Refusal::new(Condition::InternalError, "unexpected answer of the queue"),
        };
        self.detach(link, &refusal, cx);
    }

    fn accept_consumer(&mut self, held: HeldAttach, cx: &mut StepContext<'_>) {
        let encoded = held.encoded.clone();
        let link = held.pending.link();
        let (Some(attach), Some(Link::Consumer(consumer))) =
            (decode(&encoded), self.links.get_mut(&link.number()))
        else {
            return;
        };
        let dynamic = consumer
            .dynamic_queue
            .as_deref()
            .map(address::queue_address);
        let properties = dynamic_node_properties();
        let mode = match consumer.kind.descriptor().cursors {
            true => COPY,
            false => MOVE,
        };
        let filters = consumer.effective_filters.as_deref();
        let mut source = answer_source(&attach, mode, filters);
        if let Some(address) = &dynamic {
            source.address = Some(Value::String(address));
            source.expiry_policy = ExpiryPolicy::LinkDetach;
            source.timeout = 0;
            source.dynamic_node_properties = Reader::new(&properties).read::<Map<'_>>().ok();
            source.capabilities = Multiple::new(match consumer.is_volatile {
                true => &VOLATILE_QUEUE_CAPABILITIES,
                false => &TEMPORARY_QUEUE_CAPABILITIES,
            });
        }
        let reply = answer_receiver(&attach, source, consumer.is_settled);
        let accepted = self
            .engine
            .accept_attach(held.pending, &reply, cx.out.tail());
        consumer.effective_filters = filters::keep_listed(consumer.effective_filters.take());
        match accepted {
            Ok(attached) => match attached.credit {
                Some(credit) if consumer.is_volatile => {
                    consumer.set_volatile_credit(credit, &mut self.engine, cx);
                }
                Some(credit) => consumer.set_credit(credit, &mut self.state, cx),
                None => {}
            },
            // The engine has detached the link.
            Err(_) => self.remove_link(link.number(), cx),
        }
    }

    /// Accepts a link that browses the queue. The queue does not know of it.
    fn browse(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        record: &QueueRecord,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) {
        let requested = attach.source.as_ref().and_then(|source| source.filter);
        let filters = SourceFilters::read_browsed(requested);
        let is_settled = attach.snd_settle_mode == SenderSettleMode::Settled;
        let source = answer_source(attach, COPY, filters.effective.as_deref());
        let reply = answer_receiver(attach, source, is_settled);
        let accepted = self.engine.accept_attach(held.pending, &reply, cx.tail());
        // Otherwise the engine has detached the link.
        if let Ok(attached) = accepted {
            let mut browser = Browser::new(link, record, is_settled, filters);
            if let Some(credit) = attached.credit {
                browser.set_credit(credit);
            }
            cx.broker.watch(record.id);
            let number = link.number();
            self.links.insert(number, Link::Browser(Box::new(browser)));
            self.browsers.push(number);
        }
    }

    /// Declares the queue of a dynamic terminus.
    fn declare_dynamic(
        &mut self,
        link: LinkId,
        address: Option<Value<'_>>,
        capabilities: Multiple<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) -> Result<(), (HeldAttach, AttachError)> {
        if address.is_some() {
            let text = "a dynamic terminus has no address of the client";
            return Err((held, invalid(text).into()));
        }
        if !capabilities.contains(TEMPORARY_QUEUE) {
            let text = "a dynamic terminus needs the capability 'temporary-queue', or a source \
                        'rabbitmq:volatile-queue'";
            return Err((held, Refusal::new(Condition::NotImplemented, text).into()));
        }
        let random = [cx.broker.random(), cx.broker.random()];
        let name: Name = operations::generated_name(DYNAMIC_PREFIX, random).into();
        let caller = self.state.caller(cx.broker);
        let planned = caller
            .check(Right::Configure, Resource::Queue(&name))
            .and_then(|()| {
                caller.queue_record(QueueDeclaration {
                    name,
                    is_server_named: true,
                    durable: false,
                    exclusive: true,
                    auto_delete: false,
                    arguments: Table(vec![("x-queue-type".into(), "classic".into())]),
                })
            });
        let mut record = match planned {
            Ok(record) => record,
            Err(error) => return Err((held, error.into())),
        };
        record.members = cx.broker.place_queue(&record);
        self.state.owns_queues = true;
        let reason = WaitReason::Declare(Box::new(held));
        self.state
            .change(Change::DeclareQueue(record), link.number(), reason, cx);
        Ok(())
    }

    /// Declares the queue of a receiver of direct replies.
    fn declare_replies(&mut self, link: LinkId, held: HeldAttach, cx: &mut StepContext<'_>) {
        let random = std::array::from_fn(|_| cx.broker.random());
        let mut record = self.state.caller(cx.broker).direct_reply_queue(random);
        record.members = cx.broker.place_queue(&record);
        self.state.owns_queues = true;
        let reason = WaitReason::Declare(Box::new(held));
        self.state
            .change(Change::DeclareQueue(record), link.number(), reason, cx);
    }

    /// Attaches a link to its dynamic queue.
    pub(crate) fn handle_declared(
        &mut self,
        held: HeldAttach,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) {
        let link = held.pending.link();
        let record = match result {
            Ok(ChangeResult::Queue { record, .. }) => record,
            Ok(_) => {
                let text = "unexpected result of the declaration of a queue";
                return self.detach(link, &Refusal::new(Condition::InternalError, text), cx);
            }
            Err(error) => {
                let error = OperationError::from(error);
                return self.detach(link, &error.into(), cx);
            }
        };
        let encoded = held.encoded.clone();
        let Some(attach) = decode(&encoded) else {
            return;
        };
        let name = Some(record.name.clone());
        if attach.role == Role::Receiver {
            return self.consume(link, &attach, &record, 0, name, held, cx);
        }
        let address = address::queue_address(&record.name);
        let Some(AnyTarget::Target(requested)) = &attach.target else {
            return;
        };
        let properties = dynamic_node_properties();
        let target = Target {
            address: Some(Value::String(&address)),
            expiry_policy: ExpiryPolicy::LinkDetach,
            timeout: 0,
            dynamic_node_properties: Reader::new(&properties).read::<Map<'_>>().ok(),
            capabilities: Multiple::new(&TEMPORARY_QUEUE_CAPABILITIES),
            ..requested.clone()
        };
        let destination = address::Destination {
            exchange: String::new(),
            routing_key: record.name.to_string(),
            is_queue: true,
        };
        let reply = AttachReply {
            source: attach.source.clone(),
            target: Some(AnyTarget::Target(target)),
            ..AttachReply::default()
        };
        let target = PublishTarget::Fixed(destination);
        self.accept_publisher(link, target, name, &reply, held, cx);
    }

    /// Refuses attaches that the queue or the metadata group did not answer in time.
    pub(crate) fn time_out_attach(&mut self, held: &HeldAttach, cx: &mut StepContext<'_>) {
        let text = "the operation timed out; try again later";
        let refusal = Refusal::new(Condition::InternalError, text);
        self.detach(held.pending.link(), &refusal, cx);
    }

    /// Detaches a link because of an error.
    pub(crate) fn detach(&mut self, link: LinkId, refusal: &Refusal, cx: &mut StepContext<'_>) {
        tracing::info!(peer = %self.peer, user = %self.state.user, error = %refusal.text, "link detached");
        ended(
            self.engine
                .detach(link, true, Some(&refusal.to_error()), cx.tail()),
        );
        self.remove_link(link.number(), cx);
    }
}

/// Longest consumer tag in bytes.
const MAX_TAG: usize = 255;

/// Returns true if the remote terminus of the client is the management node.
fn is_management(attach: &Attach<'_>) -> bool {
    let address = match (attach.role, &attach.source, &attach.target) {
        (Role::Sender, _, Some(AnyTarget::Target(target))) => target.address,
        (Role::Receiver, Some(source), _) => source.address,
        _ => None,
    };
    address == Some(Value::String(address::MANAGEMENT))
}

/// Checks that the source of direct replies asks for nothing that they do not have.
fn check_volatile(source: &Source<'_>, mode: SenderSettleMode) -> Result<(), Refusal> {
    let wrong = if source.address.is_some() {
        "field 'address': must be null, because the server names the node"
    } else if source.durable != Durability::None {
        "field 'durable': must be none"
    } else if source.expiry_policy != ExpiryPolicy::LinkDetach {
        "field 'expiry-policy': must be link-detach"
    } else if source.timeout != 0 {
        "field 'timeout': must be 0"
    } else if mode == SenderSettleMode::Unsettled {
        "field 'snd-settle-mode' of the attach: must be settled"
    } else {
        return Ok(());
    };
    Err(invalid(format!(
        "source with the capability '{VOLATILE_QUEUE}': {wrong}"
    )))
}

/// The source as the answer to the attach of a receiver has it. `filters`: those that have an effect, as an encoded map. As
/// in RabbitMQ, the others are left out.
fn answer_source<'a>(
    attach: &Attach<'a>,
    mode: Symbol<'static>,
    filters: Option<&'a [u8]>,
) -> Source<'a> {
    let requested = attach.source.clone().unwrap_or_default();
    Source {
        filter: filters.and_then(|encoded| Reader::new(encoded).read().ok()),
        distribution_mode: Some(mode),
        default_outcome: Some(Outcome::Released),
        outcomes: match requested.outcomes.is_empty() {
            true => Multiple::new(&OUTCOMES),
            false => requested.outcomes,
        },
        ..requested
    }
}

fn answer_receiver<'a>(
    attach: &Attach<'a>,
    source: Source<'a>,
    is_settled: bool,
) -> AttachReply<'a> {
    AttachReply {
        source: Some(source),
        target: attach.target.clone(),
        snd_settle_mode: Some(match is_settled {
            true => SenderSettleMode::Settled,
            false => SenderSettleMode::Unsettled,
        }),
        ..AttachReply::default()
    }
}

fn encode(attach: &Attach<'_>) -> Bytes {
    let mut encoded = Vec::new();
    attach.encode(&mut encoded);
    encoded.into()
}

fn decode(encoded: &[u8]) -> Option<Attach<'_>> {
    match Performative::decode(encoded) {
        Ok((Performative::Attach(attach), _)) => Some(attach),
        _ => {
            debug_assert!(false, "an attach that was encoded can be decoded");
            None
        }
    }
}

fn parse_target(target: &Value<'_>) -> Result<address::Destination, Refusal> {
    let Value::String(text) = target else {
        return Err(invalid("target: field 'address': not a string"));
    };
    address::parse_target(text).map_err(|error| invalid(error.to_string()))
}

/// The priority in the link properties; values outside of 32 bits are clamped.
fn consumer_priority(properties: Option<Map<'_>>) -> Result<i32, Refusal> {
    let number = integer_property(properties, PRIORITY).unwrap_or(Ok(0))?;
    Ok(i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX }))
}

/// A link property that is an integer. `None`: the link does not have it.
fn integer_property(properties: Option<Map<'_>>, key: &str) -> Option<Result<i64, Refusal>> {
    Some(Ok(match properties?.get(key)? {
        Value::Byte(n) => n.into(),
        Value::Short(n) => n.into(),
        Value::Int(n) => n.into(),
        Value::Long(n) => n,
        Value::Ubyte(n) => n.into(),
        Value::Ushort(n) => n.into(),
        Value::Uint(n) => n.into(),
        other => {
            let text = format!("link property '{key}' must be an integer, got {other:?}");
            return Some(Err(invalid(text)));
        }
    }))
}

/// The properties of the queue of a dynamic terminus: it is deleted with the link, and moves its messages.
fn dynamic_node_properties() -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut properties = map(&mut encoded);
    properties.push(&const { Symbol::from_static("lifetime-policy") });
    properties.push_with(|out| {
        let symbol = const { Symbol::from_static("amqp:delete-on-close:list") };
        let mut empty = Vec::new();
        list(&mut empty).finish();
        let value: Result<Value<'_>, _> = Reader::new(&empty).read();
        codec_amqp10::encode_described(out, symbol, &value.unwrap_or_default());
    });
    properties.push(&const { Symbol::from_static("supported-dist-modes") });
    properties.push_with(|out| {
        let mut modes = list(out);
        modes.push(&const { Symbol::from_static("move") });
        modes.finish();
    });
    properties.finish();
    encoded
}
