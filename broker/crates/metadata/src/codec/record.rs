//! Encodings of the tree's records.

use crate::{
    ApplyTo, BindingRecord, ClientAddress, Destination, ExchangeRecord, Name, NodeRecord,
    PermissionRecord, PolicyRecord, PolicyScope, QueueId, QueueRecord, QueueType, SessionId,
    TopicPermissionRecord, UserRecord,
};
use auth::PasswordHash;
use env::NodeId;
use message::Table;
use wire::{wire_enum, wire_struct};

wire_enum!(PolicyScope, "a policy scope" { 1 = User, 2 = Operator });
wire_enum!(ApplyTo, "apply-to" {
    1 = All,
    2 = Queues,
    3 = ClassicQueues,
    4 = QuorumQueues,
    5 = Streams,
    6 = Exchanges,
});
wire_struct!(QueueRecord {
    id: QueueId,
    vhost: Name,
    name: Name,
    kind: QueueType,
    durable: bool,
    auto_delete: bool,
    exclusive: Option<SessionId>,
    arguments: Table,
    members: Vec<NodeId>,
    declared_by: Name,
});
wire_struct!(ExchangeRecord {
    vhost: Name,
    name: Name,
    kind: Name,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Table,
});
wire_struct!(BindingRecord {
    vhost: Name,
    source: Name,
    destination: Destination,
    routing_key: Name,
    arguments: Table,
});
wire_struct!(PolicyRecord {
    vhost: Name,
    name: Name,
    scope: PolicyScope,
    pattern: Name,
    apply_to: ApplyTo,
    priority: i64,
    definition: Table,
});
wire_struct!(UserRecord {
    name: Name,
    password: Option<PasswordHash>,
    tags: Vec<Name>,
    limits: Vec<(Name, i64)>,
});
wire_struct!(PermissionRecord {
    user: Name,
    vhost: Name,
    configure: Name,
    write: Name,
    read: Name,
});
wire_struct!(TopicPermissionRecord {
    user: Name,
    vhost: Name,
    exchange: Name,
    write: Name,
    read: Name,
});
wire_struct!(NodeRecord {
    id: NodeId,
    name: Name,
    address: Name,
    voter: bool,
    maintenance: bool,
});
wire_struct!(ClientAddress {
    protocol: Name,
    tls: bool,
    host: Name,
    port: u16,
});
wire_enum!(Destination, "a destination" { 1 = Queue(name: Name), 2 = Exchange(name: Name) });
