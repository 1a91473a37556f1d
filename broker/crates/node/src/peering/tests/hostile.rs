//! Peers that send arbitrary frames in any order.

use super::*;
use crate::peering::{MAX_LINKS, MAX_UNIDENTIFIED_LINKS};
use crate::wire::PeerVersion;

const CLUSTERS: [u64; 3] = [0, 7, 8];

/// An event on one of several links.
#[derive(Clone, Debug)]
enum Event {
    Accepted,
    Frame(Box<Frame>),
    Closed,
    Tick(u64),
    Enabled(Vec<Name>),
    Nodes(Vec<u64>),
    /// The cluster that the node is about to adopt is durable.
    Adopted,
    Stop,
}

fn names() -> impl Strategy<Value = Vec<Name>> {
    let name = prop_oneof!["mqtt_state", "runtime_parameters", "later", "[a-z]{0,3}"];
    proptest::collection::vec(name.prop_map(Name::from), 0..3)
}

fn peer_version() -> impl Strategy<Value = Option<PeerVersion>> {
    let version = (names(), names()).prop_map(|(features, enabled)| PeerVersion {
        facts: VersionFacts {
            version: "9.9.9".into(),
            features,
        },
        enabled,
    });
    proptest::option::of(version)
}

fn hello() -> impl Strategy<Value = Frame> {
    let ids = (0usize..3, 98u64..103, 0u64..3, 1u16..4);
    (ids, 0usize..3, peer_version()).prop_map(
        |((cluster, node, incarnation, shards), who, version)| {
            Frame::Hello(Hello {
                cluster_name: if who == 2 && incarnation == 0 {
                    "other"
                } else {
                    "test"
                }
                .to_owned(),
                cluster: CLUSTERS[cluster],
                node: NodeId(node),
                incarnation: Incarnation(incarnation),
                name: format!("n{who}"),
                address: format!("n{who}:1"),
                peers_hash: 0,
                shards: if shards == 3 { 3 } else { 2 },
                version,
            })
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    let founder = |id: u64| Founder {
        id: NodeId(id),
        name: "n1".into(),
        address: "n1:1".into(),
    };
    prop_oneof![
        6 => hello(),
        1 => (0usize..3, 98u64..103).prop_map(move |(id, node)| Frame::Welcome(ClusterRecord {
            id: CLUSTERS[id],
            founders: vec![founder(node)],
            features: Vec::new(),
        })),
        1 => Just(Frame::Heartbeat),
        1 => Just(Frame::Bye),
        1 => ".{0,20}".prop_map(Frame::Refused),
        1 => Just(Frame::Data { route: shard::Route::Owner(1), body: "x".into() }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Accepted),
        8 => frame().prop_map(|f| Event::Frame(Box::new(f))),
        1 => Just(Event::Closed),
        2 => (0u64..5000).prop_map(Event::Tick),
        1 => names().prop_map(Event::Enabled),
        1 => proptest::collection::vec(98u64..103, 0..4).prop_map(Event::Nodes),
        1 => Just(Event::Adopted),
        1 => Just(Event::Stop),
    ]
}

struct HostileTest {
    peering: Peering,
    now: Time,
    up: BTreeSet<NodeId>,
    adopting: Option<ClusterRecord>,
    dialled: Vec<TargetId>,
    next: u64,
}

impl HostileTest {
    fn apply(&mut self, link: LinkId, event: Event) {
        match event {
            Event::Accepted => {
                self.next += 1;
                // Occasionally a link that this node has dialed.
                match self.dialled.pop() {
                    Some(target) if self.next.is_multiple_of(3) => {
                        self.peering.dialled(target, LinkId(self.next));
                    }
                    _ => drop(self.peering.accepted(LinkId(self.next))),
                }
            }
            Event::Frame(frame) => self.peering.frame(link, *frame),
            Event::Closed => self.peering.closed(link),
            Event::Tick(ms) => {
                self.now = self.now + Duration::from_millis(ms);
                self.peering.tick(self.now);
            }
            Event::Enabled(names) => self.peering.set_enabled(Some(names)),
            Event::Nodes(ids) => {
                let record = |id: u64| NodeRecord {
                    id: NodeId(id),
                    name: format!("n{id}").into(),
                    address: format!("n{id}:1").into(),
                    voter: false,
                    maintenance: false,
                };
                let nodes: Vec<NodeRecord> = ids.into_iter().map(record).collect();
                self.peering.set_nodes(&nodes);
            }
            Event::Adopted => {
                if let Some(record) = self.adopting.take() {
                    self.peering.adopted(record);
                }
            }
            Event::Stop if self.next > 20 => self.peering.stop(),
            Event::Stop => {}
        }
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(action) = self.peering.poll() {
            match action {
                // Sent again if the link was replaced.
                PeeringAction::Up { node, .. } => drop(self.up.insert(node)),
                PeeringAction::Down { node } => assert!(self.up.remove(&node), "down before up"),
                PeeringAction::Adopt(record) => self.adopting = Some(record),
                PeeringAction::Dial { target, .. } => self.dialled.push(target),
                _ => {}
            }
        }
        let ours = self.peering.cluster();
        for link in self.peering.links.values() {
            let hello = link.hello.as_ref();
            if link.established {
                assert!(hello.is_some_and(|h| h.cluster == ours && ours != 0));
                let explain_incompatibility =
                    hello.and_then(|h| self.peering.peer_incompatibility(h));
                assert_eq!(explain_incompatibility, None, "linked all the same");
            }
        }
        let strangers = self.peering.links.values().filter(|l| l.hello.is_none());
        assert!(strangers.count() <= MAX_UNIDENTIFIED_LINKS + self.peering.targets.len());
        assert!(self.peering.peers.len() <= self.peering.links.len() + self.up.len() + 5);
    }
}

proptest! {
    /// Whatever peers send: no panic, no node goes down that was not up, and only compatible nodes
    /// of this cluster are linked.
    #[test]
    fn arbitrary_frames_keep_invariants(
        events in proptest::collection::vec((0u64..6, event()), 0..80),
        cluster in 0usize..2,
    ) {
        let mut config = config(0, 3);
        config.cluster = (CLUSTERS[cluster] != 0).then(|| ClusterRecord {
            id: CLUSTERS[cluster],
            founders: Vec::new(),
            features: Vec::new(),
        });
        let mut rig = HostileTest {
            peering: Peering::new(config),
            now: Time::ZERO,
            up: BTreeSet::new(),
            adopting: None,
            dialled: Vec::new(),
            next: 0,
        };
        for (back, event) in events {
            let link = LinkId(rig.next.saturating_sub(back));
            rig.apply(link, event);
        }
    }
}

/// A peer with a certificate and many names.
#[test]
fn number_of_links_is_bounded() {
    let mut peering = Peering::new(config(0, 3));
    let mut taken = 0;
    for n in 1..=3 * MAX_LINKS as u64 {
        if !peering.accepted(LinkId(n)) {
            continue;
        }
        taken += 1;
        let hello = Hello {
            cluster_name: "test".into(),
            cluster: 7,
            node: NodeId(1000 + n),
            incarnation: Incarnation(1),
            name: format!("x{n}"),
            address: format!("x{n}:1"),
            peers_hash: 0,
            shards: 2,
            version: None,
        };
        peering.frame(LinkId(n), Frame::Hello(hello));
        while peering.poll().is_some() {}
    }
    assert_eq!(taken, MAX_LINKS);
    assert!(peering.links.len() <= MAX_LINKS && peering.peers.len() <= MAX_LINKS);
}

/// A second HELLO that names another cluster, or none, must not stay on an established link.
#[test]
fn established_link_that_changes_its_cluster_is_refused() {
    for changed in [0, 8] {
        let mut config = config(0, 3);
        config.cluster = Some(ClusterRecord {
            id: 7,
            founders: Vec::new(),
            features: Vec::new(),
        });
        let mut peering = Peering::new(config);
        let link = LinkId(1);
        assert!(peering.accepted(link));
        let hello = |cluster| {
            Frame::Hello(Hello {
                cluster_name: "test".into(),
                cluster,
                node: NodeId(101),
                incarnation: Incarnation(1),
                name: "n1".into(),
                address: "n1:1".into(),
                peers_hash: 0,
                shards: 2,
                version: None,
            })
        };
        peering.frame(link, hello(7));
        assert!(peering.links[&link].established);
        peering.frame(link, hello(changed));
        assert!(!peering.links.contains_key(&link), "cluster {changed}");
    }
}
