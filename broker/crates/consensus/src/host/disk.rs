//! Jobs, checkpoints, segments, and what they free of the write-ahead log.

use super::Host;
use crate::entry::Position;
use crate::group::{FlushWanted, Group};
use crate::jobs::{self, Outcome};
use crate::snapshot::Checkpoint;
use crate::store::keep_set;
use crate::{GroupId, HostOutput, JobId, JobResult, StorageJob};
use bytes::Bytes;
use env::NodeId;
use segment::{LiveSet, SegmentName};
use std::sync::Arc;

/// Whom a job is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobFor {
    Flush {
        group: GroupId,
        epoch: u64,
    },
    Checkpoint {
        group: GroupId,
        epoch: u64,
    },
    Rewrite {
        group: GroupId,
        epoch: u64,
    },
    /// Files that nobody refers to.
    Cleanup {
        group: GroupId,
        garbage: Garbage,
    },
    Deletion {
        group: GroupId,
    },
    Burial {
        group: GroupId,
        epoch: u64,
    },
    Outgoing {
        group: GroupId,
        to: NodeId,
        id: u64,
    },
    Incoming {
        group: GroupId,
        id: u64,
    },
}

/// What can go without anybody waiting for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Garbage {
    Segments(Vec<SegmentName>),
    /// What was received of a checkpoint.
    Staged,
    /// Of a group that is no more.
    Tombstone,
}

impl Host {
    pub(super) fn start_job(&mut self, whose: JobFor, job: Box<dyn StorageJob>) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, whose);
        self.sink.out.push(HostOutput::Job { id, job });
        id
    }

    pub(super) fn finished(&mut self, id: JobId, result: JobResult) {
        let Some(whose) = self.jobs.remove(&id) else {
            return;
        };
        let outcome = match result.map(|any| any.downcast::<Outcome>()) {
            Ok(Ok(outcome)) => *outcome,
            Ok(Err(_)) => {
                tracing::error!("a job of another kind was reported");
                return;
            }
            Err(error) => {
                // The driver stops the node; what this host would do with the rest does not matter.
                tracing::error!(%error, "storage job failed");
                return;
            }
        };
        if matches!(outcome, Outcome::Postponed) {
            self.counters.postponed_jobs += 1;
            if matches!(whose, JobFor::Cleanup { .. } | JobFor::Deletion { .. }) {
                // Some file systems need space to give space.
                return self.removals.push((self.later(), whose));
            }
        }
        match whose {
            JobFor::Flush { group, epoch } => self.flush_done(group, epoch, outcome),
            JobFor::Checkpoint { group, epoch } => self.checkpoint_done(group, epoch, outcome),
            JobFor::Rewrite { group, epoch } => self.rewrite_done(group, epoch, outcome),
            JobFor::Cleanup { .. } => {}
            JobFor::Deletion { group } => self.deletion_done(group),
            JobFor::Burial { group, epoch } => self.buried(group, epoch, outcome),
            JobFor::Outgoing { group, to, id } => self.outgoing_read(group, to, id, outcome),
            JobFor::Incoming { group, id } => self.incoming_staged(group, id, outcome),
        }
    }

    /// When a postponed job is tried again, in ticks.
    fn later(&self) -> u64 {
        self.ticks + u64::from(self.config.limits.flush_delay_ticks)
    }

    pub(super) fn delete_files(&mut self, group: GroupId) {
        let job = jobs::remove_group(group);
        self.start_job(JobFor::Deletion { group }, job);
    }

    pub(super) fn clean_up(&mut self, group: GroupId, garbage: Garbage) {
        let job = match &garbage {
            Garbage::Segments(names) => jobs::remove_segments(group, names.clone()),
            // A new transfer may have begun since; a file that it needs is not for this to remove.
            Garbage::Staged if self.incoming.contains_key(&group) => return,
            Garbage::Staged => jobs::unstage(group),
            // The group is there again: not for this to remove.
            Garbage::Tombstone if self.tombstones.contains_key(&group) => return,
            Garbage::Tombstone => jobs::remove_tombstone(group),
        };
        self.start_job(JobFor::Cleanup { group, garbage }, job);
    }

    /// Tries postponed jobs again.
    pub(super) fn retry_postponed(&mut self) {
        let now = self.ticks;
        let due = self.removals.extract_if(.., |(at, _)| *at <= now);
        for (_, whose) in due.collect::<Vec<_>>() {
            match whose {
                JobFor::Deletion { group } => self.delete_files(group),
                JobFor::Cleanup { group, garbage } => self.clean_up(group, garbage),
                _ => {}
            }
        }
        let due: Vec<GroupId> = self
            .checkpoints
            .extract_if(.., |_, at| *at <= now)
            .map(|(id, _)| id)
            .collect();
        due.into_iter().for_each(|id| self.ask_for_checkpoint(id));
    }

    fn ask_for_checkpoint(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id);
        if let Some(group) = group.filter(|g| !g.checkpoint_under_way()) {
            group.tell_due(&mut self.sink);
        }
    }

    /// While the disk is short of space: checkpoints of all groups that have anything new, for what they let go.
    pub(super) fn reclaim(&mut self) {
        let every = u64::from(self.config.limits.short_checkpoint_ticks.max(1));
        if !self.short || !self.ticks.is_multiple_of(every) {
            return;
        }
        let news = self.groups.values().filter(|g| g.has_news());
        let mut ids: Vec<GroupId> = news.map(|g| g.id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.ask_for_checkpoint(id));
    }

    fn replica(&mut self, group: GroupId, epoch: u64) -> Option<&mut Group> {
        self.groups.get_mut(&group).filter(|g| g.epoch == epoch)
    }

    /// The log above this must stay complete, for a member that is being sent a checkpoint.
    fn pin(&self, id: GroupId) -> Option<u64> {
        let from = (id, NodeId(0));
        self.outgoing
            .range(from..)
            .take_while(|((group, _), _)| *group == id)
            .map(|(_, t)| t.position.index)
            .min()
    }

    // Checkpoints.

    pub(super) fn take_checkpoint(
        &mut self,
        id: GroupId,
        index: u64,
        state: Bytes,
        live: Vec<u64>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        // Raft's own entries behind the owner's last one change nothing for it.
        let index = match index >= group.last_command {
            true => group.movable().max(index),
            false => index,
        };
        let usable = !group.stopped
            && !group.installing
            && !group.checkpoint_under_way()
            && index <= group.movable()
            && index >= group.member_since
            && index > group.store().checkpoint().position.index;
        let Some(term) = group.store().term_of(index).filter(|_| usable) else {
            group.checkpoint_refused();
            return;
        };
        let live = LiveSet::from_sorted(live.into_iter().filter(|i| *i <= index));
        let checkpoint = Checkpoint {
            position: Position { index, term },
            membership: group.membership.clone(),
            on_disk: true,
        };
        group.checkpoint_begins();
        group.checkpoint_waiting = Some(checkpoint.to_file(live, state));
        self.next_group_job(id);
    }

    /// One job of a group is on the disk at a time: first its checkpoint, then its flush.
    fn next_group_job(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.busy || group.stopped {
            return;
        }
        let epoch = group.epoch;
        if let Some(checkpoint) = group.checkpoint_waiting.take() {
            group.busy = true;
            group.checkpointing = true;
            let job = jobs::checkpoint(id, checkpoint);
            self.start_job(JobFor::Checkpoint { group: id, epoch }, job);
        } else if group.flush.is_some_and(|f| f.at_tick <= self.ticks) {
            self.start_flush(id);
        }
    }

    fn checkpoint_done(&mut self, id: GroupId, epoch: u64, outcome: Outcome) {
        let margin = self.config.limits.retain_entries;
        let pin = self.pin(id);
        let later = self.later();
        let after_that = later + (later - self.ticks);
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.busy = false;
        group.checkpointing = false;
        if matches!(outcome, Outcome::Postponed) {
            if let Some(flush) = &mut group.flush {
                // It is much smaller with the checkpoint, for which the owner gets its time again.
                flush.at_tick = after_that;
            }
            self.checkpoints.insert(id, later);
        } else if let Outcome::Checkpointed { checkpoint: file } = outcome {
            let Some(checkpoint) = Checkpoint::from_file(&file) else {
                return;
            };
            let newer = checkpoint.position.index > group.store().checkpoint().position.index;
            if newer {
                group.checkpoint_ends(file.live.len());
                let store = group.raw.mut_store();
                store.checkpointed(checkpoint, &file.live, margin, pin);
                let upto = group.movable();
                if let Some(flush) = &mut group.flush {
                    // What it was waiting for.
                    flush.at_tick = 0;
                    flush.upto = flush.upto.max(upto);
                }
                self.clean(id, &file.live, pin);
            }
        }
        self.recount(id);
        self.next_group_job(id);
    }

    /// Segments that the newest checkpoint has no use for.
    fn clean(&mut self, id: GroupId, live: &LiveSet, pin: Option<u64>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if pin.is_some() {
            // A transfer reads them; the next checkpoint comes by again.
            return;
        }
        let epoch = group.epoch;
        let store = group.raw.mut_store();
        let keep = keep_set(live, store.compacted().index);
        let garbage = store.segments().garbage(&keep);
        store.segments_mut().remove(&garbage.dead);
        let mut dead = garbage.dead;
        dead.append(&mut group.doomed);
        if !garbage.sparse.is_empty() {
            group.busy = true;
            let job = jobs::rewrite(Arc::clone(&self.disk), id, garbage.sparse, keep);
            self.start_job(JobFor::Rewrite { group: id, epoch }, job);
        }
        if !dead.is_empty() {
            self.clean_up(id, Garbage::Segments(dead));
        }
    }

    fn rewrite_done(&mut self, id: GroupId, epoch: u64, outcome: Outcome) {
        let pin = self.pin(id);
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.busy = false;
        if let Outcome::Rewritten { old, segments } = outcome {
            let all = group.raw.mut_store().segments_mut();
            all.remove(&old);
            all.add(segments);
            if pin.is_some() {
                group.doomed.extend(old);
            } else {
                self.clean_up(id, Garbage::Segments(old));
            }
        }
        self.next_group_job(id);
    }

    // Flushes.

    fn start_flush(&mut self, id: GroupId) {
        let pin = self.pin(id);
        let disk = Arc::clone(&self.disk);
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(wanted) = group.flush else {
            return;
        };
        let upto = wanted.upto.min(group.movable());
        let founding = Some(group.store().checkpoint())
            .filter(|c| !c.on_disk && c.position.index > 0)
            .map(|c| c.to_file(LiveSet::default(), Bytes::new()));
        let epoch = group.epoch;
        let plan = group.raw.mut_store().plan_flush(upto, pin);
        group.busy = true;
        let job = jobs::flush(disk, id, plan, founding);
        self.start_job(JobFor::Flush { group: id, epoch }, job);
    }

    fn flush_done(&mut self, id: GroupId, epoch: u64, outcome: Outcome) {
        let later = self.later();
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.busy = false;
        match outcome {
            Outcome::Flushed {
                upto,
                segments,
                founded,
            } => {
                let store = group.raw.mut_store();
                store.segments_mut().add(segments);
                store.flushed(upto);
                if founded {
                    store.founding_is_on_disk();
                }
                store.segments().release();
                if group.flush.is_some_and(|f| f.upto <= upto) {
                    group.flush = None;
                    self.flushes.remove(&id);
                }
                self.rolls.flushed(id, upto);
            }
            _ => {
                if let Some(flush) = &mut group.flush {
                    flush.at_tick = later;
                }
            }
        }
        self.recount(id);
        self.touch(id);
        self.next_group_job(id);
    }

    /// Flushes whose owners took too long for a checkpoint.
    pub(super) fn flush_late(&mut self) {
        let due: Vec<GroupId> = self.flushes.iter().copied().collect();
        for id in due {
            self.next_group_job(id);
        }
    }

    pub(super) fn want_flush(&mut self, id: GroupId, upto: u64, at_tick: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let wanted = group.flush.get_or_insert(FlushWanted { upto, at_tick });
        wanted.upto = wanted.upto.max(upto);
        wanted.at_tick = wanted.at_tick.min(at_tick);
        self.flushes.insert(id);
    }

    /// Over half of the memory limit the largest log goes to the disk, one at a time.
    pub(super) fn relieve_memory(&mut self) {
        if self.memory < self.config.limits.max_memory_bytes / 2 {
            return;
        }
        let movable = |g: &&Group| !g.busy && !g.stopped && g.store().needs_flush(g.movable());
        let flushing = self
            .jobs
            .values()
            .any(|j| matches!(j, JobFor::Flush { .. }));
        let largest = self
            .groups
            .values()
            .filter(movable)
            .max_by_key(|g| (g.store().mem_bytes(), g.id));
        if let Some((id, upto)) = largest.filter(|_| !flushing).map(|g| (g.id, g.movable())) {
            self.want_flush(id, upto, 0);
            self.next_group_job(id);
        }
    }

    fn deletion_done(&mut self, id: GroupId) {
        self.rolls.deleted(id);
        if let Some(Some(membership)) = self.deleting.remove(&id) {
            self.start_replica(id, &membership);
        }
    }
}
