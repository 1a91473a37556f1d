//! Groups of single active consumers: of the consumers of a stream with the same name, one gets messages.
//!
//! A group has a coordinator, which is a shard on the node that leads the stream, chosen by the stream's id. The majority of
//! the stream's members elects the leader, so that there is one coordinator at a time. Its knowledge is not stored: each
//! shard keeps the members that are sessions of its own, and announces them again when the stream has another leader.
//!
//! - A member joins with the frame [`GroupMessage::Join`], which is repeated until the coordinator answers with
//!   [`GroupMessage::SetActive`], and now and then afterwards. A shard that does not lead the stream, as far as it knows, does not answer.
//! - In a group outside a super stream, the member that has been there longest is active. In the group of a partition, the
//!   active member is that whose index is the partition's number modulo the number of members, so that the partitions
//!   spread over the consumers.
//! - A member that becomes inactive stops its cursor and asks its client, and states that it has stepped down when the
//!   client answers. Only then the next one becomes active.
//! - A new coordinator that learns of a group from a member that was in it before waits for [`SETTLE_TIME`], so that
//!   the active member can announce itself first.
//! - A member whose coordinator cannot be reached for [`LEASE`] becomes inactive. A coordinator replaces the members of a node
//!   that it cannot reach after [`LOST_TIMEOUT`], which is longer. Two members can still be active for a moment if the clocks
//!   of two nodes run at very different speeds; clients process messages at least once in any case.

use crate::session::{StepContext, StreamSession};
use crate::users::StreamUsers;
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::{Name, QueueId, TreeEvent};
use queue::ConsumerId;
use session::{
    Broker, InvalidFrame, ServiceHost, ServiceId, ServiceOutput, ServiceRegistration,
    ServiceStates, ShardAddress, ShardService, TickOutcome,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Reader, Varint, Wire};

/// Version of the frames between shards.
const VERSION: u8 = 1;
/// Interval at which members compare their coordinator with the leader of the stream, and repeat what was not answered.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which members join again, in case that the coordinator has forgotten the group.
const REJOIN_INTERVAL: Duration = Duration::from_secs(5);
/// Time that a new coordinator waits for members of an existing group.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Time without a coordinator after which a member becomes inactive.
const LEASE: Duration = Duration::from_secs(5);
/// Time after which the members of a node that cannot be reached are replaced.
const LOST_TIMEOUT: Duration = Duration::from_secs(10);

/// A group, and the partition of a super stream that its stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupKey {
    pub queue: QueueId,
    pub name: Name,
    pub partition: Option<u32>,
}

/// The role of a member in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Inactive, and its client knows it.
    Waiting,
    Active,
    /// Inactive; the client has not answered yet.
    SteppingDown,
}

/// A message between shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupMessage {
    /// A consumer is a member of a group.
    Join {
        queue: QueueId,
        name: Name,
        partition: Option<u32>,
        session: u64,
        consumer: ConsumerId,
        role: Role,
        /// The member has had another coordinator.
        is_known: bool,
    },
    /// A member has ended.
    Leave {
        queue: QueueId,
        name: Name,
        session: u64,
        consumer: ConsumerId,
    },
    /// The client of a member has answered that it is inactive.
    SteppedDown {
        queue: QueueId,
        name: Name,
        session: u64,
        consumer: ConsumerId,
    },
    /// The coordinator's decision about a member.
    SetActive {
        session: u64,
        consumer: ConsumerId,
        is_active: bool,
    },
}

wire::wire_enum!(Role, "the role of a consumer in its group" {
    0 = Waiting,
    1 = Active,
    2 = SteppingDown,
});
wire::wire_enum!(GroupMessage, "a message about a group of consumers" {
    1 = Join {
        queue: QueueId,
        name: Name,
        partition: Option<u32> as Varint,
        session: u64 as Varint,
        consumer: ConsumerId,
        role: Role,
        is_known: bool,
    },
    2 = Leave { queue: QueueId, name: Name, session: u64 as Varint, consumer: ConsumerId },
    3 = SteppedDown { queue: QueueId, name: Name, session: u64 as Varint, consumer: ConsumerId },
    4 = SetActive { session: u64 as Varint, consumer: ConsumerId, is_active: bool },
});

pub(crate) fn encode(message: &GroupMessage, out: &mut BytesMut) {
    out.put_u8(VERSION);
    message.put(out);
}

pub(crate) fn decode(frame: &Bytes) -> Result<GroupMessage, InvalidFrame> {
    let mut from = Reader::shared("group frame", frame);
    match from.u8() {
        Ok(VERSION) => from.get().map_err(|_| InvalidFrame),
        _ => Err(InvalidFrame),
    }
}

/// An event for a session, or a request of one that the service carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupEvent {
    SetActive {
        consumer: ConsumerId,
        is_active: bool,
    },
    /// A stream that the session uses was deleted. The session finds it by comparing with the tree.
    StreamDeleted,
    Request(u64, Request),
}

/// A request of a session of this shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Join(GroupKey, ConsumerId),
    Leave(GroupKey, ConsumerId),
    StepDown(GroupKey, ConsumerId),
}

/// A member that is a session of this shard.
#[derive(Clone, Debug)]
struct LocalMember {
    key: GroupKey,
    /// The shard that the member has joined at.
    coordinator: Option<ShardAddress>,
    /// The coordinator has answered.
    is_acknowledged: bool,
    role: Role,
    /// The member has had a coordinator that answered.
    is_known: bool,
    /// The coordinator was reachable at this time.
    seen_at: Time,
    /// Time of the last [`GroupMessage::Join`].
    joined_at: Time,
}

impl LocalMember {
    fn set_active(&mut self, is_active: bool) {
        self.role = match (is_active, self.role) {
            (true, _) => Role::Active,
            (false, Role::Active) => Role::SteppingDown,
            (false, role) => role,
        };
    }
}

/// A member of a group that this shard coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    shard: ShardAddress,
    session: u64,
    consumer: ConsumerId,
    role: Role,
    /// The node cannot be reached since this time.
    lost_at: Option<Time>,
}

/// A decision for a member.
type Decision = (ShardAddress, u64, ConsumerId, bool);

/// A group that this shard coordinates.
#[derive(Clone, Debug)]
struct Group {
    partition: Option<u32>,
    /// In the order of their arrival.
    members: Vec<Member>,
    /// No member becomes active before this time.
    settled_at: Time,
}

impl Group {
    fn find(
        &mut self,
        shard: ShardAddress,
        session: u64,
        consumer: ConsumerId,
    ) -> Option<&mut Member> {
        let mut members = self.members.iter_mut();
        members.find(|m| m.shard == shard && m.session == session && m.consumer == consumer)
    }

    /// Adds a member or takes what a known one says about itself, and answers.
    fn join(
        &mut self,
        (shard, session, consumer): (ShardAddress, u64, ConsumerId),
        claimed: Role,
        out: &mut Vec<Decision>,
    ) {
        if self.find(shard, session, consumer).is_none() {
            self.members.push(Member {
                shard,
                session,
                consumer,
                role: Role::Waiting,
                lost_at: None,
            });
        }
        let mut others = self
            .members
            .iter()
            .filter(|m| (m.shard, m.session, m.consumer) != (shard, session, consumer));
        let has_other = others.any(|m| m.role != Role::Waiting);
        let Some(member) = self.find(shard, session, consumer) else {
            return;
        };
        member.lost_at = None;
        member.role = match (member.role, claimed) {
            // The decision was lost or is on its way.
            (Role::Active, Role::Waiting | Role::Active) => Role::Active,
            (_, Role::Waiting) => Role::Waiting,
            (Role::Waiting, Role::Active) if !has_other => Role::Active,
            _ => Role::SteppingDown,
        };
        out.push((shard, session, consumer, member.role == Role::Active));
    }

    /// Chooses the active member.
    fn decide(&mut self, now: Time, out: &mut Vec<Decision>) {
        let is_changing = self.members.iter().any(|m| m.role == Role::SteppingDown);
        if now < self.settled_at || is_changing {
            return;
        }
        let active = self.members.iter().position(|m| m.role == Role::Active);
        let present: Vec<usize> = (0..self.members.len())
            .filter(|&at| self.members[at].lost_at.is_none() || Some(at) == active)
            .collect();
        let wanted = match self.partition {
            None => active.or(present.first().copied()),
            Some(number) if !present.is_empty() => {
                present.get(number as usize % present.len()).copied()
            }
            Some(_) => None,
        };
        if wanted == active {
            return;
        }
        let (chosen, role) = match active {
            Some(active) => (Some(active), Role::SteppingDown),
            None => (wanted, Role::Active),
        };
        if let Some(member) = chosen.and_then(|at| self.members.get_mut(at)) {
            member.role = role;
            out.push((
                member.shard,
                member.session,
                member.consumer,
                role == Role::Active,
            ));
        }
    }
}

/// The state of all groups on one shard.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    local: BTreeMap<(u64, ConsumerId), LocalMember>,
    coordinated: BTreeMap<(QueueId, Name), Group>,
    /// Requests of sessions, and events for them.
    requests: VecDeque<(u64, Request)>,
    events: VecDeque<(u64, GroupEvent)>,
    check_at: Time,
    /// Not a part of the groups, but a shard has one service for all of its sessions.
    pub users: StreamUsers,
}

impl Groups {
    fn is_idle(&self) -> bool {
        self.local.is_empty() && self.coordinated.is_empty()
    }

    /// Sends a decision to a session of this shard.
    fn set_active(&mut self, session: u64, consumer: ConsumerId, is_active: bool) {
        if let Some(member) = self.local.get_mut(&(session, consumer)) {
            member.is_acknowledged = true;
            member.is_known = true;
            member.set_active(is_active);
            let event = GroupEvent::SetActive {
                consumer,
                is_active,
            };
            self.events.push_back((session, event));
        }
    }

    /// Handles a message for the coordinator.
    fn coordinate(
        &mut self,
        from: ShardAddress,
        message: GroupMessage,
        now: Time,
        out: &mut Vec<Decision>,
    ) {
        match message {
            GroupMessage::Join {
                queue,
                name,
                partition,
                session,
                consumer,
                role,
                is_known,
            } => {
                let settled_at = if is_known { now + SETTLE_TIME } else { now };
                let group = self.coordinated.entry((queue, name)).or_insert(Group {
                    partition,
                    members: Vec::new(),
                    settled_at,
                });
                group.join((from, session, consumer), role, out);
                group.decide(now, out);
            }
            GroupMessage::Leave {
                queue,
                name,
                session,
                consumer,
            } => {
                let key = (queue, name);
                let Some(group) = self.coordinated.get_mut(&key) else {
                    return;
                };
                group
                    .members
                    .retain(|m| (m.shard, m.session, m.consumer) != (from, session, consumer));
                group.decide(now, out);
                if group.members.is_empty() {
                    self.coordinated.remove(&key);
                }
            }
            GroupMessage::SteppedDown {
                queue,
                name,
                session,
                consumer,
            } => {
                if let Some(group) = self.coordinated.get_mut(&(queue, name)) {
                    if let Some(member) = group.find(from, session, consumer) {
                        member.role = Role::Waiting;
                    }
                    group.decide(now, out);
                }
            }
            GroupMessage::SetActive { .. } => {}
        }
    }
}

/// Adds a member to a group.
pub(crate) fn join(broker: &mut dyn Broker, key: GroupKey, consumer: ConsumerId) {
    request(broker, Request::Join(key, consumer));
}

/// Removes a member from its group.
pub(crate) fn leave(broker: &mut dyn Broker, key: &GroupKey, consumer: ConsumerId) {
    request(broker, Request::Leave(key.clone(), consumer));
}

/// States that a member is inactive, and its client knows it.
pub(crate) fn step_down(broker: &mut dyn Broker, key: &GroupKey, consumer: ConsumerId) {
    request(broker, Request::StepDown(key.clone(), consumer));
}

fn request(broker: &mut dyn Broker, request: Request) {
    let session = broker.id().number;
    if let Some(groups) = broker.services().and_then(ServiceStates::get_mut::<Groups>) {
        groups.requests.push_back((session, request));
    }
}

/// The functions of groups on every shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupService;

/// The service with the state of a new shard.
pub(crate) fn registration() -> ServiceRegistration {
    ServiceRegistration {
        service: &GroupService,
        state: Box::new(Groups::default()),
        event: Box::new(None::<GroupEvent>),
    }
}

fn state(host: &mut dyn ServiceHost) -> Option<&mut Groups> {
    host.services()?.get_mut()
}

/// The shard that coordinates the groups of a stream, if the node of its leader can be reached.
fn coordinator_of(host: &dyn ServiceHost, queue: QueueId) -> Option<ShardAddress> {
    let record = host.tree().queue_by_id(queue)?;
    let leader = host.leader_of(record)?;
    // Nodes may have different numbers of shards: the leader's decides.
    let shard_among = |shards: u16| (queue.0 % u64::from(shards.max(1))) as u16;
    let own = host.address();
    if leader == own.node {
        let shard = shard_among(host.shards());
        return Some(ShardAddress { shard, ..own });
    }
    let nodes = host.nodes();
    let node = nodes
        .iter()
        .find(|node| node.node == leader && node.is_up)?;
    Some(ShardAddress {
        node: leader,
        incarnation: node.incarnation,
        shard: shard_among(node.shards),
    })
}

fn send(host: &mut dyn ServiceHost, to: ShardAddress, message: GroupMessage) {
    if to == host.address() {
        return take(host, to, message);
    }
    if to.node == host.address().node {
        return host.pass(to.shard, Box::new(message));
    }
    host.send(to, &mut |out| encode(&message, out));
}

/// Handles a message of another shard or of this one.
fn take(host: &mut dyn ServiceHost, from: ShardAddress, message: GroupMessage) {
    if let GroupMessage::SetActive {
        session,
        consumer,
        is_active,
    } = message
    {
        if let Some(groups) = state(host) {
            groups.set_active(session, consumer, is_active);
        }
        return;
    }
    let own = host.address();
    if let GroupMessage::Join { queue, .. } = &message
        && coordinator_of(host, *queue) != Some(own)
    {
        // The member repeats the request when one of both knows better.
        return;
    }
    let now = host.now();
    let mut decisions = Vec::new();
    if let Some(groups) = state(host) {
        groups.coordinate(from, message, now, &mut decisions);
    }
    send_decisions(host, decisions);
}

fn send_decisions(host: &mut dyn ServiceHost, decisions: Vec<Decision>) {
    for (to, session, consumer, is_active) in decisions {
        let message = GroupMessage::SetActive {
            session,
            consumer,
            is_active,
        };
        send(host, to, message);
    }
}

/// Carries out the request of a session.
fn perform(host: &mut dyn ServiceHost, session: u64, request: Request) {
    let now = host.now();
    match request {
        Request::Join(key, consumer) => {
            let member = LocalMember {
                key,
                coordinator: None,
                is_acknowledged: false,
                role: Role::Waiting,
                is_known: false,
                seen_at: now,
                joined_at: now,
            };
            if let Some(groups) = state(host) {
                groups.local.insert((session, consumer), member);
            }
            announce(host, session, consumer);
        }
        Request::Leave(GroupKey { queue, name, .. }, consumer) => {
            let groups = state(host);
            let member = groups.and_then(|groups| groups.local.remove(&(session, consumer)));
            if let Some(to) = member.and_then(|member| member.coordinator) {
                let message = GroupMessage::Leave {
                    queue,
                    name,
                    session,
                    consumer,
                };
                send(host, to, message);
            }
        }
        Request::StepDown(GroupKey { queue, name, .. }, consumer) => {
            let groups = state(host);
            let member = groups.and_then(|groups| groups.local.get_mut(&(session, consumer)));
            let Some(member) = member.filter(|member| member.role == Role::SteppingDown) else {
                return;
            };
            member.role = Role::Waiting;
            if let Some(to) = member.coordinator {
                let message = GroupMessage::SteppedDown {
                    queue,
                    name,
                    session,
                    consumer,
                };
                send(host, to, message);
            }
        }
    }
}

/// Joins at the current coordinator, if there is one.
fn announce(host: &mut dyn ServiceHost, session: u64, consumer: ConsumerId) {
    let id = (session, consumer);
    let Some(queue) = state(host).and_then(|groups| Some(groups.local.get(&id)?.key.queue)) else {
        return;
    };
    let coordinator = coordinator_of(host, queue);
    let now = host.now();
    let Some(member) = state(host).and_then(|groups| groups.local.get_mut(&id)) else {
        return;
    };
    let Some(to) = coordinator else {
        return;
    };
    member.coordinator = Some(to);
    member.is_acknowledged = false;
    member.seen_at = now;
    member.joined_at = now;
    let message = GroupMessage::Join {
        queue,
        name: member.key.name.clone(),
        partition: member.key.partition,
        session,
        consumer,
        role: member.role,
        is_known: member.is_known,
    };
    send(host, to, message);
}

/// Compares the members of this shard with the leaders of their streams.
fn check_members(host: &mut dyn ServiceHost, now: Time) {
    let Some(groups) = state(host) else { return };
    let members: Vec<((u64, ConsumerId), QueueId)> = groups
        .local
        .iter()
        .map(|(id, member)| (*id, member.key.queue))
        .collect();
    for ((session, consumer), queue) in members {
        let coordinator = coordinator_of(host, queue);
        let Some(groups) = state(host) else { return };
        let Some(member) = groups.local.get_mut(&(session, consumer)) else {
            continue;
        };
        match coordinator {
            None if member.role == Role::Active && now.since(member.seen_at) >= LEASE => {
                member.set_active(false);
                let event = GroupEvent::SetActive {
                    consumer,
                    is_active: false,
                };
                groups.events.push_back((session, event));
            }
            None => {}
            Some(_)
                if member.is_acknowledged
                    && member.coordinator == coordinator
                    && now.since(member.joined_at) < REJOIN_INTERVAL =>
            {
                member.seen_at = now;
            }
            Some(_) => announce(host, session, consumer),
        }
    }
}

/// Removes members that are lost for too long, and groups of streams that have another leader.
fn check_groups(host: &mut dyn ServiceHost, now: Time) {
    let own = host.address();
    let Some(groups) = state(host) else { return };
    let queues: Vec<QueueId> = groups.coordinated.keys().map(|(queue, _)| *queue).collect();
    for queue in queues {
        let is_coordinator = coordinator_of(host, queue) == Some(own);
        let Some(groups) = state(host) else { return };
        if !is_coordinator {
            groups.coordinated.retain(|(of, _), _| *of != queue);
        }
    }
    let Some(groups) = state(host) else { return };
    let mut decisions = Vec::new();
    groups.coordinated.retain(|_, group| {
        let is_lost = |m: &Member| m.lost_at.is_some_and(|at| now.since(at) >= LOST_TIMEOUT);
        group.members.retain(|m| !is_lost(m));
        group.decide(now, &mut decisions);
        !group.members.is_empty()
    });
    send_decisions(host, decisions);
}

impl ShardService for GroupService {
    fn id(&self) -> ServiceId {
        ServiceId(2)
    }

    fn tick(&self, states: &mut ServiceStates, now: Time, _: WallTime) -> TickOutcome {
        match states.get_mut::<Groups>() {
            Some(groups) if !groups.is_idle() && now >= groups.check_at => TickOutcome::Due,
            _ => TickOutcome::Idle,
        }
    }

    fn carry_out_due(&self, host: &mut dyn ServiceHost) {
        let now = host.now();
        if let Some(groups) = state(host) {
            groups.check_at = now + CHECK_INTERVAL;
        }
        check_members(host, now);
        check_groups(host, now);
    }

    fn wake_at(&self, states: &ServiceStates) -> Option<Time> {
        let groups = states.get::<Groups>()?;
        (!groups.is_idle()).then_some(groups.check_at)
    }

    fn frame(
        &self,
        host: &mut dyn ServiceHost,
        from: ShardAddress,
        frame: Bytes,
    ) -> Result<(), InvalidFrame> {
        take(host, from, decode(&frame)?);
        Ok(())
    }

    fn message(
        &self,
        host: &mut dyn ServiceHost,
        from: ShardAddress,
        message: Box<dyn Any + Send>,
    ) {
        match message.downcast() {
            Ok(message) => take(host, from, *message),
            Err(_) => debug_assert!(false, "a message of another service"),
        }
    }

    fn next_output(
        &self,
        states: &mut ServiceStates,
        event: &mut dyn Any,
    ) -> Option<ServiceOutput> {
        let groups = states.get_mut::<Groups>()?;
        let event = event.downcast_mut::<Option<GroupEvent>>()?;
        if let Some((session, request)) = groups.requests.pop_front() {
            *event = Some(GroupEvent::Request(session, request));
            return Some(ServiceOutput::Work);
        }
        let (session, next) = groups.events.pop_front()?;
        *event = Some(next);
        Some(ServiceOutput::Event { session })
    }

    fn carry_out(&self, host: &mut dyn ServiceHost, event: &mut dyn Any) {
        let event = event.downcast_mut::<Option<GroupEvent>>();
        if let Some(GroupEvent::Request(session, request)) = event.and_then(Option::take) {
            perform(host, session, request);
        }
    }

    fn tree_event(&self, host: &mut dyn ServiceHost, event: &TreeEvent) {
        let TreeEvent::QueueRemoved(record) = event else {
            return;
        };
        let Some(groups) = state(host) else { return };
        for session in groups.users.sessions(record.id) {
            groups
                .events
                .push_back((session, GroupEvent::StreamDeleted));
        }
    }

    fn node_up(&self, host: &mut dyn ServiceHost, node: NodeId, incarnation: Incarnation) {
        let Some(groups) = state(host) else { return };
        for group in groups.coordinated.values_mut() {
            // The sessions of an earlier incarnation have ended.
            group
                .members
                .retain(|m| m.shard.node != node || m.shard.incarnation == incarnation);
            for member in group.members.iter_mut().filter(|m| m.shard.node == node) {
                member.lost_at = None;
            }
        }
        for member in groups.local.values_mut() {
            // Frames may have been lost.
            if member.coordinator.is_some_and(|at| at.node == node) {
                member.is_acknowledged = false;
            }
        }
        let now = host.now();
        check_members(host, now);
        check_groups(host, now);
    }

    fn node_down(&self, host: &mut dyn ServiceHost, node: NodeId) {
        let now = host.now();
        let Some(groups) = state(host) else { return };
        for group in groups.coordinated.values_mut() {
            for member in group.members.iter_mut().filter(|m| m.shard.node == node) {
                member.lost_at.get_or_insert(now);
            }
        }
    }
}

impl StreamSession {
    /// Handles an event of the service.
    pub(crate) fn handle_group_event(&mut self, event: &mut dyn Any, cx: &mut StepContext<'_>) {
        let event = event.downcast_mut::<Option<GroupEvent>>();
        if let Some(GroupEvent::SetActive {
            consumer,
            is_active,
        }) = event.and_then(Option::take)
        {
            self.set_active(consumer, is_active, cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shard(number: u16) -> ShardAddress {
        ShardAddress {
            node: NodeId(1),
            incarnation: Incarnation(1),
            shard: number,
        }
    }

    /// The frames of version 1: another version of the broker reads them.
    #[test]
    fn frames_of_version_1_are_unchanged() {
        let (queue, name): (_, Name) = (QueueId(5), "g".into());
        let (session, consumer) = (300, ConsumerId(7));
        let samples: [(GroupMessage, &[u8]); 4] = [
            (
                GroupMessage::Join {
                    queue,
                    name: name.clone(),
                    partition: Some(2),
                    session,
                    consumer,
                    role: Role::Active,
                    is_known: false,
                },
                b"\x01\x01\0\0\0\0\0\0\0\x05\0\0\0\x01g\x01\x02\xac\x02\x07\x01\0",
            ),
            (
                GroupMessage::Leave {
                    queue,
                    name: name.clone(),
                    session,
                    consumer,
                },
                b"\x01\x02\0\0\0\0\0\0\0\x05\0\0\0\x01g\xac\x02\x07",
            ),
            (
                GroupMessage::SteppedDown {
                    queue,
                    name,
                    session,
                    consumer,
                },
                b"\x01\x03\0\0\0\0\0\0\0\x05\0\0\0\x01g\xac\x02\x07",
            ),
            (
                GroupMessage::SetActive {
                    session,
                    consumer,
                    is_active: true,
                },
                b"\x01\x04\xac\x02\x07\x01",
            ),
        ];
        for (message, expected) in samples {
            let mut out = BytesMut::new();
            encode(&message, &mut out);
            assert_eq!(out, expected, "{message:?}");
            assert_eq!(decode(&out.freeze()).unwrap(), message);
        }
        assert!(decode(&Bytes::from_static(b"\x02\x04\0\0\0")).is_err());
        assert!(decode(&Bytes::new()).is_err());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join(u16),
        Leave(u16),
        /// The client of a member answers the newest consumer update.
        Answer(u16),
        Lose(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..4u16, 0..8u8).prop_map(|(member, kind)| match kind {
            0..=2 => Step::Join(member),
            3 => Step::Leave(member),
            4 => Step::Lose(member),
            _ => Step::Answer(member),
        })
    }

    proptest! {
        /// Never two members are active, and one is when all clients have answered.
        #[test]
        fn at_most_one_member_is_active(
            steps in prop::collection::vec(step(), 0..60),
            partition in prop::option::of(0..5u32),
        ) {
            let mut group = Group { partition, members: Vec::new(), settled_at: Time(0) };
            // The members as their own shards know them.
            let mut known: BTreeMap<u16, LocalMember> = BTreeMap::new();
            let now = Time(1);
            let consumer = ConsumerId(0);
            for step in steps.into_iter().chain((0..4).flat_map(|_| (0..4).map(Step::Answer))) {
                let mut out = Vec::new();
                match step {
                    Step::Join(member) => {
                        let role = known.entry(member).or_insert(LocalMember {
                            key: GroupKey { queue: QueueId(1), name: "g".into(), partition },
                            coordinator: None,
                            is_acknowledged: false,
                            role: Role::Waiting,
                            is_known: false,
                            seen_at: now,
                            joined_at: now,
                        }).role;
                        group.join((shard(member), 1, consumer), role, &mut out);
                    }
                    Step::Leave(member) => {
                        known.remove(&member);
                        group.members.retain(|m| m.shard != shard(member));
                    }
                    Step::Answer(member) => {
                        if let Some(local) = known.get_mut(&member)
                            && local.role == Role::SteppingDown
                        {
                            local.role = Role::Waiting;
                            if let Some(found) = group.find(shard(member), 1, consumer) {
                                found.role = Role::Waiting;
                            }
                        }
                    }
                    Step::Lose(member) => {
                        if let Some(found) = group.find(shard(member), 1, consumer) {
                            found.lost_at = Some(now);
                        }
                    }
                }
                group.decide(now, &mut out);
                for (to, _, _, is_active) in out {
                    if let Some(local) = known.get_mut(&to.shard) {
                        local.set_active(is_active);
                    }
                }
                // A client that has not answered may still process messages.
                let busy = known.values().filter(|m| m.role != Role::Waiting).count();
                prop_assert!(busy <= 1, "{group:?}");
            }
            let present = group.members.iter().filter(|m| m.lost_at.is_none()).count();
            let active = known.values().filter(|m| m.role == Role::Active).count();
            prop_assert!(present == 0 || active == 1, "{group:?}");
        }
    }
}
