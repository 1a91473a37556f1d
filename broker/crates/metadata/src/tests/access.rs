use super::*;

fn permission(user: &str, configure: &str, write: &str, read: &str) -> PermissionRecord {
    PermissionRecord {
        user: name(user),
        vhost: name("/"),
        configure: name(configure),
        write: name(write),
        read: name(read),
    }
}

#[test]
fn permissions_are_patterns_and_an_empty_one_permits_nothing() {
    let mut log = Log::new();
    log.ok(Change::PutUser(user("u")));
    assert!(!log.tree.vhost_access("u", "/"));
    log.ok(Change::PutPermission(permission(
        "u",
        "",
        "^(tenant-u|amq\\.default$)",
        ".*",
    )));
    assert_eq!(
        log.tree.events(),
        [TreeEvent::PermissionsChanged { user: name("u") }]
    );
    assert!(log.tree.vhost_access("u", "/") && !log.tree.vhost_access("u", "other"));
    let is_permitted = |right, resource| log.tree.permitted("u", "/", right, resource);
    assert!(!is_permitted(Right::Configure, "tenant-u.q"));
    assert!(is_permitted(Right::Write, "tenant-u.q") && !is_permitted(Right::Write, "other"));
    assert!(
        is_permitted(Right::Write, ""),
        "the default exchange is amq.default"
    );
    assert!(is_permitted(Right::Read, "other"));
    assert!(!log.tree.permitted("nobody", "/", Right::Read, "q"));
    assert!(
        log.tree
            .permitted("guest", "/", Right::Configure, "anything")
    );
    log.ok(Change::DeletePermission {
        user: name("u"),
        vhost: name("/"),
    });
    assert!(!log.tree.vhost_access("u", "/"));
}

#[test]
fn topic_permissions_restrict_only_their_exchange() {
    let mut log = Log::new();
    let topic = TopicPermissionRecord {
        user: name("guest"),
        vhost: name("/"),
        exchange: name("amq.topic"),
        write: name("^{username}\\."),
        read: name(".*"),
    };
    log.ok(Change::PutTopicPermission(topic));
    let is_permitted = |exchange, key| {
        log.tree
            .topic_permitted("guest", "/", exchange, Right::Write, key)
    };
    assert!(is_permitted("amq.topic", "guest.a") && !is_permitted("amq.topic", "other.a"));
    assert!(is_permitted("x", "other.a"));
    let clear = |exchange: Option<&str>| Change::DeleteTopicPermission {
        user: name("guest"),
        vhost: name("/"),
        exchange: exchange.map(name),
    };
    assert_eq!(log.ok(clear(Some("x"))), ChangeResult::Unchanged);
    assert_eq!(log.ok(clear(None)), ChangeResult::Changed);
    assert!(
        log.tree
            .topic_permitted("guest", "/", "amq.topic", Right::Write, "other.a")
    );
}

#[test]
fn users_are_checked_and_deleted_with_their_permissions() {
    let mut log = Log::new();
    log.ok(Change::PutUser(user("u")));
    assert_eq!(log.ok(Change::PutUser(user("u"))), ChangeResult::Unchanged);
    log.ok(Change::PutPermission(permission("u", ".*", ".*", ".*")));
    // A new password keeps the permissions.
    let changed = UserRecord {
        password: None,
        ..user("u")
    };
    log.ok(Change::PutUser(changed));
    assert!(log.tree.vhost_access("u", "/"));
    let limit = |limit: &str, value| Change::SetUserLimit {
        user: name("u"),
        limit: name(limit),
        value,
    };
    log.ok(limit("max-connections", Some(3)));
    assert_eq!(
        log.tree.user("u").unwrap().limits,
        [(name("max-connections"), 3)]
    );
    assert_eq!(
        log.ok(limit("max-connections", Some(3))),
        ChangeResult::Unchanged
    );
    log.ok(limit("max-connections", None));
    log.refused(limit("max-dreams", Some(3)));
    log.ok(Change::DeleteUser { name: name("u") });
    log.ok(Change::PutUser(user("u")));
    assert!(
        !log.tree.vhost_access("u", "/"),
        "a namesake has no rights of its predecessor"
    );
    let bad = UserRecord {
        password: Some(auth::PasswordHash {
            algorithm: HashAlgorithm::Sha256,
            bytes: vec![1],
        }),
        ..user("v")
    };
    assert!(matches!(
        log.refused(Change::PutUser(bad)),
        ChangeError::Invalid(_)
    ));
    assert!(matches!(
        log.refused(Change::PutPermission(permission("no", "", "", ""))),
        ChangeError::NotFound(_)
    ));
    assert!(matches!(
        log.refused(Change::PutPermission(permission("u", "(", "", ""))),
        ChangeError::Invalid(_)
    ));
}

#[test]
fn second_bootstrap_changes_nothing() {
    let mut log = Log::new();
    let again = Change::Bootstrap {
        cluster: name("other"),
        nodes: vec![node(9)],
        user: user("eve"),
    };
    assert_eq!(log.ok(again), ChangeResult::Unchanged);
    assert_eq!(log.tree.cluster(), "test");
    assert!(log.tree.user("eve").is_none());
    let mut empty = Tree::default();
    let bad = Change::Bootstrap {
        cluster: name("c"),
        nodes: vec![node(1), node(0)],
        user: user("eve"),
    };
    assert!(empty.apply(1, &bad).is_err());
    assert_eq!(empty.nodes().count(), 0);
}

#[test]
fn md5_hash_survives_a_snapshot() {
    let mut log = Log::new();
    let old = UserRecord {
        password: auth::hash_with(HashAlgorithm::Md5, b"secret", b"salt").ok(),
        ..user("old")
    };
    log.ok(Change::PutUser(old.clone()));
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert_eq!(**restored.user("old").unwrap(), old);
}
