//! Exchanges, bindings and the topic trie
