//! Spans of the messages that this shard's clients publish and get. A shard whose node exports no spans has no recorder.
//!
//! A message has spans if the context that its publisher sent says that the trace is recorded. The span of a publish lasts from
//! the message's arrival until all its queues have answered, that of a delivery until the client has settled it. Both are
//! children of the publisher's span. The names are those of OpenTelemetry's conventions for messaging.

use crate::FixedState;
use env::rng::SeededRng;
use env::{Rng as _, Time, WallTime};
use hashbrown::HashMap;
use message::Message;
use metadata::{QueueId, Tree};
use queue::{QueueType, RequestBody, SettlementOutcome, Timestamps};
use session::{
    DeliveryKey, EntriesEvent, PublishTag, SampledDelivery, TraceEvent, TracedEntries,
    TracedMessage,
};
use std::collections::BTreeMap;
use telemetry::{
    Attribute, AttributeValue, Span, SpanId, SpanKind, SpanSink, TraceContext, TraceId,
};

/// Most bytes of spans that have not ended, on each shard.
const MAX_OPEN_BYTES: usize = 8 << 20;
/// Spans that go to the exporter at once, also within a turn.
const BATCH: usize = 64;
/// Difference between the clocks that is corrected. The wall clock has milliseconds.
const MAX_SKEW_NS: u64 = 5_000_000;

/// What a shard needs to record spans.
#[derive(Clone, Debug)]
pub struct SpanSettings {
    /// Takes the spans.
    pub sink: SpanSink,
    /// The share of messages without a context whose publish is recorded; 0 to 1.
    pub sample_ratio: f64,
}

/// The spans of a publish that queues have not answered. A publish of the stream protocol has a span for each sampled message.
struct OpenPublish {
    spans: Vec<Span>,
    /// Queues that have not answered.
    left: usize,
    is_rejected: bool,
}

pub struct SpanRecorder {
    settings: SpanSettings,
    rng: SeededRng,
    /// The wall time in nanoseconds at the origin of [`Time`].
    origin_ns: u64,
    publishes: HashMap<(u64, PublishTag), OpenPublish, FixedState>,
    /// The first recorded delivery that a session has written since it was asked for one.
    delivered: Option<(u64, SampledDelivery, TraceId)>,
    /// By session; ordered, because settlements name ranges.
    deliveries: BTreeMap<(u64, DeliveryKey), Span>,
    /// Size of the spans in `publishes` and `deliveries`.
    open_bytes: usize,
    finished: Vec<Span>,
    /// A flush follows in this turn.
    is_flush_due: bool,
}

impl SpanRecorder {
    pub fn new(settings: SpanSettings, seed: u64) -> SpanRecorder {
        SpanRecorder {
            settings,
            rng: SeededRng::new(seed),
            origin_ns: 0,
            publishes: HashMap::default(),
            delivered: None,
            deliveries: BTreeMap::new(),
            open_bytes: 0,
            finished: Vec::new(),
            is_flush_due: false,
        }
    }

    /// Begins the span of a message that a session has published or got.
    #[cold]
    pub fn record(
        &mut self,
        at: Timestamps,
        tree: &Tree,
        session: u64,
        traced: &TracedMessage<'_>,
    ) {
        let context = conversion::trace::context(traced.message);
        let may_begin = matches!(traced.what, TraceEvent::Published { .. });
        let Some(context) = self.decide(context, may_begin) else {
            return;
        };
        let start_ns = self.unix_ns(at);
        let mut span = self.begin(context, start_ns);
        (span.kind, span.name) = kind_and_name(traced);
        span.attributes = attributes(traced);
        match traced.what {
            TraceEvent::Published { routes, tag } => {
                if let [only] = routes
                    && let Some(record) = tree.queue_by_id(*only)
                {
                    let name = Attribute::text("posthorn.queue", &record.name);
                    span.attributes.push(name);
                }
                let routed = Attribute::int("posthorn.routed_queues", routes.len());
                span.attributes.push(routed);
                if routes.is_empty() || !tag.expects_confirm() {
                    return self.finish(span, start_ns);
                }
                if self.admit(span.size()) {
                    self.open((session, tag), routes.len(), vec![span], start_ns);
                }
            }
            TraceEvent::Delivered {
                queue,
                redelivered,
                delivery,
            } => {
                if !redelivered {
                    let record = tree.queue(traced.vhost, queue);
                    let sample = SampledDelivery {
                        queue_type: record.map(|record| record.kind),
                        received: traced.message.received(),
                    };
                    self.note_delivered(session, sample, span.trace);
                }
                self.open_delivery(session, delivery, span);
            }
        }
    }

    /// Begins the span of a delivery, which lasts until it is settled.
    fn open_delivery(&mut self, session: u64, delivery: Option<DeliveryKey>, span: Span) {
        let start_ns = span.start_ns;
        let Some(key) = delivery else {
            return self.finish(span, start_ns);
        };
        if self.admit(span.size())
            && let Some(earlier) = self.deliveries.insert((session, key), span)
        {
            self.open_bytes -= earlier.size();
            self.finish(earlier, start_ns);
        }
    }

    fn note_delivered(&mut self, session: u64, sample: SampledDelivery, trace: TraceId) {
        let is_known = |(number, ..): &(u64, SampledDelivery, TraceId)| *number == session;
        if !self.delivered.as_ref().is_some_and(is_known) {
            self.delivered = Some((session, sample, trace));
        }
    }

    /// The trace of a publish that queues have not all answered.
    pub fn trace_of_publish(&self, publish: (u64, PublishTag)) -> Option<TraceId> {
        let open = self.publishes.get(&publish)?;
        open.spans.first().map(|span| span.trace)
    }

    /// The trace of the sampled delivery of a session's step. The first recorded delivery of the step is it, or has the same latency.
    pub fn trace_of_delivery(
        &mut self,
        session: u64,
        sample: Option<&SampledDelivery>,
    ) -> Option<TraceId> {
        let (number, delivered, trace) = self.delivered.take()?;
        (number == session && sample == Some(&delivered)).then_some(trace)
    }

    /// Begins the spans of messages of the stream protocol that a session has published or got.
    #[cold]
    pub fn record_entries(
        &mut self,
        at: Timestamps,
        session: u64,
        traced: &TracedEntries<'_>,
        messages: &mut dyn Iterator<Item = &[u8]>,
    ) {
        let start_ns = self.unix_ns(at);
        let mut opened = Vec::new();
        for message in messages {
            let parts = conversion::trace::entry_parts(message);
            let may_begin = matches!(traced.event, EntriesEvent::Published(_));
            let Some(context) = self.decide(parts.context, may_begin) else {
                continue;
            };
            let mut span = self.begin(context, start_ns);
            (span.kind, span.name) = match traced.event {
                EntriesEvent::Published(_) => (SpanKind::Server, publish_name(traced.stream)),
                EntriesEvent::Delivered { received } => {
                    let sample = SampledDelivery {
                        queue_type: Some(QueueType::Stream),
                        received,
                    };
                    self.note_delivered(session, sample, span.trace);
                    (SpanKind::Internal, deliver_name(traced.stream))
                }
            };
            span.attributes = entry_attributes(traced, parts.body_len);
            match traced.event {
                EntriesEvent::Published(tag) if tag.expects_confirm() => {
                    if self.admit(span.size()) {
                        opened.push(span);
                    }
                }
                EntriesEvent::Published(_) | EntriesEvent::Delivered { .. } => {
                    self.finish(span, start_ns);
                }
            }
        }
        if let EntriesEvent::Published(tag) = traced.event
            && !opened.is_empty()
        {
            self.open((session, tag), 1, opened, start_ns);
        }
    }

    /// A queue has answered a publish.
    pub fn answered(&mut self, at: Timestamps, publish: (u64, PublishTag), accepted: bool) {
        let Some(open) = self.publishes.get_mut(&publish) else {
            return;
        };
        open.left = open.left.saturating_sub(1);
        open.is_rejected |= !accepted;
        if open.left > 0 {
            return;
        }
        if let Some(open) = self.publishes.remove(&publish) {
            let error = open.is_rejected.then_some("rejected");
            let end_ns = self.unix_ns(at);
            self.close(open, error, end_ns);
        }
    }

    /// A session settles deliveries, or gives them back.
    pub fn requested(
        &mut self,
        at: Timestamps,
        (session, queue): (u64, QueueId),
        body: &RequestBody,
    ) {
        let (consumer, ids, outcome) = match body {
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            } => (*consumer, ids.as_slice(), outcome_name(*outcome)),
            RequestBody::Modify { consumer, ids, .. } => (*consumer, ids.as_slice(), "modified"),
            RequestBody::CancelAndRequeue { consumer } | RequestBody::Recover { consumer } => {
                (*consumer, &[(0, u64::MAX)][..], "requeued")
            }
            _ => return,
        };
        for &(from, to) in ids.iter().filter(|(from, to)| from <= to) {
            let key = |id| {
                let key = DeliveryKey {
                    queue,
                    consumer,
                    id,
                };
                (session, key)
            };
            self.end_deliveries(at, (key(from), key(to)), outcome);
        }
    }

    /// A session has ended: its deliveries are requeued, and its publishes are not confirmed.
    pub fn session_ended(&mut self, at: Timestamps, session: u64) {
        let key = |id: u64| DeliveryKey {
            queue: QueueId(id),
            consumer: queue::ConsumerId(id as u32),
            id,
        };
        let range = ((session, key(0)), (session, key(u64::MAX)));
        self.end_deliveries(at, range, "requeued");
        let of_session = |(number, _): &(u64, PublishTag), _: &mut OpenPublish| *number == session;
        let ended: Vec<_> = self.publishes.extract_if(of_session).collect();
        let end_ns = self.unix_ns(at);
        for (_, open) in ended {
            self.close(open, Some("connection_closed"), end_ns);
        }
    }

    /// Returns true if [`SpanRecorder::flush`] must be called in this turn, once until it is.
    pub fn begin_flush(&mut self) -> bool {
        let is_needed = !self.finished.is_empty() && !self.is_flush_due;
        self.is_flush_due |= is_needed;
        is_needed
    }

    /// Gives the finished spans to the exporter.
    pub fn flush(&mut self) {
        self.is_flush_due = false;
        if !self.finished.is_empty() {
            self.send();
        }
    }

    fn send(&mut self) {
        self.settings.sink.send(std::mem::take(&mut self.finished));
    }

    /// Keeps admitted spans of a publish until `left` queues have answered.
    fn open(&mut self, publish: (u64, PublishTag), left: usize, spans: Vec<Span>, now_ns: u64) {
        let open = OpenPublish {
            spans,
            left,
            is_rejected: false,
        };
        if let Some(earlier) = self.publishes.insert(publish, open) {
            // A channel of the same number was closed.
            self.close(earlier, None, now_ns);
        }
    }

    fn close(&mut self, open: OpenPublish, error: Option<&'static str>, end_ns: u64) {
        for mut span in open.spans {
            self.open_bytes -= span.size();
            span.error = error;
            self.finish(span, end_ns);
        }
    }

    fn end_deliveries(
        &mut self,
        at: Timestamps,
        (from, to): ((u64, DeliveryKey), (u64, DeliveryKey)),
        outcome: &'static str,
    ) {
        let ended: Vec<_> = self.deliveries.extract_if(from..=to, |_, _| true).collect();
        let end_ns = self.unix_ns(at);
        for (_, mut span) in ended {
            self.open_bytes -= span.size();
            span.attributes
                .push(Attribute::text("posthorn.outcome", outcome));
            self.finish(span, end_ns);
        }
    }

    /// Returns false if there is no room for another span that has not ended.
    fn admit(&mut self, size: usize) -> bool {
        if self.open_bytes + size > MAX_OPEN_BYTES {
            self.settings.sink.drop_spans(1);
            return false;
        }
        self.open_bytes += size;
        true
    }

    fn finish(&mut self, mut span: Span, end_ns: u64) {
        span.end_ns = end_ns.max(span.start_ns);
        self.finished.push(span);
        if self.finished.len() >= BATCH {
            self.send();
        }
    }

    /// Decides whether a message has a span: by its context, or else by chance if it may begin a trace. The inner value is the
    /// context; None: the span is the first of its trace.
    fn decide(
        &mut self,
        context: Option<TraceContext>,
        may_begin: bool,
    ) -> Option<Option<TraceContext>> {
        match context {
            Some(context) => context.is_sampled.then_some(Some(context)),
            None => (may_begin && self.is_sampled()).then_some(None),
        }
    }

    /// Decides about a message without a context.
    fn is_sampled(&mut self) -> bool {
        let ratio = self.settings.sample_ratio;
        // 53 bits: each is exact in the type.
        ratio > 0.0 && ((self.rng.next_u64() >> 11) as f64) < ratio * (1u64 << 53) as f64
    }

    /// The wall time of a turn with the precision of the monotonic clock.
    fn unix_ns(&mut self, Timestamps { now, wall }: Timestamps) -> u64 {
        let (Time(now), WallTime(ms)) = (now, wall);
        let wall_ns = ms.saturating_mul(1_000_000);
        let at = self.origin_ns.saturating_add(now);
        if at.abs_diff(wall_ns) <= MAX_SKEW_NS {
            return at;
        }
        self.origin_ns = wall_ns.saturating_sub(now);
        wall_ns
    }

    /// A span without a name and attributes.
    fn begin(&mut self, context: Option<TraceContext>, start_ns: u64) -> Span {
        let (trace, parent, state) = match context {
            Some(context) => (context.trace, Some(context.parent), context.state),
            None => {
                let bits = [self.rng.next_u64(), self.rng.next_u64()];
                (TraceId::from_random(bits), None, None)
            }
        };
        Span {
            trace,
            id: SpanId::from_random(self.rng.next_u64()),
            parent,
            state,
            kind: SpanKind::Internal,
            name: Box::default(),
            start_ns,
            end_ns: start_ns,
            attributes: Vec::new(),
            error: None,
        }
    }
}

fn kind_and_name(traced: &TracedMessage<'_>) -> (SpanKind, Box<str>) {
    match traced.what {
        TraceEvent::Published { .. } => {
            let exchange = match traced.message.exchange() {
                "" => "amq.default",
                name => name,
            };
            (SpanKind::Server, publish_name(exchange))
        }
        // The consumer does not learn the id of this span, so nothing can be its child.
        TraceEvent::Delivered { queue, .. } => (SpanKind::Internal, deliver_name(queue)),
    }
}

fn publish_name(target: &str) -> Box<str> {
    format!("publish {target}").into()
}

fn deliver_name(queue: &str) -> Box<str> {
    format!("deliver {queue}").into()
}

fn outcome_name(outcome: SettlementOutcome) -> &'static str {
    match outcome {
        SettlementOutcome::Accepted => "accepted",
        SettlementOutcome::Rejected => "rejected",
        SettlementOutcome::Requeue | SettlementOutcome::Unseen => "requeued",
        SettlementOutcome::Released => "released",
    }
}

fn attributes(traced: &TracedMessage<'_>) -> Vec<Attribute> {
    let message: &Message = traced.message;
    // One more than there are, for the outcome.
    let mut all = Vec::with_capacity(12);
    push_operation(
        &mut all,
        matches!(traced.what, TraceEvent::Published { .. }),
    );
    // The convention for RabbitMQ: all parts that are not empty.
    let (exchange, key) = (message.exchange(), message.routing_key());
    let queue = match traced.what {
        TraceEvent::Published { .. } => "",
        TraceEvent::Delivered { queue, .. } => queue,
    };
    let mut parts = vec![exchange, key];
    if queue != key || !exchange.is_empty() {
        parts.push(queue);
    }
    parts.retain(|part| !part.is_empty());
    let destination = parts.join(":");
    all.push(Attribute::text("messaging.destination.name", &destination));
    if !key.is_empty() {
        let name = "messaging.rabbitmq.destination.routing_key";
        all.push(Attribute::text(name, key));
    }
    let size = message.body_len();
    all.push(Attribute::int("messaging.message.body.size", size));
    let (protocol, version) = match traced.protocol {
        "amqp091" => ("amqp", "0.9.1"),
        "amqp10" => ("amqp", "1.0"),
        "mqtt310" => ("mqtt", "3.1"),
        "mqtt311" => ("mqtt", "3.1.1"),
        "mqtt50" => ("mqtt", "5.0"),
        other => (other, ""),
    };
    all.push(Attribute::text("network.protocol.name", protocol));
    if !version.is_empty() {
        all.push(Attribute::text("network.protocol.version", version));
    }
    all.push(Attribute::text("posthorn.vhost", traced.vhost));
    if let TraceEvent::Delivered {
        queue, redelivered, ..
    } = traced.what
    {
        all.push(Attribute::text("posthorn.queue", queue));
        if redelivered {
            all.push(Attribute {
                name: "posthorn.redelivered",
                value: AttributeValue::Bool(true),
            });
        }
    }
    all
}

fn push_operation(all: &mut Vec<Attribute>, is_publish: bool) {
    let (operation, kind) = match is_publish {
        true => ("publish", "send"),
        false => ("deliver", "process"),
    };
    all.push(Attribute::text("messaging.system", "posthorn"));
    all.push(Attribute::text("messaging.operation.name", operation));
    all.push(Attribute::text("messaging.operation.type", kind));
}

/// The stream protocol has neither exchanges nor routing keys. Its name and version are those that RabbitMQ's clients report.
fn entry_attributes(traced: &TracedEntries<'_>, body_len: usize) -> Vec<Attribute> {
    let mut all = Vec::with_capacity(10);
    let is_publish = matches!(traced.event, EntriesEvent::Published(_));
    push_operation(&mut all, is_publish);
    for (name, text) in [
        ("messaging.destination.name", traced.stream),
        ("network.protocol.name", "rabbitmq-stream"),
        ("network.protocol.version", "1.0"),
        ("posthorn.vhost", traced.vhost),
        ("posthorn.queue", traced.stream),
    ] {
        all.push(Attribute::text(name, text));
    }
    all.push(Attribute::int("messaging.message.body.size", body_len));
    if is_publish {
        all.push(Attribute::int("posthorn.routed_queues", 1));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use codec_amqp091::{Properties, table};
    use message::{MessageBuilder, Protocol, Table};
    use queue::{ConsumerId, Modification};
    use std::sync::Arc;
    use std::time::Duration;
    use telemetry::{ExportCounters, Received, SpanReceiver};

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const SESSION: u64 = 7;
    const DELIVERED: EntriesEvent = EntriesEvent::Delivered {
        received: WallTime(5),
    };
    const ROUTES: [QueueId; 2] = [QueueId(1), QueueId(2)];

    struct Rig {
        recorder: SpanRecorder,
        receiver: SpanReceiver,
        counters: Arc<ExportCounters>,
    }

    impl Rig {
        fn new(sample_ratio: f64) -> Rig {
            let counters = Arc::<ExportCounters>::default();
            let (sink, receiver) = telemetry::channel(1 << 30, counters.clone());
            let settings = SpanSettings { sink, sample_ratio };
            let recorder = SpanRecorder::new(settings, 1);
            Rig {
                recorder,
                receiver,
                counters,
            }
        }

        fn record(&mut self, ms: u64, parent: Option<&str>, what: TraceEvent<'_>) {
            let message = message(parent);
            let traced = TracedMessage {
                vhost: "v",
                user: "u",
                channel: 1,
                protocol: "amqp091",
                message: &message,
                what,
            };
            let tree = Tree::default();
            self.recorder.record(at(ms), &tree, SESSION, &traced);
        }

        fn publish(&mut self, ms: u64, parent: Option<&str>, tag: u64) {
            let tag = PublishTag(tag);
            let what = TraceEvent::Published {
                routes: &ROUTES,
                tag,
            };
            self.record(ms, parent, what);
        }

        fn deliver(&mut self, ms: u64, consumer: u32, id: u64) {
            let delivery = DeliveryKey {
                queue: ROUTES[0],
                consumer: ConsumerId(consumer),
                id,
            };
            let what = TraceEvent::Delivered {
                queue: "q",
                redelivered: false,
                delivery: Some(delivery),
            };
            self.record(ms, Some(SAMPLED), what);
        }

        fn request(&mut self, ms: u64, body: &RequestBody) {
            self.recorder.requested(at(ms), (SESSION, ROUTES[0]), body);
        }

        /// The spans that have ended since the last call.
        fn ended(&mut self) -> Vec<Span> {
            self.recorder.flush();
            let mut all = Vec::new();
            while let Received::Spans(spans, _) = self.receiver.next(Duration::ZERO) {
                all.extend(spans);
            }
            all
        }

        fn outcomes(&mut self) -> Vec<String> {
            let text = |span: Span| {
                let found = span
                    .attributes
                    .into_iter()
                    .find(|a| a.name == "posthorn.outcome");
                match found.map(|a| a.value) {
                    Some(AttributeValue::Text(text)) => text.into(),
                    other => format!("{other:?}"),
                }
            };
            self.ended().into_iter().map(text).collect()
        }

        fn is_empty(&self) -> bool {
            let recorder = &self.recorder;
            let open = recorder.publishes.len() + recorder.deliveries.len();
            (open, recorder.open_bytes) == (0, 0)
        }
    }

    fn at(ms: u64) -> Timestamps {
        Timestamps {
            now: Time(ms * 1_000_000 + 500_000),
            wall: WallTime(1_000_000 + ms),
        }
    }

    fn message(parent: Option<&str>) -> Message {
        let headers = parent.map(|p| ("traceparent".into(), p.into()));
        let mut entries = BytesMut::new();
        table::encode(&Table(headers.into_iter().collect()), &mut entries);
        let mut raw = BytesMut::new();
        let encoded = Properties::<&str> {
            headers: entries.get(4..),
            ..Properties::default()
        };
        encoded.encode(&mut raw);
        let builder = MessageBuilder {
            protocol: Protocol::Amqp091,
            durable: false,
            priority: None,
            ttl_ms: None,
            received: WallTime(1),
            exchange: "",
            routing_keys: &["q"],
            properties: &raw,
        };
        builder.build(4, [&b"body"[..]]).expect("a message")
    }

    fn settle(consumer: u32, outcome: SettlementOutcome, ids: &[(u64, u64)]) -> RequestBody {
        RequestBody::Settle {
            consumer: ConsumerId(consumer),
            outcome,
            ids: ids.to_vec(),
        }
    }

    #[test]
    fn publish_lasts_until_the_last_queue_has_answered() {
        let mut rig = Rig::new(0.0);
        rig.publish(10, Some(SAMPLED), 1);
        rig.recorder
            .answered(at(12), (SESSION, PublishTag(1)), true);
        assert!(rig.ended().is_empty());
        // Answers to others.
        rig.recorder
            .answered(at(12), (SESSION + 1, PublishTag(1)), true);
        rig.recorder
            .answered(at(12), (SESSION, PublishTag(2)), true);
        rig.recorder
            .answered(at(15), (SESSION, PublishTag(1)), true);
        let spans = rig.ended();
        let [span] = &*spans else { panic!("{spans:?}") };
        assert_eq!(span.end_ns - span.start_ns, 5_000_000);
        assert_eq!(span.start_ns / 1_000_000, 1_000_010);
        assert_eq!((&*span.name, span.error), ("publish amq.default", None));
        rig.publish(20, Some(SAMPLED), 2);
        rig.recorder
            .answered(at(21), (SESSION, PublishTag(2)), false);
        rig.recorder
            .answered(at(21), (SESSION, PublishTag(2)), true);
        assert_eq!(rig.ended()[0].error, Some("rejected"));
        assert!(rig.is_empty());
    }

    #[test]
    fn publish_that_nobody_answers_ends_at_once_or_with_its_session() {
        let mut rig = Rig::new(0.0);
        rig.publish(1, Some(SAMPLED), PublishTag::NO_CONFIRM.0);
        let routes = &[];
        let tag = PublishTag(1);
        rig.record(1, Some(SAMPLED), TraceEvent::Published { routes, tag });
        assert_eq!(rig.ended().len(), 2);
        rig.publish(1, Some(SAMPLED), 2);
        // A tag that is used again.
        rig.publish(2, Some(SAMPLED), 2);
        assert_eq!(rig.ended().len(), 1);
        rig.recorder.session_ended(at(3), SESSION + 1);
        assert!(rig.ended().is_empty());
        rig.recorder.session_ended(at(3), SESSION);
        assert_eq!(rig.ended()[0].error, Some("connection_closed"));
        assert!(rig.is_empty());
    }

    #[test]
    fn deliveries_end_with_their_settlement() {
        let mut rig = Rig::new(0.0);
        for id in 1..=9 {
            rig.deliver(1, 1, id);
        }
        rig.deliver(1, 2, 5);
        rig.request(
            2,
            &settle(1, SettlementOutcome::Accepted, &[(1, 2), (4, 4), (9, 3)]),
        );
        assert_eq!(rig.outcomes(), ["accepted"; 3]);
        rig.request(2, &settle(1, SettlementOutcome::Rejected, &[(3, 3)]));
        rig.request(2, &settle(1, SettlementOutcome::Released, &[(5, 5)]));
        rig.request(2, &settle(1, SettlementOutcome::Requeue, &[(6, 6), (1, 1)]));
        let modify = RequestBody::Modify {
            consumer: ConsumerId(1),
            ids: vec![(7, 7)],
            modification: Box::new(Modification::failed()),
        };
        rig.request(2, &modify);
        let others = ["rejected", "released", "requeued", "modified"];
        assert_eq!(rig.outcomes(), others);
        let consumer = ConsumerId(1);
        rig.request(2, &RequestBody::Cancel { consumer });
        assert!(rig.outcomes().is_empty());
        rig.request(2, &RequestBody::CancelAndRequeue { consumer });
        assert_eq!(rig.outcomes(), ["requeued"; 2]);
        rig.recorder.session_ended(at(2), SESSION);
        assert_eq!(rig.outcomes(), ["requeued"]);
        assert!(rig.is_empty());
    }

    /// An entry of a stream.
    fn entry(parent: &str) -> Vec<u8> {
        use codec_amqp10::{SectionKind, Symbol, encode_data_section, encode_section_descriptor};
        let mut raw = Vec::new();
        encode_section_descriptor(&mut raw, SectionKind::MessageAnnotations);
        let mut entries = codec_amqp10::map(&mut raw);
        entries.push(&Symbol::from_static("traceparent"));
        entries.push(parent);
        entries.finish();
        encode_data_section(&mut raw, b"hello");
        raw
    }

    #[test]
    fn trace_of_an_open_publish_is_known() {
        let mut rig = Rig::new(0.0);
        let publish = (SESSION, PublishTag(1));
        rig.publish(1, Some(SAMPLED), 1);
        assert_eq!(
            rig.recorder.trace_of_publish((SESSION, PublishTag(2))),
            None
        );
        let trace = rig.recorder.trace_of_publish(publish);
        for _ in ROUTES {
            rig.recorder.answered(at(2), publish, true);
        }
        assert_eq!(trace, Some(rig.ended()[0].trace));
        assert_eq!(rig.recorder.trace_of_publish(publish), None);
    }

    #[test]
    fn trace_of_a_sampled_delivery_is_that_of_the_same_session_and_time() {
        let sample = |queue_type, received| SampledDelivery {
            queue_type,
            received: WallTime(received),
        };
        let mut rig = Rig::new(0.0);
        // No queue of the tree has the name. The message was accepted at 1.
        let same = sample(None, 1);
        let others = [
            (SESSION + 1, Some(same)),
            (SESSION, Some(sample(None, 2))),
            (SESSION, Some(sample(Some(QueueType::Classic), 1))),
            (SESSION, None),
        ];
        for (session, sample) in others {
            rig.deliver(1, 1, 1);
            let trace = rig.recorder.trace_of_delivery(session, sample.as_ref());
            assert_eq!(trace, None, "{sample:?}");
            // It is of an earlier step now.
            assert_eq!(rig.recorder.trace_of_delivery(SESSION, Some(&same)), None);
        }
        rig.deliver(1, 1, 1);
        let trace = rig.recorder.trace_of_delivery(SESSION, Some(&same));
        assert_eq!(trace, TraceContext::parse(SAMPLED, None).map(|c| c.trace));
        let traced = TracedEntries {
            vhost: "v",
            stream: "s",
            event: DELIVERED,
        };
        let entry = entry(SAMPLED);
        rig.recorder
            .record_entries(at(1), SESSION, &traced, &mut std::iter::once(&*entry));
        let of_stream = sample(Some(QueueType::Stream), 5);
        assert_eq!(
            rig.recorder.trace_of_delivery(SESSION, Some(&of_stream)),
            trace
        );
    }

    #[test]
    fn each_sampled_message_of_a_batch_has_a_span() {
        let unsampled = SAMPLED.replace("-01", "-00");
        let entries = [SAMPLED, &unsampled, "invalid", SAMPLED].map(entry);
        let mut rig = Rig::new(0.0);
        let mut record = |ms, event| {
            let traced = TracedEntries {
                vhost: "v",
                stream: "s",
                event,
            };
            let mut messages = entries.iter().map(Vec::as_slice);
            rig.recorder
                .record_entries(at(ms), SESSION, &traced, &mut messages);
            rig.ended()
        };
        let tag = PublishTag(4);
        assert!(record(1, EntriesEvent::Published(tag)).is_empty());
        let delivered = record(2, DELIVERED);
        assert_eq!(delivered.len(), 2);
        assert!(
            delivered
                .iter()
                .all(|s| &*s.name == "deliver s" && s.kind == SpanKind::Internal)
        );
        let unconfirmed = record(3, EntriesEvent::Published(PublishTag::NO_CONFIRM));
        assert_eq!(unconfirmed.len(), 2);
        rig.recorder.answered(at(9), (SESSION, tag), true);
        let spans = rig.ended();
        assert_eq!(spans.len(), 2);
        assert_ne!(spans[0].id, spans[1].id);
        for span in spans {
            assert_eq!((&*span.name, span.kind), ("publish s", SpanKind::Server));
            assert_eq!((span.end_ns - span.start_ns, span.error), (8_000_000, None));
            for expected in [
                Attribute::text("messaging.destination.name", "s"),
                Attribute::text("network.protocol.name", "rabbitmq-stream"),
                Attribute::text("posthorn.queue", "s"),
                Attribute::int("messaging.message.body.size", 10),
            ] {
                assert!(span.attributes.contains(&expected), "{span:?}");
            }
        }
        assert!(rig.is_empty());
    }

    #[test]
    fn spans_of_a_batch_are_limited_one_by_one() {
        let mut rig = Rig::new(0.0);
        let entry = entry(SAMPLED);
        let traced = TracedEntries {
            vhost: "v",
            stream: "s",
            event: EntriesEvent::Published(PublishTag(1)),
        };
        let mut messages = std::iter::repeat_n(&*entry, 100_000);
        rig.recorder
            .record_entries(at(1), SESSION, &traced, &mut messages);
        assert!(rig.recorder.open_bytes <= MAX_OPEN_BYTES);
        let dropped = rig.counters.read().spans_dropped;
        rig.recorder.session_ended(at(2), SESSION);
        let ended = rig.ended();
        assert_eq!(ended.len() as u64 + dropped, 100_000);
        assert!(dropped > 0 && !ended.is_empty(), "{dropped} dropped");
        assert!(ended.iter().all(|s| s.error == Some("connection_closed")));
        assert!(rig.is_empty());
    }

    #[test]
    fn mqtt_is_reported_with_its_version() {
        let message = message(Some(SAMPLED));
        for (label, version) in [("mqtt310", "3.1"), ("mqtt311", "3.1.1"), ("mqtt50", "5.0")] {
            let mut rig = Rig::new(0.0);
            let traced = TracedMessage {
                vhost: "v",
                user: "u",
                channel: 0,
                protocol: label,
                message: &message,
                what: TraceEvent::Published {
                    routes: &[],
                    tag: PublishTag(1),
                },
            };
            rig.recorder
                .record(at(1), &Tree::default(), SESSION, &traced);
            let attributes = &rig.ended()[0].attributes;
            for expected in [
                Attribute::text("network.protocol.name", "mqtt"),
                Attribute::text("network.protocol.version", version),
            ] {
                assert!(attributes.contains(&expected), "{attributes:?}");
            }
        }
    }

    #[test]
    fn sampling_follows_the_publisher_and_else_the_ratio() {
        let unsampled = SAMPLED.replace("-01", "-00");
        for (ratio, parent, expected) in [
            (0.0, None, 0),
            (0.0, Some(SAMPLED), 100),
            (0.0, Some(unsampled.as_str()), 0),
            (1.0, Some(unsampled.as_str()), 0),
            (1.0, None, 100),
            (1.0, Some("invalid"), 100),
        ] {
            let mut rig = Rig::new(ratio);
            for _ in 0..100 {
                rig.publish(1, parent, PublishTag::NO_CONFIRM.0);
            }
            assert_eq!(rig.ended().len(), expected, "{ratio} {parent:?}");
        }
        let mut rig = Rig::new(0.25);
        for _ in 0..10_000 {
            rig.publish(1, None, PublishTag::NO_CONFIRM.0);
        }
        let sampled = rig.ended();
        assert!((2_200..2_800).contains(&sampled.len()), "{}", sampled.len());
        let traces: std::collections::BTreeSet<_> = sampled
            .iter()
            .map(|s| (s.trace.bytes(), s.id.bytes()))
            .collect();
        assert_eq!(traces.len(), sampled.len());
        // Nothing ties the delivery to the trace that its publish began.
        let delivery = None;
        let what = TraceEvent::Delivered {
            queue: "q",
            redelivered: false,
            delivery,
        };
        rig.record(1, None, what);
        assert!(rig.ended().is_empty());
    }

    #[test]
    fn spans_that_do_not_end_are_limited() {
        let mut rig = Rig::new(0.0);
        let mut id = 0;
        while rig.counters.read().spans_dropped < 10 {
            id += 1;
            rig.deliver(1, 1, id);
            rig.publish(1, Some(SAMPLED), id);
        }
        assert!(rig.recorder.open_bytes <= MAX_OPEN_BYTES);
        assert!(rig.recorder.open_bytes > MAX_OPEN_BYTES / 2);
        rig.recorder.session_ended(at(2), SESSION);
        assert!(rig.is_empty());
        let dropped = rig.counters.read().spans_dropped;
        assert_eq!(rig.ended().len() as u64, 2 * id - dropped);
    }
}
