//! Client ids among hubs whose links lose, delay and break, and which start anew (M4).
#![forbid(unsafe_code)]

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

/// A session that is kept: the number of its last connection.
struct Kept(u64);

impl ParkedSession for Kept {
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

/// What comes to a hub from another.
enum Item {
    Words(Vec<ClaimMessage>),
    Down,
    Up(RouterAddress),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    Waits,
    /// Connected.
    Has(SubscriberId),
}

struct Node {
    router: MqttRouter,
    address: RouterAddress,
    /// Whom it believes to be there.
    view: BTreeMap<usize, RouterAddress>,
    /// From each other one.
    inbound: BTreeMap<usize, VecDeque<Item>>,
    sessions: BTreeMap<u64, (&'static str, bool, Session)>,
}

struct World {
    nodes: Vec<Node>,
    /// Links that are broken, the smaller first.
    broken: Vec<(usize, usize)>,
    time: Time,
    next_session: u64,
    lives: u64,
    /// Sessions that were told that another has their id.
    taken_over: Vec<u64>,
    /// Connections that had an id, in their order, with the connection whose state they got.
    successions: BTreeMap<&'static str, Vec<(u64, Option<u64>)>>,
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
            lives: 1,
            taken_over: Vec::new(),
            successions: BTreeMap::new(),
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
            world.tell_view(at);
        }
        world.settle();
        world
    }

    fn address(&self, at: usize) -> RouterAddress {
        RouterAddress {
            node: NodeId(at as u64 + 1),
            incarnation: Incarnation(self.lives),
            shard: 0,
        }
    }

    fn tell_view(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let others = node.view.values().copied().collect();
        node.router.set_routers(node.address, others);
        self.outputs(at);
    }

    fn connect(&mut self, at: usize, client: &'static str, clean: bool) -> u64 {
        let session = self.next_session;
        self.next_session += 1;
        let waits = (client, clean, Session::Waits);
        self.nodes[at].sessions.insert(session, waits);
        self.claim(at, session);
        self.outputs(at);
        session
    }

    fn claim(&mut self, at: usize, session: u64) {
        let node = &mut self.nodes[at];
        let Some((client, clean, state)) = node.sessions.get_mut(&session) else {
            return;
        };
        assert_eq!(*state, Session::Waits);
        if let ClaimOutcome::Granted {
            subscriber,
            left,
            handover,
        } = node.router.claim("/", client, session, *clean)
        {
            *state = Session::Has(subscriber);
            let kept = left
                .state
                .and_then(|state| state.into_any().downcast().ok());
            let kept = kept.map(|kept: Box<Kept>| kept.0);
            let handed_over = <[u8; 8]>::try_from(&handover[..]).map(u64::from_be_bytes);
            let epoch_consumer = (session, kept.or(handed_over.ok()));
            self.successions
                .entry(client)
                .or_default()
                .push(epoch_consumer);
            let all = Subscription::default();
            node.router.subscribe(subscriber, "#", all);
        }
    }

    /// The connection ends; what it has is kept unless it is clean.
    fn disconnect(&mut self, at: usize, session: u64) {
        let node = &mut self.nodes[at];
        let Some((client, clean, state)) = node.sessions.remove(&session) else {
            return;
        };
        match state {
            Session::Waits => node.router.withdraw("/", client, session),
            Session::Has(subscriber) => {
                let leave = SessionRelease {
                    state: (!clean).then(|| Box::new(Kept(session)) as Box<dyn ParkedSession>),
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
                RouterOutput::Free { session } => self.claim(at, session),
                _ => {}
            }
        }
        while let Some((to, peer_messages)) = self.nodes[at].router.say_claims() {
            let other = to.node.0 as usize - 1;
            let reached = !self.broken.contains(&link(at, other));
            if reached && self.nodes[other].address == to {
                let inbound = self.nodes[other].inbound.entry(at).or_default();
                inbound.push_back(Item::Words(peer_messages));
            }
        }
    }

    /// The next thing that has come from there.
    fn deliver(&mut self, at: usize, from: usize) -> bool {
        let inbound = self.nodes[at].inbound.entry(from).or_default();
        let Some(item) = inbound.pop_front() else {
            return false;
        };
        match item {
            Item::Words(peer_messages) => {
                let node = &mut self.nodes[at];
                if let Some(address) = node.view.get(&from).copied() {
                    node.router.hear_claims(address, peer_messages);
                }
                self.outputs(at);
            }
            Item::Down => {
                self.nodes[at].view.remove(&from);
                self.tell_view(at);
            }
            Item::Up(address) => {
                self.nodes[at].view.insert(from, address);
                self.tell_view(at);
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
            // What they do not know yet of the link they still hear.
            inbound.retain(|item| !matches!(item, Item::Words(_)));
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
        self.lives += 1;
        let address = self.address(at);
        self.nodes[at] = Node {
            router: router(),
            address,
            view: BTreeMap::new(),
            inbound: BTreeMap::new(),
            sessions: BTreeMap::new(),
        };
        self.tell_view(at);
        for other in 0..count {
            self.mend(at, other);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.time = self.time + time;
        for at in 0..self.nodes.len() {
            let router = &mut self.nodes[at].router;
            router.clock(self.time, WallTime(self.time.0 / 1_000_000));
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
        panic!("it never ends");
    }

    /// Everything that was broken is whole again, and everything is heard.
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
            .filter(|(c, _, state)| *c == client && matches!(state, Session::Has(_)))
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
        let waits = |node: &Node| node.sessions.values().any(|s| s.2 == Session::Waits);
        assert!(!self.nodes.iter().any(waits), "a claim waits for ever");
        let (asking, owned) = self
            .nodes
            .iter()
            .map(|node| node.router.claims())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(asking, 0);
        // An owner may go on believing that somebody holds an id who has let go when the view was another: it hears so when
        // somebody asks. More than one entry for an id there is nowhere.
        assert!(owned <= CLIENTS.len(), "{owned} owned, {elsewhere} held");
        // Whoever comes next gets it, and nobody else has it then.
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

    /// Whatever links and hubs do: afterwards an id has one holder, nobody waits, and owners know of nothing that is not.
    #[test]
    fn in_the_end_an_id_has_one_holder(
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

    /// While all links are whole there are never two, not even for a moment.
    #[test]
    fn an_id_never_has_two_holders_while_links_are_whole(
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

    /// Wherever a client connects, and however often it gives up before it has its id: its state comes with it, if links are whole.
    #[test]
    fn session_state_follows_the_client(
        ops in prop::collection::vec(op(3, false), 1..150),
    ) {
        let mut world = World::new(3);
        for op in &ops {
            match *op {
                Op::Connect(at, client, _) => run(&mut world, &Op::Connect(at, client, false)),
                // A holder that says nothing for long is passed over.
                Op::Pass(_) => {}
                _ => run(&mut world, op),
            }
        }
        world.settle();
        for (client, successions) in &world.successions {
            let mut last = None;
            for (session, predecessor) in successions {
                prop_assert_eq!(*predecessor, last, "{} of {}", session, client);
                last = Some(*session);
            }
        }
    }
}

#[test]
fn the_last_one_gets_it_and_the_others_hear_so() {
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
            assert_eq!(world.holders("a"), [second], "its session is kept there");
            world.connect(first, "a", true);
            world.settle();
            assert_eq!(world.holders("a"), [first]);
        }
    }
}

#[test]
fn a_holder_that_says_nothing_is_passed_over() {
    for holder in 0..3 {
        for next in (0..3).filter(|at| *at != holder) {
            let mut world = World::new(3);
            world.connect(holder, "a", false);
            world.settle();
            world.connect(next, "a", false);
            // Everybody but the holder goes on.
            for _ in 0..20 {
                for at in (0..3).filter(|at| *at != holder) {
                    for from in 0..3 {
                        world.deliver(at, from);
                    }
                }
                world.pass(Duration::from_millis(500));
            }
            let mut sessions = world.nodes[next].sessions.values();
            let waits = sessions.any(|s| s.2 == Session::Waits);
            // Where the holder is the owner too nobody answers: that is its node's failure detector's matter.
            let claims = |peer_messages: &[ClaimMessage]| {
                let claim = |w: &ClaimMessage| matches!(w.what, ClaimVerb::Claim { .. });
                peer_messages.iter().any(claim)
            };
            let unheard = world.nodes[holder].inbound.get(&next).into_iter().flatten();
            let mut unheard = unheard
                .filter(|i| matches!(i, Item::Words(peer_messages) if claims(peer_messages)));
            assert_eq!(waits, unheard.next().is_some());
            world.settle();
            assert_eq!(world.holders("a"), [next]);
        }
    }
}

#[test]
fn a_hub_alone_needs_nobody() {
    let mut world = World::new(1);
    for client in CLIENTS {
        world.connect(0, client, false);
        world.connect(0, client, false);
        assert_eq!(world.connected(client), 1);
    }
    assert_eq!(world.nodes[0].router.claims(), (0, 0));
}
