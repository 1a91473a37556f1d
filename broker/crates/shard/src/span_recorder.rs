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
use queue::{RequestBody, SettlementOutcome, Timestamps};
use session::{DeliveryKey, PublishTag, TraceEvent, TracedMessage};
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

/// The span of a publish that queues have not answered.
struct OpenPublish {
    span: Span,
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
        let context = match (context, traced.what) {
            (Some(context), _) if context.is_sampled => Some(context),
            (None, TraceEvent::Published { .. }) if self.is_sampled() => None,
            _ => return,
        };
        let start_ns = self.unix_ns(at);
        let mut span = self.begin(context, traced, start_ns);
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
                let open = OpenPublish {
                    left: routes.len(),
                    is_rejected: false,
                    span,
                };
                if self.admit(open.span.size())
                    && let Some(earlier) = self.publishes.insert((session, tag), open)
                {
                    // A channel of the same number was closed.
                    self.open_bytes -= earlier.span.size();
                    self.finish(earlier.span, start_ns);
                }
            }
            TraceEvent::Delivered { delivery, .. } => match delivery {
                None => self.finish(span, start_ns),
                Some(key) => {
                    if self.admit(span.size())
                        && let Some(earlier) = self.deliveries.insert((session, key), span)
                    {
                        self.open_bytes -= earlier.size();
                        self.finish(earlier, start_ns);
                    }
                }
            },
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
        if let Some(mut open) = self.publishes.remove(&publish) {
            self.open_bytes -= open.span.size();
            open.span.error = open.is_rejected.then_some("rejected");
            let end_ns = self.unix_ns(at);
            self.finish(open.span, end_ns);
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
        for (_, mut open) in ended {
            self.open_bytes -= open.span.size();
            open.span.error = Some("connection_closed");
            self.finish(open.span, end_ns);
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

    fn begin(
        &mut self,
        context: Option<TraceContext>,
        traced: &TracedMessage<'_>,
        start_ns: u64,
    ) -> Span {
        let (trace, parent, state) = match context {
            Some(context) => (context.trace, Some(context.parent), context.state),
            None => {
                let bits = [self.rng.next_u64(), self.rng.next_u64()];
                (TraceId::from_random(bits), None, None)
            }
        };
        let (kind, name) = match traced.what {
            TraceEvent::Published { .. } => {
                let exchange = match traced.message.exchange() {
                    "" => "amq.default",
                    name => name,
                };
                (SpanKind::Server, format!("publish {exchange}"))
            }
            TraceEvent::Delivered { queue, .. } => {
                // The consumer does not learn the id of this span, so nothing can be its child.
                (SpanKind::Internal, format!("deliver {queue}"))
            }
        };
        Span {
            trace,
            id: SpanId::from_random(self.rng.next_u64()),
            parent,
            state,
            kind,
            name: name.into(),
            start_ns,
            end_ns: start_ns,
            attributes: attributes(traced),
            error: None,
        }
    }
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
    let (operation, kind) = match traced.what {
        TraceEvent::Published { .. } => ("publish", "send"),
        TraceEvent::Delivered { .. } => ("deliver", "process"),
    };
    all.push(Attribute::text("messaging.system", "posthorn"));
    all.push(Attribute::text("messaging.operation.name", operation));
    all.push(Attribute::text("messaging.operation.type", kind));
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
