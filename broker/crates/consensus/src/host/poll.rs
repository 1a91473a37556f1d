//! Going through all groups that have something to do.

use super::Host;
use crate::sink::Waiting;
use crate::{GroupId, HostOutput, WalToken};

impl Host {
    pub(super) fn go_through(&mut self, out: &mut Vec<HostOutput>) {
        loop {
            while let Some(id) = self.next_dirty() {
                self.advance(id);
            }
            if !self.settle_waiting() {
                break;
            }
        }
        self.secure_late();
        self.relieve_memory();
        self.hand_out(out);
    }

    /// Newest first. Any order does, as long as it is the same under the same seed.
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
        let wanted = group.advance(&mut self.sink);
        group.retime(&mut self.rng);
        group.check_due(&self.config.limits, &mut self.sink);
        if group.leader().is_some() {
            group.calm();
        }
        self.recount(id);
        for to in wanted {
            self.begin_transfer(id, to);
        }
    }

    /// What waits for the log although nothing goes there: it waits for what is on the way, or not at all.
    /// True when groups may go on.
    fn settle_waiting(&mut self) -> bool {
        if !self.sink.records.is_empty() || self.sink.waiting.is_empty() {
            return !self.dirty.is_empty();
        }
        let waiting = std::mem::take(&mut self.sink.waiting);
        match self.pending.back_mut() {
            Some((_, last)) => last.extend(waiting),
            None => waiting.into_iter().for_each(|w| self.complete(w)),
        }
        !self.dirty.is_empty()
    }

    /// What a batch brought is durable.
    pub(super) fn complete(&mut self, waiting: Waiting) {
        match waiting {
            Waiting::Ready {
                group,
                epoch,
                number,
                commit,
                messages,
            } => {
                let replica = self.groups.get_mut(&group).filter(|g| g.epoch == epoch);
                if let Some(replica) = replica {
                    replica.persisted(number, commit, messages, &mut self.sink);
                    self.touch(group);
                }
            }
            Waiting::Commit {
                group,
                epoch,
                commit,
            } => {
                let replica = self.groups.get_mut(&group).filter(|g| g.epoch == epoch);
                if let Some(replica) = replica {
                    replica.commit_durable(commit);
                    self.touch(group);
                }
            }
            Waiting::Relogged { file } => self.rolls.relogged(file),
            Waiting::Deleted { group } => {
                // Not sooner: without its end on record a group whose log is cut off would stop the next start.
                self.rolls.forget(group);
                self.delete_files(group);
            }
        }
    }

    fn hand_out(&mut self, out: &mut Vec<HostOutput>) {
        if !self.sink.records.is_empty() {
            let token = WalToken(self.next_token);
            self.next_token += 1;
            let waiting = std::mem::take(&mut self.sink.waiting);
            self.pending.push_back((token, waiting));
            // First, so that the disk works while the rest is carried out.
            out.push(HostOutput::Append {
                token,
                records: std::mem::take(&mut self.sink.records),
            });
        }
        self.sink.close_frames();
        out.append(&mut self.sink.out);
        if let Some(up_to) = self.rolls.take_free() {
            out.push(HostOutput::WalFree { up_to });
        }
    }
}
