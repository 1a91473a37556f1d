//! The shard's replica of the metadata tree.
//!
//! Owns: the tree and the log index that it has applied; on shard 0 the client of the metadata group ([`MetadataClient`]), on
//! other shards the changes that shard 0 was asked for; the state of catching up after a start.
//!
//! Inputs: changes that parts of the shard request, committed entries and checkpoints of the metadata group, the leader of the
//! group, time.
//!
//! Outputs: forwarded changes through the [`Context`]; proposals and answers as [`MetadataAction`]s that the loop carries out in
//! order. What a change did to the tree is read as [`TreeEvent`]s.

use crate::FixedState;
use crate::config::Founding;
use crate::context::Context;
use crate::frame::{Frame, Origin};
use crate::metadata_client::{
    ChangeRequester, MetadataClient, MetadataLeader, ProposalAction, command,
};
use crate::peers::Peers;
use crate::{ClusterView, Route};
use bytes::Bytes;
use consensus::CommittedEntry;
use env::{Incarnation, NodeId, Time};
use hashbrown::HashMap;
use metadata::{Change, ChangeError, ChangeResult, Tree, TreeEvent};
use std::time::Duration;

/// How long a shard that could accept clients waits until its services are ready.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same for nodes of the cluster that this incarnation has not met. Most often they are up, and links take a moment.
const MEETING_TIMEOUT: Duration = Duration::from_secs(1);

/// The times until which clients wait for other nodes.
#[derive(Clone, Copy, Debug)]
struct PeerHandshake {
    meet_by: Time,
    by: Time,
}

/// What the loop does for the metadata replica.
pub(crate) enum MetadataAction {
    /// Propose a command to the metadata group of this node. If leadership is lost, the change is sent again to the next leader.
    Propose(Bytes),
    Answer(ChangeRequester, Result<ChangeResult, ChangeError>),
}

pub(crate) struct MetadataReplica {
    tree: Tree,
    /// The index of the last log entry that `tree` has applied.
    applied: u64,
    /// Shard 0 only.
    client: Option<MetadataClient>,
    /// Other shards than 0: the requesters of changes, by token.
    requested: HashMap<u64, ChangeRequester, FixedState>,
    next_token: u64,
    /// The tree has everything that was committed before this incarnation began, so clients may connect. Until then a queue
    /// that was declared while this node was down would seem to be missing, and messages published to it would be dropped.
    is_caught_up: bool,
    /// Set from when the tree has caught up until clients may connect.
    handshake: Option<PeerHandshake>,
    /// `Change::Bootstrap` was requested.
    is_bootstrapping: bool,
    /// The shard records spans, so its tree traces all messages.
    records_spans: bool,
}

impl MetadataReplica {
    pub(crate) fn new(ctx: &Context) -> MetadataReplica {
        let config = ctx.config();
        let client = ctx
            .is_first_shard()
            .then(|| MetadataClient::new(config.node, config.incarnation));
        MetadataReplica {
            tree: Tree::default(),
            applied: 0,
            client,
            requested: HashMap::default(),
            next_token: 0,
            is_caught_up: false,
            handshake: None,
            is_bootstrapping: false,
            records_spans: false,
        }
    }

    /// Sessions of the shard report all messages.
    pub(crate) fn trace_all(&mut self) {
        self.records_spans = true;
        self.tree.trace_all();
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    /// The leader of the metadata group. `None`: this is not shard 0.
    pub(crate) fn leader(&self) -> Option<MetadataLeader> {
        self.client.as_ref().map(MetadataClient::leader)
    }

    /// Returns true if the shard has the tree that is the first in the cluster to have a change: that of shard 0 on a node
    /// alone.
    pub(crate) fn knows_all(&self) -> bool {
        self.client.is_some() && self.tree.nodes().nth(1).is_none()
    }

    pub(crate) fn is_caught_up(&self) -> bool {
        self.is_caught_up
    }

    /// Returns true while clients wait for the other nodes and the services.
    pub(crate) fn is_in_handshake(&self) -> bool {
        self.handshake.is_some()
    }

    /// Requests a change. The requester is answered when this shard has applied it.
    pub(crate) fn request(
        &mut self,
        ctx: &mut Context,
        change: Change,
        requester: ChangeRequester,
    ) -> Vec<MetadataAction> {
        if let Err(refused) = change.check_readable() {
            return vec![MetadataAction::Answer(requester, Err(refused))];
        }
        let Some(client) = &mut self.client else {
            self.next_token += 1;
            let token = self.next_token;
            self.requested.insert(token, requester);
            let frame = Frame::ChangeRequest {
                shard: ctx.shard(),
                token,
                change,
            };
            ctx.send_to_shard(0, frame);
            return Vec::new();
        };
        let mut sends = Vec::new();
        let full = client.ask(ctx.now(), change, requester, &mut sends);
        let mut actions = send(ctx, sends);
        if let Err(requester) = full {
            let text = "too many metadata changes wait for the cluster";
            let refused = Err(ChangeError::Unavailable(text.into()));
            actions.push(MetadataAction::Answer(requester, refused));
        }
        actions
    }

    /// Shard 0: the leader of the metadata group has changed.
    pub(crate) fn handle_leader(
        &mut self,
        ctx: &mut Context,
        leader: Option<NodeId>,
        is_me: bool,
    ) -> Vec<MetadataAction> {
        let Some(client) = &mut self.client else {
            return Vec::new();
        };
        let leader = match leader {
            _ if is_me => MetadataLeader::Me,
            Some(node) => MetadataLeader::Other(node),
            None => MetadataLeader::Unknown,
        };
        let mut sends = Vec::new();
        client.leader_changed(ctx.now(), leader, &mut sends);
        send(ctx, sends)
    }

    /// Shard 0: another node forwards a change. Only the leader proposes it; otherwise that node sends it again.
    pub(crate) fn handle_forwarded(
        &self,
        origin: Origin,
        change: &Change,
    ) -> Option<MetadataAction> {
        let is_leader = self.leader() == Some(MetadataLeader::Me);
        is_leader.then(|| MetadataAction::Propose(command(origin, change)))
    }

    /// Shard 0: returns true if changes have no answer.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(MetadataClient::has_pending)
    }

    /// Shard 0: sends changes again that have no answer, and gives up on the oldest.
    pub(crate) fn tick(&mut self, ctx: &mut Context) -> Vec<MetadataAction> {
        let Some(client) = &mut self.client else {
            return Vec::new();
        };
        let mut sends = Vec::new();
        let late = client.tick(ctx.now(), &mut sends);
        let mut actions = send(ctx, sends);
        let text = "the cluster did not answer in time; the change may still be made";
        let answers = late.into_iter().map(|requester| {
            MetadataAction::Answer(requester, Err(ChangeError::Unavailable(text.into())))
        });
        actions.extend(answers);
        actions
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        let client = self.client.as_ref().and_then(MetadataClient::wake_at);
        let handshake = self.handshake.map(|h| match h.meet_by > now {
            true => h.meet_by,
            false => h.by,
        });
        Time::earliest([client, handshake])
    }

    /// Shard 0: takes a committed entry. Returns the change to apply and its requester, if it is to be applied, or the text of
    /// a fatal error.
    pub(crate) fn take_committed(
        &mut self,
        ctx: &mut Context,
        entry: CommittedEntry,
    ) -> Result<Option<(Change, ChangeRequester)>, String> {
        let Some(client) = &mut self.client else {
            return Ok(None);
        };
        let taken = client.committed(ctx.now(), entry.command);
        self.applied = entry.index;
        let taken = taken.map_err(|error| {
            format!(
                "entry {} of the metadata log cannot be read by version {}: {error}",
                entry.index,
                ctx.config().program.version
            )
        })?;
        if let Some((change, requester)) = &taken
            && ctx.config().shards > 1
        {
            let done_for = match requester {
                ChangeRequester::Shard { shard, token } => Some((*shard, *token)),
                _ => None,
            };
            ctx.send_to_other_shards(&Frame::Applied {
                index: entry.index,
                change: change.clone(),
                done_for,
            });
        }
        Ok(taken)
    }

    /// Applies a change to the tree. Its effects are the next [`MetadataReplica::take_events`].
    pub(crate) fn apply(
        &mut self,
        index: u64,
        change: &Change,
    ) -> Result<ChangeResult, ChangeError> {
        self.applied = index;
        self.tree.apply(index, change)
    }

    pub(crate) fn take_events(&mut self) -> Vec<TreeEvent> {
        self.tree.take_events()
    }

    /// Other shards than 0: the requester of a change with this token, which gets no other answer.
    pub(crate) fn take_requester(&mut self, token: u64) -> Option<ChangeRequester> {
        self.requested.remove(&token)
    }

    /// Shard 0: the checkpoint of the metadata group and the index of its last entry.
    pub(crate) fn checkpoint(&self) -> Option<(u64, Bytes)> {
        let client = self.client.as_ref()?;
        Some((self.applied, client.snapshot(&self.tree.snapshot())))
    }

    /// Shard 0: reads a checkpoint of the metadata group, and passes the tree in it on to the other shards. Returns that tree
    /// and the answers to changes whose results are lost, or the text of a fatal error.
    pub(crate) fn read_checkpoint(
        &mut self,
        ctx: &mut Context,
        index: u64,
        state: Bytes,
    ) -> Result<Option<(Bytes, Vec<MetadataAction>)>, String> {
        let Some(client) = &mut self.client else {
            return Ok(None);
        };
        let (tree, unanswered) = client
            .restore(state)
            .map_err(|error| checkpoint_error(&error))?;
        if ctx.config().shards > 1 {
            let tree = tree.clone();
            ctx.send_to_other_shards(&Frame::Restored { index, tree });
        }
        let text = "the change was made, but its result is not known here";
        let answers = unanswered.into_iter().map(|requester| {
            MetadataAction::Answer(requester, Err(ChangeError::Unavailable(text.into())))
        });
        Ok(Some((tree, answers.collect())))
    }

    /// Replaces the tree by that of a checkpoint. Returns the tree before, or the text of a fatal error.
    pub(crate) fn replace_tree(&mut self, index: u64, state: &[u8]) -> Result<Tree, String> {
        let new = Tree::restore(state).map_err(|error| checkpoint_error(&error))?;
        let before = std::mem::replace(&mut self.tree, new);
        self.applied = index;
        self.tree.take_traffic(&before);
        if self.records_spans {
            self.tree.trace_all();
        }
        Ok(before)
    }

    /// Shard 0: returns true when clients may connect, as far as the tree is concerned.
    ///
    /// The first change of this incarnation went through the log, so everything that was committed before is applied when that
    /// change is. In the very first incarnation of a node it must also be a member: the change that makes it one comes after
    /// the first contents of the cluster.
    pub(crate) fn has_just_caught_up(&self, ctx: &Context) -> bool {
        let is_heard = self.client.as_ref().is_some_and(MetadataClient::is_heard);
        !self.is_caught_up && is_heard && self.tree.node(ctx.node()).is_some()
    }

    /// The tree has caught up: clients wait only for other nodes and the services now.
    pub(crate) fn begin_handshake(&mut self, now: Time) {
        self.is_caught_up = true;
        self.handshake = Some(PeerHandshake {
            meet_by: now + MEETING_TIMEOUT,
            by: now + HANDSHAKE_TIMEOUT,
        });
    }

    /// Ends the wait of clients if the services are ready: a message that is published before would not reach all subscribers.
    /// Shards that do not answer must not keep clients out for ever. Returns true if it ends now.
    pub(crate) fn end_handshake(
        &mut self,
        now: Time,
        peers: &Peers,
        are_services_ready: impl FnOnce() -> bool,
    ) -> bool {
        let Some(PeerHandshake { meet_by, by }) = self.handshake else {
            return false;
        };
        let has_met_all = || self.tree.nodes().all(|node| peers.is_known(node.id));
        let has_met = meet_by <= now || has_met_all();
        if by > now && !(has_met && are_services_ready()) {
            return false;
        }
        self.handshake = None;
        true
    }

    /// The cluster for the links to other nodes.
    pub(crate) fn cluster_view(&self) -> ClusterView {
        let enabled = || self.tree.enabled_features().cloned().collect();
        ClusterView {
            nodes: self.tree.nodes().map(|n| (**n).clone()).collect(),
            enabled: self.is_caught_up.then(enabled),
        }
    }

    /// Returns true on the leader of the metadata group while the cluster has no contents and none were requested.
    #[inline]
    pub(crate) fn needs_bootstrap(&self) -> bool {
        !self.is_bootstrapping
            && self.leader() == Some(MetadataLeader::Me)
            && self.tree.nodes().next().is_none()
    }

    /// The changes with which the first leader of a new cluster gives it its first contents. They are requested once.
    pub(crate) fn begin_bootstrap(&mut self, founding: Option<&Founding>) -> Vec<Change> {
        debug_assert!(
            self.needs_bootstrap(),
            "a cluster gets its first contents once"
        );
        let Some(founding) = founding.cloned() else {
            return Vec::new();
        };
        self.is_bootstrapping = true;
        let mut changes = vec![Change::Bootstrap {
            cluster: founding.cluster,
            nodes: founding.nodes,
            user: founding.user,
        }];
        let features = founding.features.into_iter();
        changes.extend(features.map(|name| Change::EnableFeature { name }));
        if let Some(kind) = founding.default_queue_type {
            changes.push(Change::SetDefaultQueueType {
                vhost: "/".into(),
                kind: Some(kind),
            });
        }
        changes
    }
}

/// The change that ends the sessions of this node's earlier incarnations. It is requested in the first incarnation, too: its
/// answer is the sign that the tree has caught up.
pub(crate) fn end_of_earlier_incarnations(node: NodeId, incarnation: Incarnation) -> Change {
    Change::EndIncarnation {
        node,
        incarnation: Incarnation(incarnation.0.saturating_sub(1)),
    }
}

fn checkpoint_error(error: &dyn std::fmt::Display) -> String {
    format!("metadata checkpoint cannot be read: {error}")
}

/// Forwards changes to the leader on another node. Returns the proposals to this node's own group.
fn send(ctx: &mut Context, sends: Vec<ProposalAction>) -> Vec<MetadataAction> {
    let mut actions = Vec::new();
    for send in sends {
        match send {
            ProposalAction::Propose(command) => actions.push(MetadataAction::Propose(command)),
            ProposalAction::Forward { to, frame } => ctx.send_to_peer(to, Route::Shard(0), &frame),
        }
    }
    actions
}
