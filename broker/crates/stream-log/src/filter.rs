//! Bloom filters of the filter values in a chunk. A consumer with a filter skips chunks that cannot match.
//!
//! A filter has 16 to 255 bytes. Bit 0, the highest bit of the first byte, says that the chunk has entries
//! without a filter value. Each value sets two of the other bits. A chunk without filter values has no filter.

/// Smallest filter in bytes, and the default of `stream-filter-size-bytes`.
pub const MIN_FILTER_BYTES: u8 = 16;
/// Largest filter in bytes.
pub const MAX_FILTER_BYTES: u8 = u8::MAX;

/// A hash of a filter value, from which its bits in filters of any size follow. The function is part of the
/// format of chunks.
fn hash(value: &[u8]) -> u64 {
    // FNV-1a, then the finalizer of MurmurHash3, because FNV-1a mixes the last bytes badly.
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in value {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}

/// The two bits of a hash in a filter of `bytes` bytes; never bit 0.
fn bits(hash: u64, bytes: usize) -> [usize; 2] {
    let usable = (bytes * 8).saturating_sub(1).max(1) as u64;
    let scale = |half: u64| ((half * usable) >> 32) as usize + 1;
    [scale(hash >> 32), scale(hash & 0xFFFF_FFFF)]
}

fn is_set(filter: &[u8], bit: usize) -> bool {
    filter
        .get(bit / 8)
        .is_some_and(|byte| byte & (0x80 >> (bit % 8)) != 0)
}

/// The filter of a chunk that is being built.
#[derive(Clone, Debug)]
pub(crate) struct FilterBuilder {
    bytes: [u8; MAX_FILTER_BYTES as usize],
    len: u8,
    has_filtered: bool,
}

impl FilterBuilder {
    /// `len` is limited to the range of filter sizes.
    pub(crate) fn new(len: u8) -> FilterBuilder {
        FilterBuilder {
            bytes: [0; MAX_FILTER_BYTES as usize],
            len: len.max(MIN_FILTER_BYTES),
            has_filtered: false,
        }
    }

    /// The length of the filter in bytes, if there are filter values.
    pub(crate) fn size(&self) -> u8 {
        self.len
    }

    fn set(&mut self, bit: usize) {
        if let Some(byte) = self.bytes.get_mut(bit / 8) {
            *byte |= 0x80 >> (bit % 8);
        }
    }

    /// Adds the filter value of an entry. An empty value is the same as none.
    pub(crate) fn insert(&mut self, value: Option<&[u8]>) {
        match value.filter(|value| !value.is_empty()) {
            Some(value) => {
                self.has_filtered = true;
                for bit in bits(hash(value), usize::from(self.len)) {
                    self.set(bit);
                }
            }
            None => self.set(0),
        }
    }

    /// The bytes of the filter; empty if no entry has a filter value.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let len = if self.has_filtered { self.len } else { 0 };
        &self.bytes[..usize::from(len)]
    }
}

/// The filter values that a consumer wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterMatcher {
    hashes: Vec<u64>,
    /// The consumer also wants entries without a filter value.
    match_unfiltered: bool,
}

impl FilterMatcher {
    /// A matcher of `values`. Without values every chunk matches.
    pub fn new<'a>(
        values: impl IntoIterator<Item = &'a [u8]>,
        match_unfiltered: bool,
    ) -> FilterMatcher {
        FilterMatcher {
            hashes: values.into_iter().map(hash).collect(),
            match_unfiltered,
        }
    }

    /// Returns false if no entry of a chunk with this filter can have one of the values. `filter` is empty
    /// if no entry of the chunk has a filter value.
    pub fn may_match(&self, filter: &[u8]) -> bool {
        if self.hashes.is_empty() {
            return true;
        }
        if filter.is_empty() {
            return self.match_unfiltered;
        }
        let has = |hash: &u64| bits(*hash, filter.len()).iter().all(|b| is_set(filter, *b));
        (self.match_unfiltered && is_set(filter, 0)) || self.hashes.iter().any(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filter_of(len: u8, values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut filter = FilterBuilder::new(len);
        values.iter().for_each(|value| filter.insert(*value));
        filter.as_bytes().to_vec()
    }

    #[test]
    fn chunk_without_filter_values_has_no_filter() {
        assert_eq!(filter_of(16, &[]), b"");
        assert_eq!(filter_of(16, &[None, Some(b"")]), b"");
        assert_eq!(filter_of(0, &[Some(b"a")]).len(), 16);
    }

    #[test]
    fn bit_0_marks_unfiltered_entries() {
        let mixed = filter_of(16, &[None, Some(b"apac")]);
        let filtered = filter_of(16, &[Some(b"apac")]);
        let matcher = |match_unfiltered| FilterMatcher::new([&b"emea"[..]], match_unfiltered);
        assert!(matcher(true).may_match(&mixed) && !matcher(false).may_match(&mixed));
        assert!(!matcher(true).may_match(&filtered));
        assert!(matcher(true).may_match(b"") && !matcher(false).may_match(b""));
        assert!(FilterMatcher::default().may_match(&filtered));
    }

    /// Fifty values, one per chunk, and a consumer of one of them.
    #[test]
    fn most_chunks_of_other_values_are_skipped() {
        let values: Vec<String> = (0..50).map(|n| format!("region-{n}")).collect();
        let mut passed = 0;
        for wanted in &values {
            let matcher = FilterMatcher::new([wanted.as_bytes()], false);
            for value in &values {
                let matches = matcher.may_match(&filter_of(16, &[Some(value.as_bytes())]));
                assert!(matches || value != wanted);
                passed += u32::from(matches);
            }
        }
        assert!(passed < 60, "{passed} of 2500 chunks passed, 50 match");
    }

    proptest! {
        #[test]
        fn inserted_values_always_match(
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..40),
            len in MIN_FILTER_BYTES..=MAX_FILTER_BYTES,
        ) {
            let mut filter = FilterBuilder::new(len);
            values.iter().for_each(|value| filter.insert(Some(value)));
            prop_assert!(!is_set(filter.as_bytes(), 0));
            for value in &values {
                let matcher = FilterMatcher::new([&value[..]], false);
                prop_assert!(matcher.may_match(filter.as_bytes()));
            }
        }
    }
}
