//! Ownership of client ids among routers that restart, over links that delay, lose and break.

use bytes::Bytes;
use env::{Incarnation, NodeId, Time, WallTime};
use proptest::prelude::*;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use topics::{
    ClaimMessage, ClaimOutcome, ClaimVerb, Delivery, MqttRouter, ParkedSession, RouterAddress,
    RouterOutput, SessionRelease, SubscriberId, Subscription,
};

const CLIENTS: [&str; 3] = ["a", "b", "c"];

/// A parked session, identified by the number of its last connection.
struct Parked(u64);

impl ParkedSession for Parked {
    fn deliver(&mut self, _: Delivery) -> bool {
        true
    }
    fn hand_over(&mut self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// An item that arrives at a router from another one.
enum Item {
    Messages(Vec<ClaimMessage>),
    Down,
    Up(RouterAddress),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    Waiting,
    /// Connected.
    Connected(SubscriberId),
}

struct Node {
    router: MqttRouter,
    address: RouterAddress,
    /// The routers that this one considers live.
    view: BTreeMap<usize, RouterAddress>,
    /// By sending router.
    inbound: BTreeMap<usize, VecDeque<Item>>,
    sessions: BTreeMap<u64, (&'static str, bool, Session)>,
}

struct World {
    nodes: Vec<Node>,
    /// Broken links, with the smaller index first.
    broken: Vec<(usize, usize)>,
    time: Time,
    next_session: u64,
    incarnations: u64,
    /// Sessions that were told that another connection took over their id.
    taken_over: Vec<u64>,
    /// The connections that held an id, in order, each with the connection whose state it received.
    state_sources: BTreeMap<&'static str, Vec<(u64, Option<u64>)>>,
}

fn router() -> MqttRouter {
    let mut router = MqttRouter::default();
    router.set_handover(true);
    router
}

fn link(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl World {
    fn new(count: usize) -> World {
        let mut world = World {
            nodes: Vec::new(),
            broken: Vec::new(),
            time: Time::ZERO,
            next_session: 1,
            incarnations: 1,
            taken_over: Vec::new(),
            state_sources: BTreeMap::new(),
        };
        for at in 0..count {
            let address = world.address(at);
            world.nodes.push(Node {
                router: router(),
                address,
                view: BTreeMap::new(),
                inbound: BTreeMap::new(),
                sessions: BTreeMap::new(),
            });
        }
        for at in 0..count {
            for other in 0..count {
                if at != other {
                    let address = world.nodes[other].address;
                    world.nodes[at].view.insert(other, address);
                }
            }
            world.apply_view(at);
        }
        world.settle();
        world
    }

    fn address(&self, at: usize) -> RouterAddress {
        RouterAddress {
            node: NodeId(at as u64 + 1),
            incarnation: Incarnation(self.incarnations),
            shard: 0,
        }
    }

    fn apply_view(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let others = node.view.values().copied().collect();
        node.router.set_routers(node.address, others);
        self.outputs(at);
    }

    fn connect(&mut self, at: usize, client: &'static str, clean: bool) -> u64 {
        let session = self.next_session;
        self.next_session += 1;
        let waiting = (client, clean, Session::Waiting);
        self.nodes[at].sessions.insert(session, waiting);
        self.claim(at, session);
        self.outputs(at);
        session
    }

    fn claim(&mut self, at: usize, session: u64) {
        let node = &mut self.nodes[at];
        let Some((client, clean, state)) = node.sessions.get_mut(&session) else {
            return;
        };
        assert_eq!(*state, Session::Waiting);
        if let ClaimOutcome::Granted {
            subscriber,
            previous,
            handover,
        } = node.router.claim("/", client, session, *clean)
        {
            *state = Session::Connected(subscriber);
            let parked = previous
                .state
                .and_then(|state| state.into_any().downcast().ok());
            let parked = parked.map(|parked: Box<Parked>| parked.0);
            let handed_over = <[u8; 8]>::try_from(&handover[..]).map(u64::from_be_bytes);
            let entry = (session, parked.or(handed_over.ok()));
            self.state_sources.entry(client).or_default().push(entry);
            let all = Subscription::default();
            node.router.subscribe(subscriber, "#", all);
        }
    }

    /// Ends a connection. Its session is parked unless it is clean.
    fn disconnect(&mut self, at: usize, session: u64) {
        let node = &mut self.nodes[at];
        let Some((client, clean, state)) = node.sessions.remove(&session) else {
            return;
        };
        match state {
            Session::Waiting => node.router.withdraw("/", client, session),
            Session::Connected(subscriber) => {
                let leave = SessionRelease {
                    state: (!clean).then(|| Box::new(Parked(session)) as Box<dyn ParkedSession>),
                    ..SessionRelease::default()
                };
                node.router.leave(subscriber, leave);
            }
        }
    }

    fn outputs(&mut self, at: usize) {
        while let Some(output) = self.nodes[at].router.take() {
            match output {
                RouterOutput::TakenOver { session } => {
                    self.taken_over.push(session);
                    self.disconnect(at, session);
                }
                RouterOutput::ClaimAgain { session } => self.claim(at, session),
                _ => {}
            }
        }
        while let Some((to, messages)) = self.nodes[at].router.next_claim_messages() {
            let other = to.node.0 as usize - 1;
            let reached = !self.broken.contains(&link(at, other));
            if reached && self.nodes[other].address == to {
                let inbound = self.nodes[other].inbound.entry(at).or_default();
                inbound.push_back(Item::Messages(messages));
            }
        }
    }

    /// Handles the next item from that router.
    fn deliver(&mut self, at: usize, from: usize) -> bool {
        let inbound = self.nodes[at].inbound.entry(from).or_default();
        let Some(item) = inbound.pop_front() else {
            return false;
        };
        match item {
            Item::Messages(messages) => {
                let node = &mut self.nodes[at];
                if let Some(address) = node.view.get(&from).copied() {
                    node.router.handle_claim_messages(address, messages);
                }
                self.outputs(at);
            }
            Item::Down => {
                self.nodes[at].view.remove(&from);
                self.apply_view(at);
            }
            Item::Up(address) => {
                self.nodes[at].view.insert(from, address);
                self.apply_view(at);
            }
        }
        true
    }

    fn cut(&mut self, a: usize, b: usize) {
        if a == b || self.broken.contains(&link(a, b)) {
            return;
        }
        self.broken.push(link(a, b));
        for (at, from) in [(a, b), (b, a)] {
            let inbound = self.nodes[at].inbound.entry(from).or_default();
            // The notice of the broken link itself still arrives.
            inbound.retain(|item| !matches!(item, Item::Messages(_)));
            inbound.push_back(Item::Down);
        }
    }

    fn mend(&mut self, a: usize, b: usize) {
        if a == b || !self.broken.contains(&link(a, b)) {
            return;
        }
        self.broken.retain(|l| *l != link(a, b));
        for (at, from) in [(a, b), (b, a)] {
            let address = self.nodes[from].address;
            let inbound = self.nodes[at].inbound.entry(from).or_default();
            inbound.push_back(Item::Up(address));
        }
    }

    fn restart(&mut self, at: usize) {
        let count = self.nodes.len();
        for other in 0..count {
            self.cut(at, other);
        }
        self.incarnations += 1;
        let address = self.address(at);
        self.nodes[at] = Node {
            router: router(),
            address,
            view: BTreeMap::new(),
            inbound: BTreeMap::new(),
            sessions: BTreeMap::new(),
        };
        self.apply_view(at);
        for other in 0..count {
            self.mend(at, other);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.time = self.time + time;
        for at in 0..self.nodes.len() {
            let router = &mut self.nodes[at].router;
            router.set_time(self.time, WallTime(self.time.0 / 1_000_000));
            router.tick(self.time);
            self.outputs(at);
        }
    }

    fn settle(&mut self) {
        let count = self.nodes.len();
        for _ in 0..1000 {
            let mut worked = false;
            for at in 0..count {
                for from in 0..count {
                    worked |= self.deliver(at, from);
                }
            }
            self.pass(Duration::ZERO);
            if !worked {
                return;
            }
        }
        panic!("links never become idle");
    }

    /// Mends all links and delivers everything.
    fn heal(&mut self) {
        for (a, b) in self.broken.clone() {
            self.mend(a, b);
        }
        self.settle();
        for _ in 0..3 {
            self.pass(Duration::from_secs(6));
            self.settle();
        }
    }

    fn holders(&self, client: &str) -> Vec<usize> {
        let all = self.nodes.iter().enumerate();
        all.filter(|(_, node)| node.router.holds("/", client))
            .map(|(at, _)| at)
            .collect()
    }

    fn connected(&self, client: &str) -> usize {
        let sessions = self.nodes.iter().flat_map(|node| node.sessions.values());
        sessions
            .filter(|(c, _, state)| *c == client && matches!(state, Session::Connected(_)))
            .count()
    }

    fn check_settled(&mut self) {
        let mut elsewhere = 0;
        for client in CLIENTS {
            let holders = self.holders(client);
            assert!(holders.len() <= 1, "{client} is held at {holders:?}");
            assert!(self.connected(client) <= holders.len());
            elsewhere += holders.len();
        }
        let waiting = |node: &Node| node.sessions.values().any(|s| s.2 == Session::Waiting);
        assert!(!self.nodes.iter().any(waiting), "a claim waits forever");
        let (asking, owned) = self
            .nodes
            .iter()
            .map(|node| node.router.claims())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(asking, 0);
        // An owner may keep an entry for a holder that released the id while it had another view;
        // it learns so at the next claim. But only one router has an entry for the id.
        assert!(owned <= CLIENTS.len(), "{owned} owned, {elsewhere} held");
        // The next session gets the id, and no other session holds it then.
        for client in CLIENTS {
            for at in 0..self.nodes.len() {
                self.connect(at, client, false);
                self.settle();
                assert_eq!(self.holders(client), [at]);
                assert_eq!(self.connected(client), 1);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Connect(usize, usize, bool),
    Disconnect(usize),
    Deliver(usize, usize),
    Cut(usize, usize),
    Mend(usize, usize),
    Restart(usize),
    Pass(u64),
}

fn op(nodes: usize, faults: bool) -> BoxedStrategy<Op> {
    let at = || 0..nodes;
    let calm = prop_oneof![
        4 => (at(), 0..CLIENTS.len(), any::<bool>()).prop_map(|(n, c, clean)| Op::Connect(n, c, clean)),
        2 => (0usize..8).prop_map(Op::Disconnect),
        8 => (at(), at()).prop_map(|(a, b)| Op::Deliver(a, b)),
        1 => (0u64..200).prop_map(Op::Pass),
    ];
    if !faults {
        return calm.boxed();
    }
    prop_oneof![
        12 => calm,
        2 => (at(), at()).prop_map(|(a, b)| Op::Cut(a, b)),
        2 => (at(), at()).prop_map(|(a, b)| Op::Mend(a, b)),
        1 => at().prop_map(Op::Restart),
        1 => (0u64..8000).prop_map(Op::Pass),
    ]
    .boxed()
}

fn run(world: &mut World, op: &Op) {
    match *op {
        Op::Connect(at, client, clean) => {
            world.connect(at, CLIENTS[client], clean);
        }
        Op::Disconnect(which) => {
            let all = world.nodes.iter().enumerate();
            let mut all = all.flat_map(|(at, node)| node.sessions.keys().map(move |s| (at, *s)));
            let Some((at, session)) = all.nth(which) else {
                return;
            };
            drop(all);
            world.disconnect(at, session);
            world.outputs(at);
        }
        Op::Deliver(at, from) => {
            world.deliver(at, from);
        }
        Op::Cut(a, b) => world.cut(a, b),
        Op::Mend(a, b) => world.mend(a, b),
        Op::Restart(at) => world.restart(at),
        Op::Pass(ms) => world.pass(Duration::from_millis(ms)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever happens to links and routers, in the end each id has at most one holder, no claim
    /// waits, and owners have no stale entries.
    #[test]
    fn client_id_has_one_holder_after_faults_heal(
        nodes in 2usize..5,
        ops in prop::collection::vec(op(4, true), 1..120),
    ) {
        let mut world = World::new(nodes);
        for op in &ops {
            let known = match *op {
                Op::Connect(a, _, _) | Op::Restart(a) => a < nodes,
                Op::Deliver(a, b) | Op::Cut(a, b) | Op::Mend(a, b) => a < nodes && b < nodes && a != b,
                _ => true,
            };
            if known {
                run(&mut world, op);
            }
        }
        world.heal();
        world.check_settled();
    }

    /// While all links are up, an id never has two holders, not even for a moment.
    #[test]
    fn client_id_never_has_two_holders_while_links_are_up(
        ops in prop::collection::vec(op(3, false), 1..150),
    ) {
        let mut world = World::new(3);
        for op in &ops {
            run(&mut world, op);
            for client in CLIENTS {
                prop_assert!(world.holders(client).len() <= 1);
            }
        }
        world.heal();
        world.check_settled();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// If all links are up, the session state moves with the client, wherever it connects and
    /// however often it withdraws before it holds its id.
    #[test]
    fn session_state_moves_with_the_client(
        ops in prop::collection::vec(op(3, false), 1..150),
    ) {
        let mut world = World::new(3);
        for op in &ops {
            match *op {
                Op::Connect(at, client, _) => run(&mut world, &Op::Connect(at, client, false)),
                // Time stands still: a slow holder would be skipped.
                Op::Pass(_) => {}
                _ => run(&mut world, op),
            }
        }
        world.settle();
        for (client, state_sources) in &world.state_sources {
            let mut last = None;
            for (session, predecessor) in state_sources {
                prop_assert_eq!(*predecessor, last, "{} of {}", session, client);
                last = Some(*session);
            }
        }
    }
}

#[test]
fn newest_connection_takes_over_client_id_across_routers() {
    for first in 0..3 {
        for second in 0..3 {
            let mut world = World::new(3);
            let one = world.connect(first, "a", false);
            world.settle();
            let two = world.connect(second, "a", false);
            world.settle();
            assert_eq!(world.taken_over, [one]);
            assert_eq!(world.holders("a"), [second]);
            assert!(world.nodes[second].sessions.contains_key(&two));
            world.disconnect(second, two);
            world.settle();
            assert_eq!(world.holders("a"), [second], "its session is parked there");
            world.connect(first, "a", true);
            world.settle();
            assert_eq!(world.holders("a"), [first]);
        }
    }
}

#[test]
fn claim_is_granted_when_holder_does_not_yield_in_time() {
    for holder in 0..3 {
        for next in (0..3).filter(|at| *at != holder) {
            let mut world = World::new(3);
            world.connect(holder, "a", false);
            world.settle();
            world.connect(next, "a", false);
            // All routers but the holder make progress.
            for _ in 0..20 {
                for at in (0..3).filter(|at| *at != holder) {
                    for from in 0..3 {
                        world.deliver(at, from);
                    }
                }
                world.pass(Duration::from_millis(500));
            }
            let mut sessions = world.nodes[next].sessions.values();
            let waiting = sessions.any(|s| s.2 == Session::Waiting);
            // If the holder is also the owner, nobody answers: detecting that is the task of the
            // node's failure detector.
            let claims = |messages: &[ClaimMessage]| {
                let claim = |w: &ClaimMessage| matches!(w.verb, ClaimVerb::Claim { .. });
                messages.iter().any(claim)
            };
            let unheard = world.nodes[holder].inbound.get(&next).into_iter().flatten();
            let mut unheard =
                unheard.filter(|i| matches!(i, Item::Messages(messages) if claims(messages)));
            assert_eq!(waiting, unheard.next().is_some());
            world.settle();
            assert_eq!(world.holders("a"), [next]);
        }
    }
}

#[test]
fn single_router_tracks_no_claims() {
    let mut world = World::new(1);
    for client in CLIENTS {
        world.connect(0, client, false);
        world.connect(0, client, false);
        assert_eq!(world.connected(client), 1);
    }
    assert_eq!(world.nodes[0].router.claims(), (0, 0));
}
