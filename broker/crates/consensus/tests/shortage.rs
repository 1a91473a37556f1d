//! Shortage of file descriptors or memory: no file is reported as damaged, no replica stops, and work
//! continues once the shortage ends.

use crate::harness::{Cluster, GROUP, voters};
use consensus::RaftHost;
use env::NodeId;
use env::sim::SimDisk;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const KEPT: usize = 200;

/// A cluster with live entries on every node, most of them in segments only.
fn cluster_with_flushed_entries(seed: u64, nodes: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, nodes);
    cluster.create(GROUP, &voters(1..=nodes));
    cluster.elect(GROUP);
    for _ in 0..KEPT {
        cluster.commit(GROUP, true, 100);
    }
    cluster.run(Duration::from_secs(5));
    cluster.converge(GROUP);
    cluster
}

fn disk(cluster: &Cluster, id: NodeId) -> SimDisk {
    cluster.nodes[&id].disk.clone()
}

/// Restarts a node, which closes its segments, so that the next read has to open them.
fn restart(cluster: &mut Cluster, id: NodeId) {
    cluster.crash(id);
    cluster.start(id);
    cluster.elect(GROUP);
}

fn first_live_index(cluster: &Cluster, id: NodeId) -> u64 {
    let live = &cluster.nodes[&id].machines[&GROUP].live;
    live.iter()
        .next()
        .map(|(index, _)| *index)
        .expect("a live entry")
}

#[test]
fn read_during_shortage_reports_shortage_and_succeeds_later() {
    let mut cluster = cluster_with_flushed_entries(51, 1);
    let id = NodeId(1);
    let causes: [fn(&SimDisk, bool); 2] = [
        |disk, on| disk.set_out_of_descriptors(on),
        |disk, on| disk.set_out_of_memory(on),
    ];
    for cause in causes {
        restart(&mut cluster, id);
        let disk = disk(&cluster, id);
        let index = first_live_index(&cluster, id);
        cause(&disk, true);
        let host = cluster.nodes[&id].host.as_ref().expect("host runs");
        let error = host
            .read(GROUP, index)
            .expect_err("reading needs a descriptor");
        let text = format!("{error:?}");
        assert!(text.contains("Short"), "not reported as a shortage: {text}");
        cause(&disk, false);
        cluster.nodes[&id].check_live(GROUP);
    }
}

/// Log files, flushes, checkpoints and deletions wait for the shortage to end.
#[test]
fn shortage_under_load_delays_storage_and_loses_nothing() {
    let mut cluster = cluster_with_flushed_entries(52, 3);
    for round in 0..6u64 {
        let id = NodeId(round % 3 + 1);
        let disk = disk(&cluster, id);
        disk.set_out_of_descriptors(true);
        for n in 0..150 {
            cluster.commit(GROUP, n % 5 != 0, 200);
        }
        disk.set_out_of_descriptors(false);
        // In the next round the two other nodes commit.
        cluster.converge(GROUP);
    }
    cluster.run(Duration::from_secs(10));
    cluster.converge(GROUP);
    for id in cluster.ids() {
        cluster.nodes[&id].check_live(GROUP);
        cluster.crash(id);
        cluster.start(id);
    }
    cluster.converge(GROUP);
    for node in cluster.nodes.values_mut() {
        // One command in five removes the oldest live one.
        assert!(node.machines[&GROUP].live.len() > KEPT + 500);
        assert!(node.freed > 0 && node.log_files() <= 4);
        node.check_live(GROUP);
    }
}

/// The entries that a member lacks are in its leader's segments, or in its checkpoint if the log has
/// advanced.
#[test]
fn leader_that_cannot_read_its_segments_stays_leader() {
    for behind in [20, 400] {
        let mut cluster = cluster_with_flushed_entries(53, 3);
        let leader = cluster.elect(GROUP);
        let away = cluster.ids().into_iter().find(|id| *id != leader);
        let away = away.expect("a follower");
        cluster.crash(away);
        for _ in 0..behind {
            cluster.commit(GROUP, true, 100);
        }
        cluster.run(Duration::from_secs(5));
        let disk = disk(&cluster, leader);
        disk.set_out_of_memory(true);
        disk.set_out_of_descriptors(true);
        cluster.start(away);
        cluster.run(Duration::from_secs(5));
        assert_eq!(cluster.leader(GROUP), Some(leader), "{behind} behind");
        disk.set_out_of_memory(false);
        disk.set_out_of_descriptors(false);
        let expected = cluster.nodes[&leader].machines[&GROUP].live.len();
        assert!(expected >= KEPT + behind - 1);
        cluster.run_until("member catches up", LIMIT, |c| {
            let machine = c.nodes[&away].machines.get(&GROUP);
            machine.is_some_and(|m| m.live.len() == expected)
        });
        cluster.nodes[&away].check_live(GROUP);
    }
}

/// A start needs to open files: the error names the shortage and does not report damage.
#[test]
fn start_during_shortage_is_refused_and_names_the_limit() {
    let mut cluster = cluster_with_flushed_entries(54, 1);
    let id = NodeId(1);
    cluster.crash(id);
    let node = cluster.nodes.get_mut(&id).expect("node exists");
    let shortages: [fn(&SimDisk, bool); 2] = [
        |disk, on| disk.set_out_of_descriptors(on),
        |disk, on| disk.set_out_of_memory(on),
    ];
    for shortage in shortages {
        shortage(&node.disk, true);
        let refused = node.start(1, crate::harness::small_limits(), env::Time(1));
        let text = match refused.expect_err("reading needs a descriptor") {
            crate::harness::Start::Wal(e) => e.to_string(),
            crate::harness::Start::Recovery(e) => e.to_string(),
        };
        assert!(text.contains("limit"), "{text}");
        assert!(!text.contains("damaged"), "{text}");
        shortage(&node.disk, false);
    }
    cluster.start(id);
    cluster.converge(GROUP);
    cluster.nodes[&id].check_live(GROUP);
}
