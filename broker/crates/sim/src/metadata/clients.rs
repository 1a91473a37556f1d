//! Clients that change the tree. Each sends one change at a time and retries it until the answer says that it is applied.

use super::replica::Request;
use auth::{HashAlgorithm, PasswordHash};
use env::{NodeId, Rng, SeededRng};
use message::{Table, Value};
use metadata::{
    ApplyTo, BindingRecord, Change, Destination, ExchangeRecord, Name, NodeRecord,
    PermissionRecord, PolicyRecord, PolicyScope, QueueId, QueueRecord, QueueType, UserRecord,
};

#[derive(Debug)]
pub(super) struct Client {
    rng: SeededRng,
    /// The node that the client sends to.
    pub target: NodeId,
    /// Number of sent requests, so that a timer can tell whether it belongs to the current one.
    pub attempt: u64,
    /// The request without an answer.
    pub open: Option<Request>,
    pub answered: u64,
}

impl Client {
    pub(super) fn new(target: NodeId, rng: SeededRng) -> Client {
        Client {
            rng,
            target,
            attempt: 0,
            open: None,
            answered: 0,
        }
    }

    /// The request to send now: the open one, or a new one.
    pub(super) fn next_request(&mut self, nodes: &[NodeId]) -> Request {
        self.attempt += 1;
        if let Some(open) = &self.open {
            return open.clone();
        }
        let change = match self.answered {
            0 => bootstrap(nodes),
            _ => self.change(nodes),
        };
        let request = Request {
            number: self.answered + 1,
            change,
        };
        self.open = Some(request.clone());
        request
    }

    /// Selects another node: the hinted one, or a random one.
    pub(super) fn select_node(&mut self, hint: Option<NodeId>, nodes: &[NodeId]) {
        let any = self.rng.below(nodes.len() as u64) as usize;
        if let Some(node) = hint.or(nodes.get(any).copied()) {
            self.target = node;
        }
    }

    fn pick_name(&mut self, prefix: &str, pool_size: u64) -> Name {
        format!("{prefix}{}", self.rng.below(pool_size)).into()
    }

    /// Creates a change. Names come from small pools, so that the changes of clients conflict.
    fn change(&mut self, nodes: &[NodeId]) -> Change {
        let vhost: Name = match self.rng.below(8) {
            0 => self.pick_name("vhost", 3),
            _ => "/".into(),
        };
        match self.rng.below(16) {
            0..=4 => Change::DeclareQueue(self.queue(vhost, nodes)),
            5 => Change::DeleteQueue {
                vhost,
                name: self.pick_name("queue", 30),
                id: None,
            },
            6 | 7 => Change::Bind(self.binding(vhost)),
            8 => Change::Unbind(self.binding(vhost)),
            9 => Change::DeclareExchange(self.exchange(vhost)),
            10 => Change::DeleteExchange {
                vhost,
                name: self.pick_name("exchange", 6),
                if_unused: self.rng.chance(1, 2),
            },
            11 => Change::PutPolicy(self.policy(vhost)),
            12 => Change::PutUser(self.user()),
            13 => Change::PutPermission(PermissionRecord {
                user: self.pick_name("user", 5),
                vhost,
                configure: self.pick_name("^a", 9),
                write: ".*".into(),
                read: ".*".into(),
            }),
            14 if self.rng.chance(1, 3) => Change::DeleteVhost {
                name: self.pick_name("vhost", 3),
            },
            14 => Change::DeleteUser {
                name: self.pick_name("user", 5),
            },
            _ => Change::PutVhost {
                name: self.pick_name("vhost", 3),
                description: self.pick_name("number ", 100),
                tags: Vec::new(),
            },
        }
    }

    fn queue(&mut self, vhost: Name, nodes: &[NodeId]) -> QueueRecord {
        let quorum = self.rng.chance(1, 2);
        let arguments = match self.rng.below(3) {
            0 => Table(vec![(
                "x-max-length".into(),
                Value::I64(self.rng.below(1000) as i64),
            )]),
            _ => Table::default(),
        };
        QueueRecord {
            id: QueueId(0),
            vhost,
            name: self.pick_name("queue", 30),
            kind: if quorum {
                QueueType::Quorum
            } else {
                QueueType::Classic
            },
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments,
            members: if quorum {
                nodes.to_vec()
            } else {
                vec![self.target]
            },
            declared_by: "guest".into(),
        }
    }

    fn binding(&mut self, vhost: Name) -> BindingRecord {
        BindingRecord {
            vhost,
            source: match self.rng.below(3) {
                0 => "amq.topic".into(),
                _ => self.pick_name("exchange", 6),
            },
            destination: Destination::Queue(self.pick_name("queue", 30)),
            routing_key: self.pick_name("key.", 4),
            arguments: Table::default(),
        }
    }

    fn exchange(&mut self, vhost: Name) -> ExchangeRecord {
        let kinds = ["direct", "fanout", "topic"];
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        ExchangeRecord {
            vhost,
            name: self.pick_name("exchange", 6),
            kind: kind.into(),
            durable: true,
            auto_delete: self.rng.chance(1, 4),
            internal: false,
            arguments: Table::default(),
        }
    }

    fn policy(&mut self, vhost: Name) -> PolicyRecord {
        PolicyRecord {
            vhost,
            name: self.pick_name("policy", 4),
            scope: PolicyScope::User,
            pattern: self.pick_name("^queue", 10),
            apply_to: ApplyTo::Queues,
            priority: self.rng.below(10) as i64,
            definition: Table(vec![(
                "max-length".into(),
                Value::I64(self.rng.below(1000) as i64),
            )]),
        }
    }

    fn user(&mut self) -> UserRecord {
        UserRecord {
            name: self.pick_name("user", 5),
            password: Some(PasswordHash {
                algorithm: HashAlgorithm::Sha256,
                bytes: self.rng.next_u64().to_le_bytes().repeat(5)[..36].to_vec(),
            }),
            tags: Vec::new(),
            limits: Vec::new(),
        }
    }
}

fn bootstrap(nodes: &[NodeId]) -> Change {
    Change::Bootstrap {
        cluster: "simulated".into(),
        nodes: nodes
            .iter()
            .map(|id| NodeRecord {
                id: *id,
                name: format!("node-{}", id.0).into(),
                address: format!("node-{}:5679", id.0).into(),
                voter: true,
                maintenance: false,
            })
            .collect(),
        user: UserRecord {
            name: "guest".into(),
            password: None,
            tags: vec!["administrator".into()],
            limits: Vec::new(),
        },
    }
}
