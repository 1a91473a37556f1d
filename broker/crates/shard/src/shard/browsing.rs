//! Requests of sessions for pages of queues that they browse, and the answers.

use super::ShardState;
use crate::Route;
use crate::browsers::{LocalRequest, Notification, PAGES_OF_TURN, nodes_to_ask};
use crate::frame::Frame;
use bytes::Bytes;
use control::{BrowseFilter, ShardFacts, ShardQuery};
use env::NodeId;
use metadata::QueueId;
use queue::BrowseRequest;

impl ShardState {
    /// Asks the owner of a queue for a page for a session. Returns the token of the answer.
    pub fn request_page(
        &mut self,
        session: u64,
        queue: QueueId,
        request: &BrowseRequest,
        owner: Option<NodeId>,
    ) -> u64 {
        let me = self.ctx.node();
        let asked = match self.metadata.tree().queue_by_id(queue) {
            Some(record) => {
                let owner = owner.or_else(|| self.queues.leader_of(record));
                nodes_to_ask(me, self.cluster.peers(), &record.members, owner)
            }
            None => Vec::new(),
        };
        let now = self.ctx.now();
        let token = (self.browsers).begin(now, session, queue, asked.clone());
        if asked.is_empty() {
            let failed = self.browsers.take(token, (me, None), None);
            self.notify_browsers(failed.into_iter().collect());
            return token;
        }
        let query = ShardQuery::Browse(BrowseFilter::new(queue, request));
        let mut encoded = Bytes::new();
        for node in asked {
            if node == me && self.ctx.owns(queue) {
                let request = *request;
                self.browsers.push_local(LocalRequest {
                    token,
                    queue,
                    request,
                });
                continue;
            }
            if encoded.is_empty() {
                encoded = query.encode().into();
            }
            let frame = Frame::ControlQuestion {
                token,
                reply_shard: self.ctx.shard(),
                question: encoded.clone(),
            };
            match node == me {
                true => (self.ctx).send_to_shard(self.ctx.owner_shard(queue), frame),
                false => (self.ctx).send_to_peer(node, Route::Owner(queue.0), &frame),
            }
        }
        token
    }

    /// Handles the answer of another shard or node. `None`: this version cannot decode it.
    pub fn take_page(&mut self, from: NodeId, token: u64, facts: Option<ShardFacts>) {
        let page = match facts {
            Some(ShardFacts::Browsed(page)) => page.map(|facts| facts.into_page()),
            _ => None,
        };
        let incarnation = match from == self.ctx.node() {
            true => Some(self.ctx.config().incarnation),
            false => self.cluster.peers().incarnation(from),
        };
        let answer = self.browsers.take(token, (from, incarnation), page);
        self.notify_browsers(answer.into_iter().collect());
    }

    /// Answers requests to queues of this shard, and ends those whose time is up.
    #[cold]
    pub fn tick_browsers(&mut self) {
        let me = self.ctx.node();
        let incarnation = Some(self.ctx.config().incarnation);
        for _ in 0..PAGES_OF_TURN {
            let Some(local) = self.browsers.pop_local() else {
                break;
            };
            let page = (self.queues.local_mut()).browse(local.queue, &local.request);
            let answer = self.browsers.take(local.token, (me, incarnation), page);
            self.notify_browsers(answer.into_iter().collect());
        }
        let late = self.browsers.tick(self.ctx.now());
        self.notify_browsers(late);
    }

    pub(super) fn notify_browsers(&mut self, notifications: Vec<Notification>) {
        for (session, notification) in notifications {
            self.ctx.notify(session, notification.into());
        }
    }
}
