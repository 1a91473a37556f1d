//! Nodes with different numbers of shards in one cluster.

use super::*;
use metadata::features::{BASELINE, SHARDS_PER_NODE};

/// Version 0.2 as released: nodes need the same number of shards.
const RELEASED: Version = Version {
    version: "0.2.0",
    features: &[BASELINE],
};
const NEW: Version = Version {
    version: "0.3.0",
    features: &[BASELINE, SHARDS_PER_NODE],
};

fn world(nodes: &[(Version, u16)]) -> World {
    let mut world = World::new(nodes.len(), nodes.len());
    for (i, (version, shards)) in nodes.iter().enumerate() {
        world.configs[i].version = *version;
        world.configs[i].shards = *shards;
        world.start(i);
    }
    world.enabled = Some(vec![BASELINE.name.into()]);
    world
}

impl World {
    fn restart_with(&mut self, i: usize, version: Version, shards: u16) {
        self.kill(i);
        self.configs[i].version = version;
        self.configs[i].shards = shards;
        self.start(i);
    }

    fn enable_different_counts(&mut self) {
        let enabled = self.enabled.get_or_insert_default();
        enabled.push(SHARDS_PER_NODE.name.into());
        for i in 0..self.nodes.len() {
            if self.nodes[i].is_some() {
                self.catch_up(i);
            }
        }
    }

    /// Peers that a node reports as up.
    fn peers_up(&self, i: usize) -> usize {
        self.up[i].len()
    }

    fn is_recorded(&self, i: usize) -> bool {
        let record = self.configs[i].cluster.as_ref();
        record.is_some_and(|r| r.features.iter().any(|f| &**f == SHARDS_PER_NODE.name))
    }
}

#[test]
fn new_cluster_of_nodes_with_different_counts_forms_and_each_may_change_its_count() {
    let mut world = world(&[(NEW, 1), (NEW, 2), (NEW, 4)]);
    world.enabled = Some(vec![BASELINE.name.into(), SHARDS_PER_NODE.name.into()]);
    world.run(Duration::from_secs(3));
    assert!(world.all_up());
    for (i, shards) in [(0, 8), (1, 1), (2, 256)] {
        world.restart_with(i, NEW, shards);
        world.run(Duration::from_secs(3));
        assert!(world.all_up(), "n{i} with {shards} shards");
    }
}

#[test]
fn released_version_and_new_version_with_the_same_count_are_linked() {
    let mut world = world(&[(RELEASED, 2), (NEW, 2), (RELEASED, 2)]);
    world.run(Duration::from_secs(3));
    assert!(world.all_up());
}

/// The first reason that one of these nodes gave when it refused a link; empty if none did.
fn refusal(world: &World, by: impl Fn(usize) -> bool) -> String {
    let given = world.log.iter().find_map(|(_, i, action)| match action {
        PeeringAction::Send {
            frame: Frame::Refused(why),
            ..
        } if by(*i) => Some(why.clone()),
        _ => None,
    });
    given.unwrap_or_default()
}

#[test]
fn other_count_is_refused_by_and_for_a_released_version_with_a_reason() {
    for (first, second) in [(RELEASED, NEW), (NEW, RELEASED)] {
        let mut world = world(&[(first, 2), (second, 3)]);
        world.run(Duration::from_secs(3));
        assert_eq!(world.clusters(), [0, 0]);
        let why = refusal(&world, |_| true);
        assert!(
            why.contains("needs the same `shards` on all nodes"),
            "{why}"
        );
    }
}

/// Version 0.2 compares the numbers before anything else, so the mix of both is possible only
/// after the flag has excluded it.
#[test]
fn rolling_upgrade_keeps_the_count_until_the_flag_is_enabled() {
    let mut world = world(&[(RELEASED, 2); 3]);
    world.run(Duration::from_secs(3));
    for i in 0..3 {
        world.restart_with(i, NEW, 2);
        world.run(Duration::from_secs(3));
        assert!(world.all_up(), "n{i} is upgraded");
    }
    world.restart_with(0, NEW, 4);
    world.run(Duration::from_secs(5));
    assert_eq!((world.peers_up(0), world.peers_up(1)), (0, 1));
    let why = refusal(&world, |i| i != 0);
    assert!(
        why.contains("runs 2 shards and n0 runs 4: enable the feature flag 'shards_per_node'"),
        "{why}"
    );
    assert!(!world.is_recorded(1));
    world.enable_different_counts();
    world.run(Duration::from_secs(5));
    assert!(world.all_up());
    assert!((0..3).all(|i| world.is_recorded(i)));
}

/// No node has caught up, so none knows the flags: without links none ever could.
#[test]
fn all_nodes_may_restart_at_once_with_other_counts() {
    let mut world = world(&[(NEW, 2); 3]);
    world.run(Duration::from_secs(3));
    world.enable_different_counts();
    let enabled = world.enabled.take();
    for i in 0..3 {
        world.restart_with(i, NEW, 1 + i as u16);
    }
    world.run(Duration::from_secs(5));
    assert!(world.all_up());
    world.enabled = enabled;
    for i in 0..3 {
        world.catch_up(i);
    }
    world.run(Duration::from_secs(2));
    assert!(world.all_up());
}

#[test]
fn nodes_that_learn_that_the_flag_is_off_part() {
    let mut world = world(&[(NEW, 2); 3]);
    world.run(Duration::from_secs(3));
    let enabled = world.enabled.take();
    for (i, shards) in [2, 2, 4].into_iter().enumerate() {
        world.restart_with(i, NEW, shards);
    }
    world.run(Duration::from_secs(5));
    assert!(world.all_up());
    world.enabled = enabled;
    for i in 0..3 {
        world.catch_up(i);
    }
    world.run(Duration::from_secs(5));
    let up = [0, 1, 2].map(|i| world.peers_up(i));
    assert_eq!(up, [1, 1, 0]);
}

#[test]
fn impossible_counts_are_refused() {
    for shards in [0, 257, u16::MAX] {
        let mut world = world(&[(NEW, 2), (NEW, shards)]);
        world.run(Duration::from_secs(3));
        let why = refusal(&world, |i| i == 0);
        assert!(why.contains("a node has 1 to 256"), "{why}");
    }
}

#[test]
fn count_cannot_change_on_a_link() {
    let mut odd = config(1, 2);
    let (mut peering, link) = (Peering::new(config(0, 2)), LinkId(1));
    assert!(peering.accepted(link));
    let mut hello_of = |shards| {
        odd.shards = shards;
        let mut other = Peering::new(odd.clone());
        assert!(other.accepted(link));
        std::iter::from_fn(|| other.poll()).find_map(|a| match a {
            PeeringAction::Send { frame, .. } => Some(frame),
            _ => None,
        })
    };
    let (first, second) = (hello_of(2), hello_of(3));
    peering.frame(link, first.expect("sends HELLO"));
    assert!(peering.identified(link));
    peering.frame(link, second.expect("sends HELLO"));
    assert!(!peering.identified(link));
}
