//! MQTT subscriptions that are not backed by a queue: routing by topic filter, retained messages
//! and ownership of client ids.
//!
//! A [`MqttRouter`] is the part of one shard. It has neither I/O nor a clock: sessions call it, and
//! the shard drains the outputs for sessions with [`MqttRouter::take`]. The router stores nothing
//! on disk and replicates nothing: parked sessions and retained messages live as long as the
//! process.
//!
//! Routers exchange three kinds of frames, each with its own codec: [`PeerMessage`] (subscriptions
//! and forwarded messages), [`ClaimMessage`] (ownership of client ids) and [`WillMessage`]
//! (replicas of wills).
#![deny(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

mod address;
mod claims;
mod exchange;
mod key;
mod retained;
mod router;
mod routes;
mod wills;

pub use address::RouterAddress;
pub use claims::claim_message::{
    ClaimMessage, ClaimMessageError, ClaimVerb, ClientId, HANDOVER_BYTES,
};
pub use exchange::RouteExchangeLimits;
pub use exchange::peer_message::{
    ForwardedMessage, ForwardedMessages, InterestCounts, InterestKey, PeerMessage,
    PeerMessageError, PeerState, RouteChanges,
};
pub use retained::is_fresh;
pub use router::{
    ClaimOutcome, MqttRouter, ParkedSession, PassedOn, PublishOutcome, Publisher,
    RetainedLimitReached, RouterCounters, RouterLimits, RouterOutput, SessionRelease, Will,
    is_sys_topic,
};
pub use routes::Subscription;
pub use wills::will_message::{WillMessage, WillMessageError};

use codec_mqtt::Qos;
use message::Message;
use smallvec::SmallVec;

/// A client of the router, connected or disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub(crate) u32);

impl SubscriberId {
    /// Belongs to no client. For fields that have no room for an `Option`.
    pub const NONE: SubscriberId = SubscriberId(u32::MAX);

    /// Returns `None` for [`SubscriberId::NONE`].
    pub fn to_option(self) -> Option<SubscriberId> {
        (self != SubscriberId::NONE).then_some(self)
    }
}

/// A subscription that matched a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubscriptionMatch {
    /// The maximum QoS that the client asked for.
    pub qos: Qos,
    /// The Retain As Published option.
    pub retain_as_published: bool,
    /// The Subscription Identifier (section 3.8.2.1.2); 0 if there is none.
    pub identifier: u32,
}

/// A message for one subscriber, with all of its subscriptions that matched.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its properties are an [`Envelope`](conversion::mqtt::Envelope).
    pub message: Message,
    /// All matching subscriptions of the subscriber.
    pub hits: SmallVec<[SubscriptionMatch; 1]>,
    /// True if this is a retained message sent because of a new subscription.
    pub retained: bool,
    /// The router's number for the shared subscription that selected this member; 0 for non-shared
    /// subscriptions.
    pub group: u32,
}
