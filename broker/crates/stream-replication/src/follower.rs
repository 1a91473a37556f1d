//! Following: copies the leader's log.

use crate::member::{ChunkHeader, Core, WriteToken};
use crate::{Attachment, LogEnd, MemberMessage, Output, RETRY};
use env::planted::{self, Bug};
use env::{NodeId, Time};

/// The chunks do not follow the log: chunks before them were lost.
pub(crate) struct Gap;

#[derive(Debug)]
pub(crate) struct Follower {
    leader: NodeId,
    attachment: Attachment,
    state: State,
    /// The leader's committed offset.
    leader_committed: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The leader has not answered. The log may have chunks that the leader's has not.
    Attaching { repeat: Time },
    /// The log is a part of the leader's. It has everything that was committed before once it reaches `leader_next`.
    Attached { leader_next: u64 },
}

impl Follower {
    pub(crate) fn new(leader: NodeId) -> Follower {
        Follower {
            leader,
            attachment: Attachment::default(),
            state: State::Attaching { repeat: Time::ZERO },
            leader_committed: 0,
        }
    }

    pub(crate) fn leader(&self) -> NodeId {
        self.leader
    }

    pub(crate) fn deadline(&self, core: &Core) -> Option<Time> {
        match self.state {
            State::Attaching { repeat } if !core.unreachable.contains(&self.leader) => Some(repeat),
            _ => None,
        }
    }

    pub(crate) fn attach(&mut self, core: &mut Core, attachment: Attachment, now: Time) {
        debug_assert!(attachment > self.attachment, "{attachment:?} was used");
        self.attachment = attachment;
        self.state = State::Attaching {
            repeat: now + RETRY,
        };
        if core.unreachable.contains(&self.leader) {
            return;
        }
        let message = MemberMessage::Attach {
            epoch: core.term,
            attachment,
            end: core.log.end(),
        };
        core.send(self.leader, message);
    }

    /// Returns true if the follower has to attach anew.
    pub(crate) fn receive(&mut self, core: &mut Core, message: MemberMessage) -> bool {
        let attaching = matches!(self.state, State::Attaching { .. });
        match message {
            MemberMessage::Opened { .. } => true,
            MemberMessage::Truncate {
                attachment, end, ..
            } => {
                if attachment != self.attachment || !attaching {
                    return false;
                }
                truncate_to(core, end)
            }
            MemberMessage::Reset {
                attachment, start, ..
            } => {
                if attachment != self.attachment || !attaching {
                    return false;
                }
                if core.committed > core.log.start() && start < core.committed {
                    core.outputs.push(Output::LostCommitted {
                        from: start.max(core.log.start()),
                        to: core.committed,
                    });
                }
                core.reset(start);
                true
            }
            MemberMessage::Attached {
                attachment,
                leader_next,
                ..
            } => {
                if attachment == self.attachment && attaching {
                    self.state = State::Attached { leader_next };
                    self.progressed(core);
                }
                false
            }
            MemberMessage::Committed {
                attachment,
                committed,
                ..
            } => {
                if attachment == self.attachment && !attaching {
                    self.learn_committed(core, committed);
                    self.acknowledge(core);
                }
                false
            }
            // Questions to a leader. Chunks come with their headers.
            MemberMessage::AskEnd { .. }
            | MemberMessage::End { .. }
            | MemberMessage::Attach { .. }
            | MemberMessage::Chunks { .. }
            | MemberMessage::Written { .. } => false,
        }
    }

    pub(crate) fn receive_chunks(
        &mut self,
        core: &mut Core,
        message: &MemberMessage,
        chunks: &[ChunkHeader],
    ) -> Result<Option<WriteToken>, Gap> {
        let MemberMessage::Chunks {
            attachment,
            first,
            committed,
            ..
        } = *message
        else {
            return Ok(None);
        };
        let attached = matches!(self.state, State::Attached { .. });
        if !attached || attachment != self.attachment {
            return Ok(None);
        }
        if first != core.log.next() {
            return Err(Gap);
        }
        let mut end = core.log.end();
        for chunk in chunks {
            let follows = chunk.first == end.next && chunk.next > chunk.first;
            if !follows || chunk.epoch < end.epoch.max(1) || chunk.epoch > core.term {
                return Err(Gap);
            }
            end = LogEnd {
                epoch: chunk.epoch,
                next: chunk.next,
            };
        }
        if chunks.is_empty() {
            return Err(Gap);
        }
        for chunk in chunks {
            let added = core.log.append(chunk.epoch, chunk.first, chunk.next);
            debug_assert!(added, "{chunk:?} does not follow {:?}", core.log.end());
        }
        self.learn_committed(core, committed);
        Ok(Some(core.token))
    }

    /// More of the log is written.
    pub(crate) fn progressed(&mut self, core: &mut Core) {
        let State::Attached { leader_next } = self.state else {
            return;
        };
        let has_all = core.written >= leader_next || planted::is(Bug::StreamIntactEarly);
        if !core.intact && has_all {
            core.intact = true;
            core.outputs.push(Output::Intact);
        }
        core.commit(self.leader_committed);
        self.acknowledge(core);
    }

    fn learn_committed(&mut self, core: &mut Core, committed: u64) {
        self.leader_committed = self.leader_committed.max(committed);
        core.commit(self.leader_committed);
    }

    fn acknowledge(&self, core: &mut Core) {
        let written = match planted::is(Bug::StreamAckBeforeWrite) {
            true => core.log.next(),
            false => core.written,
        };
        let message = MemberMessage::Written {
            epoch: core.term,
            attachment: self.attachment,
            next: written,
            committed: self.leader_committed,
        };
        core.send(self.leader, message);
    }
}

/// Drops everything after `end`. Returns true if the log changed; an answer that changes nothing is wrong, and attaching
/// again at once would repeat it without end.
fn truncate_to(core: &mut Core, end: LogEnd) -> bool {
    if planted::is(Bug::StreamTruncationSkipped) {
        return false;
    }
    let before = core.log.next();
    let own = core.log.end_of(end.epoch);
    // Only within one epoch do both logs have chunks of the same bounds. If this log lacks the epoch, the end of its
    // last earlier epoch is compared next.
    let next = match own.epoch == end.epoch {
        true => own.next.min(end.next),
        false => own.next,
    };
    core.truncate(next);
    core.log.next() < before
}
