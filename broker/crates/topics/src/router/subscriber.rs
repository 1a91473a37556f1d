//! A client of the hub in few bytes: there may be millions of them, and most are connected, with a subscription or none.

use super::filters::Filters;
use super::name::Name;
use super::{ParkedSession, Will};
use crate::Subscription;
use crate::claims::claim_message::ClientId;
use env::Time;
use std::sync::Arc;

/// Whose a client's seat is.
pub(super) enum SeatOwner {
    /// This session's.
    Connected(u64),
    Away(Box<DisconnectedClient>),
}

/// A client that is not connected.
#[derive(Default)]
pub(super) struct DisconnectedClient {
    /// None: its connection was on another shard or in another life of the node.
    pub state: Option<Box<dyn ParkedSession>>,
    pub until: Option<Time>,
    pub will: Option<(Time, Will)>,
}

/// A vhost's name, once for all its clients.
pub(super) struct VhostName(pub Arc<str>);

/// What many clients do not have.
#[derive(Default)]
struct RareFields {
    filters: Filters,
    away: Option<Box<DisconnectedClient>>,
}

pub(super) struct Subscriber {
    vhost: Arc<VhostName>,
    client: Name,
    /// [`NOBODY`]: it is away, and [`RareFields`] says how.
    session: u64,
    /// The number of the queue that has its messages of QoS 1 and 2; 0: none has.
    pub queue: u64,
    /// Of the holding of its client id; 0: this hub does not hold it.
    pub stamp: u64,
    rest: Option<Box<RareFields>>,
}

/// No session has this number.
const NOBODY: u64 = u64::MAX;

static NO_FILTERS: Filters = Filters::None;

impl Subscriber {
    /// Connected by this session.
    pub fn new(vhost: Arc<VhostName>, client: &str, session: u64, stamp: u64) -> Subscriber {
        Subscriber {
            vhost,
            client: Name::new(client),
            session,
            queue: 0,
            stamp,
            rest: None,
        }
    }

    pub fn vhost(&self) -> &Arc<str> {
        &self.vhost.0
    }

    pub fn client(&self) -> &str {
        self.client.as_str()
    }

    /// The same, to be compared.
    pub fn client_bytes(&self) -> &[u8] {
        self.client.as_bytes()
    }

    pub fn id(&self) -> ClientId {
        ClientId {
            vhost: self.vhost().clone(),
            client: self.client().into(),
        }
    }

    /// None: it is away.
    pub fn session(&self) -> Option<u64> {
        (self.session != NOBODY).then_some(self.session)
    }

    pub fn is_connected(&self) -> bool {
        self.session != NOBODY
    }

    pub fn away_mut(&mut self) -> Option<&mut DisconnectedClient> {
        self.rest.as_mut()?.away.as_deref_mut()
    }

    /// What was before.
    pub fn sit(&mut self, seat: SeatOwner) -> SeatOwner {
        let (session, away) = match seat {
            SeatOwner::Connected(session) => (session, None),
            SeatOwner::Away(away) => (NOBODY, Some(away)),
        };
        let was = std::mem::replace(&mut self.session, session);
        let was_away = match away {
            Some(away) => self.rest.get_or_insert_default().away.replace(away),
            None => self.rest.as_mut().and_then(|rest| rest.away.take()),
        };
        self.tidy();
        match was_away {
            Some(away) => SeatOwner::Away(away),
            None => SeatOwner::Connected(was),
        }
    }

    pub fn filters(&self) -> &Filters {
        self.rest.as_ref().map_or(&NO_FILTERS, |rest| &rest.filters)
    }

    /// What was there before.
    pub fn add(&mut self, filter: &str, subscription: Subscription) -> Option<Subscription> {
        let filters = &mut self.rest.get_or_insert_default().filters;
        filters.insert(filter, subscription)
    }

    pub fn remove(&mut self, filter: &str) -> Option<Subscription> {
        let removed = self.rest.as_mut()?.filters.remove(filter);
        self.tidy();
        removed
    }

    pub fn take_filters(&mut self) -> Filters {
        let rest = self.rest.as_mut();
        let filters = rest.map_or(Filters::None, |rest| std::mem::take(&mut rest.filters));
        self.tidy();
        filters
    }

    fn tidy(&mut self) {
        self.rest
            .take_if(|rest| rest.away.is_none() && rest.filters.len() == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_does_not_have_takes_no_memory() {
        assert!(size_of::<Option<Subscriber>>() <= 56);
        let name = Arc::new(VhostName("/".into()));
        let mut client = Subscriber::new(name, "c", 7, 1);
        assert_eq!((client.session(), client.filters().len()), (Some(7), 0));
        assert_eq!(client.add("a", Subscription::default()), None);
        let was = client.sit(SeatOwner::Away(Box::default()));
        assert!(matches!(was, SeatOwner::Connected(7)));
        assert!(!client.is_connected() && client.away_mut().is_some());
        assert_eq!(client.remove("a"), Some(Subscription::default()));
        assert!(client.rest.is_some(), "it is away");
        assert!(matches!(
            client.sit(SeatOwner::Connected(8)),
            SeatOwner::Away(_)
        ));
        assert!(client.rest.is_none() && client.away_mut().is_none());
        assert_eq!(client.session(), Some(8));
    }
}
