//! The clients of a vhost by name. The names stand in the subscribers themselves.

use super::subscriber::Subscriber;
use crate::SubscriberId;
use hashbrown::HashTable;
use slots::Slab;
use std::hash::BuildHasher;

#[derive(Default)]
pub(super) struct Clients(HashTable<SubscriberId>);

fn hash(client: &[u8]) -> u64 {
    foldhash::fast::FixedState::default().hash_one(client)
}

fn name_of(all: &Slab<Subscriber>, who: SubscriberId) -> &[u8] {
    all.get(who.0 as usize)
        .map_or(&[], |entry| entry.client_bytes())
}

impl Clients {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn find(&self, client: &str, all: &Slab<Subscriber>) -> Option<SubscriberId> {
        let client = client.as_bytes();
        let found = self
            .0
            .find(hash(client), |who| name_of(all, *who) == client);
        found.copied()
    }

    /// One that was not there; `all` has it.
    pub fn insert(&mut self, new: SubscriberId, all: &Slab<Subscriber>) {
        let hash_of = |who: &SubscriberId| hash(name_of(all, *who));
        self.0.insert_unique(hash_of(&new), new, hash_of);
    }

    pub fn remove(&mut self, client: &str, gone: SubscriberId) {
        if let Ok(entry) = self
            .0
            .find_entry(hash(client.as_bytes()), |who| *who == gone)
        {
            entry.remove();
        }
    }
}
