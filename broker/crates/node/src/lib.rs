//! A node: configuration, identity, listeners, peer links, threads
