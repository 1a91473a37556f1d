//! Groups without work sleep, and wake up when work arrives.

use crate::harness::{Cluster, GROUP, small_limits, voters};
use consensus::{GroupId, RaftHost};
use env::NodeId;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

fn are_all_asleep(cluster: &Cluster) -> bool {
    let mut hosts = cluster.nodes.values().filter_map(|n| n.host.as_ref());
    hosts.all(|h| h.awake() == 0)
}

fn quiet_cluster(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    cluster.commit(GROUP, true, 10);
    cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
    cluster
}

#[test]
fn idle_groups_send_nothing() {
    let mut cluster = quiet_cluster(51);
    cluster.run(Duration::from_millis(200));
    let before = cluster.network.frames;
    cluster.run(Duration::from_secs(60));
    assert_eq!(cluster.network.frames, before);
    assert!(are_all_asleep(&cluster));
    for node in cluster.nodes.values() {
        let host = node.host.as_ref().expect("host runs");
        assert_eq!(host.wake_at(), None, "a sleeping host needs no tick");
        assert!(node.status(GROUP).is_some_and(|s| s.leader.is_some()));
    }
    assert_eq!(cluster.oracle.terms(GROUP), 1);
}

#[test]
fn proposal_wakes_a_group_that_then_sleeps_again() {
    let mut cluster = quiet_cluster(52);
    for _ in 0..3 {
        cluster.run(Duration::from_secs(10));
        cluster.commit(GROUP, true, 10);
        cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
    }
    cluster.converge(GROUP);
    assert_eq!(cluster.oracle.terms(GROUP), 1);
}

#[test]
fn crash_of_a_sleeping_leader_starts_an_election() {
    let mut cluster = quiet_cluster(53);
    cluster.run(Duration::from_secs(10));
    let leader = cluster.leader(GROUP).expect("a leader");
    cluster.crash(leader);
    cluster.run_until("another leader", Duration::from_secs(3), |c| {
        c.leader(GROUP).is_some()
    });
    cluster.commit(GROUP, true, 10);
    cluster.run_until("the two remaining nodes sleep", TIMEOUT, are_all_asleep);
    cluster.start(leader);
    cluster.run_until("all replicas converge", TIMEOUT, |c| c.is_converged(GROUP));
    cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
    assert_eq!(
        cluster.oracle.terms(GROUP),
        2,
        "the returning node starts no election"
    );
}

#[test]
fn restarted_follower_of_a_sleeping_group_learns_its_leader() {
    let mut cluster = quiet_cluster(54);
    let leader = cluster.leader(GROUP).expect("a leader");
    let follower = cluster.ids().into_iter().find(|n| *n != leader);
    let follower = follower.expect("three nodes");
    let terms = cluster.oracle.terms(GROUP);
    cluster.crash(follower);
    cluster.run(Duration::from_secs(5));
    cluster.start(follower);
    cluster.run_until("the follower knows its leader", TIMEOUT, |c| {
        c.nodes[&follower]
            .status(GROUP)
            .is_some_and(|s| s.leader == Some(leader))
    });
    cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
    assert_eq!(cluster.oracle.terms(GROUP), terms);
}

/// The process restarted before the failure detector noticed: its new incarnation reveals the restart.
#[test]
fn leader_restarted_before_detection_is_replaced_or_reelected() {
    let mut cluster = quiet_cluster(55);
    let leader = cluster.leader(GROUP).expect("a leader");
    cluster.crash(leader);
    cluster.start(leader);
    cluster.run_until("a leader", TIMEOUT, |c| c.leader(GROUP).is_some());
    cluster.converge(GROUP);
    cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
}

#[test]
fn isolated_sleeping_leader_steps_down() {
    let mut cluster = quiet_cluster(56);
    let leader = cluster.leader(GROUP).expect("a leader");
    cluster.isolate(leader, true);
    cluster.run_until(
        "another leader, and the isolated one stepped down",
        TIMEOUT,
        |c| {
            let leads = |n: &NodeId| c.nodes[n].status(GROUP).is_some_and(|s| s.is_leader);
            c.ids().iter().any(|n| *n != leader && leads(n)) && !leads(&leader)
        },
    );
    cluster.isolate(leader, false);
    cluster.converge(GROUP);
}

#[test]
fn groups_stay_awake_without_a_failure_detector() {
    let mut cluster = Cluster::new(57, 3);
    cluster.disable_detector();
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    cluster.run(Duration::from_secs(20));
    for node in cluster.nodes.values() {
        assert_eq!(node.host.as_ref().map(consensus::Host::awake), Some(1));
    }
}

/// After a node dies, all groups that it led soon have new leaders, spread over the nodes.
#[test]
fn many_groups_elect_within_limit_and_spread_leaders() {
    const GROUPS: u64 = 300;
    let mut limits = small_limits();
    limits.max_frame_bytes = 1 << 20;
    let mut cluster = Cluster::with_limits(58, 3, limits);
    for node in cluster.nodes.values_mut() {
        node.max_file_bytes = 4 << 20;
    }
    for id in 1..=GROUPS {
        cluster.create(GroupId(id), &voters(1..=3));
    }
    let led = |c: &Cluster| (1..=GROUPS).all(|id| c.leader(GroupId(id)).is_some());
    cluster.run_until("all groups have leaders", TIMEOUT, led);
    cluster.run_until("all groups asleep", TIMEOUT, are_all_asleep);
    let count = |c: &Cluster, node: NodeId| {
        let leads = |id: &u64| {
            c.nodes[&node]
                .status(GroupId(*id))
                .is_some_and(|s| s.is_leader)
        };
        (1..=GROUPS).filter(leads).count()
    };
    let busiest = cluster
        .ids()
        .into_iter()
        .max_by_key(|n| count(&cluster, *n));
    let busiest = busiest.expect("three nodes");
    assert!(count(&cluster, busiest) >= GROUPS as usize / 3);
    cluster.crash(busiest);
    let limit = Duration::from_secs(3);
    cluster.run_until("all groups have leaders again", limit, led);
    for id in cluster.ids().into_iter().filter(|n| *n != busiest) {
        let leads = count(&cluster, id);
        assert!(leads >= GROUPS as usize / 5, "{id:?} leads {leads}");
    }
}
