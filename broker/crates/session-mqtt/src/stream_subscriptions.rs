//! Subscriptions that read a stream instead of waiting for new messages.
//!
//! A client of 5.0 asks for one by the user property [`OFFSET`] of SUBSCRIBE. The filter of the subscription
//! must be bound to a stream, so that the stream has all messages that match it. Such a subscription ends with
//! its connection: the client keeps its position itself, since each message has its offset as user property.

use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{ConnectionFailure, PacketResult};
use crate::session_queue::binding_key;
use crate::state::{MessageOwner, QueuedMessage};
use codec_mqtt::{Properties, ReasonCode, matches, shared};
use conversion::mqtt::{self, Envelope};
use message::{Message, Table, Value};
use metadata::{QueueId, QueueRecord, Right, Tree};
use queue::{
    ConsumerId, ConsumerSpec, FlowMode, QueueReply, QueueType, RequestBody, SettlementOutcome,
};
use session::{DeliveryKey, RequestSeq};
use smallvec::SmallVec;
use std::sync::Arc;
use topics::{Delivery, Subscription};

/// The user property of SUBSCRIBE with the position in the stream, and of PUBLISH with the offset of the message.
pub(crate) const OFFSET: &str = "x-stream-offset";
/// The user property of SUBSCRIBE with the name of the stream. Needed if the filter is bound to several.
const STREAM: &str = "x-stream-name";
/// Prefix of a timestamp in [`OFFSET`], in seconds since 1970.
const TIMESTAMP: &str = "timestamp=";
/// Maximum number of messages that a stream delivers before the client acknowledges some.
const MAX_PREFETCH: u16 = 1000;

/// A message that a stream delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamDelivery {
    consumer: ConsumerId,
    /// The number of the delivery.
    id: u64,
}

/// The position that a SUBSCRIBE asks for.
#[derive(Debug)]
pub(crate) struct StreamStart<'a> {
    name: Option<&'a str>,
    /// `None`: the property is not valid.
    offset: Option<Value>,
}

/// The stream that a filter will read.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    queue: QueueId,
    offset: Value,
}

/// The stream subscriptions of a connection.
#[derive(Debug, Default)]
pub(crate) struct StreamSubscriptions {
    all: Vec<StreamSubscription>,
    /// The number of the last consumer. Numbers are not reused.
    last_consumer: u32,
}

#[derive(Debug)]
struct StreamSubscription {
    filter: Box<str>,
    subscription: Subscription,
    queue: QueueId,
    consumer: ConsumerId,
    /// The request whose answer is missing.
    pending: Option<RequestSeq>,
    /// Deliveries that the client has completed, as ranges. Sent at the end of the step.
    settled: Vec<(u64, u64)>,
}

impl<'a> StreamStart<'a> {
    /// `None`: the SUBSCRIBE does not ask for a stream.
    pub(crate) fn find(properties: &Properties<'a>) -> Option<StreamStart<'a>> {
        let find = |name| {
            let mut all = properties.user_properties();
            all.find_map(|(key, value)| (key == name).then_some(value))
        };
        Some(StreamStart {
            offset: parse_offset(find(OFFSET)?),
            name: find(STREAM),
        })
    }
}

/// The argument of a consumer: `first`, `last`, `next`, an interval such as `1h`, `timestamp=` and seconds since
/// 1970, or an offset.
fn parse_offset(text: &str) -> Option<Value> {
    if let Some(seconds) = text.strip_prefix(TIMESTAMP) {
        return Some(Value::Timestamp(seconds.parse().ok()?));
    }
    if let Ok(offset) = text.parse::<u64>() {
        return Some(Value::I64(i64::try_from(offset).ok()?));
    }
    let is_interval = || {
        let number = text.strip_suffix(['Y', 'M', 'D', 'h', 'm', 's'])?;
        number.parse::<u32>().ok()
    };
    let is_known = matches!(text, "first" | "last" | "next") || is_interval().is_some();
    is_known.then(|| Value::from(text))
}

/// The streams that are bound to the exchange with the key of this filter.
fn bound_streams(tree: &Tree, vhost: &str, exchange: &str, key: &str) -> Vec<Arc<QueueRecord>> {
    let mut routes = Vec::new();
    // A key with wildcards matches the same key as a pattern, so these are more than are bound with it.
    tree.route(vhost, exchange, &[key], &Table::default, &mut routes);
    let bound = routes.into_iter().filter_map(|id| {
        let record = tree.queue_by_id(id)?;
        let is_bound = record.kind == QueueType::Stream
            && tree
                .bindings_of_queue_with_key(id, exchange, key)
                .next()
                .is_some();
        is_bound.then(|| Arc::clone(record))
    });
    bound.collect()
}

impl ClientConnection {
    /// Number of subscriptions that read streams.
    pub(crate) fn stream_subscriptions(&self) -> usize {
        self.rare
            .streams
            .as_ref()
            .map_or(0, |streams| streams.all.len())
    }

    /// The stream of a filter. Fails if there is none that the user may read, if there are several and none is
    /// named, or if the position is not valid.
    pub(crate) fn find_stream(
        &mut self,
        filter: &str,
        start: &StreamStart<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<StreamRequest, ReasonCode> {
        let refusal = match self.look_for_stream(filter, start, cx.broker.tree()) {
            Ok(request) => return Ok(request),
            Err(refusal) => refusal,
        };
        let (reason, why) = refusal;
        let client = self.client_id(cx);
        tracing::warn!(event = "mqtt.stream_refused", client, filter, why);
        if reason == ReasonCode::NotAuthorized {
            self.note_refusal(("topic", filter), "read", why, cx);
        }
        Err(reason)
    }

    fn look_for_stream(
        &self,
        filter: &str,
        start: &StreamStart<'_>,
        tree: &Tree,
    ) -> Result<StreamRequest, (ReasonCode, &'static str)> {
        const REFUSED: ReasonCode = ReasonCode::ImplementationSpecificError;
        let Some(offset) = &start.offset else {
            let why = "x-stream-offset must be first, last, next, an offset, timestamp=SECONDS or an interval such as 1h";
            return Err((REFUSED, why));
        };
        if shared(filter).ok().flatten().is_some() {
            return Err((REFUSED, "a shared subscription cannot read a stream"));
        }
        let (vhost, exchange) = (&self.account.vhost, &self.settings.exchange);
        let mut streams = bound_streams(tree, vhost, exchange, &binding_key(filter));
        if let Some(name) = start.name {
            streams.retain(|stream| *stream.name == *name);
        }
        let stream = match &*streams {
            [] => {
                let why =
                    "no stream is bound to the exchange of MQTT with this filter as routing key";
                return Err((ReasonCode::TopicFilterInvalid, why));
            }
            [stream] => stream,
            _ => {
                let why = "several streams are bound with this filter: name one with x-stream-name";
                return Err((REFUSED, why));
            }
        };
        match self
            .account
            .access(tree)
            .permits(vhost, Right::Read, &stream.name)
        {
            true => Ok(StreamRequest {
                queue: stream.id,
                offset: offset.clone(),
            }),
            false => Err((
                ReasonCode::NotAuthorized,
                "the user may not read the stream",
            )),
        }
    }

    /// Starts to read a stream. It replaces no other subscription.
    pub(crate) fn subscribe_stream(
        &mut self,
        filter: &str,
        subscription: Subscription,
        request: &StreamRequest,
        cx: &mut StepContext<'_>,
    ) {
        let mut arguments = Table::default();
        arguments.set(OFFSET, request.offset.clone());
        let spec = ConsumerSpec {
            tag: self.client_id(cx).into(),
            channel: 0,
            flow_mode: FlowMode::Prefetch,
            prefetch: self.quota.min(MAX_PREFETCH).into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments,
            filter: None,
        };
        let streams = self.rare.streams.get_or_insert_default();
        streams.last_consumer = streams.last_consumer.max(crate::session_queue::CONSUMER.0) + 1;
        let consumer = ConsumerId(streams.last_consumer);
        let seq = cx
            .broker
            .request(request.queue, RequestBody::Consume { consumer, spec });
        streams.all.push(StreamSubscription {
            filter: filter.into(),
            subscription,
            queue: request.queue,
            consumer,
            pending: Some(seq),
            settled: Vec::new(),
        });
    }

    /// Ends the stream subscription with this filter. Returns false if there is none.
    pub(crate) fn remove_stream_subscription(
        &mut self,
        filter: &str,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let Some(streams) = self.rare.streams_mut() else {
            return false;
        };
        let Some(at) = streams.all.iter().position(|s| *s.filter == *filter) else {
            return false;
        };
        let ended = streams.all.remove(at);
        let consumer = ended.consumer;
        cx.broker
            .request(ended.queue, RequestBody::Cancel { consumer });
        true
    }

    /// Handles the answer of a stream. `None`: it answers no request of a stream subscription.
    pub(crate) fn handle_stream_answer(
        &mut self,
        queue: QueueId,
        seq: RequestSeq,
        answer: &QueueReply,
    ) -> Option<PacketResult> {
        let mut all = self.rare.streams_mut()?.all.iter_mut();
        let found = all.find(|s| s.queue == queue && s.pending == Some(seq))?;
        found.pending = None;
        Some(match answer {
            QueueReply::Refused { text, .. } => Err(ConnectionFailure::new(
                ReasonCode::ImplementationSpecificError,
                text.clone(),
            )),
            _ => Ok(()),
        })
    }

    /// Handles messages of a stream.
    pub(crate) fn handle_stream_deliveries(
        &mut self,
        consumer: ConsumerId,
        deliveries: Vec<queue::Delivery>,
        cx: &mut StepContext<'_>,
    ) {
        for delivery in deliveries {
            let id = delivery.id;
            let owner = StreamDelivery { consumer, id };
            match self.convert_from_stream(consumer, &delivery.message) {
                Some(delivery) => self.state.push_from_queue(QueuedMessage {
                    delivery,
                    owner: MessageOwner::Stream(owner),
                    dup: false,
                }),
                None => self.settle_stream_delivery(owner),
            }
        }
        self.send_waiting(cx);
    }

    /// `None` if the message does not match the filter: the stream may have other bindings.
    fn convert_from_stream(&mut self, consumer: ConsumerId, message: &Message) -> Option<Delivery> {
        let settings = Arc::clone(&self.settings);
        let mut all = self.rare.streams_mut()?.all.iter();
        let found = all.find(|s| s.consumer == consumer)?;
        let message = message
            .routing_keys()
            .find_map(|key| mqtt::convert(message, key, &settings.exchange))?;
        let topic = Envelope::read(message.properties()).ok()?;
        if !matches(&found.filter, topic.topic().ok()?) {
            return None;
        }
        Some(Delivery {
            group: 0,
            message,
            hits: SmallVec::from_buf([found.subscription.to_match()]),
            retained: false,
        })
    }

    /// The client has completed a delivery of a stream.
    pub(crate) fn settle_stream_delivery(&mut self, delivery: StreamDelivery) {
        let Some(streams) = self.rare.streams_mut() else {
            return;
        };
        let mut all = streams.all.iter_mut();
        let Some(found) = all.find(|s| s.consumer == delivery.consumer) else {
            return;
        };
        match found.settled.last_mut() {
            Some((_, to)) if to.checked_add(1) == Some(delivery.id) => *to = delivery.id,
            _ => found.settled.push((delivery.id, delivery.id)),
        }
    }

    /// The key of a delivery. `None`: its subscription has ended.
    #[cold]
    pub(crate) fn stream_delivery_key(&self, delivery: StreamDelivery) -> Option<DeliveryKey> {
        let mut all = self.rare.streams.as_ref()?.all.iter();
        let found = all.find(|s| s.consumer == delivery.consumer)?;
        Some(DeliveryKey {
            queue: found.queue,
            consumer: delivery.consumer,
            id: delivery.id,
        })
    }

    /// Sends the settlements of the step to the streams.
    #[inline]
    pub(crate) fn flush_settled_streams(&mut self, cx: &mut StepContext<'_>) {
        if let Some(streams) = self.rare.streams_mut() {
            flush_settled(streams, cx);
        }
    }

    /// The stream has ended a subscription.
    pub(crate) fn stream_cancelled(&mut self, consumer: ConsumerId) -> PacketResult {
        let Some(streams) = self.rare.streams_mut() else {
            return Ok(());
        };
        let Some(at) = streams.all.iter().position(|s| s.consumer == consumer) else {
            return Ok(());
        };
        let ended = streams.all.remove(at);
        let text = format!(
            "the stream of the subscription to '{}' was deleted or has lost its replicas",
            ended.filter
        );
        Err(ConnectionFailure::new(
            ReasonCode::AdministrativeAction,
            text,
        ))
    }
}

/// Sends the settlements of the step to the streams.
#[cold]
fn flush_settled(streams: &mut StreamSubscriptions, cx: &mut StepContext<'_>) {
    for stream in streams.all.iter_mut().filter(|s| !s.settled.is_empty()) {
        let body = RequestBody::Settle {
            consumer: stream.consumer,
            outcome: SettlementOutcome::Accepted,
            ids: std::mem::take(&mut stream.settled),
        };
        cx.broker.request(stream.queue, body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_other_protocols() {
        for text in ["first", "last", "next", "5m", "7D"] {
            assert_eq!(parse_offset(text), Some(Value::from(text)));
        }
        assert_eq!(parse_offset("0"), Some(Value::I64(0)));
        assert_eq!(parse_offset("timestamp=17"), Some(Value::Timestamp(17)));
        let largest = i64::MAX as u64;
        assert_eq!(
            parse_offset(&largest.to_string()),
            Some(Value::I64(i64::MAX))
        );
        for text in [
            "",
            "First",
            "-1",
            "1.5",
            "h",
            "99999999999h",
            "timestamp=",
            "timestamp=x",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            assert_eq!(parse_offset(text), None, "{text}");
        }
    }
}
