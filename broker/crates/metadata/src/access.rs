//! Users, permissions and vhosts.

use crate::apply::{check_name, no_vhost, unknown_user};
use crate::subject_limits::LimitHolder;
use crate::traffic::TrafficCounter;
use crate::tree::{NameMap, TreeEvent, Vhost, VhostRecord};
use crate::{
    ChangeError, ChangeResult, ExchangeRecord, Name, PermissionRecord, Right,
    TopicPermissionRecord, Tree, UserRecord, limits,
};
use auth::Pattern;
use message::Table;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The exchanges of each new vhost: name and type.
const PREDECLARED_EXCHANGES: [(&str, &str); 7] = [
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.rabbitmq.trace", "topic"),
];

/// Whether each vhost has an exchange with this name from the beginning.
pub fn is_predeclared_exchange(name: &str) -> bool {
    PREDECLARED_EXCHANGES.iter().any(|(own, _)| *own == name)
}

#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) record: Arc<UserRecord>,
    /// Permissions by vhost.
    pub(crate) rights: BTreeMap<Name, CompiledPermission>,
    /// Topic permissions by vhost and exchange.
    pub(crate) topics: BTreeMap<(Name, Name), CompiledTopicPermission>,
}

impl User {
    pub(crate) fn is_same(&self, other: &User) -> bool {
        let rights = |u: &User| {
            u.rights
                .values()
                .map(|r| r.record.clone())
                .collect::<Vec<_>>()
        };
        let topics = |u: &User| {
            u.topics
                .values()
                .map(|r| r.record.clone())
                .collect::<Vec<_>>()
        };
        self.record == other.record
            && rights(self) == rights(other)
            && topics(self) == topics(other)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CompiledPermission {
    pub(crate) record: Arc<PermissionRecord>,
    configure: Option<Pattern>,
    write: Option<Pattern>,
    read: Option<Pattern>,
}

#[derive(Clone, Debug)]
pub(crate) struct CompiledTopicPermission {
    pub(crate) record: Arc<TopicPermissionRecord>,
    write: Option<Pattern>,
    read: Option<Pattern>,
}

/// Compiles a pattern that was checked when it was put. `None`: another version accepted it and this one does not
/// compile it. It then permits nothing.
fn compile(pattern: &str) -> Option<Pattern> {
    Pattern::compile_right(pattern).ok()
}

/// Replaces the placeholders for the user and the vhost in a topic pattern.
fn expand_placeholders(pattern: &str, record: &TopicPermissionRecord) -> String {
    pattern
        .replace("{username}", &regex::escape(&record.user))
        .replace("{vhost}", &regex::escape(&record.vhost))
}

impl Tree {
    /// Whether a user has any permissions in a vhost.
    pub fn vhost_access(&self, user: &str, vhost: &str) -> bool {
        self.users
            .get(user)
            .is_some_and(|u| u.rights.contains_key(vhost))
    }

    /// Whether a user has a right on a queue or exchange. The pattern is matched against `amq.default` for the default
    /// exchange.
    pub fn permitted(&self, user: &str, vhost: &str, right: Right, resource: &str) -> bool {
        let Some(rights) = self.users.get(user).and_then(|u| u.rights.get(vhost)) else {
            return false;
        };
        let pattern = match right {
            Right::Configure => &rights.configure,
            Right::Write => &rights.write,
            Right::Read => &rights.read,
        };
        let name = if resource.is_empty() {
            "amq.default"
        } else {
            resource
        };
        pattern.as_ref().is_some_and(|p| p.matches(name))
    }

    /// Whether a user may publish (Write) or bind (Read) with this routing key at a topic exchange. Without a topic
    /// permission for the exchange, every key is permitted.
    pub fn topic_permitted(
        &self,
        user: &str,
        vhost: &str,
        exchange: &str,
        right: Right,
        routing_key: &str,
    ) -> bool {
        let Some(user) = self.users.get(user) else {
            return false;
        };
        if user.topics.is_empty() {
            return true;
        }
        let Some(rights) = user.topics.get(&(vhost.into(), exchange.into())) else {
            return true;
        };
        let pattern = match right {
            Right::Configure => return true,
            Right::Write => &rights.write,
            Right::Read => &rights.read,
        };
        pattern.as_ref().is_some_and(|p| p.matches(routing_key))
    }

    pub(crate) fn put_vhost(
        &mut self,
        name: &Name,
        description: &Name,
        tags: &[Name],
    ) -> Result<ChangeResult, ChangeError> {
        check_name("vhost", name)?;
        if description.len() > limits::DESCRIPTION_BYTES {
            return Err(ChangeError::Invalid(format!(
                "the vhost's description is longer than {} bytes",
                limits::DESCRIPTION_BYTES
            )));
        }
        check_tags(tags)?;
        let before = self.vhosts.get(name).map(|v| (*v.record).clone());
        let record = VhostRecord {
            name: name.clone(),
            description: description.clone(),
            tags: tags.to_vec(),
            ..before.unwrap_or_default()
        };
        if let Some(vhost) = self.vhosts.get_mut(name) {
            if *vhost.record == record {
                return Ok(ChangeResult::Unchanged);
            }
            vhost.record = Arc::new(record);
            return Ok(ChangeResult::Changed);
        }
        self.insert_vhost(record);
        self.insert_default_exchanges(name);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn insert_vhost(&mut self, record: VhostRecord) {
        let name = record.name.clone();
        let vhost = Vhost {
            record: Arc::new(record),
            exchanges: NameMap::default(),
            alternates: 0,
            default_exchange: TrafficCounter::default(),
            queues: NameMap::default(),
            policies: BTreeMap::new(),
            effective: BTreeMap::new(),
        };
        self.vhosts.insert(name, vhost);
    }

    fn insert_default_exchanges(&mut self, vhost: &Name) {
        for (name, kind) in PREDECLARED_EXCHANGES {
            self.insert_exchange(ExchangeRecord {
                vhost: vhost.clone(),
                name: name.into(),
                kind: kind.into(),
                durable: true,
                auto_delete: false,
                internal: name == "amq.rabbitmq.trace",
                arguments: Table::default(),
            });
        }
    }

    pub(crate) fn delete_vhost(&mut self, name: &Name) -> Result<ChangeResult, ChangeError> {
        let Some(vhost) = self.vhosts.get(name) else {
            return Ok(ChangeResult::Unchanged);
        };
        if vhost.record.protected {
            return Err(ChangeError::PreconditionFailed(format!(
                "Refusing to delete virtual host '{name}' because it is protected from deletion"
            )));
        }
        let mut queues: Vec<_> = vhost.queues.values().copied().collect();
        queues.sort_unstable();
        for id in queues {
            self.remove_queue(id);
        }
        if let Some(vhost) = self.vhosts.remove(name) {
            for exchange in vhost.exchanges.values() {
                self.exchange_names.remove(&exchange.number);
            }
        }
        for user in self.users.values_mut() {
            let topics = user.topics.len();
            user.topics.retain(|(vhost, _), _| vhost != name);
            if user.rights.remove(name).is_some() || user.topics.len() != topics {
                self.events.push(TreeEvent::PermissionsChanged {
                    user: user.record.name.clone(),
                });
            }
        }
        self.retained.remove_vhost(name);
        self.update_traces();
        self.events.push(TreeEvent::VhostRemoved(name.clone()));
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn put_user(&mut self, user: &UserRecord) -> Result<ChangeResult, ChangeError> {
        check_name("user", &user.name)?;
        check_tags(&user.tags)?;
        if let Some(password) = &user.password {
            let result = password.check();
            result.map_err(|e| ChangeError::Invalid(e.to_string()))?;
        }
        for (limit, value) in &user.limits {
            self.check_limit(LimitHolder::User(&user.name), limit, Some(*value))?;
        }
        if self.user(&user.name).is_some_and(|old| **old == *user) {
            return Ok(ChangeResult::Unchanged);
        }
        self.insert_user(user.clone());
        self.push_permissions_changed(&user.name);
        Ok(ChangeResult::Changed)
    }

    /// Inserts or replaces a user. Its permissions stay.
    pub(crate) fn insert_user(&mut self, record: UserRecord) {
        let record = Arc::new(record);
        match self.users.get_mut(&record.name) {
            Some(user) => user.record = record,
            None => {
                let user = User {
                    record: record.clone(),
                    rights: BTreeMap::new(),
                    topics: BTreeMap::new(),
                };
                self.users.insert(record.name.clone(), user);
            }
        }
    }

    fn push_permissions_changed(&mut self, user: &Name) {
        self.events
            .push(TreeEvent::PermissionsChanged { user: user.clone() });
    }

    pub(crate) fn delete_user(&mut self, name: &Name) -> Result<ChangeResult, ChangeError> {
        if self.users.remove(name).is_none() {
            return Ok(ChangeResult::Unchanged);
        }
        self.push_permissions_changed(name);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn set_user_limit(
        &mut self,
        name: &Name,
        limit: &Name,
        value: Option<i64>,
    ) -> Result<ChangeResult, ChangeError> {
        self.check_limit(LimitHolder::User(name), limit, value)?;
        let user = self.users.get_mut(name).ok_or_else(|| unknown_user(name))?;
        let mut limits = user.record.limits.clone();
        limits.retain(|(l, _)| l != limit);
        limits.extend(value.map(|v| (limit.clone(), v)));
        limits.sort();
        if limits == user.record.limits {
            return Ok(ChangeResult::Unchanged);
        }
        Arc::make_mut(&mut user.record).limits = limits;
        self.push_permissions_changed(name);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn put_permission(
        &mut self,
        record: &PermissionRecord,
    ) -> Result<ChangeResult, ChangeError> {
        self.check_user_and_vhost(&record.user, &record.vhost)?;
        for pattern in [&record.configure, &record.write, &record.read] {
            check_pattern(pattern)?;
        }
        if self
            .permission(&record.user, &record.vhost)
            .is_some_and(|old| **old == *record)
        {
            return Ok(ChangeResult::Unchanged);
        }
        self.insert_permission(record.clone());
        self.push_permissions_changed(&record.user);
        Ok(ChangeResult::Changed)
    }

    /// Returns false if the user does not exist.
    pub(crate) fn insert_permission(&mut self, record: PermissionRecord) -> bool {
        let Some(user) = self.users.get_mut(&record.user) else {
            return false;
        };
        let rights = CompiledPermission {
            configure: compile(&record.configure),
            write: compile(&record.write),
            read: compile(&record.read),
            record: Arc::new(record),
        };
        user.rights.insert(rights.record.vhost.clone(), rights);
        true
    }

    pub(crate) fn delete_permission(
        &mut self,
        name: &Name,
        vhost: &Name,
    ) -> Result<ChangeResult, ChangeError> {
        let user = self.users.get_mut(name);
        if user.and_then(|u| u.rights.remove(vhost)).is_none() {
            return Ok(ChangeResult::Unchanged);
        }
        self.push_permissions_changed(name);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn put_topic_permission(
        &mut self,
        record: &TopicPermissionRecord,
    ) -> Result<ChangeResult, ChangeError> {
        self.check_user_and_vhost(&record.user, &record.vhost)?;
        if record.exchange.len() > limits::NAME_BYTES {
            return Err(ChangeError::Invalid(
                "the exchange's name is too long".into(),
            ));
        }
        for pattern in [&record.write, &record.read] {
            check_pattern(&expand_placeholders(pattern, record))?;
        }
        let key = (record.vhost.clone(), record.exchange.clone());
        let existing = self
            .users
            .get(&record.user)
            .and_then(|u| u.topics.get(&key));
        if existing.is_some_and(|old| *old.record == *record) {
            return Ok(ChangeResult::Unchanged);
        }
        self.insert_topic_permission(record.clone());
        self.push_permissions_changed(&record.user);
        Ok(ChangeResult::Changed)
    }

    /// Returns false if the user does not exist.
    pub(crate) fn insert_topic_permission(&mut self, record: TopicPermissionRecord) -> bool {
        let Some(user) = self.users.get_mut(&record.user) else {
            return false;
        };
        let rights = CompiledTopicPermission {
            write: compile(&expand_placeholders(&record.write, &record)),
            read: compile(&expand_placeholders(&record.read, &record)),
            record: Arc::new(record),
        };
        let key = (rights.record.vhost.clone(), rights.record.exchange.clone());
        user.topics.insert(key, rights);
        true
    }

    pub(crate) fn delete_topic_permission(
        &mut self,
        name: &Name,
        vhost: &Name,
        exchange: Option<&Name>,
    ) -> Result<ChangeResult, ChangeError> {
        let Some(user) = self.users.get_mut(name) else {
            return Ok(ChangeResult::Unchanged);
        };
        let before = user.topics.len();
        user.topics
            .retain(|(v, x), _| v != vhost || exchange.is_some_and(|only| only != x));
        if user.topics.len() == before {
            return Ok(ChangeResult::Unchanged);
        }
        self.push_permissions_changed(name);
        Ok(ChangeResult::Changed)
    }

    fn check_user_and_vhost(&self, user: &Name, vhost: &Name) -> Result<(), ChangeError> {
        if !self.vhost_exists(vhost) {
            return Err(no_vhost(vhost));
        }
        if !self.users.contains_key(user) {
            return Err(unknown_user(user));
        }
        Ok(())
    }
}

fn check_pattern(pattern: &str) -> Result<(), ChangeError> {
    Pattern::compile_right(pattern)
        .map(|_| ())
        .map_err(|e| ChangeError::Invalid(format!("invalid regular expression '{pattern}': {e}")))
}

fn check_tags(tags: &[Name]) -> Result<(), ChangeError> {
    if tags.len() > limits::TAGS {
        return Err(ChangeError::Invalid(format!(
            "{} tags are too many, {} are allowed",
            tags.len(),
            limits::TAGS
        )));
    }
    tags.iter().try_for_each(|tag| check_name("tag", tag))
}
