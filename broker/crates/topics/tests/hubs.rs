//! Several hubs, and links between their nodes that delay, lose and break.

use codec_mqtt::{Properties, Qos, matches, shared};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Room};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use topics::{
    ClaimOutcome, EnvelopeBuilder, MqttRouter, PeerMessage, PublishOutcome, Publisher,
    RouteExchangeLimits, RouterAddress, RouterLimits, RouterOutput, SessionRelease, SubscriberId,
    Subscription,
};

/// Clients of each hub, and two more for shared subscriptions.
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
    /// Of those, the ones whose subscribers were answered.
    known: BTreeSet<(u64, String)>,
    /// What each session waits for, in order; None: it has ended or was changed meanwhile.
    waiting: BTreeMap<u64, VecDeque<Option<(u64, String)>>>,
}

impl Node {
    /// A subscription is no longer what was answered or will be.
    fn forget(&mut self, key: &(u64, String)) {
        self.known.remove(key);
        for other in self.waiting.values_mut().flatten() {
            other.take_if(|other| other == key);
        }
    }
}

#[derive(Default)]
struct World {
    nodes: Vec<Node>,
    /// Frames on their way, by sender and receiver.
    links: BTreeMap<(usize, usize), VecDeque<PeerMessage>>,
    cut: BTreeSet<(u64, u64)>,
    now: Time,
    limits: RouterLimits,
    /// Entries of the metadata log.
    log: u64,
    next_id: u32,
    /// What each client got, by its number.
    got: BTreeMap<u64, Vec<u32>>,
    /// Answers that are still to come, by message.
    open: BTreeMap<u32, usize>,
    /// Messages by the node they come from.
    by_node: BTreeMap<u64, Vec<u32>>,
    to_queues: Vec<(u64, u32)>,
    missed: BTreeSet<u64>,
    relieved: BTreeSet<u64>,
}

fn limits() -> RouterLimits {
    RouterLimits {
        routers: RouteExchangeLimits {
            gone: 3,
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
                let fresh = world.fresh(node, 1, shard, at);
                world.nodes.push(fresh);
            }
        }
        for at in 0..world.nodes.len() {
            world.meet(at);
        }
        world.settle();
        world
    }

    fn fresh(&self, node: u64, life: u64, shard: u16, at: usize) -> Node {
        let mut router = MqttRouter::new(self.limits.clone());
        router.tick(self.now);
        let enter = |n: u64| {
            let session = number(at, n);
            match router.claim("/", &session.to_string(), session, true) {
                ClaimOutcome::Granted { subscriber, .. } => subscriber,
                ClaimOutcome::Wait => panic!("nobody has it"),
            }
        };
        let clients = (0..CLIENTS + 2).map(enter).collect();
        Node {
            router,
            address: RouterAddress {
                node: NodeId(node),
                incarnation: Incarnation(life),
                shard,
            },
            clients,
            filters: BTreeMap::new(),
            known: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.nodes[a].address.node.0, self.nodes[b].address.node.0);
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    /// A hub meets all that it can reach.
    fn meet(&mut self, at: usize) {
        for other in 0..self.nodes.len() {
            if other != at && !self.is_cut(at, other) {
                let address = self.nodes[other].address;
                self.nodes[at].router.meet(address);
            }
        }
    }

    /// What hubs have to say, onto the links.
    fn listen(&mut self) {
        (0..self.nodes.len()).for_each(|at| self.listen_to(at));
    }

    fn listen_to(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].router.take() {
            self.output(at, output);
        }
        while let Some((to, peer_message)) = self.nodes[at].router.say() {
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
                self.got
                    .entry(session)
                    .or_default()
                    .push(id_of(&delivery.message));
            }
            RouterOutput::Heard { tag, .. } => {
                let open = self.open.get_mut(&(tag as u32)).expect("somebody waits");
                *open = open.checked_sub(1).expect("no answer too many");
            }
            RouterOutput::Known { session } => {
                let node = &mut self.nodes[at];
                let waiting = node.waiting.get_mut(&session).expect("somebody waits");
                node.known
                    .extend(waiting.pop_front().expect("somebody waits"));
                if waiting.is_empty() {
                    node.waiting.remove(&session);
                }
            }
            RouterOutput::ToQueue { queue, message } => {
                self.to_queues.push((queue, id_of(&message)))
            }
            RouterOutput::Missed { session } => drop(self.missed.insert(session)),
            RouterOutput::Relieved { session } => drop(self.relieved.insert(session)),
            other => panic!("{other:?}"),
        }
    }

    /// One word arrives, if there is one.
    fn deliver(&mut self, link: (usize, usize)) -> bool {
        let Some(peer_message) = self.links.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        let from = self.nodes[link.0].address;
        self.nodes[link.1].router.hear(from, peer_message);
        self.listen_to(link.1);
        true
    }

    fn settle(&mut self) {
        self.listen();
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
        panic!("never settles");
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for node in &mut self.nodes {
            node.router.tick(self.now);
        }
        self.listen();
    }

    fn apply(&mut self, at: usize, new: bool) {
        self.log += u64::from(new);
        self.nodes[at].router.set_applied(self.log);
        self.listen();
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
                true => self.nodes[at].router.part(NodeId(other)),
                false => {
                    for address in self.places_of(other) {
                        let router = &mut self.nodes[at].router;
                        router.forget_routers(NodeId(other), Some(address.incarnation));
                        router.meet(address);
                    }
                }
            }
        }
        self.listen();
    }

    fn places_of(&self, node: u64) -> Vec<RouterAddress> {
        let all = self.nodes.iter().map(|n| n.address);
        all.filter(|address| address.node.0 == node).collect()
    }

    /// All hubs of a node begin a new life, without what they had.
    fn restart(&mut self, node: u64) {
        let others: BTreeSet<u64> = self.nodes.iter().map(|n| n.address.node.0).collect();
        let others: Vec<u64> = others.into_iter().filter(|other| *other != node).collect();
        let was: Vec<u64> = others
            .iter()
            .copied()
            .filter(|other| !self.cut.contains(&(node.min(*other), node.max(*other))))
            .collect();
        was.iter()
            .for_each(|other| self.set_cut(node, *other, true));
        let at: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.nodes[*at].address.node.0 == node)
            .collect();
        self.links
            .retain(|(from, to), _| !at.contains(from) && !at.contains(to));
        for &at in &at {
            let address = self.nodes[at].address;
            self.nodes[at] = self.fresh(node, address.incarnation.0 + 1, address.shard, at);
        }
        // Between the shards of the node.
        at.iter().for_each(|at| self.meet(*at));
        was.iter()
            .for_each(|other| self.set_cut(node, *other, false));
        self.listen();
    }

    fn subscribe(&mut self, at: usize, client: u64, filter: &str, qos: Qos) {
        let node = &mut self.nodes[at];
        let who = node.clients[client as usize];
        let wants = Subscription {
            qos,
            ..Subscription::default()
        };
        node.router.subscribe(who, filter, wants);
        let key = (client, filter.to_owned());
        node.filters.insert(key.clone(), qos);
        node.forget(&key);
        let session = number(at, client);
        match node.router.announce(session) {
            true => {
                let waiting = node.waiting.entry(session).or_default();
                waiting.push_back(Some(key));
            }
            false => drop(node.known.insert(key)),
        }
        self.listen();
    }

    fn unsubscribe(&mut self, at: usize, client: u64, filter: &str) {
        let node = &mut self.nodes[at];
        let who = node.clients[client as usize];
        let key = (client, filter.to_owned());
        let was = node.filters.remove(&key).is_some();
        assert_eq!(node.router.unsubscribe(who, filter), was);
        node.forget(&key);
        self.listen();
    }

    fn publish(&mut self, at: usize, topic: &str, qos: Qos) -> (u32, PublishOutcome) {
        self.next_id += 1;
        let id = self.next_id;
        let publisher = Publisher {
            subscriber: None,
            session: number(at, 9),
            channel: 0,
            tag: id.into(),
        };
        let message = message(topic, qos, id);
        let router = &mut self.nodes[at].router;
        let heard = router.publish("/", topic, &message, publisher, &mut Vec::new());
        self.open.insert(id, heard.awaited);
        let node = self.nodes[at].address.node.0;
        self.by_node.entry(node).or_default().push(id);
        self.listen();
        (id, heard)
    }

    fn got(&self, id: u32) -> Vec<u64> {
        let all = self.got.iter();
        let times = all.flat_map(|(who, ids)| ids.iter().filter(|i| **i == id).map(|_| *who));
        times.collect()
    }

    /// Clients that are to get a message with this topic on their own.
    fn wants(&self, topic: &str) -> Vec<u64> {
        let mut all = BTreeSet::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for (client, filter) in node.filters.keys() {
                if shared(filter).unwrap().is_none() && matches(filter, topic) {
                    all.insert(number(at, *client));
                }
            }
        }
        all.into_iter().collect()
    }

    /// The same, those who share a subscription, by group.
    fn groups(&self, topic: &str) -> BTreeMap<String, BTreeSet<u64>> {
        let mut all = BTreeMap::<String, BTreeSet<u64>>::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for (client, filter) in node.filters.keys() {
                if shared(filter)
                    .unwrap()
                    .is_some_and(|s| matches(s.filter, topic))
                {
                    all.entry(filter.clone())
                        .or_default()
                        .insert(number(at, *client));
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

/// A client's session number.
fn number(at: usize, client: u64) -> u64 {
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
    /// One more entry of the metadata log, on one hub; or those that it lacks.
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

/// Who shares a subscription has no other: a message that is for both comes twice.
fn alone(client: u64, filter: usize) -> u64 {
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

/// A message, who must get it, and where it is from.
type Owed = (u32, Vec<(u64, RouterAddress)>, RouterAddress);

/// Clients that were told that their subscription holds, and must get this message.
fn must_have(world: &World, topic: &str) -> Vec<(u64, RouterAddress)> {
    let mut all = Vec::new();
    for (at, node) in world.nodes.iter().enumerate() {
        for key @ (client, filter) in &node.known {
            let plain = shared(filter).unwrap().is_none();
            if plain && matches(filter, topic) && node.filters[key] == Qos::AtLeastOnce {
                all.push((number(at, *client), node.address));
            }
        }
    }
    all
}

proptest! {
    /// Whatever happens to links and hubs: nothing comes twice or before what was sent earlier, every publisher is answered,
    /// and afterwards each hub knows exactly what the others want.
    #[test]
    fn hubs_agree_after_all(steps in steps(3)) {
        let mut limits = limits();
        // Nobody is answered because it takes too long.
        limits.routers.announce = Duration::from_secs(3600);
        let mut world = World::new(3, limits);
        let mut owed: Vec<Owed> = Vec::new();
        let mut ever_cut = false;
        for step in steps {
            match step {
                Step::Subscribe(at, client, filter, high) => world.subscribe(at, alone(client, filter), FILTERS[filter], qos(high)),
                Step::Unsubscribe(at, client, filter) => {
                    let client = alone(client, filter);
                    world.unsubscribe(at, client, FILTERS[filter]);
                    let who = number(at, client);
                    owed.iter_mut().for_each(|(_, to, _)| to.retain(|(other, _)| *other != who));
                }
                Step::Publish(at, topic, high) => {
                    let from = world.nodes[at].address;
                    let introduced = world.nodes[at].router.is_introduced();
                    let all = must_have(&world, TOPICS[topic]);
                    let (id, _) = world.publish(at, TOPICS[topic], qos(high));
                    if high && !ever_cut && introduced {
                        owed.push((id, all, from));
                    }
                }
                Step::Deliver(from, to) => drop(world.deliver((from, to))),
                Step::Cut(a, b) => {
                    // From now on somebody may subscribe who is not known everywhere.
                    ever_cut |= a != b;
                    world.set_cut(a, b, true);
                }
                Step::Heal(a, b) => world.set_cut(a, b, false),
                Step::Restart(node) => {
                    world.restart(node);
                    owed.retain(|(_, _, from)| from.node.0 != node);
                    owed.iter_mut().for_each(|(_, to, _)| to.retain(|(_, address)| address.node.0 != node));
                    let dead: Vec<u64> = (0..world.nodes.len())
                        .filter(|at| world.nodes[*at].address.node.0 == node)
                        .flat_map(|at| (0..10).map(move |client| number(at, client)))
                        .collect();
                    // Its clients are new ones too, and its publishers wait for nothing.
                    dead.iter().for_each(|who| drop(world.got.remove(who)));
                    for id in world.by_node.remove(&node).unwrap_or_default() {
                        world.open.remove(&id);
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
        for (who, ids) in &world.got {
            let mut seen = BTreeSet::new();
            prop_assert!(ids.iter().all(|id| seen.insert(*id)), "{} got something twice: {:?}", who, ids);
        }
        if world.lost() == 0 {
            for (id, to, _) in owed {
                let got = world.got(id);
                for (who, _) in to {
                    prop_assert!(got.contains(&who), "{} did not get {}", who, id);
                }
            }
        }
        prop_assert!(world.open.values().all(|open| *open == 0), "{:?}", world.open);
        for node in &world.nodes {
            prop_assert!(node.waiting.is_empty(), "{} waits for ever: {:?}", node.address, node.waiting);
        }
        for at in 0..world.nodes.len() {
            for topic in TOPICS {
                for high in [false, true] {
                    let (id, heard) = world.publish(at, topic, qos(high));
                    world.settle();
                    let (alone, groups) = (world.wants(topic), world.groups(topic));
                    let mut got = world.got(id);
                    for who in &alone {
                        let address = got.iter().position(|g| g == who);
                        prop_assert!(address.is_some(), "{} is to get {} from {}: {:?}", who, topic, at, got);
                        got.remove(address.unwrap());
                    }
                    for (group, members) in &groups {
                        // One who has it alone too gets it once.
                        let own = members.iter().any(|m| alone.contains(m));
                        let address = got.iter().position(|g| members.contains(g));
                        prop_assert!(address.is_some() || own, "nobody of {} got {} from {}", group, topic, at);
                        address.map(|address| got.remove(address));
                    }
                    prop_assert!(got.is_empty(), "{:?} got {} from {} too much", got, topic, at);
                    prop_assert_eq!(heard.receivers == 0, alone.is_empty() && groups.is_empty());
                    prop_assert_eq!(world.open[&id], 0);
                }
            }
        }
    }
}

#[test]
fn a_subscriber_is_answered_when_the_others_know() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    assert!(world.nodes[0].known.is_empty());
    world.settle();
    assert_eq!(world.nodes[0].known.len(), 1);
    // What is no news to the others may still be a binding that they do not know yet.
    world.subscribe(0, 1, "a", Qos::AtLeastOnce);
    assert_eq!(world.nodes[0].known.len(), 1);
    world.settle();
    assert_eq!(world.nodes[0].known.len(), 2);
    // One that cannot be reached is not waited for.
    world.subscribe(0, 0, "b", Qos::AtLeastOnce);
    world.set_cut(1, 2, true);
    world.settle();
    assert_eq!(world.nodes[0].known.len(), 3);
}

/// Subscriptions of sessions in queues are bindings, and what is retained is in the tree as well: both are in the metadata log.
#[test]
fn a_subscriber_is_answered_when_all_have_applied_the_same() {
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
        world.nodes[0].known.is_empty(),
        "hub 3 lacks a binding of hub 0"
    );
    apply(&mut world, 3, 6);
    assert!(world.nodes[0].known.is_empty());
    apply(&mut world, 3, 9);
    assert!(
        world.nodes[0].known.is_empty(),
        "hub 0 lacks what hub 3 retains"
    );
    apply(&mut world, 0, 8);
    assert!(world.nodes[0].known.is_empty());
    apply(&mut world, 0, 9);
    assert_eq!(world.nodes[0].known.len(), 1);
}

#[test]
fn who_does_not_answer_is_waited_for_once() {
    let mut world = World::new(2, limits());
    // Node 2 hears nothing, and its link seems to be there.
    let lose = |world: &mut World| world.links.retain(|(_, to), _| *to < 2);
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    for _ in 0..6 {
        lose(&mut world);
        world.settle();
        assert!(world.nodes[0].known.is_empty());
        world.pass(Duration::from_millis(900));
    }
    lose(&mut world);
    world.settle();
    assert_eq!(world.nodes[0].known.len(), 1);
    world.subscribe(0, 0, "b", Qos::AtLeastOnce);
    lose(&mut world);
    world.settle();
    assert_eq!(world.nodes[0].known.len(), 2);
    // What was lost is told when it is asked for.
    world.pass(Duration::from_secs(2));
    world.settle();
    assert_eq!(world.publish(2, "b", Qos::AtLeastOnce).1.receivers, 1);
}

#[test]
fn a_hub_that_stays_away_is_given_up_and_its_clients_are_told() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.subscribe(0, 1, "a", Qos::AtMostOnce);
    world.settle();
    world.set_cut(1, 2, true);
    let (id, heard) = world.publish(2, "a", Qos::AtLeastOnce);
    assert_eq!((heard.receivers, heard.awaited), (1, 1));
    world.pass(Duration::from_secs(4));
    assert_eq!(world.open[&id], 1);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.open[&id], 0);
    assert_eq!(
        world.publish(2, "a", Qos::AtLeastOnce).1,
        PublishOutcome::default()
    );
    assert_eq!(world.nodes[2].router.counts().lost_between, 2);
    world.set_cut(1, 2, false);
    world.settle();
    assert_eq!(world.missed, BTreeSet::from([number(0, 0)]));
    world.missed.clear();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.settle();
    assert_eq!(world.got(id), [number(0, 0), number(0, 1)]);
    assert!(world.missed.is_empty());
}

#[test]
fn a_hub_of_a_new_life_owes_nothing() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.restart(1);
    assert_eq!(world.open[&id], 0);
    world.settle();
    assert_eq!(
        world.publish(2, "a", Qos::AtLeastOnce).1,
        PublishOutcome::default()
    );
}

#[test]
fn a_publisher_is_held_up_and_relieved() {
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
    assert!(world.relieved.is_empty());
    world.settle();
    assert_eq!(world.relieved, BTreeSet::from([number(2, 9)]));
    assert!(world.open.values().all(|open| *open == 0));
}

#[test]
fn many_routes_come_in_parts() {
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
    let who = world.nodes[0].clients[0];
    world.nodes[0].router.leave(who, SessionRelease::default());
    world.settle();
    assert_eq!(
        world.publish(3, "filter/17", Qos::AtMostOnce).1.receivers,
        0
    );
}

/// A session in a queue that shares a subscription: every hub knows it, one has its connection.
#[test]
fn a_stored_member_is_found_where_it_is() {
    let mut world = World::new(2, limits());
    let (filter, high) = (
        "$share/g/a",
        Subscription {
            qos: Qos::AtLeastOnce,
            ..Subscription::default()
        },
    );
    let who = world.nodes[0].clients[0];
    world.nodes[0].router.store_in(who, 7);
    world.nodes[0].router.subscribe(who, filter, high);
    for at in 1..4 {
        world.nodes[at].router.adopt(("/", "1"), 7, filter, high);
    }
    world.settle();
    let to_queue = |world: &mut World, at: usize, qos| {
        let mut queues = Vec::new();
        let message = message("a", qos, 99);
        let router = &mut world.nodes[at].router;
        router.publish("/", "a", &message, Publisher::default(), &mut queues);
        world.settle();
        let got = std::mem::take(&mut world.got);
        (queues, got.into_keys().collect::<Vec<_>>())
    };
    for at in 0..4 {
        assert_eq!(
            to_queue(&mut world, at, Qos::AtLeastOnce),
            (vec![7], vec![])
        );
        assert_eq!(to_queue(&mut world, at, Qos::AtMostOnce), (vec![], vec![1]));
    }
    // With a clean member on another node they take turns, from everywhere.
    world.subscribe(3, 0, filter, Qos::AtLeastOnce);
    world.settle();
    for at in 0..4 {
        let mut both: Vec<_> = (0..2)
            .map(|_| to_queue(&mut world, at, Qos::AtLeastOnce))
            .collect();
        both.sort();
        assert_eq!(both, [(vec![], vec![number(3, 0)]), (vec![7], vec![])]);
    }
    // Its connection ends: the other one is there.
    world.nodes[0].router.leave(who, SessionRelease::default());
    world.settle();
    for _ in 0..2 {
        assert_eq!(
            to_queue(&mut world, 2, Qos::AtLeastOnce),
            (vec![], vec![number(3, 0)])
        );
    }
}

/// The member that a message was for has left when it comes: it goes to another one, wherever that is, once.
#[test]
fn a_shared_message_follows_the_members() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "$share/g/a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.subscribe(3, 0, "$share/g/a", Qos::AtLeastOnce);
    world.unsubscribe(0, 0, "$share/g/a");
    world.settle();
    // Where the message was going, it is known by then or not who is left.
    assert!(world.got(id).len() <= 1);
    world.subscribe(0, 0, "$share/g/a", Qos::AtLeastOnce);
    world.settle();
    let (id, _) = world.publish(2, "a", Qos::AtLeastOnce);
    world.settle();
    assert_eq!(world.got(id).len(), 1);
}

/// What waits for another hub would keep all that lies in its room.
#[test]
fn a_message_for_another_hub_is_in_memory_of_its_own() {
    let mut world = World::new(2, limits());
    world.subscribe(0, 0, "a", Qos::AtMostOnce);
    world.settle();
    let nothing = Properties::default();
    let built = envelope("a", Qos::AtMostOnce, &nothing).build_in(&mut Room::default(), b"soon");
    let built = built.unwrap();
    let router = &mut world.nodes[2].router;
    let heard = router.publish("/", "a", &built, Publisher::default(), &mut Vec::new());
    assert_eq!(heard.receivers, 1);
    world.listen();
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
