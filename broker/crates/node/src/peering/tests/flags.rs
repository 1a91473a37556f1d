//! Nodes of two versions in one cluster.

use super::*;
use metadata::features::Feature;

const ONE: Feature = Feature {
    name: "one",
    description: "",
};
const TWO: Feature = Feature {
    name: "two",
    description: "",
};
const OLD: Version = Version {
    version: "1.0.0",
    features: &[ONE],
};
const NEW: Version = Version {
    version: "1.1.0",
    features: &[ONE, TWO],
};

fn flags(names: &[&str]) -> Vec<Name> {
    names.iter().map(|n| Name::from(*n)).collect()
}

/// Nodes with these versions.
fn world(versions: &[Version], of: usize) -> World {
    let mut world = World::new(versions.len(), of);
    for (i, version) in versions.iter().enumerate() {
        world.configs[i].version = *version;
        world.start(i);
    }
    world
}

impl World {
    fn restart_as(&mut self, i: usize, version: Version) {
        self.kill(i);
        self.configs[i].version = version;
        self.start(i);
    }

    /// Enables a flag and applies the change on all running nodes.
    fn enable(&mut self, flag: &str) {
        let enabled = self.enabled.get_or_insert_default();
        enabled.push(flag.into());
        for i in 0..self.nodes.len() {
            if self.nodes[i].is_some() {
                self.catch_up(i);
            }
        }
    }
}

#[test]
fn nodes_exchange_versions_and_new_cluster_enables_common_flags() {
    let mut world = world(&[NEW, OLD, NEW], 3);
    world.run(Duration::from_secs(3));
    assert!(world.all_up());
    for i in 0..3 {
        let record = world.configs[i].cluster.as_ref();
        let features = record.map(|r| r.features.clone());
        assert_eq!(features, Some(flags(&["one"])), "n{i}");
        for other in (0..3).filter(|other| *other != i) {
            let announced = &world.versions[i][&world.configs[other].node];
            assert_eq!(*announced, Some(world.configs[other].version.facts()));
        }
    }
}

#[test]
fn older_version_may_return_until_an_unsupported_flag_is_enabled() {
    let mut world = world(&[NEW; 3], 3);
    world.enabled = Some(flags(&["one"]));
    world.run(Duration::from_secs(3));
    world.restart_as(2, OLD);
    world.run(Duration::from_secs(3));
    assert!(world.all_up() && world.ended.is_empty());

    // The flag should not be enabled now. If it is, the older version stops, and the others
    // continue.
    world.enable("two");
    world.run(Duration::from_secs(5));
    let why = &world.ended[&2];
    assert!(
        why.contains("version 1.0.0") && why.contains("'two'"),
        "{why}"
    );
    assert_eq!(world.ended.len(), 1);
    assert!(world.all_up(), "the two that are left");

    // It cannot come back either, and is never reported as up.
    world.log.clear();
    world.start(2);
    world.run(Duration::from_secs(5));
    assert!(world.ended.contains_key(&2));
    let seen = |a: &PeeringAction| matches!(a, PeeringAction::Up { node, .. } if *node == world.configs[2].node);
    assert!(!world.log.iter().any(|(_, i, a)| *i != 2 && seen(a)));

    world.restart_as(2, NEW);
    world.run(Duration::from_secs(5));
    assert!(world.all_up() && world.ended.is_empty());
}

#[test]
fn joining_node_of_an_older_version_is_refused() {
    let mut world = world(&[NEW, NEW, NEW, OLD], 3);
    world.kill(3);
    world.run(Duration::from_secs(3));
    world.enable("two");
    world.start(3);
    world.run(Duration::from_secs(10));
    assert!(world.ended[&3].contains("'two'"), "{:?}", world.ended);
    assert_eq!(world.configs[3].cluster, None);
    world.restart_as(3, NEW);
    world.run(Duration::from_secs(10));
    assert!(world.all_up());
    let record = world.configs[3].cluster.as_ref().expect("joined");
    assert_eq!(record.features, flags(&[]), "it is no founder");
}

/// A member that has just started has not applied the newest changes: it admits no node before it
/// has.
#[test]
fn node_that_has_not_caught_up_admits_no_node() {
    let mut world = world(&[NEW, NEW, NEW, OLD], 3);
    world.kill(3);
    world.run(Duration::from_secs(3));
    world.enabled = None;
    for i in 0..3 {
        world.restart_as(i, NEW);
    }
    world.start(3);
    world.run(Duration::from_secs(5));
    assert_eq!(world.configs[3].cluster, None);
    world.enable("two");
    world.run(Duration::from_secs(5));
    assert_eq!(world.configs[3].cluster, None);
    assert!(world.ended.contains_key(&3));
}

#[test]
fn node_that_announces_no_version_is_linked_while_no_flag_is_enabled() {
    let meet = |enabled: &[&str]| {
        let mut ours = config(0, 2);
        ours.cluster = Some(ClusterRecord {
            id: 7,
            founders: Vec::new(),
            features: Vec::new(),
        });
        let mut theirs = Peering::new(PeeringConfig {
            cluster: ours.cluster.clone(),
            ..config(1, 2)
        });
        let mut peering = Peering::new(ours);
        peering.set_enabled(Some(flags(enabled)));
        let link = LinkId(1);
        assert!(peering.accepted(link) && theirs.accepted(link));
        let hello = std::iter::from_fn(|| theirs.poll()).find_map(|a| match a {
            PeeringAction::Send {
                frame: Frame::Hello(hello),
                ..
            } => Some(hello),
            _ => None,
        });
        let hello = Hello {
            version: None,
            ..hello.expect("says hello")
        };
        peering.frame(link, Frame::Hello(hello));
        let up = peering.established(link).is_some();
        let done: Vec<PeeringAction> = std::iter::from_fn(|| peering.poll()).collect();
        (up, done)
    };
    let (up, done) = meet(&[]);
    assert!(up);
    assert!(done.contains(&PeeringAction::PeerVersion {
        node: NodeId(99),
        version: None
    }));
    let (up, done) = meet(&["two"]);
    assert!(!up);
    let refused = done.iter().find_map(|a| match a {
        PeeringAction::Send {
            frame: Frame::Refused(why),
            ..
        } => Some(why.as_str()),
        _ => None,
    });
    assert!(
        refused.is_some_and(|why| why.contains("'two'")),
        "{refused:?}"
    );
}
