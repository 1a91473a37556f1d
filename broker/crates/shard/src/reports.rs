//! Reports that the control plane gets about everything of a kind: statistics of queues, connections, consumers, counters.
//!
//! Owns: the requests to other shards whose answers are awaited, and the walks over this shard that are not done.
//!
//! Inputs: requests of the control plane, questions and answers of other shards, time. Queues, connections and the tree are
//! read-only arguments.
//!
//! Outputs: frames through the [`Context`], answers to requesters, and what the loop does with complete statistics
//! ([`Reports::next_complete`]) and counters ([`Reports::next_collected`]).

use crate::context::Context;
use crate::frame::{Frame, MAX_STATS};
use crate::listings::{ListingTarget, Listings};
use crate::local_queues::LocalQueues;
use crate::peers::Peers;
use crate::sessions::Sessions;
use crate::stats::{Merge, ShardStats, StatsPurpose, StatsRequests, StatsResult};
use crate::walks::{COST_OF_CLIENT, COST_OF_READ, ReplyTo, STEP, StatsWalks, Walk};
use bytes::Bytes;
use control::{
    ConsumerFacts, Counters, ShardFacts, ShardQuery, StreamFilter, StreamReplicaFacts, WalkProgress,
};
use env::{NodeId, Time};
use metadata::features::HEAD_MESSAGE_AGES;
use metadata::{QueueId, Tree};
use queue::{DelayedDetails, HeadMessage, ReadyDetails};
use session::ServiceStates;
use std::collections::VecDeque;

/// Statistics of one queue, or of all, and the node that replicas are asked about.
pub(crate) type StatsQuestion = (Option<QueueId>, Option<NodeId>);

#[derive(Default)]
pub(crate) struct Reports {
    stats: StatsRequests,
    listings: Listings,
    walks: StatsWalks,
    complete: VecDeque<Merge>,
}

impl Reports {
    pub(crate) fn begin_turn(&mut self) {
        self.walks.begin_turn();
    }

    /// Returns true if a walk is not done.
    pub(crate) fn has_walks(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Items that walks have visited since the shard began.
    pub(crate) fn listed_items(&self) -> u64 {
        self.walks.looked_at()
    }

    pub(crate) fn add_walk(&mut self, walk: Walk) {
        self.walks.add(walk);
    }

    /// Statistics that are complete.
    pub(crate) fn next_complete(&mut self) -> Option<Merge> {
        self.complete.pop_front()
    }

    /// Counters that were collected for the service at this position.
    pub(crate) fn next_collected(&mut self) -> Option<(usize, Box<Counters>)> {
        self.listings.take_collected()
    }

    /// Ends the requests whose time is up, with the answers that are there.
    pub(crate) fn tick(&mut self, now: Time, tree: &Tree) {
        if self.stats.is_gathering() {
            for token in self.stats.late(now) {
                self.finish_stats(tree, token);
            }
        }
        self.listings.tick(now);
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        let walks = self.has_walks().then_some(now);
        let all = [self.stats.wake_at(), self.listings.wake_at(), walks];
        Time::earliest(all)
    }

    /// Sends a question to all other shards of all nodes, or of this one. Returns its token.
    pub(crate) fn ask_shards(
        &mut self,
        ctx: &mut Context,
        peers: &Peers,
        question: &ShardQuery,
        everywhere: bool,
        target: ListingTarget,
    ) -> u64 {
        let peers = asked_peers(ctx, peers, everywhere);
        let asked = count_shards(ctx, &peers);
        let token = self.listings.begin(ctx.now(), asked, target);
        let frame = Frame::ControlQuestion {
            token,
            reply_shard: ctx.shard(),
            question: Bytes::from(question.encode()),
        };
        for (peer, shards) in peers {
            ctx.send_to_shards_of_peer(peer, shards, &frame);
        }
        ctx.send_to_other_shards(&frame);
        token
    }

    /// Answers a question, or a part of it.
    pub(crate) fn tell_facts(
        &mut self,
        ctx: &mut Context,
        to: ReplyTo,
        facts: ShardFacts,
        last: bool,
    ) {
        let token = to.token;
        if (to.node, to.shard) == (ctx.node(), ctx.shard()) {
            let from = (to.node, ctx.now());
            return self.listings.take(token, from, last, Some(facts));
        }
        let frame = Frame::ControlAnswer {
            token,
            last,
            facts: Bytes::from(facts.encode()),
        };
        ctx.send_to(to.node, to.shard, frame);
    }

    /// Another shard has answered a question, or a part of it. `None`: it is a newer one, and its answer cannot be read.
    pub(crate) fn handle_facts(
        &mut self,
        now: Time,
        from: NodeId,
        token: u64,
        last: bool,
        facts: Option<ShardFacts>,
    ) {
        self.listings.take(token, (from, now), last, facts);
    }

    /// Gathers statistics of one queue, or of all, from their owners.
    pub(crate) fn gather_stats(
        &mut self,
        ctx: &mut Context,
        (tree, local, peers): (&Tree, &mut LocalQueues, &Peers),
        only: Option<QueueId>,
        then: StatsPurpose,
    ) {
        let everywhere = !matches!(then, StatsPurpose::TellOwn(..));
        let peers = asked_peers(ctx, peers, everywhere);
        let asked = count_shards(ctx, &peers);
        let counting = then.counting();
        let (token, early) = self.stats.begin(ctx.now(), only, asked, then);
        let frame = Frame::StatsRequest {
            token,
            reply_shard: ctx.shard(),
            only,
            counting,
        };
        for (peer, shards) in peers {
            ctx.send_to_shards_of_peer(peer, shards, &frame);
        }
        ctx.send_to_other_shards(&frame);
        let to = ReplyTo {
            node: ctx.node(),
            shard: ctx.shard(),
            token,
        };
        self.answer_stats(ctx, (tree, local), to, (only, counting));
        if let Some(token) = early {
            self.finish_stats(tree, token);
        }
    }

    /// Answers a request for statistics of queues of this shard.
    pub(crate) fn answer_stats(
        &mut self,
        ctx: &mut Context,
        (tree, local): (&Tree, &mut LocalQueues),
        to: ReplyTo,
        (only, counting): StatsQuestion,
    ) {
        match only {
            Some(queue) => {
                let mut told = local.told(&[queue], None);
                if tree.feature_enabled(HEAD_MESSAGE_AGES.name) {
                    let head = local.head(queue).message;
                    told.heads.extend(head.map(|head| (queue, head)));
                }
                self.tell_stats(ctx, tree, to, told, true);
            }
            None => self.walks.add(Walk::Figures {
                to,
                counting,
                next: QueueId::NONE,
            }),
        }
    }

    /// Sends statistics, at most [`MAX_STATS`] of them.
    fn tell_stats(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        to: ReplyTo,
        told: ShardStats,
        last: bool,
    ) {
        const { assert!(STEP <= MAX_STATS) };
        let token = to.token;
        if (to.node, to.shard) == (ctx.node(), ctx.shard()) {
            let me = (to.node, ctx.now());
            return self.handle_stats(tree, me, token, last, told);
        }
        let ShardStats {
            stats,
            counting,
            ready,
            delayed,
            heads,
        } = told;
        // There are none without the feature flag.
        if !heads.is_empty() {
            let frame = Frame::HeadMessages { token, heads };
            ctx.send_to(to.node, to.shard, frame);
        }
        // Versions without these frames have no queue with such details.
        if !delayed.is_empty() {
            let frame = Frame::DelayedDetails { token, delayed };
            ctx.send_to(to.node, to.shard, frame);
        }
        if !ready.is_empty() {
            let frame = Frame::ReadyDetails { token, ready };
            ctx.send_to(to.node, to.shard, frame);
        }
        let frame = Frame::StatsReply {
            token,
            last,
            stats,
            counting,
        };
        ctx.send_to(to.node, to.shard, frame);
    }

    /// A shard has sent statistics, or a part of them.
    pub(crate) fn handle_stats(
        &mut self,
        tree: &Tree,
        from: (NodeId, Time),
        token: u64,
        last: bool,
        told: ShardStats,
    ) {
        if self.stats.take(token, from, last, told) {
            self.finish_stats(tree, token);
        }
    }

    /// A shard has sent details about ready messages, ahead of the statistics of their queues.
    pub(crate) fn handle_ready_details(&mut self, token: u64, ready: Vec<(QueueId, ReadyDetails)>) {
        self.stats.take_ready(token, ready);
    }

    /// A shard has sent details about delayed messages, ahead of the statistics of their queues.
    pub(crate) fn handle_delayed_details(
        &mut self,
        token: u64,
        delayed: Vec<(QueueId, DelayedDetails)>,
    ) {
        self.stats.take_delayed(token, delayed);
    }

    /// A shard has sent the oldest ready messages, ahead of the statistics of their queues.
    pub(crate) fn handle_head_messages(&mut self, token: u64, heads: Vec<(QueueId, HeadMessage)>) {
        self.stats.take_heads(token, heads);
    }

    fn finish_stats(&mut self, tree: &Tree, token: u64) {
        match self.stats.finish(token) {
            None => {}
            Some(StatsResult::Own(facts, reply)) => reply(facts),
            Some(StatsResult::Merge(mut merge)) if merge.is_single() => {
                merge.step(tree, 1);
                self.complete.push_back(*merge);
            }
            Some(StatsResult::Merge(merge)) => self.walks.add(Walk::Merge(merge)),
        }
    }

    /// Continues the walks, as far as the turn's share allows.
    pub(crate) fn walk(
        &mut self,
        ctx: &mut Context,
        (tree, local): (&Tree, &mut LocalQueues),
        (sessions, services): (&Sessions, &ServiceStates),
    ) {
        while let Some((mut walk, limit)) = self.walks.take() {
            let progress = match &mut walk {
                Walk::Figures { to, counting, next } => {
                    let has_heads = tree.feature_enabled(HEAD_MESSAGE_AGES.name);
                    let (told, progress) = figures(local, next, limit, (*counting, has_heads));
                    self.tell_stats(ctx, tree, *to, told, progress.done);
                    progress
                }
                Walk::Consumers { to, next } => {
                    let (part, progress) = consumers(local, next, limit);
                    let facts = ShardFacts::Consumers(part);
                    self.tell_facts(ctx, *to, facts, progress.done);
                    progress
                }
                Walk::Streams { to, of, next } => {
                    let (part, progress) = streams(local, *of, next, limit);
                    let facts = ShardFacts::Streams(part);
                    self.tell_facts(ctx, *to, facts, progress.done);
                    progress
                }
                Walk::Connections { to, next } => {
                    let (part, progress) = sessions.facts_from(next, ctx.node(), services, limit);
                    let facts = ShardFacts::Connections(part);
                    self.tell_facts(ctx, *to, facts, progress.done);
                    progress
                }
                Walk::Merge(merge) => merge.step(tree, limit),
                Walk::Tree(walk) => walk.step(tree, limit),
            };
            self.walks.count(progress);
            match walk {
                Walk::Merge(merge) if progress.done => self.complete.push_back(*merge),
                walk => self.walks.give_back(walk, progress),
            }
        }
    }
}

/// The other nodes to ask: all that are up, or none.
fn asked_peers(ctx: &Context, peers: &Peers, everywhere: bool) -> Vec<(NodeId, u16)> {
    let others = peers.shards_up(ctx.node());
    others.filter(|_| everywhere).collect()
}

/// Number of shards of this node and of these peers.
fn count_shards(ctx: &Context, peers: &[(NodeId, u16)]) -> usize {
    let others = peers.iter().map(|(_, shards)| usize::from(*shards));
    usize::from(ctx.config().shards) + others.sum::<usize>()
}

/// Statistics of the queues from `next` on, with their oldest messages if `has_heads`.
fn figures(
    local: &mut LocalQueues,
    next: &mut QueueId,
    limit: usize,
    (counting, has_heads): (Option<NodeId>, bool),
) -> (ShardStats, WalkProgress) {
    let mut queues: Vec<QueueId> = local.ids_from(*next).take(limit).collect();
    let mut done = queues.len() < limit;
    let (mut looked_at, mut heads) = (queues.len(), Vec::new());
    if has_heads {
        looked_at = 0;
        let mut count = 0;
        for queue in &queues {
            if looked_at >= limit {
                done = false;
                break;
            }
            let head = local.head(*queue);
            looked_at += 1 + COST_OF_READ * usize::from(head.has_read);
            heads.extend(head.message.map(|message| (*queue, message)));
            count += 1;
        }
        queues.truncate(count);
    }
    if let Some(last) = queues.last() {
        *next = QueueId(last.0.saturating_add(1));
    }
    let told = ShardStats {
        heads,
        ..local.told(&queues, counting)
    };
    (told, WalkProgress { looked_at, done })
}

/// Consumers of the queues from `next` on.
fn consumers(
    local: &LocalQueues,
    next: &mut QueueId,
    limit: usize,
) -> (Vec<ConsumerFacts>, WalkProgress) {
    let mut part = Vec::new();
    let (mut looked_at, mut done) = (0, true);
    for queue in local.ids_from(*next) {
        if looked_at >= limit {
            done = false;
            break;
        }
        *next = QueueId(queue.0.saturating_add(1));
        let before = part.len();
        part.extend(consumers_of(local, queue));
        looked_at += 1 + COST_OF_CLIENT * (part.len() - before);
    }
    (part, WalkProgress { looked_at, done })
}

/// Replicas of the streams from `next` on.
fn streams(
    local: &LocalQueues,
    of: StreamFilter,
    next: &mut QueueId,
    limit: usize,
) -> (Vec<StreamReplicaFacts>, WalkProgress) {
    let mut part = Vec::new();
    let (mut looked_at, mut done) = (0, true);
    for queue in local.ids_from(*next) {
        if looked_at >= limit {
            done = false;
            break;
        }
        *next = QueueId(queue.0.saturating_add(1));
        let facts = local.stream_facts(queue, of);
        looked_at += 1 + facts.as_ref().map_or(0, |facts| facts.readers.len());
        part.extend(facts);
    }
    (part, WalkProgress { looked_at, done })
}

fn consumers_of(local: &LocalQueues, queue: QueueId) -> impl Iterator<Item = ConsumerFacts> {
    let all = local.consumers(queue).into_iter();
    all.map(move |c| ConsumerFacts {
        queue: queue.0,
        session_node: c.session.node.0,
        session_number: c.session.number,
        channel: c.spec.channel,
        tag: c.spec.tag.to_string(),
        exclusive: c.spec.exclusive,
        prefetch: c.spec.prefetch,
        active: c.active,
        arguments: control::json::object(&c.spec.arguments),
    })
}
