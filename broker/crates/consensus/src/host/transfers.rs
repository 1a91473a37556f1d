//! Checkpoint transfers between hosts.

use super::Host;
use super::disk::{JobOwner, UnneededFiles};
use crate::codec::{Offer, Transfer};
use crate::entry;
use crate::jobs::{self, JobOutcome};
use crate::snapshot::{
    Checkpoint, CheckpointPart, EntrySources, IncomingCheckpoint, OutgoingCheckpoint, StagingResult,
};
use crate::{GroupId, ReadError};
use bytes::Bytes;
use env::NodeId;
use segment::Segment;
use std::sync::Arc;

/// Ticks without progress after which unacknowledged messages are sent again.
const RESEND_TICKS: u32 = 10;

impl Host {
    // Sending.

    /// raft-rs found that a member needs entries that the log no longer has.
    pub(super) fn begin_transfer(&mut self, id: GroupId, to: NodeId) {
        let term = self.groups.get(&id).map(|g| g.term());
        if let Some(current) = self.outgoing.get(&(id, to)) {
            if Some(current.term) == term {
                return;
            }
            // It began in an earlier term of this leader. raft-rs waits for the result of a transfer of this
            // term, and would ignore the end of that one.
            self.abort_outgoing(id, to);
        }
        let full = self.outgoing.len() >= self.config.limits.max_transfers;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if full {
            group.report_transfer(to, false);
            return;
        }
        let store = group.store();
        let checkpoint = store.checkpoint().clone();
        let sources = EntrySources::new(store.checkpoint_entries_in_memory(), store.segments());
        self.next_transfer += 1;
        let mut transfer = OutgoingCheckpoint::new(
            self.next_transfer,
            group.term(),
            checkpoint.position,
            sources,
        );
        if checkpoint.on_disk {
            let job = jobs::read(id, crate::snapshot::open(id, checkpoint.position.index));
            let owner = JobOwner::OutgoingCheckpoint {
                group: id,
                to,
                id: transfer.id,
            };
            transfer.job = Some(self.start_job(owner, job));
        } else {
            let begin = transfer.begin_empty(entry::encode_membership(&checkpoint.membership));
            self.sink.send_transfer(to, id, &begin);
        }
        self.outgoing.insert((id, to), transfer);
        self.pump(id, to);
    }

    pub(super) fn handle_outgoing_job(
        &mut self,
        id: GroupId,
        to: NodeId,
        number: u64,
        outcome: JobOutcome,
    ) {
        let transfer = self.outgoing.get_mut(&(id, to));
        let Some(transfer) = transfer.filter(|t| t.id == number) else {
            return;
        };
        transfer.job = None;
        match outcome {
            JobOutcome::Read(CheckpointPart::Opened(checkpoint)) => {
                let begin = transfer.begin(checkpoint);
                self.sink.send_transfer(to, id, &begin);
            }
            JobOutcome::Read(CheckpointPart::Entries { data, upto }) => {
                transfer.push_entries(&data, upto)
            }
            JobOutcome::Read(CheckpointPart::Missing(index)) => {
                self.end_outgoing(id, to, false);
                if let Some(group) = self.groups.get_mut(&id) {
                    let what = format!("live entry {index} is missing");
                    group.stop(ReadError::Corrupt { group: id, what }, &mut self.sink);
                }
                return;
            }
            _ => return self.abort_outgoing(id, to),
        }
        self.pump(id, to);
    }

    /// Sends the chunks that fit in the window and starts the next read.
    fn pump(&mut self, id: GroupId, to: NodeId) {
        let limits = &self.config.limits;
        let (chunk, window) = (limits.transfer_chunk_bytes, limits.transfer_window);
        let Some(transfer) = self.outgoing.get_mut(&(id, to)) else {
            return;
        };
        while let Some(message) = transfer.next_chunk(chunk, window) {
            self.sink.send_transfer(to, id, &message);
        }
        if let Some(run) = transfer.next_read(chunk) {
            let owner = JobOwner::OutgoingCheckpoint {
                group: id,
                to,
                id: transfer.id,
            };
            let job = self.start_job(owner, jobs::read(id, run));
            if let Some(transfer) = self.outgoing.get_mut(&(id, to)) {
                transfer.job = Some(job);
            }
        }
    }

    fn end_outgoing(&mut self, id: GroupId, to: NodeId, done: bool) {
        let Some(transfer) = self.outgoing.remove(&(id, to)) else {
            return;
        };
        if !done {
            self.counters.failed_transfers += 1;
        }
        if let Some(group) = self.groups.get_mut(&id) {
            if group.is_leader() && group.term() == transfer.term {
                group.report_transfer(to, done);
            }
            self.mark_dirty(id);
        }
    }

    fn abort_outgoing(&mut self, id: GroupId, to: NodeId) {
        if let Some(transfer) = self.outgoing.get(&(id, to)) {
            let abort = Transfer::Abort { id: transfer.id };
            self.sink.send_transfer(to, id, &abort);
            self.end_outgoing(id, to, false);
        }
    }

    // Receiving.

    pub(super) fn transfer_message(&mut self, from: NodeId, id: GroupId, message: Transfer) {
        match message {
            Transfer::Begin(offer) => self.handle_offer(from, id, offer),
            Transfer::Chunk {
                id: number,
                number: chunk,
                last,
                data,
            } => self.handle_chunk(from, id, number, (chunk, last, data)),
            Transfer::Ack { id: number, next } => {
                let transfer = self.outgoing.get_mut(&(id, from));
                if let Some(transfer) = transfer.filter(|t| t.id == number) {
                    transfer.acknowledge(next);
                    self.pump(id, from);
                }
            }
            Transfer::Done { id: number } | Transfer::Abort { id: number } => {
                let done = matches!(message, Transfer::Done { .. });
                let ours = self.outgoing.get(&(id, from));
                if ours.is_some_and(|t| t.id == number) {
                    self.end_outgoing(id, from, done);
                }
                let theirs = self.incoming.get(&id);
                if !done && theirs.is_some_and(|t| t.id == number && t.from == from) {
                    self.drop_incoming(id);
                }
            }
        }
    }

    fn reply(&mut self, to: NodeId, id: GroupId, message: Transfer) {
        self.sink.send_transfer(to, id, &message);
    }

    fn handle_offer(&mut self, from: NodeId, id: GroupId, offer: Offer) {
        let number = offer.id;
        if let Some(current) = self.incoming.get(&id) {
            if current.id == number && current.from == from {
                let next = current.staged_chunks();
                return self.reply(from, id, Transfer::Ack { id: number, next });
            }
            if current.term > offer.term {
                return self.reply(from, id, Transfer::Abort { id: number });
            }
            self.drop_incoming(id);
        }
        let full = self.incoming.len() >= self.config.limits.max_transfers;
        let max_state = self.config.limits.max_state_bytes;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(incoming) = IncomingCheckpoint::new(from, offer, max_state) else {
            return self.reply(from, id, Transfer::Abort { id: number });
        };
        let checkpoint = &incoming.contents.checkpoint;
        if group.already_covers(from, incoming.term, checkpoint, &mut self.rng) {
            self.mark_dirty(id);
            return self.reply(from, id, Transfer::Done { id: number });
        }
        let acceptable = !full
            && !group.is_leader()
            && !group.installing
            && !group.stopped
            && incoming.term >= group.term()
            && checkpoint.position.index > group.raw.raft.raft_log.committed;
        if acceptable {
            self.incoming.insert(id, incoming);
            self.wake(id);
        } else {
            self.reply(from, id, Transfer::Abort { id: number });
        }
    }

    fn handle_chunk(&mut self, from: NodeId, id: GroupId, number: u64, chunk: (u32, bool, Bytes)) {
        let window = self.config.limits.transfer_window;
        let incoming = self.incoming.get_mut(&id);
        let Some(incoming) = incoming.filter(|t| t.id == number && t.from == from) else {
            return self.reply(from, id, Transfer::Abort { id: number });
        };
        let (n, last, data) = chunk;
        if incoming.accept_chunk(n, last, data, window) {
            self.stage_next_chunk(id);
        } else {
            let next = incoming.staged_chunks();
            self.reply(from, id, Transfer::Ack { id: number, next });
        }
    }

    fn stage_next_chunk(&mut self, id: GroupId) {
        let Some(incoming) = self.incoming.get_mut(&id) else {
            return;
        };
        let Some((offset, data)) = incoming.next_to_stage() else {
            return;
        };
        let owner = JobOwner::IncomingCheckpoint {
            group: id,
            id: incoming.id,
        };
        let job = self.start_job(owner, jobs::stage(id, offset, data));
        if let Some(incoming) = self.incoming.get_mut(&id) {
            incoming.job = Some(job);
        }
    }

    pub(super) fn handle_incoming_job(&mut self, id: GroupId, number: u64, outcome: JobOutcome) {
        let incoming = self.incoming.get_mut(&id).filter(|t| t.id == number);
        let Some(incoming) = incoming else {
            if let JobOutcome::Installed { segments, .. } = outcome {
                self.keep_orphaned_segments(id, segments);
            }
            return;
        };
        incoming.job = None;
        let (from, contents) = (incoming.from, incoming.contents.clone());
        match outcome {
            JobOutcome::Staged => match incoming.finish_staging() {
                Some(StagingResult::Ack(next)) => {
                    self.reply(from, id, Transfer::Ack { id: number, next });
                    self.stage_next_chunk(id);
                }
                Some(StagingResult::Complete { bytes }) => {
                    let disk = Arc::clone(&self.disk);
                    let owner = JobOwner::IncomingCheckpoint {
                        group: id,
                        id: number,
                    };
                    let job = self.start_job(owner, jobs::install(disk, id, contents, bytes));
                    if let Some(incoming) = self.incoming.get_mut(&id) {
                        incoming.job = Some(job);
                    }
                }
                None => {}
            },
            JobOutcome::Installed {
                checkpoint,
                segments,
            } => self.finish_install(id, checkpoint, segments),
            JobOutcome::Refused(what) => {
                tracing::warn!(group = id.0, from = from.0, what, "checkpoint refused");
                self.fail_incoming(id);
            }
            _ => self.fail_incoming(id),
        }
    }

    /// The files of a received checkpoint are durable: the group continues from it, unless its log has
    /// advanced beyond it.
    fn finish_install(
        &mut self,
        id: GroupId,
        file: segment::Checkpoint,
        segments: Vec<Arc<Segment>>,
    ) {
        let Some(incoming) = self.incoming.remove(&id) else {
            return;
        };
        let (Some(group), Some(checkpoint)) =
            (self.groups.get_mut(&id), Checkpoint::from_file(&file))
        else {
            return self.keep_orphaned_segments(id, segments);
        };
        let store = group.raw.mut_store();
        store.segments_mut().add(segments);
        group.offer_checkpoint(
            incoming.from,
            incoming.term,
            checkpoint.clone(),
            file.state,
            &mut self.rng,
        );
        let replaced = group.raw.snap().is_some();
        if replaced {
            group.set_last_live_count(file.live.len());
            self.rolls.forget_group(id);
            self.flushes.remove(&id);
        } else {
            let committed = group.raw.raft.raft_log.committed;
            group
                .raw
                .mut_store()
                .adopt_checkpoint(checkpoint, committed);
        }
        self.reply(incoming.from, id, Transfer::Done { id: incoming.id });
        self.wake(id);
        self.mark_dirty(id);
    }

    /// The transfer was dropped while its last job ran. Its files are valid, so they are kept.
    fn keep_orphaned_segments(&mut self, id: GroupId, segments: Vec<Arc<Segment>>) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.raw.mut_store().segments_mut().add(segments);
        }
    }

    fn drop_incoming(&mut self, id: GroupId) {
        if self.incoming.remove(&id).is_some() {
            self.counters.failed_transfers += 1;
            self.clean_up(id, UnneededFiles::Staged);
        }
    }

    fn fail_incoming(&mut self, id: GroupId) {
        if let Some(incoming) = self.incoming.get(&id) {
            let (to, number) = (incoming.from, incoming.id);
            self.reply(to, id, Transfer::Abort { id: number });
            self.drop_incoming(id);
        }
    }

    // Time and peers.

    pub(super) fn tick_transfers(&mut self) {
        let limit = self.config.limits.transfer_timeout_ticks;
        let keys: Vec<(GroupId, NodeId)> = self.outgoing.keys().copied().collect();
        for (id, to) in keys {
            let leads = self
                .groups
                .get(&id)
                .filter(|g| g.is_leader())
                .map(|g| g.term());
            let Some(transfer) = self.outgoing.get_mut(&(id, to)) else {
                continue;
            };
            transfer.idle_ticks += 1;
            if transfer.idle_ticks >= limit || leads != Some(transfer.term) {
                self.abort_outgoing(id, to);
            } else if transfer.idle_ticks.is_multiple_of(RESEND_TICKS) {
                for message in transfer.resend() {
                    self.sink.send_transfer(to, id, &message);
                }
            }
        }
        let overdue: Vec<GroupId> = self
            .incoming
            .iter_mut()
            .filter_map(|(id, t)| {
                t.idle_ticks += 1;
                (t.idle_ticks >= limit && t.job.is_none()).then_some(*id)
            })
            .collect();
        overdue.into_iter().for_each(|id| self.fail_incoming(id));
    }

    pub(super) fn abort_transfers_with(&mut self, node: NodeId) {
        let keys: Vec<(GroupId, NodeId)> = self.outgoing.keys().copied().collect();
        for (id, to) in keys.into_iter().filter(|(_, to)| *to == node) {
            self.end_outgoing(id, to, false);
        }
        let affected = self.incoming.iter().filter(|(_, t)| t.from == node);
        let affected: Vec<GroupId> = affected.map(|(id, _)| *id).collect();
        affected.into_iter().for_each(|id| self.drop_incoming(id));
    }
}
