//! What of a client most do not have, or only until they are told that they are in.

use crate::client_connection::{ClientConnection, DelayedWill};
use crate::session_queue::SessionQueue;
use crate::subscribe::PendingSubscribe;
use env::Time;
use std::ops::{Deref, DerefMut};
use topics::{Subscription, Will};

/// How the last connection had left the session, as in [`topics::Leave`].
#[derive(Debug)]
pub(crate) struct PreviousRelease {
    pub until: Option<Time>,
    pub will: Option<(Time, Will)>,
}

#[derive(Debug)]
pub(crate) struct RareState {
    /// Until the client id is the connection's own: then the hub has it. Longer for a session that is to be kept.
    pub client_id: Option<Box<str>>,
    /// The client did not choose it.
    pub assigned: bool,
    pub clean_start: bool,
    /// The client is another broker: its subscriptions do not want what it publishes, and tell what was retained.
    pub bridge: bool,
    /// A subscription does not want what this client publishes.
    pub no_local: bool,
    /// The client asked for more.
    pub expiry_cut: bool,
    /// The session was there before.
    pub present: bool,
    /// Seconds; `u32::MAX`: for ever.
    pub session_expiry: u32,
    /// What this node had applied of the metadata log when it had caught up for the client; 0: it did not.
    pub learned: u64,
    /// See [`ClientConnection::max_packet`].
    pub packet: u32,
    pub will: Option<Box<DelayedWill>>,
    /// What waits for an end of the session as it was, until this connection is let in.
    pub waited: Option<Box<PreviousRelease>>,
    /// The session may outlive the connection.
    pub stored: Option<Box<SessionQueue>>,
    /// Subscriptions on their way to the metadata group.
    pub pending: Option<Box<PendingSubscribe>>,
}

impl RareState {
    const NONE: RareState = RareState {
        client_id: None,
        assigned: false,
        clean_start: false,
        bridge: false,
        no_local: false,
        expiry_cut: false,
        present: false,
        session_expiry: 0,
        learned: 0,
        packet: u32::MAX,
        will: None,
        waited: None,
        stored: None,
        pending: None,
    };

    /// Whether it could as well not be there, once CONNACK is out.
    fn is_over(&self) -> bool {
        self.client_id.is_none()
            && !self.bridge
            && !self.no_local
            && !self.present
            && self.session_expiry == 0
            && self.packet == u32::MAX
            && self.will.is_none()
            && self.waited.is_none()
            && self.stored.is_none()
            && self.pending.is_none()
    }
}

static NONE: RareState = RareState::NONE;

/// Extras, if there are any: they come with the first change to them.
#[derive(Debug, Default)]
pub(crate) struct OptionalRareState(Option<Box<RareState>>);

impl Deref for OptionalRareState {
    type Target = RareState;

    fn deref(&self) -> &RareState {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for OptionalRareState {
    fn deref_mut(&mut self) -> &mut RareState {
        self.0.get_or_insert_with(|| Box::new(RareState::NONE))
    }
}

impl OptionalRareState {
    pub fn stored_mut(&mut self) -> Option<&mut SessionQueue> {
        self.0.as_mut()?.stored.as_deref_mut()
    }

    pub fn pending_mut(&mut self) -> Option<&mut PendingSubscribe> {
        self.0.as_mut()?.pending.as_deref_mut()
    }

    /// One more subscription.
    pub fn note_no_local(&mut self, subscription: &Subscription) {
        if subscription.no_local {
            self.no_local = true;
        }
    }

    pub fn drop_will(&mut self) {
        if let Some(extras) = &mut self.0 {
            extras.will = None;
        }
    }

    pub fn waited_mut(&mut self) -> Option<&mut PreviousRelease> {
        self.0.as_mut()?.waited.as_deref_mut()
    }

    pub fn take_waited(&mut self) -> Option<Box<PreviousRelease>> {
        self.0.as_mut()?.waited.take()
    }

    /// Gives back what is not needed.
    pub fn rest(&mut self) {
        self.0.take_if(|extras| extras.is_over());
    }
}

impl ClientConnection {
    /// CONNACK is out: what it said need not be remembered, and the hub has the client id. The name of a session's queue is made
    /// of that.
    pub fn is_in(&mut self) {
        self.open = true;
        if self.extras.session_expiry == 0 && self.extras.stored.is_none() {
            self.extras.client_id = None;
        }
        self.extras.rest();
    }
}
