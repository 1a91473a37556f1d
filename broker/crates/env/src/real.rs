//! The operating system behind the traits.
