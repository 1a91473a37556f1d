//! Changes and snapshots as version 0.2 wrote them.

use super::*;
use crate::features::{BASELINE, CLIENT_ADDRESSES};
use auth::PasswordHash;
use bytes::Bytes;
use std::fmt;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

golden::variant_names! {
    fn change_name(Change) {
        Change::Bootstrap { .. } => "bootstrap",
        Change::PutVhost { .. } => "put-vhost",
        Change::DeleteVhost { .. } => "delete-vhost",
        Change::PutUser(_) => "put-user",
        Change::DeleteUser { .. } => "delete-user",
        Change::PutPermission(_) => "put-permission",
        Change::DeletePermission { .. } => "delete-permission",
        Change::PutTopicPermission(_) => "put-topic-permission",
        Change::DeleteTopicPermission { .. } => "delete-topic-permission",
        Change::SetUserLimit { .. } => "set-user-limit",
        Change::PutPolicy(_) => "put-policy",
        Change::DeletePolicy { .. } => "delete-policy",
        Change::DeclareExchange(_) => "declare-exchange",
        Change::DeleteExchange { .. } => "delete-exchange",
        Change::DeclareQueue(_) => "declare-queue",
        Change::DeleteQueue { .. } => "delete-queue",
        Change::Barrier {} => "barrier",
        Change::EndSession { .. } => "end-session",
        Change::EndIncarnation { .. } => "end-incarnation",
        Change::Bind(_) => "bind",
        Change::Unbind(_) => "unbind",
        Change::PutNode(_) => "put-node",
        Change::DeleteNode { .. } => "delete-node",
        Change::SetMaintenance { .. } => "set-maintenance",
        Change::SetQueueMembers { .. } => "set-queue-members",
        Change::ReplaceQueueMembers { .. } => "replace-queue-members",
        Change::ForgetNode { .. } => "forget-node",
        Change::ForgetFreeNode { .. } => "forget-free-node",
        Change::ForgetLostNode { .. } => "forget-lost-node",
        Change::ReplaceNode { .. } => "replace-node",
        Change::SetZone { .. } => "set-zone",
        Change::SetDefaultQueueType { .. } => "set-default-queue-type",
        Change::SetVhostLimit { .. } => "set-vhost-limit",
        Change::ProtectVhost { .. } => "protect-vhost",
        Change::PutGlobalParameter { .. } => "put-global-parameter",
        Change::DeleteGlobalParameter { .. } => "delete-global-parameter",
        Change::SetQueueExpires { .. } => "set-queue-expires",
        Change::Retain { .. } => "retain",
        Change::TraceVhost { .. } => "trace-vhost",
        Change::EnableFeature { .. } => "enable-feature",
        Change::EnableKnownFeature { .. } => "enable-known-feature",
        Change::PutClientAddresses { .. } => "put-client-addresses",
    }
    fn queue_type_name(QueueType) {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
        QueueType::Stream => "stream",
    }
    fn scope_name(PolicyScope) {
        PolicyScope::User => "user",
        PolicyScope::Operator => "operator",
    }
    fn destination_name(Destination) {
        Destination::Queue(_) => "queue",
        Destination::Exchange(_) => "exchange",
    }
    fn apply_to_name(ApplyTo) {
        ApplyTo::All => "all",
        ApplyTo::Queues => "queues",
        ApplyTo::ClassicQueues => "classic queues",
        ApplyTo::QuorumQueues => "quorum queues",
        ApplyTo::Streams => "streams",
        ApplyTo::Exchanges => "exchanges",
    }
    fn algorithm_name(HashAlgorithm) {
        HashAlgorithm::Md5 => "md5",
        HashAlgorithm::Sha256 => "sha256",
        HashAlgorithm::Sha512 => "sha512",
        HashAlgorithm::Argon2id => "argon2id",
    }
}

const SESSION: SessionId = SessionId {
    node: NodeId(2),
    incarnation: Incarnation(3),
    number: 300,
};

fn user_with(algorithm: HashAlgorithm) -> UserRecord {
    UserRecord {
        name: name(algorithm.name()),
        password: Some(PasswordHash {
            algorithm,
            bytes: b"salt and digest".to_vec(),
        }),
        tags: vec![name("administrator"), name("policymaker")],
        limits: vec![(name("max-connections"), 10), (name("max-channels"), -1)],
    }
}

fn without_password() -> UserRecord {
    UserRecord {
        name: name("certificate-only"),
        password: None,
        tags: vec![],
        limits: vec![],
    }
}

fn exclusive() -> QueueRecord {
    QueueRecord {
        id: QueueId(70_000),
        durable: false,
        auto_delete: true,
        exclusive: Some(SESSION),
        arguments: table(&[
            ("x-expires", Value::I32(60_000)),
            ("x-queue-mode", Value::from("lazy")),
        ]),
        ..queue("exclusive é")
    }
}

fn policy_for(apply_to: ApplyTo) -> PolicyRecord {
    PolicyRecord {
        apply_to,
        priority: -1,
        ..policy(
            apply_to.name(),
            "^orders",
            &[("max-length", Value::I64(1_000))],
        )
    }
}

fn operator_policy() -> PolicyRecord {
    PolicyRecord {
        scope: PolicyScope::Operator,
        priority: i64::MAX,
        ..policy("limits", ".*", &[("message-ttl", Value::I64(60_000))])
    }
}

fn permission() -> PermissionRecord {
    PermissionRecord {
        user: name("guest"),
        vhost: name("/"),
        configure: name("^amq"),
        write: name(".*"),
        read: name(""),
    }
}

fn topic_permission() -> TopicPermissionRecord {
    TopicPermissionRecord {
        user: name("guest"),
        vhost: name("/"),
        exchange: name("amq.topic"),
        write: name("^a"),
        read: name("^b"),
    }
}

fn inner_exchange() -> ExchangeRecord {
    ExchangeRecord {
        durable: false,
        auto_delete: true,
        internal: true,
        arguments: table(&[("alternate-exchange", Value::from("amq.fanout"))]),
        ..exchange("inner", "headers")
    }
}

fn header_binding() -> BindingRecord {
    BindingRecord {
        arguments: table(&[("x-match", Value::from("any")), ("size", Value::U16(5))]),
        ..to_queue("amq.headers", "orders", "key")
    }
}

/// Samples of every change, and of every value of the fields that are enums or options.
fn changes() -> Vec<Change> {
    let vhost = || name("/");
    let user = || name("guest");
    let id = QueueId(300);
    let nodes = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
    let algorithms = [
        HashAlgorithm::Md5,
        HashAlgorithm::Sha256,
        HashAlgorithm::Sha512,
        HashAlgorithm::Argon2id,
    ];
    golden::assert_covers(&algorithms, algorithm_name);
    golden::assert_covers(&ApplyTo::ALL, apply_to_name);
    let stream = QueueRecord {
        kind: QueueType::Stream,
        arguments: table(&[("x-queue-type", Value::from("stream"))]),
        ..quorum("events")
    };
    let records = [queue("orders"), quorum("orders"), exclusive(), stream];
    golden::assert_covers(records.iter().map(|r| &r.kind), queue_type_name);
    let policies = ApplyTo::ALL
        .map(policy_for)
        .into_iter()
        .chain([operator_policy()]);
    let policies: Vec<_> = policies.collect();
    golden::assert_covers(policies.iter().map(|p| &p.scope), scope_name);
    let bindings = [header_binding(), to_exchange("amq.topic", "inner", "a.#")];
    golden::assert_covers(bindings.iter().map(|b| &b.destination), destination_name);

    let mut all = vec![
        Change::Bootstrap {
            cluster: name("cluster é"),
            nodes: vec![node(1), node(u64::MAX)],
            user: user_with(HashAlgorithm::Sha256),
        },
        Change::PutVhost {
            name: name("v"),
            description: name("a description"),
            tags: vec![name("one"), name("two")],
        },
        Change::DeleteVhost { name: name("v") },
        Change::PutUser(without_password()),
        Change::DeleteUser { name: user() },
        Change::PutPermission(permission()),
        Change::DeletePermission {
            user: user(),
            vhost: vhost(),
        },
        Change::PutTopicPermission(topic_permission()),
        Change::SetUserLimit {
            user: user(),
            limit: name("max-channels"),
            value: Some(-1),
        },
        Change::SetUserLimit {
            user: user(),
            limit: name("max-channels"),
            value: None,
        },
        Change::DeclareExchange(inner_exchange()),
        Change::DeclareExchange(ExchangeRecord {
            internal: true,
            ..exchange("internal", "topic")
        }),
        Change::DeleteExchange {
            vhost: vhost(),
            name: name("inner"),
            if_unused: true,
        },
        Change::Barrier {},
        Change::EndSession { session: SESSION },
        Change::EndIncarnation {
            node: NodeId(2),
            incarnation: Incarnation(300),
        },
        Change::PutNode(NodeRecord {
            voter: false,
            maintenance: true,
            ..node(4)
        }),
        Change::PutClientAddresses {
            node: NodeId(4),
            addresses: client_addresses(),
        },
        Change::DeleteNode { id: NodeId(4) },
        Change::SetMaintenance {
            id: NodeId(4),
            on: true,
        },
        Change::SetQueueMembers {
            id,
            members: nodes(&[1, 2, u64::MAX]),
        },
        Change::ReplaceQueueMembers {
            id,
            from: nodes(&[1, 2, 3]),
            to: nodes(&[1, 2, 4]),
        },
        Change::ForgetNode { id: NodeId(4) },
        Change::ForgetFreeNode {
            id: NodeId(4),
            seen: 1_000,
        },
        Change::ForgetLostNode { id: NodeId(4) },
        Change::ReplaceNode {
            old: NodeId(3),
            new: node(4),
        },
        Change::SetZone {
            id: NodeId(1),
            zone: name("zone-a"),
        },
        Change::SetVhostLimit {
            vhost: vhost(),
            limit: name("max-queues"),
            value: Some(100),
        },
        Change::SetVhostLimit {
            vhost: vhost(),
            limit: name("max-queues"),
            value: None,
        },
        Change::ProtectVhost {
            vhost: vhost(),
            on: true,
        },
        Change::PutGlobalParameter {
            name: name("parameter"),
            value: name(r#"{"key":[1]}"#),
        },
        Change::DeleteGlobalParameter {
            name: name("parameter"),
        },
        Change::TraceVhost {
            vhost: vhost(),
            on: false,
        },
        Change::EnableFeature {
            name: name(BASELINE.name),
        },
        Change::EnableKnownFeature {
            name: name("next"),
            known_by: nodes(&[1, 2, 3]),
        },
    ];
    all.extend(algorithms.map(user_with).map(Change::PutUser));
    all.extend(policies.into_iter().map(Change::PutPolicy));
    all.extend(records.map(Change::DeclareQueue));
    for binding in bindings {
        all.push(Change::Bind(binding.clone()));
        all.push(Change::Unbind(binding));
    }
    all.extend(
        [PolicyScope::User, PolicyScope::Operator].map(|scope| Change::DeletePolicy {
            vhost: vhost(),
            name: name("limits"),
            scope,
        }),
    );
    for exchange in [Some(name("amq.topic")), None] {
        all.push(Change::DeleteTopicPermission {
            user: user(),
            vhost: vhost(),
            exchange,
        });
    }
    for id in [Some(id), None] {
        all.push(Change::DeleteQueue {
            vhost: vhost(),
            name: name("orders"),
            id,
        });
    }
    for kind in [
        Some(QueueType::Classic),
        Some(QueueType::Quorum),
        None,
        Some(QueueType::Stream),
    ] {
        all.push(Change::SetDefaultQueueType {
            vhost: vhost(),
            kind,
        });
    }
    for expires_ms in [Some(60_000), None] {
        all.push(Change::SetQueueExpires { id, expires_ms });
    }
    for message in [Some(Bytes::from_static(b"container")), None] {
        all.push(Change::Retain {
            vhost: vhost(),
            topic: name("a/b"),
            message,
        });
    }
    all
}

#[test]
fn changes_of_version_0_2_are_decoded() {
    golden::verify(CRATE, "0.2/change", |files| {
        let encode = |change: &Change| change.encode().to_vec();
        files.check_enum(&changes(), change_name, encode, Change::decode);
    });
}

/// Shows the replicated state of a tree, without its indexes.
struct State(Tree);

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tree = &self.0;
        let mut all = f.debug_struct("Tree");
        all.field("applied", &tree.applied)
            .field("cluster", &tree.cluster)
            .field("nodes", &tree.nodes().collect::<Vec<_>>())
            .field("ended", &tree.ended)
            .field("users", &tree.users().collect::<Vec<_>>())
            .field("permissions", &tree.permissions().collect::<Vec<_>>())
            .field(
                "topic_permissions",
                &tree.topic_permissions().collect::<Vec<_>>(),
            );
        for vhost in tree.vhosts() {
            all.field("vhost", vhost)
                .field(
                    "policies",
                    &tree.policies_of(&vhost.name).collect::<Vec<_>>(),
                )
                .field("exchanges", &tree.exchanges(&vhost.name))
                .field("queues", &tree.queues(&vhost.name))
                .field("bindings", &tree.bindings(&vhost.name));
        }
        all.field("globals", &tree.globals)
            .field("features", &tree.features)
            .field("zones", &tree.zones)
            .field("forgotten", &tree.forgotten)
            .field("retained", &tree.all_retained().collect::<Vec<_>>())
            .field("placed", &tree.placed)
            .field("lost", &tree.lost);
        if !tree.client_addresses.is_empty() {
            all.field("client_addresses", &tree.client_addresses);
        }
        all.finish()
    }
}

fn client_addresses() -> Vec<ClientAddress> {
    let address = |tls, host: &str, port| ClientAddress {
        protocol: name("amqp"),
        tls,
        host: name(host),
        port,
    };
    vec![
        address(false, "c-0.example.org", 5672),
        address(true, "2001:db8::1", 5671),
    ]
}

fn tree_with_addresses() -> Tree {
    let mut log = Log::new();
    log.ok(Change::EnableFeature {
        name: name(CLIENT_ADDRESSES.name),
    });
    log.ok(Change::PutClientAddresses {
        node: NodeId(1),
        addresses: client_addresses(),
    });
    log.tree
}

/// A tree in which no list is empty.
fn full_tree() -> Tree {
    let mut log = Log::new();
    let vhost = || name("v");
    log.ok(Change::PutVhost {
        name: vhost(),
        description: name("a description"),
        tags: vec![name("tag")],
    });
    for change in [
        Change::SetDefaultQueueType {
            vhost: vhost(),
            kind: Some(QueueType::Quorum),
        },
        Change::SetVhostLimit {
            vhost: vhost(),
            limit: name("max-queues"),
            value: Some(100),
        },
        Change::ProtectVhost {
            vhost: vhost(),
            on: true,
        },
        // Of another vhost, so that the two booleans of a vhost differ.
        Change::TraceVhost {
            vhost: name("/"),
            on: true,
        },
        Change::PutUser(UserRecord {
            limits: user_with(HashAlgorithm::Sha256).limits,
            ..user("limited")
        }),
        Change::PutPermission(permission()),
        Change::PutTopicPermission(topic_permission()),
        Change::SetZone {
            id: NodeId(1),
            zone: name("zone-a"),
        },
        Change::EndIncarnation {
            node: NodeId(1),
            incarnation: Incarnation(7),
        },
        Change::PutGlobalParameter {
            name: name("parameter"),
            value: name("[1]"),
        },
        Change::EnableFeature {
            name: name(BASELINE.name),
        },
        Change::Retain {
            vhost: name("/"),
            topic: name("a/b"),
            message: Some(Bytes::from_static(b"container")),
        },
        Change::PutPolicy(policy_for(ApplyTo::Queues)),
        Change::PutPolicy(operator_policy()),
        Change::DeclareExchange(inner_exchange()),
    ] {
        log.ok(change);
    }
    log.declare(quorum("orders"));
    log.declare(exclusive());
    log.declare(QueueRecord {
        members: vec![NodeId(3)],
        ..queue("lost")
    });
    log.declare(QueueRecord {
        vhost: vhost(),
        ..queue("in another vhost")
    });
    log.ok(Change::Bind(header_binding()));
    log.ok(Change::Bind(to_exchange("amq.topic", "inner", "a.#")));
    // Node 3 lost its directory, and with it the only copy of a queue.
    log.ok(Change::ReplaceNode {
        old: NodeId(3),
        new: NodeRecord {
            name: node(3).name,
            ..node(4)
        },
    });
    log.tree
}

#[test]
fn snapshots_of_version_0_2_are_restored() {
    let tree = full_tree();
    for (list, is_empty) in [
        ("ended", tree.ended.is_empty()),
        ("globals", tree.globals.is_empty()),
        ("features", tree.features.is_empty()),
        ("zones", tree.zones.is_empty()),
        ("forgotten", tree.forgotten.is_empty()),
        ("retained", tree.all_retained().next().is_none()),
        ("placed", tree.placed.is_empty()),
        ("lost", tree.lost.is_empty()),
        ("permissions", tree.permissions().next().is_none()),
        ("policies", tree.policies_of("/").next().is_none()),
    ] {
        assert!(!is_empty, "{list}");
    }
    golden::verify(CRATE, "0.2/snapshot", |files| {
        let encode = |state: &State| state.0.snapshot().to_vec();
        let decode = |bytes: &[u8]| Tree::restore(bytes).map(State);
        files.check("full", &State(tree), encode, decode);
        files.check("empty", &State(Tree::default()), encode, decode);
        files.check(
            "client-addresses",
            &State(tree_with_addresses()),
            encode,
            decode,
        );
    });
}
