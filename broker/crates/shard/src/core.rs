//! Everything of a shard but its client connections: what a session reaches through [`session::Broker`].

use crate::FixedState;
use crate::Route;
use crate::apply::PeerHandshake;
use crate::context::Context;
use crate::dead_letter::DeadLetters;
use crate::firehose::Firehose;
use crate::frame::Frame;
use crate::internal_client::InternalClient;
use crate::joining_nodes::JoiningNodes;
use crate::limits::Limits;
use crate::listings::Listings;
use crate::members::Members;
use crate::metadata_client::{ChangeRequester, MetadataClient};
use crate::peers::{Alarms, Peers};
use crate::queues::Queues;
use crate::services::Services;
use crate::stats::StatsRequests;
use crate::walks::StatsWalks;
use control::Reply;
use env::{NodeId, Time};
use hashbrown::HashMap;
use metadata::{Change, ChangeError, ChangeResult, Tree};
use session::ControlEvent;
use std::collections::BTreeSet;

pub struct Core {
    pub ctx: Context,
    pub tree: Tree,
    /// Metadata log index that `tree` has applied.
    pub applied: u64,
    /// Shard 0 only.
    pub directory: Option<MetadataClient>,
    pub queues: Queues,
    pub dead_letters: DeadLetters,
    pub peers: Peers,
    pub alarms: Alarms,
    pub stats: StatsRequests,
    pub walks: StatsWalks,
    pub listings: Listings,
    pub internal_client: InternalClient,
    pub firehose: Firehose,
    /// Other shards than 0: who asked for a change under which token.
    pub asked: HashMap<u64, ChangeRequester, FixedState>,
    pub next_token: u64,
    pub draining: bool,
    /// The tree holds what the cluster decided before this life began: clients may come. Until then a queue that was
    /// declared while this node was away would seem not to be there, and what is published to it would be dropped.
    pub caught_up: bool,
    /// Clients may come as soon as the services know those of other shards; None: they may, or the tree has not caught up.
    pub handshake: Option<PeerHandshake>,
    /// `Change::Bootstrap` is on its way.
    pub bootstrapping: bool,
    pub joining_nodes: JoiningNodes,
    /// Nodes whose `PutNode` is on its way.
    pub joining: BTreeSet<NodeId>,
    pub members: Members,
    pub reconcile_at: Time,
    pub limits: Limits,
    /// Parts of protocols that have state on every shard.
    pub services: Services,
}

mod dead_letters;
mod internal_client;

impl Core {
    /// Asks for a metadata change; the asker hears when this shard has applied it.
    pub fn ask(&mut self, change: Change, asker: ChangeRequester) {
        if let Some(asker) = self.postpone_deletion(&change, asker) {
            self.ask_now(change, asker);
        }
    }

    /// As [`Core::ask`], without asking services whether a deletion must wait.
    pub fn ask_now(&mut self, change: Change, asker: ChangeRequester) {
        if let Err(refused) = change.check_readable() {
            return self.answer(asker, Err(refused));
        }
        let Some(directory) = &mut self.directory else {
            self.next_token += 1;
            let token = self.next_token;
            self.asked.insert(token, asker);
            let frame = Frame::ChangeRequest {
                shard: self.ctx.shard(),
                token,
                change,
            };
            self.ctx.send_to_shard(0, &frame);
            return;
        };
        let mut sends = Vec::new();
        let full = directory.ask(self.ctx.now(), change, asker, &mut sends);
        self.carry_out(sends);
        if let Err(asker) = full {
            self.answer(
                asker,
                Err(ChangeError::Unavailable(
                    "too many metadata changes wait for the cluster".into(),
                )),
            );
        }
    }

    /// What the directory wants sent or proposed.
    pub fn carry_out(&mut self, sends: Vec<crate::metadata_client::ProposalAction>) {
        for send in sends {
            match send {
                // A refusal means that leadership is lost; the directory sends again when it hears of the next leader.
                crate::metadata_client::ProposalAction::Propose(command) => {
                    drop(self.queues.local_mut().propose_metadata(command))
                }
                crate::metadata_client::ProposalAction::Forward { to, frame } => {
                    self.ctx.send_to_peer(to, Route::Shard(0), &frame)
                }
            }
        }
    }

    /// Tells whoever asked for a change what came of it.
    pub fn answer(&mut self, asker: ChangeRequester, result: Result<ChangeResult, ChangeError>) {
        match asker {
            ChangeRequester::Nobody => {}
            ChangeRequester::Session { number, token } => self
                .ctx
                .notify(number, ControlEvent::Changed { token, result }.into()),
            ChangeRequester::Control(reply) => reply(result),
            ChangeRequester::Members { token, queue, to } => {
                self.members_changed(token, queue, to, result)
            }
            ChangeRequester::Review(queue) => self.members.review.answered(queue),
            // The node that found it asks again.
            ChangeRequester::Deletion(queue) if result.is_err() => {
                self.queues.end_deletion(queue);
            }
            ChangeRequester::Deletion(_) => {}
            ChangeRequester::Service { at, token } => {
                self.with_service(at, |service, view| {
                    service.change_answered(view, token, result);
                });
            }
            ChangeRequester::Join(node) => self.join_answered(node, result),
            ChangeRequester::Replacement(node) => self.members.replacements.answered(node, result),
            // It answers from its own tree when it applies, unless the change has not come through the log.
            ChangeRequester::Shard { shard, token } => {
                if let Err(ChangeError::Unavailable(why)) = result {
                    self.ctx
                        .send_to_shard(shard, &Frame::ChangeRefused { token, why });
                }
            }
        }
    }

    pub fn control_change(
        &mut self,
        change: Change,
        reply: Reply<Result<ChangeResult, ChangeError>>,
    ) {
        self.ask(change, ChangeRequester::Control(reply));
    }
}
