//! Interned words of binding keys, numbered.

use hashbrown::HashTable;
use slots::Slab;
use std::hash::BuildHasher;

/// Numbers of the two wildcards; words start after them.
pub(crate) const STAR: u32 = 0;
pub(crate) const HASH: u32 = 1;
const FIRST_WORD: u32 = 2;

#[derive(Clone, Debug)]
struct InternedWord {
    text: Box<str>,
    /// Number of edges with this word.
    uses: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WordTable {
    /// Indexed by number less FIRST.
    words: Slab<InternedWord>,
    numbers: HashTable<u32>,
}

fn hash_text(text: &[u8]) -> u64 {
    foldhash::fast::FixedState::default().hash_one(text)
}

fn text_of(words: &Slab<InternedWord>, number: u32) -> &str {
    let word = words.get((number - FIRST_WORD) as usize);
    word.map_or("", |word| &word.text)
}

impl WordTable {
    /// Returns the number of a word of a binding key.
    pub(crate) fn find_in_binding_key(&self, text: &str) -> Option<u32> {
        match text {
            "*" => Some(STAR),
            "#" => Some(HASH),
            _ => self.find_in_routing_key(text.as_bytes()),
        }
    }

    /// Returns the number of a word of a message's routing key, in which `*` and `#` are plain words that no binding
    /// contains.
    pub(crate) fn find_in_routing_key(&self, text: &[u8]) -> Option<u32> {
        let same = |number: &u32| text_of(&self.words, *number).as_bytes() == text;
        self.numbers.find(hash_text(text), same).copied()
    }

    /// Adds one use of a word and returns its number.
    pub(crate) fn add(&mut self, text: &str) -> u32 {
        if let Some(number) = self.find_in_binding_key(text) {
            if let Some(word) = self.word(number) {
                word.uses += 1;
            }
            return number;
        }
        let word = InternedWord {
            text: text.into(),
            uses: 1,
        };
        // Fewer than 2^32 words fit in memory.
        let number = self.words.insert(word) as u32 + FIRST_WORD;
        let words = &self.words;
        let hash_of = |number: &u32| hash_text(text_of(words, *number).as_bytes());
        self.numbers
            .insert_unique(hash_text(text.as_bytes()), number, hash_of);
        number
    }

    /// Returns `None` for wildcards.
    fn word(&mut self, number: u32) -> Option<&mut InternedWord> {
        self.words.get_mut(number.checked_sub(FIRST_WORD)? as usize)
    }

    /// Removes one use of a word.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(word) = self.word(number) else {
            return;
        };
        debug_assert!(word.uses > 0, "a word without uses is still interned");
        word.uses -= 1;
        if word.uses > 0 {
            return;
        }
        let hash = hash_text(word.text.as_bytes());
        if let Ok(entry) = self.numbers.find_entry(hash, |n| *n == number) {
            entry.remove();
        }
        self.words.remove((number - FIRST_WORD) as usize);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.words.is_empty()
    }
}
