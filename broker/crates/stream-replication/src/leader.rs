//! Leading: finds out whether the own log has everything, then writes and sends chunks.

use crate::member::Core;
use crate::{
    Attachment, LogEnd, MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_TRANSFERS, MemberMessage, Output, RETRY,
};
use env::planted::{self, Bug};
use env::{NodeId, Time};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug)]
pub(crate) struct Leader {
    phase: Phase,
    followers: BTreeMap<NodeId, Progress>,
    /// The chunk after which this leader's own chunks count: the first of its epoch.
    marker: Option<u64>,
}

#[derive(Debug)]
enum Phase {
    /// Members have to say where their logs end.
    Asking {
        ends: BTreeMap<NodeId, (LogEnd, bool)>,
        repeat: Time,
    },
    /// The own log has everything, and chunks can be added. The marker is not committed.
    Opening,
    Open,
}

/// A follower's copy.
#[derive(Debug)]
struct Progress {
    attachment: Attachment,
    /// Written by the follower.
    acknowledged: u64,
    /// Sent to the follower.
    sent: u64,
    /// Transfers that are not acknowledged: the offset after each, and its bytes.
    in_flight: VecDeque<(u64, u64)>,
    in_flight_bytes: u64,
    /// The owner reads chunks to send.
    reading: bool,
    /// The committed offset that the follower knows.
    committed: u64,
    /// The committed offset that was sent last.
    committed_sent: u64,
    /// When to tell the follower to attach again, unless it acknowledges something.
    repeat: Option<Time>,
}

impl Progress {
    fn new(attachment: Attachment, next: u64) -> Progress {
        Progress {
            attachment,
            acknowledged: 0,
            sent: next,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            reading: false,
            committed: 0,
            committed_sent: 0,
            repeat: None,
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight_bytes < MAX_IN_FLIGHT_BYTES && self.in_flight.len() < MAX_IN_FLIGHT_TRANSFERS
    }

    /// Removes the transfers up to `next`.
    fn acknowledge(&mut self, next: u64) {
        self.acknowledged = self.acknowledged.max(next);
        while let Some((end, bytes)) = self.in_flight.front().copied() {
            if end > self.acknowledged {
                break;
            }
            self.in_flight.pop_front();
            self.in_flight_bytes -= bytes;
        }
        debug_assert!(
            self.in_flight_bytes == 0 || !self.in_flight.is_empty(),
            "{} bytes in flight without a transfer",
            self.in_flight_bytes
        );
    }
}

impl Leader {
    pub(crate) fn new(core: &mut Core, now: Time) -> Leader {
        let mut leader = Leader {
            phase: Phase::Asking {
                ends: BTreeMap::new(),
                repeat: now,
            },
            followers: BTreeMap::new(),
            marker: None,
        };
        leader.tick(core, now);
        leader
    }

    /// True if chunks can be added.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self.phase, Phase::Asking { .. })
    }

    pub(crate) fn caught_up(&self, core: &Core) -> Vec<NodeId> {
        let has_all = |progress: &Progress| progress.acknowledged >= core.log.next();
        let followers = self.followers.iter();
        let caught_up = followers.filter(|(_, progress)| has_all(progress));
        caught_up.map(|(node, _)| *node).collect()
    }

    /// The offset after the last message that each other member has written. None: it is not attached.
    pub(crate) fn followers(&self, core: &Core) -> Vec<(NodeId, Option<u64>)> {
        let written = |node: &NodeId| self.followers.get(node).map(|p| p.acknowledged);
        let others = core.others();
        others.iter().map(|node| (*node, written(node))).collect()
    }

    /// Whether a majority of the voters has written everything that is committed.
    pub(crate) fn voters_have_committed(&self, core: &Core) -> bool {
        match self.phase {
            Phase::Asking { .. } => false,
            // The first leader of an empty log opens it with its first chunk.
            Phase::Opening => core.log.next() == 0,
            Phase::Open => self.on_majority(core) >= Some(core.committed),
        }
    }

    /// The offset up to which a majority of the voters has written the log. None without voters.
    fn on_majority(&self, core: &Core) -> Option<u64> {
        let mut written: Vec<u64> = core
            .voters
            .iter()
            .map(|voter| match *voter == core.id {
                true => core.written,
                false => self.followers.get(voter).map_or(0, |p| p.acknowledged),
            })
            .collect();
        written.sort_unstable_by(|a, b| b.cmp(a));
        let needed = match planted::is(Bug::StreamCommitAlone) {
            true => 1,
            false => core.majority(),
        };
        written.get(needed - 1).copied()
    }

    pub(crate) fn deadline(&self, core: &Core) -> Option<Time> {
        match &self.phase {
            Phase::Asking { ends, repeat } => {
                let missing = core.others().into_iter().any(|node| {
                    core.voters.contains(&node)
                        && !ends.contains_key(&node)
                        && !core.unreachable.contains(&node)
                });
                // The member that should take over may have refused.
                (missing || self.furthest(core).is_some()).then_some(*repeat)
            }
            Phase::Opening | Phase::Open => self.followers.values().filter_map(|p| p.repeat).min(),
        }
    }

    pub(crate) fn tick(&mut self, core: &mut Core, now: Time) {
        if let Phase::Asking { ends, repeat } = &mut self.phase {
            if *repeat > now {
                return;
            }
            *repeat = now + RETRY;
            let epoch = core.term;
            for node in core.others() {
                if core.voters.contains(&node) && !ends.contains_key(&node) {
                    core.send(node, MemberMessage::AskEnd { epoch });
                }
            }
            return self.decide(core);
        }
        let late = |progress: &Progress| progress.repeat.is_some_and(|at| at <= now);
        for (node, progress) in &mut self.followers {
            if late(progress) {
                progress.repeat = Some(now + RETRY);
                // The follower attaches again and says what it has.
                core.send(*node, MemberMessage::Opened { epoch: core.term });
            }
        }
    }

    pub(crate) fn members_changed(&mut self, core: &mut Core, now: Time) {
        self.followers.retain(|node, _| core.is_member(*node));
        if let Phase::Asking { ends, repeat } = &mut self.phase {
            ends.retain(|node, _| core.voters.contains(node));
            *repeat = now;
            return self.tick(core, now);
        }
        self.count(core, now);
    }

    pub(crate) fn reachability_changed(&mut self, core: &mut Core, node: NodeId, now: Time) {
        if core.unreachable.contains(&node) {
            // What was sent may be lost. The follower attaches when it is back.
            self.followers.remove(&node);
        } else if !core.is_member(node) || node == core.id {
        } else if let Phase::Asking { repeat, .. } = &mut self.phase {
            *repeat = now;
            self.tick(core, now);
        } else {
            core.send(node, MemberMessage::Opened { epoch: core.term });
        }
    }

    /// The member with the furthest log that answered, if that is further than the own one.
    fn furthest(&self, core: &Core) -> Option<NodeId> {
        let Phase::Asking { ends, .. } = &self.phase else {
            return None;
        };
        let (node, (end, _)) = ends.iter().max_by_key(|(_, (end, _))| *end)?;
        (*end > core.log.end()).then_some(*node)
    }

    /// Opens the log or hands over, once enough members have answered.
    fn decide(&mut self, core: &mut Core) {
        let Phase::Asking { ends, .. } = &self.phase else {
            return;
        };
        if !core.voters.contains(&core.id) {
            return;
        }
        // The answers and this member.
        let intact = ends.values().filter(|(_, intact)| *intact).count();
        let intact = intact + usize::from(core.intact);
        let everybody = ends.len() + 1 >= core.voters.len();
        let enough = match planted::is(Bug::StreamLostEndCounts) {
            true => ends.len() + 1 >= core.majority(),
            false => intact >= core.majority() || everybody,
        };
        if !enough {
            return;
        }
        if let Some(to) = self.furthest(core)
            && !planted::is(Bug::StreamShortLeader)
        {
            core.outputs.push(Output::TransferLeadership { to });
            return;
        }
        self.phase = Phase::Opening;
        let epoch = core.term;
        core.outputs.push(Output::WriteMarker { epoch });
        for node in core.others() {
            core.send(node, MemberMessage::Opened { epoch });
        }
    }

    pub(crate) fn appended(&mut self, next: u64) {
        self.marker.get_or_insert(next);
    }

    pub(crate) fn progressed(&mut self, core: &mut Core, now: Time) {
        self.count(core, now);
        self.send_all(core, now);
    }

    pub(crate) fn receive(
        &mut self,
        core: &mut Core,
        from: NodeId,
        message: MemberMessage,
        now: Time,
    ) {
        if from == core.id || !core.is_member(from) {
            return;
        }
        match message {
            MemberMessage::End { end, intact, .. } => {
                if let Phase::Asking { ends, .. } = &mut self.phase
                    && core.voters.contains(&from)
                {
                    ends.insert(from, (end, intact));
                    self.decide(core);
                }
            }
            MemberMessage::Attach {
                attachment, end, ..
            } if self.writes() => {
                self.attach(core, from, attachment, end, now);
            }
            MemberMessage::Written {
                attachment,
                next,
                committed,
                ..
            } => {
                let Some(progress) = self.followers.get_mut(&from) else {
                    return;
                };
                if progress.attachment != attachment || next > core.log.next() {
                    return;
                }
                let advanced = next > progress.acknowledged || committed > progress.committed;
                progress.acknowledge(next);
                progress.committed = progress.committed.max(committed);
                if advanced && progress.repeat.is_some() {
                    progress.repeat = Some(now + RETRY);
                }
                self.count(core, now);
                self.send_to(core, from, now);
            }
            // Questions and answers between other roles.
            MemberMessage::Attach { .. }
            | MemberMessage::AskEnd { .. }
            | MemberMessage::Opened { .. }
            | MemberMessage::Truncate { .. }
            | MemberMessage::Reset { .. }
            | MemberMessage::Attached { .. }
            | MemberMessage::Chunks { .. }
            | MemberMessage::Committed { .. } => {}
        }
    }

    fn attach(
        &mut self,
        core: &mut Core,
        from: NodeId,
        attachment: Attachment,
        end: LogEnd,
        now: Time,
    ) {
        let epoch = core.term;
        if self
            .followers
            .get(&from)
            .is_some_and(|p| p.attachment >= attachment)
        {
            return;
        }
        self.followers.remove(&from);
        let start = core.log.start();
        let equal = core.log.end_of(end.epoch);
        let fits = match end.epoch {
            0 => end.next == start,
            _ => equal.epoch == end.epoch && end.next <= equal.next && end.next >= start,
        };
        if !fits {
            // A log that ends before the leader's, or has no chunk of an epoch that the leader still has, begins anew.
            let begins_anew = end.epoch == 0 || end.next < start || equal.next <= start;
            let message = match begins_anew {
                true => MemberMessage::Reset {
                    epoch,
                    attachment,
                    start,
                },
                false => MemberMessage::Truncate {
                    epoch,
                    attachment,
                    end: equal,
                },
            };
            return core.send(from, message);
        }
        let leader_next = core.log.next();
        let message = MemberMessage::Attached {
            epoch,
            attachment,
            leader_next,
        };
        core.send(from, message);
        let progress = Progress::new(attachment, end.next);
        self.followers.insert(from, progress);
        self.send_to(core, from, now);
    }

    pub(crate) fn sent_chunks(
        &mut self,
        core: &mut Core,
        to: NodeId,
        attachment: Attachment,
        (next, bytes): (u64, u64),
        now: Time,
    ) {
        let Some(progress) = self.followers.get_mut(&to) else {
            return;
        };
        if progress.attachment != attachment || !progress.reading {
            return;
        }
        progress.reading = false;
        if next <= progress.sent {
            // Not readable now: try again later.
            progress.repeat = Some(now + RETRY);
            return;
        }
        debug_assert!(
            next <= core.written,
            "{next} was sent before it was written"
        );
        progress.sent = next;
        progress.in_flight.push_back((next, bytes));
        progress.in_flight_bytes += bytes;
        progress.acknowledge(progress.acknowledged);
        self.send_to(core, to, now);
    }

    fn send_all(&mut self, core: &mut Core, now: Time) {
        let nodes: Vec<NodeId> = self.followers.keys().copied().collect();
        for node in nodes {
            self.send_to(core, node, now);
        }
    }

    /// Sends a follower what it lacks: chunks, or the committed offset if it has all chunks.
    fn send_to(&mut self, core: &mut Core, to: NodeId, now: Time) {
        let Some(progress) = self.followers.get_mut(&to) else {
            return;
        };
        if progress.sent < core.written {
            if !progress.reading && progress.has_room() {
                progress.reading = true;
                progress.committed_sent = core.committed;
                core.outputs.push(Output::SendChunks {
                    to,
                    attachment: progress.attachment,
                    first: progress.sent,
                    end: core.written,
                    bytes: MAX_IN_FLIGHT_BYTES - progress.in_flight_bytes,
                    committed: core.committed,
                });
            }
        } else if progress.committed_sent < core.committed {
            progress.committed_sent = core.committed;
            let message = MemberMessage::Committed {
                epoch: core.term,
                attachment: progress.attachment,
                committed: core.committed,
            };
            core.send(to, message);
        }
        let complete =
            progress.acknowledged >= core.written && progress.committed >= core.committed;
        progress.repeat = match complete {
            true => None,
            false => progress.repeat.or(Some(now + RETRY)),
        };
    }

    /// Commits what a majority has written.
    fn count(&mut self, core: &mut Core, now: Time) {
        let Some(marker) = self.marker else { return };
        let Some(on_majority) = self.on_majority(core) else {
            return;
        };
        if on_majority < marker && !planted::is(Bug::StreamOldEpochCounted) {
            return;
        }
        let before = core.committed;
        core.commit(on_majority);
        if matches!(self.phase, Phase::Opening) {
            self.phase = Phase::Open;
            core.outputs.push(Output::Opened { epoch: core.term });
            if !core.intact {
                core.intact = true;
                core.outputs.push(Output::Intact);
            }
        }
        if core.committed > before {
            self.send_all(core, now);
        }
    }
}
