//! Pages of the messages of queues for sessions that browse them.
//!
//! A session requests one page after another, and the queue's owner answers each from its state at that moment. Nothing is kept
//! for a browsing session on the owner, so it is no consumer of the queue.
//!
//! Owns: the requests whose answers are awaited, those to queues of this shard until its next turn, and the queues whose
//! deletion browsing sessions must be told.

use crate::peers::Peers;
use env::{Incarnation, NodeId, Time};
use metadata::QueueId;
use queue::{BrowsePage, BrowseRequest};
use session::{BrowseAnswer, BrowsedPage, QueueNotification};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A request without an answer fails after this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Most pages of queues of this shard that one turn reads for its own sessions.
pub(crate) const PAGES_OF_TURN: usize = 4;
/// Tokens of these requests have this bit, which those of [`Reports`](crate::reports::Reports) never reach.
const TOKEN: u64 = 1 << 63;

/// A request to a queue of this shard.
pub(crate) struct LocalRequest {
    pub token: u64,
    pub queue: QueueId,
    pub request: BrowseRequest,
}

struct OpenRequest {
    session: u64,
    queue: QueueId,
    /// The nodes that have not answered.
    asked: Vec<NodeId>,
    until: Time,
}

/// A notification for a session, by its number.
pub(crate) type Notification = (u64, QueueNotification);

#[derive(Default)]
pub(crate) struct Browsers {
    last_token: u64,
    open: BTreeMap<u64, OpenRequest>,
    /// Requests to queues of this shard, which its next turns answer.
    local: VecDeque<LocalRequest>,
    /// Sessions that browse a queue.
    watchers: BTreeSet<(QueueId, u64)>,
    /// The same by session.
    watched: BTreeMap<u64, Vec<QueueId>>,
}

impl Browsers {
    /// Returns true if an answer with this token is for a browsing session.
    pub(crate) fn is_token(token: u64) -> bool {
        token & TOKEN != 0
    }

    /// Sends the session a notification when the queue is deleted.
    pub(crate) fn watch(&mut self, session: u64, queue: QueueId) {
        if self.watchers.insert((queue, session)) {
            self.watched.entry(session).or_default().push(queue);
        }
    }

    /// Notes a request of a session to these nodes. Returns its token.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        session: u64,
        queue: QueueId,
        asked: Vec<NodeId>,
    ) -> u64 {
        self.last_token += 1;
        let token = self.last_token | TOKEN;
        let request = OpenRequest {
            session,
            queue,
            asked,
            until: now + ANSWER_WITHIN,
        };
        self.open.insert(token, request);
        token
    }

    /// Has the next turn answer a request to a queue of this shard.
    pub(crate) fn push_local(&mut self, request: LocalRequest) {
        self.local.push_back(request);
    }

    /// The next request to a queue of this shard whose session is still there.
    pub(crate) fn pop_local(&mut self) -> Option<LocalRequest> {
        while let Some(request) = self.local.pop_front() {
            if self.open.contains_key(&request.token) {
                return Some(request);
            }
        }
        None
    }

    /// Handles an answer. `None`: this shard of the node does not lead or store the queue.
    pub(crate) fn take(
        &mut self,
        token: u64,
        (node, incarnation): (NodeId, Option<Incarnation>),
        page: Option<Result<BrowsePage, String>>,
    ) -> Option<Notification> {
        let open = self.open.get_mut(&token)?;
        open.asked.retain(|asked| *asked != node);
        let page = match (page, incarnation) {
            (Some(page), Some(incarnation)) => page.map(|page| BrowsedPage {
                owner: node,
                incarnation,
                page,
            }),
            _ if !open.asked.is_empty() => return None,
            _ => Err("no node that is up leads the queue: try again later".into()),
        };
        self.answer(token, page)
    }

    fn answer(&mut self, token: u64, page: Result<BrowsedPage, String>) -> Option<Notification> {
        let OpenRequest { session, queue, .. } = self.open.remove(&token)?;
        let answer = Box::new(BrowseAnswer { token, page });
        Some((session, QueueNotification::Browsed { queue, answer }))
    }

    /// The link to a node is lost: it answers no request.
    pub(crate) fn handle_node_down(&mut self, node: NodeId) -> Vec<Notification> {
        let asked = self.open.iter().filter(|(_, r)| r.asked.contains(&node));
        let tokens: Vec<u64> = asked.map(|(token, _)| *token).collect();
        let failed = tokens.into_iter();
        failed
            .filter_map(|token| self.take(token, (node, None), None))
            .collect()
    }

    /// A queue was deleted.
    pub(crate) fn handle_queue_removed(&mut self, queue: QueueId) -> Vec<Notification> {
        let watchers = self.watchers.range((queue, 0)..=(queue, u64::MAX));
        let sessions: Vec<u64> = watchers.map(|(_, session)| *session).collect();
        for session in &sessions {
            self.watchers.remove(&(queue, *session));
            if let Some(queues) = self.watched.get_mut(session) {
                queues.retain(|watched| *watched != queue);
                if queues.is_empty() {
                    self.watched.remove(session);
                }
            }
        }
        let removed = |session| (session, QueueNotification::Removed { queue });
        sessions.into_iter().map(removed).collect()
    }

    /// A session has ended.
    pub(crate) fn handle_session_end(&mut self, session: u64) {
        let Some(queues) = self.watched.remove(&session) else {
            return;
        };
        for queue in queues {
            self.watchers.remove(&(queue, session));
        }
        self.open.retain(|_, request| request.session != session);
    }

    /// Ends the requests whose time is up.
    pub(crate) fn tick(&mut self, now: Time) -> Vec<Notification> {
        let is_late =
            |(token, request): (&u64, &OpenRequest)| (now >= request.until).then_some(*token);
        let late: Vec<u64> = self.open.iter().filter_map(is_late).collect();
        let late = late.into_iter();
        late.filter_map(|token| {
            let error = "the node that leads the queue has not answered in time: try again later";
            self.answer(token, Err(error.into()))
        })
        .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.local.is_empty() {
            return Some(now);
        }
        self.open.values().map(|request| request.until).min()
    }
}

/// The nodes to ask for a page of a queue: the one that is taken for its owner, or else all members. Those that are not
/// reachable are left out.
pub(crate) fn nodes_to_ask(
    me: NodeId,
    peers: &Peers,
    members: &[NodeId],
    owner: Option<NodeId>,
) -> Vec<NodeId> {
    let is_reachable = |node: &NodeId| *node == me || peers.is_up(*node);
    match owner.filter(|owner| members.contains(owner) && is_reachable(owner)) {
        Some(owner) => vec![owner],
        None => members.iter().copied().filter(is_reachable).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (NodeId, Option<Incarnation>) = (NodeId(1), Some(Incarnation(7)));
    const TWO: (NodeId, Option<Incarnation>) = (NodeId(2), Some(Incarnation(8)));
    const QUEUE: QueueId = QueueId(9);

    fn begin(browsers: &mut Browsers, session: u64) -> u64 {
        browsers.watch(session, QUEUE);
        browsers.begin(Time::ZERO, session, QUEUE, vec![NodeId(1), NodeId(2)])
    }

    fn answer(notification: Option<Notification>) -> Option<(u64, Result<NodeId, String>)> {
        match notification? {
            (session, QueueNotification::Browsed { answer, .. }) => {
                Some((session, answer.page.map(|page| page.owner)))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn page_of_the_owner_answers_and_other_members_do_not() {
        let mut browsers = Browsers::default();
        let token = begin(&mut browsers, 5);
        assert!(Browsers::is_token(token));
        assert!(browsers.take(token, TWO, None).is_none());
        let page = Some(Ok(BrowsePage::default()));
        let answered = answer(browsers.take(token, ONE, page.clone()));
        assert_eq!(answered, Some((5, Ok(NodeId(1)))));
        assert!(browsers.take(token, ONE, page).is_none(), "answered twice");
    }

    #[test]
    fn request_fails_once_no_member_is_left_that_could_answer() {
        let mut browsers = Browsers::default();
        let token = begin(&mut browsers, 5);
        assert!(browsers.take(token, TWO, None).is_none());
        let failed = browsers.handle_node_down(NodeId(1)).pop();
        assert!(matches!(answer(failed), Some((5, Err(_)))));
        assert!(browsers.is_empty());
    }

    #[test]
    fn request_fails_after_its_time() {
        let mut browsers = Browsers::default();
        begin(&mut browsers, 5);
        assert!(browsers.tick(Time::ZERO).is_empty());
        assert_eq!(
            browsers.wake_at(Time::ZERO),
            Some(Time::ZERO + ANSWER_WITHIN)
        );
        let failed = browsers.tick(Time::ZERO + ANSWER_WITHIN).pop();
        assert!(matches!(answer(failed), Some((5, Err(_)))));
    }

    #[test]
    fn deletion_is_told_to_sessions_that_browse_and_have_not_ended() {
        let mut browsers = Browsers::default();
        let ended = begin(&mut browsers, 5);
        begin(&mut browsers, 6);
        browsers.push_local(LocalRequest {
            token: ended,
            queue: QUEUE,
            request: BrowseRequest::default(),
        });
        browsers.handle_session_end(5);
        assert!(browsers.pop_local().is_none());
        let told = browsers.handle_queue_removed(QUEUE);
        let told: Vec<u64> = told.into_iter().map(|(session, _)| session).collect();
        assert_eq!(told, [6]);
        assert!(browsers.handle_queue_removed(QUEUE).is_empty());
        assert!(browsers.watched.is_empty() && browsers.watchers.is_empty());
    }
}
