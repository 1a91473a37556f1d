//! A bounded cache of verified passwords, so that a storm of reconnects does not repeat expensive hashing.

use crate::{PasswordHash, verify};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, VecDeque};

/// Number of cached entries; the oldest is evicted first.
pub const VERIFIED_CAPACITY: usize = 4096;

/// Caches successes only, under a keyed digest of stored hash and password: a changed password has a
/// different entry, and a memory dump reveals no password.
pub struct VerifiedPasswordCache {
    key: [u8; 32],
    known: BTreeSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
    capacity: usize,
}

impl VerifiedPasswordCache {
    /// Creates a cache of [`VERIFIED_CAPACITY`] entries. `key` must be random and stay in this process.
    pub fn new(key: [u8; 32]) -> VerifiedPasswordCache {
        VerifiedPasswordCache::with_capacity(key, VERIFIED_CAPACITY)
    }

    /// Creates a cache of at most `capacity` entries, at least one. `key` must be random and stay in this
    /// process.
    pub fn with_capacity(key: [u8; 32], capacity: usize) -> VerifiedPasswordCache {
        VerifiedPasswordCache {
            key,
            known: BTreeSet::new(),
            order: VecDeque::new(),
            capacity: capacity.max(1),
        }
    }

    /// The digest of this pair of stored hash and password, valid in this cache only.
    pub fn fingerprint(&self, hash: &PasswordHash, password: &[u8]) -> [u8; 32] {
        self.digest(hash, password)
    }

    /// As [`VerifiedPasswordCache::knows`], by fingerprint.
    pub fn has(&self, fingerprint: &[u8; 32]) -> bool {
        self.known.contains(fingerprint)
    }

    /// As [`verify`], at the cost of one SHA-256 for a pair that was verified before.
    pub fn verify(&mut self, hash: &PasswordHash, password: &[u8]) -> bool {
        if self.knows(hash, password) {
            return true;
        }
        let right = verify(hash, password);
        if right {
            self.remember(hash, password);
        }
        right
    }

    /// True if this pair was verified before. Never does the expensive check.
    pub fn knows(&self, hash: &PasswordHash, password: &[u8]) -> bool {
        self.known.contains(&self.digest(hash, password))
    }

    /// Adds a pair that was verified elsewhere.
    pub fn remember(&mut self, hash: &PasswordHash, password: &[u8]) {
        self.add(self.digest(hash, password));
    }

    /// As [`VerifiedPasswordCache::remember`], by fingerprint.
    pub fn add(&mut self, digest: [u8; 32]) {
        if !self.known.insert(digest) {
            return;
        }
        self.order.push_back(digest);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn digest(&self, hash: &PasswordHash, password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.key);
        digest.update(Sha256::digest(&hash.bytes));
        digest.update(Sha256::digest(password));
        digest.finalize().into()
    }
}

impl std::fmt::Debug for VerifiedPasswordCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verified({} entries)", self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HashAlgorithm, hash_with};

    fn stored(password: &[u8]) -> PasswordHash {
        hash_with(HashAlgorithm::Sha256, password, b"salt").unwrap()
    }

    #[test]
    fn only_successes_are_cached_and_new_passwords_miss() {
        let mut cache = VerifiedPasswordCache::new([7; 32]);
        let old = stored(b"old");
        assert!(!cache.verify(&old, b"wrong"));
        assert!(!cache.knows(&old, b"wrong"));
        assert!(cache.verify(&old, b"old"));
        assert!(cache.knows(&old, b"old"));
        assert!(!cache.knows(&stored(b"new"), b"old"));
        assert!(!cache.verify(&stored(b"new"), b"old"));
    }

    #[test]
    fn cache_stays_within_its_capacity() {
        let mut cache = VerifiedPasswordCache::with_capacity([7; 32], 3);
        let passwords: Vec<Vec<u8>> = (0..10u8).map(|n| vec![n + 1]).collect();
        for p in &passwords {
            assert!(cache.verify(&stored(p), p));
        }
        assert_eq!((cache.known.len(), cache.order.len()), (3, 3));
        assert!(!cache.knows(&stored(&passwords[0]), &passwords[0]));
        assert!(cache.knows(&stored(&passwords[9]), &passwords[9]));
    }
}
