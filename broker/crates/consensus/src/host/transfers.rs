//! Checkpoints on their way between hosts.

use super::Host;
use super::disk::{Garbage, JobFor};
use crate::codec::{Offer, Transfer};
use crate::entry;
use crate::jobs::{self, Outcome};
use crate::snapshot::{Checkpoint, Incoming, Outgoing, Read, Sources, Staged};
use crate::{GroupId, ReadError};
use bytes::Bytes;
use env::NodeId;
use segment::Segment;
use std::sync::Arc;

/// How often what may be lost is sent again.
const RESEND_TICKS: u32 = 10;

impl Host {
    // Sending.

    /// raft-rs found that a member needs more than the log has.
    pub(super) fn begin_transfer(&mut self, id: GroupId, to: NodeId) {
        let term = self.groups.get(&id).map(|g| g.term());
        if let Some(current) = self.outgoing.get(&(id, to)) {
            if Some(current.term) == term {
                return;
            }
            // It began when this node led in an earlier term: raft-rs, which waits for one of this term, would not hear of its end.
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
        let sources = Sources::new(store.memory_of_checkpoint(), store.segments());
        self.next_transfer += 1;
        let mut transfer = Outgoing::new(
            self.next_transfer,
            group.term(),
            checkpoint.position,
            sources,
        );
        if checkpoint.on_disk {
            let job = jobs::read(id, crate::snapshot::open(id, checkpoint.position.index));
            let whose = JobFor::Outgoing {
                group: id,
                to,
                id: transfer.id,
            };
            transfer.job = Some(self.start_job(whose, job));
        } else {
            let begin = transfer.open_empty(entry::encode_membership(&checkpoint.membership));
            self.sink.send_transfer(to, id, &begin);
        }
        self.outgoing.insert((id, to), transfer);
        self.pump(id, to);
    }

    pub(super) fn outgoing_read(&mut self, id: GroupId, to: NodeId, number: u64, outcome: Outcome) {
        let transfer = self.outgoing.get_mut(&(id, to));
        let Some(transfer) = transfer.filter(|t| t.id == number) else {
            return;
        };
        transfer.job = None;
        match outcome {
            Outcome::Read(Read::Opened(checkpoint)) => {
                let begin = transfer.opened(checkpoint);
                self.sink.send_transfer(to, id, &begin);
            }
            Outcome::Read(Read::Entries { data, upto }) => transfer.entries_read(&data, upto),
            Outcome::Read(Read::Missing(index)) => {
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

    /// Sends what the window lets through and reads more.
    fn pump(&mut self, id: GroupId, to: NodeId) {
        let limits = &self.config.limits;
        let (chunk, window) = (limits.transfer_chunk_bytes, limits.transfer_window);
        let Some(transfer) = self.outgoing.get_mut(&(id, to)) else {
            return;
        };
        while let Some(message) = transfer.next_chunk(chunk, window) {
            self.sink.send_transfer(to, id, &message);
        }
        if let Some(run) = transfer.read_more(chunk) {
            let whose = JobFor::Outgoing {
                group: id,
                to,
                id: transfer.id,
            };
            let job = self.start_job(whose, jobs::read(id, run));
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
            self.touch(id);
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
            Transfer::Begin(offer) => self.offered(from, id, offer),
            Transfer::Chunk {
                id: number,
                number: chunk,
                last,
                data,
            } => self.chunk(from, id, number, (chunk, last, data)),
            Transfer::Ack { id: number, next } => {
                let transfer = self.outgoing.get_mut(&(id, from));
                if let Some(transfer) = transfer.filter(|t| t.id == number) {
                    transfer.acknowledged(next);
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

    fn answer(&mut self, to: NodeId, id: GroupId, message: Transfer) {
        self.sink.send_transfer(to, id, &message);
    }

    fn offered(&mut self, from: NodeId, id: GroupId, offer: Offer) {
        let number = offer.id;
        if let Some(current) = self.incoming.get(&id) {
            if current.id == number && current.from == from {
                let next = current.acknowledged();
                return self.answer(from, id, Transfer::Ack { id: number, next });
            }
            if current.term > offer.term {
                return self.answer(from, id, Transfer::Abort { id: number });
            }
            self.drop_incoming(id);
        }
        let full = self.incoming.len() >= self.config.limits.max_transfers;
        let max_state = self.config.limits.max_state_bytes;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(incoming) = Incoming::new(from, offer, max_state) else {
            return self.answer(from, id, Transfer::Abort { id: number });
        };
        let checkpoint = &incoming.contents.checkpoint;
        if group.has_all_of(from, incoming.term, checkpoint, &mut self.rng) {
            self.touch(id);
            return self.answer(from, id, Transfer::Done { id: number });
        }
        let useful = !full
            && !group.is_leader()
            && !group.installing
            && !group.stopped
            && incoming.term >= group.term()
            && checkpoint.position.index > group.raw.raft.raft_log.committed;
        if useful {
            self.incoming.insert(id, incoming);
            self.wake(id);
        } else {
            self.answer(from, id, Transfer::Abort { id: number });
        }
    }

    fn chunk(&mut self, from: NodeId, id: GroupId, number: u64, chunk: (u32, bool, Bytes)) {
        let window = self.config.limits.transfer_window;
        let incoming = self.incoming.get_mut(&id);
        let Some(incoming) = incoming.filter(|t| t.id == number && t.from == from) else {
            return self.answer(from, id, Transfer::Abort { id: number });
        };
        let (n, last, data) = chunk;
        if incoming.chunk(n, last, data, window) {
            self.stage_next(id);
        } else {
            let next = incoming.acknowledged();
            self.answer(from, id, Transfer::Ack { id: number, next });
        }
    }

    fn stage_next(&mut self, id: GroupId) {
        let Some(incoming) = self.incoming.get_mut(&id) else {
            return;
        };
        let Some((offset, data)) = incoming.stage_next() else {
            return;
        };
        let whose = JobFor::Incoming {
            group: id,
            id: incoming.id,
        };
        let job = self.start_job(whose, jobs::stage(id, offset, data));
        if let Some(incoming) = self.incoming.get_mut(&id) {
            incoming.job = Some(job);
        }
    }

    pub(super) fn incoming_staged(&mut self, id: GroupId, number: u64, outcome: Outcome) {
        let incoming = self.incoming.get_mut(&id).filter(|t| t.id == number);
        let Some(incoming) = incoming else {
            if let Outcome::Installed { segments, .. } = outcome {
                self.installed_for_nobody(id, segments);
            }
            return;
        };
        incoming.job = None;
        let (from, contents) = (incoming.from, incoming.contents.clone());
        match outcome {
            Outcome::Staged => match incoming.staged() {
                Some(Staged::Ack(next)) => {
                    self.answer(from, id, Transfer::Ack { id: number, next });
                    self.stage_next(id);
                }
                Some(Staged::Complete { bytes }) => {
                    let disk = Arc::clone(&self.disk);
                    let whose = JobFor::Incoming {
                        group: id,
                        id: number,
                    };
                    let job = self.start_job(whose, jobs::install(disk, id, contents, bytes));
                    if let Some(incoming) = self.incoming.get_mut(&id) {
                        incoming.job = Some(job);
                    }
                }
                None => {}
            },
            Outcome::Installed {
                checkpoint,
                segments,
            } => self.installed(id, checkpoint, segments),
            Outcome::Refused(what) => {
                tracing::warn!(group = id.0, from = from.0, what, "checkpoint refused");
                self.fail_incoming(id);
            }
            _ => self.fail_incoming(id),
        }
    }

    /// A received checkpoint is in files: the group goes on from it, unless it is further by now.
    fn installed(&mut self, id: GroupId, file: segment::Checkpoint, segments: Vec<Arc<Segment>>) {
        let Some(incoming) = self.incoming.remove(&id) else {
            return;
        };
        let (Some(group), Some(checkpoint)) =
            (self.groups.get_mut(&id), Checkpoint::from_file(&file))
        else {
            return self.installed_for_nobody(id, segments);
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
            group.checkpoint_ends(file.live.len());
            self.rolls.forget(id);
            self.flushes.remove(&id);
        } else {
            let committed = group.raw.raft.raft_log.committed;
            group.raw.mut_store().adopt(checkpoint, committed);
        }
        self.answer(incoming.from, id, Transfer::Done { id: incoming.id });
        self.wake(id);
        self.touch(id);
    }

    /// The transfer was dropped while its last job ran. The files are true nevertheless.
    fn installed_for_nobody(&mut self, id: GroupId, segments: Vec<Arc<Segment>>) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.raw.mut_store().segments_mut().add(segments);
        }
    }

    fn drop_incoming(&mut self, id: GroupId) {
        if self.incoming.remove(&id).is_some() {
            self.counters.failed_transfers += 1;
            self.clean_up(id, Garbage::Staged);
        }
    }

    fn fail_incoming(&mut self, id: GroupId) {
        if let Some(incoming) = self.incoming.get(&id) {
            let (to, number) = (incoming.from, incoming.id);
            self.answer(to, id, Transfer::Abort { id: number });
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
        let late: Vec<GroupId> = self
            .incoming
            .iter_mut()
            .filter_map(|(id, t)| {
                t.idle_ticks += 1;
                (t.idle_ticks >= limit && t.job.is_none()).then_some(*id)
            })
            .collect();
        late.into_iter().for_each(|id| self.fail_incoming(id));
    }

    pub(super) fn abort_transfers_with(&mut self, node: NodeId) {
        let keys: Vec<(GroupId, NodeId)> = self.outgoing.keys().copied().collect();
        for (id, to) in keys.into_iter().filter(|(_, to)| *to == node) {
            self.end_outgoing(id, to, false);
        }
        let gone = self.incoming.iter().filter(|(_, t)| t.from == node);
        let gone: Vec<GroupId> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_incoming(id));
    }
}
