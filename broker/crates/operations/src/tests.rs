//! Checks and plans against a small tree.

use crate::{
    BindingOperation, Caller, ErrorKind, ExchangePlan, QueueDeclaration, QueueDeclarationPlan,
    QueueDeletion, QueueDeletionPlan, Resource, delay_of,
};
use env::{Incarnation, NodeId};
use ids::SessionId;
use message::{Table, Value};
use metadata::{
    BindingRecord, Change, Destination, ExchangeRecord, Name, NodeRecord, PermissionRecord, Right,
    TopicPermissionRecord, Tree, UserRecord,
};

const OWN: SessionId = SessionId {
    node: NodeId(1),
    incarnation: Incarnation(1),
    number: 7,
};
const OTHER: SessionId = SessionId { number: 8, ..OWN };

/// A vhost `/` with the user `app`, who may do everything with names that begin with `app.`, and with `amq.topic` and
/// keys that begin with `app.`.
fn tree() -> Tree {
    let mut tree = Tree::default();
    let user = |name: &str| UserRecord {
        name: name.into(),
        password: None,
        tags: Vec::new(),
        limits: Vec::new(),
    };
    let pattern: Name = "^(app\\.|amq\\.topic$|amq\\.default$)".into();
    let changes = [
        Change::Bootstrap {
            cluster: "c".into(),
            nodes: vec![NodeRecord {
                id: NodeId(1),
                name: "n1".into(),
                address: "n1:1".into(),
                voter: true,
                maintenance: false,
            }],
            user: user("guest"),
        },
        Change::PutUser(user("app")),
        Change::PutPermission(PermissionRecord {
            user: "app".into(),
            vhost: "/".into(),
            configure: pattern.clone(),
            write: pattern.clone(),
            read: pattern,
        }),
        Change::PutTopicPermission(TopicPermissionRecord {
            user: "app".into(),
            vhost: "/".into(),
            exchange: "amq.topic".into(),
            write: "^app\\.".into(),
            read: "^app\\.".into(),
        }),
    ];
    for (index, change) in changes.iter().enumerate() {
        tree.apply(index as u64 + 1, change).unwrap();
    }
    tree
}

fn apply(tree: &mut Tree, change: Change) {
    tree.apply(tree.applied() + 1, &change).unwrap();
}

struct User<'a> {
    tree: &'a Tree,
    vhost: Name,
}

impl<'a> User<'a> {
    fn new(tree: &'a Tree) -> User<'a> {
        User {
            tree,
            vhost: "/".into(),
        }
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            tree: self.tree,
            user: "app",
            identity: None,
            vhost: &self.vhost,
            session: Some(OWN),
            is_operator: false,
            refusals: None,
        }
    }
}

fn queue(name: &str) -> QueueDeclaration {
    QueueDeclaration {
        name: name.into(),
        is_server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Table::default(),
    }
}

fn exchange(name: &str, kind: &str) -> ExchangeRecord {
    ExchangeRecord {
        vhost: "/".into(),
        name: name.into(),
        kind: kind.into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    }
}

fn binding(source: &str, destination: Destination, key: &str) -> BindingRecord {
    BindingRecord {
        vhost: "/".into(),
        source: source.into(),
        destination,
        routing_key: key.into(),
        arguments: Table::default(),
    }
}

/// Declares a queue in the tree as `owner`, or for everybody.
fn declare(tree: &mut Tree, name: &str, owner: Option<SessionId>) {
    let plan = Caller {
        session: Some(owner.unwrap_or(OWN)),
        ..User::new(tree).caller()
    }
    .plan_queue_declaration(QueueDeclaration {
        exclusive: owner.is_some(),
        ..queue(name)
    });
    let Ok(QueueDeclarationPlan::Propose(mut record)) = plan else {
        panic!("{plan:?}");
    };
    record.members = vec![NodeId(1)];
    apply(tree, Change::DeclareQueue(record));
}

#[test]
fn permission_errors_name_right_object_vhost_and_user() {
    let tree = tree();
    let user = User::new(&tree);
    let caller = user.caller();
    let error = caller.check(Right::Read, Resource::Queue("x")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::AccessRefused);
    assert_eq!(
        error.text,
        "read access to queue 'x' in vhost '/' refused for user 'app'"
    );
    // The default exchange has a name for permissions.
    assert_eq!(caller.check(Right::Write, Resource::Exchange("")), Ok(()));
    let operator = Caller {
        is_operator: true,
        refusals: None,
        ..caller
    };
    assert_eq!(operator.check(Right::Read, Resource::Queue("x")), Ok(()));
}

#[test]
fn topic_permissions_apply_to_topic_exchanges_only() {
    let tree = tree();
    let user = User::new(&tree);
    let caller = user.caller();
    let topic = caller.exchange("amq.topic").unwrap();
    assert_eq!(caller.check_topic(Right::Write, topic, "app.a"), Ok(()));
    let error = caller
        .check_topic(Right::Write, topic, "other.a")
        .unwrap_err();
    assert_eq!(
        error.text,
        "write access to topic 'other.a' in exchange 'amq.topic' in vhost '/' refused for user 'app'"
    );
    let direct = caller.exchange("amq.direct").unwrap();
    assert_eq!(caller.check_topic(Right::Write, direct, "other.a"), Ok(()));
}

#[test]
fn publish_to_missing_or_internal_exchange_is_refused() {
    let mut tree = tree();
    let internal = ExchangeRecord {
        internal: true,
        ..exchange("app.internal", "fanout")
    };
    apply(&mut tree, Change::DeclareExchange(internal));
    let user = User::new(&tree);
    let caller = user.caller();
    assert_eq!(caller.exchange_to_publish(""), Ok(None));
    let missing = caller.exchange_to_publish("app.none").unwrap_err();
    assert_eq!(missing.missing.as_deref(), Some("app.none"));
    assert_eq!(missing.kind, ErrorKind::NotFound);
    let internal = caller.exchange_to_publish("app.internal").unwrap_err();
    assert_eq!(internal.kind, ErrorKind::AccessRefused);
}

#[test]
fn repeated_equal_declaration_needs_no_change() {
    let mut tree = tree();
    declare(&mut tree, "app.q", None);
    apply(
        &mut tree,
        Change::DeclareExchange(exchange("app.x", "topic")),
    );
    let user = User::new(&tree);
    let caller = user.caller();
    let plan = caller.plan_queue_declaration(queue("app.q")).unwrap();
    assert!(matches!(plan, QueueDeclarationPlan::Exists(record) if &*record.name == "app.q"));
    let plan = caller.plan_exchange_declaration(exchange("app.x", "topic"));
    assert_eq!(plan, Ok(ExchangePlan::Done));
    // The log decides about a declaration that differs.
    let differs = QueueDeclaration {
        auto_delete: true,
        ..queue("app.q")
    };
    let plan = caller.plan_queue_declaration(differs).unwrap();
    assert!(matches!(plan, QueueDeclarationPlan::Propose(_)));
}

#[test]
fn reserved_and_default_names_are_refused() {
    let tree = tree();
    let user = User::new(&tree);
    let caller = user.caller();
    let kinds = [
        caller
            .plan_queue_declaration(queue("amq.mine"))
            .unwrap_err()
            .text,
        caller
            .plan_exchange_declaration(exchange("", "direct"))
            .unwrap_err()
            .text,
        caller
            .plan_exchange_deletion("amq.topic", false)
            .unwrap_err()
            .text,
        caller
            .plan_exchange_declaration(exchange("app.x", "none"))
            .unwrap_err()
            .text,
    ];
    assert_eq!(
        kinds,
        [
            "queue name 'amq.mine' contains reserved prefix 'amq.*'",
            "operation not permitted on the default exchange",
            "deletion of system exchange 'amq.topic' in vhost '/' not allowed",
            "unknown exchange type 'none'",
        ]
    );
}

#[test]
fn server_named_queue_may_have_a_reserved_name() {
    let tree = tree();
    let user = User::new(&tree);
    let named = QueueDeclaration {
        is_server_named: true,
        ..queue("amq.gen-1")
    };
    let operator = Caller {
        is_operator: true,
        refusals: None,
        ..user.caller()
    };
    let plan = operator.plan_queue_declaration(named).unwrap();
    assert!(matches!(plan, QueueDeclarationPlan::Propose(_)));
}

#[test]
fn dead_letter_exchange_requires_permissions() {
    let tree = tree();
    let user = User::new(&tree);
    let mut arguments = Table::default();
    arguments.set("x-dead-letter-exchange", "secret".into());
    let declaration = QueueDeclaration {
        arguments,
        ..queue("app.q")
    };
    let error = user
        .caller()
        .plan_queue_declaration(declaration)
        .unwrap_err();
    assert_eq!(
        error.text,
        "write access to exchange 'secret' in vhost '/' refused for user 'app'"
    );
}

#[test]
fn exclusive_queue_is_locked_for_other_connections() {
    let mut tree = tree();
    declare(&mut tree, "app.mine", Some(OWN));
    declare(&mut tree, "app.theirs", Some(OTHER));
    let user = User::new(&tree);
    let caller = user.caller();
    assert!(caller.queue_to_read("app.mine").is_ok());
    let locked = Err(ErrorKind::ResourceLocked);
    let kind = |result: Result<(), crate::OperationError>| result.map_err(|e| e.kind);
    assert_eq!(kind(caller.queue_to_read("app.theirs").map(|_| ())), locked);
    let deletion = QueueDeletion::default();
    let deleted = caller.plan_queue_deletion("app.theirs", deletion);
    assert_eq!(kind(deleted.map(|_| ())), locked);
    let to = |name: &str| Destination::Queue(name.into());
    let bound = caller.plan_binding(
        BindingOperation::Bind,
        binding("amq.topic", to("app.theirs"), "app.k"),
    );
    assert_eq!(kind(bound.map(|_| ())), locked);
    // There is nothing to unbind.
    let unbound = caller.plan_binding(
        BindingOperation::Unbind,
        binding("amq.topic", to("app.theirs"), "app.k"),
    );
    assert!(unbound.is_ok());
    // A caller without a connection owns no queue.
    let http = Caller {
        session: None,
        ..caller
    };
    assert_eq!(kind(http.queue_to_read("app.mine").map(|_| ())), locked);
}

#[test]
fn deletion_asks_the_queue_and_ignores_missing_queues() {
    let mut tree = tree();
    declare(&mut tree, "app.q", None);
    let user = User::new(&tree);
    let caller = user.caller();
    let deletion = QueueDeletion {
        if_unused: true,
        if_empty: false,
    };
    let plan = caller.plan_queue_deletion("app.q", deletion).unwrap();
    let QueueDeletionPlan::AskQueue {
        record,
        request,
        change,
    } = plan
    else {
        panic!("{plan:?}");
    };
    assert!(matches!(
        request,
        queue::RequestBody::Delete {
            if_unused: true,
            if_empty: false
        }
    ));
    assert!(matches!(change, Change::DeleteQueue { id: Some(id), .. } if id == record.id));
    let missing = caller.plan_queue_deletion("app.none", deletion);
    assert_eq!(missing, Ok(QueueDeletionPlan::Done));
    let forbidden = caller.plan_queue_deletion("other", deletion).unwrap_err();
    assert_eq!(forbidden.kind, ErrorKind::AccessRefused);
}

#[test]
fn binding_requires_write_on_destination_and_read_on_source() {
    let tree = tree();
    let user = User::new(&tree);
    let caller = user.caller();
    let text = |source: &str, destination, key: &str| {
        let record = binding(source, destination, key);
        let plan = caller.plan_binding(BindingOperation::Bind, record);
        plan.unwrap_err().text
    };
    let to_queue = |name: &str| Destination::Queue(name.into());
    assert_eq!(
        text("amq.topic", to_queue("q"), "app.k"),
        "write access to queue 'q' in vhost '/' refused for user 'app'"
    );
    assert_eq!(
        text("amq.direct", to_queue("app.q"), "app.k"),
        "read access to exchange 'amq.direct' in vhost '/' refused for user 'app'"
    );
    assert_eq!(
        text("amq.topic", to_queue("app.q"), "other"),
        "read access to topic 'other' in exchange 'amq.topic' in vhost '/' refused for user 'app'"
    );
    assert_eq!(
        text("amq.topic", Destination::Exchange("".into()), "app.k"),
        "operation not permitted on the default exchange"
    );
}

#[test]
fn generated_names_use_all_random_bits() {
    let name = crate::generated_name("p-", [0, 0]);
    assert_eq!(name, format!("p-{}", "A".repeat(22)));
    let one = |bits| crate::generated_name("", bits);
    assert_ne!(one([1, 0]), one([0, 1]));
    assert_ne!(one([1 << 63, 0]), one([0, 0]));
    assert_ne!(one([0, 1 << 63]), one([0, 0]));
}

#[test]
fn delay_is_a_positive_number_of_milliseconds() {
    let delay = |value: Value| delay_of(&Table(vec![("x-delay".into(), value)]));
    assert_eq!(delay(Value::I32(50)), Some(50));
    assert_eq!(delay(Value::I64(i64::MAX)), Some(i64::MAX as u64));
    assert_eq!(delay("50".into()), Some(50));
    for none in [
        Value::I32(0),
        Value::I64(-5),
        "soon".into(),
        Value::Bool(true),
    ] {
        assert_eq!(delay(none.clone()), None, "{none:?}");
    }
    assert_eq!(delay_of(&Table::default()), None);
}
