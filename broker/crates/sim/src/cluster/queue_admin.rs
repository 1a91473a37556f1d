//! A client that changes queues: purges, deletes, declares, and sets policies.

use super::amqp::{AmqpClient, ServerMessage};
use super::client::{ClientContext, Role};
use super::oracle::{QueuePlan, QueueTreatment, WindowId};
use super::publisher::declare;
use codec_amqp091::Method;
use env::Rng;
use message::{Table, Value};
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use std::collections::{BTreeMap, BTreeSet};

const CHANNEL: u16 = 1;
/// Number of own queues that it declares and deletes.
const OWN_QUEUES: u64 = 6;

/// The request without an answer.
#[derive(Clone, Debug)]
enum PendingRequest {
    Open,
    Purge(WindowId),
    /// The queue is declared again after this.
    Delete(usize, WindowId),
    Redeclare,
    DeclareOwn(String),
    DeleteOwn(String),
}

pub(super) struct QueueAdmin {
    name: String,
    pending: Option<PendingRequest>,
    is_open: bool,
    /// Own queues, and whether they exist.
    own_queues: BTreeMap<String, bool>,
    /// Own queues with a request that may be carried out now, later or never.
    uncertain: BTreeSet<String>,
    /// Number of unanswered changes through the control plane.
    changes: usize,
    faults_ended: bool,
}

/// The policy for the treatment of a queue.
pub(super) fn policy(queue: &QueuePlan) -> Option<PolicyRecord> {
    let number = |key: &str, value: u64| (key.into(), Value::I64(value as i64));
    let definition = match queue.treatment {
        QueueTreatment::MaxLength(limit) => vec![number("max-length", limit)],
        QueueTreatment::MessageTtl(ttl) => {
            vec![number("message-ttl", ttl.as_millis() as u64)]
        }
        QueueTreatment::RejectPublish(limit) => {
            let overflow = Value::String("reject-publish".into());
            vec![number("max-length", limit), ("overflow".into(), overflow)]
        }
        _ => return None,
    };
    Some(PolicyRecord {
        vhost: "/".into(),
        name: queue.name.as_str().into(),
        scope: PolicyScope::User,
        pattern: format!("^{}$", queue.name).as_str().into(),
        apply_to: ApplyTo::Queues,
        priority: 0,
        definition: Table(definition),
    })
}

impl QueueAdmin {
    pub(super) fn new(number: usize) -> QueueAdmin {
        QueueAdmin {
            name: format!("own{number}"),
            pending: None,
            is_open: false,
            own_queues: BTreeMap::new(),
            uncertain: BTreeSet::new(),
            changes: 0,
            faults_ended: false,
        }
    }

    /// Own queues, and whether they must exist.
    pub(super) fn expected_queues(&self) -> impl Iterator<Item = (&str, bool)> {
        let known = (self.own_queues.iter()).filter(|(name, _)| !self.uncertain.contains(*name));
        known.map(|(name, exists)| (name.as_str(), *exists))
    }

    /// Another client deletes this queue.
    pub(super) fn mark_uncertain(&mut self, name: &str) {
        // Includes the queue that is being declared.
        let rest = name.strip_prefix(&*self.name);
        if rest.is_some_and(|rest| rest.starts_with('-')) {
            self.uncertain.insert(name.to_owned());
        }
    }

    fn request(&mut self, pending: PendingRequest, wire: &mut AmqpClient, method: &Method<'_>) {
        self.pending = Some(pending);
        wire.send(CHANNEL, method);
    }

    fn delete(&mut self, pending: PendingRequest, name: &str, wire: &mut AmqpClient) {
        let delete = Method::QueueDelete {
            queue: name,
            if_unused: false,
            if_empty: false,
            no_wait: false,
        };
        self.request(pending, wire, &delete);
    }

    /// Performs an operation on a queue of the workload that its treatment allows.
    fn treat_queue(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let Some(queue_plan) = cx.oracle.queues.get(queue).cloned() else {
            return;
        };
        match queue_plan.treatment {
            QueueTreatment::Plain
            | QueueTreatment::DeadLettering
            | QueueTreatment::DelayedRetry(_)
            | QueueTreatment::ConsumerTimeout(_)
            | QueueTreatment::Scheduled(_)
            | QueueTreatment::Deduplicated
            | QueueTreatment::Grouped => {}
            QueueTreatment::Purged => {
                let window = cx.oracle.window_opened(cx.now, queue);
                let purge = Method::QueuePurge {
                    queue: &queue_plan.name,
                    no_wait: false,
                };
                self.request(PendingRequest::Purge(window), wire, &purge);
            }
            QueueTreatment::Recreated => {
                let window = cx.oracle.window_opened(cx.now, queue);
                self.delete(
                    PendingRequest::Delete(queue, window),
                    &queue_plan.name,
                    wire,
                );
            }
            QueueTreatment::MaxLength(_)
            | QueueTreatment::MessageTtl(_)
            | QueueTreatment::RejectPublish(_) => {
                let name = queue_plan.name.as_str().into();
                let delete = Change::DeletePolicy {
                    vhost: "/".into(),
                    name,
                    scope: PolicyScope::User,
                };
                let set = policy(&queue_plan).map(Change::PutPolicy);
                let change = if cx.rng.chance(1, 3) {
                    Some(delete)
                } else {
                    set
                };
                self.changes += usize::from(change.is_some());
                cx.changes.extend(change);
            }
        }
    }

    fn change_own_queue(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) {
        let name = format!("{}-{}", self.name, cx.rng.below(OWN_QUEUES));
        if self.own_queues.get(&name) == Some(&true) {
            return self.delete(PendingRequest::DeleteOwn(name.clone()), &name, wire);
        }
        let plan = QueuePlan {
            // The type follows from the name, so that declarations of the same name are equal.
            quorum: name.ends_with(['0', '1', '2']),
            name: name.clone(),
            treatment: QueueTreatment::Plain,
        };
        self.pending = Some(PendingRequest::DeclareOwn(name));
        declare(wire, CHANNEL, &plan, false);
    }

    fn handle_answer(
        &mut self,
        method: &str,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let pending = self.pending.take();
        match (pending, method) {
            (Some(PendingRequest::Open), "channel.open-ok") => self.is_open = true,
            (Some(PendingRequest::Purge(window)), "queue.purge-ok") => {
                cx.oracle.window_closed(cx.now, window)
            }
            (Some(PendingRequest::Delete(queue, window)), "queue.delete-ok") => {
                cx.oracle.window_closed(cx.now, window);
                if let Some(plan) = cx.oracle.queues.get(queue) {
                    declare(wire, CHANNEL, plan, false);
                    self.pending = Some(PendingRequest::Redeclare);
                }
            }
            (Some(PendingRequest::Redeclare), "queue.declare-ok") => {}
            (Some(PendingRequest::DeclareOwn(name)), "queue.declare-ok") => {
                self.own_queues.insert(name, true);
            }
            (Some(PendingRequest::DeleteOwn(name)), "queue.delete-ok") => {
                self.own_queues.insert(name, false);
            }
            (pending, method) => return Err(format!("{method} came as the answer to {pending:?}")),
        }
        Ok(())
    }

    fn open_channel(&mut self, wire: &mut AmqpClient) {
        self.request(PendingRequest::Open, wire, &Method::ChannelOpen {});
    }

    fn close(&mut self) {
        self.is_open = false;
        if let Some(PendingRequest::DeclareOwn(name) | PendingRequest::DeleteOwn(name)) =
            self.pending.take()
        {
            self.uncertain.insert(name);
        }
    }
}

impl Role for QueueAdmin {
    fn on_open(&mut self, wire: &mut AmqpClient, _cx: &mut ClientContext<'_>) {
        self.open_channel(wire);
    }

    fn on_message(
        &mut self,
        message: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        match message {
            ServerMessage::Done { method, .. } => self.handle_answer(method, wire, cx),
            ServerMessage::Declared { .. } => self.handle_answer("queue.declare-ok", wire, cx),
            ServerMessage::ChannelClosed { .. } => {
                self.close();
                Ok(())
            }
            other => Err(format!("a queue admin got {other:?}")),
        }
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.faults_ended = cx.faults_ended;
        if self.pending.is_some() {
            return Ok(());
        }
        if !self.is_open {
            self.open_channel(wire);
            return Ok(());
        }
        if self.faults_ended {
            return Ok(());
        }
        match cx.rng.below(10) {
            0..4 => {
                let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                self.treat_queue(queue, wire, cx);
            }
            4..7 => self.change_own_queue(wire, cx),
            7 => cx.wants_close |= cx.rng.chance(1, 20),
            _ => {}
        }
        Ok(())
    }

    fn on_connection_lost(&mut self, _cx: &mut ClientContext<'_>) -> Result<(), String> {
        self.close();
        Ok(())
    }

    fn on_change_answered(&mut self, _done: bool) {
        self.changes = self.changes.saturating_sub(1);
    }

    fn has_work_left(&self) -> bool {
        !self.faults_ended || self.pending.is_some() || !self.is_open
    }

    fn describe_wait(&self) -> String {
        format!("{:?}", self.pending)
    }
}
