//! The clients of a vhost by client id. The ids themselves are stored in the subscribers.

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

fn name_of(all: &Slab<Subscriber>, subscriber: SubscriberId) -> &[u8] {
    all.get(subscriber.0 as usize)
        .map_or(&[], |entry| entry.client_bytes())
}

impl Clients {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn find(&self, client: &str, all: &Slab<Subscriber>) -> Option<SubscriberId> {
        let client = client.as_bytes();
        let found = self.0.find(hash(client), |subscriber| {
            name_of(all, *subscriber) == client
        });
        found.copied()
    }

    /// Inserts a client that is already in `all` and whose id is not in the table.
    pub(super) fn insert(&mut self, new: SubscriberId, all: &Slab<Subscriber>) {
        debug_assert!(
            self.0
                .find(hash(name_of(all, new)), |other| *other == new)
                .is_none()
        );
        let hash_of = |subscriber: &SubscriberId| hash(name_of(all, *subscriber));
        self.0.insert_unique(hash_of(&new), new, hash_of);
    }

    pub(super) fn remove(&mut self, client: &str, gone: SubscriberId) {
        if let Ok(entry) = self
            .0
            .find_entry(hash(client.as_bytes()), |subscriber| *subscriber == gone)
        {
            entry.remove();
        }
    }
}
