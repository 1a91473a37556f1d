//! Encoding of changes: a version, then the change. Entries of the metadata group's log and frames between shards have
//! this form.

use crate::{
    BindingRecord, Change, ChangeError, ClientAddress, ExchangeRecord, Name, NodeRecord,
    PermissionRecord, PolicyRecord, PolicyScope, QueueId, QueueRecord, QueueType, SessionId,
    TopicPermissionRecord, UserRecord, limits,
};
use bytes::{Bytes, BytesMut};
use env::{Incarnation, NodeId};
use wire::{DecodeCause, DecodeError, Decoded, Reader, Wire, wire_enum};

/// Version of the encoding.
const VERSION: u8 = 1;
/// The name of the format in errors.
const FORMAT: &str = "metadata change";

impl Change {
    /// The encoding of the change.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        VERSION.put(&mut out);
        self.put(&mut out);
        out.freeze()
    }

    /// Decodes a change that fills the bytes.
    pub fn decode(raw: &[u8]) -> Decoded<Change> {
        let mut from = Reader::new(FORMAT, raw);
        if raw.len() > limits::CHANGE_BYTES {
            return Err(from.error(DecodeCause::Limit));
        }
        let version = from.u8()?;
        if version != VERSION {
            return Err(from.error(DecodeCause::Version(version)));
        }
        let change = from.get()?;
        from.end()?;
        Ok(change)
    }

    /// Fails if the change cannot be decoded again. Every node that reads such an entry of the log would end, now and
    /// after each restart. Clients of AMQP 0.9.1 may send tables that are nested deeper than tables here.
    pub fn check_readable(&self) -> Result<(), ChangeError> {
        let encoded = self.encode();
        match Change::decode(&encoded) {
            Ok(_) => Ok(()),
            Err(DecodeError {
                cause: DecodeCause::Limit,
                ..
            }) if encoded.len() > limits::CHANGE_BYTES => Err(ChangeError::Invalid(format!(
                "a change of {} bytes is too large for the cluster's metadata",
                encoded.len()
            ))),
            Err(DecodeError {
                cause: DecodeCause::Limit,
                ..
            }) => Err(ChangeError::PreconditionFailed(format!(
                "arguments are nested deeper than {}",
                limits::TABLE_DEPTH
            ))),
            Err(error) => Err(ChangeError::Invalid(error.to_string())),
        }
    }
}

wire_enum!(Change, "a change" {
    1 = Bootstrap { cluster: Name, nodes: Vec<NodeRecord>, user: UserRecord },
    2 = PutVhost { name: Name, description: Name, tags: Vec<Name> },
    3 = DeleteVhost { name: Name },
    4 = PutUser(record: UserRecord),
    5 = DeleteUser { name: Name },
    6 = PutPermission(record: PermissionRecord),
    7 = DeletePermission { user: Name, vhost: Name },
    8 = PutTopicPermission(record: TopicPermissionRecord),
    9 = DeleteTopicPermission { user: Name, vhost: Name, exchange: Option<Name> },
    10 = SetUserLimit { user: Name, limit: Name, value: Option<i64> },
    11 = PutPolicy(record: PolicyRecord),
    12 = DeletePolicy { vhost: Name, name: Name, scope: PolicyScope },
    13 = DeclareExchange(record: ExchangeRecord),
    14 = DeleteExchange { vhost: Name, name: Name, if_unused: bool },
    15 = DeclareQueue(record: QueueRecord),
    16 = DeleteQueue { vhost: Name, name: Name, id: Option<QueueId> },
    17 = EndSession { session: SessionId },
    18 = EndIncarnation { node: NodeId, incarnation: Incarnation },
    19 = Bind(record: BindingRecord),
    20 = Unbind(record: BindingRecord),
    21 = PutNode(record: NodeRecord),
    22 = DeleteNode { id: NodeId },
    23 = SetMaintenance { id: NodeId, on: bool },
    24 = SetQueueMembers { id: QueueId, members: Vec<NodeId> },
    25 = ReplaceQueueMembers { id: QueueId, from: Vec<NodeId>, to: Vec<NodeId> },
    26 = ForgetNode { id: NodeId },
    27 = SetZone { id: NodeId, zone: Name },
    28 = SetDefaultQueueType { vhost: Name, kind: Option<QueueType> },
    29 = SetVhostLimit { vhost: Name, limit: Name, value: Option<i64> },
    30 = ProtectVhost { vhost: Name, on: bool },
    31 = PutGlobalParameter { name: Name, value: Name },
    32 = DeleteGlobalParameter { name: Name },
    33 = EnableFeature { name: Name },
    34 = SetQueueExpires { id: QueueId, expires_ms: Option<u64> },
    35 = Retain { vhost: Name, topic: Name, message: Option<Bytes> },
    36 = TraceVhost { vhost: Name, on: bool },
    37 = EnableKnownFeature { name: Name, known_by: Vec<NodeId> },
    38 = ForgetFreeNode { id: NodeId, seen: u64 },
    39 = ReplaceNode { old: NodeId, new: NodeRecord },
    40 = Barrier {},
    // With the feature flag `client_addresses`.
    41 = PutClientAddresses { node: NodeId, addresses: Vec<ClientAddress> },
    // With the feature flag `majority_recovery`.
    42 = ForgetLostNode { id: NodeId },
});
