//! The session of a client with credit.

use super::CreditQueue;
use super::wire::{ClientFrame, Outcome, ServerFrame, decode, encode};
use bytes::BytesMut;
use env::Time;
use message::{Message, MessageBuilder, Protocol as Encoding, Table, Value};
use metadata::{Change, QueueId, QueueRecord, QueueType};
use queue::{
    Annotations, ConsumerId, ConsumerSpec, Delivery, FlowMode, Modification, QueueReply,
    RequestBody, SettlementOutcome,
};
use session::{
    Broker, ConnectionInfo, ControlEvent, Outbox, Protocol, PublishTag, QueueNotification,
    RequestSeq, ServiceStates, Session, SessionEvent, SessionInfo, SessionState,
};
use std::any::Any;
use std::collections::BTreeMap;

const CONSUMER: ConsumerId = ConsumerId(1);
const VHOST: &str = "/";
/// The annotation that clients add.
const ANNOTATION: &str = "x-opt-value";
/// No message reaches it.
const DELIVERY_LIMIT: i64 = 1_000_000;

/// See the module above.
#[derive(Debug)]
pub(crate) struct CreditProtocol;

impl Protocol for CreditProtocol {
    fn listener_names(&self) -> [&'static str; 2] {
        ["credit", "credit/ssl"]
    }

    fn session(&self, _connection: &ConnectionInfo, _now: Time) -> Box<dyn Session> {
        Box::new(CreditSession::default())
    }
}

#[derive(Default)]
struct CreditSession {
    /// The queue that the client wants, and whether it consumes.
    wanted: Option<(CreditQueue, bool)>,
    queue: Option<QueueId>,
    consume: Option<RequestSeq>,
    /// Requests for credit by the numbers that the queue answers, with the client's numbers.
    credits: BTreeMap<u64, u64>,
    closing: bool,
}

fn record(queue: CreditQueue) -> QueueRecord {
    let (kind, arguments) = match queue {
        CreditQueue::Classic => (QueueType::Classic, Vec::new()),
        CreditQueue::Quorum => {
            let limit = ("x-delivery-limit".into(), Value::I64(DELIVERY_LIMIT));
            (QueueType::Quorum, vec![limit])
        }
    };
    QueueRecord {
        id: QueueId::default(),
        vhost: VHOST.into(),
        name: queue.name().into(),
        kind,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: Table(arguments),
        members: Vec::new(),
        declared_by: "".into(),
    }
}

fn message(number: u64, broker: &dyn Broker) -> Option<Message> {
    let body = number.to_be_bytes();
    let builder = MessageBuilder {
        protocol: Encoding::Amqp10,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: broker.wall(),
        exchange: "",
        routing_keys: &[],
        properties: &[],
    };
    builder.build(body.len(), [&body[..]]).ok()
}

fn delivered(delivery: &Delivery) -> Option<ServerFrame> {
    let annotations = delivery.annotations.as_deref().map(Annotations::table);
    let value = annotations.and_then(|table| table.get(ANNOTATION)?.as_integer());
    Some(ServerFrame::Delivered {
        id: delivery.id,
        number: u64::from_be_bytes(delivery.message.body().try_into().ok()?),
        value: value.unwrap_or(0).cast_unsigned(),
    })
}

impl CreditSession {
    fn say(&mut self, frame: &ServerFrame, out: &mut Outbox) {
        out.tail().extend_from_slice(&encode(frame));
    }

    fn fail(&mut self, out: &mut Outbox) {
        self.say(&ServerFrame::Failed, out);
        self.closing = true;
    }

    fn state(&self) -> SessionState {
        match self.closing {
            true => SessionState::Closing,
            false => SessionState::Open,
        }
    }

    /// Goes on once the queue is there.
    fn begin(&mut self, id: QueueId, broker: &mut dyn Broker, out: &mut Outbox) {
        self.queue = Some(id);
        let Some((_, true)) = self.wanted else {
            return self.say(&ServerFrame::Opened, out);
        };
        let spec = ConsumerSpec {
            tag: "credit".into(),
            channel: 0,
            flow_mode: FlowMode::Credit,
            prefetch: 0,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        let consumer = CONSUMER;
        let body = RequestBody::Consume { consumer, spec };
        self.consume = Some(broker.request(id, body));
    }

    fn frame(
        &mut self,
        frame: ClientFrame,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let consumer = CONSUMER;
        if let ClientFrame::Open { queue, consumes } = frame {
            self.wanted = Some((queue, consumes));
            let existing = broker.tree().queue(VHOST, queue.name()).map(|q| q.id);
            match existing {
                Some(id) => self.begin(id, broker, out),
                None => {
                    let mut record = record(queue);
                    record.members = broker.place_queue(&record);
                    broker.change(1, Change::DeclareQueue(record));
                }
            }
            return Ok(());
        }
        let queue = self.queue.ok_or("the client has not opened its queue")?;
        match frame {
            ClientFrame::Open { .. } => {}
            ClientFrame::Publish { number } => {
                let tag = PublishTag(number);
                let message = message(number, broker).ok_or("no message")?;
                broker.publish(queue, tag, message);
            }
            ClientFrame::Credit {
                request,
                up_to,
                drain,
            } => {
                let body = RequestBody::Credit {
                    consumer,
                    up_to,
                    drain,
                };
                let RequestSeq(seq) = broker.request(queue, body);
                self.credits.insert(seq, request);
            }
            ClientFrame::Settle { id, outcome } => {
                let ids = vec![(id, id)];
                let settle = |outcome, ids| RequestBody::Settle {
                    consumer,
                    outcome,
                    ids,
                };
                let body = match outcome {
                    Outcome::Accepted => settle(SettlementOutcome::Accepted, ids),
                    Outcome::Released => settle(SettlementOutcome::Released, ids),
                    Outcome::Modified {
                        delivery_failed,
                        value,
                    } => {
                        let value = Value::I64(value.cast_signed());
                        let table = Table(vec![(ANNOTATION.into(), value)]);
                        let annotations = Annotations::new(table).map_err(|e| e.to_string())?;
                        RequestBody::Modify {
                            consumer,
                            ids,
                            modification: Box::new(Modification {
                                delivery_failed,
                                undeliverable_here: false,
                                annotations,
                            }),
                        }
                    }
                };
                broker.request(queue, body);
            }
        }
        Ok(())
    }

    fn answered(&mut self, seq: RequestSeq, answer: &QueueReply, out: &mut Outbox) {
        if self.consume == Some(seq) {
            return match answer {
                QueueReply::Consuming => self.say(&ServerFrame::Opened, out),
                _ => self.fail(out),
            };
        }
        match (self.credits.remove(&seq.0), answer) {
            (
                Some(request),
                QueueReply::Credited {
                    last,
                    available,
                    drained,
                },
            ) => {
                let frame = ServerFrame::Credited {
                    request,
                    last: *last,
                    available: *available,
                    drained: *drained,
                };
                self.say(&frame, out);
            }
            _ => self.fail(out),
        }
    }
}

impl Session for CreditSession {
    fn receive(
        &mut self,
        input: &mut BytesMut,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        while let Some(frame) = decode(input) {
            if frame
                .and_then(|frame| self.frame(frame, broker, out))
                .is_err()
            {
                self.fail(out);
            }
        }
        self.state()
    }

    fn session_event(
        &mut self,
        event: SessionEvent,
        broker: &mut dyn Broker,
        out: &mut Outbox,
    ) -> SessionState {
        match event {
            SessionEvent::Control(ControlEvent::Changed { .. }) => {
                let wanted = self.wanted.map_or("", |(queue, _)| queue.name());
                match broker.tree().queue(VHOST, wanted).map(|q| q.id) {
                    Some(id) => self.begin(id, broker, out),
                    None => self.fail(out),
                }
            }
            SessionEvent::Queue(QueueNotification::Answer { seq, answer, .. }) => {
                self.answered(seq, &answer, out)
            }
            SessionEvent::Queue(QueueNotification::Deliver {
                queue,
                consumer,
                deliveries,
            }) => {
                for delivery in &deliveries {
                    match delivered(delivery) {
                        Some(frame) => self.say(&frame, out),
                        None => self.fail(out),
                    }
                }
                if let Some(last) = deliveries.last() {
                    broker.received(queue, consumer, last.id);
                }
            }
            SessionEvent::Queue(QueueNotification::Published { tag, .. }) => {
                let (number, confirmed) = (tag.0, true);
                self.say(&ServerFrame::Published { number, confirmed }, out);
            }
            SessionEvent::Queue(QueueNotification::NotPublished { tag, .. }) => {
                let (number, confirmed) = (tag.0, false);
                self.say(&ServerFrame::Published { number, confirmed }, out);
            }
            SessionEvent::Queue(QueueNotification::Cancelled { .. }) => self.fail(out),
            SessionEvent::Control(
                ControlEvent::Close { .. } | ControlEvent::Shed { .. } | ControlEvent::Shutdown,
            ) => {
                self.closing = true;
            }
            _ => {}
        }
        self.state()
    }

    fn service_event(
        &mut self,
        _event: &mut dyn Any,
        _broker: &mut dyn Broker,
        _out: &mut Outbox,
    ) -> SessionState {
        self.state()
    }

    fn tick(&mut self, _broker: &mut dyn Broker, _out: &mut Outbox) -> SessionState {
        self.state()
    }

    fn wake_at(&self) -> Option<Time> {
        None
    }

    fn gone(&mut self, _broker: &mut dyn Broker) {}

    fn drained(&mut self, _broker: &mut dyn Broker, _out: &mut Outbox) -> SessionState {
        self.state()
    }

    fn info(&self, _services: &ServiceStates) -> SessionInfo {
        SessionInfo {
            protocol: "credit",
            ..SessionInfo::default()
        }
    }
}
