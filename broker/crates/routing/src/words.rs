//! Interned words of binding keys, numbered.

use hashbrown::HashTable;
use slots::Slab;
use std::hash::BuildHasher;

/// Numbers of the two wildcards; words start after them.
pub(crate) const STAR: u32 = 0;
pub(crate) const HASH: u32 = 1;
const FIRST: u32 = 2;

#[derive(Clone, Debug)]
struct Word {
    text: Box<str>,
    /// Number of edges with this word.
    uses: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// Indexed by number less FIRST.
    words: Slab<Word>,
    numbers: HashTable<u32>,
}

fn hash(text: &[u8]) -> u64 {
    foldhash::fast::FixedState::default().hash_one(text)
}

fn text_of(words: &Slab<Word>, number: u32) -> &str {
    let word = words.get((number - FIRST) as usize);
    word.map_or("", |word| &word.text)
}

impl Words {
    /// The number of a word in a binding key.
    pub(crate) fn of_binding(&self, text: &str) -> Option<u32> {
        match text {
            "*" => Some(STAR),
            "#" => Some(HASH),
            _ => self.of_message(text.as_bytes()),
        }
    }

    /// The number of a word in a message's routing key, in which `*` and `#` are plain words that no binding
    /// contains.
    pub(crate) fn of_message(&self, text: &[u8]) -> Option<u32> {
        let same = |number: &u32| text_of(&self.words, *number).as_bytes() == text;
        self.numbers.find(hash(text), same).copied()
    }

    /// Adds one use of a word and returns its number.
    pub(crate) fn add(&mut self, text: &str) -> u32 {
        if let Some(number) = self.of_binding(text) {
            if let Some(word) = self.word(number) {
                word.uses += 1;
            }
            return number;
        }
        let word = Word {
            text: text.into(),
            uses: 1,
        };
        // Fewer than 2^32 words fit in memory.
        let number = self.words.insert(word) as u32 + FIRST;
        let words = &self.words;
        let hash_of = |number: &u32| hash(text_of(words, *number).as_bytes());
        self.numbers
            .insert_unique(hash(text.as_bytes()), number, hash_of);
        number
    }

    /// Returns `None` for wildcards.
    fn word(&mut self, number: u32) -> Option<&mut Word> {
        self.words.get_mut(number.checked_sub(FIRST)? as usize)
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
        let hash = hash(word.text.as_bytes());
        if let Ok(entry) = self.numbers.find_entry(hash, |n| *n == number) {
            entry.remove();
        }
        self.words.remove((number - FIRST) as usize);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.words.is_empty()
    }
}
