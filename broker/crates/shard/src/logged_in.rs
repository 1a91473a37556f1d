//! Logged-in users and their virtual hosts, for limits: each name once, and a few bytes per session.

use crate::limit_usage::OpenCounts;
use crate::quotas::{QuotaIndex, SessionQuotas};
use hashbrown::HashMap;
use metadata::{Name, Tree};
use session::SessionOwner;
use slots::{Slab, Slots};
use std::num::NonZeroU32;
use std::sync::Arc;

type ByName = HashMap<Name, NameIndex, foldhash::fast::FixedState>;

/// What a user, or a vhost, has open.
struct OpenSessions {
    name: Name,
    connections: u64,
    channels: u64,
    /// The rate limits, if there are any.
    quota: Option<QuotaIndex>,
}

impl OpenSessions {
    fn open(&self) -> OpenCounts {
        OpenCounts {
            connections: self.connections,
            channels: self.channels,
        }
    }
}

/// Names that are in use.
#[derive(Default)]
struct NameTable {
    by_name: ByName,
    limit_usage: Slab<OpenSessions>,
}

impl NameTable {
    fn enter(&mut self, name: &str) -> NameIndex {
        let at = match self.by_name.get(name) {
            Some(at) => *at,
            None => {
                let name: Name = name.into();
                let new = OpenSessions {
                    name: name.clone(),
                    connections: 0,
                    channels: 0,
                    quota: None,
                };
                let at = NameIndex::new(self.limit_usage.insert(new));
                self.by_name.insert(name, at);
                at
            }
        };
        if let Some(entry) = self.limit_usage.get_mut(at.index()) {
            entry.connections += 1;
        }
        at
    }

    /// With the channels that it had. Its name.
    fn leave(&mut self, at: NameIndex, channels: u32) -> Option<Name> {
        let entry = self.limit_usage.get_mut(at.index())?;
        entry.connections -= 1;
        entry.channels -= u64::from(channels);
        let name = entry.name.clone();
        if entry.connections == 0 {
            self.by_name.remove(&name);
            self.limit_usage.remove(at.index());
        }
        Some(name)
    }

    fn set_quota(&mut self, name: &str, quota: Option<QuotaIndex>) {
        if let Some(at) = self.by_name.get(name)
            && let Some(entry) = self.limit_usage.get_mut(at.index())
        {
            entry.quota = quota;
        }
    }

    fn of(&self, name: &str) -> Option<&OpenSessions> {
        self.limit_usage.get(self.by_name.get(name)?.index())
    }
}

/// The place of a name among [`NameTable::limit_usage`].
#[derive(Clone, Copy)]
struct NameIndex(NonZeroU32);

impl NameIndex {
    fn new(index: usize) -> NameIndex {
        // Fewer than 2^32 names fit in any memory.
        NameIndex(NonZeroU32::MIN.saturating_add(index as u32))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

struct Login {
    user: NameIndex,
    /// None until it has opened one.
    vhost: Option<NameIndex>,
    channels: u32,
    /// Where its messages are counted ([`crate::counters`]); [`NOWHERE`]: it has counted none yet.
    counted: u32,
}

const NOWHERE: u32 = u32::MAX;

/// A session that was logged in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndedLogin {
    pub user: Name,
    pub vhost: Option<Name>,
    /// How many it had open.
    pub channels: u32,
    pub counted: Option<u32>,
}

/// Accounts that are remembered to be shared.
const MOST: usize = 16;

/// Sessions that are logged in, by the keys of their connections.
#[derive(Default)]
pub(crate) struct LoggedInSessions {
    sessions: Slots<Login>,
    users: NameTable,
    vhosts: NameTable,
    channels: u64,
    /// Those that were used last.
    last: Vec<Arc<SessionOwner>>,
    oldest: usize,
}

impl LoggedInSessions {
    /// The names of a user and a vhost: the tree's own if it has them, and the same for sessions that come one after the other.
    pub(crate) fn shared(&mut self, user: &str, vhost: &str, tree: &Tree) -> Arc<SessionOwner> {
        let same = |known: &&Arc<SessionOwner>| *known.user == *user && *known.vhost == *vhost;
        if let Some(known) = self.last.iter().find(same) {
            return known.clone();
        }
        let known = tree.user(user).map(|known| known.name.clone());
        let user = known.unwrap_or_else(|| user.into());
        let known = tree.vhost(vhost).map(|known| known.name.clone());
        let vhost = known.unwrap_or_else(|| vhost.into());
        let new = Arc::new(SessionOwner {
            user,
            vhost,
            identity: None,
        });
        if self.last.len() < MOST {
            self.last.push(new.clone());
        } else if let Some(place) = self.last.get_mut(self.oldest) {
            *place = new.clone();
            self.oldest = (self.oldest + 1) % MOST;
        }
        new
    }

    pub(crate) fn connections(&self) -> u64 {
        self.sessions.len() as u64
    }

    pub(crate) fn channels(&self) -> u64 {
        self.channels
    }

    /// What a user has open here.
    pub(crate) fn of_user(&self, user: &str) -> OpenCounts {
        self.users
            .of(user)
            .map_or_else(OpenCounts::default, OpenSessions::open)
    }

    pub(crate) fn of_vhost(&self, vhost: &str) -> OpenCounts {
        self.vhosts
            .of(vhost)
            .map_or_else(OpenCounts::default, OpenSessions::open)
    }

    /// Users, then virtual hosts, that have sessions here; in no order.
    pub(crate) fn names(&self) -> (impl Iterator<Item = &Name>, impl Iterator<Item = &Name>) {
        (self.users.by_name.keys(), self.vhosts.by_name.keys())
    }

    /// The rate limits that apply to a session.
    pub(crate) fn quotas_of(&self, key: usize) -> SessionQuotas {
        let Some(login) = self.sessions.get(key) else {
            return [None; 2];
        };
        let of_user = self.users.limit_usage.get(login.user.index());
        let vhost = login.vhost;
        let of_vhost = vhost.and_then(|at| self.vhosts.limit_usage.get(at.index()));
        [of_user, of_vhost].map(|sessions| sessions?.quota)
    }

    /// The rate limits of a user with sessions here have changed.
    pub(crate) fn set_user_quota(&mut self, user: &str, quota: Option<QuotaIndex>) {
        self.users.set_quota(user, quota);
    }

    /// The rate limits of a virtual host with sessions here have changed.
    pub(crate) fn set_vhost_quota(&mut self, vhost: &str, quota: Option<QuotaIndex>) {
        self.vhosts.set_quota(vhost, quota);
    }

    pub(crate) fn user_of(&self, key: usize) -> Option<&Name> {
        let user = self.sessions.get(key)?.user;
        self.users
            .limit_usage
            .get(user.index())
            .map(|used| &used.name)
    }

    pub(crate) fn vhost_of(&self, key: usize) -> Option<&Name> {
        let vhost = self.sessions.get(key)?.vhost?;
        self.vhosts
            .limit_usage
            .get(vhost.index())
            .map(|used| &used.name)
    }

    /// Where this session's messages are counted.
    pub(crate) fn counted_at(&self, key: usize) -> Option<u32> {
        let at = self.sessions.get(key)?.counted;
        (at != NOWHERE).then_some(at)
    }

    pub(crate) fn count_at(&mut self, key: usize, at: u32) {
        if let Some(login) = self.sessions.get_mut(key) {
            login.counted = at;
        }
    }

    /// Whoever had the key before is logged out.
    pub(crate) fn log_in(&mut self, key: usize, user: &str) -> Option<EndedLogin> {
        let before = self.log_out(key);
        let user = self.users.enter(user);
        let login = Login {
            user,
            vhost: None,
            channels: 0,
            counted: NOWHERE,
        };
        self.sessions.put(key, login);
        before
    }

    /// A session opens one virtual host.
    pub(crate) fn open_vhost(&mut self, key: usize, vhost: &str) {
        let Some(login) = self.sessions.get_mut(key) else {
            return;
        };
        let new = self.vhosts.enter(vhost);
        if let Some(entry) = self.vhosts.limit_usage.get_mut(new.index()) {
            entry.channels += u64::from(login.channels);
        }
        if let Some(old) = login.vhost.replace(new) {
            self.vhosts.leave(old, login.channels);
        }
    }

    /// One channel more, or less. False: it is not logged in, or has none.
    pub(crate) fn count_channel(&mut self, key: usize, more: bool) -> bool {
        let Some(login) = self.sessions.get_mut(key) else {
            return false;
        };
        if !more && login.channels == 0 {
            return false;
        }
        let of_user = self.users.limit_usage.get_mut(login.user.index());
        let vhost = login.vhost;
        let of_vhost = vhost.and_then(|at| self.vhosts.limit_usage.get_mut(at.index()));
        let holders = of_user.into_iter().chain(of_vhost);
        match more {
            true => {
                holders.for_each(|holder| holder.channels += 1);
                login.channels += 1;
                self.channels += 1;
            }
            false => {
                holders.for_each(|holder| holder.channels -= 1);
                login.channels -= 1;
                self.channels -= 1;
            }
        }
        true
    }

    /// The session is over. None: it was not logged in.
    pub(crate) fn log_out(&mut self, key: usize) -> Option<EndedLogin> {
        let login = self.sessions.take(key)?;
        self.channels -= u64::from(login.channels);
        let user = self.users.leave(login.user, login.channels)?;
        Some(EndedLogin {
            user,
            vhost: login
                .vhost
                .and_then(|at| self.vhosts.leave(at, login.channels)),
            channels: login.channels,
            counted: (login.counted != NOWHERE).then_some(login.counted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(connections: u64, channels: u64) -> OpenCounts {
        OpenCounts {
            connections,
            channels,
        }
    }

    #[test]
    fn users_and_vhosts_are_counted_and_forgotten() {
        let mut accounts = LoggedInSessions::default();
        for key in 0..3 {
            accounts.log_in(key, "u");
            accounts.open_vhost(key, "/");
        }
        accounts.log_in(3, "v");
        accounts.open_vhost(2, "other");
        assert_eq!(accounts.of_user("u"), open(3, 0));
        assert_eq!(accounts.of_user("v"), open(1, 0));
        assert_eq!(accounts.of_vhost("/"), open(2, 0));
        assert_eq!(accounts.of_vhost("other"), open(1, 0));
        assert!(accounts.count_channel(0, true) && accounts.count_channel(0, true));
        assert!(accounts.count_channel(1, true) && accounts.count_channel(1, false));
        assert_eq!(accounts.of_vhost("/"), open(2, 2));
        assert!(!accounts.count_channel(1, false) && !accounts.count_channel(9, true));
        assert_eq!(
            (accounts.of_user("u"), accounts.channels()),
            (open(3, 2), 2)
        );
        assert_eq!(accounts.user_of(1).map(|name| &**name), Some("u"));
        assert_eq!(accounts.vhost_of(2).map(|name| &**name), Some("other"));
        assert_eq!((accounts.vhost_of(3), accounts.vhost_of(9)), (None, None));
        assert_eq!(accounts.counted_at(0), None);
        accounts.count_at(0, 7);
        assert_eq!(accounts.counted_at(0), Some(7));
        let left = EndedLogin {
            user: "u".into(),
            vhost: Some("/".into()),
            channels: 2,
            counted: Some(7),
        };
        assert_eq!(
            (accounts.log_out(0), accounts.log_out(0)),
            (Some(left), None)
        );
        assert_eq!(
            (accounts.of_user("u"), accounts.channels()),
            (open(2, 0), 0)
        );
        assert_eq!(accounts.of_vhost("/"), open(1, 0));
        // Channels follow a session to another virtual host.
        assert!(accounts.count_channel(2, true));
        accounts.open_vhost(2, "/");
        assert_eq!(accounts.of_vhost("/"), open(2, 1));
        assert_eq!(accounts.of_vhost("other"), open(0, 0));
        assert!(accounts.count_channel(2, false));
        let before = accounts.log_in(1, "v").map(|left| left.user);
        assert_eq!(before.as_deref(), Some("u"));
        assert_eq!(accounts.of_user("u"), open(1, 0));
        assert_eq!(accounts.of_user("v"), open(2, 0));
        for key in 1..4 {
            accounts.log_out(key);
        }
        assert_eq!(accounts.connections(), 0);
        let left =
            [&accounts.users, &accounts.vhosts].map(|n| (n.by_name.len(), n.limit_usage.len()));
        assert_eq!(left, [(0, 0); 2]);
    }
}
