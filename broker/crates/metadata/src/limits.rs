//! Bounds of what the tree takes. A change beyond one is refused, and one beyond [`CHANGE_BYTES`] is not even decoded.

/// Names of vhosts, queues, exchanges, users, policies, nodes; routing keys; tags (a 0.9.1 short string).
pub const NAME_BYTES: usize = 255;
/// A vhost's description.
pub const DESCRIPTION_BYTES: usize = 1024;
/// Arguments of a queue, exchange or binding, and a policy's definition, encoded.
pub const TABLE_BYTES: usize = 64 * 1024;
/// Tables and arrays within each other.
pub const TABLE_DEPTH: usize = 16;
/// A global parameter's value, as JSON.
pub const PARAMETER_BYTES: usize = 64 * 1024;
/// Global parameters.
pub const PARAMETERS: usize = 1024;
/// Feature flags; nodes tell each other theirs before they know each other, within `MAX_HANDSHAKE_FRAME` of the links.
pub const FEATURES: usize = 100;
/// Tags of a user or a vhost.
pub const TAGS: usize = 32;
/// Members of a queue's group.
pub const MEMBERS: usize = 15;
/// Ids of removed nodes that are remembered, so that none of them comes back; the oldest go beyond that.
pub const FORGOTTEN: usize = 65_536;
/// A retained message, container and all.
pub const RETAINED_BYTES: usize = 896 * 1024;
/// An MQTT topic.
pub const TOPIC_BYTES: usize = 65_535;
/// Retained messages of all vhosts, and their bytes with their topics: every shard of every node has them in memory, and each
/// checkpoint of the tree writes them.
pub const RETAINED: usize = 100_000;
/// See [`RETAINED`].
pub const RETAINED_TOTAL_BYTES: usize = 64 * 1024 * 1024;
/// An encoded change.
pub const CHANGE_BYTES: usize = 1024 * 1024;
/// Exchanges a message may pass through on its way (exchange bindings and alternate exchanges).
pub const HOPS: usize = 1024;
