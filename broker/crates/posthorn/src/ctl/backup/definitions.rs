//! The parts of a definitions document that a backup has or that are restored.

use crate::ctl::client::Client;
use crate::ctl::failure::Failure;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;

/// The lists of a document in the order in which they depend on each other.
const KINDS: [&str; 11] = [
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "global_parameters",
    "parameters",
    "policies",
    "operator_policies",
    "queues",
    "exchanges",
    "bindings",
];
/// The lists of the cluster; entries of the others have a virtual host.
const OF_CLUSTER: [&str; 2] = ["users", "global_parameters"];
/// Bytes of entries of one request. The API's limit for a document is 4 MiB.
const REQUEST_BYTES: usize = 1 << 20;

/// The definitions of a backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Definitions(Map<String, Json>);

/// A queue of the definitions.
pub(super) struct DefinedQueue {
    pub vhost: String,
    pub name: String,
    pub kind: String,
}

fn text<'a>(entry: &'a Json, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_default()
}

impl Definitions {
    pub(super) fn new(document: Json) -> Option<Definitions> {
        match document {
            Json::Object(members) => Some(Definitions(members)),
            _ => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.0).unwrap_or_default()
    }

    fn list(&self, kind: &str) -> &[Json] {
        let list = self.0.get(kind).and_then(Json::as_array);
        list.map_or(&[][..], Vec::as_slice)
    }

    fn retain(&mut self, kind: &str, is_kept: impl Fn(&Json) -> bool) {
        if let Some(list) = self.0.get_mut(kind).and_then(Json::as_array_mut) {
            list.retain(is_kept);
        }
    }

    pub(super) fn text(&self, key: &str) -> String {
        let value = self.0.get(key).and_then(Json::as_str);
        value.unwrap_or_default().to_owned()
    }

    /// Virtual hosts that the document has.
    pub(super) fn has_vhost(&self, vhost: &str) -> bool {
        let mut vhosts = self.list("vhosts").iter();
        vhosts.any(|entry| text(entry, "name") == vhost)
    }

    /// The names of the virtual hosts.
    pub(super) fn vhosts(&self) -> Vec<String> {
        let vhosts = self.list("vhosts").iter();
        vhosts.map(|entry| text(entry, "name").to_owned()).collect()
    }

    /// The queues in their order.
    pub(super) fn queues(&self) -> Vec<DefinedQueue> {
        let queues = self.list("queues").iter().map(|entry| {
            let argument = entry["arguments"]["x-queue-type"].as_str();
            let kind = entry["type"].as_str().or(argument);
            DefinedQueue {
                vhost: text(entry, "vhost").to_owned(),
                name: text(entry, "name").to_owned(),
                kind: kind.unwrap_or("classic").to_owned(),
            }
        });
        queues.collect()
    }

    /// Keeps the objects of these virtual hosts, without users.
    pub(super) fn keep_vhosts(&mut self, vhosts: &[String]) {
        for kind in OF_CLUSTER {
            self.0.remove(kind);
        }
        let is_kept = |vhost: &str| vhosts.iter().any(|kept| kept == vhost);
        self.retain("vhosts", |entry| is_kept(text(entry, "name")));
        let in_vhosts = KINDS.iter().filter(|kind| **kind != "vhosts");
        for kind in in_vhosts.filter(|kind| !OF_CLUSTER.contains(kind)) {
            self.retain(kind, |entry| is_kept(text(entry, "vhost")));
        }
    }

    /// Keeps the definitions of queues with these names, and nothing else.
    pub(super) fn keep_queues(&mut self, names: &[String]) {
        for kind in KINDS.iter().filter(|kind| **kind != "queues") {
            self.0.remove(*kind);
        }
        self.retain("queues", |entry| {
            names.iter().any(|n| n == text(entry, "name"))
        });
    }

    /// Gives all objects of a virtual host to another one.
    pub(super) fn rename_vhost(&mut self, from: &str, to: &str) {
        for kind in KINDS {
            let key = if kind == "vhosts" { "name" } else { "vhost" };
            let list = self.0.get_mut(kind).and_then(Json::as_array_mut);
            for entry in list.into_iter().flatten() {
                if entry[key] == from {
                    entry[key] = json!(to);
                }
            }
        }
    }

    /// Leaves out permissions of users whom neither the document nor the cluster has. Returns their names.
    pub(super) fn remove_unknown_users(&mut self, client: &Client) -> Result<Vec<String>, Failure> {
        let kinds = ["permissions", "topic_permissions"];
        if kinds.iter().all(|kind| self.list(kind).is_empty()) {
            return Ok(Vec::new());
        }
        let existing = client.get(&["users"])?;
        let existing = existing.as_array().into_iter().flatten();
        let own = self.list("users").iter();
        let known = existing
            .chain(own)
            .map(|user| text(user, "name").to_owned());
        let known: BTreeSet<String> = known.collect();
        let mut unknown = BTreeSet::new();
        for kind in kinds {
            let users = self.list(kind).iter().map(|entry| text(entry, "user"));
            let users = users.filter(|user| !known.contains(*user));
            unknown.extend(users.map(str::to_owned));
            self.retain(kind, |entry| known.contains(text(entry, "user")));
        }
        Ok(unknown.into_iter().collect())
    }

    /// Takes the entry of a user out of the document.
    pub(super) fn take_user(&mut self, name: &str) -> Option<Definitions> {
        let users = self.0.get_mut("users").and_then(Json::as_array_mut)?;
        let at = users.iter().position(|user| text(user, "name") == name)?;
        let user = users.remove(at);
        let mut members = Map::new();
        members.insert("users".to_owned(), json!([user]));
        Some(Definitions(members))
    }

    /// Imports all of it, in requests of a limited size. Returns the number of entries.
    pub(super) fn import(&self, client: &Client) -> Result<u64, Failure> {
        let mut imported = 0;
        for kind in KINDS {
            let mut part = Vec::new();
            let mut bytes = 0;
            let mut entries = self.list(kind).iter().peekable();
            while let Some(entry) = entries.next() {
                bytes += entry.to_string().len();
                part.push(entry.clone());
                imported += 1;
                if bytes >= REQUEST_BYTES || entries.peek().is_none() {
                    let body = json!({kind: std::mem::take(&mut part)});
                    client.post_for(&["definitions"], &body)?;
                    bytes = 0;
                }
            }
        }
        Ok(imported)
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn definitions() -> Definitions {
        let document = json!({
            "users": [{"name": "guest"}, {"name": "app"}],
            "vhosts": [{"name": "/"}, {"name": "shop"}],
            "permissions": [{"user": "app", "vhost": "shop"}, {"user": "app", "vhost": "/"}],
            "global_parameters": [{"name": "cluster_name", "value": "x"}],
            "policies": [{"name": "p", "vhost": "/"}],
            "queues": [
                {"name": "a", "vhost": "/", "type": "quorum"},
                {"name": "a", "vhost": "shop", "arguments": {"x-queue-type": "stream"}},
                {"name": "b", "vhost": "shop"},
            ],
        });
        Definitions::new(document).unwrap()
    }

    fn names(definitions: &Definitions, kind: &str) -> Vec<String> {
        let list = definitions.list(kind).iter();
        list.map(|entry| text(entry, "name").to_owned()).collect()
    }

    #[test]
    fn queues_have_their_type_from_either_place() {
        let queues = definitions().queues();
        let kinds: Vec<&str> = queues.iter().map(|queue| queue.kind.as_str()).collect();
        assert_eq!(kinds, ["quorum", "stream", "classic"]);
    }

    #[test]
    fn one_vhost_is_kept_without_users_and_renamed() {
        let mut kept = definitions();
        kept.keep_vhosts(&["shop".to_owned()]);
        kept.rename_vhost("shop", "copy");
        assert_eq!(names(&kept, "vhosts"), ["copy"]);
        assert!(names(&kept, "users").is_empty());
        assert!(names(&kept, "global_parameters").is_empty());
        assert!(names(&kept, "policies").is_empty());
        assert_eq!(names(&kept, "queues"), ["a", "b"]);
        assert!(kept.queues().iter().all(|queue| queue.vhost == "copy"));
        assert_eq!(
            kept.list("permissions"),
            [json!({"user": "app", "vhost": "copy"})]
        );
    }

    #[test]
    fn chosen_queues_are_kept_alone() {
        let mut kept = definitions();
        kept.keep_queues(&["b".to_owned()]);
        assert_eq!(names(&kept, "queues"), ["b"]);
        assert!(
            KINDS
                .iter()
                .all(|kind| *kind == "queues" || kept.list(kind).is_empty())
        );
    }

    #[test]
    fn own_user_is_taken_out() {
        let mut rest = definitions();
        let own = rest.take_user("guest").unwrap();
        assert_eq!(names(&own, "users"), ["guest"]);
        assert_eq!(names(&rest, "users"), ["app"]);
        assert!(rest.take_user("guest").is_none());
    }
}
