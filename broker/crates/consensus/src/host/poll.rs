//! Processing of all groups with pending work.

use super::Host;
use crate::sink::PendingAction;
use crate::{GroupId, HostOutput, WalToken};

impl Host {
    pub(super) fn poll_groups(&mut self, out: &mut Vec<HostOutput>) {
        loop {
            while let Some(id) = self.next_dirty() {
                self.advance(id);
            }
            if !self.resolve_waiting() {
                break;
            }
        }
        self.secure_pending_rolls();
        self.relieve_memory();
        self.emit_outputs(out);
    }

    /// Newest first. Any order is correct as long as it is deterministic under a seed.
    fn next_dirty(&mut self) -> Option<GroupId> {
        let id = self.dirty.pop()?;
        if let Some(group) = self.groups.get_mut(&id) {
            group.dirty = false;
        }
        Some(id)
    }

    fn advance(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let targets = group.advance(&mut self.sink);
        group.refresh_election_timeout(&mut self.rng);
        group.request_checkpoint_if_due(&self.config.limits, &mut self.sink);
        if group.leader().is_some() {
            group.clear_hurry();
        }
        self.update_memory(id);
        for to in targets {
            self.begin_transfer(id, to);
        }
    }

    /// Resolves actions that wait for durability although no record is to be written: they wait for the
    /// newest batch in flight, or for nothing. Returns true if groups have more work.
    fn resolve_waiting(&mut self) -> bool {
        if !self.sink.records.is_empty() || self.sink.waiting.is_empty() {
            return !self.dirty.is_empty();
        }
        let waiting = std::mem::take(&mut self.sink.waiting);
        match self.pending.back_mut() {
            Some((_, last)) => last.extend(waiting),
            None => waiting.into_iter().for_each(|w| self.handle_durable(w)),
        }
        !self.dirty.is_empty()
    }

    /// Runs an action whose batch is durable.
    pub(super) fn handle_durable(&mut self, waiting: PendingAction) {
        match waiting {
            PendingAction::Ready {
                group,
                epoch,
                number,
                commit,
                messages,
            } => {
                let replica = self.groups.get_mut(&group).filter(|g| g.epoch == epoch);
                if let Some(replica) = replica {
                    replica.handle_persisted(number, commit, messages, &mut self.sink);
                    self.mark_dirty(group);
                }
            }
            PendingAction::Commit {
                group,
                epoch,
                commit,
            } => {
                let replica = self.groups.get_mut(&group).filter(|g| g.epoch == epoch);
                if let Some(replica) = replica {
                    replica.commit_durable(commit);
                    self.mark_dirty(group);
                }
            }
            PendingAction::Relogged { file } => self.rolls.mark_relogged(file),
            PendingAction::Deleted { group } => {
                // Only now: without a durable deletion record, a group whose log is cut off would fail
                // recovery.
                self.rolls.forget_group(group);
                self.delete_files(group);
            }
        }
    }

    fn emit_outputs(&mut self, out: &mut Vec<HostOutput>) {
        if !self.sink.records.is_empty() {
            let token = WalToken(self.next_token);
            self.next_token += 1;
            let waiting = std::mem::take(&mut self.sink.waiting);
            self.pending.push_back((token, waiting));
            // First, so that the disk works while the other outputs are carried out.
            out.push(HostOutput::Append {
                token,
                records: std::mem::take(&mut self.sink.records),
            });
        }
        self.sink.close_frames();
        out.append(&mut self.sink.out);
        if let Some(up_to) = self.rolls.take_free_file() {
            out.push(HostOutput::WalFree { up_to });
        }
    }
}
