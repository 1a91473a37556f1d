//! The part of MQTT on every shard: the router with its connections to other shards, retained
//! messages, the handover of shared messages and the `$SYS` topics.

mod retained;
mod route_exchange;
mod session_bindings;
mod shared_handover;
mod sys_topics;
mod takeovers;

pub(crate) use retained::retain;

use crate::MqttSettings;
use crate::publish::publish_will;
use crate::session_queue::client_of;
use crate::unanswered_publishes::publish_answer;
use bytes::Bytes;
use control::Counters;
use conversion::mqtt;
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::{Change, ChangeError, ChangeResult, Name, QueueId, QueueRecord, TreeEvent};
use retained::{PendingRetain, UnconfirmedRetained};
use session::{
    AnnounceOutcome, Broker, InvalidFrame, PublishTag, PublishedMessage, QueueNotification,
    ServiceHost, ServiceId, ServiceOutput, ServiceRegistration, ServiceStates, SessionEvent,
    ShardAddress, ShardService, TagRange, TickOutcome,
};
use shared_handover::SharedHandovers;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use sys_topics::SysTopics;
use takeovers::Takeovers;
use topics::{MqttRouter, PublishOutcome, Publisher, RouterOutput};

/// The functions of MQTT on every shard.
#[derive(Clone, Copy, Debug)]
pub struct MqttService;

/// A change that the service has proposed.
enum ProposedChange {
    /// To retain a message.
    Retain(PendingRetain),
    /// To remove a shared subscription from the session whose queue this is.
    Unbind(QueueId),
}

/// The state of MQTT on one shard.
pub struct MqttShard {
    /// The subscriptions of this shard's clients.
    pub router: MqttRouter,
    settings: Arc<MqttSettings>,
    unconfirmed_retained: UnconfirmedRetained,
    handovers: SharedHandovers,
    takeovers: Takeovers,
    sys_topics: SysTopics,
    /// Changes without an answer, by token.
    proposed: BTreeMap<u64, ProposedChange>,
    next_token: u64,
    /// The router may have changed since its last tick.
    is_touched: bool,
    /// When the router is due if it does not change, as of its last tick.
    due: Option<Time>,
    #[cfg(test)]
    ticks: usize,
}

impl MqttShard {
    /// The state of a new shard.
    pub fn new(settings: Arc<MqttSettings>) -> MqttShard {
        let mut router = MqttRouter::default();
        router.set_sys_topic_interval(settings.sys_interval);
        MqttShard {
            router,
            settings,
            unconfirmed_retained: UnconfirmedRetained::default(),
            handovers: SharedHandovers::default(),
            takeovers: Takeovers::default(),
            sys_topics: SysTopics::default(),
            proposed: BTreeMap::new(),
            next_token: 0,
            is_touched: true,
            due: None,
            #[cfg(test)]
            ticks: 0,
        }
    }

    /// The state on this shard, for changes.
    fn access(states: &mut ServiceStates) -> Option<&mut MqttShard> {
        let shard: &mut MqttShard = states.get_mut()?;
        shard.is_touched = true;
        Some(shard)
    }

    /// Returns true if a tick would do nothing: in most turns no client uses MQTT.
    fn is_idle(&self, now: Time) -> bool {
        !self.is_touched
            && self.due.is_none_or(|at| at > now)
            && self.handovers.is_empty()
            && self.takeovers.is_empty()
            && !self.router.has_output()
            && !self.router.has_frames()
    }

    /// Stores a change that is about to be proposed. Returns its token.
    fn propose(&mut self, change: ProposedChange) -> u64 {
        self.next_token += 1;
        self.proposed.insert(self.next_token, change);
        self.next_token
    }
}

impl MqttService {
    /// The identifier of the service.
    pub(crate) const ID: ServiceId = ServiceId(1);

    /// The service with the state of a new shard.
    pub(crate) fn registration(settings: &Arc<MqttSettings>) -> ServiceRegistration {
        ServiceRegistration {
            service: &MqttService,
            state: Box::new(MqttShard::new(settings.clone())),
            event: Box::new(None::<RouterOutput>),
        }
    }
}

/// Access to the router of a session's shard.
pub(crate) trait RouterAccess {
    /// The router; `None` if the node does not offer MQTT.
    fn router(&mut self) -> Option<&mut MqttRouter>;
}

impl RouterAccess for dyn Broker + '_ {
    fn router(&mut self) -> Option<&mut MqttRouter> {
        let shard = MqttShard::access(self.services()?)?;
        Some(&mut shard.router)
    }
}

/// The service's state on this shard.
fn state(host: &mut dyn ServiceHost) -> Option<&mut MqttShard> {
    MqttShard::access(host.services()?)
}

/// The topic exchange to which MQTT clients publish.
fn exchange(host: &mut dyn ServiceHost) -> Option<Name> {
    Some(state(host)?.settings.exchange.clone())
}

impl ShardService for MqttService {
    fn id(&self) -> ServiceId {
        MqttService::ID
    }

    fn started(&self, host: &mut dyn ServiceHost) {
        route_exchange::meet_routers(host);
    }

    fn tick(&self, states: &mut ServiceStates, now: Time, wall: WallTime) -> TickOutcome {
        let Some(shard) = states.get_mut::<MqttShard>() else {
            return TickOutcome::Idle;
        };
        shard.router.set_time(now, wall);
        if shard.router.waits_for_majority() {
            return TickOutcome::Due;
        }
        if shard.is_idle(now) {
            return TickOutcome::Idle;
        }
        #[cfg(test)]
        {
            shard.ticks += 1;
        }
        shard.takeovers.begin_turn(now);
        let router = &mut shard.router;
        router.tick(now);
        shard.due = router.wake_at();
        shard.is_touched = false;
        if !shard.handovers.is_empty() {
            return TickOutcome::Due;
        }
        match router.has_output() || router.has_frames() || shard.takeovers.has_due() {
            true => TickOutcome::Active,
            false => TickOutcome::Idle,
        }
    }

    fn carry_out_due(&self, host: &mut dyn ServiceHost) {
        let now = host.now();
        let Some(shard) = state(host) else { return };
        if shard.router.waits_for_majority() {
            route_exchange::update_majority(host);
            let Some(shard) = state(host) else { return };
            shard.router.tick(now);
        }
        let Some(shard) = state(host) else { return };
        if !shard.handovers.is_empty() {
            shared_handover::tick(host);
        }
    }

    fn wake_at(&self, states: &ServiceStates) -> Option<Time> {
        let shard: &MqttShard = states.get()?;
        let router = match shard.is_touched {
            true => shard.router.wake_at(),
            false => shard.due,
        };
        let all = [router, shard.handovers.wake_at(), shard.takeovers.wake_at()];
        Time::earliest(all)
    }

    fn is_ready(&self, states: &ServiceStates) -> bool {
        let shard: Option<&MqttShard> = states.get();
        shard.is_none_or(|shard| shard.router.has_peer_routes())
    }

    fn has_subscribers(&self, states: &ServiceStates, vhost: &str) -> bool {
        let shard: Option<&MqttShard> = states.get();
        shard.is_some_and(|shard| shard.router.has_subscribers(vhost))
    }

    /// Passes messages on that other protocols publish, if they reach the exchange of MQTT. MQTT
    /// sessions call the router themselves.
    fn announce(
        &self,
        host: &mut dyn ServiceHost,
        published: &PublishedMessage<'_>,
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let &PublishedMessage { vhost, message, .. } = published;
        let Some(exchange) = exchange(host) else {
            return AnnounceOutcome::default();
        };
        if message.exchange() != &*exchange && !host.reaches_exchange(vhost, message, &exchange) {
            return AnnounceOutcome::default();
        }
        match state(host) {
            Some(shard) => shard.announce(published, routes),
            None => AnnounceOutcome::default(),
        }
    }

    fn publishes_to<'a>(&self, states: &'a ServiceStates, protocol: &str) -> Option<&'a str> {
        let shard: &MqttShard = states.get()?;
        sys_topics::is_mqtt(protocol).then_some(&*shard.settings.exchange)
    }

    fn frame(
        &self,
        host: &mut dyn ServiceHost,
        from: ShardAddress,
        frame: Bytes,
    ) -> Result<(), InvalidFrame> {
        route_exchange::handle_frame(host, from, frame)
    }

    fn message(
        &self,
        host: &mut dyn ServiceHost,
        from: ShardAddress,
        message: Box<dyn Any + Send>,
    ) {
        match message.downcast() {
            Ok(message) => route_exchange::handle_message(host, from, *message),
            Err(_) => debug_assert!(false, "a message of another service"),
        }
    }

    fn has_frames(&self, states: &ServiceStates) -> bool {
        let shard: Option<&MqttShard> = states.get();
        shard.is_some_and(|shard| shard.router.has_frames())
    }

    fn flush(&self, host: &mut dyn ServiceHost) {
        route_exchange::flush(host);
    }

    fn next_output(
        &self,
        states: &mut ServiceStates,
        event: &mut dyn Any,
    ) -> Option<ServiceOutput> {
        let shard: &mut MqttShard = states.get_mut()?;
        let place: &mut Option<RouterOutput> = event.downcast_mut()?;
        if !shard.router.has_output() {
            let session = shard.takeovers.take_due();
            *place = session.map(|session| RouterOutput::TakenOver { session });
            return session.map(|session| ServiceOutput::Event { session });
        }
        shard.is_touched = true;
        loop {
            // Also drops an event whose session has ended.
            *place = shard.router.take();
            let session = match place.as_ref()? {
                &RouterOutput::TakenOver { session } => {
                    shard.takeovers.push(session);
                    continue;
                }
                RouterOutput::Deliver { session, .. }
                | RouterOutput::ClaimAgain { session }
                | RouterOutput::Announced { session }
                | RouterOutput::MessagesLost { session }
                | RouterOutput::ReplicateWill { session } => *session,
                &RouterOutput::LateAnswer {
                    session,
                    client,
                    publisher,
                    tag,
                    taken,
                } => {
                    // An earlier output may have ended that connection.
                    if !shard.router.is_connected_by(client, session) {
                        shard.router.pass_answer(client, (publisher, tag), taken);
                        continue;
                    }
                    session
                }
                &RouterOutput::Confirmed {
                    session,
                    first,
                    last,
                } => {
                    let tags = TagRange {
                        first: PublishTag(first),
                        last: PublishTag(last),
                    };
                    return Some(ServiceOutput::Confirmed { session, tags });
                }
                &RouterOutput::Unblocked { session } => {
                    return Some(ServiceOutput::Unblocked { session });
                }
                RouterOutput::Will { .. }
                | RouterOutput::ToQueue { .. }
                | RouterOutput::SysTopicsDue => return Some(ServiceOutput::Work),
            };
            return Some(ServiceOutput::Event { session });
        }
    }

    fn carry_out(&self, host: &mut dyn ServiceHost, event: &mut dyn Any) {
        let output = event.downcast_mut::<Option<RouterOutput>>();
        match output.and_then(Option::take) {
            Some(RouterOutput::Will { vhost, will }) => publish_will(host, &vhost, will),
            Some(RouterOutput::ToQueue { queue, message }) => {
                host.publish(QueueId(queue), PublishTag::NO_CONFIRM, message);
            }
            Some(RouterOutput::SysTopicsDue) => host.collect_counters(),
            other => debug_assert!(other.is_none(), "an output for a session: {other:?}"),
        }
    }

    fn node_up(&self, host: &mut dyn ServiceHost, node: NodeId, incarnation: Incarnation) {
        route_exchange::node_up(host, node, incarnation);
    }

    fn node_down(&self, host: &mut dyn ServiceHost, node: NodeId) {
        route_exchange::node_down(host, node);
    }

    fn nodes_changed(&self, host: &mut dyn ServiceHost) {
        route_exchange::forget_removed_nodes(host);
        route_exchange::update_majority(host);
    }

    fn features_changed(&self, host: &mut dyn ServiceHost) {
        route_exchange::meet_routers(host);
    }

    fn change_applied(&self, host: &mut dyn ServiceHost, change: &Change) {
        match change {
            Change::Bind(binding) => session_bindings::bound(host, binding),
            Change::Unbind(binding) => session_bindings::unbound(host, binding),
            _ => {}
        }
    }

    fn tree_event(&self, host: &mut dyn ServiceHost, event: &TreeEvent) {
        match event {
            TreeEvent::Retained { vhost, topic } => retained::changed(host, vhost, topic),
            TreeEvent::QueueRemoved(record) => {
                if let (Some(client), Some(shard)) = (client_of(&record.name), state(host)) {
                    shard
                        .router
                        .queue_deleted(&record.vhost, client, record.id.0);
                }
            }
            TreeEvent::VhostRemoved(name) => {
                if let Some(shard) = state(host) {
                    shard.router.remove_vhost(name);
                }
            }
            _ => {}
        }
    }

    fn tree_replaced(&self, host: &mut dyn ServiceHost) {
        session_bindings::replaced(host);
        retained::replaced(host);
    }

    fn applied(&self, host: &mut dyn ServiceHost, index: u64) {
        if let Some(shard) = state(host) {
            shard.router.set_applied(index);
        }
    }

    fn change_answered(
        &self,
        host: &mut dyn ServiceHost,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
    ) {
        match state(host).and_then(|shard| shard.proposed.remove(&token)) {
            Some(ProposedChange::Retain(pending)) => retained::answered(host, pending, result),
            Some(ProposedChange::Unbind(queue)) => shared_handover::unbound(host, queue, &result),
            None => {}
        }
    }

    fn queue_notification(&self, host: &mut dyn ServiceHost, notification: QueueNotification) {
        shared_handover::queue_notification(host, notification);
    }

    /// MQTT sessions outlive their connections and need the answers to their publishes.
    fn late_session_event(&self, host: &mut dyn ServiceHost, session: u64, event: &SessionEvent) {
        if let Some((tags, taken)) = publish_answer(event, host.tree())
            && let Some(shard) = state(host)
        {
            for tag in tags {
                shard.router.answer_late(session, tag.0, taken);
            }
        }
    }

    fn postpones_deletion(&self, host: &mut dyn ServiceHost, queue: &QueueRecord) -> bool {
        shared_handover::begin(host, queue)
    }

    fn client_of<'a>(&self, queue: &'a QueueRecord) -> Option<&'a str> {
        client_of(&queue.name)
    }

    fn add_counters(&self, host: &mut dyn ServiceHost, counters: &mut Counters) {
        // Every shard has the retained messages of the cluster, so only the first one counts them.
        let (retained, retained_bytes) = match host.address().shard {
            0 => host.tree().retained_size(),
            _ => (0, 0),
        };
        let Some(shard) = state(host) else { return };
        let counts = shard.router.counts();
        counters.mqtt = control::MqttCounters {
            connected: counts.connected as u64,
            sessions_away: counts.parked as u64,
            most: counts.peak as u64,
            expired: counts.expired,
            subscriptions: counts.subscriptions as u64,
            retained: retained as u64,
            retained_bytes: retained_bytes as u64,
            dropped: counts.dropped,
            not_kept: counts.not_kept,
            dropped_between: counts.dropped_between,
            lost_between: counts.lost_between,
            wills: counts.wills as u64,
            wills_not_kept: counts.wills_not_kept,
        };
    }

    fn counters_collected(&self, host: &mut dyn ServiceHost, counters: &Counters) {
        sys_topics::update(host, counters);
    }
}

impl MqttShard {
    /// Passes a message of another protocol to subscribers, once for each of its routing keys.
    fn announce(
        &mut self,
        published: &PublishedMessage<'_>,
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let &PublishedMessage {
            session,
            tag,
            vhost,
            message,
        } = published;
        let publisher = Publisher {
            subscriber: None,
            session,
            tag: tag.0,
        };
        let mut outcome = PublishOutcome::default();
        let mut picked: Vec<u64> = Vec::new();
        let exchange = &self.settings.exchange;
        for key in message.routing_keys() {
            let Some(translated) = mqtt::convert(message, key, exchange) else {
                continue;
            };
            let topic = mqtt::topic_of(key);
            // Only the server publishes there.
            if topics::is_sys_topic(&topic) {
                continue;
            }
            let mut of_key = Vec::new();
            let router = &mut self.router;
            outcome += router.publish(vhost, &topic, &translated, publisher, &mut of_key);
            // A queue gets a message once, whatever the number of its keys.
            of_key.retain(|queue| !picked.contains(queue));
            picked.extend(of_key);
        }
        // A queue that also matches another subscription gets the message twice (section 4.8.2).
        routes.extend(picked.into_iter().map(QueueId));
        AnnounceOutcome {
            receivers: outcome.receivers,
            awaited: outcome.awaited,
            behind: outcome.behind,
            refused: outcome.refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ticks(states: &mut ServiceStates) -> usize {
        let shard: &mut MqttShard = states.get_mut().expect("the state of MQTT");
        std::mem::take(&mut shard.ticks)
    }

    /// Shards run many turns in which no client uses MQTT.
    #[test]
    fn router_ticks_only_after_a_change_and_when_it_is_due() {
        let settings = MqttSettings {
            sys_interval: Some(Duration::from_secs(10)),
            ..MqttSettings::default()
        };
        let mut states = ServiceStates::default();
        states.push(Box::new(MqttShard::new(Arc::new(settings))));
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let turns = |states: &mut ServiceStates, now| {
            for _ in 0..100 {
                MqttService.tick(states, at(now), WallTime(0));
            }
            ticks(states)
        };
        assert_eq!(turns(&mut states, 1), 1, "the first turn");
        assert_eq!(turns(&mut states, 2), 0);
        let shard = MqttShard::access(&mut states).expect("the state of MQTT");
        let claimed = shard.router.claim("/", "c", 7, true);
        assert!(matches!(claimed, topics::ClaimOutcome::Granted { .. }));
        assert_eq!(turns(&mut states, 3), 1, "after a change");
        let shard: &mut MqttShard = states.get_mut().expect("the state of MQTT");
        shard.due = Some(at(5));
        assert_eq!(turns(&mut states, 4), 0);
        assert_eq!(turns(&mut states, 5), 1, "when it is due");
    }
}
