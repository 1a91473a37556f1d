//! Clients of a machine that is killed after the faults. The wills of connected clients come, those of clients that
//! sent DISCONNECT do not.

use super::client::{ClientAction, MqttClient, RunContext, disconnect};
use env::{NodeId, Time};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct DyingClients {
    pub node: NodeId,
    /// It sends DISCONNECT before.
    pub sends_disconnect: bool,
}

/// Progress of such a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    #[default]
    /// It is connected, or will be.
    Connected,
    /// It sent DISCONNECT on a connection that began then, and waits for its end.
    Disconnecting(Time),
    /// It takes no further action.
    Done,
}

/// After CONNECT and after DISCONNECT, time until the cluster has processed it.
const PROPAGATION_TIME: Duration = Duration::from_secs(2);

impl MqttClient {
    pub(super) fn is_done(&self) -> bool {
        self.fate == Fate::Done
    }

    /// Its turn, on a connection that began at `since`.
    pub(super) fn act_until_death(
        &mut self,
        dying: DyingClients,
        since: Time,
        cx: &mut RunContext<'_>,
    ) -> ClientAction {
        if dying.sends_disconnect
            && self.fate == Fate::Connected
            && cx.now >= since + PROPAGATION_TIME
        {
            self.fate = Fate::Disconnecting(since);
            if let Some(id) = self.will {
                cx.mqtt_oracle.will_cancelled(since, id);
            }
            self.send(&disconnect());
        }
        ClientAction::Continue
    }

    /// Handles the end of the connection, which may be due to its DISCONNECT.
    pub(super) fn leave_dying_node(&mut self, cx: &mut RunContext<'_>) {
        let Fate::Disconnecting(since) = self.fate else {
            return;
        };
        self.fate = Fate::Done;
        if let Some(id) = self.will.take()
            && cx.mqtt_oracle.no_faults_since(since)
        {
            cx.mqtt_oracle.will_must_not_come(id);
        }
    }

    /// Its machine is about to be killed.
    pub(super) fn machine_dies(&mut self, cx: &mut RunContext<'_>) {
        if self.plan.dying_node.is_none() || self.is_done() {
            return;
        }
        self.fate = Fate::Done;
        let open = self.link.as_ref().filter(|link| link.open);
        let since = open.map(|link| link.since);
        if let (Some(since), Some(id)) = (since, self.will.take())
            && cx.mqtt_oracle.no_faults_since(since)
            && cx.now >= since + PROPAGATION_TIME
        {
            cx.mqtt_oracle
                .will_of_dead_node_due(cx.now, id, cx.find_bound_queue);
        }
        self.end_connection(cx);
    }

    /// Describes what it waits for before its machine is killed. `None`: nothing.
    pub(super) fn dying_wait(&self, cx: &RunContext<'_>) -> Option<&'static str> {
        let sends_disconnect = self
            .plan
            .dying_node
            .is_some_and(|dying| dying.sends_disconnect);
        let since = self.link.as_ref().filter(|l| l.open).map(|l| l.since);
        match self.fate {
            Fate::Done => None,
            Fate::Disconnecting(_) => Some("the end of its connection"),
            Fate::Connected if sends_disconnect => Some("its DISCONNECT"),
            Fate::Connected if since.is_some_and(|at| cx.now >= at + PROPAGATION_TIME) => None,
            Fate::Connected => Some("its last connection"),
        }
    }
}
