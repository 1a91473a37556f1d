//! A shard's life: how it is made, what a turn does with groups and queues, what time brings.

use super::ShardState;
use crate::browsers::Browsers;
use crate::cluster::{Cluster, Topology};
use crate::config::{RecoveredShard, ShardConfig};
use crate::confirm_sampler::ConfirmSampler;
use crate::context::Context;
use crate::dead_letter::DeadLetters;
use crate::delivery_sampler::DeliverySampler;
use crate::firehose::Firehose;
use crate::frame::{Frame, MAX_STATS};
use crate::internal_client::InternalClient;
use crate::limits::Limits;
use crate::local_queues::{GroupOutput, LocalQueues, MetadataOutput};
use crate::metadata_client::ChangeRequester;
use crate::metadata_replica::{MetadataReplica, end_of_earlier_incarnations};
use crate::queues::{Queues, QueuesOutput};
use crate::reports::Reports;
use crate::shard::Shard;
use crate::shard::services::Services;
use crate::{Effect, Route, StartError, shard_of};
use consensus::{Host, HostConfig};
use env::planted::{self, Bug};
use env::rng::SeededRng;
use env::{Disk, NodeId, Rng, Time, WallTime};
use message::Message;
use metadata::{Change, QueueId};
use queue::{QueueEvent, Timestamps};
use session::{FlowState, PublishTag};
use std::sync::Arc;

impl Shard {
    /// Puts a shard together from what the log had of its groups. An error means that data this node has answered for
    /// is damaged: it must not start.
    pub fn new(
        config: ShardConfig,
        recovered: RecoveredShard,
        disk: Arc<dyn Disk>,
        now: Time,
        wall: WallTime,
    ) -> Result<Shard, StartError> {
        let host_config = HostConfig {
            node: config.node,
            incarnation: config.incarnation,
            shards: config.shards,
            shard: config.index,
            seed: config.seed,
            limits: config.groups.clone(),
        };
        let host = Host::new(host_config, Arc::clone(&disk), recovered.groups)?;
        let streams = stream_log::list_streams(&*disk)?;
        let is_own = |queue: &QueueId| shard_of(queue.0, config.shards) == config.index;
        let mut local_queues = LocalQueues::new(config.node, config.incarnation, host, disk);
        local_queues.set_time(Timestamps { now, wall });
        let found = streams.into_iter().filter(is_own);
        local_queues.set_streams(config.machine.clone(), config.tier.clone(), found);
        if config.index == 0 {
            let voters = config
                .founding
                .as_ref()
                .map(|f| f.nodes.iter().map(|n| n.id).collect());
            local_queues.found_metadata(voters.unwrap_or_default());
        }
        let mut rng = SeededRng::new(config.seed ^ 0x5e55_1045);
        let mut key = [0; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let client_addresses = config.client_addresses.clone();
        let confirm_sampler = ConfirmSampler::new(Arc::clone(&config.confirms));
        let delivery_sampler = DeliverySampler::new(Arc::clone(&config.deliveries));
        let ctx = Context::new(config, Box::new(rng), now, wall);
        let mut state = ShardState {
            limits: Limits::new(ctx.config(), key),
            services: Services::new(&ctx.config().protocols),
            metadata: MetadataReplica::new(&ctx),
            cluster: Cluster::new(now),
            ctx,
            queues: Queues::new(local_queues, confirm_sampler),
            dead_letters: DeadLetters::default(),
            reports: Reports::default(),
            browsers: Browsers::default(),
            delivery_sampler,
            internal_client: InternalClient::default(),
            firehose: Firehose::default(),
            client_addresses,
        };
        state.end_earlier_incarnations();
        state.each_service(|service, view| service.started(view));
        Ok(Shard::from_state(state))
    }
}

impl ShardState {
    fn end_earlier_incarnations(&mut self) {
        let (node, incarnation) = (self.ctx.node(), self.ctx.config().incarnation);
        if self.ctx.is_first_shard() {
            let change = end_of_earlier_incarnations(node, incarnation);
            self.ask(change, ChangeRequester::Nobody);
        }
        let shards = self.ctx.config().shards;
        self.cluster.peers_mut().up(node, incarnation, shards);
    }

    /// Carries groups and queues on; true when anything happened.
    pub fn poll_groups(&mut self) -> bool {
        let (mut metadata, mut shard) = (Vec::new(), Vec::new());
        let mut worked = self.queues.local_mut().poll_host(&mut metadata, &mut shard);
        // Here and below: an empty list that is gone through costs too, in each round of each turn.
        if !metadata.is_empty() {
            for item in metadata {
                self.metadata_output(item);
            }
        }
        worked |= self.queues.local_mut().turn(&mut shard);
        if !shard.is_empty() {
            for item in shard {
                self.shard_output(item);
            }
        }
        // Some are unused because time went by: nothing else of this turn would carry their deletion on.
        if self.queues.local().has_unused() {
            worked = true;
            for queue in self.queues.local_mut().take_unused() {
                self.delete(queue);
            }
        }
        worked |= self.queues.forward_events(self.metadata.tree(), &self.ctx);
        worked
    }

    pub fn topology(&self) -> Topology<'_> {
        self.cluster.topology(&self.ctx, self.metadata.tree())
    }

    /// Takes a queue out of the tree.
    pub fn delete(&mut self, queue: QueueId) {
        if let Some(record) = self.metadata.tree().queue_by_id(queue) {
            let (vhost, name) = (record.vhost.clone(), record.name.clone());
            let id = Some(queue);
            let change = Change::DeleteQueue { vhost, name, id };
            self.ask(change, ChangeRequester::Deletion(queue));
        }
    }

    fn finish_deletions(&mut self) {
        for queue in self.queues.begin_overdue_deletions() {
            self.delete(queue);
        }
    }

    /// Passes on what queues have for sessions of the shard itself.
    pub fn route_queue_outputs(&mut self) {
        while let Some(output) = self.queues.next_output() {
            match output {
                QueuesOutput::DeadLetter(queue, event) => {
                    self.handle_dead_letter_event(queue, &event)
                }
                QueuesOutput::DeadLettersRelieved => self.dead_letters.relieve(),
                QueuesOutput::InternalClient(queue, event) => {
                    self.handle_internal_client_event(queue, event);
                }
                QueuesOutput::Service(at, notification) => {
                    self.with_service(at, |service, view| {
                        service.queue_notification(view, notification);
                    });
                }
            }
        }
    }

    /// Publishes a message of a session of this shard to a queue.
    pub fn publish(
        &mut self,
        session: u64,
        queue: QueueId,
        tag: PublishTag,
        message: Message,
    ) -> FlowState {
        self.queues.publish(
            &mut self.ctx,
            self.metadata.tree(),
            session,
            queue,
            tag,
            message,
        )
    }

    /// Delivers an event of a queue to a session of this shard.
    pub fn handle_queue_event(
        &mut self,
        from: NodeId,
        session: u64,
        queue: QueueId,
        event: QueueEvent,
    ) {
        self.queues
            .handle_event(&mut self.ctx, from, session, queue, event);
        self.route_queue_outputs();
    }

    /// The queue is removed or lost: nothing sent to it will be answered.
    pub fn end_queue_clients(&mut self, queue: QueueId) {
        self.queues.handle_queue_removed(&mut self.ctx, queue);
        self.route_queue_outputs();
        let told = self.browsers.handle_queue_removed(queue);
        self.notify_browsers(told);
        self.internal_client.handle_queue_removed(queue);
        self.route_internal_client();
    }

    pub fn end_session(&mut self, number: u64) {
        self.limits.log_out(self.metadata.tree(), number);
        if let Some(trail) = self.ctx.audit_mut() {
            trail.session_ended(number);
        }
        if self.ctx.records_spans() {
            self.ctx
                .note_spans(|spans, at| spans.session_ended(at, number));
        }
        self.queues
            .handle_session_end(&mut self.ctx, self.metadata.tree(), number);
        self.browsers.handle_session_end(number);
        self.route_queue_outputs();
    }

    fn metadata_output(&mut self, item: MetadataOutput) {
        match item {
            MetadataOutput::Committed(entries) => self.apply_metadata(entries),
            MetadataOutput::Restore { index, state } => self.restore_metadata(index, state),
            MetadataOutput::Leadership { leader, is_leader } => {
                self.handle_metadata_leader(leader, is_leader)
            }
            MetadataOutput::CheckpointDue => {
                if let Some((index, state)) = self.metadata.checkpoint() {
                    self.queues.local_mut().checkpoint_metadata(index, state);
                }
            }
        }
    }

    fn shard_output(&mut self, item: GroupOutput) {
        match item {
            GroupOutput::Append { token, records } => {
                self.ctx.push_effect(Effect::Append { token, records })
            }
            GroupOutput::Job { id, job } => self.ctx.push_effect(Effect::Job { id, job }),
            GroupOutput::WalFree { up_to } => self.ctx.push_effect(Effect::WalFree { up_to }),
            GroupOutput::Fatal(text) => self.ctx.push_effect(Effect::Fatal(text)),
            GroupOutput::Unreadable { queue, unreadable } => self.unreadable(queue, &unreadable),
            GroupOutput::Send { to, shard, frame } => {
                self.ctx
                    .send_to_peer(to, Route::Shard(shard), &Frame::Raft(frame));
            }
            GroupOutput::SendToReplica { to, queue, message } => {
                let frame = Frame::Replica { queue, message };
                self.ctx.send_to_peer(to, Route::Owner(queue.0), &frame);
            }
            GroupOutput::QueueLeader {
                queue,
                leader,
                is_me,
            } => {
                if is_me {
                    if let Some(term) = self.queues.local().led_stream(queue) {
                        self.tell_stream_leader(queue, term);
                    }
                    self.queues
                        .local_mut()
                        .tell_peers(queue, self.cluster.peers());
                    self.cluster.members_mut().review.queue(queue);
                    self.refresh_settings(queue);
                    let led_before = |state: &ShardState| {
                        state
                            .queues
                            .local()
                            .led_status(queue)
                            .is_some_and(|s| s.term > 1)
                    };
                    if planted::is(Bug::ExpiryForgotten) && led_before(self) {
                        self.queues.local_mut().set_expires(queue, None);
                    }
                }
                self.cluster
                    .members_mut()
                    .leaders
                    .heard(self.metadata.tree(), queue, leader);
                self.queues.handle_leader(&mut self.ctx, queue, leader);
                self.route_queue_outputs();
            }
        }
    }

    /// Tells every shard of every node that this node leads a stream.
    fn tell_stream_leader(&mut self, queue: QueueId, term: u64) {
        let me = self.ctx.node();
        self.queues.handle_stream_leader(queue, term, me);
        let frame = Frame::StreamLeaders {
            streams: vec![(queue, term)],
        };
        self.ctx.send_to_other_shards(&frame);
        for (node, shards) in self.cluster.peers().shards_up(me) {
            self.ctx.send_to_shards_of_peer(node, shards, &frame);
        }
    }

    /// Tells a node that comes up which streams are led here.
    pub fn tell_stream_leaders(&mut self, node: NodeId, shards: u16) {
        let led = self.queues.local().led_streams();
        for streams in led.chunks(MAX_STATS) {
            let streams = streams.to_vec();
            let frame = Frame::StreamLeaders { streams };
            self.ctx.send_to_shards_of_peer(node, shards, &frame);
        }
    }

    /// Another shard or node leads streams.
    pub fn hear_stream_leaders(&mut self, leader: NodeId, streams: Vec<(QueueId, u64)>) {
        for (queue, term) in streams {
            // The stream may have been deleted meanwhile, or is yet to be added.
            let applied = self.metadata.applied();
            let is_deleted =
                queue.0 <= applied && self.metadata.tree().queue_by_id(queue).is_none();
            if !is_deleted && self.queues.handle_stream_leader(queue, term, leader) {
                self.queues.handle_leader(&mut self.ctx, queue, leader);
                self.route_queue_outputs();
            }
        }
    }

    /// The settings that arguments and policies give a queue now.
    pub fn refresh_settings(&mut self, queue: QueueId) {
        if !self.queues.local().has(queue) {
            return;
        }
        let Some(record) = self.metadata.tree().queue_by_id(queue) else {
            return;
        };
        let settings = self.metadata.tree().queue_settings(record);
        self.dead_letters.set_way(record, &settings);
        self.queues
            .local_mut()
            .set_expires(queue, settings.expires_ms);
        let default = &self.ctx.config().consumer_timeout;
        let local = self.queues.local_mut();
        local.configure(queue, &settings, default);
    }

    pub fn tick(&mut self) {
        let at = Timestamps {
            now: self.ctx.now(),
            wall: self.ctx.wall(),
        };
        self.queues.local_mut().set_time(at);
        self.queues.local_mut().tick();
        self.dead_letters.tick(self.ctx.now());
        self.limits.tick(&mut self.ctx);
        self.tick_services();
        self.queues.tick_clients(&mut self.ctx);
        self.route_queue_outputs();
        self.tick_metadata();
        if !self.browsers.is_empty() {
            self.tick_browsers();
        }
        self.reports.tick(self.ctx.now(), self.metadata.tree());
        self.route_reports();
        self.internal_client.tick(self.ctx.now());
        self.route_internal_client();
        self.cluster.members_mut().questions.tick(self.ctx.now());
        if self.cluster.members().recoveries.is_waiting() {
            self.tick_recoveries();
        }
        if self.cluster.begin_reconciliation(self.ctx.now()) {
            self.reconcile();
        }
        if self.cluster.members_mut().review.is_due() {
            self.reconcile_due_queues();
        }
    }

    fn reconcile(&mut self) {
        if self.ctx.is_first_shard() {
            self.reconcile_metadata_members();
            let requests = self.cluster.repeat_joins(&mut self.ctx, &self.metadata);
            self.ask_all(requests);
            self.end_old_maintenance();
            self.tell_zone();
            self.state_client_addresses();
        }
        self.reconcile_queue_members();
        self.review_departures();
        self.finish_deletions();
        let tree = self.metadata.tree();
        self.queues
            .local_mut()
            .remove_deleted(self.metadata.applied(), |q| tree.queue_by_id(q).is_some());
        if self.cluster.is_draining() {
            self.move_leaders();
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        let all = [
            self.queues.wake_at(),
            self.dead_letters.wake_at(self.ctx.now()),
            self.limits.wake_at(),
            self.services.wake_at(),
            self.metadata.wake_at(self.ctx.now()),
            self.reports.wake_at(self.ctx.now()),
            self.browsers.wake_at(self.ctx.now()),
            self.internal_client.wake_at(),
            self.cluster.wake_at(self.ctx.now()),
        ];
        Time::earliest(all)
    }
}
