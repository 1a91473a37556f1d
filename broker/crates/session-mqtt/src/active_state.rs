//! State allocated only while a connection is active. Most clients are idle most of the time and
//! have none.

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
    /// QoS 1 and 2 publishes of this connection without their final acknowledgement (5.0).
    pub open_publishes: u16,
    /// A queue or router has asked this connection to stop publishing.
    pub is_blocked: bool,
    /// Retained messages that the metadata group has not applied yet.
    pub pending_retains: u16,
    /// The applied index of the metadata at which the user had write permission on the exchange.
    pub write_allowed_at: Option<u64>,
    /// Reused buffer for routing.
    pub routes: Vec<QueueId>,
}

impl ActiveState {
    const NONE: ActiveState = ActiveState {
        aliases_in: aliases::InboundAliases::NONE,
        aliases_out: aliases::OutboundAliases::NONE,
        unconfirmed: VecDeque::new(),
        open_publishes: 0,
        is_blocked: false,
        pending_retains: 0,
        write_allowed_at: None,
        routes: Vec::new(),
    };

    /// Returns true if this state can be freed.
    fn is_unused(&self) -> bool {
        self.unconfirmed.is_empty()
            && self.open_publishes == 0
            && !self.is_blocked
            && self.pending_retains == 0
            && self.aliases_in.is_empty()
            && self.aliases_out.is_empty()
    }
}

static NONE: ActiveState = ActiveState::NONE;

impl Deref for ClientConnection {
    type Target = ActiveState;

    fn deref(&self) -> &ActiveState {
        self.active.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for ClientConnection {
    fn deref_mut(&mut self) -> &mut ActiveState {
        self.active
            .get_or_insert_with(|| Box::new(ActiveState::NONE))
    }
}

impl ClientConnection {
    /// A QoS 1 or 2 publish has its final acknowledgement.
    pub(crate) fn publish_completed(&mut self) {
        if let Some(active) = &mut self.active {
            active.open_publishes = active.open_publishes.saturating_sub(1);
        }
    }

    /// Queues accept publishes again.
    pub(crate) fn unblock(&mut self) {
        if let Some(active) = &mut self.active {
            active.is_blocked = false;
        }
    }

    /// Frees state that an idle connection does not need.
    pub(crate) fn free_unused(&mut self) {
        self.active.take_if(|active| active.is_unused());
        self.state.free_unused();
        if self.is_open {
            self.rare.free_unused();
        }
    }
}
