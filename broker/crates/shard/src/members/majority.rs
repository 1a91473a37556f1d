//! Recovery of groups that lost a majority of their members: compares the logs of the members that are left, selects the
//! newest one, and asks its node to continue.
//!
//! A group is left alone unless everything that is left of it answers and none of the answers shows a leader or a
//! connection to a lost node. Otherwise entries that only a silent member has would be lost too, or two leaders would confirm.

use super::frame::{LogPosition, LostNodes, PositionReport};
use crate::stats::GATHER_WITHIN;
use consensus::{LogEnd, Membership, NoSurvivor};
use control::{QueueRecovery, RecoveredGroup, RecoveryStep, Reply, VotingState};
use env::{NodeId, Time};
use metadata::{ChangeError, QueueId};
use std::collections::{BTreeMap, BTreeSet};

/// Recoveries that run at the same time.
pub(crate) const MAX_RECOVERIES: usize = 64;

/// The requester of a recovery.
pub(crate) enum RecoveryRequester {
    /// The request that recovers the metadata.
    Metadata(Reply<Result<RecoveryStep, ChangeError>>),
    /// One of several queues; the token of their collection.
    Queue { collection: u64, queue: QueueId },
}

/// A request to the node with the newest log.
pub(crate) struct RecoveryRequest {
    pub token: u64,
    pub group: u64,
    pub node: NodeId,
    pub lost: LostNodes,
}

/// Recoveries in progress.
#[derive(Default)]
pub(crate) struct MajorityRecoveries {
    next: u64,
    open: BTreeMap<u64, Recovery>,
    collections: BTreeMap<u64, CollectedRecoveries>,
    /// The last queue whose recovery began.
    last: Option<QueueId>,
}

/// The recoveries of the queues of one request.
struct CollectedRecoveries {
    /// Recoveries that have not ended.
    open: usize,
    outcomes: Vec<QueueRecovery>,
    /// Queues that this request does not recover.
    left: usize,
    reply: Reply<Result<RecoveryStep, ChangeError>>,
}

struct Recovery {
    group: u64,
    lost: Vec<NodeId>,
    silent: BTreeSet<NodeId>,
    told: BTreeMap<NodeId, PositionReport>,
    /// The replica that was selected.
    selected: Option<RecoveredGroup>,
    until: Time,
    requester: RecoveryRequester,
}

impl MajorityRecoveries {
    /// Selects the queues whose recoveries can begin now. All get their turn, also if others are refused each time.
    pub(crate) fn take_turn(&mut self, mut queues: Vec<QueueId>) -> Vec<QueueId> {
        queues.sort_unstable_by_key(|queue| (self.last.is_some_and(|last| *queue <= last), *queue));
        queues.truncate(MAX_RECOVERIES.saturating_sub(self.open.len()));
        self.last = queues.last().copied().or(self.last);
        queues
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|r| r.until).min()
    }

    /// Begins one that waits for the positions of these nodes. Returns its token.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        group: u64,
        asked: BTreeSet<NodeId>,
        lost: Vec<NodeId>,
        requester: RecoveryRequester,
    ) -> u64 {
        self.next += 1;
        let recovery = Recovery {
            group,
            lost,
            silent: asked,
            told: BTreeMap::new(),
            selected: None,
            until: now + GATHER_WITHIN,
            requester,
        };
        self.open.insert(self.next, recovery);
        self.next
    }

    /// Takes a position. `name`: the name of a node, for errors.
    pub(crate) fn take_position(
        &mut self,
        (from, now): (NodeId, Time),
        token: u64,
        told: PositionReport,
        name: &dyn Fn(NodeId) -> String,
    ) -> Option<RecoveryRequest> {
        let recovery = self.open.get_mut(&token)?;
        if recovery.silent.remove(&from) {
            recovery.told.insert(from, told);
        }
        match recovery.silent.is_empty() && recovery.selected.is_none() {
            true => self.decide(token, now, name),
            false => None,
        }
    }

    fn decide(
        &mut self,
        token: u64,
        now: Time,
        name: &dyn Fn(NodeId) -> String,
    ) -> Option<RecoveryRequest> {
        let recovery = self.open.get_mut(&token)?;
        match select(&recovery.told, &recovery.lost, name) {
            Ok((selected, lost)) => {
                let node = selected.node;
                recovery.selected = Some(selected);
                recovery.until = now + GATHER_WITHIN;
                let group = recovery.group;
                let lost = LostNodes(lost);
                Some(RecoveryRequest {
                    token,
                    group,
                    node,
                    lost,
                })
            }
            Err(refused) => {
                self.finish(token, Err(refused));
                None
            }
        }
    }

    /// The node with the newest log answers.
    pub(crate) fn take_answer(&mut self, from: NodeId, token: u64, refused: Option<&str>) {
        let is_asked = |r: &Recovery| r.selected.as_ref().is_some_and(|s| s.node == from);
        if !self.open.get(&token).is_some_and(is_asked) {
            return;
        }
        let recovery = self.open.get_mut(&token);
        if let Some(selected) = recovery.and_then(|r| r.selected.take()) {
            let result = match refused {
                None => Ok(selected),
                Some(why) => Err(ChangeError::Unavailable(why.to_owned())),
            };
            self.finish(token, result);
        }
    }

    /// Collects the outcomes of this many queues for one request. Returns the token of the collection.
    pub(crate) fn collect(
        &mut self,
        count: usize,
        left: usize,
        reply: Reply<Result<RecoveryStep, ChangeError>>,
    ) -> u64 {
        self.next += 1;
        let collected = CollectedRecoveries {
            open: count,
            outcomes: Vec::new(),
            left,
            reply,
        };
        self.collections.insert(self.next, collected);
        let token = self.next;
        self.finish_collection(token);
        token
    }

    fn finish(&mut self, token: u64, result: Result<RecoveredGroup, ChangeError>) {
        match self.open.remove(&token).map(|r| r.requester) {
            None => {}
            Some(RecoveryRequester::Metadata(reply)) => reply(result.map(RecoveryStep::Metadata)),
            Some(RecoveryRequester::Queue { collection, queue }) => {
                if let Some(collected) = self.collections.get_mut(&collection) {
                    collected.outcomes.push(QueueRecovery { queue, result });
                    collected.open = collected.open.saturating_sub(1);
                }
                self.finish_collection(collection);
            }
        }
    }

    fn finish_collection(&mut self, token: u64) {
        if self.collections.get(&token).is_some_and(|c| c.open == 0)
            && let Some(done) = self.collections.remove(&token)
        {
            let mut outcomes = done.outcomes;
            outcomes.sort_by_key(|o| o.queue);
            let left = done.left;
            (done.reply)(Ok(RecoveryStep::Queues { outcomes, left }));
        }
    }

    /// True if this shard waits for answers about groups to recover.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// Ends the wait of those whose time is up. Returns the requests of those that nobody else is left for.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        name: &dyn Fn(NodeId) -> String,
    ) -> Vec<RecoveryRequest> {
        let late: Vec<u64> = (self.open.iter())
            .filter(|(_, r)| now >= r.until)
            .map(|(token, _)| *token)
            .collect();
        let mut requests = Vec::new();
        for token in late {
            let asked = self.open.get(&token).and_then(|r| r.selected.as_ref());
            match asked.map(|s| s.node) {
                None => requests.extend(self.decide(token, now, name)),
                Some(node) => {
                    let why = format!("node '{}' did not answer in time; try again", name(node));
                    self.take_answer(node, token, Some(&why));
                }
            }
        }
        requests
    }
}

/// The replica with which a group continues, and those of its members that are lost.
fn select(
    told: &BTreeMap<NodeId, PositionReport>,
    lost: &[NodeId],
    name: &dyn Fn(NodeId) -> String,
) -> Result<(RecoveredGroup, Vec<NodeId>), ChangeError> {
    for (node, report) in told {
        if let Some(back) = report.connected.0.first() {
            return Err(ChangeError::PreconditionFailed(format!(
                "node '{}' is connected to node '{}', which is therefore not lost",
                name(*node),
                name(*back)
            )));
        }
    }
    let mut leaders = told
        .values()
        .filter_map(|report| report.position.as_ref()?.leader);
    if let Some(leader) = leaders.find(|n| !lost.contains(n)) {
        // It may be the leader of a moment ago.
        return Err(ChangeError::Unavailable(format!(
            "node '{}' leads; nothing is to be recovered",
            name(leader)
        )));
    }
    let ends: BTreeMap<NodeId, LogEnd> = told
        .iter()
        .filter_map(|(node, report)| Some((*node, report.position.as_ref()?.end())))
        .collect();
    let survivor = consensus::select_survivor(&ends, lost).map_err(|why| match why {
        NoSurvivor::Silent(node) => ChangeError::PreconditionFailed(format!(
            "node '{}' has a replica and does not answer; start it, or name it as lost too",
            name(node)
        )),
        NoSurvivor::NoReplica => {
            ChangeError::NotFound("no replica is left on the nodes that run".into())
        }
        NoSurvivor::Newer(node) => ChangeError::PreconditionFailed(format!(
            "node '{}' has a newer replica than the members that are left, and they do not know it as a member",
            name(node)
        )),
        NoSurvivor::Majority { left, voters } => ChangeError::PreconditionFailed(format!(
            "{left} of {voters} voting members are left, which is a majority; nothing is to be recovered"
        )),
    })?;
    let selected = RecoveredGroup {
        node: survivor.node,
        last_index: ends.get(&survivor.node).map_or(0, |end| end.last_index),
        replicas: ends.len(),
        voters: survivor.voters,
    };
    Ok((selected, survivor.lost))
}

impl LogPosition {
    fn end(&self) -> LogEnd {
        let mut membership = Membership::default();
        for (node, vote) in self.votes.iter() {
            match vote {
                VotingState::Voter => membership.voters.push(node),
                _ => membership.learners.push(node),
            }
        }
        LogEnd {
            last_term: self.last_term,
            last_index: self.last_index,
            applied: self.applied,
            membership,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::GroupVoters;
    use super::*;

    fn report(position: (u64, u64), voters: &[u64], learners: &[u64]) -> PositionReport {
        let mut votes = GroupVoters::default();
        voters.iter().for_each(|n| votes.add(NodeId(*n), true));
        learners.iter().for_each(|n| votes.add(NodeId(*n), false));
        PositionReport {
            position: Some(LogPosition {
                last_term: position.0,
                last_index: position.1,
                applied: position.1 - 1,
                leader: None,
                votes,
            }),
            connected: LostNodes::default(),
        }
    }

    fn selected(told: &[(u64, PositionReport)], lost: &[u64]) -> Result<(u64, Vec<u64>), String> {
        let told = told.iter().map(|(n, report)| (NodeId(*n), report.clone()));
        let lost: Vec<NodeId> = lost.iter().map(|n| NodeId(*n)).collect();
        select(&told.collect(), &lost, &|n| format!("n{}", n.0))
            .map(|(group, lost)| (group.node.0, lost.into_iter().map(|n| n.0).collect()))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn newest_log_is_selected() {
        let five = &[1, 2, 3, 4, 5][..];
        let both = |a, b| [(4, report(a, five, &[])), (5, report(b, five, &[]))];
        for (a, b, want) in [
            ((3, 10), (3, 11), 5),
            ((4, 2), (3, 11), 4),
            ((3, 10), (3, 10), 4),
        ] {
            let got = selected(&both(a, b), &[1, 2, 3]);
            assert_eq!(got, Ok((want, vec![1, 2, 3])), "{a:?} {b:?}");
        }
        // A learner may have the newest log, also if a voter is left.
        let told = [
            (3, report((1, 5), &[1, 2, 3], &[4])),
            (4, report((1, 7), &[1, 2, 3], &[4])),
        ];
        assert_eq!(selected(&told, &[1, 2]), Ok((4, vec![1, 2])));
        // Members that lag count others that were removed since, and may have been removed themselves.
        let told = [
            (3, report((1, 5), &[1, 2, 3], &[])),
            (4, report((1, 4), &[4, 2, 9], &[])),
        ];
        assert_eq!(selected(&told, &[1, 2]), Ok((3, vec![1, 2, 4, 9])));
    }

    #[test]
    fn every_queue_gets_its_turn() {
        let mut recoveries = MajorityRecoveries::default();
        let all: Vec<QueueId> = (1..=100).map(QueueId).collect();
        let ids = |queues: Vec<QueueId>| queues.iter().map(|q| q.0).collect::<Vec<_>>();
        let first = ids(recoveries.take_turn(all.clone()));
        assert_eq!(first, (1..=64).collect::<Vec<_>>());
        let second = ids(recoveries.take_turn(all.clone()));
        assert_eq!(second, (65..=100).chain(1..=28).collect::<Vec<_>>());
        assert_eq!(ids(recoveries.take_turn(vec![QueueId(5)])), [5]);
        assert_eq!(ids(recoveries.take_turn(Vec::new())), [0; 0]);
    }

    #[test]
    fn what_is_refused_and_why() {
        let three = &[1, 2, 3][..];
        let alone = [(3, report((1, 5), three, &[]))];
        let mut led = alone.clone();
        if let Some(position) = &mut led[0].1.position {
            position.leader = Some(NodeId(3));
        }
        let mut connected = alone.clone();
        connected[0].1.connected = LostNodes(vec![NodeId(2)]);
        for (told, lost, why) in [
            (&alone[..], &[1, 2][..], ""),
            (&alone, &[1], "node 'n2' has a replica and does not answer"),
            (&led, &[1, 2], "node 'n3' leads"),
            (&connected, &[1, 2], "node 'n3' is connected to node 'n2'"),
            (
                &[(3, PositionReport::default())],
                &[1, 2],
                "no replica is left",
            ),
            (&[], &[1, 2], "no replica is left"),
            (
                &[
                    (3, report((1, 5), three, &[])),
                    (9, report((2, 5), three, &[])),
                ],
                &[1, 2],
                "node 'n9' has a newer replica",
            ),
            (
                &[
                    (2, report((1, 5), three, &[])),
                    (3, report((1, 5), three, &[])),
                ],
                &[1],
                "2 of 3 voting members are left",
            ),
        ] {
            match (selected(told, lost), why) {
                (got, "") => assert!(got.is_ok(), "{got:?}"),
                (got, why) => assert!(
                    got.as_ref().is_err_and(|e| e.contains(why)),
                    "{got:?}, not {why}"
                ),
            }
        }
    }
}
