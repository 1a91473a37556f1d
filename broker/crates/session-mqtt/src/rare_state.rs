//! State that most clients do not need, or only until CONNACK was sent.

use crate::client_connection::{ClientConnection, DelayedWill};
use crate::session_queue::SessionQueue;
use crate::stream_subscriptions::StreamSubscriptions;
use crate::subscribe::PendingSubscribe;
use env::Time;
use std::ops::{Deref, DerefMut};
use topics::{Subscription, Will};

/// The expiry and will that the last connection left, as in [`topics::SessionRelease`].
#[derive(Debug)]
pub(crate) struct PreviousRelease {
    pub until: Option<Time>,
    pub will: Option<(Time, Will)>,
}

#[derive(Debug)]
pub(crate) struct RareState {
    /// Kept until the connection holds the client id, because the router stores it then. Persistent
    /// sessions keep it longer.
    pub client_id: Option<Box<str>>,
    /// The server assigned the client id.
    pub is_assigned: bool,
    pub clean_start: bool,
    /// The client is another broker: its subscriptions use No Local and Retain As Published.
    pub is_bridge: bool,
    /// A subscription has No Local.
    pub no_local: bool,
    /// The client requested a longer session expiry.
    pub expiry_reduced: bool,
    /// Session Present in CONNACK.
    pub session_present: bool,
    /// In seconds; `u32::MAX`: never.
    pub session_expiry: u32,
    /// The applied index of the metadata log after this node had caught up for the client; 0 if it
    /// did not.
    pub applied_at_connect: u64,
    /// See [`ClientConnection::max_packet`].
    pub packet: u32,
    pub will: Option<Box<DelayedWill>>,
    /// The pending expiry and will of the session, until this connection is accepted.
    pub previous_release: Option<Box<PreviousRelease>>,
    /// The queue of a session that may outlive the connection.
    pub stored: Option<Box<SessionQueue>>,
    /// A SUBSCRIBE or UNSUBSCRIBE that waits for the metadata group or for other routers.
    pub pending: Option<Box<PendingSubscribe>>,
    /// Subscriptions that read streams.
    pub streams: Option<Box<StreamSubscriptions>>,
}

impl RareState {
    const NONE: RareState = RareState {
        client_id: None,
        is_assigned: false,
        clean_start: false,
        is_bridge: false,
        no_local: false,
        expiry_reduced: false,
        session_present: false,
        session_expiry: 0,
        applied_at_connect: 0,
        packet: u32::MAX,
        will: None,
        previous_release: None,
        stored: None,
        pending: None,
        streams: None,
    };

    /// Returns true if this state can be freed once CONNACK was sent.
    fn is_unused(&self) -> bool {
        self.client_id.is_none()
            && !self.is_bridge
            && !self.no_local
            && !self.session_present
            && self.session_expiry == 0
            && self.packet == u32::MAX
            && self.will.is_none()
            && self.previous_release.is_none()
            && self.stored.is_none()
            && self.pending.is_none()
            && self.streams.is_none()
    }
}

static NONE: RareState = RareState::NONE;

/// Optional [`RareState`], allocated at the first change.
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
    pub(crate) fn stored_mut(&mut self) -> Option<&mut SessionQueue> {
        self.0.as_mut()?.stored.as_deref_mut()
    }

    pub(crate) fn pending_mut(&mut self) -> Option<&mut PendingSubscribe> {
        self.0.as_mut()?.pending.as_deref_mut()
    }

    pub(crate) fn streams_mut(&mut self) -> Option<&mut StreamSubscriptions> {
        self.0.as_mut()?.streams.as_deref_mut()
    }

    /// Notes the No Local option of a new subscription.
    pub(crate) fn note_subscription(&mut self, subscription: &Subscription) {
        if subscription.no_local {
            self.no_local = true;
        }
    }

    pub(crate) fn drop_will(&mut self) {
        if let Some(rare) = &mut self.0 {
            rare.will = None;
        }
    }

    pub(crate) fn previous_mut(&mut self) -> Option<&mut PreviousRelease> {
        self.0.as_mut()?.previous_release.as_deref_mut()
    }

    pub(crate) fn take_previous(&mut self) -> Option<Box<PreviousRelease>> {
        self.0.as_mut()?.previous_release.take()
    }

    /// Frees the state if it is not needed.
    pub(crate) fn free_unused(&mut self) {
        self.0.take_if(|rare| rare.is_unused());
    }
}

impl ClientConnection {
    /// CONNACK was sent: frees what only CONNACK needed. The router has the client id now; a
    /// persistent session keeps it as well, because the name of its queue contains it.
    pub(crate) fn connack_sent(&mut self) {
        self.is_open = true;
        if self.rare.session_expiry == 0 && self.rare.stored.is_none() {
            self.rare.client_id = None;
        }
        self.rare.free_unused();
    }
}
