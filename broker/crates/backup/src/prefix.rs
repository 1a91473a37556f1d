//! A part of an object store: the objects whose keys begin with a prefix.

use bytes::Bytes;
use stream_tier::{ObjectStore, StoreError};

/// The objects of a store below a prefix. Its keys do not have the prefix; errors do.
#[derive(Debug)]
pub struct PrefixStore<S> {
    store: S,
    prefix: String,
}

impl<S: ObjectStore> PrefixStore<S> {
    /// `prefix` is empty or ends in `/`.
    pub fn new(store: S, prefix: &str) -> PrefixStore<S> {
        debug_assert!(prefix.is_empty() || prefix.ends_with('/'), "{prefix}");
        PrefixStore {
            store,
            prefix: prefix.to_owned(),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl<S: ObjectStore> ObjectStore for PrefixStore<S> {
    fn create(&self, key: &str, content: Bytes) -> Result<(), StoreError> {
        self.store.create(&self.key(key), content)
    }

    fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        self.store.get(&self.key(key), limit)
    }

    fn head(&self, key: &str) -> Result<u64, StoreError> {
        self.store.head(&self.key(key))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>, StoreError> {
        let after = match after {
            "" => String::new(),
            after => self.key(after),
        };
        let keys = self.store.list(&self.key(prefix), &after)?.into_iter();
        let own = keys.filter_map(|key| key.strip_prefix(&self.prefix).map(str::to_owned));
        Ok(own.collect())
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store.delete(&self.key(key))
    }
}
