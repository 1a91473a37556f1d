//! Members that come and go, and how they get what they missed.

mod harness;

use consensus::{Membership, MembershipChange, ProposeError, RaftHost};
use env::{NodeId, Rng};
use harness::{Cluster, GROUP, seeds, voters};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Asks whoever leads until it is done.
fn change(cluster: &mut Cluster, change: MembershipChange) {
    let done = |m: &Membership| match change {
        MembershipChange::AddLearner(n) => m.learners.contains(&n),
        MembershipChange::Promote(n) => m.voters.contains(&n),
        MembershipChange::Remove(n) => !m.voters.contains(&n) && !m.learners.contains(&n),
    };
    let end = cluster.now + PATIENCE;
    loop {
        assert!(cluster.now < end, "{change:?}: {}", cluster.describe());
        if let Some(leader) = cluster.leader(GROUP) {
            let node = cluster.nodes.get_mut(&leader).expect("leader");
            if node.status(GROUP).is_some_and(|s| done(&s.membership)) {
                return;
            }
            let host = node.host.as_mut().expect("leader runs");
            match host.change_membership(GROUP, change) {
                Ok(())
                | Err(
                    ProposeError::ChangeInProgress
                    | ProposeError::NotLeader { .. }
                    | ProposeError::Overloaded,
                ) => {}
                Err(other) => panic!("{change:?}: {other}"),
            }
        }
        cluster.step();
    }
}

fn join(cluster: &mut Cluster, id: u64) {
    let id = NodeId(id);
    if !cluster.nodes.contains_key(&id) {
        cluster.add_node(id);
    }
    let founders = voters(1..=3);
    let node = cluster.nodes.get_mut(&id).expect("added");
    node.groups.insert(GROUP, founders.clone());
    node.host.as_mut().expect("runs").create(GROUP, &founders);
    change(cluster, MembershipChange::AddLearner(id));
}

#[test]
fn an_empty_node_gets_checkpoint_and_live_entries() {
    let mut cluster = Cluster::new(11, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    for n in 0..600 {
        cluster.commit(GROUP, n % 4 != 0, 40);
    }
    join(&mut cluster, 4);
    cluster.until("node 4 has all", PATIENCE, |c| c.is_converged(GROUP));
    let machine = &cluster.nodes[&NodeId(4)].machines[&GROUP];
    assert!(machine.live.len() > 200);
    assert!(!machine.has(1), "it came through the log, not a checkpoint");
    cluster.nodes[&NodeId(4)].check_live(GROUP);
    change(&mut cluster, MembershipChange::Promote(NodeId(4)));
    // It is as good as any other: with two of four gone nothing commits, with its help it does.
    change(&mut cluster, MembershipChange::Remove(NodeId(1)));
    change(&mut cluster, MembershipChange::Remove(NodeId(2)));
    cluster.crash(NodeId(1));
    cluster.crash(NodeId(2));
    cluster.converge(GROUP);
    cluster.crash(NodeId(4));
    cluster.start(NodeId(4));
    cluster.converge(GROUP);
}

#[test]
fn a_joiner_of_a_young_group_gets_the_log() {
    let mut cluster = Cluster::new(12, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    cluster.commit(GROUP, true, 5);
    join(&mut cluster, 4);
    cluster.until("node 4 has all", PATIENCE, |c| c.is_converged(GROUP));
    assert!(cluster.nodes[&NodeId(4)].machines[&GROUP].has(1));
    cluster.crash(NodeId(4));
    cluster.start(NodeId(4));
    cluster.converge(GROUP);
}

#[test]
fn a_transfer_goes_on_after_losses_and_crashes() {
    for seed in 20..26 {
        let mut cluster = Cluster::new(seed, 3);
        cluster.create(GROUP, &voters(1..=3));
        cluster.elect(GROUP);
        for n in 0..300 {
            cluster.commit(GROUP, n % 8 != 0, 150);
        }
        cluster.network.loss = 150;
        cluster.network.doubled = 50;
        cluster.network.max_delay_ms = 40;
        join(&mut cluster, 4);
        for round in 0..4u64 {
            cluster.run(Duration::from_millis(300 + 200 * round));
            let victim = match round % 2 {
                0 => NodeId(4),
                _ => cluster.leader(GROUP).unwrap_or(NodeId(1)),
            };
            cluster.crash(victim);
            cluster.run(Duration::from_millis(400));
            cluster.start(victim);
        }
        cluster.heal();
        cluster.converge(GROUP);
        assert!(cluster.nodes[&NodeId(4)].machines[&GROUP].live.len() > 150);
    }
}

#[test]
fn a_leader_that_removes_itself_steps_down() {
    let mut cluster = Cluster::new(13, 3);
    cluster.create(GROUP, &voters(1..=3));
    let old = cluster.elect(GROUP);
    cluster.commit(GROUP, true, 10);
    change(&mut cluster, MembershipChange::Remove(old));
    cluster.until("another leader", PATIENCE, |c| {
        c.leader(GROUP).is_some_and(|l| l != old)
    });
    cluster.converge(GROUP);
    let leader = cluster.leader(GROUP).expect("leads");
    let status = cluster.nodes[&leader].status(GROUP).expect("there");
    assert_eq!(status.membership.voters.len(), 2);
    // The one that is out keeps quiet.
    let terms = cluster.oracle.terms(GROUP);
    cluster.run(Duration::from_secs(20));
    assert_eq!(cluster.oracle.terms(GROUP), terms);
}

#[test]
fn impossible_changes_are_refused() {
    let mut cluster = Cluster::new(14, 1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    cluster.commit(GROUP, true, 1);
    let host = cluster
        .nodes
        .get_mut(&NodeId(1))
        .and_then(|n| n.host.as_mut())
        .expect("runs");
    for (change, expected) in [
        (
            MembershipChange::Promote(NodeId(9)),
            Err(ProposeError::InvalidChange),
        ),
        (
            MembershipChange::Remove(NodeId(1)),
            Err(ProposeError::InvalidChange),
        ),
        (MembershipChange::AddLearner(NodeId(1)), Ok(())),
        (MembershipChange::Remove(NodeId(9)), Ok(())),
    ] {
        assert_eq!(
            host.change_membership(GROUP, change),
            expected,
            "{change:?}"
        );
    }
}

/// Members change while nodes crash and messages are lost.
#[test]
fn members_change_under_chaos() {
    for seed in seeds(100, 15) {
        println!("SEEDS={seed}..{}", seed + 1);
        let mut cluster = Cluster::new(seed, 3);
        cluster.create(GROUP, &voters(1..=3));
        cluster.elect(GROUP);
        for id in [4, 5] {
            cluster.add_node(NodeId(id));
            let node = cluster.nodes.get_mut(&NodeId(id)).expect("added");
            node.groups.insert(GROUP, voters(1..=3));
            node.host
                .as_mut()
                .expect("runs")
                .create(GROUP, &voters(1..=3));
        }
        cluster.network.loss = cluster.rng.below(60);
        cluster.network.max_delay_ms = cluster.rng.below(60);
        for _ in 0..2000 {
            let some = NodeId(1 + cluster.rng.below(5));
            match cluster.rng.below(300) {
                0..=1 if cluster.nodes[&some].host.is_some() => cluster.crash(some),
                2..=20 if cluster.nodes[&some].host.is_none() => cluster.start(some),
                21..=40 => {
                    let kind = cluster.rng.below(4);
                    random_change(&mut cluster, some, kind);
                }
                41..=150 => {
                    let keep = cluster.rng.chance(1, 2);
                    cluster.propose(GROUP, keep, 50);
                }
                _ => {}
            }
            cluster.step();
        }
        cluster.heal();
        cluster.converge(GROUP);
    }
}

/// As a careful driver: promotes who has caught up, removes no voter of the last two.
fn random_change(cluster: &mut Cluster, node: NodeId, kind: u64) {
    let Some(leader) = cluster.leader(GROUP) else {
        return;
    };
    let Some(status) = cluster.nodes[&leader].status(GROUP) else {
        return;
    };
    let matched = status.matched.iter().find(|(n, _)| *n == node);
    let close = matched.is_some_and(|(_, m)| m + 20 > status.last_index);
    let change = match kind {
        0 | 1 if close && status.membership.learners.contains(&node) => {
            MembershipChange::Promote(node)
        }
        2 if status.membership.voters.len() > 2 => MembershipChange::Remove(node),
        _ => MembershipChange::AddLearner(node),
    };
    let host = cluster.nodes.get_mut(&leader).and_then(|n| n.host.as_mut());
    let _ = host.map(|h| h.change_membership(GROUP, change));
}
