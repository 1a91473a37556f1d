//! Users that an external backend has authenticated, and their permissions.

use crate::{Name, Right, Tree};
use auth::Wildcard;
use env::WallTime;

/// Most scopes of an access token.
pub const MAX_SCOPES: usize = 1024;

/// A user that an external authentication backend has identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the user, at most as long as other names.
    pub user: Name,
    /// Tags of the user, as `administrator`.
    pub tags: Vec<Name>,
    /// The source of its permissions.
    pub permissions: IdentityPermissions,
    /// The time at which the identity expires. None: it does not expire.
    pub expires_at: Option<WallTime>,
    /// Index of the backend that can renew the identity.
    pub backend: usize,
}

/// The source of the permissions of an [`Identity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityPermissions {
    /// The user of this name in the metadata.
    Stored,
    /// The scopes of an access token.
    Scopes(Box<[Scope]>),
}

/// A permission in an access token: `RIGHT:VHOST/NAME` or `RIGHT:VHOST/NAME/ROUTING_KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    right: Right,
    vhost: Wildcard,
    name: Wildcard,
    /// None: the scope does not apply to routing keys of topic exchanges.
    routing_key: Option<Wildcard>,
}

impl Scope {
    /// Parses a scope without its prefix. None: it is no permission, or a pattern is invalid.
    pub fn parse(text: &str) -> Option<Scope> {
        let (right, patterns) = text.split_once(':')?;
        let right = match right {
            "configure" => Right::Configure,
            "write" => Right::Write,
            "read" => Right::Read,
            _ => return None,
        };
        let mut patterns = patterns.split('/');
        let (vhost, name) = (patterns.next()?, patterns.next()?);
        let routing_key = match patterns.next() {
            None => None,
            Some(pattern) => Some(Wildcard::compile(pattern)?),
        };
        if patterns.next().is_some() {
            return None;
        }
        Some(Scope {
            right,
            vhost: Wildcard::compile(vhost)?,
            name: Wildcard::compile(name)?,
            routing_key,
        })
    }

    fn applies(&self, vhost: &str, right: Right, name: &str) -> bool {
        self.right == right && self.vhost.matches(vhost) && self.name.matches(name)
    }
}

impl Identity {
    /// The identity with the scopes that apply to one vhost only, so that checks in it visit no others.
    pub fn in_vhost(&self, vhost: &str) -> Identity {
        let mut identity = self.clone();
        if let IdentityPermissions::Scopes(scopes) = &mut identity.permissions {
            let of_vhost = scopes.iter().filter(|scope| scope.vhost.matches(vhost));
            *scopes = of_vhost.cloned().collect();
        }
        identity
    }

    fn scopes(&self) -> Option<&[Scope]> {
        match &self.permissions {
            IdentityPermissions::Stored => None,
            IdentityPermissions::Scopes(scopes) => Some(scopes),
        }
    }
}

/// A user and its permissions, from an identity or from the metadata.
#[derive(Clone, Copy, Debug)]
pub struct UserAccess<'t> {
    tree: &'t Tree,
    user: &'t str,
    identity: Option<&'t Identity>,
}

impl Tree {
    /// The permissions of a user. `identity`: the one from an external backend.
    pub fn access_of<'t>(
        &'t self,
        user: &'t str,
        identity: Option<&'t Identity>,
    ) -> UserAccess<'t> {
        UserAccess {
            tree: self,
            user,
            identity,
        }
    }
}

impl UserAccess<'_> {
    fn scopes(&self) -> Option<&[Scope]> {
        self.identity.and_then(Identity::scopes)
    }

    /// Returns true if the user has any permissions in the vhost. The vhost need not exist.
    pub fn has_vhost(&self, vhost: &str) -> bool {
        match self.scopes() {
            Some(scopes) => scopes.iter().any(|scope| scope.vhost.matches(vhost)),
            None => self.tree.vhost_access(self.user, vhost),
        }
    }

    /// As [`Tree::permitted`].
    pub fn permits(&self, vhost: &str, right: Right, resource: &str) -> bool {
        let Some(scopes) = self.scopes() else {
            return self.tree.permitted(self.user, vhost, right, resource);
        };
        let name = match resource {
            "" => "amq.default",
            resource => resource,
        };
        scopes.iter().any(|scope| scope.applies(vhost, right, name))
    }

    /// As [`Tree::topic_permitted`]. A scope without a pattern for routing keys permits none.
    pub fn permits_topic(&self, vhost: &str, exchange: &str, right: Right, key: &str) -> bool {
        let Some(scopes) = self.scopes() else {
            let (tree, user) = (self.tree, self.user);
            return tree.topic_permitted(user, vhost, exchange, right, key);
        };
        scopes.iter().any(|scope| {
            let pattern = scope.routing_key.as_ref();
            scope.applies(vhost, right, exchange) && pattern.is_some_and(|p| p.matches(key))
        })
    }

    /// Returns true if the user has this tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        let is_tag = |own: &Name| **own == *tag;
        if self.identity.is_some_and(|i| i.tags.iter().any(is_tag)) {
            return true;
        }
        let record = match self.scopes() {
            Some(_) => None,
            None => self.tree.user(self.user),
        };
        record.is_some_and(|record| record.tags.iter().any(is_tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(scopes: &[&str]) -> Identity {
        let scopes = scopes.iter().filter_map(|text| Scope::parse(text));
        Identity {
            user: "u".into(),
            tags: vec!["management".into()],
            permissions: IdentityPermissions::Scopes(scopes.collect()),
            expires_at: None,
            backend: 0,
        }
    }

    #[test]
    fn scopes_permit_what_their_patterns_match() {
        let tree = Tree::default();
        let identity = identity(&["read:%2F/q*", "write:a/x/key.*", "configure:*/*", "tag:x"]);
        let access = tree.access_of("u", Some(&identity));
        assert!(access.has_vhost("/") && access.has_vhost("any"));
        assert!(access.permits("/", Right::Read, "q1"));
        assert!(!access.permits("/", Right::Read, "x") && !access.permits("a", Right::Read, "q1"));
        assert!(access.permits("a", Right::Write, "x") && !access.permits("/", Right::Write, "x"));
        assert!(access.permits("any", Right::Configure, ""));
        assert!(access.permits_topic("a", "x", Right::Write, "key.1"));
        assert!(!access.permits_topic("a", "x", Right::Write, "other"));
        assert!(access.has_tag("management") && !access.has_tag("administrator"));
    }

    #[test]
    fn scope_without_routing_key_pattern_permits_no_topic() {
        let tree = Tree::default();
        let identity = identity(&["write:*/*"]);
        let access = tree.access_of("u", Some(&identity));
        assert!(access.permits("/", Right::Write, "amq.topic"));
        assert!(!access.permits_topic("/", "amq.topic", Right::Write, "a"));
    }

    #[test]
    fn default_exchange_is_checked_by_its_permission_name() {
        let tree = Tree::default();
        let identity = identity(&["write:*/amq.default"]);
        let access = tree.access_of("u", Some(&identity));
        assert!(access.permits("/", Right::Write, "") && !access.permits("/", Right::Write, "x"));
    }

    #[test]
    fn identity_in_a_vhost_keeps_only_its_scopes() {
        let tree = Tree::default();
        let all = identity(&["read:a/q", "read:*/r", "read:b/q"]);
        let own = all.in_vhost("a");
        assert_eq!(own.scopes().map(<[Scope]>::len), Some(2));
        let access = tree.access_of("u", Some(&own));
        assert!(access.permits("a", Right::Read, "q") && access.permits("a", Right::Read, "r"));
        assert!(!access.permits("b", Right::Read, "q"));
        let none = all.in_vhost("c").in_vhost("b");
        assert!(
            !tree
                .access_of("u", Some(&none))
                .permits("b", Right::Read, "q")
        );
    }

    #[test]
    fn texts_that_are_no_permissions_are_no_scopes() {
        for text in [
            "",
            "read",
            "read:",
            "read:a",
            "read:a/b/c/d",
            "own:a/b",
            "tag:administrator",
            "READ:a/b",
            "read:%/b",
            "read:a/%",
            "read:a/b/%",
        ] {
            assert_eq!(Scope::parse(text), None, "{text}");
        }
    }
}
