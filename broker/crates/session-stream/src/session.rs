//! The session: dispatches frames of the client and events of the node.

use crate::config::{PROTOCOL, Settings};
use crate::connection::{CloseReason, Connection, ConnectionConfig, Step};
use crate::consume::Consumer;
use crate::publish::{Publisher, Unconfirmed};
use crate::wait::{Operation, Query};
use auth::{Mechanism, TlsPeer};
use bytes::{Buf, BytesMut};
use codec_stream::{ClientCommand, Property, ResponseCode, ServerCommand};
use env::Time;
use message::Table;
use metadata::{Identity, Name, QueueId};
use operations::Caller;
use queue::RejectReason;
use session::{
    Broker, ConnectionInfo, ControlEvent, HeldMemory, Login, MessageCounters, Outbox,
    QueueNotification, ServiceStates, Session, SessionDetails, SessionEvent, SessionInfo,
    SessionState, StreamSessionDetails,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The node and the output during one step.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
}

/// A refused step of the handshake, whose response waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Login(ResponseCode),
    Open(ResponseCode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The virtual host must be open at this time.
    Handshake(Time),
    Open,
    /// The response is sent at this time; input is ignored.
    Refusing(Time, Refusal),
    /// The client has until this time to answer the server's close request.
    Closing(Time),
    Ended,
}

/// Time that a client has to answer the server's close request.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a session with publishers or consumers compares them with the nodes and streams of the cluster.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Input of a paused connection below this size in bytes is copied, to free the driver's read buffer.
const SMALL_INPUT: usize = 16 << 10;
/// Longest property of a client that is kept for listings, in bytes.
const MAX_LISTED_PROPERTY: usize = 512;
/// Most properties of a client that are kept for listings.
const MAX_LISTED_PROPERTIES: usize = 64;

/// A connection of the stream protocol as a state machine.
#[derive(Debug)]
pub struct StreamSession {
    pub(crate) connection: Connection,
    pub(crate) settings: Arc<Settings>,
    pub(crate) phase: Phase,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) is_loopback: bool,
    pub(crate) tls: Option<Arc<TlsPeer>>,
    pub(crate) mechanism: Option<Mechanism>,
    /// The login whose password check is pending.
    pub(crate) login: Option<Login>,
    pub(crate) user: Name,
    /// The identity from an external backend.
    pub(crate) identity: Option<Arc<Identity>>,
    pub(crate) vhost: Name,
    client_properties: Option<Box<Table>>,
    client_name: String,
    /// The client reads version 2 of deliveries.
    pub(crate) reads_committed: bool,
    pub(crate) publishers: BTreeMap<u8, Publisher>,
    pub(crate) unconfirmed: Unconfirmed,
    pub(crate) consumers: BTreeMap<u8, Consumer>,
    /// Numbers publishers and consumers, as their ids are used again.
    pub(crate) next_serial: u32,
    /// Correlation id of the next consumer update.
    pub(crate) next_update: u32,
    /// The command that waits for the metadata group.
    pub(crate) operation: Option<Operation>,
    pub(crate) queries: Vec<Query>,
    pub(crate) next_token: u64,
    /// Reused for routing results.
    pub(crate) routes: Vec<QueueId>,
    /// An alarm stops publishers.
    pub(crate) is_alarmed: bool,
    /// A stream does not keep up with the publishes.
    pub(crate) is_behind: bool,
    /// The outbox limit was exceeded. Cleared when the outbox falls below half of it.
    is_congested: bool,
    /// Input received while reading was paused.
    input: BytesMut,
    /// The client was not read at the end of the last step.
    was_paused: bool,
    /// Bytes written to the client up to the last step.
    written: u64,
    /// Index of the metadata change up to which publishers and consumers were compared with the tree.
    checked: u64,
    check_at: Time,
    counters: Option<Box<MessageCounters>>,
    /// The connection is counted as open.
    pub(crate) is_counted: bool,
}

impl StreamSession {
    pub(crate) fn new(
        settings: Arc<Settings>,
        connection: &ConnectionInfo,
        now: Time,
    ) -> StreamSession {
        StreamSession {
            connection: Connection::new(now),
            phase: Phase::Handshake(now + settings.limits.handshake),
            settings,
            peer: connection.peer,
            local: connection.local,
            is_loopback: connection.is_loopback(),
            tls: connection.tls.clone(),
            mechanism: None,
            login: None,
            user: "".into(),
            identity: None,
            vhost: "".into(),
            client_properties: None,
            client_name: String::new(),
            reads_committed: false,
            publishers: BTreeMap::new(),
            unconfirmed: Unconfirmed::default(),
            consumers: BTreeMap::new(),
            next_serial: 0,
            next_update: 0,
            operation: None,
            queries: Vec::new(),
            next_token: 0,
            routes: Vec::new(),
            is_alarmed: false,
            is_behind: false,
            is_congested: false,
            input: BytesMut::new(),
            was_paused: false,
            written: 0,
            checked: 0,
            check_at: now,
            counters: None,
            is_counted: false,
        }
    }

    /// The connection's user in its virtual host, checked against the node's tree.
    pub(crate) fn caller<'a>(&'a self, broker: &'a dyn Broker) -> Caller<'a> {
        Caller {
            tree: broker.tree(),
            user: &self.user,
            identity: self.identity.as_deref(),
            vhost: &self.vhost,
            session: Some(broker.id()),
            is_operator: false,
            refusals: broker.refusals(),
        }
    }

    /// Updates counters that are reported to the node at the end of the step.
    pub(crate) fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        add(self.counters.get_or_insert_default());
    }

    /// Runs one step: handles the input, then everything that it unblocked.
    fn step(
        &mut self,
        broker: &mut dyn Broker,
        out: &mut Outbox,
        handle: impl FnOnce(&mut Self, &mut StepContext<'_>),
    ) -> SessionState {
        let cx = &mut StepContext { broker, out };
        let now = cx.broker.now();
        if self.was_paused {
            self.connection.excuse_silence(now);
        }
        self.update_congestion(cx);
        handle(self, cx);
        self.check_streams(cx);
        self.flush_confirms(cx);
        self.update_congestion(cx);
        self.read_buffered(cx);
        self.flush_confirms(cx);
        self.pass_credit(cx);
        self.flush_counters(cx);
        self.update_congestion(cx);
        let written = cx.out.sent() + cx.out.len() as u64;
        if written != self.written {
            self.written = written;
            self.connection.sent(now);
        }
        self.was_paused = self.is_paused();
        self.session_state()
    }

    fn session_state(&self) -> SessionState {
        match self.phase {
            Phase::Ended => SessionState::Closing,
            Phase::Refusing(..) | Phase::Closing(_) => SessionState::Open,
            Phase::Handshake(_) | Phase::Open if self.was_paused => SessionState::Paused,
            Phase::Handshake(_) | Phase::Open => SessionState::Open,
        }
    }

    fn update_congestion(&mut self, cx: &StepContext<'_>) {
        let limit = self.settings.limits.outbox;
        let bound = if self.is_congested { limit / 2 } else { limit };
        self.is_congested = cx.out.len() > bound;
    }

    fn is_paused(&self) -> bool {
        self.login.is_some()
            || self.operation.is_some()
            || self.unconfirmed.is_exceeded()
            || self.is_behind
            || (self.is_alarmed && !self.publishers.is_empty())
            || self.is_congested
            || self.queries.len() >= self.settings.limits.pending_requests
    }

    /// Reads frames from the front of the input until one pauses the connection.
    fn read(&mut self, input: &mut BytesMut, cx: &mut StepContext<'_>) {
        let settings = self.settings.clone();
        let mechanisms = match self.tls {
            Some(_) => &settings.secure_mechanisms,
            None => &settings.plain_mechanisms,
        };
        let properties: Vec<Property<'_>> = match self.phase {
            Phase::Handshake(_) => settings
                .properties
                .iter()
                .map(|(key, value)| Property { key, value })
                .collect(),
            _ => Vec::new(),
        };
        let config = ConnectionConfig {
            frame_max: settings.limits.frame,
            heartbeat: settings.limits.heartbeat,
            properties: &properties,
            mechanisms,
        };
        loop {
            match self.phase {
                Phase::Refusing(..) | Phase::Ended => return input.clear(),
                Phase::Closing(_) => {}
                Phase::Handshake(_) | Phase::Open if self.is_paused() => return,
                Phase::Handshake(_) | Phase::Open => {}
            }
            let now = cx.broker.now();
            let was_closing = self.connection.is_closing();
            let (read, step) = self
                .connection
                .receive(&config, now, &input[..], cx.out.tail());
            let mut publish = None;
            match step {
                Step::Starved => {
                    input.advance(read);
                    if self.connection.is_closing() && !was_closing {
                        if let Some(code) = self.connection.failure() {
                            count_error(code, cx);
                        }
                        let why = self.connection.close_reason();
                        tracing::info!(peer = %self.peer, user = %self.user, why, "invalid frame from the client");
                        self.begin_closing(cx);
                        continue;
                    }
                    return;
                }
                Step::PeerProperties(properties) => self.note_properties(properties.iter()),
                Step::Authenticate { mechanism, data } => self.log_in(mechanism, data, cx),
                Step::Open { virtual_host } => self.open(virtual_host, cx),
                Step::Command(ClientCommand::Publish {
                    publisher_id,
                    messages,
                }) => publish = self.plan_publish(publisher_id, &messages, &input[..], cx),
                Step::Command(command) => self.perform(&command, false, cx),
                Step::Closed(reason) => {
                    if reason == CloseReason::Refused {
                        count_error(ResponseCode::SASL_MECHANISM_NOT_SUPPORTED, cx);
                    }
                    self.log_end(reason);
                    self.end(cx);
                }
            }
            match publish {
                Some(publish) => self.publish(publish, input, read, cx),
                None => input.advance(read.min(input.len())),
            }
            self.update_congestion(cx);
        }
    }

    fn log_end(&self, reason: CloseReason) {
        match reason {
            CloseReason::Client | CloseReason::Server => {}
            CloseReason::Refused => {
                tracing::info!(peer = %self.peer, "the SASL mechanism is not offered");
            }
            CloseReason::Silent => {
                tracing::info!(peer = %self.peer, user = %self.user, "missed heartbeats from the client");
            }
        }
    }

    fn note_properties<'p>(&mut self, properties: impl Iterator<Item = Property<'p>>) {
        let mut table = Table::default();
        for Property { key, value } in properties.take(MAX_LISTED_PROPERTIES) {
            let value = &value[..value.floor_char_boundary(MAX_LISTED_PROPERTY)];
            let key = &key[..key.floor_char_boundary(MAX_LISTED_PROPERTY)];
            if key == "connection_name" {
                self.client_name = value.to_owned();
            }
            let value = message::Value::String(value.to_owned().into());
            table.set(key, value);
        }
        self.client_properties = Some(Box::new(table));
    }

    /// Reads input that was buffered while the connection was paused.
    fn read_buffered(&mut self, cx: &mut StepContext<'_>) {
        if self.input.is_empty() || self.is_paused() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        self.read(&mut input, cx);
        self.input = input;
    }

    /// Performs a command of an open connection. A command about a stream that this node does not know is performed again
    /// when this node knows every stream.
    pub(crate) fn perform(
        &mut self,
        command: &ClientCommand<'_>,
        is_retry: bool,
        cx: &mut StepContext<'_>,
    ) {
        use ClientCommand as C;
        let may_retry = !is_retry && !cx.broker.knows_all();
        let (correlation_id, result) = match *command {
            C::DeclarePublisher {
                correlation_id,
                publisher_id,
                reference,
                stream,
            } => {
                let result = self.declare_publisher(publisher_id, reference, stream, cx);
                (correlation_id, result.map(|()| Some(ResponseCode::OK)))
            }
            C::QueryPublisherSequence {
                correlation_id,
                reference,
                stream,
            } => {
                let result = self.query_publisher(correlation_id, reference, stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::DeletePublisher {
                correlation_id,
                publisher_id,
            } => {
                let result = self.delete_publisher(publisher_id, cx);
                (correlation_id, result.map(|()| Some(ResponseCode::OK)))
            }
            C::Subscribe {
                correlation_id,
                subscription_id,
                stream,
                offset,
                credit,
                properties,
            } => {
                let request = crate::consume::Subscription {
                    correlation_id,
                    id: subscription_id,
                    stream,
                    offset,
                    credit,
                };
                let result = self.subscribe(&request, properties.0, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Credit {
                subscription_id,
                credit,
            } => return self.add_credit(subscription_id, credit, cx),
            C::StoreOffset {
                reference,
                stream,
                offset,
            } => (
                0,
                self.store_offset(reference, stream, offset, cx)
                    .map(|()| None),
            ),
            C::QueryOffset {
                correlation_id,
                reference,
                stream,
            } => {
                let result = self.query_offset(correlation_id, reference, stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Unsubscribe {
                correlation_id,
                subscription_id,
            } => {
                let result = self.unsubscribe(subscription_id, cx);
                (correlation_id, result.map(|()| Some(ResponseCode::OK)))
            }
            C::Create {
                correlation_id,
                stream,
                arguments,
            } => {
                let result = self.create(correlation_id, stream, arguments, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Delete {
                correlation_id,
                stream,
            } => {
                let result = self.delete(correlation_id, stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Metadata {
                correlation_id,
                streams,
            } => {
                let result = self.metadata(correlation_id, &streams, may_retry, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Route {
                correlation_id,
                routing_key,
                super_stream,
            } => {
                let result = self.route(correlation_id, routing_key, super_stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::Partitions {
                correlation_id,
                super_stream,
            } => {
                let result = self.partitions(correlation_id, super_stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::ConsumerUpdateResponse {
                correlation_id,
                code,
                offset,
            } => return self.handle_consumer_update(correlation_id, code, offset, cx),
            C::ExchangeCommandVersions {
                correlation_id,
                commands,
            } => return self.exchange_versions(correlation_id, &commands, cx),
            C::StreamStats {
                correlation_id,
                stream,
            } => {
                let result = self.statistics(correlation_id, stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::CreateSuperStream {
                correlation_id,
                super_stream,
                partitions,
                binding_keys,
                arguments,
            } => {
                let request = crate::streams::NewSuperStream {
                    name: super_stream,
                    partitions,
                    binding_keys,
                    arguments,
                };
                let result = self.create_super_stream(correlation_id, &request, cx);
                (correlation_id, result.map(|()| None))
            }
            C::DeleteSuperStream {
                correlation_id,
                super_stream,
            } => {
                let result = self.delete_super_stream(correlation_id, super_stream, cx);
                (correlation_id, result.map(|()| None))
            }
            C::ResolveOffsetSpec {
                correlation_id,
                stream,
                offset,
                ..
            } => {
                let result = self.resolve_offset(correlation_id, stream, offset, cx);
                (correlation_id, result.map(|()| None))
            }
            // The connection performs these, and publishes need the input.
            C::Publish { .. }
            | C::PeerProperties { .. }
            | C::SaslHandshake { .. }
            | C::SaslAuthenticate { .. }
            | C::Tune { .. }
            | C::TuneResponse { .. }
            | C::Open { .. }
            | C::Close { .. }
            | C::CloseResponse { .. }
            | C::Heartbeat {} => return,
        };
        let code = match result {
            Ok(None) => return,
            Ok(Some(code)) => code,
            Err(ResponseCode::STREAM_DOES_NOT_EXIST) if may_retry => {
                return self.catch_up(command, cx);
            }
            Err(code) => {
                tracing::debug!(peer = %self.peer, command = %command.key(), code = code.0, "command refused");
                code
            }
        };
        self.respond(command.key(), correlation_id, code, cx);
    }

    fn handle_session_event(&mut self, event: SessionEvent, cx: &mut StepContext<'_>) {
        match event {
            SessionEvent::Queue(notification) => self.handle_queue_notification(notification, cx),
            SessionEvent::Control(event) => self.handle_control_event(event, cx),
            SessionEvent::Service(_) => {}
        }
    }

    fn handle_queue_notification(
        &mut self,
        notification: QueueNotification,
        cx: &mut StepContext<'_>,
    ) {
        match notification {
            QueueNotification::Published { tag, .. } => self.confirm(tag, cx),
            QueueNotification::NotPublished { queue, tag, why } => {
                let code = match why {
                    RejectReason::Unavailable => ResponseCode::STREAM_NOT_AVAILABLE,
                    RejectReason::MaxLength => ResponseCode::INTERNAL_ERROR,
                };
                let is_deleted = cx.broker.tree().queue_by_id(queue).is_none();
                self.reject(tag, code, is_deleted, cx);
            }
            QueueNotification::Answer { queue, seq, answer } => {
                self.handle_answer(queue, seq, answer, cx);
            }
            QueueNotification::Cursor { queue, event, .. } => {
                self.handle_cursor_event(queue, event, cx);
            }
            // Streams have no other consumers than cursors.
            QueueNotification::Browsed { .. }
            | QueueNotification::Deliver { .. }
            | QueueNotification::Cancelled { .. }
            | QueueNotification::Removed { .. }
            | QueueNotification::TimedOut { .. }
            | QueueNotification::Activity { .. } => {}
        }
    }

    fn handle_control_event(&mut self, event: ControlEvent, cx: &mut StepContext<'_>) {
        match event {
            ControlEvent::Changed { token, result } => self.handle_changed(token, result, cx),
            ControlEvent::Verified { verdict } => self.handle_verified(verdict, cx),
            ControlEvent::Expired => self.expire(cx),
            ControlEvent::Blocked(alarm) => self.is_alarmed = alarm.is_some(),
            ControlEvent::Unblocked => self.is_behind = false,
            ControlEvent::Close { text } => self.close(&text, cx),
            ControlEvent::Shed { text, can_hear } => {
                if can_hear {
                    self.close(&text, cx);
                } else {
                    cx.out.clear();
                }
                self.end(cx);
            }
            ControlEvent::Shutdown => {
                self.close("the node shuts down", cx);
                self.end(cx);
            }
        }
    }

    /// Asks the client to close the connection, on behalf of an operator or of the node.
    pub(crate) fn close(&mut self, why: &str, cx: &mut StepContext<'_>) {
        tracing::info!(peer = %self.peer, user = %self.user, why, "connection closed");
        match self.phase {
            Phase::Open => {
                self.connection.close(ResponseCode::OK, why, cx.out.tail());
                self.begin_closing(cx);
            }
            Phase::Handshake(_) | Phase::Refusing(..) => self.end(cx),
            Phase::Closing(_) | Phase::Ended => {}
        }
    }

    /// The client was asked to close the connection.
    pub(crate) fn begin_closing(&mut self, cx: &mut StepContext<'_>) {
        self.release(cx);
        self.phase = Phase::Closing(cx.broker.now() + CLOSE_TIMEOUT);
    }

    /// Ends the connection after the output is sent.
    pub(crate) fn end(&mut self, cx: &mut StepContext<'_>) {
        self.release(cx);
        self.input.clear();
        self.phase = Phase::Ended;
    }

    /// Releases all publishers and consumers. Does nothing when called again.
    fn release(&mut self, cx: &mut StepContext<'_>) {
        self.flush_confirms(cx);
        if std::mem::take(&mut self.is_counted) {
            cx.broker.count_stream_connection(-1);
        }
        let consumers: Vec<u8> = self.consumers.keys().copied().collect();
        for id in consumers {
            self.remove_consumer(id, cx);
        }
        let publishers: Vec<u8> = self.publishers.keys().copied().collect();
        for id in publishers {
            self.remove_publisher(id, cx);
        }
        self.unconfirmed.clear();
        self.operation = None;
        self.queries.clear();
        self.login = None;
    }

    /// Compares publishers and consumers with the tree after it has changed.
    fn check_streams(&mut self, cx: &mut StepContext<'_>) {
        let applied = cx.broker.tree().applied();
        // The response to a deletion comes before the metadata update.
        if applied == self.checked || self.phase != Phase::Open || self.operation.is_some() {
            return;
        }
        self.checked = applied;
        let mut gone: Vec<Name> = Vec::new();
        let publishers = self.publishers.values().map(|p| (p.queue, &p.stream));
        let consumers = self.consumers.values().map(|c| (c.queue, &c.stream));
        for (queue, stream) in publishers.chain(consumers) {
            if cx.broker.tree().queue_by_id(queue).is_none() && !gone.contains(stream) {
                gone.push(stream.clone());
            }
        }
        for stream in gone {
            self.drop_stream(&stream, cx);
        }
    }

    /// Drops the publishers and consumers of a stream that was deleted or has another leader, and tells the client to ask
    /// for its nodes again.
    pub(crate) fn drop_stream(&mut self, stream: &str, cx: &mut StepContext<'_>) {
        self.flush_confirms(cx);
        let of_stream = self.publishers.iter().filter(|(_, p)| *p.stream == *stream);
        let publishers: Vec<u8> = of_stream.map(|(id, _)| *id).collect();
        for id in publishers {
            self.remove_publisher(id, cx);
        }
        let of_stream = self.consumers.iter().filter(|(_, c)| *c.stream == *stream);
        let consumers: Vec<u8> = of_stream.map(|(id, _)| *id).collect();
        for id in consumers {
            self.remove_consumer(id, cx);
        }
        ServerCommand::MetadataUpdate {
            code: ResponseCode::STREAM_NOT_AVAILABLE,
            stream,
        }
        .encode(cx.out.tail());
    }

    fn uses_streams(&self) -> bool {
        !self.publishers.is_empty() || !self.consumers.is_empty()
    }

    fn handle_tick(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        match self.phase {
            Phase::Handshake(until) if now >= until => {
                tracing::info!(peer = %self.peer, "the handshake timed out");
                return self.end(cx);
            }
            Phase::Refusing(until, _) => {
                if now >= until {
                    self.send_refusal(cx);
                }
                return;
            }
            Phase::Closing(until) if now >= until => return self.end(cx),
            Phase::Ended => return,
            _ => {}
        }
        if cx.broker.is_throttled() {
            self.connection.excuse_silence(now);
        }
        if let Step::Closed(reason) = self.connection.tick(now, cx.out.tail()) {
            self.log_end(reason);
            return self.end(cx);
        }
        if self.phase == Phase::Open {
            self.time_out_waits(now, cx);
        }
        if self.phase == Phase::Open && self.uses_streams() && now >= self.check_at {
            self.check_at = now + CHECK_INTERVAL;
            self.check_leaders(cx);
            self.check_consumers(cx);
        }
    }

    /// Reports the counters of this step to the node.
    fn flush_counters(&mut self, cx: &mut StepContext<'_>) {
        if let Some(counters) = &mut self.counters
            && **counters != MessageCounters::default()
        {
            cx.broker.message_counters(PROTOCOL, counters);
            **counters = MessageCounters::default();
        }
    }

    fn stream_details(&self) -> StreamSessionDetails {
        let publisher = |(id, publisher): (&u8, &Publisher)| publisher.details(*id);
        let consumer = |(id, consumer): (&u8, &Consumer)| consumer.details(*id);
        StreamSessionDetails {
            publishers: self.publishers.iter().map(publisher).collect(),
            consumers: self.consumers.iter().map(consumer).collect(),
        }
    }

    pub(crate) fn next_serial(&mut self) -> u32 {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.next_serial
    }
}

/// Counts an error that the client is sent, under RabbitMQ's name for it.
pub(crate) fn count_error(code: ResponseCode, cx: &mut StepContext<'_>) {
    let error = match code {
        ResponseCode::STREAM_DOES_NOT_EXIST => "stream_does_not_exist",
        ResponseCode::SUBSCRIPTION_ID_ALREADY_EXISTS => "subscription_id_already_exists",
        ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST => "subscription_id_does_not_exist",
        ResponseCode::STREAM_ALREADY_EXISTS => "stream_already_exists",
        ResponseCode::STREAM_NOT_AVAILABLE => "stream_not_available",
        ResponseCode::SASL_MECHANISM_NOT_SUPPORTED => "sasl_mechanism_not_supported",
        ResponseCode::AUTHENTICATION_FAILURE => "authentication_failure",
        ResponseCode::SASL_ERROR => "sasl_error",
        ResponseCode::SASL_CHALLENGE => "sasl_challenge",
        ResponseCode::SASL_AUTHENTICATION_FAILURE_LOOPBACK => {
            "sasl_authentication_failure_loopback"
        }
        ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE => "vhost_access_failure",
        ResponseCode::UNKNOWN_FRAME => "unknown_frame",
        ResponseCode::FRAME_TOO_LARGE => "frame_too_large",
        ResponseCode::INTERNAL_ERROR => "internal_error",
        ResponseCode::ACCESS_REFUSED => "access_refused",
        ResponseCode::PRECONDITION_FAILED => "precondition_failed",
        ResponseCode::PUBLISHER_DOES_NOT_EXIST => "publisher_does_not_exist",
        // RabbitMQ has no metric for the others.
        _ => return,
    };
    cx.broker.count_stream_error(error);
}

impl Session for StreamSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| {
            if this.input.is_empty() {
                this.read(input, cx);
                if this.is_paused() && this.phase != Phase::Ended {
                    // A few bytes must not keep the whole read buffer allocated.
                    this.input = match input.len() < SMALL_INPUT {
                        true => BytesMut::from(&std::mem::take(input)[..]),
                        false => input.split(),
                    };
                }
            } else {
                this.input.unsplit(input.split());
            }
            if this.unfinished() > 0 {
                cx.broker.note_held();
            }
        })
    }

    fn session_event(
        &mut self,
        session_event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| {
            this.handle_session_event(session_event, cx);
        })
    }

    fn service_event(
        &mut self,
        event: &mut dyn Any,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        self.step(broker, out, |this, cx| this.handle_group_event(event, cx))
    }

    fn tick(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, Self::handle_tick)
    }

    fn wake_at(&self) -> Option<Time> {
        let until = match self.phase {
            Phase::Ended => return None,
            Phase::Refusing(until, _) => return Some(until),
            Phase::Handshake(until) | Phase::Closing(until) => Some(until),
            Phase::Open => None,
        };
        let check = self.uses_streams().then_some(self.check_at);
        let waits = self.queries.iter().map(|query| query.deadline);
        let operation = self.operation.as_ref().map(|operation| operation.deadline);
        let heartbeat = self.connection.deadline();
        waits
            .chain(until)
            .chain(check)
            .chain(operation)
            .chain(heartbeat)
            .min()
    }

    fn gone(&mut self, broker: &mut dyn Broker) {
        let cx = &mut StepContext {
            broker,
            out: &mut Outbox::default(),
        };
        self.end(cx);
        self.flush_counters(cx);
    }

    fn drained(&mut self, broker: &mut dyn Broker, out: &mut Outbox) -> SessionState {
        self.step(broker, out, |_, _| {})
    }

    fn unfinished(&self) -> usize {
        self.input.len()
    }

    fn held(&self) -> HeldMemory {
        HeldMemory {
            is_authenticated: self.mechanism.is_some(),
            ..HeldMemory::default()
        }
    }

    fn info(&self, _services: &ServiceStates) -> SessionInfo {
        SessionInfo {
            protocol: PROTOCOL,
            user: self.user.to_string(),
            vhost: self.vhost.to_string(),
            client_name: self.client_name.clone(),
            channels: 0,
        }
    }

    fn details(&self) -> SessionDetails {
        let heartbeat = self.connection.heartbeat();
        let heartbeat = heartbeat.map_or(0, |interval| interval.as_secs());
        SessionDetails {
            state: match self.phase {
                Phase::Handshake(_) => "starting",
                Phase::Open if self.is_alarmed && !self.publishers.is_empty() => "blocked",
                Phase::Open if self.is_behind => "flow",
                Phase::Open => "running",
                Phase::Refusing(..) | Phase::Closing(_) | Phase::Ended => "closing",
            },
            auth_mechanism: self.mechanism.map_or("", Mechanism::name),
            tls: self.tls.clone(),
            heartbeat_s: u16::try_from(heartbeat).unwrap_or(u16::MAX),
            frame_max: self.connection.frame_max(),
            client_properties: self
                .client_properties
                .as_deref()
                .cloned()
                .unwrap_or_default(),
            stream: Some(Box::new(self.stream_details())),
            ..SessionDetails::default()
        }
    }
}
