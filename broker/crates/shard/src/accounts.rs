//! Who is logged in, for users' and vhosts' limits (O5): names once, and some bytes for each session.

use hashbrown::HashMap;
use metadata::Name;
use slots::{Slab, Slots};

type ByName = HashMap<Name, u32, foldhash::fast::FixedState>;

/// What a user, or a vhost, has open.
struct Use {
    name: Name,
    connections: u64,
    channels: u64,
}

/// Names that are in use.
#[derive(Default)]
struct Names {
    by_name: ByName,
    uses: Slab<Use>,
}

impl Names {
    fn enter(&mut self, name: &str) -> u32 {
        let at = match self.by_name.get(name) {
            Some(at) => *at,
            None => {
                let name: Name = name.into();
                let new = Use {
                    name: name.clone(),
                    connections: 0,
                    channels: 0,
                };
                let at = self.uses.insert(new) as u32;
                self.by_name.insert(name, at);
                at
            }
        };
        if let Some(entry) = self.uses.get_mut(at as usize) {
            entry.connections += 1;
        }
        at
    }

    /// With the channels that it had.
    fn leave(&mut self, at: u32, channels: u32) {
        let Some(entry) = self.uses.get_mut(at as usize) else {
            return;
        };
        entry.connections -= 1;
        entry.channels -= u64::from(channels);
        if entry.connections == 0 {
            self.by_name.remove(&entry.name);
            self.uses.remove(at as usize);
        }
    }

    fn of(&self, name: &str) -> Option<&Use> {
        self.uses.get(*self.by_name.get(name)? as usize)
    }
}

struct Login {
    user: u32,
    /// None until it has opened one.
    vhost: Option<u32>,
    channels: u32,
}

/// Sessions that are logged in, by the keys of their connections.
#[derive(Default)]
pub struct Accounts {
    sessions: Slots<Login>,
    users: Names,
    vhosts: Names,
    channels: u64,
}

impl Accounts {
    pub fn connections(&self) -> u64 {
        self.sessions.len() as u64
    }

    pub fn channels(&self) -> u64 {
        self.channels
    }

    pub fn connections_of(&self, user: &str) -> u64 {
        self.users.of(user).map_or(0, |used| used.connections)
    }

    pub fn connections_to(&self, vhost: &str) -> u64 {
        self.vhosts.of(vhost).map_or(0, |used| used.connections)
    }

    pub fn channels_of(&self, user: &str) -> u64 {
        self.users.of(user).map_or(0, |used| used.channels)
    }

    pub fn user_of(&self, key: usize) -> Option<&Name> {
        let user = self.sessions.get(key)?.user;
        self.users.uses.get(user as usize).map(|used| &used.name)
    }

    pub fn log_in(&mut self, key: usize, user: &str) {
        self.log_out(key);
        let user = self.users.enter(user);
        let login = Login {
            user,
            vhost: None,
            channels: 0,
        };
        self.sessions.put(key, login);
    }

    pub fn open_vhost(&mut self, key: usize, vhost: &str) {
        let Some(login) = self.sessions.get_mut(key) else {
            return;
        };
        let new = self.vhosts.enter(vhost);
        if let Some(old) = login.vhost.replace(new) {
            self.vhosts.leave(old, 0);
        }
    }

    /// One channel more, or less. False: it is not logged in, or has none.
    pub fn count_channel(&mut self, key: usize, more: bool) -> bool {
        let Some(login) = self.sessions.get_mut(key) else {
            return false;
        };
        let Some(used) = self.users.uses.get_mut(login.user as usize) else {
            return false;
        };
        match more {
            true => {
                login.channels += 1;
                used.channels += 1;
                self.channels += 1;
            }
            false if login.channels > 0 => {
                login.channels -= 1;
                used.channels -= 1;
                self.channels -= 1;
            }
            false => return false,
        }
        true
    }

    /// The session is over. How many channels it had open; None: it was not logged in.
    pub fn log_out(&mut self, key: usize) -> Option<u32> {
        let login = self.sessions.take(key)?;
        self.users.leave(login.user, login.channels);
        if let Some(vhost) = login.vhost {
            self.vhosts.leave(vhost, 0);
        }
        self.channels -= u64::from(login.channels);
        Some(login.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_vhosts_are_counted_and_forgotten() {
        let mut accounts = Accounts::default();
        for key in 0..3 {
            accounts.log_in(key, "u");
            accounts.open_vhost(key, "/");
        }
        accounts.log_in(3, "v");
        accounts.open_vhost(2, "other");
        assert_eq!(
            (accounts.connections_of("u"), accounts.connections_of("v")),
            (3, 1)
        );
        assert_eq!(
            (
                accounts.connections_to("/"),
                accounts.connections_to("other")
            ),
            (2, 1)
        );
        assert!(accounts.count_channel(0, true) && accounts.count_channel(0, true));
        assert!(accounts.count_channel(1, true) && accounts.count_channel(1, false));
        assert!(!accounts.count_channel(1, false) && !accounts.count_channel(9, true));
        assert_eq!((accounts.channels_of("u"), accounts.channels()), (2, 2));
        assert_eq!(accounts.user_of(1).map(|name| &**name), Some("u"));
        assert_eq!((accounts.log_out(0), accounts.log_out(0)), (Some(2), None));
        assert_eq!((accounts.channels_of("u"), accounts.channels()), (0, 0));
        accounts.log_in(1, "v");
        assert_eq!(
            (accounts.connections_of("u"), accounts.connections_of("v")),
            (1, 2)
        );
        for key in 1..4 {
            accounts.log_out(key);
        }
        assert_eq!(accounts.connections(), 0);
        let left = [&accounts.users, &accounts.vhosts].map(|n| (n.by_name.len(), n.uses.len()));
        assert_eq!(left, [(0, 0); 2]);
    }
}
