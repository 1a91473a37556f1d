//! Storage jobs, checkpoints and segments, and the write-ahead log files that they free.

use super::Host;
use crate::entry::Position;
use crate::group::{FlushRequest, Group};
use crate::jobs::{self, JobOutcome};
use crate::snapshot::Checkpoint;
use crate::store::keep_set;
use crate::{GroupId, HostOutput, JobId, JobResult, StorageJob};
use bytes::Bytes;
use env::NodeId;
use segment::SegmentName;
use slots::IndexSet;
use std::sync::Arc;

/// The owner of a job: what its result belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobOwner {
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
    /// Files that nothing refers to.
    Cleanup {
        group: GroupId,
        garbage: UnneededFiles,
    },
    Deletion {
        group: GroupId,
    },
    WriteTombstone {
        group: GroupId,
        epoch: u64,
    },
    OutgoingCheckpoint {
        group: GroupId,
        to: NodeId,
        id: u64,
    },
    IncomingCheckpoint {
        group: GroupId,
        id: u64,
    },
}

/// Files that can be deleted at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnneededFiles {
    Segments(Vec<SegmentName>),
    /// The staging file of a received checkpoint.
    Staged,
    /// The tombstone of a removed group.
    Tombstone,
}

impl Host {
    pub(super) fn start_job(&mut self, owner: JobOwner, job: Box<dyn StorageJob>) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        self.jobs.insert(id, owner);
        self.sink.out.push(HostOutput::Job { id, job });
        id
    }

    pub(super) fn handle_job_done(&mut self, id: JobId, result: JobResult) {
        let Some(owner) = self.jobs.remove(&id) else {
            return;
        };
        let outcome = match result.map(|any| any.downcast::<JobOutcome>()) {
            Ok(Ok(outcome)) => *outcome,
            Ok(Err(_)) => {
                tracing::error!("a job of another kind was reported");
                return;
            }
            Err(error) => {
                // The driver stops the node, so this host does not handle the error.
                tracing::error!(%error, "storage job failed");
                return;
            }
        };
        if matches!(outcome, JobOutcome::Postponed) {
            self.counters.postponed_jobs += 1;
            if matches!(owner, JobOwner::Cleanup { .. } | JobOwner::Deletion { .. }) {
                // Some file systems need space to delete a file.
                return self.removals.push((self.retry_tick(), owner));
            }
        }
        match owner {
            JobOwner::Flush { group, epoch } => self.flush_done(group, epoch, outcome),
            JobOwner::Checkpoint { group, epoch } => self.checkpoint_done(group, epoch, outcome),
            JobOwner::Rewrite { group, epoch } => self.rewrite_done(group, epoch, outcome),
            JobOwner::Cleanup { .. } => {}
            JobOwner::Deletion { group } => self.deletion_done(group),
            JobOwner::WriteTombstone { group, epoch } => {
                self.handle_tombstone_written(group, epoch, outcome)
            }
            JobOwner::OutgoingCheckpoint { group, to, id } => {
                self.handle_outgoing_job(group, to, id, outcome)
            }
            JobOwner::IncomingCheckpoint { group, id } => {
                self.handle_incoming_job(group, id, outcome)
            }
        }
    }

    /// The tick at which a postponed job is retried.
    fn retry_tick(&self) -> u64 {
        self.ticks + u64::from(self.config.limits.flush_delay_ticks)
    }

    pub(super) fn delete_files(&mut self, group: GroupId) {
        let job = jobs::remove_group(group);
        self.start_job(JobOwner::Deletion { group }, job);
    }

    pub(super) fn clean_up(&mut self, group: GroupId, garbage: UnneededFiles) {
        let job = match &garbage {
            UnneededFiles::Segments(names) => jobs::remove_segments(group, names.clone()),
            // A new transfer may have begun since; its staging file must stay.
            UnneededFiles::Staged if self.incoming.contains_key(&group) => return,
            UnneededFiles::Staged => jobs::unstage(group),
            // The replica departed again, and its tombstone must stay.
            UnneededFiles::Tombstone if self.tombstones.contains_key(&group) => return,
            UnneededFiles::Tombstone => jobs::remove_tombstone(group),
        };
        self.start_job(JobOwner::Cleanup { group, garbage }, job);
    }

    /// Retries postponed jobs.
    pub(super) fn retry_postponed(&mut self) {
        let now = self.ticks;
        let due = self.removals.extract_if(.., |(at, _)| *at <= now);
        for (_, owner) in due.collect::<Vec<_>>() {
            match owner {
                JobOwner::Deletion { group } => self.delete_files(group),
                JobOwner::Cleanup { group, garbage } => self.clean_up(group, garbage),
                _ => {}
            }
        }
        let due: Vec<GroupId> = self
            .checkpoints
            .extract_if(.., |_, at| *at <= now)
            .map(|(id, _)| id)
            .collect();
        due.into_iter().for_each(|id| self.request_checkpoint(id));
    }

    fn request_checkpoint(&mut self, id: GroupId) {
        let group = self.groups.get_mut(&id);
        if let Some(group) = group.filter(|g| !g.is_checkpoint_in_progress()) {
            group.request_checkpoint(&mut self.sink);
        }
    }

    /// While the disk is short of space, asks all groups with new entries for a checkpoint, which frees
    /// entries that are no longer live.
    pub(super) fn reclaim(&mut self) {
        let every = u64::from(self.config.limits.short_checkpoint_ticks.max(1));
        if !self.disk_short || !self.ticks.is_multiple_of(every) {
            return;
        }
        let with_news = self.groups.values().filter(|g| g.has_new_entries());
        let mut ids: Vec<GroupId> = with_news.map(|g| g.id).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.request_checkpoint(id));
    }

    fn replica(&mut self, group: GroupId, epoch: u64) -> Option<&mut Group> {
        self.groups.get_mut(&group).filter(|g| g.epoch == epoch)
    }

    /// The log above this index must stay complete, for a member that is being sent a checkpoint.
    fn pin(&self, id: GroupId) -> Option<u64> {
        let from = (id, NodeId(0));
        self.outgoing
            .range(from..)
            .take_while(|((group, _), _)| *group == id)
            .map(|(_, t)| t.position.index)
            .min()
    }

    // Checkpoints.

    pub(super) fn accept_checkpoint(
        &mut self,
        id: GroupId,
        index: u64,
        state: Bytes,
        live: IndexSet,
    ) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        // Internal Raft entries after the owner's last command do not change its state, so the checkpoint
        // covers them too.
        let index = match index >= group.last_command {
            true => group.flushable().max(index),
            false => index,
        };
        let usable = !group.stopped
            && !group.installing
            && !group.is_checkpoint_in_progress()
            && index <= group.flushable()
            && index >= group.member_since
            && index > group.store().checkpoint().position.index;
        let Some(term) = group.store().term_of(index).filter(|_| usable) else {
            group.clear_checkpoint_request();
            return;
        };
        let live = live.up_to(index);
        let checkpoint = Checkpoint {
            position: Position { index, term },
            membership: group.membership.clone(),
            on_disk: true,
        };
        group.begin_checkpoint();
        group.checkpoint_waiting = Some(checkpoint.to_file(live, state));
        self.next_group_job(id);
    }

    /// Each group runs one job at a time: first its checkpoint, then its flush.
    fn next_group_job(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.job_running || group.stopped {
            return;
        }
        let epoch = group.epoch;
        if let Some(checkpoint) = group.checkpoint_waiting.take() {
            group.job_running = true;
            group.checkpointing = true;
            let job = jobs::checkpoint(id, checkpoint);
            self.start_job(JobOwner::Checkpoint { group: id, epoch }, job);
        } else if group.flush.is_some_and(|f| f.at_tick <= self.ticks) {
            self.start_flush(id);
        }
    }

    fn checkpoint_done(&mut self, id: GroupId, epoch: u64, outcome: JobOutcome) {
        let margin = self.config.limits.retain_entries;
        let pin = self.pin(id);
        let retry_at = self.retry_tick();
        let flush_at = retry_at + (retry_at - self.ticks);
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.job_running = false;
        group.checkpointing = false;
        if matches!(outcome, JobOutcome::Postponed) {
            if let Some(flush) = &mut group.flush {
                // The flush is much smaller after a checkpoint, so the owner gets time to supply one.
                flush.at_tick = flush_at;
            }
            self.checkpoints.insert(id, retry_at);
        } else if let JobOutcome::Checkpointed { checkpoint: file } = outcome {
            let Some(checkpoint) = Checkpoint::from_file(&file) else {
                return;
            };
            let newer = checkpoint.position.index > group.store().checkpoint().position.index;
            if newer {
                group.set_last_live_count(file.live.len());
                let store = group.raw.mut_store();
                store.advance_checkpoint(checkpoint, &file.live, margin, pin);
                let upto = group.flushable();
                if let Some(flush) = &mut group.flush {
                    // The flush was waiting for this checkpoint.
                    flush.at_tick = 0;
                    flush.upto = flush.upto.max(upto);
                }
                self.remove_unused_segments(id, &file.live, pin);
            }
        }
        self.update_memory(id);
        self.next_group_job(id);
    }

    /// Deletes or rewrites segments of which the newest checkpoint needs nothing or less than half.
    fn remove_unused_segments(&mut self, id: GroupId, live: &IndexSet, pin: Option<u64>) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if pin.is_some() {
            // A transfer reads them; the next checkpoint will remove them.
            return;
        }
        let epoch = group.epoch;
        let store = group.raw.mut_store();
        let keep = keep_set(live, store.compacted().index);
        let garbage = store.segments().garbage(&keep);
        store.segments_mut().remove(&garbage.dead);
        let mut unused = garbage.dead;
        unused.append(&mut group.replaced_segments);
        if !garbage.sparse.is_empty() {
            group.job_running = true;
            let job = jobs::rewrite(Arc::clone(&self.disk), id, garbage.sparse, keep);
            self.start_job(JobOwner::Rewrite { group: id, epoch }, job);
        }
        if !unused.is_empty() {
            self.clean_up(id, UnneededFiles::Segments(unused));
        }
    }

    fn rewrite_done(&mut self, id: GroupId, epoch: u64, outcome: JobOutcome) {
        let pin = self.pin(id);
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.job_running = false;
        if let JobOutcome::Rewritten { old, segments } = outcome {
            let all = group.raw.mut_store().segments_mut();
            all.remove(&old);
            all.add(segments);
            if pin.is_some() {
                group.replaced_segments.extend(old);
            } else {
                self.clean_up(id, UnneededFiles::Segments(old));
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
        let upto = wanted.upto.min(group.flushable());
        let founding = Some(group.store().checkpoint())
            .filter(|c| !c.on_disk && c.position.index > 0)
            .map(|c| c.to_file(IndexSet::default(), Bytes::new()));
        let epoch = group.epoch;
        let plan = group.raw.mut_store().plan_flush(upto, pin);
        group.job_running = true;
        let job = jobs::flush(disk, id, plan, founding);
        self.start_job(JobOwner::Flush { group: id, epoch }, job);
    }

    fn flush_done(&mut self, id: GroupId, epoch: u64, outcome: JobOutcome) {
        let retry_at = self.retry_tick();
        let Some(group) = self.replica(id, epoch) else {
            return;
        };
        group.job_running = false;
        match outcome {
            JobOutcome::Flushed {
                upto,
                segments,
                founded,
            } => {
                let store = group.raw.mut_store();
                store.segments_mut().add(segments);
                store.mark_flushed(upto);
                if founded {
                    store.mark_founding_on_disk();
                }
                store.segments().release();
                if group.flush.is_some_and(|f| f.upto <= upto) {
                    group.flush = None;
                    self.flushes.remove(&id);
                }
                self.rolls.mark_flushed(id, upto);
            }
            _ => {
                if let Some(flush) = &mut group.flush {
                    flush.at_tick = retry_at;
                }
            }
        }
        self.update_memory(id);
        self.mark_dirty(id);
        self.next_group_job(id);
    }

    /// Starts flushes that waited long enough for a checkpoint.
    pub(super) fn start_due_flushes(&mut self) {
        let due: Vec<GroupId> = self.flushes.iter().copied().collect();
        for id in due {
            self.next_group_job(id);
        }
    }

    pub(super) fn request_flush(&mut self, id: GroupId, upto: u64, at_tick: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let wanted = group.flush.get_or_insert(FlushRequest { upto, at_tick });
        wanted.upto = wanted.upto.max(upto);
        wanted.at_tick = wanted.at_tick.min(at_tick);
        self.flushes.insert(id);
    }

    /// Above half of the memory limit, flushes the largest log, one group at a time.
    pub(super) fn relieve_memory(&mut self) {
        if self.memory < self.config.limits.max_memory_bytes / 2 {
            return;
        }
        let flushing = |j: &JobOwner| matches!(j, JobOwner::Flush { .. });
        if self.jobs.values().any(flushing) {
            return;
        }
        let flushable =
            |g: &&Group| !g.job_running && !g.stopped && g.store().needs_flush(g.flushable());
        let largest = self
            .groups
            .values()
            .filter(flushable)
            .max_by_key(|g| (g.store().mem_bytes(), g.id));
        if let Some((id, upto)) = largest.map(|g| (g.id, g.flushable())) {
            self.request_flush(id, upto, 0);
            self.next_group_job(id);
        }
    }

    fn deletion_done(&mut self, id: GroupId) {
        self.rolls.mark_deleted(id);
        if let Some(Some(membership)) = self.deleting.remove(&id) {
            self.start_replica(id, &membership);
        }
    }
}
