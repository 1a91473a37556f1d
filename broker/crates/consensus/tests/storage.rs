//! Files that hosts leave on their disks, and recovery from them.

use crate::harness::{Cluster, GROUP, small_limits, voters};
use consensus::{GroupId, Host, HostConfig, RaftHost, RecoveryError};
use env::sim::SimDisk;
use env::{Disk, Incarnation, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use wal::{Entry, HardState, RecoveredGroup};

/// A queue that is consumed as fast as it is written leaves only its checkpoint, and the log is freed.
#[test]
fn log_files_are_freed_and_segments_hold_live_entries_only() {
    let mut cluster = Cluster::new(31, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    for n in 0..1500 {
        // The first 40 stay live, the others do not stay long.
        cluster.commit(GROUP, n < 40 || n % 2 == 0, 100);
    }
    cluster.converge(GROUP);
    cluster.run(Duration::from_secs(5));
    for node in cluster.nodes.values_mut() {
        assert!(node.freed > 0, "no log file was freed");
        let files = node.log_files();
        assert!(files <= 3, "{files} log files are left");
        let written: u64 = node
            .disk
            .files()
            .iter()
            .filter(|(path, _)| path.starts_with("segments/") && path.ends_with(".seg"))
            .map(|(_, len)| *len)
            .sum();
        let live = node.machines[&GROUP].live.len() as u64;
        assert!(
            written < (live + 200) * 400,
            "{written} bytes of segments for {live} live entries"
        );
    }
}

/// Log files are freed even if the owner never supplies checkpoints.
#[test]
fn log_files_are_freed_without_checkpoints() {
    let mut cluster = Cluster::new(32, 3);
    for node in cluster.nodes.values_mut() {
        node.skip_checkpoints = true;
    }
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    for _ in 0..600 {
        cluster.commit(GROUP, true, 100);
    }
    cluster.run(Duration::from_secs(5));
    for node in cluster.nodes.values_mut() {
        assert!(node.log_files() <= 3);
    }
    for id in cluster.ids() {
        cluster.crash(id);
        cluster.start(id);
    }
    cluster.converge(GROUP);
    // Without checkpoints every kept entry stays live.
    assert!(cluster.nodes[&NodeId(1)].machines[&GROUP].live.len() > 590);
}

/// Disables checkpoints and makes log files large enough that they never roll.
fn keep_one_log_file(cluster: &mut Cluster) {
    for id in cluster.ids() {
        cluster.crash(id);
        let node = cluster.nodes.get_mut(&id).expect("node exists");
        node.max_file_bytes = 4 << 20;
        node.skip_checkpoints = true;
        cluster.start(id);
    }
}

fn log_bytes(disk: &SimDisk) -> BTreeMap<String, u64> {
    let files = disk.files().into_iter();
    files.filter(|(path, _)| path.ends_with(".wal")).collect()
}

/// At its start a single node knows none of its entries to be committed; it must not rewrite them because of
/// that.
#[test]
fn start_does_not_rewrite_entries_that_commit_soon() {
    let mut cluster = Cluster::new(34, 1);
    keep_one_log_file(&mut cluster);
    cluster.create(GROUP, &voters(1..=1));
    cluster.elect(GROUP);
    for _ in 0..300 {
        cluster.commit(GROUP, true, 1000);
    }
    cluster.crash(NodeId(1));
    let before = log_bytes(&cluster.nodes[&NodeId(1)].disk);
    cluster.start(NodeId(1));
    cluster.run_until("all commands applied", Duration::from_secs(5), |c| {
        let machine = c.nodes[&NodeId(1)].machines.get(&GROUP);
        machine.is_some_and(|m| m.live.len() == 300)
    });
    let mut after = log_bytes(&cluster.nodes[&NodeId(1)].disk);
    after.retain(|path, _| !before.contains_key(path));
    let written: u64 = after.values().sum();
    assert!(written <= 16 << 10, "{after:?}");
    // The old file is freed nevertheless, and nothing is lost.
    cluster.run(Duration::from_secs(5));
    let node = &cluster.nodes[&NodeId(1)];
    assert!(node.freed > 0);
    node.check_live(GROUP);
}

/// Without a majority nothing commits: after a while the uncommitted tail is written to the log again, so
/// that old files can be freed.
#[test]
fn start_without_majority_frees_old_log_files() {
    let mut cluster = Cluster::new(35, 3);
    keep_one_log_file(&mut cluster);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    let numbers: Vec<u64> = (0..60).map(|_| cluster.commit(GROUP, true, 1000)).collect();
    let ids = cluster.ids();
    ids.iter().for_each(|id| cluster.crash(*id));
    cluster.start(NodeId(2));
    cluster.run(Duration::from_secs(5));
    let node = &cluster.nodes[&NodeId(2)];
    assert!(node.freed > 0, "the old file is free");
    for id in ids {
        if id != NodeId(2) {
            cluster.start(id);
        }
    }
    cluster.converge(GROUP);
    assert!(numbers.iter().all(|n| cluster.was_applied(GROUP, *n)));
    cluster.nodes[&NodeId(2)].check_live(GROUP);
}

/// A restarted node restores exactly its former state from the checkpoint and the log, without asking other
/// members.
#[test]
fn restart_restores_the_same_state() {
    let mut cluster = Cluster::new(33, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    for n in 0..500 {
        cluster.commit(GROUP, n % 3 != 0, 60);
    }
    cluster.converge(GROUP);
    // Commit indexes are recorded.
    cluster.run(Duration::from_secs(5));
    for id in cluster.ids() {
        let before = cluster.nodes[&id].machines[&GROUP].clone();
        cluster.isolate(id, true);
        cluster.crash(id);
        cluster.start(id);
        cluster.isolate(id, true);
        cluster.run(Duration::from_millis(50));
        let node = &cluster.nodes[&id];
        let after = &node.machines[&GROUP];
        assert_eq!(after.digest(), before.digest());
        assert_eq!(after.live, before.live);
        node.check_live(GROUP);
        cluster.isolate(id, false);
    }
    cluster.converge(GROUP);
}

/// The disk is full: checkpoints and flushes are retried until there is space, and no log file is freed
/// before.
#[test]
fn full_disk_delays_checkpoints_and_loses_nothing() {
    let mut cluster = Cluster::new(36, 1);
    let id = NodeId(1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    for _ in 0..20 {
        cluster.commit(GROUP, true, 100);
    }
    cluster.run(Duration::from_secs(5));
    let used = |disk: &SimDisk| -> u64 { disk.files().iter().map(|(_, len)| len).sum() };
    let before = cluster.nodes[&id].disk.files();
    let disk = cluster.nodes[&id].disk.clone();
    disk.set_capacity(Some(used(&disk)));
    cluster
        .nodes
        .get_mut(&id)
        .expect("node exists")
        .checkpoint(GROUP);
    let full = |c: &Cluster| {
        let host = c.nodes[&id].host.as_ref().expect("host runs");
        host.counters().postponed_jobs
    };
    let limit = Duration::from_secs(20);
    cluster.run_until("several failed attempts", limit, |c| full(c) >= 3);
    let names = |files: &[(String, u64)]| -> Vec<String> {
        files.iter().map(|(path, _)| path.clone()).collect()
    };
    assert_eq!(
        names(&disk.files()),
        names(&before),
        "no partial file is left"
    );
    disk.set_capacity(None);
    cluster.run_until("a checkpoint file", limit, |_| {
        disk.files()
            .iter()
            .any(|(path, _)| path.contains("/checkpoint-"))
    });
    // A finished job is not retried.
    cluster.run(Duration::from_secs(1));
    let attempts = full(&cluster);
    cluster.run(Duration::from_secs(20));
    assert_eq!(full(&cluster), attempts);
    cluster.crash(id);
    cluster.start(id);
    // This commits a command that removes the oldest live one.
    cluster.converge(GROUP);
    assert_eq!(cluster.nodes[&id].machines[&GROUP].live.len(), 19);
}

/// The disk fills up under load. Every command committed before and after is on every node in the end.
#[test]
fn disk_full_in_turns_under_load_loses_nothing() {
    let mut cluster = Cluster::new(37, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    for round in 0..6u64 {
        for n in 0..120 {
            cluster.commit(GROUP, n % 5 != 0, 100);
        }
        // One node at a time is full, so that the two others commit.
        let id = NodeId(round % 3 + 1);
        let disk = cluster.nodes[&id].disk.clone();
        let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
        disk.set_capacity(Some(used));
        for n in 0..120 {
            cluster.commit(GROUP, n % 5 != 0, 100);
        }
        disk.set_capacity(None);
    }
    cluster.run(Duration::from_secs(10));
    cluster.converge(GROUP);
    let met = cluster.nodes.values().filter_map(|n| n.host.as_ref());
    assert!(met.map(|h| h.counters().postponed_jobs).sum::<u64>() > 0);
    for id in cluster.ids() {
        cluster.crash(id);
        cluster.start(id);
    }
    cluster.converge(GROUP);
    for node in cluster.nodes.values_mut() {
        assert!(node.machines[&GROUP].live.len() > 800);
        assert!(node.freed > 0 && node.log_files() <= 4);
    }
}

/// While the disk is short of space, an emptied queue frees its segments although its log is far below the
/// checkpoint limits.
#[test]
fn disk_shortage_frees_segments_of_emptied_queue() {
    let limits = consensus::HostLimits {
        checkpoint_bytes: 1 << 30,
        checkpoint_entries: 1 << 30,
        ..small_limits()
    };
    let mut cluster = Cluster::with_limits(39, 1, limits);
    let id = NodeId(1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    for _ in 0..400 {
        cluster.commit(GROUP, true, 200);
    }
    cluster.run(Duration::from_secs(5));
    let segments = |c: &Cluster| -> u64 {
        let files = c.nodes[&id].disk.files().into_iter();
        files
            .filter(|(path, _)| path.ends_with(".seg"))
            .map(|(_, len)| len)
            .sum()
    };
    assert!(segments(&cluster) > 50_000);
    // Empties the queue as far as the state machine is concerned.
    let node = cluster.nodes.get_mut(&id).expect("node exists");
    node.machines
        .get_mut(&GROUP)
        .expect("machine exists")
        .live
        .clear();
    cluster.commit(GROUP, false, 0);
    cluster.run(Duration::from_secs(5));
    assert!(segments(&cluster) > 50_000);
    let host = cluster.nodes.get_mut(&id).and_then(|n| n.host.as_mut());
    host.expect("host runs").set_disk_short(true);
    let limit = Duration::from_secs(10);
    cluster.run_until("space", limit, |c| segments(c) < 10_000);
}

/// A deleted group's records stay in the log until its files are deleted, however long that takes.
#[test]
fn removals_are_retried_after_the_disk_was_full() {
    let mut cluster = Cluster::new(38, 1);
    let id = NodeId(1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    for _ in 0..300 {
        cluster.commit(GROUP, true, 100);
    }
    cluster.run(Duration::from_secs(5));
    let of_group = |c: &Cluster| {
        let files = c.nodes[&id].disk.files();
        files.iter().any(|(path, _)| path.starts_with("segments/"))
    };
    assert!(of_group(&cluster));
    let node = cluster.nodes.get_mut(&id).expect("node exists");
    node.refuse_jobs = true;
    node.host.as_mut().expect("host runs").remove(GROUP);
    node.groups.clear();
    node.machines.clear();
    cluster.run(Duration::from_secs(10));
    assert!(of_group(&cluster));
    cluster.nodes.get_mut(&id).expect("node exists").refuse_jobs = false;
    let limit = Duration::from_secs(10);
    cluster.run_until("the files are deleted", limit, |c| !of_group(c));
    cluster.run(Duration::from_secs(1));
    cluster.crash(id);
    cluster.start(id);
    assert!(cluster.nodes[&id].status(GROUP).is_none());
}

#[test]
fn removed_group_leaves_no_files_and_can_be_created_again() {
    let mut cluster = Cluster::new(34, 1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    for _ in 0..400 {
        cluster.commit(GROUP, true, 100);
    }
    let node = cluster.nodes.get_mut(&NodeId(1)).expect("node exists");
    node.host.as_mut().expect("host runs").remove(GROUP);
    node.groups.clear();
    node.machines.clear();
    cluster.oracle.history.clear();
    cluster.run(Duration::from_secs(2));
    let node = &cluster.nodes[&NodeId(1)];
    assert!(node.status(GROUP).is_none());
    let left: Vec<_> = node.disk.files();
    assert!(
        !left
            .iter()
            .any(|(path, _)| path.contains("0000000000000007")),
        "{left:?}"
    );
    cluster.crash(NodeId(1));
    cluster.start(NodeId(1));
    assert!(cluster.nodes[&NodeId(1)].status(GROUP).is_none());
    let host = cluster.nodes[&NodeId(1)].host.as_ref().expect("host runs");
    assert!(host.was_removed(GROUP) && !host.was_removed(consensus::GroupId(8)));
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    cluster.commit(GROUP, true, 10);
}

/// Created again in the same turn: the new replica starts once the old files are deleted.
#[test]
fn group_removed_and_created_in_one_turn_starts_empty() {
    let mut cluster = Cluster::new(35, 1);
    cluster.create(GROUP, &voters([1]));
    cluster.elect(GROUP);
    for _ in 0..300 {
        cluster.commit(GROUP, true, 100);
    }
    let node = cluster.nodes.get_mut(&NodeId(1)).expect("node exists");
    node.machines.clear();
    let host = node.host.as_mut().expect("host runs");
    host.remove(GROUP);
    host.create(GROUP, &voters([1]));
    cluster.oracle = crate::harness::Oracle::default();
    cluster.elect(GROUP);
    cluster.commit(GROUP, true, 10);
    cluster.crash(NodeId(1));
    cluster.start(NodeId(1));
    cluster.converge(GROUP);
    assert_eq!(cluster.nodes[&NodeId(1)].machines[&GROUP].live.len(), 0);
}

fn entry(index: u64, term: u64) -> Entry {
    Entry {
        index,
        term,
        kind: 0,
        data: format!("command {index}").into_bytes().into(),
    }
}

fn recover(disk: &SimDisk, group: RecoveredGroup) -> Result<Host, RecoveryError> {
    let config = HostConfig {
        node: NodeId(1),
        incarnation: Incarnation(2),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: small_limits(),
    };
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Host::new(config, disk, BTreeMap::from([(GroupId(9), group)]))
}

fn checkpoint(disk: &SimDisk, index: u64, term: u64, live: &[u64]) {
    // A membership in this crate's encoding: one voter, node 1, no learners.
    let membership = [1u8, 1, 0, 0, 0, 0, 0, 0, 0, 0].to_vec();
    let file = segment::Checkpoint {
        index,
        term,
        membership: membership.into(),
        live: slots::IndexSet::from_sorted(live.iter().copied()),
        state: b"state".to_vec().into(),
    };
    segment::write_checkpoint(disk, GroupId(9), &file).expect("checkpoint is written");
}

fn hard_state(term: u64, commit: u64) -> Option<HardState> {
    Some(HardState {
        term,
        vote: 1,
        commit,
    })
}

#[test]
fn gap_in_the_log_is_refused_with_group_and_index() {
    let disk = SimDisk::new();
    checkpoint(&disk, 10, 2, &[]);
    let with = |entries: Vec<Entry>, commit| RecoveredGroup {
        hard_state: hard_state(2, commit),
        entries,
        ..RecoveredGroup::default()
    };
    let missing = |index, commit| {
        Some(RecoveryError::Missing {
            group: GroupId(9),
            index,
            commit,
        })
    };
    let tail = || vec![entry(11, 2), entry(12, 2)];
    assert!(recover(&disk, with(tail(), 12)).is_ok());
    assert_eq!(recover(&disk, with(tail(), 13)).err(), missing(13, 13));
    assert_eq!(
        recover(&disk, with(vec![entry(12, 2)], 12)).err(),
        missing(11, 12)
    );
    let hole = vec![entry(11, 2), entry(13, 2)];
    assert_eq!(recover(&disk, with(hole, 11)).err(), missing(12, 11));
    assert_eq!(recover(&disk, with(Vec::new(), 11)).err(), missing(11, 11));
}

#[test]
fn missing_live_entry_is_refused_with_group_and_index() {
    let disk = SimDisk::new();
    checkpoint(&disk, 10, 2, &[4, 7]);
    let group = RecoveredGroup {
        hard_state: hard_state(2, 10),
        entries: vec![entry(7, 2), entry(8, 2), entry(9, 2), entry(10, 2)],
        ..RecoveredGroup::default()
    };
    let error = recover(&disk, group.clone()).err();
    assert_eq!(
        error,
        Some(RecoveryError::Missing {
            group: GroupId(9),
            index: 4,
            commit: 10
        })
    );
    segment::write_segments(&disk, GroupId(9), [entry(4, 1)]).expect("segment is written");
    let host = recover(&disk, group).expect("no entry is missing now");
    assert_eq!(
        host.read(GroupId(9), 4).as_deref(),
        Ok(b"command 4".as_slice())
    );
    assert_eq!(
        host.read(GroupId(9), 7).as_deref(),
        Ok(b"command 7".as_slice())
    );
}

#[test]
fn missing_checkpoint_is_refused() {
    let disk = SimDisk::new();
    let group = RecoveredGroup {
        hard_state: hard_state(2, 10),
        checkpointed: Some((10, 2)),
        ..RecoveredGroup::default()
    };
    assert_eq!(
        recover(&disk, group).err(),
        Some(RecoveryError::NoCheckpoint {
            group: GroupId(9),
            index: 10
        })
    );
}

/// A leader's checkpoint was installed over a different history, and power failed before the log recorded it.
#[test]
fn diverged_entries_below_an_installed_checkpoint_are_dropped() {
    let disk = SimDisk::new();
    checkpoint(&disk, 10, 5, &[]);
    let group = RecoveredGroup {
        hard_state: hard_state(3, 6),
        entries: (5..=14).map(|i| entry(i, 3)).collect(),
        ..RecoveredGroup::default()
    };
    let mut host = recover(&disk, group).expect("group recovers");
    let status = host.status(GroupId(9)).expect("group exists");
    assert_eq!((status.commit, status.last_index), (10, 10));
    assert_eq!(status.term, 5);
    let mut out = Vec::new();
    host.poll(&mut out);
    let is_recorded = out.iter().any(|o| {
        matches!(o, consensus::HostOutput::Append { records, .. } if records.iter().any(|r| {
            r.body == wal::RecordBody::Checkpointed { index: 10, term: 5 }
        }))
    });
    assert!(
        is_recorded,
        "the checkpoint must be recorded before anything else: {out:?}"
    );
}

#[test]
fn damaged_checkpoint_is_refused() {
    let disk = SimDisk::new();
    checkpoint(&disk, 10, 2, &[]);
    let (path, len) = disk.files().pop().expect("a checkpoint file");
    assert!(disk.flip(&path, len / 2, 1));
    let group = RecoveredGroup {
        hard_state: hard_state(2, 10),
        ..RecoveredGroup::default()
    };
    assert!(matches!(
        recover(&disk, group).err(),
        Some(RecoveryError::Files(_))
    ));
}
