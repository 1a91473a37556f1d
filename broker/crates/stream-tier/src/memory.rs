//! An object store in memory with faults, for tests and the simulator.

use crate::store::{ObjectStore, StoreError};
use bytes::Bytes;
use env::{Rng, SeededRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults of a [`MemoryStore`], each as a chance in a thousand calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFaults {
    /// A call fails and does nothing.
    pub fails: u64,
    /// A call fails although it was done.
    pub fails_after: u64,
    /// A write stores other bytes, or only a part of them.
    pub wrong_write: u64,
    /// A read returns other bytes.
    pub wrong_read: u64,
    /// A write is acknowledged and lost.
    pub lost_write: u64,
    /// No call works.
    pub is_gone: bool,
    /// Bytes that the store can hold.
    pub capacity: Option<u64>,
}

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Bytes>,
    faults: MemoryFaults,
    rng: SeededRng,
}

/// An object store in memory. Clones share the objects.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Mutex<State>>);

impl MemoryStore {
    /// An empty store. `seed` decides when faults happen.
    pub fn new(seed: u64) -> MemoryStore {
        MemoryStore(Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            faults: MemoryFaults::default(),
            rng: SeededRng::new(seed),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: MemoryFaults) {
        self.state().faults = faults;
    }

    /// A copy of all objects.
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.state().objects.clone()
    }

    /// Replaces an object, or removes it.
    pub fn set(&self, key: &str, content: Option<Bytes>) {
        let mut state = self.state();
        match content {
            Some(content) => state.objects.insert(key.to_owned(), content),
            None => state.objects.remove(key),
        };
    }
}

fn change(bytes: &Bytes, rng: &mut SeededRng) -> Bytes {
    let mut changed = bytes.to_vec();
    let len = changed.len() as u64;
    match len {
        0 => {}
        _ if rng.chance(1, 3) => changed.truncate(rng.below(len) as usize),
        _ => {
            let at = rng.below(len) as usize;
            changed[at] ^= 1 << rng.below(8);
        }
    }
    changed.into()
}

impl State {
    /// Does a call, unless a fault prevents it.
    fn call<T>(
        &mut self,
        call: &'static str,
        key: &str,
        work: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed = |error: &str| StoreError::Unavailable {
            call,
            key: key.to_owned(),
            error: error.to_owned(),
        };
        if self.faults.is_gone || self.rng.chance(self.faults.fails, 1000) {
            return Err(failed("the store does not answer"));
        }
        let result = work(self);
        match self.rng.chance(self.faults.fails_after, 1000) {
            true => Err(failed("the connection ended before the answer")),
            false => result,
        }
    }
}

impl ObjectStore for MemoryStore {
    fn create(&self, key: &str, content: Bytes) -> Result<(), StoreError> {
        self.state().call("create", key, |state| {
            if state.objects.contains_key(key) {
                return Err(StoreError::Exists {
                    key: key.to_owned(),
                });
            }
            let used: usize = state.objects.values().map(Bytes::len).sum();
            let needed = (used + content.len()) as u64;
            if state.faults.capacity.is_some_and(|limit| needed > limit) {
                return Err(StoreError::Unavailable {
                    call: "create",
                    key: key.to_owned(),
                    error: "the store is full".to_owned(),
                });
            }
            if state.rng.chance(state.faults.lost_write, 1000) {
                return Ok(());
            }
            let content = match state.rng.chance(state.faults.wrong_write, 1000) {
                true => change(&content, &mut state.rng),
                false => content,
            };
            state.objects.insert(key.to_owned(), content);
            Ok(())
        })
    }

    fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        self.state().call("get", key, |state| {
            let Some(object) = state.objects.get(key) else {
                return Err(StoreError::Missing {
                    key: key.to_owned(),
                });
            };
            let len = object.len().min(limit as usize + 1);
            let found = object.slice(..len);
            Ok(match state.rng.chance(state.faults.wrong_read, 1000) {
                true => change(&found, &mut state.rng),
                false => found,
            })
        })
    }

    fn head(&self, key: &str) -> Result<u64, StoreError> {
        self.state().call("head", key, |state| {
            let object = state.objects.get(key);
            let len = object.map(|object| object.len() as u64);
            len.ok_or_else(|| StoreError::Missing {
                key: key.to_owned(),
            })
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>, StoreError> {
        self.state().call("list", prefix, |state| {
            let from = state.objects.range(prefix.to_owned()..);
            let found = from.take_while(|(key, _)| key.starts_with(prefix));
            let found = found.filter(|(key, _)| key.as_str() > after);
            // Small, so that tests have several pages.
            Ok(found.take(3).map(|(key, _)| key.clone()).collect())
        })
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.state().call("delete", key, |state| {
            state.objects.remove(key);
            Ok(())
        })
    }
}
