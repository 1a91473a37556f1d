//! Everything of a shard but its client connections: what a session reaches through [`session::Broker`].

use crate::accounts::Accounts;
use crate::apply::Introduction;
use crate::budget::Account;
use crate::clients::Clients;
use crate::config::ShardConfig;
use crate::dead_letter::DeadLetters;
use crate::directory::{Asker, Directory};
use crate::errands::Errands;
use crate::evictions::Gone;
use crate::figures::Figures;
use crate::firehose::Firehose;
use crate::frame::Frame;
use crate::joiners::Joiners;
use crate::listings::Listings;
use crate::logins::Logins;
use crate::members::Members;
use crate::outgoing::Outgoing;
use crate::owners::Owners;
use crate::peers::{Alarms, Peers};
use crate::retained::Ahead;
use crate::stats::StatsRequests;
use crate::tallies::Tallies;
use crate::uses::Uses;
use crate::walks::Walks;
use crate::{Effect, Route, shard_of};
use bytes::Bytes;
use control::Reply;
use env::{NodeId, Rng, SteadyWall, Time, WallTime};
use hashbrown::HashMap;
use metadata::{Change, Done, QueueId, Refused, SessionId, Tree};
use queue::{Event, ToQueue};
use session::Notice;
use std::collections::{BTreeSet, VecDeque};

/// Large CONNECTs that come at a time, of 196 KiB at most each by default.
const MOST_UNKNOWN: u32 = 64;

pub type FixedState = foldhash::fast::FixedState;

/// Where a queue's requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On this shard.
    Here,
    /// On another shard of this node.
    Shard(u16),
    Node(NodeId),
}

pub struct Core {
    pub config: ShardConfig,
    pub now: Time,
    /// Shown by `steady_wall`, so that nothing expires because somebody set the node's clock.
    pub wall: WallTime,
    pub steady_wall: SteadyWall,
    pub rng: Box<dyn Rng + Send>,
    pub tree: Tree,
    /// Metadata log index that `tree` has applied.
    pub applied: u64,
    /// Shard 0 only.
    pub directory: Option<Directory>,
    pub clients: Clients,
    pub owners: Owners,
    pub dead_letters: DeadLetters,
    pub peers: Peers,
    pub alarms: Alarms,
    pub stats: StatsRequests,
    pub walks: Walks,
    pub listings: Listings,
    pub tallies: Tallies,
    pub errands: Errands,
    pub firehose: Firehose,
    pub effects: Vec<Effect>,
    /// For queues of this shard, from sessions of this shard.
    pub requests: VecDeque<(QueueId, ToQueue)>,
    /// For sessions of this shard, from queues of this shard or of elsewhere.
    pub events: VecDeque<(NodeId, u64, QueueId, Event)>,
    pub notices: VecDeque<(u64, Notice)>,
    /// Whose connections are to be closed.
    pub gone: VecDeque<Gone>,
    pub outgoing: Outgoing,
    /// Other shards than 0: who asked for a change under which token.
    pub asked: HashMap<u64, Asker, FixedState>,
    pub next_token: u64,
    pub draining: bool,
    /// The tree holds what the cluster decided before this life began: clients may come. Until then a queue that was
    /// declared while this node was away would seem not to be there, and what is published to it would be dropped.
    pub caught_up: bool,
    /// Clients may come as soon as other hubs are known; None: they may, or the tree has not caught up.
    pub introduction: Option<Introduction>,
    pub started: Time,
    /// `Change::Bootstrap` is on its way.
    pub bootstrapping: bool,
    pub joiners: Joiners,
    /// Nodes whose `PutNode` is on its way.
    pub joining: BTreeSet<NodeId>,
    pub members: Members,
    /// Queues whose deletion is on its way to the tree because nobody else may see to it.
    pub deleting: BTreeSet<QueueId>,
    pub reconcile_at: Time,
    pub passwords: Logins,
    /// Subscriptions of MQTT clients of this shard.
    pub topics: topics::Hub,
    /// What it was told last of the node, under the server's own topics.
    pub figures: Figures,
    /// Where that has newer retained messages than the tree.
    pub ahead: Ahead,
    /// Clients of this shard that nobody knows yet and that send more than each may.
    pub unknown: u32,
    /// Sessions of this shard that are logged in, for users' limits.
    pub accounts: Accounts,
    /// What other shards have open for users and virtual hosts with limits.
    pub uses: Uses,
    /// Bytes that clients make this shard hold.
    pub budget: Account,
}

impl Core {
    pub fn me(&self) -> NodeId {
        self.config.node
    }

    pub fn session(&self, number: u64) -> SessionId {
        SessionId {
            node: self.config.node,
            incarnation: self.config.incarnation,
            number,
        }
    }

    /// See [`session::Broker::hold_unknown`].
    pub fn hold_unknown(&mut self, begins: bool) -> bool {
        if !begins {
            self.unknown = self.unknown.saturating_sub(1);
            return true;
        }
        let room = self.unknown < MOST_UNKNOWN;
        self.unknown += u32::from(room);
        room
    }

    /// Which shard of this node owns a queue.
    pub fn owner_shard(&self, queue: QueueId) -> u16 {
        shard_of(queue.0, self.config.shards)
    }

    pub fn place_of(&self, queue: QueueId, node: NodeId) -> Place {
        if node != self.config.node {
            return Place::Node(node);
        }
        match self.owner_shard(queue) {
            s if s == self.config.index => Place::Here,
            s => Place::Shard(s),
        }
    }

    pub fn send_to_peer(&mut self, to: NodeId, route: Route, frame: &Frame) {
        self.effects.push(Effect::Peer {
            to,
            route,
            frame: frame.encode(),
        });
    }

    pub fn send_to_shard(&mut self, to: u16, frame: &Frame) {
        let from = self.config.index;
        self.effects.push(Effect::Shard {
            to,
            from,
            frame: frame.encode(),
        });
    }

    /// Asks for a metadata change; the asker hears when this shard has applied it.
    pub fn ask(&mut self, change: Change, asker: Asker) {
        if let Err(refused) = change.check_readable() {
            return self.answer(asker, Err(refused));
        }
        let Some(directory) = &mut self.directory else {
            self.next_token += 1;
            let token = self.next_token;
            self.asked.insert(token, asker);
            let frame = Frame::ChangeRequest {
                shard: self.config.index,
                token,
                change,
            };
            self.send_to_shard(0, &frame);
            return;
        };
        let mut sends = Vec::new();
        let full = directory.ask(self.now, change, asker, &mut sends);
        self.carry_out(sends);
        if let Err(asker) = full {
            self.answer(
                asker,
                Err(Refused::Unavailable(
                    "too many metadata changes wait for the cluster".into(),
                )),
            );
        }
    }

    /// What the directory wants sent or proposed.
    pub fn carry_out(&mut self, sends: Vec<crate::directory::Send>) {
        for send in sends {
            match send {
                // A refusal means that leadership is lost; the directory sends again when it hears of the next leader.
                crate::directory::Send::Propose(command) => {
                    drop(self.owners.propose_metadata(command))
                }
                crate::directory::Send::Forward { to, frame } => {
                    self.send_to_peer(to, Route::Shard(0), &frame)
                }
            }
        }
    }

    /// Tells whoever asked for a change what came of it.
    pub fn answer(&mut self, asker: Asker, result: Result<Done, Refused>) {
        match asker {
            Asker::Nobody => {}
            Asker::Session { number, token } => self
                .notices
                .push_back((number, Notice::Changed { token, result })),
            Asker::Control(reply) => reply(result),
            Asker::Members { token, queue, to } => self.members_changed(token, queue, to, result),
            Asker::Retain(retaining) => self.retained(*retaining, result),
            Asker::Review(queue) => self.members.review.answered(queue),
            // The node that found it asks again.
            Asker::Deletion(queue) if result.is_err() => {
                self.deleting.remove(&queue);
            }
            Asker::Deletion(_) => {}
            Asker::Join(node) => self.join_answered(node, result),
            Asker::Replacement(node) => self.members.replacements.answered(node, result),
            // It answers from its own tree when it applies, unless the change has not come through the log.
            Asker::Shard { shard, token } => {
                if let Err(Refused::Unavailable(why)) = result {
                    self.send_to_shard(shard, &Frame::ChangeRefused { token, why });
                }
            }
        }
    }

    pub fn control_change(&mut self, change: Change, reply: Reply<Result<Done, Refused>>) {
        self.ask(change, Asker::Control(reply));
    }

    /// Broadcast to the other shards of this node.
    pub fn send_to_other_shards(&mut self, frame: &Frame) {
        let bytes: Bytes = frame.encode();
        let from = self.config.index;
        for to in (0..self.config.shards).filter(|s| *s != from) {
            self.effects.push(Effect::Shard {
                to,
                from,
                frame: bytes.clone(),
            });
        }
    }
}
