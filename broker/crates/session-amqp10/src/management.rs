//! The management node: declares, deletes and binds by requests in messages (HTTP over AMQP), as RabbitMQ's clients do.
//!
//! A client attaches a pair of links with the same name, one in each direction. A pair performs one request after the
//! other. The credit of the incoming link bounds the waiting requests.

mod renewal;
mod request;
mod response;

use crate::connection::{Amqp10Session, Link};
use crate::ended;
use crate::refusal::Refusal;
use crate::state::StepContext;
use crate::wait::{HeldAttach, WaitReason};
use amqp10::{AttachReply, LinkId, OutgoingDelivery};
use bytes::Bytes;
use codec_amqp10::{AnyTarget, Attach, Condition, DeliveryState, Role, SenderSettleMode, Value};
use metadata::{
    BindingRecord, Change, ChangeError, ChangeResult, Destination, ExchangeRecord, Name,
    QueueRecord, Right,
};
use operations::{
    BindingOperation, Caller, ErrorKind, ExchangePlan, OperationError, OperationResult,
    QueueDeclaration, QueueDeclarationPlan, QueueDeletion, QueueDeletionPlan, Resource,
};
use queue::{QueueId, QueueReply, RequestBody};
use request::{BindingBody, ExchangeBody, QueueBody, Request};
use response::{QueueStatus, Response, arguments_hash};
use std::collections::VecDeque;
use std::sync::Arc;

/// Credit of the link with requests.
const REQUEST_CREDIT: u32 = 8;
/// Largest request in bytes.
const MAX_REQUEST: u64 = 1 << 20;

/// One of the two links of a pair.
#[derive(Debug)]
pub(crate) struct ManagementLink {
    pub link: LinkId,
}

/// A pair of links.
#[derive(Debug)]
pub(crate) struct Pair {
    name: Box<str>,
    channel: u16,
    /// Of the client's end.
    address: Option<Box<str>>,
    requests_link: Option<LinkId>,
    responses_link: Option<LinkId>,
    /// Requests that were not performed yet: delivery id and message.
    requests: VecDeque<(u32, Bytes)>,
    /// The first request is being performed.
    is_busy: bool,
    /// The response to the first request, until the client can be sent it.
    response: Option<Bytes>,
}

impl Pair {
    fn has(&self, link: LinkId) -> bool {
        self.requests_link == Some(link) || self.responses_link == Some(link)
    }

    /// Bytes of requests and of the response.
    pub(crate) fn bytes(&self) -> usize {
        let requests = self.requests.iter().map(|(_, message)| message.len());
        requests.sum::<usize>() + self.response.as_ref().map_or(0, Bytes::len)
    }
}

/// The next step of a request after an answer.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// The request is performed again with the current tree.
    Retry(Request),
    /// The log has decided about the declaration of a queue.
    Declared,
    /// The queue reports its figures for a response with this status.
    Describe {
        record: Arc<QueueRecord>,
        status: u16,
    },
    /// The queue is purged.
    Purged,
    /// The queue has stopped; its record is deleted next.
    Stopped(Change),
    /// The record of a queue with so many messages is deleted.
    Deleted(u64),
    /// The change is applied; the response has this status and no body.
    Applied(u16),
}

/// The remaining work of a request.
enum Next {
    Respond(Response),
    Change(Change, Continuation),
    Ask(QueueId, RequestBody, Continuation),
    /// The node checks the new token.
    Renew,
    /// The tree may be outdated: perform the request again after it has caught up.
    CatchUp(Name),
}

/// The reason why a request is not performed.
enum RequestError {
    Respond(Response),
    /// The user lacks a permission. As in RabbitMQ, the session ends.
    EndSession(Refusal),
}

impl From<Response> for RequestError {
    fn from(response: Response) -> RequestError {
        RequestError::Respond(response)
    }
}

fn not_permitted(error: OperationError) -> RequestError {
    RequestError::EndSession(error.into())
}

/// The response for an operation that was refused for other reasons than permissions.
fn refused(error: &OperationError) -> RequestError {
    let status = match error.kind {
        ErrorKind::AccessRefused => 403,
        ErrorKind::NotFound => 404,
        ErrorKind::PreconditionFailed => 409,
        ErrorKind::ResourceLocked | ErrorKind::NotImplemented | ErrorKind::NotPermitted => 400,
        ErrorKind::Unavailable => 503,
    };
    Response::error(status, &error.text).into()
}

/// As RabbitMQ answers every error of a binding, for example a missing exchange.
fn binding_refused(error: &OperationError) -> RequestError {
    match error.kind {
        ErrorKind::AccessRefused | ErrorKind::Unavailable => refused(error),
        _ => Response::error(400, &error.text).into(),
    }
}

impl Amqp10Session {
    /// Attaches one of the links of a pair.
    pub(crate) fn attach_management(
        &mut self,
        link: LinkId,
        attach: &Attach<'_>,
        held: HeldAttach,
        cx: &mut StepContext<'_>,
    ) {
        if let Err(refusal) = self.pair_up(link, attach) {
            return self.detach(link, &refusal, cx);
        }
        let reply = AttachReply {
            source: attach.source.clone(),
            target: attach.target.clone(),
            max_message_size: Some(MAX_REQUEST),
            link_credit: Some(REQUEST_CREDIT),
            snd_settle_mode: Some(SenderSettleMode::Settled),
            properties: attach.properties,
            ..AttachReply::default()
        };
        self.links
            .insert(link.number(), Link::Management(ManagementLink { link }));
        if self
            .engine
            .accept_attach(held.pending, &reply, cx.out.tail())
            .is_err()
        {
            self.remove_link(link.number(), cx);
        }
    }

    fn pair_up(&mut self, link: LinkId, attach: &Attach<'_>) -> Result<(), Refusal> {
        if !request::is_paired(attach.properties) {
            let text = "Link property 'paired' is not set to boolean value 'true'";
            return Err(Refusal::new(Condition::InvalidField, text));
        }
        let own = match attach.role {
            Role::Sender => attach.source.as_ref().and_then(|source| source.address),
            Role::Receiver => match &attach.target {
                Some(AnyTarget::Target(target)) => target.address,
                _ => None,
            },
        };
        let address = own.and_then(|address| address.as_text()).map(Box::from);
        let channel = link.channel();
        let mut pairs = self.pairs.iter_mut();
        let found = pairs.find(|pair| *pair.name == *attach.name && pair.channel == channel);
        let pair = match found {
            Some(pair) => pair,
            None => {
                self.pairs.push(Pair {
                    name: attach.name.into(),
                    channel,
                    address: address.clone(),
                    requests_link: None,
                    responses_link: None,
                    requests: VecDeque::new(),
                    is_busy: false,
                    response: None,
                });
                let Some(pair) = self.pairs.last_mut() else {
                    return Ok(());
                };
                pair
            }
        };
        let half = match attach.role {
            Role::Sender => &mut pair.requests_link,
            Role::Receiver => &mut pair.responses_link,
        };
        if half.is_some() || pair.address != address {
            let text = format!(
                "link '{}' is no second half of its management link pair",
                attach.name
            );
            return Err(Refusal::new(Condition::PreconditionFailed, text));
        }
        *half = Some(link);
        Ok(())
    }

    /// Forgets a link of a pair. A request that is being performed completes without a response.
    pub(crate) fn remove_management(&mut self, link: LinkId) {
        self.pairs.retain_mut(|pair| {
            if pair.requests_link == Some(link) {
                pair.requests_link = None;
                pair.requests.clear();
                pair.is_busy = false;
                pair.response = None;
            }
            if pair.responses_link == Some(link) {
                pair.responses_link = None;
            }
            pair.requests_link.is_some() || pair.responses_link.is_some()
        });
    }

    /// Takes a request.
    pub(crate) fn receive_request(
        &mut self,
        link: LinkId,
        delivery: u32,
        payload: &[u8],
        cx: &mut StepContext<'_>,
    ) {
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.has(link)) else {
            return;
        };
        if pair.responses_link.is_none() {
            let text = "received a request on a half open management link pair; attach the link for responses first";
            let refusal = Refusal::new(Condition::PreconditionFailed, text);
            if let Some(session) = self.session_of(link) {
                self.end_session(session, &refusal, cx);
            }
            return;
        }
        pair.requests
            .push_back((delivery, Bytes::copy_from_slice(payload)));
        self.perform_next(link, cx);
    }

    /// Performs the next request of a pair.
    fn perform_next(&mut self, link: LinkId, cx: &mut StepContext<'_>) {
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.has(link)) else {
            return;
        };
        if pair.is_busy {
            return;
        }
        let Some((_, message)) = pair.requests.front() else {
            return;
        };
        pair.is_busy = true;
        match request::parse(message) {
            Ok(request) => self.perform(link, request, cx),
            Err(response) => self.respond(link, &response, cx),
        }
    }

    fn perform(&mut self, link: LinkId, request: Request, cx: &mut StepContext<'_>) {
        let planned = self.plan(&request, cx);
        self.proceed(link, planned, Some(request), cx);
    }

    fn proceed(
        &mut self,
        link: LinkId,
        planned: Result<Next, RequestError>,
        request: Option<Request>,
        cx: &mut StepContext<'_>,
    ) {
        let number = link.number();
        match planned {
            Ok(Next::Respond(response)) | Err(RequestError::Respond(response)) => {
                self.respond(link, &response, cx);
            }
            Err(RequestError::EndSession(refusal)) => {
                if let Some(session) = self.session_of(link) {
                    self.end_session(session, &refusal, cx);
                }
            }
            Ok(Next::Change(change, continuation)) => {
                let reason = WaitReason::Management(Box::new((link, continuation)));
                self.state.change(change, number, reason, cx);
            }
            Ok(Next::Ask(queue, body, continuation)) => {
                let reason = WaitReason::Management(Box::new((link, continuation)));
                self.state.request(queue, body, number, reason, cx);
            }
            Ok(Next::Renew) => self.renewal = Some(link),
            Ok(Next::CatchUp(name)) => match request {
                Some(request) => {
                    let continuation = Continuation::Retry(request);
                    let reason = WaitReason::Management(Box::new((link, continuation)));
                    self.state.catch_up(name, number, reason, cx);
                }
                None => debug_assert!(false, "only a request is performed again"),
            },
        }
    }

    fn plan(&mut self, request: &Request, cx: &mut StepContext<'_>) -> Result<Next, RequestError> {
        match request {
            Request::GetQueue(name) => self.plan_get(name, cx),
            Request::DeclareQueue(body) => self.plan_declare(body, cx),
            Request::DeleteQueue(name) => self.plan_delete(name, cx),
            Request::PurgeQueue(name) => {
                let caller = self.state.caller(cx.broker);
                caller
                    .check(Right::Read, Resource::Queue(name))
                    .map_err(not_permitted)?;
                let record = match caller.usable_queue(name) {
                    Err(error) if error.missing.is_some() && !cx.broker.knows_all() => {
                        return Ok(Next::CatchUp(name.clone()));
                    }
                    found => found.map_err(|error| refused(&error))?,
                };
                check_available(&caller, record, cx)?;
                Ok(Next::Ask(
                    record.id,
                    RequestBody::Purge,
                    Continuation::Purged,
                ))
            }
            Request::DeclareExchange(body) => self.plan_exchange(body, cx),
            Request::DeleteExchange(name) => {
                let caller = self.state.caller(cx.broker);
                check_default(name)?;
                caller
                    .check(Right::Configure, Resource::Exchange(name))
                    .map_err(not_permitted)?;
                let change = caller.plan_exchange_deletion(name, false);
                let change = change.map_err(|error| refused(&error))?;
                Ok(Next::Change(change, Continuation::Applied(204)))
            }
            Request::Bind(body) => self.plan_binding(BindingOperation::Bind, body, cx),
            Request::Unbind { binding, arguments } => {
                let found = self.bindings(binding, cx);
                let mut found = found.filter(|b| arguments_hash(&b.arguments) == *arguments);
                let body = match found.next() {
                    Some(record) => BindingBody {
                        arguments: record.arguments.clone(),
                        ..binding.clone()
                    },
                    // The permissions are checked all the same.
                    None => binding.clone(),
                };
                drop(found);
                self.plan_binding(BindingOperation::Unbind, &body, cx)
            }
            Request::RenewToken(token) => self.plan_renewal(token, cx),
            Request::GetBindings(body) => {
                check_binding(&self.state.caller(cx.broker), body).map_err(not_permitted)?;
                let found = self.bindings(body, cx);
                Ok(Next::Respond(Response::bindings(found)))
            }
        }
    }

    fn plan_get(&self, name: &Name, cx: &StepContext<'_>) -> Result<Next, RequestError> {
        let caller = self.state.caller(cx.broker);
        let is_direct_reply = operations::is_direct_reply_name(name);
        if !is_direct_reply {
            // The name of a direct reply-to queue is a secret; who knows it may ask.
            (caller.check_any(Resource::Queue(name))).map_err(not_permitted)?;
        }
        let Some(record) = caller.queue(name) else {
            if !cx.broker.knows_all() {
                return Ok(Next::CatchUp(name.clone()));
            }
            let text = format!("queue '{name}' in vhost '{}' not found", self.state.vhost);
            return Err(Response::error(404, &text).into());
        };
        check_available(&caller, record, cx)?;
        if is_direct_reply {
            // Responders ask whether the requester is still connected.
            let status = queue_status(record, 0, 1, cx);
            return Ok(Next::Respond(Response::queue(200, &status)));
        }
        let continuation = Continuation::Describe {
            record: record.clone(),
            status: 200,
        };
        Ok(Next::Ask(record.id, RequestBody::Stat, continuation))
    }

    fn plan_declare(
        &mut self,
        body: &QueueBody,
        cx: &mut StepContext<'_>,
    ) -> Result<Next, RequestError> {
        let caller = self.state.caller(cx.broker);
        caller
            .check(Right::Configure, Resource::Queue(&body.name))
            .map_err(not_permitted)?;
        let plan = caller.plan_queue_declaration(QueueDeclaration {
            name: body.name.clone(),
            is_server_named: false,
            durable: body.durable,
            exclusive: body.exclusive,
            auto_delete: body.auto_delete,
            arguments: body.arguments.clone(),
        });
        match plan.map_err(|error| refused(&error))? {
            QueueDeclarationPlan::Exists(record) => {
                check_available(&caller, &record, cx)?;
                let id = record.id;
                let continuation = Continuation::Describe {
                    record,
                    status: 200,
                };
                Ok(Next::Ask(id, RequestBody::Stat, continuation))
            }
            QueueDeclarationPlan::Propose(mut record) => {
                if let Some(property) = record.unsupported_property() {
                    let text = format!(
                        "invalid property '{property}' for queue '{}' in vhost '{}'",
                        record.name, record.vhost
                    );
                    return Err(Response::error(400, &text).into());
                }
                record.members = cx.broker.place_queue(&record);
                self.state.owns_queues |= body.exclusive;
                Ok(Next::Change(
                    Change::DeclareQueue(record),
                    Continuation::Declared,
                ))
            }
        }
    }

    fn plan_delete(&self, name: &Name, cx: &StepContext<'_>) -> Result<Next, RequestError> {
        let caller = self.state.caller(cx.broker);
        caller
            .check(Right::Configure, Resource::Queue(name))
            .map_err(not_permitted)?;
        if caller.queue(name).is_none() && !cx.broker.knows_all() {
            return Ok(Next::CatchUp(name.clone()));
        }
        let plan = caller.plan_queue_deletion(name, QueueDeletion::default());
        match plan.map_err(|error| refused(&error))? {
            QueueDeletionPlan::Done => Ok(Next::Respond(Response::message_count(0))),
            QueueDeletionPlan::Propose(change) => {
                Ok(Next::Change(change, Continuation::Deleted(0)))
            }
            QueueDeletionPlan::AskQueue {
                record,
                request,
                change,
            } => {
                check_available(&caller, &record, cx)?;
                Ok(Next::Ask(record.id, request, Continuation::Stopped(change)))
            }
        }
    }

    fn plan_exchange(
        &self,
        body: &ExchangeBody,
        cx: &StepContext<'_>,
    ) -> Result<Next, RequestError> {
        let caller = self.state.caller(cx.broker);
        check_default(&body.name)?;
        if routing::ExchangeType::from_name(&body.kind).is_none() {
            let text = format!("unknown exchange type '{}'", body.kind);
            return Err(Response::error(400, &text).into());
        }
        caller
            .check(Right::Configure, Resource::Exchange(&body.name))
            .map_err(not_permitted)?;
        let plan = caller.plan_exchange_declaration(ExchangeRecord {
            vhost: self.state.vhost.clone(),
            name: body.name.clone(),
            kind: body.kind.clone(),
            durable: body.durable,
            auto_delete: body.auto_delete,
            internal: body.internal,
            arguments: body.arguments.clone(),
        });
        // As in RabbitMQ, 409 is for a conflict with an exchange that exists.
        let exists = caller.exchange(&body.name).is_some();
        let plan = plan.map_err(|error| match error.kind {
            ErrorKind::PreconditionFailed if !exists => Response::error(400, &error.text).into(),
            _ => refused(&error),
        });
        match plan? {
            ExchangePlan::Done => Ok(Next::Respond(Response::empty(204))),
            ExchangePlan::Propose(change) => Ok(Next::Change(change, Continuation::Applied(204))),
        }
    }

    fn plan_binding(
        &self,
        operation: BindingOperation,
        body: &BindingBody,
        cx: &StepContext<'_>,
    ) -> Result<Next, RequestError> {
        let caller = self.state.caller(cx.broker);
        check_default(&body.source)?;
        if let Destination::Exchange(name) = &body.destination {
            check_default(name)?;
        }
        check_binding(&caller, body)
            .and_then(|()| match caller.exchange(&body.source) {
                Some(source) => caller.check_topic(Right::Read, source, &body.key),
                None => Ok(()),
            })
            .map_err(not_permitted)?;
        let change = caller.plan_binding(
            operation,
            BindingRecord {
                vhost: self.state.vhost.clone(),
                source: body.source.clone(),
                destination: body.destination.clone(),
                routing_key: body.key.clone(),
                arguments: body.arguments.clone(),
            },
        );
        let change = change.map_err(|error| binding_refused(&error))?;
        Ok(Next::Change(change, Continuation::Applied(204)))
    }

    /// The bindings between two objects with a key.
    fn bindings<'a>(
        &'a self,
        body: &'a BindingBody,
        cx: &'a StepContext<'_>,
    ) -> impl Iterator<Item = &'a BindingRecord> {
        let all = cx
            .broker
            .tree()
            .bindings_from(&self.state.vhost, &body.source);
        let is_wanted = |binding: &&BindingRecord| {
            binding.destination == body.destination && binding.routing_key == body.key
        };
        all.into_iter().map(|binding| &**binding).filter(is_wanted)
    }

    /// Continues a request with the result of a metadata change.
    pub(crate) fn continue_with_change(
        &mut self,
        link: LinkId,
        continuation: Continuation,
        result: Result<ChangeResult, ChangeError>,
        cx: &mut StepContext<'_>,
    ) {
        let next = match (continuation, result) {
            // The tree is as new as it can be now.
            (Continuation::Retry(request), _) => {
                let planned = match self.plan(&request, cx) {
                    Ok(Next::CatchUp(name)) => Ok(Next::Respond(self.missing(&request, &name))),
                    planned => planned,
                };
                return self.proceed(link, planned, None, cx);
            }
            (
                Continuation::Declared,
                Ok(ChangeResult::Queue {
                    record,
                    created: true,
                }),
            ) => {
                let status = queue_status(&record, 0, 0, cx);
                Ok(Next::Respond(Response::queue(201, &status)))
            }
            (Continuation::Declared, Ok(ChangeResult::Queue { record, .. })) => {
                let id = record.id;
                let continuation = Continuation::Describe {
                    record,
                    status: 200,
                };
                Ok(Next::Ask(id, RequestBody::Stat, continuation))
            }
            (Continuation::Deleted(messages), Ok(_) | Err(ChangeError::NotFound(_))) => {
                Ok(Next::Respond(Response::message_count(messages)))
            }
            (Continuation::Applied(status), Ok(_)) => Ok(Next::Respond(Response::empty(status))),
            (Continuation::Applied(_), Err(error @ ChangeError::NotFound(_))) => {
                Err(binding_refused(&error.into()))
            }
            (_, Err(error)) => Err(refused(&error.into())),
            (continuation, Ok(result)) => Err(mismatch(&continuation, &result)),
        };
        self.proceed(link, next, None, cx);
    }

    /// The response to a request for a queue that does not exist.
    fn missing(&self, request: &Request, name: &Name) -> Response {
        match request {
            Request::DeleteQueue(_) => Response::message_count(0),
            _ => {
                let text = format!("queue '{name}' in vhost '{}' not found", self.state.vhost);
                Response::error(404, &text)
            }
        }
    }

    /// Continues a request with the answer of a queue.
    pub(crate) fn continue_with_answer(
        &mut self,
        link: LinkId,
        continuation: Continuation,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) {
        let next = match (continuation, answer) {
            (
                Continuation::Describe { record, status },
                QueueReply::Count {
                    messages,
                    consumers,
                },
            ) => {
                let queue = queue_status(&record, messages, consumers, cx);
                Ok(Next::Respond(Response::queue(status, &queue)))
            }
            (Continuation::Purged, QueueReply::Count { messages, .. }) => {
                Ok(Next::Respond(Response::message_count(messages)))
            }
            (Continuation::Stopped(change), QueueReply::Count { messages, .. }) => {
                Ok(Next::Change(change, Continuation::Deleted(messages)))
            }
            (_, QueueReply::Refused { code, text }) => {
                let status = match code {
                    404 => 404,
                    406 => 409,
                    _ => 400,
                };
                Err(Response::error(status, &text).into())
            }
            (continuation, answer) => Err(mismatch(&continuation, &answer)),
        };
        self.proceed(link, next, None, cx);
    }

    /// Answers a request that a queue or the metadata group did not answer in time.
    pub(crate) fn time_out_request(&mut self, link: LinkId, cx: &mut StepContext<'_>) {
        let text = "the operation timed out; try again later";
        self.respond(link, &Response::error(503, text), cx);
    }

    /// Answers the first request of a pair.
    fn respond(&mut self, link: LinkId, response: &Response, cx: &mut StepContext<'_>) {
        let Some(pair) = self.pairs.iter_mut().find(|pair| pair.has(link)) else {
            return;
        };
        let Some((_, message)) = pair.requests.front() else {
            return;
        };
        let id: Option<Value<'_>> = request::message_id(message);
        let mut encoded = response.to_message(id);
        if encoded.len() > self.state.settings.limits.response {
            let text = "the response is larger than the limit; ask for less";
            encoded = Response::error(500, text).to_message(id);
        }
        pair.response = Some(encoded);
        self.send_responses(cx);
    }

    /// Sends responses that wait for credit, a window or space in the outbox.
    pub(crate) fn send_responses(&mut self, cx: &mut StepContext<'_>) {
        let mut done: Vec<LinkId> = Vec::new();
        for pair in &mut self.pairs {
            let (Some(response), Some(link)) = (&pair.response, pair.responses_link) else {
                continue;
            };
            let outgoing = OutgoingDelivery {
                tag: &[],
                message_format: 0,
                settled: true,
                parts: std::slice::from_ref(response),
                token: 0,
            };
            if self.engine.send(link, &outgoing, cx.out.tail()).is_err() {
                continue;
            }
            pair.response = None;
            pair.is_busy = false;
            // The settlement gives the client credit for another request.
            if let (Some((delivery, _)), Some(link)) =
                (pair.requests.pop_front(), pair.requests_link)
            {
                let accepted = DeliveryState::ACCEPTED;
                ended(
                    self.engine
                        .settle_received(link, delivery, &accepted, cx.out.tail()),
                );
                done.push(link);
            }
        }
        for link in done {
            self.perform_next(link, cx);
        }
    }
}

fn mismatch(continuation: &Continuation, answer: &dyn std::fmt::Debug) -> RequestError {
    tracing::error!(
        ?continuation,
        ?answer,
        "the answer does not match the request"
    );
    Response::error(500, "the answer of the node does not match the request").into()
}

/// Checks the permissions to change or list bindings between two objects.
fn check_binding(caller: &Caller<'_>, body: &BindingBody) -> OperationResult {
    let destination = match &body.destination {
        Destination::Queue(name) => Resource::Queue(name),
        Destination::Exchange(name) => Resource::Exchange(name),
    };
    caller.check(Right::Write, destination)?;
    caller.check(Right::Read, Resource::Exchange(&body.source))
}

fn check_default(exchange: &str) -> Result<(), RequestError> {
    match exchange {
        "" => Err(Response::error(403, "operation not permitted on the default exchange").into()),
        _ => Ok(()),
    }
}

fn check_available(
    caller: &Caller<'_>,
    record: &QueueRecord,
    cx: &StepContext<'_>,
) -> Result<(), RequestError> {
    let home = cx.broker.unreachable_home(record);
    let available = caller.check_available(record, home);
    available.map_err(|error| Response::error(400, &error.text).into())
}

fn queue_status<'a>(
    record: &'a QueueRecord,
    messages: u64,
    consumers: u32,
    cx: &'a StepContext<'_>,
) -> QueueStatus<'a> {
    let tree = cx.broker.tree();
    let nodes = record.members.iter().filter_map(|&id| tree.node(id));
    let leader = cx.broker.leader_of(record).and_then(|id| tree.node(id));
    QueueStatus {
        record,
        messages,
        consumers,
        leader: leader.map(|node| &*node.name),
        replicas: nodes.map(|node| &*node.name).collect(),
    }
}
