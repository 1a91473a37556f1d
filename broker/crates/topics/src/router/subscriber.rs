//! A client of the router in few bytes: there may be millions, and most are connected with at most
//! one subscription.

use super::filters::Filters;
use super::name::InlineName;
use super::{ParkedSession, Will};
use crate::Subscription;
use crate::claims::claim_message::ClientId;
use env::Time;
use std::sync::Arc;

/// The owner of a client's seat.
pub(super) enum SeatOwner {
    /// The session with this number.
    Connected(u64),
    Away(Box<DisconnectedClient>),
}

/// State of a client that is not connected.
#[derive(Default)]
pub(super) struct DisconnectedClient {
    /// `None` if its last connection was on another shard or in another incarnation of the node.
    pub state: Option<Box<dyn ParkedSession>>,
    pub until: Option<Time>,
    pub will: Option<(Time, Will)>,
}

/// The name of a vhost, shared by all of its clients.
pub(super) struct VhostName(pub Arc<str>);

/// Fields that most clients do not need.
#[derive(Default)]
struct RareFields {
    filters: Filters,
    away: Option<Box<DisconnectedClient>>,
}

pub(super) struct Subscriber {
    vhost: Arc<VhostName>,
    client: InlineName,
    /// [`NOBODY`] if the client is disconnected; [`RareFields::away`] then has its state.
    session: u64,
    /// The number of the queue that stores its QoS 1 and 2 messages; 0 if there is none.
    pub queue: u64,
    /// The stamp under which this router holds the client id; 0 if it does not hold it.
    pub stamp: u64,
    rare: Option<Box<RareFields>>,
}

/// A number that no session has.
const NOBODY: u64 = u64::MAX;

static NO_FILTERS: Filters = Filters::None;

impl Subscriber {
    /// A client that is connected with this session.
    pub(super) fn new(vhost: Arc<VhostName>, client: &str, session: u64, stamp: u64) -> Subscriber {
        Subscriber {
            vhost,
            client: InlineName::new(client),
            session,
            queue: 0,
            stamp,
            rare: None,
        }
    }

    pub(super) fn vhost(&self) -> &Arc<str> {
        &self.vhost.0
    }

    pub(super) fn client(&self) -> &str {
        self.client.as_str()
    }

    /// The client id for comparisons, without UTF-8 validation.
    pub(super) fn client_bytes(&self) -> &[u8] {
        self.client.as_bytes()
    }

    pub(super) fn id(&self) -> ClientId {
        ClientId {
            vhost: self.vhost().clone(),
            client: self.client().into(),
        }
    }

    /// Returns the session number; `None` if the client is disconnected.
    pub(super) fn session(&self) -> Option<u64> {
        (self.session != NOBODY).then_some(self.session)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.session != NOBODY
    }

    pub(super) fn away_mut(&mut self) -> Option<&mut DisconnectedClient> {
        self.rare.as_mut()?.away.as_deref_mut()
    }

    /// Returns the previous owner.
    pub(super) fn set_owner(&mut self, seat: SeatOwner) -> SeatOwner {
        let (session, away) = match seat {
            SeatOwner::Connected(session) => (session, None),
            SeatOwner::Away(away) => (NOBODY, Some(away)),
        };
        let previous = std::mem::replace(&mut self.session, session);
        let previous_away = match away {
            Some(away) => self.rare.get_or_insert_default().away.replace(away),
            None => self.rare.as_mut().and_then(|rare| rare.away.take()),
        };
        self.free_if_empty();
        match previous_away {
            Some(away) => SeatOwner::Away(away),
            None => SeatOwner::Connected(previous),
        }
    }

    pub(super) fn filters(&self) -> &Filters {
        self.rare.as_ref().map_or(&NO_FILTERS, |rare| &rare.filters)
    }

    /// Returns the previous subscription.
    pub(super) fn add(&mut self, filter: &str, subscription: Subscription) -> Option<Subscription> {
        let filters = &mut self.rare.get_or_insert_default().filters;
        filters.insert(filter, subscription)
    }

    pub(super) fn remove(&mut self, filter: &str) -> Option<Subscription> {
        let removed = self.rare.as_mut()?.filters.remove(filter);
        self.free_if_empty();
        removed
    }

    pub(super) fn take_filters(&mut self) -> Filters {
        let rare = self.rare.as_mut();
        let filters = rare.map_or(Filters::None, |rare| std::mem::take(&mut rare.filters));
        self.free_if_empty();
        filters
    }

    fn free_if_empty(&mut self) {
        self.rare
            .take_if(|rare| rare.away.is_none() && rare.filters.len() == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_fields_are_freed_when_unused() {
        assert!(size_of::<Option<Subscriber>>() <= 56);
        let name = Arc::new(VhostName("/".into()));
        let mut client = Subscriber::new(name, "c", 7, 1);
        assert_eq!((client.session(), client.filters().len()), (Some(7), 0));
        assert_eq!(client.add("a", Subscription::default()), None);
        let previous = client.set_owner(SeatOwner::Away(Box::default()));
        assert!(matches!(previous, SeatOwner::Connected(7)));
        assert!(!client.is_connected() && client.away_mut().is_some());
        assert_eq!(client.remove("a"), Some(Subscription::default()));
        assert!(client.rare.is_some(), "the client is disconnected");
        assert!(matches!(
            client.set_owner(SeatOwner::Connected(8)),
            SeatOwner::Away(_)
        ));
        assert!(client.rare.is_none() && client.away_mut().is_none());
        assert_eq!(client.session(), Some(8));
    }
}
