//! Bounds of the tree's contents. A change beyond one of them is refused. A change beyond [`CHANGE_BYTES`] is not
//! decoded.

/// Bytes of names of vhosts, queues, exchanges, users, policies and nodes, of routing keys and of tags (the maximum of
/// a 0.9.1 short string).
pub const NAME_BYTES: usize = 255;
/// Bytes of a vhost's description.
pub const DESCRIPTION_BYTES: usize = 1024;
/// Encoded bytes of the arguments of a queue, exchange or binding, or of a policy's definition.
pub const TABLE_BYTES: usize = 64 * 1024;
/// Nesting depth of tables and arrays.
pub const TABLE_DEPTH: usize = 16;
/// Bytes of a global parameter's value, as JSON.
pub const PARAMETER_BYTES: usize = 64 * 1024;
/// Number of global parameters.
pub const PARAMETERS: usize = 1024;
/// Number of feature flags. Nodes exchange their flags before they know each other, in a frame of at most
/// `MAX_HANDSHAKE_FRAME` bytes.
pub const FEATURES: usize = 100;
/// Number of client addresses of a node: one for each listener.
pub const CLIENT_ADDRESSES: usize = 64;
/// Number of tags of a user or a vhost.
pub const TAGS: usize = 32;
/// Number of members of a queue's group.
pub const MEMBERS: usize = 15;
/// Number of ids of removed nodes that are remembered, so that none of them joins again. Above it, the oldest id is
/// forgotten.
pub const FORGOTTEN: usize = 65_536;
/// Bytes of a retained message, including its container.
pub const RETAINED_BYTES: usize = 896 * 1024;
/// Bytes of an MQTT topic.
pub const TOPIC_BYTES: usize = 65_535;
/// Number of retained messages of all vhosts. Every shard of every node has them in memory, and each checkpoint of the
/// tree writes them.
pub const RETAINED: usize = 100_000;
/// Bytes of all retained messages with their topics. See [`RETAINED`].
pub const RETAINED_TOTAL_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of an encoded change.
pub const CHANGE_BYTES: usize = 1024 * 1024;
/// Number of exchanges that a message may pass through (exchange bindings and alternate exchanges).
pub const HOPS: usize = 1024;
