//! Members of queues join and leave on whole nodes, while the queues contain messages.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use control::{ForgetProgress, MemberChange, ReplicaFacts, VotingState};
use env::NodeId;
use message::{Table, Value};
use metadata::Change;
use std::time::Duration;

fn quorum(extra: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
    let kind = ("x-queue-type", Value::from("quorum"));
    [&[kind], extra].concat()
}

fn fill(c: &mut Cluster, client: &mut Client, queue: &str, count: u8) {
    for n in 0..count {
        client.publish(c, "", queue, &Properties::default(), &[n; 100]);
    }
    c.until("all is there", |c| {
        (c.ready(0, queue) == u64::from(count)).then_some(())
    });
}

fn ids(list: &[u64]) -> Vec<NodeId> {
    list.iter().map(|n| NodeId(*n)).collect()
}

fn voters(c: &mut Cluster, at: usize, queue: &str) -> Vec<NodeId> {
    let mut voters = c.queue(at, queue).map(|q| q.members).unwrap_or_default();
    voters.sort_unstable();
    voters
}

fn until_voters(c: &mut Cluster, queue: &str, want: &[u64]) {
    let want = ids(want);
    c.until("these members", |c| {
        (voters(c, 0, queue) == want).then_some(())
    });
}

fn replica_of(all: &[ReplicaFacts], node: u64) -> Option<&ReplicaFacts> {
    all.iter().find(|r| r.node == NodeId(node))
}

#[test]
fn a_replica_moves_and_leaves_nothing_behind() {
    let mut c = Cluster::new(4);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(&[]));
    fill(&mut c, &mut client, "q", 50);
    let before = voters(&mut c, 0, "q");
    assert_eq!(before, ids(&[1, 2, 3]), "here first, then by id");
    let replace = MemberChange::Replace {
        old: NodeId(3),
        new: NodeId(4),
    };
    assert_eq!(c.change_members("q", replace), Ok(ids(&[1, 2, 4])));
    until_voters(&mut c, "q", &[1, 2, 4]);
    c.until("the old replica is gone", |c| {
        let all = c.replicas(0, "q");
        let old = replica_of(&all, 3).is_some_and(|r| r.replica.is_some());
        (!old && c.files(2, "segments").is_empty()).then_some(())
    });
    let all = c.replicas(0, "q");
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|r| r.vote == VotingState::Voter));
    let leaders = all.iter().filter_map(|r| r.replica);
    assert_eq!(leaders.filter(|r| r.is_leader).count(), 1);
    // What came with it is all there: without the two that had it before.
    let remove = |n| MemberChange::Remove(NodeId(n));
    assert_eq!(c.change_members("q", remove(2)), Ok(ids(&[1, 4])));
    until_voters(&mut c, "q", &[1, 4]);
    assert_eq!(c.change_members("q", remove(1)), Ok(ids(&[4])));
    c.until("the last one", |c| {
        (voters(c, 3, "q") == ids(&[4])).then_some(())
    });
    let refused = c.change_members("q", remove(4)).unwrap_err().to_string();
    assert!(refused.contains("the last replica"), "{refused}");
    let mut other = c.client(3);
    for n in 0..50 {
        assert_eq!(other.must_get(&mut c, "q").body, [n; 100][..]);
    }
    // And back to a node that had one before.
    for (node, want) in [(3, &[3, 4][..]), (1, &[1, 3, 4])] {
        let add = MemberChange::Add(NodeId(node));
        assert!(c.change_members("q", add).is_ok());
        until_voters(&mut c, "q", want);
    }
}

#[test]
fn what_would_cost_the_majority_is_refused() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(&[]));
    client.declare(&mut c, "classic", &[]);
    fill(&mut c, &mut client, "q", 3);
    let add = MemberChange::Add(NodeId(2));
    let refused = c.change_members("classic", add).unwrap_err().to_string();
    assert!(refused.contains("is no quorum queue"), "{refused}");
    c.kill(2);
    c.until("it is known", |c| {
        let online = c.queue(0, "q").map(|q| q.online.len());
        (online == Some(2)).then_some(())
    });
    let remove = MemberChange::Remove(NodeId(2));
    let refused = c.change_members("q", remove).unwrap_err().to_string();
    assert!(refused.contains("would lose its majority"), "{refused}");
    // The dead one may go.
    let dead = MemberChange::Remove(NodeId(3));
    assert_eq!(c.change_members("q", dead), Ok(ids(&[1, 2])));
    until_voters(&mut c, "q", &[1, 2]);
}

#[test]
fn leaders_are_spread_at_declaration_and_when_asked() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    let balanced = [("x-queue-leader-locator", Value::from("balanced"))];
    let leaders = |c: &mut Cluster, prefix: &str| {
        let mut counts = [0; 3];
        for n in 0..6 {
            let name = format!("{prefix}{n}");
            let leader = c.until("a leader", |c| c.queue(0, &name)?.leader);
            counts[leader.0 as usize - 1] += 1;
        }
        counts
    };
    for n in 0..6 {
        client.declare(&mut c, &format!("b{n}"), &quorum(&balanced));
    }
    assert_eq!(leaders(&mut c, "b"), [2, 2, 2]);
    for n in 0..6 {
        client.declare(&mut c, &format!("l{n}"), &quorum(&[]));
    }
    assert_eq!(leaders(&mut c, "l"), [6, 0, 0], "where the client is");
    assert_eq!(c.rebalance(), 4);
    c.until("even", |c| {
        let both = [leaders(c, "b"), leaders(c, "l")];
        let sums = [0, 1, 2].map(|n| both[0][n] + both[1][n]);
        (sums == [4, 4, 4]).then_some(())
    });
    assert_eq!(c.rebalance(), 0);
    // A node in maintenance leads nothing, and gets nothing until it is over.
    let left = c.drain(1, true);
    // Its queues, and perhaps the metadata group.
    assert!(left <= 5, "{left}");
    c.until("drained", |c| (c.drain(1, true) == 0).then_some(()));
    assert_eq!((leaders(&mut c, "b")[1], leaders(&mut c, "l")[1]), (0, 0));
    assert_eq!(c.rebalance(), 0);
    c.drain(1, false);
    c.until("it is over everywhere", |c| {
        (c.rebalance() == 4).then_some(())
    });
}

#[test]
fn queues_grow_to_their_target() {
    let mut c = Cluster::new(5);
    let mut client = c.client(0);
    let one = ("x-quorum-initial-group-size", Value::I64(1));
    let three = ("x-quorum-target-group-size", Value::I64(3));
    client.declare(&mut c, "stays", &quorum(std::slice::from_ref(&one)));
    client.declare(&mut c, "grows", &quorum(&[one, three]));
    fill(&mut c, &mut client, "grows", 20);
    c.until("three members", |c| {
        (voters(c, 0, "grows").len() == 3).then_some(())
    });
    assert_eq!(voters(&mut c, 0, "stays"), ids(&[1]));
    assert_eq!(c.ready(0, "grows"), 20);
}

#[test]
fn zones_share_a_queue() {
    let mut c = Cluster::zoned(&["a", "a", "b", "b", "c"]);
    c.pass(Duration::from_secs(3));
    let mut client = c.client(1);
    client.declare(&mut c, "q", &quorum(&[]));
    assert_eq!(voters(&mut c, 0, "q"), ids(&[2, 3, 5]));
    // The replacement is of the zone that lost one.
    c.until("a leader", |c| c.queue(0, "q")?.leader);
    let evacuate = MemberChange::Evacuate(NodeId(3));
    assert_eq!(c.change_members("q", evacuate), Ok(ids(&[2, 5, 4])));
    until_voters(&mut c, "q", &[2, 4, 5]);
}

#[test]
fn a_dead_node_is_forgotten_after_its_replicas_are_elsewhere() {
    let mut c = Cluster::new(4);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(&[]));
    fill(&mut c, &mut client, "q", 30);
    let refused = c.forget(3).unwrap_err().to_string();
    assert!(refused.contains("is running"), "{refused}");
    c.kill(2);
    assert_eq!(c.forget(3), Ok(ForgetProgress::Moving { queues: 1 }));
    c.until("forgotten", |c| {
        (c.forget(3) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    until_voters(&mut c, "q", &[1, 2, 4]);
    assert_eq!(c.ready(0, "q"), 30);
    // It is not taken in again, and is told so.
    c.back(2);
    let told = c.until("it ends", |c| c.failed(2));
    assert!(told.contains("was removed from its cluster"), "{told}");
    c.pass(Duration::from_secs(3));
    assert_eq!(c.nodes_known(0), ids(&[1, 2, 4]));
}

#[test]
fn nodes_that_run_leave_until_one_is_left() {
    let mut c = Cluster::new(3);
    c.may_fail();
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(&[]));
    fill(&mut c, &mut client, "q", 30);
    let refused = c.forget(1).unwrap_err().to_string();
    assert!(refused.contains("cannot forget itself"), "{refused}");
    for (at, left) in [(2, &[1, 2][..]), (1, &[1])] {
        let node = at as u64 + 1;
        let refused = c.forget(node).unwrap_err().to_string();
        assert!(refused.contains("begin its maintenance"), "{refused}");
        c.until("drained", |c| (c.drain(at, true) == 0).then_some(()));
        c.until("forgotten", |c| {
            (c.forget(node) == Ok(ForgetProgress::Forgotten)).then_some(())
        });
        let told = c.until("it ends", |c| c.failed(at));
        assert!(told.contains("was removed from its cluster"), "{told}");
        c.kill(at);
        assert_eq!(c.nodes_known(0), ids(left));
        until_voters(&mut c, "q", left);
    }
    // Nobody else is needed for anything.
    client.declare(&mut c, "r", &quorum(&[]));
    fill(&mut c, &mut client, "r", 3);
    for n in 0..30 {
        assert_eq!(client.must_get(&mut c, "q").body, [n; 100][..]);
    }
}

/// Who is to go and who is drained would pass the group to and fro. Whom a leader hands over to goes by its term and the order of
/// the nodes.
#[test]
fn a_group_comes_to_its_members_although_one_is_drained() {
    for run in 0..8 {
        let (moved, other, alone) = (run & 1 == 1, run >> 1 & 1, run >> 2 == 1);
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &quorum(&[]));
        fill(&mut c, &mut client, "q", 30);
        if moved {
            c.until("moved", |c| (c.drain(0, true) == 0).then_some(()));
            c.drain(0, false);
        }
        let queue = c.queue(0, "q").expect("there");
        let leader = queue.leader.expect("it has one");
        let others: Vec<NodeId> = ids(&[1, 2, 3])
            .into_iter()
            .filter(|n| *n != leader)
            .collect();
        let (drained, left) = (others[other], others[1 - other]);
        let at = drained.0 as usize - 1;
        c.until("drained", |c| (c.drain(at, true) == 0).then_some(()));
        let to = if alone { vec![left] } else { others };
        c.change(Change::ReplaceQueueMembers {
            id: queue.id,
            from: ids(&[1, 2, 3]),
            to: to.clone(),
        });
        c.until("these members", |c| {
            c.drain(at, true);
            let votes = |r: &ReplicaFacts| r.vote == VotingState::Voter;
            let all = c.replicas(left.0 as usize - 1, "q").into_iter();
            all.filter(votes)
                .map(|r| r.node)
                .eq(to.iter().copied())
                .then_some(())
        });
        c.until("somebody leads who may", |c| {
            (c.queue(0, "q")?.leader == Some(left)).then_some(())
        });
        assert_eq!(c.ready(0, "q"), 30);
    }
}

/// Its members are decided, its group has yet to follow: who is to go still has a vote, and perhaps all there is.
#[test]
fn a_node_that_a_group_counts_is_not_forgotten() {
    let mut c = Cluster::new(3);
    let mut client = c.client(2);
    let two = ("x-quorum-initial-group-size", Value::I64(2));
    client.declare(&mut c, "q", &quorum(&[two]));
    fill(&mut c, &mut client, "q", 30);
    assert_eq!(voters(&mut c, 0, "q"), ids(&[1, 3]));
    c.hold_back(Some(1));
    let replace = MemberChange::Replace {
        old: NodeId(3),
        new: NodeId(2),
    };
    assert_eq!(c.change_members("q", replace), Ok(ids(&[2, 1])));
    c.kill(2);
    c.hold_back(None);
    c.until("nobody leads it", |c| {
        c.queue(0, "q")?.leader.is_none().then_some(())
    });
    let refused = c.forget(3).unwrap_err().to_string();
    let why = "queue 'q' in vhost '/' has no leader that can be reached, and node 'n3' is a member of it or may be one: \
        start node(s) 'n3', or delete the queue";
    assert!(refused.contains(why), "{refused}");
    c.back(2);
    until_voters(&mut c, "q", &[1, 2]);
    c.kill(2);
    c.until("forgotten", |c| {
        (c.forget(3) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    assert_eq!(c.ready(0, "q"), 30);
}

/// The record of the queue names only the new member, which runs and has nothing of the queue yet.
#[test]
fn node_with_the_only_copy_is_not_forgotten_before_the_new_member_has_a_copy() {
    let mut c = Cluster::new(3);
    let mut client = c.client(2);
    let one = ("x-quorum-initial-group-size", Value::I64(1));
    client.declare(&mut c, "q", &quorum(&[one]));
    fill(&mut c, &mut client, "q", 30);
    assert_eq!(voters(&mut c, 0, "q"), ids(&[3]));
    c.hold_back(Some(1));
    let replace = MemberChange::Replace {
        old: NodeId(3),
        new: NodeId(2),
    };
    assert_eq!(c.change_members("q", replace), Ok(ids(&[2])));
    c.kill(2);
    c.hold_back(None);
    c.until("nobody leads it", |c| {
        c.queue(0, "q")?.leader.is_none().then_some(())
    });
    for _ in 0..3 {
        let refused = c.forget(3).unwrap_err().to_string();
        let why =
            "node 'n3' is a member of it or may be one: start node(s) 'n3', or delete the queue";
        assert!(refused.contains(why), "{refused}");
    }
    c.back(2);
    until_voters(&mut c, "q", &[2]);
    c.kill(2);
    c.until("forgotten", |c| {
        (c.forget(3) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    assert_eq!(c.ready(0, "q"), 30);
}

/// As above, and who has the vote that is needed never comes back.
#[test]
fn a_queue_that_nobody_can_lead_is_deleted_for_its_node_to_be_forgotten() {
    let mut c = Cluster::new(3);
    let mut client = c.client(1);
    let two = ("x-quorum-initial-group-size", Value::I64(2));
    client.declare(&mut c, "q", &quorum(&[two]));
    fill(&mut c, &mut client, "q", 3);
    assert_eq!(voters(&mut c, 0, "q"), ids(&[1, 2]));
    c.kill(1);
    c.until("nobody leads it", |c| {
        c.queue(0, "q")?.leader.is_none().then_some(())
    });
    let refused = c.forget(2).unwrap_err().to_string();
    let way_out = "start node(s) 'n2', or delete the queue";
    assert!(refused.contains(way_out), "{refused}");
    c.change(Change::DeleteQueue {
        vhost: "/".into(),
        name: "q".into(),
        id: None,
    });
    c.until("forgotten", |c| {
        (c.forget(2) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    assert_eq!(c.nodes_known(0), ids(&[1, 3]));
}

/// As above, and the only other one that could tell is down for a while.
#[test]
fn a_node_is_not_forgotten_while_nobody_can_tell_what_counts_it() {
    let mut c = Cluster::new(4);
    let mut client = c.client(1);
    let two = ("x-quorum-initial-group-size", Value::I64(2));
    client.declare(&mut c, "q", &quorum(&[two]));
    fill(&mut c, &mut client, "q", 30);
    let replace = |old, new| MemberChange::Replace {
        old: NodeId(old),
        new: NodeId(new),
    };
    assert_eq!(c.change_members("q", replace(1, 3)), Ok(ids(&[2, 3])));
    until_voters(&mut c, "q", &[2, 3]);
    c.hold_back(Some(3));
    assert_eq!(c.change_members("q", replace(3, 4)), Ok(ids(&[2, 4])));
    c.kill(2);
    c.kill(1);
    c.hold_back(None);
    let refused = c.forget(3).unwrap_err().to_string();
    assert!(refused.contains("or may be one"), "{refused}");
    for at in [1, 2] {
        c.back(at);
    }
    until_voters(&mut c, "q", &[2, 4]);
    assert_eq!(c.ready(0, "q"), 30);
}

/// Queues elsewhere that have no leader are not its concern: it has told that it has no replica of them.
#[test]
fn a_node_that_runs_is_forgotten_although_a_queue_of_others_has_no_leader() {
    let mut c = Cluster::new(4);
    c.may_fail();
    let two = ("x-quorum-initial-group-size", Value::I64(2));
    let mut client = c.client(1);
    client.declare(&mut c, "dark", &quorum(&[two]));
    fill(&mut c, &mut client, "dark", 3);
    assert_eq!(voters(&mut c, 0, "dark"), ids(&[1, 2]));
    c.kill(1);
    c.until("nobody leads it", |c| {
        c.queue(0, "dark")?.leader.is_none().then_some(())
    });
    c.until("drained", |c| (c.drain(3, true) == 0).then_some(()));
    c.until("forgotten", |c| {
        (c.forget(4) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    assert_eq!(c.nodes_known(0), ids(&[1, 2, 3]));
}

#[test]
fn what_a_removed_node_consumed_goes_back() {
    let mut c = Cluster::new(4);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &quorum(&[]));
    client.declare(&mut c, "classic", &[]);
    let mut other = c.client(3);
    for queue in ["q", "classic"] {
        fill(&mut c, &mut client, queue, 3);
        let consume = Method::BasicConsume {
            queue,
            consumer_tag: queue,
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: true,
            arguments: Table::default(),
        };
        other.send(&mut c, 1, consume);
    }
    let consumers = |c: &mut Cluster, queue: &str| {
        let stats = c.queue(0, queue).and_then(|q| q.stats);
        stats.map(|s| (s.consumers, s.unacknowledged, s.ready))
    };
    for queue in ["q", "classic"] {
        c.until("all is out", |c| {
            (consumers(c, queue) == Some((1, 3, 0))).then_some(())
        });
    }
    c.kill(3);
    c.until("forgotten", |c| {
        (c.forget(4) == Ok(ForgetProgress::Forgotten)).then_some(())
    });
    for queue in ["q", "classic"] {
        c.until("nothing is left of it", |c| {
            (consumers(c, queue) == Some((0, 0, 3))).then_some(())
        });
    }
}

#[test]
fn the_last_copy_keeps_its_node() {
    let mut c = Cluster::new(3);
    let mut client = c.client(2);
    client.declare(&mut c, "classic", &[]);
    let one = ("x-quorum-initial-group-size", Value::I64(1));
    c.kill(2);
    let refused = c.forget(3).unwrap_err().to_string();
    assert!(
        refused.contains("queue 'classic' in vhost '/'"),
        "{refused}"
    );
    c.change(Change::DeleteQueue {
        vhost: "/".into(),
        name: "classic".into(),
        id: None,
    });
    let mut client = c.client(1);
    client.declare(&mut c, "one", &quorum(&[one]));
    c.kill(1);
    let refused = c.forget(2);
    assert!(refused.is_err(), "{refused:?}");
}

/// Records of queues that node 0 looks at to declare one more.
#[cfg(debug_assertions)]
fn walked_by_a_declaration(c: &mut Cluster, client: &mut Client, name: &str) -> u64 {
    let before = c.visited_queue_count(0);
    client.declare(c, name, &quorum(&[]));
    c.visited_queue_count(0) - before
}

#[cfg(debug_assertions)]
#[test]
fn declaring_a_quorum_queue_costs_the_same_however_many_there_are() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    let few = walked_by_a_declaration(&mut c, &mut client, "first");
    for n in 0..500 {
        client.declare(&mut c, &format!("q{n}"), &quorum(&[]));
    }
    let many = walked_by_a_declaration(&mut c, &mut client, "last");
    assert!(many <= few, "{many} records were looked at, {few} before");
}

#[test]
fn all_groups_are_reviewed_a_bounded_number_in_each_turn() {
    const GROUPS: u64 = 600;
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    for n in 0..GROUPS {
        client.declare(&mut c, &format!("q{n}"), &quorum(&[]));
    }
    c.pass(Duration::from_secs(2));
    let before = c.reviewed(0);
    // Longer than all groups are ever left alone.
    for turn in 0..4_000 {
        let reviewed = c.reviewed(0);
        c.turn(0);
        let reviewed = c.reviewed(0) - reviewed;
        assert!(reviewed <= 256, "turn {turn} reviewed {reviewed} groups");
    }
    let reviewed = c.reviewed(0) - before;
    assert!(reviewed >= GROUPS, "{reviewed} reviews in all");
}
