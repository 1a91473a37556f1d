//! A client that changes queues: purges, deletes, declares, sets policies.

use super::amqp::{AmqpClient, ServerMessage};
use super::client::{Context, Role};
use super::oracle::{QueuePlan, QueueTreatment, WindowId};
use super::publisher::declare;
use codec_amqp091::Method;
use env::Rng;
use message::{Table, Value};
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use std::collections::{BTreeMap, BTreeSet};

const CHANNEL: u16 = 1;
/// Queues of its own that come and go.
const OWN: u64 = 6;

/// What it waits for.
#[derive(Clone, Debug)]
enum PendingRequest {
    Open,
    Purge(WindowId),
    /// Then it is declared again.
    Delete(usize, WindowId),
    Redeclare,
    DeclareOwn(String),
    DeleteOwn(String),
}

pub struct QueueAdmin {
    name: String,
    asked: Option<PendingRequest>,
    open: bool,
    /// Own queues, and whether they are there.
    own: BTreeMap<String, bool>,
    /// Own queues that something was asked for which may still be done, now or later.
    doubtful: BTreeSet<String>,
    /// Changes that the control plane was asked for.
    changes: usize,
    quiet: bool,
}

/// The policy that gives a queue its character.
pub fn policy(queue: &QueuePlan) -> Option<PolicyRecord> {
    let number = |key: &str, value: u64| (key.into(), Value::I64(value as i64));
    let definition = match queue.character {
        QueueTreatment::Short(most) => vec![number("max-length", most)],
        QueueTreatment::Brief(machine_run) => {
            vec![number("message-ttl", machine_run.as_millis() as u64)]
        }
        QueueTreatment::Refusing(most) => {
            let refuses = Value::String("reject-publish".into());
            vec![number("max-length", most), ("overflow".into(), refuses)]
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
    pub fn new(number: usize) -> QueueAdmin {
        QueueAdmin {
            name: format!("own{number}"),
            asked: None,
            open: false,
            own: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            changes: 0,
            quiet: false,
        }
    }

    /// Own queues, and whether they must be there.
    pub fn expected(&self) -> impl Iterator<Item = (&str, bool)> {
        let certain = (self.own.iter()).filter(|(name, _)| !self.doubtful.contains(*name));
        certain.map(|(name, there)| (name.as_str(), *there))
    }

    /// Somebody else deletes this one.
    pub fn doubts(&mut self, name: &str) {
        // The one that is being declared, too.
        let rest = name.strip_prefix(&*self.name);
        if rest.is_some_and(|rest| rest.starts_with('-')) {
            self.doubtful.insert(name.to_owned());
        }
    }

    fn ask(&mut self, asked: PendingRequest, wire: &mut AmqpClient, method: &Method<'_>) {
        self.asked = Some(asked);
        wire.say(CHANNEL, method);
    }

    fn delete(&mut self, asked: PendingRequest, name: &str, wire: &mut AmqpClient) {
        let delete = Method::QueueDelete {
            queue: name,
            if_unused: false,
            if_empty: false,
            no_wait: false,
        };
        self.ask(asked, wire, &delete);
    }

    /// Something to a queue of the plan that its character allows.
    fn touch(&mut self, queue: usize, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let Some(plan) = cx.oracle.queues.get(queue).cloned() else {
            return;
        };
        match plan.character {
            QueueTreatment::Plain | QueueTreatment::Mortal => {}
            QueueTreatment::Purged => {
                let window = cx.oracle.opened(cx.now, queue);
                let purge = Method::QueuePurge {
                    queue: &plan.name,
                    no_wait: false,
                };
                self.ask(PendingRequest::Purge(window), wire, &purge);
            }
            QueueTreatment::Recreated => {
                let window = cx.oracle.opened(cx.now, queue);
                self.delete(PendingRequest::Delete(queue, window), &plan.name, wire);
            }
            QueueTreatment::Short(_) | QueueTreatment::Brief(_) | QueueTreatment::Refusing(_) => {
                let name = plan.name.as_str().into();
                let gone = Change::DeletePolicy {
                    vhost: "/".into(),
                    name,
                    scope: PolicyScope::User,
                };
                let put = policy(&plan).map(Change::PutPolicy);
                let change = if cx.rng.chance(1, 3) { Some(gone) } else { put };
                self.changes += usize::from(change.is_some());
                cx.changes.extend(change);
            }
        }
    }

    fn own(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) {
        let name = format!("{}-{}", self.name, cx.rng.below(OWN));
        if self.own.get(&name) == Some(&true) {
            return self.delete(PendingRequest::DeleteOwn(name.clone()), &name, wire);
        }
        let plan = QueuePlan {
            // Its type follows from its name: a second declaration is the same as the first.
            quorum: name.ends_with(['0', '1', '2']),
            name: name.clone(),
            character: QueueTreatment::Plain,
        };
        self.asked = Some(PendingRequest::DeclareOwn(name));
        declare(wire, CHANNEL, &plan, false);
    }

    fn answered(
        &mut self,
        method: &str,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let asked = self.asked.take();
        match (asked, method) {
            (Some(PendingRequest::Open), "channel.open-ok") => self.open = true,
            (Some(PendingRequest::Purge(window)), "queue.purge-ok") => {
                cx.oracle.closed(cx.now, window)
            }
            (Some(PendingRequest::Delete(queue, window)), "queue.delete-ok") => {
                cx.oracle.closed(cx.now, window);
                if let Some(plan) = cx.oracle.queues.get(queue) {
                    declare(wire, CHANNEL, plan, false);
                    self.asked = Some(PendingRequest::Redeclare);
                }
            }
            (Some(PendingRequest::Redeclare), "queue.declare-ok") => {}
            (Some(PendingRequest::DeclareOwn(name)), "queue.declare-ok") => {
                self.own.insert(name, true);
            }
            (Some(PendingRequest::DeleteOwn(name)), "queue.delete-ok") => {
                self.own.insert(name, false);
            }
            (asked, method) => return Err(format!("{method} came as the answer to {asked:?}")),
        }
        Ok(())
    }

    fn open_channel(&mut self, wire: &mut AmqpClient) {
        self.ask(PendingRequest::Open, wire, &Method::ChannelOpen {});
    }

    fn close(&mut self) {
        self.open = false;
        if let Some(PendingRequest::DeclareOwn(name) | PendingRequest::DeleteOwn(name)) =
            self.asked.take()
        {
            self.doubtful.insert(name);
        }
    }
}

impl Role for QueueAdmin {
    fn opened(&mut self, wire: &mut AmqpClient, _cx: &mut Context<'_>) {
        self.open_channel(wire);
    }

    fn heard(
        &mut self,
        heard: ServerMessage,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        match heard {
            ServerMessage::Done { method, .. } => self.answered(method, wire, cx),
            ServerMessage::Declared { .. } => self.answered("queue.declare-ok", wire, cx),
            ServerMessage::ChannelClosed { .. } => {
                self.close();
                Ok(())
            }
            other => Err(format!("a keeper heard {other:?}")),
        }
    }

    fn act(&mut self, wire: &mut AmqpClient, cx: &mut Context<'_>) -> Result<(), String> {
        self.quiet = cx.quiet;
        if self.asked.is_some() {
            return Ok(());
        }
        if !self.open {
            self.open_channel(wire);
            return Ok(());
        }
        if self.quiet {
            return Ok(());
        }
        match cx.rng.below(10) {
            0..4 => {
                let queue = cx.rng.below(cx.oracle.queues.len() as u64) as usize;
                self.touch(queue, wire, cx);
            }
            4..7 => self.own(wire, cx),
            7 => cx.hang_up |= cx.rng.chance(1, 20),
            _ => {}
        }
        Ok(())
    }

    fn lost(&mut self, _cx: &mut Context<'_>) -> Result<(), String> {
        self.close();
        Ok(())
    }

    fn changed(&mut self, _done: bool) {
        self.changes = self.changes.saturating_sub(1);
    }

    fn wants_more(&self) -> bool {
        !self.quiet || self.asked.is_some() || !self.open
    }

    fn waits_for(&self) -> String {
        format!("{:?}", self.asked)
    }
}
