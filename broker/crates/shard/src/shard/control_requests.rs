//! The control plane's requests, answered by shard 0 from its tree, its groups and what the others tell.

use super::ShardState;
use crate::critical;
use crate::frame::{AlarmReason, Frame, MAX_STATS};
use crate::local_queues::transfer_targets::TransferTargets;
use crate::members::Plan;
use crate::members::frame::MembershipMessage;
use crate::metadata_client::{ChangeRequester, MetadataLeader};
use crate::sessions::InternalSession;
use crate::shard::walks::{ReplyTo, STEP, Walk};
use crate::stats::{Merge, Select, ShardStats, StatsPurpose, StatsResult};
use crate::{Effect, Route};
use control::{ControlRequest, NodeFacts, QueueFacts, Readiness, Reply};
use env::NodeId;
use metadata::{Change, ChangeError, QueueId, QueueRecord};

impl ShardState {
    pub fn control(&mut self, request: ControlRequest) {
        match request {
            ControlRequest::Read(job) => job(self.metadata.tree()),
            ControlRequest::Walk(walk) => self.walks.add(Walk::Tree(walk)),
            ControlRequest::Change { change, reply } => {
                self.ask(change, ChangeRequester::Control(reply))
            }
            ControlRequest::PlaceQueue { record, reply } => reply(self.topology().place(&record)),
            ControlRequest::Queues { only, reply } => {
                self.gather_stats(only, StatsPurpose::Tell(reply))
            }
            ControlRequest::OwnQueues { reply } => {
                self.gather_stats(None, StatsPurpose::TellOwn(Vec::new(), reply))
            }
            ControlRequest::Queue { queue, body, reply } => {
                let session = InternalSession::Control.number(self.ctx.shard());
                self.queues.request_for_control(
                    &mut self.ctx,
                    self.metadata.tree(),
                    session,
                    queue,
                    body,
                    reply,
                );
            }
            ControlRequest::Nodes { reply } => reply(self.node_facts()),
            ControlRequest::QuorumCritical { reply } => self.quorum_critical(reply),
            ControlRequest::Publish {
                vhost,
                user,
                build,
                reply,
            } => self.publish_internal((&vhost, &user), build, reply),
            ControlRequest::Get {
                queue,
                user,
                count,
                bytes,
                settle,
                reply,
            } => {
                self.internal_client.begin_get(
                    &self.ctx,
                    self.metadata.tree(),
                    (queue, user),
                    (count, bytes),
                    settle,
                    reply,
                );
                self.route_internal_client();
            }
            ControlRequest::Readiness { reply } => reply(self.readiness()),
            ControlRequest::Membership(request) => self.membership_request(request),
            ControlRequest::RebalanceQueues { reply } => {
                self.gather_for(None, Plan::Rebalance(reply));
            }
            // Need the connections: answered by the shard.
            ControlRequest::Connections { .. }
            | ControlRequest::Consumers { .. }
            | ControlRequest::Counters { .. }
            | ControlRequest::CloseConnection { .. }
            | ControlRequest::Traffic { .. }
            | ControlRequest::Maintenance { .. } => {}
        }
    }

    fn node_facts(&self) -> Vec<NodeFacts> {
        let me = self.ctx.node();
        let facts = self.metadata.tree().nodes().map(|n| NodeFacts {
            id: n.id,
            name: n.name.to_string(),
            running: n.id == me || self.cluster.peers.is_up(n.id),
            maintenance: n.maintenance,
            voter: n.voter,
            address: n.address.to_string(),
            zone: self.metadata.tree().zone(n.id).to_owned(),
            uptime_s: (n.id == me).then(|| self.ctx.now().since(self.ctx.started()).as_secs()),
            memory_alarm: self.cluster.alarms.has(AlarmReason::Memory, n.id),
            disk_alarm: self.cluster.alarms.has(AlarmReason::Disk, n.id),
            version: match n.id == me {
                true => Some(self.ctx.config().program.facts()),
                false => self.cluster.peers.program(n.id).cloned(),
            },
        });
        facts.collect()
    }

    /// Groups that would be left without a majority of voters that are there (see `critical`).
    fn quorum_critical(&mut self, reply: Reply<Vec<QueueId>>) {
        let me = self.ctx.node();
        let voters = self
            .queues
            .local()
            .metadata_status()
            .map(|s| s.membership.voters);
        let up = |n| self.cluster.peers.is_up(n);
        if voters
            .as_ref()
            .is_some_and(|v| critical::is_cut_off(me, v, up))
        {
            return reply(Vec::new());
        }
        let metadata = voters.is_some_and(|v| critical::needs(me, &v, up));
        let found = metadata.then_some(QueueId(0)).into_iter().collect();
        let fits = Box::new(move |record: &QueueRecord, facts: &QueueFacts| {
            record.kind.is_replicated() && critical::queue_needs(me, facts)
        });
        let select = Select { fits, found, reply };
        self.gather_stats(None, StatsPurpose::Select(select));
    }

    fn readiness(&self) -> Readiness {
        let not = |why: &str| Readiness::NotReady(why.to_string());
        let Some(leader) = self.metadata.leader() else {
            return not("asked the wrong shard");
        };
        if self.cluster.is_draining {
            return not("draining");
        }
        if !self
            .metadata
            .tree()
            .nodes()
            .any(|n| n.id == self.ctx.node())
        {
            return not("joining: this node is not yet a member of the cluster");
        }
        if !self.metadata.is_caught_up() {
            return Readiness::NotReady(self.catching_up());
        }
        if self.metadata.is_in_handshake() {
            return not("learning what clients of the other nodes have subscribed to");
        }
        match leader {
            MetadataLeader::Unknown => {
                not("the metadata group has no leader that this node can reach")
            }
            MetadataLeader::Other(node) if !self.cluster.peers.is_up(node) => {
                not("the metadata leader cannot be reached")
            }
            _ if self.queues.local().recovering() => not("recovering"),
            _ => Readiness::Ready,
        }
    }

    /// The progress of a node that catches up: entries applied, entries known, and the leader.
    fn catching_up(&self) -> String {
        let what = "catching up with what the cluster decided while this node was away";
        let Some(status) = self.queues.local().metadata_status() else {
            return format!("{what}: it has nothing of the metadata log yet");
        };
        let leader = match status.leader {
            Some(node) => format!("the leader is node {:016x}", node.0),
            None => "no leader is known".to_owned(),
        };
        format!(
            "{what}: {} of {} entries of the metadata log that it knows of are applied, {leader}",
            status.applied, status.last_index
        )
    }

    /// Carries something out with what all owners tell.
    pub fn gather_for(&mut self, only: Option<QueueId>, plan: Plan) {
        self.gather_stats(only, StatsPurpose::CarryOut(plan));
    }

    /// All have told, or their time is up.
    pub fn finish_gathering(&mut self, token: u64) {
        match self.stats.finish(token) {
            None => {}
            Some(StatsResult::Own(facts, reply)) => reply(facts),
            Some(StatsResult::Merge(mut merge)) if merge.is_single() => {
                merge.step(self.metadata.tree(), 1);
                self.merged(merge);
            }
            Some(StatsResult::Merge(merge)) => self.walks.add(Walk::Merge(Box::new(merge))),
        }
    }

    /// What owners told was put together.
    pub fn merged(&mut self, merge: Merge) {
        let Merge {
            facts,
            from_all,
            then,
            ..
        } = merge;
        match then {
            StatsPurpose::Tell(reply) | StatsPurpose::TellOwn(_, reply) => reply(facts),
            StatsPurpose::Select(select) => (select.reply)(select.found),
            StatsPurpose::CarryOut(Plan::Forget { reply, .. }) if !from_all => {
                let text = "a node that is up has not told about its queues in time: ask again";
                reply(Err(ChangeError::Unavailable(text.into())));
            }
            StatsPurpose::CarryOut(plan) => self.carry_out_plan(plan, &facts),
        }
    }

    fn gather_stats(&mut self, only: Option<QueueId>, then: StatsPurpose) {
        let me = self.ctx.node();
        // This node's own life is among those known.
        let everywhere = !matches!(then, StatsPurpose::TellOwn(..));
        let peers = self
            .cluster
            .peers
            .all_up()
            .filter(|n| *n != me && everywhere);
        let peers: Vec<NodeId> = peers.collect();
        let shards = self.ctx.config().shards;
        let asked = usize::from(shards) * (peers.len() + 1);
        let counting = then.counting();
        let (token, early) = self.stats.begin(self.ctx.now(), only, asked, then);
        let frame = Frame::StatsRequest {
            token,
            reply_shard: self.ctx.shard(),
            only,
            counting,
        };
        for peer in peers {
            for shard in 0..shards {
                self.ctx.send_to_peer(peer, Route::Shard(shard), &frame);
            }
        }
        self.ctx.send_to_other_shards(&frame);
        let shard = self.ctx.shard();
        let node = me;
        self.answer_stats(ReplyTo { node, shard, token }, (only, counting));
        if let Some(token) = early {
            self.finish_gathering(token);
        }
    }

    pub fn answer_stats(
        &mut self,
        to: ReplyTo,
        (only, counting): (Option<QueueId>, Option<NodeId>),
    ) {
        match only {
            Some(queue) => {
                let told = self.queues.local().told(&[queue], None);
                self.tell_stats(to, told, true);
            }
            None => self.walks.add(Walk::Figures {
                to,
                counting,
                next: QueueId::NONE,
            }),
        }
    }

    /// At most [`MAX_STATS`] fit into a frame.
    pub fn tell_stats(&mut self, to: ReplyTo, told: ShardStats, last: bool) {
        const { assert!(STEP <= MAX_STATS) };
        let (token, me) = (to.token, self.ctx.node());
        if (to.node, to.shard) == (me, self.ctx.shard()) {
            return self.take_stats(me, token, last, told);
        }
        let ShardStats { stats, counting } = told;
        let frame = Frame::StatsReply {
            token,
            last,
            stats,
            counting,
        };
        if to.node == me {
            self.ctx.send_to_shard(to.shard, &frame);
        } else {
            self.ctx
                .send_to_peer(to.node, Route::Shard(to.shard), &frame);
        }
    }

    pub fn take_stats(&mut self, from: NodeId, token: u64, last: bool, told: ShardStats) {
        if self.stats.take(token, (from, self.ctx.now()), last, told) {
            self.finish_gathering(token);
        }
    }

    pub fn tell_alarm(&mut self, peer: NodeId, reason: AlarmReason, on: bool) {
        for shard in 0..self.ctx.config().shards {
            self.ctx
                .send_to_peer(peer, Route::Shard(shard), &Frame::Alarm { reason, on });
        }
    }

    /// Drain or revive this node.
    pub fn set_maintenance(&mut self, on: bool) {
        if self.cluster.is_draining != on
            && self.metadata.is_caught_up()
            && !self.metadata.is_in_handshake()
        {
            self.ctx.push_effect(Effect::Listen(!on));
        }
        self.cluster.is_draining = on;
        if self.ctx.is_first_shard() {
            self.ctx
                .send_to_other_shards(&Frame::Members(MembershipMessage::Drain { on }));
            self.tell_maintenance();
        }
        if on {
            self.move_leaders();
        }
    }

    /// Sees to it that the cluster knows whether this node is drained.
    fn tell_maintenance(&mut self) {
        let (id, on) = (self.ctx.node(), self.cluster.is_draining);
        if self
            .metadata
            .tree()
            .node(id)
            .is_some_and(|n| n.maintenance != on)
        {
            self.ask(Change::SetMaintenance { id, on }, ChangeRequester::Nobody);
        }
    }

    /// A restart ends maintenance: what an earlier life of this node told the cluster no longer holds.
    pub fn end_old_maintenance(&mut self) {
        if !self.cluster.is_draining {
            self.tell_maintenance();
        }
    }

    pub fn start_draining(&mut self) {
        self.cluster.is_draining = true;
        self.ctx.push_effect(Effect::Listen(false));
        self.move_leaders();
    }

    pub fn move_leaders(&mut self) {
        let avoid = self.topology().drained();
        let transfer_targets = TransferTargets {
            me: self.ctx.node(),
            tree: self.metadata.tree(),
            peers: &self.cluster.peers,
            avoid: &avoid,
        };
        self.queues.local_mut().move_leaders(&transfer_targets);
    }
}
