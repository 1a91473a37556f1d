//! Subscriptions by topic that are no queues (Q5): who gets a message, what is retained, and who holds a client id.
//!
//! A [`MqttRouter`] is one shard's part. It has no I/O and no clock: sessions call it, and what it has to say to sessions is taken from it
//! with [`MqttRouter::take`]. Nothing in it is replicated or on disk: sessions that outlive their connection, and retained
//! messages, live as long as the process.
#![forbid(unsafe_code)]

mod address;
mod claims;
mod envelope;
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
pub use envelope::{Envelope, EnvelopeBuilder, EnvelopeError};
pub use exchange::RouteExchangeLimits;
pub use exchange::peer_message::{
    ForwardedMessage, ForwardedMessages, InterestCounts, InterestKey, PeerMessage,
    PeerMessageError, PeerState, RouteChanges,
};
pub use key::{RoutingKey, key_of, topic_of};
pub use retained::is_fresh;
pub use router::{
    ClaimOutcome, MqttRouter, ParkedSession, PublishOutcome, Publisher, RetainedLimitReached,
    RouterCounters, RouterLimits, RouterOutput, SessionRelease, Will, is_servers,
};
pub use routes::Subscription;
pub use wills::will_message::{WillMessage, WillMessageError};

use codec_mqtt::Qos;
use message::Message;
use smallvec::SmallVec;

/// A client of the hub, connected or away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriberId(pub(crate) u32);

impl SubscriberId {
    /// No client has it. For those who have no room for an `Option`.
    pub const NOBODY: SubscriberId = SubscriberId(u32::MAX);

    pub fn known(self) -> Option<SubscriberId> {
        (self != SubscriberId::NOBODY).then_some(self)
    }
}

/// A subscription that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubscriptionMatch {
    /// At most this.
    pub qos: Qos,
    pub retain_as_published: bool,
    /// The client's name for the subscription; 0: none.
    pub identifier: u32,
}

/// A message for a subscriber, with all its subscriptions that it belongs to.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its properties are an [`Envelope`].
    pub message: Message,
    pub hits: SmallVec<[SubscriptionMatch; 1]>,
    /// It was retained, and comes because of a new subscription.
    pub retained: bool,
    /// The number, in this hub, of the shared subscription whose member was chosen; 0: it is for a subscription of the client alone.
    pub group: u32,
}
