//! The segment files of one group.
