//! Parts and indexes in memory, verified, the least recently used go first.

use crate::READ_AHEAD_BYTES;
use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct PartCache {
    parts: BTreeMap<String, (Bytes, u64)>,
    by_use: BTreeMap<u64, String>,
    bytes: usize,
    uses: u64,
}

impl PartCache {
    pub(crate) fn get(&mut self, key: &str) -> Option<Bytes> {
        self.uses += 1;
        let (bytes, used) = self.parts.get_mut(key)?;
        if let Some(key) = self.by_use.remove(used) {
            self.by_use.insert(self.uses, key);
        }
        *used = self.uses;
        Some(bytes.clone())
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.parts.contains_key(key)
    }

    pub(crate) fn insert(&mut self, key: &str, bytes: Bytes) {
        if bytes.len() > READ_AHEAD_BYTES || self.contains(key) {
            return;
        }
        self.uses += 1;
        self.bytes += bytes.len();
        self.parts.insert(key.to_owned(), (bytes, self.uses));
        self.by_use.insert(self.uses, key.to_owned());
        while self.bytes > READ_AHEAD_BYTES {
            let Some((_, key)) = self.by_use.pop_first() else {
                break;
            };
            if let Some((bytes, _)) = self.parts.remove(&key) {
                self.bytes -= bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_keeps_its_limit_and_the_recently_used_parts() {
        let mut cache = PartCache::default();
        let part = Bytes::from(vec![0; READ_AHEAD_BYTES / 4]);
        for key in ["a", "b", "c", "d"] {
            cache.insert(key, part.clone());
        }
        assert!(cache.get("a").is_some());
        cache.insert("e", part.clone());
        assert!(cache.contains("a") && !cache.contains("b") && cache.contains("e"));
        assert!(cache.bytes <= READ_AHEAD_BYTES);
        cache.insert("large", Bytes::from(vec![0; READ_AHEAD_BYTES + 1]));
        assert!(!cache.contains("large"));
    }
}
