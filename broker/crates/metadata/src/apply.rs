//! Applies changes to the tree, with the same result on every node.

use crate::{Change, ChangeError, ChangeResult, Name, PermissionRecord, Tree, UserRecord, limits};

impl Tree {
    /// Applies the change at this index of the metadata group's log. Deterministic; a refused change changes nothing.
    /// [`Tree::events`] then returns the other effects of the change.
    pub fn apply(&mut self, index: u64, change: &Change) -> Result<ChangeResult, ChangeError> {
        self.events.clear();
        self.applied = self.applied.max(index);
        match change {
            Change::Bootstrap {
                cluster,
                nodes,
                user,
            } => self.bootstrap(cluster, nodes, user),
            Change::PutVhost {
                name,
                description,
                tags,
            } => self.put_vhost(name, description, tags),
            Change::DeleteVhost { name } => self.delete_vhost(name),
            Change::PutUser(user) => self.put_user(user),
            Change::DeleteUser { name } => self.delete_user(name),
            Change::PutPermission(permission) => self.put_permission(permission),
            Change::DeletePermission { user, vhost } => self.delete_permission(user, vhost),
            Change::PutTopicPermission(permission) => self.put_topic_permission(permission),
            Change::DeleteTopicPermission {
                user,
                vhost,
                exchange,
            } => self.delete_topic_permission(user, vhost, exchange.as_ref()),
            Change::SetUserLimit { user, limit, value } => self.set_user_limit(user, limit, *value),
            Change::PutPolicy(policy) => self.put_policy(policy),
            Change::DeletePolicy { vhost, name, scope } => self.delete_policy(vhost, name, *scope),
            Change::DeclareExchange(exchange) => self.declare_exchange(exchange),
            Change::DeleteExchange {
                vhost,
                name,
                if_unused,
            } => self.delete_exchange(vhost, name, *if_unused),
            Change::DeclareQueue(queue) => self.declare_queue(index, queue),
            Change::DeleteQueue { vhost, name, id } => self.delete_queue(vhost, name, *id),
            Change::Barrier {} => Ok(ChangeResult::Unchanged),
            Change::EndSession { session } => self.end_session(*session),
            Change::EndIncarnation { node, incarnation } => {
                self.end_incarnation(*node, *incarnation)
            }
            Change::Bind(binding) => self.bind(binding),
            Change::Unbind(binding) => self.unbind(binding),
            Change::PutNode(node) => self.put_node(node),
            Change::DeleteNode { id } => self.delete_node(*id),
            Change::SetMaintenance { id, on } => self.set_maintenance(*id, *on),
            Change::SetQueueMembers { id, members } => self.set_queue_members(*id, members),
            Change::ReplaceQueueMembers { id, from, to } => {
                self.replace_queue_members(*id, from, to)
            }
            Change::ForgetNode { id } => self.forget_node(index, *id),
            Change::ForgetLostNode { id } => self.forget_lost_node(index, *id),
            Change::ForgetFreeNode { id, seen } => self.forget_free_node(index, *id, *seen),
            Change::ReplaceNode { old, new } => self.replace_node(index, *old, new),
            Change::SetZone { id, zone } => self.set_zone(*id, zone),
            Change::SetDefaultQueueType { vhost, kind } => {
                self.set_default_queue_type(vhost, *kind)
            }
            Change::SetVhostLimit {
                vhost,
                limit,
                value,
            } => self.set_vhost_limit(vhost, limit, *value),
            Change::ProtectVhost { vhost, on } => self.protect_vhost(vhost, *on),
            Change::TraceVhost { vhost, on } => self.trace_vhost(vhost, *on),
            Change::PutGlobalParameter { name, value } => self.put_global_parameter(name, value),
            Change::DeleteGlobalParameter { name } => self.delete_global_parameter(name),
            Change::EnableFeature { name } => self.enable_feature(name),
            Change::EnableKnownFeature { name, known_by } => {
                self.enable_known_feature(name, known_by)
            }
            Change::PutClientAddresses { node, addresses } => {
                self.put_client_addresses(*node, addresses)
            }
            Change::Retain {
                vhost,
                topic,
                message,
            } => self.retain(vhost, topic, message.as_ref()),
            Change::SetQueueExpires { id, expires_ms } => self.set_queue_expires(*id, *expires_ms),
        }
    }

    /// Forms the cluster. Only the first `Bootstrap` has an effect.
    fn bootstrap(
        &mut self,
        cluster: &Name,
        nodes: &[crate::NodeRecord],
        user: &UserRecord,
    ) -> Result<ChangeResult, ChangeError> {
        if !self.cluster.is_empty() {
            return Ok(ChangeResult::Unchanged);
        }
        let before = self.clone();
        let result = self.form_cluster(cluster, nodes, user);
        if result.is_err() {
            *self = before;
        }
        result
    }

    fn form_cluster(
        &mut self,
        cluster: &Name,
        nodes: &[crate::NodeRecord],
        user: &UserRecord,
    ) -> Result<ChangeResult, ChangeError> {
        check_name("cluster", cluster)?;
        for node in nodes {
            self.put_node(node)?;
        }
        self.put_user(user)?;
        let root: Name = "/".into();
        self.put_vhost(&root, &"Default virtual host".into(), &[])?;
        let match_all: Name = ".*".into();
        self.put_permission(&PermissionRecord {
            user: user.name.clone(),
            vhost: root,
            configure: match_all.clone(),
            write: match_all.clone(),
            read: match_all,
        })?;
        self.cluster = cluster.clone();
        Ok(ChangeResult::Changed)
    }
}

/// Checks that a name has 1 to 255 bytes.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<(), ChangeError> {
    if name.is_empty() || name.len() > limits::NAME_BYTES {
        return Err(ChangeError::Invalid(format!(
            "a {kind} name has 1 to {} bytes, not {}",
            limits::NAME_BYTES,
            name.len()
        )));
    }
    Ok(())
}

pub(crate) fn no_vhost(vhost: &str) -> ChangeError {
    ChangeError::NotFound(format!("vhost '{vhost}' not found"))
}

pub(crate) fn unknown_user(user: &str) -> ChangeError {
    ChangeError::NotFound(format!("user '{user}' not found"))
}

pub(crate) fn no_exchange(vhost: &str, name: &str) -> ChangeError {
    ChangeError::NotFound(format!("no exchange '{name}' in vhost '{vhost}'"))
}

pub(crate) fn no_queue(vhost: &str, name: &str) -> ChangeError {
    ChangeError::NotFound(format!("no queue '{name}' in vhost '{vhost}'"))
}
