//! A seeded world behind the traits: virtual time, and a disk that tears, loses and flips.
