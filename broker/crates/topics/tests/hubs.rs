//! Several routers, and links between their nodes that delay, lose and break.

use codec_mqtt::{Properties, Qos, matches, shared};
use conversion::mqtt::EnvelopeBuilder;
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Room};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use topics::{
    ClaimOutcome, MqttRouter, PeerMessage, PublishOutcome, Publisher, RouteExchangeLimits,
    RouterAddress, RouterLimits, RouterOutput, SessionRelease, SubscriberId, Subscription,
};

/// Clients of each router; two more have shared subscriptions.
const CLIENTS: u64 = 3;
const SHARDS: u16 = 2;

fn envelope<'a>(topic: &'a str, qos: Qos, properties: &'a Properties<'a>) -> EnvelopeBuilder<'a> {
    EnvelopeBuilder {
        qos,
        retain: false,
        topic,
        properties,
        exchange: "amq.topic",
        key: "",
        received: WallTime(0),
    }
}

fn message(topic: &str, qos: Qos, id: u32) -> Message {
    let built = envelope(topic, qos, &Properties::default()).build(&id.to_be_bytes());
    built.unwrap()
}

struct Node {
    router: MqttRouter,
    address: RouterAddress,
    clients: Vec<SubscriberId>,
    /// By client and filter.
    filters: BTreeMap<(u64, String), Qos>,
    /// The subscriptions that were acknowledged to the client.
    acknowledged: BTreeSet<(u64, String)>,
    /// Per session the subscriptions that wait for an acknowledgement, in order; `None` if it has
    /// ended or changed since.
    waiting: BTreeMap<u64, VecDeque<Option<(u64, String)>>>,
}

impl Node {
    /// A subscription is not the one that was or will be acknowledged.
    fn forget(&mut self, key: &(u64, String)) {
        self.acknowledged.remove(key);
        for other in self.waiting.values_mut().flatten() {
            other.take_if(|other| other == key);
        }
    }
}

#[derive(Default)]
struct World {
    nodes: Vec<Node>,
    /// Frames in transit, by sender and receiver.
    links: BTreeMap<(usize, usize), VecDeque<PeerMessage>>,
    cut: BTreeSet<(u64, u64)>,
    now: Time,
    limits: RouterLimits,
    /// Number of entries in the metadata log.
    log: u64,
    next_id: u32,
    /// Messages received per client session.
    received: BTreeMap<u64, Vec<u32>>,
    /// Outstanding confirms per message.
    pending_confirms: BTreeMap<u32, usize>,
    /// Messages by publishing node.
    by_node: BTreeMap<u64, Vec<u32>>,
    to_queues: Vec<(u64, u32)>,
    lost_messages: BTreeSet<u64>,
    unblocked: BTreeSet<u64>,
}

fn limits() -> RouterLimits {
    RouterLimits {
        routers: RouteExchangeLimits {
            removed_routes: 3,
            ..RouteExchangeLimits::default()
        },
        ..RouterLimits::default()
    }
}

fn id_of(message: &Message) -> u32 {
    u32::from_be_bytes(message.body().try_into().unwrap())
}

impl World {
    fn new(nodes: u64, limits: RouterLimits) -> World {
        let mut world = World {
            limits,
            ..World::default()
        };
        for node in 1..=nodes {
            for shard in 0..SHARDS {
                let at = world.nodes.len();
                let new_node = world.new_node(node, 1, shard, at);
                world.nodes.push(new_node);
            }
        }
        for at in 0..world.nodes.len() {
            world.meet(at);
        }
        world.settle();
        world
    }

    fn new_node(&self, node: u64, incarnation: u64, shard: u16, at: usize) -> Node {
        let mut router = MqttRouter::new(self.limits.clone());
        router.tick(self.now);
        let enter = |n: u64| {
            let session = session_of(at, n);
            match router.claim("/", &session.to_string(), session, true) {
                ClaimOutcome::Granted { subscriber, .. } => subscriber,
                ClaimOutcome::Wait => panic!("no session holds the client id"),
            }
        };
        let clients = (0..CLIENTS + 2).map(enter).collect();
        Node {
            router,
            address: RouterAddress {
                node: NodeId(node),
                incarnation: Incarnation(incarnation),
                shard,
            },
            clients,
            filters: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.nodes[a].address.node.0, self.nodes[b].address.node.0);
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    /// Connects a router with all that it can reach.
    fn meet(&mut self, at: usize) {
        for other in 0..self.nodes.len() {
            if other != at && !self.is_cut(at, other) {
                let address = self.nodes[other].address;
                self.nodes[at].router.router_up(address);
            }
        }
    }

    /// Moves pending messages of the routers to the links.
    fn collect_outputs(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.collect_outputs_of(at));
    }

    fn collect_outputs_of(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].router.take() {
            self.output(at, output);
        }
        while let Some((to, peer_message)) = self.nodes[at].router.next_peer_message() {
            let to = self.nodes.iter().position(|n| n.address == to);
            if let Some(to) = to.filter(|to| !self.is_cut(at, *to)) {
                self.links
                    .entry((at, to))
                    .or_default()
                    .push_back(peer_message);
            }
        }
    }

    fn output(&mut self, at: usize, output: RouterOutput) {
        match output {
            RouterOutput::Deliver { session, delivery } => {
                self.received
                    .entry(session)
                    .or_default()
                    .push(id_of(&delivery.message));
            }
            RouterOutput::Confirmed { first, last, .. } => {
                for tag in first..=last {
                    let pending = self
                        .pending_confirms
                        .get_mut(&(tag as u32))
                        .expect("a session waits for this");
                    *pending = pending
                        .checked_sub(1)
                        .expect("at most one confirm per router");
                }
            }
            RouterOutput::Announced { session } => {
                let node = &mut self.nodes[at];
                let waiting = node
                    .waiting
                    .get_mut(&session)
                    .expect("a session waits for this");
                node.acknowledged
                    .extend(waiting.pop_front().expect("a session waits for this"));
                if waiting.is_empty() {
                    node.waiting.remove(&session);
                }
            }
            RouterOutput::ToQueue { queue, message } => {
                self.to_queues.push((queue, id_of(&message)))
            }
            RouterOutput::MessagesLost { session } => drop(self.lost_messages.insert(session)),
            RouterOutput::Unblocked { session } => drop(self.unblocked.insert(session)),
            other => panic!("{other:?}"),
        }
    }

    /// Delivers the next message of a link, if there is one.
    fn deliver(&mut self, link: (usize, usize)) -> bool {
        let Some(peer_message) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        let from = self.nodes[link.0].address;
        self.nodes[link.1]
            .router
            .handle_peer_message(from, peer_message);
        self.collect_outputs_of(link.1);
        true
    }

    fn settle(&mut self) {
        self.collect_outputs();
        for _ in 0..100_000 {
            let next = self
                .links
                .iter()
                .find(|(_, peer_messages)| !peer_messages.is_empty());
            match next.map(|(link, _)| *link) {
                Some(link) => self.deliver(link),
                None => return,
            };
        }
        panic!("links never become idle");
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for node in &mut self.nodes {
            node.router.tick(self.now);
        }
        self.collect_outputs();
    }

    fn apply(&mut self, at: usize, new: bool) {
        self.log += u64::from(new);
        self.nodes[at].router.set_applied(self.log);
        self.collect_outputs();
    }

    fn set_cut(&mut self, a: u64, b: u64, on: bool) {
        let pair = (a.min(b), a.max(b));
        if a == b || self.cut.contains(&pair) == on {
            return;
        }
        match on {
            true => drop(self.cut.insert(pair)),
            false => drop(self.cut.remove(&pair)),
        }
        for at in 0..self.nodes.len() {
            let node = self.nodes[at].address.node.0;
            let other = match node {
                node if node == a => b,
                node if node == b => a,
                _ => continue,
            };
            self.links.retain(|(from, to), _| {
                let ends = (
                    self.nodes[*from].address.node.0,
                    self.nodes[*to].address.node.0,
                );
                ends != (node, other) && ends != (other, node)
            });
            match on {
                true => self.nodes[at].router.node_down(NodeId(other)),
                false => {
                    for address in self.addresses_of(other) {
                        let router = &mut self.nodes[at].router;
                        router.forget_routers(NodeId(other), Some(address.incarnation));
                        router.router_up(address);
                    }
                }
            }
        }
        self.collect_outputs();
    }

    fn addresses_of(&self, node: u64) -> Vec<RouterAddress> {
        let all = self.nodes.iter().map(|n| n.address);
        all.filter(|address| address.node.0 == node).collect()
    }

    /// Restarts a node: all of its routers begin a new incarnation without state.
    fn restart(&mut self, node: u64) {
        let others: BTreeSet<u64> = self.nodes.iter().map(|n| n.address.node.0).collect();
        let others: Vec<u64> = others.into_iter().filter(|other| *other != node).collect();
        let was_connected: Vec<u64> = others
            .iter()
            .copied()
            .filter(|other| !self.cut.contains(&(node.min(*other), node.max(*other))))
            .collect();
        was_connected
            .iter()
            .for_each(|other| self.set_cut(node, *other, true));
        let at: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.nodes[*at].address.node.0 == node)
            .collect();
        self.links
            .retain(|(from, to), _| !at.contains(from) && !at.contains(to));
        for &at in &at {
            let address = self.nodes[at].address;
            self.nodes[at] = self.new_node(node, address.incarnation.0 + 1, address.shard, at);
        }
        // Between the shards of the node.
        at.iter().for_each(|at| self.meet(*at));
        was_connected
            .iter()
            .for_each(|other| self.set_cut(node, *other, false));
        self.collect_outputs();
    }

    fn subscribe(&mut self, at: usize, client: u64, filter: &str, qos: Qos) {
        let node = &mut self.nodes[at];
        let subscriber = node.clients[client as usize];
        let wants = Subscription {
            qos,
            ..Subscription::default()
        };
        node.router.subscribe(subscriber, filter, wants);
        let key = (client, filter.to_owned());
        node.filters.insert(key.clone(), qos);
        node.forget(&key);
        let session = session_of(at, client);
        match node.router.announce(session) {
            true => {
                let waiting = node.waiting.entry(session).or_default();
                waiting.push_back(Some(key));
            }
            false => drop(node.acknowledged.insert(key)),
        }
        self.collect_outputs();
    }

    fn unsubscribe(&mut self, at: usize, client: u64, filter: &str) {
        let node = &mut self.nodes[at];
        let subscriber = node.clients[client as usize];
        let key = (client, filter.to_owned());
        let existed = node.filters.remove(&key).is_some();
        assert_eq!(node.router.unsubscribe(subscriber, filter), existed);
        node.forget(&key);
        self.collect_outputs();
    }

    fn publish(&mut self, at: usize, topic: &str, qos: Qos) -> (u32, PublishOutcome) {
        self.next_id += 1;
        let id = self.next_id;
        let publisher = Publisher {
            subscriber: None,
            session: session_of(at, 9),
            tag: id.into(),
        };
        let message = message(topic, qos, id);
        let router = &mut self.nodes[at].router;
        let outcome = router.publish("/", topic, &message, publisher, &mut Vec::new());
        self.pending_confirms.insert(id, outcome.awaited);
        let node = self.nodes[at].address.node.0;
        self.by_node.entry(node).or_default().push(id);
        self.collect_outputs();
        (id, outcome)
    }

    fn receivers_of(&self, id: u32) -> Vec<u64> {
        let all = self.received.iter();
        let times =
            all.flat_map(|(receiver, ids)| ids.iter().filter(|i| **i == id).map(|_| *receiver));
        times.collect()
    }

    /// Clients with a matching non-shared subscription.
    fn expected_receivers(&self, topic: &str) -> Vec<u64> {
        let mut all = BTreeSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for (client, filter) in node.filters.keys() {
                if shared(filter).unwrap().is_none() && matches(filter, topic) {
                    all.insert(session_of(at, *client));
                }
            }
        }
        all.into_iter().collect()
    }

    /// Clients with a matching shared subscription, by group.
    fn expected_groups(&self, topic: &str) -> BTreeMap<String, BTreeSet<u64>> {
        let mut all = BTreeMap::<String, BTreeSet<u64>>::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for (client, filter) in node.filters.keys() {
                if shared(filter)
                    .unwrap()
                    .is_some_and(|s| matches(s.filter, topic))
                {
                    all.entry(filter.clone())
                        .or_default()
                        .insert(session_of(at, *client));
                }
            }
        }
        all
    }

    fn lost(&self) -> u64 {
        self.nodes
            .iter()
            .map(|n| n.router.counts().lost_between)
            .sum()
    }
}

/// The session number of a client.
fn session_of(at: usize, client: u64) -> u64 {
    at as u64 * 100 + client + 1
}

const FILTERS: [&str; 7] = ["a", "a/#", "+", "a/b", "#", "$share/g/a", "$share/g/a/#"];
const TOPICS: [&str; 3] = ["a", "a/b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Subscribe(usize, u64, usize, bool),
    Unsubscribe(usize, u64, usize),
    Publish(usize, usize, bool),
    Deliver(usize, usize),
    Cut(u64, u64),
    Heal(u64, u64),
    Restart(u64),
    Pass(u64),
    /// Applies one new entry of the metadata log on one router, or those that it lacks.
    Apply(usize, bool),
    Settle,
}

fn steps(nodes: u64) -> impl Strategy<Value = Vec<Step>> {
    let routers = nodes as usize * usize::from(SHARDS);
    let step = prop_oneof![
        6 => (0..routers, 0..CLIENTS, 0..FILTERS.len(), any::<bool>()).prop_map(|(h, c, f, q)| Step::Subscribe(h, c, f, q)),
        4 => (0..routers, 0..CLIENTS, 0..FILTERS.len()).prop_map(|(h, c, f)| Step::Unsubscribe(h, c, f)),
        8 => (0..routers, 0..TOPICS.len(), any::<bool>()).prop_map(|(h, t, q)| Step::Publish(h, t, q)),
        12 => (0..routers, 0..routers).prop_map(|(a, b)| Step::Deliver(a, b)),
        1 => (1..=nodes, 1..=nodes).prop_map(|(a, b)| Step::Cut(a, b)),
        1 => (1..=nodes, 1..=nodes).prop_map(|(a, b)| Step::Heal(a, b)),
        1 => (1..=nodes).prop_map(Step::Restart),
        1 => (1..7000u64).prop_map(Step::Pass),
        2 => (0..routers, any::<bool>()).prop_map(|(h, new)| Step::Apply(h, new)),
        2 => Just(Step::Settle),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A client with a shared subscription has no other one: it would receive a message for both twice.
fn client_for(client: u64, filter: usize) -> u64 {
    match filter {
        5 => CLIENTS,
        6 => CLIENTS + 1,
        _ => client,
    }
}

fn qos(acknowledged: bool) -> Qos {
    match acknowledged {
        true => Qos::AtLeastOnce,
        false => Qos::AtMostOnce,
    }
}

/// A message, the clients that must get it, and the address of its publisher.
type RequiredDelivery = (u32, Vec<(u64, RouterAddress)>, RouterAddress);

/// Clients whose acknowledged subscription matches the topic, so that they must get the message.
fn required_receivers(world: &World, topic: &str) -> Vec<(u64, RouterAddress)> {
    let mut all = Vec::new();
    for (at, node) in world.nodes.iter().enumerate() {
        for key @ (client, filter) in &node.acknowledged {
            let plain = shared(filter).unwrap().is_none();
            if plain && matches(filter, topic) && node.filters[key] == Qos::AtLeastOnce {
                all.push((session_of(at, *client), node.address));
            }
        }
    }
    all
}

proptest! {
    /// Whatever happens to links and routers: no message is duplicated, every publisher gets its
    /// confirms, and in the end each router knows exactly what the others want.
    #[test]
    fn routers_converge_after_faults(steps in steps(3)) {
        let mut limits = limits();
        // No subscription may be acknowledged because of a timeout.
        limits.routers.announce = Duration::from_secs(3600);
        let mut world = World::new(3, limits);
        let mut required: Vec<RequiredDelivery> = Vec::new();
        let mut any_cut = false;
        for step in steps {
            match step {
                Step::Subscribe(at, client, filter, high) => world.subscribe(at, client_for(client, filter), FILTERS[filter], qos(high)),
                Step::Unsubscribe(at, client, filter) => {
                    let client = client_for(client, filter);
                    world.unsubscribe(at, client, FILTERS[filter]);
                    let receiver = session_of(at, client);
                    required.iter_mut().for_each(|(_, to, _)| to.retain(|(other, _)| *other != receiver));
                }
                Step::Publish(at, topic, high) => {
                    let from = world.nodes[at].address;
                    let has_routes = world.nodes[at].router.has_peer_routes();
                    let all = required_receivers(&world, TOPICS[topic]);
                    let (id, _) = world.publish(at, TOPICS[topic], qos(high));
                    if high && !any_cut && has_routes {
                        required.push((id, all, from));
                    }
                }
                Step::Deliver(from, to) => drop(world.deliver((from, to))),
                Step::Cut(a, b) => {
                    // From now on a subscription may be acknowledged that not all routers know.
                    any_cut |= a != b;
                    world.set_cut(a, b, true);
                }
                Step::Heal(a, b) => world.set_cut(a, b, false),
                Step::Restart(node) => {
                    world.restart(node);
                    required.retain(|(_, _, from)| from.node.0 != node);
                    required.iter_mut().for_each(|(_, to, _)| to.retain(|(_, address)| address.node.0 != node));
                    let dead: Vec<u64> = (0..world.nodes.len())
                        .filter(|at| world.nodes[*at].address.node.0 == node)
                        .flat_map(|at| (0..10).map(move |client| session_of(at, client)))
                        .collect();
                    // Its clients are new as well, and its publishers wait for nothing.
                    dead.iter().for_each(|receiver| drop(world.received.remove(receiver)));
                    for id in world.by_node.remove(&node).unwrap_or_default() {
                        world.pending_confirms.remove(&id);
                    }
                }
                Step::Pass(ms) => world.pass(Duration::from_millis(ms)),
                Step::Apply(at, new) => world.apply(at, new),
                Step::Settle => world.settle(),
            }
        }
        (0..world.nodes.len()).for_each(|at| world.apply(at, false));
        for (a, b) in [(1, 2), (1, 3), (2, 3)] {
            world.set_cut(a, b, false);
        }
        for _ in 0..8 {
            world.settle();
            world.pass(Duration::from_secs(2));
        }
        world.settle();
        for (receiver, ids) in &world.received {
            let mut seen = BTreeSet::new();
            prop_assert!(ids.iter().all(|id| seen.insert(*id)), "{} received a message twice: {:?}", receiver, ids);
        }
        if world.lost() == 0 {
            for (id, to, _) in required {
                let actual = world.receivers_of(id);
                for (receiver, _) in to {
                    prop_assert!(actual.contains(&receiver), "{} did not receive {}", receiver, id);
                }
            }
        }
        prop_assert!(world.pending_confirms.values().all(|pending| *pending == 0), "{:?}", world.pending_confirms);
        for node in &world.nodes {
            prop_assert!(node.waiting.is_empty(), "{} waits forever: {:?}", node.address, node.waiting);
        }
        for at in 0..world.nodes.len() {
            for topic in TOPICS {
                for high in [false, true] {
                    let (id, outcome) = world.publish(at, topic, qos(high));
                    world.settle();
                    let (client_for, groups) = (world.expected_receivers(topic), world.expected_groups(topic));
                    let mut actual = world.receivers_of(id);
                    for receiver in &client_for {
                        let address = actual.iter().position(|g| g == receiver);
                        prop_assert!(address.is_some(), "{} must receive {} from {}, received by: {:?}", receiver, topic, at, actual);
                        actual.remove(address.unwrap());
                    }
                    for (group, members) in &groups {
                        // A member that also has a non-shared subscription may get the message only
                        // once.
                        let own = members.iter().any(|m| client_for.contains(m));
                        let address = actual.iter().position(|g| members.contains(g));
                        prop_assert!(address.is_some() || own, "no member of {} received {} from {}", group, topic, at);
                        address.map(|address| actual.remove(address));
                    }
                    prop_assert!(actual.is_empty(), "{:?} received an extra {} from {}", actual, topic, at);
                    prop_assert_eq!(outcome.receivers == 0, client_for.is_empty() && groups.is_empty());
                    prop_assert_eq!(world.pending_confirms[&id], 0);
                }
            }
        }
    }
}

#[test]
fn subscription_is_announced_once_all_routers_know_it() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    assert!(world.nodes[0].acknowledged.is_empty());
    world.settle();
    assert_eq!(world.nodes[0].acknowledged.len(), 1);
    // A filter that is known already may still need a binding that the others have not applied.
    world.subscribe(0, 1, "a", Qos::AtLeastOnce);
    assert_eq!(world.nodes[0].acknowledged.len(), 1);
    world.settle();
    assert_eq!(world.nodes[0].acknowledged.len(), 2);
    // An unreachable router is not waited for.
    world.subscribe(0, 0, "b", Qos::AtLeastOnce);
    world.set_cut(1, 2, true);
    world.settle();
    assert_eq!(world.nodes[0].acknowledged.len(), 3);
}

/// Subscriptions of sessions with a queue are bindings, and retained messages are in the metadata
/// log as well.
#[test]
fn subscription_is_announced_once_all_applied_the_same_log() {
    let mut world = World::new(2, limits());
    let apply = |world: &mut World, at: usize, index| {
        world.nodes[at].router.set_applied(index);
        world.settle();
    };
    for at in 0..3 {
        apply(&mut world, at, 7);
    }
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.settle();
    assert!(
        world.nodes[0].acknowledged.is_empty(),
        "router 3 lacks a binding of router 0"
    );
    apply(&mut world, 3, 6);
    assert!(world.nodes[0].acknowledged.is_empty());
    apply(&mut world, 3, 9);
    assert!(
        world.nodes[0].acknowledged.is_empty(),
        "router 0 lacks a retained message of router 3"
    );
    apply(&mut world, 0, 8);
    assert!(world.nodes[0].acknowledged.is_empty());
    apply(&mut world, 0, 9);
    assert_eq!(world.nodes[0].acknowledged.len(), 1);
}

#[test]
fn silent_router_delays_only_one_announcement() {
    let mut world = World::new(2, limits());
    // Node 2 receives nothing although its link seems to be up.
    let lose = |world: &mut World| world.links.retain(|(_, to), _| *to < 2);
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    for _ in 0..6 {
        lose(&mut world);
        world.settle();
        assert!(world.nodes[0].acknowledged.is_empty());
        world.pass(Duration::from_millis(900));
    }
    lose(&mut world);
    world.settle();
    assert_eq!(world.nodes[0].acknowledged.len(), 1);
    world.subscribe(0, 0, "b", Qos::AtLeastOnce);
    lose(&mut world);
    world.settle();
    assert_eq!(world.nodes[0].acknowledged.len(), 2);
    // The lost messages are sent again on request.
    world.pass(Duration::from_secs(2));
    world.settle();
    assert_eq!(world.publish(2, "b", Qos::AtLeastOnce).1.receivers, 1);
}

#[test]
fn unreachable_router_is_given_up_and_its_clients_learn_of_losses() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.subscribe(0, 1, "a", Qos::AtMostOnce);
    world.settle();
    world.set_cut(1, 2, true);
    let (id, outcome) = world.publish(2, "a", Qos::AtLeastOnce);
    assert_eq!((outcome.receivers, outcome.awaited), (1, 1));
    world.pass(Duration::from_secs(4));
    assert_eq!(world.pending_confirms[&id], 1);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.pending_confirms[&id], 0);
    assert_eq!(
        world.publish(2, "a", Qos::AtLeastOnce).1,
        PublishOutcome::default()
    );
    assert_eq!(world.nodes[2].router.counts().lost_between, 2);
    world.set_cut(1, 2, false);
    world.settle();
    assert_eq!(world.lost_messages, BTreeSet::from([session_of(0, 0)]));
    world.lost_messages.clear();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.settle();
    assert_eq!(world.receivers_of(id), [session_of(0, 0), session_of(0, 1)]);
    assert!(world.lost_messages.is_empty());
}

#[test]
fn restarted_router_owes_no_confirms() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.restart(1);
    assert_eq!(world.pending_confirms[&id], 0);
    world.settle();
    assert_eq!(
        world.publish(2, "a", Qos::AtLeastOnce).1,
        PublishOutcome::default()
    );
}

#[test]
fn publisher_is_blocked_and_unblocked() {
    let mut limits = limits();
    limits.routers.bytes = 1000;
    limits.routers.hard_bytes = 2000;
    limits.routers.plain_bytes = 500;
    let mut world = World::new(2, limits);
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.settle();
    let mut behind = 0;
    while !world.publish(2, "a", Qos::AtLeastOnce).1.refused {
        behind += 1;
        assert!(behind < 100);
    }
    for _ in 0..100 {
        world.publish(2, "a", Qos::AtMostOnce);
    }
    assert!(world.nodes[2].router.counts().dropped_between > 80);
    assert!(world.unblocked.is_empty());
    world.settle();
    assert_eq!(world.unblocked, BTreeSet::from([session_of(2, 9)]));
    assert!(world.pending_confirms.values().all(|pending| *pending == 0));
}

#[test]
fn many_routes_are_sent_in_parts() {
    let mut world = World::new(2, limits());
    let node = &mut world.nodes[0];
    for n in 0..5000 {
        let filter = format!("filter/{n}");
        node.router
            .subscribe(node.clients[0], &filter, Subscription::default());
    }
    world.settle();
    for n in [0, 1023, 1024, 4999] {
        assert_eq!(
            world
                .publish(3, &format!("filter/{n}"), Qos::AtMostOnce)
                .1
                .receivers,
            1
        );
    }
    world.restart(2);
    world.settle();
    assert_eq!(
        world.publish(3, "filter/17", Qos::AtMostOnce).1.receivers,
        1
    );
    let subscriber = world.nodes[0].clients[0];
    world.nodes[0]
        .router
        .leave(subscriber, SessionRelease::default());
    world.settle();
    assert_eq!(
        world.publish(3, "filter/17", Qos::AtMostOnce).1.receivers,
        0
    );
}

/// A session with a queue and a shared subscription: every router knows it, one has its connection.
#[test]
fn shared_subscription_member_with_queue_is_reached_at_its_router() {
    let mut world = World::new(2, limits());
    let (filter, high) = (
        "$share/g/a",
        Subscription {
            qos: Qos::AtLeastOnce,
            ..Subscription::default()
        },
    );
    let subscriber = world.nodes[0].clients[0];
    world.nodes[0].router.use_queue(subscriber, 7);
    world.nodes[0].router.subscribe(subscriber, filter, high);
    for at in 1..4 {
        world.nodes[at]
            .router
            .add_queue_member(("/", "1"), 7, filter, high);
    }
    world.settle();
    let to_queue = |world: &mut World, at: usize, qos| {
        let mut queues = Vec::new();
        let message = message("a", qos, 99);
        let router = &mut world.nodes[at].router;
        router.publish("/", "a", &message, Publisher::default(), &mut queues);
        world.settle();
        let actual = std::mem::take(&mut world.received);
        (queues, actual.into_keys().collect::<Vec<_>>())
    };
    for at in 0..4 {
        assert_eq!(
            to_queue(&mut world, at, Qos::AtLeastOnce),
            (vec![7], vec![])
        );
        assert_eq!(to_queue(&mut world, at, Qos::AtMostOnce), (vec![], vec![1]));
    }
    // With a clean member on another node, the two take turns wherever the message is published.
    world.subscribe(3, 0, filter, Qos::AtLeastOnce);
    world.settle();
    for at in 0..4 {
        let mut both: Vec<_> = (0..2)
            .map(|_| to_queue(&mut world, at, Qos::AtLeastOnce))
            .collect();
        both.sort();
        assert_eq!(both, [(vec![], vec![session_of(3, 0)]), (vec![7], vec![])]);
    }
    // Its connection ends: only the other member is connected.
    world.nodes[0]
        .router
        .leave(subscriber, SessionRelease::default());
    world.settle();
    for _ in 0..2 {
        assert_eq!(
            to_queue(&mut world, 2, Qos::AtLeastOnce),
            (vec![], vec![session_of(3, 0)])
        );
    }
}

/// If the selected member has left when the message arrives, the message goes to one other member.
#[test]
fn shared_message_is_forwarded_when_member_has_left() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "$share/g/a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.subscribe(3, 0, "$share/g/a", Qos::AtLeastOnce);
    world.unsubscribe(0, 0, "$share/g/a");
    world.settle();
    // The router that the message was sent to may or may not know the remaining member by then.
    assert!(world.receivers_of(id).len() <= 1);
    world.subscribe(0, 0, "$share/g/a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.settle();
    assert_eq!(world.receivers_of(id).len(), 1);
}

/// A message waiting for another router must not keep the whole room in memory.
#[test]
fn forwarded_message_does_not_keep_room_in_memory() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtMostOnce);
    world.settle();
    let nothing = Properties::default();
    let built = envelope("a", Qos::AtMostOnce, &nothing).build_in(&mut Room::default(), b"soon");
    let built = built.unwrap();
    let router = &mut world.nodes[2].router;
    let outcome = router.publish("/", "a", &built, Publisher::default(), &mut Vec::new());
    assert_eq!(outcome.receivers, 1);
    world.collect_outputs();
    let peer_messages = world.links.values().flatten();
    let sent: Vec<&Message> = peer_messages
        .filter_map(|peer_message| match peer_message {
            PeerMessage::Messages(messages) => Some(&messages.list),
            _ => None,
        })
        .flatten()
        .map(|sent| &sent.message)
        .collect();
    assert_eq!(sent, [&built]);
    assert_ne!(sent[0].as_bytes().as_ptr(), built.as_bytes().as_ptr());
}
