//! The control plane's requests, answered by shard 0 from its tree, its groups and what the others tell.

use super::ShardState;
use crate::Effect;
use crate::critical;
use crate::frame::{AlarmReason, Frame};
use crate::local_queues::transfer_targets::TransferTargets;
use crate::members::Plan;
use crate::members::frame::MembershipMessage;
use crate::metadata_client::{ChangeRequester, MetadataLeader};
use crate::sessions::InternalSession;
use crate::stats::{Merge, Select, StatsPurpose};
use crate::walks::{ReplyTo, Walk};
use consensus::GroupStatus;
use control::{
    BrowseFacts, ControlRequest, Counters, DeadLetterTotals, ExchangeCounts, NodeFacts,
    NodeResources, QueueFacts, Readiness, Reply, ShardFacts, ShardQuery, StreamFilter,
    TrafficFacts, TrafficFilter,
};
use metadata::{Change, ChangeError, QueueId, QueueRecord};
use queue::ByQueueType;

impl ShardState {
    pub fn control(&mut self, request: ControlRequest) {
        match request {
            ControlRequest::Read(job) => job(self.metadata.tree()),
            ControlRequest::Walk(walk) => self.reports.add_walk(Walk::Tree(walk)),
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
            ControlRequest::Move { request, reply } => {
                self.internal_client
                    .begin_move(&self.ctx, self.metadata.tree(), request, reply);
                self.route_internal_client();
            }
            ControlRequest::Import { request, reply } => {
                self.internal_client
                    .begin_import(&self.ctx, self.metadata.tree(), request, reply);
                self.route_internal_client();
            }
            ControlRequest::Readiness { reply } => reply(self.readiness()),
            ControlRequest::StateClientAddresses { addresses } => {
                self.client_addresses = addresses;
                self.state_client_addresses();
            }
            ControlRequest::Membership(request) => self.membership_request(request),
            ControlRequest::RebalanceQueues { reply } => {
                self.gather_for(None, Plan::Rebalance(reply));
            }
            // Need the connections: answered by the shard.
            ControlRequest::Connections { .. }
            | ControlRequest::Consumers { .. }
            | ControlRequest::Counters { .. }
            | ControlRequest::Streams { .. }
            | ControlRequest::Browse { .. }
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
            running: n.id == me || self.cluster.peers().is_up(n.id),
            maintenance: n.maintenance,
            voter: n.voter,
            address: n.address.to_string(),
            zone: self.metadata.tree().zone(n.id).to_owned(),
            client_addresses: self.metadata.tree().client_addresses(n.id).to_vec(),
            uptime_s: (n.id == me).then(|| self.ctx.now().since(self.ctx.started()).as_secs()),
            memory_alarm: self.cluster.alarms().has(AlarmReason::Memory, n.id),
            disk_alarm: self.cluster.alarms().has(AlarmReason::Disk, n.id),
            version: match n.id == me {
                true => Some(self.ctx.config().program.facts()),
                false => self.cluster.peers().program(n.id).cloned(),
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
        let up = |n| self.cluster.peers().is_up(n);
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
        if !self
            .metadata
            .tree()
            .nodes()
            .any(|n| n.id == self.ctx.node())
        {
            return not("joining: this node is not yet a member of the cluster");
        }
        if !self.metadata.is_caught_up() {
            return Readiness::NotReady(catching_up(self.queues.local().metadata_status()));
        }
        if self.metadata.is_in_handshake() {
            return not("learning what clients of the other nodes have subscribed to");
        }
        match leader {
            MetadataLeader::Unknown => {
                not("the metadata group has no leader that this node can reach")
            }
            MetadataLeader::Other(node) if !self.cluster.peers().is_up(node) => {
                not("the metadata leader cannot be reached")
            }
            _ if self.queues.local().recovering() => not("recovering"),
            _ if self.cluster.is_draining() => Readiness::Draining,
            _ => Readiness::Ready,
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

    /// Drain or revive this node.
    pub fn set_maintenance(&mut self, on: bool) {
        if self.cluster.is_draining() != on
            && self.metadata.is_caught_up()
            && !self.metadata.is_in_handshake()
        {
            self.ctx.push_effect(Effect::Listen(!on));
        }
        self.cluster.set_draining(on);
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
        let (id, on) = (self.ctx.node(), self.cluster.is_draining());
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
        if !self.cluster.is_draining() {
            self.tell_maintenance();
        }
    }

    pub fn start_draining(&mut self) {
        self.cluster.set_draining(true);
        self.ctx.push_effect(Effect::Listen(false));
        self.move_leaders();
    }

    pub fn move_leaders(&mut self) {
        let avoid = self.topology().drained();
        let transfer_targets = TransferTargets {
            me: self.ctx.node(),
            tree: self.metadata.tree(),
            peers: self.cluster.peers(),
            avoid: &avoid,
        };
        self.queues.local_mut().move_leaders(&transfer_targets);
    }

    /// Gathers statistics of queues.
    fn gather_stats(&mut self, only: Option<QueueId>, then: StatsPurpose) {
        let sources = (
            self.metadata.tree(),
            self.queues.local_mut(),
            self.cluster.peers(),
        );
        self.reports
            .gather_stats(&mut self.ctx, sources, only, then);
        self.route_reports();
    }

    /// Carries out a plan with the statistics of queues.
    pub fn gather_for(&mut self, only: Option<QueueId>, plan: Plan) {
        self.gather_stats(only, StatsPurpose::CarryOut(plan));
    }

    /// Uses the statistics that are complete.
    pub fn route_reports(&mut self) {
        while let Some(merge) = self.reports.next_complete() {
            self.merged(merge);
        }
    }

    /// Resource usage of the node. One shard reports it for all of them.
    fn resources(&self) -> Option<NodeResources> {
        let config = self.ctx.config();
        let measure = config.resources.0.as_ref().filter(|_| config.index == 0)?;
        let uptime = self.ctx.now().since(self.ctx.started()).as_secs();
        Some(NodeResources {
            uptime_s: Some(uptime),
            ..measure()
        })
    }

    pub fn counters(&mut self) -> Counters {
        let (t, deaths) = (self.limits.counters(), self.queues.local().deaths());
        let mut counters = Counters {
            connections_opened: t.connections_opened,
            connections_closed: t.connections_closed,
            channels_opened: t.channels_opened,
            channels_closed: t.channels_closed,
            connections: self.limits.sessions().connections(),
            channels: self.limits.sessions().channels(),
            queues: self.queues.local().totals(),
            protocols: t.protocols(),
            logins: t.logins(),
            stream: t.stream().clone(),
            dead_letters: ByQueueType::from_fn(|queue_type| {
                let confirms = queue_type.descriptor().dead_letter_at_least_once;
                DeadLetterTotals {
                    confirmed: u64::from(confirms) * self.dead_letters.counts().confirmed,
                    ..DeadLetterTotals::of(deaths, queue_type)
                }
            }),
            raft: self.queues.local().raft_counters(),
            quota_paused_ms: u64::try_from(self.limits.quota_paused(self.ctx.now()).as_millis())
                .unwrap_or(u64::MAX),
            stored_bytes: self.limits.stored_bytes().facts(),
            resources: self.resources(),
            ..Counters::default()
        };
        self.each_service(|service, view| service.add_counters(view, &mut counters));
        counters
    }

    /// Of what is asked for and was used at all.
    fn traffic(&self, of: &TrafficFilter) -> TrafficFacts {
        let mut facts = TrafficFacts::default();
        for vhost in of
            .vhosts
            .iter()
            .filter(|v| self.metadata.tree().vhost_exists(v))
        {
            let counts = self.limits.counters().messages(vhost);
            if counts != control::MessageCounts::default() {
                facts.vhosts.insert(vhost.clone(), counts);
            }
        }
        for (vhost, name) in &of.exchanges {
            let Some(counted) = self.metadata.tree().traffic(vhost, name) else {
                continue;
            };
            // Sessions that publish to one exchange only do not count it in the tree.
            let uncounted = self.limits.counters().published_by(vhost, |protocol| {
                self.services.publishes_to(protocol) == Some(&**name)
            });
            let counts = ExchangeCounts {
                publish_in: counted.published + uncounted.published,
                publish_out: counted.routed + uncounted.routed,
            };
            if counts != ExchangeCounts::default() {
                let theirs = facts.exchanges.entry(vhost.clone()).or_default();
                theirs.insert(name.clone(), counts);
            }
        }
        facts
    }

    /// Answers a question of another shard, or of this one. There may be many connections and consumers: that takes several turns.
    pub fn answer_question(&mut self, to: ReplyTo, question: &ShardQuery) {
        match question {
            ShardQuery::Connections => self.reports.add_walk(Walk::Connections { to, next: 0 }),
            ShardQuery::Consumers => {
                let next = QueueId::NONE;
                self.reports.add_walk(Walk::Consumers { to, next });
            }
            ShardQuery::Counters => {
                let counters = Box::new(self.counters());
                self.reports
                    .tell_facts(&mut self.ctx, to, ShardFacts::Counters(counters), true);
            }
            ShardQuery::Traffic(of) => {
                let traffic = self.traffic(of);
                self.reports
                    .tell_facts(&mut self.ctx, to, ShardFacts::Traffic(traffic), true);
            }
            ShardQuery::Streams(of) => match of.queue {
                None => {
                    // Stored offsets of all streams together have no limit.
                    let of = StreamFilter {
                        tracking: false,
                        ..*of
                    };
                    let next = QueueId::NONE;
                    self.reports.add_walk(Walk::Streams { to, of, next });
                }
                Some(queue) => {
                    let found = self.queues.local().stream_facts(QueueId(queue), *of);
                    let facts = ShardFacts::Streams(found.into_iter().collect());
                    self.reports.tell_facts(&mut self.ctx, to, facts, true);
                }
            },
            ShardQuery::Browse(of) => {
                let queue = QueueId(of.queue);
                let now_ms = self.ctx.wall().0;
                let page = self.queues.local_mut().browse(queue, &of.request(now_ms));
                let facts = page.map(|page| Box::new(BrowseFacts::new(page)));
                self.reports
                    .tell_facts(&mut self.ctx, to, ShardFacts::Browsed(facts), true);
            }
            // The shard carries it out itself.
            ShardQuery::Close { .. } => {
                self.reports
                    .tell_facts(&mut self.ctx, to, ShardFacts::Closed(false), true)
            }
        }
    }
}

/// The progress of a node that catches up: entries applied, entries known, and the leader.
fn catching_up(status: Option<GroupStatus>) -> String {
    let what = "catching up with what the cluster decided while this node was away";
    let Some(status) = status else {
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
