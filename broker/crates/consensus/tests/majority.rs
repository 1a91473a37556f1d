//! A group that lost most of its members continues with those that are left.

use crate::harness::{Cluster, GROUP, STEP, seeds, voters};
use consensus::{Membership, MembershipChange, ProposeError, RaftHost, RecoverMajorityError};
use env::{NodeId, Rng, SeededRng};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

fn recover(
    cluster: &mut Cluster,
    node: NodeId,
    lost: &[NodeId],
) -> Result<(), RecoverMajorityError> {
    let node = cluster.nodes.get_mut(&node).expect("node exists");
    let host = node.host.as_mut().expect("node runs");
    host.recover_majority(GROUP, lost)
}

/// The member with the newest log of those that run.
fn newest(cluster: &Cluster) -> NodeId {
    let status = |id: &NodeId| cluster.nodes[id].status(GROUP);
    let running = cluster.ids().into_iter().filter(|n| status(n).is_some());
    let position = |n: &NodeId| status(n).map(|s| (s.last_term, s.last_index));
    running.max_by_key(position).expect("a node runs")
}

fn has_members(cluster: &Cluster, node: NodeId, wanted: &[NodeId]) -> bool {
    let status = cluster.nodes[&node].status(GROUP);
    status.is_some_and(|s| s.is_leader && s.membership.voters == wanted)
}

/// Repeats the call until the group has a leader and only the members that are left; power failures included.
fn recover_until_done(
    cluster: &mut Cluster,
    rng: &mut SeededRng,
    left: &[NodeId],
    lost: &[NodeId],
) -> NodeId {
    let mut crashes = rng.below(3);
    let end = cluster.now + 10 * TIMEOUT;
    loop {
        assert!(cluster.now < end, "{}", cluster.describe());
        let node = newest(cluster);
        match recover(cluster, node, lost) {
            Ok(()) => {}
            // So many removals are in the log already that the usual way works.
            Err(RecoverMajorityError::HasMajority | RecoverMajorityError::HasLeader { .. }) => {
                let host = cluster.nodes.get_mut(&node).and_then(|n| n.host.as_mut());
                let host = host.expect("it runs");
                for lost in lost {
                    let _ = host.change_membership(GROUP, MembershipChange::Remove(*lost));
                }
            }
            Err(error) => panic!("{error}"),
        }
        let steps = match crashes {
            0 => 300,
            _ => rng.below(40),
        };
        for _ in 0..steps {
            cluster.propose(GROUP, true, 10);
            cluster.step();
            if has_members(cluster, node, left) && crashes == 0 {
                return node;
            }
        }
        if crashes > 0 {
            crashes -= 1;
            let crashed = left[rng.below(left.len() as u64) as usize];
            cluster.crash(crashed);
            cluster.run(STEP * 5);
            cluster.start(crashed);
            cluster.run(Duration::from_millis(700));
        }
    }
}

#[test]
fn newest_survivor_has_what_was_committed_and_goes_on() {
    for seed in seeds(0, 60) {
        let mut rng = SeededRng::new(seed);
        let mut cluster = Cluster::new(seed, 5);
        cluster.create(GROUP, &voters(1..=5));
        let leader = cluster.elect(GROUP);
        let mut confirmed: Vec<u64> = Vec::new();
        confirmed.extend((0..20).map(|_| cluster.commit(GROUP, true, 20)));
        // One that stays has all that is committed from now on, the other one may lack it.
        let mut others: Vec<NodeId> = cluster.ids();
        others.retain(|n| *n != leader);
        let current = others.remove(rng.below(4) as usize);
        let behind = others.remove(rng.below(3) as usize);
        cluster.isolate(behind, true);
        cluster.isolate(others[0], true);
        let more = 1 + rng.below(60);
        confirmed.extend((0..more).map(|_| cluster.commit(GROUP, true, 20)));
        let lost = [leader, others[0], others[1]];
        lost.iter().for_each(|n| cluster.crash(*n));
        cluster.isolate(behind, false);
        for n in lost {
            cluster.isolate(n, true);
        }
        cluster.run(Duration::from_secs(5));
        assert_eq!(cluster.leader(GROUP), None, "two of five lead");

        let mut left = [current, behind];
        left.sort_unstable();
        let node = recover_until_done(&mut cluster, &mut rng, &left, &lost);
        confirmed.push(cluster.commit(GROUP, true, 20));
        cluster.run_until("both are equal", TIMEOUT, |c| {
            let of = |n| c.nodes[n].machines[&GROUP].digest();
            of(&current) == of(&behind)
        });
        for number in &confirmed {
            let machine = &cluster.nodes[&node].machines[&GROUP];
            let is_kept = machine.live.iter().any(|(_, n)| n == number);
            assert!(is_kept, "seed {seed}: {number} is lost");
        }
        // The two are the whole group: after another power failure nobody needs the lost ones.
        left.iter().for_each(|n| cluster.crash(*n));
        left.iter().for_each(|n| cluster.start(*n));
        cluster.run_until("a leader", TIMEOUT, |c| c.leader(GROUP).is_some());
        cluster.commit(GROUP, true, 20);
        let kept = |n: &NodeId| &cluster.nodes[n].members[&GROUP];
        assert_eq!(kept(&node).voters, left);
    }
}

#[test]
fn last_of_three_confirms_nothing_that_a_crash_could_undo() {
    for seed in seeds(0, 120) {
        let mut rng = SeededRng::new(seed);
        let mut cluster = Cluster::new(seed, 3);
        cluster.create(GROUP, &voters(1..=3));
        let leader = cluster.elect(GROUP);
        cluster.commit(GROUP, true, 20);
        cluster.converge(GROUP);
        let lost: Vec<NodeId> = cluster.ids();
        let last = lost[rng.below(3) as usize];
        let lost: Vec<NodeId> = lost.into_iter().filter(|n| *n != last).collect();
        lost.iter().for_each(|n| cluster.crash(*n));
        cluster.run(Duration::from_secs(3));
        if last == leader {
            assert_eq!(cluster.leader(GROUP), None, "one of three leads");
        }
        recover(&mut cluster, last, &lost).expect("recovers");
        // As soon as a command is applied, a restart finds a group of one.
        let (mut first, end) = (None, cluster.now + TIMEOUT);
        while first.is_none() {
            assert!(cluster.now < end, "{}", cluster.describe());
            let number = cluster.propose(GROUP, true, 10);
            cluster.step();
            first = number.filter(|n| cluster.was_applied(GROUP, *n));
            let applied = (1..=number.unwrap_or(0)).rev().take(20);
            let mut applied = applied.filter(|n| cluster.was_applied(GROUP, *n));
            first = first.or_else(|| applied.next().filter(|n| *n > 2));
        }
        cluster.crash(last);
        cluster.start(last);
        cluster.run_until("a leader", TIMEOUT, |c| c.leader(GROUP) == Some(last));
        let first = first.expect("a command was applied");
        cluster.run_until("it is applied again", TIMEOUT, |c| {
            c.was_applied(GROUP, first)
        });
        // It takes new members as any other group.
        cluster.add_node(NodeId(9));
        let node = cluster.nodes.get_mut(&NodeId(9)).expect("it was added");
        node.groups.insert(GROUP, voters([last.0]));
        let host = node.host.as_mut().expect("it runs");
        host.create(GROUP, &voters([last.0]));
        let end = cluster.now + TIMEOUT;
        for change in [
            MembershipChange::AddLearner(NodeId(9)),
            MembershipChange::Promote(NodeId(9)),
        ] {
            let is_done = |m: &Membership| match change {
                MembershipChange::Promote(n) => m.voters.contains(&n),
                _ => m.learners.contains(&NodeId(9)),
            };
            loop {
                assert!(cluster.now < end, "{}", cluster.describe());
                let node = cluster.nodes.get_mut(&last).expect("it exists");
                if node.status(GROUP).is_some_and(|s| is_done(&s.membership)) {
                    break;
                }
                let host = node.host.as_mut().expect("it runs");
                match host.change_membership(GROUP, change) {
                    Ok(()) | Err(ProposeError::ChangeInProgress) => cluster.step(),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

/// Voters 1 to 3 and the learner 4. Returns the leader too.
fn with_learner(seed: u64) -> (Cluster, NodeId) {
    let mut cluster = Cluster::new(seed, 3);
    cluster.add_node(NodeId(4));
    cluster.create(GROUP, &voters(1..=3));
    let leader = cluster.elect(GROUP);
    let host = cluster.nodes.get_mut(&leader).and_then(|n| n.host.as_mut());
    let host = host.expect("it runs");
    host.change_membership(GROUP, MembershipChange::AddLearner(NodeId(4)))
        .expect("accepts");
    (cluster, leader)
}

#[test]
fn learner_continues_when_every_voter_is_lost() {
    let (mut cluster, _) = with_learner(5);
    let number = cluster.commit(GROUP, true, 20);
    cluster.run_until("node 4 catches up", TIMEOUT, |c| {
        let machine = c.nodes[&NodeId(4)].machines.get(&GROUP);
        machine.is_some_and(|m| m.has_applied(number))
    });
    let lost = [NodeId(1), NodeId(2), NodeId(3)];
    lost.iter().for_each(|n| cluster.crash(*n));
    cluster.run(Duration::from_secs(3));
    recover(&mut cluster, NodeId(4), &lost).expect("recovers");
    cluster.run_until("node 4 is alone", TIMEOUT, |c| {
        has_members(c, NodeId(4), &[NodeId(4)])
    });
    cluster.commit(GROUP, true, 20);
    assert!(cluster.nodes[&NodeId(4)].machines[&GROUP].has_applied(number));
}

#[test]
fn group_that_has_a_majority_or_a_leader_is_left_alone() {
    let mut cluster = Cluster::new(3, 3);
    cluster.create(GROUP, &voters(1..=3));
    let leader = cluster.elect(GROUP);
    cluster.converge(GROUP);
    let follower = cluster.ids().into_iter().find(|n| *n != leader);
    let follower = follower.expect("a follower");
    let others: Vec<NodeId> = cluster.ids();
    let others: Vec<NodeId> = others.into_iter().filter(|n| *n != follower).collect();
    let refused = recover(&mut cluster, follower, &others);
    assert_eq!(refused, Err(RecoverMajorityError::HasLeader { leader }));
    others.iter().for_each(|n| cluster.crash(*n));
    cluster.run_until("no leader is known", TIMEOUT, |c| {
        let status = c.nodes[&follower].status(GROUP);
        status.is_some_and(|s| s.leader.is_none())
    });
    for lost in [&[leader][..], &[follower], &[], &[NodeId(8), NodeId(9)]] {
        let refused = recover(&mut cluster, follower, lost);
        assert_eq!(refused, Err(RecoverMajorityError::HasMajority), "{lost:?}");
    }
    // Both come back: nothing has changed for them.
    others.iter().for_each(|n| cluster.start(*n));
    cluster.converge(GROUP);
    assert_eq!(cluster.nodes[&follower].members[&GROUP], voters(1..=3));
}

#[test]
fn replica_that_prepared_for_a_loss_follows_members_that_return() {
    for seed in seeds(0, 40) {
        let mut cluster = Cluster::new(seed, 5);
        cluster.create(GROUP, &voters(1..=5));
        cluster.elect(GROUP);
        cluster.converge(GROUP);
        let all = cluster.ids();
        let lost = &all[..3];
        lost.iter().for_each(|n| cluster.crash(*n));
        cluster.run(Duration::from_secs(3));
        // It cannot win: the only other one that is left is cut off.
        cluster.partition(all[3], all[4], true);
        cluster.run_until("no leader is known", TIMEOUT, |c| {
            let status = c.nodes[&all[3]].status(GROUP);
            status.is_some_and(|s| s.leader.is_none())
        });
        recover(&mut cluster, all[3], lost).expect("prepares");
        cluster.run(Duration::from_secs(1));
        assert_eq!(cluster.leader(GROUP), None);
        lost.iter().for_each(|n| cluster.start(*n));
        cluster.run_until("a leader", TIMEOUT, |c| c.leader(GROUP).is_some());
        cluster.partition(all[3], all[4], false);
        cluster.converge(GROUP);
        for node in &all {
            assert_eq!(cluster.nodes[node].members[&GROUP], voters(1..=5));
        }
        // It counts all of them again: with the three down it elects nobody.
        lost.iter().for_each(|n| cluster.crash(*n));
        cluster.run(Duration::from_secs(10));
        assert_eq!(cluster.leader(GROUP), None);
    }
}

/// The last voter that is left lacks entries that the learner has.
#[test]
fn learner_continues_when_it_has_more_than_the_last_voter() {
    let (mut cluster, leader) = with_learner(6);
    cluster.converge(GROUP);
    let behind = (1..=3).map(NodeId).find(|n| *n != leader);
    let behind = behind.expect("a follower");
    cluster.isolate(behind, true);
    let number = cluster.commit(GROUP, true, 20);
    cluster.run_until("node 4 catches up", TIMEOUT, |c| {
        c.nodes[&NodeId(4)].machines[&GROUP].has_applied(number)
    });
    let lost: Vec<NodeId> = (1..=3).map(NodeId).filter(|n| *n != behind).collect();
    lost.iter().for_each(|n| cluster.crash(*n));
    cluster.partition(behind, NodeId(4), false);
    cluster.run(Duration::from_secs(3));
    assert_eq!(newest(&cluster), NodeId(4));
    recover(&mut cluster, NodeId(4), &lost).expect("recovers");
    cluster.run_until("both are voters", TIMEOUT, |c| {
        has_members(c, NodeId(4), &[behind, NodeId(4)])
    });
    cluster.commit(GROUP, true, 20);
    cluster.run_until("both are equal", TIMEOUT, |c| {
        let of = |n| c.nodes[&n].machines[&GROUP].digest();
        of(behind) == of(NodeId(4))
    });
}

/// The second call names another node, so that the first one's counts again.
#[test]
fn node_that_is_not_named_again_counts_again() {
    let mut cluster = Cluster::new(7, 5);
    cluster.create(GROUP, &voters(1..=5));
    cluster.elect(GROUP);
    cluster.converge(GROUP);
    let all = cluster.ids();
    all[1..].iter().for_each(|n| cluster.crash(*n));
    cluster.run_until("no leader is known", TIMEOUT, |c| {
        let status = c.nodes[&all[0]].status(GROUP);
        status.is_some_and(|s| s.leader.is_none())
    });
    recover(&mut cluster, all[0], &all[2..]).expect("prepares");
    recover(&mut cluster, all[0], &all[1..4]).expect("prepares");
    // The fifth node is to vote.
    cluster.run(Duration::from_secs(10));
    assert_eq!(cluster.leader(GROUP), None);
    cluster.start(all[4]);
    cluster.run_until("both are the group", TIMEOUT, |c| {
        [all[0], all[4]]
            .iter()
            .any(|n| has_members(c, *n, &[all[0], all[4]]))
    });
}
