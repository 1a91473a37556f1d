//! Clients of a machine that dies when all is quiet: the wills of those who were there come, those of others never.

use super::client::{ClientAction, MqttClient, RunContext, goodbye};
use env::{NodeId, Time};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct DyingClients {
    pub node: NodeId,
    /// It says goodbye before.
    pub goodbye: bool,
}

/// How far such a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    Lives,
    /// It has said goodbye on a connection of then, and waits for its end.
    Leaves(Time),
    /// It does nothing any more.
    Over,
}

/// After CONNECT and after goodbye, until the rest of the cluster has heard of it.
const TELLING: Duration = Duration::from_secs(2);

impl MqttClient {
    pub fn has_lived(&self) -> bool {
        self.fate == Fate::Over
    }

    /// Its turn, on a connection of `since`.
    pub(super) fn live_last(
        &mut self,
        dies: DyingClients,
        since: Time,
        cx: &mut RunContext<'_>,
    ) -> ClientAction {
        if dies.goodbye && self.fate == Fate::Lives && cx.now >= since + TELLING {
            self.fate = Fate::Leaves(since);
            if let Some(id) = self.will {
                cx.mqtt_oracle.will_is_cancelled(since, id);
            }
            self.say(&goodbye());
        }
        ClientAction::GoOn
    }

    /// The connection has ended: whether for what the client had said.
    pub(super) fn has_left(&mut self, cx: &mut RunContext<'_>) {
        let Fate::Leaves(since) = self.fate else {
            return;
        };
        self.fate = Fate::Over;
        if let Some(id) = self.will.take()
            && cx.mqtt_oracle.calm_since(since)
        {
            cx.mqtt_oracle.will_is_forsworn(id);
        }
    }

    /// Its machine is about to die.
    pub fn dies(&mut self, cx: &mut RunContext<'_>) {
        if self.plan.dies.is_none() || self.has_lived() {
            return;
        }
        self.fate = Fate::Over;
        let open = self.link.as_ref().filter(|link| link.open);
        let since = open.map(|link| link.since);
        if let (Some(since), Some(id)) = (since, self.will.take())
            && cx.mqtt_oracle.calm_since(since)
            && cx.now >= since + TELLING
        {
            cx.mqtt_oracle.will_becomes_due(cx.now, id, cx.knows);
        }
        self.loses(cx);
    }

    /// What it waits for before its machine dies, for people; None: nothing.
    pub(super) fn waits_to_die(&self, cx: &RunContext<'_>) -> Option<&'static str> {
        let goodbye = self.plan.dies.is_some_and(|dies| dies.goodbye);
        let since = self.link.as_ref().filter(|l| l.open).map(|l| l.since);
        match self.fate {
            Fate::Over => None,
            Fate::Leaves(_) => Some("the end of its connection"),
            Fate::Lives if goodbye => Some("its goodbye"),
            Fate::Lives if since.is_some_and(|at| cx.now >= at + TELLING) => None,
            Fate::Lives => Some("its last connection"),
        }
    }
}
