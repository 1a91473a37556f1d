//! Consumers of streams, on the session's side. The leader checks and lists them; they read from any replica and keep
//! their own position, so that requests about deliveries and credit never reach the stream.

use crate::context::Context;
use env::{NodeId, Time};
use metadata::QueueRecord;
use queue::client::CancelReason;
use queue::cursor::{CursorEvent, CursorSend};
use queue::{ConsumerId, ConsumerSpec, QueueReply, RequestBody};
use session::{QueueNotification, RequestSeq};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stream::{ConsumerOutput, StreamConsumer, consumer_rules};

/// Numbers of requests that are answered here have this bit, those of the queue client do not.
const ANSWERED_HERE: u64 = 1 << 63;

/// A request of a session about its consumers, as far as it concerns this side.
pub(super) enum Handling {
    /// The stream gets the request, too.
    Forward(RequestBody),
    /// The request is carried out, and has this number.
    Done(u64),
}

/// The consumers of one session of one stream.
#[derive(Debug)]
pub(super) struct StreamConsumers {
    /// The stream.
    record: Arc<QueueRecord>,
    consumers: BTreeMap<ConsumerId, StreamConsumer>,
    /// Consumers that the leader has not accepted yet, by the number of the request.
    requested: BTreeMap<u64, (ConsumerId, ConsumerSpec)>,
    /// Changes of the credit without an answer yet.
    credits: VecDeque<(ConsumerId, u64)>,
    answered_here: u64,
    outputs: Vec<ConsumerOutput>,
}

/// The output of a consumer, for its host.
pub(super) enum Output {
    Send(CursorSend),
    Notify(QueueNotification),
}

impl StreamConsumers {
    pub(super) fn new(record: Arc<QueueRecord>) -> StreamConsumers {
        StreamConsumers {
            record,
            consumers: BTreeMap::new(),
            requested: BTreeMap::new(),
            credits: VecDeque::new(),
            answered_here: 0,
            outputs: Vec::new(),
        }
    }

    /// Handles a request before the queue client sends it.
    pub(super) fn request(&mut self, body: RequestBody, out: &mut Vec<Output>) -> Handling {
        match body {
            RequestBody::Cancel { consumer } | RequestBody::CancelAndRequeue { consumer } => {
                self.requested.retain(|_, (id, _)| *id != consumer);
                if let Some(mut ended) = self.consumers.remove(&consumer) {
                    ended.cancel(&mut self.outputs);
                    self.take_outputs(consumer, out);
                }
                // The deliveries of a consumer end with it: nothing is requeued.
                self.credits.retain(|(id, _)| *id != consumer);
                Handling::Forward(body)
            }
            RequestBody::Settle { consumer, ids, .. }
            | RequestBody::Modify { consumer, ids, .. } => {
                self.with(consumer, out, |consumer, outputs| {
                    consumer.settle(&ids, outputs)
                });
                Handling::Done(0)
            }
            RequestBody::CreditOneWay { consumer, up_to } => {
                self.with(consumer, out, |consumer, outputs| {
                    consumer.set_credit(up_to, false, false, outputs);
                });
                Handling::Done(0)
            }
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            } if self.consumers.contains_key(&consumer) => {
                self.answered_here += 1;
                let seq = ANSWERED_HERE | self.answered_here;
                self.credits.push_back((consumer, seq));
                self.with(consumer, out, |consumer, outputs| {
                    consumer.set_credit(up_to, true, drain, outputs);
                });
                Handling::Done(seq)
            }
            body => Handling::Forward(body),
        }
    }

    /// Notes a request for a consumer, whose answer decides.
    pub(super) fn requested(&mut self, seq: u64, consumer: ConsumerId, spec: ConsumerSpec) {
        self.requested.insert(seq, (consumer, spec));
    }

    /// The leader has answered a request.
    pub(super) fn answered(
        &mut self,
        ctx: &Context,
        (seq, answer): (u64, &QueueReply),
        out: &mut Vec<Output>,
    ) {
        let Some((id, spec)) = self.requested.remove(&seq) else {
            return;
        };
        if *answer != QueueReply::Consuming {
            return;
        }
        // The leader accepted the properties.
        let record = Arc::clone(&self.record);
        let label = crate::local_queues::label(&record);
        let Ok(start) = consumer_rules(&spec, &label, ctx.wall()) else {
            return;
        };
        let nodes = (ctx.node(), preferred_replicas(ctx.node(), &record.members));
        if nodes.1.is_empty() {
            return;
        }
        let consumer = StreamConsumer::new(
            id,
            &spec,
            start,
            record.name.clone(),
            nodes,
            ctx.now(),
            &mut self.outputs,
        );
        self.consumers.insert(id, consumer);
        self.take_outputs(id, out);
    }

    /// An event of a replica for a consumer.
    pub(super) fn event(&mut self, now: Time, event: CursorEvent, out: &mut Vec<Output>) {
        let id = cursor_of(&event);
        self.with(id, out, |consumer, outputs| {
            consumer.event(now, event, outputs)
        });
    }

    pub(super) fn has(&self, consumer: ConsumerId) -> bool {
        self.consumers.contains_key(&consumer)
    }

    /// The client was sent a consumer's deliveries up to this one.
    pub(super) fn received(&mut self, consumer: ConsumerId, up_to: u64, out: &mut Vec<Output>) {
        self.with(consumer, out, |consumer, outputs| {
            consumer.received(up_to, outputs)
        });
    }

    /// Calls `f` with each consumer.
    pub(super) fn each(
        &mut self,
        out: &mut Vec<Output>,
        mut f: impl FnMut(&mut StreamConsumer, &mut Vec<ConsumerOutput>),
    ) {
        let ids: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        for id in ids {
            self.with(id, out, &mut f);
        }
    }

    /// The stream has other members.
    pub(super) fn set_members(
        &mut self,
        now: Time,
        node: NodeId,
        members: &[NodeId],
        out: &mut Vec<Output>,
    ) {
        Arc::make_mut(&mut self.record).members = members.to_vec();
        let replicas = preferred_replicas(node, members);
        self.each(out, |consumer, outputs| {
            consumer.set_replicas(replicas.clone(), now, outputs)
        });
    }

    /// The stream is deleted: its consumers end.
    pub(super) fn end(&mut self, out: &mut Vec<Output>) {
        let queue = self.record.id;
        for (consumer, _) in std::mem::take(&mut self.consumers) {
            out.push(Output::Notify(QueueNotification::Cancelled {
                queue,
                consumer,
                reason: CancelReason::ByQueue,
            }));
        }
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.consumers
            .values()
            .filter_map(StreamConsumer::wake_at)
            .min()
    }

    fn with(
        &mut self,
        id: ConsumerId,
        out: &mut Vec<Output>,
        f: impl FnOnce(&mut StreamConsumer, &mut Vec<ConsumerOutput>),
    ) {
        if let Some(consumer) = self.consumers.get_mut(&id) {
            f(consumer, &mut self.outputs);
            self.take_outputs(id, out);
        }
    }

    fn take_outputs(&mut self, consumer: ConsumerId, out: &mut Vec<Output>) {
        let queue = self.record.id;
        for output in self.outputs.drain(..) {
            out.push(match output {
                ConsumerOutput::Send(send) => Output::Send(send),
                ConsumerOutput::Deliver(deliveries) => Output::Notify(QueueNotification::Deliver {
                    queue,
                    consumer,
                    deliveries,
                }),
                ConsumerOutput::Credited { last, drained } => {
                    let at = self.credits.iter().position(|(id, _)| *id == consumer);
                    let Some((_, seq)) = at.and_then(|at| self.credits.remove(at)) else {
                        continue;
                    };
                    let answer = QueueReply::Credited {
                        last,
                        available: 0,
                        drained,
                    };
                    Output::Notify(QueueNotification::Answer {
                        queue,
                        seq: RequestSeq(seq),
                        answer,
                    })
                }
                ConsumerOutput::Cancelled => {
                    self.consumers.remove(&consumer);
                    Output::Notify(QueueNotification::Cancelled {
                        queue,
                        consumer,
                        reason: CancelReason::ByQueue,
                    })
                }
            });
        }
    }
}

/// The replicas of a stream for a consumer on this node: a replica here comes first.
fn preferred_replicas(node: NodeId, members: &[NodeId]) -> Vec<NodeId> {
    let mut replicas = members.to_vec();
    replicas.sort_by_key(|member| *member != node);
    replicas
}

/// The cursor that an event is for.
pub(super) fn cursor_of(event: &CursorEvent) -> ConsumerId {
    match event {
        CursorEvent::Attached { cursor, .. }
        | CursorEvent::Batch { cursor, .. }
        | CursorEvent::Detached { cursor, .. }
        | CursorEvent::Refused { cursor, .. } => *cursor,
    }
}
