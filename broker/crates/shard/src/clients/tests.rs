//! Requests of sessions to streams that have no leader.

use super::*;
use crate::config::{Placement, RecoveredShard, ShardConfig};
use crate::confirm_sampler::ConfirmSampler;
use crate::local_queues::LocalQueues;
use crate::shard::MemoryBudget;
use consensus::{Host, HostConfig, HostLimits};
use env::sim::SimDisk;
use env::{Disk, Incarnation, SeededRng, WallTime};
use metadata::{Change, NodeRecord, QueueRecord, UserRecord, features};
use queue::client::MAX_IN_FLIGHT;
use queue::cursor::StreamRequest;

const NODE: NodeId = NodeId(1);
const SESSION: u64 = 1 << 40;

/// A tree with a stream on another node.
fn tree_with_stream() -> (Tree, QueueId) {
    let mut tree = Tree::default();
    let node = |id: u64| NodeRecord {
        id: NodeId(id),
        name: format!("n{id}").into(),
        address: format!("n{id}:1").into(),
        voter: true,
        maintenance: false,
    };
    let user = UserRecord {
        name: "guest".into(),
        password: None,
        tags: Vec::new(),
        limits: Vec::new(),
    };
    let stream = QueueRecord {
        id: QueueId(0),
        vhost: "/".into(),
        name: "s".into(),
        kind: QueueType::Stream,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: message::Table(vec![("x-queue-type".into(), "stream".into())]),
        members: vec![NodeId(2)],
        declared_by: "".into(),
    };
    let changes = [
        Change::Bootstrap {
            cluster: "c".into(),
            nodes: vec![node(1), node(2)],
            user,
        },
        Change::EnableFeature {
            name: features::STREAM_QUEUES.name.into(),
        },
        Change::DeclareQueue(stream),
    ];
    for (index, change) in (1..).zip(&changes) {
        tree.apply(index, change).expect("a valid change");
    }
    let id = tree.queue("/", "s").expect("declared").id;
    (tree, id)
}

fn queues() -> (Context, Queues) {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let host_config = HostConfig {
        node: NODE,
        incarnation: Incarnation(1),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: HostLimits::default(),
    };
    let groups = RecoveredShard::default().groups;
    let host = Host::new(host_config, Arc::clone(&disk), groups).expect("an empty disk");
    let config = ShardConfig {
        node: NODE,
        incarnation: Incarnation(1),
        name: "n1".into(),
        address: "n1:1".into(),
        shards: 1,
        index: 0,
        founding: None,
        seed: 1,
        budget: MemoryBudget::default(),
        placement: Placement::default(),
        protocols: session::Protocols::default(),
        program: features::Version::default(),
        client_addresses: Vec::new(),
        machine: Box::default(),
        tier: None,
        consumer_timeout: Default::default(),
        groups: HostLimits::default(),
        restrictions: metadata::restrictions::Restrictions::none(),
        resources: crate::ResourceMeter::default(),
        confirms: Arc::default(),
        deliveries: Arc::default(),
    };
    let rng = Box::new(SeededRng::new(1));
    let ctx = Context::new(config, rng, Time(1), WallTime(1));
    let local = LocalQueues::new(NODE, Incarnation(1), host, disk);
    (ctx, Queues::new(local, ConfirmSampler::default()))
}

/// Clients store offsets without an answer, so nothing else stops them.
#[test]
fn stored_offsets_for_a_stream_without_a_leader_are_limited() {
    let (tree, stream) = tree_with_stream();
    let (mut ctx, mut queues) = queues();
    for offset in 0..2 * MAX_IN_FLIGHT as u64 {
        let name = "consumer".into();
        let store = RequestBody::Stream(StreamRequest::StoreOffset { name, offset });
        queues.request(&mut ctx, &tree, SESSION, stream, store);
    }
    assert_eq!(queues.clients().in_flight(), MAX_IN_FLIGHT);
    // Requests with an answer are limited by the sessions.
    let stat = RequestBody::Stat;
    queues.request(&mut ctx, &tree, SESSION, stream, stat);
    assert_eq!(queues.clients().in_flight(), MAX_IN_FLIGHT + 1);
}
