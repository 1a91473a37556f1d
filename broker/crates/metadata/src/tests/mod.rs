//! Tests of the tree: effects of changes, refusals, listings and encodings.

mod access;
mod argument_checks;
mod client_addresses;
mod codec;
mod cursor;
mod declare;
mod delayed_retry;
mod features;
mod formats;
mod lifecycle;
mod lost;
mod message_groups;
mod policy;
mod restrictions;
mod retained;
mod routing;
mod sequences;
mod streams;
mod vhosts;

use crate::*;
use auth::HashAlgorithm;
use env::Incarnation;
use env::NodeId;
use message::{Table, Value};

/// A tree and the index of its next change.
pub(crate) struct Log {
    pub(crate) tree: Tree,
    pub(crate) index: u64,
}

pub(crate) fn name(s: &str) -> Name {
    s.into()
}

pub(crate) fn table(pairs: &[(&str, Value)]) -> Table {
    Table(pairs.iter().map(|(k, v)| (name(k), v.clone())).collect())
}

pub(crate) fn user(label: &str) -> UserRecord {
    UserRecord {
        name: name(label),
        password: auth::hash_with(HashAlgorithm::Sha256, b"secret", b"salt").ok(),
        tags: vec![name("administrator")],
        limits: Vec::new(),
    }
}

pub(crate) fn node(id: u64) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: name(&format!("c-{id}")),
        address: name(&format!("c-{id}:25672")),
        voter: true,
        maintenance: false,
    }
}

pub(crate) fn queue(label: &str) -> QueueRecord {
    QueueRecord {
        id: QueueId(0),
        vhost: name("/"),
        name: name(label),
        kind: QueueType::Classic,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: Table::default(),
        members: vec![NodeId(1)],
        declared_by: name("guest"),
    }
}

pub(crate) fn quorum(label: &str) -> QueueRecord {
    QueueRecord {
        kind: QueueType::Quorum,
        arguments: table(&[("x-queue-type", Value::from("quorum"))]),
        members: vec![NodeId(1), NodeId(2), NodeId(3)],
        ..queue(label)
    }
}

pub(crate) fn exchange(label: &str, kind: &str) -> ExchangeRecord {
    ExchangeRecord {
        vhost: name("/"),
        name: name(label),
        kind: name(kind),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    }
}

pub(crate) fn to_queue(source: &str, queue: &str, key: &str) -> BindingRecord {
    BindingRecord {
        vhost: name("/"),
        source: name(source),
        destination: Destination::Queue(name(queue)),
        routing_key: name(key),
        arguments: Table::default(),
    }
}

pub(crate) fn to_exchange(source: &str, exchange: &str, key: &str) -> BindingRecord {
    BindingRecord {
        destination: Destination::Exchange(name(exchange)),
        ..to_queue(source, "", key)
    }
}

pub(crate) fn policy(label: &str, pattern: &str, definition: &[(&str, Value)]) -> PolicyRecord {
    PolicyRecord {
        vhost: name("/"),
        name: name(label),
        scope: PolicyScope::User,
        pattern: name(pattern),
        apply_to: ApplyTo::All,
        priority: 0,
        definition: table(definition),
    }
}

impl Log {
    /// Forms a cluster of three nodes with user `guest`.
    pub(crate) fn new() -> Log {
        let mut log = Log {
            tree: Tree::default(),
            index: 0,
        };
        log.ok(Change::Bootstrap {
            cluster: name("test"),
            nodes: vec![node(1), node(2), node(3)],
            user: user("guest"),
        });
        log
    }

    /// Applies a change and checks encoding, snapshot and indexes. A refused change must not change the tree.
    pub(crate) fn apply(&mut self, change: Change) -> Result<ChangeResult, ChangeError> {
        self.index += 1;
        let encoded = change.encode();
        assert_eq!(Change::decode(&encoded).as_ref(), Ok(&change));
        let before = self.tree.digest_at(self.index);
        let result = self.tree.apply(self.index, &change);
        if result.is_err() {
            assert_eq!(
                self.tree.digest(),
                before,
                "a refused change changed the tree"
            );
            assert!(self.tree.events().is_empty());
        }
        self.check();
        result
    }

    pub(crate) fn ok(&mut self, change: Change) -> ChangeResult {
        match self.apply(change) {
            Ok(result) => result,
            Err(refused) => panic!("refused: {refused}"),
        }
    }

    pub(crate) fn refused(&mut self, change: Change) -> ChangeError {
        match self.apply(change) {
            Ok(result) => panic!("not refused: {result:?}"),
            Err(refused) => refused,
        }
    }

    pub(crate) fn declare(&mut self, record: QueueRecord) -> QueueId {
        match self.ok(Change::DeclareQueue(record)) {
            ChangeResult::Queue { record, .. } => record.id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn route(&self, exchange: &str, keys: &[&str]) -> Vec<QueueId> {
        let mut out = Vec::new();
        self.tree
            .route("/", exchange, keys, &Table::default, &mut out);
        out
    }

    /// Checks that a restored snapshot equals the tree, and that all indexes agree.
    fn check(&self) {
        let restored = Tree::restore(&self.tree.snapshot()).unwrap();
        assert_eq!(restored.digest(), self.tree.digest());
        assert_eq!(restored.events_since(&self.tree), []);
        assert_eq!(self.tree.events_since(&restored), []);
        self.tree.check_indexes();
    }
}

impl Tree {
    /// The digest that the tree would have with this index applied.
    fn digest_at(&self, index: u64) -> u64 {
        let mut copy = self.clone();
        copy.applied = copy.applied.max(index);
        copy.digest()
    }

    /// Checks that the indexes contain exactly the content of the records.
    fn check_indexes(&self) {
        let mut bound = 0;
        for queue in self.queues.values() {
            bound += queue.bound.len();
            let record = &queue.record;
            assert_eq!(self.queue(&record.vhost, &record.name), Some(record));
            assert_eq!(self.bindings_of_queue(record.id).len(), queue.bound.len());
            let owned = record
                .exclusive
                .is_some_and(|s| self.exclusive[&s].contains(&record.id));
            assert_eq!(owned, record.exclusive.is_some());
        }
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        assert!(self.queue_ids.iter().eq(&ids));
        let mut bindings = 0;
        let mut exchanges = 0;
        for vhost in self.vhosts.values() {
            for (label, exchange) in &vhost.exchanges {
                exchanges += 1;
                bound += exchange.bound.len();
                bindings += exchange.bindings.len();
                assert_eq!(exchange.matcher.len(), exchange.bindings.len());
                assert_eq!(&self.exchange_names[&exchange.number].1, label);
                let bindings_of = self.bindings_of_exchange(&vhost.record.name, label);
                assert_eq!(bindings_of.len(), exchange.bound.len());
            }
        }
        assert_eq!((bound, exchanges), (bindings, self.exchange_names.len()));
        let count = |sets: Vec<usize>| sets.into_iter().sum::<usize>();
        let transient = count(self.transient.values().map(|s| s.len()).collect());
        assert_eq!(
            transient,
            self.queues.values().filter(|q| !q.record.durable).count()
        );
        let exclusive = count(self.exclusive.values().map(|s| s.len()).collect());
        let owned = self
            .queues
            .values()
            .filter(|q| q.record.exclusive.is_some());
        assert_eq!(exclusive, owned.count());
    }
}
