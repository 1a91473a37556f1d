//! Segment files of a Raft group: entries that outlived the write-ahead log, and which of them still live (Q3, Q14).
#![forbid(unsafe_code)]
