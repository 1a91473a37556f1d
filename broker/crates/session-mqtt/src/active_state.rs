//! What of a connection is there only while messages move. Most clients are idle most of the time: then it is nothing.

use crate::aliases;
use crate::client_connection::{ClientConnection, PendingPublish};
use metadata::QueueId;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

#[derive(Debug)]
pub(crate) struct ActiveState {
    pub aliases_in: aliases::InboundAliases,
    pub aliases_out: aliases::OutboundAliases,
    pub unconfirmed: VecDeque<PendingPublish>,
    /// Publishes of QoS 1 and 2 of this connection that await their last answer (5.0).
    pub owed: u16,
    /// A queue asked for no more publishes.
    pub behind: bool,
    /// Retained messages on their way to the cluster.
    pub retaining: u16,
    /// The state of the tree in which the user was found to have the right to publish.
    pub writable: Option<u64>,
    /// Scratch for routing.
    pub routes: Vec<QueueId>,
}

impl ActiveState {
    const NONE: ActiveState = ActiveState {
        aliases_in: aliases::InboundAliases::NONE,
        aliases_out: aliases::OutboundAliases::NONE,
        unconfirmed: VecDeque::new(),
        owed: 0,
        behind: false,
        retaining: 0,
        writable: None,
        routes: Vec::new(),
    };

    /// Whether it could as well not be there.
    fn is_over(&self) -> bool {
        self.unconfirmed.is_empty()
            && self.owed == 0
            && !self.behind
            && self.retaining == 0
            && self.aliases_in.is_empty()
            && self.aliases_out.is_empty()
    }
}

static NONE: ActiveState = ActiveState::NONE;

impl Deref for ClientConnection {
    type Target = ActiveState;

    fn deref(&self) -> &ActiveState {
        self.traffic.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for ClientConnection {
    fn deref_mut(&mut self) -> &mut ActiveState {
        self.traffic
            .get_or_insert_with(|| Box::new(ActiveState::NONE))
    }
}

impl ClientConnection {
    /// A publish of QoS 1 or 2 has its last answer.
    pub fn owe_less(&mut self) {
        if let Some(traffic) = &mut self.traffic {
            traffic.owed = traffic.owed.saturating_sub(1);
        }
    }

    /// Queues take publishes again.
    pub fn catch_up(&mut self) {
        if let Some(traffic) = &mut self.traffic {
            traffic.behind = false;
        }
    }

    /// Nothing moves now: gives back what is not needed meanwhile.
    pub fn rest(&mut self) {
        self.traffic.take_if(|traffic| traffic.is_over());
        self.state.rest();
        if self.open {
            self.extras.rest();
        }
    }
}
