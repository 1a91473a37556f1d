//! The sessions' side of queues: for each session and queue a [`QueueClient`] that numbers and keeps requests, and the
//! words a session knows them by.

use crate::core::{Core, FixedState};
use control::Reply;
use env::{NodeId, Time};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use metadata::{QueueId, QueueKind, Refused};
use queue::client::{Output, QueueClient};
use queue::{Answer, Event, Reject, RequestBody, ToQueue};
use session::{Notice, PublishTag, RequestSeq};
use std::collections::{BTreeSet, VecDeque};

/// One session's way to one queue.
struct Link {
    client: QueueClient,
    /// Publishes that somebody waits for, by request number.
    tags: VecDeque<(u64, PublishTag)>,
    kind: QueueKind,
    /// Where the queue's owner is believed to be.
    owner: Option<NodeId>,
    /// The next member to try when nobody knows the owner.
    turn: usize,
    congested: bool,
}

#[derive(Default)]
struct SessionLinks {
    queues: HashMap<QueueId, Link, FixedState>,
    congested: usize,
}

#[derive(Default)]
pub struct Clients {
    sessions: HashMap<u64, SessionLinks, FixedState>,
    /// Sessions whose last congested link has moved on.
    relieved: Vec<u64>,
    /// Links that want a tick.
    due: BTreeSet<(Time, u64, QueueId)>,
    control: HashMap<(QueueId, u64), Reply<Result<Answer, Refused>>, FixedState>,
    outputs: Vec<Output>,
}

impl Clients {
    pub fn congested(&self, number: u64) -> bool {
        self.sessions.get(&number).is_some_and(|s| s.congested > 0)
    }

    pub fn take_relieved(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.relieved)
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.due.first().map(|(t, _, _)| *t)
    }

    /// The queue is no more: nothing sent to it will be answered.
    pub fn queue_removed(&mut self, queue: QueueId, notices: &mut VecDeque<(u64, Notice)>) {
        for (number, session) in &mut self.sessions {
            let Some(mut link) = session.queues.remove(&queue) else { continue };
            if link.congested {
                session.congested -= 1;
                self.relieved.push(*number);
            }
            let mut outputs = Vec::new();
            link.client.owner_lost(&mut outputs);
            for output in outputs {
                if let Some(notice) = link.notice(queue, output) {
                    notices.push_back((*number, notice));
                }
            }
        }
        self.control.retain(|(q, _), _| *q != queue);
    }

    fn links_to(&self, pred: impl Fn(&Link) -> bool) -> Vec<(u64, QueueId)> {
        let mut found: Vec<(u64, QueueId)> = self
            .sessions
            .iter()
            .flat_map(|(n, s)| s.queues.iter().filter(|(_, l)| pred(l)).map(move |(q, _)| (*n, *q)))
            .collect();
        found.sort_unstable();
        found
    }
}

impl Link {
    /// A client's output as the session's notice; `Send` is not one.
    fn notice(&mut self, queue: QueueId, output: Output) -> Option<Notice> {
        Some(match output {
            Output::Send(_) | Output::Published { .. } => return None,
            Output::NotPublished { seq, why } => {
                let at = self.tags.iter().position(|(s, _)| *s == seq)?;
                let (_, tag) = self.tags.remove(at)?;
                Notice::NotPublished { queue, tag, why }
            }
            Output::Answer { seq, answer } => Notice::Answer { queue, seq: RequestSeq(seq), answer },
            Output::Deliver { consumer, deliveries } => Notice::Deliver { queue, consumer, deliveries },
            Output::Cancelled { consumer } => Notice::Cancelled { queue, consumer },
        })
    }
}

impl Core {
    /// A session's request to a queue; returns its number.
    pub fn request(&mut self, number: u64, queue: QueueId, body: RequestBody, tag: Option<PublishTag>) -> u64 {
        if self.tree.queue_by_id(queue).is_none() {
            return self.refuse_unknown(number, queue, tag);
        }
        let now = self.now;
        let mut outputs = std::mem::take(&mut self.clients.outputs);
        let session = self.session(number);
        let Some(link) = self.link(number, queue) else { return 0 };
        let seq = link.client.request(now, body, &mut outputs);
        if let Some(tag) = tag.filter(|t| t.tag != 0) {
            link.tags.push_back((seq, tag));
        }
        debug_assert_eq!(link.client.session(), session);
        self.dispatch(number, queue, outputs);
        seq
    }

    fn refuse_unknown(&mut self, number: u64, queue: QueueId, tag: Option<PublishTag>) -> u64 {
        let notice = match tag {
            Some(tag) if tag.tag != 0 => Notice::NotPublished { queue, tag, why: Reject::Unavailable },
            Some(_) => return 0,
            None => Notice::Answer {
                queue,
                seq: RequestSeq(0),
                answer: Answer::Refused { code: 404, text: "NOT_FOUND - the queue is gone".into() },
            },
        };
        self.notices.push_back((number, notice));
        0
    }

    fn link(&mut self, number: u64, queue: QueueId) -> Option<&mut Link> {
        let session = self.session(number);
        let record = self.tree.queue_by_id(queue)?;
        let links = self.clients.sessions.entry(number).or_default();
        Some(match links.queues.entry(queue) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let owner = match record.kind {
                    QueueKind::Classic => record.members.first().copied(),
                    QueueKind::Quorum => self.owners.leader_of(queue),
                };
                place.insert(Link {
                    client: QueueClient::new(session),
                    tags: VecDeque::new(),
                    kind: record.kind,
                    owner,
                    turn: 0,
                    congested: false,
                })
            }
        })
    }

    /// Carries out what a client wants after a request, an event or a tick, and keeps its books.
    fn dispatch(&mut self, number: u64, queue: QueueId, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Send(message) => self.send_to_owner(number, queue, message),
                Output::Published { up_to } => self.published(number, queue, up_to),
                Output::Answer { seq, answer } if self.is_control(number) => self.control_answer(queue, seq, answer),
                other => {
                    let link = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue));
                    if let Some(notice) = link.and_then(|l| l.notice(queue, other)) {
                        self.notices.push_back((number, notice));
                    }
                }
            }
        }
        self.clients.outputs = outputs;
        self.keep_books(number, queue);
    }

    fn published(&mut self, number: u64, queue: QueueId, up_to: u64) {
        let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { return };
        while let Some((_, tag)) = link.tags.pop_front_if(|(seq, _)| *seq <= up_to) {
            self.notices.push_back((number, Notice::Published { queue, tag }));
        }
    }

    /// Congestion and the next tick.
    fn keep_books(&mut self, number: u64, queue: QueueId) {
        let Some(session) = self.clients.sessions.get_mut(&number) else { return };
        let Some(link) = session.queues.get_mut(&queue) else { return };
        let congested = link.client.congested();
        if congested != link.congested {
            link.congested = congested;
            if congested {
                session.congested += 1;
            } else {
                session.congested -= 1;
                if session.congested == 0 {
                    self.clients.relieved.push(number);
                }
            }
        }
        if let Some(at) = link.client.wake_at() {
            self.clients.due.insert((at, number, queue));
        }
    }

    fn send_to_owner(&mut self, number: u64, queue: QueueId, message: ToQueue) {
        let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { return };
        let owner = match link.owner {
            Some(owner) => Some(owner),
            None => self.tree.queue_by_id(queue).and_then(|r| r.members.get(link.turn % r.members.len().max(1)).copied()),
        };
        if let Some(owner) = owner {
            self.send_request(owner, queue, message);
        }
    }

    /// A queue's word for a session of this shard.
    pub fn take_event(&mut self, number: u64, queue: QueueId, event: Event) {
        let now = self.now;
        let mut outputs = std::mem::take(&mut self.clients.outputs);
        let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { return };
        if let Event::NotOwner { leader } = &event {
            link.turn = link.turn.wrapping_add(1);
            link.owner = *leader;
        }
        link.client.event(now, event, &mut outputs);
        self.dispatch(number, queue, outputs);
    }

    pub fn tick_clients(&mut self) {
        let now = self.now;
        while let Some((at, number, queue)) = self.clients.due.first().copied() {
            if at > now {
                return;
            }
            self.clients.due.pop_first();
            let hint = self.owners.leader_of(queue);
            let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { continue };
            if link.client.wake_at().is_none_or(|t| t > now) {
                self.keep_books(number, queue);
                continue;
            }
            // No word for a while: ask another member, or the leader that this node's own replica knows.
            if link.kind == QueueKind::Quorum {
                link.turn = link.turn.wrapping_add(1);
                link.owner = hint;
            }
            let mut outputs = std::mem::take(&mut self.clients.outputs);
            link.client.tick(now, &mut outputs);
            self.dispatch(number, queue, outputs);
        }
    }

    /// This node's replica of a queue has heard of a leader.
    pub fn queue_leader_known(&mut self, queue: QueueId, leader: NodeId) {
        let changed = |l: &Link| l.owner != Some(leader);
        for (number, _) in self.clients.sessions_on(queue, changed) {
            let now = self.now;
            let mut outputs = std::mem::take(&mut self.clients.outputs);
            let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { continue };
            link.owner = Some(leader);
            link.client.event(now, Event::NotOwner { leader: Some(leader) }, &mut outputs);
            self.dispatch(number, queue, outputs);
        }
    }

    /// The link to a node is lost: whoever led there is to be found again; a classic queue there is out of reach.
    pub fn clients_node_down(&mut self, node: NodeId) {
        for (number, queue) in self.clients.links_to(|l| l.owner == Some(node)) {
            let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { continue };
            let mut outputs = std::mem::take(&mut self.clients.outputs);
            match link.kind {
                QueueKind::Classic => link.client.owner_lost(&mut outputs),
                QueueKind::Quorum => link.owner = None,
            }
            self.dispatch(number, queue, outputs);
        }
    }

    /// The link to a node is there (again): what is owed to it is sent again.
    pub fn clients_node_up(&mut self, node: NodeId) {
        let now = self.now;
        for (number, queue) in self.clients.links_to(|l| l.owner == Some(node) || l.owner.is_none()) {
            let Some(link) = self.clients.sessions.get_mut(&number).and_then(|s| s.queues.get_mut(&queue)) else { continue };
            let mut outputs = std::mem::take(&mut self.clients.outputs);
            link.client.event(now, Event::NotOwner { leader: link.owner }, &mut outputs);
            self.dispatch(number, queue, outputs);
        }
    }

    /// The session is over: its queues are told, once, and its exclusive queues go.
    pub fn session_gone(&mut self, number: u64) {
        let Some(links) = self.clients.sessions.get(&number) else { return };
        let mut queues: Vec<QueueId> = links.queues.keys().copied().collect();
        queues.sort_unstable();
        for queue in queues {
            self.request(number, queue, RequestBody::Close, None);
        }
        self.closing.insert(number);
        self.forget_closed(number);
    }

    fn is_control(&self, number: u64) -> bool {
        number == crate::sessions::number(self.config.index, 0, crate::sessions::CONTROL_KEY)
    }

    pub fn control_request(&mut self, number: u64, queue: QueueId, body: RequestBody, reply: Reply<Result<Answer, Refused>>) {
        if self.tree.queue_by_id(queue).is_none() {
            return reply(Err(Refused::NotFound("the queue is gone".into())));
        }
        // The answer comes in a later step of this turn at the earliest, so the reply is there before it.
        let seq = self.request(number, queue, body, None);
        self.clients.control.insert((queue, seq), reply);
    }

    fn control_answer(&mut self, queue: QueueId, seq: u64, answer: Answer) {
        if let Some(reply) = self.clients.control.remove(&(queue, seq)) {
            reply(Ok(answer));
        }
    }
}
