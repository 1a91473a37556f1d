//! One shard of a node, sans-io: its sessions, queues and Raft groups
