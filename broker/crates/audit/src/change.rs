//! The classification of metadata changes.

use crate::Operation;
use metadata::{BindingRecord, Change, Destination, Name, PolicyScope, QueueId};

/// A metadata change as an operation on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeDescription {
    /// The operation.
    pub operation: Operation,
    /// The virtual host of the object.
    pub vhost: Option<Name>,
    /// The name of the object. Empty: it has none.
    pub name: String,
    /// More about the operation.
    pub details: Vec<(&'static str, String)>,
}

/// Describes a change. None: the change is no operation of a user. Every new kind of change must be classified here.
pub fn change_description(change: &Change) -> Option<ChangeDescription> {
    use Operation as O;
    let described = match change {
        Change::PutVhost { name, .. } => of_vhost(O::VhostPut, name, name),
        Change::DeleteVhost { name } => of_vhost(O::VhostDelete, name, name),
        Change::ProtectVhost { vhost, on: true } => of_vhost(O::VhostProtect, vhost, vhost),
        Change::ProtectVhost { vhost, on: false } => of_vhost(O::VhostUnprotect, vhost, vhost),
        Change::TraceVhost { vhost, on } => {
            of_vhost(O::VhostTrace, vhost, vhost).with("on", on.to_string())
        }
        Change::SetDefaultQueueType { vhost, kind } => {
            let kind = kind.map_or("none", |kind| kind.name());
            of_vhost(O::VhostPut, vhost, vhost).with("default_queue_type", kind)
        }
        Change::SetVhostLimit {
            vhost,
            limit,
            value,
        } => match value {
            Some(value) => of_vhost(O::VhostLimitSet, vhost, vhost)
                .with("limit", &**limit)
                .with("value", value.to_string()),
            None => of_vhost(O::VhostLimitClear, vhost, vhost).with("limit", &**limit),
        },
        Change::PutUser(user) => global(O::UserPut, &user.name).with("tags", user.tags.join(",")),
        Change::DeleteUser { name } => global(O::UserDelete, name),
        Change::SetUserLimit { user, limit, value } => match value {
            Some(value) => global(O::UserLimitSet, user)
                .with("limit", &**limit)
                .with("value", value.to_string()),
            None => global(O::UserLimitClear, user).with("limit", &**limit),
        },
        Change::PutPermission(record) => of_vhost(O::PermissionPut, &record.vhost, &record.user)
            .with("configure", &*record.configure)
            .with("write", &*record.write)
            .with("read", &*record.read),
        Change::DeletePermission { user, vhost } => of_vhost(O::PermissionDelete, vhost, user),
        Change::PutTopicPermission(record) => {
            of_vhost(O::TopicPermissionPut, &record.vhost, &record.user)
                .with("exchange", &*record.exchange)
                .with("write", &*record.write)
                .with("read", &*record.read)
        }
        Change::DeleteTopicPermission {
            user,
            vhost,
            exchange,
        } => of_vhost(O::TopicPermissionDelete, vhost, user)
            .with("exchange", exchange.as_deref().unwrap_or_default()),
        Change::PutPolicy(record) => {
            let operation = match record.scope {
                PolicyScope::User => O::PolicyPut,
                PolicyScope::Operator => O::OperatorPolicyPut,
            };
            of_vhost(operation, &record.vhost, &record.name)
                .with("pattern", &*record.pattern)
                .with("apply-to", record.apply_to.name())
                .with("priority", record.priority.to_string())
        }
        Change::DeletePolicy { vhost, name, scope } => {
            let operation = match scope {
                PolicyScope::User => O::PolicyDelete,
                PolicyScope::Operator => O::OperatorPolicyDelete,
            };
            of_vhost(operation, vhost, name)
        }
        Change::DeclareExchange(record) => {
            of_vhost(O::ExchangeDeclare, &record.vhost, &record.name)
                .with("type", &*record.kind)
                .with("durable", record.durable.to_string())
                .with("auto_delete", record.auto_delete.to_string())
                .with("internal", record.internal.to_string())
        }
        Change::DeleteExchange { vhost, name, .. } => of_vhost(O::ExchangeDelete, vhost, name),
        Change::DeclareQueue(record) => of_vhost(O::QueueDeclare, &record.vhost, &record.name)
            .with("type", record.kind.name())
            .with("durable", record.durable.to_string())
            .with("auto_delete", record.auto_delete.to_string())
            .with("exclusive", record.exclusive.is_some().to_string()),
        // Passes through the log without effect: sessions wait with it until this node knows all changes.
        Change::DeleteQueue {
            id: Some(QueueId::NONE),
            ..
        } => return None,
        Change::DeleteQueue { vhost, name, .. } => of_vhost(O::QueueDelete, vhost, name),
        Change::Bind(binding) => of_binding(O::BindingCreate, binding),
        Change::Unbind(binding) => of_binding(O::BindingDelete, binding),
        Change::PutGlobalParameter { name, .. } => global(O::GlobalParameterPut, name),
        Change::DeleteGlobalParameter { name } => global(O::GlobalParameterDelete, name),
        Change::EnableFeature { name } | Change::EnableKnownFeature { name, .. } => {
            global(O::FeatureFlagEnable, name)
        }
        Change::PutNode(node) => global(O::NodeJoin, &node.name),
        Change::ReplaceNode { new, .. } => global(O::NodeJoin, &new.name),
        Change::DeleteNode { id }
        | Change::ForgetNode { id }
        | Change::ForgetFreeNode { id, .. } => global(O::NodeForget, &format!("{:016x}", id.0)),
        Change::ForgetLostNode { id } => {
            global(O::NodeForget, &format!("{:016x}", id.0)).with("lost", "true")
        }
        Change::SetMaintenance { id, on } => {
            global(O::NodeMaintenance, &format!("{:016x}", id.0)).with("on", on.to_string())
        }
        Change::SetQueueMembers { id, .. } | Change::ReplaceQueueMembers { id, .. } => {
            global(O::QueueChangeMembers, &format!("{:016x}", id.0))
        }
        // The founding of a cluster, and bookkeeping of the nodes and of MQTT sessions.
        Change::Bootstrap { .. }
        | Change::Barrier {}
        | Change::EndSession { .. }
        | Change::EndIncarnation { .. }
        | Change::SetZone { .. }
        | Change::SetQueueExpires { .. }
        | Change::Retain { .. }
        | Change::PutClientAddresses { .. } => return None,
    };
    Some(described)
}

impl ChangeDescription {
    fn with(mut self, key: &'static str, value: impl Into<String>) -> ChangeDescription {
        self.details.push((key, value.into()));
        self
    }
}

fn global(operation: Operation, name: &str) -> ChangeDescription {
    ChangeDescription {
        operation,
        vhost: None,
        name: name.to_owned(),
        details: Vec::new(),
    }
}

fn of_vhost(operation: Operation, vhost: &Name, name: &str) -> ChangeDescription {
    ChangeDescription {
        vhost: Some(vhost.clone()),
        ..global(operation, name)
    }
}

fn of_binding(operation: Operation, binding: &BindingRecord) -> ChangeDescription {
    let (kind, destination) = match &binding.destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    of_vhost(operation, &binding.vhost, &binding.source)
        .with("destination_type", kind)
        .with("destination", &**destination)
        .with("routing_key", &*binding.routing_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_of_amqp10_is_no_deletion() {
        let delete = |id| Change::DeleteQueue {
            vhost: "/".into(),
            name: "q".into(),
            id,
        };
        assert_eq!(change_description(&delete(Some(QueueId::NONE))), None);
        let deletion = change_description(&delete(Some(QueueId(7)))).unwrap();
        assert_eq!(deletion.operation, Operation::QueueDelete);
        assert_eq!(
            (deletion.vhost.as_deref(), &*deletion.name),
            (Some("/"), "q")
        );
    }

    #[test]
    fn user_record_shows_no_password() {
        let user = metadata::UserRecord {
            name: "u".into(),
            password: auth::hash_with(auth::HashAlgorithm::Sha256, b"secret", b"salt").ok(),
            tags: vec!["administrator".into()],
            limits: Vec::new(),
        };
        let text = format!("{:?}", change_description(&Change::PutUser(user)));
        assert!(text.contains("administrator"), "{text}");
        assert!(
            !text.contains("password") && !text.contains("bytes"),
            "{text}"
        );
    }
}
