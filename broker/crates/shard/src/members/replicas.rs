//! The state that each replica of a queue reports: requested from all nodes that may have one, complete when all have
//! answered or the time is up.

use super::frame::{MembershipMessage, ReplicaReport};
use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use crate::stats::GATHER_WITHIN;
use control::{ReplicaFacts, Reply, Vote};
use env::{NodeId, Time};
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};

/// Questions that are open at the same time; the oldest is answered early beyond that.
const MAX_OPEN: usize = 256;

struct ReplicaQuery {
    reply: Reply<Vec<ReplicaFacts>>,
    /// Members as they are to be: told about whether they answer or not.
    wanted: Vec<NodeId>,
    silent: BTreeSet<NodeId>,
    told: BTreeMap<NodeId, ReplicaReport>,
    until: Time,
}

#[derive(Default)]
pub struct ReplicaQueries {
    next: u64,
    open: BTreeMap<u64, ReplicaQuery>,
}

impl ReplicaQueries {
    pub fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|q| q.until).min()
    }

    pub fn tick(&mut self, now: Time) {
        if self.open.is_empty() {
            return;
        }
        let late = self.open.extract_if(.., |_, q| now >= q.until);
        let late: Vec<ReplicaQuery> = late.map(|(_, q)| q).collect();
        late.into_iter().for_each(ReplicaQuery::finish);
    }

    fn take(&mut self, from: NodeId, token: u64, told: ReplicaReport) {
        let Some(question) = self.open.get_mut(&token) else {
            return;
        };
        if question.silent.remove(&from) {
            question.told.insert(from, told);
        }
        if question.silent.is_empty()
            && let Some(question) = self.open.remove(&token)
        {
            question.finish();
        }
    }
}

impl ReplicaQuery {
    fn finish(self) {
        let leaders = self.told.values().filter(|t| {
            let leads = |r: &control::ReplicaStatus| r.is_leader;
            t.replica.as_ref().is_some_and(leads)
        });
        // One that has been replaced may not know it yet.
        let leader = leaders.max_by_key(|t| t.replica.map(|r| r.term));
        let votes: BTreeMap<NodeId, Vote> =
            leader.map(|t| t.votes.iter().collect()).unwrap_or_default();
        let holds = |n: &&NodeId| self.told.get(*n).is_some_and(|t| t.replica.is_some());
        let nodes: BTreeSet<NodeId> = self
            .wanted
            .iter()
            .chain(votes.keys())
            .chain(self.told.keys().filter(holds))
            .copied()
            .collect();
        let facts = nodes.into_iter().map(|node| ReplicaFacts {
            node,
            vote: match (leader, votes.get(&node)) {
                (None, _) => Vote::Unknown,
                (Some(_), vote) => vote.copied().unwrap_or(Vote::None),
            },
            replica: self.told.get(&node).and_then(|t| t.replica),
        });
        (self.reply)(facts.collect());
    }
}

impl Core {
    /// Asks every node that can be reached: one that is no member may still have a replica.
    pub fn ask_replicas(&mut self, queue: QueueId, reply: Reply<Vec<ReplicaFacts>>) {
        let wanted = self.tree.queue_by_id(queue).map(|r| r.members.clone());
        let me = self.ctx.node();
        let asked: BTreeSet<NodeId> = self.peers.all_up().chain([me]).collect();
        let questions = &mut self.members.questions;
        questions.next += 1;
        let token = questions.next;
        let question = ReplicaQuery {
            reply,
            wanted: wanted.unwrap_or_default(),
            silent: asked.clone(),
            told: BTreeMap::new(),
            until: self.ctx.now() + GATHER_WITHIN,
        };
        questions.open.insert(token, question);
        if questions.open.len() > MAX_OPEN
            && let Some((_, oldest)) = questions.open.pop_first()
        {
            oldest.finish();
        }
        let reply_shard = self.ctx.shard();
        let peer_message = MembershipMessage::ReplicaRequest {
            token,
            reply_shard,
            queue,
        };
        for node in asked.into_iter().filter(|n| *n != me) {
            self.ctx.send_to_peer(
                node,
                Route::Owner(queue.0),
                &Frame::Members(peer_message.clone()),
            );
        }
        match self.ctx.owner_shard(queue) {
            shard if shard == reply_shard => self.replica_asked(me, token, reply_shard, queue),
            shard => self.ctx.send_to_shard(shard, &Frame::Members(peer_message)),
        }
    }

    pub fn replica_asked(&mut self, from: NodeId, token: u64, reply_shard: u16, queue: QueueId) {
        let told = self.queues.local().tell_replica(queue);
        if from == self.ctx.node() && reply_shard == self.ctx.shard() {
            return self.replica_told(from, token, told);
        }
        let frame = Frame::Members(MembershipMessage::Replica { token, told });
        if from == self.ctx.node() {
            self.ctx.send_to_shard(reply_shard, &frame);
        } else {
            self.ctx
                .send_to_peer(from, Route::Shard(reply_shard), &frame);
        }
    }

    pub fn replica_told(&mut self, from: NodeId, token: u64, told: ReplicaReport) {
        self.members.questions.take(from, token, told);
    }
}
